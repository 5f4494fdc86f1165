/* A causal model as a drafter: its chain is its own greedy text, with or without the help of n-grams, whatever it was told
 * of and forgot in between; and what cannot draft is refused. */
#include "tests/test.h"

#include <math.h>

#include "runtime/session.h"
#include "tests/fixture.h"
#include "tests/tokens.h"

static char llama[256], qwen3[256], dflash[256];

enum { N_TEXT = 100 };

/* The drafter's own greedy continuation of text[0..n). */
static void greedy(const char *path, const int32_t *text, size_t n, int32_t *out, size_t n_out) {
    dg_model *m = NULL;
    dg_session *s = NULL;
    size_t total;
    check_ok(dg_model_open(path, &(dg_model_options){.threads = 1}, &m));
    check_ok(dg_session_create(m, &(dg_session_options){.context = 200, .ignore_stop_tokens = true}, &s));
    check_ok(dg_session_sync(s, text, n));
    check_ok(dg_session_generate(s, n_out, NULL, NULL, NULL));
    memcpy(out, dg_session_tokens(s, &total) + n, n_out * sizeof *out);
    dg_session_free(s);
    dg_model_close(m);
}

static dg_session *open_session(dg_model *m, const char *path, const char *params) {
    const dg_draft draft = {"lm", path, params};
    dg_session *s = NULL;
    check_ok(dg_session_create(m, &(dg_session_options){.context = 200, .budget = 12, .draft = &draft, .n_draft = 1,
                                                        .ignore_stop_tokens = true}, &s));
    return s;
}

static void make_text(int32_t *text, uint64_t seed) {
    for (int32_t i = 0; i < N_TEXT; i++)
        text[i] = i > 9 && test_random(&seed) < 0.6f ? text[i - 9] : 2 + (int32_t)((test_random(&seed) + 1) * 60);
}

/* What is drafted at the end of the session's text. */
static void drafts(dg_session *s, dg_tree *t) {
    dg_drafter *d = s->slot[0].drafter;
    d->passes = 0;
    dg_tree_reset(t, s->token[s->n_token - 1]);
    check_ok(d->ops->propose(d, t, 12));
    for (int32_t i = 1; i < t->n; i++) assert_int_equal(t->parent[i], i - 1);
}

static void test_chain(void **state) {
    (void)state;
    dg_model *m = NULL;
    int32_t text[N_TEXT], want[12];
    dg_tree t;
    check_ok(dg_model_open(llama, &(dg_model_options){.threads = 1}, &m));
    make_text(text, 3);
    for (size_t n = 1; n <= N_TEXT; n += n < 4 ? 1 : 24) { /* the longest: several passes to catch up */
        dg_session *s = open_session(m, qwen3, "q8=0");
        greedy(qwen3, text, n, want, 12);
        check_ok(dg_session_sync(s, text, n));
        for (int again = 0; again < 2; again++) { /* asking leaves nothing behind */
            drafts(s, &t);
            assert_int_equal(t.n, 13);
            assert_memory_equal(t.token + 1, want, 12 * sizeof *want);
            assert_int_equal(s->slot[0].drafter->passes, 12);
        }
        float sum = 0;
        for (int32_t i = 1; i < t.n; i++) assert_true(t.score[i] <= sum && isfinite(t.score[i])), sum = t.score[i];
        dg_session_free(s);
    }
    dg_model_close(m);
}

/* With n-grams the same tokens, in fewer passes where they agree; behind its own the text's. */
static void test_cascade(void **state) {
    (void)state;
    dg_model *m = NULL;
    int32_t text[N_TEXT], want[12];
    dg_tree t;
    check_ok(dg_model_open(llama, &(dg_model_options){.threads = 1}, &m));
    int32_t passes = 0;
    for (int trial = 0; trial < 6; trial++) {
        make_text(text, 20u + (unsigned)trial);
        /* its own words again: what it is going to say has been said */
        greedy(qwen3, text, 40, text + 40, 40);
        dg_session *s = open_session(m, qwen3, "cascade=1,inner=4,q8=0");
        greedy(qwen3, text, 70, want, 12);
        check_ok(dg_session_sync(s, text, 70));
        drafts(s, &t);
        assert_int_equal(t.n, 13);
        assert_memory_equal(t.token + 1, want, sizeof want);
        passes += s->slot[0].drafter->passes;
        dg_session_free(s);

        s = open_session(m, qwen3, "cascade=1,tokens=3,inner=6,q8=0");
        check_ok(dg_session_sync(s, text, 70));
        drafts(s, &t);
        assert_true(t.n >= 4 && t.n <= 10);
        assert_memory_equal(t.token + 1, want, 3 * sizeof *want);
        dg_session_free(s);
    }
    assert_true(passes < 6 * 12);
    dg_model_close(m);
}

/* Through rounds and rewinds its cache stays that of the text. */
static void test_rewind(void **state) {
    (void)state;
    dg_model *m = NULL;
    int32_t text[N_TEXT], want[12];
    dg_tree t;
    size_t n;
    check_ok(dg_model_open(llama, &(dg_model_options){.threads = 1}, &m));
    make_text(text, 5);
    static const char *const params[] = {"q8=0", "cascade=1,inner=5,tokens=6,q8=0"};
    for (int i = 0; i < 2; i++) {
        dg_session *s = open_session(m, qwen3, params[i]);
        check_ok(dg_session_sync(s, text, 50));
        check_ok(dg_session_generate(s, 30, NULL, NULL, NULL));
        check_ok(dg_session_rewind(s, 61));
        check_ok(dg_session_generate(s, 7, NULL, NULL, NULL));
        const int32_t *now = dg_session_tokens(s, &n);
        greedy(qwen3, now, n, want, 12);
        drafts(s, &t);
        assert_memory_equal(t.token + 1, want, (i ? 6 : 12) * sizeof *want);
        text[20] = 9; /* another text that shares its beginning */
        check_ok(dg_session_sync(s, text, 45));
        greedy(qwen3, text, 45, want, 12);
        drafts(s, &t);
        assert_memory_equal(t.token + 1, want, (i ? 6 : 12) * sizeof *want);
        dg_session_free(s);
    }
    dg_model_close(m);
}

