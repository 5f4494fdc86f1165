/* A conversion's Hugging Face side: config.json, model.safetensors and the tokenizer's files, in a directory
 * that gets its name when it is complete. */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/config_write.h"
#include "runtime/convert_job.h"
#include "runtime/mem.h"

enum { COPY_BYTES = 1 << 30, REAL_DIGITS = 15 /* decimal values of config files survive */ };

/* Files that go along when the source is a directory. */
/* clang-format off */
static const char *const companions[] = {
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt", "tokenizer.model", "generation_config.json", "chat_template.jinja", "chat_template.json",
};
/* clang-format on */
enum { N_COMPANION = sizeof companions / sizeof *companions };

/* A file of the directory being written. */
static dg_status open_in(const char *dir, const char *name, dg_out **o) {
    char path[PATH_MAX];
    DG_CHECK(snprintf(path, sizeof path, "%s/%s", dir, name) < (int)sizeof path, DG_ERR_IO,
             "%s: the path is too long", dir);
    return dg_out_open(path, o);
}

static int write_json(const char *text, size_t n, void *o) {
    dg_out_write(o, text, n);
    return dg_out_status(o) == DG_OK ? 0 : -1;
}

/* ---- config.json ------------------------------------------------------------------------------ */

static const char *torch_name(dg_dtype type) {
    return type == DG_F32 ? "float32" : type == DG_F16 ? "float16" : "bfloat16";
}

/* Fewer layers: their number, and the list of their kinds. */
static dg_status shorten_config(const dg_job *j, json_t *c) {
    json_t *kinds = json_object_get(c, "layer_types");
    DG_CHECK(json_object_set_new(c, "num_hidden_layers", json_integer(j->layers)) == 0, DG_ERR_MEMORY,
             "%s: no memory for config.json", j->in);
    while (json_array_size(kinds) > (size_t)j->layers) json_array_remove(kinds, json_array_size(kinds) - 1);
    return DG_OK;
}

/* The source's own, but for the type, which transformers 5 spells dtype. Changed in place: the file is this
 * job's, and a copy that ran out of memory would lack keys without saying so. */
static dg_status retype_config(const dg_job *j, json_t **out) {
    json_t *c = j->file->config;
    const char *key = json_object_get(c, "dtype") ? "dtype" : "torch_dtype";
    DG_CHECK(json_object_set_new(c, key, json_string(torch_name(j->type))) == 0, DG_ERR_MEMORY,
             "%s: no memory for config.json", j->in);
    if (j->layers) DG_TRY(shorten_config(j, c));
    *out = json_incref(c);
    return DG_OK;
}

static dg_status write_config(const dg_job *j, const char *dir) {
    json_t *config;
    dg_out *o = NULL;
    if (j->file->container == DG_CONTAINER_SAFETENSORS)
        DG_TRY(retype_config(j, &config));
    else
        DG_TRY(
            dg_config_to_json(j->in, &j->config, j->weights.rope_freqs.data, torch_name(j->type), &config));
    dg_status st = open_in(dir, "config.json", &o);
    if (st == DG_OK) {
        if (json_dump_callback(config, write_json, o, JSON_INDENT(2) | JSON_REAL_PRECISION(REAL_DIGITS)) !=
                0 &&
            dg_out_status(o) == DG_OK)
            st = dg_fail(DG_ERR_MEMORY, "%s: no memory to write config.json", j->in);
        dg_out_write(o, "\n", 1);
    }
    json_decref(config);
    if (st == DG_OK) return dg_out_commit(o);
    dg_out_abandon(o);
    return st;
}

/* ---- model.safetensors ------------------------------------------------------------------------ */

/* Tensors in the order of their elements' size, so that each begins at a multiple of it. */
static bool has_width(const dg_item *it, int32_t width) { return dg_dtype_get(it->to)->block_size == width; }

static json_t *describe(const dg_item *it, size_t *at) {
    static const char *const code[DG_DTYPE_COUNT] = {
        [DG_F32] = "F32", [DG_F16] = "F16", [DG_BF16] = "BF16", [DG_F64] = "F64", [DG_I8] = "I8",
        [DG_I16] = "I16", [DG_I32] = "I32", [DG_I64] = "I64",   [DG_U8] = "U8",   [DG_BOOL] = "BOOL"};
    const size_t begin = *at;
    json_t *shape = json_array();
    for (int32_t i = 0; i < it->n_dim; i++)
        if (json_array_append_new(shape, json_integer(it->dim[i])) != 0) {
            json_decref(shape);
            return NULL;
        }
    *at += dg_item_bytes(it);
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", code[it->to], "shape", shape, "data_offsets",
                     (json_int_t)begin, (json_int_t)*at);
}

