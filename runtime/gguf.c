/* The GGUF container, versions 2 and 3 (little endian): metadata keys, tensor directory, aligned data.
 *
 * Layout: "GGUF", version u32, tensor count u64, key count u64; keys {name, type u32, value}; tensors {name,
 * dimensions fastest first, type u32, offset u64}; data, aligned to general.alignment. Strings are a u64
 * length and bytes. Everything but strings' places and tensor names stays in the mapping. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/file_build.h"
#include "runtime/mem.h"

enum {
    KEY_BYTES = 13,    /* the smallest key: empty name, type, one byte */
    TENSOR_BYTES = 24, /* the smallest directory entry */
    NAME_MAX_LEN = 65535,
    ALIGNMENT = 32
};

/* Value types of the format. */
enum { T_U8, T_I8, T_U16, T_I16, T_U32, T_I32, T_F32, T_BOOL, T_STRING, T_ARRAY, T_U64, T_I64, T_F64, N_TYPE };

static const struct {
    dg_meta_type type;
    int32_t width; /* 0: no packed number */
} value_type[N_TYPE] = {
    [T_U8] = {DG_META_U64, 1},       [T_I8] = {DG_META_I64, 1},    [T_U16] = {DG_META_U64, 2},
    [T_I16] = {DG_META_I64, 2},      [T_U32] = {DG_META_U64, 4},   [T_I32] = {DG_META_I64, 4},
    [T_F32] = {DG_META_F64, 4},      [T_BOOL] = {DG_META_BOOL, 1}, [T_STRING] = {DG_META_STRING, 0},
    [T_ARRAY] = {DG_META_STRING, 0}, [T_U64] = {DG_META_U64, 8},   [T_I64] = {DG_META_I64, 8},
    [T_F64] = {DG_META_F64, 8}};

/* ---- reading ---------------------------------------------------------------------------------- */

typedef struct cursor {
    const char *path;
    const uint8_t *p, *end, *base;
} cursor;

static size_t left(const cursor *c) { return (size_t)(c->end - c->p); }

static dg_status truncated(const cursor *c, const char *what, uint64_t need) {
    return dg_fail(DG_ERR_FORMAT,
                   "%s: %s at byte %zu: expected %llu more bytes, found %zu (is the file complete?)", c->path,
                   what, (size_t)(c->p - c->base), (unsigned long long)need, left(c));
}

/* The next n bytes, or NULL if there are fewer. */
static const uint8_t *take(cursor *c, uint64_t n) {
    if (n > left(c)) return NULL;
    const uint8_t *p = c->p;
    c->p += n;
    return p;
}

static uint64_t load_le(const uint8_t *p, int32_t width) {
    uint64_t v = 0;
    for (int32_t i = 0; i < width; i++) v |= (uint64_t)p[i] << (8 * i);
    return v;
}

static dg_status take_u32(cursor *c, const char *what, uint32_t *v) {
    const uint8_t *p = take(c, 4);
    if (!p) return truncated(c, what, 4);
    *v = (uint32_t)load_le(p, 4);
    return DG_OK;
}

static dg_status take_u64(cursor *c, const char *what, uint64_t *v) {
    const uint8_t *p = take(c, 8);
    if (!p) return truncated(c, what, 8);
    *v = load_le(p, 8);
    return DG_OK;
}

static dg_status take_string(cursor *c, const char *what, dg_str *s) {
    uint64_t n = 0;
    DG_TRY(take_u64(c, what, &n));
    const uint8_t *p = take(c, n);
    if (!p) return truncated(c, what, n);
    *s = (dg_str){(const char *)p, (size_t)n};
    return DG_OK;
}

static dg_status take_name(cursor *c, const char *what, dg_str *s) {
    DG_TRY(take_string(c, what, s));
    DG_CHECK(s->len <= NAME_MAX_LEN, DG_ERR_FORMAT,
             "%s: the name of a %s: expected at most %d bytes, found %zu", c->path, what, NAME_MAX_LEN,
             s->len);
    return dg_name_check(c->path, what, s->ptr, s->len);
}

