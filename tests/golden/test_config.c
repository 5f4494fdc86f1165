/* The configuration of every golden directory and GGUF file, held to the shapes of its own tensors, to what
 * its config.json says, to the other spelling and to the other container. */
#include <math.h>

#include "runtime/config.h"
#include "tests/test.h"

static bool have;

static const char *const targets[] = {"target/llama",        "target/llama-rope3",  "target/qwen2",
                                      "target/qwen3",        "target/qwen3-yarn",   "target/qwen3-swa",
                                      "target/mistral-swa",  "dflash/target-qwen3", "dflash/target-llama",
                                      "eagle3/target-llama", "eagle3/target-qwen3"};
static const char *const drafters[] = {"d1-b8", "d2-b16", "d3-b16-swa", "d2-b8-bias", "d1-b8-random"};

static dg_file *read_file(const char *part, dg_config *c) {
    dg_file *f;
    check_ok(dg_file_open(golden_path("%s", part), &f));
    check_ok(dg_config_read(f, c));
    return f;
}

/* dim 0 (and 1 unless it is 0) of a tensor that must exist. */
static void check_dim(const dg_file *f, const char *name, int64_t rows, int64_t cols) {
    const dg_file_tensor *t = dg_file_find(f, name);
    if (!t) fail_msg("%s has no %s", f->path, name);
    if (t->dim[0] != rows || t->n_dim != (cols ? 2 : 1) || (cols && t->dim[1] != cols))
        fail_msg("%s: %s is [%d, %d], not [%d, %d]", f->path, name, (int)t->dim[0], (int)t->dim[1], (int)rows,
                 (int)cols);
}

/* Every size of c shows in the tensors of an HF directory. */
static void check_body(const dg_file *f, const dg_config *c, const char *prefix) {
    char name[128];
    const char *last = c->arch == DG_ARCH_DFLASH ? "" : "model.";
    snprintf(name, sizeof name, "%slayers.%d.self_attn.q_proj.weight", prefix, c->n_layer - 1);
    check_dim(f, name, c->n_head * c->head_dim, c->hidden_size);
    snprintf(name, sizeof name, "%slayers.%d.self_attn.k_proj.weight", prefix, c->n_layer - 1);
    check_dim(f, name, c->n_kv_head * c->head_dim, c->hidden_size);
    snprintf(name, sizeof name, "%slayers.%d.mlp.up_proj.weight", prefix, c->n_layer - 1);
    check_dim(f, name, c->intermediate_size, c->hidden_size);
    snprintf(name, sizeof name, "%slayers.%d.input_layernorm.weight", last, c->n_layer);
    assert_null(dg_file_find(f, name));
    snprintf(name, sizeof name, "%slayers.0.self_attn.q_norm.weight", prefix);
    if (c->qk_norm)
        check_dim(f, name, c->head_dim, 0);
    else
        assert_null(dg_file_find(f, name));
    snprintf(name, sizeof name, "%slayers.0.self_attn.v_proj.bias", prefix);
    assert_int_equal(dg_file_find(f, name) != NULL, c->qkv_bias);
    snprintf(name, sizeof name, "%slayers.0.self_attn.o_proj.bias", prefix);
    assert_int_equal(dg_file_find(f, name) != NULL, c->o_bias);
}

static int64_t int_of(const json_t *config, const char *key) {
    const json_t *v = json_object_get(config, key);
    if (!json_is_integer(v)) fail_msg("no integer %s", key);
    return json_integer_value(v);
}

/* The fields that the config files name as we do. */
static void check_json(const dg_file *f, const dg_config *c) {
    const json_t *j = f->config;
    assert_int_equal(c->vocab_size, int_of(j, "vocab_size"));
    assert_int_equal(c->max_position, int_of(j, "max_position_embeddings"));
    assert_int_equal(c->n_stop, 1);
    assert_int_equal(c->stop[0], int_of(j, "eos_token_id"));
    assert_int_equal(c->bos, -1);
    assert_true(fabs((double)c->rms_norm_eps - json_number_value(json_object_get(j, "rms_norm_eps"))) <
                1e-12);
    const json_t *rope = json_object_get(j, "rope_parameters");
    const json_t *theta = json_object_get(rope ? rope : j, "rope_theta");
    assert_true(c->rope_theta == (float)json_number_value(theta));
    if (c->arch != DG_ARCH_DFLASH)
        assert_int_equal(c->tied, json_is_true(json_object_get(j, "tie_word_embeddings")));
}

