/* Graft-TAIL: where it cuts, what it grafts, and what holds for any tree: the rows stay, nothing that was
 * kept is lost, and it accepts no less than the cut tree alone. */
#include "tests/test.h"

#include <math.h>

#include "runtime/verify.h"
#include "tests/drafter_rig.h"

extern const dg_drafter_ops dg_graft;

enum { V = 64 };

static int32_t pick(uint64_t *seed, int32_t n) {
    return (int32_t)((test_random(seed) + 1) * 0.5f * (float)n);
}

/* A chain of these tokens, each with its own probability. */
static void chain(dg_tree *t, int32_t root, const int32_t *token, const float *p, int32_t n) {
    dg_tree_reset(t, root);
    float score = 0;
    for (int32_t i = 0; i < n; i++) {
        score += logf(p[i]);
        dg_tree_add(t, i, token[i], score, 1);
    }
}

/* The path of these tokens from the root; its last node. */
static int32_t follow(const dg_tree *t, const int32_t *token, int32_t n) {
    int32_t node = 0;
    for (int32_t i = 0; i < n; i++) {
        node = dg_tree_child(t, node, token[i]);
        assert_true(node > 0);
    }
    return node;
}

static const int32_t text[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 20, 21, 22, 1, 2};

/* Behind "1 2 3 4": cut where the drafter falls under 0.4, continued from the text. */
static void test_chain(void **state) {
    (void)state;
    const int32_t draft[] = {4, 40, 41, 42, 43};
    const float p[] = {0.9f, 0.3f, 0.9f, 0.9f, 0.9f};
    rig r;
    rig_open(&r, &dg_graft, V, "tau=0.4");
    rig_read(&r, text, 14, 3);
    dg_tree t;
    chain(&t, 3, draft, p, 5);
    rig_propose(&r, &t, 5);
    assert_int_equal(t.n, 6);
    const int32_t want[] = {4, 5, 6, 7, 8};
    for (int32_t i = 0; i < 5; i++) {
        assert_int_equal(t.token[i + 1], want[i]);
        assert_int_equal(t.parent[i + 1], i);
        assert_int_equal(t.source[i + 1], i ? 3 : 1);
    }
    chain(&t, 3, draft, p, 5); /* more room than the draft took: it is used */
    rig_propose(&r, &t, 9);
    assert_int_equal(t.n, 10);
    chain(&t, 3, (int32_t[]){4, 5}, (float[]){0.9f, 0.9f}, 2); /* nothing to cut: the end is continued */
    rig_propose(&r, &t, 4);
    assert_int_equal(t.token[4], 7);
    rig_close(&r);

    rig_open(&r, &dg_graft, V, "tau=0.4,keep=3"); /* three depths stay whatever they look like */
    rig_read(&r, text, 14, 3);
    chain(&t, 3, draft, p, 5);
    rig_propose(&r, &t, 5);
    for (int32_t i = 0; i < 5; i++) assert_int_equal(t.token[i + 1], draft[i]);
    rig_close(&r);
}

/* Without a match M's first choices go on; they stop before they run in a circle, and then the draft's own
 * tail comes back. */
static void test_successors(void **state) {
    (void)state;
    const int32_t draft[] = {4, 40, 41, 42, 43, 44, 45, 46};
    const float p[] = {0.9f, 0.3f, 0.9f, 0.9f, 0.9f, 0.9f, 0.9f, 0.9f};
    const int32_t circle[] = {4, 5, 6, 4, 5, 6, 50};
    rig r;
    rig_open(&r, &dg_graft, V, "tau=0.4,text=0");
    rig_read(&r, circle, 7, 51);
    dg_tree t;
    chain(&t, 3, draft, p, 8);
    rig_propose(&r, &t, 8);
    assert_int_equal(t.n, 9);
    follow(&t, (int32_t[]){4, 5, 6, 50, 51}, 5);
    follow(&t, draft, 4); /* the three rows that are left */
    rig_close(&r);
}

