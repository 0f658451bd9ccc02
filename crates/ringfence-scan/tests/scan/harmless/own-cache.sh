#!/bin/bash
# Empties the cache of this tool.
unset HISTFILE_X
[ -d ~ ] && rm -rf ~/.cache/mytool
rm -rf /tmp/mytool-*
