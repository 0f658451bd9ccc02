#!/bin/sh
set -eu
rm -rf build dist node_modules/.cache
find . -name '*.pyc' -delete
