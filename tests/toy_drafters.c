/* See toy_drafters.h. */
#include "tests/toy_drafters.h"

#include "runtime/target.h"
#include "tests/test.h"

enum { MAX_SEQ = 8, MAX_LEN = 512 };

static int32_t truth[MAX_SEQ][MAX_LEN];
static int32_t truth_len[MAX_SEQ];

void toy_oracle_knows(int which, const int32_t *prompt, int32_t n_prompt, const int32_t *answer, int32_t n) {
    assert_true(which < MAX_SEQ && n_prompt + n <= MAX_LEN);
    memcpy(truth[which], prompt, (size_t)n_prompt * sizeof *prompt);
    memcpy(truth[which] + n_prompt, answer, (size_t)n * sizeof *answer);
    truth_len[which] = n_prompt + n;
}

typedef struct toy {
    dg_drafter base;
    int32_t *seen; /* committed tokens */
    int32_t n, vocab;
    uint64_t seed;
} toy;

static dg_status toy_open(const dg_drafter_env *env, const dg_drafter_ops *ops, dg_drafter **out) {
    toy *d = dg_mem_calloc(1, sizeof *d);
    DG_CHECK(d, DG_ERR_MEMORY, "no memory");
    d->base.ops = ops;
    d->base.env = env;
    d->vocab = env->model->net.config.vocab_size;
    d->seed = 9;
    *out = &d->base;
    return DG_OK;
}

static void toy_layout(dg_drafter *b, dg_arena *host, dg_arena *dev) {
    (void)dev;
    ((toy *)b)->seen = dg_arena_take(host, (size_t)b->env->context + 1, sizeof(int32_t));
}

/* Contract: in order, without gaps, `next` follows. */
static dg_status toy_observe(dg_drafter *b, const dg_outcome *o) {
    toy *d = (toy *)b;
    assert_int_equal(o->first, d->n);
    memcpy(d->seen + d->n, o->token, (size_t)o->n * sizeof *o->token);
    d->n += o->n;
    return DG_OK;
}

static void toy_rewind(dg_drafter *b, int32_t len) { ((toy *)b)->n = len; }
static void toy_close(dg_drafter *b) { dg_mem_free(b); }

/* The sequence whose beginning is what was seen and the root. */
static const int32_t *find_truth(const toy *d, int32_t root, int32_t *n) {
    for (int i = 0; i < MAX_SEQ; i++)
        if (truth_len[i] > d->n && truth[i][d->n] == root && !memcmp(truth[i], d->seen, (size_t)d->n * sizeof(int32_t))) {
            *n = truth_len[i] - d->n - 1;
            return truth[i] + d->n + 1;
        }
    *n = 0;
    return NULL;
}

static dg_status oracle_propose(dg_drafter *b, dg_tree *t, int32_t budget) {
    const toy *d = (const toy *)b;
    int32_t n;
    const int32_t *next = find_truth(d, t->token[0], &n);
    int32_t node = 0;
    for (int32_t i = 0; i < n && t->n <= budget; i++) node = dg_tree_add(t, node, next[i], 0, b->env->source);
    return DG_OK;
}

static dg_status liar_propose(dg_drafter *b, dg_tree *t, int32_t budget) {
    const toy *d = (const toy *)b;
    int32_t n;
    const int32_t *next = find_truth(d, t->token[0], &n);
    int32_t node = 0;
    for (int32_t i = 0; i < n && t->n <= budget; i++)
        node = dg_tree_add(t, node, (next[i] + 1) % d->vocab, -1, b->env->source);
    return DG_OK;
}

static dg_status random_propose(dg_drafter *b, dg_tree *t, int32_t budget) {
    toy *d = (toy *)b;
    for (int32_t i = 0; i < 4 * budget && t->n <= budget; i++) {
        const int32_t parent = (int32_t)((test_random(&d->seed) + 1) * 0.49f * (float)t->n);
        const int32_t token = (int32_t)((test_random(&d->seed) + 1) * 0.49f * (float)d->vocab);
        dg_tree_add(t, parent, token, test_random(&d->seed) * 5, b->env->source);
    }
    return DG_OK;
}

static dg_status oracle_open(const dg_drafter_env *env, dg_drafter **out);
static dg_status liar_open(const dg_drafter_env *env, dg_drafter **out);
static dg_status random_open(const dg_drafter_env *env, dg_drafter **out);

#define TOY(toy_name)                                                                                                      \
    static const dg_drafter_ops toy_name = {.name = #toy_name, .help = "", .open = toy_name##_open, .layout = toy_layout,  \
                                            .observe = toy_observe, .propose = toy_name##_propose, .rewind = toy_rewind,   \
                                            .close = toy_close};                                                           \
    static dg_status toy_name##_open(const dg_drafter_env *env, dg_drafter **out) { return toy_open(env, &toy_name, out); }
TOY(oracle)
TOY(liar)

static const dg_drafter_ops random_ops = {.name = "random", .help = "", .open = random_open, .layout = toy_layout,
                                          .observe = toy_observe, .propose = random_propose, .rewind = toy_rewind,
                                          .close = toy_close};
static dg_status random_open(const dg_drafter_env *env, dg_drafter **out) { return toy_open(env, &random_ops, out); }

void toy_drafters_register(void) {
    dg_test_drafter[0] = &oracle;
    dg_test_drafter[1] = &liar;
    dg_test_drafter[2] = &random_ops;
}
