"""Check that every setting of the animator and of live runs has a visible effect."""

from __future__ import annotations

import itertools
import threading
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path

import av
import numpy as np
import pytest

from clips import write_clip
from vitascope.animation import drivers
from vitascope.animation.animator import gains_of, liveportrait_folder, open_animator
from vitascope.animation.face import FaceMotion
from vitascope.animation.live import run as live_run
from vitascope.animation.live.controls import Controls
from vitascope.animation.live.run import animate_live
from vitascope.animation.mesh.animator import MeshAnimator
from vitascope.animation.motion_file import write_motion
from vitascope.animation.portrait import Portrait
from vitascope.config import load_settings
from vitascope.device import select_device
from vitascope.errors import EngineError, InputError, ModelError, UsageError
from vitascope.media.reading import camera
from waiting import eventually

PORTRAIT = Path(__file__).parents[2] / "examples" / "astronaut.jpg"


@pytest.fixture
def still():
    """Return a face, uint8 [256, 256, 3]."""
    with av.open(str(PORTRAIT)) as container:
        return next(container.decode(video=0)).to_ndarray(format="rgb24")[:256, 96:352].copy()


@pytest.fixture
def film(tmp_path, still):
    """Write a video of a still face, with a quarter of the rows one level lighter each time.

    Any two frames differ, but little, as a busy machine drops some.
    """

    def paint(n):
        lighter = np.minimum(still, 200)
        lighter[np.arange(256) % 32 < 8] += n
        return lighter

    lossless = {"codec": "libx264rgb", "pixel_format": "rgb24", "codec_options": {"qp": "0"}}
    return write_clip(tmp_path / "still.mkv", width=256, height=256, frame_count=13, paint=paint, **lossless)


class StillCamera:
    """A camera with the same picture forever; in every other one, a quarter of the rows is a level lighter."""

    def __init__(self, rgb):
        lighter = np.minimum(rgb, 254)
        lighter[np.arange(len(rgb)) % 32 < 8] += 1
        self.pictures = itertools.cycle((rgb, lighter))

    def read(self):
        threading.Event().wait(0.01)
        return next(self.pictures)

    def close(self):
        pass


@pytest.fixture
def live(face_model, model_store, monkeypatch, still):
    """Run live with settings; returns the report, the threads, the messages and the requests to cameras."""
    asked = []

    def open_capture(source, *, size=None, frame_rate=None):
        asked.append((source, frame_rate))
        return StillCamera(still)

    monkeypatch.setattr(camera, "open_capture", open_capture)

    def runner(driver, *assignments, seconds=None, until=None):
        threads, said = [], []

        def on_session(session):
            threads.extend(thread.name for thread in threading.enumerate())
            if until is not None:
                waiting.append(threading.Thread(target=stop, args=(session,)))
                waiting[0].start()

        def stop(session):
            try:
                eventually(lambda: until(session.report()))
            finally:
                session.stop()

        waiting = []
        report = animate_live(
            PORTRAIT,
            str(driver),
            ["null"],
            loaded=load_settings(
                assignments=["animation.animator=mesh", "animation.calibrate=false", *assignments]
            ),
            store=model_store,
            seconds=seconds,
            on_session=on_session,
            on_message=said.append,
        )
        for thread in waiting:
            thread.join()
        return report, threads, said, asked

    return runner


@pytest.mark.parametrize("value", [True, False])
def test_use_async_capture(live, value):
    report, threads, _, _ = live(
        "0", f"performance.use_async_capture={value}", until=lambda report: report.shown
    )
    assert ("vitascope-camera" in threads) is value
    assert report.shown


@pytest.mark.parametrize("value", [True, False])
def test_use_async_output(live, film, value):
    report, threads, _, _ = live(film, f"performance.use_async_output={value}")
    assert ("vitascope-sink-null" in threads) is value
    assert report.sinks[0].sent


@pytest.mark.parametrize(("value", "thread"), [(3, True), (0, False)])
def test_prefetch_frames(live, film, value, thread):
    report, threads, _, _ = live(film, f"performance.prefetch_frames={value}")
    assert ("vitascope-film" in threads) is thread
    assert report.captured == 13


def test_frame_skip(live, film):
    on = "performance.frame_skip_enabled=true"
    assert live(film)[0].repeated == 0
    assert live(film, on, "performance.frame_skip_threshold=1")[0].repeated == 0
    nearly = "performance.frame_skip_threshold=0.1"
    assert live("0", on, nearly, until=lambda report: report.repeated)[0].repeated > 0


