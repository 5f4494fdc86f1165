/* dgraft chat: a conversation. Every turn syncs the session with the whole conversation, so what the turns
 * share stays evaluated. Line editing by libedit where the build has it (DG_LIBEDIT) and both ends are a
 * terminal. */
#include "runtime/cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef DG_LIBEDIT
#include <histedit.h>
#include <locale.h>
#endif

/* ---- lines ------------------------------------------------------------------------------------ */

typedef enum line_result { LINE_TEXT, LINE_END, LINE_INTERRUPTED } line_result;

typedef struct reader {
    bool terminal;
    const char *prompt;
    char *line; /* getline's */
    size_t cap;
#ifdef DG_LIBEDIT
    EditLine *editor;
    History *history;
#endif
} reader;

#ifdef DG_LIBEDIT
static char *editor_prompt(EditLine *editor) {
    reader *r;
    el_get(editor, EL_CLIENTDATA, &r);
    return (char *)r->prompt;
}
#endif

static void reader_open(reader *r) {
    *r = (reader){.terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO), .prompt = "> "};
#ifdef DG_LIBEDIT
    if (!r->terminal) return;
    /* the editor reads characters, not bytes; text is UTF-8 everywhere in dgraft */
    setlocale(LC_CTYPE, "");
    if (MB_CUR_MAX == 1) setlocale(LC_CTYPE, "C.UTF-8");
    r->editor = el_init("dgraft", stdin, stdout, stderr);
    if (!r->editor) return;
    HistEvent event;
    r->history = history_init();
    if (r->history) {
        history(r->history, &event, H_SETSIZE, 500);
        el_set(r->editor, EL_HIST, history, r->history);
    }
    el_set(r->editor, EL_CLIENTDATA, r);
    el_set(r->editor, EL_PROMPT, editor_prompt);
    el_set(r->editor, EL_EDITOR, "emacs");
    el_set(r->editor, EL_BIND, "^R", "em-inc-search-prev", NULL);
#endif
}

static void reader_close(reader *r) {
#ifdef DG_LIBEDIT
    if (r->history) history_end(r->history);
    if (r->editor) el_end(r->editor);
#endif
    free(r->line);
}

/* One line, valid until the next; without its newline. */
static line_result reader_line(reader *r, const char **text) {
    ssize_t len = -1;
    errno = 0;
#ifdef DG_LIBEDIT
    if (r->editor) {
        int n = 0;
        const char *line = el_gets(r->editor, &n);
        if (line && n > 0) {
            r->line = cli_grow(r->line, (size_t)n + 1);
            memcpy(r->line, line, (size_t)n);
            r->line[n] = '\0';
            r->cap = (size_t)n + 1;
            len = n;
            HistEvent event;
            if (r->history && n > 1) history(r->history, &event, H_ENTER, line);
        }
    } else
#endif
    {
        if (r->terminal) {
            fputs(r->prompt, stdout);
            fflush(stdout);
        }
        len = getline(&r->line, &r->cap, stdin);
    }
    if (cli_interrupts) {
        clearerr(stdin);
        return LINE_INTERRUPTED;
    }
    if (len < 0) return LINE_END;
    if (len && r->line[len - 1] == '\n') r->line[len - 1] = '\0';
    *text = r->line;
    return LINE_TEXT;
}

/* ---- the conversation ------------------------------------------------------------------------- */

typedef struct talk {
    const cli_options *o;
    cli_drafts drafts;
    dg_model *model;
    dg_session *session;
    char *system;        /* NULL: none */
    dg_message *message; /* user and assistant in turn; contents are owned */
    size_t n, cap;
    cli_answer last; /* with its statistics, for /stats */
    bool answered, write_failed;
} talk;

static void push(talk *t, const char *role, const char *content) {
    if (t->n == t->cap) {
        t->cap = t->cap ? 2 * t->cap : 16;
        t->message = cli_grow(t->message, t->cap * sizeof *t->message);
    }
    t->message[t->n++] = (dg_message){role, cli_format("%s", content)};
}

static void pop(talk *t) {
    free((char *)t->message[--t->n].content);
}

static void reset(talk *t) {
    while (t->n) pop(t);
}

