"""Real programs whose memory the NIC reads and remaps (tests/remap): those that take seconds."""

import sys

from harness import ROOT

sys.path.insert(0, str(ROOT / "tests/remap"))

import cases as remap_cases  # noqa: E402

SEED = 1


def cases(thorough):
    return remap_cases.specs(SEED, thorough)
