/* dg_config as GGUF keys and as config.json; see config_write.h. */
#include "runtime/config_write.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/config_read.h"

/* ---- what both ask ---------------------------------------------------------------------------- */

/* The one window of the layers that have one, 0 if none has; *all: every layer has it. */
static dg_status one_window(const char *path, const dg_config *c, int32_t *window, bool *all) {
    *window = 0, *all = true;
    for (int32_t i = 0; i < c->n_layer; i++) {
        if (c->window[i] == 0) {
            *all = false;
            continue;
        }
        DG_CHECK(!*window || c->window[i] == *window, DG_ERR_UNSUPPORTED,
                 "%s: layers with windows of %d and of %d cannot be written; expected one size", path,
                 *window, c->window[i]);
        *window = c->window[i];
    }
    return DG_OK;
}

/* *told: causality is not what the windows imply, and *value holds for every layer. */
static dg_status one_causal(const char *path, const dg_config *c, bool *told, bool *value) {
    bool same = true;
    *told = false, *value = c->causal[0];
    for (int32_t i = 0; i < c->n_layer; i++) {
        if (c->causal[i] != (c->window[i] > 0)) *told = true;
        if (c->causal[i] != *value) same = false;
    }
    DG_CHECK(same || !*told, DG_ERR_UNSUPPORTED,
             "%s: causal and other layers, mixed against their windows, cannot be written", path);
    return DG_OK;
}

static float yarn_own(const dg_config *c) {
    return c->rope_factor > 1 ? (float)(0.1 * log((double)c->rope_factor) + 1) : 1;
}

/* ---- GGUF ------------------------------------------------------------------------------------- */

const char *dg_config_gguf_arch(const dg_config *c) {
    return dg_arch_name(c->arch == DG_ARCH_MISTRAL ? DG_ARCH_LLAMA : c->arch);
}

static dg_status put_rope(const char *path, const dg_config *c, dg_gguf_out *g) {
    const bool yarn = c->rope_scaling == DG_ROPE_YARN;
    dg_gguf_out_u32(g, ".rope.dimension_count", (uint32_t)c->head_dim);
    dg_gguf_out_f32(g, ".rope.freq_base", c->rope_theta);
    if (!yarn && c->rope_scaling != DG_ROPE_LINEAR) return DG_OK; /* llama3: tensor rope_freqs */
    dg_gguf_out_str(g, ".rope.scaling.type", yarn ? "yarn" : "linear");
    dg_gguf_out_f32(g, ".rope.scaling.factor", c->rope_factor);
    if (!yarn) return DG_OK;
    DG_CHECK(c->yarn_truncate, DG_ERR_UNSUPPORTED, "%s: YaRN with truncate = false has no GGUF key", path);
    dg_gguf_out_u32(g, ".rope.scaling.original_context_length", (uint32_t)c->rope_original);
    if (c->yarn_beta_fast != 32) dg_gguf_out_f32(g, ".rope.scaling.yarn_beta_fast", c->yarn_beta_fast);
    if (c->yarn_beta_slow != 1) dg_gguf_out_f32(g, ".rope.scaling.yarn_beta_slow", c->yarn_beta_slow);
    /* llama.cpp multiplies this key with its own attention factor */
    if (c->yarn_attn_factor > 0)
        dg_gguf_out_f32(g, ".rope.scaling.attn_factor", c->yarn_attn_factor / yarn_own(c));
    return DG_OK;
}

static dg_status put_windows(const char *path, const dg_config *c, dg_gguf_out *g) {
    int32_t window;
    bool all, on[DG_MAX_LAYERS];
    DG_TRY(one_window(path, c, &window, &all));
    if (!window) return DG_OK;
    dg_gguf_out_u32(g, ".attention.sliding_window", (uint32_t)window);
    for (int32_t i = 0; i < c->n_layer; i++) on[i] = c->window[i] > 0;
    if (!all) dg_gguf_out_bools(g, ".attention.sliding_window_pattern", on, (size_t)c->n_layer);
    return DG_OK;
}

/* Feature layers, as the inputs of the layers after them. */
static void put_taps(const dg_config *c, dg_gguf_out *g) {
    int32_t layer[DG_MAX_TAPS];
    for (int32_t i = 0; i < c->n_tap; i++) layer[i] = c->tap[i] + 1;
    dg_gguf_out_i32s(g, ".target_layers", layer, (size_t)c->n_tap);
}

