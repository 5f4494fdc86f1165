/* A causal language model as a drafter: the classic small model in front of a large one, token by token into a chain
 * (speculative decoding, arXiv 2211.17192 and 2302.01318), and with cascade=1 Cascade Speculative Drafting (2312.11462) over
 * it: the model is drafted for by the text's own n-grams, several tokens a pass where they agree (vertical), and they alone
 * go on behind its last token (horizontal).
 *
 * Its cache holds committed tokens that it has run; those it was told of since wait for the next propose and go through in
 * one pass with the root. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "graft/ngram.h"
#include "runtime/entropy.h"
#include "runtime/target.h"

enum { MOST_WAITING = 64 }; /* committed tokens in one pass with the root; more go before, in passes of their own */

typedef struct drafter {
    dg_drafter base;
    dg_model model; /* net and the target's backend, nothing else */
    int32_t tokens; /* of a chain; 0: the budget */
    float svip;     /* see dflash/stop.h; 0: off */
    bool cascade, q8; /* q8: weights of a plain type become Q8_0, activations have 8 bits */
    int32_t inner; /* n-gram tokens at a time */
    dg_ngram_retriever text;

    dg_kv kv;
    dg_batch batch;
    dg_work work;
    dg_mat logits;                   /* device [1 + inner, V] */
    int32_t *id_dev, *id;            /* [1 + inner] the likeliest token of each row scored */
    float *logp_dev, *logp, *entropy_row;
    int32_t *token;                  /* [context] the committed text */
    int32_t n;
    int32_t chain[DG_TREE_MAX]; /* root, then what is drafted */
    float score[DG_TREE_MAX];
    int32_t n_chain; /* root included */
} drafter;

extern const dg_drafter_ops dg_lm;

/* ---- opening ---------------------------------------------------------------------------------- */

static void close_drafter(dg_drafter *base) {
    drafter *d = (drafter *)base;
    dg_net_close(d->model.be, &d->model.net);
    dg_mem_free(d);
}

static dg_status check(const drafter *d, const dg_drafter_env *env) {
    const dg_config *c = &d->model.net.config;
    DG_CHECK(c->arch != DG_ARCH_DFLASH && c->arch != DG_ARCH_EAGLE3, DG_ERR_ARGUMENT,
             "%s: expected a language model, found a drafter (%s)", env->path, c->arch_name);
    DG_CHECK(c->vocab_size == env->model->net.config.vocab_size, DG_ERR_ARGUMENT,
             "%s: vocabulary of %d, the target has %d: a drafter must share it", env->path, c->vocab_size,
             env->model->net.config.vocab_size);
    DG_CHECK(!d->cascade || env->context <= DG_SUFFIX_MAX_TOKENS, DG_ERR_UNSUPPORTED,
             "drafter lm: cascade=1 in a context of %d tokens: at most %d", env->context, DG_SUFFIX_MAX_TOKENS);
    return DG_OK;
}

static dg_status open_drafter(const dg_drafter_env *env, dg_drafter **out) {
    DG_CHECK(env->path, DG_ERR_ARGUMENT, "drafter lm needs its weights: lm:PATH");
    drafter *d = dg_mem_calloc(1, sizeof *d);
    DG_CHECK(d, DG_ERR_MEMORY, "drafter lm: out of memory (%zu bytes)", sizeof *d);
    d->base = (dg_drafter){.ops = &dg_lm, .env = env};
    d->model.be = env->model->be;
    d->inner = 10;
    d->q8 = true;
    const dg_param table[] = {
        {"tokens", DG_PARAM_INT, &d->tokens, 0, DG_TREE_MAX - 1},
        {"q8", DG_PARAM_BOOL, &d->q8, 0, 1},
        {"svip", DG_PARAM_FLOAT, &d->svip, 0, 10},
        {"cascade", DG_PARAM_BOOL, &d->cascade, 0, 1},
        {"inner", DG_PARAM_INT, &d->inner, 1, 64},
    };
    dg_status st = dg_params_parse("lm", env->params, table, sizeof table / sizeof *table);
    if (!d->cascade) d->inner = 0;
    if (st == DG_OK) st = dg_net_open(d->model.be, env->path, &d->model.net);
    if (st == DG_OK) st = check(d, env);
    if (st == DG_OK) st = dg_net_check_tokenizer(&d->model.net, "lm", env->model);
    if (st != DG_OK) {
        close_drafter(&d->base);
        return st;
    }
    *out = &d->base;
    return DG_OK;
}

