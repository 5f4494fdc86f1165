/* What the fuzz entry points of the loaders share. Each `fuzz_X.c` defines LLVMFuzzerTestOneInput; `make
 * fuzz` builds it with libFuzzer, tests/bad/test_corpus.c replays the kept inputs with it in every test run.
 */
#ifndef DG_FUZZ_H
#define DG_FUZZ_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/config.h"

/* An in-memory file of these bytes; close(fd) ends it. */
static inline int fuzz_file(const uint8_t *data, size_t size, char path[64]) {
    const int fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0 || (size && write(fd, data, size) != (ssize_t)size)) abort();
    snprintf(path, 64, "/proc/self/fd/%d", fd);
    return fd;
}

/* Reads what an opened file promises: both ends of every tensor, every value of every key. */
static inline uint64_t fuzz_walk(const dg_file *f) {
    uint64_t sum = 0;
    for (size_t i = 0; i < f->n_tensor; i++) {
        const dg_file_tensor *t = &f->tensor[i];
        const uint8_t *p = t->data;
        if (t->size) sum += (uint64_t)p[0] + p[t->size - 1];
        if (dg_file_find(f, t->name) != t) abort();
        if (t->n_dim <= 2) sum += (uint64_t)dg_file_mat(t).cols;
    }
    for (size_t i = 0; i < f->n_meta; i++) {
        const dg_meta *m = &f->meta[i];
        for (uint64_t k = 0; k < m->n; k++) {
            if (m->type == DG_META_STRING)
                sum += m->string[k].len ? (uint8_t)m->string[k].ptr[m->string[k].len - 1] : 0;
            else
                sum += (uint64_t)dg_meta_int(m, k) + (dg_meta_number(m, k) > 0);
        }
    }
    return sum;
}

/* A configuration that was accepted keeps the promises of config.h. */
static inline void fuzz_config_check(const dg_config *c) {
    if (c->n_layer < 1 || c->n_layer > DG_MAX_LAYERS || c->n_head % c->n_kv_head || c->head_dim % 2) abort();
    if (c->vocab_size < 1 || c->n_tap > DG_MAX_TAPS || c->n_stop > DG_MAX_STOPS) abort();
    for (int32_t i = 0; i < c->n_stop; i++)
        if (c->stop[i] < 0 || c->stop[i] >= c->vocab_size) abort();
    float inv_freq[1 << 11], mscale;
    if (c->rope_scaling == DG_ROPE_FREQ_FACTORS) return; /* the factors are the file's */
    dg_config_rope(c, NULL, inv_freq, &mscale);
    for (int32_t i = 0; i < c->head_dim / 2; i++)
        if (!(inv_freq[i] >= 0 && inv_freq[i] < 1e9f)) abort();
    if (!(mscale > 0)) abort();
}

#endif
