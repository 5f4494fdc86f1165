/* The measuring itself: prompts by arms, interleaved, and the list of what is done, which survives an
 * interruption. */
#ifndef DG_BENCH_RUN_H
#define DG_BENCH_RUN_H

#include "bench/arms.h"
#include "bench/prompts.h"
#include "bench/sample.h"

typedef struct bench_cost { /* of a verify pass over so many rows, behind `len` of context: seconds */
    int rows, len;
    double median, least, most;
} bench_cost;

typedef struct bench_brief { /* of one run: what is needed beside sums */
    double seconds, cpu;
    uint64_t tokens;
    bool equal;
} bench_brief;

enum { BENCH_COSTS = 16, BENCH_CATEGORIES = 64 };

typedef struct bench_tokens {
    int32_t *id;
    size_t n;
} bench_tokens;

typedef struct bench_run {
    dg_model *model;
    bench_prompts prompts;
    bench_tokens *ids; /* [prompts.n] */
    bench_tokens warm; /* the text of the warm-up */
    bench_arms arms;
    int n_tokens, repeat, context;
    uint64_t seed;
    bool every_round; /* keep each round in the records */
    bool obey_stop;   /* an answer ends at a stop token; else every answer has n_tokens */
    bench_cost cost[BENCH_COSTS];
    int n_cost;
    const char *device;    /* as it was asked for */
    double copy_bandwidth; /* bytes/s of the CPU, 0: not measured */
    uint64_t weight_bytes; /* of the target */

    const char *category[BENCH_CATEGORIES];
    int n_category;
    int *category_of;   /* [prompts.n] */
    sample *now;        /* [repeat][arms.n]: of the prompt at hand */
    sample *sum;        /* [arms.n][n_category] */
    bench_brief *brief; /* [prompts.n][repeat][arms.n] */
    int n_done;         /* prompts, from the first on */
} bench_run;

static inline sample *bench_now(const bench_run *r, int rep, int arm) {
    return &r->now[rep * r->arms.n + arm];
}
static inline sample *bench_sum(const bench_run *r, int arm, int category) {
    return &r->sum[arm * r->n_category + category];
}
static inline bench_brief *bench_brief_at(const bench_run *r, int prompt, int rep, int arm) {
    return &r->brief[((size_t)prompt * (size_t)r->repeat + (size_t)rep) * (size_t)r->arms.n + (size_t)arm];
}

/* Copy bandwidth of the machine, measured in a process of its own, as it takes a gigabyte. 0 if that fails.
 */
double bench_copy_bandwidth(int threads);

/* Tokens of every prompt in the model's chat format, if it has one; prompts longer than max_prompt are left
 * out with a line on standard error. Sets context. */
dg_status bench_tokenize(bench_run *r, int max_prompt);

/* Fills cost: plain and wider passes in turns. */
dg_status bench_measure_cost(bench_run *r);

/* Room for the results, once prompts and arms are final. False: no memory, or too many categories. */
bool bench_run_begin(bench_run *r);

/* Runs all arms on the next prompt, the order rotating, and adds what came to the sums. Returns what is to be
 * kept of it as an array of one object each, NULL on failure (dg_error_message) or when *stop became nonzero.
 */
json_t *bench_run_prompt(bench_run *r, const volatile int *stop);

/* Takes such an array as the results of the next prompt. False if it does not fit the run. */
bool bench_restore_prompt(bench_run *r, const json_t *list);

void bench_run_free(bench_run *r);

#endif
