/* See run.h. */
#include "bench/run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bench/peaks.h"
#include "bench/stats.h"
#include "runtime/session.h"

enum { PEAK_ROUNDS = 3, COST_ROUNDS = 5, COST_LEN = 128 };

static const char warm_text[] = "Describe a morning at a small railway station: who waits there, what they "
                                "carry, what they say to each other, and what "
                                "the weather does. Then describe the same station in the evening, when most "
                                "of the same people come back.";

static double clock_seconds(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double wall(void) {
    return clock_seconds(CLOCK_MONOTONIC);
}

/* ---- the machine ------------------------------------------------------------------------------ */

double bench_copy_bandwidth(int threads) {
    int pipes[2];
    double found = 0;
    if (pipe(pipes)) return 0;
    const pid_t child = fork();
    if (child == 0) {
        static peaks p;
        for (int i = 0; i < PEAK_ROUNDS; i++) peaks_round(&p, "portable", threads);
        const double v = series_median(&p.copy);
        const bool written = write(pipes[1], &v, sizeof v) == sizeof v;
        _exit(written ? 0 : 1);
    }
    close(pipes[1]);
    if (child > 0) {
        if (read(pipes[0], &found, sizeof found) != sizeof found) found = 0;
        int status;
        waitpid(child, &status, 0);
    }
    close(pipes[0]);
    return found;
}

/* Forgets the most memory so far, where the system allows it. */
static void reset_peak(void) {
    FILE *f = fopen("/proc/self/clear_refs", "w");
    if (!f) return;
    fputs("5", f);
    fclose(f);
}

static uint64_t read_peak(void) {
    FILE *f = fopen("/proc/self/status", "r");
    if (!f) return 0;
    char line[256];
    unsigned long long kib = 0;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "VmHWM: %llu kB", &kib) == 1) break;
    fclose(f);
    return (uint64_t)kib * 1024;
}

/* ---- prompts ---------------------------------------------------------------------------------- */

static dg_status tokenize(dg_model *m, const char *system, const char *text, bench_tokens *t) {
    const dg_message message[2] = {{"system", system}, {"user", text}};
    char *chat = NULL;
    int flags = DG_TOKENIZE_BOS;
    if (dg_chat_format(m, system ? message : message + 1, system ? 2 : 1, -1, &chat) == DG_OK)
        flags = DG_TOKENIZE_SPECIAL;
    const char *full = chat ? chat : text;
    dg_status st = dg_tokenize(m, full, strlen(full), flags, NULL, 0, &t->n);
    t->id = malloc((t->n + 1) * sizeof *t->id);
    if (st == DG_OK && t->id) st = dg_tokenize(m, full, strlen(full), flags, t->id, t->n, &t->n);
    dg_free(chat);
    return t->id ? st : DG_ERR_MEMORY;
}

dg_status bench_tokenize(bench_run *r, int max_prompt) {
    dg_status st = tokenize(r->model, NULL, warm_text, &r->warm);
    if (st != DG_OK) return st;
    if ((int)r->warm.n > max_prompt / 2) r->warm.n = (size_t)(max_prompt / 2);
    r->ids = calloc((size_t)r->prompts.n + 1, sizeof *r->ids);
    if (!r->ids) return DG_ERR_MEMORY;
    int n = 0, longest = (int)r->warm.n;
    for (int i = 0; i < r->prompts.n && st == DG_OK; i++) {
        bench_prompt *p = &r->prompts.v[i];
        st = tokenize(r->model, p->system, p->text, &r->ids[n]);
        if (st != DG_OK) break;
        if ((int)r->ids[n].n <= max_prompt) {
            if ((int)r->ids[n].n > longest) longest = (int)r->ids[n].n;
            const bench_prompt keep = *p; /* left-out prompts gather at the end */
            *p = r->prompts.v[n], r->prompts.v[n++] = keep;
            continue;
        }
        fprintf(stderr, "dgraft-bench: prompt %s of %s left out: %zu tokens, at most %d fit\n", p->id,
                p->category, r->ids[n].n, max_prompt);
        free(r->ids[n].id);
        r->ids[n] = (bench_tokens){0};
    }
    for (int i = n; i < r->prompts.n; i++)
        free(r->prompts.v[i].id), free(r->prompts.v[i].category), free(r->prompts.v[i].text),
            free(r->prompts.v[i].system);
    r->prompts.n = n;
    r->context = longest + r->n_tokens;
    return st;
}

