/* Host memory; see mem.h. */
#include "runtime/mem.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { ALIGN = 64, HUGE_PAGE = 2 << 20 };

static atomic_llong live;
#ifdef DG_TEST
static atomic_ullong made, fail_at; /* fail_at 0: never */
static atomic_int fail_onward;
static _Thread_local int guard;

static int hook_refuses(void) {
    if (guard) {
        fprintf(stderr, "allocation inside a round\n");
        abort();
    }
    const unsigned long long nth = atomic_fetch_add(&made, 1) + 1, at = atomic_load(&fail_at);
    return at && (nth == at || (nth > at && atomic_load(&fail_onward)));
}
void dg_mem_guard_begin(void) { guard++; }
void dg_mem_guard_end(void) { guard--; }
uint64_t dg_mem_fail_nth(uint64_t n, int onward) {
    atomic_store(&fail_onward, onward);
    atomic_store(&fail_at, n);
    return atomic_exchange(&made, 0);
}
#else
static int hook_refuses(void) { return 0; }
void dg_mem_guard_begin(void) {}
void dg_mem_guard_end(void) {}
uint64_t dg_mem_fail_nth(uint64_t n, int onward) {
    (void)n, (void)onward;
    return 0;
}
#endif

int64_t dg_mem_live(void) { return atomic_load(&live); }

size_t dg_mem_mul(size_t n, size_t size) {
    size_t bytes;
    return __builtin_mul_overflow(n, size, &bytes) ? SIZE_MAX : bytes;
}

void *dg_mem_alloc(size_t bytes) {
    if (hook_refuses() || bytes > SIZE_MAX / 2) return NULL;
    /* weights and caches are read from end to end: fewer, larger pages make that a quarter faster */
    const bool huge = bytes >= 4 * (size_t)HUGE_PAGE;
    const size_t align = huge ? HUGE_PAGE : ALIGN;
    void *p = aligned_alloc(align, (bytes + align - 1) / align * align + (bytes == 0 ? align : 0));
#ifdef MADV_HUGEPAGE
    if (p && huge) madvise(p, bytes, MADV_HUGEPAGE); /* a wish: where it is not granted, nothing is lost */
#endif
    if (p) atomic_fetch_add(&live, 1);
    return p;
}

void *dg_mem_calloc(size_t n, size_t size) {
    const size_t bytes = dg_mem_mul(n, size);
    void *p = dg_mem_alloc(bytes);
    if (p) memset(p, 0, bytes);
    return p;
}

void *dg_mem_grow(void *p, size_t old_bytes, size_t bytes) {
    void *q = dg_mem_alloc(bytes);
    if (!q) return NULL;
    if (p) memcpy(q, p, old_bytes < bytes ? old_bytes : bytes);
    dg_mem_free(p);
    return q;
}

char *dg_mem_strndup(const char *s, size_t n) {
    char *p = dg_mem_alloc(n + 1);
    if (!p) return NULL;
    memcpy(p, s, n);
    p[n] = 0;
    return p;
}

char *dg_mem_strdup(const char *s) { return dg_mem_strndup(s, strlen(s)); }

void dg_mem_free(void *p) {
    if (!p) return;
    atomic_fetch_sub(&live, 1);
    free(p);
}

void *dg_arena_take(dg_arena *a, size_t n, size_t size) {
    const size_t bytes = dg_mem_mul(n, size);
    char *p = a->base ? a->base + a->used : NULL;
    if (bytes > SIZE_MAX / 2 || a->used > SIZE_MAX / 2)
        a->used = SIZE_MAX; /* only while counting: no block is that large */
    else
        a->used += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    assert(!a->base || a->used <= a->cap);
    return p;
}
