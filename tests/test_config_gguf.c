/* GGUF metadata as a configuration. */
#include "runtime/config.h"
#include "tests/files.h"
#include "tests/test.h"

static const char *dir;
static bytes b;

/* A file in the making: keys and tensors are collected, then written behind the right counts. */
static bytes keys, tensors;
static uint64_t n_key, n_tensor, offset;

static void key_u32(const char *name, uint32_t v) { put_key_u32(&keys, name, v), n_key++; }
static void key_str(const char *name, const char *v) { put_key_str(&keys, name, v), n_key++; }
static void key_f32(const char *name, float v) { put_key(&keys, name, GGUF_F32), put_f32(&keys, v), n_key++; }
static void key_bool(const char *name, bool v) {
    put_key(&keys, name, GGUF_BOOL), put_int(&keys, v, 1), n_key++;
}
static void key_ints(const char *name, uint32_t type, int width, uint64_t n, const int *v) {
    put_array(&keys, name, type, n), n_key++;
    for (uint64_t i = 0; i < n; i++) put_int(&keys, (uint64_t)v[i], width);
}
static void tensor(const char *name, uint64_t cols, uint64_t rows, uint64_t elements) {
    const uint64_t ne[] = {cols, rows};
    put_tensor(&tensors, name, ne, rows ? 2 : 1, 0, offset), n_tensor++;
    offset += (elements * 4 + 31) / 32 * 32;
}

/* The keys that every architecture needs; skip names one to leave out. */
static void start(const char *arch, const char *skip) {
    static const struct {
        const char *name;
        uint32_t v;
    } size[] = {{"embedding_length", 96},       {"block_count", 4},           {"attention.head_count", 6},
                {"attention.head_count_kv", 2}, {"feed_forward_length", 200}, {"context_length", 512},
                {"attention.key_length", 16}};
    keys.n = tensors.n = 0, n_key = n_tensor = offset = 0;
    key_str("general.architecture", arch);
    for (size_t i = 0; i < sizeof size / sizeof *size; i++) {
        char name[64];
        if (skip && strcmp(skip, size[i].name) == 0) continue;
        snprintf(name, sizeof name, "%s.%s", arch, size[i].name);
        key_u32(name, size[i].v);
    }
    if (!skip || strcmp(skip, "tokens") != 0) {
        put_array(&keys, "tokenizer.ggml.tokens", GGUF_STRING, 3), n_key++;
        put_str(&keys, "a"), put_str(&keys, "b"), put_str(&keys, "c");
    }
}

static dg_status finish(dg_config *c) {
    dg_file *f;
    b.n = 0;
    put_gguf(&b, 3, n_tensor, n_key);
    put(&b, keys.p, keys.n);
    put(&b, tensors.p, tensors.n);
    put_align(&b, 32);
    for (uint64_t i = 0; i < offset / 4; i++) put_f32(&b, (float)(i + 1));
    check_ok(dg_file_open(save(dir, "f.gguf", b.p, b.n), &f));
    const dg_status st = dg_config_read(f, c);
    dg_file_close(f);
    return st;
}

static void test_plain(void **state) {
    (void)state;
    dg_config c;
    start("llama", NULL);
    key_f32("llama.rope.freq_base", 5e5f);
    key_f32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
    key_u32("llama.rope.dimension_count", 16);
    key_u32("tokenizer.ggml.eos_token_id", 2);
    key_u32("tokenizer.ggml.eot_token_id", 1);
    key_u32("tokenizer.ggml.bos_token_id", 0);
    tensor("token_embd.weight", 96, 7, 96 * 7);
    check_ok(finish(&c));
    assert_int_equal(c.arch, DG_ARCH_LLAMA);
    assert_string_equal(c.arch_name, "llama");
    assert_int_equal(c.vocab_size, 7); /* the embedding's rows, not the tokens */
    assert_int_equal(c.hidden_size, 96);
    assert_int_equal(c.n_layer, 4);
    assert_int_equal(c.n_head, 6);
    assert_int_equal(c.n_kv_head, 2);
    assert_int_equal(c.head_dim, 16);
    assert_int_equal(c.intermediate_size, 200);
    assert_int_equal(c.max_position, 512);
    assert_true(c.rope_theta == 5e5f && c.rms_norm_eps == 1e-5f);
    assert_true(c.tied && c.rope_interleaved && !c.qk_norm && !c.qkv_bias && !c.o_bias);
    assert_int_equal(c.n_stop, 2);
    assert_int_equal(c.stop[0], 2);
    assert_int_equal(c.stop[1], 1);
    assert_int_equal(c.bos, 0);
    for (int i = 0; i < 4; i++) assert_int_equal(c.window[i], 0);
}

