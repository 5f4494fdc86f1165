/* config.json of the Hugging Face kind: spellings, defaults, windows, rope, drafters, refusals. */
#include <math.h>

#include "runtime/config.h"
#include "tests/test.h"

#define BODY                                                                                                 \
    "\"vocab_size\":1000,\"hidden_size\":96,\"num_hidden_layers\":4,\"num_attention_heads\":6,"              \
    "\"num_key_value_heads\":2,\"head_dim\":16,\"intermediate_size\":200,\"max_position_embeddings\":512"
static const char *const bare[] = {
    [DG_ARCH_LLAMA] = "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\"," BODY "}",
    [DG_ARCH_QWEN2] = "{\"architectures\":[\"Qwen2ForCausalLM\"],\"model_type\":\"qwen2\"," BODY "}",
    [DG_ARCH_QWEN3] = "{\"architectures\":[\"Qwen3ForCausalLM\"],\"model_type\":\"qwen3\"," BODY "}",
    [DG_ARCH_MISTRAL] = "{\"architectures\":[\"MistralForCausalLM\"],\"model_type\":\"mistral\"," BODY "}",
    [DG_ARCH_DFLASH] = "{\"architectures\":[\"DFlashDraftModel\"],\"model_type\":\"qwen3\"," BODY
                       ",\"dflash_config\":{\"target_layer_ids\":[1,5],\"mask_token_id\":999}}"};

/* `more` is laid over `base`, so a null in it takes a key away. */
static dg_status read_both(const char *base, const char *more, const char *generation, dg_config *c) {
    json_t *config, *over, *gen = NULL;
    check_ok(dg_json_parse("base", base, strlen(base), &config));
    check_ok(dg_json_parse("more", more, strlen(more), &over));
    if (generation) check_ok(dg_json_parse("generation", generation, strlen(generation), &gen));
    json_object_update(config, over);
    const dg_file f = {
        .path = "m", .container = DG_CONTAINER_SAFETENSORS, .config = config, .generation = gen};
    const dg_status st = dg_config_read(&f, c);
    json_decref(config), json_decref(over), json_decref(gen);
    return st;
}

static dg_status read_one(dg_arch arch, const char *more, dg_config *c) {
    return read_both(bare[arch], more, NULL, c);
}

static void test_plain(void **state) {
    (void)state;
    dg_config c;
    check_ok(
        read_one(DG_ARCH_LLAMA,
                 "{\"rms_norm_eps\":1e-5,\"rope_theta\":5e5,\"tie_word_embeddings\":true,\"bos_token_id\":7,"
                 "\"num_hidden_layers\":3,\"attention_bias\":true}",
                 &c));
    assert_int_equal(c.arch, DG_ARCH_LLAMA);
    assert_string_equal(c.arch_name, "llama");
    assert_int_equal(c.vocab_size, 1000);
    assert_int_equal(c.hidden_size, 96);
    assert_int_equal(c.n_layer, 3);
    assert_int_equal(c.n_head, 6);
    assert_int_equal(c.n_kv_head, 2);
    assert_int_equal(c.head_dim, 16);
    assert_int_equal(c.intermediate_size, 200);
    assert_int_equal(c.max_position, 512);
    assert_true(c.rms_norm_eps == 1e-5f);
    assert_true(c.rope_theta == 5e5f);
    assert_int_equal(c.rope_scaling, DG_ROPE_NONE);
    assert_true(c.tied && c.qkv_bias && c.o_bias && !c.qk_norm && !c.rope_interleaved);
    assert_int_equal(c.bos, 7);
    assert_int_equal(c.n_stop, 0);
    assert_int_equal(c.mask_token_id, -1);
    assert_true(c.embedding_scale == 1 && c.output_multiplier == 1 && c.logit_softcap == 0);
    for (int i = 0; i < 3; i++) assert_int_equal(c.window[i], 0);
}

static void test_defaults(void **state) {
    (void)state;
    static const struct {
        dg_arch arch;
        int head_dim;
        bool qk_norm, qkv, o;
    } want[] = {{DG_ARCH_LLAMA, 24, false, false, false},
                {DG_ARCH_QWEN2, 24, false, true, false},
                {DG_ARCH_QWEN3, 128, true, false, false},
                {DG_ARCH_MISTRAL, 24, false, false, false},
                {DG_ARCH_DFLASH, 128, true, false, false}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        dg_config c;
        check_ok(read_one(want[i].arch,
                          "{\"head_dim\":null,\"num_key_value_heads\":null,\"num_attention_heads\":4}", &c));
        assert_int_equal(c.arch, want[i].arch);
        assert_int_equal(c.head_dim, want[i].head_dim);
        assert_int_equal(c.n_kv_head, 4);
        assert_int_equal(c.qk_norm, want[i].qk_norm);
        assert_int_equal(c.qkv_bias, want[i].qkv);
        assert_int_equal(c.o_bias, want[i].o);
        assert_false(c.tied);
        assert_true(c.rope_theta == 10000 && c.rms_norm_eps == 1e-6f);
        assert_int_equal(c.bos, -1);
    }
}

