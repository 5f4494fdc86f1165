/* The inner loops for x86-64 with AVX-512 F, BW, VL and DQ. */
#if defined(__x86_64__)
#define DG_ISA_NAME  "avx512"
#define DG_ISA_TABLE dg_isa_avx512
#include "kernels/cpu/loops.h"
#else
typedef int dg_isa_avx512_unused; /* a translation unit needs a declaration */
#endif
