/* The successor matrix; see succ.h. */
#include "graft/succ.h"

#include <assert.h>
#include <string.h>

#include "runtime/target.h"

static dg_backend *backend(const dg_succ *s) {
    return s->model->be;
}

static void upload(const dg_succ *s, int32_t *dst, const int32_t *src, int32_t n) {
    backend(s)->ops->upload(backend(s), dst, src, (size_t)n * sizeof *src);
}

/* Every row of DG_SUCC_ROOTS roots, as one template: child j of root r. */
static void upload_rows_template(dg_succ *s) {
    const int32_t n = DG_SUCC_ROOTS * (1 + s->width);
    for (int32_t i = 0; i < n; i++) s->id[i] = (i - DG_SUCC_ROOTS) / s->width;
    upload(s, s->row_parent, s->id, n);
    for (int32_t i = 0; i < n; i++) s->id[i] = (i - DG_SUCC_ROOTS) % s->width;
    upload(s, s->row_rank, s->id, n);
}

/* The root of the template is id[0]. */
static void upload_template(dg_succ *s, const dg_template *t) {
    upload(s, s->parent_dev + 1, t->parent, t->n);
    upload(s, s->rank_dev + 1, t->rank, t->n);
}

void dg_succ_layout(dg_succ *s, const dg_template *t, dg_arena *host, dg_arena *dev) {
    const int32_t vocab = s->model->net.config.vocab_size;
    s->width = vocab < DG_SUCC_WIDTH ? vocab : DG_SUCC_WIDTH;
    s->n_template = t->n;
    const size_t w = (size_t)s->width, n = DG_SUCC_ROOTS * (1 + w);
    s->m = dg_mat_make(dg_arena_take(dev, (size_t)vocab * w, sizeof(int32_t)), DG_I32, vocab, s->width);
    s->up_dev = dg_arena_take(dev, DG_TREE_MAX, sizeof *s->up_dev);
    s->prio_dev = dg_arena_take(dev, DG_TREE_MAX, sizeof *s->prio_dev);
    s->id_dev = dg_arena_take(dev, n, sizeof *s->id_dev);
    s->row_parent = dg_arena_take(dev, n, sizeof *s->row_parent);
    s->row_rank = dg_arena_take(dev, n, sizeof *s->row_rank);
    s->parent_dev = dg_arena_take(dev, DG_TREE_MAX, sizeof *s->parent_dev);
    s->rank_dev = dg_arena_take(dev, DG_TREE_MAX, sizeof *s->rank_dev);
    s->up = dg_arena_take(host, DG_TREE_MAX, sizeof *s->up);
    s->prio = dg_arena_take(host, DG_TREE_MAX, sizeof *s->prio);
    s->id = dg_arena_take(host, n, sizeof *s->id);
    if (!host->base) return;
    upload_rows_template(s);
    upload_template(s, t);
    for (int32_t i = 0; i < DG_TREE_MAX; i++) s->prio[i] = i;
    dg_succ_clear(s);
}

void dg_succ_clear(dg_succ *s) {
    const int32_t rows = s->m.rows, piece = DG_SUCC_ROOTS;
    if (s->warm) {
        upload(s, s->m.data, s->warm, rows * s->width);
        return;
    }
    for (int32_t i = 0; i < piece * s->width; i++) s->id[i] = s->empty;
    for (int32_t at = 0; at < rows; at += piece)
        upload(s, dg_mat_row(&s->m, at), s->id, (rows - at < piece ? rows - at : piece) * s->width);
}

/* ---- learning --------------------------------------------------------------------------------- */

/* The order in which rows of one token outrank each other, as an integer. Scores are never positive, so their
 * bits rise as they fall; 19 of them do. */
static int32_t priority(const dg_succ *s, const dg_tree *t, int32_t node) {
    uint32_t bits;
    memcpy(&bits, &t->score[node], sizeof bits);
    const uint32_t falling = (bits & 0x7fffffffu) >> 12;
    const bool drafted = t->source[node] != s->source;
    return (int32_t)((drafted ? 1u << 28 : 0u) | (0x7ffffu - falling) << 8 |
                     (uint32_t)(DG_TREE_MAX - 1 - node));
}

