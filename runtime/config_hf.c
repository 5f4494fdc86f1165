/* config.json of Hugging Face directories, in the spelling of transformers 4 and 5, of z-lab's DFlash
 * drafters, of EAGLE-3 heads (SafeAILab, SpecForge, AngelSlim, ModelOpt) and of speculators exports. Keys that would change the mathematics and are not understood are
 * refused. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "runtime/config_read.h"

/* An object of the file and where it stands, for messages. */
typedef struct source {
    const char *path, *place; /* place: "config.json: rope_scaling." */
    const json_t *obj;
} source;

/* NULL if absent or null. */
static const json_t *field(const source *s, const char *key) {
    const json_t *v = json_object_get(s->obj, key);
    return json_is_null(v) ? NULL : v;
}

static dg_status mistyped(const source *s, const char *key, const char *expected, const json_t *found) {
    static const char *const type[] = {"an object", "an array", "a string", "an integer",
                                       "a real",    "true",     "false",    "null"};
    DG_FAIL(DG_ERR_FORMAT, "%s: %s%s: expected %s, found %s", s->path, s->place, key, expected,
            found ? type[json_typeof(found)] : "nothing");
}

/* The getters leave *v alone when the field is absent. */
static dg_status get_int(const source *s, const char *key, int64_t lo, int64_t hi, int32_t *v) {
    const json_t *j = field(s, key);
    if (!j) return DG_OK;
    if (!json_is_integer(j)) return mistyped(s, key, "an integer", j);
    const int64_t n = json_integer_value(j);
    DG_CHECK(n >= lo && n <= hi, DG_ERR_FORMAT, "%s: %s%s: expected %lld to %lld, found %lld", s->path,
             s->place, key, (long long)lo, (long long)hi, (long long)n);
    *v = (int32_t)n;
    return DG_OK;
}

static dg_status get_float(const source *s, const char *key, double lo, double hi, float *v) {
    const json_t *j = field(s, key);
    if (!j) return DG_OK;
    if (!json_is_number(j)) return mistyped(s, key, "a number", j);
    const double d = json_number_value(j);
    DG_CHECK(d >= lo && d <= hi, DG_ERR_FORMAT, "%s: %s%s: expected %g to %g, found %g", s->path, s->place,
             key, lo, hi, d);
    *v = (float)d;
    return DG_OK;
}

static dg_status get_bool(const source *s, const char *key, bool *v) {
    const json_t *j = field(s, key);
    if (!j) return DG_OK;
    if (!json_is_boolean(j)) return mistyped(s, key, "a boolean", j);
    *v = json_is_true(j);
    return DG_OK;
}

static dg_status get_string(const source *s, const char *key, const char **v) {
    const json_t *j = field(s, key);
    if (!j) return DG_OK;
    if (!json_is_string(j)) return mistyped(s, key, "a string", j);
    *v = json_string_value(j);
    return DG_OK;
}

/* The object under key as a source of its own; obj is NULL if absent. */
static dg_status get_object(const source *s, const char *key, const char *place, source *out) {
    const json_t *j = field(s, key);
    if (j && !json_is_object(j)) return mistyped(s, key, "an object", j);
    *out = (source){s->path, place, j};
    return DG_OK;
}

/* ---- what is refused -------------------------------------------------------------------------- */

/* A key of something that is not supported, unless its value is null, false, "", [] or the neutral number. */
typedef struct foreign_key {
    const char *key, *what;
    double neutral;
} foreign_key;

static dg_status check_foreign(const source *s, const foreign_key *k, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const json_t *v = field(s, k[i].key);
        const bool no = !v || json_is_false(v) ||
                        (json_is_number(v) && json_number_value(v) == k[i].neutral) ||
                        (json_is_string(v) && json_string_length(v) == 0) ||
                        (json_is_array(v) && json_array_size(v) == 0);
        if (no) continue;
        char shown[128];
        snprintf(shown, sizeof shown, "%s%s", s->place, k[i].key);
        return dg_config_lacks(s->path, k[i].what, shown);
    }
    return DG_OK;
}

