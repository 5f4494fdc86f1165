/* Opens Hugging Face tokenizers: tokenizer.json, and beside it tokenizer_config.json, special_tokens_map.json
 * and chat_template.jinja; or a directory that has only sentencepiece's tokenizer.model.
 *
 * The parts of tokenizer.json become the steps of tokenizer_impl.h one by one; a part that is not known is
 * refused by name rather than skipped, since skipping one changes ids. */
#include <stdio.h>
#include <unistd.h>

#include "runtime/tokenizer_impl.h"

enum { FILE_BYTES = 256 << 20, CONFIG_BYTES = 16 << 20 };

/* What the loader carries from part to part. */
typedef struct reader {
    dg_tokenizer *t;
    const char *file;      /* for messages */
    bool byte_fallback;    /* of the model */
    bool decode_bytes;     /* of the decoder: <0xNN> prints as that byte */
    const char *from, *to; /* decoder's replacement, NULL: none */
} reader;

static const char *string_at(const json_t *o, const char *key) {
    return json_string_value(json_object_get(o, key));
}

static bool bool_at(const json_t *o, const char *key, bool otherwise) {
    const json_t *j = json_object_get(o, key);
    return json_is_boolean(j) ? json_is_true(j) : otherwise;
}

static const char *type_of(const json_t *o) {
    const char *s = string_at(o, "type");
    return s ? s : "";
}

/* Calls part for every element of o[key], the parts of a Sequence. */
static dg_status each(reader *r, const json_t *o, const char *key,
                      dg_status (*part)(reader *, const json_t *)) {
    const json_t *list = json_object_get(o, key), *j;
    size_t i;
    DG_CHECK(json_is_array(list), DG_ERR_FORMAT, "%s: a Sequence without its array \"%s\"", r->file, key);
    json_array_foreach(list, i, j) DG_TRY(part(r, j));
    return DG_OK;
}

/* ---- normalizer ------------------------------------------------------------------------------- */

static dg_status read_normalizer(reader *r, const json_t *o) {
    if (!o || json_is_null(o)) return DG_OK;
    const char *type = type_of(o);
    if (strcmp(type, "Sequence") == 0) return each(r, o, "normalizers", read_normalizer);
    if (strcmp(type, "NFC") == 0)
        return dg_tokenizer_add_normal(r->t, r->file, (dg_normal){.kind = DG_NORMAL_NFC});
    if (strcmp(type, "Prepend") == 0) {
        const char *text = string_at(o, "prepend");
        DG_CHECK(text, DG_ERR_FORMAT, "%s: normalizer Prepend: expected a string \"prepend\"", r->file);
        return dg_tokenizer_add_normal(r->t, r->file, (dg_normal){.kind = DG_NORMAL_PREPEND, .to = text});
    }
    if (strcmp(type, "Replace") == 0) {
        const char *from = string_at(json_object_get(o, "pattern"), "String"), *to = string_at(o, "content");
        DG_CHECK(from, DG_ERR_UNSUPPORTED,
                 "%s: normalizer Replace: only patterns that are a \"String\" are known", r->file);
        DG_CHECK(to, DG_ERR_FORMAT, "%s: normalizer Replace: expected a string \"content\"", r->file);
        const dg_normal step = {.kind = DG_NORMAL_REPLACE, .from = from, .to = to};
        return dg_tokenizer_add_normal(r->t, r->file, step);
    }
    DG_FAIL(DG_ERR_UNSUPPORTED, "%s: normalizer \"%s\"; known: NFC, Prepend, Replace, Sequence", r->file,
            type);
}

/* ---- pre_tokenizer ---------------------------------------------------------------------------- */

