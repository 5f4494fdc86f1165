/* What tests and studies may look at inside an EAGLE-3 drafter. Valid until the next observe or propose. */
#ifndef DG_EAGLE3_H
#define DG_EAGLE3_H

#include "dflash/beam.h"
#include "runtime/drafter.h"
#include "runtime/kv.h"

extern const dg_drafter_ops dg_eagle3;

/* What the layer hands on: row 0 of the last committed position, row 1 + s of slot s (beam.h); [1 + depth*width, H]. */
dg_mat dg_eagle3_state(const dg_drafter *d);
/* Logits of the last pass: [1 or width, draft vocabulary]. */
dg_mat dg_eagle3_logits(const dg_drafter *d);
const dg_beam *dg_eagle3_beam(const dg_drafter *d);
const dg_kv *dg_eagle3_kv(const dg_drafter *d);

#endif
