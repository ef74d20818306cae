"""The command line: instances, exit codes, environments, users."""

import json
import os
import pathlib
import pwd
import re
import resource
import shutil
import signal
import socket

from harness import (PYTHON, ROOT, STAGE, Spec, check, children, clean_environment, free_port,
                     is_listening, wait_for)

VERBENA = STAGE / "bin" / "verbena"


def shared_env(case):
    """An instance directory that several commands share, as a user's default one would be."""
    directory = case.dir / "shared"
    directory.mkdir(mode=0o700, exist_ok=True)
    return dict(clean_environment(), VERBENA_INSTANCE=str(directory), HOME=str(case.dir))


def status(case, env):
    return json.loads(case.run([VERBENA, "status", "--json"], 10, env=env).out)


def two_shells_find_each_other(case):
    env = shared_env(case)
    port = str(free_port())
    common = ["ib_write_bw", "-F", "-n", "500", "-p", port]
    server = case.spawn([VERBENA, "run", "--", *common], env=env, name="server")
    wait_for(lambda: is_listening(int(port)), 15, "the server listens")
    case.run([VERBENA, "run", "--", *common, "localhost"], 20, env=env, name="client")
    server.expect_exit(10)


def exit_code_is_the_commands(case):
    env = shared_env(case)
    for arguments in ([], ["--private"]):
        case.run([VERBENA, "run", *arguments, "--", "sh", "-c", "exit 37"], 20, code=37, env=env)
        case.run([VERBENA, "run", *arguments, "--", "true"], 20, env=env)
    missing = case.spawn([VERBENA, "run", "--private", "--", "/no/such/program"], env=env)
    check(missing.wait(20) == 127, f"a missing program gives {missing.popen.returncode}, not 127")
    check("/no/such/program" in missing.err, f"it is not named: {missing.err}")


def signals_reach_the_command(case):
    env = shared_env(case)
    run = case.spawn([VERBENA, "run", "--private", "--", "sh", "-c",
                      "trap 'exit 5' TERM; echo up; while :; do sleep 0.05; done"], env=env)
    run.wait_for_output("up", 15)
    run.kill(signal.SIGTERM)
    run.expect_exit(10, 5)


def autostart_returns_at_once(case):
    env = dict(shared_env(case), LD_LIBRARY_PATH=str(STAGE / "lib"))
    # $( ) waits until every holder of the pipe is gone: a daemon that kept it would hang here.
    process = case.run(["sh", "-c", "out=$(ibv_devices) && echo \"got: $out\""], 10, env=env)
    check("verbena0" in process.out, f"no device listed:\n{process.out}")
    found = status(case, env)
    daemon = found["pid"]
    check(os.getsid(daemon) != os.getsid(0), "the daemon stayed in its starter's session")
    fds = {os.readlink(f"/proc/{daemon}/fd/{n}") for n in ("1", "2")}
    check(all(fd.endswith("log") for fd in fds), f"the daemon's output goes to {fds}")
    case.run([VERBENA, "down"], 10, env=env)


def autostart_can_be_refused(case):
    env = dict(shared_env(case), LD_LIBRARY_PATH=str(STAGE / "lib"), VERBENA_AUTOSTART="0")
    process = case.run(["ibv_devices"], 10, env=env)
    check("verbena0" not in process.out, process.out)
    check(not children_named("verbenad"), "a daemon was started")


def children_named(name):
    found = []
    for pid in children():
        try:
            with open(f"/proc/{pid}/stat", encoding="ascii") as f:
                command, rest = f.read().split("(", 1)[1].rsplit(") ", 1)
                if command == name and rest[0] != "Z":
                    found.append(pid)
        except FileNotFoundError:
            pass
    return found


def private_ones_do_not_meet(case):
    env = shared_env(case)
    script = ("ib_write_bw -F -x 1 -n 300 -p $0 & "
              "until grep -qi \":$(printf %04X $0) .* 0A \" /proc/net/tcp /proc/net/tcp6; "
              "do :; done; ib_write_bw -F -x 1 -n 300 -p $0 127.0.0.1 && wait $!")
    ports = set()
    while len(ports) < 8:
        ports.add(str(free_port()))
    runs = [case.spawn([VERBENA, "run", "--private", "--", "sh", "-c", script, port], env=env)
            for port in sorted(ports)]
    for run in runs:
        run.expect_exit(60)
    wait_for(lambda: not children_named("verbenad"), 10, "the private daemons are gone")


