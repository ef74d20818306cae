#!/usr/bin/python3
"""libfabric's provider `verbena` beside those that come with libfabric, by turns, in one run.

    fi_bench.py ROUNDS [MS]

Here, both ends on one machine, and between two network namespaces (as root): with one daemon that has a
NIC in each, and with a daemon in each, as two hosts have. MS: milliseconds of each figure. Prints one
JSON object per figure, for tools/bench.
"""

import json
import os
import pathlib
import statistics
import sys

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "integration"))
sys.path.insert(0, str(ROOT / "tests" / "bench"))

import harness  # noqa: E402
from hosts import IPV4, Pair, one_daemon, two_hosts  # noqa: E402
from parts.fi import PROVIDER, QUIET  # noqa: E402
from perftest_bench import figure, run_case  # noqa: E402

MTU = 9000
SIZES = (8, 4096, 64 << 10, 1 << 20)
DATAGRAM_SIZES = (8, 1024)
# What the relay carries beside messages of a size: no more than one datagram holds.
RELAY_BYTES = {8: 8, 4096: 4096, 64 << 10: 60 << 10}
TESTS = ("pingpong", "rate", "write", "read")
RUN_LIMIT_S = 120


class Way:
    """A provider, one type of its endpoints, and how Verbena reaches memory."""

    def __init__(self, provider, endpoint, backend=None, needs_address=True):
        self.provider, self.endpoint, self.backend = provider, endpoint, backend
        self.needs_address = needs_address
        self.label = f"verbena, {backend}" if backend else provider


def ours(endpoint):
    return [Way("verbena", endpoint, backend, False) for backend in ("mapped", "process")]


HERE = [*ours("rdm"), Way("shm", "rdm", needs_address=False), Way("tcp;ofi_rxm", "rdm"),
        Way("sockets", "rdm"), *ours("msg"), Way("tcp", "msg"), Way("sockets", "msg"),
        *ours("dgram"), Way("udp", "dgram")]
# Where both ends are.
ONE_MACHINE, ONE_DAEMON, TWO_HOSTS = "here", "one daemon", "two hosts"
BETWEEN = [*ours("rdm"), Way("tcp;ofi_rxm", "rdm"), *ours("msg"), Way("tcp", "msg")]


def goal_of(test, size, reference, where):
    """(goal, sense), or () where the row is for information."""
    if where == ONE_MACHINE and reference == "shm":
        return (1.0, ">=") if test in ("write", "read") and size >= 64 << 10 else ()
    if where == ONE_MACHINE:
        return (1.0, "<=") if test == "pingpong" and reference in ("tcp", "sockets") else ()
    return (1.0, "<=") if test == "pingpong" else (1.0, ">=")


def measure(case, pair, way, ms):
    """{(test, bytes): (value, unit)} of one run."""
    harness.force_dma(way.backend)
    meeting = case.dir / "meeting"
    meeting.unlink(missing_ok=True)
    # Who progresses without its program lets its program sleep; Debian's tcp says so and does not.
    sleeps = way.provider in ("verbena", "sockets")

    def argv(host, *words):
        settings = {"FI_PROVIDER_PATH": PROVIDER, **QUIET}
        node = ["--node", host.address] if way.needs_address else []
        return ["env", *(f"{name}={value}" for name, value in settings.items()),
                case.program("fi_perf"), "--at", meeting, "--provider", way.provider, "--endpoint",
                way.endpoint, *node, "--sleep", "1" if sleeps else "0", *words]

    is_datagram = way.endpoint == "dgram"
    tests = ["--test", "pingpong"] if is_datagram else [w for t in TESTS for w in ("--test", t)]
    sizes = [w for s in (DATAGRAM_SIZES if is_datagram else SIZES) for w in ("--size", s)]
    server = pair.server.spawn(case, argv(pair.server, "server"), name="server")
    client = pair.client.run(case, argv(pair.client, *tests, *sizes, "--ms", ms, "client"),
                             RUN_LIMIT_S, name="client")
    server.expect_exit(10)
    records = [json.loads(line) for line in client.out.splitlines()]
    return {(record["test"], record["bytes"]): (record["value"], record["unit"])
            for record in records}


def relay(case, pair, size, ms):
    """Half a round trip, in µs, of two programs that have a process each send for them."""
    port = str(harness.free_port())

    def argv(own, peer, *words):
        return [case.program("relay"), own.address, peer.address, port, str(size), *words]

    answers = pair.server.spawn(case, argv(pair.server, pair.client, "answers"), name="server")
    done = pair.client.run(case, argv(pair.client, pair.server, "asks", str(ms)), 30, name="client")
    answers.expect_exit(10)
    return json.loads(done.out)["half_us"]


def compare(case, pair, ways, rounds, ms, where):
    values, units = {}, {}
    relays = {size: [] for size in RELAY_BYTES} if where == TWO_HOSTS else {}
    for _ in range(rounds):
        for size, found in relays.items():
            found.append(relay(case, pair, RELAY_BYTES[size], ms))
        for way in ways:
            for key, (value, unit) in measure(case, pair, way, ms).items():
                values.setdefault((way, *key), []).append(value)
                units[key] = unit
    median = {key: statistics.median(found) for key, found in values.items()}
    for (way, test, size), value in median.items():
        if way.backend is None:
            continue
        if test == "pingpong" and size in relays:
            figure(f"fi: {way.endpoint} {test}, {size} B, {where}, {way.backend}", value,
                   units[test, size], "a relay of four processes", statistics.median(relays[size]))
        for other in ways:
            if other.backend is None and other.endpoint == way.endpoint:
                figure(f"fi: {way.endpoint} {test}, {size} B, {where}, {way.backend}", value,
                       units[test, size], other.label, median[other, test, size],
                       *goal_of(test, size, other.label, where))


def run(case, rounds, ms=60):
    # Two cores for two ends that spin, and for the NIC.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    compare(case, Pair.beside(case.instance()), HERE, rounds, ms, ONE_MACHINE)
    try:
        pairs = {ONE_DAEMON: one_daemon(case, MTU), TWO_HOSTS: two_hosts(case, MTU, IPV4)}
    except harness.NotHere as why:
        print(f"between namespaces: {why}", file=sys.stderr)
        return
    for where, pair in pairs.items():
        compare(case, pair, BETWEEN, rounds, ms, where)


if __name__ == "__main__":
    harness.need_programs("fi_perf", "relay")
    sys.exit(run_case(lambda case: run(case, *map(int, sys.argv[1:]))))
