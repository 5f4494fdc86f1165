/* GGUF files: every value type, arrays, tensors, versions, alignment. */
#include "tests/files.h"
#include "tests/test.h"

static const char *dir;
static bytes b;

static dg_file *open_bytes(void) {
    dg_file *f;
    check_ok(dg_file_open(save(dir, "f.gguf", b.p, b.n), &f));
    return f;
}

static void test_tensors(void **state) {
    (void)state;
    const int64_t live = dg_mem_live();
    sample_gguf(&b);
    dg_file *f = open_bytes();
    assert_int_equal(f->container, DG_CONTAINER_GGUF);
    assert_int_equal(f->n_tensor, 2);
    assert_int_equal(f->mapped, b.n);
    assert_null(f->config);
    assert_string_equal(f->tensor[0].name, "a.norm");
    const dg_file_tensor *t = dg_file_find(f, "blk.0.w");
    assert_int_equal(t->dtype, DG_Q8_0);
    assert_int_equal(t->n_dim, 2);
    assert_int_equal(t->dim[0], 2);
    assert_int_equal(t->dim[1], 32);
    assert_int_equal(t->size, 68);
    for (int i = 0; i < 68; i++) assert_int_equal(((const uint8_t *)t->data)[i], i);
    assert_int_equal(dg_file_mat(t).rows, 2);
    assert_int_equal(dg_file_mat(t).cols, 32);
    t = dg_file_find(f, "a.norm");
    assert_int_equal(t->n_dim, 1);
    const float want[] = {0, 1, 2, 3, 4};
    check_near((const float *)t->data, want, 5, 0, "a.norm");
    dg_file_close(f);
    assert_int_equal(dg_mem_live(), live);
}

static void test_values(void **state) {
    (void)state;
    sample_gguf(&b);
    dg_file *f = open_bytes();
    static const struct {
        const char *key;
        dg_meta_type type;
        int64_t value;
    } num[] = {{"t.u8", DG_META_U64, 250},         {"t.i8", DG_META_I64, -5},
               {"t.u16", DG_META_U64, 65530},      {"t.i16", DG_META_I64, -300},
               {"t.u32", DG_META_U64, 4000000000}, {"t.i32", DG_META_I64, -70000},
               {"t.f32", DG_META_F64, -1},         {"t.bool", DG_META_BOOL, 1},
               {"t.u64", DG_META_U64, INT64_MAX}, /* clipped */
               {"t.i64", DG_META_I64, INT64_MIN},  {"t.f64", DG_META_F64, 3}};
    assert_int_equal(f->n_meta, 16);
    for (size_t i = 0; i < sizeof num / sizeof *num; i++) {
        const dg_meta *m = dg_meta_find(f, num[i].key);
        assert_non_null(m);
        assert_int_equal(m->type, num[i].type);
        assert_int_equal(m->n, 1);
        assert_false(m->is_array);
        assert_int_equal(dg_meta_int(m, 0), num[i].value);
    }
    assert_true(dg_meta_number(dg_meta_find(f, "t.f32"), 0) == -1.5);
    assert_true(dg_meta_number(dg_meta_find(f, "t.f64"), 0) == 3.141592653589793);
    assert_true(dg_meta_number(dg_meta_find(f, "t.u64"), 0) == 0x1p64);
    assert_true(dg_meta_number(dg_meta_find(f, "t.i8"), 0) == -5);
    assert_true(dg_meta_number(dg_meta_find(f, "t.bool"), 0) == 1);
    assert_null(dg_meta_find(f, "t."));
    assert_null(dg_meta_find(f, "t.u160"));

    const dg_meta *m = dg_meta_find(f, "t.ints");
    assert_true(m->is_array);
    assert_int_equal(m->n, 3);
    assert_int_equal(m->width, 2);
    assert_int_equal(dg_meta_int(m, 0), 7);
    assert_int_equal(dg_meta_int(m, 1), -1);
    assert_int_equal(dg_meta_int(m, 2), 9);
    m = dg_meta_find(f, "t.strings");
    assert_int_equal(m->type, DG_META_STRING);
    assert_int_equal(m->n, 3);
    assert_int_equal(m->string[0].len, 3);
    assert_memory_equal(m->string[0].ptr, "one", 3);
    assert_int_equal(m->string[1].len, 0);
    assert_memory_equal(m->string[2].ptr, "three", 5);
    m = dg_meta_find(f, "t.flags");
    assert_int_equal(dg_meta_int(m, 0), 0);
    assert_int_equal(dg_meta_int(m, 1), 1);
    assert_int_equal(dg_meta_find(f, "t.none")->n, 0);
    dg_file_close(f);
}

