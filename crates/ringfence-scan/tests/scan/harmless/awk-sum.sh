#!/bin/sh
awk -F, 'NR > 1 { sum[$2] += $3 } END { for (k in sum) print k, sum[k] }' sales.csv | sort