static int conversation_tokens(talk *t, cli_ids *ids) {
    const size_t lead = t->system ? 1 : 0;
    dg_message *all = cli_alloc((t->n + lead) * sizeof *all);
    if (lead) all[0] = (dg_message){"system", t->system};
    memcpy(all + lead, t->message, t->n * sizeof *all);
    const int status = cli_chat_tokens(t->model, all, t->n + lead, cli_thinking(t->o), ids);
    free(all);
    return status;
}

static bool show_piece(void *ud, const dg_piece *p) {
    talk *t = ud;
    if (!p->len) return true;
    cli_text_shown(p->text, p->len);
    t->write_failed = fwrite(p->text, 1, p->len, stdout) != p->len || fflush(stdout) != 0;
    return !t->write_failed;
}

/* Says what a user should know of how the answer ended. */
static void explain_end(const talk *t) {
    if (t->last.why == DG_STOP_CONTEXT) {
        fputs("(the context is full and the answer cut: /reset starts anew, a larger -c holds more)\n",
              stderr);
    } else if (t->last.why == DG_STOP_CANCELLED) {
        fputs("(stopped)\n", stderr);
    } else if (t->last.why == DG_STOP_LIMIT) {
        fprintf(stderr, "(cut after %lld tokens, as -n says)\n", (long long)t->o->predict);
    }
}

static int answer(talk *t, const char *line) {
    cli_ids ids = {0};
    push(t, "user", line);
    int status = conversation_tokens(t, &ids);
    if (status != CLI_OK) {
        pop(t);
        return status;
    }
    cli_answer_free(&t->last);
    cli_forget_interrupts();
    const dg_status st = cli_generate(t->session, &ids, t->o->predict, show_piece, t, &t->last);
    cli_forget_interrupts();
    free(ids.v);
    t->answered = st == DG_OK;
    if (t->last.text.len && t->last.text.data[t->last.text.len - 1] != '\n') putchar('\n');
    cli_text_shown("\n", 1);
    if (t->write_failed) return cli_finish_output(CLI_OK);
    if (st == DG_ERR_CONTEXT_FULL) {
        pop(t);
        cli_error("%s: the message was dropped; /reset starts anew, a larger -c holds more",
                  dg_error_message());
        return CLI_OK;
    }
    if (st != DG_OK) return cli_library_error(st, NULL);
    push(t, "assistant", cli_answer_message(t->model, &t->last));
    explain_end(t);
    if (t->o->verbose) cli_print_summary(&t->last, &t->drafts, NULL, false);
    return cli_finish_output(CLI_OK);
}

/* ---- commands of the prompt ------------------------------------------------------------------- */

static const char *slash_name(size_t i) {
    static const char *const name[] = {"/help", "/reset", "/stats", "/system", "/quit"};
    return i < sizeof name / sizeof *name ? name[i] : NULL;
}

/* A chat format may have no system message, or none of this kind: then the old one stays. */
static void set_system(talk *t, const char *text) {
    char *old = t->system;
    cli_ids ids = {0};
    t->system = *text ? cli_format("%s", text) : NULL;
    push(t, "user", "x");
    const int status = conversation_tokens(t, &ids);
    pop(t);
    free(ids.v);
    if (status != CLI_OK) {
        free(t->system);
        t->system = old;
        return;
    }
    free(old);
    fprintf(stderr, "(%s%s)\n", *text ? "system message set" : "no system message",
            t->n ? "; it holds for the whole conversation" : "");
}

/* false: /quit */
static bool slash(talk *t, const char *line) {
    const size_t len = strcspn(line, " ");
    const char *rest = line + len + strspn(line + len, " ");
    if (len == 5 && memcmp(line, "/quit", 5) == 0) return false;
    if (len == 5 && memcmp(line, "/help", 5) == 0) {
        fputs("/reset         forget the conversation\n"
              "/system TEXT   set the system message; without TEXT: none\n"
              "/stats         how the last answer came about\n"
              "/quit          leave (as does Ctrl-D, or Ctrl-C twice)\n"
              "A line that ends in \\ goes on in the next. Ctrl-C stops an answer.\n",
              stderr);
    } else if (len == 6 && memcmp(line, "/reset", 6) == 0) {
        reset(t);
        fputs("(a new conversation)\n", stderr);
    } else if (len == 6 && memcmp(line, "/stats", 6) == 0) {
        if (t->answered) {
            cli_print_stats(&t->last, &t->drafts);
            cli_print_summary(&t->last, &t->drafts, NULL, false);
        } else {
            fputs("(no answer yet)\n", stderr);
        }
    } else if (len == 7 && memcmp(line, "/system", 7) == 0) {
        set_system(t, rest);
    } else {
        char *word = cli_format("%.*s", (int)len, line);
        const char *near = cli_nearest(word, slash_name);
        cli_error("there is no %s; %s%s", word, near ? "did you mean " : "/help lists what there is",
                  near ? near : "");
        free(word);
    }
    return true;
}

