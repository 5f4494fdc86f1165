/* The target; see target.h. */
#include "runtime/target.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "kernels/quant.h"

dg_status dg_backend_check(dg_backend *be) {
    DG_CHECK(be->ops->sync(be), DG_ERR_DEVICE, "%s: %s", dg_backend_describe(be), dg_backend_error(be));
    return DG_OK;
}

void dg_net_close(dg_backend *be, dg_net *net) {
    if (net->inv_freq) be->ops->free(be, net->inv_freq);
    dg_mem_free(net->weights.layer);
    dg_file_close(net->file);
    *net = (dg_net){0};
}

static dg_status net_rope(dg_backend *be, dg_net *net) {
    const dg_config *c = &net->config;
    const size_t bytes = (size_t)c->head_dim / 2 * sizeof(float);
    float *host = dg_mem_alloc(bytes);
    net->inv_freq = be->ops->alloc(be, bytes);
    if (!host || !net->inv_freq) {
        dg_mem_free(host);
        DG_FAIL(DG_ERR_MEMORY, "no memory for %zu bytes of rope frequencies", bytes);
    }
    const dg_mat *factors = &net->weights.rope_freqs;
    dg_config_rope(c, factors->data && factors->dtype == DG_F32 ? factors->data : NULL, host, &net->rope_scale);
    be->ops->upload(be, net->inv_freq, host, bytes);
    dg_mem_free(host);
    return DG_OK;
}

dg_status dg_net_open(dg_backend *be, const char *path, dg_net *out) {
    dg_net net = {0};
    dg_status st = dg_file_open(path, &net.file);
    if (st == DG_OK) net.mapped = net.file->mapped;
    if (st == DG_OK) st = dg_config_read(net.file, &net.config);
    if (st == DG_OK) st = dg_bind(net.file, &net.config, &net.weights);
    if (st == DG_OK) st = net_rope(be, &net);
    if (st != DG_OK) {
        dg_net_close(be, &net);
        return st;
    }
    *out = net;
    return DG_OK;
}

/* ---- weights in the backend's memory ---------------------------------------------------------- */

/* Calls fn for each tensor of the network, until it has gone through all. only_matmul: nothing but matmul reads it. */
static void each_tensor(dg_net *net, void (*fn)(void *arg, dg_mat *m, bool only_matmul), void *arg) {
    size_t n;
    const dg_bind_row *row = dg_bind_table(&n);
    for (size_t r = 0; r < n; r++) {
        const bool embed = !row[r].is_layer && row[r].offset == offsetof(dg_weights, embed);
        for (int32_t l = 0; l < (row[r].is_layer ? net->config.n_layer : 1); l++) {
            void *base = row[r].is_layer ? (void *)&net->weights.layer[l] : (void *)&net->weights;
            dg_mat *m = (dg_mat *)(void *)((char *)base + row[r].offset);
            if ((row[r].nets & dg_bind_net(&net->config)) && m->data) fn(arg, m, row[r].rows != DG_DIM_ONE && !embed);
        }
    }
}

typedef struct lay_walk {
    dg_backend *be;
    dg_net *net;
    dg_arena *dev;
    bool q8;
    const void *embed; /* where the embedding lies in the file */
    dg_progress progress;
    uint64_t laid, all; /* bytes in the file: of tensors that moved so far, of all that will */
} lay_walk;

static size_t file_bytes(const dg_mat *m) { return dg_dtype_bytes(m->dtype, (size_t)m->rows * (size_t)m->cols); }

/* What a tensor becomes, and how many bytes that takes; 0: it stays where it is. */
static dg_dtype laid_type(const lay_walk *w, const dg_mat *m) {
    const bool plain = dg_dtype_get(m->dtype)->block_len == 1;
    return w->q8 && plain && m->cols % 32 == 0 ? DG_Q8_0 : m->dtype;
}

static size_t laid_bytes(const lay_walk *w, const dg_mat *m, bool only_matmul) {
    const size_t packed = only_matmul ? w->be->ops->pack_bytes(w->be, *m, laid_type(w, m)) : 0;
    if (packed || w->be->ops->host_memory || !dg_dtype_is_weight(m->dtype)) return packed;
    return m == &w->net->weights.head && m->data == w->embed ? 0 : file_bytes(m); /* a tied head is there already */
}

