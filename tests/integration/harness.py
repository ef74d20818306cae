"""Private instances, processes with time limits, and conditions to wait for.

Every case owns a directory, starts its own daemon there and is cleaned of every process it left.
Nothing here sleeps in the hope that something has happened: wait_for() polls a condition.
"""

import ctypes
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parents[2]
STAGE = pathlib.Path(os.environ.get("VERBENA_STAGE", ROOT / "out"))
PROGRAMS = pathlib.Path(os.environ.get("VERBENA_TEST_PROGRAMS", ROOT / "out" / "tests"))
# Results that tests/support_table reads.
REPORTS = pathlib.Path(os.environ.get("VERBENA_TEST_REPORTS", ROOT / "out" / "test-reports"))
PYTHON = "/usr/bin/python3"  # Debian's own: the one pyverbs is built for

# Of them three for peers that don't answer, and half a one for copies under way.
DAEMON_END_LIMIT_S = 5

ABI_MAGIC = 0x0061_6E65_6272_6576
ABI_VERSION = int(re.search(r"kAbiVersion = (\d+);", (ROOT / "core/shm/layout.h").read_text())[1])
HELLO_ADMIN = 3
ADMIN_HELLO = struct.Struct("<QIIIIQQ64s")


# Limits below are written for a quiet machine. They end what hangs; on a machine that is busy with
# other things they are this many times longer, which costs nothing where all is well.
PATIENCE = 3


class Failure(Exception):
    """What the program under test did wrong, in words."""


class TimeLimit(Exception):
    """A case took longer than it may."""


class NotHere(Exception):
    """This machine or user can't carry out the case; the text says what is missing."""


def check(condition, text):
    if not condition:
        raise Failure(text)


def wait_for(condition, limit_s, what):
    """Returns condition()'s first true value; fails after limit_s (with PATIENCE)."""
    limit_s *= PATIENCE
    end = time.monotonic() + limit_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise Failure(f"not within {limit_s:g} s: {what}")
        time.sleep(0.005)  # between two looks at the condition, not instead of one


_port_share = (0, 1)  # of those that carry out cases: which, and how many


def take_ports(place, count):
    """From now on free_port() names none that it names in another of `count` processes."""
    global _port_share  # pylint: disable=global-statement
    _port_share = (place, count)


def free_port():
    """A TCP port nobody listens on, below the range the kernel hands out to clients."""
    place, count = _port_share
    for _ in range(200):
        port = 20000 + int.from_bytes(os.urandom(2), "little") % (12000 // count) * count + place
        with socket.socket(socket.AF_INET6) as probe:
            try:
                probe.bind(("::", port))
                return port
            except OSError:
                continue
    raise Failure("no free TCP port")


def is_listening(port, pid="self"):
    """Whether any process in the network namespace of `pid` listens on this TCP port."""
    for table in ("tcp", "tcp6"):
        with open(f"/proc/{pid}/net/{table}", encoding="ascii") as f:
            next(f)
            for line in f:
                fields = line.split()
                if fields[3] == "0A" and int(fields[1].rsplit(":", 1)[1], 16) == port:
                    return True
    return False


def become_subreaper():
    """Orphans of a case (autostarted daemons) become our children, so that we can end them."""
    pr_set_child_subreaper = 36
    ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1, 0, 0, 0)