def env_sets_up_a_shell(case):
    env = shared_env(case)
    process = case.run(["sh", "-c", f"eval \"$({VERBENA} env)\" && ibv_devices"], 15, env=env)
    check("verbena0" in process.out, process.out)
    case.run([VERBENA, "down"], 10, env=env)


def up_status_down(case):
    env = shared_env(case)
    case.run([VERBENA, "up", "--nics", "3"], 15, env=env)
    found = status(case, env)
    check([nic["name"] for nic in found["nics"]] == ["verbena0", "verbena1", "verbena2"],
          f"NICs: {found['nics']}")
    text = case.run([VERBENA, "status"], 10, env=env).out
    check("verbena2" in text, text)
    devices = case.run([VERBENA, "devices"], 10, env=env).out
    check("127.0.0.3" in devices, devices)
    case.run([VERBENA, "down"], 10, env=env)
    wait_for(lambda: not os.path.exists(env["VERBENA_INSTANCE"] + "/sock"), 5, "the socket is gone")
    gone = case.spawn([VERBENA, "status"], env=env)
    check(gone.wait(10) != 0, "status of no instance succeeds")


def more_nics_are_added(case):
    env = shared_env(case)
    case.run([VERBENA, "up", "--nics", "1"], 15, env=env)
    process = case.run([VERBENA, "run", "--nics", "3", "--", "ibv_devices"], 15, env=env)
    check("verbena2" in process.out, process.out)
    case.run([VERBENA, "down"], 10, env=env)


def show_is_valid_json(case):
    instance = case.instance()
    client = case.spawn([case.program("one_client")], env=instance.env(),
                        stdin=os.fdopen(os.pipe()[0]))
    check(client.popen.poll() is None, "the client is there")
    for kind in ("cmd", "session", "pd", "mr", "cq", "qp", "srq"):
        process = case.run([VERBENA, "show", kind, "--json"], 10, env=instance.env())
        json.loads(process.out)
        case.run([VERBENA, "show", kind], 10, env=instance.env())


def show_tells_owner_state_and_keys(case):
    instance = case.instance()
    client, writer = case.spawn_held([case.program("one_client")], env=instance.env())
    client.wait_for_output("ready", 10)
    show = lambda kind: case.run([VERBENA, "show", kind], 10, env=instance.env()).out  # noqa: E731
    mr, qp = show("mr"), show("qp")
    for text in ("one_client", "process", "key"):
        check(text in mr.lower(), f"show mr lacks '{text}':\n{mr}")
    for text in ("one_client", "RTS", "RC"):
        check(text.lower() in qp.lower(), f"show qp lacks '{text}':\n{qp}")
    os.close(writer)
    client.expect_exit(10)


def backend_that_was_asked_for(case):
    """Who does not ask has no mapped memory (docs/mapped-memory.md)."""
    instance = case.instance()
    for mode, backend in ((None, "process"), ("auto", "mapped"), ("process", "process"),
                          ("assisted", "assisted")):
        env = instance.env()
        env.pop("VERBENA_DMA", None)
        if mode is not None:
            env["VERBENA_DMA"] = mode
        client, writer = case.spawn_held([case.program("one_client")], env=env)
        client.wait_for_output("ready", 10)
        shown = case.run([VERBENA, "show", "mr", "--json"], 10, env=instance.env()).out
        check(f'"{backend}"' in shown, f"VERBENA_DMA={mode}: not {backend}:\n{shown}")
        os.close(writer)
        client.expect_exit(10)


def doctor_explains(case):
    process = case.spawn([VERBENA, "doctor"], env=shared_env(case))
    process.wait(15)
    for word in ("process_vm", "helper", "io_uring"):
        check(word in process.out, f"doctor does not mention {word}:\n{process.out}")