/* transformers 4 and 5 say the same thing. */
static void test_rope_spellings(void **state) {
    (void)state;
    static const char *const pair[][2] = {
        {"{\"rope_theta\":5e5,\"rope_scaling\":null}",
         "{\"rope_parameters\":{\"rope_theta\":5e5,\"rope_type\":\"default\"}}"},
        {"{\"rope_theta\":5e5,\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}",
         "{\"rope_parameters\":{\"rope_theta\":500000,\"rope_type\":\"linear\",\"factor\":2.0}}"},
        {"{\"rope_theta\":5e5,\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,"
         "\"high_freq_factor\":4,\"original_max_position_embeddings\":64}}",
         "{\"rope_parameters\":{\"rope_theta\":5e5,\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":"
         "1,"
         "\"high_freq_factor\":4,\"original_max_position_embeddings\":64}}"}};
    dg_config a, b;
    for (size_t i = 0; i < sizeof pair / sizeof *pair; i++) {
        check_ok(read_one(DG_ARCH_LLAMA, pair[i][0], &a));
        check_ok(read_one(DG_ARCH_LLAMA, pair[i][1], &b));
        assert_memory_equal(&a, &b, sizeof a);
        assert_true(a.rope_theta == 5e5f);
    }
    assert_int_equal(a.rope_scaling, DG_ROPE_LLAMA3);
    assert_true(a.rope_factor == 8 && a.rope_low_freq == 1 && a.rope_high_freq == 4 && a.rope_original == 64);
    /* a scaling that a tool added to a newer file */
    check_ok(read_one(DG_ARCH_LLAMA,
                      "{\"rope_parameters\":{\"rope_theta\":5e5,\"rope_type\":\"default\"},"
                      "\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":2}}",
                      &a));
    assert_int_equal(a.rope_scaling, DG_ROPE_LINEAR);
    assert_true(a.rope_theta == 5e5f);
    check_fails(read_one(DG_ARCH_LLAMA, "{\"rope_theta\":1e4,\"rope_parameters\":{\"rope_theta\":2e4}}", &a),
                DG_ERR_FORMAT, "rope_theta is 10000 at the top and 20000");
}

static void test_yarn(void **state) {
    (void)state;
    dg_config c;
    check_ok(read_one(DG_ARCH_QWEN3,
                      "{\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4,"
                      "\"original_max_position_embeddings\":256}}",
                      &c));
    assert_int_equal(c.rope_scaling, DG_ROPE_YARN);
    assert_true(c.rope_factor == 4 && c.yarn_beta_fast == 32 && c.yarn_beta_slow == 1 &&
                c.yarn_attn_factor == 0);
    assert_true(c.yarn_truncate);
    assert_int_equal(c.rope_original, 256);
    /* without original the trained length is that of the file; without factor it follows from both */
    check_ok(read_one(DG_ARCH_QWEN3, "{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4}}", &c));
    assert_int_equal(c.rope_original, 512);
    check_ok(read_one(DG_ARCH_QWEN3,
                      "{\"rope_scaling\":{\"type\":\"yarn\",\"original_max_position_embeddings\":64}}", &c));
    assert_true(c.rope_factor == 8);
    check_ok(read_one(DG_ARCH_QWEN3,
                      "{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"beta_fast\":16,"
                      "\"beta_slow\":2,\"attention_factor\":1.5,\"truncate\":false}}",
                      &c));
    assert_true(c.yarn_beta_fast == 16 && c.yarn_beta_slow == 2 && c.yarn_attn_factor == 1.5f &&
                !c.yarn_truncate);
    check_ok(read_one(DG_ARCH_QWEN3,
                      "{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":40,\"mscale\":0.707,"
                      "\"mscale_all_dim\":1.0}}",
                      &c));
    assert_true(fabs((double)c.yarn_attn_factor - 0.92104236) < 1e-6);
}

/* Frequencies against numbers worked out apart from this program, from the papers' formulas. */
static void test_rope_numbers(void **state) {
    (void)state;
    static const struct {
        const char *config;
        int n;
        float want[8], mscale;
    } t[] = {
        {"{\"head_dim\":8}", 4, {1, 0.1f, 0.01f, 0.001f}, 1},
        {"{\"head_dim\":8,\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}",
         4,
         {0.5f, 0.05f, 0.005f, 0.0005f},
         1},
        {"{\"rope_theta\":5e5,\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,"
         "\"high_freq_factor\":4,\"original_max_position_embeddings\":64}}",
         8,
         {1, 0.0794030092f, 0.00470075387f, 0.000911583092f, 0.000176776695f, 3.4281022e-05f, 6.64786987e-06f,
          1.28917317e-06f},
         1},
        {"{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":256}}",
         8,
         {1, 0.25693506f, 0.0625f, 0.0138349648f, 0.0025f, 0.000790569415f, 0.00025f, 7.90569415e-05f},
         1.13862944f},
        {"{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":256,"
         "\"truncate\":false,\"attention_factor\":1.25}}",
         8,
         {1, 0.253972314f, 0.0553986366f, 0.00963994285f, 0.0025f, 0.000790569415f, 0.00025f,
          7.90569415e-05f},
         1.25f},
        {"{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":8,\"original_max_position_embeddings\":4096,"
         "\"beta_fast\":16,\"beta_slow\":2,\"attention_factor\":1}}",
         8,
         {1, 0.316227766f, 0.1f, 0.0316227766f, 0.00708333333f, 0.00131761569f, 0.000125f, 3.95284708e-05f},
         1}};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        dg_config c;
        float got[64], mscale;
        check_ok(read_one(DG_ARCH_LLAMA, t[i].config, &c));
        dg_config_rope(&c, NULL, got, &mscale);
        for (int k = 0; k < t[i].n; k++) got[k] /= t[i].want[k];
        static const float ones[] = {1, 1, 1, 1, 1, 1, 1, 1};
        check_near(got, ones, (size_t)t[i].n, 2e-7, t[i].config);
        check_near(&mscale, &t[i].mscale, 1, 1e-6, "mscale");
    }
    static const float factors[] = {1, 2, 4, 8}, divided[] = {1, 0.05f, 0.0025f, 0.000125f};
    float got[4], mscale;
    const dg_config c = {.head_dim = 8, .rope_theta = 10000, .rope_scaling = DG_ROPE_FREQ_FACTORS};
    dg_config_rope(&c, factors, got, &mscale);
    check_near(got, divided, 4, 1e-9, "stored factors");
}