static dg_status read_behavior(reader *r, const json_t *o, dg_behavior *out) {
    static const char *const names[] = {"Isolated", "Removed", "Contiguous", "MergedWithPrevious",
                                        "MergedWithNext"};
    const char *name = string_at(o, "behavior");
    for (int i = 0; name && i < (int)(sizeof names / sizeof *names); i++) {
        if (strcmp(name, names[i]) != 0) continue;
        *out = (dg_behavior)i;
        return DG_OK;
    }
    DG_FAIL(DG_ERR_FORMAT, "%s: pre_tokenizer Split: behavior \"%s\"", r->file, name ? name : "");
}

static dg_status read_split(reader *r, const json_t *o) {
    const json_t *pattern = json_object_get(o, "pattern");
    const char *regex = string_at(pattern, "Regex"), *literal = string_at(pattern, "String");
    dg_split step = {.kind = regex ? DG_SPLIT_PATTERN : DG_SPLIT_LITERAL,
                     .invert = bool_at(o, "invert", false),
                     .text = literal};
    DG_CHECK(regex || literal, DG_ERR_FORMAT,
             "%s: pre_tokenizer Split: expected a pattern \"Regex\" or \"String\"", r->file);
    DG_TRY(read_behavior(r, o, &step.behavior));
    return dg_tokenizer_add_split(r->t, r->file, step, regex);
}

static dg_status read_byte_level(reader *r, const json_t *o) {
    r->t->byte_level = true;
    if (bool_at(o, "add_prefix_space", true))
        DG_TRY(dg_tokenizer_add_split(r->t, r->file, (dg_split){.kind = DG_SPLIT_PREFIX, .text = " "}, NULL));
    if (bool_at(o, "use_regex", true))
        DG_TRY(dg_tokenizer_add_split(r->t, r->file, (dg_split){.kind = DG_SPLIT_PATTERN}, DG_PATTERN_GPT2));
    return DG_OK;
}

static dg_status read_metaspace(reader *r, const json_t *o) {
    const char *mark = string_at(o, "replacement"), *scheme = string_at(o, "prepend_scheme");
    if (!scheme) scheme = bool_at(o, "add_prefix_space", true) ? "always" : "never";
    DG_CHECK(mark && *mark, DG_ERR_FORMAT, "%s: pre_tokenizer Metaspace: expected a string \"replacement\"",
             r->file);
    DG_TRY(dg_tokenizer_add_split(r->t, r->file, (dg_split){.kind = DG_SPLIT_ESCAPE, .text = mark}, NULL));
    if (strcmp(scheme, "never") != 0) {
        const dg_split step = {
            .kind = DG_SPLIT_PREFIX, .first_only = strcmp(scheme, "first") == 0, .text = mark};
        DG_TRY(dg_tokenizer_add_split(r->t, r->file, step, NULL));
    }
    if (!bool_at(o, "split", true)) return DG_OK;
    const dg_split step = {.kind = DG_SPLIT_LITERAL, .behavior = DG_SPLIT_WITH_NEXT, .text = mark};
    return dg_tokenizer_add_split(r->t, r->file, step, NULL);
}

static dg_status read_pre_tokenizer(reader *r, const json_t *o) {
    if (!o || json_is_null(o)) return DG_OK;
    const char *type = type_of(o);
    /* ByteLevel spells the text in its alphabet, and what comes after it would cut that */
    DG_CHECK(!r->t->byte_level, DG_ERR_UNSUPPORTED, "%s: pre_tokenizer \"%s\" after ByteLevel", r->file,
             type);
    if (strcmp(type, "Sequence") == 0) return each(r, o, "pretokenizers", read_pre_tokenizer);
    if (strcmp(type, "Split") == 0) return read_split(r, o);
    if (strcmp(type, "ByteLevel") == 0) return read_byte_level(r, o);
    if (strcmp(type, "Metaspace") == 0) return read_metaspace(r, o);
    if (strcmp(type, "Digits") == 0) {
        const bool each_one = bool_at(o, "individual_digits", false);
        const dg_split step = {.kind = DG_SPLIT_PATTERN,
                               .behavior = each_one ? DG_SPLIT_ISOLATED : DG_SPLIT_CONTIGUOUS};
        return dg_tokenizer_add_split(r->t, r->file, step, "\\p{N}");
    }
    DG_FAIL(DG_ERR_UNSUPPORTED,
            "%s: pre_tokenizer \"%s\"; known: ByteLevel, Digits, Metaspace, Sequence, Split", r->file, type);
}

