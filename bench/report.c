/* See report.h. */
#include "bench/report.h"

#include <math.h>
#include <string.h>

#include "bench/files.h"
#include "bench/provenance.h"
#include "bench/summary.h"

static const char *category_name(const bench_run *r, int c) {
    return c < 0 ? "all" : r->category[c];
}

static const char *text_at(const json_t *j, const char *a, const char *b) {
    const json_t *v = b ? json_object_get(json_object_get(j, a), b) : json_object_get(j, a);
    return json_is_string(v) ? json_string_value(v) : "not told";
}

static double load_of(const json_t *about, const char *when) {
    return json_number_value(json_array_get(json_object_get(json_object_get(about, when), "load"), 0));
}

/* ---- tables ----------------------------------------------------------------------------------- */

static void heading(table *t, const char *const *name, int n) {
    t->n_col = n;
    for (int i = 0; i < n; i++) table_add(t, "%s", name[i]);
}

static void main_table(const bench_run *r, FILE *f, bool markdown) {
    static const char *const name[] = {"arm",     "tok/s",    "p10..p90", "ratio", "95 %",     "tau",
                                       "drafted", "accepted", "passes",   "rows",  "draft ms", "verify ms",
                                       "rest ms", "GB/s",     "of copy",  "MiB",   "equal"};
    table t = {0};
    heading(&t, name, sizeof name / sizeof *name);
    for (int i = 0; i < r->arms.n; i++) {
        const summary s = bench_summary(r, i, -1);
        if (!s.prompts) continue;
        table_add(&t, "%s", r->arms.v[i].label);
        table_add(&t, "%.1f", s.speed);
        table_add(&t, "%.1f..%.1f", s.speed_low, s.speed_high);
        table_add(&t, "%.3f", s.ratio);
        if (isnan(s.interval.lo))
            table_add(&t, "-");
        else
            table_add(&t, "%.3f..%.3f", s.interval.lo, s.interval.hi);
        table_add(&t, "%.2f", s.tau);
        table_add(&t, "%.2f", s.drafted);
        table_add(&t, "%.0f %%", 100 * s.share);
        table_add(&t, "%.2f", s.passes);
        table_add(&t, "%.1f", s.rows);
        table_add(&t, "%.2f", s.draft_ms);
        table_add(&t, "%.2f", s.verify_ms);
        table_add(&t, "%.2f", s.rest_ms);
        table_add(&t, "%.1f", 1e-9 * s.read);
        if (isnan(s.read_share))
            table_add(&t, "-");
        else
            table_add(&t, "%.0f %%", 100 * s.read_share);
        table_add(&t, "%.0f", (double)s.sum.peak / 1048576);
        table_add(&t, "%d/%d", s.equal, s.prompts);
    }
    table_print(&t, f, markdown);
}

typedef enum figure { RATIO, TAU, DRAFTED } figure;

static void category_table(const bench_run *r, FILE *f, bool markdown, figure which) {
    table t = {.n_col = (r->n_category < TABLE_COLUMNS - 1 ? r->n_category : TABLE_COLUMNS - 2) + 2};
    const int n = t.n_col - 2;
    table_add(&t, "arm");
    for (int c = 0; c < n; c++) table_add(&t, "%s", r->category[c]);
    table_add(&t, "all");
    for (int i = 0; i < r->arms.n; i++) {
        table_add(&t, "%s", r->arms.v[i].label);
        for (int c = 0; c <= n; c++) {
            const summary s = bench_summary(r, i, c < n ? c : -1);
            const double v = which == RATIO ? s.ratio : which == TAU ? s.tau : s.drafted;
            if (!s.prompts)
                table_add(&t, "-");
            else if (which == RATIO && !isnan(s.interval.lo))
                table_add(&t, "%.2f (%.2f..%.2f)", v, s.interval.lo, s.interval.hi);
            else
                table_add(&t, "%.2f", v);
        }
    }
    table_print(&t, f, markdown);
}

