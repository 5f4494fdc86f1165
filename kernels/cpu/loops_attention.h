/* Inner loops of attention: the queries of a few rows and heads over one KV head, in one pass over the keys
 * (softmax with a running maximum, as in FlashAttention, arXiv 2205.14135).
 *
 * Keys are taken in blocks of DG_KV_BLOCK: scored against every query, weighed, and their values added up.
 * Where more queries meet a block than fit the registers, it is widened to f32 once. Each sum is fixed by the
 * number of the key: a score adds its products in the order of the columns, the sum of weights puts key j
 * into lane j % 16, outputs add values in the order of the keys; every DG_ATTN_SPAN keys the sums start anew
 * and are merged into what is before them. So no bit depends on which queries are in the call, or on who does
 * which span. */

typedef v16 load_fn(const void *p);
typedef v16 load_part_fn(const void *p, int n);

/* Calls tile(n) with a constant for each run of up to ATTN_TILE queries i..i+n-1 of [begin, end). */
#define FOR_TILES(i, begin, end, tile)                                                                       \
    for (int32_t i = (begin), left; (left = (end)-i) > 0; i += ATTN_TILE) {                                  \
        if (left >= ATTN_TILE) {                                                                             \
            tile(ATTN_TILE);                                                                                 \
            continue;                                                                                        \
        }                                                                                                    \
        if (ATTN_TILE > 5 && left == 5) tile(5);                                                             \
        if (ATTN_TILE > 4 && left == 4) tile(4);                                                             \
        if (ATTN_TILE > 3 && left == 3) tile(3);                                                             \
        if (ATTN_TILE > 2 && left == 2) tile(2);                                                             \
        if (left == 1) tile(1);                                                                              \
    }

/* Asks for the i-th piece of `bytes` bytes of what will be read next; NULL: nothing to ask for. Blocks of one
 * head lie too far apart for the hardware to guess. */
ALWAYS_INLINE void fetch(const char *ahead, int32_t i, size_t bytes) {
    for (size_t b = 0; ahead && b < bytes; b += 64) __builtin_prefetch(ahead + (size_t)i * bytes + b);
}

/* ---- scores ---- */

/* score[i][0..16*vectors) = q[i] . keys, for `queries` queries; keys [vectors, head_dim, 16]. ahead: a piece
 * of DG_KV_BLOCK elements for each column. */
ALWAYS_INLINE void score_tile(load_fn *load, size_t width, int queries, int vectors, const char *keys,
                              const char *ahead, int32_t head_dim, const float *q, int32_t q_stride,
                              float *score, int32_t stride) {
    v16 sum[ATTN_TILE][ATTN_KEYS];
#pragma GCC unroll 6
    for (int i = 0; i < queries; i++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) sum[i][v] = v16_zero();
    const size_t vector = (size_t)head_dim * 16 * width;
    for (int32_t c = 0; c < head_dim; c++, keys += 16 * width) {
        fetch(ahead, c, DG_KV_BLOCK * width);
        v16 key[ATTN_KEYS];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) key[v] = load(keys + (size_t)v * vector);
#pragma GCC unroll 6
        for (int i = 0; i < queries; i++) {
            const v16 x = v16_set1(q[i * q_stride + c]);
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++) sum[i][v] = v16_fma(x, key[v], sum[i][v]);
        }
    }
#pragma GCC unroll 6
    for (int i = 0; i < queries; i++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) v16_store(score + i * stride + 16 * v, sum[i][v]);
}

/* The scores of the first n keys of a block, up to a multiple of 16, for the queries [begin, end). */
ALWAYS_INLINE void score_keys(const dg_attn_args *a, load_fn *load, size_t width, const char *keys,
                              const char *ahead, int32_t n, int32_t begin, int32_t end, float *score,
                              int32_t stride) {
    const float *q = a->s->query;
    const int32_t hd = a->head_dim;
    int32_t k = 0;
    for (; n - k > 16 * (ATTN_KEYS - 1); k += 16 * ATTN_KEYS) {
        const char *at = keys + (size_t)(k * hd) * width;
#define TILE(m)                                                                                              \
    score_tile(load, width, m, ATTN_KEYS, at, i == begin && k == 0 ? ahead : NULL, hd, q + i * a->stride,    \
               a->stride, score + i * stride + k, stride)
        FOR_TILES(i, begin, end, TILE)
#undef TILE
    }
    for (; ATTN_KEYS > 1 && k < n; k += 16) {
        const char *at = keys + (size_t)(k * hd) * width;
#define TILE(m)                                                                                              \
    score_tile(load, width, m, 1, at, NULL, hd, q + i * a->stride, a->stride, score + i * stride + k, stride)
        FOR_TILES(i, begin, end, TILE)
#undef TILE
    }
}

