/* The inner loops for x86-64 with AVX-512 and AMX int8 tiles. */
#if defined(__x86_64__)
#define DG_ISA_NAME  "amx"
#define DG_ISA_TABLE dg_isa_amx
#define DG_ISA_AMX
#include "kernels/cpu/loops.h"
#else
typedef int dg_isa_amx_unused; /* a translation unit needs a declaration */
#endif
