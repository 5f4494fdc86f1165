/* dgraft verify: plain against drafted decoding over prompts x temperatures x seeds, token by token. */
#include "runtime/cli.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct totals {
    size_t n, done, different;     /* cases planned, finished, with another text */
    size_t near;                   /* of those, with a gap within the bound */
    uint64_t tokens, rounds;       /* of the drafted runs */
    uint64_t drafted, accepted;    /* nodes */
    double plain_seconds, seconds; /* decoding only */
    double logprob_error;          /* largest difference of log-probabilities on equal text */
    double start;
} totals;

typedef struct verifier {
    const cli_options *o;
    cli_drafts drafts;
    cli_cases cases;
    dg_model *model;
    dg_session_options so;
    dg_session *plain, *drafted;
    cli_numbers temp, seed;
    totals t;
    json_t *json; /* list of cases, with --json */
} verifier;

/* ---- one case --------------------------------------------------------------------------------- */

typedef struct outcome {
    char *name;
    dg_sampler sampler;
    cli_answer plain, drafted;
    size_t at; /* first difference, SIZE_MAX if none */
    float gap; /* there: by how much the plain token was ahead of the drafted one; NAN: a text has ended */
} outcome;

static void format_left(double seconds, char out[32]) {
    const long s = lround(seconds);
    snprintf(out, 32, s >= 60 ? "%ld min %02ld s left" : "%.0ld%ld s left", s / 60, s % 60);
}

/* The token at i as its text, id and log-probability; "(end)" behind the last. */
static void print_token(const verifier *v, const char *who, const cli_answer *a, size_t i) {
    printf("  %s ", who);
    if (i >= a->n) {
        printf("(end: %s)", cli_stop_name(a->why));
        return;
    }
    const char *text = "";
    size_t len = 0;
    if (dg_token_text(v->model, a->token[i], &text, &len) != DG_OK) len = 0;
    cli_print_quoted(text, len);
    printf(" (%d, log-prob %.4f)", a->token[i], (double)a->logprob[i]);
}

/* What a gap may be where texts part: nothing, unless they may. */
static float bound_of(const verifier *v) { return v->o->no_exact ? DG_INEXACT_MARGIN : 0; }

static bool is_near(const verifier *v, const outcome *c) { return v->o->no_exact && fabsf(c->gap) <= bound_of(v); }

static void print_difference(const verifier *v, const outcome *c) {
    printf("  first difference at generated token %zu (position %zu):", c->at + 1, c->plain.n_prompt + c->at);
    print_token(v, "plain", &c->plain, c->at);
    print_token(v, "drafted", &c->drafted, c->at);
    if (!isnan(c->gap))
        printf("  gap %.6f, bound %g%s", (double)c->gap, (double)bound_of(v),
               is_near(v, c) ? "" : v->o->no_exact ? ": above" : ": texts must be equal");
    putchar('\n');
}

static void print_case(const verifier *v, const outcome *c) {
    const totals *t = &v->t;
    char left[32];
    format_left((cli_seconds() - t->start) / (double)t->done * (double)(t->n - t->done), left);
    const double plain = cli_rate(&c->plain);
    FILE *out = v->json ? stderr : stdout;
    cli_progress_clear();
    fprintf(out, "[%zu/%zu] %s, temp %g", t->done, t->n, c->name, (double)c->sampler.temperature);
    if (c->sampler.temperature > 0) fprintf(out, ", seed %llu", (unsigned long long)c->sampler.seed);
    fprintf(out, ": %s, %zu tokens, %.2fx, acceptance length %.2f (%s)\n",
            c->at == SIZE_MAX ? "identical" : "DIFFERENT", c->drafted.n,
            plain > 0 ? cli_rate(&c->drafted) / plain : 0, cli_acceptance_length(&c->drafted.stats), left);
    if (c->at != SIZE_MAX && !v->json) print_difference(v, c);
}

