/* A drafter changes speed, never text: for every list of drafters, temperature, seed, budget, thread count and batch
 * size the tokens and log-probabilities equal plain decoding's to the bit. And the test can fail: a kernel whose sums
 * depend on the batch is noticed. */
#include "tests/test.h"

#include "runtime/session.h"
#include "tests/fixture.h"
#include "tests/toy_drafters.h"

enum { MAX_BATCH = 8, MAX_ARMS = 32 };

typedef struct grid {
    const char *model;      /* path */
    const char *dflash;     /* path, NULL: none */
    const char *eagle3;     /* likewise */
    const char *lm;         /* likewise */
    int32_t vocab, prompt_len, n_new;
    int32_t threads[2], batch[3], budget[5]; /* 0: auto */
    float temperature[3];
    int n_threads, n_batch, n_budget, n_temperature, n_seed;
    bool toys; /* oracle, liar, random */
    dg_compute compute;
} grid;

typedef struct answer {
    int32_t token[160];
    float logprob[160];
    size_t n;
} answer;

static int64_t n_cases, n_accepted;

static void make_prompt(const grid *g, int which, int32_t *ids) {
    uint64_t seed = 77u + (unsigned)which;
    for (int32_t i = 0; i < g->prompt_len + which; i++) {
        /* repeats, so that n-grams find something */
        const int32_t fresh = (int32_t)((test_random(&seed) + 1) * 0.5f * (float)(g->vocab - 3)) + 2;
        ids[i] = i >= 6 && test_random(&seed) < 0.4f ? ids[i - 5] : fresh;
    }
}

static dg_session *new_session(dg_model *m, const grid *g, const dg_draft *draft, size_t n_draft, int32_t budget,
                               float temperature, uint64_t seed) {
    const dg_session_options opt = {.context = g->prompt_len + MAX_BATCH + g->n_new + 1, .budget = budget, .draft = draft,
                                    .n_draft = n_draft, .ignore_stop_tokens = true, .batch_rows = 64,
                                    .sampler = {.temperature = temperature, .seed = seed, .top_k = seed == 3 ? 20 : 0,
                                                .top_p = seed == 2 ? 0.9f : 0}};
    dg_session *s = NULL;
    check_ok(dg_session_create(m, &opt, &s));
    return s;
}

static void read_answer(const grid *g, dg_session *s, int which, answer *a) {
    size_t n;
    const int32_t *t = dg_session_tokens(s, &n);
    const size_t prompt = (size_t)(g->prompt_len + which);
    a->n = n - prompt;
    assert_int_equal(a->n, g->n_new);
    memcpy(a->token, t + prompt, a->n * sizeof *t);
    memcpy(a->logprob, dg_session_logprobs(s) + prompt, a->n * sizeof(float));
}

/* n sequences in one batch. */
static void run_batch(dg_model *m, const grid *g, const dg_draft *draft, size_t n_draft, int32_t budget, float temperature,
                      uint64_t seed, int n, const answer *truth, answer *out) {
    dg_session *s[MAX_BATCH];
    size_t count[MAX_BATCH];
    for (int i = 0; i < n; i++) {
        int32_t ids[128];
        make_prompt(g, i, ids);
        if (truth) toy_oracle_knows(i, ids, g->prompt_len + i, truth[i].token, (int32_t)truth[i].n);
        s[i] = new_session(m, g, draft, n_draft, budget, temperature, seed);
        check_ok(dg_session_sync(s[i], ids, (size_t)(g->prompt_len + i)));
        dg_session_limit(s[i], (size_t)g->n_new);
    }
    for (size_t total = 1; total;) {
        check_ok(dg_sessions_step(s, (size_t)n, count));
        total = 0;
        for (int i = 0; i < n; i++) total += count[i];
    }
    for (int i = 0; i < n; i++) {
        dg_stats st;
        dg_session_get_stats(s[i], &st);
        n_accepted += (int64_t)(st.tokens - st.rounds);
        read_answer(g, s[i], i, &out[i]);
        dg_session_free(s[i]);
    }
}

static int first_difference(const answer *a, const answer *b) {
    for (size_t i = 0; i < a->n; i++)
        if (a->token[i] != b->token[i] || memcmp(&a->logprob[i], &b->logprob[i], sizeof(float))) return (int)i;
    return -1;
}

typedef struct arm {
    const char *name;
    dg_draft draft[2];
    size_t n;
} arm;

