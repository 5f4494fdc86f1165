/* Drafting by the longest suffix match; see ngram.h. */
#include "graft/ngram.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* ---- retriever -------------------------------------------------------------------------------- */

static const float match_p[] = {0.23f, 0.50f, 0.68f, 0.76f, 0.80f, 0.83f, 0.85f, 0.87f,
                                0.89f, 0.90f, 0.91f, 0.92f, 0.92f, 0.93f, 0.93f, 0.94f};
enum { N_MATCH_P = sizeof match_p / sizeof *match_p };

static float match_probability(int32_t len) {
    return match_p[len < N_MATCH_P ? len - 1 : N_MATCH_P - 1];
}

float dg_ngram_logp(int32_t len) {
    return logf(match_probability(len));
}

/* Where the first choice is wrong, the next one is right about one time in ten (same measurement). */
static const float alternative_share = 0.1f;

static bool found(const dg_ngram_next *out, int32_t n, int32_t token) {
    for (int32_t i = 0; i < n; i++)
        if (out[i].token == token) return true;
    return false;
}

/* Of what follows match m and is not in out yet, the latest: its position, -1 if there is nothing. */
static int32_t latest_other(const dg_suffix *text, dg_suffix_match m, const dg_ngram_next *out, int32_t n) {
    int32_t best = -1;
    for (int32_t e = text->state[m.state].edge; e >= 0; e = text->edge[e].next) {
        const int32_t pos = text->state[text->edge[e].to].end;
        if (pos > best && !found(out, n, text->edge[e].token)) best = pos;
    }
    return best;
}

int32_t dg_ngram_find(const dg_ngram_retriever *r, dg_suffix_match m, int32_t root, int32_t max,
                      dg_ngram_next *out) {
    const dg_suffix *text = &r->text;
    int32_t n = 0;
    for (; m.len >= r->options.min_match && n < max; m = dg_suffix_shorter(text, m)) {
        /* The latest occurrence of all; at the very end of the text no edge leads on from it. */
        int32_t pos = text->state[m.state].end + 1;
        if (found(out, n, pos < text->n ? text->token[pos] : root)) pos = latest_other(text, m, out, n);
        for (; pos >= 0 && n < max; pos = latest_other(text, m, out, n))
            out[n++] = (dg_ngram_next){pos < text->n ? text->token[pos] : root, pos, m.len};
    }
    return n;
}

/* Token at a position of text + path + chain; the caller stays below what is there. */
static int32_t token_at(const dg_ngram_retriever *r, const int32_t *path, int32_t n_path, int32_t pos) {
    if (pos < r->text.n) return r->text.token[pos];
    return pos < r->text.n + n_path ? path[pos - r->text.n] : r->chain[pos - r->text.n - n_path];
}

static void extend(dg_retriever *base, const int32_t *path, int32_t n_path, int32_t max_tokens,
                   dg_retriever_emit *emit, void *ud) {
    dg_ngram_retriever *r = (dg_ngram_retriever *)base;
    assert(n_path >= 1 && max_tokens < DG_TREE_MAX);
    if (max_tokens < 1) return;
    dg_suffix_match m = dg_suffix_whole(&r->text);
    for (int32_t i = 0; i < n_path; i++) m = dg_suffix_step(&r->text, m, path[i]);
    dg_ngram_next first[DG_NGRAM_MAX_ALTERNATIVES];
    const int32_t n = dg_ngram_find(r, m, path[0], r->options.alternatives, first);
    for (int32_t c = 0; c < n; c++) {
        float score = c == 0 ? dg_ngram_logp(first[0].len)
                             : logf((1 - match_probability(first[0].len)) * alternative_share);
        for (int32_t i = 0; i < max_tokens; i++) {
            r->chain[i] = token_at(r, path, n_path, first[c].pos + i);
            if (i > 0)
                score += dg_ngram_logp(first[c].len + i); /* should it be right so far, the match is longer */
            r->score[i] = score;
        }
        emit(ud, r->chain, r->score, max_tokens);
    }
}

static void learn(dg_retriever *base, const dg_outcome *o) {
    dg_ngram_retriever *r = (dg_ngram_retriever *)base;
    assert(o->first == r->text.n);
    for (int32_t i = 0; i < o->n; i++) dg_suffix_append(&r->text, o->token[i]);
}

static void forget(dg_retriever *base, int32_t len) {
    dg_suffix_rewind(&((dg_ngram_retriever *)base)->text, len);
}

static const dg_retriever_ops retriever_ops = {"ngram", learn, extend, forget};

