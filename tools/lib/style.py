"""Style rules that a machine can check: determinism bans, sizes, and what every file must have.

    style.py [--cases] [ROOT]    lists violations; --cases prints one `ok`/`FAIL` line per rule

A rule is a function from a tree to violations ("path:line: text"). The rules are tested against
planted violations in style_test.py.
"""

import fnmatch
import json
import pathlib
import re
import sys

FILE_LINES_MAX = 600
FOLDER_README_LINES_MAX = 30
COLUMNS_MAX = 100
TOP_FOLDERS = ["core", "transport", "softnic", "verbs_shim", "fi_shim", "tools", "tests"]
CODE_FOLDERS = TOP_FOLDERS

# Where the same inputs must give the same outputs, byte for byte. core/client is not among them: it
# is the part of core that talks to the operating system.
DETERMINISTIC = ["core/base", "core/shm", "core/ring", "transport/wire", "transport/rc",
                 "transport/uc", "transport/ud", "transport/xrc", "transport/cm",
                 "transport/port/local", "transport/port/sim", "transport",
                 "softnic/device", "softnic/cm"]
# Folders below transport/ whose job is the outside world.
NOT_DETERMINISTIC = ["transport/port/udp", "transport/port/uring", "transport/port/epoll",
                     "transport/port/tap"]

# (what, pattern, also in tests)
BANS = [
    ("reads a clock", r"\b\w*_clock::now\b|\bclock_gettime\s*\(|\bgettimeofday\s*\("
     r"|\bReadMonotonicClock\b", True),
    ("draws from the system's randomness",
     r"\brandom_device\b|\bgetrandom\s*\(|\bs?rand\s*\(|\barc4random", True),
    ("starts a thread", r"\bstd::(j?thread|async)\b|\bpthread_create\b", False),
    ("sleeps", r"\bsleep_(for|until)\b|\b(u|nano)?sleep\s*\(", True),
    ("reads the environment", r"\b(secure_)?getenv\s*\(", True),
    ("orders by address", r"\bstd::(multi)?(set|map)<\s*(const\s+)?[\w:]+\s*\*", True),
    ("keeps time as floating point", r"\b(double|float)\s+\w*_(ns|us|ms|s)\b", False),
]
TEST_NAME = re.compile(r"^TEST(?:_F|_P)?\((\w+),\s*(\w+)\)", re.M)
HASHED = re.compile(r"\b(?:absl::(?:flat|node)_hash_(?:map|set)|std::unordered_(?:map|set))<.*>\s+"
                    r"(\w+)\s*(?:;|=|\{|ABSL_)")


def code_files(root, folders=None):
    for folder in folders or CODE_FOLDERS:
        base = root / folder
        if base.is_dir():
            for path in sorted(base.rglob("*")):
                if path.suffix in (".cc", ".h") and path.is_file():
                    yield path


def lines_of(path):
    return path.read_text(encoding="utf-8", errors="replace").splitlines()


def without_comment(line):
    return line.split("//", 1)[0]


def is_deterministic(root, path):
    folder = path.parent.relative_to(root).as_posix()
    if any(folder == no or folder.startswith(no + "/") for no in NOT_DETERMINISTIC):
        return False
    return any(folder == yes or folder.startswith(yes + "/") for yes in DETERMINISTIC)


def determinism_bans(root):
    for path in code_files(root, ["core", "transport", "softnic/device", "softnic/cm"]):
        if not is_deterministic(root, path):
            continue
        is_test = path.stem.endswith("_test")
        for number, line in enumerate(lines_of(path), 1):
            for what, pattern, in_tests in BANS:
                if (in_tests or not is_test) and re.search(pattern, without_comment(line)):
                    yield f"{path.relative_to(root)}:{number}: {what}: {line.strip()}"


def hash_iteration(root):
    """Hash tables may be looked up, not walked: Abseil randomises their order on purpose."""
    for path in code_files(root, ["core", "transport", "softnic/device", "softnic/cm"]):
        if not is_deterministic(root, path):
            continue
        twin = path.with_suffix(".h" if path.suffix == ".cc" else ".cc")
        text = lines_of(path)
        declared = text + (lines_of(twin) if twin.exists() else [])
        names = {match.group(1) for line in declared
                 for match in HASHED.finditer(without_comment(line))}
        for number, line in enumerate(text, 1):
            match = re.search(r"\bfor\s*\(.*[^:]:\s*(?:this->)?(\w+)\s*\)", without_comment(line))
            begins = re.search(r"\b(\w+)\.begin\(\)", without_comment(line))
            for found in (match, begins):
                if found and found.group(1) in names:
                    yield f"{path.relative_to(root)}:{number}: walks a hash table: {line.strip()}"


def file_sizes(root):
    for path in code_files(root):
        count = len(lines_of(path))
        if count > FILE_LINES_MAX:
            yield f"{path.relative_to(root)}: {count} lines, more than {FILE_LINES_MAX}"


def line_lengths(root):
    for path in code_files(root):
        for number, line in enumerate(lines_of(path), 1):
            if len(line) > COLUMNS_MAX and "http" not in line:
                yield f"{path.relative_to(root)}:{number}: {len(line)} columns"


def header_guards(root):
    for path in code_files(root):
        # Version scripts' and tables' includes are no headers of their own.
        if path.suffix == ".h" and "#pragma once" not in lines_of(path):
            yield f"{path.relative_to(root)}: no #pragma once"


def purpose_lines(root):
    for path in code_files(root):
        if path.suffix == ".h":
            first = next(iter(lines_of(path)), "")
            if not first.startswith("//"):
                yield f"{path.relative_to(root)}: does not begin with its purpose"


