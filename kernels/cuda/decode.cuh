/* Decoding of weights on the device: eight neighbouring elements of a row at a time, of every weight type.
 *
 * The rules are those of quant.c and quant_iq.c, product by product, so that decoded weights have the same bits.
 * Blocks of most types lie at even addresses only, so that nothing wider than 16 bits is loaded from them. */
#ifndef DG_CUDA_DECODE_CUH
#define DG_CUDA_DECODE_CUH

#include "kernels/cuda/common.cuh"

/* The codebooks, once more in device memory. */
#define DG_TABLE static __device__ const
#include "kernels/quant_tables.c"
#undef DG_TABLE

/* The quantised types for which a kernel is compiled: X(type) for each. */
#define DG_QUANT_KERNELS(X) X(DG_Q4_0) X(DG_Q4_1) X(DG_Q5_0) X(DG_Q5_1) X(DG_Q8_0) X(DG_Q4_K) X(DG_Q5_K) X(DG_Q6_K)

DG_DEV uint32_t dg_u16(const uint8_t *p) { return *reinterpret_cast<const uint16_t *>(p); }
DG_DEV uint32_t dg_u32(const uint8_t *p) { return dg_u16(p) | dg_u16(p + 2) << 16; }
DG_DEV float dg_f16_at(const uint8_t *p) { return dg_f16(static_cast<uint16_t>(dg_u16(p))); }

/* y[e] = the e-th of eight bytes at p, which is even. */
DG_DEV void dg_bytes8(const uint8_t *p, uint32_t y[8]) {
    DG_UNROLL
    for (int e = 0; e < 8; e += 2) {
        const uint32_t two = dg_u16(p + e);
        y[e] = two & 255, y[e + 1] = two >> 8;
    }
}

/* ---- blocks of 32: j is the group of eight within the block ---- */

/* The 4-bit codes of group j: elements 0..15 are low nibbles, 16..31 high ones. */
DG_DEV void dg_nibbles8(const uint8_t *qs, int j, uint32_t q[8]) {
    dg_bytes8(qs + j % 2 * 8, q);
    DG_UNROLL
    for (int e = 0; e < 8; e++) q[e] = q[e] >> (j / 2 * 4) & 15;
}

DG_DEV void dg_decode_q4_0(const uint8_t *b, int j, float *y) {
    uint32_t q[8];
    dg_nibbles8(b + 2, j, q);
    const float d = dg_f16_at(b);
    DG_UNROLL
    for (int e = 0; e < 8; e++) y[e] = static_cast<float>(static_cast<int>(q[e]) - 8) * d;
}

DG_DEV void dg_decode_q4_1(const uint8_t *b, int j, float *y) {
    uint32_t q[8];
    dg_nibbles8(b + 4, j, q);
    const float d = dg_f16_at(b), m = dg_f16_at(b + 2);
    DG_UNROLL
    for (int e = 0; e < 8; e++) y[e] = static_cast<float>(q[e]) * d + m;
}

DG_DEV void dg_codes_q5(const uint8_t *qh, const uint8_t *qs, int j, uint32_t q[8]) {
    const uint32_t high = dg_u32(qh) >> (8 * j);
    dg_nibbles8(qs, j, q);
    DG_UNROLL
    for (int e = 0; e < 8; e++) q[e] |= (high >> e & 1) << 4;
}

DG_DEV void dg_decode_q5_0(const uint8_t *b, int j, float *y) {
    uint32_t q[8];
    dg_codes_q5(b + 2, b + 6, j, q);
    const float d = dg_f16_at(b);
    DG_UNROLL
    for (int e = 0; e < 8; e++) y[e] = static_cast<float>(static_cast<int>(q[e]) - 16) * d;
}

DG_DEV void dg_decode_q5_1(const uint8_t *b, int j, float *y) {
    uint32_t q[8];
    dg_codes_q5(b + 4, b + 8, j, q);
    const float d = dg_f16_at(b), m = dg_f16_at(b + 2);
    DG_UNROLL
    for (int e = 0; e < 8; e++) y[e] = static_cast<float>(q[e]) * d + m;
}

DG_DEV void dg_decode_q8_0(const uint8_t *b, int j, float *y) {
    uint32_t q[8];
    dg_bytes8(b + 2 + 8 * j, q);
    const float d = dg_f16_at(b);
    DG_UNROLL
    for (int e = 0; e < 8; e++) y[e] = static_cast<float>(static_cast<int8_t>(q[e])) * d;
}