def small_files_are_explained(case):
    """`ulimit -f`: shared memory is files of memory, and a client could only be told EFBIG."""
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))  # noqa: E731
    doctor = case.spawn([VERBENA, "doctor"], env=shared_env(case), preexec=limit)
    check(doctor.wait(15) == 1, f"doctor found nothing missing:\n{doctor.out}")
    check("ulimit -f" in doctor.out, f"doctor does not say what is missing:\n{doctor.out}")
    up = case.spawn([VERBENA, "up"], env=shared_env(case), preexec=limit)
    check(up.wait(15) == 1, "an instance was started that can serve nobody")
    check("ulimit -f" in up.err, f"not said why: {up.err}")


def nonsense_in_the_environment_is_explained(case):
    env = dict(shared_env(case), VERBENA_DMA="nonsense")
    process = case.spawn([VERBENA, "run", "--", "true"], env=env)
    check(process.wait(15) == 2 and "VERBENA_DMA" in process.err, f"said: {process.err}")
    env = dict(shared_env(case), VERBENA_INSTANCE="/etc/passwd")
    process = case.spawn([VERBENA, "run", "--", "true"], env=env)
    check(process.wait(15) != 0 and "/etc/passwd" in process.err, f"said: {process.err}")


def full_disk_ends_no_capture_quietly(case):
    process = case.spawn([VERBENA, "run", "--capture", "/dev/full", "--", "true"],
                         env=shared_env(case))
    check(process.wait(15) == 1, "an empty capture passed for one")
    check("disk is full" in process.err, f"said: {process.err}")
    # On a running instance: its log says so, the file is let go, and traffic goes on.
    instance = case.instance(flags=["--wire=1"])
    env = instance.env()
    case.run([VERBENA, "capture", "start", "/dev/full"], 10, env=env)
    case.run(["sh", "-c", pingpong()], 20, env=env)
    said = "the capture ended: capture stopped after 0 packets: the disk is full"
    wait_for(lambda: said in instance.daemon.err, 10, "the log tells that the capture ended")
    files = pathlib.Path(f"/proc/{instance.daemon.pid}/fd")
    check("/dev/full" not in {os.readlink(file) for file in files.iterdir()}, "its file stays open")
    case.run(["sh", "-c", pingpong()], 20, env=env)
    process = case.spawn([VERBENA, "capture", "stop"], env=env)
    check(process.wait(10) == 1 and "disk is full" in process.err, f"said: {process.err}")


CHECK_CAPTURE = ROOT / "tests" / "wire_tools" / "check_capture.py"


def pingpong(tool="ibv_rc_pingpong", options="-n 100"):
    """A shell's words for a server and a client on two NICs."""
    port = free_port()
    common = f"{tool} -g 1 -p {port} {options}"
    return (f"{{ {common} -d verbena0 >/dev/null & server=$!; "
            f"until grep -qi ':{port:04X} .* 0A ' /proc/net/tcp /proc/net/tcp6; do :; done; "
            f"{common} -d verbena1 localhost >/dev/null && wait $server; }}")


def record_an_instance(case, kind, file):
    """A capture or a trace, begun and ended on a running instance."""
    record = f"{VERBENA} {kind}"
    script = (f"{record} start {file} && {pingpong()} && {record} status && {record} stop && "
              f"{record} status")
    process = case.run([VERBENA, "run", "--nics", "2", "--wire", "--", "sh", "-c", script], 30,
                       env=shared_env(case))
    check(f"A {kind} is running: " in process.out and f"No {kind} is running" in process.out,
          process.out)


def captures_of_a_run_and_of_an_instance(case):
    file = case.dir / "run.pcapng"
    case.run([VERBENA, "run", "--nics", "2", "--capture", file, "--", "sh", "-c", pingpong()], 30,
             env=shared_env(case))
    case.run([PYTHON, CHECK_CAPTURE, file, "--comments"], 20)
    check(file.stat().st_size > 100 * 1024, f"{file.stat().st_size} bytes")
    file = case.dir / "instance.pcapng"
    record_an_instance(case, "capture", file)
    case.run([PYTHON, CHECK_CAPTURE, file, "--comments"], 20)


