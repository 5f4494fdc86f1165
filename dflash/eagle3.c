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

enum { N_GATE = 3 };

typedef struct eagle3 {
    dg_drafter base;
    const dg_model *target;
    dg_net net;
    dg_draft_vocab vocab;
    int32_t tap[DG_MAX_TAPS];

    int32_t depth, width;
    bool full; /* every pass, even when the tree cannot change any more */
    struct {
        int32_t at, keep; /* after so many passes behind the first: nodes to keep when it closes */
        float threshold;  /* closes unless the best path's probability is above it; 0: never */
    } gate[N_GATE];

    dg_kv kv;
    dg_work work;
    dg_fuse fuse;
    dg_batch batch;
    dg_beam beam;
    dg_mat state;  /* device [1 + depth*width, H], see eagle3.h */
    dg_mat logits; /* device [width, Vd] */
    int32_t *id_dev, *id, *row_dev, *row;
    float *logp_dev, *logp;
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
    static const int32_t at[N_GATE] = {0, 1, 5}, keep[N_GATE] = {8, 24, 40};
    int32_t shift = 0;
    d->depth = 8, d->width = 10;
    for (int32_t i = 0; i < N_GATE; i++) d->gate[i].at = at[i], d->gate[i].keep = keep[i];
    const dg_param table[] = {{"depth", DG_PARAM_INT, &d->depth, 0, DG_TREE_MAX - 1},
                              {"topk", DG_PARAM_INT, &d->width, 1, 64},
                              {"full", DG_PARAM_BOOL, &d->full, 0, 1},
                              {"shift", DG_PARAM_INT, &shift, -1, 1},
                              {"gate0", DG_PARAM_FLOAT, &d->gate[0].threshold, 0, 1},
                              {"gate1", DG_PARAM_FLOAT, &d->gate[1].threshold, 0, 1},
                              {"gate5", DG_PARAM_FLOAT, &d->gate[2].threshold, 0, 1},
                              {"keep0", DG_PARAM_INT, &d->gate[0].keep, 0, DG_TREE_MAX - 1},
                              {"keep1", DG_PARAM_INT, &d->gate[1].keep, 0, DG_TREE_MAX - 1},
                              {"keep5", DG_PARAM_INT, &d->gate[2].keep, 0, DG_TREE_MAX - 1}};
    DG_TRY(dg_params_parse("eagle3", env->params, table, sizeof table / sizeof *table));
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
    const int32_t slots = d->depth * d->width, max_rows = base->env->max_rows;
    const int32_t rows = max_rows > d->width ? max_rows : d->width;
    const size_t cells = (size_t)d->width * (size_t)d->width;
    dg_draft_vocab_layout(&d->vocab, d->target->be, dev);
    dg_kv_layout(&d->kv, 1, base->env->context + slots, slots ? slots : 1, c->n_kv_head * c->head_dim, DG_F32, host, dev);
    dg_batch_layout(&d->batch, rows, host, dev);
    dg_work_layout(&d->work, c, rows, dev);
    d->work.in = take_mat(dev, rows, 2 * c->hidden_size);
    dg_fuse_layout(&d->fuse, max_rows, c->n_tap, c->target_hidden_size, dev);
    dg_beam_layout(&d->beam, d->width, d->depth, host);
    d->state = take_mat(dev, 1 + slots, c->hidden_size);
    d->logits = take_mat(dev, d->width, d->vocab.head.rows);
    d->id_dev = dg_arena_take(dev, cells, sizeof *d->id_dev);
    d->logp_dev = dg_arena_take(dev, cells, sizeof *d->logp_dev);
    d->row_dev = dg_arena_take(dev, (size_t)d->width, sizeof *d->row_dev);
    d->id = dg_arena_take(host, cells, sizeof *d->id);
    d->logp = dg_arena_take(host, cells, sizeof *d->logp);
    d->row = dg_arena_take(host, (size_t)d->width, sizeof *d->row);
    d->bits = dg_arena_take(host, (size_t)slots, sizeof *d->bits);
}

static int32_t eagle3_taps(const dg_drafter *base, const int32_t **layer) {
    const eagle3 *d = (const eagle3 *)base;
    *layer = d->tap;
    return d->net.config.n_tap;
}

static void eagle3_memory(const dg_drafter *base, uint64_t *weights, uint64_t *kv) {
    const eagle3 *d = (const eagle3 *)base;
    const dg_config *c = &d->net.config;
    *weights = d->net.file->mapped;
    *kv = 2 * (uint64_t)(base->env->context + d->depth * d->width) * (uint64_t)(c->n_kv_head * c->head_dim) * sizeof(float);
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
    be->ops->matmul(be, out, cat, weights->fc, weights->fc_bias, false);
}

