/* v16 as one AVX-512 register (F, BW, VL, DQ, VNNI). */
#ifndef DG_VEC_AVX512_H
#define DG_VEC_AVX512_H

#include <immintrin.h>

enum {
    FUSED_ROWS = 4,
    FUSED_OUTS = 4,
    TILE_ROWS = 4,
    TILE_OUTS = 4,
    CODES = 64,
    PACKED_ROWS = 8,
    ATTN_TILE = 6,
    ATTN_KEYS = 4,
    ATTN_COLUMNS = 4
}; /* see vec_portable.h */

typedef __m512 v16;

ALWAYS_INLINE v16 v16_set1(float x) { return _mm512_set1_ps(x); }
ALWAYS_INLINE v16 v16_zero(void) { return _mm512_setzero_ps(); }
ALWAYS_INLINE v16 v16_load(const void *p) { return _mm512_loadu_ps(p); }
#define V16_HAS_MASKS
ALWAYS_INLINE v16 v16_load_part(const void *p, int n) {
    return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
}
ALWAYS_INLINE void v16_store(float *p, v16 v) { _mm512_storeu_ps(p, v); }
ALWAYS_INLINE v16 v16_add(v16 x, v16 y) { return _mm512_add_ps(x, y); }
ALWAYS_INLINE v16 v16_mul(v16 x, v16 y) { return _mm512_mul_ps(x, y); }
ALWAYS_INLINE v16 v16_fma(v16 x, v16 y, v16 z) { return _mm512_fmadd_ps(x, y, z); }

ALWAYS_INLINE v16 v16_sub(v16 x, v16 y) { return _mm512_sub_ps(x, y); }
ALWAYS_INLINE v16 v16_div(v16 x, v16 y) { return _mm512_div_ps(x, y); }
ALWAYS_INLINE v16 v16_max(v16 x, v16 y) { return _mm512_max_ps(x, y); }

typedef __mmask16 m16;
ALWAYS_INLINE m16 v16_lt(v16 x, v16 y) { return _mm512_cmp_ps_mask(x, y, _CMP_LT_OQ); }
ALWAYS_INLINE m16 v16_le(v16 x, v16 y) { return _mm512_cmp_ps_mask(x, y, _CMP_LE_OQ); }
ALWAYS_INLINE v16 v16_select(m16 m, v16 x, v16 y) { return _mm512_mask_blend_ps(m, y, x); }
ALWAYS_INLINE int m16_any(m16 m) { return m != 0; }

typedef __m512i w16;
ALWAYS_INLINE w16 w16_set1(uint32_t x) { return _mm512_set1_epi32((int)x); }
ALWAYS_INLINE w16 w16_load(const uint32_t *p) { return _mm512_loadu_si512(p); }
ALWAYS_INLINE w16 w16_add(w16 x, w16 y) { return _mm512_add_epi32(x, y); }
ALWAYS_INLINE w16 w16_sub(w16 x, w16 y) { return _mm512_sub_epi32(x, y); }
ALWAYS_INLINE w16 w16_and(w16 x, w16 y) { return _mm512_and_si512(x, y); }
ALWAYS_INLINE w16 w16_xor(w16 x, w16 y) { return _mm512_xor_si512(x, y); }
ALWAYS_INLINE w16 w16_shl(w16 x, int n) { return _mm512_slli_epi32(x, (unsigned)n); }
ALWAYS_INLINE w16 w16_shr(w16 x, int n) { return _mm512_srli_epi32(x, (unsigned)n); }
ALWAYS_INLINE w16 w16_sar(w16 x, int n) { return _mm512_srai_epi32(x, (unsigned)n); }
ALWAYS_INLINE w16 v16_bits(v16 x) { return _mm512_castps_si512(x); }
ALWAYS_INLINE v16 v16_of_bits(w16 x) { return _mm512_castsi512_ps(x); }
ALWAYS_INLINE v16 v16_from_i32(w16 x) { return _mm512_cvtepi32_ps(x); }
ALWAYS_INLINE void w16_mul(w16 x, uint32_t y, w16 *high, w16 *low) {
    const __m512i factor = _mm512_set1_epi32((int)y), even = _mm512_mul_epu32(x, factor);
    const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(x, 32), factor);
    *low = _mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32));
    *high = _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
}
ALWAYS_INLINE void w16_zip(w16 x[4]) {
    const __m512i a = _mm512_unpacklo_epi32(x[0], x[1]), b = _mm512_unpackhi_epi32(x[0], x[1]);
    const __m512i c = _mm512_unpacklo_epi32(x[2], x[3]), d = _mm512_unpackhi_epi32(x[2], x[3]);
    x[0] = _mm512_unpacklo_epi64(a, c);
    x[1] = _mm512_unpackhi_epi64(a, c);
    x[2] = _mm512_unpacklo_epi64(b, d);
    x[3] = _mm512_unpackhi_epi64(b, d);
}
/* Transposes the 4x4 matrix of quarters x[0..3]. */
ALWAYS_INLINE void w16_cross(w16 x[4]) {
    const __m512i a = _mm512_shuffle_i32x4(x[0], x[1], 0x44), b = _mm512_shuffle_i32x4(x[0], x[1], 0xee);
    const __m512i c = _mm512_shuffle_i32x4(x[2], x[3], 0x44), d = _mm512_shuffle_i32x4(x[2], x[3], 0xee);
    x[0] = _mm512_shuffle_i32x4(a, c, 0x88);
    x[1] = _mm512_shuffle_i32x4(a, c, 0xdd);
    x[2] = _mm512_shuffle_i32x4(b, d, 0x88);
    x[3] = _mm512_shuffle_i32x4(b, d, 0xdd);
}

