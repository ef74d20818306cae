#!/usr/bin/env python3
"""Checks a capture of RoCEv2 packets without any of Verbena's code: every length, checksum and ICRC.

    check_capture.py FILE [--json] [--packets] [--allow-damaged] [--lossless] [--comments]

Reads pcapng (link types RAW and Ethernet), parses IP, UDP, BTH and the extension headers by itself,
and prints what it found. Exit code 0: nothing wrong; 1: errors, listed; 2: no readable capture.

  --json           the summary as JSON; with --packets every packet's fields too
  --allow-damaged  packets that arrived with a wrong ICRC, and whose comment says so, are no error
  --lossless       PSNs that never arrived are an error (those never sent always are)
  --comments       a packet whose comment does not say whose it is is an error

A packet that a fault rule corrupted before it was sent (its comment says which bit) must be right
once the bit is turned back. What a rule kept from the wire is checked as what was sent is.
"""

import argparse
import collections
import json
import re
import struct
import sys
import zlib

ROCE_PORT = 4791
MTUS = (256, 512, 1024, 2048, 4096)

# Bytes of the headers after the BTH, in their order on the wire.
DETH, FETH, RETH, ATOMIC_ETH, AETH, ATOMIC_ACK_ETH, IMM, IETH = (
    ("deth", 8), ("feth", 4), ("reth", 16), ("atomiceth", 28), ("aeth", 4), ("atomicacketh", 8),
    ("immdt", 4), ("ieth", 4))
# Operation: name, headers, where in a message, what payload it may have.
OPERATIONS = {
    0x00: ("SEND_FIRST", [], "mtu"), 0x01: ("SEND_MIDDLE", [], "mtu"),
    0x02: ("SEND_LAST", [], "some"), 0x03: ("SEND_LAST_WITH_IMM", [IMM], "some"),
    0x04: ("SEND_ONLY", [], "any"), 0x05: ("SEND_ONLY_WITH_IMM", [IMM], "any"),
    0x06: ("WRITE_FIRST", [RETH], "mtu"), 0x07: ("WRITE_MIDDLE", [], "mtu"),
    0x08: ("WRITE_LAST", [], "some"), 0x09: ("WRITE_LAST_WITH_IMM", [IMM], "some"),
    0x0A: ("WRITE_ONLY", [RETH], "reth"), 0x0B: ("WRITE_ONLY_WITH_IMM", [RETH, IMM], "reth"),
    0x0C: ("READ_REQUEST", [RETH], "none"), 0x0D: ("READ_RESPONSE_FIRST", [AETH], "mtu"),
    0x0E: ("READ_RESPONSE_MIDDLE", [], "mtu"), 0x0F: ("READ_RESPONSE_LAST", [AETH], "some"),
    0x10: ("READ_RESPONSE_ONLY", [AETH], "any"), 0x11: ("ACKNOWLEDGE", [AETH], "none"),
    0x12: ("ATOMIC_ACKNOWLEDGE", [AETH, ATOMIC_ACK_ETH], "none"),
    0x13: ("COMPARE_SWAP", [ATOMIC_ETH], "none"), 0x14: ("FETCH_ADD", [ATOMIC_ETH], "none"),
    0x16: ("SEND_LAST_WITH_INVALIDATE", [IETH], "some"),
    0x17: ("SEND_ONLY_WITH_INVALIDATE", [IETH], "any"),
    0x1C: ("FLUSH", [FETH, RETH], "none"), 0x1D: ("ATOMIC_WRITE", [RETH], "reth"),
}
SERVICES = {0: ("RC", set(OPERATIONS)), 1: ("UC", set(range(0x0C))), 3: ("UD", {0x04, 0x05})}
RESPONSES = set(range(0x0D, 0x13))

FLIPPED = re.compile(r"fault: .*?bit (\d+) flipped")
DAMAGED = "received with a wrong ICRC"
# Whose a packet is, here and there; nobody knows that of what can't be read.
OWNED = re.compile(r"\S (→|←) \S|^not decoded: ")


class BadCapture(Exception):
    """The file can't be read as a capture."""


