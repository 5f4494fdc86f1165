/* EAGLE-3 heads against SafeAILab's own code: features, hidden rows, log-probabilities, every level of the beam, the
 * final tree, round after round along the recorded tokens; then whole greedy runs. */
#include "tests/test.h"

#include <math.h>

#include "dflash/eagle3.h"
#include "runtime/session.h"

typedef struct setup {
    dg_model *model;
    dg_session *full, *quick, *first; /* every pass; those that matter; none behind the first */
    json_t *expected;
    dg_file *tensors, *head;
    int32_t total, depth, width, hidden;
    double tolerance;
    bool exact; /* compare ids and trees, not only numbers */
    int64_t passes_full, passes_quick;
} setup;

static dg_drafter *drafter_of(const dg_session *s) { return s->slot[0].drafter; }

static dg_session *open_session(const setup *u, const char *path, int32_t depth, bool full) {
    char params[64];
    snprintf(params, sizeof params, "depth=%d,topk=%d,full=%d", depth, u->width, full);
    const dg_draft draft = {"eagle3", path, params};
    const dg_session_options opt = {.context = 256, .budget = u->total - 1, .draft = &draft, .n_draft = 1,
                                    .ignore_stop_tokens = true};
    dg_session *s = NULL;
    check_ok(dg_session_create(u->model, &opt, &s));
    return s;
}

static int32_t number(const json_t *o, const char *key) { return (int32_t)json_integer_value(json_object_get(o, key)); }

static void open_setup(setup *u, const char *path, const char *name, const char *run) {
    const dg_model_options mopt = {.threads = 2, .compute = DG_COMPUTE_F32, .device = test_device()};
    u->expected = golden_json("eagle3/%s/%s.json", name, run);
    u->tensors = golden_tensors("eagle3/%s/%s.safetensors", name, run);
    u->head = golden_tensors("eagle3/%s", name);
    u->total = number(u->expected, "total_token");
    u->depth = number(u->expected, "depth");
    u->width = number(u->expected, "top_k");
    check_ok(dg_model_open(golden_path("eagle3/%s", json_string_value(json_object_get(u->expected, "target"))), &mopt, &u->model));
    u->hidden = u->model->net.config.hidden_size;
    u->full = open_session(u, path, u->depth, true);
    u->quick = open_session(u, path, u->depth, false);
    u->first = open_session(u, path, 0, true);
}

static void close_setup(setup *u) {
    dg_session_free(u->full);
    dg_session_free(u->quick);
    dg_session_free(u->first);
    dg_model_close(u->model);
    dg_file_close(u->tensors);
    dg_file_close(u->head);
    json_decref(u->expected);
}

/* Draft ids are recorded where the original has them: to ids of the target. */
static int32_t target_id(const setup *u, int32_t id) {
    const dg_file_tensor *d2t = dg_file_find(u->head, "d2t");
    return d2t ? id + (int32_t)((const int64_t *)d2t->data)[id] : id;
}

/* NULL: not recorded for this round. */
static const float *recorded(const setup *u, int c, int r, const char *what, size_t *n) {
    char name[96];
    snprintf(name, sizeof name, "case%d.round%d.%s", c, r, what);
    return dg_file_find(u->tensors, name) ? golden_f32(u->tensors, name, n) : NULL;
}

static void log_softmax(const float *x, int32_t n, float *out) {
    double max = (double)x[0], sum = 0;
    for (int32_t i = 1; i < n; i++) max = fmax(max, (double)x[i]);
    for (int32_t i = 0; i < n; i++) sum += exp((double)x[i] - max);
    for (int32_t i = 0; i < n; i++) out[i] = (float)((double)x[i] - max - log(sum));
}

/* The original runs the new rows at once; of a longer span ours never makes the output of any row but the last, so here
 * they come one by one. */