/* ---- cost ------------------------------------------------------------------------------------- */

static dg_status time_cost(bench_run *r, dg_session *s, int n_count) {
    double seconds[BENCH_COSTS][COST_ROUNDS] = {{0}};
    for (int round = -1; round < COST_ROUNDS; round++) /* the first warms up */
        for (int i = 0; i < n_count; i++) {
            const dg_status st =
                dg_session_time_rows(s, r->cost[i].rows, r->cost[i].len, &seconds[i][round < 0 ? 0 : round]);
            if (st != DG_OK) return st;
        }
    for (int i = 0; i < n_count; i++) {
        bench_cost *c = &r->cost[i];
        c->least = stat_quantile(seconds[i], COST_ROUNDS, 0);
        c->median = stat_quantile(seconds[i], COST_ROUNDS, 0.5);
        c->most = stat_quantile(seconds[i], COST_ROUNDS, 1);
    }
    return DG_OK;
}

dg_status bench_measure_cost(bench_run *r) {
    static const int count[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256};
    dg_model_info info;
    dg_model_get_info(r->model, &info);
    const int room = info.max_context < COST_LEN + 2 * 256 ? info.max_context : COST_LEN + 2 * 256;
    const dg_draft pld = {"pld", NULL,
                          NULL}; /* drafts nothing here; a session without drafters has room for one row */
    const dg_session_options o = {
        .context = room, .budget = 255, .draft = &pld, .n_draft = 1, .ignore_stop_tokens = true};
    dg_session *s = NULL;
    dg_status st = dg_session_create(r->model, &o, &s);
    for (size_t i = 0; st == DG_OK && i < sizeof count / sizeof *count; i++) {
        const int len = COST_LEN + count[i] <= room ? COST_LEN : 0;
        if (count[i] + len > room || count[i] > info.vocab_size) break;
        r->cost[r->n_cost++] = (bench_cost){.rows = count[i], .len = len};
    }
    if (st == DG_OK) st = dg_session_sync(s, r->warm.id, r->warm.n);
    if (st == DG_OK) st = time_cost(r, s, r->n_cost);
    dg_session_free(s);
    return st;
}

/* ---- one arm on one prompt -------------------------------------------------------------------- */

/* Nodes whose parent is text were put to the test; what the scores promised of them and what came. */
static void count_nodes(const dg_round *round, sample *s) {
    bool on_path[SAMPLE_ROWS] = {false};
    int depth[SAMPLE_ROWS] = {0};
    for (int32_t i = 0; i < round->n_path; i++) on_path[round->path[i]] = true;
    for (int32_t i = 1; i < round->n; i++) {
        const int parent = round->parent[i], source = round->source[i] - 1;
        depth[i] = depth[parent] + 1;
        if (source < 0 || source >= SAMPLE_SOURCES) continue;
        s->proposed[source]++;
        if (!on_path[parent]) continue;
        const double p = exp((double)(round->score[i] - round->score[parent]));
        const int bin = sample_probability_bin(p);
        s->bin[source][bin].tested++;
        s->bin[source][bin].promised += p;
        if (!on_path[i]) continue;
        s->bin[source][bin].accepted++;
        s->accepted[depth[i] < SAMPLE_DEPTHS ? depth[i] : SAMPLE_DEPTHS - 1][source]++;
    }
    s->row_count[round->n < SAMPLE_ROWS ? round->n : SAMPLE_ROWS - 1]++;
}

static json_t *round_json(const dg_round *round, size_t before, size_t n, double seconds) {
    return json_pack("{s:I,s:i,s:I,s:i,s:f,s:f,s:f}", "at", (json_int_t)before, "nodes", round->n - 1,
                     "tokens", (json_int_t)n, "cut", round->cut, "draft_seconds", round->draft_seconds,
                     "verify_seconds", round->verify_seconds, "seconds", seconds);
}

