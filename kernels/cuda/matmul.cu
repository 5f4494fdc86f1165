/* Products by weights of every type that are not packed, in f32, a few rows at a time: each warp streams two rows of the
 * weight matrix and multiplies them by up to eight rows of x. And which kernel takes which products of a call.
 *
 * Lane l takes the elements 8l .. 8l + 7 of every 256, one after another, and the lanes are added up in a fixed order. So a
 * result depends on its own row and column alone, whatever the other rows and the type that the weights were decoded from:
 * a row among sixteen has the bits of that row alone. */
#include "kernels/cuda/decode.cuh"

extern "C" {
#include "kernels/quant.h"
}

enum {
    THREADS = 128,
    OUTS = 2, /* weight rows of a warp */
    BLOCK_OUTS = OUTS * THREADS / DG_WARP,
    MAX_ROWS = 8,
    PLAIN = -1, ANY = -2 /* kinds of weights that are told apart at run time */
};

typedef struct product_args {
    dg_launch_products products;
    const float *x;
    int64_t x_stride;
    int32_t dtype; /* of the weights */
    int32_t n, k;
    bool add;
    bool wide_x, wide_w; /* rows may be loaded 16 bytes at a time */
} product_args;

/* v[0..8) = x[k..k+8), zeros behind the end. */
DG_DEV void load_x(const float *x, int32_t k, int32_t end, bool wide, float *v) {
    if (wide && k + 8 <= end) {
        const float4 a = *reinterpret_cast<const float4 *>(x + k), b = *reinterpret_cast<const float4 *>(x + k + 4);
        v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
        return;
    }
    DG_UNROLL
    for (int e = 0; e < 8; e++) v[e] = k + e < end ? x[k + e] : 0;
}

DG_DEV void load_plain(int dtype, const uint8_t *row, int32_t k, int32_t end, bool wide, float *v) {
    if (wide && k + 8 <= end && dtype == DG_F32) {
        load_x(reinterpret_cast<const float *>(row), k, end, true, v);
    } else if (wide && k + 8 <= end && dtype != DG_F64) {
        const uint4 four = *reinterpret_cast<const uint4 *>(row + 2 * static_cast<int64_t>(k));
        const uint32_t two[4] = {four.x, four.y, four.z, four.w};
        DG_UNROLL
        for (int e = 0; e < 8; e += 2) {
            const uint32_t low = two[e / 2] & 0xffff, high = two[e / 2] >> 16;
            v[e] = dtype == DG_F16 ? dg_f16(static_cast<uint16_t>(low)) : dg_bf16(static_cast<uint16_t>(low));
            v[e + 1] = dtype == DG_F16 ? dg_f16(static_cast<uint16_t>(high)) : dg_bf16(static_cast<uint16_t>(high));
        }
    } else {
        DG_UNROLL
        for (int e = 0; e < 8; e++) v[e] = k + e < end ? dg_plain_at(dtype, row, k + e) : 0;
    }
}

/* KIND: a quantised type, PLAIN, or ANY for the quantised types without a kernel of their own. */
template <int KIND>
DG_DEV void load_w(const product_args &a, const uint8_t *row, int32_t k, float *v) {
    if (KIND == PLAIN)
        load_plain(a.dtype, row, k, a.k, a.wide_w, v);
    else
        dg_decode8(KIND == ANY ? a.dtype : KIND, row, k, v);
}

/* blockIdx: BLOCK_OUTS weight rows of a product, N rows of x. */
template <int KIND, int N> static __global__ void __launch_bounds__(THREADS) stream_kernel(product_args a) {
    const int32_t lane = threadIdx.x % DG_WARP;
    const dg_launch_product &p = dg_product_of_block(a.products, blockIdx.x);
    const int32_t m0 = (blockIdx.x - p.first) * BLOCK_OUTS + threadIdx.x / DG_WARP * OUTS, n0 = blockIdx.y * N;
    if (m0 >= p.m) return;
    const uint8_t *w[OUTS];
    const float *x[N];
    float sum[OUTS * N];
    DG_UNROLL
    for (int o = 0; o < OUTS; o++) { /* what lies outside is computed from the last row, and not stored */
        w[o] = p.w + min(m0 + o, p.m - 1) * p.w_bytes;
        DG_UNROLL
        for (int r = 0; r < N; r++) sum[o * N + r] = 0;
    }
    DG_UNROLL
    for (int r = 0; r < N; r++) x[r] = a.x + min(n0 + r, a.n - 1) * a.x_stride;
    for (int32_t k = 8 * lane; k < a.k; k += 8 * DG_WARP) {
        float wv[OUTS][8];
        DG_UNROLL
        for (int o = 0; o < OUTS; o++) load_w<KIND>(a, w[o], k, wv[o]);
        DG_UNROLL
        for (int r = 0; r < N; r++) {
            float xv[8];
            load_x(x[r], k, a.k, a.wide_x, xv);
            DG_UNROLL
            for (int o = 0; o < OUTS; o++)
                DG_UNROLL
                for (int e = 0; e < 8; e++) sum[o * N + r] = dg_fma(wv[o][e], xv[e], sum[o * N + r]);
        }
    }
    dg_warp_sums<OUTS * N>(sum);
    const int share = dg_warp_share<OUTS * N>(lane), o = m0 + share / N, r = n0 + share % N;
    if (lane % (DG_WARP / (OUTS * N)) || o >= p.m || r >= a.n) return;
    float *out = p.out + r * p.out_stride + o;
    if (p.bias) sum[0] += dg_load_any(p.bias, p.bias_dtype, o);
    *out = a.add ? *out + sum[0] : sum[0];
}

