/* A drafter without a session around it: a made-up model of V tokens, memory, a text to learn. For drafters
 * that look at no features. Everything between open and close runs under the allocation guard. */
#ifndef DG_TESTS_DRAFTER_RIG_H
#define DG_TESTS_DRAFTER_RIG_H

#include "runtime/calibration.h"
#include "runtime/drafter.h"
#include "runtime/target.h"

typedef struct rig {
    dg_model model;
    dg_drafter_env env;
    dg_offer offer;
    dg_drafter *drafter;
    void *host, *dev;
    int32_t n; /* tokens observed */
} rig;

/* context and budget are ample; source is 3. */
void rig_open(rig *r, const dg_drafter_ops *ops, int32_t vocab, const char *params);
void rig_open_calibrated(rig *r, const dg_drafter_ops *ops, int32_t vocab, const char *params, const dg_calibration *c);
void rig_close(rig *r);

/* Observes n committed tokens as prefill without logits, `next` behind them. */
void rig_read(rig *r, const int32_t *token, int32_t n, int32_t next);

void rig_propose(rig *r, dg_tree *t, int32_t budget);

/* Parents first, no token twice among siblings, scores that never rise, at most budget nodes. */
void rig_check_tree(const dg_tree *t, int32_t budget);

#endif
