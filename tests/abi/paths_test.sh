#!/bin/bash
# What a library may be that is loaded into every program below `verbena run`.
set -euo pipefail
library=$1 golden=$2
failed=0
fail() { echo "FAILED: $*"; failed=1; }

dynamic=$(readelf -dW "$library")
needed=$(sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' <<< "$dynamic")
[ "$needed" = libc.so.6 ] || fail "needs $needed, and not libc alone"
grep -q 'SONAME.*\[libverbena-paths\.so\]' <<< "$dynamic" || fail "soname"
grep -q 'FLAGS_1.*NODELETE' <<< "$dynamic" || fail "may be unloaded under running threads"
grep -q 'BIND_NOW\|FLAGS_1.*NOW' <<< "$dynamic" || fail "binds lazily: not for signal handlers"
grep -q 'RPATH\|RUNPATH' <<< "$dynamic" && fail "has a run path"
grep -q TEXTREL <<< "$dynamic" && fail "has text relocations"
grep -q 'GNU_STACK.*RWE' <<< "$(readelf -lW "$library")" && fail "has an executable stack"
grep -q VERDEF <<< "$dynamic" && fail "has versions of its own: programs ask for libc's"

exported=$(nm -D --defined-only "$library" | awk '{ print $3 }' | LC_ALL=C sort)
diff <(grep -v '^#' "$golden" | LC_ALL=C sort) <(echo "$exported") ||
  fail "exports differ from $golden (< missing, > not listed)"
# A name that libc does not have is nobody's.
libc=$(ldd "$library" | sed -n 's/.*libc\.so\.6 => \([^ ]*\).*/\1/p')
unknown=$(LC_ALL=C comm -23 <(echo "$exported") \
  <(nm -D --defined-only "$libc" | awk '{ sub(/@.*/, "", $3); print $3 }' | LC_ALL=C sort -u))
[ -z "$unknown" ] || fail "libc has no $unknown"

newest=$(readelf -VW "$library" | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -Vu | tail -1)
[ "$(printf '%s\n2.31\n' "$newest" | sort -V | tail -1)" = 2.31 ] || fail "needs GLIBC_$newest"
# What may allocate, lock or print has no place in it.
used=$(nm -D --undefined-only "$library" | awk '{ sub(/@.*/, "", $2); print $2 }' |
  grep -Ev '^(__errno_location|__stack_chk_fail|dl_iterate_phdr|geteuid|mem[a-z]*|str[a-z]*|secure_getenv|syscall|_ITM_.*|__gmon_start__|__cxa_finalize)$' || true)
[ -z "$used" ] || fail "uses $used"
[ $failed = 0 ] && echo "$(wc -w <<< "$exported") functions as listed; newest libc symbol: GLIBC_$newest"
exit $failed
