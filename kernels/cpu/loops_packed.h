/* Inner loops of matmul by packed weights (packed.h).
 *
 * The value is defined without regard to how it is computed: x in fixed point, the products of a block of 32
 * (or 16) columns summed exactly in integers, then for ascending blocks
 *     sum = fma(scale_x * integer sum, d, sum); sum = fma(sum of x, m, sum)
 * in f32. Each output has a lane of its own, so nothing depends on the other rows or outputs, and all
 * instruction sets with FMA give the same bits. */

/* ---- activations ---- */

/* One row of n_block blocks into row `row` of dst[n_block]. A block with an infinity or NaN in it becomes NaN. */
static void fix_row(const float *x, int32_t n_block, int digits, int32_t row, dg_act_block *dst) {
    const int32_t most = digits == 2 ? 63 * 128 + 63 : 127;
    const v16 round = v16_set1(0x1.8p23f); /* adding it leaves the nearest integer in the low bits */
    for (; n_block > 0; n_block--, x += DG_BLOCK, dst++) {
        const v16 v[2] = {v16_load(x), v16_load(x + 16)};
        const v16 zero = v16_zero(), size = v16_max(v16_max(v[0], v16_sub(zero, v[0])), v16_max(v[1], v16_sub(zero, v[1])));
        const float largest = v16_largest(size);
        const float odd = v16_sum(v16_fma(v[0], zero, v16_mul(v[1], zero))); /* 0, or NaN */
        const bool none = largest < 1e-30f; /* its inverse might be infinite */
        const float scale = odd != 0 ? odd : none ? 0 : largest / (float)most;
        const v16 inverse = v16_set1(odd != 0 || none ? 0 : (float)most / largest);
        float half[2];
        for (int h = 0; h < 2; h++) {
            const v16 shifted = v16_fma(odd != 0 ? zero : v[h], inverse, round);
            const w16 a = w16_sub(v16_bits(shifted), w16_set1(0x4b400000));
            const w16 high = digits == 2 ? w16_sar(w16_add(a, w16_set1(64)), 7) : a;
            w16_store_i8(dst->digit[row][0] + 16 * h, high);
            w16_store_i8(dst->digit[row][1] + 16 * h, w16_sub(a, w16_shl(high, 7)));
            half[h] = v16_sum(v16_sub(shifted, round));
        }
        dst->scale[row] = scale;
        dst->sum[row] = scale * (half[0] + half[1]);
        dst->half_sum[0][row] = scale * half[0];
        dst->half_sum[1][row] = scale * half[1];
    }
}

/* ---- weights: packed blocks to a strip ---- */

/* As many codes as a register has bytes. */
typedef uint8_t codes __attribute__((vector_size(CODES)));

ALWAYS_INLINE codes codes_load(const uint8_t *p) {
    codes v;
    memcpy(&v, p, sizeof v);
    return v;
}
ALWAYS_INLINE void codes_store(uint8_t *p, codes v) { memcpy(p, &v, sizeof v); }

/* A panel is one stream, but the hardware's prefetcher stops at every page and rests while a strip is multiplied.
 * So both phases ask for what comes a strip later: opening alone would fill all line buffers at once. */
enum { FETCH_AHEAD = 8192 }; /* bytes */
ALWAYS_INLINE void prefetch_ahead(const uint8_t *p, int bytes) {
#pragma GCC unroll 16
    for (int line = 0; line < bytes; line += 64) __builtin_prefetch(p + FETCH_AHEAD + line, 0, 2);
}

/* n bytes: their low halves to q, the high ones to q + n. */
ALWAYS_INLINE void split_nibbles(const uint8_t *p, uint8_t *q, int n) {
#pragma GCC unroll 8
    for (int i = 0; i < n; i += CODES) {
        const codes v = codes_load(p + i);
        codes_store(q + i, v & 15);
        codes_store(q + n + i, v >> 4);
    }
}

