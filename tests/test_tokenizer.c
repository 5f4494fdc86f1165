/* The tokenizer on hand-made vocabularies: merges, added tokens, pre-tokenizers, normalisation, broken text,
 * streaming, and time. */
#include "tests/test.h"

#include "runtime/tokenizer.h"

#include <pthread.h>
#include <time.h>
#include <utf8proc.h>

#include "tests/files.h"
#include "tests/tokens.h"

static char dir[64];

static uint32_t random_below(uint64_t *state, uint32_t n) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*state >> 33) % n);
}

/* ---- merges ----------------------------------------------------------------------------------- */

/* The textbook: look for the best pair over and over. */
typedef struct word {
    char part[64][64];
    int n;
} word;

static void merge_slowly(word *w, const char (*rule)[2][64], int n_rule) {
    for (;;) {
        int best = n_rule, at = -1;
        for (int i = 0; i + 1 < w->n; i++)
            for (int r = 0; r < best; r++)
                if (strcmp(w->part[i], rule[r][0]) == 0 && strcmp(w->part[i + 1], rule[r][1]) == 0)
                    best = r, at = i;
        if (at < 0) return;
        memcpy(w->part[at] + strlen(w->part[at]), w->part[at + 1], strlen(w->part[at + 1]) + 1);
        memmove(w->part[at + 1], w->part[at + 2], sizeof w->part[0] * (size_t)(w->n - at - 2));
        w->n--;
    }
}

static void test_merges_like_the_textbook(void **state) {
    (void)state;
    uint64_t seed = 7;
    for (int round = 0; round < 40; round++) {
        static char rule[60][2][64];
        char part[64][64] = {"a", "b", "c"};
        int n_part = 3, n_rule = 0;
        json_t *root = tokens_bytes();
        while (n_rule < 24) { /* parts of parts, so that later rules build on earlier ones */
            const char *a = part[random_below(&seed, (uint32_t)n_part)],
                       *b = part[random_below(&seed, (uint32_t)n_part)];
            bool known = strlen(a) + strlen(b) > 8;
            for (int r = 0; r < n_rule; r++)
                known = known || (!strcmp(rule[r][0], a) && !strcmp(rule[r][1], b));
            if (known) continue;
            strcpy(rule[n_rule][0], a), strcpy(rule[n_rule][1], b);
            tokens_merge(root, a, b);
            snprintf(part[n_part], sizeof part[0], "%s%s", rule[n_rule][0], rule[n_rule][1]);
            n_part++, n_rule++;
        }
        dg_tokenizer *t = tokens_open(dir, root);
        for (int k = 0; k < 60; k++) {
            char text[64] = "";
            word w = {.n = (int)random_below(&seed, 50)};
            for (int i = 0; i < w.n; i++) {
                w.part[i][0] = "abc"[random_below(&seed, 3)], w.part[i][1] = 0;
                strcat(text, w.part[i]);
            }
            int32_t want[64];
            merge_slowly(&w, (const char(*)[2][64])rule, n_rule);
            for (int i = 0; i < w.n; i++) want[i] = dg_tokenizer_find(t, w.part[i], strlen(w.part[i]));
            want[w.n] = -1;
            check_tokens(t, text, strlen(text), 0, want);
        }
        dg_tokenizer_close(t);
    }
}

static void test_ignore_merges(void **state) {
    (void)state;
    json_t *root = tokens_bytes();
    tokens_merge(root, "a", "b");
    const int32_t whole = tokens_add(root, "abab");
    json_object_set_new(json_object_get(root, "model"), "ignore_merges", json_true());
    dg_tokenizer *t = tokens_open(dir, root);
    check_ids(t, "abab", 0, whole);
    check_ids(t, "ababa", 0, 256, 256, 'a');
    dg_tokenizer_close(t);
}

/* ---- added tokens ----------------------------------------------------------------------------- */

