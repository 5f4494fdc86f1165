/* Targets against transformers (logits, hidden states, greedy text) and GGUF files against the same models. */
#include "tests/test.h"

#include <math.h>

#include "kernels/quant.h"
#include "runtime/session.h"

enum { CONTEXT = 128 };

/* What a whole sequence gives in one causal pass. */
typedef struct pass {
    dg_arena host, dev;
    dg_kv kv;
    dg_batch batch;
    dg_work work;
    dg_mat tap[DG_MAX_LAYERS], logits;
    dg_backend *be;
} pass;

static void pass_layout(pass *p, const dg_config *c, int32_t n) {
    dg_kv_layout(&p->kv, c->n_layer, n, n, c->n_kv_head, c->head_dim, DG_F32, &p->host, &p->dev);
    dg_batch_layout(&p->batch, n, &p->host, &p->dev);
    dg_work_layout(&p->work, c, n, &p->dev);
    p->logits = dg_mat_make(dg_arena_take(&p->dev, (size_t)n * (size_t)c->vocab_size, 4), DG_F32, n, c->vocab_size);
    for (int32_t l = 0; l < c->n_layer; l++)
        p->tap[l] = dg_mat_make(dg_arena_take(&p->dev, (size_t)n * (size_t)c->hidden_size, 4), DG_F32, n, c->hidden_size);
}

static void run_pass(pass *p, const dg_model *m, const int32_t *ids, int32_t n, int32_t chunk) {
    const dg_config *c = &m->net.config;
    *p = (pass){0};
    pass_layout(p, c, n);
    p->be = m->be;
    p->host.base = dg_mem_calloc(1, p->host.used), p->dev.base = p->be->ops->alloc(p->be, p->dev.used);
    p->be->ops->zero(p->be, dg_mat_make(p->dev.base, DG_F32, 1, (int32_t)(p->dev.used / sizeof(float))));
    p->host.cap = p->host.used, p->dev.cap = p->dev.used, p->host.used = p->dev.used = 0;
    pass_layout(p, c, n);
    for (int32_t at = 0; at < n; at += chunk) {
        const int32_t rows = n - at < chunk ? n - at : chunk;
        dg_tap tap[DG_MAX_LAYERS];
        for (int32_t l = 0; l < c->n_layer; l++) tap[l] = (dg_tap){l, 0, rows, &p->batch.dev.live->row, dg_mat_rows(p->tap[l], at, rows)};
        dg_batch_reset(&p->batch);
        dg_batch_add_rows(&p->batch, &p->kv, ids + at, rows, DG_MASK_CAUSAL);
        dg_batch_upload(m->be, &p->batch);
        dg_batch_begin(m->be, &p->batch);
        dg_target_forward(m, &p->batch, &p->work, tap, c->n_layer);
        check_ok(dg_backend_check(m->be));
        dg_target_head(m, dg_mat_rows(p->work.x, 0, rows), dg_mat_rows(p->logits, at, rows));
        dg_kv_keep(&p->kv, rows);
    }
}

static void free_pass(pass *p) { dg_mem_free(p->host.base), p->be->ops->free(p->be, p->dev.base); }

static dg_model *open_model_on(const char *device, const char *path) {
    dg_model *m = NULL;
    const dg_model_options opt = {.threads = 2, .compute = DG_COMPUTE_F32, .device = device};
    check_ok(dg_model_open(path, &opt, &m));
    return m;
}

static dg_model *open_model(const char *path) { return open_model_on(test_device(), path); }

