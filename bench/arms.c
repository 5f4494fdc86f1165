/* See arms.h. */
#include "bench/arms.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/ablations.h"

static const char main_modes[] =
    "pld,ngram,recycling,dflash,ddtree,graft-tail,graft-tail-tree,ngram-dflash,fused";

typedef struct maker {
    const bench_wish *w;
    bench_arms *out;
    char *error;
    size_t cap;
} maker;

/* "NAME=MODE,key=value,..." taken apart, before weights are filled in. */
typedef struct spec {
    char name[96], mode[96], keys[1024];
    bool own_budget, own_temperature;
    int budget, warmup;
    double temperature;
    char calibration[256];
} spec;

static bool refuse(const maker *k, const char *format, const char *a, const char *b, const char *c) {
    snprintf(k->error, k->cap, format, a, b, c);
    return false;
}

/* ---- names ------------------------------------------------------------------------------------ */

const char *bench_ablation_name(size_t i) {
    return i < sizeof bench_ablation_list / sizeof *bench_ablation_list ? bench_ablation_list[i].name : NULL;
}

const char *bench_ablation_help(size_t i) {
    return i < sizeof bench_ablation_list / sizeof *bench_ablation_list ? bench_ablation_list[i].help : NULL;
}

static const char *mode_name(size_t i) {
    const dg_mode *m = dg_mode_get(i);
    return m ? m->name : NULL;
}

/* Letters to change, insert or leave out to get from a to b. */
static size_t distance(const char *a, const char *b) {
    size_t row[128];
    const size_t n = strlen(b) < 127 ? strlen(b) : 127;
    for (size_t j = 0; j <= n; j++) row[j] = j;
    for (size_t i = 1; *a; a++, i++) {
        size_t corner = row[0];
        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            const size_t change = corner + (*a != b[j - 1]);
            corner = row[j];
            const size_t shorter = row[j] < row[j - 1] ? row[j] : row[j - 1];
            row[j] = change < shorter + 1 ? change : shorter + 1;
        }
    }
    return row[n];
}

/* The three names that are nearest. */
static void nearest(const char *name, const char *(*next)(size_t), char *out, size_t cap) {
    const char *best[3] = {NULL, NULL, NULL}, *known;
    for (size_t i = 0; (known = next(i)); i++)
        for (int b = 0; b < 3; b++)
            if (!best[b] || distance(name, known) < distance(name, best[b])) {
                memmove(best + b + 1, best + b, (size_t)(2 - b) * sizeof *best);
                best[b] = known;
                break;
            }
    snprintf(out, cap, "%s%s%s%s%s", best[0] ? best[0] : "", best[1] ? ", " : "", best[1] ? best[1] : "",
             best[2] ? ", " : "", best[2] ? best[2] : "");
}

static bool unknown(const maker *k, const char *what, const char *name, const char *(*next)(size_t)) {
    char near[256], format[64];
    nearest(name, next, near, sizeof near);
    snprintf(format, sizeof format, "there is no %s \"%%s\"; nearest: %%s%%s", what);
    return refuse(k, format, name, near, "");
}

static const dg_mode *find_mode(const char *name) {
    for (size_t i = 0; i < dg_mode_count(); i++)
        if (!strcmp(dg_mode_get(i)->name, name)) return dg_mode_get(i);
    return NULL;
}

/* ---- drafts ----------------------------------------------------------------------------------- */

static size_t drafter_prefix(const char *given) {
    for (size_t i = 0; i < dg_drafter_count(); i++) {
        const size_t n = strlen(dg_drafter_name(i));
        if (!strncmp(given, dg_drafter_name(i), n) && given[n] == ':') return n + 1;
    }
    return 0;
}

/* The path for {name}: one given as name:PATH, else one given without a name. */
static const char *path_for(const bench_wish *w, const char *name, size_t len) {
    const char *any = NULL;
    for (int i = 0; i < w->n_drafter; i++) {
        const char *given = w->drafter[i];
        if (!strncmp(given, name, len) && given[len] == ':') return given + len + 1;
        if (!drafter_prefix(given)) any = given;
    }
    return any;
}

