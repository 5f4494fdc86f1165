/* Compiles the inner loops for one instruction set: isa_*.c define DG_ISA_TABLE and DG_ISA_NAME and include
 * this once. Everything here is static; the table is the only symbol. */
#include <float.h>
#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vec.h"
#include "kernels/gumbel.h"
#include "kernels/quant.h"

#include "kernels/cpu/loops_math.h"

#include "kernels/cpu/loops_attention.h"
#include "kernels/cpu/loops_matmul.h"
#include "kernels/cpu/loops_packed.h"
#include "kernels/cpu/loops_rows.h"
#include "kernels/cpu/loops_select.h"

const dg_isa DG_ISA_TABLE = {
    .name = DG_ISA_NAME,
    .matmul = matmul,
    .fix_row = fix_row,
    .matmul_packed = matmul_packed,
    .attend = attend,
    .attend_merge = merge,
    .attend_end = attend_end,
    .rms_norm = rms_norm,
    .swiglu = swiglu,
    .rope_halves = rope_halves,
    .rope_pairs = rope_pairs,
    .to_f16 = to_f16,
    .to_bf16 = to_bf16,
    .row_max = row_max,
    .sum_exp = sum_exp,
    .exp = exp_all,
    .gumbel_max = gumbel_max,
};