/* ---- values ---- */

/* out[i][0..16*columns) += weight[i][lo..hi) . value[lo..hi), for `queries` queries. c: of value, in bytes.
 * ahead: a piece of `step` bytes for each key. */
ALWAYS_INLINE void mix_tile(load_fn *load, size_t width, int queries, int columns, const char *const *value,
                            size_t c, const char *ahead, size_t step, int32_t lo, int32_t hi,
                            const float *weight, float *out, int32_t stride) {
    v16 sum[ATTN_TILE][ATTN_COLUMNS];
#pragma GCC unroll 6
    for (int i = 0; i < queries; i++)
#pragma GCC unroll 4
        for (int v = 0; v < columns; v++) sum[i][v] = v16_load(out + i * stride + 16 * v);
    for (int32_t k = lo; k < hi; k++) {
        fetch(ahead, k, step);
        v16 x[ATTN_COLUMNS];
#pragma GCC unroll 4
        for (int v = 0; v < columns; v++) x[v] = load(value[k] + c + (size_t)(16 * v) * width);
#pragma GCC unroll 6
        for (int i = 0; i < queries; i++) {
            const v16 w = v16_set1(weight[i * DG_KV_BLOCK + k]);
#pragma GCC unroll 4
            for (int v = 0; v < columns; v++) sum[i][v] = v16_fma(w, x[v], sum[i][v]);
        }
    }
#pragma GCC unroll 6
    for (int i = 0; i < queries; i++)
#pragma GCC unroll 4
        for (int v = 0; v < columns; v++) v16_store(out + i * stride + 16 * v, sum[i][v]);
}

/* The same for the last n columns, fewer than 16, of one query. */
ALWAYS_INLINE void mix_rest(load_part_fn *load_part, const char *const *value, size_t c, int n, int32_t lo,
                            int32_t hi, const float *weight, float *out) {
    v16 sum = v16_load(out);
    for (int32_t k = lo; k < hi; k++) sum = v16_fma(v16_set1(weight[k]), load_part(value[k] + c, n), sum);
    v16_store(out, sum);
}

/* Adds the values of keys [lo, hi) of a block to the queries [begin, end). */
ALWAYS_INLINE void mix_keys(const dg_attn_args *a, load_fn *load, load_part_fn *load_part, size_t width,
                            const char *const *value, const char *ahead, int32_t begin, int32_t end,
                            int32_t lo, int32_t hi) {
    if (lo >= hi) return;
    const float *weight = a->s->weight;
    float *out = a->s->part;
    const int32_t hd = a->head_dim;
    const size_t step = (size_t)hd * width;
    int32_t c = 0;
    for (; c + 16 * ATTN_COLUMNS <= hd; c += 16 * ATTN_COLUMNS) {
#define TILE(m)                                                                                              \
    mix_tile(load, width, m, ATTN_COLUMNS, value, (size_t)c *width, i == begin && c == 0 ? ahead : NULL,     \
             step, lo, hi, weight + i * DG_KV_BLOCK, out + i * a->stride + c, a->stride)
        FOR_TILES(i, begin, end, TILE)
#undef TILE
    }
    for (; ATTN_COLUMNS > 1 && c + 16 <= hd; c += 16) {
#define TILE(m)                                                                                              \
    mix_tile(load, width, m, 1, value, (size_t)c *width, NULL, 0, lo, hi, weight + i * DG_KV_BLOCK,          \
             out + i * a->stride + c, a->stride)
        FOR_TILES(i, begin, end, TILE)
#undef TILE
    }
    for (int32_t i = begin; c < hd && i < end; i++)
        mix_rest(load_part, value, (size_t)c * width, hd - c, lo, hi, weight + i * DG_KV_BLOCK,
                 out + i * a->stride + c);
}

/* ---- by type of the cache ---- */

typedef struct cache_type {
    void (*score)(const dg_attn_args *a, const char *keys, const char *ahead, int32_t n, int32_t begin,
                  int32_t end, float *score, int32_t stride);
    void (*mix)(const dg_attn_args *a, const char *const *value, const char *ahead, int32_t begin,
                int32_t end, int32_t lo, int32_t hi);
    void (*widen)(float *dst, const char *src, const char *ahead,
                  int32_t n); /* n elements, a multiple of 16 */
    size_t width;
} cache_type;

