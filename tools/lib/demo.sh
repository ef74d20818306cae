# The demo: unmodified RDMA programs over Verbena, and what they measured. Used by tools/demo in a
# checkout and by `demo` in the tarball. Expects $verbena, the command to show.
# shellcheck shell=bash disable=SC2154

demo_failures=0
demo_port=0

# A TCP port for the programs' own set-up talk, free at the moment.
demo_choose_port() {
  local candidate hex
  for candidate in $(shuf -i 20000-30000 -n 50); do
    hex="$(printf ':%04X ' "$candidate")"
    if ! grep -q "$hex" /proc/net/tcp /proc/net/tcp6 2>/dev/null; then
      demo_port="$candidate"
      return 0
    fi
  done
  return 1
}

# Waits until somebody listens on the port (state 0A), or the server has ended.
demo_wait_for_listener() {
  local port_hex server="$2" _
  port_hex="$(printf '%04X' "$1")"
  for _ in $(seq 400); do
    if cat /proc/net/tcp /proc/net/tcp6 2>/dev/null |
      awk -v port=":$port_hex" '$4 == "0A" && substr($2, length($2) - 4) == port { found = 1 }
                                END { exit !found }'; then
      return 0
    fi
    kill -0 "$server" 2>/dev/null || return 1
    sleep 0.05
  done
  return 1
}

# demo_pair LABEL LOG SERVER-COMMAND... -- CLIENT-COMMAND...: both over Verbena, each with a time
# limit. Leaves the client's output in LOG.client. Says what was wrong when one fails.
demo_pair() {
  local label="$1" log="$2" server_command=() server status=0 server_status=0
  shift 2
  while [ "$1" != -- ]; do
    server_command+=("$1")
    shift
  done
  shift
  timeout -k 5 60 "$verbena" run -- "${server_command[@]}" >"$log.server" 2>&1 &
  server=$!
  if demo_wait_for_listener "$demo_port" "$server"; then
    timeout -k 5 60 "$verbena" run -- "$@" >"$log.client" 2>&1 || status=$?
  else
    status=1
    echo "the server did not start to listen" >"$log.client"
  fi
  [ "$status" = 0 ] || kill "$server" 2>/dev/null || true
  wait "$server" || server_status=$?
  if [ "$status" = 0 ] && [ "$server_status" = 0 ]; then return 0; fi
  demo_failures=$((demo_failures + 1))
  printf '%-34s FAILED (server %s, client %s)\n' "$label" "$server_status" "$status"
  sed 's/^/    server: /' "$log.server" | tail -n 15
  sed 's/^/    client: /' "$log.client" | tail -n 15
  return 1
}

demo_line() { printf '%-34s %-34s %s\n' "$@"; }

# The numbers of perftest's result line: the last line that starts with a message size.
demo_perftest_row() { awk '$1 ~ /^[0-9]+$/ && NF >= 5 { row = $0 } END { print row }' "$1"; }

demo_write_bandwidth() {
  local label="RDMA WRITE, 64 KB messages" row options
  options=(-p "$demo_port" -F -s 65536 -n 5000)
  demo_pair "$label" "$1/write_bw" ib_write_bw "${options[@]}" -- \
    ib_write_bw "${options[@]}" 127.0.0.1 || return 0
  row="$(demo_perftest_row "$1/write_bw.client")"
  demo_line "$label" "ib_write_bw" "$(awk '{ printf "%.2f GB/s\n", $4 * 1.048576 / 1000 }' <<<"$row")"
}

demo_write_latency() {
  local label="RDMA WRITE, 8 bytes" row options
  options=(-p "$demo_port" -F -s 8 -n 5000)
  demo_pair "$label" "$1/write_lat" ib_write_lat "${options[@]}" -- \
    ib_write_lat "${options[@]}" 127.0.0.1 || return 0
  row="$(demo_perftest_row "$1/write_lat.client")"
  demo_line "$label" "ib_write_lat" "$(awk '{ print $5 " us typical" }' <<<"$row")"
}

demo_pingpong() {
  local label="SEND/RECV ping-pong, 4 KB" options rate
  options=(-p "$demo_port" -g 1 -n 5000 -c)
  demo_pair "$label" "$1/pingpong" ibv_rc_pingpong "${options[@]}" -- \
    ibv_rc_pingpong "${options[@]}" 127.0.0.1 || return 0
  rate="$(awk '/usec\/iter/ { print $(NF - 1) }' "$1/pingpong.client")"
  demo_line "$label" "ibv_rc_pingpong" "$rate us per round trip, data validated"
}

# Runs it all in an instance of its own, so that it works beside anything else. 0 if all went well.
demo_main() {
  local work
  work="$(mktemp -d "${TMPDIR:-/tmp}/verbena-demo.XXXXXX")" || return 1
  export VERBENA_INSTANCE="$work/instance"
  mkdir -m 0700 "$VERBENA_INSTANCE"
  # shellcheck disable=SC2064
  trap "'$verbena' down >/dev/null 2>&1; rm -rf '$work'" EXIT
  if ! "$verbena" up --nics 2 >/dev/null; then
    echo "The instance did not start; \`$verbena doctor\` says what this machine lacks."
    return 1
  fi
  echo "The NICs of this machine, now:"
  "$verbena" devices | sed 's/^/  /'
  echo
  demo_choose_port || return 1
  demo_line "Operation" "Program (from Debian, unmodified)" "Result"
  demo_line "---------" "---------------------------------" "------"
  demo_pingpong "$work"
  demo_write_bandwidth "$work"
  demo_write_latency "$work"
  echo
  if [ "$demo_failures" != 0 ]; then
    echo "$demo_failures of 3 programs failed."
    return 1
  fi
  echo "Every program ran. Try it in two terminals:"
  echo "  $verbena run -- ib_write_bw"
  echo "  $verbena run -- ib_write_bw localhost"
}
