/* The beam of EAGLE's dynamic tree: the worked example of the specification, then random beams, ties included, against
 * plain definitions. */
#include "dflash/beam.h"

#include <math.h>

#include "tests/test.h"

typedef struct arena_pair {
    dg_arena a;
    dg_beam beam;
} arena_pair;

static void open_beam(arena_pair *p, int32_t width, int32_t depth) {
    dg_arena count = {0};
    dg_beam_layout(&p->beam, width, depth, &count);
    p->a = (dg_arena){dg_mem_calloc(1, count.used), 0, count.used};
    dg_beam_layout(&p->beam, width, depth, &p->a);
    dg_beam_reset(&p->beam);
}

static void close_beam(arena_pair *p) { dg_mem_free(p->a.base); }

/* ---- the worked example: six tokens, width 3, two passes behind the first --------------------- */

static const int table[6][6] = {{1, 7, 4, 2, 9, 3}, {5, 1, 8, 3, 2, 6}, {2, 9, 1, 6, 4, 3},
                                {8, 3, 5, 1, 2, 7}, {3, 6, 2, 9, 1, 4}, {4, 2, 7, 5, 8, 1}};

/* The three likeliest successors of a token. */
static void best_three(int32_t token, int32_t *id, float *logp) {
    int sum = 0;
    bool used[6] = {false};
    for (int i = 0; i < 6; i++) sum += table[token][i];
    for (int r = 0; r < 3; r++) {
        int best = -1;
        for (int i = 0; i < 6; i++)
            if (!used[i] && (best < 0 || table[token][i] > table[token][best])) best = i;
        used[best] = true;
        id[r] = best;
        logp[r] = (float)log((double)table[token][best] / sum);
    }
}

static void grow_example(dg_beam *b) {
    int32_t id[9];
    float logp[9];
    best_three(0, id, logp);
    dg_beam_score(b, id, logp);
    for (int pass = 0; pass < 2; pass++) {
        const int32_t *front = dg_beam_expand(b);
        for (int j = 0; j < 3; j++) best_three(b->token[front[j]], id + 3 * j, logp + 3 * j);
        dg_beam_score(b, id, logp);
    }
}

static void test_example(void **state) {
    (void)state;
    static const int token[21] = {4, 1, 2, 3, 1, 5, 2, 5, 0, 1, 3, 4, 0, 5, 2, 1, 3, 4, 2, 5, 0};
    static const int parent[7] = {-1, 0, 1, 2, 3, 6, 4};
    static const double product[21] = {.346154, .269231, .153846, .124615, .083077, .055385, .086154,
                                       .064615, .053846, .055385, .036923, .024615, .038343, .033550,
                                       .023964, .031015, .020677, .013785, .026585, .019938, .016615};
    arena_pair p;
    open_beam(&p, 3, 2);
    grow_example(&p.beam);
    assert_int_equal(p.beam.n, 21);
    assert_int_equal(p.beam.passes, 3);
    for (int c = 0; c < 21; c++) {
        assert_int_equal(p.beam.token[c], token[c]);
        assert_int_equal(p.beam.parent[c], parent[c / 3]);
        assert_true(fabs(exp((double)p.beam.score[c]) - product[c]) < 1e-6);
    }
    static const struct {
        int n, token[12], parent[12], depth[12];
    } want[] = {{8, {0, 4, 1, 2, 3, 1, 2, 5}, {-1, 0, 0, 0, 1, 1, 2, 2}, {0, 1, 1, 1, 2, 2, 2, 2}},
                {12, {0, 4, 1, 2, 3, 1, 5, 2, 5, 0, 1, 0}, {-1, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 4},
                 {0, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 3}}};
    for (int i = 0; i < 2; i++) {
        dg_tree t;
        dg_tree_reset(&t, 0);
        dg_beam_fill(&p.beam, &t, want[i].n - 1, 255, 1);
        assert_int_equal(t.n, want[i].n);
        for (int k = 0; k < t.n; k++) {
            assert_int_equal(t.token[k], want[i].token[k]);
            assert_int_equal(t.parent[k], want[i].parent[k]);
            assert_int_equal(t.depth[k], want[i].depth[k]);
        }
    }
    close_beam(&p);
}

/* A child as likely as its parent never goes without it. */
static void test_tie(void **state) {
    (void)state;
    arena_pair p;
    open_beam(&p, 2, 1);
    const int32_t first[2] = {5, 6}, next[4] = {7, 8, 7, 8};
    const float logp[2] = {logf(.9f), logf(.1f)}, sure[4] = {0, -INFINITY, 0, NAN};
    dg_beam_score(&p.beam, first, logp);
    dg_beam_expand(&p.beam);
    dg_beam_score(&p.beam, next, sure);
    dg_tree t;
    dg_tree_reset(&t, 0);
    dg_beam_fill(&p.beam, &t, 1, 255, 1);
    assert_int_equal(t.n, 2);
    assert_int_equal(t.token[1], 5);
    dg_tree_reset(&t, 0);
    dg_beam_fill(&p.beam, &t, 200, 255, 1);
    assert_int_equal(t.n, 5); /* the impossible ones stay out */
    close_beam(&p);
}

/* ---- random beams ----------------------------------------------------------------------------- */

/* width different tokens, best first; coarse: few different values, among them 0 and now and then nothing. */
static void random_row(uint64_t *seed, bool coarse, int32_t width, int32_t *id, float *logp) {
    float last = 0;
    for (int32_t i = 0; i < width; i++) {
        const float u = (test_random(seed) + 1) / 2;
        id[i] = 3 * i + (int32_t)(u * 3);
        if (coarse)
            last -= u < 0.5f ? 0 : u < 0.97f ? 1 : INFINITY;
        else
            last -= u + (i == 0 ? 0.01f : 0);
        logp[i] = last;
    }
}

