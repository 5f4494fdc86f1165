/* What one arm did on one prompt: counts and seconds, and the same as JSON. Knows no session. */
#ifndef DG_BENCH_SAMPLE_H
#define DG_BENCH_SAMPLE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

enum {
    SAMPLE_SOURCES = 8,  /* drafters of an arm, in its order */
    SAMPLE_DEPTHS = 64,  /* the last: that or deeper */
    SAMPLE_BINS = 10,    /* of a probability */
    SAMPLE_ROWS = 257,   /* rows of a verify pass */
    SAMPLE_CONTEXTS = 24 /* half octaves from 16 tokens on */
};

typedef struct sample {
    uint64_t tokens, rounds, passes, rows;       /* appended; of the drafters; verified, roots included */
    uint64_t prompt, text;                       /* tokens of the prompt; hash of the tokens behind it */
    bool equal;                                  /* to plain decoding's */
    double seconds, cpu, draft, verify, prefill; /* seconds and cpu: of all rounds, wall and processor */
    uint64_t peak;                               /* bytes resident at most while it worked; 0: not known */
    uint64_t proposed[SAMPLE_SOURCES];
    uint64_t accepted[SAMPLE_DEPTHS][SAMPLE_SOURCES];
    uint64_t row_count[SAMPLE_ROWS]; /* rounds by rows verified */
    struct {
        uint64_t tested, accepted; /* nodes whose parent was accepted, and those that were themselves */
        double promised;           /* sum of the probabilities that the scores gave them */
    } bin[SAMPLE_SOURCES][SAMPLE_BINS];
    struct {
        uint64_t tokens;
        double seconds;
    } at[SAMPLE_CONTEXTS]; /* rounds by tokens of text before them */
} sample;

void sample_add(sample *sum, const sample *s);

/* New reference; zeros are left out. */
json_t *sample_to_json(const sample *s);

/* False if something else than sample_to_json wrote it. */
bool sample_from_json(const json_t *j, sample *s);

/* Same tokens, as far as hash and number say. */
bool sample_same_text(const sample *a, const sample *b);

int sample_context_bin(uint64_t tokens);
double sample_context_low(int bin); /* the least number of tokens of a bin */
int sample_probability_bin(double p);
uint64_t sample_accepted(const sample *s, int source); /* of all depths; source -1: of all sources */

#endif
