"""The verbs API used directly. Feeds docs/verbs-support.md."""

from harness import REPORTS, Spec, check
from parts.gtests import run_gtest

PROGRAMS = ["objects_test", "access_test", "rc_test", "errors_test", "cq_test", "srq_test",
            "datagram_test", "domain_test", "allocator_test", "extended_post_test",
            "invalidate_test", "helpers_test", "cq_moderation_test", "query_qp_test",
            "atomic_write_test", "cq_ex_test", "extended_services_test", "qp_extras_test",
            "events_test", "mw_test", "mw_type2_test",
            "rereg_test", "dm_test", "sharing_test", "mr_ex_test", "v64_suite_test",
            "flush_test", "ece_test", "error_posting_test",
            "error_attributes_test", "error_objects_test", "error_isolation_test",
            "error_domains_test", "error_limits_test", "fds_test",
            "memory_test"]


# The same of rdma_cm. Feeds docs/rdmacm-support.md.
RDMACM = ["rdmacm_ids_test", "rdmacm_addresses_test", "rdmacm_connect_test", "rdmacm_qp_test",
          "rdmacm_sync_test", "rdmacm_datagram_test"]
RDMACM_LAST = "rdmacm_ends_test"  # kills its daemon
RDMACM_DEATH = "rdmacm_death_test"  # each of its tests does

# What each of these is refused, for every reason, its instance must have counted.
REFUSALS = {
    "error_isolation_test": ["bad_lkey", "lkey_other_pd", "lkey_bounds", "lkey_access", "bad_rkey",
                             "rkey_other_pd", "rkey_bounds", "rkey_access", "qp_access"],
    "error_domains_test": ["bad_ah", "lkey_other_pd", "rkey_other_pd", "rkey_other_qp"],
    "mw_type2_test": ["rkey_bad_state"],
    "datagram_test": ["qkey"],
}


def check_refusals(instance, reasons):
    counted = {}
    for nic in instance.status()["nics"]:
        for reason, times in nic["refused"].items():
            counted[reason] = counted.get(reason, 0) + times
    never = [reason for reason in reasons if counted[reason] == 0]
    check(not never, f"never counted: {', '.join(never)}")


def report_of(case, program):
    """Where its results are kept: the support tables are about the API, once."""
    if case.is_wire:
        return None
    REPORTS.mkdir(parents=True, exist_ok=True)
    report = REPORTS / f"{program}.json"
    report.unlink(missing_ok=True)
    return report


def one(program):
    def case_function(case):
        report = report_of(case, program)
        instance = case.instance()
        run_gtest(case, program, instance, 170, report=report)
        # Queues of thread domains ring in pages of their own, and no others do.
        rings = instance.status()["engine"]["thread_rings"]
        check((rings > 0) == (program == "domain_test"), f"{rings} rings of thread domains")
        check_refusals(instance, REFUSALS.get(program, []))
    return case_function


def rdmacm(case):
    program = RDMACM_LAST
    instance = case.instance()
    run_gtest(case, program, instance, 120, report=report_of(case, program),
              env=instance.env(VERBENA_DAEMON_PID=str(instance.daemon.pid)))
    check(not instance.daemon.is_running(), "it was to kill the daemon")


def rdmacm_death(case):
    listing = case.run([case.program(RDMACM_DEATH), "--gtest_list_tests"], 10, name="list").out
    tests = [line.strip() for line in listing.splitlines() if line.startswith("  ")]
    check(tests, f"{RDMACM_DEATH} has no tests:\n{listing}")
    for test in tests:
        instance = case.instance()
        run_gtest(case, RDMACM_DEATH, instance, 60, test_filter=f"*.{test}",
                  report=case.dir / f"{test}.json")
        check(not instance.daemon.is_running(), f"{test} was to kill the daemon")


def by_the_systems(program):
    """Upstream's librdmacm passes the same tests, so they say what it does."""
    return lambda case: run_gtest(case, program, case.instance(), 170)


def cases(thorough):
    return [*(Spec(program, one(program), 180) for program in PROGRAMS + RDMACM),
            Spec(RDMACM_LAST, rdmacm, 150),
            Spec(RDMACM_DEATH, rdmacm_death, 150),
            *(Spec(f"{program}, the system's librdmacm", by_the_systems(program), 180,
                   system_librdmacm=True) for program in [*RDMACM, "fds_test"])]
