/* Products by packed weights, on tensor cores. Packing leaves the bytes as the file has them: what it adds is the leave to
 * take activations in two bf16 halves, hi + lo, which hold 16 bits of them. Codes of up to 8 bits are exact in bf16, so the
 * codes are multiplied as they are and the scales applied to the sums of a block, in f32. Where 8 bits will do, lo is left out.
 * Weights of f16 have 11 bits, and are two bf16 themselves.
 *
 * A block of eight warps makes sixteen outputs for up to 64 rows of x; the warps take turns with the blocks of 32 weights
 * and are added up in order. A row is a column of the instruction's second operand, which no other column touches, and one
 * row goes through the same instructions as sixty-four: a result depends on its own row and column alone.
 *
 * Within 32 weights, lane t of a quad takes the elements 4t .. 4t + 3 and 16 + 4t .., because that is what four bytes of
 * nibbles hold; the order of a sum's terms is free as long as both operands have the same. A register has the elements
 * 0 and 2, or 1 and 3, of four neighbours. */
#include "kernels/cuda/decode.cuh"

#include <assert.h>

extern "C" {
#include "kernels/quant.h"
}

enum {
    BLOCK = 32, /* weights that share a scale, or two */
    WARPS = 8,
    OUTS = 16,
    WORDS = 32, /* of a block of x: four lanes with four registers of hi and four of lo */
    SPLIT_THREADS = 128
};

static_assert(DG_PACKED_ROWS == 64, "a kernel serves up to eight tiles of eight rows");

/* ---- packing ---- */

#define DG_PACKED_KERNELS(X) DG_QUANT_KERNELS(X) X(DG_BF16) X(DG_F16)
#define IS(KIND) t == KIND ||

static bool has_kernel(dg_dtype t) {
    return DG_PACKED_KERNELS(IS) false;
}

static size_t row_bytes(dg_mat w) { return dg_dtype_bytes(w.dtype, static_cast<size_t>(w.cols)); }

size_t dg_cuda_pack_bytes(dg_backend *be, dg_mat w, dg_dtype) {
    const dg_cuda *c = dg_cuda_of(be);
    if (c->precision == DG_PRECISION_F32 || !has_kernel(w.dtype) || w.cols % BLOCK || w.cols > c->max_cols) return 0;
    return (row_bytes(w) * static_cast<size_t>(w.rows) + 15) / 16 * 16;
}

dg_mat dg_cuda_pack(dg_backend *be, void *dst, dg_mat w, dg_dtype as) {
    if (!dg_cuda_pack_bytes(be, w, as)) return w;
    dg_mat packed = dg_mat_make(dst, w.dtype, w.rows, w.cols);
    packed.packed = true;
    dg_cuda *c = w.rows ? dg_cuda_begin(be) : NULL;
    if (!c) return packed;
    cudaPointerAttributes where;
    const bool on_device = cudaPointerGetAttributes(&where, w.data) == cudaSuccess && where.type == cudaMemoryTypeDevice;
    cudaGetLastError();
    if (!on_device && w.stride == w.cols) {
        dg_cuda_upload_long(c, static_cast<char *>(dst), static_cast<const char *>(w.data),
                            row_bytes(w) * static_cast<size_t>(w.rows));
    } else {
        const size_t from = dg_dtype_bytes(w.dtype, static_cast<size_t>(w.stride));
        dg_cuda_ok(c, cudaMemcpy2DAsync(dst, row_bytes(w), w.data, from, row_bytes(w), static_cast<size_t>(w.rows),
                                        on_device ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice, c->stream),
                   "cudaMemcpy2DAsync", "packing weights");
        dg_cuda_ok(c, cudaStreamSynchronize(c->stream), "cudaStreamSynchronize", "packing weights"); /* w may go */
    }
    dg_cuda_end(c, "pack");
    return packed;
}

/* ---- activations ---- */

/* hi and lo of two values, the first in the lower half of a register. */
DG_DEV void split_pair(float a, float b, uint32_t *hi, uint32_t *lo) {
    dg_bfloat ah, bh, al, bl;
    dg_round(a, &ah), dg_round(b, &bh);
    dg_round(a - dg_to_f32(ah), &al), dg_round(b - dg_to_f32(bh), &bl);
    *hi = ah.bits | static_cast<uint32_t>(bh.bits) << 16;
    *lo = al.bits | static_cast<uint32_t>(bl.bits) << 16;
}

