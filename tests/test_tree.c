/* The token tree: adding, merging, scores, pruning, ancestor sets, printing. */
#include "tests/test.h"

#include <math.h>

#include "runtime/tree.h"

static int32_t pick(uint64_t *seed, int32_t n) {
    const float u = (test_random(seed) + 1) / 2;
    return (int32_t)(u * (float)n) % n;
}

/* What the header promises of any tree, and the depth that follows from the parents. */
static void check_tree(const dg_tree *t) {
    assert_in_range(t->n, 1, DG_TREE_MAX);
    assert_int_equal(t->parent[0], -1);
    assert_int_equal(t->depth[0], 0);
    assert_int_equal(t->source[0], 0);
    assert_true(t->score[0] == 0);
    for (int32_t i = 1; i < t->n; i++) {
        const int32_t parent = t->parent[i];
        assert_in_range(parent, 0, i - 1);
        assert_int_equal(t->depth[i], t->depth[parent] + 1);
        assert_true(t->score[i] <= t->score[parent]);
        for (int32_t j = 1; j < i; j++) assert_false(t->parent[j] == parent && t->token[j] == t->token[i]);
    }
}

/* Scores are coarse, so that many are equal, and often above the parent's. */
static void random_tree(dg_tree *t, uint64_t *seed, int32_t n_add) {
    dg_tree_reset(t, pick(seed, 100));
    for (int32_t i = 0; i < n_add; i++) {
        const int32_t recent = t->n < 4 || pick(seed, 2) ? pick(seed, t->n) : t->n - 1 - pick(seed, 3);
        dg_tree_add(t, recent, pick(seed, 6), -0.5f * (float)pick(seed, 8), pick(seed, 9));
    }
}

static bool is_ancestor_or_self(const dg_tree *t, int32_t a, int32_t node) {
    while (node > a) node = t->parent[node];
    return node == a;
}

static void test_add(void **state) {
    (void)state;
    dg_tree t;
    memset(&t, 0x5a, sizeof t);
    dg_tree_reset(&t, 42);
    assert_int_equal(t.n, 1);
    assert_int_equal(t.token[0], 42);
    check_tree(&t);

    assert_int_equal(dg_tree_add(&t, 0, 7, -1, 1), 1);
    assert_int_equal(dg_tree_add(&t, 0, 8, -2, 2), 2);
    assert_int_equal(dg_tree_add(&t, 1, 7, -3, 255), 3); /* the same token elsewhere is another node */
    assert_int_equal(dg_tree_add(&t, 3, 0, -3, 0), 4);
    assert_int_equal(t.n, 5);
    const int16_t parent[] = {-1, 0, 0, 1, 3};
    const int32_t token[] = {42, 7, 8, 7, 0};
    const uint8_t depth[] = {0, 1, 1, 2, 3}, source[] = {0, 1, 2, 255, 0};
    const float score[] = {0, -1, -2, -3, -3};
    assert_memory_equal(t.parent, parent, sizeof parent);
    assert_memory_equal(t.token, token, sizeof token);
    assert_memory_equal(t.depth, depth, sizeof depth);
    assert_memory_equal(t.source, source, sizeof source);
    assert_memory_equal(t.score, score, sizeof score);
    check_tree(&t);

    assert_int_equal(dg_tree_child(&t, 0, 7), 1);
    assert_int_equal(dg_tree_child(&t, 1, 7), 3);
    assert_int_equal(dg_tree_child(&t, 2, 7), -1);
    assert_int_equal(dg_tree_child(&t, 0, 42), -1); /* nobody's child */
    assert_int_equal(dg_tree_child(&t, 4, 0), -1);

    dg_tree_reset(&t, 1);
    assert_int_equal(t.n, 1);
    assert_int_equal(dg_tree_child(&t, 0, 7), -1);
}

