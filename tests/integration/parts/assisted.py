"""Memory that the kernel does not let the NIC reach: helpers in the programs copy for it."""

import os
import pathlib
import pwd
import shutil
import signal
import time

from harness import PYTHON, STAGE, Spec, check, free_port, wait_for
from hosts import Pair
from parts.gtests import run_gtest
from parts.pair import run_pair

HELPER = "verbena-dma"
# All ways of moving bytes: RC, datagrams, atomics, queues in the program's memory, device memory.
PROGRAMS = ["rc_test", "datagram_test", "access_test", "allocator_test", "dm_test", "rereg_test",
            "sharing_test", "invalidate_test"]


def refusing(case):
    return [str(case.program("refuse_syscalls")), "--tracing"]


def helpers_of(pid):
    """Live helpers of the process, by its pid."""
    found = []
    for path in pathlib.Path("/proc").iterdir():
        if not path.name.isdigit():
            continue
        try:
            text = (path / "stat").read_text()
        except OSError:
            continue
        name, rest = text.split("(", 1)[1].rsplit(")", 1)
        state, parent = rest.split()[:2]
        if name == HELPER and int(parent) == pid and state not in "ZX":
            found.append(int(path.name))
    return found


def has_ended(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX"
    except OSError:
        return True


def moved(instance):
    dma = instance.status()["dma"]
    return dma["assisted_bytes"], dma["process_bytes"]


def check_only_assisted(instance):
    by_helpers, by_kernel = moved(instance)
    check(by_helpers > 0 and by_kernel == 0, f"{by_helpers} bytes by helpers, {by_kernel} others")


def under_the_filter(program):
    """Nobody asks for helpers: they are what is left."""
    def case_function(case):
        instance = case.instance(wrapper=refusing(case))
        env = instance.env()
        env.pop("VERBENA_DMA", None)
        run_gtest(case, program, instance, 170, env=env, test_filter=f"-{CHOOSES_ITSELF}")
        by_helpers, by_kernel = moved(instance)
        check(by_kernel == 0, f"{by_kernel} bytes by what is forbidden")
        check(by_helpers > 0, "nothing was moved by helpers")
    return case_function


# They ask for backends by name, the forbidden one among them.
CHOOSES_ITSELF = "*MemoryUnmappedAfterRegistrationIsNoCrash*"


def programs_under_the_filter(case):
    """Daemon and both programs: perftest, which is told nothing."""
    instance = case.instance(wrapper=refusing(case))
    pair = Pair.beside(instance)
    for tool in ("ib_write_bw", "ib_send_bw", "ib_read_lat", "ib_atomic_lat"):
        port = free_port()
        common = [*refusing(case), tool, "-F", "-x", "1", "-n", "500", "-p", str(port)]
        run_pair(case, pair, common, [*common, "127.0.0.1"], port, 30)
    check_only_assisted(instance)


def process_is_refused_under_the_filter(case):
    instance = case.instance(wrapper=refusing(case))
    process = case.spawn([case.program("one_client")],
                         env=instance.env(VERBENA_DMA="process", VERBENA_DEBUG="1"))
    check(process.wait(20) != 0, "a backend that can't be had was taken")
    check("not supported" in process.err.lower(), f"another reason:\n{process.err}")


def forced(case):
    """Helpers though the kernel would do it; `verbena` says so."""
    instance = case.instance()
    client, writer = case.spawn_held([case.program("one_client")],
                                     env=instance.env(VERBENA_DMA="assisted"))
    client.wait_for_output("ready", 20)
    shown = case.run([STAGE / "bin" / "verbena", "show", "mr", "--json"], 10,
                     env=instance.env()).out
    check('"assisted"' in shown and '"process"' not in shown, shown)
    text = case.run([STAGE / "bin" / "verbena", "status"], 10, env=instance.env()).out
    check("assisted" in text, text)
    check_only_assisted(instance)
    os.close(writer)
    client.expect_exit(20)


def held_client(case, instance):
    client, writer = case.spawn_held([case.program("one_client")],
                                     env=instance.env(VERBENA_DMA="assisted"))
    client.wait_for_output("ready", 20)
    helpers = helpers_of(client.pid)
    check(len(helpers) == 2, f"{len(helpers)} helpers of two contexts")
    return client, writer, helpers


def killed_client(case):
    instance = case.instance()
    client, writer, helpers = held_client(case, instance)
    client.kill()
    client.wait(10)
    os.close(writer)
    wait_for(lambda: all(map(has_ended, helpers)), 5, "the helpers end with their program")
    wait_for(lambda: instance.status()["sessions"] == 0, 5, "no session is left")
    instance.check_alive()


def killed_client_of_a_stopped_daemon(case):
    """Nobody but the kernel tells the helpers that their program is gone."""
    instance = case.instance()
    client, writer, helpers = held_client(case, instance)
    instance.daemon.popen.send_signal(signal.SIGSTOP)
    try:
        client.kill()
        client.wait(10)
        wait_for(lambda: all(map(has_ended, helpers)), 5, "the helpers end with their program")
    finally:
        instance.daemon.popen.send_signal(signal.SIGCONT)
    os.close(writer)
    wait_for(lambda: instance.status()["sessions"] == 0, 5, "no session is left")


def killed_daemon(case):
    instance = case.instance()
    client, writer, helpers = held_client(case, instance)
    instance.daemon.kill()
    instance.daemon.wait(10)
    wait_for(lambda: all(map(has_ended, helpers)), 5, "the helpers end with the daemon")
    check(client.is_running(), "the program ended with its helpers")
    os.close(writer)
    client.wait(70)
    check(not helpers_of(client.pid), "a helper is left")


EXECUTES_ANOTHER = """
import os, sys
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
context = Context(name="verbena0")
pd = PD(context)
mr = MR(pd, 4096, 1)
print("ready", flush=True)
sys.stdin.readline()
os.execv("/bin/sleep", ["sleep", "60"])
"""


def executes_another(case):
    instance = case.instance()
    client, writer = case.spawn_held([PYTHON, "-c", EXECUTES_ANOTHER],
                                     env=instance.env(VERBENA_DMA="assisted"))
    client.wait_for_output("ready", 20)
    helpers = helpers_of(client.pid)
    check(len(helpers) == 1, f"{len(helpers)} helpers of a context")
    os.close(writer)
    wait_for(lambda: all(map(has_ended, helpers)), 10, "the helper ends with the program's memory")
    check(client.is_running(), "the other program ended, too")
    client.kill()


def ended_client(case):
    """It closes nothing: its end is the helpers' end."""
    instance = case.instance()
    client, writer, helpers = held_client(case, instance)
    os.close(writer)
    client.expect_exit(20)
    wait_for(lambda: all(map(has_ended, helpers)), 5, "the helpers end with their program")


def idle_helpers_use_no_cpu(case):
    instance = case.instance()
    client, writer, helpers = held_client(case, instance)

    def ticks():
        text = [pathlib.Path(f"/proc/{pid}/stat").read_text() for pid in helpers]
        return sum(sum(map(int, t.rsplit(")", 1)[1].split()[11:13])) for t in text)
    before = ticks()
    time.sleep(1)  # the time itself is what is tested
    used = ticks() - before
    check(used <= 1, f"{used} ticks of CPU in a second without work")
    os.close(writer)
    client.expect_exit(20)


def readable_stage(case):
    """A copy of the staged build that another user can read, and that user."""
    stage = case.dir / "stage"
    for name in ("bin", "lib"):
        shutil.copytree(STAGE / name, stage / name)
    shutil.copy(case.program("untraceable_client"), stage)
    home = case.dir / "home"
    home.mkdir()
    user = pwd.getpwnam("nobody")
    os.chown(home, user.pw_uid, user.pw_gid)
    os.chmod(case.dir, 0o777)

    def become():
        os.setgroups([])
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)
    return stage, home / "instance", become


