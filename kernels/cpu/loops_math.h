/* Functions of one f32 in plain C, made of exactly specified operations only (no contraction, no libm), so
 * that the vectorised loops of every instruction set give the same bits. */

ALWAYS_INLINE uint32_t float_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

ALWAYS_INLINE float bits_float(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* e^x to about 1e-7 relative for x <= 88; x < -87 gives 0, x > 88 gives e^88, NaN stays NaN.
 * e^x = 2^n * e^r with |r| <= ln(2)/2 and the Taylor series of e^r, whose next term is below 6e-9. */
ALWAYS_INLINE float exp_f32(float x) {
    const float low = -87.0f, high = 88.0f, round_to_int = 0x1.8p23f;
    const float t = x < low ? low : x > high ? high : x;
    const float shifted = t * 0x1.715476p0f + round_to_int;
    const float n = shifted - round_to_int;
    const float r = (t - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f; /* ln 2 in two parts; n * the first is exact */
    float e = 1.0f / 5040;
    e = e * r + 1.0f / 720;
    e = e * r + 1.0f / 120;
    e = e * r + 1.0f / 24;
    e = e * r + 1.0f / 6;
    e = e * r + 1.0f / 2;
    e = e * r + 1.0f;
    e = e * r + 1.0f;
    const float power = bits_float((float_bits(shifted) << 23) + 0x3f800000u); /* n is in the low bits */
    return x < low ? 0.0f : e * power;
}

/* See dg_scale. +inf counts as the largest number, so that no difference is NaN. */
ALWAYS_INLINE float scale_logit(float x, dg_scale s) {
    const float finite = x > FLT_MAX ? FLT_MAX : x;
    return (finite - s.max) * s.inv_t;
}
