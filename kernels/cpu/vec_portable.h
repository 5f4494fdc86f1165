/* v16 as four vectors of four, in GNU vector arithmetic: SSE2, NEON or whatever the target has. */
#ifndef DG_VEC_PORTABLE_H
#define DG_VEC_PORTABLE_H

enum { FUSED_ROWS = 1, FUSED_OUTS = 1 }; /* matmul: rows and outputs at a time, decoding in registers */
enum { TILE_ROWS = 2, TILE_OUTS = 1 };   /* and with decoded panels */
enum { CODES = 16, PACKED_ROWS = 4 };    /* matmul with packed weights: bytes of a register, rows at a time */
/* attention: queries at a time, and the vectors of keys or of a head's columns that each of them meets */
enum { ATTN_TILE = 2, ATTN_KEYS = 1, ATTN_COLUMNS = 1 };

typedef float f32x4 __attribute__((vector_size(16)));
typedef int32_t i32x4 __attribute__((vector_size(16)));
typedef uint32_t u32x4 __attribute__((vector_size(16)));
typedef struct v16 {
    f32x4 a, b, c, d; /* lanes 0..3, 4..7, 8..11, 12..15 */
} v16;

ALWAYS_INLINE v16 v16_set1(float x) {
    const f32x4 v = {x, x, x, x};
    return (v16){v, v, v, v};
}
ALWAYS_INLINE v16 v16_zero(void) { return v16_set1(0); }
ALWAYS_INLINE v16 v16_load(const void *p) {
    v16 v;
    memcpy(&v, p, sizeof v);
    return v;
}
ALWAYS_INLINE void v16_store(float *p, v16 v) { memcpy(p, &v, sizeof v); }
ALWAYS_INLINE v16 v16_add(v16 x, v16 y) { return (v16){x.a + y.a, x.b + y.b, x.c + y.c, x.d + y.d}; }
ALWAYS_INLINE v16 v16_mul(v16 x, v16 y) { return (v16){x.a * y.a, x.b * y.b, x.c * y.c, x.d * y.d}; }

ALWAYS_INLINE v16 v16_sub(v16 x, v16 y) { return (v16){x.a - y.a, x.b - y.b, x.c - y.c, x.d - y.d}; }
ALWAYS_INLINE v16 v16_div(v16 x, v16 y) { return (v16){x.a / y.a, x.b / y.b, x.c / y.c, x.d / y.d}; }

/* Lane masks: all bits of a lane or none. */
typedef struct m16 {
    i32x4 a, b, c, d;
} m16;
ALWAYS_INLINE m16 v16_lt(v16 x, v16 y) { return (m16){x.a < y.a, x.b < y.b, x.c < y.c, x.d < y.d}; }
ALWAYS_INLINE m16 v16_le(v16 x, v16 y) { return (m16){x.a <= y.a, x.b <= y.b, x.c <= y.c, x.d <= y.d}; }
ALWAYS_INLINE f32x4 f32x4_select(i32x4 m, f32x4 x, f32x4 y) {
    return (f32x4)((m & (i32x4)x) | (~m & (i32x4)y));
}
/* m ? x : y */
ALWAYS_INLINE v16 v16_select(m16 m, v16 x, v16 y) {
    return (v16){f32x4_select(m.a, x.a, y.a), f32x4_select(m.b, x.b, y.b), f32x4_select(m.c, x.c, y.c),
                 f32x4_select(m.d, x.d, y.d)};
}
ALWAYS_INLINE int m16_any(m16 m) {
    const i32x4 v = m.a | m.b | m.c | m.d;
    return (v[0] | v[1] | v[2] | v[3]) != 0;
}
/* x > y ? x : y */
ALWAYS_INLINE v16 v16_max(v16 x, v16 y) { return v16_select(v16_lt(y, x), x, y); }

