"""libfabric over Verbena: the conformance suite, and unmodified clients, here and on two hosts.

An unmodified libfabric finds the provider by FI_PROVIDER_PATH, which `verbena run` sets. The suite's
answers feed docs/fi-domain.md (tests/fi/table); those that tests/fi/due.txt names have to be yes.
"""

import collections
import errno
import json
import os
import random
import re
import sys

from harness import (PATIENCE, REPORTS, ROOT, STAGE, Spec, check, clean_environment, free_port,
                     wait_for)
from hosts import ADDRESSES, IPV4, INTERFACE, LossyLink, Namespace, Pair, pair_on, two_hosts
from parts import ucx
from parts.pair import run_pair

sys.path.insert(0, str(ROOT / "tests" / "wire_tools"))

import check_capture  # noqa: E402

VERBENA = STAGE / "bin" / "verbena"
PROVIDER = STAGE / "lib" / "libfabric"
DUE = ROOT / "tests" / "fi" / "due.txt"
ENDPOINTS = ("msg", "rdm", "dgram")
MTU = 4200
LOSS = {"loss": 10_000}
SIZES = "64,4096,65536"
DATAGRAM_SIZES = "64,1024"
# PSM's libraries, which Debian's libfabric loads, catch signals and wait at their start otherwise.
QUIET = {"IPATH_NO_BACKTRACE": "1", "HFI_NO_BACKTRACE": "1"}
LAYERED = "verbena;ofi_rxm"


def environment(instance, **more):
    return instance.env(FI_PROVIDER_PATH=str(PROVIDER), **QUIET, **more)


# --- the suite ------------------------------------------------------------------------------------


def due():
    """{endpoint: names of cases that have to be kept}; '' is of those that are of no endpoint."""
    wanted = {endpoint: set() for endpoint in ("", *ENDPOINTS)}
    for line in DUE.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            name, _, endpoints = line.partition(" ")
            for endpoint in endpoints.split():
                wanted["" if endpoint == "once" else endpoint].add(name)
    return wanted


def keep(endpoint, answers):
    """Adds the answers for one type of endpoint to what tests/fi/table reads."""
    REPORTS.mkdir(parents=True, exist_ok=True)
    path = REPORTS / "fi_conformance.json"
    old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    names = {(answer["case"], answer["endpoint"]) for answer in answers}
    rest = [answer for answer in old if (answer["case"], answer["endpoint"]) not in names
            and answer["endpoint"] not in (endpoint,)]
    order = ["", *ENDPOINTS]
    all_answers = sorted(rest + answers, key=lambda a: (order.index(a["endpoint"]), a["case"]))
    path.write_text(json.dumps(all_answers, indent=1), encoding="utf-8")


def conformance(endpoint, limit_s):
    def case_function(case):
        instance = case.instance()
        process = case.spawn([case.program("fi_conformance"), "--provider", "verbena",
                              "--endpoint", endpoint, "--json", "--patience", PATIENCE],
                             name="fi_conformance", env=environment(instance))
        process.expect_exit(limit_s)
        answers = json.loads(process.out)
        instance.check_alive()
        if not case.is_wire:
            keep(endpoint, answers)
        kept = {answer["case"] for answer in answers if answer["verdict"] == "yes"}
        wanted = due()
        # What is of no endpoint is asked with the first type.
        here = wanted[endpoint] | (wanted[""] if any(a["endpoint"] == "" for a in answers) else set())
        broken = sorted(here - kept)
        text = {answer["case"]: f"{answer['verdict']}: {answer['reason']}" for answer in answers}
        check(not broken, "\n".join(f"{name} {text.get(name, 'not run')}" for name in broken))
        case.note(f"{len(kept)} of {len(answers)} promises kept, {len(here)} due")
    return case_function


# What of the suite's answers about a provider that is not ours does not change.
KNOWN = {"domain.open": "yes", "domain.busy_cq": "yes", "domain.set_ops_unknown": "yes", "msg.sizes": "yes",
         "mr.key_collision": "yes", "cm.data_both_ways": "yes", "rma.write_sizes": "yes",
         "domain.domain2_peer": "no", "getinfo.domain_out": "no", "mr_mode.raw": "refused",
         "domain.set_ops_hmem_rma": "refused"}


