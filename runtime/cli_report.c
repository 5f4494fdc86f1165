/* How an answer came about, for people (standard error) and for programs (JSON). */
#include "runtime/cli.h"

#include <math.h>
#include <string.h>

double cli_rate(const cli_answer *a) {
    return a->seconds > 0 ? (double)a->n / a->seconds : 0;
}

double cli_acceptance_length(const dg_stats *s) {
    return s->rounds ? (double)s->tokens / (double)s->rounds : 0;
}

static uint64_t sum(const uint64_t *v, size_t n) {
    uint64_t total = 0;
    for (size_t i = 0; i < n; i++) total += v[i];
    return total;
}

uint64_t cli_drafted(const dg_stats *s) { return sum(s->proposed, DG_STATS_SOURCES); }
uint64_t cli_accepted(const dg_stats *s) { return sum(s->accepted, DG_STATS_SOURCES); }

double cli_accepted_share(const dg_stats *s) {
    const uint64_t drafted = cli_drafted(s);
    return drafted ? 100.0 * (double)cli_accepted(s) / (double)drafted : 0;
}

double cli_first_share(const dg_stats *s) {
    return s->drafted_rounds ? 100.0 * (double)s->accepted_at[1] / (double)s->drafted_rounds : 0;
}

const char *cli_color(int32_t source) {
    static const char *const code[] = {"\033[32m", "\033[33m", "\033[36m", "\033[35m", "\033[34m", "\033[31m"};
    return source ? code[(size_t)(source - 1) % (sizeof code / sizeof *code)] : "\033[0m";
}

const char *cli_stop_name(dg_stop why) {
    static const char *const name[] = {"none", "token", "string", "limit", "context", "cancelled"};
    return (size_t)why < sizeof name / sizeof *name ? name[why] : "none";
}

/* Of the nodes of a tree most are wrong by design, so what counts is whether one of the first was right. */
static void print_acceptance(const dg_stats *s, const cli_drafts *d) {
    if (!s->drafted_rounds) {
        fprintf(stderr, ", nothing drafted (%s)",
                d->budget ? "the drafters had nothing to propose" : "auto: no draft promised to pay; --budget N forces drafts");
    } else {
        fprintf(stderr, ", acceptance length %.2f, first drafted position right in %.0f%% of %llu rounds",
                cli_acceptance_length(s), cli_first_share(s), (unsigned long long)s->drafted_rounds);
    }
    fprintf(stderr, ", drafters %s", d->label);
}

void cli_print_summary(const cli_answer *a, const cli_drafts *d, const cli_answer *plain, bool identical) {
    cli_progress_clear();
    fprintf(stderr, "%zu token%s, %.1f tok/s", a->n, a->n == 1 ? "" : "s", cli_rate(a));
    if (plain) {
        const double rate = cli_rate(plain);
        fprintf(stderr, ", plain decoding %.1f tok/s, ratio %.2f", rate, rate > 0 ? cli_rate(a) / rate : 0);
    }
    if (d->n) {
        print_acceptance(&a->stats, d);
    } else {
        fprintf(stderr, ", plain decoding");
    }
    if (plain) fprintf(stderr, ", text identical: %s", identical ? "yes" : "no");
    if (a->why == DG_STOP_CONTEXT) fprintf(stderr, ", ended by the full context (-c)");
    if (a->why == DG_STOP_CANCELLED) fprintf(stderr, ", interrupted");
    fputc('\n', stderr);
}

/* Highest depth at which anything was proposed, + 1. */
static size_t depths(const dg_stats *s) {
    size_t n = DG_STATS_DEPTH;
    while (n && !s->proposed_at[n - 1]) n--;
    return n;
}

/* Ends with the last that is not 0. */
static void print_counts(const char *what, const uint64_t *v, size_t from) {
    size_t n = DG_STATS_DEPTH;
    while (n > from && !v[n - 1]) n--;
    fprintf(stderr, "; %s", what);
    for (size_t i = from; i < n; i++) fprintf(stderr, " %llu", (unsigned long long)v[i]);
    if (n == from) fprintf(stderr, " none");
}

