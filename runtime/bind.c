/* The binding table and its one reader; see bind.h. Names: transformers' Llama/Qwen modules, z-lab's DFlash
 * and SafeAILab's EAGLE-3 classes, llama.cpp's GGUF tensors. */
#include "runtime/bind.h"

#include <stdio.h>
#include <string.h>

#include "kernels/quant.h"
#include "runtime/mem.h"

#define AT_NET(field)   offsetof(dg_weights, field)
#define AT_LAYER(field) offsetof(dg_layer, field)

enum { T = DG_NET_TARGET, D = DG_NET_DFLASH, E = DG_NET_EAGLE3, DE = D | E, ALL = T | D | E };

/* clang-format off */
static const dg_bind_row table[] = {
    {"embed_tokens.weight", "token_embd.weight", AT_NET(embed), DG_DIM_VOCAB, DG_DIM_HIDDEN, DG_NEED_ALWAYS, T, false, false},
    {"embed_tokens.weight", "token_embd.weight", AT_NET(embed), DG_DIM_VOCAB, DG_DIM_HIDDEN, DG_NEED_NEVER, DE, false, false},
    {"norm.weight", "output_norm.weight", AT_NET(norm), DG_DIM_ONE, DG_DIM_HIDDEN, DG_NEED_ALWAYS, ALL, false, false},
    {"lm_head.weight", "output.weight", AT_NET(head), DG_DIM_VOCAB, DG_DIM_HIDDEN, DG_NEED_NEVER, T, false, false},
    {"lm_head.weight", "output.weight", AT_NET(head), DG_DIM_DRAFT_VOCAB, DG_DIM_HIDDEN, DG_NEED_NEVER, DE, false, false},
    {"fc.weight", "fc.weight", AT_NET(fc), DG_DIM_HIDDEN, DG_DIM_TAPS, DG_NEED_ALWAYS, DE, false, false},
    {"fc.bias", "fc.bias", AT_NET(fc_bias), DG_DIM_ONE, DG_DIM_HIDDEN, DG_NEED_NEVER, E, false, false},
    {"input_norm.weight", "enc.output_norm.weight", AT_NET(input_norm), DG_DIM_ONE, DG_DIM_TAPS, DG_NEED_NORM_BEFORE_FC, E, false, false},
    {"fc_norm.0.weight", NULL, AT_NET(fc_norm[0]), DG_DIM_ONE, DG_DIM_TARGET_HIDDEN, DG_NEED_NEVER, E, false, false},
    {"fc_norm.1.weight", NULL, AT_NET(fc_norm[1]), DG_DIM_ONE, DG_DIM_TARGET_HIDDEN, DG_NEED_NEVER, E, false, false},
    {"fc_norm.2.weight", NULL, AT_NET(fc_norm[2]), DG_DIM_ONE, DG_DIM_TARGET_HIDDEN, DG_NEED_NEVER, E, false, false},
    {"fc_norm.3.weight", NULL, AT_NET(fc_norm[3]), DG_DIM_ONE, DG_DIM_TARGET_HIDDEN, DG_NEED_NEVER, E, false, false},
    {"fc_norm.4.weight", NULL, AT_NET(fc_norm[4]), DG_DIM_ONE, DG_DIM_TARGET_HIDDEN, DG_NEED_NEVER, E, false, false},
    {"hidden_norm.weight", "enc.output_norm.weight", AT_NET(hidden_norm), DG_DIM_ONE, DG_DIM_HIDDEN, DG_NEED_ALWAYS, D, false, false},
    {NULL, "rope_freqs.weight", AT_NET(rope_freqs), DG_DIM_ONE, DG_DIM_HALF_HEAD, DG_NEED_NEVER, ALL, false, false},
    {"d2t", "d2t", AT_NET(d2t), DG_DIM_ONE, DG_DIM_DRAFT_VOCAB, DG_NEED_NEVER, DE, false, false},

    {"input_layernorm.weight", "attn_norm.weight", AT_LAYER(attn_norm), DG_DIM_ONE, DG_DIM_HIDDEN, DG_NEED_ALWAYS, ALL, true, false},
    {"hidden_norm.weight", "attn_norm_2.weight", AT_LAYER(hidden_norm), DG_DIM_ONE, DG_DIM_HIDDEN, DG_NEED_ALWAYS, E, true, false},
    {"self_attn.q_proj.weight", "attn_q.weight", AT_LAYER(wq), DG_DIM_Q, DG_DIM_INPUT, DG_NEED_ALWAYS, ALL, true, true},
    {"self_attn.k_proj.weight", "attn_k.weight", AT_LAYER(wk), DG_DIM_KV, DG_DIM_INPUT, DG_NEED_ALWAYS, ALL, true, true},
    {"self_attn.v_proj.weight", "attn_v.weight", AT_LAYER(wv), DG_DIM_KV, DG_DIM_INPUT, DG_NEED_ALWAYS, ALL, true, false},
    {"self_attn.o_proj.weight", "attn_output.weight", AT_LAYER(wo), DG_DIM_HIDDEN, DG_DIM_Q, DG_NEED_ALWAYS, ALL, true, false},
    {"self_attn.q_proj.bias", "attn_q.bias", AT_LAYER(bq), DG_DIM_ONE, DG_DIM_Q, DG_NEED_QKV_BIAS, ALL, true, true},
    {"self_attn.k_proj.bias", "attn_k.bias", AT_LAYER(bk), DG_DIM_ONE, DG_DIM_KV, DG_NEED_QKV_BIAS, ALL, true, true},
    {"self_attn.v_proj.bias", "attn_v.bias", AT_LAYER(bv), DG_DIM_ONE, DG_DIM_KV, DG_NEED_QKV_BIAS, ALL, true, false},
    {"self_attn.o_proj.bias", "attn_output.bias", AT_LAYER(bo), DG_DIM_ONE, DG_DIM_HIDDEN, DG_NEED_O_BIAS, ALL, true, false},
    {"self_attn.q_norm.weight", "attn_q_norm.weight", AT_LAYER(q_norm), DG_DIM_ONE, DG_DIM_HEAD, DG_NEED_QK_NORM, ALL, true, false},
    {"self_attn.k_norm.weight", "attn_k_norm.weight", AT_LAYER(k_norm), DG_DIM_ONE, DG_DIM_HEAD, DG_NEED_QK_NORM, ALL, true, false},
    {"post_attention_layernorm.weight", "ffn_norm.weight", AT_LAYER(ffn_norm), DG_DIM_ONE, DG_DIM_HIDDEN, DG_NEED_ALWAYS, ALL, true, false},
    {"mlp.gate_proj.weight", "ffn_gate.weight", AT_LAYER(w_gate), DG_DIM_FFN, DG_DIM_HIDDEN, DG_NEED_ALWAYS, ALL, true, false},
    {"mlp.up_proj.weight", "ffn_up.weight", AT_LAYER(w_up), DG_DIM_FFN, DG_DIM_HIDDEN, DG_NEED_ALWAYS, ALL, true, false},
    {"mlp.down_proj.weight", "ffn_down.weight", AT_LAYER(w_down), DG_DIM_HIDDEN, DG_DIM_FFN, DG_NEED_ALWAYS, ALL, true, false},
};
/* clang-format on */