/* The layer's input from the hiddens in w->x and the uploaded tokens and positions of the batch. */
static void make_input(eagle3 *d, const dg_work *w) {
    dg_backend *be = d->target->be;
    const dg_config *c = &d->net.config;
    const dg_layer *layer = &d->net.weights.layer[0];
    const dg_mat token = dg_mat_cols(w->in, 0, c->hidden_size), hidden = dg_mat_cols(w->in, c->hidden_size, c->hidden_size);
    be->ops->embed(be, w->y, d->vocab.embed, d->batch.token_dev);
    be->ops->rms_norm(be, token, w->y, layer->attn_norm, c->rms_norm_eps);
    be->ops->rms_norm(be, hidden, w->x, layer->hidden_norm, c->rms_norm_eps);
    if (c->norm_before_residual) be->ops->copy2d(be, w->x, hidden);
    be->ops->rope_table(be, w->rope, d->batch.pos_dev, d->net.inv_freq, d->net.rope_scale);
}

/* The layer over the batch; what it hands on goes to n rows of state from `at`. */
static void run_layer(eagle3 *d, const dg_work *w, int32_t at) {
    dg_backend *be = d->target->be;
    const dg_config *c = &d->net.config;
    const dg_mat out = dg_mat_rows(d->state, at, w->x.rows);
    dg_layer_forward(be, c, &d->net.weights.layer[0], 0, &d->batch, w, -1);
    if (c->feed_normed)
        be->ops->rms_norm(be, out, w->x, d->net.weights.norm, c->rms_norm_eps);
    else
        be->ops->copy2d(be, out, w->x);
}

/* Head and top-k over n rows of state from `at`, into the beam. */
static dg_status score_rows(eagle3 *d, int32_t at, int32_t n) {
    dg_backend *be = d->target->be;
    const dg_config *c = &d->net.config;
    const size_t cells = (size_t)n * (size_t)d->width;
    const dg_mat logits = dg_mat_rows(d->logits, 0, n);
    dg_mat x = dg_mat_rows(d->state, at, n);
    if (!c->feed_normed) {
        const dg_mat normed = dg_mat_rows(d->work.y, 0, n);
        be->ops->rms_norm(be, normed, x, d->net.weights.norm, c->rms_norm_eps);
        x = normed;
    }
    be->ops->matmul(be, logits, x, d->vocab.head, (dg_mat){0}, false);
    be->ops->top_k(be, d->id_dev, d->logp_dev, logits, d->width);
    be->ops->download(be, d->id, d->id_dev, cells * sizeof *d->id);
    be->ops->download(be, d->logp, d->logp_dev, cells * sizeof *d->logp);
    DG_TRY(dg_backend_check(be));
    for (size_t i = 0; i < cells; i++) d->id[i] = dg_draft_vocab_target(&d->vocab, d->id[i]);
    dg_beam_score(&d->beam, d->id, d->logp);
    d->scored = n;
    d->base.passes++;
    return DG_OK;
}

/* ---- rounds ----------------------------------------------------------------------------------- */

/* Of all rows but the last nothing is needed but K and V, which depend on the layer's input alone. */
static dg_status eagle3_observe(dg_drafter *base, const dg_outcome *o) {
    eagle3 *d = (eagle3 *)base;
    dg_backend *be = d->target->be;
    const dg_config *c = &d->net.config;
    dg_batch *b = &d->batch;
    const int32_t n = o->n, last = n - 1;
    if (n == 0) return DG_OK;
    assert(o->first == d->kv.len);
    for (int32_t i = 0; i < n; i++) {
        b->token[i] = i < last ? o->token[i + 1] : o->next;
        b->pos[i] = o->first + i;
    }
    be->ops->upload(be, b->token_dev, b->token, (size_t)n * sizeof *b->token);
    be->ops->upload(be, b->pos_dev, b->pos, (size_t)n * sizeof *b->pos);
    const dg_work w = dg_work_rows(&d->work, n);
    project(d, o, w.x);
    make_input(d, &w);
    if (last > 0) {
        const dg_work before = dg_work_rows(&d->work, last);
        dg_layer_store(be, c, &d->net.weights.layer[0], 0, &d->kv, d->kv.len, before.in, &before);
        d->kv.len += last;
    }
    dg_work one = dg_work_rows(&d->work, 1);
    one.x = dg_mat_rows(w.x, last, 1), one.in = dg_mat_rows(w.in, last, 1), one.rope = dg_mat_rows(w.rope, last, 1);
    dg_batch_reset(b);
    dg_batch_add_rows(be, b, &d->kv, &o->next, 1, DG_MASK_CAUSAL);
    run_layer(d, &one, 0);
    const int32_t path[1] = {0};
    dg_kv_commit(be, &d->kv, path, 1);
    d->ready = true;
    return DG_OK;
}

