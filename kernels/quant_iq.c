/* One block of the codebook types (IQ), the ternary types (TQ) and the 4-bit float types (MXFP4, NVFP4).
 *
 * Layouts follow the GGUF type definitions; products are in ggml's order, to the bit. In the comments a
 * block is listed field by field, and a "group" is the run of elements that one codebook index yields. */
#include "kernels/quant_block.h"
#include "kernels/quant_tables.h"

/* 7 stored sign bits; the eighth makes the number of minus signs even. */
static unsigned signs_of_7(unsigned s) { return s | ((unsigned)__builtin_parity(s) << 7); }

/* ---- codebooks of 8 elements ---- */

/* y[8] = scale * grid point, minus where a bit of signs is set. */
static void put_iq2(uint16_t point, unsigned signs, float scale, float *y) {
    static const float value[4] = {8, 25, 43, 0}; /* code 3 does not occur in the grids */
    for (int k = 0; k < 8; k++) {
        const float v = scale * value[point >> 2 * k & 3];
        y[k] = signs >> k & 1 ? -v : v;
    }
}

/* d, then for each 32 elements: index[4], u32 of four 7-bit sign fields and a 4-bit scale on top. */
void dg_decode_iq2_xxs(const uint8_t *b, float *y) {
    const float d = dg_block_f16(b);
    for (int j = 0; j < 8; j++) {
        const uint8_t *index = b + 2 + 8 * j;
        const uint32_t word = dg_block_u32(index + 4);
        const float db = d * (0.5f + (float)(word >> 28)) * 0.25f;
        for (int g = 0; g < 4; g++, y += 8)
            put_iq2(dg_grid_iq2_xxs[index[g]], signs_of_7(word >> 7 * g & 127), db, y);
    }
}

/* Scale of group g of IQ2_XS and IQ2_S: a nibble for every two groups. */
static float scale_iq2(float d, const uint8_t *scales, int g) {
    return d * (0.5f + (float)(scales[g / 4] >> (g / 2 % 2 * 4) & 15)) * 0.25f;
}

/* d, u16 q[32] (9 bits of index, 7 of signs), scales[8]. */
void dg_decode_iq2_xs(const uint8_t *b, float *y) {
    const float d = dg_block_f16(b);
    for (int g = 0; g < 32; g++, y += 8) {
        const unsigned q = dg_block_u16(b + 2 + 2 * g);
        put_iq2(dg_grid_iq2_xs[q & 511], signs_of_7(q >> 9), scale_iq2(d, b + 66, g), y);
    }
}

/* d, index[32], signs[32], qh[8] (two high index bits of each group), scales[8]. */
void dg_decode_iq2_s(const uint8_t *b, float *y) {
    const uint8_t *index = b + 2, *signs = b + 34, *qh = b + 66;
    const float d = dg_block_f16(b);
    for (int g = 0; g < 32; g++, y += 8) {
        const int i = index[g] | (qh[g / 4] >> g % 4 * 2 & 3) << 8;
        put_iq2(dg_grid_iq2_s[i], signs[g], scale_iq2(d, b + 74, g), y);
    }
}

/* y[8] = scale * (grid point of -1, 0, 1, shifted by delta). */
static void put_iq1(uint16_t point, float delta, float scale, float *y) {
    for (int k = 0; k < 8; k++) y[k] = scale * ((float)((point >> 2 * k & 3) - 1) + delta);
}

/* d, index[32], u16 qh[8]: three high index bits of four groups, a 3-bit scale, the sign of delta. */
void dg_decode_iq1_s(const uint8_t *b, float *y) {
    const float d = dg_block_f16(b);
    for (int g = 0; g < 32; g++, y += 8) {
        const unsigned qh = dg_block_u16(b + 34 + g / 4 * 2);
        const float dl = d * (float)(2 * (qh >> 12 & 7) + 1);
        const unsigned i = b[2 + g] | (qh >> g % 4 * 3 & 7) << 8;
        put_iq1(dg_grid_iq1[i], qh & 0x8000 ? -0.125f : 0.125f, dl, y);
    }
}

/* index[32], qh[16] (a nibble a group: three high index bits, the sign of delta), u16 scale[4] of four 3-bit
 * scales, one for two groups, whose top nibbles make up the f16 d. */
void dg_decode_iq1_m(const uint8_t *b, float *y) {
    const uint8_t *qh = b + 32, *scale = b + 48;
    unsigned h = 0;
    for (int i = 0; i < 4; i++) h |= (unsigned)(dg_block_u16(scale + 2 * i) >> 12) << 4 * i;
    const float d = dg_f16_to_f32((uint16_t)h);
    for (int g = 0; g < 32; g++, y += 8) {
        const unsigned high = qh[g / 2] >> g % 2 * 4;
        const float dl = d * (float)(2 * (dg_block_u16(scale + g / 8 * 2) >> g / 2 % 4 * 3 & 7) + 1);
        put_iq1(dg_grid_iq1[b[g] | (high & 7) << 8], high & 8 ? -0.125f : 0.125f, dl, y);
    }
}

/* ---- codebooks of 4 elements ---- */