static void test_added_tokens(void **state) {
    (void)state;
    json_t *root = tokens_bytes();
    const int32_t end = tokens_added(root, "<e>", "special"), longer = tokens_added(root, "<e>!", "special");
    const int32_t think = tokens_added(root, "<t>", "");
    dg_tokenizer *t = tokens_open(dir, root);
    check_ids(t, "a<e>b", DG_ENCODE_SPECIAL, 'a', end, 'b');
    check_ids(t, "<e>!<e>", DG_ENCODE_SPECIAL, longer, end);
    check_ids(t, "<<e><", DG_ENCODE_SPECIAL, '<', end, '<');
    check_ids(t, "<e>", 0, '<', 'e', '>');
    check_ids(t, "<t>", 0, think);
    check_ids(t, "<t", 0, '<', 't');
    assert_true(dg_tokenizer_is_special(t, end));
    assert_false(dg_tokenizer_is_special(t, think));
    assert_false(dg_tokenizer_is_special(t, -1));
    assert_int_equal(dg_tokenizer_find(t, "<e>!", 4), longer);
    assert_int_equal(dg_tokenizer_find(t, "<x>", 3), -1);
    assert_int_equal(dg_tokenizer_find(t, "", 0), -1);
    assert_int_equal(dg_tokenizer_size(t), think + 1);
    dg_tokenizer_close(t);

    /* a token that the vocabulary has keeps the vocabulary's number */
    root = tokens_bytes();
    tokens_merge(root, "a", "b");
    tokens_set(root, "added_tokens", "[{\"content\":\"ab\",\"id\":7}]");
    t = tokens_open(dir, root);
    check_ids(t, "xab", 0, 'x', 256);
    dg_tokenizer_close(t);
}

static void test_added_flags(void **state) {
    (void)state;
    json_t *root = tokens_bytes();
    const int32_t left = tokens_added(root, "<l>", "lstrip"), right = tokens_added(root, "<r>", "rstrip");
    const int32_t lone = tokens_added(root, "cat", "single_word"),
                  norm = tokens_added(root, "e\u0301", "normalized");
    tokens_set(root, "normalizer", "{\"type\":\"NFC\"}");
    dg_tokenizer *t = tokens_open(dir, root);
    check_ids(t, "a \u3000\n<l> b", 0, 'a', left, ' ', 'b');
    check_ids(t, "a <r> \u2003b", 0, 'a', ' ', right, 'b');
    check_ids(t, "<r>  <l>", 0, right, left); /* the spaces are gone already */
    check_ids(t, "a cat.", 0, 'a', ' ', lone, '.');
    check_ids(t, "cats", 0, 'c', 'a', 't', 's');
    check_ids(t, "\u00fccat", 0, 0xC3, 0xBC, 'c', 'a', 't');
    check_ids(t, "\u00e9", 0, norm); /* both sides are normalised */
    check_ids(t, "e\u0301", 0, norm);
    dg_tokenizer_close(t);
}

/* ---- pre-tokenizers --------------------------------------------------------------------------- */

