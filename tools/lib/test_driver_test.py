"""The test driver counts what passed and what did not, whatever way a test fails."""

import json
import pathlib
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import test_driver  # noqa: E402

GOOD_XML = ('<testsuites><testsuite><testcase name="A" status="run" classname="S"/>'
            '<testcase name="B" status="run" classname="S"/>'
            '<testcase name="Off" status="notrun" classname="S"/></testsuite></testsuites>')
BAD_XML = ('<testsuites><testsuite><testcase name="A" status="run" classname="S">'
           '<failure message="1 is not 2"/></testcase>'
           '<testcase name="B" status="run" classname="S"/></testsuite></testsuites>')


class TestDriverTest(unittest.TestCase):
    def setUp(self):
        self.place = tempfile.TemporaryDirectory()
        self.dir = pathlib.Path(self.place.name)
        test_driver.LOGS = self.dir

    def tearDown(self):
        self.place.cleanup()

    def cases(self, *targets, broken=()):
        """targets: (label, overall status, XML text or None)."""
        events = []
        for number, (label, status, xml) in enumerate(targets):
            outputs = []
            if xml is not None:
                path = self.dir / f"{number}.xml"
                path.write_text(xml)
                outputs.append({"name": "test.xml", "uri": path.as_uri()})
            events.append({"id": {"testResult": {"label": label}},
                           "testResult": {"testActionOutput": outputs}})
            events.append({"id": {"testSummary": {"label": label}},
                           "testSummary": {"overallStatus": status}})
        events += [{"id": {"targetCompleted": {"label": label}}, "completed": {}}
                   for label in broken]
        path = self.dir / "events.json"
        path.write_text("\n".join(json.dumps(event) for event in events))
        cases = test_driver.cases_of_events(path)
        return (sum(case.passed for case in cases), sum(not case.passed for case in cases), cases)

    def test_cases_are_counted_not_targets(self):
        passed, failed, cases = self.cases(("//a:t", "PASSED", GOOD_XML))
        self.assertEqual((passed, failed), (2, 0))
        self.assertIn("S.A", cases[0].name)

    def test_a_failed_case_is_named(self):
        passed, failed, cases = self.cases(("//a:t", "FAILED", BAD_XML))
        self.assertEqual((passed, failed), (1, 1))
        self.assertEqual(next(c.text for c in cases if not c.passed), "1 is not 2")

    def test_a_crash_after_good_cases_is_a_failure(self):
        self.assertEqual(self.cases(("//a:t", "FAILED", GOOD_XML))[:2], (2, 1))

    def test_no_report_or_a_broken_one(self):
        self.assertEqual(self.cases(("//a:t", "TIMEOUT", None))[:2], (0, 1))
        self.assertEqual(self.cases(("//a:t", "FAILED", "<testsuites><"))[:2], (0, 1))
        self.assertEqual(self.cases(("//a:script", "PASSED", None))[:2], (1, 0))

    def test_what_does_not_build_fails(self):
        self.assertEqual(self.cases(("//a:t", "PASSED", GOOD_XML), broken=["//b:t"])[:2], (2, 1))

    def test_flaky_is_not_passed(self):
        self.assertEqual(self.cases(("//a:t", "FLAKY", GOOD_XML))[1], 1)

    def test_a_part_that_breaks_or_is_late_counts(self):
        def broken(deadline):
            raise ValueError("x")

        def late(deadline):
            return [test_driver.run_logged(["sleep", "100"], "late.log", deadline)]
        for run, budget_s in ((broken, 10), (late, 0.2)):
            part = test_driver.Part("p", budget_s, run)
            cases = test_driver.run_part(part, time.monotonic() + 100)
            self.assertEqual([case.passed for case in cases], [False])

    def test_a_script_that_fails_without_a_failed_case_counts(self):
        script = self.dir / "script"
        for results, code in (('[{"part":"p","case":"c","passed":true}]', 1), ("[]", 0), (None, 0)):
            write = f"echo '{results}' > $2" if results is not None else "true"
            script.write_text(f"#!/bin/sh\n{write}\nexit {code}\n")
            script.chmod(0o755)
            with self.assertRaises(test_driver.PartBroke):
                test_driver.json_cases([script], "s", time.monotonic() + 20)
        script.write_text("#!/bin/sh\necho '[{\"part\":\"p\",\"case\":\"c\",\"passed\":false}]' > $2\n"
                          "exit 1\n")
        cases = test_driver.json_cases([script], "s", time.monotonic() + 20)
        self.assertEqual([case.passed for case in cases], [False])

    def test_a_script_may_skip_but_not_once_it_has_begun(self):
        script = self.dir / "script"
        script.write_text("#!/bin/sh\necho 'skipped: no guest'\nexit 77\n")
        script.chmod(0o755)
        part = test_driver.Part(
            "p", 20, lambda deadline: test_driver.json_cases([script], "s", deadline))
        with self.assertRaisesRegex(test_driver.PartSkipped, "^no guest$"):
            test_driver.run_part(part, time.monotonic() + 20)
        script.write_text("#!/bin/sh\necho '[{\"part\":\"p\",\"case\":\"c\",\"passed\":true}]' > $2\n"
                          "exit 77\n")
        cases = test_driver.run_part(part, time.monotonic() + 20)
        self.assertEqual([case.passed for case in cases], [False])


if __name__ == "__main__":
    unittest.main()
