"""What Python programs do with memory and processes, from a seed; checks all of it itself.

    python_work.py SEED ROUNDS
"""

import hashlib
import json
import mmap
import multiprocessing
import os
import random
import subprocess
import sys
import zlib


def blob(rng, largest=300_000):
    return rng.randbytes(rng.randrange(1, rng.randrange(2, largest)))


def work_of_a_child(seed, data, queue):
    """A forked child allocates, too, and sees its parent's data."""
    rng = random.Random(seed)
    own = [blob(rng) for _ in range(20)]
    nested = os.fork()
    if nested == 0:
        os._exit(0 if hashlib.sha256(data).hexdigest() else 1)
    _, status = os.waitpid(nested, 0)
    queue.put((status, hashlib.sha256(data).hexdigest(), sum(len(b) for b in own)))


def containers(rng):
    table = {}
    for i in range(3000):
        key = rng.randrange(500)
        if key in table:
            data, digest = table.pop(key)
            assert zlib.crc32(data) == digest, "a value of a table"
        else:
            data = blob(rng, 20_000)
            table[key] = (data, zlib.crc32(data))
    for data, digest in table.values():
        assert zlib.crc32(data) == digest, "a value of a table"


def texts(rng):
    value = {str(i): [rng.random() for _ in range(rng.randrange(30))] for i in range(400)}
    assert json.loads(json.dumps(value)) == value, "JSON"
    array = bytearray()
    for i in range(200):
        array += blob(rng, 3000)
        if len(array) > 200_000:
            del array[rng.randrange(100):rng.randrange(100, 100_000)]
    assert zlib.decompress(zlib.compress(bytes(array))) == bytes(array), "zlib"


def forks(rng):
    data = blob(rng)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    children = [context.Process(target=work_of_a_child, args=(rng.random(), data, queue))
                for _ in range(2)]
    for child in children:
        child.start()
    for _ in children:
        status, digest, _ = queue.get(timeout=120)
        assert status == 0 and digest == hashlib.sha256(data).hexdigest(), "what a child saw"
    for child in children:
        child.join()
        assert child.exitcode == 0, "a child"


def programs(rng):
    data = blob(rng)
    done = subprocess.run(["/usr/bin/sha256sum"], input=data, stdout=subprocess.PIPE, check=True)
    assert done.stdout.split()[0].decode() == hashlib.sha256(data).hexdigest(), "what a pipe carried"
    with mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as area:
        area.write(data)
        area.resize(3 << 20)
        assert area[:len(data)] == data, "a mapping that grew"


def main():
    rng = random.Random(int(sys.argv[1]))
    for _ in range(int(sys.argv[2])):
        for part in (containers, texts, forks, programs):
            part(rng)
    print("as it should be")


main()