static void test_split_behaviors(void **state) {
    (void)state;
    static const struct {
        const char *behavior, *pieces; /* of "a--b-", with spaces between */
        bool invert;
    } cases[] = {
        {"Isolated", "a - - b -", false},
        {"Removed", "a b", false},
        {"Contiguous", "a -- b -", false},
        {"MergedWithPrevious", "a- - b-", false},
        {"MergedWithNext", "a - -b -", false},
        {"Isolated", "a - - b -", true},
        {"Removed", "- - -", true},
        {"MergedWithPrevious", "a - -b -", true},
        {"MergedWithNext", "a- - b-", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (int literal = 0; literal < 2; literal++) {
            char json[512], pieces[64];
            json_t *root = tokens_bytes();
            json_object_set_new(json_object_get(root, "model"), "ignore_merges", json_true());
            static const char *const whole[] = {"--", "a-", "-b", "b-", "a--", "a--b-"};
            for (size_t k = 0; k < sizeof whole / sizeof *whole; k++) tokens_add(root, whole[k]);
            snprintf(
                json, sizeof json,
                "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"%s\":\"-\"},"
                "\"behavior\":\"%s\",\"invert\":%s},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
                "\"use_regex\":false}]}",
                literal ? "String" : "Regex", cases[i].behavior, cases[i].invert ? "true" : "false");
            tokens_set(root, "pre_tokenizer", json);
            dg_tokenizer *t = tokens_open(dir, root);
            int32_t want[8];
            int n = 0;
            strcpy(pieces, cases[i].pieces);
            for (char *p = strtok(pieces, " "); p; p = strtok(NULL, " "))
                want[n++] = dg_tokenizer_find(t, p, strlen(p));
            want[n] = -1;
            check_tokens(t, "a--b-", 5, 0, want);
            dg_tokenizer_close(t);
        }
    }
}

/* Opens a byte-level tokenizer whose merges make one token of up to 8 times the letters in `text`, so that
 * cuts show; `steps` come before ByteLevel. */
static dg_tokenizer *open_cutting(const char *steps, const char *byte_level) {
    char json[2048];
    json_t *root = tokens_bytes();
    snprintf(
        json, sizeof json,
        "{\"type\":\"Sequence\",\"pretokenizers\":[%s{\"type\":\"ByteLevel\",\"trim_offsets\":true,%s}]}",
        steps, byte_level);
    tokens_set(root, "pre_tokenizer", json);
    tokens_merge(root, "1", "1"); /* 256 */
    tokens_merge(root, "a", "a"); /* 257 */
    tokens_merge(root, " ", "a"); /* 258 */
    tokens_merge(root, " ", " "); /* 259 */
    return tokens_open(dir, root);
}

static void test_digits_and_byte_level(void **state) {
    (void)state;
    dg_tokenizer *t = open_cutting("{\"type\":\"Digits\",\"individual_digits\":true},",
                                   "\"add_prefix_space\":false,\"use_regex\":true");
    check_ids(t, "aa11 11", 0, 257, '1', '1', ' ', '1', '1');
    check_ids(t, "a  a", 0, 'a', ' ', 258); /* the last space belongs to the word */
    dg_tokenizer_close(t);
    t = open_cutting("{\"type\":\"Digits\",\"individual_digits\":false},",
                     "\"add_prefix_space\":true,\"use_regex\":true");
    check_ids(t, "a", 0, 258);
    check_ids(t, " a", 0, 258);
    check_ids(t, "aa11aa", 0, ' ', 257, ' ', 256, ' ', 257); /* every piece before ByteLevel gets a space */
    dg_tokenizer_close(t);
}

/* Where PCRE2 reads a pattern otherwise than Oniguruma, which the files were written for. */
static void test_pattern_dialect(void **state) {
    (void)state;
    static const struct {
        const char *regex, *text;
        int32_t want[8];
    } cases[] = {
        {"1{1,3}+", "1111", {256, 256, -1}}, /* repeated, not possessive: one piece */
        {"1{0,3}+a", "111a", {256, '1', 'a', -1}},
        {"1{1,3}", "1111", {256, '1', '1', -1}},
        {"\\\\s+", "\u180E  ", {0xE1, 0xA0, 0x8E, 259, -1}}, /* U+180E is no white space */
        {"[\\\\sx]+", " \u180E ", {' ', 0xE1, 0xA0, 0x8E, ' ', -1}},
        {"a$", "aa\na", {'a', 'a', '\n', 'a', -1}}, /* $ is the end of any line */
        {"(?i:A)++", "aA", {'a', 'A', -1}},
        {"a?", "aa11", {'a', 'a', '1', '1', -1}}, /* empty matches cut, too */
        {"[[:alpha:]]", "aa1", {'a', 'a', '1', -1}},
        {"[]a]", "aa]", {'a', 'a', ']', -1}},
        {"1\\\\b", "111\u0301 11", {256, '1', 0xCC, 0x81, ' ', '1', '1', -1}}, /* a mark is part of a word */
        {"\\\\w", "aa\u00b2", {'a', 'a', 0xC2, 0xB2, -1}},
        {"[\\\\w]", "aa", {'a', 'a', -1}},
        {"\\\\h", "aa11", {'a', 'a', '1', '1', -1}},
        {"[^\\\\S]", "  \u180E", {' ', ' ', 0xE1, 0xA0, 0x8E, -1}},
        {"[[:punct:]]", "11+11", {256, '+', 256, -1}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char step[256];
        snprintf(step, sizeof step,
                 "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"%s\"},\"behavior\":\"Isolated\"},",
                 cases[i].regex);
        dg_tokenizer *t = open_cutting(step, "\"add_prefix_space\":false,\"use_regex\":false");
        check_tokens(t, cases[i].text, strlen(cases[i].text), 0, cases[i].want);
        dg_tokenizer_close(t);
    }
}

static void test_pieces(void **state) {
    (void)state;
    enum { A = 257, B, SPACE };
    json_t *root = tokens_pieces("ab\u2581");
    tokens_merge(root, "\u2581", "a");      /* 260 */
    tokens_merge(root, "\u2581", "\u2581"); /* 261 */
    const int32_t end = tokens_added(root, "<e>", "special");
    dg_tokenizer *t = tokens_open(dir, json_deep_copy(root));
    check_ids(t, "a", 0, 260);
    check_ids(t, "a  b", 0, 260, SPACE, SPACE, B); /* cut before every space */
    check_ids(t, " a", 0, 260);                    /* Metaspace adds no second space */
    check_ids(t, "b\u20AC", 0, SPACE, B, 1 + 0xE2, 1 + 0x82, 1 + 0xAC);
    check_ids(t, "a<e>a", DG_ENCODE_SPECIAL, 260, end, 260);
    const int32_t ids[] = {260, end, 260, 1 + 0xE2, 1 + 0x82};
    char out[64];
    size_t n = 0;
    dg_decoder d = {0};
    for (int i = 0; i < 5; i++) n += dg_decoder_push(t, &d, ids[i], false, out + n);
    assert_int_equal(n, 6);
    assert_memory_equal(out, "a<e> a", 6);
    assert_int_equal(dg_decoder_flush(&d, out), 3);
    assert_memory_equal(out, "\uFFFD", 3);
    dg_tokenizer_close(t);

    tokens_set(
        root, "pre_tokenizer",
        "{\"type\":\"Metaspace\",\"replacement\":\"\u2581\",\"prepend_scheme\":\"first\",\"split\":false}");
    t = tokens_open(dir, json_deep_copy(root));
    check_ids(t, "a<e>a", DG_ENCODE_SPECIAL, 260, end, A);
    check_ids(t, "a  b", 0, 260, 261, B);
    dg_tokenizer_close(t);
    tokens_set(root, "pre_tokenizer",
               "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\"},{\"type\":\"Metaspace\","
               "\"replacement\":\"\u2581\",\"prepend_scheme\":\"first\",\"split\":false}]}");
    t = tokens_open(dir, json_deep_copy(root));
    check_ids(t, "a7a", 0, 260, 1 + '7', A); /* only the first piece gets the mark */
    dg_tokenizer_close(t);
    tokens_set(root, "pre_tokenizer",
               "{\"type\":\"Metaspace\",\"replacement\":\"\u2581\",\"add_prefix_space\":false}");
    t = tokens_open(dir, root);
    check_ids(t, "aa", 0, A, A);
    dg_tokenizer_close(t);
}

static void test_unknown(void **state) {
    (void)state;
    json_t *root = tokens_pieces("ab\u2581");
    json_object_set_new(json_object_get(root, "model"), "byte_fallback", json_false());
    for (int fuse = 0; fuse < 2; fuse++) {
        json_object_set_new(json_object_get(root, "model"), "fuse_unk", json_boolean(fuse));
        dg_tokenizer *t = tokens_open(dir, json_deep_copy(root));
        if (fuse)
            check_ids(t, "xyaz", 0, 259, 0, 257, 0);
        else
            check_ids(t, "xyaz", 0, 259, 0, 0, 257, 0);
        dg_tokenizer_close(t);
    }
    json_decref(root);
}

static void test_post_processor(void **state) {
    (void)state;
    json_t *root = tokens_bytes();
    const int32_t bos = tokens_added(root, "<s>", "special"), eos = tokens_added(root, "</s>", "special");
    tokens_set(
        root, "post_processor",
        "{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\"},{\"type\":\"TemplateProcessing\","
        "\"single\":[{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\"}},"
        "{\"SpecialToken\":{\"id\":\"</s>\"}}],\"special_tokens\":{\"<s>\":{\"ids\":[256]},"
        "\"</s>\":{\"ids\":[257]}}}]}");
    dg_tokenizer *t = tokens_open(dir, json_deep_copy(root));
    check_ids(t, "a", DG_ENCODE_BOS, bos, 'a', eos);
    check_ids(t, "", DG_ENCODE_BOS, bos, eos);
    check_ids(t, "a", 0, 'a');
    assert_true(dg_tokenizer_adds_bos(t));
    assert_int_equal(dg_tokenizer_bos(t), bos);
    assert_int_equal(dg_tokenizer_eos(t), -1); /* only a configuration tells */
    assert_null(dg_tokenizer_chat_template(t));
    dg_tokenizer_close(t);

    save_text(
        dir, "tokenizer_config.json",
        "{\"bos_token\":{\"content\":\"<s>\"},\"add_bos_token\":false,\"tokenizer_class\":\"LlamaTokenizer\","
        "\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"T\"},{\"name\":\"default\",\"template\":"
        "\"D\"}]}");
    save_text(dir, "special_tokens_map.json", "{\"bos_token\":\"</s>\",\"eos_token\":\"</s>\"}");
    t = tokens_open(dir, json_deep_copy(root));
    check_ids(t, "a", DG_ENCODE_BOS, 'a', eos);
    assert_int_equal(dg_tokenizer_bos(t), bos);
    assert_int_equal(dg_tokenizer_eos(t), eos);
    assert_string_equal(dg_tokenizer_chat_template(t), "D");
    dg_tokenizer_close(t);

    json_object_del(root, "post_processor");
    save_text(dir, "tokenizer_config.json",
              "{\"bos_token\":\"<s>\",\"add_bos_token\":true,\"chat_template\":\"C\"}");
    save_text(dir, "chat_template.jinja", "J");
    t = tokens_open(dir, root);
    check_ids(t, "a", DG_ENCODE_BOS, bos, 'a');
    assert_string_equal(dg_tokenizer_chat_template(t), "J");
    dg_tokenizer_close(t);
    char path[128];
    static const char *const names[] = {"tokenizer_config.json", "special_tokens_map.json",
                                        "chat_template.jinja"};
    for (int i = 0; i < 3; i++) snprintf(path, sizeof path, "%s/%s", dir, names[i]), remove(path);
}

/* ---- normalisation and broken text ------------------------------------------------------------ */

static void test_nfc(void **state) {
    (void)state;
    static const int32_t pool[] = {'a',     'e',    ' ',   0xE9,   0x1D5,   0x301,  0x323,  0x307,
                                   0x5B0,   0x93C,  0x390, 0x1100, 0x1161,  0x11A8, 0xAC00, 0x212B,
                                   0x1D160, 0x2126, 0x958, 0x4E2D, 0x1F600, 0x344,  0x315};
    json_t *root = tokens_bytes();
    uint64_t seed = 3;
    tokens_set(root, "normalizer", "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"}]}");
    dg_tokenizer *t = tokens_open(dir, root);
    for (int round = 0; round < 400; round++) {
        utf8proc_uint8_t text[1024];
        size_t n = 0, got;
        const bool marks = round % 4 == 0; /* a long run of combining marks */
        for (uint32_t k = marks ? 120 : random_below(&seed, 40); k > 0; k--) {
            const int32_t c =
                marks && k < 119 ? pool[5 + random_below(&seed, 5)] : pool[random_below(&seed, 23)];
            n += (size_t)utf8proc_encode_char(c, text + n);
        }
        text[n] = 0;
        int32_t ids[2048];
        utf8proc_uint8_t *want = utf8proc_NFC(text);
        check_ok(dg_tokenizer_encode(t, (char *)text, n, 0, ids, 2048, &got));
        assert_int_equal(got, strlen((char *)want));
        for (size_t i = 0; i < got; i++) assert_int_equal(ids[i], want[i]);
        free(want);
    }
    dg_tokenizer_close(t);
}

