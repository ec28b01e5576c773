"""Verifies a packed-alpha video as a player sees it: what the discs contain, and their error against the matte.

Compression, resizing by a website or an edit can ruin the discs without any visible sign in the frames.
"""

from __future__ import annotations

import base64
import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from html import escape
from itertools import zip_longest
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.config import VideoSettings
from vitascope.errors import InputError, OutputError, UsageError
from vitascope.file_lock import write_file
from vitascope.frames import Frame, Projection, VideoInfo
from vitascope.gpu.kernels.color import rgb_from_yuv, yuv_from_rgb
from vitascope.gpu.kernels.preprocess import preprocess
from vitascope.gpu.kernels.region import Region
from vitascope.gpu.profiling.tables import html_page
from vitascope.media.reading.reader import VideoReader, open_video
from vitascope.observe.report_values import plain_value
from vitascope.segmentation.layout import vr_of
from vitascope.vr.detection import VrDescription
from vitascope.vr.file_names import read_name, without_vr_words
from vitascope.vr.packing import (
    AlphaPacker,
    disc_area,
    disc_color,
    pack_discs,
    refuse_other_than_packed,
    refuse_unpackable,
    unpack_discs,
)
from vitascope.vr.players import PLAYERS, as_played
from vitascope.vr.stereo import eye_regions

_GONE, _FULL = 0.02, 0.98
"""Alpha below which a sample counts as background, and above which it counts as a person."""
_MOST_LAG_FRAMES = 3
_LAGS = range(-_MOST_LAG_FRAMES, _MOST_LAG_FRAMES + 1)
_SYNC_SIDE = 32
"""Side of the small pictures that are compared to find a shift in time, in samples."""


@dataclass(frozen=True, slots=True)
class MatteComparison:
    """Packed alpha compared with the matte that it was made from."""

    mean_error: float
    """Mean absolute difference inside the discs, in codes of 255."""
    worst_frame_error: float
    """The same for the worst frame."""
    inherent_error: float
    """The part of ``mean_error`` that discs of this size and format have before compression, in codes of 255. Red
    alpha is only as fine as chroma, so outlines are off in 4:2:0, and outlines fill more of smaller discs. Measured
    only if frames are off by more than a file may be."""
    leakage: float
    """Mean packed alpha where the matte shows nobody, in codes of 255."""
    lag_frames: int
    """Number of frames by which packed alpha is late (below 0: early), by the best fit; 0 if in sync."""
    missing_frames: int
    """Number of frames that only one of the two videos has."""

    @property
    def error_in_words(self) -> str:
        """The mean error, and the part of it that no encoder could avoid, in words."""
        told = f"{self.mean_error:.2f} of 255 on average"
        if self.inherent_error >= _INHERENT_TO_TELL:
            told += f" ({self.inherent_error:.2f} before compression, because the discs are small)"
        return told


