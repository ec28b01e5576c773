"""Tests of landmarks stored beside a portrait: shipped ones, a user's own, and unusable files."""

from __future__ import annotations

import json
import shutil
import sys
import tomllib
from pathlib import Path

import cv2
import numpy as np
import pytest

from vitascope.animation.landmarks_file import landmarks_path, read_landmarks, write_landmarks
from vitascope.animation.mesh.animator import MeshAnimator
from vitascope.animation.mesh.response import steady_reader
from vitascope.animation.portrait import load_portrait
from vitascope.cli import main
from vitascope.errors import CorruptInputError, ModelUnavailableError

CHECKOUT = Path(__file__).parents[2]
ASTRONAUT = CHECKOUT / "examples" / "astronaut.jpg"
TALK = CHECKOUT / "examples" / "talk.motion"


def no_network():
    raise ModelUnavailableError("model 'face-landmarker' could not be fetched (offline?)")


@pytest.fixture
def portrait(tmp_path):
    """Copy the shipped portrait and its landmarks to a separate folder."""
    shutil.copy(landmarks_path(ASTRONAUT), tmp_path)
    return Path(shutil.copy(ASTRONAUT, tmp_path))


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Return a function that runs ``animate`` with the shipped motion, and returns code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def runner(*words):
        with pytest.raises(SystemExit) as ended:
            main(["animate", *map(str, words), "--driver", str(TALK), "-o", "out.mp4", "-y", "--end", "0.2"])
        return ended.value.code, *capsys.readouterr()

    return runner


def test_the_shipped_landmarks_are_those_of_the_network(face_model, mesh):
    found = load_portrait(ASTRONAUT, model=lambda: face_model, finds_anew=True)
    kept = load_portrait(ASTRONAUT, model=no_network)
    assert np.allclose(kept.face.landmarks, found.face.landmarks, atol=0.5)
    assert np.allclose(kept.face.blendshapes, found.face.blendshapes, atol=0.05)
    assert np.allclose(kept.face.transform, found.face.transform, atol=0.2)
    with MeshAnimator(mesh) as animator, steady_reader(face_model) as read:
        animator.set_portrait(found.rgb, face=found.face)
        animator.calibrate(read)
        assert kept.curves.keys() == animator.curves.keys()
        for name, curve in animator.curves.items():
            assert np.allclose(kept.curves[name].strengths, curve.strengths)
            assert np.allclose(kept.curves[name].readings, curve.readings, atol=0.05)


def test_the_wheel_ships_them_beside_the_picture():
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))
    shipped = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    for path in (ASTRONAUT, landmarks_path(ASTRONAUT), TALK):
        assert shipped[f"examples/{path.name}"] == f"vitascope/animation/examples/{path.name}"


def test_the_examples_need_no_mediapipe(run, tmp_path, monkeypatch):
    monkeypatch.setenv("VITASCOPE_HOME", str(tmp_path / "home"))
    monkeypatch.setitem(sys.modules, "mediapipe", None)
    code, out, err = run("examples/astronaut.jpg")
    assert (code, err) == (0, "")
    assert "astronaut.jpg.landmarks; no network was needed" in out
    code, _, err = run(ASTRONAUT, "--face", "0")  # another face needs the network
    assert code == 5 and "pip install 'vitascope[animate]'" in err


def test_one_flag_keeps_them_for_a_portrait_of_ones_own(run, tmp_path, face_model, monkeypatch):
    monkeypatch.setenv("VITASCOPE_HOME", str(face_model.parents[1]))
    own = tmp_path / "own.png"
    cv2.imwrite(str(own), cv2.imread(str(ASTRONAUT))[:400, 50:])
    code, out, _ = run(own, "--save-landmarks")
    assert code == 0
    assert "own.png.landmarks  landmarks, " in out
    first = (tmp_path / "out.mp4").read_bytes()
    monkeypatch.setenv("VITASCOPE_HOME", str(tmp_path / "home"))
    monkeypatch.setitem(sys.modules, "mediapipe", None)
    assert run(own)[0] == 0
    assert (tmp_path / "out.mp4").read_bytes() == first
    assert run(own, "--save-landmarks")[0] == 5  # this would find the face again


