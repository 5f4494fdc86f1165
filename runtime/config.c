/* The network's shape: what both readers share, and the rope frequencies. Knows of tensor names only those
 * that tell a relative of a supported architecture from the real thing, or complete an EAGLE-3 head's file. */
#include "runtime/config.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "runtime/config_read.h"

#define SUPPORTED "supported: llama, mistral, qwen2 and qwen3 targets, dflash and eagle3 drafters"
#define FIELD(m)  offsetof(dg_config, m)

enum { HEAD_DIM_MAX = 1 << 12 };

const dg_config_field dg_config_fields[DG_CONFIG_FIELDS] = {
    {"vocab_size", NULL, FIELD(vocab_size), 1 << 26, true},
    {"hidden_size", "embedding_length", FIELD(hidden_size), 1 << 20, true},
    {"num_hidden_layers", "block_count", FIELD(n_layer), DG_MAX_LAYERS, true},
    {"num_attention_heads", "attention.head_count", FIELD(n_head), 1 << 12, true},
    {"num_key_value_heads", "attention.head_count_kv", FIELD(n_kv_head), 1 << 12, false},
    {"head_dim", "attention.key_length", FIELD(head_dim), HEAD_DIM_MAX, false},
    {"intermediate_size", "feed_forward_length", FIELD(intermediate_size), 1 << 24, true},
    {"max_position_embeddings", "context_length", FIELD(max_position), 1 << 30, true},
};

const char *dg_arch_name(dg_arch arch) {
    static const char *const name[] = {"llama", "qwen2", "qwen3", "mistral", "dflash", "eagle3"};
    return (unsigned)arch < sizeof name / sizeof *name ? name[arch] : "unknown";
}

/* ---- refusals --------------------------------------------------------------------------------- */

typedef struct relative {
    const char *part, *what; /* of a name, lower case; what such a network is */
} relative;

/* The first match counts. */
static const relative drafter[] = {
    {"dflash2", "a DFlash 2 drafter: candidate_selector codebooks, attention_conv and mlp_conv kernels"},
    {"dflash-draft", "a fork's dialect of DFlash GGUF"},
    {"dspark", "a DSpark drafter: Markov head"},
    {"domino", "a Domino drafter: GRU head"},
    {"laguna", "a Laguna drafter: gated attention, a norm for each feature layer"},
    {"mimo", "a MiMo model: attention sinks, partial rotary embedding"},
    {"peagle", "a P-EAGLE head: several tokens a pass"},
};
static const relative network[] = {
    {"eagle", "an EAGLE head"},
    {"moe", "mixture of experts"},
    {"mixtral", "mixture of experts"},
    {"deepseek", "mixture of experts, latent attention"},
    {"gpt_oss", "mixture of experts, attention sinks"},
    {"gpt-oss", "mixture of experts, attention sinks"},
    {"llama4", "mixture of experts"},
    {"qwen3_next", "hybrid with recurrent layers"},
    {"qwen3next", "hybrid with recurrent layers"},
    {"qwen3_5", "hybrid with recurrent layers"},
    {"qwen35", "hybrid with recurrent layers"},
    {"lfm2", "hybrid with convolution layers"},
    {"mamba", "recurrent"},
    {"rwkv", "recurrent"},
    {"jamba", "hybrid with recurrent layers"},
    {"bamba", "hybrid with recurrent layers"},
    {"falcon_h1", "hybrid with recurrent layers"},
    {"falcon-h1", "hybrid with recurrent layers"},
    {"nemotron_h", "hybrid with recurrent layers"},
    {"granitehybrid", "hybrid with recurrent layers"},
    {"recurrent", "hybrid with recurrent layers"},
};

static const relative *find_relative(const relative *r, size_t n, const char *name) {
    for (size_t i = 0; i < n; i++)
        if (strcasestr(name, r[i].part)) return &r[i];
    return NULL;
}

static const relative *foreign_drafter(const char *name) { return find_relative(drafter, sizeof drafter / sizeof *drafter, name); }

bool dg_config_foreign_drafter(const char *cls) { return foreign_drafter(cls) != NULL; }

dg_status dg_config_refuse(const char *path, const char *arch) {
    const relative *r = foreign_drafter(arch);
    if (!r) r = find_relative(network, sizeof network / sizeof *network, arch);
    if (r) DG_FAIL(DG_ERR_UNSUPPORTED, "%s: architecture %.64s (%s) is not supported; " SUPPORTED, path, arch, r->what);
    DG_FAIL(DG_ERR_UNSUPPORTED, "%s: architecture %.64s is not supported; " SUPPORTED, path, arch);
}

