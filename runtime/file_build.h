/* What the two loaders share while they build a dg_file: mappings, tensor sizes, the final order. Private to
 * file.c, safetensors.c and gguf.c. */
#ifndef DG_FILE_BUILD_H
#define DG_FILE_BUILD_H

#include "runtime/file.h"

/* One mapped file. */
struct dg_mapping {
    char *path;
    const uint8_t *data;
    size_t size;
};

/* An empty dg_file; free with dg_file_close whatever was added to it. */
dg_status dg_file_new(const char *path, dg_container container, dg_file **out);

/* Maps a regular file read-only and adds it to f->mapping (the new one is the last). IO if it cannot be
 * opened, FORMAT if it is empty. */
dg_status dg_file_map(dg_file *f, const char *path);

/* Room for n more tensors, zeroed; the caller counts n_tensor up as they become valid. */
dg_status dg_file_reserve(dg_file *f, size_t n);

/* Sets t->size from dtype and dim. FORMAT when a dimension is out of range, the product overflows or a
 * quantised row is not whole blocks. */
dg_status dg_tensor_measure(const char *path, dg_file_tensor *t);

/* Sorts n tensors of one mapped file by address; FORMAT if two share bytes. base: what offsets in the message
 * are counted from. */
dg_status dg_tensor_layout(const char *path, dg_file_tensor *t, size_t n, const uint8_t *base);

/* Sorts the tensors by name; FORMAT if a name occurs twice. */
dg_status dg_file_index(dg_file *f);

/* Reads and parses DIR/name, where DIR is f->path or, for a file, the folder it lies in. Absent: *out is
 * NULL, and that is an IO failure if required. The value must be an object. */
dg_status dg_file_json(const dg_file *f, const char *name, bool required, json_t **out);

/* FORMAT for a name that is empty or holds control characters (they would end up in messages). */
dg_status dg_name_check(const char *path, const char *what, const char *name, size_t len);

#endif
