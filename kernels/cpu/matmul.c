/* The matmul op: shares outputs over the team. The products are in loops_matmul.h, those by packed weights in
 * loops_packed.h. */
#include "kernels/cpu/cpu.h"

#include "kernels/quant.h"

/* ---- weights as they are in the file ---- */

typedef struct matmul_job {
    dg_cpu *cpu;
    dg_mat x;
    const dg_product *product;
    int32_t n, rows; /* rows: of the weights of all products */
    bool add;
} matmul_job;

/* Outputs are numbered through all products. */
static void matmul_part(void *arg, int32_t worker, int32_t chunk, int32_t n_chunk) {
    const matmul_job *job = arg;
    const dg_cpu_scratch *scratch = &job->cpu->scratch[worker];
    const int32_t grain = job->rows >= 32 * n_chunk ? DG_PANEL_OUTS : job->rows >= 4 * n_chunk ? 4 : 1;
    int32_t m0, m1, base = 0; /* whole panels, or whole tiles where that is too coarse */
    dg_split(job->rows, grain, chunk, n_chunk, &m0, &m1);
    for (int32_t i = 0; i < job->n; base += job->product[i++].w.rows) {
        const dg_product *p = &job->product[i];
        const int32_t from = m0 > base ? m0 - base : 0, to = m1 - base < p->w.rows ? m1 - base : p->w.rows;
        const dg_matmul_args args = {p->out, job->x, p->w, p->bias, job->add};
        if (from < to) job->cpu->isa->matmul(&args, from, to, scratch->panel, scratch->sums);
    }
}

static void matmul_plain(dg_cpu *cpu, dg_mat x, const dg_product *product, int32_t n, bool add) {
    matmul_job job = {cpu, x, product, n, 0, add};
    for (int32_t i = 0; i < n; i++) job.rows += product[i].w.rows;
    if (job.rows) dg_cpu_run(cpu, (int64_t)job.rows * x.cols / DG_LANES * (2 + x.rows), matmul_part, &job);
}

/* ---- packed weights ---- */

static int digits_of(const dg_cpu *cpu, dg_mat w) { return cpu->precision == DG_PRECISION_INT8 || w.coarse ? 1 : 2; }

size_t dg_cpu_pack_bytes(dg_backend *be, dg_mat w, dg_dtype as) {
    const dg_cpu *cpu = dg_cpu_of(be);
    if (cpu->precision == DG_PRECISION_F32 || !dg_pack_has(as)) return 0;
    if (w.cols > cpu->max_cols || w.cols % dg_dtype_get(as)->block_len) return 0;
    const size_t panels = ((size_t)w.rows + DG_PACK_OUTS - 1) / DG_PACK_OUTS;
    return panels * DG_PACK_OUTS * dg_dtype_bytes(as, (size_t)w.cols);
}

typedef struct pack_job {
    dg_mat w;
    dg_dtype as;
    void *dst;
} pack_job;

static int32_t n_panel(dg_mat w) { return (w.rows + DG_PACK_OUTS - 1) / DG_PACK_OUTS; }

static void pack_part(void *arg, int32_t worker, int32_t chunk, int32_t n_chunk) {
    (void)worker;
    const pack_job *job = arg;
    int32_t p0, p1;
    dg_split(n_panel(job->w), 1, chunk, n_chunk, &p0, &p1);
    dg_pack_panels(job->w, job->as, job->dst, p0, p1);
}

dg_mat dg_cpu_pack(dg_backend *be, void *dst, dg_mat w, dg_dtype as) {
    if (!dg_cpu_pack_bytes(be, w, as)) return w;
    pack_job job = {w, as, dst};
    dg_cpu_run(dg_cpu_of(be), (int64_t)w.rows * w.cols, pack_part, &job);
    dg_mat packed = dg_mat_make(dst, as, w.rows, w.cols);
    packed.packed = true;
    return packed;
}

/* Up to so many rows, meeting the other workers once more takes longer than to fix them all. */
enum { OWN_ROWS = 8 };

typedef struct packed_job {
    dg_cpu *cpu;
    dg_mat x; /* the rows of this pass, from row0 on */
    int32_t row0;
    const dg_product *product;
    int32_t n, panels;
    int digits;
    bool add;
    int64_t own; /* 0: x is in fixed point for all; else every worker makes it for itself, once in the job of this number */
} packed_job;