/* ---- decoder ---------------------------------------------------------------------------------- */

static dg_status read_decoder(reader *r, const json_t *o) {
    if (!o || json_is_null(o)) return DG_OK;
    const char *type = type_of(o);
    if (strcmp(type, "Sequence") == 0) return each(r, o, "decoders", read_decoder);
    if (strcmp(type, "ByteFallback") == 0) {
        r->decode_bytes = true;
    } else if (strcmp(type, "Metaspace") == 0) {
        const char *scheme = string_at(o, "prepend_scheme");
        r->from = string_at(o, "replacement");
        r->to = " ";
        r->t->strip_first = scheme ? strcmp(scheme, "never") != 0 : bool_at(o, "add_prefix_space", true);
    } else if (strcmp(type, "Replace") == 0) {
        r->from = string_at(json_object_get(o, "pattern"), "String");
        r->to = string_at(o, "content");
        DG_CHECK(r->from && *r->from && r->to, DG_ERR_UNSUPPORTED,
                 "%s: decoder Replace of another kind than strings", r->file);
    } else if (strcmp(type, "Strip") == 0) {
        const char *what = string_at(o, "content");
        const json_int_t start = json_integer_value(json_object_get(o, "start"));
        const json_int_t stop = json_integer_value(json_object_get(o, "stop"));
        DG_CHECK(what && strcmp(what, " ") == 0 && stop == 0 && (start == 0 || start == 1),
                 DG_ERR_UNSUPPORTED, "%s: decoder Strip of anything but one leading space", r->file);
        r->t->strip_first = start == 1;
    } else {
        DG_CHECK(
            strcmp(type, "ByteLevel") == 0 || strcmp(type, "Fuse") == 0, DG_ERR_UNSUPPORTED,
            "%s: decoder \"%s\"; known: ByteFallback, ByteLevel, Fuse, Metaspace, Replace, Sequence, Strip",
            r->file, type);
    }
    return DG_OK;
}

/* ---- model ------------------------------------------------------------------------------------ */

static dg_status check_model(reader *r, const json_t *model) {
    const char *type = json_object_get(model, "type") ? type_of(model) : "BPE";
    DG_CHECK(json_is_object(model), DG_ERR_FORMAT, "%s: expected an object \"model\"", r->file);
    DG_CHECK(strcmp(type, "BPE") == 0, DG_ERR_UNSUPPORTED, "%s: model \"%s\"; known: BPE", r->file, type);
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (int i = 0; i < 2; i++) {
        const char *affix = string_at(model, affixes[i]);
        DG_CHECK(!affix || !*affix, DG_ERR_UNSUPPORTED, "%s: model.%s \"%s\"", r->file, affixes[i], affix);
    }
    DG_CHECK(json_number_value(json_object_get(model, "dropout")) == 0, DG_ERR_UNSUPPORTED,
             "%s: model.dropout", r->file);
    r->t->whole_first = bool_at(model, "ignore_merges", false);
    r->t->fuse_unknown = bool_at(model, "fuse_unk", false);
    r->byte_fallback = bool_at(model, "byte_fallback", false);
    return DG_OK;
}

/* Makes room for an id; how far beyond the limit it is does not matter. */
static void count_id(const json_t *id, int64_t *n) {
    const int64_t v = json_integer_value(id);
    if (v >= *n) *n = v < DG_MAX_VOCAB ? v + 1 : DG_MAX_VOCAB + 1;
}

