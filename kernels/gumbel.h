/* Gumbel noise from the counter noise of rng.h: -log(-log(u)).
 *
 * The logarithm is written out in exactly specified f32 operations (no contraction, no libm), so that every
 * instruction set and every backend draws the same noise to the bit. Compiled by C and by nvcc. */
#ifndef DG_GUMBEL_H
#define DG_GUMBEL_H

#include <string.h>

#include "kernels/rng.h"

#ifdef __CUDA_ARCH__
#define DG_MUL(a, b) __fmul_rn((a), (b))
#define DG_ADD(a, b) __fadd_rn((a), (b))
#define DG_DIV(a, b) __fdiv_rn((a), (b))
#else
#define DG_MUL(a, b) ((a) * (b))
#define DG_ADD(a, b) ((a) + (b))
#define DG_DIV(a, b) ((a) / (b))
#endif

/* ln x for normal x > 0, to about 2 units in the last place. x = m * 2^e with m in [sqrt(1/2), sqrt(2)), and
 * ln m = 2 atanh(s), s = (m-1)/(m+1), |s| <= 0.1716: the series up to s^11 (its next term is below 2e-11). */
static inline DG_HD float dg_log_f32(float x) {
    const uint32_t half_sqrt2 = 0x3f3504f3u; /* the bits of sqrt(1/2) */
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits -= half_sqrt2;
    const float e = (float)((int32_t)bits >> 23);
    bits = (bits & 0x7fffffu) + half_sqrt2;
    float m;
    memcpy(&m, &bits, sizeof m);
    const float f = DG_ADD(m, -1.0f), s = DG_DIV(f, DG_ADD(m, 1.0f)), q = DG_MUL(s, s);
    float p = 2.0f / 11;
    p = DG_ADD(DG_MUL(p, q), 2.0f / 9);
    p = DG_ADD(DG_MUL(p, q), 2.0f / 7);
    p = DG_ADD(DG_MUL(p, q), 2.0f / 5);
    p = DG_ADD(DG_MUL(p, q), 2.0f / 3);
    p = DG_MUL(DG_MUL(p, q), s);                             /* ln m - 2s */
    const float low = DG_ADD(DG_MUL(e, 0x1.7f7d1cp-20f), p); /* ln 2 in two parts, e * the first is exact */
    return DG_ADD(DG_MUL(e, 0x1.62e4p-1f), DG_ADD(DG_MUL(s, 2.0f), low));
}

/* Standard Gumbel noise from one word of dg_philox: in [-2.8, 16.7]. */
static inline DG_HD float dg_gumbel(uint32_t word) { return -dg_log_f32(-dg_log_f32(dg_uniform(word))); }

/* The noise of one token. */
static inline DG_HD float dg_token_noise(uint64_t seed, uint32_t pos, uint32_t token) {
    uint32_t word[4];
    dg_philox(seed, pos, token / 4, word);
    return dg_gumbel(word[token % 4]);
}

#endif
