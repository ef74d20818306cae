#!/usr/bin/python3
"""Runs named tests of a copy of rdma-core's pyverbs suite; one JSON line before and after each.

    suite.py COPY DEVICE GID_INDEX RESULTS [TEST_ID]...      (no TEST_ID: only lists the ids)

The lines are flushed at once, so that whoever started this knows which test crashed or hangs.
"""

import importlib.machinery
import json
import os
import sys
import unittest


class Recorder(unittest.TestResult):
    """Writes what happens as it happens."""

    def __init__(self, file):
        super().__init__()
        self.file = file

    def record(self, **fields):
        self.file.write(json.dumps(fields) + "\n")
        self.file.flush()

    def startTest(self, test):
        super().startTest(test)
        self.outcome = ("ok", "")
        self.record(id=short_id(test), event="start")

    def stopTest(self, test):
        super().stopTest(test)
        self.record(id=short_id(test), event=self.outcome[0], text=self.outcome[1])

    def addError(self, test, err):
        self.outcome = ("error", self._exc_info_to_string(err, test))

    def addFailure(self, test, err):
        self.outcome = ("fail", self._exc_info_to_string(err, test))

    def addSkip(self, test, reason):
        self.outcome = ("skip", reason)


def short_id(test):
    return test.id().removeprefix("tests.")


def load(copy, device, gid_index):
    folder = os.path.join(copy, "tests")
    sys.path.insert(0, folder)
    os.chdir(copy)
    from args_parser import parser  # pylint: disable=import-error
    sys.argv[1:] = ["--dev", device, "--gid", gid_index, "-v"]
    package = importlib.machinery.SourceFileLoader(
        "tests", os.path.join(folder, "__init__.py")).load_module()
    parser.parse_args()
    found = {}

    def walk(suite):
        for test in suite:
            if isinstance(test, unittest.TestSuite):
                walk(test)
            else:
                found[short_id(test)] = test

    walk(unittest.defaultTestLoader.loadTestsFromModule(package))
    return found


def main():
    copy, device, gid_index, results, *wanted = sys.argv[1:]
    found = load(copy, device, gid_index)
    with open(results, "a", encoding="utf-8") as f:
        recorder = Recorder(f)
        if not wanted:
            recorder.record(event="list", ids=sorted(found))
        for name in wanted:
            if name in found:
                # Through a suite, so that class and module fixtures run.
                unittest.TestSuite([found[name]]).run(recorder)
            else:
                recorder.record(id=name, event="missing", text="not in this version of the suite")


if __name__ == "__main__":
    main()