/* Each getter: absent leaves *st alone, another type is FORMAT or, without st, absent. */
static void test_getters(void **state) {
    (void)state;
    sample_gguf(&b);
    dg_file *f = open_bytes();
    dg_status st = DG_OK;
    uint64_t u = 77;
    double d = 77;
    bool flag = false;
    dg_str s = {NULL, 0};
    assert_true(dg_meta_u64(f, "t.u64", &u, &st));
    assert_true(u == UINT64_MAX);
    assert_true(dg_meta_f64(f, "t.f32", &d, &st));
    assert_true(d == -1.5);
    assert_true(dg_meta_f64(f, "t.i16", &d, &st));
    assert_true(d == -300);
    assert_true(dg_meta_bool(f, "t.bool", &flag, &st));
    assert_true(flag);
    assert_true(dg_meta_str(f, "general.architecture", &s, &st));
    assert_int_equal(s.len, 5);
    assert_memory_equal(s.ptr, "llama", 5);
    u = 77;
    assert_false(dg_meta_u64(f, "absent", &u, &st));
    assert_false(dg_meta_f64(f, "absent", &d, &st));
    assert_false(dg_meta_bool(f, "absent", &flag, &st));
    assert_false(dg_meta_str(f, "absent", &s, &st));
    assert_int_equal(st, DG_OK);

    static const char *const not_u64[] = {"t.i8", "t.f32", "t.bool", "general.architecture", "t.ints"};
    for (size_t i = 0; i < 5; i++) {
        st = DG_OK;
        assert_false(dg_meta_u64(f, not_u64[i], &u, &st));
        check_fails(st, DG_ERR_FORMAT, not_u64[i]);
        assert_int_equal(u, 77);
    }
    assert_false(dg_meta_f64(f, "t.bool", &d, &st));
    check_fails(st, DG_ERR_FORMAT, "expected a number, found a boolean");
    assert_false(dg_meta_bool(f, "t.u8", &flag, &st));
    check_fails(st, DG_ERR_FORMAT, "expected a boolean, found an integer");
    assert_false(dg_meta_str(f, "t.strings", &s, &st));
    check_fails(st, DG_ERR_FORMAT, "expected a string, found an array");
    assert_false(dg_meta_u64(f, "t.f32", &u, NULL));
    dg_file_close(f);
}

static void test_versions(void **state) {
    (void)state;
    dg_file *f;
    sample_gguf(&b);
    b.p[4] = 2;
    dg_file_close(open_bytes());
    static const struct {
        uint8_t byte[4];
        const char *part;
    } bad[] = {{{1, 0, 0, 0}, "version 1 is"}, {{4, 0, 0, 0}, "version 4 is"}, {{0, 0, 0, 3}, "big-endian"}};
    for (size_t i = 0; i < 3; i++) {
        memcpy(b.p + 4, bad[i].byte, 4);
        check_fails(dg_file_open(save(dir, "f.gguf", b.p, b.n), &f), DG_ERR_UNSUPPORTED, bad[i].part);
    }
}

static void test_dimensions(void **state) {
    (void)state;
    static const uint64_t ne[] = {5, 4, 3, 2};
    static const size_t size[] = {4, 20, 80, 240, 480};
    for (uint32_t n = 0; n <= 4; n++) {
        b.n = 0;
        put_gguf(&b, 3, 1, 0);
        put_tensor(&b, "t", ne, n, 0, 0);
        put_align(&b, 32);
        for (int i = 0; i < 480; i++) put_int(&b, 0, 1);
        dg_file *f = open_bytes();
        assert_int_equal(f->tensor[0].n_dim, n);
        assert_int_equal(f->tensor[0].size, size[n]);
        for (uint32_t i = 0; i < n; i++) assert_int_equal(f->tensor[0].dim[i], ne[n - 1 - i]);
        dg_file_close(f);
    }
}

