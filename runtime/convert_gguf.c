/* A conversion's GGUF side: keys from the configuration and the tokenizer, or copied from a GGUF source. */
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/config_write.h"
#include "runtime/convert_job.h"
#include "runtime/gguf_out.h"

static bool starts(dg_str s, const char *prefix) {
    const size_t n = strlen(prefix);
    return s.len >= n && memcmp(s.ptr, prefix, n) == 0;
}

/* llama.cpp's number for what most of a file's weights are. */
static uint32_t file_type(dg_dtype type) {
    return type == DG_F16 ? 1 : type == DG_Q8_0 ? 7 : type == DG_BF16 ? 32 : 0;
}

/* ---- the tokenizer's keys --------------------------------------------------------------------- */

static void copy_tokenizer(const dg_file *f, dg_gguf_out *g) {
    for (size_t i = 0; i < f->n_meta; i++) /* the mask id is the drafter's own */
        if (starts(f->meta[i].key, "tokenizer.") && !starts(f->meta[i].key, "tokenizer.ggml.mask_token_id"))
            dg_gguf_out_meta(g, &f->meta[i]);
}

/* Stop ids beyond the end-of-text id that the tokenizer named (eos, -1: none). GGUF has room for three. */
static void put_stops(const dg_config *c, dg_gguf_out *g, int32_t eos) {
    static const char *const key[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                      "tokenizer.ggml.eom_token_id"};
    size_t n = eos >= 0;
    for (int32_t i = 0; i < c->n_stop && n < 3; i++)
        if (c->stop[i] != eos) dg_gguf_out_u32(g, key[n++], (uint32_t)c->stop[i]);
}

static dg_status put_foreign_tokenizer(const dg_job *j, dg_gguf_out *g, const char *path, int32_t *eos) {
    struct stat st;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        return dg_gguf_out_tokenizer(g, path, j->config.vocab_size, eos);
    dg_file *f;
    uint64_t id;
    DG_TRY(dg_gguf_open(path, &f));
    dg_status rc = DG_OK;
    if (!dg_meta_find(f, "tokenizer.ggml.tokens"))
        rc = dg_fail(DG_ERR_FORMAT, "%s: expected a tokenizer (tokenizer.ggml.tokens), found none", path);
    copy_tokenizer(f, g);
    if (dg_meta_u64(f, "tokenizer.ggml.eos_token_id", &id, NULL)) *eos = (int32_t)id;
    dg_file_close(f);
    return rc;
}

/* Keys for a source that is a directory. */
static dg_status put_tokenizer(const dg_job *j, dg_gguf_out *g, const char *tokenizer) {
    char path[PATH_MAX];
    int32_t eos = -1;
    DG_CHECK(dg_job_beside(j, "tokenizer.json", path, sizeof path), DG_ERR_IO, "%s: the path is too long",
             j->in);
    const bool own = access(path, F_OK) == 0;
    if (tokenizer) {
        DG_TRY(put_foreign_tokenizer(j, g, tokenizer, &eos));
    } else if (own || !dg_arch_is_drafter(j->config.arch)) {
        dg_job_beside(j, "", path, sizeof path);
        DG_TRY(dg_gguf_out_tokenizer(g, path, j->config.vocab_size, &eos));
    } else if (j->config.bos >= 0) {
        dg_gguf_out_u32(g, "tokenizer.ggml.bos_token_id", (uint32_t)j->config.bos);
    }
    put_stops(&j->config, g, eos);
    return DG_OK;
}

/* ---- all keys --------------------------------------------------------------------------------- */

/* The last component of the path, as the model's name. */
static void put_name(const dg_job *j, dg_gguf_out *g) {
    char name[256];
    size_t end = strlen(j->in);
    while (end > 1 && j->in[end - 1] == '/') end--;
    size_t begin = end;
    while (begin > 0 && j->in[begin - 1] != '/') begin--;
    snprintf(name, sizeof name, "%.*s", (int)(end - begin), j->in + begin);
    dg_gguf_out_str(g, "general.name", name);
}

/* Keys about the file, not about the model, are written anew. */
static void copy_keys(const dg_file *f, dg_gguf_out *g, bool with_tokenizer) {
    static const char *const own[] = {"general.file_type", "general.quantization_version",
                                      "general.alignment", "split.", "quantize."};
    for (size_t i = 0; i < f->n_meta; i++) {
        bool copy = with_tokenizer || !starts(f->meta[i].key, "tokenizer.") ||
                    starts(f->meta[i].key, "tokenizer.ggml.mask_token_id");
        for (size_t k = 0; k < sizeof own / sizeof *own; k++) copy = copy && !starts(f->meta[i].key, own[k]);
        if (copy) dg_gguf_out_meta(g, &f->meta[i]);
    }
}

static dg_status put_keys(const dg_job *j, dg_gguf_out *g, const char *tokenizer) {
    int32_t eos = -1;
    const bool from_gguf = j->file->container == DG_CONTAINER_GGUF;
    if (from_gguf && !j->layers) {
        copy_keys(j->file, g, !tokenizer);
        if (tokenizer) DG_TRY(put_foreign_tokenizer(j, g, tokenizer, &eos));
    } else {
        DG_TRY(dg_config_to_gguf(j->in, &j->config, g));
        dg_gguf_out_str(g, "general.type", "model");
        put_name(j, g);
        if (from_gguf && !tokenizer)
            copy_tokenizer(j->file, g);
        else
            DG_TRY(put_tokenizer(j, g, tokenizer));
    }
    dg_gguf_out_u32(g, "general.file_type", file_type(j->type));
    dg_gguf_out_u32(g, "general.quantization_version", 2);
    return DG_OK;
}

static dg_status write_file(dg_job *j, dg_gguf_out *g, dg_out *o) {
    for (size_t i = 0; i < j->n_item; i++)
        dg_gguf_out_tensor(g, j->item[i].name, j->item[i].to, j->item[i].dim, j->item[i].n_dim);
    DG_TRY(dg_gguf_out_header(g, o));
    for (size_t i = 0; i < j->n_item; i++) {
        DG_TRY(dg_job_write(j, &j->item[i], o));
        dg_out_pad(o, DG_GGUF_ALIGNMENT);
    }
    return DG_OK;
}

dg_status dg_job_to_gguf(dg_job *j, const char *tokenizer) {
    dg_gguf_out g = {.arch = dg_config_gguf_arch(&j->config)};
    dg_out *o = NULL;
    dg_status st = put_keys(j, &g, tokenizer);
    if (st == DG_OK) st = dg_out_open(j->out, &o);
    if (st == DG_OK) st = write_file(j, &g, o);
    if (st == DG_OK)
        st = dg_out_commit(o);
    else
        dg_out_abandon(o);
    dg_gguf_out_clear(&g);
    return st;
}
