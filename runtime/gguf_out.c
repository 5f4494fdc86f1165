/* The GGUF writer; see gguf_out.h and, for the layout, gguf.c. */
#include "runtime/gguf_out.h"

#include <assert.h>
#include <string.h>

#include "runtime/mem.h"

/* Value types of the format, as in gguf.c. */
enum { T_U8, T_I8, T_U16, T_I16, T_U32, T_I32, T_F32, T_BOOL, T_STRING, T_ARRAY, T_U64, T_I64, T_F64 };

static void put(dg_gguf_out *g, dg_gguf_part *to, const void *p, size_t n) {
    if (g->status != DG_OK || n == 0) return;
    if (n > to->cap - to->n) {
        const size_t cap = (to->cap + n) * 2;
        char *grown = dg_mem_grow(to->p, to->n, cap);
        if (!grown) {
            g->status = dg_fail(DG_ERR_MEMORY, "no memory for %zu bytes of GGUF keys", cap);
            return;
        }
        to->p = grown, to->cap = cap;
    }
    memcpy(to->p + to->n, p, n);
    to->n += n;
}

static void put_u32(dg_gguf_out *g, dg_gguf_part *to, uint32_t v) { put(g, to, &v, sizeof v); }
static void put_u64(dg_gguf_out *g, dg_gguf_part *to, uint64_t v) { put(g, to, &v, sizeof v); }

static void put_string(dg_gguf_out *g, dg_gguf_part *to, const char *s, size_t len) {
    put_u64(g, to, len);
    put(g, to, s, len);
}

static void put_key(dg_gguf_out *g, const char *key, uint32_t type) {
    const size_t prefix = key[0] == '.' ? strlen(g->arch) : 0, len = strlen(key);
    put_u64(g, &g->keys, prefix + len);
    put(g, &g->keys, g->arch, prefix);
    put(g, &g->keys, key, len);
    put_u32(g, &g->keys, type);
    g->n_key++;
}

static void put_array(dg_gguf_out *g, const char *key, uint32_t type, size_t n) {
    put_key(g, key, T_ARRAY);
    put_u32(g, &g->keys, type);
    put_u64(g, &g->keys, n);
}

void dg_gguf_out_u32(dg_gguf_out *g, const char *key, uint32_t v) {
    put_key(g, key, T_U32);
    put_u32(g, &g->keys, v);
}

void dg_gguf_out_f32(dg_gguf_out *g, const char *key, float v) {
    put_key(g, key, T_F32);
    put(g, &g->keys, &v, sizeof v);
}

void dg_gguf_out_bool(dg_gguf_out *g, const char *key, bool v) {
    const uint8_t byte = v;
    put_key(g, key, T_BOOL);
    put(g, &g->keys, &byte, 1);
}

void dg_gguf_out_str(dg_gguf_out *g, const char *key, const char *s) {
    put_key(g, key, T_STRING);
    put_string(g, &g->keys, s, strlen(s));
}

void dg_gguf_out_i32s(dg_gguf_out *g, const char *key, const int32_t *v, size_t n) {
    put_array(g, key, T_I32, n);
    put(g, &g->keys, v, n * sizeof *v);
}

void dg_gguf_out_f32s(dg_gguf_out *g, const char *key, const float *v, size_t n) {
    put_array(g, key, T_F32, n);
    put(g, &g->keys, v, n * sizeof *v);
}

void dg_gguf_out_bools(dg_gguf_out *g, const char *key, const bool *v, size_t n) {
    put_array(g, key, T_BOOL, n);
    for (size_t i = 0; i < n; i++) put(g, &g->keys, &(uint8_t){v[i]}, 1);
}

void dg_gguf_out_strings(dg_gguf_out *g, const char *key, size_t n) { put_array(g, key, T_STRING, n); }
void dg_gguf_out_item(dg_gguf_out *g, const char *s, size_t len) { put_string(g, &g->keys, s, len); }

