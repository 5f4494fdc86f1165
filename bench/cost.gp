# Cost of a verify pass by its rows, and how many rows the arms verified in a round.
load dir."/plots/vars.gp"
W = 1000
H = n_arm > 20 ? 260 + 22 * n_arm : 620
load gp."/style.gp"
set title "a verify pass by its rows, and what the arms verify in a round (mean; bar: 10th to 90th percentile)"
set xlabel "rows, the root included"
set ylabel "milliseconds"
set logscale xy 2
set key outside right top Left reverse samplen 2 spacing 1.3
set xrange [0.9:300]
set style fill solid 0.25 noborder
plot dir."/plots/cost.dat" index 0 using ($2 > 0 ? $1 : NaN):3:4 with filledcurves lc rgb "#888888" notitle, \
     "" index 0 using ($2 > 0 ? $1 : NaN):2 with lines lw 2 lc rgb "#555555" title "measured alone", \
     for [i = 1:n_arm] "" index i using ($1 > 0 ? $1 : NaN):2:3:4 with xerrorbars lt i dt 1 lw 1 ps 1.4 title a_arm[i]
