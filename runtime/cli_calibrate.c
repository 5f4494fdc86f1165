/* dgraft calibrate: measures drafters on warm-up prompts and writes what sessions begin with. */
#include "runtime/cli.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Of the kinds that people ask for; none of them is among the prompts of bench/. */
static const char *const bundled[] = {
    "How do I get a coffee stain out of a white cotton shirt?",
    "Write a Python function that returns the n-th Fibonacci number, and explain how long it takes.",
    "A train leaves at 9:40 and covers 210 km at 84 km/h. When does it arrive? Show the steps.",
    "Summarise this in one sentence: The museum will open two hours later on weekdays from March on, because most visitors "
    "come in the afternoon. On weekends nothing changes. Season tickets stay valid, and guided tours begin at noon.",
    "Correct the mistakes and change nothing else: Yesterday we goed to the lake becuase the weather were nice. The childs "
    "swimmed untill it getted dark, and than we drived home.",
    "Give three facts about the planet Saturn as a JSON array of objects with the keys \"fact\" and \"year\".",
    "Tell a short story about a fox that learns to count.",
    "What is the difference between a list and a tuple? Answer with a table of four rows.",
};

typedef struct warmup {
    cli_ids *ids;
    const int32_t **prompt;
    size_t *len, n;
} warmup;

static void free_warmup(warmup *w) {
    for (size_t i = 0; i < w->n; i++) free(w->ids[i].v);
    free(w->ids);
    free(w->prompt);
    free(w->len);
}

/* In the model's chat format where it has one that is known. */
static int tokenize(const dg_model *model, const char *text, cli_ids *out) {
    dg_model_info info;
    dg_model_get_info(model, &info);
    const dg_message message = {"user", text};
    return info.chat_template ? cli_chat_tokens(model, &message, 1, -1, out)
                              : cli_tokenize(model, text, strlen(text), DG_TOKENIZE_BOS, out);
}

static int read_warmup(const cli_options *o, const dg_model *model, warmup *w) {
    cli_cases cases = {0};
    int status = CLI_OK;
    if (o->prompts) {
        status = cli_cases_read(o->prompts, true, &cases);
    } else {
        for (size_t i = 0; i < sizeof bundled / sizeof *bundled; i++) cli_cases_add(&cases, "bundled", bundled[i]);
    }
    if (status == CLI_OK && !cases.n) {
        cli_error("%s: expected prompts, found none", o->prompts);
        status = CLI_FAILED;
    }
    w->ids = cli_alloc((cases.n + 1) * sizeof *w->ids);
    w->prompt = cli_alloc((cases.n + 1) * sizeof *w->prompt);
    w->len = cli_alloc((cases.n + 1) * sizeof *w->len);
    for (size_t i = 0; status == CLI_OK && i < cases.n; i++) {
        status = tokenize(model, cases.v[i].turn[0], &w->ids[i]);
        if (status != CLI_OK) break;
        w->prompt[i] = w->ids[i].v;
        w->len[i] = w->ids[i].n;
        w->n = i + 1;
    }
    cli_cases_free(&cases);
    return status;
}

static void show_progress(void *ud, const char *what, double share) {
    (void)ud;
    cli_progress("calibrating: %s, %.0f %%", what, 100 * share);
}

/* ---- report ----------------------------------------------------------------------------------- */

static json_t *threshold_json(const dg_threshold *t) {
    return json_pack("{s:f,s:f,s:f}", "at", (double)t->at, "low", (double)t->low, "high", (double)t->high);
}

