/* Causal attention as a graph of cuDNN: o = softmax(scale * q.k^T where first + row >= key, else nothing) v. The library
 * recognises such a graph and computes it in one kernel; see sdpa.h.
 *
 * Sources: NVIDIA's documentation of the backend interface, and of the operations that fused attention may consist of. */
#include "kernels/cuda/sdpa.h"

#if !defined DG_NO_CUDNN && defined __has_include
#if __has_include(<cudnn.h>)
#define HAVE_CUDNN 1
#endif
#endif

#ifdef HAVE_CUDNN
#include <cudnn.h>
#include <float.h>
#include <string.h>

typedef cudnnBackendDescriptor_t descriptor;

enum { AXES = 4, CONFIGS = 8, MAX_OPS = 16 };
enum { ID_Q = 1, ID_K, ID_V, ID_OUT, ID_SCALE, ID_FIRST, ID_NOTHING, ID_VIRTUAL }; /* tensors; the rest by counting */

/* A graph in the making. Everything that is made goes into the plan, which frees it. */
typedef struct graph {
    dg_sdpa_plan *plan;
    descriptor op[MAX_OPS];
    int32_t n_op;
    int64_t next_id, rows, keys, heads;
    cudnnDataType_t type; /* of q, k, v, out and the weights */
    bool ok;
} graph;

static descriptor make(graph *g, cudnnBackendDescriptorType_t type) {
    descriptor d = NULL;
    if (!g->ok || g->plan->n_made == DG_SDPA_DESCRIPTORS || cudnnBackendCreateDescriptor(type, &d)) {
        g->ok = false;
        return NULL;
    }
    g->plan->made[g->plan->n_made++] = d;
    return d;
}

static void set(graph *g, descriptor d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t n,
                const void *value) {
    g->ok = g->ok && cudnnBackendSetAttribute(d, name, type, n, value) == CUDNN_STATUS_SUCCESS;
}

static void link_to(graph *g, descriptor d, cudnnBackendAttributeName_t name, descriptor to) {
    set(g, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &to);
}

static descriptor finish(graph *g, descriptor d) {
    g->ok = g->ok && cudnnBackendFinalize(d) == CUDNN_STATUS_SUCCESS;
    return d;
}

static void finish_op(graph *g, descriptor d) {
    finish(g, d);
    g->ok = g->ok && g->n_op < MAX_OPS;
    if (g->ok) g->op[g->n_op++] = d;
}

/* ---- tensors ---- */

typedef enum place { IN_MEMORY, BETWEEN, BY_VALUE } place; /* BETWEEN: two operations, and in no memory */

