# Times of covey and NCCL on two H200s: nccl.dat is of tests/bench/tables.
set terminal svg size 760,420 font "Helvetica,13" background "white"
set output "nccl.svg"
set logscale xy
set xlabel "bytes, as nccl-tests counts them"
set ylabel "time of one operation, microseconds (lower is better)"
set xtics ("8" 8, "2 Ki" 2048, "32 Ki" 32768, "512 Ki" 524288, "8 Mi" 8388608, "128 Mi" 134217728, "512 Mi" 536870912)
set key top left
set grid
plot "nccl.dat" using 1:3 with linespoints pt 4 lc rgb "#888888" title "NCCL 2.32.3 allreduce", \
     "" using 1:2 with linespoints pt 7 lc rgb "#1f6fb4" title "covey allreduce", \
     "" using 1:5 with linespoints pt 8 lc rgb "#bb9977" title "NCCL 2.32.3 alltoall", \
     "" using 1:4 with linespoints pt 9 lc rgb "#d95f02" title "covey alltoall"
