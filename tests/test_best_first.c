/* Best-first search against the enumeration of every prefix of small lattices. */
#include "tests/test.h"

#include <math.h>

#include "dflash/best_first.h"

enum { MAX_L = 4, MAX_K = 5, MAX_PREFIX = 1000 };

typedef struct prefix {
    double score;
    int32_t n;
    int32_t rank[MAX_L];
} prefix;

static int by_score_then_ranks(const void *pa, const void *pb) {
    const prefix *a = pa, *b = pb;
    if (a->score != b->score) return a->score > b->score ? -1 : 1;
    for (int32_t d = 0; d < a->n && d < b->n; d++)
        if (a->rank[d] != b->rank[d]) return a->rank[d] - b->rank[d];
    return a->n - b->n;
}

static size_t enumerate(const dg_lattice *l, prefix *p) {
    size_t n = 0;
    for (int32_t r = 0; r < l->width && l->n_depth; r++) p[n++] = (prefix){(double)l->logp[r], 1, {r}};
    for (size_t i = 0; i < n; i++)
        for (int32_t r = 0; r < l->width && p[i].n < l->n_depth; r++) {
            p[n] = p[i];
            p[n].score += (double)l->logp[p[i].n * l->width + r];
            p[n].rank[p[n].n++] = r;
            n++;
        }
    qsort(p, n, sizeof *p, by_score_then_ranks);
    while (n && p[n - 1].score == -INFINITY) n--;
    return n;
}

static int32_t pick(uint64_t *seed, int32_t n) {
    const float u = (test_random(seed) + 1) / 2;
    return (int32_t)(u * (float)n) % n;
}

