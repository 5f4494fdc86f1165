/* The calibration file: what is written is read, what is wrong is refused whole and by name, and a session takes only what
 * was made for it. And the whole of dg_calibrate on tiny models. */
#include "tests/test.h"

#include <math.h>
#include <unistd.h>

#include "runtime/session.h"
#include "tests/files.h"
#include "tests/fixture.h"

static char llama[256], qwen3[256], dflash[256], head[256], file[256];
static char log_text[1024];

static void on_log(void *ud, dg_log_level level, const char *message) {
    (void)ud;
    if (level == DG_LOG_WARN) snprintf(log_text, sizeof log_text, "%s", message);
}

static dg_model *open_model(const char *path) {
    dg_model *m = NULL;
    check_ok(dg_model_open(path, &(dg_model_options){.threads = 1, .log = on_log}, &m));
    log_text[0] = '\0';
    return m;
}

static dg_calibration *made_up(void) {
    static dg_calibration c;
    c = (dg_calibration){.target = "t", .drafter = "d", .machine = "m", .rule = "B", .rounds = 77, .has_gates = true,
                         .gate = {{0.5f, 0.25f, 0.75f}, {-1, -1, 0.5f}, {1, 0, 1}}, .has_tail = true, .tail = {0, -1, 0.3f},
                         .has_ranks = true, .rank = {0.5f, 0.25f, 0.125f, 0.0625f, 0.0625f, 0.03125f, 0.03125f, 0.015625f},
                         .n_source = 2, .n_context = 2, .context = {64, 512}};
    snprintf(c.source[0].name, sizeof c.source[0].name, "dflash");
    snprintf(c.source[1].name, sizeof c.source[1].name, "ngram");
    c.source[0].network = true;
    for (int i = 0; i < 2; i++)
        for (int d = 0; d < DG_CAL_DEPTHS; d++)
            for (int b = 0; b < DG_BUDGET_BINS; b++)
                c.source[i].promised[d][b] = d + 0.5 * b, c.source[i].accepted[d][b] = 0.25 * b;
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < DG_CAL_ROWS; i++) c.verify[k][i] = i + k < DG_CAL_ROWS ? 1e-3 * (k + 1) * (i + 1) : 0;
    return &c;
}

static void test_round_trip(void **state) {
    (void)state;
    static dg_calibration got;
    const dg_calibration *want = made_up();
    check_ok(dg_calibration_write(want, file));
    check_ok(dg_calibration_read(file, &got));
    assert_memory_equal(&got, want, sizeof got);
    assert_ptr_equal(dg_calibration_find(&got, "ngram"), &got.source[1]);
    assert_null(dg_calibration_find(&got, "none"));
    check_fails(dg_calibration_write(want, "no/such/folder/file"), DG_ERR_IO, "no/such/folder/file");
}

/* Replaces `from` in the file's text by `to`. */
static void edit(const char *from, const char *to) {
    char *text = NULL;
    check_ok(dg_calibration_write(made_up(), file));
    check_ok(dg_file_slurp(file, 1 << 20, &text, NULL));
    char *at = strstr(text, from);
    assert_non_null(at);
    FILE *f = fopen(file, "w");
    fwrite(text, 1, (size_t)(at - text), f);
    fputs(to, f);
    fputs(at + strlen(from), f);
    fclose(f);
    dg_mem_free(text);
}