static void print_report(const cli_options *o, const dg_calibrated *c, double seconds) {
    if (o->json) {
        json_t *gates = json_array(), *out = json_object();
        for (int i = 0; c->has_gates && i < 3; i++) json_array_append_new(gates, threshold_json(&c->gate[i]));
        json_object_set_new(out, "path", cli_json_text(c->path, strlen(c->path)));
        json_object_set_new(out, "rounds", json_integer(c->rounds));
        json_object_set_new(out, "gates", gates);
        json_object_set_new(out, "tail", c->has_tail ? threshold_json(&c->tail) : json_null());
        json_object_set_new(out, "seconds", json_real(seconds));
        cli_print_json(out);
        return;
    }
    static const int passes[3] = {0, 1, 5};
    for (int i = 0; c->has_gates && i < 3; i++)
        printf("stop after pass %d below %.3f (%.3f to %.3f)\n", passes[i], (double)c->gate[i].at, (double)c->gate[i].low,
               (double)c->gate[i].high);
    if (c->has_tail && c->tail.at == 0)
        printf("cut the tail where memory promises more (or below %.2f)\n", (double)c->tail.high);
    else if (c->has_tail)
        printf("cut the tail below %.2f (%.2f to %.2f)\n", (double)c->tail.at, (double)c->tail.low, (double)c->tail.high);
    printf("a pass over 1 row takes %.2f ms", 1e3 * c->row_seconds[0]);
    if (c->row_seconds[1] > 0) printf(", over 64 rows %.2f ms", 1e3 * c->row_seconds[1]);
    putchar('\n');
    printf("%d rounds in %.0f s; written to %s\n", c->rounds, seconds, c->path);
}

/* ---- the command ------------------------------------------------------------------------------ */

/* Without -o the file lies beside a drafter's weights; that there are some is better known before minutes of measuring. */
static int check_place(const cli_options *o, const cli_drafts *d, dg_model *model) {
    if (o->out) return CLI_OK;
    const dg_session_options so = {.budget = d->budget, .draft = d->v, .n_draft = d->n, .calibration = "none"};
    dg_memory_plan plan;
    const dg_status st = dg_session_plan(model, &so, &plan);
    if (st != DG_OK) return cli_library_error(st, NULL);
    if (plan.draft_weights) return CLI_OK;
    cli_error("drafters %s have no weights that the file could lie beside: name it with -o FILE", d->label);
    return CLI_USAGE;
}

static int calibrate(const cli_options *o, const cli_drafts *d, dg_model *model) {
    warmup w = {0};
    dg_calibrated report;
    int status = check_place(o, d, model);
    if (status == CLI_OK) status = read_warmup(o, model, &w);
    if (status == CLI_OK) {
        const dg_calibrate_options options = {.draft = d->v, .n_draft = d->n, .budget = d->budget, .prompt = w.prompt,
                                              .prompt_len = w.len, .n_prompt = w.n,
                                              .tokens = o->predict > 0 ? (int32_t)o->predict : 0,
                                              .by_loss = o->rule && strcmp(o->rule, "A") == 0, .out = o->out,
                                              .progress = show_progress};
        const double start = cli_seconds();
        const dg_status st = dg_calibrate(model, &options, &report);
        cli_progress_clear();
        if (st == DG_OK) print_report(o, &report, cli_seconds() - start);
        else status = cli_library_error(st, NULL);
    }
    free_warmup(&w);
    return status;
}

static int run(const cli_options *o) {
    cli_drafts drafts;
    dg_model *model = NULL;
    if (o->rule && strcmp(o->rule, "A") != 0 && strcmp(o->rule, "B") != 0) {
        cli_error("--rule: expected A or B, found '%s'", o->rule);
        return CLI_USAGE;
    }
    int status = cli_drafts_read(o, &drafts);
    if (status != CLI_OK) return status;
    if (!drafts.n) {
        cli_error("nothing to calibrate: name drafters with --mode or --draft");
        status = CLI_USAGE;
    }
    if (status == CLI_OK) status = cli_open(o, &model);
    if (status == CLI_OK) status = calibrate(o, &drafts, model);
    dg_model_close(model);
    cli_drafts_free(&drafts);
    return cli_finish_output(status);
}

const cli_command cli_calibrate = {
    .name = "calibrate",
    .bit = CLI_CALIBRATE,
    .summary = "measure drafters, the machine and their thresholds",
    .about = "Answers a few prompts with the drafters named, and learns at which confidence their drafts are better cut short,\n"
             "how often their scores come true, and what rows and drafts cost on this machine. Writes one file beside the\n"
             "drafter's weights, with which 'run' and the others then begin; one that was made for another target, drafter or\n"
             "machine is not used, and said so. It changes speed, never text.",
    .examples = "  dgraft calibrate -m model.gguf --mode graft-eagle3 --drafter head/\n"
                "  dgraft calibrate -m model.gguf --mode fused --drafter drafter/ --prompts mine.jsonl -o here.json\n"
                "  dgraft run -m model.gguf -p 'Once' --mode fused --drafter drafter/ --calibration here.json",
    .run = run,
};
