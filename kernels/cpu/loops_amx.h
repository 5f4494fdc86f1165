/* Products of packed weights by AMX int8 tiles: what loops_packed.h takes many rows of x to.
 *
 * Both layouts of packed.h are tiles as they lie: a row of a strip's q is four columns of 16 outputs, so the rows of
 * 32 columns are the right factor, and the digits of up to 16 rows of x in a dg_act_block are the left one. A tile
 * product sums them in integers; the steps in f32 are those of strip_tile, so the results are its bits.
 *
 * The tile unit works apart from the vector units and takes its time (an estimated 150 cycles from loads to stored sums).
 * So the products of a part are asked for before the sums of the part before it are added up. */

#ifdef DG_TILE_MODEL
#include "kernels/cpu/amx_model.h"
#else
/* Tiles are named in the instruction: t, c, a and b are numerals. GCC does not know what the loads read. */
#define TILE_READS(p)              __asm__ volatile("" ::"r"(p) : "memory")
#define tile_config(shapes)        do { TILE_READS(shapes); _tile_loadconfig(shapes); } while (0)
#define tile_zero(t)               _tile_zero(t)
#define tile_load(t, from, stride) do { TILE_READS(from); _tile_loadd(t, from, stride); } while (0)
#define tile_dot(c, a, b)          _tile_dpbsud(c, a, b) /* a signed, b unsigned */
#define tile_store(t, to, stride)  _tile_stored(t, to, stride)
#define tile_release()             _tile_release()
#endif

/* Rows from which tiles are used. By count of instructions, vectors spend 11 cycles a row on 32 columns of 16 outputs;
 * tiles 3, and not below 40 to 50 for the tile unit's own way. Estimated: a processor with tiles would settle it. */
enum { AMX_ROWS = 5 };

/* The operand of LDTILECFG: of each tile its columns in bytes and its rows. */
typedef struct tile_shapes {
    _Alignas(64) uint8_t palette;
    uint8_t start_row, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} tile_shapes;
_Static_assert(sizeof(tile_shapes) == 64, "the operand of LDTILECFG");

/* Tiles 0 to 3 are sums, 4 and 5 codes, 6 and 7 digits of x: `rows` of them, also where fewer remain at the end; what is
 * left of a dg_act_block is garbage then, in sums that nobody reads. */
static void amx_begin(int32_t rows, strip_kind kind) {
    const int quads = kind == STRIP_HALVES ? 4 : 8;
    tile_shapes shapes = {.palette = 1};
    for (int t = 0; t < 8; t++) {
        shapes.bytes[t] = (uint16_t)(t < 6 ? 64 : 4 * quads);
        shapes.rows[t] = (uint8_t)(t == 4 || t == 5 ? quads : rows);
    }
    tile_config(&shapes);
}

/* A thread without tiles in use is cheap to switch. */
static void amx_end(void) { tile_release(); }

typedef uint32_t tile_sums[DG_ROW_TILE][DG_PACK_OUTS];

/* The sums of one part, 32 or 16 columns, for each digit. Even and odd parts have tiles of their own. */
ALWAYS_INLINE void amx_part(const uint8_t (*q)[64], const int8_t *digit, int digits, int odd, tile_sums dot[2]) {
#define AMX_PART(c0, c1, b)                          \
    do {                                             \
        tile_load(b, q, 64);                         \
        tile_load(6, digit, 64);                     \
        tile_zero(c0);                               \
        tile_dot(c0, 6, b);                          \
        if (digits == 2) {                           \
            tile_load(7, digit + DG_BLOCK, 64);      \
            tile_zero(c1);                           \
            tile_dot(c1, 7, b);                      \
        }                                            \
        tile_store(c0, dot[0], 64);                  \
        if (digits == 2) tile_store(c1, dot[1], 64); \
    } while (0)
    if (odd)
        AMX_PART(2, 3, 5);
    else
        AMX_PART(0, 1, 4);
#undef AMX_PART
}

ALWAYS_INLINE void amx_rows(const dg_strip *s, int32_t n_block, const dg_act_block *x, int32_t rows, int digits,
                            strip_kind kind, float (*sums)[DG_PACK_OUTS], strip_ahead ahead) {
    const int halves = kind == STRIP_HALVES, quads = halves ? 4 : 8; /* part p: of block p >> halves */
    const int32_t n = n_block << halves;
    _Alignas(64) tile_sums dots[2][2]; /* of even and odd parts, of each digit */
    v16 sum[DG_ROW_TILE];
#pragma GCC unroll 16
    for (int r = 0; r < DG_ROW_TILE; r++) sum[r] = v16_load(sums[r < rows ? r : 0]);
    amx_part(s->q, x->digit[0][0], digits, 0, dots[0]);
    for (int32_t p = 0; p < n; p++) {
        const int32_t next = p + 1;
        if (!(p & halves)) fetch_block(&ahead);
        if (next < n)
            amx_part(s->q + quads * next, x[next >> halves].digit[0][0] + 16 * (next & halves), digits, next % 2,
                     dots[next % 2]);
        const v16 d = v16_load(s->d[p]), m = v16_load(s->m[p]);
        const dg_act_block *const at = x + (p >> halves);
        const float *total = halves ? at->half_sum[p & 1] : at->sum;
        const tile_sums *dot = dots[p % 2];
#pragma GCC unroll 16
        for (int r = 0; r < DG_ROW_TILE; r++) {
            if (r >= rows) break;
            const w16 low = w16_load(dot[digits - 1][r]);
            const w16 all = digits == 2 ? w16_add(w16_shl(w16_load(dot[0][r]), 7), low) : low;
            sum[r] = add_part(sum[r], all, at->scale[r], total[r], d, m);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < DG_ROW_TILE; r++)
        if (r < rows) v16_store(sums[r], sum[r]);
}

/* sums[r] += n_block blocks of the first rows of x by the strip. The registers are for its own sums. */
static __attribute__((noinline)) void amx_strip(const dg_strip *s, int32_t n_block, const dg_act_block *x, int32_t rows,
                                                int digits, strip_kind kind, float (*sums)[DG_PACK_OUTS],
                                                strip_ahead ahead) {
    if (digits == 2)
        amx_rows(s, n_block, x, rows, 2, kind, sums, ahead);
    else
        amx_rows(s, n_block, x, rows, 1, kind, sums, ahead);
}
