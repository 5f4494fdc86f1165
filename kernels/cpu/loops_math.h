/* Elementary functions of sixteen lanes. Made of exactly specified operations only (no contraction, no libm):
 * every instruction set gives the same bits, those of the scalar versions. */

/* e^x to about 1e-7 relative for x <= 88; x < -87 gives 0, x > 88 gives e^88, NaN stays NaN.
 * e^x = 2^n * e^r with |r| <= ln(2)/2 and the Taylor series of e^r, whose next term is below 6e-9. */
ALWAYS_INLINE v16 v16_exp(v16 x) {
    const v16 low = v16_set1(-87), high = v16_set1(88), to_int = v16_set1(0x1.8p23f);
    const m16 tiny = v16_lt(x, low);
    const v16 t = v16_select(tiny, low, v16_select(v16_lt(high, x), high, x));
    const v16 shifted = v16_add(v16_mul(t, v16_set1(0x1.715476p0f)), to_int); /* n in the low bits */
    const v16 n = v16_sub(shifted, to_int);
    /* ln 2 in two parts; n times the first is exact */
    const v16 r =
        v16_sub(v16_sub(t, v16_mul(n, v16_set1(0x1.62e4p-1f))), v16_mul(n, v16_set1(0x1.7f7d1cp-20f)));
    v16 e = v16_set1(1.0f / 5040);
    e = v16_add(v16_mul(e, r), v16_set1(1.0f / 720));
    e = v16_add(v16_mul(e, r), v16_set1(1.0f / 120));
    e = v16_add(v16_mul(e, r), v16_set1(1.0f / 24));
    e = v16_add(v16_mul(e, r), v16_set1(1.0f / 6));
    e = v16_add(v16_mul(e, r), v16_set1(1.0f / 2));
    e = v16_add(v16_mul(e, r), v16_set1(1));
    e = v16_add(v16_mul(e, r), v16_set1(1));
    const v16 power = v16_of_bits(w16_add(w16_shl(v16_bits(shifted), 23), w16_set1(0x3f800000u)));
    return v16_select(tiny, v16_zero(), v16_mul(e, power));
}

/* e^x for x <= 0 in half the operations, for weights of sums that round as v16_fma does anyway. */
ALWAYS_INLINE v16 v16_exp_weight(v16 x) {
    const v16 low = v16_set1(-87), to_int = v16_set1(0x1.8p23f);
    const m16 tiny = v16_lt(x, low);
    const v16 t = v16_select(tiny, low, x), shifted = v16_fma(t, v16_set1(0x1.715476p0f), to_int);
    const v16 n = v16_sub(shifted, to_int);
    const v16 r = v16_fma(n, v16_set1(-0x1.7f7d1cp-20f), v16_fma(n, v16_set1(-0x1.62e4p-1f), t));
    v16 e = v16_set1(1.0f / 5040);
    e = v16_fma(e, r, v16_set1(1.0f / 720));
    e = v16_fma(e, r, v16_set1(1.0f / 120));
    e = v16_fma(e, r, v16_set1(1.0f / 24));
    e = v16_fma(e, r, v16_set1(1.0f / 6));
    e = v16_fma(e, r, v16_set1(1.0f / 2));
    e = v16_fma(e, r, v16_set1(1));
    e = v16_fma(e, r, v16_set1(1));
    /* 2^n by adding to the exponent, which stays in range: n is -126 at least, and then e is above 1 */
    const v16 scaled = v16_of_bits(w16_add(v16_bits(e), w16_shl(v16_bits(shifted), 23)));
    return v16_select(tiny, v16_zero(), scaled);
}

/* dg_log_f32 of each lane. */
ALWAYS_INLINE v16 v16_log(v16 x) {
    const w16 half_sqrt2 = w16_set1(0x3f3504f3u), shifted = w16_sub(v16_bits(x), half_sqrt2);
    const v16 e = v16_from_i32(w16_sar(shifted, 23)), one = v16_set1(1);
    const v16 m = v16_of_bits(w16_add(w16_and(shifted, w16_set1(0x7fffffu)), half_sqrt2));
    const v16 s = v16_div(v16_sub(m, one), v16_add(m, one)), q = v16_mul(s, s);
    v16 p = v16_set1(2.0f / 11);
    p = v16_add(v16_mul(p, q), v16_set1(2.0f / 9));
    p = v16_add(v16_mul(p, q), v16_set1(2.0f / 7));
    p = v16_add(v16_mul(p, q), v16_set1(2.0f / 5));
    p = v16_add(v16_mul(p, q), v16_set1(2.0f / 3));
    p = v16_mul(v16_mul(p, q), s);
    const v16 low = v16_add(v16_mul(e, v16_set1(0x1.7f7d1cp-20f)), p);
    return v16_add(v16_mul(e, v16_set1(0x1.62e4p-1f)), v16_add(v16_mul(s, v16_set1(2)), low));
}

/* dg_gumbel of each lane's word. */
ALWAYS_INLINE v16 v16_gumbel(w16 word) {
    const v16 u =
        v16_mul(v16_add(v16_from_i32(w16_shr(word, 9)), v16_set1(0.5f)), v16_set1(1.0f / 8388608.0f));
    const v16 zero = v16_zero();
    return v16_sub(zero, v16_log(v16_sub(zero, v16_log(u))));
}

/* dg_scale_logit of each lane. */
ALWAYS_INLINE v16 v16_scale_logit(v16 x, dg_scale s) {
    const v16 most = v16_set1(FLT_MAX), finite = v16_select(v16_lt(most, x), most, x);
    return v16_mul(v16_sub(finite, v16_set1(s.max)), v16_set1(s.inv_t));
}
