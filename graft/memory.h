/* What the grafting drafters remember: M, the successors of every token, and the suffix automaton of the
 * running text. Either may be switched off. */
#ifndef DG_MEMORY_H
#define DG_MEMORY_H

#include "graft/ngram.h"
#include "graft/succ.h"

typedef struct dg_memory {
    dg_succ succ;
    dg_ngram_retriever text;
    bool use_m, use_text;
    bool request; /* what M learns ends with the text: a rewind brings back what it started with */
    int32_t prompt; /* longest run of prompt tokens that the target's head goes over for M; beyond it, bigrams */
    int32_t *warm; /* owned; what M starts with, NULL: nothing */
} dg_memory;

/* M and text, M over all texts of the session, which learns bigrams from prompts. */
void dg_memory_defaults(dg_memory *m);

/* Reads env->path, if there is one: a matrix or a text to warm M up (dg_succ_read). */
dg_status dg_memory_open(dg_memory *m, const dg_drafter_env *env);
void dg_memory_close(dg_memory *m);

/* t: the template that dg_succ_expand will take. min_match, alternatives: of the text's matches. */
void dg_memory_layout(dg_memory *m, const dg_drafter_env *env, const dg_template *t,
                      const dg_ngram_options *o, dg_arena *host, dg_arena *dev);
void dg_memory_wants(const dg_memory *m, dg_wants *w);
void dg_memory_observe(dg_memory *m, const dg_outcome *o);
void dg_memory_rewind(dg_memory *m, int32_t len);

/* What the structs of drafters with such a memory begin with, and the operations that concern it alone. */
typedef struct dg_rememberer {
    dg_drafter base;
    dg_memory memory;
} dg_rememberer;

void dg_rememberer_wants(const dg_drafter *d, dg_wants *w);
dg_status dg_rememberer_observe(dg_drafter *d, const dg_outcome *o);
void dg_rememberer_rewind(dg_drafter *d, int32_t len);
dg_status dg_rememberer_save(const dg_drafter *d, const char *path);
void dg_rememberer_close(dg_drafter *d);

#endif
