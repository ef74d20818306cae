#!/bin/bash
# Debian's libfabric loads the provider, and hears from it why there is nothing to list: where no
# instance runs and none may be started, no crash and no output but what FI_LOG_LEVEL asks for.
set -euo pipefail
provider=$(readlink -f "$1")
failed=0
fail() { echo "FAILED: $*"; failed=1; }
export FI_PROVIDER_PATH VERBENA_INSTANCE VERBENA_AUTOSTART=0
FI_PROVIDER_PATH=$(dirname "$provider")
VERBENA_INSTANCE=$(mktemp -d)
trap 'rm -rf "$VERBENA_INSTANCE"' EXIT

listed=$(fi_info -l 2>&1) || fail "fi_info -l: $listed"
grep -A1 '^verbena:$' <<< "$listed" | grep -q 'version: [0-9]' || fail "not among $listed"

quiet=$(fi_info -p verbena 2>&1) && fail "something is listed without a NIC: $quiet"
[ "$quiet" = "fi_getinfo: -61" ] || fail "says more than fi_info: $quiet"
told=$(FI_LOG_LEVEL=info FI_LOG_PROV=verbena fi_info -p verbena 2>&1) && fail "something is listed"
grep -q 'verbena:.*no NIC' <<< "$told" || fail "does not say why: $told"
[ $failed = 0 ] && echo "loaded, quiet, and clear when asked"
exit $failed