/* Greedy text from `prompt`, equal to want up to the first step whose margin is under `margin`. */
static void check_greedy(dg_model *m, const json_t *prompt, const json_t *greedy, const json_t *margins, double margin) {
    size_t n_prompt, n;
    int32_t *ids = json_ints(prompt, &n_prompt), *want = json_ints(greedy, &n);
    dg_session *s = NULL;
    const dg_session_options opt = {.context = (int32_t)(n_prompt + n), .ignore_stop_tokens = true};
    check_ok(dg_session_create(m, &opt, &s));
    check_ok(dg_session_sync(s, ids, n_prompt));
    check_ok(dg_session_generate(s, n, NULL, NULL, NULL));
    size_t total;
    const int32_t *got = dg_session_tokens(s, &total);
    assert_int_equal(total, n_prompt + n);
    size_t equal = 0;
    for (size_t i = 0; i < n; i++, equal++) {
        if (json_real_value(json_array_get(margins, i)) < margin) break;
        assert_int_equal(got[n_prompt + i], want[i]);
    }
    assert_true(equal > n / 4); /* else the margins tell nothing */
    dg_session_free(s);
    free(ids), free(want);
}

static int32_t *ids_of(const dg_file *f, const char *name, size_t *n) {
    const dg_file_tensor *t = dg_file_find(f, name);
    assert_non_null(t);
    assert_int_equal(t->dtype, DG_I64);
    *n = t->size / 8;
    int32_t *ids = malloc((*n + 1) * sizeof *ids);
    for (size_t i = 0; i < *n; i++) ids[i] = (int32_t)((const int64_t *)t->data)[i];
    return ids;
}

static void check_target(const char *name) {
    dg_model *m = open_model(golden_path("target/%s", name));
    const dg_config *c = &m->net.config;
    dg_file *want = golden_tensors("target/%s/expected.safetensors", name);
    size_t n, size;
    int32_t *ids = ids_of(want, "input_ids", &n);
    const int32_t chunks[] = {(int32_t)n, 7, 1};
    for (int i = 0; i < (test_device() ? 2 : 3); i++) {
        pass p;
        run_pass(&p, m, ids, (int32_t)n, chunks[i]);
        const float *hidden = golden_f32(want, "hidden_states", &size);
        const size_t layer = n * (size_t)c->hidden_size;
        assert_int_equal(size, layer * (size_t)(c->n_layer + 1));
        for (int32_t l = 0; l < c->n_layer; l++)
            check_near(host_rows(m->be, p.tap[l]), hidden + layer * (size_t)(l + 1), layer, 2e-4, name);
        const float *logits = golden_f32(want, "logits", &size);
        assert_int_equal(size, n * (size_t)c->vocab_size);
        check_near(host_rows(m->be, p.logits), logits, size, 2e-4, name);
        free_pass(&p);
    }
    json_t *e = golden_json("target/%s/expected.json", name);
    check_greedy(m, json_object_get(e, "prompt"), json_object_get(e, "greedy"), json_object_get(e, "top2_margin"), 1e-3);
    json_decref(e);
    free(ids);
    dg_file_close(want);
    dg_model_close(m);
}

static void test_llama(void **state) { (void)state, check_target("llama"); }
static void test_llama_rope3(void **state) { (void)state, check_target("llama-rope3"); }
static void test_qwen2(void **state) { (void)state, check_target("qwen2"); }
static void test_qwen3(void **state) { (void)state, check_target("qwen3"); }
static void test_qwen3_yarn(void **state) { (void)state, check_target("qwen3-yarn"); }
static void test_qwen3_swa(void **state) { (void)state, check_target("qwen3-swa"); }
static void test_mistral_swa(void **state) { (void)state, check_target("mistral-swa"); }

static void test_moe_refused(void **state) {
    (void)state;
    dg_model *m = NULL;
    check_fails(dg_model_open(golden_path("target/qwen3moe"), NULL, &m), DG_ERR_UNSUPPORTED, "moe");
    check_fails(dg_model_open(golden_path("target/qwen3moe-mixed"), NULL, &m), DG_ERR_UNSUPPORTED, "moe");
    check_fails(dg_model_open(golden_path("gguf/models/target-qwen3moe.f32.gguf"), NULL, &m), DG_ERR_UNSUPPORTED, "moe");
}

/* ---- GGUF ------------------------------------------------------------------------------------- */

