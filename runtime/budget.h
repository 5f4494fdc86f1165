/* How many rows a round is worth (--budget auto): the number that promises the most tokens a second, under a
 * cost curve measured while decoding and the acceptance that the scores turned out to mean. The rule is
 * CaDDTree's (arXiv 2606.01813), with no profiling beforehand. No drafting at all is one of the choices, so
 * that a session is never slower than plain decoding for long; drafters with a network are tried again now
 * and then.
 *
 * Knows trees, walks and seconds; no drafter, no model, no clock. A budget changes speed, never text. */
#ifndef DG_BUDGET_H
#define DG_BUDGET_H

#include "runtime/verify.h"

enum { DG_BUDGET_SIZES = 27, DG_BUDGET_BINS = 12 };

typedef struct dg_budget {
    int32_t most; /* nodes besides the root that there is room for */
    bool fixed;   /* every round may use them all, and no drafter is ever left out */
    bool network; /* there are drafters that cost a pass */

    /* Costs are in plain steps, passes over one row, of the time when they were measured: a machine that others use too
     * is slower for a while, and all costs with it. */
    double pace; /* seconds of a plain step of late; 0: none was seen */

    /* The cost curve: a verify pass by its rows, for rows of dg_budget_rows(i). */
    double cost[DG_BUDGET_SIZES], curve[DG_BUDGET_SIZES]; /* as measured (running mean); rising, without gaps */
    int32_t n_seen[DG_BUDGET_SIZES];
    int32_t last_seen[DG_BUDGET_SIZES]; /* round */
    double prompt_row;                  /* seconds of one of many rows, from the prompt; 0: not known */
    double row_price;                   /* the same in plain steps */
    double rest;                        /* what a round takes beside drafting and verifying */
    double draft[2];                    /* drafting: without, with the networks */

    /* Acceptance without and with the networks: what the scores of one range of probability promised, and
     * what came of it. Sums that forget. */
    double promised[2][DG_BUDGET_BINS], accepted[2][DG_BUDGET_BINS];
    double trust; /* in promises of which nothing came yet: scores speak of the likeliest token, a sampler takes others */

    /* Whether networks pay: tokens and cost of late rounds without and with them. Decaying sums. */
    double tokens[2], time[2];
    int32_t n_round[2];
    bool on;         /* the better choice so far */
    bool use;        /* this round's */
    bool sure;       /* this round promises more without them than rounds with them bring: it says nothing about them */
    int32_t wait;    /* rounds to the next trial of the other */
    int32_t pause;   /* between trials; longer each time that a trial changes nothing */
    int32_t trial;   /* rounds left of the trial */
    int32_t changed; /* round of the last change of `on` */

    int32_t round, kept; /* rounds so far; nodes of the last one */
} dg_budget;

/* budget > 0: fixed, 0: auto with at most `most` nodes. network: there are drafters that cost a pass. temperature: the
 * sampler's, 0 where it is greedy. */
void dg_budget_init(dg_budget *b, int32_t budget, int32_t most, bool network, double temperature);

/* Another temperature from now on. */
void dg_budget_temperature(dg_budget *b, double temperature);

/* What was measured before this session; what is 0 is not known. */
typedef struct dg_budget_prior {
    double seconds[DG_BUDGET_SIZES]; /* of a verify pass over dg_budget_rows(i) rows */
    double draft[2];                 /* of drafting: without, with the networks */
    double promised[2][DG_BUDGET_BINS], accepted[2][DG_BUDGET_BINS]; /* see dg_budget */
} dg_budget_prior;

/* After dg_budget_init: begins with what is known. Counts for a few rounds; what the session sees replaces it. */
void dg_budget_start(dg_budget *b, const dg_budget_prior *p);

/* The range of a probability, 0 for the highest; see dg_budget. */
int32_t dg_budget_bin(double p);

/* A pass over `rows` rows of the prompt took so long: until sizes are measured, what a further row costs. */
void dg_budget_prompt(dg_budget *b, int32_t rows, double seconds);

/* A new text: the networks are tried again soon. */
void dg_budget_text(dg_budget *b);

/* Begins a round that has room for `room` nodes. Returns how many may be proposed; *network: whether drafters
 * that cost a pass are to run. */
int32_t dg_budget_begin(dg_budget *b, int32_t room, bool *network);

/* What is proposed without networks promises more tokens a second than rounds with them bring: they may stay out of this
 * round if dg_budget_begin asked for them, and it says nothing about them. Never so in a trial, or where the budget is fixed. */
bool dg_budget_sure(dg_budget *b, const dg_tree *t);

/* How many of the proposed nodes are worth verifying: those with the best scores. None where little is promised and the
 * plain step, the measure of it all, was not taken for a while. */
int32_t dg_budget_cut(const dg_budget *b, const dg_tree *t);

/* What the round came to. Seconds: drafting, verifying, everything else. */
void dg_budget_learn(dg_budget *b, const dg_tree *t, const dg_walk *w, double draft, double verify,
                     double rest);

/* Rows of size i of the curve; 1, 2, 3, ... then wider steps up to DG_TREE_MAX. */
int32_t dg_budget_rows(int32_t i);

/* Seconds that a pass over n rows takes of late, 0 before the first. */
double dg_budget_cost(const dg_budget *b, int32_t n);

#endif
