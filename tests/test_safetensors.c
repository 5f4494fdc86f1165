/* safetensors files and folders, slurping, JSON. */
#include <sys/stat.h>

#include "tests/files.h"
#include "tests/test.h"

static const char *dir;
static bytes b;

static void test_single(void **state) {
    (void)state;
    const int64_t live = dg_mem_live();
    dg_file *f;
    sample_safetensors(&b);
    const char *path = save(dir, "any.name", b.p, b.n);
    check_ok(dg_file_open(path, &f));
    assert_int_equal(f->container, DG_CONTAINER_SAFETENSORS);
    assert_string_equal(f->path, path);
    assert_int_equal(f->n_tensor, 4);
    assert_int_equal(f->mapped, b.n);
    assert_null(f->config);
    assert_null(f->generation);
    assert_null(f->meta);
    static const char *const sorted[] = {"a.bias", "b.weight", "none", "scalar"};
    for (int i = 0; i < 4; i++) assert_string_equal(f->tensor[i].name, sorted[i]);

    const dg_file_tensor *t = dg_file_find(f, "b.weight");
    assert_int_equal(t->dtype, DG_F32);
    assert_int_equal(t->n_dim, 2);
    assert_int_equal(t->dim[0], 2);
    assert_int_equal(t->dim[1], 3);
    assert_int_equal(t->size, 24);
    assert_int_equal(*(const uint8_t *)t->data, 0);
    const dg_mat m = dg_file_mat(t);
    assert_int_equal(m.rows, 2);
    assert_int_equal(m.cols, 3);
    assert_int_equal(m.stride, 3);
    assert_ptr_equal(m.data, t->data);

    t = dg_file_find(f, "a.bias");
    assert_int_equal(t->dtype, DG_BF16);
    assert_int_equal(((const uint8_t *)t->data)[0], 24);
    assert_int_equal(dg_file_mat(t).rows, 1);
    assert_int_equal(dg_file_mat(t).cols, 4);
    t = dg_file_find(f, "scalar");
    assert_int_equal(t->n_dim, 0);
    assert_int_equal(t->size, 8);
    assert_int_equal(dg_file_find(f, "none")->size, 0);
    assert_null(dg_file_find(f, "a"));
    assert_null(dg_file_find(f, "z"));
    dg_file_close(f);
    assert_int_equal(dg_mem_live(), live);
    dg_file_close(NULL);
}

static void test_directory(void **state) {
    (void)state;
    dg_file *f;
    char sub[256];
    snprintf(sub, sizeof sub, "%s/folder", dir);
    mkdir(sub, 0777);
    check_fails(dg_file_open(sub, &f), DG_ERR_IO, "config.json");
    save_text(sub, "config.json", "{\"model_type\":\"llama\"}");
    check_fails(dg_file_open(sub, &f), DG_ERR_IO, "model.safetensors.index.json");
    sample_safetensors(&b);
    save(sub, "model.safetensors", b.p, b.n);
    check_ok(dg_file_open(sub, &f));
    assert_int_equal(f->n_tensor, 4);
    assert_string_equal(json_string_value(json_object_get(f->config, "model_type")), "llama");
    assert_null(f->generation);
    dg_file_close(f);

    save_text(sub, "generation_config.json", "{\"eos_token_id\":5}");
    char slash[300];
    snprintf(slash, sizeof slash, "%s/", sub);
    check_ok(dg_file_open(slash, &f));
    assert_int_equal(json_integer_value(json_object_get(f->generation, "eos_token_id")), 5);
    dg_file_close(f);

    /* a file in the folder has the folder's configuration */
    snprintf(slash, sizeof slash, "%s/model.safetensors", sub);
    check_ok(dg_file_open(slash, &f));
    assert_non_null(f->config);
    dg_file_close(f);

    save_text(sub, "config.json", "[1]");
    check_fails(dg_file_open(sub, &f), DG_ERR_FORMAT, "config.json: expected an object");
    save_text(sub, "config.json", "{\"a\": 1,\n \"b\" 2}");
    check_fails(dg_file_open(sub, &f), DG_ERR_FORMAT, "config.json: line 2");
}

static const char *shard(const char *sub, const char *leaf, const char *name) {
    char header[200];
    b.n = 0;
    snprintf(header, sizeof header, "{\"%s\":{\"dtype\":\"F16\",\"shape\":[3],\"data_offsets\":[0,6]}}",
             name);
    put_safetensors(&b, header, 6);
    return save(sub, leaf, b.p, b.n);
}

