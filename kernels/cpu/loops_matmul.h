/* Inner loops of matmul. The value of a product is defined by one rule for every weight type: decode the
 * row of w as dg_dequant_row does, add x[k]*w[k] into lane k%16 for ascending k, then v16_sum. Decoding in
 * registers, panels and tiles change which sums are computed together, never a sum. */

/* Decodes the 32 weights of `unit` of a row. */
typedef void decode_fn(const uint8_t *row, int32_t unit, v16 w[2]);

ALWAYS_INLINE void decode_f32(const uint8_t *row, int32_t unit, v16 w[2]) {
    const float *p = (const float *)(const void *)row + 32 * (size_t)unit;
    w[0] = v16_load(p);
    w[1] = v16_load(p + 16);
}

ALWAYS_INLINE void decode_f16(const uint8_t *row, int32_t unit, v16 w[2]) {
    w[0] = v16_load_f16(row + 64 * (size_t)unit);
    w[1] = v16_load_f16(row + 64 * (size_t)unit + 32);
}

ALWAYS_INLINE void decode_bf16(const uint8_t *row, int32_t unit, v16 w[2]) {
    w[0] = v16_load_bf16(row + 64 * (size_t)unit);
    w[1] = v16_load_bf16(row + 64 * (size_t)unit + 32);
}

ALWAYS_INLINE void decode_q8_0(const uint8_t *row, int32_t unit, v16 w[2]) {
    const uint8_t *b = row + 34 * (size_t)unit;
    const v16 d = v16_set1_f16(b);
    w[0] = v16_mul(v16_from_i8((i8x16)u8x16_load(b + 2)), d);
    w[1] = v16_mul(v16_from_i8((i8x16)u8x16_load(b + 18)), d);
}

ALWAYS_INLINE void decode_q4_0(const uint8_t *row, int32_t unit, v16 w[2]) {
    const uint8_t *b = row + 18 * (size_t)unit;
    const v16 d = v16_set1_f16(b);
    nibble_both(nibble_make(d, v16_mul(d, v16_set1(-8))), u8x16_load(b + 2), w);
}

ALWAYS_INLINE void decode_q4_1(const uint8_t *row, int32_t unit, v16 w[2]) {
    const uint8_t *b = row + 20 * (size_t)unit;
    nibble_both(nibble_make_f16(b), u8x16_load(b + 4), w);
}

/* The 6-bit scale and minimum of sub-block j of Q4_K and Q5_K (layout: see quant.c). */
ALWAYS_INLINE void k_scale(const uint8_t *s, int j, float *scale, float *min) {
    const int low = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6 << 4);
    const int high = j < 4 ? s[j + 4] & 63 : (s[j + 4] >> 4) | (s[j] >> 6 << 4);
    *scale = (float)low;
    *min = (float)high;
}

/* Scale d*s and offset -dmin*m of a sub-block whose d, dmin and 12 packed bytes start at b. */
ALWAYS_INLINE void k_affine(const uint8_t *b, int j, v16 *scale, v16 *offset) {
    float s, m;
    k_scale(b + 4, j, &s, &m);
    *scale = v16_mul(v16_set1_f16(b), v16_set1(s));
    *offset = v16_mul(v16_set1_f16(b + 2), v16_set1(-m));
}

ALWAYS_INLINE void decode_q4_k(const uint8_t *row, int32_t unit, v16 w[2]) {
    const uint8_t *b = row + 144 * (size_t)(unit / 8);
    const int j = unit % 8;
    v16 scale, offset;
    k_affine(b, j, &scale, &offset);
    const nibble_code t = nibble_make(scale, offset);
    const uint8_t *q = b + 16 + j / 2 * 32;
    if (j % 2 == 0) {
        w[0] = nibble_low(t, u8x16_load(q));
        w[1] = nibble_low(t, u8x16_load(q + 16));
    } else {
        w[0] = nibble_high(t, u8x16_load(q));
        w[1] = nibble_high(t, u8x16_load(q + 16));
    }
}

ALWAYS_INLINE void decode_q5_k(const uint8_t *row, int32_t unit, v16 w[2]) {
    const uint8_t *b = row + 176 * (size_t)(unit / 8);
    const int j = unit % 8, shift = 4 * (j % 2);
    v16 scale, offset;
    k_affine(b, j, &scale, &offset);
    for (int i = 0; i < 2; i++) {
        const u8x16 fifth = u8x16_load(b + 16 + 16 * i) >> (uint8_t)j & 1;
        const u8x16 low = u8x16_load(b + 48 + j / 2 * 32 + 16 * i) >> (uint8_t)shift & 15;
        w[i] = v16_fma(v16_from_u8(low | fifth << 4), scale, offset);
    }
}

