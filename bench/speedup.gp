# Speed beside plain decoding by category and arm: dots with their 95 % intervals, one panel a category, plain a line at 1.
load dir."/plots/vars.gp"
n = n_category + 1
columns = n < 3 ? n : 3
lines = int(ceil(real(n) / columns))
W = 60 + 470 * columns
H = 60 + lines * (90 + 22 * n_arm)
load gp."/style.gp"
stats dir."/plots/speedup.dat" using (log($3) / log(2)) name "L" nooutput
stats dir."/plots/speedup.dat" using (log($4) / log(2)) name "U" nooutput
set multiplot layout lines,columns title "tokens a second beside plain decoding of the same prompt (1 = plain)"
set yrange [n_arm + 0.7:0.3]
set logscale x 2
set xtics ("1/8" 0.125, "1/4" 0.25, "1/2" 0.5, "1" 1, "2" 2, "4" 4, "8" 8)
set grid x noy
unset key
set ytics () nomirror
do for [i = 1:n_arm] { set ytics add (a_arm[i] i) }
set xrange [2**(L_min - 0.2):2**(U_max + 0.2)]
set arrow 1 from 1, graph 0 to 1, graph 1 nohead lc rgb "#555555" lw 2 dt 2
do for [c = 0:n_category] {
    if (c == 0) { set title "all prompts" } else { set title a_category[c] }
    plot dir."/plots/speedup.dat" index c using 2:1:3:4 with xerrorbars lc rgb okabe[2] pt 7 ps 1.1 lw 2
}
unset multiplot
