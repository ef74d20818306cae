"""Two-sided checks of every operation, byte by byte: one program, run on both ends (pyverbs).

    verbs_peer.py --device D --gid-index N --mtu M --port P [--connect HOST] --service rc|uc|ud
                  [--srq] [--seed N] [--rxe-responder] --checks NAME,NAME...

The side without --connect answers. Both exchange addresses and orders over TCP; the data goes over
the service under test, from PSNs just below the wrap. Prints "ok NAME" per check, then "done".
"""

import argparse
import json
import random
import socket
import struct
import sys
import time

from pyverbs import enums as e
from pyverbs.addr import AH, AHAttr, GID, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
from pyverbs.wr import RecvWR, SendWR, SGE

AREA_BYTES = 1 << 20
GUARD_BYTES = 64
GRH_BYTES = 40
QKEY = 0x11111111
FIRST_PSN = 0xFFFFFE
DEPTH = 64
COMPLETION_LIMIT_S = 60
ACCESS = (e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ |
          e.IBV_ACCESS_REMOTE_ATOMIC)
MTUS = {256: e.IBV_MTU_256, 512: e.IBV_MTU_512, 1024: e.IBV_MTU_1024, 2048: e.IBV_MTU_2048,
        4096: e.IBV_MTU_4096}
SERVICES = {"rc": e.IBV_QPT_RC, "uc": e.IBV_QPT_UC, "ud": e.IBV_QPT_UD}


def require(condition, text):
    if not condition:
        sys.exit(f"FAILED: {text}")


class Control:
    """The TCP side: one JSON line each way."""

    def __init__(self, options):
        if options.connect:
            end = time.monotonic() + 60
            while True:
                try:
                    connection = socket.create_connection((options.connect, options.port), 60)
                    break
                except OSError:
                    require(time.monotonic() < end, "nobody listens")
                    time.sleep(0.05)  # between two attempts to connect
        else:
            with socket.create_server(("", options.port)) as listener:
                print("listening", flush=True)
                listener.settimeout(120)
                connection = listener.accept()[0]
        connection.settimeout(120)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Two files, not one "rw": a text file drops what it has read ahead when it is written to.
        self.reader, self.writer = connection.makefile("r"), connection.makefile("w")

    def send(self, **message):
        self.writer.write(json.dumps(message) + "\n")
        self.writer.flush()

    def receive(self):
        line = self.reader.readline()
        require(line, "the other side has ended")
        return json.loads(line)