static const foreign_key body_keys[] = {
    {"num_experts", "mixture of experts", 0},
    {"num_local_experts", "mixture of experts", 0},
    {"n_routed_experts", "mixture of experts", 0},
    {"mlp_bias", "a bias in the MLP", 0},
    {"quantization_config", "a quantised Hugging Face checkpoint", 0},
    {"partial_rotary_factor", "a partial rotary embedding", 1},
    {"attn_logit_softcapping", "soft-capped attention", 0},
    {"residual_multiplier", "a scaled residual", 1},
    {"attention_multiplier", "a scaled attention", 1},
    {"no_rope_layers", "layers without rotary embedding", 0},
    {"attention_chunk_size", "chunked attention", 0},
};

/* Of a DFlash drafter's relatives; looked for in dflash_config and at the top. */
static const foreign_key draft_keys[] = {
    {"conv_kernel_size", "a DFlash 2 drafter: candidate_selector and convolutions", 0},
    {"conv_group_size", "a DFlash 2 drafter: candidate_selector and convolutions", 0},
    {"selector_rank", "a DFlash 2 drafter: candidate_selector and convolutions", 0},
    {"selector_top_k", "a DFlash 2 drafter: candidate_selector and convolutions", 0},
    {"markov_rank", "a DSpark drafter", 0},
    {"markov_head_type", "a DSpark drafter", 0},
    {"enable_confidence_head", "a DSpark drafter", 0},
    {"gru_hidden_dim", "a Domino drafter", 0},
    {"shift_label", "a drafter whose rows predict the next position", 0},
    {"sample_from_anchor", "a drafter whose rows predict the next position", 0},
    {"attention_sink_bias", "a MiMo drafter", 0},
    {"add_swa_attention_sink_bias", "a MiMo drafter", 0},
    {"attention_value_scale", "a MiMo drafter", 1},
    {"backbone_rotary_base", "a MiMo drafter", 0},
    {"partial_rotary_factor", "a partial rotary embedding", 1},
    {"quantization_config", "a quantised Hugging Face checkpoint", 0},
};

/* Of an EAGLE-3 head's relatives; looked for in eagle_config and at the top. */
static const foreign_key eagle_keys[] = {
    {"parallel_draft_step", "a P-EAGLE head: several tokens a pass", 1},
    {"use_mtp_layernorm", "a head with MTP norms", 0},
    {"kv_lora_rank", "latent attention", 0},
    {"eagle_decoder_type", "an EAGLE head with another decoder", 0},
};

/* ---- fields that all share -------------------------------------------------------------------- */

static dg_status read_sizes(const source *s, dg_config *c) {
    for (int i = 0; i < DG_CONFIG_FIELDS; i++) {
        const dg_config_field *row = &dg_config_fields[i];
        int32_t *v = (int32_t *)((char *)c + row->offset);
        DG_TRY(get_int(s, row->hf, 1, row->max, v));
        DG_CHECK(*v || !row->need, DG_ERR_FORMAT, "%s: %s%s: expected 1 to %d, found nothing", s->path,
                 s->place, row->hf, row->max);
    }
    const char *act = "silu";
    DG_TRY(get_string(s, "hidden_act", &act));
    DG_CHECK(strcmp(act, "silu") == 0 || strcmp(act, "swish") == 0, DG_ERR_UNSUPPORTED,
             "%s: %shidden_act: %.32s is not supported; supported: silu", s->path, s->place, act);
    return get_float(s, "rms_norm_eps", 0, 1, &c->rms_norm_eps);
}

/* eos_token_id of one file: an id or a list. */
static dg_status read_stops(const source *s, dg_config *c) {
    const json_t *j = field(s, "eos_token_id");
    if (!j) return DG_OK;
    const size_t n = json_is_array(j) ? json_array_size(j) : 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *e = json_is_array(j) ? json_array_get(j, i) : j;
        if (!json_is_integer(e)) return mistyped(s, "eos_token_id", "an integer or a list of them", e);
        DG_TRY(dg_config_add_stop(s->path, c, json_integer_value(e)));
    }
    return DG_OK;
}

