"""Whole command, 1080p H.264 in, key colour H.264 out, against the plain loops people write; on the CPU.

Claims measured here (ratios only; the two sides run in turn on the same clip in the same run):

- ``rvm``:  vitascope against PyAV -> official RVM ONNX (ratio 0.25) -> NumPy composite -> PyAV.
- ``fast``: vitascope against PyAV -> the same selfie network as MediaPipe's example runs it -> NumPy -> PyAV.
- overlap: wall time of the pipeline against max(slowest stage alone, CPU time / cores), threads not spinning.
- memory:  peak resident size of a clip and of one ten times as long.
- startup: from the start of the process to the first finished frame, with a cached model.

Usage: python benchmarks/segment_cpu.py CLIP.mp4 [--rounds 3] [--only rvm|fast|memory|startup]

The clip is scaled to 1920x1080 first. One row a claim goes to ``benchmarks/results/segment_cpu.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from fractions import Fraction
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import av
import cv2
import numpy as np
import onnxruntime as ort

from row_stamp import commit, write_rows
from vitascope.config import vitascope_home
from vitascope.device import available_cores
from vitascope.frames import StereoLayout
from vitascope.gpu.kernels.edges import EdgeOptions
from vitascope.media.reading.reader import open_video
from vitascope.media.writing.encoding import choose_encoding
from vitascope.media.writing.writer import VideoWriter
from vitascope.models.store.store import ModelStore
from vitascope.segmentation.matting.stream import MattingOptions, StreamMatting
from vitascope.segmentation.render.renderer import Renderer
from vitascope.segmentation.segmenter import Segmenter

RESULTS = Path(__file__).parent / "results" / "segment_cpu.json"
KEY = np.array([120, 255, 155], np.float32)
RATIO = 0.25
BT709 = 1  # H.273, and swscale
# Different edges and one encoder pass apart; a peer that did something else differs by tens.
LARGEST_MEAN_DIFFERENCE = 8.0
ENCODER = {"preset": "veryfast", "crf": "23"}
VITASCOPE_ENCODER = ["--codec", "h264", "--preset", "veryfast", "--crf", "23"]


def upscale(source: Path, target: Path, *, seconds: float) -> int:
    """Write the first seconds of a clip at 1920x1080 and return the number of frames."""
    count = 0
    with av.open(str(source)) as reader, av.open(str(target), "w") as writer:
        rate = reader.streams.video[0].average_rate
        stream = writer.add_stream("libx264", rate=rate, options={"crf": "20", "preset": "veryfast"})
        stream.width, stream.height, stream.pix_fmt = 1920, 1080, "yuv420p"
        while count < seconds * rate:
            reader.seek(0)
            for frame in reader.decode(video=0):
                if count >= seconds * rate:
                    break
                scaled = frame.reformat(width=1920, height=1080, format="yuv420p")
                scaled.pts, scaled.time_base = count, 1 / Fraction(rate)
                writer.mux(stream.encode(scaled))
                count += 1
        writer.mux(stream.encode(None))
    return count


def plain_loop(source: Path, target: Path, matte: Any) -> None:
    """Decode, matte, composite in NumPy, encode: what the usual script does, with the same encoder settings."""
    with av.open(str(source)) as reader, av.open(str(target), "w") as writer:
        reader.streams.video[0].thread_type = "AUTO"
        stream = writer.add_stream("libx264", rate=reader.streams.video[0].average_rate, options=ENCODER)
        stream.width, stream.height, stream.pix_fmt = 1920, 1080, "yuv420p"
        stream.codec_context.colorspace = BT709
        for frame in reader.decode(video=0):
            rgb = frame.to_ndarray(format="rgb24")
            foreground, alpha = matte(rgb)
            composite = foreground * alpha + KEY * (1 - alpha)
            out = av.VideoFrame.from_ndarray(composite.astype(np.uint8), format="rgb24")
            writer.mux(stream.encode(out.reformat(format="yuv420p", dst_colorspace=BT709)))
        writer.mux(stream.encode(None))


def official_rvm() -> Any:
    """The official graph, full resolution, recurrent states fed back."""
    session = ort.InferenceSession(
        str(ModelStore(vitascope_home()).pull("rvm")), providers=["CPUExecutionProvider"]
    )
    states = [np.zeros((1, 1, 1, 1), np.float32)] * 4
    ratio = np.array([RATIO], np.float32)

    def matte(rgb: Any) -> tuple[Any, Any]:
        nonlocal states
        source = (rgb.astype(np.float32) / 255).transpose(2, 0, 1)[None]
        inputs = {f"r{level}i": state for level, state in enumerate(states, start=1)}
        foreground, alpha, *states = session.run(None, {"src": source, "downsample_ratio": ratio, **inputs})
        return foreground[0].transpose(1, 2, 0) * 255, alpha[0].transpose(1, 2, 0)

    return matte


def mediapipe_style() -> Any:
    """The selfie network as MediaPipe's Python example uses it: resize, run, resize the mask."""
    session = ort.InferenceSession(str(ModelStore(vitascope_home()).path("selfie-landscape")))
    tensor = session.get_inputs()[0]
    height, width = (144, 256)

    def matte(rgb: Any) -> tuple[Any, Any]:
        small = cv2.resize(rgb, (width, height)).astype(np.float32) / 255
        picture = small[None] if tensor.shape[-1] == 3 else small.transpose(2, 0, 1)[None]
        mask = session.run(None, {tensor.name: picture})[0].reshape(height, width)
        alpha = cv2.resize(mask, (rgb.shape[1], rgb.shape[0]))
        return rgb.astype(np.float32), alpha[..., None]

    return matte


