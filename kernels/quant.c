/* Data types, 16-bit float conversions, decoding of the blocks of 32 and the K blocks, and the encoders.
 *
 * Knows nothing of files or models. Layouts follow the GGUF type definitions; every product and sum is
 * written in ggml's order, because a decoder has to match it to the bit (this needs -ffp-contract=off). */
#include "kernels/quant.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "kernels/quant_block.h"

/* ---- 16-bit floats ---- */

static uint32_t bits_of_float(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

float dg_f16_to_f32(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 0x3ff;
    if (exponent == 0) { /* k * 2^-24 is a normal f32, so this is right with denormals flushed too */
        const float f = (float)mantissa * 0x1p-24f;
        return sign ? -f : f;
    }
    if (exponent == 31) return dg_block_float(sign | 0x7f800000u | mantissa << 13);
    return dg_block_float(sign | (exponent + 112) << 23 | mantissa << 13);
}

uint16_t dg_f32_to_f16(float f) {
    const uint32_t bits = bits_of_float(f), u = bits & 0x7fffffffu, sign = bits >> 16 & 0x8000;
    if (u > 0x7f800000u) return (uint16_t)(sign | 0x7e00 | (u >> 13 & 0x1ff)); /* quiet NaN */
    if (u >= 0x47800000u) return (uint16_t)(sign | 0x7c00);
    if (u < 0x38800000u) /* below 2^-14: the last bit of 0.5 + x weighs 2^-24, as that of a subnormal f16 */
        return (uint16_t)(sign | (bits_of_float(dg_block_float(u) + 0.5f) - 0x3f000000u));
    /* The carry of a mantissa of ones goes into the exponent, at the top into infinity: both are right. */
    const uint32_t rebiased = u - (112u << 23);
    return (uint16_t)(sign | (rebiased + 0xfff + (rebiased >> 13 & 1)) >> 13);
}

float dg_bf16_to_f32(uint16_t h) { return dg_block_float((uint32_t)h << 16); }

uint16_t dg_f32_to_bf16(float f) {
    const uint32_t u = bits_of_float(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40); /* rounding could make it inf */
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* ---- blocks of 32: low nibbles are elements 0..15, high nibbles 16..31 ---- */

static void decode_q4_0(const uint8_t *b, float *y) {
    const float d = dg_block_f16(b);
    for (int i = 0; i < 16; i++) {
        y[i] = (float)((b[2 + i] & 15) - 8) * d;
        y[i + 16] = (float)((b[2 + i] >> 4) - 8) * d;
    }
}

static void decode_q4_1(const uint8_t *b, float *y) {
    const float d = dg_block_f16(b), m = dg_block_f16(b + 2);
    for (int i = 0; i < 16; i++) {
        y[i] = (float)(b[4 + i] & 15) * d + m;
        y[i + 16] = (float)(b[4 + i] >> 4) * d + m;
    }
}

/* q[32] of the 5-bit types: four bits in qs, the fifth of element i is bit i of qh. */
static void unpack_q5(const uint8_t *qh, const uint8_t *qs, int *q) {
    const uint32_t high = dg_block_u32(qh);
    for (int i = 0; i < 16; i++) {
        q[i] = (int)((qs[i] & 15) | (high >> i & 1) << 4);
        q[i + 16] = (int)((uint32_t)(qs[i] >> 4) | (high >> (i + 16) & 1) << 4);
    }
}

static void decode_q5_0(const uint8_t *b, float *y) {
    const float d = dg_block_f16(b);
    int q[32];
    unpack_q5(b + 2, b + 6, q);
    for (int i = 0; i < 32; i++) y[i] = (float)(q[i] - 16) * d;
}

static void decode_q5_1(const uint8_t *b, float *y) {
    const float d = dg_block_f16(b), m = dg_block_f16(b + 2);
    int q[32];
    unpack_q5(b + 4, b + 8, q);
    for (int i = 0; i < 32; i++) y[i] = (float)q[i] * d + m;
}

static void decode_q8_0(const uint8_t *b, float *y) {
    const float d = dg_block_f16(b);
    for (int i = 0; i < 32; i++) y[i] = (float)(int8_t)b[2 + i] * d;
}

/* ---- K blocks: 256 elements, scales of sub-blocks of 16 or 32 ---- */

/* scale[16] (4-bit scale and minimum), qs[64], d, dmin. Two bits an element: byte k of a half holds the
 * elements k, k+32, k+64, k+96 of that half. */
static void decode_q2_k(const uint8_t *b, float *y) {
    const uint8_t *scale = b, *qs = b + 16;
    const float d = dg_block_f16(b + 80), dmin = dg_block_f16(b + 82);
    for (int i = 0; i < 256; i += 16) {
        const float dl = d * (float)(scale[i / 16] & 15), ml = dmin * (float)(scale[i / 16] >> 4);
        const uint8_t *q = qs + i / 128 * 32 + i % 32;
        const int shift = i % 128 / 32 * 2;
        for (int k = 0; k < 16; k++) y[i + k] = dl * (float)(q[k] >> shift & 3) - ml;
    }
}

/* hmask[32], qs[64] as in Q2_K, scale[12], d. The third bit of element i is bit i/32 of hmask[i%32] and
 * counts 4 when it is clear, downwards. Scales have 6 bits: the low four of scale j in nibble j/8 of byte
 * j%8, the high two in pair j/4 of byte 8 + j%4. */
static void decode_q3_k(const uint8_t *b, float *y) {
    const uint8_t *hmask = b, *qs = b + 32, *scale = b + 96;
    const float d = dg_block_f16(b + 108);
    for (int i = 0; i < 256; i += 16) {
        const int j = i / 16;
        const int low = scale[j % 8] >> (j / 8 * 4) & 15, high = scale[8 + j % 4] >> (j / 4 * 2) & 3;
        const float dl = d * (float)((low | high << 4) - 32);
        const uint8_t *q = qs + i / 128 * 32 + i % 32, *h = hmask + i % 32;
        const int shift = i % 128 / 32 * 2, bit = i / 32;
        for (int k = 0; k < 16; k++) {
            const int v = (q[k] >> shift & 3) - ((h[k] >> bit & 1) ? 0 : 4);
            y[i + k] = dl * (float)v;
        }
    }
}

/* 6-bit scale and minimum of sub-block j of Q4_K and Q5_K, packed into 12 bytes: for j < 4 plain in bytes j
 * and 4 + j; for j >= 4 low nibbles in byte 8 + j-4, high two bits on top of the bytes of j-4. */
static void scale_min_k(const uint8_t *s, int j, float *scale, float *min) {
    if (j < 4) {
        *scale = (float)(s[j] & 63);
        *min = (float)(s[j + 4] & 63);
    } else {
        *scale = (float)((s[j + 4] & 15) | (s[j - 4] >> 6) << 4);
        *min = (float)(s[j + 4] >> 4 | (s[j] >> 6) << 4);
    }
}

/* d, dmin, scale[12], qs[128]: 32 bytes hold 64 elements, low nibbles first. */
static void decode_q4_k(const uint8_t *b, float *y) {
    const float d = dg_block_f16(b), dmin = dg_block_f16(b + 2);
    for (int j = 0; j < 8; j++, y += 32) {
        float scale, min;
        scale_min_k(b + 4, j, &scale, &min);
        const float dl = d * scale, ml = dmin * min;
        const uint8_t *q = b + 16 + j / 2 * 32;
        for (int k = 0; k < 32; k++) y[k] = dl * (float)(q[k] >> (j % 2 * 4) & 15) - ml;
    }
}

/* d, dmin, scale[12], qh[32], qs[128]: as Q4_K; the fifth bit of sub-block j is bit j of qh. */
static void decode_q5_k(const uint8_t *b, float *y) {
    const float d = dg_block_f16(b), dmin = dg_block_f16(b + 2);
    const uint8_t *qh = b + 16;
    for (int j = 0; j < 8; j++, y += 32) {
        float scale, min;
        scale_min_k(b + 4, j, &scale, &min);
        const float dl = d * scale, ml = dmin * min;
        const uint8_t *q = b + 48 + j / 2 * 32;
        for (int k = 0; k < 32; k++)
            y[k] = dl * (float)((q[k] >> (j % 2 * 4) & 15) | (qh[k] >> j & 1) << 4) - ml;
    }
}

/* ql[128], qh[64], int8 scale[16], d. A half of 128 elements has 64 bytes of ql, whose low nibbles are its
 * elements 0..63 and high nibbles 64..127, and 32 bytes of qh, two bits for each quarter. */
static void decode_q6_k(const uint8_t *b, float *y) {
    const uint8_t *scale = b + 192;
    const float d = dg_block_f16(b + 208);
    for (int i = 0; i < 256; i += 16) {
        const int half = i / 128, quarter = i % 128 / 32;
        const uint8_t *ql = b + half * 64 + i % 64, *qh = b + 128 + half * 32 + i % 32;
        const float dl = d * (float)(int8_t)scale[i / 16];
        for (int k = 0; k < 16; k++) {
            const int low = ql[k] >> (quarter / 2 * 4) & 15, high = qh[k] >> (quarter * 2) & 3;
            y[i + k] = dl * (float)((low | high << 4) - 32);
        }
    }
}

/* ---- dispatch ---- */

static const struct {
    dg_dtype_info info;
    dg_block_fn *decode; /* NULL: plain */
} types[DG_DTYPE_COUNT] = {
    [DG_F32] = {{"f32", 1, 4}, NULL},
    [DG_F16] = {{"f16", 1, 2}, NULL},
    [DG_BF16] = {{"bf16", 1, 2}, NULL},
    [DG_F64] = {{"f64", 1, 8}, NULL},
    [DG_I8] = {{"i8", 1, 1}, NULL},
    [DG_I16] = {{"i16", 1, 2}, NULL},
    [DG_I32] = {{"i32", 1, 4}, NULL},
    [DG_I64] = {{"i64", 1, 8}, NULL},
    [DG_U8] = {{"u8", 1, 1}, NULL},
    [DG_BOOL] = {{"bool", 1, 1}, NULL},
    [DG_Q4_0] = {{"q4_0", 32, 18}, decode_q4_0},
    [DG_Q4_1] = {{"q4_1", 32, 20}, decode_q4_1},
    [DG_Q5_0] = {{"q5_0", 32, 22}, decode_q5_0},
    [DG_Q5_1] = {{"q5_1", 32, 24}, decode_q5_1},
    [DG_Q8_0] = {{"q8_0", 32, 34}, decode_q8_0},
    [DG_Q2_K] = {{"q2_k", 256, 84}, decode_q2_k},
    [DG_Q3_K] = {{"q3_k", 256, 110}, decode_q3_k},
    [DG_Q4_K] = {{"q4_k", 256, 144}, decode_q4_k},
    [DG_Q5_K] = {{"q5_k", 256, 176}, decode_q5_k},
    [DG_Q6_K] = {{"q6_k", 256, 210}, decode_q6_k},
    [DG_IQ2_XXS] = {{"iq2_xxs", 256, 66}, dg_decode_iq2_xxs},
    [DG_IQ2_XS] = {{"iq2_xs", 256, 74}, dg_decode_iq2_xs},
    [DG_IQ2_S] = {{"iq2_s", 256, 82}, dg_decode_iq2_s},
    [DG_IQ3_XXS] = {{"iq3_xxs", 256, 98}, dg_decode_iq3_xxs},
    [DG_IQ3_S] = {{"iq3_s", 256, 110}, dg_decode_iq3_s},
    [DG_IQ1_S] = {{"iq1_s", 256, 50}, dg_decode_iq1_s},
    [DG_IQ1_M] = {{"iq1_m", 256, 56}, dg_decode_iq1_m},
    [DG_IQ4_NL] = {{"iq4_nl", 32, 18}, dg_decode_iq4_nl},
    [DG_IQ4_XS] = {{"iq4_xs", 256, 136}, dg_decode_iq4_xs},
    [DG_TQ1_0] = {{"tq1_0", 256, 54}, dg_decode_tq1_0},
    [DG_TQ2_0] = {{"tq2_0", 256, 66}, dg_decode_tq2_0},
    [DG_MXFP4] = {{"mxfp4", 32, 17}, dg_decode_mxfp4},
    [DG_NVFP4] = {{"nvfp4", 64, 36}, dg_decode_nvfp4},
};

const dg_dtype_info *dg_dtype_get(dg_dtype dtype) {
    assert((unsigned)dtype < DG_DTYPE_COUNT);
    return &types[dtype].info;
}

size_t dg_dtype_bytes(dg_dtype dtype, size_t n) {
    const dg_dtype_info *t = dg_dtype_get(dtype);
    assert(n % (size_t)t->block_len == 0);
    if (t->block_len == 1) return n * (size_t)t->block_size; /* a division saved, on every row of every op */
    return n / (size_t)t->block_len * (size_t)t->block_size;
}

bool dg_dtype_is_weight(dg_dtype dtype) {
    assert((unsigned)dtype < DG_DTYPE_COUNT);
    return dtype == DG_F32 || dtype == DG_F16 || dtype == DG_BF16 || dtype == DG_F64 || types[dtype].decode;
}

/* Files align a tensor's data only as they please, so every load goes through memcpy. */
static void decode_plain(dg_dtype dtype, const uint8_t *src, float *dst, size_t n) {
    switch (dtype) {
    case DG_F32:
        memcpy(dst, src, n * sizeof *dst);
        break;
    case DG_F16:
        for (size_t i = 0; i < n; i++) dst[i] = dg_f16_to_f32(dg_block_u16(src + 2 * i));
        break;
    case DG_BF16:
        for (size_t i = 0; i < n; i++) dst[i] = dg_bf16_to_f32(dg_block_u16(src + 2 * i));
        break;
    case DG_F64:
        for (size_t i = 0; i < n; i++) {
            double v;
            memcpy(&v, src + 8 * i, sizeof v);
            dst[i] = (float)v;
        }
        break;
    default:
        assert(!"not a weight dtype");
    }
}

void dg_dequant_row(dg_dtype dtype, const void *src, float *dst, size_t n) {
    const dg_dtype_info *t = dg_dtype_get(dtype);
    dg_block_fn *decode = types[dtype].decode;
    assert(n % (size_t)t->block_len == 0);
    if (!decode) {
        decode_plain(dtype, src, dst, n);
        return;
    }
    const uint8_t *b = src;
    for (size_t i = 0; i < n; i += (size_t)t->block_len, b += t->block_size) decode(b, dst + i);
}

/* ---- encoders ---- */

/* d = amax/127 goes to f16, but the quants are rounded with the reciprocal of the unrounded d: so ggml. */
static void encode_q8_0(const float *x, uint8_t *b) {
    float amax = 0;
    for (int i = 0; i < 32; i++) amax = fmaxf(amax, fabsf(x[i]));
    const float d = amax / 127.0f, inverse = d != 0 ? 1.0f / d : 0.0f;
    const uint16_t h = dg_f32_to_f16(d);
    memcpy(b, &h, sizeof h);
    for (int i = 0; i < 32; i++) {
        /* Out of range only if the reciprocal overflows (d is 0 in f16 then) or x is not finite. */
        const float q = roundf(x[i] * inverse);
        b[2 + i] = (uint8_t)(int8_t)(fabsf(q) <= 127 ? q : 0);
    }
}

void dg_quant_row(dg_dtype dtype, const float *src, void *dst, size_t n) {
    uint8_t *b = dst;
    switch (dtype) {
    case DG_F32:
        memcpy(dst, src, n * sizeof *src);
        break;
    case DG_F16:
    case DG_BF16:
        for (size_t i = 0; i < n; i++) {
            const uint16_t h = dtype == DG_F16 ? dg_f32_to_f16(src[i]) : dg_f32_to_bf16(src[i]);
            memcpy(b + 2 * i, &h, sizeof h);
        }
        break;
    case DG_Q8_0:
        assert(n % 32 == 0);
        for (size_t i = 0; i < n; i += 32, b += 34) encode_q8_0(src + i, b);
        break;
    default:
        assert(!"no encoder for this dtype");
    }
}
