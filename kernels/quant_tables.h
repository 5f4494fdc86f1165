/* Codebooks of the IQ weight types. An entry is one grid point, its first element in the lowest bits:
 * 8 codes of 2 bits, or 4 codes of 3 bits for the iq3 grids. What a code stands for is in quant_iq.c. */
#ifndef DG_QUANT_TABLES_H
#define DG_QUANT_TABLES_H

#include <stdint.h>

extern const uint16_t dg_grid_iq2_xxs[256];
extern const uint16_t dg_grid_iq2_xs[512];
extern const uint16_t dg_grid_iq2_s[1024];
extern const uint16_t dg_grid_iq3_xxs[256];
extern const uint16_t dg_grid_iq3_s[512];
extern const uint16_t dg_grid_iq1[2048]; /* IQ1_S and IQ1_M */

#endif
