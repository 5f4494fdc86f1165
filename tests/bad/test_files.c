/* Files that must be refused: truncated, overlapping, oversized, mistyped, hostile. And no damage of any kind
 * may crash: every truncation and some hundred byte flips of a sound file. */
#include "tests/files.h"
#include "tests/test.h"

#define LLVMFuzzerTestOneInput fuzz_safetensors
#include "tests/fuzz/fuzz_safetensors.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_gguf
#include "tests/fuzz/fuzz_gguf.c"
#undef LLVMFuzzerTestOneInput

static const char *dir;
static bytes b;

static void check_file(dg_status code, const char *part) {
    dg_file *f = NULL;
    const int64_t live = dg_mem_live();
    const char *path = save(dir, "bad", b.p, b.n);
    check_fails(dg_file_open(path, &f), code, part);
    assert_non_null(strstr(dg_error_message(), path)); /* the message names the file */
    assert_null(f);
    assert_int_equal(dg_mem_live(), live);
}

/* ---- safetensors ------------------------------------------------------------------------------ */

#define ONE(dtype, shape, offsets)                                                                           \
    "{\"w\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

static void test_safetensors_table(void **state) {
    (void)state;
    static const struct {
        const char *header;
        int n_data;
        dg_status code;
        const char *part;
    } t[] = {
        {ONE("\"F32\"", "[2]", "[0,8]"), 7, DG_ERR_FORMAT,
         "tensor w: data_offsets: expected an end of at most 7, found 8"},
        {ONE("\"F32\"", "[2]", "[0,8]"), 9, DG_ERR_FORMAT,
         "expected 8 bytes of data after the header, found 9"},
        {ONE("\"F32\"", "[2]", "[8,0]"), 8, DG_ERR_FORMAT, "expected begin and end in this order"},
        {ONE("\"F32\"", "[2]", "[4,12]"), 12, DG_ERR_FORMAT, "expected to begin at 0, found 4"},
        {ONE("\"F32\"", "[3]", "[0,8]"), 8, DG_ERR_FORMAT,
         "tensor w: data_offsets: expected 12 bytes for its shape"},
        {ONE("\"F32\"", "[1]", "[0,8]"), 8, DG_ERR_FORMAT, "data_offsets: expected 4 bytes for its shape"},
        {ONE("\"F32\"", "[2,0]", "[0,8]"), 8, DG_ERR_FORMAT, "data_offsets: expected 0 bytes for its shape"},
        {ONE("\"F64\"", "[2147483647,2147483647]", "[0,8]"), 8, DG_ERR_FORMAT, "overflows"},
        {ONE("\"F32\"", "[-1]", "[0,8]"), 8, DG_ERR_FORMAT, "shape[0]: expected an integer from 0 up"},
        {ONE("\"F32\"", "[2.0]", "[0,8]"), 8, DG_ERR_FORMAT, "shape[0]: expected an integer from 0 up"},
        {ONE("\"F32\"", "[\"2\"]", "[0,8]"), 8, DG_ERR_FORMAT, "shape[0]"},
        {ONE("\"F32\"", "2", "[0,8]"), 8, DG_ERR_FORMAT, "shape: expected an array"},
        {ONE("\"F32\"", "[1,1,1,1,2]", "[0,8]"), 8, DG_ERR_FORMAT,
         "shape: expected at most 4 numbers, found 5"},
        {ONE("\"F32\"", "[2147483648]", "[0,8]"), 8, DG_ERR_FORMAT, "dimension 0: expected 0 to 2147483647"},
        {ONE("\"F32\"", "[2147483647,2147483647,2147483647]", "[0,8]"), 8, DG_ERR_FORMAT, "overflows"},
        {ONE("\"F32\"", "[9223372036854775807,9223372036854775807]", "[0,8]"), 8, DG_ERR_FORMAT,
         "dimension 0"},
        {ONE("\"F32\"", "[18446744073709551618]", "[0,8]"), 8, DG_ERR_FORMAT, "shape[0]"},
        {ONE("\"F32\"", "[2]", "[0,8,9]"), 8, DG_ERR_FORMAT, "data_offsets"},
        {ONE("\"F32\"", "[2]", "[8]"), 8, DG_ERR_FORMAT, "data_offsets"},
        {ONE("\"F32\"", "[2]", "[0,9223372036854775807]"), 8, DG_ERR_FORMAT, "an end of at most 8"},
        {ONE("\"F32\"", "[2]", "[-8,0]"), 8, DG_ERR_FORMAT, "data_offsets[0]"},
        {ONE("\"F8_E4M3\"", "[8]", "[0,8]"), 8, DG_ERR_UNSUPPORTED,
         "tensor w: dtype F8_E4M3 is not supported"},
        {ONE("7", "[2]", "[0,8]"), 8, DG_ERR_FORMAT, "dtype: expected a string"},
        {"{\"w\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, DG_ERR_FORMAT, "dtype"},
        {"{\"w\":[1,2]}", 8, DG_ERR_FORMAT, "tensor w: expected an object"},
        {"{\"w\":null}", 8, DG_ERR_FORMAT, "tensor w: expected an object"},
        {"{}", 0, DG_ERR_FORMAT, "at least one tensor"},
        {"{\"__metadata__\":{\"a\":\"b\"}}", 0, DG_ERR_FORMAT, "at least one tensor"},
        {"{\"w\":", 8, DG_ERR_FORMAT, "line 1"},
        {"{\"\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}", 8, DG_ERR_FORMAT,
         "without a name"},
        {"{\"a\\u001b[31m\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}", 8, DG_ERR_FORMAT,
         "byte 0x1b"},
        {"{\"w\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]},"
         "\"w\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}",
         8, DG_ERR_FORMAT, "duplicate"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[6],\"data_offsets\":[0,6]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,8]}}",
         8, DG_ERR_FORMAT,
         "tensors a and b overlap: expected the second to begin at byte 6 or later, found 4"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[0,5]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,8]}}",
         8, DG_ERR_FORMAT, "overlap"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}",
         8, DG_ERR_FORMAT, "overlap"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,8]}}",
         8, DG_ERR_FORMAT,
         "tensor b: data_offsets: "
         "expected to begin at 3, found 4"}};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        b.n = 0;
        put_safetensors(&b, t[i].header, (size_t)t[i].n_data);
        check_file(t[i].code, t[i].part);
    }
}

