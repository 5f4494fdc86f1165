/* The choice of rows, on a made-up machine with a made-up target: near the best fixed choice where drafting
 * pays, near plain decoding where it does not, and back when it pays again. Time is what the machine says. */
#include "tests/test.h"

#include <math.h>

#include "runtime/budget.h"

static float uniform(uint64_t *seed) {
    return 0.5f * (1 + test_random(seed));
}

typedef struct world {
    double base, slope, draft; /* seconds: a row, each more than `flat`, a pass of the network */
    int32_t flat;
    float claimed, real; /* per token of the network's chain: what the scores say, what the target accepts */
    float memory;        /* the same of a source without a pass; 0: none */
    int32_t knows;       /* tokens of every 100 of which that source has something to say; 0: all */
    float noise;         /* of the clock */
    bool busy;           /* others use the machine now and then: all takes up to twice as long for a while */
    double speed;        /* what `busy` makes of it */
    double cold;         /* seconds more of the next pass; fades */
    int32_t until;       /* rounds to the next change */
    uint64_t seed;
    double seconds, tokens; /* so far */
    double plain;           /* seconds that the tokens would have taken without drafts */
    int64_t passes;
} world;

static const double FADE = 0.85;

static double verify_cost(const world *w, int32_t rows) {
    return w->base + w->slope * (rows > w->flat ? rows - w->flat : 0);
}

static void chain(dg_tree *t, int32_t n, float p) {
    for (int32_t i = 0; i < n; i++) dg_tree_add(t, i, 1, (float)(i + 1) * logf(p), 1);
}

/* One round under the controller. */
static void step(world *w, dg_budget *b, int32_t room) {
    bool network;
    const int32_t budget = dg_budget_begin(b, room, &network);
    assert_in_range(budget, 0, room);
    dg_tree t;
    dg_tree_reset(&t, 0);
    const bool known = w->memory > 0 && (!w->knows || (int32_t)w->tokens % 100 < w->knows);
    if (known) chain(&t, budget, w->memory);
    if (dg_budget_sure(b, &t)) network = false;
    const float claimed = network ? w->claimed : known ? w->memory : 0, real = network ? w->real : w->memory;
    if (network) {
        dg_tree_reset(&t, 0);
        chain(&t, budget, claimed);
    }
    const int32_t keep = dg_budget_cut(b, &t);
    assert_in_range(keep, 0, t.n - 1);
    dg_tree_prune(&t, keep, NULL);
    dg_walk walk = {.n = 1};
    while (walk.n < t.n && uniform(&w->seed) < real) walk.path[walk.n] = walk.n, walk.n++;
    if (w->busy && w->until-- <= 0) {
        w->speed = uniform(&w->seed) < 0.3f ? 1 + (double)uniform(&w->seed) : 1;
        w->until = 5 + (int32_t)(30 * uniform(&w->seed));
    }
    const double stretch = (1 + (double)w->noise * (double)test_random(&w->seed)) * (w->busy ? w->speed : 1);
    const double verify = (verify_cost(w, t.n) + w->cold) * stretch, draft = network ? w->draft * stretch : 0;
    w->cold *= FADE;
    dg_budget_learn(b, &t, &walk, draft, verify, 0);
    w->seconds += verify + draft;
    w->tokens += walk.n;
    w->plain += walk.n * w->base * (w->busy ? w->speed : 1);
    w->passes += network;
}

static double run(world *w, dg_budget *b, int32_t rounds) {
    w->seconds = w->tokens = w->plain = 0;
    for (int32_t i = 0; i < rounds; i++) step(w, b, 60);
    return w->tokens / w->seconds;
}

/* Tokens a second of a chain of n that is always drafted. */
static double fixed_rate(const world *w, int32_t n) {
    double tokens = 1, p = 1;
    for (int32_t i = 0; i < n; i++) tokens += p *= (double)w->real;
    return tokens / (verify_cost(w, n + 1) + (n ? w->draft : 0));
}

