/* Attention: one kernel for every mask, in spans of keys whose states are merged in order.
 *
 * Keys are numbered as ops.h says: committed rows, then the window rows that a row sees, ascending. A span is SPAN
 * consecutive numbers. A block takes the queries of a KV head that a few rows have (a strip, at most QUERIES of them) and
 * one span: it scores the cache rows that can have such numbers, a tile at a time, puts each score where its number says,
 * and adds up the values in the order of the numbers. What is hidden takes part in nothing, so a path of a tree gives the
 * bits of the same tokens as a chain.
 *
 * Where strips are few, spans are spread over blocks that leave their states {o, max, sum} in memory, and a second kernel
 * merges them in order; where they are many, a block goes through all spans of its strip and merges on the way. Both do
 * the same sums in the same order. */
#include <assert.h>

#include "kernels/cuda/common.cuh"

enum {
    SPAN = 128,
    TILE = 16,     /* cache rows in shared memory at a time */
    QUERIES = 16,  /* of a block */
    THREADS = 128,
    MERGE_THREADS = 64,
    MAX_SPAN_GRID = 65535
};

typedef struct attn_args {
    float *out;
    const float *q;
    const void *k, *v; /* of the cache, row 0 */
    const int32_t *pos;
    const uint64_t *bits;
    float *parts; /* NULL: a block merges on the way */
    int64_t out_stride, q_stride;
    int32_t cache_stride; /* elements */
    int32_t len, win, n, row0, mask;
    int32_t n_head, group, head_dim, window;
    float scale;
    int32_t heads, n_piece; /* query heads of a KV head in one block; blocks that the group takes */
    int32_t rows;           /* of a strip */
    int32_t first_row;      /* of the segment, in this launch */
    int32_t n_span;
    const dg_live *live;    /* NULL: the numbers above are what there is; else bounds, see now */
} attn_args;

/* The arguments as they are when the kernel runs. Strips and spans are launched for all that the cache can hold. */
DG_DEV attn_args now(attn_args a) {
    if (!a.live) return a;
    const int32_t n = a.live->n;
    a.len = a.live->len;
    a.win -= a.n - n;
    a.n = n;
    a.n_span = (a.len + a.win + SPAN - 1) / SPAN;
    return a;
}

/* What a block works on. */
typedef struct strip {
    int32_t row, n_row;       /* rows of the segment */
    int32_t head, n_head, kv; /* query heads, KV head */
    int32_t n_query;
} strip;

DG_DEV strip strip_of(const attn_args &a, int32_t index, int32_t line) {
    strip s;
    s.row = a.first_row + index * a.rows;
    s.n_row = min(a.rows, a.n - s.row);
    s.kv = line / a.n_piece;
    const int32_t in_group = line % a.n_piece * a.heads;
    s.head = s.kv * a.group + in_group;
    s.n_head = min(a.heads, a.group - in_group);
    s.n_query = s.n_row * s.n_head;
    return s;
}

/* Window rows that row i of the segment sees below window row j. */
DG_DEV int32_t seen_below(const attn_args &a, int32_t i, int32_t j) {
    const uint64_t *bits = a.bits + static_cast<int64_t>(i) * DG_MASK_WORDS;
    int32_t count = 0;
    for (int32_t w = 0; w < j / 64; w++) count += __popcll(bits[w]);
    if (j % 64) count += __popcll(bits[j / 64] & ((static_cast<uint64_t>(1) << (j % 64)) - 1));
    return count;
}

/* The number of cache row r among the keys of row i of the segment; -1 if it is hidden or out of reach. */
DG_DEV int32_t key_number(const attn_args &a, int32_t i, int32_t r) {
    const int32_t self = a.win - a.n + i, j = r - a.len;
    if (j >= a.win) return -1;
    int32_t number = r;
    if (j >= 0 && a.mask == DG_MASK_CAUSAL && j > self) return -1;
    if (j >= 0 && a.mask == DG_MASK_BITS) {
        if (!(a.bits[static_cast<int64_t>(i) * DG_MASK_WORDS + j / 64] >> (j % 64) & 1)) return -1;
        number = a.len + seen_below(a, i, j);
    }
    if (a.window) {
        const int64_t apart = static_cast<int64_t>(a.pos[self]) - (j < 0 ? r : a.pos[j]);
        if (apart >= a.window || -apart >= a.window) return -1;
    }
    return number;
}

