/* Opening of backends by name, and the argument checks that all of them share.
 *
 * Where asserts are on, the op table that the caller sees is a layer of checks over the backend's own. It
 * knows the contracts of ops.h and nothing of how an op is computed. */
#include "kernels/backend.h"

#include <assert.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/quant.h"

static const dg_backend_driver *const drivers[] = {
    &dg_cpu_driver,
#ifdef DG_CUDA
    &dg_cuda_driver,
#endif
};

#ifndef NDEBUG
/* A pass that was run: its key, and a digest of the arguments of its ops. */
typedef struct known_pass {
    unsigned char key[DG_PASS_KEY];
    size_t bytes;
    uint64_t digest;
} known_pass;
#endif

typedef struct opened {
    dg_backend be; /* first: a dg_backend pointer is a pointer to this */
    const dg_backend_driver *driver;
    void (*free)(void *);
#ifndef NDEBUG
    dg_ops checked;
    pthread_mutex_t lock;
    known_pass known[16]; /* a ring */
    size_t n_known;
#endif
} opened;

enum { HEAD = (sizeof(opened) + 63) / 64 * 64 };

/* ---- checks ---- */
#ifndef NDEBUG

static const dg_ops *inner(dg_backend *be) { return ((opened *)be)->driver->ops; }

static bool mat_ok(dg_mat m) {
    return m.rows >= 0 && m.cols >= 0 && m.stride >= m.cols && (m.data || m.rows == 0 || m.cols == 0) &&
           m.cols % dg_dtype_get(m.dtype)->block_len == 0 && m.stride % dg_dtype_get(m.dtype)->block_len == 0;
}

static bool is_f32(dg_mat m, int32_t rows, int32_t cols) {
    return mat_ok(m) && m.dtype == DG_F32 && m.rows == rows && m.cols == cols;
}

static bool is_float(dg_dtype t) { return t == DG_F32 || t == DG_F16 || t == DG_BF16; }

/* Bytes from the first to behind the last element. */
static size_t extent(dg_mat m) {
    if (m.rows == 0 || m.cols == 0) return 0;
    return dg_dtype_bytes(m.dtype, (size_t)((m.rows - 1) * m.stride + m.cols));
}

static bool overlap(dg_mat a, dg_mat b) {
    const char *p = a.data, *q = b.data;
    const size_t na = extent(a), nb = extent(b);
    return na && nb && p < q + nb && q < p + na;
}

/* Not overlapping, or the very same view. */
static bool same_or_apart(dg_mat a, dg_mat b) {
    return !overlap(a, b) || (a.data == b.data && a.stride == b.stride && a.cols == b.cols);
}

/* ---- passes: equal keys mean equal arguments, and nothing within waits or moves to or from the host ---- */

static _Thread_local struct {
    dg_backend *be; /* NULL: the thread is in no pass */
    known_pass pass;
} now;

static void note(uint64_t x) { now.pass.digest = (now.pass.digest ^ x) * UINT64_C(0x100000001b3) ^ (now.pass.digest >> 29); }
static void note_at(const void *p) { note((uint64_t)(uintptr_t)p); }

static void note_real(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    note(bits);
}

static void note_mat(dg_mat m) {
    note_at(m.data);
    note((uint64_t)m.dtype | (uint64_t)m.packed << 8 | (uint64_t)m.coarse << 9 | (uint64_t)m.loose << 10);
    note((uint64_t)m.rows << 32 | (uint32_t)m.cols);
    note((uint64_t)m.stride);
}

static void note_seg(const dg_attn_seg *s) {
    note_mat(s->k), note_mat(s->v);
    note_at(s->pos), note_at(s->bits), note_at(s->live);
    note((uint64_t)s->win << 32 | (uint32_t)s->n);
    note((uint64_t)s->row0 << 32 | (uint32_t)s->mask);
    if (!s->live) note((uint64_t)s->len);
}

/* The thread's pass, if it is in one, is of this backend. */
static void within(const dg_backend *be) { assert(!now.be || now.be == be), (void)be; }
static void outside(void) { assert(!now.be); }

