/* The tokenizer's tables: strings of every id, the hash tables over tokens and merges, the trie of added
 * tokens.
 *
 * Filled by the loaders from untrusted files and read-only afterwards. Knows nothing of files or of text. */
#include "runtime/tokenizer_impl.h"

static const uint32_t FREE_PAIR = UINT32_MAX;

/* ---- strings of the ids ----------------------------------------------------------------------- */

dg_status dg_vocab_create(dg_vocab *v, const char *what, int64_t n) {
    DG_CHECK(n > 0 && n <= DG_MAX_VOCAB, DG_ERR_FORMAT, "%s: vocabulary size: expected 1 to %d, found %lld",
             what, DG_MAX_VOCAB, (long long)n);
    const size_t size = (size_t)n;
    v->key = dg_mem_calloc(size, sizeof *v->key);
    v->text = dg_mem_calloc(size, sizeof *v->text);
    v->kind = dg_mem_calloc(size, 1);
    DG_CHECK(v->key && v->text && v->kind, DG_ERR_MEMORY, "%s: no memory for %zu tokens", what, size);
    DG_TRY(dg_buffer_reserve(&v->blob, 1)); /* so that the empty string has an address */
    v->n = (int32_t)n;
    for (int i = 0; i < 256; i++) v->byte_id[i] = -1;
    return DG_OK;
}

void dg_vocab_clear(dg_vocab *v) {
    dg_mem_free(v->blob.p);
    dg_mem_free(v->key), dg_mem_free(v->text), dg_mem_free(v->kind), dg_mem_free(v->score);
    dg_mem_free(v->slot), dg_mem_free(v->merge), dg_mem_free(v->pair_slot);
}

static dg_status store(dg_vocab *v, const char *s, size_t len, dg_range *out) {
    DG_CHECK(len <= DG_MAX_TOKEN, DG_ERR_FORMAT, "a token of %zu bytes; expected at most %d", len,
             DG_MAX_TOKEN);
    DG_CHECK(v->blob.n + len <= DG_MAX_TEXT, DG_ERR_FORMAT, "tokens of more than %d bytes together",
             DG_MAX_TEXT);
    const dg_range r = {(uint32_t)v->blob.n, (uint32_t)len};
    DG_TRY(dg_buffer_add(&v->blob, s, len));
    *out = r;
    return DG_OK;
}

dg_status dg_vocab_set(dg_vocab *v, const char *what, int64_t id, const char *key, size_t len, int kind) {
    DG_CHECK(id >= 0 && id < v->n, DG_ERR_FORMAT, "%s: token id: expected 0 to %d, found %lld", what,
             v->n - 1, (long long)id);
    DG_CHECK(!v->kind[id], DG_ERR_FORMAT, "%s: token id %lld is given twice", what, (long long)id);
    const dg_status st = store(v, key, len, &v->key[id]);
    if (st != DG_OK) return dg_fail_prefix(st, "%s: token %lld", what, (long long)id);
    v->text[id] = v->key[id];
    v->kind[id] = (uint8_t)(DG_TOKEN_USED | kind);
    return DG_OK;
}

dg_status dg_vocab_set_text(dg_vocab *v, int32_t id, const char *text, size_t len) {
    if (len == v->key[id].len && (len == 0 || memcmp(text, dg_vocab_key(v, id), len) == 0)) {
        v->text[id] = v->key[id];
        return DG_OK;
    }
    return store(v, text, len, &v->text[id]);
}

/* ---- token table ------------------------------------------------------------------------------ */

static uint32_t hash_bytes(const char *s, size_t len) {
    uint64_t h = 1469598103934665603u; /* FNV-1a, finished by a multiply so that the low bits mix */
    for (size_t i = 0; i < len; i++) h = (h ^ (uint8_t)s[i]) * 1099511628211u;
    return (uint32_t)((h * 0x9E3779B97F4A7C15u) >> 32);
}

static uint32_t hash_pair(int32_t left, int32_t right) {
    const uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    uint64_t h = (key ^ (key >> 29)) * 0xBF58476D1CE4E5B9u;
    h = (h ^ (h >> 32)) * 0x94D049BB133111EBu;
    return (uint32_t)(h >> 32);
}

