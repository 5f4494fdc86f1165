/* dgraft tokens: the ids and pieces of a text, and the way back. */
#include "runtime/cli.h"

#include <stdlib.h>
#include <string.h>

/* Reads "1, 2 3" into ids, each checked against the vocabulary. */
static int read_ids(const char *text, int32_t vocab_size, cli_ids *out) {
    *out = (cli_ids){.v = cli_alloc((strlen(text) / 2 + 1) * sizeof *out->v)};
    static const char gap[] = " ,\n\t[]";
    while (*(text += strspn(text, gap))) {
        const int len = (int)strcspn(text, gap);
        char *end;
        const long id = strtol(text, &end, 10);
        if (end != text + len || id < 0 || id >= vocab_size) {
            cli_error("--ids: expected token ids from 0 to %d, found '%.*s'", vocab_size - 1, len, text);
            return CLI_USAGE;
        }
        out->v[out->n++] = (int32_t)id;
        text = end;
    }
    if (out->n) return CLI_OK;
    cli_error("--ids: expected token ids, found none");
    return CLI_USAGE;
}

static json_t *piece_json(const dg_model *model, int32_t id, const char *text, size_t len) {
    json_t *o = json_object();
    json_object_set_new(o, "id", json_integer(id));
    json_object_set_new(o, "text", cli_json_text(text, len));
    if (cli_utf8_valid(text, len) < len) {
        cli_buffer hex = {0};
        for (size_t i = 0; i < len; i++) {
            char byte[3];
            snprintf(byte, sizeof byte, "%02x", (unsigned)(unsigned char)text[i]);
            cli_append(&hex, byte, 2);
        }
        json_object_set_new(o, "bytes", json_string(hex.data));
        free(hex.data);
    }
    if (dg_is_stop(model, id)) json_object_set_new(o, "stop", json_true());
    return o;
}

/* Prints the pieces (a line each, or JSON), or with --ids the text they make. */
static int print(const cli_options *o, const dg_model *model, const cli_ids *ids) {
    json_t *pieces = json_array();
    cli_buffer all = {0};
    int status = CLI_OK;
    cli_append(&all, "", 0);
    for (size_t i = 0; i < ids->n && status == CLI_OK; i++) {
        const char *text;
        size_t len;
        const dg_status st = dg_token_text(model, ids->v[i], &text, &len);
        if (st != DG_OK) {
            status = cli_library_error(st, NULL);
            break;
        }
        cli_append(&all, text, len);
        if (o->json) {
            json_array_append_new(pieces, piece_json(model, ids->v[i], text, len));
        } else if (!o->ids) {
            printf("%8d  ", ids->v[i]);
            cli_print_quoted(text, len);
            puts(dg_is_stop(model, ids->v[i]) ? "  (ends the text)" : "");
        }
    }
    if (status == CLI_OK && o->json) {
        json_t *out = json_object();
        json_object_set(out, "tokens", pieces);
        json_object_set_new(out, "count", json_integer((json_int_t)ids->n));
        json_object_set_new(out, "text", cli_json_text(all.data, all.len));
        cli_print_json(out);
    } else if (status == CLI_OK && o->ids) {
        fwrite(all.data, 1, all.len, stdout);
        putchar('\n');
    } else if (status == CLI_OK) {
        fprintf(stderr, "%zu tokens\n", ids->n);
    }
    json_decref(pieces);
    free(all.data);
    return status;
}

static int run(const cli_options *o) {
    cli_buffer text = {0};
    cli_ids ids = {0};
    dg_model *model = NULL;
    int status = o->ids ? CLI_OK : cli_prompt(o, &text);
    if (status == CLI_OK) status = cli_open(o, &model);
    if (status == CLI_OK && o->ids) {
        dg_model_info info;
        dg_model_get_info(model, &info);
        status = read_ids(o->ids, info.vocab_size, &ids);
    } else if (status == CLI_OK) {
        status = cli_prompt_tokens(o, model, text.data, text.len, &ids);
    }
    if (status == CLI_OK) status = print(o, model, &ids);
    free(ids.v);
    free(text.data);
    dg_model_close(model);
    return status == CLI_OK ? cli_finish_output(status) : status;
}

const cli_command cli_tokens = {
    .name = "tokens",
    .bit = CLI_TOKENS,
    .summary = "show the tokens of a text, or the text of tokens",
    .about = "Prints one token a line: its id and its bytes (\\xNN where they are not text by themselves).\n"
             "Without -p and -f the text is read from standard input.",
    .examples = "  dgraft tokens -m model.gguf -p 'Hello, world'\n"
                "  dgraft tokens -m model.gguf --chat --system 'Be brief.' -p 'Hello' --json\n"
                "  dgraft tokens -m model.gguf --ids 504,3521,2988",
    .run = run,
};
