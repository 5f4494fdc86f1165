/* Long causal segments for cuDNN (sdpa_cudnn.c): which of them it gets, and q and out in its types. Both lie in the scratch
 * that attention.cu keeps the states of spans in, with the library's workspace behind them. */
#include <string.h>

#include "kernels/cuda/common.cuh"

enum {
    LEAST_ROWS = 128, /* fewer are not worth a plan */
    THREADS = 256
};

/* to[n_to, cols] = q[n, cols], rounded; rows behind n are zeros. */
template <typename T>
static __global__ void narrow_kernel(T *to, const float *q, int64_t stride, int32_t n, int32_t cols) {
    const int32_t col = blockIdx.x * THREADS + threadIdx.x, row = blockIdx.y;
    if (col < cols) dg_round(row < n ? q[row * stride + col] : 0.0f, &to[static_cast<int64_t>(row) * cols + col]);
}

template <typename T> static __global__ void widen_kernel(float *out, int64_t stride, const T *from, int32_t cols) {
    const int32_t col = blockIdx.x * THREADS + threadIdx.x, row = blockIdx.y;
    if (col < cols) out[row * stride + col] = dg_to_f32(from[static_cast<int64_t>(row) * cols + col]);
}

static int32_t step_up(int32_t n) { return dg_ceil_div(n, DG_SDPA_STEP) * DG_SDPA_STEP; }

template <typename T>
static bool run(dg_cuda *c, dg_mat out, dg_mat q, const dg_attn_seg *s, const dg_sdpa_shape *shape, float scale) {
    const size_t cells = static_cast<size_t>(shape->n) * static_cast<size_t>(q.cols), bytes = (cells * sizeof(T) + 255) / 256 * 256;
    if (2 * bytes > c->n_part * sizeof(float)) return false;
    char *const place = reinterpret_cast<char *>(c->parts);
    T *const q16 = reinterpret_cast<T *>(place), *const out16 = reinterpret_cast<T *>(place + bytes);
    const int32_t columns = dg_ceil_div(q.cols, THREADS);
    DG_LAUNCH(narrow_kernel<T>, dim3(columns, shape->n), dim3(THREADS), 0, c->stream, q16,
              static_cast<const float *>(q.data) + s->row0 * q.stride, q.stride, s->n, q.cols);
    dg_sdpa_call call;
    call.q = q16, call.k = s->k.data, call.v = s->v.data, call.out = out16;
    call.first = s->len + s->win - s->n, call.scale = scale;
    call.workspace = place + 2 * bytes, call.workspace_bytes = c->n_part * sizeof(float) - 2 * bytes;
    if (!dg_sdpa_run(&c->sdpa, c->stream, shape, &call)) return false;
    DG_LAUNCH(widen_kernel<T>, dim3(columns, s->n), dim3(THREADS), 0, c->stream,
              static_cast<float *>(out.data) + s->row0 * out.stride, out.stride, out16, q.cols);
    return true;
}

bool dg_cuda_sdpa(dg_cuda *c, dg_mat out, dg_mat q, const dg_attn_seg *s, const dg_attn_shape *shape) {
    const int32_t keys = s->len + s->win;
    if (s->mask != DG_MASK_CAUSAL || s->n < LEAST_ROWS || s->k.dtype == DG_F32 || c->precision == DG_PRECISION_F32) return false;
    if ((shape->window && shape->window < keys) || (c->sdpa.tried && !c->sdpa.handle)) return false;
    dg_sdpa_shape of;
    memset(&of, 0, sizeof of);
    of.n = step_up(s->n), of.n_key = step_up(keys);
    of.n_head = shape->n_head, of.n_kv_head = shape->n_kv_head, of.head_dim = shape->head_dim;
    of.bf16 = s->k.dtype == DG_BF16;
    static_assert(DG_SDPA_STEP == DG_KV_BLOCK, "a cache has rows for all keys of a plan");
    return of.bf16 ? run<dg_bfloat>(c, out, q, s, &of, shape->scale) : run<dg_half>(c, out, q, s, &of, shape->scale);
}
