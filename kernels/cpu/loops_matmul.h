/* Inner loops of matmul. The value of a product is defined by one rule for every weight type: decode the
 * row of w as dg_dequant_row does, add x[k]*w[k] into lane k%16 for ascending k, then v16_sum. Decoding in
 * registers, panels and tiles change which sums are computed together, never a sum. */

/* Weights come in blocks of UNITS * 32 and BYTES bytes. open_##type unpacks what is cheaper to unpack for the
 * block as a whole; decode_##type gives the 32 weights of one unit. Going through memory makes each scale a
 * broadcasting load, which is cheaper than moving it between lanes. */
typedef struct opened {
    float scale[16];
    uint8_t q[256]; /* Q5_K, Q6_K: the codes, a byte each; 16-bit: the block, read a whole line at a time */
} opened;
typedef void open_fn(const uint8_t *block, opened *o);
typedef void decode_fn(const uint8_t *block, int unit, const opened *o, v16 w[2]);

enum { UNITS_f32 = 1, BYTES_f32 = 128, UNITS_f16 = 1, BYTES_f16 = 64, UNITS_bf16 = 1, BYTES_bf16 = 64 };

ALWAYS_INLINE void open_f32(const uint8_t *b, opened *o) { (void)b, (void)o; }
ALWAYS_INLINE void decode_f32(const uint8_t *b, int unit, const opened *o, v16 w[2]) {
    (void)unit, (void)o;
    w[0] = v16_load(b);
    w[1] = v16_load(b + 64);
}

ALWAYS_INLINE void open_f16(const uint8_t *b, opened *o) { memcpy(o->q, b, 64); }
ALWAYS_INLINE void decode_f16(const uint8_t *b, int unit, const opened *o, v16 w[2]) {
    (void)unit, (void)b;
    w[0] = v16_load_f16(o->q);
    w[1] = v16_load_f16(o->q + 32);
}

ALWAYS_INLINE void open_bf16(const uint8_t *b, opened *o) { memcpy(o->q, b, 64); }
ALWAYS_INLINE void decode_bf16(const uint8_t *b, int unit, const opened *o, v16 w[2]) {
    (void)unit, (void)b;
    w[0] = v16_load_bf16(o->q);
    w[1] = v16_load_bf16(o->q + 32);
}

enum { UNITS_q8_0 = 1, BYTES_q8_0 = 34 };
ALWAYS_INLINE void open_q8_0(const uint8_t *b, opened *o) { f16_pair(b, o->scale); }
ALWAYS_INLINE void decode_q8_0(const uint8_t *b, int unit, const opened *o, v16 w[2]) {
    (void)unit;
    w[0] = v16_mul(v16_from_i8((i8x16)u8x16_load(b + 2)), v16_set1(o->scale[0]));
    w[1] = v16_mul(v16_from_i8((i8x16)u8x16_load(b + 18)), v16_set1(o->scale[0]));
}

enum { UNITS_q4_0 = 1, BYTES_q4_0 = 18 };
ALWAYS_INLINE void open_q4_0(const uint8_t *b, opened *o) { f16_pair(b, o->scale); }
ALWAYS_INLINE void decode_q4_0(const uint8_t *b, int unit, const opened *o, v16 w[2]) {
    (void)unit;
    const v16 d = v16_set1(o->scale[0]);
    nibble_both(nibble_make(d, v16_mul(d, v16_set1(-8))), u8x16_load(b + 2), w);
}

enum { UNITS_q4_1 = 1, BYTES_q4_1 = 20 };
ALWAYS_INLINE void open_q4_1(const uint8_t *b, opened *o) { f16_pair(b, o->scale); }
ALWAYS_INLINE void decode_q4_1(const uint8_t *b, int unit, const opened *o, v16 w[2]) {
    (void)unit;
    nibble_both(nibble_make(v16_set1(o->scale[0]), v16_set1(o->scale[1])), u8x16_load(b + 4), w);
}

