"""rdma_cm: real programs that connect by it, over librdmacm.so.1."""

import json
import re

from harness import STAGE, Failure, Spec, check, free_port, wait_for
from hosts import ADDRESSES, IPV4, LossyLink, MILLION, Namespace, Pair, pair_on, two_hosts
from parts.gtests import run_gtest
from parts.perftest import allow_last_word, check_table
from parts.pyverbs import Run, copy_suite, judge, listed

STAGE_PATHS = STAGE / "lib" / "libverbena-paths.so"
# A service ID that nobody listens on: of a connection, of a datagram service.
TOO_EARLY = re.compile(r"RDMA_CM_EVENT_(REJECTED; error: 8|UNREACHABLE; error: 1)\.")
# Of rping's thread for events, when its other thread has just closed their channel: it ends the program.
RPING_ENDS = "rdma_get_cm_event: Bad file descriptor"
MTU = 4200
LOSS_PERCENT = 5
LOSSY_LIMIT_S = 100
FIO_LIMIT_S = 60
# ping, its answer, and both verified by rping itself (-V).
PINGS = 1000
# Groups of hosts that agree on them themselves, of which no other program knows.
GROUPS = {4: "239.7.7.7", 6: "ff15::7:7"}
QPERF_TESTS = ["rc_bw", "rc_lat", "rc_rdma_read_bw", "rc_rdma_write_lat"]
# libfabric's ways to us by verbs: provider and type of endpoint.
FABRICS = (("verbs", "msg"), ("verbs;ofi_rxm", "rdm"))


def await_listener(host, process, where=None):
    """Until an identifier listens; where given, on this port, or at this `address:port`."""
    def listens():
        check(process.is_running(),
              f"the server ended with {process.popen.poll()}: {' '.join(process.argv)}\n"
              f"{process.tail()}")
        rows = host.instance.admin({"op": "show", "kind": "cm"})["rows"]
        return any(row["state"] == "listen" and
                   (where is None or row["source"] == where or
                    row["source"].endswith(f":{where}")) for row in rows)

    wait_for(listens, 10, f"{process.name} listens")


def connect_to(case, pair, server, client, limit_s, port=None):
    """Starts the server, waits until it listens, runs the client to its end. Both processes."""
    server = pair.server.spawn(case, server, name="server")
    await_listener(pair.server, server, port)
    process = pair.client.spawn(case, client, name="client")
    try:
        process.expect_exit(limit_s)
    except Exception as failure:
        failure.args = (f"{failure}\n  server ({server.popen.poll()}):\n{server.tail()}",)
        raise
    return server, process


def nothing_is_left(case, pair):
    """Of the programs, which have ended, the daemons keep nothing."""
    for host in {pair.server.instance, pair.client.instance}:
        def is_clean(host=host):
            cm = host.status()["cm"]
            left = {name: cm[name] for name in ("cm_sessions", "cm_channels", "cm_ids")}
            left.update(sessions=host.status()["sessions"])
            case.left = left
            return not any(left.values())
        wait_for(is_clean, 10, "nothing is left of the programs")
        host.check_alive()


def address_of(pair, family):
    """Where the server is: on one host by loopback's addresses, with --wire by the NIC's own."""
    if pair.server.instance.case.is_wire:
        return pair.server.instance.status()["nics"][0]["ipv4"]
    if pair.server.namespace is not None:
        return ADDRESSES[0][0 if family == 4 else 1]
    return "127.0.0.1" if family == 4 else "::1"


# --- rdmacm-utils --------------------------------------------------------------------------------


def rping(pair_of, address=None, family=4, count=PINGS, limit_s=30, options=()):
    def case_function(case):
        pair = pair_of(case)
        port = str(free_port())
        where = address or address_of(pair, family)
        common = ["rping", "-v", "-V", "-C", str(count), "-a", where, "-p", port, *options]
        server, client = connect_to(case, pair, [*common, "-s"], [*common, "-c"], limit_s, port)
        if server.wait(10) != 0 and RPING_ENDS not in server.err:
            server.expect_exit(10)
        pings = client.out.count("ping data: rdma-ping-")
        check(pings == count, f"{pings} pings of {count}\n{client.tail()}")
        nothing_is_left(case, pair)
    return case_function


