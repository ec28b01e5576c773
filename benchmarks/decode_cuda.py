"""Decoding on the GPU: our reader against a plain PyAV loop, one session and several, and a leak check.

The clips are 60 frames of a video, enlarged, with moving noise, in HEVC with closed groups of 30 pictures;
their packets are repeated. Every run checks the count and the times of its frames. ``fps`` counts from the
first frame to the last; ``start_s`` is what comes before (opening, the decoder's creation). The plain loop
with several sessions runs that many independent decoders, each on the whole video: the hardware's maximum.
Predictions for an H200, one session: 1345, 396 and 104 frames/s at 1080p, 4K and 8K; 8K with four sessions
264.

Usage: python benchmarks/decode_cuda.py FILM OUT.json [1080p 4K 8K leak]
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import av
import cupy
import numpy as np
from av.codec.hwaccel import HWAccel

from row_stamp import commit, write_rows
from vitascope.media.reading.reader import open_video

SIZES = {"1080p": (1920, 1080, 100), "4K": (3840, 2160, 20), "8K": (7680, 4320, 8)}
"""Width, height, and repeats of the 60 frames."""
PICTURES, GOP = 60, 30
RATE = Fraction(30)
SESSIONS = (1, 4)
REPEATS = 2
LEAK_FRAMES = 20_000
MIB = 1 << 20


def pictures_of(film: Path, width: int, height: int) -> Iterator[av.VideoFrame]:
    """Yield the video's first frames, enlarged, with moving noise."""
    noise = np.random.default_rng(0).integers(0, 12, (height + 64, width + 64), dtype=np.uint8)
    with av.open(str(film)) as container:
        for n, picture in enumerate(container.decode(video=0)):
            if n == PICTURES:
                return
            planes = picture.reformat(width, height, "yuv420p").to_ndarray()
            luma = planes[:height]
            np.minimum(luma, 235 - 12, out=luma)
            luma += noise[n : n + height, 2 * n % 64 : 2 * n % 64 + width]
            # A new picture, because the encoder must not get the old one's type and side data.
            picture = av.VideoFrame.from_ndarray(planes, format="yuv420p")
            picture.pts, picture.time_base = n, 1 / RATE
            yield picture


def write_film(film: Path, target: Path, width: int, height: int, repeats: int) -> None:
    """Encode once; write the packets again and again, each time later."""
    with av.open(str(target), "w") as container:
        parameters = f"keyint={GOP}:min-keyint={GOP}:scenecut=0:open-gop=0:log-level=none"
        stream = container.add_stream(
            "libx265", rate=RATE, options={"preset": "ultrafast", "x265-params": parameters}
        )
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.time_base = stream.codec_context.time_base = 1 / RATE
        packets = [p for picture in pictures_of(film, width, height) for p in stream.encode(picture)]
        packets += stream.encode(None)
        kept = [(bytes(p), p.pts, p.dts, p.is_keyframe) for p in packets]
        for turn in range(repeats):
            for data, pts, dts, is_key in kept:
                packet = av.Packet(data)
                packet.stream, packet.time_base, packet.duration = stream, 1 / RATE, 1
                packet.pts, packet.dts = pts + turn * PICTURES, dts + turn * PICTURES
                packet.is_keyframe = is_key
                container.mux(packet)


@dataclass(frozen=True)
class Run:
    """One reading of a video: the number of frames, and when (``time.perf_counter``)."""

    frames: int
    first: float
    last: float


def plain_loop(path: Path) -> Run:
    """Read with PyAV alone, as its documentation shows."""
    accel = HWAccel("cuda", options={"primary_ctx": "0", "current_ctx": "1"}, is_hw_owned=True)
    first, count = 0.0, 0
    with cupy.cuda.Device(0):
        cupy.cuda.runtime.free(0)
        with av.open(str(path), hwaccel=accel) as container:
            stream = container.streams.video[0]
            stream.thread_count = 1
            for _ in container.decode(stream):
                first = first or time.perf_counter()
                count += 1
            cupy.cuda.Stream.null.synchronize()
            return Run(count, first, time.perf_counter())


