/* The successor matrix: what it learns from outcomes and which row wins, bigrams, rows and templates, files
 * good and bad, and the warm-up from text. */
#include "tests/test.h"

#include <unistd.h>

#include "graft/succ.h"
#include "runtime/target.h"
#include "tests/fixture.h"

enum { V = 31, K = DG_SUCC_WIDTH };

static dg_backend *be;

static int setup(void **state) {
    (void)state;
    const dg_backend_options opt = {.threads = 1, .max_vocab = 256};
    be = dg_backend_open("cpu", &opt, NULL);
    return be ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    dg_backend_close(be);
    return 0;
}

typedef struct matrix {
    dg_model model;
    dg_succ succ;
    void *host, *dev;
} matrix;

static void open_matrix(matrix *x, int32_t vocab, const int32_t *warm) {
    *x = (matrix){.model = {.be = be}};
    x->model.net.config.vocab_size = vocab;
    int32_t copy[64 * K];
    if (warm) memcpy(copy, warm, sizeof(int32_t) * (size_t)(vocab * K));
    x->succ = (dg_succ){.model = &x->model, .empty = -1, .source = 2, .warm = warm ? copy : NULL};
    dg_template t;
    dg_template_read(DG_TEMPLATE_GRAFT, &t);
    dg_arena host = {0}, dev = {0};
    dg_succ_layout(&x->succ, &t, &host, &dev);
    x->host = dg_mem_alloc(host.used), x->dev = dg_mem_alloc(dev.used);
    host = (dg_arena){x->host, 0, host.used}, dev = (dg_arena){x->dev, 0, dev.used};
    dg_succ_layout(&x->succ, &t, &host, &dev);
    x->succ.warm = NULL;
}

static void close_matrix(matrix *x) {
    dg_mem_free(x->host);
    dg_mem_free(x->dev);
}

static int32_t *row_of(matrix *x, int32_t token) {
    return (int32_t *)x->succ.m.data + token * x->succ.width;
}

static int32_t pick(uint64_t *seed, int32_t n) {
    return (int32_t)((test_random(seed) + 1) * 0.5f * (float)n);
}

/* Row i says 100 i, 100 i + 1, ...: so it is seen which row won. */
static dg_mat marked_rows(int32_t *id, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        for (int32_t k = 0; k < K; k++) id[i * K + k] = 100 * i + k;
    return dg_mat_make(id, DG_I32, n, K);
}

/* Token 5 stands in the tree five times; M's own nodes have source 2. */
static void test_who_wins(void **state) {
    (void)state;
    dg_tree t;
    dg_tree_reset(&t, 5);
    const int32_t a = dg_tree_add(&t, 0, 6, -0.1f, 1);
    const int32_t retrieved = dg_tree_add(&t, 0, 5, -0.2f, 2);
    const int32_t weak = dg_tree_add(&t, a, 5, -3, 1);
    const int32_t b = dg_tree_add(&t, a, 7, -1, 1);
    const int32_t good = dg_tree_add(&t, b, 5, -1.5f, 1);
    const int32_t equal = dg_tree_add(&t, retrieved, 5, -1.5f, 1);
    int32_t id[16 * K];
    const struct {
        int32_t n, path[4], winner;
    } c[] = {{1, {0}, 0},             /* the only one on the path */
             {3, {0, a, weak}, weak}, /* the deepest on the path, however weak */
             {2, {0, retrieved}, retrieved},
             {4, {0, a, b, good}, good}};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        matrix x;
        open_matrix(&x, V, NULL);
        const dg_outcome o = {
            .n = c[i].n, .token = t.token, .tree = &t, .path = c[i].path, .successor = marked_rows(id, t.n)};
        dg_succ_learn(&x.succ, &o);
        assert_int_equal(*row_of(&x, 5), 100 * c[i].winner);
        assert_int_equal(*row_of(&x, 6), 100 * a);
        assert_int_equal(*row_of(&x, 8), -1);
        close_matrix(&x);
    }
    /* off the path: drafted before retrieved, then the better score, then the lower index */
    t.token[0] = 9;
    const int32_t root[1] = {0};
    const struct {
        int32_t hide, winner;
    } off[] = {{-1, good}, {good, equal}, {equal, weak}, {weak, retrieved}};
    for (size_t i = 0; i < sizeof off / sizeof *off; i++) {
        if (off[i].hide >= 0) t.token[off[i].hide] = 10;
        matrix x;
        open_matrix(&x, V, NULL);
        const dg_outcome o = {
            .n = 1, .token = t.token, .tree = &t, .path = root, .successor = marked_rows(id, t.n)};
        dg_succ_learn(&x.succ, &o);
        assert_int_equal(*row_of(&x, 5), 100 * off[i].winner);
        close_matrix(&x);
    }
}