static void count_one(void *arg, dg_mat *m, bool only_matmul) {
    lay_walk *w = arg;
    if (laid_bytes(w, m, only_matmul)) w->all += file_bytes(m);
}

static void lay_one(void *arg, dg_mat *m, bool only_matmul) {
    lay_walk *w = arg;
    const size_t bytes = laid_bytes(w, m, only_matmul);
    if (!bytes) return;
    void *dst = dg_arena_take(w->dev, bytes, 1);
    if (!dst) return;
    const dg_mat source = *m;
    const dg_dtype as = laid_type(w, m);
    if (only_matmul && w->be->ops->pack_bytes(w->be, source, as)) {
        *m = w->be->ops->pack(w->be, dst, source, as);
        m->coarse = w->q8;
    } else {
        w->be->ops->upload(w->be, m->data = dst, source.data, bytes);
    }
    dg_file_forget(source.data, file_bytes(&source));
    w->laid += file_bytes(&source);
    if (w->progress.fn) w->progress.fn(w->progress.ud, w->net->file->path, (double)w->laid / (double)w->all);
}

void dg_net_layout(dg_backend *be, dg_net *net, bool q8, dg_arena *dev, dg_progress progress) {
    dg_weights *weights = &net->weights;
    lay_walk w = {.be = be, .net = net, .dev = dev, .q8 = q8, .embed = weights->embed.data, .progress = progress};
    each_tensor(net, count_one, &w);
    net->mapped = net->file->mapped - w.all;
    each_tensor(net, lay_one, &w);
    if (weights->head.data == w.embed) weights->head = weights->embed; /* of a tied head that stayed */
}

/* ---- the forward pass ------------------------------------------------------------------------- */

static void take_taps(const dg_model *m, const dg_work *w, int32_t layer, const dg_tap *tap, int32_t n_tap) {
    for (int32_t i = 0; i < n_tap; i++)
        if (tap[i].layer == layer)
            m->be->ops->rows_put(m->be, tap[i].dst, tap[i].at, dg_mat_rows(w->x, tap[i].row0, tap[i].n));
}

void dg_target_forward(const dg_model *m, const dg_batch *b, const dg_work *work, const dg_tap *tap, int32_t n_tap) {
    dg_backend *be = m->be;
    const dg_config *c = &m->net.config;
    const dg_weights *weights = &m->net.weights;
    dg_work w = dg_work_rows(work, b->n);
    w.y.loose = w.att.loose = w.gate.loose = b->loose || m->options.inexact;
    be->ops->embed(be, w.x, weights->embed, b->dev.token);
    be->ops->rope_table(be, w.rope, b->dev.pos, m->net.inv_freq, m->net.rope_scale);
    for (int32_t l = 0; l < c->n_layer; l++) {
        dg_layer_forward(be, c, &weights->layer[l], l, b, &w, -1);
        take_taps(m, &w, l, tap, n_tap);
    }
    be->ops->rms_norm(be, w.x, w.x, weights->norm, c->rms_norm_eps);
}

void dg_target_head(const dg_model *m, dg_mat x, dg_mat logits) {
    x.loose = m->options.inexact;
    dg_matmul(m->be, logits, x, m->net.weights.head, (dg_mat){0}, false);
}

void dg_model_log(const dg_model *m, dg_log_level level, const char *fmt, ...) {
    if (!m->options.log) return;
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    m->options.log(m->options.log_ud, level, text);
}

