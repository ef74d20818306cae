#!/usr/bin/python3
"""Verbena beside the kernel's rdma_rxe in one QEMU guest: unmodified perftest, both ends in the guest,
the two devices by turns.

    guest_bench.py ROUNDS [--cpus N] [--only OPERATION_KIND] [--size BYTES]...
                   [--dma process|mapped]

Two CPUs, as both ends of a latency test spin. Prints one JSON object per figure, for tools/bench;
`skipped: why` and the exit code 77 where a guest can't be had.
"""

import argparse
import json
import pathlib
import statistics
import sys

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "interop"))
sys.path.insert(0, str(ROOT / "tests" / "integration"))

import guest  # noqa: E402
import network  # noqa: E402
import perftest_bench  # noqa: E402
from image import Unavailable  # noqa: E402
from jobs import Failure, poll_until  # noqa: E402
from parts.perftest import table_rows  # noqa: E402

SIZES = [8, 1 << 10, 64 << 10, 1 << 20]
FILES = ["bin/verbena", "bin/verbenad", "lib/libibverbs.so.1", "lib/libverbena-paths.so"]
WHERE = "/verbena"
MIB_PER_S = 2**20 / 1e9  # in GB/s
# Emulated CPUs are 20 to 50 times as slow as real ones.
COUNTS = {"lat": {8: 1000, 1 << 10: 1000, 64 << 10: 200, 1 << 20: 30},
          "bw": {8: 2000, 1 << 10: 2000, 64 << 10: 300, 1 << 20: 40}}
LIMIT_S = 120
BANDWIDTH_GOAL, LATENCY_GOAL = 1.0, 1.5  # from 1 KB on; at every size


# How Verbena reaches the programs' memory: for all programs, and for those that are asked to map it
# (docs/mapped-memory.md).
BACKENDS = ("process", "mapped")


class Device:
    def __init__(self, label, name, gid_index, prefix):
        self.label, self.name, self.gid_index, self.prefix = label, name, gid_index, prefix


def install(machine):
    for file in FILES:
        machine.put(f"{WHERE}/{file}", (ROOT / "out" / file).read_bytes(), 0o755)


def half_futex_ping_pong_us(machine):
    """What a message costs at least if another process has a part in it, and all CPUs are taken."""
    machine.put(f"{WHERE}/reference", (ROOT / "out/tests/reference").read_bytes(), 0o755)
    return json.loads(machine.sh(f"{WHERE}/reference 1").out)["futex_rtt_us"] / 2


def gid_index_of(machine, address):
    text = machine.sh(f"cd /sys/class/infiniband/{guest.DEVICE}/ports/1/gids; "
                      "for i in 0 1 2 3 4 5 6 7; do echo $i $(cat $i); done").out
    wanted = "".join(f"{int(part):02x}" for part in address.split("."))
    for line in text.splitlines():
        index, _, gid = line.partition(" ")
        if gid.replace(":", "").endswith("ffff" + wanted):
            return int(index)
    raise Failure(f"no GID for {address} among:\n{text}")


def is_listening(machine, port):
    lines = machine.get("/proc/net/tcp").decode() + machine.get("/proc/net/tcp6").decode()
    return any(line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "0A"
               for line in lines.splitlines()[1:] if len(line.split()) > 3 and ":" in line.split()[1])


def measure(machine, device, operation, kind, size, port):
    """perftest's row of the client."""
    argv = [*device.prefix, f"ib_{operation}_{kind}", "-F", "-d", device.name, "-x",
            str(device.gid_index), "-s", str(size), "-n", str(COUNTS[kind][size]), "-p", str(port)]
    server = machine.spawn(argv)
    poll_until(lambda: is_listening(machine, port) or not server.is_running(), LIMIT_S,
               f"{argv} listens")
    client = machine.spawn([*argv, "127.0.0.1"]).expect(LIMIT_S)
    server.expect(LIMIT_S)
    return table_rows(client.out)[-1]


def figure(operation, kind, size, backend, ours, theirs):
    is_latency = kind == "lat"
    record = {"figure": f"guest: ib_{operation}_{kind}, {size} B, {backend}", "value": round(ours, 4),
              "unit": "us" if is_latency else "GB/s", "reference": "kernel rxe",
              "reference_value": round(theirs, 4)}
    if is_latency:
        record.update(goal=LATENCY_GOAL, sense="<=")
    elif size >= 1 << 10:
        record.update(goal=BANDWIDTH_GOAL, sense=">=")
    print(json.dumps(record), flush=True)


def run(machine, arguments):
    install(machine)
    rxe = Device("rxe", guest.DEVICE, gid_index_of(machine, machine.ipv4), [])
    ours = [Device(backend, "verbena0", 1,
                   [f"{WHERE}/bin/verbena", "run", f"--dma={backend}", "--"])
            for backend in arguments.dma or BACKENDS]
    port = 18600
    for operation in ("write", "send", "read"):
        for kind in ("bw", "lat"):
            if arguments.only not in (None, f"{operation}_{kind}"):
                continue
            for size in arguments.size or SIZES:
                values = {device.label: [] for device in (rxe, *ours)}
                floors = []
                for _ in range(arguments.rounds):
                    if (kind, size) == ("lat", SIZES[0]):
                        floors.append(half_futex_ping_pong_us(machine))
                    for device in (rxe, *ours):
                        port += 1
                        row = measure(machine, device, operation, kind, size, port)
                        values[device.label].append(row[4] if kind == "lat" else row[3] * MIB_PER_S)
                if floors:
                    perftest_bench.figure(
                        f"guest: ib_{operation}_lat, {size} B, kernel rxe",
                        statistics.median(values["rxe"]), "us",
                        "half a futex ping-pong of two processes", statistics.median(floors))
                for device in ours:
                    figure(operation, kind, size, device.label,
                           statistics.median(values[device.label]), statistics.median(values["rxe"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rounds", type=int)
    parser.add_argument("--cpus", type=int, default=2, help="of the guest")
    parser.add_argument("--only", help="e.g. write_lat")
    parser.add_argument("--dma", action="append", choices=BACKENDS, help="only this way to memory")
    parser.add_argument("--size", type=int, action="append", choices=SIZES)
    arguments = parser.parse_args()
    try:
        with (network.Network(network.MTU_4096) as net,
              guest.Guest(net, cpus=arguments.cpus) as machine):
            run(machine, arguments)
    except Unavailable as why:
        print(f"skipped: {why}")
        return guest.EXIT_SKIPPED
    except (Failure, network.NoNetwork) as failure:
        print(failure, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
