/* The EAGLE-3 drafter on heads of our own: every flag of the dialects against a plain double-precision forward pass, the
 * gates, what happens when the text is cut, and the heads that must be refused. */
#include "dflash/eagle3.h"

#include <math.h>

#include "runtime/convert.h"
#include "runtime/session.h"
#include "tests/fixture.h"
#include "tests/test.h"

enum { HEADS = 4, KV = 2, HEAD = 12, MAX_HIDDEN = 64, MAX_ROWS = 64 };

static char llama[256], qwen3[256], made[256], converted[264];
static const char *opened = made; /* the head that try_open takes */

typedef struct setup {
    dg_model *model;
    dg_session *session;
    dg_drafter *drafter;
} setup;

static dg_status try_open(setup *u, const char *target, const char *params) {
    const dg_draft draft = {"eagle3", opened, params};
    const dg_session_options opt = {.context = 128, .budget = 40, .draft = &draft, .n_draft = 1, .ignore_stop_tokens = true};
    *u = (setup){0};
    check_ok(dg_model_open(target, &(dg_model_options){.threads = 2, .compute = DG_COMPUTE_F32}, &u->model));
    const dg_status st = dg_session_create(u->model, &opt, &u->session);
    if (st == DG_OK) u->drafter = u->session->slot[0].drafter;
    return st;
}

static void close_setup(setup *u) {
    dg_session_free(u->session);
    dg_model_close(u->model);
}

/* ---- the forward pass as the specification writes it ------------------------------------------ */

typedef struct reference {
    const fixture_head *head;
    dg_file *file;
    const dg_model *target;
    int hidden, tapped, n;           /* n: rows of k and v */
    double k[MAX_ROWS][KV * HEAD], v[MAX_ROWS][KV * HEAD];
} reference;

static const float *weight(const reference *r, const char *name) {
    char full[96];
    const bool of_layer = strstr(name, "layernorm") || strstr(name, "self_attn") || strstr(name, "mlp") || strstr(name, "hidden_norm");
    snprintf(full, sizeof full, "%s%s.weight", of_layer ? r->head->speculators ? "layers.0." : "midlayer." : "", name);
    return golden_f32(r->file, full, NULL);
}

static void norm(const double *x, const float *w, int n, double *out) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += x[i] * x[i];
    for (int i = 0; i < n; i++) out[i] = x[i] / sqrt(sum / n + 1e-5) * (double)w[i];
}

static void multiply(const float *w, const double *x, int rows, int cols, double *out) {
    for (int r = 0; r < rows; r++) {
        out[r] = 0;
        for (int c = 0; c < cols; c++) out[r] += (double)w[r * cols + c] * x[c];
    }
}

static void rotate(double *x, int n_head, int pos) {
    for (int h = 0; h < n_head; h++)
        for (int i = 0; i < HEAD / 2; i++) {
            const double a = pos * pow(5000, -2.0 * i / HEAD), p = x[h * HEAD + i], q = x[h * HEAD + HEAD / 2 + i];
            x[h * HEAD + i] = p * cos(a) - q * sin(a);
            x[h * HEAD + HEAD / 2 + i] = q * cos(a) + p * sin(a);
        }
}

static void norm_heads(const reference *r, const char *name, double *x, int n_head) {
    for (int h = 0; r->head->qk_norm && h < n_head; h++) norm(x + h * HEAD, weight(r, name), HEAD, x + h * HEAD);
}

static void attend(const reference *r, const double *q, double *out) {
    for (int h = 0; h < HEADS; h++) {
        const int g = h / (HEADS / KV) * HEAD;
        double p[MAX_ROWS], sum = 0;
        for (int j = 0; j < r->n; j++) {
            double dot = 0;
            for (int i = 0; i < HEAD; i++) dot += q[h * HEAD + i] * r->k[j][g + i];
            sum += p[j] = exp(dot / sqrt(HEAD));
        }
        for (int i = 0; i < HEAD; i++) {
            out[h * HEAD + i] = 0;
            for (int j = 0; j < r->n; j++) out[h * HEAD + i] += p[j] / sum * r->v[j][g + i];
        }
    }
}