def test_a_smaller_picture_has_a_smaller_face(portrait):
    whole = load_portrait(portrait, model=no_network)
    half = load_portrait(portrait, model=no_network, max_side=256)
    assert half.face.picture_size == (256, 256)
    assert np.allclose(half.face.landmarks * 2, whole.face.landmarks, atol=1e-3)


def test_those_of_a_smaller_picture_are_not_enlarged(portrait):
    half = load_portrait(portrait, model=no_network, max_side=256)
    write_landmarks(portrait, half.face, chosen="largest", curves=half.curves)
    assert load_portrait(portrait, model=no_network, max_side=220).face.picture_size == (220, 220)
    with pytest.raises(ModelUnavailableError):
        load_portrait(portrait, model=no_network)


def test_they_are_used_for_that_very_picture_alone(portrait):
    assert read_landmarks(portrait, chosen="largest") is not None
    assert read_landmarks(portrait, chosen=0) is None
    assert load_portrait(portrait, model=no_network).curves
    portrait.write_bytes(portrait.read_bytes() + b"\0")
    with pytest.raises(
        ModelUnavailableError, match=r"astronaut\.jpg: finding its face needs a network: model"
    ):
        load_portrait(portrait, model=no_network)


def test_without_calibration_there_are_no_curves(portrait):
    face = load_portrait(portrait, model=no_network).face
    write_landmarks(portrait, face, chosen="largest", curves=None)
    kept = load_portrait(portrait, model=no_network)
    assert kept.curves is None
    assert np.array_equal(kept.face.landmarks, face.landmarks)


def test_widths_in_the_unit_of_version_1_are_left_out(portrait):
    path = landmarks_path(portrait)
    values = json.loads(path.read_text())
    path.write_text(json.dumps(values | {"version": 1}))
    kept = read_landmarks(portrait, chosen="largest").curves
    assert set(values["curves"]) - set(kept) == {"mouth wider", "mouth wider, lips apart"}
    path.write_text(json.dumps(values | {"version": 1, "curves": None}))
    assert read_landmarks(portrait, chosen="largest").curves is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda values: values.update(version=3), "it has version 3; this program reads version 2"),
        (lambda values: values.pop("sha256"), "sha256"),
        (lambda values: values["landmarks"].pop(), "a face of"),
        (lambda values: values["landmarks"][3].__setitem__(0, float("nan")), "numbers are not a face's"),
        (lambda values: values["landmarks"][3].__setitem__(0, 1e9), "numbers are not a face's"),
        (lambda values: values["landmarks"].__setitem__(0, "left"), "astronaut"),
        (lambda values: values.update(size=[0, 512]), "its picture has no size"),
        (lambda values: values.update(size=[1 << 40, 512]), None),
        (lambda values: values["curves"].update(jawWide=values["curves"]["jawOpen"]), "an unknown curve"),
        (lambda values: values["curves"]["jawOpen"]["readings"].reverse(), "a curve falls"),
        (lambda values: values["curves"]["jawOpen"]["readings"].pop(), "an unknown curve"),
        (lambda values: values.update(curves=[1]), "items"),
        (lambda values: values.update(more=" " * 300_000), "larger than 262144 bytes"),
    ],
)
def test_files_that_cannot_be_used(portrait, change, says):
    path = landmarks_path(portrait)
    values = json.loads(path.read_text(encoding="utf-8"))
    change(values)
    path.write_text(json.dumps(values), encoding="utf-8")
    if says is None:
        assert read_landmarks(portrait, chosen="largest") is not None
        return
    with pytest.raises(
        CorruptInputError, match=r"landmarks: its landmarks cannot be used .*--save-landmarks"
    ) as raised:
        read_landmarks(portrait, chosen="largest")
    assert says in str(raised.value)


@pytest.mark.parametrize("data", [b"", b"[]", b"[" * 100_000, b"\x80\x04K\x01.", b"{}"])
def test_files_that_are_none(portrait, data):
    landmarks_path(portrait).write_bytes(data)
    with pytest.raises(CorruptInputError, match="its landmarks cannot be used"):
        read_landmarks(portrait, chosen="largest")


def test_live_runs_write_none(run, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["animate", "a.jpg", "--driver", "0", "--sink", "null", "--save-landmarks"])
    assert ended.value.code == 2
    assert "--save-landmarks needs --out" in capsys.readouterr().err