/* Some drafters bring the tokenizer of the model that they were made for. */
dg_status dg_net_check_tokenizer(const dg_net *net, const char *drafter, const dg_model *target) {
    const dg_file *f = net->file;
    dg_tokenizer *own = NULL;
    if (!target->tokenizer) return DG_OK;
    const bool gguf = f->container == DG_CONTAINER_GGUF;
    if (gguf && !dg_meta_find(f, "tokenizer.ggml.tokens")) return DG_OK;
    const dg_status st = gguf ? dg_tokenizer_open_gguf(f, &own) : dg_tokenizer_open_json(f->path, &own);
    if (st == DG_ERR_MEMORY) return st;
    if (st != DG_OK) return DG_OK; /* none there, or one that only the target's own has to be */
    if (dg_tokenizer_hash(own) != dg_tokenizer_hash(target->tokenizer))
        dg_model_log(target, DG_LOG_WARN,
                     "drafter %s (%s) brings another tokenizer than the target's: was it trained for this model?", drafter,
                     f->path);
    dg_tokenizer_close(own);
    return DG_OK;
}

dg_progress dg_model_progress(const dg_model *m) {
    return (dg_progress){m->options.progress, m->options.progress_ud};
}

/* ---- opening ---------------------------------------------------------------------------------- */

/* "q4_1 210, f32 61, q8_0 1": tensors by type, most frequent first. */
static dg_status count_types(dg_model *m) {
    int32_t count[DG_DTYPE_COUNT] = {0};
    const dg_file *f = m->net.file;
    for (size_t i = 0; i < f->n_tensor; i++) {
        uint64_t n = 1;
        for (int32_t d = 0; d < f->tensor[i].n_dim; d++) n *= (uint64_t)f->tensor[i].dim[d];
        m->parameters += n;
        count[f->tensor[i].dtype]++;
    }
    char text[256] = "";
    for (;;) {
        int best = 0;
        for (int t = 1; t < DG_DTYPE_COUNT; t++)
            if (count[t] > count[best]) best = t;
        if (!count[best]) break;
        const size_t used = strlen(text);
        snprintf(text + used, sizeof text - used, "%s%s %d", used ? ", " : "", dg_dtype_get((dg_dtype)best)->name,
                 count[best]);
        count[best] = 0;
    }
    m->weight_types = dg_mem_strdup(text);
    DG_CHECK(m->weight_types, DG_ERR_MEMORY, "no memory for the model");
    return DG_OK;
}

static dg_status open_backend(dg_model *m, const dg_config *c) {
    static const dg_precision precision[] = {[DG_COMPUTE_DEFAULT] = DG_PRECISION_FIXED,
                                             [DG_COMPUTE_F32] = DG_PRECISION_F32,
                                             [DG_COMPUTE_INT8] = DG_PRECISION_INT8};
    const int32_t fuse = 8 * c->hidden_size; /* a drafter's features of eight layers */
    const dg_backend_options opt = {.threads = m->options.threads,
                                    .precision = precision[m->options.compute],
                                    .max_cols = c->intermediate_size > fuse ? c->intermediate_size : fuse,
                                    .max_vocab = c->vocab_size,
                                    .alloc = dg_mem_alloc,
                                    .free = dg_mem_free};
    const char *device = m->options.device ? m->options.device : "cpu", *why = "";
    const bool choose = strcmp(device, "auto") == 0;
    if (choose) device = "cuda";
    m->be = dg_backend_open(device, &opt, &why);
    if (!m->be && choose) {
        dg_model_log(m, DG_LOG_WARN, "computing on the CPU: %s: %s", device, why);
        m->be = dg_backend_open(device = "cpu", &opt, &why);
    }
    DG_CHECK(m->be, DG_ERR_DEVICE, "cannot open device \"%s\": %s", device, why);
    m->backend_bytes = dg_backend_bytes(device, &opt);
    return DG_OK;
}

/* A model without tokenizer files still opens (ids in, ids out); a broken tokenizer does not. */
static dg_status open_tokenizer(dg_model *m) {
    const dg_file *f = m->net.file;
    if (f->container == DG_CONTAINER_GGUF) {
        if (!dg_meta_find(f, "tokenizer.ggml.model")) return DG_OK;
        DG_TRY(dg_tokenizer_open_gguf(f, &m->tokenizer));
    } else {
        const dg_status st = dg_tokenizer_open_json(f->path, &m->tokenizer);
        if (st == DG_ERR_IO) return DG_OK;
        DG_TRY(st);
    }
    if (dg_tokenizer_size(m->tokenizer) > m->net.config.vocab_size)
        dg_model_log(m, DG_LOG_WARN, "%s: the tokenizer has %d tokens, the model %d rows", f->path,
                     dg_tokenizer_size(m->tokenizer), m->net.config.vocab_size);
    return DG_OK;
}