static void add_json(verifier *v, const outcome *c) {
    json_t *j = json_object();
    const cli_drafts none = {0};
    json_object_set_new(j, "id", cli_json_text(c->name, strlen(c->name)));
    json_object_set_new(j, "temperature", json_real((double)c->sampler.temperature));
    json_object_set_new(j, "seed", json_integer((json_int_t)c->sampler.seed));
    json_object_set_new(j, "identical", json_boolean(c->at == SIZE_MAX));
    if (c->at != SIZE_MAX) json_object_set_new(j, "first_difference", json_integer((json_int_t)c->at));
    if (c->at != SIZE_MAX && !isnan(c->gap)) json_object_set_new(j, "gap", json_real((double)c->gap));
    json_object_set_new(j, "plain", cli_answer_json(&c->plain, &none));
    json_object_set_new(j, "drafted", cli_answer_json(&c->drafted, &v->drafts));
    json_array_append_new(v->json, j);
}

static void account(verifier *v, outcome *c) {
    totals *t = &v->t;
    for (size_t i = 0; i < c->plain.n && i < c->drafted.n && i < c->at; i++) {
        const double d = fabs((double)c->plain.logprob[i] - (double)c->drafted.logprob[i]);
        if (!(d <= t->logprob_error)) t->logprob_error = d;
    }
    t->done++;
    t->different += c->at != SIZE_MAX;
    t->near += c->at != SIZE_MAX && is_near(v, c);
    t->tokens += c->drafted.stats.tokens;
    t->rounds += c->drafted.stats.rounds;
    t->drafted += cli_drafted(&c->drafted.stats);
    t->accepted += cli_accepted(&c->drafted.stats);
    t->plain_seconds += c->plain.seconds;
    t->seconds += c->drafted.seconds;
}

/* One of a case's two runs, with progress. */
static dg_status run_arm(const verifier *v, dg_session *s, const cli_ids *ids, const outcome *c,
                         const char *arm, cli_answer *out) {
    char *what = cli_format("[%zu/%zu] %s: %s", v->t.done + 1, v->t.n, c->name, arm);
    cli_counter counter = {what, 0};
    dg_status st = dg_session_set_sampler(s, &c->sampler);
    if (st == DG_OK) st = cli_generate(s, ids, v->o->predict, cli_count_piece, &counter, out);
    free(what);
    return st;
}

/* The gap at the first difference: the plain run once more, up to there. */
static dg_status find_gap(verifier *v, const cli_ids *ids, outcome *c) {
    c->at = cli_first_difference(&c->plain, &c->drafted);
    c->gap = NAN;
    if (c->at >= c->plain.n || c->at >= c->drafted.n) return DG_OK;
    int32_t *token = cli_alloc((ids->n + c->at) * sizeof *token);
    memcpy(token, ids->v, ids->n * sizeof *token);
    memcpy(token + ids->n, c->plain.token, c->at * sizeof *token);
    dg_stop why;
    dg_status st = dg_session_sync(v->plain, token, ids->n + c->at);
    if (st == DG_OK) st = dg_session_generate(v->plain, 1, NULL, NULL, &why);
    if (st == DG_OK) st = dg_session_margin(v->plain, c->drafted.token[c->at], &c->gap);
    free(token);
    return st;
}

/* Both runs of one prompt. CLI_INTERRUPTED leaves the case out of the count. */
static int run_case(verifier *v, const cli_ids *ids, outcome *c) {
    dg_status st = run_arm(v, v->plain, ids, c, "plain", &c->plain);
    if (st == DG_OK && !cli_interrupts) st = run_arm(v, v->drafted, ids, c, "drafted", &c->drafted);
    if (cli_interrupts) return CLI_INTERRUPTED;
    if (st == DG_OK) st = find_gap(v, ids, c);
    if (st != DG_OK) return cli_generate_error(st, v->model, c->name);
    account(v, c);
    print_case(v, c);
    if (v->json) add_json(v, c);
    return v->json ? CLI_OK : cli_finish_output(CLI_OK);
}

/* ---- all cases -------------------------------------------------------------------------------- */

