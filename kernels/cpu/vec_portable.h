/* v16 as four vectors of four, in GNU vector arithmetic: SSE2, NEON or whatever the target has. */
#ifndef DG_VEC_PORTABLE_H
#define DG_VEC_PORTABLE_H

enum { FUSED_ROWS = 1, FUSED_OUTS = 1 }; /* matmul: rows and outputs at a time, decoding in registers */
enum { TILE_ROWS = 2, TILE_OUTS = 1 };   /* and with decoded panels */
enum { MIX_CHUNKS = 1 };                 /* attention: vectors of one head at a time */

typedef float f32x4 __attribute__((vector_size(16)));
typedef int32_t i32x4 __attribute__((vector_size(16)));
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

ALWAYS_INLINE float f16_to_f32(uint16_t h) {
    /* The exponent is shifted into place and corrected by a multiplication, which is exact. */
    const uint32_t magnitude = (uint32_t)(h & 0x7fff) << 13, special = (h & 0x7c00) == 0x7c00 ? 0x7f800000u : 0;
    float f;
    memcpy(&f, &magnitude, sizeof f);
    f *= 0x1p112f;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    bits |= special | (uint32_t)(h & 0x8000) << 16;
    memcpy(&f, &bits, sizeof f);
    return f;
}

ALWAYS_INLINE v16 v16_load_f16(const void *p) {
    uint16_t h[16];
    float f[16];
    memcpy(h, p, sizeof h);
    for (int i = 0; i < 16; i++) f[i] = f16_to_f32(h[i]);
    return v16_load(f);
}
ALWAYS_INLINE void v16_store_f16(uint16_t *p, v16 v) {
    float f[16];
    v16_store(f, v);
    for (int i = 0; i < 16; i++) p[i] = dg_f32_to_f16(f[i]);
}
ALWAYS_INLINE v16 v16_load_bf16(const void *p) {
    uint16_t h[16];
    uint32_t f[16];
    memcpy(h, p, sizeof h);
    for (int i = 0; i < 16; i++) f[i] = (uint32_t)h[i] << 16;
    return v16_load(f);
}
ALWAYS_INLINE v16 v16_set1_f16(const void *p) {
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return v16_set1(f16_to_f32(h));
}

/* Two f16 side by side at p, where 8 bytes may be read. */
ALWAYS_INLINE void f16_pair(const uint8_t *p, float out[2]) {
    uint16_t h[2];
    memcpy(h, p, sizeof h);
    out[0] = f16_to_f32(h[0]);
    out[1] = f16_to_f32(h[1]);
}

/* Lanes 0..7 of a, 8..15 of b. */
ALWAYS_INLINE v16 v16_join(v16 a, v16 b) { return (v16){a.a, a.b, b.c, b.d}; }

/* Widening by interleaving with zeros (little-endian), which every vector unit can do. */
typedef uint16_t u16x8 __attribute__((vector_size(16)));
ALWAYS_INLINE f32x4 f32x4_from_u16(u16x8 v, int high) {
    const u16x8 zero = {0};
    const u16x8 wide = high ? __builtin_shufflevector(v, zero, 4, 8, 5, 9, 6, 10, 7, 11)
                            : __builtin_shufflevector(v, zero, 0, 8, 1, 9, 2, 10, 3, 11);
    return __builtin_convertvector((i32x4)wide, f32x4);
}
ALWAYS_INLINE v16 v16_from_u8(u8x16 q) {
    const u8x16 zero = {0};
    const u16x8 low = (u16x8)__builtin_shufflevector(q, zero, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const u16x8 high =
        (u16x8)__builtin_shufflevector(q, zero, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    return (v16){f32x4_from_u16(low, 0), f32x4_from_u16(low, 1), f32x4_from_u16(high, 0), f32x4_from_u16(high, 1)};
}
ALWAYS_INLINE v16 v16_from_i8(i8x16 q) { /* q + 128 is unsigned, and its f32 less 128 is exact */
    return v16_add(v16_from_u8((u8x16)q ^ 0x80), v16_set1(-128));
}

/* The sixteen values scale * q + offset of a 4-bit code. scale * q must be exact. */
typedef struct nibble_code {
    v16 scale, offset;
} nibble_code;
ALWAYS_INLINE nibble_code nibble_make(v16 scale, v16 offset) { return (nibble_code){scale, offset}; }
ALWAYS_INLINE v16 nibble_low(nibble_code t, u8x16 q) { return v16_fma(v16_from_u8(q & 15), t.scale, t.offset); }
ALWAYS_INLINE v16 nibble_high(nibble_code t, u8x16 q) { return v16_fma(v16_from_u8(q >> 4), t.scale, t.offset); }
ALWAYS_INLINE void nibble_both(nibble_code t, u8x16 q, v16 w[2]) {
    w[0] = nibble_low(t, q);
    w[1] = nibble_high(t, q);
}

#endif
