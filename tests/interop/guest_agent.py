"""Runs commands inside the guest for guest.py, over a virtio-serial port; the guest's init.

Frames go both ways: two big-endian 32-bit lengths, a JSON header, a body. Requests carry an "id";
every request is answered once by "exit", "done" or "error", with "out" frames before an "exit".
"""

import json
import os
import signal
import struct
import subprocess
import threading
import time

PORT_NAME = "verbena.agent"
LENGTHS = struct.Struct(">II")
CHUNK_BYTES = 32768
BODY_BYTES_MAX = 256 << 20


def open_port():
    """The port appears when its driver has found the device."""
    base = "/sys/class/virtio-ports"
    while True:
        for entry in os.listdir(base) if os.path.isdir(base) else []:
            with open(f"{base}/{entry}/name", encoding="ascii") as f:
                if f.read().strip() == PORT_NAME and os.path.exists(f"/dev/{entry}"):
                    return os.open(f"/dev/{entry}", os.O_RDWR)
        time.sleep(0.01)  # between two looks at the condition


class Agent:
    """Requests are read by one thread; every command has threads that carry its output."""

    def __init__(self, fd):
        self.fd = fd
        self.lock = threading.Lock()
        self.running = {}

    def send(self, header, body=b""):
        text = json.dumps(header).encode()
        data = memoryview(LENGTHS.pack(len(text), len(body)) + text + body)
        with self.lock:
            while data:
                data = data[os.write(self.fd, data[:CHUNK_BYTES]):]

    def read_exactly(self, count):
        data = bytearray()
        while len(data) < count:
            piece = os.read(self.fd, min(count - len(data), CHUNK_BYTES))
            if not piece:
                time.sleep(0.01)  # the host's end is closed: nothing to do but wait for it
            data += piece
        return bytes(data)

    def pump(self, pipe, header):
        with pipe:
            while piece := pipe.read1(CHUNK_BYTES):
                self.send(header, piece)

    def run(self, number, request):
        try:
            process = subprocess.Popen(
                request["argv"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, env={**os.environ, **request.get("env", {})}, cwd="/root",
                start_new_session=True)
        except (OSError, ValueError) as problem:
            self.send({"id": number, "op": "error", "text": str(problem)})
            return
        self.running[number] = process
        threading.Thread(target=self.follow, args=(number, process), daemon=True).start()

    def follow(self, number, process):
        pumps = [threading.Thread(target=self.pump, daemon=True,
                                  args=(pipe, {"id": number, "op": "out", "stream": stream}))
                 for stream, pipe in ((1, process.stdout), (2, process.stderr))]
        for pump in pumps:
            pump.start()
        code = process.wait()
        for pump in pumps:
            pump.join(5)  # a grandchild may keep the pipe for ever
        self.running.pop(number, None)
        self.send({"id": number, "op": "exit", "code": code})

    def kill(self, request):
        process = self.running.get(request["target"])
        if process:
            try:
                os.killpg(process.pid, request.get("signal", signal.SIGKILL))
            except ProcessLookupError:
                pass

    def put(self, number, request, body):
        os.makedirs(os.path.dirname(request["path"]) or "/", exist_ok=True)
        with open(request["path"], "wb") as f:
            f.write(body)
        os.chmod(request["path"], request.get("mode", 0o644))
        self.send({"id": number, "op": "done"})

    def get(self, number, request):
        with open(request["path"], "rb") as f:
            self.send({"id": number, "op": "done"}, f.read(BODY_BYTES_MAX))

    def handle(self, request, body):
        number = request.get("id", 0)
        try:
            if request["op"] == "run":
                self.run(number, request)
            elif request["op"] == "kill":
                self.kill(request)
            elif request["op"] == "put":
                self.put(number, request, body)
            elif request["op"] == "get":
                self.get(number, request)
            else:
                self.send({"id": number, "op": "error", "text": f"no operation {request['op']}"})
        except OSError as problem:
            self.send({"id": number, "op": "error", "text": str(problem)})

    def serve(self):
        self.send({"op": "ready", "release": os.uname().release})
        while True:
            head_bytes, body_bytes = LENGTHS.unpack(self.read_exactly(LENGTHS.size))
            request = json.loads(self.read_exactly(head_bytes))
            self.handle(request, self.read_exactly(body_bytes))


if __name__ == "__main__":
    Agent(open_port()).serve()
