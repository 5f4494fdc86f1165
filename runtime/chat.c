/* Chat templates without Jinja: a table of the published families, one renderer, recognition by markers.
 *
 * A family is what its template says about turns: what stands before and after a message of each role, where
 * the system message goes, what opens the answer. Texts of the table may hold \001 (BOS), \002 (EOS), \003
 * (the role's name) and \004 (today's date). What a template does with tools or pictures is left out, and a
 * template that has markers of a family but does more than the table says is not recognised. */
#include "runtime/chat.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "runtime/buffer.h"
#include "runtime/file.h"
#include "runtime/mem.h"

typedef struct turn {
    const char *before, *after; /* NULL: the family has no such role */
} turn;

typedef enum placement { /* of the leading system message */
    SYSTEM_TURN,       /* a turn of its own */
    SYSTEM_FIRST_USER, /* inside the first message */
    SYSTEM_LAST_USER,  /* inside the last message, if the user wrote that */
    SYSTEM_FRONT       /* the texts of all system messages stand before every turn */
} placement;

typedef enum thoughts { /* of answers given before */
    THOUGHTS_KEPT,
    THOUGHTS_CUT,       /* DeepSeek-R1: what comes before the last </think> goes */
    THOUGHTS_CUT_FIRST, /* DeepSeek-V3.1: before the first one, and the turn opens with </think> */
    THOUGHTS_CUT_OLD,   /* QwQ: in all answers but a last one */
    THOUGHTS_QWEN3      /* kept, and laid out anew, in answers after the user's last question */
} thoughts;

enum {
    TRIM = 1,           /* white space around every message goes */
    TRIM_ASSISTANT = 2,
    TRIM_JOINED = 4,    /* user and system text in one message are trimmed together */
    ALTERNATE = 8,      /* user and assistant take turns */
    ASKED_ONLY = 16,    /* the answer is opened only after a user's message */
    FRONT_LAST = 32     /* of several system messages the last one alone stands in front */
};

struct dg_chat_family {
    const char *name;
    const char *front;               /* once, before everything */
    turn system, user, assistant, tool;
    turn tool_group;                 /* around neighbouring tool messages */
    turn lead;                       /* the leading system message, where not like the others */
    const char *lead_default;        /* its text when the conversation has none; NULL: left out */
    const char *answer, *answer_off, *answer_on; /* opens the answer: default, thinking off, thinking on */
    placement placement;
    thoughts thoughts;
    int flags;
    const char *has[5], *lacks[5];   /* markers of the template */
};

#define BOS "\001"
#define EOS "\002"
#define ROLE "\003"
#define DATE "\004"
#define IM(role) {"<|im_start|>" role "\n", "<|im_end|>\n"}
#define IM_TOOLS .tool = {"\n<tool_response>\n", "\n</tool_response>"}, \
                 .tool_group = {"<|im_start|>user", "<|im_end|>\n"}
#define IM_ANSWER "<|im_start|>assistant\n"
#define IM_ALL .system = IM("system"), .user = IM("user"), .assistant = IM("assistant")
#define DEFAULT(text) .lead_default = text, .has = {"<|im_start|>system\n" text "<|im_end|>"}
#define HEADER(role) {"<|start_header_id|>" role "<|end_header_id|>\n\n", "<|eot_id|>"}
#define HEADER_ALL .system = HEADER("system"), .user = HEADER("user"), .assistant = HEADER("assistant"), \
                   .answer = "<|start_header_id|>assistant<|end_header_id|>\n\n"
#define KNOWLEDGE "<|start_header_id|>system<|end_header_id|>\n\n" \
                  "Cutting Knowledge Date: December 2023\nToday Date: "
#define GEMMA(role) {"<start_of_turn>" role "\n", "<end_of_turn>\n"}
#define INST(open, close) {"[INST]" open, close "[/INST]"}
#define DEEPSEEK .user = {"<｜User｜>", ""}, .assistant = {"<｜Assistant｜>", "<｜end▁of▁sentence｜>"}, \
                 .system = {"", ""}, .placement = SYSTEM_FRONT, .front = BOS

