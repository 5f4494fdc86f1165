/* Tokenizers made by hand, as the JSON of Hugging Face's library. */
#ifndef DG_TESTS_TOKENS_H
#define DG_TESTS_TOKENS_H

#include <jansson.h>

#include "runtime/tokenizer.h"

/* A byte-level tokenizer: token b is the byte b, no merges, one piece. */
json_t *tokens_bytes(void);
/* A SentencePiece-style one: tokens <unk> (0), <0x00>.. (1 to 256), then the characters of `chars`. */
json_t *tokens_pieces(const char *chars);

/* Adds the rule a b (raw bytes for byte-level ones); the token ab gets the next id unless it is there. */
void tokens_merge(json_t *root, const char *a, const char *b);
/* Adds the token with the next id, without a rule; returns the id. */
int32_t tokens_add(json_t *root, const char *text);
/* Adds an added token; flags: any of "special lstrip rstrip single_word normalized". Returns its id. */
int32_t tokens_added(json_t *root, const char *text, const char *flags);
/* Replaces a part of the tokenizer by JSON text. */
void tokens_set(json_t *root, const char *key, const char *json);

/* Writes DIR/tokenizer.json (takes root) and opens it. */
dg_status tokens_try(const char *dir, json_t *root, dg_tokenizer **out);
dg_tokenizer *tokens_open(const char *dir, json_t *root); /* must succeed */

/* Encodes and compares with ids up to -1. */
void check_tokens(const dg_tokenizer *t, const char *text, size_t len, int flags, const int32_t *want);
#define check_ids(t, text, flags, ...) \
    check_tokens(t, text, sizeof(text) - 1, flags, (const int32_t[]){__VA_ARGS__, -1})

#endif
