#!/usr/bin/python3
"""Unmodified perftest beside what the machine itself costs, alternating in one run.

    perftest_bench.py latency|rate|qps|bandwidth|wire ROUNDS
    perftest_bench.py domains BATCHES
    perftest_bench.py connections COUNT

Prints one JSON object per figure, for tools/bench.
"""

import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "integration"))

import harness  # noqa: E402
from hosts import Host, Pair  # noqa: E402
from parts.pair import run_pair  # noqa: E402
from parts.perftest import table_rows  # noqa: E402

MIB_PER_S = 2**20 / 1e9  # in GB/s


def reference(case, scale):
    process = case.run([case.program("reference"), str(scale)], 60)
    return json.loads(process.out)


def perftest(case, pair, tool, *options):
    """The client's last row."""
    port = harness.free_port()
    common = [tool, "-F", "-x", "1", "-p", str(port), *options]
    _, client = run_pair(case, pair, [*common, "-d", pair.devices[0]],
                         [*common, "-d", pair.devices[1], "127.0.0.1"], port, 60)
    return table_rows(client.out)[-1]


def figure(name, value, unit, what, reference_value, goal=None, sense="<="):
    record = {"figure": name, "value": round(value, 3), "unit": unit, "reference": what,
              "reference_value": round(reference_value, 3)}
    if goal is not None:
        record.update(goal=goal, sense=sense)
    print(json.dumps(record), flush=True)


def has_moved(before, after):
    """Whether the host moved the CPUs between the two: from near each other to far, or back."""
    lines = sorted(machine.get("line_round_trip_us", 1) for machine in (before, after))
    return lines[1] > 2 * lines[0]


