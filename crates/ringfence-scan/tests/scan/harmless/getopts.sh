#!/bin/bash
usage() { echo "usage: $0 [-v] [-o FILE] NAME" >&2; exit 2; }
verbose=0
output=out.txt
while getopts "vo:" flag; do
  case $flag in
    v) verbose=1 ;;
    o) output=$OPTARG ;;
    *) usage ;;
  esac
done
shift $((OPTIND - 1))
[ $# -eq 1 ] || usage
echo "hello $1" > "$output"
