/* Status codes, their names and the thread's last message. */
#include "runtime/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char message[1024];

const char *dg_status_name(dg_status code) {
    static const char *const name[] = {
        "ok",     "argument", "io",           "format",    "unsupported",
        "memory", "device",   "context full", "cancelled", "internal",
    };
    return (unsigned)code < sizeof name / sizeof *name ? name[code] : "unknown";
}

const char *dg_error_message(void) { return message; }

dg_status dg_fail(dg_status code, const char *fmt, ...) {
    /* format aside first: an argument may be the old message */
    char text[sizeof message];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    memcpy(message, text, sizeof message);
    return code;
}

dg_status dg_fail_prefix(dg_status code, const char *fmt, ...) {
    char text[sizeof message];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (n < 0) n = 0;
    if ((size_t)n < sizeof text) snprintf(text + n, sizeof text - (size_t)n, ": %s", message);
    memcpy(message, text, sizeof message);
    return code;
}
