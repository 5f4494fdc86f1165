/* Thresholds of gates: recovered where they are known, and never worse than any other on the rounds at hand. And the cost
 * curve of a machine that stalls. */
#include "tests/test.h"

#include <math.h>

#include "graft/calibrate.h"

enum { N = 600 };

static float uniform(uint64_t *seed) {
    return 0.5f * (1 + test_random(seed));
}

static double rate(const dg_gate_round *r, size_t n, const double *seconds, const float *tau) {
    double tokens = 0, time = 0;
    for (size_t i = 0; i < n; i++) {
        int g = 0;
        while (g < DG_GATES && r[i].confidence[g] > tau[g]) g++;
        tokens += r[i].gained[g], time += seconds[g];
    }
    return tokens / time;
}

/* A round below a gate's true threshold gains nothing by going on; above it, much. */
static void make_rounds(dg_gate_round *r, const float *truth, uint64_t *seed) {
    for (size_t i = 0; i < N; i++) {
        int32_t gained = 1;
        bool ends = false;
        for (int g = 0; g < DG_GATES; g++) {
            r[i].confidence[g] = uniform(seed);
            r[i].gained[g] = gained;
            ends = ends || r[i].confidence[g] <= truth[g];
            if (!ends) gained += 3;
        }
        r[i].gained[DG_GATES] = gained;
    }
}

static void test_recovers(void **state) {
    (void)state;
    static const float truth[][DG_GATES] = {{0.3f, 0.2f, 0.1f}, {0.1f, 0.4f, 0.6f}, {0.5f, 0.05f, 0.3f}};
    const double seconds[DG_GATES + 1] = {1, 1.4, 2, 2.6};
    static dg_gate_round r[N];
    uint64_t seed = 1;
    for (size_t t = 0; t < sizeof truth / sizeof *truth; t++) {
        make_rounds(r, truth[t], &seed);
        float tau[DG_GATES] = {9, 9, 9};
        check_ok(dg_calibrate_gates(r, N, seconds, tau));
        for (int g = 0; g < DG_GATES; g++)
            if (fabsf(tau[g] - truth[t][g]) > 0.06f)
                fail_msg("case %d gate %d: %.3f, expected %.3f", (int)t, g, (double)tau[g],
                         (double)truth[t][g]);
    }
}

static void test_never_stops_for_nothing(void **state) {
    (void)state;
    static dg_gate_round r[N];
    uint64_t seed = 2;
    for (size_t i = 0; i < N; i++) /* each stage gains as much as it costs and more */
        for (int g = 0; g <= DG_GATES; g++) {
            if (g < DG_GATES) r[i].confidence[g] = uniform(&seed);
            r[i].gained[g] = 1 + 3 * g;
        }
    const double seconds[DG_GATES + 1] = {1, 1.2, 1.4, 1.6};
    float tau[DG_GATES];
    check_ok(dg_calibrate_gates(r, N, seconds, tau));
    for (int g = 0; g < DG_GATES; g++) assert_true(tau[g] < 0);
    const double dear[DG_GATES + 1] = {1, 9, 81, 729}; /* and where it never pays: always at the first */
    check_ok(dg_calibrate_gates(r, N, dear, tau));
    for (size_t i = 0; i < N; i++) assert_true(r[i].confidence[0] <= tau[0]);
}

static void test_no_other_is_better(void **state) {
    (void)state;
    static dg_gate_round r[N];
    uint64_t seed = 3;
    for (int trial = 0; trial < 3; trial++) {
        const size_t n = trial == 0 ? 1 : trial == 1 ? 40 : N;
        for (size_t i = 0; i < n; i++) {
            float c = 1;
            for (int g = 0; g < DG_GATES; g++) r[i].confidence[g] = c *= sqrtf(uniform(&seed));
            for (int g = 0; g <= DG_GATES; g++) /* more stages, more tokens; the more the surer */
                r[i].gained[g] =
                    (g ? r[i].gained[g - 1] : 1) + (g && uniform(&seed) < r[i].confidence[g - 1] ? 2 : 0);
        }
        const double seconds[DG_GATES + 1] = {1, 1.3, 1.9, 2.4};
        float tau[DG_GATES];
        check_ok(dg_calibrate_gates(r, n, seconds, tau));
        const double own = rate(r, n, seconds, tau);
        for (int k = 0; k < 2000; k++) {
            const float other[DG_GATES] = {uniform(&seed) - 0.1f, uniform(&seed) - 0.1f,
                                           uniform(&seed) - 0.1f};
            assert_true(rate(r, n, seconds, other) <= own * 1.01);
        }
    }
}

