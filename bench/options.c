/* See options.h. */
#include "bench/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: dgraft-bench -m MODEL [--drafter [NAME:]PATH]... [options] PROMPTS...\n"
    "       dgraft-bench compare [--by ratio|speed] A.json B.json\n"
    "\n"
    "PROMPTS: the project's jsonl, Spec-Bench, MT-Bench, HumanEval, GSM8K, Alpaca, CNN/DM or LongBench "
    "files.\n"
    "Plain decoding is always an arm.\n"
    "\n"
    "What is compared\n"
    "  --modes A,B,...|main|all  see dgraft modes; \"\": only --arm and --ablate            [main]\n"
    "  --arm NAME=MODE[,K=V...]  one more; keys: budget, temp, warmup, calibration, and those of its "
    "drafters\n"
    "                            (DRAFTER.key=value where several take the key)\n"
    "  --ablate NAME             a sweep; --list names them\n"
    "  --budget A,B,...          drafted nodes a round, 1 to 255 or auto                  [the mode's]\n"
    "  --temp A,B,...            temperatures                                             [0]\n"
    "  --warmup N                rounds on another text before each prompt                [5]\n"
    "\n"
    "How\n"
    "  -n N                      tokens a prompt                                          [64]\n"
    "  --per-category N          prompts of each category, 0: all                         [4]\n"
    "  --max-prompt N            longer prompts are left out                              [what the model "
    "holds]\n"
    "  --repeat N                runs of every prompt and arm                             [1]\n"
    "  --seed N                  of sampling                                              [1]\n"
    "  --stop-at-end             an answer ends where the model ends it, not after N tokens\n"
    "  -t N                      threads                                                  [one a core]\n"
    "  --compute NAME            default, f32 or int8\n"
    "  --device NAME             cpu, cuda, cuda:N, or auto: a GPU if one can be used     [cpu]\n"
    "\n"
    "Files\n"
    "  --out DIR                 where everything is written                              "
    "[bench/results/<machine>]\n"
    "  --rounds                  every round in run.json\n"
    "  --resume                  go on with an interrupted run of the same options\n"
    "  --fresh                   forget an interrupted run\n"
    "  --no-machine              leave out the cost curve and copy bandwidth\n"
    "  --no-plots                data of the plots only\n"
    "  --scripts DIR             where the plots' scripts are                             [bench]\n"
    "  --list                    ablations, and the main modes\n";

typedef struct cursor {
    int argc, at;
    char **argv;
} cursor;

static bool wrong(const char *option, const char *expected, const char *found) {
    fprintf(stderr, "dgraft-bench: %s: expected %s, found %s\n", option, expected, found ? found : "nothing");
    return false;
}

static bool whole(const char *option, const char *text, long lo, long hi, int *v) {
    char *end = NULL, expected[64];
    const long x = text ? strtol(text, &end, 10) : 0;
    snprintf(expected, sizeof expected, "a whole number from %ld to %ld", lo, hi);
    if (!text || end == text || *end || x < lo || x > hi) return wrong(option, expected, text);
    *v = (int)x;
    return true;
}

static bool add(const char *option, const char **list, int *n, int cap, const char *text) {
    if (!text || !*text) return wrong(option, "a value", text);
    if (*n == cap) return wrong(option, "fewer of them", text);
    list[(*n)++] = text;
    return true;
}

static bool budgets(const char *text, bench_wish *w) {
    char copy[512], *rest = NULL;
    if (!text || strlen(text) >= sizeof copy) return wrong("--budget", "a list", text);
    snprintf(copy, sizeof copy, "%s", text);
    for (char *one = strtok_r(copy, ",", &rest); one; one = strtok_r(NULL, ",", &rest)) {
        int v = 0;
        if (strcmp(one, "auto") && !whole("--budget", one, 1, 255, &v)) return false;
        if (w->n_budget == BENCH_LIST) return wrong("--budget", "a shorter list", text);
        w->budget[w->n_budget++] = v;
    }
    return w->n_budget || wrong("--budget", "a list", text);
}

static bool temperatures(const char *text, bench_wish *w) {
    const char *p = text;
    for (w->n_temperature = 0; p && *p && w->n_temperature < BENCH_LIST;) {
        char *end;
        const double v = strtod(p, &end);
        if (end == p || !(v >= 0 && v <= 100) || (*end && *end != ','))
            return wrong("--temp", "numbers from 0 to 100", text);
        w->temperature[w->n_temperature++] = v;
        p = *end ? end + 1 : end;
    }
    return w->n_temperature || wrong("--temp", "numbers from 0 to 100", text);
}

