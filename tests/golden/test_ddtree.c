/* The original DDTree on random lattices and on the tiny DFlash drafters: trees, visibility, walks and whole
 * runs. */
#include "tests/test.h"

#include <math.h>

#include "dflash/best_first.h"
#include "runtime/verify.h"

static bool have;

static int setup(void **state) {
    (void)state;
    have = golden_have("ddtree/random.json");
    return 0;
}

static json_t *get(const json_t *object, const char *key) {
    json_t *v = json_object_get(object, key);
    if (!v) fail_msg("no field %s", key);
    return v;
}

static int32_t get_int(const json_t *object, const char *key) {
    return (int32_t)json_integer_value(get(object, key));
}

static int32_t *get_ints(const json_t *object, const char *key, size_t *n) {
    return json_ints(get(object, key), n);
}

/* Tree as the vectors write it: parents per row (the root's is -1), tokens and depths per other node. */
static void check_tree(const dg_tree *t, const json_t *c, const char *tokens) {
    size_t n_token, n_depth, n_parent;
    int32_t *token = get_ints(c, tokens, &n_token), *depth = get_ints(c, "node_depths", &n_depth);
    int32_t *parent = get_ints(c, "parents", &n_parent);
    assert_int_equal(t->n, n_parent);
    assert_int_equal(t->n, n_token + 1);
    assert_int_equal(t->n, n_depth + 1);
    for (int32_t i = 0; i < t->n; i++) {
        assert_int_equal(t->parent[i], parent[i]);
        if (i == 0) continue;
        assert_int_equal(t->token[i], token[i - 1]);
        assert_int_equal(t->depth[i], depth[i - 1]);
    }
    free(token), free(depth), free(parent);
}

static void check_positions(const dg_tree *t, const json_t *c) {
    size_t n;
    int32_t *pos = get_ints(c, "verify_positions_minus_start", &n);
    assert_int_equal(t->n, n);
    for (int32_t i = 0; i < t->n; i++) assert_int_equal(t->depth[i], pos[i]);
    free(pos);
}

static int32_t check_visibility(const dg_tree *t, const json_t *c) {
    const json_t *rows = json_object_get(c, "visibility");
    if (!json_is_array(rows)) return 0;
    assert_int_equal(json_array_size(rows), t->n);
    static uint64_t bits[DG_TREE_MAX][DG_MASK_WORDS];
    memset(bits, 0xff, sizeof bits);
    dg_tree_bits(t, bits);
    for (int32_t i = 0; i < t->n; i++) {
        const char *row = json_string_value(json_array_get(rows, (size_t)i));
        assert_int_equal(strlen(row), t->n);
        for (int32_t j = 0; j < DG_TREE_MAX; j++)
            assert_int_equal(bits[i][j / 64] >> (j % 64) & 1, j < t->n && row[j] == '1');
    }
    return t->n;
}

static void check_walk(const dg_tree *t, const json_t *w, int32_t *next) {
    size_t n_sampled, n_accepted;
    int32_t *sampled = get_ints(w, "target_argmax", &n_sampled),
            *accepted = get_ints(w, "accepted", &n_accepted);
    assert_int_equal(n_sampled, t->n);
    dg_walk walk;
    dg_verify(t, sampled, &walk);
    assert_int_equal(walk.n, n_accepted);
    for (int32_t i = 0; i < walk.n; i++) assert_int_equal(walk.path[i], accepted[i]);
    *next = walk.next;
    free(sampled), free(accepted);
}

static void check_walks(const dg_tree *t, const json_t *c) {
    size_t i;
    json_t *w;
    json_array_foreach(get(c, "walks"), i, w) {
        int32_t next;
        check_walk(t, w, &next);
        assert_int_equal(next, get_int(w, "next"));
    }
}

/* The lattice of logits [L, V] whose candidates are the recorded topk_ids: log-softmax in float. */
static void make_lattice(dg_lattice *l, const float *logits, int32_t vocab, const json_t *topk) {
    l->n_depth = (int32_t)json_array_size(topk);
    l->width = (int32_t)json_array_size(json_array_get(topk, 0));
    int32_t *id = malloc((size_t)(l->n_depth * l->width + 1) * sizeof *id);
    float *logp = malloc((size_t)(l->n_depth * l->width + 1) * sizeof *logp);
    for (int32_t d = 0; d < l->n_depth; d++) {
        const float *row = logits + (size_t)d * (size_t)vocab;
        double max = -INFINITY, sum = 0;
        for (int32_t v = 0; v < vocab; v++) max = fmax(max, (double)row[v]);
        for (int32_t v = 0; v < vocab; v++) sum += exp((double)row[v] - max);
        const float lse = (float)(max + log(sum));
        size_t n;
        int32_t *ids = json_ints(json_array_get(topk, (size_t)d), &n);
        assert_int_equal(n, l->width);
        for (int32_t r = 0; r < l->width; r++) {
            id[d * l->width + r] = ids[r];
            logp[d * l->width + r] = row[ids[r]] - lse;
        }
        free(ids);
    }
    l->id = id, l->logp = logp;
}

