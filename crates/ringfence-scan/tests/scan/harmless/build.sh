#!/bin/bash
set -euo pipefail
cd "$(dirname "$0")"
mkdir -p build
cc -O2 -Wall -o build/tool src/*.c
tar -czf build/tool.tar.gz -C build tool
echo "built $(du -h build/tool | cut -f1)"