static void test_replace_and_prepend(void **state) {
    (void)state;
    json_t *root = tokens_bytes();
    tokens_set(
        root, "normalizer",
        "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"_\"},{\"type\":\"NFC\"},"
        "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"_\"},"
        "{\"type\":\"Replace\",\"pattern\":{\"String\":\"ab\"},\"content\":\"\"}]}");
    dg_tokenizer *t = tokens_open(dir, root);
    check_ids(t, "c ab\u212B", 0, '_', 'c', '_', 0xC3, 0x85);
    check_ids(t, "aabb", 0, '_', 'a', 'b');
    int32_t none[1];
    size_t n = 9;
    check_ok(dg_tokenizer_encode(t, "", 0, 0, none, 0, &n));
    assert_int_equal(n, 0);
    dg_tokenizer_close(t);
}

static void test_broken_text(void **state) {
    (void)state;
    static const struct {
        const char *bytes;
        size_t len;
        int broken;
    } cases[] = {
        {"\xFF", 1, 1},
        {"\xC3", 1, 1},
        {"\xE2\x82", 2, 2},
        {"\xF0\x9F\x98", 3, 3},
        {"\xC0\x80", 2, 2},
        {"\xED\xA0\x80", 3, 3},
        {"\xF5\x80\x80\x80", 4, 4},
        {"\xF4\x90\x80\x80", 4, 4},
        {"\xE0\x9F\xBF", 3, 3},
        {"\xF0\x8F\xBF\xBF", 4, 4},
        {"\x80\xBF", 2, 2},
        {"\xF4\x8F\xBF\xBF", 4, 0},
    };
    dg_tokenizer *t = tokens_open(dir, tokens_bytes());
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[16] = "a";
        int32_t ids[64];
        size_t n;
        memcpy(text + 1, cases[i].bytes, cases[i].len);
        text[1 + cases[i].len] = 'b';
        check_ok(dg_tokenizer_encode(t, text, cases[i].len + 2, 0, ids, 64, &n));
        assert_int_equal(n, 2 + (cases[i].broken ? 3 * (size_t)cases[i].broken : cases[i].len));
        for (size_t k = 1; cases[i].broken && k + 1 < n; k++)
            assert_int_equal(ids[k], "\xEF\xBF\xBD"[(k - 1) % 3] & 0xFF);
        assert_int_equal(ids[n - 1], 'b');
    }
    check_ids(t, "a\0b", 0, 'a', 0, 'b');
    dg_tokenizer_close(t);
}