static void test_merge(void **state) {
    (void)state;
    dg_tree t;
    dg_tree_reset(&t, 0);
    const int32_t a = dg_tree_add(&t, 0, 5, -2, 1), b = dg_tree_add(&t, a, 6, -4, 1);
    assert_int_equal(dg_tree_add(&t, 0, 5, -3, 2), a); /* a lower score changes nothing */
    assert_true(t.score[a] == -2);
    assert_int_equal(dg_tree_add(&t, 0, 5, -1, 2), a); /* a higher one counts, the source stays */
    assert_true(t.score[a] == -1);
    assert_int_equal(t.source[a], 1);
    assert_int_equal(dg_tree_add(&t, a, 6, 0, 2), b); /* up to the parent's */
    assert_true(t.score[b] == -1);
    assert_int_equal(dg_tree_add(&t, 0, 5, 3, 2), a);
    assert_true(t.score[a] == 0 && t.score[b] == -1);
    assert_int_equal(t.n, 3);
    check_tree(&t);
}

static void test_scores_are_capped(void **state) {
    (void)state;
    dg_tree t;
    dg_tree_reset(&t, 0);
    assert_true(t.score[dg_tree_add(&t, 0, 1, 0.5f, 1)] == 0);
    const int32_t a = dg_tree_add(&t, 0, 2, -1.5f, 1);
    assert_true(t.score[a] == -1.5f);
    assert_true(t.score[dg_tree_add(&t, a, 1, -1, 1)] == -1.5f);
    assert_true(t.score[dg_tree_add(&t, a, 2, INFINITY, 1)] == -1.5f);
    const int32_t none = dg_tree_add(&t, a, 3, -INFINITY, 1);
    assert_true(t.score[none] == -INFINITY);
    assert_true(t.score[dg_tree_add(&t, none, 3, -1, 1)] == -INFINITY);
    assert_false(isnan(t.score[dg_tree_add(&t, a, 4, NAN, 1)])); /* whatever it becomes, trees stay ordered */
    check_tree(&t);
}

static void test_full(void **state) {
    (void)state;
    dg_tree t;
    dg_tree_reset(&t, 9);
    for (int32_t i = 1; i < DG_TREE_MAX; i++) assert_int_equal(dg_tree_add(&t, 0, i, -1, 1), i);
    assert_int_equal(t.n, DG_TREE_MAX);
    const dg_tree before = t;
    assert_int_equal(dg_tree_add(&t, 0, DG_TREE_MAX, 0, 1), -1);
    assert_int_equal(dg_tree_add(&t, 200, 1, 0, 1), -1);
    assert_memory_equal(&t, &before, sizeof t);
    assert_int_equal(dg_tree_add(&t, 0, 255, -0.5f, 1), 255); /* what is there is still found, and raised */
    assert_true(t.score[255] == -0.5f);
    check_tree(&t);

    dg_tree_reset(&t, 9); /* as deep as it gets */
    for (int32_t i = 1; i < DG_TREE_MAX; i++) assert_int_equal(dg_tree_add(&t, i - 1, 3, -(float)i, 1), i);
    assert_int_equal(t.depth[DG_TREE_MAX - 1], DG_TREE_MAX - 1);
    assert_int_equal(dg_tree_add(&t, DG_TREE_MAX - 1, 3, -300, 1), -1);
    check_tree(&t);
}

static void test_random_trees_hold(void **state) {
    (void)state;
    uint64_t seed = 1;
    int32_t n_full = 0;
    for (int trial = 0; trial < 200; trial++) {
        dg_tree t;
        random_tree(&t, &seed, pick(&seed, 600));
        check_tree(&t);
        n_full += t.n == DG_TREE_MAX;
    }
    assert_true(n_full > 10);
}

/* ---- pruning ---------------------------------------------------------------------------------- */

