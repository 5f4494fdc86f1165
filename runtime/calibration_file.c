/* The JSON file of a calibration, in both directions; see calibration.h. Every number is checked on the way in. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/calibration.h"

enum { MAX_BYTES = 1 << 20 };

/* ---- reading ---------------------------------------------------------------------------------- */

static dg_status read_text(const char *path, const json_t *o, const char *key, char *out, size_t size) {
    const char *text = json_string_value(json_object_get(o, key));
    DG_CHECK(text && strlen(text) < size, DG_ERR_FORMAT, "%s: \"%s\": expected a text of at most %zu bytes", path, key, size - 1);
    memcpy(out, text, strlen(text) + 1);
    return DG_OK;
}

static dg_status read_number(const char *path, const char *what, const json_t *v, double lo, double hi, double *out) {
    const double x = json_is_number(v) ? json_number_value(v) : NAN;
    DG_CHECK(x >= lo && x <= hi, DG_ERR_FORMAT, "%s: \"%s\": expected a number from %g to %g, found %g", path, what, lo, hi, x);
    *out = x;
    return DG_OK;
}

static dg_status read_numbers(const char *path, const char *what, const json_t *list, size_t n, double lo, double hi,
                              double *out) {
    DG_CHECK(json_is_array(list) && json_array_size(list) == n, DG_ERR_FORMAT, "%s: \"%s\": expected %zu numbers, found %zu",
             path, what, n, json_array_size(list));
    for (size_t i = 0; i < n; i++) DG_TRY(read_number(path, what, json_array_get(list, i), lo, hi, &out[i]));
    return DG_OK;
}

/* -1, or a probability; the range around it holds it. */
static dg_status read_threshold(const char *path, const char *what, const json_t *o, dg_threshold *out) {
    double v[3];
    static const char *const key[3] = {"at", "low", "high"};
    for (int i = 0; i < 3; i++) {
        DG_TRY(read_number(path, what, json_object_get(o, key[i]), -1, 1, &v[i]));
        DG_CHECK(v[i] >= 0 || v[i] == -1, DG_ERR_FORMAT, "%s: \"%s\": expected -1 (never) or 0 to 1, found %g", path, what, v[i]);
    }
    DG_CHECK(v[1] <= v[0] && v[0] <= v[2], DG_ERR_FORMAT, "%s: \"%s\": %g is not between %g and %g", path, what, v[0], v[1], v[2]);
    *out = (dg_threshold){(float)v[0], (float)v[1], (float)v[2]};
    return DG_OK;
}

static dg_status read_thresholds(const char *path, const json_t *root, dg_calibration *c) {
    const json_t *gates = json_object_get(root, "gates"), *tail = json_object_get(root, "tail");
    DG_CHECK(gates && tail, DG_ERR_FORMAT, "%s: \"gates\" or \"tail\" is missing", path);
    c->has_gates = !json_is_null(gates), c->has_tail = !json_is_null(tail);
    DG_CHECK(!c->has_gates || json_array_size(gates) == DG_CAL_GATES, DG_ERR_FORMAT, "%s: \"gates\": expected %d, found %zu", path,
             DG_CAL_GATES, json_array_size(gates));
    for (size_t i = 0; c->has_gates && i < DG_CAL_GATES; i++)
        DG_TRY(read_threshold(path, "gates", json_array_get(gates, i), &c->gate[i]));
    return c->has_tail ? read_threshold(path, "tail", tail, &c->tail) : DG_OK;
}

static dg_status read_ranks(const char *path, const json_t *list, dg_calibration *c) {
    double rank[DG_CAL_RANKS];
    DG_CHECK(list, DG_ERR_FORMAT, "%s: \"ranks\" is missing", path);
    if (json_is_null(list)) return DG_OK;
    DG_TRY(read_numbers(path, "ranks", list, DG_CAL_RANKS, 1e-9, 0.999, rank));
    for (int32_t i = 0; i < DG_CAL_RANKS; i++) {
        DG_CHECK(!i || rank[i] <= rank[i - 1], DG_ERR_FORMAT, "%s: \"ranks\": %g comes after %g: they must not rise", path, rank[i],
                 rank[i - 1]);
        c->rank[i] = (float)rank[i];
    }
    c->has_ranks = true;
    return DG_OK;
}

