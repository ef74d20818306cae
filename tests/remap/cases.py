"""Programs with an agent in them that has the NIC read, write and remap their memory all the time.

What each program does is checked by the program itself, what the NIC sees by the agent (agent.h).
"""

import functools
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/integration"))

from harness import (NotHere, PROGRAMS, PYTHON, Spec, check, free_port, is_listening,  # noqa: E402
                     wait_for)

HERE = ROOT / "tests/remap"
DAMAGE, DIFFERENCE = 3, 97  # exit codes of tests/remap/blocks.h and agent.h
LIMIT_S = 60
LIBRARIES = pathlib.Path("/usr/lib/x86_64-linux-gnu")
# What the agent does in a program, by its log.
SUMS = ("steps", "registered", "compared", "bytes", "atomics", "blocks", "stops", "stop_failures")
totals = dict.fromkeys(SUMS, 0)  # of all runs that came to their judgement


class Run:
    """One program with an agent, on an instance of its own."""

    def __init__(self, case, seed, dma="auto", how="calls", every=10, only=None, preload=(),
                 stop_signal=None):
        self.case, self.seed, self.how = case, seed, how
        self.log = case.dir / "agent.log"
        self.instance = case.instance()
        agent = case.program("libremap_agent.so")
        for library in preload:
            if not (LIBRARIES / library).exists():
                raise NotHere(f"{library} is not installed")
        self.env = self.instance.env(
            VERBENA_DMA=dma, VERBENA_REMAP_SEED=str(seed), VERBENA_REMAP_HOW=how,
            VERBENA_REMAP_EVERY=str(every), VERBENA_REMAP_LOG=str(self.log),
            LD_PRELOAD=":".join([str(agent), *preload]),
            **({"VERBENA_REMAP_ONLY": only} if only else {}),
            **({"VERBENA_REMAP_SIGNAL": str(int(stop_signal))} if stop_signal else {}))

    def entries(self):
        if not self.log.exists():
            return []
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def program(self, argv, limit_s=LIMIT_S, says=None, **options):
        """Its exit code must be 0, and what it says of its own checks."""
        process = self.case.spawn(argv, env=self.env, **options)
        self.ended(process, process.wait(limit_s), says)
        return process

    def ended(self, process, code, says=None):
        differences = "\n".join(f"{e['program']}, {e['difference']}" for e in self.entries()
                                if e.get("difference"))
        meaning = {DAMAGE: "its memory was damaged", DIFFERENCE: "the NIC saw something else"}
        check(code == 0 and not differences,
              f"seed {self.seed}: {process.name} ended with {code} {meaning.get(code, '')}\n"
              f"{differences}\n{process.tail(20)}")
        check(says is None or says in process.out,
              f"seed {self.seed}: {process.name} does not say '{says}'\n{process.tail(20)}")

    def judge(self, converts, steps_min=1):
        """Notes what the agent did. converts: whether memory must have become the NIC's; None: it may."""
        check(not any("no NIC" in e for e in self.entries()), "an agent had no NIC")
        entries = [e for e in self.entries() if "steps" in e]
        sums = {name: sum(e[name] for e in entries) for name in SUMS}
        for name in SUMS:
            totals[name] += sums[name]
        mapped = max((e["mapped_bytes"] for e in entries), default=0)
        self.instance.check_alive()
        moved = self.instance.status()["dma"]
        self.case.note(f"{len(entries)} processes, {sums['steps']} steps, {sums['registered']} regions, "
                       f"{sums['compared']} compared ({sums['bytes'] >> 10} KiB), "
                       f"{sums['atomics']} atomics, {mapped >> 10} KiB mapped" +
                       (f", {sums['stops']} stops ({sums['stop_failures']} failed)"
                        if self.how == "parking" else ""))
        check(sums["steps"] >= steps_min, f"the agent made {sums['steps']} steps, not {steps_min}")
        if converts is not None:
            check((mapped != 0) == converts and (moved["mapped_bytes"] != 0) == converts,
                  f"{mapped} bytes were mapped, the NIC moved {moved['mapped_bytes']} of such")


def need(program):
    path = shutil.which(program)
    if path is None:
        raise NotHere(f"{program} is not installed")
    return path


def churn(program="churn", operations=4000, threads=1, converts=True, **options):
    def case_function(case, seed):
        run = Run(case, seed, **options)
        run.program([case.program(program), str(seed), str(operations), str(threads)],
                    says="as it should be")
        run.judge(converts, steps_min=5)
    return case_function


def mixes(steps=200, **options):
    def case_function(case, seed):
        run = Run(case, seed, every=2, **options)
        run.program([case.program("mixes"), str(seed), str(steps)], says="as it should be")
        run.judge(True, steps_min=5)
    return case_function


def python(rounds=3, converts=True, **options):
    def case_function(case, seed):
        run = Run(case, seed, **options)
        run.program([PYTHON, HERE / "python_work.py", str(seed), str(rounds)], says="as it should be")
        run.judge(converts)
    return case_function


def perftest(dma, how, every, converts):
    def case_function(case, seed):
        run = Run(case, seed, dma=dma, how=how, every=every)
        port = free_port()
        common = [need("ib_send_bw"), "-F", "-e", "-x", "0", "-p", str(port), "-s", "20000", "-n",
                  "3000"]
        server = case.spawn([*common, "-d", "verbena0"], name="server", env=run.env)
        wait_for(lambda: is_listening(port), 20, "the server listens")
        client = case.spawn([*common, "-d", "verbena1", "127.0.0.1"], name="client", env=run.env)
        for side in (client, server):
            run.ended(side, side.wait(LIMIT_S))
        run.judge(converts)
    return case_function


