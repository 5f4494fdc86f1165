/* Sessions: prefix reuse, rewind, stops inside a round, limits, log-probabilities, and what is refused. */
#include "tests/test.h"

#include <math.h>

#include "dflash/dflash.h"
#include "kernels/quant.h"
#include "runtime/tokenizer_impl.h"
#include "tests/session_rig.h"
#include "tests/tokens.h"

static char dir[3][256];

static void test_prefix_reuse(void **state) {
    (void)state;
    int32_t want[N_NEW];
    plain(want, N_NEW, 0, 0);
    const dg_draft draft[2] = {{"ngram", NULL, NULL}, {"dflash", dir[2], NULL}};
    const dg_session_options o = {.context = CONTEXT, .draft = draft, .n_draft = 2, .ignore_stop_tokens = true};
    dg_session *s = create(&o);
    int32_t other[40] = {0};
    memcpy(other, prompt, 7 * sizeof *other);
    for (int i = 7; i < 40; i++) other[i] = 60 + i % 9;
    check_ok(dg_session_sync(s, other, 40));
    check_ok(dg_session_generate(s, 5, NULL, NULL, NULL));
    dg_session_reset_stats(s);
    check_ok(dg_session_sync(s, prompt, N_PROMPT)); /* shares 7 tokens */
    dg_stats st;
    dg_session_get_stats(s, &st);
    assert_int_equal(st.reused, 7);
    assert_int_equal(st.prompt_tokens, N_PROMPT - 1 - 7);
    check_ok(dg_session_generate(s, N_NEW, NULL, NULL, NULL));
    size_t n;
    const int32_t *t = dg_session_tokens(s, &n);
    assert_int_equal(n, N_PROMPT + N_NEW);
    assert_memory_equal(t + N_PROMPT, want, sizeof want);

    /* rewind into the answer and go on: the same text again */
    check_ok(dg_session_rewind(s, N_PROMPT + 20));
    check_ok(dg_session_generate(s, N_NEW - 20, NULL, NULL, NULL));
    t = dg_session_tokens(s, &n);
    assert_int_equal(n, N_PROMPT + N_NEW);
    assert_memory_equal(t + N_PROMPT, want, sizeof want);

    /* the very same tokens: nothing is computed */
    dg_session_reset_stats(s);
    int32_t all[CONTEXT];
    memcpy(all, t, n * sizeof *all);
    check_ok(dg_session_sync(s, all, n));
    dg_session_get_stats(s, &st);
    assert_int_equal(st.prompt_tokens, 0);
    check_fails(dg_session_rewind(s, 0), DG_ERR_ARGUMENT, "expected a position from 1");
    check_fails(dg_session_rewind(s, n + 1), DG_ERR_ARGUMENT, "rewind");
    dg_session_free(s);
}

static void test_stop_token_in_path(void **state) {
    (void)state;
    int32_t want[N_NEW];
    plain(want, N_NEW, 0, 0);
    /* the token that first occurs latest among the first 12: a stop in the middle of an accepted run */
    int at = 0;
    for (int i = 1; i < 12; i++) {
        bool fresh = true;
        for (int j = 0; j < i; j++) fresh = fresh && want[j] != want[i];
        if (fresh) at = i;
    }
    const int32_t old = model->net.config.stop[0];
    model->net.config.stop[0] = want[at];
    for (size_t budget = 1; budget <= 30; budget += 7) {
        dg_session *s = drafted(budget, NULL, 0, false);
        toy_oracle_knows(0, prompt, N_PROMPT, want, N_NEW);
        check_ok(dg_session_sync(s, prompt, N_PROMPT));
        dg_stop why;
        check_ok(dg_session_generate(s, 0, NULL, NULL, &why));
        assert_int_equal(why, DG_STOP_TOKEN);
        size_t n;
        dg_session_tokens(s, &n);
        assert_int_equal(n, N_PROMPT + at + 1);
        assert_int_equal(s->kv.len, n - 1);
        check_ok(dg_session_step(s, NULL, 0, &n));
        assert_int_equal(n, 0);
        dg_session_free(s);
    }
    model->net.config.stop[0] = old;
}

