"""Waiting as programs do it: epoll, last-byte polling, and forks in the middle of it."""

from harness import STAGE, Spec, check, wait_for
from parts.gtests import run_gtest

VERBENA = STAGE / "bin" / "verbena"
# Of `verbena event`: the number of each, and whom it is about. docs/events.md has them all.
REQUESTED = {
    "cq_err": (0, "cq"), "qp_fatal": (1, "qp"), "qp_req_err": (2, "qp"), "qp_access_err": (3, "qp"),
    "comm_est": (4, "qp"), "sq_drained": (5, "qp"), "path_mig": (6, "qp"),
    "path_mig_err": (7, "qp"), "device_fatal": (8, "port"), "port_active": (9, "port"),
    "port_err": (10, "port"), "lid_change": (11, "port"), "pkey_change": (12, "port"),
    "sm_change": (13, "port"), "srq_err": (14, "srq"), "srq_limit_reached": (15, "srq"),
    "qp_last_wqe_reached": (16, "qp"), "client_reregister": (17, "port"),
    "gid_change": (18, "port"), "device_speed_change": (20, "port"),
}


def one(test_filter):
    def case_function(case):
        run_gtest(case, "process_test", case.instance(), 90, test_filter)
    return case_function


def requested(case):
    """Each event that `verbena event` knows reaches a program, about the object named."""
    instance = case.instance()
    listener = case.spawn([case.program("event_listener")], env=instance.env())
    listener.wait_for_output("ready", 15)
    qp, srq = (instance.admin({"op": "show", "kind": kind})["rows"][0] for kind in ("qp", "srq"))
    qpn = qp["qpn"]
    options = {"port": [], "qp": ["--qpn", qpn], "srq": ["--srqn", srq["srqn"]],
               "cq": ["--cq", f"{qp['session']}/{qp['send_cq']}"]}
    expected = ""
    for name, (number, kind) in REQUESTED.items():
        told = case.run([VERBENA, "event", "--nic", "verbena0", *options[kind], name], 10,
                        env=instance.env())
        check(told.out == "Told 1 open device.\n", f"{name}: {told.out}")
        expected += f"event {number} {kind}\n"
        wait_for(lambda: listener.out.endswith(expected), 10, f"{name} arrives")
    for wrong in (["nonsense"], ["path_mig"], ["--qpn", qpn, "port_err"],
                  ["--qpn", "4711", "path_mig"], ["--nic", "eth0", "port_err"]):
        refused = case.run([VERBENA, "event", "--nic", "verbena0", *wrong], 10, code=1,
                           env=instance.env())
        check(refused.err.startswith("verbena: "), f"{wrong}: {refused.err}")
    check(listener.out.endswith(expected), "an event nobody asked for")
    instance.check_alive()


def cases(thorough):
    return [
        Spec("each event on request", requested, 60),
        Spec("edge-triggered epoll on the channel", one("Process_Events.EdgeTriggered*"), 100),
        Spec("polling the last byte of a WRITE", one("Process_Events.LastByte*"), 100),
        Spec("blocking ibv_get_cq_event", one("Process_Events.Blocking*"), 100),
        Spec("fork and fork+exec beside traffic", one("Process_Fork.*"), 100),
    ]
