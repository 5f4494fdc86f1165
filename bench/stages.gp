# Where the time of a round goes.
load dir."/plots/vars.gp"
W = 1000
H = 150 + 26 * n_arm
load gp."/style.gp"
set title "milliseconds of a round (mean)"
set yrange [n_arm + 0.7:0.3]
set xrange [0:*]
set ytics ()
do for [i = 1:n_arm] { set ytics add (a_arm[i] i) }
set grid x noy
set style fill solid 0.9 border lc rgb "white"
set key outside right top Left reverse samplen 1.5 spacing 1.4
h = 0.36
plot dir."/plots/stages.dat" using (0):1:(0):2:($1 - h):($1 + h) with boxxyerror lc rgb okabe[6] title "draft", \
     "" using (0):1:2:($2 + $3):($1 - h):($1 + h) with boxxyerror lc rgb okabe[2] title "verify", \
     "" using (0):1:($2 + $3):($2 + $3 + $4):($1 - h):($1 + h) with boxxyerror lc rgb okabe[5] title "rest"
