/* Causal attention of many rows by cuDNN, through its graph interface in C (sdpa_cudnn.c). Knows neither caches nor the op
 * table: sdpa.cu brings both together. */
#ifndef DG_CUDA_SDPA_H
#define DG_CUDA_SDPA_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    DG_SDPA_STEP = 64,         /* rows and keys come in multiples of this; with the rest, that is a plan's bucket */
    DG_SDPA_PLANS = 128,
    DG_SDPA_DESCRIPTORS = 80   /* that a plan is made of */
};

/* What a plan is for, compared byte by byte. q and out are [n, n_head*head_dim], k and v [n_key, n_kv_head*head_dim], all
 * dense and of one type. */
typedef struct dg_sdpa_shape {
    int32_t n, n_key, n_head, n_kv_head, head_dim;
    int32_t bf16; /* else f16 */
} dg_sdpa_shape;

typedef struct dg_sdpa_plan {
    dg_sdpa_shape shape;
    void *made[DG_SDPA_DESCRIPTORS], *plan; /* plan NULL: the library refuses the shape */
    int32_t n_made;
    size_t workspace;
} dg_sdpa_plan;

typedef struct dg_sdpa {
    bool tried;   /* to open the library */
    void *handle; /* NULL: it is not there */
    int32_t n_plan, next;
    dg_sdpa_plan plan[DG_SDPA_PLANS];
} dg_sdpa;

/* Row i sees the keys 0 .. first + i. The rows of k and v behind what the last row sees hold finite numbers. */
typedef struct dg_sdpa_call {
    const void *q, *k, *v;
    void *out;
    int32_t first;
    float scale;
    void *workspace; /* device, 256-byte aligned */
    size_t workspace_bytes;
} dg_sdpa_call;

/* Queues the attention on the stream, whose device is the thread's; false where the library is not there, refuses the shape or
 * wants a larger workspace: nothing is queued then. The first call opens the library; one of a new shape makes a plan, which
 * takes time and host memory of the library. */
bool dg_sdpa_run(dg_sdpa *s, cudaStream_t stream, const dg_sdpa_shape *shape, const dg_sdpa_call *call);

void dg_sdpa_close(dg_sdpa *s);

#endif