#define CACHE_TYPE(name, load, size)                                                                         \
    static void score_##name(const dg_attn_args *a, const char *keys, const char *ahead, int32_t n,          \
                             int32_t begin, int32_t end, float *score, int32_t stride) {                     \
        score_keys(a, load, size, keys, ahead, n, begin, end, score, stride);                                \
    }                                                                                                        \
    static void mix_##name(const dg_attn_args *a, const char *const *value, const char *ahead,               \
                           int32_t begin, int32_t end, int32_t lo, int32_t hi) {                             \
        mix_keys(a, load, load##_part, size, value, ahead, begin, end, lo, hi);                              \
    }                                                                                                        \
    static void widen_##name(float *dst, const char *src, const char *ahead, int32_t n) {                    \
        for (int32_t i = 0; i < n; i += 16) {                                                                \
            if (i * size % 64 == 0) fetch(ahead, i, size);                                                   \
            v16_store(dst + i, load(src + (size_t)i * size));                                                \
        }                                                                                                    \
    }                                                                                                        \
    static const cache_type cache_##name = {score_##name, mix_##name, widen_##name, size};
CACHE_TYPE(f32, v16_load, 4)
CACHE_TYPE(f16, v16_load_f16, 2)
CACHE_TYPE(bf16, v16_load_bf16, 2)

static const cache_type *type_of(const dg_attn_args *a) {
    return a->dtype == DG_F32 ? &cache_f32 : a->dtype == DG_F16 ? &cache_f16 : &cache_bf16;
}

/* Whether a block is better widened for so many queries; to the bit the results are the same. */
static bool worth_widening(const dg_attn_args *a, int32_t n_query) {
    return a->dtype != DG_F32 && n_query > ATTN_TILE && a->head_dim <= DG_ATTN_WIDE;
}

static const char *key_block(const dg_attn_args *a, int32_t row) {
    return a->k + (size_t)(row / DG_KV_BLOCK) * a->block_bytes;
}

static const char *value_row(const dg_attn_args *a, int32_t row) {
    return a->v + (size_t)(row / DG_KV_BLOCK) * a->block_bytes +
           (size_t)(row % DG_KV_BLOCK * a->head_dim) * type_of(a)->width;
}

/* Scores of n keys of the block at cache row `first` for the queries [begin, end). */
static void score_block(const dg_attn_args *a, int32_t first, int32_t n, int32_t begin, int32_t end,
                        float *score, int32_t stride) {
    const cache_type *type = type_of(a);
    const char *keys = key_block(a, first);
    if (!worth_widening(a, end - begin)) {
        type->score(a, keys, value_row(a, first), n, begin, end, score, stride);
        return;
    }
    type->widen(a->s->wide, keys, value_row(a, first), DG_KV_BLOCK * a->head_dim);
    cache_f32.score(a, (const char *)a->s->wide, NULL, n, begin, end, score, stride);
}

/* ---- weights ---- */

/* Turns the scores of one query for a block of n keys into weights, where [lo, hi) are visible, and takes
 * them into its running maximum and sums. */
static void weigh(const dg_attn_args *a, int32_t query, int32_t n, int32_t lo, int32_t hi) {
    float *w = a->s->weight + query * DG_KV_BLOCK, *max = &a->s->max[query],
          *out = a->s->part + query * a->stride;
    float *lanes = a->s->lanes + 16 * query;
    const int32_t padded = (n + 15) / 16 * 16;
    for (int32_t i = 0; i < lo; i++) w[i] = -INFINITY;
    for (int32_t i = hi; i < padded; i++) w[i] = -INFINITY;
    v16 most = v16_load(w);
    for (int32_t i = 16; i < padded; i += 16) most = v16_max(v16_load(w + i), most);
    const float high = v16_most(most);
    if (high == -INFINITY) { /* all hidden */
        memset(w, 0, sizeof(float) * (size_t)padded);
        return;
    }
    v16 sum = v16_load(lanes);
    if (high > *max) {
        const v16 factor = v16_exp_weight(v16_set1(*max - high)); /* 0 at first */
        for (int32_t c = 0; c < a->stride; c += 16) v16_store(out + c, v16_mul(v16_load(out + c), factor));
        sum = v16_mul(sum, factor);
        *max = high;
    }
    const v16 top = v16_set1(*max);
    for (int32_t i = 0; i < padded; i += 16) {
        const v16 e = v16_exp_weight(v16_sub(v16_load(w + i), top)); /* e^-inf is 0 */
        v16_store(w + i, e);
        sum = v16_add(sum, e);
    }
    v16_store(lanes, sum);
}

/* ---- blocks ---- */

