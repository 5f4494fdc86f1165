/* cuBLASLt's matrix product as loops: out = alpha op(a) op(b) + beta c (+ bias), batches one after the other,
 * sums in f32 with k ascending. Refuses what the library refuses and dgraft could get wrong: shapes and types that do
 * not fit, rows or columns that overlap, memory that is not the device's, matrices that are less aligned than was
 * promised, another problem than the algorithm was chosen for, a workspace that is too small. */
#include <algorithm>
#include <cstring>
#include <vector>
#include "include/cublasLt.h"
#include "include/cuda_bf16.h"
#include "include/cuda_fp16.h"
#include "internal.h"
#include "sim.h"

struct dgsim_blas {
    int unused;
};
struct dgsim_matmul {
    cublasComputeType_t compute;
    cublasOperation_t transa, transb;
    cublasLtEpilogue_t epilogue;
    const void *bias;
    int32_t bias_type; /* -1: that of the result */
};
struct dgsim_layout {
    cudaDataType type;
    uint64_t rows, cols;
    int64_t ld;
    int32_t order, batch;
    int64_t batch_offset;
    size_t bytes() const { return type == CUDA_R_32F ? 4 : 2; }
    uint64_t lines() const { return order == CUBLASLT_ORDER_ROW ? rows : cols; }
    uint64_t line() const { return order == CUBLASLT_ORDER_ROW ? cols : rows; }
    size_t at(uint64_t r, uint64_t c) const {
        return static_cast<size_t>(order == CUBLASLT_ORDER_ROW ? r * static_cast<uint64_t>(ld) + c
                                                               : c * static_cast<uint64_t>(ld) + r);
    }
};
struct dgsim_preference {
    uint64_t workspace;
    uint32_t align[4];
};
/* What a choice holds: the problem that it is for, what it needs of a, b, c and out, bytes of workspace. */
struct dgsim_algo {
    uint64_t problem;
    uint32_t align[4];
    uint64_t workspace;
};

/* The caller's space as what lies in it. */
static_assert(sizeof(dgsim_matmul) <= sizeof(cublasLtMatmulDescOpaque_t) &&
              sizeof(dgsim_layout) <= sizeof(cublasLtMatrixLayoutOpaque_t) &&
              sizeof(dgsim_preference) <= sizeof(cublasLtMatmulPreferenceOpaque_t) &&
              sizeof(dgsim_algo) <= sizeof(cublasLtMatmulAlgo_t), "it must fit");
static dgsim_matmul *in(cublasLtMatmulDesc_t d) { return reinterpret_cast<dgsim_matmul *>(d); }
static dgsim_layout *in(cublasLtMatrixLayout_t l) { return reinterpret_cast<dgsim_layout *>(l); }
static dgsim_preference *in(cublasLtMatmulPreference_t p) { return reinterpret_cast<dgsim_preference *>(p); }

static float load(const void *p, int type, size_t i) {
    if (type == CUDA_R_32F) return static_cast<const float *>(p)[i];
    const unsigned short bits = static_cast<const unsigned short *>(p)[i];
    return type == CUDA_R_16F ? __half2float(__ushort_as_half(bits))
                              : __bfloat162float(__ushort_as_bfloat16(bits));
}

static void store(void *p, int type, size_t i, float x) {
    if (type == CUDA_R_32F)
        static_cast<float *>(p)[i] = x;
    else
        static_cast<unsigned short *>(p)[i] = type == CUDA_R_16F ? __half_as_ushort(__float2half(x))
                                                                 : __bfloat16_as_ushort(__float2bfloat16(x));
}

/* op(m) as f32, row by row (or column by column: transposed once more) */
static std::vector<float> widened(const char *p, const dgsim_layout &l, bool transposed, bool by_column) {
    const uint64_t rows = transposed ? l.cols : l.rows, cols = transposed ? l.rows : l.cols;
    std::vector<float> out(rows * cols);
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t c = 0; c < cols; c++)
            out[by_column ? c * rows + r : r * cols + c] =
                load(p, l.type, transposed ? l.at(c, r) : l.at(r, c));
    return out;
}

struct product {
    dgsim_matmul d;
    dgsim_layout a, b, c, out;
    const void *pa, *pb, *pc;
    void *pout;
    float alpha, beta;
};

