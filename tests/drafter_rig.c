/* See drafter_rig.h. */
#include "tests/drafter_rig.h"

#include "tests/test.h"

void rig_open(rig *r, const dg_drafter_ops *ops, int32_t vocab, const char *params) {
    rig_open_calibrated(r, ops, vocab, params, NULL);
}

void rig_open_calibrated(rig *r, const dg_drafter_ops *ops, int32_t vocab, const char *params, const dg_calibration *c) {
    *r = (rig){0};
    const dg_backend_options opt = {.threads = 1, .max_vocab = 256};
    r->model.be = dg_backend_open("cpu", &opt, NULL);
    assert_non_null(r->model.be);
    r->model.net.config.vocab_size = vocab;
    r->env = (dg_drafter_env){.model = &r->model,
                              .params = params,
                              .context = 2048,
                              .budget = DG_TREE_MAX - 1,
                              .max_rows = 256,
                              .source = 3,
                              .offer = &r->offer,
                              .calibration = c};
    check_ok(ops->open(&r->env, &r->drafter));
    dg_arena host = {0}, dev = {0};
    ops->layout(r->drafter, &host, &dev);
    r->host = dg_mem_calloc(1, host.used), r->dev = dg_mem_calloc(1, dev.used);
    host = (dg_arena){r->host, 0, host.used}, dev = (dg_arena){r->dev, 0, dev.used};
    ops->layout(r->drafter, &host, &dev);
}

void rig_close(rig *r) {
    r->drafter->ops->close(r->drafter);
    dg_mem_free(r->host), dg_mem_free(r->dev);
    dg_backend_close(r->model.be);
}

void rig_read(rig *r, const int32_t *token, int32_t n, int32_t next) {
    const dg_outcome o = {.n = n, .token = token, .first = r->n, .next = next};
    dg_mem_guard_begin();
    check_ok(r->drafter->ops->observe(r->drafter, &o));
    dg_mem_guard_end();
    r->n += n;
}

void rig_propose(rig *r, dg_tree *t, int32_t budget) {
    dg_mem_guard_begin();
    check_ok(r->drafter->ops->propose(r->drafter, t, budget));
    dg_mem_guard_end();
    rig_check_tree(t, budget);
}

void rig_check_tree(const dg_tree *t, int32_t budget) {
    assert_in_range(t->n, 1, budget + 1);
    assert_int_equal(t->parent[0], -1);
    for (int32_t i = 1; i < t->n; i++) {
        assert_in_range(t->parent[i], 0, i - 1);
        assert_int_equal(t->depth[i], t->depth[t->parent[i]] + 1);
        assert_true(t->score[i] <= t->score[t->parent[i]]);
        assert_int_equal(dg_tree_child(t, t->parent[i], t->token[i]), i);
    }
}