/* Tensors that some files carry and no network reads. */
static const char *const ignored[] = {"rotary_emb.inv_freq", "t2d", "verifier_norm.weight", "verifier_lm_head.weight"};

enum { N_ROW = sizeof table / sizeof *table, NAME_MAX_LEN = 128 };

const dg_bind_row *dg_bind_table(size_t *n) {
    *n = N_ROW;
    return table;
}

int64_t dg_bind_dim(const dg_config *c, dg_dim dim) {
    const int64_t hidden = c->hidden_size, head = c->head_dim;
    switch (dim) {
    case DG_DIM_ONE: return 1;
    case DG_DIM_VOCAB: return c->vocab_size;
    case DG_DIM_DRAFT_VOCAB: return c->draft_vocab_size ? c->draft_vocab_size : c->vocab_size;
    case DG_DIM_HIDDEN: return hidden;
    case DG_DIM_Q: return c->n_head * head;
    case DG_DIM_KV: return c->n_kv_head * head;
    case DG_DIM_HEAD: return head;
    case DG_DIM_HALF_HEAD: return head / 2;
    case DG_DIM_FFN: return c->intermediate_size;
    case DG_DIM_TAPS: return c->n_tap * dg_bind_dim(c, DG_DIM_TARGET_HIDDEN);
    case DG_DIM_INPUT: return c->arch == DG_ARCH_EAGLE3 ? 2 * hidden : hidden;
    case DG_DIM_TARGET_HIDDEN: return c->target_hidden_size ? c->target_hidden_size : hidden;
    }
    return 0;
}

