# How often a position was accepted, and who had proposed it: stacked shares, one panel an arm.
load dir."/plots/vars.gp"
if (n_drafting < 1) { exit }
columns = n_drafting < 4 ? n_drafting : 4
lines = int(ceil((n_drafting + 0.0) / columns))
W = 220 + 290 * columns
H = 90 + 230 * lines
load gp."/style.gp"
set multiplot layout lines,columns title "share of rounds in which a position was accepted, by who proposed it" offset 0,-0.5 margins 60.0 / W,1 - 220.0 / W,45.0 / H,1 - 75.0 / H spacing 70.0 / W,65.0 / H
set style fill solid 0.9 border lc rgb "white"
set boxwidth 0.85
set xrange [0.3:16.7]
set yrange [0:1]
set xtics 3
set ytics 0.25
unset key
sum_to(n) = sum [k = 1:n] column(k + 1)
do for [i = 1:n_drafting] {
    set title a_drafting[i] offset 0,-0.6
    if (i == columns || (n_drafting < columns && i == n_drafting)) {
        set key at screen 0.99, screen 1 - 80.0 / H right top Right samplen 1.5 spacing 1 font ",10"
    } else { unset key }
    plot for [s = 1:n_source] dir."/plots/position.dat" index i - 1 using 1:(sum_to(n_source + 1 - s)) with boxes fc rgb colour(n_source + 1 - s) title a_source[n_source + 1 - s]
}
unset multiplot
