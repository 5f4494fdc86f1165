/* Options: one table for all commands, read by the parser, by --help and by the suggestions; a second table
 * of options that other programs have and this one refuses by name. Names follow llama.cpp where the meaning
 * is the same. */
#include "runtime/cli.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef enum kind {
    FLAG,   /* bool */
    TEXT,   /* const char * */
    LIST,   /* cli_list: may be repeated */
    WHOLE,  /* int64_t in [lo, hi] */
    REAL,   /* double in [lo, hi] */
    REALS,  /* cli_numbers in [lo, hi], comma-separated */
    WHOLES, /* the same, whole numbers */
} kind;

typedef struct option {
    const char *names; /* "-m, --model" */
    const char *value; /* placeholder, NULL for flags */
    unsigned commands;
    kind kind;
    size_t offset; /* in cli_options */
    double lo, hi;
    const char *help;
} option;

#define AT(field) offsetof(cli_options, field)
#define DECODE    (CLI_RUN | CLI_CHAT | CLI_VERIFY) /* with drafters */
#define GENERATE  (DECODE | CLI_ANSWERS)
#define SESSION   (GENERATE | CLI_INFO)
#define DRAFTED   (DECODE | CLI_INFO | CLI_CALIBRATE)
#define MODEL     (SESSION | CLI_TOKENS | CLI_CALIBRATE)
#define PROMPT    (CLI_RUN | CLI_TOKENS | CLI_VERIFY)
#define CHAT      (PROMPT | CLI_ANSWERS)
#define ALL       (MODEL | CLI_MODES | CLI_CONVERT | CLI_SHOW)

