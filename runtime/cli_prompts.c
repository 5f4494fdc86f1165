/* Prompt files: JSON lines with `prompt` or `turns`, optionally `id` and `category`. Other fields are let be,
 * since such files carry notes for other programs. */
#include "runtime/cli.h"

#include <stdlib.h>
#include <string.h>

static char *copy(const char *s) {
    return cli_format("%s", s);
}

static cli_case *add_case(cli_cases *c) {
    c->v = cli_grow(c->v, (c->n + 1) * sizeof *c->v);
    c->v[c->n] = (cli_case){0};
    return &c->v[c->n++];
}

static void add_turn(cli_case *c, const char *text) {
    c->turn = cli_grow(c->turn, (c->n_turn + 1) * sizeof *c->turn);
    c->turn[c->n_turn++] = copy(text);
}

void cli_cases_add(cli_cases *c, const char *id, const char *prompt) {
    cli_case *one = add_case(c);
    one->id = copy(id);
    add_turn(one, prompt);
}

/* What is wrong with the line, NULL if nothing; fills the case. */
static const char *read_case(const json_t *line, bool turns_allowed, size_t number, cli_case *out) {
    if (!json_is_object(line)) return "expected a JSON object";
    const json_t *prompt = json_object_get(line, "prompt"), *turns = json_object_get(line, "turns");
    const json_t *id = json_object_get(line, "id"), *category = json_object_get(line, "category");
    if (!prompt == !turns) return "expected either 'prompt' or 'turns'";
    if (turns && !turns_allowed) return "'turns' need the chat format: add --chat";
    if (prompt && (!json_is_string(prompt) || !json_string_length(prompt))) {
        return "'prompt': expected a text that is not empty";
    }
    if (turns && (!json_is_array(turns) || !json_array_size(turns)))
        return "'turns': expected a list of texts";
    if (id && !json_is_string(id) && !json_is_integer(id)) return "'id': expected a text or a whole number";
    if (category && !json_is_string(category)) return "'category': expected a text";
    if (prompt) add_turn(out, json_string_value(prompt));
    for (size_t i = 0; i < json_array_size(turns); i++) {
        const json_t *turn = json_array_get(turns, i);
        if (!json_is_string(turn) || !json_string_length(turn)) {
            return "'turns': expected texts that are not empty";
        }
        add_turn(out, json_string_value(turn));
    }
    if (category) out->category = copy(json_string_value(category));
    out->id = json_is_string(id)    ? copy(json_string_value(id))
              : json_is_integer(id) ? cli_format("%lld", (long long)json_integer_value(id))
                                    : cli_format("line %zu", number);
    return NULL;
}

static int read_lines(const char *path, char *text, size_t len, bool turns_allowed, cli_cases *out) {
    size_t number = 0;
    for (char *line = text, *end = text + len; line < end;) {
        char *stop = memchr(line, '\n', (size_t)(end - line));
        if (!stop) stop = end;
        number++;
        const size_t line_len = (size_t)(stop - line);
        size_t blank = 0;
        while (blank < line_len && strchr(" \t\r", line[blank])) blank++;
        if (blank < line_len) {
            json_error_t e;
            json_t *value = json_loadb(line, line_len, JSON_REJECT_DUPLICATES, &e);
            const char *wrong = value ? read_case(value, turns_allowed, number, add_case(out)) : e.text;
            if (wrong) cli_error("%s:%zu: %s", path, number, wrong);
            json_decref(value);
            if (wrong) return CLI_FAILED;
        }
        line = stop + 1;
    }
    if (out->n) return CLI_OK;
    cli_error("%s: expected at least one line with a prompt, found none", path);
    return CLI_FAILED;
}

int cli_cases_read(const char *path, bool turns_allowed, cli_cases *out) {
    cli_buffer text = {0};
    int status = cli_read_file(path, &text) ? CLI_OK : CLI_FAILED;
    if (status == CLI_OK) status = read_lines(path, text.data, text.len, turns_allowed, out);
    free(text.data);
    return status;
}

void cli_cases_free(cli_cases *c) {
    for (size_t i = 0; i < c->n; i++) {
        for (size_t k = 0; k < c->v[i].n_turn; k++) free(c->v[i].turn[k]);
        free(c->v[i].turn);
        free(c->v[i].id);
        free(c->v[i].category);
    }
    free(c->v);
    *c = (cli_cases){0};
}
