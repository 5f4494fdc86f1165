/* Modes x prompts, end to end: tokens per second beside plain decoding, acceptance length, equality of the text.
 *
 * Plain decoding is always an arm. Arms are interleaved prompt by prompt in one process and their order rotates, so that
 * a drifting machine drifts for all. Uses the public header alone. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "runtime/dgraft.h"

enum { MAX_PROMPTS = 1024, MAX_ARMS = 32, MAX_DRAFTS = 4, MAX_CATEGORIES = 16 };

typedef struct prompt {
    char *category;
    int32_t *ids;
    size_t n;
} prompt;

typedef struct result { /* of one arm on one prompt */
    double seconds, cpu, ratio; /* cpu: seconds of this process's threads */
    size_t tokens;
    bool equal;
} result;

typedef struct arm {
    const dg_mode *mode;
    char spec[512]; /* the mode's drafts, cut into pieces that `draft` points to */
    dg_draft draft[MAX_DRAFTS];
    size_t n_draft;
    dg_session *session;
    dg_stats stats; /* summed over prompts */
    result result[MAX_PROMPTS];
} arm;

typedef struct bench {
    const char *model, *csv, *json, *modes;
    const char *drafter[MAX_DRAFTS]; /* PATH or NAME:PATH */
    int n_drafter;
    const char *file[32];
    int n_file, n_tokens, per_category, budget, threads;
    float temperature;
    dg_model *m;
    prompt prompt[MAX_PROMPTS];
    int n_prompt;
    arm arm[MAX_ARMS];
    int n_arm;
    const char *category[MAX_CATEGORIES];
    int n_category;
    int argc;
    char **argv;
} bench;

