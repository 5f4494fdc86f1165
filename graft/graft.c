/* Graft-TAIL (arXiv 2605.20104, on block drafters): of the tree that the drafters before it left, what they
 * were not sure of gives way to what memory holds, and the number of rows stays.
 *
 * Prune, then add: with tree=0 one chain behind the last node kept (the paper's), with tree=1 (ours) a small
 * tree there: matches, successors of successors and the drafter's own next choices, best first. The paper
 * gives neither the confidence nor the threshold; both are ours: the softmax of the drafter's token, or the
 * cut that promises most. */
#include "graft/graft.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "graft/memory.h"
#include "runtime/calibration.h"

enum { MAX_CANDIDATES = 2 * DG_TREE_MAX };

typedef struct candidate {
    int16_t parent; /* candidate, -1: the node behind which is grafted */
    int16_t node;   /* in the tree, -1: not added */
    int32_t token, source;
    float score; /* log-probability from there on */
} candidate;

typedef struct drafter {
    dg_drafter base;
    dg_memory memory;
    dg_template template;
    float template_score[DG_TREE_MAX];
    float tau;    /* 0: no threshold, but the cut that promises most; -1: nothing is cut */
    bool gated;   /* the usual threshold unless one was given */
    int32_t keep; /* depths that always stay */
    bool tree;
    int32_t min_match;

    dg_tree before; /* of this round, as the drafters left it */
    candidate candidate[MAX_CANDIDATES];
    int32_t n_candidate;
} drafter;
_Static_assert(offsetof(drafter, memory) == offsetof(dg_rememberer, memory), "begins as a dg_rememberer");

/* The chain mode follows M's first choices, as far as a tree is deep. */
static void set_template(drafter *d) {
    const float best[1] = {0.5f};
    if (d->tree)
        dg_template_read(DG_TEMPLATE_GRAFT, &d->template);
    else
        dg_template_fit(best, 1, DG_TREE_MAX - 1, &d->template);
    dg_template_scores(&d->template, d->template_score);
}

static float usual_threshold(const dg_calibration *c) {
    return c && c->has_tail ? c->tail.at : 0.4f;
}

static dg_status open_drafter(const dg_drafter_env *env, dg_drafter **out) {
    drafter *d = dg_mem_calloc(1, sizeof *d);
    DG_CHECK(d, DG_ERR_MEMORY, "drafter graft: out of memory (%zu bytes)", sizeof *d);
    d->base = (dg_drafter){.ops = &dg_graft, .env = env};
    d->min_match = 2, d->tau = NAN;
    dg_memory_defaults(&d->memory);
    const dg_param table[] = {
        {"tau", DG_PARAM_FLOAT, &d->tau, 0, 1},
        {"gated", DG_PARAM_BOOL, &d->gated, 0, 1},
        {"keep", DG_PARAM_INT, &d->keep, 0, DG_TREE_MAX - 1},
        {"tree", DG_PARAM_BOOL, &d->tree, 0, 1},
        {"match", DG_PARAM_INT, &d->min_match, 1, 1 << 20},
        {"text", DG_PARAM_BOOL, &d->memory.use_text, 0, 1},
        {"m", DG_PARAM_BOOL, &d->memory.use_m, 0, 1},
        {"prompt", DG_PARAM_INT, &d->memory.prompt, 0, 1 << 24},
        {"request", DG_PARAM_BOOL, &d->memory.request, 0, 1},
    };
    dg_status st = dg_params_parse("graft", env->params, table, sizeof table / sizeof *table);
    if (isnan(d->tau)) d->tau = d->gated ? usual_threshold(env->calibration) : 0;
    if (st == DG_OK) st = dg_memory_open(&d->memory, env);
    if (st != DG_OK) {
        dg_rememberer_close(&d->base);
        return st;
    }
    set_template(d);
    *out = &d->base;
    return DG_OK;
}

void dg_graft_set_threshold(dg_drafter *base, float tau) {
    ((drafter *)base)->tau = tau;
}

static void layout(dg_drafter *base, dg_arena *host, dg_arena *dev) {
    drafter *d = (drafter *)base;
    const dg_ngram_options o = {.min_match = d->min_match, .alternatives = d->tree ? 2 : 1};
    dg_memory_layout(&d->memory, base->env, &d->template, &o, host, dev);
}