static bool check_pass_begin(dg_backend *be, const void *key, size_t bytes) {
    outside();
    assert(bytes <= DG_PASS_KEY && (key || !bytes));
    if (!inner(be)->pass_begin(be, key, bytes)) return false;
    now.be = be;
    now.pass = (known_pass){.bytes = bytes, .digest = UINT64_C(0xcbf29ce484222325)};
    if (bytes) memcpy(now.pass.key, key, bytes);
    return true;
}

static void check_pass_end(dg_backend *be) {
    assert(now.be == be);
    now.be = NULL;
    inner(be)->pass_end(be);
    opened *o = (opened *)be;
    const known_pass *p = &now.pass;
    if (!p->bytes) return;
    pthread_mutex_lock(&o->lock);
    const size_t most = sizeof o->known / sizeof *o->known, n = o->n_known < most ? o->n_known : most;
    bool known = false;
    for (size_t i = 0; i < n; i++) {
        if (o->known[i].bytes != p->bytes || memcmp(o->known[i].key, p->key, p->bytes) != 0) continue;
        assert(o->known[i].digest == p->digest); /* else the key leaves out what the pass depends on */
        known = true;
    }
    if (!known) o->known[o->n_known++ % most] = *p;
    pthread_mutex_unlock(&o->lock);
}

static int32_t check_pass_rows(dg_backend *be, int32_t n) {
    const int32_t rows = inner(be)->pass_rows(be, n);
    assert(n >= 0 && rows >= n);
    return rows;
}

static void *check_alloc(dg_backend *be, size_t bytes) {
    outside();
    return inner(be)->alloc(be, bytes);
}

static void check_free(dg_backend *be, void *p) {
    outside();
    opened *o = (opened *)be;
    pthread_mutex_lock(&o->lock);
    o->n_known = 0;
    pthread_mutex_unlock(&o->lock);
    inner(be)->free(be, p);
}

static void check_upload(dg_backend *be, void *dst, const void *src, size_t bytes) {
    outside();
    assert(bytes == 0 || (dst && src));
    inner(be)->upload(be, dst, src, bytes);
}

static void check_download(dg_backend *be, void *dst, const void *src, size_t bytes) {
    outside();
    assert(bytes == 0 || (dst && src));
    inner(be)->download(be, dst, src, bytes);
}

static void check_copy2d(dg_backend *be, dg_mat dst, dg_mat src) {
    assert(mat_ok(dst) && mat_ok(src));
    assert(dst.rows == src.rows && dst.cols == src.cols && dst.dtype == src.dtype);
    assert(!overlap(dst, src));
    within(be);
    note(1), note_mat(dst), note_mat(src);
    inner(be)->copy2d(be, dst, src);
}

static void check_zero(dg_backend *be, dg_mat dst) {
    assert(mat_ok(dst));
    within(be);
    note(2), note_mat(dst);
    inner(be)->zero(be, dst);
}

static bool check_sync(dg_backend *be) {
    outside();
    return inner(be)->sync(be);
}

static void check_embed(dg_backend *be, dg_mat out, dg_mat table, const int32_t *id) {
    assert(mat_ok(table) && dg_dtype_is_weight(table.dtype) && !table.packed);
    assert(is_f32(out, out.rows, table.cols) && !overlap(out, table));
    assert(id || out.rows == 0);
    within(be);
    note(3), note_mat(out), note_mat(table), note_at(id);
    inner(be)->embed(be, out, table, id);
}

static void check_rms_norm(dg_backend *be, dg_mat out, dg_mat x, dg_mat w, float eps) {
    assert(is_f32(x, x.rows, x.cols) && is_f32(out, x.rows, x.cols) && same_or_apart(out, x));
    assert(mat_ok(w) && is_float(w.dtype) && w.rows == 1 && w.cols == x.cols && !overlap(out, w));
    assert(x.cols > 0 && eps >= 0);
    within(be);
    note(4), note_mat(out), note_mat(x), note_mat(w), note_real(eps);
    inner(be)->rms_norm(be, out, x, w, eps);
}