static dg_status put_eagle3(const char *path, const dg_config *c, dg_gguf_out *g) {
    DG_CHECK(!c->tap_default, DG_ERR_UNSUPPORTED, "%s: config.json names no feature layers, and GGUF has to", path);
    DG_CHECK(!c->qk_norm && !c->fc_norm && !c->feed_normed, DG_ERR_UNSUPPORTED,
             "%s: %s has no GGUF key", path, c->qk_norm ? "a norm of q and k" : c->fc_norm ? "fc_norm" : "norm_output");
    put_taps(c, g);
    dg_gguf_out_u32(g, ".target_hidden_size", (uint32_t)(c->target_hidden_size ? c->target_hidden_size : c->hidden_size));
    dg_gguf_out_bool(g, ".norm_before_residual", c->norm_before_residual);
    dg_gguf_out_bool(g, ".norm_before_fc", c->norm_before_fc);
    return DG_OK;
}

static dg_status put_dflash(const char *path, const dg_config *c, dg_gguf_out *g) {
    bool told, causal;
    dg_gguf_out_u32(g, ".block_size", (uint32_t)c->block_size);
    put_taps(c, g);
    if (c->mask_token_id >= 0) dg_gguf_out_u32(g, "tokenizer.ggml.mask_token_id", (uint32_t)c->mask_token_id);
    if (c->target_hidden_size) dg_gguf_out_u32(g, ".target_hidden_size", (uint32_t)c->target_hidden_size);
    if (c->embedding_scale != 1) dg_gguf_out_f32(g, ".embedding_scale", c->embedding_scale);
    if (c->output_multiplier != 1) dg_gguf_out_f32(g, ".logit_scale", c->output_multiplier);
    if (c->logit_softcap != 0) dg_gguf_out_f32(g, ".final_logit_softcapping", c->logit_softcap);
    DG_TRY(one_causal(path, c, &told, &causal));
    if (told) dg_gguf_out_bool(g, ".attention.causal", causal);
    return DG_OK;
}

dg_status dg_config_to_gguf(const char *path, const dg_config *c, dg_gguf_out *g) {
    dg_gguf_out_str(g, "general.architecture", g->arch);
    dg_gguf_out_u32(g, ".vocab_size", (uint32_t)c->vocab_size);
    for (int i = 0; i < DG_CONFIG_FIELDS; i++) {
        const dg_config_field *row = &dg_config_fields[i];
        if (!row->gguf) continue;
        char key[64] = ".";
        strncat(key, row->gguf, sizeof key - 2);
        dg_gguf_out_u32(g, key, *(const uint32_t *)(const void *)((const char *)c + row->offset));
    }
    dg_gguf_out_u32(g, ".attention.value_length", (uint32_t)c->head_dim);
    dg_gguf_out_f32(g, ".attention.layer_norm_rms_epsilon", c->rms_norm_eps);
    DG_TRY(put_rope(path, c, g));
    DG_TRY(put_windows(path, c, g));
    if (c->arch == DG_ARCH_EAGLE3) return put_eagle3(path, c, g);
    return c->arch == DG_ARCH_DFLASH ? put_dflash(path, c, g) : DG_OK;
}

/* ---- config.json ------------------------------------------------------------------------------ */

/* An object under construction; once a value was lost for want of memory, failed. */
typedef struct object {
    json_t *j;
    bool failed;
} object;

static void set(object *o, const char *key, json_t *value) {
    if (json_object_set_new(o->j, key, value) != 0) o->failed = true;
}

static void set_int(object *o, const char *key, int64_t v) { set(o, key, json_integer(v)); }
static void set_bool(object *o, const char *key, bool v) { set(o, key, json_boolean(v)); }
static void set_text(object *o, const char *key, const char *v) { set(o, key, json_string(v)); }

/* The shortest decimal that reads back as v: 1e-05, not 9.99999974737875e-06. */
static void set_real(object *o, const char *key, float v) {
    char text[32];
    int digits = 1;
    do snprintf(text, sizeof text, "%.*g", digits, (double)v);
    while (strtof(text, NULL) != v && digits++ < 9);
    set(o, key, json_real(strtod(text, NULL)));
}

static void set_ints(object *o, const char *key, const int32_t *v, int32_t n) {
    json_t *list = json_array();
    for (int32_t i = 0; i < n; i++)
        if (json_array_append_new(list, json_integer(v[i])) != 0) o->failed = true;
    set(o, key, list);
}

