/* dgraft answers: many prompts from a file, answered side by side in one forward pass a round, as JSON lines.
 *
 * A prompt's sampler is seeded by its id, so its answer depends neither on the order nor on what runs beside it, and a
 * run that was stopped goes on with the prompts whose ids are not in the output yet. A prompt that does not fit gets a
 * record that says so, and the others are answered. */
#include "runtime/cli.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LOOP_GRAM = 4, LOOP_TIMES = 5, LOOP_SLOTS = 4096, REPORT_SECONDS = 10 };

typedef struct job {
    char *id;
    json_t *source; /* passed on; NULL: none */
    cli_ids prompt;
    double temp;
} job;

/* A session at work, or idle (job NULL). grams counts 4-grams of the answer by hash, open addressing. */
typedef struct lane {
    dg_session *session;
    const job *job;
    uint32_t *gram; /* [LOOP_SLOTS] hash | 1, 0: free */
    uint8_t *times; /* [LOOP_SLOTS] */
    size_t n_seen;  /* answer tokens whose grams are counted */
} lane;

typedef struct answers {
    const cli_options *o;
    dg_model *model;
    job *jobs;
    size_t n_job, next, done, skipped, too_long;
    json_t *lines; /* id to line number, of the input */
    uint64_t seed;
    char **known; /* ids in the output, sorted */
    size_t n_known;
    size_t longest; /* tokens of the longest prompt that fits */
    lane *lanes;
    size_t n_lane;
    FILE *out;
    uint64_t tokens;
    double start, told;
} answers;

/* ---- input ------------------------------------------------------------------------------------ */

