/* See compare.h.
 *
 * Prompts are paired by category and id. Per cell (arm and category) the figure is the mean, 20 % trimmed, of
 * log(b / a), with Yuen's interval; a verdict other than "no difference" needs an interval without 0.
 * Intervals are simultaneous by Bonferroni's correction: within the overall row over its arms, within the
 * categories over all their cells. */
#include "bench/compare.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/files.h"
#include "bench/provenance.h"
#include "bench/stats.h"

enum { MAX_CATEGORIES = 64 };

typedef struct result {
    const char *path;
    json_t *all, *runs; /* runs: the prompts that were done */
} result;

typedef struct job {
    result a, b;
    bool speed; /* tokens a second instead of the ratio to plain */
    double level;
    const char *category[MAX_CATEGORIES];
    int n_category;
    int n_paired; /* prompts in both */
} job;

typedef struct cell {
    int n;
    double mean;
    stat_interval interval;
    bool has_interval;
} cell;

static bool load(result *r, const char *path) {
    json_error_t e;
    r->path = path;
    r->all = json_load_file(path, 0, &e);
    if (!r->all) {
        fprintf(stderr, "dgraft-bench: %s:%d: %s\n", path, e.line, e.text);
        return false;
    }
    const char *format = json_string_value(json_object_get(r->all, "format"));
    r->runs = json_object_get(r->all, "runs");
    if (format && !strcmp(format, "dgraft-bench 1") && json_is_array(r->runs) &&
        json_is_array(json_object_get(r->all, "arms")))
        return true;
    fprintf(stderr, "dgraft-bench: %s: expected format \"dgraft-bench 1\" with arms and runs, found %s\n",
            path, format ? format : "none");
    return false;
}

static const char *text(const json_t *j, const char *key) {
    const char *s = json_string_value(json_object_get(j, key));
    return s ? s : "";
}

/* The label of the plain arm of the same temperature. */
static const char *plain_of(const json_t *all, const char *label) {
    const json_t *arms = json_object_get(all, "arms"), *mine = NULL;
    for (size_t i = 0; i < json_array_size(arms); i++)
        if (!strcmp(text(json_array_get(arms, i), "label"), label)) mine = json_array_get(arms, i);
    const json_t *heat = json_object_get(mine, "temperature");
    for (size_t i = 0; i < json_array_size(arms); i++) {
        const json_t *arm = json_array_get(arms, i);
        const double t = json_number_value(json_object_get(arm, "temperature"));
        if (!strcmp(text(arm, "mode"), "plain") && t == json_number_value(heat)) return text(arm, "label");
    }
    return "";
}

/* Tokens a second of an arm on a prompt: median over repetitions; NAN if it was not run. */
static double speed(const json_t *run, const char *label) {
    double v[64];
    int n = 0;
    size_t i;
    json_t *record;
    json_array_foreach(json_object_get(run, "records"), i, record) {
        const double seconds = json_number_value(json_object_get(record, "seconds"));
        if (n == 64 || strcmp(text(record, "arm"), label) || !(seconds > 0)) continue;
        v[n++] = json_number_value(json_object_get(record, "tokens")) / seconds;
    }
    return stat_quantile(v, n, 0.5);
}

static double figure(const job *k, const result *r, const json_t *run, const char *label) {
    const double v = speed(run, label);
    const char *plain = plain_of(r->all, label);
    return k->speed || !strcmp(plain, label)
               ? v
               : v / speed(run, plain); /* of plain itself there is only its speed */
}

static const json_t *partner(const result *r, const json_t *run) {
    for (size_t i = 0; i < json_array_size(r->runs); i++) {
        const json_t *other = json_array_get(r->runs, i);
        if (!strcmp(text(other, "prompt"), text(run, "prompt")) &&
            !strcmp(text(other, "category"), text(run, "category")))
            return other;
    }
    return NULL;
}

/* log(b / a) on every prompt of both; category NULL: all. */
static cell compare_cell(const job *k, const char *label, const char *category, double level) {
    cell c = {0};
    double *v = malloc((json_array_size(k->a.runs) + 1) * sizeof *v);
    if (!v) abort();
    for (size_t i = 0; i < json_array_size(k->a.runs); i++) {
        const json_t *run = json_array_get(k->a.runs, i), *other = partner(&k->b, run);
        if (!other || (category && strcmp(text(run, "category"), category))) continue;
        const double d = log(figure(k, &k->b, other, label) / figure(k, &k->a, run, label));
        if (isfinite(d)) v[c.n++] = d;
    }
    c.has_interval = stat_trimmed_mean(v, c.n, level, &c.mean, &c.interval);
    free(v);
    return c;
}

static void collect(job *k) {
    for (size_t i = 0; i < json_array_size(k->a.runs); i++) {
        const json_t *run = json_array_get(k->a.runs, i);
        const char *name = text(run, "category");
        int c = 0;
        if (!partner(&k->b, run)) continue;
        k->n_paired++;
        while (c < k->n_category && strcmp(k->category[c], name)) c++;
        if (c == k->n_category && c < MAX_CATEGORIES) k->category[k->n_category++] = name;
    }
}

static bool in_both(const job *k, const char *label) {
    size_t i;
    json_t *arm;
    json_array_foreach(json_object_get(k->b.all, "arms"), i,
                       arm) if (!strcmp(text(arm, "label"), label)) return true;
    return false;
}

