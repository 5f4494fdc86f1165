/* Model files: mappings, JSON under a depth limit, the tensor directory, and the choice of the loader.
 *
 * Knows no container format beyond its first bytes (safetensors.c, gguf.c) and no architecture. */
#include "runtime/file.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/file_build.h"
#include "runtime/mem.h"

enum {
    JSON_DEPTH = 64,         /* Hugging Face files need about 8 */
    JSON_GROWTH = 8,         /* bytes of tree for a byte of text: 4 to 15 on tokenizer.json files */
    CONFIG_BYTES = 16 << 20, /* config.json with an inlined quantisation table stays far below */
    DIM_MAX = INT32_MAX      /* dg_mat counts rows and columns in int32 */
};

/* ---- reading ---------------------------------------------------------------------------------- */

/* Opens a regular file; O_NONBLOCK because opening a pipe would wait for its writer. */
static dg_status open_regular(const char *path, int *fd, size_t *size) {
    struct stat st;
    const int d = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    DG_CHECK(d >= 0, DG_ERR_IO, "%s: %s", path, strerror(errno));
    if (fstat(d, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(d);
        DG_FAIL(DG_ERR_IO, "%s: not a regular file", path);
    }
    *fd = d;
    *size = (size_t)st.st_size;
    return DG_OK;
}

static dg_status read_all(int fd, const char *path, char *buf, size_t size) {
    for (size_t at = 0; at < size;) {
        const ssize_t n = read(fd, buf + at, size - at);
        if (n < 0 && errno == EINTR) continue;
        DG_CHECK(n >= 0, DG_ERR_IO, "%s: %s", path, strerror(errno));
        DG_CHECK(n > 0, DG_ERR_IO, "%s: shrank while it was read: expected %zu bytes, found %zu", path, size,
                 at);
        at += (size_t)n;
    }
    return DG_OK;
}

dg_status dg_file_slurp(const char *path, size_t max, char **text, size_t *len) {
    int fd;
    size_t size;
    char *buf = NULL;
    DG_TRY(open_regular(path, &fd, &size));
    dg_status st = DG_OK;
    if (size > max) {
        st = dg_fail(DG_ERR_FORMAT, "%s: expected at most %zu bytes, found %zu", path, max, size);
        goto out;
    }
    buf = dg_mem_alloc(size + 1);
    if (!buf) {
        st = dg_fail(DG_ERR_MEMORY, "%s: no memory for %zu bytes", path, size);
        goto out;
    }
    st = read_all(fd, path, buf, size);
    if (st != DG_OK) goto out;
    buf[size] = 0;
    *text = buf, buf = NULL;
    if (len) *len = size;
out:
    dg_mem_free(buf);
    close(fd);
    return st;
}

/* ---- JSON ------------------------------------------------------------------------------------- */

/* One pass outside of strings: the nesting (jansson recurses, so this bounds its stack), and whether there
 * is an integer that int64 cannot hold. */
static dg_status json_scan(const char *what, const char *text, size_t len, bool *big) {
    int depth = 0;
    size_t digits = 0;
    bool in_string = false;
    for (size_t i = 0; i < len; i++) {
        const char c = text[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
            continue;
        }
        digits = isdigit((unsigned char)c) ? digits + 1 : 0;
        if (digits >= 20) *big = true;
        if (c == '"')
            in_string = true;
        else if (c == '}' || c == ']')
            depth--;
        else if (c == '{' || c == '[') {
            depth++;
            DG_CHECK(depth <= JSON_DEPTH, DG_ERR_FORMAT, "%s: nested deeper than %d at byte %zu", what,
                     JSON_DEPTH, i);
        }
    }
    return DG_OK;
}

/* Rewrites integers of 20 to 100 digits as reals of the same length (123…789 as 1.23…e29). Tokenizer files of
 * transformers write "no limit" as 1000000000000000019884624838656, where jansson gives up. */
static void json_soften(char *text, size_t len) {
    bool in_string = false;
    for (size_t i = 0; i < len; i++) {
        if (in_string) {
            if (text[i] == '\\')
                i++;
            else if (text[i] == '"')
                in_string = false;
            continue;
        }
        if (text[i] == '"') in_string = true;
        if (!isdigit((unsigned char)text[i])) continue;
        size_t end = i;
        while (end < len && isdigit((unsigned char)text[end])) end++;
        const size_t n = end - i;
        const char before = i > 0 ? text[i - 1] : ' ', after = end < len ? text[end] : ' ';
        const bool part = strchr(".eE+", before) || strchr(".eE", after);
        if (n >= 20 && n <= 100 && !part && text[i] != '0') {
            memmove(text + i + 2, text + i + 1, n - 5);
            text[i + 1] = '.';
            text[end - 3] = 'e';
            text[end - 2] = (char)('0' + (n - 1) / 10);
            text[end - 1] = (char)('0' + (n - 1) % 10);
        }
        i = end - 1;
    }
}

dg_status dg_json_parse(const char *what, const char *text, size_t len, json_t **out) {
    bool big = false;
    char *copy = NULL;
    DG_TRY(json_scan(what, text, len, &big));
    /* jansson keeps malloc: its lexer ends the process when an allocation fails (2.14, lex_unget_unsave). So
     * ask beforehand for about what the tree will take. */
    void *probe = dg_mem_alloc(dg_mem_mul(len, JSON_GROWTH));
    DG_CHECK(probe, DG_ERR_MEMORY, "%s: no memory to parse %zu bytes", what, len);
    dg_mem_free(probe);
    if (big) {
        copy = dg_mem_strndup(text, len);
        DG_CHECK(copy, DG_ERR_MEMORY, "%s: no memory for %zu bytes", what, len);
        json_soften(copy, len);
    }
    json_error_t e;
    json_t *j = json_loadb(copy ? copy : text, len, JSON_REJECT_DUPLICATES, &e);
    dg_mem_free(copy);
    DG_CHECK(j, DG_ERR_FORMAT, "%s: line %d, column %d: %s", what, e.line, e.column, e.text);
    *out = j;
    return DG_OK;
}

dg_status dg_file_json(const dg_file *f, const char *name, bool required, json_t **out) {
    struct stat st;
    const char *slash = strrchr(f->path, '/');
    const bool dir = stat(f->path, &st) == 0 && S_ISDIR(st.st_mode);
    const size_t n = dir ? strlen(f->path) : slash ? (size_t)(slash - f->path) : 0;
    const size_t cap = n + strlen(name) + 2;
    char *path = dg_mem_alloc(cap), *text = NULL;
    size_t len;
    json_t *j = NULL;
    DG_CHECK(path, DG_ERR_MEMORY, "%s: no memory", f->path);
    snprintf(path, cap, "%.*s%s%s", (int)n, f->path, dir || slash ? "/" : "", name);

    dg_status rc = DG_OK;
    if (!required && access(path, F_OK) != 0) goto out;
    rc = dg_file_slurp(path, CONFIG_BYTES, &text, &len);
    if (rc == DG_OK) rc = dg_json_parse(path, text, len, &j);
    if (rc == DG_OK && !json_is_object(j)) rc = dg_fail(DG_ERR_FORMAT, "%s: expected an object", path);
    if (rc != DG_OK) {
        json_decref(j);
        goto out;
    }
out:
    if (rc == DG_OK) *out = j;
    dg_mem_free(text);
    dg_mem_free(path);
    return rc;
}

/* ---- building --------------------------------------------------------------------------------- */

dg_status dg_file_new(const char *path, dg_container container, dg_file **out) {
    dg_file *f = dg_mem_calloc(1, sizeof *f);
    char *p = dg_mem_strdup(path);
    if (!f || !p) {
        dg_mem_free(f), dg_mem_free(p);
        DG_FAIL(DG_ERR_MEMORY, "%s: no memory", path);
    }
    f->path = p;
    f->container = container;
    *out = f;
    return DG_OK;
}

void dg_file_close(dg_file *f) {
    if (!f) return;
    for (size_t i = 0; i < f->n_tensor; i++) dg_mem_free((char *)f->tensor[i].name);
    for (size_t i = 0; i < f->n_meta; i++) dg_mem_free((dg_str *)f->meta[i].string);
    for (size_t i = 0; i < f->n_mapping; i++) {
        munmap((void *)f->mapping[i].data, f->mapping[i].size);
        dg_mem_free(f->mapping[i].path);
    }
    dg_mem_free(f->tensor);
    dg_mem_free(f->meta);
    dg_mem_free(f->mapping);
    dg_mem_free(f->path);
    json_decref(f->config);
    json_decref(f->generation);
    dg_mem_free(f);
}

void dg_file_forget(const void *data, size_t size) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)data;
    const uintptr_t first = (from + page - 1) / page * page, last = (from + size) / page * page;
    if (first < last) madvise((char *)data + (first - from), last - first, MADV_DONTNEED);
}

