/* dgraft run: one prompt, one text on standard output; --compare, --json and --color. */
#include "runtime/cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the text as it comes --------------------------------------------------------------------- */

typedef struct screen {
    bool color, failed;
    int error; /* errno of the failed write */
    int32_t source;
} screen;

static bool show_piece(void *ud, const dg_piece *p) {
    screen *s = ud;
    if (!p->len) return true;
    if (s->color && p->token >= 0 && p->source != s->source) {
        fputs(cli_color(0), stdout);
        if (p->source) fputs(cli_color(p->source), stdout);
        s->source = p->source;
    }
    cli_text_shown(p->text, p->len);
    errno = 0;
    if (fwrite(p->text, 1, p->len, stdout) == p->len && fflush(stdout) == 0) return true;
    s->failed = true;
    s->error = errno;
    return false;
}

static void print_legend(const cli_drafts *d) {
    fputs("colours: the target's own tokens plain", stderr);
    for (size_t i = 0; i < d->n; i++) {
        fprintf(stderr, ", %s%s%s", cli_color((int32_t)i + 1), d->v[i].name, cli_color(0));
    }
    fputc('\n', stderr);
}

static bool wants_color(const cli_options *o) {
    const char *no = getenv("NO_COLOR");
    if (!o->color || !no || !*no) return o->color;
    cli_warn("--color: NO_COLOR is set in the environment, so the text is plain");
    return false;
}

/* ---- JSON ------------------------------------------------------------------------------------- */

static json_t *options_json(const cli_options *o, const cli_drafts *d, const dg_session_options *so) {
    json_t *j = json_object(), *stop = json_array();
    for (size_t i = 0; i < so->n_stop; i++)
        json_array_append_new(stop, cli_json_text(so->stop[i], strlen(so->stop[i])));
    json_object_set_new(j, "draft", cli_drafts_json(d));
    json_object_set_new(j, "mode", o->mode ? json_string(o->mode) : json_null());
    json_object_set_new(j, "budget", d->budget ? json_integer(d->budget) : json_string("auto"));
    json_object_set_new(j, "predict", json_integer(o->predict));
    json_object_set_new(j, "temperature", json_real((double)so->sampler.temperature));
    json_object_set_new(j, "top_k", json_integer(so->sampler.top_k));
    json_object_set_new(j, "top_p", json_real((double)so->sampler.top_p));
    json_object_set_new(j, "min_p", json_real((double)so->sampler.min_p));
    json_object_set_new(j, "seed", json_integer((json_int_t)so->sampler.seed));
    json_object_set_new(j, "stop", stop);
    json_object_set_new(j, "ignore_eos", json_boolean(o->ignore_eos));
    json_object_set_new(j, "chat", json_boolean(o->chat));
    json_object_set_new(j, "compute", json_string(o->compute ? o->compute : "default"));
    const bool wide = o->kv ? so->kv == DG_KV_F32 : o->compute && strcmp(o->compute, "f32") == 0;
    json_object_set_new(j, "kv", json_string(wide ? "f32" : "f16"));
    json_object_set_new(j, "threads", json_integer(o->threads));
    return j;
}

static json_t *model_json(const cli_options *o, const dg_model *model) {
    dg_model_info info;
    dg_model_get_info(model, &info);
    json_t *j = json_object();
    json_object_set_new(j, "path", cli_json_text(o->model, strlen(o->model)));
    json_object_set_new(j, "architecture", json_string(info.architecture));
    json_object_set_new(j, "backend", json_string(info.backend));
    return j;
}

/* ---- the command ------------------------------------------------------------------------------ */

typedef struct job {
    const cli_options *o;
    cli_drafts drafts;
    dg_model *model;
    cli_buffer prompt;
    cli_ids ids;
    dg_session_options so;
    cli_answer answer, plain; /* plain: --compare only */
    bool compared;
    cli_trace trace;
} job;

/* Whether the memory can be saved, found out before there is a text to lose: under another name, as the file may hold what
 * an earlier run learned. */
static dg_status try_memory(const dg_session *s, const char *path) {
    char *name = cli_format("%s.try", path);
    const dg_status st = dg_session_save_memory(s, name);
    if (st == DG_OK) unlink(name);
    free(name);
    return st;
}

/* One session, one answer. */
static dg_status generate(const job *j, const dg_session_options *so,
                          bool (*sink)(void *ud, const dg_piece *p), void *ud, cli_trace *trace, cli_answer *out) {
    dg_session *s = NULL;
    dg_status st = dg_session_create(j->model, so, &s);
    if (st == DG_OK && so->n_draft && j->o->save_memory) st = try_memory(s, j->o->save_memory);
    if (trace) *trace = (cli_trace){trace->file, trace->path, j->model, s, 0, sink, ud};
    if (st == DG_OK) st = cli_generate(s, &j->ids, j->o->predict, trace ? cli_trace_piece : sink, trace ? trace : ud, out);
    if (st == DG_OK && so->n_draft && j->o->save_memory) st = dg_session_save_memory(s, j->o->save_memory);
    dg_session_free(s);
    return st;
}