/* ---- rope ------------------------------------------------------------------------------------- */

static dg_status need_above(const source *s, const char *key, float v) {
    DG_CHECK(v > 0, DG_ERR_FORMAT, "%s: %s%s: expected a positive number, found %s", s->path, s->place, key,
             v < 0 ? "nothing" : "0");
    return DG_OK;
}

/* The length that a YaRN scaling makes of the cosines when it is given by DeepSeek's two numbers. */
static dg_status read_yarn(const source *s, dg_config *c) {
    float mscale = 0, all = 0;
    DG_TRY(get_float(s, "beta_fast", 0, 1e6, &c->yarn_beta_fast));
    DG_TRY(get_float(s, "beta_slow", 0, 1e6, &c->yarn_beta_slow));
    if (c->yarn_beta_fast == 0) c->yarn_beta_fast = 32; /* the reference takes 0 as absent */
    if (c->yarn_beta_slow == 0) c->yarn_beta_slow = 1;
    DG_TRY(get_float(s, "attention_factor", 0, 1e3, &c->yarn_attn_factor));
    DG_TRY(get_float(s, "mscale", 0, 1e3, &mscale));
    DG_TRY(get_float(s, "mscale_all_dim", 0, 1e3, &all));
    DG_TRY(get_bool(s, "truncate", &c->yarn_truncate));
    if (c->yarn_attn_factor == 0 && mscale > 0 && all > 0 && c->rope_factor > 1) {
        const double l = 0.1 * log((double)c->rope_factor);
        c->yarn_attn_factor = (float)(((double)mscale * l + 1) / ((double)all * l + 1));
    }
    return DG_OK;
}

static dg_status read_scaling(const source *s, dg_config *c) {
    const char *type = "default";
    DG_TRY(get_string(s, "type", &type));
    DG_TRY(get_string(s, "rope_type", &type));
    if (strcmp(type, "default") == 0) return DG_OK;

    c->rope_factor = 0;
    DG_TRY(get_float(s, "factor", 0, 1e6, &c->rope_factor));
    DG_TRY(get_int(s, "original_max_position_embeddings", 1, 1 << 30, &c->rope_original));
    if (c->rope_factor == 0 && c->rope_original)
        c->rope_factor = (float)c->max_position / (float)c->rope_original;
    DG_TRY(need_above(s, "factor", c->rope_factor));
    if (strcmp(type, "linear") == 0) {
        c->rope_scaling = DG_ROPE_LINEAR;
        return DG_OK;
    }
    if (strcmp(type, "yarn") == 0) {
        c->rope_scaling = DG_ROPE_YARN;
        return read_yarn(s, c);
    }
    DG_CHECK(strcmp(type, "llama3") == 0, DG_ERR_UNSUPPORTED,
             "%s: %srope_type: %.32s is not supported; supported: default, linear, llama3, yarn", s->path,
             s->place, type);
    c->rope_scaling = DG_ROPE_LLAMA3;
    c->rope_low_freq = c->rope_high_freq = -1;
    DG_TRY(get_float(s, "low_freq_factor", 0, 1e6, &c->rope_low_freq));
    DG_TRY(get_float(s, "high_freq_factor", 0, 1e6, &c->rope_high_freq));
    DG_TRY(need_above(s, "low_freq_factor", c->rope_low_freq));
    DG_TRY(need_above(s, "high_freq_factor", c->rope_high_freq));
    DG_CHECK(c->rope_high_freq > c->rope_low_freq, DG_ERR_FORMAT,
             "%s: %shigh_freq_factor: expected more than low_freq_factor %g, found %g", s->path, s->place,
             (double)c->rope_low_freq, (double)c->rope_high_freq);
    return DG_OK;
}

