#!/bin/bash
# Runs a program on an instance, of a daemon and a library built as this test is: with a sanitizer,
# if that is asked for.
set -euo pipefail
cli=$(readlink -f "$1") daemon=$(readlink -f "$2") library=$(readlink -f "$3") program=$(readlink -f "$4")
shift 4
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
mkdir "$place/bin" "$place/lib"
cp "$cli" "$place/bin/verbena"
cp "$daemon" "$place/bin/verbenad"
cp "$library" "$place/lib/libibverbs.so.1"
"$place/bin/verbena" run --private --nics=1 -- "$program" "$@"
