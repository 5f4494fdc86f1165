/* The DFlash drafter against z-lab's own code: features, hidden rows, logits, drafts and caches round after round,
 * along the recorded tokens; then whole runs. */
#include "tests/test.h"

#include <unistd.h>

#include "dflash/dflash.h"
#include "runtime/session.h"

typedef struct setup {
    dg_model *model;
    dg_session *session;
    dg_drafter *drafter;
    json_t *expected;
    dg_file *tensors;
    int32_t block, hidden, vocab;
} setup;

static void open_setup(setup *u, const char *drafter_dir, const char *target, const char *params, int32_t budget) {
    const dg_model_options mopt = {.threads = 2, .compute = DG_COMPUTE_F32, .device = test_device()};
    check_ok(dg_model_open(golden_path("dflash/%s", target), &mopt, &u->model));
    const dg_draft draft = {"dflash", drafter_dir, params};
    const dg_session_options opt = {.context = 256, .budget = budget, .draft = &draft, .n_draft = 1, .ignore_stop_tokens = true};
    check_ok(dg_session_create(u->model, &opt, &u->session));
    u->drafter = u->session->slot[0].drafter;
    u->hidden = u->model->net.config.hidden_size;
    u->vocab = u->model->net.config.vocab_size;
    u->block = dg_dflash_hidden(u->drafter).rows;
}

static void close_setup(setup *u) {
    dg_session_free(u->session);
    dg_model_close(u->model);
    dg_file_close(u->tensors);
    json_decref(u->expected);
}

/* The drafts of a round as recorded: v1 names them, v2 keeps root and drafts together. */
static int32_t *recorded_drafts(const json_t *round, size_t *n) {
    const json_t *d = json_object_get(round, "draft_tokens");
    if (d) return json_ints(d, n);
    int32_t *v = json_ints(json_object_get(round, "verify_ids"), n);
    memmove(v, v + 1, (*n - 1) * sizeof *v);
    --*n;
    return v;
}

static void check_round_tensors(const setup *u, int c, int r) {
    char name[96];
    size_t size;
    snprintf(name, sizeof name, "case%d.round%d.draft_hidden", c, r);
    if (!dg_file_find(u->tensors, name)) return;
    const float *want = golden_f32(u->tensors, name, &size);
    if (size != (size_t)(u->block * u->hidden)) return; /* v2's shortened last block */
    check_near(host_rows(u->model->be, dg_dflash_hidden(u->drafter)), want, size, 2e-4, name);
    snprintf(name, sizeof name, "case%d.round%d.draft_logits", c, r);
    want = golden_f32(u->tensors, name, &size);
    assert_int_equal(size, (u->block - 1) * u->vocab);
    check_near(host_rows(u->model->be, dg_dflash_logits(u->drafter)), want, size, 2e-4, name);
    /* taps of the last rows that were committed, in the file's order */
    snprintf(name, sizeof name, "case%d.round%d.target_hidden", c, r);
    want = golden_f32(u->tensors, name, &size);
    const dg_slot *slot = &u->session->slot[0];
    const size_t rows = size / (size_t)(slot->n_tap * u->hidden);
    for (size_t i = 0; i < rows; i++)
        for (int32_t t = 0; t < slot->n_tap; t++)
            check_near(host_rows(u->model->be, dg_mat_rows(slot->feature[t], (int32_t)i, 1)), want + (i * (size_t)slot->n_tap + (size_t)t) * (size_t)u->hidden,
                       (size_t)u->hidden, 2e-4, name);
}

static void check_cache(const setup *u, int c) {
    const dg_kv *kv = dg_dflash_kv(u->drafter);
    for (int32_t l = 0; l < kv->n_layer; l++) {
        char name[96];
        size_t size;
        for (int v = 0; v < 2; v++) {
            snprintf(name, sizeof name, "case%d.final_cache_%c.%d", c, v ? 'v' : 'k', l);
            const dg_file_tensor *t = dg_file_find(u->tensors, name);
            if (!t) continue;
            const float *want = golden_f32(u->tensors, name, &size);
            const int64_t heads = t->dim[0], len = t->dim[1], hd = t->dim[2];
            assert_true(len <= kv->len && size > 0);
            float *rows = kv_rows(u->model->be, kv, l, v);
            for (int64_t h = 0; h < heads; h++)
                for (int64_t r = 0; r < len; r++)
                    check_near(rows + r * kv->width + h * hd, want + (h * len + r) * hd, (size_t)hd, 2e-4, name);
            free(rows);
        }
    }
}

