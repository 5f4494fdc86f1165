/* Drafting by the longest suffix match: what followed the latest earlier occurrence of the longest suffix of
 * the text is proposed again. As a retriever, for whoever combines sources, and as the drafter "ngram". */
#ifndef DG_NGRAM_H
#define DG_NGRAM_H

#include "graft/retriever.h"
#include "graft/suffix.h"

enum { DG_NGRAM_MAX_ALTERNATIVES = 8 };

typedef struct dg_ngram_options {
    int32_t min_match;    /* tokens, >= 1: shorter matches propose nothing */
    int32_t alternatives; /* chains emitted at most, 1..DG_NGRAM_MAX_ALTERNATIVES */
} dg_ngram_options;

/* For a text and a path, text + path being what has to be continued:
 *  - Matches are suffixes of text + path that occur inside the text, the longest first, among equals the
 *    latest first. (Occurrences that overlap a path of several tokens are not looked for.)
 *  - The chain of a match is what follows it in text + path + the chain itself, so that a period is continued
 *    for ever and a match near the end gives as many tokens as any other.
 *  - A match whose first token was proposed already is passed over. */
typedef struct dg_ngram_retriever {
    dg_retriever base;
    dg_ngram_options options;
    dg_suffix text;
    int32_t chain[DG_TREE_MAX];
    float score[DG_TREE_MAX];
} dg_ngram_retriever;

/* A token that may follow: `len` tokens before it are those before position pos of the text, where it stands.
 */
typedef struct dg_ngram_next {
    int32_t token, pos, len;
} dg_ngram_next;

/* At most max (<= DG_NGRAM_MAX_ALTERNATIVES) different tokens that followed match m or one of its shorter
 * suffixes of min_match tokens or more: the longest match first, among equals the latest first. root: what
 * follows the text. Returns how many. */
int32_t dg_ngram_find(const dg_ngram_retriever *r, dg_suffix_match m, int32_t root, int32_t max,
                      dg_ngram_next *out);

void dg_ngram_layout(dg_ngram_retriever *r, const dg_ngram_options *options, dg_arena *host, int32_t context);

/* The drafter: an ngram retriever asked at the root. */
extern const dg_drafter_ops dg_ngram;

/* Estimated log-probability that the token after a match of `len` tokens (>= 1) is right. Ours: the share of
 * right tokens in greedy answers of SmolLM2-135M-Instruct, smoothed to rise with the length. */
float dg_ngram_logp(int32_t len);

#endif
