"""Random verbs programs beside a model of what must happen (tests/programs), by their seeds."""

import re

from harness import Spec, check

# Local runs first: a seed that fails there needs no network to be understood.
SEEDS_LOCAL, SEEDS_MAPPED, SEEDS_WIRE = 150, 60, 60
LIMIT_S = 120
SUM = re.compile(r"^(\d+) programs, (\d+) failed, (\d+) calls", re.MULTILINE)


def programs(first_seed, seeds, dma=None):
    def case_function(case):
        instance = case.instance()
        env = instance.env(VERBENA_DMA=dma) if dma is not None else instance.env()
        process = case.spawn([case.program("verbs_program_fuzz"), "--first-seed", str(first_seed),
                              "--seeds", str(seeds)], name="programs", env=env)
        code = process.wait(LIMIT_S)
        found = SUM.search(process.out)
        check(code == 0 and found is not None, f"exit code {code}\n{process.tail(120)}")
        check(int(found[1]) == seeds, f"ran {found[1]} of {seeds} programs")
        case.note(found.string[found.start():].strip())
        instance.check_alive()
    return case_function


def cases(thorough):
    more = 20 if thorough else 1
    limit_s = LIMIT_S * more
    return [Spec("random programs", programs(1, SEEDS_LOCAL * more), limit_s),
            Spec("random programs, mapped memory", programs(100_001, SEEDS_MAPPED * more, "mapped"),
                 limit_s),
            Spec("random programs over the wire", programs(200_001, SEEDS_WIRE * more), limit_s,
                 is_wire=True)]
