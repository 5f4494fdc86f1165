/* What calibration may change in the drafter `graft` between rounds. */
#ifndef DG_GRAFT_H
#define DG_GRAFT_H

#include "runtime/drafter.h"

extern const dg_drafter_ops dg_graft;

/* 0: cut where most is promised. */
void dg_graft_set_threshold(dg_drafter *graft, float tau);

#endif
