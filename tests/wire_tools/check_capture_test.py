"""Writes a capture by the daemon's taps and has it read by others: our checker, and tshark.

    check_capture_test.py WRITE_CAPTURE
"""

import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import check_capture  # noqa: E402
import compare_tshark  # noqa: E402

BTH = 8  # where it begins in a UDP datagram


class CheckCaptureTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.path = os.path.join(cls.folder.name, "all.pcapng")
        run = subprocess.run([os.environ["WRITE_CAPTURE"], cls.path], capture_output=True,
                             text=True, check=False)
        if run.returncode != 0:
            raise AssertionError(f"write_capture: {run.stderr}")
        cls.meant = [json.loads(line) for line in run.stdout.splitlines()]
        cls.data = pathlib.Path(cls.path).read_bytes()

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def packets(self):
        return list(check_capture.packets_of(self.data))

    def file_of(self, name, wanted, change=lambda body: body):
        """Writes a file with the packets whose numbers are wanted."""
        blocks, number = [], 0
        for order, kind, body in check_capture.blocks_of(self.data):
            number += kind == 6
            if kind != 6 or wanted(number):
                body = change(body) if kind == 6 else body
                length = struct.pack(order + "I", len(body) + 12)
                blocks.append(struct.pack(order + "I", kind) + length + body + length)
        path = os.path.join(self.folder.name, name)
        pathlib.Path(path).write_bytes(b"".join(blocks))
        return path

    def check_changed(self, packet, change):
        """Errors of the packet with its bytes changed and the UDP checksum put right again."""
        frame = bytearray(packet.data)
        header = 20 if frame[0] >> 4 == 4 else 40
        change(frame, header)
        udp = frame[header:]
        udp[6:8] = b"\0\0"
        pseudo = frame[12:20] if header == 20 else frame[8:40]
        total = check_capture.ones_sum(bytes(pseudo) + struct.pack(">HH", 17, len(udp)) + bytes(udp))
        frame[header + 6:header + 8] = struct.pack(">H", (~total & 0xFFFF) or 0xFFFF)
        path = self.file_of("changed.pcapng", lambda number: number == packet.number,
                            lambda body: body.replace(packet.data, bytes(frame)))
        return check_capture.check_file(path).errors

    def test_everything_written_is_right(self):
        report = check_capture.check_file(self.path, lossless=True, comments=True)
        self.assertEqual(report.errors, [])
        # Every opcode of every service was there.
        self.assertEqual(len(report.opcodes), 25 + 12 + 2)
        self.assertEqual(report.counts["corrupted_by_rule"], 4)

    def test_packets_are_what_the_writer_meant(self):
        packets = check_capture.check_file(self.path).packets
        copies = [p for p in packets if "duplicated" in p["comment"]]
        self.assertEqual(len(copies), 3)
        # One packet is delayed past those after it, and has copies before.
        late = [p for p in packets if "delayed" in p["comment"]]
        self.assertEqual(late, packets[-1:])
        inline = [p for p in packets if p not in copies[1:] and p not in late]
        meant = [m for m in self.meant if not (m["interface"] == "nic1" and m["direction"] == "out"
                                               and m["psn"] == late[0]["psn"])]
        self.assertEqual(len(inline), len(meant))
        for packet, wanted in zip(inline + late, meant + [m for m in self.meant if m not in meant]):
            self.assertEqual({name: packet.get(name) for name in wanted}, wanted)

    def test_addresses_times_and_comments(self):
        packets = check_capture.check_file(self.path).packets
        self.assertEqual({p["interface"] for p in packets}, {"nic0", "nic1"})
        self.assertEqual({p["version"] for p in packets}, {4, 6})
        self.assertEqual(packets[0]["time_ns"], 1_700_000_000 * 10 ** 9 + 1234)
        self.assertEqual(packets[0]["comment"], "write_capture (pid 1) QP 0x11 → QP 18")
        self.assertEqual(sorted(p["comment"].split("; ")[1] for p in packets
                                if "dropped" in p["comment"]),
                         ["fault: dropped (line 7)", "fault: dropped (lose-one)"])
        self.assertEqual({p["ip_id"] for p in packets
                          if p["version"] == 4 and p["direction"] == "out"}, {0})

    def test_the_checker_finds_each_flipped_bit(self):
        chosen = {}
        for packet in self.packets():
            if "fault" not in packet.comment and len(packet.data) < 200:
                chosen[packet.data[0] >> 4, packet.direction] = packet
        self.assertEqual(len(chosen), 4)
        for packet in chosen.values():
            size = len(packet.data) - (20 if packet.data[0] >> 4 == 4 else 40)
            for byte in range(BTH, size):
                def flip(frame, header, byte=byte):
                    frame[header + byte] ^= 1 << byte % 8
                errors = self.check_changed(packet, flip)
                if byte == BTH + 4:
                    self.assertEqual(errors, [])  # FECN, BECN: the ICRC leaves them out
                else:
                    self.assertEqual(len(errors), 1, f"byte {byte}")
                    self.assertIn("ICRC", errors[0])

    def test_the_checker_finds_a_psn_left_out(self):
        victim = next(p for p in check_capture.check_file(self.path).packets
                      if p["direction"] == "out" and p["name"] == "RC WRITE_MIDDLE")
        path = self.file_of("gap.pcapng", lambda number: number != victim["number"])
        errors = check_capture.check_file(path).errors
        self.assertEqual(len(errors), 1)
        self.assertIn("1 PSNs left out", errors[0])

    def test_the_checker_finds_a_comment_that_names_nobody(self):
        comment = self.packets()[0].comment.encode()
        path = self.file_of("unnamed.pcapng", lambda number: number == 1,
                            lambda body: body.replace(comment, b"x" * len(comment)))
        self.assertEqual(check_capture.check_file(path).errors, [])
        errors = check_capture.check_file(path, comments=True).errors
        self.assertEqual(len(errors), 1)
        self.assertIn("whose it is", errors[0])

    def test_a_torn_file_is_refused(self):
        path = os.path.join(self.folder.name, "torn.pcapng")
        pathlib.Path(path).write_bytes(self.data[:-8])
        with self.assertRaises(check_capture.BadCapture):
            check_capture.check_file(path)

    @unittest.skipUnless(shutil.which("tshark"), "tshark is not installed")
    def test_tshark_dissects_the_same(self):
        compared, found = compare_tshark.differences(self.path)
        self.assertEqual(found, [])
        self.assertEqual(compared, len(self.meant) + 2 - 4)  # copies; corrupted ones


if __name__ == "__main__":
    os.environ["WRITE_CAPTURE"] = os.path.abspath(sys.argv.pop(1))
    unittest.main()
