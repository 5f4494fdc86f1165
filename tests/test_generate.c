/* dg_session_generate and what its callback may do: stop strings, slices of an answer, cancelling, another mind; and what is
 * of one call or of one step only. */
#include <unistd.h>

#include "runtime/tokenizer_impl.h"
#include "tests/session_rig.h"

typedef struct heard {
    char text[4096];
    size_t len, calls, stop_after;
    bool flushed;
} heard;

static bool hear(void *ud, const dg_piece *p) {
    heard *h = ud;
    memcpy(h->text + h->len, p->text, p->len);
    h->len += p->len;
    h->text[h->len] = 0;
    if (p->token < 0) {
        h->flushed = true;
        return true;
    }
    h->calls++;
    return h->calls != h->stop_after;
}

static void test_stop_strings(void **state) {
    (void)state;
    int32_t want[N_NEW];
    plain(want, N_NEW, 0.9f, 5);
    const dg_session_options o = {.context = CONTEXT, .ignore_stop_tokens = true, .sampler = {.temperature = 0.9f, .seed = 5}};
    dg_session *s = create(&o);
    heard all = {0};
    check_ok(dg_session_sync(s, prompt, N_PROMPT));
    check_ok(dg_session_generate(s, N_NEW, hear, &all, NULL));
    assert_true(all.flushed && all.calls == N_NEW && all.len > 20);
    dg_session_free(s);
    for (size_t from = 3; from + 3 < all.len && from < 24; from += 4) {
        char stop[4] = {0};
        memcpy(stop, all.text + from, 3); /* spans tokens: most are one character */
        const size_t first = (size_t)(strstr(all.text, stop) - all.text);
        const char *const stops[2] = {"never to be seen", stop};
        for (size_t budget = 1; budget < 20; budget += 6) {
            const dg_session_options d = {.context = CONTEXT, .budget = (int32_t)budget, .draft = &oracle, .n_draft = 1,
                                          .stop = stops, .n_stop = 2, .ignore_stop_tokens = true,
                                          .sampler = {.temperature = 0.9f, .seed = 5}};
            s = create(&d);
            toy_oracle_knows(0, prompt, N_PROMPT, want, N_NEW);
            heard h = {0};
            dg_stop why;
            check_ok(dg_session_sync(s, prompt, N_PROMPT));
            check_ok(dg_session_generate(s, N_NEW, hear, &h, &why));
            assert_int_equal(why, DG_STOP_STRING);
            assert_int_equal(h.len, first);
            assert_memory_equal(h.text, all.text, first);
            dg_session_free(s);
        }
    }
}

static void test_cancel(void **state) {
    (void)state;
    int32_t want[N_NEW];
    plain(want, N_NEW, 0, 0);
    for (size_t stop_after = 1; stop_after < 20; stop_after += 3) {
        dg_session *s = drafted(6, NULL, 0, true);
        toy_oracle_knows(0, prompt, N_PROMPT, want, N_NEW);
        check_ok(dg_session_sync(s, prompt, N_PROMPT));
        heard h = {.stop_after = stop_after};
        dg_stop why;
        check_ok(dg_session_generate(s, N_NEW, hear, &h, &why));
        assert_int_equal(why, DG_STOP_CANCELLED);
        assert_false(h.flushed);
        size_t n;
        const int32_t *t = dg_session_tokens(s, &n);
        assert_int_equal(n, N_PROMPT + stop_after);
        assert_memory_equal(t + N_PROMPT, want, stop_after * sizeof *want);
        dg_session_free(s);
    }
}

static const dg_sampler warm = {.temperature = 0.9f, .seed = 5};

/* Answers in slices, and answers cancelled and gone on with, are those in one piece: the same tokens, the same text, the same
 * end, whether somebody listens or not. */