/* Follows every recorded round: the drafter must propose the recorded block from the recorded tokens. */
static int follow_rounds(const setup *u) {
    int n_rounds = 0;
    const json_t *cases = json_object_get(u->expected, "cases");
    for (size_t c = 0; c < json_array_size(cases); c++) {
        const json_t *one = json_array_get(cases, c), *rounds = json_object_get(one, "rounds");
        size_t n_out;
        int32_t *out = json_ints(json_object_get(one, "output_ids"), &n_out);
        const int32_t clear[1] = {0};
        check_ok(dg_session_sync(u->session, clear, 1)); /* forget the last case */
        for (size_t r = 0; r < json_array_size(rounds); r++) {
            const json_t *round = json_array_get(rounds, r);
            const size_t start = (size_t)json_integer_value(json_object_get(round, "start"));
            if (start >= n_out) break;
            check_ok(dg_session_sync(u->session, out, start + 1));
            dg_tree tree;
            dg_tree_reset(&tree, out[start]);
            check_ok(u->drafter->ops->propose(u->drafter, &tree, u->block - 1));
            check_round_tensors(u, (int)c, (int)r);
            size_t n;
            int32_t *want = recorded_drafts(round, &n);
            if ((int32_t)n == u->block - 1) {
                assert_int_equal(tree.n, u->block);
                for (size_t i = 0; i < n; i++) {
                    assert_int_equal(tree.token[i + 1], want[i]);
                    assert_int_equal(tree.parent[i + 1], i);
                }
                n_rounds++;
            }
            free(want);
        }
        check_ok(dg_session_sync(u->session, out, n_out));
        check_cache(u, (int)c);
        free(out);
    }
    return n_rounds;
}

/* Whole greedy runs from the first sampled token on: text, and the tokens that each round gained. */
static void whole_runs(const setup *u) {
    const json_t *cases = json_object_get(u->expected, "cases");
    for (size_t c = 0; c < json_array_size(cases); c++) {
        const json_t *one = json_array_get(cases, c);
        if (json_number_value(json_object_get(one, "temperature")) > 0) continue;
        size_t n_prompt, n_out, n_len;
        int32_t *prompt = json_ints(json_object_get(one, "prompt"), &n_prompt);
        int32_t *plain = json_ints(json_object_get(one, "plain_greedy"), &n_out);
        int32_t *len = json_ints(json_object_get(one, "acceptance_lengths"), &n_len);
        check_ok(dg_session_sync(u->session, plain, n_prompt + 1));
        dg_session_limit(u->session, n_out - n_prompt - 1);
        for (size_t r = 0; dg_session_stopped(u->session) == DG_STOP_NONE; r++) {
            size_t n;
            check_ok(dg_session_step(u->session, NULL, 0, &n));
            if (dg_session_stopped(u->session) != DG_STOP_NONE) break; /* cut by the limit */
            assert_true(r < n_len);
            assert_int_equal(n, len[r]);
        }
        size_t total;
        const int32_t *got = dg_session_tokens(u->session, &total);
        assert_int_equal(total, n_out);
        assert_memory_equal(got, plain, n_out * sizeof *got);
        free(prompt), free(plain), free(len);
    }
}

