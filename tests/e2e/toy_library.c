/* A stand-in for libdgraft behind the same header, for tests of the program alone: the "model" is any
 * readable file, tokens are bytes (256 ends the text), the text is a fixed function of prompt length,
 * position and seed. It can do what the library never should: --draft toy,differ=N gives another token at
 * generated index N, fail=N fails there. sleep=MS slows every token down. log=N warns there. idle=1 proposes nothing, as does idle=0 where
 * the budget is auto. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "runtime/convert.h"
#include "runtime/dgraft.h"

enum { STOP = 256, VOCAB = 257, MAX_CONTEXT = 2048, END_AFTER = 60 };

struct dg_model {
    dg_model_options options;
    char path[512];
};

struct dg_session {
    dg_model *model;
    dg_sampler sampler;
    int32_t context, token[MAX_CONTEXT];
    float logprob[MAX_CONTEXT];
    uint8_t source[MAX_CONTEXT];
    size_t n, n_prompt, limit;
    bool drafted, idle, ignore_stop;
    long differ, fail, log, stop_at, sleep_ms;
    dg_stop why;
    dg_stats stats;
};

static char message[256];

static dg_status fail(dg_status code, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    return code;
}

const char *dg_version(void) {
    return "0.0.0";
}
const char *dg_build_info(void) {
    return "toy";
}
const char *dg_status_name(dg_status code) {
    return code ? "failure" : "ok";
}
const char *dg_error_message(void) {
    return message;
}

dg_status dg_model_open(const char *path, const dg_model_options *options, dg_model **out) {
    if (access(path, R_OK) != 0) return fail(DG_ERR_IO, "%s: cannot be read", path);
    *out = calloc(1, sizeof **out);
    (*out)->options = *options;
    snprintf((*out)->path, sizeof(*out)->path, "%s", path);
    if (options->log) options->log(options->log_ud, DG_LOG_INFO, "toy model opened");
    return DG_OK;
}

void dg_model_close(dg_model *model) {
    free(model);
}

void dg_model_get_info(const dg_model *model, dg_model_info *info) {
    *info = (dg_model_info){.path = model->path,
                            .container = "toy",
                            .architecture = "toy",
                            .tokenizer = "bytes",
                            .backend = "cpu, a toy",
                            .chat_template = "toy",
                            .weight_types = "none",
                            .vocab_size = VOCAB,
                            .max_context = MAX_CONTEXT};
}

dg_status dg_tokenize(const dg_model *model, const char *text, size_t len, int flags, int32_t *ids,
                      size_t cap, size_t *n) {
    (void)model, (void)flags;
    for (size_t i = 0; i < len && i < cap; i++) ids[i] = (unsigned char)text[i];
    *n = len;
    return DG_OK;
}

dg_status dg_token_text(const dg_model *model, int32_t id, const char **text, size_t *len) {
    static char bytes[VOCAB];
    (void)model;
    if (id < 0 || id >= VOCAB) return fail(DG_ERR_ARGUMENT, "token %d of %d", id, VOCAB);
    bytes[id] = (char)id;
    *text = &bytes[id];
    *len = id != STOP;
    return DG_OK;
}

bool dg_is_stop(const dg_model *model, int32_t id) {
    return model && id == STOP;
}

dg_status dg_chat_format(const dg_model *model, const dg_message *messages, size_t n, int thinking,
                         char **text) {
    size_t len = 16;
    if (strcmp(messages[0].content, "refused") == 0) return fail(DG_ERR_ARGUMENT, "it has no role system");
    for (size_t i = 0; i < n; i++) len += strlen(messages[i].role) + strlen(messages[i].content) + 8;
    *text = calloc(1, len);
    for (size_t i = 0; i < n; i++)
        sprintf(*text + strlen(*text), "<%s>%s\n", messages[i].role, messages[i].content);
    const bool has_switch = !model->options.chat_template;
    strcat(*text, has_switch && thinking > 0    ? "<think>"
                  : has_switch && thinking == 0 ? "<plain>"
                                                : "<answer>");
    return DG_OK;
}

const char *dg_chat_template_names(void) {
    return "toy";
}
void dg_free(void *p) {
    free(p);
}

static long parameter(const dg_draft *d, const char *key) {
    const char *at = d->params ? strstr(d->params, key) : NULL;
    return at ? atol(at + strlen(key)) : -1;
}

dg_status dg_session_create(dg_model *model, const dg_session_options *o, dg_session **out) {
    if (o->context > MAX_CONTEXT) {
        return fail(DG_ERR_ARGUMENT, "context: expected at most %d, found %d", MAX_CONTEXT, o->context);
    }
    dg_session *s = calloc(1, sizeof *s);
    s->model = model;
    s->sampler = o->sampler;
    s->context = o->context ? o->context : MAX_CONTEXT;
    s->ignore_stop = o->ignore_stop_tokens;
    s->drafted = o->n_draft > 0;
    s->differ = s->drafted ? parameter(o->draft, "differ=") : -1;
    s->fail = s->drafted ? parameter(o->draft, "fail=") : -1;
    s->log = s->drafted ? parameter(o->draft, "log=") : -1;
    s->stop_at = s->drafted ? parameter(o->draft, "short=") : -1;
    const long idle = s->drafted ? parameter(o->draft, "idle=") : -1;
    s->idle = idle == 1 || (idle == 0 && !o->budget);
    s->sleep_ms = s->drafted ? parameter(o->draft, "sleep=") : -1;
    *out = s;
    return DG_OK;
}

void dg_session_free(dg_session *s) {
    free(s);
}

dg_status dg_session_plan(dg_model *model, const dg_session_options *options, dg_memory_plan *plan) {
    (void)model;
    const bool weights = options->n_draft && strcmp(options->draft[0].name, "toy") == 0;
    *plan = (dg_memory_plan){.workspace = sizeof(dg_session) + (uint64_t)options->batch_rows,
                             .draft_weights = weights,
                             .total = sizeof(dg_session),
                             .context = options->context ? options->context : MAX_CONTEXT};
    return DG_OK;
}

dg_status dg_session_sync(dg_session *s, const int32_t *tokens, size_t n) {
    if (n > (size_t)s->context) {
        return fail(DG_ERR_CONTEXT_FULL, "%zu tokens in a context of %d", n, s->context);
    }
    memcpy(s->token, tokens, n * sizeof *tokens);
    s->n = s->n_prompt = n;
    s->why = DG_STOP_NONE;
    return DG_OK;
}

dg_status dg_session_generate(dg_session *s, size_t limit, bool (*callback)(void *ud, const dg_piece *p),
                              void *ud, dg_stop *why) {
    for (size_t k = 0; s->why == DG_STOP_NONE; k++) {
        if ((long)k == s->fail) return fail(DG_ERR_DEVICE, "the toy failed, as it was told");
        if ((long)k == s->log) s->model->options.log(s->model->options.log_ud, DG_LOG_WARN, "the toy has a word");
        if ((limit && k == limit) || (long)k == s->stop_at) {
            s->why = DG_STOP_LIMIT;
            break;
        }
        if (s->n == (size_t)s->context) {
            s->why = DG_STOP_CONTEXT;
            break;
        }
        const uint64_t seed = s->sampler.temperature > 0 ? s->sampler.seed : 0;
        int32_t token = (int32_t)('a' + (k * k + 3 * s->n_prompt + seed * 7) % 26);
        if (k % 6 == 5) token = ' ';
        if (k == END_AFTER && !s->ignore_stop) token = STOP;
        if ((long)k == s->differ) token = '#';
        const bool accepted = s->drafted && !s->idle && k % 3;
        s->token[s->n] = token;
        s->logprob[s->n] = -0.25f;
        s->source[s->n] = accepted;
        s->n++;
        s->stats.tokens++;
        s->stats.rounds += !accepted;
        s->stats.proposed[0] += s->drafted && !s->idle;
        s->stats.accepted[0] += accepted;
        s->stats.drafted_rounds += s->drafted && !s->idle;
        s->stats.accepted_at[1] += s->drafted && !s->idle && s->n % 4; /* as dg_session_get_round has it */
        if (s->sleep_ms > 0) nanosleep(&(struct timespec){.tv_nsec = s->sleep_ms * 1000000}, NULL);
        const char text = (char)token;
        const dg_piece p = {&text, token != STOP, token, accepted, -0.25f};
        if (token == STOP) s->why = DG_STOP_TOKEN;
        if (callback && !callback(ud, &p)) s->why = DG_STOP_CANCELLED;
    }
    *why = s->why;
    return DG_OK;
}

