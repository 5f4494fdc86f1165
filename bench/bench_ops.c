/* Time of the ops on the shapes of a real model: every matmul of a decoding step as one pass over weights
 * that do not fit the caches, then attention and sampling.
 * usage: bench_ops [threads [isa]]; medians of several passes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/ops.h"
#include "kernels/quant.h"

enum { MAX_ROWS = 256, PASSES = 7, VOCAB = 49152 };

typedef struct weights {
    const char *name;
    int32_t m, k, count;
    dg_dtype dtype;
} weights;

/* SmolLM2-135M, as its Q4_1 file stores it */
static const weights model[] = {
    {"q, o", 576, 576, 60, DG_Q4_1},  {"k, v", 192, 576, 60, DG_Q4_1},  {"gate, up", 1536, 576, 60, DG_Q4_1},
    {"down", 576, 1536, 30, DG_Q4_1}, {"head", VOCAB, 576, 1, DG_Q8_0},
};
enum { N_MODEL = sizeof model / sizeof *model };

static const weights types[] = {
    {"f32", 4096, 1024, 4, DG_F32},   {"f16", 4096, 1024, 4, DG_F16},       {"bf16", 4096, 1024, 4, DG_BF16},
    {"q8_0", 4096, 1024, 4, DG_Q8_0}, {"q4_0", 4096, 1024, 4, DG_Q4_0},     {"q4_1", 4096, 1024, 4, DG_Q4_1},
    {"q4_k", 4096, 1024, 4, DG_Q4_K}, {"q5_k", 4096, 1024, 4, DG_Q5_K},     {"q6_k", 4096, 1024, 4, DG_Q6_K},
    {"q5_0", 4096, 1024, 4, DG_Q5_0}, {"iq4_xs", 4096, 1024, 4, DG_IQ4_XS},
};
enum { N_TYPE = sizeof types / sizeof *types };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *v, int n) {
    qsort(v, (size_t)n, sizeof *v, by_value);
    return v[n / 2];
}

static dg_mat room(dg_dtype dtype, int32_t rows, int32_t cols) {
    const size_t bytes = dg_dtype_bytes(dtype, (size_t)rows * (size_t)cols);
    dg_mat m = dg_mat_make(aligned_alloc(64, (bytes + 63) / 64 * 64), dtype, rows, cols);
    if (!m.data) exit(1);
    return m;
}

static dg_mat numbers(int32_t rows, int32_t cols, float scale) {
    static uint32_t x = 7;
    dg_mat m = room(DG_F32, rows, cols);
    for (size_t i = 0; i < (size_t)rows * (size_t)cols; i++)
        ((float *)m.data)[i] = scale * (float)(int32_t)(x = x * 1664525 + 1013904223) / 2147483648.0f;
    return m;
}

/* Random numbers, or random bytes below 64: small scales, no infinities. */
static dg_mat fill(dg_dtype dtype, int32_t rows, int32_t cols) {
    static uint32_t x = 1;
    dg_mat m = room(dtype, rows, cols);
    if (dg_dtype_get(dtype)->block_len == 1) {
        dg_mat f = numbers(rows, cols, 1);
        dg_quant_row(dtype, f.data, m.data, (size_t)rows * (size_t)cols);
        free(f.data);
        return m;
    }
    const size_t bytes = dg_dtype_bytes(dtype, (size_t)rows * (size_t)cols);
    for (size_t i = 0; i < bytes; i++)
        ((uint8_t *)m.data)[i] = (uint8_t)((x = x * 1664525 + 1013904223) >> 26);
    return m;
}

static void bench_weights(dg_backend *be, const weights *list, int n_list, bool sum) {
    static const int32_t n_row[] = {1, 4, 8, 16, 64, 256};
    int32_t widest = 0, longest = 0;
    dg_mat *w[16];
    for (int i = 0; i < n_list; i++) {
        w[i] = malloc(sizeof(dg_mat) * (size_t)list[i].count);
        for (int c = 0; c < list[i].count; c++) w[i][c] = fill(list[i].dtype, list[i].m, list[i].k);
        if (list[i].m > widest) widest = list[i].m;
        if (list[i].k > longest) longest = list[i].k;
    }
    dg_mat x = numbers(MAX_ROWS, longest, 1), out = numbers(MAX_ROWS, widest, 0);
    printf("%-10s %5s %11s %10s %8s %8s\n", "weights", "rows", "us/matmul", "ms/step", "GB/s", "GFLOP/s");
    for (size_t r = 0; r < sizeof n_row / sizeof *n_row; r++) {
        const int32_t n = n_row[r];
        double time[16][PASSES], total[PASSES];
        for (int pass = 0; pass < PASSES; pass++) {
            total[pass] = 0;
            for (int i = 0; i < n_list; i++) {
                dg_mat xi = dg_mat_make(x.data, DG_F32, n, list[i].k),
                       oi = dg_mat_make(out.data, DG_F32, n, list[i].m);
                const double start = now();
                for (int c = 0; c < list[i].count; c++)
                    dg_matmul(be, oi, xi, w[i][c], (dg_mat){0}, false);
                total[pass] += time[i][pass] = now() - start;
            }
        }
        for (int i = 0; i < n_list; i++) {
            const double t = median(time[i], PASSES),
                         elements = (double)list[i].m * list[i].k * list[i].count;
            const double bytes =
                (double)dg_dtype_bytes(list[i].dtype, (size_t)list[i].m * (size_t)list[i].k) * list[i].count;
            printf("%-10s %5d %11.1f %10.3f %8.1f %8.1f\n", list[i].name, n, 1e6 * t / list[i].count, 1e3 * t,
                   1e-9 * bytes / t, 2e-9 * elements * n / t);
        }
        if (sum) printf("%-10s %5d %11s %10.3f\n", "all", n, "", 1e3 * median(total, PASSES));
    }
    for (int i = 0; i < n_list; i++) {
        for (int c = 0; c < list[i].count; c++) free(w[i][c].data);
        free(w[i]);
    }
    free(x.data);
    free(out.data);
}

