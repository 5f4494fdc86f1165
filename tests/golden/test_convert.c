/* Conversions of the golden models: there and back to the bit, and GGUF files against llama.cpp's converter.
 */
#include "tests/test.h"

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/quant.h"
#include "runtime/config.h"
#include "runtime/convert.h"
#include "runtime/gguf_out.h"
#include "runtime/tokenizer.h"

static bool have;
static char tmp[64];

static int setup(void **state) {
    (void)state;
    have = golden_have("gguf/models/models.json") && golden_have("target/llama/config.json");
    if (have) strcpy(tmp, test_tmpdir());
    return 0;
}

static int teardown(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", tmp);
    return have ? system(command) : 0;
}

/* A path in the temporary folder; a static buffer that the next-but-three call overwrites. */
static const char *temp(const char *name) {
    static char ring[4][256];
    static unsigned next;
    char *p = ring[next++ % 4];
    snprintf(p, sizeof ring[0], "%s/%s", tmp, name);
    return p;
}

static dg_file *open_file(const char *path) {
    dg_file *f = NULL;
    check_ok(dg_file_open(path, &f));
    return f;
}

/* ---- there and back --------------------------------------------------------------------------- */

/* Same names, shapes and, as f32, the same bits. b is f32. */
static void check_same_tensors(const dg_file *a, const dg_file *b) {
    assert_int_equal(a->n_tensor, b->n_tensor);
    for (size_t i = 0; i < a->n_tensor; i++) {
        const dg_file_tensor *t = &a->tensor[i], *u = &b->tensor[i];
        assert_string_equal(t->name, u->name);
        assert_int_equal(u->dtype, DG_F32);
        assert_int_equal(t->n_dim, u->n_dim);
        size_t n = 1;
        for (int32_t k = 0; k < t->n_dim; k++) {
            assert_int_equal(t->dim[k], u->dim[k]);
            n *= (size_t)t->dim[k];
        }
        assert_int_equal(u->size, 4 * n);
        float *want = malloc(4 * n);
        dg_dequant_row(t->dtype, t->data, want, n);
        if (memcmp(want, u->data, 4 * n) != 0) fail_msg("%s: %s differs", a->path, t->name);
        free(want);
    }
}

static void check_rope(const dg_config *a, const dg_config *b) {
    float want[256], got[256], m, k;
    dg_config_rope(a, NULL, want, &m);
    dg_config_rope(b, NULL, got, &k);
    for (int32_t i = 0; i < a->head_dim / 2; i++) assert_true(fabsf(want[i] - got[i]) <= 1e-6f * want[i]);
    assert_true(fabsf(m - k) <= 1e-6f);
    assert_int_equal(a->rope_scaling, b->rope_scaling);
    assert_int_equal(a->rope_interleaved, b->rope_interleaved);
}

static void check_same_config(const dg_file *a, const dg_file *b) {
    dg_config c, d;
    check_ok(dg_config_read(a, &c));
    check_ok(dg_config_read(b, &d));
#define SAME(field) assert_int_equal(c.field, d.field)
    SAME(arch), SAME(vocab_size), SAME(hidden_size), SAME(n_layer), SAME(n_head), SAME(n_kv_head),
        SAME(head_dim);
    SAME(intermediate_size), SAME(max_position), SAME(qk_norm), SAME(qkv_bias), SAME(o_bias), SAME(tied);
    SAME(n_stop), SAME(bos), SAME(block_size), SAME(mask_token_id), SAME(n_tap);
    SAME(draft_vocab_size), SAME(target_hidden_size);
    for (int32_t i = 0; i < c.n_stop; i++) SAME(stop[i]);
    for (int32_t i = 0; i < c.n_tap; i++) SAME(tap[i]);
    for (int32_t i = 0; i < c.n_layer; i++) SAME(window[i]), SAME(causal[i]);
#undef SAME
    assert_true(c.rms_norm_eps == d.rms_norm_eps && c.embedding_scale == d.embedding_scale &&
                c.output_multiplier == d.output_multiplier && c.logit_softcap == d.logit_softcap);
    check_rope(&c, &d);
}

typedef struct round_trip {
    const char *source, *tokenizer;
} round_trip;

