/* What calibration may ask of the drafter `fill` outside a round. */
#ifndef DG_FILL_H
#define DG_FILL_H

#include "runtime/drafter.h"

extern const dg_drafter_ops dg_fill;

/* The best of what a drafter scored into the tree, score down, then in order of creation, until it has `budget` nodes
 * besides the root or there are no more. */
void dg_fill_scored(const dg_candidates *c, int32_t source, dg_tree *t, int32_t budget);

/* M's row of a token, DG_SUCC_WIDTH entries, -1 where it has none. */
void dg_fill_successors(dg_drafter *fill, int32_t token, int32_t *row);

/* Fills the tree of a drafter that was stopped with these candidates (NULL: nothing was drafted) up to the budget. */
void dg_fill_rows(dg_drafter *fill, const dg_candidates *c, int32_t source, dg_tree *t, int32_t budget);

#endif