static double best_fixed(const world *w) {
    double best = 0;
    for (int32_t n = 0; n <= 60; n++)
        if (fixed_rate(w, n) > best) best = fixed_rate(w, n);
    return best;
}

static void test_near_the_best(void **state) {
    (void)state;
    static const world machine[] = {
        {.base = 10, .slope = 0.5, .flat = 1, .draft = 2, .claimed = 0.8f, .real = 0.8f, .seed = 1},
        {.base = 10,
         .slope = 0.5,
         .flat = 1,
         .draft = 2,
         .claimed = 0.95f,
         .real = 0.6f,
         .seed = 2}, /* promises too much */
        {.base = 10,
         .slope = 0.5,
         .flat = 1,
         .draft = 2,
         .claimed = 0.5f,
         .real = 0.85f,
         .seed = 3}, /* too little */
        {.base = 10, .slope = 0.05, .flat = 16, .draft = 1, .claimed = 0.9f, .real = 0.9f, .seed = 4},
        {.base = 10, .slope = 4, .flat = 3, .draft = 1, .claimed = 0.7f, .real = 0.7f, .seed = 5},
        {.base = 10,
         .slope = 0.5,
         .flat = 1,
         .draft = 2,
         .claimed = 0.8f,
         .real = 0.8f,
         .seed = 6,
         .noise = 0.3f},
    };
    for (size_t i = 0; i < sizeof machine / sizeof *machine; i++) {
        world w = machine[i];
        dg_budget b;
        dg_budget_init(&b, 0, 60, true, 0);
        run(&w, &b, 200);
        const double rate = run(&w, &b, 1500), best = best_fixed(&w);
        if (rate < 0.9 * best)
            fail_msg("machine %d: %.4f tokens a second, %.4f would be the best", (int)i, rate, best);
    }
}

/* Nothing is ever accepted: what that costs against plain decoding, trials included. */
static void test_never_much_slower(void **state) {
    (void)state;
    world w = {.base = 10, .slope = 0.5, .flat = 1, .draft = 6, .claimed = 0.9f, .real = 0, .seed = 7};
    dg_budget b;
    dg_budget_init(&b, 0, 60, true, 0);
    run(&w, &b, 64);
    assert_true(w.seconds < 1.1 * 64 * 10); /* the curve is measured first */
    run(&w, &b, 400);
    assert_true(w.seconds < 1.03 * 400 * 10);
    assert_true(w.passes > 2); /* it was tried, all the same */
    for (int text = 0; text < 10; text++) {
        dg_budget_text(&b);
        run(&w, &b, 64);
        assert_true(w.seconds < 1.04 * 64 * 10);
    }
}

/* Drafters that know that they do not know: a short text loses next to nothing. */
static void test_honest_drafters_cost_little(void **state) {
    (void)state;
    world w = {.base = 10, .slope = 2, .flat = 1, .draft = 2.5, .claimed = 0.15f, .real = 0.1f, .memory = 0.1f, .seed = 12};
    for (int prompt = 0; prompt < 2; prompt++) {
        dg_budget b;
        dg_budget_init(&b, 0, 60, true, 0);
        if (prompt) dg_budget_prompt(&b, 40, verify_cost(&w, 40));
        const double rate = run(&w, &b, 64);
        if (rate < 0.98 / w.base) fail_msg("%s a prompt: %.3f of plain", prompt ? "behind" : "without", rate * w.base);
    }
}

/* A machine that others use by turns: what was measured in their time does not make the wrong sizes look good. */
static void test_busy_machine(void **state) {
    (void)state;
    double worst = 2, sum = 0;
    enum { TEXTS = 200 };
    for (int i = 0; i < TEXTS; i++) {
        world w = {.base = 10, .slope = 2.2, .flat = 1, .draft = 3, .claimed = 0.2f, .real = 0.2f, .memory = 0.15f,
                   .noise = 0.03f, .busy = true, .seed = 1000 + (uint64_t)i};
        dg_budget b;
        dg_budget_init(&b, 0, 60, true, 0);
        dg_budget_prompt(&b, 40, verify_cost(&w, 40));
        run(&w, &b, 64);
        const double ratio = w.plain / w.seconds;
        sum += ratio;
        if (ratio < worst) worst = ratio;
    }
    if (sum / TEXTS < 0.98 || worst < 0.92) fail_msg("%.3f of plain on average, %.3f at worst", sum / TEXTS, worst);
}