static dg_status open_chat(dg_model *m) {
    if (m->options.chat_template) {
        m->chat = dg_chat_by_name(m->options.chat_template);
        DG_CHECK(m->chat, DG_ERR_ARGUMENT, "chat template \"%s\" is not known; known are %s", m->options.chat_template,
                 dg_chat_names());
        return DG_OK;
    }
    const char *jinja = m->tokenizer ? dg_tokenizer_chat_template(m->tokenizer) : NULL;
    m->chat = jinja ? dg_chat_detect(jinja) : NULL;
    return DG_OK;
}

void dg_model_close(dg_model *m) {
    if (!m) return;
    dg_tokenizer_close(m->tokenizer);
    if (m->be) {
        dg_net_close(m->be, &m->net);
        if (m->packed) m->be->ops->free(m->be, m->packed);
    }
    dg_backend_close(m->be);
    dg_mem_free(m->weight_types);
    dg_mem_free(m);
}

static dg_status pack_weights(dg_model *m) {
    const dg_progress progress = dg_model_progress(m);
    dg_arena dev = {0};
    dg_net_layout(m->be, &m->net, false, &dev, progress);
    m->packed_bytes = dev.used;
    if (!dev.used) return DG_OK;
    m->packed = m->be->ops->alloc(m->be, dev.used);
    DG_CHECK(m->packed, DG_ERR_MEMORY, "%s: no memory for %zu MiB of weights (%s)", m->net.file->path, dev.used >> 20,
             dg_backend_describe(m->be));
    dev = (dg_arena){m->packed, 0, dev.used};
    dg_net_layout(m->be, &m->net, false, &dev, progress);
    return DG_OK;
}

static dg_status model_open(dg_model *m, const char *path) {
    /* the backend's scratch depends on the configuration, and the network lives in the backend's memory */
    dg_file *f = NULL;
    dg_config c;
    DG_TRY(dg_file_open(path, &f));
    dg_status st = dg_config_read(f, &c);
    dg_file_close(f);
    DG_TRY(st);
    DG_CHECK(!dg_arch_is_drafter(c.arch), DG_ERR_ARGUMENT, "%s is a%s, not a target; use it with --draft %s:%s", path,
             c.arch == DG_ARCH_DFLASH ? " DFlash drafter" : "n EAGLE-3 head", dg_arch_name(c.arch), path);
    DG_TRY(open_backend(m, &c));
    DG_TRY(dg_net_open(m->be, path, &m->net));
    DG_TRY(pack_weights(m));
    DG_TRY(count_types(m));
    DG_TRY(open_tokenizer(m));
    return open_chat(m);
}

dg_status dg_model_open(const char *path, const dg_model_options *options, dg_model **out) {
    DG_CHECK(path && out, DG_ERR_ARGUMENT, "dg_model_open: path and out must not be NULL");
    dg_model *m = dg_mem_calloc(1, sizeof *m);
    DG_CHECK(m, DG_ERR_MEMORY, "no memory for the model");
    if (options) m->options = *options;
    dg_status st = DG_OK;
    if (m->options.threads < 0 || m->options.threads > 256)
        st = dg_fail(DG_ERR_ARGUMENT, "threads: expected 0 to 256, found %d", m->options.threads);
    else if (m->options.compute < DG_COMPUTE_DEFAULT || m->options.compute > DG_COMPUTE_INT8)
        st = dg_fail(DG_ERR_ARGUMENT, "compute: expected DG_COMPUTE_DEFAULT, _F32 or _INT8, found %d", (int)m->options.compute);
    if (st == DG_OK) st = model_open(m, path);
    if (st != DG_OK) {
        dg_model_close(m);
        return st;
    }
    *out = m;
    return DG_OK;
}