static int descending(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

typedef struct random_lattice {
    dg_lattice l;
    int32_t id[MAX_L * MAX_K];
    float logp[MAX_L * MAX_K];
} random_lattice;

/* Log-probabilities are whole multiples of `grain`, so sums are exact and ties are frequent and real. */
static void make(random_lattice *r, uint64_t *seed, float grain) {
    r->l = (dg_lattice){r->id, r->logp, 1 + pick(seed, MAX_L), 1 + pick(seed, MAX_K)};
    for (int32_t d = 0; d < r->l.n_depth; d++) {
        const int32_t k = r->l.width, shift = pick(seed, 3), step = 1 + 2 * pick(seed, 2),
                      low = pick(seed, 8);
        for (int32_t i = 0; i < k; i++) {
            r->id[d * k + i] = (i * step + shift) % 16;
            r->logp[d * k + i] = -grain * (float)(low + pick(seed, 8));
        }
        qsort(r->logp + d * k, (size_t)k, sizeof(float), descending);
    }
}

/* The node of t that a prefix names, -1 if it is not there. */
static int32_t find(const dg_tree *t, const dg_lattice *l, const prefix *p) {
    int32_t node = 0;
    for (int32_t d = 0; d < p->n && node >= 0; d++)
        node = dg_tree_child(t, node, l->id[d * l->width + p->rank[d]]);
    return node;
}

static void test_exhaustive(void **state) {
    (void)state;
    uint64_t seed = 1;
    static prefix all[MAX_PREFIX];
    dg_best_first scratch;
    dg_tree t;
    int32_t ties = 0;
    for (int trial = 0; trial < 2000; trial++) {
        random_lattice r;
        make(&r, &seed, trial % 2 ? 0.25f : 0.03125f);
        const size_t n_all = enumerate(&r.l, all);
        const int32_t budget = pick(&seed, 300);
        const int32_t n = (size_t)budget < n_all ? budget : (int32_t)n_all;
        const int32_t want = n < DG_TREE_MAX - 1 ? n : DG_TREE_MAX - 1;

        dg_tree_reset(&t, 7);
        memset(&scratch, trial, sizeof scratch);
        dg_mem_guard_begin();
        const int32_t added = dg_best_first_fill(&scratch, &t, &r.l, budget, 0, 3);
        dg_mem_guard_end();
        assert_int_equal(added, want);
        assert_int_equal(t.n, want + 1);
        for (int32_t i = 1; i < t.n; i++) {
            assert_int_equal(find(&t, &r.l, &all[i - 1]), i);
            assert_int_equal(t.depth[i], all[i - 1].n);
            assert_int_equal(t.source[i], 3);
            assert_true(t.score[i] == (float)all[i - 1].score);
            ties += i > 1 && all[i - 1].score == all[i - 2].score;
        }
    }
    assert_true(ties > 1000); /* else the order of equal scores was not tested */
}

static void test_existing_nodes(void **state) {
    (void)state;
    uint64_t seed = 2;
    static prefix all[MAX_PREFIX];
    dg_best_first scratch;
    int32_t merged = 0;
    for (int trial = 0; trial < 500; trial++) {
        random_lattice r;
        make(&r, &seed, 0.125f);
        const size_t n_all = enumerate(&r.l, all);
        dg_tree t, old;
        dg_tree_reset(&t, 7);
        for (int i = pick(&seed, 12); i > 0; i--) dg_tree_add(&t, pick(&seed, t.n), pick(&seed, 16), -100, 9);
        old = t;

        const int32_t budget = pick(&seed, 60);
        const int32_t added = dg_best_first_fill(&scratch, &t, &r.l, budget, 0, 3);
        assert_int_equal(t.n, old.n + added);
        assert_true(added == 0 || t.n <= budget + 1);
        assert_memory_equal(t.token, old.token, (size_t)old.n * sizeof *t.token);
        assert_memory_equal(t.parent, old.parent, (size_t)old.n * sizeof *t.parent);
        assert_memory_equal(t.source, old.source, (size_t)old.n * sizeof *t.source);
        /* New nodes are the best prefixes that were missing, in order; those on the way there were merged. */
        int32_t next = old.n;
        size_t i = 0;
        for (; i < n_all && next < t.n; i++) {
            if (find(&old, &r.l, &all[i]) >= 0) {
                const int32_t node = find(&old, &r.l, &all[i]);
                assert_true(t.score[node] == (float)all[i].score);
                merged++;
            } else {
                assert_int_equal(find(&t, &r.l, &all[i]), next);
                next++;
            }
        }
        assert_int_equal(next, t.n);
        if (t.n < budget + 1)
            for (; i < n_all; i++) assert_true(find(&old, &r.l, &all[i]) >= 0); /* exhausted */
    }
    assert_true(merged > 100);
}

static void test_chain_first(void **state) {
    (void)state;
    uint64_t seed = 3;
    static prefix all[MAX_PREFIX];
    dg_best_first scratch;
    int32_t kept_by_chain = 0;
    for (int trial = 0; trial < 500; trial++) {
        random_lattice r;
        make(&r, &seed, 0.125f);
        const size_t n_all = enumerate(&r.l, all);
        const int32_t budget = pick(&seed, 20), chain = pick(&seed, MAX_L + 2);
        dg_tree t;
        dg_tree_reset(&t, 7);
        dg_best_first_fill(&scratch, &t, &r.l, budget, chain, 3);

        int32_t n_chain = chain < r.l.n_depth ? chain : r.l.n_depth;
        if (n_chain > budget) n_chain = budget;
        for (int32_t d = 1; d <= n_chain; d++) {
            assert_int_equal(t.parent[d], d - 1);
            assert_int_equal(t.token[d], r.id[(d - 1) * r.l.width]);
        }
        int32_t next = n_chain + 1;
        for (size_t i = 0; i < n_all && next < t.n; i++) {
            bool on_chain = all[i].n <= n_chain;
            for (int32_t d = 0; d < all[i].n; d++) on_chain &= all[i].rank[d] == 0;
            if (on_chain) continue;
            assert_int_equal(find(&t, &r.l, &all[i]), next);
            next++;
        }
        assert_int_equal(next, t.n);
        assert_int_equal(t.n - 1, (size_t)budget < n_all ? budget : (int32_t)n_all);

        dg_tree pure;
        dg_tree_reset(&pure, 7);
        dg_best_first_fill(&scratch, &pure, &r.l, budget, 0, 3);
        const prefix tip = {0, n_chain, {0}};
        kept_by_chain += n_chain && find(&pure, &r.l, &tip) < 0;
    }
    assert_true(kept_by_chain > 20);
}

static void test_impossible_candidates(void **state) {
    (void)state;
    const int32_t id[] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    const float logp[] = {-1, -2, -INFINITY, -0.5f, -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY};
    const dg_lattice l = {id, logp, 3, 3};
    dg_best_first scratch;
    for (int32_t chain = 0; chain < 4; chain++) {
        dg_tree t;
        dg_tree_reset(&t, 0);
        assert_int_equal(dg_best_first_fill(&scratch, &t, &l, 50, chain, 1), 4); /* 1, 14, 2, 24 */
        for (int32_t i = 1; i < t.n; i++)
            assert_true(t.token[i] != 3 && t.token[i] < 5 && isfinite(t.score[i]));
    }
    const float nan_logp[] = {NAN, -1, -1};
    const dg_lattice bad = {id, nan_logp, 1, 3};
    dg_tree t;
    dg_tree_reset(&t, 0);
    assert_int_equal(dg_best_first_fill(&scratch, &t, &bad, 50, 2, 1), 0);
}

static void test_limits(void **state) {
    (void)state;
    enum { L = 300, K = 300 };
    static int32_t id[L * K];
    static float logp[L * K];
    for (int32_t i = 0; i < L * K; i++) id[i] = i % K, logp[i] = -(float)(i % K);
    dg_best_first scratch;
    dg_tree t;
    const dg_lattice deep = {id, logp, L, K}; /* log-probability 0 all along the greedy path */
    dg_tree_reset(&t, 0);
    assert_int_equal(dg_best_first_fill(&scratch, &t, &deep, 1000, 0, 1), DG_TREE_MAX - 1);
    assert_int_equal(t.depth[DG_TREE_MAX - 1], DG_TREE_MAX - 1);
    assert_int_equal(dg_best_first_fill(&scratch, &t, &deep, 1000, 1000, 1), 0); /* full */

    const dg_lattice wide = {id, logp, 1, K};
    dg_tree_reset(&t, 0);
    assert_int_equal(dg_best_first_fill(&scratch, &t, &wide, DG_TREE_MAX, 0, 1), DG_TREE_MAX - 1);
    assert_int_equal(t.token[DG_TREE_MAX - 1], DG_TREE_MAX - 2);

    const dg_lattice none = {id, logp, 0, 3};
    dg_tree_reset(&t, 0);
    assert_int_equal(dg_best_first_fill(&scratch, &t, &none, 5, 5, 1), 0);
    assert_int_equal(dg_best_first_fill(&scratch, &t, &deep, 0, 5, 1), 0);

    /* A row that repeats one token is a caller's bug, but must stay inside the scratch. */
    static int32_t same[L * K];
    const dg_lattice repeated = {same, logp, L, K};
    dg_tree_reset(&t, 0);
    assert_true(dg_best_first_fill(&scratch, &t, &repeated, 255, 0, 1) > 0);
}

int main(void) {
    const struct CMUnitTest t[] = {
        cmocka_unit_test(test_exhaustive),  cmocka_unit_test(test_existing_nodes),
        cmocka_unit_test(test_chain_first), cmocka_unit_test(test_impossible_candidates),
        cmocka_unit_test(test_limits),
    };
    return cmocka_run_group_tests_name("best_first", t, NULL, NULL);
}
