/* How likely each candidate for the next token is, whoever proposed it: a conditional logit over what the
 * sources say of it. P(c) = exp(s_c) / (1 + sum of all exp(s)); the 1 stands for "none of them". The scores s
 * are sums of a few weights, fitted on recorded rounds (README.md) and refined while decoding. So candidates
 * of all sources share one scale, and one that several agree on gains.
 *
 * Knows sources as numbers: a drafter's rank and log-probability, a rank in M, the length of a match. */
#ifndef DG_RANK_H
#define DG_RANK_H

#include <stdbool.h>
#include <stdint.h>

enum { DG_RANK_WEIGHTS = 29, DG_RANK_GREEDY = 0, DG_RANK_NONE = -1 };

typedef struct dg_candidate {
    int32_t token;
    int32_t drafted;   /* rank among the network drafter's choices at this depth, NONE: not one of them */
    float logp;        /* its log-probability there */
    int32_t successor; /* rank in M's row of the token before, or NONE */
    int32_t match;     /* tokens of the match that it continues, 0: none */
    bool other;        /* not the match's first continuation */
    float p;           /* out: probability, given that everything before it is right */
} dg_candidate;

/* Where the candidates would stand. */
typedef struct dg_place {
    int32_t depth;   /* 1: right behind the root */
    int32_t drafted; /* the same rank of the token before them (root: GREEDY) */
} dg_place;

typedef struct dg_rank {
    float weight[DG_RANK_WEIGHTS];
    float rate; /* of learning, 0: none */
} dg_rank;

/* The fitted weights: with a network drafter among the sources, or from memory alone. */
void dg_rank_init(dg_rank *r, bool network, float rate);

/* Sets p of the n candidates, each token once. The p of all add up to less than 1. */
void dg_rank_score(const dg_rank *r, const dg_place *at, dg_candidate *c, int32_t n);

/* What weights are multiplied with: x [DG_RANK_WEIGHTS]; s = sum of weight[k] x[k]. For bench/rank_fit.c. */
void dg_rank_features(const dg_place *at, const dg_candidate *c, float *x);

/* One step of gradient ascent on log P(next): `next` followed, whether it was a candidate or not. p as
 * dg_rank_score left it. */
void dg_rank_learn(dg_rank *r, const dg_place *at, const dg_candidate *c, int32_t n, int32_t next);

#endif
