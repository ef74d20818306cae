"""perftest over every service each tool supports."""

import re

from harness import Spec, check, free_port
from hosts import Pair
from parts.pair import run_pair

SERVICES = {"send": ["RC", "UC", "UD"], "write": ["RC", "UC"], "read": ["RC"], "atomic": ["RC"]}
TWO, ONE = ("verbena0", "verbena1"), ("verbena0", "verbena0")
# perftest measures the CPU's clock for a quarter of a second before each row it prints; on a busy
# machine that takes longer than everything else.
ALL_SIZES_LIMIT_S = 120
# So of these only so many run without --thorough: each verb, service and kind is among them.
GATE_ALL_SIZES = {"ib_send_bw RC", "ib_write_bw UC", "ib_read_bw RC", "ib_write_lat RC", "ib_send_lat UD"}
# Of perftest, all measured. Whether its last message has come an end does not learn when what is lost
# is the acknowledgement, as the other has gone by then: "retry exceeded" (12), on any NIC. The last
# message is that of closing, or where a tool has none (ib_write_lat) the last of those measured.
LAST_WORD = r"Failed to close connection|Failed status 12: [^\n]*\n[^\n]*scnt={count}, ccnt={before}\n"
# Of figures far apart its standard deviation may be the root of something negative: "-nan".
ROW = re.compile(r"^\s*\d+\s+\d+(\s+([-\d.]+|-?nan))+\s*$")


def table_rows(text):
    """The numbers below the '#bytes' header."""
    rows, inside = [], False
    for line in text.splitlines():
        if line.strip().startswith("#bytes"):
            inside = True
        elif inside and ROW.match(line):
            rows.append([float(word) for word in line.split()])
    return rows


def check_table(side, kind, all_sizes):
    """The rows that say something."""
    rows = table_rows(side.out)
    # Beside other work perftest may fail to measure the CPU's clock; the row has no figures then.
    unmeasured = side.err.count("Correlation coefficient")
    check(len(rows) + unmeasured >= (10 if all_sizes else 1),
          f"{side.name} printed {len(rows)} result rows:\n{side.tail(40)}")
    blank = [row for row in rows if not any(row[2:])][:unmeasured]
    rows = [row for row in rows if row not in blank]
    for row in rows:
        # bandwidth: bytes, iterations, peak, average, rate; latency: bytes, iterations, min, max,
        # typical, average, …
        # Few small messages over a bad network come to a bandwidth of 0.00, and a rate.
        figures = [max(row[3:5])] if kind == "bw" else [row[2], row[4]]
        check(all(figure > 0 for figure in figures), f"{side.name}: implausible row {row}")
    check("error" not in side.err.lower(), f"{side.name} wrote: {side.err}")
    return rows


def run_tool(case, pair, tool, options, iterations, limit_s=40):
    """One run, its table checked; notes its last row."""
    kind = tool.split("_")[2]
    all_sizes = "-a" in options
    port = free_port()
    common = [tool, "-F", "-x", str(pair.gid_index), "-p", str(port), "-n", str(iterations),
              *options]
    server, client = run_pair(case, pair, [*common, "-d", pair.devices[0]],
                              [*common, "-d", pair.devices[1], pair.server.address], port,
                              ALL_SIZES_LIMIT_S if all_sizes else limit_s)
    rows = check_table(client, kind, all_sizes)
    if kind == "bw" and "-b" in options:
        check_table(server, kind, all_sizes)
    if not rows:
        return case.note("perftest could not measure the CPU's clock")
    last = rows[-1]
    case.note(f"{int(last[0])} B: " +
              (f"{last[3]:.0f} MiB/s" if kind == "bw" else f"{last[4]:.1f} µs typical"))


def allow_last_word(case, failure, tool, count):
    """Of a run on a network that loses packets, which is over: raises `failure` unless it is the
    loss of the last acknowledgement."""
    if not re.search(LAST_WORD.format(count=count, before=count - 1), str(failure)):
        raise failure
    server, client = case.processes[-2:]
    check(0 in [process.wait(10) for process in (server, client)],
          f"neither end ended well\n{failure}")
    # Of the tools whose client may miss that acknowledgement before it prints, both ends print.
    check_table(client if table_rows(client.out) else server, tool.split("_")[2], False)
    case.note("who got the last message was gone before its acknowledgement had come")


def perftest(tool, options, devices, iterations):
    def case_function(case):
        pair = Pair.beside(case.instance())
        pair.devices = devices
        run_tool(case, pair, tool, options, iterations)
    return case_function


def variants(verb, kind, service):
    """Names, options, devices and iterations of the runs of one tool over one service."""
    connection = ["-c", service] if verb != "atomic" else []
    yield "two NICs", connection, TWO, 1000
    yield "one NIC", connection, ONE, 1000
    if verb != "atomic":
        yield "all sizes", [*connection, "-a"], TWO, 100
        yield "path MTU 1024", [*connection, "-m", "1024"], TWO, 500
    if verb != "write":  # perftest: "Events feature not available on WRITE verb"
        yield "events", [*connection, "-e"], TWO, 500
    if verb in ("send", "write"):
        yield "inline", [*connection, "-I", "64", "-s", "64"], TWO, 1000
    if kind == "bw":
        yield "bidirectional", [*connection, "-b"], TWO, 500
        yield "8 QPs", [*connection, "-q", "8"], TWO, 500
    if verb == "send" and service in ("RC", "UD"):
        yield "shared receive queue", [*connection, "--use-srq"], TWO, 500
    if verb == "atomic":
        yield "compare and swap", ["-A", "CMP_AND_SWAP"], TWO, 500
        yield "fetch and add", ["-A", "FETCH_AND_ADD"], TWO, 500


def cases(thorough):
    specs = []
    for verb, services in SERVICES.items():
        for kind in ("bw", "lat"):
            tool = f"ib_{verb}_{kind}"
            for service in services:
                for name, options, devices, iterations in variants(verb, kind, service):
                    if (name == "all sizes" and not thorough and
                            f"{tool} {service}" not in GATE_ALL_SIZES):
                        continue
                    specs.append(Spec(f"{tool} {service}, {name}",
                                      perftest(tool, options, devices, iterations),
                                      150 if "-a" in options else 60))
    return specs
