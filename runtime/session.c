/* Creating sessions, planning their memory, and the calls around the round (round.c). */
#include "runtime/session.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "kernels/gumbel.h"

/* Code and read-only data of the program and its shared libraries, and their heaps: measured as the resident size of
 * `dgraft info` less what it maps and plans. */
#define PROGRAM_BYTES ((uint64_t)9 << 20)

static int32_t min32(int32_t a, int32_t b) { return a < b ? a : b; }

/* ---- layout ----------------------------------------------------------------------------------- */

static void layout(dg_session *s, const dg_session_options *o, dg_arena *host, dg_arena *dev) {
    const dg_config *c = &s->model->net.config;
    const int32_t window = s->chunk > s->budget + 1 ? s->chunk : s->budget + 1;
    dg_kv_layout(&s->kv, c->n_layer, s->context, window, c->n_kv_head, c->head_dim, s->kv_dtype, host, dev);
    dg_batch_layout(&s->batch, s->batch_rows, host, dev);
    dg_work_layout(&s->work, c, s->batch_rows, dev);
    const int32_t head_rows = min32(DG_HEAD_ROWS, s->batch_rows);
    s->logits = dg_mat_make(dg_arena_take(dev, (size_t)head_rows * (size_t)c->vocab_size, sizeof(float)), DG_F32,
                            head_rows, c->vocab_size);
    s->sampled_dev = dg_arena_take(dev, 1, sizeof *s->sampled_dev);
    s->path_dev = dg_arena_take(dev, (size_t)window, sizeof(int32_t));
    s->successor = dg_arena_take(dev, DG_TREE_MAX * (size_t)s->wants.successors, sizeof *s->successor);
    for (int32_t t = 0; t < s->n_tap; t++)
        s->feature[t] = dg_mat_make(dg_arena_take(dev, (size_t)window * (size_t)c->hidden_size, sizeof(float)), DG_F32,
                                    window, c->hidden_size);
    s->token = dg_arena_take(host, (size_t)s->context + 1, sizeof *s->token);
    s->logprob = dg_arena_take(host, (size_t)s->context + 1, sizeof *s->logprob);
    s->source = dg_arena_take(host, (size_t)s->context + 1, sizeof *s->source);
    s->text_end = dg_arena_take(host, DG_TREE_MAX, sizeof *s->text_end);
    dg_text_layout(&s->text, s->model->tokenizer, o->stop, o->n_stop, DG_TREE_MAX, host);
    for (int32_t i = 0; i < s->n_slot; i++) s->slot[i].drafter->ops->layout(s->slot[i].drafter, host, dev);
}

/* The drafters' views of the feature rows; after the final layout. */
static void point_features(dg_session *s) {
    for (int32_t i = 0; i < s->n_slot; i++)
        for (int32_t t = 0; t < s->slot[i].n_tap; t++)
            for (int32_t u = 0; u < s->n_tap; u++)
                if (s->tap_layer[u] == s->slot[i].tap_layer[t]) s->slot[i].feature[t] = s->feature[u];
}

/* ---- options ---------------------------------------------------------------------------------- */

static dg_status check_sampler(const dg_sampler *p) {
    DG_CHECK(p->temperature >= 0 && isfinite(p->temperature), DG_ERR_ARGUMENT, "temperature: expected 0 or more, found %g",
             (double)p->temperature);
    DG_CHECK(p->top_k >= 0, DG_ERR_ARGUMENT, "top_k: expected 0 or more, found %d", p->top_k);
    DG_CHECK(p->top_p >= 0 && p->top_p <= 1, DG_ERR_ARGUMENT, "top_p: expected 0 to 1, found %g", (double)p->top_p);
    DG_CHECK(p->min_p >= 0 && p->min_p <= 1, DG_ERR_ARGUMENT, "min_p: expected 0 to 1, found %g", (double)p->min_p);
    return DG_OK;
}

static dg_sampling sampling_of(const dg_sampler *p) {
    return (dg_sampling){p->temperature, p->top_p, p->min_p, p->top_k, p->seed};
}

