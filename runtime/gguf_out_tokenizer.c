/* A Hugging Face tokenizer as GGUF keys, so that llama.cpp tokenizes as the original does.
 *
 * GGUF has no patterns: it names the pre-tokenizer, and a name stands for code in the reader. A tokenizer
 * whose pre-tokenizer has no name here is refused. Knows nothing of encoding (tokenizer.c). */
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "runtime/gguf_out.h"
#include "runtime/mem.h"

enum { JSON_BYTES = 256 << 20, MAX_STEPS = 8, MAX_VOCAB = 1 << 22 };

/* Token types of GGUF. */
enum { NORMAL = 1, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE };

/* ---- pre-tokenizers --------------------------------------------------------------------------- */

#define QWEN2_WORDS                                                                                          \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"      \
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* Steps as flatten_step writes them: a Split is its pattern, "digits" cuts every digit off, "bytes" is
 * ByteLevel without and "bytes+words" with GPT-2's pattern; "NFC" is the normaliser, which GGUF counts among
 * them. */
static const struct {
    const char *name, *step[MAX_STEPS];
} pre_tokenizers[] = {
    {"gpt-2", {"bytes+words"}},
    {"smollm", {"digits", "bytes+words"}},
    {"llama-bpe",
     {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
      "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
      "bytes"}},
    {"qwen2", {"NFC", QWEN2_WORDS, "bytes"}},
    {"deepseek-r1-qwen", {QWEN2_WORDS, "bytes"}},
    {"qwen35",
     {"NFC",
      "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}|"
      " ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
      "bytes"}},
    {"gpt-4o",
     {"[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+"
      "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
      "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*"
      "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}|"
      " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
      "bytes"}},
    {"deepseek-v3",
     {"\\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
      "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"
      " ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
      "bytes"}},
    {"deepseek-coder",
     {"[\r\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", "[一-龥ࠀ-一가-퟿]+", "digits", "bytes"}},
};

/* What is read of the files, and the list of tokens being made of it. */
typedef struct source {
    const char *dir, *what;        /* what: path of tokenizer.json, for messages */
    json_t *tokenizer;             /* tokenizer.json */
    json_t *config, *model_config; /* tokenizer_config.json, config.json; NULL if absent */
    const char **text;             /* [n_vocab] NULL: no such id */
    int32_t *type;
    int32_t n_vocab, eos;
    bool byte_level;
} source;

static const char *text_at(const json_t *object, const char *key) {
    return json_string_value(json_object_get(object, key));
}

/* Appends the step, or the steps of a sequence, to step[]; false when there is one without a counterpart. */
static bool flatten_step(const json_t *j, const char **step, size_t *n) {
    const char *type = text_at(j, "type");
    if (!type || *n == MAX_STEPS) return false;
    if (strcmp(type, "Sequence") == 0) {
        size_t i;
        const json_t *child;
        json_array_foreach(json_object_get(j, "pretokenizers"), i, child) {
            if (!flatten_step(child, step, n)) return false;
        }
        return true;
    }
    if (strcmp(type, "ByteLevel") == 0) {
        if (json_is_true(json_object_get(j, "add_prefix_space"))) return false;
        step[(*n)++] = json_is_false(json_object_get(j, "use_regex")) ? "bytes" : "bytes+words";
        return true;
    }
    if (strcmp(type, "Digits") == 0) {
        step[(*n)++] = "digits";
        return json_is_true(json_object_get(j, "individual_digits"));
    }
    const char *regex = text_at(json_object_get(j, "pattern"), "Regex"), *behavior = text_at(j, "behavior");
    if (strcmp(type, "Split") != 0 || !regex || !behavior || json_is_true(json_object_get(j, "invert")))
        return false;
    step[(*n)++] = regex;
    return strcmp(behavior, "Isolated") == 0;
}