static void open_strip_q4_0(const uint8_t *p, int32_t n, dg_strip *s) {
    for (int32_t i = 0; i < n; i++, p += 16 * 18) {
        prefetch_ahead(p, 16 * 18);
        const v16 d = v16_load_f16(p);
        v16_store(s->d[i], d);
        v16_store(s->m[i], v16_mul(d, v16_set1(-8)));
        split_nibbles(p + 32, s->q[8 * i], 256);
    }
}

static void open_strip_q4_1(const uint8_t *p, int32_t n, dg_strip *s) {
    for (int32_t i = 0; i < n; i++, p += 16 * 20) {
        prefetch_ahead(p, 16 * 20);
        v16_store(s->d[i], v16_load_f16(p));
        v16_store(s->m[i], v16_load_f16(p + 32));
        split_nibbles(p + 64, s->q[8 * i], 256);
    }
}

/* Bit j of high[i] is the fifth bit of q[step * j + i], i < 64. */
ALWAYS_INLINE void add_fifth_bits(const uint8_t *high, uint8_t *q, int step) {
#pragma GCC unroll 4
    for (int i = 0; i < 64; i += CODES) {
        const codes h = codes_load(high + i);
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) {
            uint8_t *const at = q + step * j + i;
            codes_store(at, codes_load(at) | ((h >> j) & 1) << 4);
        }
    }
}

static void open_strip_q5_0(const uint8_t *p, int32_t n, dg_strip *s) {
    for (int32_t i = 0; i < n; i++, p += 16 * 22) {
        prefetch_ahead(p, 16 * 22);
        const v16 d = v16_load_f16(p);
        v16_store(s->d[i], d);
        v16_store(s->m[i], v16_mul(d, v16_set1(-16)));
        split_nibbles(p + 96, s->q[8 * i], 256);
        add_fifth_bits(p + 32, s->q[8 * i], 64);
    }
}

static void open_strip_q5_1(const uint8_t *p, int32_t n, dg_strip *s) {
    for (int32_t i = 0; i < n; i++, p += 16 * 24) {
        prefetch_ahead(p, 16 * 24);
        v16_store(s->d[i], v16_load_f16(p));
        v16_store(s->m[i], v16_load_f16(p + 32));
        split_nibbles(p + 128, s->q[8 * i], 256);
        add_fifth_bits(p + 64, s->q[8 * i], 64);
    }
}

static void open_strip_q8_0(const uint8_t *p, int32_t n, dg_strip *s) {
    for (int32_t i = 0; i < n; i++, p += 16 * 34) {
        prefetch_ahead(p, 16 * 34);
        const v16 d = v16_load_f16(p);
        v16_store(s->d[i], d);
        v16_store(s->m[i], v16_mul(d, v16_set1(-128)));
#pragma GCC unroll 16
        for (int c = 0; c < 512; c += CODES) codes_store(s->q[8 * i] + c, codes_load(p + 32 + c) ^ 128);
    }
}

/* d and m of the eight sub-blocks of Q4_K and Q5_K: f16 d and dmin, then 6-bit factors in 12 bytes (layout:
 * quant.c), for 16 rows side by side. */
ALWAYS_INLINE void open_k_scales(const uint8_t *p, float (*d)[16], float (*m)[16]) {
    w16 packed[3], plain[4];
    for (int i = 0; i < 3; i++) packed[i] = w16_load((const uint32_t *)(const void *)(p + 64 + 64 * i));
    const w16 six = w16_set1(0x3f3f3f3f), four = w16_set1(0x0f0f0f0f), two = w16_set1(0x30303030);
    plain[0] = w16_and(packed[0], six);
    plain[1] = w16_add(w16_and(packed[2], four), w16_and(w16_shr(packed[0], 2), two));
    plain[2] = w16_and(packed[1], six);
    plain[3] = w16_add(w16_and(w16_shr(packed[2], 4), four), w16_and(w16_shr(packed[1], 2), two));
    const v16 scale = v16_load_f16(p), offset = v16_mul(v16_load_f16(p + 32), v16_set1(-1));
    for (int i = 0; i < 8; i++) {
        const w16 byte = w16_set1(255);
        v16_store(d[i], v16_mul(v16_from_i32(w16_and(w16_shr(plain[i / 4], i % 4 * 8), byte)), scale));
        v16_store(m[i], v16_mul(v16_from_i32(w16_and(w16_shr(plain[2 + i / 4], i % 4 * 8), byte)), offset));
    }
}

