/* The program: finds the command and runs it. Exit statuses are listed in cli.h and in the help below. */
#include <string.h>

#include "runtime/cli.h"

static const cli_command *const commands[] = {&cli_run,    &cli_chat,  &cli_tokens, &cli_info,
                                              &cli_verify, &cli_modes, &cli_convert, &cli_answers,
                                              &cli_show, &cli_calibrate};

enum { N_COMMAND = sizeof commands / sizeof *commands };

static const char *command_name(size_t i) {
    return i < N_COMMAND ? commands[i]->name : NULL;
}

static const cli_command *find_command(const char *name) {
    for (size_t i = 0; i < N_COMMAND; i++)
        if (strcmp(commands[i]->name, name) == 0) return commands[i];
    return NULL;
}

static void print_help(FILE *out) {
    fputs("dgraft: run language models with speculative decoding. A drafter changes the speed, never the "
          "text.\n\n"
          "Usage: dgraft COMMAND [OPTIONS]\n\nCommands:\n",
          out);
    for (size_t i = 0; i < N_COMMAND; i++)
        fprintf(out, "  %-10s%s\n", commands[i]->name, commands[i]->summary);
    fputs("\n  dgraft COMMAND --help    options and examples of a command\n"
          "  dgraft --version         version and what is compiled in\n\n" CLI_STATUS_HELP,
          out);
}

/* What other programs have under these names. */
static const struct {
    const char *name, *where;
} elsewhere[] = {
    {"bench", "the benchmark is a program of its own, dgraft-bench ('make bench' runs it)"},
    {"server", "there is no server; 'dgraft answers' answers a file of prompts"},
    {"serve", "there is no server; 'dgraft answers' answers a file of prompts"},
    {"tokenize", "'dgraft tokens' shows the tokens of a text"},
    {"detokenize", "'dgraft tokens --ids' shows the text of tokens"},
    {"quantize", "'dgraft convert --type' writes weights in another type"},
};

static int unknown_command(const char *word) {
    if (word[0] == '-') {
        cli_error("the command comes first, as in 'dgraft run %s ...' ('dgraft --help' lists the commands)",
                  word);
        return CLI_USAGE;
    }
    for (size_t i = 0; i < sizeof elsewhere / sizeof *elsewhere; i++) {
        if (strcmp(elsewhere[i].name, word) != 0) continue;
        cli_error("there is no command '%s': %s", word, elsewhere[i].where);
        return CLI_USAGE;
    }
    const char *near = cli_nearest(word, command_name);
    if (near) {
        cli_error("there is no command '%s'; did you mean '%s'?", word, near);
    } else {
        cli_error("there is no command '%s' ('dgraft --help' lists them)", word);
    }
    return CLI_USAGE;
}

static int help_on(const char *name) {
    const cli_command *command = find_command(name);
    if (!command) return unknown_command(name);
    static char all[1 << 14]; /* in one piece, so that a failure to write it is noticed with its reason */
    setvbuf(stdout, all, _IOFBF, sizeof all);
    cli_help(stdout, command);
    return cli_finish_output(CLI_OK);
}

int main(int argc, char **argv) {
    /* a closed pipe is a failed write with a message, not a silent death */
    signal(SIGPIPE, SIG_IGN);
    if (argc < 2) {
        print_help(stderr);
        return CLI_USAGE;
    }
    const char *word = argv[1];
    if (strcmp(word, "--version") == 0) {
        printf("dgraft %s\n%s\n", dg_version(), dg_build_info());
        return cli_finish_output(CLI_OK);
    }
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "help") == 0) {
        if (word[0] == 'h' && argc > 2) return help_on(argv[2]);
        print_help(stdout);
        return cli_finish_output(CLI_OK);
    }
    const cli_command *command = find_command(word);
    if (!command) return unknown_command(word);
    cli_options o;
    const int status = cli_parse(command, argc - 2, argv + 2, &o);
    if (status != CLI_OK) return status;
    if (o.help) return help_on(command->name);
    return command->run(&o);
}
