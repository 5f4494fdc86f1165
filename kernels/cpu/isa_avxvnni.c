/* The inner loops for x86-64 with AVX2, FMA, F16C and AVX-VNNI. */
#if defined(__x86_64__)
#define DG_ISA_NAME  "avxvnni"
#define DG_ISA_TABLE dg_isa_avxvnni
#include "kernels/cpu/loops.h"
#else
typedef int dg_isa_avxvnni_unused; /* a translation unit needs a declaration */
#endif