/* A character whose two bytes are two tokens comes out whole or not at all. */
static void test_whole_characters(void **state) {
    (void)state;
    int32_t c3 = dg_tokenizer_find(model->tokenizer, "\xc3", 1), a9 = dg_tokenizer_find(model->tokenizer, "\xa9", 1);
    assert_true(c3 > 0 && a9 > 0);
    dg_text t;
    dg_arena count = {0};
    const char *const stop[1] = {"\xc3\xa9x"};
    dg_text_layout(&t, model->tokenizer, stop, 1, 8, &count);
    dg_arena a = {dg_mem_alloc(count.used), 0, count.used};
    dg_text_layout(&t, model->tokenizer, stop, 1, 8, &a);
    dg_text_reset(&t, false);
    assert_false(dg_text_push(&t, c3));
    assert_int_equal(t.n_out, 0);
    assert_false(dg_text_push(&t, a9)); /* complete, but may be the stop string's start */
    assert_int_equal(t.n_out, 0);
    assert_false(dg_text_push(&t, 40));
    assert_int_equal(t.n_out, 3);
    assert_memory_equal(t.out, "\xc3\xa9", 2);
    dg_text_round(&t);
    assert_false(dg_text_push(&t, c3));
    dg_text_flush(&t);
    assert_int_equal(t.n_out, 3);
    assert_memory_equal(t.out, "\xef\xbf\xbd", 3);
    dg_mem_free(a.base);
}

/* A tokenizer that puts a space in front of every text loses it again when the text begins, not when it goes on. */
static void test_leading_space(void **state) {
    (void)state;
    dg_tokenizer *t = model->tokenizer;
    const int32_t space = dg_tokenizer_find(t, " ", 1), end = 1; /* <|end|> is special: no text */
    assert_true(space > 1 && dg_tokenizer_is_special(t, end));
    t->strip_first = true;
    dg_session *s = create(&(dg_session_options){.context = CONTEXT});
    check_ok(dg_session_sync(s, &end, 1));
    dg_text_push(&s->text, space);
    assert_int_equal(s->text.n_out, 0);
    dg_text_push(&s->text, space);
    assert_int_equal(s->text.n_out, 1);
    check_ok(dg_session_sync(s, prompt, N_PROMPT));
    dg_text_round(&s->text);
    dg_text_push(&s->text, space);
    assert_int_equal(s->text.n_out, 1);
    dg_session_free(s);
    t->strip_first = false;
}

/* Nothing that came behind a stop string is ever released, not even half a character. */
static void test_nothing_behind_stop(void **state) {
    (void)state;
    const int32_t c3 = dg_tokenizer_find(model->tokenizer, "\xc3", 1);
    const char *const stop[1] = {"\xef\xbf\xbd"};
    dg_text t;
    dg_arena count = {0};
    dg_text_layout(&t, model->tokenizer, stop, 1, 8, &count);
    dg_arena a = {dg_mem_alloc(count.used), 0, count.used};
    dg_text_layout(&t, model->tokenizer, stop, 1, 8, &a);
    dg_text_reset(&t, false);
    assert_false(dg_text_push(&t, c3));
    assert_true(dg_text_push(&t, c3)); /* the first is now U+FFFD; the second may yet become a character */
    dg_text_flush(&t);
    assert_int_equal(t.n_out, 0);
    dg_mem_free(a.base);
}

