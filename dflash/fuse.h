/* Target features to drafter input: the taps of a row side by side, times fc. DFlash has a norm behind it; EAGLE-3
 * may have one before it, and its layer norms what comes out.
 *
 * Column block t of fc belongs to tap t in the file's order (z-lab dflash.py; EAGLE's fc likewise). */
#ifndef DG_FUSE_H
#define DG_FUSE_H

#include "runtime/drafter.h"
#include "runtime/target.h"

typedef struct dg_fuse {
    dg_mat cat;  /* device [max_rows, T*H] */
    int32_t hidden, n_tap;
} dg_fuse;

void dg_fuse_layout(dg_fuse *f, int32_t max_rows, int32_t n_tap, int32_t hidden, dg_arena *dev);

/* The taps of the outcome's rows side by side: [o->n, T*H], a view of f->cat. */
dg_mat dg_fuse_gather(dg_backend *be, const dg_fuse *f, const dg_outcome *o);

/* out[o->n, H] = fc . concat(taps of the outcome's rows); normed with `norm` if norm.data. */
void dg_fuse_rows(dg_backend *be, const dg_fuse *f, const dg_outcome *o, dg_mat fc, dg_mat norm, float eps, dg_mat out);

#endif
