/* bench_ops on models of random weights, on the CPU and on the simulated device: its figures can be read and are figures,
 * the file it keeps is what was asked for, and what goes wrong is said. The programs are $BUILD/bench/bench_ops and
 * $BUILD/sim/bench/bench_ops. */
#include <math.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/config.h"
#include "tests/test.h"

static char said[65536]; /* what the last run printed, both streams */

/* The exit status of BUILD/where/bench_ops with these words. */
static int run(const char *where, const char *words) {
    const char *build = getenv("BUILD");
    char command[2048];
    snprintf(command, sizeof command, "%s/%s/bench_ops %s 2>&1", build ? build : "build", where, words);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    said[fread(said, 1, sizeof said - 1, f)] = 0;
    const int status = pclose(f);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void check_said(int status, int want, const char *part) {
    if (status != want || !strstr(said, part))
        print_error("expected status %d and \"%s\", found %d and:\n%s\n", want, part, status, said);
    assert_int_equal(status, want);
    assert_non_null(strstr(said, part));
}

/* The number behind `name = `. */
static double figure(const char *name) {
    char key[64], *end;
    snprintf(key, sizeof key, "%s = ", name);
    const char *at = strstr(said, key);
    if (!at) print_error("there is no \"%s\" in:\n%s\n", key, said);
    assert_non_null(at);
    const double v = strtod(at + strlen(key), &end);
    assert_ptr_not_equal(end, at + strlen(key));
    return v;
}

static void check_figures(void) {
    static const char *const name[] = {"t(1)", "t(16)", "t(61)", "verify(16)/plain", "verify(61)/plain"};
    for (size_t i = 0; i < sizeof name / sizeof *name; i++)
        if (!(figure(name[i]) > 0)) fail_msg("%s: %s", name[i], said);
}

/* The share of the bandwidth that was told, in the CSV file: every matrix and the cache once. */
static void check_share(const char *dir) {
    char path[600], line[512];
    snprintf(path, sizeof path, "%s/steps.csv", dir);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    assert_non_null(fgets(line, sizeof line, f));
    assert_string_equal(strrchr(line, ',') + 1, "share_of_copy\n");
    const double weights = (2 * (2 * 256 * 256 + 2 * 128 * 256 + 3 * 512 * 256) + 512 * 256) * 144 / 256.0;
    int lines = 0;
    for (; fgets(line, sizeof line, f); lines++) {
        const double n = strtod(line, NULL), seconds = 1e-3 * strtod(strchr(line, ',') + 1, NULL),
                     share = strtod(strrchr(line, ',') + 1, NULL), bytes = weights + (16 + n) * 2 * 128 * 2 * 2;
        if (!(fabs(1e9 * share * seconds / bytes - 1) < 0.02 + 1e5 * seconds / bytes)) fail_msg("%s: %s", path, line);
    }
    assert_int_equal(lines, 10);
    fclose(f);
}

static void test_passes(void **state) {
    (void)state;
    const char *dir = test_tmpdir();
    char words[1024];
    snprintf(words, sizeof words, "--shape tiny --type q4_k -t 1 --rounds 1 -c 16 --bandwidth 1 --only steps,rounds --out %s", dir);
    check_said(run("bench", words), 0, "tiny, random weights of q4_k");
    assert_non_null(strstr(said, "tiny (q4_k 16, f32 9), cpu"));
    assert_non_null(strstr(said, "copy bandwidth = 1.0 GB/s (1.0..1.0), as told"));
    check_figures();
    assert_true(figure("round overhead outside kernels") > 0);
    check_share(dir);
}

static void test_operations(void **state) {
    (void)state;
    check_said(run("bench", "--shape tiny --type q8_0 -t 1 --rounds 1 --bandwidth 20 --only matmul,rest"), 0, "gate up");
    int rows = 0;
    for (const char *p = said; (p = strstr(p, "\nmatmul ")) != NULL; p++) {
        double us, lo;
        char shape[32];
        assert_int_equal(sscanf(p + 18, "%30[^q] q8_0 %*d %*d %lf %lf", shape, &us, &lo), 3);
        assert_true(us > 0 && lo > 0);
        rows++;
    }
    assert_int_equal(rows, 4 * 8 + 7); /* no prefill of the head */
    assert_null(strstr(said, "q4_k"));
    assert_non_null(strstr(said, "rms_norm"));
}

static void test_kept(void **state) {
    (void)state;
    char path[512], words[1024];
    dg_file *f;
    dg_config c;
    snprintf(path, sizeof path, "%s/kept.gguf", test_tmpdir());
    snprintf(words, sizeof words, "--shape tiny -t 1 --rounds 1 -c 16 --bandwidth 20 --only rounds --keep %s", path);
    check_said(run("bench", words), 0, "tiny, random weights of bf16");
    check_ok(dg_file_open(path, &f));
    check_ok(dg_config_read(f, &c));
    assert_int_equal(c.vocab_size, 512);
    const dg_file_tensor *t = dg_file_find(f, "blk.1.ffn_down.weight");
    assert_non_null(t);
    assert_int_equal(t->dtype, DG_BF16);
    assert_true(t->dim[0] == 256 && t->dim[1] == 512);
    dg_file_close(f);
    snprintf(words, sizeof words, "-m %s -t 1 --rounds 1 -c 16 --bandwidth 20 --only rounds", path);
    check_said(run("bench", words), 0, "kept.gguf (bf16 16, f32 9)");
    unlink(path);
    snprintf(words, sizeof words, "--shape tiny --only rounds --keep %s/none/x", path);
    check_said(run("bench", words), 1, "cannot create");
}

/* Each op where memory is not the host's. */
static void test_simulated(void **state) {
    (void)state;
    const char *build = getenv("BUILD");
    char path[512];
    snprintf(path, sizeof path, "%s/sim/bench/bench_ops", build ? build : "build");
    if (access(path, X_OK)) skip();
    check_said(run("sim/bench", "--shape tiny --type q4_k --device cuda --rounds 1 -c 16 --bandwidth 4800 --only rest,rounds"), 0,
               "roofs of the device, cuda");
    assert_non_null(strstr(said, "rows_put"));
    assert_true(figure("round overhead outside kernels") > 0);
    check_said(run("sim/bench", "--shape tiny --device cuda:7 --only rest"), 1, "--device cuda:7: ");
    check_said(run("sim/bench", "--shape tiny --device cuda:7 --only rounds"), 1, "cannot open device \"cuda:7\"");
}

static void test_refusals(void **state) {
    (void)state;
    check_said(run("bench", "--shape huge"), 2, "--shape huge: expected qwen3-8b, llama-3.1-8b, smollm2-135m, tiny");
    check_said(run("bench", "--shape tiny --type q2"), 2, "--type q2: expected f32, f16, bf16, q8_0");
    check_said(run("bench", "--shape smollm2-135m --type q4_k"), 2, "rows of 576 elements");
    check_said(run("bench", "--type q4_k"), 2, "--type q4_k: expected --shape beside it");
    check_said(run("bench", "--shape tiny -m x"), 2, "--shape tiny: expected it without -m");
    check_said(run("bench", "--bandwidth 0"), 2, "--bandwidth 0: expected GB/s above 0");
    check_said(run("bench", "--bandwidth x"), 2, "--bandwidth x: expected GB/s above 0");
    check_said(run("bench", "--device"), 2, "--device: a value is missing");
    check_said(run("bench", "--device tpu --only rest"), 1, "--device tpu: ");
    check_said(run("bench", "--device tpu --shape tiny --only rounds"), 1, "cannot open device \"tpu\"");
    check_said(run("bench", "--device auto --shape tiny -t 1 --rounds 1 -c 16 --bandwidth 20 --only rounds"), 0,
               "computing on the CPU: ");
    check_said(run("bench", "--help"), 0, "--shape NAME");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_passes), cmocka_unit_test(test_operations), cmocka_unit_test(test_kept),
        cmocka_unit_test(test_simulated), cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
