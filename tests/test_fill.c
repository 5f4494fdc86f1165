/* Graft on a tree: which rows a stopped draft leaves to memory, how they merge, and that it never accepts less than the
 * stopped draft alone, in made-up trees and, round by round, in real sessions. */
#include "tests/test.h"

#include <math.h>

#include "dflash/beam.h"
#include "graft/fill.h"
#include "graft/succ.h"
#include "runtime/budget.h"
#include "runtime/session.h"
#include "tests/drafter_rig.h"


enum { V = 48, MAX_SCORED = 120 };

static int32_t pick(uint64_t *seed, int32_t n) {
    return (int32_t)((test_random(seed) + 1) * 0.5f * (float)n) % n;
}

typedef struct scored {
    int32_t token[MAX_SCORED], parent[MAX_SCORED];
    float score[MAX_SCORED];
    dg_candidates c;
} scored;

/* Different tokens among siblings; many equal scores. */
static void make_scored(scored *s, int32_t n, uint64_t *seed) {
    dg_tree t;
    dg_tree_reset(&t, 0);
    int32_t made = 0;
    while (made < n) {
        const int32_t parent = made < 8 ? -1 : pick(seed, made + 1) - 1, token = pick(seed, V);
        if (dg_tree_child(&t, parent + 1, token) >= 0) continue;
        dg_tree_add(&t, parent + 1, token, 0, 1);
        s->token[made] = token, s->parent[made] = parent;
        s->score[made] = (parent < 0 ? 0 : s->score[parent]) - (float)pick(seed, 4) * 0.5f;
        made++;
    }
    s->c = (dg_candidates){.n = n, .token = s->token, .parent = s->parent, .score = s->score, .stopped = 0};
}

/* The `keep` best, as a drafter that was stopped leaves them. */
static void keep_best(const scored *s, int32_t keep, dg_tree *t) {
    dg_tree all;
    int16_t map[DG_TREE_MAX];
    dg_tree_reset(&all, t->token[0]);
    for (int32_t i = 0; i < s->c.n; i++) dg_tree_append(&all, s->parent[i] + 1, s->token[i], s->score[i], 1);
    dg_tree_prune(&all, keep, map);
    *t = all;
}

static int32_t accepted(const dg_tree *t, const int32_t *text) {
    int32_t sampled[DG_TREE_MAX];
    for (int32_t i = 0; i < t->n; i++) sampled[i] = text[t->depth[i]];
    dg_walk w;
    dg_verify(t, sampled, &w);
    return w.n - 1;
}

/* Every node of `part` is in t, at its place. */
static void check_holds(const dg_tree *t, const dg_tree *part) {
    int32_t to[DG_TREE_MAX] = {0};
    for (int32_t i = 1; i < part->n; i++) {
        to[i] = dg_tree_child(t, to[part->parent[i]], part->token[i]);
        assert_true(to[i] > 0);
    }
}

static void learn(rig *r, uint64_t *seed) {
    int32_t words[600];
    for (int32_t i = 0; i < 600; i++) words[i] = i > 4 && pick(seed, 3) ? words[i - 5] : pick(seed, V);
    rig_read(r, words, 600, pick(seed, V));
}

/* M's template below the root, at most n nodes of it. */
static void expand(rig *r, int32_t n, int32_t root, dg_tree *t) {
    r->offer = (dg_offer){0};
    dg_tree_reset(t, root);
    rig_propose(r, t, n);
}

/* Merged: full to the budget, nothing twice, parents first, all of the draft there, and of the template at least what
 * the paper's count of it would give. */