static int list_arms(const grid *g, arm *a) {
    int n = 0;
    a[n++] = (arm){"none", {{0}}, 0};
    a[n++] = (arm){"ngram", {{"ngram", NULL, NULL}}, 1};
    a[n++] = (arm){"pld", {{"pld", NULL, "tokens=4"}}, 1};
    a[n++] = (arm){"recycling", {{"recycling", NULL, NULL}}, 1};
    a[n++] = (arm){"fused memory", {{"fused", NULL, NULL}}, 1};
    if (g->lm) {
        a[n++] = (arm){"lm", {{"lm", g->lm, NULL}}, 1};
        a[n++] = (arm){"csd", {{"lm", g->lm, "cascade=1,tokens=5,svip=0.9"}}, 1};
        a[n++] = (arm){"lm + fused", {{"lm", g->lm, "tokens=3"}, {"fused", NULL, NULL}}, 2};
    }
    if (g->dflash) {
        a[n++] = (arm){"graft-tail", {{"dflash", g->dflash, NULL}, {"graft", NULL, "tau=0.4"}}, 2};
        a[n++] = (arm){"graft-tail-tree", {{"dflash", g->dflash, "width=8"}, {"graft", NULL, "tree=1"}}, 2};
        a[n++] = (arm){"fused", {{"dflash", g->dflash, "width=8,adapt=1"}, {"fused", NULL, NULL}}, 2};
        a[n++] = (arm){"dflash chain", {{"dflash", g->dflash, NULL}}, 1};
        a[n++] = (arm){"dflash tree", {{"dflash", g->dflash, "tree=1"}}, 1};
        a[n++] = (arm){"ngram + dflash tree", {{"ngram", NULL, NULL}, {"dflash", g->dflash, "tree=1,chain=3"}}, 2};
    }
    if (g->eagle3) {
        a[n++] = (arm){"eagle3 chain", {{"eagle3", g->eagle3, "topk=1"}}, 1};
        a[n++] = (arm){"eagle3 tree", {{"eagle3", g->eagle3, "depth=4,topk=6"}}, 1};
        a[n++] = (arm){"eagle3 + fused", {{"eagle3", g->eagle3, "depth=3,topk=4"}, {"fused", NULL, NULL}}, 2};
        a[n++] = (arm){"prune-only", {{"eagle3", g->eagle3, "depth=6,topk=5,gated=1"}}, 1};
        a[n++] = (arm){"graft-eagle3", {{"eagle3", g->eagle3, "depth=6,topk=5,gated=1"}, {"fill", NULL, NULL}}, 2};
        a[n++] = (arm){"graft-eagle3 append",
                       {{"eagle3", g->eagle3, "depth=6,topk=5,gate0=1,keep0=4"}, {"fill", NULL, "append=1"}}, 2};
        a[n++] = (arm){"graft-eagle3 skip", {{"eagle3", g->eagle3, "depth=6,topk=5,gate1=1,keep1=6"}, {"fill", NULL, "skip=1"}}, 2};
        a[n++] = (arm){"echo", {{"eagle3", g->eagle3, "depth=6,topk=5,gated=1,wide=1,keep0=255,keep1=255,keep5=255"}}, 1};
        a[n++] = (arm){"ddd", {{"eagle3", g->eagle3, "depth=7,topk=4,mass=0.5"}}, 1};
        a[n++] = (arm){"svip", {{"eagle3", g->eagle3, "topk=1,depth=39,svip=0.3"}}, 1};
        a[n++] = (arm){"eagle3-ngram", {{"ngram", NULL, "min=5,alternatives=1"}, {"eagle3", g->eagle3, "depth=3,topk=4"}}, 2};
        a[n++] = (arm){"ngram + gated eagle3 tree",
                       {{"ngram", NULL, NULL}, {"eagle3", g->eagle3, "depth=5,topk=4,gate0=0.2,gate1=0.1,keep0=2"}}, 2};
    }
    if (g->toys) {
        a[n++] = (arm){"oracle", {{"oracle", NULL, NULL}}, 1};
        a[n++] = (arm){"liar", {{"liar", NULL, NULL}}, 1};
        a[n++] = (arm){"random", {{"random", NULL, NULL}}, 1};
    }
    assert_true(n <= MAX_ARMS);
    return n;
}

