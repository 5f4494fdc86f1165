/* The attention op: lists the keys of each row and shares blocks of (rows, head) over the team. The sums are
 * in loops_attention.h. */
#include <assert.h>
#include <stdlib.h>

#include "kernels/cpu/cpu.h"

typedef struct attention_job {
    dg_cpu *cpu;
    dg_mat out, q;
    const dg_attn_seg *seg;
    int32_t n_seg;
    const dg_attn_shape *shape;
    int32_t n_block; /* of all segments */
} attention_job;

static int32_t blocks_of(const dg_attn_seg *s) { return (s->n + DG_ATTN_ROWS - 1) / DG_ATTN_ROWS; }

/* Whether window row j is at position len + j, as in plain decoding and prefill. */
static bool in_sequence(const dg_attn_seg *s) {
    for (int32_t j = 0; j < s->win; j++)
        if (s->pos[j] != s->len + j) return false;
    return true;
}

/* Cuts [row->first, row->last), whose cache row r is at position r, to what is nearer than window to pos. */
static void cut_to_window(dg_attn_row *row, int32_t pos, int32_t window) {
    const int64_t first = (int64_t)pos - window + 1, last = (int64_t)pos + window;
    if (first > row->first) row->first = first < row->last ? (int32_t)first : row->last;
    if (last < row->last) row->last = last > row->first ? (int32_t)last : row->first;
}

/* The keys of row i of the segment, in the order of ops.h. list: room for win entries. */
static void find_keys(const dg_attn_seg *s, int32_t i, int32_t window, dg_attn_row *row, int32_t *list) {
    const int32_t self = s->win - s->n + i, pos = s->pos[self];
    const int32_t visible = s->mask == DG_MASK_CAUSAL ? self + 1 : s->win;
    row->first = 0;
    row->last = s->len;
    row->list = list;
    row->n_list = 0;
    if (s->mask != DG_MASK_BITS && (window == 0 || in_sequence(s))) {
        row->last += visible; /* window rows follow the committed ones without a gap */
        if (window) cut_to_window(row, pos, window);
        return;
    }
    if (window) cut_to_window(row, pos, window);
    const uint64_t *bits = s->mask == DG_MASK_BITS ? s->bits + (size_t)i * DG_MASK_WORDS : NULL;
    for (int32_t j = 0; j < visible; j++) {
        if (bits && !(bits[j / 64] >> (j % 64) & 1)) continue;
        if (window && llabs((int64_t)pos - s->pos[j]) >= window) continue;
        list[row->n_list++] = s->len + j;
    }
}

/* Heads [h0, h1) of the rows of one block. */
static void attend_block(const attention_job *job, const dg_attn_seg *s, int32_t block, int32_t h0,
                         int32_t h1, const dg_cpu_scratch *scratch) {
    const dg_attn_shape *shape = job->shape;
    const int32_t group = shape->n_head / shape->n_kv_head, i0 = block * DG_ATTN_ROWS;
    const size_t width = dg_dtype_bytes(s->k.dtype, 1), hd = (size_t)shape->head_dim;
    const size_t stride = (size_t)job->cpu->score_stride;
    dg_attn_args a = {
        .k_stride = (size_t)s->k.stride * width,
        .v_stride = (size_t)s->v.stride * width,
        .dtype = s->k.dtype,
        .head_dim = shape->head_dim,
        .score_stride = job->cpu->score_stride,
        .n_row = s->n - i0 < DG_ATTN_ROWS ? s->n - i0 : DG_ATTN_ROWS,
        .scale = shape->scale,
    };
    for (int32_t r = 0; r < a.n_row; r++) {
        a.row[r].score = scratch->score + (size_t)r * DG_ATTN_HEADS * stride;
        find_keys(s, i0 + r, shape->window, &a.row[r], scratch->list + (size_t)r * stride);
        assert(a.row[r].last - a.row[r].first + a.row[r].n_list <= job->cpu->max_keys);
    }
    for (int32_t h = h0; h < h1; h += a.n_head) {
        const int32_t kv = h / group;
        int32_t end = h + DG_ATTN_HEADS < h1 ? h + DG_ATTN_HEADS : h1;
        if (end > (kv + 1) * group) end = (kv + 1) * group;
        a.n_head = end - h;
        a.k = (const char *)s->k.data + (size_t)kv * hd * width;
        a.v = (const char *)s->v.data + (size_t)kv * hd * width;
        for (int32_t r = 0; r < a.n_row; r++) {
            a.row[r].q = (const float *)dg_mat_row(&job->q, s->row0 + i0 + r) + (size_t)h * hd;
            a.row[r].out = (float *)dg_mat_row(&job->out, s->row0 + i0 + r) + (size_t)h * hd;
        }
        job->cpu->isa->attend(&a);
    }
}

/* The work is a line of n_block * n_head pairs. Blocks are taken from both ends in turn, because under a
 * causal mask later ones cost more. */
static void attention_part(void *arg, int32_t worker, int32_t chunk, int32_t n_chunk) {
    const attention_job *job = arg;
    const int32_t n_head = job->shape->n_head;
    int32_t pair, end;
    dg_split(job->n_block * n_head, 1, chunk, n_chunk, &pair, &end);
    while (pair < end) {
        const int32_t turn = pair / n_head, h0 = pair % n_head;
        const int32_t h1 = end - pair < n_head - h0 ? h0 + end - pair : n_head;
        int32_t block = turn % 2 ? job->n_block - 1 - turn / 2 : turn / 2;
        const dg_attn_seg *s = job->seg;
        for (; block >= blocks_of(s); s++) block -= blocks_of(s);
        attend_block(job, s, block, h0, h1, &job->cpu->scratch[worker]);
        pair += h1 - h0;
    }
}

void dg_cpu_attention(dg_backend *be, dg_mat out, dg_mat q, const dg_attn_seg *seg, int32_t n_seg,
                      const dg_attn_shape *shape) {
    attention_job job = {dg_cpu_of(be), out, q, seg, n_seg, shape, 0};
    int64_t work = 0;
    for (int32_t g = 0; g < n_seg; g++) {
        job.n_block += blocks_of(&seg[g]);
        work += (int64_t)seg[g].n * (seg[g].len + seg[g].win) * q.cols / 8;
    }
    dg_cpu_run(job.cpu, work, attention_part, &job);
}
