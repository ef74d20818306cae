"""rdma_cm through the distribution's own librdmacm, over /dev/infiniband/rdma_cm as libverbena-ucm.so
gives it: the cases of the part `rdmacm`, and upstream's sockets over RDMA."""

import json
import os
import signal
import time

from harness import PYTHON, ROOT, STAGE, Spec, check, free_port, wait_for
from hosts import Pair
from parts import rdmacm
from parts.gtests import run_gtest
from parts.rdmacm import (LOSSY_LIMIT_S, address_of, await_listener, beside, nothing_is_left,
                          on_two_hosts, over_loss)

VERBENA = STAGE / "bin" / "verbena"
FILE_BYTES = 8 << 20
POLLHUP = 16
SCHED_YIELD = "24"  # its number
ATTEMPTS = 5

# Of both ends.
STREAM_MODES = [
    ("blocking", ["-T", "b"]),
    ("nonblocking", ["-T", "n"]),
    ("poll", ["-T", "a"]),
    ("verified", ["-T", "v"]),
    ("poll, nonblocking, verified", ["-T", "a", "-T", "n", "-T", "v"]),
    ("resolved by rdma_getaddrinfo", ["-T", "r"]),
    ("inline data", ["-i", "256", "-T", "v"]),
    ("small buffers", ["-B", "8192", "-T", "v"]),
    ("keepalive", ["-k", "1"]),
]
DATAGRAM_MODES = [("default", []), ("blocking", ["-T", "b"]), ("nonblocking", ["-T", "n"]),
                  ("poll", ["-T", "a"]), ("echo", ["-T", "e"])]


def is_the_systems(process):
    """Whether the process has the distribution's librdmacm, and none of ours."""
    with open(f"/proc/{process.pid}/maps", encoding="ascii") as f:
        libraries = {line.split()[-1] for line in f if "librdmacm" in line}
    return len(libraries) == 1 and not any(str(STAGE) in path for path in libraries)


def which_library(case):
    pair = beside(case)
    port = str(free_port())
    server = pair.server.spawn(case, ["rping", "-s", "-a", "127.0.0.1", "-p", port], name="server")
    await_listener(pair.server, server, port)
    check(is_the_systems(server), "the server has not the system's librdmacm alone")
    server.kill()
    server.wait(5)
    nothing_is_left(case, pair)


def table_of(process):
    """The rows that rstream and its like print under their heading; their last column is a time."""
    lines = process.out.splitlines()
    heads = [line for line in lines if line.startswith("name ")]
    check(len(heads) == 1, f"no table\n{process.tail()}")
    columns = len(heads[0].split())
    rows = [line.split() for line in lines[lines.index(heads[0]) + 1:]]
    rows = [row for row in rows if len(row) == columns]
    check(rows and all(float(row[-1]) > 0 for row in rows), f"no results\n{process.tail()}")
    return rows


def stream(program, pair_of, options, address=None, limit_s=60, rows=1):
    """Client and server, each of which says what it measured."""
    def case_function(case):
        pair = pair_of(case)
        port = str(free_port())
        where = address or address_of(pair, 4)
        common = [program, "-p", port, *options]
        server = pair.server.spawn(case, [*common, "-b", where], name="server")
        await_listener(pair.server, server, port)
        client = pair.client.spawn(case, [*common, "-s", where], name="client")
        code = client.wait(limit_s)
        # Where it polls, rstream takes the other end's hanging up for a failure, even with data that
        # it has yet to read: its server sends its last and hangs up at once.
        hung_up = "a" in options and code == POLLHUP
        check(code == 0 or hung_up, f"the client exited {code}\n{client.tail()}\n"
                                    f"  server ({server.popen.poll()}):\n{server.tail()}")
        server.expect_exit(20)
        for process in [server] if hung_up else [server, client]:
            got = len(table_of(process))
            check(got >= rows, f"{process.name}: {got} results of {rows}\n{process.tail()}")
        nothing_is_left(case, pair)
    return case_function


def custom(size=65536, count=50, iterations=10):
    return ["-S", str(size), "-C", str(count), "-I", str(iterations)]


def is_bound_udp(port, pid="self"):
    for table in ("udp", "udp6"):
        with open(f"/proc/{pid}/net/{table}", encoding="ascii") as f:
            next(f)
            if any(int(line.split()[1].rsplit(":", 1)[1], 16) == port for line in f):
                return True
    return False


def is_locked_out(case, host, client):
    """rpoll of librdmacm 44 returns without leaving if its time is over between its entering and its
    polling: the next call waits for this thread to leave, by sched_yield, for ever. udpong ends with
    an rpoll of 1 ms, and repeats it while it has no answer. It then has nothing under way."""
    for _ in range(200):
        try:
            with open(f"/proc/{client.pid}/syscall", encoding="ascii") as f:
                call = f.read().split()[0]
        except (OSError, IndexError):
            return False
        if call not in ("running", SCHED_YIELD):
            return False
        time.sleep(0.005)  # between two looks at what it does
    shown = case.run([VERBENA, "show", "qp", "--json"], 10, env=host.instance.env()).out
    queues = [row["sq"] for row in json.loads(shown)["rows"] if row["pid"] == str(client.pid)]
    return bool(queues) and all(queue.startswith("0+0/") for queue in queues)


