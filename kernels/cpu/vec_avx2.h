/* v16 as two AVX registers, with FMA and F16C. */
#ifndef DG_VEC_AVX2_H
#define DG_VEC_AVX2_H

#include <immintrin.h>
#include <stdbool.h>

enum {
    FUSED_ROWS = 2,
    FUSED_OUTS = 2,
    TILE_ROWS = 2,
    TILE_OUTS = 2,
    CODES = 32,
    PACKED_ROWS = 4,
    ATTN_TILE = 6,
    ATTN_KEYS = 1,
    ATTN_COLUMNS = 1
}; /* see vec_portable.h */

typedef struct v16 {
    __m256 a, b; /* lanes 0..7, 8..15 */
} v16;

ALWAYS_INLINE v16 v16_set1(float x) { return (v16){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
ALWAYS_INLINE v16 v16_zero(void) { return (v16){_mm256_setzero_ps(), _mm256_setzero_ps()}; }
ALWAYS_INLINE v16 v16_load(const void *p) {
    return (v16){_mm256_loadu_ps(p), _mm256_loadu_ps((const float *)p + 8)};
}
ALWAYS_INLINE void v16_store(float *p, v16 v) {
    _mm256_storeu_ps(p, v.a);
    _mm256_storeu_ps(p + 8, v.b);
}
ALWAYS_INLINE v16 v16_add(v16 x, v16 y) { return (v16){_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
ALWAYS_INLINE v16 v16_mul(v16 x, v16 y) { return (v16){_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
ALWAYS_INLINE v16 v16_fma(v16 x, v16 y, v16 z) {
    return (v16){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}

ALWAYS_INLINE v16 v16_sub(v16 x, v16 y) { return (v16){_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
ALWAYS_INLINE v16 v16_div(v16 x, v16 y) { return (v16){_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
ALWAYS_INLINE v16 v16_max(v16 x, v16 y) { return (v16){_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }

typedef v16 m16;
ALWAYS_INLINE m16 v16_lt(v16 x, v16 y) {
    return (m16){_mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ)};
}
ALWAYS_INLINE m16 v16_le(v16 x, v16 y) {
    return (m16){_mm256_cmp_ps(x.a, y.a, _CMP_LE_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_LE_OQ)};
}
ALWAYS_INLINE v16 v16_select(m16 m, v16 x, v16 y) {
    return (v16){_mm256_blendv_ps(y.a, x.a, m.a), _mm256_blendv_ps(y.b, x.b, m.b)};
}
ALWAYS_INLINE int m16_any(m16 m) { return _mm256_movemask_ps(_mm256_or_ps(m.a, m.b)) != 0; }

typedef struct w16 {
    __m256i a, b;
} w16;
ALWAYS_INLINE w16 w16_set1(uint32_t x) { return (w16){_mm256_set1_epi32((int)x), _mm256_set1_epi32((int)x)}; }
ALWAYS_INLINE w16 w16_load(const uint32_t *p) {
    return (w16){_mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)(p + 8))};
}
ALWAYS_INLINE w16 w16_add(w16 x, w16 y) {
    return (w16){_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)};
}
ALWAYS_INLINE w16 w16_sub(w16 x, w16 y) {
    return (w16){_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)};
}
ALWAYS_INLINE w16 w16_and(w16 x, w16 y) {
    return (w16){_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)};
}
ALWAYS_INLINE w16 w16_xor(w16 x, w16 y) {
    return (w16){_mm256_xor_si256(x.a, y.a), _mm256_xor_si256(x.b, y.b)};
}
ALWAYS_INLINE w16 w16_shl(w16 x, int n) {
    return (w16){_mm256_slli_epi32(x.a, n), _mm256_slli_epi32(x.b, n)};
}
ALWAYS_INLINE w16 w16_shr(w16 x, int n) {
    return (w16){_mm256_srli_epi32(x.a, n), _mm256_srli_epi32(x.b, n)};
}
ALWAYS_INLINE w16 w16_sar(w16 x, int n) {
    return (w16){_mm256_srai_epi32(x.a, n), _mm256_srai_epi32(x.b, n)};
}
ALWAYS_INLINE w16 v16_bits(v16 x) { return (w16){_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
ALWAYS_INLINE v16 v16_of_bits(w16 x) { return (v16){_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
ALWAYS_INLINE v16 v16_from_i32(w16 x) { return (v16){_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
ALWAYS_INLINE void w8_mul(__m256i x, uint32_t y, __m256i *high, __m256i *low) {
    const __m256i factor = _mm256_set1_epi32((int)y), even = _mm256_mul_epu32(x, factor);
    const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), factor);
    *low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
    *high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
}
ALWAYS_INLINE void w16_mul(w16 x, uint32_t y, w16 *high, w16 *low) {
    w8_mul(x.a, y, &high->a, &low->a);
    w8_mul(x.b, y, &high->b, &low->b);
}
ALWAYS_INLINE void w8_zip(__m256i *x0, __m256i *x1, __m256i *x2, __m256i *x3) {
    const __m256i a = _mm256_unpacklo_epi32(*x0, *x1), b = _mm256_unpackhi_epi32(*x0, *x1);
    const __m256i c = _mm256_unpacklo_epi32(*x2, *x3), d = _mm256_unpackhi_epi32(*x2, *x3);
    *x0 = _mm256_unpacklo_epi64(a, c);
    *x1 = _mm256_unpackhi_epi64(a, c);
    *x2 = _mm256_unpacklo_epi64(b, d);
    *x3 = _mm256_unpackhi_epi64(b, d);
}
ALWAYS_INLINE void w16_zip(w16 x[4]) {
    w8_zip(&x[0].a, &x[1].a, &x[2].a, &x[3].a);
    w8_zip(&x[0].b, &x[1].b, &x[2].b, &x[3].b);
}
/* Transposes the 4x4 matrix of quarters x[0..3]. */
ALWAYS_INLINE void w16_cross(w16 x[4]) {
    const w16 a = x[0], b = x[1], c = x[2], d = x[3];
    x[0] = (w16){_mm256_permute2x128_si256(a.a, b.a, 0x20), _mm256_permute2x128_si256(c.a, d.a, 0x20)};
    x[1] = (w16){_mm256_permute2x128_si256(a.a, b.a, 0x31), _mm256_permute2x128_si256(c.a, d.a, 0x31)};
    x[2] = (w16){_mm256_permute2x128_si256(a.b, b.b, 0x20), _mm256_permute2x128_si256(c.b, d.b, 0x20)};
    x[3] = (w16){_mm256_permute2x128_si256(a.b, b.b, 0x31), _mm256_permute2x128_si256(c.b, d.b, 0x31)};
}

/* The largest lane. */
ALWAYS_INLINE float v16_most(v16 v) {
    const __m256 eight = _mm256_max_ps(v.a, v.b);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
ALWAYS_INLINE float v8_sum(__m256 s) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
ALWAYS_INLINE float v16_sum(v16 v) { return v8_sum(_mm256_add_ps(v.a, v.b)); }

ALWAYS_INLINE __m128 v8_sum2(__m256 a, __m256 b) { /* lane 0: the sum of a, lane 2: of b */
    const __m256 low = _mm256_permute2f128_ps(a, b, 0x20), high = _mm256_permute2f128_ps(a, b, 0x31);
    const __m256 four = _mm256_add_ps(low, high), two = _mm256_add_ps(four, _mm256_permute_ps(four, 0x4e));
    const __m256 one = _mm256_add_ps(two, _mm256_permute_ps(two, 0xb1));
    return _mm_shuffle_ps(_mm256_castps256_ps128(one), _mm256_extractf128_ps(one, 1), 0);
}
/* Four sums at once: the same additions. */
ALWAYS_INLINE void v16_sum4(v16 a, v16 b, v16 c, v16 d, float out[4]) {
    const __m128 ab = v8_sum2(_mm256_add_ps(a.a, a.b), _mm256_add_ps(b.a, b.b));
    const __m128 cd = v8_sum2(_mm256_add_ps(c.a, c.b), _mm256_add_ps(d.a, d.b));
    _mm_storeu_ps(out, _mm_shuffle_ps(ab, cd, 0x88));
}

ALWAYS_INLINE __m128i load128(const void *p) { return _mm_loadu_si128((const __m128i *)p); }
ALWAYS_INLINE v16 v16_load_f16(const void *p) {
    return (v16){_mm256_cvtph_ps(load128(p)), _mm256_cvtph_ps(load128((const char *)p + 16))};
}
ALWAYS_INLINE void v16_store_f16(uint16_t *p, v16 v) {
    enum { nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }; /* an immediate operand */
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(v.a, nearest));
    _mm_storeu_si128((__m128i *)(p + 8), _mm256_cvtps_ph(v.b, nearest));
}
ALWAYS_INLINE __m256 v8_from_bf16(__m128i h) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
ALWAYS_INLINE v16 v16_load_bf16(const void *p) {
    return (v16){v8_from_bf16(load128(p)), v8_from_bf16(load128((const char *)p + 16))};
}
ALWAYS_INLINE v16 v16_set1_f16(const void *p) {
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return v16_set1(_cvtsh_ss(h));
}

/* Two f16 side by side at p, where 8 bytes may be read. */
ALWAYS_INLINE void f16_pair(const uint8_t *p, float out[2]) {
    _mm_storel_pi((__m64 *)out, _mm_cvtph_ps(_mm_loadl_epi64((const __m128i *)p)));
}

/* Lanes 0..7 of a, 8..15 of b. */
ALWAYS_INLINE v16 v16_join(v16 a, v16 b) { return (v16){a.a, b.b}; }

ALWAYS_INLINE v16 v16_from_u8(u8x16 q) {
    const __m128i v = (__m128i)q;
    return (v16){_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(v)),
                 _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(v, 8)))};
}
ALWAYS_INLINE v16 v16_from_i8(i8x16 q) {
    const __m128i v = (__m128i)q;
    return (v16){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(v)),
                 _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(v, 8)))};
}

/* See vec_portable.h. */
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

/* See vec_portable.h. */
ALWAYS_INLINE float v16_largest(v16 v) {
    const __m256 eight = _mm256_max_ps(v.a, v.b);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
ALWAYS_INLINE void w16_store_i8(int8_t *p, w16 v) {
    const __m256i pairs = _mm256_permute4x64_epi64(_mm256_packs_epi32(v.a, v.b), 0xd8);
    _mm_storeu_si128((__m128i *)p, _mm_packs_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1)));
}

/* sum += codes by the four digits at p, each times `factor`. */
ALWAYS_INLINE void dot4(__m256i *sum, __m256i codes, const int8_t *p, int factor) {
    int32_t four;
    memcpy(&four, p, sizeof four);
#ifdef __AVXVNNI__
    if (factor == 1) {
        *sum = _mm256_dpbusd_avx_epi32(*sum, codes, _mm256_set1_epi32(four));
        return;
    }
#endif
    const __m256i pairs = _mm256_maddubs_epi16(codes, _mm256_set1_epi32(four));
    *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16((int16_t)factor)));
}

/* Likewise for codes below 16 in pairs of 16 bits, of which eight fit. */
ALWAYS_INLINE void dot4_pairs(__m256i *pairs, __m256i codes, const int8_t *p, bool first) {
    int32_t four;
    memcpy(&four, p, sizeof four);
    const __m256i pair = _mm256_maddubs_epi16(codes, _mm256_set1_epi32(four));
    *pairs = first ? pair : _mm256_add_epi16(*pairs, pair);
    __asm__("" : "+x"(*pairs)); /* or the compiler makes all products first, to add them up as a tree, and spills */
}

#ifdef __AVXVNNI__
enum { HAS_DOT4 = 1 };
#else
enum { HAS_DOT4 = 0 };
#endif

/* See vec_portable.h. maddubs saturates at 16 bits, which two products with digits of 7 bits stay below; with digits of
 * 8 bits, codes of 8 bits are taken half by half. Sixteen registers hold the sums of eight outputs at a time: the halves
 * stay a loop, or the compiler mixes them and spills. */
ALWAYS_INLINE void dot_quads(const uint8_t (*q)[64], int quads, const int8_t *a, int rows, int digits, int nibbles,
                             w16 *sum0, w16 *sum1) {
    const bool in_pairs = nibbles && !HAS_DOT4;
    int halves = 2;
    __asm__("" : "+r"(halves));
    for (int h = 0; h < halves; h++) {
        __asm__("" : "+r"(a)); /* nor are all broadcasts to be made before the loop */
        __m256i s[2][PACKED_ROWS];
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) s[0][r] = s[1][r] = _mm256_setzero_si256();
#pragma GCC unroll 8
        for (int j = 0; j < quads; j++) {
            const __m256i codes = _mm256_loadu_si256((const __m256i *)(q[j] + 32 * h)), low4 = _mm256_set1_epi8(15);
            const __m256i low = _mm256_and_si256(codes, low4);
            const __m256i high = _mm256_and_si256(_mm256_srli_epi16(codes, 4), low4);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) {
                const int8_t *x = a + 64 * r + 4 * j;
                if (in_pairs) {
                    dot4_pairs(&s[0][r], codes, x, j == 0);
                    if (digits == 2) dot4_pairs(&s[1][r], codes, x + 32, j == 0);
                } else if (digits == 2) {
                    dot4(&s[0][r], codes, x, 1);
                    dot4(&s[1][r], codes, x + 32, 1);
                } else if (HAS_DOT4) {
                    dot4(&s[j % 2][r], codes, x, 1);
                } else {
                    dot4(&s[0][r], low, x, 1);
                    dot4(&s[1][r], high, x, 16);
                }
            }
        }
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
            for (int d = 0; d < 2; d++) {
                if (in_pairs && d < digits) s[d][r] = _mm256_madd_epi16(s[d][r], _mm256_set1_epi16(1));
                __m256i *sum = (__m256i *)(d ? &sum1[r] : &sum0[r]) + h;
                *sum = _mm256_add_epi32(*sum, s[d][r]);
            }
    }
}

#endif