static void test_limit_and_context(void **state) {
    (void)state;
    int32_t want[CONTEXT];
    plain(want, CONTEXT - N_PROMPT, 0, 0);
    dg_session *s = drafted(15, NULL, 0, true);
    toy_oracle_knows(0, prompt, N_PROMPT, want, CONTEXT - N_PROMPT);
    check_ok(dg_session_sync(s, prompt, N_PROMPT));
    dg_stop why;
    size_t n;
    for (int i = 1; i <= 3; i++) { /* limits add up, rounds never overshoot */
        check_ok(dg_session_generate(s, 7, NULL, NULL, &why));
        assert_int_equal(why, DG_STOP_LIMIT);
        const int32_t *t = dg_session_tokens(s, &n);
        assert_int_equal(n, N_PROMPT + 7 * i);
        assert_memory_equal(t + N_PROMPT, want, (n - N_PROMPT) * sizeof *want);
    }
    check_ok(dg_session_generate(s, 0, NULL, NULL, &why));
    assert_int_equal(why, DG_STOP_CONTEXT);
    const int32_t *t = dg_session_tokens(s, &n);
    assert_int_equal(n, CONTEXT);
    assert_memory_equal(t + N_PROMPT, want, (n - N_PROMPT) * sizeof *want);
    check_ok(dg_session_step(s, NULL, 0, &n));
    assert_int_equal(n, 0);
    int32_t many[CONTEXT + 1] = {0};
    check_fails(dg_session_sync(s, many, CONTEXT + 1), DG_ERR_CONTEXT_FULL, "97 tokens do not fit the context of 96");
    dg_session_tokens(s, &n);
    assert_int_equal(n, CONTEXT); /* unharmed */
    check_ok(dg_session_sync(s, many, CONTEXT)); /* full, but legal: it only has no room to go on */
    check_ok(dg_session_step(s, NULL, 0, &n));
    assert_int_equal(n, 0);
    assert_int_equal(dg_session_stopped(s), DG_STOP_CONTEXT);
    assert_int_equal(dg_session_context(s), CONTEXT);
    dg_session_free(s);
}

/* Near the limit a tree gets no narrower, only as shallow as what may still become text. */
static void test_limit_cuts_depth(void **state) {
    (void)state;
    const dg_draft bushy = {.name = "random"};
    const dg_session_options o = {.context = CONTEXT, .budget = 40, .draft = &bushy, .n_draft = 1, .ignore_stop_tokens = true};
    int32_t want[N_NEW];
    plain(want, N_NEW, 0, 0);
    dg_session *s = create(&o);
    check_ok(dg_session_sync(s, prompt, N_PROMPT));
    for (size_t limit = 1, n, total; limit <= 4; limit++) {
        check_ok(dg_session_rewind(s, N_PROMPT));
        dg_session_limit(s, limit);
        check_ok(dg_session_step(s, NULL, 0, &n));
        assert_in_range(n, 1, limit);
        assert_memory_equal(dg_session_tokens(s, &total) + N_PROMPT, want, n * sizeof *want);
        int32_t deepest = 0;
        for (int32_t i = 1; i < s->tree.n; i++)
            if (s->tree.depth[i] > deepest) deepest = s->tree.depth[i];
        assert_int_equal(deepest, limit - 1);
        if (limit == 1) assert_int_equal(s->tree.n, 1);
        if (limit > 1) assert_true(s->tree.n - 1 > (int32_t)limit); /* more than tokens may follow */
    }
    dg_session_free(s);
}

/* A limit that is used up stays so until there is another; that of dg_session_generate is of one call. */
static void test_limit_used_up(void **state) {
    (void)state;
    int32_t want[N_NEW];
    plain(want, N_NEW, 0, 0);
    dg_session *s = drafted(15, NULL, 0, true);
    toy_oracle_knows(0, prompt, N_PROMPT, want, N_NEW);
    check_ok(dg_session_sync(s, prompt, N_PROMPT));
    dg_session_limit(s, 5);
    size_t n, total;
    do check_ok(dg_session_step(s, NULL, 0, &n));
    while (n);
    for (int i = 0; i < 2; i++) {
        check_ok(dg_session_rewind(s, N_PROMPT + 5));
        check_ok(dg_session_step(s, NULL, 0, &n));
        assert_int_equal(n, 0);
        assert_int_equal(dg_session_stopped(s), DG_STOP_LIMIT);
    }
    dg_session_limit(s, 3);
    check_ok(dg_session_step(s, NULL, 0, &n));
    assert_int_equal(n, 3);
    check_ok(dg_session_generate(s, 2, NULL, NULL, NULL));
    check_ok(dg_session_sync(s, prompt, N_PROMPT));
    check_ok(dg_session_step(s, NULL, 0, &n));
    const int32_t *t = dg_session_tokens(s, &total);
    assert_int_equal(n, 16);
    assert_int_equal(total, N_PROMPT + 16);
    assert_memory_equal(t + N_PROMPT, want, n * sizeof *want);
    dg_session_free(s);
}

