/* dgraft modes: every named mode with its expansion, every drafter with its help line. */
#include "runtime/cli.h"

#include <string.h>

static void print_json(void) {
    json_t *modes = json_array(), *drafters = json_array();
    for (size_t i = 0; i < dg_mode_count(); i++) {
        const dg_mode *mode = dg_mode_get(i);
        json_t *one = json_object();
        json_object_set_new(one, "name", json_string(mode->name));
        json_object_set_new(one, "draft", json_string(mode->drafts ? mode->drafts : ""));
        json_object_set_new(one, "budget", mode->budget ? json_integer(mode->budget) : json_string("auto"));
        json_object_set_new(one, "help", json_string(mode->help ? mode->help : ""));
        json_array_append_new(modes, one);
    }
    for (size_t i = 0; i < dg_drafter_count(); i++) {
        json_t *one = json_object();
        json_object_set_new(one, "name", json_string(dg_drafter_name(i)));
        json_object_set_new(one, "help", json_string(dg_drafter_help(i)));
        json_array_append_new(drafters, one);
    }
    json_t *all = json_object();
    json_object_set_new(all, "modes", modes);
    json_object_set_new(all, "drafters", drafters);
    cli_print_json(all);
}

/* A mode as the options that it stands for. */
static void print_expansion(const dg_mode *mode) {
    const char *p = mode->drafts && *mode->drafts ? mode->drafts : "none";
    fputs("      =", stdout);
    while (*(p += strspn(p, " "))) {
        const int len = (int)strcspn(p, " ");
        printf(" --draft %.*s", len, p);
        p += len;
    }
    if (mode->budget) {
        printf(" --budget %d\n", mode->budget);
    } else {
        fputs(" --budget auto\n", stdout);
    }
}

static int run(const cli_options *o) {
    if (o->json) {
        print_json();
        return cli_finish_output(CLI_OK);
    }
    puts("Modes (--mode NAME; {NAME} is filled in by --drafter PATH):");
    for (size_t i = 0; i < dg_mode_count(); i++) {
        const dg_mode *mode = dg_mode_get(i);
        printf("  %s: %s\n", mode->name, mode->help ? mode->help : "");
        print_expansion(mode);
    }
    puts("\nDrafters (--draft NAME[:PATH][,KEY=VALUE...], repeatable, in order):");
    for (size_t i = 0; i < dg_drafter_count(); i++)
        printf("  %s: %s\n", dg_drafter_name(i), dg_drafter_help(i));
    puts("  none: plain decoding");
    return cli_finish_output(CLI_OK);
}

const cli_command cli_modes = {
    .name = "modes",
    .bit = CLI_MODES,
    .summary = "list the modes and the drafters",
    .about = "Prints what each --mode expands to, and every drafter with its parameters.",
    .examples = "  dgraft modes\n  dgraft run -m model.gguf -p 'Once' --mode NAME --drafter drafter/",
    .run = run,
};
