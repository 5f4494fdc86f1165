/* What kernels share: conversions between element types, exact arithmetic, reductions over a warp and a block.
 *
 * Everything is compiled without contraction (-fmad=false): a product and a sum are rounded one by one unless dg_fma is
 * called. So a result does not depend on what the compiler made of the code around it, one row gives the same bits in
 * kernels of different width, and decoded weights are those of the CPU. */
#ifndef DG_CUDA_COMMON_CUH
#define DG_CUDA_COMMON_CUH

#include <cuda_fp16.h>
#include <float.h>
#include <math.h>
#include <stdint.h>

#include "kernels/cuda/cuda.h"

#define DG_DEV static __device__ __forceinline__

/* Before a loop of constant length: what it indexes stays in registers. */
#ifdef DG_CUDASIM
#define DG_UNROLL
#else
#define DG_UNROLL _Pragma("unroll")
#endif

/* 16-bit floats as they lie in memory. */
struct dg_half {
    uint16_t bits;
};
struct dg_bfloat {
    uint16_t bits;
};

DG_DEV float dg_f16(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }
DG_DEV float dg_bf16(uint16_t bits) { return __uint_as_float(static_cast<uint32_t>(bits) << 16); }

DG_DEV float dg_to_f32(float x) { return x; }
DG_DEV float dg_to_f32(dg_half x) { return dg_f16(x.bits); }
DG_DEV float dg_to_f32(dg_bfloat x) { return dg_bf16(x.bits); }

/* To nearest, ties to even; NaN stays NaN. */
DG_DEV void dg_round(float x, float *to) { *to = x; }
DG_DEV void dg_round(float x, dg_half *to) { to->bits = __half_as_ushort(__float2half_rn(x)); }
DG_DEV void dg_round(float x, dg_bfloat *to) {
    const uint32_t u = __float_as_uint(x), rounded = (u + 0x7fff + (u >> 16 & 1)) >> 16;
    to->bits = static_cast<uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? u >> 16 | 0x40 : rounded);
}

/* a * b + c, rounded once on a device. The simulator rounds twice: without hardware it would cost a call. */
DG_DEV float dg_fma(float a, float b, float c) {
#ifdef DG_CUDASIM
    return a * b + c;
#else
    return __fmaf_rn(a, b, c);
#endif
}

/* Calls body<T>(args) for the element type of a matrix of f32, f16 or bf16. */
#define DG_BY_FLOAT(dtype, body, ...)                \
    do {                                             \
        if ((dtype) == DG_F32)                       \
            body<float>(__VA_ARGS__);                \
        else if ((dtype) == DG_F16)                  \
            body<dg_half>(__VA_ARGS__);              \
        else                                         \
            body<dg_bfloat>(__VA_ARGS__);            \
    } while (0)

/* One element of a vector whose type is known at run time only: norm weights, biases. */
DG_DEV float dg_load_any(const void *p, int32_t dtype, int64_t i) {
    if (dtype == DG_F32) return static_cast<const float *>(p)[i];
    const uint16_t bits = static_cast<const uint16_t *>(p)[i];
    return dtype == DG_F16 ? dg_f16(bits) : dg_bf16(bits);
}

/* Products of one x that one launch makes: of weights of one type. Its blocks are numbered through all of them. */
enum { DG_LAUNCH_PRODUCTS = 4 };

typedef struct dg_launch_product {
    float *out;
    const uint8_t *w;
    const void *bias;
    int64_t out_stride, w_bytes; /* w_bytes: from one weight row to the next */
    int32_t bias_dtype, m;
    int32_t first; /* block */
} dg_launch_product;

typedef struct dg_launch_products {
    dg_launch_product of[DG_LAUNCH_PRODUCTS];
    int32_t n;
} dg_launch_products;

/* The product that the block belongs to. */
DG_DEV const dg_launch_product &dg_product_of_block(const dg_launch_products &p, int32_t block) {
    int32_t i = 0;
    while (i + 1 < p.n && block >= p.of[i + 1].first) i++;
    return p.of[i];
}

/* Lays out n products, where a block makes `outs` outputs; the number of blocks. */
int32_t dg_cuda_lay_products(dg_launch_products *to, const dg_product *p, int32_t n, int32_t outs);

/* Sums of a warp: every lane gets the same bits, as a pair is added in either order. */
DG_DEV float dg_warp_sum(float x) {
    for (int step = DG_WARP / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

/* Which of COUNT values dg_warp_sums leaves with a lane. */
template <int COUNT> DG_DEV int dg_warp_share(int lane) {
    int share = 0;
    for (int step = DG_WARP / 2, half = COUNT / 2; half > 0; step /= 2, half /= 2) share += lane & step ? half : 0;
    return share;
}

/* The sums over the warp of COUNT values, a power of two up to 32: v[0] becomes the sum of value dg_warp_share(lane). Pairs
 * of lanes part the values among them, so that it takes COUNT exchanges and not five for each; the sums are those of
 * dg_warp_sum to the bit. */
template <int COUNT, int STEP = DG_WARP / 2> DG_DEV void dg_warp_sums(float *v) {
    if constexpr (COUNT > 1) {
        const bool upper = threadIdx.x & STEP;
        DG_UNROLL
        for (int i = 0; i < COUNT / 2; i++) {
            const float mine = upper ? v[i + COUNT / 2] : v[i], other = upper ? v[i] : v[i + COUNT / 2];
            v[i] = mine + __shfl_xor_sync(0xffffffffu, other, STEP);
        }
        dg_warp_sums<COUNT / 2, STEP / 2>(v);
    } else {
        DG_UNROLL
        for (int step = STEP; step > 0; step /= 2) v[0] += __shfl_xor_sync(0xffffffffu, v[0], step);
    }
}

DG_DEV float dg_warp_max(float x) {
    for (int step = DG_WARP / 2; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

/* The sum over a block of whole warps, given to all threads. part: shared, one entry a warp; free for use again after
 * the block's next barrier. */
DG_DEV float dg_block_sum(float x, float *part) {
    const int warp = threadIdx.x / DG_WARP, n_warp = blockDim.x / DG_WARP;
    x = dg_warp_sum(x);
    if (threadIdx.x % DG_WARP == 0) part[warp] = x;
    __syncthreads();
    float sum = part[0];
    for (int i = 1; i < n_warp; i++) sum += part[i];
    return sum;
}

/* e^x, ln x: what the CPU backend computes in its own way, to the last bits. */
DG_DEV float dg_silu(float x) { return x / (1 + expf(-x)); }

#endif
