#!/bin/bash
set -e
curl -fsSL https://get.example.net/install.sh | bash -s -- --yes
