/* Calibration: answers prompts with the drafters at hand and measures (dg_calibrate).
 *
 * What a round would have gained under another threshold needs no second verification: the text is the same under all of
 * them. So before each round the trees of all thresholds are built from the same state and kept, and when the answer is
 * there each is walked along it. */
#include "graft/calibrate.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "graft/fill.h"
#include "graft/graft.h"
#include "graft/succ.h"
#include "runtime/session.h"

enum {
    STAGES = DG_GATES + 1, /* stopped at a checkpoint, or not */
    CUTS = DG_GATES,       /* what the stops alone leave */
    TREES = DG_TAIL_VALUES > STAGES + CUTS ? DG_TAIL_VALUES : STAGES + CUTS,
    AHEAD = 12 /* tokens of text that a round needs behind it to count */
};

/* Graft's: passes behind the first, and nodes that stay (arXiv 2605.20104). */
static const int32_t checkpoint[DG_GATES] = {0, 1, 5}, keep[DG_GATES] = {8, 24, 40};
static const float tail_value[DG_TAIL_VALUES] = {0.4f, 0, 0.1f, 0.2f, 0.3f, 0.5f, 0.6f, 0.7f};

typedef struct trial {
    int32_t at; /* tokens of the text before the round */
    float confidence[DG_GATES];
    int32_t successor[DG_SUCC_WIDTH]; /* of the root in M */
    dg_tree tree[TREES];
} trial;

typedef struct job {
    const dg_calibrate_options *o;
    dg_model *model;
    dg_session *s;
    dg_calibration *c;
    int32_t budget, tokens;
    dg_draft draft[DG_MAX_DRAFTERS];
    char params[DG_MAX_DRAFTERS][256];
    int32_t gated, filler, tail; /* slots, -1: none */
    trial *trial;                /* of one answer */
    int32_t n_trial;
    dg_gate_round *gate_round; /* of all */
    dg_tail_round *tail_round;
    int32_t n_round, cap_round;
    double propose_seconds[DG_MAX_DRAFTERS];
    double first_seconds, pass_seconds, fill_seconds; /* sums */
    int32_t n_propose, n_pass;
    int32_t n_root, hit[DG_SUCC_WIDTH]; /* roots that M knew, and which entry followed */
    double verify_seconds, rest_seconds; /* of all rounds */
    uint64_t n_step;
} job;

static void tell(const job *j, const char *what, double share) {
    if (j->o->progress) j->o->progress(j->o->ud, what, share);
}

/* ---- opening ---------------------------------------------------------------------------------- */

/* The drafters as they are without thresholds: later parameters overrule earlier ones. */
static dg_status take_drafts(job *j) {
    DG_CHECK(j->o->n_draft >= 1 && j->o->n_draft <= DG_MAX_DRAFTERS, DG_ERR_ARGUMENT,
             "calibration: expected 1 to %d drafters, found %zu", DG_MAX_DRAFTERS, j->o->n_draft);
    j->gated = j->filler = j->tail = -1;
    for (size_t i = 0; i < j->o->n_draft; i++) {
        const dg_draft *d = &j->o->draft[i];
        const char *const name = d->name ? d->name : "", *const old = d->params ? d->params : "", *off = "";
        if (!strcmp(name, "eagle3")) j->gated = (int32_t)i, off = "gated=0,gate0=0,gate1=0,gate5=0";
        if (!strcmp(name, "fill")) j->filler = (int32_t)i;
        if (!strcmp(name, "graft")) j->tail = (int32_t)i;
        const int n = snprintf(j->params[i], sizeof j->params[i], "%s%s%s", old, *old && *off ? "," : "", off);
        DG_CHECK(n >= 0 && (size_t)n < sizeof j->params[i], DG_ERR_ARGUMENT, "calibration: parameters of %s are too long", name);
        j->draft[i] = (dg_draft){d->name, d->path, n ? j->params[i] : NULL};
    }
    if (j->gated > 0) j->gated = -1; /* something before it has changed its tree */
    return DG_OK;
}

