#!/bin/bash
grep -h ERROR logs/*.log | cut -d' ' -f1 | sort | uniq -c | sort -rn | head -5