PEERS = {"rvm": official_rvm, "fast": mediapipe_style}
ARGUMENTS = {
    "rvm": ["--model", "rvm", "--set", f"model.downsample_ratio={RATIO}"],
    "fast": ["--profile", "fast"],
}


def run_vitascope(source: Path, target: Path, *extra: str) -> dict[str, Any]:
    """The whole command in a process of its own; its report, with the wall and CPU seconds seen from outside."""
    command = [sys.executable, "-m", "vitascope", "segment", str(source), "-o", str(target)]
    command += ["-y", "--json", *extra]
    before, began = os.times(), time.perf_counter()
    answer = subprocess.run(command, check=True, capture_output=True, text=True)
    wall, after = time.perf_counter() - began, os.times()
    (report,) = json.loads(answer.stdout)
    report["process_seconds"] = wall
    report["process_cpu_seconds"] = (
        after.children_user + after.children_system - before.children_user - before.children_system
    )
    return report


def run_peer(name: str, source: Path, target: Path) -> float:
    """The plain loop in a process of its own; its wall seconds."""
    began = time.perf_counter()
    subprocess.run([sys.executable, __file__, "--peer", name, str(source), str(target)], check=True)
    return time.perf_counter() - began


def check_same(ours: Path, theirs: Path) -> float:
    """Mean absolute difference of the two results in 8-bit RGB: the two sides must have done the same work."""
    differences = []
    with av.open(str(ours)) as a, av.open(str(theirs)) as b:
        for index, (one, other) in enumerate(zip(a.decode(video=0), b.decode(video=0), strict=True)):
            if index % 10 == 0:
                left, right = (frame.to_ndarray(format="rgb24").astype(np.int16) for frame in (one, other))
                differences.append(float(np.abs(left - right).mean()))
    return max(differences)


