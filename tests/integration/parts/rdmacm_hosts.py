"""Programs that connect by rdma_cm, between two hosts and over a cable that loses packets: with
both librdmacms, and sockets over RDMA with the system's. What of this is quick is in the gate."""

from harness import Spec, check
from hosts import MILLION, LossyLink, Namespace, pair_on
from parts.handshake import UCX_WAYS, ucx
from parts.rdmacm import (FABRICS, GROUPS, LOSS_PERCENT, LOSSY_LIMIT_S, MTU, QPERF_TESTS, TOOLS, UTILS,
                          address_of, both_end, connect_to, fio, libfabric, mckey, nothing_is_left,
                          on_two_hosts, perftest, qperf, rping, rping_persistent)
from parts.rdmacm_system import custom, datagrams, rcopy, stream

RESTS = [name for name, *_ in UTILS if name.startswith(("rdma_", "cmtime"))]
# Of both libraries, quick ones: the rest of them if there is time.
ALWAYS = ("cmtime, 100 connections", "rdma_client and rdma_server", "UCX, rc_v, tag",
          "fi_pingpong, verbs, msg", "fio, write", "rcopy", "udpong")
LOST = MILLION * LOSS_PERCENT // 100


def over_loss(make):
    """What `make` makes of pairs, on a cable that has to have lost something by the end."""
    def case_function(case):
        links = []

        def pair_of(case):
            left, right = Namespace(case, "left"), Namespace(case, "right")
            links.append(LossyLink(case, left, right, MTU, loss=LOST))
            return pair_on(left, right)

        make(pair_of)(case)
        links[0].end(loss=LOST)
    return case_function


def datagram_services(pair_of):
    """udaddy without messages, which over UD nobody would send again: connections alone. A request
    whose answer was lost comes again, and is another one to the server, which is to stay for it."""
    def case_function(case):
        pair = pair_of(case)
        common = ["udaddy", "-C", "0"]
        server, _ = connect_to(case, pair, [*common, "-c", "200"],
                               [*common, "-c", "20", "-s", address_of(pair, 4)], LOSSY_LIMIT_S)
        check(server.is_running(), f"the server ended\n{server.tail()}")
        server.kill()
        server.wait(5)
        nothing_is_left(case, pair)
    return case_function


def programs(is_lossy):
    """Name, and what makes a case of a function that makes the two hosts. A message whose end is lost
    costs rdma_cm's ACK timeout, a second or two: fewer of them then."""
    limit_s = LOSSY_LIMIT_S if is_lossy else 40
    few = 20 if is_lossy else 200
    yield "rping, persistent server, two clients at once", lambda pair_of: rping_persistent(
        pair_of, few, limit_s=limit_s)
    if is_lossy:
        yield "rping, IPv6", lambda pair_of: rping(pair_of, family=6, count=50, limit_s=limit_s)
        yield "udaddy, its connections", datagram_services
    for family, group in GROUPS.items():
        # Whatever is lost of a hundred, ten arrive.
        yield f"mckey, IPv{family}", lambda pair_of, family=family, group=group: mckey(
            pair_of, group, family, 100)
    for name, server, client, ends in UTILS:
        if name in RESTS:
            yield name, lambda pair_of, server=server, client=client, ends=ends: both_end(
                server, client, pair_of, limit_s, ends)
    yield "qperf", lambda pair_of: qperf(
        pair_of, QPERF_TESTS, 4 if is_lossy else 1)
    for transports, kind in UCX_WAYS:
        yield (f"UCX, {transports.split(',', maxsplit=1)[0]}, {kind}",
               lambda pair_of, transports=transports, kind=kind: ucx(pair_of, transports, kind, limit_s))
    for provider, endpoint in FABRICS:
        yield (f"fi_pingpong, {provider}, {endpoint}",
               lambda pair_of, provider=provider, endpoint=endpoint: libfabric(
                   pair_of, provider, endpoint, 5 if is_lossy else 100, limit_s, is_lossy))
    for verb in ("write", "read", "send"):
        yield f"fio, {verb}", lambda pair_of, verb=verb: fio(pair_of, verb, 32 if is_lossy else 256)
    for tool, options in TOOLS:
        if is_lossy and "UD" in options:
            continue  # it waits for what was lost
        yield (" ".join([tool, *options, "-R"]), lambda pair_of, tool=tool, options=options: perftest(
            pair_of, tool, options, 50 if is_lossy else 500, limit_s, is_lossy))


def socket_programs(is_lossy):
    limit_s = LOSSY_LIMIT_S if is_lossy else 60
    sizes = custom(4096, 10, 10) if is_lossy else custom()
    yield "rstream, verified", lambda pair_of: stream("rstream", pair_of, sizes + ["-T", "v"],
                                                      limit_s=limit_s)
    for name, options in (("", []), (", verified", ["-T", "v"])):
        yield f"riostream{name}", lambda pair_of, options=options: stream(
            "riostream", pair_of, sizes + options, limit_s=limit_s)
    yield "rcopy", lambda pair_of: rcopy(pair_of, 256 << 10 if is_lossy else 8 << 20, limit_s)
    # Once an answer comes late, udpong's client asks with the number of that one for ever: no echo
    # where it has to ask twice.
    for name, options in (("", []), *([] if is_lossy else [(", echo", ["-T", "e"])])):
        yield f"udpong{name}", lambda pair_of, options=options: datagrams(
            pair_of, options, count=100, limit_s=limit_s)


def cases(thorough):
    specs = []
    for is_lossy in (False, True) if thorough else (False,):
        where = f"under {LOSS_PERCENT} % loss" if is_lossy else "between two hosts"
        for is_system in (False, True):
            suffix = ", the system's librdmacm" if is_system else ""
            rows = list(programs(is_lossy)) + (list(socket_programs(is_lossy)) if is_system else [])
            for name, make in rows:
                if not thorough and (name not in ALWAYS or is_system and not name.startswith(
                        ("rcopy", "udpong"))):
                    continue
                specs.append(Spec(f"{name} {where}{suffix}",
                                  over_loss(make) if is_lossy else make(on_two_hosts),
                                  3 * LOSSY_LIMIT_S if is_lossy else 100,
                                  system_librdmacm=is_system))
    return specs
