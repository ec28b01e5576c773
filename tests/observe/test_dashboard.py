"""Check every query of the Grafana dashboard against the exports of a real run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from scripted_figures import ScriptedGpu, ScriptedLiveRun, ScriptedQueue

from clips import write_clip
from vitascope.observe.job_counts import FAMILIES
from vitascope.observe.metrics import Metrics, live_metrics
from vitascope.segmentation.segmenter import Segmenter

BOARD = json.loads((Path(__file__).parents[2] / "deploy" / "grafana" / "dashboard.json").read_text("utf-8"))
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
QUERIES = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]
OF_THE_TARGET = {"instance", "job"}
"""Labels that Prometheus adds to everything it fetches."""
FUNCTIONS = {"rate", "increase", "sum", "max", "min", "histogram_quantile"}
SELECTOR = re.compile(
    r"(?P<name>vitascope_\w+)\{(?P<matchers>[^}]*)\}(?P<range>\[[\w$]+\])?",
)


@pytest.fixture(scope="module")
def scraped(tmp_path_factory):
    """Return the labels of each sample and its family's type, by sample name, for a real and a live run."""
    folder = tmp_path_factory.mktemp("dashboard")
    clip = write_clip(folder / "in.mp4", frame_count=6)
    metrics = Metrics(gpus={0: ScriptedGpu()})
    texts = []
    with Segmenter(profile="fast", settings={"gpu.device": "cpu"}) as segmenter:
        report = segmenter.write(
            clip,
            [("mask", folder / "out.mp4")],
            on_start=lambda started: metrics.follow(
                started.pipeline, expected_frames=started.expected_frame_count
            ),
        )
    assert report.frame_count == 6
    metrics.follow_queue(ScriptedQueue())
    texts.append(metrics.text())
    texts.append(live_metrics(ScriptedLiveRun()).text())
    found = {}
    for text in texts:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels, _ = found.setdefault(sample.name, (set(), family.type))
                labels.update(sample.labels)
    return found


@pytest.mark.parametrize(("title", "expr"), QUERIES, ids=lambda text: text[:40])
def test_a_query_asks_for_what_is_exported(title, expr, scraped):
    selectors = list(SELECTOR.finditer(expr))
    assert selectors
    available = set(OF_THE_TARGET)
    for selector in selectors:
        name = selector["name"]
        assert name in scraped, f"{name} is not exported"
        labels, kind = scraped[name]
        available |= labels
        for matcher in selector["matchers"].split(","):
            label, operator, value = re.fullmatch(r'\s*(\w+)(=~|!~|!=|=)"([^"]*)"', matcher).groups()
            assert label in labels | OF_THE_TARGET, f"{name} has no label {label}"
            assert label != "instance" or (operator, value) == ("=~", "$instance")
        before = expr[: selector.start()]
        counts = kind in ("counter", "histogram")
        if not counts or selector["range"] is None:
            assert not re.search(r"(rate|increase)\($", before), f"{name} is a gauge"
            assert selector["range"] is None
        else:
            assert re.search(r"(rate|increase)\($", before), f"{name} only ever grows"
    for words in re.findall(r"by \(([^)]*)\)", expr):
        assert {word.strip() for word in words.split(",")} <= available
    if "histogram_quantile" in expr:
        assert re.fullmatch(
            r"histogram_quantile\(0\.\d+, sum by \(le(, \w+)?\) \(rate\(\w+_bucket\{.*\}\[.*\]\)\)\)", expr
        )
    bare = re.sub(r"by \([^)]*\)", "", SELECTOR.sub("1", expr))
    assert set(re.findall(r"[a-z_]+", bare)) <= FUNCTIONS
    assert bare.count("(") == bare.count(")")


@pytest.mark.parametrize(
    ("expr", "legend"), [(t["expr"], t["legendFormat"]) for p in PANELS for t in p["targets"]]
)
def test_a_legend_names_labels_that_the_query_keeps(expr, legend):
    kept = {word.strip() for words in re.findall(r"by \(([^)]*)\)", expr) for word in words.split(",")}
    if " by " not in expr:
        kept |= OF_THE_TARGET
    assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= kept


def test_every_metric_is_on_the_board():
    text = json.dumps(BOARD)
    unseen = {family.name for family in FAMILIES if family.name not in text}
    assert unseen <= {"vitascope_job_running"}


def test_the_board_itself():
    assert [variable["name"] for variable in BOARD["templating"]["list"]] == ["datasource", "instance"]
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken = set()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, f"{panel['title']} lies over another panel"
        assert place["x"] + place["w"] <= 24
        taken |= cells
    for panel in PANELS:
        assert panel["description"]
        assert panel["datasource"]["uid"] == "${datasource}"
