/* dgraft inside another program: opens a model, drafts, prints the text as it comes.
 * cc embed.c $(pkg-config --cflags --libs dgraft) -o embed; ./embed MODEL PROMPT [DRAFTER [PATH]] */
#include <dgraft.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(dg_status status) {
    if (status == DG_OK) return;
    fprintf(stderr, "%s: %s\n", dg_status_name(status), dg_error_message());
    exit(1);
}

static bool print_piece(void *ud, const dg_piece *p) {
    (void)ud;
    fwrite(p->text, 1, p->len, stdout);
    return fflush(stdout) == 0; /* false would stop here */
}

int main(int argc, char **argv) {
    if (argc < 3) return fprintf(stderr, "usage: embed MODEL PROMPT [DRAFTER [PATH]]\n"), 2;
    dg_model *model = NULL;
    check(dg_model_open(argv[1], NULL, &model));

    int32_t prompt[1024];
    size_t n = 0;
    check(dg_tokenize(model, argv[2], strlen(argv[2]), DG_TOKENIZE_BOS, prompt, 1024, &n));
    if (n > 1024) return fprintf(stderr, "the prompt has %zu tokens, more than 1024\n", n), 1;

    dg_draft draft = {argc > 3 ? argv[3] : "ngram", argc > 4 ? argv[4] : NULL, NULL};
    dg_session_options options;
    memset(&options, 0, sizeof options); /* zero is every field's default: greedy, budget chosen by the library */
    options.draft = &draft, options.n_draft = 1;
    dg_session *session = NULL;
    check(dg_session_create(model, &options, &session));
    check(dg_session_sync(session, prompt, n));
    check(dg_session_generate(session, 64, print_piece, NULL, NULL));
    dg_stats stats;
    dg_session_get_stats(session, &stats);
    fprintf(stderr, "\n%.2f tokens a round\n", (double)stats.tokens / (double)(stats.rounds ? stats.rounds : 1));
    dg_session_free(session);
    dg_model_close(model);
    return 0;
}
