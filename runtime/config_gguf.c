/* GGUF metadata as a configuration: llama.cpp's keys, prefixed with the architecture. Keys that would change
 * the mathematics and are not understood are refused. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "runtime/config_read.h"

typedef struct source {
    const dg_file *f;
    const char *arch;
} source;

enum { KEY_MAX = 160 };

static void key_of(const source *s, const char *name, char key[KEY_MAX]) {
    snprintf(key, KEY_MAX, "%s.%s", s->arch, name);
}

static const dg_meta *find(const source *s, const char *name) {
    char key[KEY_MAX];
    key_of(s, name, key);
    return dg_meta_find(s->f, key);
}

static dg_status bad(const source *s, const char *name, const char *expected) {
    DG_FAIL(DG_ERR_FORMAT, "%s: key %s.%s: expected %s", s->f->path, s->arch, name, expected);
}

static bool is_int(const dg_meta *m) { return m->type == DG_META_U64 || m->type == DG_META_I64; }

/* An integer, or a list with one equal entry for each layer. The getters leave *v alone when the key is
 * absent. */
static dg_status get_int(const source *s, const char *name, int64_t lo, int64_t hi, int32_t *v) {
    const dg_meta *m = find(s, name);
    if (!m) return DG_OK;
    if (!is_int(m) || m->n == 0) return bad(s, name, "an integer");
    const int64_t n = dg_meta_int(m, 0);
    for (uint64_t i = 1; i < m->n; i++)
        DG_CHECK(dg_meta_int(m, i) == n, DG_ERR_UNSUPPORTED,
                 "%s: key %s.%s: values that differ between layers are not supported", s->f->path, s->arch,
                 name);
    DG_CHECK(n >= lo && n <= hi, DG_ERR_FORMAT, "%s: key %s.%s: expected %lld to %lld, found %lld",
             s->f->path, s->arch, name, (long long)lo, (long long)hi, (long long)n);
    *v = (int32_t)n;
    return DG_OK;
}

static dg_status get_float(const source *s, const char *name, double lo, double hi, float *v) {
    char key[KEY_MAX];
    double d;
    dg_status st = DG_OK;
    key_of(s, name, key);
    if (!dg_meta_f64(s->f, key, &d, &st)) return st;
    DG_CHECK(d >= lo && d <= hi, DG_ERR_FORMAT, "%s: key %s: expected %g to %g, found %g", s->f->path, key,
             lo, hi, d);
    *v = (float)d;
    return DG_OK;
}

static dg_status get_bool(const source *s, const char *name, bool *v) {
    char key[KEY_MAX];
    dg_status st = DG_OK;
    key_of(s, name, key);
    dg_meta_bool(s->f, key, v, &st);
    return st;
}

/* ---- refusals --------------------------------------------------------------------------------- */

static const struct {
    const char *key, *what;
    double neutral;
} foreign[] = {
    {"expert_count", "mixture of experts", 0},
    {"ssm.state_size", "hybrid with recurrent layers", 0},
    {"full_attention_interval", "hybrid with recurrent layers", 0},
    {"selector_rank", "a DFlash 2 drafter: candidate selector", 0},
    {"selector_top_k", "a DFlash 2 drafter: candidate selector", 0},
    {"conv_kernel_size", "a DFlash 2 drafter: convolutions", 0},
    {"sample_from_anchor", "a drafter whose rows predict the next position", 0},
    {"has_confidence_head", "a DSpark drafter", 0},
    {"attn_logit_softcapping", "soft-capped attention", 0},
    {"residual_scale", "a scaled residual", 1},
    {"attention.scale", "a scaled attention", 0},
    {"attention.clamp_kqv", "clamped attention", 0},
};

