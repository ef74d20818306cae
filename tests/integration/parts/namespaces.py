"""Two hosts (network namespaces) with a daemon each, and a cable between them."""

import json
import os
import re
import signal

from harness import (PYTHON, ROOT, STAGE, Instance, Spec, check, clean_environment, free_port, is_listening,
                     wait_for)
from hosts import (ADDRESSES, DEVICES, INTERFACE, IPV4, IPV6, LINK_LOCAL, Host, Namespace, Pair,
                   join, pair_on, two_hosts)
from parts.pair import run_pair
from parts.perftest import SERVICES, check_table, run_tool, table_rows, variants
from parts.pingpong import run_pingpong
from parts.qperf import TESTS as QPERF_TESTS
from parts.qperf import run_qperf
from parts.rdmacm import GROUPS

VERBENA = STAGE / "bin" / "verbena"
FAMILIES = {"IPv4": IPV4, "IPv6": IPV6, "link-local": LINK_LOCAL}
# Interface MTUs and the active MTU each must give.
MTUS = {1500: 1024, 4200: 4096}
# With both cores busy a run's packets wait now and then; what is lost comes again.
PINGPONG_LIMIT_S = 40

# --- runs of several tools on one pair of hosts ---------------------------------------------------


def perftest_runs():
    """Tool, service, name, options and iterations of every run that has two NICs."""
    for verb, services in SERVICES.items():
        for kind in ("bw", "lat"):
            for service in services:
                for name, options, devices, iterations in variants(verb, kind, service):
                    if devices[0] != devices[1] and name != "path MTU 1024":
                        yield f"ib_{verb}_{kind}", service, name, options, iterations


def is_in_gate(tool, service, name, number, network):
    """Every tool and service on one network or the other, and two tables of all sizes."""
    if (service, name) == ("RC", "all sizes") and tool in ("ib_write_bw", "ib_send_bw"):
        return network == 0
    return name == "two NICs" and number % 2 == network


def perftest_in(mtu, gid_index, tool, options, iterations):
    def case_function(case):
        # Pacing: what is acknowledged never overruns the peer's socket, busy as the machine may be.
        is_paced = "-a" in options and "RC" in options
        pair = two_hosts(case, mtu, gid_index, has_default_sockets=is_paced)
        run_tool(case, pair, tool, options, iterations)
        for host in (pair.server, pair.client) if is_paced else ():
            drops = counter_of(host, "rx_socket_drops")
            check(drops == 0, f"{host.address}: its socket had no room for {drops} packets")
    return case_function


def pingpongs(mtu, gid_index):
    """All services on one pair of hosts, every byte compared where the tool can."""
    def case_function(case):
        pair = two_hosts(case, mtu, gid_index)
        for tool, options in (("ibv_rc_pingpong", ["-c"]), ("ibv_rc_pingpong", ["-c", "-e"]),
                              ("ibv_rc_pingpong", ["-c", "-s", "1048576", "-n", "100"]),
                              ("ibv_uc_pingpong", []), ("ibv_uc_pingpong", ["-e"]),
                              ("ibv_ud_pingpong", ["-s", "1024"]), ("ibv_srq_pingpong", []),
                              ("ibv_srq_pingpong", ["-e"])):
            run_pingpong(case, pair, tool, options, PINGPONG_LIMIT_S)
    return case_function


def qperf(mtu, test):
    """By LID, as qperf knows no other address: over IPv4."""
    def case_function(case):
        # Its own path MTU is 2048, which such an interface has no room for, and so are its datagrams.
        size = "-m" if test.startswith("ud") else "-mt"
        options = [size, "1024"] if MTUS[mtu] < 2048 else []
        run_qperf(case, two_hosts(case, mtu), test, options)
    return case_function


# --- data -----------------------------------------------------------------------------------------


def run_exact_bytes(case, pair, rounds, limit_s=60, timeout=14, retry_cnt=7):
    seed = int.from_bytes(os.urandom(4), "little")
    case.note(f"seed {seed}")
    port, program = free_port(), case.program("exact_bytes")
    gid = str(pair.gid_index)
    sides = run_pair(case, pair, [program, "server", port, gid],
                     [program, "client", port, gid, pair.server.address, seed, rounds, timeout,
                      retry_cnt], port, limit_s)
    for side in sides:
        check("all bytes are right" in side.out, f"{side.name} does not say so:\n{side.tail()}")