static void check_windows(dg_arch arch, const char *more, const int32_t want[4]) {
    dg_config c;
    check_ok(read_one(arch, more, &c));
    for (int i = 0; i < 4; i++)
        if (c.window[i] != want[i]) fail_msg("%s: window[%d] is %d, not %d", more, i, c.window[i], want[i]);
}

static void test_windows(void **state) {
    (void)state;
    static const int32_t none[4], all[4] = {20, 20, 20, 20}, last[4] = {0, 0, 20, 20},
                                  mixed[4] = {20, 0, 20, 0}, wide[4] = {4096, 4096, 4096, 4096};
    const char *types =
        "{\"sliding_window\":20,\"use_sliding_window\":true,\"layer_types\":[\"sliding_attention\","
        "\"full_attention\",\"sliding_attention\",\"full_attention\"]}";
    check_windows(DG_ARCH_LLAMA, "{\"sliding_window\":20}", none);
    check_windows(DG_ARCH_MISTRAL, "{\"sliding_window\":20}", all);
    check_windows(DG_ARCH_MISTRAL, "{\"sliding_window\":null}", none);
    check_windows(DG_ARCH_MISTRAL, "{}", wide);
    const dg_arch qwen[] = {DG_ARCH_QWEN2, DG_ARCH_QWEN3, DG_ARCH_DFLASH};
    for (int i = 0; i < 3; i++) {
        check_windows(qwen[i], "{\"sliding_window\":20,\"max_window_layers\":2}", none);
        check_windows(qwen[i], "{\"sliding_window\":20,\"max_window_layers\":2,\"use_sliding_window\":false}",
                      none);
        check_windows(qwen[i], "{\"sliding_window\":20,\"max_window_layers\":2,\"use_sliding_window\":true}",
                      last);
        check_windows(qwen[i],
                      "{\"sliding_window\":null,\"max_window_layers\":2,\"use_sliding_window\":true}", none);
        check_windows(qwen[i], "{\"sliding_window\":20,\"use_sliding_window\":true}",
                      none); /* from layer 28 */
        check_windows(qwen[i], types, mixed);
    }
    /* a target's switch rules its layer_types; a drafter's files leave it out */
    const char *unswitched =
        "{\"sliding_window\":20,\"layer_types\":[\"sliding_attention\",\"full_attention\","
        "\"sliding_attention\",\"full_attention\"]}";
    check_windows(DG_ARCH_QWEN3, unswitched, none);
    check_windows(DG_ARCH_DFLASH, unswitched, mixed);

    dg_config c;
    check_fails(read_one(DG_ARCH_QWEN3, "{\"layer_types\":[\"full_attention\"]}", &c), DG_ERR_FORMAT,
                "layer_types: expected 4 entries, found 1");
    check_fails(read_one(DG_ARCH_QWEN3, "{\"layer_types\":[1,2,3,4]}", &c), DG_ERR_FORMAT, "layer_types[0]");
    check_fails(read_one(DG_ARCH_QWEN3,
                         "{\"layer_types\":[\"full_attention\",\"linear_attention\",\"x\",\"y\"]}", &c),
                DG_ERR_UNSUPPORTED, "layer_types[1]: linear_attention");
}

static void test_stops(void **state) {
    (void)state;
    dg_config c;
    check_ok(read_both(bare[DG_ARCH_LLAMA], "{\"eos_token_id\":5}", "{\"eos_token_id\":[6,5,9]}", &c));
    assert_int_equal(c.n_stop, 3);
    assert_memory_equal(c.stop, ((const int32_t[]){5, 6, 9}), 12);
    check_ok(read_both(bare[DG_ARCH_LLAMA], "{\"eos_token_id\":[-1,3]}", "{\"eos_token_id\":null}", &c));
    assert_int_equal(c.n_stop, 1);
    assert_int_equal(c.stop[0], 3);
    check_fails(read_one(DG_ARCH_LLAMA, "{\"eos_token_id\":1000}", &c), DG_ERR_FORMAT, "found 1000");
    check_fails(read_one(DG_ARCH_LLAMA, "{\"eos_token_id\":\"2\"}", &c), DG_ERR_FORMAT, "eos_token_id");
    check_fails(read_one(DG_ARCH_LLAMA, "{\"eos_token_id\":[1,[2]]}", &c), DG_ERR_FORMAT, "eos_token_id");
    check_fails(read_one(DG_ARCH_LLAMA, "{\"eos_token_id\":[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]}", &c),
                DG_ERR_FORMAT, "at most 16");
    check_fails(read_both(bare[DG_ARCH_LLAMA], "{}", "{\"eos_token_id\":{}}", &c), DG_ERR_FORMAT,
                "generation_config.json: eos_token_id");
}

