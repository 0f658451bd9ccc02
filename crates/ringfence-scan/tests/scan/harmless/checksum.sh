#!/bin/sh
sha256sum dist/* > dist/SHA256SUMS
sha256sum -c dist/SHA256SUMS