static dg_status apply_options(dg_session *s, const dg_session_options *o) {
    const int32_t limit = s->model->net.config.max_position;
    DG_CHECK(o->context >= 0 && o->context <= limit, DG_ERR_ARGUMENT, "context: expected 1 to %d (the model's limit), found %d",
             limit, o->context);
    DG_CHECK(o->budget >= 0 && o->budget < DG_TREE_MAX, DG_ERR_ARGUMENT, "budget: expected 0 (auto) to %d, found %d",
             DG_TREE_MAX - 1, o->budget);
    DG_CHECK(o->batch_rows >= 0 && o->batch_rows <= 65536, DG_ERR_ARGUMENT, "batch_rows: expected 0 to 65536, found %d",
             o->batch_rows);
    DG_CHECK(o->kv == DG_KV_DEFAULT || o->kv == DG_KV_F16 || o->kv == DG_KV_F32, DG_ERR_ARGUMENT,
             "kv: expected DG_KV_DEFAULT, DG_KV_F16 or DG_KV_F32, found %d", (int)o->kv);
    DG_CHECK(o->n_draft <= DG_MAX_DRAFTERS, DG_ERR_ARGUMENT, "%zu drafters: at most %d", o->n_draft, DG_MAX_DRAFTERS);
    for (size_t i = 0; i < o->n_stop; i++)
        DG_CHECK(o->stop[i] && o->stop[i][0], DG_ERR_ARGUMENT, "stop string %zu is empty", i);
    DG_CHECK(!o->n_stop || s->model->tokenizer, DG_ERR_UNSUPPORTED, "%s has no tokenizer, so no stop strings",
             s->model->net.file->path);
    DG_TRY(check_sampler(&o->sampler));
    s->context = o->context ? o->context : min32(limit, 4096);
    s->budget = o->n_draft == 0 ? 0 : o->budget ? o->budget : DG_AUTO_BUDGET;
    s->batch_rows = o->batch_rows ? o->batch_rows : DG_TREE_MAX;
    s->prompt_rows = min32(s->batch_rows, DG_TREE_MAX);
    if (s->batch_rows < s->budget + 1) s->batch_rows = s->budget + 1;
    s->chunk = min32(s->batch_rows, DG_TREE_MAX);
    const bool exact = o->kv == DG_KV_F32 || (o->kv == DG_KV_DEFAULT && s->model->options.compute == DG_COMPUTE_F32);
    s->kv_dtype = exact ? DG_F32 : DG_F16;
    s->sampling = sampling_of(&o->sampler);
    s->ignore_stop_tokens = o->ignore_stop_tokens;
    s->limit = INT32_MAX;
    for (int32_t i = 0; i < DG_TREE_MAX; i++) s->identity[i] = i;
    return DG_OK;
}

/* ---- drafters --------------------------------------------------------------------------------- */

static dg_status add_tap(dg_session *s, int32_t layer) {
    int32_t at = 0;
    while (at < s->n_tap && s->tap_layer[at] < layer) at++;
    if (at < s->n_tap && s->tap_layer[at] == layer) return DG_OK;
    DG_CHECK(s->n_tap < DG_MAX_TAPS, DG_ERR_UNSUPPORTED, "more than %d feature layers", DG_MAX_TAPS);
    memmove(s->tap_layer + at + 1, s->tap_layer + at, (size_t)(s->n_tap - at) * sizeof *s->tap_layer);
    s->tap_layer[at] = layer;
    s->n_tap++;
    return DG_OK;
}

static int32_t max32(int32_t a, int32_t b) { return a > b ? a : b; }

static void add_wants(dg_session *s, dg_slot *slot) {
    const dg_drafter_ops *ops = slot->drafter->ops;
    if (ops->wants) ops->wants(slot->drafter, &slot->wants);
    s->wants.successors = max32(s->wants.successors, min32(slot->wants.successors, s->model->net.config.vocab_size));
    s->wants.prompt = max32(s->wants.prompt, slot->wants.prompt);
}