void dg_ngram_layout(dg_ngram_retriever *r, const dg_ngram_options *options, dg_arena *host,
                     int32_t context) {
    assert(options->min_match >= 1 && options->alternatives >= 1 &&
           options->alternatives <= DG_NGRAM_MAX_ALTERNATIVES);
    r->base.ops = &retriever_ops;
    r->options = *options;
    dg_suffix_layout(&r->text, host, context);
}

/* ---- drafter ---------------------------------------------------------------------------------- */

typedef struct chain {
    int32_t token[DG_TREE_MAX];
    float score[DG_TREE_MAX];
    int32_t n, at; /* tokens; those in the tree */
    int32_t node;  /* the last of those */
} chain;

typedef struct drafter {
    dg_drafter base;
    dg_ngram_options options;
    int32_t max_tokens;
    dg_ngram_retriever retriever;
    chain chain[DG_NGRAM_MAX_ALTERNATIVES];
    int32_t n_chain;
} drafter;

static dg_status open_drafter(const dg_drafter_env *env, dg_drafter **out) {
    DG_CHECK(!env->path, DG_ERR_ARGUMENT, "drafter ngram reads no file, but was given %s", env->path);
    DG_CHECK(env->context <= DG_SUFFIX_MAX_TOKENS, DG_ERR_UNSUPPORTED, "drafter ngram: a context of %d tokens: at most %d",
             env->context, DG_SUFFIX_MAX_TOKENS);
    drafter *d = dg_mem_calloc(1, sizeof *d);
    DG_CHECK(d, DG_ERR_MEMORY, "drafter ngram: out of memory (%zu bytes)", sizeof *d);
    d->base = (dg_drafter){.ops = &dg_ngram, .env = env};
    d->options = (dg_ngram_options){.min_match = 1, .alternatives = 2};
    d->max_tokens = DG_TREE_MAX - 1;
    const dg_param table[] = {
        {"min", DG_PARAM_INT, &d->options.min_match, 1, 1 << 20},
        {"max", DG_PARAM_INT, &d->max_tokens, 1, DG_TREE_MAX - 1},
        {"alternatives", DG_PARAM_INT, &d->options.alternatives, 1, DG_NGRAM_MAX_ALTERNATIVES},
    };
    const dg_status st = dg_params_parse("ngram", env->params, table, sizeof table / sizeof *table);
    if (st != DG_OK) {
        dg_mem_free(d);
        return st;
    }
    *out = &d->base;
    return DG_OK;
}

static void layout(dg_drafter *base, dg_arena *host, dg_arena *dev) {
    (void)dev;
    drafter *d = (drafter *)base;
    dg_ngram_layout(&d->retriever, &d->options, host, base->env->context);
}

static dg_status observe(dg_drafter *base, const dg_outcome *o) {
    learn(&((drafter *)base)->retriever.base, o);
    return DG_OK;
}

static void collect(void *ud, const int32_t *token, const float *score, int32_t n) {
    drafter *d = ud;
    chain *c = &d->chain[d->n_chain++];
    memcpy(c->token, token, (size_t)n * sizeof *token);
    memcpy(c->score, score, (size_t)n * sizeof *score);
    c->n = n, c->at = c->node = 0;
}

/* The best next token of all chains goes in first, until `budget` of them were offered or the tree is full;
 * then the weakest nodes give way, whoever proposed them. */
static dg_status propose(dg_drafter *base, dg_tree *t, int32_t budget) {
    drafter *d = (drafter *)base;
    d->n_chain = 0;
    const int32_t max_tokens = budget < d->max_tokens ? budget : d->max_tokens;
    extend(&d->retriever.base, t->token, 1, max_tokens, collect, d);
    for (int32_t offered = 0; offered < budget; offered++) {
        chain *best = NULL;
        for (chain *c = d->chain; c < d->chain + d->n_chain; c++)
            if (c->at < c->n && (!best || c->score[c->at] > best->score[best->at])) best = c;
        if (!best) break;
        const int32_t node =
            dg_tree_add(t, best->node, best->token[best->at], best->score[best->at], base->env->source);
        if (node < 0) break;
        best->node = node;
        best->at++;
    }
    if (t->n - 1 > budget) dg_tree_prune(t, budget, NULL);
    return DG_OK;
}

static void rewind_drafter(dg_drafter *base, int32_t len) {
    forget(&((drafter *)base)->retriever.base, len);
}

static void close_drafter(dg_drafter *base) {
    dg_mem_free(base);
}

const dg_drafter_ops dg_ngram = {
    .name = "ngram",
    .help = "what followed the longest suffix match in the text; min=1 tokens matched, max= tokens proposed, "
            "alternatives=2 continuations",
    .open = open_drafter,
    .layout = layout,
    .observe = observe,
    .propose = propose,
    .rewind = rewind_drafter,
    .close = close_drafter,
};
