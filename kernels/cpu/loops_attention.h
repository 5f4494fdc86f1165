/* Inner loops of attention: a few rows, up to DG_ATTN_HEADS query heads over one KV head. What the rows see
 * in common is taken in blocks of keys that stay in the first-level cache while every row uses them.
 *
 * Every sum is fixed by a key's rank among the visible keys (its place in the score buffer): scores are
 * independent of each other, the sum of exponentials puts rank j into lane j%16, and each element of the
 * output adds its keys in rank order. */

typedef v16 load_fn(const void *p);
typedef v16 load_part_fn(const void *p, int n);

enum { SCORE_KEYS = 4 }; /* keys at a time, whose sums v16_sum4 adds up together */

/* score[h][0..n) = scale * q[h] . k for `heads` heads and n <= SCORE_KEYS cache rows. Fewer rows: the last
 * one again, and the result dropped. */
ALWAYS_INLINE void score_tile(const dg_attn_args *a, load_fn *load, load_part_fn *load_part, size_t width,
                              int heads, const float *q, const char *const k[SCORE_KEYS], int n,
                              float *score) {
    const int32_t hd = a->head_dim, whole = hd / 16 * 16;
    v16 sum[DG_ATTN_HEADS][SCORE_KEYS];
#pragma GCC unroll 4
    for (int h = 0; h < heads; h++)
#pragma GCC unroll 4
        for (int i = 0; i < SCORE_KEYS; i++) sum[h][i] = v16_zero();
    for (int32_t c = 0; c < whole; c += 16) {
        v16 key[SCORE_KEYS];
#pragma GCC unroll 4
        for (int i = 0; i < SCORE_KEYS; i++) key[i] = load(k[i] + (size_t)c * width);
#pragma GCC unroll 4
        for (int h = 0; h < heads; h++) {
            const v16 query = v16_load(q + h * hd + c);
#pragma GCC unroll 4
            for (int i = 0; i < SCORE_KEYS; i++) sum[h][i] = v16_fma(query, key[i], sum[h][i]);
        }
    }
    if (whole < hd) { /* through a copy, so that the sums themselves can stay in registers */
        v16 copy[DG_ATTN_HEADS][SCORE_KEYS];
        memcpy(copy, sum, sizeof copy);
        for (int h = 0; h < heads; h++)
            for (int i = 0; i < SCORE_KEYS; i++)
                copy[h][i] = v16_fma(v16_load_part(q + h * hd + whole, hd - whole),
                                     load_part(k[i] + (size_t)whole * width, hd - whole), copy[h][i]);
        memcpy(sum, copy, sizeof copy);
    }
#pragma GCC unroll 4
    for (int h = 0; h < heads; h++) {
        float v[SCORE_KEYS];
        v16_sum4(sum[h][0], sum[h][1], sum[h][2], sum[h][3], v);
        float *out = score + h * a->score_stride;
        for (int i = 0; i < SCORE_KEYS; i++) v[i] *= a->scale;
        memcpy(out, v, n == SCORE_KEYS ? sizeof v : (size_t)n * sizeof *v);
    }
}

/* The scores of n cache rows from `first` on (or in list[]), which have the ranks from `rank` on. */
ALWAYS_INLINE void score_keys(const dg_attn_args *a, load_fn *load, load_part_fn *load_part, size_t width,
                              int heads, const dg_attn_row *row, int32_t first, const int32_t *list,
                              int32_t n, int32_t rank) {
    float *score = row->score + rank;
    for (int32_t i = 0; i < n; i += SCORE_KEYS) {
        const int count = n - i < SCORE_KEYS ? n - i : SCORE_KEYS;
        const char *k[SCORE_KEYS];
        for (int j = 0; j < SCORE_KEYS; j++) {
            const int32_t at = i + (j < count ? j : count - 1);
            k[j] = a->k + a->k_stride * (size_t)(list ? list[at] : first + at);
        }
        if (SCORE_TOGETHER)
            score_tile(a, load, load_part, width, heads, row->q, k, count, score + i);
        else
            for (int h = 0; h < heads; h++)
                score_tile(a, load, load_part, width, 1, row->q + h * a->head_dim, k, count,
                           score + h * a->score_stride + i);
    }
}

