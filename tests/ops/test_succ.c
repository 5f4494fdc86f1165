/* succ_update and succ_expand: against a plain rule on small numbers, whatever the order of the rows. */
#include "tests/ops/ops.h"

enum { V = 23, K = 8, ROWS = 40 };

static int32_t pick(uint64_t *seed, int32_t n) {
    return (int32_t)((test_random(seed) + 1) * 0.5f * (float)n);
}

static int32_t *i32_at(dg_mat m, int32_t row, int32_t col) {
    return (int32_t *)dg_mat_row(&m, row) + col;
}

static void fill(dg_mat m, int32_t value) {
    for (int32_t r = 0; r < m.rows; r++)
        for (int32_t c = 0; c < m.cols; c++) *i32_at(m, r, c) = value;
}

static void shuffle(int32_t *order, int32_t n, uint64_t *seed) {
    for (int32_t i = 0; i < n; i++) order[i] = i;
    for (int32_t i = n - 1; i > 0; i--) {
        const int32_t j = pick(seed, i + 1), t = order[i];
        order[i] = order[j], order[j] = t;
    }
}

/* ---- update ---- */

typedef struct rows {
    int32_t token[ROWS], prio[ROWS], id[ROWS][K], n;
} rows;

/* The winner of each token by the definition; tokens out of range are told apart by no one. */
static void expect_update(const rows *r, dg_mat m) {
    for (int32_t t = 0; t < V; t++) {
        int32_t best = -1;
        for (int32_t i = 0; i < r->n; i++)
            if (r->token[i] == t && (best < 0 || r->prio[i] >= r->prio[best])) best = i;
        if (best >= 0) memcpy(i32_at(m, t, 0), r->id[best], sizeof r->id[best]);
    }
}

static void run_update(dg_backend *be, dg_mat m, const rows *r, const int32_t *order) {
    int32_t token[ROWS], prio[ROWS];
    dg_mat id = mat_new(DG_I32, r->n, K, 3);
    for (int32_t i = 0; i < r->n; i++) {
        const int32_t from = order ? order[i] : i;
        token[i] = r->token[from], prio[i] = r->prio[from];
        memcpy(i32_at(id, i, 0), r->id[from], sizeof r->id[from]);
    }
    be->ops->succ_update(be, m, token, id, prio);
    mat_free(id);
}

static rows random_rows(int32_t n, bool ties, uint64_t *seed) {
    rows r = {.n = n};
    int32_t order[ROWS];
    shuffle(order, n, seed);
    for (int32_t i = 0; i < n; i++) {
        const int32_t odd = pick(seed, 12);
        r.token[i] = odd == 0 ? -1 : odd == 1 ? V : odd == 2 ? INT32_MIN : pick(seed, V / 2);
        r.prio[i] = (ties ? pick(seed, 3) : order[i]) - 5;
        for (int32_t k = 0; k < K; k++) r.id[i][k] = 1000 * i + k;
    }
    return r;
}

static void update(dg_backend *be) {
    uint64_t seed = 11;
    int32_t n_moved = 0;
    for (int trial = 0; trial < 60; trial++) {
        dg_mat want = mat_new(DG_I32, V, K, 5), got = mat_new(DG_I32, V, K, 5);
        fill(want, -1), fill(got, -1);
        const rows r = random_rows(trial % (ROWS + 1), trial % 2, &seed);
        expect_update(&r, want);
        run_update(be, got, &r, NULL);
        check_same(got, want, "update");
        check_gaps(got);
        if (trial % 2 == 0) { /* no ties: the order of the rows is nothing */
            int32_t order[ROWS];
            shuffle(order, r.n, &seed);
            for (int32_t i = 0; i < r.n; i++) n_moved += order[i] != i;
            fill(got, -1);
            run_update(be, got, &r, order);
            check_same(got, want, "shuffled update");
        }
        mat_free(want), mat_free(got);
    }
    assert_true(n_moved > 300);
}

/* ---- expand ---- */

static void expand(dg_backend *be) {
    enum { N = 255 };
    uint64_t seed = 12;
    int32_t n_none = 0, n_found = 0;
    for (int trial = 0; trial < 100; trial++) {
        dg_mat m = mat_new(DG_I32, V, K, trial % 3);
        for (int32_t t = 0; t < V; t++)
            for (int32_t k = 0; k < K; k++) { /* some of it empty, some of it garbage */
                const int32_t odd = pick(&seed, 16);
                *i32_at(m, t, k) = odd == 0   ? -1
                                   : odd == 1 ? V
                                   : odd == 2 ? INT32_MAX
                                   : odd == 3 ? INT32_MIN
                                              : pick(&seed, V);
            }
        const int32_t n_root = 1 + (trial % 2 ? pick(&seed, 40) : 0),
                      n = n_root + pick(&seed, N - n_root + 1);
        int32_t id[N], want[N], parent[N], rank[N];
        for (int32_t i = 0; i < n; i++) {
            id[i] = want[i] = i < n_root ? pick(&seed, V + 2) - 1 : 77;
            parent[i] = i < n_root ? -1 : pick(&seed, i);
            rank[i] = i < n_root ? -1 : pick(&seed, K);
        }
        for (int32_t i = n_root; i < n; i++) {
            const int32_t from = want[parent[i]];
            want[i] = from < 0 || from >= V ? -1 : *i32_at(m, from, rank[i]);
            if (want[i] < 0 || want[i] >= V) want[i] = -1;
            n_none += want[i] == -1, n_found += want[i] >= 0;
        }
        be->ops->succ_expand(be, id, m, parent, rank, n_root, n);
        assert_memory_equal(id, want, (size_t)n * sizeof *id);
        mat_free(m);
    }
    assert_true(n_none > 1000 && n_found > 1000);
}

static void test_update(void **state) {
    (void)state;
    on_every_cpu(update);
}

static void test_expand(void **state) {
    (void)state;
    on_every_cpu(expand);
}

int main(void) {
    if (device_missing()) return 0;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_update), cmocka_unit_test(test_expand)};
    return cmocka_run_group_tests_name("successors", tests, NULL, NULL);
}