template <int KIND> static void launch(dg_cuda *c, const product_args &a, int32_t blocks) {
    const int32_t n = a.n > 4 ? 8 : a.n > 2 ? 4 : a.n;
    const dim3 grid(blocks, dg_ceil_div(a.n, n));
    switch (n) {
    case 1: DG_LAUNCH((stream_kernel<KIND, 1>), grid, dim3(THREADS), 0, c->stream, a); break;
    case 2: DG_LAUNCH((stream_kernel<KIND, 2>), grid, dim3(THREADS), 0, c->stream, a); break;
    case 4: DG_LAUNCH((stream_kernel<KIND, 4>), grid, dim3(THREADS), 0, c->stream, a); break;
    default: DG_LAUNCH((stream_kernel<KIND, MAX_ROWS>), grid, dim3(THREADS), 0, c->stream, a); break;
    }
}

int32_t dg_cuda_lay_products(dg_launch_products *to, const dg_product *p, int32_t n, int32_t outs) {
    int32_t blocks = 0;
    to->n = n;
    for (int32_t i = 0; i < n; i++) {
        dg_launch_product *l = &to->of[i];
        l->out = static_cast<float *>(p[i].out.data), l->out_stride = p[i].out.stride;
        l->w = static_cast<const uint8_t *>(p[i].w.data);
        l->w_bytes = static_cast<int64_t>(dg_dtype_bytes(p[i].w.dtype, static_cast<size_t>(p[i].w.stride)));
        l->bias = p[i].bias.data, l->bias_dtype = p[i].bias.dtype;
        l->m = p[i].w.rows, l->first = blocks;
        blocks += dg_ceil_div(l->m, outs);
    }
    return blocks;
}

static bool wide_rows(const void *data, int64_t stride_bytes) {
    return (reinterpret_cast<uintptr_t>(data) | static_cast<uintptr_t>(stride_bytes)) % 16 == 0;
}

/* Products that go into one launch. */
static void multiply(dg_cuda *c, dg_mat x, const dg_product *p, int32_t n, bool add) {
    product_args a;
    const int32_t blocks = dg_cuda_lay_products(&a.products, p, n, BLOCK_OUTS);
    a.x = static_cast<const float *>(x.data), a.x_stride = x.stride;
    a.dtype = p->w.dtype;
    a.n = x.rows, a.k = x.cols, a.add = add;
    a.wide_x = wide_rows(x.data, x.stride * static_cast<int64_t>(sizeof(float)));
    a.wide_w = true;
    for (int32_t i = 0; i < n; i++) a.wide_w &= wide_rows(a.products.of[i].w, a.products.of[i].w_bytes);
    if (!blocks) return;
    switch (p->w.dtype) {
#define CASE(KIND) \
    case KIND: launch<KIND>(c, a, blocks); break;
        DG_QUANT_KERNELS(CASE)
#undef CASE
    default:
        if (dg_is_quantised(p->w.dtype))
            launch<ANY>(c, a, blocks);
        else
            launch<PLAIN>(c, a, blocks);
    }
}

/* How many of the products one launch can make, from the first on. */
static int32_t alike(const dg_product *p, int32_t n) {
    int32_t count = 1;
    while (count < n && count < DG_LAUNCH_PRODUCTS && p[count].w.dtype == p->w.dtype && p[count].w.packed == p->w.packed &&
           p[count].w.coarse == p->w.coarse)
        count++;
    return count;
}

/* Those of the products that have packed weights, for some rows at a time. */
static void multiply_packed(dg_cuda *c, dg_mat x, const dg_product *product, int32_t n, bool add) {
    for (int32_t at = 0; at < x.rows; at += DG_PACKED_ROWS) {
        const int32_t most = DG_PACKED_ROWS, rows = x.rows - at < most ? x.rows - at : most;
        const dg_mat part = dg_mat_rows(x, at, rows);
        bool split = false;
        for (int32_t i = 0, count; i < n; i += count) {
            count = alike(&product[i], n - i);
            if (!product[i].w.packed) continue;
            if (!split) dg_cuda_split(c, part);
            split = true;
            dg_product p[DG_LAUNCH_PRODUCTS];
            for (int32_t k = 0; k < count; k++) p[k] = product[i + k], p[k].out = dg_mat_rows(p[k].out, at, rows);
            dg_cuda_multiply_packed(c, part, p, count, add);
        }
    }
}

void dg_cuda_multiply(dg_cuda *c, dg_mat x, const dg_product *product, int32_t n, bool add) {
    for (int32_t i = 0, count; i < n; i += count) {
        count = alike(&product[i], n - i);
        if (!product[i].w.packed) multiply(c, x, &product[i], count, add);
    }
    multiply_packed(c, x, product, n, add);
}

void dg_cuda_matmul(dg_backend *be, dg_mat x, const dg_product *product, int32_t n, bool add) {
    dg_cuda *c = x.rows ? dg_cuda_begin(be) : NULL;
    if (!c) return;
    if (x.loose && x.rows >= DG_LT_LEAST && c->lt.handle)
        dg_cuda_matmul_lt(c, x, product, n, add);
    else
        dg_cuda_multiply(c, x, product, n, add);
    dg_cuda_end(c, "matmul");
}
