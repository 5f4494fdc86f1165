/* One tree from all sources (ours): a block drafter's marginals, or whatever nodes the drafters before left,
 * M and the matches of the running text. Each node's candidates are merged and ranked by their estimated
 * probability (rank.h); the tree takes the most probable paths.
 *
 * The search is that of a best-first tree (DDTree, arXiv 2604.12989), but over conditional probabilities:
 * what may follow a node depends on its token (M) and on its whole path (text), not on its depth alone. */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "graft/memory.h"
#include "graft/rank.h"
#include "runtime/target.h"

enum {
    DRAFTED = 8,                               /* choices of a network at one depth that are looked at */
    NEXT = 3,                                  /* continuations of matches */
    MOST = 2 * DRAFTED + DG_SUCC_WIDTH + NEXT, /* candidates of a node */
    N_CANDIDATE = DG_TREE_MAX * MOST,
    ROWS = 512, /* of M that a round looks up at most at a time; a power of 2 */
    AHEAD = 16  /* rows fetched together: where one is needed, those of likely nodes are next */
};

typedef struct node {
    dg_suffix_match match; /* of the text and the path that ends here */
    dg_place place;        /* of its candidates */
    int32_t first, n;      /* candidates */
    int32_t before;        /* the same node of the tree that was there, -1: none */
    float p;               /* probability of the path to it */
} node;

typedef struct origin { /* of a candidate */
    int32_t node, before;
    float p; /* probability of its whole path */
    uint8_t source;
    bool taken;
} origin;

typedef struct drafter {
    dg_drafter base;
    dg_memory memory;
    dg_template template; /* none: M is asked row by row */
    dg_rank rank[2];      /* without, with a network */
    float rate;
    int32_t chain; /* first choices of the network that always stay */

    dg_tree before, built;
    bool network; /* of the last tree */
    node node[DG_TREE_MAX];
    dg_candidate *candidate; /* [N_CANDIDATE] */
    origin *origin;
    int32_t *heap;
    int32_t n_candidate, n_heap;

    int32_t *row_token, *row; /* [ROWS], [ROWS, DG_SUCC_WIDTH]: rows of M, by hash; token -1: free */
    int32_t n_row;
} drafter;
_Static_assert(offsetof(drafter, memory) == offsetof(dg_rememberer, memory), "begins as a dg_rememberer");

extern const dg_drafter_ops dg_fused;

static dg_status open_drafter(const dg_drafter_env *env, dg_drafter **out) {
    drafter *d = dg_mem_calloc(1, sizeof *d);
    DG_CHECK(d, DG_ERR_MEMORY, "drafter fused: out of memory (%zu bytes)", sizeof *d);
    d->base = (dg_drafter){.ops = &dg_fused, .env = env};
    d->chain = 1, d->rate = 0.03f;
    dg_memory_defaults(&d->memory);
    const dg_param table[] = {
        {"chain", DG_PARAM_INT, &d->chain, 0, DG_TREE_MAX - 1},
        {"learn", DG_PARAM_FLOAT, &d->rate, 0, 1},
        {"text", DG_PARAM_BOOL, &d->memory.use_text, 0, 1},
        {"m", DG_PARAM_BOOL, &d->memory.use_m, 0, 1},
        {"prompt", DG_PARAM_INT, &d->memory.prompt, 0, 1 << 24},
        {"request", DG_PARAM_BOOL, &d->memory.request, 0, 1},
    };
    dg_status st = dg_params_parse("fused", env->params, table, sizeof table / sizeof *table);
    if (st == DG_OK) st = dg_memory_open(&d->memory, env);
    if (st != DG_OK) {
        dg_rememberer_close(&d->base);
        return st;
    }
    for (int i = 0; i < 2; i++) dg_rank_init(&d->rank[i], i, d->rate);
    *out = &d->base;
    return DG_OK;
}