static void layout(dg_drafter *base, dg_arena *host, dg_arena *dev) {
    drafter *d = (drafter *)base;
    const dg_config *c = &d->model.net.config;
    const int32_t rows = MOST_WAITING + 1 + d->inner, window = rows + DG_TREE_MAX, scored = 1 + d->inner;
    const dg_ngram_options o = {.min_match = 1, .alternatives = 1};
    const size_t before = dev->used;
    dg_net_layout(d->model.be, &d->model.net, d->q8, dev, dg_model_progress(base->env->model));
    d->model.packed_bytes = dev->used - before;
    dg_kv_layout(&d->kv, c->n_layer, base->env->context + window, window, c->n_kv_head, c->head_dim, base->env->kv_dtype, host,
                 dev);
    dg_batch_layout(&d->batch, rows, host, dev);
    dg_work_layout(&d->work, c, rows, dev);
    d->logits = dg_mat_make(dg_arena_take(dev, (size_t)scored * (size_t)c->vocab_size, sizeof(float)), DG_F32, scored, c->vocab_size);
    d->id_dev = dg_arena_take(dev, (size_t)scored, sizeof *d->id_dev);
    d->logp_dev = dg_arena_take(dev, (size_t)scored, sizeof *d->logp_dev);
    d->id = dg_arena_take(host, (size_t)scored, sizeof *d->id);
    d->logp = dg_arena_take(host, (size_t)scored, sizeof *d->logp);
    d->token = dg_arena_take(host, (size_t)base->env->context + 1, sizeof *d->token);
    if (d->svip > 0) d->entropy_row = dg_arena_take(host, (size_t)c->vocab_size, sizeof *d->entropy_row);
    if (d->cascade) dg_ngram_layout(&d->text, &o, host, base->env->context);
}

static void memory(const dg_drafter *base, uint64_t *weights, uint64_t *kv) {
    const drafter *d = (const drafter *)base;
    *weights = d->model.net.mapped + d->model.packed_bytes;
    *kv = dg_kv_bytes(&d->kv);
}

/* ---- the text --------------------------------------------------------------------------------- */

static dg_status observe(dg_drafter *base, const dg_outcome *o) {
    drafter *d = (drafter *)base;
    assert(o->first == d->n);
    memcpy(d->token + d->n, o->token, (size_t)o->n * sizeof *o->token);
    d->n += o->n;
    if (d->cascade) d->text.base.ops->learn(&d->text.base, o);
    return DG_OK;
}

static void rewind_drafter(dg_drafter *base, int32_t len) {
    drafter *d = (drafter *)base;
    if (len < d->n) d->n = len;
    dg_kv_truncate(&d->kv, len);
    if (d->cascade) d->text.base.ops->rewind(&d->text.base, len);
}

/* ---- passes ----------------------------------------------------------------------------------- */

/* n rows behind the window; the likeliest tokens after the last `scored` of them. */
static dg_status run(drafter *d, const int32_t *token, int32_t n, int32_t scored) {
    dg_backend *be = d->model.be;
    dg_batch_reset(&d->batch);
    dg_batch_add_rows(&d->batch, &d->kv, token, n, DG_MASK_CAUSAL);
    dg_batch_upload(be, &d->batch);
    dg_batch_begin(be, &d->batch);
    dg_target_forward(&d->model, &d->batch, &d->work, NULL, 0);
    if (scored) {
        const dg_mat logits = dg_mat_rows(d->logits, 0, scored);
        dg_target_head(&d->model, dg_mat_rows(d->work.x, n - scored, scored), logits);
        be->ops->top_k(be, d->id_dev, d->logp_dev, logits, 1);
        be->ops->download(be, d->id, d->id_dev, (size_t)scored * sizeof *d->id);
        be->ops->download(be, d->logp, d->logp_dev, (size_t)scored * sizeof *d->logp);
        d->base.passes++;
    }
    return dg_backend_check(be);
}

/* All but the last few committed tokens into the cache. */
static dg_status catch_up(drafter *d) {
    while (d->n - d->kv.len > MOST_WAITING) {
        DG_TRY(run(d, d->token + d->kv.len, MOST_WAITING, 0));
        dg_kv_keep(&d->kv, MOST_WAITING);
    }
    return DG_OK;
}

typedef struct guess {
    int32_t token[DG_TREE_MAX];
    float score[DG_TREE_MAX];
    int32_t n;
} guess;

