#!/bin/bash
version=${1:-1.0}
cat > manifest.json <<EOF
{ "version": "$version", "built": "$(date -u +%FT%TZ)" }
EOF