/* A power of two with at least a third of the slots free. */
static size_t slots_for(size_t n) {
    size_t slots = 16;
    while (slots / 3 * 2 < n) slots *= 2;
    return slots;
}

static bool key_is(const dg_vocab *v, int32_t id, const char *key, size_t len) {
    return v->key[id].len == len && memcmp(dg_vocab_key(v, id), key, len) == 0;
}

int32_t dg_vocab_find(const dg_vocab *v, const char *key, size_t len) {
    if (len == 0 || len > v->longest_key) return -1;
    const size_t mask = v->n_slot - 1;
    for (size_t i = hash_bytes(key, len) & mask; v->slot[i] >= 0; i = (i + 1) & mask)
        if (key_is(v, v->slot[i], key, len)) return v->slot[i];
    return -1;
}

dg_status dg_vocab_index(dg_vocab *v) {
    size_t n = 0;
    for (int32_t i = 0; i < v->n; i++) n += (v->kind[i] & DG_TOKEN_MODEL) != 0;
    v->n_slot = slots_for(n);
    v->slot = dg_mem_alloc(dg_mem_mul(v->n_slot, sizeof *v->slot));
    DG_CHECK(v->slot, DG_ERR_MEMORY, "no memory for a table of %zu tokens", n);
    for (size_t i = 0; i < v->n_slot; i++) v->slot[i] = -1;

    const size_t mask = v->n_slot - 1;
    for (int32_t id = 0; id < v->n; id++) {
        if (!(v->kind[id] & DG_TOKEN_MODEL)) continue;
        const uint32_t len = v->key[id].len;
        if (len > v->longest_key) v->longest_key = len;
        size_t i = hash_bytes(dg_vocab_key(v, id), len) & mask;
        while (v->slot[i] >= 0 && !key_is(v, v->slot[i], dg_vocab_key(v, id), len)) i = (i + 1) & mask;
        if (v->slot[i] < 0) v->slot[i] = id;
    }
    return DG_OK;
}

/* ---- merge table ------------------------------------------------------------------------------ */

dg_status dg_vocab_reserve_merges(dg_vocab *v, size_t n) {
    DG_CHECK(n <= 4 * (size_t)DG_MAX_VOCAB, DG_ERR_FORMAT, "merges: expected at most %d, found %zu",
             4 * DG_MAX_VOCAB, n);
    v->n_pair_slot = slots_for(n);
    v->merge = dg_mem_alloc(dg_mem_mul(n, sizeof *v->merge));
    v->pair_slot = dg_mem_alloc(dg_mem_mul(v->n_pair_slot, sizeof *v->pair_slot));
    DG_CHECK(v->merge && v->pair_slot, DG_ERR_MEMORY, "no memory for %zu merges", n);
    for (size_t i = 0; i < v->n_pair_slot; i++) v->pair_slot[i] = FREE_PAIR;
    return DG_OK;
}

/* The slot of the pair, or the free one where it would go. */
static uint32_t *pair_slot(const dg_vocab *v, int32_t left, int32_t right) {
    const size_t mask = v->n_pair_slot - 1;
    size_t i = hash_pair(left, right) & mask;
    while (v->pair_slot[i] != FREE_PAIR &&
           (v->merge[v->pair_slot[i]].left != left || v->merge[v->pair_slot[i]].right != right))
        i = (i + 1) & mask;
    return &v->pair_slot[i];
}

void dg_vocab_add_merge(dg_vocab *v, int32_t left, int32_t right, int32_t out) {
    uint32_t *slot = pair_slot(v, left, right);
    *slot = v->n_merge;
    v->merge[v->n_merge++] = (dg_merge){left, right, out};
}

const dg_merge *dg_vocab_merge(const dg_vocab *v, int32_t left, int32_t right) {
    if (v->n_merge == 0) return NULL;
    const uint32_t rank = *pair_slot(v, left, right);
    return rank == FREE_PAIR ? NULL : &v->merge[rank];
}

dg_status dg_vocab_reserve_scores(dg_vocab *v) {
    v->score = dg_mem_calloc((size_t)v->n, sizeof *v->score);
    DG_CHECK(v->score, DG_ERR_MEMORY, "no memory for %d scores", v->n);
    return DG_OK;
}