static void source_table(const bench_run *r, FILE *f, bool markdown) {
    table t = {.n_col = 6};
    static const char *const name[] = {"arm",      "source",           "drafted a round", "accepted a round",
                                       "accepted", "share of the text"};
    heading(&t, name, 6);
    for (int i = 0; i < r->arms.n; i++) {
        const summary s = bench_summary(r, i, -1);
        for (int d = 0; s.prompts && d < (int)r->arms.v[i].n_draft && d < SAMPLE_SOURCES; d++) {
            const double proposed = (double)s.sum.proposed[d], accepted = (double)sample_accepted(&s.sum, d);
            table_add(&t, "%s", r->arms.v[i].label);
            table_add(&t, "%s", bench_source(&r->arms.v[i], d));
            table_add(&t, "%.2f", proposed / (double)s.sum.rounds);
            table_add(&t, "%.2f", accepted / (double)s.sum.rounds);
            table_add(&t, "%.0f %%", proposed > 0 ? 100 * accepted / proposed : 0);
            table_add(&t, "%.0f %%", 100 * accepted / (double)s.sum.tokens);
        }
    }
    table_print(&t, f, markdown);
}

static void position_table(const bench_run *r, FILE *f, bool markdown) {
    enum { SHOWN = 15 };
    table t = {.n_col = SHOWN + 1};
    table_add(&t, "arm");
    for (int d = 1; d <= SHOWN; d++) table_add(&t, "%d", d);
    for (int i = 0; i < r->arms.n; i++) {
        const summary s = bench_summary(r, i, -1);
        if (!s.prompts || !r->arms.v[i].n_draft) continue;
        table_add(&t, "%s", r->arms.v[i].label);
        for (int d = 1; d <= SHOWN; d++) {
            uint64_t n = 0;
            for (int k = 0; k < SAMPLE_SOURCES; k++) n += s.sum.accepted[d][k];
            table_add(&t, "%.2f", (double)n / (double)s.sum.rounds);
        }
    }
    table_print(&t, f, markdown);
}

static void cost_table(const bench_run *r, FILE *f, bool markdown) {
    table t = {.n_col = 5};
    static const char *const name[] = {"rows", "ms", "least", "most", "plain steps"};
    heading(&t, name, 5);
    for (int i = 0; i < r->n_cost; i++) {
        const bench_cost *c = &r->cost[i];
        table_add(&t, "%d", c->rows);
        table_add(&t, "%.2f", 1e3 * c->median);
        table_add(&t, "%.2f", 1e3 * c->least);
        table_add(&t, "%.2f", 1e3 * c->most);
        table_add(&t, "%.2f", c->median / r->cost[0].median);
    }
    table_print(&t, f, markdown);
}

static void caption(FILE *f, bool markdown, const char *text) {
    fprintf(f, markdown ? "\n### %s\n\n" : "\n%s\n", text);
}

void report_tables(const bench_run *r, FILE *f, bool markdown) {
    caption(f, markdown, "All prompts");
    main_table(r, f, markdown);
    fprintf(f,
            "\n%d of %d prompts, %d tokens each. tok/s: median over prompts; ratio: to plain decoding of the "
            "same prompt, geometric "
            "mean, bootstrap interval. tau: tokens a round, the target's own (bonus) token included; "
            "drafted: without it. "
            "accepted: share of drafted nodes. passes, rows: of drafters and of the target a round. GB/s: "
            "target weights, read once "
            "a pass. equal: texts equal to plain decoding's.\n",
            r->n_done, r->prompts.n, r->n_tokens);
    caption(f, markdown, "Ratio to plain decoding by category");
    category_table(r, f, markdown, RATIO);
    caption(f, markdown, "Acceptance length with the bonus token");
    category_table(r, f, markdown, TAU);
    caption(f, markdown, "Acceptance length without the bonus token");
    category_table(r, f, markdown, DRAFTED);
    caption(f, markdown, "Accepted by source");
    source_table(r, f, markdown);
    caption(f, markdown, "Share of rounds in which the position was accepted");
    position_table(r, f, markdown);
    if (r->n_cost) {
        caption(f, markdown, "Cost of a verify pass");
        cost_table(r, f, markdown);
    }
    for (int i = 0; i < r->arms.n_skip; i++)
        fprintf(f, "%s%s skipped: %s\n", i ? "" : "\n", r->arms.skip[i].label, r->arms.skip[i].why);
}

