#!/usr/bin/env python3
"""Compares what tshark dissects in a capture with what check_capture.py parses by itself.

    compare_tshark.py FILE

Exit code 0: equal, field for field; 1: differences, listed; 3: there is no tshark.

tshark does not check ICRCs (only the value it shows is compared), and takes some payloads for
protocols above InfiniBand: those dissectors are turned off. Packets that a fault rule corrupted, or
that arrived so, are left out.
"""

import os
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import check_capture  # noqa: E402

# tshark's field: ours. A packet without the header has neither.
FIELDS = {
    "infiniband.bth.opcode": "opcode", "infiniband.bth.psn": "psn",
    "infiniband.bth.destqp": "dest_qp", "infiniband.bth.padcnt": "pad",
    "infiniband.bth.p_key": "pkey", "infiniband.bth.se": "solicited",
    "infiniband.bth.a": "ack_request", "infiniband.aeth.syndrome": "syndrome",
    "infiniband.aeth.msn": "msn", "infiniband.reth.dmalen": "dma_length",
    "infiniband.reth.r_key": "rkey", "infiniband.deth.q_key": "qkey",
    "infiniband.deth.srcqp": "src_qp", "infiniband.immdt": "immdt",
    "infiniband.invariant.crc": "icrc", "ip.id": "ip_id",
}
UNKNOWN = {0x1C, 0x1D}  # FLUSH, ATOMIC_WRITE: tshark 4.0 shows nothing of them beyond the BTH
BEYOND_BTH = ("dma_length", "rkey", "icrc")


def number_of(text, name):
    text = text.strip()
    if text in ("True", "False"):
        return int(text == "True")
    if text == "":
        return None
    value = int(text, 16 if name == "infiniband.immdt" else 0)  # shown as bytes
    # The ICRC goes out least significant byte first; tshark reads it the other way round.
    if name == "infiniband.invariant.crc":
        value = int.from_bytes(value.to_bytes(4, "big"), "little")
    return value


def dissect(path):
    """Yields {frame number, tshark field: value} of each packet."""
    argv = ["tshark", "-n", "-r", path, "--disable-protocol", "infiniband.eoib",
            "--disable-protocol", "rpcordma", "-T", "fields", "-E", "separator=/t",
            "-E", "occurrence=f", "-e", "frame.number", "-e", "_ws.malformed"]
    for name in FIELDS:
        argv += ["-e", name]
    with tempfile.TemporaryDirectory() as home:
        environment = dict(os.environ, HOME=home, XDG_CONFIG_HOME=home, LC_ALL="C.UTF-8")
        result = subprocess.run(argv, capture_output=True, text=True, env=environment, check=False)
    if result.returncode != 0:
        raise check_capture.BadCapture(f"tshark failed: {result.stderr.strip()}")
    for line in result.stdout.splitlines():
        number, malformed, *values = line.split("\t")
        yield int(number), malformed, dict(zip(FIELDS, values))


def differences(path):
    """Returns (packets compared, list of differences)."""
    ours = {packet["number"]: packet for packet in check_capture.check_file(path, True).packets}
    compared, found, seen = 0, [], set()
    for number, malformed, values in dissect(path):
        packet = ours.get(number)
        seen.add(number)
        if packet is None or "opcode" not in packet:
            continue
        if packet["direction"] == "out" and check_capture.FLIPPED.search(packet["comment"]):
            continue
        compared += 1
        if malformed:
            found.append(f"packet {number}: tshark calls it malformed")
        for field, name in FIELDS.items():
            if packet["opcode"] in UNKNOWN and name in BEYOND_BTH:
                continue
            theirs = number_of(values[field], field)
            if theirs != packet.get(name):
                found.append(f"packet {number} ({packet['name']}): {field} {values[field]!r}, "
                             f"ours {packet.get(name)}")
    missing = sorted(set(ours) - seen)
    if missing:
        found.append(f"tshark shows no packets {missing[:10]}")
    return compared, found


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    if shutil.which("tshark") is None:
        print("tshark is not installed (Debian: apt-get install tshark)", file=sys.stderr)
        return 3
    compared, found = differences(sys.argv[1])
    for line in found[:50]:
        print(line)
    print(f"{compared} packets compared with tshark, {len(found)} differences")
    return 1 if found or compared == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
