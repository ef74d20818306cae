#!/usr/bin/python3
"""A QEMU guest (TCG, no KVM) whose kernel has rdma_rxe, on a network of its own.

    guest.py image [--rebuild]              makes the image, or says where it is
    guest.py run [--mtu N] [--guests N] -- COMMAND...
                                            runs COMMAND in the first guest, with its exit code
    guest.py host [--mtu N] [--guests N] -- COMMAND...
                                            runs COMMAND here, beside the guests' network

Guest 0 is 10.77.0.10 and fd77::a, guest 1 is 10.77.0.11 and fd77::b; the host's end is 10.77.0.1
and fd77::1, on the bridge vb0. Prints "skipped: ..." and exits 77 where guests can't be had.
"""

import argparse
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import threading

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))

import image  # noqa: E402
import network  # noqa: E402
from guest_agent import LENGTHS, PORT_NAME  # noqa: E402
from image import Unavailable  # noqa: E402
from jobs import Failure, Job, LocalJob, poll_until  # noqa: E402

QEMU = "qemu-system-x86_64"
FIRST_INDEX = 10
MEMORY_MB = 1024
# For a machine with ten other things to do; a quiet one takes 5 s.
BOOT_LIMIT_S = 180
REQUEST_LIMIT_S = 60
EXIT_SKIPPED = 77
DEVICE = "rxe0"


def need_packages(say):
    """What a guest is made of. Raises Unavailable; afterwards, one that does not start is a failure."""
    image.need_tools(QEMU, "ip", "setpriv", "unshare", "nsenter")
    return image.ensure(say=say)


class GuestJob(Job):
    """A command in the guest."""

    def __init__(self, guest, number, argv):
        super().__init__(guest.name, argv)
        self._guest = guest
        self._number = number
        self.body = b""

    def kill(self, signum=9):
        self._guest.send({"op": "kill", "target": self._number, "signal": int(signum)})

    def give_up(self):
        # The agent or the kernel no longer answers: nothing more can be learnt from this guest.
        self._guest.destroy(f"did not end a command on SIGKILL: {' '.join(self.argv)}")


