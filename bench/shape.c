/* Synthetic models; see shape.h. The figures are those of the models' own config.json. */
#include "bench/shape.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/measure.h"
#include "runtime/bind.h"
#include "runtime/config_write.h"

enum { TILE = 1 << 20, ROOM = 8192 }; /* bytes of random rows that a matrix repeats; longest context */

const dg_dtype shape_type[SHAPE_TYPES] = {DG_F32, DG_F16, DG_BF16, DG_Q8_0, DG_Q4_0, DG_Q4_1, DG_Q4_K, DG_Q6_K};

static const struct {
    const char *name;
    dg_arch arch;
    int32_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab;
    float theta;
    bool tied;
} shape[] = {
    {"qwen3-8b", DG_ARCH_QWEN3, 36, 4096, 32, 8, 128, 12288, 151936, 1e6f, false},
    {"llama-3.1-8b", DG_ARCH_LLAMA, 32, 4096, 32, 8, 128, 14336, 128256, 5e5f, false},
    {"smollm2-135m", DG_ARCH_LLAMA, 30, 576, 9, 3, 64, 1536, 49152, 1e5f, true},
    {"tiny", DG_ARCH_QWEN3, 2, 256, 4, 2, 64, 512, 512, 1e4f, false},
};

bool shape_find(const char *name, dg_config *c) {
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++) {
        if (strcmp(name, shape[i].name)) continue;
        *c = (dg_config){.arch = shape[i].arch,
                         .vocab_size = shape[i].vocab,
                         .hidden_size = shape[i].hidden,
                         .n_layer = shape[i].layers,
                         .n_head = shape[i].heads,
                         .n_kv_head = shape[i].kv_heads,
                         .head_dim = shape[i].head_dim,
                         .intermediate_size = shape[i].ffn,
                         .max_position = ROOM,
                         .rms_norm_eps = 1e-6f,
                         .qk_norm = shape[i].arch == DG_ARCH_QWEN3,
                         .tied = shape[i].tied,
                         .rope_theta = shape[i].theta,
                         .rope_interleaved = shape[i].arch == DG_ARCH_LLAMA,
                         .bos = -1,
                         .mask_token_id = -1};
        return true;
    }
    return false;
}

/* "a, b, c" into a text of its own. */
static void append(char *text, size_t cap, const char *name) {
    const size_t n = strlen(text);
    snprintf(text + n, cap - n, "%s%s", n ? ", " : "", name);
}

const char *shape_names(void) {
    static char text[128];
    if (!*text)
        for (size_t i = 0; i < sizeof shape / sizeof *shape; i++) append(text, sizeof text, shape[i].name);
    return text;
}

const char *shape_type_names(void) {
    static char text[128];
    if (!*text)
        for (int i = 0; i < SHAPE_TYPES; i++) append(text, sizeof text, dg_dtype_get(shape_type[i])->name);
    return text;
}

bool shape_type_find(const char *name, dg_dtype *type) {
    for (int i = 0; i < SHAPE_TYPES; i++)
        if (!strcmp(name, dg_dtype_get(shape_type[i])->name)) {
            *type = shape_type[i];
            return true;
        }
    return false;
}

void shape_products(const dg_config *c, shape_product out[SHAPE_PRODUCTS]) {
    const int32_t q = c->n_head * c->head_dim, kv = c->n_kv_head * c->head_dim, ffn = c->intermediate_size;
    out[0] = (shape_product){"q k v", c->hidden_size, {q, kv, kv}};
    out[1] = (shape_product){"o", q, {c->hidden_size}};
    out[2] = (shape_product){"gate up", c->hidden_size, {ffn, ffn}};
    out[3] = (shape_product){"down", ffn, {c->hidden_size}};
    out[4] = (shape_product){"head", c->hidden_size, {c->vocab_size}};
}

int32_t shape_misfit(const dg_config *c, dg_dtype type) {
    shape_product p[SHAPE_PRODUCTS];
    shape_products(c, p);
    for (int i = 0; i < SHAPE_PRODUCTS; i++)
        if (p[i].k % dg_dtype_get(type)->block_len) return p[i].k;
    return 0;
}

/* ---- the file --------------------------------------------------------------------------------- */

/* Has the network this tensor? */
static bool wanted(const dg_bind_row *row, const dg_config *c) {
    if (!(row->nets & DG_NET_TARGET) || !row->gguf) return false;
    if (!row->is_layer && row->offset == offsetof(dg_weights, head)) return !c->tied;
    return row->need == DG_NEED_ALWAYS || (row->need == DG_NEED_QK_NORM && c->qk_norm);
}

static void put_ones(dg_out *o, int64_t n) {
    const float one = 1;
    for (int64_t i = 0; i < n; i++) dg_out_write(o, &one, sizeof one);
}

static void put_matrix(dg_out *o, dg_dtype type, int64_t rows, int64_t cols) {
    const size_t row_bytes = dg_dtype_bytes(type, (size_t)cols);
    const int64_t fit = (int64_t)(TILE / row_bytes), tile_rows = rows < fit ? rows : fit ? fit : 1;
    const dg_mat tile = mat_random(type, (int32_t)tile_rows, (int32_t)cols, sqrtf(3.0f / (float)cols));
    for (int64_t at = 0; at < rows; at += tile_rows)
        dg_out_write(o, tile.data, row_bytes * (size_t)(rows - at < tile_rows ? rows - at : tile_rows));
    free(tile.data);
}

/* Calls the directory (o NULL) or the data of every tensor, in the same order. */
static void put_tensors(const dg_config *c, dg_dtype type, dg_gguf_out *g, dg_out *o) {
    size_t n;
    const dg_bind_row *row = dg_bind_table(&n);
    for (size_t i = 0; i < n; i++) {
        if (!wanted(&row[i], c)) continue;
        const bool vector = row[i].rows == DG_DIM_ONE;
        const int64_t dim[2] = {dg_bind_dim(c, row[i].rows), dg_bind_dim(c, row[i].cols)};
        for (int32_t l = 0; l < (row[i].is_layer ? c->n_layer : 1); l++) {
            char name[128] = "";
            if (row[i].is_layer) snprintf(name, sizeof name, "blk.%d.", l);
            strncat(name, row[i].gguf, sizeof name - strlen(name) - 1);
            if (!o)
                dg_gguf_out_tensor(g, name, vector ? DG_F32 : type, vector ? dim + 1 : dim, vector ? 1 : 2);
            else if (vector)
                put_ones(o, dim[1]);
            else
                put_matrix(o, type, dim[0], dim[1]);
            if (o) dg_out_pad(o, DG_GGUF_ALIGNMENT);
        }
    }
}

dg_status shape_write(const dg_config *c, dg_dtype type, const char *path) {
    dg_gguf_out g = {.arch = dg_config_gguf_arch(c)};
    dg_out *o = NULL;
    dg_status st = dg_config_to_gguf(path, c, &g);
    dg_gguf_out_str(&g, "general.name", "random weights");
    if (st == DG_OK) st = dg_out_open(path, &o);
    if (st == DG_OK) {
        put_tensors(c, type, &g, NULL);
        st = dg_gguf_out_header(&g, o);
    }
    if (st == DG_OK) {
        put_tensors(c, type, &g, o);
        st = dg_out_commit(o);
    } else {
        dg_out_abandon(o);
    }
    dg_gguf_out_clear(&g);
    return st;
}
