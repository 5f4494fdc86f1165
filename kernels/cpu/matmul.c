/* The matmul op: shares outputs over the team. The products are in loops_matmul.h. */
#include "kernels/cpu/cpu.h"

typedef struct matmul_job {
    dg_cpu *cpu;
    dg_matmul_args args;
} matmul_job;

static void matmul_part(void *arg, int32_t worker, int32_t chunk, int32_t n_chunk) {
    const matmul_job *job = arg;
    const dg_cpu_scratch *scratch = &job->cpu->scratch[worker];
    int32_t m0, m1;
    const int32_t rows = job->args.w.rows; /* whole panels, or whole tiles where that is too coarse */
    dg_split(rows,
             rows >= 32 * n_chunk  ? DG_PANEL_OUTS
             : rows >= 4 * n_chunk ? 4
                                   : 1,
             chunk, n_chunk, &m0, &m1);
    if (m0 < m1) job->cpu->isa->matmul(&job->args, m0, m1, scratch->panel, scratch->sums);
}

void dg_cpu_matmul(dg_backend *be, dg_mat out, dg_mat x, dg_mat w, dg_mat bias, bool add) {
    if (x.rows == 0 || w.rows == 0) return;
    matmul_job job = {dg_cpu_of(be), {out, x, w, bias, add}};
    const int64_t work = (int64_t)w.rows * w.cols / DG_LANES * (2 + x.rows);
    dg_cpu_run(job.cpu, work, matmul_part, &job);
}
