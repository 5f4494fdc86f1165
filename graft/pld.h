/* Prompt lookup decoding by the original rule (Saxena 2023, prompt-lookup-decoding): copy what followed an
 * earlier occurrence of the last few tokens. The baseline that drafters from memory are measured against. */
#ifndef DG_PLD_H
#define DG_PLD_H

#include "runtime/drafter.h"

/* For n = max_ngram down to 1: the earliest occurrence of the last n tokens of token[len] that starts before
 * len - n and is followed by all `n_token` tokens; *start is where those begin, -1 if no n has one; *match is
 * the n (0 if none, may be NULL). ARGUMENT if max_ngram or n_token is below 1 or max_ngram above len. */
dg_status dg_pld_find(const int32_t *token, int32_t len, int32_t max_ngram, int32_t n_token, int32_t *start,
                      int32_t *match);

extern const dg_drafter_ops dg_pld;

#endif
