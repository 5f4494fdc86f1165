# Plots of what bench_ops wrote into `dir`: gnuplot -e "dir='build/bench-ops'" bench/ops.gp
set datafile separator ","
set terminal pngcairo noenhanced size 1500,560 font ",11"
set grid
set key top left
set logscale x 2
set xtics 2

set output dir."/steps.png"
set multiplot layout 1,2
set title "one pass over n rows, every row scored"
set xlabel "rows"
set ylabel "plain steps, t(n)/t(1)"
set logscale y 2
plot dir."/steps.csv" using 1:5:6:7 skip 1 with yerrorlines lw 2 title "every row scored", \
     "" using 1:9 skip 1 with linespoints dt 2 title "the last row scored", x with lines dt 3 lc "grey" title "one by one"
unset logscale y
set title "where its time goes"
set ylabel "share"
set key right center
set yrange [0:1]
plot dir."/shares.csv" using 1:2 skip 1 with linespoints lw 2 title "matmul", \
     "" using 1:3 skip 1 with linespoints lw 2 title "attention", "" using 1:4 skip 1 with linespoints lw 2 title "rest"
unset multiplot

set output dir."/matmul.png"
set key top right
set yrange [0:*]
set multiplot layout 1,2
shape = "1.7B gate up"
types = "f32 f16 bf16 q8_0 q4_0 q4_1 q4_k q6_k"
pick(op, s, t, v) = strcol(1) eq op && strcol(2) eq s && strcol(3) eq t ? v : NaN
set datafile missing NaN
set title shape.": weights read"
set ylabel "share of copy bandwidth"
plot for [t in types] dir."/ops.csv" using 4:(pick("matmul", shape, t, column(10))) skip 1 with linespoints lw 2 title t
set title shape.": arithmetic"
set key top left
set ylabel "share of the instruction set's peak"
plot for [t in types] dir."/ops.csv" using 4:(pick("matmul", shape, t, column(12))) skip 1 with linespoints lw 2 title t
unset multiplot

set output dir."/attention.png"
set terminal pngcairo noenhanced size 900,560 font ",11"
set title "attention, 9 heads on 3 KV heads of 64"
set xlabel "rows of context"
set ylabel "share of copy bandwidth"
plot for [n in "1 4 16"] for [t in "f32 f16"] dir."/ops.csv" \
     using 5:(int(column(4)) == int(n) ? pick("attention", "135M 9/3 of 64", t, column(10)) : NaN) skip 1 \
     with linespoints lw 2 title t.", ".n." rows"
