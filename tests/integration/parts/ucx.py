"""UCX, and Open MPI and MPICH on UCX: on one host, over packets, and on two hosts.

UCX looks for devices in /sys and /dev, so everything here is started by `verbena run`.
"""

import os
import re
import stat

from harness import STAGE, Spec, check, free_port, wait_for
from hosts import ADDRESSES, DEVICES, IPV4, INTERFACE, Pair, two_hosts
from parts.pair import run_pair

VERBENA = STAGE / "bin" / "verbena"
# "_v": without mlx5's; rc brings ud along to find its peer.
TRANSPORTS = {"rc_verbs": "rc_v,self", "ud_verbs": "ud_v,self"}
MTU = 4200


def run_argv(*argv, options=()):
    return [VERBENA, "run", *options, "--", *argv]


# --- what programs see ----------------------------------------------------------------------------


def nics_are_in_sys_and_dev(case):
    """By programs that know nothing of RDMA, and as the NICs are; later ones too."""
    instance = case.instance()

    def see(script, options=(), code=0):
        return case.run(run_argv("sh", "-c", script, options=options), 20, code,
                        env=instance.env()).out

    check(see("ls /sys/class/infiniband").split() == list(DEVICES), "ls does not list the NICs")
    port = "/sys/class/infiniband/verbena1/ports/1"
    text = see(f"cd {port.rsplit('/', 2)[0]} 2>/dev/null; "
               f"cat {port}/state {port}/link_layer {port}/gids/1 {port}/gid_attrs/types/1 "
               f"{port}/gid_attrs/ndevs/1; cat /sys/class/infiniband_verbs/uverbs1/ibdev")
    check(text.split("\n") == ["4: ACTIVE", "Ethernet",
                               "0000:0000:0000:0000:0000:ffff:7f00:0002", "RoCE v2", "lo",
                               "verbena1", ""], f"the port's files say:\n{text}")
    text = see("stat -c '%F %a' /dev/infiniband/uverbs0; test -r /dev/infiniband/uverbs0 && "
               "test -w /dev/infiniband/uverbs0 && echo both; cat /proc/self/comm")
    check(text.splitlines() == ["character special file 666", "both", "cat"],
          f"/dev/infiniband/uverbs0 is said to be:\n{text}")
    see("test -e /dev/infiniband/uverbs2", code=1)
    see("test -e /dev/infiniband/uverbs2 && test -e /sys/class/infiniband/verbena2/node_guid",
        options=["--nics=3"])
    see("test -e /sys/class/infiniband/verbena0", options=["--no-paths"],
        code=0 if os.path.exists("/sys/class/infiniband/verbena0") else 1)
    see("exec env -i /usr/bin/test -e /sys/class/infiniband/verbena0",
        code=0 if os.path.exists("/sys/class/infiniband/verbena0") else 1)
    python = ("import os; p = '/sys/class/infiniband/verbena0/'; print(open(p + 'node_type').read(),"
              "os.listdir('/sys/class/infiniband'), os.path.realpath(p + 'ports') == p + 'ports')")
    text = case.run(run_argv("/usr/bin/python3", "-c", python), 20, env=instance.env()).out
    check("1: CA" in text and "verbena0" in text and "True" in text, f"Python sees {text}")


def states_are_followed(case):
    """An interface that goes down and comes back, by the port's file."""
    pair = two_hosts(case, MTU, IPV4)
    state = pair.server.instance.directory / "paths/sys/class/infiniband/verbena0/ports/1/state"
    ndev = state.parent / "gid_attrs/ndevs" / str(IPV4)
    check(ndev.read_text() == f"{INTERFACE}\n", f"{ndev} says {ndev.read_text()}")
    check(state.read_text() == "4: ACTIVE\n", f"{state} says {state.read_text()}")
    pair.server.namespace.do("ip", "link", "set", INTERFACE, "down")
    wait_for(lambda: state.read_text() == "1: DOWN\n", 10, f"{state} says DOWN")
    pair.server.namespace.do("ip", "link", "set", INTERFACE, "up")
    wait_for(lambda: state.read_text() == "4: ACTIVE\n", 10, f"{state} says ACTIVE")


def tree_goes_with_the_instance(case):
    instance = case.instance()
    tree = instance.directory / "paths"
    device = tree / "dev/infiniband/uverbs0"
    check(stat.S_ISCHR(device.stat().st_mode), f"{device} is no character device")
    case.run([VERBENA, "down"], 15, env=instance.env())
    check(not tree.exists(), f"{tree} is still there")