/* The drafter's help line says which keys it takes: "width=8" or "[,width=N]". */
static bool knows_key(const char *drafter, const char *key, size_t len) {
    for (size_t i = 0; i < dg_drafter_count(); i++) {
        if (strcmp(dg_drafter_name(i), drafter)) continue;
        for (const char *at = dg_drafter_help(i); (at = strstr(at, key)); at += len) {
            const bool starts = at == dg_drafter_help(i) || strchr(" ,[;:", at[-1]);
            if (starts && at[len] == '=') return true;
        }
    }
    return false;
}

typedef struct words { /* where text is put together */
    bench_arm *arm;
    size_t used;
} words;

static char *say(words *t, const char *s, size_t n) {
    if (t->used + n + 2 > BENCH_TEXT) t->used = BENCH_TEXT - 2, n = 0; /* the caller notices at the end */
    char *at = t->arm->text + t->used;
    memcpy(at, s, n);
    at[n] = 0;
    t->used += n;
    return at;
}

/* Adds "key=value" of the specification to the drafter that takes it. */
static bool give_key(const maker *k, const spec *s, bench_arm *a, const char *pair, char extra[][512]) {
    const char *equals = strchr(pair, '='), *dot = strchr(pair, '.');
    if (!equals) return refuse(k, "arm %s: expected key=value, found \"%s\"%s", s->name, pair, "");
    const bool named = dot && dot < equals;
    const char *key = named ? dot + 1 : pair;
    char plain_key[64];
    snprintf(plain_key, sizeof plain_key, "%.*s", (int)(equals - key), key);
    int takers = 0, taker = -1;
    for (size_t i = 0; i < a->n_draft; i++) {
        const size_t n = strlen(a->draft[i].name);
        if (named && !(n == (size_t)(dot - pair) && !strncmp(pair, a->draft[i].name, n))) continue;
        if (!knows_key(a->draft[i].name, plain_key, strlen(plain_key))) continue;
        takers++, taker = (int)i;
    }
    if (!takers) return refuse(k, "arm %s: no drafter of mode %s takes \"%s\"", s->name, s->mode, pair);
    if (takers > 1)
        return refuse(k, "arm %s: several drafters of mode %s take \"%s\": write DRAFTER.key=value", s->name,
                      s->mode, pair);
    const size_t used = strlen(extra[taker]);
    snprintf(extra[taker] + used, sizeof extra[taker] - used, ",%s", key);
    return true;
}

/* The drafts of the mode, names and parameters; paths are still "{name}". */
static bool split_drafts(const maker *k, const spec *s, bench_arm *a, words *t) {
    const char *p = a->mode->drafts;
    while (*(p += strspn(p, " "))) {
        const size_t len = strcspn(p, " ");
        if (a->n_draft == DG_STATS_SOURCES)
            return refuse(k, "mode %s has too many drafters%s%s", s->mode, "", "");
        char *one = say(t, p, len);
        t->used++;
        dg_draft *d = &a->draft[a->n_draft++];
        char *comma = strchr(one, ','), *colon = strchr(one, ':');
        if (comma) *comma = 0;
        if (colon && (!comma || colon < comma))
            *colon = 0;
        else
            colon = NULL;
        *d = (dg_draft){one, colon ? colon + 1 : NULL, comma ? comma + 1 : NULL};
        p += len;
    }
    return true;
}

static bool give_keys(const maker *k, const spec *s, bench_arm *a, words *t) {
    char keys[sizeof s->keys], extra[DG_STATS_SOURCES][512] = {{0}}, *rest = NULL;
    snprintf(keys, sizeof keys, "%s", s->keys);
    for (char *pair = strtok_r(keys, ",", &rest); pair; pair = strtok_r(NULL, ",", &rest))
        if (!give_key(k, s, a, pair, extra)) return false;
    for (size_t i = 0; i < a->n_draft; i++) {
        if (!*extra[i]) continue;
        const char *old = a->draft[i].params ? a->draft[i].params : "",
                   *more = *old ? extra[i] : extra[i] + 1;
        const char *both = say(t, old, strlen(old));
        say(t, more, strlen(more));
        t->used++;
        a->draft[i].params = both;
    }
    return true;
}