/* By what is lost: of the rounds that needed the rest, no more than allowed stop; a higher threshold would stop more. */
static void test_by_loss(void **state) {
    (void)state;
    static const double allowed[DG_GATES] = {0.05, 0.10, 0.20};
    static dg_gate_round r[N];
    uint64_t seed = 4;
    for (int trial = 0; trial < 20; trial++) {
        float tau[DG_GATES];
        for (size_t i = 0; i < N; i++)
            for (int g = 0; g < DG_GATES; g++) {
                r[i].confidence[g] = trial % 2 ? floorf(uniform(&seed) * 20) / 20 : uniform(&seed); /* ties */
                r[i].needed[g] = uniform(&seed) < r[i].confidence[g];
            }
        check_ok(dg_calibrate_gates_by_loss(r, N, tau));
        for (int g = 0; g < DG_GATES; g++) {
            int needed = 0, lost = 0, next = 0;
            float above = 2;
            for (size_t i = 0; i < N; i++) {
                int before = 0;
                while (before < g && r[i].confidence[before] > tau[before]) before++;
                if (before < g || !r[i].needed[g]) continue;
                needed++, lost += r[i].confidence[g] <= tau[g];
                if (r[i].confidence[g] > tau[g]) above = fminf(above, r[i].confidence[g]);
            }
            for (size_t i = 0; i < N; i++) {
                int before = 0;
                while (before < g && r[i].confidence[before] > tau[before]) before++;
                next += before >= g && r[i].needed[g] && r[i].confidence[g] <= above;
            }
            assert_true(lost <= allowed[g] * needed);
            assert_true(next > allowed[g] * needed);
        }
    }
    for (size_t i = 0; i < N; i++) memset(r[i].needed, 0, sizeof r[i].needed); /* nothing is ever lost: always stop */
    float tau[DG_GATES];
    check_ok(dg_calibrate_gates_by_loss(r, N, tau));
    assert_true(tau[0] == 1);
}

/* Rounds of the same kind again give thresholds within the ranges, and the ranges are no wider than they have to be. */
static void test_ranges(void **state) {
    (void)state;
    static const float truth[DG_GATES] = {0.3f, 0.2f, 0.1f};
    const double seconds[DG_GATES + 1] = {1, 1.4, 2, 2.6};
    static dg_gate_round r[N];
    uint64_t seed = 6;
    int inside = 0;
    dg_threshold t[DG_GATES];
    float again[DG_GATES];
    make_rounds(r, truth, &seed);
    for (size_t i = 0; i < N; i++) r[i].prompt = (int32_t)(i / 40);
    check_ok(dg_calibrate_thresholds(r, N, seconds, false, t));
    make_rounds(r, truth, &seed);
    check_ok(dg_calibrate_gates(r, N, seconds, again));
    for (int g = 0; g < DG_GATES; g++) {
        assert_true(t[g].low <= t[g].at && t[g].at <= t[g].high && t[g].high - t[g].low < 0.2f);
        inside += again[g] >= t[g].low - 0.02f && again[g] <= t[g].high + 0.02f;
    }
    assert_true(inside >= 2);
}

