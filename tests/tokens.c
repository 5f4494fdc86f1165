/* See tokens.h. */
#include "tests/tokens.h"

#include "tests/test.h"

/* GPT-2's spelling of bytes, the other way round than the library reads it. */
static void spell(const char *raw, char *out) {
    for (; *raw; raw++) {
        const int b = (uint8_t)*raw;
        int c = b;
        if (b <= 32)
            c = 256 + b;
        else if (b >= 127 && b <= 160)
            c = 256 + 33 + b - 127;
        else if (b == 173)
            c = 256 + 67;
        if (c < 0x80)
            *out++ = (char)c;
        else
            *out++ = (char)(0xC0 | c >> 6), *out++ = (char)(0x80 | (c & 0x3F));
    }
    *out = 0;
}

static bool is_bytes(const json_t *root) {
    return !json_is_true(json_object_get(json_object_get(root, "model"), "byte_fallback"));
}

static json_t *vocab_of(const json_t *root) {
    return json_object_get(json_object_get(root, "model"), "vocab");
}

static json_int_t next_id(const json_t *root) {
    return (json_int_t)(json_object_size(vocab_of(root)) +
                        json_array_size(json_object_get(root, "added_tokens")));
}

static json_t *empty(const char *model, const char *rest) {
    json_t *root = json_loads(rest, 0, NULL);
    assert_non_null(root);
    json_object_set_new(root, "added_tokens", json_array());
    tokens_set(root, "model", model);
    return root;
}

json_t *tokens_bytes(void) {
    json_t *root =
        empty("{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]}",
              "{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false},"
              "\"decoder\":{\"type\":\"ByteLevel\"}}");
    json_object_set_new(vocab_of(root), "\u0100", json_integer(0)); /* the byte 0 */
    for (int i = 1; i < 256; i++) tokens_add(root, (char[]){(char)i, 0});
    return root;
}

json_t *tokens_pieces(const char *chars) {
    json_t *root = empty("{\"type\":\"BPE\",\"vocab\":{\"<unk>\":0},\"merges\":[],\"unk_token\":\"<unk>\","
                         "\"byte_fallback\":true}",
                         "{\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\u2581\",\"prepend_"
                         "scheme\":\"always\"},"
                         "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":"
                         "{\"String\":\"\u2581\"},"
                         "\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},"
                         "{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]}}");
    char text[16];
    for (int i = 0; i < 256; i++) {
        snprintf(text, sizeof text, "<0x%02X>", i);
        tokens_add(root, text);
    }
    for (size_t i = 0, n; chars[i]; i += n) {
        for (n = 1; ((uint8_t)chars[i + n] & 0xC0) == 0x80;) n++;
        snprintf(text, sizeof text, "%.*s", (int)n, chars + i);
        tokens_add(root, text);
    }
    return root;
}

int32_t tokens_add(json_t *root, const char *text) {
    char key[512];
    assert_true(strlen(text) < sizeof key / 2);
    if (is_bytes(root))
        spell(text, key);
    else
        strcpy(key, text);
    const json_int_t id = next_id(root);
    assert_int_equal(json_object_set_new(vocab_of(root), key, json_integer(id)), 0);
    return (int32_t)id;
}

void tokens_merge(json_t *root, const char *a, const char *b) {
    char left[512], right[512], both[1024];
    if (is_bytes(root))
        spell(a, left), spell(b, right);
    else
        strcpy(left, a), strcpy(right, b);
    snprintf(both, sizeof both, "%s%s", left, right);
    if (!json_object_get(vocab_of(root), both))
        json_object_set_new(vocab_of(root), both, json_integer(next_id(root)));
    json_array_append_new(json_object_get(json_object_get(root, "model"), "merges"),
                          json_pack("[s,s]", left, right));
}

int32_t tokens_added(json_t *root, const char *text, const char *flags) {
    static const char *const names[] = {"special", "lstrip", "rstrip", "single_word", "normalized"};
    const json_int_t id = next_id(root);
    json_t *o = json_pack("{s:s,s:I}", "content", text, "id", id);
    for (size_t i = 0; i < 5; i++) json_object_set_new(o, names[i], json_boolean(strstr(flags, names[i])));
    json_array_append_new(json_object_get(root, "added_tokens"), o);
    return (int32_t)id;
}

void tokens_set(json_t *root, const char *key, const char *json) {
    json_error_t e;
    json_t *j = json_loads(json, JSON_DECODE_ANY, &e);
    if (!j) fail_msg("%s: %s", json, e.text);
    json_object_set_new(root, key, j);
}

dg_status tokens_try(const char *dir, json_t *root, dg_tokenizer **out) {
    char path[512];
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    assert_int_equal(json_dump_file(root, path, 0), 0);
    json_decref(root);
    return dg_tokenizer_open_json(dir, out);
}

dg_tokenizer *tokens_open(const char *dir, json_t *root) {
    dg_tokenizer *t = NULL;
    check_ok(tokens_try(dir, root, &t));
    return t;
}

void check_tokens(const dg_tokenizer *t, const char *text, size_t len, int flags, const int32_t *want) {
    int32_t got[256];
    size_t n = 0, n_want = 0;
    while (want[n_want] >= 0) n_want++;
    check_ok(dg_tokenizer_encode(t, text, len, flags, got, 256, &n));
    if (n == n_want && memcmp(got, want, n * sizeof *got) == 0) return;
    print_error("\"%s\": got", text);
    for (size_t i = 0; i < n && i < 256; i++) print_error(" %d", got[i]);
    print_error(", want");
    for (size_t i = 0; i < n_want; i++) print_error(" %d", want[i]);
    fail_msg("%zu ids, expected %zu", n, n_want);
}