def captured_multicast_names_its_members(case):
    instance = case.instance(flags=["--wire=1"])
    env, group = instance.env(), "239.7.7.7"
    sender, receiver = (nic["ipv4"] for nic in instance.status()["nics"])
    file = case.dir / "multicast.pcapng"
    case.run([VERBENA, "capture", "start", file], 10, env=env)
    member = case.spawn(["stdbuf", "-oL", "mckey", "-m", group, "-b", receiver], env=env)
    member.wait_for_output("receiving data", 10)
    case.run(["mckey", "-m", group, "-b", sender, "-s"], 20, env=env)
    member.expect_exit(20)
    case.run([VERBENA, "capture", "stop"], 10, env=env)
    found = json.loads(
        case.run([PYTHON, CHECK_CAPTURE, file, "--comments", "--json", "--packets"], 20).out)
    comments = [packet["comment"] for packet in found["packets"] if packet["dst"] == group
                and (packet["interface"], packet["direction"]) == ("verbena1", "in")]
    check(len(comments) == 10, f"{len(comments)} packets of the group, not 10")
    wanted = f"group {group}: mckey (pid {member.pid}) QP 0x"
    check(all(comment.startswith(wanted) for comment in comments), f"said: {comments}")


TRACE_LINE = re.compile(
    r"\d+\.\d{9} verbena[01] (in|out) 127\.\S+ > 127\.\S+ RC [A-Z_]+ to QP 0x[0-9a-f]{6} PSN \d+.* "
    r"\((ibv_rc_pingpong \(pid \d+\) QP 0x[0-9a-f]+|a QP that is gone|QP 0x[0-9a-f]+ \(nobody's\))"
    r" (→|←) 127\.\S+( QP 0x[0-9a-f]+)?\)")


def check_trace(file):
    lines = file.read_text().splitlines()
    check(len(lines) >= 800, f"{len(lines)} lines")  # 100 messages of 1 packet or more, each way
    for line in lines:
        check(TRACE_LINE.fullmatch(line), f"no line of a trace: {line}")
    for way in ("verbena0 out", "verbena0 in", "verbena1 out", "verbena1 in"):
        check(any(f" {way} " in line and "ibv_rc_pingpong" in line for line in lines),
              f"no packet {way} is ibv_rc_pingpong's")


def traces_of_a_run_and_of_an_instance(case):
    file = case.dir / "run.txt"
    case.run([VERBENA, "run", "--nics", "2", "--trace", file, "--", "sh", "-c", pingpong()], 30,
             env=shared_env(case))
    check_trace(file)
    file = case.dir / "instance.txt"
    record_an_instance(case, "trace", file)
    check_trace(file)
    full = case.spawn([VERBENA, "run", "--trace", "/dev/full", "--nics", "2", "--", "sh", "-c",
                       pingpong()], env=shared_env(case))
    check(full.wait(30) == 1 and "the disk is full" in full.err, f"an empty one passed: {full.err}")


def rules_file(case, text):
    file = case.dir / "rules.txt"
    file.write_text(text)
    return file


def rules_that_never_fire_fail_the_run(case):
    rule = "drop name=never opcode=atomic"
    for command, code in (("true", 3), (pingpong(), 3), ("exit 7", 7)):
        rules = rules_file(case, f"# nothing here is atomic\n{rule}\n")
        run = case.spawn([VERBENA, "run", "--nics", "2", "--faults", rules, "--", "sh", "-c",
                          command], env=shared_env(case))
        check(run.wait(30) == code, f"'{command}' ended with {run.popen.returncode}, not {code}")
        check(f"this fault rule never fired: line 2: {rule}" in run.err, f"said: {run.err}")
    rules = rules_file(case, "delay for=10us opcode=send nth=1\n")
    for command, code in ((pingpong(), 0), (f"{pingpong()}; exit 7", 7)):
        run = case.run([VERBENA, "run", "--nics", "2", "--faults", rules, "--", "sh", "-c",
                        command], 30, code, env=shared_env(case))
        check("never fired" not in run.err, f"said: {run.err}")