static void test_targets(void **state) {
    (void)state;
    if (!have) skip();
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++) {
        dg_config c;
        dg_file *f = read_file(targets[i], &c);
        check_dim(f, "model.embed_tokens.weight", c.vocab_size, c.hidden_size);
        assert_int_equal(c.tied, dg_file_find(f, "lm_head.weight") == NULL);
        check_body(f, &c, "model.");
        check_json(f, &c);
        dg_file_close(f);
    }
}

/* The same model as transformers 4 spells it: every field equal. */
static void test_both_spellings(void **state) {
    (void)state;
    if (!have) skip();
    for (size_t i = 0; i < 7; i++) {
        dg_config a, b;
        dg_file *f = read_file(targets[i], &a);
        json_decref(f->config);
        f->config = golden_json("%s/config_v4.json", targets[i]);
        check_ok(dg_config_read(f, &b));
        assert_memory_equal(&a, &b, sizeof a);
        dg_file_close(f);
    }
}

static void test_windows_and_scaling(void **state) {
    (void)state;
    if (!have) skip();
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++) {
        dg_config c;
        dg_file *f = read_file(targets[i], &c);
        const json_t *w = json_object_get(f->config, "sliding_window");
        const json_t *types = json_object_get(f->config, "layer_types");
        for (int l = 0; l < c.n_layer; l++) {
            const char *type = json_string_value(json_array_get(types, (size_t)l));
            const bool slides = json_is_integer(w) && (!type || strcmp(type, "sliding_attention") == 0);
            assert_int_equal(c.window[l], slides ? json_integer_value(w) : 0);
        }
        const json_t *rope = json_object_get(f->config, "rope_parameters");
        const char *kind = rope ? json_string_value(json_object_get(rope, "rope_type")) : "default";
        const dg_rope_scaling want = strcmp(kind, "llama3") == 0 ? DG_ROPE_LLAMA3
                                     : strcmp(kind, "yarn") == 0 ? DG_ROPE_YARN
                                                                 : DG_ROPE_NONE;
        assert_int_equal(c.rope_scaling, want);
        if (want != DG_ROPE_NONE) {
            assert_true(c.rope_factor == (float)json_number_value(json_object_get(rope, "factor")));
            assert_int_equal(c.rope_original, int_of(rope, "original_max_position_embeddings"));
        }
        dg_file_close(f);
    }
}

static void test_drafters(void **state) {
    (void)state;
    if (!have) skip();
    for (size_t i = 0; i < sizeof drafters / sizeof *drafters; i++) {
        char part[64];
        dg_config c;
        snprintf(part, sizeof part, "dflash/%s", drafters[i]);
        dg_file *f = read_file(part, &c);
        const json_t *j = f->config, *nested = json_object_get(j, "dflash_config");
        assert_int_equal(c.arch, DG_ARCH_DFLASH);
        check_body(f, &c, "");
        check_json(f, &c);
        check_dim(f, "fc.weight", c.hidden_size, (int64_t)c.n_tap * c.hidden_size);
        const json_t *taps = json_object_get(nested, "target_layer_ids");
        assert_int_equal(c.n_tap, json_array_size(taps));
        for (int k = 0; k < c.n_tap; k++)
            assert_int_equal(c.tap[k], json_integer_value(json_array_get(taps, (size_t)k)));
        assert_int_equal(c.block_size, int_of(j, "block_size"));
        assert_int_equal(c.mask_token_id, int_of(nested, "mask_token_id"));
        assert_int_equal(c.num_target_layers, int_of(j, "num_target_layers"));
        for (int l = 0; l < c.n_layer; l++) {
            const char *type =
                json_string_value(json_array_get(json_object_get(j, "layer_types"), (size_t)l));
            const bool slides = strcmp(type, "sliding_attention") == 0;
            assert_int_equal(c.window[l], slides ? int_of(j, "sliding_window") : 0);
            assert_int_equal(c.causal[l], slides);
        }
        dg_file_close(f);
    }
}

