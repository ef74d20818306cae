"""Wire scripts (tests/wire_scripts) by real packets: the subject is on a NIC of an instance, the
player on a plain UDP socket."""

import os

from harness import PYTHON, ROOT, Spec, check, clean_environment, free_port, wait_for
from hosts import ADDRESSES, DEVICES, IPV4, IPV6, Host, Namespace, join

SCRIPTS = ROOT / "tests" / "wire_scripts"
START_LIMIT_S = 20
LIMIT_S = 60


def play(case, host, gid_index, remote, local, enter=()):
    port = free_port()
    subject = host.spawn(case, [PYTHON, SCRIPTS / "subject.py", "--device", DEVICES[0],
                                "--gid-index", str(gid_index), "--port", str(port)],
                         name="subject")

    def listens():
        check(subject.is_running(), f"the subject ended\n{subject.tail()}")
        return host.is_listening(port)

    wait_for(listens, START_LIMIT_S, "the subject listens")
    player = case.spawn([*enter, case.program("wire_player"), "--local", local, "--remote", remote,
                         "--subject", f"{host.address}:{port}",
                         *sorted((SCRIPTS / "scripts").glob("*.wire"))],
                        name="player", env=clean_environment())
    code = player.wait(LIMIT_S)
    check(code == 0, f"exited {code}\n{player.out}{player.err}{subject.tail()}")
    case.note(player.out.splitlines()[-1])


def on_loopback(case):
    """An address of the player's own, beside those of 127.64.0.0/10 that NICs take."""
    instance = case.instance()
    nic = instance.status()["nics"][0]
    local = f"127.32.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"
    play(case, Host(instance), IPV4, nic["ipv4"], local)


def over_ipv6(case):
    """::1 is one address, and both ends need one: two hosts, of which one is the player's."""
    left, right = Namespace(case, "left"), Namespace(case, "right")
    join(left, right, 1500)
    play(case, left.nic(ADDRESSES[0]), IPV6, ADDRESSES[0][1], ADDRESSES[1][1], right.enter([]))


def cases():
    return [
        Spec("wire scripts, every story, IPv4", on_loopback, LIMIT_S, is_wire=True),
        Spec("wire scripts, every story, IPv6", over_ipv6, LIMIT_S, is_wire=True),
    ]