def exact_bytes(mtu, gid_index, rounds):
    def case_function(case):
        run_exact_bytes(case, two_hosts(case, mtu, gid_index), rounds)
    return case_function


def ipv4_pair_on(left, right):
    """IPv4 alone: a kernel takes IPv6 addresses away from an interface that goes down."""
    return Pair(left.nic(ADDRESSES[0][:1]), right.nic(ADDRESSES[1][:1]), IPV4,
                (DEVICES[0], DEVICES[0]))


# --- what a user sees -----------------------------------------------------------------------------


def device_is_described(mtu, active_mtu):
    def case_function(case):
        pair = two_hosts(case, mtu)
        for host, addresses in ((pair.server, ADDRESSES[0]), (pair.client, ADDRESSES[1])):
            out = host.run(case, ["ibv_devinfo", "-v"], 10).out
            for text in (f"active_mtu:\t\t{active_mtu} ", "PORT_ACTIVE", "GID[  0]:\t\tfe80:",
                         f"GID[  1]:\t\t::ffff:{addresses[0]}", f"GID[  2]:\t\t{addresses[1]}"):
                check(text in out, f"ibv_devinfo -v lacks '{text}':\n{out}")
            shown = host.namespace.do("ip", "-6", "address", "show", "dev", INTERFACE)
            link_local = re.search(r"inet6 (fe80:\S+)/", shown).group(1)
            check(link_local in out, f"GID 0 is not the interface's {link_local}:\n{out}")
    return case_function


def up_run_down(case):
    """By the command line alone: `up` here and there, `run`, `status`, `down`."""
    left, right = Namespace(case, "left"), Namespace(case, "right")
    join(left, right, 4200)
    env = dict(clean_environment(), HOME=str(case.dir), XDG_RUNTIME_DIR=str(case.dir))
    for namespace, addresses in ((left, ADDRESSES[0]), (right, ADDRESSES[1])):
        case.run(namespace.enter([VERBENA, "up", "--nic", f"ip={addresses[0]},ip={addresses[1]}"]),
                 15, env=env)
        # The library that shows the NICs in /sys finds the default instance, too.
        gid = case.run(namespace.enter([VERBENA, "run", "--", "cat",
                                        "/sys/class/infiniband/verbena0/ports/1/gids/1"]), 15,
                       env=env).out
        check(gid.endswith(":ffff:%02x%02x:%02x%02x\n" % tuple(map(int, addresses[0].split(".")))),
              f"GID 1 of {addresses[0]} in /sys is {gid}")
    port = free_port()
    common = [VERBENA, "run", "--", "ib_write_bw", "-F", "-x", "1", "-n", "500", "-p", str(port)]
    server = case.spawn(left.enter(common), env=env, name="server")
    wait_for(lambda: is_listening(port, left.pid), 15, "the server listens")
    client = case.run(right.enter([*common, ADDRESSES[0][0]]), 30, env=env, name="client")
    server.expect_exit(10)
    check(table_rows(client.out), f"no result:\n{client.tail()}")
    for namespace, addresses in ((left, ADDRESSES[0]), (right, ADDRESSES[1])):
        text = case.run(namespace.enter([VERBENA, "status"]), 10, env=env).out
        check(addresses[0] in text, f"status does not tell the address {addresses[0]}:\n{text}")
        case.run(namespace.enter([VERBENA, "down"]), 10, env=env)


def ipv6_tools(case):
    """perftest that picks the GID itself (--ipv6), beside an index given by hand."""
    pair = two_hosts(case, 4200, IPV6)
    port = free_port()
    common = ["ib_write_bw", "-F", "--ipv6", "-n", "500", "-p", str(port), "-x",
              str(pair.gid_index), "-d", DEVICES[0]]
    _, client = run_pair(case, pair, common, [*common, pair.server.address], port, 40)
    check_table(client, "bw", False)