/* d, index[64], then for each 32 elements the u32 of IQ2_XXS. */
void dg_decode_iq3_xxs(const uint8_t *b, float *y) {
    static const float value[8] = {4, 12, 20, 28, 36, 44, 52, 62};
    const float d = dg_block_f16(b);
    for (int i = 0; i < 256; i += 8) {
        const uint32_t word = dg_block_u32(b + 66 + i / 32 * 4);
        const float db = d * (0.5f + (float)(word >> 28)) * 0.5f;
        const unsigned signs = signs_of_7(word >> i % 32 / 8 * 7 & 127);
        for (int k = 0; k < 8; k++) {
            const uint16_t point = dg_grid_iq3_xxs[b[2 + (i + k) / 4]];
            const float v = db * value[point >> k % 4 * 3 & 7];
            y[i + k] = signs >> k & 1 ? -v : v;
        }
    }
}

/* d, index[64], qh[8] (the ninth index bit of each group), signs[32], scales[4] (a nibble for 32). */
void dg_decode_iq3_s(const uint8_t *b, float *y) {
    const uint8_t *index = b + 2, *qh = b + 66, *signs = b + 74, *scales = b + 106;
    const float d = dg_block_f16(b);
    for (int g = 0; g < 64; g++, y += 4) {
        const float db = d * (float)(1 + 2 * (scales[g / 16] >> g / 8 % 2 * 4 & 15));
        const uint16_t point = dg_grid_iq3_s[index[g] | (qh[g / 8] >> g % 8 & 1) << 8];
        const int sign = signs[g / 2] >> g % 2 * 4;
        for (int k = 0; k < 4; k++) {
            const float v = db * (float)(2 * (point >> 3 * k & 7) + 1);
            y[k] = sign >> k & 1 ? -v : v;
        }
    }
}

/* ---- 4-bit codes into a fixed list of 16 values ---- */

static const int8_t nonlinear[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                     1,    13,   25,  38,  53,  69,  89,  113};
static const int8_t e2m1_doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* y[2n]: low nibbles of q[n], then its high nibbles. */
static void put_4bit(const uint8_t *q, int n, const int8_t *value, float scale, float *y) {
    for (int i = 0; i < n; i++) {
        y[i] = scale * (float)value[q[i] & 15];
        y[i + n] = scale * (float)value[q[i] >> 4];
    }
}

/* d, q[16]. */
void dg_decode_iq4_nl(const uint8_t *b, float *y) { put_4bit(b + 2, 16, nonlinear, dg_block_f16(b), y); }

/* d, u16 of two high scale bits for each 32 elements, four low ones in bytes[4], q[128]. */
void dg_decode_iq4_xs(const uint8_t *b, float *y) {
    const float d = dg_block_f16(b);
    const int high = dg_block_u16(b + 2);
    for (int j = 0; j < 8; j++) {
        const int scale = (b[4 + j / 2] >> j % 2 * 4 & 15) | (high >> 2 * j & 3) << 4;
        put_4bit(b + 8 + 16 * j, 16, nonlinear, d * (float)(scale - 32), y + 32 * j);
    }
}

/* e, q[16]: scale 2^(e-127), halved because the values are doubled. */
void dg_decode_mxfp4(const uint8_t *b, float *y) {
    const uint32_t e = b[0]; /* the two smallest halves are subnormal: 2^-128, 2^-127 */
    const float scale = dg_block_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);
    put_4bit(b + 1, 16, e2m1_doubled, scale, y);
}

/* Half of an unsigned e4m3 number (bias 7, the top bit is not looked at); 0x7f, its NaN, counts as 0. */
static float half_of_ue4m3(unsigned x) {
    if (x == 0x7f) return 0;
    const unsigned exponent = x >> 3 & 15, mantissa = x & 7;
    if (exponent == 0) return (float)mantissa * 0x1p-10f;
    return dg_block_float((exponent + 119) << 23 | mantissa << 20);
}

/* e4m3 scale[4], then q[8] for each 16 elements. */
void dg_decode_nvfp4(const uint8_t *b, float *y) {
    for (int j = 0; j < 4; j++) put_4bit(b + 4 + 8 * j, 8, e2m1_doubled, half_of_ue4m3(b[j]), y + 16 * j);
}

/* ---- ternary ---- */

/* y[n]: digit `power` (1, 3, 9, ...) of the base-3 numbers in q[n]. A byte holds ceil(v * 256 / 243), so that
 * the wanted digit comes to the top of the byte by multiplying and out of it by another times three. */
static void put_digit(const uint8_t *q, int n, unsigned power, float d, float *y) {
    for (int i = 0; i < n; i++) {
        const unsigned v = (uint8_t)(q[i] * power);
        y[i] = d * (float)((int)(v * 3 >> 8) - 1);
    }
}

/* q[48] of five digits (32 bytes, then 16), q[4] of four digits, d. Elements run along the bytes first. */
void dg_decode_tq1_0(const uint8_t *b, float *y) {
    static const unsigned power[5] = {1, 3, 9, 27, 81};
    const float d = dg_block_f16(b + 52);
    for (int k = 0; k < 5; k++, y += 32) put_digit(b, 32, power[k], d, y);
    for (int k = 0; k < 5; k++, y += 16) put_digit(b + 32, 16, power[k], d, y);
    for (int k = 0; k < 4; k++, y += 4) put_digit(b + 48, 4, power[k], d, y);
}

/* q[64] of four 2-bit codes, d. Every 32 bytes are 128 elements, along the bytes first. */
void dg_decode_tq2_0(const uint8_t *b, float *y) {
    const float d = dg_block_f16(b + 64);
    for (int i = 0; i < 256; i++) {
        const int q = b[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3;
        y[i] = d * (float)(q - 1);
    }
}
