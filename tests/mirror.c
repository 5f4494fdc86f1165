/* See mirror.h. */
#include "tests/mirror.h"

#include <assert.h>
#include <stdlib.h>

static const dg_ops *inner; /* of the backend; all that are mirrored are of one kind */

enum { MOST = 24 };

/* The operands of one call. */
typedef struct call {
    dg_backend *be;
    int n;
    struct {
        char *host, *dev;
        size_t bytes;
        bool out;
    } part[MOST];
} call;

/* Where n bytes of host memory are on the device; what lies within an earlier operand is there already. */
static void *place(call *c, const void *host, size_t bytes, bool out) {
    char *p = (char *)(uintptr_t)host;
    if (!p || !bytes) return p;
    for (int i = 0; i < c->n; i++)
        if (p >= c->part[i].host && p + bytes <= c->part[i].host + c->part[i].bytes) {
            c->part[i].out |= out;
            return c->part[i].dev + (p - c->part[i].host);
        }
    assert(c->n < MOST);
    char *dev = inner->alloc(c->be, bytes);
    assert(dev);
    inner->upload(c->be, dev, host, bytes);
    c->part[c->n].host = p, c->part[c->n].dev = dev, c->part[c->n].bytes = bytes, c->part[c->n].out = out;
    c->n++;
    return dev;
}

static dg_mat place_mat(call *c, dg_mat m, bool out) {
    const size_t bytes = m.rows && m.cols ? dg_dtype_bytes(m.dtype, (size_t)((m.rows - 1) * m.stride + m.cols)) : 0;
    m.data = place(c, m.data, bytes, out);
    return m;
}

static dg_mat in(call *c, dg_mat m) { return place_mat(c, m, false); }
static dg_mat out(call *c, dg_mat m) { return place_mat(c, m, true); }
static int32_t *ints(call *c, const int32_t *p, int64_t n) { return place(c, p, (size_t)n * sizeof *p, false); }

static void finish(call *c) {
    for (int i = 0; i < c->n; i++) {
        if (c->part[i].out) inner->download(c->be, c->part[i].host, c->part[i].dev, c->part[i].bytes);
        inner->free(c->be, c->part[i].dev);
    }
}

/* Larger operands first: smaller ones may be views of them. */

static void copy2d(dg_backend *be, dg_mat dst, dg_mat src) {
    call c = {.be = be};
    dst = out(&c, dst), src = in(&c, src);
    inner->copy2d(be, dst, src);
    finish(&c);
}

static void zero(dg_backend *be, dg_mat dst) {
    call c = {.be = be};
    inner->zero(be, out(&c, dst));
    finish(&c);
}

static void embed(dg_backend *be, dg_mat to, dg_mat table, const int32_t *id) {
    call c = {.be = be};
    to = out(&c, to), table = in(&c, table);
    inner->embed(be, to, table, ints(&c, id, to.rows));
    finish(&c);
}

static void rms_norm(dg_backend *be, dg_mat to, dg_mat x, dg_mat w, float eps) {
    call c = {.be = be};
    x = in(&c, x), to = out(&c, to), w = in(&c, w);
    inner->rms_norm(be, to, x, w, eps);
    finish(&c);
}

static void matmul(dg_backend *be, dg_mat x, const dg_product *product, int32_t n, bool add) {
    call c = {.be = be};
    dg_product p[8];
    assert(n <= 8);
    x = in(&c, x);
    for (int32_t i = 0; i < n; i++) p[i] = (dg_product){out(&c, product[i].out), in(&c, product[i].w), in(&c, product[i].bias)};
    inner->matmul(be, x, p, n, add);
    finish(&c);
}

static dg_mat pack(dg_backend *be, void *dst, dg_mat w, dg_dtype as) {
    call c = {.be = be};
    const size_t bytes = inner->pack_bytes(be, w, as);
    if (!bytes) return w;
    void *dev = place(&c, dst, bytes, true);
    dg_mat packed = inner->pack(be, dev, w, as);
    packed.data = dst;
    finish(&c);
    return packed;
}

static void rope_table(dg_backend *be, dg_mat table, const int32_t *pos, const float *freq, float mscale) {
    call c = {.be = be};
    table = out(&c, table);
    const float *f = place(&c, freq, (size_t)(table.cols / 2) * sizeof *freq, false);
    inner->rope_table(be, table, ints(&c, pos, table.rows), f, mscale);
    finish(&c);
}

static void attention(dg_backend *be, dg_mat to, dg_mat q, const dg_attn_seg *seg, int32_t n, const dg_attn_shape *shape) {
    call c = {.be = be};
    dg_attn_seg s[4];
    assert(n <= 4);
    to = out(&c, to), q = in(&c, q);
    for (int32_t i = 0; i < n; i++) {
        s[i] = seg[i];
        s[i].k = in(&c, seg[i].k), s[i].v = in(&c, seg[i].v);
        s[i].pos = ints(&c, seg[i].pos, seg[i].win);
        s[i].bits = place(&c, seg[i].bits, (size_t)seg[i].n * DG_MASK_WORDS * sizeof *seg[i].bits, false);
        s[i].live = place(&c, seg[i].live, sizeof *seg[i].live, false);
    }
    inner->attention(be, to, q, s, n, shape);
    finish(&c);
}