static dg_status read_source(const char *path, const json_t *o, dg_calibration_source *s) {
    const json_t *promised = json_object_get(o, "promised"), *accepted = json_object_get(o, "accepted");
    DG_TRY(read_text(path, o, "drafter", s->name, sizeof s->name));
    DG_CHECK(json_is_boolean(json_object_get(o, "network")), DG_ERR_FORMAT, "%s: \"network\": expected true or false", path);
    s->network = json_is_true(json_object_get(o, "network"));
    DG_TRY(read_number(path, "seconds", json_object_get(o, "seconds"), 0, 1e6, &s->seconds));
    DG_CHECK(json_array_size(promised) == DG_CAL_DEPTHS && json_array_size(accepted) == DG_CAL_DEPTHS, DG_ERR_FORMAT,
             "%s: \"promised\" and \"accepted\": expected %d depths", path, DG_CAL_DEPTHS);
    for (size_t d = 0; d < DG_CAL_DEPTHS; d++) {
        DG_TRY(read_numbers(path, "promised", json_array_get(promised, d), DG_BUDGET_BINS, 0, 1e12, s->promised[d]));
        DG_TRY(read_numbers(path, "accepted", json_array_get(accepted, d), DG_BUDGET_BINS, 0, 1e12, s->accepted[d]));
    }
    return DG_OK;
}

static dg_status read_rows(const char *path, const json_t *o, dg_calibration *c) {
    const json_t *contexts = json_object_get(o, "contexts"), *seconds = json_object_get(o, "seconds");
    double rows[DG_CAL_ROWS], context[DG_CAL_CONTEXTS];
    const size_t n = json_array_size(contexts);
    DG_TRY(read_numbers(path, "rows", json_object_get(o, "rows"), DG_CAL_ROWS, 1, DG_TREE_MAX, rows));
    for (int32_t i = 0; i < DG_CAL_ROWS; i++)
        DG_CHECK(rows[i] == dg_budget_rows(i), DG_ERR_FORMAT, "%s: \"rows\": expected %d, found %g", path, dg_budget_rows(i), rows[i]);
    DG_CHECK(n >= 1 && n <= DG_CAL_CONTEXTS && json_array_size(seconds) == n, DG_ERR_FORMAT,
             "%s: \"contexts\": expected 1 to %d of them, and as many lists of \"seconds\"", path, DG_CAL_CONTEXTS);
    DG_TRY(read_numbers(path, "contexts", contexts, n, 1, 1e9, context));
    c->n_context = (int32_t)n;
    for (size_t i = 0; i < n; i++) {
        c->context[i] = (int32_t)context[i];
        DG_TRY(read_numbers(path, "seconds", json_array_get(seconds, i), DG_CAL_ROWS, 0, 1e6, c->verify[i]));
    }
    return DG_OK;
}

static dg_status read_document(const char *path, const json_t *root, dg_calibration *c) {
    const json_t *version = json_object_get(root, "dgraft_calibration"), *sources = json_object_get(root, "sources");
    double rounds;
    DG_CHECK(json_is_integer(version), DG_ERR_FORMAT, "%s: no \"dgraft_calibration\": this is no calibration", path);
    DG_CHECK(json_integer_value(version) == DG_CALIBRATION_VERSION, DG_ERR_FORMAT,
             "%s: version %lld: expected %d%s", path, (long long)json_integer_value(version), DG_CALIBRATION_VERSION,
             json_integer_value(version) > DG_CALIBRATION_VERSION ? "; a newer dgraft wrote it" : "");
    DG_TRY(read_text(path, root, "target", c->target, sizeof c->target));
    DG_TRY(read_text(path, root, "drafter", c->drafter, sizeof c->drafter));
    DG_TRY(read_text(path, root, "machine", c->machine, sizeof c->machine));
    DG_TRY(read_text(path, root, "rule", c->rule, sizeof c->rule));
    DG_TRY(read_number(path, "rounds", json_object_get(root, "rounds"), 1, 1e9, &rounds));
    c->rounds = (int32_t)rounds;
    DG_TRY(read_thresholds(path, root, c));
    DG_TRY(read_ranks(path, json_object_get(root, "ranks"), c));
    DG_CHECK(json_is_array(sources) && json_array_size(sources) <= DG_CAL_SOURCES, DG_ERR_FORMAT,
             "%s: \"sources\": expected at most %d", path, DG_CAL_SOURCES);
    c->n_source = (int32_t)json_array_size(sources);
    for (int32_t i = 0; i < c->n_source; i++) DG_TRY(read_source(path, json_array_get(sources, (size_t)i), &c->source[i]));
    return read_rows(path, json_object_get(root, "verify"), c);
}