/* Sixteen 32-bit words. */
typedef struct w16 {
    u32x4 a, b, c, d;
} w16;
ALWAYS_INLINE w16 w16_set1(uint32_t x) {
    const u32x4 v = {x, x, x, x};
    return (w16){v, v, v, v};
}
ALWAYS_INLINE w16 w16_add(w16 x, w16 y) { return (w16){x.a + y.a, x.b + y.b, x.c + y.c, x.d + y.d}; }
ALWAYS_INLINE w16 w16_sub(w16 x, w16 y) { return (w16){x.a - y.a, x.b - y.b, x.c - y.c, x.d - y.d}; }
ALWAYS_INLINE w16 w16_and(w16 x, w16 y) { return (w16){x.a & y.a, x.b & y.b, x.c & y.c, x.d & y.d}; }
ALWAYS_INLINE w16 w16_xor(w16 x, w16 y) { return (w16){x.a ^ y.a, x.b ^ y.b, x.c ^ y.c, x.d ^ y.d}; }
ALWAYS_INLINE w16 w16_shl(w16 x, int n) { return (w16){x.a << n, x.b << n, x.c << n, x.d << n}; }
ALWAYS_INLINE w16 w16_shr(w16 x, int n) { return (w16){x.a >> n, x.b >> n, x.c >> n, x.d >> n}; }
ALWAYS_INLINE w16 w16_sar(w16 x, int n) { /* of signed words */
    return (w16){(u32x4)((i32x4)x.a >> n), (u32x4)((i32x4)x.b >> n), (u32x4)((i32x4)x.c >> n),
                 (u32x4)((i32x4)x.d >> n)};
}
ALWAYS_INLINE w16 v16_bits(v16 x) { return (w16){(u32x4)x.a, (u32x4)x.b, (u32x4)x.c, (u32x4)x.d}; }
ALWAYS_INLINE v16 v16_of_bits(w16 x) { return (v16){(f32x4)x.a, (f32x4)x.b, (f32x4)x.c, (f32x4)x.d}; }
ALWAYS_INLINE v16 v16_from_i32(w16 x) {
    return (v16){__builtin_convertvector((i32x4)x.a, f32x4), __builtin_convertvector((i32x4)x.b, f32x4),
                 __builtin_convertvector((i32x4)x.c, f32x4), __builtin_convertvector((i32x4)x.d, f32x4)};
}
typedef uint64_t u64x2 __attribute__((vector_size(16)));
ALWAYS_INLINE void u32x4_mul(u32x4 x, uint32_t y, u32x4 *high, u32x4 *low) {
    const u64x2 lanes = {UINT32_MAX, UINT32_MAX}, even = ((u64x2)x & lanes) * y, odd = ((u64x2)x >> 32) * y;
    *low = (u32x4)((even & lanes) | odd << 32);
    *high = (u32x4)(even >> 32 | (odd & ~lanes));
}
/* The two halves of x * y. */
ALWAYS_INLINE void w16_mul(w16 x, uint32_t y, w16 *high, w16 *low) {
    u32x4_mul(x.a, y, &high->a, &low->a);
    u32x4_mul(x.b, y, &high->b, &low->b);
    u32x4_mul(x.c, y, &high->c, &low->c);
    u32x4_mul(x.d, y, &high->d, &low->d);
}
ALWAYS_INLINE w16 w16_load(const uint32_t *p) {
    w16 v;
    memcpy(&v, p, sizeof v);
    return v;
}
/* In each quarter of four lanes, transposes the 4x4 matrix of words x[0..3]. */
ALWAYS_INLINE void u32x4_zip(u32x4 *x0, u32x4 *x1, u32x4 *x2, u32x4 *x3) {
    const u32x4 a = __builtin_shufflevector(*x0, *x1, 0, 4, 1, 5),
                b = __builtin_shufflevector(*x0, *x1, 2, 6, 3, 7);
    const u32x4 c = __builtin_shufflevector(*x2, *x3, 0, 4, 1, 5),
                d = __builtin_shufflevector(*x2, *x3, 2, 6, 3, 7);
    *x0 = __builtin_shufflevector(a, c, 0, 1, 4, 5);
    *x1 = __builtin_shufflevector(a, c, 2, 3, 6, 7);
    *x2 = __builtin_shufflevector(b, d, 0, 1, 4, 5);
    *x3 = __builtin_shufflevector(b, d, 2, 3, 6, 7);
}
ALWAYS_INLINE void w16_zip(w16 x[4]) {
    u32x4_zip(&x[0].a, &x[1].a, &x[2].a, &x[3].a);
    u32x4_zip(&x[0].b, &x[1].b, &x[2].b, &x[3].b);
    u32x4_zip(&x[0].c, &x[1].c, &x[2].c, &x[3].c);
    u32x4_zip(&x[0].d, &x[1].d, &x[2].d, &x[3].d);
}
/* Transposes the 4x4 matrix of quarters x[0..3]. */
ALWAYS_INLINE void w16_cross(w16 x[4]) {
    const w16 a = x[0], b = x[1], c = x[2], d = x[3];
    x[0] = (w16){a.a, b.a, c.a, d.a};
    x[1] = (w16){a.b, b.b, c.b, d.b};
    x[2] = (w16){a.c, b.c, c.c, d.c};
    x[3] = (w16){a.d, b.d, c.d, d.d};
}