dg_status dg_file_map(dg_file *f, const char *path) {
    int fd;
    size_t size;
    const size_t old = f->n_mapping * sizeof *f->mapping;
    struct dg_mapping *grown = dg_mem_grow(f->mapping, old, old + sizeof *f->mapping);
    DG_CHECK(grown, DG_ERR_MEMORY, "%s: no memory", path);
    f->mapping = grown;

    char *name = dg_mem_strdup(path);
    DG_CHECK(name, DG_ERR_MEMORY, "%s: no memory", path);
    dg_status st = open_regular(path, &fd, &size);
    if (st != DG_OK) goto out;
    if (size == 0) {
        st = dg_fail(DG_ERR_FORMAT, "%s: the file is empty", path);
        goto shut;
    }
    void *p = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED) {
        st = dg_fail(DG_ERR_IO, "%s: cannot map %zu bytes: %s", path, size, strerror(errno));
        goto shut;
    }
    f->mapping[f->n_mapping++] = (struct dg_mapping){name, p, size};
    f->mapped += size;
    name = NULL;
shut:
    close(fd);
out:
    dg_mem_free(name);
    return st;
}

dg_status dg_file_reserve(dg_file *f, size_t n) {
    const size_t old = f->n_tensor * sizeof *f->tensor, more = dg_mem_mul(n, sizeof *f->tensor);
    dg_file_tensor *t = more > SIZE_MAX / 4 ? NULL : dg_mem_grow(f->tensor, old, old + more);
    DG_CHECK(t, DG_ERR_MEMORY, "%s: no memory for %zu tensors", f->path, n);
    memset(t + f->n_tensor, 0, more);
    f->tensor = t;
    return DG_OK;
}