static void open_strip_q4_k(const uint8_t *p, int32_t n, dg_strip *s) {
    for (int32_t i = 0; i < n; i++, p += 16 * 144) {
        prefetch_ahead(p, 16 * 144);
        open_k_scales(p, s->d + 8 * i, s->m + 8 * i);
        for (int c = 0; c < 4; c++) split_nibbles(p + 256 + 512 * c, s->q[64 * i + 16 * c], 512);
    }
}

static void open_strip_q5_k(const uint8_t *p, int32_t n, dg_strip *s) {
    for (int32_t i = 0; i < n; i++, p += 16 * 176) {
        prefetch_ahead(p, 16 * 176);
        open_k_scales(p, s->d + 8 * i, s->m + 8 * i);
        for (int c = 0; c < 4; c++) split_nibbles(p + 768 + 512 * c, s->q[64 * i + 16 * c], 512);
        for (int j = 0; j < 8; j++) add_fifth_bits(p + 256 + 64 * j, s->q[64 * i + j], 512);
    }
}

/* Sixteen sub-blocks of 16 columns; d * (code - 32). See decode_q6_k for the order of the bits. */
static void open_strip_q6_k(const uint8_t *p, int32_t n, dg_strip *s) {
    for (int32_t i = 0; i < n; i++, p += 16 * 210) {
        prefetch_ahead(p, 16 * 210);
        const v16 scale = v16_load_f16(p);
        for (int g = 0; g < 16; g++) {
            const w16 packed = w16_load((const uint32_t *)(const void *)(p + 32 + 64 * (g / 4)));
            const v16 d = v16_mul(v16_from_i32(w16_sar(w16_shl(packed, 24 - g % 4 * 8), 24)), scale);
            v16_store(s->d[16 * i + g], d);
            v16_store(s->m[16 * i + g], v16_mul(d, v16_set1(-32)));
        }
        const uint8_t *high = p + 32 + 256, *low = high + 1024;
        for (int h = 0; h < 2; h++)
            for (int c = 0; c < 512; c += CODES) {
                const codes a = codes_load(low + 1024 * h + c), b = codes_load(low + 1024 * h + 512 + c);
                const codes t = codes_load(high + 512 * h + c);
                uint8_t *q = s->q[64 * i + 32 * h] + c;
                codes_store(q, (a & 15) | (t & 3) << 4);
                codes_store(q + 512, (b & 15) | (t & 12) << 2);
                codes_store(q + 1024, a >> 4 | (t & 48));
                codes_store(q + 1536, b >> 4 | (t & 192) >> 2);
            }
    }
}

/* ---- products ---- */

/* What a tile needs to know of a type at compile time. */
typedef enum strip_kind {
    STRIP_NIBBLES, /* codes below 16 */
    STRIP_BYTES,
    STRIP_HALVES /* d and m for 16 columns */
} strip_kind;

typedef struct strip_type {
    void (*open)(const uint8_t *p, int32_t n, dg_strip *s); /* n whole blocks */
    int32_t block_len;
    strip_kind kind;
} strip_type;

static const strip_type strip_types[DG_DTYPE_COUNT] = {
    [DG_Q4_0] = {open_strip_q4_0, 32, STRIP_NIBBLES},  [DG_Q4_1] = {open_strip_q4_1, 32, STRIP_NIBBLES},
    [DG_Q5_0] = {open_strip_q5_0, 32, STRIP_BYTES},    [DG_Q5_1] = {open_strip_q5_1, 32, STRIP_BYTES},
    [DG_Q8_0] = {open_strip_q8_0, 32, STRIP_BYTES},    [DG_Q4_K] = {open_strip_q4_k, 256, STRIP_NIBBLES},
    [DG_Q5_K] = {open_strip_q5_k, 256, STRIP_BYTES},   [DG_Q6_K] = {open_strip_q6_k, 256, STRIP_HALVES},
};

