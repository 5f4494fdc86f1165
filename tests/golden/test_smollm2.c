/* The real target against transformers (weights dequantised to f32), and the first trained drafter against z-lab's loop
 * on the same prompts. */
#include "tests/test.h"

#include <math.h>

#include "dflash/dflash.h"
#include "runtime/session.h"

static const char *model_path;

static dg_model *open_as(dg_compute compute) {
    dg_model *m = NULL;
    const dg_model_options opt = {.threads = 2, .compute = compute};
    check_ok(dg_model_open(model_path, &opt, &m));
    return m;
}

static dg_model *open_target(void) { return open_as(DG_COMPUTE_F32); }

/* How far logits are from the recorded ones. */
typedef struct distance {
    double largest, squares, largest_lse; /* of the recorded best 20 of every row; of the row's log-sum-exp */
    int64_t n, rows, changed;             /* logits, rows, and those with another best */
} distance;

/* Logits of the rows `positions` of ids, in one causal pass, against the recorded best 20 and logsumexp. */
static void compare_prompt(dg_model *m, const json_t *p, const dg_file *want, int i, distance *d) {
    size_t n_prompt, n_greedy, n_pos, size;
    int32_t *prompt = json_ints(json_object_get(p, "ids"), &n_prompt);
    int32_t *greedy = json_ints(json_object_get(p, "greedy"), &n_greedy);
    int32_t *pos = json_ints(json_object_get(p, "positions"), &n_pos);
    int32_t *ids = malloc((n_prompt + n_greedy) * sizeof *ids);
    memcpy(ids, prompt, n_prompt * sizeof *ids);
    memcpy(ids + n_prompt, greedy, n_greedy * sizeof *ids);
    const int32_t n = pos[n_pos - 1] + 1, vocab = m->net.config.vocab_size;
    assert_true((size_t)n <= n_prompt + n_greedy);

    dg_session *s = NULL;
    const dg_session_options opt = {.context = n + 1};
    check_ok(dg_session_create(m, &opt, &s));
    char name[64];
    snprintf(name, sizeof name, "prompt%d.top_values", i);
    const float *values = golden_f32(want, name, &size);
    assert_int_equal(size, n_pos * 20);
    snprintf(name, sizeof name, "prompt%d.logsumexp", i);
    const float *lse = golden_f32(want, name, NULL);
    snprintf(name, sizeof name, "prompt%d.top_ids", i);
    const int64_t *top_ids = dg_file_find(want, name)->data;
    size_t at = 0;
    for (int32_t row = 0; row < n; row += 16) {
        const int32_t rows = n - row < 16 ? n - row : 16;
        dg_batch_reset(&s->batch);
        dg_batch_add_rows(&s->batch, &s->kv, ids + row, rows, DG_MASK_CAUSAL);
        dg_batch_upload(m->be, &s->batch);
        dg_batch_begin(m->be, &s->batch);
        dg_target_forward(m, &s->batch, &s->work, NULL, 0);
        dg_target_head(m, dg_mat_rows(s->work.x, 0, rows), dg_mat_rows(s->logits, 0, rows));
        for (; at < n_pos && pos[at] < row + rows; at++) {
            const float *got = dg_mat_row(&s->logits, pos[at] - row);
            double sum = 0;
            int32_t best = 0;
            for (int32_t v = 0; v < vocab; v++) sum += exp((double)got[v]), best = got[v] > got[best] ? v : best;
            for (size_t k = at * 20; k < (at + 1) * 20; k++, d->n++) {
                const double error = fabs((double)got[top_ids[k]] - (double)values[k]);
                assert_false(isnan(error));
                d->squares += error * error;
                d->largest = fmax(d->largest, error);
            }
            d->largest_lse = fmax(d->largest_lse, fabs(log(sum) - (double)lse[at]));
            d->rows++;
            d->changed += best != top_ids[at * 20];
        }
        dg_kv_keep(&s->kv, rows);
    }
    assert_int_equal(at, n_pos);
    dg_session_free(s);
    free(prompt), free(greedy), free(pos), free(ids);
}

