/* The round: propose, verify, commit, for one session or several in one forward pass. */
#include <assert.h>
#include <stddef.h>
#include <string.h>
#include <time.h>

#include "runtime/session.h"

#ifdef DG_TEST
double (*dg_test_clock)(void);
#endif

double dg_now(void) {
#ifdef DG_TEST
    if (dg_test_clock) return dg_test_clock();
#endif
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int32_t min32(int32_t a, int32_t b) { return a < b ? a : b; }
static int32_t max32(int32_t a, int32_t b) { return a > b ? a : b; }

/* Nodes that this round may verify besides the root: all of them must fit the context. */
static int32_t room(const dg_session *s) { return s->limit > 1 ? min32(s->budget, s->context - s->n_token - 1) : 0; }

/* ---- what drafters are told ------------------------------------------------------------------- */

/* An outcome to the drafters that look at feature layers, or to those that do not. */
static dg_status tell(dg_session *s, bool taps, const dg_outcome *base, int32_t scored) {
    for (int32_t i = 0; i < s->n_slot; i++) {
        const dg_slot *slot = &s->slot[i];
        if (taps != (slot->n_tap > 0)) continue;
        dg_outcome o = *base;
        o.feature = slot->feature;
        if (scored && slot->wants.successors && (o.tree || slot->wants.prompt)) {
            o.successor = dg_mat_make(s->successor, DG_I32, scored, s->wants.successors);
            o.successor = dg_mat_cols(o.successor, 0, min32(slot->wants.successors, s->wants.successors));
        }
        DG_TRY(slot->drafter->ops->observe(slot->drafter, &o));
    }
    return DG_OK;
}

static void upload_rows(dg_session *s, const int32_t *row, int32_t n) {
    s->model->be->ops->upload(s->model->be, s->path_dev, row, (size_t)n * sizeof *row);
}

/* The n rows committed last, in the feature rows `row`. */
static dg_outcome outcome_of(const dg_session *s, int32_t n, const int32_t *row) {
    const int32_t first = s->kv.len - n;
    return (dg_outcome){.n = n, .token = s->token + first, .first = first, .next = s->token[first + n],
                        .row = s->path_dev, .path = row};
}

/* First feature row that holds nothing that is still to be told. */
static int32_t feature_row0(const dg_session *s) { return s->n_pending ? s->pending[s->n_pending - 1] + 1 : 0; }

/* Tells the drafters with feature layers what they sat out: many rows at once cost them little more than one. */
static dg_status tell_pending(dg_session *s) {
    const int32_t n = s->n_pending;
    if (!n) return DG_OK;
    upload_rows(s, s->pending, n);
    dg_outcome o = outcome_of(s, n, s->identity);
    s->n_pending = 0;
    return tell(s, true, &o, 0);
}

/* Rows of a round, to everyone. Where drafters with feature layers sit out, theirs are kept. */
static dg_status tell_round(dg_session *s, int32_t n) {
    const dg_outcome o = {.n = n, .token = s->token + s->kv.len - n, .first = s->kv.len - n, .next = s->token[s->kv.len],
                          .row = s->path_dev, .tree = &s->tree, .path = s->walk.path};
    if (s->n_tap && !s->rows.use) {
        const int32_t row0 = feature_row0(s);
        for (int32_t i = 0; i < n; i++) s->pending[s->n_pending++] = row0 + s->walk.path[i];
    } else if (s->n_tap) {
        const double start = dg_now();
        DG_TRY(tell(s, true, &o, s->tree.n));
        s->round_draft += dg_now() - start;
    }
    return tell(s, false, &o, s->tree.n);
}

/* ---- propose ---------------------------------------------------------------------------------- */

/* The tree of all drafters, or of those without networks. May be asked for twice in a round. */
static dg_status ask_drafters(dg_session *s, int32_t budget, bool network) {
    dg_tree_reset(&s->tree, s->token[s->n_token - 1]);
    s->tree.deepest = s->limit - 1; /* a round appends one token more than it accepts */
    s->offer.lattice.n_depth = s->offer.scored.n = 0;
    for (int32_t i = 0; i < s->n_slot && budget > 0; i++) {
        dg_drafter *d = s->slot[i].drafter;
        d->passes = 0, d->cut = -1;
        if (d->ops->network && !network) continue;
        DG_TRY(d->ops->propose(d, &s->tree, budget));
        assert(s->tree.n <= budget + 1);
    }
    dg_tree_trim(&s->tree);
    return DG_OK;
}

static dg_status propose(dg_session *s) {
    double start = dg_now();
    bool network;
    const int32_t budget = dg_budget_begin(&s->rows, room(s), &network);
    const bool ask_first = s->rows.network && !s->rows.fixed; /* what is remembered may do */
    if (ask_first) {
        DG_TRY(ask_drafters(s, budget, false));
        if (dg_budget_sure(&s->rows, &s->tree)) network = false;
    }
    const double asked = dg_now() - start;
    start = dg_now();
    if (network) DG_TRY(tell_pending(s));
    s->stats.draft_seconds += dg_now() - start;
    start = dg_now();
    if (network || !ask_first) DG_TRY(ask_drafters(s, budget, network));
    s->round_cut = -1;
    for (int32_t i = 0; i < s->n_slot && budget > 0; i++) {
        const dg_drafter *d = s->slot[i].drafter;
        s->stats.drafter_passes += (uint64_t)d->passes;
        if (d->cut >= 0) s->stats.cut_at[min32(s->round_cut = d->cut, DG_STATS_DEPTH - 1)]++;
    }
    const int32_t keep = dg_budget_cut(&s->rows, &s->tree);
    if (keep < s->tree.n - 1) dg_tree_prune(&s->tree, keep, NULL);
    s->round_draft = dg_now() - start + asked;
    s->stats.draft_seconds += s->round_draft;
    return s->n_tap && feature_row0(s) + s->tree.n > s->feature[0].rows ? tell_pending(s) : DG_OK;
}

/* ---- the target's pass ------------------------------------------------------------------------ */

/* Trees of one session alone: the passes that come again and again. */
static bool is_usual(const dg_batch *b) { return b->n_seg == 1 && b->seg[0].mask == DG_MASK_BITS; }

/* Uploads a batch of trees or of a chunk of the prompt; seg[i] belongs to s[i]. */
static void upload_batch(dg_session *const *s, dg_batch *b) {
    if (is_usual(b)) dg_batch_pad(s[0]->model->be, b, DG_TREE_MAX);
    for (int32_t i = 0; i < b->n_seg; i++) b->host.live[i].row = feature_row0(s[i]);
    dg_batch_upload(s[0]->model->be, b);
}

/* Taps of every session in the batch. */
static int32_t collect_taps(dg_session *const *s, const dg_batch *b, dg_tap *tap) {
    int32_t n = 0;
    for (int32_t i = 0; i < b->n_seg; i++)
        for (int32_t t = 0; t < s[i]->n_tap; t++)
            tap[n++] = (dg_tap){s[i]->tap_layer[t], b->seg[i].row0, b->seg[i].n, &b->seg[i].live->row, s[i]->feature[t]};
    return n;
}

/* What one session wants of rows [from, to) of the forward pass, whose logits start at row `first`: what the drafters
 * ask for and, unless the next tokens are known (prefill), the target's samples. */
static void read_logits(dg_session *s, const dg_batch *b, const dg_segment *seg, dg_mat logits, int32_t first, bool sample) {
    dg_backend *be = s->model->be;
    const int32_t from = max32(seg->row0, first), to = min32(seg->row0 + seg->n, first + logits.rows);
    if (from >= to) return;
    const int32_t at = from - seg->row0, k = s->wants.successors;
    const dg_mat rows = dg_mat_rows(logits, from - first, to - from);
    int32_t *successor = k ? s->successor + (size_t)at * (size_t)k : NULL;
    if (sample) /* a row's noise is keyed by its own position, whatever the batch */
        be->ops->sample(be, s->sampled_dev->id + at, s->sampled_dev->logp + at, rows, b->dev.pos + from, &s->sampling, successor, k);
    else if (k)
        be->ops->top_k(be, successor, NULL, rows, k);
}

/* The head over all rows of a forward pass, those of several sessions together, as many at a time as logits are kept
 * of. */
static void score_rows(dg_session *const *s, const dg_batch *b, bool sample) {
    const dg_session *lead = s[0];
    for (int32_t first = 0; first < b->n; first += lead->logits.rows) {
        const int32_t rows = min32(lead->logits.rows, b->n - first);
        const dg_mat logits = dg_mat_rows(lead->logits, 0, rows);
        dg_target_head(lead->model, dg_mat_rows(lead->work.x, first, rows), logits);
        for (int32_t i = 0; i < b->n_seg; i++) read_logits(s[i], b, &b->seg[i], logits, first, sample);
    }
}

/* All that a usual pass depends on. */
typedef struct pass_key {
    const dg_session *s;
    int64_t n;
    dg_sampling sampling;
} pass_key;

_Static_assert(sizeof(pass_key) <= DG_PASS_KEY && sizeof(pass_key) == sizeof(void *) + 8 + sizeof(dg_sampling),
               "a key has no gaps");

/* The pass over an uploaded batch; trees are scored and sampled. seg[i] belongs to s[i]. */
static void run_target(dg_session *const *s, const dg_batch *b) {
    const dg_session *lead = s[0];
    dg_backend *be = lead->model->be;
    const pass_key key = {lead, b->n, lead->sampling};
    if (!be->ops->pass_begin(be, &key, is_usual(b) ? sizeof key : 0)) return;
    dg_tap tap[DG_MAX_SEGMENTS * DG_MAX_TAPS];
    dg_batch_begin(be, b);
    dg_target_forward(lead->model, b, &lead->work, tap, collect_taps(s, b, tap));
    if (b->seg[0].mask == DG_MASK_BITS) score_rows(s, b, true);
    be->ops->pass_end(be);
}

/* The samples of n rows, to the host. */
static void download_samples(dg_session *s, int32_t n) {
    s->model->be->ops->download(s->model->be, &s->sampled, s->sampled_dev,
                                offsetof(dg_samples, logp) + (size_t)n * sizeof *s->sampled.logp);
}

/* Appends the walk's tokens up to a stop, the limit or the end of the context. Returns how many. */
static int32_t append_tokens(dg_session *s) {
    dg_text_round(&s->text);
    const int32_t room = min32(s->limit, s->context - s->n_token);
    int32_t n = 0;
    while (n < s->walk.n && s->stopped == DG_STOP_NONE) {
        const int32_t node = s->walk.path[n];
        const int32_t child = n + 1 < s->walk.n ? s->walk.path[n + 1] : -1;
        const int32_t at = s->n_token + n;
        s->token[at] = s->sampled.id[node];
        s->logprob[at] = s->sampled.logp[node];
        s->source[at] = child >= 0 ? s->tree.source[child] : 0;
        n++;
        if (!s->ignore_stop_tokens && dg_is_stop(s->model, s->token[at]))
            s->stopped = DG_STOP_TOKEN;
        else if (dg_text_push(&s->text, s->token[at]))
            s->stopped = DG_STOP_STRING;
        else if (n == room)
            s->stopped = room == s->limit ? DG_STOP_LIMIT : DG_STOP_CONTEXT;
        s->text_end[n - 1] = s->text.n_out;
    }
    return n;
}

static void count_round(dg_session *s, int32_t n) {
    dg_stats *st = &s->stats;
    st->rounds++;
    st->tokens += (uint64_t)n;
    st->verified_rows += (uint64_t)s->tree.n;
    st->drafted_rounds += s->tree.n > 1;
    st->length[min32(n, DG_STATS_DEPTH - 1)]++;
    for (int32_t i = 1; i < s->tree.n; i++) {
        if (s->tree.source[i]) st->proposed[s->tree.source[i] - 1]++;
        st->proposed_at[min32(s->tree.depth[i], DG_STATS_DEPTH - 1)]++;
    }
    for (int32_t i = 1; i < min32(n + 1, s->walk.n); i++) { /* drafts that became text */
        const int32_t node = s->walk.path[i];
        if (s->tree.source[node]) st->accepted[s->tree.source[node] - 1]++;
        st->accepted_at[min32(s->tree.depth[node], DG_STATS_DEPTH - 1)]++;
    }
}

/* Rows of the root and of all new tokens but the last, which is the next root. Drafters that look at features find the path
 * where it was uploaded. */
static void commit_path(dg_session *s, int32_t n) {
    const bool moves = s->walk.path[n - 1] != n - 1;
    if (moves || (s->n_tap && s->rows.use)) upload_rows(s, s->walk.path, n);
    if (moves)
        dg_kv_commit(s->model->be, &s->kv, s->path_dev, n);
    else
        dg_kv_keep(&s->kv, n);
}

/* What follows the forward pass of one session's tree: walk, commit, tell the drafters. */
static dg_status settle(dg_session *s) {
    const double start = dg_now();
    dg_verify(&s->tree, s->sampled.id, &s->walk);
    const int32_t n = append_tokens(s);
    count_round(s, n);
    commit_path(s, n);
    s->n_token += n;
    s->n_new = n;
    if (s->limit != INT32_MAX) s->limit -= n;
    const double drafting = s->round_draft;
    DG_TRY(tell_round(s, n));
    const double seconds = dg_now() - start;
    s->stats.commit_seconds += seconds;
    dg_budget_learn(&s->rows, &s->tree, &s->walk, s->round_draft, s->round_verify, seconds - (s->round_draft - drafting));
    return DG_OK;
}

/* One forward pass over the trees of s[0..n), which fit s[0]'s workspace. */
static dg_status verify_group(dg_session *const *s, int32_t n) {
    dg_session *lead = s[0];
    dg_backend *be = lead->model->be;
    const double start = dg_now();
    dg_batch *b = &lead->batch;
    dg_batch_reset(b);
    for (int32_t i = 0; i < n; i++) dg_batch_add_tree(b, &s[i]->kv, &s[i]->tree);
    upload_batch(s, b);
    run_target(s, b);
    for (int32_t i = 0; i < n; i++) download_samples(s[i], s[i]->tree.n);
    DG_TRY(dg_backend_check(be));
    const double seconds = (dg_now() - start) / n;
    for (int32_t i = 0; i < n; i++) {
        s[i]->stats.verify_seconds += seconds;
        s[i]->round_verify = seconds;
        s[i]->drawn = s[i]->sampling;
        s[i]->alone = n == 1;
        DG_TRY(settle(s[i]));
    }
    return DG_OK;
}

static dg_status step_all(dg_session *const *s, int32_t n) {
    dg_session *group[DG_MAX_SEGMENTS];
    int32_t n_group = 0, rows = 0;
    for (int32_t i = 0; i < n; i++) {
        s[i]->n_new = 0;
        if (s[i]->stopped != DG_STOP_NONE) continue;
        DG_TRY(propose(s[i]));
        if (n_group == DG_MAX_SEGMENTS || (n_group && rows + s[i]->tree.n > group[0]->batch_rows)) {
            DG_TRY(verify_group(group, n_group));
            n_group = rows = 0;
        }
        group[n_group++] = s[i];
        rows += s[i]->tree.n;
    }
    return n_group ? verify_group(group, n_group) : DG_OK;
}

/* Before anything is touched: a session that cannot go on stops here, with nothing appended. */
static dg_status check_step(dg_session *s) {
    DG_TRY(dg_session_alive(s));
    DG_CHECK(s->n_token > 0, DG_ERR_ARGUMENT, "the session holds no tokens yet: give it a prompt first");
    if (s->stopped == DG_STOP_LIMIT && s->limit > 0) s->stopped = DG_STOP_NONE; /* that of a dg_session_generate, over now */
    if (s->stopped == DG_STOP_NONE && s->n_token >= s->context) s->stopped = DG_STOP_CONTEXT;
    if (s->stopped == DG_STOP_NONE && s->limit <= 0) s->stopped = DG_STOP_LIMIT; /* used up before a sync */
    return DG_OK;
}

dg_status dg_sessions_step(dg_session *const *s, size_t n_session, size_t *count) {
    DG_CHECK(s && n_session > 0 && n_session <= INT32_MAX, DG_ERR_ARGUMENT, "dg_sessions_step: no sessions");
    for (size_t i = 0; i < n_session; i++) {
        DG_CHECK(s[i], DG_ERR_ARGUMENT, "dg_sessions_step: session %zu is NULL", i);
        DG_CHECK(s[i]->model == s[0]->model, DG_ERR_ARGUMENT, "sessions stepped together must share one model");
        for (size_t j = 0; j < i; j++)
            DG_CHECK(s[i] != s[j], DG_ERR_ARGUMENT, "session %zu and %zu of one step are the same", j, i);
        DG_TRY(check_step(s[i]));
    }
    dg_mem_guard_begin();
    const dg_status st = step_all(s, (int32_t)n_session);
    dg_mem_guard_end();
    for (size_t i = 0; i < n_session; i++) {
        if (st != DG_OK) s[i]->dead = st;
        if (st == DG_OK && count) count[i] = (size_t)s[i]->n_new;
    }
    return st;
}

dg_status dg_session_time_rows(dg_session *s, int32_t rows, int32_t len, double *seconds) {
    const int32_t committed = s->kv.len;
    dg_tree t; /* a star of different tokens: what it holds makes no difference to the time */
    dg_tree_reset(&t, 0);
    for (int32_t i = 1; i < rows; i++) dg_tree_add(&t, 0, i, 0, 0);
    const double start = dg_now();
    s->kv.len = len;
    dg_batch_reset(&s->batch);
    dg_batch_add_tree(&s->batch, &s->kv, &t);
    upload_batch(&s, &s->batch);
    run_target(&s, &s->batch);
    download_samples(s, rows);
    s->kv.len = committed;
    dg_kv_truncate(&s->kv, committed);
    DG_TRY(dg_backend_check(s->model->be));
    *seconds = dg_now() - start;
    return DG_OK;
}

/* ---- prefill ---------------------------------------------------------------------------------- */

/* How many of n tokens' rows stay, `same` of which are the text's.
 *
 * Where the backend has loose passes, prefill uses them although the text must not depend on drafters: for the chunks of
 * prompt_rows that a prompt begins with, in every session alike. A row of such a chunk cannot be computed anew alone, as a
 * drafter that reads ahead asks for; so whoever changes the text there, with drafters or without, goes back to where the
 * chunk begins. */
static int32_t kept_rows(const dg_session *s, int32_t same, int32_t n) {
    const int32_t keep = min32(min32(same, s->kv.len), n - 1);
    /* a drafter that reads ahead knows the last kept row with the token that followed it then */
    const int32_t known = keep > 0 && (keep < s->kv.len || same == keep) ? keep - 1 : keep;
    if (s->model->be->ops->has_loose && !s->model->options.inexact && known <= s->n_loose) return known / s->prompt_rows * s->prompt_rows;
    return s->reads_next ? known : keep;
}

/* Whether the next n rows are a chunk of those. */
static bool is_loose(const dg_session *s, int32_t n) {
    return s->model->be->ops->has_loose && n == s->prompt_rows && s->kv.len == s->n_loose && s->n_loose % n == 0;
}

/* Commits token[kv.len .. kv.len+n) in one pass; the token after them is known. score: for the drafters. */
static dg_status prefill_chunk(dg_session *s, int32_t n, bool score) {
    dg_batch_reset(&s->batch);
    s->batch.loose = is_loose(s, n);
    dg_batch_add_rows(&s->batch, &s->kv, s->token + s->kv.len, n, DG_MASK_CAUSAL);
    upload_batch(&s, &s->batch);
    const double start = dg_now();
    run_target(&s, &s->batch);
    DG_TRY(dg_backend_check(s->model->be));
    dg_budget_prompt(&s->rows, n, dg_now() - start);
    if (score) score_rows(&s, &s->batch, false);
    dg_kv_keep(&s->kv, n);
    if (s->batch.loose) s->n_loose = s->kv.len;
    upload_rows(s, s->identity, n);
    const dg_outcome o = outcome_of(s, n, s->identity);
    DG_TRY(tell(s, true, &o, score ? n : 0));
    return tell(s, false, &o, score ? n : 0);
}

/* Whether there is text before token `end`. Special tokens alone are none. */
static bool holds_text(const dg_session *s, int32_t end) {
    const dg_tokenizer *t = s->model->tokenizer;
    for (int32_t i = 0; t && i < end; i++)
        if (!dg_tokenizer_is_special(t, s->token[i])) return true;
    return false;
}

/* The text in the state in which its last token left it: as much of the answer is gone over as can matter. */
static void restore_text(dg_session *s) {
    const dg_tokenizer *t = s->model->tokenizer;
    int32_t from = s->n_token;
    for (size_t bytes = 0; t && from > s->answer && bytes < dg_text_reach(&s->text); from--)
        if (!dg_tokenizer_is_special(t, s->token[from - 1])) bytes += dg_tokenizer_bytes(t, s->token[from - 1]).len;
    dg_text_reset(&s->text, holds_text(s, from));
    for (; from < s->n_token; from++) {
        dg_text_round(&s->text);
        dg_text_push(&s->text, s->token[from]);
    }
}

/* Makes the session hold exactly these tokens; the text is the caller's. */
static dg_status set_tokens(dg_session *s, const int32_t *tokens, size_t n) {
    DG_TRY(dg_session_alive(s));
    DG_CHECK(tokens && n > 0, DG_ERR_ARGUMENT, "the prompt is empty: at least one token is needed");
    DG_CHECK(n <= (size_t)s->context, DG_ERR_CONTEXT_FULL, "%zu tokens do not fit the context of %d", n, s->context);
    const int32_t vocab = s->model->net.config.vocab_size;
    for (size_t i = 0; i < n; i++)
        DG_CHECK(tokens[i] >= 0 && tokens[i] < vocab, DG_ERR_ARGUMENT,
                 "token %zu is %d: expected 0 to %d", i, tokens[i], vocab - 1);

    const double start = dg_now();
    s->dead = tell_pending(s);
    if (s->dead != DG_OK) return s->dead;
    dg_budget_text(&s->rows);
    int32_t same = 0;
    while (same < s->n_token && same < (int32_t)n && s->token[same] == tokens[same]) same++;
    const int32_t keep = kept_rows(s, same, (int32_t)n);
    s->n_loose = min32(s->n_loose, keep);
    if (keep < s->kv.len) {
        dg_kv_truncate(&s->kv, keep);
        for (int32_t i = 0; i < s->n_slot; i++) s->slot[i].drafter->ops->rewind(s->slot[i].drafter, keep);
    }
    for (int32_t i = same; i < (int32_t)n; i++) s->token[i] = tokens[i], s->logprob[i] = 0, s->source[i] = 0;
    s->n_token = (int32_t)n;
    s->n_new = 0;
    s->stopped = DG_STOP_NONE;

    dg_status st = DG_OK;
    const bool score = s->n_token - 1 - keep <= s->wants.prompt;
    dg_mem_guard_begin();
    while (st == DG_OK && s->kv.len < s->n_token - 1)
        st = prefill_chunk(s, min32(s->prompt_rows, s->n_token - 1 - s->kv.len), score);
    dg_mem_guard_end();
    if (st != DG_OK) {
        s->dead = st;
        return st;
    }
    s->stats.reused += (uint64_t)keep;
    s->stats.prompt_tokens += (uint64_t)(s->n_token - 1 - keep);
    s->stats.prefill_seconds += dg_now() - start;
    return DG_OK;
}

dg_status dg_session_sync(dg_session *s, const int32_t *tokens, size_t n) {
    DG_TRY(set_tokens(s, tokens, n));
    s->answer = s->n_token;
    dg_text_reset(&s->text, holds_text(s, s->n_token));
    return DG_OK;
}

dg_status dg_session_rewind(dg_session *s, size_t pos) {
    DG_TRY(dg_session_alive(s));
    DG_CHECK(pos >= 1 && pos <= (size_t)s->n_token, DG_ERR_ARGUMENT, "rewind: expected a position from 1 to %d, found %zu",
             s->n_token, pos);
    const bool shorter = pos < (size_t)s->n_token;
    DG_TRY(set_tokens(s, s->token, pos));
    s->answer = min32(s->answer, s->n_token);
    if (shorter) restore_text(s);
    return DG_OK;
}