static void test_header_length(void **state) {
    (void)state;
    static const uint64_t lie[] = {1000, UINT64_MAX, UINT64_MAX - 7, 100000001, (uint64_t)1 << 63};
    for (size_t i = 0; i < sizeof lie / sizeof *lie; i++) {
        sample_safetensors(&b);
        for (int k = 0; k < 8; k++) b.p[k] = (uint8_t)(lie[i] >> (8 * k));
        check_file(DG_ERR_FORMAT, "header length: expected at most");
    }
    for (size_t over = 1; over <= 8; over++) { /* the bytes of the length itself do not count */
        b.n = 0;
        put_int(&b, 100 + over, 8);
        put_int(&b, '{', 1);
        for (int i = 0; i < 99; i++) put_int(&b, ' ', 1);
        check_file(DG_ERR_FORMAT, "header length: expected at most 100");
    }
    sample_safetensors(&b);
    b.p[0] = 0, b.p[1] = 0; /* an empty header */
    check_file(DG_ERR_FORMAT, "line 1");
    sample_safetensors(&b);
    b.p[8] = '[';
    check_file(DG_ERR_FORMAT, "neither GGUF nor safetensors");
    /* nested far deeper than a parser's stack: refused before it is parsed */
    b.n = 0;
    put_int(&b, 50000, 8);
    for (int i = 0; i < 10000; i++) put(&b, "{\"a\":", 5);
    check_file(DG_ERR_FORMAT, "nested deeper than 64");
}

/* ---- GGUF ------------------------------------------------------------------------------------- */

static const uint64_t square[] = {32, 2};

/* A file of two f32 tensors whose directory the test spoils. */
static void two(uint64_t second_offset, uint32_t type, const char *second) {
    b.n = 0;
    put_gguf(&b, 3, 2, 0);
    put_tensor(&b, "a", square, 2, type, 0);
    put_tensor(&b, second, square, 2, 0, second_offset);
    put_align(&b, 32);
    for (int i = 0; i < 128; i++) put_int(&b, 0, 4);
}