static int32_t clamp(int32_t x, int32_t low, int32_t high) {
    return x < low ? low : x > high ? high : x;
}

/* Adds the values of a block whose row r sees keys [lo[r], hi[r]), in order: for each row what it sees before
 * the keys [low, high) that all of them see, those, and what it sees behind them. */
static void mix_block(const dg_attn_args *a, int32_t first, int32_t n, int32_t begin, int32_t end,
                      const int32_t *lo, const int32_t *hi) {
    const int32_t heads = a->n_head, next = first + DG_KV_BLOCK;
    const cache_type *type = type_of(a);
    const char *value[DG_KV_BLOCK], *ahead = next < a->n_cached ? key_block(a, next) : a->next;
    if (worth_widening(a, (end - begin) * heads)) {
        const int32_t padded = (n * a->head_dim + 15) / 16 * 16; /* within the block */
        type->widen(a->s->wide, value_row(a, first), ahead, padded);
        for (int32_t i = 0; i < n; i++) value[i] = (const char *)(a->s->wide + i * a->head_dim);
        type = &cache_f32;
        ahead = NULL;
    } else {
        for (int32_t i = 0; i < n; i++) value[i] = value_row(a, first + i);
    }
    int32_t low = 0, high = n;
    for (int32_t r = begin; r < end; r++) {
        if (lo[r] > low) low = lo[r];
        if (hi[r] < high) high = hi[r];
    }
    if (low > high) low = high = n; /* nothing: all is "before" */
    for (int32_t r = begin; r < end; r++)
        type->mix(a, value, NULL, r * heads, (r + 1) * heads, lo[r], low < hi[r] ? low : hi[r]);
    type->mix(a, value, ahead, begin * heads, end * heads, low, high);
    for (int32_t r = begin; r < end; r++) type->mix(a, value, NULL, r * heads, (r + 1) * heads, high, hi[r]);
}

/* A block whose key i is cache row first + i for every query. */
static void shared_block(const dg_attn_args *a, int32_t first, int32_t n) {
    int32_t lo[DG_ATTN_QUERIES], hi[DG_ATTN_QUERIES], begin = a->n_row, end = 0;
    for (int32_t r = 0; r < a->n_row; r++) {
        lo[r] = clamp(a->row[r].first - first, 0, n);
        hi[r] = clamp(a->row[r].last - first, lo[r], n);
        if (lo[r] == hi[r]) continue;
        if (begin > r) begin = r;
        end = r + 1;
    }
    if (begin >= end) return;
    const int32_t heads = a->n_head;
    score_block(a, first, n, begin * heads, end * heads, a->s->weight, DG_KV_BLOCK);
    for (int32_t r = begin; r < end; r++)
        for (int32_t h = 0; h < heads && lo[r] < hi[r]; h++) weigh(a, r * heads + h, n, lo[r], hi[r]);
    mix_block(a, first, n, begin, end, lo, hi);
}

/* The keys [first, first + n) of one row that has a list: the cache rows of those that it sees, -1 for the
 * others. */
static void look_up(const dg_attn_args *a, const dg_attn_row *row, int32_t first, int32_t n,
                    int32_t at[DG_KV_BLOCK]) {
    for (int32_t i = 0; i < n; i++) {
        const int32_t key = first + i, in_list = key - a->len;
        if (in_list < 0)
            at[i] = key >= row->first && key < row->last ? key : -1;
        else
            at[i] = in_list < row->n_list ? row->list[in_list] : -1;
    }
}

/* A block that reaches into the lists: the same arithmetic, with the keys of each row picked from the scores
 * and values of the cache rows from `tail` on. */
static void listed_block(const dg_attn_args *a, int32_t first, int32_t n, int32_t tail) {
    const int32_t heads = a->n_head;
    const char *value[DG_KV_BLOCK];
    for (int32_t r = 0; r < a->n_row; r++) {
        int32_t at[DG_KV_BLOCK];
        look_up(a, &a->row[r], first, n, at);
        for (int32_t h = r * heads; h < (r + 1) * heads; h++) {
            const float *score = a->s->score + h * DG_ATTN_TAIL;
            float *w = a->s->weight + h * DG_KV_BLOCK;
            for (int32_t i = 0; i < n; i++) w[i] = at[i] >= 0 ? score[at[i] - tail] : -INFINITY;
            weigh(a, h, n, 0, n);
        }
        for (int32_t i = 0; i < n; i++) value[i] = at[i] >= 0 ? value_row(a, at[i]) : NULL;
        for (int32_t lo = 0, hi; lo < n; lo = hi + 1) { /* runs of visible keys */
            for (hi = lo; hi < n && value[hi];) hi++;
            type_of(a)->mix(a, value, NULL, r * heads, (r + 1) * heads, lo, hi);
        }
    }
}

