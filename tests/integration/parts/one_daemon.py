"""One daemon with NICs in two network namespaces: each has programs, addresses and ports of its own."""

import re
import signal

from harness import PYTHON, STAGE, Spec, check, clean_environment, free_port, wait_for
from hosts import ADDRESSES, DEVICES, INTERFACE, Host, Namespace, join, one_daemon
from parts.fi import DATAGRAM_SIZES, SIZES
from parts.fi import run_pingpong as run_fi_pingpong
from parts.handshake import ucx
from parts.namespaces import nics_refused, run_exact_bytes
from parts.perftest import run_tool
from parts.rdmacm import GROUPS, mckey, nothing_is_left, rping

MTU = 4200
VERBENA = STAGE / "bin" / "verbena"
WAYS = {"inside": False, "by the network": True}
TOOLS = [("ib_write_bw", []), ("ib_send_lat", []), ("ib_read_bw", ["-q", "4"]),
         ("ib_send_bw", ["-c", "UD"]), ("ib_atomic_lat", [])]


def sent_packets(pair):
    """By each NIC."""
    return [nic["wire"]["tx_packets"] for nic in pair.server.instance.status()["nics"]]


def checked(is_wire, body):
    """`body` of a case and a function that makes the pair; then whether packets took the cable."""
    def case_function(case):
        pairs = []

        def pair_of(case):
            pairs.append(one_daemon(case, MTU, is_wire))
            return pairs[0]

        body(case, pair_of)
        # Who sends to a group can't know that all its members are in the instance.
        sent = sent_packets(pairs[0])
        check(any(sent) if is_wire else body is mcast or not any(sent),
              f"packets sent by the NICs: {sent}")
    return case_function


def perftest(case, pair_of):
    pair = pair_of(case)
    for tool, options in TOOLS:
        run_tool(case, pair, tool, options, 500)


def exact_bytes(case, pair_of):
    run_exact_bytes(case, pair_of(case), 30)


def mcast(case, pair_of):
    mckey(pair_of, GROUPS[4], 4, 100)(case)


def fi_pingpong(endpoint, sizes):
    return lambda case, pair_of: run_fi_pingpong(case, pair_of(case), "verbena", endpoint, sizes, 40, "")


# --- what each namespace has ----------------------------------------------------------------------


def devices_of(case, host):
    out = host.run(case, ["ibv_devices"], 10).out
    return [line.split()[0] for line in out.splitlines() if line.strip().startswith("verbena")]


def each_sees_its_own(case):
    pair = one_daemon(case, MTU)
    for host, device in ((pair.server, DEVICES[0]), (pair.client, DEVICES[1])):
        check(devices_of(case, host) == [device], f"{host.address} sees {devices_of(case, host)}")
        shown = host.run(case, [VERBENA, "run", "--", "cat", f"/sys/class/infiniband/{device}/ports/1/"
                                "gid_attrs/ndevs/1"], 10).out
        check(shown.strip() == INTERFACE, f"the interface of {device} is {shown!r}")
    # Those of the daemon's own namespace have no NIC, and no other's.
    outside = Host(pair.server.instance)
    check(devices_of(case, outside) == [], f"outside: {devices_of(case, outside)}")
    listed = pair.server.instance.status()["nics"]
    check([nic["netns"] for nic in listed] ==
          [f"/proc/{host.namespace.pid}/ns/net" for host in (pair.server, pair.client)],
          f"namespaces as status has them: {listed}")


def the_daemons_own_stay(case):
    """NICs without netns= are those of all namespaces that have none of their own."""
    left, right = Namespace(case, "left"), Namespace(case, "right")
    join(left, right, MTU)
    address = ADDRESSES[1][0]
    instance = case.instance(nics=None, flags=["--nic=ip=127.0.0.1",
                                               f"--nic=ip={address},netns=/proc/{right.pid}/ns/net"])
    for host, device in ((Host(instance), DEVICES[0]), (Host(instance, namespace=left), DEVICES[0]),
                         (Host(instance, address, right), DEVICES[1])):
        check(devices_of(case, host) == [device], f"{host.namespace}: {devices_of(case, host)}")