/* ---- candidates behind a node ------------------------------------------------------------------- */

static void add_candidate(drafter *d, int32_t parent, int32_t token, int32_t source, float score) {
    if (d->n_candidate == MAX_CANDIDATES) return;
    d->candidate[d->n_candidate++] = (candidate){(int16_t)parent, -1, token, source, score};
}

static void add_chain(void *ud, const int32_t *token, const float *score, int32_t n) {
    drafter *d = ud;
    for (int32_t i = 0; i < n; i++)
        add_candidate(d, i ? d->n_candidate - 1 : -1, token[i], d->base.env->source, score[i]);
}

/* Neighbours that stood in the chain behind `root` before: it would run in a circle. */
static bool repeats(const drafter *d, int32_t root, int32_t first, int32_t from, int32_t to) {
    for (int32_t i = first; i < d->n_candidate; root = d->candidate[i++].token)
        if (root == from && d->candidate[i].token == to) return true;
    return false;
}

/* M below `root`: the template, or the chain of first choices up to a gap or a circle. */
static void add_successors(drafter *d, int32_t root, int32_t most) {
    int32_t id[DG_TREE_MAX], at[DG_TREE_MAX] = {-1};
    const int32_t n = most < d->template.n ? most : d->template.n, first = d->n_candidate;
    dg_succ_expand(&d->memory.succ, root, n, id);
    for (int32_t i = 0; i < n; i++) {
        const int32_t parent = d->template.parent[i];
        at[i + 1] = -2;
        if (id[i] < 0 || at[parent] == -2) continue;
        if (!d->tree && repeats(d, root, first, i ? id[i - 1] : root, id[i])) return;
        at[i + 1] = d->n_candidate;
        add_candidate(d, at[parent], id[i], d->base.env->source, d->template_score[i]);
    }
}

/* What else the block drafter thought of at this depth. */
static void add_next_choices(drafter *d, int32_t depth) {
    const dg_offer *o = d->base.env->offer;
    if (!o || depth >= o->lattice.n_depth) return;
    for (int32_t r = 0; r < o->lattice.width && r < DG_SUCC_WIDTH; r++) {
        const size_t at = (size_t)depth * (size_t)o->lattice.width + (size_t)r;
        add_candidate(d, -1, o->lattice.id[at], o->source, o->lattice.logp[at]);
    }
}

static int32_t path_to(const dg_tree *t, int32_t node, int32_t *path) {
    const int32_t n = t->depth[node] + 1;
    for (int32_t i = n; i > 0; node = t->parent[node]) path[--i] = t->token[node];
    return n;
}

/* Everything that may follow the node, in no order but parents first. */
static void collect(drafter *d, const dg_tree *t, int32_t node, int32_t most) {
    int32_t path[DG_TREE_MAX];
    const int32_t n = path_to(t, node, path);
    d->n_candidate = 0;
    if (d->memory.use_text)
        d->memory.text.base.ops->extend(&d->memory.text.base, path, n, most, add_chain, d);
    if (d->n_candidate && !d->tree) return; /* a match beats M: it knows more of the text */
    if (d->memory.use_m) add_successors(d, path[n - 1], most);
    if (d->tree) add_next_choices(d, t->depth[node]);
}

/* ---- the cut ---------------------------------------------------------------------------------- */

static float confidence(const dg_tree *t, int32_t node) {
    return expf(t->score[node] - t->score[t->parent[node]]);
}

/* Marks what the threshold drops, descendants included; nothing where it is -1. */
static void cut_below(const dg_tree *t, float tau, int32_t keep, bool *drop) {
    drop[0] = false;
    for (int32_t i = 1; i < t->n; i++)
        drop[i] = drop[t->parent[i]] || (t->depth[i] > keep && confidence(t, i) < tau);
}

/* Tokens that the n_candidate chains behind a node promise, the node's own probability apart. */
static float promise(const drafter *d, int32_t room) {
    float sum = 0;
    for (int32_t i = 0; i < d->n_candidate && i < room; i++) sum += expf(d->candidate[i].score);
    return sum;
}

