"""qperf's RDMA tests over RC, UC and UD."""

import re

from harness import Spec, check, free_port, wait_for
from hosts import Pair

TESTS = {
    "RC": ["rc_bi_bw", "rc_bw", "rc_lat", "rc_rdma_read_bw", "rc_rdma_read_lat",
           "rc_rdma_write_bw", "rc_rdma_write_lat", "rc_rdma_write_poll_lat",
           "rc_compare_swap_mr", "rc_fetch_add_mr", "ver_rc_compare_swap", "ver_rc_fetch_add"],
    "UC": ["uc_bi_bw", "uc_bw", "uc_lat", "uc_rdma_write_bw", "uc_rdma_write_lat",
           "uc_rdma_write_poll_lat"],
    "UD": ["ud_bi_bw", "ud_bw", "ud_lat"],
}


def run_qperf(case, pair, test, options=()):
    port = free_port()
    server = pair.server.spawn(case, ["qperf", "-lp", str(port)])
    wait_for(lambda: pair.server.is_listening(port), 10, f"port {port} listens")
    client = pair.client.run(case, ["qperf", pair.server.address, "-lp", str(port), "-li",
                                    pair.devices[1], "-ri", pair.devices[0], "-t", "1", *options, test], 20)
    check(server.is_running(), "the qperf server died")
    found = re.findall(r"(bw|latency|msg_rate|rate)\s*=\s*([\d.,]+)\s*(\S+)", client.out)
    check(found and all(float(f[1].replace(",", "")) > 0 for f in found),
          f"no plausible result of {test}:\n{client.tail()}")
    case.note(", ".join(f"{f[0]} {f[1]} {f[2]}" for f in found))
    server.kill()


def one(test):
    return lambda case: run_qperf(case, Pair.beside(case.instance()), test)


def cases(thorough):
    return [Spec(f"qperf {test}", one(test)) for tests in TESTS.values() for test in tests]
