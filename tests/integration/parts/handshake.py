"""Connections of rdma_cm that do not come about as planned: ends that are killed at each step of the
handshake, and more requests at once than a backlog holds. With both librdmacms; and UCX, which
connects by addresses over either."""

import errno
import re
import signal
import string
import time

from harness import DAEMON_END_LIMIT_S, Spec, check, free_port, wait_for
from hosts import INTERFACE, Pair
from parts.rdmacm import (STAGE_PATHS, address_of, await_listener, beside, nothing_is_left,
                          on_two_hosts)

ADDRESS = "127.0.0.1"
# UCX_TLS, and what its example sends by.
UCX_WAYS = (("rc_v,self", "tag"), ("rc_v,self", "am"), ("ud_v,self", "am"))
EVENT = re.compile(r"^event RDMA_CM_EVENT_(\S+) (-?\d+)$|^failed (\S+) (\d+)$", re.MULTILINE)
BURST = 6
UCX_MESSAGES = 2
# On the network of on_two_hosts; how long `handshake` gives an address to be resolved.
NOBODYS_ADDRESS = "10.77.0.99"
RESOLVE_S = 5
# Longer than a packet and than what goes inline; the server prints what came.
UCX_BYTES = 20_000


def history(process):
    """What the program was told after the connection began: names of events and failed calls."""
    told = [f"{name} {status}" if name else f"{call} failed {error}"
            for name, status, call, error in EVENT.findall(process.out)]
    return [line for line in told if not line.startswith(("ADDR_RES", "ROUTE_RES"))]


class Ends:
    """A listener, and who connects to it, each of which may stop at a step."""

    def __init__(self, case):
        self.case = case
        self.instance = case.instance()
        self.pair = Pair.beside(self.instance)
        self.port = str(free_port())
        self.program = case.program("handshake")
        # What the daemon opens once for all is there after the first connection.
        passive = self.spawn("passive", "-", "first-passive")
        self.spawn("active", "leave", "first-active").expect_exit(20)
        passive.expect_exit(20)
        nothing_is_left(case, self.pair)
        self.fds = self.instance.fd_count()

    def spawn(self, end, step, name=None, *more):
        argv = [self.program, end, ADDRESS, self.port, step, *more]
        process = self.pair.server.spawn(self.case, argv, name=name or end)
        if end == "passive":
            await_listener(self.pair.server, process, self.port)
        return process

    def await_step(self, process, step):
        process.wait_for_output(f"at {step} 0", 10)

        def is_stopped():
            with open(f"/proc/{process.pid}/stat", encoding="ascii") as f:
                return f.read().rsplit(")", 1)[1].split()[0] == "T"
        wait_for(is_stopped, 5, f"{process.name} stops")

    def kill(self, process):
        """And wait until the daemon has seen its end."""
        before = self.instance.status()["cm"]["cm_sessions"]
        process.kill()
        process.wait(5)
        wait_for(lambda: self.instance.status()["cm"]["cm_sessions"] < before, 10,
                 f"the daemon notices that {process.name} ended")

    def go_on(self, process):
        process.popen.send_signal(signal.SIGCONT)

    def expect_told(self, process, patterns):
        """That it ends, having been told one of these."""
        process.wait(40)
        told = ", ".join(history(process))
        check(any(re.fullmatch(pattern, told) for pattern in patterns),
              f"{process.name} was told '{told}'\n{process.tail()}")
        self.case.note(f"{process.name}: {told}")

    def expect_nothing_left(self):
        nothing_is_left(self.case, self.pair)
        wait_for(lambda: not any(self.instance.objects().values()), 10, "no object is left")
        wait_for(lambda: self.instance.fd_count() <= self.fds, 10, "no fd is left open")


