/* Growing bytes; see buffer.h. */
#include "runtime/buffer.h"

#include <string.h>

#include "runtime/mem.h"

dg_status dg_buffer_reserve(dg_buffer *b, size_t more) {
    if (more <= b->cap - b->n) return DG_OK;
    DG_CHECK(more <= DG_MAX_TEXT && b->n + more <= DG_MAX_TEXT, DG_ERR_ARGUMENT,
             "a text of more than %d bytes", DG_MAX_TEXT);
    const size_t half_more = b->cap + b->cap / 2, cap = b->n + more > half_more ? b->n + more : half_more;
    char *p = dg_mem_grow(b->p, b->n, cap);
    DG_CHECK(p, DG_ERR_MEMORY, "no memory for %zu bytes of text", cap);
    b->p = p;
    b->cap = cap;
    return DG_OK;
}

dg_status dg_buffer_add(dg_buffer *b, const char *s, size_t len) {
    DG_TRY(dg_buffer_reserve(b, len));
    if (len) memcpy(b->p + b->n, s, len);
    b->n += len;
    return DG_OK;
}
