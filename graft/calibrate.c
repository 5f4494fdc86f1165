/* Thresholds from recorded rounds; see calibrate.h. */
#include "graft/calibrate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>


enum { QUANTILES = 32, RESAMPLES = 40, OUTSIDE = 2 /* of them on either side of a range */ };

static int by_size(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* ---- rule B ----------------------------------------------------------------------------------- */

/* Tokens a second with these thresholds. */
static double rate(const dg_gate_round *round, size_t n, const double *seconds, const float *tau) {
    double time = 0, tokens = 0;
    for (size_t i = 0; i < n; i++) {
        int32_t g = 0;
        while (g < DG_GATES && round[i].confidence[g] > tau[g]) g++;
        tokens += round[i].gained[g];
        time += seconds[g];
    }
    return tokens / time;
}

dg_status dg_calibrate_gates(const dg_gate_round *round, size_t n, const double seconds[DG_GATES + 1], float tau[DG_GATES]) {
    float value[DG_GATES][QUANTILES + 1];
    float *sorted = dg_mem_alloc(dg_mem_mul(n, sizeof *sorted));
    DG_CHECK(sorted, DG_ERR_MEMORY, "no memory for %zu rounds", n);
    for (int32_t g = 0; g < DG_GATES; g++) {
        for (size_t i = 0; i < n; i++) sorted[i] = round[i].confidence[g];
        qsort(sorted, n, sizeof *sorted, by_size);
        value[g][0] = -1;
        for (size_t q = 0; q < QUANTILES; q++) value[g][q + 1] = sorted[(n - 1) * q / (QUANTILES - 1)];
    }
    dg_mem_free(sorted);
    double best = -1;
    for (int32_t a = 0; a <= QUANTILES; a++)
        for (int32_t b = 0; b <= QUANTILES; b++)
            for (int32_t c = 0; c <= QUANTILES; c++) {
                const float candidate[DG_GATES] = {value[0][a], value[1][b], value[2][c]};
                const double x = rate(round, n, seconds, candidate);
                if (x <= best) continue;
                best = x;
                memcpy(tau, candidate, sizeof candidate);
            }
    for (int32_t g = 0; g < DG_GATES; g++) /* past all that was seen, "not reached" included: 1 stops as well */
        if (tau[g] > 1) tau[g] = 1;
    return DG_OK;
}

/* ---- rule A ----------------------------------------------------------------------------------- */

dg_status dg_calibrate_gates_by_loss(const dg_gate_round *round, size_t n, float tau[DG_GATES]) {
    static const double allowed[DG_GATES] = {0.05, 0.10, 0.20}; /* a wrong stop costs most where it comes first */
    float *sorted = dg_mem_alloc(dg_mem_mul(n, sizeof *sorted));
    DG_CHECK(sorted, DG_ERR_MEMORY, "no memory for %zu rounds", n);
    for (int32_t g = 0; g < DG_GATES; g++) {
        size_t n_needed = 0, n_other = 0;
        for (size_t i = 0; i < n; i++) {
            int32_t before = 0;
            while (before < g && round[i].confidence[before] > tau[before]) before++;
            if (before < g) continue;
            n_other += !round[i].needed[g];
            if (round[i].needed[g]) sorted[n_needed++] = round[i].confidence[g];
        }
        qsort(sorted, n_needed, sizeof *sorted, by_size);
        /* below the first that must go on; all may stop where none needed more */
        const size_t most = (size_t)(allowed[g] * (double)n_needed);
        tau[g] = n_needed == 0 ? (n_other ? 1.0f : -1.0f) : most == 0 ? -1.0f : sorted[most - 1];
        if (most && most < n_needed && sorted[most] == tau[g]) { /* a tie would stop more than allowed */
            size_t k = most;
            while (k > 0 && sorted[k - 1] == sorted[most]) k--;
            tau[g] = k ? sorted[k - 1] : -1.0f;
        }
        if (tau[g] > 1) tau[g] = 1;
    }
    dg_mem_free(sorted);
    return DG_OK;
}

/* ---- ranges ----------------------------------------------------------------------------------- */

static uint64_t draw(uint64_t *state) {
    *state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = *state;
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* The range that leaves OUTSIDE of the drawn values on either side, widened to hold `at`. */
static dg_threshold range(float at, float *value) {
    qsort(value, RESAMPLES, sizeof *value, by_size);
    dg_threshold t = {at, value[OUTSIDE], value[RESAMPLES - 1 - OUTSIDE]};
    if (t.low > at) t.low = at;
    if (t.high < at) t.high = at;
    return t;
}

/* Rounds of one prompt; they lie together. */
static size_t prompt_rounds(const dg_gate_round *round, size_t n, int32_t prompt, const dg_gate_round **first) {
    size_t from = 0, to;
    while (from < n && round[from].prompt != prompt) from++;
    for (to = from; to < n && round[to].prompt == prompt; to++) continue;
    *first = round + from;
    return to - from;
}

static dg_status one_threshold_set(const dg_gate_round *round, size_t n, const double *seconds, bool by_loss, float *tau) {
    return by_loss ? dg_calibrate_gates_by_loss(round, n, tau) : dg_calibrate_gates(round, n, seconds, tau);
}

dg_status dg_calibrate_thresholds(const dg_gate_round *round, size_t n, const double seconds[DG_GATES + 1], bool by_loss,
                                  dg_threshold out[DG_GATES]) {
    const int32_t n_prompt = round[n - 1].prompt + 1;
    float tau[DG_GATES], value[DG_GATES][RESAMPLES];
    uint64_t state = 1;
    DG_TRY(one_threshold_set(round, n, seconds, by_loss, tau));
    dg_gate_round *drawn = dg_mem_alloc(dg_mem_mul(2 * n + 1, sizeof *drawn));
    DG_CHECK(drawn, DG_ERR_MEMORY, "no memory for %zu rounds", n);
    dg_status st = DG_OK;
    for (int32_t k = 0; k < RESAMPLES && st == DG_OK; k++) {
        size_t m = 0;
        for (int32_t tries = 0; m < n && tries < 4 * n_prompt; tries++) {
            const dg_gate_round *first;
            const size_t len = prompt_rounds(round, n, (int32_t)(draw(&state) % (uint64_t)n_prompt), &first);
            for (size_t i = 0; i < len && m < 2 * n; i++) drawn[m++] = first[i];
        }
        double varied[DG_GATES + 1];
        for (int32_t g = 0; g <= DG_GATES; g++) varied[g] = seconds[g] * (0.95 + 0.1 * (double)(draw(&state) >> 11) * 0x1p-53);
        float again[DG_GATES] = {-1, -1, -1};
        st = one_threshold_set(m ? drawn : round, m ? m : n, varied, by_loss, again);
        for (int32_t g = 0; g < DG_GATES; g++) value[g][k] = again[g];
    }
    dg_mem_free(drawn);
    if (st != DG_OK) return st;
    for (int32_t g = 0; g < DG_GATES; g++) out[g] = range(tau[g], value[g]);
    return DG_OK;
}

/* ---- the tail --------------------------------------------------------------------------------- */

/* weight[p]: how often prompt p counts. */
static float best_tail(const dg_tail_round *round, size_t n, const float *value, const int32_t *weight) {
    int32_t best = 0;
    int64_t sum[DG_TAIL_VALUES] = {0};
    for (size_t i = 0; i < n; i++)
        for (int32_t v = 0; v < DG_TAIL_VALUES; v++) sum[v] += (int64_t)round[i].gained[v] * (weight ? weight[round[i].prompt] : 1);
    for (int32_t v = 1; v < DG_TAIL_VALUES; v++)
        if (sum[v] > sum[best]) best = v;
    return value[best];
}

dg_status dg_calibrate_tail(const dg_tail_round *round, size_t n, const float value[DG_TAIL_VALUES], dg_threshold *out) {
    const int32_t n_prompt = round[n - 1].prompt + 1;
    float drawn[RESAMPLES];
    uint64_t state = 2;
    int32_t *weight = dg_mem_alloc(dg_mem_mul((size_t)n_prompt, sizeof *weight));
    DG_CHECK(weight, DG_ERR_MEMORY, "no memory for %d prompts", n_prompt);
    for (int32_t k = 0; k < RESAMPLES; k++) {
        memset(weight, 0, (size_t)n_prompt * sizeof *weight);
        for (int32_t p = 0; p < n_prompt; p++) weight[draw(&state) % (uint64_t)n_prompt]++;
        drawn[k] = best_tail(round, n, value, weight);
    }
    dg_mem_free(weight);
    *out = range(best_tail(round, n, value, NULL), drawn);
    return DG_OK;
}

/* ---- the cost curve --------------------------------------------------------------------------- */

/* Dearer than a larger pass, or than its rows in passes of the size before would be: a look was disturbed. */
static bool doubtful(const double *seconds, int32_t n, int32_t i) {
    for (int32_t k = i + 1; k < n; k++)
        if (seconds[k] < seconds[i]) return true;
    return i > 0 && seconds[i] * dg_budget_rows(i - 1) > seconds[i - 1] * dg_budget_rows(i);
}

/* Looks at one size are apart from each other, so that one stall of the machine does not spoil them all. */
dg_status dg_calibrate_rows(dg_status (*look)(void *ud, int32_t rows, double *seconds), void *ud, int32_t most,
                            double seconds[DG_CAL_ROWS]) {
    enum { MORE = 5 }; /* at those in doubt */
    int32_t n = 0;
    for (; n < DG_CAL_ROWS && dg_budget_rows(n) <= most; n++) seconds[n] = INFINITY;
    for (int32_t i = n; i < DG_CAL_ROWS; i++) seconds[i] = 0;
    for (int32_t sweep = 0; sweep < DG_CAL_SWEEPS + MORE; sweep++) {
        for (int32_t i = 0; i < n; i++) {
            if (sweep >= DG_CAL_SWEEPS && !doubtful(seconds, n, i)) continue;
            double once;
            DG_TRY(look(ud, dg_budget_rows(i), &once));
            seconds[i] = fmin(seconds[i], once);
        }
    }
    for (int32_t i = n - 1; i > 0; i--) seconds[i - 1] = fmin(seconds[i - 1], seconds[i]);
    return DG_OK;
}
