"""Plans on disk: found again, and made anew where they do not fit."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from vitascope.gpu.engines.launch_plan import PlanRecorder
from vitascope.gpu.engines.plan_engine import PlanStore, StoredPlan
from vitascope.gpu.engines.triton_compiler import CompiledKernel

SIZES = (1, 2, 16, 32)


@pytest.fixture
def stored():
    recorder = PlanRecorder()
    array = recorder.input("a", (4,), np.float32)
    recorder.launch(CompiledKernel(b"\x7fELF one", "k", 128, 512, 2), (3,), [array, 5])
    recorder.output("a", array)
    return StoredPlan(recorder.plan(), np.arange(256, dtype=np.uint8))


@pytest.fixture
def notes():
    return []


def store(folder, notes, key=("network", "triton 3.6")):
    return PlanStore(folder, label="rvm", key=key, on_note=notes.append)


def test_a_kept_plan_is_found_again(tmp_path, stored, notes):
    store(tmp_path, notes).keep(SIZES, stored)
    found = store(tmp_path, notes).load(SIZES)
    assert found.plan == stored.plan
    np.testing.assert_array_equal(found.weights, stored.weights)
    assert notes == []


def test_other_sizes_keys_and_no_folder_find_nothing(tmp_path, stored, notes):
    store(tmp_path, notes).keep(SIZES, stored)
    assert store(tmp_path, notes).load((1, 1, 16, 32)) is None
    assert store(tmp_path, notes, key=("network", "triton 3.7")).load(SIZES) is None
    nowhere = store(None, notes)
    nowhere.keep(SIZES, stored)
    assert nowhere.load(SIZES) is None
    assert notes == []


@pytest.mark.parametrize("suffix", [".plan", ".cubin", ".weights"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "removed", "nested"])
def test_damage_is_told_and_the_plan_made_anew(tmp_path, stored, notes, suffix, damage):
    store(tmp_path, notes).keep(SIZES, stored)
    (path,) = tmp_path.glob(f"*{suffix}")
    content = path.read_bytes()
    if damage == "removed":
        path.unlink()
    else:
        flipped = content[:-3] + bytes([content[-3] ^ 1]) + content[-2:]
        path.write_bytes({"cut": content[:-2], "flipped": flipped, "nested": b"[" * 100_000}[damage])
    if (suffix, damage) == (".plan", "removed"):
        assert store(tmp_path, notes).load(SIZES) is None
        return
    if (suffix, damage) != (".plan", "flipped"):
        assert store(tmp_path, notes).load(SIZES) is None
        assert len(notes) == 1
        assert "made anew" in notes[0]
    path.unlink(missing_ok=True)
    again = store(tmp_path, notes)
    again.keep(SIZES, stored)
    assert again.load(SIZES).plan == stored.plan


def test_a_plan_under_anothers_name_is_not_taken(tmp_path, stored, notes):
    kept = store(tmp_path, notes)
    kept.keep(SIZES, stored)
    (path,) = tmp_path.glob("*.plan")
    document = json.loads(path.read_bytes())
    document["key"][0] = "another network"
    path.write_text(json.dumps(document))
    assert kept.load(SIZES) is None
    assert "another network's" in notes[0]


def test_a_checksum_names_no_path(tmp_path, stored, notes):
    kept = store(tmp_path / "kept", notes)
    kept.keep(SIZES, stored)
    (path,) = (tmp_path / "kept").glob("*.plan")
    document = json.loads(path.read_bytes())
    document["weights"] = "../elsewhere"
    path.write_text(json.dumps(document))
    assert kept.load(SIZES) is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_that_cannot_be_written_costs_a_note(tmp_path, stored, notes):
    tmp_path.chmod(0o500)
    store(tmp_path, notes).keep(SIZES, stored)
    assert "cannot be kept" in notes[0]


def test_a_folder_that_is_a_file_costs_a_note(tmp_path, stored, notes):
    (tmp_path / "file").write_text("")
    store(tmp_path / "file", notes).keep(SIZES, stored)
    assert "cannot be kept" in notes[0]