/* Scales d*s of the eight sub-blocks of Q4_K and Q5_K, then their offsets -dmin*m. The 6-bit s and m are
 * packed into 12 bytes (layout: quant.c), here unpacked four at a time. */
ALWAYS_INLINE void open_k(const uint8_t *b, float *scale) {
    uint32_t packed[3], plain[4];
    memcpy(packed, b + 4, sizeof packed);
    plain[0] = packed[0] & 0x3f3f3f3f;
    plain[1] = (packed[2] & 0x0f0f0f0f) | (packed[0] >> 2 & 0x30303030);
    plain[2] = packed[1] & 0x3f3f3f3f;
    plain[3] = (packed[2] >> 4 & 0x0f0f0f0f) | (packed[1] >> 2 & 0x30303030);
    float d[4];
    f16_pair(b, d);
    v16_store(scale, v16_mul(v16_from_u8(u8x16_load(plain)), v16_join(v16_set1(d[0]), v16_set1(-d[1]))));
}

enum { UNITS_q4_k = 8, BYTES_q4_k = 144 };
ALWAYS_INLINE void open_q4_k(const uint8_t *b, opened *o) { open_k(b, o->scale); }
ALWAYS_INLINE void decode_q4_k(const uint8_t *b, int unit, const opened *o, v16 w[2]) {
    const nibble_code t = nibble_make(v16_set1(o->scale[unit]), v16_set1(o->scale[8 + unit]));
    const uint8_t *q = b + 16 + unit / 2 * 32;
    if (unit % 2 == 0) {
        w[0] = nibble_low(t, u8x16_load(q));
        w[1] = nibble_low(t, u8x16_load(q + 16));
    } else {
        w[0] = nibble_high(t, u8x16_load(q));
        w[1] = nibble_high(t, u8x16_load(q + 16));
    }
}

typedef uint8_t u8x32 __attribute__((vector_size(32)));

/* Bit i of qh[k] is the fifth bit of element k of unit i. */
enum { UNITS_q5_k = 8, BYTES_q5_k = 176 };
ALWAYS_INLINE void open_q5_k(const uint8_t *b, opened *o) {
    open_k(b, o->scale);
    u8x32 qh, q;
    memcpy(&qh, b + 16, sizeof qh);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        memcpy(&q, b + 48 + i / 2 * 32, sizeof q);
        q = (i % 2 ? q >> 4 : q & 15) |
            (i < 4 ? (qh & (uint8_t)(1 << i)) << (4 - i) : (qh & (uint8_t)(1 << i)) >> (i - 4));
        memcpy(o->q + 32 * i, &q, sizeof q);
    }
}
ALWAYS_INLINE void decode_q5_k(const uint8_t *b, int unit, const opened *o, v16 w[2]) {
    (void)b;
    const v16 d = v16_set1(o->scale[unit]), offset = v16_set1(o->scale[8 + unit]);
    w[0] = v16_fma(v16_from_u8(u8x16_load(o->q + 32 * unit)), d, offset);
    w[1] = v16_fma(v16_from_u8(u8x16_load(o->q + 32 * unit + 16)), d, offset);
}

/* Sixteen scales d*s; d is the f16 at 208. In each half, units 0 and 1 have the low nibbles of 64 bytes, 2
 * and 3 the high ones; unit g has bits 2g of 32 bytes on top. */
enum { UNITS_q6_k = 8, BYTES_q6_k = 210 };
ALWAYS_INLINE void open_q6_k(const uint8_t *b, opened *o) {
    v16_store(o->scale, v16_mul(v16_set1_f16(b + 208), v16_from_i8((i8x16)u8x16_load(b + 192))));
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
        u8x32 qh, q;
        memcpy(&qh, b + 128 + 32 * half, sizeof qh);
#pragma GCC unroll 4
        for (int g = 0; g < 4; g++) {
            memcpy(&q, b + 64 * half + g % 2 * 32, sizeof q);
            q = (g < 2 ? q & 15 : q >> 4) |
                (g < 3 ? (qh & (uint8_t)(3 << 2 * g)) << (4 - 2 * g) : (qh & 0xc0) >> 2);
            q -= 32;
            memcpy(o->q + 128 * half + 32 * g, &q, sizeof q);
        }
    }
}
ALWAYS_INLINE void decode_q6_k(const uint8_t *b, int unit, const opened *o, v16 w[2]) {
    (void)b;
    w[0] = v16_mul(v16_from_i8((i8x16)u8x16_load(o->q + 32 * unit)), v16_set1(o->scale[2 * unit]));
    w[1] = v16_mul(v16_from_i8((i8x16)u8x16_load(o->q + 32 * unit + 16)), v16_set1(o->scale[2 * unit + 1]));
}

