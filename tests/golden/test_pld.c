/* Prompt lookup decoding: the pure rule against the original's answers, and the drafter around it. */
#include "tests/test.h"

#include "graft/pld.h"

static bool have;

static int setup(void **state) {
    (void)state;
    have = golden_have("pld/pld.json");
    return 0;
}

static int32_t get_int(const json_t *object, const char *key) {
    assert_true(json_is_integer(json_object_get(object, key)));
    return (int32_t)json_integer_value(json_object_get(object, key));
}

static dg_drafter *make(dg_drafter_env *env, void **block) {
    dg_drafter *d = NULL;
    check_ok(dg_pld.open(env, &d));
    dg_arena host = {0}, dev = {0};
    dg_pld.layout(d, &host, &dev);
    assert_int_equal(dev.used, 0);
    host = (dg_arena){dg_mem_alloc(host.used), 0, host.used};
    dg_pld.layout(d, &host, &dev);
    *block = host.base;
    return d;
}

static void drop(dg_drafter *d, void *block) {
    dg_pld.close(d);
    dg_mem_free(block);
}

static void observe(dg_drafter *d, const int32_t *token, int32_t first, int32_t n) {
    const dg_outcome o = {
        .n = n,
        .token = token + first,
        .first = first,
    };
    dg_mem_guard_begin();
    check_ok(dg_pld.observe(d, &o));
    dg_mem_guard_end();
}

/* The candidate as a chain below the root. */
static void check_chain(const dg_tree *t, const int32_t *want, size_t n) {
    assert_int_equal(t->n, n + 1);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(t->token[i + 1], want[i]);
        assert_int_equal(t->parent[i + 1], i);
        assert_int_equal(t->source[i + 1], 4);
        assert_true(t->score[i + 1] <= t->score[i]);
    }
}

/* What the drafter proposes with the text fed in two spans, and again after a detour and a rewind. */
static void check_drafter(const int32_t *ids, int32_t n, const json_t *c, const int32_t *want,
                          size_t n_want) {
    char params[64];
    snprintf(params, sizeof params, "ngram=%d,tokens=%d", get_int(c, "max_ngram_size"),
             get_int(c, "num_pred_tokens"));
    dg_drafter_env env = {.params = params, .context = n + 8, .budget = 255, .source = 4};
    void *block;
    dg_drafter *d = make(&env, &block);
    observe(d, ids, 0, n / 2);
    observe(d, ids, n / 2, n - 1 - n / 2);
    for (int again = 0; again < 2; again++) {
        dg_tree t;
        dg_tree_reset(&t, ids[n - 1]);
        dg_mem_guard_begin();
        check_ok(dg_pld.propose(d, &t, 255));
        dg_mem_guard_end();
        check_chain(&t, want, n_want);
        const int32_t detour[] = {1, 2, 3, 0, 1};
        const dg_outcome o = {.n = 5, .token = detour, .first = n - 1, .next = 0};
        check_ok(dg_pld.observe(d, &o));
        dg_pld.rewind(d, n - 1);
    }
    drop(d, block);
}

static void test_original(void **state) {
    (void)state;
    if (!have) skip();
    json_t *j = golden_json("pld/pld.json");
    size_t i, n_found = 0, n_error = 0;
    json_t *c;
    json_array_foreach(json_object_get(j, "cases"), i, c) {
        size_t n, n_want = 0;
        int32_t *ids = json_ints(json_object_get(c, "ids"), &n), *want = NULL;
        const json_t *candidate = json_object_get(c, "candidate");
        const int32_t n_token = get_int(c, "num_pred_tokens");
        int32_t start = -7, match = -7;
        const dg_status st =
            dg_pld_find(ids, (int32_t)n, get_int(c, "max_ngram_size"), n_token, &start, &match);
        if (json_is_object(candidate)) {
            assert_int_equal(st, DG_ERR_ARGUMENT);
            assert_int_equal(start, -7);
            n_error++;
            free(ids);
            continue;
        }
        check_ok(st);
        want = json_ints(candidate, &n_want);
        assert_int_equal(start >= 0, n_want > 0);
        assert_int_equal(match > 0, n_want > 0);
        if (n_want) {
            assert_int_equal(n_want, n_token);
            assert_true((size_t)start + n_want <= n);
            assert_memory_equal(ids + start, want, n_want * sizeof *want);
            assert_memory_equal(ids + start - match, ids + n - (size_t)match, (size_t)match * sizeof *ids);
            n_found++;
        }
        check_drafter(ids, (int32_t)n, c, want, n_want);
        free(ids), free(want);
    }
    assert_true(n_found > 0 && n_error > 0);
    json_decref(j);
}

static void test_bad_arguments(void **state) {
    (void)state;
    const int32_t ids[] = {1, 2, 1, 2};
    int32_t start;
    check_fails(dg_pld_find(ids, 4, 0, 1, &start, NULL), DG_ERR_ARGUMENT, "n-grams of 0 tokens");
    check_fails(dg_pld_find(ids, 4, 5, 1, &start, NULL), DG_ERR_ARGUMENT, "expected 1 to 4");
    check_fails(dg_pld_find(ids, 4, 1, 0, &start, NULL), DG_ERR_ARGUMENT, "0 tokens to copy");

    const int64_t live = dg_mem_live();
    dg_drafter *d = NULL;
    dg_drafter_env env = {.context = 8};
    env.params = "ngram=0";
    check_fails(dg_pld.open(&env, &d), DG_ERR_ARGUMENT, "ngram=0");
    env.params = "min=2";
    check_fails(dg_pld.open(&env, &d), DG_ERR_ARGUMENT, "ngram, tokens");
    env.params = NULL, env.path = "some/file";
    check_fails(dg_pld.open(&env, &d), DG_ERR_ARGUMENT, "some/file");
    env.path = NULL;
    dg_mem_fail_nth(1, 0);
    const dg_status st = dg_pld.open(&env, &d);
    dg_mem_fail_nth(0, 0);
    assert_int_equal(st, DG_ERR_MEMORY);
    assert_null(d);
    assert_int_equal(dg_mem_live(), live);
}

/* Defaults, an n-gram longer than the text, budgets, and a tree that others have begun. */
static void test_drafter(void **state) {
    (void)state;
    const int64_t live = dg_mem_live();
    const int32_t ids[] = {6, 7, 0, 5, 6, 7, 1, 2, 3, 4, 8, 9, 9, 5, 6, 7};
    const int32_t n = sizeof ids / sizeof *ids;
    dg_drafter_env env = {.context = 20, .source = 4};
    void *block;
    dg_drafter *d = make(&env, &block);

    dg_tree t;
    dg_tree_reset(&t, 5);
    check_ok(dg_pld.propose(d, &t, 15)); /* no text yet: a root alone */
    assert_int_equal(t.n, 1);
    observe(d, ids, 0, 2);
    dg_tree_reset(&t, ids[2]);
    check_ok(dg_pld.propose(d, &t, 15));
    assert_int_equal(t.n, 1);

    observe(d, ids, 2, n - 1 - 2);
    dg_tree_reset(&t, ids[n - 1]);
    check_ok(dg_pld.propose(d, &t, 15)); /* by default 10 tokens, and 5 6 7 goes before 6 7 */
    check_chain(&t, ids + 6, 10);
    dg_tree_reset(&t, ids[n - 1]);
    check_ok(dg_pld.propose(d, &t, 4));
    check_chain(&t, ids + 6, 4);
    dg_tree_reset(&t, ids[n - 1]);
    check_ok(dg_pld.propose(d, &t, 0));
    assert_int_equal(t.n, 1);

    dg_tree_reset(&t, ids[n - 1]);
    const int32_t one = dg_tree_add(&t, 0, 1, -1, 2);
    dg_tree_add(&t, 0, 9, -1, 2);
    check_ok(dg_pld.propose(d, &t, 5));
    assert_int_equal(t.n, 6);
    const int32_t two = dg_tree_child(&t, one, 2);
    assert_true(two > 0 && dg_tree_child(&t, two, 3) > 0);
    assert_int_equal(t.source[one], 2);
    drop(d, block);
    assert_int_equal(dg_mem_live(), live);
}

int main(void) {
    const struct CMUnitTest t[] = {cmocka_unit_test(test_original), cmocka_unit_test(test_bad_arguments),
                                   cmocka_unit_test(test_drafter)};
    return cmocka_run_group_tests_name("pld", t, setup, NULL);
}
