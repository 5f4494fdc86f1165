/* The drafter interface, and the one outcome that every round and every prefill chunk yields.
 *
 * Contract: observe is called once per committed span, in order, without gaps; propose leaves at most `budget`
 * nodes besides the root (those below the tree's `deepest` are dropped afterwards), may prune others' nodes but never
 * the root, and leaves its own cache at the committed length; nothing a drafter does can alter the text. Neither
 * allocates. */
#ifndef DG_DRAFTER_H
#define DG_DRAFTER_H

#include "runtime/mem.h"
#include "runtime/tree.h"

/* What a drafter scored in its last propose, in order of creation, parents first: for calibration, traces and tests.
 * Valid until its next propose. */
typedef struct dg_candidates {
    int32_t n;
    const int32_t *token;
    const int32_t *parent; /* index; -1: the root */
    const float *score;    /* log-probability of the path */
    int32_t width;         /* the first pass scored `width` of them, every later one width * width */
    int32_t passes;
    int32_t stopped;       /* the checkpoint (passes behind the first) at which a gate stopped drafting; -1: none did */
} dg_candidates;

/* What a forward pass committed. Valid during observe only. */
typedef struct dg_outcome {
    int32_t n;            /* committed rows (>= 0) */
    const int32_t *token; /* [n] their tokens */
    int32_t first;        /* absolute position of token[0] */
    int32_t next;         /* the token that follows (not committed yet) */
    const int32_t *row;   /* device [n], ascending: their rows in the feature matrices */
    const dg_mat *feature; /* [n_tap of the drafter]: [rows, hidden] f32 of each feature layer it wanted, in
                              its order */
    const dg_tree *tree;  /* what the pass verified; NULL in prefill */
    const int32_t *path;  /* [n] the committed rows as nodes of tree (prefill: 0, 1, ...), ascending */
    dg_mat successor;     /* device i32 [rows, k], k as the drafter wanted: the target's likeliest tokens after
                             each row of the pass, accepted or not, best first; row i is node i of tree
                             (prefill: token[i]). data NULL: not wanted, or not scored in this prefill */
} dg_outcome;

/* What a drafter wants to learn of the target's choices, see dg_outcome.successor. */
typedef struct dg_wants {
    int32_t successors; /* k; 0: nothing */
    int32_t prompt;     /* longest run of prompt tokens whose rows are to be scored too: the target's head over
                           all of them; 0: none */
} dg_wants;

typedef struct dg_drafter dg_drafter;

/* A drafter's own view of this round, beside the nodes that it added. */
typedef struct dg_offer {
    dg_lattice lattice;    /* n_depth 0: none */
    int32_t source;        /* whose it is */
    dg_candidates scored;  /* n 0: none; all that a drafter scored, most of it not in the tree */
    int32_t scored_source; /* whose they are */
} dg_offer;

/* What a drafter is opened with. Borrowed pointers live as long as the session. */
typedef struct dg_drafter_env {
    struct dg_model *model;  /* the target */
    const char *path;        /* NULL: none given */
    const char *params;      /* "key=value,..." or NULL */
    int32_t context;         /* tokens the session can hold */
    int32_t budget;          /* most nodes propose will be asked for */
    int32_t max_rows;        /* most rows in one outcome */
    int32_t source;          /* what to pass to dg_tree_add */
    const struct dg_calibration *calibration; /* what was measured of model, weights and machine; NULL: nothing */
    dg_dtype kv_dtype;       /* for its own cache, as the target's: f32 or f16 */
    dg_offer *offer;         /* the session's, empty when a round begins: what a drafter knows beyond its nodes it
                                leaves here in propose, for those after it; may be NULL */
} dg_drafter_env;

typedef struct dg_drafter_ops {
    const char *name;
    const char *help; /* one line: what it is, its parameters */
    /* Reads files and parameters; no large memory. On success *out is owned by the caller (close). */
    dg_status (*open)(const dg_drafter_env *env, dg_drafter **out);
    /* Carves the drafter's buffers; called twice (see dg_arena): counting, then for good. dev: backend
     * memory, host: memory. */
    void (*layout)(dg_drafter *d, dg_arena *host, dg_arena *dev);
    /* Feature layers wanted: target layer ids (outputs), fixed after open. NULL: none. */
    int32_t (*taps)(const dg_drafter *d, const int32_t **layer);
    dg_status (*observe)(dg_drafter *d, const dg_outcome *o);
    dg_status (*propose)(dg_drafter *d, dg_tree *tree, int32_t budget);
    /* Forgets everything from position len on. */
    void (*rewind)(dg_drafter *d, int32_t len);
    void (*close)(dg_drafter *d);
    /* Mapped weight bytes and bytes of KV cache among what layout took, for the plan. NULL: none. */
    void (*memory)(const dg_drafter *d, uint64_t *weights, uint64_t *kv);
    /* It runs a network: a round may leave it out where that does not pay. */
    bool network;
    /* NULL: it has none to show. */
    void (*candidates)(const dg_drafter *d, dg_candidates *out);
    /* Its row at a position depends on the token after it (EAGLE-3): when the text is cut or goes on differently, the
     * session lets it observe the last row it keeps once more. */
    bool reads_next;
    /* Writes what it remembers beyond the text, for the path of a later open. NULL: nothing. */
    dg_status (*save)(const dg_drafter *d, const char *path);
    /* What of the target's choices observe is to be given; fixed after open. NULL: nothing. */
    void (*wants)(const dg_drafter *d, dg_wants *w);
} dg_drafter_ops;

/* First member of every drafter's own struct. */
struct dg_drafter {
    const dg_drafter_ops *ops;
    const dg_drafter_env *env; /* a copy that lives with the session */
    /* Of the last propose, set by it for the statistics; the session resets them. */
    int32_t passes;            /* of its network */
    int32_t cut;               /* depth at which it cut the draft short, -1: it did not */
};

/* All built-in drafters; drafters.c is the only file that names them. */
const dg_drafter_ops *dg_drafter_find(const char *name);
#ifdef DG_TEST
extern const dg_drafter_ops *dg_test_drafter[4]; /* found first, by name */
#endif

/* Reads one "key=value" parameter list against a table of known keys; an unknown key or a bad value is an
 * ARGUMENT failure that names the drafter, the key and the known ones. */
typedef struct dg_param {
    const char *key;
    enum { DG_PARAM_INT, DG_PARAM_FLOAT, DG_PARAM_BOOL } type;
    void *value;      /* int32_t, float or bool; keeps its default when the key is absent */
    double min, max;
} dg_param;
dg_status dg_params_parse(const char *drafter, const char *params, const dg_param *table, size_t n);

#endif