static void check_extend(const setup *u, int c, int r, const int32_t *context, size_t n_context, size_t n_new) {
    size_t n;
    const float *hidden = recorded(u, c, r, "extend_hidden", &n);
    if (!hidden) return;
    const size_t h = (size_t)u->hidden;
    const dg_slot *slot = &u->first->slot[0];
    assert_int_equal(n, n_new * h);
    const float *features = recorded(u, c, r, "features", &n);
    assert_int_equal(n, n_new * (size_t)slot->n_tap * h);
    for (size_t i = 0; i < n_new; i++) {
        const size_t before = (size_t)u->first->kv.len;
        check_ok(dg_session_sync(u->first, context, n_context - n_new + i + 1));
        assert_int_equal(u->first->kv.len, before + 1);
        check_near(host_rows(u->model->be, dg_mat_rows(dg_eagle3_state(drafter_of(u->first)), 0, 1)), hidden + i * h, h, u->tolerance, "extend_hidden");
        for (int32_t t = 0; t < slot->n_tap; t++)
            check_near(host_rows(u->model->be, dg_mat_rows(slot->feature[t], 0, 1)), features + (i * (size_t)slot->n_tap + (size_t)t) * h, h, u->tolerance, "features");
    }
    dg_tree tree;
    dg_tree_reset(&tree, context[n_context - 1]);
    check_ok(drafter_of(u->first)->ops->propose(drafter_of(u->first), &tree, u->total - 1));
    const dg_mat logits = dg_eagle3_logits(drafter_of(u->first));
    assert_int_equal(logits.rows, 1);
    float *logp = malloc((size_t)logits.cols * sizeof *logp);
    const float *want = recorded(u, c, r, "extend_logprobs", &n);
    assert_int_equal(n, logits.cols);
    log_softmax(host_rows(u->model->be, logits), logits.cols, logp);
    check_near(logp, want, n, u->tolerance, "extend_logprobs");
    free(logp);
}

static void check_numbers(const setup *u, int c, int r) {
    size_t n;
    const float *scores = recorded(u, c, r, "candidate_scores", &n);
    if (!scores) return;
    const dg_drafter *d = drafter_of(u->full);
    const dg_beam *beam = dg_eagle3_beam(d);
    assert_int_equal(n, beam->n);
    check_near(beam->score, scores, n, u->tolerance, "candidate_scores");
    const float *hidden = recorded(u, c, r, "step_hidden", &n);
    const dg_mat state = dg_eagle3_state(d);
    assert_int_equal(n, (size_t)(u->depth * u->width * u->hidden));
    assert_int_equal(state.rows, 1 + u->depth * u->width);
    check_near(host_rows(u->model->be, dg_mat_rows(state, 1, state.rows - 1)), hidden, n, u->tolerance, "step_hidden");
}

static int32_t at2(const json_t *list, int i, int j) {
    return (int32_t)json_integer_value(json_array_get(json_array_get(list, (size_t)i), (size_t)j));
}

static void check_levels(const setup *u, const json_t *round) {
    const dg_drafter *d = drafter_of(u->full);
    const dg_beam *beam = dg_eagle3_beam(d);
    const json_t *top = json_object_get(round, "level_top"), *keep = json_object_get(round, "level_keep");
    const json_t *ids = json_object_get(round, "step_ids"), *pos = json_object_get(round, "step_position_ids");
    const int32_t k = u->width;
    assert_int_equal(json_array_size(top), u->depth + 1);
    assert_int_equal(beam->passes, u->depth + 1);
    for (int32_t level = 0, c = 0; level <= u->depth; level++)
        for (int32_t row = 0; row < (level ? k : 1); row++)
            for (int32_t i = 0; i < k; i++, c++)
                assert_int_equal(beam->token[c], target_id(u, at2(json_array_get(top, (size_t)level), row, i)));
    int32_t win_pos[DG_TREE_MAX];
    u->model->be->ops->download(u->model->be, win_pos, dg_eagle3_kv(d)->win_pos, (size_t)(u->depth * k) * sizeof *win_pos);
    for (int32_t pass = 0; pass < u->depth; pass++)
        for (int32_t j = 0; j < k; j++) {
            const int32_t slot = pass * k + j, c = beam->slot[slot];
            assert_int_equal(beam->token[c], at2(ids, pass, j));
            assert_int_equal(win_pos[slot], at2(pos, pass, j));
            assert_int_equal(c, pass ? k + (pass - 1) * k * k + at2(keep, pass - 1, j) : j);
        }
}

