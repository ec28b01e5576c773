"""Check that no run writes over its inputs or over another output."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitascope.config import load_settings
from vitascope.errors import UsageError
from vitascope.segmentation.batch import plan_batch
from vitascope.segmentation.plan import PlannedVideo, refuse_clashes


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Create files with these names; nothing here opens them."""
    for name in (
        "clips/x.avi",
        "clips/x.mp4",
        "t/000000.png",
        "t/000001.png",
        "one.mp4",
        "sea.jpg",
        "my.yaml",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def plan(*inputs, out, files=(), preview=None, **flags):
    settings = load_settings(flags={key.replace("__", "."): value for key, value in flags.items()}).settings
    return plan_batch(inputs, out, settings, preview=preview, settings_files=files)


def refused(*inputs, **wishes):
    with pytest.raises(UsageError) as error:
        plan(*inputs, **wishes)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_an_output_that_is_another_input(tree):
    (tree / "other").mkdir()
    (tree / "other" / "x.mp4").write_bytes((tree / "clips" / "x.mp4").read_bytes())
    assert "the output is another input" in refused("other/x.mp4", "clips/x.mp4", out=tree / "clips")
    assert "the output is the input" in refused("clips", out="clips/")
    assert "the output is the input" in refused("clips/x.avi", "clips/x.mp4", out=tree / "clips")
    assert len(plan("clips", out="cut/")) == 2


def test_an_output_that_is_the_input_by_another_name(tree):
    (tree / "link.mp4").symlink_to("one.mp4")
    for out in ("one.mp4", "./clips/../one.mp4", "link.mp4", tree / "one.mp4"):
        assert "the output is the input" in refused("one.mp4", out=out)


@pytest.mark.parametrize("source", ["t", "t/%06d.png", "t/*.png", "t/000000.png"])
@pytest.mark.parametrize("out", ["t/%06d.png", "t/f_%03d.png"])
def test_pictures_that_would_replace_the_folder_they_come_from(tree, source, out):
    assert "would replace this folder, which contains an input" in refused(source, out=out)


def test_one_picture_of_a_sequence_is_an_input_too(tree):
    assert "the output is the input" in refused("t", out="t/000001.png")


def test_pictures_that_would_replace_the_folder_of_the_background_or_the_settings(tree):
    (tree / "s").mkdir()
    (tree / "s" / "000000.png").touch()
    wish = {"output__background": str(tree / "s" / "000000.png"), "output__kinds": ["replace"]}
    assert "contains the background" in refused("one.mp4", out="s", **wish)
    (tree / "w").mkdir()
    (tree / "w" / "my.yaml").touch()
    assert "contains a settings file" in refused("one.mp4", out="w/%d.png", files=[Path("w/my.yaml")])


@pytest.mark.parametrize("name", ["sea.jpg", "my.yaml"])
def test_the_background_and_the_settings_files(tree, name):
    def written(**where):
        return refused(
            "one.mp4",
            files=[Path("my.yaml")],
            output__kinds=["replace"],
            output__background="sea.jpg",
            **where,
        )

    words = "the background" if name == "sea.jpg" else "a settings file"
    assert f"the output is {words}" in written(out=name)
    assert f"the contact sheet is {words}" in written(out="o.mp4", preview=Path(name))


def test_the_network(tree):
    (tree / "own.onnx").touch()
    assert "is the network" in refused("one.mp4", out="own.onnx", model__name="own.onnx", model__kind="matte")


def test_the_contact_sheet_is_nothing_else(tree):
    assert "the contact sheet is the input" in refused("one.mp4", out="o.mp4", preview=Path("one.mp4"))
    assert "same file" in refused("one.mp4", out="o.png", preview=Path("O.png"))
    assert "is a file" in refused("one.mp4", out="o.mp4", preview=Path("clips"))
    assert "is a PNG" in refused("one.mp4", out="o.mp4", preview=Path("sheet.jpg"))
    assert "folder of pictures" in refused("one.mp4", out="frames", preview=Path("frames/sheet.png"))


def test_two_outputs_that_are_one_file_on_some_systems():
    plans = [
        PlannedVideo(Path("a.mp4"), (("key", Path("cut/Straße.mp4")),)),
        PlannedVideo(Path("b.mp4"), (("key", Path("cut/./STRASSE.mp4")),)),
    ]
    with pytest.raises(UsageError, match="same file"):
        refuse_clashes(plans, settings=load_settings().settings)


def test_two_kinds_of_pictures_in_one_folder():
    outputs = (("key", Path("q/a_%d.png")), ("mask", Path("q/b_%d.png")))
    with pytest.raises(UsageError, match="same file"):
        refuse_clashes([PlannedVideo(Path("a.mp4"), outputs)], settings=load_settings().settings)


def test_numbered_pictures_need_a_folder_of_their_own(tree, monkeypatch):
    assert "contains " in (message := refused("one.mp4", out="clips/f_%d.png"))
    assert "clips/frames/f_%d.png" in message
    assert "frames/f_%d.png" in refused("clips/x.mp4", out="f_%d.png")
    (tree / "empty").mkdir()
    monkeypatch.chdir(tree / "empty")
    assert "the current folder" in (message := refused("../one.mp4", out="f_%d.png"))
    assert "frames/f_%d.png" in message
    assert plan("../one.mp4", out="frames/f_%d.png")


def test_a_missing_input_is_left_to_whoever_opens_it(tmp_path):
    planned = [PlannedVideo(tmp_path / "gone.mp4", (("key", tmp_path / "o.mp4"),))]
    refuse_clashes(planned, settings=load_settings().settings)