/* ---- K blocks of 256: j counts groups of eight from 0 to 31 ---- */

DG_DEV void dg_decode_q2_k(const uint8_t *b, int j, float *y) {
    uint32_t q[8];
    dg_bytes8(b + 16 + j / 16 * 32 + j % 4 * 8, q);
    const float d = dg_f16_at(b + 80), dmin = dg_f16_at(b + 82);
    const float dl = d * static_cast<float>(b[j / 2] & 15), ml = dmin * static_cast<float>(b[j / 2] >> 4);
    const int shift = j % 16 / 4 * 2;
    DG_UNROLL
    for (int e = 0; e < 8; e++) y[e] = dl * static_cast<float>(q[e] >> shift & 3) - ml;
}

DG_DEV void dg_decode_q3_k(const uint8_t *b, int j, float *y) {
    uint32_t q[8], h[8];
    dg_bytes8(b + 32 + j / 16 * 32 + j % 4 * 8, q);
    dg_bytes8(b + j % 4 * 8, h);
    const uint8_t *scale = b + 96;
    const int s = j / 2, shift = j % 16 / 4 * 2, bit = j / 4;
    const int low = scale[s % 8] >> (s / 8 * 4) & 15, high = scale[8 + s % 4] >> (s / 4 * 2) & 3;
    const float dl = dg_f16_at(b + 108) * static_cast<float>((low | high << 4) - 32);
    DG_UNROLL
    for (int e = 0; e < 8; e++)
        y[e] = dl * static_cast<float>(static_cast<int>(q[e] >> shift & 3) - ((h[e] >> bit & 1) ? 0 : 4));
}

DG_DEV void dg_scale_min_k(const uint8_t *s, int i, float *scale, float *min) {
    if (i < 4) {
        *scale = static_cast<float>(s[i] & 63);
        *min = static_cast<float>(s[i + 4] & 63);
    } else {
        *scale = static_cast<float>((s[i + 4] & 15) | (s[i - 4] >> 6) << 4);
        *min = static_cast<float>(s[i + 4] >> 4 | (s[i] >> 6) << 4);
    }
}

DG_DEV void dg_decode_q4_k(const uint8_t *b, int j, float *y) {
    uint32_t q[8];
    float scale, min;
    dg_bytes8(b + 16 + j / 8 * 32 + j % 4 * 8, q);
    dg_scale_min_k(b + 4, j / 4, &scale, &min);
    const float dl = dg_f16_at(b) * scale, ml = dg_f16_at(b + 2) * min;
    DG_UNROLL
    for (int e = 0; e < 8; e++) y[e] = dl * static_cast<float>(q[e] >> (j / 4 % 2 * 4) & 15) - ml;
}

DG_DEV void dg_decode_q5_k(const uint8_t *b, int j, float *y) {
    uint32_t q[8], h[8];
    float scale, min;
    dg_bytes8(b + 48 + j / 8 * 32 + j % 4 * 8, q);
    dg_bytes8(b + 16 + j % 4 * 8, h);
    dg_scale_min_k(b + 4, j / 4, &scale, &min);
    const float dl = dg_f16_at(b) * scale, ml = dg_f16_at(b + 2) * min;
    DG_UNROLL
    for (int e = 0; e < 8; e++)
        y[e] = dl * static_cast<float>((q[e] >> (j / 4 % 2 * 4) & 15) | (h[e] >> (j / 4) & 1) << 4) - ml;
}

DG_DEV void dg_decode_q6_k(const uint8_t *b, int j, float *y) {
    uint32_t low[8], high[8];
    const int half = j / 16, quarter = j % 16 / 4;
    dg_bytes8(b + half * 64 + j % 8 * 8, low);
    dg_bytes8(b + 128 + half * 32 + j % 4 * 8, high);
    const float dl = dg_f16_at(b + 208) * static_cast<float>(static_cast<int8_t>(b[192 + j / 2]));
    DG_UNROLL
    for (int e = 0; e < 8; e++) {
        const uint32_t q = (low[e] >> (quarter / 2 * 4) & 15) | (high[e] >> (quarter * 2) & 3) << 4;
        y[e] = dl * static_cast<float>(static_cast<int>(q) - 32);
    }
}

/* ---- codebooks of eight elements ---- */