static int by_text(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static char *id_of(const json_t *line, size_t number) {
    const json_t *id = json_object_get(line, "id");
    if (json_is_string(id)) return cli_format("%s", json_string_value(id));
    if (json_is_integer(id)) return cli_format("%lld", (long long)json_integer_value(id));
    return cli_format("line %zu", number);
}

/* Ids of the output so far; a last line without an end was cut off by a kill and is removed. */
static int read_known(answers *a, const char *path) {
    if (access(path, F_OK) != 0) return CLI_OK;
    cli_buffer text = {0};
    if (!cli_read_file(path, &text)) return CLI_FAILED;
    size_t end = text.len;
    while (end && text.data[end - 1] != '\n') end--;
    int status = CLI_OK;
    if (end < text.len && truncate(path, (off_t)end) != 0) {
        cli_error("%s: cannot cut the unfinished last line: %s", path, strerror(errno));
        status = CLI_FAILED;
    }
    size_t number = 0;
    for (char *line = text.data; status == CLI_OK && line < text.data + end;) {
        char *stop = memchr(line, '\n', (size_t)(text.data + end - line));
        json_error_t e;
        json_t *value = json_loadb(line, (size_t)(stop - line), 0, &e);
        number++;
        if (!json_is_object(value)) {
            cli_error("%s:%zu: expected an answer of an earlier run, found another text", path, number);
            status = CLI_FAILED;
        } else {
            a->known = cli_grow(a->known, (a->n_known + 1) * sizeof *a->known);
            a->known[a->n_known++] = id_of(value, number);
        }
        json_decref(value);
        line = stop + 1;
    }
    if (a->n_known) qsort(a->known, a->n_known, sizeof *a->known, by_text);
    free(text.data);
    return status;
}

/* The ids of a prompt that is a list of them. */
static const char *read_ids(const json_t *list, int32_t vocab, cli_ids *out) {
    out->n = json_array_size(list);
    out->v = cli_alloc(out->n * sizeof *out->v + 1);
    for (size_t i = 0; i < out->n; i++) {
        const json_t *id = json_array_get(list, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= vocab) {
            return "'prompt': expected token ids of the model";
        }
        out->v[i] = (int32_t)json_integer_value(id);
    }
    return NULL;
}

/* What is wrong with a line, NULL if nothing; fills the job. "" stands for a message that was printed. */
static const char *read_job(answers *a, const json_t *line, size_t index, job *j) {
    dg_model_info info;
    dg_model_get_info(a->model, &info);
    const json_t *prompt = json_object_get(line, "prompt"), *temp = json_object_get(line, "temp");
    if (!json_is_object(line)) return "expected a JSON object";
    if (temp && (!json_is_number(temp) || !(json_number_value(temp) >= 0))) return "'temp': expected a number of at least 0";
    j->temp = temp ? json_number_value(temp) : a->o->temp.n ? a->o->temp.v[index % a->o->temp.n] : 0;
    j->source = json_incref(json_object_get(line, "source"));
    if (json_is_array(prompt)) {
        const char *wrong = read_ids(prompt, info.vocab_size, &j->prompt);
        if (wrong) return wrong;
    } else if (json_is_string(prompt)) {
        const char *text = json_string_value(prompt);
        if (cli_prompt_tokens(a->o, a->model, text, json_string_length(prompt), &j->prompt) != CLI_OK) return "";
    } else {
        return "'prompt': expected a text or a list of token ids";
    }
    return j->prompt.n ? NULL : "'prompt': expected at least one token";
}

/* Notes where an id stands. CLI_FAILED with a message if it stood there before: one of the two would never be answered. */
static int note_id(answers *a, const char *path, size_t number, const char *id) {
    const json_t *before = json_object_get(a->lines, id);
    if (before) {
        cli_error("%s:%zu: expected ids that differ, found '%s', which line %lld has", path, number, id,
                  (long long)json_integer_value(before));
        return CLI_FAILED;
    }
    json_object_set_new(a->lines, id, json_integer((json_int_t)number));
    return CLI_OK;
}

/* Tokens that a prompt may have. */
static size_t room(const answers *a) {
    dg_model_info info;
    dg_model_get_info(a->model, &info);
    return a->o->context > 0 ? (size_t)a->o->context : (size_t)info.max_context;
}

static int read_line(answers *a, const char *path, size_t number, const char *line, size_t len) {
    json_error_t e;
    json_t *value = json_loadb(line, len, JSON_REJECT_DUPLICATES, &e);
    job j = {.id = id_of(value, number)};
    const char *wrong = value ? NULL : e.text;
    const bool known = a->n_known && bsearch(&j.id, a->known, a->n_known, sizeof *a->known, by_text);
    if (!wrong && !known) wrong = read_job(a, value, number - 1, &j);
    if (wrong && *wrong) cli_error("%s:%zu: %s", path, number, wrong);
    json_decref(value);
    if (!wrong && note_id(a, path, number, j.id) != CLI_OK) wrong = "";
    if (wrong || known) {
        json_decref(j.source);
        free(j.prompt.v);
        free(j.id);
        a->skipped += !wrong;
        return wrong ? CLI_FAILED : CLI_OK;
    }
    a->jobs = cli_grow(a->jobs, (a->n_job + 1) * sizeof *a->jobs);
    a->jobs[a->n_job++] = j;
    if (j.prompt.n > a->longest && j.prompt.n <= room(a)) a->longest = j.prompt.n;
    return CLI_OK;
}

static int read_jobs(answers *a, const char *path) {
    cli_buffer text = {0};
    int status = cli_read_file(path, &text) ? CLI_OK : CLI_FAILED;
    size_t number = 0;
    for (char *line = text.data, *end = line + text.len; status == CLI_OK && line < end;) {
        char *stop = memchr(line, '\n', (size_t)(end - line));
        if (!stop) stop = end;
        number++;
        if (strspn(line, " \t\r") < (size_t)(stop - line)) status = read_line(a, path, number, line, (size_t)(stop - line));
        line = stop + 1;
    }
    free(text.data);
    if (status == CLI_OK && !a->n_job && !a->skipped) {
        cli_error("%s: expected at least one line with a prompt, found none", path);
        status = CLI_FAILED;
    }
    return status;
}

/* ---- loops ------------------------------------------------------------------------------------ */

static uint32_t hash_ids(const int32_t *id, size_t n) {
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < n; i++) h = (h ^ (uint32_t)id[i]) * 16777619u;
    return h ^ h >> 15;
}

