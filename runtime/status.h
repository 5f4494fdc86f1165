/* Error handling: codes are public (dgraft.h), the message of the last failure is per thread.
 *
 * A function that can fail for a reason outside our code returns dg_status, leaves its outputs untouched
 * on failure and leaks nothing. Bugs are asserts. */
#ifndef DG_STATUS_H
#define DG_STATUS_H

#include "runtime/dgraft.h"

/* Formats this thread's message and returns code. */
dg_status dg_fail(dg_status code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Puts "prefix: " before this thread's message and returns code; for adding a file name on the way up. */
dg_status dg_fail_prefix(dg_status code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define DG_TRY(expr)                                                                               \
    do {                                                                                           \
        const dg_status try_ = (expr);                                                             \
        if (try_ != DG_OK) return try_;                                                            \
    } while (0)

/* The code is returned as written, so that the compiler sees that it is not DG_OK. */
#define DG_FAIL(code, ...)                                                                         \
    do {                                                                                           \
        dg_fail((code), __VA_ARGS__);                                                              \
        return (code);                                                                             \
    } while (0)

#define DG_CHECK(cond, code, ...)                                                                  \
    do {                                                                                           \
        if (!(cond)) DG_FAIL((code), __VA_ARGS__);                                                 \
    } while (0)

#endif
