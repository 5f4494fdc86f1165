/* Growing bytes: text that is built piece by piece. */
#ifndef DG_BUFFER_H
#define DG_BUFFER_H

#include "runtime/status.h"

enum { DG_MAX_TEXT = 1 << 30 }; /* bytes a buffer may hold, so that positions fit in 32 bits */

typedef struct dg_buffer {
    char *p; /* free with dg_mem_free */
    size_t n, cap;
} dg_buffer;

/* MEMORY; ARGUMENT when it would hold more than DG_MAX_TEXT. */
dg_status dg_buffer_reserve(dg_buffer *b, size_t more);
dg_status dg_buffer_add(dg_buffer *b, const char *s, size_t len);

#endif
