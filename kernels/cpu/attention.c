/* The attention op: finds the keys of each row and shares out the work. The sums are in loops_attention.h.
 *
 * Some rows of a segment, as many as one call serves, are a strip; a strip's queries of one KV head are a
 * line. Where lines are few, the spans of their keys are shared out too, and whoever is done last with a line
 * merges them in order: the same merges that one worker alone makes. */
#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "kernels/cpu/cpu.h"

typedef struct attention_job {
    dg_cpu *cpu;
    dg_mat out, q;
    const dg_attn_seg *seg;
    int32_t n_seg;
    const dg_attn_shape *shape;
    int32_t stride;         /* head_dim in whole vectors */
    int32_t heads, n_piece; /* heads of a KV group in one line, lines of a KV group */
    int32_t n_row;          /* rows in a strip */
    bool spans;             /* shared out */
    int32_t n_item;         /* lines, or spans of lines */
} attention_job;

typedef struct strip {
    const dg_attn_seg *seg;
    int32_t row, n_row;          /* of the segment */
    int32_t begin, end;          /* indices of keys */
    int32_t n_span, n_item;      /* spans of its keys; in how many pieces they can be shared out */
    int32_t line0, item0, part0; /* numbers of its first line, item and waiting span */
} strip;

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

/* Whether the rows of a segment name their window keys one by one. */
static bool has_list(const dg_attn_seg *s, int32_t window) {
    return s->mask == DG_MASK_BITS || (window > 0 && !in_sequence(s));
}

/* The keys of row i of the segment, in the order of ops.h. list: room for DG_TREE_MAX entries. */
static dg_attn_row find_keys(const dg_attn_seg *s, int32_t i, int32_t window, bool listed, int32_t *list) {
    const int32_t self = s->win - s->n + i, pos = s->pos[self];
    const int32_t visible = s->mask == DG_MASK_CAUSAL ? self + 1 : s->win;
    dg_attn_row row = {.last = listed ? s->len : s->len + visible};
    if (window) cut_to_window(&row, pos, window);
    if (!listed) return row; /* window rows follow the committed ones without a gap */
    assert(visible <= DG_TREE_MAX);
    row.list = list;
    const uint64_t *bits = s->mask == DG_MASK_BITS ? s->bits + (size_t)i * DG_MASK_WORDS : NULL;
    for (int32_t j = 0; j < visible; j++) {
        if (bits && !(bits[j / 64] >> (j % 64) & 1)) continue;
        const bool near = window == 0 || llabs((int64_t)pos - s->pos[j]) < window;
        list[row.n_list++] = near ? s->len + j : -1;
    }
    return row;
}

/* ---- one line ---- */

static int32_t lines_of_strip(const attention_job *job) {
    return job->shape->n_kv_head * job->n_piece;
}

static void fill_args(const attention_job *job, const strip *t, int32_t line, const dg_attn_scratch *s,
                      dg_attn_args *a) {
    const dg_attn_shape *shape = job->shape;
    const dg_attn_seg *seg = t->seg;
    const int32_t group = shape->n_head / shape->n_kv_head, kv = line / job->n_piece;
    const int32_t in_group = line % job->n_piece * job->heads, head0 = kv * group + in_group;
    const size_t width = dg_dtype_bytes(seg->k.dtype, 1), hd = (size_t)shape->head_dim;
    const bool listed = has_list(seg, shape->window);
    *a = (dg_attn_args){
        .k = (const char *)seg->k.data + (size_t)kv * hd * DG_KV_BLOCK * width,
        .v = (const char *)seg->v.data + (size_t)kv * hd * DG_KV_BLOCK * width,
        .block_bytes = (size_t)seg->k.cols * DG_KV_BLOCK * width,
        .next = kv + 1 < shape->n_kv_head
                    ? (const char *)seg->k.data + (size_t)(kv + 1) * hd * DG_KV_BLOCK * width
                    : NULL,
        .dtype = seg->k.dtype,
        .n_head = group - in_group < job->heads ? group - in_group : job->heads,
        .n_row = t->n_row,
        .head_dim = shape->head_dim,
        .stride = job->stride,
        .len = seg->len,
        .n_cached = seg->len + seg->win,
        .scale = shape->scale,
        .row = s->row,
        .s = s,
    };
    for (int32_t r = 0; r < t->n_row; r++) {
        s->row[r] = find_keys(seg, t->row + r, shape->window, listed, s->list + r * DG_TREE_MAX);
        const size_t at = (size_t)head0 * hd;
        for (int32_t h = 0; h < a->n_head; h++) {
            const int32_t row = seg->row0 + t->row + r;
            a->q[r * a->n_head + h] = (const float *)dg_mat_row(&job->q, row) + at + (size_t)h * hd;
            a->out[r * a->n_head + h] = (float *)dg_mat_row(&job->out, row) + at + (size_t)h * hd;
        }
    }
}