/* What the caller passed to dg_session_create is the caller's again. */
static void test_options_are_copied(void **state) {
    (void)state;
    char name[] = "dflash", path[256], params[] = "tree=1", stop[] = "stop";
    strcpy(path, dir[2]);
    const char *const stops[1] = {stop};
    const dg_draft draft = {name, path, params};
    const dg_session_options o = {.context = CONTEXT, .draft = &draft, .n_draft = 1, .stop = stops, .n_stop = 1};
    dg_session *s = create(&o);
    memset(name, 'x', sizeof name - 1);
    memset(path, 'x', strlen(path));
    memset(params, 'x', sizeof params - 1);
    memset(stop, 'x', sizeof stop - 1);
    assert_string_equal(s->slot[0].env.path, dir[2]);
    assert_string_equal(s->slot[0].env.params, "tree=1");
    assert_string_equal(s->text.stop[0], "stop");
    dg_session_free(s);
}

/* After an error in a round every call says so, whatever the text had come to. */
static void test_dead(void **state) {
    (void)state;
    dg_session *s = create(&(dg_session_options){.context = CONTEXT});
    check_ok(dg_session_sync(s, prompt, N_PROMPT));
    s->dead = DG_ERR_DEVICE;
    s->stopped = DG_STOP_TOKEN;
    size_t n;
    dg_stop why = DG_STOP_NONE;
    check_fails(dg_session_step(s, NULL, 0, &n), DG_ERR_DEVICE, "died");
    check_fails(dg_session_generate(s, 1, NULL, NULL, &why), DG_ERR_DEVICE, "died");
    assert_int_equal(why, DG_STOP_NONE);
    check_fails(dg_session_sync(s, prompt, N_PROMPT), DG_ERR_DEVICE, "died");
    check_fails(dg_session_rewind(s, 1), DG_ERR_DEVICE, "died");
    check_fails(dg_session_set_sampler(s, &(dg_sampler){0}), DG_ERR_DEVICE, "died");
    dg_session_free(s);
}

typedef struct warnings {
    int n;
    char last[512];
} warnings;

static void on_log(void *ud, dg_log_level level, const char *message) {
    warnings *w = ud;
    if (level != DG_LOG_WARN) return;
    w->n++;
    snprintf(w->last, sizeof w->last, "%s", message);
}

/* A drafter that hits nothing is named, once; so is one that brings another tokenizer. */
static void test_mismatch_warnings(void **state) {
    (void)state;
    char other[300];
    warnings w = {0};
    dg_model *m = NULL;
    dg_session *s = NULL;
    check_ok(dg_model_open(dir[0], &(dg_model_options){.log = on_log, .log_ud = &w}, &m));
    dg_draft draft = {"dflash", dir[2], NULL}; /* random weights */
    const dg_session_options o = {.budget = 7, .draft = &draft, .n_draft = 1, .ignore_stop_tokens = true,
                                  .sampler = {.temperature = 1, .seed = 1}};
    check_ok(dg_session_create(m, &o, &s));
    check_ok(dg_session_sync(s, prompt, N_PROMPT));
    check_ok(dg_session_generate(s, 20, NULL, NULL, NULL));
    assert_int_equal(w.n, 0); /* too early to tell */
    for (int i = 0; i < 2; i++) check_ok(dg_session_generate(s, 60, NULL, NULL, NULL));
    assert_int_equal(w.n, 1);
    assert_non_null(strstr(w.last, dir[2]));
    assert_non_null(strstr(w.last, "first choices in 128 rounds were right"));
    dg_session_free(s);

    snprintf(other, sizeof other, "%s-other", dir[2]);
    dg_tokenizer_close(tokens_open(fixture_model(other, FIXTURE_DFLASH), tokens_bytes()));
    draft.path = other;
    check_ok(dg_session_create(m, &o, &s));
    assert_int_equal(w.n, 2);
    assert_non_null(strstr(w.last, "brings another tokenizer"));
    dg_session_free(s);
    dg_model_close(m);
}

