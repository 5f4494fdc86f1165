/* Damaged and unknown tokenizers: the right code, a message that names the part, no leak; and the n-th
 * allocation failing while one is opened or used. */
#include "tests/test.h"

#include <math.h>

#include "runtime/tokenizer.h"

#include "tests/files.h"
#include "tests/tokens.h"

static char dir[64];

/* ---- tokenizer.json --------------------------------------------------------------------------- */

/* Replaces one part of a sound tokenizer; `key` with a dot is inside "model". */
static void check_part(const char *key, const char *json, dg_status code, const char *part) {
    json_t *root = tokens_bytes();
    tokens_merge(root, "a", "b");
    const bool in_model = strncmp(key, "model.", 6) == 0;
    tokens_set(in_model ? json_object_get(root, "model") : root, key + (in_model ? 6 : 0), json);
    dg_tokenizer *t = NULL;
    const int64_t live = dg_mem_live();
    check_fails(tokens_try(dir, root, &t), code, part);
    assert_null(t);
    assert_int_equal(dg_mem_live(), live);
}

static void test_json_parts(void **state) {
    (void)state;
    static const struct {
        const char *key, *json;
        dg_status code;
        const char *part;
    } cases[] = {
        {"model", "[]", DG_ERR_FORMAT, "\"model\""},
        {"model", "{\"type\":\"Unigram\",\"vocab\":[]}", DG_ERR_UNSUPPORTED, "\"Unigram\"; known: BPE"},
        {"model.vocab", "[]", DG_ERR_FORMAT, "model.vocab"},
        {"model.vocab", "{}", DG_ERR_FORMAT, "vocabulary size"},
        {"model.vocab", "{\"a\":\"0\"}", DG_ERR_FORMAT, "model.vocab[\"a\"]"},
        {"model.vocab", "{\"a\":-1,\"b\":1}", DG_ERR_FORMAT, "token id: expected 0 to 1, found -1"},
        {"model.vocab", "{\"a\":4194304}", DG_ERR_FORMAT,
         "vocabulary size: expected 1 to 4194304, found 4194305"},
        {"model.vocab", "{\"a\":9223372036854775806}", DG_ERR_FORMAT, "vocabulary size"},
        {"model.vocab", "{\"a\":9223372036854775807}", DG_ERR_FORMAT, "vocabulary size"},
        {"model.vocab", "{\"a\":1,\"b\":1}", DG_ERR_FORMAT, "token id 1 is given twice"},
        {"model.merges", "{}", DG_ERR_FORMAT, "model.merges"},
        {"model.merges", "[3]", DG_ERR_FORMAT, "model.merges[0]"},
        {"model.merges", "[\"a b\",\"ab\"]", DG_ERR_FORMAT, "model.merges[1]"},
        {"model.merges", "[\"a b c\"]", DG_ERR_FORMAT, "model.merges[0]"},
        {"model.merges", "[[\"a\",\"b\",\"c\"]]", DG_ERR_FORMAT, "model.merges[0]"},
        {"model.merges", "[[\"a\",3]]", DG_ERR_FORMAT, "model.merges[0]"},
        {"model.merges", "[[\"\",\"a\"]]", DG_ERR_FORMAT, "\"\" is not in the vocabulary"},
        {"model.merges", "[\" a\"]", DG_ERR_FORMAT, "model.merges[0]"},
        {"model.merges", "[[\"ab\",\"ab\"]]", DG_ERR_FORMAT, "its result is not in the vocabulary"},
        {"model.merges", "[[\"xyz\",\"a\"]]", DG_ERR_FORMAT, "\"xyz\" is not in the vocabulary"},
        {"model.dropout", "0.5", DG_ERR_UNSUPPORTED, "dropout"},
        {"model.end_of_word_suffix", "\"</w>\"", DG_ERR_UNSUPPORTED, "end_of_word_suffix \"</w>\""},
        {"normalizer", "{\"type\":\"Lowercase\"}", DG_ERR_UNSUPPORTED, "\"Lowercase\"; known: NFC"},
        {"normalizer", "{\"type\":\"Sequence\"}", DG_ERR_FORMAT, "normalizers"},
        {"normalizer", "{\"type\":\"Prepend\"}", DG_ERR_FORMAT, "prepend"},
        {"normalizer", "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"a\"},\"content\":\"b\"}",
         DG_ERR_UNSUPPORTED, "Replace"},
        {"normalizer", "{\"type\":\"Replace\",\"pattern\":{\"String\":\"\"},\"content\":\"b\"}",
         DG_ERR_FORMAT, "replacement of nothing"},
        {"pre_tokenizer", "{\"type\":\"Whitespace\"}", DG_ERR_UNSUPPORTED,
         "\"Whitespace\"; known: ByteLevel"},
        {"pre_tokenizer", "[]", DG_ERR_UNSUPPORTED, "pre_tokenizer \"\""},
        {"pre_tokenizer", "{\"type\":\"Split\",\"behavior\":\"Isolated\"}", DG_ERR_FORMAT, "pattern"},
        {"pre_tokenizer", "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"Join\"}",
         DG_ERR_FORMAT, "behavior \"Join\""},
        {"pre_tokenizer", "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a(\"},\"behavior\":\"Removed\"}",
         DG_ERR_FORMAT, "pattern \"a(\""},
        {"pre_tokenizer", "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a&&b]\"},\"behavior\":\"Removed\"}",
         DG_ERR_UNSUPPORTED, "intersection"},
        {"pre_tokenizer", "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a[b]]\"},\"behavior\":\"Removed\"}",
         DG_ERR_UNSUPPORTED, "class inside another"},
        {"pre_tokenizer", "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a{2,3}+\"},\"behavior\":\"Removed\"}",
         DG_ERR_UNSUPPORTED, "repeated interval"},
        {"pre_tokenizer", "{\"type\":\"Split\",\"pattern\":{\"String\":\"\"},\"behavior\":\"Removed\"}",
         DG_ERR_FORMAT, "looks for nothing"},
        {"pre_tokenizer",
         "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\"},{\"type\":\"Digits\"}]}",
         DG_ERR_UNSUPPORTED, "after ByteLevel"},
        {"pre_tokenizer", "{\"type\":\"Metaspace\",\"replacement\":\"\"}", DG_ERR_FORMAT, "replacement"},
        {"decoder", "{\"type\":\"CTC\"}", DG_ERR_UNSUPPORTED, "decoder \"CTC\""},
        {"decoder", "{\"type\":\"Strip\",\"content\":\" \",\"start\":0,\"stop\":1}", DG_ERR_UNSUPPORTED,
         "Strip"},
        {"post_processor", "{\"type\":\"BertProcessing\"}", DG_ERR_UNSUPPORTED, "BertProcessing"},
        {"post_processor",
         "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"x\"}}],\"special_tokens\":"
         "{}}",
         DG_ERR_FORMAT, "without ids"},
        {"post_processor",
         "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"x\"}}],\"special_tokens\":"
         "{\"x\":{\"ids\":[999]}}}",
         DG_ERR_FORMAT, "expected 0 to 256, found 999"},
        {"post_processor",
         "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"x\"}}],\"special_tokens\":"
         "{\"x\":{\"ids\":[1,1,1,1,1,1,1,1,1]}}}",
         DG_ERR_UNSUPPORTED, "more than 8 tokens"},
        {"added_tokens", "[{\"content\":\"x\"}]", DG_ERR_FORMAT, "added_tokens[0]"},
        {"added_tokens", "[{\"content\":\"<x>\",\"id\":-3}]", DG_ERR_FORMAT, "found -3"},
        {"added_tokens", "[{\"content\":\"x\",\"id\":99999999}]", DG_ERR_FORMAT, "vocabulary size"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_part(cases[i].key, cases[i].json, cases[i].code, cases[i].part);
}

static void test_json_sizes(void **state) {
    (void)state;
    const char step[] = "{\"type\":\"NFC\"}";
    char json[1024] = "{\"type\":\"Sequence\",\"normalizers\":[";
    for (int i = 0; i < 17; i++) strcat(json, i ? "," : ""), strcat(json, step);
    strcat(json, "]}");
    check_part("normalizer", json, DG_ERR_UNSUPPORTED, "more than 16 normaliser steps");

    char *big = malloc(70000 + 64);
    const int n = sprintf(big, "{\"");
    memset(big + n, 'a', 70000);
    strcpy(big + n + 70000, "\":0}");
    check_part("model.vocab", big, DG_ERR_FORMAT, "a token of 70000 bytes");
    free(big);
}

static void test_json_files(void **state) {
    (void)state;
    dg_tokenizer *t = NULL;
    check_fails(dg_tokenizer_open_json("/nonexistent", &t), DG_ERR_IO, "/nonexistent/tokenizer.json");
    save_text(dir, "tokenizer.json", "{\"model\":");
    check_fails(dg_tokenizer_open_json(dir, &t), DG_ERR_FORMAT, "tokenizer.json");
    save_text(dir, "tokenizer.json", "[1]");
    check_fails(dg_tokenizer_open_json(dir, &t), DG_ERR_FORMAT, "expected an object");
    char path[128];
    snprintf(path, sizeof path, "%s/tokenizer_config.json", dir);
    save_text(dir, "tokenizer_config.json", "{,}");
    check_fails(tokens_try(dir, tokens_bytes(), &t), DG_ERR_FORMAT, "tokenizer_config.json");
    /* wrong types there are no reason to refuse a model */
    save_text(dir, "tokenizer_config.json",
              "{\"bos_token\":7,\"chat_template\":[3,{}],\"add_bos_token\":\"yes\"}");
    t = tokens_open(dir, tokens_bytes());
    assert_int_equal(dg_tokenizer_bos(t), -1);
    assert_null(dg_tokenizer_chat_template(t));
    dg_tokenizer_close(t);
    remove(path);

    json_t *root = tokens_bytes(); /* nothing but an empty token is odd, and no reason either */
    tokens_set(json_object_get(root, "model"), "vocab", "{\"\":0}");
    t = tokens_open(dir, root);
    check_ids(t, "a", 0, -1);
    assert_int_equal(dg_tokenizer_bytes(t, 0).len, 0);
    dg_tokenizer_close(t);
}

/* A text on which a pattern of the file backtracks without end is an error, not a hang. */
static void test_runaway_pattern(void **state) {
    (void)state;
    json_t *root = tokens_bytes();
    tokens_set(root, "pre_tokenizer",
               "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(a|a?)"
               "+$(?<!a)\"},"
               "\"behavior\":\"Isolated\"},{\"type\":\"ByteLevel\",\"use_regex\":false}]}");
    dg_tokenizer *t = tokens_open(dir, root);
    size_t n = 7;
    check_fails(dg_tokenizer_encode(t, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", 40, 0, NULL, 0, &n),
                DG_ERR_FORMAT, "gives up");
    assert_int_equal(n, 7);
    dg_tokenizer_close(t);
}

/* ---- GGUF ------------------------------------------------------------------------------------- */

/* What to put into the file instead of the sound value: NULL leaves a key out. */
typedef struct gguf {
    const char *model, *pre, *tokens[6], *merge;
    int n_type, n_score;
    uint32_t type[6], bos;
    float score[6];
    bool no_prefix; /* add_space_prefix is there and false */
} gguf;

static const gguf sound_gpt2 = {
    .model = "gpt2",
    .pre = "gpt-2",
    .tokens = {"a", "b", "ab", "<s>"},
    .merge = "a b",
    .n_type = 4,
    .type = {1, 1, 1, 3},
    .bos = 3,
};
static const gguf sound_llama = {
    .model = "llama",
    .tokens = {"<unk>", "<s>", "</s>", "<0x41>", "\u2581"},
    .n_type = 5,
    .type = {2, 3, 3, 6, 1},
    .n_score = 5,
    .score = {0, 0, 0, 0, -1},
    .bos = 1,
};

static dg_status open_gguf(const gguf *g, dg_tokenizer **t) {
    static bytes b;
    b.n = 0;
    uint64_t n = 0;
    while (n < 6 && g->tokens[n]) n++;
    put_gguf(&b, 3, 0,
             1u + !!g->model + !!g->pre + !!g->merge + !!g->n_type + !!g->n_score + !!n + g->no_prefix);
    put_key_u32(&b, "tokenizer.ggml.bos_token_id", g->bos);
    if (g->no_prefix) put_key(&b, "tokenizer.ggml.add_space_prefix", GGUF_BOOL), put_int(&b, 0, 1);
    if (g->model) put_key_str(&b, "tokenizer.ggml.model", g->model);
    if (g->pre) put_key_str(&b, "tokenizer.ggml.pre", g->pre);
    if (g->merge) put_array(&b, "tokenizer.ggml.merges", GGUF_STRING, 1), put_str(&b, g->merge);
    if (g->n_type) put_array(&b, "tokenizer.ggml.token_type", GGUF_I32, (uint64_t)g->n_type);
    for (int i = 0; i < g->n_type; i++) put_int(&b, g->type[i], 4);
    if (g->n_score) put_array(&b, "tokenizer.ggml.scores", GGUF_F32, (uint64_t)g->n_score);
    for (int i = 0; i < g->n_score; i++) put_f32(&b, g->score[i]);
    if (n) put_array(&b, "tokenizer.ggml.tokens", GGUF_STRING, n);
    for (uint64_t i = 0; i < n; i++) put_str(&b, g->tokens[i]);
    put_align(&b, 32);
    dg_file *f = NULL;
    DG_TRY(dg_file_open(save(dir, "v.gguf", b.p, b.n), &f));
    const dg_status st = dg_tokenizer_open_gguf(f, t);
    dg_file_close(f);
    return st;
}

static void check_gguf(const gguf *g, dg_status code, const char *part) {
    dg_tokenizer *t = NULL;
    const int64_t live = dg_mem_live();
    check_fails(open_gguf(g, &t), code, part);
    assert_null(t);
    assert_int_equal(dg_mem_live(), live);
}

static void test_gguf(void **state) {
    (void)state;
    dg_tokenizer *t = NULL;
    gguf g = sound_gpt2;
    check_ok(open_gguf(&g, &t));
    check_ids(t, "ab<s>", DG_ENCODE_SPECIAL, 2, 3);
    assert_false(dg_tokenizer_adds_bos(t));
    dg_tokenizer_close(t);
    g.merge = "x y"; /* of tokens that are not there: can never apply */
    check_ok(open_gguf(&g, &t));
    check_ids(t, "ab", 0, 0, 1);
    dg_tokenizer_close(t);

#define BAD(change, code, part) g = sound_gpt2, g.change, check_gguf(&g, code, part)
    BAD(model = NULL, DG_ERR_FORMAT, "tokenizer.ggml.model is missing");
    BAD(model = "bert", DG_ERR_UNSUPPORTED, "\"bert\"; known: gpt2, llama");
    BAD(pre = "klingon", DG_ERR_UNSUPPORTED, "tokenizer.ggml.pre \"klingon\"; known: default, gpt-2");
    BAD(merge = NULL, DG_ERR_FORMAT, "tokenizer.ggml.merges is missing");
    BAD(merge = "ab", DG_ERR_FORMAT, "tokenizer.ggml.merges[0]");
    BAD(merge = " b", DG_ERR_FORMAT, "tokenizer.ggml.merges[0]");
    BAD(merge = "a ", DG_ERR_FORMAT, "tokenizer.ggml.merges[0]");
    BAD(n_type = 3, DG_ERR_FORMAT, "token_type: expected 4 elements, found 3");
    BAD(bos = 4, DG_ERR_FORMAT, "bos_token_id: expected 0 to 3, found 4");
#undef BAD
    g = sound_llama;
    check_ok(open_gguf(&g, &t));
    check_ids(t, "A", DG_ENCODE_BOS, 1, 4, 3);
    check_ids(t, "B", 0, 4, 0);
    dg_tokenizer_close(t);
    g.no_prefix = true;
    check_ok(open_gguf(&g, &t));
    check_ids(t, "A A", 0, 3, 4, 3);
    dg_tokenizer_close(t);
#define BAD(change, code, part) g = sound_llama, g.change, check_gguf(&g, code, part)
    BAD(n_score = 4, DG_ERR_FORMAT, "scores: expected 5 elements, found 4");
    BAD(n_score = 0, DG_ERR_FORMAT, "scores is missing");
    BAD(score[2] = (float)NAN, DG_ERR_FORMAT, "the score of token 2");
    BAD(tokens[3] = "<0xZZ>", DG_ERR_FORMAT, "tokens[3]: a byte token");
#undef BAD
}

/* ---- tokenizer.model -------------------------------------------------------------------------- */

static void put_piece(bytes *b, const char *text, uint8_t type, float score) {
    const uint8_t head[] = {0x0A, (uint8_t)(strlen(text) + 9), 0x0A, (uint8_t)strlen(text)};
    put(b, head, 4);
    put(b, text, strlen(text));
    put_int(b, 0x15, 1), put_f32(b, score);
    put_int(b, 0x18, 1), put_int(b, type, 1);
}

/* pieces, trainer_spec {model_type}, normalizer_spec {charsmap?, add_dummy_prefix, remove_extra_whitespaces}
 */
static void put_model(bytes *b, uint8_t type, bool map, uint8_t prefix, uint8_t squeeze) {
    b->n = 0;
    put_piece(b, "<unk>", 2, 0), put_piece(b, "<s>", 3, 0), put_piece(b, "</s>", 3, 0);
    put_piece(b, "a", 1, -1), put_piece(b, "\u2581", 1, -2), put_piece(b, "\u2581a", 1, -3);
    put_piece(b, "<u>", 4, 0);
    put(b, (uint8_t[]){0x12, 2, 0x18, type}, 4);
    if (map)
        put(b, (uint8_t[]){0x1A, 7, 0x12, 1, 'm', 0x18, prefix, 0x20, squeeze}, 9);
    else
        put(b, (uint8_t[]){0x1A, 4, 0x18, prefix, 0x20, squeeze}, 6);
}

static void test_sentencepiece(void **state) {
    (void)state;
    static bytes b;
    dg_tokenizer *t = NULL;
    char path[128];
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    remove(path);
    put_model(&b, 2, false, 1, 0);
    save(dir, "tokenizer.model", b.p, b.n);
    check_ok(dg_tokenizer_open_json(dir, &t));
    check_ids(t, "aa<u>a<s>", DG_ENCODE_SPECIAL | DG_ENCODE_BOS, 1, 5, 3, 6, 5, 1);
    assert_string_equal(dg_tokenizer_kind(t), "SentencePiece BPE, tokenizer.model");
    dg_tokenizer_close(t);
    t = NULL;

    put_model(&b, 2, false, 0, 0);
    save(dir, "tokenizer.model", b.p, b.n);
    check_ok(dg_tokenizer_open_json(dir, &t));
    check_ids(t, "a a", 0, 3, 5);
    dg_tokenizer_close(t);
    t = NULL;

    put_model(&b, 2, false, 1, 0);
    const size_t whole = b.n;
    const int64_t live = dg_mem_live();
    for (size_t n = 0; n < whole; n++) { /* cut anywhere: damaged, or no longer a BPE model */
        save(dir, "tokenizer.model", b.p, n);
        const dg_status st = dg_tokenizer_open_json(dir, &t);
        if (st == DG_OK || t) fail_msg("%zu of %zu bytes are taken for a model", n, whole);
        assert_true(st == DG_ERR_FORMAT || st == DG_ERR_UNSUPPORTED);
    }
    put_model(&b, 1, false, 1, 0);
    save(dir, "tokenizer.model", b.p, b.n);
    check_fails(dg_tokenizer_open_json(dir, &t), DG_ERR_UNSUPPORTED, "model type unigram; known: bpe");
    put_model(&b, 2, true, 1, 0);
    save(dir, "tokenizer.model", b.p, b.n);
    check_fails(dg_tokenizer_open_json(dir, &t), DG_ERR_UNSUPPORTED, "character map");
    put_model(&b, 2, false, 1, 1);
    save(dir, "tokenizer.model", b.p, b.n);
    check_fails(dg_tokenizer_open_json(dir, &t), DG_ERR_UNSUPPORTED, "remove_extra_whitespaces");
    assert_int_equal(dg_mem_live(), live);
    snprintf(path, sizeof path, "%s/tokenizer.model", dir);
    remove(path);
}

/* ---- memory ----------------------------------------------------------------------------------- */

static dg_status open_and_use(int kind) {
    dg_tokenizer *t = NULL;
    int32_t ids[64];
    size_t n;
    dg_status st =
        kind == 0 ? dg_tokenizer_open_json(dir, &t) : open_gguf(kind == 1 ? &sound_gpt2 : &sound_llama, &t);
    if (st == DG_OK) st = dg_tokenizer_encode(t, "ab e\u0301 <s>\xFF 1", 12, DG_ENCODE_SPECIAL, ids, 64, &n);
    dg_tokenizer_close(t);
    return st;
}

static void test_memory(void **state) {
    (void)state;
    json_t *root = tokens_bytes();
    tokens_merge(root, "a", "b");
    tokens_added(root, "<s>", "special");
    tokens_added(root, "x\u0301", "normalized");
    tokens_set(root, "normalizer",
               "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Prepend\",\"prepend\":"
               "\"_\"}]}");
    tokens_set(root, "pre_tokenizer",
               "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"use_regex\":true}");
    dg_tokenizer_close(tokens_open(dir, root));
    save_text(dir, "tokenizer_config.json", "{\"bos_token\":\"<s>\",\"chat_template\":\"T\"}");
    for (int kind = 0; kind < 3; kind++) {
        check_ok(open_and_use(kind));
        dg_mem_fail_nth(0, 0);
        check_ok(open_and_use(kind));
        const uint64_t total = dg_mem_fail_nth(0, 0);
        const int64_t live = dg_mem_live();
        for (uint64_t n = 1; n <= total; n += n < 200 ? 1 : 1 + n / 50) {
            dg_mem_fail_nth(n, 1);
            const dg_status st = open_and_use(kind);
            dg_mem_fail_nth(0, 0);
            if (st != DG_ERR_MEMORY)
                fail_msg("kind %d, allocation %d of %d: %s: %s", kind, (int)n, (int)total, dg_status_name(st),
                         dg_error_message());
            if (dg_mem_live() != live)
                fail_msg("kind %d, allocation %d of %d leaks", kind, (int)n, (int)total);
        }
    }
}

static int make_dir(void **state) {
    (void)state;
    strcpy(dir, test_tmpdir());
    return 0;
}

static int remove_dir(void **state) {
    (void)state;
    remove_tree(dir);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json_parts), cmocka_unit_test(test_json_sizes),
        cmocka_unit_test(test_json_files), cmocka_unit_test(test_runaway_pattern),
        cmocka_unit_test(test_gguf),       cmocka_unit_test(test_sentencepiece),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests_name("bad/tokenizer_files", tests, make_dir, remove_dir);
}