static int generate_drafted(job *j) {
    screen sc = {.color = wants_color(j->o)};
    if (sc.color) print_legend(&j->drafts);
    if (j->o->display_prompt) {
        fwrite(j->prompt.data, 1, j->prompt.len, stdout);
        fflush(stdout);
        cli_text_shown(j->prompt.data, j->prompt.len);
    }
    cli_counter counter = {j->drafts.n ? j->drafts.label : "plain decoding", 0};
    cli_trace *trace = j->trace.file ? &j->trace : NULL;
    const dg_status st = j->o->json ? generate(j, &j->so, cli_count_piece, &counter, trace, &j->answer)
                                    : generate(j, &j->so, show_piece, &sc, trace, &j->answer);
    cli_progress_clear();
    if (sc.color && sc.source) fputs(cli_color(0), stdout);
    cli_end_text();
    if (sc.failed) {
        cli_error("cannot write to standard output: %s", strerror(sc.error));
        return CLI_FAILED;
    }
    return st == DG_OK ? CLI_OK : cli_generate_error(st, j->model, NULL);
}

static int generate_plain(job *j) {
    dg_session_options so = j->so;
    so.n_draft = 0;
    so.draft = NULL;
    cli_counter counter = {"plain decoding", 0};
    const dg_status st = generate(j, &so, cli_count_piece, &counter, NULL, &j->plain);
    cli_progress_clear();
    j->compared = st == DG_OK && !cli_interrupts;
    return st == DG_OK ? CLI_OK : cli_generate_error(st, j->model, "plain decoding");
}

static int report(const job *j) {
    const size_t at = j->compared ? cli_first_difference(&j->answer, &j->plain) : SIZE_MAX;
    if (j->o->json) {
        json_t *out = cli_answer_json(&j->answer, &j->drafts);
        json_object_set_new(out, "version", json_string(dg_version()));
        json_object_set_new(out, "model", model_json(j->o, j->model));
        json_object_set_new(out, "options", options_json(j->o, &j->drafts, &j->so));
        if (j->compared) {
            const cli_drafts none = {0};
            json_object_set_new(out, "plain", cli_answer_json(&j->plain, &none));
            json_object_set_new(out, "identical", json_boolean(at == SIZE_MAX));
            if (at != SIZE_MAX) json_object_set_new(out, "first_difference", json_integer((json_int_t)at));
        }
        cli_print_json(out);
    }
    if (j->o->verbose) cli_print_stats(&j->answer, &j->drafts);
    if (j->drafts.n) cli_print_drafting(&j->answer, &j->drafts);
    cli_print_summary(&j->answer, &j->drafts, j->compared ? &j->plain : NULL, at == SIZE_MAX);
    if (at == SIZE_MAX) return CLI_OK;
    cli_warn("the text differs from plain decoding's at generated token %zu ('dgraft verify' tells more)",
             at + 1);
    return CLI_DIFFERENT;
}

static int run_job(job *j) {
    int status = cli_open(j->o, &j->model);
    if (status == CLI_OK) status = cli_prompt_tokens(j->o, j->model, j->prompt.data, j->prompt.len, &j->ids);
    if (status != CLI_OK) return status;
    cli_session_options(j->o, &j->drafts, j->model, &j->so);
    if (j->o->verbose) {
        dg_memory_plan plan;
        const dg_status st = dg_session_plan(j->model, &j->so, &plan);
        if (st != DG_OK) return cli_library_error(st, NULL);
        cli_print_plan(stderr, &plan, &j->drafts);
    }
    if (j->o->trace) status = cli_trace_open(&j->trace, j->o, &j->drafts);
    if (status != CLI_OK) return status;
    cli_catch_interrupts(1);
    status = generate_drafted(j);
    if (cli_trace_close(&j->trace) != CLI_OK) status = CLI_FAILED;
    if (status == CLI_OK && j->o->compare && !cli_interrupts) status = generate_plain(j);
    if (status == CLI_OK) status = report(j);
    status = status == CLI_FAILED ? status : cli_finish_output(status);
    return cli_interrupts && status != CLI_FAILED ? CLI_INTERRUPTED : status;
}

static int run(const cli_options *o) {
    job j = {.o = o};
    int status = cli_drafts_read(o, &j.drafts);
    if (status == CLI_OK && o->compare && !j.drafts.n) {
        cli_error("--compare sets drafted beside plain decoding: name a drafter with --draft or --mode");
        status = CLI_USAGE;
    }
    if (status == CLI_OK && o->save_memory && !j.drafts.n) {
        cli_error("--save-memory writes what drafters learned: name one with --draft or --mode");
        status = CLI_USAGE;
    }
    if (status == CLI_OK) status = cli_prompt(o, &j.prompt);
    if (status == CLI_OK) status = run_job(&j);
    cli_answer_free(&j.plain);
    cli_answer_free(&j.answer);
    free(j.ids.v);
    free(j.prompt.data);
    dg_model_close(j.model);
    cli_drafts_free(&j.drafts);
    return status;
}

const cli_command cli_run = {
    .name = "run",
    .bit = CLI_RUN,
    .summary = "continue or answer one prompt",
    .about =
        "Prints the model's text on standard output and a closing line on standard error: tokens, speed,\n"
        "acceptance length (tokens a round, the target's own included), and how often the first drafted\n"
        "position was right.\n"
        "Drafters change the speed and never the text; --compare checks that on the spot.\n"
        "Without -p and -f the prompt is read from standard input. Ctrl-C ends the text (exit status 130).",
    .examples =
        "  dgraft run -m model.gguf -p 'The tide comes in' -n 64\n"
        "  dgraft run -m model.gguf --chat -p 'Name three rivers.' --draft dflash:drafter/ --compare\n"
        "  dgraft run -m model.gguf --chat -f report.txt --draft ngram --temp 0.8 --seed 7\n"
        "  dgraft run -m model.gguf -p 'Once' --json | python3 -m json.tool",
    .run = run,
};