static size_t check_pack_bytes(dg_backend *be, dg_mat w, dg_dtype as) {
    assert(mat_ok(w) && dg_dtype_is_weight(w.dtype) && !w.packed && (as == w.dtype || as == DG_Q8_0));
    return inner(be)->pack_bytes(be, w, as);
}

static dg_mat check_pack(dg_backend *be, void *dst, dg_mat w, dg_dtype as) {
    assert((uintptr_t)dst % 64 == 0 && (dst || check_pack_bytes(be, w, as) == 0));
    const dg_mat packed = inner(be)->pack(be, dst, w, as);
    assert(packed.rows == w.rows && packed.cols == w.cols);
    return packed;
}

static void check_matmul(dg_backend *be, dg_mat x, const dg_product *product, int32_t n_product, bool add) {
    for (int32_t i = 0; i < n_product; i++) {
        const dg_mat out = product[i].out, w = product[i].w, bias = product[i].bias;
        assert(mat_ok(w) && dg_dtype_is_weight(w.dtype) && w.cols > 0);
        assert(is_f32(x, x.rows, w.cols) && is_f32(out, x.rows, w.rows));
        assert(!overlap(out, x) && !overlap(out, w));
        assert(!bias.data || (mat_ok(bias) && is_float(bias.dtype) && bias.rows == 1 && bias.cols == w.rows));
        for (int32_t j = 0; j < i; j++) assert(!overlap(out, product[j].out));
    }
    within(be);
    note(5), note_mat(x), note((uint64_t)add);
    for (int32_t i = 0; i < n_product; i++) note_mat(product[i].out), note_mat(product[i].w), note_mat(product[i].bias);
    inner(be)->matmul(be, x, product, n_product, add);
}

static void check_rope_table(dg_backend *be, dg_mat table, const int32_t *pos, const float *freq,
                             float mscale) {
    assert(is_f32(table, table.rows, table.cols) && table.cols % 2 == 0);
    assert(table.rows == 0 || (pos && freq));
    within(be);
    note(6), note_mat(table), note_at(pos), note_at(freq), note_real(mscale);
    inner(be)->rope_table(be, table, pos, freq, mscale);
}

static bool cache_ok(dg_mat ck, dg_mat cv, int32_t head_dim) {
    return mat_ok(ck) && mat_ok(cv) && is_float(ck.dtype) && ck.dtype == cv.dtype && ck.rows == cv.rows &&
           ck.cols == cv.cols && ck.stride == ck.cols && cv.stride == cv.cols && ck.rows % DG_KV_BLOCK == 0 &&
           head_dim > 0 && ck.cols % head_dim == 0 && !overlap(ck, cv);
}

/* Where `live` cannot be read, len may be an earlier one, and the padding may lie behind the cache. */
static bool seg_ok(dg_backend *be, const dg_attn_seg *seg, dg_mat rows, int32_t head_dim) {
    const dg_attn_seg s = inner(be)->host_memory ? dg_seg_now(*seg) : *seg;
    const bool unknown = s.live && !inner(be)->host_memory;
    return cache_ok(s.k, s.v, head_dim) && s.len >= 0 && s.n >= 0 && s.n <= s.win && s.n <= seg->n &&
           (unknown || s.len + s.win <= s.k.rows) && s.row0 >= 0 && s.row0 + seg->n <= rows.rows;
}

static bool head_norm_ok(dg_mat w, int32_t head_dim) {
    return !w.data || (mat_ok(w) && is_float(w.dtype) && w.rows == 1 && w.cols == head_dim);
}

