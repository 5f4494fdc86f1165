/* Conversion: the list of tensors with their new names, types and row order, and the rows themselves; see
 * convert.h. */
#include "runtime/convert.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "kernels/quant.h"
#include "runtime/convert_job.h"
#include "runtime/mem.h"

enum { TELL = 1 << 20 }; /* bytes between two calls of progress */

static bool ends_in_gguf(const char *path) {
    const size_t n = strlen(path);
    return n >= 5 && strcmp(path + n - 5, ".gguf") == 0;
}

bool dg_job_beside(const dg_job *j, const char *name, char *path, size_t cap) {
    struct stat st;
    const char *in = j->file->path, *slash = strrchr(in, '/');
    const bool dir = stat(in, &st) == 0 && S_ISDIR(st.st_mode);
    const int len = dir ? (int)strlen(in) : slash ? (int)(slash - in) : 1;
    const int n = snprintf(path, cap, "%.*s%s%s", len, dir || slash ? in : ".", *name ? "/" : "", name);
    return n > 0 && (size_t)n < cap;
}

/* ---- rows ------------------------------------------------------------------------------------- */

size_t dg_item_bytes(const dg_item *it) { return it->rows * dg_dtype_bytes(it->to, it->cols); }

/* The row of the source that becomes row r. Halves: the pair (j, j + head/2) is rotated; interleaved: (2j,
 * 2j+1). */
static size_t source_row(const dg_job *j, const dg_item *it, size_t r) {
    if (!it->head) return r;
    const size_t head = (size_t)it->head, half = head / 2, i = r % head, base = r - i;
    return base + (j->interleave ? i % 2 * half + i / 2 : i % half * 2 + i / half);
}

static dg_status check_f16(const dg_job *j, const dg_item *it, const float *x) {
    for (size_t i = 0; i < it->cols; i++)
        DG_CHECK(!(fabsf(x[i]) >= 65520) || isinf(x[i]), DG_ERR_UNSUPPORTED,
                 "%s: tensor %s: %g does not fit into f16; expected at most 65504 (bf16 holds it)", j->in,
                 it->name, (double)x[i]);
    return DG_OK;
}

static void shift_ids(const dg_item *it, const char *from, void *to) {
    for (size_t i = 0; i < it->cols; i++) {
        if (it->from == DG_I64) {
            int64_t v;
            memcpy(&v, from + 8 * i, 8);
            ((int64_t *)to)[i] = v + it->shift * (int64_t)i;
        } else {
            int32_t v;
            memcpy(&v, from + 4 * i, 4);
            ((int32_t *)to)[i] = v + (int32_t)(it->shift * (int64_t)i);
        }
    }
}

static dg_status convert_row(const dg_job *j, const dg_item *it, const char *from, const void **out) {
    *out = j->encoded;
    if (it->shift) {
        shift_ids(it, from, j->encoded);
    } else if (it->from == it->to) {
        *out = from;
    } else {
        dg_dequant_row(it->from, from, j->row, it->cols);
        if (it->to == DG_F16) DG_TRY(check_f16(j, it, j->row));
        dg_quant_row(it->to, j->row, j->encoded, it->cols);
    }
    return DG_OK;
}

dg_status dg_job_write(dg_job *j, const dg_item *it, dg_out *o) {
    const size_t from = dg_dtype_bytes(it->from, it->cols), to = dg_dtype_bytes(it->to, it->cols);
    for (size_t r = 0; r < it->rows; r++) {
        const void *row;
        DG_TRY(convert_row(j, it, it->data + source_row(j, it, r) * from, &row));
        dg_out_write(o, row, to);
        DG_TRY(dg_out_status(o));
        j->done += to;
        if (j->progress && (j->done - j->told >= TELL || j->done == j->total)) {
            j->told = j->done;
            j->progress(j->ud, j->done, j->total);
        }
    }
    return DG_OK;
}

/* ---- the list --------------------------------------------------------------------------------- */

static dg_dtype type_for(const dg_job *j, const dg_item *it) {
    if (!dg_dtype_is_weight(it->from)) return it->from;
    if (j->gguf && it->n_dim < 2) return DG_F32;
    return it->cols % (size_t)dg_dtype_get(j->type)->block_len ? DG_F16 : j->type;
}

