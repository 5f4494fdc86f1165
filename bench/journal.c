/* See journal.h. */
#include "bench/journal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench/provenance.h"

static bool fail(const char *path, const char *what) {
    fprintf(stderr, "dgraft-bench: %s: %s\n", path, what);
    return false;
}

static void name(bench_journal *j, const char *dir) {
    *j = (bench_journal){.resumed = json_array()};
    snprintf(j->path, sizeof j->path, "%s/partial.jsonl", dir);
}

bool journal_exists(const char *dir) {
    bench_journal j;
    struct stat st;
    name(&j, dir);
    json_decref(j.resumed);
    return !stat(j.path, &st) && st.st_size > 0;
}

bool journal_add(bench_journal *j, const json_t *line) {
    const long before = ftell(j->f);
    const bool ok = !json_dumpf(line, j->f, JSON_COMPACT) && fputc('\n', j->f) != EOF && !fflush(j->f) &&
                    (!fsync(fileno(j->f)) || errno == EINVAL || errno == EROFS);
    if (ok) return true;
    fail(j->path, strerror(errno));
    if (before >= 0 && ftruncate(fileno(j->f), before))
        errno = 0; /* a broken line at the end is dropped on resuming too */
    return false;
}

bool journal_begin(bench_journal *j, const char *dir, const bench_run *r, const json_t *setup,
                   json_t *start) {
    name(j, dir);
    j->start = json_incref(start);
    j->f = fopen(j->path, "w");
    if (!j->f) return fail(j->path, strerror(errno));
    json_t *cost = json_array();
    for (int i = 0; i < r->n_cost; i++)
        json_array_append_new(cost, json_pack("[i,i,f,f,f]", r->cost[i].rows, r->cost[i].len,
                                              r->cost[i].median, r->cost[i].least, r->cost[i].most));
    json_t *head = json_pack("{s:O,s:O,s:o,s:f}", "setup", setup, "start", start, "cost", cost, "copy",
                             r->copy_bandwidth);
    const bool ok = journal_add(j, head);
    json_decref(head);
    return ok;
}

/* ---- resuming --------------------------------------------------------------------------------- */

static bool take_head(bench_journal *j, bench_run *r, const json_t *head, const json_t *setup) {
    const json_t *was = json_object_get(head, "setup"), *cost = json_object_get(head, "cost");
    if (!was) return fail(j->path, "its first line is not a setup: it is no journal of this program");
    json_t *differences = provenance_differences(was, setup);
    const size_t n = json_array_size(differences);
    for (size_t i = 0; i < n && i < 8; i++)
        fprintf(stderr, "  %s\n", json_string_value(json_array_get(differences, i)));
    json_decref(differences);
    if (n)
        return fail(j->path,
                    "is of another run (then | now); give the same options, or --fresh to begin anew");
    j->start = json_incref(json_object_get(head, "start"));
    r->copy_bandwidth = json_number_value(json_object_get(head, "copy"));
    for (r->n_cost = 0; r->n_cost < BENCH_COSTS && (size_t)r->n_cost < json_array_size(cost); r->n_cost++) {
        bench_cost *c = &r->cost[r->n_cost];
        if (json_unpack(json_array_get(cost, (size_t)r->n_cost), "[i,i,F,F,F]", &c->rows, &c->len, &c->median,
                        &c->least, &c->most))
            return fail(j->path, "the cost curve in its first line is damaged");
    }
    return true;
}

/* Reads line by line; *whole is where the last good line ends. */
static bool read_lines(bench_journal *j, bench_run *r, const json_t *setup, long *whole) {
    char *line = NULL;
    size_t cap = 0;
    bool ok = true;
    ssize_t len;
    for (int n = 1; ok && (len = getline(&line, &cap, j->f)) > 0; n++) {
        json_t *v = line[len - 1] == '\n' ? json_loads(line, 0, NULL) : NULL;
        if (!v) break; /* it was being written when the run ended */
        const json_t *state = json_object_get(v, "resumed"), *records = json_object_get(v, "records");
        if (n == 1)
            ok = take_head(j, r, v, setup);
        else if (state)
            json_array_append(j->resumed, (json_t *)state);
        else if (!bench_restore_prompt(r, records))
            ok = fail(j->path, "a line does not belong to this run; --fresh begins anew");
        json_decref(v);
        *whole += len;
    }
    free(line);
    return ok && (j->start || fail(j->path, "it has no first line; --fresh begins anew"));
}

bool journal_resume(bench_journal *j, const char *dir, bench_run *r, const json_t *setup, json_t *state) {
    name(j, dir);
    j->f = fopen(j->path, "r+");
    if (!j->f) return fail(j->path, strerror(errno));
    long whole = 0;
    if (!read_lines(j, r, setup, &whole)) return false;
    if (fseek(j->f, whole, SEEK_SET) || ftruncate(fileno(j->f), whole)) return fail(j->path, strerror(errno));
    json_t *line = json_pack("{s:O}", "resumed", state);
    json_array_append(j->resumed, state);
    const bool ok = journal_add(j, line);
    json_decref(line);
    return ok;
}

bool journal_copy(const bench_journal *j, FILE *to) {
    FILE *f = fopen(j->path, "r");
    if (!f) return fail(j->path, strerror(errno));
    char *line = NULL;
    size_t cap = 0;
    int n = 0;
    while (getline(&line, &cap, f) > 0)
        if (!strncmp(line, "{\"prompt\"", 9)) {
            line[strcspn(line, "\n")] = 0;
            fprintf(to, "%s%s", n++ ? ",\n" : "\n", line);
        }
    free(line);
    const bool ok = !ferror(f);
    fclose(f);
    return ok || fail(j->path, strerror(errno));
}

void journal_close(bench_journal *j, bool done) {
    if (j->f) fclose(j->f);
    if (done) remove(j->path);
    json_decref(j->start), json_decref(j->resumed);
    *j = (bench_journal){0};
}
