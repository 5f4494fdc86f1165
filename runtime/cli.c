/* The plain services of the program: messages, memory, text, files, progress, Ctrl-C.
 * Knows nothing of models. UTF-8 validity follows table 3-7 of the Unicode standard. */
#include "runtime/cli.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- messages --------------------------------------------------------------------------------- */

static bool text_open; /* the text on standard output has not ended its line */

void cli_text_shown(const char *text, size_t len) {
    if (len) text_open = text[len - 1] != '\n';
}

/* Whether both streams go to one terminal, file or pipe. */
static bool streams_meet(void) {
    struct stat out, err;
    return fstat(STDOUT_FILENO, &out) == 0 && fstat(STDERR_FILENO, &err) == 0 && out.st_dev == err.st_dev &&
           out.st_ino == err.st_ino;
}

void cli_begin_line(void) {
    cli_progress_clear();
    if (text_open && streams_meet()) {
        fflush(stdout);
        fputc('\n', stderr);
        text_open = false;
    }
}

void cli_end_text(void) {
    if (text_open && isatty(STDOUT_FILENO)) {
        putchar('\n');
        text_open = false;
    }
    cli_begin_line();
    text_open = false;
    fflush(stdout);
}

static void print_line(const char *kind, const char *fmt, va_list args) {
    cli_begin_line();
    fprintf(stderr, "%s: ", kind);
    vfprintf(stderr, fmt, args);
    fputc('\n', stderr);
}

void cli_error(const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    print_line("error", fmt, args);
    va_end(args);
}

void cli_warn(const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    print_line("warning", fmt, args);
    va_end(args);
}

int cli_library_error(dg_status st, const char *what) {
    const char *message = dg_error_message();
    if (!message || !*message) message = dg_status_name(st);
    if (what) {
        cli_error("%s: %s", what, message);
    } else {
        cli_error("%s", message);
    }
    return st == DG_ERR_ARGUMENT ? CLI_USAGE : CLI_FAILED;
}

/* ---- memory ----------------------------------------------------------------------------------- */

void *cli_grow(void *p, size_t bytes) {
    void *grown = realloc(p, bytes ? bytes : 1);
    if (!grown) {
        cli_error("no memory for %zu bytes", bytes);
        exit(CLI_FAILED);
    }
    return grown;
}

void *cli_alloc(size_t bytes) {
    void *p = cli_grow(NULL, bytes);
    memset(p, 0, bytes);
    return p;
}

char *cli_format(const char *fmt, ...) {
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    const int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    char *text = cli_alloc((size_t)n + 1);
    vsnprintf(text, (size_t)n + 1, fmt, again);
    va_end(again);
    return text;
}

void cli_append(cli_buffer *b, const char *text, size_t len) {
    if (b->len + len + 1 > b->cap) {
        b->cap = (b->len + len + 1) * 2;
        b->data = cli_grow(b->data, b->cap);
    }
    if (len) memcpy(b->data + b->len, text, len);
    b->len += len;
    b->data[b->len] = '\0';
}

/* ---- text ------------------------------------------------------------------------------------- */

/* Length of the well-formed UTF-8 character at p, 0 if there is none. */
static size_t utf8_character(const unsigned char *p, size_t len) {
    static const struct {
        unsigned char first, last, lo, hi; /* range of the lead byte, and of the byte after it */
        size_t len;
    } form[] = {{0x00, 0x7F, 0, 0, 1},       {0xC2, 0xDF, 0x80, 0xBF, 2}, {0xE0, 0xE0, 0xA0, 0xBF, 3},
                {0xE1, 0xEC, 0x80, 0xBF, 3}, {0xED, 0xED, 0x80, 0x9F, 3}, {0xEE, 0xEF, 0x80, 0xBF, 3},
                {0xF0, 0xF0, 0x90, 0xBF, 4}, {0xF1, 0xF3, 0x80, 0xBF, 4}, {0xF4, 0xF4, 0x80, 0x8F, 4}};
    for (size_t i = 0; i < sizeof form / sizeof *form; i++) {
        if (p[0] < form[i].first || p[0] > form[i].last) continue;
        if (form[i].len > len) return 0;
        if (form[i].len > 1 && (p[1] < form[i].lo || p[1] > form[i].hi)) return 0;
        for (size_t k = 2; k < form[i].len; k++)
            if ((p[k] & 0xC0) != 0x80) return 0;
        return form[i].len;
    }
    return 0;
}

