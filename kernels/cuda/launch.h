/* How a kernel is launched, and the few instructions that C++ has no name for, once for nvcc and once for
 * the simulator of tests/cudasim (which defines DG_CUDASIM and compiles the same .cu files with the host's
 * C++ compiler). Kernels know nothing else of the simulator.
 *
 *  - DG_LAUNCH(kernel, grid, block, shared_bytes, stream, args...) launches; errors: cudaGetLastError().
 *    A template kernel with commas goes in parentheses: DG_LAUNCH((k<float, 4>), ...).
 *  - DG_DYN_SHARED(type, name) declares `type *name`, the kernel's dynamic shared memory (128-byte aligned).
 *    Static shared memory is written as in CUDA, as a plain array: __shared__ float tile[32][33].
 *  - DG_CUDASIM may be asked for only to replace an instruction by a function of the same contract, here.
 *
 * Fragments are those of the PTX ISA ("Matrix fragments for mma.m16n8k16"), g = lane / 4, t = lane % 4:
 *   a[0], a[1]: rows g, g + 8, columns 2t, 2t + 1; a[2], a[3]: likewise, columns 2t + 8, 2t + 9
 *   b[0], b[1]: rows 2t, 2t + 1 and 2t + 8, 2t + 9 of column g
 *   d[0], d[1]: row g, columns 2t, 2t + 1; d[2], d[3]: row g + 8
 * with the lower column (of b: row) in the lower half of a register. */
#ifndef DG_CUDA_LAUNCH_H
#define DG_CUDA_LAUNCH_H

#include <cuda_runtime.h>
#include <stdint.h>

#ifdef DG_CUDASIM

#include "dgsim_mma.h"

#define DG_LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
    dgsim_launch(#kernel, __FILE__, __LINE__, kernel, grid, block, shared_bytes, stream, ##__VA_ARGS__)
#define DG_DYN_SHARED(type, name) type *const name = static_cast<type *>(dgsim_dyn_shared())

#else

#define DG_LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
    kernel<<<(grid), (block), (shared_bytes), (stream)>>>(__VA_ARGS__)
#define DG_DYN_SHARED(type, name) \
    extern __shared__ __align__(128) unsigned char dg_dyn_shared_bytes[]; \
    type *const name = reinterpret_cast<type *>(dg_dyn_shared_bytes)

/* d[16,8] += a[16,16] . b[16,8], by all lanes of a warp; sums in f32. sm_80 and up. */
static __device__ __forceinline__ void dg_mma_m16n8k16_bf16(float d[4], const uint32_t a[4],
                                                            const uint32_t b[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

static __device__ __forceinline__ void dg_mma_m16n8k16_f16(float d[4], const uint32_t a[4],
                                                           const uint32_t b[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* d[16,8] += a[16,32] . b[32,8] of signed bytes, exact. A register holds four columns 4t.. (of b: rows) where
 * the 16-bit form holds two; a[2], a[3] and b[1] begin at 4t + 16. */
static __device__ __forceinline__ void dg_mma_m16n8k32_s8(int32_t d[4], const uint32_t a[4],
                                                          const uint32_t b[2]) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

static __device__ __forceinline__ uint32_t dg_shared_address(const void *p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

/* Loads 8x8 matrices of 16-bit elements. Lane 8i + j names row j of matrix i (16 aligned bytes of shared
 * memory); r[i] gets
 * elements 2t, 2t + 1 of row g of matrix i; trans: of column g. x2 reads the addresses of lanes 0 to 15. */
static __device__ __forceinline__ void dg_ldmatrix_x4(uint32_t r[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(dg_shared_address(row))
                 : "memory");
}

static __device__ __forceinline__ void dg_ldmatrix_x4_trans(uint32_t r[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(dg_shared_address(row))
                 : "memory");
}

static __device__ __forceinline__ void dg_ldmatrix_x2(uint32_t r[2], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(dg_shared_address(row))
                 : "memory");
}

static __device__ __forceinline__ void dg_ldmatrix_x2_trans(uint32_t r[2], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(dg_shared_address(row))
                 : "memory");
}

/* Copies 16 bytes, both sides aligned, some time before the wait that covers them; zfill: the first `bytes`
 * (0 to 16) come from src, the rest is 0. */
static __device__ __forceinline__ void dg_cp_async16(void *dst_shared, const void *src_global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(dg_shared_address(dst_shared)),
                 "l"(__cvta_generic_to_global(src_global))
                 : "memory");
}

static __device__ __forceinline__ void dg_cp_async16_zfill(void *dst_shared, const void *src_global,
                                                           uint32_t bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dg_shared_address(dst_shared)),
                 "l"(__cvta_generic_to_global(src_global)), "r"(bytes)
                 : "memory");
}

/* Closes the group of this thread's copies so far. */
static __device__ __forceinline__ void dg_cp_async_commit(void) {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits for this thread's copies, up to the last N groups; others see them after a barrier. */
template <int N> static __device__ __forceinline__ void dg_cp_async_wait(void) {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

#endif
#endif