static void test_defaults(void **state) {
    (void)state;
    dg_config c;
    static const char *const arch[] = {"qwen2", "qwen3"};
    for (int i = 0; i < 2; i++) {
        start(arch[i], "attention.key_length");
        tensor("output.weight", 96, 3, 96 * 3);
        check_ok(finish(&c));
        assert_string_equal(dg_arch_name(c.arch), arch[i]);
        assert_int_equal(c.head_dim, 16); /* 96 / 6, for qwen3 too */
        assert_int_equal(c.vocab_size, 3);
        assert_true(c.rope_theta == 10000 && c.rms_norm_eps == 1e-6f);
        assert_true(!c.tied && !c.rope_interleaved);
        assert_int_equal(c.qk_norm, i == 1);
        assert_int_equal(c.qkv_bias, i == 0);
        assert_int_equal(c.bos, -1);
    }
    start("llama", "attention.head_count_kv");
    tensor("blk.0.attn_q.bias", 96, 0, 96);
    tensor("blk.0.attn_output.bias", 96, 0, 96);
    check_ok(finish(&c));
    assert_int_equal(c.n_kv_head, 6);
    assert_true(c.qkv_bias && c.o_bias);
}

static void test_layered_integers(void **state) {
    (void)state;
    dg_config c;
    const int same[] = {2, 2, 2, 2}, differ[] = {2, 2, 1, 2};
    start("llama", "attention.head_count_kv");
    key_ints("llama.attention.head_count_kv", GGUF_I32, 4, 4, same);
    check_ok(finish(&c));
    assert_int_equal(c.n_kv_head, 2);
    start("llama", "attention.head_count_kv");
    key_ints("llama.attention.head_count_kv", GGUF_I32, 4, 4, differ);
    check_fails(finish(&c), DG_ERR_UNSUPPORTED, "head_count_kv: values that differ between layers");
    start("llama", "attention.head_count_kv");
    key_ints("llama.attention.head_count_kv", GGUF_I32, 4, 0, same);
    check_fails(finish(&c), DG_ERR_FORMAT, "head_count_kv: expected an integer");
}

static void test_windows(void **state) {
    (void)state;
    dg_config c;
    const int flags[] = {1, 0, 0, 1};
    start("qwen3", NULL);
    key_u32("qwen3.attention.sliding_window", 20);
    check_ok(finish(&c));
    for (int i = 0; i < 4; i++) assert_int_equal(c.window[i], 20);
    start("qwen3", NULL);
    key_u32("qwen3.attention.sliding_window", 20);
    key_ints("qwen3.attention.sliding_window_pattern", GGUF_BOOL, 1, 4, flags);
    check_ok(finish(&c));
    for (int i = 0; i < 4; i++) assert_int_equal(c.window[i], flags[i] ? 20 : 0);
    start("qwen3", NULL);
    key_u32("qwen3.attention.sliding_window", 20);
    key_u32("qwen3.attention.sliding_window_pattern", 2);
    check_ok(finish(&c));
    for (int i = 0; i < 4; i++) assert_int_equal(c.window[i], i % 2 ? 0 : 20);
    start("qwen3", NULL);
    key_ints("qwen3.attention.sliding_window_pattern", GGUF_BOOL, 1, 4, flags);
    check_ok(finish(&c)); /* a pattern without a window: none */
    for (int i = 0; i < 4; i++) assert_int_equal(c.window[i], 0);
    start("qwen3", NULL);
    key_u32("qwen3.attention.sliding_window", 20);
    key_ints("qwen3.attention.sliding_window_pattern", GGUF_BOOL, 1, 3, flags);
    check_fails(finish(&c), DG_ERR_FORMAT, "sliding_window_pattern");
    start("qwen3", NULL);
    key_u32("qwen3.attention.sliding_window", 20);
    key_u32("qwen3.attention.sliding_window_pattern", 0);
    check_fails(finish(&c), DG_ERR_FORMAT, "sliding_window_pattern");
}

