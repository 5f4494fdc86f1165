/* The walk that accepts drafted tokens: hand-made trees, and the promise that the text is plain decoding's.
 */
#include "tests/test.h"

#include "runtime/verify.h"

static int32_t pick(uint64_t *seed, int32_t n) {
    const float u = (test_random(seed) + 1) / 2;
    return (int32_t)(u * (float)n) % n;
}

static void check_walk(const dg_tree *t, const int32_t *sampled, const int32_t *path, int32_t n,
                       int32_t next) {
    dg_walk w;
    memset(&w, 0x5a, sizeof w);
    dg_verify(t, sampled, &w);
    assert_int_equal(w.n, n);
    for (int32_t i = 0; i < n; i++) assert_int_equal(w.path[i], path[i]);
    assert_int_equal(w.next, next);
}

#define PATH(...) (const int32_t[]){__VA_ARGS__}, (int32_t)(sizeof(int32_t[]){__VA_ARGS__} / sizeof(int32_t))
#define SAMPLED(...)                                                                                         \
    (const int32_t[]) {                                                                                      \
        __VA_ARGS__                                                                                          \
    }

static void test_root_alone(void **state) {
    (void)state;
    dg_tree t;
    dg_tree_reset(&t, 5);
    check_walk(&t, SAMPLED(9), PATH(0), 9);
    check_walk(&t, SAMPLED(5), PATH(0), 5); /* the root's own token again: no child carries it */
}

static void test_chain(void **state) {
    (void)state;
    dg_tree t;
    dg_tree_reset(&t, 1);
    dg_tree_add(&t, 0, 2, -1, 1);
    dg_tree_add(&t, 1, 3, -1, 1);
    dg_tree_add(&t, 2, 4, -1, 1);
    check_walk(&t, SAMPLED(2, 3, 4, 5), PATH(0, 1, 2, 3), 5); /* all, and the bonus */
    check_walk(&t, SAMPLED(2, 3, 9, 5), PATH(0, 1, 2), 9);
    check_walk(&t, SAMPLED(2, 9, 4, 5), PATH(0, 1),
               9); /* what was sampled after a wrong node does not count */
    check_walk(&t, SAMPLED(9, 3, 4, 5), PATH(0), 9);
    check_walk(&t, SAMPLED(3, 3, 4, 5), PATH(0), 3); /* a grandchild is no child */
}

/*  0:1 ── 1:2 ── 3:7 ── 6:8
 *    │      └─── 4:8
 *    └─── 2:3 ── 5:7 ── 7:8 */
static void test_branches(void **state) {
    (void)state;
    dg_tree t;
    dg_tree_reset(&t, 1);
    dg_tree_add(&t, 0, 2, -1, 1);
    dg_tree_add(&t, 0, 3, -1, 1);
    dg_tree_add(&t, 1, 7, -1, 1);
    dg_tree_add(&t, 1, 8, -1, 1);
    dg_tree_add(&t, 2, 7, -1, 1);
    dg_tree_add(&t, 3, 8, -1, 1);
    dg_tree_add(&t, 5, 8, -1, 1);
    check_walk(&t, SAMPLED(3, 7, 7, 8, 9, 8, 9, 6), PATH(0, 2, 5, 7), 6);
    check_walk(&t, SAMPLED(2, 7, 7, 8, 9, 8, 4, 6), PATH(0, 1, 3, 6), 4);
    check_walk(&t, SAMPLED(2, 8, 7, 8, 9, 8, 4, 6), PATH(0, 1, 4), 9);
    check_walk(&t, SAMPLED(3, 7, 8, 8, 9, 8, 4, 6), PATH(0, 2), 8); /* 8 is a child of 1 and of 5, not of 2 */
    check_walk(&t, SAMPLED(8, 7, 7, 8, 9, 8, 4, 6), PATH(0), 8);
}

static void test_deepest(void **state) {
    (void)state;
    dg_tree t;
    int32_t sampled[DG_TREE_MAX], path[DG_TREE_MAX];
    dg_tree_reset(&t, 0);
    for (int32_t i = 1; i < DG_TREE_MAX; i++) dg_tree_add(&t, i - 1, 3, -1, 1);
    for (int32_t i = 0; i < DG_TREE_MAX; i++) sampled[i] = 3, path[i] = i;
    check_walk(&t, sampled, path, DG_TREE_MAX, 3);
    sampled[200] = 4;
    check_walk(&t, sampled, path, 201, 4);
}