static dg_status open_drafter(dg_session *s, const dg_draft *draft) {
    dg_slot *slot = &s->slot[s->n_slot];
    const dg_drafter_ops *ops = draft->name ? dg_drafter_find(draft->name) : NULL;
    if (!ops) {
        char known[256] = "";
        for (size_t i = 0; i < dg_drafter_count(); i++) {
            if (i) strncat(known, ", ", sizeof known - strlen(known) - 1);
            strncat(known, dg_drafter_name(i), sizeof known - strlen(known) - 1);
        }
        DG_FAIL(DG_ERR_ARGUMENT, "there is no drafter \"%s\"; there are %s", draft->name ? draft->name : "", known);
    }
    slot->path = draft->path ? dg_mem_strdup(draft->path) : NULL;
    slot->params = draft->params ? dg_mem_strdup(draft->params) : NULL;
    DG_CHECK(!draft->path == !slot->path && !draft->params == !slot->params, DG_ERR_MEMORY, "no memory for the session");
    slot->env = (dg_drafter_env){.model = s->model, .path = slot->path, .params = slot->params, .context = s->context,
                                 .budget = s->budget, .max_rows = s->chunk > s->budget + 1 ? s->chunk : s->budget + 1,
                                 .source = s->n_slot + 1, .offer = &s->offer, .kv_dtype = s->kv_dtype,
                                 .calibration = s->calibration};
    DG_TRY(ops->open(&slot->env, &slot->drafter));
    s->n_slot++;
    s->reads_next |= ops->reads_next;
    add_wants(s, slot);
    slot->n_tap = ops->taps ? ops->taps(slot->drafter, &slot->tap_layer) : 0;
    for (int32_t t = 0; t < slot->n_tap; t++) DG_TRY(add_tap(s, slot->tap_layer[t]));
    return DG_OK;
}

/* Of the first drafter that runs a network, NULL. */
static const char *network_weights(const dg_session_options *o) {
    for (size_t i = 0; i < o->n_draft; i++) {
        const dg_drafter_ops *ops = o->draft[i].name ? dg_drafter_find(o->draft[i].name) : NULL;
        if (ops && ops->network && o->draft[i].path) return o->draft[i].path;
    }
    return NULL;
}

/* The longest context measured that this session will get to. */
static int32_t usual_context(const dg_session *s) {
    int32_t i = 0;
    while (i + 1 < s->calibration->n_context && s->calibration->context[i + 1] <= s->context / 2) i++;
    return i;
}

static void start_budget(dg_session *s) {
    dg_budget_prior p = {0};
    for (int32_t i = 0; i < DG_CAL_ROWS; i++) p.seconds[i] = s->calibration->verify[usual_context(s)][i];
    for (int32_t i = 0; i < s->n_slot; i++) {
        const dg_calibration_source *known = dg_calibration_find(s->calibration, s->slot[i].drafter->ops->name);
        for (int32_t k = known && known->network ? 1 : 0; known && k < 2; k++) {
            p.draft[k] += known->seconds;
            for (int32_t d = 0; d < DG_CAL_DEPTHS; d++)
                for (int32_t b = 0; b < DG_BUDGET_BINS; b++)
                    p.promised[k][b] += known->promised[d][b], p.accepted[k][b] += known->accepted[d][b];
        }
    }
    dg_budget_start(&s->rows, &p);
}

/* A session up to, not including, its memory. */
static dg_status prepare(dg_model *model, const dg_session_options *o, dg_session **out) {
    DG_CHECK(model && out, DG_ERR_ARGUMENT, "a session needs a model");
    dg_session *s = dg_mem_calloc(1, sizeof *s);
    DG_CHECK(s, DG_ERR_MEMORY, "no memory for the session");
    s->model = model;
    dg_status st = apply_options(s, o);
    if (st == DG_OK && o->n_draft) st = dg_calibration_load(model, o->calibration, network_weights(o), s->kv_dtype, &s->calibration);
    for (size_t i = 0; i < o->n_draft && st == DG_OK; i++) st = open_drafter(s, &o->draft[i]);
    if (st != DG_OK) {
        dg_session_free(s);
        return st;
    }
    bool network = false;
    for (int32_t i = 0; i < s->n_slot; i++) network |= s->slot[i].drafter->ops->network;
    dg_budget_init(&s->rows, o->budget, s->budget, network, (double)o->sampler.temperature);
    if (s->calibration) start_budget(s);
    *out = s;
    return DG_OK;
}