static void check_tree(const setup *u, const json_t *round, const dg_tree *tree) {
    const dg_beam *beam = dg_eagle3_beam(drafter_of(u->full));
    const json_t *mask = json_object_get(round, "tree_mask");
    size_t n, n_kept, n_depth;
    int32_t *token = json_ints(json_object_get(round, "draft_tokens"), &n);
    int32_t *depth = json_ints(json_object_get(round, "tree_position_ids"), &n_depth);
    int32_t *kept = json_ints(json_object_get(round, "kept"), &n_kept);
    uint64_t bits[DG_TREE_MAX][DG_MASK_WORDS];
    dg_tree_bits(tree, bits);
    assert_int_equal(tree->n, n);
    assert_int_equal(n_depth, n);
    assert_int_equal(n_kept, n - 1);
    for (size_t i = 0; i < n; i++) {
        const char *row = json_string_value(json_array_get(mask, i));
        assert_int_equal(tree->token[i], token[i]);
        assert_int_equal(tree->depth[i], depth[i]);
        if (i) assert_int_equal(beam->token[kept[i - 1]], token[i]);
        if (i) assert_true(tree->score[i] == beam->score[kept[i - 1]]);
        for (size_t j = 0; j < n; j++) assert_int_equal(bits[i][j / 64] >> (j % 64) & 1, row[j] == '1');
    }
    free(token), free(depth), free(kept);
}

/* The same tree without the passes that cannot change it. */
static void check_quick(setup *u, const int32_t *context, size_t n_context, const dg_tree *want) {
    dg_drafter *full = drafter_of(u->full), *quick = drafter_of(u->quick);
    dg_tree tree;
    dg_tree_reset(&tree, context[n_context - 1]);
    check_ok(dg_session_sync(u->quick, context, n_context));
    quick->passes = 0;
    check_ok(quick->ops->propose(quick, &tree, u->total - 1));
    assert_int_equal(tree.n, want->n);
    for (int32_t i = 0; i < tree.n; i++) {
        assert_int_equal(tree.token[i], want->token[i]);
        assert_int_equal(tree.parent[i], want->parent[i]);
        assert_true(tree.score[i] == want->score[i]);
    }
    assert_true(quick->passes <= full->passes);
    u->passes_full += full->passes;
    u->passes_quick += quick->passes;
}

static int follow_rounds(setup *u) {
    int n_rounds = 0;
    const json_t *cases = json_object_get(u->expected, "cases");
    for (size_t c = 0; c < json_array_size(cases); c++) {
        const json_t *rounds = json_object_get(json_array_get(cases, c), "rounds");
        const int32_t clear[1] = {0};
        check_ok(dg_session_sync(u->full, clear, 1)); /* forget the last case */
        check_ok(dg_session_sync(u->first, clear, 1));
        for (size_t r = 0; r < json_array_size(rounds); r++, n_rounds++) {
            const json_t *round = json_array_get(rounds, r);
            size_t n_context;
            int32_t *context = json_ints(json_object_get(round, "context"), &n_context);
            assert_int_equal(dg_eagle3_kv(drafter_of(u->full))->len, number(round, "draft_cache_len"));
            check_extend(u, (int)c, (int)r, context, n_context, json_array_size(json_object_get(round, "extend_ids")));
            check_ok(dg_session_sync(u->full, context, n_context));
            dg_drafter *d = drafter_of(u->full);
            dg_tree tree;
            dg_tree_reset(&tree, context[n_context - 1]);
            d->passes = 0;
            check_ok(d->ops->propose(d, &tree, u->total - 1));
            assert_int_equal(dg_eagle3_kv(d)->len, n_context - 1);
            if (u->exact) check_levels(u, round);
            if (u->exact) check_numbers(u, (int)c, (int)r);
            if (u->exact) check_tree(u, round, &tree);
            check_quick(u, context, n_context, &tree);
            free(context);
        }
    }
    return n_rounds;
}

/* Whole greedy runs from the first sampled token on: what each round gained, and the text. */
static void whole_runs(const setup *u) {
    const json_t *cases = json_object_get(u->expected, "cases");
    for (size_t c = 0; c < json_array_size(cases); c++) {
        const json_t *one = json_array_get(cases, c), *rounds = json_object_get(one, "rounds");
        size_t n_context, n_plain, n, total;
        int32_t *context = json_ints(json_object_get(json_array_get(rounds, 0), "context"), &n_context);
        int32_t *plain = json_ints(json_object_get(one, "plain_greedy"), &n_plain);
        check_ok(dg_session_sync(u->quick, context, n_context));
        for (size_t r = 0; r < json_array_size(rounds); r++) {
            check_ok(dg_session_step(u->quick, NULL, 0, &n));
            assert_int_equal(n, number(json_array_get(rounds, r), "accept_length") + 1);
        }
        const int32_t *got = dg_session_tokens(u->quick, &total);
        assert_memory_equal(got, plain, (total < n_plain ? total : n_plain) * sizeof *got);
        free(context), free(plain);
    }
}

