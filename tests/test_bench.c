/* The benchmark's own parts: statistics against known values, prompt files of all forms, arms and presets,
 * samples as JSON, the figures that come of made-up samples, and models of random weights. */
#include <math.h>
#include <unistd.h>

#include "bench/arms.h"
#include "bench/measure.h"
#include "bench/prompts.h"
#include "bench/shape.h"
#include "bench/stats.h"
#include "bench/summary.h"
#include "kernels/quant.h"
#include "runtime/bind.h"
#include "tests/test.h"

static void check_close(double got, double want, double tol) {
    if (fabs(got - want) <= tol) return;
    print_error("expected %.9g, found %.9g\n", want, got);
    fail();
}

/* ---- statistics ------------------------------------------------------------------------------- */

static void test_quantiles(void **state) {
    (void)state;
    const double v[] = {4, 1, 3, 2};
    check_close(stat_quantile(v, 4, 0.5), 2.5, 1e-12);
    check_close(stat_quantile(v, 4, 0.1), 1.3, 1e-12);
    check_close(stat_quantile(v, 4, 1), 4, 1e-12);
    assert_true(v[0] == 4 && isnan(stat_quantile(v, 0, 0.5)));
    const double w[] = {1, 4, 16};
    check_close(stat_geomean(w, 3), 4, 1e-12);
}

/* Tables of Student's distribution. */
static void test_student(void **state) {
    (void)state;
    const double t[][3] = {{0.975, 10, 2.228139}, {0.975, 1, 12.706205},  {0.95, 5, 2.015048},
                           {0.995, 30, 2.749996}, {0.9995, 3, 12.923979}, {0.75, 2, 0.816497}};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        check_close(stat_t_quantile(t[i][0], t[i][1]), t[i][2], 2e-6);
        check_close(stat_t_quantile(1 - t[i][0], t[i][1]), -t[i][2], 2e-6);
    }
    assert_true(stat_t_quantile(0.5, 4) == 0);
}

/* By hand: of ten values two fall on each side; the standard error is of the winsorized ones. */
static void test_trimmed_mean(void **state) {
    (void)state;
    const double v[] = {1, 100, 2, 3, 9, 4, 5, 6, 7, 8}, few[] = {1, 2, 4, 9};
    double mean;
    stat_interval i;
    assert_true(stat_trimmed_mean(v, 10, 0.95, &mean, &i));
    check_close(mean, 5.5, 1e-12);
    const double error = sqrt(2 * (3 * 2.5 * 2.5 + 1.5 * 1.5 + 0.5 * 0.5) / (6 * 5));
    check_close(i.hi - mean, 2.570582 * error, 1e-5);
    check_close(mean - i.lo, 2.570582 * error, 1e-5);
    assert_true(stat_trimmed_mean(few, 4, 0.95, &mean, &i)); /* Student's own */
    check_close(mean, 4, 1e-12);
    check_close(i.hi - 4, 3.182446 * sqrt((9. + 4 + 0 + 25) / 3 / 4), 1e-5);
    assert_false(stat_trimmed_mean(few, 1, 0.95, &mean, &i));
    assert_true(mean == 1 && isnan(i.lo));
}

static double normal(uint64_t *seed) {
    double sum = 0;
    for (int i = 0; i < 12; i++) sum += ((double)test_random(seed) + 1) / 2;
    return sum - 6;
}

/* Of 300 samples from a known distribution about 95 % of the intervals hold its centre, and Yuen's do. */
static void test_coverage(void **state) {
    (void)state;
    int held = 0, held_trimmed = 0;
    uint64_t seed = 11;
    for (int trial = 0; trial < 300; trial++) {
        double v[24], logs[24], mean;
        for (int i = 0; i < 24; i++) logs[i] = 0.3 + 0.2 * normal(&seed), v[i] = exp(logs[i]);
        const stat_interval b = stat_bootstrap(v, 24, 0.95, 5);
        stat_interval y;
        stat_trimmed_mean(logs, 24, 0.95, &mean, &y);
        held += b.lo < exp(0.3) && exp(0.3) < b.hi;
        held_trimmed += y.lo < 0.3 && 0.3 < y.hi;
    }
    assert_in_range(held, 268, 292);
    assert_in_range(held_trimmed, 272, 296);
}