static void test_round_trip(void **state) {
    if (!have) skip();
    const round_trip *r = *state;
    char source[256];
    snprintf(source, sizeof source, "%s", golden_path("%s", r->source));
    const char *gguf = temp("there.gguf"), *back = temp("back");
    check_ok(dg_convert_with(source, r->tokenizer ? golden_path("%s", r->tokenizer) : NULL, gguf, DG_F32,
                             NULL, NULL));
    check_ok(dg_convert(gguf, back, DG_F32, NULL, NULL));
    dg_file *a = open_file(source), *b = open_file(back);
    check_same_tensors(a, b);
    check_same_config(a, b);
    dg_file_close(a), dg_file_close(b);
    check_ok(dg_convert(back, temp("again"), DG_F32, NULL, NULL));
    a = open_file(temp("back")), b = open_file(temp("again"));
    check_same_tensors(a, b);
    check_same_config(a, b);
    dg_file_close(a), dg_file_close(b);
    char command[512];
    snprintf(command, sizeof command, "rm -r '%s' '%s' '%s'", temp("back"), temp("again"),
             temp("there.gguf"));
    assert_int_equal(system(command), 0);
}

/* ---- against llama.cpp's converter ------------------------------------------------------------ */

static void check_meta(const char *what, const dg_meta *want, const dg_file *ours) {
    char key[256];
    snprintf(key, sizeof key, "%.*s", (int)want->key.len, want->key.ptr);
    const dg_meta *got = dg_meta_find(ours, key);
    if (!got) fail_msg("%s: key %s is missing", what, key);
    if (got->type != want->type || got->is_array != want->is_array || got->n != want->n ||
        got->width != want->width)
        fail_msg("%s: key %s has another type or length", what, key);
    for (uint64_t i = 0; i < want->n; i++) {
        if (want->type == DG_META_STRING) {
            const dg_str a = want->string[i], b = got->string[i];
            if (a.len != b.len || memcmp(a.ptr, b.ptr, a.len) != 0)
                fail_msg("%s: key %s[%d]: got %.*s, want %.*s", what, key, (int)i, (int)b.len, b.ptr,
                         (int)a.len, a.ptr);
        } else if (dg_meta_number(want, i) != dg_meta_number(got, i)) {
            fail_msg("%s: key %s[%d]: got %g, want %g", what, key, (int)i, dg_meta_number(got, i),
                     dg_meta_number(want, i));
        }
    }
}

/* Keys that say nothing about the model: names made up from the folder, and the separator of sentence pairs.
 */
static bool matters(const dg_meta *m) {
    static const char *const not [] = {"general.name", "general.size_label", "tokenizer.ggml.add_sep_token"};
    for (size_t i = 0; i < sizeof not / sizeof *not ; i++)
        if (m->key.len == strlen(not [i]) && memcmp(m->key.ptr, not [i], m -> key.len) == 0) return false;
    return true;
}

static void check_same_gguf(const char *what, const dg_file *want, const dg_file *got) {
    if (want->n_tensor != got->n_tensor)
        fail_msg("%s: %zu tensors, want %zu", what, got->n_tensor, want->n_tensor);
    for (size_t i = 0; i < want->n_tensor; i++) {
        const dg_file_tensor *t = &want->tensor[i], *u = &got->tensor[i];
        assert_string_equal(t->name, u->name);
        assert_int_equal(t->dtype, u->dtype);
        assert_int_equal(t->n_dim, u->n_dim);
        for (int32_t k = 0; k < t->n_dim; k++) assert_int_equal(t->dim[k], u->dim[k]);
        assert_int_equal((uintptr_t)u->data % DG_GGUF_ALIGNMENT, 0); /* the mapping begins at a page */
        if (strcmp(t->name, "rope_freqs.weight") == 0)
            check_near(u->data, t->data, t->size / 4, 1e-5, t->name);
        else if (memcmp(t->data, u->data, t->size) != 0)
            fail_msg("%s: tensor %s has other bytes", what, t->name);
    }
    for (size_t i = 0; i < want->n_meta; i++)
        if (matters(&want->meta[i])) check_meta(what, &want->meta[i], got);
}

