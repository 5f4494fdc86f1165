/* When a drafter that works level by level stops before its depth, by published rules: gates at checkpoints (Graft, arXiv
 * 2605.20104; ECHO, 2604.09603), the mass of the beam (DDD, 2409.00142), the entropy of the next token (SVIP, 2411.18462).
 *
 * Knows the beam and one row of logits, no network. */
#ifndef DG_STOP_H
#define DG_STOP_H

#include "dflash/beam.h"
#include "runtime/calibration.h"

typedef struct dg_stop_rules {
    struct {
        int32_t at, keep; /* after so many passes behind the first: nodes to keep when it closes */
        float threshold;  /* closes unless the best path's probability is above it; 0: never, negative: not given */
    } gate[DG_CAL_GATES];
    bool gated; /* gates that were given no threshold have the usual one */
    float mass; /* stops, every second pass, unless the paths of the frontier are together likelier; 0: never */
    float svip; /* stops where sqrt(0.15 H) is above it, H the entropy behind the best path; 0: never */
} dg_stop_rules;

/* The paper's checkpoints and nodes; no threshold given. */
void dg_stop_defaults(dg_stop_rules *r);

/* Thresholds that were not given: the calibrated ones, or the usual ones. */
void dg_stop_settle(dg_stop_rules *r, const dg_calibration *known);

/* After a pass: nodes to keep if drafting has to stop now, `budget` if all scored may stay, -1 if it may go on.
 * logits: f32 host [n] of the row that scored the best candidate; read with svip only. */
int32_t dg_stop_keep(const dg_stop_rules *r, dg_beam *beam, int32_t budget, const float *logits, int32_t n);

#endif
