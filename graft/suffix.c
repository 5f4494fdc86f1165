/* Suffix automaton; see suffix.h. */
#include "graft/suffix.h"

#include <assert.h>
#include <string.h>

/* A text of n tokens has at most 2n - 1 states and 3n - 4 edges (n > 2); 4n slots keep the table below three
 * quarters full. */
void dg_suffix_layout(dg_suffix *s, dg_arena *host, int32_t cap) {
    *s = (dg_suffix){.cap = cap, .n_slot = 4 * cap + 4};
    s->token = dg_arena_take(host, (size_t)cap, sizeof *s->token);
    s->state = dg_arena_take(host, 2 * (size_t)cap + 1, sizeof *s->state);
    s->edge = dg_arena_take(host, (size_t)s->n_slot, sizeof *s->edge);
    if (host->base) dg_suffix_reset(s);
}

void dg_suffix_reset(dg_suffix *s) {
    memset(s->edge, 0xff, (size_t)s->n_slot * sizeof *s->edge); /* from = -1 */
    s->state[0] = (dg_suffix_state){0, -1, -1, -1};
    s->n_state = 1;
    s->last = s->n = 0;
}

/* Slot of the edge (from, token), or the free slot where it belongs. */
static dg_suffix_edge *slot(const dg_suffix *s, int32_t from, int32_t token) {
    const uint64_t key = (uint64_t)(uint32_t)from << 32 | (uint32_t)token;
    const uint64_t hash = (key ^ key >> 29) * 0x9E3779B97F4A7C15u >> 32;
    int32_t i = (int32_t)(hash * (uint64_t)s->n_slot >> 32);
    while (s->edge[i].from >= 0 && (s->edge[i].from != from || s->edge[i].token != token))
        i = i + 1 < s->n_slot ? i + 1 : 0;
    return &s->edge[i];
}

static void add_edge(dg_suffix *s, dg_suffix_edge *free_slot, int32_t from, int32_t token, int32_t to) {
    *free_slot = (dg_suffix_edge){from, token, to, s->state[from].edge};
    s->state[from].edge = (int32_t)(free_slot - s->edge);
}

/* Splits from q the strings that also end at the new token: those up to the length of p's, plus one. */
static int32_t split(dg_suffix *s, int32_t p, int32_t q, int32_t token) {
    const int32_t clone = s->n_state++;
    s->state[clone] = (dg_suffix_state){s->state[p].len + 1, s->state[q].link, s->state[q].end, -1};
    for (int32_t e = s->state[q].edge; e >= 0; e = s->edge[e].next) {
        const dg_suffix_edge x = s->edge[e];
        add_edge(s, slot(s, clone, x.token), clone, x.token, x.to);
    }
    for (; p >= 0; p = s->state[p].link) {
        dg_suffix_edge *e = slot(s, p, token);
        if (e->to != q) break;
        e->to = clone;
    }
    s->state[q].link = clone;
    return clone;
}

void dg_suffix_append(dg_suffix *s, int32_t token) {
    assert(s->n < s->cap);
    const int32_t end = s->n++, cur = s->n_state++;
    s->token[end] = token;
    s->state[cur] = (dg_suffix_state){s->n, 0, end, -1};
    int32_t p = s->last;
    dg_suffix_edge *e = slot(s, p, token);
    while (e->from < 0) {
        add_edge(s, e, p, token, cur);
        p = s->state[p].link;
        if (p < 0) break;
        e = slot(s, p, token);
    }
    if (p >= 0) {
        const int32_t q = e->to;
        s->state[cur].link = s->state[q].len == s->state[p].len + 1 ? q : split(s, p, q, token);
    }
    s->last = cur;
    for (int32_t v = s->state[cur].link; v > 0; v = s->state[v].link) s->state[v].end = end;
}

void dg_suffix_rewind(dg_suffix *s, int32_t len) {
    assert(len >= 0 && len <= s->n);
    if (len == s->n) return;
    dg_suffix_reset(s);
    while (s->n < len) dg_suffix_append(s, s->token[s->n]);
}

dg_suffix_match dg_suffix_whole(const dg_suffix *s) {
    return (dg_suffix_match){s->last, s->n};
}

dg_suffix_match dg_suffix_step(const dg_suffix *s, dg_suffix_match m, int32_t token) {
    while (m.state >= 0) {
        const dg_suffix_edge *e = slot(s, m.state, token);
        if (e->from >= 0) return (dg_suffix_match){e->to, m.len + 1};
        m = dg_suffix_shorter(s, m);
    }
    return (dg_suffix_match){0, 0};
}

dg_suffix_match dg_suffix_shorter(const dg_suffix *s, dg_suffix_match m) {
    const int32_t link = s->state[m.state].link;
    return (dg_suffix_match){link, link >= 0 ? s->state[link].len : 0};
}