static dg_status open_job(job *j) {
    size_t longest = 0;
    for (size_t i = 0; i < j->o->n_prompt; i++)
        if (j->o->prompt_len[i] > longest) longest = j->o->prompt_len[i];
    DG_CHECK(j->o->n_prompt > 0 && longest > 0, DG_ERR_ARGUMENT, "calibration: expected prompts, found none");
    DG_TRY(take_drafts(j));
    const int32_t limit = j->model->net.config.max_position, need = (int32_t)longest + j->tokens;
    DG_CHECK(limit >= 2 && need <= limit, DG_ERR_CONTEXT_FULL, "calibration: a prompt of %zu tokens and %d of answer do not fit the context of %d",
             longest, j->tokens, limit);
    const int32_t want = need > 2048 + 64 ? need : 2048 + 64;
    const dg_session_options so = {.context = want < limit ? want : limit, .budget = j->budget, .draft = j->draft,
                                   .n_draft = j->o->n_draft, .ignore_stop_tokens = true, .calibration = "none"};
    DG_TRY(dg_session_create(j->model, &so, &j->s));
    j->c = dg_mem_calloc(1, sizeof *j->c);
    j->trial = dg_mem_alloc(dg_mem_mul((size_t)j->tokens, sizeof *j->trial));
    DG_CHECK(j->c && j->trial, DG_ERR_MEMORY, "calibration: no memory for %d tokens", j->tokens);
    return DG_OK;
}

static void close_job(job *j) {
    dg_session_free(j->s);
    dg_mem_free(j->c);
    dg_mem_free(j->trial);
    dg_mem_free(j->gate_round);
    dg_mem_free(j->tail_round);
}

/* ---- before a round --------------------------------------------------------------------------- */

static dg_drafter *drafter_at(const job *j, int32_t slot) { return j->s->slot[slot].drafter; }

static dg_status timed_propose(job *j, int32_t slot, dg_tree *t, int32_t budget, double *seconds) {
    const double start = dg_now();
    DG_TRY(drafter_at(j, slot)->ops->propose(drafter_at(j, slot), t, budget));
    *seconds += dg_now() - start;
    return DG_OK;
}

/* What the first n scored nodes would have left at each checkpoint, filled and not. */
static void build_stages(job *j, trial *r, const dg_candidates *c, int32_t source, const dg_tree *dense) {
    const int32_t root = dense->token[0];
    for (int32_t g = 0; g < DG_GATES; g++) {
        dg_candidates part = *c;
        const int32_t level = checkpoint[g] ? c->width * c->width : c->width;
        part.n = c->width + checkpoint[g] * c->width * c->width;
        r->tree[g] = r->tree[STAGES + g] = *dense;
        r->confidence[g] = INFINITY;
        if (part.n >= c->n) continue; /* it never got beyond that checkpoint */
        float best = -INFINITY;
        for (int32_t i = part.n - level; i < part.n; i++) best = fmaxf(best, part.score[i]);
        r->confidence[g] = expf(best);
        dg_tree *cut = &r->tree[STAGES + g], *filled = &r->tree[g];
        dg_tree_reset(cut, root);
        dg_fill_scored(&part, source, cut, keep[g] < j->budget ? keep[g] : j->budget);
        *filled = *cut;
        const double start = dg_now();
        if (j->filler >= 0) dg_fill_rows(drafter_at(j, j->filler), &part, source, filled, j->budget);
        if (g == 0) j->fill_seconds += dg_now() - start;
    }
    r->tree[DG_GATES] = *dense;
}

static dg_status try_gates(job *j, trial *r) {
    dg_session *s = j->s;
    const int32_t root = s->token[s->n_token - 1];
    dg_tree t;
    double first = 0, all = 0;
    dg_tree_reset(&t, root);
    DG_TRY(timed_propose(j, j->gated, &t, 1, &first)); /* for one node one pass is enough */
    dg_tree_reset(&t, root);
    DG_TRY(timed_propose(j, j->gated, &t, j->budget, &all));
    const int32_t passes = drafter_at(j, j->gated)->passes;
    j->first_seconds += first;
    j->pass_seconds += all - first, j->n_pass += passes - 1;
    build_stages(j, r, &s->offer.scored, s->offer.scored_source, &t);
    return DG_OK;
}