class Side:
    """One QP with its memory; the same on both sides."""

    def __init__(self, options):
        self.options = options
        self.is_ud = options.service == "ud"
        self.context = Context(name=options.device)
        self.pd = PD(self.context)
        self.cq = CQ(self.context, 2 * DEPTH)
        self.mr = MR(self.pd, AREA_BYTES + 2 * GUARD_BYTES + GRH_BYTES, ACCESS)
        self.srq = SRQ(self.pd, SrqInitAttr(SrqAttr(max_wr=DEPTH))) if options.srq else None
        capacity = QPCap(max_send_wr=DEPTH, max_recv_wr=DEPTH)
        self.qp = QP(self.pd, QPInitAttr(qp_type=SERVICES[options.service], scq=self.cq,
                                         rcq=self.cq, srq=self.srq, cap=capacity, sq_sig_all=1))
        self.control = Control(options)
        gid = self.context.query_gid(1, options.gid_index).gid
        self.control.send(qpn=self.qp.qp_num, gid=gid, rkey=self.mr.rkey, address=self.mr.buf)
        self.peer = self.control.receive()
        self.connect()

    def connect(self):
        route = GlobalRoute(dgid=GID(self.peer["gid"]), sgid_index=self.options.gid_index,
                            hop_limit=64)
        handle = AHAttr(gr=route, is_global=1, port_num=1)
        attr = QPAttr(port_num=1)
        attr.qkey = QKEY
        attr.sq_psn = FIRST_PSN
        if self.is_ud:
            self.ah = AH(self.pd, attr=handle)
        else:
            attr.qp_access_flags = ACCESS
            attr.path_mtu = MTUS[self.options.mtu]
            attr.dest_qp_num = self.peer["qpn"]
            attr.rq_psn = FIRST_PSN
            attr.ah_attr = handle
            attr.max_rd_atomic = attr.max_dest_rd_atomic = 8
            attr.min_rnr_timer = 12
            attr.timeout, attr.retry_cnt, attr.rnr_retry = self.options.timeout, 7, 7
        self.qp.to_init(attr)
        self.qp.to_rtr(attr)
        self.qp.to_rts(attr)
        self.control.send(ready=True)
        self.control.receive()

    # --- memory: guard, (GRH), data, guard; guards hold a pattern that nothing may change --------

    def fill(self, data):
        self.mr.write(b"\xa5" * GUARD_BYTES, GUARD_BYTES)
        self.mr.write(data, len(data), GUARD_BYTES)
        self.mr.write(b"\x5a" * GUARD_BYTES, GUARD_BYTES, GUARD_BYTES + len(data))

    def content(self, size, what):
        data = self.mr.read(size + 2 * GUARD_BYTES, 0)
        require(data[:GUARD_BYTES] == b"\xa5" * GUARD_BYTES, f"{what}: bytes before were changed")
        require(data[-GUARD_BYTES:] == b"\x5a" * GUARD_BYTES, f"{what}: bytes behind were changed")
        return data[GUARD_BYTES:-GUARD_BYTES]

    def sge(self, size):
        return SGE(self.mr.buf + GUARD_BYTES, size, self.mr.lkey)

    def post_receive(self, size):
        request = RecvWR(wr_id=7, num_sge=1, sg=[self.sge(size)])
        (self.srq or self.qp).post_recv(request)

    def post(self, opcode, size, imm=0, remote_offset=GUARD_BYTES, rkey=None, atomic=(0, 0)):
        request = SendWR(wr_id=9, num_sge=1, sg=[self.sge(size)], opcode=opcode,
                         send_flags=e.IBV_SEND_SIGNALED, imm_data=socket.htonl(imm))
        remote = (self.peer["rkey"] if rkey is None else rkey,
                  self.peer["address"] + remote_offset)
        if self.is_ud:
            request.set_wr_ud(self.ah, self.peer["qpn"], QKEY)
        elif opcode in (e.IBV_WR_ATOMIC_CMP_AND_SWP, e.IBV_WR_ATOMIC_FETCH_AND_ADD):
            request.set_wr_atomic(remote[0], remote[1], *atomic)
        else:
            request.set_wr_rdma(*remote)
        self.qp.post_send(request)

    def completion(self, what, opcode=None, status=e.IBV_WC_SUCCESS):
        end = time.monotonic() + COMPLETION_LIMIT_S
        while True:
            count, completions = self.cq.poll()
            if count:
                break
            require(time.monotonic() < end, f"{what}: no completion")
        got = completions[0]
        require(got.status == status, f"{what}: status {got.status}, not {status}")
        if opcode is not None:
            require(got.opcode == opcode, f"{what}: opcode {got.opcode}, not {opcode}")
        return got


def sizes(options):
    mtu = options.mtu
    some = [0, 1, 3, 4, mtu - 1, mtu]
    if options.service != "ud":
        some += [mtu + 1, 4 * mtu + 5, 65539, AREA_BYTES]
    return [size for size in some if size <= options.most_bytes]


def pattern(options, number, size):
    return random.Random((options.seed << 20) ^ (number << 8) ^ size).randbytes(size)


# Each check is a pair (requester, responder); both walk through the same sizes. The control channel
# tells when the responder is prepared and when it may look.

def send_requester(side, imm=None, before_receive=False, opcode=None):
    opcode = opcode or (e.IBV_WR_SEND if imm is None else e.IBV_WR_SEND_WITH_IMM)
    for number, size in enumerate(sizes(side.options)):
        side.fill(pattern(side.options, number, size))
        if not before_receive:
            side.control.receive()
        side.post(opcode, size, imm=(imm or 0) + number)
        if before_receive:
            side.control.send(posted=True)
        side.completion(f"send of {size} bytes")
        side.control.send(completed=True)
        side.control.receive()