dg_status dg_session_create(dg_model *model, const dg_session_options *options, dg_session **out) {
    const dg_session_options o = options ? *options : (dg_session_options){0};
    dg_session *s = NULL;
    DG_TRY(prepare(model, &o, &s));
    dg_arena host = {0}, dev = {0};
    layout(s, &o, &host, &dev);
    /* zeroed, so that the pages are there: what was planned is what is used from the start */
    s->host_block = dg_mem_calloc(1, host.used);
    s->dev_block = model->be->ops->alloc(model->be, dev.used);
    if (!s->host_block || !s->dev_block) {
        const int32_t context = s->context;
        dg_session_free(s);
        DG_FAIL(DG_ERR_MEMORY, "no memory for a session of %d tokens: %zu MiB were needed; a smaller context needs less",
                context, (host.used + dev.used) >> 20);
    }
    const size_t words = dev.used / sizeof(float), columns = 1 << 20;
    const int32_t rows = (int32_t)(words / columns);
    model->be->ops->zero(model->be, dg_mat_make(s->dev_block, DG_F32, rows, (int32_t)columns));
    model->be->ops->zero(model->be, dg_mat_make((float *)s->dev_block + (size_t)rows * columns, DG_F32, 1,
                                                (int32_t)(words % columns)));
    host = (dg_arena){s->host_block, 0, host.used};
    dev = (dg_arena){s->dev_block, 0, dev.used};
    layout(s, &o, &host, &dev);
    point_features(s);
    dg_text_reset(&s->text, false);
    *out = s;
    return DG_OK;
}

void dg_session_free(dg_session *s) {
    if (!s) return;
    for (int32_t i = 0; i < s->n_slot; i++) s->slot[i].drafter->ops->close(s->slot[i].drafter);
    for (int32_t i = 0; i < DG_MAX_DRAFTERS; i++) { /* one more than n_slot may have them: open failed */
        dg_mem_free(s->slot[i].path);
        dg_mem_free(s->slot[i].params);
    }
    if (s->dev_block) s->model->be->ops->free(s->model->be, s->dev_block);
    dg_mem_free(s->calibration);
    dg_mem_free(s->host_block);
    dg_mem_free(s);
}

dg_status dg_session_plan(dg_model *model, const dg_session_options *options, dg_memory_plan *plan) {
    const dg_session_options o = options ? *options : (dg_session_options){0};
    dg_session *s = NULL;
    DG_TRY(prepare(model, &o, &s));
    dg_arena host = {0}, dev = {0};
    layout(s, &o, &host, &dev);
    dg_memory_plan p = {.target_weights = model->net.mapped + model->packed_bytes, .context = s->context,
                        .program = PROGRAM_BYTES};
    p.target_kv = dg_kv_bytes(&s->kv);
    for (int32_t i = 0; i < s->n_slot; i++) {
        uint64_t weights = 0, kv = 0;
        const dg_drafter *d = s->slot[i].drafter;
        if (d->ops->memory) d->ops->memory(d, &weights, &kv);
        p.draft_weights += weights;
        p.draft_kv += kv;
    }
    p.workspace = host.used + dev.used - p.target_kv - p.draft_kv + model->backend_bytes + sizeof *s;
    p.tokenizer = model->tokenizer ? dg_tokenizer_memory(model->tokenizer) : 0;
    p.total = p.target_weights + p.draft_weights + p.target_kv + p.draft_kv + p.workspace + p.tokenizer + p.program;
    dg_session_free(s);
    *plan = p;
    return DG_OK;
}

/* ---- around the round ------------------------------------------------------------------------- */

dg_status dg_session_alive(const dg_session *s) {
    DG_CHECK(s, DG_ERR_ARGUMENT, "the session is NULL");
    if (s->dead != DG_OK) DG_FAIL(s->dead, "the session died of an earlier error (%s)", dg_status_name(s->dead));
    return DG_OK;
}

dg_status dg_session_step(dg_session *s, int32_t *out, size_t cap, size_t *n) {
    DG_CHECK(s && n && (out || !cap), DG_ERR_ARGUMENT, "dg_session_step: session and n must not be NULL");
    dg_session *one[1] = {s};
    DG_TRY(dg_sessions_step(one, 1, n));
    for (size_t i = 0; i < *n && i < cap; i++) out[i] = s->token[(size_t)(s->n_token - s->n_new) + i];
    return DG_OK;
}

void dg_session_limit(dg_session *s, size_t limit) {
    s->limit = limit == 0 || limit > INT32_MAX ? INT32_MAX : (int32_t)limit;
    s->new_limit = true;
    if (s->stopped == DG_STOP_LIMIT) s->stopped = DG_STOP_NONE;
}