/* Behind a prompt every pass is faster than the one before, until the weights are near: drafts that pay a little less than they
 * cost do not look cheap beside the first plain steps. */
static void test_cold_start(void **state) {
    (void)state;
    double sum = 0;
    enum { TEXTS = 200 };
    for (int i = 0; i < TEXTS; i++) {
        world w = {.base = 3, .slope = 0.75, .flat = 1, .draft = 0.3, .claimed = 0.25f, .real = 0.2f, .memory = 0.2f,
                   .cold = 1.5, .noise = 0.02f, .seed = 3000 + (uint64_t)i};
        const double cold = w.cold / (1 - FADE); /* all of it */
        dg_budget b;
        dg_budget_init(&b, 0, 60, true, 0);
        dg_budget_prompt(&b, 100, 60);
        run(&w, &b, 64);
        sum += (w.plain + cold) / w.seconds;
    }
    if (sum / TEXTS < 0.97) fail_msg("%.3f of plain on average", sum / TEXTS);
}

/* A sampler takes others than the likeliest token: before anything came of them, promises count for less the hotter it is. */
static void test_trust_and_temperature(void **state) {
    (void)state;
    int32_t kept[2];
    for (int hot = 0; hot < 2; hot++) {
        world w = {.base = 10, .slope = 3.5, .flat = 1, .memory = 0.6f, .seed = 15};
        dg_budget b;
        dg_budget_init(&b, 0, 60, false, 1.3 * hot);
        dg_budget_prompt(&b, 100, 350);
        run(&w, &b, 3);
        kept[hot] = b.kept;
    }
    assert_true(kept[0] > 0);
    assert_int_equal(kept[1], 0);
}

/* The first step behind a prompt is slow. What drafts cost is not measured by it, and plain steps are measured again even where
 * drafts always pay. */
static void test_measure_of_plain_steps(void **state) {
    (void)state;
    world w = {.base = 10, .slope = 2, .flat = 1, .draft = 1, .claimed = 0.9f, .real = 0.9f, .seed = 14};
    dg_budget b;
    dg_budget_init(&b, 0, 60, true, 0);
    world cold = w;
    cold.base = 16;
    run(&cold, &b, 1);
    run(&w, &b, 1);
    assert_true(fabs(dg_budget_cost(&b, 1) - 10) < 1e-9);
    run(&w, &b, 12);
    const double ratio = dg_budget_cost(&b, 8) / dg_budget_cost(&b, 1);
    assert_true(ratio > 2 && ratio < 2.9); /* 2.4 */
    run(&w, &b, 200);
    assert_true(b.round - b.last_seen[0] <= 64 && b.n_seen[0] >= 4);
    assert_true(b.kept > 0);
}

/* With a prompt of many rows the first drafts already know what rows cost. */
static void test_prompt_tells_the_price(void **state) {
    (void)state;
    world w = {.base = 10, .slope = 0.05, .flat = 64, .draft = 1, .claimed = 0.9f, .real = 0.9f, .seed = 13};
    dg_budget b;
    dg_budget_init(&b, 0, 60, true, 0);
    dg_budget_prompt(&b, 7, 70); /* too few rows to tell */
    run(&w, &b, 1);
    assert_true(dg_budget_cost(&b, 17) > 20);
    dg_budget_prompt(&b, 128, verify_cost(&w, 128));
    run(&w, &b, 1);
    assert_true(dg_budget_cost(&b, 17) < 13);
    int32_t most = 0;
    for (int i = 0; i < 10; i++) {
        run(&w, &b, 1);
        most = b.kept > most ? b.kept : most;
    }
    assert_true(most >= 30);
}

