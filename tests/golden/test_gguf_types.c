/* Every weight type of GGUF against gguf/types: files quantised by ggml, values decoded by ggml, equal to the
 * bit. Each file has a tensor of quantised Gaussian weights and one of random blocks. */
#include "tests/test.h"

#include <strings.h>

#include "kernels/quant.h"

static bool have;

static int setup(void **state) {
    (void)state;
    have = golden_have("gguf/types/types.json");
    return 0;
}

/* Rows decoded one by one, as ops do, and the whole tensor at once. */
static void check_tensor(const char *type, const dg_file_tensor *t, const float *want, size_t n) {
    assert_int_equal(t->n_dim, 2);
    const dg_mat m = dg_file_mat(t);
    assert_int_equal((size_t)m.rows * (size_t)m.cols, n);
    float *got = malloc(2 * n * sizeof *got), *rows = got + n;
    dg_dequant_row(t->dtype, t->data, got, n);
    for (int32_t r = 0; r < m.rows; r++)
        dg_dequant_row(m.dtype, dg_mat_row(&m, r), rows + (size_t)r * (size_t)m.cols, (size_t)m.cols);
    for (size_t i = 0; i < n; i++) {
        uint32_t a, b;
        memcpy(&a, &got[i], sizeof a);
        memcpy(&b, &want[i], sizeof b);
        if (a != b)
            fail_msg("%s %s[%zu]: %.9g, want %.9g", type, t->name, i, (double)got[i], (double)want[i]);
    }
    assert_memory_equal(got, rows, n * sizeof *got);
    free(got);
}

static void test_types(void **state) {
    (void)state;
    if (!have) skip();
    static const char *const tensors[] = {"gauss.weight", "bits.weight"};
    json_t *all = golden_json("gguf/types/types.json"), *types = json_object_get(all, "types"), *entry;
    const char *type;
    int seen[DG_DTYPE_COUNT] = {0};
    json_object_foreach(types, type, entry) {
        dg_file *file = golden_tensors("gguf/types/%s.gguf", type);
        dg_file *expected = golden_tensors("gguf/types/%s.safetensors", type);
        for (int i = 0; i < 2; i++) {
            const dg_file_tensor *t = dg_file_find(file, tensors[i]);
            assert_non_null(t);
            const dg_dtype_info *info = dg_dtype_get(t->dtype);
            assert_int_equal(strcasecmp(info->name, type), 0);
            assert_int_equal(info->block_len, json_integer_value(json_object_get(entry, "block")));
            assert_int_equal(info->block_size, json_integer_value(json_object_get(entry, "bytes")));
            size_t n;
            const float *want = golden_f32(expected, tensors[i], &n);
            check_tensor(type, t, want, n);
            seen[t->dtype]++;
        }
        dg_file_close(file);
        dg_file_close(expected);
    }
    for (int d = DG_Q4_0; d < DG_DTYPE_COUNT; d++)
        if (seen[d] != 2) fail_msg("%s was not tested", dg_dtype_get((dg_dtype)d)->name);
    json_decref(all);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_types)};
    return cmocka_run_group_tests(tests, setup, NULL);
}
