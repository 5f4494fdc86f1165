/* Prompt lookup decoding; see pld.h. */
#include "graft/pld.h"

#include <assert.h>
#include <string.h>

#include "graft/ngram.h"

/* The original stops a match where start + n would reach the last n-gram, not where the match itself would:
 * what is copied must begin before it. */
static int32_t find(const int32_t *token, int32_t len, int32_t n, int32_t n_token) {
    const int32_t *last = token + len - n;
    for (int32_t i = 0; i + n < len - n && i + n <= len - n_token; i++)
        if (token[i] == last[0] && !memcmp(token + i, last, (size_t)n * sizeof *token)) return i + n;
    return -1;
}

dg_status dg_pld_find(const int32_t *token, int32_t len, int32_t max_ngram, int32_t n_token, int32_t *start,
                      int32_t *match) {
    DG_CHECK(max_ngram >= 1 && max_ngram <= len, DG_ERR_ARGUMENT,
             "prompt lookup: n-grams of %d tokens in a text of %d; expected 1 to %d", max_ngram, len, len);
    DG_CHECK(n_token >= 1, DG_ERR_ARGUMENT, "prompt lookup: %d tokens to copy; expected at least 1", n_token);
    int32_t at = -1, n = max_ngram;
    for (; n > 0; n--) {
        at = find(token, len, n, n_token);
        if (at >= 0) break;
    }
    *start = at;
    if (match) *match = n;
    return DG_OK;
}

typedef struct drafter {
    dg_drafter base;
    int32_t max_ngram, n_token;
    int32_t *text; /* [context + 1]: committed tokens, and room for the root behind them */
    int32_t n;
} drafter;

static dg_status open_drafter(const dg_drafter_env *env, dg_drafter **out) {
    DG_CHECK(!env->path, DG_ERR_ARGUMENT, "drafter pld reads no file, but was given %s", env->path);
    drafter *d = dg_mem_calloc(1, sizeof *d);
    DG_CHECK(d, DG_ERR_MEMORY, "drafter pld: out of memory (%zu bytes)", sizeof *d);
    d->base = (dg_drafter){.ops = &dg_pld, .env = env};
    d->max_ngram = 3, d->n_token = 10;
    const dg_param table[] = {{"ngram", DG_PARAM_INT, &d->max_ngram, 1, 1 << 20},
                              {"tokens", DG_PARAM_INT, &d->n_token, 1, DG_TREE_MAX - 1}};
    const dg_status st = dg_params_parse("pld", env->params, table, sizeof table / sizeof *table);
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
    d->text = dg_arena_take(host, (size_t)base->env->context + 1, sizeof *d->text);
    d->n = 0;
}

static dg_status observe(dg_drafter *base, const dg_outcome *o) {
    drafter *d = (drafter *)base;
    assert(o->first == d->n && o->n <= base->env->context - d->n);
    memcpy(d->text + d->n, o->token, (size_t)o->n * sizeof *d->text);
    d->n += o->n;
    return DG_OK;
}

/* The rule has no scores: the match length is scored as ngram.h does. An n-gram longer than the text matches
 * nothing, so the search begins with the longest that fits. */
static dg_status propose(dg_drafter *base, dg_tree *t, int32_t budget) {
    drafter *d = (drafter *)base;
    const int32_t len = d->n + 1;
    d->text[d->n] = t->token[0];
    int32_t start, match;
    DG_TRY(dg_pld_find(d->text, len, d->max_ngram < len ? d->max_ngram : len, d->n_token, &start, &match));
    if (start < 0) return DG_OK;
    float score = 0;
    for (int32_t i = 0, node = 0; i < d->n_token && t->n <= budget; i++) {
        score += dg_ngram_logp(match + i);
        node = dg_tree_add(t, node, d->text[start + i], score, base->env->source);
        if (node < 0) break;
    }
    return DG_OK;
}

static void rewind_drafter(dg_drafter *base, int32_t len) {
    drafter *d = (drafter *)base;
    assert(len >= 0 && len <= d->n);
    d->n = len;
}

static void close_drafter(dg_drafter *base) {
    dg_mem_free(base);
}

const dg_drafter_ops dg_pld = {
    .name = "pld",
    .help = "prompt lookup: copies what followed the last n-gram; ngram=3 longest n-gram, tokens=10 copied",
    .open = open_drafter,
    .layout = layout,
    .observe = observe,
    .propose = propose,
    .rewind = rewind_drafter,
    .close = close_drafter,
};
