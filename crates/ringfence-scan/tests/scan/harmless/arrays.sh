#!/bin/bash
declare -A colours=([red]=1 [green]=2)
names=("${!colours[@]}")
printf '%s\n' "${names[@]}" | sort
echo "${#names[@]} colours"
