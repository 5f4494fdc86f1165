/* The parts of bench_ops: single operations (ops.c), whole passes of a model (steps.c), the device (device.c), the machine's
 * roofs (peaks.c), models of random weights (shape.c). */
#ifndef DG_BENCH_OPS_H
#define DG_BENCH_OPS_H

#include <stdio.h>

#include "bench/peaks.h"
#include "bench/shape.h"
#include "kernels/ops.h"

enum { MAX_MODELS = 4 };

typedef struct settings {
    const char *model;               /* NULL: no whole passes */
    const char *shape;               /* name of a synthetic model, NULL: none; then: */
    dg_config net;
    dg_dtype type;
    const char *type_name; /* as it was given, NULL: not */
    const char *keep;   /* where its file stays, NULL: nowhere */
    const char *device; /* "cpu", "cuda", "cuda:N", "auto" */
    double bandwidth;   /* bytes/s of a copy, to be believed; 0: measured */
    bool inexact;       /* see dg_model_options */
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

/* Matmul, attention and the rest, on the shapes of SmolLM2-135M and of a model of 1.7 billion weights, or of --shape. */
void bench_ops(const settings *set);

/* Passes of a model over 1 to 256 rows, prefill, loading, one proposal of each drafter. */
void bench_steps(const settings *set);

/* The figures that llama-bench gives, for peers.sh: CSV on standard output. */
void bench_peer(const settings *set);

#endif