/* One row over all rows before it: g[hidden] becomes what is fed back. */
static void step(reference *r, int32_t token, int pos, double *g) {
    const int d = r->hidden, f = FIXTURE_HEAD_FFN;
    double e[MAX_HIDDEN], x[2 * MAX_HIDDEN], q[HEADS * HEAD], att[HEADS * HEAD], add[MAX_HIDDEN], z[MAX_HIDDEN];
    double gate[FIXTURE_HEAD_FFN], up[FIXTURE_HEAD_FFN];
    const float *table = r->head->embedding ? weight(r, "embed_tokens") : r->target->net.weights.embed.data;
    for (int i = 0; i < d; i++) e[i] = (double)table[token * d + i];
    norm(e, weight(r, "input_layernorm"), d, x);
    norm(g, weight(r, "hidden_norm"), d, x + d);
    multiply(weight(r, "self_attn.q_proj"), x, HEADS * HEAD, 2 * d, q);
    multiply(weight(r, "self_attn.k_proj"), x, KV * HEAD, 2 * d, r->k[r->n]);
    multiply(weight(r, "self_attn.v_proj"), x, KV * HEAD, 2 * d, r->v[r->n]);
    norm_heads(r, "self_attn.q_norm", q, HEADS);
    norm_heads(r, "self_attn.k_norm", r->k[r->n], KV);
    rotate(q, HEADS, pos);
    rotate(r->k[r->n], KV, pos);
    r->n++;
    attend(r, q, att);
    multiply(weight(r, "self_attn.o_proj"), att, d, HEADS * HEAD, add);
    for (int i = 0; i < d; i++) g[i] = (r->head->norm_before_residual ? x[d + i] : g[i]) + add[i];
    norm(g, weight(r, "post_attention_layernorm"), d, z);
    multiply(weight(r, "mlp.gate_proj"), z, f, d, gate);
    multiply(weight(r, "mlp.up_proj"), z, f, d, up);
    for (int i = 0; i < f; i++) gate[i] *= up[i] / (1 + exp(-gate[i]));
    multiply(weight(r, "mlp.down_proj"), gate, d, f, add);
    for (int i = 0; i < d; i++) g[i] += add[i];
    if (r->head->norm_output) norm(g, weight(r, "norm"), d, g);
}

static void project(const reference *r, const float *const *feature, int row, double *g) {
    const int t = r->tapped;
    double cat[3 * MAX_HIDDEN];
    for (int i = 0; i < 3; i++) {
        char name[32];
        for (int c = 0; c < t; c++) cat[i * t + c] = (double)feature[i][row * t + c];
        snprintf(name, sizeof name, "fc_norm.%d", i);
        if (r->head->fc_norm) norm(cat + i * t, weight(r, name), t, cat + i * t);
    }
    if (r->head->norm_before_fc) norm(cat, weight(r, "input_norm"), 3 * t, cat);
    multiply(weight(r, "fc"), cat, r->hidden, 3 * t, g);
    const float *bias = r->head->fc_bias ? golden_f32(r->file, "fc.bias", NULL) : NULL;
    for (int i = 0; bias && i < r->hidden; i++) g[i] += (double)bias[i];
}

static void check_row(const char *what, const float *got, const double *want, int n) {
    float w[FIXTURE_VOCAB];
    for (int i = 0; i < n; i++) w[i] = (float)want[i];
    check_near(got, w, (size_t)n, 5e-4, what);
}

