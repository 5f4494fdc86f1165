/* The inner loops for what every target of the compiler has; x86-64 has nothing above SSE2 here. */
#define DG_ISA_NAME  "portable"
#define DG_ISA_TABLE dg_isa_portable
#include "kernels/cpu/loops.h"
