/* dgraft info: what a model is and what a session with it would take, before anything is spent. */
#include "runtime/cli.h"

#include <string.h>

static void print_text(const dg_model_info *m, const dg_memory_plan *plan, const cli_drafts *d) {
    char bytes[32];
    printf("file              %s (%s)\n", m->path, m->container);
    printf("architecture      %s\n", m->architecture);
    printf("parameters        %.1f million\n", (double)m->parameters / 1e6);
    printf("weights           %s (%s)\n", m->weight_types, cli_bytes(m->weight_bytes, bytes));
    printf("layers            %d of width %d, feed-forward %d\n", m->n_layer, m->hidden_size,
           m->intermediate_size);
    printf("attention         %d heads, %d of keys and values, width %d\n", m->n_head, m->n_kv_head,
           m->head_dim);
    printf("context           at most %d tokens\n", m->max_context);
    printf("tokenizer         %s, %d tokens\n", m->tokenizer, m->vocab_size);
    printf("chat template     %s\n",
           m->chat_template ? m->chat_template : "unknown (name one by --chat-template)");
    printf("backend           %s\n\n", m->backend);
    cli_print_plan(stdout, plan, d);
}

static json_t *text_or_null(const char *s) {
    return s ? cli_json_text(s, strlen(s)) : json_null();
}

static void print_json(const dg_model_info *m, const dg_memory_plan *plan, const cli_drafts *d) {
    json_t *o = json_object();
    json_object_set_new(o, "path", text_or_null(m->path));
    json_object_set_new(o, "container", text_or_null(m->container));
    json_object_set_new(o, "architecture", text_or_null(m->architecture));
    json_object_set_new(o, "parameters", json_integer((json_int_t)m->parameters));
    json_object_set_new(o, "weight_types", text_or_null(m->weight_types));
    json_object_set_new(o, "weight_bytes", json_integer((json_int_t)m->weight_bytes));
    json_object_set_new(o, "n_layer", json_integer(m->n_layer));
    json_object_set_new(o, "hidden_size", json_integer(m->hidden_size));
    json_object_set_new(o, "intermediate_size", json_integer(m->intermediate_size));
    json_object_set_new(o, "n_head", json_integer(m->n_head));
    json_object_set_new(o, "n_kv_head", json_integer(m->n_kv_head));
    json_object_set_new(o, "head_dim", json_integer(m->head_dim));
    json_object_set_new(o, "max_context", json_integer(m->max_context));
    json_object_set_new(o, "tokenizer", text_or_null(m->tokenizer));
    json_object_set_new(o, "vocab_size", json_integer(m->vocab_size));
    json_object_set_new(o, "chat_template", text_or_null(m->chat_template));
    json_object_set_new(o, "backend", text_or_null(m->backend));
    json_object_set_new(o, "draft", cli_drafts_json(d));
    json_object_set_new(o, "budget", d->budget ? json_integer(d->budget) : json_string("auto"));
    json_object_set_new(o, "memory", cli_plan_json(plan));
    cli_print_json(o);
}

static int run(const cli_options *o) {
    cli_drafts drafts;
    dg_model *model = NULL;
    int status = cli_drafts_read(o, &drafts);
    if (status == CLI_OK) status = cli_open(o, &model);
    if (status == CLI_OK) {
        dg_session_options so;
        dg_memory_plan plan;
        dg_model_info info;
        dg_model_get_info(model, &info);
        cli_session_options(o, &drafts, model, &so);
        const dg_status st = dg_session_plan(model, &so, &plan);
        if (st != DG_OK) {
            status = cli_library_error(st, NULL);
        } else if (o->json) {
            print_json(&info, &plan, &drafts);
        } else {
            print_text(&info, &plan, &drafts);
        }
    }
    dg_model_close(model);
    cli_drafts_free(&drafts);
    return status == CLI_OK ? cli_finish_output(status) : status;
}

const cli_command cli_info = {
    .name = "info",
    .bit = CLI_INFO,
    .summary = "describe a model and the memory a session takes",
    .about =
        "Prints architecture, weight types, tokenizer, chat format and backend, and the memory plan of a\n"
        "session with the given drafters, context and budget. Nothing of that memory is taken.",
    .examples = "  dgraft info -m model.gguf\n"
                "  dgraft info -m model.gguf -c 8192 --draft dflash:drafter/ --budget 60",
    .run = run,
};
