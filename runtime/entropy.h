/* The entropy of a distribution given by its logits: how unsure a network is of the next token. */
#ifndef DG_ENTROPY_H
#define DG_ENTROPY_H

#include <stdint.h>

/* In nats, of the softmax of n logits; -INFINITY counts as impossible. 0 if there is nothing else. */
double dg_entropy(const float *logits, int32_t n);

#endif