static dg_status name_pre_tokenizer(const source *s, const char **name) {
    const char *step[MAX_STEPS] = {NULL};
    size_t n = 0;
    const json_t *normalizer = json_object_get(s->tokenizer, "normalizer");
    const char *normal = text_at(normalizer, "type");
    if (normalizer && !json_is_null(normalizer)) {
        DG_CHECK(normal && strcmp(normal, "NFC") == 0, DG_ERR_UNSUPPORTED,
                 "%s: normalizer %s has no counterpart in GGUF; expected none or NFC", s->what,
                 normal ? normal : "without a type");
        step[n++] = "NFC";
    }
    if (flatten_step(json_object_get(s->tokenizer, "pre_tokenizer"), step, &n)) {
        for (size_t i = 0; i < sizeof pre_tokenizers / sizeof *pre_tokenizers; i++) {
            size_t k = 0;
            while (k < n && pre_tokenizers[i].step[k] && strcmp(step[k], pre_tokenizers[i].step[k]) == 0) k++;
            if (k != n || (k < MAX_STEPS && pre_tokenizers[i].step[k])) continue;
            *name = pre_tokenizers[i].name;
            return DG_OK;
        }
    }
    DG_FAIL(DG_ERR_UNSUPPORTED,
            "%s: GGUF has no name for this pre_tokenizer (step %zu: %s); known: gpt-2, smollm, llama-bpe, "
            "qwen2, deepseek-r1-qwen, qwen35, gpt-4o, deepseek-v3, deepseek-coder",
            s->what, n, n && step[n - 1] ? step[n - 1] : "none");
}

/* ---- tokens ----------------------------------------------------------------------------------- */

static dg_status add_token(source *s, const char *text, int64_t id, int32_t type) {
    DG_CHECK(id >= 0 && id < s->n_vocab, DG_ERR_FORMAT,
             "%s: token \"%.40s\": expected an id from 0 to %d, found %lld", s->what, text, s->n_vocab - 1,
             (long long)id);
    s->text[id] = text;
    s->type[id] = type;
    return DG_OK;
}

/* "<0x0A>" of a tokenizer with byte fallback. */
static bool is_byte_token(const char *t) { return strlen(t) == 6 && memcmp(t, "<0x", 3) == 0 && t[5] == '>'; }

static dg_status collect_tokens(source *s) {
    const json_t *model = json_object_get(s->tokenizer, "model"), *id, *added;
    const bool fallback = json_is_true(json_object_get(model, "byte_fallback"));
    const char *unknown = text_at(model, "unk_token"), *text;
    size_t i;
    json_object_foreach((json_t *)json_object_get(model, "vocab"), text, id) {
        const int32_t type = fallback && is_byte_token(text) ? BYTE : NORMAL;
        DG_TRY(add_token(s, text, json_is_integer(id) ? json_integer_value(id) : -1, type));
    }
    json_array_foreach(json_object_get(s->tokenizer, "added_tokens"), i, added) {
        text = text_at(added, "content");
        id = json_object_get(added, "id");
        DG_CHECK(text && json_is_integer(id), DG_ERR_FORMAT, "%s: added_tokens[%zu]: expected content and id",
                 s->what, i);
        const bool special = json_is_true(json_object_get(added, "special"));
        DG_TRY(add_token(s, text, json_integer_value(id),
                         unknown && strcmp(text, unknown) == 0 ? UNKNOWN
                         : special                             ? CONTROL
                                                               : USER_DEFINED));
    }
    return DG_OK;
}

static void put_tokens(dg_gguf_out *g, source *s) {
    char pad[24];
    dg_gguf_out_strings(g, "tokenizer.ggml.tokens", (size_t)s->n_vocab);
    for (int32_t i = 0; i < s->n_vocab; i++) {
        const char *text = s->text[i];
        if (!text) {
            snprintf(pad, sizeof pad, "[PAD%d]", i);
            text = pad;
            s->type[i] = UNUSED;
        }
        dg_gguf_out_item(g, text, strlen(text));
    }
    dg_gguf_out_i32s(g, "tokenizer.ggml.token_type", s->type, (size_t)s->n_vocab);
}

