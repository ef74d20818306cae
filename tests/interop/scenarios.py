"""What has to work between kernel rxe and a peer: a table of unmodified programs, two at a time.

A row is a pair of commands, one on each side; braces are filled in by the runner. A case is a row
in one arrangement: address family, path MTU, and whether rxe is the server or the client.
"""

import collections
import itertools
import math
import re

from jobs import Failure

Arrangement = collections.namedtuple("Arrangement", "family mtu rxe")
# Every pair of values of the three factors occurs in four of the eight arrangements.
FOUR = [Arrangement(4, 1024, "server"), Arrangement(4, 4096, "client"),
        Arrangement(6, 1024, "client"), Arrangement(6, 4096, "server")]
TWO = [Arrangement(4, 4096, "server"), Arrangement(6, 1024, "client")]
EIGHT = [Arrangement(*values) for values in itertools.product((4, 6), (1024, 4096),
                                                              ("server", "client"))]

# Written for TCG, where a guest has a tenth of a processor's speed and shares it.
LIMIT_S = 60
ALL_SIZES_LIMIT_S = 240
FAULTS_LIMIT_S = 120
SCRIPTS_START_LIMIT_S = 120
SCRIPTS_LIMIT_S = 300

# rxe was seen to stop for good in the middle of a UC message of 1024 packets, at the first time that
# more than its 64 packets were on the way (docs/interop.md). Over UC no timer helps: a program paces.
RXE_UC_BYTES_MAX = 65539  # 65 packets at path MTU 1024
RXE_UC_DEPTH = 6  # messages of 8 KiB

# 4.096 us * 2^18 = 1.1 s. perftest's own 14 is 67 ms: on a busy machine a guest takes longer than
# that over a large message, is sent it again, and has the more to do.
ACK_TIMEOUT_EXP = "18"
# Where packets are lost on purpose and many timeouts are waited for: 0.27 s.
FAULTS_ACK_TIMEOUT_EXP = "16"

# Rules for Verbena's side (docs/faults.md), for both directions together. Each has to fire: by count, as
# chance may spare the 150 packets of a short case, but for the rule where that is one time in 2000, and
# where a round of packets sent again might be as long as the count.
FAULTS = {
    "1 % lost": "drop every=97\nduplicate every=89\nreorder every=83 packets=3\n",
    "5 % lost": "drop percent=5\nduplicate every=47\nreorder every=31 packets=3\n",
}

# name; argv; check(server job, client job, row); arrangements; limit_s; rules for our side, or none;
# of a program that connects by rdma_cm the client's argv, argv being the server's; what a server may say
# as it ends in disorder of its own making
Row = collections.namedtuple("Row", "name argv check arrangements limit_s faults client_argv excuse",
                             defaults=["", None, None])
Case = collections.namedtuple("Case", "name row arrangement")

# perftest prints "-nan" as the deviation of figures that hardly differ, and "inf" for latencies where
# it has not learnt the clock rate.
TABLE_LINE = re.compile(r"^\s*\d+\s+\d+(\s+(-?nan|inf|[-\d.]+))+\s*$")


def require(condition, text):
    if not condition:
        raise Failure(text)


# perftest listens by rdma_cm once for itself and then, anew, for the QPs that it measures. Its client may
# come before that, on any NIC; it is told so.
TOO_EARLY = re.compile(r"RDMA_CM_EVENT_(REJECTED; error: 8|UNREACHABLE; error: 1)\.")
PINGS = 100
# rdma_cm gives a connection an ACK timeout of a second or two, and each loss at a message's end costs it.
LOSSY_PINGS = 20

# --- how success is recognised -----------------------------------------------------------------


def check_pingpong(server, client, row):
    """Exit code 0 on both sides, and the line of statistics; -c has compared the bytes."""
    del row
    for job in (server, client):
        require("iters in" in job.out, f"no statistics from {job}\n{job.tail()}")
        require("invalid data" not in job.out + job.err, f"{job}: bytes differ\n{job.tail()}")


def table_rows(text):
    rows, inside = [], False
    for line in text.splitlines():
        if line.strip().startswith("#bytes"):
            inside = True
        elif inside and TABLE_LINE.match(line):
            rows.append([float(word) for word in line.split()])
    return rows