/* 7 stored sign bits; the eighth makes the number of minus signs even. */
DG_DEV uint32_t dg_signs_of_7(uint32_t s) { return s | (__popc(s) & 1u) << 7; }

DG_DEV void dg_put_iq2(uint32_t point, uint32_t signs, float scale, float *y) {
    DG_UNROLL
    for (int e = 0; e < 8; e++) {
        const uint32_t code = point >> (2 * e) & 3;
        const float v = scale * (code == 0 ? 8.0f : code == 1 ? 25.0f : 43.0f);
        y[e] = signs >> e & 1 ? -v : v;
    }
}

DG_DEV void dg_decode_iq2_xxs(const uint8_t *b, int j, float *y) {
    const uint8_t *index = b + 2 + j / 4 * 8;
    const uint32_t word = dg_u32(index + 4);
    const float db = dg_f16_at(b) * (0.5f + static_cast<float>(word >> 28)) * 0.25f;
    dg_put_iq2(dg_grid_iq2_xxs[index[j % 4]], dg_signs_of_7(word >> (7 * (j % 4)) & 127), db, y);
}

DG_DEV float dg_scale_iq2(float d, const uint8_t *scales, int j) {
    return d * (0.5f + static_cast<float>(scales[j / 4] >> (j / 2 % 2 * 4) & 15)) * 0.25f;
}

DG_DEV void dg_decode_iq2_xs(const uint8_t *b, int j, float *y) {
    const uint32_t q = dg_u16(b + 2 + 2 * j);
    dg_put_iq2(dg_grid_iq2_xs[q & 511], dg_signs_of_7(q >> 9), dg_scale_iq2(dg_f16_at(b), b + 66, j), y);
}

DG_DEV void dg_decode_iq2_s(const uint8_t *b, int j, float *y) {
    const int i = b[2 + j] | (b[66 + j / 4] >> (j % 4 * 2) & 3) << 8;
    dg_put_iq2(dg_grid_iq2_s[i], b[34 + j], dg_scale_iq2(dg_f16_at(b), b + 74, j), y);
}

DG_DEV void dg_put_iq1(uint32_t point, float delta, float scale, float *y) {
    DG_UNROLL
    for (int e = 0; e < 8; e++)
        y[e] = scale * (static_cast<float>(static_cast<int>(point >> (2 * e) & 3) - 1) + delta);
}

DG_DEV void dg_decode_iq1_s(const uint8_t *b, int j, float *y) {
    const uint32_t qh = dg_u16(b + 34 + j / 4 * 2);
    const float dl = dg_f16_at(b) * static_cast<float>(2 * (qh >> 12 & 7) + 1);
    dg_put_iq1(dg_grid_iq1[b[2 + j] | (qh >> (j % 4 * 3) & 7) << 8], qh & 0x8000 ? -0.125f : 0.125f, dl, y);
}

DG_DEV void dg_decode_iq1_m(const uint8_t *b, int j, float *y) {
    const uint8_t *scale = b + 48;
    uint32_t h = 0;
    for (int i = 0; i < 4; i++) h |= (dg_u16(scale + 2 * i) >> 12) << (4 * i);
    const float d = dg_f16(static_cast<uint16_t>(h));
    const uint32_t high = b[32 + j / 2] >> (j % 2 * 4);
    const float dl = d * static_cast<float>(2 * (dg_u16(scale + j / 8 * 2) >> (j / 2 % 4 * 3) & 7) + 1);
    dg_put_iq1(dg_grid_iq1[b[j] | (high & 7) << 8], high & 8 ? -0.125f : 0.125f, dl, y);
}

/* ---- codebooks of four elements ---- */

DG_DEV void dg_decode_iq3_xxs(const uint8_t *b, int j, float *y) {
    const uint32_t word = dg_u32(b + 66 + j / 4 * 4), signs = dg_signs_of_7(word >> (j % 4 * 7) & 127);
    const float db = dg_f16_at(b) * (0.5f + static_cast<float>(word >> 28)) * 0.5f;
    DG_UNROLL
    for (int e = 0; e < 8; e++) {
        const uint32_t code = dg_grid_iq3_xxs[b[2 + 2 * j + e / 4]] >> (e % 4 * 3) & 7;
        const float v = db * (code == 7 ? 62.0f : static_cast<float>(4 + 8 * code));
        y[e] = signs >> e & 1 ? -v : v;
    }
}