/* Fills in what follows from from, dim and n_dim. */
static void settle_item(dg_job *j, dg_item *it) {
    it->cols = it->n_dim ? (size_t)it->dim[it->n_dim - 1] : 1;
    it->rows = 1;
    for (int32_t i = 0; i + 1 < it->n_dim; i++) it->rows *= (size_t)it->dim[i];
    it->to = type_for(j, it);
    if (it->head && it->n_dim == 1) { /* a bias is reordered as a matrix of one column is */
        it->rows = it->cols;
        it->cols = 1;
    }
    j->total += dg_item_bytes(it);
}

/* Every tensor under its old name. */
static dg_status list_same(dg_job *j) {
    const dg_file *f = j->file;
    j->item = dg_mem_calloc(f->n_tensor, sizeof *j->item);
    DG_CHECK(j->item, DG_ERR_MEMORY, "%s: no memory for %zu tensors", j->in, f->n_tensor);
    for (size_t i = 0; i < f->n_tensor; i++) {
        const dg_file_tensor *t = &f->tensor[i];
        dg_item *it = &j->item[j->n_item++];
        *it = (dg_item){.name = t->name, .data = t->data, .from = t->dtype, .n_dim = t->n_dim};
        memcpy(it->dim, t->dim, sizeof it->dim);
        settle_item(j, it);
    }
    return DG_OK;
}

static bool is_row(const dg_bind_row *row, size_t offset) { return !row->is_layer && row->offset == offset; }

/* Names in Hugging Face files: target classes put "model." before all but the head, DFlash has no prefix. */
static void name_item(const dg_job *j, const dg_bind_row *row, int32_t layer, dg_item *it) {
    char where[32] = "";
    const bool bare = j->config.arch == DG_ARCH_DFLASH || is_row(row, offsetof(dg_weights, head));
    if (row->is_layer) snprintf(where, sizeof where, j->gguf ? "blk.%d." : "layers.%d.", layer);
    snprintf(it->own, sizeof it->own, "%s%s%s", j->gguf || bare ? "" : "model.", where,
             j->gguf ? row->gguf : row->hf);
    it->name = it->own;
}

static void add_row(dg_job *j, const dg_bind_row *row, int32_t layer, const dg_mat *m) {
    const bool tied = is_row(row, offsetof(dg_weights, head)) && m->data == j->weights.embed.data;
    if (!m->data || tied || !(j->gguf ? row->gguf : row->hf)) return;
    dg_item *it = &j->item[j->n_item++];
    *it = (dg_item){.data = m->data, .from = m->dtype, .n_dim = row->rows == DG_DIM_ONE ? 1 : 2};
    it->dim[0] = it->n_dim == 1 ? m->cols : m->rows;
    if (it->n_dim == 2) it->dim[1] = m->cols;
    if (row->permuted && j->config.rope_interleaved != j->interleave) it->head = j->config.head_dim;
    /* ids of the target's vocabulary in GGUF, offsets to add to one's own id elsewhere */
    if (is_row(row, offsetof(dg_weights, d2t))) it->shift = j->gguf ? 1 : -1;
    name_item(j, row, layer, it);
    settle_item(j, it);
}

/* Every row of the binding table under the name that the other container has for it. */
static dg_status list_renamed(dg_job *j) {
    size_t n_row;
    const dg_bind_row *row = dg_bind_table(&n_row);
    const int net = dg_bind_net(&j->config);
    const size_t cap = n_row * (size_t)(j->config.n_layer + 1);
    j->item = dg_mem_calloc(cap, sizeof *j->item);
    DG_CHECK(j->item, DG_ERR_MEMORY, "%s: no memory for %zu tensors", j->in, cap);
    for (size_t i = 0; i < n_row; i++, row++) {
        if (!(row->nets & net) || row->is_layer) continue;
        add_row(j, row, 0, (const dg_mat *)(const void *)((const char *)&j->weights + row->offset));
    }
    for (int32_t l = 0; l < j->config.n_layer; l++) {
        row = dg_bind_table(&n_row);
        for (size_t i = 0; i < n_row; i++, row++) {
            if (!(row->nets & net) || !row->is_layer) continue;
            add_row(j, row, l,
                    (const dg_mat *)(const void *)((const char *)&j->weights.layer[l] + row->offset));
        }
    }
    return DG_OK;
}

/* ---- the whole -------------------------------------------------------------------------------- */

/* GGUF keeps the divisors of a llama3 scaling as a tensor. */
static dg_status make_factors(dg_job *j) {
    if (!j->gguf || j->config.rope_scaling != DG_ROPE_LLAMA3) return DG_OK;
    j->factors = dg_mem_calloc((size_t)j->config.head_dim / 2, sizeof *j->factors);
    DG_CHECK(j->factors, DG_ERR_MEMORY, "%s: no memory", j->in);
    dg_config_rope_factors(&j->config, j->factors);
    j->weights.rope_freqs = dg_mat_make(j->factors, DG_F32, 1, j->config.head_dim / 2);
    return DG_OK;
}

