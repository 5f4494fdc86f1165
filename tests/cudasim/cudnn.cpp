/* cuDNN's graph interface for the graphs that kernels/cuda/sdpa_cudnn.c makes. As a rule the simulated device has no cuDNN,
 * and cudnnCreate refuses. With dgsim.cudnn the graph is computed, an operation after the other, in f32 and rounded to the
 * tensors' types: what the graph says is tested then, not what the library makes of it. */
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "include/cuda_bf16.h"
#include "include/cuda_fp16.h"
#include "include/cudnn.h"
#include "internal.h"
#include "sim.h"

struct dgsim_cudnn {
    cudaStream_t stream;
};

namespace {

struct node {
    cudnnBackendDescriptorType_t type;
    bool final;
    std::map<int, std::vector<char>> attr;
    template <typename T> T get(int name, size_t i = 0) const {
        T v{};
        const auto at = attr.find(name);
        if (at != attr.end() && (i + 1) * sizeof v <= at->second.size()) memcpy(&v, at->second.data() + i * sizeof v, sizeof v);
        return v;
    }
    template <typename T> size_t count(int name) const {
        const auto at = attr.find(name);
        return at == attr.end() ? 0 : at->second.size() / sizeof(T);
    }
    const node *to(int name, size_t i = 0) const { return get<const node *>(name, i); }
};

/* A tensor's elements in the order of its dimensions. */
using values = std::vector<float>;

struct run {
    std::map<const node *, values> done;
    std::map<int64_t, std::vector<char>> scalar; /* copied when the graph is queued */
    std::map<int64_t, char *> memory;
};

} // namespace

static const node *in(cudnnBackendDescriptor_t d) { return static_cast<const node *>(d); }

static int64_t dim(const node *t, size_t i) { return t->get<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS, i); }
static int64_t elements(const node *t) { return dim(t, 0) * dim(t, 1) * dim(t, 2) * dim(t, 3); }
static cudnnDataType_t type_of(const node *t) { return t->get<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE); }
static size_t size_of(cudnnDataType_t t) { return t == CUDNN_DATA_HALF || t == CUDNN_DATA_BFLOAT16 ? 2 : 4; }

static float rounded(float x, cudnnDataType_t t) {
    if (t == CUDNN_DATA_HALF) return __half2float(__float2half(x));
    return t == CUDNN_DATA_BFLOAT16 ? __bfloat162float(__float2bfloat16(x)) : x;
}

static float load(const char *p, cudnnDataType_t t) {
    unsigned short bits;
    int32_t whole;
    float x;
    memcpy(&bits, p, sizeof bits);
    if (t == CUDNN_DATA_HALF) return __half2float(__ushort_as_half(bits));
    if (t == CUDNN_DATA_BFLOAT16) return __bfloat162float(__ushort_as_bfloat16(bits));
    memcpy(&whole, p, sizeof whole);
    memcpy(&x, p, sizeof x);
    return t == CUDNN_DATA_INT32 ? static_cast<float>(whole) : x;
}

/* Calls f(index, offset in elements) for every element. */
template <typename F> static void each(const node *t, F f) {
    size_t i = 0;
    int64_t at[4], step[4];
    for (size_t d = 0; d < 4; d++) step[d] = t->get<int64_t>(CUDNN_ATTR_TENSOR_STRIDES, d);
    for (at[0] = 0; at[0] < dim(t, 0); at[0]++)
        for (at[1] = 0; at[1] < dim(t, 1); at[1]++)
            for (at[2] = 0; at[2] < dim(t, 2); at[2]++)
                for (at[3] = 0; at[3] < dim(t, 3); at[3]++)
                    f(i++, at[0] * step[0] + at[1] * step[1] + at[2] * step[2] + at[3] * step[3]);
}

static const values &read(run &r, const node *t) {
    const auto have = r.done.find(t);
    if (have != r.done.end()) return have->second;
    values &v = r.done[t];
    const int64_t id = t->get<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID);
    const cudnnDataType_t type = type_of(t);
    if (t->get<bool>(CUDNN_ATTR_TENSOR_IS_BY_VALUE)) {
        v.assign(1, load(r.scalar[id].data(), type));
    } else {
        v.resize(static_cast<size_t>(elements(t)));
        const char *from = r.memory[id];
        each(t, [&](size_t i, int64_t at) { v[i] = load(from + at * static_cast<int64_t>(size_of(type)), type); });
    }
    return v;
}

