/* EAGLE-3 drafter (arXiv 2503.01840; SafeAILab/EAGLE cnets.py): one decoder layer over [embedding of the next token;
 * hidden], which drafts token by token, feeding its own output back as the hidden of the next step.
 *
 * Row p pairs the fused target features of position p with the token at p + 1 and stands at position p. observe: such
 * rows of everything committed; what drafting put into the cache is gone by then, so every row was made from features of
 * the target. propose: from the last row's output level by level, each level one pass over the frontier (beam.h). */
#include "dflash/eagle3.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "dflash/draft_vocab.h"
#include "dflash/fuse.h"
#include "dflash/stop.h"

enum { MAX_WIDE = 64 };

typedef struct eagle3 {
    dg_drafter base;
    const dg_model *target;
    dg_net net;
    dg_draft_vocab vocab;
    int32_t tap[DG_MAX_TAPS];

    bool q8; /* weights of a plain type become Q8_0, activations have 8 bits */
    size_t packed_bytes;
    int32_t depth, width;
    bool full;     /* every pass, even when the tree cannot change any more */
    dg_stop_rules stop;
    bool wide;     /* where a gate stops it, more candidates of the rows scored last take the rest of the tree */
    int32_t n_wide; /* candidates of a row then */

    dg_kv kv;
    dg_work work;
    dg_fuse fuse;
    dg_batch batch;
    dg_beam beam;
    dg_mat state;  /* device [1 + depth*width, H], see eagle3.h */
    dg_mat logits; /* device [width, Vd] */
    int32_t *top_dev, *top; /* device, host [2][cells]: of a pass with so many cells its ids, then their logps */
    int32_t *id;            /* of the last pass: where they lie in top */
    float *logp, *entropy_row;
    uint64_t (*bits)[DG_MASK_WORDS]; /* [depth*width] ancestors of each slot among the slots, itself included */
    bool ready;                      /* row 0 of state belongs to the last committed position */
    int32_t scored;                  /* rows of logits */
    int32_t stopped;                 /* see dg_candidates */
} eagle3;

/* ---- opening ---------------------------------------------------------------------------------- */

static dg_status check_config(const eagle3 *d, const char *path) {
    const dg_config *c = &d->net.config, *t = &d->target->net.config;
    DG_CHECK(c->arch == DG_ARCH_EAGLE3, DG_ERR_ARGUMENT, "%s: expected an EAGLE-3 head, found a %s model", path, c->arch_name);
    DG_CHECK(c->target_hidden_size == t->hidden_size, DG_ERR_ARGUMENT,
             "%s: head for hidden size %d, the target has %d: it was made for another model", path, c->target_hidden_size,
             t->hidden_size);
    DG_CHECK(c->vocab_size == t->vocab_size, DG_ERR_ARGUMENT,
             "%s: head for a vocabulary of %d, the target has %d: it was made for another model", path, c->vocab_size,
             t->vocab_size);
    return DG_OK;
}

/* The feature layers as outputs. A file without a list means the inputs of layers 2, L/2 and L-3. */
static dg_status resolve_taps(eagle3 *d, const char *path, int32_t shift) {
    const dg_config *c = &d->net.config;
    const int32_t n_layer = d->target->net.config.n_layer;
    const int32_t usual[3] = {1, n_layer / 2 - 1, n_layer - 4};
    char shown[128] = "";
    DG_CHECK(!c->tap_default || n_layer >= 7, DG_ERR_ARGUMENT,
             "%s: the file names no feature layers, and the usual three need a target of 7 layers; this one has %d", path,
             n_layer);
    for (int32_t i = 0; i < c->n_tap; i++) {
        d->tap[i] = (c->tap_default ? usual[i] : c->tap[i]) + shift;
        DG_CHECK(d->tap[i] >= 0 && d->tap[i] < n_layer, DG_ERR_ARGUMENT,
                 "%s: feature layer %d is the output of layer %d: the target has layers 0 to %d", path, i, d->tap[i],
                 n_layer - 1);
        const size_t used = strlen(shown);
        snprintf(shown + used, sizeof shown - used, "%s%d", i ? ", " : "", d->tap[i]);
    }
    dg_model_log(d->target, DG_LOG_INFO, "%s: features are the outputs of target layers %s (%s%s)", path, shown,
                 c->tap_default ? "by default" : "from the file", shift ? ", shifted" : "");
    return DG_OK;
}