static void check_logits(const reference *r, const double *state, dg_mat logits, int row) {
    double x[MAX_HIDDEN], want[FIXTURE_VOCAB];
    memcpy(x, state, sizeof x);
    if (!r->head->norm_output) norm(x, weight(r, "norm"), r->hidden, x);
    const float *w = r->head->no_head ? r->target->net.weights.head.data : weight(r, "lm_head");
    const bool gathered = r->head->no_head && !r->head->whole_vocabulary; /* d2t leads from i to 2i + 1 */
    for (int i = 0; i < logits.cols; i++) multiply(w + (gathered ? 2 * i + 1 : i) * r->hidden, x, 1, r->hidden, want + i);
    check_row("logits", dg_mat_row(&logits, row), want, logits.cols);
}

/* Every slot as a chain of its own behind the committed rows. */
static void check_slots(reference *r, const setup *u, const double *root, int passes) {
    const dg_beam *b = dg_eagle3_beam(u->drafter);
    const dg_mat state = dg_eagle3_state(u->drafter), logits = dg_eagle3_logits(u->drafter);
    const int committed = r->n, slots = (passes - 1) * b->width;
    assert_int_equal(b->passes, passes);
    for (int s = 0; s < slots; s++) {
        int32_t path[MAX_ROWS], n = 0;
        double g[MAX_HIDDEN];
        memcpy(g, root, sizeof g);
        for (int32_t c = b->slot[s]; c >= 0; c = b->parent[c]) path[n++] = b->token[c];
        r->n = committed;
        for (int i = 0; i < n; i++) step(r, path[n - 1 - i], committed + i, g);
        check_row("state of a slot", dg_mat_row(&state, 1 + s), g, r->hidden);
        if (s >= slots - b->width) check_logits(r, g, logits, s - (slots - b->width));
    }
    r->n = committed;
}

/* Random features and tokens, in spans, straight into the drafter; then a beam. */
static void check_head(const char *target, const fixture_head *head, const char *params, int passes) {
    setup u;
    fixture_eagle3(made, head);
    check_ok(try_open(&u, target, params));
    reference *r = calloc(1, sizeof *r);
    r->head = head;
    r->target = u.model;
    r->hidden = head->hidden ? head->hidden : FIXTURE_HIDDEN;
    r->tapped = FIXTURE_HIDDEN;
    check_ok(dg_file_open(made, &r->file));

    static const int span[] = {1, 5, 2, 1};
    float data[3][5 * FIXTURE_HIDDEN];
    const float *feature[3] = {data[0], data[1], data[2]};
    const int32_t row[5] = {0, 1, 2, 3, 4};
    uint64_t seed = 9;
    int32_t token[6], first = 0;
    double g[MAX_HIDDEN];
    for (size_t s = 0; s < sizeof span / sizeof *span; s++) {
        dg_mat m[3];
        for (int t = 0; t < 3; t++) {
            for (int i = 0; i < span[s] * FIXTURE_HIDDEN; i++) data[t][i] = (float)(t + 1) * test_random(&seed);
            m[t] = dg_mat_make(data[t], DG_F32, span[s], FIXTURE_HIDDEN);
        }
        for (int i = 0; i <= span[s]; i++) token[i] = 2 + (int32_t)((test_random(&seed) + 1) / 2 * 100);
        const dg_outcome o = {.n = span[s], .token = token, .first = first, .next = token[span[s]], .row = row, .feature = m};
        check_ok(u.drafter->ops->observe(u.drafter, &o));
        for (int i = 0; i < span[s]; i++) {
            project(r, feature, i, g);
            step(r, token[i + 1], first + i, g);
        }
        first += span[s];
        check_row("state of the last row", dg_eagle3_state(u.drafter).data, g, r->hidden);
    }
    dg_tree tree;
    dg_tree_reset(&tree, token[1]);
    check_ok(u.drafter->ops->propose(u.drafter, &tree, 40));
    assert_int_equal(tree.n, 41);
    if (passes == 1) check_logits(r, g, dg_eagle3_logits(u.drafter), 0);
    check_slots(r, &u, g, passes);
    dg_file_close(r->file);
    free(r);
    close_setup(&u);
}

