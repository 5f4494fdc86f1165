/* Clock, series, random matrices; see measure.h. */
#include "bench/measure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/quant.h"

double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void die(const char *what, const char *why) {
    fprintf(stderr, "bench_ops: %s: %s\n", what, why);
    exit(1);
}

void series_add(series *s, double v) {
    if (s->n < MAX_ROUNDS) s->v[s->n++] = v;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double series_at(const series *s, double q) {
    if (!s->n) return 0;
    double v[MAX_ROUNDS];
    memcpy(v, s->v, sizeof v);
    qsort(v, (size_t)s->n, sizeof *v, by_value);
    const double at = q * (s->n - 1);
    const int lo = (int)at, hi = lo + 1 < s->n ? lo + 1 : lo;
    return v[lo] + (at - lo) * (v[hi] - v[lo]);
}

dg_mat mat_room(dg_dtype dtype, int32_t rows, int32_t cols) {
    const size_t bytes = dg_dtype_bytes(dtype, (size_t)rows * (size_t)cols);
    const dg_mat m = dg_mat_make(aligned_alloc(64, (bytes + 63) / 64 * 64), dtype, rows, cols);
    if (!m.data) die("matrices", "no memory");
    return m;
}

dg_mat mat_random(dg_dtype dtype, int32_t rows, int32_t cols, float scale) {
    static uint32_t x = 7;
    const dg_mat m = mat_room(dtype, rows, cols);
    const bool encoder = dg_dtype_get(dtype)->block_len == 1 || dtype == DG_Q8_0;
    if (!encoder) {
        const size_t bytes = dg_dtype_bytes(dtype, (size_t)rows * (size_t)cols);
        for (size_t i = 0; i < bytes; i++)
            ((uint8_t *)m.data)[i] = (uint8_t)((x = x * 1664525 + 1013904223) >> 26);
        return m;
    }
    float *row = malloc((size_t)cols * sizeof *row);
    if (!row) die("matrices", "no memory");
    for (int32_t r = 0; r < rows; r++) {
        for (int32_t c = 0; c < cols; c++)
            row[c] = scale * (float)(int32_t)(x = x * 1664525 + 1013904223) / 2147483648.0f;
        dg_quant_row(dtype, row, dg_mat_row(&m, r), (size_t)cols);
    }
    free(row);
    return m;
}