class Guest:
    """Boots when made (with wait=False, usable after wait_ready()); is_alive(): still usable."""

    def __init__(self, net, number=0, memory_mb=MEMORY_MB, cpus=1, log_dir=None, wait=True):
        self.net = net
        self.index = FIRST_INDEX + number
        self.name = f"guest{number}"
        self.ipv4, self.ipv6 = network.ipv4(self.index), network.ipv6(self.index)
        self.link_local = network.link_local(self.index)
        self._jobs, self._next, self._lock = {}, 1, threading.Lock()
        self._dead = None
        self._directory = pathlib.Path(tempfile.mkdtemp(prefix="vbg-"))
        self.console_path = pathlib.Path(log_dir or self._directory) / f"{self.name}.console"
        self._ready = GuestJob(self, 0, ["boot"])
        self._jobs[0] = self._ready
        try:
            self._start(memory_mb, cpus)
            if wait:
                self.wait_ready()
        except BaseException:
            self.close()
            raise

    def _start(self, memory_mb, cpus):
        files = need_packages(say=lambda text: print(text, file=sys.stderr))
        tap = self.net.add_tap(self.index)
        path = str(self._directory / "agent")
        with socket.socket(socket.AF_UNIX) as listener:
            # We listen and QEMU connects: it does so before it runs the guest.
            listener.bind(path)
            listener.listen(1)
            listener.settimeout(BOOT_LIMIT_S)
            self._log = open(self._directory / "qemu.log", "wb")
            self._qemu = subprocess.Popen(
                # However we end, the guest ends with us.
                [*self.net.prefix, "setpriv", "--pdeathsig=KILL", QEMU, "-nodefaults",
                 "-no-user-config", "-display", "none", "-no-reboot",
                 "-machine", "q35,accel=tcg", "-cpu", "max", "-smp", str(cpus),
                 "-m", str(memory_mb), "-kernel", str(files.kernel),
                 "-initrd", str(files.initramfs), "-append",
                 # An oops or a panic ends QEMU, and so the test, at once. A busy host must not
                 # make the kernel give up the TSC for a clock that is slow to emulate, nor mistrust
                 # a timer whose ticks came late.
                 "console=ttyS0 loglevel=5 panic=-1 oops=panic mitigations=off tsc=reliable "
                 "no_timer_check rdinit=/init",
                 "-serial", f"file:{self.console_path}",
                 "-netdev", f"tap,id=n0,ifname={tap},script=no,downscript=no",
                 # event_idx=off: with it a notification is lost now and then under TCG (QEMU 7.2),
                 # and the guest hears no packet any more; with two rxe's as with one.
                 "-device", "virtio-net-pci,netdev=n0,mq=off,event_idx=off,rx_queue_size=1024,"
                 f"mac={network.mac(self.index)}",
                 "-device", "virtio-rng-pci", "-device", "virtio-serial-pci",
                 "-chardev", f"socket,id=c0,path={path}",
                 "-device", f"virtserialport,chardev=c0,name={PORT_NAME}"],
                stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT,
                start_new_session=True)
            listener.settimeout(0.2)
            self._socket = poll_until(lambda: self._accept(listener), 30, "QEMU starts")
        threading.Thread(target=self._read, daemon=True).start()

    def _accept(self, listener):
        if self._qemu.poll() is not None:
            text = (self._directory / "qemu.log").read_text(errors="replace").strip()
            raise Failure(f"{QEMU} does not start: {text}")
        try:
            return listener.accept()[0]
        except TimeoutError:
            return None

    def wait_ready(self):
        self._ready.expect(BOOT_LIMIT_S)
        self.sh("ip link set eth0 up && "
                f"ip addr add {self.ipv4}/24 dev eth0 && ip addr add {self.ipv6}/64 dev eth0 nodad"
                " && modprobe rdma_rxe && modprobe ib_uverbs && modprobe rdma_ucm")
        self.set_mtu(self.net.mtu)
        self.reach(network.HOST_INDEX)

    def reach(self, index):
        """Waits for the neighbour with this index: rxe refuses to connect while ND is at work."""
        for address in (network.ipv4(index), network.ipv6(index),
                        network.link_local(index) + "%eth0"):
            self.sh(f"for i in 1 2 3 4 5 6 7 8 9 10; do ping -qc 1 -W 1 {address} >/dev/null && "
                    f"exit 0; done; echo no way to {address}; exit 1")

    def set_mtu(self, mtu):
        """Gives eth0 this MTU and makes the rxe device anew: it takes its own MTU from there."""
        self.sh(f"if rdma link show {DEVICE}/1 >/dev/null 2>&1; then rdma link del {DEVICE}; fi; "
                f"ip link set eth0 mtu {mtu} && rdma link add {DEVICE} type rxe netdev eth0")
        # The GID table is filled by a worker of the kernel's.
        poll_until(lambda: self.gid_count() >= 3, 20, f"{DEVICE} has its GIDs")

    def gid_count(self):
        text = self.sh(f"cat /sys/class/infiniband/{DEVICE}/ports/1/gids/* 2>/dev/null | "
                       "grep -v '^0000:0000:0000:0000:0000:0000:0000:0000$' || :").out
        return len(text.split())

    # --- the agent ---------------------------------------------------------------------------

    def _read(self):
        try:
            with self._socket.makefile("rb") as stream:
                while True:
                    head_bytes, body_bytes = LENGTHS.unpack(stream.read(LENGTHS.size))
                    header = json.loads(stream.read(head_bytes))
                    self._handle(header, stream.read(body_bytes))
        except Exception as problem:  # whatever it is, nobody may wait for ever
            self._die(f"the guest is gone ({type(problem).__name__}); its console ends:\n"
                      f"{self.console_tail()}")

    def _handle(self, header, body):
        operation = header["op"]
        with self._lock:
            job = self._jobs.get(header.get("id", 0))
            if operation != "out":
                self._jobs.pop(header.get("id", 0), None)
        if job is None:
            return
        if operation == "out":
            job._take(header["stream"], body)
        elif operation == "exit":
            job._end(header["code"])
        elif operation == "error":
            job._end(None, header["text"])
        else:  # ready, done
            job.body = body
            job._end(0)

    def _die(self, why):
        with self._lock:
            self._dead = self._dead or why
            jobs = list(self._jobs.values())
            self._jobs.clear()
        for job in jobs:
            job._end(None, self._dead)

    def send(self, header, body=b""):
        text = json.dumps(header).encode()
        try:
            with self._lock:
                self._socket.sendall(LENGTHS.pack(len(text), len(body)) + text + body)
        except OSError:
            self._die(f"the guest is gone; its console ends:\n{self.console_tail()}")

    def _request(self, header, body=b"", argv=()):
        with self._lock:
            number, self._next = self._next, self._next + 1
            job = GuestJob(self, number, argv or [header["op"], header.get("path", "")])
            if self._dead is None:
                self._jobs[number] = job
        if self._dead is not None:
            job._end(None, self._dead)
        else:
            self.send({"id": number, **header}, body)
        return job

    def spawn(self, argv, env=None):
        """Starts a command. Returns its Job."""
        argv = [str(a) for a in argv]
        return self._request({"op": "run", "argv": argv, "env": env or {}}, argv=argv)

    def run(self, argv, limit_s=REQUEST_LIMIT_S, code=0):
        return self.spawn(argv).expect(limit_s, code)

    def sh(self, script, limit_s=REQUEST_LIMIT_S, code=0):
        return self.run(["bash", "-c", script], limit_s, code)

    def put(self, path, data, mode=0o644):
        self._request({"op": "put", "path": str(path), "mode": mode}, data).expect(REQUEST_LIMIT_S)

    def get(self, path):
        return self._request({"op": "get", "path": str(path)}).expect(REQUEST_LIMIT_S).body

    # --- life ----------------------------------------------------------------------------------

    def console(self):
        try:
            return self.console_path.read_text(errors="replace")
        except OSError:
            return ""

    def console_tail(self, lines=15):
        return "\n".join("  # " + line for line in self.console().splitlines()[-lines:])

    def is_alive(self):
        return self._dead is None and self._qemu.poll() is None

    def destroy(self, why="ended"):
        self._die(why)
        qemu = getattr(self, "_qemu", None)
        if qemu and qemu.poll() is None:
            qemu.kill()
        if qemu:
            qemu.wait()

    def close(self):
        self.destroy()
        for name in ("_socket", "_log"):
            if hasattr(self, name):
                getattr(self, name).close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["image", "run", "host"])
    parser.add_argument("--rebuild", action="store_true")
    parser.add_argument("--mtu", type=int, default=network.MTU_1024)
    parser.add_argument("--guests", type=int, default=1)
    parser.add_argument("--limit-s", type=float, default=3600)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    arguments.command = [a for i, a in enumerate(arguments.command) if i or a != "--"]
    if arguments.what != "image" and not arguments.command:
        parser.error("no command")
    return arguments


def run_command(arguments):
    with network.Network(arguments.mtu) as net:
        guests = []
        try:
            for number in range(arguments.guests):
                guests.append(Guest(net, number))
            if arguments.what == "run":
                job = guests[0].spawn(arguments.command)
            else:
                job = LocalJob([*net.prefix, *arguments.command])
            code = job.wait(arguments.limit_s)
            sys.stdout.write(job.out)
            sys.stderr.write(job.err)
            return code
        finally:
            for guest in guests:
                guest.close()


def main():
    arguments = parse_arguments()
    try:
        if arguments.what == "image":
            files = image.ensure(arguments.rebuild, say=print)
            print(f"{files.directory} (Linux {files.kernel_release})")
            return 0
        return run_command(arguments)
    except Unavailable as why:
        print(f"skipped: {why}")
        return EXIT_SKIPPED
    except (Failure, network.NoNetwork) as failure:
        print(failure, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