def rping_persistent(pair_of, count, later=10, limit_s=30):
    """One client pings as long as another comes, and ends; it is killed, and more come. They connect
    one after the other: rping's server (44) has one place for the request it is about to take up, and
    of two that come within microseconds forgets the first (upstream: accept_ready)."""
    def case_function(case):
        pair = pair_of(case)
        port = str(free_port())
        common = ["rping", "-V", "-a", address_of(pair, 4), "-p", port]
        server = pair.server.spawn(case, [*common, "-s", "-P"], name="server")
        await_listener(pair.server, server, port)
        first = pair.client.spawn(case, [*common, "-v", "-c", "-C", "1000000"], name="first")
        first.wait_for_output("rdma-ping-20", limit_s)
        pair.client.run(case, [*common, "-c", "-C", str(count)], limit_s, name="second")
        check(first.is_running(), f"the first client ended\n{first.tail()}")
        first.kill()
        first.wait(5)
        for i in range(2):
            pair.client.run(case, [*common, "-c", "-C", str(later)], limit_s, name=f"later{i}")
        check(server.is_running(), f"the server ended\n{server.tail()}")
        server.kill()
        server.wait(5)
        nothing_is_left(case, pair)
    return case_function


def both_end(server, client, pair_of, limit_s=40, ends=True):
    """A server that ends by itself (`ends`) and a client; {address} and {port} stand in both."""
    def case_function(case):
        pair = pair_of(case)
        port = str(free_port())
        words = {"address": address_of(pair, 4), "port": port}
        fill = lambda argv: [word.format(**words) for word in argv]
        process, _ = connect_to(case, pair, fill(server), fill(client), limit_s,
                                port if "{port}" in server else None)
        if ends:
            process.expect_exit(20)
        else:
            check(process.is_running(), f"the server ended\n{process.tail()}")
            process.kill()
            process.wait(5)
        nothing_is_left(case, pair)
    return case_function


def mckey(pair_of, group=GROUPS[4], family=4, sent=10):
    """Two receivers of a group, and who sends to it `sent` messages, of which they await ten.

    On one host each receiver has a NIC of its own.
    """
    def case_function(case):
        pair = pair_of(case)
        own = [address_of(pair, family)] * 2 if pair.server.namespace else ["127.0.0.1", "127.0.0.2"]
        receivers = [pair.server.spawn(case, ["stdbuf", "-oL", "mckey", "-m", group, "-b", address],
                                       name=f"receiver{i}") for i, address in enumerate(own)]
        for receiver in receivers:
            receiver.wait_for_output("receiving data", 10)
        sender = ADDRESSES[1][0 if family == 4 else 1] if pair.client.namespace else own[0]
        pair.client.run(case, ["mckey", "-m", group, "-b", sender, "-s", "-C", str(sent)], 20,
                        name="sender")
        for receiver in receivers:
            receiver.expect_exit(20)
        nothing_is_left(case, pair)
    return case_function


def no_listener(case):
    pair = Pair.beside(case.instance())
    port = str(free_port())
    client = pair.client.spawn(case, ["rping", "-c", "-C", "1", "-a", "127.0.0.1", "-p", port],
                               name="client")
    check(client.wait(20) != 0, "rping connected to nobody")
    said = client.out + client.err
    check("RDMA_CM_EVENT_REJECTED, error 8" in said, f"not rejected for its service\n{client.tail()}")
    nothing_is_left(case, pair)


def cycles(count):
    """Connections one after the other: the daemon does not grow with them."""
    def case_function(case):
        pair = Pair.beside(case.instance())
        program = case.program("connection_rate")
        pair.client.run(case, [program, "200"], 30, name="first")
        before_kb, fds = pair.client.instance.rss_kb(), pair.client.instance.fd_count()
        done = pair.client.run(case, [program, str(count)], 200, name="client")
        nothing_is_left(case, pair)
        times = json.loads(done.out)
        case.note(f"{times['rdma_us']} µs each; by TCP {times['tcp_us']} µs")
        grown_kb = pair.client.instance.rss_kb() - before_kb
        check(grown_kb < 4096, f"{grown_kb} KB more after {count} connections")
        check(pair.client.instance.fd_count() <= fds, "fds are left open")
    return case_function


