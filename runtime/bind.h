/* Which tensor is which: one table for both containers. Every tensor name and expected shape of the project
 * stands in exactly one row of it. */
#ifndef DG_BIND_H
#define DG_BIND_H

#include "runtime/config.h"

/* Weights of one decoder layer; [out, in]. data == NULL: the network has none. */
typedef struct dg_layer {
    dg_mat attn_norm, wq, wk, wv, wo, bq, bk, bv, bo, q_norm, k_norm;
    dg_mat ffn_norm, w_gate, w_up, w_down;
    dg_mat hidden_norm; /* EAGLE-3: of the hidden half of the input; attn_norm is the embedding's */
} dg_layer;

/* Weights of a network: a target, or a drafter (which may lack embed and head and have fc). */
typedef struct dg_weights {
    dg_mat embed, norm, head; /* head: the embedding where it is tied */
    dg_mat head_rows;         /* the head as it is in the file, also when `head` has been packed */
    dg_mat fc, fc_bias;       /* drafters: features [T*H] -> hidden */
    dg_mat hidden_norm;       /* DFlash: the norm after fc */
    dg_mat input_norm, fc_norm[DG_MAX_FC_NORMS]; /* EAGLE-3: before fc, over all features or those of one layer */
    dg_mat rope_freqs;        /* GGUF: divisors of the rope frequencies, f32 [1, hd/2] */
    dg_mat d2t;               /* reduced draft vocabulary: i64 or i32 [1, draft vocabulary] */
    dg_layer *layer;          /* [n_layer] */
} dg_weights;

typedef enum dg_dim {
    DG_DIM_ONE, DG_DIM_VOCAB, DG_DIM_DRAFT_VOCAB, DG_DIM_HIDDEN, DG_DIM_Q, DG_DIM_KV, DG_DIM_HEAD,
    DG_DIM_HALF_HEAD, DG_DIM_FFN, DG_DIM_TAPS,
    DG_DIM_INPUT, /* of q, k and v: hidden; of an EAGLE-3 layer twice that */
    DG_DIM_TARGET_HIDDEN
} dg_dim;

typedef enum dg_need {
    DG_NEED_ALWAYS,
    DG_NEED_QK_NORM,  /* required with config.qk_norm, else absent */
    DG_NEED_QKV_BIAS, /* required with config.qkv_bias; a GGUF file may have it anyway */
    DG_NEED_O_BIAS,
    DG_NEED_NORM_BEFORE_FC,
    DG_NEED_NEVER     /* optional */
} dg_need;

enum { DG_NET_TARGET = 1, DG_NET_DFLASH = 2, DG_NET_EAGLE3 = 4 };

/* Which of them c is. */
int dg_bind_net(const dg_config *c);

typedef struct dg_bind_row {
    const char *hf, *gguf; /* names; in a layer row, after "layers.N." (or "midlayer.") and "blk.N."; NULL: not in
                              that container */
    size_t offset;         /* of the dg_mat in dg_weights, or in dg_layer */
    dg_dim rows, cols;     /* rows ONE: a 1-D tensor of cols elements */
    dg_need need;
    int nets;              /* which networks have it */
    bool is_layer;
    bool permuted;         /* q and k: stored for interleaved rope in GGUF files of the llama family */
} dg_bind_row;

/* The table; *n rows. */
const dg_bind_row *dg_bind_table(size_t *n);

int64_t dg_bind_dim(const dg_config *c, dg_dim dim);

/* Finds every tensor of the network, checks shape and dtype, and points *w at the mapping. w->layer is allocated
 * (dg_mem_free). A missing tensor or another shape is FORMAT; a tensor that no row names is UNSUPPORTED; each
 * names file and tensor, expected and found. */
dg_status dg_bind(const dg_file *f, const dg_config *c, dg_weights *w);

#endif
