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
data=$(nm -D --defined-only -S "$library" | awk 'NF == 4 && $3 ~ /[BDRV]/ { print $2 + 0, $4 }')
if grep -q verbs_allow_disassociate_destroy "$golden"; then
  expected="1 verbs_allow_disassociate_destroy@@IBVERBS_PRIVATE_34"
else
  expected=""
fi
# The same object stands there once per node.
if [ "$(head -1 <<< "$data" | sed 's/@@\?.*//')" != "${expected%%@@*}" ]; then
  echo "exports other data than '$expected': $data"
  exit 1
fi
echo "$(echo "$exported" | wc -l) symbols as listed"
