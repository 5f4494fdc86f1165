# What all plots share. Before it is loaded: W, H (pixels); dir, name, ext come from the command line. The colours are Okabe and
# Ito's (their yellow darkened), which colour-blind people tell apart; points and dashes differ too. The first arm, plain, is black.
array okabe[8] = ["#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#B8A900"]
colour(i) = okabe[1 + int(i) % 8] # of source i: black last
if (ext eq "svg") { set terminal svg noenhanced size W,H font "sans-serif,13" background "white" } else {
    set terminal pngcairo noenhanced size W,H font "sans,11"
}
set output dir."/".name.".".ext
do for [i = 1:64] { set linetype i lc rgb okabe[1 + (i - 1) % 8] pt 4 + (i - 1) % 10 dt 1 + ((i - 1) / 8) % 4 lw 2 ps 1.1 }
set grid lc rgb "#dddddd" lt 1 lw 1
set border lc rgb "#555555"
set tics nomirror
