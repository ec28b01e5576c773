"""Check that exported profiles are readable for their purpose, and contain the measurements."""

from __future__ import annotations

import json
import sys
import threading
import time
from html.parser import HTMLParser
from xml.etree import ElementTree

import cv2
import numpy as np
import pytest

from vitascope.errors import InputError, MissingDependencyError, OutputError
from vitascope.gpu.profiling.charts import Chart, curve_chart, profile_chart, tip
from vitascope.gpu.profiling.document import SCHEMA_VERSION, chrome_trace, load_profile
from vitascope.gpu.profiling.gpu_clock import GpuTime
from vitascope.gpu.profiling.profiler import Profiler
from vitascope.gpu.profiling.utilisation import UtilisationSample


@pytest.fixture
def profiler():
    profiler = Profiler("<run> & more")

    def work():
        for _ in range(3):
            with profiler.profile("frame"), profiler.profile('a "quoted" <name>'):
                time.sleep(0.001)

    threads = [threading.Thread(target=work, name=f"worker-{n}") for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with pytest.raises(ValueError), profiler.profile("fails"):
        raise ValueError
    # As from the GPU clock.
    span = profiler.spans()[0]
    span._deliver(GpuTime(device=0, stream=0x55, start_seconds=span.began_ns * 1e-9, seconds=0.004))
    return profiler


def sample(profiler, seconds):
    return UtilisationSample(
        seconds=profiler.began_ns * 1e-9 + seconds,
        process_cores=1.5,
        machine_cpu_percent=80.0,
        resident_bytes=10**8,
        gpu=None,
    )


def test_json_comes_back_as_it_went(profiler, tmp_path):
    path = tmp_path / "new" / "p.json"
    profiler.export_json(path, utilisation=[sample(profiler, 0.5)])
    document = load_profile(path)
    assert document["version"] == SCHEMA_VERSION
    assert document["name"] == "<run> & more"
    counts = {tuple(row["path"]): row["count"] for row in document["summary"]}
    assert counts == {("frame",): 6, ("frame", 'a "quoted" <name>'): 6, ("fails",): 1}
    assert len(document["spans"]) == 13
    assert [span["error"] for span in document["spans"]].count("ValueError") == 1
    assert [row["name"] for row in document["threads"]][:2] == ["worker-0", "worker-1"]
    assert document["utilisation"][0]["seconds"] == pytest.approx(0.5)
    (on_gpu,) = [span for span in document["spans"] if span["gpu"]]
    assert on_gpu["gpu"]["start_seconds"] == pytest.approx(on_gpu["start_seconds"])
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["p.json"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is not a profile"),
        ("{", "is not a profile"),
        ("[1, 2]", "is not a profile: its schema"),
        ('{"schema": "other"}', "is not a profile: its schema"),
        ('{"schema": "vitascope.profile", "version": 99}', "of version 99"),
    ],
)
def test_what_is_no_profile_is_refused_by_name(tmp_path, content, message):
    path = tmp_path / "p.json"
    path.write_text(content)
    with pytest.raises(InputError, match=message) as caught:
        load_profile(path)
    assert "p.json" in str(caught.value)
    with pytest.raises(InputError, match="cannot be read"):
        load_profile(tmp_path / "missing.json")


def test_chrome_trace_has_every_span_in_its_lane(profiler, tmp_path):
    path = tmp_path / "trace.json"
    profiler.export_chrome_trace(path, utilisation=[sample(profiler, 0.0), sample(profiler, 0.1)])
    events = json.loads(path.read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    host = [event for event in spans if event["cat"] == "host"]
    assert len(host) == 13
    names = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["ph"] == "M"}
    assert names[1, 0] == "<run> & more"
    assert {names[event["pid"], event["tid"]] for event in host} == {"worker-0", "worker-1", "MainThread"}
    (gpu,) = [event for event in spans if event["cat"] == "gpu"]
    assert gpu["dur"] == pytest.approx(4000.0)
    assert names[gpu["pid"], gpu["tid"]] == "stream 0x55"
    assert [
        event["args"] for event in events if event["ph"] == "C" and event["name"] == "processor cores"
    ] == [{"process": 1.5}] * 2
    # Viewers require that children lie inside their parents.
    for lane in {event["tid"] for event in host}:
        mine = sorted((e for e in host if e["tid"] == lane), key=lambda e: (e["ts"], -e["dur"]))
        ends: list[float] = []
        for event in mine:
            while ends and ends[-1] <= event["ts"] + 1e-6:
                ends.pop()
            assert not ends or event["ts"] + event["dur"] <= ends[-1] + 1e-3
            ends.append(event["ts"] + event["dur"])


class Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.links, self.text = [], [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [value for name, value in attributes if name in ("src", "href")]

    def handle_data(self, data):
        self.text.append(data)


def test_the_page_needs_no_network_and_escapes_names(profiler, tmp_path):
    path = tmp_path / "p.html"
    profiler.export_html(path)
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    assert page.links == []
    assert "script" not in page.tags
    assert "name" not in page.tags
    assert {"table", "svg", "title"} <= set(page.tags)
    assert any('a "quoted" <name>' in text for text in page.text)
    svg = path.read_text(encoding="utf-8")
    ElementTree.fromstring(svg[svg.index("<svg") : svg.index("</svg>") + 6])


def test_the_picture_shows_bars_and_lanes(profiler, tmp_path):
    path = tmp_path / "p.png"
    profiler.export_png(path)
    picture = cv2.imread(str(path))
    assert picture.shape[1] == 1200
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 10


def test_an_empty_profile_can_be_drawn(tmp_path):
    profiler = Profiler()
    for name in ("export_json", "export_chrome_trace", "export_png", "export_html"):
        getattr(profiler, name)(tmp_path / name)
    assert len(list(tmp_path.iterdir())) == 4


def test_many_spans_make_a_drawing_that_can_be_opened():
    profiler = Profiler()
    for _ in range(20_000):
        with profiler.profile("a"):
            pass
    assert len(profile_chart(profiler.to_dict()).to_svg()) < 3_000_000


def test_what_cannot_be_written_is_said(profiler, tmp_path):
    (tmp_path / "file").write_text("")
    for name in ("export_json", "export_chrome_trace", "export_png", "export_html"):
        with pytest.raises(OutputError, match="cannot be written"):
            getattr(profiler, name)(tmp_path / "file" / "p")
        (tmp_path / name).mkdir()
        with pytest.raises(OutputError, match="cannot be written"):
            getattr(profiler, name)(tmp_path / name)
    assert not list(tmp_path.glob(".*.part"))


def test_a_trace_of_a_loaded_profile_is_the_same(profiler, tmp_path):
    document = profiler.to_dict()
    path = tmp_path / "p.json"
    profiler.export_json(path)
    loaded = load_profile(path)
    loaded["wall_seconds"] = document["wall_seconds"]
    assert chrome_trace(loaded) == chrome_trace(document)


def test_svg_and_picture_show_the_same():
    def draw(figure):
        axes = figure.subplots()
        (bar,) = axes.barh(0, 20, color="#ff0000")
        tip(bar, "<red> & more")
        axes.set_title("é $x$ \u4e2d")  # not a formula, and a letter missing in the font

    chart = Chart(2.0, draw)
    picture = cv2.imdecode(np.frombuffer(chart.to_png(), np.uint8), cv2.IMREAD_COLOR)
    assert picture.shape == (300, 1200, 3)
    assert (picture == (0, 0, 255)).all(axis=2).mean() > 0.3
    svg = chart.to_svg()
    root = ElementTree.fromstring(svg)
    assert [one.text for one in root.iter("{http://www.w3.org/2000/svg}title")] == ["<red> & more"]
    assert "é $x$ \u4e2d" in "".join(root.itertext())
    assert "#ff0000" in svg
    assert svg == chart.to_svg()


def test_charts_need_matplotlib_and_say_so_before_a_file_is_made(profiler, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for name in ("export_png", "export_html"):
        with pytest.raises(MissingDependencyError, match=r"pip install 'vitascope\[bench\]'"):
            getattr(profiler, name)(tmp_path / name)
    profiler.export_json(tmp_path / "p.json")
    assert [path.name for path in tmp_path.iterdir()] == ["p.json"]


def test_curves_reach_from_zero_to_the_most():
    figure = pytest.importorskip("matplotlib.figure").Figure()
    curve_chart("memory", {"host": [(0.0, 0.0), (1.0, 50.0), (2.0, 100.0)]}, unit="MB").draw(figure)
    (axes,) = figure.axes
    (line,) = axes.lines
    assert line.get_xydata().tolist() == [[0, 0], [1, 50], [2, 100]]
    low, high = axes.get_ylim()
    assert low == 0
    assert high >= 100
    assert curve_chart("memory", {}, unit="MB").to_png().startswith(b"\x89PNG")
