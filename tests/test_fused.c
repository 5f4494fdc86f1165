/* The fused tree: the most probable paths of all sources, against listing every path; that other drafters'
 * nodes compete, that no part alone covers more, and that what followed is learned. */
#include "tests/test.h"

#include <math.h>

#include "dflash/best_first.h"
#include "graft/fill.h"
#include "graft/ngram.h"
#include "graft/rank.h"
#include "runtime/verify.h"
#include "tests/drafter_rig.h"

extern const dg_drafter_ops dg_fused;

enum { V = 40, DEPTHS = 4, WIDTH = 4 };

static int32_t pick(uint64_t *seed, int32_t n) {
    return (int32_t)((test_random(seed) + 1) * 0.5f * (float)n);
}

/* Different tokens in a row, probabilities that fall. */
static void random_lattice(int32_t *id, float *logp, uint64_t *seed) {
    for (int32_t d = 0; d < DEPTHS; d++) {
        float left = 1;
        for (int32_t r = 0; r < WIDTH; r++) {
            int32_t x, at;
            do {
                x = pick(seed, V);
                for (at = 0; at < r && id[d * WIDTH + at] != x;) at++;
            } while (at < r);
            id[d * WIDTH + r] = x;
            const float p = left * (0.5f + 0.2f * test_random(seed));
            logp[d * WIDTH + r] =
                logf(r && p > expf(logp[d * WIDTH + r - 1]) ? expf(logp[d * WIDTH + r - 1]) : p);
            left -= p;
        }
    }
}

/* ---- a lattice alone, all paths listed ---- */

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

static void list_paths(const int32_t *id, const float *logp, int32_t depth, int32_t parent, double p,
                       double *all, int32_t *n) {
    if (depth == DEPTHS) return;
    dg_rank r;
    dg_rank_init(&r, true, 0);
    const dg_place at = {depth + 1, parent};
    dg_candidate c[WIDTH];
    for (int32_t k = 0; k < WIDTH; k++)
        c[k] = (dg_candidate){.token = id[depth * WIDTH + k],
                              .drafted = k,
                              .logp = logp[depth * WIDTH + k],
                              .successor = DG_RANK_NONE};
    dg_rank_score(&r, &at, c, WIDTH);
    for (int32_t k = 0; k < WIDTH; k++) {
        all[(*n)++] = p * (double)c[k].p;
        list_paths(id, logp, depth + 1, k, p * (double)c[k].p, all, n);
    }
}

static void test_most_probable_paths(void **state) {
    (void)state;
    uint64_t seed = 2;
    rig r;
    rig_open(&r, &dg_fused, V, "m=0,text=0,chain=0");
    for (int trial = 0; trial < 60; trial++) {
        int32_t id[DEPTHS * WIDTH], n_all = 0;
        float logp[DEPTHS * WIDTH];
        double all[400], own[DG_TREE_MAX];
        random_lattice(id, logp, &seed);
        list_paths(id, logp, 0, DG_RANK_GREEDY, 1, all, &n_all);
        qsort(all, (size_t)n_all, sizeof *all, by_size);
        r.offer = (dg_offer){.lattice = {id, logp, DEPTHS, WIDTH}, .source = 1};
        const int32_t budget = 1 + pick(&seed, 100);
        dg_tree t;
        dg_tree_reset(&t, 5);
        rig_propose(&r, &t, budget);
        assert_int_equal(t.n, budget + 1);
        for (int32_t i = 1; i < t.n; i++) {
            own[i - 1] = exp((double)t.score[i]);
            assert_int_equal(t.source[i], 1);
        }
        qsort(own, (size_t)budget, sizeof *own, by_size);
        for (int32_t i = 0; i < budget; i++) assert_true(fabs(own[i] - all[i]) < 1e-4 * all[i]);
    }
    rig_close(&r);
}