def check_perftest(server, client, row):
    """As many result lines as sizes, every figure above 0, nobody wrote of an error."""
    rows = table_rows(client.out)
    wanted = 1
    if "-a" in row.argv:
        wanted = 10 if "UD" in row.argv else 23  # powers of two from 2: to the MTU, or to 8 MiB
    require(len(rows) >= wanted, f"{len(rows)} result lines, not {wanted}: {client}\n"
                                 f"{client.tail(40)}")
    # On a busy machine perftest may not learn the guest's clock rate: it says so (get_clock.c) and
    # prints 0 or "inf" for every figure. The lines still stand for completed transfers.
    knows_clock = "Correlation coefficient r^2" not in client.out + client.err
    for figures in rows if knows_clock else []:
        # bandwidth: bytes, iterations, peak, average, rate, of which a slow run's first or last is
        # rounded to 0; latency: bytes, iterations, min, max, typical, average, ...
        plausible = max(figures[3:5]) > 0 if row.argv[0].endswith("_bw") else \
            0 < min(figures[2], figures[4]) < math.inf
        require(plausible, f"implausible line {figures}: {client}")
    for job in (server, client):
        require("error" not in job.err.lower(), f"{job} wrote:\n{job.tail()}")


def check_peer(server, client, row):
    """Every check of verbs_peer.py reported on both sides."""
    names = row.argv[row.argv.index("--checks") + 1].split(",")
    for job in (server, client):
        require([line for line in job.out.splitlines() if line != "listening"] ==
                [f"ok {name}" for name in names] + ["done"], f"not all checks: {job}\n{job.tail()}")


def check_rping(server, client, row):
    """rping -V has compared what came back."""
    wanted = int(row.argv[row.argv.index("-C") + 1])
    pings = client.out.count("ping data: rdma-ping-")
    require(pings == wanted, f"{pings} pings of {wanted}: {client}\n{client.tail()}")
    require("server DISCONNECT EVENT" in server.out + server.err,
            f"no end of {server}\n{server.tail()}")


def check_cm(server, client, row):
    """Programs of rdmacm-utils that say what became of them by `return status 0`."""
    del row
    for job in (server, client):
        require("return status 0" in job.out, f"{job} did not end well\n{job.tail()}")


def figure_of(row, client):
    """One line worth noting about a case that passed."""
    if row.check is check_perftest:
        last = table_rows(client.out)[-1]
        is_bandwidth = row.argv[0].endswith("_bw")
        return f"{int(last[0])} B: " + (f"{last[3]:.1f} MiB/s" if is_bandwidth
                                        else f"{last[4]:.0f} us typical")
    return ""


# --- the table -----------------------------------------------------------------------------------


def pingpong(name, argv, arrangements=None):
    tool, *options = argv
    mtu = [] if tool == "ibv_ud_pingpong" else ["-m", "{mtu}"]
    return Row(name, [tool, "-d", "{device}", "-g", "{gid}", "-p", "{port}", *mtu, "-c", *options],
               check_pingpong, arrangements or FOUR, LIMIT_S)


def perftest(name, argv, arrangements=None, faults=""):
    tool, *options = argv
    if "-n" not in options:
        few = "-a" in options
        options += ["-n", "5" if few else "50" if tool.endswith("_bw") else "200"]
    options += ["-u", FAULTS_ACK_TIMEOUT_EXP if faults else ACK_TIMEOUT_EXP]
    return Row(name, [tool, "-F", "-d", "{device}", "-x", "{gid}", "-p", "{port}", "-m", "{mtu}",
                      *options], check_perftest, arrangements or TWO,
               ALL_SIZES_LIMIT_S if "-a" in options else FAULTS_LIMIT_S if faults else LIMIT_S,
               faults)


def peer(name, service, checks, *options, arrangements=None, faults=""):
    timeout = ["--timeout", FAULTS_ACK_TIMEOUT_EXP] if faults else []
    return Row(name, ["{python}", "{peer_program}", "--device", "{device}", "--gid-index", "{gid}",
                      "--port", "{port}", "--mtu", "{mtu}", "{rxe_responder}", "{uc_pace}",
                      "--service", service, *timeout, *options, "--checks", checks], check_peer, arrangements or FOUR,
               FAULTS_LIMIT_S if faults else LIMIT_S, faults)


# rping closes its channel while a thread of its own waits in it, which may see that and end the program.
RPING_ENDS = "rdma_get_cm_event: Bad file descriptor"


def cm(name, server, client, check, arrangements=None, faults=""):
    """Programs that find each other by rdma_cm: {address} is the server's."""
    return Row(name, server, check, arrangements or TWO,
               FAULTS_LIMIT_S if faults else LIMIT_S, faults, client,
               RPING_ENDS if check is check_rping else None)