/* Every arm against the plain answers; the number of differing sequences. */
static int64_t compare_arms(dg_model *m, const grid *g, float temperature, uint64_t seed, const answer *plain, bool report) {
    arm list[MAX_ARMS];
    const int n_arm = list_arms(g, list);
    int64_t bad = 0;
    for (int a = 0; a < n_arm; a++)
        for (int b = 0; b < (list[a].n ? g->n_budget : 1); b++)
            for (int k = 0; k < g->n_batch; k++) {
                static answer got[MAX_BATCH];
                const int64_t before = n_accepted;
                run_batch(m, g, list[a].draft, list[a].n, g->budget[b], temperature, seed, g->batch[k], plain, got);
                if (!strcmp(list[a].name, "oracle") && g->budget[b]) assert_true(n_accepted > before);
                for (int i = 0; i < g->batch[k]; i++, n_cases++) {
                    const int at = first_difference(&plain[i], &got[i]);
                    if (at < 0) continue;
                    bad++;
                    if (report)
                        print_error("%s, T %.1f, seed %d, budget %d, %d in batch: sequence %d differs at %d (%d, %.9g; plain %d, %.9g)\n",
                                    list[a].name, (double)temperature, (int)seed, g->budget[b], g->batch[k], i, at,
                                    got[i].token[at], (double)got[i].logprob[at], plain[i].token[at], (double)plain[i].logprob[at]);
                }
            }
    return bad;
}

static void run_grid(const grid *g) {
    static answer plain[MAX_BATCH];
    const int most = g->batch[g->n_batch - 1];
    for (int t = 0; t < g->n_temperature; t++)
        for (int seed = 1; seed <= g->n_seed; seed++)
            for (int h = 0; h < g->n_threads; h++) {
                dg_model *m = NULL;
                const dg_model_options opt = {.threads = g->threads[h], .compute = g->compute, .device = test_device()};
                check_ok(dg_model_open(g->model, &opt, &m));
                /* the truth: plain, alone, one thread */
                for (int i = 0; i < most && h == 0; i++) {
                    int32_t ids[128];
                    size_t n;
                    make_prompt(g, i, ids);
                    dg_session *s = new_session(m, g, NULL, 0, 0, g->temperature[t], (uint64_t)seed);
                    check_ok(dg_session_sync(s, ids, (size_t)(g->prompt_len + i)));
                    dg_session_limit(s, (size_t)g->n_new);
                    do check_ok(dg_session_step(s, NULL, 0, &n));
                    while (n);
                    read_answer(g, s, i, &plain[i]);
                    dg_session_free(s);
                }
                assert_int_equal(compare_arms(m, g, g->temperature[t], (uint64_t)seed, plain, true), 0);
                dg_model_close(m);
            }
}

static const grid tiny = {.vocab = FIXTURE_VOCAB, .prompt_len = 14, .n_new = 24, .threads = {1, 2}, .batch = {1, 3, 8},
                          .budget = {1, 7, 15, 60, 0}, .temperature = {0, 0.7f, 1.3f}, .n_threads = 2, .n_batch = 3,
                          .n_budget = 5, .n_temperature = 3, .n_seed = 3, .toys = true};

static char dir[FIXTURE_KINDS][256];

static void test_fixture_llama(void **state) {
    (void)state;
    grid g = tiny;
    g.model = dir[0], g.dflash = dir[2], g.eagle3 = dir[3], g.lm = dir[1];
    run_grid(&g);
    assert_true(n_accepted > 1000);
}

static void test_fixture_qwen3(void **state) {
    (void)state;
    grid g = tiny;
    g.model = dir[1], g.dflash = dir[2], g.eagle3 = dir[3], g.lm = dir[1];
    g.n_seed = 1;
    run_grid(&g);
}

/* Trained tiny drafters: drafts that are accepted. */
static void test_golden_drafters(void **state) {
    (void)state;
    if (!golden_have("dflash/d1-b8/config.json")) skip();
    const char *const name[] = {"d1-b8", "d2-b16", "d3-b16-swa", "d2-b8-bias"};
    for (int i = 0; i < 4; i++) {
        char model[512], drafter[512];
        snprintf(model, sizeof model, "%s", golden_path("dflash/%s", i == 3 ? "target-llama" : "target-qwen3"));
        snprintf(drafter, sizeof drafter, "%s", golden_path("dflash/%s", name[i]));
        grid g = tiny;
        g.model = model, g.dflash = drafter, g.vocab = 316, g.n_seed = 1, g.toys = false;
        g.threads[0] = 2, g.n_threads = 1;
        run_grid(&g);
    }
}