/* The chain of first choices stays as deep as it is told to, even where it is improbable. */
static void test_chain_is_safe(void **state) {
    (void)state;
    uint64_t seed = 3;
    for (int32_t chain = 0; chain <= DEPTHS; chain++) {
        char params[64];
        snprintf(params, sizeof params, "m=0,text=0,chain=%d", chain);
        rig r;
        rig_open(&r, &dg_fused, V, params);
        int32_t id[DEPTHS * WIDTH], node = 0, depth = 0;
        float logp[DEPTHS * WIDTH];
        random_lattice(id, logp, &seed);
        for (int32_t i = 0; i < DEPTHS * WIDTH; i++) logp[i] = -3 - 0.01f * (float)(i % WIDTH); /* flat */
        r.offer = (dg_offer){.lattice = {id, logp, DEPTHS, WIDTH}, .source = 1};
        dg_tree t;
        dg_tree_reset(&t, 5);
        rig_propose(&r, &t, DEPTHS);
        for (; depth < DEPTHS && (node = dg_tree_child(&t, node, id[depth * WIDTH])) > 0; depth++) {
        }
        assert_true(depth >= chain);
        if (chain == 0) assert_true(depth < 2); /* else there was nothing to protect */
        rig_close(&r);
    }
}

/* ---- all sources ---- */

static const int32_t words[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 20, 21, 22, 1, 2};

/* Nodes of a drafter that offers no lattice compete by their own scores and keep their name. */
static void test_other_drafters_nodes(void **state) {
    (void)state;
    rig r;
    rig_open(&r, &dg_fused, V, "learn=0");
    rig_read(&r, words, 14, 3);
    dg_tree t;
    dg_tree_reset(&t, 3);
    const int32_t a = dg_tree_add(&t, 0, 30, -0.3f, 2), b = dg_tree_add(&t, a, 31, -0.5f, 2);
    dg_tree_add(&t, b, 32, -9, 2);
    dg_tree_add(&t, 0, 4, -4, 2);
    rig_propose(&r, &t, 60);
    assert_int_equal(t.n, 61);
    const int32_t thirty = dg_tree_child(&t, 0, 30);
    assert_true(thirty > 0 && dg_tree_child(&t, thirty, 31) > 0);
    assert_int_equal(t.source[thirty], 2);
    const int32_t four = dg_tree_child(&t, 0, 4); /* proposed by both, and by the match "1 2 3" */
    assert_true(four > 0 && t.source[four] == 2);
    const int32_t five = dg_tree_child(&t, four, 5);
    assert_true(five > 0 && t.source[five] == 3);

    dg_tree_reset(&t, 3); /* no room: nothing but the best */
    dg_tree_add(&t, 0, 30, -0.1f, 2);
    dg_tree_add(&t, 0, 31, -4, 2);
    rig_propose(&r, &t, 1);
    assert_int_equal(t.n, 2);
    assert_true(t.token[1] == 30 || t.token[1] == 4);
    rig_close(&r);
}

static void test_stop_ends_a_path(void **state) {
    (void)state;
    rig r;
    rig_open(&r, &dg_fused, V, NULL);
    r.model.net.config.stop[0] = 4, r.model.net.config.n_stop = 1;
    rig_read(&r, words, 14, 3);
    dg_tree t;
    dg_tree_reset(&t, 3);
    rig_propose(&r, &t, 20);
    const int32_t four = dg_tree_child(&t, 0, 4);
    assert_true(four > 0);
    for (int32_t i = 1; i < t.n; i++) assert_int_not_equal(t.parent[i], four);
    rig_close(&r);
}

/* Where only so many tokens may still come, the whole budget goes to what is no deeper. */
static void test_depth_of_use(void **state) {
    (void)state;
    uint64_t seed = 3;
    int32_t id[DEPTHS * WIDTH];
    float logp[DEPTHS * WIDTH];
    random_lattice(id, logp, &seed);
    rig r;
    rig_open(&r, &dg_fused, V, "m=0,text=0,chain=3");
    r.offer = (dg_offer){.lattice = {id, logp, DEPTHS, WIDTH}, .source = 1};
    dg_tree t;
    dg_tree_reset(&t, 5);
    t.deepest = 2;
    rig_propose(&r, &t, WIDTH + WIDTH * WIDTH);
    assert_int_equal(t.n, 1 + WIDTH + WIDTH * WIDTH);
    for (int32_t i = 1; i < t.n; i++) assert_in_range(t.depth[i], 1, 2);
    rig_close(&r);
}

/* Expected tokens of a tree by the probabilities of its own scores. */
static double promise(const dg_tree *t) {
    double sum = 0;
    for (int32_t i = 1; i < t->n; i++) sum += exp((double)t->score[i]);
    return sum;
}

/* On the scale of all sources, a tree of the same size from a part of them never promises more: each path of
 * the part is looked up in a tree of everything. */