def open_ends(root):
    mark = re.compile(r"\b(" + "TO" + "DO|FIX" + "ME|XX" + r"X)\b")
    for path in code_files(root):
        for number, line in enumerate(lines_of(path), 1):
            if mark.search(line):
                yield f"{path.relative_to(root)}:{number}: {line.strip()}"


def folder_readmes(root):
    for folder in TOP_FOLDERS:
        if not (root / folder).is_dir():
            continue
        readme = root / folder / "README.md"
        if not readme.exists():
            yield f"{folder}/README.md is missing"
        elif len(lines_of(readme)) > FOLDER_README_LINES_MAX:
            yield f"{folder}/README.md is longer than {FOLDER_README_LINES_MAX} lines"


def mutation_places(root):
    """tests/mutation/run takes long and runs seldom; a place that moved is to be known at once."""
    listed = root / "tests/mutation/mutations.json"
    for mutation in json.loads(listed.read_text(encoding="utf-8")) if listed.exists() else []:
        path = root / mutation["file"]
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        if text.count(mutation["from"]) != 1:
            yield f"{mutation['file']}: holds not exactly one {mutation['from']!r}"


def rows_of(path):
    """Lines of a list that are neither a comment nor a heading, by number."""
    for number, line in enumerate(lines_of(path) if path.exists() else [], 1):
        if line and not line.startswith(("#", "[")):
            yield number, [cell.strip() for cell in line.split(" |")]


def listed_tests(root):
    """Every row of errors.rows and the like names tests, each one of tests/conformance. The rows of
    verbs.rows and enumerations.rows may name what does not work yet; their cells are counted."""
    lists = root / "tests/conformance"
    existing = set()
    for path in lists.glob("*_test.cc"):
        existing.update(".".join(m) for m in
                        TEST_NAME.findall(path.read_text(encoding="utf-8")))
    verbs = {cells[0] for _, cells in rows_of(lists / "providers.rows")}
    for name, cell_count in (("errors.rows", 6), ("verbs.rows", 2), ("enumerations.rows", 4),
                             ("providers.rows", 3), ("v64.rows", 2),
                             ("parent_domains.rows", 3), ("rdmacm-support.rows", 4)):
        for number, cells in rows_of(lists / name):
            where = f"tests/conformance/{name}:{number}"
            if len(cells) != cell_count:
                yield f"{where}: {len(cells)} cells, not {cell_count}"
            elif name == "verbs.rows" and cells[0] not in verbs:
                yield f"{where}: no row of providers.rows says what rxe and mlx5 do"
            elif (name in ("errors.rows", "v64.rows", "parent_domains.rows", "rdmacm-support.rows")
                  and not cells[-1].startswith("not due: ")):
                for pattern in cells[-1].removeprefix("not offered:").strip().split(", "):
                    if pattern.startswith(("pyverbs ", "unit: ")) or (
                            not pattern and cells[-1].startswith("not offered:")):
                        continue
                    # Behind the slash stands a parameter.
                    if not fnmatch.filter(existing, pattern.partition("/")[0]):
                        yield f"{where}: there is no test {pattern}"


def rdmacm_rows(root):
    """docs/rdmacm-support.md is complete: each exported function has a row."""
    symbols = root / "tests/abi/librdmacm.symbols"
    listed = {cells[0] for _, cells in rows_of(root / "tests/conformance/rdmacm-support.rows")}
    for number, line in enumerate(lines_of(symbols) if symbols.exists() else [], 1):
        name, at, _ = line.partition("@@")
        if at and not line.startswith(("#", "RDMACM_")) and name not in listed:
            yield f"tests/abi/librdmacm.symbols:{number}: rdmacm-support.rows has no row for {name}"


def shim_layering(root):
    """The shims live in other people's processes: no Abseil, Boost, liburing, iostreams."""
    pattern = re.compile(r'#include\s*[<"](absl/|boost/|liburing|iostream|thread>|regex)')
    for path in code_files(root, ["verbs_shim", "fi_shim", "core/client"]):
        if path.stem.endswith(("_test", "_fixture")) or path.stem.startswith("fake_"):
            continue
        for number, line in enumerate(lines_of(path), 1):
            if pattern.search(line):
                yield f"{path.relative_to(root)}:{number}: {line.strip()}"


RULES = [
    ("protocol code has no clock, randomness, threads or environment", determinism_bans),
    ("protocol code walks no hash table", hash_iteration),
    (f"no file has more than {FILE_LINES_MAX} lines", file_sizes),
    (f"no line has more than {COLUMNS_MAX} columns", line_lengths),
    ("every header is included once", header_guards),
    ("every header says what it is for", purpose_lines),
    ("no open ends are marked in code", open_ends),
    ("every top folder has a short README", folder_readmes),
    ("every mutation of tests/mutation has its place", mutation_places),
    ("every test that docs/errors.md is made from exists", listed_tests),
    ("every function of librdmacm has a row in docs/rdmacm-support.md", rdmacm_rows),
    ("the shims include nothing that hosts could have in another version", shim_layering),
]


def main():
    arguments = sys.argv[1:]
    as_cases = "--cases" in arguments
    rest = [a for a in arguments if a != "--cases"]
    root = pathlib.Path(rest[0]) if rest else pathlib.Path(__file__).resolve().parents[2]
    failed = 0
    for name, rule in RULES:
        violations = list(rule(root))
        failed += bool(violations)
        if as_cases or violations:
            print(f"{'FAIL' if violations else 'ok'} {name}")
        for violation in violations:
            print(f"  {violation}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
