/* DFlash block drafter (arXiv 2602.06036; z-lab/dflash model.py, newer code): one pass over [root, MASK, ...] with
 * attention to projected target features predicts the whole block at once.
 *
 * observe: features -> fc -> hidden_norm -> every layer's K and V at the committed positions. propose: an ordinary pass
 * of ordinary layers over the block, whose own K and V are dropped again; row j predicts the token at root + j. */
#include "dflash/dflash.h"

#include <math.h>

#include "dflash/best_first.h"
#include "dflash/draft_vocab.h"
#include "dflash/fuse.h"

typedef struct dflash {
    dg_drafter base;
    const dg_model *target;
    dg_net net;
    dg_draft_vocab vocab;

    bool q8;        /* weights of a plain type become Q8_0, activations have 8 bits */
    size_t packed_bytes;
    bool tree;      /* best-first over the marginals; else their greedy chain */
    int32_t chain;  /* tree: leading tokens of the chain that always stay */
    int32_t block;  /* rows of a pass, root included, at most */
    bool adapt;     /* only as many as drafts were accepted for lately */
    int32_t rows;   /* of the next pass */
    float reach;    /* how deep they were, slowly forgotten */
    int32_t width;  /* candidates a position; without tree only for the drafters that read the offer */

    dg_kv kv;
    dg_work work;
    dg_fuse fuse;
    dg_batch batch;
    dg_mat fused;    /* device [max_rows, H] */
    dg_mat logits;   /* device [block-1, Vd] */
    int32_t *top_dev, *top; /* device, host [2][cells]: of a pass with so many cells its ids, then their logps */
    int32_t *id;            /* of the last pass: where they lie in top */
    float *logp;
    dg_best_first *search;
} dflash;

/* ---- opening ---------------------------------------------------------------------------------- */

static dg_status check_config(const dflash *d, const char *path) {
    const dg_config *c = &d->net.config, *t = &d->target->net.config;
    DG_CHECK(c->arch == DG_ARCH_DFLASH, DG_ERR_ARGUMENT, "%s: expected a DFlash drafter, found a %s model", path, c->arch_name);
    const int32_t tapped = c->target_hidden_size ? c->target_hidden_size : c->hidden_size;
    DG_CHECK(c->hidden_size == t->hidden_size && tapped == t->hidden_size, DG_ERR_ARGUMENT,
             "%s: drafter for hidden size %d, the target has %d: it was made for another model", path, tapped, t->hidden_size);
    /* a GGUF drafter has no vocabulary of its own: 0 */
    DG_CHECK(!c->vocab_size || c->vocab_size == t->vocab_size, DG_ERR_ARGUMENT,
             "%s: drafter for a vocabulary of %d, the target has %d: it was made for another model", path, c->vocab_size,
             t->vocab_size);
    DG_CHECK(!c->num_target_layers || c->num_target_layers == t->n_layer, DG_ERR_ARGUMENT,
             "%s: drafter for a target of %d layers, this one has %d: it was made for another model", path,
             c->num_target_layers, t->n_layer);
    for (int32_t i = 0; i < c->n_tap; i++)
        DG_CHECK(c->tap[i] >= 0 && c->tap[i] < t->n_layer, DG_ERR_ARGUMENT,
                 "%s: target_layer_ids[%d] is %d: the target has layers 0 to %d", path, i, c->tap[i], t->n_layer - 1);
    DG_CHECK(c->mask_token_id >= 0 && c->mask_token_id < t->vocab_size, DG_ERR_FORMAT,
             "%s: mask_token_id: expected 0 to %d, found %d", path, t->vocab_size - 1, c->mask_token_id);
    DG_CHECK(c->block_size >= 2 && c->block_size <= DG_TREE_MAX, DG_ERR_FORMAT, "%s: block_size: expected 2 to %d, found %d",
             path, DG_TREE_MAX, c->block_size);
    DG_CHECK(c->embedding_scale == 1 && c->output_multiplier == 1 && c->logit_softcap == 0, DG_ERR_UNSUPPORTED,
             "%s: input_embedding_scale, output_multiplier and final_logit_softcapping are not supported", path);
    return DG_OK;
}

