# Acceptance length against the nodes that were verified for it.
load dir."/plots/vars.gp"
W = 1000
H = n_family > 20 ? 260 + 22 * n_family : 620
load gp."/style.gp"
set title "tokens a round, the target's own included, by drafted nodes verified a round"
set xlabel "drafted nodes a round (mean)"
set ylabel "tokens a round"
set logscale x 2
set key outside right top Left reverse samplen 2.5 spacing 1.3
set xrange [*:*]
set yrange [0.9:*]
set offsets graph 0.05, graph 0.05, graph 0.05, 0
set arrow 1 from graph 0, first 1 to graph 1, first 1 nohead lc rgb "#555555" lw 2 dt 2
set label 1 "plain decoding" at graph 0.01, first 1 offset 0,0.6 tc rgb "#555555"
plot for [i = 1:n_family] dir."/plots/tau.dat" index i - 1 using ($1 > 0 ? $1 : NaN):2 with linespoints lt i title a_family[i]
