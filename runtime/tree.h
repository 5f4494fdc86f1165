/* The token tree: what one round will verify. A flat value without pointers; node 0 is the root (the last
 * token of the text, not yet in the cache), parent[i] < i, everything else follows from `parent`.
 *
 * dg_tree_add is the way in. It returns the existing child when the token is already there, so merging what two
 * drafters propose is free. */
#ifndef DG_TREE_H
#define DG_TREE_H

#include <stdio.h>

#include "kernels/ops.h"

typedef struct dg_tree {
    int32_t n;       /* nodes, root included */
    int32_t deepest; /* nodes below this depth cannot become text: who pays for depth stops there */
    int32_t token[DG_TREE_MAX];
    int16_t parent[DG_TREE_MAX]; /* root: -1 */
    uint8_t depth[DG_TREE_MAX];  /* root: 0 */
    uint8_t source[DG_TREE_MAX]; /* root: 0; drafter i of the session: i + 1 */
    float score[DG_TREE_MAX];    /* log of the estimated probability that the whole path is accepted; root 0,
                                    never above the parent's */
} dg_tree;

/* What a drafter thinks of depths 1..n_depth below the root, each depth independent of the others. Borrowed. */
typedef struct dg_lattice {
    const int32_t *id; /* [n_depth, width] different token ids in a row, best first */
    const float *logp; /* [n_depth, width] their log-probabilities, not increasing along a row */
    int32_t n_depth;   /* >= 0; depths past DG_TREE_MAX - 1 are never reached */
    int32_t width;     /* candidates of each depth, >= 1; more than the budget are never looked at */
} dg_lattice;

/* The root alone, of any depth. */
void dg_tree_reset(dg_tree *t, int32_t root_token);

/* Child of `parent` with `token`, made if absent; its index, or -1 when the tree is full. The score of a new
 * node is capped at the parent's. An existing node keeps its source and gets the larger of both scores
 * (capped). */
int32_t dg_tree_add(dg_tree *t, int32_t parent, int32_t token, float score, int32_t source);

/* A new node even where a sibling has the token already, for published rules that do not merge; its index, or -1 when the
 * tree is full. The walk follows all of them. */
int32_t dg_tree_append(dg_tree *t, int32_t parent, int32_t token, float score, int32_t source);

/* Child of node with this token, the oldest of several, -1 if none. */
int32_t dg_tree_child(const dg_tree *t, int32_t node, int32_t token);

/* Keeps the root and the n_keep best-scored other nodes (ties: the lower index), reindexed in order. Scores never rise
 * along a path, so what is kept is ancestor-closed. map[old] = new or -1, if not NULL. */
void dg_tree_prune(dg_tree *t, int32_t n_keep, int16_t *map);

/* Drops the nodes below t->deepest. */
void dg_tree_trim(dg_tree *t);

/* bits[n][DG_MASK_WORDS]: ancestor-or-self sets of every node. */
void dg_tree_bits(const dg_tree *t, uint64_t (*bits)[DG_MASK_WORDS]);

/* One line a node, depth first, indented by depth. For people. */
void dg_tree_print(const dg_tree *t, FILE *f);

#endif