static const struct {
    const char *cls, *type;
} classes[] = {
    [DG_ARCH_LLAMA] = {"LlamaForCausalLM", "llama"},  [DG_ARCH_QWEN2] = {"Qwen2ForCausalLM", "qwen2"},
    [DG_ARCH_QWEN3] = {"Qwen3ForCausalLM", "qwen3"},  [DG_ARCH_MISTRAL] = {"MistralForCausalLM", "mistral"},
    [DG_ARCH_DFLASH] = {"DFlashDraftModel", "qwen3"},
};

/* Whether a llama3 scaling in *c has these divisors. */
static bool fits(const dg_config *c, const float *factors) {
    float want[1 << 11]; /* head_dim is at most 4096 */
    dg_config_rope_factors(c, want);
    for (int32_t i = 0; i < c->head_dim / 2; i++)
        if (!(fabsf(want[i] - factors[i]) <= 1e-4f * factors[i])) return false;
    return true;
}

/* GGUF keeps the outcome of a llama3 scaling, not its parameters. All published ones have the frequency
 * factors 1 and 4 and an original context that is a power of two: the one that reproduces the vector is as
 * good as the lost one. */
static dg_status recover_llama3(const char *path, const dg_config *c, const float *factors, dg_config *out) {
    *out = *c;
    out->rope_scaling = DG_ROPE_LLAMA3;
    out->rope_low_freq = 1, out->rope_high_freq = 4;
    out->rope_factor = 1;
    for (int32_t i = 0; i < c->head_dim / 2; i++) out->rope_factor = fmaxf(out->rope_factor, factors[i]);
    for (int bit = 5; bit < 25; bit++) {
        out->rope_original = 1 << bit;
        if (fits(out, factors)) return DG_OK;
    }
    DG_FAIL(DG_ERR_UNSUPPORTED,
            "%s: tensor rope_freqs.weight: not the factors of a llama3 scaling, and config.json has "
            "no other place for them",
            path);
}

static void set_rope(object *o, const dg_config *c) {
    static const char *const type[] = {
        [DG_ROPE_LINEAR] = "linear", [DG_ROPE_LLAMA3] = "llama3", [DG_ROPE_YARN] = "yarn"};
    set_real(o, "rope_theta", c->rope_theta);
    if (c->rope_scaling == DG_ROPE_NONE) {
        set(o, "rope_scaling", json_null());
        return;
    }
    object s = {json_object(), false};
    set_text(&s, "rope_type", type[c->rope_scaling]);
    set_real(&s, "factor", c->rope_factor);
    if (c->rope_scaling == DG_ROPE_LLAMA3) {
        set_real(&s, "low_freq_factor", c->rope_low_freq);
        set_real(&s, "high_freq_factor", c->rope_high_freq);
    }
    if (c->rope_scaling != DG_ROPE_LINEAR) set_int(&s, "original_max_position_embeddings", c->rope_original);
    if (c->rope_scaling == DG_ROPE_YARN) {
        set_real(&s, "beta_fast", c->yarn_beta_fast);
        set_real(&s, "beta_slow", c->yarn_beta_slow);
        if (c->yarn_attn_factor > 0) set_real(&s, "attention_factor", c->yarn_attn_factor);
        if (!c->yarn_truncate) set_bool(&s, "truncate", false);
    }
    o->failed |= s.failed;
    set(o, "rope_scaling", s.j);
}

static void set_windows(object *o, const dg_config *c, int32_t window) {
    set(o, "sliding_window", window ? json_integer(window) : json_null());
    if (c->arch == DG_ARCH_MISTRAL) return;
    json_t *types = json_array();
    for (int32_t i = 0; i < c->n_layer; i++)
        if (json_array_append_new(types,
                                  json_string(c->window[i] ? "sliding_attention" : "full_attention")) != 0)
            o->failed = true;
    set_bool(o, "use_sliding_window", window > 0);
    set_int(o, "max_window_layers", c->n_layer);
    set(o, "layer_types", types);
}

