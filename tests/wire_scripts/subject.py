"""A verbs program that does what a wire script says: the subject's end of a story (pyverbs).

    subject.py --device D --gid-index N --port P

Takes connections on TCP port P, one behind the other, and serves each with one QP; ends when it is
told to or killed. A line asks: a verb and key=value words; a line answers: "ok" with key=value
words, or "error" with text. Prints "listening" first.
"""

import argparse
import socket
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

DEPTH = 16
# Of what the script says must come: a machine may be busy, or emulated.
LIMIT_S = 30
MTUS = {256: e.IBV_MTU_256, 512: e.IBV_MTU_512, 1024: e.IBV_MTU_1024, 2048: e.IBV_MTU_2048,
        4096: e.IBV_MTU_4096}
SERVICES = {"rc": e.IBV_QPT_RC, "uc": e.IBV_QPT_UC, "ud": e.IBV_QPT_UD}
ATOMICS = (e.IBV_WR_ATOMIC_CMP_AND_SWP, e.IBV_WR_ATOMIC_FETCH_AND_ADD)
RDMA = (e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_WRITE_WITH_IMM, e.IBV_WR_RDMA_READ)


def gid_text(raw):
    """As pyverbs wants it, of 32 hex digits."""
    return ":".join(raw[i:i + 4] for i in range(0, 32, 4))


def fields(reply):
    return " ".join(["ok", *(f"{key}={value}" for key, value in reply.items())])


class Subject:
    """One QP with its objects, between `open` and `close`."""

    def __init__(self, context, gid_index):
        self.context, self.gid_index = context, gid_index
        self.service = self.dest_qp = None
        self.pd = self.cq = self.mr = self.srq = self.qp = self.ah = None

    def open(self, asked):
        number = {key: int(value) for key, value in asked.items() if key not in ("service", "gid")}
        self.service, self.dest_qp = asked["service"], number["dest_qp"]
        self.pd = PD(self.context)
        self.cq = CQ(self.context, 2 * DEPTH)
        self.mr = MR(self.pd, number["bytes"], number["access"])
        self.mr.write(b"\0" * number["bytes"], number["bytes"])
        if number["srq"]:
            self.srq = SRQ(self.pd, SrqInitAttr(SrqAttr(max_wr=DEPTH)))
        self.qp = QP(self.pd, QPInitAttr(
            qp_type=SERVICES[self.service], scq=self.cq, rcq=self.cq, srq=self.srq, sq_sig_all=1,
            cap=QPCap(max_send_wr=DEPTH, max_recv_wr=DEPTH)))
        self.connect(asked, number)
        return {"qpn": self.qp.qp_num, "rkey": self.mr.rkey, "address": self.mr.buf}

    def connect(self, asked, number):
        route = GlobalRoute(dgid=GID(gid_text(asked["gid"])), sgid_index=self.gid_index,
                            hop_limit=64)
        handle = AHAttr(gr=route, is_global=1, port_num=1)
        attr = QPAttr(port_num=1)
        attr.qkey = number["qkey"]
        attr.sq_psn = number["sq_psn"]
        if self.service == "ud":
            self.ah = AH(self.pd, attr=handle)
        else:
            attr.qp_access_flags = number["access"]
            attr.path_mtu = MTUS[number["path_mtu"]]
            attr.dest_qp_num = self.dest_qp
            attr.rq_psn = number["rq_psn"]
            attr.ah_attr = handle
        if self.service == "rc":
            for name in ("max_rd_atomic", "max_dest_rd_atomic", "min_rnr_timer", "timeout",
                         "retry_cnt", "rnr_retry"):
                setattr(attr, name, number[name])
        self.qp.to_init(attr)
        self.qp.to_rtr(attr)
        self.qp.to_rts(attr)

    def close(self, asked=None):
        del asked
        for held in (self.qp, self.ah, self.srq, self.mr, self.cq, self.pd):
            if held is not None:
                held.close()
        self.pd = self.cq = self.mr = self.srq = self.qp = self.ah = None
        return {}

    def fill(self, asked):
        data = bytes.fromhex(asked["bytes"])
        self.mr.write(data, len(data), int(asked["at"]))
        return {}

    def read(self, asked):
        return {"bytes": self.mr.read(int(asked["length"]), int(asked["at"])).hex()}

    def sge(self, asked):
        return SGE(self.mr.buf + int(asked["at"]), int(asked["length"]), self.mr.lkey)

    def recv(self, asked):
        (self.srq or self.qp).post_recv(
            RecvWR(wr_id=int(asked["wr_id"]), num_sge=1, sg=[self.sge(asked)]))
        return {}

    def send(self, asked):
        opcode = int(asked["opcode"])
        flags = e.IBV_SEND_SIGNALED | (e.IBV_SEND_SOLICITED if int(asked["se"]) else 0)
        request = SendWR(wr_id=int(asked["wr_id"]), num_sge=1, sg=[self.sge(asked)], opcode=opcode,
                         send_flags=flags, imm_data=socket.htonl(int(asked["imm"])))
        remote = (int(asked["rkey"]), int(asked["remote"]))
        if self.service == "ud":
            request.set_wr_ud(self.ah, self.dest_qp, int(asked["qkey"]))
        elif opcode in ATOMICS:
            request.set_wr_atomic(*remote, int(asked["compare_add"]), int(asked["swap"]))
        elif opcode in RDMA:
            request.set_wr_rdma(*remote)
        self.qp.post_send(request)
        return {}

    def poll(self, asked):
        end = time.monotonic() + (LIMIT_S if int(asked["waits"]) else 0)
        while True:
            count, completions = self.cq.poll()
            if count:
                break
            if time.monotonic() >= end:
                return {}
        got = completions[0]
        reply = {"wr_id": got.wr_id, "status": got.status, "opcode": got.opcode,
                 "byte_len": got.byte_len, "src_qp": got.src_qp}
        if got.wc_flags & e.IBV_WC_WITH_IMM:
            reply["imm"] = socket.ntohl(got.imm_data)
        return reply

    def state(self, asked):
        end = time.monotonic() + LIMIT_S
        while True:
            state = self.qp.query(e.IBV_QP_STATE)[0].qp_state
            if state == int(asked["wanted"]) or time.monotonic() >= end:
                return {"state": state}


VERBS = ("open", "close", "fill", "read", "recv", "send", "poll", "state")


def answer(subject, line):
    verb, *words = line.split()
    if verb not in VERBS:
        return f"error no such verb: {verb}"
    try:
        return fields(getattr(subject, verb)(dict(word.split("=", 1) for word in words)))
    except Exception as error:  # whatever it is, the player is to be told
        return " ".join(f"error {type(error).__name__}: {error}".split())


def serve(context, gid_index, connection):
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    subject = Subject(context, gid_index)
    # Two files, not one "rw": a text file drops what it has read ahead when it is written to.
    with connection, connection.makefile("r") as reader, connection.makefile("w") as writer:
        for line in reader:
            writer.write(answer(subject, line) + "\n")
            writer.flush()
    subject.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", required=True)
    parser.add_argument("--gid-index", type=int, required=True)
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    context = Context(name=options.device)
    with socket.create_server(("", options.port)) as listener:
        print("listening", flush=True)
        while True:
            serve(context, options.gid_index, listener.accept()[0])


if __name__ == "__main__":
    main()
