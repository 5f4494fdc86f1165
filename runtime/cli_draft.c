/* Drafter lists as users write them: --draft NAME[:PATH][,key=value...], --mode, --drafter, --budget.
 * Knows the names only through dg_drafter_name and dg_mode_get. */
#include "runtime/cli.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *drafter_or_none(size_t i) {
    return i == 0 ? "none" : dg_drafter_name(i - 1);
}

static const char *mode_name(size_t i) {
    const dg_mode *mode = dg_mode_get(i);
    return mode ? mode->name : NULL;
}

/* Names separated by ", " for messages; free(). */
static char *join_names(const char *(*next)(size_t i)) {
    cli_buffer b = {0};
    const char *name;
    for (size_t i = 0; (name = next(i)); i++) {
        if (i) cli_append(&b, ", ", 2);
        cli_append(&b, name, strlen(name));
    }
    cli_append(&b, "", 0);
    return b.data;
}

static int unknown_name(const char *option, const char *what, const char *name,
                        const char *(*next)(size_t i)) {
    char *names = join_names(next);
    const char *near = cli_nearest(name, next);
    if (near) {
        cli_error("%s: there is no %s '%s'; did you mean '%s'? (%s)", option, what, name, near, names);
    } else {
        cli_error("%s: there is no %s '%s' (%s)", option, what, name, names);
    }
    free(names);
    return CLI_USAGE;
}

static bool is_drafter(const char *name) {
    const char *known;
    for (size_t i = 0; (known = dg_drafter_name(i)); i++)
        if (strcmp(known, name) == 0) return true;
    return false;
}

/* Where ",key=value..." begins: a path may hold commas, so only one that a key and '=' follow counts. */
static char *find_params(char *text) {
    for (char *p = strchr(text, ','); p; p = strchr(p + 1, ',')) {
        const char *q = p + 1;
        while (isalnum((unsigned char)*q) || *q == '_' || *q == '-') q++;
        if (q > p + 1 && *q == '=') return p;
    }
    return NULL;
}

/* In a path that leads nowhere, what stands behind the last comma, if it looks like the key of a parameter; NULL. */
static const char *bare_key(const char *path) {
    const char *comma = strrchr(path, ',');
    if (!comma || !comma[1] || access(path, F_OK) == 0) return NULL;
    for (const char *p = comma + 1; *p; p++)
        if (!isalnum((unsigned char)*p) && *p != '_' && *p != '-') return NULL;
    return comma + 1;
}

/* Adds one drafter; takes text (owned) apart in place. shown: how the user wrote it. */
static int add_draft(cli_drafts *d, char *text, const char *option, const char *shown) {
    if (d->n == CLI_LIST_MAX) {
        free(text);
        cli_error("%s: more than %d drafters", option, CLI_LIST_MAX);
        return CLI_USAGE;
    }
    d->text[d->n] = text;
    dg_draft *draft = &d->v[d->n++];
    *draft = (dg_draft){0};
    draft->name = text;
    char *params = find_params(text);
    if (params) {
        *params = '\0';
        draft->params = params + 1;
    }
    char *colon = strchr(text, ':');
    if (colon) {
        *colon = '\0';
        draft->path = colon + 1;
        if (!*draft->path) {
            cli_error("%s: the path after ':' is empty in '%s'", option, shown);
            return CLI_USAGE;
        }
        const char *key = bare_key(draft->path);
        if (key) {
            cli_error("%s: expected key=value after ',', found '%s' in '%s' (a switch is turned on by %s=1)", option, key, shown,
                      key);
            return CLI_USAGE;
        }
    }
    char *comma = strchr(text, ',');
    if (comma) {
        cli_error("%s: expected key=value after ',', found '%s' in '%s'", option, comma + 1, shown);
        return CLI_USAGE;
    }
    if (!is_drafter(text)) return unknown_name(option, "drafter", text, drafter_or_none);
    return CLI_OK;
}

/* The path that --drafter gives for {name}: `--drafter name:PATH`, or `--drafter PATH` for any. Marks it as used. */
static const char *placeholder_path(const cli_options *o, const char *name, size_t len, bool *used) {
    size_t any = o->drafter.n;
    for (size_t i = 0; i < o->drafter.n; i++) {
        const char *given = o->drafter.v[i];
        if (strncmp(given, name, len) == 0 && given[len] == ':') {
            used[i] = true;
            return given + len + 1;
        }
        char *head = cli_format("%.*s", (int)strcspn(given, ":"), given);
        if (!is_drafter(head)) any = i;
        free(head);
    }
    if (any == o->drafter.n) return NULL;
    used[any] = true;
    return o->drafter.v[any];
}

/* One draft of a mode with its {placeholder} replaced. used: by --drafter, see placeholder_path. */
static int expand_draft(const cli_options *o, const dg_mode *mode, const char *draft, size_t len,
                        bool *used, cli_drafts *d) {
    cli_buffer b = {0};
    int status = CLI_OK;
    for (size_t i = 0; i < len && status == CLI_OK; i++) {
        const char *close = draft[i] == '{' ? memchr(draft + i, '}', len - i) : NULL;
        if (!close) {
            cli_append(&b, draft + i, 1);
            continue;
        }
        const size_t name_len = (size_t)(close - draft) - i - 1;
        const char *path = placeholder_path(o, draft + i + 1, name_len, used);
        if (!path) {
            cli_error("--mode %s expands to '%s' and needs the weights of %.*s: add --drafter PATH",
                      mode->name, mode->drafts, (int)name_len, draft + i + 1);
            status = CLI_USAGE;
        } else {
            cli_append(&b, path, strlen(path));
        }
        i += name_len + 1;
    }
    if (status != CLI_OK) {
        free(b.data);
        return status;
    }
    char *shown = cli_format("%s", b.data);
    status = add_draft(d, b.data, "--mode", shown);
    free(shown);
    return status;
}

