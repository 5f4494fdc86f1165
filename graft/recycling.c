/* Token Recycling (arXiv 2408.08696): a fixed template of 80 nodes, expanded from the matrix of the
 * successors that the target last found likely. The baseline of retrieval without context; M starts at 0, the
 * last row of a token wins. */
#include "graft/succ.h"

typedef struct drafter {
    dg_drafter base;
    dg_template template;
    dg_succ succ;
    int32_t *warm; /* NULL: no file */
    float score[DG_TREE_MAX];
} drafter;

static void close_drafter(dg_drafter *base) {
    if (!base) return;
    dg_mem_free(((drafter *)base)->warm);
    dg_mem_free(base);
}

extern const dg_drafter_ops dg_recycling;

static dg_status open_drafter(const dg_drafter_env *env, dg_drafter **out) {
    DG_TRY(dg_params_parse("recycling", env->params, NULL, 0));
    drafter *d = dg_mem_calloc(1, sizeof *d);
    DG_CHECK(d, DG_ERR_MEMORY, "drafter recycling: out of memory (%zu bytes)", sizeof *d);
    d->base = (dg_drafter){.ops = &dg_recycling, .env = env};
    dg_template_read(DG_TEMPLATE_RECYCLING, &d->template);
    dg_template_scores(&d->template, d->score);
    const dg_status st = env->path ? dg_succ_read(env->model, env->path, &d->warm) : DG_OK;
    if (st != DG_OK) {
        close_drafter(&d->base);
        return st;
    }
    d->succ = (dg_succ){.model = env->model, .by_row = true, .source = env->source, .warm = d->warm};
    *out = &d->base;
    return DG_OK;
}

static void layout(dg_drafter *base, dg_arena *host, dg_arena *dev) {
    drafter *d = (drafter *)base;
    dg_succ_layout(&d->succ, &d->template, host, dev);
}

/* Prompts teach nothing, as in the original. */
static void wants(const dg_drafter *base, dg_wants *w) {
    (void)base;
    *w = (dg_wants){.successors = DG_SUCC_WIDTH};
}

static dg_status observe(dg_drafter *base, const dg_outcome *o) {
    drafter *d = (drafter *)base;
    if (o->tree) dg_succ_learn(&d->succ, o);
    return DG_OK;
}

/* The whole template; with less room, its most probable nodes. */
static dg_status propose(dg_drafter *base, dg_tree *t, int32_t budget) {
    drafter *d = (drafter *)base;
    int32_t id[DG_TREE_MAX], node[DG_TREE_MAX] = {0};
    dg_succ_expand(&d->succ, t->token[0], d->template.n, id);
    for (int32_t i = 0; i < d->template.n; i++) {
        const int32_t parent = node[d->template.parent[i]];
        node[i + 1] =
            parent < 0 || id[i] < 0 ? -1 : dg_tree_add(t, parent, id[i], d->score[i], base->env->source);
    }
    if (t->n - 1 > budget) dg_tree_prune(t, budget, NULL);
    return DG_OK;
}

static void rewind_drafter(dg_drafter *base, int32_t len) {
    (void)base, (void)len;
}

static dg_status save(const dg_drafter *base, const char *path) {
    return dg_succ_save(&((const drafter *)base)->succ, path);
}

const dg_drafter_ops dg_recycling = {
    .name = "recycling",
    .help = "recycling[:FILE]: Token Recycling, 80 successors of successors by a fixed template; FILE: a text or a "
            "saved matrix to start with",
    .open = open_drafter,
    .layout = layout,
    .observe = observe,
    .propose = propose,
    .rewind = rewind_drafter,
    .close = close_drafter,
    .wants = wants,
    .save = save,
};