static void test_prune_by_hand(void **state) {
    (void)state;
    dg_tree t;
    dg_tree_reset(&t, 50);
    dg_tree_add(&t, 0, 1, -3, 1); /* 1 */
    dg_tree_add(&t, 0, 2, -1, 2); /* 2 */
    dg_tree_add(&t, 1, 3, -3, 3); /* 3, as good as its parent */
    dg_tree_add(&t, 2, 4, -2, 4); /* 4 */
    dg_tree_add(&t, 4, 5, -3, 5); /* 5, as good as 1 and 3 */
    const dg_tree whole = t;

    int16_t map[DG_TREE_MAX];
    dg_tree_prune(&t, 3, map); /* 2, 4 and, of the equals, the first */
    const int16_t want[] = {0, 1, 2, -1, 3, -1};
    assert_memory_equal(map, want, sizeof want);
    assert_int_equal(t.n, 4);
    const int32_t token[] = {50, 1, 2, 4};
    const int16_t parent[] = {-1, 0, 0, 2};
    const uint8_t depth[] = {0, 1, 1, 2}, source[] = {0, 1, 2, 4};
    const float score[] = {0, -3, -1, -2};
    assert_memory_equal(t.token, token, sizeof token);
    assert_memory_equal(t.parent, parent, sizeof parent);
    assert_memory_equal(t.depth, depth, sizeof depth);
    assert_memory_equal(t.source, source, sizeof source);
    assert_memory_equal(t.score, score, sizeof score);
    assert_int_equal(dg_tree_add(&t, 3, 5, -3, 6), 4); /* and goes on as any tree */
    check_tree(&t);

    t = whole;
    dg_tree_prune(&t, 5, map);
    assert_int_equal(t.n, 6);
    for (int16_t i = 0; i < 6; i++) assert_int_equal(map[i], i);
    dg_tree_prune(&t, 100, NULL);
    assert_int_equal(t.n, 6);
    dg_tree_prune(&t, 0, map);
    assert_int_equal(t.n, 1);
    assert_int_equal(t.token[0], 50);
    assert_int_equal(map[0], 0);
    for (int16_t i = 1; i < 6; i++) assert_int_equal(map[i], -1);
    check_tree(&t);
    dg_tree_prune(&t, 3, NULL);
    assert_int_equal(t.n, 1);
}

/* Rank of a node: how many others have a better score, or the same and a lower index. */
static int32_t rank_of(const dg_tree *t, int32_t node) {
    int32_t rank = 0;
    for (int32_t i = 1; i < t->n; i++)
        rank += t->score[i] > t->score[node] || (t->score[i] == t->score[node] && i < node);
    return rank;
}

static void test_prune_random(void **state) {
    (void)state;
    uint64_t seed = 2;
    int32_t n_tie = 0;
    for (int trial = 0; trial < 300; trial++) {
        dg_tree t, old;
        random_tree(&t, &seed, pick(&seed, 500));
        old = t;
        const int32_t n_keep = pick(&seed, t.n + 3);
        int16_t map[DG_TREE_MAX];
        dg_tree_prune(&t, n_keep, map);
        check_tree(&t);
        assert_int_equal(t.n, n_keep < old.n - 1 ? n_keep + 1 : old.n);
        int16_t next = 0;
        for (int32_t i = 0; i < old.n; i++) {
            const bool keep = i == 0 || rank_of(&old, i) < n_keep;
            assert_int_equal(map[i], keep ? next : -1);
            if (!keep) continue;
            const int32_t parent = old.parent[i];
            assert_true(parent < 0 || map[parent] >= 0); /* ancestor-closed */
            assert_int_equal(t.parent[next], parent < 0 ? -1 : map[parent]);
            assert_int_equal(t.token[next], old.token[i]);
            assert_int_equal(t.source[next], old.source[i]);
            assert_true(t.score[next] == old.score[i]);
            next++;
        }
        for (int32_t i = 1; i < old.n; i++) n_tie += map[i] < 0 && old.score[i] == t.score[t.n - 1];
    }
    assert_true(n_tie > 300); /* else the rule for equal scores was not tested */
}

/* ---- ancestor sets ---------------------------------------------------------------------------- */

static void check_bits(const dg_tree *t) {
    static uint64_t bits[DG_TREE_MAX][DG_MASK_WORDS];
    memset(bits, 0xff, sizeof bits); /* stale rows must not shine through */
    dg_tree_bits(t, bits);
    for (int32_t i = 0; i < t->n; i++)
        for (int32_t j = 0; j < DG_TREE_MAX; j++) {
            const bool want = j <= i && is_ancestor_or_self(t, j, i);
            assert_int_equal(bits[i][j / 64] >> (j % 64) & 1, want);
        }
    for (int32_t i = t->n; i < DG_TREE_MAX; i++) /* rows past the tree belong to the caller */
        for (int32_t w = 0; w < DG_MASK_WORDS; w++) assert_true(bits[i][w] == UINT64_MAX);
}

