from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from skimage import data

from clips import write_clip
from vitascope.config import load_settings
from vitascope.errors import (
    DeviceError,
    InputError,
    ModelChecksumError,
    ModelError,
    UsageError,
    VitascopeError,
)
from vitascope.media.reading.discovery import find_videos
from vitascope.models.store.store import ModelStore
from vitascope.segmentation.dry_run import Explanation, Refusal, explain_all
from vitascope.segmentation.plan import PlannedVideo, plan_outputs, refuse_clashes
from vitascope.segmentation.segmenter import Segmenter


@pytest.fixture
def clip(tmp_path):
    return write_clip(tmp_path / "in_SBS.mp4", width=64, height=32, frame_count=3)


@pytest.fixture
def store(tmp_path):
    return ModelStore(tmp_path / "home")


def settings(**values):
    return load_settings(flags={key.replace("__", "."): value for key, value in values.items()}).settings


def planned(clip, out="o.mp4"):
    return PlannedVideo(clip, (("key", clip.with_name(out)),))


def explain(plan, settings, **options):
    (one,) = explain_all([plan], settings, **options)
    if isinstance(one, Refusal):
        raise one.error
    return one


def test_explaining_reads_the_header_and_writes_nothing(clip, tmp_path, store):
    (video,) = find_videos([clip], recursive=False)
    target = tmp_path / "cut.mp4"
    (plan,) = plan_outputs([video], target, ["key"])
    explained = explain(plan, settings(), store=store)
    text = "\n".join(explained.lines())
    assert "64x32" in text
    assert "side-by-side (file name (SBS))" in text
    assert f"key -> {target}: libx264" in text
    assert explained.to_dict()["status"] == "planned"
    assert {path.name for path in tmp_path.iterdir()} == {clip.name}
    with pytest.raises(UsageError, match="the output is the input"):
        refuse_clashes([planned(clip, clip.name)], settings=settings())


def test_pictures_that_contradict_the_name_are_told(tmp_path, store):
    """Check that this is reported; a run believes the name, and does not wait for pictures."""
    eye = data.astronaut()
    twice = write_clip(
        tmp_path / "in_LR_180.mp4",
        width=1024,
        height=512,
        frame_count=1,
        paint=lambda _: np.hstack([eye, eye]),
        codec_options={"crf": "8"},
    )
    told = explain(planned(twice), settings(), store=store).lines()
    assert any("note: both eyes show the same picture" in line for line in told)


def test_what_stands_there_is_said_to_be_replaced_or_done(clip, tmp_path, store):
    (tmp_path / "o.mp4").write_bytes(clip.read_bytes())
    assert "(replaces the file there)" in "\n".join(explain(planned(clip), settings(), store=store).lines())
    done = explain(planned(clip), settings(), resume=True, store=store)
    assert "done already" in "\n".join(done.lines())
    assert done.to_dict()["status"] == "skipped"
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "000000.png").touch()
    pictures = explain(planned(clip, "f"), settings(), store=store)
    assert "(replaces the folder there)" in "\n".join(pictures.lines())


def test_auto_says_what_it_means_on_this_machine(clip, store, rvm_model_path):
    assert explain(planned(clip), settings(), store=store).model == "rvm (would be downloaded), else selfie"
    assert (
        explain(planned(clip), settings(model__name="rvm"), store=store).model == "rvm (would be downloaded)"
    )
    assert explain(planned(clip), settings(model__name="selfie"), store=store).model == "selfie (here)"
    store.where().mkdir(parents=True)
    cached = store.where() / rvm_model_path.name
    cached.write_bytes(rvm_model_path.read_bytes())
    assert explain(planned(clip), settings(), store=store).model == "rvm (here)"
    cached.write_bytes(bytes(rvm_model_path.stat().st_size))
    with pytest.raises(ModelChecksumError, match="models pull rvm"):
        explain(planned(clip), settings(), store=ModelStore(store.where().parent))


