"""A network of its own for guests and host programs: one namespace, one bridge, a tap per guest.

The namespace has no name: it lives as long as its holder process, which ends with us however we
end, so that nothing is left behind and any number of networks exist side by side. Without root it
is made inside a user namespace, where the kernel allows that.
"""

import os
import signal
import subprocess

from jobs import Failure, poll_until

BRIDGE = "vb0"
MTU_1024, MTU_4096 = 1500, 4200  # interface MTUs that give path MTU 1024 and 4096
HOST_INDEX = 1
# A guest that is not scheduled for a while must not lose packets; losses are made on purpose.
QUEUE_PACKETS = 10000
# Generous: a machine that builds at the same time is slow.
SET_UP_LIMIT_S = 60
END_LIMIT_S = 5


class NoNetwork(Exception):
    """The network can't be made on this machine; the text says why."""


def ipv4(index):
    return f"10.77.0.{index}"


def ipv6(index):
    return f"fd77::{index:x}"


def mac(index):
    return f"52:54:00:76:00:{index:02x}"


def link_local(index):
    """The address made of mac(index) by EUI-64."""
    return f"fe80::5054:ff:fe76:{index:x}"


class Network:
    """Use as a context; prefix is what puts a command into the namespace."""

    def __init__(self, mtu=MTU_1024):
        self.mtu = mtu
        self.taps = {}
        unshare = ["unshare", "--net", "--mount"]
        enter = ["--net", "--mount"]
        if os.geteuid() != 0:
            unshare += ["--user", "--map-root-user"]
            enter += ["--user", "--preserve-credentials"]
        if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
            raise NoNetwork("/dev/net/tun is missing or may not be opened: no tap devices")
        # /sys shows the interfaces of the namespace that mounted it.
        script = "mount -t sysfs sysfs /sys && echo up && exec cat"
        self._holder = subprocess.Popen(
            [*unshare, "--", "sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, start_new_session=True)
        if self._holder.stdout.readline() != b"up\n":
            self._holder.wait()
            text = self._holder.stderr.read().decode(errors="replace").strip()
            raise NoNetwork(f"no network namespace: {text} (needs root, or user namespaces)")
        # --root: a mount namespace's own root is not ours where we are in a chroot.
        self.prefix = ["nsenter", f"--target={self._holder.pid}", *enter, "--root",
                       f"--wd={os.getcwd()}", "--"]
        try:
            self._configure()
        except BaseException:
            self.close()
            raise

    def _configure(self):
        self.ip("link", "set", "lo", "up")
        self.ip("link", "add", BRIDGE, "address", mac(HOST_INDEX), "type", "bridge",
                "forward_delay", "0", "mcast_snooping", "0")
        self.run("sh", "-c", f"echo 0 >/proc/sys/net/ipv6/conf/{BRIDGE}/accept_dad")
        self.ip("link", "set", BRIDGE, "mtu", str(self.mtu), "up")
        self.ip("addr", "add", f"{ipv4(HOST_INDEX)}/24", "dev", BRIDGE)
        self.ip("addr", "add", f"{ipv6(HOST_INDEX)}/64", "dev", BRIDGE, "nodad")

    def run(self, *argv):
        done = subprocess.run([*self.prefix, *argv], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False,
                              timeout=SET_UP_LIMIT_S)
        if done.returncode:
            raise NoNetwork(f"{' '.join(argv)}: {done.stderr.decode(errors='replace').strip()}")
        return done.stdout.decode()

    def ip(self, *argv):
        return self.run("ip", *argv)

    def add_tap(self, index):
        """A tap on the bridge for the guest with this index. Returns its name."""
        name = f"vbt{index}"
        if name not in self.taps.values():
            self.ip("tuntap", "add", "dev", name, "mode", "tap")
            self.ip("link", "set", name, "mtu", str(self.mtu), "txqueuelen", str(QUEUE_PACKETS),
                    "master", BRIDGE, "up")
            self.taps[index] = name
        return name

    def set_mtu(self, mtu):
        self.mtu = mtu
        for name in [*self.taps.values(), BRIDGE]:
            self.ip("link", "set", name, "mtu", str(mtu))

    def processes(self):
        """Who lives in this namespace, the holder apart: things that we started, all of them."""
        def namespace(pid):
            try:
                return os.stat(f"/proc/{pid}/ns/net").st_ino
            except OSError:
                return None
        ours = namespace(self._holder.pid)
        return [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and ours is not None and
                int(pid) != self._holder.pid and namespace(pid) == ours]

    def close(self):
        # A daemon that was started by a test and left behind would keep the namespace.
        for signum in (signal.SIGTERM, signal.SIGKILL):
            for pid in self.processes():
                try:
                    os.kill(pid, signum)
                except ProcessLookupError:
                    pass
            try:
                poll_until(lambda: not self.processes(), END_LIMIT_S, "the namespace is empty")
                break
            except Failure:
                continue
        self._holder.stdin.close()
        try:
            self._holder.wait(SET_UP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._holder.kill()
            self._holder.wait()
        self._holder.stdout.close()
        self._holder.stderr.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()
