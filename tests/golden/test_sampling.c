/* The filters of sample against transformers' warpers: kept tokens and probabilities of every recorded
 * setting and row. */
#include "tests/test.h"

#include <math.h>

#include "kernels/cpu/cpu.h"

static bool have;

static int setup(void **state) {
    (void)state;
    have = golden_have("sampling/sampling.json");
    return 0;
}

static float setting(const json_t *s, const char *name) {
    return (float)json_number_value(json_object_get(s, name)); /* 0 when absent: off */
}

/* Equal values leave the order, and so what top-p keeps of them, to the sort. */
static bool arbitrary_ties(const char *row, float top_p) {
    return top_p > 0 && (strstr(row, "equal") || strstr(row, "plateaus") || strstr(row, "ties"));
}

typedef struct fixture {
    dg_cpu_scratch scratch;
    float value[4096], group[4096], mass[4096];
} fixture;

static void check_row(const dg_isa *isa, const float *x, int32_t n, const dg_sampling *s, const json_t *kept,
                      const float *want, const char *what) {
    static fixture f;
    f.scratch = (dg_cpu_scratch){.value = f.value, .group = f.group, .mass = f.mass};
    const dg_scale scale = dg_cpu_keep(isa, x, n, isa->row_max(x, n, f.group), s, &f.scratch);
    const double sum = isa->sum_exp(x, n, scale);
    float probability[4096];
    size_t n_kept, found = 0;
    int32_t *ids = json_ints(kept, &n_kept);
    for (int32_t i = 0; i < n; i++) {
        const float z = (x[i] - scale.max) * scale.inv_t;
        probability[i] = z >= scale.threshold ? (float)(exp((double)z) / sum) : 0;
        if (!(z >= scale.threshold)) continue;
        if (found >= n_kept || ids[found] != i) fail_msg("%s: token %d is kept and should not be", what, i);
        found++;
    }
    if (found != n_kept) fail_msg("%s: %zu tokens are kept, expected %zu", what, found, n_kept);
    check_near(probability, want, (size_t)n, 5e-6, what); /* x / T has an ulp of 7.6e-6 where x is 100 */
    free(ids);
}

static void test_filters(void **state) {
    (void)state;
    if (!have) skip();
    json_t *set = golden_json("sampling/sampling.json");
    dg_file *file = golden_tensors("sampling/sampling.safetensors");
    const float *logits = golden_f32(file, "logits", NULL),
                *probabilities = golden_f32(file, "probabilities", NULL);
    const json_t *rows = json_object_get(set, "rows"), *cases = json_object_get(set, "cases"), *entry;
    const size_t n_row = json_array_size(rows);
    const int32_t n = (int32_t)dg_file_find(file, "logits")->dim[1];
    size_t c, checked = 0;
    json_array_foreach(cases, c, entry) {
        const json_t *s = json_object_get(entry, "settings");
        const dg_sampling sampling = {.temperature = setting(s, "temperature"),
                                      .top_k = (int32_t)setting(s, "top_k"),
                                      .top_p = setting(s, "top_p"),
                                      .min_p = setting(s, "min_p")};
        for (size_t r = 0; r < n_row; r++) {
            const char *name = json_string_value(json_array_get(rows, r));
            if (arbitrary_ties(name, sampling.top_p)) continue;
            static const char *const isa[] = {"portable", "avx2", "avxvnni", "avx512", "amx"};
            for (int i = 0; i < 5; i++) {
                char what[120];
                snprintf(what, sizeof what, "case %zu, row %zu (%s), %s", c, r, name, isa[i]);
                if (dg_isa_get(isa[i]))
                    check_row(dg_isa_get(isa[i]), logits + r * (size_t)n, n, &sampling,
                              json_array_get(json_object_get(entry, "kept"), r),
                              probabilities + (c * n_row + r) * (size_t)n, what);
            }
            checked++;
        }
    }
    assert_true(checked > 0);
    dg_file_close(file);
    json_decref(set);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_filters)};
    return cmocka_run_group_tests_name("golden sampling", tests, setup, NULL);
}
