/* What the program's commands share: options, messages, drafter lists, prompts, generation and its report.
 *
 * Everything here sits on the public header alone, so the program is also the longest example of its use.
 * Strings inside cli_options are borrowed from argv; everything else says who owns it. */
#ifndef DG_CLI_H
#define DG_CLI_H

#include <jansson.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>

#include "runtime/dgraft.h"

/* Exit statuses, as --help and the man page document them. */
enum {
    CLI_OK = 0,
    CLI_FAILED = 1,       /* a file, the model or the output failed; verify: nothing was drafted; answers: not all fit */
    CLI_USAGE = 2,        /* the command line */
    CLI_DIFFERENT = 3,    /* drafted text differs from plain decoding's */
    CLI_INTERRUPTED = 130 /* Ctrl-C */
};

#define CLI_STATUS_HELP                                                                                      \
    "Exit status: 0 fine, 1 a file, the model or the output failed, or nothing was drafted (verify),\n"      \
    "2 a mistake on the command line, 3 drafted text differs from plain decoding's (run --compare,\n"        \
    "verify), 130 interrupted by Ctrl-C.\n"

/* Commands, as bits: an option row says which of them it belongs to. */
enum {
    CLI_RUN = 1,
    CLI_CHAT = 2,
    CLI_TOKENS = 4,
    CLI_INFO = 8,
    CLI_VERIFY = 16,
    CLI_MODES = 32,
    CLI_CONVERT = 64,
    CLI_ANSWERS = 128,
    CLI_SHOW = 256,
    CLI_CALIBRATE = 512
};

enum { CLI_LIST_MAX = 64 };

typedef struct cli_list {
    size_t n;
    const char *v[CLI_LIST_MAX];
} cli_list;

typedef struct cli_numbers {
    size_t n;
    double v[CLI_LIST_MAX];
} cli_numbers;

typedef struct cli_options {
    unsigned command; /* one of the bits above */
    bool help;
    /* model */
    const char *model, *chat_template, *compute, *kv, *device;
    bool exact, no_exact;
    int64_t threads;
    /* prompt */
    const char *prompt, *file, *prompts, *system, *ids;
    bool chat, think, no_think, escape, no_bos, no_special;
    /* generation */
    int64_t predict; /* -1: no limit */
    int64_t context; /* -1: not given, 0: all the model has */
    int64_t batch;
    int64_t top_k;
    cli_numbers temp, seed;
    double top_p, min_p;
    bool ignore_eos;
    cli_list stop;
    /* drafting */
    cli_list draft, drafter;
    const char *mode, *budget;
    bool count_root;
    const char *calibration, *rule;
    /* output */
    bool json, color, compare, verbose, display_prompt, no_display_prompt;
    const char *trace, *save_memory;
    /* show */
    const char *argument; /* what stands without an option */
    int64_t round;        /* 0: not given */
    /* convert */
    const char *out, *type, *tokenizer;
    bool force;
    int64_t layers; /* 0: not given */
    /* answers; `out` too */
    int64_t sequences; /* 0: not given */
    bool stop_loops;
} cli_options;

typedef struct cli_command {
    const char *name;
    unsigned bit;
    const char *argument; /* placeholder of what stands without an option and must be there; NULL: nothing may */
    const char *summary;  /* one line */
    const char *about;    /* paragraphs, newline-separated */
    const char *examples; /* lines */
    int (*run)(const cli_options *o);
} cli_command;

/* cli_options.c ------------------------------------------------------------------------------------- */

/* Reads argv[0..argc) (after the command's name) into *o. On a mistake prints what was expected and found
 * and returns CLI_USAGE. */
int cli_parse(const cli_command *command, int argc, char **argv, cli_options *o);
void cli_help(FILE *out, const cli_command *command);

/* The candidate closest to word by edit distance, NULL if none is near. next(i) gives NULL at the end; what
 * it gives need only last until its next call. */
const char *cli_nearest(const char *word, const char *(*next)(size_t i));

/* cli.c --------------------------------------------------------------------------------------------- */

