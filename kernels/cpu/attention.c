/* The attention op: lists the keys of each row and shares (row, head) pairs over the team. The sums are in
 * loops_attention.h. */
#include <assert.h>
#include <stdlib.h>

#include "kernels/cpu/cpu.h"

typedef struct attention_job {
    dg_cpu *cpu;
    dg_mat out, q;
    const dg_attn_seg *seg;
    int32_t n_seg;
    const dg_attn_shape *shape;
    int32_t n_row; /* of all segments */
} attention_job;

static bool near(int64_t pos_a, int64_t pos_b, int32_t window) {
    return window == 0 || llabs(pos_a - pos_b) < window;
}

/* What row i of the segment sees, in the order of ops.h. list: room for win entries. */
static dg_attn_keys keys_of(const dg_attn_seg *s, int32_t i, int32_t window, int32_t *list) {
    const int32_t self = s->win - s->n + i, pos = s->pos[self];
    dg_attn_keys keys = {.first = 0, .last = s->len, .list = list};
    if (window) { /* committed row r is at position r */
        const int64_t first = (int64_t)pos - window + 1, last = (int64_t)pos + window;
        if (first > 0) keys.first = first < s->len ? (int32_t)first : s->len;
        if (last < s->len) keys.last = last > keys.first ? (int32_t)last : keys.first;
    }
    const int32_t end = s->mask == DG_MASK_CAUSAL ? self + 1 : s->win;
    const uint64_t *bits = s->mask == DG_MASK_BITS ? s->bits + (size_t)i * DG_MASK_WORDS : NULL;
    for (int32_t j = 0; j < end; j++) {
        if (bits && !(bits[j / 64] >> (j % 64) & 1)) continue;
        if (near(pos, s->pos[j], window)) list[keys.n_list++] = s->len + j;
    }
    return keys;
}

/* Heads [h0, h1) of one row. */
static void attend_row(const attention_job *job, const dg_attn_seg *s, int32_t i, int32_t h0, int32_t h1,
                       const dg_cpu_scratch *scratch) {
    const dg_attn_shape *shape = job->shape;
    const int32_t hd = shape->head_dim, group = shape->n_head / shape->n_kv_head;
    const size_t width = dg_dtype_bytes(s->k.dtype, 1);
    dg_attn_args a = {
        .k_stride = (size_t)s->k.stride * width,
        .v_stride = (size_t)s->v.stride * width,
        .dtype = s->k.dtype,
        .head_dim = hd,
        .scale = shape->scale,
        .keys = keys_of(s, i, shape->window, scratch->list),
        .score = scratch->score,
        .score_stride = job->cpu->score_stride,
    };
    assert(a.keys.last - a.keys.first + a.keys.n_list <= job->cpu->max_keys);
    const float *q = dg_mat_row(&job->q, s->row0 + i);
    float *out = dg_mat_row(&job->out, s->row0 + i);
    for (int32_t h = h0; h < h1; h += a.n_head) {
        const int32_t kv = h / group;
        int32_t end = h + DG_ATTN_HEADS < h1 ? h + DG_ATTN_HEADS : h1;
        if (end > (kv + 1) * group) end = (kv + 1) * group;
        a.n_head = end - h;
        a.q = q + (size_t)h * (size_t)hd;
        a.out = out + (size_t)h * (size_t)hd;
        a.k = (const char *)s->k.data + (size_t)kv * (size_t)hd * width;
        a.v = (const char *)s->v.data + (size_t)kv * (size_t)hd * width;
        job->cpu->isa->attend(&a);
    }
}

static void attention_part(void *arg, int32_t worker, int32_t n_worker) {
    const attention_job *job = arg;
    const int32_t n_head = job->shape->n_head;
    int32_t pair, end, base = 0; /* base: rows of the segments before this one */
    dg_split(job->n_row * n_head, 1, worker, n_worker, &pair, &end);
    for (int32_t g = 0; g < job->n_seg && pair < end; g++) {
        const dg_attn_seg *s = &job->seg[g];
        while (pair < end && pair / n_head < base + s->n) {
            const int32_t row = pair / n_head, row_end = (row + 1) * n_head;
            const int32_t stop = end < row_end ? end : row_end;
            attend_row(job, s, row - base, pair % n_head, stop - row * n_head, &job->cpu->scratch[worker]);
            pair = stop;
        }
        base += s->n;
    }
}

void dg_cpu_attention(dg_backend *be, dg_mat out, dg_mat q, const dg_attn_seg *seg, int32_t n_seg,
                      const dg_attn_shape *shape) {
    attention_job job = {dg_cpu_of(be), out, q, seg, n_seg, shape, 0};
    int64_t work = 0;
    for (int32_t g = 0; g < n_seg; g++) {
        job.n_row += seg[g].n;
        work += (int64_t)seg[g].n * (seg[g].len + seg[g].win) * q.cols / 4;
    }
    dg_cpu_run(job.cpu, work, attention_part, &job);
}