static dg_status try_tails(job *j, trial *r) {
    dg_session *s = j->s;
    dg_tree before;
    dg_tree_reset(&before, s->token[s->n_token - 1]);
    for (int32_t i = 0; i < j->tail; i++) DG_TRY(drafter_at(j, i)->ops->propose(drafter_at(j, i), &before, j->budget));
    for (int32_t v = 0; v < DG_TAIL_VALUES; v++) {
        r->tree[v] = before;
        dg_graft_set_threshold(drafter_at(j, j->tail), tail_value[v]);
        DG_TRY(drafter_at(j, j->tail)->ops->propose(drafter_at(j, j->tail), &r->tree[v], j->budget));
    }
    return DG_OK;
}

static dg_status before_round(job *j) {
    dg_session *s = j->s;
    trial *r = &j->trial[j->n_trial];
    dg_tree t;
    dg_tree_reset(&t, s->token[s->n_token - 1]);
    s->offer.lattice.n_depth = s->offer.scored.n = 0;
    r->at = s->n_token;
    if (j->filler >= 0) dg_fill_successors(drafter_at(j, j->filler), t.token[0], r->successor);
    for (int32_t i = 0; i < s->n_slot; i++) DG_TRY(timed_propose(j, i, &t, j->budget, &j->propose_seconds[i]));
    j->n_propose++;
    if (j->gated >= 0) DG_TRY(try_gates(j, r));
    else if (j->tail >= 0) DG_TRY(try_tails(j, r));
    j->n_trial++;
    return DG_OK;
}

/* ---- after it --------------------------------------------------------------------------------- */

/* Nodes whose parent was accepted were put to the test. */
static void count_acceptance(job *j) {
    const dg_tree *t = &j->s->tree;
    const dg_walk *w = &j->s->walk;
    bool on_path[DG_TREE_MAX] = {false};
    for (int32_t i = 0; i < w->n; i++) on_path[w->path[i]] = true;
    for (int32_t i = 1; i < t->n; i++) {
        if (!on_path[t->parent[i]] || !t->source[i]) continue;
        const double p = exp((double)(t->score[i] - t->score[t->parent[i]]));
        const int32_t d = t->depth[i] < DG_CAL_DEPTHS ? t->depth[i] - 1 : DG_CAL_DEPTHS - 1;
        dg_calibration_source *source = &j->c->source[t->source[i] - 1];
        source->promised[d][dg_budget_bin(p)] += p;
        source->accepted[d][dg_budget_bin(p)] += on_path[i];
    }
}

/* Tokens that the tree gains before the text [at..n); -1: the text ends before that is known. */
static int32_t walk(const dg_tree *t, const int32_t *text, int32_t at, int32_t n) {
    int32_t gained = 1;
    for (int32_t node = 0; (node = at < n ? dg_tree_child(t, node, text[at]) : -2) >= 0; at++) gained++;
    return at < n ? gained : -1;
}

static dg_status grow(job *j) {
    if (j->n_round < j->cap_round) return DG_OK;
    const int32_t cap = j->cap_round ? 2 * j->cap_round : 1024;
    dg_gate_round *g = dg_mem_grow(j->gate_round, (size_t)j->cap_round * sizeof *g, (size_t)cap * sizeof *g);
    if (g) j->gate_round = g;
    dg_tail_round *t = dg_mem_grow(j->tail_round, (size_t)j->cap_round * sizeof *t, (size_t)cap * sizeof *t);
    if (t) j->tail_round = t;
    DG_CHECK(g && t, DG_ERR_MEMORY, "calibration: no memory for %d rounds", cap);
    j->cap_round = cap;
    return DG_OK;
}

/* What M held for the root, beside what followed. */
static void count_ranks(job *j, const trial *r) {
    const int32_t next = j->s->token[r->at];
    if (j->filler < 0 || r->successor[0] < 0) return;
    j->n_root++;
    for (int32_t i = 0; i < DG_SUCC_WIDTH; i++) j->hit[i] += r->successor[i] == next;
}

