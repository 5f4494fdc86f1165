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

static uint32_t random_bits(void) {
    static uint32_t x = 7;
    return x = x * 1664525 + 1013904223;
}

/* Random bytes under factors (f16) that bring the weights into [-scale, scale] around 0. */
static void random_block(dg_dtype dtype, uint8_t *b, float scale) {
    const float d = dtype == DG_Q4_0   ? scale / 8      /* d * (0..15 - 8) */
                    : dtype == DG_Q4_1 ? scale / 7.5f   /* d * 0..15 + m */
                    : dtype == DG_Q4_K ? scale / 63 / 15 /* d * 0..63 * 0..15 - m * 0..63 */
                                       : scale / 128 / 32; /* d * -128..127 * (0..63 - 32) */
    const float m = dtype == DG_Q4_1 ? -scale : 7.5f * d;
    const uint16_t half[2] = {dg_f32_to_f16(d), dg_f32_to_f16(m)};
    for (int32_t i = 0; i < dg_dtype_get(dtype)->block_size; i++) b[i] = (uint8_t)(random_bits() >> 24);
    memcpy(b + (dtype == DG_Q6_K ? 208 : 0), half, dtype == DG_Q4_1 || dtype == DG_Q4_K ? 4 : 2);
}

dg_mat mat_random(dg_dtype dtype, int32_t rows, int32_t cols, float scale) {
    const dg_mat m = mat_room(dtype, rows, cols);
    const dg_dtype_info *info = dg_dtype_get(dtype);
    const bool encoder = info->block_len == 1 || dtype == DG_Q8_0;
    const size_t n_block = encoder ? 0 : (size_t)rows * (size_t)cols / (size_t)info->block_len;
    for (size_t i = 0; i < n_block; i++)
        random_block(dtype, (uint8_t *)m.data + i * (size_t)info->block_size, scale);
    float *row = encoder ? malloc((size_t)cols * sizeof *row) : NULL;
    if (encoder && !row) die("matrices", "no memory");
    for (int32_t r = 0; encoder && r < rows; r++) {
        for (int32_t c = 0; c < cols; c++) row[c] = scale * (float)(int32_t)random_bits() / 2147483648.0f;
        dg_quant_row(dtype, row, dg_mat_row(&m, r), (size_t)cols);
    }
    free(row);
    return m;
}
