/* Packed weights and the activations that they are multiplied by: the two layouts, shared by pack.c, which
 * writes the weights once, and loops_packed.h, which reads both.
 *
 * A panel is 16 rows of w. Its blocks (GGUF's, unchanged to the byte count) lie one after the other along k,
 * each with the 16 rows interleaved: of every 2- or 4-byte piece of the block first the 16 rows', then the
 * next piece. Rows behind the last of w repeat it. So a vector of 16 lanes takes four codes of 16 outputs in one load, an output's sum never leaves
 * its lane, and a panel is read as one stream. */
#ifndef DG_PACKED_H
#define DG_PACKED_H

#include "kernels/tensor.h"

enum {
    DG_PACK_OUTS = 16, /* rows of w in a panel */
    DG_BLOCK = 32,     /* columns that share an activation scale */
    DG_ROW_TILE = 16,  /* rows of x in a dg_act_block */
    DG_PASS_ROWS = 128, /* rows of x that one reading of the weights serves */
    DG_STRIP = 768     /* columns of a panel that are decoded together: whole blocks of every type */
};

/* 32 columns of 16 rows of x in fixed point: x = scale * a. With two digits a = 128 * digit[0] + digit[1], 14
 * bits in two digits of 7, so that two products with 8-bit codes fit 16 bits together; with one digit a =
 * digit[0], 8 bits. sum = scale * (sum of a), half_sum that of each half. */
typedef struct dg_act_block {
    int8_t digit[DG_ROW_TILE][2][DG_BLOCK];
    float scale[DG_ROW_TILE], sum[DG_ROW_TILE], half_sum[2][DG_ROW_TILE];
} dg_act_block;

/* Columns of a panel as they are multiplied: w = d * q + m. q holds four columns of the 16 outputs at a time;
 * d and m are per 32 columns, or per 16 for the types that scale so. */
typedef struct dg_strip {
    _Alignas(64) uint8_t q[DG_STRIP / 4][4 * DG_PACK_OUTS];
    float d[DG_STRIP / 16][DG_PACK_OUTS], m[DG_STRIP / 16][DG_PACK_OUTS];
} dg_strip;

/* Whether there is a packed form of this type. */
bool dg_pack_has(dg_dtype dtype);

/* Interleaves panels [p0, p1) of w (as its own type, or through Q8_0 when that is `as`) into dst, panel 0's place. */
void dg_pack_panels(dg_mat w, dg_dtype as, void *dst, int32_t p0, int32_t p1);

#endif