static void test_golden_heads(void **state) {
    (void)state;
    if (!golden_have("eagle3/head-llama/config.json")) skip();
    const char *const name[] = {"head-llama", "head-qwen3"};
    for (int i = 0; i < 2; i++) {
        char model[512], head[512];
        snprintf(model, sizeof model, "%s", golden_path("eagle3/%s", i ? "target-qwen3" : "target-llama"));
        snprintf(head, sizeof head, "%s", golden_path("eagle3/%s", name[i]));
        grid g = tiny;
        g.model = model, g.eagle3 = head, g.vocab = 316, g.n_seed = 1, g.toys = false;
        g.threads[0] = 2, g.n_threads = 1;
        run_grid(&g);
    }
}

/* Packed weights, in every compute mode. */
static void test_packed_weights(void **state) {
    (void)state;
    if (!golden_have("gguf/kquant/llama.Q4_K_M.gguf")) skip();
    char model[512];
    snprintf(model, sizeof model, "%s", golden_path("gguf/kquant/llama.Q4_K_M.gguf"));
    const dg_compute mode[] = {DG_COMPUTE_DEFAULT, DG_COMPUTE_INT8, DG_COMPUTE_F32};
    for (int i = 0; i < 3; i++) {
        grid g = tiny;
        g.model = model, g.compute = mode[i], g.vocab = 256, g.n_seed = 1;
        g.budget[0] = 3, g.budget[1] = 60, g.budget[2] = 0, g.n_budget = 3;
        g.batch[1] = 5, g.n_batch = 2, g.n_temperature = 2;
        if (i == 2) g.n_temperature = 1;
        run_grid(&g);
    }
}

static void test_smollm2(void **state) {
    (void)state;
    const char *path = smollm2_path();
    if (!path) skip();
    const grid g = {.model = path, .dflash = "dflash/checkpoints/smollm2-135m-dflash-b16",
                    .eagle3 = "dflash/checkpoints/smollm2-135m-eagle3", .vocab = 49000, .prompt_len = 24,
                    .n_new = 12, .threads = {1, 2}, .batch = {3}, .budget = {15, 0}, .temperature = {0, 0.7f},
                    .n_threads = 2, .n_batch = 1, .n_budget = 2, .n_temperature = 2, .n_seed = 1, .toys = true};
    run_grid(&g);
}

/* A matmul that sums in another order when it gets more than one row: what a careless backend does. */
static void (*sound_matmul)(dg_backend *, dg_mat, const dg_product *, int32_t, bool);

static void careless_matmul(dg_backend *be, dg_mat x, const dg_product *product, int32_t n, bool add) {
    if (x.rows == 1 || x.cols < 32) {
        sound_matmul(be, x, product, n, add);
        return;
    }
    const int32_t half = x.cols / 2 / 16 * 16;
    for (int32_t i = 0; i < n; i++) {
        if (product[i].w.packed) {
            sound_matmul(be, x, &product[i], 1, add);
            continue;
        }
        dg_product left = product[i], right = product[i];
        left.w.cols = half;
        left.bias = (dg_mat){0};
        right.w = dg_mat_cols(product[i].w, half, x.cols - half);
        sound_matmul(be, dg_mat_cols(x, half, x.cols - half), &right, 1, add);
        sound_matmul(be, dg_mat_cols(x, 0, half), &left, 1, true);
    }
}

static void test_broken_kernel_is_noticed(void **state) {
    (void)state;
    grid g = tiny;
    g.model = dir[0], g.dflash = dir[2];
    g.n_batch = 1, g.n_budget = 2;
    static answer plain[MAX_BATCH];
    dg_model *m = NULL;
    check_ok(dg_model_open(g.model, NULL, &m));
    dg_ops broken = *m->be->ops;
    const dg_ops *sound = m->be->ops;
    sound_matmul = broken.matmul;
    broken.matmul = careless_matmul;
    m->be->ops = &broken;
    run_batch(m, &g, NULL, 0, 0, 0.7f, 1, 1, NULL, plain);
    const int64_t bad = compare_arms(m, &g, 0.7f, 1, plain, false);
    m->be->ops = sound;
    dg_model_close(m);
    assert_true(bad > 0);
}

static int report(void **state) {
    (void)state;
    print_message("%lld sequences compared, %lld drafts accepted\n", (long long)n_cases, (long long)n_accepted);
    return 0;
}

