/* Drafters exported by the training pipeline against what the trainer recorded: drafts and logits of DFlash blocks and of
 * EAGLE-3 chains, as folders and as GGUF files. The files are made by `make train-smoke`; without them there is nothing to test. */
#include "tests/test.h"

#include "dflash/dflash.h"
#include "dflash/eagle3.h"
#include "runtime/convert.h"
#include "runtime/session.h"
#include "tests/files.h"

static char tmp[64]; /* for the converted files */

typedef struct trained {
    dg_model *model;
    dg_session *session;
    json_t *expected;
    dg_file *tensors;
    dg_mat (*last_logits)(const dg_drafter *d);
} trained;

static void open_trained(trained *t, const char *name, bool gguf, const char *params, int32_t budget) {
    const dg_model_options mopt = {.threads = 1, .compute = DG_COMPUTE_F32};
    check_ok(dg_model_open(golden_path("trained/target"), &mopt, &t->model));
    char folder[512], path[512];
    snprintf(folder, sizeof folder, "%s", golden_path("trained/%s", name));
    snprintf(path, sizeof path, gguf ? "%s/%s.gguf" : "%s", gguf ? tmp : folder, name);
    if (gguf) check_ok(dg_convert(folder, path, DG_F32, NULL, NULL));
    const dg_draft draft = {name, path, params};
    const dg_session_options opt = {.context = 128, .budget = budget, .draft = &draft, .n_draft = 1, .ignore_stop_tokens = true};
    check_ok(dg_session_create(t->model, &opt, &t->session));
    t->expected = golden_json("trained/%s/expected.json", name);
    t->tensors = golden_tensors("trained/%s/expected.safetensors", name);
}

static void close_trained(trained *t) {
    dg_session_free(t->session);
    dg_model_close(t->model);
    dg_file_close(t->tensors);
    json_decref(t->expected);
}

/* The drafter proposes the recorded chain after the recorded tokens. */
static void check_round(trained *t, const int32_t *text, size_t c, size_t r, const json_t *round) {
    const size_t start = (size_t)json_integer_value(json_object_get(round, "start"));
    size_t n, size;
    int32_t *want = json_ints(json_object_get(round, "draft_tokens"), &n);
    check_ok(dg_session_sync(t->session, text, start + 1));
    dg_drafter *d = t->session->slot[0].drafter;
    dg_tree tree;
    dg_tree_reset(&tree, text[start]);
    check_ok(d->ops->propose(d, &tree, (int32_t)n));
    assert_int_equal(tree.n, n + 1);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(tree.token[i + 1], want[i]);
        assert_int_equal(tree.parent[i + 1], i);
    }
    free(want);
    char name[64];
    snprintf(name, sizeof name, "case%zu.round%zu.draft_logits", c, r);
    if (!dg_file_find(t->tensors, name)) return;
    const float *want_logits = golden_f32(t->tensors, name, &size);
    const dg_mat got = t->last_logits(d); /* DFlash: of the block; EAGLE-3: of its last step */
    const size_t n_got = (size_t)got.rows * (size_t)got.cols;
    assert_true(n_got > 0 && size == n * (size_t)got.cols && (size_t)got.rows <= n);
    check_near(got.data, want_logits + size - n_got, n_got, 1e-3, name);
}

static void follow(trained *t) {
    const json_t *cases = json_object_get(t->expected, "cases");
    int n_round = 0;
    for (size_t c = 0; c < json_array_size(cases); c++) {
        const json_t *rounds = json_object_get(json_array_get(cases, c), "rounds");
        size_t n_text;
        int32_t *text = json_ints(json_object_get(json_array_get(cases, c), "output_ids"), &n_text);
        const int32_t clear[1] = {0};
        check_ok(dg_session_sync(t->session, clear, 1));
        for (size_t r = 0; r < json_array_size(rounds); r++, n_round++)
            check_round(t, text, c, r, json_array_get(rounds, r));
        free(text);
    }
    assert_true(n_round >= 6);
    close_trained(t);
}

static void check_dflash(bool gguf) {
    trained t = {.last_logits = dg_dflash_logits};
    json_t *config = golden_json("trained/dflash/config.json");
    open_trained(&t, "dflash", gguf, NULL, (int32_t)json_integer_value(json_object_get(config, "block_size")) - 1);
    json_decref(config);
    follow(&t);
}

static void check_eagle3(bool gguf) {
    trained t = {.last_logits = dg_eagle3_logits};
    open_trained(&t, "eagle3", gguf, "depth=4,topk=1,full=1", 5);
    follow(&t);
}

static void test_dflash(void **state) {
    (void)state;
    check_dflash(false);
}

static void test_dflash_gguf(void **state) {
    (void)state;
    check_dflash(true);
}

static void test_eagle3(void **state) {
    (void)state;
    check_eagle3(false);
}

static void test_eagle3_gguf(void **state) {
    (void)state;
    check_eagle3(true);
}

static int setup(void **state) {
    (void)state;
    strcpy(tmp, test_tmpdir());
    return 0;
}

static int teardown(void **state) {
    (void)state;
    remove_tree(tmp);
    return 0;
}

int main(void) {
    if (!golden_have("trained/dflash/config.json")) return 0;
    const struct CMUnitTest t[] = {cmocka_unit_test(test_dflash), cmocka_unit_test(test_dflash_gguf),
                                   cmocka_unit_test(test_eagle3), cmocka_unit_test(test_eagle3_gguf)};
    return cmocka_run_group_tests_name("trained", t, setup, teardown);
}