static void test_shards(void **state) {
    (void)state;
    const int64_t live = dg_mem_live();
    dg_file *f;
    char sub[256];
    snprintf(sub, sizeof sub, "%s/shards", dir);
    mkdir(sub, 0777);
    save_text(sub, "config.json", "{}");
    save_text(sub, "model.safetensors.index.json",
              "{\"metadata\":{\"total_size\":12},\"weight_map\":{\"x\":\"2.st\",\"y\":\"1.st\"}}");
    shard(sub, "1.st", "y");
    check_fails(dg_file_open(sub, &f), DG_ERR_IO, "2.st");
    shard(sub, "2.st", "x");
    check_ok(dg_file_open(sub, &f));
    assert_int_equal(f->n_tensor, 2);
    assert_int_equal(f->n_mapping, 2);
    assert_int_equal(f->mapped, 2 * b.n);
    assert_non_null(dg_file_find(f, "x"));
    assert_non_null(dg_file_find(f, "y"));
    dg_file_close(f);

    shard(sub, "2.st", "y");
    check_fails(dg_file_open(sub, &f), DG_ERR_FORMAT, "tensor y occurs twice");
    shard(sub, "2.st", "z");
    check_fails(dg_file_open(sub, &f), DG_ERR_FORMAT, "expected tensor x in 2.st, found none");
    shard(sub, "2.st", "y"), shard(sub, "1.st", "x");
    check_fails(dg_file_open(sub, &f), DG_ERR_FORMAT, "in another file");
    static const char *const bad[] = {"{\"weight_map\":{\"x\":\"../2.st\"}}",
                                      "{\"weight_map\":{\"x\":\"\"}}",
                                      "{\"weight_map\":{\"x\":\"..\"}}",
                                      "{\"weight_map\":{\"x\":7}}",
                                      "{\"weight_map\":{}}",
                                      "{\"weight_map\":[\"x\"]}",
                                      "{}",
                                      "[]",
                                      "{\"weight_map\":{\"x\":\"/etc/x\"}}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        save_text(sub, "model.safetensors.index.json", bad[i]);
        check_fails(dg_file_open(sub, &f), DG_ERR_FORMAT, "weight_map");
    }
    /* an index that names itself as a shard */
    save_text(sub, "model.safetensors.index.json",
              "{\"weight_map\":{\"x\":\"model.safetensors.index.json\"}}");
    check_fails(dg_file_open(sub, &f), DG_ERR_FORMAT, "header length");
    assert_int_equal(dg_mem_live(), live);
}

static void test_dispatch(void **state) {
    (void)state;
    dg_file *f;
    sample_gguf(&b);
    check_ok(dg_file_open(save(dir, "x.safetensors", b.p, b.n), &f));
    assert_int_equal(f->container, DG_CONTAINER_GGUF);
    dg_file_close(f);
    sample_safetensors(&b);
    check_ok(dg_file_open(save(dir, "x.gguf", b.p, b.n), &f));
    assert_int_equal(f->container, DG_CONTAINER_SAFETENSORS);
    dg_file_close(f);
    check_fails(dg_file_open(save_text(dir, "zip", "PK\3\4 something"), &f), DG_ERR_UNSUPPORTED, "PyTorch");
    check_fails(dg_file_open(save_text(dir, "text", "hello, world"), &f), DG_ERR_FORMAT, "neither");
    check_fails(dg_file_open(save_text(dir, "short", "GG"), &f), DG_ERR_FORMAT, "2 bytes");
    check_fails(dg_file_open(save_text(dir, "empty", ""), &f), DG_ERR_FORMAT, "0 bytes");
    check_fails(dg_file_open("/nowhere/at/all", &f), DG_ERR_IO, "/nowhere/at/all");
    check_fails(dg_file_open("/dev/null", &f), DG_ERR_IO, "not a regular file");
    check_fails(dg_gguf_open(save_text(dir, "empty", ""), &f), DG_ERR_FORMAT, "empty");
}

static void test_slurp(void **state) {
    (void)state;
    char *text;
    size_t n;
    const char *path = save(dir, "text", "ab\0cd", 5);
    check_ok(dg_file_slurp(path, 5, &text, &n));
    assert_int_equal(n, 5);
    assert_memory_equal(text, "ab\0cd", 6);
    dg_mem_free(text);
    check_ok(dg_file_slurp(path, 100, &text, NULL));
    dg_mem_free(text);
    check_fails(dg_file_slurp(path, 4, &text, &n), DG_ERR_FORMAT, "at most 4 bytes, found 5");
    check_fails(dg_file_slurp(dir, 4, &text, &n), DG_ERR_IO, "regular");
    check_fails(dg_file_slurp("/nowhere", 4, &text, &n), DG_ERR_IO, "/nowhere");
}

static dg_status parse(const char *text, json_t **j) { return dg_json_parse("here", text, strlen(text), j); }

