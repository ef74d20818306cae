"""The verbs API used directly. Feeds docs/verbs-support.md."""

from harness import REPORTS, Spec
from parts.gtests import run_gtest

PROGRAMS = ["objects_test", "access_test", "rc_test", "errors_test", "cq_test", "srq_test",
            "datagram_test", "domain_test", "extended_post_test", "invalidate_test", "helpers_test",
            "rereg_test", "dm_test", "sharing_test"]


def one(program):
    def case_function(case):
        report = None
        if not case.is_wire:  # the support table is about the API, once
            REPORTS.mkdir(parents=True, exist_ok=True)
            report = REPORTS / f"{program}.json"
            report.unlink(missing_ok=True)
        run_gtest(case, program, case.instance(), 170, report=report)
    return case_function


def cases(thorough):
    return [Spec(program, one(program), 180) for program in PROGRAMS]
