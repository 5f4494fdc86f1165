/* A backend against its device: operations, whole passes, loading. See README.md here for the method.
 * Tables on standard output; --out writes CSV files that ops.gp plots. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench/bench_ops.h"

static const char usage[] =
    "usage: bench_ops [-m MODEL [--drafter PATH]... | --shape NAME [--type NAME]] [options]\n"
    "  -m MODEL         whole passes of this model as well\n"
    "  --shape NAME     operations and whole passes of random weights of a known shape:\n"
    "                   qwen3-8b, llama-3.1-8b, smollm2-135m or tiny\n"
    "  --type NAME      of those weights: f32, f16, bf16, q8_0, q4_0, q4_1, q4_k or q6_k [bf16]\n"
    "  --keep PATH      leaves them there as a GGUF file      [in $TMPDIR while it runs]\n"
    "  --drafter PATH   DFlash drafter whose proposal is timed; may be repeated\n"
    "  --device NAME    cpu, cuda, cuda:N, or auto: a GPU if one can be used [cpu]\n"
    "  --bandwidth N    GB/s of a copy, the maker's figure; no roof is measured then\n"
    "  --no-exact       prompts and 17 rows or more by the device's libraries\n"
    "  -t N             threads                               [one a core]\n"
    "  --rounds N       rounds, interleaved over what is compared [7]\n"
    "  -c N             rows of context of the passes         [128]\n"
    "  --compute NAME   default, f32 or int8                  [default]\n"
    "  --isa NAME       instruction set of the single operations [the best]\n"
    "  --only A,B,...   of matmul, attention, rest, steps, shares, rounds, prefill, proposal, load\n"
    "  --peer           what llama-bench times, and nothing else (for peers.sh)\n"
    "  --out DIR        CSV files\n";

bool section(const settings *set, const char *name) {
    const size_t n = strlen(name);
    for (const char *at = set->only; at && *at; at += strcspn(at, ","), at += *at == ',')
        if (strcspn(at, ",") == n && !strncmp(at, name, n)) return true;
    return !set->only;
}

const char *isa_of(const char *describe) {
    static char isa[32];
    isa[0] = 0;
    sscanf(describe, "cpu, %31[^,]", isa);
    return isa;
}

double peak_of(const peaks *p, bool packed, const char *compute) {
    const double f32 = series_median(&p->f32), int8 = series_median(&p->int8);
    const double best = !packed || !strcmp(compute, "f32") ? 0 : !strcmp(compute, "int8") ? int8 : int8 / 2;
    return best > f32 ? best : f32;
}

FILE *csv_open(const settings *set, const char *name, const char *heading) {
    if (!set->out) return NULL;
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", set->out, name);
    FILE *f = fopen(path, "w");
    if (!f) die(path, strerror(errno));
    fprintf(f, "%s\n", heading);
    return f;
}

static _Noreturn void wrong(const char *option, const char *found, const char *expected) {
    fprintf(stderr, "bench_ops: %s %s: expected %s\n", option, found, expected);
    exit(2);
}

static int whole(const char *option, const char *text, int least, int most) {
    char *end, expected[64];
    const long v = strtol(text, &end, 10);
    snprintf(expected, sizeof expected, "%d to %d", least, most);
    if (!*text || *end || v < least || v > most) wrong(option, text, expected);
    return (int)v;
}

/* Options that say what is measured. */
static bool subject(settings *set, const char *a, const char *v) {
    if (!strcmp(a, "-m"))
        set->model = v;
    else if (!strcmp(a, "--shape")) {
        if (!shape_find(set->shape = v, &set->net)) wrong(a, v, shape_names());
    } else if (!strcmp(a, "--type")) {
        if (!shape_type_find(set->type_name = v, &set->type)) wrong(a, v, shape_type_names());
    } else if (!strcmp(a, "--keep"))
        set->keep = v;
    else if (!strcmp(a, "--drafter") && set->n_drafter < MAX_MODELS)
        set->drafter[set->n_drafter++] = v;
    else if (!strcmp(a, "--only"))
        set->only = v;
    else
        return false;
    return true;
}

