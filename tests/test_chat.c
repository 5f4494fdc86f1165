/* Chat families: what each makes of a conversation, what it refuses, and which templates are recognised. */
#include "tests/test.h"

#include "runtime/chat.h"

static const dg_message talk[] = {{"user", "a"}, {"assistant", "b"}, {"user", "c"}};
static const dg_message told[] = {{"system", "s"}, {"user", "a"}, {"assistant", "b"}, {"user", "c"}};

static void check_render(const char *family, const dg_message *m, size_t n, int thinking, const char *want) {
    const dg_chat_family *c = dg_chat_by_name(family);
    char *text = NULL;
    assert_non_null(c);
    check_ok(dg_chat_render(c, m, n, true, thinking, "<B>", "<E>", &text));
    if (strcmp(text, want) != 0) fail_msg("%s: got \"%s\", want \"%s\"", family, text, want);
    dg_mem_free(text);
}

static void test_turns(void **state) {
    (void)state;
    static const struct {
        const char *family, *without, *with; /* a system message; NULL: refused */
    } want[] = {
        {"chatml",
         "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\nc<|im_end|>\n"
         "<|im_start|>assistant\n",
         "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>"
         "\n"
         "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n"},
        {"llama2", "<B>[INST] a [/INST] b <E><B>[INST] c [/INST]",
         "<B>[INST] <<SYS>>\ns\n<</SYS>>\n\na [/INST] b <E><B>[INST] c [/INST]"},
        {"mistral", "<s>[INST] a [/INST] b</s>[INST] c [/INST]", NULL},
        {"mistral-v0.1", "<B>[INST] a [/INST]b<E> [INST] c [/INST]", NULL},
        {"mistral-v0.2", "<B>[INST] a [/INST]b<E>[INST] c [/INST]", NULL},
        {"mistral-v1", "<B> [INST] a [/INST] b<E> [INST] c [/INST]",
         "<B> [INST] s\n\na [/INST] b<E> [INST] c [/INST]"},
        {"mistral-v3", "<B>[INST] a[/INST] b<E>[INST] c[/INST]",
         "<B>[INST] a[/INST] b<E>[INST] s\n\nc[/INST]"},
        {"mistral-v3-tekken", "<B>[INST]a[/INST]b<E>[INST]c[/INST]",
         "<B>[INST]a[/INST]b<E>[INST]s\n\nc[/INST]"},
        {"zephyr", "<|user|>\na<E>\n<|assistant|>\nb<E>\n<|user|>\nc<E>\n<|assistant|>\n",
         "<|system|>\ns<E>\n<|user|>\na<E>\n<|assistant|>\nb<E>\n<|user|>\nc<E>\n<|assistant|>\n"},
        {"gemma",
         "<B><start_of_turn>user\na<end_of_turn>\n<start_of_turn>model\nb<end_of_turn>\n"
         "<start_of_turn>user\nc<end_of_turn>\n<start_of_turn>model\n",
         NULL},
        {"gemma3",
         "<B><start_of_turn>user\na<end_of_turn>\n<start_of_turn>model\nb<end_of_turn>\n"
         "<start_of_turn>user\nc<end_of_turn>\n<start_of_turn>model\n",
         "<B><start_of_turn>user\ns\n\na<end_of_turn>\n<start_of_turn>model\nb<end_of_turn>\n"
         "<start_of_turn>user\nc<end_of_turn>\n<start_of_turn>model\n"},
        {"deepseek", "<B>User: a\n\nAssistant: b<E>User: c\n\nAssistant:",
         "<B>s\n\nUser: a\n\nAssistant: b<E>User: c\n\nAssistant:"},
        {"deepseek-v3", "<B><｜User｜>a<｜Assistant｜>b<｜end▁of▁sentence｜><｜User｜>c<｜Assistant｜>",
         "<B>s<｜User｜>a<｜Assistant｜>b<｜end▁of▁sentence｜><｜User｜>c<｜Assistant｜>"},
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        check_render(want[i].family, talk, 3, -1, want[i].without);
        char *text = NULL;
        if (want[i].with)
            check_render(want[i].family, told, 4, -1, want[i].with);
        else
            check_fails(dg_chat_render(dg_chat_by_name(want[i].family), told, 4, true, -1, "", "", &text),
                        DG_ERR_ARGUMENT, "system");
    }
}

