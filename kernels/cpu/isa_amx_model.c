/* isa_amx.c with a model of the tiles in software, for tests on machines that have AVX-512 alone. */
#if defined(__x86_64__) && defined(DG_TEST)
#define DG_ISA_NAME  "amx-model"
#define DG_ISA_TABLE dg_isa_amx_model
#define DG_ISA_AMX
#define DG_TILE_MODEL
#include "kernels/cpu/loops.h"
#else
typedef int dg_isa_amx_model_unused; /* a translation unit needs a declaration */
#endif
