/* Text to token ids and back.
 *
 * Byte-level BPE (GPT-2, Llama-3, Qwen, SmolLM, DeepSeek, o200k pre-tokenizers) and SentencePiece-style BPE
 * with byte fallback, from Hugging Face tokenizer.json or from GGUF metadata. Read-only after opening: any
 * number of threads may use one tokenizer. Linear in the input up to a logarithm. */
#ifndef DG_TOKENIZER_H
#define DG_TOKENIZER_H

#include "runtime/file.h"

typedef struct dg_tokenizer dg_tokenizer;

/* dir/tokenizer.json (and tokenizer_config.json, special_tokens_map.json, chat_template.jinja beside it for
 * bos/eos and the chat template), else dir/tokenizer.model of sentencepiece. UNSUPPORTED names a model,
 * normaliser or pre-tokenizer that is not known. */
dg_status dg_tokenizer_open_json(const char *dir, dg_tokenizer **out);
/* tokenizer.ggml.* of a GGUF file; strings are copied, f may be closed afterwards. */
dg_status dg_tokenizer_open_gguf(const dg_file *f, dg_tokenizer **out);
void dg_tokenizer_close(dg_tokenizer *t); /* NULL is fine */

enum {
    DG_ENCODE_BOS = 1,      /* add what the file's post-processor adds (BOS, where it has one) */
    DG_ENCODE_SPECIAL = 2   /* recognise special tokens in the text; else they are ordinary text */
};

/* Writes at most cap ids and always stores the full count in *n. text is UTF-8; ill-formed bytes become
 * U+FFFD, one for each. May allocate. Errors: MEMORY; ARGUMENT beyond 1 GiB; FORMAT when a pattern of the
 * file backtracks without end on this text. */
dg_status dg_tokenizer_encode(const dg_tokenizer *t, const char *text, size_t len, int flags,
                              int32_t *ids, size_t cap, size_t *n);

/* The bytes that id adds to running text (special tokens: their text), valid while t is open; the first
 * token of a SentencePiece text keeps its leading space here. id out of range: empty. */
dg_str dg_tokenizer_bytes(const dg_tokenizer *t, int32_t id);

int32_t dg_tokenizer_size(const dg_tokenizer *t);       /* ids are below it */
int32_t dg_tokenizer_find(const dg_tokenizer *t, const char *text, size_t len); /* exact token, -1 */
bool dg_tokenizer_is_special(const dg_tokenizer *t, int32_t id);
int32_t dg_tokenizer_bos(const dg_tokenizer *t);        /* -1: none */
int32_t dg_tokenizer_eos(const dg_tokenizer *t);        /* -1: none */
bool dg_tokenizer_adds_bos(const dg_tokenizer *t);
const char *dg_tokenizer_chat_template(const dg_tokenizer *t); /* Jinja text, NULL: none */
const char *dg_tokenizer_kind(const dg_tokenizer *t);   /* for `info`: "byte-level BPE, smollm" */
size_t dg_tokenizer_memory(const dg_tokenizer *t);      /* bytes held, about; for the memory plan */
/* Equal for tokenizers with the same vocabulary; for the mismatch warning. */
uint64_t dg_tokenizer_hash(const dg_tokenizer *t);

/* Streaming decode: whole UTF-8 only, no allocation. Zero-initialise; one stream for one text. */
typedef struct dg_decoder {
    char tail[8];     /* bytes of an unfinished character */
    uint8_t n_tail;
    bool started;     /* SentencePiece: the first piece loses its dummy prefix space */
} dg_decoder;

/* Appends what id completes to out (cap >= dg_tokenizer_max_bytes() + 8 never overflows), returns the bytes
 * written, possibly 0. Ill-formed sequences come out as U+FFFD as soon as they are certain. skip_special:
 * special tokens write nothing. */
size_t dg_decoder_push(const dg_tokenizer *t, dg_decoder *d, int32_t id, bool skip_special, char *out);
/* What is still held back at the end (as U+FFFD), at most 3*8 bytes. */
size_t dg_decoder_flush(dg_decoder *d, char *out);
size_t dg_tokenizer_max_bytes(const dg_tokenizer *t); /* longest token, U+FFFD expansion included */

#endif
