from __future__ import annotations

import re
import socket
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from scripted_figures import finished_pipeline

from left_threads import left_threads
from vitascope.errors import OutputError, UsageError
from vitascope.observe.job_counts import FAMILIES
from vitascope.observe.metrics import Metrics, MetricsServer


def fetch(url, **headers):
    with urlopen(Request(url, headers=headers), timeout=10) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def test_serves_both_formats_and_frees_the_port():
    metrics = Metrics()
    metrics.follow(finished_pipeline(5))
    with MetricsServer(metrics, port=0) as server:
        assert server.url.startswith("http://127.0.0.1:")
        kind, text = fetch(server.url)
        assert kind.startswith("text/plain")
        assert "\nvitascope_frames_total 5.0\n" in text
        kind, text = fetch(server.url, Accept="application/openmetrics-text; version=1.0.0")
        assert kind.startswith("application/openmetrics-text")
        assert text.endswith("# EOF\n")
        port = int(server.url.split(":")[2].split("/")[0])
    assert not left_threads("vitascope-metrics")
    with MetricsServer(metrics, port=port):
        pass


def test_it_is_for_this_machine_alone():
    with MetricsServer(Metrics(), port=0) as server:
        assert server._server.socket.getsockname()[0] == "127.0.0.1"


def test_an_address_of_the_newer_protocol():
    try:
        server = MetricsServer(Metrics(), port=0, host="::1")
    except OutputError as error:
        pytest.skip(f"no IPv6 here: {error}")
    with server:
        assert server.url.startswith("http://[::1]:")
        assert "vitascope_build_info" in fetch(server.url)[1]


def test_a_port_in_use():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(
            OutputError, match=r"port \d+: Address already in use; choose another --metrics-port"
        ):
            MetricsServer(Metrics(), port=taken.getsockname()[1])


@pytest.mark.parametrize("host", ["203.0.113.7", "no such host", "x" * 300])
def test_an_address_that_is_not_ours(host):
    with pytest.raises(OutputError, match="metrics cannot be served at"):
        MetricsServer(Metrics(), port=0, host=host)


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_that_is_none(port):
    with pytest.raises(UsageError, match="from 0 to 65535"):
        MetricsServer(Metrics(), port=port)


def test_one_who_hangs_up_is_no_news(capsys):
    with MetricsServer(Metrics(), port=0) as server:
        port = int(server.url.split(":")[2].split("/")[0])
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"GET /metrics HTTP/1.1\r\n")
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # resets on close
        fetch(server.url)
    assert capsys.readouterr().err == ""


def test_the_page_lists_what_is_exported_and_its_snippet_runs(monkeypatch, capsys):
    root = Path(__file__).parents[2]
    page = (root / "docs" / "monitoring.md").read_text("utf-8")
    rows = re.findall(r"^\| `(vitascope_\w+)` \| ([\w, ]*) \| (\w+): (.*) \|$", page, re.MULTILINE)
    wanted = [(family.name, ", ".join(family.labels), family.kind, family.help) for family in FAMILIES]
    assert [(name, labels.strip(), *rest) for name, labels, *rest in rows] == wanted
    (snippet,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(root)
    exec(compile(snippet, "monitoring.md", "exec"), {})
    assert 'vitascope_jobs_total{status="done"} 1.0' in capsys.readouterr().out