/* The same head as a GGUF file. */
static void check_converted(const char *target, const fixture_head *head) {
    fixture_eagle3(made, head);
    check_ok(dg_convert(made, converted, DG_F32, NULL, NULL));
    opened = converted;
    check_head(target, head, "depth=3,topk=5,full=1", 4);
    opened = made;
}

static void test_converted(void **state) {
    (void)state;
    static const fixture_head head[] = {
        {0},
        {.norm_before_residual = true},
        {.norm_before_fc = true, .fc_bias = true, .embedding = true},
        {.no_head = true},
        {.whole_vocabulary = true, .no_head = true},
        {.hidden = 32, .target_hidden = FIXTURE_HIDDEN, .embedding = true}};
    for (size_t i = 0; i < sizeof head / sizeof *head; i++) check_converted(i % 2 ? llama : qwen3, &head[i]);
}

static void refuse_to_convert(const fixture_head *head, const char *part) {
    fixture_eagle3(made, head);
    check_fails(dg_convert(made, converted, DG_F16, NULL, NULL), DG_ERR_UNSUPPORTED, part);
}

static void test_not_converted(void **state) {
    (void)state;
    char folder[264];
    snprintf(folder, sizeof folder, "%s.hf", made);
    refuse_to_convert(&(fixture_head){.fc_norm = true}, "fc_norm has no GGUF key");
    refuse_to_convert(&(fixture_head){.speculators = true, .norm_output = true}, "norm_output has no GGUF key");
    refuse_to_convert(&(fixture_head){.qk_norm = true}, "a norm of q and k has no GGUF key");
    refuse_to_convert(&(fixture_head){.layers = "null"}, "names no feature layers");
    fixture_eagle3(made, &(fixture_head){0});
    check_ok(dg_convert(made, converted, DG_F16, NULL, NULL));
    check_fails(dg_convert(converted, folder, DG_F16, NULL, NULL), DG_ERR_UNSUPPORTED, "can be converted to GGUF only");
}

static void test_flags(void **state) {
    (void)state;
    static const fixture_head head[] = {
        {0},
        {.norm_before_residual = true},
        {.norm_before_fc = true},
        {.fc_norm = true, .fc_bias = true},
        {.speculators = true, .norm_before_residual = true, .norm_output = true, .embedding = true},
        {.speculators = true, .qk_norm = true, .norm_before_fc = true, .norm_output = true, .whole_vocabulary = true},
        {.whole_vocabulary = true, .no_head = true},
        {.no_head = true},
        {.hidden = 32, .target_hidden = FIXTURE_HIDDEN, .embedding = true}};
    for (size_t i = 0; i < sizeof head / sizeof *head; i++) {
        check_head(i % 2 ? llama : qwen3, &head[i], "depth=3,topk=5,full=1", 4);
        check_head(i % 2 ? qwen3 : llama, &head[i], "depth=0,topk=40", 1);
    }
}

/* ---- the drafter in a session ----------------------------------------------------------------- */

static const int32_t text[] = {40, 71, 96, 101, 13, 96, 55, 71, 96, 101, 22, 8, 17, 60, 61, 62, 90, 91};
enum { N_TEXT = sizeof text / sizeof *text };

static void propose(const setup *u, dg_tree *tree, int32_t root) {
    dg_tree_reset(tree, root);
    u->drafter->passes = 0;
    check_ok(u->drafter->ops->propose(u->drafter, tree, 40));
}