/* transformers 5: rope_parameters holds theta and scaling; 4: rope_theta and rope_scaling at the top. A file
 * may have both when a tool added the scaling to a newer one; then that counts, as in transformers. */
static dg_status read_rope(const source *s, dg_config *c) {
    source five = {0}, four = {0};
    float theta5 = 0, theta4 = 0;
    DG_TRY(get_object(s, "rope_parameters", "config.json: rope_parameters.", &five));
    DG_TRY(get_object(s, "rope_scaling", "config.json: rope_scaling.", &four));
    DG_TRY(get_float(&five, "rope_theta", 1.001, 1e30, &theta5));
    DG_TRY(get_float(s, "rope_theta", 1.001, 1e30, &theta4));
    DG_CHECK(theta5 == 0 || theta4 == 0 || theta5 == theta4, DG_ERR_FORMAT,
             "%s: %srope_theta is %g at the top and %g in rope_parameters", s->path, s->place, (double)theta4,
             (double)theta5);
    if (theta5 > 0 || theta4 > 0) c->rope_theta = theta5 > 0 ? theta5 : theta4;
    if (json_is_object(json_object_get(five.obj, "full_attention")) ||
        json_is_object(json_object_get(five.obj, "sliding_attention")))
        return dg_config_lacks(s->path, "rope that depends on the layer's type",
                               "config.json: rope_parameters");
    static const foreign_key partial[] = {{"partial_rotary_factor", "a partial rotary embedding", 1}};
    DG_TRY(check_foreign(&five, partial, 1));
    DG_TRY(read_scaling(json_object_size(four.obj) > 0 ? &four : &five, c));

    bool interleaved = false, neox = true;
    DG_TRY(get_bool(s, "rope_interleaved", &interleaved));
    DG_TRY(get_bool(s, "is_neox_style", &neox));
    c->rope_interleaved = interleaved || !neox;
    return DG_OK;
}

/* ---- sliding windows -------------------------------------------------------------------------- */

/* layer_types into sliding[], false if the file has none. */
static dg_status read_layer_types(const source *s, const dg_config *c, bool *sliding, bool *found) {
    const json_t *types = field(s, "layer_types");
    *found = types != NULL;
    if (!types) return DG_OK;
    if (!json_is_array(types)) return mistyped(s, "layer_types", "an array", types);
    DG_CHECK(json_array_size(types) == (size_t)c->n_layer, DG_ERR_FORMAT,
             "%s: %slayer_types: expected %d entries, found %zu", s->path, s->place, c->n_layer,
             json_array_size(types));
    for (int32_t i = 0; i < c->n_layer; i++) {
        const char *t = json_string_value(json_array_get(types, (size_t)i));
        DG_CHECK(t, DG_ERR_FORMAT, "%s: %slayer_types[%d]: expected a string", s->path, s->place, i);
        sliding[i] = strcmp(t, "sliding_attention") == 0;
        DG_CHECK(
            sliding[i] || strcmp(t, "full_attention") == 0, DG_ERR_UNSUPPORTED,
            "%s: %slayer_types[%d]: %.32s is not supported; supported: full_attention, sliding_attention "
            "(no hybrid or recurrent layers)",
            s->path, s->place, i, t);
    }
    return DG_OK;
}

/* Transformers' rules: mistral slides on every layer; the qwen family only with use_sliding_window, and then
 * by layer_types or from max_window_layers on; llama never. A drafter's layer_types need no switch. */
