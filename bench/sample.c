/* See sample.h. */
#include "bench/sample.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

int sample_context_bin(uint64_t tokens) {
    const int bin = (int)floor(2 * log2((double)(tokens < 16 ? 16 : tokens) / 16) + 1e-9);
    return bin < SAMPLE_CONTEXTS ? bin : SAMPLE_CONTEXTS - 1;
}

double sample_context_low(int bin) {
    return 16 * exp2(bin / 2.0);
}

int sample_probability_bin(double p) {
    const int bin = (int)(p * SAMPLE_BINS);
    return bin < 0 ? 0 : bin < SAMPLE_BINS ? bin : SAMPLE_BINS - 1;
}

uint64_t sample_accepted(const sample *s, int source) {
    uint64_t n = 0;
    for (int d = 0; d < SAMPLE_DEPTHS; d++)
        for (int i = 0; i < SAMPLE_SOURCES; i++) n += source < 0 || source == i ? s->accepted[d][i] : 0;
    return n;
}

bool sample_same_text(const sample *a, const sample *b) {
    return a->text == b->text && a->tokens == b->tokens;
}

void sample_add(sample *sum, const sample *s) {
    sum->tokens += s->tokens, sum->rounds += s->rounds, sum->passes += s->passes, sum->rows += s->rows;
    sum->prompt += s->prompt, sum->seconds += s->seconds, sum->cpu += s->cpu, sum->draft += s->draft;
    sum->verify += s->verify, sum->prefill += s->prefill;
    if (s->peak > sum->peak) sum->peak = s->peak;
    for (int i = 0; i < SAMPLE_SOURCES; i++) {
        sum->proposed[i] += s->proposed[i];
        for (int d = 0; d < SAMPLE_DEPTHS; d++) sum->accepted[d][i] += s->accepted[d][i];
        for (int b = 0; b < SAMPLE_BINS; b++) {
            sum->bin[i][b].tested += s->bin[i][b].tested;
            sum->bin[i][b].accepted += s->bin[i][b].accepted;
            sum->bin[i][b].promised += s->bin[i][b].promised;
        }
    }
    for (int r = 0; r < SAMPLE_ROWS; r++) sum->row_count[r] += s->row_count[r];
    for (int c = 0; c < SAMPLE_CONTEXTS; c++)
        sum->at[c].tokens += s->at[c].tokens, sum->at[c].seconds += s->at[c].seconds;
}

/* ---- JSON ------------------------------------------------------------------------------------- */

json_t *sample_to_json(const sample *s) {
    char text[24];
    snprintf(text, sizeof text, "%016" PRIx64, s->text);
    json_t *j = json_pack("{s:I,s:I,s:I,s:I,s:I,s:s,s:b,s:f,s:f,s:f,s:f,s:f,s:I}", "tokens",
                          (json_int_t)s->tokens, "rounds", (json_int_t)s->rounds, "drafter_passes",
                          (json_int_t)s->passes, "verified_rows", (json_int_t)s->rows, "prompt_tokens",
                          (json_int_t)s->prompt, "text_hash", text, "equal", s->equal, "seconds", s->seconds,
                          "cpu_seconds", s->cpu, "draft_seconds", s->draft, "verify_seconds", s->verify,
                          "prefill_seconds", s->prefill, "peak_bytes", (json_int_t)s->peak);
    json_t *proposed = json_array(), *accepted = json_array(), *rows = json_array(), *bins = json_array(),
           *at = json_array();
    for (int i = 0; i < SAMPLE_SOURCES; i++)
        if (s->proposed[i])
            json_array_append_new(proposed, json_pack("[i,I]", i, (json_int_t)s->proposed[i]));
    for (int d = 0; d < SAMPLE_DEPTHS; d++)
        for (int i = 0; i < SAMPLE_SOURCES; i++)
            if (s->accepted[d][i])
                json_array_append_new(accepted, json_pack("[i,i,I]", d, i, (json_int_t)s->accepted[d][i]));
    for (int r = 0; r < SAMPLE_ROWS; r++)
        if (s->row_count[r]) json_array_append_new(rows, json_pack("[i,I]", r, (json_int_t)s->row_count[r]));
    for (int i = 0; i < SAMPLE_SOURCES; i++)
        for (int b = 0; b < SAMPLE_BINS; b++)
            if (s->bin[i][b].tested)
                json_array_append_new(bins,
                                      json_pack("[i,i,I,I,f]", i, b, (json_int_t)s->bin[i][b].tested,
                                                (json_int_t)s->bin[i][b].accepted, s->bin[i][b].promised));
    for (int c = 0; c < SAMPLE_CONTEXTS; c++)
        if (s->at[c].tokens)
            json_array_append_new(at, json_pack("[i,I,f]", c, (json_int_t)s->at[c].tokens, s->at[c].seconds));
    json_object_set_new(j, "proposed", proposed); /* [source, nodes] */
    json_object_set_new(j, "accepted", accepted); /* [depth, source, nodes] */
    json_object_set_new(j, "rows", rows);         /* [rows, rounds] */
    json_object_set_new(j, "confidence", bins);   /* [source, tenth, tested, accepted, promised] */
    json_object_set_new(j, "context", at);        /* [half octave, tokens, seconds] */
    return j;
}