/* Where the strips to come lie: `bytes` of them are to be fetched beside each block. */
typedef struct strip_ahead {
    const uint8_t *p;
    int32_t bytes; /* 0: another tile of this strip has done it */
} strip_ahead;

ALWAYS_INLINE void fetch_block(strip_ahead *a) {
    for (const uint8_t *end = a->p + a->bytes; a->p < end; a->p += 64) __builtin_prefetch(a->p + FETCH_AHEAD, 0, 2);
}

/* One step of the sum in f32. dot: of the digits by the codes; scale, total: of x. */
ALWAYS_INLINE v16 add_part(v16 sum, w16 dot, float scale, float total, v16 d, v16 m) {
    const v16 scaled = v16_mul(v16_from_i32(dot), v16_set1(scale));
    return v16_fma(v16_set1(total), m, v16_fma(scaled, d, sum));
}

/* sums[r] += n_block blocks of rows row.. of x by the strip. */
ALWAYS_INLINE void strip_tile(const dg_strip *s, int32_t n_block, const dg_act_block *x, int32_t row, int rows,
                              int digits, strip_kind kind, float (*sums)[DG_PACK_OUTS], strip_ahead ahead) {
    const int parts = kind == STRIP_HALVES ? 2 : 1, quads = DG_BLOCK / 4 / parts;
    v16 sum[PACKED_ROWS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) sum[r] = v16_load(sums[r]);
    for (int32_t b = 0; b < n_block; b++, x++) {
        fetch_block(&ahead);
#pragma GCC unroll 2
        for (int h = 0; h < parts; h++) {
            w16 dot[PACKED_ROWS], more[PACKED_ROWS];
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) dot[r] = more[r] = w16_set1(0);
            dot_quads(s->q + 8 * b + quads * h, quads, x->digit[row][0] + 16 * h, rows, digits, kind == STRIP_NIBBLES, dot,
                      more);
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) dot[r] = w16_add(digits == 2 ? w16_shl(dot[r], 7) : dot[r], more[r]);
            const v16 d = v16_load(s->d[parts * b + h]), m = v16_load(s->m[parts * b + h]);
            const float *total = (parts == 2 ? x->half_sum[h] : x->sum) + row;
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) sum[r] = add_part(sum[r], dot[r], x->scale[row + r], total[r], d, m);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) v16_store(sums[r], sum[r]);
}

typedef void strip_fn(const dg_strip *s, int32_t n_block, const dg_act_block *x, int32_t row, float (*sums)[DG_PACK_OUTS],
                      strip_ahead ahead);

#define STRIP_TILE(rows, digits, kind)                                                                          \
    static void strip_##rows##_##digits##_##kind(const dg_strip *s, int32_t n_block, const dg_act_block *x,     \
                                                 int32_t row, float (*sums)[DG_PACK_OUTS], strip_ahead ahead) { \
        strip_tile(s, n_block, x, row, rows, digits, kind, sums, ahead);                                        \
    }
#define STRIP_TILES(digits, kind)     \
    STRIP_TILE(1, digits, kind)       \
    STRIP_TILE(2, digits, kind)       \
    STRIP_TILE(3, digits, kind)       \
    STRIP_TILE(4, digits, kind)       \
    STRIP_TILE(PACKED_ROWS, digits, kind)
