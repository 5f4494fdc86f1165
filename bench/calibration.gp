# What the scores promise against what becomes text: nodes put to the test, in tenths of the promised probability.
load dir."/plots/vars.gp"
if (n_drafting < 1) { exit }
columns = n_drafting < 4 ? n_drafting : 4
lines = int(ceil((n_drafting + 0.0) / columns))
W = 220 + 290 * columns
H = 100 + 280 * lines
load gp."/style.gp"
set multiplot layout lines,columns title "confidence of a node whose parent was accepted (across), share accepted (up)" offset 0,-0.5 margins 60.0 / W,1 - 220.0 / W,45.0 / H,1 - 75.0 / H spacing 70.0 / W,65.0 / H
set xrange [-0.03:1.03]
set yrange [-0.03:1.03]
set xtics 0.25
set ytics 0.25
do for [i = 1:n_drafting] {
    set title a_drafting[i] offset 0,-0.6
    if (i == columns || (n_drafting < columns && i == n_drafting)) {
        set key at screen 0.99, screen 1 - 80.0 / H right top Right samplen 1.5 spacing 1.4
    } else { unset key }
    plot x with lines lc rgb "#555555" lw 1 dt 2 title "as promised", \
         for [s = 1:n_source] dir."/plots/calibration.dat" index i - 1 using ($4 == s ? $1 : NaN):2 with linespoints lt s + 1 title a_source[s]
}
unset multiplot