def killed(end, step, patterns, other_step="-", awaits=None):
    """`end` is killed at `step`. The other end is held at `other_step` until then, where one is
    given. `awaits`: what it has been told of before the kill."""
    def case_function(case):
        ends = Ends(case)
        steps = {end: step, "active" if end == "passive" else "passive": other_step}
        passive = ends.spawn("passive", steps["passive"])
        if steps["passive"] == "listening":
            ends.await_step(passive, "listening")
        active = ends.spawn("active", steps["active"])
        victim, other = (active, passive) if end == "active" else (passive, active)
        ends.await_step(victim, step)
        if other_step != "-":
            ends.await_step(other, other_step)
        if awaits:
            other.wait_for_output(f"event RDMA_CM_EVENT_{awaits} 0", 10)
        ends.kill(victim)
        if other_step != "-":
            ends.go_on(other)
        ends.expect_told(other, patterns)
        ends.expect_nothing_left()
    return case_function


def killed_before_asking(case):
    """The listener hears nothing of it, and the next one connects."""
    ends = Ends(case)
    passive = ends.spawn("passive", "-")
    first = ends.spawn("active", "resolved", "first")
    ends.await_step(first, "resolved")
    ends.kill(first)
    check(passive.is_running() and not history(passive), f"told of it\n{passive.tail()}")
    second = ends.spawn("active", "leave", "second")
    ends.expect_told(second, ["ESTABLISHED 0, DISCONNECTED 0"])
    ends.expect_told(passive, ["CONNECT_REQUEST 0, ESTABLISHED 0, DISCONNECTED 0"])
    ends.expect_nothing_left()


def asked_after_the_kill(case):
    ends = Ends(case)
    passive = ends.spawn("passive", "listening")
    ends.await_step(passive, "listening")
    active = ends.spawn("active", "resolved")
    ends.await_step(active, "resolved")
    ends.kill(passive)
    ends.go_on(active)
    ends.expect_told(active, ["REJECTED 8"])
    ends.expect_nothing_left()


def address_moves(case):
    """The NIC's interface gets another hardware address, as a bond that fails over: whoever has an
    address of it is told, and goes on as it likes."""
    host = on_two_hosts(case).server
    port = str(free_port())
    argv = [case.program("handshake"), "passive", host.address, port, "-"]
    passive = host.spawn(case, argv, name="passive")
    await_listener(host, passive, port)
    active = host.spawn(case, [argv[0], "active", *argv[2:]], name="active")
    for process in (passive, active):
        process.wait_for_output("event RDMA_CM_EVENT_ESTABLISHED 0", 10)
    host.namespace.do("ip", "link", "set", INTERFACE, "address", "02:00:00:00:77:01")
    # The active end goes when it is told; the passive one's listener is told, too.
    for process, expected in (
            (active, "ESTABLISHED 0, ADDR_CHANGE 0"),
            (passive, "CONNECT_REQUEST 0, ESTABLISHED 0, ADDR_CHANGE 0, ADDR_CHANGE 0, DISCONNECTED 0")):
        process.wait(20)
        told = ", ".join(history(process))
        check(told == expected, f"{process.name} was told '{told}'\n{process.tail()}")
    nothing_is_left(case, Pair(host, host))


def daemon_ends_alone(case):
    """Its peer, to which it has to say that a connection is over, hears nothing any more: it ends all
    the same, after a while."""
    pair = on_two_hosts(case)
    port = str(free_port())
    argv = [case.program("handshake"), "passive", pair.server.address, port, "-"]
    passive = pair.server.spawn(case, argv, name="passive")
    await_listener(pair.server, passive, port)
    active = pair.client.spawn(case, [argv[0], "active", *argv[2:]], name="active")
    for process in (passive, active):
        process.wait_for_output("event RDMA_CM_EVENT_ESTABLISHED 0", 10)
    pair.client.namespace.do("ip", "link", "set", INTERFACE, "down")
    begin = time.monotonic()
    daemon = pair.server.instance.daemon
    daemon.popen.send_signal(signal.SIGTERM)
    daemon.expect_exit(DAEMON_END_LIMIT_S)
    case.note(f"it ended after {time.monotonic() - begin:.1f} s")
    passive.wait(20)
    active.kill()
    active.wait(5)


