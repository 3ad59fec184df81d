# Time of a view change by number of ranks: scale.dat is of tests/bench/tables.
set terminal svg size 760,420 font "Helvetica,13" background "white"
set output "scale.svg"
set logscale xy
set datafile missing "?"
set xlabel "ranks"
set ylabel "ms of virtual time until every member is in one active view"
set xtics ("64" 64, "256" 256, "1024" 1024, "2048" 2048, "4096" 4096)
set key top left
set grid
plot "scale.dat" using 1:2 with linespoints pt 7 lc rgb "#c0392b" title "one death", \
     "" using 1:3 with linespoints pt 5 lc rgb "#2471a3" title "replacement", \
     "" using 1:4 with linespoints pt 9 lc rgb "#7d3c98" title "a third dies", \
     "" using 1:5 with linespoints pt 4 lc rgb "#1e8449" title "extend from half", \
     "" using 1:6 with linespoints pt 8 lc rgb "#7f8c8d" title "form"
