"""Where programs run: beside one instance, or on two hosts that share a network.

A host is a network namespace, as a rule with a daemon of its own; a namespace lives as long as a
process that holds it, so that nothing is left when a case ends.
"""

import os
import pathlib
import subprocess

from harness import Failure, Instance, NotHere, check, is_listening, wait_for

INTERFACE = "roce0"
DEVICES = ("verbena0", "verbena1")
MILLION = 1_000_000
ADDRESSES = (("10.77.0.1", "fd77::1"), ("10.77.0.2", "fd77::2"))
# GIDs of a NIC on both addresses of a host.
LINK_LOCAL, IPV4, IPV6 = 0, 1, 2


class Host:
    """An instance, and the way to where its programs run."""

    def __init__(self, instance, address="127.0.0.1", namespace=None):
        self.instance, self.address, self.namespace = instance, address, namespace

    def argv(self, argv):
        return self.namespace.enter(argv) if self.namespace else argv

    def spawn(self, case, argv, **options):
        return case.spawn(self.argv(argv), env=self.instance.env(), **options)

    def run(self, case, argv, limit_s, code=0, **options):
        return self.spawn(case, argv, **options).expect_exit(limit_s, code)

    def is_listening(self, port):
        return is_listening(port, self.namespace.pid if self.namespace else "self")


class Pair:
    """The hosts of a server and of a client, and the NICs and the GID index they use."""

    def __init__(self, server, client, gid_index=1, devices=DEVICES):
        self.server, self.client = server, client
        self.gid_index, self.devices = gid_index, devices

    @classmethod
    def beside(cls, instance):
        return cls(Host(instance), Host(instance))