/* Counts the grams that end in the answer's new tokens; true once one of them is there LOOP_TIMES times. Two grams of
 * one hash count as one, which is rarer than a loop by far. */
static bool loops(lane *l, const int32_t *answer, size_t n) {
    for (; l->n_seen < n; l->n_seen++) {
        if (l->n_seen + 1 < LOOP_GRAM || l->n_seen >= LOOP_SLOTS / 2) continue;
        const uint32_t h = hash_ids(answer + l->n_seen + 1 - LOOP_GRAM, LOOP_GRAM) | 1;
        size_t i = h % LOOP_SLOTS;
        while (l->gram[i] && l->gram[i] != h) i = (i + 1) % LOOP_SLOTS;
        l->gram[i] = h;
        if (++l->times[i] >= LOOP_TIMES) return true;
    }
    return false;
}

/* ---- work ------------------------------------------------------------------------------------- */

static bool all_greedy(const answers *a) {
    for (size_t i = 0; i < a->n_job; i++)
        if (a->jobs[i].temp > 0) return false;
    return true;
}

static int open_lanes(answers *a) {
    const cli_drafts none = {0};
    dg_session_options so;
    cli_session_options(a->o, &none, a->model, &so);
    if (a->o->context < 0) so.context = (int32_t)a->longest + (a->o->predict < 0 ? 1024 : (int32_t)a->o->predict) + 1;
    dg_model_info info;
    dg_model_get_info(a->model, &info);
    if (so.context > info.max_context) so.context = info.max_context;
    if (so.batch_rows < (int32_t)a->n_lane) so.batch_rows = a->n_lane > 256 ? (int32_t)a->n_lane : 256;
    a->lanes = cli_alloc(a->n_lane * sizeof *a->lanes);
    memset(a->lanes, 0, a->n_lane * sizeof *a->lanes);
    for (size_t i = 0; i < a->n_lane; i++) {
        a->lanes[i].gram = cli_alloc(LOOP_SLOTS * sizeof *a->lanes[i].gram);
        a->lanes[i].times = cli_alloc(LOOP_SLOTS);
        const dg_status st = dg_session_create(a->model, &so, &a->lanes[i].session);
        if (st != DG_OK) return cli_library_error(st, "opening a session");
    }
    return CLI_OK;
}

static json_t *id_list(const int32_t *v, size_t n) {
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(list, json_integer(v[i]));
    return list;
}

/* The text of ids; special tokens as they are spelled. */
static json_t *text_of(const dg_model *model, const int32_t *v, size_t n) {
    cli_buffer text = {0};
    cli_append(&text, "", 0);
    for (size_t i = 0; i < n; i++) {
        const char *piece = "";
        size_t len = 0;
        if (dg_token_text(model, v[i], &piece, &len) == DG_OK) cli_append(&text, piece, len);
    }
    json_t *value = cli_json_text(text.data, text.len);
    free(text.data);
    return value;
}

/* token [n] is the answer alone. */
static int write_answer(answers *a, const job *j, const int32_t *token, size_t n, const char *why) {
    json_t *line = json_object();
    json_object_set_new(line, "id", cli_json_text(j->id, strlen(j->id)));
    json_object_set_new(line, "prompt", id_list(j->prompt.v, j->prompt.n));
    json_object_set_new(line, "answer", id_list(token, n));
    json_object_set_new(line, "text", text_of(a->model, token, n));
    json_object_set_new(line, "temp", json_real(j->temp));
    json_object_set_new(line, "end", json_string(why));
    if (j->source) json_object_set(line, "source", j->source);
    const bool wrong = json_dumpf(line, a->out, JSON_COMPACT) != 0 || fputc('\n', a->out) == EOF || fflush(a->out) == EOF;
    json_decref(line);
    a->done++;
    if (!wrong) return CLI_OK;
    cli_error("%s: cannot be written: %s", a->o->out, strerror(errno));
    return CLI_FAILED;
}

