#!/usr/bin/env bash
set -euo pipefail
for file in *.txt; do
  printf '%s: %d\n' "$file" "$(wc -l < "$file")"
done