/* States of a block's queries, and the numbers of a tile's rows. */
typedef struct states {
    float max[QUERIES], sum[QUERIES];           /* of the spans so far */
    float span_max[QUERIES], span_sum[QUERIES]; /* of the span at hand */
    float keep[QUERIES], take[QUERIES];         /* what merging multiplies the two by */
    int16_t number[QUERIES][TILE];              /* for each row of the strip, from the span's first; -1: none */
} states;

/* The block's shared memory: q and o of all spans and of one [QUERIES][hd], tile [TILE][hd + 1],
 * score [QUERIES][SPAN]. */
typedef struct workplace {
    float *q, *o, *span_o, *tile, *score;
    states *st;
} workplace;

static size_t shared_floats(int32_t head_dim) {
    return static_cast<size_t>(3 * QUERIES * head_dim + TILE * (head_dim + 1) + QUERIES * SPAN);
}

/* Loads a tile of K or V, and numbers its rows. Ends with a barrier. */
template <typename T>
DG_DEV void load_tile(const attn_args &a, const strip &s, workplace &w, const void *cache, int32_t first, int32_t n_tile,
                      int32_t span0) {
    const int32_t hd = a.head_dim;
    for (int32_t i = threadIdx.x; i < n_tile * hd; i += THREADS) {
        const int32_t r = i / hd, d = i % hd;
        const int64_t at = static_cast<int64_t>(first + r) * a.cache_stride + s.kv * hd + d;
        w.tile[r * (hd + 1) + d] = dg_to_f32(static_cast<const T *>(cache)[at]);
    }
    for (int32_t i = threadIdx.x; i < s.n_row * n_tile; i += THREADS) {
        const int32_t number = key_number(a, s.row + i / n_tile, first + i % n_tile) - span0;
        w.st->number[i / n_tile][i % n_tile] = static_cast<int16_t>(number >= 0 && number < SPAN ? number : -1);
    }
    __syncthreads();
}

/* Scores of the span whose numbers begin at span0, -inf where there is no key. Ends with a barrier. */
template <typename T>
DG_DEV void score_span(const attn_args &a, const strip &s, workplace &w, int32_t span0, int32_t first, int32_t end) {
    const int32_t hd = a.head_dim;
    __syncthreads(); /* q is in place, and the last span's sums are read */
    for (int32_t i = threadIdx.x; i < s.n_query * SPAN; i += THREADS) w.score[i] = -INFINITY;
    for (int32_t at = first; at < end; at += TILE) {
        const int32_t n_tile = min(static_cast<int32_t>(TILE), end - at);
        __syncthreads(); /* nobody reads the last tile any more; the first time, -inf is in place */
        load_tile<T>(a, s, w, a.k, at, n_tile, span0);
        for (int32_t i = threadIdx.x; i < s.n_query * TILE; i += THREADS) {
            const int32_t query = i / TILE, r = i % TILE;
            if (r >= n_tile || w.st->number[query / s.n_head][r] < 0) continue;
            const float *q = w.q + query * hd, *k = w.tile + r * (hd + 1);
            float dot = 0;
            for (int32_t d = 0; d < hd; d++) dot = dg_fma(q[d], k[d], dot);
            w.score[query * SPAN + w.st->number[query / s.n_head][r]] = dot * a.scale;
        }
    }
    __syncthreads();
}