def cm_rows():
    rping, lossy = (["rping", "-v", "-V", "-C", str(count), "-a", "{address}", "-p", "{port}"]
                    for count in (PINGS, LOSSY_PINGS))
    over_ipv4 = [Arrangement(4, 1024, "server"), Arrangement(4, 4096, "client")]
    rows = [
        cm("rping", [*rping, "-s"], [*rping, "-c"], check_rping, FOUR),
        cm("rping, 5 % lost", [*lossy, "-s"], [*lossy, "-c"], check_rping, TWO,
           FAULTS["5 % lost"]),
        cm("ucmatose", ["ucmatose", "-b", "{address}", "-p", "{port}", "-c", "4"],
           ["ucmatose", "-s", "{address}", "-p", "{port}", "-c", "4"], check_cm, FOUR),
        cm("udaddy", ["udaddy", "-b", "{address}", "-c", "2"], ["udaddy", "-s", "{address}", "-c", "2"],
           check_cm, FOUR),
    ]
    for tool in ("send_bw", "send_lat", "write_bw", "write_lat", "read_bw", "read_lat", "atomic_bw",
                 "atomic_lat"):
        common = [f"ib_{tool}", "-R", "-F", "-p", "{port}", "-n", "50" if "bw" in tool else "200",
                  "-u", ACK_TIMEOUT_EXP]
        rows.append(cm(f"{tool} rc by rdma_cm", common, [*common, "{address}"], check_perftest,
                       over_ipv4))
    common = ["ib_send_lat", "-R", "-F", "-c", "UD", "-p", "{port}", "-n", "200"]
    rows.append(cm("send_lat ud by rdma_cm", common, [*common, "{address}"], check_perftest, over_ipv4))
    return rows


def lossy_rows():
    """With packets lost, doubled and overtaken on Verbena's side."""
    rows = []
    for label, rules in FAULTS.items():
        # A lost packet at the end of what is in flight costs a timeout: fewer packets where many are.
        most = ["--most-bytes", "1048576" if label == "1 % lost" else "65539"]
        rows += [
            peer(f"rc bytes, {label}: send, immediate, RNR", "rc", "send,send_imm,rnr",
                 *most, faults=rules),
            peer(f"rc bytes, {label}: write, write with immediate", "rc", "write,write_imm",
                 *most, faults=rules),
            peer(f"rc bytes, {label}: read, atomics, mixed burst", "rc", "read,atomic,burst",
                 *most, faults=rules),
            perftest(f"write_bw rc, {label}", ["ib_write_bw", "-n", "10"], faults=rules),
            perftest(f"read_bw rc, {label}", ["ib_read_bw", "-n", "10"], faults=rules),
        ]
    return rows