/* Number k of a row, checked against a bound where it is an index. */
static bool entry(const json_t *row, size_t k, uint64_t bound, uint64_t *v) {
    const json_t *j = json_array_get(row, k);
    if (!json_is_integer(j) || json_integer_value(j) < 0) return false;
    *v = (uint64_t)json_integer_value(j);
    return *v < bound;
}

static bool real(const json_t *row, size_t k, double *v) {
    const json_t *j = json_array_get(row, k);
    *v = json_number_value(j);
    return json_is_number(j);
}

static bool lists_from_json(const json_t *j, sample *s) {
    size_t i;
    json_t *row;
    uint64_t a, b;
    json_array_foreach(json_object_get(j, "proposed"), i,
                       row) if (!entry(row, 0, SAMPLE_SOURCES, &a) ||
                                !entry(row, 1, UINT64_MAX, &s->proposed[a])) return false;
    json_array_foreach(json_object_get(j, "accepted"), i,
                       row) if (!entry(row, 0, SAMPLE_DEPTHS, &a) || !entry(row, 1, SAMPLE_SOURCES, &b) ||
                                !entry(row, 2, UINT64_MAX, &s->accepted[a][b])) return false;
    json_array_foreach(json_object_get(j, "rows"), i,
                       row) if (!entry(row, 0, SAMPLE_ROWS, &a) ||
                                !entry(row, 1, UINT64_MAX, &s->row_count[a])) return false;
    json_array_foreach(json_object_get(j, "confidence"), i,
                       row) if (!entry(row, 0, SAMPLE_SOURCES, &a) || !entry(row, 1, SAMPLE_BINS, &b) ||
                                !entry(row, 2, UINT64_MAX, &s->bin[a][b].tested) ||
                                !entry(row, 3, UINT64_MAX, &s->bin[a][b].accepted) ||
                                !real(row, 4, &s->bin[a][b].promised)) return false;
    json_array_foreach(json_object_get(j, "context"), i,
                       row) if (!entry(row, 0, SAMPLE_CONTEXTS, &a) ||
                                !entry(row, 1, UINT64_MAX, &s->at[a].tokens) ||
                                !real(row, 2, &s->at[a].seconds)) return false;
    return true;
}

bool sample_from_json(const json_t *j, sample *s) {
    json_int_t tokens, rounds, passes, rows, prompt, peak;
    const char *text;
    int equal;
    *s = (sample){0};
    if (json_unpack((json_t *)j, "{s:I,s:I,s:I,s:I,s:I,s:s,s:b,s:F,s:F,s:F,s:F,s:F,s:I}", "tokens", &tokens,
                    "rounds", &rounds, "drafter_passes", &passes, "verified_rows", &rows, "prompt_tokens",
                    &prompt, "text_hash", &text, "equal", &equal, "seconds", &s->seconds, "cpu_seconds",
                    &s->cpu, "draft_seconds", &s->draft, "verify_seconds", &s->verify, "prefill_seconds",
                    &s->prefill, "peak_bytes", &peak))
        return false;
    s->tokens = (uint64_t)tokens, s->rounds = (uint64_t)rounds, s->passes = (uint64_t)passes,
    s->rows = (uint64_t)rows;
    s->prompt = (uint64_t)prompt, s->peak = (uint64_t)peak, s->equal = equal != 0;
    s->text = strtoull(text, NULL, 16);
    return tokens > 0 && rounds > 0 && s->seconds > 0 && lists_from_json(j, s);
}