/* Scores into weights e^(score - max), in place; returns their sum. The buffer is padded to whole vectors. */
static float soften(float *score, int32_t n) {
    const int32_t padded = (n + 15) / 16 * 16;
    for (int32_t i = n; i < padded; i++) score[i] = -INFINITY; /* e^-inf is 0 */
    v16 most = v16_load(score), sum = v16_zero();
    for (int32_t i = 16; i < padded; i += 16) most = v16_max(v16_load(score + i), most);
    float lane[16], max = -INFINITY;
    v16_store(lane, most);
    for (int l = 0; l < 16; l++) max = lane[l] > max ? lane[l] : max;
    for (int32_t i = 0; i < padded; i += 16) {
        const v16 e = v16_exp(v16_sub(v16_load(score + i), v16_set1(max)));
        v16_store(score + i, e);
        sum = v16_add(sum, e);
    }
    return v16_sum(sum);
}

/* out[h][c0..] += weight[h][0..n) * v, for `chunks` vectors of columns. */
ALWAYS_INLINE void mix_tile(const dg_attn_args *a, load_fn *load, size_t width, int heads, int chunks,
                            float *out, int32_t c0, int32_t first, const int32_t *list, int32_t n,
                            const float *weight) {
    v16 sum[DG_ATTN_HEADS][MIX_CHUNKS];
#pragma GCC unroll 4
    for (int h = 0; h < heads; h++)
#pragma GCC unroll 4
        for (int c = 0; c < chunks; c++) sum[h][c] = v16_load(out + h * a->head_dim + c0 + 16 * c);
    for (int32_t i = 0; i < n; i++) {
        const char *v = a->v + a->v_stride * (size_t)(list ? list[i] : first + i) + (size_t)c0 * width;
#pragma GCC unroll 4
        for (int c = 0; c < chunks; c++) {
            const v16 value = load(v + (size_t)(16 * c) * width);
#pragma GCC unroll 4
            for (int h = 0; h < heads; h++)
                sum[h][c] = v16_fma(v16_set1(weight[h * a->score_stride + i]), value, sum[h][c]);
        }
    }
#pragma GCC unroll 4
    for (int h = 0; h < heads; h++)
#pragma GCC unroll 4
        for (int c = 0; c < chunks; c++) v16_store(out + h * a->head_dim + c0 + 16 * c, sum[h][c]);
}

/* The same for the last head_dim % 16 columns. */
ALWAYS_INLINE void mix_rest(const dg_attn_args *a, load_part_fn *load_part, size_t width, int heads,
                            float *out, int32_t c0, int32_t first, const int32_t *list, int32_t n,
                            const float *weight) {
    const int32_t rest = a->head_dim - c0;
    for (int h = 0; h < heads; h++) {
        v16 sum = v16_load_part(out + h * a->head_dim + c0, rest);
        for (int32_t i = 0; i < n; i++) {
            const char *v = a->v + a->v_stride * (size_t)(list ? list[i] : first + i) + (size_t)c0 * width;
            sum = v16_fma(v16_set1(weight[h * a->score_stride + i]), load_part(v, rest), sum);
        }
        v16_store_part(out + h * a->head_dim + c0, sum, rest);
    }
}

/* Adds to a row's output the n cache rows from `first` on (or in list[]), of the ranks from `rank` on. */
ALWAYS_INLINE void mix_keys(const dg_attn_args *a, load_fn *load, load_part_fn *load_part, size_t width,
                            int heads, const dg_attn_row *row, int32_t first, const int32_t *list, int32_t n,
                            int32_t rank) {
    const float *weight = row->score + rank;
    int32_t c = 0;
    for (; c + 16 * MIX_CHUNKS <= a->head_dim; c += 16 * MIX_CHUNKS)
        mix_tile(a, load, width, heads, MIX_CHUNKS, row->out, c, first, list, n, weight);
    for (; c + 16 <= a->head_dim; c += 16)
        mix_tile(a, load, width, heads, 1, row->out, c, first, list, n, weight);
    if (c < a->head_dim) mix_rest(a, load_part, width, heads, row->out, c, first, list, n, weight);
}