LISTS_IN_A_THREAD = """
import ctypes, os, sys, threading
verbs, libc = ctypes.CDLL("libibverbs.so.1"), ctypes.CDLL(None, use_errno=True)
verbs.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
verbs.ibv_get_device_name.restype = ctypes.c_char_p
verbs.ibv_get_device_name.argtypes = [ctypes.c_void_p]
def names():
    count = ctypes.c_int()
    found = verbs.ibv_get_device_list(ctypes.byref(count))
    return [verbs.ibv_get_device_name(found[i]).decode() for i in range(count.value)]
def elsewhere():
    if libc.setns(os.open(sys.argv[1], os.O_RDONLY), 0) != 0: os._exit(3)
    print("elsewhere", *names())
print("here", *names())
thread = threading.Thread(target=elsewhere)
thread.start(); thread.join()
print("here", *names())
"""


def threads_move(case):
    """A thread has the NICs of where it is, its process's others stay where they are."""
    pair = one_daemon(case, MTU)
    there = f"/proc/{pair.client.namespace.pid}/ns/net"
    out = pair.server.run(case, [PYTHON, "-c", LISTS_IN_A_THREAD, there], 20).out
    check(out.split("\n")[:3] == ["here verbena0", "elsewhere verbena1", "here verbena0"],
          f"NICs of threads:\n{out}")


def interfaces_have_one_mac(case):
    """As cloned containers' have: GIDs and GUIDs differ nevertheless."""
    left, right = Namespace(case, "left"), Namespace(case, "right")
    for namespace, addresses in zip((left, right), ADDRESSES):
        namespace.do("ip", "link", "add", INTERFACE, "address", "02:00:00:00:00:77", "type", "veth",
                     "peer", "name", "peer0")
        namespace.do("ip", "link", "set", "peer0", "up")
        namespace.configure(addresses, MTU)
        namespace.await_interface()
    instance = case.instance(nics=None, flags=[
        f"--nic=ip={addresses[0]},netns=/proc/{namespace.pid}/ns/net"
        for namespace, addresses in zip((left, right), ADDRESSES)])
    nics = instance.status()["nics"]
    check(nics[0]["gid0"] != nics[1]["gid0"], f"GID 0 of both is {nics[0]['gid0']}")
    hosts = [Host(instance, addresses[0], namespace)
             for namespace, addresses in zip((left, right), ADDRESSES)]
    guids = [host.run(case, ["ibv_devices"], 10).out.split()[-1] for host in hosts]
    check(guids[0] != guids[1], f"the node GUID of both is {guids[0]}")


def ports_are_each_ones_own(case):
    """Servers on the wildcard address and one port in both; each hears its own clients alone."""
    pair = one_daemon(case, MTU)
    port = free_port()
    servers = [host.spawn(case, ["rping", "-s", "-p", port, "-C", "3", "-v"], name=f"server-{host.address}")
               for host in (pair.server, pair.client)]

    def listeners():
        rows = pair.server.instance.admin({"op": "show", "kind": "cm"})["rows"]
        return sorted(row["netns"] for row in rows if row["state"] == "listen")

    wait_for(lambda: len(set(listeners())) == 2, 10, "both listen")
    # The one on the right is asked from the left, and is the only one to end.
    pair.server.run(case, ["rping", "-c", "-a", pair.client.address, "-p", port, "-C", "3"], 20)
    servers[1].wait(10)
    check("server ping data: rdma-ping-2" in servers[1].out, f"not heard there:\n{servers[1].tail()}")
    check(servers[0].is_running() and "ping data" not in servers[0].out,
          f"the other one heard it, too:\n{servers[0].tail()}")
    pair.client.run(case, ["rping", "-c", "-a", pair.server.address, "-p", port, "-C", "3"], 20)
    servers[0].wait(10)
    check("server ping data: rdma-ping-2" in servers[0].out, f"not heard:\n{servers[0].tail()}")
    nothing_is_left(case, pair)


