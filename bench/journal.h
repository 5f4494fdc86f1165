/* partial.jsonl: what an interrupted run keeps, a line a prompt. The first line says of what run. */
#ifndef DG_BENCH_JOURNAL_H
#define DG_BENCH_JOURNAL_H

#include <jansson.h>

#include "bench/run.h"

typedef struct bench_journal {
    FILE *f;
    char path[1024];
    json_t *start, *resumed; /* state of the machine at the start and at each resumption; owned */
} bench_journal;

/* True if dir holds the journal of an interrupted run. */
bool journal_exists(const char *dir);

/* Begins a journal with the setup, the state and what was measured of the machine. False with a message. */
bool journal_begin(bench_journal *j, const char *dir, const bench_run *r, const json_t *setup, json_t *start);

/* Goes on with one: takes cost, bandwidth and finished prompts into r. Refuses one of another setup and says
 * what differs. A last line that is not whole is dropped. False with a message. */
bool journal_resume(bench_journal *j, const char *dir, bench_run *r, const json_t *setup, json_t *state);

/* Adds a line and sees it to the disk; on failure false with a message, and the journal ends with the line
 * before. */
bool journal_add(bench_journal *j, const json_t *line);

/* Writes the finished prompts, one JSON object a line with commas between. False if they cannot be read. */
bool journal_copy(const bench_journal *j, FILE *to);

/* done: the results are written elsewhere, and the journal goes. */
void journal_close(bench_journal *j, bool done);

#endif