def test_target_fps(live):
    report, _, _, asked = live("0", "performance.target_fps=17", seconds=0.1)
    assert asked[0] == (0, 17)
    assert report.target_fps == 17


def test_no_more_than_target_fps_are_animated(live):
    report, *_ = live(  # the camera delivers about 100
        "0", "performance.target_fps=8", until=lambda report: report.captured >= 8 and report.shown >= 4
    )
    # One at once, one for each eighth of a second after it, and maybe a last one a little early.
    assert report.captured <= 8 * report.seconds + 1.5


def test_max_side(live, film):
    assert live(film, "animation.max_side=300")[0].size == (300, 300)


def test_a_part_of_the_film(live, film):
    assert live(film, "video.start_seconds=0.2", "video.end_seconds=0.3")[0].captured in (2, 3)
    with pytest.raises(UsageError, match="a camera has no start and end"):
        live("0", "video.end_seconds=3")


def test_mirror_and_smoothing_begin_as_set(live, film, monkeypatch):
    states = []

    class Watched(Controls):
        def __init__(self, state, **more):
            states.append(state)
            super().__init__(state, **more)

    monkeypatch.setattr(live_run, "Controls", Watched)
    live(film, "animation.mirror=true", "tracking.smoothing_window=9")
    assert (states[0].mirror, states[0].smoothing_window) == (True, 9)


def test_tracker_and_estimator_are_told_how_to_follow(monkeypatch):
    settings = load_settings(
        assignments=[
            "tracking.max_num_faces=3",
            "tracking.follow=1",
            "tracking.refine_landmarks=false",
            "tracking.smoothing_window=7",
            "tracking.pose_smoothing_window=2",
            "tracking.min_confidence=0.7",
            "animation.neutral=first",
        ]
    ).settings
    monkeypatch.setattr(drivers, "FaceTracker", lambda model, **told: told)
    monkeypatch.setattr(drivers, "MotionEstimator", lambda mesh, **told: told)
    assert drivers.open_tracker(None, settings) == {
        "max_faces": 3,
        "follow": 1,
        "refine": False,
        "min_confidence": 0.7,
    }
    assert drivers.make_estimator(None, settings, frame_rate=25) == {
        "pose_window": 2,
        "expression_window": 7,
        "neutral": "first",
        "frame_rate": 25,
    }


@pytest.mark.parametrize("name", ["expression", "pose", "brows", "eyes", "gaze", "mouth"])
def test_gains(name):
    gains = gains_of(load_settings(assignments=[f"animation.{name}=0.25"]).settings)
    assert asdict(gains)[name] == 0.25


# --- which animator, and how it is opened ------------------------------------------------------------------------


@pytest.fixture
def portrait(astronaut, astronaut_face):
    return Portrait(astronaut, astronaut_face)


@pytest.fixture
def opened(portrait, mesh, face_model, tmp_path):
    """Open the animator for some settings."""

    def opener(*assignments, live=False):
        with ExitStack() as stack:
            return open_animator(
                portrait,
                mesh=mesh,
                model=lambda: face_model,
                loaded=load_settings(assignments=assignments),
                home=tmp_path,
                stack=stack,
                live=live,
            )

    return opener


def test_auto_is_the_mesh_without_weights(opened):
    assert isinstance(opened("animation.calibrate=false").animator, MeshAnimator)


def test_calibrate(opened, monkeypatch):
    calls = []
    monkeypatch.setattr(MeshAnimator, "calibrate", lambda *_: calls.append(1))
    opened("animation.calibrate=false")
    assert not calls
    opened("animation.calibrate=true")
    assert calls


@pytest.mark.parametrize(
    "assignment",
    [
        "animation.inference_precision=fp32",
        "animation.use_half_precision=false",
        "animation.enable_tensorrt=true",
        "animation.batch_size=4",
        "performance.gpu_memory_fraction=0.5",
        "performance.clear_cache_interval=9",
    ],
)
def test_the_mesh_says_what_it_ignores(opened, assignment):
    made = opened("animation.calibrate=false", assignment)
    key = assignment.partition("=")[0]
    assert made.notes == (f"{key} has no effect on the mesh animator, which runs no network",)
    assert made.batch_size == 1


def test_the_strength_multiplies_the_gains(opened):
    made = opened("animation.calibrate=false", "animation.pose=0.5", "animation.mouth=0.3")
    made.set_strength(2.0)
    assert isinstance(made.animator, MeshAnimator)
    assert (made.animator.gains.pose, made.animator.gains.expression) == (1.0, 2.0)
    assert made.animator.gains.mouth == 0.3