static dg_status check_foreign(const source *s) {
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
        const dg_meta *m = find(s, foreign[i].key);
        if (!m || (m->type != DG_META_STRING && m->n == 1 && dg_meta_number(m, 0) == foreign[i].neutral))
            continue;
        char key[KEY_MAX];
        key_of(s, foreign[i].key, key);
        return dg_config_lacks(s->f->path, foreign[i].what, key);
    }
    return DG_OK;
}

/* A target with a scale on its embedding or logits is another model than the one its name says. */
static dg_status check_scales(const source *s, const dg_config *c) {
    const char *shown = c->embedding_scale != 1     ? "embedding_scale"
                        : c->output_multiplier != 1 ? "logit_scale"
                        : c->logit_softcap != 0     ? "final_logit_softcapping"
                                                    : NULL;
    if (c->arch == DG_ARCH_DFLASH || !shown) return DG_OK; /* dflash.c says so itself */
    return dg_config_lacks(s->f->path, "a scaled embedding or output", shown);
}

/* ---- fields ----------------------------------------------------------------------------------- */

static dg_status read_arch(const dg_file *f, dg_config *c) {
    dg_str name;
    dg_status st = DG_OK;
    if (!dg_meta_str(f, "general.architecture", &name, &st)) {
        DG_TRY(st);
        DG_FAIL(DG_ERR_FORMAT, "%s: key general.architecture: expected a string, found nothing", f->path);
    }
    snprintf(c->arch_name, sizeof c->arch_name, "%.*s", (int)(name.len < 63 ? name.len : 63), name.ptr);
    static const dg_arch known[] = {DG_ARCH_LLAMA, DG_ARCH_QWEN2, DG_ARCH_QWEN3, DG_ARCH_DFLASH,
                                    DG_ARCH_EAGLE3};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(c->arch_name, dg_arch_name(known[i])) != 0) continue;
        c->arch = known[i];
        return DG_OK;
    }
    return dg_config_refuse(f->path, c->arch_name);
}

/* Rows of the embedding; without one (a drafter, a vocabulary file) the number of tokens. */
static dg_status read_vocab(const source *s, dg_config *c) {
    const dg_file_tensor *embed = dg_file_find(s->f, "token_embd.weight");
    const dg_meta *tokens = dg_meta_find(s->f, "tokenizer.ggml.tokens");
    const int32_t max = dg_config_fields[0].max;
    DG_TRY(get_int(s, "vocab_size", 1, max, &c->vocab_size));
    if (embed) {
        DG_CHECK(embed->n_dim == 2, DG_ERR_FORMAT,
                 "%s: tensor token_embd.weight: expected 2 dimensions, found %d", s->f->path, embed->n_dim);
        DG_CHECK(!c->vocab_size || c->vocab_size == embed->dim[0], DG_ERR_FORMAT,
                 "%s: tensor token_embd.weight: expected the %d rows of vocab_size, found %lld", s->f->path,
                 c->vocab_size, (long long)embed->dim[0]);
        DG_CHECK(embed->dim[0] >= 1 && embed->dim[0] <= max, DG_ERR_FORMAT,
                 "%s: tensor token_embd.weight: expected 1 to %d rows, found %lld", s->f->path, max,
                 (long long)embed->dim[0]);
        c->vocab_size = (int32_t)embed->dim[0];
    }
    if (!tokens) {
        DG_CHECK(c->vocab_size, DG_ERR_FORMAT,
                 "%s: expected tokenizer.ggml.tokens or token_embd.weight, found neither", s->f->path);
        return DG_OK;
    }
    DG_CHECK(tokens->type == DG_META_STRING && tokens->n >= 1 && tokens->n <= (uint64_t)max, DG_ERR_FORMAT,
             "%s: key tokenizer.ggml.tokens: expected 1 to %d strings", s->f->path, max);
    if (!c->vocab_size) c->vocab_size = (int32_t)tokens->n;
    DG_CHECK(tokens->n <= (uint64_t)c->vocab_size, DG_ERR_FORMAT,
             "%s: key tokenizer.ggml.tokens: expected at most the vocabulary's %d, found %llu", s->f->path,
             c->vocab_size, (unsigned long long)tokens->n);
    return DG_OK;
}

