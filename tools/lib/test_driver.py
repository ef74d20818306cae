"""Runs the parts of `tools/test`, counts their cases, keeps them to their time.

A part is a function that returns cases: (name, passed, text). One that breaks, or outlives its
budget, counts as one failed case. The last line printed is `N passed, N failed`.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.parse
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = ROOT / "out"
LOGS = OUT / "test-logs"
# What a quiet machine with two cores may take, and when even a busy one gives up. The budgets of the
# parts are there to end what hangs: a busy machine alone must not fail the run.
GOAL_S = 45 * 60
TOTAL_BUDGET_S = 85 * 60
SHOWN_LINES = 30

Case = collections.namedtuple("Case", "name passed text")
Part = collections.namedtuple("Part", "name budget_s run")


class PartBroke(Exception):
    """The part could not be carried out; the text says why."""


class PartSkipped(Exception):
    """What the part needs can't be had on this machine; the text says why."""


def tail(text, lines=SHOWN_LINES):
    return "\n".join(text.splitlines()[-lines:])


def run_logged(argv, log_name, deadline, env=None):
    """Runs a command with its output in a log. Returns (exit code, log path)."""
    log = LOGS / log_name
    environment = dict(os.environ, **(env or {}))
    with open(log, "wb") as out:
        process = subprocess.Popen([str(a) for a in argv], stdout=out, stderr=subprocess.STDOUT,
                                   stdin=subprocess.DEVNULL, cwd=ROOT, env=environment,
                                   start_new_session=True)
        try:
            return process.wait(max(1.0, deadline - time.monotonic())), log
        except BaseException as broken:
            # Of our own session only: what the part started and we know to be its.
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            if isinstance(broken, subprocess.TimeoutExpired):
                raise PartBroke(f"out of time; its output: {log}\n"
                                f"{tail(log.read_text(errors='replace'))}") from None
            raise


def read(log):
    return "\n".join(line for line in log.read_text(errors="replace").splitlines()
                     if "sandbox" not in line.lower())


# --- Bazel tests -----------------------------------------------------------------------------


def bazel(command, *arguments):
    startup = os.environ.get("VERBENA_BAZEL_STARTUP", "").split()
    return ["bazel", *startup, command, *arguments]


def file_of(uri):
    return pathlib.Path(urllib.parse.unquote(urllib.parse.urlparse(uri).path))


def cases_of_xml(target, path):
    """GoogleTest's cases, or one for a test that writes no report of its own."""
    root = xml.etree.ElementTree.parse(path).getroot()
    cases = []
    for case in root.iter("testcase"):
        if case.get("status") == "notrun" or case.get("result") in ("skipped", "suppressed"):
            continue
        problems = [node.get("message") or node.text or "" for node in case
                    if node.tag in ("failure", "error")]
        name = ".".join(filter(None, (case.get("classname"), case.get("name"))))
        label = target if name in ("", target, target.lstrip("/").replace(":", "/")) \
            else f"{target} {name}"
        cases.append(Case(label, not problems, "\n".join(problems)))
    return cases


def cases_of_target(target, status, outputs):
    cases = []
    for output in outputs:
        if output.get("name") == "test.xml":
            try:
                cases += cases_of_xml(target, file_of(output["uri"]))
            except (OSError, xml.etree.ElementTree.ParseError):
                pass  # it died before it could write a report; its status tells
    if status == "PASSED":
        return cases or [Case(target, True, "")]
    log = next((file_of(o["uri"]) for o in outputs if o.get("name") == "test.log"), None)
    text = tail(log.read_text(errors="replace")) if log and log.exists() else ""
    if any(not case.passed for case in cases):
        # A report that Bazel wrote for a test that died says little; the log says more.
        return [case if case.passed or case.name != target else case._replace(
            text=f"{case.text}\n{text}") for case in cases]
    return cases + [Case(f"{target} ({status})", False, text)]


def cases_of_events(path):
    """Reads Bazel's build events: every test target's status and reports, and what did not build."""
    status, outputs, broken = {}, collections.defaultdict(list), []
    for line in path.read_text().splitlines():
        try:
            event = json.loads(line)
        except json.JSONDecodeError:
            continue  # the last line of a run that was ended
        identity = event.get("id", {})
        if "testResult" in identity:
            label = identity["testResult"]["label"]
            outputs[label] += event["testResult"].get("testActionOutput", [])
        elif "testSummary" in identity:
            status[identity["testSummary"]["label"]] = event["testSummary"]["overallStatus"]
        elif "targetCompleted" in identity and not event.get("completed", {}).get("success"):
            broken.append(identity["targetCompleted"]["label"])
    cases = []
    for label in sorted(status):
        if status[label] != "NO_STATUS":
            cases += cases_of_target(label, status[label], outputs[label])
    named = {case.name.split(" ")[0] for case in cases}
    return cases + [Case(f"{label} (does not build)", False, "") for label in broken
                    if label not in named]


