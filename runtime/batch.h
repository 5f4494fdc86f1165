/* Rows to run: tokens, positions and segments. A prefill chunk, a plain step, a token tree, a DFlash block and an
 * EAGLE-3 level are all "n rows after the committed ones, plus a mask among the window rows". */
#ifndef DG_BATCH_H
#define DG_BATCH_H

#include "runtime/kv.h"
#include "runtime/tree.h"

enum { DG_MAX_SEGMENTS = 64 };

typedef struct dg_segment {
    dg_kv *kv;
    const uint64_t *bits;  /* device [n][DG_MASK_WORDS], BITS only */
    const dg_live *live;   /* device */
    int32_t len, win;      /* of kv, with these rows */
    int32_t row0, n;       /* rows of the batch: the last n rows of the window */
    int32_t pad;           /* the last so many of them are padding */
    dg_mask mask;
} dg_segment;

/* What is uploaded, as one block: as it lies on the host and, at the same offsets, on the device. */
typedef struct dg_batch_data {
    dg_live *live;                   /* [DG_MAX_SEGMENTS] */
    int32_t *token, *pos;            /* [cap] */
    int32_t *row;                    /* [cap]: for who gathers rows by index, of levels alone; nobody else reads it */
    uint64_t (*bits)[DG_MASK_WORDS]; /* [cap] */
} dg_batch_data;

typedef struct dg_batch {
    int32_t n, cap, n_seg; /* n: rows, padding included */
    bool loose; /* its forward pass may be, see kernels/ops.h; dg_batch_reset says no */
    dg_batch_data host, dev;
    dg_segment seg[DG_MAX_SEGMENTS];
} dg_batch;

void dg_batch_layout(dg_batch *b, int32_t cap, dg_arena *host, dg_arena *dev);
void dg_batch_reset(dg_batch *b);

/* Appends n rows at positions kv->len + kv->win onwards as one segment. mask is CAUSAL or FULL. */
void dg_batch_add_rows(dg_batch *b, dg_kv *kv, const int32_t *token, int32_t n, dg_mask mask);

/* Appends a whole tree (its root at position kv->len, a node at kv->len + depth) as one segment. */
void dg_batch_add_tree(dg_batch *b, dg_kv *kv, const dg_tree *t);

/* Appends n rows at positions pos[n] behind whatever the window of kv holds, as one segment: row i sees the window rows
 * in bits[i] (its own among them; numbered from the window's first), and row[i] goes along. How a tree grows level by
 * level. */
void dg_batch_add_level(dg_batch *b, dg_kv *kv, const int32_t *token, const int32_t *pos, const int32_t *row,
                        const uint64_t (*bits)[DG_MASK_WORDS], int32_t n);

/* Pads a batch of one segment to the rows that the backend would rather have, at most `most`. No cache and no attention
 * knows of these rows; all else computes something for them. */
void dg_batch_pad(dg_backend *be, dg_batch *b, int32_t most);

/* Tokens, positions, masks and live values to the device, in one piece; once, after the last add. */
void dg_batch_upload(dg_backend *be, dg_batch *b);

/* Segment i as a batch of its own, whose rows are numbered from 0; for ops on rows that were narrowed to it. */
dg_batch dg_batch_part(const dg_batch *b, int32_t i);

/* The first of a pass over an uploaded batch: notes the positions of its rows with their windows. */
void dg_batch_begin(dg_backend *be, const dg_batch *b);

#endif