static void test_merge(void **state) {
    (void)state;
    static const int32_t keep[] = {8, 24, 40};
    uint64_t seed = 3;
    int32_t better = 0;
    for (int trial = 0; trial < 90; trial++) {
        const int32_t k = keep[trial % 3], budget = trial % 2 ? 60 : 59;
        rig r;
        rig_open(&r, &dg_fill, V, NULL);
        learn(&r, &seed);
        static scored s;
        make_scored(&s, MAX_SCORED, &seed);
        dg_tree t, draft, memory;
        dg_tree_reset(&draft, pick(&seed, V));
        keep_best(&s, k, &draft);
        assert_int_equal(draft.n, k + 1);
        expand(&r, budget - k, draft.token[0], &memory);
        t = draft;
        r.offer = (dg_offer){.scored = s.c, .scored_source = 1};
        rig_propose(&r, &t, budget);
        assert_int_equal(t.n, budget + 1);
        check_holds(&t, &draft);
        check_holds(&t, &memory);
        for (int32_t i = 0; i < 20; i++) {
            int32_t text[DG_TREE_MAX];
            int32_t node = pick(&seed, t.n);
            for (int32_t d = 0; d < DG_TREE_MAX; d++) text[d] = pick(&seed, V);
            for (; node; node = t.parent[node]) text[t.depth[node] - 1] = t.token[node];
            assert_true(accepted(&t, text) >= accepted(&draft, text));
            better += accepted(&t, text) > accepted(&draft, text);
        }
        rig_close(&r);
    }
    assert_true(better > 200);
}

/* append repeats what is there, skip leaves its row out; both accept the same, and no more than merged. */
static void test_append_and_skip(void **state) {
    (void)state;
    uint64_t seed = 11;
    int32_t fewer = 0, doubles = 0;
    for (int trial = 0; trial < 40; trial++) {
        static const char *const params[] = {"append=1", "skip=1", NULL};
        static scored s;
        dg_tree t[3], draft;
        const uint64_t learned = seed + 77;
        make_scored(&s, 10, &seed);
        dg_tree_reset(&draft, pick(&seed, 8));
        keep_best(&s, 8, &draft);
        for (int i = 0; i < 3; i++) {
            rig r;
            rig_open(&r, &dg_fill, V, params[i]);
            uint64_t same = learned;
            learn(&r, &same);
            t[i] = draft;
            r.offer = (dg_offer){.scored = s.c, .scored_source = 1};
            check_ok(r.drafter->ops->propose(r.drafter, &t[i], 60));
            rig_close(&r);
        }
        assert_true(t[0].n <= 61 && t[1].n <= t[0].n);
        fewer += t[1].n < t[0].n;
        for (int32_t i = 1; i < t[0].n; i++) doubles += dg_tree_child(&t[0], t[0].parent[i], t[0].token[i]) != i;
        for (int32_t i = 0; i < 60; i++) {
            int32_t text[DG_TREE_MAX] = {0};
            int32_t node = pick(&seed, t[2].n);
            for (; node; node = t[2].parent[node]) text[t[2].depth[node] - 1] = t[2].token[node];
            const int32_t a[] = {accepted(&t[0], text), accepted(&t[1], text), accepted(&t[2], text)};
            assert_true(a[0] >= a[1] && a[2] >= a[1] && a[1] >= accepted(&draft, text));
        }
    }
    assert_true(fewer > 5 && doubles > 20);
}

/* A tree that no gate stopped stays; without memory the drafter's own next best fill up; alone it is M's template. */
static void test_when(void **state) {
    (void)state;
    uint64_t seed = 5;
    static scored s;
    rig r;
    rig_open(&r, &dg_fill, V, NULL);
    make_scored(&s, MAX_SCORED, &seed);
    dg_tree t, draft, more;
    dg_tree_reset(&draft, 1);
    keep_best(&s, 8, &draft);
    r.offer = (dg_offer){.scored = s.c, .scored_source = 1};
    t = draft;
    rig_propose(&r, &t, 30);
    assert_int_equal(t.n, 31);
    dg_tree_reset(&more, 1);
    keep_best(&s, 30, &more);
    check_holds(&t, &more);
    for (int32_t i = 1; i < t.n; i++) assert_int_equal(t.source[i], 1);

    s.c.stopped = -1;
    r.offer.scored = s.c;
    t = draft;
    rig_propose(&r, &t, 30);
    assert_int_equal(t.n, draft.n);

    learn(&r, &seed);
    r.offer = (dg_offer){0};
    dg_tree_reset(&t, 1);
    rig_propose(&r, &t, 200);
    assert_in_range(t.n, 20, 53);
    rig_close(&r);
}