def bazel_tests(name, deadline, *arguments):
    events = LOGS / f"{name}.events.json"
    events.unlink(missing_ok=True)
    try:
        code, log = run_logged(
            bazel("test", "--experimental_convenience_symlinks=ignore", "--keep_going",
                  "--test_output=errors",
                  f"--build_event_json_file={events}", *arguments), f"{name}.log", deadline)
    except PartBroke as late:
        finished = cases_of_events(events) if events.exists() else []
        return finished + [Case(f"{name} could not be carried out", False, str(late))]
    cases = cases_of_events(events) if events.exists() else []
    if not cases or (code != 0 and all(case.passed for case in cases)):
        raise PartBroke(f"bazel exited {code}; its output: {log}\n{tail(read(log))}")
    return cases


# What runs in other people's processes or handles their memory; the CLI does not.
SHIPPED = ["core", "transport", "softnic", "verbs_shim"]
SANITIZED = [f"//{folder}/..." for folder in [*SHIPPED, "fi_shim", "tests/fuzz", "tests/stress"]]
# Protocol code has no threads, so TSan finds nothing in its own tests; the daemon's run it, too.
WITHOUT_THREADS = ["transport", "transport/rc", "transport/uc", "transport/ud", "transport/wire",
                   "transport/cm", "transport/common", "transport/port/sim", "softnic/device",
                   "softnic/cm", "tests/fuzz"]


