/* Inner loops of sampling and top-k over a row of logits. NaN counts as -inf. */

static float row_max(const float *x, int32_t n, float *groups) {
    float best[DG_LANES];
    for (int l = 0; l < DG_LANES; l++) best[l] = -INFINITY;
    int32_t i = 0;
    for (; i < n; i += DG_CHUNK, groups += DG_LANES) {
        float group[DG_LANES];
        for (int l = 0; l < DG_LANES; l++) group[l] = -INFINITY;
        const int32_t len = n - i < DG_CHUNK ? n - i : DG_CHUNK, whole = len / DG_LANES;
        for (int32_t v = 0; v < whole; v++)
            for (int l = 0; l < DG_LANES; l++) {
                const float e = x[i + v * DG_LANES + l];
                group[l] = e > group[l] ? e : group[l];
            }
        for (int32_t l = 0; l < len % DG_LANES; l++) {
            const float e = x[i + whole * DG_LANES + l];
            group[l] = e > group[l] ? e : group[l];
        }
        for (int l = 0; l < DG_LANES; l++) {
            groups[l] = group[l];
            best[l] = group[l] > best[l] ? group[l] : best[l];
        }
    }
    float max = -INFINITY;
    for (int l = 0; l < DG_LANES; l++) max = best[l] > max ? best[l] : max;
    return max;
}

ALWAYS_INLINE float kept_exp(float x, dg_scale s) {
    const float z = scale_logit(x, s), e = exp_f32(z);
    return z >= s.threshold ? e : 0.0f;
}

/* Lanes add up at most SUM_BLOCK / 16 terms in f32, blocks add up in double. */
static double sum_exp(const float *x, int32_t n, dg_scale s) {
    enum { SUM_BLOCK = 4096 };
    double total = 0;
    for (int32_t i = 0; i < n; i += SUM_BLOCK) {
        const int32_t len = n - i < SUM_BLOCK ? n - i : SUM_BLOCK, whole = len / DG_LANES * DG_LANES;
        float lane[DG_LANES] = {0};
        for (int32_t j = 0; j < whole; j += DG_LANES)
            for (int l = 0; l < DG_LANES; l++) lane[l] += kept_exp(x[i + j + l], s);
        for (int32_t l = 0; l < len - whole; l++) lane[l] += kept_exp(x[i + whole + l], s);
        total += (double)v16_sum(v16_load(lane));
    }
    return total;
}

enum { NOISE_QUADS = 16, NOISE_BLOCK = 4 * NOISE_QUADS };

/* noise[0..64) of the tokens from 4*quad0: dg_token_noise, sixteen counters side by side. */
static void noise_block(uint64_t seed, uint32_t pos, uint32_t quad0, float *noise) {
    uint32_t c0[NOISE_QUADS], c1[NOISE_QUADS], c2[NOISE_QUADS], c3[NOISE_QUADS];
    for (int q = 0; q < NOISE_QUADS; q++) c0[q] = quad0 + (uint32_t)q, c1[q] = pos, c2[q] = 0, c3[q] = 0;
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        for (int q = 0; q < NOISE_QUADS; q++) {
            const uint64_t p0 = (uint64_t)0xD2511F53u * c0[q], p1 = (uint64_t)0xCD9E8D57u * c2[q];
            c0[q] = (uint32_t)(p1 >> 32) ^ c1[q] ^ k0;
            c2[q] = (uint32_t)(p0 >> 32) ^ c3[q] ^ k1;
            c1[q] = (uint32_t)p1;
            c3[q] = (uint32_t)p0;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    uint32_t word[NOISE_BLOCK];
    for (int q = 0; q < NOISE_QUADS; q++) {
        word[4 * q] = c0[q];
        word[4 * q + 1] = c1[q];
        word[4 * q + 2] = c2[q];
        word[4 * q + 3] = c3[q];
    }
    for (int i = 0; i < NOISE_BLOCK; i++) noise[i] = dg_gumbel(word[i]);
}

static int32_t gumbel_max(const float *x, int32_t n, dg_scale s, uint64_t seed, uint32_t pos) {
    float best = -INFINITY;
    int32_t best_id = 0;
    for (int32_t i = 0; i < n; i += NOISE_BLOCK) {
        const int32_t len = n - i < NOISE_BLOCK ? n - i : NOISE_BLOCK;
        float z[NOISE_BLOCK], noise[NOISE_BLOCK], lane[DG_LANES];
        for (int l = 0; l < DG_LANES; l++) lane[l] = -INFINITY;
        memcpy(z, x + i, sizeof(float) * (size_t)len);
        for (int32_t j = len; j < NOISE_BLOCK; j++) z[j] = -INFINITY;
        noise_block(seed, pos, (uint32_t)i / 4, noise);
        for (int j = 0; j < NOISE_BLOCK; j += DG_LANES)
            for (int l = 0; l < DG_LANES; l++) {
                const float scaled = scale_logit(z[j + l], s);
                z[j + l] = scaled >= s.threshold ? scaled + noise[j + l] : -INFINITY;
                lane[l] = z[j + l] > lane[l] ? z[j + l] : lane[l];
            }
        bool better = false;
        for (int l = 0; l < DG_LANES; l++) better |= lane[l] > best;
        if (!better) continue;
        for (int32_t j = 0; j < len; j++)
            if (z[j] > best) best = z[j], best_id = i + j;
    }
    return best_id;
}