static void test_missing_and_mistyped(void **state) {
    (void)state;
    static const char *const need[] = {"vocab_size",          "hidden_size",       "num_hidden_layers",
                                       "num_attention_heads", "intermediate_size", "max_position_embeddings"};
    static const char *const wrong[] = {"null", "0", "-3", "1.5", "\"8\"", "true", "[4]", "1099511627776"};
    dg_config c;
    memset(&c, 0x5a, sizeof c);
    const dg_config before = c;
    for (size_t i = 0; i < sizeof need / sizeof *need; i++)
        for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
            char more[100];
            snprintf(more, sizeof more, "{\"%s\":%s}", need[i], wrong[k]);
            check_fails(read_one(DG_ARCH_LLAMA, more, &c), DG_ERR_FORMAT, need[i]);
        }
    static const char *const bad[][2] = {
        {"{\"head_dim\":15}", "head_dim: expected an even number up to 4096, found 15"},
        {"{\"head_dim\":null,\"hidden_size\":8192,\"num_attention_heads\":1,\"num_key_value_heads\":1}",
         "head_dim: expected an even number up to 4096, found 8192"},
        {"{\"num_key_value_heads\":4}", "expected a divisor of the 6 heads, found 4"},
        {"{\"head_dim\":null,\"num_attention_heads\":7,\"num_key_value_heads\":7}",
         "multiple of the 7 heads"},
        {"{\"num_hidden_layers\":513}", "num_hidden_layers: expected 1 to 512, found 513"},
        {"{\"rms_norm_eps\":\"small\"}", "rms_norm_eps: expected a number, found a string"},
        {"{\"rms_norm_eps\":-1e-6}", "rms_norm_eps"},
        {"{\"rope_theta\":0}", "rope_theta"},
        {"{\"rope_theta\":1}", "rope_theta"},
        {"{\"rope_scaling\":[]}", "rope_scaling: expected an object, found an array"},
        {"{\"rope_scaling\":{\"type\":3}}", "rope_scaling.type: expected a string, found an integer"},
        {"{\"rope_scaling\":{\"type\":\"linear\"}}", "rope_scaling.factor"},
        {"{\"rope_scaling\":{\"type\":\"linear\",\"factor\":0}}", "rope_scaling.factor"},
        {"{\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1}}", "high_freq_factor"},
        {"{\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,\"high_freq_factor\":4}}",
         "more than low_freq_factor"},
        {"{\"tie_word_embeddings\":1}", "tie_word_embeddings: expected a boolean, found an integer"},
        {"{\"bos_token_id\":1000}", "begin-of-text id"},
        {"{\"model_type\":null,\"architectures\":null}", "model_type"},
        {"{\"model_type\":5}", "model_type: expected a string"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        check_fails(read_one(DG_ARCH_LLAMA, bad[i][0], &c), DG_ERR_FORMAT, bad[i][1]);
    assert_memory_equal(&c, &before, sizeof c); /* a failure leaves the output alone */

    const dg_file f = {.path = "alone.safetensors", .container = DG_CONTAINER_SAFETENSORS};
    check_fails(dg_config_read(&f, &c), DG_ERR_FORMAT, "alone.safetensors: expected a config.json");
}

static void test_refused(void **state) {
    (void)state;
    static const char *const bad[][2] = {
        {"{\"model_type\":\"qwen3_moe\",\"architectures\":[\"Qwen3MoeForCausalLM\"]}",
         "qwen3_moe (mixture of experts)"},
        {"{\"num_local_experts\":8}", "mixture of experts (config.json: num_local_experts)"},
        {"{\"num_experts\":8}", "num_experts"},
        {"{\"n_routed_experts\":8}", "n_routed_experts"},
        {"{\"model_type\":\"mixtral\"}", "mixtral (mixture of experts)"},
        {"{\"model_type\":\"qwen3_next\"}", "qwen3_next (hybrid"},
        {"{\"model_type\":\"mamba2\"}", "mamba2 (recurrent"},
        {"{\"model_type\":\"gemma2\"}", "architecture gemma2 is not supported; supported: llama, mistral"},
        {"{\"architectures\":[\"LlamaForSequenceClassification\"]}", "LlamaForSequenceClassification"},
        {"{\"architectures\":[\"LlamaForCausalLMEagle\"]}", "EAGLE head"},
        {"{\"speculators_model_type\":\"eagle\"}", "EAGLE head"},
        {"{\"speculators_model_type\":\"peagle\"}", "P-EAGLE head"},
        {"{\"architectures\":[\"DFlash2DraftModel\"]}", "candidate_selector"},
        {"{\"architectures\":[\"DSparkDraftModel\"]}", "DSpark drafter"},
        {"{\"architectures\":[\"LagunaDFlashDraftModel\"]}", "Laguna drafter"},
        {"{\"architectures\":[\"DSparkModel\"],\"draft_vocab_size\":300}", "DSparkModel (a DSpark drafter"},
        {"{\"architectures\":[\"DSparkForCausalLM\"],\"model_type\":\"qwen3\"}", "DSparkForCausalLM (a DSpark drafter"},
        {"{\"architectures\":[\"DominoDraftModel\"],\"draft_vocab_size\":300}", "a Domino drafter"},
        {"{\"architectures\":[\"PEagleForCausalLM\"],\"draft_vocab_size\":300}", "a P-EAGLE head"},
        {"{\"architectures\":[\"MiMoForCausalLM\"],\"model_type\":\"mimo\"}", "MiMo"},
        {"{\"hidden_act\":\"gelu\"}", "hidden_act: gelu"},
        {"{\"mlp_bias\":true}", "a bias in the MLP"},
        {"{\"partial_rotary_factor\":0.5}", "partial rotary"},
        {"{\"rope_parameters\":{\"partial_rotary_factor\":0.25}}", "partial rotary"},
        {"{\"quantization_config\":{\"quant_method\":\"gptq\"}}", "quantised"},
        {"{\"rope_scaling\":{\"type\":\"longrope\",\"factor\":2}}", "longrope"},
        {"{\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2}}", "dynamic"},
        {"{\"rope_parameters\":{\"full_attention\":{\"rope_theta\":1e6}}}", "layer's type"}};
    dg_config c;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        check_fails(read_one(DG_ARCH_LLAMA, bad[i][0], &c), DG_ERR_UNSUPPORTED, bad[i][1]);
    /* neutral values say nothing */
    check_ok(read_one(DG_ARCH_LLAMA,
                      "{\"num_local_experts\":0,\"mlp_bias\":false,\"partial_rotary_factor\":1.0,"
                      "\"no_rope_layers\":[],\"quantization_config\":null}",
                      &c));
}

static void test_dflash(void **state) {
    (void)state;
    dg_config c;
    check_ok(read_one(DG_ARCH_DFLASH,
                      "{\"block_size\":10,\"num_target_layers\":6,\"attention_bias\":true,"
                      "\"tie_word_embeddings\":true}",
                      &c));
    assert_int_equal(c.arch, DG_ARCH_DFLASH);
    assert_string_equal(c.arch_name, "DFlashDraftModel");
    assert_int_equal(c.block_size, 10);
    assert_int_equal(c.mask_token_id, 999);
    assert_int_equal(c.n_tap, 2);
    assert_int_equal(c.tap[0], 1);
    assert_int_equal(c.tap[1], 5);
    assert_int_equal(c.num_target_layers, 6);
    assert_int_equal(c.draft_vocab_size, 0);
    assert_true(c.qk_norm && c.qkv_bias && c.o_bias && !c.tied);
    for (int i = 0; i < 4; i++) assert_false(c.causal[i]);

    /* nested before top; the top serves what is not nested */
    check_ok(read_one(DG_ARCH_DFLASH,
                      "{\"block_size\":10,\"mask_token_id\":4,\"target_layer_ids\":[0],"
                      "\"output_multiplier\":0.5,\"rope_interleaved\":true,"
                      "\"dflash_config\":{\"block_size\":12,\"target_layer_ids\":[2,3,7],"
                      "\"input_embedding_scale\":3,\"final_logit_softcapping\":30,"
                      "\"projector_type\":\"dflash\",\"causal\":null}}",
                      &c));
    assert_int_equal(c.block_size, 12);
    assert_int_equal(c.mask_token_id, 4);
    assert_int_equal(c.n_tap, 3);
    assert_int_equal(c.tap[2], 7);
    assert_true(c.embedding_scale == 3 && c.output_multiplier == 0.5f && c.logit_softcap == 30);
    assert_true(c.rope_interleaved);
    check_ok(read_one(DG_ARCH_DFLASH, "{\"dflash_config\":{\"target_layer_ids\":[1]}}", &c));
    assert_int_equal(c.block_size, 16);
    assert_int_equal(c.mask_token_id, -1);
    check_ok(read_one(DG_ARCH_DFLASH, "{\"architectures\":null}", &c)); /* told by dflash_config */
    assert_int_equal(c.arch, DG_ARCH_DFLASH);
}

static void check_causal(const char *more, const char *want) {
    dg_config c;
    check_ok(read_one(DG_ARCH_DFLASH, more, &c));
    for (int i = 0; i < 4; i++)
        if (c.causal[i] != (want[i] == 'c')) fail_msg("%s: layer %d", more, i);
}

#define SWA                                                                                                  \
    "\"sliding_window\":20,\"layer_types\":[\"sliding_attention\",\"sliding_attention\",\"full_attention\"," \
    "\"full_attention\"]"
#define TAPS "\"target_layer_ids\":[1]"

static void test_causal(void **state) {
    (void)state;
    check_causal("{" SWA "}", "cc..");
    check_causal("{" SWA ",\"is_causal\":false}", "....");
    check_causal("{" SWA ",\"is_causal\":true}", "cccc");
    check_causal("{" SWA ",\"dflash_config\":{" TAPS ",\"causal\":false}}", "....");
    check_causal("{" SWA ",\"is_causal\":true,\"dflash_config\":{" TAPS ",\"causal\":false}}", "cccc");
    check_causal("{\"dflash_config\":{" TAPS ",\"causal\":true}}", "cccc");
    check_causal("{\"dflash_config\":{" TAPS ",\"use_swa\":true,\"swa_window_size\":9}}", "....");
    check_causal("{" SWA ",\"dflash_config\":{" TAPS ",\"use_swa\":true,\"swa_window_size\":9}}", "cc..");
    check_windows(DG_ARCH_DFLASH,
                  "{" SWA ",\"dflash_config\":{" TAPS ",\"use_swa\":true,\"swa_window_size\":9}}",
                  (const int32_t[]){20, 20, 0, 0});
    dg_config c;
    check_ok(read_one(DG_ARCH_DFLASH, "{\"dflash_config\":{" TAPS ",\"use_swa\":true,\"swa_window_size\":9}}",
                      &c));
    for (int i = 0; i < 4; i++) assert_int_equal(c.window[i], 9);
    check_fails(read_one(DG_ARCH_DFLASH, "{\"dflash_config\":{" TAPS ",\"use_swa\":true}}", &c),
                DG_ERR_FORMAT, "swa_window_size");
}

static void test_dflash_bad(void **state) {
    (void)state;
    static const struct {
        const char *more;
        dg_status code;
        const char *part;
    } bad[] = {
        {"{\"dflash_config\":{}}", DG_ERR_FORMAT, "target_layer_ids"},
        {"{\"dflash_config\":null}", DG_ERR_FORMAT, "target_layer_ids"},
        {"{\"dflash_config\":7}", DG_ERR_FORMAT, "dflash_config: expected an object"},
        {"{\"dflash_config\":{\"target_layer_ids\":[]}}", DG_ERR_FORMAT, "target_layer_ids"},
        {"{\"dflash_config\":{\"target_layer_ids\":[-1]}}", DG_ERR_FORMAT, "target_layer_ids[0]"},
        {"{\"dflash_config\":{\"target_layer_ids\":[1,\"x\"]}}", DG_ERR_FORMAT, "target_layer_ids[1]"},
        {"{\"dflash_config\":{\"target_layer_ids\":[3,1]}}", DG_ERR_FORMAT,
         "ascending order, found 1 after 3"},
        {"{\"dflash_config\":{\"target_layer_ids\":[3,3]}}", DG_ERR_FORMAT, "ascending order"},
        {"{\"num_target_layers\":5}", DG_ERR_FORMAT, "expected ids from 0 to 4, found 5"},
        {"{\"block_size\":1}", DG_ERR_FORMAT, "block_size: expected 2 to 256, found 1"},
        {"{\"block_size\":257}", DG_ERR_FORMAT, "block_size"},
        {"{\"dflash_config\":{" TAPS ",\"mask_token_id\":1000}}", DG_ERR_FORMAT, "mask_token_id"},
        {"{\"dflash_config\":{" TAPS ",\"selector_rank\":256}}", DG_ERR_UNSUPPORTED, "candidate_selector"},
        {"{\"dflash_config\":{" TAPS ",\"conv_kernel_size\":2}}", DG_ERR_UNSUPPORTED, "DFlash 2"},
        {"{\"dflash_config\":{" TAPS ",\"projector_type\":\"dflash2\"}}", DG_ERR_UNSUPPORTED, "DFlash 2"},
        {"{\"dflash_config\":{" TAPS ",\"projector_type\":\"domino\"}}", DG_ERR_UNSUPPORTED, "Domino"},
        {"{\"projector_type\":\"dspark\"}", DG_ERR_UNSUPPORTED, "DSpark"},
        {"{\"markov_rank\":64}", DG_ERR_UNSUPPORTED, "DSpark"},
        {"{\"dflash_config\":{" TAPS ",\"attention_value_scale\":0.7}}", DG_ERR_UNSUPPORTED, "MiMo"},
        {"{\"add_swa_attention_sink_bias\":true}", DG_ERR_UNSUPPORTED, "MiMo"},
        {"{\"dflash_config\":{" TAPS ",\"shift_label\":true}}", DG_ERR_UNSUPPORTED, "next position"}};
    dg_config c;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        check_fails(read_one(DG_ARCH_DFLASH, bad[i].more, &c), bad[i].code, bad[i].part);
}

/* A relative that its configuration does not give away is known by its tensors. */
static void test_foreign_tensors(void **state) {
    (void)state;
    static const char *const foreign[][2] = {{"candidate_selector.hidden_projection.weight", "DFlash 2"},
                                             {"layers.0.attention_conv.base_kernel", "DFlash 2"},
                                             {"markov_head.markov_w1", "DSpark"},
                                             {"layers.0.self_attn.g_proj.weight", "Laguna"},
                                             {"aux_hidden_norms.1.weight", "Laguna"},
                                             {"layers.0.self_attn.attention_sink_bias", "MiMo"}};
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
        json_t *config;
        dg_config c;
        check_ok(dg_json_parse("c", bare[DG_ARCH_DFLASH], strlen(bare[DG_ARCH_DFLASH]), &config));
        dg_file_tensor t[2] = {{.name = "fc.weight"}, {.name = foreign[i][0]}};
        const dg_file f = {
            .path = "m", .container = DG_CONTAINER_SAFETENSORS, .config = config, .tensor = t, .n_tensor = 2};
        check_fails(dg_config_read(&f, &c), DG_ERR_UNSUPPORTED, foreign[i][0]);
        assert_non_null(strstr(dg_error_message(), foreign[i][1]));
        json_decref(config);
    }
}

