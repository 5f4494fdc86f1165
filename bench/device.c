/* See device.h. Knows the device by the ops table alone. */
#include "bench/device.h"

#include <stdlib.h>
#include <string.h>

dg_backend *device_open(const settings *set, const dg_backend_options *opt) {
    const bool choose = !strcmp(set->device, "auto");
    const char *why = "";
    dg_backend *be = dg_backend_open(choose ? "cuda" : set->device, opt, &why);
    if (!be && choose) {
        fprintf(stderr, "bench_ops: computing on the CPU: cuda: %s\n", why);
        be = dg_backend_open("cpu", opt, &why);
    }
    if (!be) {
        fprintf(stderr, "bench_ops: --device %s: %s\n", set->device, why);
        exit(1);
    }
    return be;
}

void *device_room(dg_backend *be, size_t bytes) {
    void *p = be->ops->alloc(be, bytes);
    if (!p) die("matrices", "no memory on the device");
    return p;
}

dg_mat device_mat(dg_backend *be, dg_mat host) {
    const size_t bytes = dg_dtype_bytes(host.dtype, (size_t)host.rows * (size_t)host.cols);
    dg_mat m = host;
    m.data = device_room(be, bytes);
    be->ops->upload(be, m.data, host.data, bytes);
    free(host.data);
    return m;
}

void device_wait(dg_backend *be) {
    if (!be->ops->sync(be)) die("device", dg_backend_error(be));
}

/* Copies of a buffer that no cache holds, or nothing if there is no memory for two. */
static void copy_round(dg_backend *be, peaks *p) {
    enum { ROWS = 1024, COLS = 1 << 17, COPIES = 8 }; /* 512 MiB of f32 */
    const size_t bytes = sizeof(float) * ROWS * COLS;
    dg_mat from = dg_mat_make(be->ops->alloc(be, bytes), DG_F32, ROWS, COLS),
           to = dg_mat_make(from.data ? be->ops->alloc(be, bytes) : NULL, DG_F32, ROWS, COLS);
    if (to.data) {
        be->ops->zero(be, from);
        be->ops->copy2d(be, to, from);
        device_wait(be);
        const double start = now();
        for (int i = 0; i < COPIES; i++) be->ops->copy2d(be, to, from);
        device_wait(be);
        series_add(&p->copy, 2.0 * COPIES * (double)bytes / (now() - start));
    }
    be->ops->free(be, to.data);
    be->ops->free(be, from.data);
}

void device_roofs(dg_backend *be, const settings *set, peaks *p) {
    if (set->bandwidth > 0)
        series_add(&p->copy, set->bandwidth);
    else if (be->ops->host_memory)
        peaks_round(p, isa_of(dg_backend_describe(be)), set->threads);
    else
        copy_round(be, p);
}