def faults_of_a_running_instance(case):
    env = case.instance(flags=["--wire=1"]).env()
    fault = lambda *words: case.run([VERBENA, "fault", *words], 10, env=env).out  # noqa: E731
    check(fault("report") == "No fault rules.\n", "there are rules from the start")
    rules = rules_file(case, "seed 5\ndelay for=10us opcode=send_only nth=3\n")
    line = "line 2: delay for=10us opcode=send_only nth=3: matched {}, fired {}"
    check(line.format(0, 0) in fault("set", rules), "the rules set are not told")
    case.run(["sh", "-c", pingpong(options="-n 100 -s 64")], 20, env=env)
    report = fault("report")
    check("seed 5\n" in report and report.rstrip().endswith(", fired 1"), f"reported: {report}")
    bad = case.spawn([VERBENA, "fault", "set", rules_file(case, "dorp\n")], env=env)
    check(bad.wait(10) == 1 and "dorp" in bad.err, f"said: {bad.err}")
    unread = case.spawn([VERBENA, "fault", "set", case.dir], env=env)
    check(unread.wait(10) == 1 and "directory" in unread.err, f"said: {unread.err}")
    check(fault("report") == report, "wrong rules replaced the others")
    check(fault("clear") == "No fault rules.\n", "some rules are left")


def equal_seeds_report_equally(case):
    """Datagrams are never sent again, so that a pingpong of 200 is as many packets in each run."""
    rules = rules_file(case, "delay for=1us nic=verbena0 dir=out service=ud percent=30\n")
    def report(seed):
        pair = pingpong("ibv_ud_pingpong", "-n 200")
        run = case.run([VERBENA, "run", "--nics", "2", "--faults", rules, "--seed", str(seed), "--",
                        "sh", "-c", f"{pair} && {VERBENA} fault report"], 30,
                       env=shared_env(case))
        check(f"seed {seed}\n" in run.out and "matched 200, fired " in run.out, f"said: {run.out}")
        return run.out[run.out.index("line 1"):]
    check(report(7) == report(7), "a seed does not repeat itself")
    check(report(7) != report(8), "what is drawn does not depend on the seed")


def wrong_usage_is_explained(case):
    for arguments in (["frobnicate"], ["run"], ["show", "nothing"],
                      ["run", "--nics", "0", "--", "true"]):
        process = case.spawn([VERBENA, *arguments], env=shared_env(case))
        check(process.wait(10) not in (0, 139), f"{arguments} succeeds or crashes")
        check(process.err.strip() or process.out.strip(), f"{arguments}: not a word")


def forced_backend_that_is_missing(case):
    process = case.spawn([VERBENA, "run", "--private", "--dma", "pinned", "--", "ibv_devices"],
                         env=shared_env(case))
    check(process.wait(15) != 0, "a backend that is not there was accepted")
    check("pinned" in process.err, f"not said why: {process.err}")


def become_nobody(home):
    user = pwd.getpwnam("nobody")

    def preexec():
        os.setgroups([])
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)
    environment = dict(clean_environment(), HOME=str(home), USER="nobody")
    return preexec, environment


def unprivileged_user(case):
    """A whole pair as 'nobody', from a copy of the staged build that this user can read."""
    stage = case.dir / "stage"
    shutil.copytree(STAGE / "bin", stage / "bin")
    shutil.copytree(STAGE / "lib", stage / "lib")
    home = case.dir / "home"
    home.mkdir()
    if os.getuid() == 0:
        user = pwd.getpwnam("nobody")
        os.chown(home, user.pw_uid, user.pw_gid)
        preexec, env = become_nobody(home)
        os.chmod(case.dir, 0o777)
    else:
        preexec, env = None, dict(clean_environment(), HOME=str(home))
    env["VERBENA_INSTANCE"] = str(home / "instance")
    verbena = stage / "bin" / "verbena"
    port = str(free_port())
    common = [verbena, "run", "--nics", "2", "--", "ib_send_bw", "-F", "-n", "500", "-p", port]
    server = case.spawn(common, env=env, name="server", preexec=preexec)
    wait_for(lambda: is_listening(int(port)), 15, "the server listens")
    case.run([*common, "localhost"], 20, env=env, name="client", preexec=preexec)
    server.expect_exit(10)
    case.run([verbena, "down"], 10, env=env, preexec=preexec)