static void test_bad_files(void **state) {
    (void)state;
    static const struct {
        const char *from, *to, *message;
    } bad[] = {
        {"\"dgraft_calibration\": 1", "\"dgraft_calibration\": 2", "a newer dgraft wrote it"},
        {"\"dgraft_calibration\": 1", "\"dgraft_calibration\": 0", "version 0: expected 1"},
        {"\"dgraft_calibration\"", "\"something_else\"", "this is no calibration"},
        {"\"at\": 0.5", "\"at\": 1.5", "\"gates\": expected a number from -1 to 1, found 1.5"},
        {"\"at\": 0.5", "\"at\": -0.5", "expected -1 (never) or 0 to 1"},
        {"\"at\": 0.5", "\"at\": 0.125", "0.125 is not between 0.25 and 0.75"},
        {"\"at\": 0.5", "\"at\": \"x\"", "found nan"},
        {"\"low\": 0.25", "\"lower\": 0.25", "\"gates\""},
        {"\"rounds\": 77", "\"rounds\": 0", "\"rounds\""},
        {"\"network\": true", "\"network\": 1", "\"network\""},
        {"\"machine\": \"m\"", "\"machine\": 5", "\"machine\""},
        {"\"contexts\": [\n   64,", "\"contexts\": [\n   64, 65, 66,", "\"contexts\": expected 1 to 3"},
        {"    0.001,\n", "    -0.001,\n", "\"seconds\": expected a number from 0"},
        {"    0.001,\n", "    1e300,\n", "\"seconds\": expected a number from 0 to 1e+06"},
        {"    0.001,\n", "    null,\n", "found nan"},
        {"    0.001,\n", "", "\"seconds\": expected 20 numbers, found 19"},
        {"\"drafter\": \"ngram\"", "\"drafter\": \"a name that is far too long\"", "at most 15"},
        {"\"rows\": [\n   1,", "\"rows\": [\n   2,", "\"rows\": expected 1, found 2"},
        {"\"tail\"", "\"tall\"", "\"tail\" is missing"},
        {"\"ranks\"", "\"ranges\"", "\"ranks\" is missing"},
        {"0.125,\n  0.0625", "0.0625,\n  0.125", "0.125 comes after 0.0625: they must not rise"},
        {"  0.125,", "  1.5,", "\"ranks\": expected a number"},
        {"  0.125,\n", "", "\"ranks\": expected 8 numbers, found 7"},
    };
    static dg_calibration got;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        memset(&got, 0x5a, sizeof got);
        const dg_calibration before = got;
        edit(bad[i].from, bad[i].to);
        check_fails(dg_calibration_read(file, &got), DG_ERR_FORMAT, bad[i].message);
        assert_memory_equal(&got, &before, sizeof got);
    }
    check_fails(dg_calibration_read("no/such/file", &got), DG_ERR_IO, "no/such/file");
}

/* Cut anywhere, the file is refused. */
static void test_truncated(void **state) {
    (void)state;
    static dg_calibration got;
    char *text = NULL;
    size_t len;
    check_ok(dg_calibration_write(made_up(), file));
    check_ok(dg_file_slurp(file, 1 << 20, &text, &len));
    while (len && text[len - 1] != '}') len--;
    for (size_t n = 0; n < len; n += 1 + len / 97) {
        FILE *f = fopen(file, "w");
        fwrite(text, 1, n, f);
        fclose(f);
        assert_int_equal(dg_calibration_read(file, &got), DG_ERR_FORMAT);
    }
    dg_mem_free(text);
}

/* ---- in sessions ------------------------------------------------------------------------------- */

static dg_status open_session(dg_model *m, const char *given, const char *params, dg_session **s) {
    const dg_draft draft = {"eagle3", head, params};
    const dg_session_options o = {.context = 64, .draft = &draft, .n_draft = 1, .calibration = given};
    return dg_session_create(m, &o, s);
}

static void make_file(dg_model *m, const char *path, const char *weights, const char *machine) {
    dg_calibration *c = made_up();
    dg_file *f = NULL;
    if (weights) check_ok(dg_file_open(weights, &f));
    dg_calibration_identify(m, f, DG_F16, c);
    dg_file_close(f);
    if (machine) snprintf(c->machine, sizeof c->machine, "%s", machine);
    check_ok(dg_calibration_write(c, path));
}

