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

/* [n, heads*hd] as [n*heads, hd]: one row a head. */
static dg_mat heads(dg_mat m, int32_t head_dim) {
    return dg_mat_make(m.data, m.dtype, m.rows * (m.cols / head_dim), head_dim);
}

static void attention_half(dg_backend *be, const dg_config *c, const dg_layer *layer, int32_t l, const dg_batch *b,
                           const dg_work *w, int mask) {
    const dg_ops *op = be->ops;
    const dg_mat in = w->in.data ? w->in : w->y;
    if (!w->in.data) op->rms_norm(be, w->y, w->x, layer->attn_norm, c->rms_norm_eps);
    const dg_product qkv[] = {{w->q, layer->wq, layer->bq}, {w->k, layer->wk, layer->bk}, {w->v, layer->wv, layer->bv}};
    op->matmul(be, in, qkv, 3, false);
    if (layer->q_norm.data)
        op->rms_norm(be, heads(w->q, c->head_dim), heads(w->q, c->head_dim), layer->q_norm, c->rms_norm_eps);
    if (layer->k_norm.data)
        op->rms_norm(be, heads(w->k, c->head_dim), heads(w->k, c->head_dim), layer->k_norm, c->rms_norm_eps);
    op->rope(be, w->q, w->rope, c->n_head, c->rope_interleaved);
    op->rope(be, w->k, w->rope, c->n_kv_head, c->rope_interleaved);

    dg_attn_seg seg[DG_MAX_SEGMENTS];
    for (int32_t i = 0; i < b->n_seg; i++) {
        const dg_segment *s = &b->seg[i];
        const int32_t at = s->kv->len + s->kv->win - s->n;
        op->kv_put(be, s->kv->k[l], s->kv->v[l], at, dg_mat_rows(w->k, s->row0, s->n),
                   dg_mat_rows(w->v, s->row0, s->n), c->head_dim);
        seg[i] = (dg_attn_seg){.k = s->kv->k[l], .v = s->kv->v[l], .pos = s->kv->win_pos, .bits = s->bits,
                               .len = s->kv->len, .win = s->kv->win, .row0 = s->row0, .n = s->n,
                               .mask = mask >= 0 ? (dg_mask)mask : s->mask};
    }
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

void dg_layer_store(dg_backend *be, const dg_config *c, const dg_layer *layer, int32_t l, dg_kv *kv, int32_t row0,
                    dg_mat c_rows, const dg_work *w) {
    const dg_ops *op = be->ops;
    const dg_product kv_rows[] = {{w->k, layer->wk, layer->bk}, {w->v, layer->wv, layer->bv}};
    op->matmul(be, c_rows, kv_rows, 2, false);
    if (layer->k_norm.data)
        op->rms_norm(be, heads(w->k, c->head_dim), heads(w->k, c->head_dim), layer->k_norm, c->rms_norm_eps);
    op->rope(be, w->k, w->rope, c->n_kv_head, c->rope_interleaved);
    op->kv_put(be, kv->k[l], kv->v[l], row0, w->k, w->v, c->head_dim);
}
