/* A drafter's vocabulary; see draft_vocab.h. */
#include "dflash/draft_vocab.h"

static int64_t mapped(const dg_draft_vocab *v, int32_t i) {
    const dg_mat *m = &v->d2t;
    if (!m->data) return i;
    const int64_t id = m->dtype == DG_I64 ? ((const int64_t *)m->data)[i] : ((const int32_t *)m->data)[i];
    return v->offsets ? id + i : id;
}

int32_t dg_draft_vocab_target(const dg_draft_vocab *v, int32_t id) { return (int32_t)mapped(v, id); }

/* seen: [vocab] zeroed. */
static dg_status check_ids(const dg_draft_vocab *v, const char *path, int32_t vocab, uint8_t *seen) {
    for (int32_t i = 0; i < v->d2t.cols; i++) {
        const int64_t id = mapped(v, i);
        DG_CHECK(id >= 0 && id < vocab, DG_ERR_FORMAT, "%s: d2t[%d] leads to token %lld: expected 0 to %d", path, i,
                 (long long)id, vocab - 1);
        DG_CHECK(!seen[id], DG_ERR_FORMAT, "%s: d2t[%d] leads to token %lld, as an earlier one does", path, i, (long long)id);
        seen[id] = 1;
    }
    return DG_OK;
}

/* t2d says the same from the other side: one byte a token of the target. */
static dg_status check_mask(const dg_net *net, const char *path, int32_t vocab, const uint8_t *seen) {
    const dg_file_tensor *t = dg_file_find(net->file, "t2d");
    if (!t) return DG_OK;
    DG_CHECK((t->dtype == DG_BOOL || t->dtype == DG_U8) && t->n_dim == 1 && t->dim[0] == vocab, DG_ERR_FORMAT,
             "%s: tensor t2d: expected a boolean for each of the target's %d tokens, found %s, %lld", path, vocab,
             dg_dtype_get(t->dtype)->name, (long long)(t->n_dim ? t->dim[0] : 1));
    const uint8_t *is_draft = t->data;
    for (int32_t i = 0; i < vocab; i++)
        DG_CHECK(!is_draft[i] == !seen[i], DG_ERR_FORMAT, "%s: token %d is %s t2d but %s d2t", path, i,
                 is_draft[i] ? "in" : "not in", seen[i] ? "in" : "not in");
    return DG_OK;
}

static dg_status check_map(const dg_draft_vocab *v, const dg_net *net, const char *path, int32_t vocab) {
    uint8_t *seen = dg_mem_calloc((size_t)vocab, 1);
    DG_CHECK(seen, DG_ERR_MEMORY, "%s: no memory for a vocabulary of %d", path, vocab);
    dg_status st = check_ids(v, path, vocab, seen);
    if (st == DG_OK) st = check_mask(net, path, vocab, seen);
    dg_mem_free(seen);
    return st;
}

dg_status dg_draft_vocab_open(const dg_net *net, const dg_model *target, dg_draft_vocab *out) {
    const char *path = net->file->path;
    const dg_weights *own = &net->weights, *theirs = &target->net.weights;
    const int32_t vocab = target->net.config.vocab_size, hidden = net->config.hidden_size;
    dg_draft_vocab v = {.embed = own->embed.data ? own->embed : theirs->embed,
                              .head = own->head.data ? own->head : theirs->head,
                              .d2t = own->d2t,
                              .gathers = own->d2t.data && !own->head.data,
                              .offsets = net->file->container == DG_CONTAINER_SAFETENSORS};
    DG_CHECK(v.embed.cols == hidden && v.head.cols == hidden, DG_ERR_FORMAT,
             "%s: no %s, and the target's is %d wide, not %d", path,
             v.embed.cols == hidden ? "lm_head.weight" : "embed_tokens.weight",
             v.embed.cols == hidden ? v.head.cols : v.embed.cols, hidden);
    DG_CHECK(v.embed.rows == vocab, DG_ERR_FORMAT, "%s: embed_tokens has %d rows, the target's vocabulary %d", path,
             v.embed.rows, vocab);
    if (!v.d2t.data) {
        DG_CHECK(v.head.rows == vocab, DG_ERR_FORMAT, "%s: lm_head has %d rows, the target's vocabulary %d, and there is no d2t",
                 path, v.head.rows, vocab);
    } else {
        DG_TRY(check_map(&v, net, path, vocab));
        if (v.gathers) v.head = dg_mat_make(NULL, v.head.dtype, v.d2t.cols, hidden);
    }
    DG_TRY(dg_net_check_tokenizer(net, dg_arch_name(net->config.arch), target));
    *out = v;
    return DG_OK;
}

/* The rows of the target's head that the map names, as a matrix of the drafter's own. */
static void gather(dg_draft_vocab *v, const dg_mat *rows, dg_backend *be, dg_arena *dev) {
    const size_t bytes = dg_dtype_bytes(v->head.dtype, (size_t)v->head.cols);
    v->head.data = dg_arena_take(dev, (size_t)v->head.rows, bytes);
    for (int32_t i = 0; v->head.data && i < v->head.rows; i++)
        be->ops->upload(be, dg_mat_row(&v->head, i), dg_mat_row(rows, (int32_t)mapped(v, i)), bytes);
    const size_t packed = be->ops->pack_bytes(be, dg_mat_rows(*rows, 0, v->head.rows), rows->dtype);
    if (!packed) return;
    void *dst = dg_arena_take(dev, packed, 1);
    if (dst) v->head = be->ops->pack(be, dst, v->head, v->head.dtype);
}

void dg_draft_vocab_layout(dg_draft_vocab *v, const dg_net *net, const dg_model *target, bool q8, dg_arena *dev) {
    v->embed = net->weights.embed.data ? net->weights.embed : target->net.weights.embed; /* where they lie now */
    if (v->gathers)
        gather(v, &target->net.weights.head_rows, target->be, dev);
    else
        v->head = net->weights.head.data ? net->weights.head : target->net.weights.head;
    v->head.coarse = q8;
}
