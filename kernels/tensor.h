/* Data types and the matrix view that every op takes.
 *
 * Owns: dtype codes, their block geometry, dg_mat. Knows nothing of models or tokens.
 * Block layouts of the quantised types follow the GGUF specification (ggml's file format). */
#ifndef DG_TENSOR_H
#define DG_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum dg_dtype {
    DG_F32,
    DG_F16,
    DG_BF16,
    DG_F64,
    DG_I8,
    DG_I16,
    DG_I32,
    DG_I64,
    DG_U8,
    DG_BOOL,
    /* block-quantised weights, in GGUF's byte layout */
    DG_Q4_0,
    DG_Q4_1,
    DG_Q5_0,
    DG_Q5_1,
    DG_Q8_0,
    DG_Q2_K,
    DG_Q3_K,
    DG_Q4_K,
    DG_Q5_K,
    DG_Q6_K,
    DG_IQ2_XXS,
    DG_IQ2_XS,
    DG_IQ2_S,
    DG_IQ3_XXS,
    DG_IQ3_S,
    DG_IQ1_S,
    DG_IQ1_M,
    DG_IQ4_NL,
    DG_IQ4_XS,
    DG_TQ1_0,
    DG_TQ2_0,
    DG_MXFP4,
    DG_NVFP4,
    DG_DTYPE_COUNT
} dg_dtype;

/* Name as users write it ("bf16", "q4_1"), elements and bytes of one block (plain types: 1 element). */
typedef struct dg_dtype_info {
    const char *name;
    int32_t block_len;
    int32_t block_size;
} dg_dtype_info;

/* Never NULL for a valid code; defined in quant.c. */
const dg_dtype_info *dg_dtype_get(dg_dtype dtype);

/* Bytes of n elements; n must be a whole number of blocks. */
size_t dg_dtype_bytes(dg_dtype dtype, size_t n);

/* A view of a row-major matrix, never an owner. Heads, layers and feature slots are views too:
 * [n, H*hd] is also [n*H, hd]. A vector is one row. data == NULL means "absent" (optional weights). */
typedef struct dg_mat {
    void *data;
    dg_dtype dtype;
    int32_t rows, cols;
    int64_t stride; /* elements from one row to the next, >= cols; whole blocks for quantised types */
    bool packed;    /* weights in the layout that the backend's pack wrote: for its matmul alone, no view has rows */
    bool coarse;    /* packed: its matmul may take activations with 8 bits whatever the backend's precision */
    bool loose;     /* activations: the order of a row's sums in matmul may depend on how many rows there are */
} dg_mat;

static inline dg_mat dg_mat_make(void *data, dg_dtype dtype, int32_t rows, int32_t cols) {
    return (dg_mat){.data = data, .dtype = dtype, .rows = rows, .cols = cols, .stride = cols};
}

/* Start of row r. */
static inline void *dg_mat_row(const dg_mat *m, int64_t r) {
    return (char *)m->data + dg_dtype_bytes(m->dtype, (size_t)(r * m->stride));
}

/* Rows [row0, row0+n) as a view. */
static inline dg_mat dg_mat_rows(dg_mat m, int32_t row0, int32_t n) {
    m.data = dg_mat_row(&m, row0);
    m.rows = n;
    return m;
}

/* Columns [col0, col0+n) as a view (plain dtypes only). */
static inline dg_mat dg_mat_cols(dg_mat m, int32_t col0, int32_t n) {
    m.data = (char *)m.data + dg_dtype_bytes(m.dtype, (size_t)col0);
    m.cols = n;
    return m;
}

#endif