static dg_status read_windows(const source *s, dg_config *c) {
    bool sliding[DG_MAX_LAYERS] = {false}, typed, use = c->arch == DG_ARCH_MISTRAL;
    const bool draft = dg_arch_is_drafter(c->arch), qwen = c->arch == DG_ARCH_QWEN2 || c->arch == DG_ARCH_QWEN3 || draft;
    int32_t window = 0, first = 28;
    DG_TRY(read_layer_types(s, c, sliding, &typed));
    DG_TRY(get_int(s, "sliding_window", 0, INT32_MAX, &window));
    if (qwen) {
        DG_TRY(get_bool(s, "use_sliding_window", &use));
        DG_TRY(get_int(s, "max_window_layers", 0, INT32_MAX, &first));
        if (draft && typed) use = true;
    }
    if (!json_object_get(s->obj, "sliding_window") && use)
        window = 4096; /* the classes' default; null is none */
    if (!use || window == 0) return DG_OK;
    for (int32_t i = 0; i < c->n_layer; i++) {
        const bool on = typed ? sliding[i] : qwen ? i >= first : true;
        if (on) c->window[i] = window;
    }
    return DG_OK;
}

/* ---- DFlash ----------------------------------------------------------------------------------- */

/* A drafter's own values: nested first, then at the top. */
static dg_status draft_int(const source *nested, const source *top, const char *key, int64_t lo, int64_t hi,
                           int32_t *v) {
    return get_int(nested->obj && field(nested, key) ? nested : top, key, lo, hi, v);
}

static dg_status draft_float(const source *nested, const source *top, const char *key, float *v) {
    return get_float(nested->obj && field(nested, key) ? nested : top, key, -1e6, 1e6, v);
}

/* The list under key, each value moved by `shift`. */
static dg_status read_taps(const source *s, const char *key, int64_t shift, dg_config *c) {
    const json_t *ids = field(s, key);
    if (!json_is_array(ids)) return mistyped(s, key, "an array of layer ids", ids);
    const size_t n = json_array_size(ids);
    DG_CHECK(n >= 1 && n <= DG_MAX_TAPS, DG_ERR_FORMAT, "%s: %s%s: expected 1 to %d ids, found %zu", s->path,
             s->place, key, DG_MAX_TAPS, n);
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(ids, i);
        DG_CHECK(json_is_integer(id) && json_integer_value(id) + shift >= 0 &&
                     json_integer_value(id) + shift < DG_MAX_LAYERS,
                 DG_ERR_FORMAT, "%s: %s%s[%zu]: expected an integer from %lld to %lld", s->path, s->place,
                 key, i, (long long)-shift, (long long)DG_MAX_LAYERS - 1 - shift);
        c->tap[i] = (int32_t)(json_integer_value(id) + shift);
    }
    c->n_tap = (int32_t)n;
    return DG_OK;
}

/* Sliding layers are causal inside the block and full ones are not, unless the file says so for all. use_swa
 * makes layers that are all declared full slide, and leaves them non-causal. */
static dg_status read_causal(const source *nested, const source *top, dg_config *c) {
    bool all = false, swa = false, slides = false;
    int32_t window = 0;
    for (int32_t i = 0; i < c->n_layer; i++) {
        c->causal[i] = c->window[i] > 0;
        slides = slides || c->causal[i];
    }
    DG_TRY(get_bool(nested, "use_swa", &swa));
    DG_TRY(get_int(nested, "swa_window_size", 1, INT32_MAX, &window));
    if (swa && !slides) {
        DG_CHECK(window > 0, DG_ERR_FORMAT, "%s: %sswa_window_size: expected 1 or more, found nothing",
                 nested->path, nested->place);
        for (int32_t i = 0; i < c->n_layer; i++) c->window[i] = window;
    }
    const bool told = field(top, "is_causal") || field(nested, "causal");
    DG_TRY(get_bool(nested, "causal", &all));
    DG_TRY(get_bool(top, "is_causal", &all));
    for (int32_t i = 0; told && i < c->n_layer; i++) c->causal[i] = all;
    return DG_OK;
}

