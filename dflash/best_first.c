/* Best-first search over a lattice; see best_first.h.
 *
 * A heap item stands for the prefix "tree path of parent, then candidate `rank`". Taking it yields its next
 * sibling and its first child, so every prefix enters the heap once and after all better ones of its row. */
#include "dflash/best_first.h"

#include <math.h>

typedef struct dg_best_first_item item;

/* Order of the rank tuples of two prefixes, both unwound to the depth where their paths part. */
static bool ranks_before(const dg_best_first *s, const dg_tree *t, item a, item b) {
    const int32_t depth_a = t->depth[a.parent], depth_b = t->depth[b.parent];
    for (int32_t d = depth_a; d > depth_b; d--) a = (item){0, t->parent[a.parent], s->rank[a.parent]};
    for (int32_t d = depth_b; d > depth_a; d--) b = (item){0, t->parent[b.parent], s->rank[b.parent]};
    int16_t rank_a = a.rank, rank_b = b.rank;
    while (a.parent != b.parent) {
        rank_a = s->rank[a.parent], a.parent = t->parent[a.parent];
        rank_b = s->rank[b.parent], b.parent = t->parent[b.parent];
    }
    return rank_a != rank_b ? rank_a < rank_b : depth_a < depth_b; /* a prefix comes before what extends it */
}

static bool before(const dg_best_first *s, const dg_tree *t, item a, item b) {
    return a.score != b.score ? a.score > b.score : ranks_before(s, t, a, b);
}

static void push(dg_best_first *s, const dg_tree *t, item x) {
    int32_t i = s->n++;
    for (; i > 0 && before(s, t, x, s->heap[(i - 1) / 2]); i = (i - 1) / 2) s->heap[i] = s->heap[(i - 1) / 2];
    s->heap[i] = x;
}

static item pop(dg_best_first *s, const dg_tree *t) {
    const item top = s->heap[0], last = s->heap[--s->n];
    int32_t i = 0;
    for (int32_t child = 1; child < s->n; child = 2 * i + 1) {
        if (child + 1 < s->n && before(s, t, s->heap[child + 1], s->heap[child])) child++;
        if (!before(s, t, s->heap[child], last)) break;
        s->heap[i] = s->heap[child];
        i = child;
    }
    s->heap[i] = last;
    return top;
}

/* The greedy path, at most `chain` nodes of it. */
static void add_chain(dg_tree *t, const dg_lattice *l, int32_t budget, int32_t chain, int32_t source) {
    double score = 0;
    int32_t node = 0;
    for (int32_t d = 0; d < l->n_depth && d < chain && t->n <= budget; d++) {
        const float logp = l->logp[(size_t)d * (size_t)l->width];
        if (!(logp > -INFINITY)) return;
        score += (double)logp;
        node = dg_tree_add(t, node, l->id[(size_t)d * (size_t)l->width], (float)score, source);
    }
}

int32_t dg_best_first_fill(dg_best_first *s, dg_tree *t, const dg_lattice *lattice, int32_t budget,
                           int32_t chain, int32_t source) {
    const dg_lattice l = *lattice;
    const int32_t n_before = t->n;
    if (budget > DG_TREE_MAX - 1) budget = DG_TREE_MAX - 1;
    add_chain(t, &l, budget, chain, source);

    s->n = 0;
    if (l.n_depth > 0 && l.logp[0] > -INFINITY) push(s, t, (item){(double)l.logp[0], 0, 0});
    /* Every item taken is another node, so the count of them bounds the heap too (and keeps it bounded should
     * a row repeat a token). */
    for (int32_t taken = 0; t->n <= budget && s->n > 0 && taken < DG_TREE_MAX - 1; taken++) {
        const item x = pop(s, t);
        const size_t depth = t->depth[x.parent]; /* lattice row of x */
        const float *row = l.logp + depth * (size_t)l.width;
        const int32_t node =
            dg_tree_add(t, x.parent, l.id[depth * (size_t)l.width + (size_t)x.rank], (float)x.score, source);
        s->rank[node] = x.rank;
        if (x.rank + 1 < l.width && row[x.rank + 1] > -INFINITY) {
            const double score = x.score - (double)row[x.rank] + (double)row[x.rank + 1];
            push(s, t, (item){score, x.parent, (int16_t)(x.rank + 1)});
        }
        if ((int32_t)depth + 1 < l.n_depth && row[l.width] > -INFINITY)
            push(s, t, (item){x.score + (double)row[l.width], (int16_t)node, 0});
    }
    return t->n - n_before;
}
