/* Stopping early; see stop.h. */
#include "dflash/stop.h"

#include <math.h>

#include "runtime/entropy.h"

void dg_stop_defaults(dg_stop_rules *r) {
    static const int32_t at[DG_CAL_GATES] = {0, 1, 5}, keep[DG_CAL_GATES] = {8, 24, 40};
    *r = (dg_stop_rules){0};
    for (int32_t i = 0; i < DG_CAL_GATES; i++) r->gate[i].at = at[i], r->gate[i].keep = keep[i], r->gate[i].threshold = -1;
}

void dg_stop_settle(dg_stop_rules *r, const dg_calibration *known) {
    static const float usual[DG_CAL_GATES] = {0.35f, 0.25f, 0.15f}; /* the paper names none */
    for (int32_t i = 0; i < DG_CAL_GATES; i++) {
        if (r->gate[i].threshold >= 0) continue;
        const float tau = known && known->has_gates ? known->gate[i].at : usual[i];
        r->gate[i].threshold = r->gated && tau > 0 ? tau : 0;
    }
}

int32_t dg_stop_keep(const dg_stop_rules *r, dg_beam *beam, int32_t budget, const float *logits, int32_t n) {
    const int32_t behind = beam->passes - 1;
    for (int32_t i = 0; i < DG_CAL_GATES; i++)
        if (r->gate[i].at == behind && r->gate[i].threshold > 0 && !(expf(dg_beam_best(beam)) > r->gate[i].threshold))
            return r->gate[i].keep;
    if (r->mass > 0 && behind % 2 == 1 && !(dg_beam_mass(beam) > r->mass)) return budget;
    if (r->svip > 0 && sqrt(0.15 * dg_entropy(logits, n)) > (double)r->svip) return budget;
    return -1;
}