static void same_state(const setup *a, const setup *b) {
    const dg_kv *x = dg_eagle3_kv(a->drafter), *y = dg_eagle3_kv(b->drafter);
    assert_int_equal(x->len, y->len);
    for (int v = 0; v < 2; v++) {
        float *p = kv_rows(a->model->be, x, 0, v), *q = kv_rows(b->model->be, y, 0, v);
        assert_memory_equal(p, q, sizeof(float) * (size_t)x->len * KV * HEAD);
        free(p);
        free(q);
    }
    assert_memory_equal(dg_eagle3_state(a->drafter).data, dg_eagle3_state(b->drafter).data, FIXTURE_HIDDEN * sizeof(float));
}

/* A row knows the token after it: wherever a text is cut or changed, the drafter is where a fresh one would be. */
static void test_rewind(void **state) {
    (void)state;
    setup a, b;
    fixture_eagle3(made, &(fixture_head){0});
    check_ok(try_open(&a, llama, NULL));
    check_ok(try_open(&b, llama, NULL));
    int32_t other[N_TEXT];
    for (int cut = 2; cut < N_TEXT; cut++)
        for (int change = 0; change < 2; change++) {
            const int32_t clear[1] = {3};
            memcpy(other, text, sizeof other);
            if (change) other[cut - 1] = 33;
            check_ok(dg_session_sync(a.session, text, N_TEXT));
            check_ok(dg_session_sync(a.session, other, (size_t)cut));
            check_ok(dg_session_sync(b.session, clear, 1));
            check_ok(dg_session_sync(b.session, other, (size_t)cut));
            same_state(&a, &b);
        }
    /* only the root changes, or nothing does */
    memcpy(other, text, sizeof other);
    other[N_TEXT - 1] = 33;
    dg_stats before, after;
    check_ok(dg_session_sync(a.session, text, N_TEXT));
    dg_session_get_stats(a.session, &before);
    check_ok(dg_session_sync(a.session, text, N_TEXT));
    dg_session_get_stats(a.session, &after);
    assert_int_equal(after.prompt_tokens, before.prompt_tokens);
    check_ok(dg_session_sync(a.session, other, N_TEXT));
    dg_session_get_stats(a.session, &after);
    assert_int_equal(after.prompt_tokens, before.prompt_tokens + 1);
    check_ok(dg_session_sync(b.session, other, N_TEXT));
    same_state(&a, &b);
    close_setup(&a), close_setup(&b);
}

/* Nothing is committed behind a prompt of one token, so there is nothing to draft from. */
static void test_one_token(void **state) {
    (void)state;
    setup u;
    dg_tree tree;
    fixture_eagle3(made, &(fixture_head){0});
    check_ok(try_open(&u, llama, NULL));
    check_ok(dg_session_sync(u.session, text, 1));
    propose(&u, &tree, text[0]);
    assert_int_equal(tree.n, 1);
    size_t n;
    check_ok(dg_session_step(u.session, NULL, 0, &n));
    assert_int_equal(n, 1);
    propose(&u, &tree, 5);
    assert_true(tree.n > 1);
    /* cut back to one token again */
    check_ok(dg_session_sync(u.session, text, 1));
    propose(&u, &tree, text[0]);
    assert_int_equal(tree.n, 1);
    close_setup(&u);
}

static void open_gated(setup *u, const char *params) {
    check_ok(try_open(u, llama, params));
    check_ok(dg_session_sync(u->session, text, N_TEXT));
}