static void test_beside_the_weights(void **state) {
    (void)state;
    dg_model *m = open_model(llama);
    const int64_t live = dg_mem_live();
    char *beside = dg_calibration_path(head);
    dg_session *s = NULL;
    check_ok(open_session(m, NULL, NULL, &s));
    assert_null(s->calibration);
    dg_session_free(s);

    make_file(m, beside, head, NULL);
    check_ok(open_session(m, NULL, "gated=1", &s));
    assert_non_null(s->calibration);
    assert_true(s->calibration->gate[0].at == 0.5f);
    assert_true(s->rows.curve[0] > 0 && s->rows.curve[3] > 0); /* the budget begins with what is known */
    dg_session_free(s);
    check_ok(open_session(m, "none", NULL, &s));
    assert_null(s->calibration);
    dg_session_free(s);
    assert_string_equal(log_text, "");

    make_file(m, beside, head, "another one; cpu"); /* stale: a warning, and the session goes on */
    check_ok(open_session(m, NULL, NULL, &s));
    assert_null(s->calibration);
    dg_session_free(s);
    assert_non_null(strstr(log_text, "is not used: calibrated for another machine (another one; cpu; this is"));
    check_fails(open_session(m, beside, NULL, &s), DG_ERR_ARGUMENT, "for another machine");
    make_file(m, beside, dflash, NULL);
    check_fails(open_session(m, beside, NULL, &s), DG_ERR_ARGUMENT, "for another drafter");
    dg_model *other = open_model(qwen3);
    make_file(other, beside, head, NULL);
    dg_model_close(other);
    check_fails(open_session(m, beside, NULL, &s), DG_ERR_ARGUMENT, "for another target");

    FILE *f = fopen(beside, "w"); /* damaged: a failure that names it */
    fputs("{", f);
    fclose(f);
    check_fails(open_session(m, NULL, NULL, &s), DG_ERR_FORMAT, "dgraft-calibration.json");
    check_fails(open_session(m, "no/such/file", NULL, &s), DG_ERR_IO, "no/such/file");
    unlink(beside);
    dg_mem_free(beside);
    assert_int_equal(dg_mem_live(), live);
    dg_model_close(m);
}

/* What is measured on tiny models is taken by the next session, thresholds lie in their ranges, and a second run finds
 * them again: what it goes by are tokens, which are the same, and times, which the ranges allow for. */
static void test_calibrate(void **state) {
    (void)state;
    dg_model *m = open_model(llama);
    const int64_t live = dg_mem_live();
    const dg_draft list[2][2] = {{{"eagle3", head, "depth=6,topk=5,gated=1"}, {"fill", NULL, NULL}},
                                 {{"dflash", dflash, "width=8"}, {"graft", NULL, "gated=1"}}};
    int32_t prompt[3][20];
    const int32_t *prompts[3] = {prompt[0], prompt[1], prompt[2]};
    const size_t len[3] = {20, 18, 16};
    uint64_t seed = 5;
    for (int p = 0; p < 3; p++)
        for (int i = 0; i < 20; i++) prompt[p][i] = i > 6 ? prompt[p][i - 5] : 2 + (int32_t)((test_random(&seed) + 1) * 40);
    for (int k = 0; k < 2; k++) {
        dg_calibrated first, second;
        dg_calibrate_options o = {.draft = list[k], .n_draft = 2, .budget = 31, .prompt = prompts, .prompt_len = len,
                                  .n_prompt = 3, .tokens = 40, .out = file, .by_loss = true};
        check_ok(dg_calibrate(m, &o, &first));
        check_ok(dg_calibrate(m, &o, &second));
        assert_int_equal(first.has_gates, k == 0);
        assert_int_equal(first.has_tail, k == 1);
        assert_in_range(first.rounds, 20, 120);
        assert_int_equal(first.rounds, second.rounds);
        for (int g = 0; g < 3 && k == 0; g++)
            assert_true(second.gate[g].at >= first.gate[g].low && second.gate[g].at <= first.gate[g].high);
        assert_true(k == 0 || second.tail.at == first.tail.at); /* nothing about it is timed */
        const dg_session_options so = {.context = 64, .draft = list[k], .n_draft = 2, .calibration = file};
        dg_session *s = NULL;
        check_ok(dg_session_create(m, &so, &s));
        assert_non_null(s->calibration);
        assert_int_equal(s->calibration->has_ranks, k == 0);
        double promised = 0;
        for (int b = 0; b < DG_BUDGET_BINS; b++) promised += s->calibration->source[0].promised[0][b];
        assert_true(promised > 1);
        assert_true(s->calibration->source[0].network && !s->calibration->source[1].network);
        dg_session_free(s);
        o.by_loss = false;
        check_ok(dg_calibrate(m, &o, &first));
        for (int g = 0; g < 3 && k == 0; g++) assert_true(first.gate[g].low <= first.gate[g].at && first.gate[g].at <= first.gate[g].high);
    }
    assert_int_equal(dg_mem_live(), live);
    dg_model_close(m);
}