/* One more than the highest id of vocabulary and added tokens. */
static dg_status count_ids(reader *r, json_t *vocab, const json_t *added, int64_t *n) {
    const char *key;
    json_t *j;
    size_t i;
    *n = 0;
    json_object_foreach(vocab, key, j) {
        DG_CHECK(json_is_integer(j), DG_ERR_FORMAT, "%s: model.vocab[\"%s\"]: expected an integer", r->file,
                 key);
        count_id(j, n);
    }
    json_array_foreach(added, i, j) {
        const json_t *id = json_object_get(j, "id");
        DG_CHECK(json_is_integer(id) && string_at(j, "content"), DG_ERR_FORMAT,
                 "%s: added_tokens[%zu]: expected an integer \"id\" and a string \"content\"", r->file, i);
        count_id(id, n);
    }
    return DG_OK;
}

/* What a token prints: its byte, or its text with the decoder's replacement made. */
static dg_status set_printed(reader *r, int32_t id, dg_str s) {
    const int byte = dg_piece_byte(s);
    if (r->decode_bytes && byte >= 0) return dg_vocab_set_text(&r->t->vocab, id, &(char){(char)byte}, 1);
    if (!r->from) return dg_vocab_set_text(&r->t->vocab, id, s.ptr, s.len);
    return dg_tokenizer_set_printed(r->t, id, s, r->from, r->to);
}

static dg_status read_vocab(reader *r, json_t *vocab, dg_buffer *scratch) {
    dg_vocab *v = &r->t->vocab;
    const char *key;
    json_t *j;
    json_object_foreach(vocab, key, j) {
        const json_int_t id = json_integer_value(j);
        const size_t len = strlen(key);
        scratch->n = 0;
        DG_TRY(dg_buffer_reserve(scratch, len + 1));
        if (r->t->byte_level) {
            /* what is not spelled in the alphabet cannot come out of merges */
            const int64_t n = dg_alphabet_decode(key, len, scratch->p);
            const char *s = n < 0 ? key : scratch->p;
            DG_TRY(dg_vocab_set(v, r->file, id, s, n < 0 ? len : (size_t)n, n < 0 ? 0 : DG_TOKEN_MODEL));
            continue;
        }
        const int byte = r->byte_fallback ? dg_piece_byte((dg_str){key, len}) : -1;
        DG_TRY(dg_vocab_set(v, r->file, id, key, len, byte < 0 ? DG_TOKEN_MODEL : DG_TOKEN_BYTE));
        DG_TRY(set_printed(r, (int32_t)id, (dg_str){key, len}));
        if (byte >= 0) v->byte_id[byte] = (int32_t)id;
    }
    return dg_vocab_index(v);
}

/* Appends one half of a merge to s; *id is its token. */
static dg_status merge_half(reader *r, size_t i, const char *half, size_t len, dg_buffer *s, int32_t *id) {
    DG_TRY(dg_buffer_reserve(s, len + 1));
    int64_t n = (int64_t)len;
    if (r->t->byte_level)
        n = dg_alphabet_decode(half, len, s->p + s->n);
    else
        memcpy(s->p + s->n, half, len);
    *id = n < 0 ? -1 : dg_vocab_find(&r->t->vocab, s->p + s->n, (size_t)n);
    DG_CHECK(*id >= 0, DG_ERR_FORMAT, "%s: model.merges[%zu]: \"%.*s\" is not in the vocabulary", r->file, i,
             (int)(len < 100 ? len : 100), half);
    s->n += (size_t)n;
    return DG_OK;
}

