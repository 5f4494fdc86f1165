/* The decoder layer: attention half, MLP half, and "store K/V only" (how DFlash takes in context). Driven by the
 * target and by every network drafter. */
#ifndef DG_LAYER_H
#define DG_LAYER_H

#include "runtime/batch.h"
#include "runtime/bind.h"

/* Activations of one forward pass of at most cap rows; f32, in backend memory. The views below have `cap` rows;
 * dg_work_rows narrows them. */
typedef struct dg_work {
    dg_mat x;             /* [n, hidden] the residual stream */
    dg_mat y;             /* [n, hidden] a normed copy */
    dg_mat in;            /* [n, cols of wq] what q, k and v are projected from, normed already: EAGLE-3's embedding and
                             hidden side by side; data NULL (as laid out): x under the layer's own norm */
    dg_mat q, k, v, att;  /* [n, H*hd] [n, G*hd] [n, G*hd] [n, H*hd] */
    dg_mat gate, up;      /* [n, ffn] */
    dg_mat rope;          /* [n, hd] cos | sin of the rows' positions */
} dg_work;

void dg_work_layout(dg_work *w, const dg_config *c, int32_t cap, dg_arena *dev);

/* The same buffers seen as n rows. */
dg_work dg_work_rows(const dg_work *w, int32_t n);

/* One layer over the rows of b: reads and updates w->x, appends K and V at layer l of every segment's cache.
 * w is narrowed to b->n rows and w->rope filled. mask: overrides every segment's mask when >= 0 (a layer that is
 * causal inside a DFlash block, say). */
void dg_layer_forward(dg_backend *be, const dg_config *c, const dg_layer *layer, int32_t l, const dg_batch *b,
                      const dg_work *w, int mask);

/* K and V of the rows c_rows[n, cols of wk], which are not normed again, into layer l of the cache of segment i of b, which
 * has n rows: what DFlash does with projected target features (dflash.py: context K/V enter without the layer's input
 * norm), and EAGLE-3 with all but the last of the committed rows. w is narrowed to n rows. */
void dg_layer_store(dg_backend *be, const dg_config *c, const dg_layer *layer, int32_t l, const dg_batch *b, int32_t i,
                    dg_mat c_rows, const dg_work *w);

#endif