/* Points the state of the queries to the place of one span: their maxima, sums and outputs side by side. */
static void point_to_part(const attention_job *job, int32_t item, dg_attn_args *a) {
    const int32_t n = a->n_row * a->n_head;
    a->max = job->cpu->parts + (size_t)item * (size_t)(job->n_row * job->heads * (job->shape->head_dim + 2));
    a->sum = a->max + n;
    for (int32_t i = 0; i < n; i++) a->out[i] = a->sum + n + i * a->head_dim;
}

static void clear_state(const dg_attn_args *a) {
    for (int32_t i = 0; i < a->n_row * a->n_head; i++) a->max[i] = -INFINITY, a->sum[i] = 0;
}

/* The spans of one piece of a line, into their parts; who is done last merges all of them. */
static void attend_shared(const attention_job *job, const strip *t, int32_t piece, int32_t line,
                          dg_attn_args *a) {
    const dg_isa *isa = job->cpu->isa;
    const int32_t n_query = a->n_row * a->n_head, n_line = lines_of_strip(job), part0 = t->part0 + line;
    float *out[DG_ATTN_QUERIES];
    for (int32_t i = 0; i < n_query; i++) out[i] = a->out[i];
    const int32_t behind = piece == t->n_item - 1 ? t->n_span : piece + 1;
    for (int32_t k = piece; k < behind; k++) {
        const int32_t first = (t->begin / DG_ATTN_SPAN + k) * DG_ATTN_SPAN, end = first + DG_ATTN_SPAN;
        point_to_part(job, part0 + k * n_line, a);
        clear_state(a);
        isa->attend(a, first > t->begin ? first : t->begin, end < t->end ? end : t->end);
    }
    if (atomic_fetch_sub(&job->cpu->undone[t->line0 + line], 1) > 1) return;

    float *max = a->s->state, *sum = max + DG_ATTN_QUERIES;
    for (int32_t i = 0; i < n_query; i++) max[i] = -INFINITY, sum[i] = 0;
    for (int32_t k = 0; k < t->n_span; k++) {
        point_to_part(job, part0 + k * n_line, a);
        for (int32_t i = 0; i < n_query; i++)
            isa->attend_merge(&max[i], &sum[i], out[i], a->max[i], a->sum[i], a->out[i], a->head_dim);
    }
    for (int32_t i = 0; i < n_query; i++) isa->attend_end(out[i], max[i], sum[i], a->head_dim);
}

static void attend_line(const attention_job *job, const strip *t, dg_attn_args *a) {
    const dg_isa *isa = job->cpu->isa;
    a->max = a->s->state;
    a->sum = a->max + DG_ATTN_QUERIES;
    clear_state(a);
    isa->attend(a, t->begin, t->end);
    for (int32_t i = 0; i < a->n_row * a->n_head; i++)
        isa->attend_end(a->out[i], a->max[i], a->sum[i], a->head_dim);
}

/* ---- sharing out ---- */

/* Rows [row, row + n_row) of the segment. */
static strip strip_make(const attention_job *job, const dg_attn_seg *s, int32_t row) {
    const int32_t self = s->win - s->n + row, window = job->shape->window;
    strip t = {.seg = s, .row = row, .n_row = s->n - row < job->n_row ? s->n - row : job->n_row};
    t.end = s->len + (s->mask == DG_MASK_CAUSAL ? self + t.n_row : s->win);
    int64_t first = 0;
    for (int32_t r = 0; window && r < t.n_row; r++) {
        const int64_t low = (int64_t)s->pos[self + r] - window + 1;
        if (r == 0 || low < first) first = low;
    }
    if (first > s->len) first = s->len;
    t.begin = first > 0 ? (int32_t)first / DG_KV_BLOCK * DG_KV_BLOCK : 0;
    const int32_t first_span = t.begin / DG_ATTN_SPAN;
    t.n_span = (t.end > t.begin ? t.end - 1 : t.begin) / DG_ATTN_SPAN - first_span + 1;
    /* the rows that lists choose from are scored together: no cut behind the span in which lists begin */
    t.n_item = has_list(s, window) ? s->len / DG_ATTN_SPAN - first_span + 1 : t.n_span;
    if (t.n_item > t.n_span) t.n_item = t.n_span;
    return t;
}

/* Goes through the strips, the last rows first: under a causal mask they cost most. Returns false behind the
 * last. */