static void test_rope(void **state) {
    (void)state;
    dg_config c;
    start("qwen3", NULL);
    key_str("qwen3.rope.scaling.type", "yarn");
    key_f32("qwen3.rope.scaling.factor", 4);
    key_u32("qwen3.rope.scaling.original_context_length", 128);
    check_ok(finish(&c));
    assert_int_equal(c.rope_scaling, DG_ROPE_YARN);
    assert_true(c.rope_factor == 4 && c.yarn_attn_factor == 0);
    assert_true(c.yarn_beta_fast == 32 && c.yarn_beta_slow == 1 && c.yarn_truncate);
    assert_int_equal(c.rope_original, 128);
    start("qwen3", NULL);
    key_str("qwen3.rope.scaling.type", "yarn");
    key_f32("qwen3.rope.scaling.factor", 4);
    key_f32("qwen3.rope.scaling.attn_factor", 0.5f); /* times 0.1 ln 4 + 1 */
    check_ok(finish(&c));
    const float want = 0.5693147f;
    check_near(&c.yarn_attn_factor, &want, 1, 1e-6, "attn_factor");
    start("llama", NULL);
    key_str("llama.rope.scaling.type", "linear");
    key_f32("llama.rope.scaling.factor", 2);
    check_ok(finish(&c));
    assert_int_equal(c.rope_scaling, DG_ROPE_LINEAR);
    start("llama", NULL);
    tensor("rope_freqs.weight", 8, 0, 8);
    check_ok(finish(&c));
    assert_int_equal(c.rope_scaling, DG_ROPE_FREQ_FACTORS);

    start("llama", NULL);
    tensor("rope_freqs.weight", 9, 0, 9);
    check_fails(finish(&c), DG_ERR_FORMAT, "rope_freqs.weight: expected f32 [8], found f32 [9]");
    start("llama", NULL);
    key_str("llama.rope.scaling.type", "linear");
    tensor("rope_freqs.weight", 8, 0, 8);
    check_fails(finish(&c), DG_ERR_UNSUPPORTED, "two rope scalings");
    start("llama", NULL);
    key_str("llama.rope.scaling.type", "longrope");
    check_fails(finish(&c), DG_ERR_UNSUPPORTED, "longrope is not supported");
    start("llama", NULL);
    key_u32("llama.rope.dimension_count", 8);
    check_fails(finish(&c), DG_ERR_UNSUPPORTED, "partial rotary");
    start("llama", NULL);
    key_u32("llama.attention.value_length", 8);
    check_fails(finish(&c), DG_ERR_UNSUPPORTED, "value_length");
}

static void test_missing(void **state) {
    (void)state;
    static const char *const need[] = {"embedding_length", "block_count", "attention.head_count",
                                       "feed_forward_length", "context_length"};
    dg_config c;
    for (size_t i = 0; i < sizeof need / sizeof *need; i++) {
        start("llama", need[i]);
        check_fails(finish(&c), DG_ERR_FORMAT, need[i]);
    }
    start("llama", "tokens");
    tensor("x", 4, 0, 4);
    check_fails(finish(&c), DG_ERR_FORMAT, "expected tokenizer.ggml.tokens or token_embd.weight");
    start("llama", NULL);
    tensor("token_embd.weight", 96, 2, 96 * 2);
    check_fails(finish(&c), DG_ERR_FORMAT, "tokens: expected at most the vocabulary's 2, found 3");
    start("llama", NULL);
    key_u32("llama.vocab_size", 8);
    tensor("token_embd.weight", 96, 7, 96 * 7);
    check_fails(finish(&c), DG_ERR_FORMAT, "expected the 8 rows of vocab_size, found 7");
    start("llama", "block_count");
    key_f32("llama.block_count", 4);
    check_fails(finish(&c), DG_ERR_FORMAT, "block_count: expected an integer");
    start("llama", "block_count");
    key_u32("llama.block_count", 513);
    check_fails(finish(&c), DG_ERR_FORMAT, "block_count: expected 1 to 512, found 513");
    start("llama", NULL);
    key_str("llama.rope.freq_base", "big");
    check_fails(finish(&c), DG_ERR_FORMAT, "rope.freq_base: expected a number, found a string");
    start("llama", NULL);
    key_u32("tokenizer.ggml.eos_token_id", 3);
    check_fails(finish(&c), DG_ERR_FORMAT, "end-of-text id: expected less than the vocabulary's 3, found 3");
    keys.n = tensors.n = 0, n_key = n_tensor = offset = 0;
    tensor("x", 4, 0, 4);
    check_fails(finish(&c), DG_ERR_FORMAT, "general.architecture: expected a string, found nothing");
}

