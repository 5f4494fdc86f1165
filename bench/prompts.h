/* Prompts from files: the project's own form and those in which public sets are published, told apart by
 * their fields.
 *
 *   own                  {"id", "category", "prompt" or "turns": [first, ...], "system" (may be missing)}
 *   Spec-Bench, MT-Bench {"question_id", "category", "turns": [first, ...]}
 *   HumanEval            {"task_id", "prompt", "entry_point", ...}
 *   GSM8K                {"question", "answer"}
 *   Alpaca               {"instruction", "input" (may be empty or missing)}
 *   CNN/DailyMail        {"article", "highlights", "id"}
 *   LongBench            {"context", "input", "dataset", "_id"}
 *
 * One object a line, or one JSON array of them (as Alpaca comes). Of several turns the first is taken. */
#ifndef DG_BENCH_PROMPTS_H
#define DG_BENCH_PROMPTS_H

#include <stdbool.h>
#include <stddef.h>

typedef struct bench_prompt {
    char *id, *category, *text;
    char *system; /* NULL: none */
} bench_prompt;

typedef struct bench_prompts {
    bench_prompt *v;
    int n;
} bench_prompts;

/* Adds the prompts of a file, at most per_category of each category (0: all), counted over all files read so
 * far. On failure false, nothing is added, and error says file, line, expected and found. */
bool bench_prompts_read(bench_prompts *p, const char *path, int per_category, char *error, size_t cap);

/* The first of each category, then the second of each, ...: what drifts while the machine works drifts for
 * all categories, and an interrupted run has some of each. */
void bench_prompts_mix(bench_prompts *p);

void bench_prompts_free(bench_prompts *p);

#endif