static void check_refused(const char *part, const char *why) {
    dg_file *f;
    dg_config c;
    check_ok(dg_file_open(golden_path("%s", part), &f));
    check_fails(dg_config_read(f, &c), DG_ERR_UNSUPPORTED, why);
    dg_file_close(f);
}

static void test_refused(void **state) {
    (void)state;
    if (!have) skip();
    check_refused("dflash/df2-b8", "candidate_selector");
    check_refused("target/qwen3moe", "mixture of experts");
    check_refused("target/qwen3moe-mixed", "mixture of experts");
    check_refused("gguf/models/target-qwen3moe.q8_0.gguf", "mixture of experts");
    /* the tensors alone give DFlash 2 away */
    dg_file *f;
    dg_config c;
    check_ok(dg_file_open(golden_path("dflash/df2-b8"), &f));
    json_decref(f->config);
    f->config = golden_json("dflash/d2-b16/config.json");
    check_fails(dg_config_read(f, &c), DG_ERR_UNSUPPORTED, "tensor candidate_selector.");
    dg_file_close(f);
}

/* EAGLE-3 heads, and what llama.cpp's converter makes of them: the boundaries written out, rows for interleaved rope. */
static void test_heads(void **state) {
    (void)state;
    if (!have) skip();
    static const struct {
        const char *hf, *gguf;
        int tap[3]; /* outputs: one less than the boundaries */
    } head[] = {{"head-llama", "eagle3-head-llama.f32.gguf", {1, 3, 4}},
                {"head-llama", "eagle3-head-llama.f16.gguf", {1, 3, 4}},
                {"head-qwen3", "eagle3-head-qwen3.f16.gguf", {1, 2, 3}},
                {"head-llama-weak", NULL, {0}}};
    for (size_t i = 0; i < sizeof head / sizeof *head; i++) {
        dg_config h, g;
        char part[96];
        snprintf(part, sizeof part, "eagle3/%s", head[i].hf);
        dg_file *f = read_file(part, &h);
        assert_int_equal(h.arch, DG_ARCH_EAGLE3);
        assert_int_equal(h.draft_vocab_size, int_of(f->config, "draft_vocab_size"));
        check_dim(f, "midlayer.self_attn.q_proj.weight", h.n_head * h.head_dim, 2 * h.hidden_size);
        check_dim(f, "fc.weight", h.hidden_size, (int64_t)h.n_tap * h.target_hidden_size);
        assert_true(h.tap_default);
        dg_file_close(f);
        if (!head[i].gguf) continue;
        snprintf(part, sizeof part, "gguf/models/%s", head[i].gguf);
        dg_file_close(read_file(part, &g));
        assert_false(g.tap_default);
        for (int t = 0; t < 3; t++) assert_int_equal(g.tap[t], head[i].tap[t]);
        assert_true(g.rope_interleaved);
        memcpy(h.arch_name, g.arch_name, sizeof h.arch_name);
        memcpy(h.tap, g.tap, sizeof h.tap);
        h.tap_default = false, h.rope_interleaved = true, h.bos = g.bos;
        assert_memory_equal(&g, &h, sizeof g);
    }
}