/* Each gate stops the drafter's own loop, keeps its number of nodes, and those are the best of what was scored. */
static void test_gates(void **state) {
    (void)state;
    static const struct {
        const char *params;
        int passes, n, stopped;
    } want[] = {{"full=1,topk=9", 9, 40, -1},
                {"full=1,topk=9,gate0=1", 1, 8, 0},
                {"full=1,topk=9,gate1=1", 2, 24, 1},
                {"full=1,topk=9,gate5=1,keep5=31", 6, 31, 5},
                {"full=1,topk=9,gate0=1e-30,gate5=1,keep0=1", 6, 40, 5}, /* the first stays open */
                {"full=1,topk=9,gate0=1e-30,gate1=1e-30,gate5=1e-30", 9, 40, -1},
                {"topk=9,depth=3,gate0=1,keep0=0", 1, 0, 0},
                {"topk=1,depth=6,full=1", 7, 7, -1},
                {"topk=1,depth=6,full=1,gate5=1,keep5=4", 6, 4, 5},
                {"topk=12,depth=0", 1, 12, -1}};
    fixture_eagle3(made, &(fixture_head){0});
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        setup u;
        dg_tree tree;
        dg_candidates c;
        open_gated(&u, want[i].params);
        propose(&u, &tree, text[N_TEXT - 1]);
        u.drafter->ops->candidates(u.drafter, &c);
        assert_int_equal(u.drafter->passes, want[i].passes);
        assert_int_equal(c.passes, want[i].passes);
        assert_int_equal(c.stopped, want[i].stopped);
        assert_int_equal(tree.n - 1, want[i].n);
        assert_int_equal(c.n, c.width + (c.passes - 1) * c.width * c.width);
        float worst = 0;
        for (int32_t k = 1; k < tree.n; k++) worst = fminf(worst, tree.score[k]);
        int32_t above = 0;
        for (int32_t k = 0; k < c.n; k++) above += c.score[k] > worst;
        assert_true(above <= want[i].n);
        assert_int_equal(dg_eagle3_kv(u.drafter)->len, N_TEXT - 1);
        assert_int_equal(dg_eagle3_kv(u.drafter)->win, 0);
        close_setup(&u);
    }
}

/* Wider where a gate stopped it: at the root the likeliest tokens of all, a level below the best of what rows have left;
 * the rules that end a chain by its entropy or its mass end it at all. */
static void test_early_stops(void **state) {
    (void)state;
    setup u;
    dg_tree tree;
    fixture_eagle3(made, &(fixture_head){0});
    open_gated(&u, "topk=5,gate0=1,keep0=255,wide=1");
    propose(&u, &tree, text[N_TEXT - 1]);
    assert_int_equal(u.drafter->passes, 1);
    assert_int_equal(tree.n, 41);
    const dg_mat logits = dg_eagle3_logits(u.drafter);
    const float *row = dg_mat_row(&logits, 0);
    float worst = INFINITY;
    for (int32_t i = 1; i < tree.n; i++) {
        assert_int_equal(tree.parent[i], 0);
        if (i > 1) assert_true(tree.score[i] <= tree.score[i - 1]);
    }
    for (int32_t i = 1; i <= 40; i++) { /* the 40th of the row */
        float best = -INFINITY;
        for (int32_t c = 0; c < logits.cols; c++)
            if (row[c] < worst && row[c] > best) best = row[c];
        worst = best;
    }
    double sum = 0;
    for (int32_t c = 0; c < logits.cols; c++) sum += exp((double)row[c]);
    assert_true(fabs((double)worst - log(sum) - (double)tree.score[40]) < 1e-4);
    close_setup(&u);

    open_gated(&u, "topk=3,gate1=1,keep1=255,wide=1");
    propose(&u, &tree, text[N_TEXT - 1]);
    assert_int_equal(u.drafter->passes, 2);
    assert_int_equal(tree.n, 41);
    int32_t deep = 0;
    for (int32_t i = 1; i < tree.n; i++) deep += tree.depth[i] == 2;
    assert_int_equal(deep, 40 - 3);
    close_setup(&u);

    open_gated(&u, "topk=5,depth=7,full=1"); /* no pass for what is too deep to become text */
    dg_tree_reset(&tree, text[N_TEXT - 1]);
    tree.deepest = 3;
    u.drafter->passes = 0;
    check_ok(u.drafter->ops->propose(u.drafter, &tree, 40));
    assert_int_equal(u.drafter->passes, 3);
    assert_int_equal(tree.n, 41);
    for (int32_t i = 1; i < tree.n; i++) assert_in_range(tree.depth[i], 1, 3);
    close_setup(&u);

    open_gated(&u, "topk=1,depth=20,full=1,svip=0.0001");
    propose(&u, &tree, text[N_TEXT - 1]);
    assert_int_equal(tree.n, 2);
    close_setup(&u);
    open_gated(&u, "topk=2,depth=20,full=1,mass=1");
    propose(&u, &tree, text[N_TEXT - 1]);
    assert_int_equal(u.drafter->passes, 2);
    close_setup(&u);
}