static const option table[] = {
    {"-m, --model", "PATH", MODEL, TEXT, AT(model), 0, 0, "model: a Hugging Face directory or a GGUF file"},
    {"-m, --model", "IN", CLI_CONVERT, TEXT, AT(model), 0, 0, "model to read"},
    {"-o, --out", "OUT", CLI_CONVERT, TEXT, AT(out), 0, 0, "what to write: a file NAME.gguf, or a directory"},
    {"--type", "TYPE", CLI_CONVERT, TEXT, AT(type), 0, 0, "weight type: f32, bf16, f16 or q8_0"},
    {"--tokenizer", "PATH", CLI_CONVERT, TEXT, AT(tokenizer), 0, 0,
     "model whose tokenizer goes into a GGUF file (for a drafter: its target)"},
    {"--layers", "N", CLI_CONVERT, WHOLE, AT(layers), 1, 1024,
     "keep the first N layers alone, a small model to draft with (drafter lm)"},
    {"--force", NULL, CLI_CONVERT, FLAG, AT(force), 0, 0, "replace OUT if it is a file that exists"},

    {"-p, --prompt", "TEXT", PROMPT, TEXT, AT(prompt), 0, 0, "the prompt"},
    {"-f, --file", "FILE", CLI_RUN | CLI_TOKENS, TEXT, AT(file), 0, 0,
     "read it from FILE (- is standard input); one newline at its end is dropped"},
    {"-o, --out", "FILE", CLI_CALIBRATE, TEXT, AT(out), 0, 0,
     "file to write (default: beside the weights of the drafter)"},
    {"--rule", "A|B", CLI_CALIBRATE, TEXT, AT(rule), 0, 0,
     "thresholds by tokens a second (B, the default) or by what stopping loses (A)"},
    {"-o, --out", "FILE", CLI_ANSWERS, TEXT, AT(out), 0, 0, "JSON lines of the answers; appended to"},
    {"--sequences", "N", CLI_ANSWERS, WHOLE, AT(sequences), 1, 1024, "prompts answered side by side (default 64)"},
    {"--stop-loops", NULL, CLI_ANSWERS, FLAG, AT(stop_loops), 0, 0,
     "end an answer where four tokens in a row come for the fifth time"},
    {"--prompts", "FILE", CLI_ANSWERS, TEXT, AT(prompts), 0, 0,
     "JSON lines with prompt (text or token ids), optionally id, temp and source"},
    {"--prompts", "FILE", CLI_CALIBRATE, TEXT, AT(prompts), 0, 0,
     "JSON lines with prompt or turns, instead of the bundled ones"},
    {"--prompts", "FILE", CLI_VERIFY, TEXT, AT(prompts), 0, 0,
     "JSON lines with prompt or turns, optionally id and category"},
    {"-e, --escape", NULL, PROMPT, FLAG, AT(escape), 0, 0, "read \\n, \\t, \\\\ in -p as in C"},
    {"--chat", NULL, CHAT, FLAG, AT(chat), 0, 0, "put the prompt into the model's chat format"},
    {"--system", "TEXT", CHAT | CLI_CHAT, TEXT, AT(system), 0, 0, "system message (with --chat)"},
    {"--think", NULL, CHAT | CLI_CHAT, FLAG, AT(think), 0, 0, "thinking on, where the chat format has it"},
    {"--no-think", NULL, CHAT | CLI_CHAT, FLAG, AT(no_think), 0, 0, "thinking off"},
    {"--chat-template", "NAME", MODEL, TEXT, AT(chat_template), 0, 0,
     "chat format by name, instead of what the file's template tells"},
    {"--ids", "LIST", CLI_TOKENS, TEXT, AT(ids), 0, 0, "turn token ids (comma or space between) into text"},
    {"--no-bos", NULL, CLI_TOKENS, FLAG, AT(no_bos), 0, 0, "do not put the beginning-of-text token in front"},
    {"--no-parse-special", NULL, CLI_TOKENS, FLAG, AT(no_special), 0, 0,
     "read special tokens in the text as plain text"},

    {"-n, --predict, --n-predict", "N", CLI_CALIBRATE, WHOLE, AT(predict), 13, 1e6,
     "tokens of each answer (default 96)"},
    {"-n, --predict, --n-predict", "N", GENERATE, WHOLE, AT(predict), -1, 1e9,
     "most tokens of an answer; -1: until it ends or the context is full"},
    {"-c, --ctx-size", "N", SESSION, WHOLE, AT(context), 0, 1e9,
     "tokens of context; 0: all the model has (default: that, at most 4096)"},
    {"--temp, --temperature", "T", CLI_RUN | CLI_CHAT, REALS, AT(temp), 0, 100,
     "temperature; 0 is greedy (default)"},
    {"--temp, --temperature", "T,...", CLI_ANSWERS, REALS, AT(temp), 0, 100,
     "temperatures, taken in turn by prompts that name none (default 0)"},
    {"--temp, --temperature", "T,...", CLI_VERIFY, REALS, AT(temp), 0, 100,
     "temperatures to try (default 0)"},
    {"--top-k", "N", GENERATE, WHOLE, AT(top_k), 0, 2147483647,
     "keep the N likeliest tokens; 0: all (default)"},
    {"--top-p", "P", GENERATE, REAL, AT(top_p), 0, 1,
     "keep the likeliest tokens up to P together; 1: all (default)"},
    {"--min-p", "P", GENERATE, REAL, AT(min_p), 0, 1,
     "drop tokens less likely than P times the likeliest; 0: off (default)"},
    {"-s, --seed", "N", CLI_RUN | CLI_CHAT | CLI_ANSWERS, WHOLES, AT(seed), -1, 9007199254740991.0,
     "seed of the sampler (default 0); -1: another every time"},
    {"-s, --seed", "N,...", CLI_VERIFY, WHOLES, AT(seed), 0, 9007199254740991.0,
     "seeds to try at temperatures above 0 (default 0)"},
    {"-r, --stop, --reverse-prompt", "TEXT", GENERATE, LIST, AT(stop), 0, 0,
     "end the text before TEXT; may be repeated"},
    {"--ignore-eos", NULL, GENERATE, FLAG, AT(ignore_eos), 0, 0, "go on after an end-of-text token"},

    {"--draft", "NAME[:PATH][,KEY=V...]", DRAFTED, LIST, AT(draft), 0, 0,
     "add a drafter, in order; none: plain decoding ('dgraft modes' lists them)"},
    {"--mode", "NAME", DRAFTED, TEXT, AT(mode), 0, 0,
     "a named list of drafters and a budget ('dgraft modes')"},
    {"--drafter", "[NAME:]PATH", DRAFTED, LIST, AT(drafter), 0, 0, "weights for the {NAME} of a --mode"},
    {"--budget", "auto|N", CLI_VERIFY, TEXT, AT(budget), 0, 0,
     "drafted tokens verified in a round, 1 to 255 (default: the mode's, else 15)"},
    {"--budget", "auto|N", DRAFTED & ~CLI_VERIFY, TEXT, AT(budget), 0, 0,
     "drafted tokens verified in a round, 1 to 255 (default: the mode's, else auto: what promises the most tokens a second)"},
    {"--count-root", NULL, DRAFTED, FLAG, AT(count_root), 0, 0,
     "count the root among the budget, as the authors of EAGLE do: N rows instead of N + 1"},
    {"--calibration", "FILE|none", DECODE | CLI_INFO, TEXT, AT(calibration), 0, 0,
     "what 'dgraft calibrate' wrote (default: the file beside the drafter's weights, if there is one)"},

    {"-t, --threads", "N", MODEL, WHOLE, AT(threads), 0, 256, "threads; 0: one per core (default)"},
    {"-b, --batch-size", "N", CLI_ANSWERS, WHOLE, AT(batch), 1, 65536, "rows of one forward pass (default 256)"},
    {"-b, --batch-size", "N", SESSION & ~CLI_ANSWERS, WHOLE, AT(batch), 1, 65536,
     "rows of one forward pass (default 256, which is also the most)"},
    {"--compute", "NAME", SESSION | CLI_CALIBRATE, TEXT, AT(compute), 0, 0,
     "activations by quantised weights: default (14 bits), f32, or int8 (fastest, changes texts)"},
    {"--device", "NAME", MODEL, TEXT, AT(device), 0, 0,
     "where to compute: cpu (default), cuda, cuda:N, or auto: a GPU if there is one, else the CPU"},
    {"--exact", NULL, SESSION | CLI_CALIBRATE, FLAG, AT(exact), 0, 0,
     "drafted text equals plain text to the bit (default)"},
    {"--no-exact", NULL, SESSION | CLI_CALIBRATE, FLAG, AT(no_exact), 0, 0,
     "on a GPU let libraries sum as is fastest for the number of rows; 'dgraft verify' tells where texts part"},
    {"--kv", "TYPE", SESSION, TEXT, AT(kv), 0, 0,
     "keys and values kept as f16 (default) or f32 (default with --compute f32)"},

    {"--compare", NULL, CLI_RUN, FLAG, AT(compare), 0, 0,
     "decode plainly as well, and tell speed and whether the text is identical"},
    {"--trace", "FILE", CLI_RUN, TEXT, AT(trace), 0, 0,
     "write every round to FILE (tree, scores, who drafted what, what was accepted) for 'dgraft show'"},
    {"--save-memory", "FILE", CLI_RUN, TEXT, AT(save_memory), 0, 0,
     "write the successors that drafters learned, to begin with as in --draft fused:FILE"},
    {"--round", "N", CLI_SHOW, WHOLE, AT(round), 1, 1e9, "the round to draw (default: the one that accepted most)"},
    {"--color, --colour", NULL, CLI_SHOW, FLAG, AT(color), 0, 0, "colours although this is no terminal"},
    {"--color, --colour", NULL, CLI_RUN, FLAG, AT(color), 0, 0,
     "show in the text who drafted each accepted token"},
    {"--display-prompt", NULL, CLI_RUN, FLAG, AT(display_prompt), 0, 0, "print the prompt before the text"},
    {"--no-display-prompt", NULL, CLI_RUN, FLAG, AT(no_display_prompt), 0, 0, "do not (default)"},
    {"--json", NULL, ALL & ~(CLI_CHAT | CLI_CONVERT | CLI_ANSWERS | CLI_SHOW), FLAG, AT(json), 0, 0,
     "one JSON document on standard output"},
    {"-v, --verbose", NULL, MODEL, FLAG, AT(verbose), 0, 0, "say more on standard error"},
    {"-h, --help", NULL, ALL, FLAG, AT(help), 0, 0, "this text"},
};

