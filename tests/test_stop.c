/* When drafting stops early: entropy, and each rule on beams made by hand. */
#include "dflash/stop.h"

#include <math.h>

#include "runtime/entropy.h"
#include "tests/test.h"

enum { WIDTH = 3, DEPTH = 4 };

static void test_entropy(void **state) {
    (void)state;
    float x[1000];
    for (int n = 1; n <= 1000; n *= 10) {
        for (int i = 0; i < n; i++) x[i] = 300;
        assert_true(fabs(dg_entropy(x, n) - log(n)) < 1e-9);
    }
    const float two[] = {logf(0.25f) - 50, -INFINITY, logf(0.75f) - 50};
    assert_true(fabs(dg_entropy(two, 3) + 0.25 * log(0.25) + 0.75 * log(0.75)) < 1e-6);
    const float sure[] = {0, -1000, -INFINITY}, none[] = {-INFINITY, -INFINITY};
    assert_true(dg_entropy(sure, 3) == 0 && dg_entropy(none, 2) == 0);
}

typedef struct rig {
    dg_arena a;
    dg_beam beam;
} rig;

static void open_rig(rig *r) {
    dg_arena count = {0};
    dg_beam_layout(&r->beam, WIDTH, DEPTH, &count);
    r->a = (dg_arena){dg_mem_calloc(1, count.used), 0, count.used};
    dg_beam_layout(&r->beam, WIDTH, DEPTH, &r->a);
    dg_beam_reset(&r->beam);
}

/* A pass in which every row's candidates have these probabilities; rows to begin with `best` have the first of them. */
static void pass(dg_beam *b, const float *p, int best) {
    int32_t id[WIDTH * WIDTH];
    float logp[WIDTH * WIDTH];
    if (b->passes) dg_beam_expand(b);
    for (int r = 0; r < WIDTH; r++)
        for (int i = 0; i < WIDTH; i++) id[r * WIDTH + i] = i, logp[r * WIDTH + i] = logf(p[i] * (r == best ? 1.0f : 0.01f));
    dg_beam_score(b, id, logp);
}

static void test_gates(void **state) {
    (void)state;
    const float p[WIDTH] = {0.5f, 0.3f, 0.1f};
    rig r;
    dg_stop_rules rules;
    open_rig(&r);
    dg_stop_defaults(&rules);
    dg_stop_settle(&rules, NULL);
    pass(&r.beam, p, 0);
    assert_int_equal(dg_stop_keep(&rules, &r.beam, 60, NULL, 0), -1); /* nothing asked for */

    dg_stop_defaults(&rules);
    rules.gated = true;
    rules.gate[0].threshold = 0.51f;
    dg_stop_settle(&rules, NULL);
    assert_int_equal(dg_stop_keep(&rules, &r.beam, 60, NULL, 0), 8);
    rules.gate[0].threshold = 0.49f;
    assert_int_equal(dg_stop_keep(&rules, &r.beam, 60, NULL, 0), -1);
    pass(&r.beam, p, 0);
    rules.gate[1].threshold = 0.24f;
    assert_int_equal(dg_stop_keep(&rules, &r.beam, 60, NULL, 0), -1);
    rules.gate[1].threshold = 0.26f;
    assert_int_equal(dg_stop_keep(&rules, &r.beam, 60, NULL, 0), 24);
    dg_mem_free(r.a.base);
}

/* Given before calibrated before usual; a calibrated "never" is never. */
static void test_thresholds(void **state) {
    (void)state;
    static dg_calibration known;
    known.has_gates = true;
    known.gate[0].at = 0.6f, known.gate[1].at = -1, known.gate[2].at = 0.7f;
    dg_stop_rules rules;
    dg_stop_defaults(&rules);
    rules.gated = true, rules.gate[2].threshold = 0.9f;
    dg_stop_settle(&rules, &known);
    assert_true(rules.gate[0].threshold == 0.6f && rules.gate[1].threshold == 0 && rules.gate[2].threshold == 0.9f);
    dg_stop_defaults(&rules);
    rules.gated = true;
    dg_stop_settle(&rules, NULL);
    assert_true(rules.gate[0].threshold == 0.35f && rules.gate[1].threshold == 0.25f && rules.gate[2].threshold == 0.15f);
    dg_stop_defaults(&rules);
    dg_stop_settle(&rules, &known);
    for (int i = 0; i < DG_CAL_GATES; i++) assert_true(rules.gate[i].threshold == 0);
}

/* The mass of the frontier counts after every second pass. */
static void test_mass(void **state) {
    (void)state;
    const float p[WIDTH] = {0.5f, 0.3f, 0.1f};
    rig r;
    open_rig(&r);
    dg_stop_rules rules = {.mass = 0.8f};
    pass(&r.beam, p, 0);
    assert_true(fabsf(dg_beam_mass(&r.beam) - 0.9f) < 1e-6f);
    rules.mass = 0.99f;
    assert_int_equal(dg_stop_keep(&rules, &r.beam, 33, NULL, 0), -1);
    pass(&r.beam, p, 0); /* 0.25, 0.15, 0.05 of the first row; the others' are far below */
    assert_true(fabsf(dg_beam_mass(&r.beam) - 0.45f) < 1e-6f);
    assert_int_equal(dg_beam_best_row(&r.beam), 0);
    rules.mass = 0.46f;
    assert_int_equal(dg_stop_keep(&rules, &r.beam, 33, NULL, 0), 33);
    rules.mass = 0.44f;
    assert_int_equal(dg_stop_keep(&rules, &r.beam, 33, NULL, 0), -1);
    dg_mem_free(r.a.base);
}

static void test_svip(void **state) {
    (void)state;
    const float p[WIDTH] = {0.5f, 0.3f, 0.1f}, flat[2] = {0, 0};
    const float edge = (float)sqrt(0.15 * log(2));
    rig r;
    open_rig(&r);
    pass(&r.beam, p, 0);
    pass(&r.beam, p, 2);
    assert_int_equal(dg_beam_best_row(&r.beam), 2);
    dg_stop_rules rules = {.svip = edge * 1.001f};
    assert_int_equal(dg_stop_keep(&rules, &r.beam, 33, flat, 2), -1);
    rules.svip = edge * 0.999f;
    assert_int_equal(dg_stop_keep(&rules, &r.beam, 33, flat, 2), 33);
    dg_mem_free(r.a.base);
}

int main(void) {
    const struct CMUnitTest t[] = {cmocka_unit_test(test_entropy), cmocka_unit_test(test_gates), cmocka_unit_test(test_thresholds),
                                   cmocka_unit_test(test_mass), cmocka_unit_test(test_svip)};
    return cmocka_run_group_tests_name("stop", t, NULL, NULL);
}
