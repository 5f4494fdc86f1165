/* See entropy.h. */
#include "runtime/entropy.h"

#include <math.h>

double dg_entropy(const float *logits, int32_t n) {
    float most = -INFINITY;
    double sum = 0, weighted = 0;
    for (int32_t i = 0; i < n; i++) most = fmaxf(most, logits[i]);
    if (!isfinite(most)) return 0;
    for (int32_t i = 0; i < n; i++) {
        const double x = (double)(logits[i] - most), e = exp(x);
        sum += e;
        if (e > 0) weighted += e * x;
    }
    return log(sum) - weighted / sum;
}
