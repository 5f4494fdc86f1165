/* v16 as two AVX registers, with FMA and F16C. */
#ifndef DG_VEC_AVX2_H
#define DG_VEC_AVX2_H

#include <immintrin.h>

enum { FUSED_ROWS = 2, FUSED_OUTS = 2, TILE_ROWS = 2, TILE_OUTS = 2, MIX_CHUNKS = 1 }; /* see vec_portable.h */

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
ALWAYS_INLINE v16 nibble_low(nibble_code t, u8x16 q) { return v16_fma(v16_from_u8(q & 15), t.scale, t.offset); }
ALWAYS_INLINE v16 nibble_high(nibble_code t, u8x16 q) { return v16_fma(v16_from_u8(q >> 4), t.scale, t.offset); }
ALWAYS_INLINE void nibble_both(nibble_code t, u8x16 q, v16 w[2]) {
    w[0] = nibble_low(t, q);
    w[1] = nibble_high(t, q);
}

#endif
