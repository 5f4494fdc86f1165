/* A file that appears under its name only when it is complete: it grows under a temporary name beside it and
 * is renamed at the end. Knows nothing of what is written.
 *
 * Write errors stick: after the first one writes do nothing, and dg_out_commit returns it. */
#ifndef DG_OUT_H
#define DG_OUT_H

#include "runtime/status.h"

typedef struct dg_out dg_out;

/* Creates PATH.partPID. Errors: IO (naming the file), MEMORY. */
dg_status dg_out_open(const char *path, dg_out **out);
void dg_out_write(dg_out *o, const void *p, size_t n);
void dg_out_pad(dg_out *o, size_t alignment); /* zeros up to the next multiple */
dg_status dg_out_status(const dg_out *o);

/* Flushes and renames, replacing what was there. Frees o in any case; on failure nothing stays behind. */
dg_status dg_out_commit(dg_out *o);
/* Removes what was written and frees o; NULL is fine. */
void dg_out_abandon(dg_out *o);

#endif