/* The largest lane. */
ALWAYS_INLINE float v16_most(v16 v) {
    float lane[16], most;
    v16_store(lane, v);
    most = lane[0];
    for (int l = 1; l < 16; l++) most = lane[l] > most ? lane[l] : most;
    return most;
}

/* x * y + z */
#ifdef __FP_FAST_FMAF
ALWAYS_INLINE f32x4 f32x4_fma(f32x4 x, f32x4 y, f32x4 z) {
    for (int i = 0; i < 4; i++) z[i] = __builtin_fmaf(x[i], y[i], z[i]);
    return z;
}
ALWAYS_INLINE v16 v16_fma(v16 x, v16 y, v16 z) {
    return (v16){f32x4_fma(x.a, y.a, z.a), f32x4_fma(x.b, y.b, z.b), f32x4_fma(x.c, y.c, z.c),
                 f32x4_fma(x.d, y.d, z.d)};
}
#else
ALWAYS_INLINE v16 v16_fma(v16 x, v16 y, v16 z) { return v16_add(v16_mul(x, y), z); }
#endif

ALWAYS_INLINE float v16_sum(v16 v) {
    const f32x4 s = (v.a + v.c) + (v.b + v.d);
    return (s[0] + s[2]) + (s[1] + s[3]);
}

ALWAYS_INLINE void v16_sum4(v16 a, v16 b, v16 c, v16 d, float out[4]) {
    out[0] = v16_sum(a);
    out[1] = v16_sum(b);
    out[2] = v16_sum(c);
    out[3] = v16_sum(d);
}

/* Widening by interleaving with zeros (little-endian), which every vector unit can do. */
typedef uint16_t u16x8 __attribute__((vector_size(16)));
ALWAYS_INLINE u32x4 u32x4_low(u16x8 v) {
    const u16x8 zero = {0};
    return (u32x4)__builtin_shufflevector(v, zero, 0, 8, 1, 9, 2, 10, 3, 11);
}
ALWAYS_INLINE u32x4 u32x4_high(u16x8 v) {
    const u16x8 zero = {0};
    return (u32x4)__builtin_shufflevector(v, zero, 4, 8, 5, 9, 6, 10, 7, 11);
}

/* f16 in 32-bit lanes: the exponent is shifted into place and corrected by a multiplication, which is exact.
 */
ALWAYS_INLINE f32x4 f32x4_from_f16(u32x4 h) {
    const f32x4 magnitude = (f32x4)((h & 0x7fff) << 13) * 0x1p112f;
    const u32x4 special = (u32x4)((h & 0x7c00) == 0x7c00) & 0x7f800000;
    return (f32x4)((u32x4)magnitude | special | (h & 0x8000) << 16);
}
ALWAYS_INLINE v16 v16_load_f16(const void *p) {
    u16x8 h[2];
    memcpy(h, p, sizeof h);
    return (v16){f32x4_from_f16(u32x4_low(h[0])), f32x4_from_f16(u32x4_high(h[0])),
                 f32x4_from_f16(u32x4_low(h[1])), f32x4_from_f16(u32x4_high(h[1]))};
}
ALWAYS_INLINE v16 v16_load_bf16(const void *p) {
    u16x8 h[2];
    memcpy(h, p, sizeof h);
    return (v16){(f32x4)(u32x4_low(h[0]) << 16), (f32x4)(u32x4_high(h[0]) << 16),
                 (f32x4)(u32x4_low(h[1]) << 16), (f32x4)(u32x4_high(h[1]) << 16)};
}
ALWAYS_INLINE v16 v16_set1_f16(const void *p) {
    uint16_t h;
    memcpy(&h, p, sizeof h);
    const u32x4 wide = {h, h, h, h};
    const f32x4 v = f32x4_from_f16(wide);
    return (v16){v, v, v, v};
}
/* Two f16 side by side at p, where 8 bytes may be read. */
ALWAYS_INLINE void f16_pair(const uint8_t *p, float out[2]) {
    uint16_t h[2];
    memcpy(h, p, sizeof h);
    const u32x4 wide = {h[0], h[1], 0, 0};
    const f32x4 v = f32x4_from_f16(wide);
    out[0] = v[0];
    out[1] = v[1];
}
ALWAYS_INLINE void v16_store_f16(uint16_t *p, v16 v) {
    float f[16];
    v16_store(f, v);
    for (int i = 0; i < 16; i++) p[i] = dg_f32_to_f16(f[i]);
}