/* Gives the next prompt to a lane, which stays idle where that does not fit. */
static int begin(answers *a, lane *l) {
    const job *j = &a->jobs[a->next++];
    if (j->prompt.n > room(a)) {
        a->too_long++;
        return write_answer(a, j, NULL, 0, "prompt too long");
    }
    uint64_t seed = a->seed * 0x9E3779B97F4A7C15u;
    for (const char *c = j->id; *c; c++) seed = (seed ^ (unsigned char)*c) * 1099511628211u;
    const dg_sampler sampler = {(float)j->temp, (int32_t)a->o->top_k, (float)a->o->top_p, (float)a->o->min_p, seed};
    dg_status st = dg_session_set_sampler(l->session, &sampler);
    if (st == DG_OK) st = dg_session_sync(l->session, j->prompt.v, j->prompt.n);
    if (st != DG_OK) return cli_library_error(st, j->id);
    dg_session_limit(l->session, a->o->predict < 0 ? 0 : (size_t)a->o->predict);
    memset(l->gram, 0, LOOP_SLOTS * sizeof *l->gram);
    memset(l->times, 0, LOOP_SLOTS);
    l->n_seen = 0;
    l->job = j;
    return CLI_OK;
}

static int finish(answers *a, lane *l, const char *why) {
    size_t n;
    const job *j = l->job;
    const int32_t *token = dg_session_tokens(l->session, &n);
    l->job = NULL;
    return write_answer(a, j, token + j->prompt.n, n - j->prompt.n, why);
}

static void report(answers *a, bool last) {
    const double now = cli_seconds(), spent = now - a->start;
    if (!last && now - a->told < REPORT_SECONDS) return;
    a->told = now;
    const double left = a->done ? spent * (double)(a->n_job - a->done) / (double)a->done : 0;
    fprintf(stderr, "%zu of %zu answers, %llu tokens, %.1f tokens/s, %.0f min left\n", a->done, a->n_job,
            (unsigned long long)a->tokens, (double)a->tokens / spent, left / 60);
}

/* One round of all busy lanes; ends those that are done. */
static int round_of(answers *a, dg_session **session, lane **busy, size_t *count) {
    size_t n = 0;
    for (size_t i = 0; i < a->n_lane; i++) {
        while (!a->lanes[i].job && a->next < a->n_job)
            if (begin(a, &a->lanes[i]) != CLI_OK) return CLI_FAILED;
        if (!a->lanes[i].job) continue;
        busy[n] = &a->lanes[i];
        session[n++] = a->lanes[i].session;
    }
    const dg_status st = n ? dg_sessions_step(session, n, count) : DG_OK;
    if (st != DG_OK) return cli_library_error(st, NULL);
    for (size_t i = 0; i < n; i++) {
        size_t n_token;
        const int32_t *token = dg_session_tokens(busy[i]->session, &n_token);
        const size_t n_prompt = busy[i]->job->prompt.n;
        a->tokens += count[i];
        const dg_stop why = dg_session_stopped(busy[i]->session);
        const bool looped = a->o->stop_loops && loops(busy[i], token + n_prompt, n_token - n_prompt);
        if (why == DG_STOP_NONE && !looped) continue;
        if (finish(a, busy[i], why != DG_STOP_NONE ? cli_stop_name(why) : "loop") != CLI_OK) return CLI_FAILED;
    }
    return CLI_OK;
}

