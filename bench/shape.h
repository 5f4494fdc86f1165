/* Synthetic models: the shape of a known one with random weights, for timing without its file. Owns the list of shapes and
 * of the weight types that are measured; names and keys of the file are the library's (bind.h, gguf_out.h). */
#ifndef DG_BENCH_SHAPE_H
#define DG_BENCH_SHAPE_H

#include "runtime/config.h"

enum { SHAPE_TYPES = 8, SHAPE_PRODUCTS = 5 };

/* f32, f16, bf16, q8_0, q4_0, q4_1, q4_k, q6_k */
extern const dg_dtype shape_type[SHAPE_TYPES];

/* Products of a layer that share their input, and the head. */
typedef struct shape_product {
    const char *name;
    int32_t k, m[3]; /* inputs; outputs, 0: no more */
} shape_product;

/* The configuration of a named shape into *c; false if there is none of that name. */
bool shape_find(const char *name, dg_config *c);

/* "f32, f16, ..." and "qwen3-8b, ..."; static. */
const char *shape_type_names(void);
const char *shape_names(void);

/* A measured weight type by its name; false if there is none. */
bool shape_type_find(const char *name, dg_dtype *type);

/* What the matrices of c have to be multiplied by. */
void shape_products(const dg_config *c, shape_product out[SHAPE_PRODUCTS]);

/* The first row length of c that is not whole blocks of the type; 0 if it fits. */
int32_t shape_misfit(const dg_config *c, dg_dtype type);

/* Writes a GGUF file without tokenizer: matrices of `type` that fits (see shape_misfit), each the same few random rows over
 * and over, f32 norms of 1. A row times a vector of unit squares is about as large as one of its elements, so that a pass
 * stays finite. Errors: those of dg_out and dg_gguf_out. */
dg_status shape_write(const dg_config *c, dg_dtype type, const char *path);

#endif