dg_status dg_tensor_measure(const char *path, dg_file_tensor *t) {
    const dg_dtype_info *info = dg_dtype_get(t->dtype);
    size_t n = 1;
    for (int32_t i = 0; i < t->n_dim; i++) {
        DG_CHECK(t->dim[i] >= 0 && t->dim[i] <= DIM_MAX, DG_ERR_FORMAT,
                 "%s: tensor %s: dimension %d: expected 0 to %d, found %lld", path, t->name, i, DIM_MAX,
                 (long long)t->dim[i]);
        DG_CHECK(!__builtin_mul_overflow(n, (size_t)t->dim[i], &n) && n <= SIZE_MAX / 16, DG_ERR_FORMAT,
                 "%s: tensor %s: the product of its dimensions overflows", path, t->name);
    }
    const int64_t row = t->n_dim ? t->dim[t->n_dim - 1] : 1;
    DG_CHECK(row % info->block_len == 0, DG_ERR_FORMAT,
             "%s: tensor %s: rows of %s: expected a multiple of %d elements, found %lld", path, t->name,
             info->name, info->block_len, (long long)row);
    t->size = dg_dtype_bytes(t->dtype, n);
    return DG_OK;
}

static int by_address(const void *a, const void *b) {
    const dg_file_tensor *x = a, *y = b;
    if (x->data != y->data) return x->data < y->data ? -1 : 1;
    return x->size < y->size ? -1 : x->size > y->size;
}