enum { N_OPTION = sizeof table / sizeof *table };

typedef struct refusal {
    const char *names; /* separated by spaces; a trailing * stands for the rest */
    const char *why;
} refusal;

#define PENALTY "penalties look back at the text, which differs on every branch of a draft tree"
#define GRAMMAR "the output cannot be held to a grammar"
#define SAMPLER "the samplers are temperature, top-k, top-p and min-p"
#define DEVICE  "one device computes everything; choose it with --device"
#define ADAPTER "adapters are not applied; merge them into the weights first"
#define CACHE   "keys and values have one type, chosen with --kv"
#define ROPE    "rope settings come from the model's file"
#define MAPPED  "weights are always memory-mapped and shared, never locked"
#define DRAFTER "write --draft NAME:PATH ('dgraft modes' lists the drafters)"
#define NETWORK "nothing is downloaded; give a local path with -m"

static const refusal refused[] = {
    {"--repeat-penalty --repeat-last-n --presence-penalty --frequency-penalty", PENALTY},
    {"--dry-*", PENALTY},
    {"--logit-bias -l",
     "biased logits would not be the model's own, which is what drafts are checked against"},
    {"--grammar --grammar-file --json-schema --json-schema-file -j -jf", GRAMMAR},
    {"--mirostat* --typical --typical-p --xtc-* --dynatemp* --top-nsigma --top-n-sigma --adaptive-*",
     SAMPLER},
    {"--samplers --sampling-seq --sampler-seq", "the order is fixed: temperature, top-k, top-p, min-p"},
    {"-ngl --gpu-layers --n-gpu-layers -sm --split-mode -ts --tensor-split -mg --main-gpu -dev",
     DEVICE},
    {"-ot --override-tensor -cmoe --cpu-moe -ncmoe --n-cpu-moe -fa --flash-attn --numa", DEVICE},
    {"--lora* --control-vector*", ADAPTER},
    {"-ctk --cache-type-k -ctv --cache-type-v -ctkd -ctvd", CACHE},
    {"--rope-* --yarn-*", ROPE},
    {"--mlock --no-mmap --mmap", MAPPED},
    {"-hf --hf-repo -mu --model-url -hff --hf-file -hft --hf-token", NETWORK},
    {"-md --model-draft -hfd", DRAFTER},
    {"--draft-max --draft-n --draft-min --draft-n-min --spec-draft-n-max", "write --budget N"},
    {"--spec-type --spec-* --lookup-*", DRAFTER},
    {"--draft-p-min --draft-p-split", "drafts are ranked by their score and cut by --budget"},
    {"-ub --ubatch-size", "write -b N; there is one batch size"},
    {"-cnv --conversation -i --interactive --interactive-first",
     "write 'dgraft chat', or --chat for one answer"},
    {"-no-cnv --no-conversation", "'dgraft run' is that; --chat asks for the chat format"},
    {"-sys --system-prompt", "write --system TEXT"},
    {"--jinja --chat-template-file --chat-template-kwargs",
     "chat formats are built in; name one by --chat-template"},
    {"--reasoning-budget", "write --think or --no-think"},
    {"-mm --mmproj --image --audio", "text is the only input"},
    {"--context-shift --no-context-shift --keep", "a full context ends the text; nothing is dropped from it"},
    {"--prompt-cache* --session", "sessions are not stored"},
    {"-np --parallel", "one session at a time"},
    {"--in-prefix* --in-suffix", "the chat format decides what surrounds a message"},
    {"--logprobs --top-logprobs --n-probs", "write --json: it has the log-probability of every token"},
    {"--host --port --api-key* --slots --webui --no-webui", "there is no server"},
    {"-tb --threads-batch -td --threads-draft -tbd --threads-batch-draft", "write -t N; one number of threads does everything"},
    {"--warmup --no-warmup", "there is no warm-up pass"},
    {"--log-* --perf --no-perf --show-timings", "standard error tells little unless -v is given"},
    {"--verbose-prompt", "'dgraft tokens' shows the tokens of a prompt"},
    {"--embedding --embeddings --rerank --pooling", "text is the only output"},
};

