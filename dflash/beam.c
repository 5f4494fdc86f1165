/* The dynamic tree; see beam.h. */
#include "dflash/beam.h"

#include <assert.h>
#include <math.h>
#include <string.h>

void dg_beam_layout(dg_beam *b, int32_t width, int32_t depth, dg_arena *host) {
    const size_t slots = (size_t)depth * (size_t)width, cap = (slots + 1) * (size_t)width;
    *b = (dg_beam){.width = width, .depth = depth};
    b->token = dg_arena_take(host, cap, sizeof *b->token);
    b->parent = dg_arena_take(host, cap, sizeof *b->parent);
    b->score = dg_arena_take(host, cap, sizeof *b->score);
    b->node = dg_arena_take(host, cap, sizeof *b->node);
    b->slot = dg_arena_take(host, slots, sizeof *b->slot);
    b->order = dg_arena_take(host, DG_TREE_MAX, sizeof *b->order);
    b->heap = dg_arena_take(host, DG_TREE_MAX, sizeof *b->heap);
}

void dg_beam_reset(dg_beam *b) { b->n = b->passes = 0; }

/* ---- the best of a range ---------------------------------------------------------------------- */

/* Larger is better: the score in the upper half, mapped so that integers order as the floats do, then the older. */
static uint64_t key_of(const dg_beam *b, int32_t c) {
    const float score = b->score[c] + 0.0f; /* no -0 */
    uint32_t bits;
    memcpy(&bits, &score, sizeof bits);
    bits = bits >> 31 ? ~bits : bits | UINT32_C(1) << 31;
    return (uint64_t)bits << 32 | (UINT32_MAX - (uint32_t)c);
}

static int32_t candidate_of(uint64_t key) { return (int32_t)(UINT32_MAX - (uint32_t)key); }

/* Restores the heap (smallest key first) below i. */
static void sift(uint64_t *heap, int32_t n, int32_t i) {
    const uint64_t key = heap[i];
    for (int32_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= key) break;
        heap[i] = heap[child];
    }
    heap[i] = key;
}

/* The m best candidates from `from` on, best first, into out. Returns how many there are: those of probability 0 do not
 * count. */
static int32_t best_of(dg_beam *b, int32_t from, int32_t m, int32_t *out) {
    int32_t n = 0;
    assert(m <= DG_TREE_MAX);
    for (int32_t c = from; c < b->n; c++) {
        if (b->score[c] == -INFINITY) continue;
        const uint64_t key = key_of(b, c);
        if (n < m) {
            b->heap[n++] = key;
            if (n == m)
                for (int32_t i = m / 2 - 1; i >= 0; i--) sift(b->heap, m, i);
        } else if (m && key > b->heap[0]) {
            b->heap[0] = key;
            sift(b->heap, m, 0);
        }
    }
    if (n < m)
        for (int32_t i = n / 2 - 1; i >= 0; i--) sift(b->heap, n, i);
    for (int32_t left = n; left > 0;) { /* the smallest goes to the end */
        out[left - 1] = candidate_of(b->heap[0]);
        b->heap[0] = b->heap[--left];
        sift(b->heap, left, 0);
    }
    return n;
}

/* ---- growing ---------------------------------------------------------------------------------- */

/* First candidate of the last pass. */
static int32_t last_pass(const dg_beam *b) { return b->n - (b->passes > 1 ? b->width * b->width : b->width); }

void dg_beam_score(dg_beam *b, const int32_t *token, const float *logp) {
    const int32_t rows = b->passes ? b->width : 1, first = b->passes ? (b->passes - 1) * b->width : -1;
    assert(b->passes <= b->depth);
    for (int32_t r = 0; r < rows; r++) {
        const int32_t parent = first < 0 ? -1 : b->slot[first + r];
        const float base = parent < 0 ? 0 : b->score[parent];
        for (int32_t i = 0; i < b->width; i++, b->n++) {
            const float score = base + *logp++;
            b->token[b->n] = *token++;
            b->parent[b->n] = parent;
            b->score[b->n] = score <= base ? score : isnan(score) ? -INFINITY : base;
        }
    }
    b->passes++;
}

const int32_t *dg_beam_expand(dg_beam *b) {
    const int32_t from = last_pass(b);
    int32_t *slot = b->slot + (b->passes - 1) * b->width;
    assert(b->passes >= 1 && b->passes <= b->depth);
    int32_t n = best_of(b, from, b->width, slot);
    /* impossible candidates fill up what is missing: rows to run, never nodes */
    for (int32_t c = from; n < b->width; c++)
        if (b->score[c] == -INFINITY) slot[n++] = c;
    return slot;
}

float dg_beam_best(const dg_beam *b) {
    float best = -INFINITY;
    for (int32_t c = last_pass(b); c < b->n; c++) best = fmaxf(best, b->score[c]);
    return best;
}

float dg_beam_mass(dg_beam *b) {
    const int32_t n = best_of(b, last_pass(b), b->width, b->order);
    float sum = 0;
    for (int32_t i = 0; i < n; i++) sum += expf(b->score[b->order[i]]);
    return sum;
}

int32_t dg_beam_best_row(const dg_beam *b) {
    const int32_t from = last_pass(b);
    int32_t best = from;
    for (int32_t c = from + 1; c < b->n; c++)
        if (b->score[c] > b->score[best]) best = c;
    return (best - from) / b->width;
}

bool dg_beam_settled(dg_beam *b, int32_t budget) {
    const int32_t n = best_of(b, 0, budget, b->order);
    const float frontier = dg_beam_best(b);
    return frontier == -INFINITY || (n == budget && (budget == 0 || b->score[b->order[n - 1]] >= frontier));
}

void dg_beam_fill(dg_beam *b, dg_tree *t, int32_t budget, int32_t keep, int32_t source) {
    enum { OUT = -1, FRESH = -2 };
    int32_t room = budget - (t->n - 1);
    if (room > keep) room = keep;
    /* of the `budget` best those that the tree has take no room, so no more of them are ever looked at */
    const int32_t n = best_of(b, 0, budget, b->order);
    for (int32_t c = 0; c < b->n; c++) b->node[c] = OUT;
    for (int32_t r = 0; r < n; r++) {
        const int32_t c = b->order[r], parent = b->parent[c] < 0 ? 0 : b->node[b->parent[c]];
        const int32_t there = parent < 0 ? -1 : dg_tree_child(t, parent, b->token[c]);
        assert(parent != OUT);
        if (there < 0 && room-- <= 0) break;
        b->node[c] = there < 0 ? FRESH : there;
    }
    for (int32_t c = 0; c < b->n; c++)
        if (b->node[c] != OUT)
            b->node[c] = dg_tree_add(t, b->parent[c] < 0 ? 0 : b->node[b->parent[c]], b->token[c], b->score[c], source);
}
