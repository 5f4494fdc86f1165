/* dgraft-bench on tiny models: what it writes adds up, an interrupted run ends like one that was not,
 * compare's verdicts, and what goes wrong is said. The program is $BUILD/bench/dgraft-bench. */
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/fixture.h"
#include "tests/test.h"

enum { PROMPTS = 12, TOKENS = 16 };

static char dir[256], program[512];
static char said[65536]; /* what the last run printed, both streams */

static const char *in_dir(const char *name) {
    static char path[4][512];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "%s/%s", dir, name);
    return path[turn];
}

static void write_text(const char *name, const char *text) {
    FILE *f = fopen(in_dir(name), "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

/* Words of a command, no quotes. */
static pid_t start(const char *format, va_list args) {
    char line[4096], *word[128] = {program}, *rest = NULL;
    int n = 1;
    vsnprintf(line, sizeof line, format, args);
    for (char *one = strtok_r(line, " ", &rest); one && n < 127; one = strtok_r(NULL, " ", &rest))
        word[n++] = one;
    const pid_t child = fork();
    if (child) return child;
    const int out = open(in_dir("said"), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    dup2(out, 1), dup2(out, 2);
    if (chdir(dir)) _exit(126);
    execv(program, word);
    _exit(127);
}

static int end_of(pid_t child) {
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    FILE *f = fopen(in_dir("said"), "r");
    assert_non_null(f);
    said[fread(said, 1, sizeof said - 1, f)] = 0;
    fclose(f);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int bench(const char *format, ...) __attribute__((format(printf, 1, 2)));
static int bench(const char *format, ...) {
    va_list args;
    va_start(args, format);
    const pid_t child = start(format, args);
    va_end(args);
    return end_of(child);
}

static void check_said(int status, int want, const char *part) {
    if (status != want || !strstr(said, part))
        print_error("expected status %d and \"%s\", found %d and:\n%s\n", want, part, status, said);
    assert_int_equal(status, want);
    assert_non_null(strstr(said, part));
}

static json_t *load(const char *name) {
    json_error_t e;
    json_t *j = json_load_file(in_dir(name), 0, &e);
    if (!j) print_error("%s: %s\n", name, e.text);
    assert_non_null(j);
    return j;
}

#define MODEL                                                                                                \
    "-m target --drafter dflash:drafter -t 1 -n 16 --no-machine --no-plots --per-category 0 prompts.jsonl "

static int setup(void **state) {
    (void)state;
    const char *build = getenv("BUILD"), *tmp = getenv("TMPDIR");
    char cwd[256];
    assert_non_null(getcwd(cwd, sizeof cwd));
    if (!build) build = "build";
    snprintf(program, sizeof program, "%s%s%s/bench/dgraft-bench", *build == '/' ? "" : cwd,
             *build == '/' ? "" : "/", build);
    snprintf(dir, sizeof dir, "%s/dgraft-bench-XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(dir));
    fixture_model(in_dir("target"), FIXTURE_QWEN3);
    fixture_model(in_dir("drafter"), FIXTURE_DFLASH);
    FILE *f = fopen(in_dir("prompts.jsonl"), "w");
    assert_non_null(f);
    for (int i = 0; i < PROMPTS; i++)
        fprintf(f,
                "{\"id\": \"p%d\", \"category\": \"%s\", \"prompt\": \"%d: the other, the other, and then "
                "the %d other\"}\n",
                i, i % 2 ? "odd" : "even", i, i * i);
    fclose(f);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    char command[300];
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    return system(command);
}

/* ---- a run ------------------------------------------------------------------------------------ */

static json_int_t whole(const json_t *j, const char *key) {
    return json_integer_value(json_object_get(j, key));
}

/* Rounds, sources and positions of every record add up to its tokens. */
static void check_records(const json_t *run, int arms) {
    size_t i, k, row;
    json_t *prompt, *record, *cell;
    json_array_foreach(json_object_get(run, "runs"), i, prompt) {
        assert_int_equal(json_array_size(json_object_get(prompt, "records")), arms);
        int turns = 0;
        json_array_foreach(json_object_get(prompt, "records"), k, record) {
            json_int_t accepted = 0, proposed = 0, rounds = 0, rows = 0;
            json_array_foreach(json_object_get(record, "accepted"), row, cell) accepted +=
                json_integer_value(json_array_get(cell, 2));
            json_array_foreach(json_object_get(record, "proposed"), row, cell) proposed +=
                json_integer_value(json_array_get(cell, 1));
            json_array_foreach(json_object_get(record, "rows"), row, cell) {
                rounds += json_integer_value(json_array_get(cell, 1));
                rows +=
                    json_integer_value(json_array_get(cell, 0)) * json_integer_value(json_array_get(cell, 1));
            }
            assert_int_equal(whole(record, "tokens"), TOKENS);
            assert_int_equal(whole(record, "rounds") + accepted, TOKENS);
            assert_int_equal(whole(record, "rounds"), rounds);
            assert_int_equal(whole(record, "rounds") + proposed, whole(record, "verified_rows"));
            assert_int_equal(rows, whole(record, "verified_rows"));
            assert_true(json_is_true(json_object_get(record, "equal")));
            turns |= 1 << whole(record, "turn");
        }
        assert_int_equal(turns, (1 << arms) - 1);
        assert_int_equal(whole(json_array_get(json_object_get(prompt, "records"), 0), "turn"),
                         (arms - (int)i % arms) % arms);
    }
}

static void test_run(void **state) {
    (void)state;
    const int status = bench(MODEL "--modes ngram,dflash,fused,eagle3 --budget 7 --rounds --out a");
    check_said(status, 0, "12/12");
    assert_non_null(strstr(said, "eagle3 skipped: needs the weights of eagle3"));
    json_t *run = load("a/run.json");
    assert_string_equal(json_string_value(json_object_get(json_object_get(run, "settings"), "device")), "cpu");
    assert_non_null(strstr(said, "device cpu: cpu, "));
    assert_int_equal(json_array_size(json_object_get(run, "runs")), PROMPTS);
    assert_int_equal(json_array_size(json_object_get(run, "arms")), 4);
    assert_int_equal(json_array_size(json_object_get(run, "skipped")), 1);
    assert_int_equal(json_array_size(json_object_get(run, "summary")), 4 * 3);
    check_records(run, 4);
    const json_t *first = json_array_get(json_object_get(run, "summary"), 0);
    assert_string_equal(json_string_value(json_object_get(first, "arm")), "plain");
    assert_true(json_number_value(json_object_get(first, "acceptance_with_bonus")) == 1);
    assert_true(json_number_value(json_object_get(first, "acceptance_without_bonus")) == 0);
    assert_true(json_number_value(json_object_get(first, "ratio_to_plain")) == 1);
    const json_t *record =
        json_array_get(json_object_get(json_array_get(json_object_get(run, "runs"), 0), "records"), 1);
    assert_int_equal(json_array_size(json_object_get(record, "each_round")), whole(record, "rounds"));
    static const char *const named[] = {"command", "start", "end", "machine", "model", "program", "settings"};
    for (size_t i = 0; i < sizeof named / sizeof *named; i++) assert_non_null(json_object_get(run, named[i]));
    json_decref(run);
    static const char *const file[] = {"a/summary.csv", "a/report.md", "a/plots/speedup.dat",
                                       "a/plots/vars.gp"};
    for (size_t i = 0; i < sizeof file / sizeof *file; i++)
        assert_int_equal(access(in_dir(file[i]), R_OK), 0);
    assert_int_not_equal(access(in_dir("a/partial.jsonl"), F_OK), 0);
}

/* ---- interruption ----------------------------------------------------------------------------- */

/* All counts of a run as text; times and memory differ from run to run. */
static char *counts(const char *name) {
    json_t *run = load(name), *out = json_array();
    size_t i, k, key_at;
    json_t *prompt, *record;
    static const char *const key[] = {"arm",           "turn",      "tokens", "rounds",   "drafter_passes",
                                      "verified_rows", "text_hash", "equal",  "accepted", "proposed",
                                      "rows",          "confidence"};
    json_array_foreach(json_object_get(run, "runs"), i, prompt)
        json_array_foreach(json_object_get(prompt, "records"), k,
                           record) for (key_at = 0; key_at < sizeof key / sizeof *key; key_at++) {
        assert_non_null(json_object_get(record, key[key_at]));
        json_array_append(out, json_object_get(record, key[key_at]));
    }
    char *text = json_dumps(out, JSON_COMPACT);
    json_decref(out), json_decref(run);
    return text;
}

static int lines_of(const char *name) {
    FILE *f = fopen(in_dir(name), "r");
    int n = 0, ch;
    while (f && (ch = fgetc(f)) != EOF) n += ch == '\n';
    if (f) fclose(f);
    return n;
}

#define RESUMED MODEL "--modes ngram,dflash,graft-tail --budget 7 --repeat 3 "

/* Starts a run and sends it a signal when some prompts are done. */
static void end_midway(int signal, int status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    const pid_t child = start(format, args);
    va_end(args);
    for (int i = 0; i < 60000 && lines_of("b/partial.jsonl") < 4; i++) usleep(500);
    kill(child, signal);
    assert_int_equal(end_of(child), status);
    const int n = lines_of("b/partial.jsonl");
    assert_in_range(n, 4, PROMPTS); /* the first line is the setup */
}

static void test_resume(void **state) {
    (void)state;
    check_said(bench(RESUMED "--out whole"), 0, "12/12");
    end_midway(SIGKILL, 128 + SIGKILL, RESUMED "--out b");
    FILE *f = fopen(in_dir("b/partial.jsonl"), "a");
    fputs("{\"prompt\": \"p9\", \"categ", f); /* as if it was writing */
    fclose(f);
    check_said(bench(RESUMED "--out b"), 1, "--resume goes on");
    check_said(bench(RESUMED "--seed 2 --out b --resume"), 1, "settings.seed: 1 | 2");
    check_said(bench(RESUMED "--out b --resume"), 0, "12/12");
    char *a = counts("whole/run.json"), *b = counts("b/run.json");
    assert_string_equal(a, b);
    free(a), free(b);
    json_t *run = load("b/run.json");
    assert_int_equal(json_array_size(json_object_get(run, "resumed")), 1);
    json_decref(run);
}

/* What is not plain's text makes the exit status 1, also when it comes from the journal. */
static void test_difference(void **state) {
    (void)state;
    end_midway(SIGKILL, 128 + SIGKILL, RESUMED "--out b --fresh");
    char command[1024];
    snprintf(command, sizeof command, "sed -i '2s/\"equal\":true/\"equal\":false/4' %s",
             in_dir("b/partial.jsonl"));
    assert_int_equal(system(command), 0);
    check_said(bench(RESUMED "--out b --resume"), 1, "1 texts differ from plain decoding's");
    assert_non_null(strstr(said, "11/12"));
}

/* Ctrl-C: says where things are, shows what it has, leaves a whole journal. */
static void test_interrupt(void **state) {
    (void)state;
    end_midway(SIGINT, 130, RESUMED "--out b --fresh");
    assert_non_null(strstr(said, "interrupted; "));
    assert_non_null(strstr(said, "Ratio to plain decoding by category"));
    check_said(bench(RESUMED "--out b --resume"), 0, "12/12");
}

static void test_disk_full(void **state) {
    (void)state;
    if (access("/dev/full", W_OK)) skip();
    assert_int_equal(mkdir(in_dir("full"), 0777), 0);
    assert_int_equal(symlink("/dev/full", in_dir("full/partial.jsonl")), 0);
    check_said(bench(MODEL "--modes ngram --out full"), 1, "partial.jsonl: No space left on device");
    assert_int_equal(mkdir(in_dir("full2"), 0777), 0);
    assert_int_equal(symlink("/dev/full", in_dir("full2/run.json.new")), 0);
    check_said(bench(MODEL "--modes ngram --out full2"), 1, "run.json: No space left on device");
    assert_int_equal(access(in_dir("full2/partial.jsonl"), R_OK), 0); /* nothing is lost */
    assert_int_not_equal(access(in_dir("full2/run.json"), F_OK), 0);
    check_said(bench(MODEL "--modes ngram --out full2 --resume"), 0, "12/12");
}

/* ---- refusals --------------------------------------------------------------------------------- */

static void test_refusals(void **state) {
    (void)state;
    write_text("broken.jsonl", "{\"prompt\": \"a\"}\n{\"prompt\": \"b\n");
    check_said(bench("-m target --modes ngram --no-machine --out c broken.jsonl"), 1, "broken.jsonl:2: ");
    check_said(bench("-m target --no-machine --out c missing.jsonl"), 1, "missing.jsonl: No such file");
    check_said(bench("-m nowhere --no-machine --out c prompts.jsonl"), 1, "nowhere");
    check_said(bench(MODEL "--modes ngramm --out c"), 2, "nearest: ngram");
    check_said(bench(MODEL "--ablate treshold --out c"), 2, "nearest: threshold");
    check_said(bench(MODEL "--budget 0 --out c"), 2, "whole number from 1 to 255");
    check_said(bench(MODEL "--temp x --out c"), 2, "numbers from 0 to 100");
    check_said(bench(MODEL "--speed 3"), 2, "unknown option --speed");
    check_said(bench("-m target"), 2, "PROMPTS: expected files");
    check_said(bench(MODEL "--device"), 2, "--device: expected cpu, cuda, cuda:N or auto, found nothing");
    check_said(bench(MODEL "--device tpu --out c"), 1, "cannot open device \"tpu\"");
    write_text("c-file", "");
    check_said(bench(MODEL "--modes ngram --out c-file/below"), 1, "Not a directory");
}

/* A head that is of another kind than its mode needs is skipped and told, and the rest is run; so are prompts
 * that do not fit. */
static void test_skips(void **state) {
    (void)state;
    write_text("long.jsonl", "{\"id\": \"short\", \"prompt\": \"the other\"}\n{\"id\": \"long\", \"prompt\": "
                             "\"the very long other that does not fit\"}\n");
    check_said(bench("-m target --drafter eagle3:drafter --modes eagle3,ngram -t 1 -n 8 --max-prompt 12 "
                     "--no-machine --no-plots --out d "
                     "long.jsonl"),
               0, "eagle3 skipped: ");
    assert_non_null(strstr(said, "prompt long of all left out: "));
    assert_non_null(strstr(said, "1/1"));
    check_said(bench("-m target --modes eagle3 -t 1 -n 8 --no-machine --out g long.jsonl"), 3,
               "nothing is left to compare");
    json_t *run = load("d/run.json");
    assert_int_equal(json_array_size(json_object_get(run, "arms")), 2);
    assert_int_equal(json_array_size(json_object_get(run, "runs")), 1);
    json_decref(run);
}

/* ---- compare ---------------------------------------------------------------------------------- */

/* A result of two arms on 32 prompts of 4 categories: x takes `seconds` where plain takes 1, all with a
 * spread of a few per cent that differs by seed. */
static void write_result(const char *name, double seconds, uint64_t seed, const char *revision) {
    json_t *runs = json_array();
    for (int p = 0; p < 32; p++) {
        char id[16], category[8];
        snprintf(id, sizeof id, "p%d", p);
        snprintf(category, sizeof category, "c%d", p % 4);
        const double base = 1 + p % 7, a = base * (1 + 0.01 * (double)test_random(&seed)),
                     b = base * (1 + 0.01 * (double)test_random(&seed));
        json_array_append_new(runs,
                              json_pack("{s:s,s:s,s:[{s:s,s:i,s:f},{s:s,s:i,s:f}]}", "prompt", id, "category",
                                        category, "records", "arm", "plain", "tokens", 64, "seconds", a,
                                        "arm", "x", "tokens", 64, "seconds", seconds * b));
    }
    json_t *j =
        json_pack("{s:s,s:{s:s},s:[{s:s,s:s,s:f},{s:s,s:s,s:f}],s:o}", "format", "dgraft-bench 1", "program",
                  "revision", revision, "arms", "label", "plain", "mode", "plain", "temperature", 0.0,
                  "label", "x", "mode", "ngram", "temperature", 0.0, "runs", runs);
    assert_int_equal(json_dump_file(j, in_dir(name), 0), 0);
    json_decref(j);
}

/* The verdict of a line "arm category ..." in what compare printed. */
static const char *verdict(const char *arm, const char *category) {
    static char found[32];
    char line[512];
    for (const char *p = said; *p; p += strcspn(p, "\n"), p += *p == '\n') {
        char first[64], second[64];
        snprintf(line, sizeof line, "%.*s", (int)strcspn(p, "\n"), p);
        if (sscanf(line, "%63s %63s", first, second) != 2 || strcmp(first, arm) || strcmp(second, category))
            continue;
        const char *last = strstr(line, "no difference");
        snprintf(found, sizeof found, "%s", last ? last : strrchr(line, ' ') + 1);
        return found;
    }
    return "no such line";
}

static void test_compare(void **state) {
    (void)state;
    write_result("x1.json", 0.5, 1, "one");
    write_result("x2.json", 0.5, 2, "one");
    write_result("slower.json", 0.525, 3, "two");
    check_said(bench("compare x1.json x2.json"), 0, "by category: 0 of 8 cells differ");
    assert_string_equal(verdict("x", "all"), "no difference");
    assert_non_null(strstr(said, "Nothing differs otherwise."));
    check_said(bench("compare x1.json slower.json"), 0, "overall: 1 of 2 arms differ");
    assert_string_equal(verdict("x", "all"), "slower");
    assert_string_equal(verdict("plain", "all"), "no difference");
    assert_non_null(strstr(said, "program.revision: \"one\" | \"two\""));
    assert_non_null(strstr(said, "Bonferroni: 2 and 8"));
    check_said(bench("compare slower.json x1.json"), 0, "overall: 1 of 2");
    assert_string_equal(verdict("x", "all"), "faster");
    check_said(bench("compare --by speed x1.json slower.json"), 0, "tokens/s, plain itself");
    write_text("other.json", "{\"format\": \"something\"}");
    check_said(bench("compare x1.json other.json"), 1, "found something");
    check_said(bench("compare x1.json missing.json"), 1, "missing.json");
    check_said(bench("compare x1.json"), 2, "usage");
}

/* A handicap reaches the figures. */
static void test_handicap(void **state) {
    (void)state;
    check_said(bench(MODEL "--modes ngram --budget 3 --out e"), 0, "12/12");
    check_said(bench(MODEL "--modes ngram --budget 3 --out f --handicap ngram=900"), 0, "12/12");
    check_said(bench("compare e/run.json f/run.json"), 0, "handicap_for_testing");
    assert_string_equal(verdict("ngram", "all"), "slower");
    check_said(bench(MODEL "--handicap nothing=5"), 2, "there is no arm");
}

/* Weights of the fused tree's ranking are fitted to what followed: what they promise all in all is what came. */
static void test_rank_fit(void **state) {
    (void)state;
    char bench_program[sizeof program], *name = strstr(program, "dgraft-bench");
    assert_non_null(name);
    memcpy(bench_program, program, sizeof program);
    memcpy(name, "rank_fit", sizeof "rank_fit");
    for (int network = 0; network < 2; network++) {
        check_said(bench("-m target %s -t 1 -n 96 --budget 6 prompts.jsonl", network ? "--drafter drafter" : ""), 0, "by those built in");
        double said_of = 0, came = 0, n, p, q;
        int lines = 0;
        const char *at = strstr(said, "promised .. came");
        assert_non_null(at);
        for (at = strchr(at, '\n') + 1; sscanf(at, " %lf %% .. %lf %% (%lf)", &p, &q, &n) == 3; at = strchr(at, '\n') + 1)
            said_of += n * p, came += n * q, lines++;
        assert_true(lines > 2 && came > 0 && fabs(said_of / came - 1) < 0.15);
        int weights = 0;
        for (char *end; *at && *at != '\n'; at = end + strspn(end, "f, "), weights++) { /* the line that is left */
            assert_true(isfinite(strtod(at, &end)));
            assert_true(end > at && *end == 'f');
        }
        assert_int_equal(weights, 29);
    }
    check_said(bench("-m target none.jsonl"), 1, "none.jsonl");
    check_said(bench("--drafter drafter prompts.jsonl"), 2, "usage");
    memcpy(program, bench_program, sizeof program);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_run),       cmocka_unit_test(test_resume),    cmocka_unit_test(test_difference),
        cmocka_unit_test(test_interrupt), cmocka_unit_test(test_disk_full), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_skips),     cmocka_unit_test(test_compare),   cmocka_unit_test(test_handicap),
        cmocka_unit_test(test_rank_fit),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