static void test_no_part_promises_more(void **state) {
    (void)state;
    static const char *const part[] = {"m=0,text=0,chain=0", "m=0,chain=0", "text=0,chain=0", "chain=3"};
    uint64_t seed = 6;
    int32_t n_more = 0;
    for (int trial = 0; trial < 80; trial++) {
        int32_t text[300], id[DEPTHS * WIDTH];
        float logp[DEPTHS * WIDTH];
        for (int32_t i = 0; i < 300; i++) text[i] = i > 8 && pick(&seed, 4) ? text[i - 7] : pick(&seed, V);
        random_lattice(id, logp, &seed);
        rig all, some;
        rig_open(&all, &dg_fused, V, "chain=0"), rig_open(&some, &dg_fused, V, part[trial % 4]);
        rig_read(&all, text, 299, text[299]), rig_read(&some, text, 299, text[299]);
        all.offer = some.offer = (dg_offer){.lattice = {id, logp, DEPTHS, WIDTH}, .source = 1};
        dg_tree whole, t, u;
        dg_tree_reset(&whole, text[299]), dg_tree_reset(&t, text[299]), dg_tree_reset(&u, text[299]);
        const int32_t budget = 1 + pick(&seed, 15);
        rig_propose(&all, &whole, 255);
        rig_propose(&all, &t, budget), rig_propose(&some, &u, budget);
        double p = 0;
        int32_t to[DG_TREE_MAX] = {0};
        for (int32_t i = 1; i < u.n;
             i++) { /* the part's nodes on the whole's scale; what that does not hold is below all */
            to[i] = to[u.parent[i]] < 0 ? -1 : dg_tree_child(&whole, to[u.parent[i]], u.token[i]);
            if (to[i] > 0) p += exp((double)whole.score[to[i]]);
        }
        assert_true(promise(&t) >= p - 1e-4);
        n_more += promise(&t) > p + 0.01;
        rig_close(&all), rig_close(&some);
    }
    assert_true(n_more > 40);
}

static int32_t accepted(const dg_tree *t, const int32_t *text) {
    int32_t sampled[DG_TREE_MAX];
    for (int32_t i = 0; i < t->n; i++) sampled[i] = text[t->depth[i]];
    dg_walk w;
    dg_verify(t, sampled, &w);
    return w.n - 1;
}

/* Each path of the part is a path of the whole. */
static bool covers(const dg_tree *whole, const dg_tree *part) {
    int32_t to[DG_TREE_MAX] = {0};
    for (int32_t i = 1; i < part->n; i++)
        if ((to[i] = dg_tree_child(whole, to[part->parent[i]], part->token[i])) < 0) return false;
    return true;
}

/* Where the tree of all sources covers what one of them proposes alone, it accepts no less, whatever the text; and it does
 * cover the best of each: the block drafter's paths, the text's, M's. */
static void test_accepts_no_less_than_its_parts(void **state) {
    (void)state;
    enum { PARTS = 3, SMALL = 6 };
    uint64_t seed = 12;
    int32_t n_covered[PARTS] = {0}, n_trial = 0, better = 0;
    for (int trial = 0; trial < 40; trial++, n_trial++) {
        int32_t said[300], id[DEPTHS * WIDTH];
        float logp[DEPTHS * WIDTH];
        static dg_best_first scratch;
        for (int32_t i = 0; i < 300; i++) said[i] = i > 8 && pick(&seed, 4) ? said[i - 7] : pick(&seed, V);
        random_lattice(id, logp, &seed);
        rig all, text, m;
        rig_open(&all, &dg_fused, V, NULL), rig_open(&text, &dg_ngram, V, NULL), rig_open(&m, &dg_fill, V, NULL);
        rig_read(&all, said, 299, said[299]), rig_read(&text, said, 299, said[299]), rig_read(&m, said, 299, said[299]);
        all.offer = (dg_offer){.lattice = {id, logp, DEPTHS, WIDTH}, .source = 1};
        dg_tree whole, part[PARTS];
        dg_tree_reset(&whole, said[299]);
        for (int p = 0; p < PARTS; p++) dg_tree_reset(&part[p], said[299]);
        rig_propose(&all, &whole, 255);
        dg_best_first_fill(&scratch, &part[0], &all.offer.lattice, SMALL, 1, 1);
        rig_propose(&text, &part[1], SMALL);
        rig_propose(&m, &part[2], SMALL);
        for (int p = 0; p < PARTS; p++) {
            if (!covers(&whole, &part[p])) continue;
            n_covered[p]++;
            for (int32_t i = 0; i < 30; i++) {
                int32_t ahead[DG_TREE_MAX], node = pick(&seed, whole.n);
                for (int32_t d = 0; d < DG_TREE_MAX; d++) ahead[d] = pick(&seed, V);
                for (; node; node = whole.parent[node]) ahead[whole.depth[node] - 1] = whole.token[node];
                assert_true(accepted(&whole, ahead) >= accepted(&part[p], ahead));
                better += accepted(&whole, ahead) > accepted(&part[p], ahead);
            }
        }
        rig_close(&all), rig_close(&text), rig_close(&m);
    }
    print_message("of %d: covered %d (block), %d (text), %d (M)\n", n_trial, n_covered[0], n_covered[1], n_covered[2]);
    for (int p = 0; p < PARTS; p++) assert_true(n_covered[p] >= n_trial / 2);
    assert_true(better > 500);
}

