/* Chat rendering against transformers: every conversation of golden/chat, byte by byte. */
#include "tests/test.h"

#include "runtime/chat.h"

static const char *family_of(const char *template) {
    static const char *const names[][2] = {{"smollm2", "smollm2"},
                                           {"chatml", "chatml"},
                                           {"llama3-style", "llama3"},
                                           {"qwen2-style", "qwen2"},
                                           {"mistral-style", "mistral"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i][0], template) == 0) return names[i][1];
    return "?";
}

static void check_case(const dg_chat_family *c, const json_t *conversation, const json_t *x) {
    dg_message msg[16];
    size_t n;
    const json_t *m;
    assert_true(json_array_size(conversation) <= 16);
    json_array_foreach(conversation, n, m) {
        msg[n].role = json_string_value(json_object_get(m, "role"));
        msg[n].content = json_string_value(json_object_get(m, "content"));
    }
    const json_t *want = json_object_get(x, "rendered");
    const bool add = json_is_true(json_object_get(x, "add_generation_prompt"));
    char *text = NULL;
    if (!json_is_string(want)) {
        check_fails(dg_chat_render(c, msg, n, add, -1, "<s>", "</s>", &text), DG_ERR_ARGUMENT,
                    dg_chat_name(c));
        assert_null(text);
        return;
    }
    check_ok(dg_chat_render(c, msg, n, add, -1, "<s>", "</s>", &text));
    assert_string_equal(text, json_string_value(want));
    dg_mem_free(text);
}

static void test_conversations(void **state) {
    (void)state;
    if (!golden_have("chat")) skip();
    json_t *root = golden_json("chat/chat.json");
    const json_t *templates = json_object_get(root, "templates"), *x;
    size_t i, errors = 0;
    const int64_t live = dg_mem_live();
    json_array_foreach(json_object_get(root, "cases"), i, x) {
        const char *name = json_string_value(json_object_get(x, "template"));
        const dg_chat_family *c = dg_chat_detect(json_string_value(json_object_get(templates, name)));
        if (!c) fail_msg("template %s is not recognised", name);
        assert_string_equal(dg_chat_name(c), family_of(name));
        const json_int_t k = json_integer_value(json_object_get(x, "conversation"));
        check_case(c, json_array_get(json_object_get(root, "conversations"), (size_t)k), x);
        errors += json_is_object(json_object_get(x, "rendered"));
    }
    assert_int_equal(i, 80);
    assert_int_equal(errors, 6);
    assert_int_equal(dg_mem_live(), live);
    json_decref(root);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_conversations)};
    return cmocka_run_group_tests_name("golden/chat", tests, NULL, NULL);
}