static dg_status read_params(eagle3 *d, const dg_drafter_env *env) {
    int32_t shift = 0;
    d->depth = 8, d->width = 10, d->q8 = true;
    dg_stop_defaults(&d->stop);
    const dg_param table[] = {{"depth", DG_PARAM_INT, &d->depth, 0, DG_TREE_MAX - 1},
                              {"topk", DG_PARAM_INT, &d->width, 1, 64},
                              {"full", DG_PARAM_BOOL, &d->full, 0, 1},
                              {"q8", DG_PARAM_BOOL, &d->q8, 0, 1},
                              {"shift", DG_PARAM_INT, &shift, -1, 1},
                              {"gated", DG_PARAM_BOOL, &d->stop.gated, 0, 1},
                              {"gate0", DG_PARAM_FLOAT, &d->stop.gate[0].threshold, 0, 1},
                              {"gate1", DG_PARAM_FLOAT, &d->stop.gate[1].threshold, 0, 1},
                              {"gate5", DG_PARAM_FLOAT, &d->stop.gate[2].threshold, 0, 1},
                              {"keep0", DG_PARAM_INT, &d->stop.gate[0].keep, 0, DG_TREE_MAX - 1},
                              {"keep1", DG_PARAM_INT, &d->stop.gate[1].keep, 0, DG_TREE_MAX - 1},
                              {"keep5", DG_PARAM_INT, &d->stop.gate[2].keep, 0, DG_TREE_MAX - 1},
                              {"mass", DG_PARAM_FLOAT, &d->stop.mass, 0, 1},
                              {"svip", DG_PARAM_FLOAT, &d->stop.svip, 0, 10},
                              {"wide", DG_PARAM_BOOL, &d->wide, 0, 1}};
    DG_TRY(dg_params_parse("eagle3", env->params, table, sizeof table / sizeof *table));
    dg_stop_settle(&d->stop, env->calibration);
    d->n_wide = d->vocab.head.rows < MAX_WIDE ? d->vocab.head.rows : MAX_WIDE;
    DG_CHECK(d->depth * d->width <= DG_TREE_MAX, DG_ERR_ARGUMENT,
             "drafter eagle3: depth %d times topk %d: expected at most %d rows", d->depth, d->width, DG_TREE_MAX);
    DG_CHECK(d->width <= d->vocab.head.rows, DG_ERR_ARGUMENT,
             "drafter eagle3: topk=%d: expected at most the draft vocabulary's %d", d->width, d->vocab.head.rows);
    return resolve_taps(d, env->path, shift);
}

static void eagle3_close(dg_drafter *base) {
    eagle3 *d = (eagle3 *)base;
    dg_net_close(d->target->be, &d->net);
    dg_mem_free(d);
}

static dg_status eagle3_open(const dg_drafter_env *env, dg_drafter **out) {
    DG_CHECK(env->path, DG_ERR_ARGUMENT, "drafter eagle3 needs its weights: eagle3:PATH");
    eagle3 *d = dg_mem_calloc(1, sizeof *d);
    DG_CHECK(d, DG_ERR_MEMORY, "no memory for the drafter");
    d->base.ops = &dg_eagle3;
    d->base.env = env;
    d->target = env->model;
    dg_status st = dg_net_open(d->target->be, env->path, &d->net);
    if (st == DG_OK) st = check_config(d, env->path);
    if (st == DG_OK) st = dg_draft_vocab_open(&d->net, d->target, &d->vocab);
    if (st == DG_OK) st = read_params(d, env);
    if (st != DG_OK) {
        eagle3_close(&d->base);
        return st;
    }
    *out = &d->base;
    return DG_OK;
}

static dg_mat take_mat(dg_arena *dev, int32_t rows, int32_t cols) {
    return dg_mat_make(dg_arena_take(dev, (size_t)rows * (size_t)cols, sizeof(float)), DG_F32, rows, cols);
}

