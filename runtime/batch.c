/* Rows to run; see batch.h. */
#include "runtime/batch.h"

#include <assert.h>
#include <string.h>

void dg_batch_layout(dg_batch *b, int32_t cap, dg_arena *host, dg_arena *dev) {
    const size_t n = (size_t)cap;
    dg_batch_reset(b);
    b->cap = cap;
    b->token = dg_arena_take(host, n, sizeof(int32_t));
    b->pos = dg_arena_take(host, n, sizeof(int32_t));
    b->bits = dg_arena_take(host, n, sizeof *b->bits);
    b->token_dev = dg_arena_take(dev, n, sizeof(int32_t));
    b->pos_dev = dg_arena_take(dev, n, sizeof(int32_t));
    b->bits_dev = dg_arena_take(dev, n, sizeof *b->bits_dev);
}

void dg_batch_reset(dg_batch *b) {
    b->n = b->n_seg = 0;
    b->loose = false;
}

static void add_segment(dg_backend *be, dg_batch *b, dg_kv *kv, int32_t n, dg_mask mask) {
    assert(b->n_seg < DG_MAX_SEGMENTS);
    dg_kv_append(be, kv, b->pos + b->n, n);
    b->seg[b->n_seg++] = (dg_segment){kv, mask == DG_MASK_BITS ? b->bits_dev[b->n] : NULL, b->n, n, mask};
    b->n += n;
}

void dg_batch_add_rows(dg_backend *be, dg_batch *b, dg_kv *kv, const int32_t *token, int32_t n, dg_mask mask) {
    assert(b->n + n <= b->cap && mask != DG_MASK_BITS);
    memcpy(b->token + b->n, token, (size_t)n * sizeof *token);
    for (int32_t i = 0; i < n; i++) b->pos[b->n + i] = kv->len + kv->win + i;
    add_segment(be, b, kv, n, mask);
}

void dg_batch_add_tree(dg_backend *be, dg_batch *b, dg_kv *kv, const dg_tree *t) {
    assert(b->n + t->n <= b->cap && kv->win == 0);
    memcpy(b->token + b->n, t->token, (size_t)t->n * sizeof *t->token);
    for (int32_t i = 0; i < t->n; i++) b->pos[b->n + i] = kv->len + t->depth[i];
    dg_tree_bits(t, b->bits + b->n);
    add_segment(be, b, kv, t->n, DG_MASK_BITS);
}

void dg_batch_add_level(dg_backend *be, dg_batch *b, dg_kv *kv, const int32_t *token, const int32_t *pos,
                        const uint64_t (*bits)[DG_MASK_WORDS], int32_t n) {
    assert(b->n + n <= b->cap && kv->win + n <= DG_TREE_MAX);
    memcpy(b->token + b->n, token, (size_t)n * sizeof *token);
    memcpy(b->pos + b->n, pos, (size_t)n * sizeof *pos);
    memcpy(b->bits + b->n, bits, (size_t)n * sizeof *bits);
    add_segment(be, b, kv, n, DG_MASK_BITS);
}

void dg_batch_upload(dg_backend *be, dg_batch *b) {
    be->ops->upload(be, b->token_dev, b->token, (size_t)b->n * sizeof *b->token);
    be->ops->upload(be, b->pos_dev, b->pos, (size_t)b->n * sizeof *b->pos);
    for (int32_t i = 0; i < b->n_seg; i++) {
        const dg_segment *s = &b->seg[i];
        if (s->mask == DG_MASK_BITS)
            be->ops->upload(be, b->bits_dev + s->row0, b->bits + s->row0, (size_t)s->n * sizeof *b->bits);
    }
}
