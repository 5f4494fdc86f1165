/* Where a result comes from: program, machine, its state, models, settings. All of it ends up in every file.
 */
#ifndef DG_BENCH_PROVENANCE_H
#define DG_BENCH_PROVENANCE_H

#include <jansson.h>

#include "bench/run.h"

/* Load, frequency governor, throttling counts and time of day, now. New reference. */
json_t *provenance_state(void);

/* Program, machine, models, arms, prompts and settings: what must be the same for a run to go on. New
 * reference. */
json_t *provenance_setup(const bench_run *r);

/* "fnv1a-64" over size, first and last MiB of a file, or of every weights file, config.json and calibration
 * in a folder;
 * "" if it cannot be read. Tells versions of a model apart, and is no proof of integrity. */
void provenance_hash(const char *path, char out[32]);

/* A name for this machine's results: processor and number of threads, letters, digits and dashes. */
void provenance_machine_name(int threads, char *out, size_t cap);

/* What makes the figures doubtful, in sentences: load, throttling, drift. `start` and `end` are states. Array
 * of strings. */
json_t *provenance_warnings(const bench_run *r, const json_t *start, const json_t *end);

/* Whatever differs between two setups: lines "field: a | b". Array of strings. */
json_t *provenance_differences(const json_t *a, const json_t *b);

#endif
