/* What sampling and top-k mean in numbers, for every backend: the scale of a logit, the order of values, and thresholds.
 * Compiled by C and by nvcc. */
#ifndef DG_SELECT_H
#define DG_SELECT_H

#include <float.h>
#include <math.h>
#include <string.h>

#include "kernels/rng.h"

/* How a row of logits x is scaled and cut: z = (min(x, FLT_MAX) - max) * inv_t, which is 0 for the best and as exact as the
 * logits are; what has z < threshold is out. */
typedef struct dg_scale {
    float max, inv_t, threshold;
} dg_scale;

/* z. +inf counts as the largest number, so that no difference is NaN. */
static inline DG_HD float dg_scale_logit(float x, dg_scale s) {
    const float finite = x > FLT_MAX ? FLT_MAX : x;
    return (finite - s.max) * s.inv_t;
}

/* The scale of a log-softmax: temperature 1, nothing cut. */
static inline DG_HD dg_scale dg_scale_row(float max) {
    const dg_scale s = {max > FLT_MAX ? FLT_MAX : max, 1, -FLT_MAX};
    return s;
}

/* The scale of a temperature, nothing cut yet. */
static inline DG_HD dg_scale dg_scale_of(float max, float temperature) {
    dg_scale s = dg_scale_row(max);
    s.inv_t = 1 / temperature;
    if (s.inv_t > FLT_MAX) s.inv_t = FLT_MAX;
    return s;
}

/* Unsigned integers in the order of the floats; both zeros are one. */
static inline DG_HD uint32_t dg_order_key(float x) {
    uint32_t bits;
    x += 0.0f;
    memcpy(&bits, &x, sizeof bits);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

static inline DG_HD float dg_order_value(uint32_t key) {
    const uint32_t bits = key & 0x80000000u ? key & 0x7fffffffu : ~key;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Larger value first, then lower id: as one integer. NaN counts as -inf. */
static inline DG_HD uint64_t dg_rank_key(float x, int32_t id) {
    return (uint64_t)dg_order_key(x > -INFINITY ? x : -INFINITY) << 32 | (UINT32_MAX - (uint32_t)id);
}

static inline DG_HD int32_t dg_rank_id(uint64_t key) { return (int32_t)(UINT32_MAX - (uint32_t)key); }

/* The share of the mass that top_p keeps: a token stays while the tokens above it weigh less. The slack is what rounding
 * top_p to f32 costs, so that a token exactly on the edge is dropped, as "cumulative <= 1 - top_p" says. */
static inline double dg_top_p_share(float top_p) { return (double)top_p - 1e-6; }

/* The smallest z whose e^z, rounded to f32, is not below min_p > 0. */
static inline float dg_min_p_threshold(float min_p) {
    const double exact = log(((double)min_p + (double)nextafterf(min_p, 0)) / 2);
    const float z = (float)exact;
    return (double)z < exact ? nextafterf(z, 1) : z;
}

#endif
