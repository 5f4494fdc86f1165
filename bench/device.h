/* The device that bench_ops measures on: opening it, matrices in its memory, waiting for it, its roofs. */
#ifndef DG_BENCH_DEVICE_H
#define DG_BENCH_DEVICE_H

#include "bench/bench_ops.h"

/* The backend that --device names, the CPU where "auto" finds no other (said on standard error); exits without it. */
dg_backend *device_open(const settings *set, const dg_backend_options *opt);

/* Bytes of device memory, not filled; exits when there are none. */
void *device_room(dg_backend *be, size_t bytes);

/* A host matrix as the device sees it, which then owns it; its memory is the host's or freed here. */
dg_mat device_mat(dg_backend *be, dg_mat host);

/* Until all that was asked for is done; exits if an op failed. */
void device_wait(dg_backend *be);

/* One more round of roofs: those of peaks.h where memory is the host's, else bytes a second of copy2d from device memory to
 * device memory, both what it reads and what it writes. With --bandwidth that alone, and nothing is measured. */
void device_roofs(dg_backend *be, const settings *set, peaks *p);

#endif
