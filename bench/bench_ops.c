/* The CPU backend against the machine: operations, whole passes, loading. See README.md here for the method.
 * Tables on standard output; --out writes CSV files that ops.gp plots. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench/bench_ops.h"

static const char usage[] =
    "usage: bench_ops [-m MODEL [--drafter PATH]...] [options]\n"
    "  -m MODEL         whole passes of this model as well\n"
    "  --drafter PATH   DFlash drafter whose proposal is timed; may be repeated\n"
    "  -t N             threads                               [one a core]\n"
    "  --rounds N       rounds, interleaved over what is compared [7]\n"
    "  -c N             rows of context of the passes         [128]\n"
    "  --compute NAME   default, f32 or int8                  [default]\n"
    "  --isa NAME       instruction set of the single operations [the best]\n"
    "  --only A,B,...   of matmul, attention, rest, steps, shares, prefill, proposal, load\n"
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

static int whole(const char *option, const char *text, int least, int most) {
    char *end;
    const long v = strtol(text, &end, 10);
    if (!*text || *end || v < least || v > most) {
        fprintf(stderr, "bench_ops: %s %s: expected %d to %d\n", option, text, least, most);
        exit(2);
    }
    return (int)v;
}

static void parse(settings *set, bool *peer, int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i], *v = i + 1 < argc ? argv[i + 1] : NULL;
        if (!strcmp(a, "--help") || !strcmp(a, "-h")) fputs(usage, stdout), exit(0);
        if (!strcmp(a, "--peer")) {
            *peer = true;
            continue;
        }
        if (!v) fputs(usage, stderr), exit(2);
        i++;
        if (!strcmp(a, "-m"))
            set->model = v;
        else if (!strcmp(a, "--drafter") && set->n_drafter < MAX_MODELS)
            set->drafter[set->n_drafter++] = v;
        else if (!strcmp(a, "-t"))
            set->threads = whole(a, v, 1, 256);
        else if (!strcmp(a, "--rounds"))
            set->rounds = whole(a, v, 1, MAX_ROUNDS);
        else if (!strcmp(a, "-c"))
            set->context = whole(a, v, 1, 7000);
        else if (!strcmp(a, "--compute"))
            set->compute = v;
        else if (!strcmp(a, "--isa"))
            set->isa = v;
        else if (!strcmp(a, "--only"))
            set->only = v;
        else if (!strcmp(a, "--out"))
            set->out = v;
        else
            fprintf(stderr, "bench_ops: unknown option %s\n%s", a, usage), exit(2);
    }
    if (strcmp(set->compute, "default") && strcmp(set->compute, "f32") && strcmp(set->compute, "int8")) {
        fprintf(stderr, "bench_ops: --compute %s: expected default, f32 or int8\n", set->compute);
        exit(2);
    }
    if (*peer && !set->model) fputs(usage, stderr), exit(2);
}

int main(int argc, char **argv) {
    settings set = {
        .rounds = 7, .context = 128, .compute = "default", .threads = (int)sysconf(_SC_NPROCESSORS_ONLN)};
    bool peer = false;
    parse(&set, &peer, argc, argv);
    if (set.out && mkdir(set.out, 0777) && errno != EEXIST) die(set.out, strerror(errno));
    if (peer) {
        bench_peer(&set);
        return 0;
    }
    if (section(&set, "matmul") || section(&set, "attention") || section(&set, "rest")) bench_ops(&set);
    if (set.model) bench_steps(&set);
    return 0;
}
