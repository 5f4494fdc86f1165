/* The simulator's versions of the instructions that kernels/cuda/launch.h names; contracts are there. */
#ifndef DGSIM_MMA_H
#define DGSIM_MMA_H

#include "cuda_runtime.h"

#define DGSIM_MMA_FN(name, T, op)                                                                            \
    inline void name(T d[4], const uint32_t a[4], const uint32_t b[2], DGSIM_AT) {                           \
        dgsim_mma io = {d, a, b};                                                                            \
        dgsim_warp(op, 0xffffffffu, &io, file, line);                                                        \
    }
DGSIM_MMA_FN(dg_mma_m16n8k16_bf16, float, DGSIM_MMA_BF16)
DGSIM_MMA_FN(dg_mma_m16n8k16_f16, float, DGSIM_MMA_F16)
DGSIM_MMA_FN(dg_mma_m16n8k32_s8, int32_t, DGSIM_MMA_S8)

#define DGSIM_LDMATRIX_FN(name, count, transposed)                                                           \
    inline void name(uint32_t r[count], const void *row, DGSIM_AT) {                                         \
        dgsim_matrices io = {r, row, count, transposed};                                                     \
        dgsim_warp(DGSIM_LDMATRIX, 0xffffffffu, &io, file, line);                                            \
    }
DGSIM_LDMATRIX_FN(dg_ldmatrix_x4, 4, false)
DGSIM_LDMATRIX_FN(dg_ldmatrix_x4_trans, 4, true)
DGSIM_LDMATRIX_FN(dg_ldmatrix_x2, 2, false)
DGSIM_LDMATRIX_FN(dg_ldmatrix_x2_trans, 2, true)

/* Copies are made by the wait that covers them, the latest time that the contract allows. */
inline void dg_cp_async16(void *dst, const void *src, DGSIM_AT) { dgsim_cp_async(dst, src, 16, file, line); }
inline void dg_cp_async16_zfill(void *dst, const void *src, uint32_t bytes, DGSIM_AT) {
    dgsim_cp_async(dst, src, bytes, file, line);
}
inline void dg_cp_async_commit(void) { dgsim_cp_commit(); }
template <int N> inline void dg_cp_async_wait(void) { dgsim_cp_wait(N); }

#endif