static void check_head(const char *name, const char *run) {
    setup u = {.tolerance = 2e-4, .exact = true};
    char path[512];
    snprintf(path, sizeof path, "%s", golden_path("eagle3/%s", name));
    open_setup(&u, path, name, run);
    assert_true(follow_rounds(&u) >= 5);
    if (json_number_value(json_object_get(u.expected, "temperature")) == 0) whole_runs(&u);
    print_message("%s %s: %d passes where the original has %d\n", name, run, (int)u.passes_quick, (int)u.passes_full);
    close_setup(&u);
}

static void test_llama(void **state) {
    (void)state;
    check_head("head-llama", "n60d7k10");
    check_head("head-llama", "n16d3k4");
    check_head("head-llama", "n24d4k5-t");
}

static void test_qwen3(void **state) {
    (void)state;
    check_head("head-qwen3", "n60d7k10");
    check_head("head-qwen3", "n8d2k3");
}

static void test_weak(void **state) {
    (void)state;
    check_head("head-llama-weak", "n60d7k10");
    check_head("head-llama-weak", "n16d3k4");
    check_head("head-llama-weak", "n6d4k1");
    check_head("head-llama-weak", "n32d8k4");
    check_head("head-llama-weak", "n40d4k8-t");
}

/* llama.cpp's conversions of the same heads: rows for interleaved rope, absolute ids, boundaries from the file. */
static void check_gguf(const char *file, const char *name, const char *run, bool exact) {
    setup u = {.tolerance = exact ? 2e-4 : 2e-2, .exact = exact};
    char path[512];
    snprintf(path, sizeof path, "%s", golden_path("gguf/models/%s", file));
    open_setup(&u, path, name, run);
    assert_true(follow_rounds(&u) >= 5);
    close_setup(&u);
}

static void test_gguf(void **state) {
    (void)state;
    if (!golden_have("gguf/models/eagle3-head-llama.f32.gguf")) skip();
    check_gguf("eagle3-head-llama.f32.gguf", "head-llama", "n60d7k10", true);
    check_gguf("eagle3-head-llama.f32.gguf", "head-llama", "n16d3k4", true);
    check_gguf("eagle3-head-llama.f16.gguf", "head-llama", "n16d3k4", false);
    check_gguf("eagle3-head-qwen3.f16.gguf", "head-qwen3", "n8d2k3", false);
}

static void test_refused(void **state) {
    (void)state;
    dg_model *m = NULL;
    dg_session *s = NULL;
    check_ok(dg_model_open(golden_path("eagle3/target-qwen3"), NULL, &m));
    dg_draft draft = {"eagle3", golden_path("eagle3/target-llama"), NULL};
    const dg_session_options opt = {.draft = &draft, .n_draft = 1};
    check_fails(dg_session_create(m, &opt, &s), DG_ERR_ARGUMENT, "expected an EAGLE-3 head");
    draft.name = "dflash", draft.path = golden_path("eagle3/head-qwen3");
    check_fails(dg_session_create(m, &opt, &s), DG_ERR_ARGUMENT, "expected a DFlash drafter");
    draft.name = "eagle3", draft.params = "topk=321";
    check_fails(dg_session_create(m, &opt, &s), DG_ERR_ARGUMENT, "topk");
    dg_model_close(m);
    check_fails(dg_model_open(golden_path("eagle3/head-qwen3"), NULL, &m), DG_ERR_ARGUMENT, "--draft eagle3:");
}

int main(void) {
    if (device_missing()) return 0;
    if (!golden_have("eagle3/head-llama/config.json")) return 0;
    const struct CMUnitTest t[] = {cmocka_unit_test(test_llama), cmocka_unit_test(test_qwen3), cmocka_unit_test(test_gguf),
                                   cmocka_unit_test(test_refused), cmocka_unit_test(test_weak)};
    /* the last is the network of the first with other weights, and as long as all others: too long for a simulated device */
    if (test_device()) return _cmocka_run_group_tests("golden eagle3", t, sizeof t / sizeof *t - 1, NULL, NULL);
    return cmocka_run_group_tests_name("golden eagle3", t, NULL, NULL);
}
