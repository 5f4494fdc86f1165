/* See stats.h. */
#include "bench/stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { RESAMPLES = 2000 };
static const double TRIM = 0.2;

static int by_value(const void *x, const void *y) {
    const double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static double *sorted(const double *v, int n) {
    double *s = malloc((size_t)n * sizeof *s);
    if (!s) abort(); /* a few kilobytes */
    memcpy(s, v, (size_t)n * sizeof *s);
    qsort(s, (size_t)n, sizeof *s, by_value);
    return s;
}

static double at_quantile(const double *s, int n, double q) {
    const double at = q * (n - 1);
    const int lo = (int)at, hi = lo + 1 < n ? lo + 1 : lo;
    return s[lo] + (at - lo) * (s[hi] - s[lo]);
}

double stat_quantile(const double *v, int n, double q) {
    if (n < 1) return NAN;
    double *s = sorted(v, n);
    const double x = at_quantile(s, n, q);
    free(s);
    return x;
}

double stat_geomean(const double *v, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += log(v[i]);
    return n < 1 ? NAN : exp(sum / n);
}

/* ---- bootstrap -------------------------------------------------------------------------------- */

/* splitmix64 */
static uint64_t draw(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

stat_interval stat_bootstrap(const double *v, int n, double level, uint64_t seed) {
    if (n < 3) return (stat_interval){NAN, NAN};
    double *logs = malloc(((size_t)n + RESAMPLES) * sizeof *logs), *mean = logs + n;
    if (!logs) abort();
    for (int i = 0; i < n; i++) logs[i] = log(v[i]);
    for (int r = 0; r < RESAMPLES; r++) {
        double sum = 0;
        for (int i = 0; i < n; i++) sum += logs[draw(&seed) % (uint64_t)n];
        mean[r] = sum / n;
    }
    qsort(mean, RESAMPLES, sizeof *mean, by_value);
    const stat_interval out = {exp(at_quantile(mean, RESAMPLES, (1 - level) / 2)),
                               exp(at_quantile(mean, RESAMPLES, (1 + level) / 2))};
    free(logs);
    return out;
}

/* ---- Student ---------------------------------------------------------------------------------- */

/* Continued fraction of the incomplete beta function (modified Lentz); converges for x < (a + 1) / (a + b +
 * 2). */
static double beta_fraction(double a, double b, double x) {
    const double tiny = 1e-300;
    double c = 1, d = 1 - (a + b) * x / (a + 1);
    d = 1 / (fabs(d) < tiny ? tiny : d);
    double h = d;
    for (int m = 1; m < 500; m++) {
        for (int odd = 0; odd < 2; odd++) {
            const double k = odd ? -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
                                 : m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
            d = 1 + k * d, c = 1 + k / c;
            d = 1 / (fabs(d) < tiny ? tiny : d), c = fabs(c) < tiny ? tiny : c;
            h *= c * d;
        }
        if (fabs(c * d - 1) < 1e-14) break;
    }
    return h;
}

static double incomplete_beta(double a, double b, double x) {
    if (x <= 0) return 0;
    if (x >= 1) return 1;
    const double front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x));
    if (x < (a + 1) / (a + b + 2)) return front * beta_fraction(a, b, x) / a;
    return 1 - front * beta_fraction(b, a, 1 - x) / b;
}

/* Probability that |t| is above x. */
static double two_tails(double x, double df) {
    return incomplete_beta(df / 2, 0.5, df / (df + x * x));
}

double stat_t_quantile(double p, double df) {
    if (p == 0.5) return 0;
    const double tails = 2 * (p < 0.5 ? p : 1 - p);
    double lo = 0, hi = 1;
    while (two_tails(hi, df) > tails && hi < 1e12) hi *= 2;
    for (int i = 0; i < 200; i++) {
        const double mid = (lo + hi) / 2;
        if (two_tails(mid, df) > tails)
            lo = mid;
        else
            hi = mid;
    }
    return p < 0.5 ? -hi : hi;
}

bool stat_trimmed_mean(const double *v, int n, double level, double *mean, stat_interval *interval) {
    *mean = NAN, *interval = (stat_interval){NAN, NAN};
    if (n < 1) return false;
    double *s = sorted(v, n);
    const int cut = (int)floor(TRIM * n), kept = n - 2 * cut;
    double sum = 0, winsorized = 0, squares = 0;
    for (int i = cut; i < n - cut; i++) sum += s[i];
    *mean = sum / kept;
    for (int i = 0; i < n; i++) {
        s[i] = s[i < cut ? cut : i >= n - cut ? n - cut - 1 : i];
        winsorized += s[i] / n;
    }
    for (int i = 0; i < n; i++) squares += (s[i] - winsorized) * (s[i] - winsorized);
    free(s);
    if (n < 2) return false;
    const double error = sqrt(squares / ((double)kept * (kept - 1)));
    const double t = stat_t_quantile((1 + level) / 2, kept - 1);
    *interval = (stat_interval){*mean - t * error, *mean + t * error};
    return true;
}
