/* dgraft-bench compare A.json B.json: two runs, prompt by prompt. */
#ifndef DG_BENCH_COMPARE_H
#define DG_BENCH_COMPARE_H

/* Prints the table, differences of provenance and verdicts. argv: the words behind "compare". Exit status: 0,
 * 1 if a file is not a result of this program or the runs have nothing in common, 2 for wrong usage. */
int bench_compare(int argc, char **argv);

#endif
