/* Writing packed weights (layout: packed.h). Runs once a weight, at load. */
#include "kernels/cpu/packed.h"

#include <string.h>

#include "kernels/quant.h"

/* A run of equal pieces of a block. bits: one piece whose bit i belongs to code i; packed so that bit j of byte b
 * belongs to code 4j+b, the order of the codes' own vectors. */
typedef struct piece {
    int16_t offset, size, count;
    bool bits;
} piece;

enum { MAX_PIECES = 4 };

static const struct {
    piece piece[MAX_PIECES];
} layout[DG_DTYPE_COUNT] = {
    [DG_Q4_0] = {{{0, 2, 1, 0}, {2, 4, 4, 0}}},
    [DG_Q4_1] = {{{0, 2, 2, 0}, {4, 4, 4, 0}}},
    [DG_Q5_0] = {{{0, 2, 1, 0}, {2, 4, 1, 1}, {6, 4, 4, 0}}},
    [DG_Q5_1] = {{{0, 2, 2, 0}, {4, 4, 1, 1}, {8, 4, 4, 0}}},
    [DG_Q8_0] = {{{0, 2, 1, 0}, {2, 4, 8, 0}}},
    [DG_Q4_K] = {{{0, 2, 2, 0}, {4, 4, 35, 0}}},
    [DG_Q5_K] = {{{0, 2, 2, 0}, {4, 4, 43, 0}}},
    [DG_Q6_K] = {{{208, 2, 1, 0}, {192, 4, 4, 0}, {128, 4, 16, 0}, {0, 4, 32, 0}}},
};

bool dg_pack_has(dg_dtype dtype) { return layout[dtype].piece[0].size != 0; }

static uint32_t spread_bits(uint32_t x) {
    uint32_t y = 0;
    for (uint32_t i = 0; i < 32; i++) y |= (x >> i & 1) << (8 * (i % 4) + i / 4);
    return y;
}

static void spread_all(uint8_t *p) {
    uint32_t v[DG_PACK_OUTS];
    memcpy(v, p, sizeof v);
    for (int o = 0; o < DG_PACK_OUTS; o++) v[o] = spread_bits(v[o]);
    memcpy(p, v, sizeof v);
}

/* One block of 16 rows; returns the place of the next. */
static uint8_t *interleave(dg_dtype dtype, const uint8_t *const row[DG_PACK_OUTS], size_t at, uint8_t *dst) {
    for (const piece *p = layout[dtype].piece; p < layout[dtype].piece + MAX_PIECES && p->size; p++)
        for (int c = 0; c < p->count; c++) {
            const size_t from = at + (size_t)(p->offset + c * p->size);
            uint8_t *const first = dst;
            if (p->size == 2)
                for (int o = 0; o < DG_PACK_OUTS; o++, dst += 2) memcpy(dst, row[o] + from, 2);
            else
                for (int o = 0; o < DG_PACK_OUTS; o++, dst += 4) memcpy(dst, row[o] + from, 4);
            if (p->bits) spread_all(first);
        }
    return dst;
}

enum { PIECE = 256 }; /* columns at a time: whole blocks of every type */

/* What interleave reads: 256 columns of 16 rows, their bytes in the file or quantised to Q8_0. */
typedef struct source {
    const uint8_t *row[DG_PACK_OUTS];
    uint8_t quantised[DG_PACK_OUTS][PIECE / 32 * 34];
} source;

static const uint8_t *row_at(dg_mat w, int32_t m, int32_t k) {
    const uint8_t *row = dg_mat_row(&w, m < w.rows ? m : w.rows - 1);
    return row + dg_dtype_bytes(w.dtype, (size_t)k);
}

static void quantise(dg_mat w, int32_t m, int32_t k, int32_t n, source *s) {
    float value[PIECE];
    for (int32_t o = 0; o < DG_PACK_OUTS; o++) {
        const uint8_t *row = row_at(w, m + o, k);
        dg_dequant_row(w.dtype, row, value, (size_t)n);
        dg_quant_row(DG_Q8_0, value, s->quantised[o], (size_t)n);
        s->row[o] = s->quantised[o];
    }
}

void dg_pack_panels(dg_mat w, dg_dtype as, void *dst, int32_t p0, int32_t p1) {
    const dg_dtype_info *info = dg_dtype_get(as);
    const size_t panel = DG_PACK_OUTS * dg_dtype_bytes(as, (size_t)w.cols);
    source s;
    for (int32_t p = p0; p < p1; p++) {
        uint8_t *to = (uint8_t *)dst + panel * (size_t)p;
        for (int32_t k = 0; k < w.cols; k += PIECE) {
            const int32_t m = p * DG_PACK_OUTS, n = w.cols - k < PIECE ? w.cols - k : PIECE;
            if (as != w.dtype)
                quantise(w, m, k, n, &s);
            else
                for (int32_t o = 0; o < DG_PACK_OUTS; o++) s.row[o] = row_at(w, m + o, k);
            for (int32_t b = 0; b < n / info->block_len; b++)
                to = interleave(as, s.row, (size_t)b * (size_t)info->block_size, to);
        }
    }
}