def no_route_no_connection(case):
    """rdma_cm asks the namespace's own routes, as on a host of its own."""
    pair = one_daemon(case, MTU)
    pair.client.namespace.do("ip", "route", "flush", "dev", INTERFACE)
    process = pair.client.spawn(case, ["rping", "-c", "-a", pair.server.address, "-C", "1", "-v"])
    check(process.wait(20) != 0 and "unreachable" in process.out + process.err,
          f"it does not say that there is no way:\n{process.tail()}")


# --- what goes wrong ------------------------------------------------------------------------------


def interface_goes_down(case):
    """Of one namespace; the other's NIC does not hear of it."""
    pair = one_daemon(case, MTU)
    watches = [host.spawn(case, ["stdbuf", "-oL", "ibv_asyncwatch", "-d", device], name=f"watch-{device}")
               for host, device in zip((pair.server, pair.client), DEVICES)]
    for watch in watches:
        watch.wait_for_output("async event FD", 10)
    # Down at one end, a cable has no carrier at the other: what is one NIC's alone is the MTU.
    namespace = pair.client.namespace
    namespace.do("ip", "link", "set", INTERFACE, "mtu", "1500")
    wait_for(lambda: pair.client.instance.status()["nics"][1]["mtu"] == 1024, 10, "its MTU follows")
    check(pair.client.instance.status()["nics"][0]["mtu"] == 4096, "the other's MTU changed, too")
    namespace.do("ip", "link", "set", INTERFACE, "down")
    watches[1].wait_for_output("IBV_EVENT_PORT_ERR", 10)
    namespace.do("ip", "link", "set", INTERFACE, "up")
    watches[1].wait_for_output("IBV_EVENT_PORT_ACTIVE", 10)
    for watch in watches:
        check(watch.is_running(), f"a watch ended:\n{watch.tail()}")


def daemon_is_killed(case):
    """Programs of both namespaces end with errors."""
    pair = one_daemon(case, MTU)
    port = free_port()
    argv = ["ib_write_bw", "-F", "-x", "1", "-D", "60", "-p", port]
    server = pair.server.spawn(case, argv, name="server")
    wait_for(lambda: pair.server.is_listening(port), 10, "the server listens")
    client = pair.client.spawn(case, [*argv, pair.server.address], name="client")
    wait_for(lambda: pair.server.instance.status()["engine"]["send_wqes"] > 1000, 20, "data moves")
    pair.server.instance.daemon.kill(signal.SIGKILL)
    for process in (client, server):
        check(process.wait(20) not in (0, None), f"the {process.name} took no notice")


def refused(case, specs, *words, wrapper=()):
    nics_refused(case, wrapper, specs, *words)


def errors_are_clear(case):
    left, right = Namespace(case, "left"), Namespace(case, "right")
    join(left, right, MTU)
    there = f"netns=/proc/{left.pid}/ns/net"
    refused(case, ["ip=10.77.0.1,netns=nosuch"], "netns=nosuch", "/run/netns/nosuch", "ip netns")
    refused(case, ["ip=10.77.0.1,netns="], "netns= wants")
    refused(case, ["ip=10.77.0.1,netns=/proc/self/ns/uts"], "no network namespace")
    refused(case, ["ip=10.77.0.1,netns=/etc/hostname"], "no network namespace")
    refused(case, [f"ip=10.77.0.2,{there}"], "10.77.0.2", "no interface")
    refused(case, [f"ip=127.0.0.1,{there}", f"ip=127.0.0.1,netns=/proc/{right.pid}/ns/net"], "127.0.0.1",
            "verbena0 has this address")
    refused(case, [f"ip=10.77.0.1,{there}", f"ip=10.77.0.1,{there}"], "verbena0 has this address")
    refused(case, [f"ip=10.77.0.1,{there}"], "not permitted", "CAP_SYS_ADMIN",
            wrapper=["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"])
    left_nic = left.nic(ADDRESSES[0][:1])
    refused(case, [f"ip=10.77.0.1,{there}"], "4791", "10.77.0.1", "verbenad",
            str(left_nic.instance.daemon.pid))