/* What passes take is known for all sizes, whatever the budget of the rounds; nothing of those that the context has no room
 * for. By this clock every pass takes as long. */
static double ticks;
static double tick(void) { return ticks += 1; }

static void test_calibrate_rows(void **state) {
    (void)state;
    static dg_calibration got;
    dg_model *m = open_model(llama);
    const dg_draft draft = {"ngram", NULL, NULL};
    const int32_t ids[3] = {5, 6, 7}, *prompts[1] = {ids};
    const size_t len[1] = {3};
    const dg_calibrate_options o = {.draft = &draft, .n_draft = 1, .budget = 3, .prompt = prompts, .prompt_len = len,
                                    .n_prompt = 1, .tokens = 40, .out = file};
    dg_test_clock = tick;
    const dg_status st = dg_calibrate(m, &o, NULL);
    dg_test_clock = NULL;
    check_ok(st);
    check_ok(dg_calibration_read(file, &got));
    const int32_t room = m->net.config.max_position < 2112 ? m->net.config.max_position - got.context[0] : 64;
    for (int32_t i = 0; i < DG_CAL_ROWS; i++) assert_true(got.verify[0][i] == (dg_budget_rows(i) <= room ? 1 : 0));
    dg_model_close(m);
}

/* Costs of one way to compute, or of one type of cache, are not those of another. */
static void test_other_arithmetic(void **state) {
    (void)state;
    dg_model *m = open_model(llama), *exact = NULL;
    dg_calibration *c = NULL;
    make_file(m, file, head, NULL);
    check_ok(dg_calibration_load(m, file, head, DG_F16, &c));
    assert_non_null(c);
    dg_mem_free(c);
    check_fails(dg_calibration_load(m, file, head, DG_F32, &c), DG_ERR_ARGUMENT, "cache f16; this is");
    check_ok(dg_model_open(llama, &(dg_model_options){.threads = 1, .compute = DG_COMPUTE_F32}, &exact));
    check_fails(dg_calibration_load(exact, file, head, DG_F16, &c), DG_ERR_ARGUMENT, "compute default; cache f16; this is");
    const dg_draft draft = {"eagle3", head, NULL};
    const dg_session_options so = {.context = 64, .draft = &draft, .n_draft = 1, .calibration = file, .kv = DG_KV_F32};
    dg_session *s = NULL;
    check_fails(dg_session_create(m, &so, &s), DG_ERR_ARGUMENT, "cache f32)");
    dg_model_close(exact);
    dg_model_close(m);
}