static void test_default_system(void **state) {
    (void)state;
    check_render(
        "qwen2.5", talk, 1, -1,
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n");
    check_render("qwen2.5", told, 2, -1,
                 "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n");
    check_render(
        "llama3.1", told, 2, -1,
        "<B><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
        "Today Date: 26 Jul 2024\n\ns<|eot_id|><|start_header_id|>user<|end_header_id|>\n\na<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n");
    char *text = NULL;
    check_ok(dg_chat_render(dg_chat_by_name("llama3.2"), talk, 1, false, -1, "<B>", "", &text));
    const char *date = strstr(text, "Today Date: ");
    assert_non_null(date);
    assert_memory_equal(date + 14, " ", 1); /* "Today Date: 29 Nov 2026" */
    assert_memory_equal(date + 18, " 2", 2);
    dg_mem_free(text);
}

static void test_thinking(void **state) {
    (void)state;
    const dg_message past[] = {
        {"user", "q"}, {"assistant", "<think>\nhm\n</think>\n\nyes"}, {"user", "more"}};
    const char *const asked = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>\n"
                              "<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n";
    char want[512];
    check_render("qwen3", past, 3, -1, asked);
    check_render("qwen3", past, 3, 1, asked);
    snprintf(want, sizeof want, "%s<think>\n\n</think>\n\n", asked);
    check_render("qwen3", past, 3, 0, want);
    snprintf(want, sizeof want, "%s<think>\n", asked);
    check_render("qwen3-thinking", past, 3, -1, want);
    check_render("qwq", past, 3, -1, want);
    /* thoughts after the last question stay, laid out anew */
    check_render(
        "qwen3", past, 2, -1,
        "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\nhm\n</think>\n\nyes<|im_end|>\n"
        "<|im_start|>assistant\n");
    check_render("qwen3", past + 1, 1, -1, "<|im_start|>assistant\nyes<|im_end|>\n<|im_start|>assistant\n");
    check_render("qwq", past, 2, -1,
                 "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\nhm\n</think>\n\nyes"
                 "<|im_end|>\n<|im_start|>assistant\n<think>\n");
    check_render(
        "deepseek-r1", past, 3, -1,
        "<B><｜User｜>q<｜Assistant｜>\n\nyes<｜end▁of▁sentence｜><｜User｜>more<｜Assistant｜><think>\n");
    check_render("deepseek-v3.1", past, 3, -1,
                 "<B><｜User｜>q<｜Assistant｜></"
                 "think>\n\nyes<｜end▁of▁sentence｜><｜User｜>more<｜Assistant｜></think>");
    check_render("deepseek-v3.1", past, 3, 1,
                 "<B><｜User｜>q<｜Assistant｜></"
                 "think>\n\nyes<｜end▁of▁sentence｜><｜User｜>more<｜Assistant｜><think>");
}

static void test_tools(void **state) {
    (void)state;
    const dg_message m[] = {{"user", "q"}, {"assistant", "call"}, {"tool", "1"}, {"tool", "2"}};
    check_render(
        "qwen3", m, 4, -1,
        "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\ncall<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response>"
        "<|im_end|>\n<|im_start|>assistant\n");
}

static void test_trim(void **state) {
    (void)state;
    const dg_message m[] = {
        {"user", " \u2003\u00A0a\u3000b\x1f\n "}, {"assistant", "\t"}, {"user", "\u200Bc"}};
    check_render("gemma", m, 3, -1,
                 "<B><start_of_turn>user\na\u3000b<end_of_turn>\n<start_of_turn>model\n<end_of_turn>\n"
                 "<start_of_turn>user\n\u200Bc<end_of_turn>\n<start_of_turn>model\n");
    /* Llama-2 trims the joined text, so an empty question takes the system's blank lines along */
    const dg_message bare[] = {{"system", " s "}, {"user", " "}};
    check_render("llama2", bare, 2, -1, "<B>[INST] <<SYS>>\n s \n<</SYS>> [/INST]");
}

static void test_refusals(void **state) {
    (void)state;
    const dg_message twice[] = {{"user", "a"}, {"user", "b"}}, odd[] = {{"user", "a"}, {"narrator", "b"}};
    char *text = NULL;
    check_fails(dg_chat_render(dg_chat_by_name("chatml"), talk, 0, true, -1, "", "", &text), DG_ERR_ARGUMENT,
                "without messages");
    check_fails(dg_chat_render(dg_chat_by_name("gemma"), twice, 2, true, -1, "", "", &text), DG_ERR_ARGUMENT,
                "message 1: user and assistant must take turns");
    check_fails(dg_chat_render(dg_chat_by_name("qwen3"), odd, 2, true, -1, "", "", &text), DG_ERR_ARGUMENT,
                "message 1: it has no role \"narrator\"");
    dg_mem_fail_nth(1, 1);
    const dg_status st = dg_chat_render(dg_chat_by_name("qwen3"), talk, 3, true, -1, "", "", &text);
    dg_mem_fail_nth(0, 0);
    assert_int_equal(st, DG_ERR_MEMORY);
    assert_null(text);
}

static const char *detected(const char *jinja) {
    const dg_chat_family *c = dg_chat_detect(jinja);
    return c ? dg_chat_name(c) : "none";
}

static void test_detection(void **state) {
    (void)state;
    static const char plain[] =
        "{% for m in messages %}{{'<|im_start|>' + message['role'] + '\\n'}}{% endfor %}"
        "{{ \"<|im_start|>assistant\\n\" }}";
    assert_string_equal(detected(plain), "chatml");
    assert_string_equal(detected("{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>' }}"),
                        "qwen2");
    assert_string_equal(
        detected("'<|im_start|>' last_query_index enable_thinking '<think>\\n\\n</think>\\n\\n'"), "qwen3");
    assert_string_equal(detected("<start_of_turn> first_user_prefix must alternate"), "gemma3");
    assert_string_equal(
        detected("'User: '  + message[\"content\"] + '\\n\\n' 'Assistant: ' + message['content'] + "
                 "eos_token 'Assistant:'"),
        "deepseek");
    /* more than the family does: not recognised */
    char more[512];
    snprintf(more, sizeof more, "{{ bos_token }}%s", plain);
    assert_string_equal(detected(more), "none");
    assert_string_equal(detected("[INST] something of its own [/INST]"), "none");
    assert_string_equal(detected(""), "none");
    assert_null(dg_chat_detect(NULL));
    assert_null(dg_chat_by_name("jinja"));
    assert_null(dg_chat_by_name(NULL));
}

/* Every listed name is a family. */
static void test_names(void **state) {
    (void)state;
    char list[1024];
    int n = 0;
    assert_true(strlen(dg_chat_names()) < sizeof list);
    strcpy(list, dg_chat_names());
    for (char *name = strtok(list, ", "); name; name = strtok(NULL, ", "), n++) {
        const dg_chat_family *c = dg_chat_by_name(name);
        if (!c) fail_msg("%s is listed but unknown", name);
        assert_string_equal(dg_chat_name(c), name);
    }
    assert_int_equal(n, 28);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_turns),     cmocka_unit_test(test_default_system),
        cmocka_unit_test(test_thinking),  cmocka_unit_test(test_tools),
        cmocka_unit_test(test_trim),      cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_detection), cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests_name("chat", tests, NULL, NULL);
}