/* The target itself as its drafter is always right; where the entropy is what ends a chain, the next token is unsure. */
static void test_itself(void **state) {
    (void)state;
    dg_model *m = NULL;
    int32_t text[N_TEXT];
    dg_stats st;
    dg_tree t;
    check_ok(dg_model_open(llama, &(dg_model_options){.threads = 1}, &m));
    make_text(text, 7);
    dg_session *s = open_session(m, llama, "q8=0");
    check_ok(dg_session_sync(s, text, 40));
    check_ok(dg_session_generate(s, 65, NULL, NULL, NULL));
    dg_session_get_stats(s, &st);
    assert_int_equal(st.rounds, 5);
    assert_int_equal(st.drafter_passes, 60);
    dg_session_free(s);
    s = open_session(m, llama, "q8=0,svip=0.0001"); /* never sure enough for a second token */
    check_ok(dg_session_sync(s, text, 40));
    drafts(s, &t);
    assert_int_equal(t.n, 2);
    dg_session_free(s);
    dg_model_close(m);
}

static void test_refusals(void **state) {
    (void)state;
    dg_model *m = NULL;
    dg_session *s = NULL;
    check_ok(dg_model_open(llama, &(dg_model_options){.threads = 1}, &m));
    const int64_t live = dg_mem_live();
    static const struct {
        const char *path, *params, *message;
    } bad[] = {{NULL, NULL, "needs its weights"},
               {dflash, NULL, "expected a language model, found a drafter"},
               {qwen3, "inner=0", "inner"},
               {qwen3, "x=1", "tokens, q8, svip, cascade, inner"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const dg_draft draft = {"lm", bad[i].path, bad[i].params};
        check_fails(dg_session_create(m, &(dg_session_options){.draft = &draft, .n_draft = 1}, &s), DG_ERR_ARGUMENT, bad[i].message);
    }
    const int32_t vocab = m->net.config.vocab_size;
    m->net.config.vocab_size = vocab + 1;
    const dg_draft draft = {"lm", qwen3, NULL};
    const dg_status st = dg_session_create(m, &(dg_session_options){.draft = &draft, .n_draft = 1}, &s);
    m->net.config.vocab_size = vocab;
    assert_int_equal(st, DG_ERR_ARGUMENT);
    assert_non_null(strstr(dg_error_message(), "a drafter must share it"));
    assert_int_equal(dg_mem_live(), live);
    dg_model_close(m);
}

static char warning[512];
static void on_log(void *ud, dg_log_level level, const char *message) {
    (void)ud;
    if (level == DG_LOG_WARN) snprintf(warning, sizeof warning, "%s", message);
}

/* A model whose tokens are other strings is named, though there are as many of them. */
static void test_other_tokenizer(void **state) {
    (void)state;
    static const char *const end[2] = {"first", "other"};
    char path[2][300];
    dg_model *m = NULL;
    dg_session *s = NULL;
    for (int i = 0; i < 2; i++) {
        snprintf(path[i], sizeof path[i], "%s-%s", qwen3, end[i]);
        json_t *t = tokens_bytes();
        tokens_add(t, i ? "ab" : "ba");
        dg_tokenizer_close(tokens_open(fixture_model(path[i], FIXTURE_QWEN3), t));
    }
    check_ok(dg_model_open(path[0], &(dg_model_options){.threads = 1, .log = on_log}, &m));
    for (int i = 0; i < 2; i++) {
        const dg_draft draft = {"lm", path[i], NULL};
        warning[0] = '\0';
        check_ok(dg_session_create(m, &(dg_session_options){.draft = &draft, .n_draft = 1}, &s));
        dg_session_free(s);
        if (!i) assert_string_equal(warning, "");
    }
    assert_non_null(strstr(warning, "drafter lm ("));
    assert_non_null(strstr(warning, "qwen3-other"));
    assert_non_null(strstr(warning, "brings another tokenizer than the target's"));
    dg_model_close(m);
}

int main(void) {
    const char *tmp = test_tmpdir();
    snprintf(llama, sizeof llama, "%s/llama", tmp);
    snprintf(qwen3, sizeof qwen3, "%s/qwen3", tmp);
    snprintf(dflash, sizeof dflash, "%s/dflash", tmp);
    fixture_model(llama, FIXTURE_LLAMA);
    fixture_model(qwen3, FIXTURE_QWEN3);
    fixture_model(dflash, FIXTURE_DFLASH);
    const struct CMUnitTest t[] = {cmocka_unit_test(test_chain), cmocka_unit_test(test_cascade), cmocka_unit_test(test_rewind),
                                   cmocka_unit_test(test_itself), cmocka_unit_test(test_refusals),
                                   cmocka_unit_test(test_other_tokenizer)};
    return cmocka_run_group_tests_name("lm", t, NULL, NULL);
}
