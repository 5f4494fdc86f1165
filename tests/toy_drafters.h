/* Drafters that exist in tests only: the oracle knows the answer (all accepted), the liar never says what is true, the random one
 * grows bushy trees of noise. */
#ifndef DG_TESTS_TOY_DRAFTERS_H
#define DG_TESTS_TOY_DRAFTERS_H

#include "runtime/drafter.h"

void toy_drafters_register(void);

/* What the oracle (and the liar) shall believe of sequence `which`: prompt, then answer. */
void toy_oracle_knows(int which, const int32_t *prompt, int32_t n_prompt, const int32_t *answer, int32_t n);

#endif
