#!/usr/bin/env bash
# Runs the checker's tests under the system's python3.
exec python3 -B "$1" "$2"