/* Recognition takes the first that fits. */
static const dg_chat_family families[] = {
    {.name = "smollm2", IM_ALL, .answer = IM_ANSWER,
     DEFAULT("You are a helpful AI assistant named SmolLM, trained by Hugging Face")},
    {.name = "qwen3", IM_ALL, IM_TOOLS, .answer = IM_ANSWER,
     .answer_off = IM_ANSWER "<think>\n\n</think>\n\n", .thoughts = THOUGHTS_QWEN3,
     .has = {"<|im_start|>", "last_query_index", "enable_thinking", "'<think>\n\n</think>\n\n'"},
     .lacks = {"<|vision_start|>", "raise_exception", "|trim", "| trim"}},
    {.name = "qwen3-thinking", IM_ALL, IM_TOOLS, .answer = IM_ANSWER "<think>\n", .thoughts = THOUGHTS_QWEN3,
     .has = {"'<|im_start|>assistant\n<think>\n'", "last_query_index"},
     .lacks = {"<|vision_start|>", "raise_exception", "|trim", "| trim", "enable_thinking"}},
    {.name = "qwq", IM_ALL, IM_TOOLS, .answer = IM_ANSWER "<think>\n", .thoughts = THOUGHTS_CUT_OLD,
     .has = {"'<|im_start|>assistant\n<think>\n'", "if not loop.last", "split('</think>')[-1].lstrip('\n')"},
     .lacks = {"last_query_index"}},
    {.name = "qwen2.5", IM_ALL, IM_TOOLS, .answer = IM_ANSWER,
     DEFAULT("You are Qwen, created by Alibaba Cloud. You are a helpful assistant.")},
    {.name = "qwen2", IM_ALL, .answer = IM_ANSWER, DEFAULT("You are a helpful assistant."),
     .lacks = {"<tool_response>"}},
    {.name = "qwen1.5", IM_ALL, .answer = IM_ANSWER, DEFAULT("You are a helpful assistant"),
     .lacks = {"<tool_response>"}},
    {.name = "qwen3-instruct", IM_ALL, IM_TOOLS, .answer = IM_ANSWER,
     .has = {"'<|im_start|>system\n' + messages[0]", "'<|im_start|>assistant\n'", "<tool_response>"},
     .lacks = {"think", "<|vision_start|>", "raise_exception", "|trim", "| trim"}},
    {.name = "chatml", .system = IM(ROLE), .user = IM(ROLE), .assistant = IM(ROLE), .tool = IM(ROLE),
     .answer = IM_ANSWER, .has = {"'<|im_start|>' + message", "'<|im_start|>assistant\n'"},
     .lacks = {"<|im_start|>system", "bos_token", "trim", "raise_exception", "think"}},
    {.name = "llama3.2", HEADER_ALL, .front = BOS, .lead_default = "", .flags = TRIM,
     .lead = {KNOWLEDGE DATE "\n\n", "<|eot_id|>"},
     .has = {"<|start_header_id|>", "Cutting Knowledge Date: December 2023", "strftime_now('%d %b %Y')"}},
    {.name = "llama3.1", HEADER_ALL, .front = BOS, .lead_default = "", .flags = TRIM,
     .lead = {KNOWLEDGE "26 Jul 2024\n\n", "<|eot_id|>"},
     .has = {"<|start_header_id|>", "Cutting Knowledge Date: December 2023", "26 Jul 2024"}},
    {.name = "llama3", HEADER_ALL, .front = "<|begin_of_text|>", .flags = TRIM,
     .tool = HEADER("tool"),
     .has = {"'<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'",
             "message['content'] | trim + '<|eot_id|>'"},
     .lacks = {"raise_exception", "tools", "Date"}},
    {.name = "llama2", .user = {BOS "[INST] ", " [/INST]"}, .assistant = {" ", " " EOS},
     .lead = {"<<SYS>>\n", "\n<</SYS>>\n\n"}, .placement = SYSTEM_FIRST_USER,
     .flags = TRIM_ASSISTANT | TRIM_JOINED | ALTERNATE,
     .has = {"bos_token + '[INST] ' + content.strip() + ' [/INST]'", "content.strip() + ' ' + eos_token",
             "'<<SYS>>\n' + system_message + '\n<</SYS>>\n\n'"},
     .lacks = {"elif message['role'] == 'system'", "elif true"}},
    {.name = "mistral", .front = "<s>", .user = INST(" ", " "), .assistant = {" ", "</s>"},
     .has = {"'<s>'", "'[INST] ' + message['content'] + ' [/INST]'", "' ' + message['content'] + '</s>'"},
     .lacks = {"must alternate", "system_message"}},
    {.name = "mistral-v0.1", .front = BOS, .user = INST(" ", " "), .assistant = {"", EOS " "},
     .flags = ALTERNATE,
     .has = {"bos_token", "'[INST] ' + message['content'] + ' [/INST]'",
             "{ message['content'] + eos_token + ' '"},
     .lacks = {"system_message"}},
    {.name = "mistral-v0.2", .front = BOS, .user = INST(" ", " "), .assistant = {"", EOS}, .flags = ALTERNATE,
     .has = {"bos_token", "'[INST] ' + message['content'] + ' [/INST]'", "{ message['content'] + eos_token"},
     .lacks = {"system_message"}},
    {.name = "mistral-v1", .front = BOS, .user = {" [INST] ", " [/INST]"}, .assistant = {" ", EOS},
     .lead = {"", "\n\n"}, .placement = SYSTEM_FIRST_USER, .flags = ALTERNATE,
     .has = {"loop.first and system_message is defined", "' [INST] ' + message['content'] + ' [/INST]'",
             "' ' + message['content'] + eos_token"}},
    {.name = "mistral-v3", .front = BOS, .user = INST(" ", ""), .assistant = {" ", EOS}, .lead = {"", "\n\n"},
     .placement = SYSTEM_LAST_USER, .flags = ALTERNATE | TRIM_ASSISTANT,
     .has = {"loop.last and system_message is defined", "'[INST] ' + message['content'] + '[/INST]'",
             "' ' + message['content']|trim + eos_token"}},
    {.name = "mistral-v3-tekken", .front = BOS, .user = INST("", ""), .assistant = {"", EOS},
     .lead = {"", "\n\n"}, .placement = SYSTEM_LAST_USER, .flags = ALTERNATE,
     .has = {"loop.last and system_message is defined", "'[INST]' + message['content'] + '[/INST]'",
             "{- message['content'] + eos_token"}},
    {.name = "zephyr", .system = {"<|system|>\n", EOS "\n"}, .user = {"<|user|>\n", EOS "\n"},
     .assistant = {"<|assistant|>\n", EOS "\n"}, .answer = "<|assistant|>\n",
     .has = {"'<|user|>\n' + message['content'] + eos_token",
             "'<|system|>\n' + message['content'] + eos_token",
             "'<|assistant|>\n' + message['content'] + eos_token", "loop.last and add_generation_prompt"}},
    {.name = "gemma", .front = BOS, .user = GEMMA("user"), .assistant = GEMMA("model"),
     .answer = "<start_of_turn>model\n", .flags = TRIM | ALTERNATE,
     .has = {"<start_of_turn>", "System role not supported", "must alternate", "message['content'] | trim"}},
    {.name = "gemma3", .front = BOS, .user = GEMMA("user"), .assistant = GEMMA("model"),
     .answer = "<start_of_turn>model\n", .flags = TRIM | ALTERNATE, .lead = {"", "\n\n"},
     .placement = SYSTEM_FIRST_USER, .has = {"<start_of_turn>", "first_user_prefix", "must alternate"}},
    {.name = "deepseek-v3.1", DEEPSEEK, .thoughts = THOUGHTS_CUT_FIRST, .flags = ASKED_ONLY,
     .answer = "<｜Assistant｜></think>", .answer_on = "<｜Assistant｜><think>",
     .has = {"<｜User｜>", "<｜Assistant｜></think>", "if not thinking", "split('</think>', 1)[1]"}},
    {.name = "deepseek-r1", DEEPSEEK, .thoughts = THOUGHTS_CUT, .flags = FRONT_LAST,
     .answer = "<｜Assistant｜><think>\n",
     .has = {"<｜User｜>", "'<｜Assistant｜><think>\n'", "split('</think>')[-1]"},
     .lacks = {"'<｜User｜>' + message['content'] +"}},
    {.name = "deepseek-r1-zero", DEEPSEEK, .thoughts = THOUGHTS_CUT, .flags = FRONT_LAST,
     .answer = "<｜Assistant｜>",
     .has = {"<｜User｜>", "'<｜Assistant｜>'", "split('</think>')[-1]"}, .lacks = {"<think>"}},
    {.name = "deepseek-v3", DEEPSEEK, .answer = "<｜Assistant｜>",
     .has = {"<｜User｜>", "'<｜Assistant｜>'", "<｜end▁of▁sentence｜>"}, .lacks = {"think"}},
    {.name = "deepseek-coder", .front = BOS, .system = {"", ""}, .user = {"### Instruction:\n", "\n"},
     .assistant = {"### Response:\n", "\n<|EOT|>\n"}, .answer = "### Response:\n",
     .lead_default =
         "You are an AI programming assistant, utilizing the Deepseek Coder model, developed by Deepseek "
         "Company, and you only answer questions related to computer science. For politically sensitive "
         "questions, security and privacy issues, and other non-computer science questions, you will refuse "
         "to answer\n",
     .has = {"'### Instruction:\n' + message['content'] + '\n'",
             "'### Response:\n' + message['content'] + '\n<|EOT|>\n'",
             "utilizing the Deepseek Coder model, developed by Deepseek Company"}},
    {.name = "deepseek", .front = BOS, .system = {"", "\n\n"}, .user = {"User: ", "\n\n"},
     .assistant = {"Assistant: ", EOS}, .answer = "Assistant:",
     .has = {"'User: ' + message['content'] + '\n\n'", "'Assistant: ' + message['content'] + eos_token",
             "'Assistant:'"}},
};
enum { N_FAMILY = sizeof families / sizeof *families };

