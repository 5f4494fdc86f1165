/* Ops that move rows: copies, embedding lookup, the caches, the successor matrix.
 *
 * A cache is stored as it is described: row after row, a row's heads side by side. A head's row is 128 bytes or more, so
 * that every layout reads whole cache lines, and a row that is put or moved is one piece. */
#include "kernels/cuda/decode.cuh"

extern "C" {
#include "kernels/quant.h"
}

enum { THREADS = 128 };

static size_t row_bytes(dg_mat m) { return dg_dtype_bytes(m.dtype, static_cast<size_t>(m.cols)); }
static size_t stride_bytes(dg_mat m) { return dg_dtype_bytes(m.dtype, static_cast<size_t>(m.stride)); }
static const uint8_t *bytes_of(dg_mat m) { return static_cast<const uint8_t *>(m.data); }

/* ---- whole matrices ---- */

void dg_cuda_copy2d(dg_backend *be, dg_mat dst, dg_mat src) {
    dg_cuda *c = dst.rows && dst.cols ? dg_cuda_begin(be) : NULL;
    if (!c) return;
    dg_cuda_ok(c, cudaMemcpy2DAsync(dst.data, stride_bytes(dst), src.data, stride_bytes(src), row_bytes(dst),
                                    static_cast<size_t>(dst.rows), cudaMemcpyDeviceToDevice, c->stream),
               "cudaMemcpy2DAsync", "copy2d");
    dg_cuda_end(c, "copy2d");
}

void dg_cuda_zero(dg_backend *be, dg_mat dst) {
    dg_cuda *c = dst.rows && dst.cols ? dg_cuda_begin(be) : NULL;
    if (!c) return;
    if (dst.stride == dst.cols)
        dg_cuda_ok(c, cudaMemsetAsync(dst.data, 0, row_bytes(dst) * static_cast<size_t>(dst.rows), c->stream),
                   "cudaMemsetAsync", "zero");
    else
        dg_cuda_ok(c, cudaMemset2DAsync(dst.data, stride_bytes(dst), 0, row_bytes(dst), static_cast<size_t>(dst.rows),
                                        c->stream),
                   "cudaMemset2DAsync", "zero");
    dg_cuda_end(c, "zero");
}

/* ---- embedding ---- */

static __global__ void embed_plain_kernel(float *out, int64_t out_stride, const uint8_t *table, int64_t table_bytes,
                                          int32_t dtype, const int32_t *id, int32_t d) {
    const int32_t row = blockIdx.x, k = blockIdx.y * THREADS + threadIdx.x;
    if (k < d) out[row * out_stride + k] = dg_plain_at(dtype, table + id[row] * table_bytes, k);
}

static __global__ void embed_kernel(float *out, int64_t out_stride, const uint8_t *table, int64_t table_bytes, int32_t dtype,
                                    const int32_t *id, int32_t d) {
    const int32_t row = blockIdx.x, k = 8 * (blockIdx.y * THREADS + threadIdx.x);
    if (k >= d) return;
    float y[8];
    dg_decode8(dtype, table + id[row] * table_bytes, k, y);
    for (int e = 0; e < 8; e++) out[row * out_stride + k + e] = y[e];
}

void dg_cuda_embed(dg_backend *be, dg_mat out, dg_mat table, const int32_t *id) {
    dg_cuda *c = out.rows && out.cols ? dg_cuda_begin(be) : NULL;
    if (!c) return;
    const bool quantised = dg_is_quantised(table.dtype);
    const dim3 grid(out.rows, dg_ceil_div(quantised ? out.cols / 8 : out.cols, THREADS));
    const int64_t bytes = static_cast<int64_t>(stride_bytes(table));
    float *to = static_cast<float *>(out.data);
    const int32_t dtype = table.dtype;
    if (quantised)
        DG_LAUNCH(embed_kernel, grid, dim3(THREADS), 0, c->stream, to, out.stride, bytes_of(table), bytes, dtype, id, out.cols);
    else
        DG_LAUNCH(embed_plain_kernel, grid, dim3(THREADS), 0, c->stream, to, out.stride, bytes_of(table), bytes, dtype, id,
                  out.cols);
    dg_cuda_end(c, "embed");
}

/* ---- rows of activations ---- */

template <typename T>
static __global__ void rows_put_kernel(T *dst, int64_t dst_stride, int32_t dst_rows, const int32_t *row0, const float *src,
                                       int64_t src_stride, int32_t d) {
    const int64_t row = blockIdx.x, to = *row0 + row;
    const int32_t k = blockIdx.y * THREADS + threadIdx.x;
    if (k < d && to < dst_rows) dg_round(src[row * src_stride + k], &dst[to * dst_stride + k]);
}

template <typename T> static void rows_put(dg_cuda *c, dg_mat dst, const int32_t *row0, dg_mat src) {
    DG_LAUNCH(rows_put_kernel<T>, dim3(src.rows, dg_ceil_div(src.cols, THREADS)), dim3(THREADS), 0, c->stream,
              static_cast<T *>(dst.data), dst.stride, dst.rows, row0, static_cast<const float *>(src.data), src.stride,
              src.cols);
}