class Wrong(Exception):
    """The packet breaks a rule; the text says which."""


Captured = collections.namedtuple("Captured", "number interface link_type time_ns direction comment "
                                              "missed data")


# --- pcapng ----------------------------------------------------------------------------------


def options_of(body, order):
    found = collections.defaultdict(list)
    at = 0
    while at + 4 <= len(body):
        code, length = struct.unpack_from(order + "HH", body, at)
        if code == 0:
            break
        if at + 4 + length > len(body):
            raise BadCapture("an option is longer than its block")
        found[code].append(body[at + 4:at + 4 + length])
        at += 4 + (length + 3) // 4 * 4
    return found


def blocks_of(data):
    """Yields (byte order, type, body) of each block."""
    order, at = "<", 0
    while at < len(data):
        if len(data) - at < 12:
            raise BadCapture(f"{len(data) - at} bytes are left at the end, no whole block")
        if data[at:at + 4] == b"\n\r\r\n":
            order = {b"\x1a\x2b\x3c\x4d": ">", b"\x4d\x3c\x2b\x1a": "<"}.get(data[at + 8:at + 12])
            if order is None:
                raise BadCapture("a section header without byte order")
        elif at == 0:
            raise BadCapture("this is no pcapng file: it has no section header")
        kind, length = struct.unpack_from(order + "II", data, at)
        if length % 4 or length < 12 or at + length > len(data):
            raise BadCapture(f"block at {at}: length {length} is not possible (file cut short?)")
        if struct.unpack_from(order + "I", data, at + length - 4)[0] != length:
            raise BadCapture(f"block at {at}: its two lengths differ")
        yield order, kind, data[at + 8:at + length - 4]
        at += length