/* On a device, whose simulator is slow: one budget. Every row count runs the same sums there, too. */
static void test_device_grid(void **state) {
    (void)state;
    grid g = tiny;
    g.model = dir[1], g.dflash = dir[2], g.eagle3 = dir[3];
    g.prompt_len = 8, g.n_new = 10;
    g.n_threads = g.n_batch = g.n_seed = g.n_temperature = 1, g.temperature[0] = 0.7f, g.budget[0] = 7, g.n_budget = 1;
    run_grid(&g);
    assert_true(n_accepted > 5);
}

/* Weights that are packed, which tensor cores multiply. */
static void test_device_packed(void **state) {
    (void)state;
    if (!golden_have("gguf/kquant/llama.Q4_K_M.gguf")) skip();
    char model[512];
    snprintf(model, sizeof model, "%s", golden_path("gguf/kquant/llama.Q4_K_M.gguf"));
    grid g = tiny;
    g.model = model, g.vocab = 256, g.prompt_len = 8, g.n_new = 8;
    g.n_threads = g.n_batch = g.n_seed = g.n_temperature = 1, g.budget[0] = 12, g.n_budget = 1;
    run_grid(&g);
}

/* ---- loose passes ----------------------------------------------------------------------------- */

enum { TURNS = 7, TURN_TOKENS = 5, PASS_ROWS = 20 };

/* What a session does with a text: a prompt of two whole passes and a rest, an answer, a change of that, more of it, and
 * changes in the middle of a pass, at its end, and before all. Writes the answers, one after the other. */
static void take_turns(dg_session *s, int32_t vocab, answer *a) {
    static const int32_t keep[TURNS] = {0, 48, 0, 33, 40, 41, 7}, more[TURNS] = {46, 25, 31, 20, 25, 44, 0};
    a->n = 0;
    for (int turn = 0; turn < TURNS; turn++) {
        uint64_t seed = 900u + (unsigned)turn;
        int32_t ids[256];
        size_t n;
        const int32_t *text = dg_session_tokens(s, &n);
        if (keep[turn]) n = (size_t)keep[turn];
        memcpy(ids, text, n * sizeof *ids);
        for (int32_t i = 0; i < more[turn]; i++) ids[n++] = 2 + (int32_t)((test_random(&seed) + 1) * 0.5f * (float)(vocab - 3));
        if (more[turn])
            check_ok(dg_session_sync(s, ids, n));
        else
            check_ok(dg_session_rewind(s, n));
        check_ok(dg_session_generate(s, TURN_TOKENS, NULL, NULL, NULL));
        text = dg_session_tokens(s, &n);
        memcpy(a->token + a->n, text + n - TURN_TOKENS, TURN_TOKENS * sizeof *text);
        memcpy(a->logprob + a->n, dg_session_logprobs(s) + n - TURN_TOKENS, TURN_TOKENS * sizeof(float));
        a->n += TURN_TOKENS;
    }
}

static void turns_of(dg_model *m, const arm *who, int32_t rows, int32_t budget, answer *a) {
    const dg_session_options opt = {.context = 200, .budget = budget, .draft = who->draft, .n_draft = who->n, .batch_rows = rows,
                                    .ignore_stop_tokens = true, .sampler = {.temperature = 0.8f, .seed = 5},
                                    .kv = DG_KV_F32}; /* keys of 16 bits would hide small differences */
    dg_session *s = NULL;
    check_ok(dg_session_create(m, &opt, &s));
    take_turns(s, m->net.config.vocab_size, a);
    dg_session_free(s);
}

/* Prefill by a library, and yet to the bit: every arm's turns as plain ones. Without the library the bits are others. */
static void check_turns(const char *path, const arm *list, int n_arm) {
    static answer plain, small, got;
    static const arm none = {"none", {{0}}, 0};
    dg_model *m = NULL;
    const dg_model_options opt = {.device = test_device()};
    check_ok(dg_model_open(path, &opt, &m));
    turns_of(m, &none, PASS_ROWS, 0, &plain);
    turns_of(m, &none, 16, 0, &small);
    assert_int_equal(memcmp(plain.logprob, small.logprob, plain.n * sizeof(float)) != 0, m->be->ops->has_loose);
    for (int i = 0; i < n_arm; i++) {
        turns_of(m, &list[i], PASS_ROWS, i ? 7 : 24, &got);
        const int at = first_difference(&plain, &got);
        if (at >= 0) fail_msg("%s: differs at %d of %d", list[i].name, at, (int)plain.n);
    }
    dg_model_close(m);
}

