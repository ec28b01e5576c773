"""Tests of the files in ``deploy/ray``, as far as possible without Docker and Kubernetes."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml

from vitascope.cli.app import app
from vitascope.config.home import vitascope_home

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "deploy" / "ray"
DOCKERFILE = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
JOB = yaml.safe_load((FOLDER / "job.yaml").read_text(encoding="utf-8"))
CLUSTER = yaml.safe_load((FOLDER / "cluster.yaml").read_text(encoding="utf-8"))
GROUPS = [JOB["spec"]["rayClusterSpec"]["headGroupSpec"], *JOB["spec"]["rayClusterSpec"]["workerGroupSpecs"]]
INSTRUCTIONS = {"FROM", "RUN", "ENV", "COPY", "USER", "WORKDIR"}


def instructions():
    """Return each instruction of the Dockerfile and its words, with continued lines joined, and no comments."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.MULTILINE)
    return [line.split(maxsplit=1) for line in re.sub(r"\\\n\s*", "", text).splitlines() if line.strip()]


def test_the_image_is_made_of_known_instructions_and_extras():
    lines = instructions()
    assert lines[0][0] == "FROM"
    assert {name for name, _ in lines} <= INSTRUCTIONS
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (wanted,) = re.findall(r"/tmp/vitascope\[([\w,-]+)\]", DOCKERFILE)
    assert set(wanted.split(",")) <= set(extras)
    # CuPy's build, and the image's CUDA.
    (cupy,) = re.findall(r"cupy-cuda(\d+)x", " ".join(extras["cuda"]))
    assert f"nvidia/cuda:{cupy}." in DOCKERFILE


def test_commands_in_the_image_parse_and_homes_agree(monkeypatch):
    (home,) = re.findall(r"VITASCOPE_HOME=(\S+)", DOCKERFILE)
    monkeypatch.setenv("VITASCOPE_HOME", home)
    assert str(vitascope_home()) == home
    mounted = [mount["mountPath"] for mount in GROUPS[1]["template"]["spec"]["containers"][0]["volumeMounts"]]
    assert home in mounted
    assert f"-v {home}:{home}" in CLUSTER["docker"]["run_options"]
    for command in re.findall(r"^RUN (vitascope .*)$", DOCKERFILE, re.MULTILINE):
        app.parse_args(shlex.split(command)[1:], exit_on_error=False, print_error=False)


def test_nobody_without_the_token_runs_programs_on_a_cluster():
    options = " ".join(CLUSTER["docker"]["run_options"])
    (path,) = re.findall(r"RAY_AUTH_TOKEN_PATH=(\S+)", options)
    assert f"-v {path}:{path}:ro" in options
    assert "RAY_AUTH_MODE=token" in options
    assert JOB["spec"]["rayClusterSpec"]["authOptions"] == {"mode": "token"}
    major, minor, _ = JOB["spec"]["rayClusterSpec"]["rayVersion"].split(".")
    assert (int(major), int(minor)) >= (2, 52)  # the first with tokens


def test_the_job_is_a_job_of_kuberay():
    assert (JOB["apiVersion"], JOB["kind"]) == ("ray.io/v1", "RayJob")
    app.parse_args(shlex.split(JOB["spec"]["entrypoint"])[1:], exit_on_error=False, print_error=False)
    assert "--cluster auto" in JOB["spec"]["entrypoint"]
    assert GROUPS[0]["rayStartParams"]["num-cpus"] == "0"
    for group in GROUPS:
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())  # as the CRD wants
        spec = group["template"]["spec"]
        (container,) = spec["containers"]
        assert container["image"] == CLUSTER["docker"]["image"]
        assert (
            container["resources"]["requests"] == container["resources"]["limits"]
        )  # Ray counts these cores
        assert {mount["name"] for mount in container["volumeMounts"]} == {
            volume["name"] for volume in spec["volumes"]
        }
    for group in GROUPS[1:]:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    # Input and output are in the folder that all nodes see.
    for path in re.findall(r" (/\S+)", JOB["spec"]["entrypoint"]):
        assert path.startswith("/films/")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_ray_reads_the_file_of_the_cluster(tmp_path):
    pytest.importorskip("ray", reason="Ray's own reader checks the file")
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = prepare_config(CLUSTER)
    validate_config(config)
    workers = CLUSTER["provider"]["worker_ips"]
    assert CLUSTER["min_workers"] == CLUSTER["max_workers"] == len(workers)
    with pytest.raises(Exception, match="dokcer"):  # an error would show
        validate_config(prepare_config(CLUSTER | {"dokcer": {}}))


@pytest.mark.parametrize("path", sorted(FOLDER.iterdir()), ids=lambda path: path.name)
def test_each_says_what_it_is_and_how_to_use_it(path):
    first, *_ = path.read_text(encoding="utf-8").split("\n\n")
    assert first.startswith("# ")
    assert re.search(r"docker build|ray up|kubectl apply", first)
