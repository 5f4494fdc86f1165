/* Ops that move rows: copies, embedding lookup, cache append and gather, the successor matrix. */
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/quant.h"

static size_t row_bytes(dg_mat m) { return dg_dtype_bytes(m.dtype, (size_t)m.cols); }

void dg_cpu_copy2d(dg_backend *be, dg_mat dst, dg_mat src) {
    (void)be;
    for (int32_t r = 0; r < dst.rows; r++) memcpy(dg_mat_row(&dst, r), dg_mat_row(&src, r), row_bytes(dst));
}

void dg_cpu_zero(dg_backend *be, dg_mat dst) {
    (void)be;
    for (int32_t r = 0; r < dst.rows; r++) memset(dg_mat_row(&dst, r), 0, row_bytes(dst));
}

void dg_cpu_embed(dg_backend *be, dg_mat out, dg_mat table, const int32_t *id) {
    (void)be;
    for (int32_t r = 0; r < out.rows; r++)
        dg_dequant_row(table.dtype, dg_mat_row(&table, id[r]), dg_mat_row(&out, r), (size_t)out.cols);
}

void dg_cpu_rows_put(dg_backend *be, dg_mat dst, const int32_t *row0, dg_mat src) {
    const dg_isa *isa = dg_cpu_of(be)->isa;
    for (int32_t r = 0; r < src.rows && *row0 + r < dst.rows; r++) {
        void *to = dg_mat_row(&dst, *row0 + r);
        const float *from = dg_mat_row(&src, r);
        if (dst.dtype == DG_F32)
            memcpy(to, from, row_bytes(src));
        else
            (dst.dtype == DG_F16 ? isa->to_f16 : isa->to_bf16)(to, from, src.cols);
    }
}

void dg_cpu_rows_gather(dg_backend *be, dg_mat dst, dg_mat src, const int32_t *idx) {
    (void)be;
    for (int32_t r = 0; r < dst.rows; r++) {
        void *to = dg_mat_row(&dst, r);
        const void *from = dg_mat_row(&src, idx[r]);
        if (to != from) memcpy(to, from, row_bytes(dst));
    }
}

/* Another row with the same token goes before row i. */
static bool outranked(const int32_t *token, const int32_t *prio, int32_t n, int32_t i) {
    for (int32_t j = 0; j < n; j++)
        if (token[j] == token[i] && (prio[j] > prio[i] || (prio[j] == prio[i] && j > i))) return true;
    return false;
}

void dg_cpu_succ_update(dg_backend *be, dg_mat m, const int32_t *token, dg_mat id, const int32_t *prio) {
    (void)be;
    for (int32_t i = 0; i < id.rows; i++)
        if (token[i] >= 0 && token[i] < m.rows && !outranked(token, prio, id.rows, i))
            memcpy(dg_mat_row(&m, token[i]), dg_mat_row(&id, i), row_bytes(m));
}

void dg_cpu_succ_expand(dg_backend *be, int32_t *id, dg_mat m, const int32_t *parent, const int32_t *rank,
                        int32_t n_root, int32_t n) {
    (void)be;
    for (int32_t i = n_root; i < n; i++) {
        const int32_t from = id[parent[i]];
        const int32_t to = from >= 0 && from < m.rows ? ((const int32_t *)dg_mat_row(&m, from))[rank[i]] : -1;
        id[i] = to >= 0 && to < m.rows ? to : -1;
    }
}
