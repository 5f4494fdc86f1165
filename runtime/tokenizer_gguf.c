/* Opens tokenizers from GGUF metadata (tokenizer.ggml.*).
 *
 * A GGUF names its pre-tokenizer instead of describing it, so the table of names lives here. The patterns are
 * those of the published tokenizer.json files, also where llama.cpp's own versions differ from them. */
#include <stdio.h>

#include "runtime/tokenizer_impl.h"

/* ---- pre-tokenizers --------------------------------------------------------------------------- */

typedef struct family {
    const char *pattern[6];
    bool nfc, whole_first, bos; /* bos: the default of add_bos_token */
} family;

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define BLANKS "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define WORDS(numbers) \
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" numbers "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" BLANKS
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED(suffix, numbers) \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" suffix "|" \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" suffix "|" numbers "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" BLANKS
#define CJK "[\\x{4E00}-\\x{9FA5}\\x{0800}-\\x{4E00}\\x{AC00}-\\x{D7FF}]+"

static const family gpt2 = {{DG_PATTERN_GPT2}, false, false, false};
static const family digits_gpt2 = {{"\\p{N}", DG_PATTERN_GPT2}, false, false, false};
static const family llama3 = {{WORDS("\\p{N}{1,3}")}, false, true, true};
static const family cl100k = {{WORDS("\\p{N}{1,3}")}, false, false, false};
static const family qwen2 = {{WORDS("\\p{N}")}, true, false, false};
static const family qwen2_raw = {{WORDS("\\p{N}")}, false, false, false};
static const family qwen35 = {{CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}|"
                               " ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" BLANKS},
                              true, false, false};
static const family o200k = {{CASED(CONTRACTIONS "?", "\\p{N}{1,3}")}, false, true, false};
static const family tekken = {{CASED("", "\\p{N}")}, false, true, true};
/* Published with \s+$ for the spaces that end a line; written so that a long run of spaces inside a line is
 * not tried from every one of them. */
static const family deepseek_llm = {{"[\\r\\n]", "\\s?[\\p{Lu}\\p{Ll}\\p{Lt}]+",
                                     "\\s?[!-/:-~\\x{FF01}-\\x{FF0F}\\x{FF1A}-\\x{FF5E}\\x{2018}-\\x{201F}"
                                     "\\x{3000}-\\x{3002}]+",
                                     "(?<!\\s)\\s++$", CJK, "\\p{N}"},
                                    false, false, false};