static bool next_strip(const attention_job *job, strip *t) {
    const bool fresh = !t->seg;
    const dg_attn_seg *s = fresh ? job->seg + job->n_seg : t->seg;
    const int32_t n_line = fresh ? 0 : lines_of_strip(job), line0 = t->line0 + n_line;
    const int32_t item0 = t->item0 + n_line * (job->spans ? t->n_item : 1),
                  part0 = t->part0 + n_line * t->n_span;
    int32_t row = fresh ? 0 : t->row;
    while (row == 0) {
        if (s == job->seg) return false;
        s--;
        row = (s->n + job->n_row - 1) / job->n_row * job->n_row;
    }
    *t = strip_make(job, s, row - job->n_row);
    t->line0 = line0;
    t->item0 = item0;
    t->part0 = part0;
    return true;
}

static void attention_part(void *arg, int32_t worker, int32_t chunk, int32_t n_chunk) {
    const attention_job *job = arg;
    const dg_attn_scratch *s = &job->cpu->scratch[worker].attention;
    const int32_t n_line = lines_of_strip(job);
    int32_t item, end;
    dg_split(job->n_item, 1, chunk, n_chunk, &item, &end);
    for (strip t = {0}; item < end && next_strip(job, &t);) {
        const int32_t behind = t.item0 + n_line * (job->spans ? t.n_item : 1);
        for (; item < end && item < behind; item++) {
            const int32_t line = (item - t.item0) % n_line;
            dg_attn_args a;
            fill_args(job, &t, line, s, &a);
            if (job->spans)
                attend_shared(job, &t, (item - t.item0) / n_line, line, &a);
            else
                attend_line(job, &t, &a);
        }
    }
}

typedef struct counts {
    int32_t line, item, part; /* item: if spans are shared out */
} counts;

static counts count_all(const attention_job *job) {
    counts c = {0};
    for (strip t = {0}; next_strip(job, &t);) {
        c.line += lines_of_strip(job);
        c.item += lines_of_strip(job) * t.n_item;
        c.part += lines_of_strip(job) * t.n_span;
    }
    return c;
}

/* Decides how many rows go together and whether spans are shared out, for enough items to keep all threads
 * busy. */
static void plan(attention_job *job) {
    const dg_attn_shape *shape = job->shape;
    const int32_t group = shape->n_head / shape->n_kv_head, threads = job->cpu->n_thread;
    int32_t queries = DG_ATTN_QUERY_FLOATS / job->stride;
    assert(queries > 0);
    if (queries > DG_ATTN_QUERIES) queries = DG_ATTN_QUERIES;
    job->n_piece = (group + queries - 1) / queries;
    job->heads = (group + job->n_piece - 1) / job->n_piece;
    job->n_row = queries / job->heads;
    counts c = count_all(job);
    if (threads > 1 && c.line < 4 * threads && c.item > c.line) {
        const int64_t floats = (int64_t)c.part * job->n_row * job->heads * (shape->head_dim + 2);
        job->spans = floats <= DG_ATTN_PARTS && c.line <= DG_ATTN_LINES;
    }
    while (!job->spans && c.line < 2 * threads && job->n_row * job->heads > 12) {
        job->n_row = (job->n_row + 1) / 2;
        c = count_all(job);
    }
    job->n_item = job->spans ? c.item : c.line;
}

static void attend(dg_cpu *cpu, dg_mat out, dg_mat q, const dg_attn_seg *seg, int32_t n_seg, const dg_attn_shape *shape) {
    attention_job job = {.cpu = cpu,
                         .out = out,
                         .q = q,
                         .seg = seg,
                         .n_seg = n_seg,
                         .shape = shape,
                         .stride = (shape->head_dim + 15) / 16 * 16};
    plan(&job);
    int64_t work = 0;
    for (int32_t g = 0; g < n_seg; g++) work += (int64_t)seg[g].n * (seg[g].len + seg[g].win) * q.cols / 8;
    if (!job.n_item) return;
    pthread_mutex_lock(&job.cpu->lock);
    for (strip t = {0}; job.spans && next_strip(&job, &t);)
        for (int32_t i = 0; i < lines_of_strip(&job); i++)
            atomic_store(&job.cpu->undone[t.line0 + i], t.n_item);
    dg_cpu_run_locked(job.cpu, work, attention_part, &job);
    pthread_mutex_unlock(&job.cpu->lock);
}

void dg_cpu_attention(dg_backend *be, dg_mat out, dg_mat q, const dg_attn_seg *seg, int32_t n_seg,
                      const dg_attn_shape *shape) {
    enum { TOGETHER = 64 };
    dg_attn_seg now[TOGETHER];
    for (int32_t at = 0; at < n_seg; at += TOGETHER) {
        const int32_t n = n_seg - at < TOGETHER ? n_seg - at : TOGETHER;
        for (int32_t i = 0; i < n; i++) now[i] = dg_seg_now(seg[at + i]);
        attend(dg_cpu_of(be), out, q, now, n, shape);
    }
}