/* x[n, k] to words[row][block][lane of a quad][hi 4, lo 4] and sums[row][block]; rows behind n are zeros. A thread does a
 * lane's part of a block. */
static __global__ void split_kernel(uint32_t *words, float *sums, const float *x, int64_t stride, int32_t n, int32_t n_block) {
    const int32_t row = blockIdx.y, at = blockIdx.x * SPLIT_THREADS + threadIdx.x, block = at / 4, t = at % 4;
    const bool there = row < n && block < n_block;
    float v[8];
    DG_UNROLL
    for (int e = 0; e < 8; e++) v[e] = there ? x[row * stride + block * BLOCK + e / 4 * 16 + 4 * t + e % 4] : 0;
    float sum = ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    if (block >= n_block) return;
    const int64_t to = static_cast<int64_t>(row) * n_block + block;
    uint32_t w[8];
    DG_UNROLL
    for (int h = 0; h < 2; h++) {
        split_pair(v[4 * h], v[4 * h + 2], &w[2 * h], &w[4 + 2 * h]);
        split_pair(v[4 * h + 1], v[4 * h + 3], &w[2 * h + 1], &w[4 + 2 * h + 1]);
    }
    uint4 *out = reinterpret_cast<uint4 *>(words + to * WORDS + 8 * t);
    out[0] = make_uint4(w[0], w[1], w[2], w[3]);
    out[1] = make_uint4(w[4], w[5], w[6], w[7]);
    if (t == 0) sums[to] = sum;
}

/* ---- weights ---- */

/* A lane's part of 32 weights of one row: two registers for each half, what their sums are multiplied by, and what is added
 * for every x. low: of f16, what is left of the weights. */
typedef struct piece {
    uint32_t pair[2][2], low[2][2];
    float scale[2], offset;
} piece;

/* a - b in both halves; exact for the small integers it is called with. */
DG_DEV uint32_t sub_pairs(uint32_t a, uint32_t b) {
#ifdef DG_CUDASIM
    const float low = dg_bf16(static_cast<uint16_t>(a)) - dg_bf16(static_cast<uint16_t>(b));
    const float high = __uint_as_float(a & 0xffff0000u) - __uint_as_float(b & 0xffff0000u);
    return __float_as_uint(low) >> 16 | (__float_as_uint(high) & 0xffff0000u);
#else
    uint32_t d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(0x3f803f80u), "r"(b ^ 0x80008000u));
    return d;
#endif
}

/* Four bytes below 128, less `zero`: in bf16, 128 + q is 0x4300 + q. */
DG_DEV void put_small(uint32_t bytes, uint32_t zero, uint32_t *pair) {
    const uint32_t base = 0x43004300u;
    pair[0] = sub_pairs((bytes & 0x00ff00ffu) | base, base + zero * 0x10001u);
    pair[1] = sub_pairs((bytes >> 8 & 0x00ff00ffu) | base, base + zero * 0x10001u);
}

/* Four signed bytes: in f32, 2^23 + u is 0x4b000000 + u, and what is left after a subtraction is exact in its upper half. */
DG_DEV void put_bytes(uint32_t bytes, uint32_t *pair) {
    float v[4];
    bytes ^= 0x80808080u;
    DG_UNROLL
    for (int e = 0; e < 4; e++)
        v[e] = __uint_as_float(__byte_perm(bytes, 0x4b000000u, 0x7440u + static_cast<uint32_t>(e))) - 8388736.0f;
    pair[0] = __byte_perm(__float_as_uint(v[0]), __float_as_uint(v[2]), 0x7632);
    pair[1] = __byte_perm(__float_as_uint(v[1]), __float_as_uint(v[3]), 0x7632);
}

/* Bits 0..3 to the bytes 0..3, as the fifth bit of codes. */
DG_DEV uint32_t spread_fifth(uint32_t four) { return ((four & 15) * 0x00204081u & 0x01010101u) << 4; }

