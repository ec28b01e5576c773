"""Measure ``vitascope segment`` on a GPU, video to video, against the decoder alone and the authors' network.

Videos are random moving texture with real pictures' statistics, encoded once (HEVC, closed GOPs) and repeated
by packets, so that long videos cost no encoding. Every run checks the frame count it wrote. Peers run in the
same process run: ``--peer FOLDER`` is a checkout of RobustVideoMatting, whose network runs scripted, frozen
and in FP16 as its authors advise, with random weights (its time does not depend on them).

Predictions on one H200: the video's decoder is the slowest stage (1345 / 396 / 104 frames/s at 1080p / 4K /
8K), the network makes about 2000 pictures a second at 512x288, and both kernels together take 30 us at 1080p
and 80 us at 8K.

Usage: python benchmarks/segment_cuda.py [--only NAME]... [--size NAME]... [--peer FOLDER] [--out ROWS.json]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import cupy
import numpy as np
import torch

from host_cores import core_shares
from row_stamp import gpu_stamp, write_rows
from vitascope.config import load_settings
from vitascope.frames import Frame
from vitascope.media.reading.reader import open_video
from vitascope.media.writing.encoding import CodecName, choose_encoding
from vitascope.media.writing.writer import VideoWriter
from vitascope.segmentation.segmenter import Segmenter

LIVE_BITS_PER_SECOND = 60_000_000
"""Bit rate of the 4K stream whose latency is measured; its keyframes may be four frames' worth of it (VBV)."""
SIZES = {"1080p": (1920, 1080), "4K": (3840, 2160), "8K": (7680, 4320)}
WANTED = list(SIZES)
FRAMES = {"1080p": 12_000, "4K": 4800, "8K": 1200}
GOP = 30
RATE = 60