dg_status dg_calibration_read(const char *path, dg_calibration *out) {
    char *text = NULL;
    size_t len = 0;
    json_t *root = NULL;
    dg_calibration *c = NULL;
    dg_status st = dg_file_slurp(path, MAX_BYTES, &text, &len);
    if (st == DG_OK) st = dg_json_parse(path, text, len, &root);
    if (st == DG_OK && !(c = dg_mem_calloc(1, sizeof *c))) st = DG_ERR_MEMORY;
    if (st == DG_OK) st = read_document(path, root, c);
    if (st == DG_OK) *out = *c;
    dg_mem_free(c);
    dg_mem_free(text);
    json_decref(root);
    return st;
}

/* ---- writing ---------------------------------------------------------------------------------- */

static json_t *numbers(const double *v, size_t n) {
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(list, json_real(v[i]));
    return list;
}

static json_t *threshold(dg_threshold t) {
    return json_pack("{s:f,s:f,s:f}", "at", (double)t.at, "low", (double)t.low, "high", (double)t.high);
}

static json_t *source(const dg_calibration_source *s) {
    json_t *promised = json_array(), *accepted = json_array();
    for (int32_t d = 0; d < DG_CAL_DEPTHS; d++) {
        json_array_append_new(promised, numbers(s->promised[d], DG_BUDGET_BINS));
        json_array_append_new(accepted, numbers(s->accepted[d], DG_BUDGET_BINS));
    }
    return json_pack("{s:s,s:b,s:f,s:o,s:o}", "drafter", s->name, "network", (int)s->network, "seconds", s->seconds, "promised",
                     promised, "accepted", accepted);
}

static json_t *document(const dg_calibration *c) {
    json_t *gates = c->has_gates ? json_array() : json_null(), *sources = json_array();
    json_t *ranks = c->has_ranks ? json_array() : json_null();
    json_t *rows = json_array(), *contexts = json_array(), *seconds = json_array();
    for (int32_t i = 0; c->has_gates && i < DG_CAL_GATES; i++) json_array_append_new(gates, threshold(c->gate[i]));
    for (int32_t i = 0; c->has_ranks && i < DG_CAL_RANKS; i++) json_array_append_new(ranks, json_real((double)c->rank[i]));
    for (int32_t i = 0; i < c->n_source; i++) json_array_append_new(sources, source(&c->source[i]));
    for (int32_t i = 0; i < DG_CAL_ROWS; i++) json_array_append_new(rows, json_integer(dg_budget_rows(i)));
    for (int32_t i = 0; i < c->n_context; i++) {
        json_array_append_new(contexts, json_integer(c->context[i]));
        json_array_append_new(seconds, numbers(c->verify[i], DG_CAL_ROWS));
    }
    return json_pack("{s:i,s:s,s:s,s:s,s:s,s:i,s:o,s:o,s:o,s:o,s:o}", "dgraft_calibration", DG_CALIBRATION_VERSION, "target",
                     c->target, "drafter", c->drafter, "machine", c->machine, "rule", c->rule, "rounds", c->rounds, "gates", gates,
                     "tail", c->has_tail ? threshold(c->tail) : json_null(), "ranks", ranks, "sources", sources, "verify",
                     json_pack("{s:o,s:o,s:o}", "rows", rows, "contexts", contexts, "seconds", seconds));
}

dg_status dg_calibration_write(const dg_calibration *c, const char *path) {
    const size_t n = strlen(path) + 5;
    char *part = dg_mem_alloc(n);
    json_t *root = document(c);
    dg_status st = part && root ? DG_OK : DG_ERR_MEMORY;
    if (st == DG_OK) {
        snprintf(part, n, "%s.new", path);
        errno = 0;
        if (json_dump_file(root, part, JSON_INDENT(1) | JSON_REAL_PRECISION(17)) != 0 || rename(part, path) != 0) st = DG_ERR_IO;
    }
    json_decref(root);
    const int why = errno;
    if (st == DG_ERR_IO) remove(part);
    dg_mem_free(part);
    DG_CHECK(st != DG_ERR_IO, DG_ERR_IO, "%s: cannot be written: %s", path, strerror(why));
    DG_CHECK(st == DG_OK, DG_ERR_MEMORY, "%s: no memory to write it", path);
    return DG_OK;
}