static descriptor tensor(graph *g, int64_t id, cudnnDataType_t type, const int64_t dim[AXES], const int64_t stride[AXES],
                         place where) {
    descriptor d = make(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    const int64_t alignment = 16;
    const bool yes = true;
    set(g, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    set(g, d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(g, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, AXES, dim);
    set(g, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, AXES, stride);
    set(g, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    if (where == BETWEEN) set(g, d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &yes);
    if (where == BY_VALUE) set(g, d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &yes);
    return finish(g, d);
}

/* [n, heads*width] as one batch of heads; across: with rows and columns changed places. */
static descriptor matrix(graph *g, int64_t id, int64_t heads, int64_t n, int64_t width, bool across) {
    const int64_t row = heads * width;
    const int64_t dim[AXES] = {1, heads, across ? width : n, across ? n : width};
    const int64_t stride[AXES] = {n * row, width, across ? 1 : row, across ? row : 1};
    return tensor(g, id, g->type, dim, stride, IN_MEMORY);
}

static descriptor scalar(graph *g, int64_t id, cudnnDataType_t type) {
    const int64_t one[AXES] = {1, 1, 1, 1};
    return tensor(g, id, type, one, one, BY_VALUE);
}

/* A value for every head, row and key, or for every head and row. */
static descriptor scores(graph *g, cudnnDataType_t type, bool reduced) {
    const int64_t keys = reduced ? 1 : g->keys;
    const int64_t dim[AXES] = {1, g->heads, g->rows, keys}, stride[AXES] = {g->heads * g->rows * keys, g->rows * keys, keys, 1};
    return tensor(g, g->next_id++, type, dim, stride, BETWEEN);
}

/* ---- operations ---- */

static void multiply(graph *g, descriptor a, descriptor b, descriptor c) {
    const cudnnDataType_t f32 = CUDNN_DATA_FLOAT;
    descriptor how = make(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    set(g, how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &f32);
    finish(g, how);
    descriptor op = make(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    link_to(g, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    link_to(g, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    link_to(g, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
    link_to(g, op, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
    finish_op(g, op);
}

static descriptor reduce(graph *g, cudnnReduceTensorOp_t by, descriptor x) {
    const cudnnDataType_t f32 = CUDNN_DATA_FLOAT;
    descriptor y = scores(g, f32, true), how = make(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    set(g, how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &by);
    set(g, how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &f32);
    finish(g, how);
    descriptor op = make(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    link_to(g, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    link_to(g, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    link_to(g, op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
    finish_op(g, op);
    return y;
}

/* y = x, or x and b, by mode. axis: of an index, else -1. pick: where it is true y is x, else b. */
static descriptor pointwise_to(graph *g, descriptor y, cudnnPointwiseMode_t mode, cudnnDataType_t in, descriptor x, descriptor b,
                               descriptor pick, int64_t axis) {
    descriptor how = make(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    set(g, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    set(g, how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &in);
    if (axis >= 0) set(g, how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
    finish(g, how);
    descriptor op = make(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    link_to(g, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    link_to(g, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    if (b) link_to(g, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
    if (pick) link_to(g, op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, pick);
    link_to(g, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    finish_op(g, op);
    return y;
}

static descriptor pointwise(graph *g, cudnnPointwiseMode_t mode, cudnnDataType_t in, descriptor x, descriptor b, descriptor pick,
                            int64_t axis, cudnnDataType_t type) {
    return pointwise_to(g, scores(g, type, false), mode, in, x, b, pick, axis);
}

/* ---- the graph and its plan ---- */

static void build(graph *g, const dg_sdpa_shape *s) {
    const cudnnDataType_t f32 = CUDNN_DATA_FLOAT, i32 = CUDNN_DATA_INT32, yes_no = CUDNN_DATA_BOOLEAN;
    descriptor q = matrix(g, ID_Q, s->n_head, s->n, s->head_dim, false);
    descriptor k = matrix(g, ID_K, s->n_kv_head, s->n_key, s->head_dim, true);
    descriptor v = matrix(g, ID_V, s->n_kv_head, s->n_key, s->head_dim, false);
    descriptor out = matrix(g, ID_OUT, s->n_head, s->n, s->head_dim, false);
    descriptor scale = scalar(g, ID_SCALE, f32), first = scalar(g, ID_FIRST, i32), nothing = scalar(g, ID_NOTHING, f32);

    descriptor dot = scores(g, f32, false);
    multiply(g, q, k, dot);
    descriptor score = pointwise(g, CUDNN_POINTWISE_MUL, f32, dot, scale, NULL, -1, f32);
    descriptor row = pointwise(g, CUDNN_POINTWISE_GEN_INDEX, i32, score, NULL, NULL, 2, i32);
    descriptor last = pointwise(g, CUDNN_POINTWISE_ADD, i32, row, first, NULL, -1, i32);
    descriptor key = pointwise(g, CUDNN_POINTWISE_GEN_INDEX, i32, score, NULL, NULL, 3, i32);
    descriptor seen = pointwise(g, CUDNN_POINTWISE_CMP_GE, yes_no, last, key, NULL, -1, yes_no);
    descriptor left = pointwise(g, CUDNN_POINTWISE_BINARY_SELECT, f32, score, nothing, seen, -1, f32);
    descriptor most = reduce(g, CUDNN_REDUCE_TENSOR_MAX, left);
    descriptor below = pointwise(g, CUDNN_POINTWISE_SUB, f32, left, most, NULL, -1, f32);
    descriptor weight = pointwise(g, CUDNN_POINTWISE_EXP, f32, below, NULL, NULL, -1, f32);
    descriptor sum = reduce(g, CUDNN_REDUCE_TENSOR_ADD, weight);
    /* nobody reads the logarithm of the sums, but without it the graph is not recognised */
    descriptor log = pointwise_to(g, scores(g, f32, true), CUDNN_POINTWISE_LOG, f32, sum, NULL, NULL, -1);
    pointwise_to(g, scores(g, f32, true), CUDNN_POINTWISE_ADD, f32, most, log, NULL, -1);
    descriptor share = pointwise(g, CUDNN_POINTWISE_DIV, f32, weight, sum, NULL, -1, g->type);
    multiply(g, share, v, out);
}

/* The first of the library's ways for the graph of which a plan can be made. */
static descriptor choose(graph *g, cudnnHandle_t handle) {
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    descriptor all = make(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    set(g, all, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->n_op, g->op);
    set(g, all, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    finish(g, all);
    descriptor ways = make(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR), way[CONFIGS];
    link_to(g, ways, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, all);
    set(g, ways, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    finish(g, ways);
    for (int i = 0; i < CONFIGS; i++) way[i] = make(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    int64_t n = 0;
    if (!g->ok || cudnnBackendGetAttribute(ways, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, CONFIGS, &n, way))
        return NULL;
    for (int64_t i = 0; i < n && i < CONFIGS; i++) {
        descriptor plan = make(g, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
        set(g, plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
        link_to(g, plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, way[i]);
        if (finish(g, plan) && g->ok) return plan;
        g->ok = true; /* the next, then */
    }
    return NULL;
}

static void plan_free(dg_sdpa_plan *p) {
    while (p->n_made > 0) cudnnBackendDestroyDescriptor(p->made[--p->n_made]);
    p->plan = NULL;
}

static void plan_make(dg_sdpa *s, dg_sdpa_plan *p, const dg_sdpa_shape *shape) {
    graph g = {.plan = p, .next_id = ID_VIRTUAL, .rows = shape->n, .keys = shape->n_key, .heads = shape->n_head,
               .type = shape->bf16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF, .ok = true};
    p->shape = *shape;
    build(&g, shape);
    descriptor plan = g.ok ? choose(&g, s->handle) : NULL;
    int64_t workspace = 0, n = 0;
    if (plan &&
        cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &n, &workspace) == CUDNN_STATUS_SUCCESS)
        p->plan = plan, p->workspace = (size_t)workspace;
    else
        plan_free(p);
}

static dg_sdpa_plan *plan_of(dg_sdpa *s, const dg_sdpa_shape *shape) {
    for (int32_t i = 0; i < s->n_plan; i++)
        if (memcmp(&s->plan[i].shape, shape, sizeof *shape) == 0) return &s->plan[i];
    dg_sdpa_plan *p = &s->plan[s->n_plan < DG_SDPA_PLANS ? s->n_plan++ : s->next++ % DG_SDPA_PLANS];
    plan_free(p);
    plan_make(s, p, shape);
    return p;
}

/* ---- running ---- */

static bool execute(cudnnHandle_t handle, descriptor plan, const dg_sdpa_call *c) {
    int32_t first = c->first;
    float scale = c->scale, nothing = -FLT_MAX;
    const int64_t id[] = {ID_Q, ID_K, ID_V, ID_OUT, ID_SCALE, ID_FIRST, ID_NOTHING};
    void *const data[] = {(void *)c->q, (void *)c->k, (void *)c->v, c->out, &scale, &first, &nothing};
    enum { N = sizeof id / sizeof *id };
    descriptor pack = NULL;
    bool ok = cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack) == CUDNN_STATUS_SUCCESS;
    ok = ok && !cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, N, id) &&
         !cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, N, data) &&
         !cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &c->workspace) &&
         !cudnnBackendFinalize(pack) && !cudnnBackendExecute(handle, plan, pack);
    if (pack) cudnnBackendDestroyDescriptor(pack);
    return ok;
}

bool dg_sdpa_run(dg_sdpa *s, cudaStream_t stream, const dg_sdpa_shape *shape, const dg_sdpa_call *call) {
    if (!s->tried) {
        cudnnHandle_t handle = NULL;
        s->tried = true;
        if (cudnnCreate(&handle) == CUDNN_STATUS_SUCCESS) s->handle = handle;
    }
    if (!s->handle) return false;
    dg_sdpa_plan *p = plan_of(s, shape);
    return p->plan && p->workspace <= call->workspace_bytes && cudnnSetStream(s->handle, stream) == CUDNN_STATUS_SUCCESS &&
           execute(s->handle, p->plan, call);
}

void dg_sdpa_close(dg_sdpa *s) {
    for (int32_t i = 0; i < s->n_plan; i++) plan_free(&s->plan[i]);
    s->n_plan = 0;
    if (s->handle) cudnnDestroy(s->handle);
    s->handle = NULL;
}

#else

bool dg_sdpa_run(dg_sdpa *s, cudaStream_t stream, const dg_sdpa_shape *shape, const dg_sdpa_call *call) {
    (void)s, (void)stream, (void)shape, (void)call;
    return false;
}

void dg_sdpa_close(dg_sdpa *s) { (void)s; }

#endif