static void qkv(dg_backend *be, const dg_qkv *qkv, const dg_attn_seg *seg, int32_t n) {
    call c = {.be = be};
    dg_qkv r = *qkv;
    dg_attn_seg s[4];
    assert(n <= 4);
    for (int32_t i = 0; i < n; i++) {
        s[i] = seg[i];
        s[i].k = out(&c, seg[i].k), s[i].v = out(&c, seg[i].v);
        s[i].live = place(&c, seg[i].live, sizeof *seg[i].live, false);
    }
    r.q = out(&c, r.q), r.k = in(&c, r.k), r.v = in(&c, r.v);
    r.q_norm = in(&c, r.q_norm), r.k_norm = in(&c, r.k_norm), r.rope = in(&c, r.rope);
    inner->qkv(be, &r, s, n);
    finish(&c);
}

static void kv_move(dg_backend *be, const dg_mat *ck, const dg_mat *cv, int32_t n_layer, int32_t row0, const int32_t *idx,
                    int32_t n, int32_t head_dim) {
    call c = {.be = be};
    dg_mat k[4], v[4];
    assert(n_layer <= 4);
    for (int32_t l = 0; l < n_layer; l++) k[l] = out(&c, ck[l]), v[l] = out(&c, cv[l]);
    inner->kv_move(be, k, v, n_layer, row0, ints(&c, idx, n), n, head_dim);
    finish(&c);
}

static void kv_get(dg_backend *be, dg_mat k, dg_mat v, dg_mat ck, dg_mat cv, int32_t row0, int32_t head_dim) {
    call c = {.be = be};
    ck = in(&c, ck), cv = in(&c, cv), k = out(&c, k), v = out(&c, v);
    inner->kv_get(be, k, v, ck, cv, row0, head_dim);
    finish(&c);
}

static void swiglu(dg_backend *be, dg_mat to, dg_mat gate, dg_mat up) {
    call c = {.be = be};
    gate = in(&c, gate), up = in(&c, up), to = out(&c, to);
    inner->swiglu(be, to, gate, up);
    finish(&c);
}

static void rows_put(dg_backend *be, dg_mat dst, const int32_t *row0, dg_mat src) {
    call c = {.be = be};
    dst = out(&c, dst), src = in(&c, src);
    inner->rows_put(be, dst, ints(&c, row0, 1), src);
    finish(&c);
}

static void rows_gather(dg_backend *be, dg_mat dst, dg_mat src, const int32_t *idx) {
    call c = {.be = be};
    src = in(&c, src), dst = out(&c, dst);
    inner->rows_gather(be, dst, src, ints(&c, idx, dst.rows));
    finish(&c);
}

static void top_k(dg_backend *be, int32_t *id, float *logp, dg_mat logits, int32_t k) {
    call c = {.be = be};
    const size_t cells = (size_t)logits.rows * (size_t)k;
    logits = in(&c, logits);
    int32_t *ids = place(&c, id, cells * sizeof *id, true);
    inner->top_k(be, ids, place(&c, logp, cells * sizeof *logp, true), logits, k);
    finish(&c);
}

static void sample(dg_backend *be, int32_t *id, float *logp, dg_mat logits, const int32_t *pos, const dg_sampling *s, int32_t *best,
                   int32_t k) {
    call c = {.be = be};
    const size_t n = (size_t)logits.rows;
    logits = in(&c, logits);
    int32_t *ids = place(&c, id, n * sizeof *id, true);
    float *logps = place(&c, logp, n * sizeof *logp, true);
    int32_t *bests = place(&c, best, n * (size_t)k * sizeof *best, true);
    inner->sample(be, ids, logps, logits, ints(&c, pos, logits.rows), s, bests, k);
    finish(&c);
}

static void succ_update(dg_backend *be, dg_mat m, const int32_t *token, dg_mat id, const int32_t *prio) {
    call c = {.be = be};
    m = out(&c, m), id = in(&c, id);
    const int32_t *t = ints(&c, token, id.rows);
    inner->succ_update(be, m, t, id, ints(&c, prio, id.rows));
    finish(&c);
}

static void succ_expand(dg_backend *be, int32_t *id, dg_mat m, const int32_t *parent, const int32_t *rank, int32_t n_root,
                        int32_t n) {
    call c = {.be = be};
    m = in(&c, m);
    int32_t *ids = place(&c, id, (size_t)n * sizeof *id, true);
    const int32_t *p = ints(&c, parent, n);
    inner->succ_expand(be, ids, m, p, ints(&c, rank, n), n_root, n);
    finish(&c);
}

void mirror_backend(dg_backend *be) {
    static dg_ops ops;
    inner = be->ops;
    ops = (dg_ops){
        .name = "mirror", .host_memory = true, .has_loose = inner->has_loose, .alloc = inner->alloc, .free = inner->free, .upload = inner->upload,
        .download = inner->download, .sync = inner->sync, .pack_bytes = inner->pack_bytes, .pack = pack,
        .copy2d = copy2d, .zero = zero, .embed = embed, .rms_norm = rms_norm, .matmul = matmul, .rope_table = rope_table,
        .pass_begin = inner->pass_begin, .pass_end = inner->pass_end, .pass_rows = inner->pass_rows,
        .qkv = qkv, .attention = attention, .kv_move = kv_move, .kv_get = kv_get, .swiglu = swiglu,
        .rows_put = rows_put, .rows_gather = rows_gather, .top_k = top_k, .sample = sample,
        .succ_update = succ_update, .succ_expand = succ_expand,
    };
    be->ops = &ops;
}