/* The halves of a merge: "a b", or ["a", "b"] in newer files. False if it is neither. */
static bool merge_halves(const json_t *m, dg_str half[2]) {
    if (json_is_string(m)) {
        const char *t = json_string_value(m), *space = strchr(t, ' ');
        if (!space) return false;
        half[0] = (dg_str){t, (size_t)(space - t)};
        half[1] = (dg_str){space + 1, strlen(space + 1)};
    } else {
        for (size_t k = 0; k < 2; k++) {
            const json_t *part = json_array_get(m, k);
            if (!json_is_string(part)) return false;
            half[k] = (dg_str){json_string_value(part), json_string_length(part)};
        }
    }
    return half[0].len && half[1].len && !memchr(half[0].ptr, ' ', half[0].len) &&
           !memchr(half[1].ptr, ' ', half[1].len);
}

/* Calls use for each merge, in order of rank. */
static dg_status
each_merge(source *s, dg_status (*use)(source *s, void *ud, size_t rank, const dg_str half[2]), void *ud) {
    const json_t *m;
    size_t i;
    json_array_foreach(json_object_get(json_object_get(s->tokenizer, "model"), "merges"), i, m) {
        dg_str half[2];
        DG_CHECK(merge_halves(m, half), DG_ERR_FORMAT,
                 "%s: model.merges[%zu]: expected two texts without spaces", s->what, i);
        DG_TRY(use(s, ud, i, half));
    }
    return DG_OK;
}

static dg_status put_merge(source *s, void *ud, size_t rank, const dg_str half[2]) {
    (void)rank;
    char joined[1024];
    const size_t n = half[0].len + 1 + half[1].len;
    DG_CHECK(n <= sizeof joined, DG_ERR_FORMAT, "%s: a merge of %zu bytes; expected at most %zu", s->what, n,
             sizeof joined);
    memcpy(joined, half[0].ptr, half[0].len);
    joined[half[0].len] = ' ';
    memcpy(joined + half[0].len + 1, half[1].ptr, half[1].len);
    dg_gguf_out_item(ud, joined, n);
    return DG_OK;
}

/* SentencePiece has no merges: of two neighbouring pieces it joins those that make the token of the best
 * score. The merges of tokenizer.json came from those scores, so minus the smallest rank orders them the same
 * way. */
static dg_status score_merge(source *s, void *ud, size_t rank, const dg_str half[2]) {
    float *score = ud;
    char joined[1024];
    const size_t n = half[0].len + half[1].len;
    if (n >= sizeof joined) return DG_OK;
    memcpy(joined, half[0].ptr, half[0].len);
    memcpy(joined + half[0].len, half[1].ptr, half[1].len);
    joined[n] = 0;
    const json_t *vocab = json_object_get(json_object_get(s->tokenizer, "model"), "vocab");
    const json_t *id = json_object_get(vocab, joined);
    if (json_is_integer(id) && score[json_integer_value(id)] == 0)
        score[json_integer_value(id)] = -(float)(rank + 1);
    return DG_OK;
}

static dg_status put_scores(dg_gguf_out *g, source *s) {
    float *score = dg_mem_calloc((size_t)s->n_vocab, sizeof *score);
    DG_CHECK(score, DG_ERR_MEMORY, "%s: no memory for %d scores", s->what, s->n_vocab);
    const dg_status st = each_merge(s, score_merge, score);
    if (st == DG_OK) dg_gguf_out_f32s(g, "tokenizer.ggml.scores", score, (size_t)s->n_vocab);
    dg_mem_free(score);
    return st;
}

/* ---- special tokens --------------------------------------------------------------------------- */

static int32_t find_token(const source *s, const char *text) {
    for (int32_t i = s->n_vocab - 1; i >= 0 && text; i--) /* special ones are at the end, as a rule */
        if (s->text[i] && strcmp(s->text[i], text) == 0) return i;
    return -1;
}

/* "bos": the text of tokenizer_config.json's bos_token, which may be an object with the text inside. */
static const char *configured(const source *s, const char *role) {
    char key[32];
    snprintf(key, sizeof key, "%s_token", role);
    const json_t *j = json_object_get(s->config, key);
    return json_is_object(j) ? text_at(j, "content") : json_string_value(j);
}

/* The special token that the template of the post-processor puts first (end = 0) or last, or NULL. */
static const char *template_end(const json_t *post, bool last) {
    const json_t *child, *single = json_object_get(post, "single");
    size_t i;
    json_array_foreach(json_object_get(post, "processors"), i, child) {
        const char *found = template_end(child, last);
        if (found) return found;
    }
    const size_t n = json_array_size(single);
    if (n < 2) return NULL;
    return text_at(json_object_get(json_array_get(single, last ? n - 1 : 0), "SpecialToken"), "id");
}

