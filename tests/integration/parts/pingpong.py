"""ibv_*_pingpong, polling and sleeping on events."""

import re

from harness import Spec, check, free_port
from hosts import Pair
from parts.pair import run_pair


def run_pingpong(case, pair, tool, options, limit_s=20):
    port = free_port()
    common = [tool, "-g", str(pair.gid_index), "-p", str(port), *options]
    server, client = run_pair(case, pair, [*common, "-d", pair.devices[0]],
                              [*common, "-d", pair.devices[1], pair.server.address], port, limit_s)
    for side in (server, client):
        found = re.search(r"(\d+) iters in ([\d.]+) seconds = ([\d.]+) usec/iter", side.out)
        check(found, f"{side.name} printed no result:\n{side.tail()}")
        check(float(found.group(3)) > 0, f"implausible time: {found.group(0)}")
    case.note(f"{found.group(3)} µs per iteration")


def pingpong(tool, options, devices):
    def case_function(case):
        pair = Pair.beside(case.instance())
        pair.devices = devices
        run_pingpong(case, pair, tool, options)
    return case_function


def cases(thorough):
    specs = []
    two, one = ("verbena0", "verbena1"), ("verbena0", "verbena0")
    for service in ("rc", "uc", "ud", "srq"):
        tool = f"ibv_{service}_pingpong"
        for mode, options in (("polling", []), ("events", ["-e"])):
            for place, devices in (("two NICs", two), ("one NIC", one)):
                specs.append(Spec(f"{tool} {mode}, {place}", pingpong(tool, options, devices)))
    for name, options in (("validates data", ["-c"]), ("validates data, events", ["-c", "-e"]),
                          ("extended post, validates data", ["-N", "-c"]),
                          ("1 MiB messages, validates data", ["-c", "-s", "1048576", "-n", "100"]),
                          ("path MTU 256", ["-c", "-m", "256"]),
                          ("one receive posted", ["-r", "1"])):
        specs.append(Spec(f"ibv_rc_pingpong {name}", pingpong("ibv_rc_pingpong", options, two)))
    return specs