DG_DEV void dg_decode_iq3_s(const uint8_t *b, int j, float *y) {
    const uint8_t *index = b + 2 + 2 * j;
    const float db = dg_f16_at(b) * static_cast<float>(1 + 2 * (b[106 + j / 8] >> (j / 4 % 2 * 4) & 15));
    const uint32_t signs = b[74 + j], high = b[66 + j / 4] >> (2 * (j % 4));
    DG_UNROLL
    for (int e = 0; e < 8; e++) {
        const uint32_t point = dg_grid_iq3_s[index[e / 4] | (high >> (e / 4) & 1) << 8];
        const float v = db * static_cast<float>(2 * (point >> (3 * (e % 4)) & 7) + 1);
        y[e] = signs >> e & 1 ? -v : v;
    }
}

/* ---- 4-bit codes into a fixed list of 16 values ---- */

static __device__ const int8_t dg_nonlinear[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                   1,    13,   25,  38,  53,  69,  89,  113};
static __device__ const int8_t dg_e2m1_doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* q: the eight bytes that hold the group's nibbles, at any address. */
DG_DEV void dg_put_4bit(const uint8_t *q, int shift, const int8_t *value, float scale, float *y) {
    DG_UNROLL
    for (int e = 0; e < 8; e++) y[e] = scale * static_cast<float>(value[q[e] >> shift & 15]);
}

DG_DEV void dg_decode_iq4_nl(const uint8_t *b, int j, float *y) {
    dg_put_4bit(b + 2 + j % 2 * 8, j / 2 * 4, dg_nonlinear, dg_f16_at(b), y);
}

DG_DEV void dg_decode_iq4_xs(const uint8_t *b, int j, float *y) {
    const int s = j / 4, scale = (b[4 + s / 2] >> (s % 2 * 4) & 15) | (dg_u16(b + 2) >> (2 * s) & 3) << 4;
    dg_put_4bit(b + 8 + 16 * s + j % 2 * 8, j % 4 / 2 * 4, dg_nonlinear, dg_f16_at(b) * static_cast<float>(scale - 32), y);
}

DG_DEV void dg_decode_mxfp4(const uint8_t *b, int j, float *y) {
    const uint32_t e = b[0];
    const float scale = __uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);
    dg_put_4bit(b + 1 + j % 2 * 8, j / 2 * 4, dg_e2m1_doubled, scale, y);
}

DG_DEV float dg_half_of_ue4m3(uint32_t x) {
    if (x == 0x7f) return 0;
    const uint32_t exponent = x >> 3 & 15, mantissa = x & 7;
    if (exponent == 0) return static_cast<float>(mantissa) * (1.0f / 1024);
    return __uint_as_float((exponent + 119) << 23 | mantissa << 20);
}

DG_DEV void dg_decode_nvfp4(const uint8_t *b, int j, float *y) {
    dg_put_4bit(b + 4 + j / 2 * 8, j % 2 * 4, dg_e2m1_doubled, dg_half_of_ue4m3(b[j / 2]), y);
}

/* ---- ternary ---- */

DG_DEV void dg_put_digit(const uint8_t *q, uint32_t power, float d, float *y) {
    DG_UNROLL
    for (int e = 0; e < 8; e++) {
        const uint32_t v = (q[e] * power) & 255;
        y[e] = d * static_cast<float>(static_cast<int>(v * 3 >> 8) - 1);
    }
}

/* Digits 0..4 of bytes 0..31 are elements 0..159, those of bytes 32..47 elements 160..239, the rest four of 48..51. */
DG_DEV void dg_decode_tq1_0(const uint8_t *b, int j, float *y) {
    const float d = dg_f16_at(b + 52);
    uint32_t power = 1;
    if (j < 20) {
        for (int i = 0; i < j / 4; i++) power *= 3;
        dg_put_digit(b + j % 4 * 8, power, d, y);
    } else if (j < 30) {
        for (int i = 0; i < (j - 20) / 2; i++) power *= 3;
        dg_put_digit(b + 32 + j % 2 * 8, power, d, y);
    } else {
        DG_UNROLL
        for (int e = 0; e < 8; e++) {
            const uint32_t v = (b[48 + e % 4] * (j == 30 ? e < 4 ? 1u : 3u : e < 4 ? 9u : 27u)) & 255;
            y[e] = d * static_cast<float>(static_cast<int>(v * 3 >> 8) - 1);
        }
    }
}

