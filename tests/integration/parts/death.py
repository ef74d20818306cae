"""Death of a client, and death of the daemon."""

import json
import os
import random

from harness import Failure, Spec, check, free_port, is_listening, wait_for

RSS_SLACK_KB = 4096  # allocator noise, not per-client leaks: those grow with the rounds


def clients_die(rounds):
    def case_function(case):
        instance = case.instance()
        program = case.program("client_death")
        seed = random.randrange(1 << 30)
        case.note(f"seed {seed}")
        # Warm up first: what the daemon allocates once is no leak.
        case.run([program, "20", str(seed)], 60, env=instance.env(), name="warm-up")
        baseline = settled(instance)
        process = case.run([program, str(rounds), str(seed + 1)], 30 + rounds, env=instance.env())
        result = json.loads(process.out)
        case.note(f"{rounds} clients killed; the peer noticed within {result['longest_ms']} ms")
        wait_for(lambda: instance.objects() == baseline["objects"], 5,
                 f"objects return to {baseline['objects']}, now {instance.objects()}")
        now = settled(instance)
        check(now["fds"] == baseline["fds"], f"fds: {baseline['fds']} before, {now['fds']} after")
        check(now["rss_kb"] <= baseline["rss_kb"] + RSS_SLACK_KB,
              f"memory: {baseline['rss_kb']} KiB before, {now['rss_kb']} KiB after")
        check(result["longest_ms"] < 1000, f"a peer noticed only after {result['longest_ms']} ms")
    return case_function


def settled(instance):
    """Counts once no session is left."""
    wait_for(lambda: instance.status()["sessions"] == 0, 5, "no session is left")
    fds = []

    def stable():  # the admin connection of status() itself may still be closing
        fds.append(instance.fd_count())
        return len(fds) > 20 and len(set(fds[-20:])) == 1
    wait_for(stable, 5, "the daemon's fds are stable")
    return {"objects": instance.objects(), "fds": instance.fd_count(), "rss_kb": instance.rss_kb()}


def daemon_dies(case):
    instance = case.instance()
    reader, writer = os.pipe()
    os.set_inheritable(writer, False)
    client = case.spawn([case.program("daemon_death")], env=instance.env(), stdin=reader)
    os.close(reader)
    client.wait_for_output("ready", 20)
    instance.daemon.kill()
    instance.daemon.wait(5)
    os.close(writer)
    client.expect_exit(10)
    check("DEVICE_FATAL" not in client.err and "lost" not in client.err, client.err)


def daemon_dies_under_perftest(case):
    instance = case.instance()
    env = instance.env()
    port = free_port()
    common = ["ib_write_bw", "-F", "-x", "1", "-p", str(port), "-D", "20"]
    server = case.spawn(common, env=env, name="server")
    wait_for(lambda: is_listening(port), 10, "the server listens")
    client = case.spawn([*common, "127.0.0.1"], env=env, name="client")
    wait_for(lambda: instance.status()["sessions"] >= 2, 10, "both are attached")
    wait_for(lambda: instance.objects().get("qps", 2) >= 2, 10, "both have QPs")
    instance.daemon.kill()
    # The data path ends with an error; the server sees its client go.
    code = client.wait(15)
    if code == 0:
        raise Failure("ib_write_bw succeeded although its NIC is dead")
    server.kill()


def cases(thorough):
    rounds = 1000 if thorough else 100
    return [
        Spec(f"kill -9 of {rounds} clients under traffic leaves nothing", clients_die(rounds),
             90 + 2 * rounds),
        Spec("kill -9 of the daemon: every call returns, every fd wakes", daemon_dies, 60),
        Spec("kill -9 of the daemon under ib_write_bw", daemon_dies_under_perftest, 60),
    ]