static void layout(dg_drafter *base, dg_arena *host, dg_arena *dev) {
    drafter *d = (drafter *)base;
    const dg_ngram_options o = {.min_match = 1, .alternatives = NEXT};
    dg_memory_layout(&d->memory, base->env, &d->template, &o, host, dev);
    d->candidate = dg_arena_take(host, N_CANDIDATE, sizeof *d->candidate);
    d->origin = dg_arena_take(host, N_CANDIDATE, sizeof *d->origin);
    d->heap = dg_arena_take(host, N_CANDIDATE, sizeof *d->heap);
    d->row_token = dg_arena_take(host, ROWS, sizeof *d->row_token);
    d->row = dg_arena_take(host, ROWS * DG_SUCC_WIDTH, sizeof *d->row);
}

static void rewind_drafter(dg_drafter *base, int32_t len) {
    ((drafter *)base)->built.n = 0;
    dg_memory_rewind(&((drafter *)base)->memory, len);
}

/* ---- rows of M -------------------------------------------------------------------------------- */

/* Slot of a token's row, or the free one where it belongs. */
static int32_t row_slot(const drafter *d, int32_t token) {
    uint32_t i = (uint32_t)token * 0x9E3779B1u >> 23;
    while (d->row_token[i] >= 0 && d->row_token[i] != token) i = (i + 1) % ROWS;
    return (int32_t)i;
}

static void clear_rows(drafter *d) {
    memset(d->row_token, 0xff, ROWS * sizeof *d->row_token);
    d->n_row = 0;
}

/* Fetches the rows of n <= AHEAD tokens that are not there yet. */
static void fetch_rows(drafter *d, const int32_t *token, int32_t n) {
    int32_t fresh[AHEAD] = {0}, row[AHEAD * DG_SUCC_WIDTH], n_fresh = 0;
    for (int32_t i = 0; i < n; i++) {
        const int32_t slot = row_slot(d, token[i]);
        if (d->row_token[slot] >= 0) continue;
        d->row_token[slot] = token[i];
        fresh[n_fresh++] = token[i];
    }
    if (!n_fresh) return;
    dg_succ_rows(&d->memory.succ, fresh, n_fresh, row);
    const int32_t width = d->memory.succ.width;
    for (int32_t i = 0; i < n_fresh; i++)
        memcpy(d->row + row_slot(d, fresh[i]) * width, row + i * width, (size_t)width * sizeof *row);
    d->n_row += n_fresh;
}

/* M's row of a token; valid until the next call. Where it is not known yet, rows that will be asked for come
 * along. */
static const int32_t *row_of(drafter *d, int32_t token) {
    if (d->row_token[row_slot(d, token)] != token) {
        int32_t want[AHEAD] = {token}, n = 1;
        for (int32_t i = 0; i < d->n_heap && n < AHEAD; i++) want[n++] = d->candidate[d->heap[i]].token;
        if (d->n_row + n > ROWS / 2) clear_rows(d);
        fetch_rows(d, want, n);
    }
    return d->row + row_slot(d, token) * d->memory.succ.width;
}

/* ---- the heap: candidates by the probability of their path -------------------------------------- */

static bool better(const drafter *d, int32_t a, int32_t b) {
    return d->origin[a].p != d->origin[b].p ? d->origin[a].p > d->origin[b].p : a < b;
}

static void push(drafter *d, int32_t x) {
    int32_t i = d->n_heap++;
    for (; i > 0 && better(d, x, d->heap[(i - 1) / 2]); i = (i - 1) / 2) d->heap[i] = d->heap[(i - 1) / 2];
    d->heap[i] = x;
}

static int32_t pop(drafter *d) {
    const int32_t top = d->heap[0], last = d->heap[--d->n_heap];
    int32_t i = 0;
    for (int32_t child = 1; child < d->n_heap; child = 2 * i + 1) {
        if (child + 1 < d->n_heap && better(d, d->heap[child + 1], d->heap[child])) child++;
        if (!better(d, d->heap[child], last)) break;
        d->heap[i] = d->heap[child];
        i = child;
    }
    d->heap[i] = last;
    return top;
}

/* ---- candidates of a node ----------------------------------------------------------------------- */

