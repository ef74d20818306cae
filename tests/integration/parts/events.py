"""Waiting as programs do it: epoll, last-byte polling, and forks in the middle of it."""

from harness import Spec
from parts.gtests import run_gtest


def one(test_filter):
    def case_function(case):
        run_gtest(case, "process_test", case.instance(), 90, test_filter)
    return case_function


def cases(thorough):
    return [
        Spec("edge-triggered epoll on the channel", one("Process_Events.EdgeTriggered*"), 100),
        Spec("polling the last byte of a WRITE", one("Process_Events.LastByte*"), 100),
        Spec("blocking ibv_get_cq_event", one("Process_Events.Blocking*"), 100),
        Spec("fork and fork+exec beside traffic", one("Process_Fork.*"), 100),
    ]