/* The gate compares the best path's probability at its checkpoint: just below the threshold it opens. */
static void test_gate_threshold(void **state) {
    (void)state;
    setup u;
    dg_tree tree;
    dg_candidates c;
    fixture_eagle3(made, &(fixture_head){0});
    open_gated(&u, "full=1,topk=6");
    propose(&u, &tree, text[N_TEXT - 1]);
    u.drafter->ops->candidates(u.drafter, &c);
    const int at[3] = {0, 1, 5};
    double p[3];
    for (int g = 0; g < 3; g++) {
        const int32_t from = at[g] ? c.width + (at[g] - 1) * c.width * c.width : 0, n = at[g] ? c.width * c.width : c.width;
        float best = -INFINITY;
        for (int32_t k = from; k < from + n; k++) best = fmaxf(best, c.score[k]);
        p[g] = exp((double)best);
    }
    close_setup(&u);
    assert_true(p[0] > p[1] && p[1] > p[2] && p[2] > 0);
    for (int g = 0; g < 3; g++)
        for (int over = 0; over < 2; over++) {
            char params[96];
            snprintf(params, sizeof params, "full=1,topk=6,gate%d=%.9g", at[g], p[g] * (over ? 1.001 : 0.999));
            open_gated(&u, params);
            propose(&u, &tree, text[N_TEXT - 1]);
            u.drafter->ops->candidates(u.drafter, &c);
            assert_int_equal(c.stopped, over ? at[g] : -1);
            close_setup(&u);
        }
}

/* Behind another drafter: the tree may be full, or have some of our nodes. */
static void test_second(void **state) {
    (void)state;
    setup u;
    dg_tree alone, tree;
    fixture_eagle3(made, &(fixture_head){0});
    open_gated(&u, NULL);
    propose(&u, &alone, text[N_TEXT - 1]);
    dg_tree_reset(&tree, text[N_TEXT - 1]);
    for (int i = 0; i < 40; i++) dg_tree_add(&tree, 0, i, -1, 2);
    u.drafter->passes = 0;
    check_ok(u.drafter->ops->propose(u.drafter, &tree, 40));
    assert_int_equal(u.drafter->passes, 0);
    assert_int_equal(tree.n, 41);
    dg_tree_reset(&tree, text[N_TEXT - 1]);
    dg_tree_add(&tree, 0, alone.token[1], -9, 2);
    check_ok(u.drafter->ops->propose(u.drafter, &tree, 40));
    assert_int_equal(tree.n, 41);
    assert_int_equal(tree.source[1], 2);
    for (int i = 1; i < 41; i++) assert_int_equal(tree.token[i], alone.token[i]);
    close_setup(&u);
}

/* ---- refusals --------------------------------------------------------------------------------- */

static void refuse(const fixture_head *head, const char *params, dg_status code, const char *part) {
    setup u;
    fixture_eagle3(made, head);
    check_fails(try_open(&u, llama, params), code, part);
    close_setup(&u);
}

