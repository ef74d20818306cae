"""ibv_*_pingpong, polling and sleeping on events."""

import re

from harness import Spec, check, free_port
from parts.pair import run_pair


def pingpong(tool, options, devices):
    def case_function(case):
        env = case.instance().env()
        port = free_port()
        common = [tool, "-g", "1", "-p", str(port), *options]
        server, client = run_pair(case, env, [*common, "-d", devices[0]],
                                  [*common, "-d", devices[1], "localhost"], port, 20)
        for side in (server, client):
            found = re.search(r"(\d+) iters in ([\d.]+) seconds = ([\d.]+) usec/iter", side.out)
            check(found, f"{side.name} printed no result:\n{side.tail()}")
            check(float(found.group(3)) > 0, f"implausible time: {found.group(0)}")
        case.note(f"{found.group(3)} µs per iteration")
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