static void test_gguf_tensors(void **state) {
    (void)state;
    dg_file *f;
    two(256, 0, "b");
    check_ok(dg_file_open(save(dir, "good", b.p, b.n), &f));
    dg_file_close(f);
    two(224, 0, "b");
    check_file(DG_ERR_FORMAT,
               "tensors a and b overlap: expected the second to begin at byte 256 or later, found 224");
    two(0, 0, "b");
    check_file(DG_ERR_FORMAT, "overlap");
    two(288, 0, "b");
    check_file(DG_ERR_FORMAT, "tensor b: expected 256 bytes at offset 288 of the data, found 512");
    two(UINT64_MAX - 31, 0, "b");
    check_file(DG_ERR_FORMAT, "tensor b: expected 256 bytes at offset");
    two(257, 0, "b");
    check_file(DG_ERR_FORMAT, "offset: expected a multiple of 32, found 257");
    two(256, 0, "a");
    check_file(DG_ERR_FORMAT, "tensor a occurs twice");
    two(256, 0, "");
    check_file(DG_ERR_FORMAT, "a tensor without a name");
    two(256, 0, "b\n");
    check_file(DG_ERR_FORMAT, "byte 0x0a");
    static const uint32_t type[] = {4, 5, 9, 15, 31, 36, 38, 41, 99, UINT32_MAX};
    for (size_t i = 0; i < sizeof type / sizeof *type; i++) {
        two(256, type[i], "b");
        check_file(DG_ERR_UNSUPPORTED, "tensor a: type");
    }
}

static void test_gguf_shapes(void **state) {
    (void)state;
    static const struct {
        uint64_t ne[5];
        uint32_t n_dim, type;
        const char *part;
    } t[] = {{{33, 2}, 2, 8, "rows of q8_0: expected a multiple of 32 elements, found 33"},
             {{1, 32}, 2, 2, "rows of q4_0: expected a multiple of 32 elements, found 1"},
             {{128}, 1, 12, "expected a multiple of 256"},
             {{1, 1, 1, 1, 1}, 5, 0, "expected at most 4 dimensions, found 5"},
             {{1}, UINT32_MAX, 0, "expected at most 4 dimensions"},
             {{UINT64_MAX}, 1, 0, "dimension 0: expected 0 to 2147483647"},
             {{(uint64_t)1 << 62, 4}, 2, 0, "dimension 1"},
             {{2147483647, 2147483647, 2147483647}, 3, 0, "overflows"},
             {{2147483647}, 1, 0, "is the file complete?"}};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        b.n = 0;
        put_gguf(&b, 3, 1, 0);
        put_str(&b, "w");
        put_int(&b, t[i].n_dim, 4);
        for (uint32_t k = 0; k < (t[i].n_dim < 5 ? t[i].n_dim : 5); k++) put_int(&b, t[i].ne[k], 8);
        put_int(&b, t[i].type, 4);
        put_int(&b, 0, 8);
        put_align(&b, 32);
        for (int k = 0; k < 64; k++) put_int(&b, 0, 8);
        check_file(DG_ERR_FORMAT, t[i].part);
    }
}

static void test_gguf_counts(void **state) {
    (void)state;
    static const uint64_t lie[] = {3, 100000, UINT64_MAX, UINT64_MAX / 24 + 1, (uint64_t)1 << 60};
    for (size_t i = 0; i < sizeof lie / sizeof *lie; i++) {
        b.n = 0;
        put_gguf(&b, 3, lie[i], 0);
        put_tensor(&b, "w", square, 1, 0, 0);
        check_file(DG_ERR_FORMAT, "expected at most");
        b.n = 0;
        put_gguf(&b, 3, 0, lie[i]);
        put_key_u32(&b, "a", 1);
        check_file(DG_ERR_FORMAT, "expected at most");
        b.n = 0;
        put_gguf(&b, 3, 0, 1);
        put_array(&b, "list", GGUF_U32, lie[i]), put_int(&b, 1, 4);
        check_file(DG_ERR_FORMAT, "key list: expected at most 1 elements");
        b.n = 0;
        put_gguf(&b, 3, 0, 1);
        put_array(&b, "list", GGUF_STRING, lie[i]), put_str(&b, "x");
        check_file(DG_ERR_FORMAT, "key list: expected at most 1 strings");
        b.n = 0;
        put_gguf(&b, 3, 0, 1);
        put_key(&b, "text", GGUF_STRING), put_int(&b, lie[i], 8), put_int(&b, 0, 2);
        check_file(DG_ERR_FORMAT, "more bytes, found 2");
        b.n = 0;
        put_gguf(&b, 3, 0, 1);
        put_int(&b, lie[i] < 20 ? 20 : lie[i], 8), put_int(&b, 0, 8);
        check_file(DG_ERR_FORMAT, "more bytes, found 8");
    }
    b.n = 0;
    put_gguf(&b, 3, 0, 0);
    check_file(DG_ERR_FORMAT, "expected tensors or a vocabulary, found neither");
}