/* ---- output ----------------------------------------------------------------------------------- */

typedef struct tally {
    int cells, different;
} tally;

static void add_row(const job *k, table *t, const char *label, const char *category, double level, tally *n) {
    const cell c = compare_cell(k, label, category, level);
    const char *verdict = "too few prompts";
    if (c.has_interval)
        verdict = c.interval.lo > 0 ? "faster" : c.interval.hi < 0 ? "slower" : "no difference";
    n->cells += c.has_interval;
    n->different += c.has_interval && (c.interval.lo > 0 || c.interval.hi < 0);
    table_add(t, "%s", label);
    table_add(t, "%s", category ? category : "all");
    table_add(t, "%d", c.n);
    table_add(t, "%+.1f %%", 100 * (exp(c.mean) - 1));
    if (c.has_interval)
        table_add(t, "%+.1f..%+.1f %%", 100 * (exp(c.interval.lo) - 1), 100 * (exp(c.interval.hi) - 1));
    else
        table_add(t, "-");
    table_add(t, "%s", verdict);
}

static void print_differences(const job *k) {
    static const char *const key[] = {"program", "machine", "model", "settings", "start", "arms", "skipped"};
    int n = 0;
    for (size_t i = 0; i < sizeof key / sizeof *key; i++) {
        json_t *a = json_pack("{s:O?}", key[i], json_object_get(k->a.all, key[i]));
        json_t *b = json_pack("{s:O?}", key[i], json_object_get(k->b.all, key[i]));
        json_object_del(json_object_get(a, "start"), "time"); /* always differs */
        json_object_del(json_object_get(b, "start"), "time");
        json_t *list = provenance_differences(a, b);
        for (size_t d = 0; d < json_array_size(list); d++, n++) {
            if (!n) puts("\nWhat differs otherwise (A | B)");
            printf("  %.300s\n", json_string_value(json_array_get(list, d)));
        }
        json_decref(list), json_decref(a), json_decref(b);
    }
    if (!n) puts("\nNothing differs otherwise.");
    for (int side = 0; side < 2; side++) {
        size_t i;
        json_t *w;
        json_array_foreach(json_object_get((side ? &k->b : &k->a)->all, "warnings"), i, w)
            printf("warning, %c: %s\n", side ? 'B' : 'A', json_string_value(w));
    }
}

static int report(job *k) {
    const json_t *arms = json_object_get(k->a.all, "arms");
    int n_arm = 0;
    for (size_t i = 0; i < json_array_size(arms); i++)
        n_arm += in_both(k, text(json_array_get(arms, i), "label"));
    collect(k);
    if (!n_arm || !k->n_paired) {
        fprintf(stderr, "dgraft-bench: %s and %s have %s in common\n", k->a.path, k->b.path,
                n_arm ? "no prompts" : "no arms");
        return 1;
    }
    static const char *const name[] = {"arm", "category", "prompts", "B against A", "interval", "verdict"};
    table t = {.n_col = 6};
    tally overall = {0}, categories = {0};
    for (int i = 0; i < 6; i++) table_add(&t, "%s", name[i]);
    for (int c = -1; c < k->n_category; c++)
        for (size_t i = 0; i < json_array_size(arms); i++) {
            const char *label = text(json_array_get(arms, i), "label");
            const int cells = c < 0 ? n_arm : n_arm * k->n_category;
            if (in_both(k, label))
                add_row(k, &t, label, c < 0 ? NULL : k->category[c], 1 - (1 - k->level) / cells,
                        c < 0 ? &overall : &categories);
        }
    printf("A %s\nB %s\n%s, plain itself: tokens/s; %d prompts in both\n\n", k->a.path, k->b.path,
           k->speed ? "tokens/s" : "ratio to plain decoding", k->n_paired);
    table_print(&t, stdout, false);
    printf("\noverall: %d of %d arms differ; by category: %d of %d cells differ\n", overall.different,
           overall.cells, categories.different, categories.cells);
    printf("Mean (20 %% trimmed) of log(B/A) over prompts with Yuen's interval; %.4g %% for all arms of the "
           "overall row together and for all "
           "cells of the categories together (Bonferroni: %d and %d).\n",
           100 * k->level, n_arm, n_arm * k->n_category);
    print_differences(k);
    return 0;
}

int bench_compare(int argc, char **argv) {
    job k = {.level = 0.95};
    const char *path[2];
    int n = 0;
    for (int i = 0; i < argc; i++) {
        if (!strcmp(argv[i], "--by") && i + 1 < argc &&
            (!strcmp(argv[i + 1], "speed") || !strcmp(argv[i + 1], "ratio"))) {
            k.speed = !strcmp(argv[++i], "speed");
        } else if (argv[i][0] != '-' && n < 2) {
            path[n++] = argv[i];
        } else {
            n = -1;
            break;
        }
    }
    if (n != 2) {
        fputs("usage: dgraft-bench compare [--by ratio|speed] A.json B.json\n", stderr);
        return 2;
    }
    const int status = load(&k.a, path[0]) && load(&k.b, path[1]) ? report(&k) : 1;
    json_decref(k.a.all), json_decref(k.b.all);
    return status;
}
