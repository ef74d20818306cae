"""Unmodified programs whose own business is something else, and which have RDMA for a transport:
uDAPL's tests by each of its ways to a NIC, iSCSI disks by iSER, live migration of a virtual machine, and
PyTorch's collectives."""

import glob
import json
import os
import re
import socket

from harness import PROGRAMS, NotHere, Spec, check, free_port, wait_for
from hosts import IPV4
from parts.lossy import lossy_hosts
from parts.rdmacm import MTU, await_listener, beside, nothing_is_left, on_two_hosts

FAULTS = {"loss": 10_000, "duplicate": 10_000, "reorder": 10_000}  # of a million packets
LIMIT_S = 60
# uDAPL's providers: its library, and by what it names a NIC.
DAT_PROVIDERS = {"cma": ("libdaplofa.so.2", "{address} 0"), "scm": ("libdaploscm.so.2", "{device} 1"),
                 "ucm": ("libdaploucm.so.2", "{device} 1")}
# Its programs: what a server says when it may be asked, and either end when all is well. The server of
# `dtest` may wait for its last event for ever where the client is gone; so it is not waited for.
DAT_PROGRAMS = {
    "dtest": ("waiting for client connection", "DAPL Test Complete. PASSED"),
    "dtestx": ("waiting to snd addr", "immed/atomic test PASSED"),
    "dtestcm": ("waiting for client", "ALL 1000 CONNECTED on Client!"),
    "dtestsrq": ("Accepting...", "DAPL RC SRQ Test Complete."),
}
GATE_DAPL = {("one host", "dtest", "cma"), ("two hosts", "dtest", "ucm"), ("two hosts", "dtestx", "scm"),
             ("two hosts", "dtestcm", "ucm"), ("two hosts", "dtestsrq", "cma")}
TARGET, INITIATOR, OTHER_INITIATOR = ("iqn.2026-11.test:disk", "iqn.2026-11.test:first",
                                      "iqn.2026-11.test:second")
DISK_BYTES = 16 << 20
# libiscsi's own tests of these commands: reads and writes of every size, and refusals. (Those of Read10 and
# Write10 post more at once than libiscsi has descriptors for, and crash in it.)
SCSI_TESTS = ["Read12", "Read16", "Write12", "Write16", "WriteVerify10", "OrWrite", "Verify10"]
RANKS = 4
GUEST_MB, RANDOM_AT, RANDOM_BYTES = 128, 32 << 20, 64 << 20


def need(path):
    if not os.path.exists(path):
        raise NotHere(f"{path} is missing")
    return path


def over_loss(case):
    return lossy_hosts(case, MTU, IPV4, FAULTS)[0]


# --- uDAPL ----------------------------------------------------------------------------------------


def dat_environment(case, host, provider, device):
    library, name = DAT_PROVIDERS[provider]
    conf = case.dir / f"dat-{host.address}.conf"
    conf.write_text(f"{provider} u2.0 nonthreadsafe default {library} dapl.2.0 "
                    f"\"{name.format(address=host.address, device=device)}\" \"\"\n")
    return host.instance.env(DAT_OVERRIDE=str(conf))


def dapl(pair_of, program, provider):
    def case_function(case):
        command = ["stdbuf", "-oL", need(f"/usr/bin/{program}"), "-P", provider]
        is_ready, is_well = DAT_PROGRAMS[program]
        pair = pair_of(case)

        def start(host, device, more, name):
            return case.spawn(host.argv([*command, *more]), name=name,
                              env=dat_environment(case, host, provider, device))
        server = start(pair.server, pair.devices[0], [], "server")
        server.wait_for_output(is_ready, 20)
        client = start(pair.client, pair.devices[1], ["-h", pair.server.address], "client")
        client.expect_exit(LIMIT_S)
        check(is_well in client.out, f"the client did not say '{is_well}':\n{client.tail(20)}")
        server.kill()
        server.wait(10)
        nothing_is_left(case, pair)
    return case_function


# --- iSER -----------------------------------------------------------------------------------------