static void test_bootstrap(void **state) {
    (void)state;
    const double same[] = {2, 2, 2}, v[] = {0.5, 1, 2, 4}, twice[] = {1, 2, 4, 8};
    stat_interval i = stat_bootstrap(same, 3, 0.95, 1);
    check_close(i.lo, 2, 1e-12);
    check_close(i.hi, 2, 1e-12);
    i = stat_bootstrap(v, 4, 0.95, 1);
    assert_true(i.lo < stat_geomean(v, 4) && i.hi > stat_geomean(v, 4) && i.lo >= 0.5 && i.hi <= 4);
    const stat_interval j = stat_bootstrap(twice, 4, 0.95, 1), k = stat_bootstrap(v, 4, 0.5, 1);
    check_close(j.lo, 2 * i.lo, 1e-12); /* the same draws */
    assert_true(k.lo > i.lo && k.hi < i.hi);
    assert_true(isnan(stat_bootstrap(v, 2, 0.95, 1).lo));
    double many[400]; /* the normal interval of a mean: 1.96 standard errors to either side */
    for (int n = 0; n < 400; n++) many[n] = exp(n % 2 ? 0.1 : -0.1);
    i = stat_bootstrap(many, 400, 0.95, 1);
    check_close(-log(i.lo), 1.96 * 0.1 / 20, 0.06 * 0.0098);
    check_close(log(i.hi), 1.96 * 0.1 / 20, 0.06 * 0.0098);
}

/* ---- prompts ---------------------------------------------------------------------------------- */

static const char *file_with(const char *text) {
    static char path[64];
    snprintf(path, sizeof path, "bench-prompts-%d", (int)getpid());
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    return path;
}

static bench_prompts read_all(const char *text, int per_category) {
    bench_prompts p = {0};
    char error[512] = "";
    const char *path = file_with(text);
    const bool ok = bench_prompts_read(&p, path, per_category, error, sizeof error);
    remove(path);
    if (!ok) print_error("%s\n", error);
    assert_true(ok);
    return p;
}

static void test_forms(void **state) {
    (void)state;
    static const struct {
        const char *text, *id, *category, *prompt, *system;
    } t[] = {
        {"{\"id\": \"a\", \"category\": \"chat\", \"prompt\": \"P\", \"system\": \"S\"}", "a", "chat", "P",
         "S"},
        {"{\"question_id\": 81, \"category\": \"writing\", \"turns\": [\"One\", \"Two\"], \"reference\": []}",
         "81", "writing", "One", NULL},
        {"{\"task_id\": \"HumanEval/0\", \"prompt\": \"def f():\\n\", \"entry_point\": \"f\", "
         "\"canonical_solution\": \"x\", \"test\": \"y\"}",
         "HumanEval/0", "humaneval", "def f():\n", NULL},
        {"\n{\"question\": \"2+2?\", \"answer\": \"#### 4\"}", "", "gsm8k", "2+2?", NULL},
        {"[{\"instruction\": \"Sort.\", \"input\": \"b a\", \"output\": \"a b\"}]", "", "alpaca",
         "Sort.\n\nb a", NULL},
        {"{\"instruction\": \"Sing.\", \"output\": \"la\"}", "", "alpaca", "Sing.", NULL},
        {"{\"article\": \"News.\", \"highlights\": \"N\", \"id\": \"f00\"}", "f00", "cnn-dm",
         "Summarise this article in three sentences.\n\nNews.", NULL},
        {"{\"input\": \"Who?\", \"context\": \"Long.\", \"answers\": [\"x\"], \"length\": 9, \"dataset\": "
         "\"narrativeqa\", \"_id\": \"7c\"}",
         "7c", "narrativeqa", "Long.\n\nWho?", NULL}};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        bench_prompts p = read_all(t[i].text, 0);
        assert_int_equal(p.n, 1);
        if (*t[i].id)
            assert_string_equal(p.v[0].id, t[i].id);
        else
            assert_non_null(strchr(p.v[0].id, ':')); /* made of file and line */
        assert_string_equal(p.v[0].category, t[i].category);
        assert_string_equal(p.v[0].text, t[i].prompt);
        if (t[i].system)
            assert_string_equal(p.v[0].system, t[i].system);
        else
            assert_null(p.v[0].system);
        bench_prompts_free(&p);
    }
}

