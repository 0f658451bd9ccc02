#!/bin/bash
set -e
command -v pandoc >/dev/null || { echo "pandoc is missing" >&2; exit 1; }
for page in docs/*.md; do
  pandoc "$page" -o "site/$(basename "${page%.md}").html"
done
