/* Small model files made by hand, for the tests of the loaders. */
#ifndef DG_TESTS_FILES_H
#define DG_TESTS_FILES_H

#include <stddef.h>
#include <stdint.h>

/* Bytes to write to a file. All numbers little-endian. */
typedef struct bytes {
    uint8_t p[1 << 16];
    size_t n;
} bytes;

void put(bytes *b, const void *p, size_t n);
void put_int(bytes *b, uint64_t v, int width);
void put_f32(bytes *b, float v);

/* The value types of GGUF, by number. */
enum {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64
};

/* Parts of a GGUF file. put_key writes name and type; the value follows by put_int, put_f32 or put_str. */
void put_gguf(bytes *b, uint32_t version, uint64_t n_tensor, uint64_t n_key);
void put_str(bytes *b, const char *s);
void put_key(bytes *b, const char *name, uint32_t type);
void put_key_str(bytes *b, const char *name, const char *value);
void put_key_u32(bytes *b, const char *name, uint32_t value);
void put_array(bytes *b, const char *name, uint32_t type, uint64_t n);
void put_tensor(bytes *b, const char *name, const uint64_t *ne, uint32_t n_dim, uint32_t type,
                uint64_t offset);
void put_align(bytes *b, size_t alignment); /* zeros up to a multiple */

/* A safetensors file of this header (padded with spaces if pad) and n_data bytes 0, 1, 2, … */
void put_safetensors(bytes *b, const char *header, size_t n_data);

/* Writes DIR/name and returns its path (a ring of 8). */
const char *save(const char *dir, const char *name, const void *p, size_t n);
const char *save_text(const char *dir, const char *name, const char *text);

/* Deletes a test's folder. */
void remove_tree(const char *dir);

/* A small, sound file of each container; with every value type in the GGUF. */
void sample_safetensors(bytes *b);
void sample_gguf(bytes *b);

#endif
