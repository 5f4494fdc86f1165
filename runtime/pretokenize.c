/* Pre-tokenization: cuts text into the pieces that merges may not cross, step by step as the file says.
 *
 * The only file that uses PCRE2. Patterns come from the file as given; they were written for Oniguruma, and
 * the few places where PCRE2 reads them otherwise are rewritten before compiling. */
#include "runtime/tokenizer_impl.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>

struct dg_pattern {
    pcre2_code *code;
};

struct dg_matcher {
    pcre2_match_data *data;
    pcre2_match_context *context;
};

enum {
    LEAST_STEPS = 10000000, /* backtracking allowed at one position: this or so much a byte */
    STEPS_PER_BYTE = 64,
    HEAP_LIMIT = 1 << 20 /* KiB for the interpreter's stack */
};

static void *memory_get(size_t n, void *ud) {
    (void)ud;
    return dg_mem_alloc(n);
}

static void memory_free(void *p, void *ud) {
    (void)ud;
    dg_mem_free(p);
}

/* ---- compiling -------------------------------------------------------------------------------- */

/* Classes as Oniguruma has them: white space without U+180E; words with marks, and outside of brackets with
 * the fractions and exponents of Latin-1; \h is a hexadecimal digit. WORD ends with letters in circles. */
#define SPACE                                                                                                \
    "\\t-\\r \\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"
#define NO_SPACE                                                                                             \
    "\\x{0}-\\x{8}\\x{E}-\\x{1F}!-\\x{84}\\x{86}-\\x{9F}\\x{A1}-\\x{167F}\\x{1681}-\\x{1FFF}"                \
    "\\x{200B}-\\x{2027}\\x{202A}-\\x{202E}\\x{2030}-\\x{205E}\\x{2060}-\\x{2FFF}\\x{3001}-\\x{10FFFF}"
#define WORD                                                                                                 \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{24B6}-\\x{24E9}\\x{1F130}-\\x{1F149}\\x{1F150}-\\x{1F169}"         \
    "\\x{1F170}-\\x{1F189}"
#define FRACTIONS "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}"

static const struct {
    char letter;
    const char *outside, *inside; /* of a class; NULL: as PCRE2 has it */
} escapes[] = {
    {'s', "[" SPACE "]", SPACE},
    {'S', "[^" SPACE "]", NO_SPACE},
    {'w', "[" WORD FRACTIONS "]", WORD},
    {'W', "[^" WORD FRACTIONS "]", NULL},
    {'h', "[0-9A-Fa-f]", "0-9A-Fa-f"},
    {'H', "[^0-9A-Fa-f]", NULL},
    {'b', "(?:(?<=[" WORD "])(?![" WORD "])|(?<![" WORD "])(?=[" WORD "]))", NULL},
    {'B', "(?:(?<=[" WORD "])(?=[" WORD "])|(?<![" WORD "])(?![" WORD "]))", NULL},
};

static const char *escape_meaning(char letter, bool in_class) {
    for (size_t i = 0; i < sizeof escapes / sizeof *escapes; i++)
        if (escapes[i].letter == letter) return in_class ? escapes[i].inside : escapes[i].outside;
    return NULL;
}

/* Length of the escape at p; \p{...} and the like count as one. */
static size_t escape_length(const char *p) {
    const char *close = strchr("pPxugko", p[1]) && p[2] == '{' ? strchr(p, '}') : NULL;
    return close ? (size_t)(close - p) + 1 : 2;
}

/* Length of the interval {n}, {n,} or {n,m} at p, 0 if it is none. */
static size_t interval_length(const char *p) {
    size_t n = 1 + strspn(p + 1, "0123456789");
    if (n == 1) return 0;
    if (p[n] == ',') n += 1 + strspn(p + n + 1, "0123456789");
    return p[n] == '}' ? n + 1 : 0;
}

/* Length of what opens a class at p: [ or [^, and a ] that stands for itself. */
static size_t class_open_length(const char *p) {
    const size_t n = p[1] == '^' ? 2 : 1;
    return p[n] == ']' ? n + 1 : n;
}

/* Rewrites what PCRE2 reads otherwise than Oniguruma: the escapes above, [:punct:], which has symbols there,
 * and x{n,m}+, which repeats the interval there and is possessive here. Set operations on classes are
 * refused. */
static dg_status translate(const char *regex, dg_buffer *out) {
    bool in_class = false;
    size_t n;
    for (const char *p = regex; *p; p += n) {
        const char *put = NULL;
        n = 1;
        if (*p == '\\' && p[1]) {
            n = escape_length(p);
            put = escape_meaning(p[1], in_class);
        } else if (in_class) {
            DG_CHECK(strncmp(p, "&&", 2) != 0, DG_ERR_UNSUPPORTED, "an intersection of character classes");
            const char *named = *p == '[' && p[1] == ':' ? strstr(p, ":]") : NULL;
            DG_CHECK(*p != '[' || named, DG_ERR_UNSUPPORTED, "a character class inside another");
            if (named) n = (size_t)(named - p) + 2;
            if (strncmp(p, "[:punct:]", 9) == 0) put = "\\p{P}\\p{S}";
            in_class = *p != ']';
        } else if (*p == '[') {
            n = class_open_length(p);
            in_class = true;
        } else if (*p == '{' && (n = interval_length(p)) > 0 && p[n] == '+') {
            const int least = atoi(p + 1);
            DG_CHECK(least <= 1, DG_ERR_UNSUPPORTED, "a repeated interval");
            put = least == 0 ? "*" : "+";
            n++;
        }
        if (n == 0) n = 1;
        DG_TRY(dg_buffer_add(out, put ? put : p, put ? strlen(put) : n));
    }
    return DG_OK;
}