# --- errors ---------------------------------------------------------------------------------------


def nics_refused(case, wrapper, specs, *words):
    """`verbena up` with these NICs, run by `wrapper`, fails and says these words."""
    env = dict(clean_environment(), HOME=str(case.dir),
               VERBENA_INSTANCE=str(case.dir / f"refused{len(case.processes)}"))
    argv = [*wrapper, VERBENA, "up", *(word for spec in specs for word in ("--nic", spec))]
    process = case.spawn(argv, env=env)
    code = process.wait(15)
    check(code not in (0, 139), f"{specs} was accepted ({code})")
    for word in words:
        check(word in process.err, f"{specs}: '{word}' is not in what it says: {process.err}")


def refused(case, namespace, spec, *words):
    nics_refused(case, namespace.enter([]), [spec], *words)


def errors_are_clear(case):
    left, right = Namespace(case, "left"), Namespace(case, "right")
    join(left, right, 4200)
    refused(case, left, "ip=10.77.0.99", "10.77.0.99", "ip address")
    refused(case, left, "ip=fd77::99", "fd77::99", "ip address")
    refused(case, left, "ip=10.77.0.300", "10.77.0.300", "no IPv4 or IPv6 address")
    refused(case, left, "ip=fe80::1%nosuch0", "nosuch0")
    refused(case, left, "name=only", "needs an address")
    # A port that another instance holds, then one that a program holds.
    first = left.nic(ADDRESSES[0])
    refused(case, left, f"ip={ADDRESSES[0][0]}", "4791", ADDRESSES[0][0], "verbenad",
            str(first.instance.daemon.pid))
    holder = right.enter(["/usr/bin/python3", "-c",
                          "import socket; s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM); "
                          f"s.bind(('{ADDRESSES[1][1]}', 4791)); print('held', flush=True); "
                          "import signal; signal.pause()"])
    program = case.spawn(holder, name="holder")
    program.wait_for_output("held", 10)
    refused(case, right, f"ip={ADDRESSES[1][1]}", "4791", "python3", str(program.pid))


def nics_share_an_interface(case):
    """Two of one instance, and one of another. Its link-local address is the first one's."""
    left, right = Namespace(case, "left"), Namespace(case, "right")
    join(left, right, 4200)
    addresses = ["10.77.0.1", "10.77.0.11", "10.77.0.12"]
    for address in addresses[1:]:
        left.do("ip", "address", "add", f"{address}/24", "dev", INTERFACE)
    two = Instance(case, nics=None, flags=[f"--nic=ip={address}" for address in addresses[:2]],
                   wrapper=left.enter([]))
    third = left.nic(addresses[2:])
    client = right.nic(ADDRESSES[1][:1])
    gids = []
    for instance, device, address in ((two, DEVICES[0], addresses[0]),
                                      (two, DEVICES[1], addresses[1]),
                                      (third.instance, DEVICES[0], addresses[2])):
        host = Host(instance, address, left)
        out = host.run(case, ["ibv_devinfo", "-v", "-d", device], 10).out
        gids += re.findall(r"GID\[  0\]:\s+(fe80:\S+?),?\s", out)
        run_tool(case, Pair(host, client, IPV4, (device, DEVICES[0])), "ib_write_bw", [], 500)
    check(len(set(gids)) >= 2 and gids[0] not in gids[1:], f"their GIDs 0 are {gids}")


def small_mtus(case):
    """1280 is the least that IPv6 allows; below that only IPv4 is left."""
    left, right = Namespace(case, "left"), Namespace(case, "right")
    join(left, right, 1500)
    for mtu, active in ((1280, 1024), (600, 512), (400, 256)):
        for namespace in (left, right):
            namespace.do("ip", "link", "set", INTERFACE, "mtu", str(mtu))
        pair = ipv4_pair_on(left, right)
        out = pair.server.run(case, ["ibv_devinfo", "-v"], 10).out
        check(f"active_mtu:\t\t{active} " in out, f"MTU {mtu} does not give {active}:\n{out}")
        run_exact_bytes(case, pair, 3)
        for host in (pair.server, pair.client):
            host.instance.daemon.kill(signal.SIGTERM)
            host.instance.daemon.expect_exit(10)
    left.do("ip", "link", "set", INTERFACE, "mtu", "200")
    refused(case, left, f"ip={ADDRESSES[0][0]}", "MTU", INTERFACE, "200", "too small")


