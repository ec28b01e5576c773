"""Check that jobs on the GPU give the same pictures as on the CPU."""

from __future__ import annotations

from fractions import Fraction

import av
import numpy as np
import pytest
from skimage import data

import photographs
from clips import write_clip
from scripted import BrightnessNetwork, segment_with
from vitascope.config import load_settings
from vitascope.media.sinks.sink import LivePicture, NullSink
from vitascope.models.network import MatteEstimate
from vitascope.segmentation.people.identities import Presence
from vitascope.segmentation.people.table import PeopleWriter, table_path
from vitascope.segmentation.segmenter import Segmenter

pytestmark = pytest.mark.cuda

KINDS = ["mask", "key", "cutout", "blur", "overlay"]


class GreyNetwork(BrightnessNetwork):
    """Returns alpha that grows with brightness: a threshold would flip by rounding alone."""

    def infer(self, images, state):
        self.calls.append(images.shape[:2])
        state.seen += len(images)
        return [
            MatteEstimate(alpha=np.clip(2 * frame.mean(axis=1) - 0.5, 0, 1).astype(np.float32))
            for frame in images
        ]


def astronaut(index: int):
    picture = np.roll(photographs.astronaut(), 3 * index, axis=1)
    return np.ascontiguousarray(picture[:360, :480])


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    """Write a clip of 480 x 360 with 40 frames, H.264 and sound."""
    return write_clip(
        tmp_path_factory.mktemp("gpu") / "in.mp4",
        width=480,
        height=360,
        frame_count=40,
        frame_rate=Fraction(30000, 1001),
        paint=astronaut,
        audio="aac",
        color_tags=(1, 1, 1, 1),
    )


def segmenter(monkeypatch, device, **settings):
    """Open a segmenter with the scripted network, on the CPU or on the GPU."""
    network = GreyNetwork(recurrent=True)
    if device == "cuda":
        from vitascope.models.host_network import HostNetwork

        network = HostNetwork(network)
    segment_with(monkeypatch, network)
    # Named, as ``fast`` takes RVM's settings on a GPU if that was fetched.
    named = {"gpu.device": device, "model.name": "selfie"}
    flags = {**named, **{key.replace("__", "."): value for key, value in settings.items()}}
    return Segmenter(loaded=load_settings(profile="fast", flags=flags))


def pictures(path):
    with av.open(str(path)) as film:
        return [(frame.pts, frame.to_ndarray(format="yuv444p")) for frame in film.decode(video=0)]


@pytest.mark.parametrize("mode", ["throughput", "latency"])
def test_alpha_of_every_frame_agrees(monkeypatch, clip, mode):
    mattes = {}
    for device in ("cpu", "cuda"):
        with segmenter(monkeypatch, device, performance__mode=mode) as made:
            mattes[device] = [(step.frame.pts, step.frame.index, step.alpha) for step in made.stream(clip)]
    assert len(mattes["cuda"]) == len(mattes["cpu"]) == 40
    for (pts, index, alpha), (pts_gpu, index_gpu, alpha_gpu) in zip(
        mattes["cpu"], mattes["cuda"], strict=True
    ):
        assert (pts, index) == (pts_gpu, index_gpu)
        assert isinstance(alpha_gpu, np.ndarray)
        difference = np.abs(alpha.astype(int) - alpha_gpu.astype(int))
        assert difference.mean() <= 0.5


def test_kept_people_agree(monkeypatch, clip, tmp_path):
    """Check labels of a scan, and a region that is never kept."""
    monkeypatch.setenv("VITASCOPE_HOME", str(tmp_path / "home"))
    halves = np.repeat([[1] * 40 + [2] * 40], 60, axis=0).astype(np.uint8)
    with PeopleWriter(table_path(clip, load_settings().settings.video)) as writer:
        for pts in range(0, 40 * 1001, 2002):
            writer.add(pts, halves[None])
        writer.end_shot({1: 1, 2: 2})
        seen = [Presence(number, 0, 39 * 1001, 0.3, 0.9, 20, 0) for number in (1, 2)]
        writer.finish(
            seen,
            faces={},
            time_base=(1, 30000),
            origin_pts=0,
            video=clip.name,
            fingerprint="",
            begin_seconds=0.0,
            end_seconds=None,
            network="scripted",
            notes=(),
        )
    hints = tmp_path / "in.hints.yaml"
    hints.write_text("never:\n  - polygon: [[0, 0.7], [1, 0.7], [1, 1], [0, 1]]\n", encoding="utf-8")
    mattes = {}
    for device in ("cpu", "cuda"):
        with segmenter(monkeypatch, device, people__keep=[1], people__hints=hints) as made:
            mattes[device] = np.stack([step.alpha for step in made.stream(clip)]).astype(int)
        assert mattes[device][:, :220, :220].mean() > 20
        assert mattes[device][:, :, 270:].max() <= 1
        assert mattes[device][:, 290:].max() <= 1
    assert np.abs(mattes["cpu"] - mattes["cuda"]).mean() <= 0.5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "wishes",
    [
        {},
        {"edges__feather_px": 1.5, "edges__grow_px": -2.0},
        {"edges__temporal_smoothing": 0.5},
    ],
    ids=["plain", "edges", "smoothing"],
)
def test_every_kind_of_output_agrees(monkeypatch, clip, tmp_path, kind, wishes):
    made = {}
    for device in ("cpu", "cuda"):
        out = tmp_path / f"{device}.mkv"
        with segmenter(monkeypatch, device, output__codec="ffv1", **wishes) as running:
            report = running.write(clip, [(kind, out)])
        assert report.frame_count == 40
        made[device] = pictures(out)
        assert (report.gpu is not None) == (device == "cuda")
    for (pts, expected), (pts_gpu, actual) in zip(made["cpu"], made["cuda"], strict=True):
        assert pts == pts_gpu
        difference = np.abs(expected.astype(int) - actual.astype(int))
        assert difference.mean() <= 0.5
        assert np.percentile(difference, 99.9) <= 6


