#!/bin/bash
# Real programs, resolved against our libraries: no symbol may be missing, in no version.
# Usage: clients_test.sh CLIENTS LIBRARY...
set -euo pipefail
clients=$1
shift
path=""
for library in "$@"; do path="$path$(dirname "$(readlink -f "$library")"):"; done
path=${path%:}
failed=0 checked=0 skipped=""

check() {
  # Python modules find the interpreter's symbols only inside it, and Open MPI's and uDAPL's those of
  # their core.
  bad=$(LD_LIBRARY_PATH=$path ldd -r "$1" 2>&1 |
    grep -E 'undefined symbol|not found|not defined' | grep -vE 'undefined symbol: (_?Py|(opal|orte|mca|dats?)_)' || true)
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
resolved=$(LD_LIBRARY_PATH=$path ldd /usr/bin/ib_write_bw)
for library in "$@"; do
  name=$(basename "$library")
  [[ $resolved == *"$name => $(dirname "$(readlink -f "$library")")/"* ]] ||
    { echo "FAILED: ib_write_bw does not resolve to $library: $resolved"; failed=1; }
done
echo "$checked files clean; not installed:${skipped:- none}"
exit $failed
