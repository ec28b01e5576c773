"""Tests of a cluster that requires a token, and machines with it, with another one, or with none."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from free_ports import free_port
from waiting import PATIENCE_SECONDS, eventually

pytest.importorskip("ray", reason="a cluster needs Ray: pip install 'vitascope[cluster]'")
pytestmark = [pytest.mark.cluster, pytest.mark.slow]

TOKEN, ANOTHER = "0123456789abcdef" * 4, "fedcba9876543210" * 4


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """Start a cluster of one node that requires TOKEN, and return its address."""
    told, port = tmp_path_factory.mktemp("guarded") / "told", free_port()
    # Use a separate folder, or a later `auto` would find this cluster; a short one, as socket paths are
    # limited.
    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")
    words = ["--head", "--port", str(port), "--ray-client-server-port", str(free_port())]
    words += ["--temp-dir", folder, "--num-cpus", "0", "--include-dashboard", "false"]
    with told.open("w") as out:
        node = subprocess.Popen(
            [Path(sys.executable).with_name("ray"), "start", *words, "--disable-usage-stats", "--block"],
            env=os.environ | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN},
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        eventually(lambda: node.poll() is not None or "Ray runtime started" in told.read_text())
        assert node.poll() is None, told.read_text()
        yield f"127.0.0.1:{port}"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(node.pid, signal.SIGKILL)  # a graceful end takes half a minute
        node.wait(timeout=PATIENCE_SECONDS)
        shutil.rmtree(folder, ignore_errors=True)


def status(address, home, **environment):
    """Run ``vitascope cluster status`` on a machine that only knows the given token."""
    known = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    return subprocess.run(
        [sys.executable, "-m", "vitascope", "cluster", "status", "--address", address],
        env=known | {"HOME": str(home)} | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * PATIENCE_SECONDS,
    )


@pytest.mark.parametrize("token", [ANOTHER, None])
def test_a_machine_without_the_token_is_told_so_in_one_line(guarded, tmp_path, token):
    if token is not None:
        (tmp_path / ".ray").mkdir()
        (tmp_path / ".ray" / "auth_token").write_text(token)
    done = status(guarded, tmp_path)
    assert done.returncode != 0
    assert f"the cluster at {guarded} needs a token that this machine does not have" in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert not done.stdout


def test_a_machine_with_the_token_gets_in(guarded, tmp_path):
    done = status(guarded, tmp_path, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=TOKEN)
    assert done.returncode == 0, done.stderr
    assert "0 cores" in done.stdout
