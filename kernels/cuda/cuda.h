/* The host side of the CUDA backend: its state, and its operations by file. Host code of kernels/cuda/ alone includes it.
 *
 * All work of a backend goes through one stream, so that operations run in the order in which they were called.
 * Operations return nothing: the first error sticks in the state with what was being done, and later operations
 * do nothing. */
#ifndef DG_CUDA_H
#define DG_CUDA_H

#include <cublasLt.h>
#include <pthread.h>

#include "kernels/cuda/launch.h"

extern "C" {
#include "kernels/backend.h"
#include "kernels/cuda/sdpa.h"
}

enum {
    DG_WARP = 32,
    DG_RING_BYTES = 1 << 20,          /* pinned memory that small uploads pass through */
    DG_RING_UPLOAD = DG_RING_BYTES / 8, /* the longest of them */
    DG_CHUNK_BYTES = 4 << 20,         /* longer ones go through two pinned pieces of this size */
    DG_PACKED_ROWS = 64,              /* of x, in one product by packed weights */
    DG_LT_LEAST = 17,                 /* rows of x from which a loose product is cuBLASLt's */
    DG_LT_ROWS = 256,                 /* of x, in one of its products by 16-bit weights */
    DG_LT_CHOICES = 512,              /* shapes that its choices are kept for */
    DG_GRAPHS = 64,                   /* passes that are remembered */
};

/* A product as cuBLASLt sees it, compared byte by byte. Strides in elements, alignments in bytes. */
typedef struct dg_lt_shape {
    int64_t w_stride, x_stride, out_stride;
    int32_t m, n, k, type;
    uint32_t w_align, x_align, out_align, has_bias;
} dg_lt_shape;

typedef struct dg_lt_choice {
    dg_lt_shape shape;
    cublasLtMatmulAlgo_t algo;
    bool refused;
} dg_lt_choice;

typedef struct dg_lt {
    cublasLtHandle_t handle; /* NULL: the library does not start */
    void *workspace;
    uint16_t *halves; /* x as two matrices of 16 bits, [2][DG_LT_ROWS, max_cols] at most */
    dg_lt_choice choice[DG_LT_CHOICES]; /* by a hash of the shape; m is 0 where there is none */
} dg_lt;

/* A pass that was run at least once, see pass.cu. */
typedef struct dg_cuda_graph {
    unsigned char key[DG_PASS_KEY];
    size_t bytes;         /* of the key; 0: an empty place */
    cudaGraphExec_t exec; /* NULL: not recorded yet */
    uint64_t used;        /* the last use; grows */
} dg_cuda_graph;

typedef struct dg_cuda {
    int32_t device;
    cudaStream_t stream;
    int32_t n_processor; /* streaming multiprocessors */
    size_t max_shared;   /* dynamic shared memory of a block, opted into */
    int32_t max_vocab, max_cols;
    dg_precision precision;

    float *parts; /* attention: states of spans, [n_part] */
    size_t n_part;
    uint32_t *words; /* activations for packed weights, [DG_PACKED_ROWS, max_cols] */
    float *sums;     /* and of every 32 of them, [DG_PACKED_ROWS, max_cols / 32] */
    dg_lt lt;
    dg_sdpa sdpa;

    char *ring; /* pinned [DG_RING_BYTES] */
    size_t ring_at;
    char *chunk[2]; /* pinned [DG_CHUNK_BYTES] */
    cudaEvent_t chunk_free[2];

    dg_cuda_graph graph[DG_GRAPHS];
    dg_cuda_graph *recording; /* the pass at hand, while it is recorded; NULL */
    uint64_t n_pass;
    bool keyed; /* the pass at hand has a key: what it launches may be launched again with other values in dg_live */

    pthread_mutex_t lock; /* held by every operation, and by a whole pass: the stream, the scratch and the pinned memory
                             are shared. Recursive */
    bool failed;
    char error[256]; /* the first */
    char text[160];  /* describe */
} dg_cuda;

static inline dg_cuda *dg_cuda_of(dg_backend *be) { return static_cast<dg_cuda *>(be->ctx); }

/* Locks the backend and makes its device the thread's; NULL if it has failed. Every operation begins with it and, where
 * that was not NULL, ends with dg_cuda_end. */
dg_cuda *dg_cuda_begin(dg_backend *be);

/* Records a failed launch of operation `what`, and unlocks. */
void dg_cuda_end(dg_cuda *c, const char *what);

/* Whether a call succeeded; keeps the first that did not, with its name and what it was for. */
bool dg_cuda_ok(dg_cuda *c, cudaError_t status, const char *call, const char *what);