/* The likeliest node of this source behind the root; -1 if there is none, or if a drafter before it has one: what both say
 * counts as the other's, and what is left would be no fair sample. */
static int32_t first_choice(const dg_tree *t, int32_t source) {
    int32_t best = -1;
    for (int32_t i = 1; i < t->n; i++) {
        if (t->depth[i] != 1 || t->source[i] > source) continue;
        if (t->source[i] < source) return -1;
        if (best < 0 || t->score[i] > t->score[best]) best = i;
    }
    return best;
}

/* A drafter that does not fit costs time for nothing: say so once, early enough to help. Judged by how often its first choice
 * is right, in rounds that had one, over as many of them as tell a misfit from a good drafter on hard text: a DFlash
 * drafter was right in 19 to 69 % of 128 rounds on the kinds of text that it was trained for, in 4 % on languages that it was
 * not. Text sampled hotter than the model's own distribution says nothing: there it was right in 3 %. */
static void warn_mismatch(dg_session *s) {
    enum { ROUNDS = 128, PERCENT = 4 };
    if (s->warned || !s->n_new || s->sampling.temperature > 1) return;
    for (int32_t i = 0; i < s->n_slot && !s->warned; i++) {
        dg_slot *slot = &s->slot[i];
        const int32_t node = slot->drafter->ops->network ? first_choice(&s->tree, i + 1) : -1;
        if (node < 0) continue;
        slot->n_first++;
        slot->first_right += s->walk.n > 1 && s->walk.path[1] == node;
        if (slot->n_first < ROUNDS) continue;
        s->warned = slot->first_right * 100 < ROUNDS * PERCENT;
        if (s->warned)
            dg_model_log(s->model, DG_LOG_WARN,
                         "drafter %s (%s): %d of its first choices in %d rounds were right; was it trained for this "
                         "model, and for this kind of text (chat template, thinking on or off)?",
                         slot->drafter->ops->name, slot->path ? slot->path : "no file", slot->first_right, ROUNDS);
        slot->n_first = slot->first_right = 0;
    }
}

/* Hands the last round's tokens to the callback until it says no, which *cancelled tells, or asks for another sampler or
 * limit. Returns how many it got. */
static int32_t deliver(dg_session *s, bool (*callback)(void *, const dg_piece *), void *ud, bool *cancelled) {
    size_t from = 0;
    s->new_sampler = s->new_limit = false;
    for (int32_t i = 0; i < s->n_new; i++) {
        const int32_t at = s->n_token - s->n_new + i;
        const dg_piece piece = {s->text.out + from, s->text_end[i] - from, s->token[at], s->source[at], s->logprob[at]};
        from = s->text_end[i];
        *cancelled = !callback(ud, &piece);
        if (*cancelled || s->new_sampler || s->new_limit) return i + 1;
    }
    return s->n_new;
}

/* Takes back the last `n` tokens of a round, of which the caller was not told. */
static dg_status take_back(dg_session *s, int32_t n) {
    const dg_stats stats = s->stats;
    DG_TRY(dg_session_rewind(s, (size_t)(s->n_token - n)));
    s->stats = stats; /* none of it was a prompt */
    s->stats.tokens -= (uint64_t)n;
    if (s->limit != INT32_MAX && !s->new_limit) s->limit += n;
    return DG_OK;
}

/* One round of dg_session_generate. */
static dg_status generate_round(dg_session *s, bool (*callback)(void *, const dg_piece *), void *ud) {
    size_t n;
    bool cancelled = false;
    DG_TRY(dg_session_step(s, NULL, 0, &n));
    warn_mismatch(s);
    if (!callback || !n) return DG_OK;
    const int32_t untold = s->n_new - deliver(s, callback, ud, &cancelled);
    if (untold || cancelled) DG_TRY(take_back(s, untold));
    if (cancelled) s->stopped = DG_STOP_CANCELLED;
    return DG_OK;
}

