/* Ops that treat every element or row alike: norm, rotation, activation. */
#include <math.h>

#include "kernels/cpu/cpu.h"

typedef struct rows_job {
    dg_cpu *cpu;
    dg_mat out, x, y; /* y: w or up */
    float eps;
} rows_job;

static void rms_norm_part(void *arg, int32_t worker, int32_t chunk, int32_t n_chunk) {
    (void)worker;
    const rows_job *job = arg;
    int32_t r, end;
    for (dg_split(job->x.rows, 1, chunk, n_chunk, &r, &end); r < end; r++)
        job->cpu->isa->rms_norm(dg_mat_row(&job->out, r), dg_mat_row(&job->x, r), job->y.data, job->y.dtype,
                                job->x.cols, job->eps);
}

void dg_cpu_rms_norm(dg_backend *be, dg_mat out, dg_mat x, dg_mat w, float eps) {
    rows_job job = {.cpu = dg_cpu_of(be), .out = out, .x = x, .y = w, .eps = eps};
    dg_cpu_run(job.cpu, (int64_t)x.rows * x.cols / 4, rms_norm_part, &job);
}

void dg_cpu_rope_table(dg_backend *be, dg_mat table, const int32_t *pos, const float *freq, float mscale) {
    (void)be;
    const int32_t half = table.cols / 2;
    for (int32_t r = 0; r < table.rows; r++) {
        float *row = dg_mat_row(&table, r);
        for (int32_t j = 0; j < half; j++) {
            const float angle = (float)pos[r] * freq[j];
            row[j] = cosf(angle) * mscale;
            row[j + half] = sinf(angle) * mscale;
        }
    }
}

typedef struct heads_job {
    dg_cpu *cpu;
    const dg_qkv *r;
    int32_t n_head[2]; /* of q and k */
} heads_job;

/* Heads are the things that are shared out: of each row those of q, then those of k. */
static void heads_part(void *arg, int32_t worker, int32_t chunk, int32_t n_chunk) {
    (void)worker;
    const heads_job *job = arg;
    const dg_isa *isa = job->cpu->isa;
    const dg_qkv *r = job->r;
    const int32_t hd = r->head_dim, in_row = job->n_head[0] + job->n_head[1];
    int32_t at, end;
    for (dg_split(r->k.rows * in_row, 1, chunk, n_chunk, &at, &end); at < end; at++) {
        const int32_t row = at / in_row, of_k = at % in_row >= job->n_head[0], head = at % in_row - of_k * job->n_head[0];
        const dg_mat m = of_k ? r->k : r->q, w = of_k ? r->k_norm : r->q_norm;
        float *x = (float *)dg_mat_row(&m, row) + (size_t)head * (size_t)hd;
        if (w.data) isa->rms_norm(x, x, w.data, w.dtype, hd, r->eps);
        if (!r->rope.data) continue;
        const float *cos = dg_mat_row(&r->rope, row), *sin = cos + hd / 2;
        (r->interleaved ? isa->rope_pairs : isa->rope_halves)(x, cos, sin, hd / 2);
    }
}

void dg_cpu_qkv(dg_backend *be, const dg_qkv *r, const dg_attn_seg *seg, int32_t n_seg) {
    const int32_t hd = r->head_dim, n_q = r->q.data ? r->q.cols / hd : 0, n_k = r->k.cols / hd;
    heads_job job = {.cpu = dg_cpu_of(be), .r = r, .n_head = {n_q, n_k}};
    const int norms = (r->q_norm.data ? n_q : 0) + (r->k_norm.data ? n_k : 0), turns = r->rope.data ? n_q + n_k : 0;
    if (norms + turns) dg_cpu_run(job.cpu, (int64_t)r->k.rows * hd * (norms + turns) / 4, heads_part, &job);
    for (int32_t i = 0; i < n_seg; i++) {
        const dg_attn_seg s = dg_seg_now(seg[i]);
        dg_cpu_kv_put(job.cpu, s.k, s.v, s.len + s.win - s.n, dg_mat_rows(r->k, s.row0, s.n), dg_mat_rows(r->v, s.row0, s.n), hd);
    }
}

static void swiglu_part(void *arg, int32_t worker, int32_t chunk, int32_t n_chunk) {
    (void)worker;
    const rows_job *job = arg;
    int32_t r, end;
    for (dg_split(job->x.rows, 1, chunk, n_chunk, &r, &end); r < end; r++)
        job->cpu->isa->swiglu(dg_mat_row(&job->out, r), dg_mat_row(&job->x, r), dg_mat_row(&job->y, r),
                              job->x.cols);
}

void dg_cpu_swiglu(dg_backend *be, dg_mat out, dg_mat gate, dg_mat up) {
    rows_job job = {.cpu = dg_cpu_of(be), .out = out, .x = gate, .y = up};
    dg_cpu_run(job.cpu, (int64_t)gate.rows * gate.cols * 2, swiglu_part, &job);
}
