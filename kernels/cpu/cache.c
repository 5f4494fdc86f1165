/* The layout of K and V caches, and the ops that write, move and read their rows; attention reads them in
 * blocks.
 *
 * A cache is a line of blocks of DG_KV_BLOCK rows, a block a line of heads. A head of V has row after row, so
 * that what it reads is in sequence. A head of K has its rows sixteen by sixteen, and of those column after
 * column: a score takes whole vectors of keys, and a new row touches few cache lines. */
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/quant.h"

typedef struct cache_job {
    dg_cpu *cpu;
    dg_mat cache[2], src[2]; /* K, V; src: what is put */
    int32_t row, n, head_dim;
} cache_job;

/* Where a head's part of the block of `row` begins, in elements. */
static size_t head_at(dg_mat m, int32_t row, int32_t head, int32_t head_dim) {
    return (size_t)(row / DG_KV_BLOCK) * DG_KV_BLOCK * (size_t)m.cols +
           (size_t)head * DG_KV_BLOCK * (size_t)head_dim;
}

/* Where column 0 of the head's row lies: of K, whose next column is DG_LANES further, and of V. */
static size_t key_at(dg_mat m, int32_t row, int32_t head, int32_t head_dim) {
    const int32_t in_block = row % DG_KV_BLOCK;
    return head_at(m, row, head, head_dim) +
           (size_t)(in_block / DG_LANES * DG_LANES * head_dim + in_block % DG_LANES);
}
static size_t value_at(dg_mat m, int32_t row, int32_t head, int32_t head_dim) {
    return head_at(m, row, head, head_dim) + (size_t)(row % DG_KV_BLOCK * head_dim);
}

enum { STEP = 64 }; /* elements rounded at a time */

static void round_to(const dg_isa *isa, dg_dtype dtype, uint16_t *dst, const float *x, int32_t n) {
    (dtype == DG_F16 ? isa->to_f16 : isa->to_bf16)(dst, x, n);
}

static void put_key(const dg_isa *isa, dg_mat m, size_t at, const float *x, int32_t n) {
    if (m.dtype == DG_F32) {
        float *to = (float *)m.data + at;
        for (int32_t c = 0; c < n; c++) to[c * DG_LANES] = x[c];
        return;
    }
    uint16_t half[STEP], *to = (uint16_t *)m.data + at;
    for (int32_t c = 0; c < n; c += STEP) {
        const int32_t len = n - c < STEP ? n - c : STEP;
        round_to(isa, m.dtype, half, x + c, len);
        for (int32_t i = 0; i < len; i++) to[(c + i) * DG_LANES] = half[i];
    }
}

static void put_value(const dg_isa *isa, dg_mat m, size_t at, const float *x, int32_t n) {
    if (m.dtype == DG_F32)
        memcpy((float *)m.data + at, x, sizeof *x * (size_t)n);
    else
        round_to(isa, m.dtype, (uint16_t *)m.data + at, x, n);
}

static void put_part(void *arg, int32_t worker, int32_t chunk, int32_t n_chunk) {
    (void)worker;
    const cache_job *job = arg;
    const dg_isa *isa = job->cpu->isa;
    const dg_mat k = job->cache[0], v = job->cache[1];
    const int32_t hd = job->head_dim;
    int32_t begin, end;
    dg_split(k.cols / hd, 1, chunk, n_chunk, &begin, &end);
    for (int32_t r = 0; r < job->n; r++)
        for (int32_t h = begin; h < end; h++) {
            put_key(isa, k, key_at(k, job->row + r, h, hd),
                    (const float *)dg_mat_row(&job->src[0], r) + h * hd, hd);
            put_value(isa, v, value_at(v, job->row + r, h, hd),
                      (const float *)dg_mat_row(&job->src[1], r) + h * hd, hd);
        }
}

void dg_cpu_kv_put(dg_cpu *cpu, dg_mat ck, dg_mat cv, int32_t row0, dg_mat k, dg_mat v, int32_t head_dim) {
    cache_job job = {.cpu = cpu,
                     .cache = {ck, cv},
                     .src = {k, v},
                     .row = row0,
                     .n = k.rows,
                     .head_dim = head_dim};
    dg_cpu_run(job.cpu, (int64_t)k.rows * k.cols, put_part, &job);
}

static void move_key(dg_mat m, size_t to, size_t from, int32_t n) {
    if (m.dtype == DG_F32)
        for (int32_t c = 0; c < n * DG_LANES; c += DG_LANES)
            ((float *)m.data + to)[c] = ((float *)m.data + from)[c];
    else
        for (int32_t c = 0; c < n * DG_LANES; c += DG_LANES)
            ((uint16_t *)m.data + to)[c] = ((uint16_t *)m.data + from)[c];
}

typedef struct move_job {
    const dg_mat *ck, *cv;
    const int32_t *idx;
    int32_t n_layer, row, n, head_dim;
} move_job;

static void move_part(void *arg, int32_t worker, int32_t chunk, int32_t n_chunk) {
    (void)worker;
    const move_job *job = arg;
    const int32_t hd = job->head_dim, n_head = job->ck->cols / hd;
    const size_t width = dg_dtype_bytes(job->ck->dtype, 1);
    int32_t at, end;
    for (dg_split(job->n_layer * n_head, 1, chunk, n_chunk, &at, &end); at < end; at++) {
        const dg_mat k = job->ck[at / n_head], v = job->cv[at / n_head];
        const int32_t h = at % n_head;
        for (int32_t i = 0; i < job->n; i++) {
            const int32_t to = job->row + i, from = job->row + job->idx[i];
            if (to == from) continue;
            move_key(k, key_at(k, to, h, hd), key_at(k, from, h, hd), hd);
            memcpy((char *)v.data + value_at(v, to, h, hd) * width,
                   (char *)v.data + value_at(v, from, h, hd) * width, (size_t)hd * width);
        }
    }
}

void dg_cpu_kv_move(dg_backend *be, const dg_mat *ck, const dg_mat *cv, int32_t n_layer, int32_t row0, const int32_t *idx,
                    int32_t n, int32_t head_dim) {
    move_job job = {.ck = ck, .cv = cv, .idx = idx, .n_layer = n_layer, .row = row0, .n = n, .head_dim = head_dim};
    if (n_layer) dg_cpu_run(dg_cpu_of(be), (int64_t)n_layer * n * ck->cols, move_part, &job);
}

void dg_cpu_kv_get(dg_backend *be, dg_mat k, dg_mat v, dg_mat ck, dg_mat cv, int32_t row0, int32_t head_dim) {
    (void)be;
    const size_t width = dg_dtype_bytes(ck.dtype, 1);
    for (int32_t r = 0; r < k.rows; r++)
        for (int32_t c = 0; c < k.cols; c++) {
            const int32_t h = c / head_dim, d = c % head_dim;
            const size_t key = key_at(ck, row0 + r, h, head_dim) + (size_t)(d * DG_LANES),
                         value = value_at(cv, row0 + r, h, head_dim) + (size_t)d;
            dg_dequant_row(ck.dtype, (char *)ck.data + key * width, (float *)dg_mat_row(&k, r) + c, 1);
            dg_dequant_row(cv.dtype, (char *)cv.data + value * width, (float *)dg_mat_row(&v, r) + c, 1);
        }
}