/* What is too deep goes, wherever it is; the rest stays as it was. */
static void test_trim(void **state) {
    (void)state;
    uint64_t seed = 21;
    for (int round = 0; round < 200; round++) {
        dg_tree t, before;
        random_tree(&t, &seed, 60);
        before = t;
        dg_tree_trim(&t); /* any depth */
        assert_int_equal(t.n, before.n);
        t.deepest = pick(&seed, 6);
        dg_tree_trim(&t);
        check_tree(&t);
        int32_t n = 0, map[DG_TREE_MAX];
        for (int32_t i = 0; i < before.n; i++) {
            if (before.depth[i] > t.deepest) continue;
            map[i] = n++;
            assert_int_equal(t.token[map[i]], before.token[i]);
            assert_int_equal(t.parent[map[i]], i ? map[before.parent[i]] : -1);
            assert_true(t.score[map[i]] == before.score[i] && t.source[map[i]] == before.source[i]);
        }
        assert_int_equal(t.n, n);
    }
}

static void test_bits(void **state) {
    (void)state;
    dg_tree t;
    dg_tree_reset(&t, 0);
    check_bits(&t);
    for (int32_t i = 1; i < DG_TREE_MAX; i++)
        dg_tree_add(&t, i - 1, 1, -1, 1); /* a chain through all words */
    check_bits(&t);
    dg_tree_reset(&t, 0);
    for (int32_t i = 1; i < DG_TREE_MAX; i++) dg_tree_add(&t, 0, i, -1, 1); /* a star */
    check_bits(&t);
    uint64_t seed = 3;
    for (int trial = 0; trial < 20; trial++) {
        random_tree(&t, &seed, pick(&seed, 500));
        check_bits(&t);
        dg_tree_prune(&t, t.n / 2, NULL);
        check_bits(&t);
    }
}

/* ---- printing --------------------------------------------------------------------------------- */

static void test_print(void **state) {
    (void)state;
    dg_tree t;
    dg_tree_reset(&t, 1111);
    const int32_t a = dg_tree_add(&t, 0, 2222, -0.25f, 1);
    dg_tree_add(&t, 0, 3333, -1, 2);
    dg_tree_add(&t, a, 4444, -2, 3);
    char *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);
    assert_non_null(f);
    dg_tree_print(&t, f);
    fclose(f);

    /* One line a node, indented by depth, below its parent. */
    static const struct {
        const char *token;
        int depth;
    } want[] = {{"1111", 0}, {"2222", 1}, {"4444", 2}, {"3333", 1}};
    const char *line = text;
    size_t indent[3] = {0};
    for (size_t i = 0; i < 4; i++) {
        const char *end = strchr(line, '\n'), *at = strstr(line, want[i].token);
        assert_non_null(end);
        assert_true(at && at < end);
        const size_t spaces = strspn(line, " ");
        if (want[i].depth > 0) assert_true(spaces > indent[want[i].depth - 1]);
        if (i == 3) assert_int_equal(spaces, indent[1]);
        indent[want[i].depth] = spaces;
        line = end + 1;
    }
    assert_int_equal(*line, 0);
    free(text);
}

int main(void) {
    const struct CMUnitTest t[] = {
        cmocka_unit_test(test_add),
        cmocka_unit_test(test_merge),
        cmocka_unit_test(test_scores_are_capped),
        cmocka_unit_test(test_full),
        cmocka_unit_test(test_random_trees_hold),
        cmocka_unit_test(test_prune_by_hand),
        cmocka_unit_test(test_prune_random),
        cmocka_unit_test(test_trim),
        cmocka_unit_test(test_bits),
        cmocka_unit_test(test_print),
    };
    return cmocka_run_group_tests_name("tree", t, NULL, NULL);
}
