/* The simulated device's controls, for tests. The values hold from the next call on; at the start they come
 * from the environment (the names in brackets). */
#ifndef DGSIM_SIM_H
#define DGSIM_SIM_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DGSIM_EXIT 99 /* exit status of a process in which a check has failed; the report is on stderr */

typedef enum dgsim_order { DGSIM_FORWARD, DGSIM_REVERSE, DGSIM_SHUFFLED } dgsim_order;

typedef struct dgsim_config {
    int devices;      /* 0: as without a GPU [DGSIM_DEVICES] */
    int driver;       /* version, e.g. 12040; older than CUDART_VERSION: insufficient driver [DGSIM_DRIVER] */
    int major, minor; /* compute capability [DGSIM_CC, e.g. 8.0] */
    size_t memory;    /* bytes on the device [DGSIM_MEMORY] */
    long fail_alloc;  /* n > 0: the n-th device allocation from now on fails, once */
    long fail_launch; /* n > 0: the device is lost in the n-th kernel to run from now on */
    dgsim_order
        order; /* of a block's threads and a grid's blocks [DGSIM_ORDER: forward, reverse, shuffled] */
    int cudnn;   /* whether there is cuDNN [DGSIM_CUDNN] */
    int no_blas; /* cuBLASLt finds no way for any product */
} dgsim_config;

extern dgsim_config dgsim;

/* Kernels run so far, for tests that must know that the device did the work. */
extern long dgsim_kernels_run;

/* What the host has asked for so far, one by one: what is captured counts when its graph is launched, as one. */
typedef struct dgsim_counts {
    long launches; /* kernels, copies on the device, memsets, products of cuBLASLt */
    long graphs;   /* launched */
    long captured; /* graphs made */
    long uploads, downloads;
    long waits; /* for a stream, an event or the device */
} dgsim_counts;

extern dgsim_counts dgsim_count;

/* Bytes that kernels read of the device memory from start on: as often as they ask for them. Where accesses are logged. */
typedef struct dgsim_watch {
    const void *start;
    size_t bytes;
    long read;
} dgsim_watch;

extern dgsim_watch dgsim_watched;

/* Whether the kernels that were linked log their accesses (races, uninitialised reads). */
int dgsim_logs_accesses(void);

#ifdef __cplusplus
}
#endif
#endif
