/* What the headers that kernels see and the simulator behind them agree on. */
#ifndef DGSIM_H
#define DGSIM_H

#include <cstdint>
#include "cuda_runtime_api.h"

struct dgsim_launch_config {
    const char *name, *file; /* the kernel as it was written, and where */
    int line;
    const void *func;
    unsigned grid[3], block[3];
    size_t shared; /* dynamic bytes */
    void *args;
    size_t args_bytes;
    void (*call)(void *args); /* what each thread runs */
    void (*destroy)(void *args);
};

enum dgsim_vote { DGSIM_SYNC, DGSIM_COUNT, DGSIM_AND, DGSIM_OR };

enum dgsim_warp_op {
    DGSIM_SYNCWARP,
    DGSIM_SHFL,
    DGSIM_SHFL_UP,
    DGSIM_SHFL_DOWN,
    DGSIM_SHFL_XOR,
    DGSIM_BALLOT,
    DGSIM_ALL,
    DGSIM_ANY,
    DGSIM_MATCH,
    DGSIM_REDUCE_ADD,
    DGSIM_REDUCE_MIN,
    DGSIM_REDUCE_MAX,
    DGSIM_REDUCE_UMIN,
    DGSIM_REDUCE_UMAX,
    DGSIM_REDUCE_AND,
    DGSIM_REDUCE_OR,
    DGSIM_REDUCE_XOR,
    DGSIM_MMA_BF16,
    DGSIM_MMA_F16,
    DGSIM_MMA_S8,
    DGSIM_LDMATRIX
};

/* What a lane brings to a warp op: a word to shuffles, votes and reductions. */
struct dgsim_word {
    uint64_t in, out;
    int arg, width;
};
struct dgsim_mma {
    void *d;
    const uint32_t *a, *b;
};
struct dgsim_matrices {
    uint32_t *r;
    const void *row;
    int n;
    bool trans;
};

enum dgsim_access { DGSIM_READ, DGSIM_WRITE, DGSIM_ATOMIC };

/* Takes c.args over. */
void dgsim_enqueue(const dgsim_launch_config &c, cudaStream_t s);

void *dgsim_dyn_shared(void);

/* Waits for all threads of the block; the vote's result. */
int dgsim_barrier(dgsim_vote op, int predicate, const char *file, int line);

/* Waits until the lanes of mask have come to the same op, which is then done for all of them. */
void dgsim_warp(dgsim_warp_op op, unsigned mask, void *io, const char *file, int line);

/* The lanes of this warp that have not left the kernel. */
unsigned dgsim_lanes(void);

/* Checks an access that does not go through plain C++. */
void dgsim_check(const void *p, size_t bytes, size_t align, dgsim_access how, const char *file, int line);

/* Asynchronous copies of 16 bytes, of which `bytes` come from src. */
void dgsim_cp_async(void *dst, const void *src, unsigned bytes, const char *file, int line);
void dgsim_cp_commit(void);
void dgsim_cp_wait(int pending);

#endif
