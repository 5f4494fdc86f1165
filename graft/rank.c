/* The conditional logit of the candidates; see rank.h. */
#include "graft/rank.h"

#include <math.h>
#include <string.h>

enum {
    DRAFTED,     /* the network proposed it, */
    FIRST,       /* as its first choice, */
    LOGP,        /* times its log-probability; */
    SECOND,      /* at depth 2, */
    DEEPER,      /* at depth 3 or more, */
    OFF_GREEDY,  /* behind a token that was not the network's first choice, */
    OFF_LATTICE, /* behind one it did not think of */
    DEEP_FIRST,  /* first in M's row at depth 2 or more */
    NETWORK_M,   /* sources that agree: all that do */
    NETWORK_TEXT,
    M_TEXT,
    ALL,
    BELOW,                 /* at depth 2 or more */
    SUCCESSOR,             /* by rank in M's row: 0, 1, 2, 3-4, 5 and more */
    MATCH = SUCCESSOR + 5, /* by length: 1, 2, 3, 4, 5-6, 7-9, 10-15, 16 and more */
    OTHER = MATCH + 8,     /* another continuation, by length: 1, 2, 3 and more */
    N_WEIGHT = OTHER + 3,
    MAX_FEATURES = 16
};
_Static_assert((int)N_WEIGHT == (int)DG_RANK_WEIGHTS, "one weight a feature");

/* Fitted as README.md says, in the order above. */
static const float with_network[N_WEIGHT] = {
    2.62f, -0.18f, 1.17f, 0.44f, 0.43f, -0.62f, -0.84f, 0.40f, 2.20f, 1.29f, 0.63f, -1.95f, -0.71f,
    0.04f, -0.55f, -0.90f, -1.35f, -1.60f, -0.27f, 1.17f, 2.09f, 2.57f, 3.10f, 3.58f, 3.92f, 4.94f,
    0.07f, 0.88f, 1.97f};
static const float from_memory[N_WEIGHT] = {
    0, 0, 0, 0, 0, 0, 0, 0.08f, 0, 0, 1.03f, 0, -0.22f, 0.32f, -0.66f, -1.23f, -1.81f, -2.48f, -1.06f,
    0.62f, 1.35f, 1.81f, 2.21f, 2.75f, 3.21f, 4.40f, -0.39f, 0.43f, 1.53f};

void dg_rank_init(dg_rank *r, bool network, float rate) {
    memcpy(r->weight, network ? with_network : from_memory, sizeof r->weight);
    r->rate = rate;
}

static int32_t length_class(int32_t n) {
    return n <= 4 ? n - 1 : n <= 6 ? 4 : n <= 9 ? 5 : n <= 15 ? 6 : 7;
}

/* A candidate's features; all count once but the log-probability. */
typedef struct features {
    int32_t n, index[MAX_FEATURES];
    float logp;
} features;

static void add(features *f, bool has, int32_t index) {
    if (has) f->index[f->n++] = index;
}

static features features_of(const dg_place *at, const dg_candidate *c) {
    const bool network = c->drafted >= 0, m = c->successor >= 0, text = c->match > 0 && !c->other,
               deep = at->depth > 1;
    const int32_t r = c->successor, len = length_class(c->match > 0 ? c->match : 1);
    features f = {.logp = c->logp > -20 ? c->logp : -20};
    add(&f, network, DRAFTED);
    add(&f, c->drafted == DG_RANK_GREEDY, FIRST);
    add(&f, network, LOGP);
    add(&f, network && at->depth == 2, SECOND);
    add(&f, network && at->depth > 2, DEEPER);
    add(&f, network && at->drafted > 0, OFF_GREEDY);
    add(&f, network && at->drafted < 0, OFF_LATTICE);
    add(&f, m && r == 0 && deep, DEEP_FIRST);
    add(&f, network && m, NETWORK_M);
    add(&f, network && text, NETWORK_TEXT);
    add(&f, m && text, M_TEXT);
    add(&f, network && m && text, ALL);
    add(&f, deep, BELOW);
    add(&f, m, SUCCESSOR + (r < 3 ? r : r < 5 ? 3 : 4));
    add(&f, text, MATCH + len);
    add(&f, c->match > 0 && c->other, OTHER + (len < 2 ? len : 2));
    return f;
}

static float value(const features *f, int32_t i) {
    return f->index[i] == LOGP ? f->logp : 1;
}

void dg_rank_features(const dg_place *at, const dg_candidate *c, float *x) {
    const features f = features_of(at, c);
    memset(x, 0, N_WEIGHT * sizeof *x);
    for (int32_t k = 0; k < f.n; k++) x[f.index[k]] = value(&f, k);
}

void dg_rank_score(const dg_rank *r, const dg_place *at, dg_candidate *c, int32_t n) {
    float most = 0, sum = 0;
    for (int32_t i = 0; i < n; i++) {
        const features f = features_of(at, &c[i]);
        float s = 0;
        for (int32_t k = 0; k < f.n; k++) s += r->weight[f.index[k]] * value(&f, k);
        c[i].p = s;
        if (s > most) most = s;
    }
    for (int32_t i = 0; i < n; i++) sum += c[i].p = expf(c[i].p - most);
    sum += expf(-most);
    for (int32_t i = 0; i < n; i++) c[i].p /= sum;
}

void dg_rank_learn(dg_rank *r, const dg_place *at, const dg_candidate *c, int32_t n, int32_t next) {
    float step[N_WEIGHT] = {0};
    for (int32_t i = 0; i < n; i++) {
        const features f = features_of(at, &c[i]);
        const float error = (c[i].token == next ? 1.0f : 0.0f) - c[i].p;
        for (int32_t k = 0; k < f.n; k++) step[f.index[k]] += error * value(&f, k);
    }
    for (int32_t k = 0; k < N_WEIGHT; k++) r->weight[k] += r->rate * step[k];
}