static dg_status set_dflash(const char *path, object *o, const dg_config *c) {
    bool told, causal;
    object d = {json_object(), false};
    set_int(o, "block_size", c->block_size);
    if (c->num_target_layers) set_int(o, "num_target_layers", c->num_target_layers);
    if (c->draft_vocab_size) set_int(o, "draft_vocab_size", c->draft_vocab_size);
    if (c->target_hidden_size) set_int(o, "target_hidden_size", c->target_hidden_size);
    if (c->mask_token_id >= 0) set_int(&d, "mask_token_id", c->mask_token_id);
    set_ints(&d, "target_layer_ids", c->tap, c->n_tap);
    if (c->embedding_scale != 1) set_real(&d, "input_embedding_scale", c->embedding_scale);
    if (c->output_multiplier != 1) set_real(&d, "output_multiplier", c->output_multiplier);
    if (c->logit_softcap != 0) set_real(&d, "final_logit_softcapping", c->logit_softcap);
    o->failed |= d.failed;
    set(o, "dflash_config", d.j);
    DG_TRY(one_causal(path, c, &told, &causal));
    if (told) set_bool(o, "is_causal", causal);
    return DG_OK;
}

static void set_ids(object *o, const dg_config *c) {
    set(o, "bos_token_id", c->bos >= 0 ? json_integer(c->bos) : json_null());
    if (c->n_stop == 1)
        set_int(o, "eos_token_id", c->stop[0]);
    else if (c->n_stop > 1)
        set_ints(o, "eos_token_id", c->stop, c->n_stop);
}

/* A llama with a window on every layer is a mistral; with windows on some it has no class. */
static dg_status settle_arch(const char *path, dg_config *c, int32_t window, bool all) {
    const bool llama = c->arch == DG_ARCH_LLAMA || c->arch == DG_ARCH_MISTRAL;
    if (llama && window) {
        DG_CHECK(all, DG_ERR_UNSUPPORTED, "%s: a llama with windows on some layers has no Hugging Face class",
                 path);
        c->arch = DG_ARCH_MISTRAL;
    }
    /* the other classes tie the bias of the output projection to that of q, k and v */
    const bool separate = c->arch == DG_ARCH_QWEN2     ? c->o_bias
                          : c->arch == DG_ARCH_MISTRAL ? c->o_bias || c->qkv_bias
                                                       : c->o_bias != c->qkv_bias;
    DG_CHECK(!separate, DG_ERR_UNSUPPORTED, "%s: no Hugging Face class of %s has just these attention biases",
             path, dg_arch_name(c->arch));
    return DG_OK;
}

static dg_status build_json(const char *path, const dg_config *c, int32_t window, const char *torch_dtype,
                            object *o) {
    json_t *list = json_array();
    if (json_array_append_new(list, json_string(classes[c->arch].cls)) != 0) o->failed = true;
    set(o, "architectures", list);
    set_text(o, "model_type", classes[c->arch].type);
    for (int i = 0; i < DG_CONFIG_FIELDS; i++)
        set_int(o, dg_config_fields[i].hf,
                *(const int32_t *)(const void *)((const char *)c + dg_config_fields[i].offset));
    set_text(o, "hidden_act", "silu");
    set_real(o, "rms_norm_eps", c->rms_norm_eps);
    if (c->arch != DG_ARCH_QWEN2 && c->arch != DG_ARCH_MISTRAL) set_bool(o, "attention_bias", c->qkv_bias);
    set_bool(o, "tie_word_embeddings", c->tied);
    set_rope(o, c);
    if (c->arch != DG_ARCH_LLAMA) set_windows(o, c, window);
    if (c->arch == DG_ARCH_DFLASH) DG_TRY(set_dflash(path, o, c));
    set_ids(o, c);
    set_text(o, "torch_dtype", torch_dtype);
    return DG_OK;
}

dg_status dg_config_to_json(const char *path, const dg_config *config, const float *factors,
                            const char *torch_dtype, json_t **out) {
    dg_config c = *config;
    int32_t window;
    bool all;
    if (c.rope_scaling == DG_ROPE_FREQ_FACTORS) DG_TRY(recover_llama3(path, config, factors, &c));
    DG_TRY(one_window(path, &c, &window, &all));
    DG_TRY(settle_arch(path, &c, window, all));
    object o = {json_object(), false};
    dg_status st = build_json(path, &c, window, torch_dtype, &o);
    if (st == DG_OK && (o.failed || !o.j)) st = dg_fail(DG_ERR_MEMORY, "%s: no memory for config.json", path);
    if (st == DG_OK)
        *out = o.j;
    else
        json_decref(o.j);
    return st;
}