/* 30 layers of SmolLM2's attention, n new rows over `len` keys. */
static void bench_attention(dg_backend *be) {
    static const int32_t n_row[] = {1, 16, 256}, length[] = {256, 1024, 4096};
    const dg_attn_shape shape = {9, 3, 64, 0, 0.125f};
    dg_mat k = numbers(4096 + MAX_ROWS, 192, 1), v = numbers(4096 + MAX_ROWS, 192, 1);
    dg_mat q = numbers(MAX_ROWS, 576, 1), out = numbers(MAX_ROWS, 576, 0);
    int32_t pos[MAX_ROWS];
    printf("\n%-10s %5s %6s %11s %10s\n", "attention", "rows", "keys", "us/layer", "ms/step");
    for (size_t r = 0; r < 3; r++)
        for (size_t l = 0; l < 3; l++) {
            const int32_t n = n_row[r], len = length[l];
            for (int32_t i = 0; i < n; i++) pos[i] = len + i;
            const dg_attn_seg seg = {k, v, pos, NULL, len, n, 0, n, DG_MASK_CAUSAL};
            double time[PASSES];
            for (int pass = 0; pass < PASSES; pass++) {
                const double start = now();
                be->ops->attention(be, dg_mat_rows(out, 0, n), dg_mat_rows(q, 0, n), &seg, 1, &shape);
                time[pass] = now() - start;
            }
            const double t = median(time, PASSES);
            printf("%-10s %5d %6d %11.1f %10.3f\n", "", n, len, 1e6 * t, 30e3 * t);
        }
    free(k.data);
    free(v.data);
    free(q.data);
    free(out.data);
}

static void bench_select(dg_backend *be) {
    static const struct {
        const char *name;
        dg_sampling s;
    } setting[] = {{"greedy", {.temperature = 0}},
                   {"T 1", {.temperature = 1}},
                   {"top-k 40", {.temperature = 0.8f, .top_k = 40}},
                   {"top-p 0.95", {.temperature = 0.8f, .top_p = 0.95f}},
                   {"min-p 0.05", {.temperature = 0.8f, .min_p = 0.05f}}};
    enum { ROWS = 16 };
    dg_mat x = numbers(ROWS, VOCAB, 12);
    int32_t id[ROWS * 64], pos[ROWS] = {0};
    float logp[ROWS * 64];
    printf("\n%-10s %5s %11s\n", "select", "rows", "us/row");
    for (size_t i = 0; i <= sizeof setting / sizeof *setting; i++) {
        double time[PASSES];
        for (int pass = 0; pass < PASSES; pass++) {
            const double start = now();
            if (i < sizeof setting / sizeof *setting)
                be->ops->sample(be, id, logp, x, pos, &setting[i].s);
            else
                be->ops->top_k(be, id, logp, x, 64);
            time[pass] = now() - start;
        }
        printf("%-10s %5d %11.1f\n", i < sizeof setting / sizeof *setting ? setting[i].name : "top_k 64",
               ROWS, 1e6 * median(time, PASSES) / ROWS);
    }
    free(x.data);
}

int main(int argc, char **argv) {
    const dg_backend_options opt = {.threads = argc > 1 ? atoi(argv[1]) : 0,
                                    .isa = argc > 2 ? argv[2] : NULL,
                                    .max_vocab = VOCAB};
    const char *why = "";
    dg_backend *be = dg_backend_open("cpu", &opt, &why);
    if (!be) {
        fprintf(stderr, "bench_ops: %s\n", why);
        return 1;
    }
    printf("%s\n\nSmolLM2-135M Q4_1\n", dg_backend_describe(be));
    bench_weights(be, model, N_MODEL, true);
    printf("\nweight types, 4096 x 1024\n");
    bench_weights(be, types, N_TYPE, false);
    bench_attention(be);
    bench_select(be);
    dg_backend_close(be);
    return 0;
}