def test_alpha_and_replacement_agree(monkeypatch, clip, tmp_path):
    background = tmp_path / "behind.png"
    import cv2

    cv2.imwrite(str(background), data.coffee()[..., ::-1])
    made = {}
    for device in ("cpu", "cuda"):
        transparent, replaced = tmp_path / f"{device}.mov", tmp_path / f"{device}.mkv"
        with segmenter(monkeypatch, device) as running:
            running.write(clip, [("alpha", transparent)])
        with segmenter(
            monkeypatch, device, output__codec="ffv1", output__background=str(background)
        ) as running:
            running.write(clip, [("replace", replaced)])
        with av.open(str(transparent)) as film:
            alpha = [frame.to_ndarray(format="rgba")[..., 3].astype(int) for frame in film.decode(video=0)]
        made[device] = (alpha, [picture for _, picture in pictures(replaced)])
    differences = [
        max(np.abs(a.astype(int) - b.astype(int)).mean() for a, b in zip(cpu, cuda, strict=True))
        for cpu, cuda in zip(made["cpu"], made["cuda"], strict=True)
    ]
    assert max(differences) <= 0.5, differences


def test_a_narrow_mask_is_narrow_on_both(monkeypatch, clip, tmp_path):
    made = {}
    for device in ("cpu", "cuda"):
        out = tmp_path / f"{device}.mkv"
        with segmenter(monkeypatch, device, output__mask_max_width=240, output__codec="ffv1") as running:
            running.write(clip, [("mask", out)])
        made[device] = pictures(out)
        assert made[device][0][1].shape[1:] == (180, 240)
    for (_, expected), (_, actual) in zip(made["cpu"], made["cuda"], strict=True):
        # The CPU shrinks the matte, the GPU mattes the shrunk frame: they differ at edges finer than that.
        assert np.abs(expected[0].astype(int) - actual[0].astype(int)).mean() <= 3


def test_a_contact_sheet_is_drawn(monkeypatch, clip, tmp_path):
    sheet = tmp_path / "sheet.png"
    with segmenter(monkeypatch, "cuda") as running:
        running.write(clip, [("key", tmp_path / "key.mp4")], preview=sheet)
    import cv2

    assert cv2.imread(str(sheet)).std() > 20


def test_what_cannot_stay_on_the_gpu_is_drawn_by_the_processor(monkeypatch, tmp_path):
    film = write_clip(
        tmp_path / "in.mkv", width=128, height=96, frame_count=5, paint=lambda n: astronaut(n)[:96, :128],
        codec="ffv1", pixel_format="yuv444p",
    )  # fmt: skip
    with segmenter(monkeypatch, "cuda") as running:
        report = running.write(film, [("key", tmp_path / "key.mp4")])
    assert report.frame_count == 5
    assert any("cannot stay on the GPU" in note for note in report.notes)


def test_leaving_the_stream_early_stops_everything(monkeypatch, clip):
    with segmenter(monkeypatch, "cuda") as running:
        for number, _ in enumerate(running.stream(clip)):
            if number == 3:
                break
        assert sum(1 for _ in running.stream(clip)) == 40


@pytest.mark.parametrize("kind", ["key", "mask", "alpha"])
def test_live_pictures_agree(monkeypatch, clip, kind):
    """Check the last picture of a video, which is never dropped, as no newer one replaces it."""

    class Keeping(NullSink):
        def send(self, picture):
            kept.append(picture)

    last = {}
    for device in ("cpu", "cuda"):
        kept: list[LivePicture] = []
        with segmenter(monkeypatch, device, output__kinds=[kind]) as made:
            report = made.live(clip, [Keeping()])
        assert report.captured == 40
        assert [picture.index for picture in kept] == sorted({picture.index for picture in kept})
        last[device] = kept[-1].as_format("rgba").astype(int)
        assert kept[-1].index == 39
    assert np.abs(last["cpu"] - last["cuda"]).mean() <= 0.5