static float bias_at(const dg_mat *bias, int32_t m) {
    switch (bias->dtype) {
    case DG_F32: return ((const float *)bias->data)[m];
    case DG_F16: return dg_f16_to_f32(((const uint16_t *)bias->data)[m]);
    default: return dg_bf16_to_f32(((const uint16_t *)bias->data)[m]);
    }
}

static __attribute__((noinline)) void put_outs_slow(const dg_matmul_args *a, float *out, int32_t m, float *v,
                                                    int32_t n) {
    for (int32_t j = 0; a->bias.data && j < n; j++) v[j] += bias_at(&a->bias, m + j);
    for (int32_t j = 0; j < n; j++) out[j] = a->add ? out[j] + v[j] : v[j];
}

/* Writes n <= 4 neighbouring outputs of row r. Bias first, then what is there. */
ALWAYS_INLINE void put_outs(const dg_matmul_args *a, int32_t r, int32_t m, float v[4], int32_t n) {
    float *out = (float *)a->out.data + r * a->out.stride + m;
    if (n == 4 && !a->bias.data && !a->add)
        memcpy(out, v, 4 * sizeof *v);
    else
        put_outs_slow(a, out, m, v, n);
}

#define MIN(a, b) ((a) < (b) ? (a) : (b))

/* ---- few rows: decode in registers, straight into the products ---- */

enum { AHEAD = 8 / FUSED_OUTS }; /* tiles between prefetch and use */

/* The k%32 weights behind the last whole block; only plain types have them. */
static __attribute__((noinline)) void add_rest(dg_dtype dtype, uint8_t const *const block[FUSED_OUTS],
                                               const float *x, int64_t ldx, int rows, int32_t rest,
                                               v16 sum[FUSED_OUTS][FUSED_ROWS]) {
    for (int32_t k = 0; k < rest; k += 16) {
        const int n = rest - k < 16 ? rest - k : 16;
        for (int j = 0; j < FUSED_OUTS; j++) {
            float w[16] = {0}, v[16] = {0};
            dg_dequant_row(dtype, block[j] + dg_dtype_bytes(dtype, (size_t)k), w, (size_t)n);
            for (int r = 0; r < rows; r++) {
                memcpy(v, x + r * ldx + k, sizeof(float) * (size_t)n);
                sum[j][r] = v16_fma(v16_load(w), v16_load(v), sum[j][r]);
            }
        }
    }
}

#define OUT(j) ((j) < FUSED_OUTS ? (j) : 0)