static void set_priorities(dg_succ *s, const dg_outcome *o) {
    for (int32_t i = 0; i < o->tree->n; i++) s->up[i] = s->by_row ? i : priority(s, o->tree, i);
    if (s->by_row) return;
    for (int32_t i = 0; i < o->n; i++) s->up[o->path[i]] = 1 << 29 | i;
}

void dg_succ_learn(dg_succ *s, const dg_outcome *o) {
    if (!o->successor.data) {
        dg_succ_push(s, o->token, o->n, o->next);
        return;
    }
    const int32_t n = o->successor.rows;
    assert(n <= DG_TREE_MAX);
    if (o->tree) set_priorities(s, o);
    upload(s, s->prio_dev, o->tree ? s->up : s->prio, n);
    upload(s, s->up_dev, o->tree ? o->tree->token : o->token, n);
    backend(s)->ops->succ_update(backend(s), s->m, s->up_dev, o->successor, s->prio_dev);
}

/* Puts next at the front of row[width] and drops what it replaces: itself, or the last. */
static void push_front(int32_t *row, int32_t width, int32_t next) {
    int32_t at = 0;
    while (at < width - 1 && row[at] != next) at++;
    memmove(row + 1, row, (size_t)at * sizeof *row);
    row[0] = next;
}

static void push_some(dg_succ *s, const int32_t *token, int32_t n, int32_t next) {
    int32_t *row = s->id + DG_SUCC_ROOTS;
    dg_succ_rows(s, token, n, row);
    for (int32_t i = 0; i < n; i++) {
        int32_t last = i; /* the same token before: its row is the newer */
        while (last > 0 && token[last - 1] != token[i]) last--;
        if (last > 0) memcpy(row + i * s->width, row + (last - 1) * s->width, (size_t)s->width * sizeof *row);
        push_front(row + i * s->width, s->width, i + 1 < n ? token[i + 1] : next);
    }
    upload(s, s->up_dev, token, n);
    upload(s, s->prio_dev, s->prio, n);
    upload(s, s->id_dev, row, n * s->width);
    backend(s)->ops->succ_update(backend(s), s->m, s->up_dev, dg_mat_make(s->id_dev, DG_I32, n, s->width),
                                 s->prio_dev);
}

void dg_succ_push(dg_succ *s, const int32_t *token, int32_t n, int32_t next) {
    for (int32_t at = 0; at < n; at += DG_SUCC_ROOTS) {
        const int32_t some = n - at < DG_SUCC_ROOTS ? n - at : DG_SUCC_ROOTS;
        push_some(s, token + at, some, at + some < n ? token[at + some] : next);
    }
}

/* ---- looking up ------------------------------------------------------------------------------- */

void dg_succ_rows(dg_succ *s, const int32_t *token, int32_t n, int32_t *row) {
    dg_backend *be = backend(s);
    for (int32_t at = 0; at < n; at += DG_SUCC_ROOTS) {
        const int32_t some = n - at < DG_SUCC_ROOTS ? n - at : DG_SUCC_ROOTS;
        upload(s, s->id_dev, token + at,
               some); /* roots behind them: whatever they were, their rows are not read */
        be->ops->succ_expand(be, s->id_dev, s->m, s->row_parent, s->row_rank, DG_SUCC_ROOTS,
                             DG_SUCC_ROOTS + some * s->width);
        be->ops->download(be, row + (size_t)at * (size_t)s->width, s->id_dev + DG_SUCC_ROOTS,
                          (size_t)(some * s->width) * sizeof *row);
    }
}

void dg_succ_expand(dg_succ *s, int32_t root, int32_t n, int32_t *id) {
    dg_backend *be = backend(s);
    assert(n <= s->n_template);
    if (n <= 0) return;
    upload(s, s->id_dev, &root, 1);
    be->ops->succ_expand(be, s->id_dev, s->m, s->parent_dev, s->rank_dev, 1, n + 1);
    be->ops->download(be, id, s->id_dev + 1, (size_t)n * sizeof *id);
}
