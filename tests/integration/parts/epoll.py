"""What goes over a network once more where io_uring is refused, as in a default container."""

import importlib

from harness import Spec, check


def nic_uses_epoll(case):
    networks = {nic["network"] for nic in case.instance().status()["nics"]}
    check(networks == {"udp, epoll"}, f"the NICs are on {networks}")


def cases(thorough):
    specs = [Spec("the NICs fall back to epoll", nic_uses_epoll, 30, True, True)]
    for part in ["wire", "lossy", *(["namespaces"] if thorough else [])]:
        for spec in importlib.import_module(f"parts.{part}").cases(thorough):
            specs.append(Spec(f"{part}: {spec.name}", spec.function, spec.limit_s, spec.is_wire,
                              refuses_io_uring=True))
    return specs