/* rows x FUSED_OUTS sums. units and bytes: UNITS and BYTES of the type; plain: k may end inside a block. */
ALWAYS_INLINE void fused_tile(const dg_matmul_args *a, open_fn *open, decode_fn *decode, int units,
                              size_t bytes, bool plain, int rows, int32_t r0, int32_t m, int32_t m1) {
    const int32_t blocks = a->w.cols / (32 * units), rest = plain ? a->w.cols % 32 : 0;
    const size_t stride = dg_dtype_bytes(a->w.dtype, (size_t)a->w.stride);
    const int64_t ldx = a->x.stride;
    const float *x = (const float *)a->x.data + r0 * ldx;
    const uint8_t *block[FUSED_OUTS];
    v16 sum[FUSED_OUTS][FUSED_ROWS];
#pragma GCC unroll 4
    for (int j = 0; j < FUSED_OUTS; j++) /* a cut-off tile reads its last row again and drops the result */
        block[j] = (const uint8_t *)a->w.data + stride * (size_t)(m + j < m1 ? m + j : m1 - 1);
#pragma GCC unroll 4
    for (int j = 0; j < FUSED_OUTS; j++)
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) sum[j][r] = v16_zero();

    /* Several short rows side by side are no stream that the hardware would prefetch. */
    const uint8_t *ahead = block[0] + AHEAD * FUSED_OUTS * stride;
    for (int32_t i = 0; i < blocks; i++) {
        opened state[FUSED_OUTS];
        for (size_t line = 0; line < FUSED_OUTS * bytes; line += 64) __builtin_prefetch(ahead + line, 0, 2);
        ahead += FUSED_OUTS * bytes;
#pragma GCC unroll 4
        for (int j = 0; j < FUSED_OUTS; j++) open(block[j], &state[j]);
        for (int u = 0; u < units; u++, x += 32) {
            v16 w[2];
#pragma GCC unroll 4
            for (int j = 0; j < FUSED_OUTS; j++) {
                decode(block[j], u, &state[j], w);
#pragma GCC unroll 4
                for (int r = 0; r < rows; r++) {
                    sum[j][r] = v16_fma(w[0], v16_load(x + r * ldx), sum[j][r]);
                    sum[j][r] = v16_fma(w[1], v16_load(x + r * ldx + 16), sum[j][r]);
                }
            }
        }
#pragma GCC unroll 4
        for (int j = 0; j < FUSED_OUTS; j++) block[j] += bytes;
    }
    if (rest) { /* through a copy, so that the sums themselves can stay in registers */
        v16 copy[FUSED_OUTS][FUSED_ROWS];
        memcpy(copy, sum, sizeof copy);
        add_rest(a->w.dtype, block, x, ldx, rows, rest, copy);
        memcpy(sum, copy, sizeof copy);
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        float v[4];
        v16_sum4(sum[0][r], sum[OUT(1)][r], sum[OUT(2)][r], sum[OUT(3)][r], v);
        put_outs(a, r0 + r, m, v, m1 - m < FUSED_OUTS ? m1 - m : FUSED_OUTS);
    }
}

#define TILE(type, plain, rows)                                                                            \
    fused_tile(a, open_##type, decode_##type, UNITS_##type, BYTES_##type, plain, MIN(rows, FUSED_ROWS), r, \
               m, m1)
#define FUSED(type, plain)                                                               \
    static void fused_##type(const dg_matmul_args *a, int32_t m0, int32_t m1) {          \
        for (int32_t m = m0; m < m1; m += FUSED_OUTS)                                    \
            for (int32_t r = 0; r < a->x.rows; r += FUSED_ROWS) switch (a->x.rows - r) { \
                case 1: TILE(type, plain, 1); break;                                     \
                case 2: TILE(type, plain, 2); break;                                     \
                case 3: TILE(type, plain, 3); break;                                     \
                default: TILE(type, plain, 4); break;                                    \
                }                                                                        \
    }                                                                                    \
    /* dst = n_block whole blocks from b */                                              \
    static void panel_##type(const uint8_t *b, int32_t n_block, float *dst) {            \
        for (int32_t i = 0; i < n_block; i++, b += BYTES_##type) {                       \
            opened state;                                                                \
            open_##type(b, &state);                                                      \
            for (int u = 0; u < UNITS_##type; u++, dst += 32) {                          \
                v16 w[2];                                                                \
                decode_##type(b, u, &state, w);                                          \
                v16_store(dst, w[0]);                                                    \
                v16_store(dst + 16, w[1]);                                               \
            }                                                                            \
        }                                                                                \
    }
FUSED(f32, true)
FUSED(f16, true)
FUSED(bf16, true)
FUSED(q8_0, false)
FUSED(q4_0, false)
FUSED(q4_1, false)
FUSED(q4_k, false)
FUSED(q5_k, false)
FUSED(q6_k, false)