void dg_cuda_rows_put(dg_backend *be, dg_mat dst, const int32_t *row0, dg_mat src) {
    dg_cuda *c = src.rows && src.cols ? dg_cuda_begin(be) : NULL;
    if (!c) return;
    DG_BY_FLOAT(dst.dtype, rows_put, c, dst, row0, src);
    dg_cuda_end(c, "rows_put");
}

/* n rows; in_place: a thread owns a column and goes down the rows, which lets them move up within one matrix. */
template <typename T>
static __global__ void gather_kernel(T *dst, int64_t dst_stride, const T *src, int64_t src_stride, const int32_t *idx,
                                     int32_t n, int32_t cols, bool in_place) {
    const int32_t k = blockIdx.x * THREADS + threadIdx.x, first = in_place ? 0 : blockIdx.y, end = in_place ? n : first + 1;
    if (k >= cols) return;
    for (int64_t row = first; row < end; row++) dst[row * dst_stride + k] = src[idx[row] * src_stride + k];
}

template <typename T> static void gather(dg_cuda *c, dg_mat dst, dg_mat src, const int32_t *idx) {
    const int64_t size = sizeof(T), to = static_cast<int64_t>(stride_bytes(dst)), from = static_cast<int64_t>(stride_bytes(src));
    const int32_t cols = static_cast<int32_t>(row_bytes(dst) / sizeof(T));
    const bool in_place = dst.data == src.data;
    DG_LAUNCH(gather_kernel<T>, dim3(dg_ceil_div(cols, THREADS), in_place ? 1 : dst.rows), dim3(THREADS), 0, c->stream,
              static_cast<T *>(dst.data), to / size, static_cast<const T *>(src.data), from / size, idx, dst.rows, cols,
              in_place);
}

/* Whether rows are made of pieces of so many bytes. */
static bool in_pieces(dg_mat m, size_t bytes) {
    return (reinterpret_cast<uintptr_t>(m.data) | stride_bytes(m) | row_bytes(m)) % bytes == 0;
}

void dg_cuda_rows_gather(dg_backend *be, dg_mat dst, dg_mat src, const int32_t *idx) {
    dg_cuda *c = dst.rows && dst.cols ? dg_cuda_begin(be) : NULL;
    if (!c) return;
    if (in_pieces(dst, 4) && in_pieces(src, 4))
        gather<uint32_t>(c, dst, src, idx);
    else if (in_pieces(dst, 2) && in_pieces(src, 2))
        gather<uint16_t>(c, dst, src, idx);
    else
        gather<uint8_t>(c, dst, src, idx);
    dg_cuda_end(c, "rows_gather");
}

/* ---- caches ---- */

/* blockIdx.z: K or V, in all kernels of this part. */

enum { MOVED_LAYERS = 64 }; /* of one launch */

/* Row row0 of the caches of some layers. */
typedef struct moved_rows {
    void *m[2][MOVED_LAYERS];
} moved_rows;

/* A thread owns a column of one cache. */
template <typename T> static __global__ void kv_move_kernel(moved_rows r, const int32_t *idx, int32_t n, int32_t cols) {
    const int32_t i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= cols) return;
    T *m = static_cast<T *>(r.m[blockIdx.z][blockIdx.y]);
    for (int64_t row = 0; row < n; row++) m[row * cols + i] = m[static_cast<int64_t>(idx[row]) * cols + i];
}

template <typename T>
static void kv_move(dg_cuda *c, const moved_rows &r, int32_t n_layer, const int32_t *idx, int32_t n, int32_t cols) {
    DG_LAUNCH(kv_move_kernel<T>, dim3(dg_ceil_div(cols, THREADS), n_layer, 2), dim3(THREADS), 0, c->stream, r, idx, n, cols);
}

void dg_cuda_kv_move(dg_backend *be, const dg_mat *ck, const dg_mat *cv, int32_t n_layer, int32_t row0, const int32_t *idx,
                     int32_t n, int32_t) {
    dg_cuda *c = n && n_layer && ck->cols ? dg_cuda_begin(be) : NULL;
    if (!c) return;
    for (int32_t at = 0; at < n_layer; at += MOVED_LAYERS) {
        const int32_t most = MOVED_LAYERS, layers = n_layer - at < most ? n_layer - at : most;
        moved_rows r;
        for (int32_t l = 0; l < layers; l++)
            r.m[0][l] = dg_mat_row(&ck[at + l], row0), r.m[1][l] = dg_mat_row(&cv[at + l], row0);
        DG_BY_FLOAT(ck->dtype, kv_move, c, r, layers, idx, n, ck->cols);
    }
    dg_cuda_end(c, "kv_move");
}

