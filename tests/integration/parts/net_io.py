"""What goes over a network once more by the other way to drive sockets, and where io_uring is refused.

The parts wire, lossy and namespaces themselves run by the default, which is epoll.
"""

import importlib
import json

from harness import STAGE, NotHere, Spec, check
from parts.cli import shared_env

VERBENA = STAGE / "bin" / "verbena"
# Where io_uring is refused a NIC does what it does by default, once it has started: without
# --thorough these are run to see that.
GATE_REFUSED = ("wire scripts, every story, IPv4", "rc_pingpong polling", "send_bw RC, two NICs", "ud_lat",
                "events,", "conformance, rc_test", "conformance, fds_test", "1 % loss, IPv4")
# Cases that start instances by the command line, which nobody tells to use io_uring; and one whose
# daemon is refused it.
WITHOUT_URING = {"up_run_down", "errors_are_clear", "demo_pair"}


def nics_use(kind):
    def case_function(case):
        networks = {nic["network"] for nic in case.instance().status()["nics"]}
        check(networks == {f"udp, {kind}"}, f"the NICs are on {networks}")
    return case_function


def uring_when_asked(case):
    """Where it can't be had, these cases are not carried out; so doctor must say so, too."""
    try:
        nics_use("io_uring")(case)
    except NotHere as why:
        findings = json.loads(case.run([VERBENA, "doctor", "--json"], 20).out)["findings"]
        check(any(f["id"] == "io_uring" and f["verdict"] != "ok" for f in findings),
              f"doctor finds an io_uring to use here, but the NIC says: {why}")
        raise


def refusal_is_explained(case):
    """Who asks for io_uring and can't have it gets no instance, and is told what to do."""
    def refused(arguments, code):
        process = case.spawn([VERBENA, *arguments], env=shared_env(case))
        check(process.wait(15) == code, f"{arguments} ended with {process.popen.returncode}")
        for word in ("io_uring is refused here", "use net-io=epoll"):
            check(word in process.err, f"{arguments}: '{word}' is not said: {process.err}")
    wire = ["--private", "--wire"]
    refused(["run", *wire, "--set", "net-io=uring", "--", "true"], 125)
    refused(["up", "--nic", "ip=127.0.0.1", "--set", "net-io=uring"], 1)
    for arguments in ([], ["--set", "net-io=epoll"]):
        case.run([VERBENA, "run", *wire, *arguments, "--", "true"], 20)


def cases(thorough):
    parts = ["wire", "lossy", *(["namespaces"] if thorough else [])]
    specs = [
        Spec("epoll is the default", nics_use("epoll"), is_wire=True),
        Spec("the NICs use io_uring when asked", uring_when_asked, is_wire=True, net_io="uring"),
        Spec("io_uring refused: epoll is the default", nics_use("epoll"), is_wire=True,
             refuses_io_uring=True),
        Spec("io_uring refused: asked for, it is explained", refusal_is_explained,
             refuses_io_uring=True),
    ]
    for name, options in (("net-io=uring", {"net_io": "uring"}),
                          ("io_uring refused", {"refuses_io_uring": True})):
        for part in parts:
            for spec in importlib.import_module(f"parts.{part}").cases(thorough):
                if "net_io" in options and spec.function.__name__ in WITHOUT_URING:
                    continue
                if (name == "io_uring refused" and not thorough and
                        not any(words in f"{part}: {spec.name}" for words in GATE_REFUSED)):
                    continue
                specs.append(Spec(f"{name}, {part}: {spec.name}", spec.function, spec.limit_s,
                                  spec.is_wire, **options))
    return specs