typedef struct direct_type {
    void (*fused)(const dg_matmul_args *a, int32_t m0, int32_t m1);
    void (*panel)(const uint8_t *b, int32_t n_block, float *dst);
    int32_t block_len; /* weights per block of `panel` */
} direct_type;

#define DIRECT(type) \
    { fused_##type, panel_##type, 32 * UNITS_##type }
static const direct_type direct[DG_DTYPE_COUNT] = {
    [DG_F32] = DIRECT(f32),   [DG_F16] = DIRECT(f16),   [DG_BF16] = DIRECT(bf16),
    [DG_Q8_0] = DIRECT(q8_0), [DG_Q4_0] = DIRECT(q4_0), [DG_Q4_1] = DIRECT(q4_1),
    [DG_Q4_K] = DIRECT(q4_k), [DG_Q5_K] = DIRECT(q5_k), [DG_Q6_K] = DIRECT(q6_k),
};

/* ---- many rows, and the types without a decoder above: decode a panel once, multiply tiles by it ---- */

/* One block of k of one group of outputs. */
typedef struct panel_job {
    const dg_matmul_args *a;
    float *panel, *sums; /* [DG_PANEL_OUTS, DG_PANEL_LEN]; [n, DG_PANEL_OUTS, DG_LANES] */
    const float *x;      /* row r0, column k0 */
    int32_t r0, n, m, n_out, k0, len;
    bool first, last; /* of the blocks of k: sums start from 0; sums go to out */
} panel_job;

/* panel row j = weights [k0, k0+len) of row m+j; k0 is at the start of a block. */
static void fill_panel(const panel_job *p) {
    const dg_mat *w = &p->a->w;
    const direct_type *type = &direct[w->dtype];
    const int32_t whole = type->panel ? p->len / type->block_len * type->block_len : 0;
    const size_t start = dg_dtype_bytes(w->dtype, (size_t)p->k0),
                 skip = dg_dtype_bytes(w->dtype, (size_t)whole);
    const size_t next = DG_PANEL_OUTS * dg_dtype_bytes(w->dtype, (size_t)w->stride);
    for (int32_t j = 0; j < p->n_out; j++) {
        const uint8_t *row = (const uint8_t *)dg_mat_row(w, p->m + j) + start;
        float *dst = p->panel + (size_t)j * DG_PANEL_LEN;
        for (size_t line = 0; line < skip; line += 64) __builtin_prefetch(row + next + line);
        if (whole) type->panel(row, whole / type->block_len, dst);
        if (whole < p->len) dg_dequant_row(w->dtype, row + skip, dst + whole, (size_t)(p->len - whole));
    }
}

/* rows x outs sums from row r, output j of the job on, less the last len%16 weights. */
ALWAYS_INLINE void panel_tile(const panel_job *p, int rows, int32_t r0, int32_t j0) {
    const int64_t ldx = p->a->x.stride;
    const float *x = p->x + r0 * ldx, *panel = p->panel + j0 * DG_PANEL_LEN;
    float *sums = p->sums + (r0 * DG_PANEL_OUTS + j0) * DG_LANES;
    v16 sum[TILE_ROWS][TILE_OUTS];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int j = 0; j < TILE_OUTS; j++)
            sum[r][j] = p->first ? v16_zero() : v16_load(sums + (r * DG_PANEL_OUTS + j) * DG_LANES);
    const int32_t len = p->len;
    for (int32_t k = 0; k + 16 <= len; k += 16) {
        v16 w[TILE_OUTS];
#pragma GCC unroll 4
        for (int j = 0; j < TILE_OUTS; j++) w[j] = v16_load(panel + j * DG_PANEL_LEN + k);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            const v16 v = v16_load(x + r * ldx + k);
#pragma GCC unroll 4
            for (int j = 0; j < TILE_OUTS; j++) sum[r][j] = v16_fma(w[j], v, sum[r][j]);
        }
    }
    if (p->last && TILE_OUTS == 4) { /* straight from the registers */
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            float v[4];
            v16_sum4(sum[r][0], sum[r][1 % TILE_OUTS], sum[r][2 % TILE_OUTS], sum[r][3 % TILE_OUTS], v);
            put_outs(p->a, p->r0 + r0 + r, p->m + j0, v, MIN(p->n_out - j0, 4));
        }
        return;
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int j = 0; j < TILE_OUTS; j++) v16_store(sums + (r * DG_PANEL_OUTS + j) * DG_LANES, sum[r][j]);
}