/* config.json's eos_token_id may be a list: the first of it. */
static int64_t config_id(const source *s, const char *key) {
    const json_t *j = json_object_get(s->model_config, key);
    if (json_is_array(j)) j = json_array_get(j, 0);
    return json_is_integer(j) ? json_integer_value(j) : -1;
}

static void put_special(dg_gguf_out *g, source *s) {
    static const struct {
        const char *role, *config, *key, *add;
    } roles[] = {
        {"bos", "bos_token_id", "tokenizer.ggml.bos_token_id", "tokenizer.ggml.add_bos_token"},
        {"eos", "eos_token_id", "tokenizer.ggml.eos_token_id", "tokenizer.ggml.add_eos_token"},
        {"unk", "unk_token_id", "tokenizer.ggml.unknown_token_id", NULL},
        {"pad", "pad_token_id", "tokenizer.ggml.padding_token_id", NULL},
        {"sep", "sep_token_id", "tokenizer.ggml.seperator_token_id", NULL}, /* spelt so */
        {"mask", "mask_token_id", "tokenizer.ggml.mask_token_id", NULL},
    };
    const json_t *post = json_object_get(s->tokenizer, "post_processor");
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
        const char *text = configured(s, roles[i].role);
        const char *added = i < 2 ? template_end(post, i == 1) : NULL;
        if (!text && !s->config) text = added;
        if (!text && i == 2) text = text_at(json_object_get(s->tokenizer, "model"), "unk_token");
        int64_t id = find_token(s, text);
        if (id < 0) id = config_id(s, roles[i].config);
        if (id < 0 || id >= s->n_vocab) id = -1;
        if (id >= 0) dg_gguf_out_u32(g, roles[i].key, (uint32_t)id);
        if (i == 1) s->eos = (int32_t)id;
        if (!roles[i].add) continue;
        char flag[24];
        snprintf(flag, sizeof flag, "add_%s_token", roles[i].role);
        const json_t *wish = json_object_get(s->config, flag);
        if (json_is_boolean(wish) || added)
            dg_gguf_out_bool(g, roles[i].add,
                             json_is_boolean(wish) ? json_is_true(wish)
                                                   : id >= 0 && find_token(s, added) == id);
    }
}

/* The text of chat_template.jinja, else of tokenizer_config.json (where it may be a list of named ones). */
static dg_status put_chat_template(dg_gguf_out *g, const source *s) {
    char path[PATH_MAX], *file = NULL;
    const json_t *j = json_object_get(s->config, "chat_template"), *entry;
    const char *text = json_string_value(j);
    size_t i;
    json_array_foreach(j, i, entry) {
        const char *name = text_at(entry, "name");
        if (!text || (name && strcmp(name, "default") == 0)) text = text_at(entry, "template");
    }
    snprintf(path, sizeof path, "%s/chat_template.jinja", s->dir);
    if (!text && access(path, F_OK) == 0) {
        DG_TRY(dg_file_slurp(path, JSON_BYTES, &file, NULL));
        text = file;
    }
    if (text) dg_gguf_out_str(g, "tokenizer.chat_template", text);
    dg_mem_free(file);
    return DG_OK;
}

/* ---- all of it -------------------------------------------------------------------------------- */

/* Whether a text gets a space in front: a Prepend normaliser, or Metaspace unless it is told not to. */
static bool adds_space(const json_t *j) {
    const char *type = text_at(j, "type"), *scheme = text_at(j, "prepend_scheme");
    const json_t *child;
    size_t i;
    if (!type) return false;
    if (strcmp(type, "Prepend") == 0) return true;
    if (strcmp(type, "Metaspace") == 0)
        return scheme ? strcmp(scheme, "never") != 0 : !json_is_false(json_object_get(j, "add_prefix_space"));
    json_array_foreach(json_object_get(j, strcmp(type, "Sequence") == 0 ? "normalizers" : "pretokenizers"), i,
                       child) {
        if (adds_space(child)) return true;
    }
    return false;
}