/* ---- heading ---------------------------------------------------------------------------------- */

void report_heading(const bench_run *r, const json_t *about, FILE *f, const char *prefix) {
    (void)r;
    fprintf(f, "%sdgraft %s, revision %s, %s, %s\n", prefix, text_at(about, "program", "version"),
            text_at(about, "program", "revision"), text_at(about, "program", "flags"),
            text_at(about, "program", "compiler"));
    fprintf(f, "%smodel %s (%s, hash %s), device %s: %s\n", prefix, text_at(about, "model", "path"),
            text_at(about, "model", "weights"), text_at(about, "model", "hash"),
            text_at(about, "settings", "device"), text_at(about, "model", "backend"));
    fprintf(f, "%s%s, %s %s, governor %s, load %.2f at the start, %.2f at the end\n", prefix,
            text_at(about, "machine", "processor"), text_at(about, "machine", "system"),
            text_at(about, "machine", "kernel"), text_at(about, "start", "governor"), load_of(about, "start"),
            load_of(about, "end"));
    fprintf(f, "%s%s to %s\n%s", prefix, text_at(about, "start", "time"), text_at(about, "end", "time"),
            prefix);
    size_t i;
    json_t *word;
    json_array_foreach(json_object_get(about, "command"), i, word)
        fprintf(f, "%s%s", i ? " " : "", json_string_value(word));
    fputc('\n', f);
    json_array_foreach(json_object_get(about, "warnings"), i, word)
        fprintf(f, "%swarning: %s\n", prefix, json_string_value(word));
}

/* ---- CSV -------------------------------------------------------------------------------------- */

void report_csv(const bench_run *r, const json_t *about, FILE *f) {
    report_heading(r, about, f, "# ");
    fputs("arm,mode,budget,temperature,category,prompts,equal,tokens_per_second,tokens_per_second_p10,tokens_"
          "per_second_p90,ratio,ratio_low,"
          "ratio_high,ratio_median,acceptance_with_bonus,acceptance_without_bonus,accepted_share,drafter_"
          "passes,verified_rows,draft_ms,"
          "verify_ms,rest_ms,read_gb_per_second,share_of_copy_bandwidth,peak_mib\n",
          f);
    for (int i = 0; i < r->arms.n; i++)
        for (int c = -1; c < r->n_category; c++) {
            const bench_arm *a = &r->arms.v[i];
            const summary s = bench_summary(r, i, c);
            if (!s.prompts) continue;
            fprintf(f,
                    "\"%s\",%s,%d,%g,\"%s\",%d,%d,%.3f,%.3f,%.3f,%.4f,%.4f,%.4f,%.4f,%.4f,%.4f,%.4f,%.4f,%."
                    "3f,%.4f,%.4f,%.4f,%.3f,",
                    a->label, a->mode->name, a->budget, (double)a->temperature, category_name(r, c),
                    s.prompts, s.equal, s.speed, s.speed_low, s.speed_high, s.ratio, s.interval.lo,
                    s.interval.hi, s.ratio_median, s.tau, s.drafted, s.share, s.passes, s.rows, s.draft_ms,
                    s.verify_ms, s.rest_ms, 1e-9 * s.read);
            if (!isnan(s.read_share)) fprintf(f, "%.4f", s.read_share);
            fprintf(f, ",%.1f\n", (double)s.sum.peak / 1048576);
        }
}

/* ---- JSON ------------------------------------------------------------------------------------- */