/* The header's text, padded with spaces to a multiple of 8. */
static dg_status header_text(const dg_job *j, char **out, size_t *len) {
    size_t at = 0, n = 0;
    char *text = NULL;
    json_t *head = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    bool lost = !head;
    for (int32_t width = 8; width > 0; width /= 2)
        for (size_t i = 0; i < j->n_item; i++)
            if (has_width(&j->item[i], width) &&
                json_object_set_new(head, j->item[i].name, describe(&j->item[i], &at)) != 0)
                lost = true;
    if (!lost) n = json_dumpb(head, NULL, 0, JSON_COMPACT);
    const size_t padded = (n + 7) / 8 * 8;
    if (n) text = dg_mem_alloc(padded);
    if (text) {
        memset(text + n, ' ', padded - n);
        if (json_dumpb(head, text, n, JSON_COMPACT) != n) lost = true;
    }
    json_decref(head);
    if (lost || !text) {
        dg_mem_free(text);
        DG_FAIL(DG_ERR_MEMORY, "%s: no memory for the header of %zu tensors", j->in, j->n_item);
    }
    *out = text, *len = padded;
    return DG_OK;
}

static dg_status write_weights(dg_job *j, const char *dir) {
    char *text = NULL;
    size_t len = 0;
    dg_out *o = NULL;
    DG_TRY(header_text(j, &text, &len));
    dg_status st = open_in(dir, "model.safetensors", &o);
    if (st == DG_OK) {
        const uint64_t size = len;
        dg_out_write(o, &size, sizeof size);
        dg_out_write(o, text, len);
    }
    dg_mem_free(text);
    for (int32_t width = 8; width > 0; width /= 2)
        for (size_t i = 0; i < j->n_item && st == DG_OK; i++)
            if (has_width(&j->item[i], width)) st = dg_job_write(j, &j->item[i], o);
    if (st == DG_OK) return dg_out_commit(o);
    dg_out_abandon(o);
    return st;
}

/* ---- the directory ---------------------------------------------------------------------------- */

static dg_status copy_companions(const dg_job *j, const char *dir) {
    for (size_t i = 0; i < N_COMPANION; i++) {
        char path[PATH_MAX], *text;
        size_t len;
        dg_out *o;
        if (!dg_job_beside(j, companions[i], path, sizeof path) || access(path, F_OK) != 0) continue;
        DG_TRY(dg_file_slurp(path, COPY_BYTES, &text, &len));
        const dg_status st = open_in(dir, companions[i], &o);
        if (st == DG_OK) dg_out_write(o, text, len);
        dg_mem_free(text);
        DG_TRY(st);
        DG_TRY(dg_out_commit(o));
    }
    return DG_OK;
}

static void remove_dir(const char *dir) {
    char path[PATH_MAX];
    for (size_t i = 0; i < N_COMPANION + 2; i++) {
        const char *name = i < N_COMPANION    ? companions[i]
                           : i == N_COMPANION ? "config.json"
                                              : "model.safetensors";
        if (snprintf(path, sizeof path, "%s/%s", dir, name) < (int)sizeof path) unlink(path);
    }
    rmdir(dir);
}

/* rename() refuses a directory with something in it, but only after all the work. */
static dg_status check_free(const char *out) {
    struct stat st;
    if (lstat(out, &st) != 0) return DG_OK;
    DG_CHECK(S_ISDIR(st.st_mode), DG_ERR_IO, "%s: exists and is not a directory", out);
    DIR *d = opendir(out);
    DG_CHECK(d, DG_ERR_IO, "%s: %s", out, strerror(errno));
    bool used = false;
    for (const struct dirent *e; (e = readdir(d));)
        used |= strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(d);
    DG_CHECK(!used, DG_ERR_IO, "%s: the directory exists and is not empty", out);
    return DG_OK;
}

dg_status dg_job_to_hf(dg_job *j) {
    char out[PATH_MAX], part[PATH_MAX];
    size_t n = strlen(j->out);
    while (n > 1 && j->out[n - 1] == '/') n--;
    const int len = snprintf(part, sizeof part, "%.*s.part%ld", (int)n, j->out, (long)getpid());
    DG_CHECK(n > 0 && len > 0 && len < (int)sizeof part, DG_ERR_IO, "%s: not a name for a directory", j->out);
    snprintf(out, sizeof out, "%.*s", (int)n, j->out);
    DG_TRY(check_free(out));
    DG_CHECK(mkdir(part, 0777) == 0, DG_ERR_IO, "%s: cannot create %s: %s", out, part, strerror(errno));
    dg_status st = write_config(j, part);
    if (st == DG_OK) st = write_weights(j, part);
    if (st == DG_OK && j->file->container == DG_CONTAINER_SAFETENSORS) st = copy_companions(j, part);
    if (st == DG_OK && rename(part, out) != 0)
        st = dg_fail(DG_ERR_IO, "%s: cannot rename %s to it: %s", out, part, strerror(errno));
    if (st != DG_OK) remove_dir(part);
    return st;
}
