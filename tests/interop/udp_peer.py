"""A RoCEv2 UD endpoint made of a plain UDP socket: what the wire says, without any RDMA stack.

    udp_peer.py --local IP --remote IP --oob IP [--port P] [--count N] [--size BYTES] [--break icrc]

Plays the client of `ibv_ud_pingpong` (which tells its QPN and GID over TCP to --oob), sends it
--count valid datagrams, receives its answers and checks their headers and ICRCs. With --break icrc
one bit of every ICRC is wrong, and no answer may come. Prints "N sent, N received".

The ICRC here is computed independently of Verbena's: zlib's CRC over the masked headers.
"""

import argparse
import socket
import struct
import sys
import zlib

ROCE_PORT = 4791
UD_SEND_ONLY = 0x64
QPN, PSN, QKEY = 0x4242, 0xFFFFFE, 0x11111111
IP_MTU_DISCOVER, IP_PMTUDISC_DO = 10, 2
UDP_NO_CHECK6_RX = 102
ANSWER_LIMIT_S = 20
SILENCE_S = 2
HEADERS_BYTES = 12 + 8


def masked_ip(source, destination, udp_bytes, ip_id):
    """The IP header as the ICRC sees it: what routers may change is all ones."""
    if ":" in source:
        return (struct.pack(">IHBB", 0x6FFFFFFF, udp_bytes, socket.IPPROTO_UDP, 0xFF) +
                socket.inet_pton(socket.AF_INET6, source) +
                socket.inet_pton(socket.AF_INET6, destination))
    return (struct.pack(">BBHHHBBH", 0x45, 0xFF, 20 + udp_bytes, ip_id, 0x4000, 0xFF,
                        socket.IPPROTO_UDP, 0xFFFF) +
            socket.inet_aton(source) + socket.inet_aton(destination))


def icrc(source, destination, source_port, transport, ip_id=0):
    """Over BTH and all behind it, for a datagram with Don't Fragment set. As on the wire."""
    udp_bytes = 8 + len(transport) + 4
    udp = struct.pack(">HHHH", source_port, ROCE_PORT, udp_bytes, 0xFFFF)
    bth = transport[:4] + b"\xff" + transport[5:]
    covered = b"\xff" * 8 + masked_ip(source, destination, udp_bytes, ip_id) + udp + bth
    return struct.pack("<I", zlib.crc32(covered))


def ud_send(qpn, psn, payload):
    """BTH, DETH, payload and pad of a UD SEND Only."""
    pad = -len(payload) % 4
    bth = struct.pack(">BBHII", UD_SEND_ONLY, pad << 4, 0xFFFF, qpn, psn & 0xFFFFFF)
    return bth + struct.pack(">II", QKEY, QPN) + payload + b"\0" * pad


class Wire:
    def __init__(self, local, remote):
        self.local, self.remote = local, remote
        family = socket.AF_INET6 if ":" in local else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_DGRAM)
        if family == socket.AF_INET6:
            # rxe sends its UDP checksum as 0, which IPv6 sockets refuse unless told otherwise.
            self.socket.setsockopt(socket.IPPROTO_UDP, UDP_NO_CHECK6_RX, 1)
        else:
            # Don't Fragment and, on a socket that is not connected, ID 0: what the ICRC assumes.
            self.socket.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO)
        self.socket.bind((local, ROCE_PORT))

    def send(self, transport, broken=False):
        crc = icrc(self.local, self.remote, ROCE_PORT, transport)
        if broken:
            crc = bytes([crc[0] ^ 1]) + crc[1:]
        self.socket.sendto(transport + crc, (self.remote, ROCE_PORT))

    def receive(self, limit_s):
        """(headers and payload, source port); the ICRC has been found right. None: silence."""
        self.socket.settimeout(limit_s)
        try:
            datagram, origin = self.socket.recvfrom(65536)
        except TimeoutError:
            return None
        transport, crc = datagram[:-4], datagram[-4:]
        # The peer's IPv4 ID is under the ICRC but hidden from a socket: it must be one of all.
        ids = range(1) if ":" in self.local else range(65536)
        if not any(icrc(self.remote, self.local, origin[1], transport, i) == crc for i in ids):
            sys.exit(f"FAILED: wrong ICRC {crc.hex()} on {transport.hex()}")
        return transport


def exchange(options, gid):
    """ibv_ud_pingpong's handshake: 'lid:qpn:psn:gid' each way. Returns its QPN and PSN."""
    with socket.create_connection((options.oob, options.port), ANSWER_LIMIT_S) as control:
        control.sendall(f"0000:{QPN:06x}:{PSN:06x}:{gid.hex()}\0".encode())
        text = b""
        while len(text) < 4 + 1 + 6 + 1 + 6 + 1 + 32 + 1:
            piece = control.recv(100)
            if not piece:
                sys.exit(f"FAILED: ibv_ud_pingpong said only {text!r}")
            text += piece
        control.sendall(b"done\0")
        fields = text.rstrip(b"\0").split(b":")
        return int(fields[1], 16), int(fields[2], 16)


def check_answer(transport, options, psn):
    opcode, flags, pkey, qpn, got_psn, qkey, _ = struct.unpack(">BBHIIII", transport[:20])
    pad = flags >> 4 & 3
    wrong = [text for text, bad in (
        (f"opcode {opcode:#x}", opcode != UD_SEND_ONLY), (f"version {flags & 15}", flags & 15),
        (f"P_Key {pkey:#x}", pkey != 0xFFFF), (f"QPN {qpn:#x}", qpn & 0xFFFFFF != QPN),
        (f"PSN {got_psn:#x}", got_psn & 0xFFFFFF != psn & 0xFFFFFF),
        (f"Q_Key {qkey:#x}", qkey != QKEY),
        (f"{len(transport)} bytes", len(transport) != HEADERS_BYTES + options.size + pad)) if bad]
    if wrong:
        sys.exit(f"FAILED: {', '.join(wrong)} in {transport[:20].hex()}")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--local", required=True)
    parser.add_argument("--remote", required=True)
    parser.add_argument("--oob", required=True)
    parser.add_argument("--port", type=int, default=18515)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--size", type=int, default=1021)
    parser.add_argument("--break", dest="broken", choices=["icrc"])
    options = parser.parse_args()
    wire = Wire(options.local, options.remote)
    v6 = ":" in options.local
    gid = (socket.inet_pton(socket.AF_INET6, options.local) if v6 else
           b"\0" * 10 + b"\xff\xff" + socket.inet_aton(options.local))
    qpn, psn = exchange(options, gid)
    received = 0
    for number in range(options.count):
        wire.send(ud_send(qpn, PSN + number, b"\0" * options.size), bool(options.broken))
        answer = wire.receive(SILENCE_S if options.broken else ANSWER_LIMIT_S)
        if answer:
            check_answer(answer, options, psn + received)
            received += 1
        elif not options.broken:
            sys.exit(f"FAILED: no answer to datagram {number}")
    print(f"{options.count} sent, {received} received")


if __name__ == "__main__":
    main()
