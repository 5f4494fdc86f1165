/* From options to an answer: opens the model, reads and tokenizes the prompt, drives a session. */
#include "runtime/cli.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- model and session ------------------------------------------------------------------------ */

static void on_log(void *ud, dg_log_level level, const char *message) {
    const bool *verbose = ud;
    if (level == DG_LOG_WARN) {
        cli_warn("%s", message);
    } else if (*verbose) {
        cli_begin_line();
        fprintf(stderr, "%s\n", message);
    }
}

/* What is asked for and has no effect is said. */
static void warn_thinking(const cli_options *o, const dg_model *model) {
    const dg_message message = {"user", "x"};
    char *with = NULL, *without = NULL;
    dg_status st = dg_chat_format(model, &message, 1, 1, &with);
    if (st == DG_OK) st = dg_chat_format(model, &message, 1, 0, &without);
    if (st == DG_OK && strcmp(with, without) == 0) {
        cli_warn("%s changes nothing: this chat format has no switch for thinking",
                 o->think ? "--think" : "--no-think");
    }
    dg_free(with);
    dg_free(without);
}

bool cli_samples(const cli_options *o) {
    for (size_t i = 0; i < o->temp.n; i++)
        if (o->temp.v[i] > 0) return true;
    return false;
}

void cli_warn_greedy(const cli_options *o) {
    const char *name = o->seed.n                      ? "--seed"
                       : o->top_k                     ? "--top-k"
                       : o->top_p > 0 && o->top_p < 1 ? "--top-p"
                       : o->min_p > 0                 ? "--min-p"
                                                      : NULL;
    if (name) cli_warn("%s changes nothing: decoding is greedy without a temperature above 0 (--temp)", name);
}

static void warn_unused(const cli_options *o, const dg_model *model) {
    dg_model_info info;
    dg_model_get_info(model, &info);
    if (o->think || o->no_think) warn_thinking(o, model);
    if (o->no_exact && strncmp(info.backend, "cpu", 3) == 0)
        cli_warn("--no-exact changes nothing: on the CPU drafted text always equals plain text");
    /* the prompts of 'answers' may bring their own */
    if (o->command != CLI_ANSWERS && !cli_samples(o)) cli_warn_greedy(o);
}

/* A drafter's weights are laid out while the session is made, so the line goes when it is full. */
static void on_progress(void *ud, const char *path, double done) {
    (void)ud;
    cli_progress("laying out the weights of %s: %.0f %%", path, 100 * done);
    if (done >= 1) cli_progress_clear();
}

int cli_open(const cli_options *o, dg_model **model) {
    const dg_model_options options = {
        .threads = (int32_t)o->threads,
        .compute = !o->compute || strcmp(o->compute, "default") == 0 ? DG_COMPUTE_DEFAULT
                   : strcmp(o->compute, "f32") == 0                  ? DG_COMPUTE_F32
                                                                     : DG_COMPUTE_INT8,
        .log = on_log,
        .log_ud = (void *)&o->verbose,
        .progress = on_progress,
        .chat_template = o->chat_template,
        .device = o->device,
        .inexact = o->no_exact,
    };
    cli_progress("opening %s ...", o->model);
    const dg_status st = dg_model_open(o->model, &options, model);
    cli_progress_clear();
    if (st != DG_OK) return cli_library_error(st, NULL);
    warn_unused(o, *model);
    return CLI_OK;
}

uint64_t cli_seed(const cli_options *o) {
    const double seed = o->seed.n ? o->seed.v[0] : 0;
    return (uint64_t)(seed < 0 ? cli_seconds() * 1e6 : seed);
}

/* One session never runs more rows at once; several side by side do. */
static int32_t batch_rows(const cli_options *o) {
    enum { MOST = 256 };
    if (o->batch <= MOST || o->command == CLI_ANSWERS) return (int32_t)o->batch;
    cli_warn("-b %lld: taken as %d, the most rows that a session runs at once", (long long)o->batch, MOST);
    return MOST;
}

void cli_session_options(const cli_options *o, const cli_drafts *d, const dg_model *model,
                         dg_session_options *session) {
    dg_model_info info;
    dg_model_get_info(model, &info);
    *session = (dg_session_options){
        .context = o->context == 0  ? info.max_context
                   : o->context < 0 ? 0
                                    : (int32_t)o->context,
        .budget = d->budget,
        .draft = d->v,
        .n_draft = d->n,
        .sampler = {.temperature = o->temp.n ? (float)o->temp.v[0] : 0,
                    .top_k = (int32_t)o->top_k,
                    .top_p = (float)o->top_p,
                    .min_p = (float)o->min_p,
                    .seed = cli_seed(o)},
        .stop = o->stop.v,
        .n_stop = o->stop.n,
        .ignore_stop_tokens = o->ignore_eos,
        .batch_rows = batch_rows(o),
        .kv = !o->kv ? DG_KV_DEFAULT : strcmp(o->kv, "f32") == 0 ? DG_KV_F32 : DG_KV_F16,
        .calibration = o->calibration,
    };
}

