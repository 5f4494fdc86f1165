/* What a round asks of the device: one graph for each pass, one upload before it and one download behind it; the same text
 * with graphs and without; nothing stale is run. */
#include "tests/cudasim/sim.h"
#include "tests/test.h"

#include "runtime/session.h"
#include "tests/fixture.h"

enum { N_PROMPT = 12, CONTEXT = 64, N_NEW = 16 };
static const int32_t prompt[N_PROMPT] = {40, 71, 96, 101, 13, 96, 99, 120, 96, 55, 41, 96};

static char dir[FIXTURE_KINDS][256];
static dg_model *model;

static dg_session *create(const dg_draft *draft, int32_t budget, int32_t context, float temperature) {
    const dg_session_options o = {.context = context, .budget = budget, .draft = draft, .n_draft = draft ? 1 : 0,
                                  .ignore_stop_tokens = true, .sampler = {.temperature = temperature, .seed = 4}};
    dg_session *s = NULL;
    check_ok(dg_session_create(model, &o, &s));
    check_ok(dg_session_sync(s, prompt, N_PROMPT));
    return s;
}

static void step(dg_session *s) {
    size_t n;
    check_ok(dg_session_step(s, NULL, 0, &n));
    assert_true(n > 0);
}

static dgsim_counts since(dgsim_counts before) {
    const dgsim_counts now = dgsim_count;
    return (dgsim_counts){now.launches - before.launches, now.graphs - before.graphs, now.captured - before.captured,
                          now.uploads - before.uploads, now.downloads - before.downloads, now.waits - before.waits};
}

/* A plain step is one upload, one graph and one download, at every length; one wait for its data and one for errors. */
static void test_plain_step(void **state) {
    (void)state;
    dg_session *s = create(NULL, 0, CONTEXT, 0.8f);
    const dgsim_counts start = dgsim_count;
    step(s); /* as it comes */
    assert_int_equal(since(start).graphs, 0);
    /* a layer: two norms, products of q, k, v, of the output, of gate and up, of down, qkv, attention, swiglu */
    assert_int_equal(since(start).launches, 9 * FIXTURE_LAYERS + 6); /* positions, embedding, rotations, norm, head, sample */
    step(s); /* recorded */
    assert_int_equal(since(start).captured, 1);
    for (int i = 0; i < 20; i++) {
        const dgsim_counts before = dgsim_count;
        step(s);
        const dgsim_counts c = since(before);
        assert_int_equal(c.graphs, 1);
        assert_int_equal(c.launches, 0);
        assert_int_equal(c.captured, 0);
        assert_int_equal(c.uploads, 1);
        assert_int_equal(c.downloads, 1);
        assert_int_equal(c.waits, 2);
    }
    dg_session_free(s);
}

/* Rounds with drafts: a graph for each pass once their keys are known, and no launch but that which moves the path. */
static void check_rounds(const dg_draft *draft, int32_t budget, int rounds) {
    dg_session *s = create(draft, budget, CONTEXT, 0);
    int whole = 0;
    for (int i = 0; i < rounds; i++) {
        dg_stats was, is;
        dg_session_get_stats(s, &was);
        const dgsim_counts before = dgsim_count;
        step(s);
        dg_session_get_stats(s, &is);
        const dgsim_counts c = since(before);
        const long passes = (long)(is.drafter_passes - was.drafter_passes);
        if (c.captured || c.launches > 1) continue; /* a pass was new, or came for the second time */
        whole++;
        assert_int_equal(c.graphs, passes + 2); /* and observing, and verifying */
        assert_int_equal(c.downloads, passes + 1);
        /* the path, to commit and observe; what is observed; of EAGLE-3's passes, the first has nothing new to read */
        assert_int_equal(c.uploads, 2 + 1 + passes - (strcmp(draft->name, "eagle3") == 0));
    }
    if (whole < rounds / 2) fail_msg("%s: %d of %d rounds were graphs alone", draft->name, whole, rounds);
    dg_session_free(s);
}

static void test_drafted_rounds(void **state) {
    (void)state;
    const dg_draft dflash = {"dflash", dir[FIXTURE_DFLASH], "tree=1"}, eagle3 = {"eagle3", dir[FIXTURE_EAGLE3], "depth=3,topk=4"};
    check_rounds(&dflash, 7, 16);
    check_rounds(&eagle3, 7, 16);
}

/* ---- the same text ---------------------------------------------------------------------------- */

static bool run_it(dg_backend *be, const void *key, size_t bytes) {
    (void)be, (void)key, (void)bytes;
    return true;
}
static void nothing(dg_backend *be) { (void)be; }
static int32_t as_many(dg_backend *be, int32_t n) {
    (void)be;
    return n;
}

/* Tokens and log-probabilities of N_NEW tokens. */
static void text_of(dg_session *s, int32_t *token, float *logp) {
    size_t n;
    check_ok(dg_session_generate(s, N_NEW, NULL, NULL, NULL));
    const int32_t *t = dg_session_tokens(s, &n);
    assert_int_equal(n, N_PROMPT + N_NEW);
    memcpy(token, t + N_PROMPT, N_NEW * sizeof *token);
    memcpy(logp, dg_session_logprobs(s) + N_PROMPT, N_NEW * sizeof *logp);
    dg_session_free(s);
}

