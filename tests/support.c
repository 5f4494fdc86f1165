/* See test.h. */
#include "tests/test.h"

#include <math.h>
#include <unistd.h>

#include "runtime/kv.h"

#ifndef DG_TEST_DEVICE
#define DG_TEST_DEVICE NULL
#endif

const char *test_device(void) { return DG_TEST_DEVICE; }

bool device_missing(void) {
    if (!test_device()) return false;
    const dg_backend_options opt = {.max_vocab = 1, .max_cols = 32};
    const char *why = "";
    dg_backend *be = dg_backend_open(test_device(), &opt, &why);
    if (!be) printf("SKIP: %s: %s\n", test_device(), why);
    dg_backend_close(be);
    return !be;
}

void check_ok_at(dg_status st, const char *expr, const char *file, int line) {
    if (st == DG_OK) return;
    print_error("%s: %s: %s\n", expr, dg_status_name(st), dg_error_message());
    _fail(file, line);
}

void check_fails_at(dg_status st, dg_status code, const char *part, const char *expr, const char *file,
                    int line) {
    if (st == code && (!part || strstr(dg_error_message(), part))) return;
    print_error("%s: expected %s with \"%s\", found %s: %s\n", expr, dg_status_name(code), part ? part : "",
                dg_status_name(st), st == DG_OK ? "" : dg_error_message());
    _fail(file, line);
}

void check_near_at(const float *got, const float *want, size_t n, double tol, const char *what,
                   const char *file, int line) {
    double worst = -1;
    size_t at = 0, bad = 0;
    for (size_t i = 0; i < n; i++) {
        const double g = (double)got[i], w = (double)want[i];
        double diff = fabs(g - w);
        if (g == w || (isnan(g) && isnan(w))) diff = 0;
        if (isnan(diff)) diff = INFINITY;
        if (diff > tol) bad++;
        if (diff > worst) worst = diff, at = i;
    }
    if (!bad) return;
    print_error("%s: %zu of %zu differ by more than %g; worst %g at %zu: got %.9g, want %.9g\n", what, bad, n,
                tol, worst, at, (double)got[at], (double)want[at]);
    _fail(file, line);
}

static const char *format_path(const char *fmt, va_list ap) {
    static char ring[8][1024];
    static unsigned next;
    char *p = ring[next++ % 8];
    const char *dir = getenv("GOLDEN");
    const int n = snprintf(p, sizeof ring[0], "%s/", dir && *dir ? dir : "../shared/golden");
    vsnprintf(p + n, sizeof ring[0] - (size_t)n, fmt, ap);
    return p;
}

const char *golden_path(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    const char *p = format_path(fmt, ap);
    va_end(ap);
    return p;
}

static bool need(const char *path, const char *what) {
    if (access(path, R_OK) == 0) return true;
    const char *ci = getenv("CI");
    if (ci && strcmp(ci, "true") == 0) {
        print_error("%s is missing: %s\n", what, path);
        exit(1);
    }
    printf("SKIP: %s not found at %s\n", what, path);
    return false;
}

bool golden_have(const char *part) { return need(golden_path("%s", part), "golden vectors"); }

const char *smollm2_path(void) {
    static const char path[] = "models/SmolLM2-135M-Instruct.Q4_1.gguf";
    return need(path, "SmolLM2 (make model)") ? path : NULL;
}

json_t *golden_json(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    const char *path = format_path(fmt, ap);
    va_end(ap);
    json_error_t e;
    json_t *j = json_load_file(path, JSON_ALLOW_NUL, &e); /* texts of the tokenizer sets */
    if (!j) fail_msg("%s: %s", path, e.text);
    return j;
}

dg_file *golden_tensors(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    const char *path = format_path(fmt, ap);
    va_end(ap);
    dg_file *f = NULL;
    check_ok(dg_file_open(path, &f));
    return f;
}

const float *golden_f32(const dg_file *f, const char *name, size_t *n) {
    const dg_file_tensor *t = dg_file_find(f, name);
    if (!t) fail_msg("%s has no tensor %s", f->path, name);
    assert_int_equal(t->dtype, DG_F32);
    if (n) *n = t->size / sizeof(float);
    return t->data;
}

int32_t *json_ints(const json_t *array, size_t *n) {
    assert_true(json_is_array(array));
    *n = json_array_size(array);
    int32_t *v = malloc((*n + 1) * sizeof *v);
    for (size_t i = 0; i < *n; i++) v[i] = (int32_t)json_integer_value(json_array_get(array, i));
    return v;
}

float test_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(*state >> 32) / 2147483648.0f;
}

const char *test_tmpdir(void) {
    static char dir[64];
    strcpy(dir, "/tmp/dgraft-test-XXXXXX");
    if (!mkdtemp(dir)) fail_msg("no temporary directory");
    return dir;
}

const float *host_rows(struct dg_backend *be, dg_mat m) {
    static float *ring[4];
    static unsigned next;
    assert_int_equal(m.dtype, DG_F32);
    const size_t row = (size_t)m.cols * sizeof(float);
    float **copy = &ring[next++ % 4];
    *copy = realloc(*copy, (size_t)m.rows * row + 1);
    for (int32_t r = 0; r < m.rows; r++)
        be->ops->download(be, *copy + (size_t)r * (size_t)m.cols, dg_mat_row(&m, r), row);
    return *copy;
}

float *kv_rows(struct dg_backend *be, const struct dg_kv *kv, int32_t layer, bool values) {
    const size_t cells = (size_t)kv->len * (size_t)kv->width;
    float *dev = be->ops->alloc(be, 2 * cells * sizeof *dev + 1), *rows = malloc(cells * sizeof *rows + 1);
    assert_true(dev && rows);
    be->ops->kv_get(be, dg_mat_make(dev, DG_F32, kv->len, kv->width), dg_mat_make(dev + cells, DG_F32, kv->len, kv->width),
                    kv->k[layer], kv->v[layer], 0, kv->head_dim);
    be->ops->download(be, rows, values ? dev + cells : dev, cells * sizeof *rows);
    be->ops->free(be, dev);
    return rows;
}