/* Keeps a result, and stores it if it lies in memory. */
static void write(run &r, const node *t, values v) {
    const cudnnDataType_t type = type_of(t);
    for (float &x : v) x = rounded(x, type);
    if (!t->get<bool>(CUDNN_ATTR_TENSOR_IS_VIRTUAL)) {
        char *to = r.memory[t->get<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID)];
        each(t, [&](size_t i, int64_t at) {
            const unsigned short bits = type == CUDNN_DATA_HALF ? __half_as_ushort(__float2half(v[i]))
                                                                : __bfloat16_as_ushort(__float2bfloat16(v[i]));
            memcpy(to + at * 2, &bits, sizeof bits);
        });
    }
    r.done[t] = std::move(v);
}

static void matmul(run &r, const node *op) {
    const node *a = op->to(CUDNN_ATTR_OPERATION_MATMUL_ADESC), *b = op->to(CUDNN_ATTR_OPERATION_MATMUL_BDESC),
               *c = op->to(CUDNN_ATTR_OPERATION_MATMUL_CDESC);
    const values &x = read(r, a), &y = read(r, b);
    const int64_t heads = dim(a, 1), m = dim(a, 2), k = dim(a, 3), n = dim(b, 3), group = heads / dim(b, 1);
    values out(static_cast<size_t>(heads * m * n));
    for (int64_t h = 0; h < heads; h++)
        for (int64_t i = 0; i < m; i++)
            for (int64_t j = 0; j < n; j++) {
                float sum = 0;
                for (int64_t l = 0; l < k; l++)
                    sum += x[static_cast<size_t>((h * m + i) * k + l)] * y[static_cast<size_t>((h / group * k + l) * n + j)];
                out[static_cast<size_t>((h * m + i) * n + j)] = sum;
            }
    write(r, c, std::move(out));
}

static void reduce(run &r, const node *op) {
    const node *x = op->to(CUDNN_ATTR_OPERATION_REDUCTION_XDESC);
    const bool most = op->to(CUDNN_ATTR_OPERATION_REDUCTION_DESC)->get<int>(CUDNN_ATTR_REDUCTION_OPERATOR) == CUDNN_REDUCE_TENSOR_MAX;
    const values &v = read(r, x);
    const size_t n = static_cast<size_t>(dim(x, 3));
    values out(v.size() / n);
    for (size_t i = 0; i < out.size(); i++) {
        out[i] = v[i * n];
        for (size_t j = 1; j < n; j++) out[i] = most ? std::fmax(out[i], v[i * n + j]) : out[i] + v[i * n + j];
    }
    write(r, op->to(CUDNN_ATTR_OPERATION_REDUCTION_YDESC), std::move(out));
}

static float apply(int mode, float x, float b, float pick) {
    switch (mode) {
    case CUDNN_POINTWISE_ADD: return x + b;
    case CUDNN_POINTWISE_MUL: return x * b;
    case CUDNN_POINTWISE_DIV: return x / b;
    case CUDNN_POINTWISE_SUB: return x - b;
    case CUDNN_POINTWISE_EXP: return std::exp(x);
    case CUDNN_POINTWISE_LOG: return std::log(x);
    case CUDNN_POINTWISE_CMP_GE: return x >= b;
    case CUDNN_POINTWISE_BINARY_SELECT: return pick != 0 ? x : b;
    default: return NAN;
    }
}