/* ---- streaming -------------------------------------------------------------------------------- */

static void test_stream(void **state) {
    (void)state;
    static const struct {
        const char *bytes, *steps; /* what comes out after each byte, '|' between; then what flush gives */
    } cases[] = {
        {"a\xC3\xA9", "a||\u00e9|"},    {"\xF0\x9F\x98\x80", "|||\U0001F600|"},
        {"\xE2\x82z", "||\uFFFDz|"},    {"\xE2\x82\xE2\x82\xAC", "||\uFFFD||\u20AC|"},
        {"\xC0\x80", "\uFFFD|\uFFFD|"}, {"\xED\xA0\x80", "|\uFFFD\uFFFD|\uFFFD|"},
        {"\xF0\x9F\x98", "|||\uFFFD"},  {"\xF4\x90z", "|\uFFFD\uFFFD|z|"},
    };
    dg_tokenizer *t = tokens_open(dir, tokens_bytes());
    assert_int_equal(dg_tokenizer_max_bytes(t), 3);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dg_decoder d = {0};
        char got[128] = "", out[16];
        const size_t len = strlen(cases[i].bytes);
        dg_mem_guard_begin();
        for (size_t k = 0; k <= len; k++) {
            const size_t n = k < len ? dg_decoder_push(t, &d, (uint8_t)cases[i].bytes[k], true, out)
                                     : dg_decoder_flush(&d, out);
            strncat(got, out, n);
            if (k < len) strcat(got, "|");
        }
        dg_mem_guard_end();
        assert_string_equal(got, cases[i].steps);
        assert_int_equal(dg_decoder_flush(&d, out), 0);
    }
    dg_decoder d = {0};
    char out[16];
    assert_int_equal(dg_decoder_push(t, &d, 256, true, out), 0); /* ids out of range print nothing */
    assert_int_equal(dg_decoder_push(t, &d, -1, true, out), 0);
    dg_tokenizer_close(t);
}