def send_responder(side, imm=None, before_receive=False, opcode=e.IBV_WC_RECV):
    offset = GRH_BYTES if side.is_ud else 0
    written = opcode == e.IBV_WC_RECV_RDMA_WITH_IMM
    for number, size in enumerate(sizes(side.options)):
        what = f"message of {size} bytes"
        side.fill(b"\0" * (size + offset))
        if before_receive:
            side.control.receive()
        side.post_receive(size + offset)
        if not before_receive:
            side.control.send(prepared=True)
        got = side.completion(what, opcode)
        require(got.byte_len == size + offset, f"{what}: byte_len {got.byte_len}")
        if imm is not None:
            require(got.wc_flags & e.IBV_WC_WITH_IMM, f"{what}: no immediate")
            require(socket.ntohl(got.imm_data) == imm + number, f"{what}: imm {got.imm_data:x}")
        if side.is_ud:
            require(got.src_qp == side.peer["qpn"], f"{what}: src_qp {got.src_qp}")
            require(got.wc_flags & e.IBV_WC_GRH, f"{what}: no GRH flag")
        data = side.content(size + offset, what)
        require(data[offset:] == pattern(side.options, number, size),
                f"{what}{' (written)' if written else ''}: bytes differ")
        side.control.receive()
        side.control.send(checked=True)


def write_requester(side):
    for number, size in enumerate(sizes(side.options)):
        side.fill(pattern(side.options, number, size))
        side.control.receive()
        side.post(e.IBV_WR_RDMA_WRITE, size)
        side.completion(f"write of {size} bytes", e.IBV_WC_RDMA_WRITE)
        side.control.send(completed=True)


def write_responder(side):
    for number, size in enumerate(sizes(side.options)):
        side.fill(b"\0" * size)
        side.control.send(prepared=True)
        side.control.receive()
        expected = pattern(side.options, number, size)
        what = f"write of {size} bytes"
        if side.options.service == "uc":
            # The requester's completion says nothing about arrival: look until the bytes are there.
            end = time.monotonic() + 10
            while side.content(size, what) != expected and time.monotonic() < end:
                pass
        require(side.content(size, what) == expected, f"{what}: bytes differ")


def read_requester(side):
    for number, size in enumerate(sizes(side.options)):
        side.fill(b"\0" * size)
        side.control.receive()
        side.post(e.IBV_WR_RDMA_READ, size)
        side.completion(f"read of {size} bytes", e.IBV_WC_RDMA_READ)
        require(side.content(size, "read") == pattern(side.options, number, size),
                f"read of {size} bytes: bytes differ")
        side.control.send(completed=True)


def read_responder(side):
    for number, size in enumerate(sizes(side.options)):
        side.fill(pattern(side.options, number, size))
        side.control.send(prepared=True)
        side.control.receive()


ATOMICS = [(e.IBV_WR_ATOMIC_FETCH_AND_ADD, e.IBV_WC_FETCH_ADD, 5, (3, 0), 8),
           (e.IBV_WR_ATOMIC_FETCH_AND_ADD, e.IBV_WC_FETCH_ADD, 2**64 - 1, (2, 0), 1),
           (e.IBV_WR_ATOMIC_CMP_AND_SWP, e.IBV_WC_COMP_SWAP, 77, (77, 99), 99),
           (e.IBV_WR_ATOMIC_CMP_AND_SWP, e.IBV_WC_COMP_SWAP, 77, (78, 99), 77)]


def atomic_requester(side):
    for opcode, completed, before, operands, _ in ATOMICS:
        side.fill(b"\0" * 8)
        side.control.receive()
        side.post(opcode, 8, atomic=operands)
        side.completion("atomic", completed)
        returned = struct.unpack("=Q", side.content(8, "atomic"))[0]
        require(returned == before, f"atomic returned {returned:x}, not {before:x}")
        side.control.send(completed=True)


def atomic_responder(side):
    for _, _, before, operands, after in ATOMICS:
        side.fill(struct.pack("=Q", before))
        side.control.send(prepared=True)
        side.control.receive()
        value = struct.unpack("=Q", side.content(8, "atomic"))[0]
        require(value == after, f"{before:x} with {operands} became {value:x}, not {after:x}")


