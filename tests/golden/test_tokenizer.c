/* The tokenizer against the original libraries: every string of every set, from tokenizer.json,
 * tokenizer.model and GGUF; decoding as a whole and id by id; the bytes of every token. */
#include "tests/test.h"

#include "runtime/tokenizer.h"

#include <unistd.h>

typedef struct set {
    const char *name;
    bool pieces;      /* SentencePiece: a run of byte tokens is printed as a whole by the original */
    const char *kind; /* dg_tokenizer_kind of the GGUF */
} set;

static set sets[] = {
    {"gpt2", false, "byte-level BPE, gpt-2"},
    {"smollm", false, "byte-level BPE, smollm"},
    {"llama3", false, "byte-level BPE, llama-bpe"},
    {"qwen2", false, "byte-level BPE, qwen2"},
    {"deepseek", false, "byte-level BPE, deepseek-v3"},
    {"deepseek-coder", false, "byte-level BPE, deepseek-coder"},
    {"o200k", false, "byte-level BPE, gpt-4o"},
    {"llama2", true, "SentencePiece BPE, llama"},
    {"sentencepiece", true, "SentencePiece BPE, llama"},
};

/* ---- encoding --------------------------------------------------------------------------------- */

static void fail_ids(const char *where, const char *text, const int32_t *got, size_t n_got,
                     const int32_t *want, size_t n_want) {
    print_error("%s: \"%.200s\"\n  got", where, text);
    for (size_t i = 0; i < n_got && i < 60; i++) print_error(" %d", got[i]);
    print_error("\n  want");
    for (size_t i = 0; i < n_want && i < 60; i++) print_error(" %d", want[i]);
    fail_msg("%zu ids, expected %zu", n_got, n_want);
}

static void check_encode(const dg_tokenizer *t, const char *where, const char *text, size_t len, int flags,
                         const json_t *want_json) {
    size_t n_want, n = 0, n_asked = 0;
    int32_t *want = json_ints(want_json, &n_want);
    int32_t *got = malloc((n_want + 64) * sizeof *got);
    check_ok(dg_tokenizer_encode(t, text, len, flags, got, n_want + 64, &n));
    if (n != n_want || memcmp(got, want, n * sizeof *got) != 0) fail_ids(where, text, got, n, want, n_want);
    check_ok(dg_tokenizer_encode(t, text, len, flags, NULL, 0, &n_asked));
    assert_int_equal(n_asked, n_want);
    free(got);
    free(want);
}

static const json_t *first_of(const json_t *o, const char *a, const char *b, const char *c) {
    const json_t *j = a ? json_object_get(o, a) : NULL;
    if (!j && b) j = json_object_get(o, b);
    return j ? j : json_object_get(o, c);
}

static size_t check_encodes(const dg_tokenizer *t, const char *where, const json_t *expected, bool specials) {
    const json_t *x;
    size_t i;
    json_array_foreach(json_object_get(expected, "encode"), i, x) {
        const char *text = json_string_value(json_object_get(x, "text"));
        const size_t len = json_string_length(json_object_get(x, "text"));
        const json_t *ids = first_of(x, "llama_tokenize", "ids_digits_split", "ids");
        const json_t *plain = first_of(x, "llama_tokenize_no_parse_special", "ids_specials_as_text", NULL);
        check_encode(t, where, text, len, 0, plain ? plain : ids);
        if (!specials) continue; /* sentencepiece itself never reads special tokens in text */
        check_encode(t, where, text, len, DG_ENCODE_SPECIAL, ids);
        const json_t *with_bos = first_of(x, "ids_with_bos", NULL, NULL);
        if (!with_bos && dg_tokenizer_adds_bos(t)) continue;
        check_encode(t, where, text, len, DG_ENCODE_SPECIAL | DG_ENCODE_BOS, with_bos ? with_bos : ids);
    }
    return i;
}

/* ---- decoding --------------------------------------------------------------------------------- */

/* Decodes ids one by one; cut[i] (NULL: not wanted) is the length after id i. Texts hold NUL. */
static dg_str decode(const dg_tokenizer *t, const int32_t *ids, size_t n, bool skip_special, size_t *cut) {
    const size_t room = dg_tokenizer_max_bytes(t) + 8;
    char *text = malloc((n + 1) * room);
    dg_decoder d = {0};
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        const size_t more = dg_decoder_push(t, &d, ids[i], skip_special, text + at);
        assert_true(more <= room);
        at += more;
        if (cut) cut[i] = at;
    }
    at += dg_decoder_flush(&d, text + at);
    return (dg_str){text, at};
}

static dg_str json_text(const json_t *j) {
    assert_true(json_is_string(j));
    return (dg_str){json_string_value(j), json_string_length(j)};
}

