/* Kernels that test the simulator. They compile with nvcc too: what they compute is CUDA's business. */
#ifndef DGSIM_CASES_H
#define DGSIM_CASES_H

#include <stdint.h>
#include "cuda_runtime_api.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CASE_THREADS = 128 };

/* Faults. Each is planted where the comment of its kernel says. */
typedef enum case_fault {
    FAULT_NONE,
    FAULT_STATIC_INDEX,
    FAULT_STATIC_POINTER,
    FAULT_DYNAMIC_INDEX,
    FAULT_GLOBAL_INDEX,
    FAULT_GLOBAL_BEFORE,
    FAULT_FREED,
    FAULT_UNINITIALISED,
    FAULT_MISSING_BARRIER,
    FAULT_MISSING_SYNCWARP,
    FAULT_READ_THEN_WRITTEN,
    FAULT_EXIT_AT_BARRIER,
    FAULT_BARRIER_IN_BRANCH,
    FAULT_LANE_NOT_IN_MASK,
    FAULT_LANE_NEVER_COMES,
    FAULT_LANE_HAS_LEFT,
    FAULT_SOURCE_NOT_IN_MASK,
    FAULT_FLOAT4,
    FAULT_EARLY_COPY,
    FAULT_HOST_POINTER,
    FAULT_STACK,
    FAULT_BLOCKS_MEET,
    FAULT_BLOCK_READS,
    FAULT_ASYNC_ALIGNMENT
} case_fault;

/* Reverses n floats in each of two blocks of CASE_THREADS by way of shared memory, with a fault. out, in:
 * device, 2 * CASE_THREADS floats; host: memory of the host. */
void case_fault_launch(case_fault fault, float *out, const float *in, const float *freed, const float *host,
                       cudaStream_t s);

/* All launch one kernel; out: device. Sizes are in the test. */
void case_index(uint32_t *out, int gx, int gy, int gz, int bx, int by, int bz, cudaStream_t s);
void case_warp(uint32_t *out, cudaStream_t s);  /* [32 rows][32 lanes] */
void case_votes(uint32_t *out, cudaStream_t s); /* [3][64] of __syncthreads_* */
void case_atomics(uint32_t *out, cudaStream_t s);
void case_math(float *out, cudaStream_t s);
void case_halves(float *out, const float *in, int n,
                 cudaStream_t s); /* [4][n]: f16, bf16 there and back, bits */
void case_mma(float *d, int32_t *ds, const uint16_t *a, const uint16_t *b, const int8_t *as, const int8_t *bs,
              int f16, cudaStream_t s);
void case_ldmatrix(uint32_t *out, cudaStream_t s); /* [12][32] */
void case_async(float *out, const float *in, cudaStream_t s);
void case_barriers(int n, int threads, cudaStream_t s);
void case_add(float *x, float y, int n, cudaStream_t s);
cudaError_t case_launch(int threads, int shared, int raise_to);

#ifdef __cplusplus
}
#endif
#endif
