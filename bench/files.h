/* Files that are whole or not there, tables, and failures to write that are told. */
#ifndef DG_BENCH_FILES_H
#define DG_BENCH_FILES_H

#include <stdbool.h>
#include <stdio.h>

typedef struct bench_file {
    FILE *f;
    char path[1024], written[1040]; /* the name it gets; the one it has until then */
} bench_file;

/* Opens dir/name for writing, under another name until it is whole. False with a message on standard error.
 */
bool bench_file_open(bench_file *f, const char *dir, const char *name);

/* Ends it; false with a message (no space left, ...), and then the file that was there before is still there.
 */
bool bench_file_close(bench_file *f);

/* Makes a folder and those above it. False with a message. */
bool bench_folder(const char *path);

/* ---- tables ----------------------------------------------------------------------------------- */

enum { TABLE_COLUMNS = 24, TABLE_CELL = 96 };

typedef struct table {
    int n_col, n;             /* n: cells */
    char (*cell)[TABLE_CELL]; /* [n], row by row, the heading first */
} table;

/* Adds one cell. */
void table_add(table *t, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Columns aligned for a terminal, or Markdown. Empties the table. */
void table_print(table *t, FILE *f, bool markdown);

#endif
