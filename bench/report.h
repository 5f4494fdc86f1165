/* What the user and the paper get: tables for the terminal and Markdown, CSV, JSON. */
#ifndef DG_BENCH_REPORT_H
#define DG_BENCH_REPORT_H

#include <jansson.h>
#include <stdio.h>

#include "bench/run.h"

/* All tables. */
void report_tables(const bench_run *r, FILE *f, bool markdown);

/* One row per arm and category ("all": overall). */
void report_csv(const bench_run *r, const json_t *about, FILE *f);

/* Everything but the records of single prompts: setup, state, cost curve, warnings, summary. New reference.
 */
json_t *report_json(const bench_run *r, const json_t *setup, const json_t *start, const json_t *end,
                    const json_t *command);

/* The lines that stand above the tables in a file: what, where, when, with which command. */
void report_heading(const bench_run *r, const json_t *about, FILE *f, const char *prefix);

#endif