def latency(case, rounds):
    """Crowded: two clients that spin, and the NIC, on two cores."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])  # the daemon inherits it
    pair = Pair.beside(case.instance())
    harness.force_dma("process")
    trips, floors, lines = [], [], []
    after = reference(case, 2)
    for tries in range(1, 4 * rounds):
        before = after
        # perftest prints half of the round trip (t_typical, the median). It asks an unknown
        # device for no inline data, so each of the two writes is read from one process and
        # written to the other.
        row = perftest(case, pair, "ib_write_lat", "-s", "8", "-n", "5000")
        after = reference(case, 2)
        if has_moved(before, after) and tries < 3 * rounds:
            continue  # the two would be of two machines
        trips.append(2 * row[4])
        for machine in (before, after):
            floors.append(machine["futex_rtt_us"] + machine["vm_round_trip_us"])
            if "line_round_trip_us" in machine:
                lines.append(machine["line_round_trip_us"])
        if len(trips) == rounds:
            break
    figure("crowded round trip, 8 B WRITE", statistics.median(trips), "us",
           "same-core futex ping-pong + its process_vm copies", statistics.median(floors), 1.7)
    if lines:
        figure("of which the cores' distance, at least", statistics.median(lines), "us",
               "crowded round trip, 8 B WRITE", statistics.median(trips))
    mapped_latency(case, pair, rounds)


def mapped_latency(case, pair, rounds):
    harness.force_dma("mapped")
    trips, floors = [], []
    for _ in range(rounds):
        floors.append(reference(case, 2)["futex_rtt_us"])
        row = perftest(case, pair, "ib_write_lat", "-s", "8", "-n", "5000")
        trips.append(2 * row[4])
    figure("crowded round trip, 8 B WRITE, mapped", statistics.median(trips), "us",
           "same-core futex ping-pong", statistics.median(floors), 1.5)


def rate(case, rounds):
    """The NIC on one core, the client on the other: of the peer of a WRITE nothing is asked, that of
    a SEND posts receives."""
    pair = Pair.beside(case.instance())
    rates = {("write", "mapped"): [], ("write", "process"): [], ("send", "mapped"): []}
    floors = []
    for _ in range(rounds):
        machine = reference(case, 2)
        floors.append(machine.get("ring_mps", 0))
        for (kind, backend), values in rates.items():
            harness.force_dma(backend)
            count = 2_000_000 if backend == "mapped" else 500_000
            row = perftest(case, pair, f"ib_{kind}_bw", "-s", "8", "-t", "128", "-n", str(count))
            values.append(row[4])
    for (kind, backend), values in rates.items():
        figure(f"{kind.upper()} rate, 8 B, depth 128, {backend}", statistics.median(values), "M/s",
               "a bare ring in shared memory", statistics.median(floors),
               0.05 if (kind, backend) == ("write", "mapped") else None, ">=")


def by_qps(case, program, counts, window, operations, rounds, env=None):
    """Nanoseconds an operation, by the number of QPs as it stands in `counts`."""
    process = case.run([case.program(program), counts, window, str(operations), str(rounds)],
                       120, env=env)
    return json.loads(process.out)


def under_way(window):
    return f"{window.removesuffix('each')} under way" + (" on each" if "each" in window else "")


def qps(case, rounds):
    """A process that writes to itself, the NIC on the other core. The round trip alternates with the
    cache line's."""
    instance = case.instance(nics=1)
    harness.force_dma("mapped")
    trips, lines = [], []
    for _ in range(rounds):
        lines.append(reference(case, 1).get("line_round_trip_us", 0) * 1000)
        trips.append(by_qps(case, "active_qps", "1", "1", 300_000, 1, instance.env())["1"])
    figure("round trip of a process that writes to itself", statistics.median(trips), "ns",
           "a cache line there and back", statistics.median(lines), 4)
    few, many = "10", "10000"
    # Messages under way (in all; or on each QP: as many by a doorbell with many QPs as with few),
    # and how many it takes.
    ways = (("1", 50_000), ("1each", 200_000), ("128", 200_000))
    runs = max(1, rounds // 3)
    for backend in ("mapped", "process"):
        harness.force_dma(backend)
        before_kb = instance.rss_kb()
        for window, operations in ways:
            costs = by_qps(case, "active_qps", f"{few},{many}", window, operations, runs,
                           instance.env())
            figure(f"{many} QPs in turn, {under_way(window)}, {backend}", costs[many], "ns",
                   f"{few} QPs", costs[few], 1.2)
        case.note(f"{backend}: {instance.rss_kb() - before_kb} KB more in the daemon")
    for window, operations in (way for way in ways if way[0].isdigit()):
        costs = by_qps(case, "bare_qps", f"{few},{many}", window, operations, runs)
        figure(f"{many} bare rings in turn, {under_way(window)}", costs[many], "ns",
               f"{few} bare rings", costs[few])


def bandwidth(case, rounds):
    pair = Pair.beside(case.instance())
    goals = {("process", 65536): 0.08, ("process", 1 << 20): 0.2,
             ("mapped", 65536): 0.6, ("mapped", 1 << 20): 0.6}
    # A tenth of a second and more, beside which what begins and ends is little.
    counts = {8: 200_000, 1024: 200_000, 65536: 100_000, 1 << 20: 5_000}
    for size in counts:
        measured, floors, copies = {"process": [], "mapped": []}, [], []
        for _ in range(rounds):
            machine = reference(case, 1)
            for backend, values in measured.items():
                harness.force_dma(backend)
                count = counts[size]
                row = perftest(case, pair, "ib_write_bw", "-s", str(size), "-n", str(count))
                values.append(row[3] * MIB_PER_S)
            floors.append(machine[f"vm_copy_gbs.{size}"])
            copies.append(machine[f"memcpy_gbs.{size}"])
        value = statistics.median(measured["process"])
        figure(f"WRITE bandwidth, {size} B, process", value, "GB/s",
               "process_vm_readv + writev, one by one", statistics.median(floors))
        if size < 65536:
            figure(f"WRITE bandwidth, {size} B, mapped", statistics.median(measured["mapped"]),
                   "GB/s", f"WRITE bandwidth, {size} B, process", value)
            continue
        for backend, values in measured.items():
            figure(f"WRITE bandwidth, {size} B, {backend}", statistics.median(values), "GB/s",
                   "memcpy in one process", statistics.median(copies), goals[backend, size], ">=")


def sockets(case):
    """What the ports, and bare sockets beside them, do on loopback: figure and reference to the
    record."""
    process = case.run([case.program("udp_port_bench"), "--rounds", "3", "--ms", "100"], 60)
    records = [json.loads(line) for line in process.out.splitlines() if line.startswith("{")]
    return {(record["figure"], record["reference"]): record for record in records}


BARE, CALL = "bare UDP_SEGMENT/UDP_GRO", "a call per packet"
CPU = "CPU per packet"


def whole_nics(case, rounds):
    """Of a program that is both hosts: its lines are figures already."""
    process = case.run([case.program("nic_round_trip"), "--rounds", str(rounds), "--ms", "200"], 60)
    for line in process.out.splitlines():
        if line.startswith("{"):
            print(line, flush=True)


class CpuMeter:
    """CPU time of two daemons, user and system, by the packets that the client's sent: what the
    acknowledgements cost is part of it."""

    def __init__(self, pair):
        self.pair = pair
        self.before = self.read()

    def read(self):
        seconds = sum(host.instance.cpu_seconds() for host in (self.pair.server, self.pair.client))
        return seconds, self.pair.client.instance.status()["nics"][0]["wire"]["tx_packets"]

    def ns_per_packet(self):
        seconds, packets = (now - then for now, then in zip(self.read(), self.before))
        return seconds * 1e9 / packets


def measure_wire(case, pair, measured, counts):
    """One round: `measured` gets GB/s and CPU ns a packet."""
    for (backend, mtu), by_length in measured.items():
        harness.force_dma(backend)
        for length, count in counts.items():
            meter = CpuMeter(pair)
            row = perftest(case, pair, "ib_send_bw", "-e", "-s", str(length), "-n", str(count),
                           "-m", str(mtu))
            by_length[length].append((row[3] * MIB_PER_S, meter.ns_per_packet()))


def print_wire(measured, floor):
    """Of both lengths that which is faster."""
    for (backend, mtu), by_length in measured.items():
        (value, cost), length = max(
            (tuple(statistics.median(column) for column in zip(*values)), length)
            for length, values in by_length.items())
        name = f"wire: ib_send_bw -e, {length >> 10} KiB, path MTU {mtu}, {backend}"
        for way, goal in ((BARE, 0.5), (CALL, 2.0)):
            figure(name, value, "GB/s", f"UDP sockets, {way}", floor(f"{mtu} B", way),
                   goal if mtu == 4096 else None, ">=")
        for way in (BARE, CALL):
            figure(f"{name}, {CPU}", cost, "ns", f"UDP sockets, {way}",
                   floor(f"{mtu} B, {CPU}", way))


def wire(case, rounds):
    """Over UDP on loopback. For bandwidth between two daemons, and the programs
    wait for events: on two cores they would take turns with the daemons otherwise. Short messages
    stay in cache, as the sockets' buffers do; long ones wake the programs less often. What is worth
    more depends on the machine, so the faster counts. For the round trip between two NICs of one
    daemon, with programs that spin."""
    hosts = [Host(case.instance(nics=None, flags=[f"--nic=ip={address}"]))
             for address in ("127.0.0.1", "127.0.0.2")]
    pair = Pair(*hosts, devices=("verbena0", "verbena0"))
    beside = Pair.beside(case.instance(flags=["--wire=1"]))
    counts = {256 << 10: 10000, 8 << 20: 400}  # messages, by their length
    measured = {(backend, mtu): {length: [] for length in counts}
                for mtu in (4096, 1024) for backend in ("mapped", "process")}
    bare, trips = [], []
    for _ in range(rounds):
        bare.append(sockets(case))
        measure_wire(case, pair, measured, counts)
        harness.force_dma("process")
        row = perftest(case, beside, "ib_write_lat", "-s", "8", "-n", "5000")
        trips.append(2 * row[4])

    def floor(what, reference):
        return statistics.median(each[f"epoll port, {what}", reference]["reference_value"]
                                 for each in bare)

    print_wire(measured, floor)
    for name, reference in bare[0]:
        if CPU in name:
            values = [each[name, reference]["value"] for each in bare]
            figure(f"wire: {name}", statistics.median(values), "ns", f"UDP sockets, {reference}",
                   floor(name.partition(", ")[2], reference))
    figure("wire: round trip, 8 B WRITE", statistics.median(trips), "us",
           "UDP ping-pong, both ends spinning", floor("8 B round trip", "UDP ping-pong, spinning"))
    whole_nics(case, rounds)


def domains(case, batches):
    process = case.run([case.program("thread_domains"), str(batches)], 110,
                       env=case.instance(nics=1).env())
    for threads, times in json.loads(process.out).items():
        count = threads.removeprefix("threads_")
        figure(f"ibv_post_send in thread domains, {count} thread{'s' if count != '1' else ''}",
               times["with_ns"], "ns", "the same without thread domains", times["without_ns"])


def connections(case, count):
    process = case.run([case.program("connection_rate"), str(count)], 110,
                       env=case.instance(nics=1).env())
    times = json.loads(process.out)
    figure("a connection by rdma_cm, made and ended", times["rdma_us"], "us", "the same by TCP",
           times["tcp_us"])


def run_case(function):
    """Carries out function(case); the exit code."""
    harness.become_subreaper()
    root = harness.make_log_root()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended before its time"))
    case_dir = root / "b"
    case_dir.mkdir()
    case = harness.Case(case_dir)
    try:
        function(case)
    except (harness.Failure, subprocess.SubprocessError) as failure:
        print(failure, file=sys.stderr)
        return 1
    finally:
        case.end_everything()
        harness.remove_tree(root)
    return 0


def main():
    kind, rounds = sys.argv[1], int(sys.argv[2])
    harness.need_programs("reference", "bare_qps")
    benches = {"latency": latency, "rate": rate, "qps": qps, "bandwidth": bandwidth, "wire": wire, "domains": domains,
               "connections": connections}
    return run_case(lambda case: benches[kind](case, rounds))


if __name__ == "__main__":
    sys.exit(main())