/* Rotated pairs are interleaved in the GGUF files of llama and EAGLE-3, halves everywhere else. */
static dg_status choose_order(dg_job *j) {
    const dg_config *c = &j->config;
    const bool llama = c->arch == DG_ARCH_LLAMA || c->arch == DG_ARCH_MISTRAL || c->arch == DG_ARCH_EAGLE3;
    j->interleave = j->gguf && llama;
    /* a norm per head, between projection and rotation, would have to be reordered with the rows */
    DG_CHECK(j->interleave == c->rope_interleaved || llama, DG_ERR_UNSUPPORTED,
             "%s: interleaved rotary pairs of a %s cannot be written to the other container", j->in,
             c->arch_name);
    return DG_OK;
}

/* Layers beyond the first few are as if they were not there: names and configuration are then written anew. */
static dg_status keep_layers(dg_job *j) {
    const dg_config *c = &j->config;
    if (!j->layers) return DG_OK;
    DG_CHECK(c->arch != DG_ARCH_DFLASH, DG_ERR_ARGUMENT, "%s: layers: expected a target, found a drafter", j->in);
    DG_CHECK(j->layers > 0 && j->layers <= c->n_layer, DG_ERR_ARGUMENT, "%s: layers: expected 1 to %d, found %d", j->in,
             c->n_layer, j->layers);
    j->config.n_layer = j->layers;
    return DG_OK;
}

static dg_status prepare(dg_job *j) {
    const bool same = j->gguf == (j->file->container == DG_CONTAINER_GGUF) && !j->layers;
    DG_TRY(dg_config_read(j->file, &j->config));
    DG_CHECK(j->config.arch != DG_ARCH_EAGLE3 || j->gguf, DG_ERR_UNSUPPORTED,
             "%s: an EAGLE-3 head can be converted to GGUF only", j->in);
    DG_TRY(dg_bind(j->file, &j->config, &j->weights));
    DG_TRY(keep_layers(j));
    if (!same) {
        DG_TRY(choose_order(j));
        DG_TRY(make_factors(j));
    }
    DG_TRY(same ? list_same(j) : list_renamed(j));
    size_t widest = 1;
    for (size_t i = 0; i < j->n_item; i++)
        if (j->item[i].cols > widest) widest = j->item[i].cols;
    j->row = dg_mem_alloc(dg_mem_mul(widest, sizeof *j->row));
    j->encoded = dg_mem_alloc(dg_mem_mul(widest, sizeof(int64_t)));
    DG_CHECK(j->row && j->encoded, DG_ERR_MEMORY, "%s: no memory for a row of %zu", j->in, widest);
    return DG_OK;
}

dg_status dg_convert_first(const char *in, int32_t layers, const char *tokenizer, const char *out, dg_dtype type,
                           void (*progress)(void *ud, size_t done, size_t total), void *ud) {
    dg_job j = {.in = in, .out = out, .type = type, .layers = layers, .gguf = ends_in_gguf(out), .progress = progress, .ud = ud};
    const bool plain = type == DG_F32 || type == DG_F16 || type == DG_BF16;
    DG_CHECK(plain || (j.gguf && type == DG_Q8_0), DG_ERR_ARGUMENT,
             "%s: type: expected f32, f16 or bf16%s, found %s", out, j.gguf ? " or q8_0" : " (a directory)",
             dg_dtype_get(type)->name);
    DG_TRY(dg_file_open(in, &j.file));
    dg_status st = prepare(&j);
    if (st == DG_OK) st = j.gguf ? dg_job_to_gguf(&j, tokenizer) : dg_job_to_hf(&j);
    dg_mem_free(j.row);
    dg_mem_free(j.encoded);
    dg_mem_free(j.factors);
    dg_mem_free(j.item);
    dg_mem_free(j.weights.layer);
    dg_file_close(j.file);
    return st;
}

dg_status dg_convert_with(const char *in, const char *tokenizer, const char *out, dg_dtype type,
                          void (*progress)(void *ud, size_t done, size_t total), void *ud) {
    return dg_convert_first(in, 0, tokenizer, out, type, progress, ud);
}

dg_status dg_convert(const char *in, const char *out, dg_dtype type,
                     void (*progress)(void *ud, size_t done, size_t total), void *ud) {
    return dg_convert_with(in, NULL, out, type, progress, ud);
}
