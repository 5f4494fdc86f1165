/* See provenance.h. */
#include "bench/provenance.h"

#include <ctype.h>
#include <dirent.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "bench/summary.h"
#include "revision.h" /* written by the Makefile: DG_REVISION, DG_FLAGS */

/* ---- the machine ------------------------------------------------------------------------------ */

/* First line of a file; false if it cannot be read. */
static bool first_line(const char *path, char *out, size_t cap) {
    FILE *f = fopen(path, "r");
    if (!f) return false;
    const bool ok = fgets(out, (int)cap, f) != NULL;
    fclose(f);
    if (ok) out[strcspn(out, "\n")] = 0;
    return ok;
}

static void processor(char *out, size_t cap) {
    FILE *f = fopen("/proc/cpuinfo", "r");
    char line[512];
    snprintf(out, cap, "unknown processor");
    while (f && fgets(line, sizeof line, f)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) || !colon) continue;
        snprintf(out, cap, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
        break;
    }
    if (f) fclose(f);
}

void provenance_machine_name(int threads, char *out, size_t cap) {
    char cpu[256];
    processor(cpu, sizeof cpu);
    size_t n = 0;
    for (const char *p = cpu; *p && n + 16 < cap; p++) {
        if (*p == '(') { /* "(R)" */
            p += strcspn(p, ")");
            if (!*p) break;
        } else if (isalnum((unsigned char)*p) || *p == '.') {
            out[n++] = (char)tolower((unsigned char)*p);
        } else if (n && out[n - 1] != '-') {
            out[n++] = '-';
        }
    }
    while (n && out[n - 1] == '-') n--;
    snprintf(out + n, cap - n, "-%dt", threads);
}

/* Throttling events of all cores since the machine started; -1: not told. */
static json_int_t throttled(void) {
    json_int_t sum = -1;
    for (int cpu = 0; cpu < 1024; cpu++) {
        char path[128], text[32];
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/thermal_throttle/core_throttle_count",
                 cpu);
        if (!first_line(path, text, sizeof text)) break;
        sum = (sum < 0 ? 0 : sum) + strtoll(text, NULL, 10);
    }
    return sum;
}

json_t *provenance_state(void) {
    char governor[64], when[64];
    double load[3] = {-1, -1, -1};
    const time_t now = time(NULL);
    struct tm utc;
    gmtime_r(&now, &utc);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &utc);
    if (!first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", governor, sizeof governor))
        snprintf(governor, sizeof governor, "not told");
    if (getloadavg(load, 3) < 3) load[0] = load[1] = load[2] = -1;
    return json_pack("{s:s,s:s,s:[f,f,f],s:I}", "time", when, "governor", governor, "load", load[0], load[1],
                     load[2], "throttled", throttled());
}

static json_t *machine(void) {
    char cpu[256];
    struct utsname u;
    processor(cpu, sizeof cpu);
    uname(&u);
    const double memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    return json_pack("{s:s,s:I,s:f,s:s,s:s}", "processor", cpu, "cores",
                     (json_int_t)sysconf(_SC_NPROCESSORS_ONLN), "memory_gib",
                     round(10 * memory / 1073741824) / 10, "system", u.sysname, "kernel", u.release);
}

/* ---- models ----------------------------------------------------------------------------------- */

static uint64_t fnv(uint64_t h, const void *data, size_t n) {
    for (const uint8_t *p = data; n--; p++) h = (h ^ *p) * 0x100000001b3u;
    return h;
}

static uint64_t hash_file(uint64_t h, const char *path, bool *found) {
    enum { PART = 1 << 20 };
    FILE *f = fopen(path, "rb");
    char *part = malloc(PART);
    struct stat st;
    if (f && part && !fstat(fileno(f), &st)) {
        const int64_t size = st.st_size;
        h = fnv(h, &size, sizeof size);
        h = fnv(h, part, fread(part, 1, PART, f));
        if (size > PART && !fseeko(f, size - PART, SEEK_SET)) h = fnv(h, part, fread(part, 1, PART, f));
        *found = true;
    }
    free(part);
    if (f) fclose(f);
    return h;
}

