/* Graft on a tree (arXiv 2605.20104): where a gate stopped the drafter before it, the rows that this left empty are filled
 * from the root with M's template. Behind a drafter that was not stopped nothing happens: its tree is the better one.
 *
 * The paper counts: as many template nodes as rows are left. What is ours: nodes that the draft has already are shared
 * and their rows given to the rest of the template (append=1 repeats them, skip=1 leaves their rows out), and what M
 * cannot fill goes back to the best of what the drafter had scored. */
#include "graft/fill.h"

#include <math.h>
#include <stddef.h>

#include "graft/memory.h"
#include "runtime/calibration.h"

typedef struct drafter {
    dg_drafter base;
    dg_memory memory; /* M alone */
    dg_template template;
    bool append, skip, fit;
    float logp[DG_SUCC_WIDTH]; /* of each rank */
} drafter;
_Static_assert(offsetof(drafter, memory) == offsetof(dg_rememberer, memory), "begins as a dg_rememberer");

static dg_status read_params(drafter *d, const dg_drafter_env *env) {
    const dg_param table[] = {
        {"append", DG_PARAM_BOOL, &d->append, 0, 1},
        {"skip", DG_PARAM_BOOL, &d->skip, 0, 1},
        {"fit", DG_PARAM_BOOL, &d->fit, 0, 1},
        {"prompt", DG_PARAM_INT, &d->memory.prompt, 0, 1 << 24},
        {"request", DG_PARAM_BOOL, &d->memory.request, 0, 1},
    };
    DG_TRY(dg_params_parse("fill", env->params, table, sizeof table / sizeof *table));
    DG_CHECK(!d->append || !d->skip, DG_ERR_ARGUMENT, "drafter fill: append=1 and skip=1 exclude each other");
    return dg_memory_open(&d->memory, env);
}

static dg_status open_drafter(const dg_drafter_env *env, dg_drafter **out) {
    drafter *d = dg_mem_calloc(1, sizeof *d);
    DG_CHECK(d, DG_ERR_MEMORY, "drafter fill: out of memory (%zu bytes)", sizeof *d);
    d->base = (dg_drafter){.ops = &dg_fill, .env = env};
    dg_memory_defaults(&d->memory);
    d->memory.use_text = false;
    const dg_status st = read_params(d, env);
    if (st != DG_OK) {
        dg_rememberer_close(&d->base);
        return st;
    }
    const float *rank = env->calibration && env->calibration->has_ranks ? env->calibration->rank : dg_template_prior;
    for (int32_t i = 0; i < DG_SUCC_WIDTH; i++) d->logp[i] = logf(rank[i]);
    if (d->fit)
        dg_template_fit(rank, DG_SUCC_WIDTH, DG_TEMPLATE_LARGE, &d->template);
    else
        dg_template_read(DG_TEMPLATE_GRAFT, &d->template);
    *out = &d->base;
    return DG_OK;
}

static void layout(dg_drafter *base, dg_arena *host, dg_arena *dev) {
    drafter *d = (drafter *)base;
    dg_memory_layout(&d->memory, base->env, &d->template, NULL, host, dev);
}

/* The template below the root. A node without a parent in the tree, or that M has no token for, is left out with all
 * below it; nothing follows the end of a text. */
static void add_template(const drafter *d, const int32_t *id, dg_tree *t, int32_t budget) {
    enum { OUT = -1 };
    const bool merge = !d->append && !d->skip;
    const int32_t room = budget - (t->n - 1), n = merge || room > d->template.n ? d->template.n : room;
    const int32_t source = d->base.env->source;
    int32_t node[DG_TREE_MAX] = {0};
    for (int32_t u = 0; u < n; u++) {
        const int32_t parent = node[d->template.parent[u]];
        node[u + 1] = OUT;
        if (parent == OUT || id[u] < 0 || (parent && dg_is_stop(d->memory.succ.model, t->token[parent]))) continue;
        const float score = t->score[parent] + d->logp[d->template.rank[u]];
        if (d->append)
            node[u + 1] = dg_tree_append(t, parent, id[u], score, source);
        else if (t->n <= budget || dg_tree_child(t, parent, id[u]) >= 0)
            node[u + 1] = dg_tree_add(t, parent, id[u], score, source);
    }
}

/* ---- the drafter's own next best ---------------------------------------------------------------- */

/* Best first: score down, then in order of creation, so that a parent comes before its children. */
static bool before(const dg_candidates *c, int32_t a, int32_t b) {
    return c->score[a] != c->score[b] ? c->score[a] > c->score[b] : a < b;
}

/* The best after `last` (-1: of all), -1: none. Impossible ones (log 0, NaN) do not count. */
static int32_t next_best(const dg_candidates *c, int32_t last) {
    int32_t best = -1;
    for (int32_t i = 0; i < c->n; i++)
        if (c->score[i] > -3e38f && (last < 0 || before(c, last, i)) && (best < 0 || before(c, i, best))) best = i;
    return best;
}

/* The tree's node of a candidate, -1: none. */
static int32_t node_of(const dg_candidates *c, const dg_tree *t, int32_t i) {
    const int32_t parent = c->parent[i] < 0 ? 0 : node_of(c, t, c->parent[i]);
    return parent < 0 ? -1 : dg_tree_child(t, parent, c->token[i]);
}

void dg_fill_scored(const dg_candidates *c, int32_t source, dg_tree *t, int32_t budget) {
    for (int32_t i = -1; t->n <= budget && (i = next_best(c, i)) >= 0;) {
        const int32_t parent = c->parent[i] < 0 ? 0 : node_of(c, t, c->parent[i]);
        dg_tree_add(t, parent, c->token[i], c->score[i], source);
    }
}

void dg_fill_successors(dg_drafter *base, int32_t token, int32_t *row) {
    dg_succ *m = &((drafter *)base)->memory.succ;
    for (int32_t i = 0; i < DG_SUCC_WIDTH; i++) row[i] = -1; /* tiny vocabularies have fewer */
    dg_succ_rows(m, &token, 1, row);
}

void dg_fill_rows(dg_drafter *base, const dg_candidates *c, int32_t source, dg_tree *t, int32_t budget) {
    drafter *d = (drafter *)base;
    int32_t id[DG_TREE_MAX];
    dg_succ_expand(&d->memory.succ, t->token[0], d->template.n, id);
    add_template(d, id, t, budget);
    if (c && !d->skip) dg_fill_scored(c, source, t, budget);
}

static dg_status propose(dg_drafter *base, dg_tree *t, int32_t budget) {
    const dg_offer *o = base->env->offer;
    const bool drafted = o && o->scored.n > 0;
    if (t->n > budget || (drafted && o->scored.stopped < 0)) return DG_OK;
    dg_fill_rows(base, drafted ? &o->scored : NULL, o ? o->scored_source : 0, t, budget);
    return DG_OK;
}

const dg_drafter_ops dg_fill = {
    .name = "fill",
    .help = "fill[:FILE]: rows that a gate left empty get the successors of successors of the root; append=1 repeats nodes "
            "that are there, skip=1 leaves their rows out (default: other nodes get them), fit=1 the most probable nodes "
            "instead of the fixed ones, prompt=0, request=0; FILE: a text or a saved matrix",
    .open = open_drafter,
    .layout = layout,
    .observe = dg_rememberer_observe,
    .propose = propose,
    .rewind = dg_rememberer_rewind,
    .close = dg_rememberer_close,
    .wants = dg_rememberer_wants,
    .save = dg_rememberer_save,
};
