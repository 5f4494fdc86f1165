/* See prompts.h. */
#include "bench/prompts.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct reader {
    bench_prompts *to;
    const char *path;
    int per_category, line;
    char *error;
    size_t cap;
} reader;

static bool refuse(const reader *r, const char *expected, const char *found) {
    snprintf(r->error, r->cap, "%s:%d: expected %s, found %s", r->path, r->line, expected, found);
    return false;
}

static const char *text_of(const json_t *j, const char *key) {
    return json_string_value(json_object_get(j, key));
}

/* prefix, text and a middle as one string; free(). */
static char *join(const char *first, const char *middle, const char *last) {
    const size_t n = strlen(first) + strlen(middle) + strlen(last) + 1;
    char *s = malloc(n);
    if (s) snprintf(s, n, "%s%s%s", first, middle, last);
    return s;
}

static char *copy(const char *s) {
    return s ? join(s, "", "") : NULL;
}

/* ---- forms ------------------------------------------------------------------------------------ */

/* Each takes an object apart or leaves p->text NULL. */
static void read_long_bench(const json_t *j, bench_prompt *p) {
    const char *context = text_of(j, "context"), *input = text_of(j, "input"), *set = text_of(j, "dataset");
    if (!context || !input) return;
    p->text = join(context, *input ? "\n\n" : "", input);
    p->category = copy(set ? set : "longbench");
}

static void read_cnn(const json_t *j, bench_prompt *p) {
    const char *article = text_of(j, "article");
    if (!article) return;
    p->text = join("Summarise this article in three sentences.\n\n", article, "");
    p->category = copy("cnn-dm");
}

static void read_alpaca(const json_t *j, bench_prompt *p) {
    const char *instruction = text_of(j, "instruction"), *input = text_of(j, "input");
    if (!instruction) return;
    p->text = join(instruction, input && *input ? "\n\n" : "", input ? input : "");
    p->category = copy("alpaca");
}

static void read_gsm8k(const json_t *j, bench_prompt *p) {
    const char *question = text_of(j, "question");
    if (!question) return;
    p->text = copy(question);
    p->category = copy("gsm8k");
}

static void read_plain(const json_t *j, bench_prompt *p) {
    const char *text = text_of(j, "prompt"), *category = text_of(j, "category");
    if (!text) text = json_string_value(json_array_get(json_object_get(j, "turns"), 0));
    if (!text) return;
    p->text = copy(text);
    p->category = copy(category ? category : text_of(j, "entry_point") ? "humaneval" : "all");
    p->system = copy(text_of(j, "system"));
}

static char *id_of(const json_t *j, const reader *r) {
    static const char *const key[] = {"id", "_id", "question_id", "task_id"};
    char made[64];
    for (size_t i = 0; i < sizeof key / sizeof *key; i++) {
        const json_t *v = json_object_get(j, key[i]);
        if (json_is_string(v)) return copy(json_string_value(v));
        if (!json_is_integer(v)) continue;
        snprintf(made, sizeof made, "%lld", (long long)json_integer_value(v));
        return copy(made);
    }
    const char *leaf = strrchr(r->path, '/');
    snprintf(made, sizeof made, "%.40s:%d", leaf ? leaf + 1 : r->path, r->line);
    return copy(made);
}

/* ---- adding ----------------------------------------------------------------------------------- */

static void drop(bench_prompt *p) {
    free(p->id), free(p->category), free(p->text), free(p->system);
    *p = (bench_prompt){0};
}

static bool add(const reader *r, bench_prompt *p) {
    bench_prompts *to = r->to;
    int have = 0;
    for (int i = 0; i < to->n; i++) {
        const bool same = !strcmp(to->v[i].category, p->category);
        have += same;
        if (same && !strcmp(to->v[i].id, p->id))
            return refuse(r, "an id of its own in every category", p->id);
    }
    if (r->per_category && have >= r->per_category) {
        drop(p);
        return true;
    }
    bench_prompt *more = realloc(to->v, ((size_t)to->n + 1) * sizeof *more);
    if (!more) return refuse(r, "memory", "none");
    to->v = more;
    to->v[to->n++] = *p;
    return true;
}