int dg_bind_net(const dg_config *c) {
    return c->arch == DG_ARCH_EAGLE3 ? DG_NET_EAGLE3 : c->arch == DG_ARCH_DFLASH ? DG_NET_DFLASH : DG_NET_TARGET;
}

static bool required(const dg_bind_row *row, const dg_config *c) {
    switch (row->need) {
    case DG_NEED_ALWAYS: return true;
    case DG_NEED_QK_NORM: return c->qk_norm;
    case DG_NEED_QKV_BIAS: return c->qkv_bias;
    case DG_NEED_O_BIAS: return c->o_bias;
    case DG_NEED_NORM_BEFORE_FC: return c->norm_before_fc;
    case DG_NEED_NEVER: return false;
    }
    return false;
}

/* Safetensors names may stand under "model." (causal LM classes) or not (drafters); the one layer of an EAGLE-3 head
 * is "midlayer" or layer 0. */
static const dg_file_tensor *find(const dg_file *f, const dg_bind_row *row, int32_t layer,
                                  char name[NAME_MAX_LEN]) {
    const bool gguf = f->container == DG_CONTAINER_GGUF;
    const char *leaf = gguf ? row->gguf : row->hf;
    name[0] = 0;
    if (!leaf) return NULL;
    char where[32] = "";
    if (row->is_layer) snprintf(where, sizeof where, gguf ? "blk.%d." : "layers.%d.", layer);
    if (!gguf) {
        snprintf(name, NAME_MAX_LEN, "model.%s%s", where, leaf);
        const dg_file_tensor *t = dg_file_find(f, name);
        if (t) return t;
    }
    if (!gguf && row->is_layer && (row->nets & DG_NET_EAGLE3) && layer == 0) {
        snprintf(name, NAME_MAX_LEN, "midlayer.%s", leaf);
        const dg_file_tensor *t = dg_file_find(f, name);
        if (t) return t;
    }
    snprintf(name, NAME_MAX_LEN, "%s%s", where, leaf);
    return dg_file_find(f, name);
}

static void shape_text(const dg_file_tensor *t, char out[96]) {
    size_t used = (size_t)snprintf(out, 96, "[");
    for (int32_t i = 0; i < t->n_dim; i++)
        used += (size_t)snprintf(out + used, 96 - used, "%s%lld", i ? ", " : "", (long long)t->dim[i]);
    snprintf(out + used, 96 - used, "]");
}

static dg_status check_tensor(const dg_file *f, const dg_file_tensor *t, const dg_bind_row *row,
                              const dg_config *c) {
    const int64_t rows = dg_bind_dim(c, row->rows), cols = dg_bind_dim(c, row->cols);
    char found[96];
    shape_text(t, found);
    if (row->rows == DG_DIM_ONE) {
        DG_CHECK(t->n_dim == 1 && t->dim[0] == cols, DG_ERR_FORMAT, "%s: tensor %s: expected shape [%lld], found %s",
                 f->path, t->name, (long long)cols, found);
        const bool ints = t->dtype == DG_I64 || t->dtype == DG_I32;
        const bool floats = t->dtype == DG_F32 || t->dtype == DG_F16 || t->dtype == DG_BF16;
        DG_CHECK(row->offset == AT_NET(d2t) && !row->is_layer ? ints : floats, DG_ERR_UNSUPPORTED,
                 "%s: tensor %s: expected f32, f16 or bf16 (d2t: i64 or i32), found %s", f->path, t->name,
                 dg_dtype_get(t->dtype)->name);
    } else {
        DG_CHECK(t->n_dim == 2 && t->dim[0] == rows && t->dim[1] == cols, DG_ERR_FORMAT,
                 "%s: tensor %s: expected shape [%lld, %lld], found %s", f->path, t->name, (long long)rows,
                 (long long)cols, found);
        DG_CHECK(dg_dtype_is_weight(t->dtype), DG_ERR_UNSUPPORTED, "%s: tensor %s: dtype %s is not a weight type",
                 f->path, t->name, dg_dtype_get(t->dtype)->name);
    }
    const size_t align = t->dtype == DG_F32 || t->dtype == DG_I32 ? 4 : t->dtype == DG_I64 ? 8 : 2;
    DG_CHECK((uintptr_t)t->data % align == 0, DG_ERR_FORMAT, "%s: tensor %s: data at an odd offset, expected a multiple of %zu",
             f->path, t->name, align);
    return DG_OK;
}

