"""Three hundred damaged files, the same ones each time; ``make fuzz N=100000`` tries as many as one likes."""

from __future__ import annotations

import random
import sys

import pytest

from fuzz.campaign import tries
from fuzz.mutation import MUTATORS, mutated

CASES, SHARES = 300, 6


@pytest.mark.skipif(sys.platform != "linux", reason="a try is a forked process")
@pytest.mark.parametrize("share", range(SHARES))
def test_damaged_files_are_answered_well(share, tmp_path):
    size = CASES // SHARES
    numbers = range(share * size, (share + 1) * size)
    done = list(tries(numbers, seed=2, folder=tmp_path))
    assert len(done) == size
    assert [one for one in done if one.bad is not None] == []


@pytest.mark.parametrize("kind", MUTATORS)
def test_a_number_and_a_seed_say_all(kind):
    for content in (b"", b"a", bytes(range(256)) * 20, b"model:\n  batch_size: 2\n"):
        for number in range(50):
            once, again = (mutated(random.Random(f"7/{number}"), content, kind) for _ in range(2))
            assert once == again