static void test_speculators(void **state) {
    (void)state;
    const char *base =
        "{\"speculators_model_type\":\"dflash\",\"architectures\":[\"DFlashSpeculator\"],"
        "\"transformer_layer_config\":{\"model_type\":\"qwen3\",\"rope_theta\":1e6," BODY "," SWA "},"
        "\"draft_vocab_size\":300,\"target_hidden_size\":64,\"aux_hidden_state_layer_ids\":[2,10],"
        "\"mask_token_id\":998}";
    dg_config c;
    check_ok(read_both(base, "{}", NULL, &c));
    assert_int_equal(c.arch, DG_ARCH_DFLASH);
    assert_int_equal(c.hidden_size, 96);
    assert_int_equal(c.block_size, 8);
    assert_int_equal(c.tap[0], 1);
    assert_int_equal(c.tap[1], 9);
    assert_int_equal(c.draft_vocab_size, 300);
    assert_int_equal(c.target_hidden_size, 64);
    assert_int_equal(c.mask_token_id, 998);
    assert_true(c.qk_norm && c.rope_theta == 1e6f);
    assert_true(c.causal[0] && c.causal[1] && !c.causal[2]);
    assert_int_equal(c.window[1], 20);
    check_ok(read_both(base, "{\"sliding_window_non_causal\":true,\"block_size\":9}", NULL, &c));
    assert_false(c.causal[0]);
    assert_int_equal(c.window[0], 20);
    assert_int_equal(c.block_size, 9);
    check_fails(read_both(base, "{\"sample_from_anchor\":true}", NULL, &c), DG_ERR_UNSUPPORTED,
                "next position");
    check_fails(read_both(base, "{\"aux_hidden_state_layer_ids\":[0]}", NULL, &c), DG_ERR_FORMAT, "1 to 512");
    check_fails(read_both(base, "{\"transformer_layer_config\":null}", NULL, &c), DG_ERR_FORMAT,
                "transformer_layer_config: expected an object, found nothing");
}