def our_loop(path: Path, sessions: int) -> Run:
    """Read with our reader; a stream waits for every frame."""
    stream = cupy.cuda.Stream(non_blocking=True)
    times, first = [], 0.0
    with open_video(path, cuda_device=0, decoder_sessions=sessions) as reader:
        for frame in reader:
            first = first or time.perf_counter()
            stream.wait_event(frame.ready)
            times.append(frame.pts)
        stream.synchronize()
        last = time.perf_counter()
        if "nvdec" not in reader.decoder or reader.corrupt_count:
            raise SystemExit(f"{path}: {reader.decoder}, {reader.corrupt_count} damaged")
    if len(set(np.diff(times))) != 1:
        raise SystemExit(f"{path}: the frames are not evenly spaced")
    return Run(len(times), first, last)


def plain_sessions(path: Path, sessions: int) -> Run:
    """Run that many independent decoders, each on the whole video."""
    with ThreadPoolExecutor(sessions) as pool:
        runs = list(pool.map(lambda _: plain_loop(path), range(sessions)))
    return Run(sum(run.frames for run in runs), min(run.first for run in runs), max(run.last for run in runs))


def measured(run: Callable[[], Run], expected: int) -> dict[str, Any]:
    """Compute rates and start-up times, without the first run, which fills caches."""
    rates, starts = [], []
    for _ in range(REPEATS + 1):
        began = time.perf_counter()
        result = run()
        if result.frames != expected:
            raise SystemExit(f"{result.frames} frames, expected {expected}")
        rates.append((result.frames - 1) / (result.last - result.first))
        starts.append(result.first - began)
    return {"fps": [round(rate, 1) for rate in rates[1:]], "start_s": [round(s, 3) for s in starts[1:]]}


def check_leaks(path: Path, frame_count: int) -> dict[str, Any]:
    """Read the video repeatedly; memory in use after each turn must not grow."""
    turns = -(-LEAK_FRAMES // frame_count)
    used, count = [], 0
    for _ in range(turns):
        count += our_loop(path, 1).frames
        cupy.cuda.Device(0).synchronize()
        free, total = cupy.cuda.runtime.memGetInfo()
        used.append((total - free) // MIB)
    if count != turns * frame_count or max(used[1:]) - min(used[1:]) > 16:
        raise SystemExit(f"{count} frames of {turns * frame_count}; MiB in use after each turn: {used}")
    return {"frames": count, "vram_mib_after_each_film": used}


def main(film: Path, target: Path, wanted: list[str]) -> None:
    """Make the clips, check, time, print, and write the rows."""
    device = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    machine = {"gpu": device, "av": av.__version__, "commit": commit(), "date": time.strftime("%Y-%m-%d")}
    rows: list[dict[str, Any]] = []

    def row(claim: str, **values: Any) -> None:
        rows.append({"claim": claim, **values, **machine})
        print(json.dumps(rows[-1]), flush=True)
        write_rows(target, rows)

    with tempfile.TemporaryDirectory() as folder:
        for name, (width, height, repeats) in SIZES.items():
            if name not in wanted:
                continue
            path = Path(folder) / f"{name}.mp4"
            write_film(film, path, width, height, repeats)
            count = PICTURES * repeats
            for sessions in SESSIONS:
                plain = measured(partial(plain_sessions, path, sessions), count * sessions)
                ours = measured(partial(our_loop, path, sessions), count)
                ratio = round(min(ours["fps"]) / max(plain["fps"]), 3)
                row(
                    f"decode {name}, {sessions} session(s)",
                    vitascope=ours,
                    plain_pyav=plain,
                    ratio=ratio,
                    frames=count,
                )
        if "leak" in wanted:
            width, height, repeats = SIZES["1080p"]
            path = Path(folder) / "leak.mp4"
            write_film(film, path, width, height, repeats // 2)
            row("leak check 1080p", **check_leaks(path, PICTURES * (repeats // 2)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:] or [*SIZES, "leak"])
