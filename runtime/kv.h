/* The key/value cache of one sequence and one network: `len` committed rows (cache row r is position r), then
 * `win` window rows on trial. Targets and drafters use the same type. Knows no tokens and no trees. */
#ifndef DG_KV_H
#define DG_KV_H

#include "kernels/ops.h"
#include "runtime/mem.h"

typedef struct dg_kv {
    dg_mat *k, *v;      /* [n_layer] of [cap, G*hd], cap in whole blocks; only the kv_ ops know what lies where */
    int32_t *win_pos;   /* device [win_cap]: absolute positions of the window rows, see dg_batch_begin */
    int32_t n_layer, cap, win_cap, len, win;
    int32_t width, head_dim; /* G*hd, hd */
    dg_dtype dtype; /* of every row, committed or on trial: f32 or f16 */
} dg_kv;

/* Carves a cache of cap rows for n_layer layers; windows of up to win_cap rows. A row is rounded to
 * dtype once, when it is stored, and its own pass already attends to the rounded row: so a token's K and V are the
 * same bits whichever batch wrote them and whoever reads them. */
void dg_kv_layout(dg_kv *kv, int32_t n_layer, int32_t cap, int32_t win_cap, int32_t n_kv_head, int32_t head_dim,
                  dg_dtype dtype, dg_arena *host, dg_arena *dev);

/* Opens n more window rows; their cache rows are len + win - n onwards. */
void dg_kv_append(dg_kv *kv, int32_t n);

/* Makes window rows path[0..n) (device; ascending from 0, path[i] >= i) the committed rows len..len+n-1 of every layer
 * and drops the rest of the window. */
void dg_kv_commit(dg_backend *be, dg_kv *kv, const int32_t *path, int32_t n);

/* The same where the path is 0..n-1: nothing moves. */
void dg_kv_keep(dg_kv *kv, int32_t n);

/* Drops the window and every committed row from len on. */
void dg_kv_truncate(dg_kv *kv, int32_t len);

/* Bytes of K and V rows; known as soon as the layout was counted. */
uint64_t dg_kv_bytes(const dg_kv *kv);

#endif