def killed(who):
    """One end is killed while it connects and pings; the other learns of it and ends."""
    def case_function(case):
        pair = Pair.beside(case.instance())
        port = str(free_port())
        common = ["rping", "-v", "-V", "-C", "1000000", "-a", "127.0.0.1", "-p", port]
        server = pair.server.spawn(case, [*common, "-s"], name="server")
        await_listener(pair.server, server, port)
        client = pair.client.spawn(case, [*common, "-c"], name="client")
        client.wait_for_output("rdma-ping-20", 20)
        (server if who == "server" else client).kill()
        server.wait(20)
        client.wait(20)
        nothing_is_left(case, pair)
    return case_function


def daemon_dies(case):
    """A server that waits, and a client amid pings: both end, with an error."""
    pair = Pair.beside(case.instance())
    port = str(free_port())
    common = ["rping", "-v", "-V", "-C", "1000000", "-a", "127.0.0.1", "-p", port]
    waiting = pair.server.spawn(case, ["rping", "-s", "-P", "-a", "127.0.0.2", "-p", port],
                                name="waiting")
    server = pair.server.spawn(case, [*common, "-s"], name="server")
    await_listener(pair.server, waiting, f"127.0.0.2:{port}")
    await_listener(pair.server, server, f"127.0.0.1:{port}")
    client = pair.client.spawn(case, [*common, "-c"], name="client")
    client.wait_for_output("rdma-ping-20", 20)
    pair.server.instance.daemon.kill()
    for process in (waiting, client, server):
        check(process.wait(20) != 0, f"{process.name} ended well\n{process.tail()}")


# --- other programs ------------------------------------------------------------------------------


def run_perftest(case, pair, tool, options, count, limit_s, is_lossy):
    kind = tool.split("_")[2]
    port = str(free_port())
    common = [tool, "-R", "-F", "-n", str(count), "-p", port, *options]
    try:
        server, _ = connect_to(case, pair, common, [*common, address_of(pair, 4)], limit_s, port)
        server.expect_exit(10)
    except Failure as failure:
        if not is_lossy:
            raise
        allow_last_word(case, failure, tool, count)
    else:
        check_table(case.processes[-1], kind, False)
    nothing_is_left(case, pair)


def perftest(pair_of, tool, options, count=500, limit_s=40, is_lossy=False):
    """perftest listens once for itself and then, anew, for the QPs that it measures; its client may
    come before that, on any NIC. It is told so, and we try again."""
    def case_function(case):
        pair = pair_of(case)
        for attempt in range(10):
            try:
                return run_perftest(case, pair, tool, options, count, limit_s, is_lossy)
            except Failure as failure:
                if not TOO_EARLY.search(str(failure)):
                    raise
                case.note(f"attempt {attempt + 1}: the client came before the second listener")
                case.processes[-2].kill()
        raise Failure("the client always came before the second listener")
    return case_function


def qperf_client(case, pair, port, test, seconds):
    """The client of one test. Up to 0.4.11 qperf's server tells the client the port before it listens
    there, and on any NIC the client may come first. It is rejected, and we try again."""
    argv = ["qperf", address_of(pair, 4), "-lp", str(port), "-cm1", "-t", str(seconds), test]
    for attempt in range(10):
        client = pair.client.spawn(case, argv, name=f"{test}{attempt}")
        if client.wait(14 + seconds) == 0 or "rejected" not in client.out + client.err:
            return client
        case.note(f"{test}, attempt {attempt + 1}: the client came before the listener")
    return client


def qperf(pair_of, tests, seconds=1):
    def case_function(case):
        pair = pair_of(case)
        port = free_port()
        server = pair.server.spawn(case, ["qperf", "-lp", str(port)], name="server")
        wait_for(lambda: pair.server.is_listening(port), 10, f"port {port} listens")
        for test in tests:
            client = qperf_client(case, pair, port, test, seconds)
            client.expect_exit(0)
            check(server.is_running(), "the qperf server died")
            found = re.findall(r"(?:bw|latency|msg_rate|rate)\s*=\s*([\d.,]+)\s*\S+", client.out)
            check(found and all(float(value.replace(",", "")) > 0 for value in found),
                  f"no plausible results:\n{client.tail()}")
        server.kill()
    return case_function