static void test_broken_lines(void **state) {
    (void)state;
    static const struct {
        const char *text, *where, *why;
    } t[] = {{"{\"prompt\": \"a\"}\n\n{\"prompt\": \"b\"\n", ":3: ", "JSON"},
             {"{\"prompt\": \"a\"}\n{\"text\": \"b\"}\n", ":2: ", "expected one of the fields prompt"},
             {"{\"prompt\": \"\"}\n", ":1: ", "empty"},
             {"{\"prompt\": \"a\"}\n[1]\n", ":2: ", "something else"},
             {"[{\"instruction\": \"a\"},\n {\"instruction\": }]", ":2: ", "JSON array"},
             {"{\"id\": 1, \"prompt\": \"a\"}\n{\"id\": 1, \"prompt\": \"b\"}\n", ":2: ", "id of its own"}};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        bench_prompts p = {0};
        char error[512] = "";
        const char *path = file_with(t[i].text);
        assert_false(bench_prompts_read(&p, path, 0, error, sizeof error));
        remove(path);
        if (strncmp(error, path, strlen(path)) || !strstr(error, t[i].where) || !strstr(error, t[i].why))
            print_error("%s\n", error);
        assert_non_null(strstr(error, t[i].where));
        assert_non_null(strstr(error, t[i].why));
        assert_int_equal(p.n, 0); /* nothing half-read */
        bench_prompts_free(&p);
    }
}

static void test_order(void **state) {
    (void)state;
    bench_prompts p = read_all(
        "{\"id\":1,\"category\":\"a\",\"prompt\":\"x\"}\n{\"id\":2,\"category\":\"a\",\"prompt\":\"x\"}\n"
        "{\"id\":3,\"category\":\"a\",\"prompt\":\"x\"}\n{\"id\":1,\"category\":\"b\",\"prompt\":\"x\"}\n"
        "{\"id\":2,\"category\":\"b\",\"prompt\":\"x\"}\n{\"id\":1,\"category\":\"c\",\"prompt\":\"x\"}\n",
        2);
    bench_prompts_mix(&p);
    char order[64] = "";
    for (int i = 0; i < p.n; i++) strcat(strcat(strcat(order, p.v[i].category), p.v[i].id), " ");
    assert_string_equal(order, "a1 b1 c1 a2 b2 ");
    bench_prompts_free(&p);
}

/* ---- arms ------------------------------------------------------------------------------------- */

static const bench_wish all_weights = {.drafter = {"dflash:D", "eagle3:E", "lm:L"},
                                       .n_drafter = 3,
                                       .modes = "",
                                       .n_temperature = 1,
                                       .warmup = 5};

static const bench_arm *find_arm(const bench_arms *a, const char *label) {
    for (int i = 0; i < a->n; i++)
        if (!strcmp(a->v[i].label, label)) return &a->v[i];
    print_error("no arm %s\n", label);
    fail();
    return NULL;
}

static bench_arms make(const bench_wish *w) {
    bench_arms a;
    char error[512] = "";
    const bool ok = bench_arms_make(w, &a, error, sizeof error);
    if (!ok) print_error("%s\n", error);
    assert_true(ok);
    return a;
}

static void test_arm_keys(void **state) {
    (void)state;
    bench_wish w = all_weights;
    w.arm[0] = "a=graft-tail,tau=0.4,dflash.width=3,budget=9,warmup=50",
    w.arm[1] = "b=fused,budget=auto,temp=0.7", w.n_arm = 2;
    bench_arms a = make(&w);
    const bench_arm *x = find_arm(&a, "a"), *y = find_arm(&a, "b T=0.7");
    assert_int_equal(a.n, 4); /* plain, a, b, and plain at b's temperature */
    assert_string_equal(x->draft[0].name, "dflash");
    assert_string_equal(x->draft[0].path, "D");
    assert_string_equal(x->draft[0].params, "width=3");
    assert_string_equal(x->draft[1].params, "gated=1,tau=0.4");
    assert_null(x->draft[1].path);
    assert_int_equal(x->budget, 9);
    assert_int_equal(x->warmup, 50);
    assert_int_equal(x->plain, 0);
    assert_int_equal(y->budget, 0);
    assert_true(a.v[y->plain].temperature == 0.7f && !a.v[y->plain].n_draft);
    bench_arms_free(&a);
}

