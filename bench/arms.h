/* What is compared: a mode with its weights, parameters, budget, temperature and warm-up, under a name. Knows
 * modes only through the public header, so that a new mode needs one line where modes are registered and none
 * here. */
#ifndef DG_BENCH_ARMS_H
#define DG_BENCH_ARMS_H

#include "runtime/dgraft.h"

enum { BENCH_ARMS = 256, BENCH_PATHS = 8, BENCH_LIST = 32, BENCH_TEXT = 2048 };

typedef struct bench_arm {
    char label[128];  /* its name; with "/BUDGET" or " T=..." behind it where several of those are run */
    char family[128]; /* without the budget: a sweep of budgets shares it */
    const dg_mode *mode;
    char text[BENCH_TEXT]; /* what draft points into */
    dg_draft draft[DG_STATS_SOURCES];
    size_t n_draft;
    int budget; /* 0: auto */
    float temperature;
    int warmup;            /* rounds on another text before each prompt */
    char calibration[256]; /* file or "none"; empty: the library's choice */
    double handicap;       /* share of its time added to every round: for testing the benchmark */
    int plain;             /* index of the plain arm of its temperature */
} bench_arm;

typedef struct bench_skip {
    char label[128], why[512];
} bench_skip;

/* As given on the command line. */
typedef struct bench_wish {
    const char *drafter[BENCH_PATHS]; /* PATH or NAME:PATH */
    int n_drafter;
    const char *modes; /* "a,b,c", "main", "all" */
    const char *arm[BENCH_LIST], *ablate[BENCH_LIST], *handicap[BENCH_PATHS];
    int n_arm, n_ablate, n_handicap;
    int budget[BENCH_LIST], n_budget; /* 0: auto; none: each mode's own */
    double temperature[BENCH_LIST];
    int n_temperature, warmup;
} bench_wish;

typedef struct bench_arms {
    bench_arm *v;
    int n;
    bench_skip *skip; /* arms whose weights are not there */
    int n_skip;
} bench_arms;

/* The arms of the wish, plain first of each temperature; false with a message for names and keys that do not
 * exist. */
bool bench_arms_make(const bench_wish *w, bench_arms *out, char *error, size_t cap);

/* Opens and closes every arm's drafters once; those that cannot be opened move to skip. context: tokens of
 * the longest prompt and its answer. */
void bench_arms_probe(bench_arms *a, dg_model *m, int context);

/* Options of a session of this arm, which goes on behind stop tokens. The arm must outlive it. */
dg_session_options bench_arm_options(const bench_arm *a, int context, uint64_t seed);

/* Names of the presets of --ablate: "threshold", ...; NULL out of range. */
const char *bench_ablation_name(size_t i);
const char *bench_ablation_help(size_t i);

void bench_arms_free(bench_arms *a);

#endif