def run_fio(case, pair, verb, blocks):
    """False: the client sent before the server had its receives posted."""
    port = str(free_port())
    common = ["fio", "--thread", "--ioengine=rdma", f"--port={port}", "--bs=64k", f"--size={blocks * 64}k",
              "--iodepth_batch=8", "--iodepth_batch_complete=8", "--name=transfer"]
    # Its SENDs have no RNR retries, so all receives are to be there: it posts them as deep as this.
    server = pair.server.spawn(case, [*common, f"--iodepth={blocks if verb == 'send' else 8}",
                                      "--rw=read"])
    await_listener(pair.server, server, port)
    client = pair.client.spawn(case, [*common, "--iodepth=8", f"--hostname={address_of(pair, 4)}",
                                      f"--verb={verb}", "--rw=write"])
    not_ready = "RNR retry counter exceeded"
    wait_for(lambda: not client.is_running() or not_ready in client.err, FIO_LIMIT_S, "fio ends")
    if verb == "send" and not_ready in client.err:
        for process in (client, server):  # neither would end
            process.kill()
            process.wait(5)
        return False
    client.expect_exit(5)
    server.expect_exit(20)
    nothing_is_left(case, pair)
    return True


def fio(pair_of, verb, blocks=256):
    """fio's rdma engine: who reads its own memory is the server, and the client chooses the verb.

    Its server posts receives when it is told of the client, which waits half a second for it.
    """
    def case_function(case):
        pair = pair_of(case)
        for attempt in range(10):
            if run_fio(case, pair, verb, blocks):
                return
            case.note(f"attempt {attempt + 1}: no receive was posted yet")
        raise Failure("no receive was ever posted in time")
    return case_function


def libfabric(pair_of, provider, endpoint, count=100, limit_s=40, may_lose=False):
    """Through libfabric's verbs provider. Its handshake is a TCP connection beside.

    Each end leaves as soon as it has its last message. `may_lose`: also if the acknowledgement of
    that has been lost. The other end then ends in disorder, having shown all results: its request is
    flushed, or fails with "retry exceeded". ofi_rxm 1.17 does so whenever it hears of the end while
    it reads its queue: it posts receives to the connection that it has closed. On a busy machine its
    client may, too.
    """
    def case_function(case):
        pair = pair_of(case)
        port = free_port()
        common = ["fi_pingpong", "-p", provider, "-e", endpoint, "-I", str(count)]
        server = pair.server.spawn(case, [*common, "-B", str(port)], name="server")
        wait_for(lambda: pair.server.is_listening(port), 10, f"port {port} listens")
        client = pair.client.spawn(case, [*common, "-P", str(port), address_of(pair, 4)], name="client")
        code = client.wait(limit_s)
        is_unheard = may_lose and "transport retry counter exceeded" in client.err
        check(code == 0 or is_unheard or
              "rxm" in provider and "terminated with signal 11" in client.err,
              f"the client ended with {code}\n{client.tail()}")
        code = server.wait(10)
        check(code == 0 or may_lose and not is_unheard or "rxm" in provider,
              f"the server ended with {code}\n{server.tail()}")
        for process in (client, server):
            rows = re.findall(rf"^(\S+)\s+{count}\s+={count}\s", process.out, re.MULTILINE)
            check(rows == ["64", "256", "1k", "4k", "64k", "1m"],
                  f"{process.name} has rows for {rows}\n{process.tail()}")
        nothing_is_left(case, pair)
    return case_function


def pyverbs(case):
    """rdma-core's own tests of rdma_cm, on the address that the NIC's interface has."""
    tests = [name for name in listed("due.txt") if name.startswith("test_rdmacm.")]
    check(len(tests) == 10, f"{len(tests)} tests of rdma_cm are due")
    instance = case.instance()
    env = instance.env()
    # Their address is looked for in /sys.
    env["LD_PRELOAD"] = ":".join(filter(None, [env.get("LD_PRELOAD"), str(STAGE_PATHS)]))
    judge(case, Run(case, copy_suite(case), env).outcomes(tests), ("ok",))


# --- places --------------------------------------------------------------------------------------


def beside(case):
    return Pair.beside(case.instance())


def on_two_hosts(case):
    return two_hosts(case, MTU, IPV4)