static int32_t best(const float *row, int32_t n, float *margin) {
    int32_t at = 0;
    float second = -INFINITY;
    for (int32_t i = 1; i < n; i++) {
        if (row[i] > row[at])
            second = row[at], at = i;
        else if (row[i] > second)
            second = row[i];
    }
    *margin = row[at] - second;
    return at;
}

/* Rounds every 2-D weight of m through the types that the GGUF file holds, in fresh memory. */
static float *round_like(dg_mat *w, dg_dtype type) {
    float *copy = malloc((size_t)w->rows * (size_t)w->cols * sizeof *copy), *row = malloc((size_t)w->cols * sizeof *row);
    void *packed = malloc(dg_dtype_bytes(type, (size_t)w->cols));
    for (int32_t r = 0; r < w->rows; r++) {
        dg_dequant_row(w->dtype, dg_mat_row(w, r), row, (size_t)w->cols);
        dg_quant_row(type, row, packed, (size_t)w->cols);
        dg_dequant_row(type, packed, copy + (size_t)r * (size_t)w->cols, (size_t)w->cols);
    }
    free(row), free(packed);
    *w = dg_mat_make(copy, DG_F32, w->rows, w->cols);
    return copy;
}

/* The Hugging Face model with its matrices rounded as in gguf, when transformers cannot load the GGUF itself. */
static int round_model(dg_model *hf, const dg_model *gguf, float **owned) {
    int n = 0;
    dg_weights *a = &hf->net.weights;
    const dg_weights *b = &gguf->net.weights;
    const bool tied = a->head.data == a->embed.data;
    owned[n++] = round_like(&a->embed, b->embed.dtype);
    if (tied) a->head = a->embed;
    else owned[n++] = round_like(&a->head, b->head.dtype);
    for (int32_t l = 0; l < hf->net.config.n_layer; l++) {
        dg_layer *x = &a->layer[l];
        const dg_layer *y = &b->layer[l];
        dg_mat *const to[] = {&x->wq, &x->wk, &x->wv, &x->wo, &x->w_gate, &x->w_up, &x->w_down};
        const dg_mat from[] = {y->wq, y->wk, y->wv, y->wo, y->w_gate, y->w_up, y->w_down};
        for (int i = 0; i < 7; i++) owned[n++] = round_like(to[i], from[i].dtype);
    }
    return n;
}

static void check_against_hf(const char *name, const char *source, const dg_model *m, const pass *p, const int32_t *ids,
                             int32_t n) {
    dg_model *hf = open_model_on("cpu", golden_path("%s", source)); /* its weights are about to change */
    float *owned[DG_MAX_LAYERS];
    const int n_owned = round_model(hf, m, owned);
    for (int32_t l = 0; l < DG_MAX_LAYERS; l++) hf->net.config.window[l] = 0; /* the converter drops windows */
    pass q;
    run_pass(&q, hf, ids, n, n);
    check_near(host_rows(m->be, p->logits), host_rows(hf->be, q.logits), (size_t)n * (size_t)m->net.config.vocab_size, 2e-4, name);
    free_pass(&q);
    dg_model_close(hf);
    for (int i = 0; i < n_owned; i++) free(owned[i]);
}