/* ---- recognition ------------------------------------------------------------------------------ */

/* Does the template have the marker at p? A line break may be written out or as \n, either quote will do, and
 * one space stands for any number of them. */
static bool marker_at(const char *p, const char *marker) {
    for (; *marker; marker++, p++) {
        if (*marker == '\n' && p[0] == '\\' && p[1] == 'n')
            p++;
        else if (*marker == ' ' && *p == ' ')
            p += strspn(p, " ") - 1;
        else if (*marker == '\'' ? *p != '\'' && *p != '"' : *p != *marker)
            return false;
    }
    return true;
}

static bool has_marker(const char *jinja, const char *marker) {
    for (; *jinja; jinja++)
        if (marker_at(jinja, marker)) return true;
    return false;
}

const dg_chat_family *dg_chat_detect(const char *jinja) {
    for (size_t i = 0; jinja && i < N_FAMILY; i++) {
        const dg_chat_family *c = &families[i];
        bool fits = true;
        for (size_t k = 0; fits && k < 5 && c->has[k]; k++) fits = has_marker(jinja, c->has[k]);
        for (size_t k = 0; fits && k < 5 && c->lacks[k]; k++) fits = !has_marker(jinja, c->lacks[k]);
        if (fits) return c;
    }
    return NULL;
}

