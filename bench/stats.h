/* The statistics of the benchmark: quantiles, the geometric mean with its bootstrap interval, the trimmed
 * mean with Yuen's interval. Knows numbers only. Everything is deterministic: the same values give the same
 * intervals. */
#ifndef DG_BENCH_STATS_H
#define DG_BENCH_STATS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct stat_interval {
    double lo, hi;
} stat_interval;

/* Quantile q in [0, 1] of v [n], interpolated between neighbours; v is left as it was. NAN if n is 0. */
double stat_quantile(const double *v, int n, double q);

/* Of positive values; NAN if n is 0. */
double stat_geomean(const double *v, int n);

/* Percentile interval of the geometric mean of positive v [n] from 2,000 resamples with a generator seeded
 * with `seed`; NAN if n < 3. level: 0.95 for 95 %. */
stat_interval stat_bootstrap(const double *v, int n, double level, uint64_t seed);

/* The value below which Student's t with df degrees of freedom lies with probability p, 0 < p < 1. */
double stat_t_quantile(double p, double df);

/* 20 % trimmed mean of v [n] and its interval (K. K. Yuen, 1974): single disturbed runs do not widen it as
 * they would that of the mean. Below five values nothing is trimmed, and it is Student's. False if n < 2: no
 * interval. */
bool stat_trimmed_mean(const double *v, int n, double level, double *mean, stat_interval *interval);

#endif