/* A round of several sessions: one token each, as generate would give it. */
dg_status dg_sessions_step(dg_session *const *s, size_t n_session, size_t *count) {
    for (size_t i = 0; i < n_session; i++) {
        const size_t before = s[i]->n, k = before - s[i]->n_prompt;
        if (s[i]->why == DG_STOP_NONE) {
            dg_stop why;
            dg_session whole = *s[i];
            whole.n = whole.n_prompt;
            const dg_status st = dg_session_generate(&whole, k + 1, NULL, NULL, &why);
            if (st != DG_OK) return st;
            s[i]->token[before] = whole.token[before];
            s[i]->n = whole.n;
            if (why != DG_STOP_LIMIT || k + 1 == s[i]->limit) s[i]->why = why;
        }
        count[i] = s[i]->n - before;
    }
    return DG_OK;
}

void dg_session_limit(dg_session *s, size_t limit) {
    s->limit = limit;
}

dg_stop dg_session_stopped(const dg_session *s) {
    return s->why;
}

int32_t dg_session_context(const dg_session *s) {
    return s->context;
}

const int32_t *dg_session_tokens(const dg_session *s, size_t *n) {
    *n = s->n;
    return s->token;
}

const float *dg_session_logprobs(const dg_session *s) {
    return s->logprob;
}
dg_status dg_session_margin(const dg_session *s, int32_t other, float *margin) {
    *margin = (float)(s->token[s->n - 1] + other) / 1024;
    return DG_OK;
}
const uint8_t *dg_session_sources(const dg_session *s) {
    return s->source;
}

