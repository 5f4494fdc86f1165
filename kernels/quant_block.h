/* Between quant.c, which dispatches on the dtype, and the files that decode one block: unaligned
 * little-endian loads and the block decoders of quant_iq.c. Not for anybody else. */
#ifndef DG_QUANT_BLOCK_H
#define DG_QUANT_BLOCK_H

#include <string.h>

#include "kernels/quant.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "weight files are little-endian and are read in place"
#endif

static inline uint16_t dg_block_u16(const uint8_t *p) {
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline uint32_t dg_block_u32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline float dg_block_float(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline float dg_block_f16(const uint8_t *p) { return dg_f16_to_f32(dg_block_u16(p)); }

/* y[block_len] = the weights of the block at b. */
typedef void dg_block_fn(const uint8_t *b, float *y);

dg_block_fn dg_decode_iq2_xxs, dg_decode_iq2_xs, dg_decode_iq2_s, dg_decode_iq3_xxs, dg_decode_iq3_s;
dg_block_fn dg_decode_iq1_s, dg_decode_iq1_m, dg_decode_iq4_nl, dg_decode_iq4_xs;
dg_block_fn dg_decode_tq1_0, dg_decode_tq2_0, dg_decode_mxfp4, dg_decode_nvfp4;

#endif