/* One more level: the `width` best of the last one become rows of the window. */
static dg_status expand(eagle3 *d) {
    dg_backend *be = d->target->be;
    dg_beam *beam = &d->beam;
    int32_t token[DG_TREE_MAX], pos[DG_TREE_MAX];
    const int32_t first = (beam->passes - 1) * d->width, level = beam->passes - 1;
    const int32_t *front = dg_beam_expand(beam);
    for (int32_t j = 0; j < d->width; j++) {
        const int32_t slot = first + j, maker = front[j] / d->width; /* row of state that scored it */
        token[j] = beam->token[front[j]];
        pos[j] = d->kv.len + level;
        d->row[j] = maker;
        if (maker == 0)
            memset(d->bits[slot], 0, sizeof *d->bits);
        else
            memcpy(d->bits[slot], d->bits[maker - 1], sizeof *d->bits);
        d->bits[slot][slot / 64] |= UINT64_C(1) << (slot % 64);
    }
    dg_batch_reset(&d->batch);
    dg_batch_add_level(be, &d->batch, &d->kv, token, pos, (const uint64_t (*)[DG_MASK_WORDS])(d->bits + first), d->width);
    dg_batch_upload(be, &d->batch);
    be->ops->upload(be, d->row_dev, d->row, (size_t)d->width * sizeof *d->row);
    const dg_work w = dg_work_rows(&d->work, d->width);
    be->ops->rows_gather(be, w.x, d->state, d->row_dev);
    make_input(d, &w);
    run_layer(d, &w, 1 + first);
    return score_rows(d, 1 + first, d->width);
}

/* Nodes to keep if drafting has to stop at this checkpoint, -1 if it may go on (arXiv 2605.20104). */
static int32_t check_gate(const eagle3 *d) {
    for (int32_t i = 0; i < N_GATE; i++)
        if (d->gate[i].at == d->beam.passes - 1 && d->gate[i].threshold > 0 &&
            !(expf(dg_beam_best(&d->beam)) > d->gate[i].threshold))
            return d->gate[i].keep;
    return -1;
}

static dg_status eagle3_propose(dg_drafter *base, dg_tree *tree, int32_t budget) {
    eagle3 *d = (eagle3 *)base;
    dg_beam_reset(&d->beam);
    d->stopped = -1;
    if (tree->n > budget || !d->ready) return DG_OK;
    int32_t keep = budget;
    DG_TRY(score_rows(d, 0, 1));
    for (;;) {
        const int32_t cut = check_gate(d);
        if (cut >= 0) {
            keep = cut;
            d->stopped = d->beam.passes - 1;
            break;
        }
        if (d->beam.passes > d->depth || (!d->full && dg_beam_settled(&d->beam, budget))) break;
        DG_TRY(expand(d));
    }
    dg_kv_truncate(&d->kv, d->kv.len);
    dg_beam_fill(&d->beam, tree, budget, keep, base->env->source);
    return DG_OK;
}

static void eagle3_rewind(dg_drafter *base, int32_t len) {
    eagle3 *d = (eagle3 *)base;
    dg_kv_truncate(&d->kv, len);
    d->ready = false; /* until the row before is observed again */
}

static void eagle3_candidates(const dg_drafter *base, dg_candidates *out) {
    const eagle3 *d = (const eagle3 *)base;
    const dg_beam *b = &d->beam;
    *out = (dg_candidates){.n = b->n, .token = b->token, .parent = b->parent, .score = b->score, .width = b->width,
                           .passes = b->passes, .stopped = d->stopped};
}

dg_mat dg_eagle3_state(const dg_drafter *d) { return ((const eagle3 *)d)->state; }
dg_mat dg_eagle3_logits(const dg_drafter *d) { return dg_mat_rows(((const eagle3 *)d)->logits, 0, ((const eagle3 *)d)->scored); }
const dg_beam *dg_eagle3_beam(const dg_drafter *d) { return &((const eagle3 *)d)->beam; }
const dg_kv *dg_eagle3_kv(const dg_drafter *d) { return &((const eagle3 *)d)->kv; }

const dg_drafter_ops dg_eagle3 = {
    .name = "eagle3",
    .help = "eagle3:PATH[,depth=N][,topk=N][,full=0|1][,shift=-1|0|1][,gate0=P,gate1=P,gate5=P][,keep0=N,keep1=N,keep5=N]: "
            "EAGLE-3 head; N passes behind the first, N candidates a row (topk=1: a chain); full=1 runs passes that cannot "
            "change the tree; shift moves the file's feature layers; a gate stops drafting after 0, 1 or 5 passes unless "
            "the best path is likelier than P, and keeps N nodes",
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
};