static void check_drafter(const char *name, const char *dir, const char *expected) {
    setup u = {0};
    char path[512];
    snprintf(path, sizeof path, "%s", dir ? dir : golden_path("dflash/%s", name));
    u.expected = golden_json("dflash/%s/%s.json", name, expected);
    u.tensors = golden_tensors("dflash/%s/%s.safetensors", name, expected);
    open_setup(&u, path, json_string_value(json_object_get(u.expected, "target")), NULL, 0);
    dg_session_free(u.session); /* again with a budget of a whole block */
    const dg_draft draft = {"dflash", path, NULL};
    const dg_session_options opt = {.context = 256, .budget = u.block - 1, .draft = &draft, .n_draft = 1, .ignore_stop_tokens = true};
    check_ok(dg_session_create(u.model, &opt, &u.session));
    u.drafter = u.session->slot[0].drafter;
    assert_true(follow_rounds(&u) >= 3);
    whole_runs(&u);
    close_setup(&u);
}

static void test_d1(void **state) { (void)state, check_drafter("d1-b8", NULL, "expected"); }
static void test_d1_random(void **state) { (void)state, check_drafter("d1-b8-random", NULL, "expected"); }
static void test_d2(void **state) { (void)state, check_drafter("d2-b16", NULL, "expected"); }
static void test_d2_bias(void **state) { (void)state, check_drafter("d2-b8-bias", NULL, "expected"); }
static void test_swa_v2(void **state) { (void)state, check_drafter("d3-b16-swa", NULL, "expected_v2"); }

/* v1 ran every layer with full attention: the same weights under a config that says so. */
static void test_swa_v1(void **state) {
    (void)state;
    const char *dir = test_tmpdir();
    char path[512];
    json_t *c = golden_json("dflash/d3-b16-swa/config.json");
    json_object_set_new(c, "layer_types", json_pack("[s,s,s]", "full_attention", "full_attention", "full_attention"));
    json_object_set_new(c, "sliding_window", json_null());
    snprintf(path, sizeof path, "%s/config.json", dir);
    assert_int_equal(json_dump_file(c, path, 0), 0);
    json_decref(c);
    char *from = realpath(golden_path("dflash/d3-b16-swa/model.safetensors"), NULL);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_int_equal(symlink(from, path), 0);
    free(from);
    check_drafter("d3-b16-swa", dir, "expected");
}

/* The same drafter described in the speculators library's words, where layer ids are one higher. */
static void test_speculators(void **state) {
    (void)state;
    const char *dir = test_tmpdir();
    char path[512];
    json_t *body = golden_json("dflash/d1-b8/config.json"), *ids = json_array(), *id;
    json_t *own = json_object_get(body, "dflash_config");
    size_t i;
    json_array_foreach(json_object_get(own, "target_layer_ids"), i, id)
        json_array_append_new(ids, json_integer(json_integer_value(id) + 1));
    json_t *c = json_pack("{s:s,s:[s],s:O,s:i,s:o,s:O,s:O}", "speculators_model_type", "dflash", "architectures",
                          "DFlashSpeculator", "block_size", json_object_get(body, "block_size"), "draft_vocab_size",
                          (int)json_integer_value(json_object_get(body, "vocab_size")), "aux_hidden_state_layer_ids", ids,
                          "mask_token_id", json_object_get(own, "mask_token_id"), "transformer_layer_config", body);
    assert_non_null(c);
    json_object_del(body, "dflash_config");
    json_object_del(body, "block_size");
    snprintf(path, sizeof path, "%s/config.json", dir);
    assert_int_equal(json_dump_file(c, path, 0), 0);
    json_decref(c), json_decref(body);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    char *from = realpath(golden_path("dflash/d1-b8/model.safetensors"), NULL);
    assert_int_equal(symlink(from, path), 0);
    free(from);
    check_drafter("d1-b8", dir, "expected");
}

static void test_refused(void **state) {
    (void)state;
    dg_model *m = NULL;
    check_ok(dg_model_open(golden_path("dflash/target-qwen3"), NULL, &m));
    dg_session *s = NULL;
    dg_draft draft = {"dflash", golden_path("dflash/df2-b8"), NULL};
    const dg_session_options opt = {.draft = &draft, .n_draft = 1};
    check_fails(dg_session_create(m, &opt, &s), DG_ERR_UNSUPPORTED, "selector");
    draft.path = golden_path("dflash/d2-b8-bias"); /* made for a target of 5 layers */
    check_fails(dg_session_create(m, &opt, &s), DG_ERR_ARGUMENT, "layers");
    draft.path = golden_path("dflash/target-llama");
    check_fails(dg_session_create(m, &opt, &s), DG_ERR_ARGUMENT, "DFlash");
    dg_model_close(m);
    check_fails(dg_model_open(golden_path("dflash/d1-b8"), NULL, &m), DG_ERR_ARGUMENT, "drafter");
}

