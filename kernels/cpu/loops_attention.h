/* Inner loops of attention: one row, up to DG_ATTN_HEADS query heads over one KV head.
 *
 * Every sum is fixed by a key's rank among the visible keys (its place in the score buffer): scores are
 * independent of each other, the sum of exponentials puts rank j into lane j%16, and each element of the
 * output adds its keys in rank order. */

typedef v16 load_fn(const void *p);
typedef v16 load_part_fn(const void *p, int n);

ALWAYS_INLINE v16 load_f32(const void *p) { return v16_load(p); }
ALWAYS_INLINE v16 load_f32_part(const void *p, int n) { return v16_load_part(p, n); }

/* score[h][rank] = scale * q[h] . k for cache rows first.. (or list[]), n of them. */
ALWAYS_INLINE void score_keys(const dg_attn_args *a, load_fn *load, load_part_fn *load_part, size_t width,
                              int heads, int32_t first, const int32_t *list, int32_t n, float *score) {
    const int32_t hd = a->head_dim, whole = hd / 16 * 16;
    for (int32_t i = 0; i < n; i++) {
        const char *k = a->k + a->k_stride * (size_t)(list ? list[i] : first + i);
        v16 sum[DG_ATTN_HEADS];
#pragma GCC unroll 4
        for (int h = 0; h < heads; h++) sum[h] = v16_zero();
        for (int32_t c = 0; c < whole; c += 16) {
            const v16 key = load(k + (size_t)c * width);
#pragma GCC unroll 4
            for (int h = 0; h < heads; h++) sum[h] = v16_fma(v16_load(a->q + h * hd + c), key, sum[h]);
        }
        if (whole < hd) {
            const v16 key = load_part(k + (size_t)whole * width, hd - whole);
#pragma GCC unroll 4
            for (int h = 0; h < heads; h++)
                sum[h] = v16_fma(v16_load_part(a->q + h * hd + whole, hd - whole), key, sum[h]);
        }
#pragma GCC unroll 4
        for (int h = 0; h < heads; h++) score[h * a->score_stride + i] = v16_sum(sum[h]) * a->scale;
    }
}

/* Scores into weights e^(score - max), in place; returns their sum. The buffer is padded to whole vectors. */
static float soften(float *score, int32_t n) {
    float max = score[0];
    for (int32_t i = 1; i < n; i++) max = score[i] > max ? score[i] : max;
    const int32_t padded = (n + 15) / 16 * 16;
    for (int32_t i = n; i < padded; i++) score[i] = -INFINITY; /* e^-inf is 0 */
    float lane[16] = {0};
    for (int32_t i = 0; i < padded; i += 16)
        for (int l = 0; l < 16; l++) {
            score[i + l] = exp_f32(score[i + l] - max);
            lane[l] += score[i + l];
        }
    return v16_sum(v16_load(lane));
}

/* sum[h][c] += weight[h][rank] * v for n keys, columns c0.. of MIX_CHUNKS vectors (fewer: chunks). */
ALWAYS_INLINE void add_values(const dg_attn_args *a, load_fn *load, size_t width, int heads, int chunks, int32_t c0,
                              int32_t first, const int32_t *list, int32_t n, const float *weight,
                              v16 sum[DG_ATTN_HEADS][MIX_CHUNKS]) {
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
}

ALWAYS_INLINE void mix_values(const dg_attn_args *a, load_fn *load, size_t width, int heads, int chunks, int32_t c0,
                              const float *inverse) {
    const dg_attn_keys *keys = &a->keys;
    v16 sum[DG_ATTN_HEADS][MIX_CHUNKS];
#pragma GCC unroll 4
    for (int h = 0; h < heads; h++)
#pragma GCC unroll 4
        for (int c = 0; c < chunks; c++) sum[h][c] = v16_zero();
    const int32_t n = keys->last - keys->first;
    add_values(a, load, width, heads, chunks, c0, keys->first, NULL, n, a->score, sum);
    add_values(a, load, width, heads, chunks, c0, 0, keys->list, keys->n_list, a->score + n, sum);
#pragma GCC unroll 4
    for (int h = 0; h < heads; h++)
#pragma GCC unroll 4
        for (int c = 0; c < chunks; c++)
            v16_store(a->out + h * a->head_dim + c0 + 16 * c, v16_mul(sum[h][c], v16_set1(inverse[h])));
}

/* The last head_dim % 16 columns. */
ALWAYS_INLINE void mix_rest(const dg_attn_args *a, load_part_fn *load_part, size_t width, int32_t c0,
                            const float *inverse) {
    const dg_attn_keys *keys = &a->keys;
    const int32_t n = keys->last - keys->first, rest = a->head_dim - c0;
    for (int h = 0; h < a->n_head; h++) {
        const float *weight = a->score + h * a->score_stride;
        v16 sum = v16_zero();
        for (int32_t i = 0; i < n + keys->n_list; i++) {
            const int32_t row = i < n ? keys->first + i : keys->list[i - n];
            const v16 value = load_part(a->v + a->v_stride * (size_t)row + (size_t)c0 * width, rest);
            sum = v16_fma(v16_set1(weight[i]), value, sum);
        }
        v16_store_part(a->out + h * a->head_dim + c0, v16_mul(sum, v16_set1(inverse[h])), rest);
    }
}

ALWAYS_INLINE void attend_heads(const dg_attn_args *a, load_fn *load, load_part_fn *load_part, size_t width,
                                int heads) {
    const dg_attn_keys *keys = &a->keys;
    const int32_t n = keys->last - keys->first;
    score_keys(a, load, load_part, width, heads, keys->first, NULL, n, a->score);
    score_keys(a, load, load_part, width, heads, 0, keys->list, keys->n_list, a->score + n);
    float inverse[DG_ATTN_HEADS];
    for (int h = 0; h < heads; h++) inverse[h] = 1.0f / soften(a->score + h * a->score_stride, n + keys->n_list);
    int32_t c = 0;
    for (; c + 16 * MIX_CHUNKS <= a->head_dim; c += 16 * MIX_CHUNKS)
        mix_values(a, load, width, heads, MIX_CHUNKS, c, inverse);
    for (; c + 16 <= a->head_dim; c += 16) mix_values(a, load, width, heads, 1, c, inverse);
    if (c < a->head_dim) mix_rest(a, load_part, width, c, inverse);
}

#define ATTEND(name, load, width)                                                                              \
    static void name(const dg_attn_args *a) {                                                                  \
        switch (a->n_head) {                                                                                   \
        case 1: attend_heads(a, load, load##_part, width, 1); break;                                           \
        case 2: attend_heads(a, load, load##_part, width, 2); break;                                           \
        case 3: attend_heads(a, load, load##_part, width, 3); break;                                           \
        default: attend_heads(a, load, load##_part, width, 4); break;                                          \
        }                                                                                                      \
    }
ATTEND(attend_f32, load_f32, 4)
ATTEND(attend_f16, v16_load_f16, 2)
ATTEND(attend_bf16, v16_load_bf16, 2)

static void attend(const dg_attn_args *a) {
    if (a->keys.last == a->keys.first && a->keys.n_list == 0)
        memset(a->out, 0, sizeof(float) * (size_t)a->n_head * (size_t)a->head_dim);
    else if (a->dtype == DG_F32)
        attend_f32(a);
    else if (a->dtype == DG_F16)
        attend_f16(a);
    else
        attend_bf16(a);
}
