/* EAGLE's dynamic tree (EAGLE-2, arXiv 2406.16858; SafeAILab/EAGLE): level by level the `width` best children of every
 * frontier node are scored, the `width` best of those become the next frontier, and at the end the best of everything
 * that was scored goes into the tree.
 *
 * Knows nothing of networks: token ids and log-probabilities come in, tree nodes come out. */
#ifndef DG_BEAM_H
#define DG_BEAM_H

#include "runtime/mem.h"
#include "runtime/tree.h"

/* Candidates lie in order of creation: the root's `width` children, then `width` children of slot 0, of slot 1, ... A
 * slot is one expanded node; pass p behind the first expands slots (p-1)*width .. p*width-1. So the children of slot s
 * begin at (s+1)*width, and candidate c was scored by the row of slot c/width - 1 (-1: the root's row). */
typedef struct dg_beam {
    int32_t width, depth;   /* candidates of a row; most passes behind the first */
    int32_t n, passes;      /* candidates; passes scored */
    int32_t *token, *parent; /* [cap]; parent: a candidate, -1: the root */
    float *score;           /* [cap] log-probability of the path, f32 sums as in the original; never above the parent's */
    int32_t *slot;          /* [depth*width] the candidate of each slot */
    int32_t *node, *order;  /* [cap] [DG_TREE_MAX] scratch of fill */
    uint64_t *heap;         /* [DG_TREE_MAX] */
} dg_beam;

/* width from 1 to DG_TREE_MAX - 1, depth >= 0. */
void dg_beam_layout(dg_beam *b, int32_t width, int32_t depth, dg_arena *host);
void dg_beam_reset(dg_beam *b);

/* Takes the `width` best tokens, best first, of each row of a pass: one row (the root's) in the first pass, then one of
 * each slot that dg_beam_expand chose. A row's tokens are different; a NaN counts as probability 0. */
void dg_beam_score(dg_beam *b, const int32_t *token, const float *logp);

/* Chooses the next `width` slots, the best of the candidates scored last (score down, then creation), and returns their
 * candidates. After dg_beam_score, at most `depth` times. */
const int32_t *dg_beam_expand(dg_beam *b);

/* Log-probability of the best candidate scored last. */
float dg_beam_best(const dg_beam *b);

/* The `width` best candidates scored last, as dg_beam_expand would take them: their probabilities together; and the row
 * of its pass that scored the best of them. */
float dg_beam_mass(dg_beam *b);
int32_t dg_beam_best_row(const dg_beam *b);

/* True when no further pass can change which `budget` candidates are best: descendants score no higher than the best
 * of the frontier, and among equals the older wins. */
bool dg_beam_settled(dg_beam *b, int32_t budget);

/* Adds the best candidates (score down, creation up) to t in order of creation, so that a tree that was empty comes out
 * level by level: until t has `budget` nodes besides the root, `keep` of them new or all candidates used. Those of
 * probability 0 are left out. Nodes that are there already stay, count, and are merged with. */
void dg_beam_fill(dg_beam *b, dg_tree *t, int32_t budget, int32_t keep, int32_t source);

#endif
