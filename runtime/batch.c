/* Rows to run; see batch.h. */
#include "runtime/batch.h"

#include <assert.h>
#include <string.h>

/* One block, so that a prefix of it is all that an upload takes: masks come last, as few batches have them. */
static dg_batch_data lay_data(int32_t cap, dg_arena *arena) {
    const size_t n = (size_t)cap, head = DG_MAX_SEGMENTS * sizeof(dg_live), row = sizeof(int32_t);
    _Static_assert(DG_MAX_SEGMENTS * sizeof(dg_live) % sizeof(uint64_t) == 0, "masks are aligned");
    dg_batch_data d = {0};
    char *block = dg_arena_take(arena, 1, head + n * (4 * row + sizeof *d.bits));
    if (!block) return d;
    d.live = (dg_live *)(void *)block;
    d.token = (int32_t *)(void *)(block + head);
    d.pos = d.token + n;
    d.row = d.pos + n;
    d.bits = (uint64_t(*)[DG_MASK_WORDS])(void *)(d.row + n + n % 2);
    return d;
}

void dg_batch_layout(dg_batch *b, int32_t cap, dg_arena *host, dg_arena *dev) {
    dg_batch_reset(b);
    b->cap = cap;
    b->host = lay_data(cap, host);
    b->dev = lay_data(cap, dev);
}

void dg_batch_reset(dg_batch *b) {
    b->n = b->n_seg = 0;
    b->loose = false;
}

static void add_segment(dg_batch *b, dg_kv *kv, int32_t n, dg_mask mask) {
    assert(b->n_seg < DG_MAX_SEGMENTS);
    dg_kv_append(kv, n);
    b->host.live[b->n_seg] = (dg_live){.len = kv->len, .n = n};
    b->seg[b->n_seg] = (dg_segment){.kv = kv, .bits = mask == DG_MASK_BITS ? b->dev.bits[b->n] : NULL,
                                    .live = b->dev.live + b->n_seg, .len = kv->len, .win = kv->win, .row0 = b->n, .n = n,
                                    .mask = mask};
    b->n_seg++;
    b->n += n;
}

void dg_batch_add_rows(dg_batch *b, dg_kv *kv, const int32_t *token, int32_t n, dg_mask mask) {
    assert(b->n + n <= b->cap && mask != DG_MASK_BITS);
    memcpy(b->host.token + b->n, token, (size_t)n * sizeof *token);
    for (int32_t i = 0; i < n; i++) b->host.pos[b->n + i] = kv->len + kv->win + i;
    add_segment(b, kv, n, mask);
}

void dg_batch_add_tree(dg_batch *b, dg_kv *kv, const dg_tree *t) {
    assert(b->n + t->n <= b->cap && kv->win == 0);
    memcpy(b->host.token + b->n, t->token, (size_t)t->n * sizeof *t->token);
    for (int32_t i = 0; i < t->n; i++) b->host.pos[b->n + i] = kv->len + t->depth[i];
    dg_tree_bits(t, b->host.bits + b->n);
    add_segment(b, kv, t->n, DG_MASK_BITS);
}

void dg_batch_add_level(dg_batch *b, dg_kv *kv, const int32_t *token, const int32_t *pos, const int32_t *row,
                        const uint64_t (*bits)[DG_MASK_WORDS], int32_t n) {
    assert(b->n + n <= b->cap && kv->win + n <= DG_TREE_MAX);
    memcpy(b->host.token + b->n, token, (size_t)n * sizeof *token);
    memcpy(b->host.pos + b->n, pos, (size_t)n * sizeof *pos);
    memcpy(b->host.row + b->n, row, (size_t)n * sizeof *row);
    memcpy(b->host.bits + b->n, bits, (size_t)n * sizeof *bits);
    add_segment(b, kv, n, DG_MASK_BITS);
}

static int32_t min32(int32_t x, int32_t y) { return x < y ? x : y; }

void dg_batch_pad(dg_backend *be, dg_batch *b, int32_t most) {
    assert(b->n_seg == 1);
    dg_segment *s = &b->seg[0];
    /* window rows have numbers below DG_TREE_MAX where masks are bits, and positions in the cache's list */
    most = min32(min32(most, b->cap), s->n + min32(s->kv->win_cap, DG_TREE_MAX) - s->win);
    const int32_t rows = min32(be->ops->pass_rows(be, b->n), most), pad = rows - b->n;
    if (pad <= 0) return;
    memset(b->host.token + b->n, 0, (size_t)pad * sizeof *b->host.token);
    memset(b->host.pos + b->n, 0, (size_t)pad * sizeof *b->host.pos);
    memset(b->host.bits + b->n, 0, (size_t)pad * sizeof *b->host.bits);
    s->n += pad, s->win += pad, s->pad = pad;
    b->n += pad;
}

void dg_batch_upload(dg_backend *be, dg_batch *b) {
    const void *end = b->host.pos + b->n;
    for (int32_t i = 0; i < b->n_seg; i++)
        if (b->seg[i].mask == DG_MASK_BITS) end = b->host.bits + b->seg[i].row0 + b->seg[i].n;
    be->ops->upload(be, b->dev.live, b->host.live, (size_t)((const char *)end - (const char *)b->host.live));
}

dg_batch dg_batch_part(const dg_batch *b, int32_t i) {
    dg_batch part = {.n = b->seg[i].n, .cap = b->seg[i].n, .n_seg = 1};
    part.seg[0] = b->seg[i];
    part.seg[0].row0 = 0;
    return part;
}

void dg_batch_begin(dg_backend *be, const dg_batch *b) {
    for (int32_t i = 0; i < b->n_seg; i++) {
        const dg_segment *s = &b->seg[i];
        if (s->n) be->ops->copy2d(be, dg_mat_make(s->kv->win_pos + s->win - s->n, DG_I32, 1, s->n),
                                  dg_mat_make(b->dev.pos + s->row0, DG_I32, 1, s->n));
    }
}