static void test_refused(void **state) {
    (void)state;
    refuse(&(fixture_head){.bad_d2t = 5}, NULL, DG_ERR_FORMAT, "d2t[63] leads to token 132: expected 0 to 130");
    refuse(&(fixture_head){.bad_d2t = -128}, NULL, DG_ERR_FORMAT, "d2t[63] leads to token -1: expected 0 to 130");
    refuse(&(fixture_head){.bad_d2t = -2}, NULL, DG_ERR_FORMAT, "d2t[63] leads to token 125, as an earlier one does");
    refuse(&(fixture_head){.bad_t2d = 1}, NULL, DG_ERR_FORMAT, "token 127 is not in t2d but in d2t");
    refuse(&(fixture_head){.target_hidden = 64}, NULL, DG_ERR_ARGUMENT, "head for hidden size 64, the target has 48");
    refuse(&(fixture_head){.hidden = 32, .target_hidden = 48}, NULL, DG_ERR_FORMAT, "no embed_tokens.weight");
    refuse(&(fixture_head){.hidden = 32, .target_hidden = 48, .embedding = true, .no_head = true, .whole_vocabulary = true}, NULL,
           DG_ERR_FORMAT, "no lm_head.weight");
    refuse(&(fixture_head){.no_head = true, .bad_d2t = 5}, NULL, DG_ERR_FORMAT, "d2t[63] leads to token 132");
    refuse(&(fixture_head){.layers = "[1,2,4]"}, NULL, DG_ERR_ARGUMENT, "feature layer 2 is the output of layer 4");
    refuse(&(fixture_head){.layers = "[1,2]"}, NULL, DG_ERR_FORMAT, "tensor fc.weight: expected shape [48, 96]");
    refuse(&(fixture_head){.layers = "null"}, NULL, DG_ERR_ARGUMENT, "need a target of 7 layers; this one has 4");
    refuse(&(fixture_head){0}, "shift=1", DG_ERR_ARGUMENT, "output of layer 4");
    refuse(&(fixture_head){.layers = "[1,2,3]", .fc_norm = true, .norm_before_fc = true}, NULL, DG_ERR_FORMAT, "exclude");
    refuse(&(fixture_head){0}, "depth=200,topk=2", DG_ERR_ARGUMENT, "expected at most 256 rows");
    refuse(&(fixture_head){0}, "topk=65", DG_ERR_ARGUMENT, "topk=65: expected a whole number from 1 to 64");
    refuse(&(fixture_head){0}, "gate0=1.5", DG_ERR_ARGUMENT, "gate0=1.5: expected a number from 0 to 1");
    refuse(&(fixture_head){0}, "beam=3", DG_ERR_ARGUMENT, "gate0, gate1");
    setup u;
    fixture_eagle3(made, &(fixture_head){.layers = "[2,3,4]"}); /* counted as inputs: the same layers */
    check_ok(try_open(&u, llama, "shift=-1"));
    const int32_t *layer;
    assert_int_equal(u.drafter->ops->taps(u.drafter, &layer), 3);
    for (int i = 0; i < 3; i++) assert_int_equal(layer[i], i);
    close_setup(&u);
    dg_model *m;
    check_fails(dg_model_open(made, NULL, &m), DG_ERR_ARGUMENT, "is an EAGLE-3 head, not a target; use it with --draft eagle3:");
}

int main(void) {
    const char *tmp = test_tmpdir();
    snprintf(llama, sizeof llama, "%s/llama", tmp);
    snprintf(qwen3, sizeof qwen3, "%s/qwen3", tmp);
    snprintf(made, sizeof made, "%s/head", tmp);
    snprintf(converted, sizeof converted, "%s.gguf", made);
    fixture_model(llama, FIXTURE_LLAMA);
    fixture_model(qwen3, FIXTURE_QWEN3);
    const struct CMUnitTest t[] = {
        cmocka_unit_test(test_flags),  cmocka_unit_test(test_converted),      cmocka_unit_test(test_not_converted),
        cmocka_unit_test(test_rewind), cmocka_unit_test(test_one_token),
        cmocka_unit_test(test_gates),  cmocka_unit_test(test_gate_threshold), cmocka_unit_test(test_early_stops),
        cmocka_unit_test(test_second),
        cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests_name("eagle3", t, NULL, NULL);
}