static dg_status read_dflash(const source *top, dg_config *c) {
    source nested = {0};
    const char *projector = "dflash";
    DG_TRY(get_object(top, "dflash_config", "config.json: dflash_config.", &nested));
    DG_TRY(check_foreign(&nested, draft_keys, sizeof draft_keys / sizeof *draft_keys));
    DG_TRY(check_foreign(top, draft_keys, sizeof draft_keys / sizeof *draft_keys));
    DG_TRY(get_string(top, "projector_type", &projector));
    DG_TRY(get_string(&nested, "projector_type", &projector));
    if (strcmp(projector, "dflash") != 0) return dg_config_refuse(top->path, projector);

    c->block_size = 16;
    DG_TRY(draft_int(&nested, top, "block_size", 2, DG_TREE_MAX, &c->block_size));
    DG_TRY(draft_int(&nested, top, "mask_token_id", 0, INT32_MAX, &c->mask_token_id));
    DG_TRY(draft_float(&nested, top, "input_embedding_scale", &c->embedding_scale));
    DG_TRY(draft_float(&nested, top, "output_multiplier", &c->output_multiplier));
    DG_TRY(draft_float(&nested, top, "final_logit_softcapping", &c->logit_softcap));
    DG_TRY(get_int(top, "num_target_layers", 1, DG_MAX_LAYERS, &c->num_target_layers));
    DG_TRY(get_int(top, "draft_vocab_size", 1, INT32_MAX, &c->draft_vocab_size));
    DG_TRY(get_int(top, "target_hidden_size", 1, 1 << 20, &c->target_hidden_size));
    DG_TRY(read_taps(field(&nested, "target_layer_ids") ? &nested : top, "target_layer_ids", 0, c));
    return read_causal(&nested, top, c);
}

/* ---- EAGLE-3 ---------------------------------------------------------------------------------- */

/* A list of feature layers counts a layer by its output ([1, ...]: SpecForge, AngelSlim, ModelOpt) or by its input
 * ([2, ...], one more: speculators, vLLM, some of the former). The first id tells; `inputs`: known to be the latter. */
static dg_status read_aux_layers(const source *s, bool inputs, dg_config *c) {
    static const char *const key[] = {"eagle_aux_hidden_state_layer_ids", "aux_hidden_states_layer_ids",
                                      "aux_hidden_state_layer_ids"};
    for (size_t i = 0; i < sizeof key / sizeof *key; i++) {
        const json_t *list = field(s, key[i]);
        if (!list) continue;
        const bool outputs = !inputs && json_integer_value(json_array_get(list, 0)) == 1;
        return read_taps(s, key[i], outputs ? 0 : -1, c);
    }
    return DG_OK;
}

static dg_status need_true(const source *s, const char *key, const char *what) {
    bool v = true;
    char shown[128];
    DG_TRY(get_bool(s, key, &v));
    if (v) return DG_OK;
    snprintf(shown, sizeof shown, "%s%s", s->place, key);
    return dg_config_lacks(s->path, what, shown);
}

/* Keys that stand at the top or in eagle_config. norm_output has two meanings: for speculators, and in eagle_config,
 * which speculators reads the same way, it feeds the normed hidden back; at the top of a SpecForge file it is
 * whether the head sees the final norm at all, which it does by default. */
static dg_status read_eagle3(const source *top, bool speculators, dg_config *c) {
    source nested = {0};
    DG_TRY(get_object(top, "eagle_config", "config.json: eagle_config.", &nested));
    const source *const part[] = {&nested, top};
    for (int i = 0; i < 2; i++) {
        if (!part[i]->obj) continue;
        DG_TRY(check_foreign(part[i], eagle_keys, sizeof eagle_keys / sizeof *eagle_keys));
        DG_TRY(need_true(part[i], "use_aux_hidden_state", "a head on the last layer's features alone (EAGLE-1)"));
        DG_TRY(need_true(part[i], "use_input_layernorm_in_first_layer", "a head without input norm"));
        DG_TRY(need_true(part[i], "use_last_layernorm", "a head without final norm"));
        DG_TRY(get_bool(part[i], "norm_before_residual", &c->norm_before_residual));
        DG_TRY(get_bool(part[i], "norm_before_fc", &c->norm_before_fc));
        DG_TRY(get_bool(part[i], "fc_norm", &c->fc_norm));
        DG_TRY(get_int(part[i], "draft_vocab_size", 1, INT32_MAX, &c->draft_vocab_size));
        DG_TRY(get_int(part[i], "target_hidden_size", 1, 1 << 20, &c->target_hidden_size));
        if (!c->n_tap) DG_TRY(read_aux_layers(part[i], speculators, c));
        if (part[i] == top && !speculators)
            DG_TRY(need_true(top, "norm_output", "a head without final norm"));
        else
            DG_TRY(get_bool(part[i], "norm_output", &c->feed_normed));
    }
    return DG_OK;
}