/* ---- names ------------------------------------------------------------------------------------ */

/* The i-th name in "-m, --model"; its length, 0 at the end. */
static size_t name_at(const char *names, size_t i, const char **start) {
    for (;; i--) {
        names += strspn(names, ", ");
        const size_t len = strcspn(names, ", ");
        if (i == 0 || !len) {
            *start = names;
            return len;
        }
        names += len;
    }
}

static bool has_name(const char *names, const char *word, size_t word_len) {
    const char *name;
    size_t len;
    for (size_t i = 0; (len = name_at(names, i, &name)); i++) {
        if (name[len - 1] == '*' && word_len >= len - 1 && strncmp(name, word, len - 1) == 0) return true;
        if (len == word_len && memcmp(name, word, len) == 0) return true;
    }
    return false;
}

static const option *find_option(const char *word, size_t len, unsigned commands) {
    for (size_t i = 0; i < N_OPTION; i++)
        if ((table[i].commands & commands) && has_name(table[i].names, word, len)) return &table[i];
    return NULL;
}

/* Edit distance with swaps of neighbours (optimal string alignment); long words are simply far away. */
static size_t distance(const char *a, const char *b) {
    enum { MAX = 48 };
    const size_t n = strlen(a), m = strlen(b);
    if (n >= MAX || m >= MAX) return MAX;
    unsigned char d[MAX + 1][MAX + 1];
    for (size_t j = 0; j <= m; j++) d[0][j] = (unsigned char)j;
    for (size_t i = 1; i <= n; i++) {
        d[i][0] = (unsigned char)i;
        for (size_t j = 1; j <= m; j++) {
            size_t best = (size_t)d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            if (d[i - 1][j] + 1u < best) best = d[i - 1][j] + 1u;
            if (d[i][j - 1] + 1u < best) best = d[i][j - 1] + 1u;
            const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            if (swapped && d[i - 2][j - 2] + 1u < best) best = d[i - 2][j - 2] + 1u;
            d[i][j] = (unsigned char)best;
        }
    }
    return d[n][m];
}