template <int KIND> DG_DEV void load_piece_32(const uint8_t *row, int32_t block, int t, piece &p) {
    const uint32_t nibbles = 0x0f0f0f0fu;
    p.offset = 0;
    if (KIND == DG_Q8_0) {
        const uint8_t *b = row + static_cast<int64_t>(block) * 34;
        p.scale[0] = dg_f16_at(b);
        put_bytes(dg_u32(b + 2 + 4 * t), p.pair[0]);
        put_bytes(dg_u32(b + 18 + 4 * t), p.pair[1]);
        return;
    }
    const bool five = KIND == DG_Q5_0 || KIND == DG_Q5_1, has_min = KIND == DG_Q4_1 || KIND == DG_Q5_1;
    const int head = has_min ? 4 : 2, size = head + (five ? 20 : 16);
    const uint8_t *b = row + static_cast<int64_t>(block) * size;
    const uint32_t q = dg_u32(b + size - 16 + 4 * t), high = five ? dg_u32(b + head) >> (4 * t) : 0;
    const uint32_t zero = has_min ? 0 : five ? 16 : 8;
    p.scale[0] = dg_f16_at(b);
    if (has_min) p.offset = dg_f16_at(b + 2);
    put_small((q & nibbles) | spread_fifth(high), zero, p.pair[0]);
    put_small((q >> 4 & nibbles) | spread_fifth(high >> 16), zero, p.pair[1]);
}

template <int KIND> DG_DEV void load_piece_k(const uint8_t *row, int32_t block, int t, piece &p) {
    const int j = block % 8;
    const uint32_t nibbles = 0x0f0f0f0fu;
    if (KIND == DG_Q6_K) {
        const uint8_t *b = row + static_cast<int64_t>(block / 8) * 210;
        const float d = dg_f16_at(b + 208);
        DG_UNROLL
        for (int h = 0; h < 2; h++) {
            const uint32_t low = dg_u32(b + j / 4 * 64 + j % 2 * 32 + 16 * h + 4 * t) >> (j % 4 / 2 * 4) & nibbles;
            const uint32_t high = dg_u32(b + 128 + j / 4 * 32 + 16 * h + 4 * t) >> (j % 4 * 2) & 0x03030303u;
            put_small(low | high << 4, 32, p.pair[h]);
            p.scale[h] = d * static_cast<float>(static_cast<int8_t>(b[192 + 2 * j + h]));
        }
        return;
    }
    const bool five = KIND == DG_Q5_K;
    const uint8_t *b = row + static_cast<int64_t>(block / 8) * (five ? 176 : 144), *qs = b + (five ? 48 : 16) + j / 2 * 32;
    float scale, min;
    dg_scale_min_k(b + 4, j, &scale, &min);
    p.scale[0] = dg_f16_at(b) * scale, p.offset = -(dg_f16_at(b + 2) * min);
    DG_UNROLL
    for (int h = 0; h < 2; h++) {
        const uint32_t low = dg_u32(qs + 16 * h + 4 * t) >> (j % 2 * 4) & nibbles;
        const uint32_t high = five ? (dg_u32(b + 16 + 16 * h + 4 * t) >> j & 0x01010101u) << 4 : 0;
        put_small(low | high, 0, p.pair[h]);
    }
}

/* Two f16 as a bf16 of eight bits and one of the three that are left, both exact. */
DG_DEV void put_halves(uint32_t two, uint32_t *high, uint32_t *low) {
    const float a = dg_f16(static_cast<uint16_t>(two)), b = dg_f16(static_cast<uint16_t>(two >> 16));
    const uint32_t ah = __float_as_uint(a) & 0xffff0000u, bh = __float_as_uint(b) & 0xffff0000u;
    *high = ah >> 16 | bh;
    *low = __byte_perm(__float_as_uint(a - __uint_as_float(ah)), __float_as_uint(b - __uint_as_float(bh)), 0x7632);
}