int cli_thinking(const cli_options *o) {
    return o->think ? 1 : o->no_think ? 0 : -1;
}

/* ---- prompt ----------------------------------------------------------------------------------- */

/* Appends text with C's escapes \n \t \r \" \' \\ read; others stay as they are. */
static void append_unescaped(cli_buffer *b, const char *text) {
    static const char from[] = "ntr\"'\\", to[] = "\n\t\r\"'\\";
    for (; *text; text++) {
        const char *hit = text[0] == '\\' && text[1] ? strchr(from, text[1]) : NULL;
        cli_append(b, hit ? &to[hit - from] : text, 1);
        if (hit) text++;
    }
}

int cli_prompt(const cli_options *o, cli_buffer *text) {
    cli_append(text, "", 0);
    if (o->prompt) {
        if (o->escape) {
            append_unescaped(text, o->prompt);
        } else {
            cli_append(text, o->prompt, strlen(o->prompt));
        }
    } else {
        if (!o->file && isatty(STDIN_FILENO)) {
            fputs("reading the prompt from the terminal; Ctrl-D on an empty line ends it\n", stderr);
        }
        if (!cli_read_file(o->file ? o->file : "-", text)) return CLI_FAILED;
        if (text->len && text->data[text->len - 1] == '\n') text->data[--text->len] = '\0';
    }
    if (!text->len) {
        cli_error("the prompt is empty: give text with -p TEXT, -f FILE or on standard input");
        return CLI_USAGE;
    }
    const size_t valid = cli_utf8_valid(text->data, text->len);
    if (valid < text->len) {
        cli_warn("the prompt is not valid UTF-8: byte %zu is 0x%02X", valid + 1,
                 (unsigned)(unsigned char)text->data[valid]);
    }
    return CLI_OK;
}

int cli_tokenize(const dg_model *model, const char *text, size_t len, int flags, cli_ids *out) {
    size_t n = 0;
    dg_status st = dg_tokenize(model, text, len, flags, NULL, 0, &n);
    if (st != DG_OK) return cli_library_error(st, "tokenizing the prompt");
    int32_t *ids = cli_alloc(n * sizeof *ids);
    st = dg_tokenize(model, text, len, flags, ids, n, &n);
    if (st != DG_OK) {
        free(ids);
        return cli_library_error(st, "tokenizing the prompt");
    }
    *out = (cli_ids){ids, n};
    return CLI_OK;
}

int cli_chat_tokens(const dg_model *model, const dg_message *messages, size_t n, int thinking, cli_ids *out) {
    char *text;
    const dg_status st = dg_chat_format(model, messages, n, thinking, &text);
    if (st != DG_OK) return cli_library_error(st, NULL);
    const int status = cli_tokenize(model, text, strlen(text), DG_TOKENIZE_SPECIAL, out);
    dg_free(text);
    return status;
}

int cli_prompt_tokens(const cli_options *o, const dg_model *model, const char *text, size_t len,
                      cli_ids *out) {
    if (!o->chat) {
        const int flags = (o->no_bos ? 0 : DG_TOKENIZE_BOS) | (o->no_special ? 0 : DG_TOKENIZE_SPECIAL);
        return cli_tokenize(model, text, len, flags, out);
    }
    if (strlen(text) < len) {
        cli_error("the prompt has a NUL byte at %zu, which the chat format cannot carry", strlen(text) + 1);
        return CLI_FAILED;
    }
    const dg_message messages[] = {{"system", o->system}, {"user", text}};
    const size_t skip = o->system ? 0 : 1;
    return cli_chat_tokens(model, messages + skip, 2 - skip, cli_thinking(o), out);
}

/* ---- generation ------------------------------------------------------------------------------- */

typedef struct listener {
    cli_answer *answer;
    bool (*sink)(void *ud, const dg_piece *p);
    void *ud;
} listener;

static bool on_piece(void *ud, const dg_piece *p) {
    const listener *l = ud;
    cli_append(&l->answer->text, p->text ? p->text : "", p->text ? p->len : 0);
    return (!l->sink || l->sink(l->ud, p)) && !cli_interrupts;
}