def resources(case, host, options=()):
    """Transport and device of each resource that UCX shows."""
    text = host.run(case, run_argv("ucx_info", "-d", options=options), 30, name="ucx_info").out
    return set(re.findall(r"Transport: (\S+)\n#\s+Device: (\S+)", text))


def ucx_info_shows_every_nic(case):
    host = Pair.beside(case.instance(nics=3)).server
    shown = resources(case, host)
    for device in ("verbena0", "verbena1", "verbena2"):
        for transport in TRANSPORTS:
            check((transport, f"{device}:1") in shown,
                  f"ucx_info -d does not show {transport} on {device}: {sorted(shown)}")
    bare = resources(case, host, ["--no-paths"])
    check(not any(transport in TRANSPORTS for transport, _ in bare),
          "UCX sees the device without paths, too, so this case shows nothing")


# --- ucx_perftest ---------------------------------------------------------------------------------

UCP_TESTS = ["tag_lat", "tag_bw", "tag_sync_lat", "tag_sync_bw", "ucp_put_lat", "ucp_put_bw",
             "ucp_get", "stream_lat", "stream_bw", "ucp_am_lat", "ucp_am_bw"]
ATOMIC_TESTS = ["ucp_add", "ucp_fadd", "ucp_swap", "ucp_cswap"]
# Below UCP, of one interface: what each transport has, by the layout of its data.
UCT_TESTS = {
    "rc_verbs": {"short": ["am_lat", "am_bw", "put_lat", "put_bw", "add_lat", "add_mr", "fadd",
                           "cswap"],
                 "bcopy": ["am_lat", "am_bw", "put_lat", "put_bw", "get"],
                 "zcopy": ["am_lat", "am_bw", "put_lat", "put_bw", "get"]},
    "ud_verbs": {"short": ["am_lat", "am_bw"], "bcopy": ["am_lat", "am_bw"],
                 "zcopy": ["am_lat", "am_bw"]},
}