static void eagle3_layout(dg_drafter *base, dg_arena *host, dg_arena *dev) {
    eagle3 *d = (eagle3 *)base;
    const dg_config *c = &d->net.config;
    const size_t before = dev->used;
    dg_net_layout(d->target->be, &d->net, d->q8, dev, dg_model_progress(d->target));
    d->packed_bytes = dev->used - before;
    const int32_t slots = d->depth * d->width, max_rows = base->env->max_rows;
    const int32_t rows = max_rows > d->width ? max_rows : d->width;
    const size_t cells = (size_t)d->width * (size_t)(d->wide && d->n_wide > d->width ? d->n_wide : d->width);
    dg_draft_vocab_layout(&d->vocab, &d->net, d->target, d->q8, dev);
    dg_kv_layout(&d->kv, 1, base->env->context + slots, slots > max_rows ? slots : max_rows, c->n_kv_head, c->head_dim,
                 base->env->kv_dtype, host, dev);
    dg_batch_layout(&d->batch, rows, host, dev);
    dg_work_layout(&d->work, c, rows, dev);
    d->work.in = take_mat(dev, rows, 2 * c->hidden_size);
    dg_fuse_layout(&d->fuse, max_rows, c->n_tap, c->target_hidden_size, dev);
    dg_beam_layout(&d->beam, d->width, d->depth, host);
    d->state = take_mat(dev, 1 + slots, c->hidden_size);
    d->logits = take_mat(dev, d->width, d->vocab.head.rows);
    d->top_dev = dg_arena_take(dev, 2 * cells, sizeof *d->top_dev);
    d->top = dg_arena_take(host, 2 * cells, sizeof *d->top);
    if (d->stop.svip > 0) d->entropy_row = dg_arena_take(host, (size_t)d->vocab.head.rows, sizeof *d->entropy_row);
    d->bits = dg_arena_take(host, (size_t)slots, sizeof *d->bits);
}

static int32_t eagle3_taps(const dg_drafter *base, const int32_t **layer) {
    const eagle3 *d = (const eagle3 *)base;
    *layer = d->tap;
    return d->net.config.n_tap;
}

static void eagle3_memory(const dg_drafter *base, uint64_t *weights, uint64_t *kv) {
    const eagle3 *d = (const eagle3 *)base;
    *weights = d->net.mapped + d->packed_bytes;
    *kv = dg_kv_bytes(&d->kv);
}

/* ---- passes ----------------------------------------------------------------------------------- */

/* Features of the committed rows to hiddens. */
static void project(eagle3 *d, const dg_outcome *o, dg_mat out) {
    dg_backend *be = d->target->be;
    const dg_config *c = &d->net.config;
    const dg_weights *weights = &d->net.weights;
    const dg_mat cat = dg_fuse_gather(be, &d->fuse, o);
    if (c->norm_before_fc) be->ops->rms_norm(be, cat, cat, weights->input_norm, c->rms_norm_eps);
    for (int32_t t = 0; c->fc_norm && t < c->n_tap; t++) {
        const dg_mat part = dg_mat_cols(cat, t * d->fuse.hidden, d->fuse.hidden);
        be->ops->rms_norm(be, part, part, weights->fc_norm[t], c->rms_norm_eps);
    }
    dg_matmul(be, out, cat, weights->fc, weights->fc_bias, false);
}

/* The layer's input from the hiddens in w->x and the uploaded tokens and positions of the batch. */
static void make_input(eagle3 *d, const dg_work *w) {
    dg_backend *be = d->target->be;
    const dg_config *c = &d->net.config;
    const dg_layer *layer = &d->net.weights.layer[0];
    const dg_mat token = dg_mat_cols(w->in, 0, c->hidden_size), hidden = dg_mat_cols(w->in, c->hidden_size, c->hidden_size);
    be->ops->embed(be, w->y, d->vocab.embed, d->batch.dev.token);
    be->ops->rms_norm(be, token, w->y, layer->attn_norm, c->rms_norm_eps);
    be->ops->rms_norm(be, hidden, w->x, layer->hidden_norm, c->rms_norm_eps);
    if (c->norm_before_residual) be->ops->copy2d(be, w->x, hidden);
    be->ops->rope_table(be, w->rope, d->batch.dev.pos, d->net.inv_freq, d->net.rope_scale);
}

/* The layer over b, whose rows are those of w; what it hands on goes to as many rows of state from `at`. */
static void run_layer(eagle3 *d, const dg_batch *b, const dg_work *w, int32_t at) {
    dg_backend *be = d->target->be;
    const dg_config *c = &d->net.config;
    const dg_mat out = dg_mat_rows(d->state, at, w->x.rows);
    dg_layer_forward(be, c, &d->net.weights.layer[0], 0, b, w, -1);
    if (c->feed_normed)
        be->ops->rms_norm(be, out, w->x, d->net.weights.norm, c->rms_norm_eps);
    else
        be->ops->copy2d(be, out, w->x);
}