static bool compute(const char *text, dg_compute *c) {
    static const char *const name[] = {"default", "f32", "int8"};
    for (int i = 0; text && i < 3; i++)
        if (!strcmp(text, name[i])) {
            *c = (dg_compute)i;
            return true;
        }
    return wrong("--compute", "default, f32 or int8", text);
}

static void list(void) {
    puts("Ablations (--ablate NAME):");
    for (size_t i = 0; bench_ablation_name(i); i++)
        printf("  %-10s %s\n", bench_ablation_name(i), bench_ablation_help(i));
}

static bool flag(const char *a, bench_options *o) {
    const struct {
        const char *name;
        bool *to;
    } t[] = {{"--resume", &o->resume},         {"--fresh", &o->fresh},
             {"--rounds", &o->every_round},    {"--stop-at-end", &o->obey_stop},
             {"--no-machine", &o->no_machine}, {"--no-plots", &o->no_plots}};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++)
        if (!strcmp(a, t[i].name)) return *t[i].to = true;
    return false;
}

/* An option with a value. */
static bool option(const char *a, const char *v, bench_options *o) {
    bench_wish *w = &o->wish;
    int n;
    if (!strcmp(a, "-m")) return (o->model = v) || wrong(a, "a model", v);
    if (!strcmp(a, "--drafter")) return add(a, w->drafter, &w->n_drafter, BENCH_PATHS, v);
    if (!strcmp(a, "--modes")) return (w->modes = v) || wrong(a, "modes", v);
    if (!strcmp(a, "--arm")) return add(a, w->arm, &w->n_arm, BENCH_LIST, v);
    if (!strcmp(a, "--ablate")) return add(a, w->ablate, &w->n_ablate, BENCH_LIST, v);
    if (!strcmp(a, "--handicap"))
        return add(a, w->handicap, &w->n_handicap, BENCH_PATHS, v); /* for testing: see the README */
    if (!strcmp(a, "--budget")) return budgets(v, w);
    if (!strcmp(a, "--temp")) return temperatures(v, w);
    if (!strcmp(a, "--warmup")) return whole(a, v, 0, 10000, &w->warmup);
    if (!strcmp(a, "-n")) return whole(a, v, 1, 1 << 20, &o->n_tokens);
    if (!strcmp(a, "--per-category")) return whole(a, v, 0, 1 << 20, &o->per_category);
    if (!strcmp(a, "--max-prompt")) return whole(a, v, 8, 1 << 24, &o->max_prompt);
    if (!strcmp(a, "--repeat")) return whole(a, v, 1, 64, &o->repeat);
    if (!strcmp(a, "-t")) return whole(a, v, 1, 1024, &o->threads);
    if (!strcmp(a, "--seed")) {
        if (!whole(a, v, 0, 2147483647, &n)) return false;
        o->seed = (uint64_t)n;
        return true;
    }
    if (!strcmp(a, "--compute")) return compute(v, &o->compute);
    if (!strcmp(a, "--device")) return (v && *(o->device = v)) || wrong(a, "cpu, cuda, cuda:N or auto", v);
    if (!strcmp(a, "--out")) return (o->out = v) || wrong(a, "a folder", v);
    if (!strcmp(a, "--scripts")) return (o->scripts = v) || wrong(a, "a folder", v);
    fprintf(stderr, "dgraft-bench: unknown option %s; see --help\n", a);
    return false;
}

bool bench_options_read(int argc, char **argv, bench_options *o) {
    *o = (bench_options){.wish = {.modes = "main", .temperature = {0}, .n_temperature = 1, .warmup = 5},
                         .scripts = "bench",
                         .device = "cpu",
                         .n_tokens = 64,
                         .per_category = 4,
                         .repeat = 1,
                         .seed = 1};
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];
        if (!strcmp(a, "--help") || !strcmp(a, "-h")) fputs(usage, stdout), exit(0);
        if (!strcmp(a, "--list")) list(), exit(0);
        if (a[0] != '-') {
            if (!add("PROMPTS", o->file, &o->n_file, BENCH_LIST, a)) return false;
        } else if (!flag(a, o) && !option(a, i + 1 < argc ? argv[i + 1] : NULL, o)) {
            return false;
        } else if (!flag(a, o)) {
            i++;
        }
    }
    if (!o->model) return wrong("-m", "a model", NULL);
    if (!o->n_file) return wrong("PROMPTS", "files", NULL);
    if (o->resume && o->fresh) return wrong("--resume", "it without --fresh", "both");
    return true;
}
