"""Runs the benchmarks that tests/bench/benches.json registers and prints one table.

benches.json is a list of
  {"name": "...", "about": "one line",
   "bazel": "//tests/bench:x"  or  "script": "tests/bench/x.py",
   "args": [...], "smoke_args": [...], "limit_s": 120}

A benchmark prints one JSON object per line on standard output for each figure; other lines are
ignored:
  {"figure": "crowded round trip", "value": 8.1, "unit": "us",
   "reference": "same-core futex ping-pong + 2 process_vm copies", "reference_value": 5.0,
   "goal": 1.7, "sense": "<="}
The ratio value/reference_value is compared with the goal, or, with "judged": "value" or without a
reference, the value itself; without a goal it is only shown.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
REGISTRY = ROOT / "tests/bench/benches.json"
DEFAULT_LIMIT_S = 120
CLEAN_UP_LIMIT_S = 20
EXIT_SKIPPED = 77  # what it needs can't be had here; it says what


def bazel(*arguments):
    startup = os.environ.get("VERBENA_BAZEL_STARTUP", "").split()
    return subprocess.run(["bazel", *startup, *arguments], cwd=ROOT, check=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True).stdout.strip()


def program_of(bench):
    if "script" in bench:
        return ROOT / bench["script"]
    label = bench["bazel"]
    bazel("build", "--experimental_convenience_symlinks=ignore", label)
    return pathlib.Path(bazel("info", "bazel-bin")) / label.lstrip("/").replace(":", "/")


def figures_of(text):
    for line in text.splitlines():
        if line.startswith("{"):
            figure = json.loads(line)
            if "figure" in figure:
                yield figure


def run_program(argv, limit_s):
    """What it printed and how it exited; at the limit it may first end what it started itself."""
    with subprocess.Popen(argv, cwd=ROOT, text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            out, err = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            process.terminate()
            try:
                process.communicate(timeout=CLEAN_UP_LIMIT_S)
            finally:
                process.kill()
            raise
    return subprocess.CompletedProcess(argv, process.returncode, out, err)


def run_bench(bench, smoke):
    """Returns (figures, error text or None)."""
    arguments = bench.get("smoke_args" if smoke else "args", [])
    try:
        program = program_of(bench)
        done = run_program([program, *arguments], bench.get("limit_s", DEFAULT_LIMIT_S))
    except subprocess.CalledProcessError as error:
        return [], f"does not build:\n{error.stderr[-2000:]}"
    except subprocess.TimeoutExpired:
        return [], f"ran longer than {bench.get('limit_s', DEFAULT_LIMIT_S)} s"
    except OSError as error:
        return [], str(error)
    figures = list(figures_of(done.stdout))
    if done.returncode == EXIT_SKIPPED:
        print(done.stdout.strip(), flush=True)
        return figures, None
    if done.returncode != 0:
        return figures, f"exited {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}"
    return figures, None if figures else "printed no figure"


def ratio_of(figure):
    reference = figure.get("reference_value")
    return figure["value"] / reference if reference else None


def verdict_of(figure):
    """'met', 'missed', or '' where no goal is set."""
    ratio, goal = ratio_of(figure), figure.get("goal")
    if goal is None:
        return ""
    is_absolute = ratio is None or figure.get("judged") == "value"
    measured = figure["value"] if is_absolute else ratio
    met = measured <= goal if figure.get("sense", "<=") == "<=" else measured >= goal
    return "met" if met else "missed"


def number(value):
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def row_of(figure):
    goal = figure.get("goal")
    return [figure["figure"], f"{number(figure['value'])} {figure.get('unit', '')}".strip(),
            figure.get("reference") or "-",
            f"{number(figure.get('reference_value'))} "
            f"{figure.get('unit', '') if figure.get('reference_value') else ''}".strip(),
            number(ratio_of(figure)),
            "-" if goal is None else f"{figure.get('sense', '<=')} {number(goal)}",
            verdict_of(figure)]


def render(rows):
    header = ["FIGURE", "VALUE", "REFERENCE", "ITS VALUE", "RATIO", "GOAL", ""]
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()
                     for row in [header, *rows])


def main():
    parser = argparse.ArgumentParser(description="Runs Verbena's benchmarks.")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    benches = json.loads(REGISTRY.read_text()) if REGISTRY.exists() else []
    if arguments.list:
        for bench in benches:
            print(f"{bench['name']:24} {bench.get('about', '')}")
        return 0
    unknown = set(arguments.names) - {bench["name"] for bench in benches}
    if unknown or not benches:
        print(f"bench: no benchmark {', '.join(sorted(unknown)) or 'is registered'}; "
              f"see {REGISTRY}", file=sys.stderr)
        return 2
    rows, collected, broken = [], [], 0
    for bench in benches:
        if arguments.names and bench["name"] not in arguments.names:
            continue
        print(f"== {bench['name']}: {bench.get('about', '')}", flush=True)
        figures, error = run_bench(bench, arguments.smoke)
        if error:
            broken += 1
            print(f"   {error}", flush=True)
        rows += [row_of(figure) for figure in figures]
        collected += [dict(figure, bench=bench["name"], verdict=verdict_of(figure))
                      for figure in figures]
    print()
    print(render(rows))
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(collected, indent=1) + "\n")
    missed = [row[0] for row in rows if row[-1] == "missed"]
    if missed and not arguments.smoke:
        print(f"\nGoals missed: {', '.join(missed)}")
    return 1 if broken or (missed and not arguments.smoke) else 0


if __name__ == "__main__":
    sys.exit(main())