static void best_of(eagle3 *d, dg_mat logits, int32_t k) {
    dg_backend *be = d->target->be;
    be->ops->top_k(be, d->top_dev, (float *)(d->top_dev + (size_t)logits.rows * (size_t)k), logits, k);
}

/* What best_of found for n rows. */
static dg_status fetch_best(eagle3 *d, int32_t n, int32_t k) {
    dg_backend *be = d->target->be;
    const size_t cells = (size_t)n * (size_t)k;
    be->ops->download(be, d->top, d->top_dev, 2 * cells * sizeof *d->top);
    DG_TRY(dg_backend_check(be));
    d->id = d->top;
    d->logp = (float *)(d->top + cells);
    return DG_OK;
}

/* Head and top-k over n rows of state from `at`. */
static void score_rows(eagle3 *d, int32_t at, int32_t n) {
    dg_backend *be = d->target->be;
    const dg_config *c = &d->net.config;
    const dg_mat logits = dg_mat_rows(d->logits, 0, n);
    dg_mat x = dg_mat_rows(d->state, at, n);
    if (!c->feed_normed) {
        const dg_mat normed = dg_mat_rows(d->work.y, 0, n);
        be->ops->rms_norm(be, normed, x, d->net.weights.norm, c->rms_norm_eps);
        x = normed;
    }
    dg_matmul(be, logits, x, d->vocab.head, (dg_mat){0}, false);
    best_of(d, logits, d->width);
}

/* The scores of n rows, into the beam. */
static dg_status fetch_scores(eagle3 *d, int32_t n) {
    const int32_t cells = n * d->width;
    DG_TRY(fetch_best(d, n, d->width));
    for (int32_t i = 0; i < cells; i++) d->id[i] = dg_draft_vocab_target(&d->vocab, d->id[i]);
    dg_beam_score(&d->beam, d->id, d->logp);
    d->scored = n;
    d->base.passes++;
    return DG_OK;
}

/* ---- rounds ----------------------------------------------------------------------------------- */

/* All that a pass depends on; the features of prompts are taken in by passes of their own. */
typedef struct pass_key {
    const eagle3 *d;
    const void *row, *feature; /* observe's; else NULL */
    int32_t n, pass;           /* pass: of propose, from 0; -1: observe */
} pass_key;

_Static_assert(sizeof(pass_key) <= DG_PASS_KEY && sizeof(pass_key) == 3 * sizeof(void *) + 8, "a key has no gaps");

/* Of all rows but the last nothing is needed but K and V, which depend on the layer's input alone. */
static void observe_ops(eagle3 *d, const dg_outcome *o) {
    dg_backend *be = d->target->be;
    const dg_batch *b = &d->batch;
    const int32_t last = o->n - 1;
    const dg_work w = dg_work_rows(&d->work, o->n);
    dg_batch_begin(be, b);
    project(d, o, w.x);
    make_input(d, &w);
    if (last > 0) {
        const dg_work before = dg_work_rows(&d->work, last);
        dg_layer_store(be, &d->net.config, &d->net.weights.layer[0], 0, b, 0, before.in, &before);
    }
    dg_work one = dg_work_rows(&d->work, 1);
    one.x = dg_mat_rows(w.x, last, 1), one.in = dg_mat_rows(w.in, last, 1), one.rope = dg_mat_rows(w.rope, last, 1);
    const dg_batch part = dg_batch_part(b, b->n_seg - 1);
    run_layer(d, &part, &one, 0);
}

static dg_status eagle3_observe(dg_drafter *base, const dg_outcome *o) {
    eagle3 *d = (eagle3 *)base;
    dg_backend *be = d->target->be;
    dg_batch *b = &d->batch;
    int32_t token[DG_TREE_MAX];
    const int32_t n = o->n, last = n - 1;
    if (n == 0) return DG_OK;
    assert(o->first == d->kv.len && n <= DG_TREE_MAX);
    for (int32_t i = 0; i < n; i++) token[i] = i < last ? o->token[i + 1] : o->next;
    dg_batch_reset(b);
    if (last > 0) dg_batch_add_rows(b, &d->kv, token, last, DG_MASK_CAUSAL);
    dg_batch_add_rows(b, &d->kv, token + last, 1, DG_MASK_CAUSAL);
    dg_batch_upload(be, b);
    const pass_key key = {d, o->row, o->feature[0].data, n, -1};
    if (be->ops->pass_begin(be, &key, o->tree ? sizeof key : 0)) {
        observe_ops(d, o);
        be->ops->pass_end(be);
    }
    dg_kv_keep(&d->kv, n);
    d->ready = true;
    return DG_OK;
}