ALWAYS_INLINE void decode_q6_k(const uint8_t *row, int32_t unit, v16 w[2]) {
    const uint8_t *b = row + 210 * (size_t)(unit / 8);
    const int half = unit % 8 / 4, g = unit % 4;
    const uint8_t *ql = b + 64 * half + 32 * (g % 2), *qh = b + 128 + 32 * half;
    const int8_t *scale = (const int8_t *)b + 192 + 8 * half + 2 * g;
    const v16 d = v16_set1_f16(b + 208);
    for (int i = 0; i < 2; i++) {
        const u8x16 low = u8x16_load(ql + 16 * i) >> (uint8_t)(4 * (g / 2)) & 15;
        const u8x16 high = u8x16_load(qh + 16 * i) >> (uint8_t)(2 * g) & 3;
        const i8x16 q = (i8x16)(low | high << 4) - 32;
        w[i] = v16_mul(v16_mul(d, v16_set1((float)scale[i])), v16_from_i8(q));
    }
}

/* The k%32 weights behind the last whole unit; only plain types have them. */
ALWAYS_INLINE void decode_rest(dg_dtype dtype, const uint8_t *row, int32_t unit, int32_t rest, v16 w[2]) {
    const size_t width = dtype == DG_F32 ? 4 : 2;
    for (int i = 0; i < 2; i++) {
        const uint8_t *p = row + (32 * (size_t)unit + 16 * (size_t)i) * width;
        const int n = rest - 16 * i < 0 ? 0 : rest - 16 * i < 16 ? rest - 16 * i : 16;
        if (n == 16)
            w[i] = dtype == DG_F32 ? v16_load(p) : dtype == DG_F16 ? v16_load_f16(p) : v16_load_bf16(p);
        else
            w[i] = dtype == DG_F32   ? v16_load_part(p, n)
                   : dtype == DG_F16 ? v16_load_f16_part(p, n)
                                     : v16_load_bf16_part(p, n);
    }
}

ALWAYS_INLINE v16 load_rest(const float *x, int32_t rest) {
    return rest >= 16 ? v16_load(x) : v16_load_part(x, rest < 0 ? 0 : rest);
}

static float bias_at(const dg_mat *bias, int32_t m) {
    switch (bias->dtype) {
    case DG_F32: return ((const float *)bias->data)[m];
    case DG_F16: return dg_f16_to_f32(((const uint16_t *)bias->data)[m]);
    default: return dg_bf16_to_f32(((const uint16_t *)bias->data)[m]);
    }
}

ALWAYS_INLINE void put_out(const dg_matmul_args *a, int32_t r, int32_t m, v16 lanes) {
    float *out = (float *)a->out.data + r * a->out.stride + m;
    float v = v16_sum(lanes);
    if (a->bias.data) v += bias_at(&a->bias, m);
    *out = a->add ? *out + v : v;
}

/* ---- few rows: decode in registers, straight into the products ---- */

enum { FUSED_OUTS = 4 }; /* independent chains that hide the latency of an addition */

ALWAYS_INLINE void fused_tile(const dg_matmul_args *a, decode_fn *decode, int rows, int32_t r0, int32_t m,
                              int32_t m1) {
    const int32_t units = a->w.cols / 32, rest = a->w.cols % 32;
    const size_t stride = dg_dtype_bytes(a->w.dtype, (size_t)a->w.stride);
    const float *x = (const float *)a->x.data + r0 * a->x.stride;
    const uint8_t *row[FUSED_OUTS];
    v16 sum[FUSED_OUTS][TILE_ROWS];
    for (int j = 0; j < FUSED_OUTS; j++) /* a cut-off tile reads its last row again and drops the result */
        row[j] = (const uint8_t *)a->w.data + stride * (size_t)(m + j < m1 ? m + j : m1 - 1);
#pragma GCC unroll 4
    for (int j = 0; j < FUSED_OUTS; j++)
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) sum[j][r] = v16_zero();

    for (int32_t u = 0; u < units; u++) {
        v16 w[2];
#pragma GCC unroll 4
        for (int j = 0; j < FUSED_OUTS; j++) {
            decode(row[j], u, w);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) {
                const float *p = x + r * a->x.stride + 32 * (size_t)u;
                sum[j][r] = v16_fma(w[0], v16_load(p), sum[j][r]);
                sum[j][r] = v16_fma(w[1], v16_load(p + 16), sum[j][r]);
            }
        }
    }
    if (rest) {
#pragma GCC unroll 4
        for (int j = 0; j < FUSED_OUTS; j++) {
            v16 w[2];
            decode_rest(a->w.dtype, row[j], units, rest, w);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) {
                const float *p = x + r * a->x.stride + 32 * (size_t)units;
                sum[j][r] = v16_fma(w[0], load_rest(p, rest), sum[j][r]);
                if (rest > 16) sum[j][r] = v16_fma(w[1], load_rest(p + 16, rest - 16), sum[j][r]);
            }
        }
    }
