/* What drafts from memory: learns from committed text, then continues any path from the root with chains of
 * tokens it has seen. A retriever never sees the tree; who asks decides what becomes a node. */
#ifndef DG_RETRIEVER_H
#define DG_RETRIEVER_H

#include "runtime/drafter.h"

typedef struct dg_retriever dg_retriever;

/* One chain of n >= 1 tokens that may follow the path. score[i]: log of the estimated probability that
 * token[0..i] are all accepted, given that the path is. Both valid during the call. */
typedef void dg_retriever_emit(void *ud, const int32_t *token, const float *score, int32_t n);

typedef struct dg_retriever_ops {
    const char *name;
    /* Takes in one committed span; spans come in order, without gaps. */
    void (*learn)(dg_retriever *r, const dg_outcome *o);
    /* Emits chains of at most max_tokens tokens (at most DG_TREE_MAX - 1) that differ in their first token,
     * the most trusted first. path[0] is the root, the token after the committed text; n_path >= 1. */
    void (*extend)(dg_retriever *r, const int32_t *path, int32_t n_path, int32_t max_tokens,
                   dg_retriever_emit *emit, void *ud);
    /* Forgets everything from position len on. */
    void (*rewind)(dg_retriever *r, int32_t len);
} dg_retriever_ops;

/* First member of every retriever's own struct. */
struct dg_retriever {
    const dg_retriever_ops *ops;
};

#endif