/* Columns of all rows of x, from block b0 to b1, in fixed point. */
static void fix_blocks(const packed_job *job, int32_t b0, int32_t b1, dg_act_block *act) {
    const int32_t blocks = job->x.cols / DG_BLOCK;
    for (int32_t r = 0; r < job->x.rows && b0 < b1; r++)
        job->cpu->isa->fix_row((const float *)job->x.data + r * job->x.stride + b0 * DG_BLOCK, b1 - b0, job->digits,
                               r % DG_ROW_TILE, act + r / DG_ROW_TILE * blocks + b0);
}

static void fix_part(void *arg, int32_t worker, int32_t chunk, int32_t n_chunk) {
    (void)worker;
    const packed_job *job = arg;
    int32_t b0, b1; /* columns, not rows: 16 rows of a block share cache lines */
    dg_split(job->x.cols / DG_BLOCK, 1, chunk, n_chunk, &b0, &b1);
    fix_blocks(job, b0, b1, job->cpu->act);
}

/* x as the worker is to read it. */
static const dg_act_block *fixed_rows(const packed_job *job, int32_t worker) {
    if (!job->own) return job->cpu->act;
    dg_cpu_scratch *scratch = &job->cpu->scratch[worker];
    if (scratch->act_job != job->own) fix_blocks(job, 0, job->x.cols / DG_BLOCK, scratch->act);
    scratch->act_job = job->own;
    return scratch->act;
}

/* Panels are numbered through all products. */
static void packed_part(void *arg, int32_t worker, int32_t chunk, int32_t n_chunk) {
    const packed_job *job = arg;
    const dg_cpu_scratch *scratch = &job->cpu->scratch[worker];
    const dg_act_block *x = fixed_rows(job, worker);
    int32_t p0, p1, base = 0;
    dg_split(job->panels, 1, chunk, n_chunk, &p0, &p1);
    for (int32_t i = 0; i < job->n; i++) {
        const dg_product *p = &job->product[i];
        const int32_t panels = n_panel(p->w), from = p0 > base ? p0 - base : 0;
        const int32_t to = p1 - base < panels ? p1 - base : panels;
        const dg_packed_args args = {x, dg_mat_rows(p->out, job->row0, job->x.rows), p->w, p->bias, job->add,
                                     job->digits};
        if (from < to)
            job->cpu->isa->matmul_packed(&args, from, to, scratch->strip, (float(*)[DG_PACK_OUTS])scratch->sums);
        base += panels;
    }
}

static void matmul_packed(dg_cpu *cpu, dg_mat x, const dg_product *product, int32_t n, bool add) {
    packed_job job = {.cpu = cpu, .product = product, .n = n, .digits = digits_of(cpu, product->w), .add = add};
    for (int32_t i = 0; i < n; i++) job.panels += n_panel(product[i].w);
    pthread_mutex_lock(&cpu->lock);
    for (job.row0 = 0; job.row0 < x.rows; job.row0 += DG_PASS_ROWS) {
        const int32_t rows = x.rows - job.row0 < DG_PASS_ROWS ? x.rows - job.row0 : DG_PASS_ROWS;
        const int64_t blocks = x.cols / DG_BLOCK;
        job.x = dg_mat_rows(x, job.row0, rows);
        job.own = rows <= OWN_ROWS ? ++cpu->act_job : 0;
        if (!job.own) dg_cpu_run_locked(cpu, blocks * rows * 32, fix_part, &job);
        dg_cpu_run_locked(cpu, blocks * job.panels * (16 + 20 * rows), packed_part, &job);
    }
    pthread_mutex_unlock(&cpu->lock);
}

void dg_cpu_matmul(dg_backend *be, dg_mat x, const dg_product *product, int32_t n, bool add) {
    if (x.rows == 0) return;
    for (int32_t i = 0, together; i < n; i += together) {
        const dg_mat first = product[i].w;
        for (together = 1; i + together < n; together++) {
            const dg_mat w = product[i + together].w;
            if (w.packed != first.packed || w.coarse != first.coarse) break;
        }
        (first.packed ? matmul_packed : matmul_plain)(dg_cpu_of(be), x, product + i, together, add);
    }
}
