#!/bin/sh
base64 -w0 logo.png > logo.b64
base64 -d logo.b64 > copy.png
cmp logo.png copy.png
