#!/bin/sh
# The layer check as a test.
if sh tests/check_layers.sh; then echo "[       OK ] layers"; else echo "[  FAILED  ] layers"; exit 1; fi