static int read_mode(const cli_options *o, cli_drafts *d) {
    const dg_mode *mode = NULL;
    for (size_t i = 0; !mode && i < dg_mode_count(); i++)
        if (strcmp(mode_name(i), o->mode) == 0) mode = dg_mode_get(i);
    if (!mode) return unknown_name("--mode", "mode", o->mode, mode_name);
    d->budget = mode->budget;
    const char *p = mode->drafts ? mode->drafts : "";
    bool used[CLI_LIST_MAX] = {0};
    while (*(p += strspn(p, " "))) {
        const size_t len = strcspn(p, " ");
        if (len != 4 || memcmp(p, "none", 4) != 0) {
            const int status = expand_draft(o, mode, p, len, used, d);
            if (status != CLI_OK) return status;
        }
        p += len;
    }
    for (size_t i = 0; i < o->drafter.n; i++) {
        if (used[i]) continue;
        cli_error("--drafter %s: --mode %s ('%s') has no weights to fill in with it", o->drafter.v[i], mode->name,
                  mode->drafts ? mode->drafts : "");
        return CLI_USAGE;
    }
    return CLI_OK;
}

static int read_drafts(const cli_options *o, cli_drafts *d) {
    for (size_t i = 0; i < o->draft.n; i++) {
        const char *text = o->draft.v[i];
        if (strcmp(text, "none") == 0) {
            if (o->draft.n == 1) return CLI_OK;
            cli_error("--draft none means plain decoding and stands alone; found %zu --draft options",
                      o->draft.n);
            return CLI_USAGE;
        }
        const int status = add_draft(d, cli_format("%s", text), "--draft", text);
        if (status != CLI_OK) return status;
    }
    return CLI_OK;
}

static int read_budget(const cli_options *o, cli_drafts *d) {
    enum { VERIFY_BUDGET = 15 }; /* auto leaves out what does not pay, and what is left out is not verified */
    if (!o->budget) {
        if (o->command == CLI_VERIFY && !d->budget) d->budget = VERIFY_BUDGET;
        return CLI_OK;
    }
    if (strcmp(o->budget, "auto") == 0) {
        d->budget = 0;
        return CLI_OK;
    }
    char *end;
    const long v = strtol(o->budget, &end, 10);
    if (end == o->budget || *end || v < 1 || v > 255) {
        cli_error("--budget: expected auto or a whole number from 1 to 255, found '%s'", o->budget);
        return CLI_USAGE;
    }
    d->budget = (int32_t)v;
    return CLI_OK;
}

static int count_root(cli_drafts *d) {
    if (d->budget > 1) {
        d->budget--;
        return CLI_OK;
    }
    cli_error("--count-root: expected a budget of 2 or more, found %s", d->budget ? "1" : "auto");
    return CLI_USAGE;
}

int cli_drafts_read(const cli_options *o, cli_drafts *out) {
    *out = (cli_drafts){0};
    int status = CLI_OK;
    if (o->mode && o->draft.n) {
        cli_error(
            "--mode %s already names its drafters: leave out --draft, and give weights with --drafter PATH",
            o->mode);
        status = CLI_USAGE;
    } else if (o->drafter.n && !o->mode) {
        cli_error("--drafter fills in the weights of a --mode; without one write --draft NAME:%s",
                  o->drafter.v[0]);
        status = CLI_USAGE;
    } else {
        status = o->mode ? read_mode(o, out) : read_drafts(o, out);
    }
    if (status == CLI_OK) status = read_budget(o, out);
    if (status == CLI_OK && o->count_root) status = count_root(out);
    if (status != CLI_OK) {
        cli_drafts_free(out);
        return status;
    }
    const bool optional = o->command & (CLI_RUN | CLI_CHAT | CLI_INFO); /* the others need drafters and say so */
    if (!out->n && optional && (o->budget || o->calibration)) {
        cli_warn("%s changes nothing: there are no drafters (--draft, --mode)", o->budget ? "--budget" : "--calibration");
    }
    cli_buffer label = {0};
    for (size_t i = 0; i < out->n; i++) {
        if (i) cli_append(&label, "+", 1);
        cli_append(&label, out->v[i].name, strlen(out->v[i].name));
    }
    if (!out->n) cli_append(&label, "none", 4);
    out->label = label.data;
    return CLI_OK;
}

void cli_drafts_free(cli_drafts *d) {
    for (size_t i = 0; i < d->n; i++) free(d->text[i]);
    free(d->label);
    *d = (cli_drafts){0};
}

json_t *cli_drafts_json(const cli_drafts *d) {
    json_t *list = json_array();
    for (size_t i = 0; i < d->n; i++) {
        json_t *one = json_object();
        json_object_set_new(one, "name", json_string(d->v[i].name));
        if (d->v[i].path) json_object_set_new(one, "path", cli_json_text(d->v[i].path, strlen(d->v[i].path)));
        if (d->v[i].params) {
            json_object_set_new(one, "params", cli_json_text(d->v[i].params, strlen(d->v[i].params)));
        }
        json_array_append_new(list, one);
    }
    return list;
}