static distance compare_prompts(dg_compute compute) {
    distance d = {0};
    dg_model *m = open_as(compute);
    json_t *e = golden_json("smollm2/expected.json");
    dg_file *want = golden_tensors("smollm2/expected.safetensors");
    const json_t *prompts = json_object_get(e, "prompts");
    for (size_t i = 0; i < json_array_size(prompts); i++) compare_prompt(m, json_array_get(prompts, i), want, (int)i, &d);
    dg_file_close(want);
    json_decref(e);
    dg_model_close(m);
    print_message("logits: rms error %.4f, largest %.4f; %lld of %lld rows have another best token\n",
                  sqrt(d.squares / (double)d.n), d.largest, (long long)d.changed, (long long)d.rows);
    return d;
}

static void test_logits(void **state) {
    (void)state;
    const distance d = compare_prompts(DG_COMPUTE_F32);
    assert_true(d.rows > 50 && d.largest < 1e-3 && d.largest_lse < 1e-3 && d.changed == 0);
}

/* As accurate as activations in bf16, or better. */
static void test_logits_default(void **state) {
    (void)state;
    const distance d = compare_prompts(DG_COMPUTE_DEFAULT);
    assert_true(d.squares <= 0.06 * 0.06 * (double)d.n && d.changed * 250 <= d.rows);
}

/* Eight bits change the text of this model now and then, but it is still this model. */
static void test_logits_int8(void **state) {
    (void)state;
    const distance d = compare_prompts(DG_COMPUTE_INT8);
    assert_true(d.squares <= 0.5 * 0.5 * (double)d.n && d.changed * 20 <= d.rows);
    assert_true(d.squares > 0.01 * 0.01 * (double)d.n); /* or it is not what was asked for */
}

/* Greedy text by plain decoding up to the first narrow margin. */
static void test_greedy(void **state) {
    (void)state;
    dg_model *m = open_target();
    json_t *e = golden_json("smollm2/expected.json");
    const json_t *prompts = json_object_get(e, "prompts");
    size_t compared = 0;
    for (size_t i = 0; i < json_array_size(prompts); i++) {
        const json_t *p = json_array_get(prompts, i), *margin = json_object_get(p, "margin");
        size_t n_prompt, n, total;
        int32_t *prompt = json_ints(json_object_get(p, "ids"), &n_prompt), *want = json_ints(json_object_get(p, "greedy"), &n);
        dg_session *s = NULL;
        const dg_session_options opt = {.context = (int32_t)(n_prompt + n), .ignore_stop_tokens = true};
        check_ok(dg_session_create(m, &opt, &s));
        check_ok(dg_session_sync(s, prompt, n_prompt));
        check_ok(dg_session_generate(s, n, NULL, NULL, NULL));
        const int32_t *got = dg_session_tokens(s, &total);
        for (size_t k = 0; k < n && json_real_value(json_array_get(margin, k)) > 0.01; k++, compared++)
            assert_int_equal(got[n_prompt + k], want[k]);
        dg_session_free(s);
        free(prompt), free(want);
    }
    assert_true(compared > 100);
    json_decref(e);
    dg_model_close(m);
}

static json_t *reference(void) {
    const char *path = golden_path("../prototype/smollm2-dflash/reference.json");
    json_error_t err;
    return json_load_file(path, 0, &err);
}

static dg_session *open_drafted(dg_model *m, int32_t context) {
    dg_session *s = NULL;
    const dg_draft draft = {"dflash", golden_path("../prototype/smollm2-dflash"), NULL};
    const dg_session_options opt = {.context = context, .budget = 15, .draft = &draft, .n_draft = 1};
    check_ok(dg_session_create(m, &opt, &s));
    return s;
}