static void test_slices(void **state) {
    (void)state;
    int32_t want[N_NEW];
    plain(want, N_NEW, warm.temperature, warm.seed);
    heard all = {0};
    dg_session *s = create(&(dg_session_options){.context = CONTEXT, .ignore_stop_tokens = true, .sampler = warm});
    check_ok(dg_session_sync(s, prompt, N_PROMPT));
    check_ok(dg_session_generate(s, N_NEW, hear, &all, NULL));
    dg_session_free(s);
    char stop[5] = {0};
    memcpy(stop, all.text + 9, 4); /* held back more than once */
    for (int never = 0; never < 2; never++) {
        if (never) stop[3] = 1;
        const char *const stops[1] = {stop};
        const size_t end = never ? all.len : (size_t)(strstr(all.text, stop) - all.text);
        size_t length = 0;
        for (int slice = 1; slice <= N_NEW; slice += slice > 3 ? 11 : 1)
            for (int listens = 0; listens < 2; listens++) {
                s = create(&(dg_session_options){.context = CONTEXT, .budget = 6, .draft = &oracle, .n_draft = 1, .stop = stops,
                                                 .n_stop = 1, .ignore_stop_tokens = true, .sampler = warm});
                toy_oracle_knows(0, prompt, N_PROMPT, want, N_NEW);
                check_ok(dg_session_sync(s, prompt, N_PROMPT));
                heard h = {0};
                dg_stop why = DG_STOP_LIMIT;
                size_t n = N_PROMPT;
                while (why == DG_STOP_LIMIT && n < N_PROMPT + N_NEW) {
                    const size_t left = N_PROMPT + N_NEW - n;
                    check_ok(dg_session_generate(s, left < (size_t)slice ? left : (size_t)slice, listens ? hear : NULL, &h, &why));
                    dg_session_tokens(s, &n);
                }
                assert_int_equal(why, never ? DG_STOP_LIMIT : DG_STOP_STRING);
                if (!length) length = n;
                assert_int_equal(n, length);
                if (listens) assert_in_range(h.len, end, never ? end : end + 3); /* what has been told stays told */
                if (listens) assert_memory_equal(h.text, all.text, end);
                dg_session_free(s);
            }
        for (size_t stop_after = 1; never && stop_after < N_NEW; stop_after++) {
            s = create(&(dg_session_options){.context = CONTEXT, .budget = 6, .draft = &oracle, .n_draft = 1, .stop = stops,
                                             .n_stop = 1, .ignore_stop_tokens = true, .sampler = warm});
            check_ok(dg_session_sync(s, prompt, N_PROMPT));
            heard h = {.stop_after = stop_after};
            dg_stats stats;
            check_ok(dg_session_generate(s, N_NEW, hear, &h, NULL));
            dg_session_get_stats(s, &stats);
            assert_int_equal(stats.tokens, stop_after);
            assert_int_equal(stats.prompt_tokens, N_PROMPT - 1);
            assert_int_equal(stats.reused, 0);
            check_ok(dg_session_rewind(s, N_PROMPT + stop_after));
            check_ok(dg_session_generate(s, N_NEW - stop_after, hear, &h, NULL));
            assert_int_equal(h.len, all.len);
            assert_memory_equal(h.text, all.text, all.len);
            dg_session_free(s);
        }
    }
}

/* A character whose bytes are tokens of their own, cut by a limit and by a rewind. */
static void test_character_is_cut(void **state) {
    (void)state;
    const int32_t c3 = dg_tokenizer_find(model->tokenizer, "\xc3", 1), a9 = dg_tokenizer_find(model->tokenizer, "\xa9", 1);
    dg_session *s = create(&(dg_session_options){.context = CONTEXT, .ignore_stop_tokens = true});
    check_ok(dg_session_sync(s, prompt, N_PROMPT));
    check_ok(dg_session_generate(s, 3, NULL, NULL, NULL));
    s->token[N_PROMPT + 1] = c3; /* as if it had been said */
    check_ok(dg_session_rewind(s, N_PROMPT + 2));
    dg_text_round(&s->text);
    dg_text_tell(&s->text);
    assert_int_equal(s->text.n_out, 0);
    dg_text_push(&s->text, a9);
    assert_int_equal(s->text.n_out, 2);
    assert_memory_equal(s->text.out, "\xc3\xa9", 2);
    dg_session_free(s);
}

/* Asks for something else at its third token. */
typedef struct change {
    dg_session *s;
    size_t calls, limit;
} change;

static bool change_mind(void *ud, const dg_piece *p) {
    change *c = ud;
    if (p->token < 0 || ++c->calls != 3) return true;
    if (c->limit)
        dg_session_limit(c->s, c->limit);
    else
        check_ok(dg_session_set_sampler(c->s, &warm));
    return true;
}

static void test_callback_changes_its_mind(void **state) {
    (void)state;
    int32_t greedy[N_NEW], want[N_NEW];
    plain(greedy, N_NEW, 0, 0);
    for (int drafts = 0; drafts < 2; drafts++)
        for (size_t limit = 0; limit < 5; limit += 4) {
            dg_session *s = create(&(dg_session_options){.context = CONTEXT, .budget = drafts ? 15 : 0, .draft = &oracle,
                                                         .n_draft = (size_t)drafts, .ignore_stop_tokens = true});
            toy_oracle_knows(0, prompt, N_PROMPT, greedy, N_NEW);
            check_ok(dg_session_sync(s, prompt, N_PROMPT));
            change c = {s, 0, limit};
            dg_stop why;
            size_t n;
            check_ok(dg_session_generate(s, 24, change_mind, &c, &why));
            const int32_t *t = dg_session_tokens(s, &n) + N_PROMPT;
            assert_int_equal(why, DG_STOP_LIMIT);
            assert_int_equal(n - N_PROMPT, limit ? 3 + limit : 24);
            assert_int_equal(c.calls, n - N_PROMPT);
            if (limit) {
                assert_memory_equal(t, greedy, (3 + limit) * sizeof *t);
            } else {
                assert_memory_equal(t, greedy, 3 * sizeof *t);
                assert_memory_not_equal(t, greedy, 24 * sizeof *t);
                if (!drafts) memcpy(want, t, 24 * sizeof *t);
                assert_memory_equal(t, want, 24 * sizeof *t);
            }
            dg_session_free(s);
        }
}