static void test_parameters(void **state) {
    (void)state;
    dg_drafter *d = NULL;
    dg_model model = {0};
    model.net.config.vocab_size = V;
    dg_drafter_env env = {.model = &model, .context = 64, .source = 1, .params = "append=1,skip=1"};
    check_fails(dg_fill.open(&env, &d), DG_ERR_ARGUMENT, "exclude each other");
    env.params = "merge=1";
    check_fails(dg_fill.open(&env, &d), DG_ERR_ARGUMENT, "append, skip, fit");
    env.params = NULL, env.path = "no/such/file";
    check_fails(dg_fill.open(&env, &d), DG_ERR_IO, "no/such/file");
}

/* ---- real rounds ------------------------------------------------------------------------------- */

static dg_session *open_session(dg_model *m, const char *head, const char *gates, bool fill, float temperature) {
    const dg_draft draft[] = {{"eagle3", head, gates}, {"fill", NULL, NULL}};
    const dg_session_options opt = {.context = 160, .budget = 60, .draft = draft, .n_draft = fill ? 2 : 1,
                                    .ignore_stop_tokens = true, .sampler = {.temperature = temperature, .seed = 4}};
    dg_session *s = NULL;
    check_ok(dg_session_create(m, &opt, &s));
    return s;
}

/* Each round from the same text with and without filling: never less, and no more passes of the network. */
static void compare_rounds(const char *target, const char *head, const char *gates, float temperature) {
    dg_model *m = NULL;
    check_ok(dg_model_open(target, &(dg_model_options){.threads = 2}, &m));
    dg_session *full = open_session(m, head, gates, true, temperature), *cut = open_session(m, head, gates, false, temperature);
    int32_t prompt[24];
    uint64_t seed = 8;
    for (int32_t i = 0; i < 24; i++) prompt[i] = i > 5 && pick(&seed, 2) ? prompt[i - 4] : 2 + pick(&seed, 300);
    check_ok(dg_session_sync(full, prompt, 24));
    int32_t more = 0, stopped = 0, rows = 0;
    for (int round = 0; round < 40; round++) {
        size_t n, gained, alone;
        const int32_t *text = dg_session_tokens(full, &n);
        check_ok(dg_session_sync(cut, text, n));
        check_ok(dg_session_step(full, NULL, 0, &gained));
        check_ok(dg_session_step(cut, NULL, 0, &alone));
        assert_true(gained >= alone);
        assert_true(full->tree.n >= cut->tree.n);
        check_holds(&full->tree, &cut->tree);
        dg_candidates c;
        full->slot[0].drafter->ops->candidates(full->slot[0].drafter, &c);
        if (c.stopped >= 0) assert_int_equal(full->slot[0].drafter->passes, c.stopped + 1);
        rows += c.stopped >= 0 && full->tree.n == 61; /* not where M knows nothing of the root yet */
        stopped += c.stopped >= 0;
        more += gained > alone;
    }
    print_message("%s, T %.1f: %d of 40 rounds stopped, %d of them full, %d gained by filling\n", gates, (double)temperature, stopped, rows,
                  more);
    assert_true(stopped > 0 && rows > 0);
    dg_session_free(full), dg_session_free(cut);
    dg_model_close(m);
}

static void test_real_rounds(void **state) {
    (void)state;
    if (!golden_have("eagle3/head-llama/config.json")) skip();
    static const char *const head[] = {"head-llama", "head-qwen3"}, *const target[] = {"target-llama", "target-qwen3"};
    for (int i = 0; i < 2; i++) {
        char t[512], h[512];
        snprintf(t, sizeof t, "%s", golden_path("eagle3/%s", target[i]));
        snprintf(h, sizeof h, "%s", golden_path("eagle3/%s", head[i]));
        compare_rounds(t, h, "gated=1", 0);
        compare_rounds(t, h, "gate0=1", 0.8f);
        compare_rounds(t, h, "gate1=0.9,gate5=0.9", 0);
    }
}