static void test_arm_grid(void **state) {
    (void)state;
    bench_wish w = all_weights;
    w.modes = "dflash,ngram", w.budget[0] = 7, w.budget[1] = 0, w.n_budget = 2, w.temperature[1] = 0.8,
    w.n_temperature = 2;
    bench_arms a = make(&w);
    assert_int_equal(a.n, 10); /* 2 plain; 2 modes x 2 budgets x 2 temperatures */
    const bench_arm *x = find_arm(&a, "dflash/7 T=0.8");
    assert_string_equal(x->family, "dflash T=0.8");
    assert_string_equal(a.v[x->plain].label, "plain T=0.8");
    find_arm(&a, "ngram/auto T=0");
    bench_arms_free(&a);
}

static void test_wrong_arms(void **state) {
    (void)state;
    static const struct {
        const char *modes, *arm, *ablate, *part;
    } t[] = {{"fussed", NULL, NULL, "there is no mode \"fussed\"; nearest: fused"},
             {"", "x=dtree", NULL, "there is no mode \"dtree\"; nearest: ddtree"},
             {"", "x=graft-tail,tree=1", NULL, "several drafters of mode graft-tail take \"tree=1\""},
             {"", "x=dflash,tau=1", NULL, "no drafter of mode dflash takes \"tau=1\""},
             {"", "x=dflash,graft.width=1", NULL, "no drafter of mode dflash takes"},
             {"", "x=dflash,budget=256", NULL, "expected auto or 1 to 255"},
             {"", "x=dflash,block", NULL, "expected key=value"},
             {"fused", "fused=fused,dflash.width=2", NULL, "two different arms are called fused"},
             {"", NULL, "blocks", "there is no ablation \"blocks\"; nearest: block"}};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        bench_wish w = all_weights;
        w.modes = t[i].modes;
        if (t[i].arm) w.arm[w.n_arm++] = t[i].arm;
        if (t[i].ablate) w.ablate[w.n_ablate++] = t[i].ablate;
        bench_arms a;
        char error[512] = "";
        assert_false(bench_arms_make(&w, &a, error, sizeof error));
        if (!strstr(error, t[i].part)) print_error("%s\n", error);
        assert_non_null(strstr(error, t[i].part));
    }
}

/* Every mode and every preset makes arms with the modes that are registered. */
static void test_presets(void **state) {
    (void)state;
    bench_wish w = all_weights;
    w.modes = "all";
    w.arm[0] = "fused", w.n_arm = 1; /* the same arm again is no second one */
    bench_arms a = make(&w);
    assert_int_equal(a.n, (int)dg_mode_count());
    bench_arms_free(&a);
    for (size_t i = 0; bench_ablation_name(i); i++) {
        w = all_weights;
        w.ablate[0] = bench_ablation_name(i), w.n_ablate = 1;
        a = make(&w);
        assert_true(a.n > 2 && a.n_skip == 0);
        bench_arms_free(&a);
    }
    w = all_weights;
    w.n_drafter = 0, w.modes = "main";
    a = make(&w);
    assert_true(a.n_skip >= 4 && strstr(a.skip[0].why, "--drafter"));
    find_arm(&a, "ngram");
    bench_arms_free(&a);
}

/* ---- samples ---------------------------------------------------------------------------------- */

static sample made_up(double seconds, uint64_t tokens, uint64_t rounds) {
    sample s = {.tokens = tokens,
                .rounds = rounds,
                .passes = rounds / 2,
                .rows = 4 * rounds,
                .prompt = 9,
                .text = 0xfedcba9876543210u,
                .equal = true,
                .seconds = seconds,
                .cpu = 2 * seconds,
                .draft = 0.1 * seconds,
                .verify = 0.7 * seconds,
                .prefill = 3,
                .peak = 1 << 20};
    s.proposed[0] = 3 * rounds, s.accepted[1][0] = tokens - rounds, s.row_count[4] = rounds;
    s.bin[0][9].tested = 5, s.bin[0][9].accepted = 4, s.bin[0][9].promised = 4.75;
    s.at[3].tokens = tokens, s.at[3].seconds = seconds;
    return s;
}

