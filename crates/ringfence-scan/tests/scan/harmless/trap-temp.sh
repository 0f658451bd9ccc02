#!/bin/bash
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp input.csv "$work/"
sort -u "$work/input.csv" > output.csv