static dg_status read_params(dflash *d, const dg_drafter_env *env) {
    const int32_t full = d->net.config.block_size;
    d->block = full;
    d->width = 0;
    d->q8 = true;
    const dg_param table[] = {{"tree", DG_PARAM_BOOL, &d->tree, 0, 1},
                              {"chain", DG_PARAM_INT, &d->chain, 0, DG_TREE_MAX - 1},
                              {"block", DG_PARAM_INT, &d->block, 2, full},
                              {"adapt", DG_PARAM_BOOL, &d->adapt, 0, 1},
                              {"q8", DG_PARAM_BOOL, &d->q8, 0, 1},
                              {"width", DG_PARAM_INT, &d->width, 1, DG_TREE_MAX - 1}};
    DG_TRY(dg_params_parse("dflash", env->params, table, sizeof table / sizeof *table));
    d->rows = d->block;
    d->reach = d->block < 4 ? (float)d->block : 4;
    /* DDTree branches as wide as its budget */
    if (!d->width) d->width = d->tree && env->budget > 0 ? env->budget : 1;
    if (d->width > d->vocab.head.rows) d->width = d->vocab.head.rows;
    return DG_OK;
}

static void dflash_close(dg_drafter *base) {
    dflash *d = (dflash *)base;
    dg_net_close(d->target->be, &d->net);
    dg_mem_free(d);
}

static dg_status dflash_open(const dg_drafter_env *env, dg_drafter **out) {
    DG_CHECK(env->path, DG_ERR_ARGUMENT, "drafter dflash needs its weights: dflash:PATH");
    dflash *d = dg_mem_calloc(1, sizeof *d);
    DG_CHECK(d, DG_ERR_MEMORY, "no memory for the drafter");
    d->base.ops = &dg_dflash;
    d->base.env = env;
    d->target = env->model;
    dg_status st = dg_net_open(d->target->be, env->path, &d->net);
    if (st == DG_OK) st = check_config(d, env->path);
    if (st == DG_OK) st = dg_draft_vocab_open(&d->net, d->target, &d->vocab);
    if (st == DG_OK) st = read_params(d, env);
    if (st != DG_OK) {
        dflash_close(&d->base);
        return st;
    }
    *out = &d->base;
    return DG_OK;
}

static void dflash_layout(dg_drafter *base, dg_arena *host, dg_arena *dev) {
    dflash *d = (dflash *)base;
    const dg_config *c = &d->net.config;
    const int32_t rows = base->env->max_rows > d->block ? base->env->max_rows : d->block;
    const size_t before = dev->used;
    dg_net_layout(d->target->be, &d->net, d->q8, dev, dg_model_progress(d->target));
    d->packed_bytes = dev->used - before;
    const size_t drafts = (size_t)(d->block - 1), cells = drafts * (size_t)d->width;
    dg_draft_vocab_layout(&d->vocab, &d->net, d->target, d->q8, dev);
    dg_kv_layout(&d->kv, c->n_layer, base->env->context + d->block, rows, c->n_kv_head, c->head_dim, base->env->kv_dtype,
                 host, dev);
    dg_batch_layout(&d->batch, rows, host, dev);
    dg_work_layout(&d->work, c, rows, dev);
    dg_fuse_layout(&d->fuse, base->env->max_rows, c->n_tap, c->hidden_size, dev);
    d->fused = dg_mat_make(dg_arena_take(dev, (size_t)base->env->max_rows * (size_t)c->hidden_size, sizeof(float)), DG_F32,
                           base->env->max_rows, c->hidden_size);
    d->logits = dg_mat_make(dg_arena_take(dev, drafts * (size_t)d->vocab.head.rows, sizeof(float)), DG_F32, d->block - 1,
                            d->vocab.head.rows);
    d->top_dev = dg_arena_take(dev, 2 * cells, sizeof *d->top_dev);
    d->top = dg_arena_take(host, 2 * cells, sizeof *d->top);
    d->search = dg_arena_take(host, 1, sizeof *d->search);
}

