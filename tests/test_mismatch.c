/* The warning about a drafter that does not fit its target: by the first choices of its network alone, over
 * rounds of any number of answers, never about a good one. The drafters here are right as often as they are
 * told to be. */
#include "tests/test.h"

#include "runtime/session.h"
#include "tests/fixture.h"

enum { N_PROMPT = 6, N_NEW = 32, ANSWERS = 20 };

static const int32_t prompt[N_PROMPT] = {5, 17, 40, 8, 23, 11};
static int32_t truth[N_PROMPT + N_NEW + 1];
static char llama[256];

typedef struct scripted {
    dg_drafter base;
    int32_t n, round, every; /* right in every so manieth round; 0: never */
} scripted;

static dg_status open_scripted(const dg_drafter_env *env, const dg_drafter_ops *ops, dg_drafter **out) {
    scripted *d = dg_mem_calloc(1, sizeof *d);
    DG_CHECK(d, DG_ERR_MEMORY, "no memory");
    d->base = (dg_drafter){.ops = ops, .env = env};
    const dg_param table[] = {{"every", DG_PARAM_INT, &d->every, 0, 1000}};
    *out = &d->base;
    return dg_params_parse(ops->name, env->params, table, 1);
}

static void layout(dg_drafter *b, dg_arena *host, dg_arena *dev) { (void)b, (void)host, (void)dev; }
static void rewind_drafter(dg_drafter *b, int32_t len) { ((scripted *)b)->n = len; }
static void close_drafter(dg_drafter *b) { dg_mem_free(b); }

static dg_status observe(dg_drafter *b, const dg_outcome *o) {
    ((scripted *)b)->n += o->n;
    return DG_OK;
}

static dg_status propose(dg_drafter *b, dg_tree *t, int32_t budget) {
    scripted *d = (scripted *)b;
    const int32_t next = truth[d->n + 1];
    const bool right = d->every && ++d->round % d->every == 0;
    if (t->n <= budget) dg_tree_add(t, 0, right ? next : next ? next - 1 : 1, -0.5f, b->env->source);
    return DG_OK;
}

static dg_status open_net(const dg_drafter_env *env, dg_drafter **out);
static dg_status open_memory(const dg_drafter_env *env, dg_drafter **out);
#define SCRIPTED(label, opens, runs)                                                                     \
    {.name = label, .help = "", .open = opens, .layout = layout, .observe = observe, .propose = propose, \
     .rewind = rewind_drafter, .close = close_drafter, .network = runs}
static const dg_drafter_ops net_ops = SCRIPTED("net", open_net, true),
                            memory_ops = SCRIPTED("memory", open_memory, false);
static dg_status open_net(const dg_drafter_env *env, dg_drafter **out) {
    return open_scripted(env, &net_ops, out);
}
static dg_status open_memory(const dg_drafter_env *env, dg_drafter **out) {
    return open_scripted(env, &memory_ops, out);
}

static int n_warning;
static char warning[512];

static void on_log(void *ud, dg_log_level level, const char *message) {
    (void)ud;
    if (level != DG_LOG_WARN) return;
    n_warning++;
    snprintf(warning, sizeof warning, "%s", message);
}

/* Answers the prompt so many times; the statistics are reset in between. */
static void answer(dg_model *m, const dg_draft *draft, size_t n_draft, float temperature, int times) {
    const dg_session_options o = {.context = 64, .budget = 3, .draft = draft, .n_draft = n_draft,
                                  .sampler = {.temperature = temperature}, .ignore_stop_tokens = true};
    dg_session *s = NULL;
    n_warning = 0;
    check_ok(dg_session_create(m, &o, &s));
    for (int i = 0; i < times; i++) {
        check_ok(dg_session_sync(s, prompt, N_PROMPT));
        check_ok(dg_session_generate(s, N_NEW, NULL, NULL, NULL));
        dg_session_reset_stats(s);
    }
    dg_session_free(s);
}

static void learn_truth(dg_model *m) {
    dg_session *s = NULL;
    const dg_session_options o = {.context = 64, .ignore_stop_tokens = true};
    check_ok(dg_session_create(m, &o, &s));
    check_ok(dg_session_sync(s, prompt, N_PROMPT));
    check_ok(dg_session_generate(s, N_NEW + 1, NULL, NULL, NULL));
    memcpy(truth, dg_session_tokens(s, NULL), sizeof truth);
    dg_session_free(s);
}

static void test_warning(void **state) {
    (void)state;
    static const struct {
        dg_draft draft[2];
        size_t n;
        bool warned;
    } test[] = {{{{"net", NULL, "every=0"}}, 1, true},
                {{{"net", NULL, "every=40"}}, 1, true},  /* right in 2.5 % */
                {{{"net", NULL, "every=20"}}, 1, false}, /* in 5 % */
                {{{"net", NULL, "every=1"}}, 1, false},
                {{{"memory", NULL, "every=0"}}, 1, false}, /* costs no pass */
                /* what memory said first the network did not get to say: nothing is known of it */
                {{{"memory", NULL, "every=1"}, {"net", NULL, "every=0"}}, 2, false},
                {{{"net", NULL, "every=0"}, {"memory", NULL, "every=1"}}, 2, true}};
    dg_model *m = NULL;
    check_ok(dg_model_open(llama, &(dg_model_options){.threads = 1, .log = on_log}, &m));
    learn_truth(m);
    for (size_t i = 0; i < sizeof test / sizeof *test; i++) {
        answer(m, test[i].draft, test[i].n, 0, ANSWERS);
        if (n_warning != test[i].warned) fail_msg("case %zu: %d warnings: %s", i, n_warning, warning);
    }
    answer(m, test[0].draft, 1, 0, 128 / N_NEW - 1); /* too early to tell */
    assert_int_equal(n_warning, 0);
    answer(m, test[0].draft, 1, 1.5f, ANSWERS); /* nobody could tell */
    assert_int_equal(n_warning, 0);
    answer(m, test[0].draft, 1, 0, 128 / N_NEW + 1);
    assert_int_equal(n_warning, 1);
    assert_non_null(strstr(warning, "drafter net (no file): 0 of its first choices in 128 rounds"));
    dg_model_close(m);
}

int main(void) {
    snprintf(llama, sizeof llama, "%s/llama", test_tmpdir());
    fixture_model(llama, FIXTURE_LLAMA);
    dg_test_drafter[0] = &net_ops, dg_test_drafter[1] = &memory_ops;
    const struct CMUnitTest t[] = {cmocka_unit_test(test_warning)};
    return cmocka_run_group_tests_name("mismatch", t, NULL, NULL);
}