def datagrams(pair_of, options, address=None, count=200, limit_s=40):
    """udpong, whose server goes on and on, but for a race of librdmacm 44 (ds_poll_cqs takes no lock
    that udp_svc_forward has): now and then it crashes when a client has come."""
    def case_function(case):
        pair = pair_of(case)
        port = free_port()
        where = address or address_of(pair, 4)
        common = ["udpong", "-p", str(port), *options]
        server = None
        for attempt in range(ATTEMPTS):
            if server is None or not server.is_running():
                server = pair.server.spawn(case, [*common, "-b", where], name=f"server{attempt}")
                wait_for(lambda: is_bound_udp(port, server.pid), 10, "the server is bound")
            client = pair.client.spawn(case, [*common, "-S", "1024", "-C", str(count), "-s", where],
                                       name=f"client{attempt}")
            wait_for(lambda: not (client.is_running() and server.is_running()) or
                     is_locked_out(case, pair.client, client), limit_s, "the client ends")
            if not client.is_running():
                break
            if server.is_running():
                case.note(f"attempt {attempt + 1}: rpoll waits for its own thread to leave")
            else:
                check(server.popen.returncode == -signal.SIGSEGV,
                      f"the server ended\n{server.tail()}")
                case.note(f"attempt {attempt + 1}: the server has lost the race of its two threads")
            client.kill()
            client.wait(5)
        table_of(client.expect_exit(5))
        check(server.is_running(), f"the server ended\n{server.tail()}")
        server.kill()
        server.wait(5)
        nothing_is_left(case, pair)
    return case_function


def rcopy(pair_of, size=FILE_BYTES, limit_s=60):
    def case_function(case):
        pair = pair_of(case)
        port = str(free_port())
        source, copy = case.dir / "source", case.dir / "copy"
        source.write_bytes(os.urandom(size))
        server = pair.server.spawn(case, ["rcopy", "-p", port], name="server")
        await_listener(pair.server, server, port)
        for i in range(2):  # the server goes on
            pair.client.run(case, ["rcopy", source, f"{address_of(pair, 4)}:{copy}", "-p", port],
                            limit_s, name=f"client{i}")
            wait_for(lambda: copy.exists() and copy.stat().st_size == size, 10, "the file is there")
            check(copy.read_bytes() == source.read_bytes(), "the copy is another file")
            copy.unlink()
        server.kill()
        server.wait(5)
        nothing_is_left(case, pair)
    return case_function


def file_semantics(case):
    """open, write, dup, fcntl, fstat and close as a program without librdmacm sees them."""
    pair = beside(case)
    script = ROOT / "tests" / "integration" / "programs" / "ucm_file.py"
    pair.client.run(case, [PYTHON, script], 30, name="program")
    nothing_is_left(case, pair)


def system(name, function, limit_s=30, **options):
    return Spec(name, function, limit_s, system_librdmacm=True, **options)


def socket_cases(thorough):
    specs = [system("rstream, default", stream("rstream", beside, [], limit_s=100, rows=8), 110)]
    if thorough:
        # Not riostream: its ends look at memory without a pause, so that with two processors the NIC
        # waits for its turn each time.
        specs.append(system("rstream, all sizes", stream("rstream", beside, ["-S", "all"],
                                                         limit_s=300, rows=20), 320))
    for name, options in STREAM_MODES:
        specs.append(system(f"rstream, {name}", stream("rstream", beside, custom() + options), 60))
    for name, options in STREAM_MODES[:5]:
        specs.append(system(f"riostream, {name}", stream("riostream", beside, custom() + options),
                            60))
    specs += [
        system("rstream, IPv6", stream("rstream", beside, custom(), "::1"), 60),
        system("riostream, IPv6", stream("riostream", beside, custom(), "::1"), 60),
        system("rstream between two hosts", stream("rstream", on_two_hosts, custom()), 60),
        system("rstream under loss", stream("rstream", over_loss, custom(4096, 10, 10),
                                            limit_s=LOSSY_LIMIT_S), LOSSY_LIMIT_S + 20),
        system("rcopy", rcopy(beside), 90),
        system("udpong, IPv6", datagrams(beside, [], "::1"), 60),
    ]
    specs += [system(f"udpong, {name}", datagrams(beside, options), 60)
              for name, options in DATAGRAM_MODES]
    return specs


def api(case):
    """The part's own program, but for what rdma-core 44 has not or does otherwise."""
    left_out = ["AProgramWritesEventsToItself", "NamesAreResolvedByAnEvent",  # since v60
                "AddressesThatAreNoneOfOursAreRefused",  # rdma_disconnect without an address crashes
                "AChildConnectsOnItsOwn"]  # a child has its parent's NICs
    run_gtest(case, "rdmacm_test", case.instance(), 60,
              "*-" + ":".join(f"*.{name}" for name in left_out))


# Tools of which one stands for all, unless there is time.
ALWAYS = ("ib_write_bw -R", "ib_send_lat -R", "ib_send_bw -c UD -R", "ib_write_bw -R between two hosts",
          "fio, write")


def is_due(name, thorough):
    return thorough or name in ALWAYS or not name.startswith(("ib_", "fio"))


def cases(thorough):
    # What the part `rdmacm` shows of our own library holds of this one.
    same = [Spec(spec.name, spec.function, spec.limit_s, spec.is_wire, spec.refuses_io_uring,
                 spec.net_io, system_librdmacm=True)
            for spec in rdmacm.cases(thorough)
            if is_due(spec.name, thorough) and spec.name != "the API used directly"]
    return [system("the library is the system's", which_library),
            system("the device's file", file_semantics), system("the API used directly", api, 70),
            *same, *socket_cases(thorough)]