def suite_judges(case):
    """Debian's tcp provider keeps some promises, breaks others, and refuses what it does not offer."""
    words = [word for name in KNOWN for word in ("--case", name)]
    process = case.run([case.program("fi_conformance"), "--provider", "tcp", "--endpoint", "msg",
                        "--json", "--patience", PATIENCE, *words], 60, name="fi_conformance",
                       env=clean_environment() | QUIET)
    found = {answer["case"]: answer["verdict"] for answer in json.loads(process.out)}
    check(found == KNOWN, f"it says {found}")


# --- the end of the NIC ---------------------------------------------------------------------------


def daemon_dies(times):
    """Whatever a program is about when the daemon is killed: it is told of errors, and goes on."""
    def case_function(case):
        for endpoint in ENDPOINTS:
            for _ in range(times):
                seed, enough = random.randrange(1 << 31), random.randrange(1, 400)
                instance = case.instance()
                process = case.spawn([case.program("fi_fuzz"), "--provider", "verbena", "--endpoint",
                                      endpoint, "--runs", 10_000, "--steps", 300, "--seed", seed,
                                      "--failures", 1],
                                     name="fi_fuzz", env=environment(instance))
                wait_for(lambda: instance.status()["engine"]["send_wqes"] >= enough, 30,
                         f"{enough} WQEs are carried out")
                instance.daemon.kill()
                code = process.wait(90)
                told = f"{endpoint}, seed {seed}, after {enough} WQEs:\n{process.tail()}"
                check(code == 1 and ", 1 failed" in process.out, f"it ends with {code}, {told}")
                check(not re.search("signal|no answer|never complete", process.out), told)
    return case_function


def waits_end_with_the_daemon(case):
    """Who waits for its peers alone has nothing under way that could fail, and is told all the same."""
    for endpoint in ENDPOINTS:
        instance = case.instance()
        program = case.program("fi_end_of_nic")
        waits = case.run([program, "--list", endpoint], 10).out.split()
        check(len(waits) >= 4, f"it waits by {waits}")
        processes = [case.spawn([program, endpoint, wait], name=f"{endpoint}-{wait}",
                                env=environment(instance)) for wait in waits]
        for process in processes:
            process.wait_for_output("waiting", 30)
        instance.daemon.kill()
        for wait, process in zip(waits, processes):
            process.expect_exit(20)
            told = process.out.split()[-1]
            check(told in (str(-errno.ENODEV), "-FI_EAVAIL"), f"{endpoint}, {wait}: {told}")


# --- what libfabric shows -------------------------------------------------------------------------


def fi_info(case):
    """By an instance that is there, with every type of endpoint, and the NIC described."""
    instance = case.instance(nics=2)
    text = case.run(["fi_info", "-p", "verbena", "-v"], 30, env=environment(instance)).out
    for endpoint in ENDPOINTS:
        check(f"type: FI_EP_{endpoint.upper()}" in text, f"no FI_EP_{endpoint.upper()}:\n{text}")
    for nic in ("verbena0", "verbena1"):
        check(f"name: {nic}" in text, f"{nic} is not listed:\n{text[:3000]}")
    check("provider: verbena\n" in text or "prov_name: verbena\n" in text, "another name")


def fi_info_by_run(case):
    """`verbena run` alone makes the provider known, and starts what it needs."""
    text = case.run([VERBENA, "run", "--private", "--", "fi_info", "-p", "verbena"], 30,
                    env=dict(os.environ, **QUIET)).out
    check("provider: verbena" in text, f"fi_info says:\n{text}")


def layered_is_listed(case):
    text = case.run(["fi_info", "-p", LAYERED], 30, env=environment(case.instance())).out
    check(f"provider: {LAYERED}" in text and "FI_EP_RDM" in text, f"fi_info says:\n{text}")


# --- what packets say -----------------------------------------------------------------------------

# A case of the suite that sends by an endpoint of a traffic class, and the DSCP that this is.
CLASSES = {"tclass.endpoints_own": 26, "tclass.endpoint_inherits": 46, "caps.local_comm": 0}
SENDS = range(0x00, 0x06)  # of any service


def sent_classes(file):
    """How many messages of programs (QP 1 is nobody's) were sent with each DSCP."""
    found = collections.Counter()
    for packet in check_capture.packets_of(file.read_bytes()):
        _, header, udp = check_capture.parse_ip(packet.data, packet.link_type)
        fields = check_capture.parse_transport(udp[8:])
        is_send = fields["opcode"] & 31 in SENDS and fields["dest_qp"] != 1
        if packet.direction == "out" and is_send:
            tos = header[1] if header[0] >> 4 == 4 else int.from_bytes(header[:2], "big") >> 4 & 255
            found[tos >> 2] += 1
    return found


