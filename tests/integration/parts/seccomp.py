"""Everything works where io_uring and userfaultfd are refused, as in a default container."""

from harness import STAGE, Spec, check, free_port
from hosts import Pair
from parts.pair import run_pair


def demo_pair(case):
    instance = case.instance(wrapper=[case.program("refuse_syscalls")])
    pair = Pair.beside(instance)
    refuse = str(case.program("refuse_syscalls"))
    port = free_port()
    run_pair(case, pair, [refuse, "ibv_rc_pingpong", "-c", "-g", "1", "-p", str(port)],
             [refuse, "ibv_rc_pingpong", "-c", "-g", "1", "-p", str(port), "localhost"], port, 20)
    port = free_port()
    common = [refuse, "ib_write_bw", "-F", "-x", "1", "-n", "500", "-p", str(port)]
    run_pair(case, pair, common, [*common, "127.0.0.1"], port, 20)


def run_command(case):
    process = case.run([case.program("refuse_syscalls"), STAGE / "bin" / "verbena", "run",
                        "--private", "--", "ibv_devices"], 20)
    check("verbena0" in process.out, process.out)


def doctor_says_so(case):
    process = case.run([case.program("refuse_syscalls"), STAGE / "bin" / "verbena", "doctor"], 20)
    check("io_uring" in process.out, f"doctor does not mention io_uring:\n{process.out}")


def cases(thorough):
    return [
        Spec("daemon and clients under the filter", demo_pair, 60),
        Spec("verbena run under the filter", run_command, 30),
        Spec("doctor tells what is refused", doctor_says_so, 30),
    ]
