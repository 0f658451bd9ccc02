#!/bin/bash
# Builds, and says what it runs.
run() { echo "+ $*"; "$@"; }
clean() { rm -rf "$1"; }
clean build
run mkdir -p build
cd build && rm -rf ./*
while read -r line; do echo "$line"; done < list.txt
awk '{ s += $1 } END { print s }' list.txt