/* Turns scores into weights, a warp a query; leaves the span's maximum and sum. Ends with a barrier. */
DG_DEV void weigh_span(const strip &s, workplace &w) {
    const int32_t lane = threadIdx.x % DG_WARP;
    for (int32_t query = threadIdx.x / DG_WARP; query < s.n_query; query += THREADS / DG_WARP) {
        float *score = w.score + query * SPAN, max = -INFINITY, sum = 0;
        for (int32_t i = lane; i < SPAN; i += DG_WARP) max = fmaxf(max, score[i]);
        max = dg_warp_max(max);
        for (int32_t i = lane; i < SPAN; i += DG_WARP) {
            const float weight = score[i] > -INFINITY ? expf(score[i] - max) : 0;
            score[i] = weight;
            sum += weight;
        }
        sum = dg_warp_sum(sum);
        if (lane == 0) w.st->span_max[query] = max, w.st->span_sum[query] = sum;
    }
    __syncthreads();
}

/* span_o = the weighted values of the span. Ends with a barrier. */
template <typename T>
DG_DEV void add_values(const attn_args &a, const strip &s, workplace &w, int32_t span0, int32_t first, int32_t end) {
    const int32_t hd = a.head_dim;
    float *o = w.span_o;
    for (int32_t i = threadIdx.x; i < s.n_query * hd; i += THREADS) o[i] = 0;
    for (int32_t at = first; at < end; at += TILE) {
        const int32_t n_tile = min(static_cast<int32_t>(TILE), end - at);
        __syncthreads();
        load_tile<T>(a, s, w, a.v, at, n_tile, span0);
        for (int32_t i = threadIdx.x; i < s.n_query * hd; i += THREADS) {
            const int32_t query = i / hd, d = i % hd;
            const int16_t *number = w.st->number[query / s.n_head];
            float sum = o[i];
            for (int32_t r = 0; r < n_tile; r++)
                if (number[r] >= 0) sum = dg_fma(w.score[query * SPAN + number[r]], w.tile[r * (hd + 1) + d], sum);
            o[i] = sum;
        }
    }
    __syncthreads();
}

/* Merges the next span's maximum and sum into a state; keep and take: what the outputs of the two are multiplied by. */
DG_DEV void merge_state(float *max, float *sum, float next_max, float next_sum, float *keep, float *take) {
    const float most = fmaxf(*max, next_max);
    *keep = *max > -INFINITY ? expf(*max - most) : 0;
    *take = next_max > -INFINITY ? expf(next_max - most) : 0;
    *sum = dg_fma(next_sum, *take, *sum * *keep);
    *max = most;
}

DG_DEV float merge_output(float o, float keep, float next, float take) { return dg_fma(next, take, o * keep); }

/* Whether no row of the strip reaches a span of committed rows. */
DG_DEV bool out_of_reach(const attn_args &a, const strip &s, int32_t span0) {
    if (!a.window || span0 + SPAN > a.len) return false;
    for (int32_t i = 0; i < s.n_row; i++)
        if (static_cast<int64_t>(a.pos[a.win - a.n + s.row + i]) - a.window + 1 < span0 + SPAN) return false;
    return true;
}

/* One span: its maxima, sums and outputs. */
template <typename T> DG_DEV void do_span(const attn_args &a, const strip &s, workplace &w, int32_t span0) {
    const int32_t last_self = a.win - a.n + s.row + s.n_row - 1;
    int32_t first = span0, end = a.len + (a.mask == DG_MASK_CAUSAL ? last_self + 1 : a.win);
    if (a.mask == DG_MASK_BITS && span0 + SPAN > a.len)
        first = min(span0, a.len); /* any window row can have any of the numbers behind the committed ones */
    else
        end = min(end, span0 + SPAN);
    score_span<T>(a, s, w, span0, first, end);
    weigh_span(s, w);
    add_values<T>(a, s, w, span0, first, end);
}