/* The candidate of node v with this token, made if it is not there. */
static int32_t candidate_of(drafter *d, int32_t v, int32_t token) {
    node *x = &d->node[v];
    for (int32_t i = x->first; i < x->first + x->n; i++)
        if (d->candidate[i].token == token) return i;
    const int32_t i = x->first + x->n++;
    d->candidate[i] = (dg_candidate){.token = token, .drafted = DG_RANK_NONE, .successor = DG_RANK_NONE};
    d->origin[i] = (origin){.node = v, .before = -1, .source = (uint8_t)d->base.env->source};
    return i;
}

static void add_drafted(drafter *d, int32_t v, int32_t token, int32_t rank, float logp, int32_t source) {
    const int32_t i = candidate_of(d, v, token);
    dg_candidate *c = &d->candidate[i];
    if (c->drafted >= 0 && c->logp >= logp) return;
    c->drafted = rank, c->logp = logp;
    d->origin[i].source = (uint8_t)source;
}

static void add_lattice(drafter *d, int32_t v) {
    const dg_offer *o = d->base.env->offer;
    const int32_t depth = d->built.depth[v];
    if (!o || depth >= o->lattice.n_depth) return;
    for (int32_t r = 0; r < o->lattice.width && r < DRAFTED; r++) {
        const size_t at = (size_t)depth * (size_t)o->lattice.width + (size_t)r;
        if (o->lattice.logp[at] > -INFINITY)
            add_drafted(d, v, o->lattice.id[at], r, o->lattice.logp[at], o->source);
    }
}

/* Children that drafters without a lattice left behind this node, the best DRAFTED of them. */
static void add_before(drafter *d, int32_t v) {
    const dg_tree *t = &d->before;
    const dg_offer *o = d->base.env->offer;
    const int32_t from = d->node[v].before, lattice = o && o->lattice.n_depth ? o->source : -1;
    if (from < 0) return;
    int32_t best[DRAFTED], n = 0;
    for (int32_t i = from + 1; i < t->n; i++) {
        if (t->parent[i] != from) continue;
        if (t->source[i] == lattice) continue;
        int32_t at = n < DRAFTED ? n++ : DRAFTED;
        for (; at > 0 && t->score[best[at - 1]] < t->score[i]; at--)
            if (at < DRAFTED) best[at] = best[at - 1];
        if (at < DRAFTED) best[at] = i;
    }
    for (int32_t r = 0; r < n; r++) {
        add_drafted(d, v, t->token[best[r]], r, t->score[best[r]] - t->score[from], t->source[best[r]]);
        d->origin[candidate_of(d, v, t->token[best[r]])].before = best[r];
    }
}

static void add_successors(drafter *d, int32_t v) {
    const int32_t *row = row_of(d, d->built.token[v]);
    for (int32_t r = 0; r < d->memory.succ.width; r++)
        if (row[r] >= 0) {
            dg_candidate *c = &d->candidate[candidate_of(d, v, row[r])];
            if (c->successor < 0) c->successor = r;
        }
}

static void add_matches(drafter *d, int32_t v) {
    dg_ngram_next next[NEXT];
    const int32_t n = dg_ngram_find(&d->memory.text, d->node[v].match, d->built.token[0], NEXT, next);
    for (int32_t i = 0; i < n; i++) {
        dg_candidate *c = &d->candidate[candidate_of(d, v, next[i].token)];
        c->match = next[i].len, c->other = i > 0;
    }
}

/* Ranks what may follow node v and lets it compete. */
static void expand(drafter *d, int32_t v) {
    node *x = &d->node[v];
    x->first = d->n_candidate, x->n = 0;
    x->place.depth = d->built.depth[v] + 1;
    if (v && dg_is_stop(d->base.env->model, d->built.token[v])) return;
    if (d->built.depth[v] >= d->built.deepest) return;
    add_lattice(d, v);
    add_before(d, v);
    if (d->memory.use_m) add_successors(d, v);
    if (d->memory.use_text) add_matches(d, v);
    d->n_candidate += x->n;
    dg_rank_score(&d->rank[d->network], &x->place, d->candidate + x->first, x->n);
    for (int32_t i = x->first; i < d->n_candidate; i++) {
        d->origin[i].p = x->p * d->candidate[i].p;
        if (d->origin[i].p > 0) push(d, i);
    }
}

