/* dgraft: speculative decoding for people who run language models on their own machines.
 *
 * Three ideas carry the whole interface:
 *  - A model (dg_model) is immutable and may be shared by any number of threads.
 *  - A session (dg_session) is one timeline of tokens; one thread at a time may use it.
 *  - A drafter changes speed, never text: with the same model, sampler and seed the tokens of a session
 *    are the same for every list of drafters and every budget, to the bit. (Unless it is given away: `inexact`.)
 *
 * Errors: functions that can fail return dg_status; dg_error_message() then says, in this thread, which
 * file, field, expected and found. On failure outputs are untouched. After DG_ERR_DEVICE or DG_ERR_MEMORY
 * from a step the session is dead: every call but dg_session_free returns the same code.
 *
 * Options: zero is the default of every field, so `{0}` and designated initialisers work and fields may be
 * added at the end of a struct. */
#ifndef DGRAFT_H
#define DGRAFT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#ifdef __GNUC__
#pragma GCC visibility push(default) /* the shared library shows these functions and no others */
#endif

/* ---- version ---------------------------------------------------------------------------------- */

#define DG_VERSION_MAJOR 0
#define DG_VERSION_MINOR 1
#define DG_VERSION_PATCH 0

const char *dg_version(void);    /* "0.1.0" */
const char *dg_build_info(void); /* backends and libraries compiled in, one line */

/* ---- status ----------------------------------------------------------------------------------- */

typedef enum dg_status {
    DG_OK = 0,
    DG_ERR_ARGUMENT,     /* the caller's argument */
    DG_ERR_IO,           /* a file cannot be opened or read */
    DG_ERR_FORMAT,       /* a file is damaged or contradicts itself */
    DG_ERR_UNSUPPORTED,  /* well-formed, but not something dgraft runs; the message names what it does */
    DG_ERR_MEMORY,
    DG_ERR_DEVICE,
    DG_ERR_CONTEXT_FULL, /* the session's context has no room for one more token */
    DG_ERR_CANCELLED,    /* a callback asked to stop */
    DG_ERR_INTERNAL
} dg_status;

const char *dg_status_name(dg_status code);
const char *dg_error_message(void); /* this thread's last failure; valid until its next one */

/* ---- model ------------------------------------------------------------------------------------ */

typedef struct dg_model dg_model;
typedef struct dg_session dg_session;

typedef enum dg_compute {
    DG_COMPUTE_DEFAULT, /* quantised weights by activations in fixed point of 14 bits: finer than bf16 */
    DG_COMPUTE_F32,     /* f32 activations on dequantised weights */
    DG_COMPUTE_INT8     /* quantised weights by 8-bit activations, as llama.cpp does: fastest, changes texts */
} dg_compute;

typedef enum dg_log_level { DG_LOG_INFO, DG_LOG_WARN } dg_log_level;

typedef struct dg_model_options {
    int32_t threads;    /* 0: one per core */
    dg_compute compute;
    /* NULL: silent. Called by whatever thread is in a call on the model or one of its sessions. */
    void (*log)(void *ud, dg_log_level level, const char *message);
    void *log_ud;
    /* NULL: silent. Called while weights are laid out for the machine, on opening a model or a drafter. done: 0 to 1 */
    void (*progress)(void *ud, const char *path, double done);
    void *progress_ud;
    const char *chat_template; /* family name (see dg_chat_template_names); NULL: by the file's markers */
    /* NULL or "cpu"; "cuda" or "cuda:N", in builds with CUDA; "auto": a GPU where one can be used, else the CPU, which the
     * log is told at DG_LOG_WARN. Fails with DG_ERR_DEVICE and the reason. */
    const char *device;
    /* Lets a device sum in an order that depends on how many rows are computed together, which its libraries are faster
     * with. Drafted text may then part from plain text where two tokens were nearly equal: within DG_INEXACT_MARGIN. false:
     * text is exact, and only whole chunks of batch_rows (at most 256) that a prompt begins with are computed so, with
     * drafters and without. Changes nothing on the CPU. */
    bool inexact;
} dg_model_options;

/* What a token may have been ahead of another by, in logits, for an `inexact` model to prefer the other elsewhere (see
 * dg_session_margin): twice what rounding a network's activations to f16 was measured to move a logit at most, 0.064. */
#define DG_INEXACT_MARGIN 0.128f