static void test_circle(void **state) {
    (void)state;
    const int32_t draft[] = {4, 40, 41, 42, 43, 44, 45, 46};
    const float p[] = {0.9f, 0.3f, 0.9f, 0.9f, 0.9f, 0.9f, 0.9f, 0.9f};
    const int32_t circle[] = {4, 5, 6, 4, 5, 6};
    rig r;
    rig_open(&r, &dg_graft, V, "tau=0.4,text=0");
    rig_read(&r, circle, 6, 4);
    dg_tree t;
    chain(&t, 3, draft, p, 8);
    rig_propose(&r, &t, 8);
    assert_int_equal(t.n, 9);
    const int32_t end = follow(&t, (int32_t[]){4, 5, 6, 4}, 4);
    assert_int_equal(dg_tree_child(&t, end, 5), -1);
    follow(&t, draft, 5); /* the four rows that are left */
    rig_close(&r);
}

/* Nothing in memory: the tree is as it was. */
static void test_empty_memory(void **state) {
    (void)state;
    const int32_t draft[] = {4, 40, 41, 42, 43};
    const float p[] = {0.2f, 0.3f, 0.9f, 0.1f, 0.9f};
    static const char *const params[] = {"tau=0.4", "tree=1", "tau=1,tree=1", NULL};
    for (size_t i = 0; i < sizeof params / sizeof *params; i++) {
        rig r;
        rig_open(&r, &dg_graft, V, params[i]);
        dg_tree t;
        chain(&t, 3, draft, p, 5);
        const dg_tree before = t;
        rig_propose(&r, &t, 5);
        assert_int_equal(t.n, 6);
        assert_memory_equal(t.token, before.token, 6 * sizeof *t.token);
        dg_tree_reset(&t, 3);
        rig_propose(&r, &t, 5);
        assert_int_equal(t.n, 1);
        rig_close(&r);
    }
}

/* Without a threshold the cut comes where the text promises more than the draft: not at its least sure token.
 */
static void test_best_cut(void **state) {
    (void)state;
    const int32_t draft[] = {4, 5, 40, 41, 42, 43};
    const float p[] = {0.5f, 0.7f, 0.5f, 0.1f, 0.9f, 0.9f};
    rig r;
    rig_open(&r, &dg_graft, V, NULL);
    rig_read(&r, text, 14, 3);
    dg_tree t;
    chain(&t, 3, draft, p, 6);
    rig_propose(&r, &t, 6);
    follow(&t, (int32_t[]){4, 5, 6, 7, 8, 9}, 6);

    chain(&t, 30, draft, p, 6); /* no match at the root, but one behind "4 5": there */
    rig_propose(&r, &t, 6);
    follow(&t, (int32_t[]){4, 5, 6, 7, 8, 9}, 6);
    const float sure[] = {0.99f, 0.99f, 0.99f, 0.99f, 0.99f, 0.99f};
    chain(&t, 3, draft, sure, 6); /* a drafter that is sure keeps its chain */
    rig_propose(&r, &t, 6);
    follow(&t, draft, 6);
    rig_close(&r);
}

/* The calibrated threshold: a probability, 0 (where most is promised) or -1 (never). One that is given goes before it. */
static void test_calibrated(void **state) {
    (void)state;
    static const int32_t draft[] = {4, 5, 40, 41, 42, 43}, memory[] = {4, 5, 6, 7, 8, 9};
    static const float p[] = {0.5f, 0.7f, 0.5f, 0.1f, 0.9f, 0.9f};
    static const struct {
        float at;
        const char *params;
        bool cuts;
    } test[] = {{0.6f, "gated=1", true}, {0.05f, "gated=1", false},     {0, "gated=1", true},
                {-1, "gated=1", false},  {-1, "gated=1,tau=0", true}, {-1, NULL, true}};
    for (size_t i = 0; i < sizeof test / sizeof *test; i++) {
        static dg_calibration c;
        c = (dg_calibration){.has_tail = true, .tail = {test[i].at, test[i].at, test[i].at}};
        rig r;
        rig_open_calibrated(&r, &dg_graft, V, test[i].params, &c);
        rig_read(&r, text, 14, 3);
        dg_tree t;
        chain(&t, 3, draft, p, 6);
        r.drafter->cut = -1;
        rig_propose(&r, &t, 6);
        follow(&t, test[i].cuts ? memory : draft, 6);
        assert_int_equal(r.drafter->cut >= 0, test[i].cuts);
        rig_close(&r);
    }
}

