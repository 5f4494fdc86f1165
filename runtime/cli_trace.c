/* Traces: a file of JSON lines, one a round, that `dgraft run --trace` writes and `dgraft show` draws. The first line says
 * what was run; every other one is a tree with what became of it. Knows the rounds through dg_session_get_round alone. */
#include "runtime/cli.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TRACE_VERSION = 1, MAX_NODES = 256 };

/* ---- writing ---------------------------------------------------------------------------------- */

static void write_line(cli_trace *t, json_t *line) {
    if (t->file && json_dumpf(line, t->file, JSON_COMPACT | JSON_REAL_PRECISION(7)) == 0) fputc('\n', t->file);
    json_decref(line);
}

int cli_trace_open(cli_trace *t, const cli_options *o, const cli_drafts *d) {
    t->file = fopen(o->trace, "w");
    if (!t->file) {
        cli_error("--trace %s: %s", o->trace, strerror(errno));
        return CLI_FAILED;
    }
    t->path = o->trace;
    json_t *head = json_object(), *names = json_array();
    for (size_t i = 0; i < d->n; i++) json_array_append_new(names, json_string(d->v[i].name));
    json_object_set_new(head, "dgraft_trace", json_integer(TRACE_VERSION));
    json_object_set_new(head, "model", cli_json_text(o->model, strlen(o->model)));
    json_object_set_new(head, "drafters", names);
    write_line(t, head);
    return CLI_OK;
}

static json_t *token_text(const dg_model *m, int32_t id) {
    const char *text = NULL;
    size_t len = 0;
    return dg_token_text(m, id, &text, &len) == DG_OK ? cli_json_text(text, len) : json_null();
}

static void write_round(cli_trace *t, const dg_round *r) {
    json_t *line = json_object(), *token = json_array(), *text = json_array(), *parent = json_array();
    json_t *score = json_array(), *source = json_array(), *path = json_array();
    for (int32_t i = 0; i < r->n; i++) {
        json_array_append_new(token, json_integer(r->token[i]));
        json_array_append_new(text, token_text(t->model, r->token[i]));
        json_array_append_new(parent, json_integer(r->parent[i]));
        json_array_append_new(score, isfinite(r->score[i]) ? json_real((double)r->score[i]) : json_null());
        json_array_append_new(source, json_integer(r->source[i]));
    }
    for (int32_t i = 0; i < r->n_path; i++) json_array_append_new(path, json_integer(r->path[i]));
    json_object_set_new(line, "round", json_integer((json_int_t)r->index));
    json_object_set_new(line, "tokens", token);
    json_object_set_new(line, "texts", text);
    json_object_set_new(line, "parents", parent);
    json_object_set_new(line, "scores", score);
    json_object_set_new(line, "sources", source);
    json_object_set_new(line, "path", path);
    json_object_set_new(line, "next", json_integer(r->next));
    json_object_set_new(line, "next_text", token_text(t->model, r->next));
    json_object_set_new(line, "cut", r->cut < 0 ? json_null() : json_integer(r->cut));
    json_object_set_new(line, "draft_seconds", json_real(r->draft_seconds));
    json_object_set_new(line, "verify_seconds", json_real(r->verify_seconds));
    write_line(t, line);
}

bool cli_trace_piece(void *ud, const dg_piece *p) {
    cli_trace *t = ud;
    dg_round r;
    dg_session_get_round(t->session, &r);
    if (p->token >= 0 && r.index != t->index) { /* the first token of a round */
        write_round(t, &r);
        t->index = r.index;
    }
    return !t->sink || t->sink(t->ud, p);
}

int cli_trace_close(cli_trace *t) {
    if (!t->file) return CLI_OK;
    const bool bad = ferror(t->file) != 0, late = fclose(t->file) != 0;
    t->file = NULL;
    if (!bad && !late) return CLI_OK;
    cli_error("--trace %s: %s", t->path, errno ? strerror(errno) : "cannot be written");
    return CLI_FAILED;
}

/* ---- reading ---------------------------------------------------------------------------------- */

typedef struct picture {
    int n;
    int parent[MAX_NODES], source[MAX_NODES], token[MAX_NODES];
    double score[MAX_NODES]; /* NaN: none */
    const json_t *text[MAX_NODES]; /* string or null */
    bool accepted[MAX_NODES];
    int n_path;
} picture;

