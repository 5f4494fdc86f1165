/* Building a GGUF v3 file: keys, tensor directory, and then, by the caller and in the directory's order, the
 * data. The reader is gguf.c. Knows the container, not what the keys mean.
 *
 * Everything before the data is collected in memory. Failures stick (MEMORY) and come out of
 * dg_gguf_out_header. A key that begins with '.' gets the architecture's name in front. */
#ifndef DG_GGUF_OUT_H
#define DG_GGUF_OUT_H

#include "runtime/file.h"
#include "runtime/out.h"

enum { DG_GGUF_ALIGNMENT = 32 }; /* of every tensor's data; the caller pads with dg_out_pad */

typedef struct dg_gguf_part {
    char *p;
    size_t n, cap;
} dg_gguf_part;

typedef struct dg_gguf_out {
    const char *arch; /* borrowed */
    dg_gguf_part keys, tensors;
    uint64_t n_key, n_tensor, data; /* data: bytes promised so far, padding included */
    dg_status status;
} dg_gguf_out;

void dg_gguf_out_u32(dg_gguf_out *g, const char *key, uint32_t v);
void dg_gguf_out_f32(dg_gguf_out *g, const char *key, float v);
void dg_gguf_out_bool(dg_gguf_out *g, const char *key, bool v);
void dg_gguf_out_str(dg_gguf_out *g, const char *key, const char *s);
void dg_gguf_out_i32s(dg_gguf_out *g, const char *key, const int32_t *v, size_t n);
void dg_gguf_out_f32s(dg_gguf_out *g, const char *key, const float *v, size_t n);
void dg_gguf_out_bools(dg_gguf_out *g, const char *key, const bool *v, size_t n);
/* An array of n strings; exactly n items must follow. */
void dg_gguf_out_strings(dg_gguf_out *g, const char *key, size_t n);
void dg_gguf_out_item(dg_gguf_out *g, const char *s, size_t len);
/* A key of another file as it stands there. */
void dg_gguf_out_meta(dg_gguf_out *g, const dg_meta *m);

/* Adds a directory entry; dim slowest first. Every dtype but u8 and bool has a code in GGUF; those assert. */
void dg_gguf_out_tensor(dg_gguf_out *g, const char *name, dg_dtype dtype, const int64_t *dim, int32_t n_dim);

/* Writes everything up to the first byte of data. */
dg_status dg_gguf_out_header(const dg_gguf_out *g, dg_out *o);
void dg_gguf_out_clear(dg_gguf_out *g);

/* tokenizer.ggml.* and tokenizer.chat_template out of the Hugging Face files in dir: tokenizer.json,
 * tokenizer_config.json, chat_template.jinja, and config.json for special ids. The list of tokens is filled
 * up to n_vocab with unused ones; FORMAT if there are more. UNSUPPORTED for a tokenizer that GGUF has no name
 * for, with the part that is not known. *eos: the end-of-text id that was written, -1 for none. */
dg_status dg_gguf_out_tokenizer(dg_gguf_out *g, const char *dir, int32_t n_vocab, int32_t *eos);

#endif