/* Replaces "{name}" by the path; false, with the reason, where there is none. */
static bool fill_paths(const maker *k, bench_arm *a, words *t, char *why, size_t cap) {
    for (size_t i = 0; i < a->n_draft; i++) {
        const char *path = a->draft[i].path;
        if (!path || *path != '{') continue;
        const size_t len = strcspn(path + 1, "}");
        const char *found = path_for(k->w, path + 1, len);
        if (!found) {
            snprintf(why, cap, "needs the weights of %.*s: --drafter %.*s:PATH", (int)len, path + 1, (int)len,
                     path + 1);
            return false;
        }
        a->draft[i].path = say(t, found, strlen(found));
        t->used++;
    }
    return true;
}

/* ---- specifications --------------------------------------------------------------------------- */

static bool number(const char *text, double lo, double hi, double *v) {
    char *end;
    *v = strtod(text, &end);
    return end != text && !*end && *v >= lo && *v <= hi;
}

/* Keys of the benchmark itself: budget, temp, warmup, calibration; the others go to drafters. */
static bool take_key(const maker *k, spec *s, const char *pair) {
    double v = 0;
    if (!strncmp(pair, "budget=", 7)) {
        if (strcmp(pair + 7, "auto") && !number(pair + 7, 1, 255, &v))
            return refuse(k, "arm %s: budget: expected auto or 1 to 255, found \"%s\"%s", s->name, pair + 7,
                          "");
        s->own_budget = true, s->budget = (int)v;
    } else if (!strncmp(pair, "temp=", 5)) {
        if (!number(pair + 5, 0, 100, &v))
            return refuse(k, "arm %s: temp: expected 0 to 100, found \"%s\"%s", s->name, pair + 5, "");
        s->own_temperature = true, s->temperature = v;
    } else if (!strncmp(pair, "warmup=", 7)) {
        if (!number(pair + 7, 0, 10000, &v))
            return refuse(k, "arm %s: warmup: expected 0 to 10000 rounds, found \"%s\"%s", s->name, pair + 7,
                          "");
        s->warmup = (int)v;
    } else if (!strncmp(pair, "calibration=", 12)) {
        snprintf(s->calibration, sizeof s->calibration, "%s", pair + 12);
    } else {
        const size_t used = strlen(s->keys);
        snprintf(s->keys + used, sizeof s->keys - used, "%s%s", used ? "," : "", pair);
    }
    return true;
}

static bool read_spec(const maker *k, const char *text, spec *s) {
    char copy[1536], *rest = NULL;
    *s = (spec){.warmup = k->w->warmup};
    snprintf(copy, sizeof copy, "%s", text);
    char *pair = strtok_r(copy, ",", &rest);
    if (!pair) return refuse(k, "an arm has no name%s%s%s", "", "", "");
    char *equals = strchr(pair, '=');
    if (equals) *equals = 0;
    snprintf(s->name, sizeof s->name, "%s", pair);
    snprintf(s->mode, sizeof s->mode, "%s", equals ? equals + 1 : pair);
    if (!find_mode(s->mode)) return unknown(k, "mode", s->mode, mode_name);
    while ((pair = strtok_r(NULL, ",", &rest)))
        if (!take_key(k, s, pair)) return false;
    return true;
}

static void skip_arm(bench_arms *o, const char *label, const char *why) {
    for (int i = 0; i < o->n_skip; i++)
        if (!strcmp(o->skip[i].label, label)) return;
    if (o->n_skip == BENCH_ARMS) return;
    bench_skip *s = &o->skip[o->n_skip++];
    snprintf(s->label, sizeof s->label, "%s", label);
    snprintf(s->why, sizeof s->why, "%s", why);
}

static bool same_arm(const bench_arm *a, const bench_arm *b) {
    return a->mode == b->mode && a->budget == b->budget && a->warmup == b->warmup &&
           !strcmp(a->calibration, b->calibration) && !memcmp(a->text, b->text, sizeof a->text);
}