def stages_alone(name: str, clip: Path, folder: Path, *, count: int = 48) -> dict[str, float]:
    """Seconds a frame of each stage with the machine to itself, on the first frames of the clip."""
    flags: dict[str, Any] = {"output.codec": "h264", "output.preset": "veryfast", "output.crf": 23}
    if name == "rvm":
        flags |= {"model.name": "rvm", "model.downsample_ratio": RATIO}
    seconds: dict[str, float] = {}

    def timed(stage: str, work: Any) -> list[Any]:
        began = time.perf_counter()
        result = list(work)
        seconds[stage] = (time.perf_counter() - began) / count
        return result

    with (
        Segmenter(profile="fast" if name == "fast" else None, settings=flags) as segmenter,
        open_video(clip) as reader,
    ):
        settings = segmenter.settings
        size = (reader.info.height, reader.info.width)
        edges = EdgeOptions(threshold=settings.edges.threshold)
        matting = StreamMatting(
            segmenter.chosen.network,
            size=size,
            layout=StereoLayout.MONO,
            options=MattingOptions(edges=edges),
            waits=False,
        )
        encoding = choose_encoding(
            folder / "alone.mp4", source_format=reader.info.format, codec="h264", crf=23, preset="veryfast"
        )
        frames = timed("decode", islice(reader, count))
        prepared = timed("preprocess", (matting.find_cuts(matting.prepare([frame])) for frame in frames))
        batch = settings.frames_per_call
        batches = [prepared[start : start + batch] for start in range(0, count, batch)]
        matting.infer(prepared[:1])  # warm-up
        estimated = [e for group in timed("infer", map(matting.infer, batches)) for e in group]
        with Renderer([("key", encoding)], matting, settings=settings.output) as renderer:
            rendered = timed("postprocess", map(renderer.render, estimated))
        with VideoWriter(folder / "alone.mp4", info=reader.info, encoding=encoding) as writer:
            timed("encode", (writer.write(item.pictures[0]) for item in rendered))
    return seconds


def compare(name: str, clip: Path, frames: int, folder: Path, rounds: int) -> dict[str, Any]:
    """Alternate the two sides and report median speeds, their ratio round by round, and how well stages overlap."""
    ours_seconds, peer_seconds, reports = [], [], []
    for _ in range(rounds):
        reports.append(run_vitascope(clip, folder / "ours.mp4", *VITASCOPE_ENCODER, *ARGUMENTS[name]))
        ours_seconds.append(reports[-1]["process_seconds"])
        peer_seconds.append(run_peer(name, clip, folder / "peer.mp4"))
    difference = check_same(folder / "ours.mp4", folder / "peer.mp4")
    if difference > LARGEST_MEAN_DIFFERENCE:
        raise SystemExit(f"{name}: the two results differ by {difference:.1f}: they did not do the same work")
    alone = stages_alone(name, clip, folder)
    slowest = max(alone, key=lambda stage: alone[stage])
    bounds = []
    for report in reports:
        pipeline = report["pipeline"]
        cpu_seconds = pipeline["cores_busy"] * pipeline["wall_seconds"]
        bound = max(alone[slowest] * frames, cpu_seconds / available_cores())
        bounds.append(pipeline["wall_seconds"] / bound)
    return {
        "claim": name,
        "frames": frames,
        "vitascope_fps": round(frames / median(ours_seconds), 2),
        "plain_loop_fps": round(frames / median(peer_seconds), 2),
        "ratio": round(median(p / o for o, p in zip(ours_seconds, peer_seconds, strict=True)), 3),
        "ratio_min": round(min(p / o for o, p in zip(ours_seconds, peer_seconds, strict=True)), 3),
        "rounds": rounds,
        "wall_over_bound": round(median(bounds), 3),
        "slowest_stage_alone": slowest,
        "stages_alone_ms": {stage: round(seconds * 1e3, 2) for stage, seconds in alone.items()},
        "largest_mean_difference_8bit": round(difference, 2),
        "stages_busy_seconds": {
            stage["name"]: round(stage["busy_seconds"], 2) for stage in reports[-1]["pipeline"]["stages"]
        },
    }