static void test_device_turns(void **state) {
    (void)state;
    const arm list[] = {{"dflash tree", {{"dflash", dir[2], "tree=1"}}, 1},
                        {"eagle3 tree", {{"eagle3", dir[3], "depth=3,topk=4"}}, 1},
                        {"eagle3 + fused", {{"eagle3", dir[3], "topk=1"}, {"fused", NULL, NULL}}, 2},
                        {"ngram", {{"ngram", NULL, NULL}}, 1}};
    check_turns(dir[1], list, 4);
    if (!golden_have("gguf/models/target-llama.f16.gguf")) return;
    check_turns(golden_path("gguf/models/target-llama.f16.gguf"), list + 3, 1);
}

/* Where texts need not be equal: they are, up to a place where the margin is small. */
static void test_device_inexact(void **state) {
    (void)state;
    grid g = tiny;
    g.prompt_len = 20, g.n_new = 40; /* rounds draft no more than is wanted yet */
    const dg_draft draft = {"recycling", NULL, NULL}, tree = {"dflash", dir[2], "width=8,tree=1"};
    bool differ = false;
    for (int which = 0; which < 2; which++) {
        static answer plain, got;
        dg_model *m = NULL;
        const dg_model_options opt = {.device = test_device(), .inexact = true};
        check_ok(dg_model_open(dir[1], &opt, &m));
        for (int drafted = 0; drafted < 2; drafted++) {
            dg_session *s = new_session(m, &g, which ? &tree : &draft, (size_t)drafted, 40, which ? 0.9f : 0, 1);
            int32_t ids[128];
            make_prompt(&g, 0, ids);
            check_ok(dg_session_sync(s, ids, (size_t)g.prompt_len));
            check_ok(dg_session_generate(s, (size_t)g.n_new, NULL, NULL, NULL));
            read_answer(&g, s, 0, drafted ? &got : &plain);
            dg_session_free(s);
        }
        int at = 0;
        while (at < g.n_new && plain.token[at] == got.token[at]) at++;
        check_near(got.logprob, plain.logprob, (size_t)at, 1e-3, "log-probabilities of loose verifies");
        differ |= memcmp(got.logprob, plain.logprob, (size_t)at * sizeof(float)) != 0;
        if (at < g.n_new) {
            dg_session *s = new_session(m, &g, NULL, 0, 0, which ? 0.9f : 0, 1);
            int32_t ids[128];
            float margin;
            make_prompt(&g, 0, ids);
            memcpy(ids + g.prompt_len, plain.token, (size_t)at * sizeof *ids);
            check_ok(dg_session_sync(s, ids, (size_t)(g.prompt_len + at)));
            check_ok(dg_session_generate(s, 1, NULL, NULL, NULL));
            check_ok(dg_session_margin(s, got.token[at], &margin));
            assert_true(margin >= 0 && margin <= DG_INEXACT_MARGIN);
            dg_session_free(s);
        }
        dg_model_close(m);
    }
    assert_true(differ); /* or nothing was loose */
}

int main(void) {
    if (device_missing()) return 0;
    const char *tmp = test_tmpdir();
    for (int i = 0; i < FIXTURE_KINDS; i++) {
        snprintf(dir[i], sizeof dir[i], "%s/%d", tmp, i);
        fixture_model(dir[i], (fixture_kind)i);
    }
    toy_drafters_register();
    const struct CMUnitTest t[] = {cmocka_unit_test(test_fixture_llama), cmocka_unit_test(test_fixture_qwen3),
                                   cmocka_unit_test(test_golden_drafters), cmocka_unit_test(test_golden_heads),
                                   cmocka_unit_test(test_packed_weights), cmocka_unit_test(test_smollm2),
                                   cmocka_unit_test(test_broken_kernel_is_noticed)};
    const struct CMUnitTest device[] = {cmocka_unit_test(test_device_grid), cmocka_unit_test(test_device_packed),
                                        cmocka_unit_test(test_device_turns), cmocka_unit_test(test_device_inexact)};
    if (test_device()) return cmocka_run_group_tests_name("lossless", device, NULL, report);
    return cmocka_run_group_tests_name("lossless", t, NULL, report);
}