static dg_status bind_row(const dg_file *f, const dg_config *c, const dg_bind_row *row, int32_t layer, void *base,
                          size_t *n_bound) {
    char name[NAME_MAX_LEN];
    const dg_file_tensor *t = find(f, row, layer, name);
    if (!t) {
        DG_CHECK(!required(row, c) || !name[0], DG_ERR_FORMAT, "%s: tensor %s is missing (architecture %s)", f->path,
                 name, c->arch_name);
        return DG_OK;
    }
    DG_TRY(check_tensor(f, t, row, c));
    ++*n_bound;
    *(dg_mat *)((char *)base + row->offset) = dg_file_mat(t);
    return DG_OK;
}

/* Called when fewer tensors were bound than the file has: finds one that no row names. */
static dg_status check_unknown(const dg_file *f, const dg_config *c) {
    for (size_t i = 0; i < f->n_tensor; i++) {
        const dg_file_tensor *t = &f->tensor[i];
        bool known = false;
        for (size_t g = 0; g < sizeof ignored / sizeof *ignored && !known; g++)
            known = strstr(t->name, ignored[g]) != NULL;
        for (size_t r = 0; r < N_ROW && !known; r++) {
            if (!(table[r].nets & dg_bind_net(c))) continue;
            char name[NAME_MAX_LEN];
            for (int32_t l = 0; l < (table[r].is_layer ? c->n_layer : 1) && !known; l++)
                known = find(f, &table[r], l, name) == t;
        }
        DG_CHECK(known, DG_ERR_UNSUPPORTED,
                 "%s: tensor %s is not part of a %s network as dgraft knows it (%d layers; llama, mistral, qwen2, "
                 "qwen3, dflash, eagle3)",
                 f->path, t->name, c->arch_name, c->n_layer);
    }
    return DG_OK;
}

/* What depends on several rows: a tied head, norms for every feature layer. */
static dg_status settle(const dg_file *f, const dg_config *c, dg_weights *w) {
    if (!w->head.data && c->tied) w->head = w->embed;
    w->head_rows = w->head;
    DG_CHECK(w->head.data || dg_arch_is_drafter(c->arch), DG_ERR_FORMAT,
             "%s: tensor %s is missing and tie_word_embeddings is false", f->path,
             f->container == DG_CONTAINER_GGUF ? "output.weight" : "lm_head.weight");
    for (int32_t i = 0; c->fc_norm && i < c->n_tap; i++)
        DG_CHECK(w->fc_norm[i].data, DG_ERR_FORMAT, "%s: tensor fc_norm.%d.weight is missing (architecture %s)", f->path, i,
                 c->arch_name);
    return DG_OK;
}

dg_status dg_bind(const dg_file *f, const dg_config *c, dg_weights *out) {
    dg_weights w = {0};
    dg_status st = DG_OK;
    size_t n_bound = 0;
    w.layer = dg_mem_calloc((size_t)c->n_layer, sizeof *w.layer);
    DG_CHECK(w.layer, DG_ERR_MEMORY, "%s: no memory for %d layers", f->path, c->n_layer);
    for (size_t r = 0; r < N_ROW && st == DG_OK; r++) {
        const dg_bind_row *row = &table[r];
        if (!(row->nets & dg_bind_net(c))) continue;
        if (!row->is_layer) {
            st = bind_row(f, c, row, 0, &w, &n_bound);
            continue;
        }
        for (int32_t l = 0; l < c->n_layer && st == DG_OK; l++) st = bind_row(f, c, row, l, &w.layer[l], &n_bound);
    }
    if (st == DG_OK && n_bound < f->n_tensor) st = check_unknown(f, c);
    if (st == DG_OK) st = settle(f, c, &w);
    if (st != DG_OK) {
        dg_mem_free(w.layer);
        return st;
    }
    *out = w;
    return DG_OK;
}