static double seconds_of(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double now(void) { return seconds_of(CLOCK_MONOTONIC); }

static _Noreturn void die(const char *what) {
    fprintf(stderr, "bench: %s\n", what);
    exit(1);
}

static void need(dg_status st) {
    if (st != DG_OK) die(dg_error_message());
}

/* ---- prompts ---------------------------------------------------------------------------------- */

static int category_index(bench *b, const char *name) {
    for (int i = 0; i < b->n_category; i++)
        if (!strcmp(b->category[i], name)) return i;
    if (b->n_category == MAX_CATEGORIES) die("too many categories");
    b->category[b->n_category] = name;
    return b->n_category++;
}

static void add_prompt(bench *b, const char *category, const char *text) {
    int have = 0;
    for (int i = 0; i < b->n_prompt; i++) have += !strcmp(b->prompt[i].category, category);
    if (have >= b->per_category) return;
    if (b->n_prompt == MAX_PROMPTS) die("too many prompts");
    prompt *p = &b->prompt[b->n_prompt++];
    const dg_message message = {"user", text};
    char *chat = NULL;
    int flags = DG_TOKENIZE_BOS;
    if (dg_chat_format(b->m, &message, 1, -1, &chat) == DG_OK) flags = DG_TOKENIZE_SPECIAL;
    const char *full = chat ? chat : text;
    need(dg_tokenize(b->m, full, strlen(full), flags, NULL, 0, &p->n));
    p->ids = malloc((p->n + 1) * sizeof *p->ids);
    need(dg_tokenize(b->m, full, strlen(full), flags, p->ids, p->n, &p->n));
    p->category = strdup(category);
    category_index(b, p->category);
    dg_free(chat);
}

static void read_prompts(bench *b, const char *path) {
    FILE *f = fopen(path, "r");
    if (!f) die("cannot read a prompt file");
    char *line = NULL;
    size_t cap = 0;
    for (int n = 1; getline(&line, &cap, f) > 0; n++) {
        json_error_t e;
        json_t *j = json_loads(line, 0, &e);
        const char *text = json_string_value(json_object_get(j, "prompt"));
        if (!text) text = json_string_value(json_array_get(json_object_get(j, "turns"), 0));
        const char *category = json_string_value(json_object_get(j, "category"));
        if (!text) {
            fprintf(stderr, "bench: %s:%d: expected an object with \"prompt\" or \"turns\"\n", path, n);
            exit(1);
        }
        add_prompt(b, category ? category : "all", text);
        json_decref(j);
    }
    free(line);
    fclose(f);
}

/* ---- arms ------------------------------------------------------------------------------------- */

/* The path for {name}: one given as name:PATH, else one without a drafter's name. */
static const char *path_for(const bench *b, const char *mode, const char *name, size_t len) {
    const char *any = NULL;
    for (int i = 0; i < b->n_drafter; i++) {
        const char *given = b->drafter[i];
        if (!strncmp(given, name, len) && given[len] == ':') return given + len + 1;
        bool named = false;
        for (size_t k = 0; k < dg_drafter_count(); k++) {
            const size_t n = strlen(dg_drafter_name(k));
            named = named || (!strncmp(given, dg_drafter_name(k), n) && given[n] == ':');
        }
        if (!named) any = given;
    }
    if (any) return any;
    fprintf(stderr, "bench: mode %s needs the weights of %.*s: --drafter [NAME:]PATH\n", mode, (int)len, name);
    exit(2);
}

/* Cuts "dflash:{dflash},tree=1 ngram" into drafts. */
static void parse_drafts(bench *b, arm *a) {
    size_t used = 0;
    for (const char *from = a->mode->drafts; *from;) {
        const char *end = *from == '{' ? strchr(from, '}') : NULL;
        if (end) {
            const char *path = path_for(b, a->mode->name, from + 1, (size_t)(end - from) - 1);
            used += (size_t)snprintf(a->spec + used, sizeof a->spec - used, "%s", path);
            from = end + 1;
        } else if (used < sizeof a->spec - 1) {
            a->spec[used++] = *from++;
        }
        if (used >= sizeof a->spec - 1) die("the paths of the drafters are too long");
    }
    a->spec[used] = 0;
    for (char *one = strtok(a->spec, " "); one; one = strtok(NULL, " ")) {
        dg_draft *d = &a->draft[a->n_draft++];
        char *comma = strchr(one, ','), *colon = strchr(one, ':');
        if (comma) *comma = 0;
        if (colon) *colon = 0;
        *d = (dg_draft){one, colon ? colon + 1 : NULL, comma ? comma + 1 : NULL};
    }
}

static void open_arm(bench *b, const dg_mode *mode) {
    if (b->n_arm == MAX_ARMS) die("too many modes");
    arm *a = &b->arm[b->n_arm++];
    a->mode = mode;
    parse_drafts(b, a);
    int32_t context = 0;
    for (int i = 0; i < b->n_prompt; i++)
        if ((int32_t)b->prompt[i].n > context) context = (int32_t)b->prompt[i].n;
    const dg_session_options opt = {.context = context + b->n_tokens, .budget = b->budget ? b->budget : mode->budget,
                                    .draft = a->draft, .n_draft = a->n_draft, .ignore_stop_tokens = true,
                                    .sampler = {.temperature = b->temperature, .seed = 1}};
    need(dg_session_create(b->m, &opt, &a->session));
}

static void open_arms(bench *b) {
    char list[1024], *rest;
    snprintf(list, sizeof list, "plain,%s", b->modes); /* plain is always there, once */
    for (char *name = strtok_r(list, ",", &rest); name; name = strtok_r(NULL, ",", &rest)) {
        const dg_mode *mode = NULL;
        for (size_t i = 0; i < dg_mode_count() && !mode; i++)
            if (!strcmp(dg_mode_get(i)->name, name)) mode = dg_mode_get(i);
        if (!mode) {
            fprintf(stderr, "bench: there is no mode \"%s\"; see dgraft modes\n", name);
            exit(2);
        }
        bool seen = false;
        for (int i = 0; i < b->n_arm; i++) seen = seen || b->arm[i].mode == mode;
        if (!seen) open_arm(b, mode);
    }
}

static void add_stats(dg_stats *sum, const dg_stats *s) {
    sum->rounds += s->rounds, sum->tokens += s->tokens, sum->verified_rows += s->verified_rows;
    for (int i = 0; i < DG_STATS_SOURCES; i++) sum->proposed[i] += s->proposed[i], sum->accepted[i] += s->accepted[i];
    for (int i = 0; i < DG_STATS_DEPTH; i++) sum->accepted_at[i] += s->accepted_at[i];
    sum->draft_seconds += s->draft_seconds, sum->verify_seconds += s->verify_seconds, sum->commit_seconds += s->commit_seconds;
}

/* Decodes n_tokens behind one prompt; prefill is not timed. */
static void run_arm(bench *b, arm *a, int p, bool count) {
    const prompt *pr = &b->prompt[p];
    const int32_t clear = pr->ids[0] == 0; /* another token than the first */
    need(dg_session_sync(a->session, &clear, 1)); /* nothing is reused between prompts */
    need(dg_session_sync(a->session, pr->ids, pr->n));
    dg_session_reset_stats(a->session);
    const double start = now(), cpu = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
    need(dg_session_generate(a->session, (size_t)b->n_tokens, NULL, NULL, NULL));
    const double seconds = now() - start;
    if (!count) return;
    dg_stats st;
    dg_session_get_stats(a->session, &st);
    add_stats(&a->stats, &st);
    a->result[p] = (result){.seconds = seconds, .cpu = seconds_of(CLOCK_PROCESS_CPUTIME_ID) - cpu, .tokens = st.tokens};
}

static bool same_text(const arm *a, const arm *plain) {
    size_t n, m;
    const int32_t *x = dg_session_tokens(a->session, &n), *y = dg_session_tokens(plain->session, &m);
    return n == m && !memcmp(x, y, n * sizeof *x);
}

static void run_all(bench *b) {
    const double start = now();
    for (int a = 0; a < b->n_arm; a++) run_arm(b, &b->arm[a], 0, false); /* warm-up */
    for (int p = 0; p < b->n_prompt; p++) {
        for (int i = 0; i < b->n_arm; i++) run_arm(b, &b->arm[(i + p) % b->n_arm], p, true);
        for (int a = 0; a < b->n_arm; a++) {
            result *r = &b->arm[a].result[p];
            r->ratio = b->arm[0].result[p].seconds / r->seconds;
            r->equal = same_text(&b->arm[a], &b->arm[0]);
        }
        const double left = (now() - start) / (p + 1) * (b->n_prompt - p - 1);
        fprintf(stderr, "\r%d of %d prompts, %.0f s left   ", p + 1, b->n_prompt, left);
    }
    fprintf(stderr, "\r%*s\r", 40, "");
}

/* ---- report ----------------------------------------------------------------------------------- */

static int by_value(const void *x, const void *y) {
    const double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

/* Quantile q of a figure over the prompts of a category (NULL: all). */
static double quantile(const bench *b, const arm *a, const char *category, bool ratio, double q) {
    double v[MAX_PROMPTS];
    int n = 0;
    for (int p = 0; p < b->n_prompt; p++)
        if (!category || !strcmp(b->prompt[p].category, category))
            v[n++] = ratio ? a->result[p].ratio : (double)a->result[p].tokens / a->result[p].seconds;
    qsort(v, (size_t)n, sizeof *v, by_value);
    const double at = q * (n - 1);
    const int lo = (int)at, hi = lo + 1 < n ? lo + 1 : lo;
    return v[lo] + (at - lo) * (v[hi] - v[lo]);
}

static int count_equal(const bench *b, const arm *a) {
    int n = 0;
    for (int p = 0; p < b->n_prompt; p++) n += a->result[p].equal;
    return n;
}

static double share_accepted(const dg_stats *s) {
    uint64_t p = 0, a = 0;
    for (int i = 0; i < DG_STATS_SOURCES; i++) p += s->proposed[i], a += s->accepted[i];
    return p ? (double)a / (double)p : 0;
}

static void print_table(const bench *b) {
    printf("%-14s %8s %17s %6s %6s %6s %6s %22s %9s\n", "mode", "tok/s", "ratio to plain", "p10", "p90", "tau", "acc",
           "ms draft/verify/rest", "identical");
    for (int i = 0; i < b->n_arm; i++) {
        const arm *a = &b->arm[i];
        const dg_stats *s = &a->stats;
        const double r = (double)s->rounds;
        printf("%-14s %8.1f %17.3f %6.2f %6.2f %6.2f %5.0f%% %7.2f %6.2f %7.2f %5d/%d\n", a->mode->name,
               quantile(b, a, NULL, false, 0.5), quantile(b, a, NULL, true, 0.5), quantile(b, a, NULL, true, 0.1),
               quantile(b, a, NULL, true, 0.9), (double)s->tokens / r, 100 * share_accepted(s), 1e3 * s->draft_seconds / r,
               1e3 * s->verify_seconds / r, 1e3 * s->commit_seconds / r, count_equal(b, a), b->n_prompt);
    }
    printf("\nmedian ratio to plain by category\n%-14s", "");
    for (int c = 0; c < b->n_category; c++) printf(" %10.10s", b->category[c]);
    for (int i = 0; i < b->n_arm; i++) {
        printf("\n%-14s", b->arm[i].mode->name);
        for (int c = 0; c < b->n_category; c++) printf(" %10.3f", quantile(b, &b->arm[i], b->category[c], true, 0.5));
    }
    printf("\n");
}

static void write_csv(const bench *b) {
    FILE *f = fopen(b->csv, "w");
    if (!f) die("cannot write the CSV file");
    fprintf(f, "mode,prompt,category,tokens,seconds,tokens_per_second,ratio_to_plain,cpu_ratio_to_plain,identical\n");
    for (int i = 0; i < b->n_arm; i++)
        for (int p = 0; p < b->n_prompt; p++) {
            const result *r = &b->arm[i].result[p];
            fprintf(f, "%s,%d,%s,%zu,%.6f,%.3f,%.4f,%.4f,%d\n", b->arm[i].mode->name, p, b->prompt[p].category, r->tokens,
                    r->seconds, (double)r->tokens / r->seconds, r->ratio, b->arm[0].result[p].cpu / r->cpu, r->equal);
        }
    if (fclose(f)) die("cannot write the CSV file");
}

static void write_json(const bench *b) {
    dg_model_info info;
    dg_model_get_info(b->m, &info);
    json_t *modes = json_object(), *command = json_array();
    for (int i = 0; i < b->argc; i++) json_array_append_new(command, json_string(b->argv[i]));
    for (int i = 0; i < b->n_arm; i++) {
        const arm *a = &b->arm[i];
        json_object_set_new(modes, a->mode->name,
                            json_pack("{s:f,s:f,s:f,s:f,s:f,s:f,s:i,s:i}", "tokens_per_second", quantile(b, a, NULL, false, 0.5),
                                      "ratio_to_plain", quantile(b, a, NULL, true, 0.5), "ratio_p10",
                                      quantile(b, a, NULL, true, 0.1), "ratio_p90", quantile(b, a, NULL, true, 0.9),
                                      "acceptance_length", (double)a->stats.tokens / (double)a->stats.rounds, "accepted_share",
                                      share_accepted(&a->stats), "identical", count_equal(b, a), "prompts", b->n_prompt));
    }
    json_t *all = json_pack("{s:s,s:s,s:s,s:s,s:o,s:o}", "version", dg_version(), "build", dg_build_info(), "model", info.path,
                            "backend", info.backend, "command", command, "modes", modes);
    if (json_dump_file(all, b->json, JSON_INDENT(1))) die("cannot write the JSON file");
    json_decref(all);
}

/* ---- command line ----------------------------------------------------------------------------- */

static const char usage[] =
    "usage: bench -m MODEL [--drafter [NAME:]PATH]... [options] PROMPTS.jsonl...\n"
    "  --modes A,B,...     see dgraft modes (plain is always added)   [dflash,ddtree,ngram,pld]\n"
    "  -n N                tokens a prompt                            [64]\n"
    "  --per-category N    prompts taken of each category             [4]\n"
    "  --budget N          drafted nodes a round                      [the mode's]\n"
    "  --temp T            temperature                                [0]\n"
    "  -t N                threads                                    [one a core]\n"
    "  --csv FILE          every prompt and mode\n"
    "  --json FILE         the table, machine-readable\n";

static void parse(bench *b, int argc, char **argv) {
    b->argc = argc, b->argv = argv;
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i], *v = i + 1 < argc ? argv[i + 1] : NULL;
        if (!strcmp(a, "--help") || !strcmp(a, "-h")) fputs(usage, stdout), exit(0);
        if (a[0] != '-') {
            if (b->n_file == 32) die("too many prompt files");
            b->file[b->n_file++] = a;
            continue;
        }
        if (!v) fputs(usage, stderr), exit(2);
        i++;
        if (!strcmp(a, "-m")) b->model = v;
        else if (!strcmp(a, "--drafter")) {
            if (b->n_drafter == MAX_DRAFTS) die("too many drafters");
            b->drafter[b->n_drafter++] = v;
        }
        else if (!strcmp(a, "--modes")) b->modes = v;
        else if (!strcmp(a, "--csv")) b->csv = v;
        else if (!strcmp(a, "--json")) b->json = v;
        else if (!strcmp(a, "-n")) b->n_tokens = atoi(v);
        else if (!strcmp(a, "--per-category")) b->per_category = atoi(v);
        else if (!strcmp(a, "--budget")) b->budget = atoi(v);
        else if (!strcmp(a, "--temp")) b->temperature = (float)atof(v);
        else if (!strcmp(a, "-t")) b->threads = atoi(v);
        else fprintf(stderr, "bench: unknown option %s\n%s", a, usage), exit(2);
    }
    if (!b->model || !b->n_file || b->n_tokens < 1 || b->per_category < 1) fputs(usage, stderr), exit(2);
}

int main(int argc, char **argv) {
    static bench b = {.n_tokens = 64, .per_category = 4, .modes = "dflash,ddtree,ngram,pld"};
    parse(&b, argc, argv);
    const dg_model_options opt = {.threads = b.threads};
    need(dg_model_open(b.model, &opt, &b.m));
    for (int i = 0; i < b.n_file; i++) read_prompts(&b, b.file[i]);
    if (!b.n_prompt) die("no prompts");
    open_arms(&b);
    run_all(&b);
    print_table(&b);
    if (b.csv) write_csv(&b);
    if (b.json) write_json(&b);
    for (int i = 0; i < b.n_arm; i++) dg_session_free(b.arm[i].session);
    for (int i = 0; i < b.n_prompt; i++) free(b.prompt[i].ids), free(b.prompt[i].category);
    dg_model_close(b.m);
    return 0;
}