def daemon_dies(case):
    """All NICs go with it: who has one is told so once, and can end in good order."""
    ends = Ends(case)
    passive, active = ends.spawn("passive", "-"), ends.spawn("active", "-")
    for process in (passive, active):
        process.wait_for_output("event RDMA_CM_EVENT_ESTABLISHED 0", 10)
    ends.instance.daemon.kill()
    ends.expect_told(active, ["ESTABLISHED 0, DEVICE_REMOVAL 0"])
    # The listener, too; the program ends with its connection, whose turn may be first.
    ends.expect_told(passive, ["CONNECT_REQUEST 0, ESTABLISHED 0(, DEVICE_REMOVAL 0){1,2}"])
    for process in (passive, active):
        check(process.popen.poll() == 0, f"{process.name} ended with {process.popen.poll()}\n{process.tail()}")


def burst(case):
    """All at once at a backlog of one: who finds no place asks again, until it is connected or, as
    with a kernel, has asked 16 times."""
    ends = Ends(case)
    passive = ends.spawn("passive", "-", None, str(BURST))
    clients = [ends.spawn("active", "resolved", f"client{i}") for i in range(BURST)]
    for client in clients:
        ends.await_step(client, "resolved")
    for client in clients:
        ends.go_on(client)
    # They don't leave by themselves: the connections are there together.
    wait_for(lambda: all(history(client) in (["ESTABLISHED 0"], ["UNREACHABLE -110"])
                         for client in clients), 100, "each is connected or told why not")
    connected = sum("ESTABLISHED 0" in history(client) for client in clients)
    check(connected > 1, f"{connected} of {BURST} are connected")
    retries = ends.instance.status()["cm"]["mad_retries"]
    for client in clients:
        client.kill()
    wait_for(lambda: history(passive).count("DISCONNECTED 0") == connected, 20,
             "the server is told of each end")
    if connected == BURST:
        passive.expect_exit(20)
    else:
        passive.kill()
        passive.wait(5)
    told = history(passive)
    for name in ("CONNECT_REQUEST 0", "ESTABLISHED 0", "DISCONNECTED 0"):
        check(told.count(name) == connected,
              f"{name}: {told.count(name)} of {connected}\n{passive.tail()}")
    check(len(told) == 3 * connected, f"told of more: {told}")
    case.note(f"{connected} of {BURST} connected; requests sent again: {retries}")
    ends.expect_nothing_left()


def moved_bytes(status):
    """By the NIC of a host: what its own programs moved among themselves, and what came to it."""
    wire = status["nics"][0].get("wire", {"rx_bytes": 0})
    return wire["rx_bytes"] + status["engine"]["payload_bytes"]


def spawn_ucx(case, host, argv, transports, name):
    env = host.instance.env(UCX_TLS=transports, UCX_SOCKADDR_TLS_PRIORITY="rdmacm",
                            UCX_RNDV_THRESH="1000")
    # It looks for devices in /sys.
    env["LD_PRELOAD"] = ":".join(filter(None, [env.get("LD_PRELOAD"), str(STAGE_PATHS)]))
    return case.spawn(host.argv(argv), env=env, name=name)


