/* See summary.h. */
#include "bench/summary.h"

#include <math.h>
#include <stdlib.h>

/* Median over the repetitions of a figure of one prompt. */
static double speed_of(const bench_run *r, int p, int arm, bool to_plain) {
    double v[64];
    const int n = r->repeat < 64 ? r->repeat : 64;
    for (int rep = 0; rep < n; rep++) {
        const bench_brief *b = bench_brief_at(r, p, rep, arm),
                          *plain = bench_brief_at(r, p, rep, r->arms.v[arm].plain);
        v[rep] = (double)b->tokens / b->seconds;
        if (to_plain) v[rep] /= (double)plain->tokens / plain->seconds;
    }
    return stat_quantile(v, n, 0.5);
}

static bool equal_in_all(const bench_run *r, int p, int arm) {
    for (int rep = 0; rep < r->repeat; rep++)
        if (!bench_brief_at(r, p, rep, arm)->equal) return false;
    return true;
}

/* Of the prompts. */
static void summarise_speeds(const bench_run *r, summary *s) {
    const size_t room = (size_t)r->n_done + 1;
    double *speed = malloc(room * sizeof *speed), *ratio = malloc(room * sizeof *ratio);
    int n = 0;
    if (!speed || !ratio) abort();
    for (int p = 0; p < r->n_done; p++) {
        if (s->category >= 0 && r->category_of[p] != s->category) continue;
        speed[n] = speed_of(r, p, s->arm, false);
        ratio[n++] = speed_of(r, p, s->arm, true);
        s->equal += equal_in_all(r, p, s->arm);
    }
    s->prompts = n;
    s->speed = stat_quantile(speed, n, 0.5);
    s->speed_low = stat_quantile(speed, n, 0.1), s->speed_high = stat_quantile(speed, n, 0.9);
    s->ratio = stat_geomean(ratio, n), s->ratio_median = stat_quantile(ratio, n, 0.5);
    s->interval = stat_bootstrap(ratio, n, 0.95, 1);
    free(speed), free(ratio);
}

summary bench_summary(const bench_run *r, int arm, int category) {
    summary s = {.arm = arm, .category = category};
    for (int c = 0; c < r->n_category; c++)
        if (category < 0 || c == category) sample_add(&s.sum, bench_sum(r, arm, c));
    if (!s.sum.rounds) return s;
    summarise_speeds(r, &s);
    const sample *x = &s.sum;
    const double rounds = (double)x->rounds;
    uint64_t proposed = 0;
    for (int i = 0; i < SAMPLE_SOURCES; i++) proposed += x->proposed[i];
    s.tau = (double)x->tokens / rounds, s.drafted = s.tau - 1;
    s.share = proposed ? (double)sample_accepted(x, -1) / (double)proposed : 0;
    s.passes = (double)x->passes / rounds, s.rows = (double)x->rows / rounds;
    s.draft_ms = 1e3 * x->draft / rounds, s.verify_ms = 1e3 * x->verify / rounds;
    s.rest_ms = 1e3 * (x->seconds - x->draft - x->verify) / rounds;
    s.read = x->verify > 0 ? (double)r->weight_bytes * rounds / x->verify : 0;
    s.read_share = r->copy_bandwidth > 0 ? s.read / r->copy_bandwidth : NAN;
    return s;
}

double bench_drift(const bench_run *r) {
    if (r->n_done < 8) return NAN;
    const int quarter = r->n_done / 4;
    double *v = malloc((size_t)quarter * sizeof *v);
    if (!v) abort();
    double end[2];
    for (int e = 0; e < 2; e++) {
        for (int i = 0; i < quarter; i++) v[i] = speed_of(r, e ? r->n_done - 1 - i : i, 0, false);
        end[e] = stat_quantile(v, quarter, 0.5);
    }
    free(v);
    return end[1] / end[0];
}

int bench_differing(const bench_run *r) {
    int n = 0;
    for (int arm = 0; arm < r->arms.n; arm++)
        for (int p = 0; p < r->n_done; p++) n += !equal_in_all(r, p, arm);
    return n;
}

double bench_cost_at(const bench_run *r, double rows) {
    if (!r->n_cost) return NAN;
    int i = 1;
    while (i < r->n_cost - 1 && r->cost[i].rows < rows) i++;
    if (r->n_cost == 1 || rows <= r->cost[0].rows) return r->cost[0].median;
    const bench_cost *a = &r->cost[i - 1], *b = &r->cost[i];
    return a->median + (b->median - a->median) * (rows - a->rows) / (b->rows - a->rows);
}

const char *bench_source(const bench_arm *a, int i) {
    return i < (int)a->n_draft ? a->draft[i].name : "?";
}
