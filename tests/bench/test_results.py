"""Check that the results file is read as written, grows cell by cell, and refuses unknown content."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from measured_cells import cell_of, key_of, results_of
from vitascope.bench.results import Cell, ResultsFile, Row, load_results
from vitascope.errors import InputError, OutputError


def test_it_comes_back_as_it_went(tmp_path):
    results = results_of(
        cell_of(key_of(), (100.0, 101.5, 99.0)),
        Cell(key=key_of("8K", 32), status="failed", reason="out of memory"),
        settings={"profile": "fast"},
    )
    ResultsFile(tmp_path / "new" / "r.json", results)
    assert load_results(tmp_path / "new" / "r.json") == results


def test_every_cell_is_on_disk_at_once(tmp_path):
    path = tmp_path / "r.json"
    file = ResultsFile(path, results_of(finished=False))
    for number, batch in enumerate((1, 4, 8), start=1):
        file.add(cell_of(key_of(batch=batch), (50.0, 51.0)))
        kept = load_results(path)
        assert len(kept.cells) == number
        assert not kept.finished
    assert file.finish().finished
    assert load_results(path).finished
    assert [entry.name for entry in tmp_path.iterdir()] == ["r.json"]


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=50))
def test_percentiles_are_those_of_numpy(samples):
    row = Row.of("x", "ms", samples)
    assert row.n == len(samples)
    assert [row.p5, row.p50, row.p95, row.p99] == pytest.approx(
        np.percentile(samples, (5, 50, 95, 99)), rel=1e-5
    )
    assert row.samples == pytest.approx(samples, rel=1e-5)


@pytest.mark.parametrize("samples", [[], [1.0, float("nan")], [float("inf")]])
def test_rows_need_finite_samples(samples):
    with pytest.raises(ValueError, match="finite"):
        Row.of("x", "ms", samples)


@pytest.mark.parametrize("version", [1, 2])
def test_earlier_versions_are_read(tmp_path, version):
    path = tmp_path / "r.json"
    ResultsFile(path, results_of(cell_of(key_of(), (100.0, 101.5))))
    plain = json.loads(path.read_text())
    plain["version"] = version
    for cell in plain["cells"]:
        del cell["operations"]  # added by version 2
        cell["work"] = [{"part": "network", "flops": 1e9}]  # removed by version 3
    plain["ceilings"] = [{"device": "cpu", "rows": []}]
    path.write_text(json.dumps(plain))
    old = load_results(path)
    assert old.version == 3
    assert old.measured[0].operations is None
    assert old.measured[0].median("throughput") == pytest.approx(100.75)
    ResultsFile(path, old)
    assert load_results(path) == old


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not json", "holds no benchmark results"),
        ("[]", "it has no schema"),
        ('{"schema": "vitascope.baselines"}', "holds baselines, which stand first"),
        ('{"schema": "vitascope.profile", "version": 1}', "its schema is 'vitascope.profile'"),
        (
            '{"schema": "vitascope.bench", "version": 0}',
            "results of version 0; this program reads versions 1 to 3",
        ),
        ('{"schema": "vitascope.bench", "version": 9}', "results of version 9"),
        ('{"schema": "vitascope.bench"}', "results of version None"),
        ('{"schema": "vitascope.bench", "version": 1}', "damaged results: kind"),
    ],
)
def test_what_cannot_be_read(tmp_path, text, message):
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(InputError, match=r"r\.json") as error:
        load_results(tmp_path / "r.json")
    assert message in str(error.value)


def test_damage_is_named_by_its_place(tmp_path):
    path = tmp_path / "r.json"
    ResultsFile(path, results_of(cell_of(key_of(), (100.0,))))
    plain = json.loads(path.read_text())
    plain["cells"][0]["rows"][1]["p50"] = "fast"
    path.write_text(json.dumps(plain))
    with pytest.raises(InputError, match=r"cells\.0\.rows\.1\.p50"):
        load_results(path)


def emptied(row):
    row["samples"] = []


def miscounted(row):
    row["n"] += 1


@pytest.mark.parametrize(
    ("row", "change", "message"),
    [
        (0, emptied, "'throughput' has 0 samples, and says that it has 2"),
        (2, miscounted, "'latency' has 2 samples, and says that it has 3"),
        (0, lambda row: row.update(p50=0.0), "'throughput' holds an impossible figure"),
        (1, lambda row: row.update(samples=[1.0, float("nan")]), "'frame_time' holds an impossible figure"),
        (3, lambda row: row.update(p99=-1.0), "'stage/decode' holds an impossible figure"),
        (0, lambda row: row.update(name="other"), "it was measured, and has no 'throughput'"),
    ],
)
def test_figures_that_cannot_be_are_damage(tmp_path, row, change, message):
    path = tmp_path / "r.json"
    ResultsFile(path, results_of(cell_of(key_of(), (100.0, 101.0))))
    plain = json.loads(path.read_text())
    change(plain["cells"][0]["rows"][row])
    path.write_text(json.dumps(plain))
    with pytest.raises(InputError, match=r"holds damaged results: cells\.0\.rows") as error:
        load_results(path)
    assert message in str(error.value)


def test_fields_of_a_later_program_are_no_fault(tmp_path):
    path = tmp_path / "r.json"
    results = results_of(cell_of(key_of(), (100.0,)))
    ResultsFile(path, results)
    plain = json.loads(path.read_text())
    plain["weather"] = "fine"
    plain["cells"][0]["weather"] = "fine"
    path.write_text(json.dumps(plain))
    assert load_results(path) == results


def test_missing_file_and_unwritable_folder(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        load_results(tmp_path / "r.json")
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError):
        ResultsFile(tmp_path / "file" / "r.json", results_of())