const dg_chat_family *dg_chat_by_name(const char *name) {
    for (size_t i = 0; name && i < N_FAMILY; i++)
        if (strcmp(families[i].name, name) == 0) return &families[i];
    return NULL;
}

const char *dg_chat_name(const dg_chat_family *c) {
    return c->name;
}

const char *dg_chat_names(void) {
    return "chatml, smollm2, qwen1.5, qwen2, qwen2.5, qwen3, qwen3-instruct, qwen3-thinking, qwq, llama2, "
           "llama3, llama3.1, llama3.2, mistral, mistral-v0.1, mistral-v0.2, mistral-v1, mistral-v3, "
           "mistral-v3-tekken, zephyr, gemma, gemma3, deepseek, deepseek-coder, deepseek-v3, deepseek-v3.1, "
           "deepseek-r1, deepseek-r1-zero";
}

/* ---- texts ------------------------------------------------------------------------------------ */

typedef struct painter {
    const dg_chat_family *c;
    const dg_message *msg;
    size_t n;
    const char *bos, *eos;
    dg_buffer out;
} painter;

static dg_str whole(const char *s) {
    return (dg_str){s, strlen(s)};
}

static bool is_role(const dg_message *m, const char *role) {
    return strcmp(m->role, role) == 0;
}

/* Length of the white space at the beginning of s as Python's strip() sees it, 0: none. */
static size_t space_length(dg_str s) {
    static const char *const wide[] = {"\xC2\x85", "\u00A0", "\u1680", "\u2028",
                                       "\u2029",   "\u202F", "\u205F", "\u3000"};
    const char c = s.len ? s.ptr[0] : 'x';
    if ((c >= 9 && c <= 13) || (c >= 28 && c <= 32)) return 1;
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++) {
        const size_t n = strlen(wide[i]);
        if (s.len >= n && memcmp(s.ptr, wide[i], n) == 0) return n;
    }
    const bool en_quad = s.len >= 3 && memcmp(s.ptr, "\xE2\x80", 2) == 0;
    return en_quad && (uint8_t)s.ptr[2] >= 0x80 && (uint8_t)s.ptr[2] <= 0x8A ? 3 : 0; /* U+2000 to U+200A */
}