/* Bytes before the first U+FFFD. */
static size_t unbroken(dg_str s) {
    const char *p = memmem(s.ptr, s.len, "\xEF\xBF\xBD", 3);
    return p ? (size_t)(p - s.ptr) : s.len;
}

/* The original prints a run of byte tokens that is not UTF-8 as one U+FFFD a byte, good characters in it
 * included; we print what is certain. Left to compare: the text before the first of them. */
static void check_text(const char *where, bool pieces, dg_str got, dg_str want) {
    const size_t n = pieces ? unbroken(want) : want.len;
    const bool same = n == want.len ? got.len == n : unbroken(got) < got.len && got.len > n;
    if (same && memcmp(got.ptr, want.ptr, n) == 0) return;
    fail_msg("%s: got \"%.*s\", want \"%.*s\"", where, (int)got.len, got.ptr, (int)want.len, want.ptr);
}

/* After every id for which DecodeStream prints, both have printed the same; in between it may hold back text
 * that ends in U+FFFD, and so be behind. */
static void check_stream(const char *where, bool pieces, dg_str got, const size_t *cut,
                         const json_t *stream) {
    char want[65536];
    size_t n = 0, i;
    const json_t *step;
    json_array_foreach(stream, i, step) {
        if (json_is_object(step)) break; /* it gave up */
        const dg_str s = json_is_string(step) ? json_text(step) : (dg_str){"", 0};
        assert_true(n + s.len < sizeof want);
        memcpy(want + n, s.ptr, s.len);
        n += s.len;
        if (pieces && unbroken((dg_str){want, n}) < n) break;
        if (n > cut[i] || memcmp(got.ptr, want, n) != 0 || (json_is_string(step) && n != cut[i]))
            fail_msg("%s: after %zu ids: got \"%.*s\", want \"%.*s\"", where, i + 1, (int)cut[i], got.ptr,
                     (int)n, want);
    }
}

static bool has_id(const int32_t *ids, size_t n, int32_t id) {
    for (size_t i = 0; i < n; i++)
        if (ids[i] == id) return true;
    return false;
}

static size_t check_decodes(const dg_tokenizer *t, const set *s, const char *where, const json_t *expected) {
    const json_t *x;
    size_t i, n;
    json_array_foreach(json_object_get(expected, "decode"), i, x) {
        int32_t *ids = json_ints(json_object_get(x, "ids"), &n);
        size_t *cut = calloc(n + 1, sizeof *cut);
        const dg_str text = decode(t, ids, n, false, cut), bare = decode(t, ids, n, true, NULL);
        const json_t *skip = json_object_get(x, "decoded_skip_special");
        /* sentencepiece prints its unknown token as U+2047 */
        if (strcmp(s->name, "sentencepiece") != 0 || !has_id(ids, n, 0))
            check_text(where, s->pieces, text, json_text(json_object_get(x, "decoded")));
        if (skip) check_text(where, s->pieces, bare, json_text(skip));
        check_stream(where, s->pieces, text, cut, json_object_get(x, "stream"));
        free((char *)text.ptr), free((char *)bare.ptr), free(cut), free(ids);
    }
    const size_t n_decode = i;
    json_array_foreach(json_object_get(expected, "encode"), i, x) {
        int32_t *ids = json_ints(json_object_get(x, "ids"), &n);
        const dg_str text = decode(t, ids, n, false, NULL);
        check_text(where, s->pieces, text, json_text(first_of(x, "decoded", NULL, "text")));
        free((char *)text.ptr), free(ids);
    }
    return n_decode;
}

static void check_bytes(const dg_tokenizer *t, const json_t *expected) {
    const json_t *hexes = json_object_get(expected, "token_bytes_hex"), *x;
    size_t id;
    assert_int_equal(json_array_size(hexes), dg_tokenizer_size(t));
    json_array_foreach(hexes, id, x) {
        const dg_str s = dg_tokenizer_bytes(t, (int32_t)id);
        char hex[1024] = "";
        assert_true(s.len < sizeof hex / 2);
        for (size_t i = 0; i < s.len; i++) sprintf(hex + 2 * i, "%02x", (uint8_t)s.ptr[i]);
        assert_string_equal(hex, json_string_value(x));
    }
}

/* ---- tests ------------------------------------------------------------------------------------ */

static void check_set(const dg_tokenizer *t, const set *s, const char *where) {
    json_t *expected = golden_json("tokenizer/%s/expected.json", s->name);
    const bool specials = strcmp(s->name, "sentencepiece") != 0;
    assert_int_equal(dg_tokenizer_size(t), json_integer_value(json_object_get(expected, "vocab_size")));
    assert_true(check_encodes(t, where, expected, specials) >= 200);
    assert_true(check_decodes(t, s, where, expected) >= 30);
    check_bytes(t, expected);
    json_decref(expected);
}

