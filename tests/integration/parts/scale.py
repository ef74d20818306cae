"""Many objects, many clients, and the cost of doing nothing."""

import json
import os
import time

from harness import Spec, check, wait_for

FLAT_RATIO = 3.0  # last 1 000 against first 1 000; a linear search would show 10 and more


def objects(case):
    instance = case.instance()
    process = case.run([case.program("scale"), "10000", "10000"], 120, env=instance.env())
    figures = json.loads(process.out)
    for kind, f in figures.items():
        case.note(f"{f['count']} {kind}s: first {f['first_us']} µs, last {f['last_us']} µs, "
                  f"destroy {f['destroy_us']} µs each")
        check(f["last_us"] <= FLAT_RATIO * f["first_us"],
              f"creating a {kind} gets slower with their number: {f}")
    case.note(f"daemon: {instance.rss_kb() // 1024} MiB, {instance.fd_count()} fds")
    wait_for(lambda: instance.status()["sessions"] == 0, 5, "the session is gone")


def work_under_way(case):
    """What clients post waits in their queues while enough of it waits to be copied."""
    instance = case.instance()
    case.run([case.program("active_qps"), "1000", "16each", "100000", "1"], 120,
             env=instance.env(VERBENA_DMA="process"))
    dma = instance.status()["dma"]
    case.note(f"{dma['operations']} operations, {dma['queued_most']} of them waited at once")
    check(dma["operations"] == 100000 and dma["process_bytes"] == 8 * 100000,
          f"not all by process_vm: {dma}")
    # 256 are enough; a turn may add some.
    check(256 <= dma["queued_most"] <= 400, f"{dma['queued_most']} of 16000 waited at once")


def clients(case):
    count = 200
    instance = case.instance()
    processes, inputs = [], []
    for _ in range(count):
        process, writer = case.spawn_held([case.program("one_client")], env=instance.env())
        processes.append(process)
        inputs.append(writer)
    for process in processes:
        process.wait_for_output("ready", 60)
    check(instance.status()["sessions"] == 2 * count,
          f"{instance.status()['sessions']} sessions, not {2 * count}")
    case.note(f"daemon: {instance.rss_kb() // 1024} MiB, {instance.fd_count()} fds")
    for writer in inputs:
        os.close(writer)
    for process in processes:
        process.expect_exit(60)
    wait_for(lambda: instance.status()["sessions"] == 0, 10, "all sessions are gone")


def idle(case):
    """An idle daemon with idle clients attached uses less than one per cent of a core."""
    instance = case.instance()
    watch = [case.spawn(["ibv_asyncwatch", "-d", "verbena0"], env=instance.env())
             for _ in range(5)]
    wait_for(lambda: instance.status()["sessions"] == 5, 10, "five sessions")
    looks = []

    def is_still():  # the last client has opened its device, and the NIC has seen it
        looks.append(instance.cpu_seconds())
        return len(looks) > 20 and looks[-20] == looks[-1]

    wait_for(is_still, 10, "the daemon does nothing")
    begin, cpu = time.monotonic(), instance.cpu_seconds()
    wait_for(lambda: time.monotonic() - begin > 4, 5, "the measuring time is over")
    used = (instance.cpu_seconds() - cpu) / (time.monotonic() - begin)
    case.note(f"{100 * used:.2f} % of a core")
    check(used < 0.01, f"the idle daemon uses {100 * used:.1f} % of a core")
    check(all(w.is_running() for w in watch), "a client died")


def cases(thorough):
    return [
        Spec("10 000 QPs and 10 000 MRs in one client, creation cost flat", objects, 180),
        Spec("16 messages under way on each of 1000 QPs", work_under_way, 120),
        Spec("200 clients on one daemon", clients, 180),
        Spec("idle daemon", idle, 30),
    ]
