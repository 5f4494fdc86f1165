/* The command line of dgraft-bench. */
#ifndef DG_BENCH_OPTIONS_H
#define DG_BENCH_OPTIONS_H

#include "bench/arms.h"

typedef struct bench_options {
    bench_wish wish;
    const char *model, *out, *scripts, *device;
    const char *file[BENCH_LIST];
    int n_file, n_tokens, per_category, threads, repeat, max_prompt;
    uint64_t seed;
    dg_compute compute;
    bool resume, fresh, every_round, obey_stop, no_machine, no_plots;
} bench_options;

/* Reads argv; false after a message for what is wrong (exit status 2). --help prints and exits. */
bool bench_options_read(int argc, char **argv, bench_options *o);

#endif
