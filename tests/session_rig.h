/* Sessions of one fixture model behind one prompt, and what plain decoding says there. */
#ifndef DG_TEST_SESSION_RIG_H
#define DG_TEST_SESSION_RIG_H

#include "runtime/session.h"
#include "tests/fixture.h"
#include "tests/test.h"
#include "tests/toy_drafters.h"

static dg_model *model;

enum { N_PROMPT = 12, CONTEXT = 96, N_NEW = 48 };
static const int32_t prompt[N_PROMPT] = {40, 71, 96, 101, 13, 96, 99, 120, 96, 55, 41, 96};

static inline dg_session *create(const dg_session_options *o) {
    dg_session *s = NULL;
    check_ok(dg_session_create(model, o, &s));
    return s;
}

/* Plain text of n tokens behind the prompt. */
static inline void plain(int32_t *out, size_t n, float temperature, uint64_t seed) {
    const dg_session_options o = {.context = CONTEXT, .ignore_stop_tokens = true,
                                  .sampler = {.temperature = temperature, .seed = seed}};
    dg_session *s = create(&o);
    check_ok(dg_session_sync(s, prompt, N_PROMPT));
    check_ok(dg_session_generate(s, n, NULL, NULL, NULL));
    size_t total;
    const int32_t *t = dg_session_tokens(s, &total);
    assert_int_equal(total, N_PROMPT + n);
    memcpy(out, t + N_PROMPT, n * sizeof *out);
    dg_session_free(s);
}

static const dg_draft oracle = {"oracle", NULL, NULL};

static inline dg_session *drafted(size_t budget, const char *const *stop, size_t n_stop, bool ignore) {
    const dg_session_options o = {.context = CONTEXT, .budget = (int32_t)budget, .draft = &oracle, .n_draft = 1, .stop = stop,
                                  .n_stop = n_stop, .ignore_stop_tokens = ignore};
    return create(&o);
}

#endif
