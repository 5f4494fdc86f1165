/* Thresholds from recorded rounds; see calibrate.h. */
#include "graft/calibrate.h"

enum { QUANTILES = 32 };

/* Confidence of rank k among those of checkpoint g, by counting: no memory for a sorted copy is needed. */
static float ranked(const dg_gate_round *round, size_t n, int32_t g, size_t k) {
    for (size_t i = 0; i < n; i++) {
        size_t below = 0, equal = 0;
        for (size_t j = 0; j < n; j++) {
            below += round[j].confidence[g] < round[i].confidence[g];
            equal += round[j].confidence[g] == round[i].confidence[g];
        }
        if (below <= k && k < below + equal) return round[i].confidence[g];
    }
    return -1;
}

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

void dg_calibrate_gates(const dg_gate_round *round, size_t n, const double seconds[DG_GATES + 1],
                        float tau[DG_GATES]) {
    float value[DG_GATES][QUANTILES + 1];
    for (int32_t g = 0; g < DG_GATES; g++) {
        value[g][0] = -1;
        for (size_t q = 0; q < QUANTILES; q++)
            value[g][q + 1] = ranked(round, n, g, (n - 1) * q / (QUANTILES - 1));
    }
    double best = -1;
    for (int32_t a = 0; a <= QUANTILES; a++)
        for (int32_t b = 0; b <= QUANTILES; b++)
            for (int32_t c = 0; c <= QUANTILES; c++) {
                const float candidate[DG_GATES] = {value[0][a], value[1][b], value[2][c]};
                const double x = rate(round, n, seconds, candidate);
                if (x <= best) continue;
                best = x;
                for (int32_t g = 0; g < DG_GATES; g++) tau[g] = candidate[g];
            }
}
