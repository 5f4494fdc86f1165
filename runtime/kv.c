/* The key/value cache; see kv.h. */
#include "runtime/kv.h"

#include <assert.h>

static int32_t rows_of(const dg_kv *kv) { return (kv->cap + DG_KV_BLOCK - 1) / DG_KV_BLOCK * DG_KV_BLOCK; }

void dg_kv_layout(dg_kv *kv, int32_t n_layer, int32_t cap, int32_t win_cap, int32_t n_kv_head, int32_t head_dim,
                  dg_dtype dtype, dg_arena *host, dg_arena *dev) {
    const int32_t width = n_kv_head * head_dim;
    *kv = (dg_kv){.n_layer = n_layer, .cap = cap, .win_cap = win_cap, .width = width, .head_dim = head_dim, .dtype = dtype};
    kv->k = dg_arena_take(host, (size_t)n_layer, sizeof *kv->k);
    kv->v = dg_arena_take(host, (size_t)n_layer, sizeof *kv->v);
    kv->win_pos = dg_arena_take(dev, (size_t)win_cap, sizeof(int32_t));
    const size_t row = dg_dtype_bytes(dtype, (size_t)width);
    const int32_t rows = rows_of(kv);
    for (int32_t l = 0; l < n_layer; l++) {
        const dg_mat k = dg_mat_make(dg_arena_take(dev, (size_t)rows, row), dtype, rows, width);
        const dg_mat v = dg_mat_make(dg_arena_take(dev, (size_t)rows, row), dtype, rows, width);
        if (kv->k) kv->k[l] = k, kv->v[l] = v;
    }
}

void dg_kv_append(dg_kv *kv, int32_t n) {
    assert(kv->win + n <= kv->win_cap && kv->len + kv->win + n <= kv->cap);
    kv->win += n;
}

void dg_kv_commit(dg_backend *be, dg_kv *kv, const int32_t *path, int32_t n) {
    be->ops->kv_move(be, kv->k, kv->v, kv->n_layer, kv->len, path, n, kv->head_dim);
    dg_kv_keep(kv, n);
}

void dg_kv_keep(dg_kv *kv, int32_t n) {
    assert(n <= kv->win);
    kv->len += n;
    kv->win = 0;
}

void dg_kv_truncate(dg_kv *kv, int32_t len) {
    assert(len >= 0);
    if (len < kv->len) kv->len = len;
    kv->win = 0;
}

uint64_t dg_kv_bytes(const dg_kv *kv) {
    return 2 * (uint64_t)kv->n_layer * (uint64_t)rows_of(kv) * dg_dtype_bytes(kv->dtype, (size_t)kv->width);
}
