"""Tests of a machine's fingerprint, and of what makes two machines incomparable."""

from __future__ import annotations

from dataclasses import replace

import pytest

from measured_cells import H200, LAPTOP
from vitascope.bench import results as machine_module
from vitascope.bench.results import differences, this_machine


def test_this_machine_says_what_results_depend_on():
    found = this_machine()
    assert found.processor
    assert found.cores >= 1
    assert {"python", "vitascope", "numpy", "av", "onnxruntime"} <= set(found.versions)
    assert found.label()
    assert differences(found, this_machine()) == ()


def test_an_installed_package_claims_no_commit(monkeypatch, tmp_path):
    # The folder may be inside another repository.
    monkeypatch.setattr(machine_module, "__file__", str(tmp_path / "a" / "b" / "c" / "machine.py"))
    assert this_machine().commit is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"gpus": ()}, "GPU: NVIDIA H200 against none"),
        ({"processor": "EPYC"}, "processor: Xeon against EPYC"),
        ({"cores": 8}, "cores: 16 against 8"),
        ({"memory_bytes": 64 << 30}, "memory: 128 GiB against 64 GiB"),
    ],
)
def test_what_differs_is_named(change, said):
    assert differences(H200, replace(H200, **change)) == (said,)


def test_software_and_a_little_memory_do_not_matter():
    other = replace(H200, versions={"torch": "3"}, commit="fff", system="BSD", memory_bytes=127 << 30)
    assert differences(H200, other) == ()
    assert differences(H200, replace(H200, memory_bytes=None)) == ()
    assert len(differences(H200, LAPTOP)) == 4
