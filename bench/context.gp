# Speed over the length of the text before a round.
load dir."/plots/vars.gp"
W = 1000
H = n_arm > 20 ? 260 + 22 * n_arm : 620
load gp."/style.gp"
set title "tokens a second by tokens of text before the round"
set xlabel "tokens of text, prompt included"
set ylabel "tokens a second"
set logscale x 2
set key outside right top Left reverse samplen 2.5 spacing 1.3
set xrange [*:*]
set yrange [0:*]
set offsets graph 0.03, graph 0.03, graph 0.05, 0
plot for [i = 1:n_arm] dir."/plots/context.dat" index i - 1 using ($1 > 0 ? $1 : NaN):2 with linespoints lt i title a_arm[i]