static int work(answers *a) {
    dg_session **session = cli_alloc(a->n_lane * sizeof *session);
    lane **busy = cli_alloc(a->n_lane * sizeof *busy);
    size_t *count = cli_alloc(a->n_lane * sizeof *count);
    int status = CLI_OK;
    a->start = a->told = cli_seconds();
    while (status == CLI_OK && a->done < a->n_job && !cli_interrupts) {
        status = round_of(a, session, busy, count);
        report(a, false);
    }
    if (status == CLI_OK && cli_interrupts) {
        fprintf(stderr, "interrupted; the same command goes on with the other %zu prompts\n", a->n_job - a->done);
        status = CLI_INTERRUPTED;
    }
    report(a, true);
    if (status == CLI_OK && a->too_long) {
        cli_error("%zu of %zu prompts have more than the %zu tokens of the context and were not answered%s", a->too_long,
                  a->n_job, room(a), a->o->context > 0 ? " (-c sets the context)" : "");
        status = CLI_FAILED;
    }
    free(session), free(busy), free(count);
    return status;
}

static void close_answers(answers *a) {
    for (size_t i = 0; a->lanes && i < a->n_lane; i++) {
        dg_session_free(a->lanes[i].session);
        free(a->lanes[i].gram), free(a->lanes[i].times);
    }
    for (size_t i = 0; i < a->n_job; i++) {
        free(a->jobs[i].id), free(a->jobs[i].prompt.v);
        json_decref(a->jobs[i].source);
    }
    for (size_t i = 0; i < a->n_known; i++) free(a->known[i]);
    json_decref(a->lines);
    free(a->lanes), free(a->jobs), free(a->known);
    dg_model_close(a->model);
}

static int run(const cli_options *o) {
    if (!o->prompts || !o->out) {
        cli_error("give the prompts with --prompts FILE and the output with -o FILE");
        return CLI_USAGE;
    }
    answers a = {.o = o, .lines = json_object(), .seed = cli_seed(o)};
    int status = cli_open(o, &a.model);
    if (status == CLI_OK) status = read_known(&a, o->out);
    if (status == CLI_OK) status = read_jobs(&a, o->prompts);
    if (status == CLI_OK && !a.n_job) fprintf(stderr, "all %zu prompts are answered already\n", a.skipped);
    if (status == CLI_OK && a.n_job) {
        a.n_lane = o->sequences ? (size_t)o->sequences : 64;
        if (a.n_lane > a.n_job) a.n_lane = a.n_job;
        a.out = fopen(o->out, "a");
        if (!a.out) {
            cli_error("%s: cannot be written: %s", o->out, strerror(errno));
            status = CLI_FAILED;
        } else {
            if (all_greedy(&a)) cli_warn_greedy(o);
            status = open_lanes(&a);
            cli_catch_interrupts(1);
            if (status == CLI_OK) status = work(&a);
            fclose(a.out);
        }
    }
    close_answers(&a);
    return status;
}

const cli_command cli_answers = {
    .name = "answers",
    .bit = CLI_ANSWERS,
    .summary = "answer a file of prompts, many at a time",
    .about = "Answers every line of a file of prompts, --sequences of them in one forward pass, and appends a JSON line\n"
             "with the ids of prompt and answer to the output. Input lines have a prompt (a text, or a list of token ids)\n"
             "and may have id, temp and source. Prompts whose id is in the output are left out, so the same command goes\n"
             "on after it was stopped. Texts are those that single decoding gives. Of a prompt longer than the context the\n"
             "line has no answer and \"end\": \"prompt too long\"; the others are answered, and the exit status is 1.",
    .examples = "  dgraft answers -m model.gguf --prompts prompts.jsonl -o answers.jsonl --chat -n 256\n"
                "  dgraft answers -m model.gguf --prompts p.jsonl -o a.jsonl -n 256 --sequences 64 --temp 0,0.8 --stop-loops\n",
    .run = run,
};
