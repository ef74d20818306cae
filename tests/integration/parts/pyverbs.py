"""rdma-core's own test suite, as Debian ships it, against checked-in lists of what is due."""

import contextlib
import fcntl
import gzip
import json
import os
import pathlib
import shutil
import tempfile
import time

from harness import PYTHON, REPORTS, ROOT, Failure, Spec, check, wait_for

SHIPPED = pathlib.Path("/usr/share/doc/rdma-core/tests")
LISTS = ROOT / "tests" / "pyverbs"
VENDOR_ONLY = ("test_mlx5", "test_efa", "test_cuda")
TEST_LIMIT_S = 60
# Passes where huge pages are set aside, which only root of the host can do.
HUGE_PAGE_TEST = "test_parent_domain.ParentDomainTrafficTest.test_huge_page_traffic"
HUGE_PAGES = pathlib.Path("/proc/sys/vm/nr_hugepages")
HUGE_PAGES_NEEDED = 16
HUGE_PAGES_LOCK = pathlib.Path(tempfile.gettempdir()) / f"verbena-huge-pages-{os.getuid()}.lock"


def copy_suite(case):
    check(SHIPPED.is_dir(), f"{SHIPPED} is missing: install rdma-core")
    target = case.dir / "suite" / "tests"
    target.mkdir(parents=True)
    for path in SHIPPED.iterdir():
        if path.suffix == ".gz":
            (target / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
        elif path.is_file():
            shutil.copy(path, target)
    return target.parent


def listed(name):
    """Test ids of a list; what follows ' | ' is the reason."""
    lines = (LISTS / name).read_text(encoding="utf-8").splitlines()
    return [line.split(" | ")[0].strip() for line in lines if line and not line.startswith("#")]


class Run:
    """Runs tests in a process of their own; a crash or hang costs one test, the rest goes on."""

    def __init__(self, case, copy, env, name="results"):
        self.case, self.copy, self.env = case, copy, env
        self.results = case.dir / f"{name}.jsonl"
        self.results.touch()

    def events(self):
        return [json.loads(line) for line in self.results.read_text().splitlines()]

    def spawn(self, names):
        return self.case.spawn([PYTHON, LISTS / "suite.py", self.copy, "verbena0", "1",
                                self.results, *names], env=self.env)

    def outcomes(self, names):
        done = {}
        todo = list(names)
        while todo:
            process = self.spawn(todo)
            self.watch(process)
            started = None
            for event in self.events():
                if event["event"] == "start":
                    started = event["id"]
                elif event["event"] != "list":
                    done[event["id"]] = (event["event"], event.get("text", ""))
                    started = None if started == event["id"] else started
            if started and started not in done:
                how = "hang" if process.popen.returncode == -9 else "crash"
                done[started] = (how, f"exit code {process.popen.returncode}\n{process.tail()}")
                self.results.open("a").write(
                    json.dumps({"id": started, "event": how, "text": done[started][1]}) + "\n")
            rest = [name for name in todo if name not in done]
            if len(rest) == len(todo):
                raise Failure(f"the suite does not start:\n{process.tail(30)}")
            todo = rest
        return done

    def watch(self, process):
        """Until it ends, killing it when one test takes too long."""
        state = {"size": -1, "since": time.monotonic()}

        def ended():
            size = self.results.stat().st_size
            if size != state["size"]:
                state.update(size=size, since=time.monotonic())
            elif time.monotonic() - state["since"] > TEST_LIMIT_S:
                process.kill()
            return not process.is_running()

        wait_for(ended, 1200, "the suite ends")


def report(done):
    """Adds outcomes to what tests/support_table reads."""
    REPORTS.mkdir(parents=True, exist_ok=True)
    path = REPORTS / "pyverbs.json"
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    known.update({name: what[0] for name, what in done.items()})
    path.write_text(json.dumps(known, indent=1), encoding="utf-8")


def judge(case, done, allowed):
    if not case.is_wire:
        report(done)
    wrong = {name: what for name, what in done.items() if what[0] not in allowed}
    counts = {}
    for outcome, _ in done.values():
        counts[outcome] = counts.get(outcome, 0) + 1
    case.note(", ".join(f"{count} {name}" for name, count in sorted(counts.items())))
    if wrong:
        raise Failure("\n".join(f"{name}: {what[0]}: {what[1].strip()[-700:]}"
                                for name, what in sorted(wrong.items())))


def due_here():
    """What is due, but for the tests of rdma_cm, which want /sys and are in the part rdmacm."""
    return [name for name in listed("due.txt") if not name.startswith("test_rdmacm.")]


def due_tests_pass(case):
    run = Run(case, copy_suite(case), case.instance().env())
    judge(case, run.outcomes(due_here()), ("ok",))


@contextlib.contextmanager
def huge_pages():
    """Sets huge pages aside for the time being, if that is permitted. Yields whether there are.
    They are the machine's: other runs of the suite wait meanwhile."""
    with open(HUGE_PAGES_LOCK, "a", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield from set_huge_pages_aside()


def set_huge_pages_aside():
    before = int(HUGE_PAGES.read_text()) if HUGE_PAGES.exists() else 0
    if before >= HUGE_PAGES_NEEDED:
        yield True
        return
    try:
        HUGE_PAGES.write_text(str(HUGE_PAGES_NEEDED))
    except OSError:
        yield False
        return
    try:
        yield int(HUGE_PAGES.read_text()) >= HUGE_PAGES_NEEDED
    finally:
        HUGE_PAGES.write_text(str(before))


def later_tests_pass_or_skip(case):
    """On the wire nothing may skip that passes within an instance: it runs there, too."""
    copy = copy_suite(case)
    run = Run(case, copy, case.instance().env())
    with huge_pages() as have_them:
        done = run.outcomes(listed("later.txt"))
        local = {}
        if case.is_wire:
            instance = case.instance(nics=None, flags=["--nics=2"])
            local = Run(case, copy, instance.env(), "local").outcomes(done)
    judge(case, done, ("ok", "skip"))
    missing = passes_lost(local, done)
    check(not missing, f"pass within an instance, and not on the wire: {', '.join(missing)}")
    check(not have_them or done[HUGE_PAGE_TEST][0] == "ok",
          f"{HUGE_PAGE_TEST} skipped beside huge pages")


def passes_lost(before, after):
    """Tests that passed before and do not after, by outcomes()."""
    return sorted(name for name, (outcome, _) in before.items()
                  if outcome == "ok" and after[name][0] != "ok")


def lists_are_complete(case):
    run = Run(case, copy_suite(case), case.instance().env())
    run.spawn([]).expect_exit(60)
    ids = next(e["ids"] for e in run.events() if e["event"] == "list")
    ours = {i for i in ids if not i.startswith(VENDOR_ONLY)}
    due, later = set(listed("due.txt")), set(listed("later.txt"))
    check(not due & later, f"in both lists: {sorted(due & later)}")
    check(ours <= due | later, f"in neither list: {sorted(ours - due - later)}")
    check(len(due) >= 75, f"only {len(due)} tests are due")


def cases(thorough):
    return [
        Spec("every test of the suite is in a list", lists_are_complete, 90),
        Spec(f"the {len(due_here())} tests due now pass", due_tests_pass, 900),
        Spec(f"the {len(listed('later.txt'))} other tests pass or skip", later_tests_pass_or_skip,
             900),
    ]
