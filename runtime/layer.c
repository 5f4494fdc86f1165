/* The decoder layer; see layer.h. */
#include "runtime/layer.h"

#include <math.h>

void dg_work_layout(dg_work *w, const dg_config *c, int32_t cap, dg_arena *dev) {
    const int32_t q = c->n_head * c->head_dim, kv = c->n_kv_head * c->head_dim;
    const struct {
        dg_mat *m;
        int32_t cols;
    } part[] = {{&w->x, c->hidden_size}, {&w->y, c->hidden_size}, {&w->q, q},
                {&w->k, kv},             {&w->v, kv},             {&w->att, q},
                {&w->gate, c->intermediate_size}, {&w->up, c->intermediate_size}, {&w->rope, c->head_dim}};
    w->in = (dg_mat){0};
    for (size_t i = 0; i < sizeof part / sizeof *part; i++)
        *part[i].m = dg_mat_make(dg_arena_take(dev, (size_t)cap, sizeof(float) * (size_t)part[i].cols), DG_F32, cap,
                                 part[i].cols);
}

dg_work dg_work_rows(const dg_work *w, int32_t n) {
    dg_work r = *w;
    dg_mat *const part[] = {&r.x, &r.y, &r.in, &r.q, &r.k, &r.v, &r.att, &r.gate, &r.up, &r.rope};
    for (size_t i = 0; i < sizeof part / sizeof *part; i++) part[i]->rows = n;
    return r;
}

static dg_attn_seg attn_seg(const dg_segment *s, int32_t l, int mask) {
    return (dg_attn_seg){.k = s->kv->k[l], .v = s->kv->v[l], .pos = s->kv->win_pos, .bits = s->bits, .len = s->len,
                         .win = s->win, .row0 = s->row0, .n = s->n, .mask = mask >= 0 ? (dg_mask)mask : s->mask,
                         .live = s->live};
}

/* The rows of w as attention takes them; q: also queries. */
static dg_qkv qkv_of(const dg_config *c, const dg_layer *layer, const dg_work *w, bool q) {
    return (dg_qkv){.q = q ? w->q : (dg_mat){0}, .k = w->k, .v = w->v, .q_norm = q ? layer->q_norm : (dg_mat){0},
                    .k_norm = layer->k_norm, .eps = c->rms_norm_eps, .rope = w->rope, .head_dim = c->head_dim,
                    .interleaved = c->rope_interleaved};
}

static void attention_half(dg_backend *be, const dg_config *c, const dg_layer *layer, int32_t l, const dg_batch *b,
                           const dg_work *w, int mask) {
    const dg_ops *op = be->ops;
    const dg_mat in = w->in.data ? w->in : w->y;
    if (!w->in.data) op->rms_norm(be, w->y, w->x, layer->attn_norm, c->rms_norm_eps);
    const dg_product product[] = {{w->q, layer->wq, layer->bq}, {w->k, layer->wk, layer->bk}, {w->v, layer->wv, layer->bv}};
    op->matmul(be, in, product, 3, false);

    dg_attn_seg seg[DG_MAX_SEGMENTS];
    for (int32_t i = 0; i < b->n_seg; i++) seg[i] = attn_seg(&b->seg[i], l, mask);
    const dg_qkv qkv = qkv_of(c, layer, w, true);
    op->qkv(be, &qkv, seg, b->n_seg);
    const dg_attn_shape shape = {c->n_head, c->n_kv_head, c->head_dim, c->window[l],
                                 1.0f / sqrtf((float)c->head_dim), w->att.loose};
    op->attention(be, w->att, w->q, seg, b->n_seg, &shape);
    dg_matmul(be, w->x, w->att, layer->wo, layer->bo, true);
}

void dg_layer_forward(dg_backend *be, const dg_config *c, const dg_layer *layer, int32_t l, const dg_batch *b,
                      const dg_work *w, int mask) {
    const dg_ops *op = be->ops;
    const dg_mat none = {0};
    attention_half(be, c, layer, l, b, w, mask);
    op->rms_norm(be, w->y, w->x, layer->ffn_norm, c->rms_norm_eps);
    const dg_product gate_up[] = {{w->gate, layer->w_gate, none}, {w->up, layer->w_up, none}};
    op->matmul(be, w->y, gate_up, 2, false);
    op->swiglu(be, w->gate, w->gate, w->up);
    dg_matmul(be, w->x, w->gate, layer->w_down, none, true);
}

void dg_layer_store(dg_backend *be, const dg_config *c, const dg_layer *layer, int32_t l, const dg_batch *b, int32_t i,
                    dg_mat c_rows, const dg_work *w) {
    const dg_product product[] = {{w->k, layer->wk, layer->bk}, {w->v, layer->wv, layer->bv}};
    be->ops->matmul(be, c_rows, product, 2, false);
    dg_attn_seg seg = attn_seg(&b->seg[i], l, -1);
    seg.row0 = 0;
    const dg_qkv qkv = qkv_of(c, layer, w, false);
    be->ops->qkv(be, &qkv, &seg, 1);
}