static void test_text_without_graphs(void **state) {
    (void)state;
    const dg_draft draft[] = {{"recycling", NULL, NULL}, {"dflash", dir[FIXTURE_DFLASH], "tree=1,adapt=1"},
                              {"eagle3", dir[FIXTURE_EAGLE3], "depth=3,topk=4"}};
    const dg_ops *ops = model->be->ops;
    dg_ops direct = *ops;
    direct.pass_begin = run_it, direct.pass_end = nothing, direct.pass_rows = as_many;
    for (int d = -1; d < 3; d++)
        for (int hot = d == 0; hot < 2; hot += 2) {
            int32_t want[N_NEW], got[N_NEW];
            float want_logp[N_NEW], got_logp[N_NEW];
            model->be->ops = &direct;
            const long graphs = dgsim_count.graphs;
            text_of(create(d < 0 ? NULL : &draft[d], 7, CONTEXT, hot ? 0.9f : 0), want, want_logp);
            assert_int_equal(dgsim_count.graphs, graphs);
            model->be->ops = ops;
            text_of(create(d < 0 ? NULL : &draft[d], 7, CONTEXT, hot ? 0.9f : 0), got, got_logp);
            assert_true(dgsim_count.graphs > graphs + 3);
            assert_memory_equal(got, want, sizeof want);
            assert_memory_equal(got_logp, want_logp, sizeof want_logp);
        }
}

/* A sampler that changes is part of the key, and so is who runs: sessions take turns. */
static void test_keys_tell_apart(void **state) {
    (void)state;
    int32_t want[2][N_NEW];
    float logp[N_NEW];
    text_of(create(NULL, 0, CONTEXT, 0), want[0], logp);
    text_of(create(NULL, 0, CONTEXT, 1.2f), want[1], logp);
    assert_true(memcmp(want[0], want[1], sizeof want[0]) != 0);
    dg_session *s[2] = {create(NULL, 0, CONTEXT, 0), create(NULL, 0, CONTEXT, 1.2f)};
    for (int i = 0; i < N_NEW; i++) step(s[0]), step(s[1]);
    for (int k = 0; k < 2; k++) {
        size_t n;
        const int32_t *t = dg_session_tokens(s[k], &n);
        assert_memory_equal(t + N_PROMPT, want[k], sizeof want[k]);
        const dg_sampler other = {.temperature = k ? 0 : 1.2f, .seed = 4};
        check_ok(dg_session_set_sampler(s[k], &other));
        check_ok(dg_session_rewind(s[k], N_PROMPT));
        for (int i = 0; i < N_NEW; i++) step(s[k]);
        t = dg_session_tokens(s[k], &n);
        assert_memory_equal(t + N_PROMPT, want[!k], sizeof want[k]);
    }
    dg_session_free(s[0]), dg_session_free(s[1]);
}

/* Sessions that come and go: the next has the last one's place in the host's memory, and another on the device. */
static void test_memory_that_moved(void **state) {
    (void)state;
    const dg_draft dflash = {"dflash", dir[FIXTURE_DFLASH], NULL};
    int32_t want[N_NEW], got[N_NEW];
    float logp[N_NEW];
    text_of(create(&dflash, 7, CONTEXT, 0), want, logp);
    void *block[3];
    for (int i = 0; i < 3; i++) {
        block[i] = model->be->ops->alloc(model->be, (size_t)(100000 * (i + 1)));
        text_of(create(&dflash, 7, CONTEXT - 7 * i, 0), got, logp);
        assert_memory_equal(got, want, sizeof want);
    }
    for (int i = 0; i < 3; i++) model->be->ops->free(model->be, block[i]);
}

/* More keys than are kept: those used longest ago are recorded again. */
static void test_many_keys(void **state) {
    (void)state;
    int32_t want[N_NEW];
    float logp[N_NEW];
    enum { SESSIONS = 70 };
    text_of(create(NULL, 0, CONTEXT, 0), want, logp);
    dg_session *s[SESSIONS];
    for (int i = 0; i < SESSIONS; i++) s[i] = create(NULL, 0, 32, 0);
    const long captured = dgsim_count.captured;
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < SESSIONS; i += round < 1 ? 1 : 5) step(s[i]);
    assert_true(dgsim_count.captured > captured);
    for (int i = 0; i < SESSIONS; i++) {
        size_t n;
        const int32_t *t = dg_session_tokens(s[i], &n);
        assert_memory_equal(t + N_PROMPT, want, (n - N_PROMPT) * sizeof *want);
        dg_session_free(s[i]);
    }
}

/* The device goes while a graph runs: an error with its name, and nothing hangs. */
static void test_lost_in_a_graph(void **state) {
    (void)state;
    dg_session *s = create(NULL, 0, CONTEXT, 0);
    for (int i = 0; i < 4; i++) step(s);
    dgsim.fail_launch = 5;
    size_t n;
    check_fails(dg_session_step(s, NULL, 0, &n), DG_ERR_DEVICE, "cuda");
    check_fails(dg_session_step(s, NULL, 0, &n), DG_ERR_DEVICE, "died");
    dg_session_free(s);
    dgsim.fail_launch = 0;
}

static int open_all(void **state) {
    (void)state;
    const char *tmp = test_tmpdir();
    for (int i = 0; i < FIXTURE_KINDS; i++) {
        snprintf(dir[i], sizeof dir[i], "%s/%d", tmp, i);
        fixture_model(dir[i], (fixture_kind)i);
    }
    const dg_model_options opt = {.compute = DG_COMPUTE_F32, .device = "cuda"};
    check_ok(dg_model_open(dir[FIXTURE_QWEN3], &opt, &model));
    return 0;
}

static int close_all(void **state) {
    (void)state;
    dg_model_close(model);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_step),      cmocka_unit_test(test_drafted_rounds), cmocka_unit_test(test_text_without_graphs),
        cmocka_unit_test(test_keys_tell_apart), cmocka_unit_test(test_memory_that_moved), cmocka_unit_test(test_many_keys),
        cmocka_unit_test(test_lost_in_a_graph), /* last: the device is gone */
    };
    return cmocka_run_group_tests_name("round", tests, open_all, close_all);
}