@dataclass(frozen=True, slots=True)
class PackedReport:
    """Measurements of the discs of a packed-alpha video."""

    video: Path
    frame_count: int
    found: VrDescription
    person_share: float
    """Mean share of the discs filled by people."""
    empty_frames: int
    """Number of frames with nobody in either disc."""
    eyes_apart: float
    """Mean difference in area between the two eyes' people, as a share of the larger area."""
    floor: float
    """Median alpha outside people, in codes of 255: above 0, the background shines through everywhere."""
    ceiling: float
    """Median alpha inside people, in codes of 255."""
    players: dict[str, str]
    """How each player treats the file."""
    matte: MatteComparison | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        plain: dict[str, Any] = plain_value(asdict(self))
        return plain

    @property
    def lines(self) -> list[str]:
        """The measurements in words."""
        told = [
            f"{self.frame_count} frames, {self.empty_frames} without people",
            f"people fill {self.person_share:.1%} of the discs; the eyes differ by {self.eyes_apart:.0%}",
            f"alpha is {self.floor:.0f} of 255 outside people, {self.ceiling:.0f} inside people",
        ]
        if self.matte is not None:
            told.append(f"error against the matte: {self.matte.error_in_words}")
        return told

    @property
    def problems(self) -> list[str]:
        """Problems that a viewer would see, one line each."""
        told = [
            (not self.person_share, "no frame shows a person: the discs are empty"),
            (
                self.floor > _MOST_FLOOR,
                f"alpha is {self.floor:.0f} of 255 outside people: the background shines",
            ),
            (
                self.person_share > 0 and self.ceiling < _LEAST_CEILING,
                f"alpha is {self.ceiling:.0f} of 255 inside people: they are see-through",
            ),
            (
                self.eyes_apart > _MOST_APART,
                f"the eyes' people differ by {self.eyes_apart:.0%}: an eye is empty, a disc is in the wrong place, "
                "or the halves were never two eyes",
            ),
            (
                not (self.found.is_packed_alpha and read_name(self.video.stem).is_packed_alpha),
                "nothing in the name says packed alpha: players want a name such as "
                f"{without_vr_words(self.video.stem)}_FISHEYE190_alpha",
            ),
        ]
        if self.matte is not None:
            told += [
                (
                    self.matte.mean_error - self.matte.inherent_error > _MOST_ERROR,
                    f"alpha is off by {self.matte.error_in_words}",
                ),
                (self.matte.lag_frames != 0, f"alpha is {self.matte.lag_frames:+d} frames off the matte"),
                (
                    self.matte.missing_frames > 0,
                    f"{self.matte.missing_frames} frames of the one are not in the other",
                ),
            ]
        return [line for is_met, line in told if is_met]


_MOST_FLOOR, _LEAST_CEILING, _MOST_ERROR, _MOST_APART = 4.0, 245.0, 2.0, 0.5
_INHERENT_TO_TELL = 0.5


def verify(
    video: Path,
    *,
    matte: Path | None = None,
    wanted: VideoSettings | None = None,
    page: Path | None = None,
) -> PackedReport:
    """Unpack a packed-alpha video, and measure its discs.

    Args:
        video: The packed video.
        matte: The mask of the same run, as large as the source; None compares nothing.
        wanted: Layout, projection and field of view of the source, for ``matte``.
        page: Path of an HTML page with unpacked frames; None writes none.

    Raises:
        InputError: A video cannot be read.
        UsageError: The video is not packed alpha, by its shape or by everything known about it, or ``matte`` is flat.
        OutputError: The page cannot be written.
    """
    settings = wanted or VideoSettings()
    with open_video(video) as reader:
        info = reader.info
        refuse_other_than_packed(info)
        found = vr_of(info, VideoSettings(), always_looks=True)
        shown = None if page is None else UnpackedFrames()
        discs = _Discs(info, shown)
        with nullcontext() if matte is None else open_video(matte) as masks:
            truth: Iterator[npt.NDArray[np.float32]] = iter(())
            if masks is not None:
                is_known = found.projection is Projection.FISHEYE and found.fov_reason.sureness != "a guess"
                fov_degrees = (is_known and found.fov_degrees) or 190.0
                truth = map(_tiles_of(masks, settings, side=info.height, fov_degrees=fov_degrees), masks)
            for frame, tiles in zip_longest(reader, truth):
                discs.add(frame, tiles)
    if not discs.frame_count:
        raise InputError(f"{video}: no frame could be read")
    figures = discs.figures(compared=matte is not None)
    if (
        not figures["person_share"]
        and not found.is_packed_alpha
        and found.projection is not Projection.FISHEYE
    ):
        raise UsageError(
            f"{video}: its corners hold no mattes, and it is {found.in_words()}, not packed alpha; segment with "
            "--type packed-alpha makes it"
        )
    packed = replace(found, is_packed_alpha=True)
    players = {player.name: as_played(player, packed, video.stem) for player in PLAYERS.values()}
    report = PackedReport(video, found=found, players=players, **figures)
    if page is not None and shown is not None:
        shown.save(page, title=f"{video.name}, unpacked", lines=[*report.lines, *report.problems])
    return report