/* All spans of a strip, merged on the way. */
template <typename T> DG_DEV void do_all_spans(const attn_args &a, const strip &s, workplace &w) {
    const int32_t hd = a.head_dim;
    states *st = w.st;
    for (int32_t i = threadIdx.x; i < s.n_query * hd; i += THREADS) w.o[i] = 0;
    if (threadIdx.x < QUERIES) st->max[threadIdx.x] = -INFINITY, st->sum[threadIdx.x] = 0;
    for (int32_t span = 0; span < a.n_span; span++) {
        if (out_of_reach(a, s, span * SPAN)) continue;
        do_span<T>(a, s, w, span * SPAN);
        const int32_t query = threadIdx.x;
        if (query < s.n_query)
            merge_state(&st->max[query], &st->sum[query], st->span_max[query], st->span_sum[query], &st->keep[query],
                        &st->take[query]);
        __syncthreads();
        for (int32_t i = threadIdx.x; i < s.n_query * hd; i += THREADS)
            w.o[i] = merge_output(w.o[i], st->keep[i / hd], w.span_o[i], st->take[i / hd]);
    }
    __syncthreads();
    for (int32_t i = threadIdx.x; i < s.n_query * hd; i += THREADS) {
        const int32_t query = i / hd, row = a.row0 + s.row + query / s.n_head, head = s.head + query % s.n_head;
        const float sum = st->sum[query];
        a.out[row * a.out_stride + static_cast<int64_t>(head) * hd + i % hd] = sum > 0 ? w.o[i] / sum : 0;
    }
}

/* Where the state of a span of one row and head waits: o[hd], maximum, sum. The row counts within the launch. */
DG_DEV float *part_of(const attn_args &a, int32_t n_row, int32_t span, int32_t row, int32_t head) {
    return a.parts + ((static_cast<int64_t>(span) * n_row + row) * a.n_head + head) * (a.head_dim + 2);
}

template <typename T>
DG_DEV void do_one_span(const attn_args &a, const strip &s, workplace &w, int32_t n_row, int32_t span) {
    const int32_t hd = a.head_dim, away = out_of_reach(a, s, span * SPAN);
    if (!away) do_span<T>(a, s, w, span * SPAN);
    for (int32_t i = threadIdx.x; i < s.n_query * (hd + 2); i += THREADS) {
        const int32_t query = i / (hd + 2), d = i % (hd + 2);
        float *part = part_of(a, n_row, span, s.row - a.first_row + query / s.n_head, s.head + query % s.n_head);
        if (away)
            part[d] = d == hd ? -INFINITY : 0;
        else
            part[d] = d < hd ? w.span_o[query * hd + d] : d == hd ? w.st->span_max[query] : w.st->span_sum[query];
    }
}

/* blockIdx: strip, line (KV head and piece of its group), span. */
template <typename T> static __global__ void attend_kernel(attn_args bounds, int32_t n_row) {
    DG_DYN_SHARED(float, memory);
    __shared__ states st;
    const attn_args a = now(bounds);
    const int32_t hd = a.head_dim;
    workplace w;
    w.q = memory, w.o = w.q + QUERIES * hd, w.span_o = w.o + QUERIES * hd;
    w.score = w.span_o + QUERIES * hd, w.tile = w.score + QUERIES * SPAN;
    w.st = &st;
    const strip s = strip_of(a, blockIdx.x, blockIdx.y);
    if (s.n_row <= 0 || (a.parts && static_cast<int32_t>(blockIdx.z) >= a.n_span)) return;
    for (int32_t i = threadIdx.x; i < s.n_query * hd; i += THREADS) {
        const int32_t query = i / hd, row = a.row0 + s.row + query / s.n_head, head = s.head + query % s.n_head;
        w.q[i] = a.q[row * a.q_stride + static_cast<int64_t>(head) * hd + i % hd];
    }
    if (a.parts)
        do_one_span<T>(a, s, w, n_row, blockIdx.z);
    else
        do_all_spans<T>(a, s, w);
}

/* blockIdx: row of the launch, head. */
static __global__ void merge_kernel(attn_args bounds, int32_t n_row) {
    const attn_args a = now(bounds);
    const int32_t hd = a.head_dim, row = blockIdx.x, head = blockIdx.y;
    if (a.first_row + row >= a.n) return;
    float *out = a.out + (a.row0 + a.first_row + row) * a.out_stride + static_cast<int64_t>(head) * hd;
    for (int32_t d = threadIdx.x; d < hd; d += MERGE_THREADS) {
        float max = -INFINITY, sum = 0, o = 0;
        for (int32_t span = 0; span < a.n_span; span++) {
            const float *part = part_of(a, n_row, span, row, head);
            float keep, take;
            merge_state(&max, &sum, part[hd], part[hd + 1], &keep, &take);
            o = merge_output(o, keep, part[d], take);
        }
        out[d] = sum > 0 ? o / sum : 0;
    }
}

