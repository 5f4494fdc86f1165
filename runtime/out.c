/* Buffered writing to a temporary name; see out.h. */
#include "runtime/out.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "runtime/mem.h"

enum { BUFFER = 1 << 16 };

struct dg_out {
    char *path, *part; /* the final and the temporary name */
    int fd;
    dg_status status;
    size_t n; /* bytes in the buffer */
    uint64_t size;
    char buffer[BUFFER];
};

static void out_free(dg_out *o) {
    dg_mem_free(o->path);
    dg_mem_free(o->part);
    dg_mem_free(o);
}

dg_status dg_out_open(const char *path, dg_out **out) {
    dg_out *o = dg_mem_alloc(sizeof *o);
    const size_t cap = strlen(path) + 32;
    char *name = dg_mem_strdup(path), *part = dg_mem_alloc(cap);
    if (!o || !name || !part) {
        dg_mem_free(o), dg_mem_free(name), dg_mem_free(part);
        DG_FAIL(DG_ERR_MEMORY, "%s: no memory to write it", path);
    }
    o->path = name, o->part = part;
    o->status = DG_OK, o->n = 0, o->size = 0;
    snprintf(part, cap, "%s.part%ld", path, (long)getpid());
    o->fd = open(part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (o->fd < 0) {
        const dg_status st = dg_fail(DG_ERR_IO, "%s: cannot create %s: %s", path, part, strerror(errno));
        out_free(o);
        return st;
    }
    *out = o;
    return DG_OK;
}

static void flush(dg_out *o) {
    for (size_t at = 0; at < o->n && o->status == DG_OK;) {
        const ssize_t n = write(o->fd, o->buffer + at, o->n - at);
        if (n >= 0)
            at += (size_t)n;
        else if (errno != EINTR)
            o->status = dg_fail(DG_ERR_IO, "%s: cannot write: %s", o->path, strerror(errno));
    }
    o->n = 0;
}

void dg_out_write(dg_out *o, const void *p, size_t n) {
    const char *c = p;
    o->size += n;
    while (n > 0 && o->status == DG_OK) {
        const size_t room = BUFFER - o->n, take = n < room ? n : room;
        memcpy(o->buffer + o->n, c, take);
        o->n += take, c += take, n -= take;
        if (o->n == BUFFER) flush(o);
    }
}

void dg_out_pad(dg_out *o, size_t alignment) {
    static const char zero[64];
    size_t n = (alignment - o->size % alignment) % alignment;
    while (n > 0) {
        const size_t take = n < sizeof zero ? n : sizeof zero;
        dg_out_write(o, zero, take);
        n -= take;
    }
}

dg_status dg_out_status(const dg_out *o) { return o->status; }

dg_status dg_out_commit(dg_out *o) {
    flush(o);
    dg_status st = o->status;
    /* The data before the name: a crash must not leave a complete-looking file. */
    if (st == DG_OK && fsync(o->fd) != 0 && errno != EINVAL && errno != ENOTSUP)
        st = dg_fail(DG_ERR_IO, "%s: cannot write: %s", o->path, strerror(errno));
    if (close(o->fd) != 0 && st == DG_OK)
        st = dg_fail(DG_ERR_IO, "%s: cannot write: %s", o->path, strerror(errno));
    if (st == DG_OK && rename(o->part, o->path) != 0)
        st = dg_fail(DG_ERR_IO, "%s: cannot rename %s to it: %s", o->path, o->part, strerror(errno));
    if (st != DG_OK) unlink(o->part);
    out_free(o);
    return st;
}

void dg_out_abandon(dg_out *o) {
    if (!o) return;
    close(o->fd);
    unlink(o->part);
    out_free(o);
}