/* ---- EAGLE-3 ---------------------------------------------------------------------------------- */

#define HEAD BODY_OF("1")
#define BODY_OF(layers)                                                                                      \
    "\"model_type\":\"llama\",\"vocab_size\":1000,\"hidden_size\":96,\"num_hidden_layers\":" layers         \
    ",\"num_attention_heads\":6,\"num_key_value_heads\":2,\"intermediate_size\":200,"                         \
    "\"max_position_embeddings\":512"
static const char eagle[] = "{\"architectures\":[\"LlamaForCausalLM\"],\"draft_vocab_size\":300," HEAD "}";

static void test_eagle3(void **state) {
    (void)state;
    dg_config c;
    check_ok(read_both(eagle, "{}", NULL, &c)); /* SafeAILab: told by the draft vocabulary */
    assert_int_equal(c.arch, DG_ARCH_EAGLE3);
    assert_int_equal(c.draft_vocab_size, 300);
    assert_int_equal(c.target_hidden_size, 96);
    assert_int_equal(c.head_dim, 16);
    assert_int_equal(c.n_tap, 3);
    assert_true(c.rope_theta == 10000 && c.tap_default && !c.qk_norm && !c.rope_interleaved && !c.tied);
    assert_false(c.norm_before_residual || c.norm_before_fc || c.fc_norm || c.feed_normed);
    check_ok(read_both(eagle, "{\"target_hidden_size\":160,\"norm_output\":true}", NULL, &c));
    assert_int_equal(c.target_hidden_size, 160);
    assert_false(c.feed_normed); /* SpecForge: the head sees the final norm */
    check_ok(read_both(eagle,
                       "{\"draft_vocab_size\":null,\"architectures\":[\"Qwen3ForCausalLMEagle3\"],"
                       "\"model_type\":\"qwen3\",\"attention_bias\":true}",
                       NULL, &c));
    assert_int_equal(c.arch, DG_ARCH_EAGLE3);
    assert_true(c.draft_vocab_size == 0 && c.qkv_bias && c.o_bias && !c.qk_norm);
}