template <int KIND> DG_DEV void load_piece(const uint8_t *row, int32_t block, int t, piece &p) {
    if (KIND == DG_BF16 || KIND == DG_F16) {
        DG_UNROLL
        for (int h = 0; h < 2; h++) {
            const uint2 w = *reinterpret_cast<const uint2 *>(row + 2 * (static_cast<int64_t>(block) * BLOCK + 16 * h + 4 * t));
            const uint32_t pair[2] = {__byte_perm(w.x, w.y, 0x5410), __byte_perm(w.x, w.y, 0x7632)};
            DG_UNROLL
            for (int i = 0; i < 2; i++)
                if (KIND == DG_F16)
                    put_halves(pair[i], &p.pair[h][i], &p.low[h][i]);
                else
                    p.pair[h][i] = pair[i];
        }
    } else if (KIND == DG_Q4_K || KIND == DG_Q5_K || KIND == DG_Q6_K) {
        load_piece_k<KIND>(row, block, t, p);
    } else {
        load_piece_32<KIND>(row, block, t, p);
    }
}

/* ---- products ---- */

typedef struct packed_args {
    dg_launch_products products;
    const uint32_t *words; /* of up to DG_PACKED_ROWS rows */
    const float *sums;
    int32_t n, n_block;
    bool add, fine; /* fine: with the lower halves of x */
} packed_args;

/* sum += the product of half h of 32 weights of 16 rows, a pair of registers each, and eight rows of x. */
DG_DEV void multiply_pairs(float sum[4], const uint32_t first[2], const uint32_t second[2], int h, const uint32_t x[8], bool fine) {
    const uint32_t a[4] = {first[0], second[0], first[1], second[1]};
    dg_mma_m16n8k16_bf16(sum, a, x + 2 * h);
    if (fine) dg_mma_m16n8k16_bf16(sum, a, x + 4 + 2 * h);
}

DG_DEV void multiply_half(float sum[4], const piece p[2], int h, const uint32_t x[8], bool fine) {
    multiply_pairs(sum, p[0].pair[h], p[1].pair[h], h, x, fine);
}

/* acc += 32 weights of 16 rows times eight rows of x, whose sums are `sums` for this lane's two columns. */
template <int KIND>
DG_DEV void multiply_block(float acc[4], const piece p[2], const uint32_t x[8], const float sums[2], bool fine) {
    if constexpr (KIND == DG_BF16 || KIND == DG_F16) {
        DG_UNROLL
        for (int h = 0; h < 2; h++) {
            multiply_half(acc, p, h, x, fine);
            if (KIND == DG_F16) multiply_pairs(acc, p[0].low[h], p[1].low[h], h, x, fine);
        }
    } else {
        constexpr bool two_scales = KIND == DG_Q6_K, offset = KIND == DG_Q4_1 || KIND == DG_Q5_1 || KIND == DG_Q4_K || KIND == DG_Q5_K;
        float sum[4] = {0, 0, 0, 0};
        DG_UNROLL
        for (int h = 0; h < 2; h++) {
            multiply_half(sum, p, h, x, fine);
            if (h == 0 && !two_scales) continue;
            DG_UNROLL
            for (int i = 0; i < 4; i++) {
                acc[i] = dg_fma(p[i / 2].scale[two_scales ? h : 0], sum[i], acc[i]);
                sum[i] = 0;
            }
        }
        DG_UNROLL
        for (int i = 0; i < 4 && offset; i++) acc[i] = dg_fma(p[i / 2].offset, sums[i % 2], acc[i]);
    }
}