static void multiply(const product &p) {
    const bool ta = p.d.transa == CUBLAS_OP_T, tb = p.d.transb == CUBLAS_OP_T;
    const uint64_t m = p.out.rows, n = p.out.cols, k = ta ? p.a.rows : p.a.cols;
    for (int32_t batch = 0; batch < p.out.batch; batch++) {
        auto start = [&](const void *base, const dgsim_layout &l) {
            return static_cast<char *>(const_cast<void *>(base)) +
                   batch * l.batch_offset * static_cast<int64_t>(l.bytes());
        };
        const std::vector<float> a = widened(start(p.pa, p.a), p.a, ta, false),
                                 b = widened(start(p.pb, p.b), p.b, tb, true);
        for (uint64_t i = 0; i < m; i++)
            for (uint64_t j = 0; j < n; j++) {
                float sum = 0;
                for (uint64_t l = 0; l < k; l++) sum += a[i * k + l] * b[j * k + l];
                sum *= p.alpha;
                if (p.beta != 0) sum += p.beta * load(start(p.pc, p.c), p.c.type, p.c.at(i, j));
                if (p.d.epilogue == CUBLASLT_EPILOGUE_BIAS) sum += load(p.d.bias, p.d.bias_type, i);
                store(start(p.pout, p.out), p.out.type, p.out.at(i, j), sum);
            }
    }
}

/* --- the interface --- */

