/* What a backend hands to backend.c. Backends and their callers (kernels/ops.h) never meet directly: the
 * table goes through the checks of backend.c in builds with asserts. */
#ifndef DG_BACKEND_H
#define DG_BACKEND_H

#include "kernels/ops.h"

typedef struct dg_backend_driver {
    const char *name;
    bool has_devices; /* "name:N" opens the N-th */
    const dg_ops *ops;

    /* Bytes of the block that open() lays its state into; SIZE_MAX if that overflows. */
    size_t (*bytes)(const dg_backend_options *opt);

    /* Bytes that open() takes besides, of the device's memory and of the host's. NULL: none. */
    size_t (*scratch)(const dg_backend_options *opt);

    /* Builds the state in mem (64-byte aligned, bytes() long) and returns it as ops' be->ctx; NULL with
     * *why (static or thread-local) when a resource other than memory is missing. opt->alloc and opt->free are set.
     * Nothing of the block is in use after a failure. */
    void *(*open)(void *mem, const dg_backend_options *opt, const char **why);
    void (*close)(void *ctx); /* the block itself is freed by the caller */
    const char *(*error)(const void *ctx);
    const char *(*describe)(const void *ctx);
} dg_backend_driver;

extern const dg_backend_driver dg_cpu_driver, dg_cuda_driver;

#endif
