/* The op table: the one place where the contract of each op stands.
 *
 * The CPU backend (kernels/cpu/) is the specification; every other backend is compared with it op by op.
 * Common rules:
 *  - Activations are f32, weights any dtype that dg_dtype_is_weight() names; sums are in f32.
 *  - Ops are stream-ordered and return nothing. The first device error sticks in the backend and is
 *    returned by sync(). Wrong shapes, dtypes or aliasing are bugs of the caller: asserts in backend.c.
 *  - Pointers in matrices, and int32 arrays marked "device", are in backend memory (on the CPU: memory).
 *  - CPU ops are row-invariant and thread-invariant: row i of a result depends on row i of the inputs
 *    alone, to the bit, whatever other rows are in the call and however many threads run it.
 *  - Where a call is `loose` (x of matmul, the shape of attention), a backend may hand it to a library that picks its
 *    kernels by shape: then row i depends on the number of rows as well, but still on no other row. Calls of one shape
 *    give the same bits. Without it every backend keeps the order of a row's sums.
 *  - No op allocates. Backends own what scratch they need from dg_backend_open() on.
 *  - Several threads may call ops of one backend at once; on the CPU they wait for each other.
 *  - Letters: n rows, d hidden, H heads, G KV heads, hd head dim, V vocabulary, k reduction or count. */
#ifndef DG_OPS_H
#define DG_OPS_H

#include "kernels/tensor.h"

#define DG_TREE_MAX   256               /* rows in a window of trial rows: a token tree, a block */
#define DG_MASK_WORDS (DG_TREE_MAX / 64) /* 64-bit words in one ancestor set */
#define DG_KV_BLOCK   64                /* caches have a multiple of this many rows */
#define DG_TOP_K_MAX  1024              /* most candidates of a row that top_k is asked for */
#define DG_PASS_KEY   64                /* most bytes of a pass's key */

/* What the n new rows of a segment see of the window (every row also sees all committed rows). */
typedef enum dg_mask {
    DG_MASK_CAUSAL, /* window rows up to and including itself */
    DG_MASK_BITS,   /* the window rows in its bit set (itself included, set by the caller) */
    DG_MASK_FULL    /* every window row */
} dg_mask;

/* Device values of one segment of a pass that are not known when its ops are called: a backend may record them once and
 * run them again (see pass_begin). */
typedef struct dg_live {
    int32_t len; /* committed rows */
    int32_t n;   /* rows; those behind them, up to the segment's own n, are padding: no op reads or writes the cache for
                    them, no mask shows them, and what they give is nobody's business */
    int32_t row; /* where the segment's rows go in a matrix that collects them, see rows_put */
} dg_live;

/* One sequence's rows in a call of attention or qkv. */
typedef struct dg_attn_seg {
    dg_mat k, v;          /* [cap, G*hd] one layer's cache, see kv_move */
    const int32_t *pos;   /* device [win]: absolute positions of the window rows */
    const uint64_t *bits; /* device [n][DG_MASK_WORDS], BITS only: bit j = window row j is visible */
    int32_t len;          /* committed rows; cache row r is at position r */
    int32_t win;          /* window rows, in cache rows len .. len+win-1; n <= win */
    int32_t row0, n;      /* rows of q and out: the last n rows of the window */
    dg_mask mask;
    const dg_live *live;  /* device; NULL: len, win and n above are what there is. Else len above is the same, or what it was
                             when the pass was recorded, and n - live->n of both win and n are padding */
} dg_attn_seg;

/* A segment as it is when its op runs, for code that can read the backend's memory. */
static inline dg_attn_seg dg_seg_now(dg_attn_seg s) {
    if (!s.live) return s;
    s.len = s.live->len;
    s.win -= s.n - s.live->n;
    s.n = s.live->n;
    return s;
}

typedef struct dg_attn_shape {
    int32_t n_head, n_kv_head, head_dim; /* query head h reads KV head h / (n_head / n_kv_head) */
    int32_t window;                      /* 0: none; W: only keys with |pos_q - pos_k| < W */
    float scale;                         /* on q.k, usually 1/sqrt(hd) */
    bool loose; /* q, weights and results may be rounded to the cache's type. All its rows hold finite numbers */
} dg_attn_shape;

