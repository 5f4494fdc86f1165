/* Token Recycling: template, expansion and update of the matrix against the original's recorded loop, and the
 * drafter in that loop. */
#include "tests/test.h"

#include "graft/succ.h"
#include "runtime/target.h"
#include "runtime/verify.h"

extern const dg_drafter_ops dg_recycling;

enum { NODES = DG_TEMPLATE_RECYCLING_NODES, ROWS = NODES + 1, K = DG_SUCC_WIDTH };

static bool have;
static dg_backend *be;

static int setup(void **state) {
    (void)state;
    have = golden_have("recycling/recycling.json");
    const dg_backend_options opt = {.threads = 1, .max_vocab = 64};
    be = dg_backend_open("cpu", &opt, NULL);
    return be ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    dg_backend_close(be);
    return 0;
}

static int32_t get_int(const json_t *object, const char *key) {
    assert_true(json_is_integer(json_object_get(object, key)));
    return (int32_t)json_integer_value(json_object_get(object, key));
}

/* An array of n integers, or of n arrays of K of them, into to. */
static void read_ints(const json_t *array, size_t n, int32_t *to) {
    assert_int_equal(json_array_size(array), n);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(array, i);
        if (json_is_array(v)) {
            read_ints(v, K, to + i * K);
        } else {
            assert_true(json_is_integer(v));
            to[i] = (int32_t)json_integer_value(v);
        }
    }
}

static void test_template(void **state) {
    (void)state;
    if (!have) skip();
    json_t *j = golden_json("recycling/recycling.json");
    const json_t *t = json_object_get(j, "template");
    int32_t parent[ROWS], rank[ROWS];
    read_ints(json_object_get(t, "parent"), ROWS, parent);
    read_ints(json_object_get(t, "rank"), ROWS, rank);
    dg_template own;
    dg_template_read(DG_TEMPLATE_RECYCLING, &own);
    assert_int_equal(own.n, NODES);
    for (int32_t i = 0; i < NODES; i++) {
        assert_int_equal(own.parent[i], parent[i + 1]);
        assert_int_equal(own.rank[i], rank[i + 1]);
    }
    json_decref(j);
}

typedef struct matrix {
    dg_model model;
    dg_succ succ;
    void *host, *dev;
} matrix;

static void open_matrix(matrix *x, int32_t vocab) {
    *x = (matrix){.model = {.be = be}};
    x->model.net.config.vocab_size = vocab;
    x->succ = (dg_succ){.model = &x->model, .by_row = true};
    dg_template t;
    dg_template_read(DG_TEMPLATE_RECYCLING, &t);
    dg_arena host = {0}, dev = {0};
    dg_succ_layout(&x->succ, &t, &host, &dev);
    x->host = dg_mem_alloc(host.used), x->dev = dg_mem_alloc(dev.used);
    host = (dg_arena){x->host, 0, host.used}, dev = (dg_arena){x->dev, 0, dev.used};
    dg_succ_layout(&x->succ, &t, &host, &dev);
}

static void close_matrix(matrix *x) {
    dg_mem_free(x->host);
    dg_mem_free(x->dev);
}

static void test_expand(void **state) {
    (void)state;
    if (!have) skip();
    json_t *j = golden_json("recycling/recycling.json"), *c;
    size_t i;
    json_array_foreach(json_object_get(j, "expand"), i, c) {
        const int32_t vocab = get_int(c, "V");
        int32_t want[ROWS], got[NODES];
        matrix x;
        open_matrix(&x, vocab);
        read_ints(json_object_get(c, "matrix"), (size_t)vocab, x.succ.m.data);
        read_ints(json_object_get(c, "tree_tokens"), ROWS, want);
        assert_int_equal(want[0], get_int(c, "root"));
        dg_succ_expand(&x.succ, want[0], NODES, got);
        assert_memory_equal(got, want + 1, sizeof got);
        close_matrix(&x);
    }
    assert_true(i > 0);
    json_decref(j);
}

/* The recorded loop: every tree, and every row of the matrix after every round. */
static void replay(const json_t *run) {
    const int32_t vocab = get_int(run, "V");
    int32_t tokens[ROWS], got[NODES], top[ROWS * K], shadow[64 * K] = {0};
    matrix x;
    open_matrix(&x, vocab);
    const json_t *rounds = json_object_get(run, "rounds");
    for (size_t r = 0; r < json_array_size(rounds); r++) {
        const json_t *round = json_array_get(rounds, r);
        read_ints(json_object_get(round, "tree_tokens"), ROWS, tokens);
        dg_succ_expand(&x.succ, tokens[0], NODES, got);
        assert_memory_equal(got, tokens + 1, sizeof got);
        if (r + 1 == json_array_size(rounds)) break; /* the original does not learn from its last round */
        read_ints(json_object_get(round, "topk"), ROWS, top);

        dg_tree t = {.n = ROWS}; /* as the original has it: with the same token twice among siblings */
        memcpy(t.token, tokens, sizeof tokens);
        const int32_t path[1] = {0};
        const dg_outcome o = {.n = 1,
                              .token = tokens,
                              .tree = &t,
                              .path = path,
                              .successor = dg_mat_make(top, DG_I32, ROWS, K)};
        dg_succ_learn(&x.succ, &o);
        const char *key;
        json_t *row;
        json_object_foreach(json_object_get(round, "rows_changed"), key, row)
            read_ints(row, K, shadow + K * atoi(key));
        assert_memory_equal(x.succ.m.data, shadow, sizeof(int32_t) * (size_t)(vocab * K));
    }
    read_ints(json_object_get(run, "matrix_final"), (size_t)vocab, shadow);
    assert_memory_equal(x.succ.m.data, shadow, sizeof(int32_t) * (size_t)(vocab * K));
    close_matrix(&x);
}

