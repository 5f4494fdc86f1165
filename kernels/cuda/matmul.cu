/* Products by weights of every type that are not packed, in f32, a few rows at a time: each warp streams two rows of the weight matrix and multiplies
 * them by up to eight rows of x.
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
    MAX_ROWS = 8,
    PLAIN = -1, ANY = -2 /* kinds of weights that are told apart at run time */
};

typedef struct product_args {
    float *out;
    const float *x;
    const uint8_t *w;
    const void *bias;
    int64_t out_stride, x_stride, w_bytes; /* w_bytes: from one weight row to the next */
    int32_t dtype, bias_dtype;
    int32_t n, m, k;
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

/* blockIdx: OUTS * THREADS / 32 weight rows, N rows of x. */
template <int KIND, int N> static __global__ void __launch_bounds__(THREADS) stream_kernel(product_args a) {
    const int32_t lane = threadIdx.x % DG_WARP;
    const int32_t m0 = (blockIdx.x * (THREADS / DG_WARP) + threadIdx.x / DG_WARP) * OUTS, n0 = blockIdx.y * N;
    if (m0 >= a.m) return;
    const uint8_t *w[OUTS];
    const float *x[N];
    float sum[OUTS * N];
    DG_UNROLL
    for (int o = 0; o < OUTS; o++) { /* what lies outside is computed from the last row, and not stored */
        w[o] = a.w + min(m0 + o, a.m - 1) * a.w_bytes;
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
    if (lane % (DG_WARP / (OUTS * N)) || o >= a.m || r >= a.n) return;
    float *out = a.out + r * a.out_stride + o;
    if (a.bias) sum[0] += dg_load_any(a.bias, a.bias_dtype, o);
    *out = a.add ? *out + sum[0] : sum[0];
}

template <int KIND> static void launch(dg_cuda *c, const product_args &a) {
    const int32_t n = a.n > 4 ? 8 : a.n > 2 ? 4 : a.n;
    const dim3 grid(dg_ceil_div(a.m, OUTS * THREADS / DG_WARP), dg_ceil_div(a.n, n));
    switch (n) {
    case 1: DG_LAUNCH((stream_kernel<KIND, 1>), grid, dim3(THREADS), 0, c->stream, a); break;
    case 2: DG_LAUNCH((stream_kernel<KIND, 2>), grid, dim3(THREADS), 0, c->stream, a); break;
    case 4: DG_LAUNCH((stream_kernel<KIND, 4>), grid, dim3(THREADS), 0, c->stream, a); break;
    default: DG_LAUNCH((stream_kernel<KIND, MAX_ROWS>), grid, dim3(THREADS), 0, c->stream, a); break;
    }
}

static bool wide_rows(const void *data, size_t stride_bytes) {
    return (reinterpret_cast<uintptr_t>(data) | stride_bytes) % 16 == 0;
}

static void multiply(dg_cuda *c, dg_mat x, const dg_product *p, bool add) {
    product_args a;
    a.out = static_cast<float *>(p->out.data), a.out_stride = p->out.stride;
    a.x = static_cast<const float *>(x.data), a.x_stride = x.stride;
    a.w = static_cast<const uint8_t *>(p->w.data), a.dtype = p->w.dtype;
    a.w_bytes = static_cast<int64_t>(dg_dtype_bytes(p->w.dtype, static_cast<size_t>(p->w.stride)));
    a.bias = p->bias.data, a.bias_dtype = p->bias.dtype;
    a.n = x.rows, a.m = p->w.rows, a.k = x.cols, a.add = add;
    a.wide_x = wide_rows(x.data, static_cast<size_t>(x.stride) * sizeof(float));
    a.wide_w = wide_rows(p->w.data, static_cast<size_t>(a.w_bytes));
    if (!a.m) return;
    switch (p->w.dtype) {
    case DG_Q4_0: launch<DG_Q4_0>(c, a); break;
    case DG_Q4_1: launch<DG_Q4_1>(c, a); break;
    case DG_Q5_0: launch<DG_Q5_0>(c, a); break;
    case DG_Q5_1: launch<DG_Q5_1>(c, a); break;
    case DG_Q8_0: launch<DG_Q8_0>(c, a); break;
    case DG_Q4_K: launch<DG_Q4_K>(c, a); break;
    case DG_Q5_K: launch<DG_Q5_K>(c, a); break;
    case DG_Q6_K: launch<DG_Q6_K>(c, a); break;
    default:
        if (dg_is_quantised(p->w.dtype))
            launch<ANY>(c, a);
        else
            launch<PLAIN>(c, a);
    }
}

/* Those of the products that have packed weights, for some rows at a time. */
static void multiply_packed(dg_cuda *c, dg_mat x, const dg_product *product, int32_t n, bool add) {
    for (int32_t at = 0; at < x.rows; at += DG_PACKED_ROWS) {
        const int32_t most = DG_PACKED_ROWS, rows = x.rows - at < most ? x.rows - at : most;
        bool split = false;
        for (int32_t i = 0; i < n; i++) {
            if (!product[i].w.packed) continue;
            if (!split) dg_cuda_split(c, dg_mat_rows(x, at, rows));
            split = true;
            dg_product p = product[i];
            p.out = dg_mat_rows(p.out, at, rows);
            dg_cuda_multiply_packed(c, dg_mat_rows(x, at, rows), &p, add);
        }
    }
}

void dg_cuda_multiply(dg_cuda *c, dg_mat x, const dg_product *product, int32_t n, bool add) {
    for (int32_t i = 0; i < n; i++)
        if (!product[i].w.packed) multiply(c, x, &product[i], add);
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