typedef struct dg_model_info {
    const char *path, *container, *architecture, *tokenizer, *backend; /* valid while the model is open */
    const char *chat_template;                                         /* family name, NULL: unknown */
    const char *weight_types;                                          /* "q4_1 212, f32 61, q8_0 1" */
    int32_t vocab_size, hidden_size, n_layer, n_head, n_kv_head, head_dim, intermediate_size;
    int32_t max_context;
    uint64_t parameters, weight_bytes;
} dg_model_info;

/* Opens a Hugging Face directory or a GGUF file. path must stay readable while the model is open (weights
 * are memory-mapped). options may be NULL. Close every session before the model. */
dg_status dg_model_open(const char *path, const dg_model_options *options, dg_model **out);
void dg_model_close(dg_model *model); /* NULL is fine */
void dg_model_get_info(const dg_model *model, dg_model_info *info);

/* ---- tokens and chat -------------------------------------------------------------------------- */

enum {
    DG_TOKENIZE_BOS = 1,    /* add the tokens that the model's tokenizer puts in front */
    DG_TOKENIZE_SPECIAL = 2 /* read special tokens written out in the text as tokens */
};

/* Writes at most cap ids of the UTF-8 text and always the needed count to *n (so cap = 0 asks for it). */
dg_status dg_tokenize(const dg_model *model, const char *text, size_t len, int flags, int32_t *ids,
                      size_t cap, size_t *n);

/* Bytes of one token (not NUL-terminated; may be part of a UTF-8 character), valid while the model is
 * open. */
dg_status dg_token_text(const dg_model *model, int32_t id, const char **text, size_t *len);
bool dg_is_stop(const dg_model *model, int32_t id);

typedef struct dg_message {
    const char *role; /* "system", "user", "assistant" */
    const char *content;
} dg_message;

/* Renders a conversation in the model's chat format, ending with the opening of an assistant turn, as text
 * to be tokenized with DG_TOKENIZE_SPECIAL. thinking: -1 the template's default, 0 off, 1 on. Free *text
 * with dg_free. UNSUPPORTED if the model's template is not a known family. */
dg_status dg_chat_format(const dg_model *model, const dg_message *messages, size_t n, int thinking,
                         char **text);
const char *dg_chat_template_names(void);
void dg_free(void *p); /* what the library said to free with it; NULL is fine */

/* ---- sessions --------------------------------------------------------------------------------- */

typedef struct dg_sampler {
    float temperature; /* 0: greedy */
    int32_t top_k;     /* 0: off */
    float top_p;       /* 0 or 1: off */
    float min_p;       /* 0: off */
    uint64_t seed;
} dg_sampler;

/* One drafter: `NAME[:PATH][,key=value...]` in parts. Several share one token tree, in order. Every session opens its drafters
 * for itself: what they lay out anew of their weights is there once a session (draft_weights of dg_session_plan). */
typedef struct dg_draft {
    const char *name;   /* see dg_drafter_name */
    const char *path;   /* weights, NULL if the drafter has none */
    const char *params; /* "key=value,key=value", NULL: none */
} dg_draft;

/* How keys and values are kept, the drafters' too. Scores and sums are in f32 whatever the type. */
typedef enum dg_kv_type {
    DG_KV_DEFAULT, /* f16; f32 where the model computes in DG_COMPUTE_F32 */
    DG_KV_F16,
    DG_KV_F32
} dg_kv_type;

typedef struct dg_session_options {
    int32_t context;          /* tokens the session can hold; 0: the model's limit, at most 4096 */
    int32_t budget;           /* drafted nodes verified in a round; 0: auto */
    const dg_draft *draft;    /* ordered list; empty: plain decoding */
    size_t n_draft;
    dg_sampler sampler;
    const char *const *stop;  /* stop strings: text ends before the first occurrence of any */
    size_t n_stop;
    bool ignore_stop_tokens;  /* for benchmarks: go on after an end-of-text token */
    int32_t batch_rows;       /* rows of one forward pass; 0: 256 */
    dg_kv_type kv;
    const char *calibration;  /* file of dgraft calibrate; "none"; NULL: the one beside the drafter's weights, if any */
} dg_session_options;

/* Bytes, told before they are spent. */
typedef struct dg_memory_plan {
    uint64_t target_weights, draft_weights; /* mapped files, and weights laid out anew for the machine */
    uint64_t target_kv, draft_kv;
    uint64_t workspace; /* activations, logits, tree, backend scratch */
    uint64_t tokenizer; /* vocabulary, pre-tokenizer, file directory */
    uint64_t program;   /* code and shared libraries, about */
    uint64_t total;
    int32_t context;
} dg_memory_plan;