@pytest.mark.parametrize(
    ("wishes", "error", "says"),
    [
        ({"model__name": "resnet"}, ModelError, "resnet"),
        ({"model__name": "gone.onnx", "model__kind": "matte"}, ModelError, "gone.onnx"),
        ({"model__name": "gone.onnx"}, UsageError, "--kind"),
        ({"model__kind": "matte"}, UsageError, "model.kind"),
        ({"gpu__device": "cuda", "gpu__device_id": 200}, DeviceError, "GPU|CuPy"),
        ({"output__kinds": ["replace"], "output__background": "gone.jpg"}, InputError, "gone.jpg"),
    ],
)
def test_what_all_videos_share_refuses_the_run(clip, store, wishes, error, says):
    with pytest.raises(error, match=says):
        explain(planned(clip), settings(**wishes), store=store)
    with pytest.raises(VitascopeError, match=says):
        list(explain_all([planned(clip)], settings(**wishes), store=store))


def test_a_start_beyond_the_end(clip, store):
    with pytest.raises(InputError, match=r"no frame between 500 s and the end; the video lasts"):
        explain(planned(clip), settings(video__start_seconds=500), store=store)


def test_one_bad_file_does_not_hide_the_others(clip, tmp_path, store):
    bad = tmp_path / "bad.mp4"
    bad.write_text("no video")
    first, second = explain_all([planned(bad, "b.mp4"), planned(clip)], settings(), store=store)
    assert isinstance(first, Refusal)
    assert first.to_dict()["status"] == "failed"
    assert "bad.mp4" in first.to_dict()["error"]
    assert isinstance(second, Explanation)
    assert second.info.path == Path(clip)


def test_of_videos_that_are_alike_one_is_tried(tmp_path, monkeypatch):
    """Check that trials are shared: otherwise a dry run of a folder would take longer than the run."""
    for name, count, size in (("a", 24, 64), ("b", 48, 64), ("c", 24, 96), ("d", 72, 64)):
        write_clip(tmp_path / f"{name}.mp4", width=size, height=48, frame_count=count)
    written = []
    write = Segmenter.write

    def noted(self, video, outputs, **options):
        written.append(video.name)
        return write(self, video, outputs, **options)

    monkeypatch.setattr(Segmenter, "write", noted)
    loaded = load_settings(profile="fast", flags={"gpu.device": "cpu"})
    plans = plan_outputs(find_videos([tmp_path], recursive=False), tmp_path / "cut", ["key"])
    a, b, c, d = (one.estimate for one in explain_all(plans, loaded.settings, try_with=loaded))
    assert written == ["a.mp4", "c.mp4"]
    assert b.wall_seconds == pytest.approx(2 * a.wall_seconds)
    assert d.nbytes == pytest.approx(3 * a.nbytes, abs=2)
    assert c.frames == 24


def test_the_stretch_and_an_estimate_of_it(tmp_path):
    clip = write_clip(tmp_path / "in.mp4", width=64, height=48, frame_count=96)
    loaded = load_settings(profile="fast", flags={"gpu.device": "cpu", "video.end_seconds": 3.0})
    (plan,) = plan_outputs(find_videos([clip], recursive=False), tmp_path / "o.mp4", ["key"])
    (explained,) = explain_all([plan], loaded.settings, try_with=loaded)
    assert "3.0 s of 4.0 s" in explained.lines()[0]
    estimate = explained.estimate
    assert estimate.frames == 36
    assert "from a trial of 36 frames" in explained.lines()[-1]
    with Segmenter(loaded=loaded) as segmenter:
        report = segmenter.write(clip, plan.outputs)
    assert estimate.wall_seconds > 0
    assert 0.3 < estimate.nbytes / report.outputs[0].size_bytes < 3
    assert explained.to_dict()["estimate"]["frames"] == 36
    (untried,) = explain_all([plan], loaded.settings)
    assert untried.estimate is None


def test_ctrl_c_tells_of_no_file_that_is_gone(tmp_path, monkeypatch):
    """Check that the error does not name a trial's file, which is removed with its folder."""
    clip = write_clip(tmp_path / "in.mp4", width=64, height=48, frame_count=4)

    def interrupted(self, video, outputs, **options):
        raise KeyboardInterrupt("kept what was written: /tmp/vitascope-x/0.mp4.part")

    monkeypatch.setattr(Segmenter, "write", interrupted)
    loaded = load_settings(profile="fast", flags={"gpu.device": "cpu"})
    with pytest.raises(KeyboardInterrupt) as ended:
        list(explain_all([planned(clip)], loaded.settings, try_with=loaded))
    assert ended.value.args == ()
