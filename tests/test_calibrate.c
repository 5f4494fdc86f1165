/* Thresholds of gates: recovered where they are known, and never worse than any other on the rounds at hand.
 */
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
        dg_calibrate_gates(r, N, seconds, tau);
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
    dg_calibrate_gates(r, N, seconds, tau);
    for (int g = 0; g < DG_GATES; g++) assert_true(tau[g] < 0);
    const double dear[DG_GATES + 1] = {1, 9, 81, 729}; /* and where it never pays: always at the first */
    dg_calibrate_gates(r, N, dear, tau);
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
        dg_calibrate_gates(r, n, seconds, tau);
        const double own = rate(r, n, seconds, tau);
        for (int k = 0; k < 2000; k++) {
            const float other[DG_GATES] = {uniform(&seed) - 0.1f, uniform(&seed) - 0.1f,
                                           uniform(&seed) - 0.1f};
            assert_true(rate(r, n, seconds, other) <= own * 1.01);
        }
    }
}

int main(void) {
    const struct CMUnitTest t[] = {cmocka_unit_test(test_recovers),
                                   cmocka_unit_test(test_never_stops_for_nothing),
                                   cmocka_unit_test(test_no_other_is_better)};
    return cmocka_run_group_tests_name("calibrate", t, NULL, NULL);
}
