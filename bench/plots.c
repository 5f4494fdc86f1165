/* See plots.h. Files hold a block for each arm, family or category, two empty lines between blocks; vars.gp
 * has their names. */
#include "bench/plots.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/files.h"
#include "bench/summary.h"

enum { MAX_SOURCES = 32 };

static const char *const plot[] = {"speedup", "position", "tau", "calibration", "stages", "cost", "context"};

typedef struct names {
    const char *source[MAX_SOURCES]; /* of all arms */
    int n_source;
    const char *family[BENCH_ARMS];
    int n_family;
} names;

typedef struct drafting { /* arms that are not plain */
    const bench_run *run;
    int arm[BENCH_ARMS], n;
} drafting;

static int index_of(const char *const *list, int n, const char *name) {
    int i = 0;
    while (i < n && strcmp(list[i], name)) i++;
    return i;
}

static int source_index(const names *k, const char *name) {
    return index_of(k->source, k->n_source, name);
}

static void collect(const bench_run *r, names *k) {
    for (int i = 0; i < r->arms.n; i++) {
        const bench_arm *a = &r->arms.v[i];
        for (int d = 0; d < (int)a->n_draft; d++)
            if (source_index(k, a->draft[d].name) == k->n_source && k->n_source < MAX_SOURCES)
                k->source[k->n_source++] = a->draft[d].name;
        if (a->n_draft && index_of(k->family, k->n_family, a->family) == k->n_family)
            k->family[k->n_family++] = a->family;
    }
}

static void next_block(FILE *f) {
    fputs("\n\n", f);
}

/* ---- data ------------------------------------------------------------------------------------- */

/* Names as an array of gnuplot. */
static void put_names(FILE *f, const char *what, int n, const char *(*get)(const void *, int),
                      const void *of) {
    fprintf(f, "n_%s = %d\narray a_%s[%d]\n", what, n, what, n ? n : 1);
    for (int i = 0; i < n; i++) {
        fprintf(f, "a_%s[%d] = \"", what, i + 1);
        for (const char *p = get(of, i); *p; p++)
            if (*p != '"' && *p != '\\' && *p != '`') fputc(*p, f);
        fputs("\"\n", f);
    }
}

static const char *arm_name(const void *r, int i) {
    return ((const bench_run *)r)->arms.v[i].label;
}
static const char *drafting_name(const void *d, int i) {
    const drafting *of = d;
    return of->run->arms.v[of->arm[i]].label;
}
static const char *category_of(const void *r, int i) {
    return ((const bench_run *)r)->category[i];
}
static const char *source_of(const void *k, int i) {
    return ((const names *)k)->source[i];
}
static const char *family_of(const void *k, int i) {
    return ((const names *)k)->family[i];
}

static void write_vars(const bench_run *r, const names *k, FILE *f) {
    put_names(f, "arm", r->arms.n, arm_name, r);
    drafting d = {.run = r};
    for (int i = 0; i < r->arms.n; i++)
        if (r->arms.v[i].n_draft) d.arm[d.n++] = i;
    put_names(f, "drafting", d.n, drafting_name, &d);
    put_names(f, "category", r->n_category, category_of, r);
    put_names(f, "source", k->n_source, source_of, k);
    put_names(f, "family", k->n_family, family_of, k);
}

/* Blocks: all, then each category. arm, ratio, low, high */
static void write_speedup(const bench_run *r, const names *k, FILE *f) {
    (void)k;
    for (int c = -1; c < r->n_category; c++) {
        for (int i = 0; i < r->arms.n; i++) {
            const summary s = bench_summary(r, i, c);
            const bool one = isnan(s.interval.lo); /* too few prompts for an interval */
            if (s.prompts)
                fprintf(f, "%d %.5f %.5f %.5f\n", i + 1, s.ratio, one ? s.ratio : s.interval.lo,
                        one ? s.ratio : s.interval.hi);
        }
        next_block(f);
    }
}

/* Blocks: arms that draft. position, share of rounds in which it was accepted from each source */
static void write_position(const bench_run *r, const names *k, FILE *f) {
    for (int i = 0; i < r->arms.n; i++) {
        if (!r->arms.v[i].n_draft) continue;
        const summary s = bench_summary(r, i, -1);
        for (int d = 1; d <= 16; d++) {
            double share[MAX_SOURCES] = {0};
            for (int x = 0; x < (int)r->arms.v[i].n_draft && s.prompts; x++)
                share[source_index(k, r->arms.v[i].draft[x].name)] +=
                    (double)s.sum.accepted[d][x] / (double)s.sum.rounds;
            fprintf(f, "%d", d);
            for (int x = 0; x < k->n_source; x++) fprintf(f, " %.5f", share[x]);
            fputc('\n', f);
        }
        next_block(f);
    }
}

static int by_nodes(const void *x, const void *y) {
    const double a = ((const double *)x)[0], b = ((const double *)y)[0];
    return (a > b) - (a < b);
}

/* Blocks: families. drafted nodes verified a round, tau, tau without bonus */
static void write_tau(const bench_run *r, const names *k, FILE *f) {
    for (int m = 0; m < k->n_family; m++) {
        double point[BENCH_ARMS][3];
        size_t n = 0;
        for (int i = 0; i < r->arms.n; i++) {
            const summary s = bench_summary(r, i, -1);
            if (strcmp(r->arms.v[i].family, k->family[m]) || !s.prompts) continue;
            point[n][0] = s.rows - 1, point[n][1] = s.tau, point[n++][2] = s.drafted;
        }
        qsort(point, n, sizeof *point, by_nodes);
        for (size_t i = 0; i < n; i++) fprintf(f, "%.4f %.4f %.4f\n", point[i][0], point[i][1], point[i][2]);
        next_block(f);
    }
}

