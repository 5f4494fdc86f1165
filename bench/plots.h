/* Plots: the data that they show as text files, and gnuplot run over bench's scripts. */
#ifndef DG_BENCH_PLOTS_H
#define DG_BENCH_PLOTS_H

#include "bench/run.h"

/* Writes dir/plots/NAME.dat and vars.gp, and dir/NAME.png and .svg by the scripts in `scripts`. Without
 * gnuplot or scripts the data alone, with a line on standard error. False with a message if a file cannot be
 * written. */
bool bench_plots(const bench_run *r, const char *dir, const char *scripts);

#endif