static void test_no_memory(void **state) {
    (void)state;
    dg_session *s = NULL;
    dg_mem_fail_nth(2, 0); /* the session's block, after the session */
    const dg_status st = dg_session_create(model, NULL, &s);
    dg_mem_fail_nth(0, 0);
    check_fails(st, DG_ERR_MEMORY, "a session of 256 tokens");
    assert_null(s);
}

/* Log-probabilities against a double-precision softmax of the raw logits, at temperature and with filters. */
static void test_logprobs(void **state) {
    (void)state;
    const dg_draft draft = {"dflash", dir[2], "tree=1"};
    const dg_session_options o = {.context = CONTEXT, .budget = 20, .draft = &draft, .n_draft = 1, .ignore_stop_tokens = true,
                                  .sampler = {.temperature = 0.8f, .top_k = 30, .top_p = 0.9f, .seed = 4}};
    dg_session *s = create(&o);
    check_ok(dg_session_sync(s, prompt, N_PROMPT));
    check_ok(dg_session_generate(s, N_NEW, NULL, NULL, NULL));
    size_t n;
    int32_t ids[CONTEXT];
    memcpy(ids, dg_session_tokens(s, &n), CONTEXT * sizeof *ids);
    float logp[CONTEXT];
    memcpy(logp, dg_session_logprobs(s), n * sizeof *logp);
    dg_session *p = create(&(dg_session_options){.context = CONTEXT});
    for (size_t i = N_PROMPT; i < n; i++) {
        check_ok(dg_session_sync(p, ids, i));
        size_t one;
        check_ok(dg_session_step(p, NULL, 0, &one));
        const float *logits = p->logits.data; /* of the only row */
        double max = -INFINITY, sum = 0;
        for (int v = 0; v < FIXTURE_VOCAB; v++) max = fmax(max, (double)logits[v]);
        for (int v = 0; v < FIXTURE_VOCAB; v++) sum += exp((double)logits[v] - max);
        const double want = (double)logits[ids[i]] - max - log(sum);
        assert_true(fabs(want - (double)logp[i]) < 1e-5);
        assert_true(logp[i] < 0);
    }
    for (size_t i = 0; i < N_PROMPT; i++) assert_true(logp[i] == 0);
    dg_session_free(p);
    dg_session_free(s);
}

static void test_seeds_differ(void **state) {
    (void)state;
    int32_t a[N_NEW], b[N_NEW], c[N_NEW];
    plain(a, N_NEW, 1.2f, 1);
    plain(b, N_NEW, 1.2f, 2);
    plain(c, N_NEW, 1.2f, 1);
    assert_memory_equal(a, c, sizeof a);
    assert_memory_not_equal(a, b, sizeof a);
}

static void test_stats(void **state) {
    (void)state;
    int32_t want[N_NEW];
    plain(want, N_NEW, 0, 0);
    dg_session *s = drafted(7, NULL, 0, true);
    toy_oracle_knows(0, prompt, N_PROMPT, want, N_NEW);
    check_ok(dg_session_sync(s, prompt, N_PROMPT));
    check_ok(dg_session_generate(s, N_NEW, NULL, NULL, NULL));
    dg_stats st;
    dg_session_get_stats(s, &st);
    assert_int_equal(st.tokens, N_NEW);
    assert_int_equal(st.rounds, N_NEW / 8); /* every draft accepted: 8 tokens a round */
    assert_int_equal(st.length[8], N_NEW / 8);
    assert_int_equal(st.proposed[0], 7 * st.rounds);
    assert_int_equal(st.accepted[0], st.proposed[0]);
    assert_int_equal(st.accepted_at[7], st.rounds);
    assert_int_equal(st.verified_rows, 8 * st.rounds);
    assert_int_equal(st.drafted_rounds, st.rounds);
    check_ok(dg_session_generate(s, 1, NULL, NULL, NULL)); /* one token: there is nothing to draft */
    dg_session_get_stats(s, &st);
    assert_int_equal(st.rounds, N_NEW / 8 + 1);
    assert_int_equal(st.drafted_rounds, N_NEW / 8);
    const uint8_t *source = dg_session_sources(s);
    for (int i = 0; i < N_NEW; i++) assert_int_equal(source[N_PROMPT + i], i % 8 == 7 ? 0 : 1);
    dg_session_free(s);
}

