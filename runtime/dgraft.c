/* The public functions that are not a session's or a model's own: version, tokens, chat, model facts. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "runtime/target.h"

#define STRING_(x) #x
#define STRING(x)  STRING_(x)

const char *dg_version(void) {
    return STRING(DG_VERSION_MAJOR) "." STRING(DG_VERSION_MINOR) "." STRING(DG_VERSION_PATCH);
}

static char build_info[160];

static void write_build_info(void) {
    snprintf(build_info, sizeof build_info, "backends %s; jansson " JANSSON_VERSION ", PCRE2, utf8proc", dg_backend_list());
}

const char *dg_build_info(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, write_build_info);
    return build_info;
}

void dg_free(void *p) { dg_mem_free(p); }

void dg_model_get_info(const dg_model *m, dg_model_info *info) {
    const dg_config *c = &m->net.config;
    *info = (dg_model_info){
        .path = m->net.file->path,
        .container = m->net.file->container == DG_CONTAINER_GGUF ? "gguf" : "safetensors",
        .architecture = c->arch_name,
        .tokenizer = m->tokenizer ? dg_tokenizer_kind(m->tokenizer) : "none",
        .backend = dg_backend_describe(m->be),
        .chat_template = m->chat ? dg_chat_name(m->chat) : NULL,
        .weight_types = m->weight_types,
        .vocab_size = c->vocab_size,
        .hidden_size = c->hidden_size,
        .n_layer = c->n_layer,
        .n_head = c->n_head,
        .n_kv_head = c->n_kv_head,
        .head_dim = c->head_dim,
        .intermediate_size = c->intermediate_size,
        .max_context = c->max_position,
        .parameters = m->parameters,
        .weight_bytes = m->net.file->mapped,
    };
}

static dg_status need_tokenizer(const dg_model *m) {
    DG_CHECK(m->tokenizer, DG_ERR_UNSUPPORTED, "%s has no tokenizer (tokenizer.json or tokenizer.ggml.* keys)",
             m->net.file->path);
    return DG_OK;
}

dg_status dg_tokenize(const dg_model *m, const char *text, size_t len, int flags, int32_t *ids, size_t cap, size_t *n) {
    DG_CHECK(m && n && (text || !len) && (ids || !cap), DG_ERR_ARGUMENT, "dg_tokenize: a pointer is NULL");
    DG_TRY(need_tokenizer(m));
    const int how = (flags & DG_TOKENIZE_BOS ? DG_ENCODE_BOS : 0) | (flags & DG_TOKENIZE_SPECIAL ? DG_ENCODE_SPECIAL : 0);
    return dg_tokenizer_encode(m->tokenizer, text, len, how, ids, cap, n);
}

dg_status dg_token_text(const dg_model *m, int32_t id, const char **text, size_t *len) {
    DG_TRY(need_tokenizer(m));
    DG_CHECK(id >= 0 && id < m->net.config.vocab_size, DG_ERR_ARGUMENT, "token id: expected 0 to %d, found %d",
             m->net.config.vocab_size - 1, id);
    const dg_str s = dg_tokenizer_bytes(m->tokenizer, id);
    *text = s.ptr;
    *len = s.len;
    return DG_OK;
}

bool dg_is_stop(const dg_model *m, int32_t id) {
    const dg_config *c = &m->net.config;
    for (int32_t i = 0; i < c->n_stop; i++)
        if (c->stop[i] == id) return true;
    return m->tokenizer && id >= 0 && id == dg_tokenizer_eos(m->tokenizer);
}

dg_status dg_chat_format(const dg_model *m, const dg_message *messages, size_t n, int thinking, char **text) {
    DG_TRY(need_tokenizer(m));
    DG_CHECK(m->chat, DG_ERR_UNSUPPORTED, "%s: %s; choose one with --chat-template: %s", m->net.file->path,
             dg_tokenizer_chat_template(m->tokenizer) ? "its chat template is not one that dgraft knows"
                                                      : "it has no chat template",
             dg_chat_names());
    const int32_t bos = dg_tokenizer_bos(m->tokenizer), eos = dg_tokenizer_eos(m->tokenizer);
    char mark[2][64] = {"", ""};
    const int32_t id[2] = {bos, eos};
    for (int i = 0; i < 2; i++) {
        const dg_str s = id[i] >= 0 ? dg_tokenizer_bytes(m->tokenizer, id[i]) : (dg_str){"", 0};
        if (s.len < sizeof mark[i]) memcpy(mark[i], s.ptr, s.len), mark[i][s.len] = 0;
    }
    return dg_chat_render(m->chat, messages, n, true, thinking, mark[0], mark[1], text);
}

const char *dg_chat_template_names(void) { return dg_chat_names(); }
