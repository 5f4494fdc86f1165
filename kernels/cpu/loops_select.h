/* Inner loops of sampling and top-k over a row of logits. NaN counts as -inf. */

static float row_max(const float *x, int32_t n, float *groups) {
    const v16 none = v16_set1(-INFINITY);
    v16 best = none;
    for (int32_t i = 0; i < n; i += DG_CHUNK, groups += DG_LANES) {
        const int32_t len = n - i < DG_CHUNK ? n - i : DG_CHUNK, whole = len / DG_LANES * DG_LANES;
        v16 group = none;
        for (int32_t j = 0; j < whole; j += DG_LANES) group = v16_max(v16_load(x + i + j), group);
        if (whole < len) {
            float rest[DG_LANES];
            v16_store(rest, none);
            memcpy(rest, x + i + whole, sizeof(float) * (size_t)(len - whole));
            group = v16_max(v16_load(rest), group);
        }
        v16_store(groups, group);
        best = v16_max(group, best);
    }
    float lane[DG_LANES], max = -INFINITY;
    v16_store(lane, best);
    for (int l = 0; l < DG_LANES; l++) max = lane[l] > max ? lane[l] : max;
    return max;
}

ALWAYS_INLINE v16 kept_exp(v16 x, dg_scale s) {
    const v16 z = v16_scale_logit(x, s);
    return v16_select(v16_le(v16_set1(s.threshold), z), v16_exp(z), v16_zero());
}

/* Lanes add up at most SUM_BLOCK / 16 terms in f32, blocks add up in double. */
static double sum_exp(const float *x, int32_t n, dg_scale s) {
    enum { SUM_BLOCK = 4096 };
    double total = 0;
    for (int32_t i = 0; i < n; i += SUM_BLOCK) {
        const int32_t len = n - i < SUM_BLOCK ? n - i : SUM_BLOCK, whole = len / DG_LANES * DG_LANES;
        v16 sum = v16_zero();
        for (int32_t j = 0; j < whole; j += DG_LANES) sum = v16_add(sum, kept_exp(v16_load(x + i + j), s));
        if (whole < len) {
            float rest[DG_LANES];
            v16_store(rest, v16_set1(-INFINITY));
            memcpy(rest, x + i + whole, sizeof(float) * (size_t)(len - whole));
            sum = v16_add(sum, kept_exp(v16_load(rest), s));
        }
        total += (double)v16_sum(sum);
    }
    return total;
}

static void exp_all(float *out, const float *z, int32_t n) {
    int32_t i = 0;
    for (; i + DG_LANES <= n; i += DG_LANES) v16_store(out + i, v16_exp(v16_load(z + i)));
    if (i < n) v16_store_part(out + i, v16_exp(v16_load_part(z + i, n - i)), n - i);
}

enum { NOISE_BLOCK = 4 * DG_LANES };

/* noise[k] = dg_token_noise of the tokens token0 + 16k ..; token0 a multiple of 4. Sixteen counters go side
 * by side, in such an order that the transposition of their output words puts the tokens in sequence. */
ALWAYS_INLINE void noise_block(uint64_t seed, uint32_t pos, uint32_t token0, v16 noise[4]) {
    static const uint32_t order[DG_LANES] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
    w16 c[4] = {w16_add(w16_set1(token0 / 4), w16_load(order)), w16_set1(pos), w16_set1(0), w16_set1(0)};
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) { /* dg_philox */
        w16 high0, high1, low0, low1;
        w16_mul(c[0], 0xD2511F53u, &high0, &low0);
        w16_mul(c[2], 0xCD9E8D57u, &high1, &low1);
        c[0] = w16_xor(w16_xor(high1, c[1]), w16_set1(k0));
        c[1] = low1;
        c[2] = w16_xor(w16_xor(high0, c[3]), w16_set1(k1));
        c[3] = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    w16_zip(c);
    for (int k = 0; k < 4; k++) noise[k] = v16_gumbel(c[k]);
}

static int32_t gumbel_max(const float *x, int32_t n, dg_scale s, uint64_t seed, uint32_t pos) {
    const v16 threshold = v16_set1(s.threshold), none = v16_set1(-INFINITY);
    float best = -INFINITY;
    int32_t best_id = 0;
    for (int32_t i = 0; i < n; i += NOISE_BLOCK) {
        float buffer[NOISE_BLOCK];
        const float *logit = x + i;
        const int32_t len = n - i < NOISE_BLOCK ? n - i : NOISE_BLOCK;
        if (len < NOISE_BLOCK) {
            for (int k = 0; k < 4; k++) v16_store(buffer + 16 * k, none);
            memcpy(buffer, x + i, sizeof(float) * (size_t)len);
            logit = buffer;
        }
        v16 noisy[4], most = none;
        noise_block(seed, pos, (uint32_t)i, noisy);
        for (int k = 0; k < 4; k++) {
            const v16 z = v16_scale_logit(v16_load(logit + 16 * k), s);
            noisy[k] = v16_select(v16_le(threshold, z), v16_add(z, noisy[k]), none);
            most = v16_max(noisy[k], most);
        }
        if (!m16_any(v16_lt(v16_set1(best), most))) continue;
        for (int k = 0; k < 4; k++) v16_store(buffer + 16 * k, noisy[k]);
        for (int32_t j = 0; j < len; j++)
            if (buffer[j] > best) best = buffer[j], best_id = i + j;
    }
    return best_id;
}
