/* Inner loops over the elements of one row. The simplest are left to the compiler to vectorise, which without
 * contraction cannot change a bit. */

static v16 load_any(dg_dtype dtype, const void *base, int32_t i) {
    const char *p = base;
    if (dtype == DG_F32) return v16_load(p + 4 * (size_t)i);
    return dtype == DG_F16 ? v16_load_f16(p + 2 * (size_t)i) : v16_load_bf16(p + 2 * (size_t)i);
}

static v16 load_any_part(dg_dtype dtype, const void *base, int32_t i, int32_t n) {
    const char *p = base;
    if (dtype == DG_F32) return v16_load_part(p + 4 * (size_t)i, n);
    return dtype == DG_F16 ? v16_load_f16_part(p + 2 * (size_t)i, n)
                           : v16_load_bf16_part(p + 2 * (size_t)i, n);
}

static void rms_norm(float *out, const float *x, const void *w, dg_dtype w_dtype, int32_t d, float eps) {
    const int32_t whole = d / 16 * 16, rest = d % 16;
    v16 sum = v16_zero();
    for (int32_t i = 0; i < whole; i += 16) sum = v16_fma(v16_load(x + i), v16_load(x + i), sum);
    if (rest) {
        const v16 v = v16_load_part(x + whole, rest);
        sum = v16_fma(v, v, sum);
    }
    const v16 factor = v16_set1(1.0f / sqrtf(v16_sum(sum) / (float)d + eps));
    for (int32_t i = 0; i < whole; i += 16)
        v16_store(out + i, v16_mul(v16_mul(v16_load(x + i), factor), load_any(w_dtype, w, i)));
    if (rest)
        v16_store_part(
            out + whole,
            v16_mul(v16_mul(v16_load_part(x + whole, rest), factor), load_any_part(w_dtype, w, whole, rest)),
            rest);
}

ALWAYS_INLINE v16 silu_times(v16 gate, v16 up) {
    const v16 one = v16_set1(1), e = v16_exp(v16_sub(v16_zero(), gate));
    return v16_mul(v16_div(gate, v16_add(one, e)), up);
}

static void swiglu(float *out, const float *gate, const float *up, int32_t n) {
    int32_t i = 0;
    for (; i + 16 <= n; i += 16) v16_store(out + i, silu_times(v16_load(gate + i), v16_load(up + i)));
    if (i < n)
        v16_store_part(out + i, silu_times(v16_load_part(gate + i, n - i), v16_load_part(up + i, n - i)),
                       n - i);
}

static void rope_halves(float *x, const float *cos, const float *sin, int32_t half) {
    for (int32_t j = 0; j < half; j++) {
        const float a = x[j], b = x[j + half];
        x[j] = a * cos[j] - b * sin[j];
        x[j + half] = b * cos[j] + a * sin[j];
    }
}

static void rope_pairs(float *x, const float *cos, const float *sin, int32_t half) {
    for (int32_t j = 0; j < half; j++) {
        const float a = x[2 * j], b = x[2 * j + 1];
        x[2 * j] = a * cos[j] - b * sin[j];
        x[2 * j + 1] = b * cos[j] + a * sin[j];
    }
}

static void to_f16(uint16_t *dst, const float *src, int32_t n) {
    int32_t i = 0;
    for (; i + 16 <= n; i += 16) v16_store_f16(dst + i, v16_load(src + i));
    for (; i < n; i++) dst[i] = dg_f32_to_f16(src[i]);
}

static void to_bf16(uint16_t *dst, const float *src, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, src + i, sizeof u);
        const uint32_t rounded = (u + 0x7fff + (u >> 16 & 1)) >> 16;
        dst[i] = (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? u >> 16 | 0x40 : rounded);
    }
}