static int32_t dflash_taps(const dg_drafter *base, const int32_t **layer) {
    const dflash *d = (const dflash *)base;
    *layer = d->net.config.tap;
    return d->net.config.n_tap;
}

static void dflash_memory(const dg_drafter *base, uint64_t *weights, uint64_t *kv) {
    const dflash *d = (const dflash *)base;
    *weights = d->net.mapped + d->packed_bytes;
    *kv = dg_kv_bytes(&d->kv);
}

/* ---- rounds ----------------------------------------------------------------------------------- */

/* A weak drafter is rarely right far ahead, and rows cost the same everywhere: the next pass goes a little further than
 * its own drafts were accepted lately. */
static void adapt_rows(dflash *d, const dg_outcome *o) {
    enum { AHEAD = 3, LEAST = 4 };
    int32_t depth = 0;
    for (int32_t i = 1; i < o->n; i++)
        if (o->tree->source[o->path[i]] == d->base.env->source) depth = i;
    d->reach = fmaxf((float)depth, 0.95f * d->reach);
    const int32_t rows = (int32_t)(d->reach + 0.5f) + AHEAD, least = d->block < LEAST ? d->block : LEAST;
    d->rows = rows < least ? least : rows < d->block ? rows : d->block;
}

/* All that a pass depends on; the features of prompts are taken in by passes of their own. */
typedef struct pass_key {
    const dflash *d;
    const void *row, *feature; /* NULL: the block's pass */
    int64_t n;
} pass_key;

_Static_assert(sizeof(pass_key) <= DG_PASS_KEY && sizeof(pass_key) == 3 * sizeof(void *) + 8, "a key has no gaps");

static dg_status dflash_observe(dg_drafter *base, const dg_outcome *o) {
    dflash *d = (dflash *)base;
    dg_backend *be = d->target->be;
    const dg_config *c = &d->net.config;
    dg_batch *b = &d->batch;
    dg_batch_reset(b);
    dg_batch_add_rows(b, &d->kv, o->token, o->n, DG_MASK_CAUSAL);
    dg_batch_upload(be, b);
    const pass_key key = {d, o->row, o->feature[0].data, o->n};
    if (be->ops->pass_begin(be, &key, o->tree ? sizeof key : 0)) {
        const dg_work w = dg_work_rows(&d->work, o->n);
        const dg_mat fused = dg_mat_rows(d->fused, 0, o->n);
        dg_fuse_rows(be, &d->fuse, o, d->net.weights.fc, d->net.weights.hidden_norm, c->rms_norm_eps, fused);
        be->ops->rope_table(be, w.rope, b->dev.pos, d->net.inv_freq, d->net.rope_scale);
        for (int32_t l = 0; l < c->n_layer; l++) dg_layer_store(be, c, &d->net.weights.layer[l], l, b, 0, fused, &w);
        be->ops->pass_end(be);
    }
    dg_kv_keep(&d->kv, o->n);
    if (d->adapt && o->tree) adapt_rows(d, o);
    return DG_OK;
}

/* The ops of a block's pass. */
static void block_ops(dflash *d) {
    dg_backend *be = d->target->be;
    const dg_config *c = &d->net.config;
    const dg_batch *b = &d->batch;
    const dg_work w = dg_work_rows(&d->work, b->n);
    const dg_mat logits = dg_mat_rows(d->logits, 0, b->n - 1);
    dg_batch_begin(be, b);
    be->ops->embed(be, w.x, d->vocab.embed, b->dev.token);
    be->ops->rope_table(be, w.rope, b->dev.pos, d->net.inv_freq, d->net.rope_scale);
    for (int32_t l = 0; l < c->n_layer; l++)
        dg_layer_forward(be, c, &d->net.weights.layer[l], l, b, &w, c->causal[l] ? DG_MASK_CAUSAL : DG_MASK_FULL);
    be->ops->rms_norm(be, w.x, w.x, d->net.weights.norm, c->rms_norm_eps);
    dg_matmul(be, logits, dg_mat_rows(w.x, 1, b->n - 1), d->vocab.head, (dg_mat){0}, false);
    be->ops->top_k(be, d->top_dev, (float *)(d->top_dev + (size_t)(b->n - 1) * (size_t)d->width), logits, d->width);
}

