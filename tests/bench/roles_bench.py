#!/usr/bin/python3
"""Cost of the RC roles for one small operation over whole-message PDUs, without rings or copies.

    roles_bench.py [MIN_TIME_S]

Turns GoogleBenchmark's report of //transport/rc:rc_bench into figures for tools/bench. The
reference, a chain of multiplications, tells how fast the machine was meanwhile.
"""

import json
import pathlib
import statistics
import subprocess
import sys

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "integration"))

import harness  # noqa: E402

GOAL_NS = 300
REFERENCE = "BM_MultiplyChain"
REPETITIONS = 5


def main():
    harness.need_programs("rc_bench")
    seconds = sys.argv[1] if len(sys.argv) > 1 else "0.2"
    done = subprocess.run(
        [harness.PROGRAMS / "rc_bench", "--benchmark_format=json",
         f"--benchmark_min_time={seconds}", f"--benchmark_repetitions={REPETITIONS}"],
        stdout=subprocess.PIPE, text=True, check=True)
    times = {}
    for run in json.loads(done.stdout)["benchmarks"]:
        if run["run_type"] == "iteration":
            # Of one operation, however many an iteration posts at once.
            times.setdefault(run["run_name"], []).append(1e9 / run["items_per_second"])
    reference_ns = statistics.median(times.pop(REFERENCE))
    for name, values in times.items():
        print(json.dumps({"figure": f"RC roles, {name.removeprefix('BM_')}", "unit": "ns", "goal": GOAL_NS,
                          "value": round(statistics.median(values), 1), "sense": "<=",
                          "reference": "256 dependent multiplications", "judged": "value",
                          "reference_value": round(reference_ns, 1)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
