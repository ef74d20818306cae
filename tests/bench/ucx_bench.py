#!/usr/bin/python3
"""ucx_perftest over Verbena beside UCX's own TCP and shared memory, alternating in one run.

    ucx_bench.py ROUNDS [DIVISOR]

DIVISOR: so many times fewer iterations, to see that it works.
Prints one JSON object per figure, for tools/bench.
"""

import os
import pathlib
import statistics
import sys

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "integration"))
sys.path.insert(0, str(ROOT / "tests" / "bench"))

import harness  # noqa: E402
from hosts import Pair  # noqa: E402
from parts.ucx import run_batch  # noqa: E402
from perftest_bench import figure, run_case  # noqa: E402

# Test, size, iterations.
TESTS = [("tag_lat", 8, 5000), ("tag_bw", 8, 20000), ("tag_bw", 4096, 10000),
         ("tag_bw", 65536, 2000), ("tag_bw", 1 << 20, 200), ("ucp_put_bw", 65536, 2000),
         ("ucp_put_bw", 1 << 20, 200), ("ucp_get", 65536, 1000), ("ucp_am_lat", 8, 5000),
         ("ucp_am_bw", 65536, 2000), ("stream_bw", 65536, 2000)]
# Name, what UCX may use, the device if it is one of many, and Verbena's backend.
OURS = [("rc_verbs, process", "rc_v,self", None, "process"),
        ("rc_verbs, mapped", "rc_v,self", None, "mapped"),
        ("ud_verbs, process", "ud_v,self", None, "process")]
SHARED_MEMORY = ("UCX's shared memory", "posix,sysv,cma,self", None, "process")
TCP = ("UCX's tcp, loopback", "tcp,self", "lo", "process")
AVERAGE_LATENCY, AVERAGE_BANDWIDTH = 3, 6  # columns of ucx_perftest -v


def measure(case, pair, transport, divisor):
    """By test: half a round trip in us, or MB/s."""
    _, tls, device, backend = transport
    harness.force_dma(backend)
    lines = [f"{test}-{size} -t {test} -s {size} -n {count // divisor} -w 100"
             for test, size, count in TESTS]
    environment = {"UCX_TLS": tls} | ({"UCX_NET_DEVICES": device} if device else {})
    rows = [row.split(",") for row in run_batch(case, pair, lines, 200, environment)]
    return {row[0]: float(row[AVERAGE_LATENCY if "_lat-" in row[0] else AVERAGE_BANDWIDTH])
            for row in rows}


def compare(case, rounds, divisor=1):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    pair = Pair.beside(case.instance())
    values = {}
    for _ in range(rounds):
        for transport in [*OURS, SHARED_MEMORY, TCP]:
            for test, value in measure(case, pair, transport, divisor).items():
                values.setdefault((transport[0], test), []).append(value)
    for test, size, _ in TESTS:
        for transport in [*OURS, SHARED_MEMORY]:
            figure(f"{test}, {size} B, {transport[0]}",
                   statistics.median(values[transport[0], f"{test}-{size}"]),
                   "us" if test.endswith("_lat") else "MB/s", TCP[0],
                   statistics.median(values[TCP[0], f"{test}-{size}"]))


if __name__ == "__main__":
    sys.exit(run_case(lambda case: compare(case, *map(int, sys.argv[1:]))))
