/* Replays tests/fuzz/corpus/X through the entry point of tests/fuzz/fuzz_X.c: what fuzzing once found, and
 * seeds, must go by without a crash. A new entry point takes a line in each of the two lists. */
#include <dirent.h>

#include "tests/test.h"

#define LLVMFuzzerTestOneInput fuzz_safetensors
#include "tests/fuzz/fuzz_safetensors.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_gguf
#include "tests/fuzz/fuzz_gguf.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_config
#include "tests/fuzz/fuzz_config.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_tokenizer
#include "tests/fuzz/fuzz_tokenizer.c"
#undef LLVMFuzzerTestOneInput

static void replay(const char *name, int (*entry)(const uint8_t *, size_t)) {
    char path[1024];
    snprintf(path, sizeof path, "tests/fuzz/corpus/%s", name);
    DIR *d = opendir(path);
    if (!d) fail_msg("no folder %s", path);
    int seen = 0;
    for (const struct dirent *e; (e = readdir(d)) != NULL;) {
        char *text;
        size_t n;
        if (e->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "tests/fuzz/corpus/%s/%s", name, e->d_name);
        check_ok(dg_file_slurp(path, 1 << 20, &text, &n));
        const int64_t live = dg_mem_live();
        assert_int_equal(entry((const uint8_t *)text, n), 0);
        assert_int_equal(dg_mem_live(), live);
        dg_mem_free(text);
        seen++;
    }
    closedir(d);
    assert_true(seen > 0);
}

static void test_safetensors(void **state) {
    (void)state;
    replay("safetensors", fuzz_safetensors);
}
static void test_gguf(void **state) {
    (void)state;
    replay("gguf", fuzz_gguf);
}
static void test_config(void **state) {
    (void)state;
    replay("config", fuzz_config);
}

static void test_tokenizer(void **state) {
    (void)state;
    replay("tokenizer", fuzz_tokenizer);
}

int main(void) {
    const struct CMUnitTest t[] = {cmocka_unit_test(test_safetensors), cmocka_unit_test(test_gguf),
                                   cmocka_unit_test(test_config), cmocka_unit_test(test_tokenizer)};
    return cmocka_run_group_tests_name("corpus", t, NULL, NULL);
}