/* The largest lane. */
ALWAYS_INLINE float v16_most(v16 v) {
    const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
ALWAYS_INLINE float v16_sum(v16 v) {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/* Four sums at once: the same additions, each vector's in its own 128 bits. */
ALWAYS_INLINE void v16_sum4(v16 a, v16 b, v16 c, v16 d, float out[4]) {
    const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    const __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
    const __m512 four = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
    const __m512 two = _mm512_add_ps(four, _mm512_permute_ps(four, 0x4e));
    const __m512 one = _mm512_add_ps(two, _mm512_permute_ps(two, 0xb1));
    const __m512i first = _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);
    _mm_storeu_ps(out, _mm512_castps512_ps128(_mm512_permutexvar_ps(first, one)));
}

ALWAYS_INLINE v16 v16_load_f16(const void *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
ALWAYS_INLINE void v16_store_f16(uint16_t *p, v16 v) {
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
ALWAYS_INLINE v16 v16_load_bf16(const void *p) {
    const __m512i h = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(h, 16));
}
ALWAYS_INLINE v16 v16_set1_f16(const void *p) {
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return _mm512_set1_ps(_cvtsh_ss(h));
}

/* Two f16 side by side at p, where 8 bytes may be read. */
ALWAYS_INLINE void f16_pair(const uint8_t *p, float out[2]) {
    _mm_storel_pi((__m64 *)out, _mm_cvtph_ps(_mm_loadl_epi64((const __m128i *)p)));
}

/* Lanes 0..7 of a, 8..15 of b. */
ALWAYS_INLINE v16 v16_join(v16 a, v16 b) { return _mm512_mask_blend_ps(0xff00, a, b); }

ALWAYS_INLINE v16 v16_from_u8(u8x16 q) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32((__m128i)q)); }
ALWAYS_INLINE v16 v16_from_i8(i8x16 q) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32((__m128i)q)); }

/* See vec_portable.h. Here it is the table of the sixteen values, looked up by permutation, which reads
 * the low four bits of each lane and so needs no mask. */
typedef __m512 nibble_code;
ALWAYS_INLINE __m512 nibble_values(void) {
    return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
ALWAYS_INLINE nibble_code nibble_make(v16 scale, v16 offset) {
    return v16_fma(nibble_values(), scale, offset);
}
ALWAYS_INLINE v16 nibble_low(nibble_code t, u8x16 q) {
    return _mm512_permutexvar_ps(_mm512_cvtepu8_epi32((__m128i)q), t);
}
ALWAYS_INLINE v16 nibble_high(nibble_code t, u8x16 q) {
    return _mm512_permutexvar_ps(_mm512_srli_epi32(_mm512_cvtepu8_epi32((__m128i)q), 4), t);
}
ALWAYS_INLINE void nibble_both(nibble_code t, u8x16 q, v16 w[2]) {
    const __m512i index = _mm512_cvtepu8_epi32((__m128i)q);
    w[0] = _mm512_permutexvar_ps(index, t);
    w[1] = _mm512_permutexvar_ps(_mm512_srli_epi32(index, 4), t);
}

/* See vec_portable.h. */
ALWAYS_INLINE float v16_largest(v16 v) { return _mm512_reduce_max_ps(v); }
ALWAYS_INLINE void w16_store_i8(int8_t *p, w16 v) { _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(v)); }

/* acc += codes by the four digits at p. Written out because GCC spends an instruction on the broadcast. */
ALWAYS_INLINE void dot4(w16 *acc, __m512i codes, const int8_t *p) {
    const int32_t *four = (const int32_t *)(const void *)p;
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(*acc) : "v"(codes), "m"(*four));
}

/* See vec_portable.h. An instruction takes six cycles and two start in each, so both sums of eight rows keep
 * the units busy. */
ALWAYS_INLINE void dot_quads(const uint8_t (*q)[64], int quads, const int8_t *a, int rows, int digits, int nibbles,
                             w16 *sum0, w16 *sum1) {
    (void)nibbles;
#pragma GCC unroll 8
    for (int j = 0; j < quads; j++) {
        const __m512i codes = _mm512_loadu_si512(q[j]);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            if (digits == 2 || j % 2 == 0) dot4(&sum0[r], codes, a + 64 * r + 4 * j);
            if (digits == 2) dot4(&sum1[r], codes, a + 64 * r + 32 + 4 * j);
            if (digits == 1 && j % 2) dot4(&sum1[r], codes, a + 64 * r + 4 * j);
        }
    }
}

#endif