#define STR(s) (int)((s).len < 96 ? (s).len : 96), (s).ptr /* for %.*s, of a length that fits a message */

/* ---- metadata --------------------------------------------------------------------------------- */

static dg_status read_strings(cursor *c, dg_meta *m) {
    /* each string takes 8 bytes of the file at least, so a lie about the count cannot ask for more memory
     * than twice the file */
    DG_CHECK(m->n <= left(c) / 8, DG_ERR_FORMAT,
             "%s: key %.*s: expected at most %zu strings in the rest of the file, found %llu", c->path,
             STR(m->key), left(c) / 8, (unsigned long long)m->n);
    dg_str *s = dg_mem_calloc((size_t)m->n, sizeof *s);
    DG_CHECK(s, DG_ERR_MEMORY, "%s: no memory for %llu strings", c->path, (unsigned long long)m->n);
    m->string = s;
    for (uint64_t i = 0; i < m->n; i++) DG_TRY(take_string(c, "string", &s[i]));
    return DG_OK;
}

static dg_status read_value(cursor *c, dg_meta *m) {
    uint32_t type = 0;
    DG_TRY(take_u32(c, "value type", &type));
    m->n = 1;
    m->is_array = type == T_ARRAY;
    if (m->is_array) {
        DG_TRY(take_u32(c, "array type", &type));
        DG_TRY(take_u64(c, "array length", &m->n));
        DG_CHECK(type != T_ARRAY, DG_ERR_UNSUPPORTED, "%s: key %.*s: arrays of arrays are not supported",
                 c->path, STR(m->key));
    }
    DG_CHECK(type < N_TYPE, DG_ERR_FORMAT, "%s: key %.*s: value type: expected 0 to %d, found %u", c->path,
             STR(m->key), N_TYPE - 1, type);
    m->type = value_type[type].type;
    m->width = value_type[type].width;
    if (type == T_STRING) return read_strings(c, m);
    const uint64_t width = (uint64_t)m->width;
    DG_CHECK(m->n <= left(c) / width, DG_ERR_FORMAT,
             "%s: key %.*s: expected at most %llu elements in the rest of the file, found %llu", c->path,
             STR(m->key), (unsigned long long)(left(c) / width), (unsigned long long)m->n);
    m->data = take(c, m->n * width);
    return DG_OK;
}

static int compare_str(dg_str a, dg_str b) {
    const int d = memcmp(a.ptr, b.ptr, a.len < b.len ? a.len : b.len);
    return d ? d : a.len < b.len ? -1 : a.len > b.len;
}

static int by_key(const void *a, const void *b) {
    return compare_str(((const dg_meta *)a)->key, ((const dg_meta *)b)->key);
}

static dg_status read_meta(dg_file *f, cursor *c, uint64_t n) {
    DG_CHECK(n <= left(c) / KEY_BYTES, DG_ERR_FORMAT, "%s: key count: expected at most %zu, found %llu",
             c->path, left(c) / KEY_BYTES, (unsigned long long)n);
    f->meta = dg_mem_calloc((size_t)n, sizeof *f->meta);
    DG_CHECK(f->meta, DG_ERR_MEMORY, "%s: no memory for %llu keys", c->path, (unsigned long long)n);
    while (f->n_meta < n) {
        dg_meta *m = &f->meta[f->n_meta++];
        DG_TRY(take_name(c, "key", &m->key));
        DG_TRY(read_value(c, m));
    }
    if (n > 1) qsort(f->meta, (size_t)n, sizeof *f->meta, by_key);
    for (size_t i = 1; i < f->n_meta; i++)
        DG_CHECK(by_key(&f->meta[i - 1], &f->meta[i]) != 0, DG_ERR_FORMAT, "%s: key %.*s occurs twice",
                 c->path, STR(f->meta[i].key));
    return DG_OK;
}

/* ---- tensors ---------------------------------------------------------------------------------- */