/* A tree at the cut: the match, M's choices and the drafter's own next ones, best first. */
static void test_tree(void **state) {
    (void)state;
    const int32_t draft[] = {4, 40, 41, 42, 43, 44, 45, 46};
    const float p[] = {0.9f, 0.3f, 0.9f, 0.9f, 0.9f, 0.9f, 0.9f, 0.9f};
    const int32_t id[] = {4, 60, 61, 40, 62, 63};
    const float logp[] = {-0.1f, -3, -4, logf(0.3f), logf(0.25f), logf(0.22f)};
    const int32_t more[] = {30, 4, 7, 31}; /* M: 4 is followed by 7, before by 5 */
    rig r;
    rig_open(&r, &dg_graft, V, "tau=0.4,tree=1");
    rig_read(&r, text, 14, 30);
    rig_read(&r, more, 4, 3);
    r.offer = (dg_offer){.lattice = {id, logp, 2, 3}, .source = 1};
    dg_tree t;
    chain(&t, 3, draft, p, 8);
    rig_propose(&r, &t, 8);
    assert_int_equal(t.n, 9);
    const int32_t four = follow(&t, draft, 1);
    assert_int_equal(t.source[dg_tree_child(&t, four, 62)], 1); /* the drafter's second choice */
    assert_true(dg_tree_child(&t, four, 63) > 0);
    assert_int_equal(t.source[dg_tree_child(&t, four, 5)], 3); /* the match "3 4" */
    follow(&t, (int32_t[]){4, 5, 6}, 3);
    assert_int_equal(t.source[dg_tree_child(&t, four, 7)], 3); /* M */
    rig_close(&r);
}

/* Any tree, any text: the kept part is there whole, rows are not given away, and acceptance never falls below
 * the cut tree's, whatever the target says. */
static void test_never_below_the_cut(void **state) {
    (void)state;
    static const char *const params[] = {"tau=0.5", "tau=0.3,tree=1", NULL,
                                         "tree=1",  "tau=0.6,text=0", "tau=0.6,m=0,tree=1"};
    uint64_t seed = 21;
    int32_t n_better = 0, n_cut = 0;
    for (int trial = 0; trial < 240; trial++) {
        rig r;
        rig_open(&r, &dg_graft, V, params[trial % 6]);
        int32_t words[400];
        const int32_t n = 1 + pick(&seed, 399);
        for (int32_t i = 0; i < n; i++) words[i] = i > 8 && pick(&seed, 4) ? words[i - 7] : pick(&seed, 12);
        rig_read(&r, words, n, pick(&seed, 12));
        for (int again = 0; again < 3; again++) {
            dg_tree t;
            dg_tree_reset(&t, pick(&seed, 12));
            const int32_t budget = 1 + pick(&seed, 40), size = 1 + pick(&seed, budget + 1);
            const bool line = pick(&seed, 2);
            while (t.n < size) {
                const int32_t parent = line ? t.n - 1 : pick(&seed, t.n);
                dg_tree_add(&t, parent, pick(&seed, 12),
                            t.score[parent] + logf(0.05f + 0.47f * (1 + test_random(&seed))), 1);
            }
            const dg_tree before = t;
            rig_propose(&r, &t, budget);
            assert_true(t.n >= (before.n < budget + 1 ? before.n : budget + 1));
            dg_tree cut = t; /* what is still the drafter's */
            int32_t sampled[DG_TREE_MAX];
            for (int32_t i = 0; i < t.n; i++) { /* a target that likes its own children, and others */
                const int32_t c = 1 + pick(&seed, t.n);
                sampled[i] = c < t.n ? t.token[c] : 12;
            }
            cut.n = 1;
            int32_t own[DG_TREE_MAX], of[DG_TREE_MAX] = {0};
            own[0] = sampled[0];
            for (int32_t i = 1; i < t.n; i++) {
                of[i] = -1;
                if (t.source[i] != 1 || of[t.parent[i]] < 0) continue;
                of[i] = dg_tree_add(&cut, of[t.parent[i]], t.token[i], t.score[i], 1);
                own[of[i]] = sampled[i];
            }
            n_cut += cut.n < before.n;
            dg_walk more, less;
            dg_verify(&t, sampled, &more);
            dg_verify(&cut, own, &less);
            assert_true(more.n >= less.n);
            n_better += more.n > less.n;
        }
        r.drafter->ops->rewind(r.drafter, n / 2);
        rig_close(&r);
    }
    assert_true(n_better > 20 && n_cut > 100);
}