def traffic_classes(case):
    """tclass is the DSCP of packets: the endpoint's own, else its domain's, else the network's default."""
    for name, dscp in CLASSES.items():
        for endpoint in ENDPOINTS:
            file = case.dir / f"{name}.{endpoint}.pcapng"
            process = case.run([VERBENA, "run", "--private", "--capture", file, "--",
                                case.program("fi_conformance"), "--provider", "verbena", "--endpoint",
                                endpoint, "--json", "--patience", PATIENCE, "--case", name], 60,
                               name="fi_conformance", env=clean_environment() | QUIET)
            kept = [answer["verdict"] for answer in json.loads(process.out)]
            check(kept == ["yes"], f"{name}, {endpoint}: {process.out}")
            found = sent_classes(file)
            check(set(found) == {dscp}, f"{name}, {endpoint}: DSCP and packets are {dict(found)}")
            case.note(f"{name}, {endpoint}: {found[dscp]} packets of DSCP {dscp}")


# A case of the suite that is about several NICs.
SEVERAL_NICS = "cm.request_names_its_domain"


def requests_name_their_nic(case):
    """A listener on all addresses is told which NIC a request came to."""
    process = case.run([case.program("fi_conformance"), "--provider", "verbena", "--endpoint", "msg",
                        "--json", "--patience", PATIENCE, "--case", SEVERAL_NICS], 60,
                       name="fi_conformance", env=environment(case.instance(nics=2)))
    kept = [answer["verdict"] for answer in json.loads(process.out)]
    check(kept == ["yes"], process.out)


def under_faults(case, rules, program, endpoint, *cases):
    """Cases of a suite of ours, each by a part of its name, where the network does what the rules say."""
    path = case.dir / "rules"
    path.write_text("".join(f"{rule}\n" for rule in rules))
    process = case.run([VERBENA, "run", "--private", "--nics=2", "--faults", path, "--",
                        case.program(program), "--provider", "verbena", "--endpoint", endpoint,
                        "--json", "--patience", PATIENCE,
                        *(word for name in cases for word in ("--case", name))], 60,
                       name=program, env=clean_environment() | QUIET)
    answers = json.loads(process.out)
    found = [answer["verdict"] for answer in answers]
    check(found == ["yes"] * len(cases), f"{answers}")


SLOW_HANDSHAKES = "delay for=300ms service=ud dest_qp=1 dir=out"


def slow_handshakes(case):
    """To a new peer whose answer takes its time, a message goes without a call of its program's.

    Its peer may have it, and be gone, before it knows that it is connected.
    """
    under_faults(case, [SLOW_HANDSHAKES], "fi_conformance", "rdm", "progress.auto_first_operation",
                 "progress.auto_done_though")


# The first message and its first repetition; and all acknowledgements.
LOST_MESSAGE = "drop opcode=send service=rc dir=out nth=1 repeat=2"
LOST_ACKNOWLEDGEMENTS = "drop opcode=ack service=rc dir=out"


def last_messages(case):
    """What an endpoint sends before it is closed arrives, and what arrived before the other is counts as sent."""
    close, shutdown = "injected_before_the_close", "injected_before_the_shutdown"
    counted = "counted_by_the_close"
    for endpoint, name in (("msg", close), ("msg", shutdown), ("msg", counted), ("rdm", close),
                           ("rdm", counted)):
        under_faults(case, [LOST_MESSAGE], "fi_last_messages", endpoint, name)
    under_faults(case, [LOST_ACKNOWLEDGEMENTS], "fi_last_messages", "msg", "sent_to_who_closes")
    for endpoint in ("msg", "rdm"):
        under_faults(case, ["delay for=1ms service=rc dir=out"], "fi_last_messages", endpoint,
                     "close_without_a_receive")


# --- fi_pingpong ----------------------------------------------------------------------------------


def pingpong_argv(provider, endpoint, size):
    # -c: every byte is compared.
    return ["fi_pingpong", "-p", provider, "-e", endpoint, "-I", "100", "-S", size, "-c"]