/* Told by the class, by the size of a draft vocabulary, or by the name of the one layer; the model_type is that of
 * any body. */
static bool is_eagle3(const dg_file *f, const char *cls) {
    if (cls && (strcasestr(cls, "eagle3") || strcasestr(cls, "dflash"))) return strcasestr(cls, "eagle3") != NULL;
    if (!json_is_null(json_object_get(f->config, "draft_vocab_size")) && json_object_get(f->config, "draft_vocab_size"))
        return true;
    for (size_t i = 0; i < f->n_tensor; i++)
        if (strncmp(f->tensor[i].name, "midlayer.", 9) == 0) return true;
    return false;
}

/* ---- speculators ------------------------------------------------------------------------------ */

static dg_status speculators_dflash(const source *top, dg_config *c) {
    bool non_causal = false;
    c->block_size = 8;
    DG_TRY(get_bool(top, "sliding_window_non_causal", &non_causal));
    for (int32_t i = 0; i < c->n_layer; i++) c->causal[i] = c->window[i] > 0 && !non_causal;
    DG_TRY(get_int(top, "block_size", 2, DG_TREE_MAX, &c->block_size));
    DG_TRY(get_int(top, "mask_token_id", 0, INT32_MAX, &c->mask_token_id));
    DG_TRY(get_int(top, "draft_vocab_size", 1, INT32_MAX, &c->draft_vocab_size));
    DG_TRY(get_int(top, "target_hidden_size", 1, 1 << 20, &c->target_hidden_size));
    return read_taps(top, "aux_hidden_state_layer_ids", -1, c);
}

/* The body under transformer_layer_config, and feature layers counted as inputs, so one more than the layer whose
 * output they are. */
static dg_status read_speculators(const source *top, dg_config *c) {
    const char *type = "";
    source body = {0};
    DG_TRY(get_string(top, "speculators_model_type", &type));
    const bool eagle3 = strcmp(type, "eagle3") == 0;
    if (!eagle3 && strcmp(type, "dflash") != 0) return dg_config_refuse(top->path, type);
    DG_TRY(get_object(top, "transformer_layer_config", "config.json: transformer_layer_config.", &body));
    if (!body.obj) return mistyped(top, "transformer_layer_config", "an object", NULL);
    c->arch = eagle3 ? DG_ARCH_EAGLE3 : DG_ARCH_DFLASH;
    c->qk_norm = !eagle3; /* an EAGLE-3 head has it or not, as its tensors say */
    strcpy(c->arch_name, eagle3 ? "Eagle3Speculator" : "DFlashSpeculator");
    if (eagle3)
        DG_TRY(check_foreign(&body, body_keys, sizeof body_keys / sizeof *body_keys));
    else
        DG_TRY(check_foreign(top, draft_keys, sizeof draft_keys / sizeof *draft_keys));
    DG_TRY(read_sizes(&body, c));
    DG_TRY(get_bool(&body, "attention_bias", &c->qkv_bias));
    c->o_bias = c->qkv_bias;
    if (eagle3) DG_TRY(get_bool(&body, "tie_word_embeddings", &c->tied));
    DG_TRY(read_rope(&body, c));
    DG_TRY(read_windows(&body, c));
    return eagle3 ? read_eagle3(top, true, c) : speculators_dflash(top, c);
}