size_t cli_utf8_valid(const char *text, size_t len) {
    size_t i = 0;
    while (i < len) {
        const size_t n = utf8_character((const unsigned char *)text + i, len - i);
        if (!n) break;
        i += n;
    }
    return i;
}

json_t *cli_json_text(const char *text, size_t len) {
    cli_buffer fixed = {0};
    cli_append(&fixed, "", 0);
    while (len) {
        const size_t good = cli_utf8_valid(text, len);
        cli_append(&fixed, text, good);
        text += good, len -= good;
        if (len) {
            cli_append(&fixed, "\xEF\xBF\xBD", 3);
            text++, len--;
        }
    }
    json_t *value = json_stringn(fixed.data, fixed.len);
    free(fixed.data);
    return value;
}

void cli_print_quoted(const char *text, size_t len) {
    putchar('"');
    while (len) {
        const unsigned char c = (unsigned char)*text;
        const size_t n = utf8_character((const unsigned char *)text, len);
        if (c == '\n') {
            fputs("\\n", stdout);
        } else if (c == '\t') {
            fputs("\\t", stdout);
        } else if (c == '"' || c == '\\') {
            printf("\\%c", c);
        } else if (!n || c < 0x20 || c == 0x7F) {
            printf("\\x%02X", c);
        } else {
            fwrite(text, 1, n, stdout);
        }
        text += n ? n : 1;
        len -= n ? n : 1;
    }
    putchar('"');
}

/* ---- input and output ------------------------------------------------------------------------- */

bool cli_read_file(const char *path, cli_buffer *out) {
    const bool standard = strcmp(path, "-") == 0;
    FILE *f = standard ? stdin : fopen(path, "rb");
    if (!f) {
        cli_error("%s: %s", path, strerror(errno));
        return false;
    }
    char chunk[16384];
    size_t n;
    cli_append(out, "", 0);
    /* a terminal's end of file does not stick, so it must not be read over */
    while (!feof(f) && (n = fread(chunk, 1, sizeof chunk, f)) > 0) cli_append(out, chunk, n);
    const bool fine = !ferror(f);
    if (!fine) cli_error("%s: %s", standard ? "standard input" : path, strerror(errno));
    if (!standard) fclose(f);
    return fine;
}

void cli_print_json(json_t *value) {
    char *text = json_dumps(value, JSON_REAL_PRECISION(9));
    json_decref(value);
    if (!text) {
        cli_error("no memory for the JSON text");
        exit(CLI_FAILED);
    }
    puts(text);
    free(text);
}

int cli_finish_output(int status) {
    errno = 0;
    if (status == CLI_FAILED || (fflush(stdout) == 0 && !ferror(stdout))) return status;
    /* the stream's error flag outlives errno */
    cli_error("cannot write to standard output%s%s", errno ? ": " : "", errno ? strerror(errno) : "");
    return CLI_FAILED;
}

static bool progress_shown;

void cli_progress(const char *fmt, ...) {
    if (!isatty(STDERR_FILENO)) return;
    char line[256];
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    fprintf(stderr, "\r\033[K%s", line);
    fflush(stderr);
    progress_shown = true;
}

void cli_progress_clear(void) {
    if (progress_shown) fputs("\r\033[K", stderr);
    progress_shown = false;
}

double cli_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

const char *cli_bytes(uint64_t n, char out[32]) {
    static const char *const unit[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    double v = (double)n;
    size_t u = 0;
    while (v >= 1024 && u + 1 < sizeof unit / sizeof *unit) v /= 1024, u++;
    snprintf(out, 32, u ? "%.1f %s" : "%.0f %s", v, unit[u]);
    return out;
}

/* ---- Ctrl-C ----------------------------------------------------------------------------------- */

volatile sig_atomic_t cli_interrupts;
static int interrupt_patience;

static void on_interrupt(int number) {
    if (++cli_interrupts > interrupt_patience) {
        signal(number, SIG_DFL);
        raise(number);
    }
}

void cli_catch_interrupts(int patience) {
    interrupt_patience = patience;
    /* without SA_RESTART, so that a read at the prompt returns */
    struct sigaction action = {.sa_handler = on_interrupt};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
}

void cli_forget_interrupts(void) {
    cli_interrupts = 0;
}