/* Runs the block behind `root`: logits of rows 1..rows-1, and the best of each. */
static dg_status run_block(dflash *d, int32_t root) {
    dg_backend *be = d->target->be;
    dg_batch *b = &d->batch;
    int32_t id[DG_TREE_MAX];
    id[0] = root;
    for (int32_t i = 1; i < d->rows; i++) id[i] = d->net.config.mask_token_id;
    dg_batch_reset(b);
    dg_batch_add_rows(b, &d->kv, id, d->rows, DG_MASK_FULL);
    dg_batch_pad(be, b, d->block);
    dg_batch_upload(be, b);
    const pass_key key = {d, NULL, NULL, b->n};
    if (be->ops->pass_begin(be, &key, sizeof key)) {
        block_ops(d);
        be->ops->pass_end(be);
    }
    dg_kv_truncate(&d->kv, d->kv.len);
    d->base.passes = 1;
    const size_t cells = (size_t)(b->n - 1) * (size_t)d->width;
    be->ops->download(be, d->top, d->top_dev, 2 * cells * sizeof *d->top);
    DG_TRY(dg_backend_check(be));
    d->id = d->top;
    d->logp = (float *)(d->top + cells);
    return DG_OK;
}

static void add_chain(dflash *d, dg_tree *tree, int32_t budget) {
    int32_t node = 0;
    float score = 0;
    for (int32_t j = 0; j < d->rows - 1 && node >= 0; j++) {
        const int32_t token = d->id[j * d->width];
        if (tree->n > budget && dg_tree_child(tree, node, token) < 0) break;
        score += d->logp[j * d->width];
        node = dg_tree_add(tree, node, token, score, d->base.env->source);
    }
}

static dg_status dflash_propose(dg_drafter *base, dg_tree *tree, int32_t budget) {
    dflash *d = (dflash *)base;
    if (tree->n > budget) return DG_OK; /* nothing left to fill: save the pass */
    DG_TRY(run_block(d, tree->token[0]));
    const size_t cells = (size_t)(d->rows - 1) * (size_t)d->width;
    for (size_t i = 0; i < cells; i++) d->id[i] = dg_draft_vocab_target(&d->vocab, d->id[i]);
    const dg_lattice lattice = {d->id, d->logp, d->rows - 1, d->width};
    if (base->env->offer) base->env->offer->lattice = lattice, base->env->offer->source = base->env->source;
    if (d->tree)
        dg_best_first_fill(d->search, tree, &lattice, budget, d->chain, base->env->source);
    else
        add_chain(d, tree, budget);
    return DG_OK;
}

dg_mat dg_dflash_logits(const dg_drafter *d) { return ((const dflash *)d)->logits; }
dg_mat dg_dflash_hidden(const dg_drafter *d) { return dg_mat_rows(((const dflash *)d)->work.x, 0, ((const dflash *)d)->block); }
const dg_kv *dg_dflash_kv(const dg_drafter *d) { return &((const dflash *)d)->kv; }

static void dflash_rewind(dg_drafter *base, int32_t len) { dg_kv_truncate(&((dflash *)base)->kv, len); }

const dg_drafter_ops dg_dflash = {
    .name = "dflash",
    .help = "dflash:PATH[,tree=0|1][,chain=N][,block=N][,adapt=0|1][,width=N][,q8=0|1]: DFlash block drafter; tree=1 grows a best-first tree "
            "(DDTree) with the first N tokens of the chain kept, else one chain; q8=0 keeps 16- and 32-bit weights as they are, and "
            "activations as fine as the target's (default: 8 bits)",
    .open = dflash_open,
    .layout = dflash_layout,
    .taps = dflash_taps,
    .observe = dflash_observe,
    .propose = dflash_propose,
    .rewind = dflash_rewind,
    .close = dflash_close,
    .network = true,
    .memory = dflash_memory,
};
