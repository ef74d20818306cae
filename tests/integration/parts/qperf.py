"""qperf's RDMA tests over RC, UC and UD."""

import re

from harness import Spec, check, free_port, is_listening, wait_for

TESTS = {
    "RC": ["rc_bi_bw", "rc_bw", "rc_lat", "rc_rdma_read_bw", "rc_rdma_read_lat",
           "rc_rdma_write_bw", "rc_rdma_write_lat", "rc_rdma_write_poll_lat",
           "rc_compare_swap_mr", "rc_fetch_add_mr", "ver_rc_compare_swap", "ver_rc_fetch_add"],
    "UC": ["uc_bi_bw", "uc_bw", "uc_lat", "uc_rdma_write_bw", "uc_rdma_write_lat",
           "uc_rdma_write_poll_lat"],
    "UD": ["ud_bi_bw", "ud_bw", "ud_lat"],
}


def one(test):
    def case_function(case):
        env = case.instance().env()
        port = free_port()
        server = case.spawn(["qperf", "-lp", str(port)], name="server", env=env)
        wait_for(lambda: is_listening(port), 10, f"port {port} listens")
        client = case.run(["qperf", "127.0.0.1", "-lp", str(port), "-li", "verbena0", "-ri",
                           "verbena1", "-t", "1", test], 20, name="client", env=env)
        check(server.is_running(), "the qperf server died")
        found = re.findall(r"(bw|latency|msg_rate|rate)\s*=\s*([\d.,]+)\s*(\S+)", client.out)
        check(found and all(float(f[1].replace(",", "")) > 0 for f in found),
              f"no plausible result of {test}:\n{client.tail()}")
        case.note(", ".join(f"{f[0]} {f[1]} {f[2]}" for f in found))
    return case_function


def cases(thorough):
    return [Spec(f"qperf {test}", one(test)) for tests in TESTS.values() for test in tests]
