/* Target features to drafter input; see fuse.h. */
#include "dflash/fuse.h"

void dg_fuse_layout(dg_fuse *f, int32_t max_rows, int32_t n_tap, int32_t hidden, dg_arena *dev) {
    const int32_t cols = n_tap * hidden;
    *f = (dg_fuse){.hidden = hidden, .n_tap = n_tap};
    f->cat = dg_mat_make(dg_arena_take(dev, (size_t)max_rows * (size_t)cols, sizeof(float)), DG_F32, max_rows, cols);
}

dg_mat dg_fuse_gather(dg_backend *be, const dg_fuse *f, const dg_outcome *o) {
    const dg_mat cat = dg_mat_rows(f->cat, 0, o->n);
    for (int32_t t = 0; t < f->n_tap; t++)
        be->ops->rows_gather(be, dg_mat_cols(cat, t * f->hidden, f->hidden), o->feature[t], o->row);
    return cat;
}

void dg_fuse_rows(dg_backend *be, const dg_fuse *f, const dg_outcome *o, dg_mat fc, dg_mat norm, float eps, dg_mat out) {
    dg_matmul(be, out, dg_fuse_gather(be, f, o), fc, (dg_mat){0}, false);
    if (norm.data) be->ops->rms_norm(be, out, out, norm, eps);
}