/* The margin is that of the session's own pass and of the sampler that the token was drawn with. */
static void test_margin(void **state) {
    (void)state;
    dg_session *s[2];
    float alone, other, later;
    for (int i = 0; i < 2; i++) {
        s[i] = create(&(dg_session_options){.context = CONTEXT, .ignore_stop_tokens = true, .sampler = warm});
        check_ok(dg_session_sync(s[i], prompt, N_PROMPT));
    }
    size_t n, count[2];
    check_ok(dg_session_step(s[0], NULL, 0, &n));
    check_ok(dg_session_margin(s[0], 77, &alone));
    assert_true(alone > 0);
    check_ok(dg_session_set_sampler(s[0], &(dg_sampler){0}));
    check_ok(dg_session_margin(s[0], 77, &later));
    assert_true(later == alone);
    check_fails(dg_session_margin(s[0], 77, NULL), DG_ERR_ARGUMENT, "margin");
    check_ok(dg_session_rewind(s[0], N_PROMPT));
    check_ok(dg_sessions_step(s, 2, count));
    for (int i = 0; i < 2; i++) check_fails(dg_session_margin(s[i], 77, &other), DG_ERR_ARGUMENT, "this session alone");
    for (int i = 0; i < 2; i++) dg_session_free(s[i]);
}

/* A limit of dg_session_generate is of that call, whether it came to anything or not. */
static void test_limit_is_of_one_call(void **state) {
    (void)state;
    dg_session *s = create(&(dg_session_options){.context = CONTEXT, .ignore_stop_tokens = true});
    size_t n;
    assert_int_equal(dg_session_generate(s, 2, NULL, NULL, NULL), DG_ERR_ARGUMENT); /* no tokens yet */
    check_ok(dg_session_sync(s, prompt, N_PROMPT));
    for (int i = 0; i < 4; i++) {
        check_ok(dg_session_step(s, NULL, 0, &n));
        assert_int_equal(n, 1);
    }
    check_ok(dg_session_generate(s, 2, NULL, NULL, NULL));
    assert_int_equal(dg_session_stopped(s), DG_STOP_LIMIT);
    check_ok(dg_session_step(s, NULL, 0, &n));
    assert_int_equal(n, 1);
    dg_session_free(s);
}

/* The first memory that is switched on is the one that is saved. */
static void test_save_memory(void **state) {
    (void)state;
    const dg_draft draft[2] = {{"fused", NULL, "m=0"}, {"fill", NULL, NULL}};
    char path[512];
    snprintf(path, sizeof path, "%s/memory", test_tmpdir());
    for (size_t n = 1; n <= 2; n++) {
        dg_session *s = create(&(dg_session_options){.context = CONTEXT, .draft = draft, .n_draft = n, .ignore_stop_tokens = true});
        check_ok(dg_session_sync(s, prompt, N_PROMPT));
        check_ok(dg_session_generate(s, 8, NULL, NULL, NULL));
        if (n == 1)
            check_fails(dg_session_save_memory(s, path), DG_ERR_ARGUMENT, "m=0 switches it off");
        else
            check_ok(dg_session_save_memory(s, path));
        check_fails(dg_session_save_memory(s, NULL), DG_ERR_ARGUMENT, "path must not be NULL");
        assert_int_equal(access(path, R_OK), n == 1 ? -1 : 0);
        dg_session_free(s);
    }
    unlink(path);
}

int main(void) {
    char dir[256];
    snprintf(dir, sizeof dir, "%s/model", test_tmpdir());
    fixture_model(dir, (fixture_kind)1);
    toy_drafters_register();
    if (dg_model_open(dir, NULL, &model) != DG_OK) {
        print_error("%s\n", dg_error_message());
        return 1;
    }
    const struct CMUnitTest t[] = {
        cmocka_unit_test(test_stop_strings),     cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_slices),           cmocka_unit_test(test_character_is_cut),
        cmocka_unit_test(test_margin),           cmocka_unit_test(test_callback_changes_its_mind),
        cmocka_unit_test(test_limit_is_of_one_call), cmocka_unit_test(test_save_memory)};
    const int bad = cmocka_run_group_tests_name("generate", t, NULL, NULL);
    dg_model_close(model);
    return bad;
}