static dg_status read_merges(reader *r, const json_t *merges, dg_buffer *scratch) {
    dg_vocab *v = &r->t->vocab;
    const json_t *j;
    size_t i;
    DG_TRY(dg_vocab_reserve_merges(v, json_array_size(merges)));
    json_array_foreach(merges, i, j) {
        const char *a = json_string_value(json_array_get(j, 0)), *b = json_string_value(json_array_get(j, 1));
        size_t a_len = a ? strlen(a) : 0;
        if (json_is_string(j)) { /* the older spelling: "a b" */
            a = json_string_value(j);
            b = strchr(a, ' ');
            a_len = b ? (size_t)(b - a) : 0;
            if (b) b = strchr(b + 1, ' ') ? NULL : b + 1;
        }
        DG_CHECK(a && b && json_array_size(j) <= 2, DG_ERR_FORMAT,
                 "%s: model.merges[%zu]: expected two tokens (\"a b\" or [\"a\", \"b\"])", r->file, i);
        int32_t left, right;
        scratch->n = 0;
        DG_TRY(merge_half(r, i, a, a_len, scratch, &left));
        DG_TRY(merge_half(r, i, b, strlen(b), scratch, &right));
        const int32_t out = dg_vocab_find(v, scratch->p, scratch->n);
        DG_CHECK(out >= 0, DG_ERR_FORMAT, "%s: model.merges[%zu]: its result is not in the vocabulary",
                 r->file, i);
        dg_vocab_add_merge(v, left, right, out);
    }
    return DG_OK;
}

static dg_status read_added(reader *r, const json_t *vocab, const json_t *added) {
    dg_vocab *v = &r->t->vocab;
    const json_t *j;
    size_t i;
    json_array_foreach(added, i, j) {
        const char *content = string_at(j, "content");
        const json_t *known = json_object_get(vocab, content); /* the vocabulary's number counts */
        const json_int_t id = json_integer_value(known ? known : json_object_get(j, "id"));
        const size_t len = strlen(content);
        if (len == 0) continue;
        const bool special = bool_at(j, "special", false);
        if (!known) DG_TRY(dg_vocab_set(v, r->file, id, content, len, 0));
        if (!known && !special) DG_TRY(set_printed(r, (int32_t)id, (dg_str){content, len}));
        if (special) v->kind[id] |= DG_TOKEN_SPECIAL;
        const int flags = (bool_at(j, "lstrip", false) ? DG_ADDED_LSTRIP : 0) |
                          (bool_at(j, "rstrip", false) ? DG_ADDED_RSTRIP : 0) |
                          (bool_at(j, "single_word", false) ? DG_ADDED_WORD : 0);
        DG_TRY(dg_tokenizer_add_token(r->t, (int32_t)id, content, len, bool_at(j, "normalized", !special),
                                      flags));
    }
    return DG_OK;
}

/* ---- post_processor --------------------------------------------------------------------------- */

static dg_status affix_add(reader *r, dg_affix *a, const json_t *special) {
    const json_t *ids = json_object_get(special, "ids"), *j;
    size_t i;
    DG_CHECK(json_is_array(ids), DG_ERR_FORMAT,
             "%s: post_processor TemplateProcessing: a special token without ids", r->file);
    json_array_foreach(ids, i, j) {
        const json_int_t id = json_integer_value(j);
        DG_CHECK(a->n < DG_MAX_AFFIX, DG_ERR_UNSUPPORTED, "%s: post_processor: more than %d tokens", r->file,
                 DG_MAX_AFFIX);
        DG_CHECK(json_is_integer(j) && id >= 0 && id < r->t->vocab.n, DG_ERR_FORMAT,
                 "%s: post_processor: token id: expected 0 to %d, found %lld", r->file, r->t->vocab.n - 1,
                 (long long)id);
        a->id[a->n++] = (int32_t)id;
    }
    return DG_OK;
}

static dg_status read_template(reader *r, const json_t *o) {
    const json_t *j;
    size_t i;
    dg_affix *to = &r->t->before;
    json_array_foreach(json_object_get(o, "single"), i, j) {
        if (json_object_get(j, "Sequence")) {
            to = &r->t->after;
            continue;
        }
        const char *name = string_at(json_object_get(j, "SpecialToken"), "id");
        DG_CHECK(name, DG_ERR_FORMAT, "%s: post_processor.single[%zu]: expected SpecialToken or Sequence",
                 r->file, i);
        DG_TRY(affix_add(r, to, json_object_get(json_object_get(o, "special_tokens"), name)));
    }
    return DG_OK;
}

