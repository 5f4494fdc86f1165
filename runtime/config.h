/* The shape of a network: one struct for targets and drafters, read from config.json or GGUF metadata.
 * Variants are fields, never subclasses. Knows no tensor names (bind.h). */
#ifndef DG_CONFIG_H
#define DG_CONFIG_H

#include "runtime/file.h"

enum { DG_MAX_LAYERS = 512, DG_MAX_TAPS = 32, DG_MAX_FC_NORMS = 5, DG_MAX_STOPS = 16 };

typedef enum dg_arch {
    DG_ARCH_LLAMA,   /* llama, smollm2 and kin */
    DG_ARCH_QWEN2,   /* q, k, v biases */
    DG_ARCH_QWEN3,   /* q/k norm, free head_dim */
    DG_ARCH_MISTRAL, /* llama with sliding window on every layer */
    DG_ARCH_DFLASH,  /* DFlash drafter, a Qwen3-style body */
    DG_ARCH_EAGLE3   /* EAGLE-3 head: one layer over embedding and hidden side by side */
} dg_arch;

typedef enum dg_rope_scaling {
    DG_ROPE_NONE,
    DG_ROPE_LINEAR,
    DG_ROPE_LLAMA3, /* low/high frequency factors (Llama 3.1) */
    DG_ROPE_YARN,
    DG_ROPE_FREQ_FACTORS /* GGUF rope_freqs.weight: frequencies divided by a stored vector */
} dg_rope_scaling;

typedef struct dg_config {
    dg_arch arch;
    char arch_name[64]; /* as the file spells it */
    int32_t vocab_size, hidden_size, n_layer, n_head, n_kv_head, head_dim, intermediate_size;
    int32_t max_position;
    float rms_norm_eps;
    bool qk_norm;       /* RMS norm on each head of q and k */
    bool qkv_bias, o_bias;
    bool tied;          /* output head is the embedding */

    float rope_theta;
    dg_rope_scaling rope_scaling;
    float rope_factor, rope_low_freq, rope_high_freq; /* llama3 */
    float yarn_beta_fast, yarn_beta_slow, yarn_attn_factor; /* attn_factor 0: 0.1 ln(factor) + 1 */
    bool yarn_truncate;
    int32_t rope_original; /* original_max_position_embeddings */
    bool rope_interleaved; /* pairs (2j, 2j+1): GGUF files of the llama family store q/k rows permuted so */

    int32_t window[DG_MAX_LAYERS]; /* sliding window of each layer, 0 = none */

    int32_t stop[DG_MAX_STOPS]; /* eos ids of config.json / generation_config.json / GGUF */
    int32_t n_stop;
    int32_t bos; /* -1: none */

    /* drafters (DG_ARCH_DFLASH, DG_ARCH_EAGLE3) */
    int32_t block_size;    /* root included */
    int32_t mask_token_id; /* -1: absent */
    int32_t tap[DG_MAX_TAPS]; /* feature layers: the OUTPUT of target layer tap[i], ascending as in the file */
    int32_t n_tap;
    bool causal[DG_MAX_LAYERS];  /* drafter layers: causal inside the block (sliding layers by default) */
    int32_t num_target_layers;   /* 0: not told */
    int32_t draft_vocab_size;    /* rows of an own lm_head; 0: the target's vocabulary */
    int32_t target_hidden_size;  /* 0: hidden_size */
    float embedding_scale, output_multiplier, logit_softcap; /* 1, 1, 0 by default */

    /* EAGLE-3; target_hidden_size is always set */
    bool tap_default;          /* the file names no feature layers: n_tap of them by the target's depth, tap is 0 */
    bool norm_before_residual; /* the residual is the normed hidden, not the raw one */
    bool norm_before_fc;       /* one norm over the concatenated features (input_norm) */
    bool fc_norm;              /* a norm for the features of each layer */
    bool feed_normed;          /* what the next step reads is the hidden after the final norm */
} dg_config;

static inline bool dg_arch_is_drafter(dg_arch arch) { return arch == DG_ARCH_DFLASH || arch == DG_ARCH_EAGLE3; }

/* Reads the configuration of f. An architecture that is not supported is named in an UNSUPPORTED failure
 * together with those that are (MoE and hybrid ones too, and relatives of the drafters: DFlash 2, DSpark,
 * EAGLE-1 and so on, each with the missing piece). FORMAT for missing, mistyped, absurd or contradictory fields. On success
 * every field is set and every size is positive and small enough that products of two fit int64. */
dg_status dg_config_read(const dg_file *f, dg_config *out);

/* inv_freq[head_dim/2] and the factor on cos and sin, for rope_theta and the scaling of c. factors: the
 * rope_freqs vector of a GGUF file or NULL. */
void dg_config_rope(const dg_config *c, const float *factors, float *inv_freq, float *mscale);

/* factors[head_dim/2]: what a llama3 scaling divides the frequencies by, as GGUF stores it (rope_freqs). */
void dg_config_rope_factors(const dg_config *c, float *factors);

const char *dg_arch_name(dg_arch arch);

#endif