/* ---- time and threads ------------------------------------------------------------------------- */

static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A megabyte of one thing takes well under a second of a quiet core; quadratic steps would take minutes. */
static void test_linear_time(void **state) {
    (void)state;
    static const char *const units[] = {
        " ", "a", "\n", "7", "\U0001F600", "\u4e2d", "e\u0301", "\u0301\u0323", "\xFF", "<", "ab "};
    enum { SIZE = 1 << 20 };
    for (int pieces = 0; pieces < 2; pieces++) {
        json_t *root = pieces ? tokens_pieces("ab<7 \n\u2581\u4e2d\U0001F600") : tokens_bytes();
        const char *const space = pieces ? "\u2581" : " ";
        tokens_merge(root, "a", "a"), tokens_merge(root, "aa", "aa"), tokens_merge(root, "aaaa", "aaaa");
        tokens_merge(root, space, space), tokens_merge(root, "7", "7"), tokens_merge(root, "\n", "\n");
        if (pieces) tokens_merge(root, "\u4e2d", "\u4e2d");
        tokens_added(root, "<<<<<<<<<<<<<<<<x", "special");
        tokens_set(root, "normalizer", "{\"type\":\"NFC\"}");
        if (pieces)
            tokens_set(root, "pre_tokenizer",
                       "{\"type\":\"Metaspace\",\"replacement\":\"\u2581\",\"split\":false}");
        else
            tokens_set(root, "pre_tokenizer",
                       "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":"
                       "\"[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}| "
                       "?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|"
                       "\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"},\"behavior\":\"Isolated\"},"
                       "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]}");
        dg_tokenizer *t = tokens_open(dir, root);
        for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
            const size_t unit = strlen(units[i]), len = SIZE / unit * unit;
            char *text = malloc(len);
            for (size_t k = 0; k < len; k += unit) memcpy(text + k, units[i], unit);
            size_t n;
            const double start = cpu_seconds();
            check_ok(dg_tokenizer_encode(t, text, len, DG_ENCODE_SPECIAL, NULL, 0, &n));
            const double took = cpu_seconds() - start;
            if (took > 10) fail_msg("a megabyte of \"%s\" takes %.1f s", units[i], took);
            assert_true(n > 0);
            free(text);
        }
        dg_tokenizer_close(t);
    }
}