static dg_str trim(dg_str s) {
    for (size_t n; (n = space_length(s)) > 0;) s.ptr += n, s.len -= n;
    while (s.len > 0) {
        size_t n = 1;
        while (n < s.len && n < 3 && ((uint8_t)s.ptr[s.len - n] & 0xC0) == 0x80) n++;
        if (space_length((dg_str){s.ptr + s.len - n, n}) != n) break;
        s.len -= n;
    }
    return s;
}

static dg_str trim_lines(dg_str s, bool front, bool back) {
    while (front && s.len > 0 && s.ptr[0] == '\n') s.ptr++, s.len--;
    while (back && s.len > 0 && s.ptr[s.len - 1] == '\n') s.len--;
    return s;
}

/* The part of s before (after) the first (last) occurrence of mark; false: it does not occur. */
static bool split(dg_str s, const char *mark, bool last, dg_str *before, dg_str *after) {
    const size_t n = strlen(mark);
    const char *hit = memmem(s.ptr, s.len, mark, n);
    if (!hit) return false;
    for (const char *next = hit; last && next;
         next = memmem(hit + 1, s.len - (size_t)(hit + 1 - s.ptr), mark, n))
        hit = next;
    const size_t at = (size_t)(hit - s.ptr);
    if (before) *before = (dg_str){s.ptr, at};
    if (after) *after = (dg_str){hit + n, s.len - at - n};
    return true;
}

static dg_status put(painter *p, dg_str s) {
    return dg_buffer_add(&p->out, s.ptr, s.len);
}

/* A text of the table. */
static dg_status paint(painter *p, const char *text, const char *role) {
    char date[32] = "";
    for (; *text; text++) {
        dg_str s = {text, 1};
        if (*text == BOS[0])
            s = whole(p->bos);
        else if (*text == EOS[0])
            s = whole(p->eos);
        else if (*text == ROLE[0])
            s = whole(role);
        else if (*text == DATE[0]) {
            static const char months[12][4] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                               "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
            const time_t now = time(NULL);
            struct tm day;
            localtime_r(&now, &day);
            snprintf(date, sizeof date, "%02d %s %d", day.tm_mday, months[day.tm_mon], day.tm_year + 1900);
            s = whole(date);
        }
        DG_TRY(put(p, s));
    }
    return DG_OK;
}

/* ---- turns ------------------------------------------------------------------------------------ */

static const turn *turn_of(const dg_chat_family *c, const char *role) {
    static const char *const roles[] = {"system", "user", "assistant", "tool"};
    const turn *turns[] = {&c->system, &c->user, &c->assistant, &c->tool};
    for (int i = 0; i < 4; i++)
        if (strcmp(role, roles[i]) == 0) return turns[i]->before ? turns[i] : NULL;
    return NULL;
}

