/* dgraft-bench: modes beside plain decoding, end to end: speed, acceptance, equality of the text.
 *
 * Plain decoding is always an arm. Arms are interleaved prompt by prompt in one process and their order
 * rotates, so that a drifting machine drifts for all. Here is the order of things; what they are is in the
 * files included. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bench/compare.h"
#include "bench/files.h"
#include "bench/journal.h"
#include "bench/options.h"
#include "bench/plots.h"
#include "bench/provenance.h"
#include "bench/report.h"
#include "bench/summary.h"

static volatile int stop;

static void on_signal(int signal) {
    (void)signal;
    stop = 1;
}

/* A second Ctrl-C ends at once. */
static void catch_signals(void) {
    struct sigaction a = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
}

static void tell(void *ud, dg_log_level level, const char *message) {
    (void)ud;
    if (level == DG_LOG_WARN) fprintf(stderr, "dgraft-bench: %s\n", message);
}

static bool library(dg_status st) {
    if (st != DG_OK) fprintf(stderr, "dgraft-bench: %s\n", dg_error_message());
    return st == DG_OK;
}

static double wall(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- before ----------------------------------------------------------------------------------- */

static bool read_files(const bench_options *o, bench_run *r) {
    char error[1024];
    for (int i = 0; i < o->n_file; i++)
        if (!bench_prompts_read(&r->prompts, o->file[i], o->per_category, error, sizeof error)) {
            fprintf(stderr, "dgraft-bench: %s\n", error);
            return false;
        }
    bench_prompts_mix(&r->prompts);
    return true;
}

static int drafting_arms(const bench_run *r) {
    int n = 0;
    for (int i = 0; i < r->arms.n; i++) n += r->arms.v[i].n_draft > 0;
    return n;
}

static bool open_all(const bench_options *o, bench_run *r) {
    const dg_model_options mo = {.threads = o->threads, .compute = o->compute, .device = o->device, .log = tell};
    if (!read_files(o, r) || !library(dg_model_open(o->model, &mo, &r->model))) return false;
    dg_model_info info;
    dg_model_get_info(r->model, &info);
    r->weight_bytes = info.weight_bytes;
    const int room = info.max_context - o->n_tokens;
    const int most = o->max_prompt && o->max_prompt < room ? o->max_prompt : room;
    if (most < 8) {
        fprintf(stderr, "dgraft-bench: -n %d leaves no room for prompts in a context of %d\n", o->n_tokens,
                info.max_context);
        return false;
    }
    if (!library(bench_tokenize(r, most))) return false;
    if (!r->prompts.n) {
        fputs("dgraft-bench: there are no prompts\n", stderr);
        return false;
    }
    bench_arms_probe(&r->arms, r->model, r->context);
    for (int i = 0; i < r->arms.n_skip; i++)
        fprintf(stderr, "dgraft-bench: %s skipped: %s\n", r->arms.skip[i].label, r->arms.skip[i].why);
    if (r->arms.n_skip && !drafting_arms(r)) {
        fputs("dgraft-bench: nothing is left to compare with plain decoding\n", stderr);
        return false;
    }
    if (r->arms.n && !*r->arms.v[0].mode->drafts && bench_run_begin(r)) return true;
    fputs("dgraft-bench: plain decoding does not open, or there are too many categories for memory\n",
          stderr);
    return false;
}

static bool on_cpu(const bench_options *o) {
    return !strcmp(o->device, "cpu");
}

/* The folder of the results: told, or one with the name of the machine, and of the device where that is another. */
static bool find_folder(const bench_options *o, char *dir, size_t cap) {
    char name[256];
    provenance_machine_name(o->threads ? o->threads : (int)sysconf(_SC_NPROCESSORS_ONLN), name, sizeof name);
    if (!on_cpu(o)) {
        const size_t n = strlen(name);
        snprintf(name + n, sizeof name - n, "-%s", o->device);
        if (strchr(name, ':')) *strchr(name, ':') = '-';
    }
    snprintf(dir, cap, o->out ? "%s" : "bench/results/%s", o->out ? o->out : name);
    if (!bench_folder(dir)) return false;
    if (!journal_exists(dir) || o->resume || o->fresh) return true;
    fprintf(stderr,
            "dgraft-bench: %s/partial.jsonl holds an interrupted run: --resume goes on with it, --fresh "
            "forgets it\n",
            dir);
    return false;
}

/* The journal, and with it what the machine costs: measured, or taken from the interrupted run. */
static bool begin(const bench_options *o, bench_run *r, const char *dir, const json_t *setup, json_t *state,
                  double copy, bench_journal *j) {
    if (o->resume && journal_exists(dir)) return journal_resume(j, dir, r, setup, state);
    r->copy_bandwidth = copy;
    if (!o->no_machine && !library(bench_measure_cost(r))) return false;
    return journal_begin(j, dir, r, setup, state);
}

/* ---- while ------------------------------------------------------------------------------------ */

static void progress(const bench_run *r, double start, int first) {
    const double left = (wall() - start) / (r->n_done - first) * (r->prompts.n - r->n_done);
    fprintf(stderr,
            isatty(2) ? "\r%d of %d prompts, %.0f min %02.0f s left   "
                      : "%d of %d prompts, %.0f min %02.0f s left\n",
            r->n_done, r->prompts.n, (double)((int)left / 60), (double)((int)left % 60));
}

/* All prompts that are left; false if it stopped before the end. */
static bool run_all(bench_run *r, bench_journal *j) {
    const double start = wall();
    const int first = r->n_done;
    while (r->n_done < r->prompts.n) {
        const bench_prompt *p = &r->prompts.v[r->n_done];
        json_t *records = bench_run_prompt(r, &stop);
        if (!records) {
            if (stop)
                fprintf(stderr, "\ndgraft-bench: interrupted; ");
            else
                fprintf(stderr, "\ndgraft-bench: prompt %s of %s: %s; ", p->id, p->category,
                        dg_error_message());
            fprintf(stderr, "%d of %d prompts are in %s, --resume goes on\n", r->n_done, r->prompts.n,
                    j->path);
            return false;
        }
        json_t *line =
            json_pack("{s:s,s:s,s:o}", "prompt", p->id, "category", p->category, "records", records);
        const bool kept = journal_add(j, line);
        json_decref(line);
        if (!kept) {
            fprintf(stderr, "dgraft-bench: %d of %d prompts are in %s; with more room, --resume goes on\n",
                    r->n_done - 1, r->prompts.n, j->path);
            return false;
        }
        progress(r, start, first);
    }
    if (isatty(2)) fprintf(stderr, "\r%60s\r", "");
    return true;
}

/* ---- after ------------------------------------------------------------------------------------ */

/* run.json: the summary, and every record from the journal. */
static bool write_run(const json_t *about, const bench_journal *j, const char *dir) {
    bench_file f;
    if (!bench_file_open(&f, dir, "run.json")) return false;
    char *text = json_dumps(about, JSON_INDENT(1));
    if (!text) abort();
    text[strlen(text) - 2] = 0; /* "\n}" */
    fprintf(f.f, "%s,\n \"runs\": [", text);
    free(text);
    const bool copied = journal_copy(j, f.f);
    fputs("\n]}\n", f.f);
    return bench_file_close(&f) && copied;
}

static bool write_tables(const bench_run *r, const json_t *about, const char *dir) {
    bench_file f;
    if (!bench_file_open(&f, dir, "summary.csv")) return false;
    report_csv(r, about, f.f);
    if (!bench_file_close(&f) || !bench_file_open(&f, dir, "report.md")) return false;
    fputs("```\n", f.f);
    report_heading(r, about, f.f, "");
    fputs("```\n", f.f);
    report_tables(r, f.f, true);
    return bench_file_close(&f);
}

static int finish(const bench_options *o, const bench_run *r, const char *dir, const json_t *about,
                  const bench_journal *j, bool *written) {
    report_heading(r, about, stdout, "");
    report_tables(r, stdout, false);
    *written = write_run(about, j, dir) && write_tables(r, about, dir) &&
               bench_plots(r, dir, o->no_plots ? "" : o->scripts);
    if (*written)
        printf("\nwritten: %s/run.json, summary.csv, report.md, plots\n", dir);
    else
        fprintf(stderr, "dgraft-bench: the measurements are in %s; --resume writes the rest\n", j->path);
    const int differing = bench_differing(r);
    if (differing) fprintf(stderr, "dgraft-bench: %d texts differ from plain decoding's\n", differing);
    if (fflush(stdout) || ferror(stdout)) return 1;
    return *written && !differing ? 0 : 1;
}

static json_t *command_of(int argc, char **argv) {
    json_t *list = json_array();
    for (int i = 0; i < argc; i++) json_array_append_new(list, json_string(argv[i]));
    return list;
}

static int measure(const bench_options *o, bench_run *r, const char *dir, double copy, int argc,
                   char **argv) {
    json_t *setup = provenance_setup(r), *state = provenance_state(), *command = command_of(argc, argv);
    bench_journal j = {0};
    bool written = false;
    int status = 1;
    if (begin(o, r, dir, setup, state, copy, &j)) {
        catch_signals();
        status = run_all(r, &j) ? 0 : stop ? 130 : 1;
        json_t *end = provenance_state();
        if (!status) {
            json_t *about = report_json(r, setup, j.start, end, command);
            json_object_set(about, "resumed", j.resumed);
            status = finish(o, r, dir, about, &j, &written);
            json_decref(about);
        } else if (r->n_done) {
            report_tables(r, stdout, false);
        }
        json_decref(end);
    }
    journal_close(&j, written);
    json_decref(setup), json_decref(state), json_decref(command);
    return status;
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "compare")) return bench_compare(argc - 2, argv + 2);
    bench_options o;
    char error[1024], dir[1024];
    if (!bench_options_read(argc, argv, &o)) return 2;
    bench_run r = {.n_tokens = o.n_tokens,
                   .repeat = o.repeat,
                   .seed = o.seed,
                   .every_round = o.every_round,
                   .device = o.device,
                   .obey_stop = o.obey_stop};
    if (!bench_arms_make(&o.wish, &r.arms, error, sizeof error)) {
        fprintf(stderr, "dgraft-bench: %s\n", error);
        return 2;
    }
    int status = 1;
    const int threads = o.threads ? o.threads : (int)sysconf(_SC_NPROCESSORS_ONLN);
    if (find_folder(&o, dir, sizeof dir)) {
        const bool again = o.resume && journal_exists(dir);
        const double copy =
            o.no_machine || again || !on_cpu(&o) ? 0 : bench_copy_bandwidth(threads); /* before there are threads */
        if (open_all(&o, &r))
            status = measure(&o, &r, dir, copy, argc, argv);
        else if (r.arms.n_skip && r.prompts.n && !drafting_arms(&r))
            status = 3; /* no weights for any arm */
    }
    bench_run_free(&r);
    return status;
}