/* ---- the tree ----------------------------------------------------------------------------------- */

/* Candidate i becomes a node; its own candidates come in if the tree has room left for them. */
static int32_t take(drafter *d, int32_t i, int32_t budget) {
    const origin *o = &d->origin[i];
    const int32_t v = dg_tree_add(&d->built, o->node, d->candidate[i].token, logf(o->p), o->source);
    d->origin[i].taken = true;
    d->node[v] = (node){.place = {.drafted = d->candidate[i].drafted}, .before = o->before, .p = o->p};
    if (d->memory.use_text)
        d->node[v].match =
            dg_suffix_step(&d->memory.text.text, d->node[o->node].match, d->candidate[i].token);
    if (d->built.n <= budget) expand(d, v);
    return v;
}

/* The network's first choices, as deep as they are to stay. */
static void take_chain(drafter *d, int32_t budget) {
    for (int32_t v = 0, depth = 0; depth < d->chain && d->built.n <= budget; depth++) {
        int32_t best = -1;
        for (int32_t i = d->node[v].first; i < d->node[v].first + d->node[v].n; i++)
            if (d->candidate[i].drafted == DG_RANK_GREEDY && d->origin[i].p > 0) best = i;
        if (best < 0) return;
        v = take(d, best, budget);
    }
}

static dg_status propose(dg_drafter *base, dg_tree *t, int32_t budget) {
    drafter *d = (drafter *)base;
    const dg_offer *o = base->env->offer;
    if (budget < 1) return DG_OK;
    d->before = *t;
    d->network = t->n > 1 || (o && o->lattice.n_depth > 0);
    d->n_candidate = d->n_heap = 0;
    clear_rows(d);
    dg_tree_reset(&d->built, t->token[0]);
    d->built.deepest = t->deepest;
    d->node[0] = (node){.place = {.drafted = DG_RANK_GREEDY}, .p = 1};
    if (d->memory.use_text)
        d->node[0].match =
            dg_suffix_step(&d->memory.text.text, dg_suffix_whole(&d->memory.text.text), t->token[0]);
    expand(d, 0);
    take_chain(d, budget);
    while (d->built.n <= budget && d->n_heap) {
        const int32_t i = pop(d);
        if (!d->origin[i].taken) take(d, i, budget);
    }
    *t = d->built;
    return DG_OK;
}

/* What followed each node of the last tree that became text refines the weights. */
static dg_status observe(dg_drafter *base, const dg_outcome *o) {
    drafter *d = (drafter *)base;
    if (o->tree && d->built.n && d->built.token[0] == o->token[0])
        for (int32_t v = 0, i = 0; v >= 0 && i < o->n; i++) {
            const node *x = &d->node[v];
            const int32_t next = i + 1 < o->n ? o->token[i + 1] : o->next;
            dg_rank_learn(&d->rank[d->network], &x->place, d->candidate + x->first, x->n, next);
            v = dg_tree_child(&d->built, v, next);
        }
    d->built.n = 0;
    dg_memory_observe(&d->memory, o);
    return DG_OK;
}

const dg_drafter_ops dg_fused = {
    .name = "fused",
    .help = "fused[:FILE]: one tree of what the text, M and the drafters before it propose, ranked by probability; "
            "chain=1 first choices of a network stay, learn=0.03, text=1, m=1, prompt=0, request=0; FILE: a "
            "text or a saved matrix",
    .open = open_drafter,
    .layout = layout,
    .observe = observe,
    .propose = propose,
    .rewind = rewind_drafter,
    .close = dg_rememberer_close,
    .wants = dg_rememberer_wants,
    .save = dg_rememberer_save,
};