/* Messages before this one belong to the front: a system message that is not a turn like the others. */
static size_t first_turn(const painter *p) {
    const bool apart = p->c->placement == SYSTEM_FIRST_USER || p->c->placement == SYSTEM_LAST_USER ||
                       (p->c->placement == SYSTEM_TURN && (p->c->lead.before || p->c->lead_default));
    return apart && is_role(&p->msg[0], "system") ? 1 : 0;
}

static dg_status check(const painter *p) {
    const dg_chat_family *c = p->c;
    DG_CHECK(p->n > 0, DG_ERR_ARGUMENT, "chat template %s: a conversation without messages", c->name);
    const size_t first = first_turn(p);
    for (size_t i = first; i < p->n; i++) {
        DG_CHECK(turn_of(c, p->msg[i].role), DG_ERR_ARGUMENT,
                 "chat template %s: message %zu: it has no role \"%s\"", c->name, i, p->msg[i].role);
        DG_CHECK(!(c->flags & ALTERNATE) || is_role(&p->msg[i], "user") == ((i - first) % 2 == 0),
                 DG_ERR_ARGUMENT,
                 "chat template %s: message %zu: user and assistant must take turns, found \"%s\"", c->name,
                 i, p->msg[i].role);
    }
    return DG_OK;
}

/* A message of the user, joined with the system message that the template puts into it. */
static dg_status paint_user(painter *p, size_t i) {
    const dg_chat_family *c = p->c;
    const bool here =
        c->placement == SYSTEM_FIRST_USER ? i == 1 : c->placement == SYSTEM_LAST_USER && i == p->n - 1;
    const bool join = here && first_turn(p) == 1;
    dg_str text = whole(p->msg[i].content);
    if (c->flags & TRIM) text = trim(text);
    if (!join) return put(p, c->flags & TRIM_JOINED ? trim(text) : text);

    painter joined = {.bos = p->bos, .eos = p->eos};
    dg_status st = paint(&joined, c->lead.before, "system");
    if (st == DG_OK) st = put(&joined, whole(p->msg[0].content));
    if (st == DG_OK) st = paint(&joined, c->lead.after, "system");
    if (st == DG_OK) st = put(&joined, text);
    const dg_str all = {joined.out.p, joined.out.n};
    if (st == DG_OK) st = put(p, c->flags & TRIM_JOINED ? trim(all) : all);
    dg_mem_free(joined.out.p);
    return st;
}

/* Qwen3 counts as the last question the user's last message that is not a tool's answer in disguise. */
static size_t last_question(const painter *p) {
    static const char open[] = "<tool_response>", close[] = "</tool_response>";
    for (size_t i = p->n; i-- > 0;) {
        const dg_str s = whole(p->msg[i].content);
        const bool tool = s.len >= sizeof close - 1 && memcmp(s.ptr, open, sizeof open - 1) == 0 &&
                          memcmp(s.ptr + s.len - (sizeof close - 1), close, sizeof close - 1) == 0;
        if (is_role(&p->msg[i], "user") && !tool) return i;
    }
    return p->n - 1;
}

static dg_status paint_qwen3(painter *p, size_t i) {
    dg_str text = whole(p->msg[i].content), thought = {"", 0};
    if (split(text, "</think>", false, &thought, NULL)) {
        thought = trim_lines(thought, false, true);
        split(thought, "<think>", true, NULL, &thought);
        thought = trim_lines(thought, true, false);
        split(text, "</think>", true, NULL, &text);
        text = trim_lines(text, true, false);
    }
    if (i > last_question(p) && (i == p->n - 1 || thought.len > 0)) {
        DG_TRY(put(p, whole("<think>\n")));
        DG_TRY(put(p, trim_lines(thought, true, true)));
        DG_TRY(put(p, whole("\n</think>\n\n")));
        text = trim_lines(text, true, false);
    }
    return put(p, text);
}

static dg_status paint_answer(painter *p, size_t i) {
    const dg_chat_family *c = p->c;
    dg_str text = whole(p->msg[i].content);
    switch (c->thoughts) {
    case THOUGHTS_KEPT: break;
    case THOUGHTS_CUT: split(text, "</think>", true, NULL, &text); break;
    case THOUGHTS_CUT_FIRST: split(text, "</think>", false, NULL, &text); break;
    case THOUGHTS_CUT_OLD:
        if (i == p->n - 1) break;
        split(text, "</think>", true, NULL, &text);
        text = trim_lines(text, true, false);
        break;
    case THOUGHTS_QWEN3: return paint_qwen3(p, i);
    }
    return put(p, c->flags & (TRIM | TRIM_ASSISTANT) ? trim(text) : text);
}