/* Scores what observe left: the first pass of propose. */
static dg_status start_beam(eagle3 *d) {
    dg_backend *be = d->target->be;
    const pass_key key = {d, NULL, NULL, 1, 0};
    if (be->ops->pass_begin(be, &key, sizeof key)) {
        score_rows(d, 0, 1);
        be->ops->pass_end(be);
    }
    return fetch_scores(d, 1);
}

/* The ops of a level whose slots begin at `first`. */
static void level_ops(eagle3 *d, int32_t first) {
    dg_backend *be = d->target->be;
    const dg_work w = dg_work_rows(&d->work, d->width);
    dg_batch_begin(be, &d->batch);
    be->ops->rows_gather(be, w.x, d->state, d->batch.dev.row);
    make_input(d, &w);
    run_layer(d, &d->batch, &w, 1 + first);
    score_rows(d, 1 + first, d->width);
}

/* One more level: the `width` best of the last one become rows of the window. */
static dg_status expand(eagle3 *d) {
    dg_backend *be = d->target->be;
    dg_beam *beam = &d->beam;
    int32_t token[DG_TREE_MAX], pos[DG_TREE_MAX], row[DG_TREE_MAX];
    const int32_t first = (beam->passes - 1) * d->width, level = beam->passes - 1;
    const int32_t *front = dg_beam_expand(beam);
    for (int32_t j = 0; j < d->width; j++) {
        const int32_t slot = first + j, maker = front[j] / d->width; /* row of state that scored it */
        token[j] = beam->token[front[j]];
        pos[j] = d->kv.len + level;
        row[j] = maker;
        if (maker == 0)
            memset(d->bits[slot], 0, sizeof *d->bits);
        else
            memcpy(d->bits[slot], d->bits[maker - 1], sizeof *d->bits);
        d->bits[slot][slot / 64] |= UINT64_C(1) << (slot % 64);
    }
    dg_batch_reset(&d->batch);
    dg_batch_add_level(&d->batch, &d->kv, token, pos, row, (const uint64_t (*)[DG_MASK_WORDS])(d->bits + first), d->width);
    dg_batch_upload(be, &d->batch);
    const pass_key key = {d, NULL, NULL, d->width, beam->passes};
    if (be->ops->pass_begin(be, &key, sizeof key)) {
        level_ops(d, first);
        be->ops->pass_end(be);
    }
    return fetch_scores(d, d->width);
}

/* See dg_stop_keep. */
static dg_status check_stop(eagle3 *d, int32_t budget, int32_t *keep) {
    if (d->stop.svip > 0) {
        dg_backend *be = d->target->be;
        const int32_t row = dg_beam_best_row(&d->beam);
        be->ops->download(be, d->entropy_row, dg_mat_row(&d->logits, row), (size_t)d->logits.cols * sizeof *d->entropy_row);
        DG_TRY(dg_backend_check(be));
    }
    *keep = dg_stop_keep(&d->stop, &d->beam, budget, d->entropy_row, d->logits.cols);
    return DG_OK;
}

/* ECHO's use of rows that stopping left empty (arXiv 2604.09603): wider where drafting stopped. Candidates of the rows
 * scored last beyond the `width` that the beam holds, best paths first. */
static dg_status widen(eagle3 *d, dg_tree *tree, int32_t budget) {
    const dg_beam *b = &d->beam;
    const int32_t first = (b->passes - 2) * d->width, wide = d->n_wide;
    int32_t node[64], next[64];
    if (wide <= d->width || tree->n > budget) return DG_OK;
    best_of(d, dg_mat_rows(d->logits, 0, d->scored), wide);
    DG_TRY(fetch_best(d, d->scored, wide));
    for (int32_t r = 0; r < d->scored; r++) /* a row's own node, -1: it is not in the tree */
        node[r] = b->passes == 1 ? 0 : b->node[b->slot[first + r]], next[r] = d->width;
    while (tree->n <= budget) {
        int32_t best = -1;
        float score = -INFINITY;
        for (int32_t r = 0; r < d->scored; r++) {
            if (node[r] < 0 || next[r] == wide) continue;
            const float s = tree->score[node[r]] + d->logp[r * wide + next[r]];
            if (s > score) best = r, score = s;
        }
        if (best < 0) return DG_OK;
        const int32_t id = dg_draft_vocab_target(&d->vocab, d->id[best * wide + next[best]++]);
        dg_tree_add(tree, node[best], id, score, d->base.env->source);
    }
    return DG_OK;
}