def regions_of_an_untraceable_client(case, limit_s, *arguments, as_the_user=False):
    """What `show mr` tells while one runs with an unprivileged daemon; None: we can't make one."""
    if os.getuid() != 0:
        case.note("not run as root: there is no second user")
        return None
    stage, directory, become = readable_stage(case)
    env = {"PATH": os.environ["PATH"], "HOME": str(directory.parent),
           "VERBENA_INSTANCE": str(directory), "LD_LIBRARY_PATH": str(stage / "lib")}
    verbena = stage / "bin" / "verbena"
    case.run([verbena, "up", "--nics", "2"], 20, env=env, preexec=become)
    client, writer = case.spawn_held([stage / "untraceable_client", *arguments], env=env,
                                     preexec=become if as_the_user else None)
    client.wait_for_output("ready", 20)
    shown = case.run([verbena, "show", "mr", "--json"], 10, env=env, preexec=become).out
    os.close(writer)
    client.expect_exit(limit_s)
    case.run([verbena, "down"], 10, env=env, preexec=become)
    return shown


def two_users(case):
    """The daemon of one, a program of another who opens its devices in the first one's name."""
    user = pwd.getpwnam("nobody").pw_uid
    shown = regions_of_an_untraceable_client(case, 20, str(user))
    if shown is not None:
        check('"assisted"' in shown and '"process"' not in shown, shown)


def untraceable_later(case):
    """A program that becomes so: what it registers afterwards goes by a helper."""
    shown = regions_of_an_untraceable_client(case, 30, as_the_user=True)
    if shown is not None:
        check('"assisted"' in shown and '"process"' in shown, shown)


def doctor_says_so(case):
    process = case.spawn([*refusing(case), STAGE / "bin" / "verbena", "doctor"])
    check(process.wait(20) == 0, f"Verbena can do without process_vm_readv:\n{process.out}")
    check("assisted" in process.out, f"doctor does not tell what is used instead:\n{process.out}")


def cases(thorough):
    return [
        Spec("perftest where process_vm_readv and ptrace are refused", programs_under_the_filter,
             150),
        *[Spec(f"{program} where process_vm_readv and ptrace are refused",
               under_the_filter(program), 180) for program in PROGRAMS],
        Spec("the refused backend is not silently another", process_is_refused_under_the_filter),
        Spec("VERBENA_DMA=assisted", forced, 40),
        Spec("kill -9 of the program leaves no helper", killed_client, 40),
        Spec("kill -9 of the program while the daemon is stopped leaves no helper",
             killed_client_of_a_stopped_daemon, 40),
        Spec("kill -9 of the daemon leaves no helper", killed_daemon, 100),
        Spec("a program that executes another one leaves no helper", executes_another, 40),
        Spec("the end of the program leaves no helper", ended_client, 40),
        Spec("idle helpers use no CPU time", idle_helpers_use_no_cpu, 40),
        Spec("daemon and program of two users", two_users, 60),
        Spec("a program that can't be traced any more", untraceable_later, 60),
        Spec("doctor tells of helpers", doctor_says_so, 30),
    ]