/* One arm of a specification, unless it is there already. */
static bool add_arm(const maker *k, const spec *s, int budget, bool show_budget, double temperature,
                    bool show_temperature) {
    bench_arms *o = k->out;
    if (o->n == BENCH_ARMS) return refuse(k, "too many arms at %s%s%s", s->name, "", "");
    bench_arm *a = &o->v[o->n];
    *a = (bench_arm){
        .mode = find_mode(s->mode), .budget = budget, .temperature = (float)temperature, .warmup = s->warmup};
    snprintf(a->calibration, sizeof a->calibration, "%s", s->calibration);
    char shown[16] = "/auto", heat[16] = "";
    if (budget) snprintf(shown, sizeof shown, "/%d", budget);
    if (show_temperature) snprintf(heat, sizeof heat, " T=%g", temperature);
    snprintf(a->family, sizeof a->family, "%s%s", s->name, heat);
    snprintf(a->label, sizeof a->label, "%s%s%s", s->name, show_budget && *a->mode->drafts ? shown : "",
             heat);
    words t = {.arm = a};
    char why[512];
    if (!split_drafts(k, s, a, &t) || !give_keys(k, s, a, &t)) return false;
    const bool found = fill_paths(k, a, &t, why, sizeof why);
    if (t.used >= BENCH_TEXT - 1)
        return refuse(k, "arm %s: its paths and parameters are too long%s%s", s->name, "", "");
    for (int i = 0; i < o->n; i++) {
        if (strcmp(o->v[i].label, a->label)) continue;
        return same_arm(&o->v[i], a) || refuse(k, "two different arms are called %s%s%s", a->label, "", "");
    }
    if (!found) skip_arm(o, a->label, why);
    o->n += found;
    return true;
}

/* A specification under every budget and temperature that was asked for. */
static bool add_spec(const maker *k, const char *text, bool sweep_budget) {
    const bench_wish *w = k->w;
    spec s;
    if (!read_spec(k, text, &s)) return false;
    const dg_mode *mode = find_mode(s.mode);
    const bool plain = !*mode->drafts, swept = !s.own_budget && w->n_budget && sweep_budget && !plain;
    for (int t = 0; t < (s.own_temperature ? 1 : w->n_temperature); t++)
        for (int b = 0; b < (swept ? w->n_budget : 1); b++) {
            const int budget = plain ? 0 : swept ? w->budget[b] : s.own_budget ? s.budget : mode->budget;
            const double heat = s.own_temperature ? s.temperature : w->temperature[t];
            const bool sweep =
                s.own_budget ? !strcmp(s.name, s.mode) : w->n_budget > 1; /* a name of its own says it all */
            if (!add_arm(k, &s, budget, sweep, heat, s.own_temperature || w->n_temperature > 1)) return false;
        }
    return true;
}

static bool add_modes(const maker *k) {
    char list[4096] = "", *rest = NULL;
    const char *modes = k->w->modes;
    if (!strcmp(modes, "all")) {
        for (size_t i = 0; i < dg_mode_count(); i++) {
            const size_t used = strlen(list);
            snprintf(list + used, sizeof list - used, "%s,", dg_mode_get(i)->name);
        }
    } else {
        snprintf(list, sizeof list, "%s", !strcmp(modes, "main") ? main_modes : modes);
    }
    for (char *one = strtok_r(list, ",", &rest); one; one = strtok_r(NULL, ",", &rest))
        if (!add_spec(k, one, true)) return false;
    return true;
}

static bool add_ablation(const maker *k, const char *name) {
    const bench_ablation *found = NULL;
    for (size_t i = 0; bench_ablation_name(i); i++)
        if (!strcmp(bench_ablation_list[i].name, name)) found = &bench_ablation_list[i];
    if (!found) return unknown(k, "ablation", name, bench_ablation_name);
    for (int i = 0; i < 16 && found->arm[i]; i++)
        if (!add_spec(k, found->arm[i], true)) return false;
    return true;
}