/* Did the user speak last before message i, system messages aside? */
static bool asked(const painter *p, size_t i) {
    while (i > 0 && is_role(&p->msg[i - 1], "system")) i--;
    return i > 0 && is_role(&p->msg[i - 1], "user");
}

static dg_status paint_turn(painter *p, size_t i) {
    const dg_chat_family *c = p->c;
    const dg_message *m = &p->msg[i];
    const turn *t = turn_of(c, m->role);
    const bool tool = t == &c->tool && c->tool_group.before;
    const char *before = t->before;
    if (t == &c->assistant && c->thoughts == THOUGHTS_CUT_FIRST) before = asked(p, i) ? c->answer : "";
    if (tool && (i == 0 || !is_role(m - 1, "tool"))) DG_TRY(paint(p, c->tool_group.before, m->role));
    DG_TRY(paint(p, before, m->role));
    if (t == &c->user)
        DG_TRY(paint_user(p, i));
    else if (t == &c->assistant)
        DG_TRY(paint_answer(p, i));
    else
        DG_TRY(put(p, c->flags & TRIM ? trim(whole(m->content)) : whole(m->content)));
    DG_TRY(paint(p, t->after, m->role));
    if (tool && (i == p->n - 1 || !is_role(m + 1, "tool"))) DG_TRY(paint(p, c->tool_group.after, m->role));
    return DG_OK;
}

/* What stands before the turns: the leading system message, or all of them. */
static dg_status paint_front(painter *p) {
    const dg_chat_family *c = p->c;
    if (c->front) DG_TRY(paint(p, c->front, ""));
    if (c->placement == SYSTEM_TURN && (c->lead.before || c->lead_default)) {
        const turn *t = c->lead.before ? &c->lead : &c->system;
        const char *text = first_turn(p) == 1 ? p->msg[0].content : c->lead_default;
        if (!text) return DG_OK;
        DG_TRY(paint(p, t->before, "system"));
        DG_TRY(put(p, c->flags & TRIM ? trim(whole(text)) : whole(text)));
        return paint(p, t->after, "system");
    }
    if (c->placement != SYSTEM_FRONT) return DG_OK;
    const size_t start = p->out.n;
    for (size_t i = 0; i < p->n; i++) {
        if (!is_role(&p->msg[i], "system")) continue;
        if (c->flags & FRONT_LAST)
            p->out.n = start;
        else if (p->out.n > start)
            DG_TRY(put(p, whole("\n\n")));
        DG_TRY(put(p, whole(p->msg[i].content)));
    }
    return DG_OK;
}

static dg_status paint_all(painter *p, bool add_generation, int thinking) {
    const dg_chat_family *c = p->c;
    DG_TRY(check(p));
    DG_TRY(paint_front(p));
    for (size_t i = first_turn(p); i < p->n; i++) {
        if (c->placement == SYSTEM_FRONT && is_role(&p->msg[i], "system")) continue;
        DG_TRY(paint_turn(p, i));
    }
    if (add_generation && c->answer && (!(c->flags & ASKED_ONLY) || asked(p, p->n))) {
        const char *answer = thinking == 0 ? c->answer_off : thinking == 1 ? c->answer_on : NULL;
        DG_TRY(paint(p, answer ? answer : c->answer, "assistant"));
    }
    return dg_buffer_add(&p->out, "", 1);
}

dg_status dg_chat_render(const dg_chat_family *c, const dg_message *msg, size_t n, bool add_generation,
                         int thinking, const char *bos, const char *eos, char **text) {
    painter p = {.c = c, .msg = msg, .n = n, .bos = bos, .eos = eos};
    const dg_status st = paint_all(&p, add_generation, thinking);
    if (st == DG_OK)
        *text = p.out.p;
    else
        dg_mem_free(p.out.p);
    return st;
}