static void test_refused(void **state) {
    (void)state;
    static const char *const arch[][2] = {{"qwen3moe", "mixture of experts"},
                                          {"qwen35", "hybrid"},
                                          {"lfm2", "convolution"},
                                          {"eagle", "EAGLE head"},
                                          {"dflash-draft", "dialect"},
                                          {"gemma3", "gemma3 is not supported"},
                                          {"LLAMA", "LLAMA is not supported"}};
    dg_config c;
    for (size_t i = 0; i < sizeof arch / sizeof *arch; i++) {
        start(arch[i][0], NULL);
        check_fails(finish(&c), DG_ERR_UNSUPPORTED, arch[i][1]);
        assert_non_null(strstr(dg_error_message(), "supported: llama, mistral, qwen2 and qwen3 targets"));
    }
    start("llama", NULL);
    key_u32("llama.expert_count", 8);
    check_fails(finish(&c), DG_ERR_UNSUPPORTED, "mixture of experts (llama.expert_count)");
    start("llama", NULL);
    key_u32("llama.expert_count", 0);
    check_ok(finish(&c));
    start("llama", NULL);
    key_f32("llama.logit_scale", 0.25f);
    check_fails(finish(&c), DG_ERR_UNSUPPORTED, "logit_scale");
    start("llama", NULL);
    tensor("blk.0.ffn_gate_exps.weight", 4, 0, 4);
    check_fails(finish(&c), DG_ERR_UNSUPPORTED, "blk.0.ffn_gate_exps.weight");
}

static void test_dflash(void **state) {
    (void)state;
    dg_config c;
    const int taps[] = {2, 4}, flags[] = {1, 1, 0, 0};
    start("dflash", NULL);
    key_ints("dflash.target_layers", GGUF_I32, 4, 2, taps);
    key_u32("dflash.block_size", 8);
    key_u32("tokenizer.ggml.mask_token_id", 2);
    key_u32("dflash.attention.sliding_window", 20);
    key_ints("dflash.attention.sliding_window_pattern", GGUF_BOOL, 1, 4, flags);
    key_f32("dflash.logit_scale", 0.5f);
    tensor("blk.0.attn_q.bias", 96, 0, 96);
    check_ok(finish(&c));
    assert_int_equal(c.arch, DG_ARCH_DFLASH);
    assert_int_equal(c.n_tap, 2);
    assert_int_equal(c.tap[0], 1);
    assert_int_equal(c.tap[1], 3);
    assert_int_equal(c.block_size, 8);
    assert_int_equal(c.mask_token_id, 2);
    assert_int_equal(c.draft_vocab_size, 0);
    assert_true(c.output_multiplier == 0.5f && c.qk_norm && c.qkv_bias && !c.o_bias && !c.tied &&
                !c.rope_interleaved);
    for (int i = 0; i < 4; i++) assert_int_equal(c.causal[i], flags[i]);

    start("dflash", NULL);
    key_ints("dflash.target_layers", GGUF_I32, 4, 2, taps);
    key_u32("dflash.attention.sliding_window", 20);
    key_bool("dflash.attention.causal", false);
    tensor("output.weight", 96, 2, 96 * 2);
    check_ok(finish(&c));
    for (int i = 0; i < 4; i++) assert_false(c.causal[i]);
    assert_int_equal(c.block_size, 16);
    assert_int_equal(c.mask_token_id, -1);
    assert_int_equal(c.draft_vocab_size, 2);

    start("dflash", NULL);
    check_fails(finish(&c), DG_ERR_FORMAT, "target_layers");
    const int zero[] = {0, 4};
    start("dflash", NULL);
    key_ints("dflash.target_layers", GGUF_I32, 4, 2, zero);
    check_fails(finish(&c), DG_ERR_FORMAT, "target_layers: expected numbers from 1 to 512");
    start("dflash", NULL);
    key_ints("dflash.target_layers", GGUF_I32, 4, 2, taps);
    key_u32("dflash.selector_rank", 256);
    check_fails(finish(&c), DG_ERR_UNSUPPORTED,
                "DFlash 2 drafter: candidate selector (dflash.selector_rank)");
    start("dflash", NULL);
    key_ints("dflash.target_layers", GGUF_I32, 4, 2, taps);
    tensor("selector_predecessor.weight", 4, 0, 4);
    check_fails(finish(&c), DG_ERR_UNSUPPORTED, "DFlash 2 drafter (tensor selector_predecessor.weight)");
}

