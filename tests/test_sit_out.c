/* Drafters with a network that sit out: what they are told later leaves them as if they had been told at once, whatever
 * comes in between; and successors reach the drafters that want them, in rounds and in prefill. */
#include "tests/test.h"

#include "dflash/dflash.h"
#include "runtime/session.h"
#include "tests/fixture.h"

enum { N_PROMPT = 12, CONTEXT = 240, N_NEW = 150 };
static const int32_t prompt[N_PROMPT] = {40, 71, 96, 101, 13, 96, 99, 120, 96, 55, 41, 96};

static char dir[FIXTURE_KINDS][256];
static dg_model *model;

static dg_session *create(const dg_draft *draft, size_t n, int32_t budget, int32_t rows) {
    const dg_session_options o = {.context = CONTEXT, .draft = draft, .n_draft = n, .budget = budget,
                                  .ignore_stop_tokens = true, .batch_rows = rows};
    dg_session *s = NULL;
    check_ok(dg_session_create(model, &o, &s));
    check_ok(dg_session_sync(s, prompt, N_PROMPT));
    return s;
}

/* No trials: the networks sit out, or do not. */
static void send_out(dg_session *s, bool out) {
    s->rows.on = !out;
    s->rows.trial = 0;
    s->rows.wait = INT32_MAX;
}

static void check_same_cache(dg_session *a, dg_session *b, int32_t slot_a, int32_t slot_b) {
    const dg_kv *x = dg_dflash_kv(a->slot[slot_a].drafter), *y = dg_dflash_kv(b->slot[slot_b].drafter);
    assert_int_equal(x->len, y->len);
    assert_int_equal(x->len, a->kv.len);
    for (int32_t l = 0; l < x->n_layer; l++)
        for (int v = 0; v < 2; v++) {
            float *p = kv_rows(a->model->be, x, l, v), *q = kv_rows(b->model->be, y, l, v);
            assert_memory_equal(p, q, sizeof(float) * (size_t)x->len * (size_t)x->width);
            free(p);
            free(q);
        }
}

static void step(dg_session *s) {
    size_t n;
    check_ok(dg_session_step(s, NULL, 0, &n));
    assert_true(n > 0);
}

static void test_told_later(void **state) {
    (void)state;
    static const int32_t rows[] = {64, 0}; /* few feature rows: they are told when those are used up */
    for (size_t i = 0; i < 2; i++) {
        const dg_draft one[1] = {{"dflash", dir[FIXTURE_DFLASH], NULL}};
        const dg_draft two[2] = {{"ngram", NULL, NULL}, {"dflash", dir[FIXTURE_DFLASH], "tree=1"}};
        dg_session *at_once = create(one, 1, 7, 0), *later = create(two, 2, 0, rows[i]);
        int32_t most = 0, n_told = 0, before = 0;
        while (later->n_token < N_PROMPT + N_NEW) {
            send_out(later, later->n_token % 50 < 40);
            step(later);
            if (later->n_pending > most) most = later->n_pending;
            n_told += later->n_pending < before;
            before = later->n_pending;
        }
        assert_true(most > 20 && n_told >= 2);
        while (at_once->n_token < later->n_token) {
            dg_session_limit(at_once, (size_t)(later->n_token - at_once->n_token));
            step(at_once);
        }
        assert_memory_equal(at_once->token, later->token, sizeof(int32_t) * (size_t)later->n_token);
        send_out(later, true);
        step(later); /* something is pending, and then the text is cut */
        const size_t cut = N_PROMPT + 100;
        check_ok(dg_session_rewind(later, cut));
        check_ok(dg_session_rewind(at_once, cut));
        assert_int_equal(later->n_pending, 0);
        check_same_cache(at_once, later, 0, 1);
        dg_session_free(at_once);
        dg_session_free(later);
    }
}

/* ---- successors ---- */

typedef struct listener {
    dg_drafter base;
    int32_t n_prefill, n_round;
} listener;

static int32_t prompt_wanted;
static dg_session *heard; /* whose logits are compared */

static dg_status listener_open(const dg_drafter_env *env, dg_drafter **out);
static void listener_layout(dg_drafter *d, dg_arena *host, dg_arena *dev) { (void)d, (void)host, (void)dev; }
static void listener_wants(const dg_drafter *d, dg_wants *w) {
    (void)d;
    *w = (dg_wants){3, prompt_wanted};
}
static dg_status listener_propose(dg_drafter *d, dg_tree *t, int32_t budget) {
    (void)budget;
    for (int32_t i = 0; i < 4; i++) dg_tree_add(t, 0, 40 + i, -1 - (float)i, d->env->source);
    return DG_OK;
}
static void listener_rewind(dg_drafter *d, int32_t len) { (void)d, (void)len; }
static void listener_close(dg_drafter *d) { dg_mem_free(d); }

