#!/bin/bash
# Compares what the library exports with the checked-in lists: every name, every version node, and
# which version is the default.
set -euo pipefail
library=$1 golden=$2 debian=$3

list() { grep -v '^#' "$1" | LC_ALL=C sort; }
exported=$(nm -D --defined-only --with-symbol-versions "$library" | awk '$2 != "A" { print $3 }' |
  LC_ALL=C sort)

if ! diff <(list "$golden") <(echo "$exported") > symbols.diff; then
  echo "Exports differ from $golden (< missing, > not listed):"
  cat symbols.diff
  exit 1
fi
missing=$(LC_ALL=C comm -23 <(list "$debian") <(echo "$exported"))
if [ -n "$missing" ]; then
  echo "Debian's library exports these and ours does not:"
  echo "$missing"
  exit 1
fi
# The one data object: programs may copy it, so kind and size are part of the interface.
nm -D --defined-only -S "$library" | grep verbs_allow_disassociate_destroy@@IBVERBS_PRIVATE_34 |
  grep -qE '^[0-9a-f]+ 0*1 [BD] ' || { echo "verbs_allow_disassociate_destroy is no 1-byte object"; exit 1; }
echo "$(echo "$exported" | wc -l) symbols as listed"
