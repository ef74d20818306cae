"""The verbs API used directly: semantics, errors, exact completions. Feeds docs/verbs-support.md."""

import os
import pathlib

from harness import ROOT, Spec
from parts.gtests import run_gtest

PROGRAMS = ["objects_test", "access_test", "rc_test", "errors_test", "cq_test", "srq_test",
            "datagram_test", "extended_post_test"]
# tests/support_table reads these.
REPORTS = pathlib.Path(os.environ.get("VERBENA_TEST_REPORTS", ROOT / "out" / "test-reports"))


def one(program):
    def case_function(case):
        REPORTS.mkdir(parents=True, exist_ok=True)
        report = REPORTS / f"{program}.json"
        report.unlink(missing_ok=True)
        run_gtest(case, program, case.instance(), 170, report=report)
    return case_function


def cases(thorough):
    return [Spec(program, one(program), 180) for program in PROGRAMS]