static void test_directory(void **state) {
    const set *s = *state;
    dg_tokenizer *t = NULL;
    if (!golden_have("tokenizer")) skip();
    check_ok(dg_tokenizer_open_json(golden_path("tokenizer/%s", s->name), &t));
    assert_int_equal(s->pieces, strncmp(dg_tokenizer_kind(t), "SentencePiece", 13) == 0);
    check_set(t, s, golden_path("tokenizer/%s (directory)", s->name));
    dg_tokenizer_close(t);
}

static void test_gguf(void **state) {
    const set *s = *state;
    dg_file *f = NULL;
    dg_tokenizer *t = NULL, *dir = NULL;
    if (!golden_have("tokenizer")) skip();
    check_ok(dg_file_open(golden_path("tokenizer/%s/vocab.gguf", s->name), &f));
    check_ok(dg_tokenizer_open_gguf(f, &t));
    dg_file_close(f);
    assert_string_equal(dg_tokenizer_kind(t), s->kind);
    check_set(t, s, golden_path("tokenizer/%s/vocab.gguf", s->name));

    check_ok(dg_tokenizer_open_json(golden_path("tokenizer/%s", s->name), &dir));
    assert_true(dg_tokenizer_hash(t) == dg_tokenizer_hash(dir));
    assert_int_equal(dg_tokenizer_adds_bos(t), dg_tokenizer_adds_bos(dir));
    dg_tokenizer_close(dir);
    dg_tokenizer_close(t);
}

static void test_smollm2(void **state) {
    (void)state;
    static const set s = {"smollm2", false, "byte-level BPE, smollm"};
    dg_file *f = NULL;
    dg_tokenizer *t = NULL;
    if (!smollm2_path() || !golden_have("tokenizer")) skip();
    check_ok(dg_file_open(smollm2_path(), &f));
    check_ok(dg_tokenizer_open_gguf(f, &t));
    dg_file_close(f);
    json_t *expected = golden_json("tokenizer/smollm2/expected.json");
    assert_string_equal(dg_tokenizer_kind(t), s.kind);
    assert_int_equal(dg_tokenizer_size(t), json_integer_value(json_object_get(expected, "vocab_size")));
    assert_int_equal(dg_tokenizer_bos(t), 1);
    assert_int_equal(dg_tokenizer_eos(t), 2);
    assert_false(dg_tokenizer_adds_bos(t));
    assert_int_equal(dg_tokenizer_find(t, "<|im_end|>", 10), 2);
    assert_non_null(strstr(dg_tokenizer_chat_template(t), "SmolLM"));
    assert_true(check_encodes(t, "smollm2", expected, true) >= 200);
    assert_true(check_decodes(t, &s, "smollm2", expected) >= 30);

    /* llama.cpp lets overlong forms and surrogates pass; ours are ill-formed there, byte by byte */
    const json_t *x;
    size_t i;
    json_array_foreach(json_object_get(expected, "invalid_utf8"), i, x) {
        const char *hex = json_string_value(json_object_get(x, "bytes_hex"));
        const json_t *want = json_object_get(x, "llama_tokenize");
        char bytes[64];
        size_t n = 0;
        for (; hex[2 * n]; n++) bytes[n] = (char)strtol((char[]){hex[2 * n], hex[2 * n + 1], 0}, NULL, 16);
        json_t *broken = json_array();
        for (size_t k = 0; k < n; k++) json_array_append_new(broken, json_integer(24211));
        const bool ours =
            strcmp(hex, "c080") == 0 || strcmp(hex, "eda080") == 0 || strcmp(hex, "f5808080") == 0;
        check_encode(t, hex, bytes, n, DG_ENCODE_SPECIAL, ours ? broken : want);
        json_decref(broken);
    }
    assert_true(i >= 13);
    json_decref(expected);
    dg_tokenizer_close(t);
}

int main(void) {
    enum { N = sizeof sets / sizeof *sets };
    struct CMUnitTest tests[2 * N + 1];
    static char names[2 * N][64];
    for (size_t i = 0; i < N; i++) {
        snprintf(names[i], sizeof names[i], "directory %s", sets[i].name);
        snprintf(names[N + i], sizeof names[i], "gguf %s", sets[i].name);
        tests[i] = (struct CMUnitTest){names[i], test_directory, NULL, NULL, &sets[i]};
        tests[N + i] = (struct CMUnitTest){names[N + i], test_gguf, NULL, NULL, &sets[i]};
    }
    tests[2 * N] = (struct CMUnitTest)cmocka_unit_test(test_smollm2);
    return cmocka_run_group_tests_name("golden/tokenizer", tests, NULL, NULL);
}