static void panel_tiles(const panel_job *p) {
    for (int32_t r = 0; r < p->n; r += TILE_ROWS)
        for (int32_t j = 0; j < p->n_out; j += TILE_OUTS) switch (p->n - r) {
            case 1: panel_tile(p, 1, r, j); break;
            case 2: panel_tile(p, MIN(2, TILE_ROWS), r, j); break;
            case 3: panel_tile(p, MIN(3, TILE_ROWS), r, j); break;
            default: panel_tile(p, MIN(4, TILE_ROWS), r, j); break;
            }
}

/* The last len%16 weights. */
static void panel_rest(const panel_job *p) {
    const int32_t whole = p->len / 16 * 16, rest = p->len % 16;
    for (int32_t r = 0; r < p->n; r++) {
        const v16 v = v16_load_part(p->x + r * p->a->x.stride + whole, rest);
        for (int32_t j = 0; j < p->n_out; j++) {
            float *s = p->sums + (r * DG_PANEL_OUTS + j) * DG_LANES;
            v16_store(s, v16_fma(v16_load_part(p->panel + j * DG_PANEL_LEN + whole, rest), v, v16_load(s)));
        }
    }
}

static void panel_finish(const panel_job *p) {
    for (int32_t r = 0; r < p->n; r++)
        for (int32_t j = 0; j < p->n_out; j += 4) {
            const float *s = p->sums + (r * DG_PANEL_OUTS + j) * DG_LANES;
            float v[4];
            v16_sum4(v16_load(s), v16_load(s + 16), v16_load(s + 32), v16_load(s + 48), v);
            put_outs(p->a, p->r0 + r, p->m + j, v, MIN(p->n_out - j, 4));
        }
}

static void matmul_panels(const dg_matmul_args *a, int32_t m0, int32_t m1, float *panel, float *sums) {
    const int32_t k = a->w.cols, n_block = (k + DG_PANEL_LEN - 1) / DG_PANEL_LEN;
    /* equal blocks, cut where every weight type has a block border */
    const int32_t block = n_block > 1 ? ((k + n_block - 1) / n_block + 255) / 256 * 256 : k;
    panel_job p = {.a = a, .panel = panel, .sums = sums};
    for (p.r0 = 0; p.r0 < a->x.rows; p.r0 += DG_PANEL_ROWS) {
        p.n = MIN(a->x.rows - p.r0, DG_PANEL_ROWS);
        for (p.m = m0; p.m < m1; p.m += DG_PANEL_OUTS) {
            p.n_out = MIN(m1 - p.m, DG_PANEL_OUTS);
            for (p.k0 = 0; p.k0 < k; p.k0 += block) {
                p.len = MIN(k - p.k0, block);
                p.x = (const float *)a->x.data + p.r0 * a->x.stride + p.k0;
                p.first = p.k0 == 0;
                p.last = p.k0 + block >= k && k % 16 == 0 && TILE_OUTS == 4;
                fill_panel(&p);
                panel_tiles(&p);
            }
            if (k % 16) panel_rest(&p);
            if (!p.last) panel_finish(&p);
        }
    }
}

static void matmul(const dg_matmul_args *a, int32_t m0, int32_t m1, float *panel, float *sums) {
    if (a->x.rows <= FUSED_ROWS && direct[a->w.dtype].fused)
        direct[a->w.dtype].fused(a, m0, m1);
    else
        matmul_panels(a, m0, m1, panel, sums);
}