def _tiles_of(
    reader: VideoReader, wanted: VideoSettings, *, side: int, fov_degrees: float
) -> Callable[[Frame], npt.NDArray[np.float32]]:
    """A function that computes, from a mask's frames, what the discs should contain."""
    info = reader.info
    vr = vr_of(info, wanted)
    regions = eye_regions(info.width, info.height, vr.layout)
    try:
        refuse_unpackable(info, vr.lenses)
    except UsageError as error:
        raise UsageError(
            f"{info.path}: the matte must have the layout of the packed video's source, and is {vr.in_words()}; "
            "--stereo and --projection set its layout"
        ) from error
    packer = AlphaPacker(
        regions,
        vr.lenses,
        right_eye_first=vr.right_eye_first,
        fov_degrees=fov_degrees,
        side=side,
    )
    gain = float(rgb_from_yuv(info.color, info.format)[0][0, 0])
    black = float(yuv_from_rgb(info.color, info.format)[1][0])

    def tiles(frame: Frame) -> npt.NDArray[np.float32]:
        alpha = np.clip((frame.planes[0].astype(np.float32) - black) * gain, 0, 1)
        made: npt.NDArray[np.float32] = packer.tiles(np.rint(alpha * 65535).astype(np.uint16))
        return made

    return tiles


class _Discs:
    """Accumulates measurements of the discs of a video."""

    def __init__(self, info: VideoInfo, shown: UnpackedFrames | None = None) -> None:
        self._shown = shown
        self.frame_count = 0
        self._inside = disc_area(info.height)
        self._shares: list[tuple[float, float]] = []
        self._levels = np.zeros(256, np.int64)
        self._errors: list[float] = []
        self._inherent: list[float] = []
        self._leaks: list[float] = []
        # Small pictures of the last frames, newest first.
        self._seen: deque[npt.NDArray[np.float32]] = deque(maxlen=_MOST_LAG_FRAMES + 1)
        self._meant: deque[npt.NDArray[np.float32]] = deque(maxlen=_MOST_LAG_FRAMES + 1)
        self._apart = dict.fromkeys(_LAGS, (0.0, 0))
        """For each shift, the sum of differences and their number."""
        self._missing = 0

    def add(self, frame: Frame | None, truth: npt.NDArray[np.float32] | None) -> None:
        """Measure the next frame, against its matte if given."""
        if frame is None:
            self._missing += 1
            return
        self.frame_count += 1
        tiles = unpack_discs(frame)
        if self._shown is not None:
            self._shown.add(frame, tiles)
        inside = tiles[:, self._inside]
        first, second = (float((eye > 0.5).mean()) for eye in inside)
        self._shares.append((first, second))
        self._levels += np.bincount(np.rint(inside.ravel() * 255).astype(np.intp), minlength=256)
        if truth is None:
            self._missing += 1
            return
        meant = truth[:, self._inside]
        error = float(np.abs(inside - meant).mean())
        inherent = 0.0
        if error * 255 > _MOST_ERROR:
            best = _freshly_packed(frame, truth)[:, self._inside]
            inherent = min(float(np.abs(best - meant).mean()), error)
        self._errors.append(error)
        self._inherent.append(inherent)
        nobody = meant < _GONE
        self._leaks.append(float(inside[nobody].mean()) if nobody.any() else 0.0)
        self._seen.appendleft(_small(tiles))
        self._meant.appendleft(_small(truth))
        for lag, (total, count) in self._apart.items():
            ours, wanted = max(-lag, 0), max(lag, 0)
            if max(ours, wanted) < len(self._seen):
                difference = np.abs(self._seen[ours] - self._meant[wanted]).mean()
                self._apart[lag] = total + float(difference), count + 1

    def figures(self, *, compared: bool) -> dict[str, Any]:
        """The measured fields of the report."""
        shares = np.array(self._shares)
        somebody = shares.max(axis=1) > 0
        apart = np.abs(shares[:, 0] - shares[:, 1])[somebody] / shares.max(axis=1)[somebody]
        half = len(self._levels) // 2
        comparison = None
        if compared and self._errors:
            comparison = MatteComparison(
                mean_error=float(np.mean(self._errors)) * 255,
                worst_frame_error=max(self._errors) * 255,
                inherent_error=float(np.mean(self._inherent)) * 255,
                leakage=float(np.mean(self._leaks)) * 255,
                lag_frames=_lag(self._apart),
                missing_frames=self._missing,
            )
        return {
            "frame_count": self.frame_count,
            "person_share": float(shares.mean()),
            "empty_frames": int((~somebody).sum()),
            "eyes_apart": float(apart.mean()) if apart.size else 0.0,
            "floor": _median(self._levels[:half], 0),
            "ceiling": _median(self._levels[half:], half),
            "matte": comparison,
        }


