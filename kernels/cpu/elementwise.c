/* Ops that treat every element or row alike: norm, rotation, activation, sum. */
#include <math.h>

#include "kernels/cpu/cpu.h"

typedef struct rows_job {
    dg_cpu *cpu;
    dg_mat out, x, y; /* y: w, up or table */
    float eps;
    int32_t n_head;
    bool interleaved;
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

static void rope_part(void *arg, int32_t worker, int32_t chunk, int32_t n_chunk) {
    (void)worker;
    const rows_job *job = arg;
    const int32_t hd = job->y.cols;
    int32_t r, end;
    for (dg_split(job->x.rows, 1, chunk, n_chunk, &r, &end); r < end; r++) {
        float *x = dg_mat_row(&job->x, r);
        const float *cos = dg_mat_row(&job->y, r), *sin = cos + hd / 2;
        for (int32_t h = 0; h < job->n_head; h++)
            (job->interleaved ? job->cpu->isa->rope_pairs
                              : job->cpu->isa->rope_halves)(x + (size_t)h * (size_t)hd, cos, sin, hd / 2);
    }
}

void dg_cpu_rope(dg_backend *be, dg_mat x, dg_mat table, int32_t n_head, bool interleaved) {
    rows_job job = {.cpu = dg_cpu_of(be), .x = x, .y = table, .n_head = n_head, .interleaved = interleaved};
    dg_cpu_run(job.cpu, (int64_t)x.rows * x.cols / 4, rope_part, &job);
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

static void add_part(void *arg, int32_t worker, int32_t chunk, int32_t n_chunk) {
    (void)worker;
    const rows_job *job = arg;
    int32_t r, end;
    for (dg_split(job->x.rows, 1, chunk, n_chunk, &r, &end); r < end; r++)
        job->cpu->isa->add(dg_mat_row(&job->x, r), dg_mat_row(&job->y, r), job->x.cols);
}

void dg_cpu_add(dg_backend *be, dg_mat x, dg_mat y) {
    rows_job job = {.cpu = dg_cpu_of(be), .x = x, .y = y};
    dg_cpu_run(job.cpu, (int64_t)x.rows * x.cols / 8, add_part, &job);
}