/* The first chain is the most trusted. */
static void take_first(void *ud, const int32_t *token, const float *score, int32_t n) {
    guess *g = ud;
    if (g->n) return;
    g->n = n;
    memcpy(g->token, token, (size_t)n * sizeof *token);
    memcpy(g->score, score, (size_t)n * sizeof *score);
}

/* What the text has behind root and chain. */
static void ask_text(drafter *d, int32_t most, guess *g) {
    g->n = 0;
    if (most > d->inner) most = d->inner;
    if (d->cascade && most > 0) d->text.base.ops->extend(&d->text.base, d->chain, d->n_chain, most, take_first, g);
}

static void push(drafter *d, int32_t token, float logp) {
    d->chain[d->n_chain] = token;
    d->score[d->n_chain] = d->score[d->n_chain - 1] + logp;
    d->n_chain++;
}

static bool unsure(drafter *d, int32_t row) {
    if (!(d->svip > 0)) return false;
    dg_backend *be = d->model.be;
    const int32_t n = d->logits.cols;
    be->ops->download(be, d->entropy_row, dg_mat_row(&d->logits, row), (size_t)n * sizeof *d->entropy_row);
    return sqrt(0.15 * dg_entropy(d->entropy_row, n)) > (double)d->svip;
}

/* The chain: at most `limit` tokens behind the root, greedy. A guess of the text costs no pass of its own where it is what
 * the model says. */
static dg_status draft(drafter *d, int32_t limit) {
    int32_t row[MOST_WAITING + 1 + 64 + 1], n_row = d->n - d->kv.len;
    memcpy(row, d->token + d->kv.len, (size_t)n_row * sizeof *row);
    row[n_row++] = d->chain[0];
    for (bool end = false; !end && d->n_chain <= limit;) {
        guess g;
        ask_text(d, limit - d->n_chain, &g);
        memcpy(row + n_row, g.token, (size_t)g.n * sizeof *row);
        DG_TRY(run(d, row, n_row + g.n, 1 + g.n));
        int32_t right = 0;
        for (;; right++) {
            push(d, d->id[right], d->logp[right]);
            end = end || unsure(d, right) || dg_is_stop(d->base.env->model, d->id[right]);
            if (end || right == g.n || g.token[right] != d->id[right]) break;
        }
        d->kv.win -= g.n - right; /* what was guessed wrong */
        row[0] = d->chain[d->n_chain - 1];
        n_row = 1;
    }
    return dg_backend_check(d->model.be);
}

static dg_status propose(dg_drafter *base, dg_tree *t, int32_t budget) {
    drafter *d = (drafter *)base;
    if (t->n > budget) return DG_OK;
    DG_TRY(catch_up(d));
    const int32_t waiting = d->n - d->kv.len, deepest = t->deepest < budget ? t->deepest : budget;
    const int32_t limit = d->tokens && d->tokens < deepest ? d->tokens : deepest;
    d->chain[0] = t->token[0];
    d->score[0] = 0;
    d->n_chain = 1;
    DG_TRY(draft(d, limit));
    dg_kv_keep(&d->kv, waiting); /* and drops the rest */
    guess g;
    ask_text(d, budget + 1 - d->n_chain, &g);
    const float base_score = d->score[d->n_chain - 1];
    for (int32_t i = 0; i < g.n; i++) {
        d->chain[d->n_chain] = g.token[i];
        d->score[d->n_chain++] = base_score + g.score[i];
    }
    int32_t node = 0;
    for (int32_t i = 1; i < d->n_chain && node >= 0; i++) {
        const bool there = dg_tree_child(t, node, d->chain[i]) >= 0;
        node = there || t->n <= budget ? dg_tree_add(t, node, d->chain[i], d->score[i], base->env->source) : -1;
    }
    return DG_OK;
}

const dg_drafter_ops dg_lm = {
    .name = "lm",
    .help = "lm:PATH: a causal model of the same vocabulary drafts a chain; tokens=0 (the budget), svip=0 (ends where "
            "sqrt(0.15 entropy) is above it), cascade=1: n-grams of the text draft for it and go on behind it, inner=10 at a "
            "time; q8=0 keeps 16- and 32-bit weights as they are, and activations as fine as the target's",
    .open = open_drafter,
    .layout = layout,
    .observe = observe,
    .propose = propose,
    .rewind = rewind_drafter,
    .close = close_drafter,
    .memory = memory,
    .network = true,
};