/* Drafts that the network does not make go on where its own do not pay. */
static void test_memory_without_network(void **state) {
    (void)state;
    world w = {.base = 10,
               .slope = 0.2,
               .flat = 1,
               .draft = 15,
               .claimed = 0.7f,
               .real = 0.7f,
               .memory = 0.7f,
               .seed = 8};
    dg_budget b;
    dg_budget_init(&b, 0, 60, true, 0);
    run(&w, &b, 100);
    w.passes = 0;
    const double rate = run(&w, &b, 1000);
    w.draft = 0;
    assert_true(rate > 0.9 * best_fixed(&w));
    assert_true(w.passes < 60);
    dg_budget_init(&b, 0, 60, false, 0); /* a session without networks */
    w.passes = 0;
    assert_true(run(&w, &b, 300) > 0.85 * best_fixed(&w));
    assert_int_equal(w.passes, 0);
}

static void test_recovers(void **state) {
    (void)state;
    world w = {.base = 10, .slope = 0.3, .flat = 1, .draft = 3, .claimed = 0.8f, .real = 0.05f, .seed = 9};
    dg_budget b;
    dg_budget_init(&b, 0, 60, true, 0);
    run(&w, &b, 600);
    assert_false(b.on);
    w.real = 0.9f; /* the text turns predictable */
    run(&w, &b, 300);
    assert_true(b.on);
    const double rate = run(&w, &b, 600);
    assert_true(rate > 0.85 * best_fixed(&w));
    w.real = 0.02f; /* and back */
    run(&w, &b, 60);
    assert_false(b.on);
}

static void test_stall_and_curve(void **state) {
    (void)state;
    world w = {.base = 10,
               .slope = 0.5,
               .flat = 4,
               .draft = 2,
               .claimed = 0.8f,
               .real = 0.8f,
               .noise = 0.5f,
               .seed = 10};
    dg_budget b;
    dg_budget_init(&b, 0, 60, true, 0);
    run(&w, &b, 300);
    for (int32_t i = 1; i < DG_BUDGET_SIZES; i++) assert_true(b.curve[i] >= b.curve[i - 1]);
    assert_true(dg_budget_cost(&b, 1) > 5 && dg_budget_cost(&b, 1) < 15);
    const int32_t kept = b.kept;
    w.noise = 0;
    world stalled = w;
    stalled.base = 1000;
    run(&stalled, &b, 1);
    assert_true(dg_budget_cost(&b, 1) < 30);
    run(&w, &b, 30);
    assert_true(b.kept >= kept / 2 && b.kept <= 2 * kept + 4);
    int32_t last = 0;
    for (int32_t i = 0; i < DG_BUDGET_SIZES; i++) {
        assert_true(dg_budget_rows(i) > last);
        last = dg_budget_rows(i);
    }
    assert_int_equal(last, DG_TREE_MAX);
}

/* A copied passage now and then: while it lasts, memory's drafts are better than the network's and cost nothing, so
 * the network stays out of them, and is there for the rest. */
static void test_memory_is_sure(void **state) {
    (void)state;
    world w = {.base = 0.003, .slope = 0.0005, .flat = 1, .draft = 0.0012, .claimed = 0.75f, .real = 0.75f,
               .memory = 0.95f, .knows = 50, .seed = 5};
    dg_budget b;
    dg_budget_init(&b, 0, 60, true, 0);
    run(&w, &b, 200);
    /* plain steps that a token of either half takes: 0.66 with the network, 0.28 of memory */
    const double best = 2 / (0.66 + 0.28);
    assert_true(run(&w, &b, 1600) * w.base > 0.9 * best);
}

/* Memory always has something good to say, and the network, bad at first, becomes far better: it is found out, though every
 * round promises more without the network than rounds with it brought. */