dg_status dg_session_set_sampler(dg_session *s, const dg_sampler *sampler) {
    s->sampler = *sampler;
    return DG_OK;
}

void dg_session_get_stats(const dg_session *s, dg_stats *stats) {
    *stats = s->stats;
}
void dg_session_reset_stats(dg_session *s) {
    s->stats = (dg_stats){0};
}

dg_status dg_session_save_memory(const dg_session *s, const char *path) {
    (void)s;
    return fail(DG_ERR_IO, "%s: the toy remembers nothing", path);
}

dg_status dg_calibrate(dg_model *model, const dg_calibrate_options *o, dg_calibrated *report) {
    (void)model;
    if (o->draft[0].params && strstr(o->draft[0].params, "fail=")) return fail(DG_ERR_IO, "the toy failed");
    if (o->progress) o->progress(o->ud, "answers", 1);
    *report = (dg_calibrated){.rounds = (int32_t)o->n_prompt, .has_gates = true, .gate = {{o->by_loss ? 0.25f : 0.5f, 0, 1}}};
    snprintf(report->path, sizeof report->path, "%s", o->out ? o->out : "beside");
    return DG_OK;
}

/* The last token as a tree, of which every fourth is wrong. */
void dg_session_get_round(const dg_session *s, dg_round *round) {
    static int32_t token[3];
    static const int16_t parent[3] = {-1, 0, 0};
    static const float score[3] = {0, -0.5f, -1.5f};
    static const uint8_t source[3] = {0, 1, 1};
    static const int32_t path[2] = {0, 2};
    const bool drafted = s->drafted && !s->idle, right = s->n % 4 != 0;
    *round = (dg_round){.index = s->n - s->n_prompt, .n = drafted ? 3 : 1, .token = token, .parent = parent,
                        .score = score, .source = source, .n_path = drafted && right ? 2 : 1, .path = path, .cut = 1};
    if (s->n < 2) return;
    token[0] = s->token[s->n - 2];
    token[1] = 'x';
    token[2] = round->next = s->token[s->n - 1];
}

size_t dg_drafter_count(void) {
    return 2;
}
const char *dg_drafter_name(size_t i) {
    return i == 0 ? "toy" : i == 1 ? "second" : NULL;
}
const char *dg_drafter_help(size_t i) {
    return i < 2 ? "a toy; differ=N, fail=N, sleep=MS" : NULL;
}

size_t dg_mode_count(void) {
    return 2;
}

const dg_mode *dg_mode_get(size_t i) {
    static const dg_mode mode[] = {{"both", "toy:{toy},differ=4 second", "two drafters", 12},
                                   {"bare", "second", "one without weights", 0}};
    return i < 2 ? &mode[i] : NULL;
}

dg_status dg_convert_first(const char *in, int32_t layers, const char *tokenizer, const char *out, dg_dtype type,
                          void (*progress)(void *ud, size_t done, size_t total), void *ud) {
    if (access(in, R_OK) != 0) return fail(DG_ERR_IO, "%s: cannot be read", in);
    FILE *f = fopen(out, "wb");
    if (!f) return fail(DG_ERR_IO, "%s: cannot be written", out);
    if (progress) progress(ud, 1, 1);
    fprintf(f, "type %d tokenizer %s", (int)type, tokenizer ? tokenizer : "none");
    if (layers) fprintf(f, " layers %d", (int)layers);
    fputc('\n', f);
    return fclose(f) == 0 ? DG_OK : fail(DG_ERR_IO, "%s: cannot be written", out);
}