void cli_print_drafting(const cli_answer *a, const cli_drafts *d) {
    const dg_stats *s = &a->stats;
    cli_progress_clear();
    fprintf(stderr, "accepted:");
    for (size_t i = 0; i < d->n && i < DG_STATS_SOURCES; i++)
        fprintf(stderr, "%s %s %llu of %llu", i ? "," : "", d->v[i].name, (unsigned long long)s->accepted[i],
                (unsigned long long)s->proposed[i]);
    print_counts("by depth", s->accepted_at, 1);
    print_counts("cuts from depth 0", s->cut_at, 0);
    fprintf(stderr, "; %llu rounds, %llu rows, %llu drafter passes; draft %.2f s, verify %.2f s, commit %.2f s\n",
            (unsigned long long)s->rounds, (unsigned long long)s->verified_rows, (unsigned long long)s->drafter_passes,
            s->draft_seconds, s->verify_seconds, s->commit_seconds);
}

void cli_print_stats(const cli_answer *a, const cli_drafts *d) {
    const dg_stats *s = &a->stats;
    cli_progress_clear();
    fprintf(stderr, "prompt: %zu tokens (%zu reused) in %.2f s\n", a->n_prompt, a->n_reused,
            a->prefill_seconds);
    fprintf(stderr,
            "answer: %zu tokens in %.2f s and %llu rounds; draft %.2f s, verify %.2f s, commit %.2f s\n",
            a->n, a->seconds, (unsigned long long)s->rounds, s->draft_seconds, s->verify_seconds,
            s->commit_seconds);
    if (!d->n) return;
    fprintf(stderr, "verified rows: %llu, drafter passes: %llu, acceptance length %.2f\n",
            (unsigned long long)s->verified_rows, (unsigned long long)s->drafter_passes,
            cli_acceptance_length(s));
    for (size_t i = 0; i < d->n && i < DG_STATS_SOURCES; i++) {
        fprintf(stderr, "%s: %llu of %llu drafted tokens accepted\n", d->v[i].name,
                (unsigned long long)s->accepted[i], (unsigned long long)s->proposed[i]);
    }
    fprintf(stderr, "accepted by depth:");
    for (size_t i = 1; i < depths(s); i++) {
        fprintf(stderr, " %llu/%llu", (unsigned long long)s->accepted_at[i],
                (unsigned long long)s->proposed_at[i]);
    }
    fputc('\n', stderr);
}

/* ---- JSON ------------------------------------------------------------------------------------- */

static json_t *count(uint64_t n) {
    return json_integer((json_int_t)n);
}

/* JSON has no infinities. */
static json_t *real(double v) {
    return isfinite(v) ? json_real(v) : json_null();
}

static json_t *counts(const uint64_t *v, size_t n) {
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(list, count(v[i]));
    return list;
}

static json_t *stats_json(const dg_stats *s, const cli_drafts *d) {
    json_t *o = json_object();
    json_object_set_new(o, "rounds", count(s->rounds));
    json_object_set_new(o, "tokens", count(s->tokens));
    json_object_set_new(o, "acceptance_length", real(cli_acceptance_length(s)));
    json_object_set_new(o, "accepted_percent", real(cli_accepted_share(s)));
    json_object_set_new(o, "drafted_rounds", count(s->drafted_rounds));
    json_object_set_new(o, "first_position_percent", real(cli_first_share(s)));
    json_object_set_new(o, "verified_rows", count(s->verified_rows));
    json_object_set_new(o, "drafter_passes", count(s->drafter_passes));
    size_t n = DG_STATS_DEPTH;
    while (n && !s->length[n - 1]) n--;
    json_object_set_new(o, "rounds_by_length", counts(s->length, n));
    json_object_set_new(o, "proposed_by_depth", counts(s->proposed_at, depths(s)));
    json_object_set_new(o, "accepted_by_depth", counts(s->accepted_at, depths(s)));
    for (n = DG_STATS_DEPTH; n && !s->cut_at[n - 1];) n--;
    json_object_set_new(o, "cuts_by_depth", counts(s->cut_at, n));
    json_t *sources = json_array();
    for (size_t i = 0; i < d->n && i < DG_STATS_SOURCES; i++) {
        json_t *one = json_object();
        json_object_set_new(one, "drafter", json_string(d->v[i].name));
        json_object_set_new(one, "proposed", count(s->proposed[i]));
        json_object_set_new(one, "accepted", count(s->accepted[i]));
        json_array_append_new(sources, one);
    }
    json_object_set_new(o, "sources", sources);
    return o;
}