dg_status dg_config_lacks(const char *path, const char *what, const char *shown_by) {
    DG_FAIL(DG_ERR_UNSUPPORTED, "%s: %s (%s) is not supported; " SUPPORTED, path, what, shown_by);
}

/* Parts of tensor names, of either container, that no supported architecture has. */
static const struct {
    const char *part, *what;
} foreign[] = {
    {"candidate_selector.", "a DFlash 2 drafter"},
    {"selector_predecessor", "a DFlash 2 drafter"},
    {"selector_successor", "a DFlash 2 drafter"},
    {"attention_conv.", "a DFlash 2 drafter"},
    {"mlp_conv.", "a DFlash 2 drafter"},
    {"attn_conv_", "a DFlash 2 drafter"},
    {"ffn_conv_", "a DFlash 2 drafter"},
    {"markov_", "a DSpark drafter"},
    {"confidence_head.", "a DSpark drafter"},
    {"conf_proj.", "a DSpark drafter"},
    {"aux_hidden_norms.", "a Laguna drafter"},
    {".g_proj.", "a Laguna drafter"},
    {"attention_sink", "a MiMo drafter"},
    {"attn_sinks.", "a MiMo drafter"},
    {".experts.", "mixture of experts"},
    {"_exps.", "mixture of experts"},
};

dg_status dg_config_check_tensors(const dg_file *f, const dg_config *c) {
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
        for (size_t k = 0; k < f->n_tensor; k++)
            if (strstr(f->tensor[k].name, foreign[i].part)) {
                char shown[128] = "tensor ";
                strncat(shown, f->tensor[k].name, sizeof shown - strlen(shown) - 1);
                return dg_config_lacks(f->path, foreign[i].what, shown);
            }
    if (!dg_arch_is_drafter(c->arch) && dg_file_find(f, "fc.weight"))
        return dg_config_lacks(f->path, "an EAGLE head", "tensor fc.weight");
    return DG_OK;
}

/* ---- filling in ------------------------------------------------------------------------------- */

void dg_config_init(dg_config *c) {
    memset(c, 0, sizeof *c);
    c->rms_norm_eps = 1e-6f;
    c->rope_theta = 10000;
    c->yarn_beta_fast = 32;
    c->yarn_beta_slow = 1;
    c->yarn_truncate = true;
    c->bos = -1;
    c->mask_token_id = -1;
    c->embedding_scale = 1;
    c->output_multiplier = 1;
}

dg_status dg_config_add_stop(const char *path, dg_config *c, int64_t id) {
    if (id < 0) return DG_OK;
    DG_CHECK(id < c->vocab_size, DG_ERR_FORMAT,
             "%s: end-of-text id: expected less than the vocabulary's %d, found %lld", path, c->vocab_size,
             (long long)id);
    for (int32_t i = 0; i < c->n_stop; i++)
        if (c->stop[i] == id) return DG_OK;
    DG_CHECK(c->n_stop < DG_MAX_STOPS, DG_ERR_FORMAT, "%s: end-of-text ids: expected at most %d", path,
             DG_MAX_STOPS);
    c->stop[c->n_stop++] = (int32_t)id;
    return DG_OK;
}

/* ---- EAGLE-3: what only the tensors tell ------------------------------------------------------ */

/* Tensor of the head's one layer, in whatever layout; names as after "layers.N." and "blk.N.". */
static const dg_file_tensor *find_mid(const dg_file *f, const char *hf, const char *gguf) {
    const char *const prefix[] = {"midlayer.", "layers.0.", "model.layers.0."};
    char name[96];
    for (size_t i = 0; f->container != DG_CONTAINER_GGUF && i < sizeof prefix / sizeof *prefix; i++) {
        snprintf(name, sizeof name, "%s%s", prefix[i], hf);
        const dg_file_tensor *t = dg_file_find(f, name);
        if (t) return t;
    }
    snprintf(name, sizeof name, "blk.0.%s", gguf);
    return dg_file_find(f, name);
}

/* The width of fc tells how many feature layers there are when no list does, and the query projection the size
 * of a head: configurations leave it out or contradict it. */
