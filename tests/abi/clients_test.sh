#!/bin/bash
# Real programs, resolved against our library: no symbol may be missing, in no version.
set -euo pipefail
library=$1 clients=$2
directory=$(dirname "$(readlink -f "$library")")
failed=0 checked=0 skipped=""

check() {
  # Python modules find the interpreter's symbols only inside it, and Open MPI's those of its core.
  bad=$(LD_LIBRARY_PATH=$directory ldd -r "$1" 2>&1 |
    grep -E 'undefined symbol|not found|not defined' | grep -vE 'undefined symbol: (_?Py|(opal|orte|mca)_)' || true)
  if [ -n "$bad" ]; then
    echo "FAILED: $1"
    echo "$bad"
    failed=1
  fi
  checked=$((checked + 1))
}

while read -r kind package pattern; do
  case $kind in '#'* | '') continue ;; esac
  found=0
  for file in $pattern; do
    [ -e "$file" ] || continue
    found=1
    if head -c 4 "$file" | grep -q ELF; then check "$file"; fi
  done
  if [ $found = 0 ]; then
    [ "$kind" = optional ] || { echo "FAILED: $pattern is missing: install $package"; failed=1; }
    skipped="$skipped $(basename "$pattern")"
  fi
done < "$clients"

# The loader really took ours: its path stands in the list. (Read whole first: a grep that stops
# at its match would end a writer that still writes, which pipefail takes for a failure.)
resolved=$(LD_LIBRARY_PATH=$directory ldd /usr/bin/ibv_devinfo)
[[ $resolved == *"libibverbs.so.1 => $directory/"* ]] ||
  { echo "FAILED: ibv_devinfo does not resolve to $directory"; failed=1; }
echo "$checked files clean; not installed:${skipped:- none}"
exit $failed