static bool take(const reader *r, const json_t *j) {
    static void (*const form[])(const json_t *, bench_prompt *) = {read_plain, read_long_bench, read_cnn,
                                                                   read_alpaca, read_gsm8k};
    bench_prompt p = {0};
    if (!json_is_object(j)) return refuse(r, "a JSON object", "something else");
    for (size_t i = 0; i < sizeof form / sizeof *form && !p.text; i++) form[i](j, &p);
    if (!p.text)
        return refuse(r,
                      "one of the fields prompt, turns, context with input, article, instruction, question",
                      "none of them");
    if (!*p.text) {
        drop(&p);
        return refuse(r, "a prompt", "an empty one");
    }
    p.id = id_of(j, r);
    if (!p.id || !p.category) {
        drop(&p);
        return refuse(r, "memory", "none");
    }
    if (add(r, &p)) return true;
    drop(&p);
    return false;
}

static bool read_lines(reader *r, FILE *f) {
    char *line = NULL;
    size_t cap = 0;
    bool ok = true;
    while (ok && getline(&line, &cap, f) > 0) {
        r->line++;
        if (!line[strspn(line, " \t\r\n")]) continue;
        json_error_t e;
        json_t *j = json_loads(line, 0, &e);
        ok = j ? take(r, j) : refuse(r, "a JSON object", e.text);
        json_decref(j);
    }
    if (ok && ferror(f)) ok = refuse(r, "a readable file", strerror(errno));
    free(line);
    return ok;
}

static bool read_array(reader *r, FILE *f) {
    json_error_t e;
    json_t *all = json_loadf(f, 0, &e);
    r->line = e.line > 0 ? e.line : 1;
    bool ok = all || refuse(r, "a JSON array", e.text);
    for (size_t i = 0; ok && i < json_array_size(all); i++) {
        r->line = (int)i + 1; /* of an array: the element */
        ok = take(r, json_array_get(all, i));
    }
    json_decref(all);
    return ok;
}

bool bench_prompts_read(bench_prompts *p, const char *path, int per_category, char *error, size_t cap) {
    FILE *f = fopen(path, "r");
    if (!f) {
        snprintf(error, cap, "%s: %s", path, strerror(errno));
        return false;
    }
    reader r = {.to = p, .path = path, .per_category = per_category, .error = error, .cap = cap};
    const int before = p->n;
    const int first = fgetc(f);
    ungetc(first, f);
    const bool ok = first == '[' ? read_array(&r, f) : read_lines(&r, f);
    fclose(f);
    while (!ok && p->n > before) drop(&p->v[--p->n]);
    return ok;
}

/* ---- order ------------------------------------------------------------------------------------ */

void bench_prompts_mix(bench_prompts *p) {
    bench_prompt *out = malloc(((size_t)p->n + 1) * sizeof *out);
    int *turn = malloc(((size_t)p->n + 1) * sizeof *turn);
    if (!out || !turn) abort();
    int most = 0, at = 0;
    for (int i = 0; i < p->n; i++) {
        turn[i] = 0;
        for (int j = 0; j < i; j++) turn[i] += !strcmp(p->v[i].category, p->v[j].category);
        if (turn[i] > most) most = turn[i];
    }
    for (int t = 0; t <= most; t++)
        for (int i = 0; i < p->n; i++)
            if (turn[i] == t) out[at++] = p->v[i];
    free(turn), free(p->v);
    p->v = out;
}

void bench_prompts_free(bench_prompts *p) {
    for (int i = 0; i < p->n; i++) drop(&p->v[i]);
    free(p->v);
    *p = (bench_prompts){0};
}