/* Siblings with one token: the walk goes along the one that gets furthest, the older among equals. */
static void test_doubles(void **state) {
    (void)state;
    dg_tree t;
    dg_tree_reset(&t, 1);
    dg_tree_append(&t, 0, 2, -1, 1);
    dg_tree_append(&t, 0, 2, -1, 2);
    dg_tree_append(&t, 1, 5, -1, 1);
    dg_tree_append(&t, 2, 6, -1, 2);
    dg_tree_append(&t, 4, 7, -1, 2);
    check_walk(&t, SAMPLED(2, 6, 6, 9, 7, 8), PATH(0, 2, 4, 5), 8);
    check_walk(&t, SAMPLED(2, 5, 5, 9, 7, 8), PATH(0, 1, 3), 9);
    check_walk(&t, SAMPLED(2, 4, 4, 9, 7, 8), PATH(0, 1), 4);
    assert_int_equal(dg_tree_add(&t, 0, 2, -0.5f, 3), 1);
    assert_int_equal(t.n, 6);
}

/* A made-up target: its next token is a function of the whole path from the root. */
static int32_t target_next(const int32_t *token, int32_t n, uint32_t salt) {
    uint32_t h = salt;
    for (int32_t i = 0; i < n; i++) h = (h ^ (uint32_t)token[i]) * 0x9E3779B1u, h ^= h >> 15;
    return (int32_t)(h % 4);
}

static int32_t path_to(const dg_tree *t, int32_t node, int32_t *token) {
    for (int32_t i = node; i >= 0; i = t->parent[i]) token[t->depth[i]] = t->token[i];
    return t->depth[node] + 1;
}

static void sample_all(const dg_tree *t, uint32_t salt, int32_t *sampled) {
    int32_t token[DG_TREE_MAX];
    for (int32_t i = 0; i < t->n; i++) {
        const int32_t n = path_to(t, i, token);
        sampled[i] = target_next(token, n, salt);
    }
}

/* Whatever the tree: what is emitted is what the target alone would say, as far as the tree follows it, and
 * not one token less. A larger tree never accepts less. */
static void test_text_is_plain_decoding(void **state) {
    (void)state;
    uint64_t seed = 1;
    int32_t longest = 0, n_longer = 0;
    for (int trial = 0; trial < 400; trial++) {
        const uint32_t salt = (uint32_t)trial;
        dg_tree t;
        dg_tree_reset(&t, pick(&seed, 4));
        int32_t before = 0;
        for (int32_t size = 1; size < DG_TREE_MAX; size += 1 + pick(&seed, 40)) {
            while (t.n < size) dg_tree_add(&t, pick(&seed, t.n), pick(&seed, 4), -1, 1);
            int32_t sampled[DG_TREE_MAX], plain[DG_TREE_MAX + 1];
            sample_all(&t, salt, sampled);
            dg_walk w;
            dg_verify(&t, sampled, &w);
            plain[0] = t.token[0];
            int32_t node = 0;
            for (int32_t i = 0; i < w.n; i++) {
                assert_int_equal(w.path[i], node);
                assert_true(w.path[i] >= i);
                assert_int_equal(t.token[node], plain[i]);
                plain[i + 1] = target_next(plain, i + 1, salt);
                node = dg_tree_child(&t, node, plain[i + 1]);
            }
            assert_int_equal(node, -1);
            assert_int_equal(w.next, plain[w.n]);
            assert_true(w.n >= before);
            n_longer += w.n > before && before > 0;
            before = w.n;
        }
        if (before > longest) longest = before;
    }
    assert_true(longest >= 6 && n_longer > 100);
}

int main(void) {
    const struct CMUnitTest t[] = {
        cmocka_unit_test(test_root_alone),
        cmocka_unit_test(test_chain),
        cmocka_unit_test(test_branches),
        cmocka_unit_test(test_deepest),
        cmocka_unit_test(test_doubles),
        cmocka_unit_test(test_text_is_plain_decoding),
    };
    return cmocka_run_group_tests_name("verify", t, NULL, NULL);
}