static void test_eagle3(void **state) {
    (void)state;
    dg_config c;
    const int layers[] = {2, 4, 5}, zero[] = {0, 4};
    start("eagle3", "block_count");
    key_u32("eagle3.block_count", 1);
    key_ints("eagle3.target_layers", GGUF_I32, 4, 3, layers);
    key_u32("eagle3.target_hidden_size", 64);
    key_bool("eagle3.norm_before_residual", true);
    key_bool("eagle3.norm_before_fc", true);
    tensor("output.weight", 96, 2, 96 * 2);
    tensor("blk.0.attn_q.weight", 4, 6 * 8, 4 * 6 * 8);
    check_ok(finish(&c));
    assert_int_equal(c.arch, DG_ARCH_EAGLE3);
    for (int i = 0; i < 3; i++) assert_int_equal(c.tap[i], layers[i] - 1);
    assert_int_equal(c.n_tap, 3);
    assert_int_equal(c.target_hidden_size, 64);
    assert_int_equal(c.draft_vocab_size, 2);
    assert_int_equal(c.head_dim, 8);
    assert_true(c.norm_before_residual && c.norm_before_fc && c.rope_interleaved && !c.qk_norm && !c.tap_default && !c.tied);

    start("eagle3", NULL);
    key_ints("eagle3.target_layers", GGUF_I32, 4, 3, layers);
    check_fails(finish(&c), DG_ERR_UNSUPPORTED, "several layers");
    start("eagle3", "block_count");
    key_u32("eagle3.block_count", 1);
    check_fails(finish(&c), DG_ERR_FORMAT, "target_layers");
    start("eagle3", "block_count");
    key_u32("eagle3.block_count", 1);
    key_ints("eagle3.target_layers", GGUF_I32, 4, 2, zero);
    check_fails(finish(&c), DG_ERR_FORMAT, "target_layers: expected numbers from 1 to 512");
}

static int setup(void **state) {
    (void)state;
    static char d[128];
    snprintf(d, sizeof d, "%s", test_tmpdir());
    dir = d;
    return 0;
}

static int teardown(void **state) {
    (void)state;
    remove_tree(dir);
    return 0;
}

int main(void) {
    const struct CMUnitTest t[] = {cmocka_unit_test(test_plain),
                                   cmocka_unit_test(test_defaults),
                                   cmocka_unit_test(test_layered_integers),
                                   cmocka_unit_test(test_windows),
                                   cmocka_unit_test(test_rope),
                                   cmocka_unit_test(test_missing),
                                   cmocka_unit_test(test_refused),
                                   cmocka_unit_test(test_dflash),
                                   cmocka_unit_test(test_eagle3)};
    return cmocka_run_group_tests_name("config of gguf", t, setup, teardown);
}
