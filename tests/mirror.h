/* A device backend for tests that were written for the CPU: its operations take host memory, copy every operand to memory
 * of its own on the device, just as long as the operand, and copy the results back, with what lies between their rows. */
#ifndef DG_TESTS_MIRROR_H
#define DG_TESTS_MIRROR_H

#include "kernels/ops.h"

/* Makes an open backend's operations take host memory. */
void mirror_backend(dg_backend *be);

#endif