static void test_eagle3_layers(void **state) {
    (void)state;
    static const struct {
        const char *more;
        int tap[3];
    } want[] = {
        {"{\"eagle_aux_hidden_state_layer_ids\":[1,14,27]}", {1, 14, 27}},
        {"{\"eagle_aux_hidden_state_layer_ids\":[2,15,28]}", {1, 14, 27}},
        {"{\"aux_hidden_states_layer_ids\":[1,2,3]}", {1, 2, 3}},
        {"{\"eagle_config\":{\"eagle_aux_hidden_state_layer_ids\":[24,30,36],\"norm_before_fc\":true}}", {23, 29, 35}},
        {"{\"eagle_config\":{\"eagle_aux_hidden_state_layer_ids\":[1,17,33],\"use_aux_hidden_state\":true}}", {1, 17, 33}}};
    dg_config c;
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        check_ok(read_both(eagle, want[i].more, NULL, &c));
        assert_int_equal(c.n_tap, 3);
        assert_false(c.tap_default);
        for (int t = 0; t < 3; t++) assert_int_equal(c.tap[t], want[i].tap[t]);
        assert_int_equal(c.norm_before_fc, i == 3);
    }
}

static void test_eagle3_speculators(void **state) {
    (void)state;
    const char *base = "{\"speculators_model_type\":\"eagle3\",\"architectures\":[\"Eagle3Speculator\"],"
                       "\"transformer_layer_config\":{" HEAD ",\"head_dim\":80,\"rope_theta\":5e5},"
                       "\"draft_vocab_size\":300,\"eagle_aux_hidden_state_layer_ids\":[1,15,28],"
                       "\"norm_before_residual\":true,\"norm_output\":true,\"fc_norm\":true}";
    dg_config c;
    check_ok(read_both(base, "{}", NULL, &c));
    assert_int_equal(c.arch, DG_ARCH_EAGLE3);
    assert_int_equal(c.tap[0], 0); /* always counted as inputs */
    assert_int_equal(c.tap[2], 27);
    assert_int_equal(c.draft_vocab_size, 300);
    assert_true(c.norm_before_residual && c.feed_normed && c.fc_norm && c.rope_theta == 5e5f);
    check_ok(read_both(base, "{\"eagle_aux_hidden_state_layer_ids\":null}", NULL, &c));
    assert_true(c.tap_default && c.n_tap == 3);
    check_fails(read_both(base, "{\"norm_before_fc\":true}", NULL, &c), DG_ERR_FORMAT, "exclude each other");
    check_fails(read_both(base, "{\"eagle_aux_hidden_state_layer_ids\":[0,4]}", NULL, &c), DG_ERR_FORMAT, "1 to 512");
}