static dg_status compile(const char *regex, struct dg_pattern *p) {
    dg_buffer text = {0};
    int code;
    PCRE2_SIZE at;
    pcre2_compile_context *context = NULL;
    pcre2_general_context *memory = pcre2_general_context_create(memory_get, memory_free, NULL);
    dg_status st = memory ? translate(regex, &text) : DG_OK;
    if (st != DG_OK) goto out;
    context = memory ? pcre2_compile_context_create(memory) : NULL;
    if (!context) {
        st = dg_fail(DG_ERR_MEMORY, "no memory");
        goto out;
    }
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    p->code = pcre2_compile((PCRE2_SPTR)text.p, text.n, PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &code, &at,
                            context);
    if (!p->code) {
        PCRE2_UCHAR message[128];
        pcre2_get_error_message(code, message, sizeof message);
        st = code == PCRE2_ERROR_HEAP_FAILED
                 ? dg_fail(DG_ERR_MEMORY, "no memory")
                 : dg_fail(DG_ERR_FORMAT, "%s at byte %zu", (const char *)message, (size_t)at);
        goto out;
    }
    pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE); /* without it matching is interpreted */
out:
    dg_mem_free(text.p);
    if (context) pcre2_compile_context_free(context);
    if (memory) pcre2_general_context_free(memory);
    return st;
}

dg_status dg_pattern_compile(const char *what, const char *regex, struct dg_pattern **out) {
    struct dg_pattern *p = dg_mem_calloc(1, sizeof *p);
    DG_CHECK(p, DG_ERR_MEMORY, "%s: no memory", what);
    const dg_status st = compile(regex, p);
    if (st != DG_OK) {
        dg_mem_free(p);
        return dg_fail_prefix(st, "%s: pattern \"%.200s\"", what, regex);
    }
    *out = p;
    return DG_OK;
}

void dg_pattern_free(struct dg_pattern *p) {
    if (!p) return;
    pcre2_code_free(p->code);
    dg_mem_free(p);
}

size_t dg_pattern_memory(const struct dg_pattern *p) {
    size_t code = 0, jit = 0;
    pcre2_pattern_info(p->code, PCRE2_INFO_SIZE, &code);
    pcre2_pattern_info(p->code, PCRE2_INFO_JITSIZE, &jit);
    return code + jit;
}

/* ---- matching --------------------------------------------------------------------------------- */

static dg_status matcher_create(struct dg_matcher **out) {
    pcre2_general_context *memory = pcre2_general_context_create(memory_get, memory_free, NULL);
    struct dg_matcher *m = dg_mem_calloc(1, sizeof *m);
    if (memory && m) {
        m->data = pcre2_match_data_create(1, memory); /* one pair of offsets: the whole match */
        m->context = pcre2_match_context_create(memory);
    }
    if (memory) pcre2_general_context_free(memory);
    if (!m || !m->data || !m->context) {
        dg_matcher_free(m);
        DG_FAIL(DG_ERR_MEMORY, "no memory to match a pattern");
    }
    pcre2_set_heap_limit(m->context, HEAP_LIMIT);
    *out = m;
    return DG_OK;
}

void dg_matcher_free(struct dg_matcher *m) {
    if (!m) return;
    if (m->data) pcre2_match_data_free(m->data);
    if (m->context) pcre2_match_context_free(m->context);
    dg_mem_free(m);
}

/* The first match at or after `from`; found is false when there is none. */
static dg_status find_pattern(dg_encoder *e, const struct dg_pattern *p, const char *s, size_t len,
                              size_t from, size_t *a, size_t *b, bool *found) {
    const struct dg_matcher *m = e->matcher;
    const uint32_t steps = (uint32_t)(len < UINT32_MAX / STEPS_PER_BYTE ? len * STEPS_PER_BYTE : UINT32_MAX);
    pcre2_set_match_limit(m->context, steps > LEAST_STEPS ? steps : LEAST_STEPS);
    uint32_t options = PCRE2_NO_UTF_CHECK;
    int rc = pcre2_match(p->code, (PCRE2_SPTR)s, len, from, options, m->data, m->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
        options |= PCRE2_NO_JIT; /* the interpreter keeps its stack on the heap */
        rc = pcre2_match(p->code, (PCRE2_SPTR)s, len, from, options, m->data, m->context);
    }
    *found = rc >= 0;
    if (*found) {
        const PCRE2_SIZE *at = pcre2_get_ovector_pointer(m->data);
        *a = at[0];
        *b = at[1] > at[0] ? at[1] : at[0]; /* \K in a lookahead can end before it begins */
        return DG_OK;
    }
    DG_CHECK(rc != PCRE2_ERROR_NOMEMORY, DG_ERR_MEMORY, "no memory to match a pattern");
    DG_CHECK(rc == PCRE2_ERROR_NOMATCH, DG_ERR_FORMAT,
             "a pre-tokenizer pattern gives up on %zu bytes of text (code %d)", len, rc);
    return DG_OK;
}