class Namespace:
    """A network namespace, up to its loopback interface."""

    def __init__(self, case, name):
        self.case = case
        if os.geteuid() != 0:
            raise NotHere("network namespaces and interfaces are for root")
        own = os.readlink("/proc/self/ns/net")
        self.holder = case.spawn(["unshare", "--net", "sleep", "infinity"], name=f"namespace-{name}")
        self.pid = self.holder.pid

        def made():
            if not self.holder.is_running():
                raise NotHere(f"no network namespace can be had: {self.holder.err.strip()}")
            return os.readlink(f"/proc/{self.pid}/ns/net") != own

        wait_for(made, 10, "the namespace is there")
        # Nobody else is on these networks, so addresses need not wait to be found unique.
        self.do("sh", "-c", "echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad; "
                            "echo 0 > /proc/sys/net/ipv6/conf/default/dad_transmits")
        self.do("ip", "link", "set", "lo", "up")

    def enter(self, argv):
        return ["nsenter", f"--net=/proc/{self.pid}/ns/net", "--", *argv]

    def do(self, *argv):
        """A short command that must succeed; what it printed."""
        done = subprocess.run(self.enter(argv), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Failure(f"{' '.join(argv)}: {done.stderr.strip()}")
        return done.stdout

    def configure(self, addresses, mtu):
        self.do("ip", "link", "set", INTERFACE, "mtu", str(mtu))
        for address in addresses:
            self.do("ip", "address", "add", address + ("/64" if ":" in address else "/24"), "dev",
                    INTERFACE)
        self.do("ip", "link", "set", INTERFACE, "up")

    def await_interface(self):
        """Its addresses can be used, the link-local one included."""
        def usable():
            shown = self.do("ip", "-6", "address", "show", "dev", INTERFACE)
            return "fe80::" in shown and "tentative" not in shown
        wait_for(usable, 10, f"{INTERFACE} has its link-local address")

    def nic(self, addresses, has_default_sockets=False):
        """An instance with one NIC on these addresses.

        `has_default_sockets`: as without privileges, of the size that net.core.rmem_max allows.
        """
        wrapper = ["setpriv", "--bounding-set=-net_admin"] if has_default_sockets else []
        instance = Instance(self.case, nics=None, flags=[f"--nic={nic_spec(addresses)}"],
                            wrapper=self.enter(wrapper))
        return Host(instance, addresses[0], self)


def join(left, right, mtu):
    """A cable (veth) between two namespaces, with the addresses of ADDRESSES at its ends."""
    made = subprocess.run(["ip", "link", "add", INTERFACE, "netns", str(left.pid), "type", "veth",
                           "peer", "name", INTERFACE, "netns", str(right.pid)],
                          capture_output=True, text=True, check=False)
    if made.returncode != 0:
        raise NotHere(f"no veth can be had: {made.stderr.strip()}")
    for namespace, addresses in zip((left, right), ADDRESSES):
        namespace.configure(addresses, mtu)
    for namespace in (left, right):
        namespace.await_interface()


def two_hosts(case, mtu, gid_index=IPV4, **options):
    """Two hosts on a cable with a daemon each."""
    left, right = Namespace(case, "left"), Namespace(case, "right")
    join(left, right, mtu)
    return pair_on(left, right, gid_index, **options)


def one_daemon(case, mtu, is_wire=False, gid_index=IPV4):
    """Two hosts on a cable, and one daemon, outside of both, with a NIC in each: verbena0 and verbena1.

    `is_wire`: what goes from one to the other takes the cable.
    """
    namespaces = Namespace(case, "left"), Namespace(case, "right")
    join(*namespaces, mtu)
    flags = [f"--nic={nic_spec(addresses)},netns=/proc/{namespace.pid}/ns/net"
             for namespace, addresses in zip(namespaces, ADDRESSES)]
    instance = Instance(case, nics=None, flags=flags + (["--wire=1"] if is_wire else []))
    hosts = [Host(instance, addresses[0], namespace)
             for namespace, addresses in zip(namespaces, ADDRESSES)]
    return Pair(*hosts, gid_index, DEVICES)


def nic_spec(addresses):
    return ",".join(f"ip={address}" for address in addresses)


def pair_on(left, right, gid_index=IPV4, **options):
    """`options`: of Namespace.nic."""
    server, client = left.nic(ADDRESSES[0], **options), right.nic(ADDRESSES[1], **options)
    return Pair(server, client, gid_index, (DEVICES[0], DEVICES[0]))


class LossyLink:
    """Two hosts on a cable that loses, doubles, reorders and delays; `mtu` as of a veth.

    It is a process between two TAP interfaces: kernels without sch_netem have those, too. Its faults
    hit RoCE packets only, and its seed makes the choices, not the moments.
    """

    def __init__(self, case, left, right, mtu, **faults):
        self.case = case
        seed = int.from_bytes(os.urandom(4), "little")
        case.note(f"seed of the cable: {seed}")
        device = pathlib.Path("/dev/net/tun")
        if not device.exists():
            raise NotHere(f"{device} is missing: no TAP interfaces in this kernel")
        words = [f"{name}={value}" for name, value in faults.items()]
        self.process, self.commands = case.spawn_held(
            [case.program("lossy_link"), INTERFACE, str(left.pid), str(right.pid), str(seed),
             *words], name="link")
        self.process.wait_for_output("ready", 10)
        for namespace, addresses in zip((left, right), ADDRESSES):
            namespace.configure(addresses, mtu)
        for namespace in (left, right):
            namespace.await_interface()

    def change(self, **faults):
        text = " ".join(f"{name}={value}" for name, value in faults.items())
        before = self.process.out.count("changed")
        os.write(self.commands, text.encode() + b"\n")
        wait_for(lambda: self.process.out.count("changed") > before, 10, "the link has changed")

    def end(self, **faults):
        """Ends it. Notes what it did; faults that should have come many times must have come."""
        os.close(self.commands)
        self.process.expect_exit(10)
        last = self.process.out.splitlines()[-1]
        self.case.note(f"the cable: {last}")
        done = {name: int(value) for name, value in (word.split("=") for word in last.split())}
        for name, ppm in faults.items():
            check(done[name] > 0 or ppm * done["packets"] < 20 * MILLION,
                  f"the cable never did this: {name} ({last})")


