/* Suffix automaton of a growing text: for any continuation of it, the longest suffix that occurred before,
 * where it last occurred, and what followed. Online construction after Blumer et al., "The smallest automaton
 * recognizing the subwords of a text" (1985); each state also keeps the latest end of its strings.
 *
 * Knows tokens as integers, nothing of drafting. Never allocates after its layout. */
#ifndef DG_SUFFIX_H
#define DG_SUFFIX_H

#include "runtime/mem.h"

typedef struct dg_suffix_state {
    int32_t len;  /* of the longest string of the state */
    int32_t link; /* state of its longest suffix that has more occurrences; -1 at state 0, the empty string */
    int32_t end;  /* position of the last token of the latest occurrence */
    int32_t edge; /* first of its edges, -1: none */
} dg_suffix_state;

enum { DG_SUFFIX_MAX_TOKENS = 1 << 28 }; /* states and slots are numbered in int32 */

/* Slot of an open-addressing table keyed by (from, token); the edges of one state are chained as well. */
typedef struct dg_suffix_edge {
    int32_t from; /* -1: free */
    int32_t token, to, next;
} dg_suffix_edge;

typedef struct dg_suffix {
    int32_t *token; /* [cap] the text */
    int32_t n, cap;
    dg_suffix_state *state; /* [2 cap + 1] */
    int32_t n_state, last;  /* last: the state of the whole text */
    dg_suffix_edge *edge;   /* [n_slot] */
    int32_t n_slot;
} dg_suffix;

/* A string that occurs in the text: one of the strings of a state, told apart by its length. */
typedef struct dg_suffix_match {
    int32_t state, len;
} dg_suffix_match;

/* Takes room for a text of cap tokens, at most DG_SUFFIX_MAX_TOKENS (about 100 bytes a token), from the arena;
 * resets when it is not counting. */
void dg_suffix_layout(dg_suffix *s, dg_arena *host, int32_t cap);
void dg_suffix_reset(dg_suffix *s);

/* Adds one token; the text must have room. Amortised constant but for one step for each repeated suffix of
 * the text with occurrences of its own: a few in prose, up to n / p in a text that repeats with period p. */
void dg_suffix_append(dg_suffix *s, int32_t token);

/* Cuts the text to len tokens by building it anew; the result is that of appending these tokens alone. */
void dg_suffix_rewind(dg_suffix *s, int32_t len);

/* The whole text, to be followed by dg_suffix_step. */
dg_suffix_match dg_suffix_whole(const dg_suffix *s);

/* m is the longest suffix of some string x that occurs in the text: the same of x followed by token. Length 0
 * if the token never occurred. */
dg_suffix_match dg_suffix_step(const dg_suffix *s, dg_suffix_match m, int32_t token);

/* The longest suffix of m that occurs in more places; length 0 at the end. */
dg_suffix_match dg_suffix_shorter(const dg_suffix *s, dg_suffix_match m);

#endif