#define STRIP_LIST(digits, kind)                                               \
    {strip_1_##digits##_##kind, strip_2_##digits##_##kind, strip_3_##digits##_##kind, strip_4_##digits##_##kind, \
     strip_PACKED_ROWS_##digits##_##kind}
STRIP_TILES(1, STRIP_NIBBLES)
STRIP_TILES(2, STRIP_NIBBLES)
STRIP_TILES(1, STRIP_BYTES)
STRIP_TILES(2, STRIP_BYTES)
STRIP_TILES(1, STRIP_HALVES)
STRIP_TILES(2, STRIP_HALVES)
static strip_fn *const strip_tiles[3][2][5] = {
    [STRIP_NIBBLES] = {STRIP_LIST(1, STRIP_NIBBLES), STRIP_LIST(2, STRIP_NIBBLES)},
    [STRIP_BYTES] = {STRIP_LIST(1, STRIP_BYTES), STRIP_LIST(2, STRIP_BYTES)},
    [STRIP_HALVES] = {STRIP_LIST(1, STRIP_HALVES), STRIP_LIST(2, STRIP_HALVES)},
};

/* Bias first, then what is there, as in put_outs. */
static void put_panel(const dg_packed_args *a, int32_t m, float (*sums)[DG_PACK_OUTS]) {
    const int32_t n = MIN(a->w.rows - m, DG_PACK_OUTS);
    for (int32_t r = 0; r < a->out.rows; r++) {
        float *out = (float *)a->out.data + r * a->out.stride + m;
        for (int32_t j = 0; a->bias.data && j < n; j++) sums[r][j] += bias_at(&a->bias, m + j);
        if (n == DG_PACK_OUTS)
            v16_store(out, a->add ? v16_add(v16_load(out), v16_load(sums[r])) : v16_load(sums[r]));
        else
            for (int32_t j = 0; j < n; j++) out[j] = a->add ? out[j] + sums[r][j] : sums[r][j];
    }
}

/* Rows of x in numbers that pay may go by matrix tiles (loops_amx.h), which give the same bits. */
#ifdef DG_ISA_AMX
#include "kernels/cpu/loops_amx.h"
#else
enum { AMX_ROWS = INT32_MAX };
static void amx_begin(int32_t rows, strip_kind kind) { (void)rows, (void)kind; }
static void amx_strip(const dg_strip *s, int32_t n_block, const dg_act_block *x, int32_t rows, int digits,
                      strip_kind kind, float (*sums)[DG_PACK_OUTS], strip_ahead ahead) {
    (void)s, (void)n_block, (void)x, (void)rows, (void)digits, (void)kind, (void)sums, (void)ahead;
}
static void amx_end(void) {}
#endif

static void matmul_packed(const dg_packed_args *a, int32_t p0, int32_t p1, dg_strip *strip, float (*sums)[DG_PACK_OUTS]) {
    const strip_type type = strip_types[a->w.dtype];
    strip_fn *const *tile = strip_tiles[type.kind][a->digits - 1];
    const int32_t cols = a->w.cols, n_block = cols / DG_BLOCK, rows = a->out.rows;
    const int32_t per_block = DG_PACK_OUTS * dg_dtype_get(a->w.dtype)->block_size * DG_BLOCK / type.block_len;
    const uint8_t *block = (const uint8_t *)a->w.data + dg_dtype_bytes(a->w.dtype, (size_t)cols) * DG_PACK_OUTS * (size_t)p0;
    if (rows >= AMX_ROWS) amx_begin(MIN(rows, DG_ROW_TILE), type.kind);
    for (int32_t p = p0; p < p1; p++) {
        memset(sums, 0, sizeof *sums * (size_t)rows);
        for (int32_t k = 0; k < cols; k += DG_STRIP) {
            const int32_t len = MIN(cols - k, DG_STRIP);
            type.open(block, len / type.block_len, strip);
            block += dg_dtype_bytes(a->w.dtype, (size_t)len) * DG_PACK_OUTS;
            strip_ahead ahead = {block, per_block};
            for (int32_t r = 0, n; r < rows; r += n, ahead.bytes = 0) {
                const dg_act_block *x = a->x + r / DG_ROW_TILE * n_block + k / DG_BLOCK;
                if (rows - r >= AMX_ROWS) {
                    n = MIN(rows - r, DG_ROW_TILE);
                    amx_strip(strip, len / DG_BLOCK, x, n, a->digits, type.kind, sums + r, ahead);
                    continue;
                }
                n = rows - r >= PACKED_ROWS ? PACKED_ROWS : MIN(rows - r, 4);
                tile[n == PACKED_ROWS ? 4 : n - 1](strip, len / DG_BLOCK, x, r % DG_ROW_TILE, sums + r, ahead);
            }
        }
        put_panel(a, p * DG_PACK_OUTS, sums);
    }
    if (rows >= AMX_ROWS) amx_end();
}