def take_default_signals():
    """Started in the background (nohup, some CI), signals come ignored; children must not do so."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def children():
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as f:
        return [int(pid) for pid in f.read().split()]


class Process:
    """A child with its output in files."""

    def __init__(self, case, argv, name, env, pass_fds=(), preexec=None, stdin=None):
        self.name = name
        self.argv = [str(a) for a in argv]
        self.out_path = case.dir / f"{name}.out"
        self.err_path = case.dir / f"{name}.err"
        with open(self.out_path, "wb") as out, open(self.err_path, "wb") as err:
            self.popen = subprocess.Popen(
                self.argv, stdout=out, stderr=err, stdin=stdin or subprocess.DEVNULL, env=env,
                pass_fds=pass_fds, preexec_fn=preexec, cwd=case.dir)

    pid = property(lambda self: self.popen.pid)
    out = property(lambda self: self.out_path.read_text(errors="replace"))
    err = property(lambda self: self.err_path.read_text(errors="replace"))

    def is_running(self):
        return self.popen.poll() is None

    def wait(self, limit_s):
        limit_s *= PATIENCE
        try:
            return self.popen.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise Failure(f"{self.name} still runs after {limit_s:g} s: {' '.join(self.argv)}")

    def expect_exit(self, limit_s, code=0):
        got = self.wait(limit_s)
        if got != code:
            raise Failure(f"{self.name} exited {got}, not {code}: {' '.join(self.argv)}\n"
                          f"{self.tail()}")
        return self

    def tail(self, lines=12):
        text = self.out.splitlines()[-lines:] + self.err.splitlines()[-lines:]
        return "\n".join("    | " + line for line in text)

    def wait_for_output(self, text, limit_s):
        def seen():
            check(text in self.out or self.is_running(),
                  f"{self.name} ended with {self.popen.poll()} before it said '{text}'\n"
                  f"{self.tail()}")
            return text in self.out
        wait_for(seen, limit_s, f"{self.name} says '{text}'")

    def kill(self, signum=signal.SIGKILL):
        if self.is_running():
            self.popen.send_signal(signum)


class Instance:
    """One daemon of its own, ready when the constructor returns. nics=None: `flags` name them."""

    def __init__(self, case, nics=2, flags=(), idle_exit_s=0, wrapper=()):
        if nics is not None:
            flags = [f"--nics={nics}", *(["--wire=1"] if case.is_wire else []), *flags]
        if case.net_io is not None:
            flags = [f"--net-io={case.net_io}", *flags]
        self.case = case
        self.directory = case.dir / f"i{len(case.instances)}"
        self.directory.mkdir(mode=0o700)
        ready, ready_writer = os.pipe()
        try:
            self.daemon = case.spawn(
                [*wrapper, STAGE / "bin" / "verbenad", f"--directory={self.directory}",
                 f"--idle-exit-s={idle_exit_s}", f"--ready-fd={ready_writer}", *flags],
                name=f"verbenad{len(case.instances)}", env=clean_environment(),
                pass_fds=[ready_writer])
        finally:
            os.close(ready_writer)
        case.instances.append(self)
        with os.fdopen(ready, "rb") as f:
            word = f.read(400)
        if case.net_io == "uring" and word[:1] == b"E" and b"io_uring" in word:
            raise NotHere(word[1:].decode(errors="replace").strip())
        check(word[:1] == b"R", f"the daemon did not start: {word!r}\n{self.daemon.tail()}")

    def env(self, **more):
        own = {"VERBENA_INSTANCE": str(self.directory), "VERBENA_AUTOSTART": "0",
               "LD_LIBRARY_PATH": str(STAGE / "lib")}
        if self.case.system_librdmacm:
            # As `verbena run --system-librdmacm` makes it.
            own |= {"LD_LIBRARY_PATH": str(STAGE / "lib" / "system-rdmacm"),
                    "LD_PRELOAD": str(STAGE / "lib" / "libverbena-ucm.so")}
        return clean_environment() | own | more

    def count_moved_bytes(self):
        try:
            dma = self.status()["dma"]
        except (OSError, ValueError, KeyError):
            return  # it is stopped, or about to end
        for name in _moved_bytes:
            _moved_bytes[name] += dma[f"{name}_bytes"]

    def admin(self, request, limit_s=5):
        """One request on the admin socket, the decoded reply."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
            s.settimeout(limit_s * PATIENCE)
            s.connect(str(self.directory / "sock"))
            s.send(ADMIN_HELLO.pack(ABI_MAGIC, ABI_VERSION, HELLO_ADMIN, 0, os.getpid(), 0, 0,
                                    b"tests"))
            s.send(json.dumps(request).encode())
            reply = b""
            while True:
                packet = s.recv(1 << 20)
                if not packet:
                    break
                reply += packet
        return json.loads(reply)

    def status(self):
        return self.admin({"op": "status"})

    def objects(self):
        """Counts of everything clients can own, sessions included."""
        status = self.status()
        counts = dict(status.get("objects", {}))
        counts["sessions"] = status["sessions"]
        return counts

    def fd_count(self):
        return len(os.listdir(f"/proc/{self.daemon.pid}/fd"))

    def rss_kb(self):
        with open(f"/proc/{self.daemon.pid}/status", encoding="ascii") as f:
            for line in f:
                if line.startswith("VmRSS:"):
                    return int(line.split()[1])
        return 0

    def cpu_seconds(self):
        with open(f"/proc/{self.daemon.pid}/stat", encoding="ascii") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def check_alive(self):
        check(self.daemon.is_running(),
              f"the daemon died with {self.daemon.popen.poll()}\n{self.daemon.tail()}")
        self.status()


_dma = {}  # what programs under test are told of backends
_moved_bytes = {"mapped": 0, "process": 0, "assisted": 0}


def force_dma(mode):
    """Of programs started from now on; None: as who says nothing."""
    _dma.clear()
    if mode is not None:
        _dma["VERBENA_DMA"] = mode


def moved_bytes():
    """Payload bytes by backend, of all instances that a case ended in order."""
    return _moved_bytes


