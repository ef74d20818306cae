"""Carries out cases in processes of their own, several at a time.

What a case started is known by whose child it is, orphans included, so cases at the same time need
a process each. A case that measures, polls on every core, or writes what others write, is carried out
when no other is.
"""

import collections
import multiprocessing
import multiprocessing.connection
import os
import time

import harness

Job = collections.namedtuple("Job", "number part spec bears_company")


def carry_out(job, root):
    """The result of one case, as it is written to --json."""
    begin, before = time.monotonic(), os.times()
    moved = dict(harness.moved_bytes())
    passed, text, notes = harness.run_case(job.spec, root / f"{job.number:03d}")
    after = os.times()
    cpu_s = (after.children_user + after.children_system -
             before.children_user - before.children_system)
    return {"part": job.part, "case": job.spec.name, "passed": passed,
            "seconds": round(time.monotonic() - begin, 2), "cpu_seconds": round(cpu_s, 2),
            "notes": notes, "text": text,
            "moved": {name: count - moved.get(name, 0) for name, count in harness.moved_bytes().items()}}


def work(jobs, root, share, pipe):
    """A worker: a number in, the result of that case out, until None comes in."""
    harness.become_subreaper()
    harness.take_default_signals()
    harness.take_ports(*share)
    while (number := pipe.recv()) is not None:
        pipe.send(carry_out(jobs[number], root))


class Worker:
    def __init__(self, context, jobs, root, share):
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(jobs, root, share, theirs), daemon=False)
        self.process.start()
        theirs.close()
        self.job = None

    def give(self, job):
        self.job = job
        self.pipe.send(job.number)

    def take(self):
        """The result of its case; a worker that died is a failed case and no more."""
        job, self.job = self.job, None
        try:
            return job, self.pipe.recv()
        except EOFError:
            self.process.join()
            return job, {"part": job.part, "case": job.spec.name, "passed": False, "seconds": 0,
                         "cpu_seconds": 0, "notes": [], "moved": {},
                         "text": f"what ran the case ended with {self.process.exitcode}"}

    def end(self):
        # Not by closing: workers that were started later hold a copy of our end.
        if self.process.is_alive():
            self.pipe.send(None)
        self.process.join()


def run_all(jobs, root, count):
    """Yields (job, result) as they are known: first what bears company, `count` at a time."""
    context = multiprocessing.get_context("fork")  # cases are functions, which can't be sent

    def carry_out_with(chosen, workers_max):
        waiting = collections.deque(chosen)
        workers = []
        try:
            for place in range(min(workers_max, len(waiting))):
                workers.append(Worker(context, jobs, root, (place, count)))
            while True:
                for place, worker in enumerate(workers):
                    if worker.job is None and waiting:
                        if not worker.process.is_alive():
                            worker = workers[place] = Worker(context, jobs, root, (place, count))
                        worker.give(waiting.popleft())
                busy = {worker.pipe: worker for worker in workers if worker.job is not None}
                if not busy:
                    return
                for pipe in multiprocessing.connection.wait(busy):
                    yield busy[pipe].take()
        finally:
            for worker in workers:
                worker.end()

    yield from carry_out_with([job for job in jobs if job.bears_company], count)
    yield from carry_out_with([job for job in jobs if not job.bears_company], 1)