/* Each converted file says what its source says, but for what the converter changes. */
static void test_gguf(void **state) {
    (void)state;
    if (!have) skip();
    json_t *models = golden_json("gguf/models/models.json"), *entry;
    const char *name;
    int seen = 0;
    json_object_foreach(json_object_get(models, "files"), name, entry) {
        const char *source = json_string_value(json_object_get(entry, "source"));
        if (strstr(name, "moe") || strstr(name, "eagle3-head")) continue;
        char part[128];
        dg_config g, h;
        snprintf(part, sizeof part, "gguf/models/%s", name);
        dg_file *f = read_file(part, &g);
        assert_int_equal(f->mapped, int_of(entry, "bytes"));
        dg_file_close(f);
        dg_file_close(read_file(source, &h));

        const bool llama = h.arch == DG_ARCH_LLAMA || h.arch == DG_ARCH_MISTRAL,
                   draft = h.arch == DG_ARCH_DFLASH;
        assert_int_equal(g.arch, llama ? DG_ARCH_LLAMA : h.arch);
        assert_int_equal(g.rope_interleaved, llama);
        for (int l = 0; l < g.n_layer; l++) /* targets lose their windows */
            assert_int_equal(g.window[l], draft ? h.window[l] : 0);
        if (h.rope_scaling == DG_ROPE_LLAMA3) { /* becomes a vector: the frequencies must agree */
            float a[64], b[64], ma, mb;
            dg_file *again = read_file(part, &g);
            const dg_file_tensor *t = dg_file_find(again, "rope_freqs.weight");
            assert_int_equal(g.rope_scaling, DG_ROPE_FREQ_FACTORS);
            dg_config_rope(&g, t->data, a, &ma);
            dg_config_rope(&h, NULL, b, &mb);
            for (int k = 0; k < g.head_dim / 2; k++) assert_true(fabs((double)(a[k] / b[k]) - 1) < 1e-6);
            assert_true(ma == 1 && mb == 1);
            dg_file_close(again);
            h.rope_scaling = DG_ROPE_FREQ_FACTORS;
            h.rope_factor = g.rope_factor, h.rope_low_freq = g.rope_low_freq,
            h.rope_high_freq = g.rope_high_freq;
            h.rope_original = g.rope_original;
        }
        /* what a GGUF file does not hold or spells otherwise */
        memcpy(h.arch_name, g.arch_name, sizeof h.arch_name);
        memcpy(h.window, g.window, sizeof h.window);
        h.arch = g.arch, h.rope_interleaved = g.rope_interleaved, h.num_target_layers = 0;
        assert_memory_equal(&g, &h, sizeof g);
        seen++;
    }
    assert_true(seen >= 13);
    json_decref(models);
}

static void test_other_files(void **state) {
    (void)state;
    if (!have) skip();
    static const char *const part[] = {"gguf/kquant/llama.Q4_K_M.gguf", "gguf/kquant/llama.Q2_K.gguf",
                                       "tokenizer/llama3/vocab.gguf", "tokenizer/sentencepiece/vocab.gguf"};
    for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
        dg_config c;
        dg_file *f = read_file(part[i], &c);
        assert_int_equal(c.vocab_size, dg_meta_find(f, "tokenizer.ggml.tokens")->n);
        dg_file_close(f);
    }
    const char *smollm2 = smollm2_path();
    if (!smollm2) return;
    dg_file *f;
    dg_config c;
    check_ok(dg_file_open(smollm2, &f));
    check_ok(dg_config_read(f, &c));
    check_dim(f, "blk.29.attn_k.weight", c.n_kv_head * c.head_dim, c.hidden_size);
    check_dim(f, "token_embd.weight", c.vocab_size, c.hidden_size);
    assert_int_equal(c.n_layer, 30);
    assert_true(c.tied);
    assert_true(c.rope_theta == 100000);
    dg_file_close(f);
}

static int setup(void **state) {
    (void)state;
    have = golden_have("target/llama");
    return 0;
}

int main(void) {
    const struct CMUnitTest t[] = {cmocka_unit_test(test_targets),
                                   cmocka_unit_test(test_both_spellings),
                                   cmocka_unit_test(test_windows_and_scaling),
                                   cmocka_unit_test(test_drafters),
                                   cmocka_unit_test(test_refused),
                                   cmocka_unit_test(test_heads),
                                   cmocka_unit_test(test_gguf),
                                   cmocka_unit_test(test_other_files)};
    return cmocka_run_group_tests_name("golden config", t, setup, NULL);
}