dg_status dg_vocab_set_score(dg_vocab *v, const char *what, int32_t id, float score) {
    DG_CHECK(score == score, DG_ERR_FORMAT, "%s: the score of token %d is not a number", what, id);
    uint32_t bits;
    score += 0.0f; /* -0 is 0 */
    memcpy(&bits, &score, sizeof bits);
    v->score[id] = bits >> 31 ? bits : ~bits & 0x7FFFFFFFu; /* ascending from the best score down */
    return DG_OK;
}

size_t dg_vocab_memory(const dg_vocab *v) {
    return v->blob.cap + (size_t)v->n * (2 * sizeof(dg_range) + 1 + (v->score ? sizeof *v->score : 0)) +
           v->n_slot * sizeof *v->slot + v->n_merge * sizeof *v->merge +
           v->n_pair_slot * sizeof *v->pair_slot;
}

/* ---- added tokens ----------------------------------------------------------------------------- */

void dg_trie_create(dg_trie *t) {
    for (int i = 0; i < 256; i++) t->root[i] = -1;
}

void dg_trie_clear(dg_trie *t) {
    dg_mem_free(t->node);
}

/* Index of a fresh node, or -1 without memory. */
static int32_t trie_node(dg_trie *t, uint8_t byte, int32_t next) {
    if (t->n == t->cap) {
        const size_t cap = t->cap ? 2 * t->cap : 256;
        dg_trie_node *node =
            cap > INT32_MAX ? NULL : dg_mem_grow(t->node, t->n * sizeof *node, cap * sizeof *node);
        if (!node) return -1;
        t->node = node;
        t->cap = cap;
    }
    t->node[t->n] = (dg_trie_node){.child = -1, .next = next, .id = -1, .byte = byte};
    return (int32_t)t->n++;
}

static int32_t trie_child(const dg_trie *t, int32_t at, uint8_t byte) {
    int32_t c = t->node[at].child;
    while (c >= 0 && t->node[c].byte != byte) c = t->node[c].next;
    return c;
}

dg_status dg_trie_add(dg_trie *t, const char *s, size_t len, int32_t id, int flags) {
    int32_t at = -1;
    for (size_t i = 0; i < len; i++) {
        const uint8_t byte = (uint8_t)s[i];
        int32_t c = at < 0 ? t->root[byte] : trie_child(t, at, byte);
        if (c < 0) {
            c = trie_node(t, byte, at < 0 ? -1 : t->node[at].child);
            DG_CHECK(c >= 0, DG_ERR_MEMORY, "no memory for added tokens");
            if (at < 0)
                t->root[byte] = c;
            else
                t->node[at].child = c;
        }
        at = c;
    }
    if (at >= 0 && t->node[at].id < 0) t->node[at].id = id, t->node[at].flags = (uint8_t)flags;
    return DG_OK;
}

size_t dg_trie_longest(const dg_trie *t, const char *s, size_t len, const dg_trie_node **at) {
    size_t best = 0;
    int32_t c = len ? t->root[(uint8_t)s[0]] : -1;
    for (size_t i = 1; c >= 0; i++) {
        if (t->node[c].id >= 0) best = i, *at = &t->node[c];
        if (i == len) break;
        c = trie_child(t, c, (uint8_t)s[i]);
    }
    return best;
}

/* ---- GPT-2's alphabet ------------------------------------------------------------------------- */

/* Bytes that print as themselves keep their code point; the other 68 (0..32, 127..160, 173) follow in order
 * from U+0100. */
int64_t dg_alphabet_decode(const char *s, size_t len, char *out) {
    int64_t n = 0;
    for (size_t i = 0; i < len; i++) {
        unsigned c = (uint8_t)s[i];
        if (c >= 0x80) {
            if (c < 0xC2 || c > 0xC5 || i + 1 == len || ((uint8_t)s[i + 1] & 0xC0) != 0x80) return -1;
            c = (c & 0x1F) << 6 | ((uint8_t)s[++i] & 0x3F);
        }
        if (c >= 256 && c < 256 + 33)
            c -= 256;
        else if (c >= 256 + 33 && c < 256 + 67)
            c = c - 256 - 33 + 127;
        else if (c == 256 + 67)
            c = 173;
        else if (c <= 32 || (c >= 127 && c <= 160) || c == 173 || c > 255)
            return -1;
        out[n++] = (char)c;
    }
    return n;
}