static void pointwise(run &r, const node *op) {
    const node *how = op->to(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR), *y = op->to(CUDNN_ATTR_OPERATION_POINTWISE_YDESC),
               *b = op->to(CUDNN_ATTR_OPERATION_POINTWISE_BDESC), *pick = op->to(CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
    const int mode = how->get<int>(CUDNN_ATTR_POINTWISE_MODE);
    const size_t n = static_cast<size_t>(elements(y)), rows = static_cast<size_t>(dim(y, 2)), keys = static_cast<size_t>(dim(y, 3));
    values out(n);
    if (mode == CUDNN_POINTWISE_GEN_INDEX) {
        const bool row = how->get<int64_t>(CUDNN_ATTR_POINTWISE_AXIS) == 2;
        for (size_t i = 0; i < n; i++) out[i] = static_cast<float>(row ? i / keys % rows : i % keys);
    } else {
        const values &vx = read(r, op->to(CUDNN_ATTR_OPERATION_POINTWISE_XDESC));
        const values none(1, 0), &vb = b ? read(r, b) : none, &vt = pick ? read(r, pick) : none;
        auto at = [&](const values &v, size_t i) { return v[v.size() == n ? i : v.size() == 1 ? 0 : i / keys]; };
        for (size_t i = 0; i < n; i++) out[i] = apply(mode, at(vx, i), at(vb, i), at(vt, i));
    }
    write(r, y, std::move(out));
}

/* ---- the interface ---- */

extern "C" {

cudnnStatus_t cudnnCreate(cudnnHandle_t *h) {
    if (!dgsim.cudnn) return CUDNN_STATUS_NOT_INITIALIZED;
    *h = new dgsim_cudnn{nullptr};
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t h) {
    delete h;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t h, cudaStream_t s) {
    h->stream = s;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *d) {
    *d = new node{type, false, {}};
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t d) {
    delete static_cast<node *>(d);
    return CUDNN_STATUS_SUCCESS;
}

/* What others refer to must be finished, but for the configurations that are yet to be filled. */
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t d) {
    static_cast<node *>(d)->final = true;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t n, const void *value) {
    node *to = static_cast<node *>(d);
    if (to->final || !value) return CUDNN_STATUS_BAD_PARAM;
    const size_t bytes = type == CUDNN_TYPE_BOOLEAN ? sizeof(bool)
                         : type == CUDNN_TYPE_DATA_TYPE || type == CUDNN_TYPE_POINTWISE_MODE || type == CUDNN_TYPE_HEUR_MODE ||
                                 type == CUDNN_TYPE_REDUCTION_OPERATOR_TYPE
                             ? sizeof(int)
                             : sizeof(void *);
    const char *from = static_cast<const char *>(value);
    to->attr[name].assign(from, from + static_cast<size_t>(n) * bytes);
    for (int64_t i = 0; type == CUDNN_TYPE_BACKEND_DESCRIPTOR && i < n; i++)
        if (!to->to(name, static_cast<size_t>(i)) || !to->to(name, static_cast<size_t>(i))->final) return CUDNN_STATUS_BAD_PARAM;
    return CUDNN_STATUS_SUCCESS;
}

/* One way for every graph: a configuration that leads to it. */
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t, int64_t most, int64_t *n, void *value) {
    if (!in(d)->final || most < 1) return CUDNN_STATUS_BAD_PARAM;
    *n = 1;
    if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) {
        const int64_t bytes = 4096;
        memcpy(value, &bytes, sizeof bytes);
    } else {
        node *config = *static_cast<node **>(value);
        config->attr[CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH] = in(d)->attr.at(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
        config->final = true;
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t h, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack) {
    const node *graph = in(plan)->to(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)->to(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
    const auto r = std::make_shared<run>();
    const std::lock_guard<std::recursive_mutex> guard(dgsim_mutex);
    for (size_t i = 0; i < in(pack)->count<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS); i++) {
        const int64_t id = in(pack)->get<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, i);
        char *p = in(pack)->get<char *>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, i);
        if (dgsim_find(p))
            r->memory[id] = p;
        else
            r->scalar[id].assign(p, p + 4);
        if (dgsim_find(p) && reinterpret_cast<uintptr_t>(p) % 16) return CUDNN_STATUS_BAD_PARAM;
    }
    const bool failed = dgsim_push(h->stream, [graph, r] {
        for (size_t i = 0; i < graph->count<void *>(CUDNN_ATTR_OPERATIONGRAPH_OPS); i++) {
            const node *op = graph->to(CUDNN_ATTR_OPERATIONGRAPH_OPS, i);
            if (op->type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)
                matmul(*r, op);
            else if (op->type == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR)
                reduce(*r, op);
            else
                pointwise(*r, op);
        }
    });
    return failed ? CUDNN_STATUS_BAD_PARAM : CUDNN_STATUS_SUCCESS;
}

} /* extern "C" */