/* The rows of an outcome in another order leave the same M: every pair of rows of one token has a winner. */
static void test_order_does_not_matter(void **state) {
    (void)state;
    uint64_t seed = 3;
    for (int trial = 0; trial < 40; trial++) {
        dg_tree t;
        dg_tree_reset(&t, pick(&seed, 6));
        while (t.n < 40)
            dg_tree_add(&t, pick(&seed, t.n), pick(&seed, 9), -(float)pick(&seed, 4), 1 + pick(&seed, 3));
        int32_t id[40 * K], twice[40 * K];
        const int32_t path[1] = {0};
        matrix x, y;
        open_matrix(&x, V, NULL), open_matrix(&y, V, NULL);
        dg_outcome o = {
            .n = 1, .token = t.token, .tree = &t, .path = path, .successor = marked_rows(id, t.n)};
        dg_succ_learn(&x.succ, &o);
        /* the winners again, one at a time, worst first: each row of M comes from one row of the tree */
        marked_rows(twice, t.n);
        for (int32_t i = 0; i < t.n; i++) {
            const int32_t won = *row_of(&x, t.token[i]) / 100;
            assert_int_equal(t.token[won], t.token[i]);
            assert_memory_equal(row_of(&x, t.token[i]), twice + won * K, sizeof(int32_t) * K);
        }
        /* the tree with its leaves swapped about: same winners, told by their marks */
        dg_tree u = t;
        int32_t order[40];
        for (int32_t i = 0; i < 40; i++) order[i] = i;
        for (int32_t i = 39; i > 1; i--) { /* tokens and scores move, the index is only the last resort */
            const int32_t j = 1 + pick(&seed, i), k = order[i];
            order[i] = order[j], order[j] = k;
        }
        for (int32_t i = 0; i < 40; i++) {
            u.token[i] = t.token[order[i]], u.source[i] = t.source[order[i]];
            u.score[i] = t.score[order[i]] - 0.001f * (float)order[i]; /* no ties */
            memcpy(twice + i * K, id + order[i] * K, sizeof(int32_t) * K);
        }
        for (int32_t i = 0; i < 40; i++) t.score[i] -= 0.001f * (float)i;
        dg_succ_clear(&x.succ);
        dg_succ_learn(&x.succ, &o);
        o.tree = &u, o.successor = dg_mat_make(twice, DG_I32, 40, K);
        dg_succ_learn(&y.succ, &o);
        assert_memory_equal(x.succ.m.data, y.succ.m.data, sizeof(int32_t) * V * K);
        close_matrix(&x), close_matrix(&y);
    }
}

