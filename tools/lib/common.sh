# Shared by the scripts in tools/: where the checkout is, how Bazel is called, how errors look.
# shellcheck shell=bash

VERBENA_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
export VERBENA_OUT="$VERBENA_ROOT/out"

die() {
  echo "${0##*/}: $*" >&2
  exit 1
}

say() { echo "== $*"; }

# Bazel with the checkout as its workspace. Extra start-up options, such as an output base of one's
# own, come from VERBENA_BAZEL_STARTUP. Debian's build prints sandbox notes that say nothing.
run_bazel() {
  local command="$1"
  shift
  # shellcheck disable=SC2086
  (cd "$VERBENA_ROOT" && bazel ${VERBENA_BAZEL_STARTUP:-} "$command" \
    --experimental_convenience_symlinks=ignore "$@")
}

# The configuration that makes the NIC fast on this machine.
lto_config() {
  if [ "$(uname -m)" = x86_64 ]; then echo lto_x86_64; else echo lto; fi
}

# Where Bazel puts what it built with these options.
bazel_bin() {
  # shellcheck disable=SC2086
  (cd "$VERBENA_ROOT" && bazel ${VERBENA_BAZEL_STARTUP:-} info "$@" bazel-bin 2>/dev/null)
}