const char *cli_nearest(const char *word, const char *(*next)(size_t i)) {
    const size_t most = strlen(word) < 6 ? 1 : strlen(word) < 10 ? 2 : 3;
    size_t best = most + 1, at = 0;
    const char *name;
    for (size_t i = 0; (name = next(i)); i++) {
        const size_t d = distance(word, name);
        if (d < best) best = d, at = i;
    }
    return best <= most ? next(at) : NULL;
}

static unsigned suggested; /* commands whose options are meant */

/* Every name of every option of these commands, one after another, for cli_nearest. */
static const char *option_name(size_t i) {
    static char name[48];
    const char *start;
    for (size_t k = 0; k < N_OPTION; k++) {
        size_t len;
        if (!(table[k].commands & suggested)) continue;
        for (size_t j = 0; (len = name_at(table[k].names, j, &start)); j++) {
            if (i-- > 0) continue;
            snprintf(name, sizeof name, "%.*s", (int)len, start);
            return name;
        }
    }
    return NULL;
}

static const char *long_option_name(size_t i) {
    const char *name = option_name(i);
    return name && name[1] != '-' ? "" : name; /* "" is never near */
}

/* ---- values ----------------------------------------------------------------------------------- */

/* One number at *p, up to a comma or the end; moves *p behind it. */
static bool read_number(const char **p, bool whole, double lo, double hi, double *out) {
    char *end;
    errno = 0;
    const double v = strtod(*p, &end);
    if (end == *p || errno || !isfinite(v) || v < lo || v > hi || (whole && v != floor(v))) return false;
    if (strpbrk(*p, "xXpP")) return false; /* hexadecimal is not meant */
    *p = end;
    *out = v;
    return true;
}

static int bad_value(const option *opt, const char *name, const char *found) {
    const bool whole = opt->kind == WHOLE || opt->kind == WHOLES;
    const char *what = opt->kind == WHOLES || opt->kind == REALS ? (whole ? "whole numbers" : "numbers")
                                                                 : (whole ? "a whole number" : "a number");
    cli_error("%s: expected %s from %.0f to %.0f, found '%s'", name, what, opt->lo, opt->hi, found);
    return CLI_USAGE;
}

static int store_numbers(const option *opt, const char *name, const char *value, cli_numbers *out) {
    const char *p = value;
    out->n = 0;
    for (;;) {
        if (out->n == CLI_LIST_MAX) {
            cli_error("%s: more than %d values", name, CLI_LIST_MAX);
            return CLI_USAGE;
        }
        if (!read_number(&p, opt->kind == WHOLES, opt->lo, opt->hi, &out->v[out->n])) {
            return bad_value(opt, name, value);
        }
        out->n++;
        if (!*p) break;
        if (*p++ != ',') return bad_value(opt, name, value);
    }
    if (out->n > 1 && !strchr(opt->value, ',')) {
        cli_error("%s: expected one value, found '%s' ('dgraft verify' takes several)", name, value);
        return CLI_USAGE;
    }
    return CLI_OK;
}