def make_film(
    folder: Path,
    name: str,
    size: tuple[int, int],
    frame_count: int,
    *,
    reordered: bool = True,
    raw: bool = False,
) -> Path:
    """Make an HEVC video of ``frame_count`` frames: two GOPs encoded, their packets repeated.

    Without reordering it is a live stream: no B-frames, and a rate control that keeps keyframes short. Raw, no
    decoder on the GPU takes it.
    """
    path = folder / f"{name}{'' if reordered else '_live'}{'_raw.mkv' if raw else '.mp4'}"
    if path.exists():
        return path
    width, height = size
    random = np.random.default_rng(0)
    texture = random.integers(0, 48, (height + 128, width + 128), dtype=np.uint8)
    ramp = np.linspace(20, 170, width).astype(np.uint8)[None]
    kilobits = LIVE_BITS_PER_SECOND // 1000
    shared = f"keyint={GOP}:min-keyint={GOP}:scenecut=0:open-gop=0:log-level=none"
    live = f":bframes=0:bitrate={kilobits}:vbv-maxrate={kilobits}:vbv-bufsize={kilobits * 4 // RATE}"
    with av.open(str(path), "w") as film:
        options = {"preset": "ultrafast", "x265-params": shared if reordered else shared + live}
        stream = (
            film.add_stream("rawvideo", rate=RATE)
            if raw
            else film.add_stream("libx265", rate=RATE, options=options)
        )
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.time_base = stream.codec_context.time_base = Fraction(1, RATE)
        packets = []
        for index in range(2 * GOP):
            picture = av.VideoFrame(width, height, "yuv420p")
            shift = index * 2 % 128
            luma = texture[shift // 2 : shift // 2 + height, shift : shift + width] + ramp
            for plane, values in zip(
                picture.planes, (luma, luma[::2, ::2] // 4 + 96, luma[1::2, 1::2] // 4 + 96), strict=True
            ):
                rows = np.frombuffer(plane, np.uint8).reshape(plane.height, plane.line_size)
                rows[:, : plane.width] = values
            picture.pts, picture.time_base = index, Fraction(1, RATE)
            packets += stream.encode(picture)
        packets += stream.encode(None)
        for turn in range(-(-frame_count // (2 * GOP))):
            for made in packets:
                packet = av.Packet(bytes(made))
                packet.stream, packet.time_base, packet.duration = stream, Fraction(1, RATE), 1
                packet.pts, packet.dts = made.pts + turn * 2 * GOP, made.dts + turn * 2 * GOP
                packet.is_keyframe = made.is_keyframe
                film.mux(packet)
    return path


def count_frames(path: Path) -> int:
    """Packets of the video stream."""
    with av.open(str(path)) as film:
        return sum(packet.size > 0 for packet in film.demux(film.streams.video[0]))


def decoder_alone(film: Path, sessions: int) -> float:
    """Frames a second of our reader with nothing behind it."""
    with open_video(film, cuda_device=0, decoder_sessions=sessions) as reader:
        first = next(reader)
        started = time.perf_counter()
        count = 0
        for frame in reader:
            last: Frame = frame
            count += 1
        assert last.ready is not None
        last.ready.synchronize()
        elapsed = time.perf_counter() - started
    del first
    return count / elapsed


def run_segment(
    film: Path, out: Path, settings: dict[str, Any], *, warm_frames: int = 2 * GOP
) -> dict[str, Any]:
    """One job of ``Segmenter.write`` on a warm network; the row says what bound it. None leaves a setting alone."""
    flags = {"model.name": "rvm", "gpu.device": "cuda", "model.batch_size": 8, **settings}
    loaded = load_settings(flags={key: value for key, value in flags.items() if value is not None})
    kind = loaded.settings.output.kinds[0]
    with Segmenter(loaded=loaded) as segmenter:
        warm = film.with_name(f"warm_{warm_frames}_{film.name}")
        if not warm.exists():
            trim(film, warm, warm_frames)
        segmenter.write(warm, [(kind, out)])
        with core_shares() as shares:
            report = segmenter.write(film, [(kind, out)])
    written, expected = count_frames(out), count_frames(film)
    if not written == expected == report.frame_count:
        raise SystemExit(f"{film}: {expected} frames in, {written} out")
    assert report.gpu is not None
    return {
        "fps": round(report.frames_per_second, 1),
        "pipeline_fps": round(report.pipeline.items_per_second, 1),
        "frames": written,
        **shares,
        "network_size": report.network_size,
        "engine": report.engine,
        "decoder": report.decoder,
        "bottleneck": report.pipeline.bottleneck.evidence if report.pipeline.bottleneck else None,
        "stage_load": {stage.name: round(stage.load, 3) for stage in report.pipeline.stages},
        "stage_busy_fps": {
            stage.name: round(report.frame_count / stage.busy_seconds, 1)
            for stage in report.pipeline.stages
            if stage.busy_seconds
        },
        "gpu_span_ms_per_frame": {
            name: round(seconds / report.frame_count * 1e3, 4)
            for name, seconds in report.gpu.span_seconds.items()
        },
        "peak_vram_gb": round(report.gpu.peak_memory_bytes / 1e9, 2),
        "latency_ms": {
            "p50": round(report.pipeline.latency.p50_seconds * 1e3, 2),
            "p95": round(report.pipeline.latency.p95_seconds * 1e3, 2),
            "p99": round(report.pipeline.latency.p99_seconds * 1e3, 2),
        },
    }


def masks(folder: Path, peer: Path | None) -> Iterator[dict[str, Any]]:
    """File to mask video, at most 2048 wide, one decoder session, against the decoder alone."""
    del peer
    for name in WANTED:
        film = make_film(folder, name, SIZES[name], FRAMES[name])
        alone = decoder_alone(film, 1)
        settings = {
            "output.kinds": ["mask"],
            "output.mask_max_width": 2048,
            "output.preset": "ultrafast",
            "model.input_size": 512,
            "gpu.decoder_sessions": 1,
        }
        row = run_segment(film, folder / "mask.mp4", settings)
        yield {"claim": f"file to mask {name}", **row, "decoder_alone_fps": round(alone, 1),
               "share_of_decoder": round(row["fps"] / alone, 3)}  # fmt: skip


def sessions(folder: Path, peer: Path | None) -> Iterator[dict[str, Any]]:
    """Measure an 8K video to mask video with four decoder sessions, against these sessions decoding alone."""
    del peer
    film = make_film(folder, "8K long", SIZES["8K"], 3360)
    alone = decoder_alone(film, 4)
    settings = {
        "output.kinds": ["mask"],
        "output.mask_max_width": 2048,
        "output.preset": "ultrafast",
        "model.input_size": 512,
        "gpu.decoder_sessions": 4,
    }
    row = run_segment(film, folder / "mask.mp4", settings)
    yield {"claim": "file to mask 8K, 4 decoder sessions", **row, "decoder_alone_fps": round(alone, 1),
           "share_of_decoder": round(row["fps"] / alone, 3)}  # fmt: skip


def keys(folder: Path, peer: Path | None) -> Iterator[dict[str, Any]]:
    """File to key-colour H.264 on the CPU's encoder, and the authors' converter."""
    for name in WANTED:
        frames = {"1080p": 12_000, "4K": 4800, "8K": 240}[name]
        film = make_film(folder, name, SIZES[name], FRAMES[name])
        short = folder / f"short_{name}.mp4"
        if not short.exists():
            trim(film, short, frames)
        settings = {"output.kinds": ["key"], "model.input_size": 512, "output.preset": "ultrafast"}
        row = run_segment(short, folder / "key.mp4", settings)
        row["encoder_alone_fps"] = round(encoder_alone(folder / "key.mp4", folder / "alone.mp4", frames), 1)
        row["decoder_alone_fps"] = round(decoder_alone(short, 1), 1)
        slowest = min(row["encoder_alone_fps"], row["decoder_alone_fps"])
        row["share_of_slowest_stage"] = round(row["fps"] / slowest, 3)
        row["peer_fps"] = None if peer is None else round(peer_convert(peer, short, SIZES[name]), 2)
        if row["peer_fps"]:
            row["ratio_to_peer"] = round(row["fps"] / row["peer_fps"], 1)
        yield {"claim": f"file to key {name}", **row}


def copies(folder: Path, peer: Path | None) -> Iterator[dict[str, Any]]:
    """Frames that the CPU has, to key-colour H.264 on the CPU's encoder: they cross the bus both ways.

    ``host to device`` and ``device to host`` of ``gpu_span_ms_per_frame`` are the copies, by CUDA events.
    """
    del peer
    for name, frames in (("1080p", 480), ("4K", 120)):
        make_film(
            folder, f"warm_{2 * GOP}_{name}", SIZES[name], 2 * GOP, raw=True
        )  # Matroska's are not trimmed
        film = make_film(folder, name, SIZES[name], frames, raw=True)
        settings = {"output.kinds": ["key"], "model.input_size": 512, "output.preset": "ultrafast"}
        row = run_segment(film, folder / "copied.mp4", settings)
        missing = {"host to device", "device to host"} - row["gpu_span_ms_per_frame"].keys()
        if missing:
            raise SystemExit(f"{film}, decoded by {row['decoder']}: nothing was timed as {sorted(missing)}")
        yield {"claim": f"raw frames to key {name}, from and to the CPU", **row}


def headset(folder: Path, peer: Path | None) -> Iterator[dict[str, Any]]:
    """VR180 of 8192x4096 to packed alpha, against the decoder alone and the encoder alone."""
    del peer
    for codec, frames in (("h264", 1200), ("h265", 600)):
        film = make_film(folder, f"VR180 {frames}", (8192, 4096), frames)
        out = folder / f"packed_{codec}.mp4"
        settings = {
            "output.kinds": ["packed-alpha"],
            "output.preset": "ultrafast",
            "output.codec": codec,
            "video.stereo": "sbs",
            "video.projection": "equirect180",
            "gpu.decoder_sessions": 1,
        }
        row = run_segment(film, out, settings)
        row["encoder_alone_fps"] = round(encoder_alone(out, folder / "alone.mp4", frames, codec), 1)
        row["decoder_alone_fps"] = round(decoder_alone(film, 1), 1)
        slowest = min(row["encoder_alone_fps"], row["decoder_alone_fps"])
        row["share_of_slowest_stage"] = round(row["fps"] / slowest, 3)
        yield {"claim": f"VR180 8192x4096 to packed alpha, {codec}", **row}


def stereo(folder: Path, peer: Path | None) -> Iterator[dict[str, Any]]:
    """VR180 of 3840x1920 at 60 frames/s to key colour, as ``balanced`` comes: must play while it is cut."""
    del peer
    film = make_film(folder, "VR180 4K", (3840, 1920), 3600)
    settings = {
        "output.kinds": ["key"],
        "output.preset": "ultrafast",
        "video.stereo": "sbs",
        "video.projection": "equirect180",
        "model.batch_size": None,
    }
    row = run_segment(film, folder / "stereo.mp4", settings)
    yield {"claim": "VR180 3840x1920 to key", **row, "times_as_fast_as_it_plays": round(row["fps"] / RATE, 2)}


def encoder_alone(film: Path, out: Path, frame_count: int, codec: CodecName | None = None) -> float:
    """Frames a second of our writer as the job uses it, fed with finished pictures."""
    with open_video(film) as reader:
        pictures = [next(reader) for _ in range(GOP)]
        info = reader.info
    encoding = choose_encoding(
        out,
        codec=codec or "auto",
        source_format=info.format,
        preset="ultrafast",
        parallel_encoders="auto",
    ).for_size(info.width, info.height)
    started = time.perf_counter()
    with VideoWriter(out, info=info, encoding=encoding, copy_from=film) as writer:
        for index in range(frame_count):
            picture = pictures[index % GOP]
            writer.write(replace(picture, index=index, pts=pictures[1].pts * index if index else 0))
    return frame_count / (time.perf_counter() - started)


def trim(film: Path, target: Path, frames: int) -> None:
    """Copy the first frames of a video."""
    with av.open(str(film)) as source, av.open(str(target), "w") as sink:
        stream = source.streams.video[0]
        copy = sink.add_stream_from_template(stream)
        for number, packet in enumerate(source.demux(stream)):
            if number >= frames:
                break
            packet.stream = copy
            sink.mux(packet)


def peer_network(folder: Path) -> Any:
    """The authors' network, scripted and frozen, FP16, random weights."""
    sys.path.insert(0, str(folder))
    from model import MattingNetwork

    torch.manual_seed(0)
    network = MattingNetwork("mobilenetv3").eval().cuda().half()
    return torch.jit.freeze(torch.jit.script(network))


def peer_convert(folder: Path, film: Path, size: tuple[int, int], limit: int = 12) -> float:
    """Frames a second of the authors' green-screen loop, its reader replaced by a plain PyAV loop."""
    network = peer_network(folder)
    ratio = 512 / max(size)
    green = torch.tensor([120, 255, 155], device="cuda").div(255).view(1, 3, 1, 1).half()
    state = [None] * 4
    started, count = 0.0, 0
    with av.open(str(film)) as source, av.open(str(film.with_name("peer.mp4")), "w") as sink, torch.no_grad():
        out = sink.add_stream("libx264", rate=RATE)
        out.width, out.height, out.pix_fmt = *size, "yuv420p"
        for frame in source.decode(video=0):
            rgb = (
                torch.from_numpy(frame.to_ndarray(format="rgb24"))
                .cuda()
                .permute(2, 0, 1)[None]
                .half()
                .div(255)
            )
            foreground, alpha, *state = network(rgb, *state, ratio)
            picture = (
                (foreground * alpha + green * (1 - alpha)).mul(255).byte()[0].permute(1, 2, 0).cpu().numpy()
            )
            sink.mux(out.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
            count += 1
            if count == 5:
                started = time.perf_counter()
            if count == limit + 5:
                break
        elapsed = time.perf_counter() - started
        sink.mux(out.encode(None))
    return limit / elapsed


def latency(folder: Path, peer: Path | None) -> Iterator[dict[str, Any]]:
    """Batch 1: network and both kernels on a 1080p frame; and packet in to composited frame at 4K."""
    from vitascope.gpu.kernels.composite import render
    from vitascope.gpu.kernels.composite_launch import OnColor
    from vitascope.gpu.kernels.preprocess import preprocess
    from vitascope.gpu.kernels.region import Region
    from vitascope.gpu.streams import JobStreams
    from vitascope.segmentation.matting.shots import ShotInference

    loaded = load_settings(flags={"model.name": "rvm", "gpu.device": "cuda", "model.input_size": 512})
    with Segmenter(loaded=loaded) as segmenter:
        streams = JobStreams(segmenter.device)
        streams.bind(streams.computing)
        network = segmenter.chosen.network
        film = make_film(folder, "1080p", SIZES["1080p"], FRAMES["1080p"])
        with open_video(film, cuda_device=0) as reader:
            frames = [next(reader) for _ in range(48)]
        regions = [Region(0, 0, 1920, 1080)]
        wanted = network.input_for((1080, 1920))
        shots = ShotInference(network, warm_up_frames=3)
        images = cupy.empty((1, 1, 3, *wanted.size), wanted.dtype)

        def step(frame: Frame) -> Frame:
            preprocess(frame, regions=regions, size=wanted.size, dtype=wanted.dtype, out=images[0])
            (answer,) = shots.run(images, [False])
            return render(
                frame, regions=regions, gain=answer.gain, offset=answer.offset, paint=OnColor((120, 255, 155))
            )

        ours = timed(step, frames)
        row: dict[str, Any] = {
            "claim": "network and both kernels, 1080p, batch 1",
            **ours,
            "network_size": wanted.size,
        }
        if peer is not None:
            scripted = peer_network(peer)
            state: list[Any] = [None] * 4
            rgb = [torch.rand(1, 3, 1080, 1920, device="cuda").half() for _ in range(8)]

            def upstream(index: int) -> None:
                nonlocal state
                with torch.no_grad():
                    _, _, *state = scripted(rgb[index % 8], *state, 512 / 1920)

            with torch.cuda.stream(torch.cuda.ExternalStream(streams.computing.ptr)):
                theirs = timed(upstream, list(range(48)))
            row |= {
                "peer_p50_ms": theirs["p50_ms"],
                "ratio_to_peer": round(theirs["p50_ms"] / ours["p50_ms"], 2),
            }
        yield row
        yield {"claim": "packet in to composited frame, 4K, batch 1", **live_latency(folder, segmenter)}


def timed(run: Callable[[Any], object], items: list[Any], rounds: int = 6) -> dict[str, float]:
    """Host latency of single steps, from call to result on the GPU, in milliseconds."""
    for item in items:
        run(item)
    cupy.cuda.get_current_stream().synchronize()
    times = []
    for _ in range(rounds):
        for item in items:
            started = time.perf_counter()
            run(item)
            cupy.cuda.get_current_stream().synchronize()
            times.append((time.perf_counter() - started) * 1e3)
    return {f"p{p}_ms": round(float(np.percentile(times, p)), 3) for p in (50, 95, 99)} | {
        "count": len(times)
    }


def live_latency(folder: Path, segmenter: Segmenter) -> dict[str, Any]:
    """From the moment a packet is handed to the decoder until its composited frame is on the GPU."""
    from vitascope.gpu.kernels.composite import render
    from vitascope.gpu.kernels.composite_launch import OnColor
    from vitascope.gpu.kernels.preprocess import preprocess
    from vitascope.gpu.kernels.region import Region
    from vitascope.segmentation.matting.shots import ShotInference

    film = make_film(folder, "4K", SIZES["4K"], 600, reordered=False)
    width, height = SIZES["4K"]
    regions = [Region(0, 0, width, height)]
    network = segmenter.chosen.network
    wanted = network.input_for((height, width))
    shots = ShotInference(network, warm_up_frames=3)
    images = cupy.empty((1, 1, 3, *wanted.size), wanted.dtype)
    times = []
    with open_video(film, cuda_device=0) as reader:
        started = time.perf_counter()
        # The reader feeds packets until a picture comes out: with no reordering, one packet for each picture.
        for frame in reader:
            preprocess(frame, regions=regions, size=wanted.size, dtype=wanted.dtype, out=images[0])
            (answer,) = shots.run(images, [False])
            render(
                frame, regions=regions, gain=answer.gain, offset=answer.offset, paint=OnColor((120, 255, 155))
            )
            cupy.cuda.get_current_stream().synchronize()
            times.append((time.perf_counter() - started) * 1e3)
            started = time.perf_counter()
    times = times[60:]
    return {f"p{p}_ms": round(float(np.percentile(times, p)), 3) for p in (50, 95, 99)} | {
        "count": len(times)
    }


def endurance(folder: Path, peer: Path | None) -> Iterator[dict[str, Any]]:
    """40,000 frames: memory of the GPU flat after warm-up, no frame lost."""
    del peer
    film = make_film(folder, "long", (1280, 720), 40_020)
    loaded = load_settings(flags={"model.name": "rvm", "gpu.device": "cuda", "model.input_size": 512})
    used = []
    with Segmenter(loaded=loaded) as segmenter:
        count = 0
        for count, _ in enumerate(segmenter.stream(film), start=1):
            if count % 1000 == 0:
                free, total = cupy.cuda.runtime.memGetInfo()
                used.append(round((total - free) / 2**20))
    if count != count_frames(film):
        raise SystemExit(f"{count} frames came of {count_frames(film)}")
    yield {
        "claim": "40,000 frames",
        "frames": count,
        "used_mib_every_1000": used,
        "growth_mib": used[-1] - used[3],
    }


RUNS: dict[str, Callable[[Path, Path | None], Iterator[dict[str, Any]]]] = {
    "latency": latency,
    "masks": masks,
    "sessions": sessions,
    "keys": keys,
    "copies": copies,
    "headset": headset,
    "stereo": stereo,
    "endurance": endurance,
}


def main() -> None:
    """Run the requested claims; print and write the rows as they come."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=list(RUNS))
    parser.add_argument(
        "--size", action="append", choices=list(SIZES), help="of masks and keys; all when omitted"
    )
    parser.add_argument("--peer", type=Path)
    parser.add_argument("--out", type=Path)
    wanted = parser.parse_args()
    WANTED[:] = wanted.size or SIZES
    machine = gpu_stamp()
    rows = []
    folder = Path(tempfile.gettempdir()) / "vitascope_films"
    folder.mkdir(exist_ok=True)
    for name in wanted.only or RUNS:
        for row in RUNS[name](folder, wanted.peer):
            rows.append({**row, **machine})
            print(json.dumps(rows[-1]), flush=True)
            if wanted.out is not None:
                write_rows(wanted.out, rows)


if __name__ == "__main__":
    main()
