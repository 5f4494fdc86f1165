/* Templates: the sets that the papers publish, that every prefix is closed, and that fitting finds the best.
 */
#include "tests/test.h"

#include <math.h>

#include "graft/template.h"

static int32_t depth_of(const dg_template *t, int32_t node) {
    int32_t d = 0;
    for (; node; node = t->parent[node - 1]) d++;
    return d;
}

/* Parents first, no node twice, ranks below 8: so each prefix is a template too. */
static void check_closed(const dg_template *t) {
    for (int32_t i = 0; i < t->n; i++) {
        assert_in_range(t->parent[i], 0, i);
        assert_in_range(t->rank[i], 0, 7);
        for (int32_t j = 0; j < i; j++)
            assert_false(t->parent[i] == t->parent[j] && t->rank[i] == t->rank[j]);
    }
}

static void check_widths(const dg_template *t, int32_t n, const int32_t *want, int32_t n_level) {
    int32_t width[16] = {0};
    for (int32_t i = 0; i < n; i++) width[depth_of(t, i + 1)]++;
    for (int32_t l = 1; l < 16; l++) assert_int_equal(width[l], l <= n_level ? want[l - 1] : 0);
}

static void test_published(void **state) {
    (void)state;
    dg_template t;
    dg_template_read(DG_TEMPLATE_GRAFT, &t);
    assert_int_equal(t.n, 52);
    check_closed(&t);
    check_widths(&t, DG_TEMPLATE_LARGE, (int32_t[]){8, 10, 8, 6, 5, 4, 4, 4, 3}, 9);
    check_widths(&t, DG_TEMPLATE_MIDDLE, (int32_t[]){7, 7, 5, 4, 3, 3, 3, 2, 2}, 9);
    check_widths(&t, DG_TEMPLATE_SMALL, (int32_t[]){5, 4, 3, 2, 2, 1, 1, 1, 1}, 9);
    dg_template_read(DG_TEMPLATE_RECYCLING, &t);
    assert_int_equal(t.n, DG_TEMPLATE_RECYCLING_NODES);
    check_closed(&t);
    check_widths(&t, 80, (int32_t[]){8, 21, 25, 15, 8, 3}, 6);
}

static void test_read(void **state) {
    (void)state;
    dg_template t;
    dg_template_read("3 30 302 0", &t);
    assert_int_equal(t.n, 4);
    const int32_t parent[] = {0, 1, 2, 0}, rank[] = {3, 0, 2, 0};
    assert_memory_equal(t.parent, parent, sizeof parent);
    assert_memory_equal(t.rank, rank, sizeof rank);
    float score[4];
    dg_template_scores(&t, score);
    const float p0 = dg_template_prior[0], p2 = dg_template_prior[2], p3 = dg_template_prior[3];
    const float want[] = {logf(p3), logf(p3 * p0), logf(p3 * p0 * p2), logf(p0)};
    check_near(score, want, 4, 1e-6, "scores");
}

/* All products of up to 6 ranks, sorted, against the fit: same sum, closed, and none outside is larger. */
static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

static void test_fit(void **state) {
    (void)state;
    enum { K = 4, DEPTH = 7 };
    uint64_t seed = 5;
    static double all[30000];
    for (int trial = 0; trial < 20; trial++) {
        float p[K];
        for (int k = 0; k < K; k++) p[k] = (k ? p[k - 1] : 0.6f) * (0.75f + 0.25f * test_random(&seed));
        size_t n_all = 0, from = 0;
        for (int k = 0; k < K; k++) all[n_all++] = (double)p[k];
        for (int d = 1; d < DEPTH; d++) {
            const size_t to = n_all;
            for (size_t i = from; i < to; i++)
                for (int k = 0; k < K; k++) all[n_all++] = all[i] * (double)p[k];
            from = to;
        }
        qsort(all, n_all, sizeof *all, by_size);
        const int32_t n = 1 + trial * 4;
        dg_template t;
        dg_template_fit(p, K, n, &t);
        assert_int_equal(t.n, n);
        check_closed(&t);
        double product[DG_TREE_MAX] = {1}, own[DG_TREE_MAX];
        for (int32_t i = 0; i < n; i++) {
            assert_true(depth_of(&t, i + 1) < DEPTH);
            product[i + 1] = product[t.parent[i]] * (double)p[t.rank[i]];
            own[i] = product[i + 1];
        }
        qsort(own, (size_t)n, sizeof *own, by_size);
        for (int32_t i = 0; i < n; i++) assert_true(fabs(own[i] - all[i]) < 1e-12 * all[i] + 1e-15);
    }
    dg_template t;
    const float one[1] = {0.5f};
    dg_template_fit(one, 1, 9, &t); /* a chain */
    for (int32_t i = 0; i < 9; i++) assert_int_equal(t.parent[i], i);
}

int main(void) {
    const struct CMUnitTest t[] = {cmocka_unit_test(test_published), cmocka_unit_test(test_read),
                                   cmocka_unit_test(test_fit)};
    return cmocka_run_group_tests_name("template", t, NULL, NULL);
}
