/* Host memory: checked allocation, the session's arena, the guard against allocation in a round, and the
 * hook by which a test fails the n-th allocation.
 *
 * All host allocation of the library goes through here (PCRE2 and the backend included), but for the values of
 * jansson, which cannot bear a failing allocation; see dg_json_parse. */
#ifndef DG_MEM_H
#define DG_MEM_H

#include <stddef.h>
#include <stdint.h>

#include "runtime/status.h"

/* 64-byte aligned, NULL when there is none (or the test hook says so). Sizes of 0 give a valid pointer. */
void *dg_mem_alloc(size_t bytes);
void *dg_mem_calloc(size_t n, size_t size); /* overflow-checked, zeroed */
/* Grows or shrinks; old_bytes is what p was allocated with (copied up to the smaller of both). */
void *dg_mem_grow(void *p, size_t old_bytes, size_t bytes);
char *dg_mem_strdup(const char *s);
char *dg_mem_strndup(const char *s, size_t n); /* NUL-terminated copy of n bytes */
void dg_mem_free(void *p);                     /* NULL is fine */

/* n * size with overflow check; SIZE_MAX on overflow (which no allocation satisfies). */
size_t dg_mem_mul(size_t n, size_t size);

/* Between begin and end this thread must not allocate: dg_mem_alloc aborts there in test builds. */
void dg_mem_guard_begin(void);
void dg_mem_guard_end(void);

/* Test hook: the n-th allocation from now on (1 = the next) fails, and every later one too when `onward`.
 * n = 0 switches it off. Returns the allocations made by all threads since the last call. */
uint64_t dg_mem_fail_nth(uint64_t n, int onward);

/* Live allocations, for leak checks in tests. */
int64_t dg_mem_live(void);

/* Bump allocator. The same layout code runs twice: first with base == NULL, which only counts (and hands
 * out NULL), then on a block of `used` bytes. Everything in it is freed at once with the block. */
typedef struct dg_arena {
    char *base;
    size_t used, cap;
} dg_arena;

/* n * size bytes, 64-byte aligned; NULL while counting. What overflows makes `used` more than dg_mem_alloc gives. */
void *dg_arena_take(dg_arena *a, size_t n, size_t size);

#endif
