/* From sums to the figures that are reported: one row per arm and category, and overall. */
#ifndef DG_BENCH_SUMMARY_H
#define DG_BENCH_SUMMARY_H

#include "bench/run.h"
#include "bench/stats.h"

typedef struct summary {
    int arm, category;  /* category -1: all */
    int prompts, equal; /* prompts done; of those, with plain's text in every repetition */
    sample sum;
    double speed, speed_low, speed_high; /* tokens/s over prompts: median, 10th, 90th percentile */
    double ratio;           /* of tokens/s to plain's on the same prompt: geometric mean over prompts */
    stat_interval interval; /* its bootstrap 95 %, NAN below three prompts */
    double ratio_median;
    double tau, drafted;                 /* tokens a round with and without the target's own (bonus) token */
    double share;                        /* of drafted nodes that became text */
    double passes, rows;                 /* a round */
    double draft_ms, verify_ms, rest_ms; /* a round */
    double read;       /* bytes/s of target weights while verifying; each pass reads them once */
    double read_share; /* of copy bandwidth; NAN if not measured */
} summary;

/* Of one arm and one category (-1: all). What has no prompts has n prompts = 0 and nothing else. */
summary bench_summary(const bench_run *r, int arm, int category);

/* Ratio of plain decoding's speed in the last quarter of the prompts to the first; NAN below 8 prompts. */
double bench_drift(const bench_run *r);

/* Prompts of all arms whose text differs from plain's. */
int bench_differing(const bench_run *r);

/* Seconds of a verify pass over `rows` rows by the cost curve; NAN without one. */
double bench_cost_at(const bench_run *r, double rows);

/* The name of drafter i of an arm. */
const char *bench_source(const bench_arm *a, int i);

#endif