dg_status dg_session_create(dg_model *model, const dg_session_options *options, dg_session **out);
void dg_session_free(dg_session *s); /* NULL is fine */

/* What dg_session_create with these options will take, together with the open model. Reads the drafters'
 * files, allocates nothing that stays. */
dg_status dg_session_plan(dg_model *model, const dg_session_options *options, dg_memory_plan *plan);

/* Makes the session hold exactly these tokens, keeping what it has in common with them from before.
 * n >= 1. CONTEXT_FULL if they do not fit (nothing changes). The last token is evaluated by the next step. */
dg_status dg_session_sync(dg_session *s, const int32_t *tokens, size_t n);

/* Why a session's text ended. */
typedef enum dg_stop {
    DG_STOP_NONE, DG_STOP_TOKEN, DG_STOP_STRING, DG_STOP_LIMIT, DG_STOP_CONTEXT, DG_STOP_CANCELLED
} dg_stop;

/* One round: drafts, verifies, appends 1 to budget+1 tokens. New tokens: the last *n of dg_session_tokens,
 * the first min(*n, cap) of them copied to out (NULL is fine with cap 0). *n is 0 once the text has ended. */
dg_status dg_session_step(dg_session *s, int32_t *out, size_t cap, size_t *n);

/* One round of several sessions of one model in one forward pass. count[i] = tokens appended to s[i]. */
dg_status dg_sessions_step(dg_session *const *s, size_t n_session, size_t *count);

/* At most `limit` more tokens will be appended from now on (a round never overshoots it); 0: no limit. A limit that is
 * used up holds until the next one. */
void dg_session_limit(dg_session *s, size_t limit);

/* One appended token. text is whole UTF-8, cut before stop strings, and may be empty while a character or
 * a possible stop string is pending; the last call has token -1 and what was held back (at a limit not the beginning of a
 * character: the answer may go on). */
typedef struct dg_piece {
    const char *text;
    size_t len;
    int32_t token;
    int32_t source; /* 0: the target itself, i + 1: proposed by draft[i] */
    float logprob;  /* log-softmax of the target's raw logits */
} dg_piece;

/* Steps until the text ends or `limit` tokens were appended (0: no limit). callback (may be NULL) gets each
 * token in order; returning false stops there with DG_OK and DG_STOP_CANCELLED: what was drafted behind is forgotten, and
 * dg_session_sync or dg_session_rewind goes on. It may call dg_session_limit and dg_session_set_sampler, which hold from the
 * token behind the one it was given, and what changes nothing; nothing else. Replaces the limit of dg_session_limit and
 * leaves none: called again after DG_STOP_LIMIT it goes on with the same answer, stop strings and characters that the limit
 * cut in two included. */
dg_status dg_session_generate(dg_session *s, size_t limit, bool (*callback)(void *ud, const dg_piece *p),
                              void *ud, dg_stop *why);

/* Forgets every token from position pos on (1 <= pos <= length). */
dg_status dg_session_rewind(dg_session *s, size_t pos);

/* Writes what the first of its drafters that has such a memory switched on learned beyond the text (the successor matrix), to be given
 * as that drafter's path later. ARGUMENT if none has. */
dg_status dg_session_save_memory(const dg_session *s, const char *path);

/* Tokens that the session can hold, prompt included. */
int32_t dg_session_context(const dg_session *s);

/* All tokens, prompt included; valid until the next call that changes the session. */
const int32_t *dg_session_tokens(const dg_session *s, size_t *n);
/* Of the same tokens: log-probability (0 for prompt tokens) and source (0 target or prompt, i + 1 draft[i]). */
const float *dg_session_logprobs(const dg_session *s);
/* By how much the last token was preferred to `other` when it was sampled: the difference of their logits, each with the
 * temperature times its noise; filters aside. ARGUMENT unless a step of this
 * session alone, without drafted tokens, has just appended it. */
dg_status dg_session_margin(const dg_session *s, int32_t other, float *margin);
const uint8_t *dg_session_sources(const dg_session *s);
dg_stop dg_session_stopped(const dg_session *s);

/* Another sampler from the next token on. ARGUMENT for values out of range. */
dg_status dg_session_set_sampler(dg_session *s, const dg_sampler *sampler);

/* ---- statistics ------------------------------------------------------------------------------- */

enum { DG_STATS_SOURCES = 8, DG_STATS_DEPTH = 64 };