static dg_status read_post_processor(reader *r, const json_t *o) {
    if (!o || json_is_null(o)) return DG_OK;
    const char *type = type_of(o);
    if (strcmp(type, "Sequence") == 0) return each(r, o, "processors", read_post_processor);
    if (strcmp(type, "ByteLevel") == 0) return DG_OK; /* offsets only */
    DG_CHECK(strcmp(type, "TemplateProcessing") == 0, DG_ERR_UNSUPPORTED,
             "%s: post_processor \"%s\"; known: ByteLevel, Sequence, TemplateProcessing", r->file, type);
    return read_template(r, o);
}

/* ---- the file --------------------------------------------------------------------------------- */

static dg_status read_tokenizer(reader *r, const json_t *root) {
    dg_tokenizer *t = r->t;
    const json_t *model = json_object_get(root, "model"), *added = json_object_get(root, "added_tokens");
    json_t *vocab = json_object_get(model, "vocab");
    DG_TRY(check_model(r, model));
    DG_CHECK(json_is_object(vocab), DG_ERR_FORMAT, "%s: expected an object model.vocab", r->file);
    DG_CHECK(json_is_array(json_object_get(model, "merges")), DG_ERR_FORMAT,
             "%s: expected an array model.merges", r->file);
    DG_TRY(read_normalizer(r, json_object_get(root, "normalizer")));
    DG_TRY(read_pre_tokenizer(r, json_object_get(root, "pre_tokenizer")));
    DG_TRY(read_decoder(r, json_object_get(root, "decoder")));

    int64_t n;
    DG_TRY(count_ids(r, vocab, added, &n));
    DG_TRY(dg_vocab_create(&t->vocab, r->file, n));
    dg_buffer scratch = {0};
    dg_status st = read_vocab(r, vocab, &scratch);
    if (st == DG_OK) st = read_merges(r, json_object_get(model, "merges"), &scratch);
    dg_mem_free(scratch.p);
    DG_TRY(st);
    DG_TRY(read_added(r, vocab, added));
    DG_TRY(read_post_processor(r, json_object_get(root, "post_processor")));
    const char *unknown = string_at(model, "unk_token");
    if (unknown) t->unknown = dg_tokenizer_find(t, unknown, strlen(unknown));
    return DG_OK;
}

dg_status dg_tokenizer_read_json(dg_tokenizer *t, const char *path, dg_str file) {
    json_t *root = NULL;
    DG_TRY(dg_json_parse(path, file.ptr, file.len, &root));
    reader r = {.t = t, .file = path};
    dg_status st = json_is_object(root) ? read_tokenizer(&r, root)
                                        : dg_fail(DG_ERR_FORMAT, "%s: expected an object", path);
    if (st == DG_OK)
        st = dg_tokenizer_finish(
            t, path, t->byte_level ? "byte-level BPE, tokenizer.json" : "SentencePiece BPE, tokenizer.json");
    json_decref(root);
    return st;
}

/* ---- what lies beside it ---------------------------------------------------------------------- */

static dg_status read_json(const char *path, size_t max, json_t **out) {
    char *text;
    size_t len;
    DG_TRY(dg_file_slurp(path, max, &text, &len));
    const dg_status st = dg_json_parse(path, text, len, out);
    dg_mem_free(text);
    return st;
}

/* A token of a configuration: its text, or an object with it. */
static int32_t named_token(const dg_tokenizer *t, const json_t *config, const char *key) {
    const json_t *j = json_object_get(config, key);
    const char *s = json_is_object(j) ? string_at(j, "content") : json_string_value(j);
    return s ? dg_tokenizer_find(t, s, strlen(s)) : -1;
}