static int store(const option *opt, const char *name, const char *value, cli_options *o) {
    void *at = (char *)o + opt->offset;
    double v = 0;
    switch (opt->kind) {
    case FLAG:
        *(bool *)at = true;
        return CLI_OK;
    case TEXT:
        *(const char **)at = value;
        return CLI_OK;
    case LIST: {
        cli_list *list = at;
        if (!*value) {
            cli_error("%s: expected %s, found nothing", name, opt->value);
            return CLI_USAGE;
        }
        if (list->n == CLI_LIST_MAX) {
            cli_error("%s: given more than %d times", name, CLI_LIST_MAX);
            return CLI_USAGE;
        }
        list->v[list->n++] = value;
        return CLI_OK;
    }
    case REALS:
    case WHOLES:
        return store_numbers(opt, name, value, at);
    case WHOLE:
    case REAL: {
        const char *p = value;
        if (!read_number(&p, opt->kind == WHOLE, opt->lo, opt->hi, &v) || *p)
            return bad_value(opt, name, value);
        if (opt->kind == WHOLE) {
            *(int64_t *)at = (int64_t)v;
        } else {
            *(double *)at = v;
        }
        return CLI_OK;
    }
    }
    return CLI_USAGE;
}

/* ---- the command line ------------------------------------------------------------------------- */

static void print_owners(unsigned commands, cli_buffer *b) {
    static const char *const name[] = {"run", "chat", "tokens", "info", "verify", "modes", "convert", "answers", "show", "calibrate"};
    for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
        if (!(commands & (1u << i))) continue;
        if (b->len) cli_append(b, ", ", 2);
        cli_append(b, name[i], strlen(name[i]));
    }
}

static int unknown_option(const cli_command *command, const char *name) {
    const size_t len = strlen(name);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        if (!has_name(refused[i].names, name, len)) continue;
        cli_error("%s is not supported: %s", name, refused[i].why);
        return CLI_USAGE;
    }
    const option *elsewhere = find_option(name, len, ALL);
    if (elsewhere) {
        cli_buffer owners = {0};
        for (size_t i = 0; i < N_OPTION; i++)
            if (has_name(table[i].names, name, len)) print_owners(table[i].commands & ~command->bit, &owners);
        cli_error("%s is not an option of 'dgraft %s'; it belongs to %s", name, command->name, owners.data);
        free(owners.data);
        return CLI_USAGE;
    }
    suggested = command->bit;
    const char *near = cli_nearest(name, long_option_name);
    if (near) {
        cli_error("unknown option %s; did you mean %s?", name, near);
    } else {
        cli_error("unknown option %s ('dgraft %s --help' lists them)", name, command->name);
    }
    return CLI_USAGE;
}

/* What can only be checked when everything is known. */
static int check_together(const cli_command *command, const cli_options *o) {
    const char *wrong = NULL;
    if (o->exact && o->no_exact) wrong = "--exact and --no-exact exclude each other";
    if (o->think && o->no_think) wrong = "--think and --no-think exclude each other";
    if ((command->bit & CHAT) && !o->chat && (o->system || o->think || o->no_think)) {
        wrong = "--system, --think and --no-think belong to the chat format: add --chat";
    }
    if (o->prompt && o->file) wrong = "give the prompt with -p or -f, not both";
    if (o->prompt && o->prompts) wrong = "give prompts with -p or --prompts, not both";
    if (o->escape && !o->prompt) wrong = "-e reads escapes in the text of -p, which is missing";
    if (o->ids && (o->prompt || o->file || o->chat)) wrong = "--ids turns ids into text and takes no prompt";
    if (o->json && o->color) wrong = "--json and --color exclude each other";
    if (o->json && o->display_prompt) wrong = "--json and --display-prompt exclude each other";
    if (o->display_prompt && o->no_display_prompt) {
        wrong = "--display-prompt and --no-display-prompt exclude each other";
    }
    if (o->compute && strcmp(o->compute, "default") != 0 && strcmp(o->compute, "f32") != 0 &&
        strcmp(o->compute, "int8") != 0) {
        cli_error("--compute: expected default, f32 or int8, found '%s'", o->compute);
        return CLI_USAGE;
    }
    if (o->kv && strcmp(o->kv, "f16") != 0 && strcmp(o->kv, "f32") != 0) {
        cli_error("--kv: expected f16 or f32, found '%s'", o->kv);
        return CLI_USAGE;
    }
    if (command->argument && !o->argument) {
        cli_error("expected %s after 'dgraft %s', found nothing", command->argument, command->name);
        return CLI_USAGE;
    }
    if (o->predict == 0) wrong = "-n: expected -1 (no limit) or at least 1, found 0";
    if (!wrong && (command->bit & (MODEL | CLI_CONVERT)) && (!o->model || !*o->model)) {
        wrong = "give the model with -m PATH (a Hugging Face directory or a GGUF file)";
    }
    if (wrong) {
        cli_error("%s", wrong);
        return CLI_USAGE;
    }
    return CLI_OK;
}