# --- interfaces that go and return ----------------------------------------------------------------


def watch_events(case, host):
    watch = host.spawn(case, ["stdbuf", "-oL", "ibv_asyncwatch", "-d", "verbena0"], name="watch")
    watch.wait_for_output("async event FD", 10)
    return watch


def devinfo(case, host, field):
    out = host.run(case, ["ibv_devinfo"], 10).out
    return re.search(field + r":\s+(\w+)", out).group(1)


def port_state(case, host):
    return devinfo(case, host, "state")


def active_mtu(case, host):
    return int(devinfo(case, host, "active_mtu"))


def interface_goes_down(case):
    left, right = Namespace(case, "left"), Namespace(case, "right")
    join(left, right, 4200)
    pair = ipv4_pair_on(left, right)
    watch = watch_events(case, pair.server)
    run_exact_bytes(case, pair, 3)
    left.do("ip", "link", "set", INTERFACE, "down")
    watch.wait_for_output("IBV_EVENT_PORT_ERR", 10)
    check(port_state(case, pair.server) == "PORT_DOWN", "the port is not PORT_DOWN")
    # Its cable's other end has lost the carrier.
    wait_for(lambda: port_state(case, pair.client) == "PORT_DOWN", 10, "the peer's port is down")
    left.do("ip", "link", "set", INTERFACE, "up")
    watch.wait_for_output("IBV_EVENT_PORT_ACTIVE", 10)
    wait_for(lambda: port_state(case, pair.client) == "PORT_ACTIVE", 10, "the peer's port is up")
    run_exact_bytes(case, pair, 3)


def address_goes_away(case):
    """The interface stays up, and has its link-local address: that is not what was asked for."""
    left, right = Namespace(case, "left"), Namespace(case, "right")
    join(left, right, 4200)
    pair = ipv4_pair_on(left, right)
    watch = watch_events(case, pair.server)
    left.do("ip", "address", "delete", f"{ADDRESSES[0][0]}/24", "dev", INTERFACE)
    watch.wait_for_output("IBV_EVENT_PORT_ERR", 10)
    check(port_state(case, pair.server) == "PORT_DOWN", "the port is not PORT_DOWN")
    left.do("ip", "address", "add", f"{ADDRESSES[0][0]}/24", "dev", INTERFACE)
    watch.wait_for_output("IBV_EVENT_PORT_ACTIVE", 10)
    run_exact_bytes(case, pair, 3)


def active_mtu_follows(case):
    left, right = Namespace(case, "left"), Namespace(case, "right")
    join(left, right, 4200)
    pair = ipv4_pair_on(left, right)
    check(active_mtu(case, pair.server) == 4096, "active_mtu is not 4096 at MTU 4200")
    for mtu, active in ((1500, 1024), (4200, 4096)):
        for namespace, host in ((left, pair.server), (right, pair.client)):
            namespace.do("ip", "link", "set", INTERFACE, "mtu", str(mtu))
            wait_for(lambda: active_mtu(case, host) == active, 10, f"active_mtu is {active}")
        run_exact_bytes(case, pair, 3)


def interface_is_made_anew(case):
    """The cable is pulled out, interfaces and all, and another one put in."""
    left, right = Namespace(case, "left"), Namespace(case, "right")
    join(left, right, 4200)
    pair = pair_on(left, right)
    watch = watch_events(case, pair.server)
    left.do("ip", "link", "delete", INTERFACE)
    watch.wait_for_output("IBV_EVENT_PORT_ERR", 10)
    join(left, right, 4200)
    watch.wait_for_output("IBV_EVENT_PORT_ACTIVE", 10)
    wait_for(lambda: port_state(case, pair.client) == "PORT_ACTIVE", 10, "the peer's port is up")
    for index in (IPV4, IPV6):
        pair.gid_index = index
        run_exact_bytes(case, pair, 3)