/* Drops what was recorded: memory that it knows is about to go. Waits for what runs. */
void dg_cuda_forget_passes(dg_cuda *c);

static inline int32_t dg_ceil_div(int64_t n, int64_t d) { return static_cast<int32_t>((n + d - 1) / d); }

/* Copies from host memory, which may change on return. The caller has begun an operation. */
void dg_cuda_upload_long(dg_cuda *c, char *dst, const char *src, size_t bytes);

/* Products by packed weights: x, at most DG_PACKED_ROWS rows, is split once, for all products that follow. The n products
 * of a call have weights of one type, all coarse or none, and are one launch; DG_LAUNCH_PRODUCTS at most. */
void dg_cuda_split(dg_cuda *c, dg_mat x);
void dg_cuda_multiply_packed(dg_cuda *c, dg_mat x, const dg_product *p, int32_t n, bool add);

/* matmul within an operation: by the kernels of this folder, and of DG_LT_LEAST rows and more by cuBLASLt where it can. */
void dg_cuda_multiply(dg_cuda *c, dg_mat x, const dg_product *product, int32_t n, bool add);
void dg_cuda_matmul_lt(dg_cuda *c, dg_mat x, const dg_product *product, int32_t n, bool add);

/* cuBLASLt's handle, and device memory for it: lt_bytes. False where there is no such memory. */
size_t dg_cuda_lt_bytes(int32_t max_cols);
bool dg_cuda_lt_open(dg_cuda *c, const char *what);
void dg_cuda_lt_close(dg_cuda *c);

/* Attention of one segment by cuDNN; false, with nothing written, where it is not for cuDNN or refused. */
bool dg_cuda_sdpa(dg_cuda *c, dg_mat out, dg_mat q, const dg_attn_seg *seg, const dg_attn_shape *shape);

/* ---- the operations, by file; contracts in kernels/ops.h ---- */

bool dg_cuda_pass_begin(dg_backend *be, const void *key, size_t bytes);
void dg_cuda_pass_end(dg_backend *be);
int32_t dg_cuda_pass_rows(dg_backend *be, int32_t n);

size_t dg_cuda_pack_bytes(dg_backend *be, dg_mat w, dg_dtype as);
dg_mat dg_cuda_pack(dg_backend *be, void *dst, dg_mat w, dg_dtype as);
void dg_cuda_matmul(dg_backend *be, dg_mat x, const dg_product *product, int32_t n, bool add);
void dg_cuda_attention(dg_backend *be, dg_mat out, dg_mat q, const dg_attn_seg *seg, int32_t n_seg,
                       const dg_attn_shape *shape);

void dg_cuda_rms_norm(dg_backend *be, dg_mat out, dg_mat x, dg_mat w, float eps);
void dg_cuda_rope_table(dg_backend *be, dg_mat table, const int32_t *pos, const float *freq, float mscale);
void dg_cuda_qkv(dg_backend *be, const dg_qkv *r, const dg_attn_seg *seg, int32_t n_seg);
void dg_cuda_swiglu(dg_backend *be, dg_mat out, dg_mat gate, dg_mat up);

void dg_cuda_copy2d(dg_backend *be, dg_mat dst, dg_mat src);
void dg_cuda_zero(dg_backend *be, dg_mat dst);
void dg_cuda_embed(dg_backend *be, dg_mat out, dg_mat table, const int32_t *id);
void dg_cuda_rows_put(dg_backend *be, dg_mat dst, const int32_t *row0, dg_mat src);
void dg_cuda_rows_gather(dg_backend *be, dg_mat dst, dg_mat src, const int32_t *idx);
void dg_cuda_kv_move(dg_backend *be, const dg_mat *ck, const dg_mat *cv, int32_t n_layer, int32_t row0, const int32_t *idx,
                     int32_t n, int32_t head_dim);
void dg_cuda_kv_get(dg_backend *be, dg_mat k, dg_mat v, dg_mat ck, dg_mat cv, int32_t row0, int32_t head_dim);

void dg_cuda_top_k(dg_backend *be, int32_t *id, float *logp, dg_mat logits, int32_t k);
void dg_cuda_sample(dg_backend *be, int32_t *id, float *logp, dg_mat logits, const int32_t *pos, const dg_sampling *s, int32_t *best,
                    int32_t k);

void dg_cuda_succ_update(dg_backend *be, dg_mat m, const int32_t *token, dg_mat id, const int32_t *prio);
void dg_cuda_succ_expand(dg_backend *be, int32_t *id, dg_mat m, const int32_t *parent, const int32_t *rank,
                         int32_t n_root, int32_t n);

#endif