static bool better(const dg_beam *b, int32_t x, int32_t y) {
    return b->score[x] > b->score[y] || (b->score[x] == b->score[y] && x < y);
}

/* How many candidates from `from` on are better than c. */
static int32_t rank_of(const dg_beam *b, int32_t from, int32_t c) {
    int32_t rank = 0;
    for (int32_t i = from; i < b->n; i++) rank += better(b, i, c);
    return rank;
}

static void check_front(const dg_beam *b, const int32_t *front) {
    const int32_t from = b->n - (b->passes > 1 ? b->width * b->width : b->width);
    for (int32_t j = 0; j < b->width; j++) {
        assert_in_range(front[j], from, b->n - 1);
        if (b->score[front[j]] > -INFINITY) assert_int_equal(rank_of(b, from, front[j]), j);
    }
}

/* The definition: the best `budget` of all, in order of creation. */
static void check_fill(const dg_beam *b, const dg_tree *t, int32_t budget) {
    int32_t node = 1, where[8192];
    for (int32_t c = 0; c < b->n; c++) {
        where[c] = -1;
        if (b->score[c] == -INFINITY || rank_of(b, 0, c) >= budget) continue;
        assert_true(node < t->n);
        assert_int_equal(t->token[node], b->token[c]);
        assert_int_equal(t->parent[node], b->parent[c] < 0 ? 0 : where[b->parent[c]]);
        assert_true(t->score[node] == b->score[c]);
        where[c] = node++;
    }
    assert_int_equal(node, t->n);
}

/* In a tree that another drafter has begun: its nodes stay, ours take what is left, parents are there. */
static void check_merge(dg_beam *b, uint64_t *seed, int32_t budget, int32_t keep) {
    dg_tree t, before;
    dg_tree_reset(&t, 0);
    const int32_t others = (int32_t)((test_random(seed) + 1) / 2 * (float)budget);
    for (int32_t i = 0; i < others; i++) {
        const int32_t c = (int32_t)((test_random(seed) + 1) / 2 * (float)b->width);
        dg_tree_add(&t, (int32_t)((test_random(seed) + 1) / 2 * (float)t.n), i % 3 ? 500 + i : b->token[c], -1, 2);
    }
    before = t;
    dg_beam_fill(b, &t, budget, keep, 1);
    assert_true(t.n <= budget + 1 && t.n - before.n <= keep);
    assert_memory_equal(t.token, before.token, (size_t)before.n * sizeof *t.token);
    assert_memory_equal(t.parent, before.parent, (size_t)before.n * sizeof *t.parent);
    assert_memory_equal(t.source, before.source, (size_t)before.n);
    int32_t possible = 0;
    for (int32_t c = 0; c < b->n; c++) possible += b->score[c] > -INFINITY;
    if (possible >= budget && keep >= budget) assert_int_equal(t.n, budget + 1);
    for (int32_t i = before.n; i < t.n; i++) {
        assert_int_equal(t.source[i], 1);
        assert_int_equal(dg_tree_child(&t, t.parent[i], t.token[i]), i); /* no twins */
    }
}

static void one_beam(uint64_t *seed, int32_t width, int32_t depth, bool coarse) {
    arena_pair p;
    open_beam(&p, width, depth);
    dg_beam *b = &p.beam;
    const int32_t budget = 1 + (int32_t)((test_random(seed) + 1) / 2 * 70);
    int32_t id[256];
    float logp[256];
    dg_tree early, t;
    bool settled = false;
    random_row(seed, coarse, width, id, logp);
    dg_beam_score(b, id, logp);
    for (int32_t pass = 0; pass < depth; pass++) {
        if (!settled && (settled = dg_beam_settled(b, budget))) {
            dg_tree_reset(&early, 0);
            dg_beam_fill(b, &early, budget, 255, 1);
        }
        const int32_t *front = dg_beam_expand(b);
        check_front(b, front);
        for (int32_t j = 0; j < width; j++) random_row(seed, coarse, width, id + j * width, logp + j * width);
        dg_beam_score(b, id, logp);
        for (int32_t c = b->n - width * width; c < b->n; c++) assert_int_equal(b->parent[c], b->slot[c / width - 1]);
    }
    dg_tree_reset(&t, 0);
    dg_beam_fill(b, &t, budget, 255, 1);
    check_fill(b, &t, budget);
    if (settled) {
        assert_int_equal(t.n, early.n);
        assert_memory_equal(t.token, early.token, (size_t)t.n * sizeof *t.token);
        assert_memory_equal(t.parent, early.parent, (size_t)t.n * sizeof *t.parent);
    }
    check_merge(b, seed, budget, (int32_t)((test_random(seed) + 1) * 60));
    close_beam(&p);
}

static void test_random_beams(void **state) {
    (void)state;
    static const struct {
        int width, depth;
    } shape[] = {{1, 0}, {1, 7}, {2, 3}, {3, 3}, {4, 0}, {4, 5}, {10, 2}, {10, 7}};
    uint64_t seed = 5;
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++)
        for (int round = 0; round < 120; round++) one_beam(&seed, shape[i].width, shape[i].depth, round % 2);
}

int main(void) {
    const struct CMUnitTest t[] = {cmocka_unit_test(test_example), cmocka_unit_test(test_tie),
                                   cmocka_unit_test(test_random_beams)};
    return cmocka_run_group_tests_name("beam", t, NULL, NULL);
}
