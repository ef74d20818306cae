#!/usr/bin/python3
"""Tests of the interoperability set-up itself; those that need a guest are skipped without one."""

import importlib.machinery
import importlib.util
import os
import pathlib
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import guest  # noqa: E402
import image  # noqa: E402
import network  # noqa: E402
import scenarios  # noqa: E402
import udp_peer  # noqa: E402
from jobs import Failure, LocalJob  # noqa: E402


def load_runner():
    loader = importlib.machinery.SourceFileLoader("interop_run", str(HERE / "run"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("interop_run", loader))
    loader.exec_module(module)
    return module


class Jobs(unittest.TestCase):
    def test_output_and_exit_code_are_told_apart(self):
        job = LocalJob(["sh", "-c", "echo out; echo err >&2; exit 3"])
        self.assertEqual((job.wait(20), job.out, job.err), (3, "out\n", "err\n"))
        with self.assertRaisesRegex(Failure, "exited 3, not 0"):
            job.expect(1)

    def test_one_that_outlives_its_limit_is_killed_with_its_children(self):
        job = LocalJob(["sh", "-c", "sleep 1000 & echo $!; wait"])
        job.wait_for_output("\n", 20)
        with self.assertRaisesRegex(Failure, "still ran"):
            job.wait(0.1)
        self.assertEqual(job.code, -9)
        path = pathlib.Path(f"/proc/{job.out.strip()}/stat")
        self.assertTrue(not path.exists() or path.read_text().rsplit(")", 1)[1].split()[0] == "Z")

    def test_waiting_for_output_ends_with_the_command(self):
        with self.assertRaisesRegex(Failure, "should say 'never'"):
            LocalJob(["true"]).wait_for_output("never", 60)


class Table(unittest.TestCase):
    def test_names_are_unique_and_every_factor_is_covered(self):
        cases = scenarios.cases()
        self.assertEqual(len({case.name for case in cases}), len(cases))
        for row in scenarios.ROWS:
            for factor in range(3):
                values = {arrangement[factor] for arrangement in row.arrangements}
                # perftest with rdma_cm resolves names to IPv4 addresses alone.
                is_fixed = factor == 0 and "by rdma_cm" in row.name
                self.assertEqual(len(values), 1 if is_fixed else 2, row.name)

    def test_perftest_lines_are_read_and_their_absence_is_noticed(self):
        class Side:
            err, argv = "", []

            def __init__(self, out):
                self.out = out

            def tail(self, lines=0):
                return self.out

        row = scenarios.perftest("x", ["ib_send_bw"])
        head = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n"
        line = " 65536      200              {0}              {0}		   {1}\n"
        good = Side(head + line.format("57.07", "0.000913"))
        scenarios.check_perftest(good, good, row)
        for bad in (head, head + line.format("0.00", "0.000000")):
            with self.assertRaises(Failure):
                scenarios.check_perftest(good, Side(bad), row)

    def test_an_unknown_clock_excuses_figures(self):
        class Side:
            def __init__(self, out, err=""):
                self.out, self.err = out, err

            def tail(self, lines=0):
                return self.out

        row = scenarios.perftest("x", ["ib_send_lat"])
        table = " #bytes #iterations t_min[usec]\n 2  200  inf  inf  inf  inf  -nan  inf  inf\n"
        scenarios.check_perftest(Side(""), Side(table, "Correlation coefficient r^2: 0.7 < 0.9"), row)
        with self.assertRaises(Failure):
            scenarios.check_perftest(Side(""), Side(table), row)

    def test_a_deviation_that_is_no_number_is_read(self):
        text = " #bytes #iterations t_min[usec]\n 8388608 5   9.5  11.2  10.7  10.7  -nan  11.2\n"
        self.assertEqual(scenarios.table_rows(text)[0][:5], [8388608, 5, 9.5, 11.2, 10.7])

    def test_gid_is_found_by_address(self):
        text = ("GID[  0]:\t\tfe80::5054:ff:fe76:a, RoCE v2\n"
                "GID[  1]:\t\t::ffff:10.77.0.10, RoCE v2\nGID[  2]:\t\tfd77::a, RoCE v2\n")
        runner = load_runner()
        self.assertEqual(runner.gid_of(text, "10.77.0.10"), 1)
        self.assertEqual(runner.gid_of(text, "fd77::a"), 2)
        with self.assertRaisesRegex(Failure, "no GID"):
            runner.gid_of(text, "10.77.0.1")


class Boots(unittest.TestCase):
    def laboratory(self, failures):
        runner = load_runner()
        lab = object.__new__(runner.Laboratory)
        lab.guests, lab.left = [], failures

        def boot():
            if lab.left:
                lab.left -= 1
                raise Failure("does not come up")
        lab.boot = boot
        return lab, runner.BOOTS_MAX

    def test_a_guest_that_does_not_come_up_gets_another_go_but_not_for_ever(self):
        lab, most = self.laboratory(1)
        lab.boot_or_retry()
        self.assertEqual(lab.left, 0)
        lab, most = self.laboratory(100)
        with self.assertRaisesRegex(Failure, "does not come up"):
            lab.boot_or_retry()
        self.assertEqual(lab.left, 100 - most)


class Formats(unittest.TestCase):
    def test_icrc_ignores_what_routers_change_and_nothing_else(self):
        packet = bytearray(udp_peer.ud_send(0x11, 7, b"abc"))

        def crc(data, port=4791, ip_id=0):
            return udp_peer.icrc("10.0.0.1", "10.0.0.2", port, bytes(data), ip_id)

        good = crc(packet)
        for position in range(len(packet)):
            packet[position] ^= 1
            self.assertEqual(crc(packet) == good, position == 4, position)  # 4: FECN, BECN
            packet[position] ^= 1
        self.assertNotEqual(crc(packet, port=4790), good)
        self.assertNotEqual(crc(packet, ip_id=1), good)

    def test_initramfs_is_what_tools_call_newc(self):
        with tempfile.TemporaryDirectory() as name:
            root = pathlib.Path(name) / "root"
            (root / "d").mkdir(parents=True)
            (root / "d" / "f").write_bytes(b"12345")
            (root / "l").symlink_to("d/f")
            target = pathlib.Path(name) / "out"
            image._write_initramfs(root, target)  # pylint: disable=protected-access
            data, names, offset = target.read_bytes(), [], 0
            while True:
                self.assertEqual(data[offset:offset + 6], b"070701")
                size = int(data[offset + 54:offset + 62], 16)
                name_bytes = int(data[offset + 94:offset + 102], 16)
                names.append(data[offset + 110:offset + 110 + name_bytes - 1].decode())
                offset += (110 + name_bytes + 3) // 4 * 4
                offset += (size + 3) // 4 * 4
                if names[-1] == "TRAILER!!!":
                    break
            self.assertEqual((names, offset), (["d", "d/f", "l", "TRAILER!!!"], len(data)))


class Networks(unittest.TestCase):
    def test_closing_ends_what_was_left_inside_and_nothing_else(self):
        try:
            net = network.Network()
        except (image.Unavailable, network.NoNetwork) as why:
            self.skipTest(str(why))
        outside = LocalJob(["sleep", "1000"])
        inside = LocalJob([*net.prefix, "sh", "-c", "echo in; exec sleep 1000"])
        inside.wait_for_output("in", 60)
        try:
            net.close()
            self.assertEqual(inside.wait(60), -15)
            self.assertTrue(outside.is_running())
        finally:
            outside.kill()


class Guests(unittest.TestCase):
    def test_files_limits_parallel_networks_and_a_crash(self):
        try:
            with network.Network() as net, network.Network() as other:
                other.add_tap(guest.FIRST_INDEX)  # same names, same addresses: nobody minds
                with guest.Guest(net) as machine:
                    self.talk_to(machine)
        except (image.Unavailable, network.NoNetwork) as why:
            self.skipTest(str(why))

    def talk_to(self, machine):
        data = os.urandom(300_000)
        machine.put("/tmp/there/file", data)
        self.assertEqual(machine.get("/tmp/there/file"), data)
        self.assertEqual(machine.sh("echo -n a; echo -n b >&2; exit 5", code=5).out, "a")
        with self.assertRaisesRegex(Failure, "still ran after"):
            machine.run(["sleep", "1000"], 0.5)
        with self.assertRaisesRegex(Failure, "No such file"):
            machine.run(["no-such-program"])
        machine.sh(f"ibv_devinfo -d {guest.DEVICE}")
        waiting = machine.spawn(["sleep", "1000"])
        # By the guest's end, not by the limit, whose text is another.
        with self.assertRaisesRegex(Failure, "the guest is gone.*console"):
            machine.sh("echo c >/proc/sysrq-trigger", 100)
        with self.assertRaisesRegex(Failure, "the guest is gone"):
            waiting.wait(100)
        with self.assertRaisesRegex(Failure, "the guest is gone"):
            machine.sh("true")
        self.assertIn("sysrq", machine.console())


if __name__ == "__main__":
    unittest.main()
