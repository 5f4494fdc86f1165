/* The target: an open model file, its weights and tokenizer, and its forward pass. Also what network drafters
 * reuse: the rope table, the embedding and the head. Knows no drafter and no session. */
#ifndef DG_TARGET_H
#define DG_TARGET_H

#include "runtime/chat.h"
#include "runtime/layer.h"
#include "runtime/tokenizer.h"

/* A network with its file: weights point into the mapping, or to where dg_net_layout put them. */
typedef struct dg_net {
    dg_file *file;
    dg_config config;
    dg_weights weights;
    float *inv_freq;  /* device [hd/2] */
    float rope_scale; /* on cos and sin */
    uint64_t mapped;  /* bytes of the mapping that are still read there; final after dg_net_layout */
} dg_net;

/* Opens path, reads the configuration, binds the weights. Close with dg_net_close (fine on a zeroed one). */
dg_status dg_net_open(dg_backend *be, const char *path, dg_net *net);

/* Called about once a matrix. */
typedef struct dg_progress {
    void (*fn)(void *ud, const char *path, double done); /* done: 0 to 1; NULL: nobody listens */
    void *ud;
} dg_progress;

/* Carves room for the weights of the network out of dev: the packed ones, and where the backend has memory of its own all
 * others. On the second pass (see dg_arena) also packs and uploads them, and lets their pages of the mapping go. q8: f32,
 * f16 and bf16 matrices become Q8_0 where they are packed, and all packed ones take their activations with 8 bits: for
 * networks that propose. The arena's memory must outlive the network's use. */
void dg_net_layout(dg_backend *be, dg_net *net, bool q8, dg_arena *dev, dg_progress progress);
void dg_net_close(dg_backend *be, dg_net *net);

struct dg_model {
    dg_net net;
    dg_backend *be;
    dg_tokenizer *tokenizer; /* NULL: the files have none (tiny test models); ids only */
    const dg_chat_family *chat;
    dg_model_options options;
    char *weight_types;
    uint64_t parameters;
    void *packed; /* the weights that dg_net_layout moved */
    size_t packed_bytes, backend_bytes;
};

/* Rows of a layer's output to keep: dst[*at.., hidden] <- rows row0 .. row0 + n - 1 of the residual stream after `layer`, as
 * many as fit. */
typedef struct dg_tap {
    int32_t layer, row0, n;
    const int32_t *at; /* device */
    dg_mat dst;
} dg_tap;

/* Runs b (uploaded, begun) through the model: w->x holds the rows after the final norm. Appends to the segments' caches;
 * committing is the caller's. Ops of a pass alone: waits for nothing. */
void dg_target_forward(const dg_model *m, const dg_batch *b, const dg_work *work, const dg_tap *tap, int32_t n_tap);

/* logits[n, V] of normed rows x[n, hidden]. */
void dg_target_head(const dg_model *m, dg_mat x, dg_mat logits);

/* DG_ERR_DEVICE with the backend's message if an op failed. */
dg_status dg_backend_check(dg_backend *be);

/* The model's progress callback. */
dg_progress dg_model_progress(const dg_model *m);

/* Sends a message to the model's log callback, if any. */
void dg_model_log(const dg_model *m, dg_log_level level, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Warns if the network of this drafter brings a tokenizer whose tokens are not the target's. Fails with MEMORY only. */
dg_status dg_net_check_tokenizer(const dg_net *net, const char *drafter, const dg_model *target);

#endif