static dg_status read_type(cursor *c, const char *name, dg_dtype *out) {
    enum { NONE = DG_DTYPE_COUNT };
    static const uint8_t known[] = {
        [0] = DG_F32,     [1] = DG_F16,      [2] = DG_Q4_0,    [3] = DG_Q4_1,     [4] = NONE,
        [5] = NONE,       [6] = DG_Q5_0,     [7] = DG_Q5_1,    [8] = DG_Q8_0,     [9] = NONE,
        [10] = DG_Q2_K,   [11] = DG_Q3_K,    [12] = DG_Q4_K,   [13] = DG_Q5_K,    [14] = DG_Q6_K,
        [15] = NONE,      [16] = DG_IQ2_XXS, [17] = DG_IQ2_XS, [18] = DG_IQ3_XXS, [19] = DG_IQ1_S,
        [20] = DG_IQ4_NL, [21] = DG_IQ3_S,   [22] = DG_IQ2_S,  [23] = DG_IQ4_XS,  [24] = DG_I8,
        [25] = DG_I16,    [26] = DG_I32,     [27] = DG_I64,    [28] = DG_F64,     [29] = DG_IQ1_M,
        [30] = DG_BF16,   [31] = NONE,       [32] = NONE,      [33] = NONE,       [34] = DG_TQ1_0,
        [35] = DG_TQ2_0,  [36] = NONE,       [37] = NONE,      [38] = NONE,       [39] = DG_MXFP4,
        [40] = DG_NVFP4};
    uint32_t type = 0;
    DG_TRY(take_u32(c, "tensor type", &type));
    DG_CHECK(
        type < sizeof known && known[type] != NONE, DG_ERR_UNSUPPORTED,
        "%s: tensor %s: type %u is not supported; supported: f32, f16, bf16, f64, i8 to i64, q4_0 to q8_0, "
        "q2_k to q6_k, iq1 to iq4, tq1_0, tq2_0, mxfp4, nvfp4",
        c->path, name, type);
    *out = (dg_dtype)known[type];
    return DG_OK;
}

/* One directory entry; t->data is left as the offset, since the data's start is not known yet. */
static dg_status read_entry(cursor *c, dg_file_tensor *t, uint64_t *offset) {
    uint32_t n_dim = 0;
    DG_TRY(take_u32(c, "dimension count", &n_dim));
    DG_CHECK(n_dim <= DG_MAX_DIMS, DG_ERR_FORMAT, "%s: tensor %s: expected at most %d dimensions, found %u",
             c->path, t->name, DG_MAX_DIMS, n_dim);
    t->n_dim = (int32_t)n_dim;
    for (uint32_t i = 0; i < n_dim; i++) {
        uint64_t v = 0;
        DG_TRY(take_u64(c, "dimension", &v));
        t->dim[n_dim - 1 - i] = v > INT64_MAX ? INT64_MAX : (int64_t)v;
    }
    DG_TRY(read_type(c, t->name, &t->dtype));
    DG_TRY(take_u64(c, "tensor offset", offset));
    return dg_tensor_measure(c->path, t);
}

static dg_status read_alignment(const dg_file *f, uint64_t *alignment) {
    dg_status st = DG_OK;
    dg_meta_u64(f, "general.alignment", alignment, &st);
    DG_TRY(st);
    DG_CHECK(*alignment >= 8 && *alignment <= 1u << 30 && (*alignment & (*alignment - 1)) == 0, DG_ERR_FORMAT,
             "%s: general.alignment: expected a power of two from 8 up, found %llu", f->path,
             (unsigned long long)*alignment);
    return DG_OK;
}

