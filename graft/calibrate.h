/* Thresholds from recorded rounds, for a drafter that may stop at a few checkpoints (tree Graft) or whose tail may be cut
 * (Graft-TAIL). The paper (arXiv 2605.20104) does not publish how it finds its own; both rules here are ours. And the cost
 * curve of a pass by its rows.
 *
 * Knows rounds as numbers, no drafter and no tree; calibrate_run.c records them. Not for a round: it allocates. */
#ifndef DG_CALIBRATE_H
#define DG_CALIBRATE_H

#include "runtime/calibration.h"

enum { DG_GATES = DG_CAL_GATES, DG_CAL_SWEEPS = 3 /* looks at every size of the cost curve */ };

typedef struct dg_gate_round {
    float confidence[DG_GATES];   /* at each checkpoint; INFINITY: it was not reached */
    int32_t gained[DG_GATES + 1]; /* tokens of the round had it stopped there; the last: had it not stopped */
    bool needed[DG_GATES];        /* the nodes dropped there held an accepted one */
    int32_t prompt;               /* rounds of one prompt are not independent */
} dg_gate_round;

/* Rule B, by throughput. tau[i]: stop at checkpoint i if the confidence is not above it; -1: never. seconds[i]: what a
 * round takes that stops at i; the last: one that does not. Every combination of 32 quantiles of each confidence is
 * tried; among equals the one that stops least. n rounds, at least 1; a few hundred give stable thresholds. */
dg_status dg_calibrate_gates(const dg_gate_round *round, size_t n, const double seconds[DG_GATES + 1], float tau[DG_GATES]);

/* Rule A, by what is lost: the highest tau[i] that would have stopped at most 5, 10, 20 % of the rounds that needed what
 * is dropped at i, of those that got to i. -1: never. */
dg_status dg_calibrate_gates_by_loss(const dg_gate_round *round, size_t n, float tau[DG_GATES]);

/* Either rule, with a range for each threshold: prompts are drawn anew 40 times, and times vary by 5 %. */
dg_status dg_calibrate_thresholds(const dg_gate_round *round, size_t n, const double seconds[DG_GATES + 1], bool by_loss,
                                  dg_threshold out[DG_GATES]);

/* The value with the most tokens together, of n_value; gained[i][v]: tokens of round i under value v. Among equals the
 * first. With its range, as above. */
enum { DG_TAIL_VALUES = 8 };
typedef struct dg_tail_round {
    int32_t gained[DG_TAIL_VALUES], prompt;
} dg_tail_round;
dg_status dg_calibrate_tail(const dg_tail_round *round, size_t n, const float value[DG_TAIL_VALUES], dg_threshold *out);

/* The cost curve: seconds[i] of a pass over dg_budget_rows(i) rows, 0 (not known) for those of more than `most`, by `look`,
 * which takes one pass. The quickest of several looks: other work on the machine only ever adds. Does not fall. */
dg_status dg_calibrate_rows(dg_status (*look)(void *ud, int32_t rows, double *seconds), void *ud, int32_t most,
                            double seconds[DG_CAL_ROWS]);

#endif