def others_instance_is_refused(case):
    """The instance of one user is closed to another."""
    if os.getuid() != 0:
        case.note("not run as root: checked by permissions only")
    instance = case.instance()
    mode = os.stat(instance.directory / "sock").st_mode & 0o777
    check(mode == 0o600, f"the socket's mode is {mode:o}")
    if os.getuid() == 0:
        preexec, env = become_nobody(case.dir)
        env.update(VERBENA_INSTANCE=str(instance.directory), LD_LIBRARY_PATH=str(STAGE / "lib"),
                   VERBENA_AUTOSTART="0")
        process = case.spawn(["ibv_devices"], env=env, preexec=preexec)
        process.wait(10)
        check("verbena0" not in process.out, "another user's NIC is listed")


def idle_instance_ends(case):
    instance = case.instance(idle_exit_s=1)
    instance.daemon.wait(10)
    check(instance.daemon.popen.returncode == 0, "it did not end cleanly")
    check(not (instance.directory / "sock").exists(), "the socket was left behind")


def stale_socket_is_no_obstacle(case):
    env = shared_env(case)
    case.run([VERBENA, "up"], 15, env=env)
    daemon = status(case, env)["pid"]
    os.kill(daemon, signal.SIGKILL)
    wait_for(lambda: not socket_answers(env), 5, "the daemon is dead")
    process = case.run([VERBENA, "run", "--", "ibv_devices"], 15, env=env)
    check("verbena0" in process.out, process.out)
    case.run([VERBENA, "down"], 10, env=env)


def socket_answers(env):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
        try:
            s.connect(env["VERBENA_INSTANCE"] + "/sock")
            return True
        except OSError:
            return False


def starting_at_once_starts_one(case):
    env = dict(shared_env(case), LD_LIBRARY_PATH=str(STAGE / "lib"))
    lists = [case.spawn(["ibv_devices"], env=env) for _ in range(12)]
    for process in lists:
        process.expect_exit(15)
        check("verbena0" in process.out, process.out)
    check(len(children_named("verbenad")) == 1,
          f"{len(children_named('verbenad'))} daemons were started for one directory")


def cases(thorough):
    return [
        Spec("two shells find each other", two_shells_find_each_other, 60),
        Spec("exit code is the command's", exit_code_is_the_commands, 60),
        Spec("signals reach the command", signals_reach_the_command),
        Spec("out=$(ibv_devices) with autostart returns at once", autostart_returns_at_once),
        Spec("VERBENA_AUTOSTART=0", autostart_can_be_refused),
        Spec("twelve starters make one daemon", starting_at_once_starts_one),
        Spec("eight private runs at once", private_ones_do_not_meet, 90),
        Spec("env sets up a shell", env_sets_up_a_shell),
        Spec("up, status, devices, down", up_status_down, 60),
        Spec("asking for more NICs adds them", more_nics_are_added, 60),
        Spec("show prints valid JSON", show_is_valid_json, 60),
        Spec("show tells owner, state and keys", show_tells_owner_state_and_keys),
        Spec("memory is mapped where the user asks for it", backend_that_was_asked_for),
        Spec("doctor explains", doctor_explains),
        Spec("wrong usage is explained", wrong_usage_is_explained, 60),
        Spec("ulimit -f is explained", small_files_are_explained),
        Spec("nonsense in the environment is explained", nonsense_in_the_environment_is_explained),
        Spec("a full disk ends no capture quietly", full_disk_ends_no_capture_quietly),
        Spec("captures of a run, and of an instance", captures_of_a_run_and_of_an_instance, 90),
        Spec("captured multicast names its members", captured_multicast_names_its_members, 60),
        Spec("traces of a run, and of an instance", traces_of_a_run_and_of_an_instance, 90),
        Spec("fault rules that never fire fail the run", rules_that_never_fire_fail_the_run, 90),
        Spec("fault rules of a running instance", faults_of_a_running_instance, 60),
        Spec("equal seeds report equally", equal_seeds_report_equally, 90),
        Spec("a backend that cannot be had is refused", forced_backend_that_is_missing),
        Spec("unprivileged user", unprivileged_user, 60),
        Spec("another user's instance is closed", others_instance_is_refused),
        Spec("idle instance ends", idle_instance_ends),
        Spec("a stale socket is no obstacle", stale_socket_is_no_obstacle, 60),
    ]
