/* A session: one timeline of tokens, its caches and drafters, and the round loop.
 *
 * Invariant between calls: the text is token[0..n_token); the target's cache and every drafter hold
 * token[0..n_token-1), and the last token is the root of the next round. So a prompt is "all but its last token in
 * prefill", and prefill needs no logits at all. */
#ifndef DG_SESSION_H
#define DG_SESSION_H

#include "runtime/budget.h"
#include "runtime/calibration.h"
#include "runtime/drafter.h"
#include "runtime/target.h"
#include "runtime/text.h"
#include "runtime/verify.h"

enum { DG_MAX_DRAFTERS = DG_STATS_SOURCES, DG_AUTO_BUDGET = 63, DG_HEAD_ROWS = 64 };

/* What the target says behind each row of a round: as it lies on the device and, downloaded in one piece, on the host. */
typedef struct dg_samples {
    int32_t id[DG_TREE_MAX];
    float logp[DG_TREE_MAX];
} dg_samples;

typedef struct dg_slot {
    dg_drafter_env env;
    char *path, *params; /* owned; env points to them */
    dg_drafter *drafter;
    int32_t n_tap;
    const int32_t *tap_layer;
    dg_mat feature[DG_MAX_TAPS]; /* views of the session's feature rows, in the drafter's order */
    dg_wants wants;
    int32_t n_first, first_right; /* rounds in which its network had a first choice, since it was last judged; right ones */
} dg_slot;

struct dg_session {
    dg_model *model;
    int32_t context, budget, batch_rows, chunk;
    int32_t prompt_rows; /* of a pass over a prompt, at most chunk: the same with drafters and without */
    dg_dtype kv_dtype;
    dg_sampling sampling;
    dg_sampling drawn;   /* what the last round's tokens were sampled by, */
    bool alone;          /* in a pass of this session only: its logits are here */
    bool new_sampler, new_limit; /* the callback asked for them */
    bool ignore_stop_tokens;
    dg_status dead; /* DG_OK while alive */

    dg_calibration *calibration; /* owned, NULL: none */
    dg_slot slot[DG_MAX_DRAFTERS];
    int32_t n_slot;
    bool reads_next; /* some drafter's rows depend on the token after them */
    int32_t tap_layer[DG_MAX_TAPS]; /* union of the drafters' feature layers, ascending */
    dg_mat feature[DG_MAX_TAPS];    /* device [chunk, hidden] each */
    int32_t n_tap;
    /* Feature rows of committed tokens that the drafters with feature layers were not told of: while they sit out, they
     * are not asked to keep up one by one. */
    int32_t pending[DG_TREE_MAX], n_pending;
    dg_wants wants;     /* the most of what the drafters want */
    int32_t *successor; /* device [DG_TREE_MAX, wants.successors] */

    dg_kv kv;
    dg_tree tree;
    dg_offer offer; /* of this round */
    dg_budget rows;        /* how many of them are worth it */
    double round_draft, round_verify; /* seconds of this round */
    int32_t round_cut;                /* see dg_round */
    dg_walk walk;
    dg_batch batch; /* of the sessions stepped together, those of the first serve */
    dg_work work;
    dg_mat logits;                   /* device [DG_HEAD_ROWS, V] */
    dg_samples *sampled_dev, sampled;
    int32_t *path_dev; /* device [window of kv] */
    int32_t identity[DG_TREE_MAX]; /* 0, 1, 2, ...: the path of a prefill chunk */

    int32_t *token; /* [context] */
    float *logprob;
    uint8_t *source;
    int32_t n_token, n_new; /* n_new: appended by the last round */
    int32_t answer;         /* tokens before it are the caller's, those from it on were generated */
    int32_t n_loose;        /* first rows of kv that come from loose passes of whole chunks; see kept_rows in round.c */
    int32_t limit;          /* appended tokens allowed from now on; INT32_MAX: any number */
    dg_text text;
    size_t *text_end; /* [DG_TREE_MAX] end in text.out after each token of the last round */
    dg_stop stopped;
    bool warned;

    dg_stats stats;
    void *host_block, *dev_block;
};

/* Seconds of a verify pass over `rows` rows behind `len` committed ones, whatever is in the cache there. Nothing is
 * committed. rows <= chunk, len + rows within the context. */
dg_status dg_session_time_rows(dg_session *s, int32_t rows, int32_t len, double *seconds);

/* The code that the session died of, DG_OK while it lives. */
dg_status dg_session_alive(const dg_session *s);

/* seconds, monotonic */
double dg_now(void);
#ifdef DG_TEST
extern double (*dg_test_clock)(void); /* in its place, unless NULL */
#endif

#endif