/* Options that say how. */
static bool manner(settings *set, const char *a, const char *v) {
    char *end;
    if (!strcmp(a, "--device"))
        set->device = v;
    else if (!strcmp(a, "--bandwidth")) {
        set->bandwidth = 1e9 * strtod(v, &end);
        if (!*v || *end || !(set->bandwidth > 0 && set->bandwidth < 1e15)) wrong(a, v, "GB/s above 0");
    } else if (!strcmp(a, "-t"))
        set->threads = whole(a, v, 1, 256);
    else if (!strcmp(a, "--rounds"))
        set->rounds = whole(a, v, 1, MAX_ROUNDS);
    else if (!strcmp(a, "-c"))
        set->context = whole(a, v, 1, 7000);
    else if (!strcmp(a, "--compute"))
        set->compute = v;
    else if (!strcmp(a, "--isa"))
        set->isa = v;
    else if (!strcmp(a, "--out"))
        set->out = v;
    else
        return false;
    return true;
}

/* What does not go together. */
static void check(const settings *set) {
    if (strcmp(set->compute, "default") && strcmp(set->compute, "f32") && strcmp(set->compute, "int8"))
        wrong("--compute", set->compute, "default, f32 or int8");
    if (set->shape && set->model) wrong("--shape", set->shape, "it without -m");
    if (set->type_name && !set->shape) wrong("--type", set->type_name, "--shape beside it");
    if (set->keep && !set->shape) wrong("--keep", set->keep, "--shape beside it");
    const int32_t misfit = set->shape ? shape_misfit(&set->net, set->type) : 0;
    char expected[128];
    snprintf(expected, sizeof expected, "a type with blocks that rows of %d elements of %s are made of", misfit,
             set->shape ? set->shape : "");
    if (misfit) wrong("--type", dg_dtype_get(set->type)->name, expected);
}

static void parse(settings *set, bool *peer, int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i], *v = i + 1 < argc ? argv[i + 1] : NULL;
        if (!strcmp(a, "--help") || !strcmp(a, "-h")) fputs(usage, stdout), exit(0);
        if (!strcmp(a, "--peer")) {
            *peer = true;
            continue;
        }
        if (!strcmp(a, "--no-exact")) {
            set->inexact = true;
            continue;
        }
        if (!v) fprintf(stderr, "bench_ops: %s: a value is missing, or there is no such option\n%s", a, usage), exit(2);
        if (!subject(set, a, v) && !manner(set, a, v))
            fprintf(stderr, "bench_ops: unknown option %s\n%s", a, usage), exit(2);
        i++;
    }
    check(set);
    if (*peer && !set->model) fputs(usage, stderr), exit(2);
}

/* ---- a synthetic model ------------------------------------------------------------------------ */

/* Its file, without a name unless it is kept: it goes when the process ends, however that is. */
static const char *write_shape(const settings *set) {
    static char path[4096];
    const char *tmp = getenv("TMPDIR");
    if (set->keep)
        snprintf(path, sizeof path, "%s", set->keep);
    else
        snprintf(path, sizeof path, "%s/bench_ops-%ld.gguf", tmp ? tmp : "/tmp", (long)getpid());
    if (shape_write(&set->net, set->type, path) != DG_OK) die(set->shape, dg_error_message());
    if (set->keep) return path;
    const int fd = open(path, O_RDONLY);
    if (fd < 0 || unlink(path)) die(path, strerror(errno));
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return path;
}

static bool any(const settings *set, const char *const *name, int n) {
    for (int i = 0; i < n; i++)
        if (section(set, name[i])) return true;
    return false;
}

int main(int argc, char **argv) {
    static const char *const single[] = {"matmul", "attention", "rest"},
                             *const whole_model[] = {"steps", "shares", "rounds", "prefill", "proposal", "load"};
    static settings set = {.rounds = 7, .context = 128, .compute = "default", .device = "cpu", .type = DG_BF16};
    bool peer = false;
    set.threads = (int)sysconf(_SC_NPROCESSORS_ONLN);
    parse(&set, &peer, argc, argv);
    if (set.out && mkdir(set.out, 0777) && errno != EEXIST) die(set.out, strerror(errno));
    if (peer) {
        bench_peer(&set);
        return 0;
    }
    if (set.shape)
        printf("%s, random weights of %s\n", set.shape, dg_dtype_get(set.type)->name);
    if (any(&set, single, 3)) bench_ops(&set);
    if (!any(&set, whole_model, 6)) return 0;
    if (set.shape) set.model = write_shape(&set);
    if (set.model) bench_steps(&set);
    return 0;
}