static void test_gguf_keys(void **state) {
    (void)state;
    b.n = 0;
    put_gguf(&b, 3, 0, 2);
    put_key_u32(&b, "twice", 1), put_key_u32(&b, "twice", 2);
    check_file(DG_ERR_FORMAT, "key twice occurs twice");
    b.n = 0;
    put_gguf(&b, 3, 0, 1);
    put_array(&b, "nested", GGUF_ARRAY, 1), put_int(&b, GGUF_U8, 4), put_int(&b, 1, 8), put_int(&b, 7, 8);
    check_file(DG_ERR_UNSUPPORTED, "key nested: arrays of arrays");
    static const uint32_t type[] = {13, 255, UINT32_MAX};
    for (size_t i = 0; i < 3; i++) {
        b.n = 0;
        put_gguf(&b, 3, 0, 1);
        put_key(&b, "odd", type[i]), put_int(&b, 0, 8);
        check_file(DG_ERR_FORMAT, "key odd: value type: expected 0 to 12");
        b.n = 0;
        put_gguf(&b, 3, 0, 1);
        put_array(&b, "odd", type[i], 1), put_int(&b, 0, 8);
        check_file(DG_ERR_FORMAT, "key odd: value type: expected 0 to 12");
    }
    b.n = 0;
    put_gguf(&b, 3, 1, 1);
    put_key_str(&b, "general.alignment", "32");
    put_tensor(&b, "w", square, 1, 0, 0);
    put_align(&b, 32);
    for (int i = 0; i < 32; i++) put_int(&b, 0, 4);
    check_file(DG_ERR_FORMAT, "general.alignment: expected an integer from 0 up, found a string");
    b.n = 0;
    put_gguf(&b, 3, 1, 1);
    put_key(&b, "split.count", GGUF_U16), put_int(&b, 3, 2);
    put_tensor(&b, "w", square, 1, 0, 0);
    check_file(DG_ERR_UNSUPPORTED, "one of 3 parts");
}

/* ---- damage ----------------------------------------------------------------------------------- */

static void try_all(const uint8_t *p, size_t n) {
    fuzz_safetensors(p, n);
    fuzz_gguf(p, n);
}

static void test_truncations(void **state) {
    (void)state;
    static void (*const sample[])(bytes *) = {sample_safetensors, sample_gguf};
    static bytes whole;
    for (int i = 0; i < 2; i++) {
        sample[i](&whole);
        for (size_t n = 0; n < whole.n; n++) {
            dg_file *f;
            memcpy(b.p, whole.p, n);
            b.n = n;
            const dg_status st = dg_file_open(save(dir, "cut", b.p, n), &f);
            if (st != DG_ERR_FORMAT) fail_msg("%zu of %zu bytes: %s", n, whole.n, dg_status_name(st));
            try_all(b.p, n);
        }
    }
}

static void test_flips(void **state) {
    (void)state;
    static void (*const sample[])(bytes *) = {sample_safetensors, sample_gguf};
    static const uint8_t loud[] = {0, 1, 0x7f, 0x80, 0xff};
    const int64_t live = dg_mem_live();
    uint64_t seed = 7;
    for (int i = 0; i < 2; i++)
        for (int round = 0; round < 2000; round++) {
            sample[i](&b);
            for (int k = 0; k <= round % 3; k++) {
                const size_t at = (size_t)((test_random(&seed) + 1) / 2 * (float)(b.n - 1));
                const float r = test_random(&seed);
                b.p[at] = r < 0 ? loud[(int)((r + 1) * 4.9f)] : (uint8_t)(r * 256);
            }
            try_all(b.p, b.n);
            assert_int_equal(dg_mem_live(), live);
        }
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
    const struct CMUnitTest t[] = {
        cmocka_unit_test(test_safetensors_table), cmocka_unit_test(test_header_length),
        cmocka_unit_test(test_gguf_tensors),      cmocka_unit_test(test_gguf_shapes),
        cmocka_unit_test(test_gguf_counts),       cmocka_unit_test(test_gguf_keys),
        cmocka_unit_test(test_truncations),       cmocka_unit_test(test_flips)};
    return cmocka_run_group_tests_name("bad files", t, setup, teardown);
}