/* Blocks: arms that draft. promised, accepted, nodes tested, source */
static void write_calibration(const bench_run *r, const names *k, FILE *f) {
    for (int i = 0; i < r->arms.n; i++) {
        if (!r->arms.v[i].n_draft) continue;
        const summary s = bench_summary(r, i, -1);
        fputs("-1 -1 0 0\n", f); /* no block is empty */
        for (int d = 0; d < (int)r->arms.v[i].n_draft; d++)
            for (int b = 0; b < SAMPLE_BINS; b++) {
                const double tested = (double)s.sum.bin[d][b].tested;
                if (tested >= 5)
                    fprintf(f, "%.5f %.5f %.0f %d\n", s.sum.bin[d][b].promised / tested,
                            (double)s.sum.bin[d][b].accepted / tested, tested,
                            source_index(k, r->arms.v[i].draft[d].name) + 1);
            }
        next_block(f);
    }
}

/* arm, draft, verify, rest in ms of a round */
static void write_stages(const bench_run *r, const names *k, FILE *f) {
    (void)k;
    for (int i = 0; i < r->arms.n; i++) {
        const summary s = bench_summary(r, i, -1);
        if (s.prompts) fprintf(f, "%d %.5f %.5f %.5f\n", i + 1, s.draft_ms, s.verify_ms, s.rest_ms);
    }
}

/* Blocks: the curve (rows, ms, least, most); then arms (rows a round, ms of verifying, 10th and 90th
 * percentile of rows) */
static void write_cost(const bench_run *r, const names *k, FILE *f) {
    (void)k;
    for (int i = 0; i < r->n_cost; i++)
        fprintf(f, "%d %.5f %.5f %.5f\n", r->cost[i].rows, 1e3 * r->cost[i].median, 1e3 * r->cost[i].least,
                1e3 * r->cost[i].most);
    if (!r->n_cost) fputs("1 0 0 0\n", f);
    next_block(f);
    for (int i = 0; i < r->arms.n; i++) {
        const summary s = bench_summary(r, i, -1);
        double sum = 0, low = 0, high = 0;
        for (int n = 0; n < SAMPLE_ROWS; n++) {
            const double before = sum;
            sum += (double)s.sum.row_count[n];
            if (before <= 0.1 * (double)s.sum.rounds && sum > 0.1 * (double)s.sum.rounds) low = n;
            if (before <= 0.9 * (double)s.sum.rounds && sum > 0.9 * (double)s.sum.rounds) high = n;
        }
        fprintf(f, "%.4f %.5f %.0f %.0f\n", s.prompts ? s.rows : -1, s.verify_ms, low, high);
        next_block(f);
    }
}

/* Blocks: arms. tokens of text before the round, tokens/s */
static void write_context(const bench_run *r, const names *k, FILE *f) {
    (void)k;
    for (int i = 0; i < r->arms.n; i++) {
        const summary s = bench_summary(r, i, -1);
        fputs("-1 -1\n", f);
        for (int c = 0; c < SAMPLE_CONTEXTS; c++)
            if (s.sum.at[c].tokens >= 8)
                fprintf(f, "%.1f %.4f\n", sample_context_low(c) * 1.19,
                        (double)s.sum.at[c].tokens / s.sum.at[c].seconds);
        next_block(f);
    }
}

/* ---- files ------------------------------------------------------------------------------------ */

static bool write_one(const bench_run *r, const names *k, const char *dir, const char *name,
                      void (*write)(const bench_run *, const names *, FILE *)) {
    bench_file f;
    if (!bench_file_open(&f, dir, name)) return false;
    write(r, k, f.f);
    return bench_file_close(&f);
}

/* 's in a shell word that is quoted with ' */
static bool harmless(const char *path) {
    return !strpbrk(path, "'\"`\\");
}

static bool draw(const char *dir, const char *scripts) {
    char command[4096], script[1024];
    snprintf(script, sizeof script, "%s/style.gp", scripts);
    if (access(script, R_OK) || !harmless(dir) || !harmless(scripts)) {
        fprintf(stderr, "dgraft-bench: no plots: %s is not there (--scripts DIR)\n", script);
        return true;
    }
    if (system("command -v gnuplot >/dev/null 2>&1")) {
        fputs("dgraft-bench: no plots: gnuplot is missing\n", stderr);
        return true;
    }
    for (size_t i = 0; i < sizeof plot / sizeof *plot; i++)
        for (int e = 0; e < 2; e++) {
            snprintf(
                command, sizeof command,
                "gnuplot -e \"dir='%s'; gp='%s'; ext='%s'; name='%s'\" '%s/%s.gp' >'%s/plots/%s.log' 2>&1",
                dir, scripts, e ? "svg" : "png", plot[i], scripts, plot[i], dir, plot[i]);
            if (!system(command)) continue;
            fprintf(stderr, "dgraft-bench: gnuplot could not draw %s.%s; see %s/plots/%s.log\n", plot[i],
                    e ? "svg" : "png", dir, plot[i]);
            return false;
        }
    return true;
}

bool bench_plots(const bench_run *r, const char *dir, const char *scripts) {
    static void (*const write[])(const bench_run *, const names *, FILE *) = {
        write_speedup, write_position, write_tau, write_calibration, write_stages, write_cost, write_context};
    names k = {0};
    char folder[1024];
    collect(r, &k);
    snprintf(folder, sizeof folder, "%s/plots", dir);
    if (!bench_folder(folder) || !write_one(r, &k, folder, "vars.gp", write_vars)) return false;
    for (size_t i = 0; i < sizeof plot / sizeof *plot; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s.dat", plot[i]);
        if (!write_one(r, &k, folder, name, write[i])) return false;
    }
    return draw(dir, scripts);
}