/* Against lists kept by hand, over more tokens than one call of the op takes. */
static void test_bigrams(void **state) {
    (void)state;
    enum { N = 300 };
    uint64_t seed = 8;
    int32_t text[N + 1], list[V][K];
    for (int32_t i = 0; i <= N; i++) text[i] = i % 5 == 0 ? pick(&seed, V) : pick(&seed, 4);
    memset(list, 0xff, sizeof list);
    for (int32_t i = 0; i < N; i++) {
        int32_t *l = list[text[i]], in = text[i + 1];
        for (int32_t k = 0; k < K; k++) { /* each moves down until the token's own old place */
            const int32_t out = l[k];
            l[k] = in;
            if (out == text[i + 1]) break;
            in = out;
        }
    }
    matrix x;
    open_matrix(&x, V, NULL);
    dg_mem_guard_begin();
    for (int32_t at = 0, n; at < N; at += n) {
        n = 1 + pick(&seed, 150);
        if (n > N - at) n = N - at;
        const dg_outcome o = {
            .n = n, .token = text + at, .first = at, .next = text[at + n]}; /* prefill without logits */
        dg_succ_learn(&x.succ, &o);
    }
    dg_mem_guard_end();
    assert_memory_equal(x.succ.m.data, list, sizeof list);

    int32_t token[100], row[100 * K];
    for (int32_t i = 0; i < 100; i++) token[i] = pick(&seed, V);
    dg_succ_rows(&x.succ, token, 100, row);
    for (int32_t i = 0; i < 100; i++) assert_memory_equal(row + i * K, list[token[i]], sizeof list[0]);

    dg_template t;
    dg_template_read(DG_TEMPLATE_GRAFT, &t);
    int32_t id[53], found = 0;
    for (int32_t n = 0; n <= 52; n += 13) {
        id[0] = 3;
        dg_succ_expand(&x.succ, 3, n, id + 1);
        for (int32_t i = 1; i <= n; i++) {
            const int32_t from = id[t.parent[i - 1]], want = from < 0 ? -1 : list[from][t.rank[i - 1]];
            assert_int_equal(id[i], want);
            found += want >= 0;
        }
    }
    assert_true(found > 40);
    close_matrix(&x);
}

/* ---- files ---- */

static char path[512];

static void write_bytes(const void *p, size_t n) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    fclose(f);
}

static size_t read_bytes(char *p, size_t cap) {
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    const size_t n = fread(p, 1, cap, f);
    fclose(f);
    return n;
}

static void test_file(void **state) {
    (void)state;
    snprintf(path, sizeof path, "%s/m", test_tmpdir());
    matrix x, y;
    open_matrix(&x, V, NULL);
    const int32_t text[] = {3, 4, 3, 5, 3, 30, 0, 1, 2, 3};
    dg_succ_push(&x.succ, text, 10, 7);
    check_ok(dg_succ_save(&x.succ, path));
    const int64_t live = dg_mem_live();
    int32_t *warm = NULL;
    check_ok(dg_succ_read(&x.model, path, &warm));
    open_matrix(&y, V, warm);
    assert_memory_equal(x.succ.m.data, y.succ.m.data, sizeof(int32_t) * V * K);
    assert_int_equal(row_of(&y, 3)[0], 7);
    dg_mem_free(warm);
    close_matrix(&y);
    assert_int_equal(dg_mem_live(), live);

    static char good[4096], bad[4096];
    const size_t n = read_bytes(good, sizeof good);
    assert_int_equal(n, 32 + V * K * 4);
    warm = NULL;
    for (size_t cut = 8; cut < n;
         cut += cut < 40 ? 1 : 97) { /* at 0..7 bytes it is no longer known for what it is */
        write_bytes(good, cut);
        check_fails(dg_succ_read(&x.model, path, &warm), DG_ERR_FORMAT, path);
    }
    const struct {
        size_t at;
        char value;
        const char *message;
    } damage[] = {{8, 2, "version"},   {12, 30, "vocabulary of 30"}, {16, 4, "another model"},
                  {24, 0, "checksum"}, {40, 99, "checksum"},         {n - 1, 1, "checksum"}};
    for (size_t i = 0; i < sizeof damage / sizeof *damage; i++) {
        memcpy(bad, good, n);
        bad[damage[i].at] =
            (char)(bad[damage[i].at] == damage[i].value ? damage[i].value + 1 : damage[i].value);
        write_bytes(bad, n);
        check_fails(dg_succ_read(&x.model, path, &warm), DG_ERR_FORMAT, damage[i].message);
    }
    memcpy(bad, good, n);
    write_bytes(bad, n);
    bad[n] = 0;
    write_bytes(bad, n + 1);
    check_fails(dg_succ_read(&x.model, path, &warm), DG_ERR_FORMAT, "expected 1024 bytes, found 1025");

    /* a well-formed file with a token that the vocabulary does not have */
    *row_of(&x, 12) = V;
    check_ok(dg_succ_save(&x.succ, path));
    check_fails(dg_succ_read(&x.model, path, &warm), DG_ERR_FORMAT, "successor 0 of token 12 is 31");
    assert_null(warm);
    check_fails(dg_succ_read(&x.model, "no/such/file", &warm), DG_ERR_IO, "no/such/file");
    check_fails(dg_succ_save(&x.succ, "no/such/file"), DG_ERR_IO, "no/such/file");
    close_matrix(&x);
    assert_int_equal(dg_mem_live(), live - 2);
}