static void check_qkv(dg_backend *be, const dg_qkv *r, const dg_attn_seg *seg, int32_t n_seg) {
    const int32_t n = r->k.rows, hd = r->head_dim;
    assert(hd > 0 && is_f32(r->k, n, r->k.cols) && is_f32(r->v, n, r->k.cols) && r->k.cols % hd == 0 && !overlap(r->k, r->v));
    assert(!r->q.data || (is_f32(r->q, n, r->q.cols) && r->q.cols % hd == 0 && !overlap(r->q, r->k) && !overlap(r->q, r->v)));
    assert(head_norm_ok(r->q_norm, hd) && head_norm_ok(r->k_norm, hd) && r->eps >= 0);
    assert(!r->rope.data || (is_f32(r->rope, n, hd) && hd % 2 == 0));
    for (int32_t i = 0; i < n_seg; i++) assert(seg_ok(be, &seg[i], r->k, hd) && seg[i].k.cols == r->k.cols);
    within(be);
    note(7), note_mat(r->q), note_mat(r->k), note_mat(r->v), note_mat(r->q_norm), note_mat(r->k_norm), note_mat(r->rope);
    note_real(r->eps), note((uint64_t)hd << 1 | r->interleaved);
    for (int32_t i = 0; i < n_seg; i++) note_seg(&seg[i]);
    inner(be)->qkv(be, r, seg, n_seg);
}

static void check_kv_move(dg_backend *be, const dg_mat *ck, const dg_mat *cv, int32_t n_layer, int32_t row0,
                          const int32_t *idx, int32_t n, int32_t head_dim) {
    assert(n_layer >= 0 && (idx || n == 0) && row0 >= 0 && n >= 0);
    for (int32_t l = 0; l < n_layer; l++) {
        assert(cache_ok(ck[l], cv[l], head_dim) && row0 + n <= ck[l].rows);
        assert(ck[l].rows == ck->rows && ck[l].cols == ck->cols && ck[l].dtype == ck->dtype);
    }
    outside();
    inner(be)->kv_move(be, ck, cv, n_layer, row0, idx, n, head_dim);
}

static void check_kv_get(dg_backend *be, dg_mat k, dg_mat v, dg_mat ck, dg_mat cv, int32_t row0, int32_t head_dim) {
    assert(cache_ok(ck, cv, head_dim) && is_f32(k, k.rows, ck.cols) && is_f32(v, k.rows, ck.cols));
    assert(row0 >= 0 && row0 + k.rows <= ck.rows);
    outside();
    inner(be)->kv_get(be, k, v, ck, cv, row0, head_dim);
}

static void check_attention(dg_backend *be, dg_mat out, dg_mat q, const dg_attn_seg *seg, int32_t n_seg,
                            const dg_attn_shape *shape) {
    assert(shape->n_kv_head > 0 && shape->n_head % shape->n_kv_head == 0 && shape->head_dim > 0);
    assert(shape->window >= 0);
    const int32_t cols = shape->n_head * shape->head_dim, kv_cols = shape->n_kv_head * shape->head_dim;
    assert(is_f32(q, q.rows, cols) && is_f32(out, q.rows, cols) && !overlap(out, q));
    for (int32_t i = 0; i < n_seg; i++) {
        const dg_attn_seg *s = &seg[i];
        assert(seg_ok(be, s, q, shape->head_dim) && s->k.cols == kv_cols);
        assert(s->pos || s->win == 0);
        assert(s->mask != DG_MASK_BITS || s->n == 0 || (s->bits && s->win <= DG_TREE_MAX));
    }
    within(be);
    note(8), note_mat(out), note_mat(q), note_real(shape->scale), note((uint64_t)shape->window << 1 | shape->loose);
    note((uint64_t)shape->n_head << 42 | (uint64_t)shape->n_kv_head << 21 | (uint64_t)shape->head_dim);
    for (int32_t i = 0; i < n_seg; i++) note_seg(&seg[i]);
    inner(be)->attention(be, out, q, seg, n_seg, shape);
}

static void check_swiglu(dg_backend *be, dg_mat out, dg_mat gate, dg_mat up) {
    assert(is_f32(gate, gate.rows, gate.cols) && is_f32(up, gate.rows, gate.cols));
    assert(is_f32(out, gate.rows, gate.cols) && same_or_apart(out, gate) && !overlap(out, up));
    within(be);
    note(10), note_mat(out), note_mat(gate), note_mat(up);
    inner(be)->swiglu(be, out, gate, up);
}