/* The original's tree with equal siblings merged. */
static void check_tree(const dg_tree *t, const int32_t *tokens, const dg_template *template) {
    int32_t node[ROWS] = {0};
    bool seen[DG_TREE_MAX] = {true};
    int32_t distinct = 1;
    for (int32_t i = 0; i < NODES; i++) {
        const int32_t at = node[i + 1] = dg_tree_child(t, node[template->parent[i]], tokens[i + 1]);
        assert_true(at > 0);
        distinct += !seen[at];
        seen[at] = true;
    }
    assert_int_equal(t->n, distinct);
}

/* The drafter in a loop of ours, on a model whose logits depend on the token alone. */
static void redraw(const json_t *run, const int32_t *top) {
    dg_model model = {.be = be};
    model.net.config.vocab_size = get_int(run, "V");
    const dg_drafter_env env = {.model = &model, .context = 256, .budget = NODES, .source = 1};
    dg_template template;
    dg_template_read(DG_TEMPLATE_RECYCLING, &template);
    dg_drafter *d = NULL;
    check_ok(dg_recycling.open(&env, &d));
    dg_arena host = {0}, dev = {0};
    dg_recycling.layout(d, &host, &dev);
    void *host_block = dg_mem_alloc(host.used), *dev_block = dg_mem_alloc(dev.used);
    host = (dg_arena){host_block, 0, host.used}, dev = (dg_arena){dev_block, 0, dev.used};
    dg_recycling.layout(d, &host, &dev);

    const json_t *rounds = json_object_get(run, "rounds");
    int32_t tokens[ROWS], first = 0, root = -1;
    for (size_t r = 0; r < json_array_size(rounds); r++) {
        const json_t *round = json_array_get(rounds, r);
        read_ints(json_object_get(round, "tree_tokens"), ROWS, tokens);
        if (root >= 0) assert_int_equal(root, tokens[0]);
        dg_tree t;
        dg_tree_reset(&t, tokens[0]);
        dg_mem_guard_begin();
        check_ok(dg_recycling.propose(d, &t, NODES));
        check_tree(&t, tokens, &template);
        int32_t sampled[DG_TREE_MAX], text[DG_TREE_MAX], rows[DG_TREE_MAX * K];
        for (int32_t i = 0; i < t.n; i++) {
            sampled[i] = top[t.token[i] * K];
            memcpy(rows + i * K, top + t.token[i] * K, K * sizeof *rows);
        }
        dg_walk w;
        dg_verify(&t, sampled, &w);
        assert_int_equal(w.n, get_int(round, "accepted"));
        for (int32_t i = 0; i < w.n; i++) text[i] = t.token[w.path[i]];
        const dg_outcome o = {.n = w.n,
                              .token = text,
                              .first = first,
                              .next = w.next,
                              .tree = &t,
                              .path = w.path,
                              .successor = dg_mat_make(rows, DG_I32, t.n, K)};
        check_ok(dg_recycling.observe(d, &o));
        dg_mem_guard_end();
        first += w.n;
        root = w.next;
    }
    dg_recycling.close(d);
    dg_mem_free(host_block), dg_mem_free(dev_block);
}

static void test_runs(void **state) {
    (void)state;
    if (!have) skip();
    json_t *j = golden_json("recycling/recycling.json"), *run;
    size_t i;
    int n_redrawn = 0;
    json_array_foreach(json_object_get(j, "runs"), i, run) {
        replay(run);
        const char *name = json_string_value(json_object_get(run, "logits_by_token"));
        if (!name) continue;
        dg_file *f = golden_tensors("recycling/%s.safetensors", name);
        const int32_t vocab = get_int(run, "V");
        float logits[64 * 64];
        int32_t top[64 * K];
        memcpy(logits, golden_f32(f, "logits_by_token", NULL), sizeof(float) * (size_t)(vocab * vocab));
        be->ops->top_k(be, top, NULL, dg_mat_make(logits, DG_F32, vocab, vocab), K);
        redraw(run, top);
        dg_file_close(f);
        n_redrawn++;
    }
    assert_int_equal(n_redrawn, 3);
    json_decref(j);
}

int main(void) {
    const struct CMUnitTest t[] = {cmocka_unit_test(test_template), cmocka_unit_test(test_expand),
                                   cmocka_unit_test(test_runs)};
    return cmocka_run_group_tests_name("recycling", t, setup, teardown);
}