/* A prompt at one temperature and seed. With turns the plain run's answers make the conversation. */
static int run_prompt(verifier *v, const cli_case *p, const dg_sampler *sampler) {
    dg_message *message = cli_alloc((2 * p->n_turn + 1) * sizeof *message);
    char **answer = cli_alloc(p->n_turn * sizeof *answer);
    size_t n = 0;
    int status = CLI_OK;
    if (v->o->system) message[n++] = (dg_message){"system", v->o->system};
    for (size_t k = 0; k < p->n_turn && status == CLI_OK; k++) {
        cli_ids ids = {0};
        outcome c = {.sampler = *sampler};
        c.name = p->n_turn > 1 ? cli_format("%s turn %zu", p->id, k + 1) : cli_format("%s", p->id);
        message[n++] = (dg_message){"user", p->turn[k]};
        status = v->o->chat ? cli_chat_tokens(v->model, message, n, cli_thinking(v->o), &ids)
                            : cli_tokenize(v->model, p->turn[k], strlen(p->turn[k]),
                                           DG_TOKENIZE_BOS | DG_TOKENIZE_SPECIAL, &ids);
        if (status == CLI_OK) status = run_case(v, &ids, &c);
        if (status == CLI_OK) {
            answer[k] = cli_format("%s", cli_answer_message(v->model, &c.plain));
            message[n++] = (dg_message){"assistant", answer[k]};
        }
        cli_answer_free(&c.plain);
        cli_answer_free(&c.drafted);
        free(c.name);
        free(ids.v);
    }
    for (size_t k = 0; k < p->n_turn; k++) free(answer[k]);
    free(answer);
    free(message);
    return status;
}

/* Greedy text does not depend on the seed, so temperature 0 runs once. */
static size_t seeds_at(const verifier *v, double temp) {
    return temp > 0 ? v->seed.n : 1;
}

static int run_all(verifier *v) {
    for (size_t p = 0; p < v->cases.n; p++)
        for (size_t t = 0; t < v->temp.n; t++) v->t.n += v->cases.v[p].n_turn * seeds_at(v, v->temp.v[t]);
    v->t.start = cli_seconds();
    for (size_t p = 0; p < v->cases.n; p++) {
        for (size_t t = 0; t < v->temp.n; t++) {
            for (size_t s = 0; s < seeds_at(v, v->temp.v[t]); s++) {
                dg_sampler sampler = v->so.sampler;
                sampler.temperature = (float)v->temp.v[t];
                sampler.seed = (uint64_t)v->seed.v[s];
                const int status = run_prompt(v, &v->cases.v[p], &sampler);
                if (status != CLI_OK) return status;
            }
        }
    }
    return CLI_OK;
}

/* Equal texts say nothing where no draft could have changed them. */
static int nothing_drafted(const verifier *v) {
    cli_error("nothing was drafted, so nothing was tested: %s",
              v->drafts.budget ? "the drafters had nothing to propose; give other prompts or a larger -n"
                               : "no draft promised to pay; --budget N drafts all the same");
    return CLI_FAILED;
}

static int report(verifier *v, int status) {
    const totals *t = &v->t;
    cli_progress_clear();
    if (v->json) {
        json_t *out = json_object();
        json_object_set(out, "cases", v->json);
        json_object_set_new(out, "planned", json_integer((json_int_t)t->n));
        json_object_set_new(out, "identical", json_integer((json_int_t)(t->done - t->different)));
        json_object_set_new(out, "different", json_integer((json_int_t)t->different));
        json_object_set_new(out, "within_bound", json_integer((json_int_t)t->near));
        json_object_set_new(out, "bound", json_real((double)bound_of(v)));
        json_object_set_new(out, "draft", cli_drafts_json(&v->drafts));
        json_object_set_new(out, "budget", v->drafts.budget ? json_integer(v->drafts.budget) : json_string("auto"));
        json_object_set_new(out, "drafted", json_integer((json_int_t)t->drafted));
        json_object_set_new(out, "accepted", json_integer((json_int_t)t->accepted));
        cli_print_json(out);
    } else {
        char near[64] = "";
        if (t->different && v->o->no_exact) snprintf(near, sizeof near, " (%zu by a gap within %g)", t->near, (double)bound_of(v));
        printf("%zu of %zu cases: %zu identical, %zu different%s; %llu tokens, %llu drafted, %llu of them accepted, "
               "%.2fx plain decoding, acceptance length %.2f, log-probs of equal text differ by at most %.2g\n",
               t->done, t->n, t->done - t->different, t->different, near, (unsigned long long)t->tokens,
               (unsigned long long)t->drafted, (unsigned long long)t->accepted,
               t->seconds > 0 ? t->plain_seconds / t->seconds : 0,
               t->rounds ? (double)t->tokens / (double)t->rounds : 0, t->logprob_error);
    }
    if (status == CLI_OK && t->different) status = CLI_DIFFERENT;
    status = cli_finish_output(status);
    return status == CLI_OK && !t->drafted ? nothing_drafted(v) : status;
}

