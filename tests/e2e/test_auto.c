/* --budget auto on the real target, by a clock that runs as the rows of matrix products say, so that the machine and who
 * else uses it make no difference: what is decided from real texts and real drafts is near plain decoding where nothing
 * predicts the text, and well ahead where something does. */
#include <math.h>

#include "runtime/session.h"
#include "tests/test.h"

enum { TOKENS = 64 };
#define DRAFTER "dflash/checkpoints/smollm2-135m-dflash-b16"

static double clock_now, passes; /* passes since the prompt */
static const dg_ops *sound;

/* Behind a prompt the weights come from memory, and only pass by pass from the caches: seconds more of the first pass. */
#define COLD 1.2e-3

static double read_clock(void) { return clock_now += 2e-8; }

/* Seconds of a pass over n rows of this target on two AVX-512 cores, as `make bench-ops` measured it; weights with 8-bit
 * activations cost less by the row. */
static double pass_seconds(int32_t n, bool coarse) {
    static const double rows[] = {1, 2, 4, 8, 16, 32, 64, 128, 256};
    static const double fine[] = {3.0e-3, 3.75e-3, 5.2e-3, 8.9e-3, 13.5e-3, 24e-3, 45e-3, 90e-3, 180e-3};
    static const double rough[] = {2.6e-3, 2.8e-3, 3.2e-3, 4.5e-3, 7.2e-3, 13e-3, 25e-3, 50e-3, 100e-3};
    const double *at = coarse ? rough : fine;
    int i = 0;
    while (i < 7 && n > rows[i + 1]) i++;
    return at[i] + (n - rows[i]) / (rows[i + 1] - rows[i]) * (at[i + 1] - at[i]);
}

static void timed_matmul(dg_backend *be, dg_mat x, const dg_product *p, int32_t n, bool add) {
    const double all = 134.5e6; /* weights of a pass */
    sound->matmul(be, x, p, n, add);
    for (int32_t i = 0; i < n; i++) {
        const double share = (double)p[i].w.rows * (double)p[i].w.cols / all;
        clock_now += share * (pass_seconds(x.rows, p[i].w.coarse) + COLD * exp(-passes / 6));
        passes += share;
    }
}

/* Seconds of the rounds that append TOKENS tokens to a prompt; the last of them go to `text`. */
static double answer(dg_model *m, const char *prompt, bool drafted, float temperature, int32_t *text) {
    const dg_draft draft[] = {{"dflash", DRAFTER, "width=8,adapt=1"}, {"fused", NULL, NULL}};
    const dg_session_options opt = {.context = 1024, .draft = draft, .n_draft = drafted ? 2 : 0,
                                    .sampler = {.temperature = temperature, .seed = 1}, .ignore_stop_tokens = true};
    dg_session *s = NULL;
    check_ok(dg_session_create(m, &opt, &s));
    const dg_message say = {.role = "user", .content = prompt};
    char *chat = NULL;
    check_ok(dg_chat_format(m, &say, 1, 0, &chat));
    static int32_t ids[1024];
    size_t n = 0;
    check_ok(dg_tokenize(m, chat, strlen(chat), DG_TOKENIZE_SPECIAL, ids, 1024, &n));
    check_ok(dg_session_sync(s, ids, n));
    dg_free(chat);
    dg_session_limit(s, TOKENS);
    passes = 0;
    const double start = clock_now;
    for (size_t got = 0, more = 0; got < TOKENS; got += more)
        check_ok(dg_session_step(s, text + got, TOKENS - got, &more));
    const double seconds = clock_now - start;
    dg_session_free(s);
    return seconds;
}

/* How often plain decoding's speed; the texts are the same. */
static double speedup(dg_model *m, const json_t *prompt, float temperature) {
    int32_t plain[TOKENS], drafted[TOKENS];
    const char *say = json_string_value(json_object_get(prompt, "prompt"));
    const double before = answer(m, say, false, temperature, plain), after = answer(m, say, true, temperature, drafted);
    assert_memory_equal(plain, drafted, sizeof plain);
    print_message("%s %.3f\n", json_string_value(json_object_get(prompt, "id")), before / after);
    return before / after;
}

/* Geometric mean over the first n prompts of a file (0: all) and, in *least, the lowest. */
static double speedups(const char *file, int n, float temperature, double *least) {
    dg_model *m = NULL;
    check_ok(dg_model_open(smollm2_path(), &(dg_model_options){.threads = 2}, &m));
    sound = m->be->ops;
    dg_ops timed = *sound;
    timed.matmul = timed_matmul;
    m->be->ops = &timed;
    dg_test_clock = read_clock;
    FILE *f = fopen(file, "r");
    assert_non_null(f);
    char line[16384];
    double sum = 0;
    int count = 0;
    *least = INFINITY;
    for (; (!n || count < n) && fgets(line, sizeof line, f); count++) {
        json_t *prompt = json_loads(line, 0, NULL);
        assert_non_null(prompt);
        const double ratio = speedup(m, prompt, temperature);
        json_decref(prompt);
        sum += log(ratio);
        *least = fmin(*least, ratio);
    }
    fclose(f);
    dg_test_clock = NULL;
    m->be->ops = sound;
    dg_model_close(m);
    assert_true(count > 0);
    return exp(sum / count);
}

/* Random words, base64, poems at a high temperature. */
static void test_unpredictable(void **state) {
    (void)state;
    if (!smollm2_path()) skip();
    double least;
    speedups("bench/adversarial.jsonl", 0, 1.3f, &least);
    assert_true(least > 0.97);
}

/* Texts that the answer copies from. */
static void test_copied(void **state) {
    (void)state;
    if (!smollm2_path()) skip();
    double least;
    assert_true(speedups("bench/prompts/edit.jsonl", 4, 0, &least) > 1.5);
    assert_true(least > 1);
}

/* Plain questions, where little is known beforehand. */
static void test_asked(void **state) {
    (void)state;
    if (!smollm2_path()) skip();
    double least;
    assert_true(speedups("bench/prompts/maths.jsonl", 4, 0, &least) > 1.0);
    assert_true(least > 0.97);
}

int main(void) {
    const struct CMUnitTest t[] = {cmocka_unit_test(test_unpredictable), cmocka_unit_test(test_copied),
                                   cmocka_unit_test(test_asked)};
    return cmocka_run_group_tests_name("auto", t, NULL, NULL);
}