/* Waits busily, as slower code would. */
static void dawdle(double seconds) {
    const double until = wall() + seconds;
    while (seconds > 0 && wall() < until) {
    }
}

static dg_status timed_rounds(const bench_run *r, const bench_arm *a, dg_session *s, sample *out,
                              json_t *rounds) {
    size_t length, n;
    dg_session_tokens(s, &length);
    dg_session_limit(s, (size_t)r->n_tokens);
    while (out->tokens < (uint64_t)r->n_tokens) {
        const double start = wall(), cpu = clock_seconds(CLOCK_PROCESS_CPUTIME_ID);
        const dg_status st = dg_session_step(s, NULL, 0, &n);
        if (st != DG_OK) return st;
        dawdle(a->handicap * (wall() - start));
        const double seconds = wall() - start;
        if (!n) break;
        out->seconds += seconds, out->cpu += clock_seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu;
        dg_round round;
        dg_session_get_round(s, &round);
        count_nodes(&round, out);
        const int bin = sample_context_bin(length);
        out->at[bin].tokens += n, out->at[bin].seconds += seconds;
        if (rounds) json_array_append_new(rounds, round_json(&round, length, n, seconds));
        length += n, out->tokens += n;
    }
    return DG_OK;
}

/* Makes the session hold these tokens with nothing reused. */
static dg_status begin(dg_session *s, const bench_tokens *t) {
    const int32_t other = t->id[0] == 0;
    const dg_status st = dg_session_sync(s, &other, 1);
    return st == DG_OK ? dg_session_sync(s, t->id, t->n) : st;
}

/* Rounds on another text, which count for nothing: caches, the threads, M and the automatic budget get warm.
 */
static dg_status warm_up(const bench_run *r, dg_session *s, int rounds) {
    size_t n = 0;
    for (int i = 0; i < rounds; i++) {
        dg_status st = DG_OK;
        if (!n) {
            dg_session_limit(s, 0);
            st = begin(s, &r->warm);
        }
        if (st == DG_OK) st = dg_session_step(s, NULL, 0, &n);
        if (st != DG_OK && st != DG_ERR_CONTEXT_FULL) return st;
        if (st != DG_OK || dg_session_stopped(s) != DG_STOP_NONE) n = 0; /* full: from the start */
    }
    return DG_OK;
}

/* FNV-1a over tokens */
static uint64_t hash_tokens(const int32_t *id, size_t n) {
    uint64_t h = 0xcbf29ce484222325u;
    const uint8_t *p = (const uint8_t *)id;
    for (size_t i = 0; i < n * sizeof *id; i++) h = (h ^ p[i]) * 0x100000001b3u;
    return h;
}

static dg_status run_arm(const bench_run *r, const bench_arm *a, const bench_tokens *prompt, sample *out,
                         json_t *rounds) {
    dg_session_options o = bench_arm_options(a, r->context, r->seed);
    o.ignore_stop_tokens = !r->obey_stop;
    dg_session *s = NULL;
    *out = (sample){.prompt = prompt->n};
    reset_peak();
    dg_status st = dg_session_create(r->model, &o, &s);
    if (st == DG_OK) st = warm_up(r, s, a->warmup);
    if (st == DG_OK) st = begin(s, prompt);
    dg_stats stats;
    if (st == DG_OK) {
        dg_session_get_stats(s, &stats);
        out->prefill = stats.prefill_seconds;
        dg_session_reset_stats(s);
        st = timed_rounds(r, a, s, out, rounds);
    }
    if (st == DG_OK) {
        dg_session_get_stats(s, &stats);
        out->rounds = stats.rounds, out->passes = stats.drafter_passes, out->rows = stats.verified_rows;
        out->draft = stats.draft_seconds, out->verify = stats.verify_seconds;
        size_t n;
        const int32_t *id = dg_session_tokens(s, &n);
        out->text = hash_tokens(id + prompt->n, n - prompt->n);
        out->peak = read_peak();
    }
    dg_session_free(s);
    return st;
}

/* ---- one prompt ------------------------------------------------------------------------------- */

