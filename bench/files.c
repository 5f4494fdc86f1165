/* See files.h. */
#include "bench/files.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool fail(const char *path) {
    fprintf(stderr, "dgraft-bench: %s: %s\n", path, strerror(errno));
    return false;
}

bool bench_file_open(bench_file *f, const char *dir, const char *name) {
    snprintf(f->path, sizeof f->path, "%s/%s", dir, name);
    snprintf(f->written, sizeof f->written, "%s.new", f->path);
    f->f = fopen(f->written, "w");
    return f->f || fail(f->written);
}

bool bench_file_close(bench_file *f) {
    const bool flushed = !fflush(f->f) && !ferror(f->f);
    const int why = errno;
    const bool closed = !fclose(f->f);
    f->f = NULL;
    if (flushed && closed) return !rename(f->written, f->path) || fail(f->path);
    if (!flushed) errno = why;
    fail(f->path);
    remove(f->written);
    return false;
}

bool bench_folder(const char *path) {
    char part[1024];
    snprintf(part, sizeof part, "%s", path);
    for (char *p = part + 1;; p++) {
        if (*p && *p != '/') continue;
        const char end = *p;
        *p = 0;
        if (mkdir(part, 0777) && errno != EEXIST) return fail(part);
        *p = end;
        if (!end) return true;
    }
}

/* ---- tables ----------------------------------------------------------------------------------- */

void table_add(table *t, const char *format, ...) {
    char(*more)[TABLE_CELL] = realloc(t->cell, ((size_t)t->n + 1) * sizeof *more);
    if (!more) abort();
    t->cell = more;
    va_list args;
    va_start(args, format);
    vsnprintf(t->cell[t->n++], TABLE_CELL, format, args);
    va_end(args);
}

/* Columns on a screen: bytes that begin a UTF-8 character. */
static int width_of(const char *s) {
    int n = 0;
    for (; *s; s++) n += (*s & 0xc0) != 0x80;
    return n;
}

static void pad(FILE *f, int n) {
    for (; n > 0; n--) fputc(' ', f);
}

void table_print(table *t, FILE *f, bool markdown) {
    int width[TABLE_COLUMNS] = {0};
    for (int i = 0; i < t->n; i++) {
        const int w = width_of(t->cell[i]);
        if (w > width[i % t->n_col]) width[i % t->n_col] = w;
    }
    for (int r = 0; r < t->n / t->n_col; r++) {
        for (int c = 0; c < t->n_col; c++) {
            const char *s = t->cell[r * t->n_col + c];
            fputs(markdown ? (c ? " | " : "| ") : (c ? "  " : ""), f);
            const int room = markdown ? 0 : width[c] - width_of(s);
            if (c) pad(f, room);
            fputs(s, f);
            if (!c) pad(f, room);
        }
        fputs(markdown ? " |\n" : "\n", f);
        for (int c = 0; markdown && !r && c < t->n_col; c++) fputs(c ? "---:|" : "|---|", f);
        if (markdown && !r) fputc('\n', f);
    }
    free(t->cell);
    *t = (table){0};
}