static void test_calibrate_refuses(void **state) {
    (void)state;
    dg_model *m = open_model(llama);
    const int64_t live = dg_mem_live();
    const dg_draft memory = {"ngram", NULL, NULL}, none = {"nothing", NULL, NULL};
    const int32_t ids[3] = {5, 6, 7}, *prompts[1] = {ids};
    size_t len[1] = {3};
    dg_calibrate_options o = {.draft = &memory, .n_draft = 1, .prompt = prompts, .prompt_len = len, .tokens = 16};
    check_fails(dg_calibrate(m, &o, NULL), DG_ERR_ARGUMENT, "expected prompts, found none");
    o.n_prompt = 1;
    check_fails(dg_calibrate(m, &o, NULL), DG_ERR_ARGUMENT, "no weights that the file could lie beside");
    o.out = "no/such/folder/file";
    check_fails(dg_calibrate(m, &o, NULL), DG_ERR_IO, "no/such/folder");
    o.tokens = 5;
    check_fails(dg_calibrate(m, &o, NULL), DG_ERR_ARGUMENT, "too short");
    o.tokens = 1 << 20;
    check_fails(dg_calibrate(m, &o, NULL), DG_ERR_CONTEXT_FULL, "do not fit the context");
    o.tokens = 16, o.n_draft = 0;
    check_fails(dg_calibrate(m, &o, NULL), DG_ERR_ARGUMENT, "expected 1 to 8 drafters");
    o.n_draft = 1, o.draft = &none;
    check_fails(dg_calibrate(m, &o, NULL), DG_ERR_ARGUMENT, "no drafter \"nothing\"");
    assert_int_equal(dg_mem_live(), live);
    dg_model_close(m);
}

/* Whichever allocation fails, nothing leaks and nothing is half there. */
static void test_no_memory(void **state) {
    (void)state;
    dg_model *m = open_model(llama);
    const int64_t live = dg_mem_live();
    dg_status st = DG_ERR_MEMORY;
    make_file(m, file, head, NULL);
    for (uint64_t n = 1; st != DG_OK; n++) {
        dg_calibration *c = NULL;
        dg_mem_fail_nth(n, 1);
        st = dg_calibration_load(m, file, head, DG_F16, &c);
        dg_mem_fail_nth(0, 0);
        assert_true(st == DG_OK ? c != NULL : st == DG_ERR_MEMORY && !c);
        dg_mem_free(c);
        assert_int_equal(dg_mem_live(), live);
    }
    const dg_draft list[2] = {{"eagle3", head, "depth=2,topk=2"}, {"fill", NULL, NULL}};
    const int32_t ids[3] = {5, 6, 7}, *prompts[1] = {ids};
    const size_t len[1] = {3};
    const dg_calibrate_options o = {.draft = list, .n_draft = 2, .budget = 6, .prompt = prompts, .prompt_len = len, .n_prompt = 1,
                                    .tokens = 20, .out = file};
    unlink(file);
    st = DG_ERR_MEMORY;
    for (uint64_t n = 1; st != DG_OK; n += 3) {
        assert_int_equal(access(file, F_OK), -1);
        dg_mem_fail_nth(n, 1);
        st = dg_calibrate(m, &o, NULL);
        dg_mem_fail_nth(0, 0);
        assert_true(st == DG_OK || st == DG_ERR_MEMORY);
        assert_int_equal(dg_mem_live(), live);
    }
    assert_int_equal(access(file, F_OK), 0);
    dg_model_close(m);
}

int main(void) {
    const char *tmp = test_tmpdir();
    snprintf(llama, sizeof llama, "%s/llama", tmp);
    snprintf(qwen3, sizeof qwen3, "%s/qwen3", tmp);
    snprintf(dflash, sizeof dflash, "%s/dflash", tmp);
    snprintf(head, sizeof head, "%s/head", tmp);
    snprintf(file, sizeof file, "%s/calibration.json", tmp);
    fixture_model(llama, (fixture_kind)0);
    fixture_model(qwen3, (fixture_kind)1);
    fixture_model(dflash, (fixture_kind)2);
    fixture_model(head, (fixture_kind)3);
    const struct CMUnitTest t[] = {cmocka_unit_test(test_round_trip),         cmocka_unit_test(test_bad_files),
                                   cmocka_unit_test(test_truncated),          cmocka_unit_test(test_beside_the_weights),
                                   cmocka_unit_test(test_calibrate),          cmocka_unit_test(test_calibrate_refuses),
                                   cmocka_unit_test(test_no_memory),
                                   cmocka_unit_test(test_calibrate_rows),     cmocka_unit_test(test_other_arithmetic)};
    return cmocka_run_group_tests_name("calibration", t, NULL, NULL);
}
