/* Rows to run: tokens, positions and segments. A prefill chunk, a plain step, a token tree, a DFlash block and an
 * EAGLE-3 level are all "n rows after the committed ones, plus a mask among the window rows". */
#ifndef DG_BATCH_H
#define DG_BATCH_H

#include "runtime/kv.h"
#include "runtime/tree.h"

enum { DG_MAX_SEGMENTS = 64 };

typedef struct dg_segment {
    dg_kv *kv;
    const uint64_t *bits; /* device [n][DG_MASK_WORDS], BITS only */
    int32_t row0, n;      /* rows of the batch: the last n rows of kv's window */
    dg_mask mask;
} dg_segment;

typedef struct dg_batch {
    int32_t n, cap, n_seg;
    bool loose; /* its forward pass may be, see kernels/ops.h; dg_batch_reset says no */
    int32_t *token, *pos;             /* host [cap] */
    int32_t *token_dev, *pos_dev;     /* device [cap] */
    uint64_t (*bits)[DG_MASK_WORDS];  /* host [cap] */
    uint64_t (*bits_dev)[DG_MASK_WORDS];
    dg_segment seg[DG_MAX_SEGMENTS];
} dg_batch;

void dg_batch_layout(dg_batch *b, int32_t cap, dg_arena *host, dg_arena *dev);
void dg_batch_reset(dg_batch *b);

/* Appends n rows at positions kv->len + kv->win onwards as one segment. mask is CAUSAL or FULL. */
void dg_batch_add_rows(dg_backend *be, dg_batch *b, dg_kv *kv, const int32_t *token, int32_t n, dg_mask mask);

/* Appends a whole tree (its root at position kv->len, a node at kv->len + depth) as one segment. */
void dg_batch_add_tree(dg_backend *be, dg_batch *b, dg_kv *kv, const dg_tree *t);

/* Appends n rows at positions pos[n] behind whatever the window of kv holds, as one segment: row i sees the window rows
 * in bits[i] (its own among them; numbered from the window's first). How a tree grows level by level. */
void dg_batch_add_level(dg_backend *be, dg_batch *b, dg_kv *kv, const int32_t *token, const int32_t *pos,
                        const uint64_t (*bits)[DG_MASK_WORDS], int32_t n);

/* Tokens, positions and masks to the device; once, after the last add. */
void dg_batch_upload(dg_backend *be, dg_batch *b);

#endif
