/* The tokenizer: building and closing it, its properties, and the way from text to ids.
 *
 * Order of the original (Hugging Face tokenizers): ill-formed bytes, added tokens on the raw text,
 * normalisation of what lies between, added tokens on the normalised text, pre-tokenization, merges,
 * post-processing. */
#include "runtime/tokenizer.h"

#include <stdio.h>

#include "runtime/tokenizer_impl.h"

/* ---- building --------------------------------------------------------------------------------- */

void dg_tokenizer_close(dg_tokenizer *t) {
    if (!t) return;
    dg_vocab_clear(&t->vocab);
    dg_trie_clear(&t->raw), dg_trie_clear(&t->normal);
    for (size_t i = 0; i < t->n_normalize; i++) {
        dg_mem_free((char *)t->normalize[i].from);
        dg_mem_free((char *)t->normalize[i].to);
    }
    for (size_t i = 0; i < t->n_split; i++) {
        dg_pattern_free(t->split[i].pattern);
        dg_mem_free((char *)t->split[i].text);
    }
    dg_mem_free(t->chat_template);
    dg_mem_free(t);
}

dg_tokenizer *dg_tokenizer_create(void) {
    dg_tokenizer *t = dg_mem_calloc(1, sizeof *t);
    if (!t) return NULL;
    dg_trie_create(&t->raw), dg_trie_create(&t->normal);
    t->unknown = t->bos = t->eos = -1;
    return t;
}

dg_status dg_tokenizer_add_normal(dg_tokenizer *t, const char *what, dg_normal step) {
    DG_CHECK(t->n_normalize < DG_MAX_STEPS, DG_ERR_UNSUPPORTED, "%s: more than %d normaliser steps", what,
             DG_MAX_STEPS);
    DG_CHECK(step.kind != DG_NORMAL_REPLACE || *step.from, DG_ERR_FORMAT, "%s: a replacement of nothing",
             what);
    step.from = dg_mem_strdup(step.from ? step.from : "");
    step.to = dg_mem_strdup(step.to ? step.to : "");
    t->normalize[t->n_normalize++] = step; /* closing frees it */
    DG_CHECK(step.from && step.to, DG_ERR_MEMORY, "%s: no memory", what);
    return DG_OK;
}

dg_status dg_tokenizer_add_split(dg_tokenizer *t, const char *what, dg_split step, const char *regex) {
    DG_CHECK(t->n_split < DG_MAX_STEPS, DG_ERR_UNSUPPORTED, "%s: more than %d pre-tokenizer steps", what,
             DG_MAX_STEPS);
    DG_CHECK(regex || *step.text, DG_ERR_FORMAT, "%s: a pre-tokenizer that looks for nothing", what);
    if (regex) DG_TRY(dg_pattern_compile(what, regex, &step.pattern));
    step.text = dg_mem_strdup(step.text ? step.text : "");
    t->split[t->n_split++] = step;
    DG_CHECK(step.text, DG_ERR_MEMORY, "%s: no memory", what);
    return DG_OK;
}

dg_status dg_tokenizer_add_token(dg_tokenizer *t, int32_t id, const char *content, size_t len,
                                 bool normalized, int flags) {
    t->vocab.kind[id] |= DG_TOKEN_ADDED;
    if (!normalized) return dg_trie_add(&t->raw, content, len, id, flags);
    dg_buffer a[2] = {{0}, {0}};
    dg_str s;
    dg_status st = dg_normalize(t->normalize, t->n_normalize, (dg_str){content, len}, true, a, &s);
    if (st == DG_OK) st = dg_trie_add(&t->normal, s.ptr, s.len, id, flags);
    dg_mem_free(a[0].p), dg_mem_free(a[1].p);
    return st;
}

dg_status dg_tokenizer_set_printed(dg_tokenizer *t, int32_t id, dg_str s, const char *from, const char *to) {
    if (!memmem(s.ptr, s.len, from, strlen(from))) return dg_vocab_set_text(&t->vocab, id, s.ptr, s.len);
    const dg_normal step = {.kind = DG_NORMAL_REPLACE, .from = from, .to = to};
    dg_buffer a[2] = {{0}, {0}};
    dg_status st = dg_normalize(&step, 1, s, true, a, &s);
    if (st == DG_OK) st = dg_vocab_set_text(&t->vocab, id, s.ptr, s.len);
    dg_mem_free(a[0].p);
    return st;
}

