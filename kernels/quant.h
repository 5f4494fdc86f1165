/* Block-quantised weight formats: exact decoding of every GGUF type to f32, and the few encoders that
 * `convert` writes. The decoders are the reference that kernels and tests of every backend are held to:
 * bit-equal to ggml's own dequantisation on finite input. */
#ifndef DG_QUANT_H
#define DG_QUANT_H

#include "kernels/tensor.h"

/* dst[0..n) = the n weights stored at src. n must be a whole number of blocks. Handles every
 * floating and quantised dtype (not the integer ones: asserts). dst and src must not overlap. */
void dg_dequant_row(dg_dtype dtype, const void *src, float *dst, size_t n);

/* True for the dtypes that dg_dequant_row decodes, i.e. those that may be weights. */
bool dg_dtype_is_weight(dg_dtype dtype);

/* dst = n values rounded to dtype; F32, F16, BF16 (round to nearest even) and Q8_0 (d = amax/127 in
 * f16, as ggml's reference quantiser). n must be a whole number of blocks. */
void dg_quant_row(dg_dtype dtype, const float *src, void *dst, size_t n);

float dg_f16_to_f32(uint16_t h);
uint16_t dg_f32_to_f16(float f); /* round to nearest even, overflow to infinity */
float dg_bf16_to_f32(uint16_t h);
uint16_t dg_f32_to_bf16(float f); /* round to nearest even, NaN stays NaN */

#endif