static void test_parameters(void **state) {
    (void)state;
    const int64_t live = dg_mem_live();
    dg_drafter *d = NULL;
    dg_model model = {0};
    model.net.config.vocab_size = V;
    dg_drafter_env env = {.model = &model, .context = 64, .source = 1};
    static const struct {
        const char *params, *message;
    } bad[] = {{"tau=1.5", "from 0 to 1"},
               {"keep=-1", "keep"},
               {"match=0", "match"},
               {"tree=2", "tree"},
               {"x=1", "tau, gated, keep, tree"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        env.params = bad[i].params;
        check_fails(dg_graft.open(&env, &d), DG_ERR_ARGUMENT, bad[i].message);
    }
    env.params = NULL, env.path = "no/such/file";
    check_fails(dg_graft.open(&env, &d), DG_ERR_IO, "no/such/file");
    env.params = "m=0";
    check_fails(dg_graft.open(&env, &d), DG_ERR_ARGUMENT, "m=0 switches off");
    env.path = NULL;
    dg_mem_fail_nth(1, 0);
    const dg_status st = dg_graft.open(&env, &d);
    dg_mem_fail_nth(0, 0);
    assert_int_equal(st, DG_ERR_MEMORY);
    assert_null(d);
    assert_int_equal(dg_mem_live(), live);
}

/* What M learns goes with the text where it is asked to. */
static void test_request_scope(void **state) {
    (void)state;
    for (int request = 0; request < 2; request++) {
        rig r;
        rig_open(&r, &dg_graft, V, request ? "tau=1,text=0,request=1" : "tau=1,text=0");
        rig_read(&r, text, 14, 3);
        r.drafter->ops->rewind(r.drafter, 0);
        dg_tree t;
        dg_tree_reset(&t, 7);
        rig_propose(&r, &t, 3);
        assert_int_equal(t.n, request ? 1 : 4);
        rig_close(&r);
    }
}

int main(void) {
    const struct CMUnitTest t[] = {
        cmocka_unit_test(test_chain),
        cmocka_unit_test(test_successors),
        cmocka_unit_test(test_circle),
        cmocka_unit_test(test_empty_memory),
        cmocka_unit_test(test_best_cut),
                                   cmocka_unit_test(test_calibrated),
        cmocka_unit_test(test_tree),
        cmocka_unit_test(test_never_below_the_cut),
        cmocka_unit_test(test_parameters),
        cmocka_unit_test(test_request_scope),
    };
    return cmocka_run_group_tests_name("graft", t, NULL, NULL);
}