static dg_status read_sizes(const source *s, dg_config *c) {
    DG_TRY(read_vocab(s, c));
    for (int i = 0; i < DG_CONFIG_FIELDS; i++) {
        const dg_config_field *row = &dg_config_fields[i];
        int32_t *v = (int32_t *)((char *)c + row->offset);
        if (!row->gguf) continue;
        DG_TRY(get_int(s, row->gguf, 1, row->max, v));
        DG_CHECK(*v || !row->need, DG_ERR_FORMAT, "%s: key %s.%s: expected 1 to %d, found nothing",
                 s->f->path, s->arch, row->gguf, row->max);
    }
    /* llama.cpp, unlike Hugging Face's classes, has one default for all */
    if (!c->head_dim && c->hidden_size % c->n_head == 0) c->head_dim = c->hidden_size / c->n_head;
    int32_t value = c->head_dim, rotated = c->head_dim;
    DG_TRY(get_int(s, "attention.value_length", 1, 1 << 12, &value));
    DG_TRY(get_int(s, "rope.dimension_count", 1, 1 << 12, &rotated));
    DG_CHECK(value == c->head_dim, DG_ERR_UNSUPPORTED,
             "%s: key %s.attention.value_length: expected that of the keys, %d, found %d", s->f->path,
             s->arch, c->head_dim, value);
    DG_CHECK(
        rotated == c->head_dim, DG_ERR_UNSUPPORTED,
        "%s: key %s.rope.dimension_count: expected the whole head, %d, found %d (partial rotary embedding)",
        s->f->path, s->arch, c->head_dim, rotated);
    return get_float(s, "attention.layer_norm_rms_epsilon", 0, 1, &c->rms_norm_eps);
}

