/* The roofs that operations are held against, measured on the spot with the same number of threads: bytes a
 * second read and copied, multiply-adds a second of an instruction set. */
#ifndef DG_BENCH_PEAKS_H
#define DG_BENCH_PEAKS_H

#include "bench/measure.h"

typedef struct peaks {
    series near, read,
        copy; /* bytes/s: 64 MiB read again and again, as the weights of a small model are; a buffer
                 larger than any cache read, and copied (what is read and what is written) */
    series f32, bf16, int8; /* operations/s, two a multiply-add; empty: the instruction set has none */
} peaks;

/* One more round of every measure for the named instruction set ("portable", "avx2", "avxvnni", "avx512",
 * "amx"). About 50 ms a core. Allocates its buffers, larger than the caches, in the first call. */
void peaks_round(peaks *p, const char *isa, int threads);

#endif