static void test_sample_json(void **state) {
    (void)state;
    const sample s = made_up(0.1 + 0.2, 64, 40);
    json_t *j = sample_to_json(&s);
    char *text = json_dumps(j, JSON_COMPACT);
    json_t *again = json_loads(text, 0, NULL);
    sample back;
    assert_true(sample_from_json(again, &back));
    assert_memory_equal(&back, &s, sizeof s);
    assert_true(sample_same_text(&s, &back));
    back.text ^= 1;
    assert_false(sample_same_text(&s, &back));
    back.text ^= 1, back.tokens--;
    assert_false(sample_same_text(&s, &back));
    json_array_append_new(json_object_get(again, "accepted"), json_pack("[i,i,i]", SAMPLE_DEPTHS, 0, 1));
    assert_false(sample_from_json(again, &back));
    json_object_del(again, "rounds");
    assert_false(sample_from_json(again, &back));
    free(text), json_decref(j), json_decref(again);
    assert_int_equal(sample_context_bin(16), 0);
    assert_int_equal(sample_context_bin(32), 2);
    assert_int_equal(sample_context_bin(31), 1);
    assert_int_equal(sample_context_bin(1u << 30), SAMPLE_CONTEXTS - 1);
    assert_int_equal(sample_probability_bin(1), SAMPLE_BINS - 1);
    assert_int_equal(sample_probability_bin(0.05), 0);
}

/* Two categories of four prompts; the arm is twice as fast on the first, as fast on the second; one text
 * differs. */
static void test_summary(void **state) {
    (void)state;
    bench_arm arm[2] = {{.label = "plain"}, {.label = "x", .n_draft = 1, .draft = {{.name = "ngram"}}}};
    sample sum[4] = {{0}};
    bench_brief brief[16];
    int category_of[8];
    bench_run r = {.arms = {.v = arm, .n = 2},
                   .repeat = 1,
                   .n_category = 2,
                   .category = {"a", "b"},
                   .category_of = category_of,
                   .sum = sum,
                   .brief = brief,
                   .n_done = 8,
                   .weight_bytes = 1000,
                   .copy_bandwidth = 1e6};
    for (int p = 0; p < 8; p++) {
        category_of[p] = p % 2;
        const double plain = p < 6 ? 1 : 2, mine = p % 2 ? plain : plain / 2; /* it slows down at the end */
        const sample s[2] = {made_up(plain, 10, 10), made_up(mine, 10, 5)};
        for (int a = 0; a < 2; a++) {
            sample_add(bench_sum(&r, a, p % 2), &s[a]);
            *bench_brief_at(&r, p, 0, a) = (bench_brief){s[a].seconds, 1, 10, !(a == 1 && p == 3)};
        }
    }
    const summary all = bench_summary(&r, 1, -1), a = bench_summary(&r, 1, 0),
                  plain = bench_summary(&r, 0, -1);
    check_close(all.ratio, sqrt(2), 1e-12);
    check_close(a.ratio, 2, 1e-12);
    check_close(a.interval.lo, 2, 1e-12);
    assert_true(all.interval.lo >= 1 && all.interval.lo < all.ratio && all.interval.hi > all.ratio &&
                all.interval.hi <= 2);
    assert_int_equal(all.prompts, 8);
    assert_int_equal(all.equal, 7);
    assert_int_equal(a.prompts, 4);
    assert_int_equal(bench_differing(&r), 1);
    check_close(all.tau, 2, 1e-12);
    check_close(all.drafted, 1, 1e-12);
    check_close(all.share, 1. / 3, 1e-12);
    check_close(all.rows, 4, 1e-12);
    check_close(a.draft_ms + a.verify_ms + a.rest_ms, 1e3 * 2.5 / 20, 1e-9);
    check_close(plain.speed, 10, 1e-12);
    check_close(plain.read, 1000 * 80 / (0.7 * 10), 1e-9);
    check_close(plain.read_share, plain.read / 1e6, 1e-12);
    check_close(bench_drift(&r), 0.5, 1e-12);
}

/* ---- synthetic models -------------------------------------------------------------------------- */