/* ---- the command ------------------------------------------------------------------------------ */

/* A message may go over several lines that end in '\'; text is whole then. */
static line_result read_message(reader *r, cli_buffer *text) {
    const char *line;
    line_result result;
    text->len = 0;
    r->prompt = "> ";
    while ((result = reader_line(r, &line)) == LINE_TEXT) {
        const size_t len = strlen(line);
        if (!len || line[len - 1] != '\\') {
            cli_append(text, line, len);
            return LINE_TEXT;
        }
        cli_append(text, line, len - 1);
        cli_append(text, "\n", 1);
        r->prompt = "| ";
    }
    return result == LINE_END && text->len ? LINE_TEXT : result;
}

static int converse(talk *t, reader *r) {
    cli_buffer text = {0};
    int status = CLI_OK;
    bool warned = false;
    while (status == CLI_OK) {
        cli_forget_interrupts();
        const line_result result = read_message(r, &text);
        if (result == LINE_END) {
            if (r->terminal) putchar('\n');
            break;
        }
        if (result == LINE_INTERRUPTED) {
            if (warned || !r->terminal) {
                status = CLI_INTERRUPTED;
                break;
            }
            fputs("\n(Ctrl-C once more leaves; so does /quit)\n", stderr);
            warned = true;
            continue;
        }
        warned = false;
        if (!text.len) continue;
        if (text.data[0] == '/') {
            if (!slash(t, text.data)) break;
            continue;
        }
        const size_t valid = cli_utf8_valid(text.data, text.len);
        if (valid < text.len) cli_warn("the message is not valid UTF-8 from byte %zu on", valid + 1);
        status = answer(t, text.data);
    }
    free(text.data);
    return status;
}

static int start(talk *t) {
    int status = cli_open(t->o, &t->model);
    if (status != CLI_OK) return status;
    dg_session_options so;
    cli_session_options(t->o, &t->drafts, t->model, &so);
    const dg_status st = dg_session_create(t->model, &so, &t->session);
    if (st != DG_OK) return cli_library_error(st, NULL);
    /* a model without a known chat format should fail here and not after the first message is typed */
    push(t, "user", "x");
    cli_ids ids = {0};
    status = conversation_tokens(t, &ids);
    free(ids.v);
    reset(t);
    return status;
}

static int run(const cli_options *o) {
    talk t = {.o = o, .system = o->system && *o->system ? cli_format("%s", o->system) : NULL};
    int status = cli_drafts_read(o, &t.drafts);
    if (status == CLI_OK) status = start(&t);
    if (status == CLI_OK) {
        reader r;
        cli_catch_interrupts(3);
        reader_open(&r);
        if (r.terminal) fprintf(stderr, "drafters: %s; /help lists the commands\n", t.drafts.label);
        status = cli_finish_output(converse(&t, &r));
        reader_close(&r);
    }
    reset(&t);
    free(t.message);
    free(t.system);
    cli_answer_free(&t.last);
    dg_session_free(t.session);
    dg_model_close(t.model);
    cli_drafts_free(&t.drafts);
    return status;
}

const cli_command cli_chat = {
    .name = "chat",
    .bit = CLI_CHAT,
    .summary = "talk with a model",
    .about =
        "A conversation: one line, one message; a line that ends in \\ goes on in the next. Commands:\n"
        "/help, /reset, /stats, /system TEXT, /quit. Ctrl-C stops an answer; twice at the prompt it leaves.\n"
        "When standard input is not a terminal, every line of it is a message.",
    .examples = "  dgraft chat -m model.gguf --draft dflash:drafter/\n"
                "  dgraft chat -m model.gguf --system 'Answer in one sentence.' --temp 0.7 -c 8192\n"
                "  printf 'Hello\\nAnd in French?\\n' | dgraft chat -m model.gguf",
    .run = run,
};
