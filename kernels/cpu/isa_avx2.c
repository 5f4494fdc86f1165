/* The inner loops for x86-64 with AVX2, FMA and F16C. */
#if defined(__x86_64__)
#define DG_ISA_NAME  "avx2"
#define DG_ISA_TABLE dg_isa_avx2
#include "kernels/cpu/loops.h"
#else
typedef int dg_isa_avx2_unused; /* a translation unit needs a declaration */
#endif