def unit(deadline):
    """What the sanitizers' builds do not run; a test compiled twice would take the gate's time."""
    tests = " + ".join(f"tests({folder})" for folder in SANITIZED)
    query = subprocess.run(bazel("query", f"attr(tags, nosanitizer, {tests})"), cwd=ROOT, text=True,
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    if query.returncode != 0:
        raise PartBroke(f"bazel query exited {query.returncode}\n{tail(query.stderr)}")
    # By name, not //...: links to other output bases (bazel-*) may lie in the checkout.
    return bazel_tests("unit", deadline, "--build_tests_only", "--", "//tools/...", "//tests/...",
                       *(f"-{folder}" for folder in SANITIZED), *query.stdout.split())


def sanitizer(config, without=()):
    def run(deadline):
        # A suffix of its own: switching flags in one output tree would rebuild everything each time.
        return bazel_tests(config, deadline, f"--config={config}", f"--platform_suffix=-{config}",
                           "--build_tests_only", f"--test_tag_filters=-no{config},-nosanitizer",
                           f"--build_tag_filters=-no{config},-nosanitizer", "--", *SANITIZED,
                           *(f"-//{folder}:all" for folder in without))
    return run


# --- The other parts -------------------------------------------------------------------------


def build(deadline):
    code, log = run_logged([ROOT / "tools/stage"], "build.log", deadline)
    if code != 0:
        raise PartBroke(f"tools/stage exited {code}; its output: {log}\n{tail(read(log))}")
    return [Case("everything builds and is staged", True, "")]


CLANG = ["clang++", "-std=c++20", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", "-I."]
OFTEN = 10


def often_included(sources):
    """The C++ library's headers that many sources include, as the text of a header."""
    count = collections.Counter(name for source in sources for name in set(
        re.findall(r"^#include (<[a-z_]+>)$", source.read_text(), re.MULTILINE)))
    return "".join(f"#include {name}\n" for name in sorted(count) if count[name] >= OFTEN)


def clang(deadline):
    """The other compiler accepts all that we hand out, without a warning."""
    sources = [path for folder in [*SHIPPED, "fi_shim", "tools"]
               for path in sorted((ROOT / folder).rglob("*.cc"))
               if not path.stem.endswith("_test")]
    # To read the library's headers takes most of the time; so it is done once. That a source includes
    # what it uses, the build sees.
    with tempfile.TemporaryDirectory(prefix="verbena-clang-") as place:
        header = pathlib.Path(place, "library.h")
        header.write_text(often_included(sources))
        known = header.with_suffix(".pch")
        code, log = run_logged([*CLANG, "-x", "c++-header", header, "-o", known], "clang.log", deadline)
        if code != 0:
            raise PartBroke(f"clang does not accept the library's headers\n{tail(read(log))}")

        def accepts(source):
            name = str(source.relative_to(ROOT))
            code, log = run_logged([*CLANG, "-include-pch", known, "-fsyntax-only", source],
                                   f"clang-{name.replace('/', '-')}.log", deadline)
            text = tail(read(log))
            log.unlink()
            return Case(f"clang accepts {name}", code == 0, text)

        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            return list(pool.map(accepts, sources))


def style(deadline):
    code, log = run_logged([ROOT / "tools/dev", "style", "--cases"], "style.log", deadline)
    cases = []
    for line in read(log).splitlines():
        verdict, _, name = line.partition(" ")
        if verdict in ("ok", "FAIL"):
            cases.append(Case(name.strip(), verdict == "ok", ""))
        elif cases and line.startswith("  "):
            cases[-1] = cases[-1]._replace(text=cases[-1].text + line + "\n")
    if not cases or (code != 0 and all(case.passed for case in cases)):
        raise PartBroke(f"tools/dev style exited {code}\n{tail(read(log))}")
    return cases


EXIT_SKIPPED = 77


def json_cases(argv, name, deadline):
    """A script that writes [{part, case, passed, text}] with --json FILE.

    One that exits with 77 before any case says on its last line why it skips all of them."""
    results = LOGS / f"{name}.json"
    results.unlink(missing_ok=True)
    code, log = run_logged([*argv, "--json", results], f"{name}.log", deadline)
    if code == EXIT_SKIPPED and not results.exists():
        raise PartSkipped(tail(read(log), 1).removeprefix("skipped: "))
    if not results.exists():
        raise PartBroke(f"{argv[0]} exited {code}; its output: {log}\n{tail(read(log))}")
    cases = [Case(f"{r['part']}: {r['case']}", r["passed"], r.get("text") or "")
             for r in json.loads(results.read_text())]
    if not cases or (code != 0 and all(case.passed for case in cases)):
        raise PartBroke(f"{argv[0]} exited {code} without a failed case; its output: {log}")
    return cases


def script(name, path):
    def run(deadline):
        return json_cases([ROOT / path], name, deadline)
    return run


def build_test_programs(deadline):
    code, log = run_logged([ROOT / "tests/build"], "test-programs.log", deadline)
    if code != 0:
        raise PartBroke(f"tests/build exited {code}; its output: {log}\n{tail(read(log))}")


def integration(deadline):
    build_test_programs(deadline)
    return json_cases([ROOT / "tests/integration/run"], "integration", deadline)


# What depends on how payload reaches memory, beside programs that don't choose.
BACKEND_PARTS = ["pingpong", "qperf", "stopped", "events", "scale", "death", "conformance", "pyverbs",
                 "wire"]
# By helpers, which wait for CPUs that polling programs have: nothing with timeouts of milliseconds.
ASSISTED_PARTS = ["stopped", "events", "death", "conformance", "pyverbs"]


def backends(deadline):
    """Parts of the integration tests once more by the backends that are not the default."""
    cases = []
    for backend in ("mapped", "auto", "assisted"):
        parts = ASSISTED_PARTS if backend == "assisted" else BACKEND_PARTS
        options = [f"--part={part}" for part in parts]
        some = json_cases([ROOT / "tests/integration/run", f"--dma={backend}", *options],
                          f"backend-{backend}", deadline)
        cases += [case._replace(name=f"{backend}: {case.name}") for case in some]
    return cases


def interop(deadline):
    """Kernel rxe in a guest as the peer. Without its packages nothing is known of it: skipped."""
    code, log = run_logged(["bash", "-c", ". tools/lib/packages.sh; install_missing interop"],
                           "interop-packages.log", deadline)
    if code != 0:
        raise PartSkipped(f"packages of the group 'interop' can't be had: {tail(read(log), 3)}")
    code, log = run_logged([ROOT / "tools/stage", "--quiet", "--if-stale"], "interop-stage.log",
                           deadline)
    if code != 0:
        raise PartBroke(f"tools/stage exited {code}; its output: {log}\n{tail(read(log))}")
    build_test_programs(deadline)
    script = [ROOT / "tests/interop/run", "--quick"]
    try:
        return json_cases(script, "interop", deadline)
    except PartSkipped:
        # What the guest is made of is not installed, so nobody has asked for new lists of packages.
        code, _ = run_logged(["bash", "-c", ". tools/lib/packages.sh; as_root apt-get -q update"],
                             "interop-lists.log", deadline)
        if code != 0:
            raise
        return json_cases(script, "interop", deadline)


# Runs a command in a world without Bazel and without the given directories.
HIDDEN_WORLD = """
set -e
command="$1"; bazel="$2"; shift 2
for hidden in "$@"; do mount -t tmpfs -o size=4k none "$hidden"; done
if [ -n "$bazel" ]; then mount --bind /dev/null "$bazel"; fi
for hidden in "$@"; do
  if [ -n "$(ls -A "$hidden")" ]; then echo "$hidden can still be seen"; exit 1; fi
done
if [ -n "$(command -v bazel)" ]; then echo "bazel can still be found"; exit 1; fi
exec "$command"
"""


def hidden_world(command):
    """The command's argv in a mount namespace that lacks Bazel, the checkout and what Bazel built."""
    namespaces = ["unshare", "--mount"] if os.getuid() == 0 else ["unshare", "--map-root-user",
                                                                  "--mount"]
    output_base = subprocess.run(bazel("info", "output_base"), cwd=ROOT, check=True, text=True,
                                 stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.strip()
    hidden = sorted({str(ROOT), output_base}, key=len, reverse=True)  # inner ones first
    return [*namespaces, "sh", "-c", HIDDEN_WORLD, "sh", command,
            shutil.which("bazel", path="/usr/bin:/bin") or "", *hidden]


def dist(deadline):
    """The tarball, unpacked elsewhere, runs the demo where Bazel and the checkout are gone."""
    code, log = run_logged([ROOT / "tools/dist"], "dist.log", deadline)
    cases = [Case("the tarball is made and needs only libc", code == 0, tail(read(log)))]
    if code != 0:
        return cases
    tarball = max(OUT.glob("verbena-*.tar.gz"), key=lambda path: path.stat().st_mtime)
    with tempfile.TemporaryDirectory(prefix="verbena-unpacked-") as place:
        subprocess.run(["tar", "-C", place, "-xzf", tarball], check=True)
        home = next(pathlib.Path(place).iterdir())
        code, log = run_logged(["env", "-i", "-C", place, f"HOME={place}", "PATH=/usr/bin:/bin",
                                *hidden_world(home / "demo")], "dist-demo.log", deadline)
        cases.append(Case("the unpacked tarball runs the demo without Bazel and the checkout",
                          code == 0, tail(read(log))))
    return cases


def bench(deadline):
    code, log = run_logged([ROOT / "tools/bench", "--smoke"], "bench.log", deadline)
    return [Case("the benchmarks run", code == 0, tail(read(log)))]


PARTS = [
    Part("build", 25 * 60, build),
    Part("style", 5 * 60, style),
    Part("unit", 25 * 60, unit),
    Part("cli", 10 * 60, script("cli", "tools/cli_test")),
    Part("integration", 35 * 60, integration),
    Part("backends", 10 * 60, backends),
    Part("interop", 25 * 60, interop),
    Part("dist", 8 * 60, dist),
    Part("clang", 10 * 60, clang),
    Part("asan_ubsan", 25 * 60, sanitizer("asan_ubsan")),
    Part("tsan", 25 * 60, sanitizer("tsan", WITHOUT_THREADS)),
    Part("bench", 10 * 60, bench),
]


# --- Running them ----------------------------------------------------------------------------


def run_part(part, deadline):
    try:
        return part.run(min(deadline, time.monotonic() + part.budget_s))
    except PartSkipped:
        raise
    except PartBroke as broke:
        return [Case(f"{part.name} could not be carried out", False, str(broke))]
    except Exception:  # pylint: disable=broad-except
        return [Case(f"{part.name} broke", False, traceback.format_exc())]


def report(part, cases, seconds):
    failed = [case for case in cases if not case.passed]
    print(f"{part.name:12} {len(cases) - len(failed):5} passed {len(failed):4} failed "
          f"{seconds:7.0f} s of {part.budget_s:5} s", flush=True)
    for case in failed:
        print(f"  FAILED {case.name}")
        for line in tail(case.text).splitlines():
            print(f"    {line}")
    sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser(description="Builds and tests Verbena.")
    parser.add_argument("--part", action="append", choices=[part.name for part in PARTS])
    parser.add_argument("--list", action="store_true", help="name the parts and end")
    arguments = parser.parse_args()
    if arguments.list:
        for part in PARTS:
            print(f"{part.name:12} at most {part.budget_s // 60:3} min")
        return 0
    LOGS.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    passed = failed = 0
    for part in PARTS:
        if arguments.part and part.name not in arguments.part:
            continue
        started = time.monotonic()
        try:
            cases = run_part(part, begin + TOTAL_BUDGET_S)
        except PartSkipped as why:
            print(f"{part.name:12} skipped: {why}", flush=True)
            continue
        report(part, cases, time.monotonic() - started)
        passed += sum(case.passed for case in cases)
        failed += sum(not case.passed for case in cases)
    seconds = time.monotonic() - begin
    print(f"Total time: {seconds / 60:.1f} min (on two quiet cores at most {GOAL_S // 60} min); "
          f"logs: {LOGS}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
