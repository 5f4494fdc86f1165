/* Best-first search over a lattice of independent per-depth candidates: the tree with the largest expected
 * number of accepted tokens for its size, i.e. the most probable prefixes (DDTree, arXiv 2604.12989).
 *
 * Knows nothing of networks: a lattice comes in, tree nodes come out. */
#ifndef DG_BEST_FIRST_H
#define DG_BEST_FIRST_H

#include "runtime/tree.h"

/* Scratch of one search, owned by the caller; needs no initialisation. */
typedef struct dg_best_first {
    struct dg_best_first_item {
        double score; /* log-probability of the path */
        int16_t parent, rank;
    } heap[DG_TREE_MAX];
    int16_t rank[DG_TREE_MAX]; /* of the tree nodes that were reached: their rank among their siblings */
    int32_t n;
} dg_best_first;

/* Grows t from its root until it has `budget` nodes besides the root, is full, or the lattice is exhausted.
 * Nodes that are there already stay, count, and are merged with. First the `chain` leading tokens of the
 * greedy path (the best candidate of each depth) go in, then the most probable prefixes: on an undertrained
 * drafter pure best-first (chain 0, the DDTree rule) loses to its own chain.
 *
 * Prefixes are taken in the order (score down, ranks of the path lexicographically up), their scores summed
 * in double and stored as float. Candidates of probability 0 (or NaN) and what lies behind them in their row
 * are left out. Returns the number of nodes added. */
int32_t dg_best_first_fill(dg_best_first *s, dg_tree *t, const dg_lattice *lattice, int32_t budget,
                           int32_t chain, int32_t source);

#endif