/* Sampling of one sequence: Gumbel-max over the kept tokens, argmax(logit/T + noise(seed, pos, token)).
 * Filters in transformers' order: temperature, top-k (all ties of the k-th value stay), top-p (ascending
 * cumulative probability <= 1-p is dropped; the best and all ties of the last kept value stay), min-p
 * (probability < min_p * best dropped). temperature 0 is greedy: the largest logit, the lowest id among
 * equals, no filters, no noise. top_k 0, top_p 0 or >= 1, min_p 0 switch a filter off. */
typedef struct dg_sampling {
    float temperature, top_p, min_p;
    int32_t top_k;
    uint64_t seed;
} dg_sampling;

/* The operands of qkv. */
typedef struct dg_qkv {
    dg_mat q;              /* [n, H*hd], in place; data NULL: none */
    dg_mat k, v;           /* [n, G*hd]; what k holds afterwards is the backend's business */
    dg_mat q_norm, k_norm; /* [1, hd] f32, f16 or bf16: every head of a row under an rms_norm; data NULL: none */
    float eps;
    dg_mat rope;           /* [n, hd], see rope_table; data NULL: no rotation */
    int32_t head_dim;
    bool interleaved;      /* pairs are (2j, 2j+1), else (j, j+hd/2) */
} dg_qkv;

/* How matmul takes the activations that it multiplies by packed weights. Sums are f32 in any case. */
typedef enum dg_precision {
    DG_PRECISION_FIXED, /* fixed point of 14 bits, a scale for every 32 columns: finer than bf16 */
    DG_PRECISION_F32,   /* f32; weights are not packed */
    DG_PRECISION_INT8   /* fixed point of 8 bits, likewise */
} dg_precision;

/* One of the products that matmul computes from the same x. */
typedef struct dg_product {
    dg_mat out, w, bias;
} dg_product;

typedef struct dg_backend dg_backend;

