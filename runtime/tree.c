/* The token tree; see tree.h. */
#include "runtime/tree.h"

#include <assert.h>
#include <string.h>

void dg_tree_reset(dg_tree *t, int32_t root_token) {
    t->n = 1;
    t->deepest = DG_TREE_MAX;
    t->token[0] = root_token;
    t->parent[0] = -1;
    t->depth[0] = 0;
    t->source[0] = 0;
    t->score[0] = 0.0f;
}

int32_t dg_tree_child(const dg_tree *t, int32_t node, int32_t token) {
    for (int32_t i = node + 1; i < t->n; i++)
        if (t->parent[i] == node && t->token[i] == token) return i;
    return -1;
}

int32_t dg_tree_add(dg_tree *t, int32_t parent, int32_t token, float score, int32_t source) {
    const int32_t i = dg_tree_child(t, parent, token);
    if (i < 0) return dg_tree_append(t, parent, token, score, source);
    if (!(score <= t->score[parent])) score = t->score[parent]; /* NaN too */
    if (score > t->score[i]) t->score[i] = score;
    return i;
}

int32_t dg_tree_append(dg_tree *t, int32_t parent, int32_t token, float score, int32_t source) {
    assert(parent >= 0 && parent < t->n && source >= 0 && source < 256);
    if (!(score <= t->score[parent])) score = t->score[parent];
    if (t->n == DG_TREE_MAX) return -1;
    const int32_t i = t->n++;
    t->token[i] = token;
    t->parent[i] = (int16_t)parent;
    t->depth[i] = (uint8_t)(t->depth[parent] + 1);
    t->source[i] = (uint8_t)source;
    t->score[i] = score;
    return i;
}

/* Keeps what `keep` says, which is ancestor-closed and has the root. */
static void compact(dg_tree *t, const bool *keep, int16_t *map) {
    int32_t kept = 0;
    for (int32_t i = 0; i < t->n; i++) {
        map[i] = -1;
        if (!keep[i]) continue;
        const int32_t to = kept++;
        map[i] = (int16_t)to;
        t->token[to] = t->token[i];
        t->parent[to] = i ? map[t->parent[i]] : -1;
        t->depth[to] = t->depth[i];
        t->source[to] = t->source[i];
        t->score[to] = t->score[i];
    }
    t->n = kept;
}

void dg_tree_trim(dg_tree *t) {
    bool keep[DG_TREE_MAX];
    int16_t map[DG_TREE_MAX];
    for (int32_t i = 0; i < t->n; i++) keep[i] = t->depth[i] <= t->deepest;
    compact(t, keep, map);
}

void dg_tree_prune(dg_tree *t, int32_t n_keep, int16_t *map) {
    /* Rank by (score down, index up). A child never outranks its parent: its score is no higher and its
     * index is. */
    bool keep[DG_TREE_MAX] = {true};
    int16_t order[DG_TREE_MAX];
    int32_t n = 0;
    for (int32_t i = 1; i < t->n; i++) { /* insertion sort: at most 255 nodes, mostly in order */
        int32_t j = n++;
        for (; j > 0 && t->score[order[j - 1]] < t->score[i]; j--) order[j] = order[j - 1];
        order[j] = (int16_t)i;
    }
    for (int32_t r = 0; r < n && r < n_keep; r++) keep[order[r]] = true;

    int16_t own[DG_TREE_MAX];
    compact(t, keep, map ? map : own);
}

void dg_tree_bits(const dg_tree *t, uint64_t (*bits)[DG_MASK_WORDS]) {
    for (int32_t i = 0; i < t->n; i++) {
        if (i == 0)
            memset(bits[0], 0, sizeof bits[0]);
        else
            memcpy(bits[i], bits[t->parent[i]], sizeof bits[i]);
        bits[i][i / 64] |= UINT64_C(1) << (i % 64);
    }
}

static void print_below(const dg_tree *t, int32_t node, FILE *f) {
    fprintf(f, "%*s%d: token %d, source %d, score %.3f\n", 2 * t->depth[node], "", node, t->token[node],
            t->source[node], (double)t->score[node]);
    for (int32_t i = node + 1; i < t->n; i++)
        if (t->parent[i] == node) print_below(t, i, f);
}

void dg_tree_print(const dg_tree *t, FILE *f) { print_below(t, 0, f); }