/* ---- launching ---- */

template <typename T> static void launch(dg_cuda *c, const attn_args &a, int32_t n_row) {
    const size_t bytes = shared_floats(a.head_dim) * sizeof(float);
    if (bytes > 48 * 1024 &&
        !dg_cuda_ok(c, cudaFuncSetAttribute(attend_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
                    "cudaFuncSetAttribute", "attention"))
        return;
    const dim3 grid(dg_ceil_div(n_row, a.rows), a.n_head / a.group * a.n_piece, a.parts ? a.n_span : 1);
    DG_LAUNCH(attend_kernel<T>, grid, dim3(THREADS), bytes, c->stream, a, n_row);
    if (a.parts) DG_LAUNCH(merge_kernel, dim3(n_row, a.n_head), dim3(MERGE_THREADS), 0, c->stream, a, n_row);
}

/* The rows of a segment: all at once where blocks are many enough without spans, else as many as there is room for
 * their parts. */
static void attend_segment(dg_cuda *c, attn_args a, dg_dtype dtype) {
    const int64_t blocks = static_cast<int64_t>(dg_ceil_div(a.n, a.rows)) * (a.n_head / a.group) * a.n_piece;
    const size_t row_parts = static_cast<size_t>(a.n_span) * static_cast<size_t>(a.n_head) * static_cast<size_t>(a.head_dim + 2);
    int32_t step = static_cast<int32_t>(c->n_part / row_parts / static_cast<size_t>(a.rows)) * a.rows;
    const bool whole = a.n_span == 1 || blocks >= 2 * c->n_processor || step < a.rows || a.n_span > MAX_SPAN_GRID;
    if (whole) step = a.n;
    a.parts = whole ? NULL : c->parts;
    for (a.first_row = 0; a.first_row < a.n; a.first_row += step) {
        const int32_t n_row = a.n - a.first_row < step ? a.n - a.first_row : step;
        DG_BY_FLOAT(dtype, launch, c, a, n_row);
    }
}

void dg_cuda_attention(dg_backend *be, dg_mat out, dg_mat q, const dg_attn_seg *seg, int32_t n_seg,
                       const dg_attn_shape *shape) {
    dg_cuda *c = n_seg ? dg_cuda_begin(be) : NULL;
    if (!c) return;
    assert(shared_floats(shape->head_dim) * sizeof(float) <= c->max_shared);
    const int32_t group = shape->n_head / shape->n_kv_head, n_piece = (group + QUERIES - 1) / QUERIES;
    const int32_t heads = (group + n_piece - 1) / n_piece;
    for (int32_t i = 0; i < n_seg; i++) {
        const dg_attn_seg *s = &seg[i];
        const bool known = !s->live || !c->keyed; /* the lengths, to the host */
        if (!s->n || (shape->loose && known && dg_cuda_sdpa(c, out, q, s, shape))) continue;
        attn_args a;
        a.out = static_cast<float *>(out.data), a.out_stride = out.stride;
        a.q = static_cast<const float *>(q.data), a.q_stride = q.stride;
        a.k = s->k.data, a.v = s->v.data, a.cache_stride = s->k.cols;
        a.pos = s->pos, a.bits = s->bits, a.parts = NULL;
        a.len = s->len, a.win = s->win, a.n = s->n, a.row0 = s->row0, a.mask = s->mask;
        a.n_head = shape->n_head, a.group = group, a.head_dim = shape->head_dim, a.window = shape->window;
        a.scale = shape->scale;
        a.heads = heads, a.n_piece = n_piece, a.rows = QUERIES / heads, a.first_row = 0;
        a.live = s->live;
        a.n_span = dg_ceil_div(s->live ? s->k.rows : s->len + s->win, SPAN);
        attend_segment(c, a, s->k.dtype);
    }
    dg_cuda_end(c, "attention");
}