/* The cut of a chain that promises most: for each node, what comes up to it and what memory has behind it. */
static void cut_best(drafter *d, const dg_tree *t, int32_t budget, bool *drop) {
    float best = -1, before = 0;
    int32_t at = t->n - 1;
    for (int32_t i = 0; i < t->n; i++) {
        if (i) before += expf(t->score[i]);
        if (i < d->keep && i + 1 < t->n) continue;
        float tail = 0;
        if (budget > i) {
            collect(d, t, i, budget - i);
            tail = expf(t->score[i]) * promise(d, budget - i);
        }
        if (before + tail > best) best = before + tail, at = i;
    }
    for (int32_t i = 0; i < t->n; i++) drop[i] = i > at;
}

static bool is_chain(const dg_tree *t) {
    for (int32_t i = 1; i < t->n; i++)
        if (t->parent[i] != i - 1) return false;
    return true;
}

/* Leaves the nodes without a mark, in their order. */
static void compact(dg_tree *t, const bool *drop) {
    int16_t to[DG_TREE_MAX];
    int32_t n = 0;
    for (int32_t i = 0; i < t->n; i++) {
        if (drop[i]) continue;
        to[i] = (int16_t)n;
        t->token[n] = t->token[i], t->source[n] = t->source[i];
        t->depth[n] = t->depth[i], t->score[n] = t->score[i];
        t->parent[n] = i ? to[t->parent[i]] : (int16_t)-1;
        n++;
    }
    t->n = n;
}

/* ---- the graft -------------------------------------------------------------------------------- */

/* The last node of the best path: what is grafted goes there. */
static int32_t tip(const dg_tree *t) {
    int32_t node = 0, best = 0;
    do {
        node = best;
        for (int32_t i = node + 1; i < t->n; i++)
            if (t->parent[i] == node && (best == node || t->score[i] > t->score[best])) best = i;
    } while (best != node);
    return node;
}

/* Candidates into the tree behind `node`, best first, while there is room. */
static void add_best(drafter *d, dg_tree *t, int32_t node, int32_t budget) {
    while (t->n <= budget) {
        candidate *best = NULL;
        for (candidate *c = d->candidate; c < d->candidate + d->n_candidate; c++) {
            const bool ready = c->node < 0 && (c->parent < 0 || d->candidate[c->parent].node >= 0);
            if (ready && (!best || c->score > best->score)) best = c;
        }
        if (!best) return;
        const int32_t parent = best->parent < 0 ? node : d->candidate[best->parent].node;
        best->node = (int16_t)dg_tree_add(t, parent, best->token, t->score[node] + best->score, best->source);
        if (best->node < 0) return;
    }
}

/* Nodes that gave way come back where memory had too little. */
static void refill(const dg_tree *before, dg_tree *t, int32_t budget) {
    int32_t to[DG_TREE_MAX] = {0};
    for (int32_t i = 1; i < before->n; i++) {
        const int32_t parent = to[before->parent[i]];
        to[i] = parent < 0 ? -1 : dg_tree_child(t, parent, before->token[i]);
        if (to[i] < 0 && parent >= 0 && t->n <= budget)
            to[i] = dg_tree_add(t, parent, before->token[i], before->score[i], before->source[i]);
    }
}

static dg_status propose(dg_drafter *base, dg_tree *t, int32_t budget) {
    drafter *d = (drafter *)base;
    bool drop[DG_TREE_MAX];
    d->before = *t;
    if (d->tau != 0 || !is_chain(t))
        cut_below(t, d->tau, d->keep, drop);
    else
        cut_best(d, t, budget, drop);
    compact(t, drop);
    if (t->n < d->before.n) base->cut = t->depth[tip(t)];
    if (t->n <= budget) {
        const int32_t node = tip(t);
        collect(d, t, node, budget - t->n + 1);
        add_best(d, t, node, budget);
    }
    refill(&d->before, t, budget);
    return DG_OK;
}

const dg_drafter_ops dg_graft = {
    .name = "graft",
    .help = "graft[:FILE]: what the drafters before it are unsure of gives way to what memory holds; tau=0 threshold "
            "(0: cut where most is promised; gated=1: the usual one), keep=0 depths stay, tree=0|1, match=2 tokens, text=1, m=1, "
            "prompt=0, request=0; FILE: a text or a saved matrix",
    .open = open_drafter,
    .layout = layout,
    .observe = dg_rememberer_observe,
    .propose = propose,
    .rewind = dg_rememberer_rewind,
    .close = dg_rememberer_close,
    .wants = dg_rememberer_wants,
    .save = dg_rememberer_save,
};