def _freshly_packed(frame: Frame, tiles: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Compute the mattes that a player would read if they were packed into a frame without compression."""
    fresh = frame.with_planes(tuple(plane.copy() for plane in frame.planes))
    pack_discs(fresh, tiles, color=disc_color(frame))
    return unpack_discs(fresh)


def _median(counts: npt.NDArray[np.int64], first: int) -> float:
    """The median level of a part of a histogram; its lower end if it is empty."""
    total = int(counts.sum())
    return float(first + np.searchsorted(np.cumsum(counts), (total + 1) // 2)) if total else float(first)


def _small(tiles: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """A small picture of a frame, to find its place in time."""
    step = max(tiles.shape[1] // _SYNC_SIDE, 1)
    return tiles[:, ::step, ::step].copy()


def _lag(apart: Mapping[int, tuple[float, int]]) -> int:
    """The shift in frames at which two videos agree best; 0 unless another is clearly better.

    Args:
        apart: For each shift, the sum of differences and their number.
    """
    means = {lag: total / count for lag, (total, count) in apart.items() if count > 2 * _MOST_LAG_FRAMES}
    if not means:
        return 0
    best = min(means, key=lambda lag: (means[lag], abs(lag)))
    return best if means[best] < 0.8 * means[0] else 0


_MOST_FRAMES = 16
_SIDE = 640
"""Maximum side of an eye on the page, in pixels."""
_JPEG_QUALITY = 85


class UnpackedFrames:
    """A web page for judging packed alpha: unpacked frames beside their mattes, on any colour.

    The frames are spread evenly over a video of unknown length: every frame is kept at first, then every 2nd, 4th and
    so on as the video goes on, so memory stays bounded.
    """

    def __init__(self) -> None:
        self._count = 0
        self._stride = 1
        self._kept: list[tuple[int, dict[str, Any]]] = []

    def add(self, frame: Frame, tiles: npt.NDArray[np.float32]) -> None:
        """Add the next frame.

        Args:
            frame: A frame of 2E x E luma samples, in the host's memory.
            tiles: float32 [2, h, w], 0..1: the mattes that ``unpack_discs`` returned for it.
        """
        index, self._count = self._count, self._count + 1
        if index % self._stride:
            return
        self._kept.append((index, {"t": round(frame.pts_seconds, 3), "eyes": _eyes(frame, tiles)}))
        if len(self._kept) > _MOST_FRAMES:
            self._stride *= 2
            self._kept = [one for one in self._kept if one[0] % self._stride == 0]

    def save(self, path: Path, *, title: str, lines: Sequence[str]) -> None:
        """Write the page: one file without external resources.

        Args:
            path: The HTML file.
            title: The page's heading.
            lines: Lines of text about the video.

        Raises:
            OutputError: There is no frame, or the page cannot be written.
        """
        if not self._kept:
            raise OutputError(f"{path}: no frame to show")
        frames = json.dumps([frame for _, frame in self._kept])
        told = "".join(f"<li>{escape(line)}</li>" for line in lines)
        body = _BODY.replace("LAST", str(len(self._kept) - 1)).replace("LINES", told)
        write_file(
            path,
            html_page(
                title, f"{body}<script>const frames={frames};{_SCRIPT}</script>", style=_STYLE
            ).encode(),
        )


def _eyes(frame: Frame, tiles: npt.NDArray[np.float32]) -> list[dict[str, str]]:
    """Each eye's picture and matte, as data URLs."""
    side = min(frame.height, _SIDE)
    regions = [Region(eye * frame.height, 0, frame.height, frame.height) for eye in range(2)]
    pictures: Any = preprocess(frame, regions=regions, size=(side, side), layout="NHWC")
    made = []
    for picture, tile in zip(pictures, tiles, strict=True):
        matte: Any = cv2.resize(tile, (side, side), interpolation=cv2.INTER_LINEAR)
        # The matte is an alpha channel, so that a browser can composite without reading pixels.
        mask = np.dstack([np.full((side, side, 3), 255), np.rint(matte * 255)]).astype(np.uint8)
        made.append({"picture": _address(_codes(picture), ".jpg"), "matte": _address(mask, ".png")})
    return made


def _codes(picture: Any) -> npt.NDArray[np.uint8]:
    rgb = np.rint(picture.clip(0, 1) * 255).astype(np.uint8)
    return np.asarray(cv2.cvtColor(rgb, cv2.COLOR_RGB2BGR), np.uint8)


def _address(picture: npt.NDArray[np.uint8], kind: str) -> str:
    encoded, data = cv2.imencode(
        kind, picture, [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY] if kind == ".jpg" else []
    )
    assert encoded  # OpenCV always has these codecs
    mime = {".jpg": "image/jpeg", ".png": "image/png"}[kind]
    return f"data:{mime};base64,{base64.b64encode(data.tobytes()).decode()}"


_STYLE = """
.eyes{display:flex;flex-wrap:wrap;gap:8px}
.eyes figure{flex:1 1 300px;max-width:640px;margin:0}
.eyes canvas{width:100%;display:block;border-radius:6px}
.controls{display:flex;flex-wrap:wrap;gap:12px;align-items:center;margin:12px 0}
.controls input[type=range]{flex:1 1 220px;min-width:0}
"""

_BODY = """
<ul>LINES</ul>
<div class="controls">
<input type="range" id="at" min="0" max="LAST" value="0" aria-label="frame"><output id="time" for="at"></output>
</div>
<div class="controls">
<label><input type="radio" name="look" value="color" checked> on a colour</label>
<input type="color" id="color" value="#2b6cb0" aria-label="colour behind people">
<label><input type="radio" name="look" value="matte"> matte</label>
<label><input type="radio" name="look" value="picture"> picture</label>
</div>
<div class="eyes">
<figure><canvas></canvas><figcaption>left eye</figcaption></figure>
<figure><canvas></canvas><figcaption>right eye</figcaption></figure>
</div>
"""

_SCRIPT = """
const by=id=>document.getElementById(id),canvases=[...document.querySelectorAll('canvas')];
const load=url=>new Promise(done=>{const image=new Image();image.onload=()=>done(image);image.src=url});
let asked=0;
async function show(){
  const turn=++asked,frame=frames[+by('at').value],look=document.querySelector('[name=look]:checked').value;
  by('time').textContent=frame.t.toFixed(2)+' s';
  const shown=await Promise.all(frame.eyes.map(eye=>Promise.all([load(eye.picture),load(eye.matte)])));
  if(turn!==asked)return;
  shown.forEach(([picture,matte],eye)=>{
    const canvas=canvases[eye],pen=canvas.getContext('2d');
    canvas.width=picture.width;canvas.height=picture.height;
    const fill=color=>{pen.globalCompositeOperation='destination-over';pen.fillStyle=color;
      pen.fillRect(0,0,canvas.width,canvas.height)};
    if(look==='matte'){pen.drawImage(matte,0,0);fill('#000');return}
    pen.drawImage(picture,0,0);
    if(look==='picture')return;
    pen.globalCompositeOperation='destination-in';pen.drawImage(matte,0,0);fill(by('color').value);
  });
}
document.querySelectorAll('input').forEach(input=>input.addEventListener('input',show));
show();
"""