def ucx(pair_of, transports, kind, limit_s=40):
    """UCX's own example: the client knows an address alone, and rdma_cm does the rest.

    Its client hangs up as soon as its last message is sent, which then may not arrive; the first one
    does.
    """
    def case_function(case):
        pair = pair_of(case)
        port = str(free_port())
        common = ["stdbuf", "-oL", case.program("ucp_client_server"), "-p", port, "-c", kind,
                  "-i", str(UCX_MESSAGES), "-s", str(UCX_BYTES)]
        server = spawn_ucx(case, pair.server, common, transports, "server")
        await_listener(pair.server, server, port)
        before = pair.server.instance.status()
        client = spawn_ucx(case, pair.client, [*common, "-a", address_of(pair, 4)], transports,
                           "client").expect_exit(limit_s)
        check("ERROR" not in client.out + client.err, f"UCX tells of errors\n{client.tail()}")
        line = (string.ascii_uppercase * (UCX_BYTES // 26 + 1))[:UCX_BYTES - 1] + "."
        wait_for(lambda: line in server.out.splitlines(), 10,
                 "the first message has arrived whole")
        after = pair.server.instance.status()
        sent = after["cm"]["mads_sent"] - before["cm"]["mads_sent"]
        moved = moved_bytes(after) - moved_bytes(before)
        # REQ, REP and RTU at least; a host of two sends the REP.
        least = 3 if pair.server.instance is pair.client.instance else 1
        check(sent >= least, f"{sent} messages of connection management only")
        check(moved >= UCX_BYTES, f"only {moved} B went over the NIC")
        case.note(f"{sent} messages of connection management, {moved} B")
        server.kill()
        server.wait(5)
        nothing_is_left(case, pair)
    return case_function


# The reply found nobody: what is told depends on how far the daemon had brought the connection.
NOT_ACCEPTED = [r"CONNECT_REQUEST 0, rdma_(create_qp|accept) failed 22",
                "CONNECT_REQUEST 0, REJECTED 28",
                "CONNECT_REQUEST 0, REJECTED 4"]
ENDED = ["CONNECT_REQUEST 0, ESTABLISHED 0, DISCONNECTED 0"]
NOT_FINISHED = ["REJECTED 28", r"CONNECT_ERROR -\d+"]
CASES = [
    ("the client is killed, its request waiting", "active", "asked", NOT_ACCEPTED, "listening"),
    ("the client is killed, its request taken", "active", "asked", NOT_ACCEPTED, "request"),
    ("the client is killed, the reply sent", "active", "asked",
     ["CONNECT_REQUEST 0, REJECTED 28"], "accepted"),
    ("the client is killed, connected", "active", "established", ENDED, "-", "ESTABLISHED"),
    ("the client is killed, disconnecting", "active", "disconnecting", ENDED),
    ("the server is killed, a request waiting", "passive", "listening", ["REJECTED 28"], "asked"),
    ("the server is killed, a request taken", "passive", "request", ["REJECTED 28"]),
    ("the server is killed, its reply waiting", "passive", "accepted", NOT_FINISHED, "asked"),
    ("the server is killed, connected", "passive", "established",
     ["ESTABLISHED 0, DISCONNECTED 0"], "-", "ESTABLISHED"),
    ("the server is killed, disconnecting", "passive", "disconnecting",
     ["ESTABLISHED 0, DISCONNECTED 0"]),
]



def nowhere_to_go(case):
    """By the host's routes and neighbours, as with the kernel's rdma_cm: no route is an error of the
    call; a neighbour that does not answer is one of its event, when the time is over."""
    pair = on_two_hosts(case)
    port = str(free_port())
    program = case.program("handshake")
    without_route = pair.client.run(case, [program, "active", "192.0.2.1", port, "-"], 20, code=1,
                                    name="without-route")
    check(without_route.out == f"failed rdma_resolve_addr {errno.ENETUNREACH}\n",
          f"without a route:\n{without_route.tail()}")
    began = time.monotonic()
    alone = pair.client.run(case, [program, "active", NOBODYS_ADDRESS, port, "-"], 30, code=1,
                            name="without-neighbour")
    took_s = time.monotonic() - began
    check(alone.out == f"event RDMA_CM_EVENT_ADDR_ERROR -{errno.ETIMEDOUT}\n",
          f"without a neighbour:\n{alone.tail()}")
    check(took_s >= RESOLVE_S, f"told after {took_s:.1f} s of {RESOLVE_S}")
    nothing_is_left(case, pair)

def cases(_thorough):
    specs = [Spec("the daemon ends, its peer silent", daemon_ends_alone, 60)]
    for is_system, suffix in ((False, ""), (True, ", the system's librdmacm")):
        def add(name, function, limit_s=60, is_system=is_system, suffix=suffix):
            specs.append(Spec(name + suffix, function, limit_s, system_librdmacm=is_system))
        add("the client is killed before it asks", killed_before_asking)
        add("the server is killed before it is asked", asked_after_the_kill)
        for name, *arguments in CASES:
            add(name, killed(*arguments))
        add("the daemon is killed", daemon_dies)
        add("the NIC's hardware address changes", address_moves)
        add("no route, no neighbour", nowhere_to_go)
        add(f"{BURST} connections at once, a backlog of one", burst, 120)
        for transports, kind in UCX_WAYS:
            add(f"UCX, {transports.split(',', maxsplit=1)[0]}, {kind}", ucx(beside, transports, kind))
    return specs
