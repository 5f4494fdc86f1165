/* Text of a running answer: token ids in, whole UTF-8 out, held back while it may be the start of a stop string.
 * Stop strings may span tokens and begin inside one. No allocation after layout. */
#ifndef DG_TEXT_H
#define DG_TEXT_H

#include "runtime/mem.h"
#include "runtime/tokenizer.h"

typedef struct dg_text {
    const dg_tokenizer *tokenizer; /* NULL: no text, no stop strings */
    const char **stop;             /* [n_stop], NUL-terminated, owned by the arena */
    size_t n_stop;
    dg_decoder decoder;
    char *held;       /* decoded, not done with: at most the longest stop string and one token */
    size_t n_held, n_told; /* the first n_told of them were released all the same, see dg_text_tell */
    size_t longest;        /* stop string */
    char *out;        /* released since the last dg_text_round */
    size_t n_out, out_cap;
} dg_text;

/* max_round: tokens pushed at most between two dg_text_round. Copies the strings. */
void dg_text_layout(dg_text *t, const dg_tokenizer *tokenizer, const char *const *stop, size_t n_stop, size_t max_round,
                    dg_arena *host);

/* A new answer. goes_on: text stands before it, so that its first space is a space (see dg_decoder). */
void dg_text_reset(dg_text *t, bool goes_on);
void dg_text_round(dg_text *t); /* empties `out` */

/* Adds a token; true when a stop string is now complete: text up to it has been released, the rest is gone. */
bool dg_text_push(dg_text *t, int32_t token);

/* Releases what is held back; at the end of a text that no stop string ended. */
void dg_text_flush(dg_text *t);

/* The same where the text may go on: a stop string that has begun can still be completed, and the beginning of a character
 * stays back. */
void dg_text_tell(dg_text *t);

/* How many bytes before a place can matter behind it. */
size_t dg_text_reach(const dg_text *t);

#endif