/* GGUF drafters against the Hugging Face directory they were made from: same drafts along the recorded tokens. */
static void check_gguf(const char *file, const char *name, const char *expected) {
    setup u = {0};
    char path[512];
    snprintf(path, sizeof path, "%s", golden_path("gguf/models/%s", file));
    u.expected = golden_json("dflash/%s/%s.json", name, expected);
    u.tensors = golden_tensors("dflash/%s/%s.safetensors", name, expected);
    open_setup(&u, path, json_string_value(json_object_get(u.expected, "target")), NULL, 15);
    assert_true(follow_rounds(&u) >= 3);
    close_setup(&u);
}

static void test_gguf(void **state) {
    (void)state;
    check_gguf("dflash-d2-b16.f32.gguf", "d2-b16", "expected");
}

/* `stop.json`: stop ids inside an accepted run, and limits. Text depends on neither code nor drafter. */
static void test_stop(void **state) {
    (void)state;
    json_t *all = golden_json("dflash/stop.json"), *cases = json_object_get(all, "cases"), *one;
    size_t i;
    int n = 0;
    json_array_foreach(cases, i, one) {
        const char *name = json_string_value(json_object_get(one, "drafter"));
        if (!strncmp(name, "df2", 3)) continue;
        dg_model *m = NULL;
        check_ok(dg_model_open(golden_path("dflash/%s", strstr(name, "bias") ? "target-llama" : "target-qwen3"), NULL, &m));
        const json_t *stops = json_object_get(one, "stop_token_ids");
        m->net.config.n_stop = 0;
        for (size_t k = 0; k < json_array_size(stops); k++)
            m->net.config.stop[m->net.config.n_stop++] = (int32_t)json_integer_value(json_array_get(stops, k));
        const dg_tokenizer *keep = m->tokenizer;
        m->tokenizer = NULL; /* so that its eos does not stop the text */
        char path[512];
        snprintf(path, sizeof path, "%s", golden_path("dflash/%s", name));
        const dg_draft draft = {"dflash", path, NULL};
        const dg_session_options opt = {.context = 256, .budget = 15, .draft = &draft, .n_draft = 1};
        dg_session *s = NULL;
        check_ok(dg_session_create(m, &opt, &s));
        size_t n_prompt, n_out, total;
        int32_t *prompt = json_ints(json_object_get(one, "prompt"), &n_prompt);
        int32_t *out = json_ints(json_object_get(one, "output_ids"), &n_out);
        check_ok(dg_session_sync(s, prompt, n_prompt));
        check_ok(dg_session_generate(s, (size_t)json_integer_value(json_object_get(one, "max_new_tokens")), NULL, NULL, NULL));
        const int32_t *got = dg_session_tokens(s, &total);
        assert_int_equal(total, n_out);
        assert_memory_equal(got, out, n_out * sizeof *got);
        free(prompt), free(out);
        dg_session_free(s);
        m->tokenizer = (dg_tokenizer *)keep;
        dg_model_close(m);
        n++;
    }
    assert_true(n >= 10);
    json_decref(all);
}

int main(void) {
    if (device_missing()) return 0;
    if (!golden_have("dflash/d1-b8/config.json")) return 0;
    const struct CMUnitTest t[] = {
        cmocka_unit_test(test_d1),      cmocka_unit_test(test_d1_random), cmocka_unit_test(test_d2),
        cmocka_unit_test(test_d2_bias), cmocka_unit_test(test_swa_v2),    cmocka_unit_test(test_swa_v1),
        cmocka_unit_test(test_speculators), cmocka_unit_test(test_refused), cmocka_unit_test(test_gguf),      cmocka_unit_test(test_stop)};
    return cmocka_run_group_tests_name("golden dflash", t, NULL, NULL);
}