template <typename T>
static __global__ void kv_get_kernel(float *k, int64_t k_stride, float *v, int64_t v_stride, const T *ck, const T *cv,
                                     int32_t cols) {
    const int64_t row = blockIdx.x;
    const int32_t i = blockIdx.y * THREADS + threadIdx.x;
    if (i >= cols) return;
    if (blockIdx.z)
        v[row * v_stride + i] = dg_to_f32(cv[row * cols + i]);
    else
        k[row * k_stride + i] = dg_to_f32(ck[row * cols + i]);
}

template <typename T> static void kv_get(dg_cuda *c, dg_mat k, dg_mat v, dg_mat ck, dg_mat cv) {
    DG_LAUNCH(kv_get_kernel<T>, dim3(k.rows, dg_ceil_div(k.cols, THREADS), 2), dim3(THREADS), 0, c->stream,
              static_cast<float *>(k.data), k.stride, static_cast<float *>(v.data), v.stride,
              static_cast<const T *>(ck.data), static_cast<const T *>(cv.data), k.cols);
}

void dg_cuda_kv_get(dg_backend *be, dg_mat k, dg_mat v, dg_mat ck, dg_mat cv, int32_t row0, int32_t) {
    dg_cuda *c = k.rows && k.cols ? dg_cuda_begin(be) : NULL;
    if (!c) return;
    DG_BY_FLOAT(ck.dtype, kv_get, c, k, v, dg_mat_rows(ck, row0, k.rows), dg_mat_rows(cv, row0, k.rows));
    dg_cuda_end(c, "kv_get");
}

/* ---- the successor matrix ---- */

/* A block a row: it writes unless another row of its token goes before it. */
static __global__ void succ_update_kernel(int32_t *m, int64_t m_stride, int32_t vocab, const int32_t *token, const int32_t *id,
                                          int64_t id_stride, const int32_t *prio, int32_t n, int32_t width) {
    __shared__ int outranked;
    const int32_t i = blockIdx.x, t = token[i], p = prio[i];
    if (t < 0 || t >= vocab) return;
    if (threadIdx.x == 0) outranked = 0;
    __syncthreads();
    bool behind = false;
    for (int32_t j = threadIdx.x; j < n; j += blockDim.x)
        behind |= token[j] == t && (prio[j] > p || (prio[j] == p && j > i));
    if (behind) atomicOr(&outranked, 1);
    __syncthreads();
    if (outranked) return;
    for (int32_t k = threadIdx.x; k < width; k += blockDim.x) m[t * m_stride + k] = id[i * id_stride + k];
}

void dg_cuda_succ_update(dg_backend *be, dg_mat m, const int32_t *token, dg_mat id, const int32_t *prio) {
    dg_cuda *c = id.rows ? dg_cuda_begin(be) : NULL;
    if (!c) return;
    DG_LAUNCH(succ_update_kernel, dim3(id.rows), dim3(DG_WARP), 0, c->stream, static_cast<int32_t *>(m.data), m.stride, m.rows,
              token, static_cast<const int32_t *>(id.data), id.stride, prio, id.rows, id.cols);
    dg_cuda_end(c, "succ_update");
}

/* One block: a node waits until its parent, which comes before it, is known. `level` goes down the tree; a node's own
 * level is one behind its parent's. */
static __global__ void succ_expand_kernel(int32_t *id, const int32_t *m, int64_t stride, int32_t vocab, const int32_t *parent,
                                          const int32_t *rank, int32_t n_root, int32_t n) {
    DG_DYN_SHARED(int32_t, node); /* [n] what is known, and [n] whether it is */
    int32_t *known = node + n;
    for (int32_t i = threadIdx.x; i < n; i += blockDim.x) {
        known[i] = i < n_root;
        node[i] = i < n_root ? id[i] : -1;
    }
    __shared__ int open;
    do {
        __syncthreads();
        if (threadIdx.x == 0) open = 0;
        __syncthreads();
        for (int32_t base = n_root; base < n; base += blockDim.x) {
            const int32_t i = base + threadIdx.x;
            const bool ready = i < n && !known[i] && known[parent[i]];
            int32_t to = -1;
            if (ready) {
                const int32_t from = node[parent[i]];
                to = from >= 0 && from < vocab ? m[from * stride + rank[i]] : -1;
            }
            if (i < n && !known[i] && !ready) atomicOr(&open, 1);
            __syncthreads();
            if (ready) known[i] = 1, node[i] = to >= 0 && to < vocab ? to : -1;
            __syncthreads();
        }
    } while (open);
    for (int32_t i = n_root + threadIdx.x; i < n; i += blockDim.x) id[i] = node[i];
}

void dg_cuda_succ_expand(dg_backend *be, int32_t *id, dg_mat m, const int32_t *parent, const int32_t *rank, int32_t n_root,
                         int32_t n) {
    dg_cuda *c = n > n_root ? dg_cuda_begin(be) : NULL;
    if (!c) return;
    DG_LAUNCH(succ_expand_kernel, dim3(1), dim3(256), 2 * sizeof(int32_t) * static_cast<size_t>(n), c->stream, id,
              static_cast<const int32_t *>(m.data), m.stride, m.rows, parent, rank, n_root, n);
    dg_cuda_end(c, "succ_expand");
}