def ucx(transport, dma, every, converts):
    def case_function(case, seed):
        run = Run(case, seed, dma=dma, how="parking" if converts else "beside", every=every)
        run.env["UCX_TLS"] = transport
        port = free_port()
        common = [need("ucx_perftest"), "-p", str(port)]
        server = case.spawn(common, name="server", env=run.env)
        wait_for(lambda: is_listening(port), 20, "the server listens")
        client = case.spawn([*common, "127.0.0.1", "-t", "tag_bw", "-s", "100000", "-n", "3000", "-w",
                             "100"], name="client", env=run.env)
        for side in (client, server):
            run.ended(side, side.wait(LIMIT_S))
        run.judge(converts)
    return case_function


@functools.cache
def mpi_program():
    """tests/remap/mpi_work.c, compiled once."""
    target = PROGRAMS / "mpi_work"
    source = HERE / "mpi_work.c"
    if not target.exists() or target.stat().st_mtime < source.stat().st_mtime:
        subprocess.run([need("mpicc.openmpi"), "-O1", "-o", target, source], check=True)
    return target


def mpi(dma, how, every, converts, ranks=2, rounds=60):
    def case_function(case, seed):
        need("mpirun.openmpi")
        run = Run(case, seed, dma=dma, how=how, every=every, only="mpi_work")
        run.program(["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-np", str(ranks),
                     "--mca", "pml", "ob1", "--mca", "btl", "self,vader,tcp", mpi_program(), str(seed),
                     str(rounds)], says="as it should be")
        run.judge(converts)
    return case_function


def fio(engine, dma="auto", converts=None, options=()):
    def case_function(case, seed):
        run = Run(case, seed, dma=dma, every=20, only="fio")
        run.program([need("fio"), "--name=verify", f"--ioengine={engine}", f"--directory={case.dir}",
                     "--size=8M", "--rw=randwrite", "--bs=16k", "--verify=crc32c", "--iodepth=8",
                     "--verify_fatal=1", f"--randseed={seed}", "--loops=2", *options])
        run.judge(converts)
    return case_function


def qemu(dma, how, every, converts):
    """A guest that boots and then checks its own memory."""
    def case_function(case, seed):
        import guest_machine  # it needs what makes guests (tests/interop)
        # All others its threads block.
        run = Run(case, seed, dma=dma, how=how, every=every, stop_signal=signal.SIGFPE)
        argv = guest_machine.command(case, need("qemu-system-x86_64"), seed)
        process = case.spawn(argv, name="qemu", env=run.env)
        run.ended(process, process.wait(LIMIT_S * 2), says="as it should be")
        run.judge(converts)
    return case_function


# Name, function of a case and a seed, whether it is the gate's. `auto` where
# the rules of core/client/payload.cc decide, `mapped` where everything is converted.
CASES = [
    ("malloc, auto", churn(), True),
    ("malloc, mapped", churn(dma="mapped"), True),
    ("malloc in threads, auto leaves it alone",
     churn(threads=3, how="beside", every=2000, converts=False), True),
    ("malloc in threads, mapped while they stand still",
     churn(threads=3, dma="mapped", how="parking", every=2000), False),
    ("jemalloc linked, auto leaves it alone", churn("churn_jemalloc", converts=False), True),
    ("jemalloc preloaded, auto leaves it alone",
     churn(preload=["libjemalloc.so.2"], converts=False), True),
    ("mimalloc preloaded, auto leaves it alone",
     churn(preload=["libmimalloc.so.2.0"], converts=False), False),
    ("tcmalloc preloaded, auto leaves it alone",
     churn(preload=["libtcmalloc_minimal.so.4"], converts=False), False),
    ("fork, vfork, spawn, mremap, mprotect; auto", mixes(), True),
    ("fork, vfork, spawn, mremap, mprotect; mapped", mixes(dma="mapped"), True),
    ("CPython, auto", python(every=200), True),
    ("CPython, mapped", python(dma="mapped", every=200), False),
    ("perftest, auto", perftest("auto", "calls", 20, None), True),
    ("perftest, mapped while it stands still", perftest("mapped", "parking", 2000, True), False),
    ("UCX by TCP, auto leaves it alone", ucx("tcp,self", "auto", 2000, False), False),
    ("UCX by TCP, mapped while it stands still", ucx("tcp,self", "mapped", 2000, True), False),
    ("UCX by shared memory, mapped while it stands still",
     ucx("posix,cma,self", "mapped", 2000, True), False),
    ("Open MPI, auto leaves it alone", mpi("auto", "beside", 2000, False), False),
    ("Open MPI, mapped while it stands still", mpi("mapped", "parking", 2000, True), False),
    ("fio, io_uring with fixed buffers, auto", fio("io_uring", options=["--fixedbufs=1"]), True),
    ("fio, libaio, auto", fio("libaio"), False),
    ("fio, pread and pwrite, auto", fio("psync"), False),
    ("fio, mmap, mapped", fio("mmap", dma="mapped"), False),
    ("QEMU, auto leaves it alone", qemu("auto", "beside", 20000, False), False),
    ("QEMU, mapped while it stands still", qemu("mapped", "parking", 20000, True), False),
]


def specs(seed, all_cases):
    return [Spec(name, functools.partial(function, seed=seed), LIMIT_S * 2)
            for name, function, is_quick in CASES if is_quick or all_cases]