/* ---- the command ------------------------------------------------------------------------------ */

static int prepare(verifier *v) {
    const cli_options *o = v->o;
    int status = CLI_OK;
    if (!v->drafts.n) {
        cli_error("verify compares drafted with plain decoding: name a drafter with --draft or --mode");
        return CLI_USAGE;
    }
    if (o->prompts) {
        status = cli_cases_read(o->prompts, o->chat, &v->cases);
    } else {
        cli_buffer text = {0};
        status = cli_prompt(o, &text);
        if (status == CLI_OK && strlen(text.data) < text.len) {
            cli_error("the prompt has a NUL byte at %zu; 'verify' compares texts without",
                      strlen(text.data) + 1);
            status = CLI_FAILED;
        }
        if (status == CLI_OK) cli_cases_add(&v->cases, "prompt", text.data);
        free(text.data);
    }
    if (status == CLI_OK) status = cli_open(o, &v->model);
    if (status != CLI_OK) return status;
    v->temp = o->temp.n ? o->temp : (cli_numbers){.n = 1};
    v->seed = o->seed.n ? o->seed : (cli_numbers){.n = 1};
    cli_session_options(o, &v->drafts, v->model, &v->so);
    dg_session_options plain = v->so;
    plain.draft = NULL;
    plain.n_draft = 0;
    dg_status st = dg_session_create(v->model, &plain, &v->plain);
    if (st == DG_OK) st = dg_session_create(v->model, &v->so, &v->drafted);
    return st == DG_OK ? CLI_OK : cli_library_error(st, NULL);
}

static int run(const cli_options *o) {
    verifier v = {.o = o};
    int status = cli_drafts_read(o, &v.drafts);
    if (status == CLI_OK) status = prepare(&v);
    if (status == CLI_OK) {
        v.json = o->json ? json_array() : NULL;
        cli_catch_interrupts(1);
        status = run_all(&v);
        if (status == CLI_OK || status == CLI_INTERRUPTED) status = report(&v, status);
    }
    json_decref(v.json);
    dg_session_free(v.plain);
    dg_session_free(v.drafted);
    dg_model_close(v.model);
    cli_cases_free(&v.cases);
    cli_drafts_free(&v.drafts);
    return status;
}

const cli_command cli_verify = {
    .name = "verify",
    .bit = CLI_VERIFY,
    .summary = "compare drafted with plain decoding",
    .about =
        "Decodes every prompt plainly and with the drafters, at every temperature and seed, and compares\n"
        "token by token. A line a case; for a difference its position, both tokens, by how much the plain\n"
        "one was preferred (logits, with the sampler's noise), and what that may be: 0, as texts must be\n"
        "equal, or with --no-exact the most that rounding explains. The budget is 15 where neither --budget\n"
        "nor the mode names one, so that drafts are tested that do not pay. Exit status 0: all identical,\n"
        "3: some differ, 1: an error, or nothing was drafted, 2: the command line.\n"
        "A file of prompts has one JSON object a line: {\"prompt\": \"...\"} or {\"turns\": [\"...\", "
        "\"...\"]},\n"
        "with \"id\" and \"category\" as wanted. Without --prompts the prompt comes from -p or standard "
        "input.",
    .examples = "  dgraft verify -m model.gguf --draft dflash:drafter/ --prompts chat.jsonl --chat \\\n"
                "      --temp 0,0.8 --seed 1,2 -n 96\n"
                "  dgraft verify -m model.gguf --draft ngram -p 'To be, or not to be' -n 200",
    .run = run,
};