static void test_json(void **state) {
    (void)state;
    json_t *j;
    char deep[200];
    for (int depth = 64; depth <= 65; depth++) {
        memset(deep, '[', (size_t)depth);
        memset(deep + depth, ']', (size_t)depth);
        deep[2 * depth] = 0;
        if (depth == 64) {
            check_ok(parse(deep, &j));
            json_decref(j);
        } else
            check_fails(parse(deep, &j), DG_ERR_FORMAT, "here: nested deeper than 64");
    }
    check_ok(
        parse("[\"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\\\"[[\"]", &j));
    json_decref(j);
    check_fails(parse("{\"a\":1,\"a\":2}", &j), DG_ERR_FORMAT, "duplicate");
    check_fails(parse("{\"a\":\n1,}", &j), DG_ERR_FORMAT, "here: line 2");
    check_fails(parse("", &j), DG_ERR_FORMAT, "here");
    check_fails(parse("{} x", &j), DG_ERR_FORMAT, "here");
    check_fails(parse("[\"\xff\"]", &j), DG_ERR_FORMAT, "0xff");
    check_fails(parse("[", &j), DG_ERR_FORMAT, "here");
}

/* Integers that int64 cannot hold become reals; everything else stays as it is. */
static void test_json_big(void **state) {
    (void)state;
    json_t *j;
    check_ok(parse("{\"model_max_length\": 1000000000000000019884624838656, \"n\": -98765432109876543210, "
                   "\"s\": \"12345678901234567890123\", \"id\": 9223372036854775807, \"z\":[5,6.5e3, "
                   "12345678901234567890.25]}",
                   &j));
    assert_true(json_is_real(json_object_get(j, "model_max_length")));
    assert_true(json_number_value(json_object_get(j, "model_max_length")) > 0.999e30);
    assert_true(json_number_value(json_object_get(j, "model_max_length")) < 1.001e30);
    assert_true(json_number_value(json_object_get(j, "n")) < -9.8e19);
    assert_true(json_number_value(json_object_get(j, "n")) > -9.9e19);
    assert_string_equal(json_string_value(json_object_get(j, "s")), "12345678901234567890123");
    assert_int_equal(json_integer_value(json_object_get(j, "id")), INT64_MAX);
    assert_int_equal(json_integer_value(json_array_get(json_object_get(j, "z"), 0)), 5);
    assert_true(json_real_value(json_array_get(json_object_get(j, "z"), 1)) == 6500);
    assert_true(json_real_value(json_array_get(json_object_get(j, "z"), 2)) == 12345678901234567890.25);
    json_decref(j);
}

/* Whatever allocation fails, opening says so and leaves nothing behind. */
static void check_oom(const char *path) {
    const int64_t live = dg_mem_live();
    for (uint64_t n = 1;; n++) {
        dg_file *f = NULL;
        dg_mem_fail_nth(n, 1);
        const dg_status st = dg_file_open(path, &f);
        dg_mem_fail_nth(0, 0);
        if (st == DG_OK) {
            assert_true(n > 5);
            dg_file_close(f);
            assert_int_equal(dg_mem_live(), live);
            return;
        }
        if (st != DG_ERR_MEMORY) fail_msg("allocation %d: %s", (int)n, dg_error_message());
        assert_null(f);
        assert_int_equal(dg_mem_live(), live);
    }
}

static void test_oom(void **state) {
    (void)state;
    char sub[256];
    snprintf(sub, sizeof sub, "%s/oom", dir);
    mkdir(sub, 0777);
    save_text(sub, "config.json", "{\"model_type\":\"llama\", \"n\": 1000000000000000019884624838656}");
    save_text(sub, "generation_config.json", "{\"eos_token_id\":[1,2]}");
    save_text(sub, "model.safetensors.index.json", "{\"weight_map\":{\"x\":\"2.st\",\"y\":\"1.st\"}}");
    shard(sub, "1.st", "y"), shard(sub, "2.st", "x");
    check_oom(sub);
    sample_safetensors(&b);
    check_oom(save(dir, "oom.safetensors", b.p, b.n));
    sample_gguf(&b);
    check_oom(save(dir, "oom.gguf", b.p, b.n));
}

static int setup(void **state) {
    (void)state;
    static char d[128];
    snprintf(d, sizeof d, "%s", test_tmpdir());
    dir = d;
    return 0;
}

static int teardown(void **state) {
    (void)state;
    remove_tree(dir);
    return 0;
}

int main(void) {
    const struct CMUnitTest t[] = {cmocka_unit_test(test_single),   cmocka_unit_test(test_directory),
                                   cmocka_unit_test(test_shards),   cmocka_unit_test(test_dispatch),
                                   cmocka_unit_test(test_slurp),    cmocka_unit_test(test_json),
                                   cmocka_unit_test(test_json_big), cmocka_unit_test(test_oom)};
    return cmocka_run_group_tests_name("safetensors", t, setup, teardown);
}