static const family deepseek_coder = {
    {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", CJK, "\\p{N}"}, false, false, false};
static const family deepseek_v3 = {
    {"\\p{N}{1,3}", "[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}]+",
     "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"
     " ?[\\p{P}\\p{S}]+[\\r\\n]*|" BLANKS},
    false, false, false};
static const family standard = {
    {"[\\p{P}$+<=>^~|]+", DG_PATTERN_GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}, false, false, false};

static const struct {
    const char *name;
    const family *is;
} families[] = {
    {"default", &standard},
    {"gpt-2", &gpt2}, {"phi-2", &gpt2}, {"mpt", &gpt2}, {"olmo", &gpt2}, {"exaone4", &gpt2},
    {"smollm", &digits_gpt2}, {"starcoder", &digits_gpt2}, {"refact", &digits_gpt2},
    {"codeshell", &digits_gpt2}, {"exaone", &digits_gpt2}, {"minerva-7b", &digits_gpt2},
    {"llama-bpe", &llama3}, {"llama3", &llama3}, {"llama-v3", &llama3}, {"falcon3", &llama3},
    {"lfm2", &llama3}, {"pixtral", &llama3},
    {"dbrx", &cl100k}, {"smaug-bpe", &cl100k}, {"glm4", &cl100k}, {"chatglm-bpe", &cl100k},
    {"qwen2", &qwen2}, {"qwen35", &qwen35}, {"deepseek-r1-qwen", &qwen2_raw}, {"stablelm2", &qwen2_raw},
    {"megrez", &qwen2_raw}, {"hunyuan", &qwen2_raw},
    {"gpt-4o", &o200k}, {"llama4", &o200k}, {"tekken", &tekken},
    {"deepseek-llm", &deepseek_llm}, {"deepseek-coder", &deepseek_coder}, {"deepseek-v3", &deepseek_v3},
    {"hunyuan-dense", &deepseek_v3},
};
enum { N_FAMILY = sizeof families / sizeof *families };

static dg_status find_family(const char *file, dg_str pre, const family **out) {
    char known[512] = "";
    for (size_t i = 0, n = 0; i < N_FAMILY; i++) {
        if (strlen(families[i].name) == pre.len && memcmp(families[i].name, pre.ptr, pre.len) == 0) {
            *out = families[i].is;
            return DG_OK;
        }
        n += (size_t)snprintf(known + n, sizeof known - n, "%s%s", i ? ", " : "", families[i].name);
    }
    DG_FAIL(DG_ERR_UNSUPPORTED, "%s: tokenizer.ggml.pre \"%.*s\"; known: %s", file,
            (int)(pre.len < 64 ? pre.len : 64), pre.ptr, known);
}

static dg_status add_family(dg_tokenizer *t, const char *file, const family *is) {
    if (is->nfc) DG_TRY(dg_tokenizer_add_normal(t, file, (dg_normal){.kind = DG_NORMAL_NFC}));
    for (size_t i = 0; i < sizeof is->pattern / sizeof *is->pattern && is->pattern[i]; i++)
        DG_TRY(dg_tokenizer_add_split(t, file, (dg_split){.kind = DG_SPLIT_PATTERN}, is->pattern[i]));
    t->whole_first = is->whole_first;
    return DG_OK;
}

/* ---- tables ----------------------------------------------------------------------------------- */

/* The array `key`, of the wanted type and with n elements (0: any number). */
static dg_status find_array(const dg_file *f, const char *key, bool strings, uint64_t n,
                            const dg_meta **out) {
    const dg_meta *m = dg_meta_find(f, key);
    DG_CHECK(m, DG_ERR_FORMAT, "%s: %s is missing", f->path, key);
    DG_CHECK(m->is_array && (m->type == DG_META_STRING) == strings && m->type != DG_META_BOOL, DG_ERR_FORMAT,
             "%s: %s: expected an array of %s", f->path, key, strings ? "strings" : "numbers");
    DG_CHECK(n == 0 || m->n == n, DG_ERR_FORMAT, "%s: %s: expected %llu elements, found %llu", f->path, key,
             (unsigned long long)n, (unsigned long long)m->n);
    *out = m;
    return DG_OK;
}

static bool is_added(int64_t type) {
    return type == DG_PIECE_UNKNOWN || type == DG_PIECE_CONTROL || type == DG_PIECE_USER_DEFINED;
}

static dg_status set_byte_level(dg_tokenizer *t, const dg_file *f, int32_t id, dg_str s, int64_t type,
                                dg_buffer *scratch) {
    dg_vocab *v = &t->vocab;
    int kind = dg_piece_kind(type);
    scratch->n = 0;
    DG_TRY(dg_buffer_reserve(scratch, s.len + 1));
    if (type == DG_PIECE_NORMAL) {
        const int64_t n = dg_alphabet_decode(s.ptr, s.len, scratch->p);
        if (n < 0) kind = 0; /* not spelled in the alphabet: merges cannot make it */
        else s = (dg_str){scratch->p, (size_t)n};
    }
    return dg_vocab_set(v, f->path, id, s.ptr, s.len, kind);
}

static dg_status set_piece(dg_tokenizer *t, const dg_file *f, int32_t id, dg_str s, int64_t type) {
    DG_TRY(dg_vocab_set(&t->vocab, f->path, id, s.ptr, s.len, dg_piece_kind(type)));
    if (type == DG_PIECE_UNKNOWN || type == DG_PIECE_CONTROL) return DG_OK;
    const dg_status st = dg_tokenizer_set_piece(t, id, s, type == DG_PIECE_BYTE);
    return st == DG_OK ? st : dg_fail_prefix(st, "%s: tokenizer.ggml.tokens[%d]", f->path, id);
}

static dg_status read_tokens(dg_tokenizer *t, const dg_file *f) {
    const dg_meta *tokens, *types = NULL;
    DG_TRY(find_array(f, "tokenizer.ggml.tokens", true, 0, &tokens));
    if (dg_meta_find(f, "tokenizer.ggml.token_type"))
        DG_TRY(find_array(f, "tokenizer.ggml.token_type", false, tokens->n, &types));
    DG_TRY(dg_vocab_create(&t->vocab, f->path, tokens->n < INT64_MAX ? (int64_t)tokens->n : INT64_MAX));
    dg_buffer scratch = {0};
    dg_status st = DG_OK;
    for (int32_t id = 0; st == DG_OK && id < t->vocab.n; id++) {
        const dg_str s = tokens->string[id];
        const int64_t type = types ? dg_meta_int(types, (uint64_t)id) : DG_PIECE_NORMAL;
        st = t->byte_level ? set_byte_level(t, f, id, s, type, &scratch) : set_piece(t, f, id, s, type);
        if (st == DG_OK && is_added(type) && s.len > 0)
            st = dg_tokenizer_add_token(t, id, s.ptr, s.len, false, 0);
    }
    dg_mem_free(scratch.p);
    return st == DG_OK ? dg_vocab_index(&t->vocab) : st;
}

/* A merge of what is not in the table could never apply, and files have some: tokens that were made special
 * after training. */
static dg_status read_merges(dg_tokenizer *t, const dg_file *f) {
    const dg_meta *m;
    dg_buffer s = {0};
    dg_status st = DG_OK;
    DG_TRY(find_array(f, "tokenizer.ggml.merges", true, 0, &m));
    DG_TRY(dg_vocab_reserve_merges(&t->vocab, m->n < SIZE_MAX ? (size_t)m->n : SIZE_MAX));
    for (uint64_t i = 0; i < m->n; i++) {
        const dg_str rule = m->string[i];
        const char *space = rule.len > 2 ? memchr(rule.ptr + 1, ' ', rule.len - 2) : NULL;
        if (!space) {
            st = dg_fail(DG_ERR_FORMAT, "%s: tokenizer.ggml.merges[%llu]: expected \"a b\"", f->path,
                         (unsigned long long)i);
            break;
        }
        s.n = 0;
        if ((st = dg_buffer_reserve(&s, rule.len)) != DG_OK) break;
        const size_t a_len = (size_t)(space - rule.ptr);
        const int64_t a = dg_alphabet_decode(rule.ptr, a_len, s.p);
        const int64_t b = a < 0 ? -1 : dg_alphabet_decode(space + 1, rule.len - a_len - 1, s.p + a);
        if (b < 0) continue;
        const int32_t left = dg_vocab_find(&t->vocab, s.p, (size_t)a);
        const int32_t right = dg_vocab_find(&t->vocab, s.p + a, (size_t)b);
        const int32_t out = dg_vocab_find(&t->vocab, s.p, (size_t)(a + b));
        if (left >= 0 && right >= 0 && out >= 0) dg_vocab_add_merge(&t->vocab, left, right, out);
    }
    dg_mem_free(s.p);
    return st;
}

static dg_status read_scores(dg_tokenizer *t, const dg_file *f) {
    const dg_meta *m;
    DG_TRY(find_array(f, "tokenizer.ggml.scores", false, (uint64_t)t->vocab.n, &m));
    DG_TRY(dg_vocab_reserve_scores(&t->vocab));
    for (int32_t id = 0; id < t->vocab.n; id++)
        DG_TRY(dg_vocab_set_score(&t->vocab, f->path, id, (float)dg_meta_number(m, (uint64_t)id)));
    return DG_OK;
}

/* ---- special tokens --------------------------------------------------------------------------- */

static dg_status read_id(const dg_tokenizer *t, const dg_file *f, const char *key, int32_t *id) {
    uint64_t v;
    dg_status st = DG_OK;
    if (!dg_meta_u64(f, key, &v, &st)) return st;
    DG_CHECK(v < (uint64_t)t->vocab.n, DG_ERR_FORMAT, "%s: %s: expected 0 to %d, found %llu", f->path, key,
             t->vocab.n - 1, (unsigned long long)v);
    *id = (int32_t)v;
    return DG_OK;
}

static dg_status read_special(dg_tokenizer *t, const dg_file *f, bool add_bos) {
    dg_status st = DG_OK;
    bool add_eos = false;
    DG_TRY(read_id(t, f, "tokenizer.ggml.bos_token_id", &t->bos));
    DG_TRY(read_id(t, f, "tokenizer.ggml.eos_token_id", &t->eos));
    DG_TRY(read_id(t, f, "tokenizer.ggml.unknown_token_id", &t->unknown));
    dg_meta_bool(f, "tokenizer.ggml.add_bos_token", &add_bos, &st);
    DG_TRY(st);
    dg_meta_bool(f, "tokenizer.ggml.add_eos_token", &add_eos, &st);
    DG_TRY(st);
    if (add_bos && t->bos >= 0) t->before = (dg_affix){{t->bos}, 1};
    if (add_eos && t->eos >= 0) t->after = (dg_affix){{t->eos}, 1};

    dg_str s;
    if (!dg_meta_str(f, "tokenizer.chat_template", &s, &st)) return st;
    t->chat_template = dg_mem_strndup(s.ptr, s.len);
    DG_CHECK(t->chat_template, DG_ERR_MEMORY, "%s: no memory for the chat template", f->path);
    return DG_OK;
}

/* ---- the two models --------------------------------------------------------------------------- */

static dg_status open_gpt2(dg_tokenizer *t, const dg_file *f) {
    dg_str pre = {"default", 7};
    dg_status st = DG_OK;
    const family *is;
    char kind[48];
    dg_meta_str(f, "tokenizer.ggml.pre", &pre, &st);
    DG_TRY(st);
    DG_TRY(find_family(f->path, pre, &is));
    t->byte_level = true;
    DG_TRY(add_family(t, f->path, is));
    DG_TRY(read_tokens(t, f));
    DG_TRY(read_merges(t, f));
    DG_TRY(read_special(t, f, is->bos));
    snprintf(kind, sizeof kind, "byte-level BPE, %.*s", (int)pre.len, pre.ptr);
    return dg_tokenizer_finish(t, f->path, kind);
}

static dg_status open_llama(dg_tokenizer *t, const dg_file *f) {
    bool prefix = true;
    dg_status st = DG_OK;
    dg_meta_bool(f, "tokenizer.ggml.add_space_prefix", &prefix, &st);
    DG_TRY(st);
    DG_TRY(dg_tokenizer_use_pieces(t, f->path, prefix, false));
    DG_TRY(read_tokens(t, f));
    DG_TRY(read_scores(t, f));
    /* what sentencepiece numbers so unless told otherwise */
    t->unknown = 0;
    if (t->vocab.n > 2) t->bos = 1, t->eos = 2;
    DG_TRY(read_special(t, f, true));
    return dg_tokenizer_finish(t, f->path, "SentencePiece BPE, llama");
}

dg_status dg_tokenizer_open_gguf(const dg_file *f, dg_tokenizer **out) {
    dg_str model;
    dg_status st = DG_OK;
    if (!dg_meta_str(f, "tokenizer.ggml.model", &model, &st)) {
        DG_TRY(st);
        DG_FAIL(DG_ERR_FORMAT, "%s: tokenizer.ggml.model is missing", f->path);
    }
    const bool gpt = model.len == 4 && memcmp(model.ptr, "gpt2", 4) == 0;
    const bool llama = model.len == 5 && memcmp(model.ptr, "llama", 5) == 0;
    DG_CHECK(gpt || llama, DG_ERR_UNSUPPORTED, "%s: tokenizer.ggml.model \"%.*s\"; known: gpt2, llama",
             f->path, (int)(model.len < 64 ? model.len : 64), model.ptr);
    dg_tokenizer *t = dg_tokenizer_create();
    DG_CHECK(t, DG_ERR_MEMORY, "%s: no memory", f->path);
    st = gpt ? open_gpt2(t, f) : open_llama(t, f);
    if (st == DG_OK) *out = t;
    else dg_tokenizer_close(t);
    return st;
}