def memory(source: Path, folder: Path, rounds: int) -> dict[str, Any]:
    """Peak resident size for 10 s and 100 s of the same clip, with both networks: the median of some runs."""
    row: dict[str, Any] = {"claim": "memory", "rounds": rounds}
    clips = {seconds: folder / f"{seconds}.mp4" for seconds in (10, 100)}
    for seconds, clip in clips.items():
        upscale(source, clip, seconds=seconds)
    for name, arguments in ARGUMENTS.items():
        peaks = {
            seconds: median(
                run_vitascope(clip, folder / "out.mp4", *arguments)["peak_memory_bytes"] / 1e6
                for _ in range(rounds)
            )
            for seconds, clip in clips.items()
        }
        row |= {f"{name}_peak_mb_{seconds}_s": round(peak) for seconds, peak in peaks.items()}
        row[f"{name}_growth_mb"] = round(peaks[100]) - round(peaks[10])
    return row


def startup(clip: Path, folder: Path, rounds: int) -> dict[str, Any]:
    """Seconds from starting the process to the first frame of the clip, and to the end of a one-frame job.

    ``rvm`` at a quarter of the size, as in the other claims, and ``default`` as it comes: at the size of ``balanced``.
    """
    row: dict[str, Any] = {"claim": "startup", "rounds": rounds}
    for name, arguments in (ARGUMENTS | {"default": ["--model", "rvm"]}).items():
        settings = FIRST_FRAME_SETTINGS[name]
        row[f"{name}_first_frame_seconds"] = round(
            median(first_frame_seconds(clip, settings) for _ in range(rounds)), 2
        )
        row[f"{name}_one_frame_job_seconds"] = round(
            median(
                run_vitascope(clip, folder / "one.mp4", *arguments, "--end", "0.02")["process_seconds"]
                for _ in range(rounds)
            ),
            2,
        )
    return row


FIRST_FRAME_SETTINGS: dict[str, dict[str, Any]] = {
    "rvm": {"settings": {"model.name": "rvm", "model.downsample_ratio": RATIO}},
    "fast": {"profile": "fast"},
    "default": {"settings": {"model.name": "rvm"}},
}
FIRST_FRAME = """
import sys, vitascope
with vitascope.Segmenter(**{settings!r}) as segmenter:
    steps = segmenter.stream({clip!r})
    next(steps)
    print("here", flush=True)
"""


def first_frame_seconds(clip: Path, settings: dict[str, Any]) -> float:
    """Seconds from starting a process until it holds the first frame of a clip and its alpha."""
    program = FIRST_FRAME.format(settings=settings, clip=str(clip))
    began = time.perf_counter()
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"here\n"
        return time.perf_counter() - began


def main() -> None:
    """Run the claims asked for and merge their rows into the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clip", type=Path, nargs="?")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--only", choices=["rvm", "fast", "memory", "startup"])
    parser.add_argument("--peer", nargs=3, metavar=("NAME", "SOURCE", "TARGET"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    # An installed package has its bytecode; where none is written, every process would compile the sources anew.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if options.peer:
        name, source, target = options.peer
        plain_loop(Path(source), Path(target), PEERS[name]())
        return
    if options.clip is None:
        parser.error("name a clip")
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        clip = folder / "clip.mp4"
        frames = upscale(options.clip, clip, seconds=options.seconds)
        for claim in ("rvm", "fast"):
            if options.only in (None, claim):
                rows.append(compare(claim, clip, frames, folder, options.rounds))
        if options.only in (None, "startup"):
            rows.append(startup(clip, folder, options.rounds))
        if options.only in (None, "memory"):
            rows.append(memory(options.clip, folder, options.rounds))
    machine = {
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "onnxruntime": ort.__version__,
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
        "clip": options.clip.name,
    }
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    claims = {row["claim"] for row in rows}
    merged = [row for row in kept if row["claim"] not in claims] + [{**row, **machine} for row in rows]
    RESULTS.parent.mkdir(exist_ok=True)
    write_rows(RESULTS, merged)
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