@pytest.fixture
def liveportrait(monkeypatch, tmp_path):
    """Record how LivePortrait is opened; simulate a GPU and weights."""
    torch = pytest.importorskip("torch")
    from vitascope.animation.liveportrait import animator as animator_module
    from vitascope.models.liveportrait.networks import LivePortraitNetworks

    told = {}

    class StandIn:
        name = "liveportrait"
        needs_driver_picture = True

        def __init__(self, networks, *, gains, batch_size, release_every):
            told.update(gains=gains, batch_size=batch_size, release_every=release_every)
            self.gains = gains

        def animate_batch(self, motions):
            raise AssertionError("nothing is animated here")

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def set_portrait(self, rgb, *, face):
            pass

    def open_networks(folder, *, device, mode, half_precision):
        told.update(folder=folder, device=device, mode=mode, half_precision=half_precision)

    def select(requested, *, index):
        told["requested"] = requested
        return replace(select_device("cpu", index=0), kind="cuda", index=index)

    monkeypatch.setattr(animator_module, "LivePortraitAnimator", StandIn)
    monkeypatch.setattr(LivePortraitNetworks, "open", staticmethod(open_networks))
    monkeypatch.setattr("vitascope.animation.animator.select_device", select)
    monkeypatch.setattr(
        torch.cuda,
        "set_per_process_memory_fraction",
        lambda share, index: told.update(share=share, share_of=index),
    )
    (tmp_path / "liveportrait").mkdir()
    return told


def test_auto_is_liveportrait_where_it_can_be(opened, liveportrait, tmp_path):
    assert opened().animator.name == "liveportrait"
    assert liveportrait["folder"] == tmp_path / "liveportrait"
    assert liveportrait["half_precision"] is True
    assert liveportrait["share"] == 0.85
    assert liveportrait["release_every"] == 200


@pytest.mark.parametrize(
    ("assignment", "key", "value"),
    [
        ("performance.gpu_memory_fraction=0.5", "share", 0.5),
        ("performance.clear_cache_interval=7", "release_every", 7),
        ("animation.gpu_id=2", "share_of", 2),
        ("animation.batch_size=4", "batch_size", 4),
        ("animation.batch_size=2-6", "batch_size", 2),
        ("animation.use_half_precision=false", "half_precision", False),
        ("animation.inference_precision=fp32", "half_precision", False),
    ],
)
def test_settings_of_liveportrait(opened, liveportrait, assignment, key, value):
    opened("animation.animator=liveportrait", assignment)
    assert liveportrait[key] == value


def test_batch_size_is_for_films(opened, liveportrait):
    made = opened("animation.animator=liveportrait", "animation.batch_size=4")
    assert made.batch_size == 4
    made = opened("animation.animator=liveportrait", "animation.batch_size=4", live=True)
    assert (made.batch_size, liveportrait["batch_size"]) == (1, 1)


def test_liveportraits_gains(opened, liveportrait):
    made = opened("animation.animator=liveportrait", "animation.pose=0.5", "animation.eyes=0.3")
    assert (liveportrait["gains"].pose, liveportrait["gains"].expression) == (0.5, 1.0)
    assert any("animation.eyes has no effect on LivePortrait" in note for note in made.notes)


@pytest.mark.parametrize(
    ("assignment", "error", "says"),
    [
        ("animation.enable_tensorrt=true", EngineError, "5-D grid sampling"),
        ("animation.inference_precision=int8", UsageError, "not quantised"),
        ("animation.liveportrait_folder=/nowhere/weights", ModelError, "/nowhere/weights"),
    ],
)
def test_what_liveportrait_cannot_do(opened, liveportrait, assignment, error, says):
    with pytest.raises(error, match=says):
        opened("animation.animator=liveportrait", assignment)


def test_liveportrait_folder(tmp_path):
    settings = load_settings(assignments=[f"animation.liveportrait_folder={tmp_path}"]).settings
    assert liveportrait_folder(settings, Path("/home")) == tmp_path


def test_liveportrait_cannot_replay_a_recording(live, liveportrait, tmp_path, monkeypatch):
    monkeypatch.setattr(live_run, "vitascope_home", lambda: tmp_path)
    write_motion(tmp_path / "a.motion", [FaceMotion()], frame_rate=25)
    with pytest.raises(UsageError, match="recorded motion has no pictures"):
        live(tmp_path / "a.motion", "animation.animator=liveportrait")


def test_face(live, film):
    with pytest.raises(InputError):
        live(film, "animation.face=5")
    assert live(film, "animation.face=0")[0].shown