ROWS = [
    # Bytes compared by the programs themselves.
    pingpong("rc pingpong", ["ibv_rc_pingpong", "-n", "200", "-s", "4096"]),
    pingpong("rc pingpong, 1 MiB", ["ibv_rc_pingpong", "-n", "5", "-s", "1048576"], TWO),
    pingpong("rc pingpong, events", ["ibv_rc_pingpong", "-n", "100", "-e"], TWO),
    pingpong("uc pingpong", ["ibv_uc_pingpong", "-n", "100", "-s", "8192"]),
    pingpong("ud pingpong", ["ibv_ud_pingpong", "-n", "200", "-s", "1000"]),
    pingpong("srq pingpong, 4 QPs", ["ibv_srq_pingpong", "-n", "200", "-q", "4", "-s", "4096"]),
    peer("rc bytes: send, immediate, RNR", "rc", "send,send_imm,rnr"),
    peer("rc bytes: write, write with immediate", "rc", "write,write_imm"),
    peer("rc bytes: read, atomics, mixed burst", "rc", "read,atomic,burst"),
    peer("rc bytes: srq", "rc", "send,rnr,send_imm,write_imm", "--srq", arrangements=TWO),
    peer("rc refused: wrong rkey", "rc", "send,bad_rkey", arrangements=TWO),
    peer("rc refused: message too long", "rc", "send,too_long", arrangements=TWO),
    peer("uc bytes", "uc", "send,send_imm,write,write_imm"),
    peer("ud bytes", "ud", "send,send_imm"),
    # perftest: every tool over every service it has.
    perftest("send_bw rc", ["ib_send_bw"], FOUR),
    perftest("send_lat rc", ["ib_send_lat"], FOUR),
    perftest("write_bw rc", ["ib_write_bw"], FOUR),
    perftest("write_lat rc", ["ib_write_lat"], FOUR),
    perftest("read_bw rc", ["ib_read_bw"], FOUR),
    perftest("read_lat rc", ["ib_read_lat"], FOUR),
    perftest("atomic_bw fetch and add", ["ib_atomic_bw", "-A", "FETCH_AND_ADD"], FOUR),
    perftest("atomic_bw compare and swap", ["ib_atomic_bw", "-A", "CMP_AND_SWAP"]),
    perftest("atomic_lat fetch and add", ["ib_atomic_lat", "-A", "FETCH_AND_ADD"]),
    perftest("atomic_lat compare and swap", ["ib_atomic_lat", "-A", "CMP_AND_SWAP"]),
    perftest("send_bw rc, all sizes", ["ib_send_bw", "-a"], FOUR),
    perftest("write_bw rc, all sizes", ["ib_write_bw", "-a"], FOUR),
    perftest("read_bw rc, all sizes", ["ib_read_bw", "-a"], FOUR),
    perftest("send_lat rc, all sizes", ["ib_send_lat", "-a"]),
    perftest("write_lat rc, all sizes", ["ib_write_lat", "-a"]),
    perftest("read_lat rc, all sizes", ["ib_read_lat", "-a"]),
    perftest("send_bw rc, both directions", ["ib_send_bw", "-b"]),
    perftest("write_bw rc, both directions", ["ib_write_bw", "-b"]),
    perftest("read_bw rc, both directions", ["ib_read_bw", "-b"]),
    perftest("send_bw rc, srq", ["ib_send_bw", "--use-srq"]),
    perftest("send_lat rc, srq", ["ib_send_lat", "--use-srq"]),
    perftest("send_bw rc, 4 QPs", ["ib_send_bw", "-q", "4"]),
    perftest("write_bw rc, 4 QPs", ["ib_write_bw", "-q", "4"]),
    perftest("read_bw rc, 4 QPs", ["ib_read_bw", "-q", "4"]),
    perftest("send_bw rc, events", ["ib_send_bw", "-e"]),
    perftest("read_lat rc, events", ["ib_read_lat", "-e"]),
    perftest("send_lat rc, inline", ["ib_send_lat", "-I", "64", "-s", "64"]),
    perftest("send_bw uc", ["ib_send_bw", "-c", "UC", "-s", "8192", "-t", str(RXE_UC_DEPTH)]),
    perftest("send_lat uc", ["ib_send_lat", "-c", "UC", "-s", "8192"]),
    perftest("write_bw uc", ["ib_write_bw", "-c", "UC", "-s", "8192", "-t", str(RXE_UC_DEPTH)]),
    perftest("write_lat uc", ["ib_write_lat", "-c", "UC"]),
    perftest("send_bw ud", ["ib_send_bw", "-c", "UD", "-s", "1024"]),
    perftest("send_lat ud", ["ib_send_lat", "-c", "UD"]),
    perftest("send_lat ud, all sizes", ["ib_send_lat", "-c", "UD", "-a"]),
    *lossy_rows(),
    # Connected by rdma_cm.
    *cm_rows(),
]


def name_of(row, arrangement):
    return (f"{row.name} (IPv{arrangement.family}, path MTU {arrangement.mtu}, "
            f"rxe is {arrangement.rxe})")


def quick_arrangements(number, row):
    """A choice for every day: where bytes are compared all that is in the table; of a perftest row
    one arrangement, by turns; of rows with faults two; nothing that takes long."""
    if "-a" in row.argv:
        return []
    if row.check is check_perftest and row.client_argv is not None:
        # An emulated server is seldom back in time for perftest's own client (TOO_EARLY).
        return [arrangement for arrangement in row.arrangements if arrangement.rxe == "client"]
    if row.check is check_perftest:
        return [row.arrangements[number % len(row.arrangements)]]
    return row.arrangements[number % 2::2] if row.faults else row.arrangements


def thorough_arrangements(row):
    """All, but for perftest with rdma_cm, which resolves names to IPv4 addresses alone."""
    is_ipv4_only = row.check is check_perftest and row.client_argv is not None
    return [arrangement for arrangement in EIGHT if arrangement.family == 4 or not is_ipv4_only]


def cases(which="", with_faults=True):
    """Sorted by path MTU, so that it is changed once. which: "quick", "thorough" or neither."""
    found = []
    for number, row in enumerate(ROWS):
        if row.faults and not with_faults:
            continue
        chosen = thorough_arrangements(row) if which == "thorough" else quick_arrangements(number, row) \
            if which == "quick" else row.arrangements
        found += [Case(name_of(row, arrangement), row, arrangement) for arrangement in chosen]
    return sorted(found, key=lambda case: case.arrangement.mtu)