bool cli_count_piece(void *ud, const dg_piece *p) {
    cli_counter *c = ud;
    if (p->token >= 0) cli_progress("%s, %zu tokens", c->what, ++c->n);
    return true;
}

/* Long prompts go in by parts, so that Ctrl-C and the progress line work in between. The first part reaches
 * beyond what the session already shares with the prompt: a shorter one would make it forget. */
static dg_status prefill(dg_session *s, const cli_ids *prompt, size_t *reused) {
    enum { PART = 512 };
    size_t n_held, shared = 0;
    const int32_t *held = dg_session_tokens(s, &n_held);
    if (prompt->n > (size_t)dg_session_context(s)) return dg_session_sync(s, prompt->v, prompt->n); /* says so */
    while (shared < n_held && shared + 1 < prompt->n && held[shared] == prompt->v[shared]) shared++;
    *reused = shared;
    for (size_t end = shared + PART; end < prompt->n && !cli_interrupts; end += PART) {
        const dg_status st = dg_session_sync(s, prompt->v, end);
        if (st != DG_OK) return st;
        cli_progress("reading the prompt: %zu of %zu tokens", end, prompt->n);
    }
    cli_progress_clear();
    return cli_interrupts ? DG_OK : dg_session_sync(s, prompt->v, prompt->n);
}

/* Copies what the session appended behind the prompt. */
static void collect(dg_session *s, size_t n_prompt, cli_answer *out) {
    size_t n;
    const int32_t *token = dg_session_tokens(s, &n);
    out->n = n > n_prompt ? n - n_prompt : 0;
    out->token = cli_alloc(out->n * sizeof *out->token);
    out->logprob = cli_alloc(out->n * sizeof *out->logprob);
    out->source = cli_alloc(out->n * sizeof *out->source);
    if (!out->n) return;
    memcpy(out->token, token + n_prompt, out->n * sizeof *out->token);
    memcpy(out->logprob, dg_session_logprobs(s) + n_prompt, out->n * sizeof *out->logprob);
    memcpy(out->source, dg_session_sources(s) + n_prompt, out->n * sizeof *out->source);
}

dg_status cli_generate(dg_session *s, const cli_ids *prompt, int64_t limit,
                       bool (*sink)(void *ud, const dg_piece *p), void *ud, cli_answer *out) {
    *out = (cli_answer){.n_prompt = prompt->n};
    cli_append(&out->text, "", 0);
    dg_session_reset_stats(s);
    const double start = cli_seconds();
    dg_status st = prefill(s, prompt, &out->n_reused);
    const double prefilled = cli_seconds();
    out->prefill_seconds = prefilled - start;
    if (st == DG_OK && !cli_interrupts) {
        listener l = {out, sink, ud};
        st = dg_session_generate(s, limit > 0 ? (size_t)limit : 0, on_piece, &l, &out->why);
        out->seconds = cli_seconds() - prefilled;
        collect(s, prompt->n, out);
    }
    if (cli_interrupts) out->why = DG_STOP_CANCELLED;
    dg_session_get_stats(s, &out->stats);
    return st;
}

int cli_generate_error(dg_status st, const dg_model *model, const char *what) {
    if (st != DG_ERR_CONTEXT_FULL) return cli_library_error(st, what);
    dg_model_info info;
    dg_model_get_info(model, &info);
    cli_error("%s%s%s (-c sets the context; this model has at most %d)", what ? what : "", what ? ": " : "",
              dg_error_message(), info.max_context);
    return CLI_FAILED;
}

const char *cli_answer_message(const dg_model *model, const cli_answer *a) {
    dg_model_info info;
    dg_model_get_info(model, &info);
    const bool spaced = strncmp(info.tokenizer, "SentencePiece", 13) == 0 && a->text.len && a->text.data[0] == ' ';
    return a->text.data + spaced;
}

void cli_answer_free(cli_answer *a) {
    free(a->text.data);
    free(a->token);
    free(a->logprob);
    free(a->source);
    *a = (cli_answer){0};
}

size_t cli_first_difference(const cli_answer *a, const cli_answer *b) {
    size_t i = 0;
    while (i < a->n && i < b->n && a->token[i] == b->token[i]) i++;
    if (i < a->n || i < b->n) return i;
    const bool same = a->text.len == b->text.len && memcmp(a->text.data, b->text.data, a->text.len) == 0;
    return same ? SIZE_MAX : i;
}
