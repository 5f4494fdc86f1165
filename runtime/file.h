/* A model file as both loaders produce it: named tensors, metadata, and the mapping that owns the bytes.
 *
 * Knows nothing of architectures (config.h) or of which tensor is which (bind.h). Everything read here is
 * untrusted: sizes, offsets, counts and nesting are checked once, here, with overflow-safe arithmetic, and
 * failures are DG_ERR_FORMAT messages naming file, field, expected and found. */
#ifndef DG_FILE_H
#define DG_FILE_H

#include <jansson.h>

#include "kernels/tensor.h"
#include "runtime/status.h"

enum { DG_MAX_DIMS = 4 };

typedef struct dg_file_tensor {
    const char *name;           /* owned by the dg_file */
    const void *data;           /* into the mapping (aligned as the file has it, at least 1) */
    size_t size;                /* bytes */
    int64_t dim[DG_MAX_DIMS];   /* slowest first, as in PyTorch, whatever the container */
    int32_t n_dim;
    dg_dtype dtype;
} dg_file_tensor;

typedef enum dg_container { DG_CONTAINER_SAFETENSORS, DG_CONTAINER_GGUF } dg_container;

typedef enum dg_meta_type { DG_META_U64, DG_META_I64, DG_META_F64, DG_META_BOOL, DG_META_STRING } dg_meta_type;

typedef struct dg_str {
    const char *ptr; /* not NUL-terminated */
    size_t len;
} dg_str;

/* One GGUF key. Scalars have n = 1 and is_array = false. Integers of all widths are widened to u64/i64,
 * floats to f64. Arrays of strings are indexed; arrays of numbers stay in the mapping. */
typedef struct dg_meta {
    dg_str key;
    dg_meta_type type;
    bool is_array;
    uint64_t n;
    const void *data;     /* numbers: packed elements of `width` bytes, unaligned, in the mapping */
    const dg_str *string; /* strings: [n] */
    int32_t width;
} dg_meta;

typedef struct dg_file {
    char *path;                    /* as given: the directory or the .gguf file */
    dg_container container;
    dg_file_tensor *tensor;        /* sorted by name */
    size_t n_tensor;
    json_t *config;                /* safetensors: config.json; NULL for GGUF */
    json_t *generation;            /* safetensors: generation_config.json, or NULL */
    dg_meta *meta;                 /* GGUF: sorted by key; NULL for safetensors */
    size_t n_meta;
    size_t mapped;                 /* bytes of weights mapped, for the memory plan */
    struct dg_mapping *mapping;    /* the loader's own list of mapped files */
    size_t n_mapping;
} dg_file;

/* Opens a Hugging Face directory (config.json; model.safetensors, or the shards named in
 * model.safetensors.index.json), a single .safetensors file (config: the config.json beside it, or NULL), or a
 * GGUF file, told apart by what is there, not by the name. Errors: IO, FORMAT, UNSUPPORTED (GGUF version, big endian,
 * unknown dtype: named), MEMORY. The file stays mapped until dg_file_close (NULL is fine). */
dg_status dg_file_open(const char *path, dg_file **out);
void dg_file_close(dg_file *f);

/* Lets the pages that lie wholly in these bytes of a mapping go; reading them again fetches them again. */
void dg_file_forget(const void *data, size_t size);

/* The two loaders behind it. */
dg_status dg_safetensors_open(const char *path, dg_file **out);
dg_status dg_gguf_open(const char *path, dg_file **out);

/* NULL if absent. */
const dg_file_tensor *dg_file_find(const dg_file *f, const char *name);

/* The tensor as a matrix [rows, cols] (1-D: one row). The caller has checked n_dim <= 2. */
dg_mat dg_file_mat(const dg_file_tensor *t);

/* GGUF metadata; each returns false if the key is absent, and a FORMAT failure through *st if it is there with
 * another type (st may be NULL: then that counts as absent). */
const dg_meta *dg_meta_find(const dg_file *f, const char *key);
bool dg_meta_u64(const dg_file *f, const char *key, uint64_t *v, dg_status *st);
bool dg_meta_f64(const dg_file *f, const char *key, double *v, dg_status *st);
bool dg_meta_bool(const dg_file *f, const char *key, bool *v, dg_status *st);
bool dg_meta_str(const dg_file *f, const char *key, dg_str *v, dg_status *st);
/* Element i of a numeric array (or of a scalar, i = 0) as a number. */
double dg_meta_number(const dg_meta *m, uint64_t i);
int64_t dg_meta_int(const dg_meta *m, uint64_t i);

/* Reads a whole text file (at most max bytes) into a fresh NUL-terminated buffer; free with dg_mem_free. */
dg_status dg_file_slurp(const char *path, size_t max, char **text, size_t *len);

/* Parses JSON text with jansson under a depth limit; messages name `what` (the file). json_decref the
 * result. */
dg_status dg_json_parse(const char *what, const char *text, size_t len, json_t **out);

#endif