static dg_status try_create(dg_session_options o, const char *name, const char *path, const char *params) {
    const dg_draft draft = {name, path, params};
    if (name) o.draft = &draft, o.n_draft = 1;
    dg_session *s = NULL;
    const dg_status st = dg_session_create(model, &o, &s);
    dg_session_free(s);
    return st;
}

static void test_refusals(void **state) {
    (void)state;
    const dg_session_options o = {0};
    check_fails(try_create(o, "eagle9", NULL, NULL), DG_ERR_ARGUMENT, "there is no drafter \"eagle9\"; there are dflash");
    check_fails(try_create(o, "dflash", NULL, NULL), DG_ERR_ARGUMENT, "needs its weights");
    check_fails(try_create(o, "dflash", "/no/such/folder", NULL), DG_ERR_IO, "/no/such/folder");
    check_fails(try_create(o, "dflash", dir[0], NULL), DG_ERR_ARGUMENT, "expected a DFlash drafter");
    check_fails(try_create(o, "dflash", dir[2], "depth=3"), DG_ERR_ARGUMENT, "no parameter \"depth\"; it takes tree");
    check_fails(try_create(o, "dflash", dir[2], "block=9"), DG_ERR_ARGUMENT, "from 2 to 8");
    check_fails(try_create(o, "ngram", NULL, "max"), DG_ERR_ARGUMENT, "max");
    check_fails(try_create((dg_session_options){.budget = 256}, NULL, NULL, NULL), DG_ERR_ARGUMENT, "found 256");
    check_fails(try_create((dg_session_options){.context = FIXTURE_CONTEXT + 1}, NULL, NULL, NULL), DG_ERR_ARGUMENT, "context");
    check_fails(try_create((dg_session_options){.sampler.temperature = -1}, NULL, NULL, NULL), DG_ERR_ARGUMENT, "temperature");
    check_fails(try_create((dg_session_options){.sampler.top_p = 1.5f}, NULL, NULL, NULL), DG_ERR_ARGUMENT, "top_p");
    check_fails(try_create((dg_session_options){.sampler.temperature = NAN}, NULL, NULL, NULL), DG_ERR_ARGUMENT, "temperature");

    dg_session *s = create(&o);
    size_t n;
    check_fails(dg_session_step(s, NULL, 0, &n), DG_ERR_ARGUMENT, "no tokens");
    check_fails(dg_session_sync(s, prompt, 0), DG_ERR_ARGUMENT, "empty");
    check_fails(dg_session_sync(s, NULL, 3), DG_ERR_ARGUMENT, "empty");
    check_fails(dg_session_sync(NULL, prompt, 3), DG_ERR_ARGUMENT, "NULL");
    check_fails(dg_session_rewind(NULL, 3), DG_ERR_ARGUMENT, "NULL");
    check_fails(dg_sessions_step((dg_session *const[]){s, NULL}, 2, (size_t[2]){0, 0}), DG_ERR_ARGUMENT, "no tokens");
    check_fails(dg_sessions_step((dg_session *const[]){NULL, s}, 2, (size_t[2]){0, 0}), DG_ERR_ARGUMENT, "session 0 is NULL");
    const int32_t bad[2] = {5, FIXTURE_VOCAB};
    check_fails(dg_session_sync(s, bad, 2), DG_ERR_ARGUMENT, "token 1 is 131");
    check_ok(dg_session_sync(s, prompt, N_PROMPT)); /* still alive */
    dg_session *const twice[2] = {s, s};
    size_t count[2];
    check_fails(dg_sessions_step(twice, 2, count), DG_ERR_ARGUMENT, "the same");
    check_ok(dg_session_step(s, NULL, 0, &n));
    assert_int_equal(n, 1);
    dg_session_free(s);
    dg_model *m = NULL;
    check_fails(dg_model_open(dir[2], NULL, &m), DG_ERR_ARGUMENT, "drafter");
    check_fails(dg_model_open("/no/such/file.gguf", NULL, &m), DG_ERR_IO, "/no/such/file.gguf");
    check_fails(dg_model_open(dir[0], &(dg_model_options){.compute = (dg_compute)9}, &m), DG_ERR_ARGUMENT, "found 9");
}