/* Turns offsets into addresses once the directory has been read. */
static dg_status place(dg_file *f, const cursor *c, const uint64_t *offset) {
    uint64_t alignment = ALIGNMENT;
    DG_TRY(read_alignment(f, &alignment));
    const size_t at = (size_t)(c->p - c->base), size = (size_t)(c->end - c->base);
    const uint64_t begin = (at + alignment - 1) & ~(alignment - 1);
    for (size_t i = 0; i < f->n_tensor; i++) {
        dg_file_tensor *t = &f->tensor[i];
        DG_CHECK(offset[i] % alignment == 0, DG_ERR_FORMAT,
                 "%s: tensor %s: offset: expected a multiple of %llu, found %llu", f->path, t->name,
                 (unsigned long long)alignment, (unsigned long long)offset[i]);
        DG_CHECK(begin <= size && offset[i] <= size - begin && t->size <= size - begin - offset[i],
                 DG_ERR_FORMAT,
                 "%s: tensor %s: expected %zu bytes at offset %llu of the data, found %zu bytes of data "
                 "(is the file complete?)",
                 f->path, t->name, t->size, (unsigned long long)offset[i],
                 begin <= size ? (size_t)(size - begin) : 0);
        t->data = c->base + begin + offset[i];
    }
    return dg_tensor_layout(f->path, f->tensor, f->n_tensor, c->base + begin);
}

static dg_status read_tensors(dg_file *f, cursor *c, uint64_t n) {
    DG_CHECK(n <= left(c) / TENSOR_BYTES, DG_ERR_FORMAT, "%s: tensor count: expected at most %zu, found %llu",
             c->path, left(c) / TENSOR_BYTES, (unsigned long long)n);
    DG_CHECK(n > 0 || dg_meta_find(f, "tokenizer.ggml.tokens"), DG_ERR_FORMAT,
             "%s: expected tensors or a vocabulary, found neither", c->path);
    uint64_t *offset = dg_mem_calloc((size_t)n, sizeof *offset);
    DG_CHECK(offset, DG_ERR_MEMORY, "%s: no memory for %llu tensors", c->path, (unsigned long long)n);
    dg_status st = dg_file_reserve(f, (size_t)n);
    while (st == DG_OK && f->n_tensor < n) {
        dg_str name = {0};
        dg_file_tensor *t = &f->tensor[f->n_tensor];
        st = take_name(c, "tensor", &name);
        if (st != DG_OK) break;
        t->name = dg_mem_strndup(name.ptr, name.len);
        if (!t->name) {
            st = dg_fail(DG_ERR_MEMORY, "%s: no memory", c->path);
            break;
        }
        st = read_entry(c, t, &offset[f->n_tensor++]);
    }
    if (st == DG_OK) st = place(f, c, offset);
    if (st == DG_OK) st = dg_file_index(f);
    dg_mem_free(offset);
    return st;
}

/* ---- opening ---------------------------------------------------------------------------------- */

static dg_status read_file(dg_file *f) {
    DG_TRY(dg_file_map(f, f->path));
    const struct dg_mapping *m = &f->mapping[0];
    cursor c = {f->path, m->data, m->data + m->size, m->data};
    uint32_t version = 0;
    uint64_t n_tensor = 0, n_meta = 0, parts = 1;
    const uint8_t *magic = take(&c, 4);
    if (!magic) return truncated(&c, "magic", 4);
    DG_CHECK(memcmp(magic, "GGUF", 4) == 0, DG_ERR_FORMAT, "%s: expected GGUF, found %02x %02x %02x %02x",
             f->path, magic[0], magic[1], magic[2], magic[3]);
    DG_TRY(take_u32(&c, "version", &version));
    DG_CHECK((version & 0xffff) != 0, DG_ERR_UNSUPPORTED,
             "%s: a big-endian GGUF file is not supported; supported: little-endian, versions 2 and 3",
             f->path);
    DG_CHECK(version == 2 || version == 3, DG_ERR_UNSUPPORTED,
             "%s: GGUF version %u is not supported; supported: versions 2 and 3", f->path, version);
    DG_TRY(take_u64(&c, "tensor count", &n_tensor));
    DG_TRY(take_u64(&c, "key count", &n_meta));
    DG_TRY(read_meta(f, &c, n_meta));
    dg_status st = DG_OK;
    dg_meta_u64(f, "split.count", &parts, &st);
    DG_TRY(st);
    DG_CHECK(parts <= 1, DG_ERR_UNSUPPORTED,
             "%s: one of %llu parts of a split GGUF is not supported; merge them first", f->path,
             (unsigned long long)parts);
    return read_tensors(f, &c, n_tensor);
}

