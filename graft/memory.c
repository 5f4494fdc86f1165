/* What the grafting drafters remember; see memory.h. */
#include "graft/memory.h"

void dg_memory_defaults(dg_memory *m) {
    m->use_m = m->use_text = true;
    m->request = false;
    m->prompt = 0;
}

dg_status dg_memory_open(dg_memory *m, const dg_drafter_env *env) {
    DG_CHECK(m->use_m || !env->path, DG_ERR_ARGUMENT,
             "%s is for the successor matrix, which m=0 switches off", env->path);
    if (env->path) DG_TRY(dg_succ_read(env->model, env->path, &m->warm));
    m->succ = (dg_succ){.model = env->model, .empty = -1, .source = env->source, .warm = m->warm};
    return DG_OK;
}

void dg_memory_close(dg_memory *m) {
    dg_mem_free(m->warm);
    m->warm = NULL;
}

void dg_memory_layout(dg_memory *m, const dg_drafter_env *env, const dg_template *t,
                      const dg_ngram_options *o, dg_arena *host, dg_arena *dev) {
    if (m->use_m) dg_succ_layout(&m->succ, t, host, dev);
    if (m->use_text) dg_ngram_layout(&m->text, o, host, env->context);
}

void dg_memory_wants(const dg_memory *m, dg_wants *w) {
    *w = (dg_wants){0};
    if (m->use_m) *w = (dg_wants){DG_SUCC_WIDTH, m->prompt};
}

void dg_memory_observe(dg_memory *m, const dg_outcome *o) {
    if (m->use_m) dg_succ_learn(&m->succ, o);
    if (m->use_text) m->text.base.ops->learn(&m->text.base, o);
}

void dg_memory_rewind(dg_memory *m, int32_t len) {
    if (m->use_m && m->request) dg_succ_clear(&m->succ);
    if (m->use_text) m->text.base.ops->rewind(&m->text.base, len);
}

void dg_rememberer_wants(const dg_drafter *d, dg_wants *w) {
    dg_memory_wants(&((const dg_rememberer *)d)->memory, w);
}

dg_status dg_rememberer_observe(dg_drafter *d, const dg_outcome *o) {
    dg_memory_observe(&((dg_rememberer *)d)->memory, o);
    return DG_OK;
}

void dg_rememberer_rewind(dg_drafter *d, int32_t len) { dg_memory_rewind(&((dg_rememberer *)d)->memory, len); }

dg_status dg_rememberer_save(const dg_drafter *d, const char *path) {
    const dg_memory *m = &((const dg_rememberer *)d)->memory;
    DG_CHECK(m->use_m, DG_ERR_ARGUMENT, "drafter %s has no successor matrix to save: m=0 switches it off", d->ops->name);
    return dg_succ_save(&m->succ, path);
}

void dg_rememberer_close(dg_drafter *d) {
    dg_memory_close(&((dg_rememberer *)d)->memory);
    dg_mem_free(d);
}