static json_t *timing_json(const cli_answer *a) {
    json_t *o = json_object();
    json_object_set_new(o, "tokens_per_second", real(cli_rate(a)));
    json_object_set_new(o, "seconds", real(a->seconds));
    json_object_set_new(o, "prefill_seconds", real(a->prefill_seconds));
    json_object_set_new(o, "draft_seconds", real(a->stats.draft_seconds));
    json_object_set_new(o, "verify_seconds", real(a->stats.verify_seconds));
    json_object_set_new(o, "commit_seconds", real(a->stats.commit_seconds));
    return o;
}

json_t *cli_answer_json(const cli_answer *a, const cli_drafts *d) {
    json_t *o = json_object(), *tokens = json_array(), *logprobs = json_array(), *sources = json_array();
    for (size_t i = 0; i < a->n; i++) {
        json_array_append_new(tokens, json_integer(a->token[i]));
        json_array_append_new(logprobs, real((double)a->logprob[i]));
        json_array_append_new(sources, json_integer(a->source[i]));
    }
    json_object_set_new(o, "text", cli_json_text(a->text.data, a->text.len));
    json_object_set_new(o, "tokens", tokens);
    json_object_set_new(o, "logprobs", logprobs);
    json_object_set_new(o, "sources", sources);
    json_object_set_new(o, "stopped", json_string(cli_stop_name(a->why)));
    json_object_set_new(o, "prompt_tokens", count(a->n_prompt));
    json_object_set_new(o, "timing", timing_json(a));
    json_object_set_new(o, "stats", stats_json(&a->stats, d));
    return o;
}

json_t *cli_plan_json(const dg_memory_plan *plan) {
    json_t *o = json_object();
    json_object_set_new(o, "context", json_integer(plan->context));
    json_object_set_new(o, "target_weights", count(plan->target_weights));
    json_object_set_new(o, "draft_weights", count(plan->draft_weights));
    json_object_set_new(o, "target_kv", count(plan->target_kv));
    json_object_set_new(o, "draft_kv", count(plan->draft_kv));
    json_object_set_new(o, "workspace", count(plan->workspace));
    json_object_set_new(o, "tokenizer", count(plan->tokenizer));
    json_object_set_new(o, "program", count(plan->program));
    json_object_set_new(o, "total", count(plan->total));
    return o;
}

void cli_print_plan(FILE *out, const dg_memory_plan *plan, const cli_drafts *d) {
    const struct {
        const char *name;
        uint64_t bytes;
    } row[] = {{"target weights", plan->target_weights},
               {"draft weights", plan->draft_weights},
               {"target KV cache", plan->target_kv},
               {"draft KV cache", plan->draft_kv},
               {"workspace", plan->workspace},
               {"tokenizer", plan->tokenizer},
               {"program", plan->program},
               {"total", plan->total}};
    char text[32];
    fprintf(out, "memory for a context of %d tokens, drafters %s:\n", plan->context, d->label);
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        fprintf(out, "  %-18s%12s\n", row[i].name, cli_bytes(row[i].bytes, text));
    }
}