/* Every temperature has a plain arm; those of single arms too. */
static bool add_missing_plain(const maker *k) {
    bench_arms *o = k->out;
    for (int i = 0; i < o->n; i++) {
        o->v[i].plain = -1;
        for (int j = 0; j < o->n && o->v[i].plain < 0; j++)
            if (!*o->v[j].mode->drafts && o->v[j].temperature == o->v[i].temperature) o->v[i].plain = j;
        if (o->v[i].plain >= 0) continue;
        const double heat = o->v[i].temperature;
        const spec s = {.name = "plain", .mode = "plain", .warmup = k->w->warmup};
        if (!add_arm(k, &s, 0, false, heat, true)) return false;
        o->v[i].plain = o->n - 1;
    }
    return true;
}

static bool set_handicaps(const maker *k) {
    for (int h = 0; h < k->w->n_handicap; h++) {
        const char *text = k->w->handicap[h], *equals = strrchr(text, '=');
        double percent;
        if (!equals || !number(equals + 1, 0, 1000, &percent))
            return refuse(k, "--handicap: expected ARM=PERCENT, found \"%s\"%s%s", text, "", "");
        bool found = false;
        for (int i = 0; i < k->out->n; i++) {
            bench_arm *a = &k->out->v[i];
            if (strlen(a->label) != (size_t)(equals - text) || strncmp(a->label, text, strlen(a->label)))
                continue;
            a->handicap = percent / 100, found = true;
        }
        if (!found) return refuse(k, "--handicap: there is no arm for \"%s\"%s%s", text, "", "");
    }
    return true;
}

bool bench_arms_make(const bench_wish *w, bench_arms *out, char *error, size_t cap) {
    *out =
        (bench_arms){.v = calloc(BENCH_ARMS, sizeof *out->v), .skip = calloc(BENCH_ARMS, sizeof *out->skip)};
    const maker k = {w, out, error, cap};
    if (!out->v || !out->skip) return refuse(&k, "no memory for the arms%s%s%s", "", "", "");
    bool ok = add_spec(&k, "plain", false) && (!*w->modes || add_modes(&k));
    for (int i = 0; ok && i < w->n_arm; i++) ok = add_spec(&k, w->arm[i], true);
    for (int i = 0; ok && i < w->n_ablate; i++) ok = add_ablation(&k, w->ablate[i]);
    ok = ok && add_missing_plain(&k) && set_handicaps(&k);
    if (!ok) bench_arms_free(out);
    return ok;
}

/* ---- opening ---------------------------------------------------------------------------------- */

dg_session_options bench_arm_options(const bench_arm *a, int context, uint64_t seed) {
    return (dg_session_options){.context = context,
                                .budget = a->budget,
                                .draft = a->draft,
                                .n_draft = a->n_draft,
                                .ignore_stop_tokens = true,
                                .calibration = *a->calibration ? a->calibration : NULL,
                                .sampler = {.temperature = a->temperature, .seed = seed}};
}

void bench_arms_probe(bench_arms *a, dg_model *m, int context) {
    for (int i = 0; i < a->n; i++) {
        dg_session *s = NULL;
        const dg_session_options o = bench_arm_options(&a->v[i], context, 1);
        const bool opened = dg_session_create(m, &o, &s) == DG_OK;
        dg_session_free(s);
        if (opened) continue;
        skip_arm(a, a->v[i].label, dg_error_message());
        a->v[i].mode = NULL;
    }
    int map[BENCH_ARMS], n = 0;
    for (int i = 0; i < a->n; i++) map[i] = a->v[i].mode ? n++ : -1;
    for (int i = 0; i < a->n; i++) {
        if (map[i] < 0) continue;
        const int plain = map[a->v[i].plain];
        if (map[i] == i) {
            a->v[i].plain = plain;
            continue;
        }
        bench_arm *to = &a->v[map[i]];
        const char *const from = a->v[i].text;
        *to = a->v[i];
        to->plain = plain;
        for (size_t d = 0; d < to->n_draft; d++) { /* they point into the arm */
            const char **const part[] = {&to->draft[d].name, &to->draft[d].path, &to->draft[d].params};
            for (int f = 0; f < 3; f++)
                if (*part[f]) *part[f] = to->text + (*part[f] - from);
        }
    }
    a->n = n;
}

void bench_arms_free(bench_arms *a) {
    free(a->v), free(a->skip);
    *a = (bench_arms){0};
}
