/* What `dgraft calibrate` measured of a target, a drafter and a machine together, and the file that holds it: one JSON
 * document beside the drafter's weights, or wherever it was put. A file is taken whole or not at all.
 *
 * Knows numbers and identities; how they were found is graft/'s business, what to do with them that of whoever reads
 * them: gates and tails (drafters), rows and acceptance (budget.h). */
#ifndef DG_CALIBRATION_H
#define DG_CALIBRATION_H

#include "runtime/budget.h"
#include "runtime/target.h"

enum {
    DG_CALIBRATION_VERSION = 1,
    DG_CAL_GATES = 3,
    DG_CAL_SOURCES = 8,
    DG_CAL_DEPTHS = 8, /* the last: that and deeper */
    DG_CAL_CONTEXTS = 3,
    DG_CAL_RANKS = 8,
    DG_CAL_ROWS = 20 /* sizes of dg_budget_rows that are measured: up to 64 */
};

typedef struct dg_calibration_source {
    char name[16];
    bool network;
    double seconds; /* of one propose */
    /* of nodes whose parent was accepted, by depth and range of probability: what their scores promised together, how
     * many were accepted */
    double promised[DG_CAL_DEPTHS][DG_BUDGET_BINS], accepted[DG_CAL_DEPTHS][DG_BUDGET_BINS];
} dg_calibration_source;

typedef struct dg_calibration {
    char target[128], drafter[128], machine[256]; /* identities; drafter "": none with a network */
    char rule[2];                                 /* "A" or "B" */
    int32_t rounds;
    bool has_gates, has_tail, has_ranks;
    dg_threshold gate[DG_CAL_GATES]; /* tree Graft: stop at a checkpoint unless the best path is likelier */
    dg_threshold tail;               /* Graft-TAIL: cut the chain at the first token less sure */
    float rank[DG_CAL_RANKS];        /* how often each entry of M's row was what followed; not rising, below 1 */
    int32_t n_source;
    dg_calibration_source source[DG_CAL_SOURCES];
    int32_t n_context, context[DG_CAL_CONTEXTS];
    double verify[DG_CAL_CONTEXTS][DG_CAL_ROWS]; /* seconds of a pass over dg_budget_rows(i) rows; 0: not known */
} dg_calibration;

/* Who and where: fills target, drafter (file NULL: "") and machine, which is how it computes and keeps its cache, too. */
void dg_calibration_identify(const struct dg_model *model, const dg_file *drafter, dg_dtype kv, dg_calibration *out);

/* Where the file of these weights lies: "DIR/dgraft-calibration.json" or "FILE.calibration.json". dg_mem_free. */
char *dg_calibration_path(const char *weights);

/* FORMAT: damaged, newer, values out of range; nothing is in *out then. IO: cannot be read. */
dg_status dg_calibration_read(const char *path, dg_calibration *out);
/* Through a temporary file beside it: what was there stays until all is written. */
dg_status dg_calibration_write(const dg_calibration *c, const char *path);

/* For a session with a cache of type kv. given: a path, "none", or NULL: beside `weights` (NULL: no network drafter) if there is a file. *out:
 * dg_mem_free, NULL if there is none. One that was made for another target, drafter or machine is refused with the reason:
 * a failure if it was given (ARGUMENT), else a warning. One that is damaged is a failure. */
dg_status dg_calibration_load(const struct dg_model *model, const char *given, const char *weights, dg_dtype kv,
                              dg_calibration **out);

/* The source of this name, NULL. */
const dg_calibration_source *dg_calibration_find(const dg_calibration *c, const char *name);

#endif