static json_t *sources_json(const bench_arm *a, const sample *x) {
    json_t *list = json_array();
    for (int d = 0; d < (int)a->n_draft && d < SAMPLE_SOURCES; d++) {
        json_t *at = json_array();
        int deepest = 0;
        for (int k = 1; k < SAMPLE_DEPTHS; k++)
            if (x->accepted[k][d]) deepest = k;
        for (int k = 1; k <= deepest; k++)
            json_array_append_new(at, json_integer((json_int_t)x->accepted[k][d]));
        json_array_append_new(list, json_pack("{s:s,s:I,s:I,s:o}", "name", bench_source(a, d), "proposed",
                                              (json_int_t)x->proposed[d], "accepted",
                                              (json_int_t)sample_accepted(x, d), "accepted_at", at));
    }
    return list;
}

static json_t *summary_json(const bench_run *r, int arm, int category) {
    const summary s = bench_summary(r, arm, category);
    if (!s.prompts) return NULL;
    const bench_arm *a = &r->arms.v[arm];
    json_t *j = json_pack("{s:s,s:s,s:i,s:i,s:I,s:I,s:[f,f,f],s:f,s:f,s:f,s:f,s:f,s:f,s:f}", "arm", a->label,
                          "category", category_name(r, category), "prompts", s.prompts, "equal", s.equal,
                          "tokens", (json_int_t)s.sum.tokens, "rounds", (json_int_t)s.sum.rounds,
                          "tokens_per_second_p10_p50_p90", s.speed_low, s.speed, s.speed_high,
                          "ratio_to_plain", s.ratio, "ratio_median", s.ratio_median, "acceptance_with_bonus",
                          s.tau, "acceptance_without_bonus", s.drafted, "accepted_share", s.share,
                          "drafter_passes_a_round", s.passes, "verified_rows_a_round", s.rows);
    json_t *rest = json_pack("{s:f,s:f,s:f,s:f,s:I,s:o}", "draft_ms", s.draft_ms, "verify_ms", s.verify_ms,
                             "rest_ms", s.rest_ms, "read_bytes_per_second", s.read, "peak_bytes",
                             (json_int_t)s.sum.peak, "sources", sources_json(a, &s.sum));
    json_object_update(j, rest);
    json_decref(rest);
    json_object_set_new(j, "ratio_interval_95",
                        isnan(s.interval.lo) ? json_null()
                                             : json_pack("[f,f]", s.interval.lo, s.interval.hi));
    if (!isnan(s.read_share)) json_object_set_new(j, "share_of_copy_bandwidth", json_real(s.read_share));
    return j;
}

json_t *report_json(const bench_run *r, const json_t *setup, const json_t *start, const json_t *end,
                    const json_t *command) {
    json_t *j = json_object(), *cost = json_array(), *rows = json_array();
    json_object_set_new(j, "format", json_string("dgraft-bench 1"));
    json_object_set(j, "command", (json_t *)command);
    json_object_update(j, (json_t *)setup);
    json_object_set(j, "start", (json_t *)start);
    json_object_set(j, "end", (json_t *)end);
    json_object_set_new(j, "warnings", provenance_warnings(r, start, end));
    const double drift = bench_drift(r);
    json_object_set_new(j, "plain_drift", isnan(drift) ? json_null() : json_real(drift));
    json_object_set_new(j, "copy_bytes_per_second", json_real(r->copy_bandwidth));
    for (int i = 0; i < r->n_cost; i++)
        json_array_append_new(cost, json_pack("{s:i,s:i,s:f,s:f,s:f}", "rows", r->cost[i].rows, "context",
                                              r->cost[i].len, "seconds", r->cost[i].median, "least",
                                              r->cost[i].least, "most", r->cost[i].most));
    json_object_set_new(j, "cost", cost);
    json_object_set_new(j, "prompts_done", json_integer(r->n_done));
    for (int i = 0; i < r->arms.n; i++)
        for (int c = -1; c < r->n_category; c++) {
            json_t *one = summary_json(r, i, c);
            if (one) json_array_append_new(rows, one);
        }
    json_object_set_new(j, "summary", rows);
    return j;
}