static uint32_t type_of(const dg_meta *m) {
    static const uint8_t uint[9] = {[1] = T_U8, [2] = T_U16, [4] = T_U32, [8] = T_U64};
    static const uint8_t sint[9] = {[1] = T_I8, [2] = T_I16, [4] = T_I32, [8] = T_I64};
    switch (m->type) {
    case DG_META_U64: return uint[m->width];
    case DG_META_I64: return sint[m->width];
    case DG_META_F64: return m->width == 8 ? T_F64 : T_F32;
    case DG_META_BOOL: return T_BOOL;
    case DG_META_STRING: return T_STRING;
    }
    assert(!"metadata type");
    return T_U8;
}

void dg_gguf_out_meta(dg_gguf_out *g, const dg_meta *m) {
    put_string(g, &g->keys, m->key.ptr, m->key.len);
    if (m->is_array) put_u32(g, &g->keys, T_ARRAY);
    put_u32(g, &g->keys, type_of(m));
    if (m->is_array) put_u64(g, &g->keys, m->n);
    if (m->type == DG_META_STRING)
        for (uint64_t i = 0; i < m->n; i++) put_string(g, &g->keys, m->string[i].ptr, m->string[i].len);
    else
        put(g, &g->keys, m->data, (size_t)m->n * (size_t)m->width);
    g->n_key++;
}

static uint32_t code_of(dg_dtype dtype) {
    static const uint8_t code[DG_DTYPE_COUNT] = {
        [DG_F32] = 0,    [DG_F16] = 1,     [DG_Q4_0] = 2,     [DG_Q4_1] = 3,    [DG_Q5_0] = 6,
        [DG_Q5_1] = 7,   [DG_Q8_0] = 8,    [DG_Q2_K] = 10,    [DG_Q3_K] = 11,   [DG_Q4_K] = 12,
        [DG_Q5_K] = 13,  [DG_Q6_K] = 14,   [DG_IQ2_XXS] = 16, [DG_IQ2_XS] = 17, [DG_IQ3_XXS] = 18,
        [DG_IQ1_S] = 19, [DG_IQ4_NL] = 20, [DG_IQ3_S] = 21,   [DG_IQ2_S] = 22,  [DG_IQ4_XS] = 23,
        [DG_I8] = 24,    [DG_I16] = 25,    [DG_I32] = 26,     [DG_I64] = 27,    [DG_F64] = 28,
        [DG_IQ1_M] = 29, [DG_BF16] = 30,   [DG_TQ1_0] = 34,   [DG_TQ2_0] = 35,  [DG_MXFP4] = 39,
        [DG_NVFP4] = 40};
    assert(dtype == DG_F32 || code[dtype] != 0);
    return code[dtype];
}

void dg_gguf_out_tensor(dg_gguf_out *g, const char *name, dg_dtype dtype, const int64_t *dim, int32_t n_dim) {
    dg_gguf_part *t = &g->tensors;
    size_t n = 1;
    put_string(g, t, name, strlen(name));
    put_u32(g, t, (uint32_t)n_dim);
    for (int32_t i = n_dim - 1; i >= 0; i--) {
        put_u64(g, t, (uint64_t)dim[i]);
        n *= (size_t)dim[i];
    }
    put_u32(g, t, code_of(dtype));
    put_u64(g, t, g->data);
    const uint64_t size = dg_dtype_bytes(dtype, n), align = DG_GGUF_ALIGNMENT;
    g->data += (size + align - 1) / align * align;
    g->n_tensor++;
}

dg_status dg_gguf_out_header(const dg_gguf_out *g, dg_out *o) {
    static const struct {
        char magic[4];
        uint32_t version;
    } head = {{'G', 'G', 'U', 'F'}, 3};
    DG_TRY(g->status);
    dg_out_write(o, &head, sizeof head);
    dg_out_write(o, &g->n_tensor, sizeof g->n_tensor);
    dg_out_write(o, &g->n_key, sizeof g->n_key);
    dg_out_write(o, g->keys.p, g->keys.n);
    dg_out_write(o, g->tensors.p, g->tensors.n);
    dg_out_pad(o, DG_GGUF_ALIGNMENT);
    return dg_out_status(o);
}

void dg_gguf_out_clear(dg_gguf_out *g) {
    dg_mem_free(g->keys.p);
    dg_mem_free(g->tensors.p);
    *g = (dg_gguf_out){0};
}