static void eagle3_candidates(const dg_drafter *base, dg_candidates *out) {
    const eagle3 *d = (const eagle3 *)base;
    const dg_beam *b = &d->beam;
    *out = (dg_candidates){.n = b->n, .token = b->token, .parent = b->parent, .score = b->score, .width = b->width,
                           .passes = b->passes, .stopped = d->stopped};
}

/* For who fills the tree. */
static void offer_candidates(const eagle3 *d) {
    dg_offer *o = d->base.env->offer;
    if (!o) return;
    eagle3_candidates(&d->base, &o->scored);
    o->scored_source = d->base.env->source;
}

static dg_status eagle3_propose(dg_drafter *base, dg_tree *tree, int32_t budget) {
    eagle3 *d = (eagle3 *)base;
    dg_beam_reset(&d->beam);
    d->stopped = -1;
    if (tree->n > budget || !d->ready) return DG_OK;
    int32_t keep = budget;
    DG_TRY(start_beam(d));
    for (;;) {
        int32_t cut;
        DG_TRY(check_stop(d, budget, &cut));
        if (cut >= 0) {
            keep = cut;
            d->stopped = d->base.cut = d->beam.passes - 1;
            break;
        }
        if (d->beam.passes > d->depth || d->beam.passes >= tree->deepest) break;
        if (!d->full && dg_beam_settled(&d->beam, budget)) break;
        DG_TRY(expand(d));
    }
    dg_kv_truncate(&d->kv, d->kv.len);
    dg_beam_fill(&d->beam, tree, budget, keep, base->env->source);
    offer_candidates(d);
    return d->wide && d->stopped >= 0 ? widen(d, tree, budget) : DG_OK;
}

static void eagle3_rewind(dg_drafter *base, int32_t len) {
    eagle3 *d = (eagle3 *)base;
    dg_kv_truncate(&d->kv, len);
    d->ready = false; /* until the row before is observed again */
}

dg_mat dg_eagle3_state(const dg_drafter *d) { return ((const eagle3 *)d)->state; }
dg_mat dg_eagle3_logits(const dg_drafter *d) { return dg_mat_rows(((const eagle3 *)d)->logits, 0, ((const eagle3 *)d)->scored); }
const dg_beam *dg_eagle3_beam(const dg_drafter *d) { return &((const eagle3 *)d)->beam; }
const dg_kv *dg_eagle3_kv(const dg_drafter *d) { return &((const eagle3 *)d)->kv; }

const dg_drafter_ops dg_eagle3 = {
    .name = "eagle3",
    .help = "eagle3:PATH[,depth=N][,topk=N][,full=0|1][,shift=-1|0|1][,q8=0|1][,gated=0|1][,gate0=P,gate1=P,gate5=P]"
            "[,keep0=N,keep1=N,keep5=N][,wide=0|1][,mass=P][,svip=X]: "
            "EAGLE-3 head; N passes behind the first, N candidates a row (topk=1: a chain); full=1 runs passes that cannot "
            "change the tree; shift moves the file's feature layers; q8=0 keeps 16- and 32-bit weights as they are, and "
            "activations as fine as the target's; a gate "
            "stops drafting after 0, 1 or 5 passes unless the best path is likelier than P, and keeps N nodes; gated=1 sets "
            "those that were not given; wide=1 spends what is left on more candidates where it stopped; mass stops when the "
            "frontier's paths are together less likely, svip when sqrt(0.15 entropy) is above it",
    .open = eagle3_open,
    .layout = eagle3_layout,
    .taps = eagle3_taps,
    .observe = eagle3_observe,
    .propose = eagle3_propose,
    .rewind = eagle3_rewind,
    .close = eagle3_close,
    .memory = eagle3_memory,
    .candidates = eagle3_candidates,
    .reads_next = true,
    .network = true,
};