typedef struct dg_ops {
    const char *name;

    /* --- memory (host pointers for host-side arguments) --- */
    bool host_memory; /* the backend's memory is the host's: weights may stay where the file is mapped */
    bool has_loose;   /* it computes loose calls in another way than others */
    void *(*alloc)(dg_backend *be, size_t bytes); /* 64-byte aligned, NULL when there is none */
    void (*free)(dg_backend *be, void *p);        /* NULL is fine */
    void (*upload)(dg_backend *be, void *dst, const void *src, size_t bytes);   /* src may change on return */
    void (*download)(dg_backend *be, void *dst, const void *src, size_t bytes); /* waits: dst is there on return,
                                                                                   unless an op failed */
    void (*copy2d)(dg_backend *be, dg_mat dst, dg_mat src); /* same shape and dtype, strides may differ */
    void (*zero)(dg_backend *be, dg_mat dst);
    bool (*sync)(dg_backend *be); /* waits; false if an op failed since open (see dg_backend_error) */

    /* --- passes ---
     * Between pass_begin and pass_end come the ops of one whole pass, of these alone: copy2d, zero, embed, rms_norm, matmul,
     * rope_table, qkv, attention, swiglu, rows_put, rows_gather, top_k, sample. A backend may record them, and for another
     * pass of the same key run again what it recorded. So the key (at most DG_PASS_KEY bytes) is equal only where
     * all arguments of all those ops are: pointers, shapes and numbers, but not what lies in device memory, nor the len of
     * segments that have `live`. bytes 0: a pass of its own. Free forgets all keys. False: nothing is left to do, as the
     * pass was run again or the backend has failed; no pass_end then. */
    bool (*pass_begin)(dg_backend *be, const void *key, size_t bytes);
    void (*pass_end)(dg_backend *be);

    /* How many rows a pass that needs n had better have, n or more: backends that record passes know few numbers of rows.
     * Rows are padded by who asks. */
    int32_t (*pass_rows)(dg_backend *be, int32_t n);

    /* --- compute --- */

    /* out[n,d] f32 = row id[i] of table[V,d] (any weight dtype). id: device [n], in [0, V). */
    void (*embed)(dg_backend *be, dg_mat out, dg_mat table, const int32_t *id);

    /* out[n,d] = x * rsqrt(mean(x^2) + eps) * w, w[1,d] f32, f16 or bf16. out may be x. Per-head norms
     * pass [n*H, hd] views. */
    void (*rms_norm)(dg_backend *be, dg_mat out, dg_mat x, dg_mat w, float eps);

    /* Rewrites weights once into the layout that matmul streams fastest. `as`: w.dtype, or DG_Q8_0 for a plain type that
     * may be quantised on the way. pack_bytes: what dst takes, 0 if the backend reads w best as it is (then pack returns
     * w). dst: 64-byte aligned, in backend memory, as long as the result is used. w is in host or backend memory, and not
     * needed afterwards. */
    size_t (*pack_bytes)(dg_backend *be, dg_mat w, dg_dtype as);
    dg_mat (*pack)(dg_backend *be, void *dst, dg_mat w, dg_dtype as);

    /* For each product: out[n,m] (+)= x[n,k] . w[m,k]^T (+ bias[1,m] f32/f16/bf16 if bias.data). add: accumulate
     * onto out. out must not alias x or another out. Weights that are not packed are multiplied in f32 whatever
     * the precision; x is taken as DG_PRECISION_INT8 says by packed ones that are `coarse`. */
    void (*matmul)(dg_backend *be, dg_mat x, const dg_product *product, int32_t n_product, bool add);

    /* table[n,hd]: cos(pos*freq[j])*mscale in columns [0,hd/2), sin likewise in [hd/2,hd).
     * freq: device [hd/2]; pos: device [n]. The angle is the f32 product. */
    void (*rope_table)(dg_backend *be, dg_mat table, const int32_t *pos, const float *freq, float mscale);

    /* What lies between the products q, k, v and attention: the heads of q and k under their norms and rotated, then k and
     * v into the cache rows of the window's last n rows. The bits of norm, rotation and storing one after another. Rows
     * of no segment are stored nowhere, and q may be left as it was there. */
    void (*qkv)(dg_backend *be, const dg_qkv *r, const dg_attn_seg *seg, int32_t n_seg);

    /* out[n,H*hd] = softmax(scale * q.K^T + mask) V for every segment; rows outside all segments are left
     * alone. Keys are numbered in the order committed rows, then window rows that the mask shows, both
     * ascending; the blocking of the reduction depends on that number only, so a tree path and a chain
     * give the same bits. Keys that are out of reach (shape->window) are skipped. A row that sees nothing
     * becomes 0. A window whose rows the attention window tells apart by positions with gaps has at most
     * DG_TREE_MAX rows. */
    void (*attention)(dg_backend *be, dg_mat out, dg_mat q, const dg_attn_seg *seg, int32_t n_seg,
                      const dg_attn_shape *shape);

    /* A layer's cache is two matrices ck and cv of one shape [cap, G*hd] and type (f32, f16 or bf16), with
     * cap a multiple of DG_KV_BLOCK and no gaps between rows. Where an element lies in them is the backend's
     * business: rows go in and out by qkv and these ops alone. A row is rounded once, when it is put there.
     *
     * In every one of n_layer caches ck[l], cv[l] of one shape: row row0 + i = row row0 + idx[i] for i < n; idx: device,
     * ascending, idx[i] >= i. */
    void (*kv_move)(dg_backend *be, const dg_mat *ck, const dg_mat *cv, int32_t n_layer, int32_t row0, const int32_t *idx,
                    int32_t n, int32_t head_dim);

    /* k[n, G*hd] and v[n, G*hd], both f32 = rows row0.. of the cache: for tests and whoever saves a cache. */
    void (*kv_get)(dg_backend *be, dg_mat k, dg_mat v, dg_mat ck, dg_mat cv, int32_t row0, int32_t head_dim);

    /* out = silu(gate) * up, all [n,m]; out may be gate. */
    void (*swiglu)(dg_backend *be, dg_mat out, dg_mat gate, dg_mat up);

    /* dst[*row0+i] = src[i], casting f32 to the dtype of dst (f32, f16, bf16). row0: device [1]. Rows behind the last of
     * dst are left out. */
    void (*rows_put)(dg_backend *be, dg_mat dst, const int32_t *row0, dg_mat src);

    /* dst[i] = src[idx[i]], i < dst.rows; same dtype. idx: device. idx ascending with idx[i] >= i allows
     * dst.data == src.data (KV commit). */
    void (*rows_gather)(dg_backend *be, dg_mat dst, dg_mat src, const int32_t *idx);

    /* The k best of each row of logits[n,V] f32, best first, the lower id first among equals:
     * id device [n,k] and logp device [n,k] (log-softmax over the whole row; either may be NULL). */
    void (*top_k)(dg_backend *be, int32_t *id, float *logp, dg_mat logits, int32_t k);

    /* id[i] = token sampled from logits[i] for position pos[i]; logp[i] = its log-softmax over the whole
     * unfiltered row at temperature 1 (NULL: not wanted). pos, id, logp: device [n]. -inf logits are
     * never chosen while a finite one exists. With k > 0 best, device [n,k], gets the ids that top_k gives. */
    void (*sample)(dg_backend *be, int32_t *id, float *logp, dg_mat logits, const int32_t *pos, const dg_sampling *s,
                   int32_t *best, int32_t k);

    /* The successor matrix m[V,k] i32 (Token Recycling, Graft): row t holds tokens that followed token t, best
     * first; whatever is outside [0, V) stands for "none".
     *
     * m[token[i]] = id[i] for every row of id[n,k] i32. Among rows of equal token the one with the highest
     * prio[i] is written, among those the last. Tokens outside [0, V) write nothing. token, prio: device [n]. */
    void (*succ_update)(dg_backend *be, dg_mat m, const int32_t *token, dg_mat id, const int32_t *prio);

    /* id[i] = m[id[parent[i]]][rank[i]] for n_root <= i < n; id[0..n_root) are given. -1 where the parent is
     * outside [0, V), or what m holds there is. parent[i] in [0, i), rank[i] in [0, k); id, parent, rank:
     * device [n]. */
    void (*succ_expand)(dg_backend *be, int32_t *id, dg_mat m, const int32_t *parent, const int32_t *rank,
                        int32_t n_root, int32_t n);
} dg_ops;

