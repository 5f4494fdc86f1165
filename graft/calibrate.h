/* Thresholds for a drafter that may stop at a few checkpoints (tree Graft, arXiv 2605.20104, which does not
 * publish how it finds its own): those that would have made the most tokens a second of rounds recorded
 * without stopping.
 *
 * Knows rounds as numbers, no drafter and no tree. */
#ifndef DG_CALIBRATE_H
#define DG_CALIBRATE_H

#include <stddef.h>
#include <stdint.h>

enum { DG_GATES = 3 };

typedef struct dg_gate_round {
    float confidence[DG_GATES];   /* at each checkpoint */
    int32_t gained[DG_GATES + 1]; /* tokens of the round had it stopped there; the last: had it not stopped */
} dg_gate_round;

/* tau[i]: stop at checkpoint i if the confidence is not above it; -1: never. seconds[i]: what a round takes
 * that stops at i; the last: one that does not. Every combination of 32 quantiles of each confidence is
 * tried; among equals the one that stops least. n rounds, at least 1; a few hundred give stable thresholds.
 */
void dg_calibrate_gates(const dg_gate_round *round, size_t n, const double seconds[DG_GATES + 1],
                        float tau[DG_GATES]);

#endif