extern "C" {

size_t cublasLtGetVersion(void) {
    return 120400;
}

const char *cublasLtGetStatusName(cublasStatus_t s) {
    return s == CUBLAS_STATUS_SUCCESS         ? "CUBLAS_STATUS_SUCCESS"
           : s == CUBLAS_STATUS_ALLOC_FAILED  ? "CUBLAS_STATUS_ALLOC_FAILED"
           : s == CUBLAS_STATUS_INVALID_VALUE ? "CUBLAS_STATUS_INVALID_VALUE"
           : s == CUBLAS_STATUS_NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED"
                                              : "CUBLAS_STATUS_INTERNAL_ERROR";
}

const char *cublasLtGetStatusString(cublasStatus_t s) {
    return cublasLtGetStatusName(s);
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *h) {
    *h = new dgsim_blas{0};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t h) {
    delete h;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescInit(cublasLtMatmulDesc_t d, cublasComputeType_t compute, cudaDataType scale) {
    if (scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
    *in(d) = dgsim_matmul{compute, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, nullptr, -1};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *d, cublasComputeType_t compute,
                                        cudaDataType scale) {
    *d = new cublasLtMatmulDescOpaque_t;
    return cublasLtMatmulDescInit(*d, compute, scale);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t attr,
                                              const void *value, size_t bytes) {
    dgsim_matmul *m = in(d);
    void *to = attr == CUBLASLT_MATMUL_DESC_TRANSA         ? static_cast<void *>(&m->transa)
               : attr == CUBLASLT_MATMUL_DESC_TRANSB       ? static_cast<void *>(&m->transb)
               : attr == CUBLASLT_MATMUL_DESC_EPILOGUE     ? static_cast<void *>(&m->epilogue)
               : attr == CUBLASLT_MATMUL_DESC_BIAS_POINTER ? static_cast<void *>(&m->bias)
                                                           : static_cast<void *>(&m->bias_type);
    if (bytes != (attr == CUBLASLT_MATMUL_DESC_BIAS_POINTER ? sizeof(void *) : sizeof(int32_t)))
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) {
    delete d;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutInit(cublasLtMatrixLayout_t l, cudaDataType type, uint64_t rows, uint64_t cols,
                                        int64_t ld) {
    if (type != CUDA_R_32F && type != CUDA_R_16F && type != CUDA_R_16BF) return CUBLAS_STATUS_NOT_SUPPORTED;
    *in(l) = dgsim_layout{type, rows, cols, ld, CUBLASLT_ORDER_COL, 1, 0};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *l, cudaDataType type, uint64_t rows,
                                          uint64_t cols, int64_t ld) {
    *l = new cublasLtMatrixLayoutOpaque_t;
    return cublasLtMatrixLayoutInit(*l, type, rows, cols, ld);
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l,
                                                cublasLtMatrixLayoutAttribute_t attr, const void *value,
                                                size_t bytes) {
    dgsim_layout *m = in(l);
    void *to = attr == CUBLASLT_MATRIX_LAYOUT_ORDER         ? static_cast<void *>(&m->order)
               : attr == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT ? static_cast<void *>(&m->batch)
                                                            : static_cast<void *>(&m->batch_offset);
    if (bytes != (attr == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET ? sizeof(int64_t) : sizeof(int32_t)))
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l) {
    delete l;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceInit(cublasLtMatmulPreference_t p) {
    *in(p) = dgsim_preference{0, {256, 256, 256, 256}};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *p) {
    *p = new cublasLtMatmulPreferenceOpaque_t;
    return cublasLtMatmulPreferenceInit(*p);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t attr, const void *value,
                                                    size_t bytes) {
    const bool space = attr == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
    if (bytes != (space ? sizeof(uint64_t) : sizeof(uint32_t))) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(space ? static_cast<void *>(&in(p)->workspace) : &in(p)->align[attr - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES],
           value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) {
    delete p;
    return CUBLAS_STATUS_SUCCESS;
}

} /* extern "C" */

/* --- checks --- */

static cublasStatus_t check_shapes(const dgsim_matmul &d, const dgsim_layout &a, const dgsim_layout &b,
                                   const dgsim_layout &c, const dgsim_layout &out) {
    const bool ta = d.transa == CUBLAS_OP_T, tb = d.transb == CUBLAS_OP_T;
    const uint64_t m = ta ? a.cols : a.rows, k = ta ? a.rows : a.cols, k2 = tb ? b.cols : b.rows,
                   n = tb ? b.rows : b.cols;
    if (k != k2 || out.rows != m || out.cols != n || c.rows != m || c.cols != n || !m || !n || !k)
        return CUBLAS_STATUS_INVALID_VALUE;
    for (const dgsim_layout *l : {&a, &b, &c, &out})
        if (l->ld < static_cast<int64_t>(l->line()) || l->batch != out.batch)
            return CUBLAS_STATUS_INVALID_VALUE;
    if (a.type != b.type || c.type != out.type || (out.type != a.type && out.type != CUDA_R_32F))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (d.compute == CUBLAS_COMPUTE_32F_FAST_TF32 && a.type != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (d.epilogue == CUBLASLT_EPILOGUE_BIAS && d.bias_type >= 0 && d.bias_type != out.type) return CUBLAS_STATUS_NOT_SUPPORTED;
    return CUBLAS_STATUS_SUCCESS;
}

/* The problem in a number: what is chosen for one is not for another. */
static uint64_t problem_of(const dgsim_matmul &d, const dgsim_layout &a, const dgsim_layout &b, const dgsim_layout &out) {
    uint64_t h = 14695981039346656037u;
    auto mix = [&h](int64_t v) { h = (h ^ static_cast<uint64_t>(v)) * 1099511628211u; };
    mix(d.compute), mix(d.transa), mix(d.transb), mix(d.epilogue);
    for (const dgsim_layout *l : {&a, &b, &out})
        mix(l->type), mix(static_cast<int64_t>(l->rows)), mix(static_cast<int64_t>(l->cols)), mix(l->ld), mix(l->order), mix(l->batch);
    return h;
}

/* A matrix must lie within one allocation of the device and be aligned to its elements, as the loops read it, and to
 * what the algorithm needs. */
static bool on_device(const void *p, const dgsim_layout &l, uint32_t align) {
    const char *start = static_cast<const char *>(p);
    const dgsim_block *b = dgsim_find(p);
    const uint64_t last = (l.lines() - 1) * static_cast<uint64_t>(l.ld) + l.line() +
                          static_cast<uint64_t>((l.batch - 1) * l.batch_offset);
    return b && b->live && start >= b->start && start + last * l.bytes() <= b->start + b->bytes &&
           reinterpret_cast<uintptr_t>(p) % l.bytes() == 0 && reinterpret_cast<uintptr_t>(p) % align == 0;
}

static bool bytes_on_device(const void *p, size_t bytes) {
    const char *start = static_cast<const char *>(p);
    const dgsim_block *b = dgsim_find(p);
    return b && b->live && start >= b->start && start + bytes <= b->start + b->bytes;
}

/* An algorithm that loads as much at a time as columns allow, up to 16 bytes; a workspace as if sums were split. */
extern "C" cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t d,
                                                         cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                                         cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t out,
                                                         cublasLtMatmulPreference_t wish, int wanted,
                                                         cublasLtMatmulHeuristicResult_t *results,
                                                         int *found) {
    *found = 0;
    const cublasStatus_t s = check_shapes(*in(d), *in(a), *in(b), *in(c), *in(out));
    if (s) return s;
    if (wanted < 1) return CUBLAS_STATUS_INVALID_VALUE;
    if (dgsim.no_blas) return CUBLAS_STATUS_NOT_SUPPORTED;
    const dgsim_layout *const layout[] = {in(a), in(b), in(c), in(out)};
    dgsim_algo algo = {problem_of(*in(d), *in(a), *in(b), *in(out)), {}, 0};
    for (int i = 0; i < 4; i++) {
        const uint64_t bits = static_cast<uint64_t>(layout[i]->ld) * layout[i]->bytes() | in(wish)->align[i] | 16;
        algo.align[i] = static_cast<uint32_t>(bits & (~bits + 1));
    }
    algo.workspace = std::min(in(wish)->workspace, in(out)->rows * in(out)->cols * sizeof(float));
    results[0] = {};
    memcpy(&results[0].algo, &algo, sizeof algo);
    results[0].workspaceSize = algo.workspace;
    results[0].wavesCount = 1;
    *found = 1;
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t refuse(const char *why) {
    fprintf(stderr, "cudasim: cublasLtMatmul: %s\n", why);
    return CUBLAS_STATUS_INVALID_VALUE;
}

/* Everything that a product is checked for but its shapes. */
static cublasStatus_t check_memory(const product &p, const dgsim_algo &algo, const void *workspace, size_t bytes) {
    const std::lock_guard<std::recursive_mutex> guard(dgsim_mutex);
    if (!on_device(p.pa, p.a, algo.align[0]) || !on_device(p.pb, p.b, algo.align[1]) ||
        !on_device(p.pout, p.out, algo.align[3]) || (p.beta != 0 && !on_device(p.pc, p.c, algo.align[2])))
        return refuse("a matrix is not aligned as was promised, or does not lie in device memory");
    if (p.d.epilogue == CUBLASLT_EPILOGUE_BIAS && !bytes_on_device(p.d.bias, p.out.rows * (p.d.bias_type == CUDA_R_32F ? 4 : 2)))
        return refuse("the bias does not lie in device memory");
    if (algo.workspace && (bytes < algo.workspace || !bytes_on_device(workspace, bytes) || reinterpret_cast<uintptr_t>(workspace) % 16))
        return refuse("the workspace is too small, not aligned, or not in device memory");
    return CUBLAS_STATUS_SUCCESS;
}

extern "C" cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t d, const void *alpha,
                                         const void *a, cublasLtMatrixLayout_t la, const void *b,
                                         cublasLtMatrixLayout_t lb, const void *beta, const void *c,
                                         cublasLtMatrixLayout_t lc, void *out, cublasLtMatrixLayout_t lout,
                                         const cublasLtMatmulAlgo_t *chosen, void *workspace, size_t workspace_bytes,
                                         cudaStream_t s) {
    cublasStatus_t status = check_shapes(*in(d), *in(la), *in(lb), *in(lc), *in(lout));
    if (status) return status;
    product p = {*in(d), *in(la), *in(lb), *in(lc), *in(lout), a, b, c, out, 0, 0};
    memcpy(&p.alpha, alpha, sizeof p.alpha);
    memcpy(&p.beta, beta, sizeof p.beta);
    if (p.d.bias_type < 0) p.d.bias_type = p.out.type;
    dgsim_algo algo = {0, {1, 1, 1, 1}, 0};
    if (chosen) {
        memcpy(&algo, chosen, sizeof algo);
        if (algo.problem != problem_of(p.d, p.a, p.b, p.out)) return refuse("the algorithm was chosen for another problem");
    }
    status = check_memory(p, algo, workspace, workspace_bytes);
    if (status) return status;
    return dgsim_push(s, [p, algo, workspace] {
               if (algo.workspace) memset(workspace, 0xff, algo.workspace); /* nothing of anyone else's may lie there */
               multiply(p);
           })
               ? CUBLAS_STATUS_EXECUTION_FAILED
               : CUBLAS_STATUS_SUCCESS;
}