/* What only the tensors tell: how wide fc is, the size of a head, norms on q and k; and that it is one at all. */
static void test_eagle3_tensors(void **state) {
    (void)state;
    dg_file_tensor t[] = {{.name = "fc.weight", .n_dim = 2, .dim = {96, 3 * 96}},
                          {.name = "fc_norm.0.weight", .n_dim = 1, .dim = {96}},
                          {.name = "midlayer.self_attn.q_norm.weight", .n_dim = 1, .dim = {32}},
                          {.name = "midlayer.self_attn.q_proj.weight", .n_dim = 2, .dim = {6 * 32, 192}}};
    dg_file f = {.path = "m", .container = DG_CONTAINER_SAFETENSORS, .tensor = t, .n_tensor = sizeof t / sizeof *t};
    dg_config c;
    check_ok(dg_json_parse("c", eagle, strlen(eagle), &f.config));
    json_object_del(f.config, "draft_vocab_size");
    json_object_set_new(f.config, "head_dim", json_integer(80)); /* as one published file has it */
    check_ok(dg_config_read(&f, &c));
    assert_int_equal(c.arch, DG_ARCH_EAGLE3);
    assert_int_equal(c.head_dim, 32);
    assert_true(c.qk_norm && c.fc_norm);
    t[0].dim[1] = 5 * 96;
    check_fails(dg_config_read(&f, &c), DG_ERR_FORMAT, "expected an fc.weight for three of 96, found 480 columns");
    json_decref(f.config);
}

static void test_eagle3_refused(void **state) {
    (void)state;
    static const struct {
        const char *more;
        dg_status code;
        const char *part;
    } bad[] = {{"{\"num_hidden_layers\":2}", DG_ERR_UNSUPPORTED, "several layers"},
               {"{\"draft_vocab_size\":1001}", DG_ERR_FORMAT, "draft_vocab_size: expected at most the vocabulary's 1000"},
               {"{\"draft_vocab_size\":\"all\"}", DG_ERR_FORMAT, "draft_vocab_size: expected an integer"},
               {"{\"norm_output\":false}", DG_ERR_UNSUPPORTED, "without final norm (config.json: norm_output)"},
               {"{\"kv_lora_rank\":512}", DG_ERR_UNSUPPORTED, "latent attention"},
               {"{\"num_experts\":4}", DG_ERR_UNSUPPORTED, "mixture of experts"},
               {"{\"eagle_config\":[]}", DG_ERR_FORMAT, "eagle_config: expected an object"},
               {"{\"eagle_config\":{\"use_aux_hidden_state\":false}}", DG_ERR_UNSUPPORTED, "EAGLE-1"},
               {"{\"eagle_config\":{\"use_last_layernorm\":false}}", DG_ERR_UNSUPPORTED, "without final norm"},
               {"{\"eagle_config\":{\"use_input_layernorm_in_first_layer\":false}}", DG_ERR_UNSUPPORTED, "without input norm"},
               {"{\"eagle_config\":{\"parallel_draft_step\":2}}", DG_ERR_UNSUPPORTED, "P-EAGLE"},
               {"{\"eagle_config\":{\"use_mtp_layernorm\":true}}", DG_ERR_UNSUPPORTED, "MTP norms"},
               {"{\"eagle_aux_hidden_state_layer_ids\":[2,2,4]}", DG_ERR_FORMAT, "ascending order"},
               {"{\"eagle_aux_hidden_state_layer_ids\":[0,2,4]}", DG_ERR_FORMAT, "from 1 to 512"},
               {"{\"eagle_aux_hidden_state_layer_ids\":7}", DG_ERR_FORMAT, "expected an array of layer ids"}};
    dg_config c;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        check_fails(read_both(eagle, bad[i].more, NULL, &c), bad[i].code, bad[i].part);
}

int main(void) {
    const struct CMUnitTest t[] = {
        cmocka_unit_test(test_eagle3),          cmocka_unit_test(test_eagle3_layers),
        cmocka_unit_test(test_eagle3_speculators), cmocka_unit_test(test_eagle3_tensors),
        cmocka_unit_test(test_eagle3_refused),
        cmocka_unit_test(test_plain),           cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_rope_spellings),  cmocka_unit_test(test_yarn),
        cmocka_unit_test(test_rope_numbers),    cmocka_unit_test(test_windows),
        cmocka_unit_test(test_stops),           cmocka_unit_test(test_missing_and_mistyped),
        cmocka_unit_test(test_refused),         cmocka_unit_test(test_dflash),
        cmocka_unit_test(test_causal),          cmocka_unit_test(test_dflash_bad),
        cmocka_unit_test(test_foreign_tensors), cmocka_unit_test(test_speculators)};
    return cmocka_run_group_tests_name("config", t, NULL, NULL);
}