/* The chat template is a string, or a list of named ones among which "default" is meant for chatting. */
static const char *template_of(const json_t *config) {
    const json_t *c = json_object_get(config, "chat_template"), *j;
    const char *found = json_string_value(c);
    size_t i;
    json_array_foreach(c, i, j) {
        const char *name = string_at(j, "name");
        if (!found || (name && strcmp(name, "default") == 0)) found = string_at(j, "template");
    }
    return found;
}

/* transformers rebuilds the post-processor of Llama-like tokenizers from add_bos_token, and adds a BOS for
 * others that ask for it. */
static void apply_add_bos(dg_tokenizer *t, const json_t *config) {
    const json_t *add = json_object_get(config, "add_bos_token");
    const char *class = string_at(config, "tokenizer_class");
    if (!json_is_boolean(add) || t->bos < 0) return;
    if (json_is_true(add) && t->before.n == 0) t->before = (dg_affix){{t->bos}, 1};
    const bool llama = t->vocab.score || (class && strstr(class, "Llama"));
    if (json_is_false(add) && dg_tokenizer_adds_bos(t) && llama) t->before.n = 0;
}

static dg_status read_config(dg_tokenizer *t, const json_t *config, const json_t *map) {
    static const char *const keys[] = {"bos_token", "eos_token"};
    for (int i = 0; i < 2; i++) {
        int32_t id = named_token(t, config, keys[i]);
        if (id < 0) id = named_token(t, map, keys[i]);
        if (id >= 0) *(i == 0 ? &t->bos : &t->eos) = id;
    }
    if (t->bos < 0 && t->before.n > 0) t->bos = t->before.id[0];
    apply_add_bos(t, config);
    const char *template = template_of(config);
    if (!template) return DG_OK;
    t->chat_template = dg_mem_strdup(template);
    DG_CHECK(t->chat_template, DG_ERR_MEMORY, "no memory for the chat template");
    return DG_OK;
}

/* dir/name as a path in buf; false when there is no such file. */
static bool beside(const char *dir, const char *name, char *buf, size_t cap) {
    return snprintf(buf, cap, "%s/%s", dir, name) < (int)cap && access(buf, R_OK) == 0;
}

static dg_status open_model(dg_tokenizer *t, const char *dir, const json_t *config) {
    char path[4096], *text;
    size_t len;
    const bool pieces = !beside(dir, "tokenizer.json", path, sizeof path) &&
                        beside(dir, "tokenizer.model", path, sizeof path);
    if (!pieces) snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    DG_TRY(dg_file_slurp(path, FILE_BYTES, &text, &len));
    const dg_str file = {text, len};
    const bool first_only = !bool_at(config, "legacy", true);
    const dg_status st = pieces ? dg_tokenizer_read_sentencepiece(t, path, file, first_only)
                                : dg_tokenizer_read_json(t, path, file);
    dg_mem_free(text);
    return st;
}

dg_status dg_tokenizer_open_json(const char *dir, dg_tokenizer **out) {
    char path[4096];
    json_t *config = NULL, *map = NULL;
    dg_tokenizer *t = dg_tokenizer_create();
    dg_status st = t ? DG_OK : dg_fail(DG_ERR_MEMORY, "%s: no memory", dir);
    if (st == DG_OK && beside(dir, "tokenizer_config.json", path, sizeof path))
        st = read_json(path, CONFIG_BYTES, &config);
    if (st == DG_OK && beside(dir, "special_tokens_map.json", path, sizeof path))
        st = read_json(path, CONFIG_BYTES, &map);
    if (st == DG_OK) st = open_model(t, dir, config);
    if (st == DG_OK) st = read_config(t, config, map);
    if (st == DG_OK && beside(dir, "chat_template.jinja", path, sizeof path)) {
        dg_mem_free(t->chat_template);
        t->chat_template = NULL;
        st = dg_file_slurp(path, CONFIG_BYTES, &t->chat_template, NULL);
    }
    json_decref(config), json_decref(map);
    if (st == DG_OK)
        *out = t;
    else
        dg_tokenizer_close(t);
    return st;
}