static int weights_or_config(const struct dirent *e) {
    const char *dot = strrchr(e->d_name, '.');
    return !strcmp(e->d_name, "config.json") || strstr(e->d_name, "calibration.json") ||
           (dot && (!strcmp(dot, ".safetensors") || !strcmp(dot, ".gguf")));
}

void provenance_hash(const char *path, char out[32]) {
    uint64_t h = 0xcbf29ce484222325u;
    bool found = false;
    struct dirent **entry;
    const int n = scandir(path, &entry, weights_or_config, alphasort);
    for (int i = 0; i < n; i++) {
        char file[4096];
        snprintf(file, sizeof file, "%s/%s", path, entry[i]->d_name);
        h = hash_file(h, file, &found);
        free(entry[i]);
    }
    if (n >= 0) {
        free(entry);
    } else {
        char beside[4096];
        snprintf(beside, sizeof beside, "%s.calibration.json", path);
        h = hash_file(h, path, &found);
        h = hash_file(h, beside, &found);
    }
    out[0] = 0;
    if (found) snprintf(out, 32, "%016" PRIx64, h);
}

/* ---- setup ------------------------------------------------------------------------------------ */

static json_t *arm_json(const bench_arm *a) {
    json_t *drafts = json_array();
    for (size_t i = 0; i < a->n_draft; i++) {
        const dg_draft *d = &a->draft[i];
        char hash[32] = "";
        if (d->path) provenance_hash(d->path, hash);
        json_t *one = json_pack("{s:s,s:s}", "name", d->name, "params", d->params ? d->params : "");
        if (d->path)
            json_object_set_new(one, "path", json_string(d->path)),
                json_object_set_new(one, "hash", json_string(hash));
        json_array_append_new(drafts, one);
    }
    json_t *j = json_pack("{s:s,s:s,s:s,s:o,s:o,s:f,s:i,s:s}", "label", a->label, "family", a->family, "mode",
                          a->mode->name, "drafts", drafts, "budget",
                          a->budget ? json_integer(a->budget) : json_string("auto"), "temperature",
                          (double)a->temperature, "warmup_rounds", a->warmup, "calibration",
                          *a->calibration ? a->calibration : "the library's choice");
    if (a->handicap > 0) json_object_set_new(j, "handicap_for_testing", json_real(a->handicap));
    return j;
}

json_t *provenance_setup(const bench_run *r) {
    char hash[32];
    dg_model_info info;
    dg_model_get_info(r->model, &info);
    provenance_hash(info.path, hash);
    json_t *arms = json_array(), *prompts = json_array(), *skipped = json_array();
    for (int i = 0; i < r->arms.n; i++) json_array_append_new(arms, arm_json(&r->arms.v[i]));
    for (int i = 0; i < r->arms.n_skip; i++)
        json_array_append_new(
            skipped, json_pack("{s:s,s:s}", "label", r->arms.skip[i].label, "why", r->arms.skip[i].why));
    uint64_t h = 0xcbf29ce484222325u;
    for (int i = 0; i < r->prompts.n; i++) {
        const bench_prompt *p = &r->prompts.v[i];
        h = fnv(h, p->text, strlen(p->text) + 1);
        json_array_append_new(prompts, json_pack("{s:s,s:s,s:I}", "id", p->id, "category", p->category,
                                                 "tokens", (json_int_t)r->ids[i].n));
    }
    char texts[24];
    snprintf(texts, sizeof texts, "%016" PRIx64, h);
    json_t *j = json_pack("{s:{s:s,s:s,s:s,s:s,s:s},s:o}", "program", "version", dg_version(), "revision",
                          DG_REVISION, "flags", DG_FLAGS, "compiler", __VERSION__, "libraries",
                          dg_build_info(), "machine", machine());
    json_object_set_new(j, "model",
                        json_pack("{s:s,s:s,s:s,s:s,s:I}", "path", info.path, "hash", hash, "weights",
                                  info.weight_types, "backend", info.backend, "weight_bytes",
                                  (json_int_t)info.weight_bytes));
    json_object_set_new(j, "settings",
                        json_pack("{s:s,s:i,s:i,s:I,s:b,s:b,s:s}", "device", r->device, "tokens", r->n_tokens, "repeat", r->repeat,
                                  "seed", (json_int_t)r->seed, "every_round", r->every_round,
                                  "stops_at_end_token", r->obey_stop, "prompt_texts", texts));
    json_object_set_new(j, "arms", arms);
    json_object_set_new(j, "skipped", skipped);
    json_object_set_new(j, "prompts", prompts);
    return j;
}