def traffic_survives_a_gap(case):
    """A connection whose retries outlast the gap goes on as if nothing had been."""
    left, right = Namespace(case, "left"), Namespace(case, "right")
    join(left, right, 4200)
    pair = ipv4_pair_on(left, right)
    watch = watch_events(case, pair.client)
    port, program = free_port(), case.program("exact_bytes")
    server = pair.server.spawn(case, [program, "server", port, "1"])
    wait_for(lambda: pair.server.is_listening(port), 10, "the server listens")
    # 4.096 µs · 2^18 = 1.07 s a try: the gap is over before the second one.
    client = pair.client.spawn(case, [program, "client", port, "1", pair.server.address, 7, 150,
                                      18, 7])
    before = packets_of(pair.server)
    wait_for(lambda: packets_of(pair.server) > before + 500, 20, "there is traffic")
    right.do("ip", "link", "set", INTERFACE, "down")
    watch.wait_for_output("IBV_EVENT_PORT_ERR", 10)
    right.do("ip", "link", "set", INTERFACE, "up")
    watch.wait_for_output("IBV_EVENT_PORT_ACTIVE", 10)
    client.expect_exit(90)
    server.expect_exit(10)


def groups_are_joined_anew(family):
    """Who has joined a group hears it through the interface that came instead of the first."""
    def case_function(case):
        left, right = Namespace(case, "left"), Namespace(case, "right")
        join(left, right, 4200)
        pair = pair_on(left, right)
        watch = watch_events(case, pair.server)
        own, peer = (addresses[0 if family == 4 else 1] for addresses in ADDRESSES)
        receiver = pair.server.spawn(case, ["stdbuf", "-oL", "mckey", "-m", GROUPS[family], "-b", own],
                                     name="receiver")
        receiver.wait_for_output("receiving data", 10)
        left.do("ip", "link", "delete", INTERFACE)
        watch.wait_for_output("IBV_EVENT_PORT_ERR", 10)
        join(left, right, 4200)
        watch.wait_for_output("IBV_EVENT_PORT_ACTIVE", 10)
        # Its port is the peer's cable's other end, which is new, too.
        wait_for(lambda: port_state(case, pair.client) == "PORT_ACTIVE", 10, "the peer's port is up")
        # It ends when ten have come.
        pair.client.run(case, ["mckey", "-m", GROUPS[family], "-b", peer, "-s", "-C", "100"], 20,
                        name="sender")
        receiver.expect_exit(20)
    return case_function


def counter_of(host, name):
    return sum(nic["wire"][name] for nic in host.instance.status()["nics"])


def packets_of(host):
    return counter_of(host, "rx_packets")


# What is sent of each kind of operation: tool and options. Datagrams that come twice, or not at all,
# perftest would count wrongly.
CAPTURED = [("ib_write_bw", []), ("ib_read_bw", []), ("ib_send_bw", []), ("ib_atomic_bw", []),
            ("ib_atomic_bw", ["-A", "CMP_AND_SWAP"]), ("ib_write_bw", ["-c", "UC"]),
            ("ib_send_bw", ["-c", "UD"])]
CAPTURED_FAULTS = """
drop service=rc every=29
duplicate service=rc every=17
duplicate service=uc every=13
"""
CAPTURED_OPCODES = {
    "RC WRITE_FIRST", "RC WRITE_LAST", "RC READ_REQUEST", "RC READ_RESPONSE_FIRST", "RC SEND_FIRST",
    "RC SEND_LAST", "RC FETCH_ADD", "RC COMPARE_SWAP", "RC ATOMIC_ACKNOWLEDGE", "RC ACKNOWLEDGE",
    "UC WRITE_FIRST", "UC WRITE_LAST", "UD SEND_ONLY"}