/* Cache rows [begin, end) that every row sees; empty if there are none. */
static void common_keys(const dg_attn_args *a, int32_t *begin, int32_t *end) {
    *begin = a->row[0].first;
    *end = a->row[0].last;
    for (int32_t r = 1; r < a->n_row; r++) {
        if (a->row[r].first > *begin) *begin = a->row[r].first;
        if (a->row[r].last < *end) *end = a->row[r].last;
    }
    if (*end < *begin) *begin = *end = 0;
}

/* A step over n cache rows from `first` on (or in list[]), which have the ranks from `rank` on, for one row
 * of queries: scoring them or adding their values. One function for each cache type and number of heads. */
typedef void step_fn(const dg_attn_args *a, const dg_attn_row *row, int32_t first, const int32_t *list,
                     int32_t n, int32_t rank);

typedef struct steps {
    step_fn *score, *mix;
} steps;

#define STEPS(name, load, width, heads)                                                              \
    static void score_##name##_##heads(const dg_attn_args *a, const dg_attn_row *row, int32_t first, \
                                       const int32_t *list, int32_t n, int32_t rank) {               \
        score_keys(a, load, load##_part, width, heads, row, first, list, n, rank);                   \
    }                                                                                                \
    static void mix_##name##_##heads(const dg_attn_args *a, const dg_attn_row *row, int32_t first,   \
                                     const int32_t *list, int32_t n, int32_t rank) {                 \
        mix_keys(a, load, load##_part, width, heads, row, first, list, n, rank);                     \
    }
#define ALL_STEPS(name, load, width)                                                      \
    STEPS(name, load, width, 1)                                                           \
    STEPS(name, load, width, 2)                                                           \
    STEPS(name, load, width, 3)                                                           \
    STEPS(name, load, width, 4)                                                           \
    static const steps steps_##name[DG_ATTN_HEADS] = {{score_##name##_1, mix_##name##_1}, \
                                                      {score_##name##_2, mix_##name##_2}, \
                                                      {score_##name##_3, mix_##name##_3}, \
                                                      {score_##name##_4, mix_##name##_4}};
ALL_STEPS(f32, v16_load, 4)
ALL_STEPS(f16, v16_load_f16, 2)
ALL_STEPS(bf16, v16_load_bf16, 2)

enum { KEY_BLOCK = 64 };

/* Takes the step over all keys of all rows: for each row in the order of its ranks, and over what the rows
 * have in common block by block. */
static void for_keys(const dg_attn_args *a, step_fn *step) {
    int32_t begin, end;
    common_keys(a, &begin, &end);
    const bool any = begin < end;
    for (int32_t i = 0; any && i < a->n_row; i++)
        step(a, &a->row[i], a->row[i].first, NULL, begin - a->row[i].first, 0);
    for (int32_t at = begin; at < end; at += KEY_BLOCK)
        for (int32_t i = 0; i < a->n_row; i++)
            step(a, &a->row[i], at, NULL, end - at < KEY_BLOCK ? end - at : KEY_BLOCK, at - a->row[i].first);
    for (int32_t i = 0; i < a->n_row; i++) {
        const dg_attn_row *row = &a->row[i];
        const int32_t from = any ? end : row->first;
        step(a, row, from, NULL, row->last - from, from - row->first);
        step(a, row, 0, row->list, row->n_list, row->last - row->first);
    }
}

static void attend(const dg_attn_args *a) {
    const steps *kind = a->dtype == DG_F32 ? steps_f32 : a->dtype == DG_F16 ? steps_f16 : steps_bf16;
    const steps step = kind[a->n_head - 1];
    const int32_t width = a->n_head * a->head_dim;
    float inverse[DG_ATTN_ROWS][DG_ATTN_HEADS];
    for_keys(a, step.score);
    for (int32_t i = 0; i < a->n_row; i++) {
        const dg_attn_row *row = &a->row[i];
        const int32_t n = row->last - row->first + row->n_list;
        for (int32_t h = 0; h < a->n_head; h++) /* a row that sees nothing is 0 */
            inverse[i][h] = n ? 1.0f / soften(row->score + h * a->score_stride, n) : 0;
        memset(row->out, 0, sizeof(float) * (size_t)width);
    }
    for_keys(a, step.mix);
    for (int32_t i = 0; i < a->n_row; i++)
        for (int32_t c = 0; c < width; c++) a->row[i].out[c] *= inverse[i][c / a->head_dim];
}