def packets_of(data):
    interfaces, number = [], 0
    for order, kind, body in blocks_of(data):
        if kind == 0x0A0D0D0A:
            interfaces = []
        elif kind == 1:
            link_type = struct.unpack_from(order + "H", body)[0]
            options = options_of(body[8:], order)
            name = options[2][0].decode() if options[2] else str(len(interfaces))
            resolution = options[9][0][0] if options[9] else 6
            if resolution & 0x80:
                raise BadCapture(f"interface {name}: timestamps in powers of two")
            interfaces.append((name, link_type, 10 ** (9 - resolution) if resolution <= 9 else 1))
        elif kind == 6:
            number += 1
            index, high, low, held, full = struct.unpack_from(order + "IIIII", body)
            if index >= len(interfaces):
                raise BadCapture(f"packet {number}: interface {index} was not described")
            if held != full or 20 + held > len(body):
                raise BadCapture(f"packet {number}: cut ({held} of {full} bytes)")
            options = options_of(body[20 + (held + 3) // 4 * 4:], order)
            flags = struct.unpack(order + "I", options[2][0])[0] if options[2] else 0
            name, link_type, unit = interfaces[index]
            yield Captured(number, name, link_type, (high << 32 | low) * unit,
                           {1: "in", 2: "out"}.get(flags & 3),
                           "; ".join(c.decode("utf-8") for c in options[1]),
                           struct.unpack(order + "Q", options[4][0])[0] if options[4] else 0,
                           body[20:20 + held])


# --- IP and UDP ------------------------------------------------------------------------------


def ones_sum(data):
    if len(data) % 2:
        data += b"\0"
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def parse_ip(packet, link_type):
    """Returns (fields, IP header, UDP header and payload); None where this is no UDP."""
    if link_type == 1:
        ether_type = struct.unpack_from(">H", packet, 12)[0]
        if ether_type not in (0x0800, 0x86DD):
            return None
        packet = packet[14:]
    elif link_type != 101:
        raise BadCapture(f"link type {link_type} is not known here (RAW and Ethernet are)")
    if not packet:
        raise Wrong("an empty packet")
    fields = {"version": packet[0] >> 4}
    if fields["version"] == 4:
        header_bytes = (packet[0] & 15) * 4
        if len(packet) < 20 or header_bytes < 20 or len(packet) < header_bytes:
            raise Wrong("shorter than its IPv4 header")
        if packet[9] != 17:
            return None
        total, ip_id, fragment = struct.unpack_from(">HHH", packet, 2)
        header = packet[:header_bytes]
        if ones_sum(header) != 0xFFFF:
            raise Wrong("IPv4 header checksum")
        if fragment & 0x3FFF:
            raise Wrong("an IPv4 fragment")
        if not fragment & 0x4000:
            raise Wrong("IPv4 without DF")
        fields.update(src=".".join(map(str, packet[12:16])), dst=".".join(map(str, packet[16:20])),
                      ip_id=ip_id)
        pseudo = packet[12:20]
    elif fields["version"] == 6:
        if len(packet) < 40:
            raise Wrong("shorter than its IPv6 header")
        if packet[6] != 17:
            return None
        total = 40 + struct.unpack_from(">H", packet, 4)[0]
        header = packet[:40]
        fields.update(src=packet[8:24].hex(":", 2), dst=packet[24:40].hex(":", 2))
        pseudo = packet[8:40]
    else:
        raise Wrong(f"IP version {fields['version']}")
    if total > len(packet) or (link_type == 101 and total != len(packet)):
        raise Wrong(f"IP length {total} of {len(packet)} captured bytes")
    udp = packet[len(header):total]
    if len(udp) < 8:
        raise Wrong("shorter than its UDP header")
    fields["sport"], fields["dport"], length, checksum = struct.unpack_from(">HHHH", udp)
    if length != len(udp):
        raise Wrong(f"UDP length {length} of {len(udp)} bytes")
    if checksum == 0:
        fields["no_udp_checksum"] = True
    elif ones_sum(pseudo + struct.pack(">HH", 17, length) + udp) != 0xFFFF:
        raise Wrong("UDP checksum")
    return fields, header, udp


# --- InfiniBand transport --------------------------------------------------------------------


def icrc_of(header, udp):
    """CRC-32 over 8 bytes of ones, and the packet with what routers change as ones."""
    ip = bytearray(header)
    if ip[0] >> 4 == 4:
        ip[1] = ip[8] = ip[10] = ip[11] = 0xFF
    else:
        ip[0] |= 0x0F
        ip[1] = ip[2] = ip[3] = ip[7] = 0xFF
    rest = bytearray(udp[:-4])
    rest[6] = rest[7] = rest[8 + 4] = 0xFF
    return zlib.crc32(b"\xff" * 8 + bytes(ip) + bytes(rest))


def parse_transport(payload):
    if len(payload) < 16:
        raise Wrong(f"{len(payload)} bytes are no BTH and ICRC")
    service, known = SERVICES.get(payload[0] >> 5, (None, ()))
    operation = payload[0] & 31
    if service is None or operation not in known:
        raise Wrong(f"opcode 0x{payload[0]:02x} is reserved")
    name, extensions, allowed = OPERATIONS[operation]
    fields = {"opcode": payload[0], "name": f"{service} {name}", "service": service,
              "solicited": payload[1] >> 7, "pad": payload[1] >> 4 & 3,
              "pkey": payload[2] << 8 | payload[3],
              "dest_qp": int.from_bytes(payload[5:8], "big"), "ack_request": payload[8] >> 7,
              "psn": int.from_bytes(payload[9:12], "big")}
    if payload[1] & 15:
        raise Wrong(f"BTH version {payload[1] & 15}")
    at = 12
    for header, length in ([DETH] if service == "UD" else []) + extensions:
        body = payload[at:at + length]
        at += length
        if at + 4 > len(payload):
            raise Wrong(f"too short for its {header.upper()}")
        if header == "deth":
            fields.update(qkey=int.from_bytes(body[:4], "big"),
                          src_qp=int.from_bytes(body[5:], "big"))
        elif header == "reth":
            address, rkey, dma_length = struct.unpack(">QII", body)
            fields.update(remote_addr=address, rkey=rkey, dma_length=dma_length)
        elif header == "atomiceth":
            address, rkey, swap_or_add, compare = struct.unpack(">QIQQ", body)
            fields.update(remote_addr=address, rkey=rkey, swap_or_add=swap_or_add, compare=compare)
        elif header == "aeth":
            fields.update(syndrome=body[0], msn=int.from_bytes(body[1:], "big"))
            if body[0] & 0x80 or body[0] >> 5 == 2 or (body[0] >> 5 == 3 and body[0] & 31 > 4):
                raise Wrong(f"AETH syndrome 0x{body[0]:02x} is reserved")
        elif header == "atomicacketh":
            fields["original"] = int.from_bytes(body, "big")
        else:
            fields[header] = int.from_bytes(body, "big")
    pad = fields["pad"]
    length = len(payload) - at - 4 - pad
    if length < 0 or (length + pad) % 4:
        raise Wrong(f"pad {pad} does not fit {length + pad} bytes")
    if any(payload[at + length:at + length + pad]):
        raise Wrong("pad bytes are not zero")
    fields["payload_bytes"] = length
    good = {"mtu": length in MTUS, "some": 1 <= length <= 4096, "any": length <= 4096,
            "none": length == 0, "reth": length == fields.get("dma_length") and length <= 4096}
    if not good[allowed]:
        raise Wrong(f"{name} with {length} bytes of payload")
    return fields


def check_icrc(fields, header, udp, comment, is_sent):
    """Sets fields["icrc"] and what became of it; raises Wrong."""
    stored = int.from_bytes(udp[-4:], "little")
    fields["icrc"] = stored
    if icrc_of(header, udp) == stored:
        if DAMAGED in comment:
            raise Wrong("the comment calls the ICRC wrong, and it is right")
        return
    if DAMAGED in comment and not is_sent:
        fields["damaged"] = True
        return
    raise Wrong(f"ICRC 0x{stored:08x}, computed 0x{icrc_of(header, udp):08x}")


# --- Sequences -------------------------------------------------------------------------------


class PsnSequence:
    """PSNs of one sender's requests to one QP: which were used between the first and the last."""

    JUMP = 1 << 20  # farther than any window: a new connection on an old QP number

    def __init__(self):
        self.base = self.last = None
        self.used = []  # (first, one past the last it may stand for)
        self.holes = 0

    def add(self, psn, count_max):
        if self.last is None:
            place = psn
        else:
            delta = (psn - self.last + (1 << 23)) % (1 << 24) - (1 << 23)
            if abs(delta) > self.JUMP:
                self.close()
                place = psn
            else:
                place = self.last + delta
        self.last = place
        self.used.append((place, place + count_max))

    def close(self):
        """Counts PSNs that nobody used: a sender leaves none out."""
        covered = None
        for first, end in sorted(self.used):
            if covered is not None and first > covered:
                self.holes += first - covered
            covered = end if covered is None else max(covered, end)
        self.used = []


def sequence_key(packet, fields):
    """Who numbers this packet; None: numbered by the other side."""
    if fields["opcode"] & 31 in RESPONSES and fields["service"] == "RC":
        return None
    if fields["service"] == "UD":
        # One count per sending QP, whomever it sends to; a receiver sees a part of it.
        if packet.direction != "out":
            return None
        return (packet.interface, packet.direction, fields["src"], "UD", fields["src_qp"])
    return (packet.interface, packet.direction, fields["src"], fields["dst"], fields["service"],
            fields["dest_qp"])


# --- All of it -------------------------------------------------------------------------------


class Report:
    def __init__(self):
        self.packets, self.errors = [], []
        self.opcodes = collections.Counter()
        self.counts = collections.Counter()
        self.sequences = collections.defaultdict(PsnSequence)

    def check(self, packet, allow_damaged, wants_comments):
        self.counts["packets"] += 1
        self.counts["missed"] += packet.missed
        parsed = parse_ip(packet.data, packet.link_type)
        if parsed is None or parsed[0]["dport"] != ROCE_PORT:
            self.counts["other"] += 1
            return
        fields, header, udp = parsed
        fields.update(number=packet.number, interface=packet.interface, time_ns=packet.time_ns,
                      direction=packet.direction, comment=packet.comment)
        self.packets.append(fields)
        is_sent = packet.direction == "out"
        if packet.direction is None and packet.link_type == 101:
            raise Wrong("no direction")
        if wants_comments and not OWNED.search(packet.comment):
            raise Wrong("the comment does not say whose it is")
        flipped = FLIPPED.search(packet.comment)
        if len(udp) < 8 + 16:
            raise Wrong(f"{len(udp) - 8} bytes are no BTH and ICRC")
        if flipped and is_sent:
            self.counts["corrupted_by_rule"] += 1
            bit = int(flipped.group(1))
            turned = bytearray(udp)
            if bit // 8 + 8 >= len(udp):
                raise Wrong(f"bit {bit} was flipped, and the packet has none")
            if icrc_of(header, udp) == int.from_bytes(udp[-4:], "little") and bit // 8 != 4:
                raise Wrong(f"bit {bit} was flipped, and the ICRC is right")
            turned[8 + bit // 8] ^= 1 << bit % 8
            udp = bytes(turned)
        check_icrc(fields, header, udp, packet.comment, is_sent)
        if fields.get("damaged"):
            self.counts["damaged"] += 1
            if not allow_damaged:
                raise Wrong(f"{DAMAGED} (--allow-damaged accepts it)")
            return
        self.counts["icrc_right"] += 1
        self.counts["no_udp_checksum"] += fields.get("no_udp_checksum", False)
        self.counts["faults"] += "fault: " in packet.comment
        fields.update(parse_transport(udp[8:]))
        self.opcodes[fields["name"]] += 1
        key = sequence_key(packet, fields)
        if key is not None:
            # A READ takes as many PSNs as its response has packets, at some MTU.
            is_read = fields["opcode"] & 31 == 0x0C
            count = max(1, (fields["dma_length"] + 255) // 256) if is_read else 1
            self.sequences[key].add(fields["psn"], count)

    def close(self, lossless):
        for key, sequence in self.sequences.items():
            sequence.close()
            if not sequence.holes:
                continue
            name = "psns_never_sent" if key[1] == "out" else "psns_never_seen"
            self.counts[name] += sequence.holes
            if key[1] == "out" and not self.counts["missed"] or key[1] == "in" and lossless:
                self.errors.append(f"{sequence.holes} PSNs left out: {' '.join(map(str, key))}")

    def summary(self):
        return {"ok": not self.errors, "counts": dict(sorted(self.counts.items())),
                "opcodes": dict(sorted(self.opcodes.items())), "errors": self.errors}


def check_file(path, allow_damaged=False, lossless=False, comments=False):
    with open(path, "rb") as file:
        data = file.read()
    report = Report()
    for packet in packets_of(data):
        try:
            report.check(packet, allow_damaged, comments)
        except (Wrong, struct.error, IndexError) as wrong:
            report.errors.append(f"packet {packet.number} ({packet.interface}, {packet.direction}): "
                                 f"{wrong}" + (f" [{packet.comment}]" if packet.comment else ""))
    report.close(lossless)
    return report


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--packets", action="store_true")
    parser.add_argument("--allow-damaged", action="store_true")
    parser.add_argument("--lossless", action="store_true")
    parser.add_argument("--comments", action="store_true")
    arguments = parser.parse_args()
    try:
        report = check_file(arguments.file, arguments.allow_damaged, arguments.lossless,
                            arguments.comments)
    except (OSError, BadCapture, struct.error, UnicodeDecodeError) as broken:
        print(f"{arguments.file}: {broken}", file=sys.stderr)
        return 2
    summary = report.summary()
    if arguments.json:
        if arguments.packets:
            summary["packets"] = report.packets
        print(json.dumps(summary, indent=1))
    else:
        for name, count in report.opcodes.most_common():
            print(f"{count:10} {name}")
        print(", ".join(f"{name} {count}" for name, count in summary["counts"].items()))
        for error in report.errors[:50]:
            print(f"ERROR {error}")
        if len(report.errors) > 50:
            print(f"… and {len(report.errors) - 50} more errors")
    return 0 if summary["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