def burst_requester(side):
    """Many requests in flight, reads and writes mixed: they complete in order."""
    side.fill(pattern(side.options, 0, 4096))
    side.control.receive()
    for number in range(DEPTH // 2):
        opcode = e.IBV_WR_RDMA_READ if number % 4 == 3 else e.IBV_WR_RDMA_WRITE
        side.post(opcode, 4096)
    for number in range(DEPTH // 2):
        opcode = e.IBV_WC_RDMA_READ if number % 4 == 3 else e.IBV_WC_RDMA_WRITE
        side.completion(f"request {number} of the burst", opcode)
    require(side.content(4096, "burst") == pattern(side.options, 0, 4096), "burst: bytes differ")
    side.control.send(completed=True)


def burst_responder(side):
    side.fill(b"\0" * 4096)
    side.control.send(prepared=True)
    side.control.receive()
    require(side.content(4096, "burst") == pattern(side.options, 0, 4096), "burst: bytes differ")


# What nobody repeats: on a network that loses packets a message comes whole or not at all, on one
# that doubles or reorders them twice or late.
WHOLE_MESSAGES, WHOLE_BATCH, WHOLE_SLOTS = 320, 16, 32
SLOT_BYTES = AREA_BYTES // WHOLE_SLOTS
IMM_BASE = 0xA0000000


def whole_size(options, number):
    most = options.mtu if options.service == "ud" else 4 * options.mtu
    return random.Random(options.seed ^ number).randrange(most + 1)


def slot_sge(side, slot, size=SLOT_BYTES - GUARD_BYTES):
    return SGE(side.mr.buf + slot * SLOT_BYTES, size, side.mr.lkey)


def whole_requester(side):
    for first in range(0, WHOLE_MESSAGES, WHOLE_BATCH):
        side.control.receive()
        for number in range(first, first + WHOLE_BATCH):
            size, slot = whole_size(side.options, number), number % WHOLE_SLOTS
            side.mr.write(pattern(side.options, number, size), size, slot * SLOT_BYTES)
            request = SendWR(wr_id=number, num_sge=1, sg=[slot_sge(side, slot, size)],
                             opcode=e.IBV_WR_SEND_WITH_IMM, send_flags=e.IBV_SEND_SIGNALED,
                             imm_data=socket.htonl(IMM_BASE + number))
            if side.is_ud:
                request.set_wr_ud(side.ah, side.peer["qpn"], QKEY)
            side.qp.post_send(request)
        for number in range(first, first + WHOLE_BATCH):
            side.completion(f"message {number}", e.IBV_WC_SEND)
        side.control.send(completed=True)


def take_whole(side, got, sent):
    """Checks one message that came; `sent`: how many may have been."""
    require(got.status == e.IBV_WC_SUCCESS, f"a receive ended with status {got.status}")
    number = socket.ntohl(got.imm_data) - IMM_BASE
    require(0 <= number < sent, f"message {number} of {sent}")
    size = whole_size(side.options, number)
    offset = GRH_BYTES if side.is_ud else 0
    require(got.byte_len == size + offset, f"message {number}: byte_len {got.byte_len}, not {size}")
    data = side.mr.read(size, got.wr_id * SLOT_BYTES + offset)
    require(data == pattern(side.options, number, size), f"message {number}: bytes differ")
    return number


def whole_responder(side):
    guard = b"\xa5" * GUARD_BYTES
    guards = [(slot + 1) * SLOT_BYTES - GUARD_BYTES for slot in range(WHOLE_SLOTS)]
    for slot, place in enumerate(guards):
        side.mr.write(guard, GUARD_BYTES, place)
        side.qp.post_recv(RecvWR(wr_id=slot, num_sge=1, sg=[slot_sge(side, slot)]))
    came = set()
    for first in range(0, WHOLE_MESSAGES, WHOLE_BATCH):
        side.control.send(prepared=True)
        side.control.receive()
        while completions := side.cq.poll()[1]:
            got = completions[0]
            came.add(take_whole(side, got, first + WHOLE_BATCH))
            side.qp.post_recv(RecvWR(wr_id=got.wr_id, num_sge=1, sg=[slot_sge(side, got.wr_id)]))
    for place in guards:
        require(side.mr.read(GUARD_BYTES, place) == guard, "bytes behind a receive were changed")
    require(came, "no message came")
    print(f"{len(came)} of {WHOLE_MESSAGES} came", flush=True)


# The error checks leave both QPs unusable: each is the last of its run.

def bad_rkey_requester(side):
    side.fill(b"\0" * 64)
    side.control.receive()
    side.post(e.IBV_WR_RDMA_WRITE, 64, rkey=side.peer["rkey"] ^ 0x5500)
    side.completion("write with a wrong rkey", status=e.IBV_WC_REM_ACCESS_ERR)
    side.control.send(completed=True)


def bad_rkey_responder(side):
    side.fill(b"\1" * 64)
    side.control.send(prepared=True)
    side.control.receive()
    require(side.content(64, "refused write") == b"\1" * 64, "a refused write changed memory")


def too_long_status(side):
    """What requester and responder are told of a message longer than the receive it takes.

    A class C fault by IBTA: invalid request. rxe as
    of Linux 6.1 finds it while copying and calls it a malformed WQE of its own, class A.
    """
    if side.options.rxe_responder:
        return e.IBV_WC_REM_OP_ERR, e.IBV_WC_LOC_QP_OP_ERR
    return e.IBV_WC_REM_INV_REQ_ERR, e.IBV_WC_LOC_LEN_ERR


def too_long_requester(side):
    side.fill(b"\0" * 128)
    side.control.receive()
    side.post(e.IBV_WR_SEND, 128)
    side.completion("send into a receive too small", status=too_long_status(side)[0])
    side.control.send(completed=True)


def too_long_responder(side):
    side.fill(b"\1" * 64)
    side.post_receive(64)
    side.control.send(prepared=True)
    side.completion("receive that is too small", status=too_long_status(side)[1])
    side.control.receive()


def with_options(function, **options):
    return lambda side: function(side, **options)


IMM = 0xC0FFEE00
CHECKS = {
    "send": (send_requester, send_responder),
    "send_imm": (with_options(send_requester, imm=IMM), with_options(send_responder, imm=IMM)),
    "rnr": (with_options(send_requester, before_receive=True),
            with_options(send_responder, before_receive=True)),
    "write": (write_requester, write_responder),
    "write_imm": (with_options(send_requester, imm=IMM, opcode=e.IBV_WR_RDMA_WRITE_WITH_IMM),
                  with_options(send_responder, imm=IMM, opcode=e.IBV_WC_RECV_RDMA_WITH_IMM)),
    "read": (read_requester, read_responder),
    "atomic": (atomic_requester, atomic_responder),
    "burst": (burst_requester, burst_responder),
    "whole": (whole_requester, whole_responder),
    "bad_rkey": (bad_rkey_requester, bad_rkey_responder),
    "too_long": (too_long_requester, too_long_responder),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", required=True)
    parser.add_argument("--gid-index", type=int, required=True)
    parser.add_argument("--mtu", type=int, default=1024)
    parser.add_argument("--port", type=int, default=18515)
    parser.add_argument("--connect")
    parser.add_argument("--service", choices=SERVICES, default="rc")
    parser.add_argument("--srq", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most-bytes", type=int, default=AREA_BYTES, help="in a message")
    parser.add_argument("--timeout", type=int, default=18, help="of the QP: 4.096 us * 2^this")
    parser.add_argument("--rxe-responder", action="store_true",
                        help="the answering side is rxe, whose deviations are expected")
    parser.add_argument("--checks", required=True)
    options = parser.parse_args()
    side = Side(options)
    role = 0 if options.connect else 1
    for name in options.checks.split(","):
        CHECKS[name][role](side)
        side.control.send(ended=name)
        require(side.control.receive() == {"ended": name}, f"{name}: out of step")
        print(f"ok {name}", flush=True)
    print("done")


if __name__ == "__main__":
    main()