/* A network that is always right and never sure: after some rounds its chain is the tree. */
static void test_learns(void **state) {
    (void)state;
    rig r;
    rig_open(&r, &dg_fused, V, "m=0,text=0,chain=0,learn=0.1");
    uint64_t seed = 9;
    int32_t deep[2] = {0, 0};
    for (int round = 0; round < 60; round++) {
        int32_t id[DEPTHS * WIDTH], text[DEPTHS + 1], path[DEPTHS + 1], n = 1;
        float logp[DEPTHS * WIDTH];
        random_lattice(id, logp, &seed);
        for (int32_t i = 0; i < DEPTHS * WIDTH; i++) logp[i] = -2.5f - 0.1f * (float)(i % WIDTH);
        r.offer = (dg_offer){.lattice = {id, logp, DEPTHS, WIDTH}, .source = 1};
        dg_tree t;
        dg_tree_reset(&t, 5);
        rig_propose(&r, &t, DEPTHS);
        text[0] = 5, path[0] = 0;
        for (int32_t node = 0; n <= DEPTHS && (node = dg_tree_child(&t, node, id[(n - 1) * WIDTH])) > 0; n++)
            text[n] = t.token[node], path[n] = node;
        const dg_outcome o = {.n = n,
                              .token = text,
                              .first = r.n,
                              .next = n <= DEPTHS ? id[(n - 1) * WIDTH] : 5,
                              .tree = &t,
                              .path = path};
        check_ok(dg_fused.observe(r.drafter, &o));
        r.n += n;
        if (round < 10) deep[0] += n;
        if (round >= 50) deep[1] += n;
    }
    assert_true(deep[0] < 35 && deep[1] >= 45);
    rig_close(&r);
}

static void test_parameters(void **state) {
    (void)state;
    const int64_t live = dg_mem_live();
    dg_drafter *d = NULL;
    dg_model model = {0};
    model.net.config.vocab_size = V;
    dg_drafter_env env = {.model = &model, .context = 64, .source = 1};
    static const struct {
        const char *params, *message;
    } bad[] = {{"learn=2", "from 0 to 1"}, {"chain=-1", "chain"}, {"tau=1", "chain, learn, text"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        env.params = bad[i].params;
        check_fails(dg_fused.open(&env, &d), DG_ERR_ARGUMENT, bad[i].message);
    }
    env.params = NULL, env.path = "no/such/file";
    check_fails(dg_fused.open(&env, &d), DG_ERR_IO, "no/such/file");
    env.path = NULL;
    dg_mem_fail_nth(1, 0);
    const dg_status st = dg_fused.open(&env, &d);
    dg_mem_fail_nth(0, 0);
    assert_int_equal(st, DG_ERR_MEMORY);
    assert_null(d);
    assert_int_equal(dg_mem_live(), live);
}

int main(void) {
    const struct CMUnitTest t[] = {
        cmocka_unit_test(test_most_probable_paths),
        cmocka_unit_test(test_chain_is_safe),
        cmocka_unit_test(test_other_drafters_nodes),
        cmocka_unit_test(test_stop_ends_a_path), cmocka_unit_test(test_depth_of_use),
        cmocka_unit_test(test_no_part_promises_more),
        cmocka_unit_test(test_accepts_no_less_than_its_parts),
        cmocka_unit_test(test_learns),
        cmocka_unit_test(test_parameters),
    };
    return cmocka_run_group_tests_name("fused", t, NULL, NULL);
}