/* One option at argv[*i], with its value; moves *i to the last argument used. */
static int parse_one(const cli_command *command, int argc, char **argv, int *i, cli_options *o) {
    char name[64];
    const char *arg = argv[*i];
    if (command->argument && !o->argument && (arg[0] != '-' || !arg[1])) {
        o->argument = arg;
        return CLI_OK;
    }
    if (arg[0] != '-' || !arg[1]) {
        cli_error("unexpected argument '%s'; options start with '-', and a prompt is given with -p", arg);
        return CLI_USAGE;
    }
    const char *equals = arg[1] == '-' ? strchr(arg, '=') : NULL;
    snprintf(name, sizeof name, "%.*s", (int)(equals ? equals - arg : (ptrdiff_t)strlen(arg)), arg);
    for (char *p = name + 2; name[1] == '-' && *p; p++)
        if (*p == '_') *p = '-';
    const option *opt = find_option(name, strlen(name), command->bit);
    if (!opt) return unknown_option(command, name);
    const char *value = equals ? equals + 1 : NULL;
    if (opt->kind == FLAG && value) {
        cli_error("%s takes no value, found '%s'", name, value);
        return CLI_USAGE;
    }
    if (opt->kind != FLAG && !value) {
        if (*i + 1 >= argc) {
            cli_error("%s: expected %s, found nothing", name, opt->value);
            return CLI_USAGE;
        }
        value = argv[++*i];
        if (value[0] == '-' && value[1] == '-' && find_option(value, strlen(value), ALL)) {
            const char *full = strstr(opt->names, "--");
            cli_error("%s: expected %s, found the option %s (if that is meant, write %.*s=%s)", name,
                      opt->value, value, (int)strcspn(full, ","), full, value);
            return CLI_USAGE;
        }
    }
    return store(opt, name, value, o);
}

int cli_parse(const cli_command *command, int argc, char **argv, cli_options *o) {
    *o = (cli_options){.command = command->bit, .predict = -1, .context = -1};
    for (int i = 0; i < argc; i++) {
        const int status = parse_one(command, argc, argv, &i, o);
        if (status != CLI_OK) return status;
        if (o->help) return CLI_OK;
    }
    return check_together(command, o);
}

/* Prints text wrapped at the right margin, from column `indent` on. */
static void print_wrapped(FILE *out, const char *text, size_t indent) {
    size_t column = indent;
    while (*text) {
        const size_t len = strcspn(text, " ");
        if (column > indent && column + 1 + len > 100) {
            fprintf(out, "\n%*s", (int)indent, "");
            column = indent;
        } else if (column > indent) {
            fputc(' ', out);
            column++;
        }
        fprintf(out, "%.*s", (int)len, text);
        column += len;
        text += len;
        text += strspn(text, " ");
    }
    fputc('\n', out);
}

void cli_help(FILE *out, const cli_command *command) {
    enum { INDENT = 34 };
    fprintf(out, "dgraft %s%s%s - %s\n\n%s\n\nOptions:\n", command->name, command->argument ? " " : "",
            command->argument ? command->argument : "", command->summary, command->about);
    for (size_t i = 0; i < N_OPTION; i++) {
        const option *opt = &table[i];
        if (!(opt->commands & command->bit)) continue;
        int column =
            fprintf(out, "  %s%s%s", opt->names, opt->value ? " " : "", opt->value ? opt->value : "");
        if (column >= INDENT - 1) {
            fputc('\n', out);
            column = 0;
        }
        fprintf(out, "%*s", INDENT - column, "");
        print_wrapped(out, opt->help, INDENT);
    }
    fprintf(out, "\nExamples:\n%s\n\n%s", command->examples, CLI_STATUS_HELP);
}