/* Every number of the format's type list that we read: which type it is, and the bytes of 256 elements. */
static void test_types(void **state) {
    (void)state;
    static const struct {
        uint32_t number;
        dg_dtype dtype;
        size_t size;
    } t[] = {{0, DG_F32, 1024},   {1, DG_F16, 512},     {2, DG_Q4_0, 144},    {3, DG_Q4_1, 160},
             {6, DG_Q5_0, 176},   {7, DG_Q5_1, 192},    {8, DG_Q8_0, 272},    {10, DG_Q2_K, 84},
             {11, DG_Q3_K, 110},  {12, DG_Q4_K, 144},   {13, DG_Q5_K, 176},   {14, DG_Q6_K, 210},
             {16, DG_IQ2_XXS, 66}, {17, DG_IQ2_XS, 74}, {18, DG_IQ3_XXS, 98}, {19, DG_IQ1_S, 50},
             {20, DG_IQ4_NL, 144}, {21, DG_IQ3_S, 110}, {22, DG_IQ2_S, 82},   {23, DG_IQ4_XS, 136},
             {24, DG_I8, 256},    {25, DG_I16, 512},    {26, DG_I32, 1024},   {27, DG_I64, 2048},
             {28, DG_F64, 2048},  {29, DG_IQ1_M, 56},   {30, DG_BF16, 512},   {34, DG_TQ1_0, 54},
             {35, DG_TQ2_0, 66},  {39, DG_MXFP4, 136},  {40, DG_NVFP4, 144}};
    static const uint64_t ne[] = {256};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        b.n = 0;
        put_gguf(&b, 3, 1, 0);
        put_tensor(&b, "t", ne, 1, t[i].number, 0);
        put_align(&b, 32);
        for (int k = 0; k < 256; k++) put_int(&b, 0, 8);
        dg_file *f = open_bytes();
        assert_int_equal(f->tensor[0].dtype, t[i].dtype);
        assert_int_equal(f->tensor[0].size, t[i].size);
        dg_file_close(f);
    }
}

static void test_alignment(void **state) {
    (void)state;
    static const uint64_t ne[] = {1};
    static const uint32_t good[] = {8, 32, 64, 4096}, bad[] = {0, 4, 48, 33};
    for (size_t i = 0; i < 8; i++) {
        const uint32_t a = i < 4 ? good[i] : bad[i - 4];
        b.n = 0;
        put_gguf(&b, 3, 2, 1);
        put_key_u32(&b, "general.alignment", a);
        put_tensor(&b, "x", ne, 1, 26, 0);
        put_tensor(&b, "y", ne, 1, 26, i < 4 ? a : 64);
        put_align(&b, i < 4 ? a : 8);
        const size_t data = b.n;
        put_int(&b, 11, 4);
        put_align(&b, i < 4 ? a : 64);
        put_int(&b, 22, 4);
        dg_file *f = NULL;
        const char *path = save(dir, "f.gguf", b.p, b.n);
        if (i >= 4) {
            check_fails(dg_file_open(path, &f), DG_ERR_FORMAT, "general.alignment: expected a power of two");
            continue;
        }
        check_ok(dg_file_open(path, &f));
        assert_int_equal(*(const int32_t *)dg_file_find(f, "x")->data, 11);
        assert_int_equal(*(const int32_t *)dg_file_find(f, "y")->data, 22);
        assert_int_equal((const char *)dg_file_find(f, "y")->data - (const char *)dg_file_find(f, "x")->data,
                         a);
        assert_true(data % a == 0);
        dg_file_close(f);
    }
}

static void test_vocabulary_only(void **state) {
    (void)state;
    b.n = 0;
    put_gguf(&b, 3, 0, 1);
    put_array(&b, "tokenizer.ggml.tokens", GGUF_STRING, 2), put_str(&b, "a"), put_str(&b, "b");
    dg_file *f = open_bytes();
    assert_int_equal(f->n_tensor, 0);
    assert_null(dg_file_find(f, "token_embd.weight"));
    dg_file_close(f);
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
    const struct CMUnitTest t[] = {cmocka_unit_test(test_tensors),        cmocka_unit_test(test_values),
                                   cmocka_unit_test(test_getters),        cmocka_unit_test(test_versions),
                                   cmocka_unit_test(test_dimensions),     cmocka_unit_test(test_alignment),
                                   cmocka_unit_test(test_types), cmocka_unit_test(test_vocabulary_only)};
    return cmocka_run_group_tests_name("gguf", t, setup, teardown);
}
