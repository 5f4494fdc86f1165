/* What tests and studies may look at inside a DFlash drafter: the last pass of propose. */
#ifndef DG_DFLASH_H
#define DG_DFLASH_H

#include "runtime/drafter.h"
#include "runtime/kv.h"

extern const dg_drafter_ops dg_dflash;

/* Valid until the next propose or observe. logits: [block-1, draft vocabulary] of rows 1..block-1; hidden: [block, H]
 * after the final norm. */
dg_mat dg_dflash_logits(const dg_drafter *d);
dg_mat dg_dflash_hidden(const dg_drafter *d);
const dg_kv *dg_dflash_kv(const dg_drafter *d);

#endif
