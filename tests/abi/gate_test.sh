#!/bin/bash
# What a library that is loaded into other people's programs may need and say of itself.
set -euo pipefail
# Usage: gate_test.sh LIBRARY SONAME NAMES [NEEDED]: NAMES is a pattern that every export matches,
# NEEDED another library that it may need besides libc.
library=$1 soname=$2 names=$3 also=${4:-}
failed=0
fail() { echo "FAILED: $*"; failed=1; }

dynamic=$(readelf -dW "$library")
needed=$(sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' <<< "$dynamic")
for name in $needed; do
  case $name in
    libc.so.6 | ld-linux-*.so.*) ;;
    "$also") ;;
    *) fail "needs $name" ;;
  esac
done
grep -q libc.so.6 <<< "$needed" || fail "does not need libc: not the library we think"
grep -qF "soname: [$soname]" <<< "$dynamic" || fail "soname"
grep -q 'FLAGS_1.*NODELETE' <<< "$dynamic" || fail "may be unloaded under running threads"
grep -q 'BIND_NOW\|FLAGS_1.*NOW' <<< "$dynamic" || fail "binds lazily: a missing symbol shows late"
grep -q 'RPATH\|RUNPATH' <<< "$dynamic" && fail "has a run path"
grep -q TEXTREL <<< "$dynamic" && fail "has text relocations"
grep -q 'GNU_STACK.*RWE' <<< "$(readelf -lW "$library")" && fail "has an executable stack"

# 2.31 is the glibc of Debian 11 and Ubuntu 20.04.
newest=$(readelf -VW "$library" | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -Vu | tail -1)
[ "$(printf '%s\n2.31\n' "$newest" | sort -V | tail -1)" = 2.31 ] ||
  fail "needs GLIBC_$newest: $(nm -D --with-symbol-versions "$library" | grep "GLIBC_$newest")"

# Nothing of the C++ runtime or of our own namespaces is visible to the host.
nm -D --defined-only "$library" | awk '$2 != "A" { print $3 }' |
  grep -Ev "^($names)" > leaked.txt && fail "exports $(cat leaked.txt)"
[ $failed = 0 ] && echo "newest libc symbol: GLIBC_$newest; needed: $(echo $needed)"
exit $failed
