/* The ranking of candidates: probabilities, what agreement is worth, and that learning climbs the likelihood.
 */
#include "tests/test.h"

#include <math.h>

#include "graft/rank.h"

static int32_t pick(uint64_t *seed, int32_t n) {
    return (int32_t)((test_random(seed) + 1) * 0.5f * (float)n);
}

static int32_t random_candidates(dg_candidate *c, dg_place *at, uint64_t *seed) {
    const int32_t n = 1 + pick(seed, 20);
    *at = (dg_place){1 + pick(seed, 5), pick(seed, 4) - 1};
    for (int32_t i = 0; i < n; i++) {
        c[i] = (dg_candidate){.token = 10 + i,
                              .drafted = pick(seed, 9) - 1,
                              .successor = pick(seed, 9) - 1,
                              .match = pick(seed, 3) ? 0 : 1 + pick(seed, 20),
                              .other = pick(seed, 2),
                              .logp = -5 * (1 + test_random(seed))};
    }
    return n;
}

static void test_probabilities(void **state) {
    (void)state;
    uint64_t seed = 1;
    for (int trial = 0; trial < 2000; trial++) {
        dg_candidate c[20];
        dg_place at;
        dg_rank r;
        const int32_t n = random_candidates(c, &at, &seed);
        dg_rank_init(&r, trial % 2, 0);
        if (trial % 7 == 0) c[0].logp = -INFINITY;
        if (trial % 5 == 0) /* weights far out: nothing overflows */
            for (int k = 0; k < DG_RANK_WEIGHTS; k++) r.weight[k] *= 60;
        dg_rank_score(&r, &at, c, n);
        float sum = 0;
        double score[20], most = 0, all = 0;
        for (int32_t i = 0; i < n; i++) {
            assert_true(c[i].p >= 0 && c[i].p <= 1);
            sum += c[i].p;
            float x[DG_RANK_WEIGHTS];
            dg_rank_features(&at, &c[i], x);
            score[i] = 0;
            for (int k = 0; k < DG_RANK_WEIGHTS; k++) score[i] += (double)r.weight[k] * (double)x[k];
            most = fmax(most, score[i]);
        }
        for (int32_t i = 0; i < n; i++) all += exp(score[i] - most);
        for (int32_t i = 0; i < n; i++) /* P(c) = exp(s_c) / (1 + sum exp(s)) */
            assert_true(fabs((double)c[i].p - exp(score[i] - most) / (exp(-most) + all)) < 2e-4);
        assert_true(sum <= 1.00001f);
    }
}

/* p of the first of two candidates, the second one fixed. */
static float p_of(dg_candidate x) {
    dg_rank r;
    dg_rank_init(&r, true, 0);
    const dg_place at = {1, DG_RANK_GREEDY};
    dg_candidate c[2] = {x, {.token = 2, .drafted = 1, .logp = -2, .successor = 1}};
    dg_rank_score(&r, &at, c, 2);
    return c[0].p;
}

static void test_evidence(void **state) {
    (void)state;
    const int32_t none = DG_RANK_NONE;
    const dg_candidate drafted = {.token = 1, .drafted = 0, .logp = -1.5f, .successor = none};
    dg_candidate sure = drafted, with_m = drafted, with_text = drafted;
    sure.logp = -0.2f, with_m.successor = 0, with_text.match = 4;
    assert_true(p_of(sure) > p_of(drafted));
    assert_true(p_of(with_m) > p_of(drafted) && p_of(with_text) > p_of(drafted));
    float last = 0;
    for (int32_t len = 1; len <= 16; len *= 2) { /* longer matches are worth more, first continuations most */
        const dg_candidate text = {.token = 1, .drafted = none, .successor = none, .match = len};
        dg_candidate other = text;
        other.other = true;
        assert_true(p_of(text) > last);
        if (len >= 2) assert_true(p_of(text) > p_of(other));
        last = p_of(text);
    }
    for (int32_t k = 2; k < 8; k++) { /* and higher ranks of M */
        const dg_candidate a = {.token = 1, .drafted = none, .successor = k - 1},
                           b = {.token = 1, .drafted = none, .successor = k};
        assert_true(p_of(a) >= p_of(b));
    }
}

static double log_likelihood(const dg_rank *r, const dg_place *at, dg_candidate *c, int32_t n, int32_t next) {
    dg_rank_score(r, at, c, n);
    double none = 1;
    for (int32_t i = 0; i < n; i++) {
        if (c[i].token == next) return log((double)c[i].p);
        none -= (double)c[i].p;
    }
    return log(none);
}

/* The step is the gradient: along it log P(next) rises by its square, to first order, in every weight. */
static void test_gradient(void **state) {
    (void)state;
    uint64_t seed = 4;
    for (int trial = 0; trial < 200; trial++) {
        dg_candidate c[20];
        dg_place at;
        dg_rank r, moved;
        const int32_t n = random_candidates(c, &at, &seed),
                      next = 10 + pick(&seed, n + 2); /* sometimes none of them */
        dg_rank_init(&r, true, 1);
        for (int k = 0; k < DG_RANK_WEIGHTS; k++) r.weight[k] *= 0.3f; /* away from the flat ends */
        dg_rank_score(&r, &at, c, n);
        moved = r;
        dg_rank_learn(&moved, &at, c, n, next);
        for (int k = 0; k < DG_RANK_WEIGHTS; k++) {
            dg_rank up = r, down = r;
            up.weight[k] += 0.01f, down.weight[k] -= 0.01f;
            const double slope =
                (log_likelihood(&up, &at, c, n, next) - log_likelihood(&down, &at, c, n, next)) / 0.02;
            const double step = (double)moved.weight[k] - (double)r.weight[k];
            assert_true(fabs(slope - step) < 0.02 * (1 + fabs(slope)));
        }
    }
}

/* A drafter that says 1 % and is always right is believed after a while. */
static void test_learning(void **state) {
    (void)state;
    dg_rank r;
    dg_rank_init(&r, true, 0.03f);
    const dg_place at = {1, DG_RANK_GREEDY};
    dg_candidate c[2] = {{.token = 1, .drafted = 0, .logp = -4.6f, .successor = DG_RANK_NONE},
                         {.token = 2, .drafted = DG_RANK_NONE, .successor = 0}};
    dg_rank_score(&r, &at, c, 2);
    assert_true(c[0].p < 0.2f);
    for (int i = 0; i < 50; i++) {
        dg_rank_learn(&r, &at, c, 2, 1);
        dg_rank_score(&r, &at, c, 2);
    }
    assert_true(c[0].p > 0.6f);
    dg_rank_init(&r, true, 0);
    dg_rank same = r;
    dg_rank_learn(&r, &at, c, 2, 1);
    assert_memory_equal(r.weight, same.weight, sizeof r.weight);
}

int main(void) {
    const struct CMUnitTest t[] = {cmocka_unit_test(test_probabilities), cmocka_unit_test(test_evidence),
                                   cmocka_unit_test(test_gradient), cmocka_unit_test(test_learning)};
    return cmocka_run_group_tests_name("rank", t, NULL, NULL);
}