def by_verbena_run(case):
    """A daemon for one program; --wire with --nic, and a capture of what went by the network."""
    left, right = Namespace(case, "left"), Namespace(case, "right")
    join(left, right, MTU)
    nics = [word for namespace, addresses in zip((left, right), ADDRESSES)
            for word in ("--nic", f"ip={addresses[0]},netns=/proc/{namespace.pid}/ns/net")]
    port = free_port()
    script = (f"nsenter --net=/proc/{left.pid}/ns/net ib_write_bw -F -x 1 -n 500 -p {port} & "
              f"until nsenter --net=/proc/{left.pid}/ns/net ss -Hltn | grep -q :{port}; do :; done; "
              f"nsenter --net=/proc/{right.pid}/ns/net ib_write_bw -F -x 1 -n 500 -p {port} "
              f"{ADDRESSES[0][0]} && wait $!")
    capture = case.dir / "capture.pcapng"
    for options, has_packets in (([], False), (["--wire"], True)):
        process = case.run([VERBENA, "run", *nics, *options, "--capture", capture, "--", "sh", "-c",
                            script], 60, env=clean_environment())
        check("BW average" in process.out, f"no table:\n{process.tail()}")
        check((capture.stat().st_size > 100_000) == has_packets,
              f"{options}: the capture has {capture.stat().st_size} B")


def up_says_how_to_find_it(case):
    """A default instance is one for each namespace; who has NICs in another has to be told."""
    left, right = Namespace(case, "left"), Namespace(case, "right")
    join(left, right, MTU)
    env = dict(clean_environment(), HOME=str(case.dir))
    out = case.run(left.enter([VERBENA, "up", "--nic",
                               f"ip={ADDRESSES[1][0]},netns=/proc/{right.pid}/ns/net"]), 20, env=env).out
    found = re.search(r"VERBENA_INSTANCE=(\S+)\.$", out, re.MULTILINE)
    check(found is not None, f"`up` does not say how: {out}")
    env["VERBENA_INSTANCE"] = found[1]
    listed = case.run(right.enter([VERBENA, "run", "--", "ibv_devices"]), 20, env=env).out
    check(DEVICES[0] in listed, f"not found by what it says:\n{listed}")
    case.run([VERBENA, "down"], 20, env=env)


def cases(thorough):
    specs = [
        Spec("each namespace sees its own NICs", each_sees_its_own, 60),
        Spec("NICs of the daemon's own namespace beside others", the_daemons_own_stay, 60),
        Spec("threads in namespaces of their own", threads_move, 60),
        Spec("interfaces with one MAC", interfaces_have_one_mac, 60),
        Spec("one rdma_cm port in two namespaces", ports_are_each_ones_own, 90),
        Spec("no route, no connection", no_route_no_connection, 60),
        Spec("an interface of one namespace goes down and returns", interface_goes_down, 60),
        Spec("the daemon of two namespaces is killed", daemon_is_killed, 60),
        Spec("wrong namespaces", errors_are_clear, 90),
        Spec("up says how other namespaces find it", up_says_how_to_find_it, 60),
        Spec("verbena run for two namespaces", by_verbena_run, 120),
    ]
    bodies = [
        ("perftest", perftest, 120),
        ("exact bytes", exact_bytes, 120),
        ("rping", lambda case, pair_of: rping(pair_of)(case), 60),
        ("rping, IPv6", lambda case, pair_of: rping(pair_of, family=6)(case), 60),
        ("mckey", mcast, 60),
        ("UCX, rc", lambda case, pair_of: ucx(pair_of, "rc_v,self", "tag", 60)(case), 120),
        ("fi_pingpong msg", fi_pingpong("msg", SIZES), 60),
        ("fi_pingpong rdm", fi_pingpong("rdm", SIZES), 60),
        ("fi_pingpong dgram", fi_pingpong("dgram", DATAGRAM_SIZES), 60),
    ]
    for way, is_wire in WAYS.items():
        specs += [Spec(f"{name} between two namespaces, {way}", checked(is_wire, body), limit_s)
                  for name, body, limit_s in bodies]
    return specs
