/* v16: sixteen f32 lanes, the unit of every dot product, on whatever registers the file is compiled for.
 *
 * One source of inner loops is compiled per instruction set (isa_*.c); only this layer differs. Lane i
 * always holds elements i, i+16, i+32, ... of a sum, and v16_sum adds lanes i and i+8, then i+4, i+2, i+1:
 * so the order of a reduction is the same everywhere. v16_fma rounds once where the hardware can, else
 * twice; that is the only difference between results of instruction sets. */
#ifndef DG_VEC_H
#define DG_VEC_H

#include <stdint.h>
#include <string.h>

#include "kernels/quant.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* Byte vectors for unpacking weights: plain GNU vector arithmetic. */
typedef uint8_t u8x16 __attribute__((vector_size(16)));
typedef int8_t i8x16 __attribute__((vector_size(16)));

ALWAYS_INLINE u8x16 u8x16_load(const void *p) {
    u8x16 v;
    memcpy(&v, p, sizeof v);
    return v;
}

#if defined(__AVX512F__)
#include "kernels/cpu/vec_avx512.h"
#elif defined(__AVX2__)
#include "kernels/cpu/vec_avx2.h"
#else
#include "kernels/cpu/vec_portable.h"
#endif

/* Loads of n < 16 elements, the other lanes 0. Rare, so not worth a copy in every loop. */
#define V16_LOAD_PART(type, load)                                                    \
    static __attribute__((noinline, unused)) v16 load##_part(const void *p, int n) { \
        type part[16] = {0};                                                         \
        memcpy(part, p, (size_t)n * sizeof *part);                                   \
        return load(part);                                                           \
    }
#ifndef V16_HAS_MASKS
V16_LOAD_PART(float, v16_load)
#endif
V16_LOAD_PART(uint16_t, v16_load_f16)
V16_LOAD_PART(uint16_t, v16_load_bf16)

ALWAYS_INLINE void v16_store_part(float *p, v16 v, int n) {
    float part[16];
    v16_store(part, v);
    memcpy(p, part, (size_t)n * sizeof *part);
}

#endif