/* The trials of one answer, now that it is known. */
static dg_status count_trials(job *j, int32_t prompt) {
    const dg_session *s = j->s;
    for (int32_t k = 0; k < j->n_trial && j->trial[k].at + AHEAD < s->n_token; k++) {
        const trial *r = &j->trial[k];
        count_ranks(j, r);
        int32_t gained[TREES] = {0};
        bool known = true;
        const int32_t n = j->gated >= 0 ? STAGES + CUTS : j->tail >= 0 ? DG_TAIL_VALUES : 0;
        for (int32_t v = 0; v < n; v++) known &= (gained[v] = walk(&r->tree[v], s->token, r->at, s->n_token)) > 0;
        if (!known) continue;
        DG_TRY(grow(j));
        dg_gate_round *g = &j->gate_round[j->n_round];
        dg_tail_round *t = &j->tail_round[j->n_round++];
        *g = (dg_gate_round){.prompt = prompt};
        *t = (dg_tail_round){.prompt = prompt};
        memcpy(t->gained, gained, sizeof t->gained);
        for (int32_t i = 0; i < STAGES; i++) g->gained[i] = gained[i];
        for (int32_t i = 0; i < DG_GATES; i++)
            g->confidence[i] = r->confidence[i], g->needed[i] = gained[STAGES + i] < gained[DG_GATES];
    }
    return DG_OK;
}

static dg_status answer(job *j, size_t p) {
    dg_session *s = j->s;
    DG_TRY(dg_session_sync(s, j->o->prompt[p], j->o->prompt_len[p]));
    dg_session_limit(s, (size_t)j->tokens);
    dg_session_reset_stats(s);
    j->n_trial = 0;
    while (dg_session_stopped(s) == DG_STOP_NONE && j->n_trial < j->tokens) {
        size_t n;
        DG_TRY(before_round(j));
        if (j->tail >= 0) dg_graft_set_threshold(drafter_at(j, j->tail), tail_value[0]);
        DG_TRY(dg_session_step(s, NULL, 0, &n));
        if (!n) break;
        count_acceptance(j);
        const double done = (double)(s->n_token - (int32_t)j->o->prompt_len[p]) / j->tokens;
        tell(j, "answers", ((double)p + done) / (double)j->o->n_prompt);
    }
    dg_stats st;
    dg_session_get_stats(s, &st);
    j->verify_seconds += st.verify_seconds, j->rest_seconds += st.commit_seconds, j->n_step += st.rounds;
    return count_trials(j, (int32_t)p);
}

/* ---- costs ------------------------------------------------------------------------------------ */

typedef struct row_looks {
    job *j;
    int32_t len, n; /* committed tokens; looks so far, of all contexts */
} row_looks;

static dg_status look_at_rows(void *ud, int32_t rows, double *seconds) {
    row_looks *l = ud;
    const double share = ++l->n / (double)(DG_CAL_CONTEXTS * DG_CAL_ROWS * DG_CAL_SWEEPS);
    tell(l->j, "rows", share < 1 ? share : 1);
    return dg_session_time_rows(l->j->s, rows, l->len, seconds);
}

/* All sizes, whatever the budget of the rounds before: sessions take other budgets, and by what they load. Where the context
 * is too short even for the first, from one token on, and the largest sizes stay unknown. */
static dg_status measure_rows(job *j) {
    static const int32_t context[DG_CAL_CONTEXTS] = {64, 512, 2048};
    dg_calibration *c = j->c;
    row_looks looks = {.j = j};
    const int32_t most = dg_budget_rows(DG_CAL_ROWS - 1);
    for (int32_t k = 0; k < DG_CAL_CONTEXTS; k++) {
        const bool fits = context[k] + most <= j->s->context;
        if (k && !fits) break;
        looks.len = fits ? context[k] : 1;
        c->context[c->n_context++] = looks.len;
        DG_TRY(dg_calibrate_rows(look_at_rows, &looks, j->s->context - looks.len, c->verify[k]));
    }
    return DG_OK;
}

static void name_sources(job *j) {
    j->c->n_source = j->s->n_slot;
    for (int32_t i = 0; i < j->s->n_slot; i++) {
        const dg_drafter_ops *ops = drafter_at(j, i)->ops;
        dg_calibration_source *source = &j->c->source[i];
        snprintf(source->name, sizeof source->name, "%s", ops->name);
        source->network = ops->network;
        source->seconds = j->propose_seconds[i] / j->n_propose;
    }
}

/* Shares with the built-in prior as 50 roots more, made not to rise. */
static void learn_ranks(job *j) {
    enum { PRIOR = 50 };
    float before = 0.999f;
    if (!j->n_root) return;
    j->c->has_ranks = true;
    for (int32_t i = 0; i < DG_SUCC_WIDTH; i++) {
        const float p = ((float)j->hit[i] + PRIOR * dg_template_prior[i]) / (float)(j->n_root + PRIOR);
        before = j->c->rank[i] = p < before ? p : before;
    }
}