#pragma GCC unroll 4
    for (int j = 0; j < FUSED_OUTS; j++)
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
            if (m + j < m1) put_out(a, r0 + r, m + j, sum[j][r]);
}

#define FUSED(type)                                                                                            \
    static void fused_##type(const dg_matmul_args *a, int32_t m0, int32_t m1) {                                \
        for (int32_t m = m0; m < m1; m += FUSED_OUTS) {                                                        \
            int32_t r = 0;                                                                                     \
            for (; r + TILE_ROWS <= a->x.rows; r += TILE_ROWS)                                                 \
                fused_tile(a, decode_##type, TILE_ROWS, r, m, m1);                                             \
            if (TILE_ROWS > 2 && a->x.rows - r == 3) fused_tile(a, decode_##type, TILE_ROWS > 2 ? 3 : 1, r, m, m1); \
            if (TILE_ROWS > 2 && a->x.rows - r == 2) fused_tile(a, decode_##type, TILE_ROWS > 2 ? 2 : 1, r, m, m1); \
            if (a->x.rows - r == 1) fused_tile(a, decode_##type, 1, r, m, m1);                                 \
        }                                                                                                      \
    }                                                                                                          \
    static void panel_##type(const uint8_t *row, int32_t unit, int32_t n_unit, float *dst) {                   \
        for (int32_t u = 0; u < n_unit; u++) {                                                                 \
            v16 w[2];                                                                                          \
            decode_##type(row, unit + u, w);                                                                   \
            v16_store(dst + 32 * (size_t)u, w[0]);                                                             \
            v16_store(dst + 32 * (size_t)u + 16, w[1]);                                                        \
        }                                                                                                      \
    }
FUSED(f32)
FUSED(f16)
FUSED(bf16)
FUSED(q8_0)
FUSED(q4_0)
FUSED(q4_1)
FUSED(q4_k)
FUSED(q5_k)
FUSED(q6_k)

typedef struct direct_type {
    void (*fused)(const dg_matmul_args *a, int32_t m0, int32_t m1);
    void (*panel)(const uint8_t *row, int32_t unit, int32_t n_unit, float *dst);
} direct_type;

static const direct_type direct[DG_DTYPE_COUNT] = {
    [DG_F32] = {fused_f32, panel_f32},    [DG_F16] = {fused_f16, panel_f16},    [DG_BF16] = {fused_bf16, panel_bf16},
    [DG_Q8_0] = {fused_q8_0, panel_q8_0}, [DG_Q4_0] = {fused_q4_0, panel_q4_0}, [DG_Q4_1] = {fused_q4_1, panel_q4_1},
    [DG_Q4_K] = {fused_q4_k, panel_q4_k}, [DG_Q5_K] = {fused_q5_k, panel_q5_k}, [DG_Q6_K] = {fused_q6_k, panel_q6_k},
};

/* ---- many rows, and the types without a decoder above: decode a panel once, multiply tiles by it ---- */

/* panel row j = weights [k0, k0+len) of row m+j. */
static void fill_panel(const dg_mat *w, int32_t m, int32_t n_out, int32_t k0, int32_t len, float *panel) {
    for (int32_t j = 0; j < n_out; j++) {
        const uint8_t *row = dg_mat_row(w, m + j);
        float *dst = panel + (size_t)j * DG_PANEL_LEN;
        if (direct[w->dtype].panel) {
            direct[w->dtype].panel(row, k0 / 32, len / 32, dst);
            const int32_t done = len / 32 * 32;
            if (done < len)
                dg_dequant_row(w->dtype, row + dg_dtype_bytes(w->dtype, (size_t)(k0 + done)), dst + done,
                               (size_t)(len - done));
        } else {
            dg_dequant_row(w->dtype, row + dg_dtype_bytes(w->dtype, (size_t)k0), dst, (size_t)len);
        }
    }
}

/* sum[r][j] += the products of rows x+r*ldx with panel rows j. */
ALWAYS_INLINE void panel_tile(int rows, int outs, const float *x, int64_t ldx, const float *panel, int32_t len,
                              bool first, float *sums) {
    v16 sum[TILE_ROWS][TILE_OUTS];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int j = 0; j < outs; j++)
            sum[r][j] = first ? v16_zero() : v16_load(sums + (r * DG_PANEL_OUTS + j) * DG_LANES);
    int32_t k = 0;
    for (; k + 16 <= len; k += 16) {
        v16 w[TILE_OUTS];
#pragma GCC unroll 4
        for (int j = 0; j < outs; j++) w[j] = v16_load(panel + j * DG_PANEL_LEN + k);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            const v16 v = v16_load(x + r * ldx + k);
#pragma GCC unroll 4
            for (int j = 0; j < outs; j++) sum[r][j] = v16_fma(w[j], v, sum[r][j]);
        }
    }
    if (k < len) {
        for (int r = 0; r < rows; r++)
            for (int j = 0; j < outs; j++)
                sum[r][j] = v16_fma(v16_load_part(panel + j * DG_PANEL_LEN + k, len - k),
                                    v16_load_part(x + r * ldx + k, len - k), sum[r][j]);
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int j = 0; j < outs; j++) v16_store(sums + (r * DG_PANEL_OUTS + j) * DG_LANES, sum[r][j]);
}

