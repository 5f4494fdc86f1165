/* The walk that decides what a round accepts: integers only, no model, no floats. */
#ifndef DG_VERIFY_H
#define DG_VERIFY_H

#include "runtime/tree.h"

typedef struct dg_walk {
    int32_t n;                  /* nodes on the path, root included: tokens gained, bonus included */
    int32_t path[DG_TREE_MAX];  /* node indices, ascending, path[0] = 0; path[i] >= i */
    int32_t next;               /* what the target says after the last of them */
} dg_walk;

/* sampled[i] = the target's own token after node i. Starting at the root, moves to the child that carries the sampled
 * token as long as there is one; where siblings repeat a token, along the one that gets furthest. Every token so emitted
 * is the target's own sample, whatever the tree was: exact at any temperature. */
void dg_verify(const dg_tree *t, const int32_t *sampled, dg_walk *out);

#endif