static dg_status read_ids(const source *s, dg_config *c) {
    static const char *const stop[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    dg_status st = DG_OK;
    uint64_t id;
    for (size_t i = 0; i < sizeof stop / sizeof *stop; i++) {
        if (dg_meta_u64(s->f, stop[i], &id, &st) && id != UINT32_MAX) /* llama.cpp's "none" */
            DG_TRY(dg_config_add_stop(s->f->path, c, id > INT64_MAX ? INT64_MAX : (int64_t)id));
        DG_TRY(st);
    }
    if (dg_meta_u64(s->f, "tokenizer.ggml.bos_token_id", &id, &st) && id != UINT32_MAX)
        c->bos = id > INT32_MAX ? INT32_MAX : (int32_t)id;
    return st;
}

/* ---- rope ------------------------------------------------------------------------------------- */

static dg_status read_freqs(const source *s, dg_config *c) {
    const dg_file_tensor *t = dg_file_find(s->f, "rope_freqs.weight");
    if (dg_file_find(s->f, "rope_factors_long.weight"))
        return dg_config_lacks(s->f->path, "longrope", "tensor rope_factors_long.weight");
    if (!t) return DG_OK;
    if (c->rope_scaling != DG_ROPE_NONE)
        return dg_config_lacks(s->f->path, "two rope scalings at once", "tensor rope_freqs.weight");
    DG_CHECK(t->dtype == DG_F32 && t->n_dim == 1 && t->dim[0] == c->head_dim / 2, DG_ERR_FORMAT,
             "%s: tensor rope_freqs.weight: expected f32 [%d], found %s [%lld]%s", s->f->path,
             c->head_dim / 2, dg_dtype_get(t->dtype)->name, t->n_dim ? (long long)t->dim[0] : 1LL,
             t->n_dim > 1 ? "..." : "");
    for (int32_t i = 0; i < c->head_dim / 2; i++) {
        float v;
        memcpy(&v, (const char *)t->data + 4 * (size_t)i, 4);
        DG_CHECK(v > 0 && v < 1e30f, DG_ERR_FORMAT,
                 "%s: tensor rope_freqs.weight[%d]: expected a positive number, found %g", s->f->path, i,
                 (double)v);
    }
    c->rope_scaling = DG_ROPE_FREQ_FACTORS;
    return DG_OK;
}

static dg_status read_rope(const source *s, dg_config *c) {
    char key[KEY_MAX];
    dg_status st = DG_OK;
    dg_str type = {"none", 4};
    DG_TRY(get_float(s, "rope.freq_base", 1.001, 1e30, &c->rope_theta));
    key_of(s, "rope.scaling.type", key);
    dg_meta_str(s->f, key, &type, &st);
    DG_TRY(st);
    c->rope_interleaved = c->arch == DG_ARCH_LLAMA || c->arch == DG_ARCH_EAGLE3;
    if (type.len == 4 && memcmp(type.ptr, "none", 4) == 0) return read_freqs(s, c);

    const bool yarn = type.len == 4 && memcmp(type.ptr, "yarn", 4) == 0;
    DG_CHECK(yarn || (type.len == 6 && memcmp(type.ptr, "linear", 6) == 0), DG_ERR_UNSUPPORTED,
             "%s: key %s: %.*s is not supported; supported: none, linear, yarn", s->f->path, key,
             (int)(type.len < 32 ? type.len : 32), type.ptr);
    c->rope_scaling = yarn ? DG_ROPE_YARN : DG_ROPE_LINEAR;
    c->rope_factor = 1;
    DG_TRY(get_float(s, "rope.scaling.factor", 1e-6, 1e6, &c->rope_factor));
    DG_TRY(get_int(s, "rope.scaling.original_context_length", 1, 1 << 30, &c->rope_original));
    DG_TRY(get_float(s, "rope.scaling.yarn_beta_fast", 1e-6, 1e6, &c->yarn_beta_fast));
    DG_TRY(get_float(s, "rope.scaling.yarn_beta_slow", 1e-6, 1e6, &c->yarn_beta_slow));
    float attn = 0;
    DG_TRY(get_float(s, "rope.scaling.attn_factor", 0, 1e3, &attn));
    /* llama.cpp multiplies its own 0.1 ln(factor) + 1 with the key */
    if (attn > 0 && yarn)
        c->yarn_attn_factor =
            attn * (c->rope_factor > 1 ? (float)(0.1 * log((double)c->rope_factor) + 1) : 1);
    return read_freqs(s, c);
}

/* ---- windows ---------------------------------------------------------------------------------- */

/* The pattern is a flag for each layer, or a period p whose every p-th layer is full; without one all layers
 * have the window. No window key: no window. */
static dg_status read_windows(const source *s, dg_config *c) {
    const dg_meta *p = find(s, "attention.sliding_window_pattern");
    int32_t window = 0;
    DG_TRY(get_int(s, "attention.sliding_window", 0, INT32_MAX, &window));
    if (window == 0) return DG_OK;
    if (p && p->is_array &&
        (p->type == DG_META_STRING || p->type == DG_META_F64 || p->n != (uint64_t)c->n_layer))
        return bad(s, "attention.sliding_window_pattern", "a boolean for each layer");
    if (p && !p->is_array && (!is_int(p) || dg_meta_int(p, 0) < 1))
        return bad(s, "attention.sliding_window_pattern", "a period or a boolean for each layer");
    for (int32_t i = 0; i < c->n_layer; i++) {
        const bool on = !p            ? true
                        : p->is_array ? dg_meta_int(p, (uint64_t)i) != 0
                                      : (i + 1) % dg_meta_int(p, 0) != 0;
        if (on) c->window[i] = window;
    }
    return DG_OK;
}

/* ---- drafters --------------------------------------------------------------------------------- */

/* What both kinds say alike. */
static dg_status read_features(const source *s, dg_config *c) {
    const dg_meta *taps = find(s, "target_layers");
    const dg_file_tensor *head = dg_file_find(s->f, "output.weight"), *map = dg_file_find(s->f, "d2t");
    if (!taps || !taps->is_array || !is_int(taps) || taps->n < 1 || taps->n > DG_MAX_TAPS)
        return bad(s, "target_layers", "an array of 1 to 32 integers");
    /* counted as the inputs of layers: one more than the layer whose output is meant */
    for (uint64_t i = 0; i < taps->n; i++) {
        const int64_t id = dg_meta_int(taps, i);
        if (id < 1 || id > DG_MAX_LAYERS) return bad(s, "target_layers", "numbers from 1 to 512");
        c->tap[i] = (int32_t)id - 1;
    }
    c->n_tap = (int32_t)taps->n;
    if (!head) head = map; /* the target's rows that the map names */
    if (head && head->n_dim >= 1 && head->dim[0] <= INT32_MAX) c->draft_vocab_size = (int32_t)head->dim[0];
    return get_int(s, "target_hidden_size", 1, 1 << 20, &c->target_hidden_size);
}

static dg_status read_eagle3(const source *s, dg_config *c) {
    DG_TRY(get_bool(s, "norm_before_residual", &c->norm_before_residual));
    DG_TRY(get_bool(s, "norm_before_fc", &c->norm_before_fc));
    return read_features(s, c);
}

static dg_status read_mask(const source *s, dg_config *c) {
    dg_status st = DG_OK;
    uint64_t id;
    if (dg_meta_u64(s->f, "tokenizer.ggml.mask_token_id", &id, &st))
        c->mask_token_id = id > INT32_MAX ? INT32_MAX : (int32_t)id;
    DG_TRY(st);
    return get_int(s, "mask_token_id", 0, INT32_MAX, &c->mask_token_id);
}

static dg_status read_dflash(const source *s, dg_config *c) {
    DG_TRY(read_features(s, c));
    c->block_size = 16;
    DG_TRY(get_int(s, "block_size", 2, DG_TREE_MAX, &c->block_size));
    DG_TRY(read_mask(s, c));

    bool all = false;
    const bool told = find(s, "attention.causal") != NULL;
    DG_TRY(get_bool(s, "attention.causal", &all));
    for (int32_t i = 0; i < c->n_layer; i++) c->causal[i] = told ? all : c->window[i] > 0;
    return DG_OK;
}

dg_status dg_config_read_gguf(const dg_file *f, dg_config *c) {
    DG_TRY(read_arch(f, c));
    const source s = {f, c->arch_name};
    DG_TRY(check_foreign(&s));
    DG_TRY(read_sizes(&s, c));
    DG_TRY(get_float(&s, "embedding_scale", -1e6, 1e6, &c->embedding_scale));
    DG_TRY(get_float(&s, "logit_scale", -1e6, 1e6, &c->output_multiplier));
    DG_TRY(get_float(&s, "final_logit_softcapping", 0, 1e6, &c->logit_softcap));
    DG_TRY(check_scales(&s, c));
    c->qk_norm = c->arch == DG_ARCH_QWEN3 || c->arch == DG_ARCH_DFLASH;
    c->qkv_bias = c->arch == DG_ARCH_QWEN2 || dg_file_find(f, "blk.0.attn_q.bias");
    c->o_bias = dg_file_find(f, "blk.0.attn_output.bias") != NULL;
    c->tied = !dg_arch_is_drafter(c->arch) && !dg_file_find(f, "output.weight");
    DG_TRY(read_rope(&s, c));
    DG_TRY(read_windows(&s, c));
    DG_TRY(read_ids(&s, c));
    if (c->arch == DG_ARCH_EAGLE3) return read_eagle3(&s, c);
    return c->arch == DG_ARCH_DFLASH ? read_dflash(&s, c) : DG_OK;
}
