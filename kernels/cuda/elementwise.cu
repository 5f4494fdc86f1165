/* Ops that treat every element or row alike: norm, rotation, activation; and what q, k and v go through before attention. */
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

/* ---- q, k and v on their way to attention ---- */

typedef struct qkv_args {
    float *q;
    const float *k, *v, *rope; /* rope NULL: no rotation */
    void *ck, *cv;
    const void *q_norm, *k_norm;
    const dg_live *live;
    int64_t q_stride, k_stride, v_stride, rope_stride;
    int32_t q_norm_dtype, k_norm_dtype;
    int32_t n_q, n_k, head_dim;
    int32_t row0, n, len, before; /* of the segment; before: window rows that are there already */
    float eps;
    bool interleaved;
} qkv_args;

DG_DEV void turn_pairs(float *x, const float *turn, int32_t half, bool interleaved, int32_t lane) {
    for (int32_t j = lane; j < half; j += DG_WARP) {
        float *first = x + (interleaved ? 2 * j : j), *second = interleaved ? first + 1 : first + half;
        const float a = *first, b = *second, co = turn[j], si = turn[j + half];
        *first = a * co - b * si;
        *second = b * co + a * si;
    }
}

/* A warp a head; a row's heads are those of q, of k, of v. blockIdx: row of the segment, some heads. Norm and rotation are
 * those of the kernels above, operation by operation. */
template <typename T> static __global__ void qkv_kernel(qkv_args a) {
    DG_DYN_SHARED(float, memory);
    const int32_t lane = threadIdx.x % DG_WARP, warp = threadIdx.x / DG_WARP, hd = a.head_dim;
    const int32_t item = blockIdx.y * (THREADS / DG_WARP) + warp, n = a.live ? a.live->n : a.n;
    if (static_cast<int32_t>(blockIdx.x) >= n || item >= a.n_q + 2 * a.n_k) return;
    const int64_t row = a.row0 + static_cast<int32_t>(blockIdx.x);
    const bool of_q = item < a.n_q, of_v = item >= a.n_q + a.n_k;
    const int32_t head = of_q ? item : of_v ? item - a.n_q - a.n_k : item - a.n_q;
    const float *from = (of_q ? a.q + row * a.q_stride : of_v ? a.v + row * a.v_stride : a.k + row * a.k_stride) + head * hd;
    const void *norm = of_q ? a.q_norm : of_v ? NULL : a.k_norm;
    const int32_t norm_dtype = of_q ? a.q_norm_dtype : a.k_norm_dtype;
    float *x = memory + warp * hd, factor = 1;
    if (norm) {
        const float sum = dg_warp_sum(sum_of_squares(from, hd, lane, DG_WARP));
        factor = 1.0f / sqrtf(sum / static_cast<float>(hd) + a.eps);
    }
    for (int32_t i = lane; i < hd; i += DG_WARP) x[i] = norm ? from[i] * factor * dg_load_any(norm, norm_dtype, i) : from[i];
    __syncwarp();
    if (a.rope && !of_v) turn_pairs(x, a.rope + row * a.rope_stride, hd / 2, a.interleaved, lane);
    __syncwarp();
    float *q = a.q + row * a.q_stride + head * hd;
    const int64_t at = (a.live ? a.live->len : a.len) + a.before + static_cast<int32_t>(blockIdx.x);
    T *to = static_cast<T *>(of_v ? a.cv : a.ck) + at * (static_cast<int64_t>(a.n_k) * hd) + head * hd;
    for (int32_t i = lane; i < hd; i += DG_WARP)
        if (of_q)
            q[i] = x[i];
        else
            dg_round(x[i], &to[i]);
}

template <typename T> static void launch_qkv(dg_cuda *c, const qkv_args &a) {
    const dim3 grid(a.n, dg_ceil_div(a.n_q + 2 * a.n_k, THREADS / DG_WARP));
    const size_t bytes = THREADS / DG_WARP * sizeof(float) * static_cast<size_t>(a.head_dim);
    DG_LAUNCH(qkv_kernel<T>, grid, dim3(THREADS), bytes, c->stream, a);
}

void dg_cuda_qkv(dg_backend *be, const dg_qkv *r, const dg_attn_seg *seg, int32_t n_seg) {
    dg_cuda *c = n_seg ? dg_cuda_begin(be) : NULL;
    if (!c) return;
    for (int32_t i = 0; i < n_seg; i++) {
        const dg_attn_seg *s = &seg[i];
        if (!s->n) continue;
        qkv_args a;
        a.q = static_cast<float *>(r->q.data), a.q_stride = r->q.stride;
        a.k = static_cast<const float *>(r->k.data), a.k_stride = r->k.stride;
        a.v = static_cast<const float *>(r->v.data), a.v_stride = r->v.stride;
        a.rope = static_cast<const float *>(r->rope.data), a.rope_stride = r->rope.stride;
        a.ck = s->k.data, a.cv = s->v.data, a.live = s->live;
        a.q_norm = r->q_norm.data, a.q_norm_dtype = r->q_norm.dtype;
        a.k_norm = r->k_norm.data, a.k_norm_dtype = r->k_norm.dtype;
        a.head_dim = r->head_dim, a.n_q = r->q.data ? r->q.cols / r->head_dim : 0, a.n_k = r->k.cols / r->head_dim;
        a.row0 = s->row0, a.n = s->n, a.len = s->len, a.before = s->win - s->n;
        a.eps = r->eps, a.interleaved = r->interleaved;
        DG_BY_FLOAT(s->k.dtype, launch_qkv, c, a);
    }
    dg_cuda_end(c, "qkv");
}

/* ---- activation ---- */

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
