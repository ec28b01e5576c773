"""Check every query of the Grafana dashboard with a Prometheus that scrapes the exporter; it must be on PATH."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
from scripted_figures import ScriptedGpu, ScriptedLiveRun, finished_pipeline

from free_ports import free_port
from vitascope.observe.metrics import Metrics, MetricsServer

BOARD = json.loads((Path(__file__).parents[2] / "deploy" / "grafana" / "dashboard.json").read_text("utf-8"))
QUERIES = [target["expr"] for panel in BOARD["panels"] for target in panel.get("targets", ())]
VARIABLES = {"$instance": ".*", "$__rate_interval": "30s"}
"""What Grafana puts in place of these."""
PROMETHEUS = shutil.which("prometheus")
SECONDS = 60.0
"""A busy machine takes some to start; four scrapes are one second."""


class Answers:
    """Queries a Prometheus."""

    def __init__(self, port: int) -> None:
        self._address = f"http://127.0.0.1:{port}/api/v1/query?"

    def ask(self, expr: str) -> list[dict]:
        """Return the series of an instant query."""
        for name, value in VARIABLES.items():
            expr = expr.replace(name, value)
        words = urllib.parse.urlencode({"query": expr})
        with urllib.request.urlopen(self._address + words, timeout=10) as answer:
            document = json.load(answer)
        assert document["status"] == "success"
        return document["data"]["result"]


def wait_for_scrapes(prometheus: subprocess.Popen, answers: Answers) -> None:
    """Wait for four scrapes, as rates need two."""
    ends = time.monotonic() + SECONDS
    while time.monotonic() < ends:
        assert prometheus.poll() is None, "Prometheus ended"
        try:
            found = answers.ask("count_over_time(vitascope_build_info[1m])")
        except (urllib.error.URLError, ConnectionError):
            found = []
        if found and float(found[0]["value"][1]) >= 4:
            return
        time.sleep(0.2)
    pytest.fail("Prometheus saw nothing")


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Return the answers of a Prometheus that saw a job, a live run and a GPU."""
    if PROMETHEUS is None:
        pytest.skip("needs Prometheus: no prometheus is on PATH")
    folder = tmp_path_factory.mktemp("prometheus")
    with Metrics(gpus={0: ScriptedGpu()}) as metrics, MetricsServer(metrics, port=0) as server:
        metrics.follow(finished_pipeline(), expected_frames=5)
        metrics.follow_live(ScriptedLiveRun())
        target = urllib.parse.urlsplit(server.url).netloc
        scrape = {"job_name": "vitascope", "static_configs": [{"targets": [target]}]}
        intervals = {"scrape_interval": "250ms", "scrape_timeout": "250ms"}
        settings = folder / "prometheus.yml"
        settings.write_text(json.dumps({"global": intervals, "scrape_configs": [scrape]}))  # JSON is YAML
        port = free_port()
        words = [f"--config.file={settings}", f"--storage.tsdb.path={folder / 'data'}", "--log.level=error"]
        words.append(f"--web.listen-address=127.0.0.1:{port}")
        prometheus = subprocess.Popen(
            [PROMETHEUS, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            found = Answers(port)
            wait_for_scrapes(prometheus, found)
            yield found
        finally:
            prometheus.terminate()
            prometheus.wait()


@pytest.mark.parametrize("expr", QUERIES, ids=lambda text: text[:60])
def test_prometheus_answers(answers, expr):
    found = answers.ask(expr)
    if not expr.endswith("> 0"):  # these show failures, and nothing failed
        assert found
    for series in found:
        float(series["value"][1])