static void check_rows_put(dg_backend *be, dg_mat dst, const int32_t *row0, dg_mat src) {
    assert(mat_ok(dst) && is_float(dst.dtype) && is_f32(src, src.rows, dst.cols));
    assert(row0 && (!inner(be)->host_memory || *row0 >= 0) && !overlap(dst, src));
    within(be);
    note(11), note_mat(dst), note_at(row0), note_mat(src);
    inner(be)->rows_put(be, dst, row0, src);
}

static void check_rows_gather(dg_backend *be, dg_mat dst, dg_mat src, const int32_t *idx) {
    assert(mat_ok(dst) && mat_ok(src) && dst.dtype == src.dtype && dst.cols == src.cols);
    assert(idx || dst.rows == 0);
    assert(!overlap(dst, src) || (dst.data == src.data && dst.stride == src.stride));
    within(be);
    note(12), note_mat(dst), note_mat(src), note_at(idx);
    inner(be)->rows_gather(be, dst, src, idx);
}

static void check_top_k(dg_backend *be, int32_t *id, float *logp, dg_mat logits, int32_t k) {
    assert(is_f32(logits, logits.rows, logits.cols));
    assert(k > 0 && k <= logits.cols && k <= DG_TOP_K_MAX);
    within(be);
    note(13), note_at(id), note_at(logp), note_mat(logits), note((uint64_t)k);
    inner(be)->top_k(be, id, logp, logits, k);
}

static void check_sample(dg_backend *be, int32_t *id, float *logp, dg_mat logits, const int32_t *pos, const dg_sampling *s,
                         int32_t *best, int32_t k) {
    assert(is_f32(logits, logits.rows, logits.cols) && logits.cols > 0);
    assert(logits.rows == 0 || (id && pos));
    assert(s->temperature >= 0 && s->top_k >= 0 && s->top_p >= 0 && s->min_p >= 0 && s->min_p <= 1);
    assert(k >= 0 && k <= logits.cols && k <= DG_TOP_K_MAX && (!k || logits.rows == 0 || best));
    within(be);
    note(14), note_at(id), note_at(logp), note_mat(logits), note_at(pos), note_real(s->temperature), note_real(s->top_p);
    note_real(s->min_p), note((uint64_t)s->top_k), note(s->seed), note_at(best), note((uint64_t)k);
    inner(be)->sample(be, id, logp, logits, pos, s, best, k);
}

static bool is_i32(dg_mat m) { return mat_ok(m) && m.dtype == DG_I32; }

static void check_succ_update(dg_backend *be, dg_mat m, const int32_t *token, dg_mat id, const int32_t *prio) {
    assert(is_i32(m) && is_i32(id) && id.cols == m.cols && m.cols > 0 && !overlap(m, id));
    assert(id.rows == 0 || (token && prio));
    outside();
    inner(be)->succ_update(be, m, token, id, prio);
}

static void check_succ_expand(dg_backend *be, int32_t *id, dg_mat m, const int32_t *parent, const int32_t *rank,
                              int32_t n_root, int32_t n) {
    assert(is_i32(m) && m.cols > 0 && n_root >= 1 && n_root <= n);
    assert(id && (n == n_root || (parent && rank)));
    outside();
    inner(be)->succ_expand(be, id, m, parent, rank, n_root, n);
}

static const dg_ops checked = {
    .name = "checked",
    .alloc = check_alloc,
    .free = check_free,
    .upload = check_upload,
    .download = check_download,
    .copy2d = check_copy2d,
    .zero = check_zero,
    .sync = check_sync,
    .pass_begin = check_pass_begin,
    .pass_end = check_pass_end,
    .pass_rows = check_pass_rows,
    .embed = check_embed,
    .rms_norm = check_rms_norm,
    .pack_bytes = check_pack_bytes,
    .pack = check_pack,
    .matmul = check_matmul,
    .rope_table = check_rope_table,
    .qkv = check_qkv,
    .attention = check_attention,
    .kv_move = check_kv_move,
    .kv_get = check_kv_get,
    .swiglu = check_swiglu,
    .rows_put = check_rows_put,
    .rows_gather = check_rows_gather,
    .top_k = check_top_k,
    .sample = check_sample,
    .succ_update = check_succ_update,
    .succ_expand = check_succ_expand,
};

