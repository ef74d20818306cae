"""The other parts again with the NICs on UDP: all that crosses a NIC is packets. And the packets
themselves, one by one: wire scripts."""

import importlib

import wire_scripts
from harness import Spec

# Everything here must hold on the wire, too. What is about one process and its daemon alone (CLI,
# hostile clients, object counts) is the same code with and without a network.
PARTS = ["pingpong", "perftest", "qperf", "seccomp", "stopped", "events", "death",
         "conformance", "pyverbs"]
# What of it runs without --thorough: part, and words one of which is in the case's name.
GATE = {
    "pingpong": ["rc_pingpong polling, two", "uc_pingpong events, two", "ud_pingpong polling, one",
                 "srq_pingpong events, two", "validates data, events", "1 MiB", "MTU 256"],
    "perftest": ["send_bw RC, two NICs", "write_lat RC, two NICs", "read_bw RC, 8 QPs",
                 "atomic_bw RC, fetch", "write_bw UC, bidirectional", "send_lat UD, events",
                 "send_bw RC, shared"],
    "qperf": ["qperf rc_bi_bw", "qperf ver_rc_fetch_add", "qperf ud_lat"],
    "stopped": [""],
    "events": [""],
    "conformance": [""],
    "pyverbs": ["due now"],
}
# rdma_cm's are written for the addresses that NICs of one machine have; the part rdmacm has packets, too.
LOCAL = "rdmacm_"


def cases(thorough):
    specs = wire_scripts.cases()
    for part in PARTS:
        words = [""] if thorough else GATE.get(part, [])
        for spec in importlib.import_module(f"parts.{part}").cases(False):
            if any(word in spec.name for word in words) and not spec.name.startswith(LOCAL):
                specs.append(Spec(f"{part}, {spec.name}", spec.function, spec.limit_s,
                                  is_wire=True))
    return specs