DG_DEV void dg_decode_tq2_0(const uint8_t *b, int j, float *y) {
    const float d = dg_f16_at(b + 64);
    const uint8_t *q = b + j / 16 * 32 + j % 4 * 8;
    const int shift = j % 16 / 4 * 2;
    DG_UNROLL
    for (int e = 0; e < 8; e++) y[e] = d * static_cast<float>(static_cast<int>(q[e] >> shift & 3) - 1);
}

/* ---- by type ---- */

/* y[0..8) = elements k .. k + 7 of a row of quantised weights, k a multiple of 8. Where DTYPE is a constant, one case is
 * left. */
DG_DEV void dg_decode8(int dtype, const uint8_t *row, int32_t k, float *y) {
    const int i32 = k / 32, j32 = k / 8 % 4, i256 = k / 256, j256 = k / 8 % 32;
    switch (dtype) {
    case DG_Q4_0: dg_decode_q4_0(row + static_cast<int64_t>(i32) * 18, j32, y); break;
    case DG_Q4_1: dg_decode_q4_1(row + static_cast<int64_t>(i32) * 20, j32, y); break;
    case DG_Q5_0: dg_decode_q5_0(row + static_cast<int64_t>(i32) * 22, j32, y); break;
    case DG_Q5_1: dg_decode_q5_1(row + static_cast<int64_t>(i32) * 24, j32, y); break;
    case DG_Q8_0: dg_decode_q8_0(row + static_cast<int64_t>(i32) * 34, j32, y); break;
    case DG_Q2_K: dg_decode_q2_k(row + static_cast<int64_t>(i256) * 84, j256, y); break;
    case DG_Q3_K: dg_decode_q3_k(row + static_cast<int64_t>(i256) * 110, j256, y); break;
    case DG_Q4_K: dg_decode_q4_k(row + static_cast<int64_t>(i256) * 144, j256, y); break;
    case DG_Q5_K: dg_decode_q5_k(row + static_cast<int64_t>(i256) * 176, j256, y); break;
    case DG_Q6_K: dg_decode_q6_k(row + static_cast<int64_t>(i256) * 210, j256, y); break;
    case DG_IQ2_XXS: dg_decode_iq2_xxs(row + static_cast<int64_t>(i256) * 66, j256, y); break;
    case DG_IQ2_XS: dg_decode_iq2_xs(row + static_cast<int64_t>(i256) * 74, j256, y); break;
    case DG_IQ2_S: dg_decode_iq2_s(row + static_cast<int64_t>(i256) * 82, j256, y); break;
    case DG_IQ3_XXS: dg_decode_iq3_xxs(row + static_cast<int64_t>(i256) * 98, j256, y); break;
    case DG_IQ3_S: dg_decode_iq3_s(row + static_cast<int64_t>(i256) * 110, j256, y); break;
    case DG_IQ1_S: dg_decode_iq1_s(row + static_cast<int64_t>(i256) * 50, j256, y); break;
    case DG_IQ1_M: dg_decode_iq1_m(row + static_cast<int64_t>(i256) * 56, j256, y); break;
    case DG_IQ4_NL: dg_decode_iq4_nl(row + static_cast<int64_t>(i32) * 18, j32, y); break;
    case DG_IQ4_XS: dg_decode_iq4_xs(row + static_cast<int64_t>(i256) * 136, j256, y); break;
    case DG_TQ1_0: dg_decode_tq1_0(row + static_cast<int64_t>(i256) * 54, j256, y); break;
    case DG_TQ2_0: dg_decode_tq2_0(row + static_cast<int64_t>(i256) * 66, j256, y); break;
    case DG_MXFP4: dg_decode_mxfp4(row + static_cast<int64_t>(i32) * 17, j32, y); break;
    case DG_NVFP4: dg_decode_nvfp4(row + static_cast<int64_t>(k / 64) * 36, k / 8 % 8, y); break;
    default: break;
    }
}

/* One element of a row of plain weights. */
DG_DEV float dg_plain_at(int dtype, const void *row, int32_t k) {
    if (dtype == DG_F64) return static_cast<float>(static_cast<const double *>(row)[k]);
    return dg_load_any(row, dtype, k);
}

/* Whether elements come in blocks. */
static inline bool dg_is_quantised(dg_dtype dtype) { return dtype >= DG_Q4_0; }

#endif