static dg_status eagle3_shapes(const dg_file *f, dg_config *c) {
    const dg_file_tensor *fc = dg_file_find(f, "fc.weight");
    const dg_file_tensor *q = find_mid(f, "self_attn.q_proj.weight", "attn_q.weight");
    if (!c->target_hidden_size) c->target_hidden_size = c->hidden_size;
    if (q && q->n_dim == 2 && q->dim[0] % c->n_head == 0 && q->dim[0] / c->n_head <= HEAD_DIM_MAX)
        c->head_dim = (int32_t)(q->dim[0] / c->n_head);
    if (find_mid(f, "self_attn.q_norm.weight", "attn_q_norm.weight")) c->qk_norm = true;
    if (dg_file_find(f, "input_norm.weight") || dg_file_find(f, "enc.output_norm.weight")) c->norm_before_fc = true;
    if (dg_file_find(f, "fc_norm.0.weight")) c->fc_norm = true;
    if (c->n_tap) return DG_OK;
    c->tap_default = true;
    c->n_tap = 3;
    DG_CHECK(!fc || fc->n_dim != 2 || fc->dim[1] == 3 * (int64_t)c->target_hidden_size, DG_ERR_FORMAT,
             "%s: the file names no feature layers: expected an fc.weight for three of %d, found %lld columns", f->path,
             c->target_hidden_size, (long long)fc->dim[1]);
    return DG_OK;
}

static dg_status finish_eagle3(const char *path, const dg_config *c) {
    if (c->arch != DG_ARCH_EAGLE3) return DG_OK;
    if (c->n_layer != 1) return dg_config_lacks(path, "an EAGLE-3 head of several layers", "num_hidden_layers");
    DG_CHECK(!c->fc_norm || !c->norm_before_fc, DG_ERR_FORMAT, "%s: fc_norm and norm_before_fc exclude each other", path);
    DG_CHECK(!c->fc_norm || c->n_tap <= DG_MAX_FC_NORMS, DG_ERR_UNSUPPORTED,
             "%s: fc_norm: expected at most %d feature layers, found %d", path, DG_MAX_FC_NORMS, c->n_tap);
    DG_CHECK(c->draft_vocab_size <= c->vocab_size, DG_ERR_FORMAT,
             "%s: draft_vocab_size: expected at most the vocabulary's %d, found %d", path, c->vocab_size,
             c->draft_vocab_size);
    return DG_OK;
}

static dg_status finish_drafter(const char *path, const dg_config *c) {
    if (!dg_arch_is_drafter(c->arch)) return DG_OK;
    DG_TRY(finish_eagle3(path, c));
    DG_CHECK(c->n_tap > 0, DG_ERR_FORMAT, "%s: expected at least one feature layer, found none", path);
    for (int32_t i = 0; i < c->n_tap && !c->tap_default; i++) {
        DG_CHECK(i == 0 || c->tap[i] > c->tap[i - 1], DG_ERR_FORMAT,
                 "%s: feature layers: expected them in ascending order, found %d after %d", path, c->tap[i],
                 c->tap[i ? i - 1 : 0]);
        DG_CHECK(c->tap[i] >= 0 && (!c->num_target_layers || c->tap[i] < c->num_target_layers), DG_ERR_FORMAT,
                 "%s: feature layers: expected ids from 0 to %d, found %d", path,
                 (c->num_target_layers ? c->num_target_layers : DG_MAX_LAYERS) - 1, c->tap[i]);
    }
    DG_CHECK(c->mask_token_id < c->vocab_size, DG_ERR_FORMAT,
             "%s: mask_token_id: expected less than the vocabulary's %d, found %d", path, c->vocab_size,
             c->mask_token_id);
    return DG_OK;
}