static dg_dtype type_in_name(const char *name) {
    return strstr(name, ".f16.") ? DG_F16 : strstr(name, ".q8_0.") ? DG_Q8_0 : DG_F32;
}

/* Every golden file of a network that dgraft runs: names, shapes, types, bytes and keys. */
static void test_models(void **state) {
    (void)state;
    if (!have) skip();
    json_t *all = golden_json("gguf/models/models.json"), *entry;
    const char *name;
    int n = 0;
    json_object_foreach(json_object_get(all, "files"), name, entry) {
        const char *source = json_string_value(json_object_get(entry, "source"));
        const char *target = json_string_value(json_object_get(entry, "target"));
        if (strstr(name, "moe") || strstr(name, "eagle3-head")) continue;
        const char *out = temp(name);
        check_ok(dg_convert_with(golden_path("%s", source), target ? golden_path("%s", target) : NULL, out,
                                 type_in_name(name), NULL, NULL));
        dg_file *want = golden_tensors("gguf/models/%s", name), *got = open_file(out);
        check_same_gguf(name, want, got);
        dg_file_close(want), dg_file_close(got);
        unlink(out);
        n++;
    }
    assert_in_range(n, 12, 100);
    json_decref(all);
}

/* Requantising a GGUF file is the same as converting the original; its keys come along. */
static void test_gguf_to_gguf(void **state) {
    (void)state;
    if (!have) skip();
    const char *out = temp("q8.gguf");
    check_ok(dg_convert(golden_path("gguf/models/target-llama.f32.gguf"), out, DG_Q8_0, NULL, NULL));
    dg_file *want = golden_tensors("gguf/models/target-llama.q8_0.gguf"), *got = open_file(out);
    check_same_gguf("requantised", want, got);
    assert_int_equal(want->n_meta, got->n_meta);
    dg_file_close(want), dg_file_close(got);
}

/* llama.cpp's own file back to the checkpoint it was made of: q and k in their old order. */
static void test_gguf_to_hf(void **state) {
    (void)state;
    if (!have) skip();
    const char *out = temp("hf");
    check_ok(dg_convert(golden_path("gguf/models/target-llama.f32.gguf"), out, DG_F32, NULL, NULL));
    dg_file *want = golden_tensors("target/llama"), *got = open_file(out);
    check_same_tensors(want, got);
    check_same_config(want, got);
    dg_file_close(want), dg_file_close(got);
}

/* A drafter takes a GGUF target's tokenizer as well as a directory's. */
static void test_tokenizer_of_gguf(void **state) {
    (void)state;
    if (!have) skip();
    const char *out = temp("d2.gguf");
    check_ok(dg_convert_with(golden_path("dflash/d2-b16"),
                             golden_path("gguf/models/dflash-target-qwen3.f16.gguf"), out, DG_F32, NULL,
                             NULL));
    dg_file *want = golden_tensors("gguf/models/dflash-d2-b16.f32.gguf"), *got = open_file(out);
    check_same_gguf("drafter", want, got);
    dg_file_close(want), dg_file_close(got);
}

/* ---- tokenizers ------------------------------------------------------------------------------- */

/* Our scores are ranks of merges; they have to order the tokens that merges make as the model's scores do. */
static void check_score_order(const dg_file *want, const dg_file *got) {
    const dg_meta *w = dg_meta_find(want, "tokenizer.ggml.scores"),
                  *g = dg_meta_find(got, "tokenizer.ggml.scores");
    assert_non_null(w);
    assert_non_null(g);
    assert_int_equal(w->n, g->n);
    int compared = 0;
    for (uint64_t i = 0; i < w->n; i++)
        for (uint64_t k = 0; k < i; k++) {
            const double a = dg_meta_number(g, i), b = dg_meta_number(g, k);
            if (a == 0 || b == 0) continue; /* not made by a merge */
            assert_int_equal(a < b, dg_meta_number(w, i) < dg_meta_number(w, k));
            compared++;
        }
    assert_in_range(compared, 1000, 10000000);
}