/* The rounds as they are shown make up the text: each begins with the token that the one before ended with, and its path
 * and next token are what was appended. */
static void test_rounds(void **state) {
    (void)state;
    int32_t want[N_NEW];
    dg_round r;
    plain(want, N_NEW, 0, 0);
    dg_session *s = drafted(7, NULL, 0, true);
    toy_oracle_knows(0, prompt, N_PROMPT, want, N_NEW);
    check_ok(dg_session_sync(s, prompt, N_PROMPT));
    dg_session_get_round(s, &r);
    assert_int_equal(r.index, 0);
    dg_session_limit(s, 30);
    int32_t at = 0, last = prompt[N_PROMPT - 1];
    size_t n;
    for (uint64_t index = 1; check_ok(dg_session_step(s, NULL, 0, &n)), n; index++) {
        dg_session_get_round(s, &r);
        assert_int_equal(r.index, index);
        assert_int_equal(r.token[0], last);
        assert_in_range(r.n, 1, 8);
        assert_int_equal(r.n_path, n);
        for (int32_t i = 1; i < r.n_path; i++) {
            assert_int_equal(r.parent[r.path[i]], r.path[i - 1]);
            assert_int_equal(r.token[r.path[i]], want[at++]);
            assert_int_equal(r.source[r.path[i]], 1);
        }
        assert_int_equal(r.next, want[at++]);
        last = r.next;
    }
    assert_int_equal(at, 30);
    dg_session_free(s);
    /* a drafted stop token ends the path; what the target would have said behind it is known, and not part of the text */
    int32_t stop = 3;
    while (stop > 0 && want[stop] == want[stop - 1]) stop--;
    const int32_t old = model->net.config.stop[0];
    model->net.config.stop[0] = want[stop];
    s = drafted(7, NULL, 0, false);
    check_ok(dg_session_sync(s, prompt, N_PROMPT));
    check_ok(dg_session_step(s, NULL, 0, &n));
    assert_int_equal(dg_session_stopped(s), DG_STOP_TOKEN);
    dg_session_get_round(s, &r);
    assert_int_equal(r.token[r.path[r.n_path - 1]], want[n - 1]);
    assert_int_equal(r.n_path, n + 1);
    assert_int_equal(r.next, want[n]);
    model->net.config.stop[0] = old;
    dg_session_free(s);
}

/* What a plan says is what creation takes. */
static void test_plan(void **state) {
    (void)state;
    const dg_draft draft = {"dflash", dir[2], NULL};
    const dg_session_options o = {.context = 64, .draft = &draft, .n_draft = 1};
    dg_memory_plan small, large;
    const int64_t live = dg_mem_live();
    check_ok(dg_session_plan(model, &o, &small));
    assert_int_equal(dg_mem_live(), live);
    dg_session_options twice = o;
    twice.context = 128;
    check_ok(dg_session_plan(model, &twice, &large));
    assert_int_equal(large.target_kv, 2 * small.target_kv);
    assert_int_equal(small.target_kv, 2ull * FIXTURE_LAYERS * 64 * 24 * 2); /* K and V, 2 heads of 12, f16 */
    assert_true(small.draft_weights > 0 && small.draft_kv > 0 && small.workspace > 0);
    assert_int_equal(small.total, small.target_weights + small.draft_weights + small.target_kv + small.draft_kv +
                                      small.workspace + small.tokenizer + small.program);
}

