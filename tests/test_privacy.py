"""Check that no library that Vitascope loads leaves a trace, or looks up a host."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from clips import write_clip

SOURCES = Path(__file__).parents[1] / "src" / "vitascope"

LOOK_UPS_NOTED = """
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **result) {
    FILE *log = fopen(getenv("LOOK_UPS"), "a");
    fprintf(log, "%s\\n", node ? node : "");
    fclose(log);
    return EAI_NONAME;
}
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    """Build a library that records every host look-up in a process started with it."""
    if not sys.platform.startswith("linux") or shutil.which("cc") is None:
        pytest.skip("noting look-ups needs Linux and a C compiler")
    folder = tmp_path_factory.mktemp("shim")
    (folder / "shim.c").write_text(LOOK_UPS_NOTED)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "shim.so", folder / "shim.c"], check=True)
    return folder / "shim.so"


def watched(shim, home, *command, **variables):
    """Run a command with an empty home; returns its new files, and the hosts that it looked up."""
    home.mkdir()
    look_ups = home.with_suffix(".looked-up")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("ORT_", "XDG_"))}
    environment |= {"HOME": str(home), "LD_PRELOAD": str(shim), "LOOK_UPS": str(look_ups), **variables}
    subprocess.run([sys.executable, *map(str, command)], env=environment, check=True, capture_output=True)
    files = [str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()]
    return files, look_ups.read_text().split() if look_ups.exists() else []


def test_the_watcher_sees_files_and_look_ups(shim, tmp_path):
    program = "import socket, pathlib; (pathlib.Path.home() / 'trace').touch()\ntry: socket.create_connection(('h.test', 1))\nexcept OSError: pass"  # noqa: E501 - a program in a line
    assert watched(shim, tmp_path / "home", "-c", program) == (["trace"], ["h.test"])


@pytest.mark.parametrize("in_processes", ["false", "true"])
def test_segment_leaves_no_trace_and_asks_no_host(shim, tmp_path, in_processes):
    clip = write_clip(tmp_path / "in.mp4")
    command = ["segment", clip, "--out", tmp_path / "out.mp4", "--profile", "fast", "--device", "cpu"]
    several = ["--set", f"processing.use_multiprocessing={in_processes}"]
    files, hosts = watched(shim, tmp_path / "home", "-m", "vitascope", *command, *several)
    assert (tmp_path / "out.mp4").is_file()
    assert files == []
    assert hosts == []


def test_the_example_of_animate_needs_no_host(shim, tmp_path):
    """Check the README's first example, which needs no network: the shipped portrait has its landmarks beside it."""
    command = ["animate", "examples/astronaut.jpg", "--driver", "examples/talk.motion", "--end", "0.3"]
    home = tmp_path / "home"
    files, hosts = watched(
        shim, home, "-m", "vitascope", *command, "-o", tmp_path / "o.mp4", VITASCOPE_HOME=str(home / "own")
    )
    assert (tmp_path / "o.mp4").is_file()
    assert (files, hosts) == ([], [])


def test_the_runtime_alone_neither(shim, tmp_path):
    program = "\n".join(
        [
            "from vitascope.gpu.engines import OnnxRuntimeEngine",
            "import pathlib, time, vitascope",
            "path = pathlib.Path(vitascope.__file__).parent / 'models/data/selfie_segmentation.onnx'",
            "OnnxRuntimeEngine(path).close()",
            "time.sleep(2)",
        ]
    )
    assert watched(shim, tmp_path / "home", "-c", program) == ([], [])


def test_who_asks_for_telemetry_keeps_it(shim, tmp_path):
    program = (
        "import os, vitascope.gpu.engines.onnx_library; assert os.environ['ORT_DISABLE_TELEMETRY'] == '0'"
    )
    watched(shim, tmp_path / "home", "-c", program, ORT_DISABLE_TELEMETRY="0")


def test_onnx_runtime_is_loaded_in_one_place():
    """Any other import could come first, and the switch too late; submodules load it, too."""
    loaders = {}
    for path in SOURCES.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if "onnxruntime" not in text:  # parsing the whole package would take seconds
            continue
        nodes = list(ast.walk(ast.parse(text)))
        names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
        if any(name.split(".")[0] == "onnxruntime" for name in names):
            loaders[path.name] = names
    # The quantiser uses submodules, and imports calibration.py, which sets the switch.
    assert sorted(loaders) == ["onnx_library.py", "onnx_networks.py"]
    assert (
        "from vitascope.gpu.engines.onnx_library import ort"
        in (SOURCES / "gpu/toolkit/quantization/calibration.py").read_text()
    )