static bool read_int(const json_t *v, json_int_t lo, json_int_t hi, int *out) {
    if (!json_is_integer(v) || json_integer_value(v) < lo || json_integer_value(v) > hi) return false;
    *out = (int)json_integer_value(v);
    return true;
}

/* What is wrong with a round, NULL: nothing. */
static const char *read_picture(const json_t *round, picture *p) {
    const json_t *token = json_object_get(round, "tokens"), *text = json_object_get(round, "texts");
    const json_t *parent = json_object_get(round, "parents"), *score = json_object_get(round, "scores");
    const json_t *source = json_object_get(round, "sources"), *path = json_object_get(round, "path");
    const size_t n = json_array_size(token);
    if (!n || n > MAX_NODES) return "expected \"tokens\" of 1 to 256 nodes";
    if (json_array_size(parent) != n || json_array_size(text) != n || json_array_size(score) != n || json_array_size(source) != n)
        return "tokens, texts, parents, scores and sources differ in length";
    *p = (picture){.n = (int)n};
    for (size_t i = 0; i < n; i++) {
        if (!read_int(json_array_get(token, i), 0, INT32_MAX, &p->token[i])) return "a token is no token id";
        if (!read_int(json_array_get(parent, i), i ? 0 : -1, (json_int_t)i - 1, &p->parent[i]))
            return "a parent does not stand before its node";
        if (!read_int(json_array_get(source, i), 0, 255, &p->source[i])) return "a source is out of range";
        p->text[i] = json_array_get(text, i);
        p->score[i] = json_is_number(json_array_get(score, i)) ? json_number_value(json_array_get(score, i)) : NAN;
    }
    p->n_path = (int)json_array_size(path);
    for (int i = 0, before = -1; i < p->n_path; i++) {
        int node;
        if (!read_int(json_array_get(path, (size_t)i), 0, (json_int_t)n - 1, &node) || p->parent[node] != before)
            return "the path is no path of the tree";
        p->accepted[node] = true;
        before = node;
    }
    return p->n_path ? NULL : "expected a \"path\" that begins at the root";
}

/* ---- drawing ---------------------------------------------------------------------------------- */

typedef struct pen {
    const picture *p;
    const json_t *names;
    bool color;
    char rail[4 * MAX_NODES + 1]; /* what stands left of a node; bytes */
} pen;

static const char *source_name(const pen *d, int source) {
    const char *name = source ? json_string_value(json_array_get(d->names, (size_t)source - 1)) : NULL;
    return name ? name : "target";
}

static void print_token(const json_t *text, int id) {
    if (json_is_string(text))
        cli_print_quoted(json_string_value(text), json_string_length(text));
    else
        printf("token %d", id);
}

static void draw_node(const pen *d, int node) {
    const picture *p = d->p;
    if (d->color) fputs(p->accepted[node] ? "\033[1m" : "\033[2m", stdout);
    if (d->color && node) fputs(cli_color(p->source[node]), stdout);
    fputs(p->accepted[node] ? "\u25cf " : "\u25cb ", stdout);
    print_token(p->text[node], p->token[node]);
    if (node) {
        printf("  %s", source_name(d, p->source[node]));
        if (!isnan(p->score[node])) printf(" %.3f", exp(p->score[node]));
    }
    if (d->color) fputs("\033[0m", stdout);
    putchar('\n');
}

/* Children best first; rails in front. Depth is bounded by the number of nodes. */
static void draw_below(pen *d, int node, size_t rail) {
    const picture *p = d->p;
    bool done[MAX_NODES] = {false};
    for (;;) {
        int best = -1, left = 0;
        for (int i = node + 1; i < p->n; i++) {
            if (p->parent[i] != node || done[i]) continue;
            left++;
            if (best < 0 || p->score[i] > p->score[best]) best = i;
        }
        if (best < 0) return;
        done[best] = true;
        const char *const branch = left == 1 ? "\u2514\u2500" : "\u251c\u2500", *const line = left == 1 ? "  " : "\u2502 ";
        printf("%.*s%s", (int)rail, d->rail, branch);
        draw_node(d, best);
        const size_t len = strlen(line);
        memcpy(d->rail + rail, line, len);
        draw_below(d, best, rail + len);
    }
}

