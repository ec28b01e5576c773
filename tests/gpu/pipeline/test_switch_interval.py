"""Tests of the interpreter's switch interval while quick turns are requested."""

from __future__ import annotations

import sys

import pytest

from vitascope.gpu.pipeline.pipeline import quick_turns


@pytest.fixture(autouse=True)
def five_milliseconds():
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.005)
    yield
    sys.setswitchinterval(before)


def test_turns_are_short_inside_and_as_before_behind():
    with pytest.raises(KeyError), quick_turns():
        assert sys.getswitchinterval() == pytest.approx(0.0005, abs=1e-5)
        raise KeyError
    assert sys.getswitchinterval() == pytest.approx(0.005, abs=1e-5)


def test_the_last_to_leave_puts_them_back():
    first, second = quick_turns(), quick_turns()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert sys.getswitchinterval() == pytest.approx(0.0005, abs=1e-5)
    second.__exit__(None, None, None)
    assert sys.getswitchinterval() == pytest.approx(0.005, abs=1e-5)


def test_shorter_ones_stay():
    sys.setswitchinterval(0.00005)
    with quick_turns():
        assert sys.getswitchinterval() == pytest.approx(0.00005, abs=1e-5)
