"""Every style rule finds a violation planted for it, and leaves its legal neighbour alone."""

import json
import pathlib
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import style  # noqa: E402

HEAD = "// Purpose.\n#pragma once\n"


class StyleTest(unittest.TestCase):
    def setUp(self):
        self.place = tempfile.TemporaryDirectory()
        self.root = pathlib.Path(self.place.name)

    def tearDown(self):
        self.place.cleanup()

    def plant(self, path, text):
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def found(self, rule):
        return list(rule(self.root))

    def test_mutations_whose_place_is_gone(self):
        self.assertEqual(self.found(style.mutation_places), [])
        self.plant("softnic/a.cc", "int a = 1;\nint b = 2;\nint c = 2;\n")
        self.plant("tests/mutation/mutations.json", json.dumps(
            [{"file": "softnic/a.cc", "from": "= 1;"}, {"file": "softnic/a.cc", "from": "= 2;"},
             {"file": "softnic/a.cc", "from": "= 3;"}, {"file": "softnic/gone.cc", "from": "x"}]))
        self.assertEqual(len(self.found(style.mutation_places)), 3)

    def test_rows_whose_tests_are_gone(self):
        self.assertEqual(self.found(style.listed_tests), [])
        self.plant("tests/conformance/a_test.cc", "TEST_F(Verb_a, Works) {\n}\nTEST(B,\n  C) {}\n")
        self.plant("tests/conformance/providers.rows", "ibv_a | yes | no\n")
        self.plant("tests/conformance/verbs.rows", "[X]\nibv_a | Later.*\nibv_b | Verb_a.*\n")
        self.plant("tests/conformance/enumerations.rows", "A | yes | no |\nB | yes | no\n")
        self.plant("tests/conformance/errors.rows",
                   "# a comment\nm | o | - | - | s | Verb_a.Works, B.*\n"
                   "m | o | - | - | s | Verb_a.Works, Verb_a.Gone\nm | o | - | - | s |\n")
        found = self.found(style.listed_tests)
        self.assertEqual([line.split(":")[0].rsplit("/")[-1] for line in found],
                         ["errors.rows", "errors.rows", "verbs.rows", "enumerations.rows"])

    def test_rdmacm_functions_without_a_row(self):
        self.assertEqual(self.found(style.rdmacm_rows), [])
        self.plant("tests/abi/librdmacm.symbols",
                   "# a comment\nRDMACM_1.0@@RDMACM_1.0\nrdma_a@@RDMACM_1.0\nrdma_b@@RDMACM_1.1\n")
        self.plant("tests/conformance/a_test.cc", "TEST(Cm_rdma_a, Works) {}\n")
        self.plant("tests/conformance/rdmacm-support.rows",
                   "[X]\nrdma_a | yes | - | Cm_rdma_a.*\nE | no | - | not offered:\n"
                   "F | no | - | not offered: Cm_gone.*\nG | no | - | unit: Gone.Works\nH | no | -\n")
        self.assertEqual(len(self.found(style.rdmacm_rows)), 1)
        self.assertEqual([line.split(":")[1] for line in self.found(style.listed_tests)], ["4", "6"])

    def test_each_ban(self):
        bad = ["auto t = std::chrono::steady_clock::now();", "std::random_device d;",
               "std::thread t(F);", "usleep(5);", "getenv(\"X\");", "std::set<Qp*> s;",
               "double wait_us = 0;", "clock_gettime(0, &t);", "std::map<const Qp *, int> m;"]
        for line in bad:
            self.plant("transport/rc/a.cc", line + "\n")
            self.assertEqual(len(self.found(style.determinism_bans)), 1, line)
        for line in ["// steady_clock::now is not read here", "std::set<Psn> s;", "uint64_t x_us;",
                     "void OnSleep();", "double ratio;", "int operand(1);"]:
            self.plant("transport/rc/a.cc", line + "\n")
            self.assertEqual(self.found(style.determinism_bans), [], line)

    def test_bans_end_where_the_outside_world_begins(self):
        for path in ["transport/port/uring/a.cc", "core/client/a.cc", "softnic/engine/a.cc"]:
            self.plant(path, "std::thread t(F);\n")
        self.plant("core/ring/ring_test.cc", "std::thread t(F);\n")
        self.assertEqual(self.found(style.determinism_bans), [])
        self.plant("core/ring/ring_test.cc", "getenv(\"X\");\n")
        self.assertEqual(len(self.found(style.determinism_bans)), 1)

    def test_walking_a_hash_table(self):
        self.plant("transport/rc/t.h", HEAD + "absl::flat_hash_map<Qpn, std::pair<int, int>> qps_;\n")
        self.plant("transport/rc/t.cc", "for (auto& [q, v] : qps_) Use(q);\n")
        self.assertEqual(len(self.found(style.hash_iteration)), 1)
        self.plant("transport/rc/t.cc", "auto it = qps_.begin();\n")
        self.assertEqual(len(self.found(style.hash_iteration)), 1)
        self.plant("transport/rc/t.cc", "auto it = qps_.find(q);\nfor (auto& x : list_) Use(x);\n")
        self.assertEqual(self.found(style.hash_iteration), [])

    def test_sizes(self):
        self.plant("softnic/a.cc", "\n" * style.FILE_LINES_MAX)
        self.assertEqual(self.found(style.file_sizes), [])
        self.plant("softnic/a.cc", "\n" * (style.FILE_LINES_MAX + 1))
        self.assertEqual(len(self.found(style.file_sizes)), 1)
        self.plant("softnic/a.cc", "x" * style.COLUMNS_MAX + "\n")
        self.assertEqual(self.found(style.line_lengths), [])
        self.plant("softnic/a.cc", "x" * (style.COLUMNS_MAX + 1) + "\n")
        self.assertEqual(len(self.found(style.line_lengths)), 1)

    def test_headers(self):
        self.plant("core/base/a.h", HEAD)
        self.assertEqual(self.found(style.header_guards) + self.found(style.purpose_lines), [])
        self.plant("core/base/a.h", "int x;\n")
        self.assertEqual(len(self.found(style.header_guards)), 1)
        self.assertEqual(len(self.found(style.purpose_lines)), 1)

    def test_open_ends(self):
        self.plant("core/base/a.cc", "// " + "TO" + "DO: later\n")
        self.assertEqual(len(self.found(style.open_ends)), 1)

    def test_readmes(self):
        self.plant("core/README.md", "x\n" * 30)
        self.assertEqual(self.found(style.folder_readmes), [])
        self.plant("core/README.md", "x\n" * 31)
        self.plant("tests/a", "")
        self.assertEqual(len(self.found(style.folder_readmes)), 2)

    def test_shims(self):
        self.plant("verbs_shim/a.cc", "#include \"absl/strings/str_cat.h\"\n")
        self.plant("verbs_shim/a_test.cc", "#include <thread>\n")
        self.assertEqual(len(self.found(style.shim_layering)), 1)


if __name__ == "__main__":
    unittest.main()
