/* The simulated device from the host's side: when work runs, what copies and captures allow, limits, errors,
 * matrix products. */
#include <cublasLt.h>

#include "tests/cudasim/rig.h"

static void test_streams_run_late(void **state) {
    (void)state;
    cudaStream_t other;
    cudaEvent_t event;
    ok(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    ok(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    float *pinned = NULL, *x = device(NULL, 4 * sizeof *x);
    ok(cudaMallocHost((void **)&pinned, 4 * sizeof *pinned));
    ok(cudaStreamSynchronize(stream));
    pinned[0] = -1;
    case_add(x, 2, 4, other);
    ok(cudaEventRecord(event, other));
    ok(cudaMemcpyAsync(pinned, x, 4 * sizeof *x, cudaMemcpyDeviceToHost, stream)); /* nothing orders it */
    ok(cudaStreamSynchronize(stream));
    assert_float_equal(pinned[0], 0, 0);
    assert_int_equal(cudaEventQuery(event), cudaErrorNotReady);
    ok(cudaStreamWaitEvent(stream, event, 0));
    ok(cudaMemcpyAsync(pinned, x, 4 * sizeof *x, cudaMemcpyDeviceToHost, stream));
    assert_float_equal(pinned[0], 0, 0);
    ok(cudaStreamSynchronize(stream));
    assert_float_equal(pinned[0], 2, 0);
    ok(cudaEventSynchronize(event));

    /* pinned memory is read when its turn comes, other memory at once */
    float local[4] = {5, 5, 5, 5};
    pinned[0] = 5;
    ok(cudaMemcpyAsync(x, pinned, sizeof *x, cudaMemcpyHostToDevice, stream));
    ok(cudaMemcpyAsync(x + 1, local, sizeof *x, cudaMemcpyHostToDevice, stream));
    pinned[0] = local[0] = 6;
    float got[2];
    fetch(got, x, sizeof got);
    assert_float_equal(got[0], 6, 0);
    assert_float_equal(got[1], 5, 0);
    ok(cudaEventDestroy(event));
    ok(cudaStreamDestroy(other));
    ok(cudaFreeHost(pinned));
    ok(cudaFree(x));
}

static void test_copies(void **state) {
    (void)state;
    char in[5][8], got[5][8];
    for (int i = 0; i < 40; i++) in[i / 8][i % 8] = (char)i;
    char *p = device(NULL, 5 * 16);
    ok(cudaMemcpy2DAsync(p, 16, in, 8, 8, 5, cudaMemcpyHostToDevice, stream));
    ok(cudaMemset2DAsync(p + 2, 16, 77, 3, 4, stream));
    ok(cudaMemcpy2DAsync(got, 8, p, 16, 8, 5, cudaMemcpyDeviceToHost, stream));
    ok(cudaStreamSynchronize(stream));
    for (int i = 0; i < 40; i++)
        assert_int_equal(got[i / 8][i % 8], i / 8 < 4 && i % 8 >= 2 && i % 8 < 5 ? 77 : i);
    assert_int_equal(cudaMemcpyAsync(p, in, 81, cudaMemcpyHostToDevice, stream), cudaErrorInvalidValue);
    assert_int_equal(cudaMemcpyAsync(p, in, 8, cudaMemcpyDeviceToHost, stream), cudaErrorInvalidValue);
    assert_int_equal(cudaFree(p + 1), cudaErrorInvalidValue);
    ok(cudaFree(p));
    assert_int_equal(cudaFree(p), cudaErrorInvalidValue);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
    ok(cudaGetLastError());
    ok(cudaFree(NULL));
}

static void test_graphs(void **state) {
    (void)state;
    float zero[4] = {0}, got[4], *x = device(zero, sizeof zero);
    cudaStream_t side;
    cudaEvent_t fork, join;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    ok(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
    ok(cudaEventCreate(&fork));
    ok(cudaEventCreate(&join));
    ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    case_add(x, 1, 4, stream);
    ok(cudaEventRecord(fork, stream));
    ok(cudaStreamWaitEvent(side, fork, 0));
    case_add(x, 10, 2, side);
    ok(cudaEventRecord(join, side));
    ok(cudaStreamWaitEvent(stream, join, 0));
    case_add(x, 100, 1, stream);
    ok(cudaStreamEndCapture(stream, &graph));
    fetch(got, x, sizeof got);
    assert_float_equal(got[0], 0, 0); /* captured, not run */
    size_t n = 0;
    ok(cudaGraphGetNodes(graph, NULL, &n));
    assert_int_equal(n, 3);
    ok(cudaGraphInstantiate(&exec, graph, 0));
    ok(cudaGraphDestroy(graph));
    for (int i = 0; i < 3; i++) ok(cudaGraphLaunch(exec, stream));
    fetch(got, x, sizeof got);
    assert_float_equal(got[0], 333, 0);
    assert_float_equal(got[1], 33, 0);
    assert_float_equal(got[3], 3, 0);
    ok(cudaGraphExecDestroy(exec));

    /* arguments are those of the capture, memory is what it is when the graph runs; launched as one */
    float add = 2, *pinned = NULL;
    ok(cudaMallocHost((void **)&pinned, sizeof *pinned));
    *pinned = 1;
    ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    ok(cudaMemcpyAsync(x, pinned, sizeof *pinned, cudaMemcpyHostToDevice, stream));
    case_add(x, add, 1, stream);
    ok(cudaStreamEndCapture(stream, &graph));
    ok(cudaGraphInstantiate(&exec, graph, 0));
    ok(cudaGraphDestroy(graph));
    add = 50, *pinned = 30;
    const dgsim_counts before = dgsim_count;
    ok(cudaGraphLaunch(exec, stream));
    fetch(got, x, sizeof got);
    assert_float_equal(got[0], 32, 0);
    assert_int_equal(dgsim_count.graphs - before.graphs, 1);
    assert_int_equal(dgsim_count.launches + dgsim_count.uploads - before.launches - before.uploads, 0);
    assert_int_equal(dgsim_count.downloads - before.downloads, 1);
    ok(cudaGraphExecDestroy(exec));
    ok(cudaFreeHost(pinned));

    /* what a capture does not allow */
    ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    assert_int_equal(cudaMemcpyAsync(x, zero, sizeof zero, cudaMemcpyHostToDevice, stream), cudaErrorStreamCaptureUnsupported);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    assert_int_equal(cudaStreamQuery(stream), cudaErrorStreamCaptureUnsupported);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    void *p;
    assert_int_equal(cudaMalloc(&p, 4), cudaErrorStreamCaptureUnsupported);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    assert_int_equal(cudaStreamSynchronize(stream), cudaErrorStreamCaptureUnsupported);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    ok(cudaEventRecord(fork, stream));
    ok(cudaStreamWaitEvent(side, fork, 0));
    case_add(x, 1, 4, side);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureUnjoined);
    cudaGetLastError();
    ok(cudaEventDestroy(fork));
    ok(cudaEventDestroy(join));
    ok(cudaStreamDestroy(side));
    ok(cudaFree(x));
}

static void test_limits(void **state) {
    (void)state;
    assert_int_equal(case_launch(1024, 0, 0), cudaSuccess);
    assert_int_equal(case_launch(1025, 0, 0), cudaErrorInvalidConfiguration);
    assert_int_equal(case_launch(0, 0, 0), cudaErrorInvalidConfiguration);
    assert_int_equal(case_launch(32, 48 << 10, 0), cudaSuccess);
    assert_int_equal(case_launch(32, (48 << 10) + 1, 0), cudaErrorInvalidValue);
    assert_int_equal(case_launch(32, 100 << 10, 100 << 10), cudaSuccess);
    assert_int_equal(case_launch(32, (100 << 10) + 1, 0), cudaErrorInvalidValue);
    assert_int_equal(case_launch(32, 0, (227 << 10) + 1), cudaErrorInvalidValue);
    dgsim.minor = 6, dgsim.major = 8; /* which has less */
    assert_int_equal(case_launch(32, 0, 100 << 10), cudaErrorInvalidValue);
    dgsim.minor = 0, dgsim.major = 9;
    cudaGetLastError();
    ok(cudaDeviceSynchronize());
}

static void test_no_device(void **state) {
    (void)state;
    int n = -1, version = 0;
    dgsim.devices = 0;
    assert_int_equal(cudaGetDeviceCount(&n), cudaErrorNoDevice);
    assert_int_equal(n, 0);
    assert_int_equal(cudaSetDevice(0), cudaErrorNoDevice);
    dgsim.devices = 1;
    dgsim.driver = 11080;
    assert_int_equal(cudaGetDeviceCount(&n), cudaErrorInsufficientDriver);
    ok(cudaDriverGetVersion(&version));
    assert_int_equal(version, 11080);
    dgsim.driver = CUDART_VERSION;
    ok(cudaGetDeviceCount(&n));
    assert_int_equal(n, 1);
    assert_int_equal(cudaSetDevice(1), cudaErrorInvalidDevice);
    cudaGetLastError();
}

static void test_memory_runs_out(void **state) {
    (void)state;
    void *p = NULL, *q = NULL;
    size_t before, available, total, whole = dgsim.memory;
    ok(cudaMemGetInfo(&before, &total));
    dgsim.memory = 1 << 20;
    ok(cudaMalloc(&p, 1000 << 10));
    ok(cudaMemGetInfo(&available, &total));
    assert_int_equal(total, 1 << 20);
    assert_int_equal(available, 24 << 10);
    assert_int_equal(cudaMalloc(&q, 25 << 10), cudaErrorMemoryAllocation);
    assert_null(q);
    ok(cudaFree(p));
    dgsim.memory = whole;
    dgsim.fail_alloc = 2;
    ok(cudaMalloc(&p, 100));
    assert_int_equal(cudaMalloc(&q, 100), cudaErrorMemoryAllocation);
    ok(cudaMalloc(&q, 100));
    ok(cudaFree(p));
    ok(cudaFree(q));
    ok(cudaMemGetInfo(&available, &total));
    assert_int_equal(available, before);
    assert_int_equal(cudaGetLastError(), cudaErrorMemoryAllocation);
}

static void lose_device(const void *arg) {
    (void)arg;
    float *x = device(NULL, 64);
    ok(cudaStreamSynchronize(stream));
    dgsim.fail_launch = 2;
    case_add(x, 1, 4, stream);
    ok(cudaStreamSynchronize(stream));
    case_add(x, 1, 4, stream);
    ok(cudaGetLastError()); /* the launch went well */
    if (cudaStreamSynchronize(stream) != cudaErrorLaunchFailure) _exit(1);
    if (cudaMemsetAsync(x, 0, 4, stream) != cudaErrorLaunchFailure) _exit(2);
    if (cudaGetLastError() != cudaErrorLaunchFailure || cudaGetLastError() != cudaErrorLaunchFailure)
        _exit(3);
    cudaFree(x); /* whoever gives back what it has finds the memory free afterwards */
    size_t available, total;
    cudaMemGetInfo(&available, &total);
    if (available != total) _exit(4);
    cudaDeviceReset();
    ok(cudaGetLastError());
}

static void test_device_is_lost(void **state) {
    (void)state;
    char report[1024];
    assert_int_equal(in_child(lose_device, NULL, report, sizeof report), 0);
}

/* --- cuBLASLt --- */

static void blas(cublasStatus_t s) {
    if (s) fail_msg("%s", cublasLtGetStatusName(s));
}

static cublasLtMatrixLayout_t layout(cudaDataType type, uint64_t rows, uint64_t cols, int64_t ld,
                                     int32_t order) {
    cublasLtMatrixLayout_t l;
    blas(cublasLtMatrixLayoutCreate(&l, type, rows, cols, ld));
    blas(cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_ORDER, &order, sizeof order));
    return l;
}

/* out[5,3] = 2 x[5,4] . w[3,4]^T - out, x and out by rows, w by either, with gaps between rows */
static void check_product(cudaDataType type, int32_t w_order) {
    enum { N = 5, M = 3, K = 4, LD = 6 };
    const uint16_t small[5] = {0xc000, 0xbc00, 0, 0x3c00, 0x4000},
                   small_bf16[5] = {0xc000, 0xbf80, 0, 0x3f80, 0x4000};
    float vx[N][K], vw[M][K], out[N][LD];
    float x32[N][LD] = {{0}}, w32[LD * LD] = {0};
    uint16_t x16[N][LD] = {{0}}, w16[LD * LD] = {0};
    for (int i = 0; i < N * K; i++) {
        const int v = i * 3 % 5;
        vx[i / K][i % K] = x32[i / K][i % K] = (float)(v - 2);
        x16[i / K][i % K] = type == CUDA_R_16F ? small[v] : small_bf16[v];
    }
    for (int i = 0; i < M * K; i++) {
        const int v = i * i % 5, at = w_order == CUBLASLT_ORDER_ROW ? i / K * LD + i % K : i % K * LD + i / K;
        vw[i / K][i % K] = w32[at] = (float)(v - 2);
        w16[at] = type == CUDA_R_16F ? small[v] : small_bf16[v];
    }
    for (int i = 0; i < N * LD; i++) out[i / LD][i % LD] = (float)i;
    const bool wide = type == CUDA_R_32F;
    void *dx = wide ? device(x32, sizeof x32) : device(x16, sizeof x16);
    void *dw = wide ? device(w32, sizeof w32) : device(w16, sizeof w16);
    float *dout = device(out, sizeof out), got[N][LD];
    cublasLtHandle_t h;
    cublasLtMatmulDesc_t d;
    cublasLtMatmulPreference_t pref;
    cublasLtMatmulHeuristicResult_t found;
    blas(cublasLtCreate(&h));
    blas(cublasLtMatmulDescCreate(&d, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    blas(cublasLtMatmulPreferenceCreate(&pref));
    const cublasOperation_t t = CUBLAS_OP_T;
    blas(cublasLtMatmulDescSetAttribute(d, CUBLASLT_MATMUL_DESC_TRANSB, &t, sizeof t));
    cublasLtMatrixLayout_t lx = layout(type, N, K, LD, CUBLASLT_ORDER_ROW),
                           lw = layout(type, M, K, LD, w_order),
                           lout = layout(CUDA_R_32F, N, M, LD, CUBLASLT_ORDER_ROW),
                           wrong = layout(type, M, K + 1, LD, w_order);
    int n = 0;
    blas(cublasLtMatmulAlgoGetHeuristic(h, d, lx, lw, lout, lout, pref, 1, &found, &n));
    assert_int_equal(n, 1);
    assert_int_equal(cublasLtMatmulAlgoGetHeuristic(h, d, lx, wrong, lout, lout, pref, 1, &found, &n),
                     CUBLAS_STATUS_INVALID_VALUE);
    const float alpha = 2, beta = -1;
    blas(cublasLtMatmul(h, d, &alpha, dx, lx, dw, lw, &beta, dout, lout, dout, lout, &found.algo, NULL, 0,
                        stream));
    assert_int_equal(cublasLtMatmul(h, d, &alpha, dx, lx, vw, lw, &beta, dout, lout, dout, lout, &found.algo,
                                    NULL, 0, stream),
                     CUBLAS_STATUS_INVALID_VALUE); /* vw: the host's */
    fetch(got, dout, sizeof got);
    for (int i = 0; i < N; i++)
        for (int j = 0; j < LD; j++) {
            float want = out[i][j];
            if (j < M) {
                want = -want;
                for (int l = 0; l < K; l++) want += 2 * vx[i][l] * vw[j][l];
            }
            assert_float_equal(got[i][j], want, 0);
        }
    blas(cublasLtMatrixLayoutDestroy(lx));
    blas(cublasLtMatrixLayoutDestroy(lw));
    blas(cublasLtMatrixLayoutDestroy(lout));
    blas(cublasLtMatrixLayoutDestroy(wrong));
    blas(cublasLtMatmulPreferenceDestroy(pref));
    blas(cublasLtMatmulDescDestroy(d));
    blas(cublasLtDestroy(h));
    ok(cudaFree(dx));
    ok(cudaFree(dw));
    ok(cudaFree(dout));
}

static void test_products(void **state) {
    (void)state;
    const cudaDataType type[] = {CUDA_R_32F, CUDA_R_16F, CUDA_R_16BF};
    for (int i = 0; i < 3; i++)
        for (int32_t order = CUBLASLT_ORDER_COL; order <= CUBLASLT_ORDER_ROW; order++)
            check_product(type[i], order);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_streams_run_late), cmocka_unit_test(test_copies),
        cmocka_unit_test(test_graphs),           cmocka_unit_test(test_products),
        cmocka_unit_test(test_limits),           cmocka_unit_test(test_no_device),
        cmocka_unit_test(test_memory_runs_out),  cmocka_unit_test(test_device_is_lost),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