/* Keys and values as the options say; layer 0's do not depend on what attention read, so they are f32's, rounded. */
static void test_kv_type(void **state) {
    (void)state;
    dg_session *s[3];
    static const dg_kv_type type[3] = {DG_KV_DEFAULT, DG_KV_F16, DG_KV_F32};
    const dg_draft draft = {"dflash", dir[2], NULL};
    size_t count[3];
    for (int i = 0; i < 3; i++) {
        const dg_session_options o = {.context = CONTEXT, .kv = type[i], .draft = &draft, .n_draft = 1};
        check_ok(dg_session_create(model, &o, &s[i]));
        check_ok(dg_session_sync(s[i], prompt, N_PROMPT));
        const dg_dtype want = i == 2 ? DG_F32 : DG_F16;
        assert_int_equal(s[i]->kv.dtype, want);
        assert_int_equal(s[i]->kv.k[0].dtype, want);
        assert_int_equal(dg_dflash_kv(s[i]->slot[0].drafter)->v[0].dtype, want);
        dg_memory_plan plan;
        check_ok(dg_session_plan(model, &o, &plan));
        assert_int_equal(plan.target_kv, dg_kv_bytes(&s[i]->kv));
        assert_int_equal(plan.draft_kv, dg_kv_bytes(dg_dflash_kv(s[i]->slot[0].drafter)));
    }
    for (int v = 0; v < 2; v++) {
        float *half = kv_rows(model->be, &s[0]->kv, 0, v), *full = kv_rows(model->be, &s[2]->kv, 0, v);
        for (int32_t i = 0; i < (N_PROMPT - 1) * s[2]->kv.width; i++)
            assert_true(half[i] == dg_f16_to_f32(dg_f32_to_f16(full[i])));
        free(half);
        free(full);
    }
    check_ok(dg_sessions_step(s, 3, count)); /* different caches in one pass */
    assert_int_equal(dg_session_tokens(s[0], NULL)[N_PROMPT], dg_session_tokens(s[1], NULL)[N_PROMPT]);
    for (int i = 0; i < 3; i++) dg_session_free(s[i]);
    dg_model *exact = NULL;
    check_ok(dg_model_open(dir[1], &(dg_model_options){.compute = DG_COMPUTE_F32}, &exact));
    check_ok(dg_session_create(exact, &(dg_session_options){.context = 64}, &s[0]));
    assert_int_equal(s[0]->kv.dtype, DG_F32);
    dg_session_free(s[0]);
    check_ok(dg_session_create(exact, &(dg_session_options){.context = 64, .kv = DG_KV_F16}, &s[0]));
    assert_int_equal(s[0]->kv.dtype, DG_F16);
    dg_session_free(s[0]);
    dg_model_close(exact);
    check_fails(dg_session_create(model, &(dg_session_options){.kv = (dg_kv_type)7}, &s[0]), DG_ERR_ARGUMENT, "kv: expected");
}

int main(void) {
    const char *tmp = test_tmpdir();
    for (int i = 0; i < 3; i++) {
        snprintf(dir[i], sizeof dir[i], "%s/%d", tmp, i);
        fixture_model(dir[i], (fixture_kind)i);
    }
    toy_drafters_register();
    if (dg_model_open(dir[1], NULL, &model) != DG_OK) {
        print_error("%s\n", dg_error_message());
        return 1;
    }
    const struct CMUnitTest t[] = {
        cmocka_unit_test(test_prefix_reuse),       cmocka_unit_test(test_stop_token_in_path),
        cmocka_unit_test(test_whole_characters),   cmocka_unit_test(test_limit_and_context),
        cmocka_unit_test(test_logprobs),           cmocka_unit_test(test_seeds_differ),
        cmocka_unit_test(test_stats),              cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_plan),               cmocka_unit_test(test_kv_type),
        cmocka_unit_test(test_limit_used_up),      cmocka_unit_test(test_limit_cuts_depth),
        cmocka_unit_test(test_rounds),             cmocka_unit_test(test_options_are_copied),
        cmocka_unit_test(test_dead),               cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_nothing_behind_stop), cmocka_unit_test(test_leading_space),
        cmocka_unit_test(test_mismatch_warnings)};
    const int bad = cmocka_run_group_tests_name("session", t, NULL, NULL);
    dg_model_close(model);
    return bad;
}