static void test_text(void **state) {
    (void)state;
    char dir[512];
    snprintf(dir, sizeof dir, "%s/target", test_tmpdir());
    fixture_model(dir, FIXTURE_LLAMA);
    dg_model *m = NULL;
    check_ok(dg_model_open(dir, NULL, &m));
    snprintf(path, sizeof path, "%s/text", test_tmpdir());
    const char text[] = "XYXZXYXYXZXWXAXBXCXDXEXF";
    write_bytes(text, sizeof text - 1);
    const int64_t live = dg_mem_live();
    int32_t *warm = NULL;
    check_ok(dg_succ_read(m, path, &warm));
    const int32_t x = 2 + 'X' - 33; /* the fixture's bytes are in order */
    const char want[] = "YZWABCDE"; /* by count, then in the order of ids; F has no room */
    int32_t ids[8];
    for (int i = 0; i < 8; i++) ids[i] = 2 + want[i] - 33;
    assert_int_equal(warm[x * K], ids[0]);
    assert_int_equal(warm[x * K + 1], ids[1]);
    for (int i = 2; i < 8; i++) { /* counts of one: any order, but each once */
        int seen = 0;
        for (int k = 2; k < 8; k++) seen += warm[x * K + k] == 2 + "WABCDEF"[i - 2] - 33;
        if (i < 7) assert_true(seen <= 1);
    }
    assert_int_equal(warm[ids[0] * K], x);
    assert_int_equal(warm[ids[0] * K + 1], -1);
    assert_int_equal(warm[(2 + 'Q' - 33) * K], -1);
    dg_mem_free(warm);
    warm = NULL;

    write_bytes("ab\xff", 3);
    check_fails(dg_succ_read(m, path, &warm), DG_ERR_FORMAT, "neither");
    write_bytes("ab\0cd", 5);
    check_fails(dg_succ_read(m, path, &warm), DG_ERR_FORMAT, "neither");
    write_bytes("ab\xc3", 3);
    check_fails(dg_succ_read(m, path, &warm), DG_ERR_FORMAT, "neither");
    write_bytes("a", 1);
    check_fails(dg_succ_read(m, path, &warm), DG_ERR_FORMAT, "a text of 1 tokens");
    write_bytes(text, sizeof text - 1);
    dg_tokenizer *tokenizer = m->tokenizer;
    m->tokenizer = NULL;
    check_fails(dg_succ_read(m, path, &warm), DG_ERR_UNSUPPORTED, "no tokenizer");
    m->tokenizer = tokenizer;
    for (uint64_t nth = 1; nth <= 4; nth++) {
        dg_mem_fail_nth(nth, 1);
        const dg_status st = dg_succ_read(m, path, &warm);
        dg_mem_fail_nth(0, 0);
        assert_int_equal(st, DG_ERR_MEMORY);
    }
    assert_null(warm);
    assert_int_equal(dg_mem_live(), live);
    dg_model_close(m);
}

int main(void) {
    const struct CMUnitTest t[] = {
        cmocka_unit_test(test_who_wins), cmocka_unit_test(test_order_does_not_matter),
        cmocka_unit_test(test_bigrams), cmocka_unit_test(test_file), cmocka_unit_test(test_text)};
    return cmocka_run_group_tests_name("successor matrix", t, setup, teardown);
}