static void check_gguf(const char *file, const json_t *entry, const json_t *models, const dg_file *want) {
    dg_model *m = open_model(golden_path("gguf/models/%s", file));
    const int32_t vocab = m->net.config.vocab_size;
    size_t n, n_rows, size;
    int32_t *ids = json_ints(json_object_get(entry, "prompt"), &n), *rows = json_ints(json_object_get(entry, "rows"), &n_rows);
    pass p;
    run_pass(&p, m, ids, (int32_t)n, (int32_t)n);
    char name[256];
    snprintf(name, sizeof name, "%s.transformers_logits", file);
    if (dg_file_find(want, name) && !strstr(file, "rope3")) { /* transformers ignores rope_freqs there */
        const float *logits = golden_f32(want, name, &size);
        assert_int_equal(size, n_rows * (size_t)vocab);
        for (size_t r = 0; r < n_rows; r++)
            check_near(host_rows(m->be, dg_mat_rows(p.logits, rows[r], 1)), logits + r * (size_t)vocab, (size_t)vocab, 2e-4, name);
    } else {
        check_against_hf(file, json_string_value(json_object_get(json_object_get(models, file), "source")), m, &p, ids, (int32_t)n);
    }
    snprintf(name, sizeof name, "%s.libllama_logits", file);
    const float *lib = golden_f32(want, name, &size);
    const bool f32 = strstr(file, ".f32."), q8 = strstr(file, "q8_0");
    for (size_t r = 0; r < n_rows; r++) {
        const float *ours = host_rows(m->be, dg_mat_rows(p.logits, rows[r], 1)), *theirs = lib + r * (size_t)vocab;
        float margin, own;
        const int32_t top = best(theirs, vocab, &margin);
        if (f32) check_near(ours, theirs, (size_t)vocab, 2e-4, name);
        else if (margin > (q8 ? 2.0f : 0.1f)) assert_int_equal(best(ours, vocab, &own), top);
    }
    free_pass(&p);
    free(ids), free(rows);
    dg_model_close(m);
}

static void test_gguf_models(void **state) {
    (void)state;
    json_t *e = golden_json("gguf/models/expected.json"), *models = golden_json("gguf/models/models.json");
    dg_file *want = golden_tensors("gguf/models/expected.safetensors");
    const char *file;
    json_t *entry;
    int n = 0;
    json_object_foreach(json_object_get(e, "files"), file, entry) {
        if (!json_is_object(entry) || !json_object_get(entry, "rows") || strstr(file, "moe")) continue;
        check_gguf(file, entry, json_object_get(models, "files"), want);
        n++;
    }
    assert_true(n >= 8);
    dg_file_close(want);
    json_decref(e), json_decref(models);
}

/* K-quants: dequantised weights in f32 against transformers on the same. */
static void check_kquant(const char *file) {
    json_t *e = golden_json("gguf/kquant/expected.json"), *entry = json_object_get(json_object_get(e, "files"), file);
    dg_file *want = golden_tensors("gguf/kquant/expected.safetensors");
    dg_model *m = open_model(golden_path("gguf/kquant/%s", file));
    size_t n, size;
    int32_t *ids = json_ints(json_object_get(entry, "ids"), &n);
    pass p;
    run_pass(&p, m, ids, (int32_t)n, (int32_t)n);
    char name[256];
    snprintf(name, sizeof name, "%s.transformers_logits", file);
    const float *logits = golden_f32(want, name, &size);
    assert_int_equal(size, n * (size_t)m->net.config.vocab_size);
    check_near(host_rows(m->be, p.logits), logits, size, 2e-4, name);
    check_greedy(m, json_object_get(entry, "ids"), json_object_get(entry, "greedy"), json_object_get(entry, "margin"), 1e-3);
    free_pass(&p), free(ids);
    dg_model_close(m), dg_file_close(want), json_decref(e);
}

static void test_kquant(void **state) {
    (void)state;
    check_kquant("llama.Q4_K_M.gguf");
    check_kquant("llama.Q2_K.gguf");
}

int main(void) {
    if (device_missing()) return 0;
    if (!golden_have("target/llama/config.json")) return 0;
    const struct CMUnitTest t[] = {
        cmocka_unit_test(test_llama),      cmocka_unit_test(test_llama_rope3), cmocka_unit_test(test_qwen2),
        cmocka_unit_test(test_qwen3),      cmocka_unit_test(test_qwen3_yarn),  cmocka_unit_test(test_qwen3_swa),
        cmocka_unit_test(test_mistral_swa), cmocka_unit_test(test_moe_refused), cmocka_unit_test(test_gguf_models),
        cmocka_unit_test(test_kquant)};
    return cmocka_run_group_tests_name("golden target", t, NULL, NULL);
}