/* FNV-1a over every token with its length. */
static uint64_t hash_vocab(const dg_vocab *v) {
    int32_t n = v->n;
    while (n > 0 && (v->kind[n - 1] == 0 || (v->kind[n - 1] & DG_TOKEN_PAD))) n--;
    uint64_t h = 1469598103934665603u;
    for (int32_t id = 0; id < n; id++) {
        const dg_range r = v->text[id];
        h = (h ^ r.len) * 1099511628211u;
        for (uint32_t i = 0; i < r.len; i++) h = (h ^ (uint8_t)v->blob.p[r.at + i]) * 1099511628211u;
    }
    return h;
}

dg_status dg_tokenizer_finish(dg_tokenizer *t, const char *what, const char *kind) {
    dg_vocab *v = &t->vocab;
    for (int32_t id = 0; id < v->n; id++)
        if (v->text[id].len > v->longest_text) v->longest_text = v->text[id].len;
    for (int i = 0; t->byte_level && i < 256; i++) {
        const char byte = (char)i;
        v->byte_id[i] = dg_vocab_find(v, &byte, 1);
    }
    for (int i = 0; i < 2; i++) {
        const dg_affix *a = i == 0 ? &t->before : &t->after;
        for (int32_t k = 0; k < a->n; k++)
            DG_CHECK(a->id[k] >= 0 && a->id[k] < v->n, DG_ERR_FORMAT,
                     "%s: post-processor id: expected 0 to %d, found %d", what, v->n - 1, a->id[k]);
    }
    snprintf(t->kind, sizeof t->kind, "%s", kind);
    t->hash = hash_vocab(v);
    return DG_OK;
}

/* ---- encoding --------------------------------------------------------------------------------- */

static dg_status encode_plain(dg_encoder *e, const char *s, size_t len, bool first);
static dg_status encode_normal(dg_encoder *e, const char *s, size_t len, bool first);

/* Grows the match s[*a, *b) over the white space that the token claims, not before `from`. */
static void claim_spaces(const char *s, size_t len, size_t from, int flags, size_t *a, size_t *b) {
    while ((flags & DG_ADDED_LSTRIP) && *a > from) {
        size_t p = *a - 1;
        while (p > from && ((uint8_t)s[p] & 0xC0) == 0x80) p--;
        if (!dg_utf8_is_space(s + p)) break;
        *a = p;
    }
    while ((flags & DG_ADDED_RSTRIP) && *b < len && dg_utf8_is_space(s + *b)) *b += dg_utf8_length(s + *b);
}

static bool is_whole_word(const char *s, size_t len, size_t a, size_t b) {
    if (b < len && dg_utf8_is_word(s + b)) return false;
    if (a == 0) return true;
    do a--;
    while (a > 0 && ((uint8_t)s[a] & 0xC0) == 0x80);
    return !dg_utf8_is_word(s + a);
}

/* Emits the added tokens of one trie and hands what lies between them to `between`. Leftmost longest; a
 * special token that is not wanted is passed over as a whole, as in the original. */
static dg_status encode_added(dg_encoder *e, const dg_trie *trie, const char *s, size_t len, bool first,
                              dg_status (*between)(dg_encoder *, const char *, size_t, bool)) {
    if (trie->n == 0) return between(e, s, len, first);
    const uint8_t *kind = e->t->vocab.kind;
    size_t done = 0;
    for (size_t i = 0, n; i < len; i += n) {
        const dg_trie_node *hit = NULL;
        n = dg_trie_longest(trie, s + i, len - i, &hit);
        if (n == 0) {
            n = 1;
            continue;
        }
        if ((kind[hit->id] & DG_TOKEN_SPECIAL) && !(e->flags & DG_ENCODE_SPECIAL)) continue;
        size_t a = i, b = i + n;
        if ((hit->flags & DG_ADDED_WORD) && !is_whole_word(s, len, a, b)) continue;
        claim_spaces(s, len, done, hit->flags, &a, &b);
        if (a > done) DG_TRY(between(e, s + done, a - done, first && done == 0));
        dg_encoder_emit(e, hit->id);
        done = b;
        n = b - i;
    }
    return done < len ? between(e, s + done, len - done, first && done == 0) : DG_OK;
}

static dg_status encode_plain(dg_encoder *e, const char *s, size_t len, bool first) {
    return dg_pretokenize(e, 0, s, len, first);
}

static dg_status encode_normal(dg_encoder *e, const char *s, size_t len, bool first) {
    dg_str n;
    DG_TRY(dg_normalize(e->t->normalize, e->t->n_normalize, (dg_str){s, len}, first, e->normal, &n));
    return encode_added(e, &e->t->normal, n.ptr, n.len, first, encode_plain);
}

static void encoder_clear(dg_encoder *e) {
    dg_mem_free(e->clean.p);
    for (int i = 0; i < 2; i++) dg_mem_free(e->normal[i].p);
    for (int i = 0; i < DG_MAX_STEPS; i++) dg_mem_free(e->step[i].p);
    dg_matcher_free(e->matcher);
    dg_mem_free(e->symbol);
    dg_mem_free(e->heap);
}

dg_status dg_tokenizer_encode(const dg_tokenizer *t, const char *text, size_t len, int flags, int32_t *ids,
                              size_t cap, size_t *n) {
    DG_CHECK(len <= DG_MAX_TEXT, DG_ERR_ARGUMENT, "a text of %zu bytes; expected at most %d", len,
             DG_MAX_TEXT);
    dg_encoder e = {.t = t, .flags = flags, .ids = ids, .cap = cap};
    const bool wrap = (flags & DG_ENCODE_BOS) != 0;
    for (int32_t i = 0; wrap && i < t->before.n; i++) dg_encoder_emit(&e, t->before.id[i]);
    dg_status st = DG_OK;
    if (dg_utf8_valid(text, len) < len) {
        st = dg_utf8_clean(text, len, &e.clean);
        text = e.clean.p;
        len = e.clean.n;
    }
    if (st == DG_OK && len > 0) st = encode_added(&e, &t->raw, text, len, true, encode_normal);
    for (int32_t i = 0; wrap && i < t->after.n; i++) dg_encoder_emit(&e, t->after.id[i]);
    encoder_clear(&e);
    if (st == DG_OK) *n = e.n;
    return st;
}

/* ---- properties ------------------------------------------------------------------------------- */

dg_str dg_tokenizer_bytes(const dg_tokenizer *t, int32_t id) {
    if (id < 0 || id >= t->vocab.n) return (dg_str){"", 0};
    const dg_range r = t->vocab.text[id];
    return (dg_str){t->vocab.blob.p + r.at, r.len};
}

int32_t dg_tokenizer_size(const dg_tokenizer *t) {
    return t->vocab.n;
}

int32_t dg_tokenizer_find(const dg_tokenizer *t, const char *text, size_t len) {
    for (int32_t id = 0; id < t->vocab.n; id++) {
        if (!(t->vocab.kind[id] & DG_TOKEN_ADDED)) continue;
        const dg_str s = dg_tokenizer_bytes(t, id);
        if (s.len == len && memcmp(s.ptr, text, len) == 0) return id;
    }
    return dg_vocab_find(&t->vocab, text, len);
}

bool dg_tokenizer_is_special(const dg_tokenizer *t, int32_t id) {
    return id >= 0 && id < t->vocab.n && (t->vocab.kind[id] & DG_TOKEN_SPECIAL);
}

int32_t dg_tokenizer_bos(const dg_tokenizer *t) {
    return t->bos;
}
int32_t dg_tokenizer_eos(const dg_tokenizer *t) {
    return t->eos;
}

bool dg_tokenizer_adds_bos(const dg_tokenizer *t) {
    return t->before.n > 0 && t->bos >= 0 && t->before.id[0] == t->bos;
}

const char *dg_tokenizer_chat_template(const dg_tokenizer *t) {
    return t->chat_template;
}
const char *dg_tokenizer_kind(const dg_tokenizer *t) {
    return t->kind;
}

size_t dg_tokenizer_memory(const dg_tokenizer *t) {
    size_t n = sizeof *t + dg_vocab_memory(&t->vocab) + (t->raw.cap + t->normal.cap) * sizeof(dg_trie_node);
    for (size_t i = 0; i < t->n_split; i++)
        n += t->split[i].pattern ? dg_pattern_memory(t->split[i].pattern) : 0;
    return n + (t->chat_template ? strlen(t->chat_template) + 1 : 0);
}

uint64_t dg_tokenizer_hash(const dg_tokenizer *t) {
    return t->hash;
}
size_t dg_tokenizer_max_bytes(const dg_tokenizer *t) {
    return 3 * (size_t)t->vocab.longest_text;
}