bool bench_run_begin(bench_run *r) {
    const size_t n = (size_t)r->prompts.n;
    r->category_of = calloc(n + 1, sizeof *r->category_of);
    if (!r->category_of) return false;
    for (int p = 0; p < r->prompts.n; p++) {
        int c = 0;
        while (c < r->n_category && strcmp(r->category[c], r->prompts.v[p].category)) c++;
        if (c == BENCH_CATEGORIES) return false;
        if (c == r->n_category) r->category[r->n_category++] = r->prompts.v[p].category;
        r->category_of[p] = c;
    }
    const size_t runs = (size_t)r->repeat * (size_t)r->arms.n;
    r->now = calloc(runs, sizeof *r->now);
    r->sum = calloc((size_t)r->arms.n * (size_t)r->n_category + 1, sizeof *r->sum);
    r->brief = calloc(n * runs + 1, sizeof *r->brief);
    return r->now && r->sum && r->brief;
}

/* The results of prompt n_done are complete. */
static void account(bench_run *r) {
    const int p = r->n_done++;
    for (int rep = 0; rep < r->repeat; rep++)
        for (int arm = 0; arm < r->arms.n; arm++) {
            const sample *s = bench_now(r, rep, arm);
            sample_add(bench_sum(r, arm, r->category_of[p]), s);
            *bench_brief_at(r, p, rep, arm) = (bench_brief){s->seconds, s->cpu, s->tokens, s->equal};
        }
}

static json_t *record(const bench_run *r, int rep, int arm, int turn, json_t *rounds) {
    json_t *j = sample_to_json(bench_now(r, rep, arm));
    json_object_set_new(j, "arm", json_string(r->arms.v[arm].label));
    json_object_set_new(j, "repeat", json_integer(rep));
    json_object_set_new(j, "turn", json_integer(turn));
    if (rounds) json_object_set_new(j, "each_round", rounds);
    return j;
}

/* All arms once; false if something failed or it was to stop. */
static bool run_arms(bench_run *r, int rep, const volatile int *stop, json_t *list) {
    const int n = r->arms.n, p = r->n_done, first = (p + rep) % n;
    json_t *rounds[BENCH_ARMS] = {NULL};
    int turn[BENCH_ARMS];
    bool ok = true;
    for (int i = 0; ok && i < n; i++) {
        const int arm = (first + i) % n;
        turn[arm] = i;
        rounds[arm] = r->every_round ? json_array() : NULL;
        ok = !*stop && run_arm(r, &r->arms.v[arm], &r->ids[p], bench_now(r, rep, arm), rounds[arm]) == DG_OK;
    }
    for (int arm = 0; arm < n; arm++) {
        if (!ok) {
            json_decref(rounds[arm]);
            continue;
        }
        sample *s = bench_now(r, rep, arm);
        const sample *plain = bench_now(r, rep, r->arms.v[arm].plain);
        s->equal = sample_same_text(s, plain);
        json_array_append_new(list, record(r, rep, arm, turn[arm], rounds[arm]));
    }
    return ok;
}

json_t *bench_run_prompt(bench_run *r, const volatile int *stop) {
    json_t *list = json_array();
    for (int rep = 0; rep < r->repeat; rep++)
        if (!run_arms(r, rep, stop, list)) {
            json_decref(list);
            return NULL;
        }
    account(r);
    return list;
}

bool bench_restore_prompt(bench_run *r, const json_t *list) {
    if (r->n_done == r->prompts.n || json_array_size(list) != (size_t)(r->repeat * r->arms.n)) return false;
    for (int rep = 0; rep < r->repeat; rep++)
        for (int arm = 0; arm < r->arms.n; arm++) {
            const json_t *j = json_array_get(list, (size_t)(rep * r->arms.n + arm));
            const char *label = json_string_value(json_object_get(j, "arm"));
            if (!label || strcmp(label, r->arms.v[arm].label) || !sample_from_json(j, bench_now(r, rep, arm)))
                return false;
        }
    account(r);
    return true;
}

void bench_run_free(bench_run *r) {
    for (int i = 0; r->ids && i < r->prompts.n; i++) free(r->ids[i].id);
    free(r->ids), free(r->warm.id), free(r->category_of), free(r->now), free(r->sum), free(r->brief);
    bench_prompts_free(&r->prompts);
    bench_arms_free(&r->arms);
    dg_model_close(r->model);
}