/* ---- the whole -------------------------------------------------------------------------------- */

static dg_status read_arch(const source *s, const dg_file *f, dg_config *c) {
    static const struct {
        const char *name;
        dg_arch arch;
    } known[] = {{"llama", DG_ARCH_LLAMA},
                 {"mistral", DG_ARCH_MISTRAL},
                 {"qwen2", DG_ARCH_QWEN2},
                 {"qwen3", DG_ARCH_QWEN3}};
    const char *type = NULL;
    const json_t *list = field(s, "architectures");
    const char *cls = json_string_value(json_array_get(list, 0));
    DG_TRY(get_string(s, "model_type", &type));
    DG_CHECK(type || cls, DG_ERR_FORMAT, "%s: %smodel_type: expected a string, found nothing", s->path,
             s->place);

    const bool draft = (cls && strcmp(cls, "DFlashDraftModel") == 0) || (!cls && field(s, "dflash_config"));
    snprintf(c->arch_name, sizeof c->arch_name, "%s", draft ? "DFlashDraftModel" : type ? type : cls);
    if (draft) {
        c->arch = DG_ARCH_DFLASH;
        return DG_OK;
    }
    if (cls && !strcasestr(cls, "eagle3") && dg_config_foreign_drafter(cls)) return dg_config_refuse(s->path, cls);
    if (is_eagle3(f, cls)) {
        c->arch = DG_ARCH_EAGLE3;
        snprintf(c->arch_name, sizeof c->arch_name, "EAGLE-3 head");
        return DG_OK;
    }
    /* a class of another network may borrow a body's model_type: the class has to name that body */
    const bool plain = !cls || strstr(cls, "ForCausalLM");
    if (!plain || (cls && strcasestr(cls, "eagle"))) return dg_config_refuse(s->path, cls);
    for (size_t i = 0; type && i < sizeof known / sizeof *known; i++) {
        if (strcmp(type, known[i].name) != 0) continue;
        c->arch = known[i].arch;
        return DG_OK;
    }
    return dg_config_refuse(s->path, type ? type : cls);
}

static dg_status read_body(const source *s, const dg_file *f, dg_config *c) {
    DG_TRY(read_arch(s, f, c));
    if (c->arch != DG_ARCH_DFLASH) DG_TRY(check_foreign(s, body_keys, sizeof body_keys / sizeof *body_keys));
    DG_TRY(read_sizes(s, c));
    c->qk_norm = c->arch == DG_ARCH_QWEN3 || c->arch == DG_ARCH_DFLASH;
    if (c->arch == DG_ARCH_QWEN2)
        c->qkv_bias = true;
    else if (c->arch != DG_ARCH_MISTRAL) {
        DG_TRY(get_bool(s, "attention_bias", &c->qkv_bias));
        c->o_bias = c->qkv_bias;
    }
    if (c->arch != DG_ARCH_DFLASH) DG_TRY(get_bool(s, "tie_word_embeddings", &c->tied));
    DG_TRY(read_rope(s, c));
    DG_TRY(read_windows(s, c));
    if (c->arch == DG_ARCH_EAGLE3) return read_eagle3(s, false, c);
    return c->arch == DG_ARCH_DFLASH ? read_dflash(s, c) : DG_OK;
}

dg_status dg_config_read_hf(const dg_file *f, dg_config *c) {
    DG_CHECK(f->config, DG_ERR_FORMAT, "%s: expected a config.json beside it, found none", f->path);
    const source s = {f->path, "config.json: ", f->config};
    const source g = {f->path, "generation_config.json: ", f->generation};
    DG_TRY(field(&s, "speculators_model_type") ? read_speculators(&s, c) : read_body(&s, f, c));
    DG_TRY(get_int(&s, "bos_token_id", -1, INT32_MAX, &c->bos));
    DG_TRY(read_stops(&s, c));
    return f->generation ? read_stops(&g, c) : DG_OK;
}
