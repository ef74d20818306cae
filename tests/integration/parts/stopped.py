"""A stopped process is still written to: progress does not need the application's threads."""

from harness import Spec
from parts.gtests import run_gtest


def stopped(case):
    run_gtest(case, "process_test", case.instance(), 60, "Process_Stopped.*")


def cases(thorough):
    return [Spec("WRITE, READ, SEND and atomics reach a process under SIGSTOP", stopped, 70)]