/* The blocks drafted along the recorded tokens agree in at least 97 % of positions. */
static void test_blocks(void **state) {
    (void)state;
    json_t *ref = reference();
    if (!ref) skip();
    dg_model *m = open_target();
    dg_session *s = open_drafted(m, 1024);
    dg_drafter *d = s->slot[0].drafter;
    size_t same = 0, all = 0;
    const json_t *cases = json_object_get(ref, "cases");
    for (size_t c = 0; c < json_array_size(cases); c++) {
        const json_t *one = json_array_get(cases, c), *rounds = json_object_get(one, "rounds");
        size_t n_prompt, n_out;
        int32_t *prompt = json_ints(json_object_get(one, "prompt_ids"), &n_prompt);
        int32_t *out = json_ints(json_object_get(one, "output_ids"), &n_out);
        int32_t *ids = malloc((n_prompt + n_out) * sizeof *ids);
        memcpy(ids, prompt, n_prompt * sizeof *ids);
        memcpy(ids + n_prompt, out, n_out * sizeof *ids);
        for (size_t r = 0; r < json_array_size(rounds); r++) {
            const json_t *round = json_array_get(rounds, r);
            const size_t start = (size_t)json_integer_value(json_object_get(round, "start"));
            if (start >= n_prompt + n_out) break;
            check_ok(dg_session_sync(s, ids, start + 1));
            dg_tree tree;
            dg_tree_reset(&tree, ids[start]);
            check_ok(d->ops->propose(d, &tree, 15));
            size_t n;
            int32_t *want = json_ints(json_object_get(round, "draft"), &n);
            assert_int_equal(n, 15);
            for (size_t i = 0; i < n; i++) same += tree.token[i + 1] == want[i];
            all += n;
            free(want);
        }
        free(prompt), free(out), free(ids);
    }
    print_message("blocks: %zu of %zu positions equal (%.2f %%)\n", same, all, 100.0 * (double)same / (double)all);
    assert_true(all > 5000 && (double)same >= 0.97 * (double)all);
    dg_session_free(s);
    dg_model_close(m);
    json_decref(ref);
}

/* Acceptance length of the chain over the reference prompts within 5 % of the reference loop's. */
static void test_acceptance(void **state) {
    (void)state;
    json_t *ref = reference();
    if (!ref) skip();
    dg_model *m = open_target();
    dg_session *s = open_drafted(m, 1024);
    uint64_t tokens = 0, rounds = 0;
    const json_t *cases = json_object_get(ref, "cases");
    for (size_t c = 0; c < json_array_size(cases); c++) {
        const json_t *one = json_array_get(cases, c);
        size_t n_prompt, n_out;
        int32_t *prompt = json_ints(json_object_get(one, "prompt_ids"), &n_prompt);
        int32_t *out = json_ints(json_object_get(one, "output_ids"), &n_out);
        int32_t *ids = malloc((n_prompt + 1) * sizeof *ids);
        memcpy(ids, prompt, n_prompt * sizeof *ids);
        ids[n_prompt] = out[0]; /* the reference loop starts from the first sampled token */
        check_ok(dg_session_sync(s, ids, n_prompt + 1));
        dg_session_reset_stats(s);
        check_ok(dg_session_generate(s, n_out - 1, NULL, NULL, NULL));
        dg_stats st;
        dg_session_get_stats(s, &st);
        tokens += st.tokens, rounds += st.rounds;
        free(prompt), free(out), free(ids);
    }
    const double tau = (double)tokens / (double)rounds;
    const double want = json_real_value(json_object_get(ref, "tokens_per_round"));
    print_message("acceptance length %.4f, reference %.4f\n", tau, want);
    assert_true(fabs(tau / want - 1) < 0.05);
    dg_session_free(s);
    dg_model_close(m);
    json_decref(ref);
}

int main(void) {
    if (!golden_have("smollm2/expected.json") || !(model_path = smollm2_path())) return 0;
    const struct CMUnitTest t[] = {cmocka_unit_test(test_logits), cmocka_unit_test(test_logits_default),
                                   cmocka_unit_test(test_logits_int8), cmocka_unit_test(test_greedy),
                                   cmocka_unit_test(test_blocks), cmocka_unit_test(test_acceptance)};
    return cmocka_run_group_tests_name("golden smollm2", t, NULL, NULL);
}
