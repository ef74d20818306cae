"""Two hosts on a cable that loses, doubles, reorders, delays and damages packets below the daemons.

Programs that leave without telling their peer first (the pingpongs) have no place here: where the
last ACK is lost, the peer's retries find nobody.
"""

import os
import re

from harness import PATIENCE, PYTHON, ROOT, Failure, Spec, check, free_port, wait_for
from hosts import IPV4, IPV6, MILLION, LossyLink, Namespace, pair_on
from parts.namespaces import run_exact_bytes
from parts.pair import run_pair
from parts.perftest import allow_last_word, run_tool

# Of a million packets each way: a bad network, a very bad one, and one that nobody would keep.
NETWORKS = {
    "1 % loss": {"loss": 10_000, "duplicate": 10_000, "reorder": 10_000, "corrupt": 1_000},
    "5 % loss": {"loss": 50_000, "duplicate": 20_000, "reorder": 30_000, "corrupt": 5_000},
    "20 % loss": {"loss": 200_000, "duplicate": 50_000, "reorder": 50_000, "corrupt": 10_000},
}
LOSSY_LIMIT_S = 120
GATE_TOOLS = ("ib_write_bw", "ib_read_bw")
THOROUGH_TOOLS = (*GATE_TOOLS, "ib_send_bw", "ib_atomic_bw", "ib_write_lat", "ib_read_lat",
                  "ib_send_lat", "ib_atomic_lat")
# A retry after T = 4.096 µs · 2^timeout at the earliest and after 4 T at the latest (IBTA 9.7.6.1.3);
# 1 + retry_cnt of them, and what the machine adds.
TIMEOUT_EXP, RETRY_CNT = 14, 3
MACHINE_MS = 300.0
PEER = ROOT / "tests" / "interop" / "verbs_peer.py"
ACTIVE_MTU = {1500: 1024, 4200: 4096}


def lossy_hosts(case, mtu, gid_index, faults):
    left, right = Namespace(case, "left"), Namespace(case, "right")
    link = LossyLink(case, left, right, mtu, **faults)
    return pair_on(left, right, gid_index), link


def exact_bytes(faults, mtu, gid_index, rounds):
    """Timeout 12 (17 ms): a host that a busy machine keeps from running for a while is not given up."""
    def case_function(case):
        pair, link = lossy_hosts(case, mtu, gid_index, faults)
        run_exact_bytes(case, pair, rounds, LOSSY_LIMIT_S, timeout=12)
        link.end(**faults)
        if gid_index == IPV6 and faults["corrupt"] >= 5_000:
            wires = [host.instance.status()["nics"][0]["wire"]
                     for host in (pair.server, pair.client)]
            check(sum(wire["rx_icrc_errors"] for wire in wires) > 0,
                  f"packets were damaged, and no ICRC was wrong: {wires}")
    return case_function


def perftest(faults, mtu, gid_index, tool, options, iterations):
    """perftest's own QPs: timeout 14 (67 ms), so each loss that ends a burst costs that."""
    def case_function(case):
        pair, link = lossy_hosts(case, mtu, gid_index, faults)
        try:
            run_tool(case, pair, tool, options, iterations, LOSSY_LIMIT_S)
        except Failure as failure:
            allow_last_word(case, failure, tool, int(iterations))
        link.end(**faults)
    return case_function


def whole_or_not(faults, mtu, gid_index, service):
    """UC, UD: each message that comes has the bytes of one that was sent."""
    def case_function(case):
        pair, link = lossy_hosts(case, mtu, gid_index, faults)
        port, seed = free_port(), int.from_bytes(os.urandom(2), "little")
        case.note(f"seed {seed}")
        common = [PYTHON, PEER, "--gid-index", pair.gid_index, "--mtu", ACTIVE_MTU[mtu],
                  "--port", port, "--service", service, "--checks", "whole", "--seed", seed]
        server, client = run_pair(case, pair, [*common, "--device", pair.devices[0]],
                                  [*common, "--device", pair.devices[1], "--connect",
                                   pair.server.address], port, LOSSY_LIMIT_S)
        check("ok whole" in client.out, client.tail())
        case.note(re.search(r"\d+ of \d+ came", server.out).group())
        link.end(**faults)
    return case_function


def nothing_arrives(case):
    """All is lost from some moment on: retry exceeded, neither before nor long after its time."""
    pair, link = lossy_hosts(case, 4200, IPV4, {})
    port, program = free_port(), case.program("exact_bytes")
    pair.server.spawn(case, [program, "server", port, "1"])
    wait_for(lambda: pair.server.is_listening(port), 10, "the server listens")
    client = pair.client.spawn(case, [program, "client", port, "1", pair.server.address, 1, 0,
                                      TIMEOUT_EXP, RETRY_CNT])
    client.wait_for_output("writing", 10)
    link.change(loss=MILLION)
    client.expect_exit(20)
    found = re.search(r"transport retry counter exceeded after ([\d.]+) ms", client.out)
    check(found, f"the client did not see its retries exceeded:\n{client.tail()}")
    try_ms = 4.096e-3 * 2 ** TIMEOUT_EXP
    least, most = try_ms * (1 + RETRY_CNT), 4 * try_ms * (1 + RETRY_CNT)
    case.note(f"{found.group(1)} ms; the specification allows {least:.0f} to {most:.0f}")
    check(least <= float(found.group(1)), f"given up after {found.group(1)} ms already")
    # The upper bound is the machine's business, too: PATIENCE as with every limit.
    check(float(found.group(1)) <= PATIENCE * (most + MACHINE_MS),
          f"given up after {found.group(1)} ms only")
    link.end(loss=MILLION)


def cases(thorough):
    specs = [Spec("100 % loss gives retry exceeded in time", nothing_arrives, 40)]
    networks = [("IPv4", IPV4, 4200), ("IPv6", IPV6, 1500)]
    if thorough:
        networks += [("IPv4", IPV4, 1500), ("IPv6", IPV6, 4200)]
    for number, (name, faults) in enumerate(NETWORKS.items()):
        # What ends a burst and is lost costs a timeout, and that is a fifth of all at the end.
        count = "25" if number == 2 and not thorough else "100"
        for place, (family, gid_index, mtu) in enumerate(networks):
            where = f"{name}, {family}, MTU {mtu}"
            specs.append(Spec(f"exact bytes, {where}",
                              exact_bytes(faults, mtu, gid_index, 100 if thorough else 10),
                              LOSSY_LIMIT_S + 10))
            if not thorough and number % 2 != place:
                continue
            for service in ("uc", "ud"):
                specs.append(Spec(f"whole messages or none, {service.upper()}, {where}",
                                  whole_or_not(faults, mtu, gid_index, service),
                                  LOSSY_LIMIT_S + 10))
            for tool in THOROUGH_TOOLS if thorough else GATE_TOOLS:
                specs.append(Spec(f"{tool}, {where}",
                                  perftest(faults, mtu, gid_index, tool, [], count),
                                  LOSSY_LIMIT_S + 10))
    return specs