/* Both spellings give the same ids for every text of the set. */
static void check_same_ids(const char *name, const dg_file *f) {
    dg_tokenizer *a = NULL, *b = NULL;
    check_ok(dg_tokenizer_open_json(golden_path("tokenizer/%s", name), &a));
    check_ok(dg_tokenizer_open_gguf(f, &b));
    json_t *expected = golden_json("tokenizer/%s/expected.json", name), *entry;
    size_t i;
    json_array_foreach(json_object_get(expected, "encode"), i, entry) {
        enum { CAP = 1 << 13 };
        static int32_t x[CAP], y[CAP];
        size_t n, m;
        const json_t *text = json_object_get(entry, "text");
        const char *p = json_string_value(text);
        const int flags = DG_ENCODE_SPECIAL | DG_ENCODE_BOS;
        check_ok(dg_tokenizer_encode(a, p, json_string_length(text), flags, x, CAP, &n));
        check_ok(dg_tokenizer_encode(b, p, json_string_length(text), flags, y, CAP, &m));
        assert_true(n <= CAP);
        if (n != m || memcmp(x, y, n * sizeof *x) != 0)
            fail_msg("%s: text %d has other ids: \"%s\"", name, (int)i, p);
    }
    assert_true(i > 100);
    json_decref(expected);
    dg_tokenizer_close(a), dg_tokenizer_close(b);
}

static void test_tokenizers(void **state) {
    (void)state;
    if (!have || !golden_have("tokenizer/gpt2/vocab.gguf")) skip();
    static const char *const names[] = {"gpt2",     "smollm",         "llama3", "qwen2",
                                        "deepseek", "deepseek-coder", "o200k",  "llama2"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        dg_file *want = golden_tensors("tokenizer/%s/vocab.gguf", names[i]), *got;
        const dg_meta *tokens = dg_meta_find(want, "tokenizer.ggml.tokens");
        dg_gguf_out g = {.arch = "llama"};
        int32_t eos;
        dg_out *o;
        check_ok(dg_gguf_out_tokenizer(&g, golden_path("tokenizer/%s", names[i]), (int32_t)tokens->n, &eos));
        check_ok(dg_out_open(temp("vocab.gguf"), &o));
        check_ok(dg_gguf_out_header(&g, o));
        check_ok(dg_out_commit(o));
        dg_gguf_out_clear(&g);
        got = open_file(temp("vocab.gguf"));
        for (size_t k = 0; k < want->n_meta; k++) {
            const dg_meta *m = &want->meta[k];
            if (m->key.len < 10 || memcmp(m->key.ptr, "tokenizer.", 10) != 0 || !matters(m)) continue;
            /* told by a file that the folder lacks */
            if (strcmp(names[i], "llama2") == 0 && memcmp(m->key.ptr, "tokenizer.ggml.eos", 18) == 0)
                continue;
            if (memcmp(m->key.ptr, "tokenizer.ggml.scores", 21) == 0)
                check_score_order(want, got);
            else
                check_meta(names[i], m, got);
        }
        check_same_ids(names[i], got);
        dg_file_close(want), dg_file_close(got);
    }
}

int main(void) {
    static round_trip trips[] = {
        {"target/llama", NULL},       {"target/llama-rope3", NULL},
        {"target/qwen2", NULL},       {"target/qwen3", NULL},
        {"target/qwen3-yarn", NULL},  {"target/qwen3-swa", NULL},
        {"target/mistral-swa", NULL}, {"dflash/d2-b16", "dflash/target-qwen3"},
        {"dflash/d2-b16", NULL},      {"dflash/d2-b8-bias", "dflash/target-llama"},
        {"dflash/d3-b16-swa", NULL},
    };
    struct CMUnitTest tests[sizeof trips / sizeof *trips + 5];
    size_t n = 0;
    static char names[sizeof trips / sizeof *trips][96];
    for (; n < sizeof trips / sizeof *trips; n++) {
        snprintf(names[n], sizeof names[n], "test_round_trip %s%s", trips[n].source,
                 trips[n].tokenizer ? " with a tokenizer" : "");
        tests[n] = (struct CMUnitTest){names[n], test_round_trip, NULL, NULL, &trips[n]};
    }
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_models);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_gguf_to_gguf);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_gguf_to_hf);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_tokenizer_of_gguf);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_tokenizers);
    return cmocka_run_group_tests(tests, setup, teardown);
}
