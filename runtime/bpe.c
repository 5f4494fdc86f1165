/* Byte-pair merging of one piece: always the best-ranked adjacent pair, the leftmost among equals, as the
 * algorithm of Sennrich et al. (2016) defines it, with a heap and a linked list: O(n log n) for any length.
 *
 * Two sources of rules: listed merges of token pairs, or SentencePiece, where any two neighbours merge that
 * together spell a token, best score first. Knows nothing of patterns or added tokens. */
#include "runtime/tokenizer_impl.h"

/* ---- candidates ------------------------------------------------------------------------------- */

/* A heap of four children a node: the root at index 3, so that the children of a node fill one cache line. */
enum { ROOT = 3 };

static dg_status heap_reserve(dg_encoder *e) {
    if (ROOT + e->heap_n < e->heap_cap) return DG_OK;
    const size_t cap = e->heap_cap ? 2 * e->heap_cap : 64;
    dg_candidate *heap =
        dg_mem_grow(e->heap, e->heap_cap * sizeof *heap, dg_mem_mul(cap, sizeof *heap));
    DG_CHECK(heap, DG_ERR_MEMORY, "no memory to merge a piece of text");
    e->heap = heap;
    e->heap_cap = cap;
    return DG_OK;
}

static void heap_push(dg_encoder *e, dg_candidate c) {
    dg_candidate *h = e->heap;
    size_t i = ROOT + e->heap_n++;
    for (size_t up; i > ROOT && c.order < h[up = i / 4 + ROOT - 1].order; i = up) h[i] = h[up];
    h[i] = c;
}

static dg_candidate heap_pop(dg_encoder *e) {
    dg_candidate *h = e->heap;
    const size_t end = ROOT + --e->heap_n;
    const dg_candidate top = h[ROOT], last = h[end];
    size_t i = ROOT;
    for (size_t c; (c = 4 * (i - ROOT + 1)) < end; i = c) {
        const size_t stop = c + 4 < end ? c + 4 : end;
        for (size_t k = c + 1; k < stop; k++)
            if (h[k].order < h[c].order) c = k;
        if (last.order <= h[c].order) break;
        h[i] = h[c];
    }
    h[i] = last;
    return top;
}

/* Puts the pair that begins with symbol i on the heap if there is a rule for it. */
static dg_status consider(dg_encoder *e, const char *s, int32_t i) {
    const dg_vocab *v = &e->t->vocab;
    const dg_symbol *a = &e->symbol[i];
    if (a->next < 0) return DG_OK;
    const dg_symbol *b = &e->symbol[a->next];
    uint32_t rank;
    int32_t id;
    if (v->score) {
        id = dg_vocab_find(v, s + a->at, a->len + b->len);
        if (id < 0) return DG_OK;
        rank = v->score[id];
    } else {
        const dg_merge *m = a->id < 0 || b->id < 0 ? NULL : dg_vocab_merge(v, a->id, b->id);
        if (!m) return DG_OK;
        id = m->out;
        rank = (uint32_t)(m - v->merge);
    }
    DG_TRY(heap_reserve(e));
    heap_push(e, (dg_candidate){(uint64_t)rank << 32 | (uint32_t)i, a->len + b->len, id});
    return DG_OK;
}

/* ---- symbols ---------------------------------------------------------------------------------- */

/* Cuts the piece into its smallest symbols; returns how many. */
static int32_t split_symbols(dg_encoder *e, const char *s, size_t len) {
    const dg_vocab *v = &e->t->vocab;
    int32_t n = 0;
    for (size_t at = 0, step; at < len; at += step) {
        step = e->t->byte_level ? 1 : dg_utf8_length(s + at);
        const int32_t id = e->t->byte_level ? v->byte_id[(uint8_t)s[at]] : dg_vocab_find(v, s + at, step);
        e->symbol[n] = (dg_symbol){id, n - 1, n + 1, (uint32_t)at, (uint32_t)step};
        n++;
    }
    e->symbol[n - 1].next = -1;
    return n;
}

/* What is not in the vocabulary: its bytes as tokens, else the unknown token, else nothing. */
static void emit_unknown(dg_encoder *e, const char *s, const dg_symbol *a, bool after_unknown) {
    const dg_tokenizer *t = e->t;
    bool bytes = !t->byte_level;
    for (uint32_t i = 0; i < a->len; i++) bytes = bytes && t->vocab.byte_id[(uint8_t)s[a->at + i]] >= 0;
    if (bytes) {
        for (uint32_t i = 0; i < a->len; i++) dg_encoder_emit(e, t->vocab.byte_id[(uint8_t)s[a->at + i]]);
    } else if (t->unknown >= 0 && !(after_unknown && t->fuse_unknown)) {
        dg_encoder_emit(e, t->unknown);
    }
}

static dg_status merge_all(dg_encoder *e, const char *s, int32_t n) {
    e->heap_n = 0;
    for (int32_t i = 0; i + 1 < n; i++) DG_TRY(consider(e, s, i));
    while (e->heap_n > 0) {
        const dg_candidate c = heap_pop(e);
        const int32_t i = (int32_t)(uint32_t)c.order;
        dg_symbol *a = &e->symbol[i];
        if (a->len == 0 || a->next < 0) continue;
        dg_symbol *b = &e->symbol[a->next];
        if (a->len + b->len != c.len) continue; /* one of them has grown since */
        a->id = c.id;
        a->len = c.len;
        b->len = 0;
        a->next = b->next;
        if (b->next >= 0) e->symbol[b->next].prev = i;
        if (a->prev >= 0) DG_TRY(consider(e, s, a->prev));
        DG_TRY(consider(e, s, i));
    }
    return DG_OK;
}

dg_status dg_bpe_encode(dg_encoder *e, const char *s, size_t len) {
    if (len == 0) return DG_OK;
    if (e->t->whole_first) {
        const int32_t id = dg_vocab_find(&e->t->vocab, s, len);
        if (id >= 0) {
            dg_encoder_emit(e, id);
            return DG_OK;
        }
    }
    if (len > e->symbol_cap) {
        const size_t cap = len > 2 * e->symbol_cap ? len : 2 * e->symbol_cap;
        dg_mem_free(e->symbol);
        e->symbol_cap = 0;
        e->symbol = dg_mem_alloc(dg_mem_mul(cap, sizeof *e->symbol));
        DG_CHECK(e->symbol, DG_ERR_MEMORY, "no memory to cut a piece of %zu bytes", len);
        e->symbol_cap = cap;
    }
    const int32_t n = split_symbols(e, s, len);
    DG_TRY(merge_all(e, s, n));
    bool unknown = false;
    for (int32_t i = 0; i >= 0; i = e->symbol[i].next) {
        const dg_symbol *a = &e->symbol[i];
        if (a->id >= 0)
            dg_encoder_emit(e, a->id);
        else
            emit_unknown(e, s, a, unknown);
        unknown = a->id < 0;
    }
    return DG_OK;
}
