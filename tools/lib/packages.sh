# The Debian packages that Verbena needs, and installing those that are missing.
# Usage: . packages.sh; install_missing build|clients|test|interop|remap|dev...
# shellcheck shell=bash

packages_of() {
  case "$1" in
    # What `tools/stage` needs.
    build)
      echo bazel-bootstrap bazel-platforms bazel-rules-java bazel-rules-proto bazel-skylib
      echo g++ binutils libc6-dev
      echo libabsl-dev libboost1.81-dev liburing-dev
      echo libibverbs-dev librdmacm-dev libfabric-dev
      ;;
    # Unmodified RDMA programs, for the demo.
    clients) echo ibverbs-utils perftest ;;
    # Everything `tools/test` runs besides.
    test)
      echo libbenchmark-dev libgmock-dev libgtest-dev libisal-dev libseccomp-dev
      echo ibverbs-providers ibverbs-utils perftest qperf rdmacm-utils python3 python3-pyverbs
      echo binutils clang iproute2 procps strace tshark util-linux
      echo libmpich-dev libopenmpi-dev libucx-dev mpich openmpi-bin ucx-utils
      echo fio libfabric-bin libjemalloc-dev libjemalloc2
      echo dapl2-utils libaio1 libdapl2 libgloo-dev libiscsi-bin qemu-system-x86
      ;;
    # Interoperability with the kernel's rdma_rxe in a guest. What runs inside the guest is fetched
    # by tests/interop/image.py and installed nowhere.
    interop) echo iproute2 kmod python3 python3-pyverbs qemu-system-x86 tar util-linux ;;
    # The programs of tests/remap that the gate leaves out; its guest is interop's.
    remap)
      echo gcc libmimalloc2.0 libopenmpi-dev libtcmalloc-minimal4 openmpi-bin qemu-system-x86 ucx-utils
      ;;
    # What `tools/dev` needs on top.
    dev) echo clang-format clang-tidy shellcheck ;;
    *) return 1 ;;
  esac
}

# Names those of its arguments that are not installed.
missing_packages() {
  local package
  for package in "$@"; do
    case "$(dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2>/dev/null)" in
      ii*) ;;
      *) echo "$package" ;;
    esac
  done
}

# Runs a command as root: directly, or by sudo. With neither, says what an administrator has to run.
as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif command -v sudo >/dev/null && { [ -t 0 ] || sudo -n true 2>/dev/null; }; then
    sudo env DEBIAN_FRONTEND=noninteractive "$@"
  else
    return 1
  fi
}

install_missing() {
  local group wanted=() missing=()
  for group in "$@"; do
    # shellcheck disable=SC2207
    wanted+=($(packages_of "$group")) || { echo "no package group '$group'" >&2; return 1; }
  done
  if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    echo "Verbena's set-up knows Debian 12 (apt-get); here, install what corresponds to:" >&2
    echo "  ${wanted[*]}" >&2
    return 1
  fi
  mapfile -t missing < <(missing_packages "${wanted[@]}" | sort -u)
  [ "${#missing[@]}" -gt 0 ] || return 0
  echo "== Installing ${#missing[@]} missing Debian packages: ${missing[*]}" >&2
  export DEBIAN_FRONTEND=noninteractive
  local options=(-q -y -o DPkg::Lock::Timeout=300)
  if ! as_root true; then
    echo "These packages are missing, and this is neither root nor a user with sudo. Have run:" >&2
    echo "  apt-get update && apt-get install -y --no-install-recommends ${missing[*]}" >&2
    return 1
  fi
  if ! as_root apt-get "${options[@]}" update >&2; then
    echo "apt-get update failed (above); is the network there?" >&2
    return 1
  fi
  if ! as_root apt-get "${options[@]}" install --no-install-recommends "${missing[@]}" >&2; then
    echo "apt-get could not install the packages (above). Verbena is built on Debian 12." >&2
    return 1
  fi
}

# What is shipped as documentation, which slim images leave out: puts it back.
#   ensure_documentation PACKAGE DIRECTORY FILE
ensure_documentation() {
  # dpkg makes the excluded directory, empty: a file tells.
  [ -e "$2/$3" ] && return 0
  echo "== Installing $2, which this image's dpkg configuration left out" >&2
  as_root apt-get -q -y -o DPkg::Lock::Timeout=300 -o Dpkg::Options::="--path-include=$2/*" \
    install --reinstall --no-install-recommends "$1" >&2 && [ -e "$2/$3" ] && return 0
  echo "$2 of the package $1 is missing and could not be installed." >&2
  return 1
}

# rdma-core's pyverbs suite, and UCX's example of a client that connects by an address.
ensure_test_documentation() {
  ensure_documentation python3-pyverbs /usr/share/doc/rdma-core/tests __init__.py &&
    ensure_documentation libucx-dev /usr/share/doc/libucx-dev/examples ucp_client_server.c
}