/* ---- the host's part --------------------------------------------------------------------------- */

static void random_pass(dg_beam *b, uint64_t *seed) {
    int32_t id[100];
    float logp[100];
    if (b->passes) dg_beam_expand(b);
    for (int32_t i = 0; i < 100; i++) {
        id[i] = (i % 10) * 3 + pick(seed, 3); /* different within a row */
        logp[i] = -0.3f * (float)(i % 10 + 1) - 0.01f * test_random(seed);
    }
    dg_beam_score(b, id, logp);
}

/* Everything that a round of Graft does on the host beside running networks: the draft's nodes out of 810 scored ones, M's
 * template and its merge, masks, the walk, what the budget learns. 61 rows; the quickest of many, as others share the
 * machine. The promise is 100 us; builds that check every access get more. */
static void test_host_time(void **state) {
    (void)state;
#if defined __OPTIMIZE__ && !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__
    const double bound = 100e-6;
#else
    const double bound = 5e-3;
#endif
    uint64_t seed = 31;
    rig r;
    rig_open(&r, &dg_fill, V, NULL);
    learn(&r, &seed);
    dg_beam beam;
    dg_arena count = {0};
    dg_beam_layout(&beam, 10, 8, &count);
    dg_arena host = {dg_mem_calloc(1, count.used), 0, count.used};
    void *block = host.base;
    dg_beam_layout(&beam, 10, 8, &host);
    static dg_budget budget;
    dg_budget_init(&budget, 0, 60, true, 0);
    double best = 1, fill = 1;
    for (int again = 0; again < 300; again++) {
        static dg_tree t;
        static uint64_t bits[DG_TREE_MAX][DG_MASK_WORDS];
        int32_t sampled[DG_TREE_MAX];
        dg_walk w;
        bool network;
        dg_beam_reset(&beam);
        for (int pass = 0; pass < 9; pass++) random_pass(&beam, &seed);
        r.offer.scored = (dg_candidates){.n = 510, .token = beam.token, .parent = beam.parent, .score = beam.score, .stopped = 5};
        r.offer.scored_source = 1;
        for (int32_t i = 0; i < DG_TREE_MAX; i++) sampled[i] = pick(&seed, 8);
        const double start = dg_now();
        dg_budget_begin(&budget, 60, &network);
        dg_tree_reset(&t, pick(&seed, V));
        dg_beam_fill(&beam, &t, 60, 24, 1);
        const double drafted = dg_now();
        check_ok(r.drafter->ops->propose(r.drafter, &t, 60));
        fill = fmin(fill, dg_now() - drafted);
        dg_budget_cut(&budget, &t);
        dg_tree_bits(&t, bits);
        dg_verify(&t, sampled, &w);
        dg_budget_learn(&budget, &t, &w, 1e-3, 2e-3, 1e-4);
        best = fmin(best, dg_now() - start);
        assert_int_equal(t.n, 61);
        assert_true(bits[60][0] & 1);
    }
    print_message("host part of a round of 61 rows: %.0f us, %.0f of them M's template and its merge\n", 1e6 * best, 1e6 * fill);
    assert_true(best < bound);
    dg_mem_free(block);
    rig_close(&r);
}

int main(void) {
    const struct CMUnitTest t[] = {cmocka_unit_test(test_merge), cmocka_unit_test(test_append_and_skip),
                                   cmocka_unit_test(test_when), cmocka_unit_test(test_parameters),
                                   cmocka_unit_test(test_real_rounds), cmocka_unit_test(test_host_time)};
    return cmocka_run_group_tests_name("fill", t, NULL, NULL);
}
