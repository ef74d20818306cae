"""Commands under a time limit, on this machine or in a guest, behind one interface: Job.

Threads are used for one thing: to carry output into memory as it comes.
"""

import os
import signal
import subprocess
import threading
import time


class Failure(Exception):
    """What went wrong, in words."""


class Job:
    """A command that has been started. Subclasses feed it by _take() and _end()."""

    def __init__(self, where, argv):
        self.where = where
        self.argv = [str(a) for a in argv]
        self.code = None
        self._streams = {1: bytearray(), 2: bytearray()}
        self._changed = threading.Condition()
        self._broken = None

    out = property(lambda self: self._streams[1].decode(errors="replace"))
    err = property(lambda self: self._streams[2].decode(errors="replace"))

    def __str__(self):
        return f"{self.where}: {' '.join(self.argv)}"

    def _take(self, stream, data):
        with self._changed:
            self._streams[stream] += data
            self._changed.notify_all()

    def _end(self, code, broken=None):
        with self._changed:
            if self.code is None and self._broken is None:
                self.code, self._broken = code, broken
            self._changed.notify_all()

    def is_running(self):
        return self.code is None and self._broken is None

    def _wait_until(self, condition, limit_s):
        with self._changed:
            return self._changed.wait_for(condition, limit_s)

    def ends_within(self, limit_s):
        return bool(self._wait_until(lambda: not self.is_running(), limit_s))

    def wait(self, limit_s):
        """The exit code. One that takes longer is killed and a Failure."""
        if not self.ends_within(limit_s):
            self.kill()
            if not self.ends_within(10):
                self.give_up()
            raise Failure(f"still ran after {limit_s:g} s: {self}\n{self.tail()}")
        if self._broken:
            raise Failure(f"{self}: {self._broken}\n{self.tail()}")
        return self.code

    def expect(self, limit_s, code=0):
        got = self.wait(limit_s)
        if got != code:
            raise Failure(f"exited {got}, not {code}: {self}\n{self.tail()}")
        return self

    def wait_for_output(self, text, limit_s):
        seen = self._wait_until(lambda: text in self.out or not self.is_running(), limit_s)
        if not seen or text not in self.out:
            how = f"ended with {self.code}" if seen else f"did not within {limit_s:g} s"
            raise Failure(f"should say '{text}', but {how}: {self}\n{self.tail()}")

    def tail(self, lines=14):
        text = self.out.splitlines()[-lines:] + self.err.splitlines()[-lines:]
        return "\n".join("  | " + line for line in text)

    def kill(self, signum=signal.SIGKILL):
        raise NotImplementedError

    def give_up(self):
        """Called when even SIGKILL has not ended the command."""


class LocalJob(Job):
    """A process of this machine, with everything it starts in its process group."""

    def __init__(self, argv, where="host", env=None, cwd=None):
        super().__init__(where, argv)
        self._popen = subprocess.Popen(
            self.argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=env, cwd=cwd, start_new_session=True)
        threading.Thread(target=self._follow, daemon=True).start()

    def _pump(self, pipe, stream):
        with pipe:
            while piece := pipe.read1(65536):
                self._take(stream, piece)

    def _follow(self):
        pumps = [threading.Thread(target=self._pump, args=pair, daemon=True)
                 for pair in ((self._popen.stdout, 1), (self._popen.stderr, 2))]
        for pump in pumps:
            pump.start()
        code = self._popen.wait()
        for pump in pumps:
            pump.join(5)  # a daemon that was left behind may keep the pipe
        self._end(code)

    def environment(self):
        """Of the youngest process of the job, which is the program itself; {} if it has ended."""
        found = {}
        for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
            try:
                if os.getpgid(pid) == self._popen.pid:
                    with open(f"/proc/{pid}/environ", "rb") as file:
                        words = file.read().decode(errors="replace").split("\0")
                    found = dict(word.split("=", 1) for word in words if "=" in word)
            except OSError:
                continue
        return found

    def kill(self, signum=signal.SIGKILL):
        if self._popen.poll() is None:
            try:
                os.killpg(self._popen.pid, signum)
            except ProcessLookupError:
                pass


def poll_until(condition, limit_s, what):
    """condition()'s first true value; a Failure after limit_s."""
    end = time.monotonic() + limit_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise Failure(f"not within {limit_s:g} s: {what}")
        time.sleep(0.05)  # between two looks at the condition