def run_pingpong(case, pair, provider, endpoint, sizes, limit_s, excluded):
    settings = {"FI_PROVIDER_PATH": PROVIDER, **QUIET}
    if excluded:
        settings["FI_PROVIDER"] = excluded
    for size in sizes.split(","):
        port = free_port()
        common = ["env", *(f"{name}={value}" for name, value in settings.items())]
        argv = [*common, *pingpong_argv(provider, endpoint, size)]
        _, client = run_pair(case, pair, [*argv, "-B", port],
                             [*argv, "-P", port, pair.server.address], port, limit_s)
        check(re.search(r"^\s*\S+\s+100\s", client.out, re.M), f"no figures:\n{client.tail(20)}")
    moved = pair.client.instance.status()["engine"]["send_wqes"]
    check(moved > 100, f"the NIC carried out {moved} WQEs only")


def first_packet_connects(case):
    """The request is the first packet from host to host: the host has to find its neighbour first."""
    left, right = Namespace(case, "left"), Namespace(case, "right")
    LossyLink(case, left, right, MTU)  # through a process, so that an answer takes its time
    pair = pair_on(left, right, IPV4)
    for number in range(5):
        for host in (pair.server, pair.client):
            host.namespace.do("ip", "neigh", "flush", "all")
        argv = ["env", *(f"{name}={value}" for name, value in QUIET.items()),
                f"FI_PROVIDER_PATH={PROVIDER}", case.program("fi_perf"), "--at",
                case.dir / f"meeting{number}", "--provider", "verbena", "--endpoint", "msg", "--test",
                "pingpong", "--size", "8", "--ms", "10"]
        server = pair.server.spawn(case, [*argv, "--node", pair.server.address, "server"])
        pair.client.run(case, [*argv, "--node", pair.client.address, "client"], 30)
        server.expect_exit(10)


def pingpong(provider, endpoint, sizes, where=None, excluded=""):
    def case_function(case):
        if where == "two hosts":
            pair = two_hosts(case, MTU, IPV4)
        elif where == "1 % loss":
            left, right = Namespace(case, "left"), Namespace(case, "right")
            LossyLink(case, left, right, MTU, **LOSS)
            pair = pair_on(left, right, IPV4)
        else:
            pair = Pair.beside(case.instance())
        run_pingpong(case, pair, provider, endpoint, sizes, 40, excluded)
    return case_function


# --- Open MPI over ofi ----------------------------------------------------------------------------


def mpi_settings(provider):
    """Payload by libfabric alone: neither shared memory nor TCP of Open MPI's own."""
    return {"OMPI_MCA_pml": "cm", "OMPI_MCA_mtl": "ofi", "OMPI_MCA_btl": "self",
            "OMPI_MCA_mtl_ofi_provider_include": provider, "OMPI_MCA_osc": "^ucx,rdma",
            "OMPI_MCA_coll": "^hcoll", "OMPI_MCA_rmaps_base_oversubscribe": "1",
            "OMPI_MCA_mpi_yield_when_idle": "1", "FI_PROVIDER_PATH": str(PROVIDER), **QUIET,
            **ucx.ROOT_MAY}


def mpi_here(arguments, limit_s):
    def case_function(case):
        instance = case.instance()
        for name, words in arguments.items():
            before = instance.status()["engine"]["payload_bytes"]
            argv = ["mpiexec.openmpi", "-n", ucx.RANKS, case.program(f"{name}.openmpi"), *words]
            process = case.run(argv, limit_s, name=name,
                               env=instance.env(**mpi_settings(LAYERED)))
            check(f"{name}: {ucx.RANKS} ranks, " in process.out and "all is right" in process.out,
                  f"{name} does not say that all is right:\n{process.tail(30)}")
            moved = instance.status()["engine"]["payload_bytes"] - before
            check(moved > 10_000, f"{name} moved only {moved} B over the NIC")
            case.note(f"{name}: {moved / 1e6:.1f} MB over the NIC")
    return case_function