def captured_traffic(case):
    """Every kind of packet, some lost and some twice, as two readers see them that are not ours."""
    pair = two_hosts(case, 1500)
    env, file, rules = pair.client.instance.env(), case.dir / "run.pcapng", case.dir / "rules.txt"
    rules.write_text(CAPTURED_FAULTS)
    case.run([VERBENA, "fault", "set", rules], 10, env=env)
    case.run([VERBENA, "capture", "start", file], 10, env=env)
    for gid_index in (IPV4, IPV6):
        pair.gid_index = gid_index
        for tool, options in CAPTURED:
            # Of several packets, where the service or operation has such messages.
            size = [] if tool == "ib_atomic_bw" else ["-s", "1024" if "UD" in options else "3000"]
            run_tool(case, pair, tool, [*options, *size], 20)
    report = case.run([VERBENA, "fault", "report"], 10, env=env).out
    check("fired 0" not in report, f"not every rule fired:\n{report}")
    case.run([VERBENA, "capture", "stop"], 10, env=env)
    tools = ROOT / "tests" / "wire_tools"
    found = json.loads(case.run([PYTHON, tools / "check_capture.py", file, "--comments", "--json",
                                 "--packets"], 30).out)
    missing = CAPTURED_OPCODES - set(found["opcodes"])
    check(not missing, f"not captured: {missing}")
    for text in ("fault: dropped", "fault: duplicated"):
        check(any(text in packet["comment"] for packet in found["packets"]), f"nowhere '{text}'")
    check({packet["version"] for packet in found["packets"]} == {4, 6}, "not both families")
    tshark = case.spawn([PYTHON, tools / "compare_tshark.py", file])
    if tshark.wait(60) == 3:
        case.note("tshark is not installed: only check_capture.py has read the capture")
    else:
        tshark.expect_exit(0)
        case.note(tshark.out.strip())


def cases(thorough):
    specs = [Spec(f"NIC on an interface with MTU {mtu}", device_is_described(mtu, active))
             for mtu, active in MTUS.items()]
    specs += [
        Spec("up, run, status and down on two hosts", up_run_down, 60),
        Spec("missing addresses, busy ports and nonsense", errors_are_clear, 60),
        Spec("NICs share an interface", nics_share_an_interface, 60),
        Spec("small interface MTUs", small_mtus, 60),
        Spec("an interface goes down and returns", interface_goes_down, 60),
        Spec("an address is taken away and given back", address_goes_away, 60),
        Spec("active_mtu follows the interface", active_mtu_follows, 60),
        Spec("an interface is deleted and made anew", interface_is_made_anew, 60),
        *(Spec(f"groups on an interface made anew, IPv{family}", groups_are_joined_anew(family), 60)
          for family in GROUPS),
        Spec("traffic survives a gap", traffic_survives_a_gap, 120),
        Spec("ib_write_bw --ipv6", ipv6_tools, 60),
        Spec("a capture of every kind of packet, with faults", captured_traffic, 120),
    ]
    for family, gid_index in FAMILIES.items():
        for mtu in MTUS:
            network = f"{family}, MTU {mtu}"
            specs.append(Spec(f"pingpongs, {network}", pingpongs(mtu, gid_index), 120))
            specs.append(Spec(f"exact bytes, {network}",
                              exact_bytes(mtu, gid_index, 300 if thorough else 30), 120))
    networks = [("IPv4", 4200), ("IPv6", 1500)]
    if thorough:
        networks += [("IPv4", 1500), ("IPv6", 4200)]
    pairs = sorted({run[:2] for run in perftest_runs()})
    for network, (family, mtu) in enumerate(networks):
        for tool, service, name, options, iterations in perftest_runs():
            number = pairs.index((tool, service))
            if not thorough and not is_in_gate(tool, service, name, number, network):
                continue
            specs.append(Spec(f"{tool} {service}, {name}, {family}, MTU {mtu}",
                              perftest_in(mtu, FAMILIES[family], tool, options, iterations),
                              150 if "-a" in options else 60))
    tests = [test for tests in QPERF_TESTS.values() for test in tests] if thorough else [
        "rc_bw", "rc_rdma_read_lat", "uc_bw", "ud_lat"]
    specs += [Spec(f"qperf {test}, IPv4, MTU {mtu}", qperf(mtu, test), 60)
              for mtu in MTUS for test in tests]
    return specs
