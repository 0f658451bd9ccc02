#!/bin/bash
shopt -s nullglob
for image in photos/*.JPG; do
  mv -- "$image" "${image%.JPG}.jpg"
done