static const dg_ops *table_of(opened *o) {
    o->checked = checked;
    o->checked.host_memory = o->driver->ops->host_memory;
    o->checked.has_loose = o->driver->ops->has_loose;
    return &o->checked;
}
#else
static const dg_ops *table_of(opened *o) { return o->driver->ops; }
#endif

/* ---- open and close ---- */

/* The driver of "name" or "name:N", and N. */
static const dg_backend_driver *find(const char *name, int32_t *device) {
    const size_t len = strcspn(name, ":");
    *device = 0;
    for (size_t i = 0; i < sizeof drivers / sizeof *drivers; i++) {
        const dg_backend_driver *d = drivers[i];
        if (strlen(d->name) != len || strncmp(d->name, name, len) != 0) continue;
        if (!name[len]) return d;
        char *end;
        const long n = strtol(name + len + 1, &end, 10);
        if (!d->has_devices || *end || end == name + len + 1 || n < 0 || n > 1023) return NULL;
        *device = (int32_t)n;
        return d;
    }
    return NULL;
}

const char *dg_backend_list(void) {
    return "cpu (portable"
#ifdef __x86_64__
           ", avx2, avxvnni, avx512, amx"
#endif
           ")"
#ifdef DG_CUDA
           ", cuda"
#endif
        ;
}

static void *c_alloc(size_t bytes) {
    return bytes > SIZE_MAX / 2 ? NULL : aligned_alloc(64, (bytes + 63) / 64 * 64 + (bytes == 0 ? 64 : 0));
}

static size_t sum_bytes(size_t a, size_t b) { return a > SIZE_MAX - b ? SIZE_MAX : a + b; }

/* Of the block with the head and the driver's state. */
static size_t block_bytes(const dg_backend_driver *driver, const dg_backend_options *opt) {
    return sum_bytes(driver->bytes(opt), HEAD);
}

size_t dg_backend_bytes(const char *name, const dg_backend_options *opt) {
    int32_t device;
    const dg_backend_driver *driver = find(name, &device);
    if (!driver) return 0;
    return sum_bytes(block_bytes(driver, opt), driver->scratch ? driver->scratch(opt) : 0);
}

dg_backend *dg_backend_open(const char *name, const dg_backend_options *opt, const char **why) {
    const char *reason = "no such device; known are cpu, cuda and cuda:N";
#ifndef DG_CUDA
    if (strncmp(name, "cuda", 4) == 0) reason = "this build has no CUDA backend (make CUDA=1 has)";
#endif
    opened *o = NULL;
    dg_backend_options set = *opt;
    const dg_backend_driver *driver = find(name, &set.device);
    if (!driver) goto out;
    assert(!set.alloc == !set.free);
    if (!set.alloc) set.alloc = c_alloc, set.free = free;
    reason = "not enough memory for the backend";
    o = set.alloc(block_bytes(driver, &set));
    if (!o) goto out;
    *o = (opened){.driver = driver, .free = set.free};
    o->be.ops = table_of(o);
    o->be.ctx = driver->open((char *)o + HEAD, &set, &reason);
    if (!o->be.ctx) {
        set.free(o);
        o = NULL;
        goto out;
    }
#ifndef NDEBUG
    pthread_mutex_init(&o->lock, NULL);
#endif
out:
    if (!o && why) *why = reason;
    return o ? &o->be : NULL;
}

void dg_backend_close(dg_backend *be) {
    if (!be) return;
    opened *o = (opened *)be;
    o->driver->close(be->ctx);
#ifndef NDEBUG
    pthread_mutex_destroy(&o->lock);
#endif
    o->free(o);
}

const char *dg_backend_error(const dg_backend *be) { return ((const opened *)be)->driver->error(be->ctx); }

const char *dg_backend_describe(const dg_backend *be) {
    return ((const opened *)be)->driver->describe(be->ctx);
}