/* ---- doubts and differences ------------------------------------------------------------------- */

static void warn(json_t *list, const char *format, double a, double b) {
    char text[256];
    snprintf(text, sizeof text, format, a, b);
    json_array_append_new(list, json_string(text));
}

json_t *provenance_warnings(const bench_run *r, const json_t *start, const json_t *end) {
    json_t *list = json_array();
    const double load = json_number_value(json_array_get(json_object_get(start, "load"), 0));
    if (load > 0.5)
        warn(list, "the machine was loaded at the start: load average %.2f (%.0f cores)", load,
             (double)sysconf(_SC_NPROCESSORS_ONLN));
    const double late = json_number_value(json_array_get(json_object_get(end, "load"), 0));
    const double cores = (double)sysconf(_SC_NPROCESSORS_ONLN);
    if (late > cores + 0.5)
        warn(list, "more was running than the benchmark: load average %.2f at the end (%.0f cores)", late,
             cores);
    const json_int_t before = json_integer_value(json_object_get(start, "throttled"));
    const json_int_t after = json_integer_value(json_object_get(end, "throttled"));
    if (before >= 0 && after > before)
        warn(list, "the processor throttled %.0f times", (double)(after - before), 0);
    const double drift = bench_drift(r);
    if (!isnan(drift) && fabs(drift - 1) > 0.05)
        warn(list,
             "plain decoding drifted: %.2f of its speed in the last quarter of the prompts against the first",
             drift, 0);
    return list;
}

static void differ(json_t *list, const char *name, const json_t *a, const json_t *b) {
    if (a && b && json_equal(a, b)) return;
    if (json_is_object(a) && json_is_object(b)) {
        const char *key;
        json_t *value;
        char path[512];
        json_object_foreach((json_t *)a, key, value) {
            snprintf(path, sizeof path, "%s%s%s", name, *name ? "." : "", key);
            differ(list, path, value, json_object_get(b, key));
        }
        json_object_foreach((json_t *)b, key, value) {
            snprintf(path, sizeof path, "%s%s%s", name, *name ? "." : "", key);
            if (!json_object_get(a, key)) differ(list, path, NULL, value);
        }
        return;
    }
    if (json_is_array(a) && json_is_array(b) && json_array_size(a) == json_array_size(b)) {
        for (size_t i = 0; i < json_array_size(a); i++) {
            char path[512];
            const char *label = json_string_value(json_object_get(json_array_get(a, i), "label"));
            if (label)
                snprintf(path, sizeof path, "%s[%s]", name, label);
            else
                snprintf(path, sizeof path, "%s[%zu]", name, i);
            differ(list, path, json_array_get(a, i), json_array_get(b, i));
        }
        return;
    }
    char *x = a ? json_dumps(a, JSON_ENCODE_ANY | JSON_COMPACT) : NULL,
         *y = b ? json_dumps(b, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    char line[1024];
    snprintf(line, sizeof line, "%s: %.400s | %.400s", name, x ? x : "none", y ? y : "none");
    json_array_append_new(list, json_string(line));
    free(x), free(y);
}

json_t *provenance_differences(const json_t *a, const json_t *b) {
    json_t *list = json_array();
    differ(list, "", a, b);
    return list;
}