dg_status dg_tensor_layout(const char *path, dg_file_tensor *t, size_t n, const uint8_t *base) {
    if (n > 1) qsort(t, n, sizeof *t, by_address);
    for (size_t i = 1; i < n; i++) {
        const uint8_t *end = (const uint8_t *)t[i - 1].data + t[i - 1].size, *next = t[i].data;
        DG_CHECK(
            next >= end, DG_ERR_FORMAT,
            "%s: tensors %s and %s overlap: expected the second to begin at byte %zu or later, found %zu",
            path, t[i - 1].name, t[i].name, (size_t)(end - base), (size_t)(next - base));
    }
    return DG_OK;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const dg_file_tensor *)a)->name, ((const dg_file_tensor *)b)->name);
}

static const char *mapping_of(const dg_file *f, const dg_file_tensor *t) {
    for (size_t i = 0; i < f->n_mapping; i++) {
        const uint8_t *p = t->data, *base = f->mapping[i].data;
        if (p >= base && p <= base + f->mapping[i].size) return f->mapping[i].path;
    }
    return f->path;
}

dg_status dg_file_index(dg_file *f) {
    if (f->n_tensor > 1) qsort(f->tensor, f->n_tensor, sizeof *f->tensor, by_name);
    for (size_t i = 1; i < f->n_tensor; i++) {
        const dg_file_tensor *a = &f->tensor[i - 1], *b = &f->tensor[i];
        DG_CHECK(strcmp(a->name, b->name) != 0, DG_ERR_FORMAT, "tensor %s occurs twice: in %s and in %s",
                 a->name, mapping_of(f, a), mapping_of(f, b));
    }
    return DG_OK;
}

dg_status dg_name_check(const char *path, const char *what, const char *name, size_t len) {
    DG_CHECK(len > 0, DG_ERR_FORMAT, "%s: a %s without a name", path, what);
    for (size_t i = 0; i < len; i++)
        DG_CHECK((unsigned char)name[i] >= 0x20 && name[i] != 0x7f, DG_ERR_FORMAT,
                 "%s: the name of a %s holds byte 0x%02x", path, what, (unsigned char)name[i]);
    return DG_OK;
}

/* ---- using ------------------------------------------------------------------------------------ */

const dg_file_tensor *dg_file_find(const dg_file *f, const char *name) {
    const dg_file_tensor key = {.name = name};
    return f->n_tensor ? bsearch(&key, f->tensor, f->n_tensor, sizeof key, by_name) : NULL;
}

dg_mat dg_file_mat(const dg_file_tensor *t) {
    assert(t->n_dim <= 2);
    const int32_t cols = t->n_dim ? (int32_t)t->dim[t->n_dim - 1] : 1;
    const int32_t rows = t->n_dim == 2 ? (int32_t)t->dim[0] : 1;
    return dg_mat_make((void *)t->data, t->dtype, rows, cols);
}

dg_status dg_file_open(const char *path, dg_file **out) {
    struct stat st;
    DG_CHECK(stat(path, &st) == 0, DG_ERR_IO, "%s: %s", path, strerror(errno));
    if (S_ISDIR(st.st_mode)) return dg_safetensors_open(path, out);

    int fd;
    size_t size;
    unsigned char head[9] = {0};
    DG_TRY(open_regular(path, &fd, &size));
    const dg_status rc = size < sizeof head ? DG_OK : read_all(fd, path, (char *)head, sizeof head);
    close(fd);
    DG_TRY(rc);
    if (memcmp(head, "GGUF", 4) == 0) return dg_gguf_open(path, out);
    if (head[8] == '{') return dg_safetensors_open(path, out);
    DG_CHECK(memcmp(head, "PK", 2) != 0, DG_ERR_UNSUPPORTED,
             "%s: a PyTorch archive (it runs code when read); expected safetensors or GGUF", path);
    DG_FAIL(DG_ERR_FORMAT, "%s: neither GGUF nor safetensors: %zu bytes, beginning with %02x %02x %02x %02x",
            path, size, head[0], head[1], head[2], head[3]);
}
