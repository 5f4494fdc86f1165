/* The layout of K and V caches, and the ops that write, move and read their rows; attention reads them in blocks.
 *
 * A cache is a line of blocks of DG_KV_BLOCK rows. In a block of K each column's rows are side by side, so that a score
 * takes whole vectors of keys; in a block of V each head's rows are, so that what one head reads is in sequence. */
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/quant.h"

typedef struct cache_job {
    dg_cpu *cpu;
    dg_mat cache[2], src[2]; /* K, V; src: what is put */
    const int32_t *idx;
    int32_t row, n, head_dim;
} cache_job;

/* Columns at a time: caches are split between threads by columns, a multiple of vectors and cache lines. */
enum { COLS = 64 };

/* Where element (row, col) of K lies, in elements; the next row's is next to it within the block. */
static size_t key_at(dg_mat m, int32_t row, int32_t col) {
    return (size_t)(row / DG_KV_BLOCK) * DG_KV_BLOCK * (size_t)m.cols + (size_t)col * DG_KV_BLOCK +
           (size_t)(row % DG_KV_BLOCK);
}

/* Likewise of V; the next column of the same head is next to it. */
static size_t value_at(dg_mat m, int32_t row, int32_t col, int32_t head_dim) {
    return (size_t)(row / DG_KV_BLOCK) * DG_KV_BLOCK * (size_t)m.cols +
           (size_t)(col / head_dim) * DG_KV_BLOCK * (size_t)head_dim +
           (size_t)(row % DG_KV_BLOCK) * (size_t)head_dim + (size_t)(col % head_dim);
}

static void *element(dg_mat m, size_t at) { return (char *)m.data + at * dg_dtype_bytes(m.dtype, 1); }

/* n columns, at most COLS, of one row in the cache's type. */
static const void *rounded(const dg_isa *isa, dg_dtype dtype, const float *x, int32_t n, uint16_t half[COLS]) {
    if (dtype == DG_F32) return x;
    (dtype == DG_F16 ? isa->to_f16 : isa->to_bf16)(half, x, n);
    return half;
}

static void put_key(dg_mat m, int32_t row, int32_t c0, int32_t n, const void *x) {
    void *to = element(m, key_at(m, row, c0));
    for (int32_t c = 0; c < n; c++)
        if (m.dtype == DG_F32)
            ((float *)to)[(size_t)c * DG_KV_BLOCK] = ((const float *)x)[c];
        else
            ((uint16_t *)to)[(size_t)c * DG_KV_BLOCK] = ((const uint16_t *)x)[c];
}

static void put_value(dg_mat m, int32_t row, int32_t c0, int32_t n, int32_t head_dim, const void *x) {
    const size_t width = dg_dtype_bytes(m.dtype, 1);
    for (int32_t c = 0, len; c < n; c += len) { /* head by head */
        len = head_dim - (c0 + c) % head_dim;
        if (len > n - c) len = n - c;
        memcpy(element(m, value_at(m, row, c0 + c, head_dim)), (const char *)x + (size_t)c * width, (size_t)len * width);
    }
}

static void put_part(void *arg, int32_t worker, int32_t chunk, int32_t n_chunk) {
    (void)worker;
    const cache_job *job = arg;
    const dg_isa *isa = job->cpu->isa;
    int32_t begin, end;
    dg_split(job->cache[0].cols, COLS, chunk, n_chunk, &begin, &end);
    for (int32_t c = begin; c < end; c += COLS) {
        const int32_t n = end - c < COLS ? end - c : COLS;
        uint16_t half[COLS];
        for (int32_t r = 0; r < job->n; r++) {
            const float *k = (const float *)dg_mat_row(&job->src[0], r) + c;
            const float *v = (const float *)dg_mat_row(&job->src[1], r) + c;
            put_key(job->cache[0], job->row + r, c, n, rounded(isa, job->cache[0].dtype, k, n, half));
            put_value(job->cache[1], job->row + r, c, n, job->head_dim,
                      rounded(isa, job->cache[1].dtype, v, n, half));
        }
    }
}

void dg_cpu_kv_put(dg_backend *be, dg_mat ck, dg_mat cv, int32_t row0, dg_mat k, dg_mat v, int32_t head_dim) {
    cache_job job = {.cpu = dg_cpu_of(be), .cache = {ck, cv}, .src = {k, v}, .row = row0, .n = k.rows, .head_dim = head_dim};
    dg_cpu_run(job.cpu, (int64_t)k.rows * k.cols, put_part, &job);
}

static void move_part(void *arg, int32_t worker, int32_t chunk, int32_t n_chunk) {
    (void)worker;
    const cache_job *job = arg;
    const dg_mat k = job->cache[0], v = job->cache[1];
    const int32_t hd = job->head_dim;
    const size_t width = dg_dtype_bytes(k.dtype, 1);
    int32_t c, end;
    dg_split(k.cols, hd, chunk, n_chunk, &c, &end);
    for (; c < end; c += hd)
        for (int32_t i = 0; i < job->n; i++) {
            const int32_t to = job->row + i, from = job->row + job->idx[i];
            if (to == from) continue;
            memcpy(element(v, value_at(v, to, c, hd)), element(v, value_at(v, from, c, hd)), (size_t)hd * width);
            for (int32_t d = c; d < c + hd; d++)
                memcpy(element(k, key_at(k, to, d)), element(k, key_at(k, from, d)), width);
        }
}

void dg_cpu_kv_move(dg_backend *be, dg_mat ck, dg_mat cv, int32_t row0, const int32_t *idx, int32_t n,
                    int32_t head_dim) {
    cache_job job = {.cpu = dg_cpu_of(be), .cache = {ck, cv}, .idx = idx, .row = row0, .n = n, .head_dim = head_dim};
    dg_cpu_run(job.cpu, (int64_t)n * ck.cols, move_part, &job);
}

void dg_cpu_kv_get(dg_backend *be, dg_mat k, dg_mat v, dg_mat ck, dg_mat cv, int32_t row0, int32_t head_dim) {
    (void)be;
    for (int32_t r = 0; r < k.rows; r++)
        for (int32_t c = 0; c < k.cols; c++) {
            dg_dequant_row(ck.dtype, element(ck, key_at(ck, row0 + r, c)), (float *)dg_mat_row(&k, r) + c, 1);
            dg_dequant_row(cv.dtype, element(cv, value_at(cv, row0 + r, c, head_dim)), (float *)dg_mat_row(&v, r) + c, 1);
        }
}