typedef struct dg_stats {
    uint64_t rounds, tokens;        /* tokens appended by rounds; tokens / rounds = acceptance length */
    uint64_t prompt_tokens, reused; /* evaluated in prefill / kept from before */
    uint64_t verified_rows;         /* rows of all verify passes, roots included */
    uint64_t drafted_rounds;        /* rounds that verified drafts, of which accepted_at[1] kept one */
    uint64_t drafter_passes;
    uint64_t length[DG_STATS_DEPTH];              /* rounds by tokens appended (last bin: that or more) */
    uint64_t proposed[DG_STATS_SOURCES], accepted[DG_STATS_SOURCES];     /* nodes by drafter, draft[i] at i */
    uint64_t proposed_at[DG_STATS_DEPTH], accepted_at[DG_STATS_DEPTH];   /* nodes by depth, root 0 */
    uint64_t cut_at[DG_STATS_DEPTH]; /* drafts cut short, by the depth up to which they were kept (a gate: its passes) */
    double prefill_seconds, draft_seconds, verify_seconds, commit_seconds; /* commit: KV, observe, text */
} dg_stats;

void dg_session_get_stats(const dg_session *s, dg_stats *stats);
void dg_session_reset_stats(dg_session *s);

/* The last round: the tree as it was verified, and what became of it. Pointers are valid until the next call that changes
 * the session. */
typedef struct dg_round {
    uint64_t index;        /* rounds since the statistics were reset, this one included; 0: none yet, or the text was changed
                              since (sync, rewind), and nothing else is set */
    int32_t n;             /* nodes; node 0, the root, is the last token of the text before the round */
    const int32_t *token;  /* [n] */
    const int16_t *parent; /* [n] before the node itself; the root's is -1 */
    const float *score;    /* [n] log of the estimated probability that the path up to the node is accepted */
    const uint8_t *source; /* [n] i + 1: draft[i]; the root's is 0 */
    int32_t n_path;
    const int32_t *path;   /* [n_path] the nodes that became text, from the root on */
    int32_t next;          /* the target's own token behind them; not part of the text where that ended before */
    int32_t cut;           /* depth at which a drafter cut its draft short, -1: none did */
    double draft_seconds, verify_seconds;
} dg_round;
void dg_session_get_round(const dg_session *s, dg_round *round);

/* ---- calibration ------------------------------------------------------------------------------ */

/* A threshold and the range in which it lies in 9 of 10 resamplings of the prompts. -1: never. */
typedef struct dg_threshold {
    float at, low, high;
} dg_threshold;

typedef struct dg_calibrate_options {
    const dg_draft *draft; /* the list to calibrate; their thresholds are left aside for it */
    size_t n_draft;
    int32_t budget;        /* nodes of a round; 0: 60 */
    const int32_t *const *prompt; /* [n_prompt] tokens to answer, [prompt_len] each */
    const size_t *prompt_len;
    size_t n_prompt;
    int32_t tokens;        /* of an answer; 0: 96 */
    bool by_loss;          /* thresholds by what a stop loses, instead of by tokens a second */
    const char *out;       /* file; NULL: beside the weights of the first network drafter */
    void (*progress)(void *ud, const char *what, double share); /* NULL: silent */
    void *ud;
} dg_calibrate_options;

typedef struct dg_calibrated {
    char path[1024];
    int32_t rounds;
    bool has_gates, has_tail;
    dg_threshold gate[3], tail;
    double row_seconds[2]; /* of a verify pass over 1 row and over 64, in the shortest context measured; 0: the model has no room for it */
} dg_calibrated;

/* Answers the prompts with these drafters, learns the thresholds that they may have, how their scores come true, what they
 * and rows of a verify pass cost, and writes that to a file, which sessions with these weights on this machine then begin
 * with. Nothing is written on failure. report may be NULL. */
dg_status dg_calibrate(dg_model *model, const dg_calibrate_options *options, dg_calibrated *report);

/* ---- drafters and modes ----------------------------------------------------------------------- */

size_t dg_drafter_count(void);
const char *dg_drafter_name(size_t i); /* NULL out of range */
const char *dg_drafter_help(size_t i); /* one line: what it is, its parameters */

/* A mode is a name for a list of drafters and a budget. {drafter} in a draft's text stands for a path. */
typedef struct dg_mode {
    const char *name, *drafts, *help; /* drafts: "dflash:{dflash},tree=1 ngram", space-separated */
    int32_t budget;                   /* 0: auto */
} dg_mode;
size_t dg_mode_count(void);
const dg_mode *dg_mode_get(size_t i); /* NULL out of range */

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif
