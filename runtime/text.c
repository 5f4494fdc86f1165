/* Text of a running answer; see text.h. */
#include "runtime/text.h"

#include <assert.h>
#include <string.h>

enum { FLUSH_BYTES = 32, CHARACTER = 4 /* bytes at most */ };

void dg_text_layout(dg_text *t, const dg_tokenizer *tokenizer, const char *const *stop, size_t n_stop, size_t max_round,
                    dg_arena *host) {
    *t = (dg_text){.tokenizer = tokenizer, .n_stop = n_stop};
    const size_t token = (tokenizer ? dg_tokenizer_max_bytes(tokenizer) : 0) + FLUSH_BYTES;
    size_t longest = 0;
    t->stop = dg_arena_take(host, n_stop, sizeof *t->stop);
    for (size_t i = 0; i < n_stop; i++) {
        const size_t len = strlen(stop[i]);
        char *copy = dg_arena_take(host, len + 1, 1);
        if (copy) t->stop[i] = memcpy(copy, stop[i], len + 1);
        if (len > longest) longest = len;
    }
    t->longest = longest;
    t->held = dg_arena_take(host, longest + 2 * token, 1);
    t->out_cap = max_round * token + longest + 2 * token;
    t->out = dg_arena_take(host, t->out_cap, 1);
}

void dg_text_reset(dg_text *t, bool goes_on) {
    t->decoder = (dg_decoder){.started = goes_on};
    t->n_held = t->n_told = t->n_out = 0;
}

void dg_text_round(dg_text *t) { t->n_out = 0; }

/* Held bytes [n_told, n), to out. */
static void tell(dg_text *t, size_t n) {
    if (n <= t->n_told) return;
    assert(t->n_out + n - t->n_told <= t->out_cap);
    memcpy(t->out + t->n_out, t->held + t->n_told, n - t->n_told);
    t->n_out += n - t->n_told;
    t->n_told = n;
}

static void release(dg_text *t, size_t n) {
    tell(t, n);
    t->n_told -= n;
    t->n_held -= n;
    memmove(t->held, t->held + n, t->n_held);
}

/* First occurrence of any stop string in what is held; SIZE_MAX if none. */
static size_t find_stop(const dg_text *t) {
    size_t best = SIZE_MAX;
    for (size_t i = 0; i < t->n_stop; i++) {
        const char *at = memmem(t->held, t->n_held, t->stop[i], strlen(t->stop[i]));
        if (at && (size_t)(at - t->held) < best) best = (size_t)(at - t->held);
    }
    return best;
}

/* Bytes at the end of what is held that may yet become a stop string. */
static size_t pending(const dg_text *t) {
    size_t longest = 0;
    for (size_t i = 0; i < t->n_stop; i++) {
        size_t n = strlen(t->stop[i]) - 1;
        if (n > t->n_held) n = t->n_held;
        while (n > longest && memcmp(t->held + t->n_held - n, t->stop[i], n)) n--;
        if (n > longest) longest = n;
    }
    return longest;
}

static bool settle(dg_text *t) {
    const size_t stop = find_stop(t);
    if (stop != SIZE_MAX) {
        release(t, stop);
        t->n_held = t->n_told = 0;
        t->decoder = (dg_decoder){0}; /* it may hold the beginning of a character */
        return true;
    }
    release(t, t->n_held - pending(t));
    return false;
}

bool dg_text_push(dg_text *t, int32_t token) {
    if (!t->tokenizer) return false;
    t->n_held += dg_decoder_push(t->tokenizer, &t->decoder, token, true, t->held + t->n_held);
    return settle(t);
}

void dg_text_flush(dg_text *t) {
    if (!t->tokenizer) return;
    t->n_held += dg_decoder_flush(&t->decoder, t->held + t->n_held);
    release(t, t->n_held);
}

void dg_text_tell(dg_text *t) { tell(t, t->n_held); }

size_t dg_text_reach(const dg_text *t) { return t->longest + CHARACTER; }
