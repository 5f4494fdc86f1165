/* What every test binary shares: cmocka with its includes, near-comparison that prints the worst element, and
 * access to the golden vectors (folder from $GOLDEN, ../shared/golden by default). */
#ifndef DG_TESTS_TEST_H
#define DG_TESTS_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "kernels/tensor.h"
#include "runtime/file.h"
#include "runtime/mem.h"

/* Fails with the message when st is not DG_OK. */
#define check_ok(expr) check_ok_at((expr), #expr, __FILE__, __LINE__)
void check_ok_at(dg_status st, const char *expr, const char *file, int line);

/* expr must fail with `code` and the message must contain `part` (NULL: any). */
#define check_fails(expr, code, part) check_fails_at((expr), (code), (part), #expr, __FILE__, __LINE__)
void check_fails_at(dg_status st, dg_status code, const char *part, const char *expr, const char *file,
                    int line);

/* Every |got - want| <= tol (and same NaN/inf); otherwise fails and prints the worst element. */
#define check_near(got, want, n, tol, what) check_near_at((got), (want), (n), (tol), (what), __FILE__, __LINE__)
void check_near_at(const float *got, const float *want, size_t n, double tol, const char *what,
                   const char *file, int line);

/* "GOLDEN/part"; a static buffer that the next-but-seven call overwrites. */
const char *golden_path(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* For group setup: true when the golden folder holds `part`. Without it: fails where CI=true, else prints
 * "SKIP: ..." once and returns false; tests then call skip(). */
bool golden_have(const char *part);

/* models/SmolLM2-135M-Instruct.Q4_1.gguf, or NULL under the same rule. */
const char *smollm2_path(void);

json_t *golden_json(const char *fmt, ...) __attribute__((format(printf, 1, 2)));      /* asserts */
dg_file *golden_tensors(const char *fmt, ...) __attribute__((format(printf, 1, 2)));  /* asserts */

/* f32 data of a tensor that must exist; *n = its element count (may be NULL). */
const float *golden_f32(const dg_file *f, const char *name, size_t *n);

/* A JSON array of integers as a malloc'ed int32 array. */
int32_t *json_ints(const json_t *array, size_t *n);

/* Deterministic pseudo-random numbers for tests: uniform in [-1, 1). */
float test_random(uint64_t *state);

/* A fresh temporary directory (removed by the caller, or left to the system). */
const char *test_tmpdir(void);

/* The device that this binary tests, for dg_model_options; NULL: the CPU. */
const char *test_device(void);

/* For the beginning of main: the device that the binary tests is not there. Says why; the binary then counts as skipped. */
bool device_missing(void);

/* The rows of an f32 matrix one after another in host memory; valid until the next call but three. */
struct dg_backend;
const float *host_rows(struct dg_backend *be, dg_mat m);

/* The committed rows of one layer of a key/value cache as f32, K or V: [len, width]; free it. */
struct dg_kv;
float *kv_rows(struct dg_backend *be, const struct dg_kv *kv, int32_t layer, bool values);

#endif
