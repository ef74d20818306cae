"""The verbs API used directly. Feeds docs/verbs-support.md."""

from harness import REPORTS, Spec, check
from parts.gtests import run_gtest

PROGRAMS = ["objects_test", "access_test", "rc_test", "errors_test", "cq_test", "srq_test",
            "datagram_test", "domain_test", "allocator_test", "extended_post_test",
            "invalidate_test", "helpers_test", "cq_moderation_test", "query_qp_test",
            "atomic_write_test", "cq_ex_test", "extended_services_test", "qp_extras_test",
            "events_test", "mw_test", "mw_type2_test",
            "rereg_test", "dm_test", "sharing_test", "mr_ex_test", "v64_suite_test", "flush_test"]


def one(program):
    def case_function(case):
        report = None
        if not case.is_wire:  # the support table is about the API, once
            REPORTS.mkdir(parents=True, exist_ok=True)
            report = REPORTS / f"{program}.json"
            report.unlink(missing_ok=True)
        instance = case.instance()
        run_gtest(case, program, instance, 170, report=report)
        # Queues of thread domains ring in pages of their own, and no others do.
        rings = instance.status()["engine"]["thread_rings"]
        check((rings > 0) == (program == "domain_test"), f"{rings} rings of thread domains")
    return case_function


def cases(thorough):
    return [Spec(program, one(program), 180) for program in PROGRAMS]