dg_status dg_config_finish(const char *path, dg_config *c) {
    if (!c->n_kv_head) c->n_kv_head = c->n_head;
    if (!c->head_dim && (c->arch == DG_ARCH_QWEN3 || c->arch == DG_ARCH_DFLASH)) c->head_dim = 128;
    if (!c->head_dim) {
        DG_CHECK(c->hidden_size % c->n_head == 0, DG_ERR_FORMAT,
                 "%s: head_dim is absent: expected hidden_size to be a multiple of the %d heads, found %d",
                 path, c->n_head, c->hidden_size);
        c->head_dim = c->hidden_size / c->n_head;
    }
    DG_CHECK(c->head_dim % 2 == 0 && c->head_dim <= HEAD_DIM_MAX, DG_ERR_FORMAT,
             "%s: head_dim: expected an even number up to %d, found %d", path, HEAD_DIM_MAX, c->head_dim);
    DG_CHECK(c->n_head % c->n_kv_head == 0, DG_ERR_FORMAT,
             "%s: key/value heads: expected a divisor of the %d heads, found %d", path, c->n_head,
             c->n_kv_head);
    if (!c->rope_original) c->rope_original = c->max_position;
    DG_CHECK(c->bos < c->vocab_size, DG_ERR_FORMAT,
             "%s: begin-of-text id: expected less than the vocabulary's %d, found %d", path, c->vocab_size,
             c->bos);
    return finish_drafter(path, c);
}

dg_status dg_config_read(const dg_file *f, dg_config *out) {
    dg_config c;
    dg_config_init(&c);
    DG_TRY(f->container == DG_CONTAINER_GGUF ? dg_config_read_gguf(f, &c) : dg_config_read_hf(f, &c));
    DG_TRY(dg_config_check_tensors(f, &c));
    if (c.arch == DG_ARCH_EAGLE3) DG_TRY(eagle3_shapes(f, &c));
    DG_TRY(dg_config_finish(f->path, &c));
    *out = c;
    return DG_OK;
}

/* ---- rope ------------------------------------------------------------------------------------- */

/* Llama 3.1: long wavelengths are stretched by the factor, short ones kept, those between blended. */
static double llama3_freq(const dg_config *c, double freq) {
    const double pi = 3.14159265358979323846, factor = (double)c->rope_factor;
    const double low = (double)c->rope_low_freq, high = (double)c->rope_high_freq;
    const double turns = (double)c->rope_original * freq / (2 * pi); /* in the original context */
    if (turns < low) return freq / factor;
    if (turns > high) return freq;
    const double keep = (turns - low) / (high - low);
    return (1 - keep) * freq / factor + keep * freq;
}

/* YaRN (arXiv 2309.00071, section 3.2): the dimension at which a frequency makes `turns` turns in the
 * original context. */
static double yarn_dim(const dg_config *c, double turns) {
    const double pi = 3.14159265358979323846;
    return (double)c->head_dim * log((double)c->rope_original / (turns * 2 * pi)) /
           (2 * log((double)c->rope_theta));
}

static double yarn_freq(const dg_config *c, double freq, int32_t i) {
    double low = yarn_dim(c, (double)c->yarn_beta_fast), high = yarn_dim(c, (double)c->yarn_beta_slow);
    if (c->yarn_truncate) low = floor(low), high = ceil(high);
    low = fmax(low, 0);
    high = fmin(high, c->head_dim - 1);
    if (low == high) high += 0.001; /* as the reference, against a division by zero */
    const double stretch = fmin(fmax((i - low) / (high - low), 0), 1);
    return freq / (double)c->rope_factor * stretch + freq * (1 - stretch);
}

void dg_config_rope_factors(const dg_config *c, float *factors) {
    for (int32_t i = 0; i < c->head_dim / 2; i++) {
        const double freq = pow((double)c->rope_theta, -2.0 * i / c->head_dim);
        factors[i] = (float)(freq / llama3_freq(c, freq));
    }
}

void dg_config_rope(const dg_config *c, const float *factors, float *inv_freq, float *mscale) {
    for (int32_t i = 0; i < c->head_dim / 2; i++) {
        double freq = pow((double)c->rope_theta, -2.0 * i / c->head_dim);
        switch (c->rope_scaling) {
        case DG_ROPE_NONE: break;
        case DG_ROPE_LINEAR: freq /= (double)c->rope_factor; break;
        case DG_ROPE_LLAMA3: freq = llama3_freq(c, freq); break;
        case DG_ROPE_YARN: freq = yarn_freq(c, freq, i); break;
        case DG_ROPE_FREQ_FACTORS:
            assert(factors);
            freq /= (double)factors[i];
            break;
        }
        inv_freq[i] = (float)freq;
    }
    *mscale = 1;
    if (c->rope_scaling != DG_ROPE_YARN) return;
    *mscale = c->yarn_attn_factor > 0 ? c->yarn_attn_factor
              : c->rope_factor > 1    ? (float)(0.1 * log((double)c->rope_factor) + 1)
                                      : 1;
}