static dg_status find_literal(const char *text, const char *s, size_t len, size_t from, size_t *a, size_t *b,
                              bool *found) {
    const char *hit = memmem(s + from, len - from, text, strlen(text));
    *found = hit;
    if (hit) *a = (size_t)(hit - s), *b = *a + strlen(text);
    return DG_OK;
}

/* ---- cutting ---------------------------------------------------------------------------------- */

/* What one step makes of one piece: ranges come in, joined ranges go on to the next step. */
typedef struct cutter {
    dg_encoder *e;
    size_t step;
    const char *s;
    bool first;
    size_t from, to; /* the range held back */
    bool held, held_match;
} cutter;

static dg_status cutter_flush(cutter *c) {
    const bool any = c->held && c->to > c->from;
    c->held = false;
    return any ? dg_pretokenize(c->e, c->step + 1, c->s + c->from, c->to - c->from, c->first && c->from == 0)
               : DG_OK;
}

/* Takes the next range. A match may join a neighbour that is none; two matches never join (but for
 * CONTIGUOUS). */
static dg_status cutter_add(cutter *c, size_t from, size_t to, bool match) {
    const dg_split *step = &c->e->t->split[c->step];
    if (step->invert) match = !match;
    bool join = false;
    switch (step->behavior) {
    case DG_SPLIT_ISOLATED: break;
    case DG_SPLIT_REMOVED:
        if (match) return cutter_flush(c);
        break;
    case DG_SPLIT_CONTIGUOUS: join = c->held && c->held_match == match; break;
    case DG_SPLIT_WITH_PREVIOUS: join = c->held && match && !c->held_match; break;
    case DG_SPLIT_WITH_NEXT: join = c->held && !match && c->held_match; break;
    }
    if (!join) {
        DG_TRY(cutter_flush(c));
        c->from = from;
    }
    c->to = to;
    c->held = true;
    c->held_match = match;
    return DG_OK;
}

static dg_status cut(dg_encoder *e, size_t step, const char *s, size_t len, bool first) {
    const dg_split *split = &e->t->split[step];
    cutter c = {.e = e, .step = step, .s = s, .first = first};
    size_t done = 0, from = 0;
    bool matched = false;
    while (from < len) {
        size_t a = 0, b = 0;
        bool found;
        DG_TRY(split->pattern ? find_pattern(e, split->pattern, s, len, from, &a, &b, &found)
                              : find_literal(split->text, s, len, from, &a, &b, &found));
        if (!found || a >= len) break;
        const bool again = b == a && matched && a == done; /* nothing, right after a match: no match */
        from = b > a ? b : b + dg_utf8_length(s + b);
        if (again) continue;
        if (a > done) DG_TRY(cutter_add(&c, done, a, false));
        DG_TRY(cutter_add(&c, a, b, true)); /* an empty match still cuts */
        done = b;
        matched = true;
    }
    if (done < len) DG_TRY(cutter_add(&c, done, len, false));
    return cutter_flush(&c);
}

/* ---- steps ------------------------------------------------------------------------------------ */

static dg_status escape_spaces(const dg_split *step, const char *s, size_t len, dg_buffer *out) {
    const size_t n = strlen(step->text);
    for (size_t i = 0; i < len; i++) {
        const bool space = s[i] == ' ';
        DG_TRY(dg_buffer_add(out, space ? step->text : s + i, space ? n : 1));
    }
    return DG_OK;
}

dg_status dg_pretokenize(dg_encoder *e, size_t step, const char *s, size_t len, bool first) {
    if (len == 0) return DG_OK;
    if (step == e->t->n_split) return dg_bpe_encode(e, s, len);
    const dg_split *split = &e->t->split[step];
    dg_buffer *out = &e->step[step];
    switch (split->kind) {
    case DG_SPLIT_PATTERN:
        if (!e->matcher) DG_TRY(matcher_create(&e->matcher));
        return cut(e, step, s, len, first);
    case DG_SPLIT_LITERAL: return cut(e, step, s, len, first);
    case DG_SPLIT_PREFIX: {
        const size_t n = strlen(split->text);
        if ((split->first_only && !first) || (len >= n && memcmp(s, split->text, n) == 0)) break;
        out->n = 0;
        DG_TRY(dg_buffer_add(out, split->text, n));
        DG_TRY(dg_buffer_add(out, s, len));
        return dg_pretokenize(e, step + 1, out->p, out->n, first);
    }
    case DG_SPLIT_ESCAPE:
        out->n = 0;
        DG_TRY(escape_spaces(split, s, len, out));
        return dg_pretokenize(e, step + 1, out->p, out->n, first);
    }
    return dg_pretokenize(e, step + 1, s, len, first);
}