dg_status dg_session_generate(dg_session *s, size_t limit, bool (*callback)(void *ud, const dg_piece *p), void *ud,
                              dg_stop *why) {
    DG_TRY(dg_session_alive(s));
    dg_session_limit(s, limit);
    dg_status st = DG_OK;
    while (st == DG_OK && s->stopped == DG_STOP_NONE) st = generate_round(s, callback, ud);
    s->limit = INT32_MAX;
    DG_TRY(st);
    if (callback && s->stopped != DG_STOP_CANCELLED) {
        dg_text_round(&s->text);
        (s->stopped == DG_STOP_LIMIT ? dg_text_tell : dg_text_flush)(&s->text);
        const dg_piece last = {s->text.out, s->text.n_out, -1, 0, 0};
        callback(ud, &last);
    }
    if (why) *why = s->stopped;
    return DG_OK;
}

dg_status dg_session_margin(const dg_session *s, int32_t other, float *margin) {
    DG_TRY(dg_session_alive(s));
    const int32_t vocab = s->model->net.config.vocab_size;
    DG_CHECK(other >= 0 && other < vocab, DG_ERR_ARGUMENT, "margin: token is %d: expected 0 to %d", other, vocab - 1);
    DG_CHECK(margin && s->n_new == 1 && s->tree.n == 1 && s->alone, DG_ERR_ARGUMENT,
             "margin: the last step was not one of plain decoding of this session alone");
    const int32_t id[2] = {s->token[s->n_token - 1], other};
    dg_backend *be = s->model->be;
    float score[2];
    for (int i = 0; i < 2; i++) {
        be->ops->download(be, &score[i], (const float *)s->logits.data + id[i], sizeof score[i]);
        if (s->drawn.temperature > 0)
            score[i] += s->drawn.temperature * dg_token_noise(s->drawn.seed, (uint32_t)s->n_token - 2, (uint32_t)id[i]);
    }
    DG_TRY(dg_backend_check(be));
    *margin = score[0] - score[1];
    return DG_OK;
}

dg_status dg_session_save_memory(const dg_session *s, const char *path) {
    DG_TRY(dg_session_alive(s));
    DG_CHECK(path, DG_ERR_ARGUMENT, "dg_session_save_memory: path must not be NULL");
    dg_status off = DG_OK; /* a memory that is switched off, and says so */
    for (int32_t i = 0; i < s->n_slot; i++) {
        const dg_drafter *d = s->slot[i].drafter;
        if (!d->ops->save) continue;
        const dg_status st = d->ops->save(d, path);
        if (st != DG_ERR_ARGUMENT) return st;
        off = st;
    }
    if (off != DG_OK) return off;
    DG_FAIL(DG_ERR_ARGUMENT, "%s: no drafter of this session has a memory to save; fused, graft, fill and recycling do", path);
}

int32_t dg_session_context(const dg_session *s) { return s->context; }
const int32_t *dg_session_tokens(const dg_session *s, size_t *n) {
    if (n) *n = (size_t)s->n_token;
    return s->token;
}
const float *dg_session_logprobs(const dg_session *s) { return s->logprob; }
const uint8_t *dg_session_sources(const dg_session *s) { return s->source; }
dg_stop dg_session_stopped(const dg_session *s) { return s->stopped; }
void dg_session_get_stats(const dg_session *s, dg_stats *stats) { *stats = s->stats; }

void dg_session_get_round(const dg_session *s, dg_round *round) {
    *round = (dg_round){.cut = -1};
    if (!s->stats.rounds || !s->n_new) return;
    const dg_tree *t = &s->tree;
    const int32_t n_path = min32(s->n_new + 1, s->walk.n);
    *round = (dg_round){.index = s->stats.rounds, .n = t->n, .token = t->token, .parent = t->parent, .score = t->score,
                        .source = t->source, .n_path = n_path, .path = s->walk.path,
                        .next = s->sampled.id[s->walk.path[n_path - 1]], .cut = s->round_cut, .draft_seconds = s->round_draft,
                        .verify_seconds = s->round_verify};
}

void dg_session_reset_stats(dg_session *s) { s->stats = (dg_stats){0}; }

dg_status dg_session_set_sampler(dg_session *s, const dg_sampler *sampler) {
    DG_TRY(dg_session_alive(s));
    DG_TRY(check_sampler(sampler));
    s->sampling = sampling_of(sampler);
    s->new_sampler = true;
    dg_budget_temperature(&s->rows, (double)sampler->temperature);
    return DG_OK;
}