/* Lanes 0..7 of a, 8..15 of b. */
ALWAYS_INLINE v16 v16_join(v16 a, v16 b) { return (v16){a.a, a.b, b.c, b.d}; }

ALWAYS_INLINE v16 v16_from_u8(u8x16 q) {
    const u8x16 zero = {0};
    const u16x8 low =
        (u16x8)__builtin_shufflevector(q, zero, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const u16x8 high =
        (u16x8)__builtin_shufflevector(q, zero, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    const w16 wide = {u32x4_low(low), u32x4_high(low), u32x4_low(high), u32x4_high(high)};
    return v16_from_i32(wide);
}
ALWAYS_INLINE v16 v16_from_i8(i8x16 q) { /* q + 128 is unsigned, and its f32 less 128 is exact */
    return v16_add(v16_from_u8((u8x16)q ^ 0x80), v16_set1(-128));
}

/* The sixteen values scale * q + offset of a 4-bit code. scale * q must be exact. */
typedef struct nibble_code {
    v16 scale, offset;
} nibble_code;
ALWAYS_INLINE nibble_code nibble_make(v16 scale, v16 offset) { return (nibble_code){scale, offset}; }
ALWAYS_INLINE v16 nibble_low(nibble_code t, u8x16 q) {
    return v16_fma(v16_from_u8(q & 15), t.scale, t.offset);
}
ALWAYS_INLINE v16 nibble_high(nibble_code t, u8x16 q) {
    return v16_fma(v16_from_u8(q >> 4), t.scale, t.offset);
}
ALWAYS_INLINE void nibble_both(nibble_code t, u8x16 q, v16 w[2]) {
    w[0] = nibble_low(t, q);
    w[1] = nibble_high(t, q);
}

ALWAYS_INLINE float v16_largest(v16 v) {
    float lane[16], most;
    v16_store(lane, v);
    most = lane[0];
    for (int i = 1; i < 16; i++) most = lane[i] > most ? lane[i] : most;
    return most;
}
/* Words in [-128, 127]. */
ALWAYS_INLINE void w16_store_i8(int8_t *p, w16 v) {
    int32_t word[16];
    memcpy(word, &v, sizeof word);
    for (int i = 0; i < 16; i++) p[i] = (int8_t)word[i];
}

/* acc lane o += the products of the four codes in bytes 4o.. of q with the digits x[0..3]. */
ALWAYS_INLINE void dot4(w16 *acc, const uint8_t *q, const int8_t *x) {
    typedef int16_t i16x8 __attribute__((vector_size(16)));
    const i16x8 even = {x[0], x[2], x[0], x[2], x[0], x[2], x[0], x[2]};
    const i16x8 odd = {x[1], x[3], x[1], x[3], x[1], x[3], x[1], x[3]};
    u32x4 *const part[4] = {&acc->a, &acc->b, &acc->c, &acc->d};
    for (int i = 0; i < 4; i++) {
        i16x8 codes;
        memcpy(&codes, q + 16 * i, sizeof codes);
        const i32x4 e = (i32x4)((codes & 255) * even), o = (i32x4)((i16x8)((u16x8)codes >> 8) * odd);
        *part[i] += (u32x4)((e << 16 >> 16) + (e >> 16) + (o << 16 >> 16) + (o >> 16));
    }
}

/* Sums over j < quads, for each row, of the products of the codes q[j] with the digits at a + 64r + 4j: lane o has bytes
 * 4o.. . digits 2: sum0 += those with the high digits, sum1 += those with the low ones, 32 behind; both have 7 bits.
 * digits 1: sum0 and sum1 get parts of the one sum, of digits of 8 bits. nibbles: codes are below 16. */
ALWAYS_INLINE void dot_quads(const uint8_t (*q)[64], int quads, const int8_t *a, int rows, int digits, int nibbles,
                             w16 *sum0, w16 *sum1) {
    (void)nibbles;
    for (int j = 0; j < quads; j++)
        for (int r = 0; r < rows; r++) {
            dot4(&sum0[r], q[j], a + 64 * r + 4 * j);
            if (digits == 2) dot4(&sum1[r], q[j], a + 64 * r + 32 + 4 * j);
        }
}

#endif