dg_status dg_gguf_open(const char *path, dg_file **out) {
    dg_file *f;
    DG_TRY(dg_file_new(path, DG_CONTAINER_GGUF, &f));
    const dg_status st = read_file(f);
    if (st != DG_OK) {
        dg_file_close(f);
        return st;
    }
    *out = f;
    return DG_OK;
}

/* ---- asking ----------------------------------------------------------------------------------- */

const dg_meta *dg_meta_find(const dg_file *f, const char *key) {
    const dg_meta want = {.key = {key, strlen(key)}};
    return f->n_meta ? bsearch(&want, f->meta, f->n_meta, sizeof want, by_key) : NULL;
}

int64_t dg_meta_int(const dg_meta *m, uint64_t i) {
    assert(m->type != DG_META_STRING && i < m->n);
    if (m->type == DG_META_F64) {
        const double v = dg_meta_number(m, i);
        return v >= -0x1p63 && v < 0x1p63 ? (int64_t)v
               : v < 0                    ? INT64_MIN
               : v > 0                    ? INT64_MAX
                                          : 0; /* NaN */
    }
    const uint64_t v = load_le((const uint8_t *)m->data + i * (uint64_t)m->width, m->width);
    if (m->type == DG_META_BOOL) return v != 0;
    if (m->type == DG_META_U64) return v > INT64_MAX ? INT64_MAX : (int64_t)v;
    const int unused = 64 - 8 * m->width;
    return (int64_t)(v << unused) >> unused;
}

double dg_meta_number(const dg_meta *m, uint64_t i) {
    assert(m->type != DG_META_STRING && i < m->n);
    const uint64_t v = load_le((const uint8_t *)m->data + i * (uint64_t)m->width, m->width);
    if (m->type == DG_META_U64) return (double)v;
    if (m->type != DG_META_F64) return (double)dg_meta_int(m, i);
    double d;
    float s;
    const uint32_t half = (uint32_t)v;
    memcpy(&d, &v, sizeof d);
    memcpy(&s, &half, sizeof s);
    return m->width == 8 ? d : (double)s;
}

static bool mistyped(const dg_file *f, const dg_meta *m, const char *expected, dg_status *st) {
    static const char *const name[] = {"an integer", "an integer", "a float", "a boolean", "a string"};
    if (st)
        *st = dg_fail(DG_ERR_FORMAT, "%s: key %.*s: expected %s, found %s%s", f->path, STR(m->key), expected,
                      m->is_array ? "an array of type: " : "", name[m->type]);
    return false;
}

bool dg_meta_u64(const dg_file *f, const char *key, uint64_t *v, dg_status *st) {
    const dg_meta *m = dg_meta_find(f, key);
    if (!m) return false;
    const bool is_int = !m->is_array && (m->type == DG_META_U64 || m->type == DG_META_I64);
    if (!is_int || (m->type == DG_META_I64 && dg_meta_int(m, 0) < 0))
        return mistyped(f, m, "an integer from 0 up", st);
    *v = load_le(m->data, m->width);
    return true;
}

bool dg_meta_f64(const dg_file *f, const char *key, double *v, dg_status *st) {
    const dg_meta *m = dg_meta_find(f, key);
    if (!m) return false;
    if (m->is_array || m->type == DG_META_STRING || m->type == DG_META_BOOL)
        return mistyped(f, m, "a number", st);
    *v = dg_meta_number(m, 0);
    return true;
}

bool dg_meta_bool(const dg_file *f, const char *key, bool *v, dg_status *st) {
    const dg_meta *m = dg_meta_find(f, key);
    if (!m) return false;
    if (m->is_array || m->type != DG_META_BOOL) return mistyped(f, m, "a boolean", st);
    *v = dg_meta_int(m, 0) != 0;
    return true;
}

bool dg_meta_str(const dg_file *f, const char *key, dg_str *v, dg_status *st) {
    const dg_meta *m = dg_meta_find(f, key);
    if (!m) return false;
    if (m->is_array || m->type != DG_META_STRING) return mistyped(f, m, "a string", st);
    *v = m->string[0];
    return true;
}