def iser(pair_of):
    """A disk of tgt's, which libiscsi reads and writes, and compares."""
    def case_function(case):
        tgtd, tgtadm = need(PROGRAMS / "tgtd"), need(PROGRAMS / "tgtadm")
        need("/usr/bin/iscsi-test-cu")
        if os.geteuid() != 0:
            raise NotHere("tgtd keeps its socket in /run/tgtd, which is for root")
        pair, port = pair_of(case), free_port()
        control, disk = str(port), case.dir / "disk"
        disk.write_bytes(os.urandom(DISK_BYTES))
        server = pair.server.spawn(case, [tgtd, "-f", "-C", control, "--iscsi",
                                          f"portal={pair.server.address}:{free_port()}", "--iser",
                                          f"port={port}"], name="tgtd")
        await_listener(pair.server, server, port)

        def admin(*words):
            pair.server.run(case, [tgtadm, "-C", control, "--lld", "iser", "--mode", *words], 10)
        admin("target", "--op", "new", "--tid", "1", "--targetname", TARGET)
        admin("logicalunit", "--op", "new", "--tid", "1", "--lun", "1", "--backing-store", str(disk))
        admin("target", "--op", "bind", "--tid", "1", "--initiator-address", "ALL")
        for name in (INITIATOR, OTHER_INITIATOR):
            admin("target", "--op", "bind", "--tid", "1", "--initiator-name", name)
        url = f"iser://{pair.server.address}:{port}/{TARGET}/1"
        size = pair.client.run(case, ["iscsi-readcapacity16", "-i", INITIATOR, url], 20)
        check(f"Total size:{DISK_BYTES}" in size.out, size.tail())
        held = 0
        for name in SCSI_TESTS:
            judged = pair.client.run(case, ["iscsi-test-cu", "-i", INITIATOR, "-I", OTHER_INITIATOR,
                                            "-d", "-n", "-t", f"ALL.{name}", url], LIMIT_S)
            said = next(line.split() for line in judged.out.splitlines() if "asserts" in line)
            total, passed, failed = int(said[1]), int(said[3]), int(said[4])
            check(0 < passed == total and failed == 0, judged.tail(30))
            held += passed
        check(held > 1000, f"only {held} assertions")
        case.note(f"{held} assertions of libiscsi's tests held")
        server.kill()
        server.wait(10)
        for left in glob.glob(f"/run/tgtd/socket.{control}*"):
            os.unlink(left)
        nothing_is_left(case, pair)
    return case_function


# --- live migration -------------------------------------------------------------------------------


class Machine:
    """A virtual machine of QEMU's without a system on it, by its control socket."""

    def __init__(self, case, host, name, *more):
        path = case.dir / f"{name}.qmp"
        self.process = host.spawn(
            case, [need("/usr/bin/qemu-system-x86_64"), "-nodefaults", "-display", "none", "-machine",
                   "q35,accel=tcg", "-m", str(GUEST_MB), "-S", "-qmp", f"unix:{path},server,nowait",
                   *more], name=name)

        def answers():
            check(self.process.is_running(), f"QEMU ended\n{self.process.tail()}")
            self.socket = socket.socket(socket.AF_UNIX)
            try:
                self.socket.connect(str(path))
                return True
            except OSError:
                self.socket.close()
                return False
        wait_for(answers, 20, f"{name} answers")
        self.socket.settimeout(LIMIT_S)
        self.lines = self.socket.makefile("r")
        self.lines.readline()
        self.ask("qmp_capabilities")

    def ask(self, command, **arguments):
        self.socket.sendall(json.dumps({"execute": command, "arguments": arguments}).encode())
        while True:
            reply = json.loads(self.lines.readline())
            check("error" not in reply, f"{command}: {reply.get('error')}\n{self.process.tail()}")
            if "return" in reply:
                return reply["return"]

    def memory(self, path):
        self.ask("pmemsave", val=0, size=GUEST_MB << 20, filename=str(path))
        return path.read_bytes()

    def end(self):
        self.ask("quit")
        self.process.expect_exit(20)


def start_migration(case, pair, pins_all=False, **parameters):
    """A machine with random bytes in its memory sets out for the other host. Source, target, and what the
    memory was."""
    bytes_file, place = case.dir / "random", f"rdma:{pair.server.address}:{free_port()}"
    bytes_file.write_bytes(os.urandom(RANDOM_BYTES))
    target = Machine(case, pair.server, "target", "-incoming", "defer")
    source = Machine(case, pair.client, "source", "-device",
                     f"loader,file={bytes_file},addr={RANDOM_AT:#x},force-raw=on")
    if pins_all:
        for machine in (source, target):
            machine.ask("migrate-set-capabilities",
                        capabilities=[{"capability": "rdma-pin-all", "state": True}])
    target.ask("migrate-incoming", uri=place)
    await_listener(pair.server, target.process, place.rsplit(":", 1)[1])
    before = source.memory(case.dir / "before")
    check(bytes_file.read_bytes() in before, "the machine has not what it was to begin with")
    source.ask("migrate-set-parameters", **parameters)
    source.ask("migrate", uri=place)
    return source, target, before


