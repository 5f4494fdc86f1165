/* Templates: which successors of successors are worth a row. A template is a list of nodes, each a parent and
 * a rank: with M the successor matrix its token is M[token of parent][rank] (Token Recycling, arXiv
 * 2408.08696; Graft, arXiv 2605.20104).
 *
 * Knows no tokens. Every prefix of a template is a template. */
#ifndef DG_TEMPLATE_H
#define DG_TEMPLATE_H

#include "kernels/ops.h"

typedef struct dg_template {
    int32_t n;                       /* nodes, the root not counted */
    int32_t parent[DG_TREE_MAX - 1]; /* 0: the root, i + 1: node i; below i + 1 */
    int32_t rank[DG_TREE_MAX - 1];
} dg_template;

/* Retrieval templates of Graft: the first 20, 36 and 52 nodes of DG_TEMPLATE_GRAFT are its stages. The level
 * widths of the 52 are the paper's; which nodes is our choice, by the path products of falling probabilities.
 */
enum {
    DG_TEMPLATE_SMALL = 20,
    DG_TEMPLATE_MIDDLE = 36,
    DG_TEMPLATE_LARGE = 52,
    DG_TEMPLATE_RECYCLING_NODES = 80
};
extern const char DG_TEMPLATE_GRAFT[];
/* Token Recycling's own, "2.2.2": 80 nodes, level by level. */
extern const char DG_TEMPLATE_RECYCLING[];

/* Reads nodes written as paths of ranks from the root ("0 1 00 01 010"), separated by spaces, parents first,
 * none twice. A bug in the text is an assert. */
void dg_template_read(const char *paths, dg_template *out);

/* The n nodes with the largest products of p[rank] along their path, p[k] not increasing and below 1; among
 * equals the shorter, then the lower ranks first. This is the best template of its size when ranks are right
 * independently with these probabilities. n < DG_TREE_MAX. */
void dg_template_fit(const float *p, int32_t k, int32_t n, dg_template *out);

/* How often rank r of the row of the token before was the target's choice: 5,937 tokens of greedy answers of
 * SmolLM2-135M-Instruct, M from the prompt and the answer so far. */
extern const float dg_template_prior[8];

/* score[i] = log of the product of the prior along the path of node i; score [t->n]. */
void dg_template_scores(const dg_template *t, float *score);

#endif