typedef struct dg_backend_options {
    int32_t threads;          /* 0: one per online core */
    const char *isa;          /* NULL: best; else "portable", "avx2", "avxvnni", "avx512", "amx" (for tests and `info`) */
    int32_t max_vocab;        /* longest row that sample and top_k will see (sizes scratch) */
    int32_t max_cols;         /* most columns that packed weights will have (sizes scratch) */
    int32_t device;           /* which of several; dg_backend_open sets it from the name */
    dg_precision precision;
    void *(*alloc)(size_t);   /* host allocation for everything the backend owns, 64-byte aligned; */
    void (*free)(void *);     /* both NULL: the C library's */
} dg_backend_options;

struct dg_backend {
    const dg_ops *ops;
    void *ctx; /* the backend's own state */
};

/* One product; see dg_ops.matmul. */
static inline void dg_matmul(dg_backend *be, dg_mat out, dg_mat x, dg_mat w, dg_mat bias, bool add) {
    const dg_product p = {out, w, bias};
    be->ops->matmul(be, x, &p, 1, add);
}

/* Opens "cpu", or in builds with CUDA "cuda" or "cuda:N". NULL if there is no such backend, device, memory or thread to be
 * had; *why then says which, and what to do (valid until the thread's next call). Close with dg_backend_close (NULL is
 * fine). */
dg_backend *dg_backend_open(const char *name, const dg_backend_options *opt, const char **why);
void dg_backend_close(dg_backend *be);

/* First error since open, "" if none; valid until close. */
const char *dg_backend_error(const dg_backend *be);

/* What was chosen, e.g. "cpu, avx512, 2 threads"; valid until close. */
const char *dg_backend_describe(const dg_backend *be);

/* What this build can open, "cpu (portable, avx2), cuda". */
const char *dg_backend_list(void);

/* Bytes that dg_backend_open takes with these options, of the host's memory and the device's (for the memory plan). */
size_t dg_backend_bytes(const char *name, const dg_backend_options *opt);

#endif