static void panel_rows(int32_t n, int32_t n_out, const float *x, int64_t ldx, const float *panel, int32_t len,
                       bool first, float *sums) {
    int32_t r = 0;
    for (; r + TILE_ROWS <= n; r += TILE_ROWS)
        for (int32_t j = 0; j < n_out; j += TILE_OUTS)
            panel_tile(TILE_ROWS, TILE_OUTS, x + r * ldx, ldx, panel + j * DG_PANEL_LEN, len, first,
                       sums + (r * DG_PANEL_OUTS + j) * DG_LANES);
    for (; r < n; r++)
        for (int32_t j = 0; j < n_out; j += TILE_OUTS)
            panel_tile(1, TILE_OUTS, x + r * ldx, ldx, panel + j * DG_PANEL_LEN, len, first,
                       sums + (r * DG_PANEL_OUTS + j) * DG_LANES);
}

static void matmul_panels(const dg_matmul_args *a, int32_t m0, int32_t m1, float *panel, float *sums) {
    const int32_t k = a->w.cols, n_block = (k + DG_PANEL_LEN - 1) / DG_PANEL_LEN;
    /* equal blocks, cut where every weight type has a block border */
    const int32_t block = n_block > 1 ? ((k + n_block - 1) / n_block + 255) / 256 * 256 : k;
    for (int32_t r0 = 0; r0 < a->x.rows; r0 += DG_PANEL_ROWS) {
        const int32_t n = a->x.rows - r0 < DG_PANEL_ROWS ? a->x.rows - r0 : DG_PANEL_ROWS;
        const float *x = (const float *)a->x.data + r0 * a->x.stride;
        for (int32_t m = m0; m < m1; m += DG_PANEL_OUTS) {
            const int32_t n_out = m1 - m < DG_PANEL_OUTS ? m1 - m : DG_PANEL_OUTS;
            for (int32_t k0 = 0; k0 < k; k0 += block) {
                const int32_t len = k - k0 < block ? k - k0 : block;
                fill_panel(&a->w, m, n_out, k0, len, panel);
                panel_rows(n, n_out, x + k0, a->x.stride, panel, len, k0 == 0, sums);
            }
            for (int32_t r = 0; r < n; r++)
                for (int32_t j = 0; j < n_out; j++)
                    put_out(a, r0 + r, m + j, v16_load(sums + (r * DG_PANEL_OUTS + j) * DG_LANES));
        }
    }
}

static void matmul(const dg_matmul_args *a, int32_t m0, int32_t m1, float *panel, float *sums) {
    if (a->x.rows <= TILE_ROWS && direct[a->w.dtype].fused)
        direct[a->w.dtype].fused(a, m0, m1);
    else
        matmul_panels(a, m0, m1, panel, sums);
}