/* blockIdx: sixteen outputs of a product. TILES of eight rows of x. */
template <int KIND, int TILES> static __global__ void __launch_bounds__(WARPS *DG_WARP) packed_kernel(packed_args a) {
    __shared__ float part[WARPS][TILES][OUTS * 8];
    const int lane = threadIdx.x % DG_WARP, warp = threadIdx.x / DG_WARP, g = lane / 4, t = lane % 4;
    const dg_launch_product &product = dg_product_of_block(a.products, blockIdx.x);
    const int32_t m0 = (blockIdx.x - product.first) * OUTS, last = product.m - 1;
    const uint8_t *row[2] = {product.w + min(m0 + g, last) * product.w_bytes, product.w + min(m0 + g + 8, last) * product.w_bytes};
    float acc[TILES][4];
    DG_UNROLL
    for (int i = 0; i < TILES; i++) acc[i][0] = acc[i][1] = acc[i][2] = acc[i][3] = 0;
    for (int32_t block = warp; block < a.n_block; block += WARPS) {
        piece p[2];
        load_piece<KIND>(row[0], block, t, p[0]);
        load_piece<KIND>(row[1], block, t, p[1]);
        DG_UNROLL
        for (int i = 0; i < TILES; i++) {
            const int32_t at = (8 * i + g) * a.n_block + block;
            const uint4 *from = reinterpret_cast<const uint4 *>(a.words + at * WORDS + 8 * t);
            uint4 hi = make_uint4(0, 0, 0, 0), lo = hi;
            if (TILES > 1 || g < a.n) hi = from[0], lo = from[1]; /* one row should not cost what eight do */
            const uint32_t x[8] = {hi.x, hi.y, hi.z, hi.w, lo.x, lo.y, lo.z, lo.w};
            const float *s = a.sums + (8 * i + 2 * t) * a.n_block + block, sums[2] = {s[0], s[a.n_block]};
            multiply_block<KIND>(acc[i], p, x, sums, a.fine);
        }
    }
    DG_UNROLL
    for (int i = 0; i < TILES; i++)
        DG_UNROLL
        for (int e = 0; e < 4; e++) part[warp][i][(2 * t + e % 2) * OUTS + g + e / 2 * 8] = acc[i][e];
    __syncthreads();
    for (int i = threadIdx.x; i < TILES * 8 * OUTS; i += WARPS * DG_WARP) {
        const int32_t r = i / OUTS, o = m0 + i % OUTS;
        if (r >= a.n || o > last) continue;
        float sum = product.bias ? dg_load_any(product.bias, product.bias_dtype, o) : 0;
        for (int k = 0; k < WARPS; k++) sum += part[k][r / 8][r % 8 * OUTS + i % OUTS];
        float *out = product.out + r * product.out_stride + o;
        *out = a.add ? *out + sum : sum;
    }
}

template <int KIND> static void launch(dg_cuda *c, const packed_args &a, int32_t blocks) {
    const dim3 grid(blocks), block(WARPS * DG_WARP);
    if (a.n <= 8)
        DG_LAUNCH((packed_kernel<KIND, 1>), grid, block, 0, c->stream, a);
    else if (a.n <= 16)
        DG_LAUNCH((packed_kernel<KIND, 2>), grid, block, 0, c->stream, a);
    else if (a.n <= 32)
        DG_LAUNCH((packed_kernel<KIND, 4>), grid, block, 0, c->stream, a);
    else
        DG_LAUNCH((packed_kernel<KIND, 8>), grid, block, 0, c->stream, a);
}

void dg_cuda_split(dg_cuda *c, dg_mat x) {
    assert(x.rows <= DG_PACKED_ROWS && x.cols <= c->max_cols);
    const int32_t n_block = x.cols / BLOCK, tiles = x.rows <= 8 ? 1 : x.rows <= 16 ? 2 : x.rows <= 32 ? 4 : 8;
    DG_LAUNCH(split_kernel, dim3(dg_ceil_div(4 * n_block, SPLIT_THREADS), 8 * tiles), dim3(SPLIT_THREADS), 0, c->stream,
              c->words, c->sums, static_cast<const float *>(x.data), x.stride, x.rows, n_block);
}

void dg_cuda_multiply_packed(dg_cuda *c, dg_mat x, const dg_product *p, int32_t n, bool add) {
    packed_args a;
    const int32_t blocks = dg_cuda_lay_products(&a.products, p, n, OUTS);
    a.words = c->words, a.sums = c->sums;
    a.n = x.rows, a.n_block = x.cols / BLOCK, a.add = add;
    a.fine = !p->w.coarse && c->precision != DG_PRECISION_INT8;
    if (!blocks) return;
    switch (p->w.dtype) {
#define CASE(KIND) \
    case KIND: launch<KIND>(c, a, blocks); break;
        DG_PACKED_KERNELS(CASE)
#undef CASE
    default: assert(!"packed weights have a kernel");
    }
}
