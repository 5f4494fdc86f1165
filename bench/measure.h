/* What the benchmarks share: a clock, series of timings and their spread, numbers to fill matrices with.
 * Single times are never reported: a series holds one time a round, rounds are interleaved over what is
 * compared. */
#ifndef DG_BENCH_MEASURE_H
#define DG_BENCH_MEASURE_H

#include "kernels/tensor.h"

enum { MAX_ROUNDS = 64 };

typedef struct series {
    double v[MAX_ROUNDS];
    int n;
} series;

double now(void); /* seconds, monotonic */

void series_add(series *s, double v); /* dropped when full */

/* Quantile q in [0, 1], interpolated; 0 of an empty series. */
double series_at(const series *s, double q);
static inline double series_median(const series *s) {
    return series_at(s, 0.5);
}

/* A matrix of pseudo-random values in [-scale, scale], quantised where the type has an encoder; of Q4_0, Q4_1, Q4_K and Q6_K
 * random blocks. Other block formats are not made. Free with free(m.data). Exits without memory. */
dg_mat mat_random(dg_dtype dtype, int32_t rows, int32_t cols, float scale);

/* Room for a matrix, 64-byte aligned, not filled. */
dg_mat mat_room(dg_dtype dtype, int32_t rows, int32_t cols);

/* "what: why" on standard error, exit status 1. */
_Noreturn void die(const char *what, const char *why);

#endif