static void draw(const json_t *round, const picture *p, const json_t *names, json_int_t last, bool color) {
    pen d = {.p = p, .names = names, .color = color};
    printf("round %lld of %lld: %d nodes", (long long)json_integer_value(json_object_get(round, "round")), (long long)last, p->n - 1);
    for (size_t s = 1; s <= json_array_size(names); s++) {
        int n = 0, hit = 0;
        for (int i = 1; i < p->n; i++) n += p->source[i] == (int)s, hit += p->source[i] == (int)s && p->accepted[i];
        if (n) printf(", %s %d of %d accepted", source_name(&d, (int)s), hit, n);
    }
    if (json_is_integer(json_object_get(round, "cut")))
        printf(", cut at %lld", (long long)json_integer_value(json_object_get(round, "cut")));
    printf("; then ");
    print_token(json_object_get(round, "next_text"), (int)json_integer_value(json_object_get(round, "next")));
    putchar('\n');
    draw_node(&d, 0);
    draw_below(&d, 0, 0);
}

/* ---- the command ------------------------------------------------------------------------------ */

/* All rounds of a file, checked; *names its drafters (borrowed from head). */
static int read_trace(const char *path, json_t **head, json_t *rounds) {
    cli_buffer text = {0};
    if (!cli_read_file(path, &text)) return CLI_FAILED;
    size_t number = 0;
    const char *wrong = NULL;
    for (char *at = text.data; !wrong && at && *at;) {
        const size_t len = strcspn(at, "\n");
        json_t *line = json_loadb(at, len, JSON_ALLOW_NUL, NULL);
        static picture p;
        number++;
        if (number == 1) {
            const json_t *version = json_object_get(line, "dgraft_trace");
            if (!json_is_integer(version)) wrong = "this is no trace ('dgraft run --trace FILE' writes one)";
            else if (json_integer_value(version) > TRACE_VERSION) wrong = "written by a newer dgraft";
            else *head = json_incref(line);
        } else if (!line) {
            wrong = "no JSON, or cut off in the middle";
        } else if (!(wrong = read_picture(line, &p))) {
            json_array_append(rounds, line);
        }
        json_decref(line);
        at += len + (at[len] == '\n');
    }
    free(text.data);
    if (!number) wrong = "the file is empty", number = 1;
    if (wrong) cli_error("%s:%zu: %s", path, number, wrong);
    return wrong ? CLI_FAILED : CLI_OK;
}

/* The round asked for, or the one that accepted most. */
static json_t *choose(const cli_options *o, const json_t *rounds) {
    json_t *best = NULL, *one;
    size_t i;
    json_array_foreach(rounds, i, one) {
        if (o->round > 0 && json_integer_value(json_object_get(one, "round")) == o->round) return one;
        if (!best || json_array_size(json_object_get(one, "path")) > json_array_size(json_object_get(best, "path"))) best = one;
    }
    return o->round > 0 ? NULL : best;
}

static int show(const cli_options *o) {
    json_t *head = NULL, *rounds = json_array();
    int status = read_trace(o->argument, &head, rounds);
    const json_t *last = json_array_get(rounds, json_array_size(rounds) - 1), *round = choose(o, rounds);
    if (status == CLI_OK && !round) {
        if (o->round > 0)
            cli_error("--round %lld: the trace has %zu rounds", (long long)o->round, json_array_size(rounds));
        else
            cli_error("%s: the trace has no rounds", o->argument);
        status = o->round > 0 ? CLI_USAGE : CLI_FAILED;
    }
    if (status == CLI_OK) {
        static picture p;
        read_picture(round, &p);
        const char *no = getenv("NO_COLOR");
        draw(round, &p, json_object_get(head, "drafters"), json_integer_value(json_object_get(last, "round")),
             (o->color || isatty(STDOUT_FILENO)) && !(no && *no));
    }
    json_decref(head);
    json_decref(rounds);
    return cli_finish_output(status);
}

const cli_command cli_show = {
    .name = "show",
    .bit = CLI_SHOW,
    .argument = "FILE",
    .summary = "draw a round of a trace as a tree",
    .about = "FILE is what 'dgraft run --trace FILE' wrote. Filled dots became text; beside each node stand who drafted it\n"
             "and the estimated probability that the path up to it is accepted.",
    .examples = "  dgraft run -m model.gguf -p 'Once' --mode fused --drafter drafter/ --trace rounds.jsonl\n"
                "  dgraft show rounds.jsonl --round 3",
    .run = show,
};