def over_loss(case):
    left, right = Namespace(case, "left"), Namespace(case, "right")
    LossyLink(case, left, right, MTU, loss=MILLION * LOSS_PERCENT // 100)
    return pair_on(left, right)


UTILS = [
    ("ucmatose", ["ucmatose", "-p", "{port}", "-c", "10"],
     ["ucmatose", "-p", "{port}", "-c", "10", "-s", "{address}"], True),
    ("ucmatose, migrated ids", ["ucmatose", "-p", "{port}", "-m"],
     ["ucmatose", "-p", "{port}", "-m", "-s", "{address}"], True),
    # Its port is its own, 7174: -p is the port space.
    ("udaddy", ["udaddy", "-c", "3"], ["udaddy", "-c", "3", "-s", "{address}"], True),
    ("udaddy, IPoIB's port space", ["udaddy", "-p", "0x0002"],
     ["udaddy", "-p", "0x0002", "-s", "{address}"], True),
    ("rdma_client and rdma_server", ["rdma_server", "-p", "{port}"],
     ["rdma_client", "-p", "{port}", "-s", "{address}"], True),
    # They send inline without having asked for room.
    ("rdma_xclient and rdma_xserver", ["rdma_xserver", "-p", "{port}"],
     ["rdma_xclient", "-p", "{port}", "-s", "{address}"], True),
    ("cmtime, 100 connections", ["cmtime", "-p", "{port}"],
     ["cmtime", "-p", "{port}", "-c", "100", "-s", "{address}"], False),
]
TOOLS = [(f"ib_{verb}_{kind}", []) for verb in ("send", "write", "read", "atomic")
         for kind in ("bw", "lat")]
TOOLS += [("ib_send_bw", ["-c", "UD"]), ("ib_send_lat", ["-c", "UD"]),
          ("ib_send_bw", ["--use-srq", "-q", "2"]), ("ib_send_bw", ["-e"]),
          ("ib_write_bw", ["-q", "4", "-b"])]


def cases(thorough):
    specs = [
        Spec("rping, IPv4, one NIC", rping(beside)),
        Spec("rping, IPv4, the second NIC", rping(beside, "127.0.0.2")),
        Spec("rping, IPv6", rping(beside, "::1", 6)),
        Spec("rping over packets", rping(beside), is_wire=True),
        Spec("rping, persistent server, two clients at once", rping_persistent(beside, 200)),
        Spec("mckey, two receivers", mckey(beside)),
        Spec("nobody listens", no_listener),
        Spec("the server is killed", killed("server"), 60),
        Spec("the client is killed", killed("client"), 60),
        Spec("the daemon is killed", daemon_dies, 60),
        Spec("qperf over rdma_cm", qperf(beside, QPERF_TESTS), 60),
        Spec("pyverbs' tests of rdma_cm", pyverbs, 300),
        Spec("the API used directly", lambda case: run_gtest(case, "rdmacm_test", case.instance(),
                                                             60), 70),
    ]
    for provider, endpoint in FABRICS:
        specs.append(Spec(f"fi_pingpong, {provider}, {endpoint}", libfabric(beside, provider, endpoint), 60))
    count = 10_000 if thorough else 300
    specs.append(Spec(f"{count} connections one after the other", cycles(count), 300))
    if thorough:
        name, server, client, ends = UTILS[-1]
        client = ["1000" if word == "100" else word for word in client]
        specs.append(Spec("cmtime, 1000 connections at once",
                          both_end(server, client, beside, 90, ends), 120))
    for name, server, client, ends in UTILS:
        specs.append(Spec(name, both_end(server, client, beside, ends=ends), 60))
    for tool, options in TOOLS:
        specs.append(Spec(" ".join([tool, *options, "-R"]), perftest(beside, tool, options), 90))
    # Whether fio's server is ready for SENDs in time is fio's own race; on a busy machine it never is.
    for verb in ("write", "read", *(["send"] if thorough else [])):
        specs.append(Spec(f"fio, {verb}", fio(beside, verb), 90))
    specs.append(Spec("rping between two hosts", rping(on_two_hosts), 60))
    specs.append(Spec("rping between two hosts, IPv6", rping(on_two_hosts, family=6), 60))
    for name, server, client, ends in UTILS[:4]:
        specs.append(Spec(f"{name} between two hosts",
                          both_end(server, client, on_two_hosts, ends=ends), 60))
    specs.append(Spec("ib_write_bw -R between two hosts",
                      perftest(on_two_hosts, "ib_write_bw", []), 60))
    specs.append(Spec(f"rping under {LOSS_PERCENT} % loss",
                      rping(over_loss, count=50, limit_s=LOSSY_LIMIT_S), LOSSY_LIMIT_S + 20))
    specs.append(Spec(f"ucmatose under {LOSS_PERCENT} % loss",
                      both_end(UTILS[0][1], UTILS[0][2], over_loss, LOSSY_LIMIT_S),
                      LOSSY_LIMIT_S + 40))
    return specs