def clean_environment():
    """The caller's environment without anything that would redirect the programs under test."""
    own = {k: v for k, v in os.environ.items() if not k.startswith(("VERBENA_", "LD_"))}
    return own | _dma


class Case:
    """What one case may use; made fresh for each."""

    def __init__(self, directory, spec=None):
        spec = spec or Spec("", None)
        self.dir = directory
        self.is_wire = spec.is_wire  # its instances' NICs talk packets, even to each other
        self.refuses_io_uring = spec.refuses_io_uring  # to everything it starts
        self.net_io = spec.net_io  # what drives its instances' sockets; None: the default
        self.system_librdmacm = spec.system_librdmacm  # programs use that one, and not ours
        self.instances = []
        self.notes = []
        self.processes = []

    def note(self, text):
        self.notes.append(text)

    def instance(self, **options):
        return Instance(self, **options)

    def spawn(self, argv, name=None, env=None, **options):
        name = name or f"p{len(self.processes)}"
        if self.refuses_io_uring:
            argv = [self.program("refuse_syscalls"), *argv]
        process = Process(self, argv, name, env if env is not None else clean_environment(),
                          **options)
        self.processes.append(process)
        return process

    def spawn_held(self, argv, **options):
        """A process that reads its input to the end, and the fd whose closing is that end."""
        reader, writer = os.pipe()
        process = self.spawn(argv, stdin=reader, **options)
        os.close(reader)
        return process, writer

    def run(self, argv, limit_s, code=0, **options):
        return self.spawn(argv, **options).expect_exit(limit_s, code)

    def program(self, name):
        path = PROGRAMS / name
        check(path.exists(), f"{path} is missing: run tests/build")
        return path

    def end_everything(self):
        """Ends what the case started. Text about daemons that did not end as they should, or ''."""
        wrong = []
        for instance in self.instances:
            if instance.daemon.is_running():
                instance.count_moved_bytes()
                instance.daemon.popen.send_signal(signal.SIGTERM)
        for instance in self.instances:
            daemon = instance.daemon
            try:
                code = daemon.popen.wait(DAEMON_END_LIMIT_S * PATIENCE)
                if code not in (0, -signal.SIGKILL):  # killed: by the case, on purpose
                    wrong.append(f"{daemon.name} ended with {code}\n{daemon.tail(40)}")
            except subprocess.TimeoutExpired:
                wrong.append(f"{daemon.name} did not end on SIGTERM")
        self.kill_children()
        return "\n".join(wrong)

    @staticmethod
    def kill_children():
        # What is left, orphans included, has become ours. Killed children may leave more orphans.
        for _ in range(50):
            left = children()
            if not left:
                break
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            for pid in left:
                try:
                    os.waitpid(pid, 0)
                except ChildProcessError:
                    pass


class Spec:
    """A named case of a part."""

    def __init__(self, name, function, limit_s=30, is_wire=False, refuses_io_uring=False,
                 net_io=None, system_librdmacm=False):
        self.name = name
        self.function = function
        self.limit_s = limit_s
        self.is_wire = is_wire
        self.refuses_io_uring = refuses_io_uring
        self.net_io = net_io
        self.system_librdmacm = system_librdmacm


def _on_alarm(signum, frame):
    raise TimeLimit()


def run_case(spec, directory):
    """Runs one case. Returns (passed, text, notes)."""
    directory.mkdir(parents=True)
    os.chmod(directory, 0o755)
    case = Case(directory, spec)
    signal.signal(signal.SIGALRM, _on_alarm)
    limit_s = spec.limit_s * PATIENCE
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    text = ""
    try:
        spec.function(case)
    except TimeLimit:
        text = f"time limit of {limit_s:g} s\n" + "".join(
            f"  {p.name}: {'running' if p.is_running() else p.popen.poll()}\n{p.tail(6)}\n"
            for p in case.processes)
    except NotHere as missing:
        case.note(f"not carried out: {missing}")
    except Failure as failure:
        text = str(failure)
    except Exception:  # a test that is itself broken must not end the run
        text = traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        text = "\n".join(filter(None, [text, case.end_everything()]))
    return (not text, text, case.notes)


def need_programs(*names):
    """Builds the test programs when one of these is missing."""
    if not all((PROGRAMS / name).exists() for name in names):
        subprocess.run([ROOT / "tests" / "build"], check=True, stdout=subprocess.DEVNULL)


def make_log_root():
    # Short: the path of a Unix socket has 107 bytes. Readable by the other users of the cli part.
    root = pathlib.Path(tempfile.mkdtemp(prefix="vt-"))
    os.chmod(root, 0o755)
    return root


def remove_tree(path):
    shutil.rmtree(path, ignore_errors=True)


def say(text):
    print(text, flush=True)


def fail_usage(text):
    print(text, file=sys.stderr)
    sys.exit(2)