static bool mentions_byte_level(const json_t *j) {
    const char *type = text_at(j, "type");
    const json_t *child;
    size_t i;
    if (type && strcmp(type, "ByteLevel") == 0) return true;
    json_array_foreach(json_object_get(j, "pretokenizers"), i, child) {
        if (mentions_byte_level(child)) return true;
    }
    return false;
}

static dg_status put_all(dg_gguf_out *g, source *s) {
    const json_t *model = json_object_get(s->tokenizer, "model"), *merges = json_object_get(model, "merges");
    const char *type = text_at(model, "type"), *pre = "default";
    DG_CHECK(json_is_object(json_object_get(model, "vocab")) && json_is_array(merges) &&
                 (!type || strcmp(type, "BPE") == 0),
             DG_ERR_UNSUPPORTED, "%s: model.type %s; expected BPE with a vocab and merges", s->what,
             type ? type : "?");
    const json_t *pre_tokenizer = json_object_get(s->tokenizer, "pre_tokenizer");
    s->byte_level = mentions_byte_level(pre_tokenizer);
    DG_CHECK(s->byte_level || json_is_true(json_object_get(model, "byte_fallback")), DG_ERR_UNSUPPORTED,
             "%s: BPE that is neither on bytes (ByteLevel) nor with byte_fallback", s->what);
    if (s->byte_level) DG_TRY(name_pre_tokenizer(s, &pre));
    dg_gguf_out_str(g, "tokenizer.ggml.model", s->byte_level ? "gpt2" : "llama");
    dg_gguf_out_str(g, "tokenizer.ggml.pre", pre);
    DG_TRY(collect_tokens(s));
    put_tokens(g, s);
    if (s->byte_level) {
        dg_gguf_out_strings(g, "tokenizer.ggml.merges", json_array_size(merges));
        DG_TRY(each_merge(s, put_merge, g));
    } else {
        DG_TRY(put_scores(g, s));
        if (!adds_space(json_object_get(s->tokenizer, "normalizer")) && !adds_space(pre_tokenizer))
            dg_gguf_out_bool(g, "tokenizer.ggml.add_space_prefix", false);
    }
    put_special(g, s);
    return put_chat_template(g, s);
}

/* Parses dir/name; *out stays NULL when it is not there and not required. */
static dg_status read_json(const char *dir, const char *name, bool required, json_t **out) {
    char path[PATH_MAX], *text = NULL;
    size_t len;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (!required && access(path, F_OK) != 0) return DG_OK;
    DG_TRY(dg_file_slurp(path, JSON_BYTES, &text, &len));
    const dg_status st = dg_json_parse(path, text, len, out);
    dg_mem_free(text);
    return st;
}

dg_status dg_gguf_out_tokenizer(dg_gguf_out *g, const char *dir, int32_t n_vocab, int32_t *eos) {
    char what[PATH_MAX];
    snprintf(what, sizeof what, "%s/tokenizer.json", dir);
    DG_CHECK(n_vocab > 0 && n_vocab <= MAX_VOCAB, DG_ERR_FORMAT, "%s: vocab_size: expected 1 to %d, found %d",
             what, MAX_VOCAB, n_vocab);
    source s = {.dir = dir, .what = what, .n_vocab = n_vocab, .eos = -1};
    s.text = dg_mem_calloc((size_t)n_vocab, sizeof *s.text);
    s.type = dg_mem_calloc((size_t)n_vocab, sizeof *s.type);
    dg_status st = DG_OK;
    if (!s.text || !s.type) st = dg_fail(DG_ERR_MEMORY, "%s: no memory for %d tokens", what, n_vocab);
    if (st == DG_OK) st = read_json(dir, "tokenizer.json", true, &s.tokenizer);
    if (st == DG_OK) st = read_json(dir, "tokenizer_config.json", false, &s.config);
    if (st == DG_OK) st = read_json(dir, "config.json", false, &s.model_config);
    if (st == DG_OK) st = put_all(g, &s);
    if (st == DG_OK) *eos = s.eos;
    json_decref(s.tokenizer);
    json_decref(s.config);
    json_decref(s.model_config);
    dg_mem_free(s.text);
    dg_mem_free(s.type);
    return st;
}