def migration_fails(who_dies):
    """Whoever dies amid a migration: its source goes on as if nothing had been asked of it."""
    def case_function(case):
        pair = on_two_hosts(case)
        source, target, before = start_migration(case, pair, **{"max-bandwidth": 4 << 20})
        wait_for(lambda: source.ask("query-migrate").get("ram", {}).get("transferred", 0) > 1 << 20, 20,
                 "it is under way")
        {"target": target.process, "the source's daemon": pair.client.instance.daemon,
         "the target's daemon": pair.server.instance.daemon}[who_dies].kill()
        wait_for(lambda: source.ask("query-migrate")["status"] == "failed", 20, "it has failed")
        check(source.memory(case.dir / "after") == before, "the source's memory is another")
        source.end()
    return case_function


def migration(pair_of, pins_all):
    """Each byte is there."""
    def case_function(case):
        pair = pair_of(case)
        source, target, before = start_migration(case, pair, pins_all)

        def is_over():
            told = source.ask("query-migrate")
            check(told.get("status") not in ("failed", "cancelled"),
                  f"{told}\n{source.process.tail()}\n{target.process.tail()}")
            return told if told.get("status") == "completed" else None
        told = wait_for(is_over, LIMIT_S, "the migration is over")
        after = target.memory(case.dir / "after")
        check(before == after, "the memory is another at the target")
        case.note(f"{told['ram']['transferred'] >> 20} MiB in {told['total-time']} ms")
        source.end()
        target.end()
        nothing_is_left(case, pair)
    return case_function


# --- Gloo -----------------------------------------------------------------------------------------


def gloo(pair_of):
    """Collectives of four ranks over Gloo's ibverbs transport, half of them on each host."""
    def case_function(case):
        program, pair = case.program("gloo_collectives"), pair_of(case)
        meeting = case.dir / "meeting"
        meeting.mkdir()
        ranks = []
        for rank in range(RANKS):
            host, device = ((pair.server, pair.devices[0]), (pair.client, pair.devices[1]))[rank % 2]
            ranks.append(host.spawn(case, [program, device, pair.gid_index, rank, RANKS, meeting],
                                    name=f"rank{rank}"))
        for process in ranks:
            process.expect_exit(LIMIT_S)
            check(re.fullmatch(r"[1-9]\d* comparisons\n", process.out), process.tail())
        case.note(ranks[0].out.strip() + " in each rank")
        nothing_is_left(case, pair)
    return case_function


def cases(thorough):
    specs = []
    for where, pair_of in (("one host", beside), ("two hosts", on_two_hosts)):
        for program in DAT_PROGRAMS:
            # The others have no shared receive queues.
            for provider in ["cma"] if program == "dtestsrq" else DAT_PROVIDERS:
                if thorough or (where, program, provider) in GATE_DAPL:
                    specs.append(Spec(f"uDAPL, {program} by {provider}, {where}",
                                      dapl(pair_of, program, provider), LIMIT_S + 40))
        specs.append(Spec(f"Gloo, collectives of {RANKS} ranks, {where}", gloo(pair_of), 2 * LIMIT_S))
        specs.append(Spec(f"iSER, a disk read and written, {where}", iser(pair_of), 2 * LIMIT_S))
    # rdma_cm's QPs send again after a second, where what is lost ended a burst: libiscsi gives up by then, and
    # a migration takes long.
    for where, pair_of in (("one host", beside), ("two hosts", on_two_hosts),
                           *((("1 % loss", over_loss),) if thorough else ())):
        for pins_all in (False, True):
            specs.append(Spec(f"a virtual machine migrates{', all pinned' if pins_all else ''}, {where}",
                              migration(pair_of, pins_all), 3 * LIMIT_S))
    # Whose peer's daemon has gone learns it when its retries are over, after some ten seconds.
    for who in ("target", "the source's daemon", *(("the target's daemon",) if thorough else ())):
        specs.append(Spec(f"a virtual machine migrates, {who} is killed", migration_fails(who), 2 * LIMIT_S))
    return specs
