/* Products of many rows of x by weights of f32, f16 and bf16: cuBLASLt, where the call is loose.
 *
 * The library multiplies 16-bit weights by activations of the same type, so x is split as the kernels of packed.cu split
 * it: in two halves, hi + lo, of which each makes a product, added up in f32 in place. bf16 halves hold 16 bits of x. f16
 * halves hold 22, in a window that two powers of two put where activations are: |x| below 2^24, and what is below 2^-28 is
 * lost. Nothing is allocated: descriptors lie on the stack, and the library's choice is kept by shape.
 *
 * The library reads column by column: out^T[m, n] = w^T's transpose[m, k] . x^T[k, n]. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "kernels/cuda/common.cuh"

enum {
    WORKSPACE = 32 << 20,
    ALIGNMENT = 16, /* the most that is promised: of two sessions' buffers more may hold for one alone, and the choice with it */
    SPLIT_THREADS = 256,
    PROBES = 16,
    MAX_PRODUCTS = 16
};

/* ---- opening ---- */

size_t dg_cuda_lt_bytes(int32_t max_cols) {
    return WORKSPACE + 2 * DG_LT_ROWS * static_cast<size_t>(max_cols > 0 ? max_cols : 1) * sizeof(uint16_t);
}

bool dg_cuda_lt_open(dg_cuda *c, const char *what) {
    char *place = NULL;
    if (!dg_cuda_ok(c, cudaMalloc(reinterpret_cast<void **>(&place), dg_cuda_lt_bytes(c->max_cols)), "cudaMalloc", what)) return false;
    c->lt.workspace = place, c->lt.halves = reinterpret_cast<uint16_t *>(place + WORKSPACE);
    if (cublasLtCreate(&c->lt.handle) != CUBLAS_STATUS_SUCCESS) c->lt.handle = NULL; /* then it is not used */
    return true;
}

void dg_cuda_lt_close(dg_cuda *c) {
    if (c->lt.handle) cublasLtDestroy(c->lt.handle);
    if (c->lt.workspace) cudaFree(c->lt.workspace);
}

/* ---- one product of the library ---- */

/* w and x of one type, out f32. */
typedef struct lt_product {
    const void *w, *x;
    float *out;
    const float *bias; /* NULL: none */
    float alpha, beta;
    dg_lt_shape shape;
} lt_product;

typedef struct lt_descriptors {
    cublasLtMatmulDescOpaque_t product;
    cublasLtMatrixLayoutOpaque_t w, x, out;
} lt_descriptors;

static bool describe(const lt_product *p, lt_descriptors *d) {
    const dg_lt_shape *s = &p->shape;
    const cudaDataType type = s->type == DG_F32 ? CUDA_R_32F : s->type == DG_F16 ? CUDA_R_16F : CUDA_R_16BF;
    const cublasOperation_t transposed = CUBLAS_OP_T;
    const cublasLtEpilogue_t epilogue = s->has_bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    const uint64_t m = static_cast<uint64_t>(s->m), n = static_cast<uint64_t>(s->n), k = static_cast<uint64_t>(s->k);
    return !cublasLtMatmulDescInit(&d->product, CUBLAS_COMPUTE_32F, CUDA_R_32F) &&
           !cublasLtMatmulDescSetAttribute(&d->product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed) &&
           !cublasLtMatmulDescSetAttribute(&d->product, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue) &&
           (!s->has_bias ||
            !cublasLtMatmulDescSetAttribute(&d->product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p->bias, sizeof p->bias)) &&
           !cublasLtMatrixLayoutInit(&d->w, type, k, m, s->w_stride) && !cublasLtMatrixLayoutInit(&d->x, type, k, n, s->x_stride) &&
           !cublasLtMatrixLayoutInit(&d->out, CUDA_R_32F, m, n, s->out_stride);
}