/* Parameters as the models' own cards count them. */
static void test_shapes(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int64_t parameters;
    } known[] = {{"qwen3-8b", 8190735360}, {"llama-3.1-8b", 8030261248}, {"smollm2-135m", 134515008}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        dg_config c;
        shape_product p[SHAPE_PRODUCTS];
        assert_true(shape_find(known[i].name, &c));
        shape_products(&c, p);
        int64_t layer = 2 * c.hidden_size + (c.qk_norm ? 2 * c.head_dim : 0), embedding = (int64_t)c.vocab_size * c.hidden_size;
        for (int k = 0; k < SHAPE_PRODUCTS - 1; k++)
            for (int o = 0; o < 3; o++) layer += (int64_t)p[k].k * p[k].m[o];
        assert_int_equal((int64_t)p[SHAPE_PRODUCTS - 1].k * p[SHAPE_PRODUCTS - 1].m[0], embedding);
        assert_int_equal(c.n_layer * layer + c.hidden_size + embedding * (c.tied ? 1 : 2), known[i].parameters);
        assert_non_null(strstr(shape_names(), known[i].name));
    }
    dg_config c;
    dg_dtype type;
    assert_false(shape_find("qwen3", &c));
    assert_false(shape_type_find("q4_k_m", &type));
    assert_true(shape_type_find("q4_k", &type));
    assert_int_equal(type, DG_Q4_K);
    assert_true(shape_find("smollm2-135m", &c));
    assert_int_equal(shape_misfit(&c, DG_Q4_K), 576);
    assert_int_equal(shape_misfit(&c, DG_Q8_0), 0);
}

/* Every weight is finite and no larger than told; they are spread around 0. */
static void check_values(const dg_file_tensor *t) {
    const dg_mat m = dg_file_mat(t);
    const float most = sqrtf(3.0f / (float)m.cols);
    float row[512];
    double sum = 0, squares = 0;
    assert_in_range(m.cols, 1, 512);
    for (int32_t r = 0; r < m.rows; r++) {
        dg_dequant_row(m.dtype, dg_mat_row(&m, r), row, (size_t)m.cols);
        for (int32_t i = 0; i < m.cols; i++) {
            assert_true(fabsf(row[i]) <= 1.02f * most);
            sum += (double)row[i], squares += (double)row[i] * (double)row[i];
        }
    }
    const double n = (double)m.rows * m.cols;
    check_close(sum / n, 0, 0.08 * (double)most); /* 0 to 15 is not even around 8 */
    assert_true(sqrt(squares / n) > 0.1 * (double)most);
}

static void test_shape_file(void **state) {
    (void)state;
    char path[512];
    snprintf(path, sizeof path, "%s/shape.gguf", test_tmpdir());
    for (int i = 0; i < SHAPE_TYPES; i++) {
        dg_config want, c;
        dg_file *f;
        dg_weights w;
        assert_true(shape_find("tiny", &want));
        check_ok(shape_write(&want, shape_type[i], path));
        check_ok(dg_file_open(path, &f));
        check_ok(dg_config_read(f, &c));
        check_ok(dg_bind(f, &c, &w)); /* names and shapes */
        assert_int_equal(f->n_tensor, 3 + 11 * want.n_layer);
        const int32_t got[] = {(int32_t)c.arch, c.n_layer,    c.hidden_size,       c.n_head,
                               c.n_kv_head,     c.head_dim,   c.intermediate_size, c.vocab_size},
                      asked[] = {DG_ARCH_QWEN3, 2, 256, 4, 2, 64, 512, 512};
        assert_memory_equal(got, asked, sizeof asked);
        for (size_t k = 0; k < f->n_tensor; k++) {
            assert_int_equal(f->tensor[k].dtype, f->tensor[k].n_dim == 2 ? shape_type[i] : DG_F32);
            if (f->tensor[k].n_dim == 2) check_values(&f->tensor[k]);
        }
        dg_mem_free(w.layer);
        dg_file_close(f);
    }
    unlink(path);
    dg_config c;
    assert_true(shape_find("tiny", &c));
    check_fails(shape_write(&c, DG_F32, "/nowhere/at/all"), DG_ERR_IO, "/nowhere/at/all");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quantiles),    cmocka_unit_test(test_student),
        cmocka_unit_test(test_trimmed_mean), cmocka_unit_test(test_coverage),
        cmocka_unit_test(test_bootstrap),    cmocka_unit_test(test_forms),
        cmocka_unit_test(test_broken_lines), cmocka_unit_test(test_order),
        cmocka_unit_test(test_arm_keys),     cmocka_unit_test(test_arm_grid),
        cmocka_unit_test(test_wrong_arms),   cmocka_unit_test(test_presets),
        cmocka_unit_test(test_sample_json),  cmocka_unit_test(test_summary),
        cmocka_unit_test(test_shapes),       cmocka_unit_test(test_shape_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