def ucp_lines(sizes, iterations, more=""):
    """Lines of a batch: a name, and the options of one test."""
    for test in UCP_TESTS:
        for size in sizes:
            count = max(iterations // (1 + size // 20000), 10)
            yield f"{test}-{size} -t {test} -s {size} -n {count} -w 10 {more}"
    for test in ATOMIC_TESTS:
        yield f"{test} -t {test} -s 8 -n {iterations} -w 10 {more}"


def uct_lines(transport, devices, sizes, iterations):
    for layout, tests in UCT_TESTS[transport].items():
        for test in tests:
            for size in sizes if layout != "short" else [8]:
                # A datagram, and what is shorter than inline data can't be read without a copy.
                if transport == "ud_verbs" and size > 1024:
                    continue
                if (layout, test) == ("zcopy", "get") and size < 128:
                    continue
                yield (f"{test}-{layout}-{size} -t {test} -x {transport} -d {devices}:1 -D {layout} "
                       f"-s {size} -n {iterations} -w 10")


def run_batch(case, pair, lines, limit_s, env=None):
    """One server and one client through all lines; each must end with its figures."""
    lines = list(lines)
    batch = case.dir / "batch"
    batch.write_text("\n".join(lines) + "\n")
    port = free_port()
    common = ["env", *(f"{name}={value}" for name, value in (env or {}).items()), *run_argv(
        "ucx_perftest", "-f", "-v", "-b", batch, "-p", port)]
    devices = [f"UCX_NET_DEVICES={device}:1" for device in pair.devices]
    _, client = run_pair(case, pair, ["env", devices[0], *common],
                         ["env", devices[1], *common, pair.server.address], port, limit_s)
    rows = [line for line in client.out.splitlines() if re.match(r"^[\w-]+,\s*\d", line)]
    names = [line.split()[0] for line in lines]
    missing = set(names) - {row.split(",")[0] for row in rows}
    check(not missing, f"no figures of {sorted(missing)}:\n{client.tail(30)}")
    check("ERROR" not in client.err + client.out, f"UCX tells of errors:\n{client.tail(30)}")
    return rows


def perftest(transport, lines, is_two_hosts=False, limit_s=60, env=None):
    def case_function(case):
        pair = two_hosts(case, MTU, IPV4) if is_two_hosts else Pair.beside(case.instance())
        before = packets_or_wqes(pair.client)
        rows = run_batch(case, pair, lines, limit_s, {"UCX_TLS": TRANSPORTS[transport], **(env or {})})
        done = packets_or_wqes(pair.client) - before
        check(done > len(rows), f"the NIC carried out {done} WQEs only")
        case.note(f"{len(rows)} tests, {done} WQEs of the client's NIC")
    return case_function


def packets_or_wqes(host):
    return host.instance.status()["engine"]["send_wqes"]


# --- MPI ------------------------------------------------------------------------------------------

MPIS = ("openmpi", "mpich")
RANKS = 4
# Arguments: in the gate, and thorough.
PROGRAMS = {"ping_pong": ((1, 1_000_000), (5, 4_194_304)), "collectives": ((40_000,), (300_000,)),
            "windows": ((10_000, 20), (1_000_000, 200))}
ROOT_MAY = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def mpi_settings(tls):
    """Payload by UCX alone: neither MPI takes its own shared memory or TCP."""
    settings = {"OMPI_MCA_pml": "ucx", "OMPI_MCA_osc": "ucx", "OMPI_MCA_btl": "^openib",
                "OMPI_MCA_coll": "^hcoll", "OMPI_MCA_rmaps_base_oversubscribe": "1",
                "OMPI_MCA_btl_base_warn_component_unused": "0",
                "MPIR_CVAR_NOLOCAL": "1", "UCX_WARN_UNUSED_ENV_VARS": "n", **ROOT_MAY}
    # MPICH 4.0.2 takes derived types in whole elements only, and by default UCX cuts a message for
    # rc at 8239 bytes (docs/ucx-and-mpi.md).
    return settings | {"UCX_TLS": tls, "UCX_RC_VERBS_SEG_SIZE": "8257"}


def check_mpi(process, name):
    check(f"{name}: {RANKS} ranks, " in process.out and "all is right" in process.out,
          f"{name} does not say that all is right:\n{process.tail(30)}")
    check("UCX  ERROR" not in process.err + process.out, f"UCX tells of errors:\n{process.tail(30)}")


def mpi_here(mpi, tls, arguments, limit_s):
    """Four ranks on one instance."""
    def case_function(case):
        instance = case.instance()
        for name, words in arguments.items():
            before = instance.status()["engine"]["payload_bytes"]
            argv = run_argv(f"mpiexec.{mpi}", "-n", RANKS, case.program(f"{name}.{mpi}"), *words)
            process = case.run(argv, limit_s, name=name, env=instance.env(**mpi_settings(tls)))
            check_mpi(process, name)
            moved = instance.status()["engine"]["payload_bytes"] - before
            check(moved > 10_000, f"{name} moved only {moved} B over the NIC")
            case.note(f"{name}: {moved / 1e6:.1f} MB over the NIC")
    return case_function


# In the place of ssh: a command on the host of that address.
AGENT = """#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
host="$1"; shift
case "$host" in
  {left}) pid={left_pid} ;;
  {right}) pid={right_pid} ;;
esac
exec nsenter --net=/proc/$pid/ns/net -- unshare --uts sh -c "hostname h$pid; $*"
"""
# What each rank does on its host: `verbena run` there.
ON_HOST = """#!/bin/sh
case "$(readlink /proc/self/ns/net)" in
  '{left_net}') VERBENA_INSTANCE={left_instance} ;;
  '{right_net}') VERBENA_INSTANCE={right_instance} ;;
esac
export VERBENA_INSTANCE
exec {verbena} run -- "$@"
"""


def write_script(case, name, text):
    path = case.dir / name
    path.write_text(text)
    path.chmod(0o755)
    return path


def mpi_on(case, pair, mpi, program, words, tls, limit_s, **more):
    """Ranks on both hosts in turn, started from the first one."""
    hosts = {"left": pair.server, "right": pair.client}
    facts = {"verbena": VERBENA}
    for (name, host), addresses in zip(hosts.items(), ADDRESSES):
        pid = host.namespace.pid
        facts |= {name: addresses[0], f"{name}_pid": pid,
                  f"{name}_net": os.readlink(f"/proc/{pid}/ns/net"),
                  f"{name}_instance": host.instance.directory}
    agent = write_script(case, "agent", AGENT.format(**facts))
    on_host = write_script(case, "on_host", ON_HOST.format(**facts))
    if mpi == "openmpi":
        launch = ["--mca", "plm_rsh_agent", agent, "--mca", "oob_tcp_if_include", INTERFACE,
                  "--map-by", "node",
                  "--host", ",".join(f"{addresses[0]}:2" for addresses in ADDRESSES)]
        for name in mpi_settings(tls) | more:
            launch += ["-x", name] if not name.startswith("OMPI_") else []
    else:
        launch = ["-launcher", "ssh", "-launcher-exec", agent, "-localhost", ADDRESSES[0][0],
                  "-hosts", ",".join(addresses[0] for addresses in ADDRESSES)]
    argv = [agent, ADDRESSES[0][0], f"mpiexec.{mpi}", *launch, "-n", RANKS, on_host,
            case.program(f"{program}.{mpi}"), *words]
    env = pair.server.instance.env(**mpi_settings(tls), **more)
    return case.spawn(argv, env=env, name=program)


def mpi_on_two_hosts(mpi, tls, arguments, limit_s):
    def case_function(case):
        pair = two_hosts(case, MTU, IPV4)
        for name, words in arguments.items():
            before = sent_bytes(pair.client)
            process = mpi_on(case, pair, mpi, name, words, tls, limit_s)
            process.expect_exit(limit_s)
            check_mpi(process, name)
            sent = sent_bytes(pair.client) - before
            check(sent > 10_000, f"only {sent} B went over the wire")
            case.note(f"{name}: {sent / 1e6:.1f} MB sent by a host")
    return case_function


def sent_bytes(host):
    return host.instance.status()["nics"][0]["wire"]["tx_bytes"]


def one_wrong_byte_fails(mpi):
    def case_function(case):
        instance = case.instance()
        for name in PROGRAMS:
            argv = run_argv(f"mpiexec.{mpi}", "-n", RANKS, case.program(f"{name}.{mpi}"))
            failures = case.dir / f"{name}.failures"
            env = instance.env(**mpi_settings(TRANSPORTS["rc_verbs"]), MPI_TEST_CORRUPT="30",
                               MPI_TEST_FAILURES=str(failures))
            process = case.spawn(argv, env=env, name=name)
            check(process.wait(60) != 0, f"{name} does not notice a wrong byte")
            check(failures.exists() and ", not " in failures.read_text(),
                  f"{name} fails otherwise:\n{process.tail()}")
    return case_function


# --- the cases ------------------------------------------------------------------------------------


def cases(thorough):
    sizes = [1, 8, 1000, 4096, 65536, 1_000_000, 8_000_000] if thorough else [8, 100_000]
    count = 3000 if thorough else 200
    limit_s = 600 if thorough else 60
    arguments = {name: words[thorough] for name, words in PROGRAMS.items()}
    specs = [
        Spec("the NICs are in /sys and /dev", nics_are_in_sys_and_dev),
        Spec("ports that go down do so in /sys", states_are_followed),
        Spec("the files go with the instance", tree_goes_with_the_instance),
        Spec("ucx_info -d shows every NIC", ucx_info_shows_every_nic),
    ]
    for transport in TRANSPORTS:
        small = [size for size in sizes if transport == "rc_verbs" or size <= 1_000_000]
        one = list(ucp_lines(small, count))
        threads = list(ucp_lines(small if thorough else small[:1], count // 2, "-T 4 -M multi"))
        uct = list(uct_lines(transport, DEVICES[0], [8, 1000], count))
        specs += [
            Spec(f"ucx_perftest {transport}", perftest(transport, one, limit_s=limit_s), limit_s),
            Spec(f"ucx_perftest {transport}, 4 threads",
                 perftest(transport, threads, limit_s=limit_s), limit_s),
            Spec(f"ucx_perftest {transport}, below UCP",
                 perftest(transport, uct, limit_s=limit_s), limit_s),
            Spec(f"ucx_perftest {transport}, packets", perftest(transport, one, limit_s=limit_s),
                 limit_s, is_wire=True),
            Spec(f"ucx_perftest {transport}, two hosts",
                 perftest(transport, one, True, limit_s=limit_s), limit_s),
        ]
    for mpi in MPIS:
        for transport, tls in TRANSPORTS.items():
            specs += [
                Spec(f"{mpi} over {transport}", mpi_here(mpi, tls, arguments, limit_s), 3 * limit_s),
                Spec(f"{mpi} over {transport}, two hosts",
                     mpi_on_two_hosts(mpi, tls, arguments, limit_s), 3 * limit_s),
            ]
        specs += [
            Spec(f"{mpi} as UCX chooses, two hosts",
                 mpi_on_two_hosts(mpi, "ib,tcp,self", arguments, limit_s), 3 * limit_s),
        ]
        # The same sources for both, and this one starts and ends faster.
        if thorough or mpi == "mpich":
            specs.append(Spec(f"{mpi}'s programs notice one wrong byte", one_wrong_byte_fails(mpi),
                              180))
    return specs