static void test_looks_again(void **state) {
    (void)state;
    world w = {.base = 10, .slope = 0.5, .flat = 1, .draft = 4, .claimed = 0.95f, .real = 0, .memory = 0.6f, .seed = 12};
    dg_budget b;
    dg_budget_init(&b, 0, 15, true, 0);
    run(&w, &b, 200);
    w.passes = 0;
    run(&w, &b, 400);
    assert_true(w.passes < 20);
    w.real = 0.95f;
    run(&w, &b, 300);
    w.passes = 0;
    run(&w, &b, 1000);
    assert_true(w.passes > 900);
    w.real = 0; /* and back */
    run(&w, &b, 100);
    w.passes = 0;
    run(&w, &b, 1000);
    assert_true(w.passes < 50);
}

/* Two of three tokens that memory promises with 0.8 come in every round; of the network's twelve none, and after 200 rounds all.
 * What it brought is forgotten by age also while memory is sure, so that one trial is enough to see it. */
static void test_one_trial_is_enough(void **state) {
    (void)state;
    dg_budget b;
    dg_budget_init(&b, 0, 15, true, 0);
    int32_t ran = 0;
    for (int32_t r = 0; r < 1500; r++) {
        bool network;
        const int32_t budget = dg_budget_begin(&b, 15, &network);
        dg_tree t;
        dg_tree_reset(&t, 0);
        chain(&t, budget < 3 ? budget : 3, 0.8f);
        if (dg_budget_sure(&b, &t)) network = false;
        if (network) {
            dg_tree_reset(&t, 0);
            chain(&t, budget < 12 ? budget : 12, 0.95f);
        }
        dg_tree_prune(&t, dg_budget_cut(&b, &t), NULL);
        dg_walk walk = {.n = network ? r < 200 ? 1 : t.n : t.n < 3 ? t.n : 3};
        for (int32_t i = 0; i < walk.n; i++) walk.path[i] = i;
        dg_budget_learn(&b, &t, &walk, network ? 0.4 : 0, 1 + 0.05 * (t.n - 1), 0.01);
        ran += network && r >= 500;
    }
    assert_true(ran > 900);
}

static void test_fixed(void **state) {
    (void)state;
    world w = {.base = 10, .slope = 9, .flat = 1, .draft = 90, .claimed = 0.9f, .real = 0, .seed = 11};
    dg_budget b;
    dg_budget_init(&b, 12, 63, true, 0);
    for (int i = 0; i < 50; i++) {
        bool network = false;
        assert_int_equal(dg_budget_begin(&b, i, &network), i < 12 ? i : 12);
        assert_true(network);
        dg_tree t;
        dg_tree_reset(&t, 0);
        chain(&t, i < 12 ? i : 12, 0.1f);
        assert_int_equal(dg_budget_cut(&b, &t), t.n - 1);
        const dg_walk walk = {.n = 1};
        dg_budget_learn(&b, &t, &walk, 1, 1, 1);
    }
    run(&w, &b, 20);
    assert_int_equal(w.passes, 20);
}

int main(void) {
    const struct CMUnitTest t[] = {
        cmocka_unit_test(test_near_the_best),          cmocka_unit_test(test_never_much_slower),
        cmocka_unit_test(test_memory_without_network), cmocka_unit_test(test_recovers),
        cmocka_unit_test(test_stall_and_curve),        cmocka_unit_test(test_looks_again), cmocka_unit_test(test_one_trial_is_enough), cmocka_unit_test(test_fixed),
        cmocka_unit_test(test_honest_drafters_cost_little), cmocka_unit_test(test_prompt_tells_the_price),
        cmocka_unit_test(test_memory_is_sure), cmocka_unit_test(test_cold_start),
        cmocka_unit_test(test_trust_and_temperature),
        cmocka_unit_test(test_busy_machine), cmocka_unit_test(test_measure_of_plain_steps),
    };
    return cmocka_run_group_tests_name("budget", t, NULL, NULL);
}
