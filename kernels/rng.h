/* Counter noise: a value that depends on (seed, position, token) alone.
 *
 * Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC'11) with
 * key = seed and counter = (token / 4, position, 0, 0); token % 4 picks the output word. Stateless, so
 * siblings of a tree may be sampled in any order and nothing is ever rolled back. Compiled by C and by
 * nvcc. */
#ifndef DG_RNG_H
#define DG_RNG_H

#include <stdint.h>

#ifdef __CUDACC__
#define DG_HD __host__ __device__
#else
#define DG_HD
#endif

/* Four words for tokens 4*quad .. 4*quad+3. */
static inline DG_HD void dg_philox(uint64_t seed, uint32_t pos, uint32_t quad, uint32_t out[4]) {
    uint32_t c0 = quad, c1 = pos, c2 = 0, c3 = 0;
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * c0;
        const uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

/* Uniform in (0, 1), never 0 or 1: 23 random bits and a half step. */
static inline DG_HD float dg_uniform(uint32_t word) {
    return ((float)(word >> 9) + 0.5f) * (1.0f / 8388608.0f);
}

#endif
