/* The parts of bench_ops: single operations (ops.c), whole passes of a model (steps.c), the machine's roofs
 * (peaks.c). */
#ifndef DG_BENCH_OPS_H
#define DG_BENCH_OPS_H

#include <stdio.h>

#include "bench/peaks.h"
#include "kernels/ops.h"

enum { MAX_MODELS = 4 };

typedef struct settings {
    const char *model;               /* NULL: no whole passes */
    const char *drafter[MAX_MODELS]; /* DFlash drafters to be timed */
    int n_drafter, threads, rounds, context;
    const char *compute; /* "default", "f32", "int8" */
    const char *isa;     /* single operations only; NULL: the best */
    const char *only;    /* sections, NULL: all */
    const char *out;     /* folder of the CSV files, NULL: none */
} settings;

/* Is this section wanted? */
bool section(const settings *set, const char *name);

/* The instruction set in a backend's description ("cpu, avx512, 2 threads"); valid until the next call. */
const char *isa_of(const char *describe);

/* Operations a second that matmuls come to at most: by packed weights in the given compute mode, or in f32.
 * By default activations are two digits of 8 bits, each of which takes the int8 units once. */
double peak_of(const peaks *p, bool packed, const char *compute);

/* out/name opened for writing with its heading; NULL when no files are wanted. */
FILE *csv_open(const settings *set, const char *name, const char *heading);

/* Matmul, attention and the rest, on the shapes of SmolLM2-135M and of a model of 1.7 billion weights. */
void bench_ops(const settings *set);

/* Passes of a model over 1 to 256 rows, prefill, loading, one proposal of each drafter. */
void bench_steps(const settings *set);

/* The figures that llama-bench gives, for peers.sh: CSV on standard output. */
void bench_peer(const settings *set);

#endif
