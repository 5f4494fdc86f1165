/* Templates; see template.h. */
#include "graft/template.h"

#include <assert.h>
#include <math.h>
#include <string.h>

const char DG_TEMPLATE_GRAFT[] =
    /* 20 */
    "0 1 2 3 4 00 01 10 02 000 010 100 0000 0100 00000 01000 000000 0000000 00000000 000000000 "
    /* 36 */
    "5 6 20 03 30 001 002 1000 0001 10000 010000 100000 0100000 1000000 01000000 010000000 "
    /* 52 */
    "7 11 04 40 020 200 003 0010 0002 00001 00010 000001 0000010 10000000 00000100 100000000";

const char DG_TEMPLATE_RECYCLING[] =
    "0 1 2 3 4 5 6 7 "
    "00 01 02 03 04 05 06 07 10 11 12 13 20 21 22 30 31 40 50 60 70 "
    "000 001 002 003 004 005 006 007 010 011 012 020 021 030 040 050 060 070 100 101 110 200 300 400 500 "
    "0000 0001 0002 0003 0004 0010 0011 0020 0030 0040 0100 0200 1000 2000 3000 "
    "00000 00001 00002 00010 00020 00100 01000 10000 "
    "000000 000001 000100";

const float dg_template_prior[8] = {0.32f, 0.085f, 0.046f, 0.024f, 0.023f, 0.013f, 0.013f, 0.009f};

/* Node (i + 1) of this parent and rank, -1: none. */
static int32_t find(const dg_template *t, int32_t parent, int32_t rank) {
    for (int32_t i = 0; i < t->n; i++)
        if (t->parent[i] == parent && t->rank[i] == rank) return i + 1;
    return -1;
}

void dg_template_read(const char *paths, dg_template *out) {
    out->n = 0;
    for (const char *at = paths; *at; at += *at == ' ') {
        int32_t node = 0;
        for (; at[1] && at[1] != ' '; at++) node = find(out, node, *at - '0');
        assert(node >= 0 && find(out, node, *at - '0') < 0 && out->n < DG_TREE_MAX - 1);
        out->parent[out->n] = node;
        out->rank[out->n++] = *at++ - '0';
    }
}

/* Best first over (product, length, ranks): the next node of the fit is a child or the next sibling of one
 * that was taken. With at most 255 nodes a scan does for a heap. */
void dg_template_fit(const float *p, int32_t k, int32_t n, dg_template *out) {
    double product[DG_TREE_MAX] = {1}; /* of node i + 1 at i + 1 */
    int32_t next[DG_TREE_MAX] = {0};   /* rank of the next child of node i */
    assert(n < DG_TREE_MAX);
    for (out->n = 0; out->n < n;) {
        int32_t best = -1;
        for (int32_t i = 0; i <= out->n; i++)
            if (next[i] < k &&
                (best < 0 || product[i] * (double)p[next[i]] > product[best] * (double)p[next[best]]))
                best = i;
        if (best < 0) return;
        const int32_t node = out->n + 1;
        out->parent[out->n] = best;
        out->rank[out->n++] = next[best];
        product[node] = product[best] * (double)p[next[best]++];
        next[node] = 0;
    }
}

void dg_template_scores(const dg_template *t, float *score) {
    for (int32_t i = 0; i < t->n; i++)
        score[i] = (t->parent[i] ? score[t->parent[i] - 1] : 0) + logf(dg_template_prior[t->rank[i]]);
}