/* ---- learning --------------------------------------------------------------------------------- */

static dg_status learn(job *j) {
    dg_calibration *c = j->c;
    c->rounds = (int32_t)j->n_step;
    c->rule[0] = j->o->by_loss ? 'A' : 'B';
    learn_ranks(j);
    tell(j, "thresholds", 0);
    DG_CHECK(j->n_round > 0, DG_ERR_ARGUMENT, "calibration: the answers are too short: expected at least %d tokens", AHEAD + 1);
    if (j->gated >= 0) {
        const double rest = (j->verify_seconds + j->rest_seconds) / (double)j->n_step, fill = j->fill_seconds / j->n_propose;
        const double first = j->first_seconds / j->n_propose, pass = j->n_pass ? j->pass_seconds / j->n_pass : 0;
        double seconds[DG_GATES + 1];
        for (int32_t g = 0; g < DG_GATES; g++) seconds[g] = rest + first + checkpoint[g] * pass + fill;
        seconds[DG_GATES] = rest + first + j->pass_seconds / j->n_propose;
        DG_TRY(dg_calibrate_thresholds(j->gate_round, (size_t)j->n_round, seconds, j->o->by_loss, c->gate));
        c->has_gates = true;
    } else if (j->tail >= 0) {
        DG_TRY(dg_calibrate_tail(j->tail_round, (size_t)j->n_round, tail_value, &c->tail));
        c->has_tail = true;
    }
    tell(j, "thresholds", 1);
    return DG_OK;
}

static dg_status write_file(job *j, dg_calibrated *report) {
    const char *weights = NULL;
    for (int32_t i = 0; i < j->s->n_slot && !weights; i++)
        if (drafter_at(j, i)->ops->network) weights = j->s->slot[i].path;
    DG_CHECK(j->o->out || weights, DG_ERR_ARGUMENT, "calibration: these drafters have no weights that the file could lie beside: name it");
    dg_file *file = NULL;
    if (weights) DG_TRY(dg_file_open(weights, &file));
    dg_calibration_identify(j->model, file, j->s->kv_dtype, j->c);
    dg_file_close(file);
    char *path = j->o->out ? dg_mem_strdup(j->o->out) : dg_calibration_path(weights);
    DG_CHECK(path, DG_ERR_MEMORY, "calibration: no memory for a path");
    const dg_status st = dg_calibration_write(j->c, path);
    if (report) snprintf(report->path, sizeof report->path, "%s", path);
    dg_mem_free(path);
    return st;
}

static dg_status run(job *j, dg_calibrated *report) {
    DG_TRY(open_job(j));
    for (size_t p = 0; p < j->o->n_prompt; p++) DG_TRY(answer(j, p));
    name_sources(j);
    DG_TRY(measure_rows(j));
    DG_TRY(learn(j));
    dg_calibrated out = {.rounds = j->c->rounds, .has_gates = j->c->has_gates, .has_tail = j->c->has_tail, .tail = j->c->tail};
    memcpy(out.gate, j->c->gate, sizeof out.gate);
    out.row_seconds[0] = j->c->verify[0][0], out.row_seconds[1] = j->c->verify[0][DG_CAL_ROWS - 1];
    DG_TRY(write_file(j, &out));
    if (report) *report = out;
    return DG_OK;
}

dg_status dg_calibrate(dg_model *model, const dg_calibrate_options *options, dg_calibrated *report) {
    DG_CHECK(model && options, DG_ERR_ARGUMENT, "calibration: model and options must not be NULL");
    DG_CHECK(options->budget >= 0 && options->budget <= 128, DG_ERR_ARGUMENT, "calibration: budget: expected 0 to 128, found %d",
             options->budget);
    DG_CHECK(options->tokens >= 0, DG_ERR_ARGUMENT, "calibration: tokens: expected 0 or more, found %d", options->tokens);
    job j = {.o = options, .model = model, .budget = options->budget ? options->budget : 60,
             .tokens = options->tokens ? options->tokens : 96};
    const dg_status st = run(&j, report);
    close_job(&j);
    return st;
}
