"""Check that the guide's example of dynamic batching runs without a GPU."""

from __future__ import annotations

import runpy
from pathlib import Path

EXAMPLE = Path(__file__).parents[4] / "examples" / "dynamic_batching.py"


def test_the_example_answers_every_frame(capsys, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLE.parent)  # as in a script
    responses = runpy.run_path(str(EXAMPLE))["main"](device="cpu", frames=16)
    assert [response.request_id for response in responses] == [
        "frame_001",
        *(f"frame_{n:03}" for n in range(16)),
    ]
    assert {response.data.shape for response in responses} == {(2, 36, 64)}  # two classes, half the size
    assert responses[0].batch_size == 1
    assert max(response.batch_size for response in responses) > 1
    printed = capsys.readouterr().out
    assert printed.startswith("Latency: ")
    assert "\nBatch size: 1\n" in printed