/* ---- spans ---- */

/* Merges maximum, sum and outputs of a span into what is before it. */
static void merge(float *max, float *sum, float *out, float span_max, float span_sum, const float *span_out,
                  int32_t head_dim) {
    if (span_max == -INFINITY) return; /* nothing visible */
    if (*max == -INFINITY) {
        *max = span_max;
        *sum = span_sum;
        memcpy(out, span_out, sizeof(float) * (size_t)head_dim);
        return;
    }
    const float high = *max > span_max ? *max : span_max;
    float factor[16]; /* two are used; those of a vector are alike on all instruction sets */
    v16_store(factor, v16_exp_weight(v16_join(v16_set1(*max - high), v16_set1(span_max - high))));
    const v16 old = v16_set1(factor[0]), new = v16_set1(factor[15]);
    int32_t c = 0;
    for (; c + 16 <= head_dim; c += 16)
        v16_store(out + c, v16_fma(v16_load(span_out + c), new, v16_mul(v16_load(out + c), old)));
    if (c < head_dim)
        v16_store_part(out + c,
                       v16_fma(v16_load_part(span_out + c, head_dim - c), new,
                               v16_mul(v16_load_part(out + c, head_dim - c), old)),
                       head_dim - c);
    *sum = *sum * factor[0] + span_sum * factor[15];
    *max = high;
}

/* The keys of indices [begin, end), which lie within one span: sums from scratch, then the merge. */
static void attend_span(const dg_attn_args *a, int32_t begin, int32_t end, int32_t tail) {
    const int32_t n_query = a->n_row * a->n_head;
    for (int32_t i = 0; i < n_query; i++) a->s->max[i] = -INFINITY;
    memset(a->s->lanes, 0, sizeof(float) * 16 * (size_t)n_query);
    memset(a->s->part, 0, sizeof(float) * (size_t)(n_query * a->stride));
    for (int32_t b = begin; b < end; b += DG_KV_BLOCK) {
        const int32_t n = end - b < DG_KV_BLOCK ? end - b : DG_KV_BLOCK;
        if (tail < 0 || b < tail)
            shared_block(a, b, n);
        else
            listed_block(a, b, n, tail);
    }
    for (int32_t i = 0; i < n_query; i++)
        merge(&a->max[i], &a->sum[i], a->out[i], a->s->max[i], v16_sum(v16_load(a->s->lanes + 16 * i)),
              a->s->part + i * a->stride, a->head_dim);
}

static void scale_query(float *restrict dst, const float *restrict q, float scale, int32_t n) {
    for (int32_t c = 0; c < n; c++) dst[c] = q[c] * scale;
}

static void attend(const dg_attn_args *a, int32_t begin, int32_t end) {
    const int32_t n_query = a->n_row * a->n_head;
    for (int32_t i = 0; i < n_query; i++)
        scale_query(a->s->query + i * a->stride, a->q[i], a->scale, a->head_dim);
    /* the block in which lists begin, and the scores of what they choose from */
    const int32_t tail = a->row[0].list ? a->len / DG_KV_BLOCK * DG_KV_BLOCK : -1;
    int32_t longest = 0;
    for (int32_t r = 0; r < a->n_row; r++) longest = a->row[r].n_list > longest ? a->row[r].n_list : longest;
    if (tail >= 0 && end > a->len + longest) end = a->len + longest;
    for (int32_t b = tail; tail >= 0 && end > tail && b < a->n_cached; b += DG_KV_BLOCK) {
        const int32_t n = a->n_cached - b < DG_KV_BLOCK ? a->n_cached - b : DG_KV_BLOCK;
        score_block(a, b, n, 0, n_query, a->s->score + (b - tail), DG_ATTN_TAIL);
    }
    for (int32_t b = begin, next; b < end; b = next) {
        next = b / DG_ATTN_SPAN * DG_ATTN_SPAN + DG_ATTN_SPAN;
        attend_span(a, b, next < end ? next : end, tail);
    }
}

/* Divides by the sum of weights; a row that sees nothing is 0. */
static void attend_end(float *out, float max, float sum, int32_t head_dim) {
    if (max == -INFINITY) {
        memset(out, 0, sizeof *out * (size_t)head_dim);
        return;
    }
    const float inverse = 1.0f / sum;
    for (int32_t c = 0; c < head_dim; c++) out[c] *= inverse;
}
