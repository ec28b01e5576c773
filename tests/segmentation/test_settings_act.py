"""Check that every acting setting changes something visible, except those in test_segmenter_settings."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import ClassVar

import av
import numpy as np
import pytest
from onnx import TensorProto, helper

import photographs
from clips import write_clip
from scripted import BrightnessNetwork, segment_with
from vitascope.config import load_settings
from vitascope.device import Device
from vitascope.errors import CorruptInputError, DeviceError, UsageError
from vitascope.frames import PIXEL_FORMATS
from vitascope.gpu import streams as streams_module
from vitascope.gpu.profiling.document import load_profile
from vitascope.segmentation import film_run, writing
from vitascope.segmentation.capacity import frames_per_call
from vitascope.segmentation.segmenter import Segmenter


def astronaut(n: int):
    return np.ascontiguousarray(np.roll(photographs.astronaut()[:256:2, 60:316:2], n, axis=1))


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return write_clip(
        tmp_path_factory.mktemp("act") / "in.mp4",
        width=128,
        height=128,
        frame_count=24,
        paint=astronaut,
        audio="aac",
    )


@pytest.fixture
def scripted(monkeypatch):
    network = BrightnessNetwork()
    segment_with(monkeypatch, network)
    return network


def first_frame(path):
    with av.open(str(path)) as container:
        return next(container.decode(video=0)).to_ndarray(format="rgb24").astype(int)


def test_decontaminate(clip, tmp_path, rvm_model_path, model_store):
    def colours(decontaminate):
        flags = {
            "edges.decontaminate": decontaminate,
            "output.codec": "ffv1",
            "model.name": "rvm",
            "video.end_seconds": 0.03,
        }
        out = tmp_path / f"{decontaminate}.mkv"
        with Segmenter(settings=flags, store=model_store) as segmenter:
            segmenter.write(clip, [("key", out)])
        return first_frame(out)

    kept, cleaned = colours(False), colours(True)
    assert np.abs(kept - cleaned).max() > 8
    # Only the edge changes, so most of the picture is equal.
    assert (np.abs(kept - cleaned).max(axis=2) <= 1).mean() > 0.8


@pytest.fixture
def damaged(tmp_path):
    """Write a transport stream with noise in the middle: pictures are lost, but the container is intact."""
    path = write_clip(
        tmp_path / "in.ts",
        width=128,
        height=128,
        frame_count=48,
        paint=astronaut,
        codec_options={"g": "4", "bf": "0"},
    )
    content = bytearray(path.read_bytes())
    middle = len(content) // 2 // 188 * 188
    for packet in range(6):  # keep the packets' headers, so that only the video inside is damaged
        start = middle + packet * 188 * 3 + 20
        content[start : start + 150] = np.random.default_rng(packet).bytes(150)
    path.write_bytes(content)
    return path


def test_max_corrupt_frames(damaged, scripted):
    with Segmenter(settings={"video.max_corrupt_frames": 1000}) as segmenter:
        assert len(list(segmenter.stream(damaged))) > 30
    with Segmenter(settings={"video.max_corrupt_frames": 0}) as segmenter, pytest.raises(CorruptInputError):
        list(segmenter.stream(damaged))


@pytest.fixture
def three_classes(tmp_path):
    """Write a network with the classes 0 (nothing), 1 (bright places) and 2 (dark places)."""
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["grey"], axes=[1], keepdims=1),
        helper.make_node("Mul", ["grey", "ten"], ["bright"]),
        helper.make_node("Sub", ["ten", "bright"], ["dark"]),
        helper.make_node("Mul", ["grey", "zero"], ["nothing"]),
        helper.make_node("Concat", ["nothing", "bright", "dark"], ["y"], axis=1),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 64, 64])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3, 64, 64])
    constants = [
        helper.make_tensor(n, TensorProto.FLOAT, [1], [v]) for n, v in (("ten", 10.0), ("zero", 0.0))
    ]
    graph = helper.make_graph(nodes, "classes", [x], [y], constants)
    path = tmp_path / "classes.onnx"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


def test_kind_and_person_class(clip, three_classes):
    def alpha_of(person_class):
        settings = {
            "model.name": str(three_classes),
            "model.kind": "semantic",
            "model.person_class": person_class,
        }
        with Segmenter(settings=settings) as segmenter:
            assert segmenter.chosen.requested == str(three_classes)
            return next(iter(segmenter.stream(clip))).alpha.astype(int)

    assert np.abs(alpha_of(1) - alpha_of(2)).mean() > 50


@pytest.mark.parametrize(
    ("setting", "values"), [("speed", ("fast", "balanced", "quality")), ("preset", ("ultrafast", "veryslow"))]
)
def test_speed_and_preset(clip, tmp_path, scripted, setting, values):
    sizes = set()
    for value in values:
        with Segmenter(settings={f"output.{setting}": value}) as segmenter:
            sizes.add(segmenter.write(clip, [("overlay", tmp_path / f"{value}.mp4")]).outputs[0].size_bytes)
    assert len(sizes) == len(values)


def test_decode_and_encode_threads(clip, tmp_path, scripted, monkeypatch):
    seen = {}
    open_video, writer = film_run.open_video, writing.OutputSet._writer
    monkeypatch.setattr(
        film_run,
        "open_video",
        lambda *a, **k: seen.update(decode=k["threads"]) or open_video(*a, **k),
    )
    monkeypatch.setattr(
        writing.OutputSet,
        "_writer",
        staticmethod(lambda *a, **k: seen.update(encode=k["encoding"].threads) or writer(*a, **k)),
    )
    flags = {"pipeline.stages.decode.threads": 3, "pipeline.stages.encode.threads": 2}
    with Segmenter(settings=flags) as segmenter:
        segmenter.write(clip, [("key", tmp_path / "o.mp4")])
    assert seen == {"decode": 3, "encode": 2}


@pytest.mark.parametrize(
    ("setting", "value", "most"),
    [
        ("processing.max_queue_size", 1, 1),
        ("processing.max_queue_size", 5, 5),
        ("processing.max_queue_mb", 0.06, 2),
    ],
)
def test_queue_limits(clip, tmp_path, scripted, setting, value, most):
    """Check the limits; a frame of 128x128 is 25 kB in YUV, so two fit into 60 kB."""
    with Segmenter(settings={setting: value}) as segmenter:
        report = segmenter.write(clip, [("key", tmp_path / "o.mp4")])
    assert max(queue.occupancy_max for queue in report.pipeline.queues) <= most
    assert report.frame_count == 24


def test_what_has_no_effect_is_said(clip, tmp_path):
    flags = {"model.downsample_ratio": 0.5, "edges.decontaminate": True, "output.background": str(clip)}
    with Segmenter(profile="fast", settings=flags) as segmenter:
        notes = " ".join(segmenter.write(clip, [("mask", tmp_path / "o.mp4")]).notes)
    assert all(key in notes for key in flags)
    with Segmenter(profile="fast") as segmenter:
        assert segmenter.write(clip, [("key", tmp_path / "p.mp4")]).notes == ()


def test_throughput_mode_takes_eight_frames_and_more(clip, tmp_path, scripted):
    most = {}
    for name, flags in {
        "auto": {},
        "throughput": {"performance.mode": "throughput"},
        "chosen": {"performance.mode": "throughput", "model.batch_size": 3},
    }.items():
        scripted.calls.clear()
        with Segmenter(settings=flags) as segmenter:
            segmenter.write(clip, [("key", tmp_path / f"{name}.mp4")])
        most[name] = max(frames for frames, _ in scripted.calls)
    assert most == {"auto": 4, "throughput": 8, "chosen": 3}  # 4 is from the profile


@pytest.mark.parametrize(("gigabytes", "auto", "throughput"), [(100, 16, 16), (2, 2, 8)])
def test_throughput_mode_on_a_gpu_takes_eight_to_sixteen(gigabytes, auto, throughput):
    film = SimpleNamespace(width=7680, height=3840, format=PIXEL_FORMATS["yuv420p"])
    streams = SimpleNamespace(allowed_bytes=lambda: int(gigabytes * 1e9))
    for mode, frames in (("auto", auto), ("throughput", throughput), ("latency", 1)):
        loaded = load_settings(flags={"performance.mode": mode})
        assert frames_per_call(loaded, film, streams=streams) == frames


@pytest.mark.parametrize(("gigabytes", "frames"), [(125, 16), (12, 14), (6, 7), (1, 1)])
def test_pictures_of_the_network_count_as_memory_of_a_call(gigabytes, frames):
    """Check two eyes of 768x768, which take twice the memory of a frame of 4096x2048."""
    film = SimpleNamespace(width=4096, height=2048, format=PIXEL_FORMATS["yuv420p"])
    streams = SimpleNamespace(allowed_bytes=lambda: int(gigabytes * 1e9))
    shown = 4 * 2 * 3 * 768 * 768 * 2  # the eyes' pictures, and fisheye ones made of them
    assert frames_per_call(load_settings(), film, streams=streams, picture_bytes=shown) == frames
    asked = load_settings(flags={"model.batch_size": 12})
    assert frames_per_call(asked, film, streams=streams, picture_bytes=shown) == 12


def test_latency_mode_takes_each_frame_at_once(clip, tmp_path, scripted):
    flags = {"model.batch_size": 6, "performance.mode": "latency"}
    with Segmenter(settings=flags) as segmenter:
        report = segmenter.write(clip, [("key", tmp_path / "o.mp4")])
    assert {frames for frames, _ in scripted.calls} == {1}
    assert max(queue.occupancy_max for queue in report.pipeline.queues) <= 2
    scripted.calls.clear()
    # Without a search for cuts, no frame waits for those after it.
    with Segmenter(settings={"model.batch_size": 6, "video.scene_cut_threshold": 0}) as segmenter:
        segmenter.write(clip, [("key", tmp_path / "p.mp4")])
    assert {frames for frames, _ in scripted.calls} == {1, 6, 5}  # the first frame does not wait for others


@pytest.mark.parametrize(
    ("most", "width", "height"), [(64, 64, 64), (100, 100, 100), (128, 128, 128), (500, 128, 128)]
)
def test_mask_max_width(clip, tmp_path, scripted, most, width, height):
    out = tmp_path / "mask.mkv"
    with Segmenter(settings={"output.mask_max_width": most, "output.codec": "ffv1"}) as segmenter:
        segmenter.write(clip, [("mask", out), ("key", tmp_path / "key.mkv")])
    assert first_frame(out).shape[:2] == (height, width)
    assert first_frame(tmp_path / "key.mkv").shape[:2] == (128, 128)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("gpu.precision", "fp32"),
        ("gpu.device_id", 3),
        ("gpu.decoder_sessions", 2),
        ("gpu.max_vram_usage", 0.5),
        ("gpu.memory_fraction", 0.3),
        ("dataloader.pin_memory", False),
        ("gpu.cudnn_benchmark", False),
        ("gpu.cudnn_deterministic", True),
        ("gpu.allow_tf32", False),
    ],
)
def test_wishes_for_a_gpu_are_named_where_none_computes(clip, tmp_path, scripted, key, value):
    with Segmenter(settings={key: value, "gpu.device": "cpu"}) as segmenter:
        notes = segmenter.write(clip, [("key", tmp_path / "o.mp4")]).notes
    assert notes == (f"{key} has no effect here: this run used the CPU",)


def test_wishes_for_other_commands_are_named_in_a_line_each(clip, tmp_path, scripted):
    flags = {
        "animation.gaze": 0.5,
        "tracking.min_confidence": 0.4,
        "batching.dynamic.timeout_ms": 3,
        "performance.gpu_memory_fraction": 0.5,
        "performance.target_fps": 30,
    }
    with Segmenter(settings=flags) as segmenter:
        notes = segmenter.write(clip, [("key", tmp_path / "o.mp4")]).notes
    assert notes == (
        "animation.gaze and 1 more have no effect here: read by vitascope animate",
        "performance.gpu_memory_fraction has no effect here: read by LivePortrait's networks",
        "batching.dynamic.timeout_ms has no effect here: read by StillSegmenter",
        "performance.target_fps has no effect here: performance.auto_tune is off",
    )


@pytest.mark.parametrize("backend", ["torch", "inductor", "tensorrt"])
def test_an_engine_of_the_gpu_is_refused_on_the_processor(backend):
    with pytest.raises(UsageError, match=f"model.backend={backend} runs on a GPU"):
        Segmenter(profile="fast", settings={"model.backend": backend, "gpu.device": "cpu"})


def test_the_number_of_the_gpu_reaches_the_device():
    with pytest.raises(DeviceError, match="GPU 7"):
        Segmenter(profile="fast", settings={"gpu.device": "cuda", "gpu.device_id": 7})


def test_profile_performance(clip, tmp_path, scripted):
    def run(wanted):
        out = tmp_path / f"{wanted}.mp4"
        with Segmenter(settings={"debug.profile_performance": wanted}) as segmenter:
            return out, segmenter.write(clip, [("key", out)])

    out, report = run(wanted=False)
    assert not list(tmp_path.glob("*.json"))
    assert not any(note.startswith("profile") for note in report.notes)
    out, report = run(wanted=True)
    document = load_profile(f"{out}.profile.json")
    stages = {row["path"][0]: row for row in document["summary"] if len(row["path"]) == 1}
    assert {stage.name for stage in report.pipeline.stages} <= set(stages)
    # A source is asked once more, and then has nothing; batches are taken item by item.
    assert stages["decode"]["count"] == report.frame_count + 1
    assert stages["encode"]["count"] == stages["postprocess"]["count"] == report.frame_count
    for stage in report.pipeline.stages:
        assert stages[stage.name]["total_seconds"] <= stage.busy_seconds
    assert {row["name"] for row in document["threads"]} >= {
        f"vitascope-{name}" for name in ("decode", "encode")
    }
    assert document["verdict"]["main"]["advice"]
    assert len(document["utilisation"]) >= 2
    events = json.loads((tmp_path / "True.mp4.trace.json").read_text())["traceEvents"]
    assert {event["name"] for event in events if event["ph"] == "X"} >= set(stages)
    assert any(str(out) in note for note in report.notes)


def test_opencv_gets_its_threads_back():
    import cv2

    before = cv2.getNumThreads()
    cv2.setNumThreads(2)
    try:
        with Segmenter(profile="fast"):
            assert cv2.getNumThreads() == 1
        assert cv2.getNumThreads() == 2
    finally:
        cv2.setNumThreads(before)


class Streams:
    """Replaces ``JobStreams``; records its options, and whether it was closed."""

    made: ClassVar[list[Streams]] = []

    def __init__(self, device, **options):
        self.options = options
        self.closed = False
        self.made.append(self)

    def of_memory(self):
        return {name: self.options[name] for name in ("max_vram_usage", "memory_fraction", "pin_memory")}

    def close(self):
        self.closed = True


@pytest.fixture
def gpu_streams(monkeypatch):
    monkeypatch.setattr(film_run, "select_device", lambda *_, **__: Device("cuda", "fake"))
    monkeypatch.setattr(streams_module, "JobStreams", Streams)
    monkeypatch.setattr(Streams, "made", [])
    return Streams.made


def test_settings_of_memory_reach_the_gpu(gpu_streams, scripted):
    """Check that they arrive; tests/gpu/test_streams.py checks their effect."""
    flags = {"gpu.max_vram_usage": 0.5, "gpu.memory_fraction": 0.3, "dataloader.pin_memory": False}
    with Segmenter(settings=flags):
        (streams,) = gpu_streams
        assert streams.of_memory() == {"max_vram_usage": 0.5, "memory_fraction": 0.3, "pin_memory": False}
        assert not streams.closed
    assert streams.closed
    with Segmenter():
        assert gpu_streams[1].of_memory() == {
            "max_vram_usage": 0.9,
            "memory_fraction": None,
            "pin_memory": True,
        }


def test_cuda_streams_that_prepare_pictures(gpu_streams, scripted):
    with Segmenter(settings={"pipeline.stages.preprocess.cuda_streams": 3}), Segmenter():
        assert [streams.options["preparing_streams"] for streams in gpu_streams] == [3, 4]


def test_limits_of_memory_end_with_a_network_that_cannot_be_opened(gpu_streams, monkeypatch):
    def fail(*_, **__):
        raise UsageError("no such network")

    monkeypatch.setattr(film_run, "open_network", fail)
    with pytest.raises(UsageError, match="no such network"):
        Segmenter()
    assert gpu_streams[0].closed


def test_the_acting_settings_are_these():
    """Check the count: a new setting needs a test here, in test_segmenter_settings or of its own."""
    # inference.missed_people: matting/levers/test_missed_on_the_way.py
    # people.keep_held: people/test_held.py; people.edges_add_up: people/test_kept.py
    assert len(load_settings().rows()) == 128


def test_a_batch_size_is_named_where_latency_mode_overrules_it(clip, tmp_path, scripted):
    flags = {"model.batch_size": 6, "performance.mode": "latency"}
    with Segmenter(settings=flags) as segmenter:
        notes = segmenter.write(clip, [("key", tmp_path / "o.mp4")]).notes
    assert notes == ("model.batch_size has no effect in latency mode, which takes one frame at a time",)
