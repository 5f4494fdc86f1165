/* Identities, loading and looking up; see calibration.h. The file itself: calibration_file.c. */
#include "runtime/calibration.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* ---- who and where ---------------------------------------------------------------------------- */

/* Of names, sizes and the beginning of every tensor: another training run is another fingerprint, and only a page of each
 * tensor is read. */
static uint64_t fingerprint(const dg_file *f) {
    enum { BEGINNING = 256 };
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < f->n_tensor; i++) {
        const dg_file_tensor *t = &f->tensor[i];
        const struct {
            const void *data;
            size_t len;
        } part[] = {{t->name, strlen(t->name)}, {&t->size, sizeof t->size}, {t->data, t->size < BEGINNING ? t->size : BEGINNING}};
        for (size_t k = 0; k < sizeof part / sizeof *part; k++)
            for (size_t b = 0; b < part[k].len; b++) h = (h ^ ((const unsigned char *)part[k].data)[b]) * UINT64_C(0x100000001b3);
    }
    return h;
}

static void machine(const struct dg_model *model, dg_dtype kv, char *out, size_t size) {
    static const char *const compute[] = {[DG_COMPUTE_DEFAULT] = "default", [DG_COMPUTE_F32] = "f32", [DG_COMPUTE_INT8] = "int8"};
    char line[256], cpu[96] = "unknown processor";
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f && fgets(line, sizeof line, f)) {
        const char *name = strncmp(line, "model name", 10) == 0 ? strchr(line, ':') : NULL;
        if (!name) continue;
        name += 1 + strspn(name + 1, " \t");
        snprintf(cpu, sizeof cpu, "%.*s", (int)strcspn(name, "\n"), name);
        break;
    }
    if (f) fclose(f);
    dg_model_info info;
    dg_model_get_info(model, &info);
    snprintf(out, size, "%s; %s; compute %s; cache %s", cpu, info.backend, compute[model->options.compute],
             dg_dtype_get(kv)->name);
}

void dg_calibration_identify(const struct dg_model *model, const dg_file *drafter, dg_dtype kv, dg_calibration *out) {
    const dg_config *c = &model->net.config;
    snprintf(out->target, sizeof out->target, "%.32s, %d layers of %d, vocabulary %d, %016llx", c->arch_name, c->n_layer,
             c->hidden_size, c->vocab_size, (unsigned long long)fingerprint(model->net.file));
    out->drafter[0] = '\0';
    if (drafter)
        snprintf(out->drafter, sizeof out->drafter, "%zu tensors, %zu bytes, %016llx", drafter->n_tensor, drafter->mapped,
                 (unsigned long long)fingerprint(drafter));
    machine(model, kv, out->machine, sizeof out->machine);
}

char *dg_calibration_path(const char *weights) {
    struct stat st;
    const bool dir = stat(weights, &st) == 0 && S_ISDIR(st.st_mode);
    const char *const end = dir ? "/dgraft-calibration.json" : ".calibration.json";
    const size_t n = strlen(weights) + strlen(end) + 1;
    char *path = dg_mem_alloc(n);
    if (path) snprintf(path, n, "%s%s", weights, end);
    return path;
}

/* ---- for a session ---------------------------------------------------------------------------- */

/* The first thing in which the file is about something else, NULL: none. */
static const char *difference(const dg_calibration *c, const dg_calibration *here, const char **was, const char **is) {
    const struct {
        const char *what, *was, *is;
    } part[] = {{"target", c->target, here->target}, {"drafter", c->drafter, here->drafter}, {"machine", c->machine, here->machine}};
    for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
        if (strcmp(part[i].was, part[i].is) == 0) continue;
        *was = part[i].was, *is = part[i].is;
        return part[i].what;
    }
    return NULL;
}

/* Who is here, into *here. */
static dg_status identify(const struct dg_model *model, const char *weights, dg_dtype kv, dg_calibration *here) {
    dg_file *file = NULL;
    if (weights) DG_TRY(dg_file_open(weights, &file));
    dg_calibration_identify(model, file, kv, here);
    dg_file_close(file);
    return DG_OK;
}

static dg_status take(const struct dg_model *model, const char *path, bool given, const char *weights, dg_dtype kv,
                      dg_calibration *c, bool *fits) {
    dg_calibration here = {0};
    DG_TRY(dg_calibration_read(path, c));
    DG_TRY(identify(model, weights, kv, &here));
    const char *was = "", *is = "", *what = difference(c, &here, &was, &is);
    *fits = !what;
    if (!what) {
        dg_model_log(model, DG_LOG_INFO, "%s: calibration of %d rounds", path, c->rounds);
        return DG_OK;
    }
    DG_CHECK(!given, DG_ERR_ARGUMENT, "%s: calibrated for another %s (%s; this is %s): run dgraft calibrate again", path, what,
             was[0] ? was : "none", is[0] ? is : "none");
    dg_model_log(model, DG_LOG_WARN, "%s is not used: calibrated for another %s (%s; this is %s); run dgraft calibrate again",
                 path, what, was[0] ? was : "none", is[0] ? is : "none");
    return DG_OK;
}

dg_status dg_calibration_load(const struct dg_model *model, const char *given, const char *weights, dg_dtype kv,
                              dg_calibration **out) {
    *out = NULL;
    if (given ? strcmp(given, "none") == 0 : !weights) return DG_OK;
    char *path = given ? dg_mem_strdup(given) : dg_calibration_path(weights);
    DG_CHECK(path, DG_ERR_MEMORY, "no memory for the calibration");
    struct stat there;
    if (!given && stat(path, &there) != 0) {
        dg_mem_free(path);
        return DG_OK;
    }
    dg_calibration *c = dg_mem_calloc(1, sizeof *c);
    bool fits = false;
    const dg_status st = c ? take(model, path, given, weights, kv, c, &fits) : DG_ERR_MEMORY;
    dg_mem_free(path);
    if (fits) {
        *out = c;
        return DG_OK;
    }
    dg_mem_free(c);
    DG_CHECK(st != DG_ERR_MEMORY, DG_ERR_MEMORY, "no memory for the calibration");
    return st;
}

const dg_calibration_source *dg_calibration_find(const dg_calibration *c, const char *name) {
    for (int32_t i = 0; i < c->n_source; i++)
        if (strcmp(c->source[i].name, name) == 0) return &c->source[i];
    return NULL;
}
