/* One model, many threads: sessions of it, each on a thread of its own, share the backend's team and scratch, the
 * tokenizer and the weights, and the text of each is what it would be alone. */
#include "tests/test.h"

#include <pthread.h>

#include "runtime/session.h"
#include "tests/fixture.h"

enum { N_THREAD = 6, N_ROUND = 3, N_PROMPT = 20, N_NEW = 40, CONTEXT = 96 };

static char dir[FIXTURE_KINDS][256];
static dg_model *model;

typedef struct job {
    int which;
    size_t wrong;
    char message[256]; /* of the first failure, "" if none */
    int32_t token[N_ROUND][N_NEW];
    float logprob[N_ROUND][N_NEW];
} job;

static void make_prompt(int which, int round, int32_t *ids) {
    for (int i = 0; i < N_PROMPT; i++) ids[i] = 33 + (i % (5 + which) * 7 + which * 11 + (i > 9 ? round : 0)) % 80;
}

/* Every thread another drafter and sampler; the second half of them steps two sessions at once. */
static dg_session_options options_of(int which, dg_draft draft[2]) {
    const dg_draft all[] = {{"dflash", dir[FIXTURE_DFLASH], NULL}, {"eagle3", dir[FIXTURE_EAGLE3], NULL},
                            {"dflash", dir[FIXTURE_DFLASH], "tree=1"}};
    draft[0] = (dg_draft){"ngram", NULL, NULL};
    draft[1] = all[which % 3];
    return (dg_session_options){.context = CONTEXT, .budget = 3 + 4 * which, .draft = draft, .n_draft = 2,
                                .ignore_stop_tokens = true, .batch_rows = 64,
                                .sampler = {.temperature = 0.4f * (float)(which % 3), .top_k = which % 2 ? 30 : 0,
                                            .top_p = which % 3 == 2 ? 0.9f : 0, .seed = (uint64_t)which}};
}

static dg_status answer(dg_session *const *s, size_t n_session) {
    size_t count[2];
    do DG_TRY(dg_sessions_step(s, n_session, count));
    while (count[0]);
    return DG_OK;
}

/* Opens, uses and frees sessions; cmocka's assertions belong to the main thread. */
static dg_status work(job *j) {
    dg_draft draft[2];
    const dg_session_options o = options_of(j->which, draft);
    const size_t n_session = j->which < N_THREAD / 2 ? 1 : 2;
    dg_session *s[2] = {NULL, NULL};
    dg_status st = DG_OK;
    for (size_t i = 0; i < n_session && st == DG_OK; i++) st = dg_session_create(model, &o, &s[i]);
    for (int r = 0; r < N_ROUND && st == DG_OK; r++) {
        int32_t ids[N_PROMPT];
        size_t n;
        make_prompt(j->which, r, ids);
        for (size_t i = 0; i < n_session && st == DG_OK; i++) {
            st = dg_session_sync(s[i], ids, N_PROMPT);
            dg_session_limit(s[i], N_NEW);
        }
        if (st == DG_OK) st = answer(s, n_session);
        if (st != DG_OK) break;
        const int32_t *t = dg_session_tokens(s[0], &n);
        j->wrong += n != N_PROMPT + N_NEW;
        memcpy(j->token[r], t + N_PROMPT, sizeof j->token[r]);
        memcpy(j->logprob[r], dg_session_logprobs(s[0]) + N_PROMPT, sizeof j->logprob[r]);
        if (n_session > 1) j->wrong += memcmp(j->token[r], dg_session_tokens(s[1], &n) + N_PROMPT, sizeof j->token[r]) != 0;
    }
    for (size_t i = 0; i < n_session; i++) dg_session_free(s[i]);
    return st;
}

static void *thread_main(void *arg) {
    job *j = arg;
    if (work(j) != DG_OK) snprintf(j->message, sizeof j->message, "%s", dg_error_message());
    return NULL;
}

/* The same without drafters, on this thread. */
static void check_plain(const job *j) {
    dg_draft draft[2];
    dg_session_options o = options_of(j->which, draft);
    o.n_draft = 0;
    for (int r = 0; r < N_ROUND; r++) {
        dg_session *s = NULL;
        int32_t ids[N_PROMPT];
        size_t n;
        make_prompt(j->which, r, ids);
        check_ok(dg_session_create(model, &o, &s));
        check_ok(dg_session_sync(s, ids, N_PROMPT));
        check_ok(dg_session_generate(s, N_NEW, NULL, NULL, NULL));
        assert_memory_equal(dg_session_tokens(s, &n) + N_PROMPT, j->token[r], sizeof j->token[r]);
        assert_memory_equal(dg_session_logprobs(s) + N_PROMPT, j->logprob[r], sizeof j->logprob[r]);
        dg_session_free(s);
    }
}

static void run_threads(int32_t backend_threads) {
    static job jobs[N_THREAD];
    pthread_t thread[N_THREAD];
    check_ok(dg_model_open(dir[FIXTURE_QWEN3], &(dg_model_options){.threads = backend_threads}, &model));
    memset(jobs, 0, sizeof jobs);
    for (int i = 0; i < N_THREAD; i++) {
        jobs[i].which = i;
        assert_int_equal(pthread_create(&thread[i], NULL, thread_main, &jobs[i]), 0);
    }
    for (int i = 0; i < N_THREAD; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < N_THREAD; i++) {
        assert_string_equal(jobs[i].message, "");
        assert_int_equal(jobs[i].wrong, 0);
        check_plain(&jobs[i]);
    }
    dg_model_close(model);
}

static void test_one_backend_thread(void **state) {
    (void)state;
    run_threads(1);
}

static void test_backend_team(void **state) {
    (void)state;
    run_threads(3);
}

/* A failure is told to the thread that it happened to, and to no other. */
static void *fail_elsewhere(void *arg) {
    dg_model *m = NULL;
    *(dg_status *)arg = dg_model_open("/no/such/model", NULL, &m);
    return NULL;
}

static void test_message_is_the_threads_own(void **state) {
    (void)state;
    dg_model *m = NULL;
    dg_status st = DG_OK;
    pthread_t thread;
    check_fails(dg_model_open("/no/such/other", NULL, &m), DG_ERR_IO, "/no/such/other");
    assert_int_equal(pthread_create(&thread, NULL, fail_elsewhere, &st), 0);
    pthread_join(thread, NULL);
    assert_int_equal(st, DG_ERR_IO);
    assert_non_null(strstr(dg_error_message(), "/no/such/other"));
}

int main(void) {
    const char *tmp = test_tmpdir();
    for (int i = 0; i < FIXTURE_KINDS; i++) {
        snprintf(dir[i], sizeof dir[i], "%s/%d", tmp, i);
        fixture_model(dir[i], (fixture_kind)i);
    }
    const struct CMUnitTest t[] = {cmocka_unit_test(test_one_backend_thread), cmocka_unit_test(test_backend_team),
                                   cmocka_unit_test(test_message_is_the_threads_own)};
    return cmocka_run_group_tests_name("threads", t, NULL, NULL);
}