static void *encode_often(void *p) {
    const dg_tokenizer *t = p;
    int32_t ids[64];
    size_t n = 0, wrong = 0;
    for (int i = 0; i < 2000; i++) {
        const dg_status st = dg_tokenizer_encode(t, "aa 11 a\u0301\xFF", 10, DG_ENCODE_SPECIAL, ids, 64, &n);
        wrong += st != DG_OK || n != 9 || ids[0] != 257;
    }
    return (void *)wrong;
}

static void test_threads(void **state) {
    (void)state;
    dg_tokenizer *t = open_cutting("", "\"add_prefix_space\":false,\"use_regex\":true");
    pthread_t thread[4];
    void *wrong;
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&thread[i], NULL, encode_often, t), 0);
    for (int i = 0; i < 4; i++) pthread_join(thread[i], &wrong), assert_null(wrong);
    dg_tokenizer_close(t);
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
        cmocka_unit_test(test_merges_like_the_textbook),
        cmocka_unit_test(test_ignore_merges),
        cmocka_unit_test(test_added_tokens),
        cmocka_unit_test(test_added_flags),
        cmocka_unit_test(test_split_behaviors),
        cmocka_unit_test(test_digits_and_byte_level),
        cmocka_unit_test(test_pattern_dialect),
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_unknown),
        cmocka_unit_test(test_post_processor),
        cmocka_unit_test(test_nfc),
        cmocka_unit_test(test_replace_and_prepend),
        cmocka_unit_test(test_broken_text),
        cmocka_unit_test(test_stream),
        cmocka_unit_test(test_linear_time),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests_name("tokenizer", tests, make_dir, remove_dir);
}