/* The three largest of the pass's own logits, row by row; in a round the first is what greedy decoding takes. */
static dg_status listener_observe(dg_drafter *d, const dg_outcome *o) {
    listener *l = (listener *)d;
    const int32_t n = o->tree ? o->tree->n : o->n;
    if (!o->successor.data) return DG_OK;
    assert_int_equal(o->successor.rows, n);
    assert_int_equal(o->successor.cols, 3);
    for (int32_t i = 0; i < n; i++) {
        const int32_t *id = dg_mat_row(&o->successor, i);
        const float *logit = dg_mat_row(&heard->logits, i);
        int32_t above[3] = {0};
        for (int32_t k = 0; k < 3; k++)
            for (int32_t v = 0; v < heard->logits.cols; v++)
                above[k] += logit[v] > logit[id[k]] || (logit[v] == logit[id[k]] && v < id[k]);
        for (int32_t k = 0; k < 3; k++) assert_int_equal(above[k], k);
        if (o->tree) assert_int_equal(id[0], heard->sampled.id[i]);
    }
    if (o->tree) {
        for (int32_t i = 0; i < o->n; i++) assert_int_equal(o->tree->token[o->path[i]], o->token[i]);
        l->n_round++;
    } else {
        l->n_prefill++;
    }
    return DG_OK;
}

static const dg_drafter_ops listener_ops = {.name = "listener", .help = "", .open = listener_open, .layout = listener_layout,
                                            .observe = listener_observe, .propose = listener_propose, .wants = listener_wants,
                                            .rewind = listener_rewind, .close = listener_close};

static dg_status listener_open(const dg_drafter_env *env, dg_drafter **out) {
    listener *l = dg_mem_calloc(1, sizeof *l);
    DG_CHECK(l, DG_ERR_MEMORY, "no memory");
    l->base.ops = &listener_ops, l->base.env = env;
    *out = &l->base;
    return DG_OK;
}

static void test_successors(void **state) {
    (void)state;
    dg_test_drafter[0] = &listener_ops;
    const dg_draft draft[2] = {{"listener", NULL, NULL}, {"recycling", NULL, NULL}}; /* one wants 3, the other 8 */
    for (prompt_wanted = 0; prompt_wanted <= N_PROMPT; prompt_wanted += N_PROMPT / 2) {
        const dg_session_options o = {.context = CONTEXT, .draft = draft, .n_draft = 2, .budget = 6, .ignore_stop_tokens = true,
                                      .batch_rows = 8};
        dg_session *s = NULL;
        check_ok(dg_session_create(model, &o, &s));
        heard = s;
        check_ok(dg_session_sync(s, prompt, N_PROMPT));
        for (int i = 0; i < 10; i++) step(s);
        const listener *l = (const listener *)s->slot[0].drafter;
        assert_int_equal(l->n_round, 10);
        assert_int_equal(l->n_prefill, prompt_wanted >= N_PROMPT - 1 ? 2 : 0); /* 11 tokens, 8 at a time */
        dg_session_free(s);
    }
    dg_test_drafter[0] = NULL;
}

/* What remembers learns bigrams from prompts, unless it is asked to have the head go over them. */
static void test_prompts_cost_no_head(void **state) {
    (void)state;
    static const struct {
        dg_draft draft;
        int32_t prompt;
    } want[] = {{{"fused", NULL, NULL}, 0},          {{"graft", NULL, NULL}, 0},           {{"fill", NULL, NULL}, 0},
                {{"recycling", NULL, NULL}, 0},      {{"fused", NULL, "prompt=64"}, 64},   {{"graft", NULL, "prompt=64"}, 64},
                {{"fill", NULL, "prompt=4096"}, 4096}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        dg_session *s = NULL;
        check_ok(dg_session_create(model, &(dg_session_options){.context = CONTEXT, .draft = &want[i].draft, .n_draft = 1}, &s));
        assert_int_equal(s->wants.prompt, want[i].prompt);
        assert_int_equal(s->wants.successors, 8);
        dg_session_free(s);
    }
}

int main(void) {
    const char *tmp = test_tmpdir();
    for (int i = 0; i < FIXTURE_KINDS; i++) {
        snprintf(dir[i], sizeof dir[i], "%s/%d", tmp, i);
        fixture_model(dir[i], (fixture_kind)i);
    }
    check_ok(dg_model_open(dir[FIXTURE_LLAMA], &(dg_model_options){.threads = 1}, &model));
    const struct CMUnitTest t[] = {cmocka_unit_test(test_told_later), cmocka_unit_test(test_successors),
                                  cmocka_unit_test(test_prompts_cost_no_head)};
    const int failed = cmocka_run_group_tests_name("sitting out", t, NULL, NULL);
    dg_model_close(model);
    return failed;
}
