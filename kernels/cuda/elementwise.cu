/* Ops that treat every element or row alike: norm, rotation, activation, sum. */
#include "kernels/cuda/common.cuh"

enum { THREADS = 128, NORM_THREADS = 256 };

/* ---- norm ---- */

typedef struct norm_args {
    float *out;
    const float *x;
    const void *w;
    int64_t out_stride, x_stride;
    int32_t w_dtype, n, d;
    float eps;
} norm_args;

DG_DEV void norm_row(const norm_args &a, int32_t row, float factor, int32_t first, int32_t step) {
    const float *x = a.x + row * a.x_stride;
    float *out = a.out + row * a.out_stride;
    for (int32_t i = first; i < a.d; i += step) out[i] = x[i] * factor * dg_load_any(a.w, a.w_dtype, i);
}

DG_DEV float sum_of_squares(const float *x, int32_t d, int32_t first, int32_t step) {
    float sum = 0;
    for (int32_t i = first; i < d; i += step) sum = dg_fma(x[i], x[i], sum);
    return sum;
}

/* A warp a row, for heads; the order of a row's sum hangs on d alone. */
static __global__ void norm_short_kernel(norm_args a) {
    const int32_t lane = threadIdx.x % DG_WARP, row = blockIdx.x * (THREADS / DG_WARP) + threadIdx.x / DG_WARP;
    if (row >= a.n) return;
    const float sum = dg_warp_sum(sum_of_squares(a.x + row * a.x_stride, a.d, lane, DG_WARP));
    norm_row(a, row, 1.0f / sqrtf(sum / static_cast<float>(a.d) + a.eps), lane, DG_WARP);
}

static __global__ void norm_kernel(norm_args a) {
    __shared__ float part[NORM_THREADS / DG_WARP];
    const int32_t row = blockIdx.x;
    const float sum = dg_block_sum(sum_of_squares(a.x + row * a.x_stride, a.d, threadIdx.x, NORM_THREADS), part);
    norm_row(a, row, 1.0f / sqrtf(sum / static_cast<float>(a.d) + a.eps), threadIdx.x, NORM_THREADS);
}

void dg_cuda_rms_norm(dg_backend *be, dg_mat out, dg_mat x, dg_mat w, float eps) {
    dg_cuda *c = x.rows ? dg_cuda_begin(be) : NULL;
    if (!c) return;
    const norm_args a = {static_cast<float *>(out.data), static_cast<const float *>(x.data), w.data, out.stride, x.stride,
                         w.dtype, x.rows, x.cols, eps};
    if (x.cols <= 256)
        DG_LAUNCH(norm_short_kernel, dim3(dg_ceil_div(x.rows, THREADS / DG_WARP)), dim3(THREADS), 0, c->stream, a);
    else
        DG_LAUNCH(norm_kernel, dim3(x.rows), dim3(NORM_THREADS), 0, c->stream, a);
    dg_cuda_end(c, "rms_norm");
}

/* ---- rotation ---- */

static __global__ void rope_table_kernel(float *table, int64_t stride, const int32_t *pos, const float *freq, int32_t half,
                                         float mscale) {
    const int32_t row = blockIdx.x;
    float *to = table + row * stride;
    for (int32_t j = threadIdx.x; j < half; j += THREADS) {
        const float angle = static_cast<float>(pos[row]) * freq[j];
        to[j] = cosf(angle) * mscale;
        to[j + half] = sinf(angle) * mscale;
    }
}

void dg_cuda_rope_table(dg_backend *be, dg_mat table, const int32_t *pos, const float *freq, float mscale) {
    dg_cuda *c = table.rows ? dg_cuda_begin(be) : NULL;
    if (!c) return;
    DG_LAUNCH(rope_table_kernel, dim3(table.rows), dim3(THREADS), 0, c->stream, static_cast<float *>(table.data),
              table.stride, pos, freq, table.cols / 2, mscale);
    dg_cuda_end(c, "rope_table");
}

static __global__ void rope_kernel(float *x, int64_t x_stride, const float *table, int64_t table_stride, int32_t n_head,
                                   int32_t half, bool interleaved) {
    const int32_t row = blockIdx.x, at = blockIdx.y * THREADS + threadIdx.x;
    if (at >= n_head * half) return;
    const int32_t j = at % half;
    const float *turn = table + row * table_stride;
    float *head = x + row * x_stride + static_cast<int64_t>(at / half) * 2 * half;
    float *first = head + (interleaved ? 2 * j : j), *second = interleaved ? first + 1 : first + half;
    const float a = *first, b = *second, co = turn[j], si = turn[j + half];
    *first = a * co - b * si;
    *second = b * co + a * si;
}

void dg_cuda_rope(dg_backend *be, dg_mat x, dg_mat table, int32_t n_head, bool interleaved) {
    dg_cuda *c = x.rows && table.cols ? dg_cuda_begin(be) : NULL;
    if (!c) return;
    const int32_t half = table.cols / 2;
    DG_LAUNCH(rope_kernel, dim3(x.rows, dg_ceil_div(static_cast<int64_t>(n_head) * half, THREADS)), dim3(THREADS), 0,
              c->stream, static_cast<float *>(x.data), x.stride, static_cast<const float *>(table.data), table.stride,
              n_head, half, interleaved);
    dg_cuda_end(c, "rope");
}

/* ---- activation and sum ---- */

static __global__ void swiglu_kernel(float *out, int64_t out_stride, const float *gate, int64_t gate_stride, const float *up,
                                     int64_t up_stride, int32_t d) {
    const int64_t row = blockIdx.x;
    const int32_t i = blockIdx.y * THREADS + threadIdx.x;
    if (i < d) out[row * out_stride + i] = dg_silu(gate[row * gate_stride + i]) * up[row * up_stride + i];
}

void dg_cuda_swiglu(dg_backend *be, dg_mat out, dg_mat gate, dg_mat up) {
    dg_cuda *c = gate.rows && gate.cols ? dg_cuda_begin(be) : NULL;
    if (!c) return;
    DG_LAUNCH(swiglu_kernel, dim3(gate.rows, dg_ceil_div(gate.cols, THREADS)), dim3(THREADS), 0, c->stream,
              static_cast<float *>(out.data), out.stride, static_cast<const float *>(gate.data), gate.stride,
              static_cast<const float *>(up.data), up.stride, gate.cols);
    dg_cuda_end(c, "swiglu");
}

static __global__ void add_kernel(float *x, int64_t x_stride, const float *y, int64_t y_stride, int32_t d) {
    const int64_t row = blockIdx.x;
    const int32_t i = blockIdx.y * THREADS + threadIdx.x;
    if (i < d) x[row * x_stride + i] += y[row * y_stride + i];
}

void dg_cuda_add(dg_backend *be, dg_mat x, dg_mat y) {
    dg_cuda *c = x.rows && x.cols ? dg_cuda_begin(be) : NULL;
    if (!c) return;
    DG_LAUNCH(add_kernel, dim3(x.rows, dg_ceil_div(x.cols, THREADS)), dim3(THREADS), 0, c->stream,
              static_cast<float *>(x.data), x.stride, static_cast<const float *>(y.data), y.stride, x.cols);
    dg_cuda_end(c, "add");
}
