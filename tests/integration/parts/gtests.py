"""Runs a GoogleTest program on an instance and judges its own report."""

import json

from harness import Failure, check


def run_gtest(case, program, instance, limit_s, test_filter="*", report=None,
              env=None):
    """Runs `program`; fails with the text of its failures. `report` keeps its JSON."""
    report = report or case.dir / f"{program}.json"
    process = case.spawn([case.program(program), f"--gtest_filter={test_filter}",
                          f"--gtest_output=json:{report}"], name=program,
                         env=env if env is not None else instance.env())
    code = process.wait(limit_s)
    check(report.exists(), f"{program} crashed or left early ({code}):\n{process.tail(30)}")
    results = json.loads(report.read_text())
    case.note(f"{results['tests'] - results['failures']} of {results['tests']} tests pass")
    check(results["tests"] > 0, f"{program} has no test named {test_filter}")
    if code != 0:
        raise Failure("\n".join(describe(results)) or f"exit code {code}\n{process.tail(30)}")


def describe(results):
    for suite in results.get("testsuites", []):
        for test in suite["testsuite"]:
            if "failures" in test:
                text = test["failures"][0]["failure"].strip().replace("\n", "\n    ")
                yield f"{suite['name']}.{test['name']}:\n    {text[:600]}"
