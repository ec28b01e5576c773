from __future__ import annotations

import numpy as np
import pytest

from vitascope.errors import EngineError, MissingDependencyError
from vitascope.gpu.engines.selection import Candidate, Machine, choose_engine

INPUTS = {"x": np.linspace(0, 1, 50, dtype=np.float32)}


class Doubling:
    """Simulates an engine that can be wrong, or fail."""

    def __init__(self, name, *, error=0.0, failure=None):
        self.name, self.error, self.failure, self.closed, self.runs = name, error, failure, False, 0

    def run(self, inputs):
        self.runs += 1
        if self.failure is not None:
            raise self.failure
        return {"twice": inputs["x"] * (2 + self.error)}

    def close(self):
        self.closed = True


class Rack:
    """Holds candidates, and records which of them were opened."""

    def __init__(self):
        self.opened = []
        self.candidates = []

    def add(self, name, *, missing=None, is_reference=False, **behaviour):
        def open_engine():
            if missing is not None:
                raise missing
            self.opened.append(Doubling(name, **behaviour))
            return self.opened[-1]

        self.candidates.append(
            Candidate(
                name=name,
                precision="fp16",
                open=open_engine,
                describe=lambda engine: f"{engine.name} 1.0",
                runner=lambda engine: engine.run,
                is_reference=is_reference,
            )
        )
        return self

    def choose(self, wanted="auto", cache_dir=None):
        return choose_engine(
            self.candidates,
            wanted=wanted,
            reference=Doubling("reference").run,
            make_inputs=lambda: INPUTS,
            model="ab" * 32,
            machine=Machine("Some GPU", "580"),
            cache_dir=cache_dir,
        )

    def open_names(self):
        return [engine.name for engine in self.opened if not engine.closed]


NOT_INSTALLED = MissingDependencyError("TensorRT is not installed: pip install tensorrt")


def test_auto_takes_the_first_that_works_and_opens_no_further_one():
    rack = Rack().add("fast").add("slow")
    chosen = rack.choose()
    assert chosen.engine.name == chosen.name == "fast"
    assert [engine.name for engine in rack.opened] == ["fast"]
    (reason,) = chosen.reasons
    assert reason.startswith("fast 1.0 is used: its twice differs")


def test_auto_names_what_it_skips_and_why():
    rack = Rack().add("absent", missing=NOT_INSTALLED).add("wrong", error=0.5)
    rack.add("broken", failure=EngineError("illegal\naddress")).add("right").add("slower")
    chosen = rack.choose()
    assert chosen.name == "right"
    absent, wrong, broken, right = chosen.reasons
    assert absent == "absent is not used: TensorRT is not installed: pip install tensorrt"
    assert wrong.startswith("wrong is not used: wrong 1.0 failed its check on Some GPU: its twice differs")
    assert broken == "broken is not used: illegal address"
    assert right.startswith("right 1.0 is used")
    assert rack.open_names() == ["right"]


def test_one_that_is_asked_for_by_name_has_to_work():
    rack = Rack().add("absent", missing=NOT_INSTALLED).add("wrong", error=0.5)
    rack.add("broken", failure=EngineError("illegal address")).add("right")
    with pytest.raises(MissingDependencyError, match="pip install tensorrt"):
        rack.choose("absent")
    with pytest.raises(EngineError, match=r"wrong 1\.0 failed its check"):
        rack.choose("wrong")
    with pytest.raises(EngineError, match="illegal address"):
        rack.choose("broken")
    assert rack.choose("right").name == "right"
    assert [engine.name for engine in rack.opened] == ["wrong", "broken", "right"]
    assert rack.open_names() == ["right"]


def test_several_ways_to_run_one_library_share_a_name():
    rack = Rack().add("other").add("library", missing=NOT_INSTALLED).add("library", is_reference=True)
    chosen = rack.choose("library")
    assert [engine.name for engine in rack.opened] == ["library"]
    assert chosen.reasons == (
        "library is not used: TensorRT is not installed: pip install tensorrt",
        "library 1.0 is used: the others are checked against it",
    )


def test_the_reference_is_not_checked_against_itself(tmp_path):
    chosen = Rack().add("onnxruntime", is_reference=True, error=0.5).choose(cache_dir=tmp_path)
    assert chosen.engine.runs == 0
    assert list(tmp_path.iterdir()) == []


def test_a_remembered_failure_skips_without_a_run(tmp_path):
    first = Rack().add("wrong", error=0.5).add("right")
    again = Rack().add("wrong", error=0.5).add("right")
    assert first.choose(cache_dir=tmp_path).reasons == again.choose(cache_dir=tmp_path).reasons
    assert [engine.runs for engine in first.opened] == [1, 1]
    assert [engine.runs for engine in again.opened] == [0, 0]


def test_when_nothing_works_every_reason_is_told():
    rack = Rack().add("absent", missing=NOT_INSTALLED).add("wrong", error=0.5)
    with pytest.raises(EngineError) as caught:
        rack.choose()
    assert "absent is not used: TensorRT" in str(caught.value)
    assert "wrong is not used: wrong 1.0 failed" in str(caught.value)
    assert rack.open_names() == []


def test_when_nothing_is_installed_that_is_the_error():
    with pytest.raises(
        MissingDependencyError, match="no engine works here: a is not used: TensorRT is not installed"
    ):
        Rack().add("a", missing=NOT_INSTALLED).add("b", missing=NOT_INSTALLED).choose()


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(EngineError, match="no engine is called 'fastest' here; there are fast, slow, auto"):
        Rack().add("fast").add("slow").add("slow").choose("fastest")


def test_an_error_that_is_a_bug_is_not_swallowed_but_closes_the_engine():
    rack = Rack().add("buggy", failure=ZeroDivisionError()).add("right")
    with pytest.raises(ZeroDivisionError):
        rack.choose()
    assert rack.open_names() == []