/* One line on standard error: "error: ..." and "warning: ...". */
void cli_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void cli_warn(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Text that was written to standard output, which messages must not land in the middle of. */
void cli_text_shown(const char *text, size_t len);
/* Before something is written to standard error: clears progress and, where the text's line is open and both streams go to
 * one place, ends it there. Standard output stays exactly the text. */
void cli_begin_line(void);
/* Ends the text's line, on standard output only where that is a terminal. */
void cli_end_text(void);
/* Prints the library's message after `what` (NULL: alone); returns CLI_FAILED, or CLI_USAGE for what the
 * library calls an argument error. */
int cli_library_error(dg_status st, const char *what);

/* Like malloc and realloc, but without memory the program ends with a message and CLI_FAILED. */
void *cli_alloc(size_t bytes);
void *cli_grow(void *p, size_t bytes);
char *cli_format(const char *fmt, ...) __attribute__((format(printf, 1, 2))); /* free() */

/* A growing byte string; data is NUL-terminated, NULL while nothing was added. */
typedef struct cli_buffer {
    char *data;
    size_t len, cap;
} cli_buffer;
void cli_append(cli_buffer *b, const char *text, size_t len);

/* Bytes before the first that is not part of well-formed UTF-8; len if all are. */
size_t cli_utf8_valid(const char *text, size_t len);
/* A JSON string, with U+FFFD for every byte that is not UTF-8. */
json_t *cli_json_text(const char *text, size_t len);
/* Prints text on standard output as one line, with control characters and bad bytes as \n and \xNN. */
void cli_print_quoted(const char *text, size_t len);

/* Reads a whole file ("-": standard input) into *out; prints a message and returns false on failure. */
bool cli_read_file(const char *path, cli_buffer *out);
/* Prints a JSON document as one line on standard output; takes the reference. */
void cli_print_json(json_t *value);
/* Flushes standard output. On failure prints why and returns CLI_FAILED, otherwise `status`. A status of
 * CLI_FAILED was told already and is passed on. */
int cli_finish_output(int status);

/* Progress on standard error, rewritten in place; nothing is shown unless it is a terminal. */
void cli_progress(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void cli_progress_clear(void);

double cli_seconds(void);                        /* monotonic */
const char *cli_bytes(uint64_t n, char out[32]); /* "86.3 MiB" */

/* After cli_catch_interrupts, Ctrl-C counts cli_interrupts up; at `patience` + 1 the program dies of it. */
extern volatile sig_atomic_t cli_interrupts;
void cli_catch_interrupts(int patience);
void cli_forget_interrupts(void);

/* cli_draft.c --------------------------------------------------------------------------------------- */

/* What --draft, --mode, --drafter and --budget come to. */
typedef struct cli_drafts {
    dg_draft v[CLI_LIST_MAX];
    size_t n;
    int32_t budget;           /* 0: auto */
    char *text[CLI_LIST_MAX]; /* owned; v points into them */
    char *label;              /* owned: "none" or "dflash+ngram" */
} cli_drafts;

int cli_drafts_read(const cli_options *o, cli_drafts *out); /* CLI_OK or CLI_USAGE with a message printed */
void cli_drafts_free(cli_drafts *d);
json_t *cli_drafts_json(const cli_drafts *d);

/* cli_session.c ------------------------------------------------------------------------------------- */

/* Opens the model with progress; returns CLI_OK or an exit status after a message. Warns about options that have no effect
 * with it. */
int cli_open(const cli_options *o, dg_model **model);
bool cli_samples(const cli_options *o);     /* whether any --temp is above 0 */
void cli_warn_greedy(const cli_options *o); /* tells of an option that only sampling heeds, if there is one */

/* Session options from o and d; *session borrows from both. */
void cli_session_options(const cli_options *o, const cli_drafts *d, const dg_model *model,
                         dg_session_options *session);
uint64_t cli_seed(const cli_options *o); /* the first of --seed; for -1 another at every call */
int cli_thinking(const cli_options *o); /* -1, 0, 1 as dg_chat_format takes it */

/* Reads the prompt of -p, -f or standard input. CLI_USAGE if it is empty. Warns about invalid UTF-8. */
int cli_prompt(const cli_options *o, cli_buffer *text);

typedef struct cli_ids {
    int32_t *v; /* free() */
    size_t n;
} cli_ids;

/* Tokens of a raw text, or of a conversation rendered in the model's chat format. */
int cli_tokenize(const dg_model *model, const char *text, size_t len, int flags, cli_ids *out);
int cli_chat_tokens(const dg_model *model, const dg_message *messages, size_t n, int thinking, cli_ids *out);
/* The prompt as o says: raw, or one user message (after --system's) with --chat. */
int cli_prompt_tokens(const cli_options *o, const dg_model *model, const char *text, size_t len,
                      cli_ids *out);

/* One answer and how it came about. */
typedef struct cli_answer {
    cli_buffer text;
    int32_t *token;
    float *logprob;
    uint8_t *source;
    size_t n, n_prompt, n_reused;
    dg_stop why;
    double prefill_seconds, seconds;
    dg_stats stats;
} cli_answer;

/* Brings the session to the prompt and lets it answer. sink (may be NULL) sees every piece; returning false
 * stops. Ctrl-C stops too (why = DG_STOP_CANCELLED). The session's statistics are reset first. On failure the
 * text so far is in *out all the same. */
dg_status cli_generate(dg_session *s, const cli_ids *prompt, int64_t limit,
                       bool (*sink)(void *ud, const dg_piece *p), void *ud, cli_answer *out);
/* A sink that shows only how far the answer is: "what, 12 tokens". ud: a cli_counter. */
typedef struct cli_counter {
    const char *what;
    size_t n;
} cli_counter;
bool cli_count_piece(void *ud, const dg_piece *p);
/* Prints why cli_generate failed, after `what` if not NULL; returns the exit status. */
int cli_generate_error(dg_status st, const dg_model *model, const char *what);
/* The answer as a message of a conversation: without the space that a SentencePiece model begins with, which chat formats
 * put there themselves. Points into a. */
const char *cli_answer_message(const dg_model *model, const cli_answer *a);
void cli_answer_free(cli_answer *a);
/* Index of the first generated token in which the two differ; SIZE_MAX if tokens and text are the same. */
size_t cli_first_difference(const cli_answer *a, const cli_answer *b);

/* cli_report.c -------------------------------------------------------------------------------------- */

double cli_rate(const cli_answer *a);            /* tokens a second, without the prompt */
double cli_acceptance_length(const dg_stats *s); /* tokens a round, bonus included */
uint64_t cli_drafted(const dg_stats *s);         /* nodes, of all drafters */
uint64_t cli_accepted(const dg_stats *s);        /* of them */
double cli_accepted_share(const dg_stats *s);    /* the same in percent; 0 if there were none */
const char *cli_stop_name(dg_stop why);
const char *cli_color(int32_t source); /* escape sequence; 0: the terminal's own */

/* How often the first drafted position was right, in percent of the rounds that drafted; 0 if none did. */
double cli_first_share(const dg_stats *s);
/* The closing line on standard error. plain is NULL without --compare; identical is read only with it. */
void cli_print_summary(const cli_answer *a, const cli_drafts *d, const cli_answer *plain, bool identical);
/* Who drafted what was accepted, how deep, what it took: the line before it, where there are drafters. */
void cli_print_drafting(const cli_answer *a, const cli_drafts *d);
/* Prompt, stages, sources and depths: what --verbose and /stats show, on standard error. */
void cli_print_stats(const cli_answer *a, const cli_drafts *d);
json_t *cli_answer_json(const cli_answer *a, const cli_drafts *d);
json_t *cli_plan_json(const dg_memory_plan *plan);
void cli_print_plan(FILE *out, const dg_memory_plan *plan, const cli_drafts *d);

/* cli_trace.c --------------------------------------------------------------------------------------- */

/* A file of rounds in the making; zero: none. */
typedef struct cli_trace {
    FILE *file;
    const char *path;
    const dg_model *model; /* of these two the caller */
    const dg_session *session;
    uint64_t index;                            /* of the round written last */
    bool (*sink)(void *ud, const dg_piece *p); /* who sees the pieces next, may be NULL */
    void *ud;
} cli_trace;

int cli_trace_open(cli_trace *t, const cli_options *o, const cli_drafts *d); /* CLI_OK, or CLI_FAILED with a message */
bool cli_trace_piece(void *ud, const dg_piece *p);                           /* a sink; ud: the cli_trace */
int cli_trace_close(cli_trace *t);

/* cli_prompts.c ------------------------------------------------------------------------------------- */

typedef struct cli_case {
    char *id, *category; /* category may be NULL */
    char **turn;
    size_t n_turn;
} cli_case;

typedef struct cli_cases {
    cli_case *v;
    size_t n;
} cli_cases;

/* Reads JSON lines with `prompt` or `turns`, and optionally `id` and `category`. A bad line is an error that
 * names file and line. Prints it and returns CLI_FAILED. */
int cli_cases_read(const char *path, bool turns_allowed, cli_cases *out);
void cli_cases_add(cli_cases *c, const char *id, const char *prompt);
void cli_cases_free(cli_cases *c);

/* The commands -------------------------------------------------------------------------------------- */

extern const cli_command cli_run, cli_chat, cli_tokens, cli_info, cli_verify, cli_modes, cli_convert, cli_answers,
    cli_show, cli_calibrate;

#endif
