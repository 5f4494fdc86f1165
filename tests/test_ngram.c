/* The suffix automaton and the ngram drafter against brute force on random texts over small alphabets. */
#include "tests/test.h"

#include <math.h>

#include "graft/ngram.h"

enum { MAX_TEXT = 120, MAX_PATH = 4, MAX_CHAIN = 12 };

static int32_t pick(uint64_t *seed, int32_t n) {
    const float u = (test_random(seed) + 1) / 2;
    return (int32_t)(u * (float)n) % n;
}

/* Random tokens, runs of one token, or a repeated phrase with faults: what makes suffix links long or short.
 */
static void random_text(uint64_t *seed, int32_t *token, int32_t n) {
    const int32_t alphabet = 1 + pick(seed, 4), kind = pick(seed, 3), period = 1 + pick(seed, 7);
    for (int32_t i = 0; i < n; i++) {
        const bool repeat = i >= period && kind > 0 && pick(seed, 10) > kind;
        token[i] = repeat ? token[i - period] : pick(seed, alphabet) * 1000003;
    }
}

typedef struct text {
    int32_t token[MAX_TEXT + MAX_PATH + MAX_CHAIN]; /* text, path behind it */
    int32_t n, n_path;
} text;

/* Tokens that end at position `end` and equal the end of text + path. */
static int32_t common(const text *x, int32_t end) {
    int32_t len = 0, last = x->n + x->n_path - 1;
    while (len <= end && x->token[end - len] == x->token[last - len]) len++;
    return len;
}

static void *build(dg_suffix *s, int32_t cap) {
    dg_arena host = {0};
    dg_suffix_layout(s, &host, cap);
    host = (dg_arena){dg_mem_alloc(host.used), 0, host.used};
    memset(host.base, 0x5a, host.cap);
    dg_suffix_layout(s, &host, cap);
    return host.base;
}

/* Longest match of text + path, and every shorter suffix that has more occurrences, each with its latest end.
 */
static void check_matches(const dg_suffix *s, const text *x) {
    dg_suffix_match m = dg_suffix_whole(s);
    for (int32_t i = 0; i < x->n_path; i++) m = dg_suffix_step(s, m, x->token[x->n + i]);
    int32_t longest = 0;
    for (int32_t end = 0; end < x->n; end++) {
        const int32_t len = common(x, end);
        if (len > longest) longest = len;
    }
    assert_int_equal(m.len, longest);
    int32_t n_before = 0;
    while (m.len > 0) {
        int32_t latest = -1, n = 0, next_shorter = 0;
        for (int32_t end = 0; end < x->n; end++) {
            const int32_t len = common(x, end);
            if (len >= m.len)
                latest = end, n++;
            else if (len > next_shorter)
                next_shorter = len;
        }
        assert_int_equal(s->state[m.state].end, latest);
        assert_true(n > n_before);
        n_before = n;
        m = dg_suffix_shorter(s, m);
        assert_int_equal(m.len, next_shorter);
    }
}

static void test_automaton(void **state) {
    (void)state;
    uint64_t seed = 1;
    for (int trial = 0; trial < 60; trial++) {
        text x = {.n = 0};
        int32_t all[MAX_TEXT];
        const int32_t n = 1 + pick(&seed, MAX_TEXT);
        random_text(&seed, all, n);
        dg_suffix s;
        void *block = build(&s, n);
        dg_mem_guard_begin();
        while (x.n < n) {
            dg_suffix_append(&s, all[x.n]);
            x.token[x.n] = all[x.n];
            x.n++;
            x.n_path = 1 + pick(&seed, MAX_PATH);
            for (int32_t i = 0; i < x.n_path;
                 i++) /* mostly tokens of the text, now and then an unknown one */
                x.token[x.n + i] = pick(&seed, 9) ? all[pick(&seed, n)] : 77;
            check_matches(&s, &x);
        }
        dg_mem_guard_end();
        assert_true(s.n_state <= 2 * n + 1);
        dg_mem_free(block);
    }
}

/* A rewound automaton is, to the byte, the one of the shorter text. */
static void test_rewind_is_fresh(void **state) {
    (void)state;
    uint64_t seed = 2;
    for (int trial = 0; trial < 40; trial++) {
        int32_t all[MAX_TEXT];
        const int32_t n = 1 + pick(&seed, MAX_TEXT), len = pick(&seed, n + 1);
        random_text(&seed, all, n);
        dg_suffix s, fresh;
        void *block = build(&s, n), *fresh_block = build(&fresh, n);
        for (int32_t i = 0; i < n; i++) dg_suffix_append(&s, all[i]);
        for (int32_t i = 0; i < len; i++) dg_suffix_append(&fresh, all[i]);
        dg_mem_guard_begin();
        dg_suffix_rewind(&s, len);
        dg_mem_guard_end();
        for (int32_t i = len; i < n; i++) { /* and goes on like it */
            assert_int_equal(s.n, fresh.n);
            assert_int_equal(s.n_state, fresh.n_state);
            assert_int_equal(s.last, fresh.last);
            assert_memory_equal(s.state, fresh.state, (size_t)s.n_state * sizeof *s.state);
            assert_memory_equal(s.edge, fresh.edge, (size_t)s.n_slot * sizeof *s.edge);
            dg_suffix_append(&s, all[n - 1 - i + len]);
            dg_suffix_append(&fresh, all[n - 1 - i + len]);
        }
        dg_mem_free(block), dg_mem_free(fresh_block);
    }
}

/* ---- retriever -------------------------------------------------------------------------------- */

typedef struct expected {
    int32_t token[DG_NGRAM_MAX_ALTERNATIVES][MAX_CHAIN];
    int32_t match[DG_NGRAM_MAX_ALTERNATIVES];
    int32_t n, n_seen, max_tokens;
} expected;

/* By the words of ngram.h: lengths down, occurrences from the latest on, no first token twice. */
static void brute_force(text *x, const dg_ngram_options *o, int32_t max_tokens, expected *e) {
    *e = (expected){.max_tokens = max_tokens};
    for (int32_t len = x->n; len >= o->min_match; len--)
        for (int32_t end = x->n - 1; end >= 0; end--) {
            if (common(x, end) < len || e->n == o->alternatives) continue;
            bool seen = false;
            for (int32_t i = 0; i < e->n; i++) seen |= e->token[i][0] == x->token[end + 1];
            if (seen) continue;
            for (int32_t i = 0; i < max_tokens; i++) {
                x->token[x->n + x->n_path + i] = x->token[end + 1 + i];
                e->token[e->n][i] = x->token[end + 1 + i];
            }
            e->match[e->n++] = len;
        }
}

static void compare(void *ud, const int32_t *token, const float *score, int32_t n) {
    expected *e = ud;
    assert_true(e->n_seen < e->n);
    const int32_t i = e->n_seen++, len = e->match[i];
    assert_int_equal(n, e->max_tokens);
    assert_memory_equal(token, e->token[i], (size_t)n * sizeof *token);
    float p = expf(dg_ngram_logp(len));
    if (i > 0) p = 0.1f * (1 - expf(dg_ngram_logp(e->match[0])));
    float want = logf(p);
    for (int32_t k = 0; k < n; k++) {
        if (k > 0) want += dg_ngram_logp(len + k);
        assert_true(fabsf(score[k] - want) < 1e-5f);
    }
}

static void *lay_out(dg_ngram_retriever *r, const dg_ngram_options *o, int32_t context) {
    dg_arena host = {0};
    dg_ngram_layout(r, o, &host, context);
    host = (dg_arena){dg_mem_alloc(host.used), 0, host.used};
    dg_ngram_layout(r, o, &host, context);
    return host.base;
}

static void test_retriever(void **state) {
    (void)state;
    uint64_t seed = 3;
    int32_t n_chain = 0, n_alternative = 0, n_ends_late = 0;
    static dg_ngram_retriever r;
    for (int trial = 0; trial < 60; trial++) {
        text x = {.n = 0};
        int32_t all[MAX_TEXT];
        const int32_t n = 1 + pick(&seed, MAX_TEXT);
        random_text(&seed, all, n);
        const dg_ngram_options o = {1 + pick(&seed, 3), 1 + pick(&seed, 4)};
        void *block = lay_out(&r, &o, n);
        for (int step = 0; step < 60; step++) {
            if (pick(&seed, 6) == 0) {
                x.n = pick(&seed, x.n + 1);
                r.base.ops->rewind(&r.base, x.n);
            }
            int32_t span = pick(&seed, 8);
            if (span > n - x.n) span = n - x.n;
            const dg_outcome outcome = {.n = span, .token = all + x.n, .first = x.n};
            memcpy(x.token + x.n, all + x.n, (size_t)span * sizeof *all);
            x.n += span;
            x.n_path = 1 + pick(&seed, MAX_PATH);
            for (int32_t i = 0; i < x.n_path; i++)
                x.token[x.n + i] = pick(&seed, 9) ? all[pick(&seed, n)] : 77;
            expected e;
            brute_force(&x, &o, pick(&seed, MAX_CHAIN + 1), &e);
            if (e.max_tokens == 0) e.n = 0;
            dg_mem_guard_begin();
            r.base.ops->learn(&r.base, &outcome);
            r.base.ops->extend(&r.base, x.token + x.n, x.n_path, e.max_tokens, compare, &e);
            dg_mem_guard_end();
            assert_int_equal(e.n_seen, e.n);
            n_chain += e.n > 0;
            n_alternative += e.n > 1;
            n_ends_late += e.n > 0 && common(&x, x.n - 1) >= e.match[0];
        }
        dg_mem_free(block);
    }
    assert_true(n_chain > 500 && n_alternative > 200 && n_ends_late > 100);
}

static void test_scores_are_monotone(void **state) {
    (void)state;
    for (int32_t len = 1; len < 40; len++) {
        assert_true(dg_ngram_logp(len) < 0 && dg_ngram_logp(len) <= dg_ngram_logp(len + 1));
        assert_true(dg_ngram_logp(len) > logf(0.1f)); /* else an alternative would outrank the first choice */
    }
}

/* ---- drafter ---------------------------------------------------------------------------------- */

static dg_drafter *make(dg_drafter_env *env, void **block) {
    dg_drafter *d = NULL;
    check_ok(dg_ngram.open(env, &d));
    dg_arena host = {0}, dev = {0};
    dg_ngram.layout(d, &host, &dev);
    assert_int_equal(dev.used, 0);
    host = (dg_arena){dg_mem_alloc(host.used), 0, host.used};
    dg_ngram.layout(d, &host, &dev);
    *block = host.base;
    return d;
}

static void observe(dg_drafter *d, const int32_t *token, int32_t first, int32_t n) {
    const dg_outcome o = {.n = n, .token = token + first, .first = first};
    dg_mem_guard_begin();
    check_ok(dg_ngram.observe(d, &o));
    dg_mem_guard_end();
}

static void propose(dg_drafter *d, dg_tree *t, int32_t budget) {
    dg_mem_guard_begin();
    check_ok(dg_ngram.propose(d, t, budget));
    dg_mem_guard_end();
    assert_true(t->n - 1 <= budget);
    for (int32_t i = 1; i < t->n; i++) assert_true(t->score[i] <= t->score[t->parent[i]]);
}

static int32_t child(const dg_tree *t, int32_t node, int32_t token) {
    const int32_t i = dg_tree_child(t, node, token);
    assert_true(i > 0);
    return i;
}

static void test_drafter(void **state) {
    (void)state;
    const int64_t live = dg_mem_live();
    const int32_t ids[] = {1, 2, 3, 4, 5, 1, 2, 6, 7, 9, 1};
    const int32_t n = sizeof ids / sizeof *ids;
    dg_drafter_env env = {.params = "alternatives=2", .context = n + 4, .source = 3};
    void *block;
    dg_drafter *d = make(&env, &block);
    dg_tree t;
    dg_tree_reset(&t, 1);
    propose(d, &t, 15); /* nothing is known yet */
    assert_int_equal(t.n, 1);

    observe(d, ids, 0, 4);
    observe(d, ids, 4, n - 4);
    dg_tree_reset(&t, 2); /* "1 2": lately followed by 6 7 9 1, then the root; earlier by 3 4 5 */
    propose(d, &t, 200);
    const int32_t six = child(&t, 0, 6), three = child(&t, 0, 3);
    const int32_t root_again = child(&t, child(&t, child(&t, child(&t, six, 7), 9), 1), 2);
    child(&t, root_again, 6); /* and round again */
    child(&t, child(&t, child(&t, three, 4), 5), 1);
    assert_true(t.score[six] > t.score[three]);
    assert_int_equal(t.source[three], 3);
    assert_int_equal(t.n, 201);

    dg_tree all = t;
    dg_tree_reset(&t, 2); /* a smaller budget takes the best of them */
    propose(d, &t, 7);
    assert_int_equal(t.n, 8);
    dg_tree_prune(&all, 7, NULL);
    for (int32_t i = 0; i < 8; i++) {
        assert_int_equal(t.token[i], all.token[i]);
        assert_int_equal(t.parent[i], all.parent[i]);
        assert_true(t.score[i] == all.score[i]);
    }
    dg_tree_reset(&t, 2);
    propose(d, &t, 0);
    assert_int_equal(t.n, 1);

    dg_ngram.rewind(d, 5); /* "1 2" once, followed by 3 4 5 and the root */
    dg_tree_reset(&t, 1);
    propose(d, &t, 3);
    assert_int_equal(t.n, 4);
    child(&t, child(&t, child(&t, 0, 2), 3), 4);
    dg_ngram.close(d);
    dg_mem_free(block);
    assert_int_equal(dg_mem_live(), live);
}

/* Another drafter filled the tree: the better nodes of both stay. */
static void test_merges_by_score(void **state) {
    (void)state;
    const int32_t ids[] = {1, 2, 3, 4, 5, 6, 1, 2, 3};
    dg_drafter_env env = {.params = "alternatives=1,max=3", .context = 9, .source = 3};
    void *block;
    dg_drafter *d = make(&env, &block);
    observe(d, ids, 0, 8);
    dg_tree t;
    dg_tree_reset(&t, 3); /* matches 1 2 3: 4 5 6 */
    const int32_t four = dg_tree_add(&t, 0, 4, -0.01f, 1);
    dg_tree_add(&t, four, 8, -9, 1);
    dg_tree_add(&t, 0, 20, -8, 1);
    dg_tree_add(&t, 0, 21, -0.5f, 1);
    propose(d, &t, 4);
    assert_int_equal(t.n, 5);
    assert_int_equal(t.source[child(&t, 0, 4)], 1); /* shared: whoever came first */
    assert_int_equal(t.source[child(&t, 0, 21)], 1);
    const int32_t five = child(&t, child(&t, 0, 4), 5);
    assert_int_equal(t.source[five], 3);
    child(&t, five, 6);

    dg_tree_reset(&t, 3); /* no room at all: nothing breaks */
    for (int32_t i = 1; i < DG_TREE_MAX; i++) dg_tree_add(&t, 0, 100 + i, -1, 1);
    propose(d, &t, 255);
    assert_int_equal(t.n, DG_TREE_MAX);
    dg_ngram.close(d);
    dg_mem_free(block);
}

static void test_parameters(void **state) {
    (void)state;
    const int64_t live = dg_mem_live();
    dg_drafter *d = NULL;
    dg_drafter_env env = {.context = 8};
    static const struct {
        const char *params, *message;
    } bad[] = {{"min=0", "min=0"},
               {"alternatives=9", "from 1 to 8"},
               {"max=256", "from 1 to 255"},
               {"ngram=3", "min, max"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        env.params = bad[i].params;
        check_fails(dg_ngram.open(&env, &d), DG_ERR_ARGUMENT, bad[i].message);
    }
    env.params = NULL, env.path = "some/file";
    check_fails(dg_ngram.open(&env, &d), DG_ERR_ARGUMENT, "some/file");
    env.path = NULL;
    env.context = 1 << 30;
    check_fails(dg_ngram.open(&env, &d), DG_ERR_UNSUPPORTED, "at most 268435456");
    env.context = 8;
    dg_mem_fail_nth(1, 0);
    const dg_status st = dg_ngram.open(&env, &d);
    dg_mem_fail_nth(0, 0);
    assert_int_equal(st, DG_ERR_MEMORY);
    assert_null(d);

    env.params = "min=3,alternatives=1"; /* a match of two tokens is not enough */
    env.context = 16;
    void *block;
    d = make(&env, &block);
    const int32_t ids[] = {1, 2, 3, 9, 2, 3, 1, 2};
    observe(d, ids, 0, 5);
    dg_tree t;
    dg_tree_reset(&t, 3);
    propose(d, &t, 5);
    assert_int_equal(t.n, 1);
    observe(d, ids, 5, 3);
    propose(d, &t, 5);
    assert_int_equal(t.n, 6);
    child(&t, 0, 9);
    dg_ngram.close(d);
    dg_mem_free(block);
    assert_int_equal(dg_mem_live(), live);
}

int main(void) {
    const struct CMUnitTest t[] = {
        cmocka_unit_test(test_automaton),  cmocka_unit_test(test_rewind_is_fresh),
        cmocka_unit_test(test_retriever),  cmocka_unit_test(test_scores_are_monotone),
        cmocka_unit_test(test_drafter),    cmocka_unit_test(test_merges_by_score),
        cmocka_unit_test(test_parameters),
    };
    return cmocka_run_group_tests_name("ngram", t, NULL, NULL);
}