def mpi_on(case, pair, program, words):
    """Ranks on both hosts in turn, started from the first one."""
    facts = {"verbena": VERBENA}
    for side, host, addresses in zip(("left", "right"), (pair.server, pair.client), ADDRESSES):
        pid = host.namespace.pid
        facts |= {side: addresses[0], f"{side}_pid": pid,
                  f"{side}_net": os.readlink(f"/proc/{pid}/ns/net"),
                  f"{side}_instance": host.instance.directory}
    agent = ucx.write_script(case, "agent", ucx.AGENT.format(**facts))
    on_host = ucx.write_script(case, "on_host", ucx.ON_HOST.format(**facts))
    settings = mpi_settings(LAYERED)
    launch = ["--mca", "plm_rsh_agent", agent, "--mca", "oob_tcp_if_include", INTERFACE,
              "--map-by", "node", "--host", ",".join(f"{addresses[0]}:2" for addresses in ADDRESSES)]
    for name in settings:
        launch += ["-x", name] if not name.startswith("OMPI_") else []
    argv = [agent, ADDRESSES[0][0], "mpiexec.openmpi", *launch, "-n", ucx.RANKS, on_host,
            case.program(f"{program}.openmpi"), *words]
    return case.spawn(argv, env=pair.server.instance.env(**settings), name=program)


def mpi_on_two_hosts(arguments, limit_s, loses):
    def case_function(case):
        if loses:
            left, right = Namespace(case, "left"), Namespace(case, "right")
            LossyLink(case, left, right, MTU, **LOSS)
            pair = pair_on(left, right, IPV4)
        else:
            pair = two_hosts(case, MTU, IPV4)
        for name, words in arguments.items():
            before = ucx.sent_bytes(pair.client)
            process = mpi_on(case, pair, name, words)
            process.expect_exit(limit_s)
            check(f"{name}: {ucx.RANKS} ranks, " in process.out and "all is right" in process.out,
                  f"{name} does not say that all is right:\n{process.tail(30)}")
            sent = ucx.sent_bytes(pair.client) - before
            check(sent > 10_000, f"only {sent} B went over the wire")
            case.note(f"{name}: {sent / 1e6:.1f} MB sent by a host")
    return case_function


# --- the cases ------------------------------------------------------------------------------------


def cases(thorough):
    # RDM by its name alone is ofi_rxm over MSG: libfabric lists that first.
    kinds = [("verbena", "msg", SIZES), ("verbena", "rdm", SIZES), ("verbena", "dgram", DATAGRAM_SIZES)]
    mpi = {name: words[thorough] for name, words in ucx.PROGRAMS.items() if name != "windows"}
    specs = [
        Spec("the suite judges a provider that is known", suite_judges, 90),
        Spec("fi_info shows what there is", fi_info, 40),
        Spec("fi_info by verbena run", fi_info_by_run, 40),
        Spec("rxm layers itself over it", layered_is_listed, 40),
        Spec("traffic classes are on the wire", traffic_classes, 120),
        Spec("requests name their NIC", requests_name_their_nic, 60),
        Spec("what waits for a slow handshake goes by itself", slow_handshakes, 60),
        Spec("the last messages of what is closed", last_messages, 200),
        Spec("the daemon dies", daemon_dies(20 if thorough else 3), 900 if thorough else 180),
        Spec("who waits learns that the daemon has died", waits_end_with_the_daemon, 120),
        *(Spec(f"promises, {endpoint}", conformance(endpoint, 580), 600) for endpoint in ENDPOINTS),
        *(Spec(f"fi_pingpong {endpoint}", pingpong(provider, endpoint, sizes), 150)
          for provider, endpoint, sizes in kinds),
        Spec("fi_pingpong rdm, not by rxm", pingpong("verbena", "rdm", SIZES, excluded="^ofi_rxm,ofi_rxd"),
             150),
        Spec(f"openmpi over {LAYERED}", mpi_here(mpi, 180), 360),
        Spec("fi_pingpong msg, two hosts", pingpong("verbena", "msg", SIZES, "two hosts"), 150),
        Spec("msg connects to a host that is not known yet", first_packet_connects, 90),
    ]
    if not thorough:
        return specs
    return specs + [
        Spec("fi_pingpong rdm, two hosts", pingpong("verbena", "rdm", SIZES, "two hosts"), 150),
        Spec("fi_pingpong dgram, two hosts",
             pingpong("verbena", "dgram", DATAGRAM_SIZES, "two hosts"), 150),
        Spec("fi_pingpong msg, 1 % loss", pingpong("verbena", "msg", SIZES, "1 % loss"), 150),
        Spec("fi_pingpong rdm, 1 % loss", pingpong("verbena", "rdm", SIZES, "1 % loss"), 150),
        Spec(f"openmpi over {LAYERED}, two hosts", mpi_on_two_hosts(mpi, 600, False), 1200),
        Spec(f"openmpi over {LAYERED}, 1 % loss", mpi_on_two_hosts(mpi, 600, True), 1200),
    ]