/* Asks the library how it would compute the shape, with the workspace there is. */
static bool choose(dg_cuda *c, lt_descriptors *d, const dg_lt_shape *s, cublasLtMatmulAlgo_t *algo) {
    cublasLtMatmulPreferenceOpaque_t wish;
    const uint64_t workspace = WORKSPACE;
    const uint32_t align[] = {s->w_align, s->x_align, s->out_align, s->out_align};
    bool ok = !cublasLtMatmulPreferenceInit(&wish) &&
              !cublasLtMatmulPreferenceSetAttribute(&wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);
    const cublasLtMatmulPreferenceAttributes_t of[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    for (int i = 0; i < 4 && ok; i++) ok = !cublasLtMatmulPreferenceSetAttribute(&wish, of[i], &align[i], sizeof align[i]);
    cublasLtMatmulHeuristicResult_t best;
    int found = 0;
    ok = ok && !cublasLtMatmulAlgoGetHeuristic(c->lt.handle, &d->product, &d->w, &d->x, &d->out, &d->out, &wish, 1, &best, &found) &&
         found > 0 && best.state == CUBLAS_STATUS_SUCCESS;
    if (ok) *algo = best.algo;
    return ok;
}

static uint32_t hash(const dg_lt_shape *s) {
    uint32_t word[sizeof *s / sizeof(uint32_t)], h = 2166136261u;
    memcpy(word, s, sizeof *s);
    for (uint32_t w : word) h = (h ^ w) * 16777619u;
    return h ^ h >> 15;
}

/* What the library computes the shape with; NULL: it does not. */
static const cublasLtMatmulAlgo_t *choice(dg_cuda *c, lt_descriptors *d, const dg_lt_shape *s) {
    const uint32_t first = hash(s);
    dg_lt_choice *to = &c->lt.choice[first % DG_LT_CHOICES]; /* what goes if all are taken */
    for (uint32_t i = 0; i < PROBES; i++) {
        dg_lt_choice *it = &c->lt.choice[(first + i) % DG_LT_CHOICES];
        if (it->shape.m && memcmp(&it->shape, s, sizeof *s) == 0) return it->refused ? NULL : &it->algo;
        if (it->shape.m) continue;
        to = it;
        break;
    }
    to->shape = *s;
    to->refused = !choose(c, d, s, &to->algo);
    return to->refused ? NULL : &to->algo;
}

/* Whether the library computes it; it is queued then. */
static bool multiply_lt(dg_cuda *c, const lt_product *p) {
    lt_descriptors d;
    const cublasLtMatmulAlgo_t *algo = describe(p, &d) ? choice(c, &d, &p->shape) : NULL;
    if (!algo) return false;
    const cublasStatus_t status =
        cublasLtMatmul(c->lt.handle, &d.product, &p->alpha, p->w, &d.w, p->x, &d.x, &p->beta, p->out, &d.out, p->out, &d.out,
                       algo, c->lt.workspace, WORKSPACE, c->stream);
    if (status != CUBLAS_STATUS_SUCCESS && !c->failed) {
        snprintf(c->error, sizeof c->error, "matmul [%d, %d] by [%d, %d]: cublasLtMatmul failed: %s", p->shape.n, p->shape.k,
                 p->shape.m, p->shape.k, cublasLtGetStatusName(status));
        c->failed = true;
    }
    return true;
}

/* ---- from products of the op table ---- */

static uint32_t alignment(const void *data, int64_t stride_bytes) {
    const uint64_t bits = reinterpret_cast<uint64_t>(data) | static_cast<uint64_t>(stride_bytes) | ALIGNMENT;
    return static_cast<uint32_t>(bits & -bits);
}

static lt_product product_of(dg_mat x, const dg_product *p, bool add) {
    lt_product l;
    memset(&l, 0, sizeof l); /* shapes are compared byte by byte */
    const int64_t size = p->w.dtype == DG_F32 ? 4 : 2;
    l.w = p->w.data, l.x = x.data, l.out = static_cast<float *>(p->out.data);
    l.alpha = 1, l.beta = add ? 1.0f : 0.0f;
    l.shape.m = p->w.rows, l.shape.n = x.rows, l.shape.k = x.cols, l.shape.type = p->w.dtype;
    l.shape.w_stride = p->w.stride, l.shape.x_stride = x.stride, l.shape.out_stride = p->out.stride;
    l.shape.w_align = alignment(l.w, size * p->w.stride), l.shape.x_align = alignment(l.x, size * x.stride);
    l.shape.out_align = alignment(l.out, 4 * p->out.stride);
    if (p->bias.data && p->bias.dtype == DG_F32 && alignment(p->bias.data, 0) == ALIGNMENT)
        l.bias = static_cast<const float *>(p->bias.data), l.shape.has_bias = true;
    return l;
}

/* out (+)= bias: of types that the library does not add to f32 results. */
static __global__ void bias_kernel(float *out, int64_t stride, const void *bias, int32_t dtype, int32_t m, bool add) {
    const int32_t o = blockIdx.x * SPLIT_THREADS + threadIdx.x;
    if (o >= m) return;
    float *to = out + blockIdx.y * stride + o;
    *to = (add ? *to : 0) + dg_load_any(bias, dtype, o);
}

/* hi[n, k] and lo[n, k] of x, see above. */
template <typename T>
static __global__ void halve_kernel(uint16_t *hi, uint16_t *lo, const float *x, int64_t stride, int32_t k, float scale, float rest) {
    const int32_t col = blockIdx.x * SPLIT_THREADS + threadIdx.x;
    if (col >= k) return;
    const float v = x[blockIdx.y * stride + col] * scale;
    const int64_t at = static_cast<int64_t>(blockIdx.y) * k + col;
    T high, low;
    dg_round(v, &high);
    dg_round((v - dg_to_f32(high)) * rest, &low);
    hi[at] = high.bits, lo[at] = low.bits;
}

static const float scale_f16 = 1.0f / 256, rest_f16 = 2048;

static void halve(dg_cuda *c, dg_mat x, dg_dtype type) {
    const dim3 grid(dg_ceil_div(x.cols, SPLIT_THREADS), x.rows), block(SPLIT_THREADS);
    const float *from = static_cast<const float *>(x.data);
    uint16_t *hi = c->lt.halves, *lo = hi + static_cast<size_t>(x.rows) * static_cast<size_t>(x.cols);
    if (type == DG_F16)
        DG_LAUNCH(halve_kernel<dg_half>, grid, block, 0, c->stream, hi, lo, from, x.stride, x.cols, scale_f16, rest_f16);
    else
        DG_LAUNCH(halve_kernel<dg_bfloat>, grid, block, 0, c->stream, hi, lo, from, x.stride, x.cols, 1.0f, 1.0f);
}

/* Adds the bias where the library does not; what is left is added onto out. */
static bool seed_bias(dg_cuda *c, const lt_product *l, const dg_product *p, bool add) {
    if (!p->bias.data || l->bias) return add;
    DG_LAUNCH(bias_kernel, dim3(dg_ceil_div(l->shape.m, SPLIT_THREADS), l->shape.n), dim3(SPLIT_THREADS), 0, c->stream, l->out,
              p->out.stride, p->bias.data, p->bias.dtype, l->shape.m, add);
    return true;
}

/* Whether the library would; asked before anything is written. */
static bool would(dg_cuda *c, const lt_product *l) {
    lt_descriptors d;
    return describe(l, &d) && choice(c, &d, &l->shape);
}

static void multiply_f32(dg_cuda *c, dg_mat x, const dg_product *p, bool add) {
    lt_product l = product_of(x, p, add);
    if (!would(c, &l)) {
        dg_cuda_multiply(c, x, p, 1, add);
        return;
    }
    l.beta = seed_bias(c, &l, p, add) ? 1.0f : 0.0f;
    multiply_lt(c, &l);
}

/* By the halves of x, which are there. */
static void multiply_halves(dg_cuda *c, dg_mat x, const dg_product *p, bool add) {
    const bool half = p->w.dtype == DG_F16, fine = !p->w.coarse && c->precision != DG_PRECISION_INT8;
    dg_mat hi = dg_mat_make(c->lt.halves, p->w.dtype, x.rows, x.cols);
    lt_product first = product_of(hi, p, add), second;
    dg_product onto = *p;
    onto.bias.data = NULL;
    hi.data = c->lt.halves + static_cast<size_t>(x.rows) * static_cast<size_t>(x.cols);
    second = product_of(hi, &onto, true);
    if (!would(c, &first) || (fine && !would(c, &second))) {
        dg_cuda_multiply(c, x, p, 1, add);
        return;
    }
    first.alpha = half ? 1 / scale_f16 : 1, second.alpha = half ? 1 / (scale_f16 * rest_f16) : 1;
    first.beta = seed_bias(c, &first, p, add) ? 1.0f : 0.0f;
    multiply_lt(c, &first);
    if (fine) multiply_lt(c, &second);
}

static bool is_halved(const dg_product *p, dg_dtype type) { return p->w.packed && p->w.dtype == type; }

void dg_cuda_matmul_lt(dg_cuda *c, dg_mat x, const dg_product *product, int32_t n, bool add) {
    dg_product other[MAX_PRODUCTS];
    int32_t n_other = 0;
    assert(n <= MAX_PRODUCTS);
    for (int32_t i = 0; i < n; i++) {
        if (product[i].w.dtype == DG_F32)
            multiply_f32(c, x, &product[i], add);
        else if (!is_halved(&product[i], DG_BF16) && !is_halved(&product[i], DG_F16))
            other[n_other++] = product[i];
    }
    const dg_dtype type[] = {DG_BF16, DG_F16};
    for (int t = 0; t < 2; t++)
        for (int32_t at = 0; at < x.rows; at += DG_LT_ROWS) {
            const int32_t most = DG_LT_ROWS, rows = x.rows - at < most ? x.rows - at : most;
            const dg_mat part = dg_mat_rows(x, at, rows);
            bool halved = false;
            for (int32_t i = 0; i < n; i++) {
                if (!is_halved(&product[i], type[t])) continue;
                if (!halved) halve(c, part, type[t]);
                halved = true;
                dg_product p = product[i];
                p.out = dg_mat_rows(p.out, at, rows);
                multiply_halves(c, part, &p, add);
            }
        }
    if (n_other) dg_cuda_multiply(c, x, other, n_other, add);
}