static void test_tail(void **state) {
    (void)state;
    static dg_tail_round r[200];
    const float value[DG_TAIL_VALUES] = {0.4f, 0, 0.1f, 0.2f, 0.3f, 0.5f, 0.6f, 0.7f};
    uint64_t seed = 9;
    for (int i = 0; i < 200; i++) {
        r[i].prompt = i / 20;
        for (int v = 0; v < DG_TAIL_VALUES; v++) r[i].gained[v] = 1 + (uniform(&seed) < (v == 3 ? 0.9f : 0.4f));
    }
    dg_threshold t;
    check_ok(dg_calibrate_tail(r, 200, value, &t));
    assert_true(t.at == 0.2f && t.low == 0.2f && t.high == 0.2f);
    for (int i = 0; i < 200; i++)
        for (int v = 0; v < DG_TAIL_VALUES; v++) r[i].gained[v] = 2;
    check_ok(dg_calibrate_tail(r, 200, value, &t)); /* all alike: the first */
    assert_true(t.at == 0.4f);
}

/* A machine whose passes take a fixed part and one for each row, and which stalls. */
typedef struct machine {
    int32_t n_look, stall_from, stall_to; /* looks that take 16 plain steps more */
    int32_t cursed;                       /* rows that always do */
} machine;

static double true_cost(int32_t rows) { return 1 + 0.14 * (rows - 1); }

static dg_status look(void *ud, int32_t rows, double *seconds) {
    machine *m = ud;
    const int32_t at = m->n_look++;
    *seconds = true_cost(rows) + (rows == m->cursed || (at >= m->stall_from && at < m->stall_to) ? 16 : 0);
    return DG_OK;
}

static void test_rows(void **state) {
    (void)state;
    double seconds[DG_CAL_ROWS];
    for (int32_t from = 0; from < DG_CAL_SWEEPS * DG_CAL_ROWS; from++) { /* a stall longer than a sweep, anywhere */
        machine m = {.stall_from = from, .stall_to = from + DG_CAL_ROWS + 5};
        check_ok(dg_calibrate_rows(look, &m, 64, seconds));
        for (int32_t i = 0; i < DG_CAL_ROWS; i++) assert_true(seconds[i] == true_cost(dg_budget_rows(i)));
    }
    /* all sweeps but one look stalled: what is left in doubt is looked at again */
    machine m = {.stall_to = DG_CAL_SWEEPS * DG_CAL_ROWS - 1};
    check_ok(dg_calibrate_rows(look, &m, 64, seconds));
    for (int32_t i = 0; i < DG_CAL_ROWS; i++) assert_true(seconds[i] == true_cost(dg_budget_rows(i)));
    assert_in_range(m.n_look, DG_CAL_SWEEPS * DG_CAL_ROWS + 19, DG_CAL_SWEEPS * DG_CAL_ROWS + 2 * DG_CAL_ROWS);
    /* one size never undisturbed: no dearer than the next */
    m = (machine){.cursed = 5};
    check_ok(dg_calibrate_rows(look, &m, 64, seconds));
    for (int32_t i = 0; i < DG_CAL_ROWS; i++)
        assert_true(seconds[i] == true_cost(dg_budget_rows(i) == 5 ? 6 : dg_budget_rows(i)));
    /* nothing is known of what there is no room for, and nothing invented */
    m = (machine){0};
    check_ok(dg_calibrate_rows(look, &m, 19, seconds));
    for (int32_t i = 0; i < DG_CAL_ROWS; i++)
        assert_true(seconds[i] == (dg_budget_rows(i) <= 19 ? true_cost(dg_budget_rows(i)) : 0));
    assert_int_equal(m.n_look, DG_CAL_SWEEPS * 12);
}

int main(void) {
    const struct CMUnitTest t[] = {cmocka_unit_test(test_recovers),
                                   cmocka_unit_test(test_never_stops_for_nothing),
                                   cmocka_unit_test(test_no_other_is_better),
                                   cmocka_unit_test(test_by_loss),
                                   cmocka_unit_test(test_ranges),
                                   cmocka_unit_test(test_tail),
                                   cmocka_unit_test(test_rows)};
    return cmocka_run_group_tests_name("calibrate", t, NULL, NULL);
}