static void check_case(const json_t *c, const dg_file *f, const char *tensor, int32_t *compared) {
    const dg_file_tensor *shape = dg_file_find(f, tensor);
    assert_non_null(shape);
    const float *logits = golden_f32(f, tensor, NULL);
    dg_lattice l = {0};
    dg_best_first scratch;
    dg_tree t;
    make_lattice(&l, logits, (int32_t)shape->dim[1], get(c, "topk_ids"));
    const int32_t budget = get_int(c, "budget");
    if (budget > 0) assert_int_equal(l.n_depth, get_int(c, "depth_limit"));
    dg_tree_reset(&t, 0);
    dg_best_first_fill(&scratch, &t, &l, budget, 0, 1);
    check_tree(&t, c, "node_tokens");
    check_positions(&t, c);
    *compared += check_visibility(&t, c);
    check_walks(&t, c);
    free((void *)l.id), free((void *)l.logp);
}

static void test_random_lattices(void **state) {
    (void)state;
    if (!have) skip();
    json_t *j = golden_json("ddtree/random.json");
    dg_file *f = golden_tensors("ddtree/random.safetensors");
    int32_t n = 0, compared = 0;
    size_t i;
    json_t *c;
    json_array_foreach(get(j, "cases"), i, c) {
        check_case(c, f, json_string_value(get(c, "lattice")), &compared);
        n++;
    }
    assert_true(n > 0 && compared > 0);
    dg_file_close(f);
    json_decref(j);
}

static void test_dflash_trees(void **state) {
    (void)state;
    if (!have) skip();
    json_t *j = golden_json("ddtree/dflash.json");
    int32_t n = 0, compared = 0;
    size_t i;
    json_t *c;
    json_array_foreach(get(j, "trees"), i, c) {
        dg_file *f = golden_tensors("dflash/%s/expected.safetensors", json_string_value(get(c, "drafter")));
        check_case(c, f, json_string_value(get(c, "tensor")), &compared);
        dg_file_close(f);
        n++;
    }
    assert_true(n > 0 && compared > 0);
    json_decref(j);
}

/* Every round of whole runs: the recorded tree, walked over the recorded choices of the target, yields the
 * recorded text. Rebuilding through dg_tree_add also shows that no node is a duplicate. */
static void test_runs(void **state) {
    (void)state;
    if (!have) skip();
    json_t *j = golden_json("ddtree/dflash.json");
    size_t g, r, n_rounds = 0;
    json_t *run, *round;
    json_array_foreach(get(j, "generate"), g, run) {
        size_t n_prompt, n_out, n_len;
        int32_t *prompt = get_ints(run, "prompt", &n_prompt), *out = get_ints(run, "output_ids", &n_out);
        int32_t *length = get_ints(run, "acceptance_lengths", &n_len);
        size_t at = n_prompt + 1; /* output[n_prompt] is the first root */
        free(prompt);
        json_array_foreach(get(run, "rounds"), r, round) {
            size_t n, n_parent;
            int32_t *token = get_ints(round, "node_token_ids", &n),
                    *parent = get_ints(round, "parents", &n_parent);
            dg_tree t;
            dg_tree_reset(&t, out[at - 1]);
            for (size_t i = 0; i < n; i++)
                assert_int_equal(dg_tree_add(&t, parent[i + 1], token[i], 0, 1), i + 1);
            check_tree(&t, round, "node_token_ids");
            int32_t next;
            check_walk(&t, round, &next);
            size_t n_path;
            int32_t *path = get_ints(round, "accepted", &n_path);
            assert_int_equal(n_path, length[r]);
            for (size_t i = 1; i < n_path; i++, at++)
                if (at < n_out) assert_int_equal(t.token[path[i]], out[at]);
            if (at < n_out) assert_int_equal(next, out[at]);
            at++;
            free(token), free(parent), free(path);
            n_rounds++;
        }
        assert_int_equal(n_len, json_array_size(get(run, "rounds")));
        assert_true(at >= n_out);
        free(out), free(length);
    }
    assert_true(n_rounds > 0);
    json_decref(j);
}

int main(void) {
    const struct CMUnitTest t[] = {cmocka_unit_test(test_random_lattices),
                                   cmocka_unit_test(test_dflash_trees), cmocka_unit_test(test_runs)};
    return cmocka_run_group_tests_name("ddtree", t, setup, NULL);
}
