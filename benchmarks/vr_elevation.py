"""How well people are matted near the poles of a VR180 eye, as the network sees it and straightened for the network.

People are cut out of flat clips by RVM, and stand as figures with exact alpha in an equirectangular eye, at several
elevations and azimuths, before the clip's own scenery on the walls of a room. Then RVM mattes the eye in several ways,
with pictures of one size, and each matte is held against the truth: IoU at 0.5 over the samples of the eye, the same
with each sample counting as much as it covers of the sphere (a row at the pole covers nothing), and the mean absolute
difference of alpha over the samples, times 1000.

Ways: ``raw`` shows the eye as it is. ``fisheye`` shows it as an equidistant fisheye picture, read with bilinear
weights from the eye shrunk to the network's size; ``averaged`` first takes the mean of 1/cos(elevation) samples of each
row, which is what a sample of the fisheye picture covers there; ``1.5x`` reads from an eye shrunk to 1.5 times the
network's size; ``rim`` shows the circle's rim again outside it, instead of black. The network's coefficients go back to
the eye at the network's size, or (``full``) straight at the eye's own, or (``alpha``) its alpha goes back, and is
refined against the eye. ``product`` is what a run of Vitascope makes of such a video: fisheye pictures with their rim
repeated, from the eye at the network's size, which are bent where people stand at the rim.

Usage: python benchmarks/vr_elevation.py CLIP.mp4 ... [--ways "raw,1.5x rim"] [--frames 6] [--keep ROWS.json]
[--table TABLE.md]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from row_stamp import commit, write_rows
from vitascope.config import vitascope_home
from vitascope.frames import PIXEL_FORMATS, ColorSpec, Frame, StereoLayout
from vitascope.gpu.kernels.guided import refine_alpha
from vitascope.gpu.kernels.preprocess import preprocess
from vitascope.gpu.kernels.region import Region
from vitascope.gpu.kernels.remap import remap
from vitascope.gpu.kernels.rgb import planes_from_rgb
from vitascope.media.reading.reader import open_video
from vitascope.models.network import MatteEstimate, NetworkInput
from vitascope.models.rvm.rvm import RvmNetwork
from vitascope.models.store.store import ModelStore
from vitascope.segmentation.matting.estimates import as_coefficients, small_alpha
from vitascope.segmentation.matting.shots import ShotInference
from vitascope.segmentation.matting.stream import MattingOptions, StreamMatting
from vitascope.vr.projection import Equirectangular, Fisheye, Lens, Rectilinear, reprojection_map, turned
from vitascope.vr.synthetic import Camera, Figure, Place, Scene, Surround, View, noise_surround, render

EYE, ROUND = Equirectangular(), Fisheye(180)
ELEVATIONS = (-75, -60, -45, -35, 0, 35, 45, 60, 75)
DISTANCES_M = (1.8, 0.9)
HEIGHT_M = 1.75
"""Height of a figure's picture, which is the person with a narrow border."""


@dataclass(frozen=True)
class Way:
    """How an eye is shown to the network, and how its answer comes back."""

    straightened: bool = True
    picture_scale: float = 1.0
    """Size of the picture that the fisheye is read from, to the network's."""
    averaged: bool = False
    rim: bool = False
    """Outside the circle the rim goes on, instead of black."""
    back: str = "small"


WAYS = {
    "raw": Way(straightened=False),
    "fisheye": Way(),
    "averaged": Way(averaged=True),
    "1.5x": Way(picture_scale=1.5),
    "1.5x averaged": Way(picture_scale=1.5, averaged=True),
    "1.5x rim": Way(picture_scale=1.5, rim=True),
    "full": Way(averaged=True, back="full"),
    "alpha": Way(averaged=True, back="alpha"),
}
PRODUCT = "product"


def cut_out(film: Path, network: RvmNetwork, first: int, count: int) -> tuple[list[np.ndarray], np.ndarray]:
    """The people of some frames, uint8 RGBA, all cut to the same rectangle; and what is beside them, uint8 RGB."""
    with open_video(film) as reader:
        frames = list(islice(reader, first + count))
    matting = StreamMatting(
        network,
        size=(frames[0].height, frames[0].width),
        layout=StereoLayout.MONO,
        options=MattingOptions(decontaminate=True),
        waits=False,
    )
    pictures = []
    for frame in frames[max(first - 12, 0) :]:
        matte = matting.refine(matting.infer([matting.find_cuts(matting.prepare([frame]))])[0])
        alpha = np.clip((matte.alpha.astype(np.float32) / 255 - 0.05) / 0.9, 0, 1)
        alpha *= largest_part(alpha)
        pictures.append(np.dstack([matte.foreground.to_rgb(), np.rint(alpha * 255).astype(np.uint8)]))
    pictures = pictures[-count:]
    shown = np.max([picture[..., 3] for picture in pictures], axis=0) > 127
    rows, columns = np.flatnonzero(shown.any(axis=1)), np.flatnonzero(shown.any(axis=0))
    top, left = max(rows[0] - 4, 0), max(columns[0] - 4, 0)
    people = [picture[top : rows[-1] + 5, left : columns[-1] + 5] for picture in pictures]
    whole = frames[-1].to_rgb()
    sides = whole[:, : max(left - 60, 1)], whole[:, columns[-1] + 60 :]
    return people, max(sides, key=lambda side: side.shape[1])


def room(scenery: np.ndarray, height: int) -> np.ndarray:
    """A surround, uint8 RGB: scenery on the walls of a cube, its upper part on the ceiling, its lower on the floor."""
    # Out of focus: sharp, its tree trunks pass for legs in every way of matting.
    scenery = cv2.GaussianBlur(scenery, (0, 0), scenery.shape[0] / 60)
    half = scenery.shape[0] // 2
    mirrored = scenery[:, ::-1]
    faces = [(scenery, 0, 0), (mirrored, 90, 0), (scenery, 180, 0), (mirrored, 270, 0)]
    faces += [(scenery[:half], 0, 90), (scenery[half:], 0, -90)]
    sphere = np.zeros((height, 2 * height, 3), np.uint8)
    for picture, yaw, pitch in faces:
        map_x, map_y = reprojection_map(
            Rectilinear(90, 90),
            Equirectangular(360, 180),
            source_size=picture.shape[:2],
            target_size=sphere.shape[:2],
            rotation=turned(yaw_degrees=yaw, pitch_degrees=pitch).T,
        )
        inside = map_x >= -1
        sphere[inside] = remap(np.ascontiguousarray(picture), map_x, map_y)[inside]
    return sphere


def largest_part(alpha: np.ndarray) -> np.ndarray:
    """Where the largest connected part of a matte is: what the flat matte found elsewhere is not the person."""
    _, labels, stats, _ = cv2.connectedComponentsWithStats((alpha > 0.1).astype(np.uint8))
    return labels == 1 + np.argmax(stats[1:, cv2.CC_STAT_AREA])


def eye_of(figure: np.ndarray, place: Place, side: int, behind: np.ndarray) -> View:
    """An eye that shows a figure before a picture of what is behind it."""
    camera = Camera(EYE, (side, side), StereoLayout.MONO, samples=1)
    seen = render(Scene((Figure(figure, place, height_m=HEIGHT_M),), None, camera))
    rgb = seen.rgb + behind * (1 - seen.alpha[..., None])
    return View(np.rint(rgb).astype(np.uint8), seen.alpha, seen.depth_m)


def as_frame(rgb: np.ndarray, index: int) -> Frame:
    """A decoded frame with this picture."""
    fmt, color = PIXEL_FORMATS["yuv420p"], ColorSpec()
    planes = planes_from_rgb((rgb.transpose(2, 0, 1) / 255).astype(np.float32), fmt=fmt, color=color)
    return Frame(planes, fmt, color, index=index, pts=index, time_base=Fraction(1, 25))


def row_means(picture: np.ndarray) -> np.ndarray:
    """The mean of 1/cos(elevation) samples around each sample of a row; picture float32 [h, w, c]."""
    height, width = picture.shape[:2]
    sums = np.concatenate([np.zeros_like(picture[:, :1]), picture.cumsum(axis=1, dtype=np.float64)], axis=1)
    elevation = ((np.arange(height) + 0.5) / height - 0.5) * np.pi
    reach = np.minimum(0.5 / np.cos(elevation), width / 2)[:, None]
    middle = np.arange(width) + 0.5
    first, last = np.clip(middle - reach, 0, width), np.clip(middle + reach, 0, width)
    rows = np.arange(height)[:, None]

    def sum_to(place: np.ndarray) -> np.ndarray:
        whole = np.minimum(place.astype(int), width - 1)
        part = (place - whole)[..., None]
        return sums[rows, whole] * (1 - part) + sums[rows, whole + 1] * part

    return ((sum_to(last) - sum_to(first)) / (last - first)[..., None]).astype(np.float32)


@lru_cache(maxsize=8)
def maps(
    source: Lens, target: Lens, source_size: tuple[int, int], target_size: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """``reprojection_map``, made once."""
    return reprojection_map(source, target, source_size=source_size, target_size=target_size)


def shown(frame: Frame, wanted: NetworkInput, way: Way) -> np.ndarray:
    """What the network is shown of an eye: float32 [1, 3, h, w]."""
    height, width = wanted.size
    size = (round(height * way.picture_scale), round(width * way.picture_scale))
    plain = preprocess(frame, regions=[Region(0, 0, frame.width, frame.height)], size=size)
    if not way.straightened:
        return plain
    picture = np.ascontiguousarray(plain[0].transpose(1, 2, 0))
    if way.averaged:
        picture = row_means(picture)
    map_x, map_y = maps(EYE, ROUND, size, wanted.size)
    straight = remap(picture, map_x, map_y)
    if way.rim:
        straight = remap(straight, *rim_map(wanted.size))
    else:
        straight *= (map_x >= -1)[..., None]
    return np.ascontiguousarray(straight.transpose(2, 0, 1))[None]


@lru_cache(maxsize=2)
def rim_map(size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Each place inside a picture's circle, and for those outside the nearest inside."""
    y, x = np.indices(size, np.float32)
    middle_x, middle_y = (size[1] - 1) / 2, (size[0] - 1) / 2
    distance = np.hypot((x - middle_x) / (size[1] / 2 - 1), (y - middle_y) / (size[0] / 2 - 1))
    scale = 1 / np.maximum(distance, 1)
    map_x, map_y = middle_x + (x - middle_x) * scale, middle_y + (y - middle_y) * scale
    return map_x.astype(np.float32), map_y.astype(np.float32)


def put_back(
    estimate: MatteEstimate, straight: np.ndarray, frame: Frame, wanted: NetworkInput, way: Way
) -> MatteEstimate:
    """What the network said of a fisheye picture, as coefficients of the eye."""
    size = (frame.height, frame.width) if way.back == "full" else wanted.size
    map_x, map_y = maps(ROUND, EYE, wanted.size, size)
    if way.back == "alpha":
        alpha = remap(small_alpha(estimate, straight, wanted)[0], map_x, map_y)
        plain = shown(frame, wanted, WAYS["raw"])
        return as_coefficients(MatteEstimate(alpha=alpha[None]), plain, wanted)
    assert estimate.gain is not None
    assert estimate.offset is not None
    gain, offset = (
        remap(planes[0, -1], map_x, map_y)[None, None] for planes in (estimate.gain, estimate.offset)
    )
    return MatteEstimate(gain=gain, offset=offset)


def full_alpha(frame: Frame, estimate: MatteEstimate) -> np.ndarray:
    """The refined matte of an eye, float32 0..1."""
    assert estimate.gain is not None
    assert estimate.offset is not None
    whole = [Region(0, 0, frame.width, frame.height)]
    alpha = refine_alpha(frame, regions=whole, gain=estimate.gain[:, -1], offset=estimate.offset[:, -1])
    return alpha.astype(np.float32) / 255


def product_alphas(network: RvmNetwork, frames: Sequence[Frame]) -> list[np.ndarray]:
    """What a run of Vitascope makes of the frames, float32 0..1."""
    size = frames[0].height, frames[0].width
    matting = StreamMatting(
        network,
        size=size,
        layout=StereoLayout.MONO,
        lens=Equirectangular(180, 180),
        options=MattingOptions(),
        waits=False,
    )
    mattes = [
        matting.refine(one)
        for frame in frames
        for one in matting.infer([matting.find_cuts(matting.prepare([frame]))])
    ]
    return [matte.alpha.astype(np.float32) / 255 for matte in mattes]


def mattes(network: RvmNetwork, frames: Sequence[Frame], ways: Sequence[str]) -> dict[str, list[np.ndarray]]:
    """Alpha of consecutive frames in each way; ways that show the network the same share its answer."""
    wanted = network.input_for((frames[0].height, frames[0].width))
    answers: dict[Way, list[tuple[np.ndarray, MatteEstimate]]] = {}
    alphas = {}
    for name in ways:
        if name == PRODUCT:
            alphas[name] = product_alphas(network, frames)
            continue
        way = WAYS[name]
        as_shown = replace(way, back="small")
        if as_shown not in answers:
            inference = ShotInference(network, warm_up_frames=MattingOptions().warm_up_frames)
            pictures = [shown(frame, wanted, way) for frame in frames]
            answers[as_shown] = [(picture, inference.run(picture[None], [False])[0]) for picture in pictures]
        alphas[name] = [
            full_alpha(
                frame, put_back(estimate, picture, frame, wanted, way) if way.straightened else estimate
            )
            for frame, (picture, estimate) in zip(frames, answers[as_shown], strict=True)
        ]
    return alphas


def measure(
    network: RvmNetwork, views: Sequence[View], ways: Sequence[str], sheet: Path | None
) -> dict[str, dict[str, float]]:
    """What each way scores."""
    height = views[0].rgb.shape[0]
    area = Equirectangular().row_areas(height)[:, None]
    frames = [as_frame(view.rgb, index) for index, view in enumerate(views)]
    result, painted = {}, [views[-1].rgb, np.repeat(views[-1].alpha[..., None] * 255, 3, axis=2)]
    for name, alphas in mattes(network, frames, ways).items():
        overlaps, on_sphere, differences = [], [], []
        for alpha, view in zip(alphas, views, strict=True):
            ours, true = alpha >= 0.5, view.alpha >= 0.5
            overlaps.append((ours & true).sum() / (ours | true).sum())
            on_sphere.append(((ours & true) * area).sum() / ((ours | true) * area).sum())
            differences.append(np.abs(alpha - view.alpha).mean() * 1000)
        painted.append(np.repeat(alphas[-1][..., None] * 255, 3, axis=2))
        result[name] = {
            "iou": round(float(np.mean(overlaps)), 4),
            "iou_on_sphere": round(float(np.mean(on_sphere)), 4),
            "mad_1000": round(float(np.mean(differences)), 2),
        }
    if sheet is not None:
        sheet.parent.mkdir(parents=True, exist_ok=True)
        cells = [
            cv2.resize(cell.astype(np.uint8), (384, 384), interpolation=cv2.INTER_AREA) for cell in painted
        ]
        cv2.imwrite(str(sheet), cv2.cvtColor(np.hstack(cells), cv2.COLOR_RGB2BGR))
    return result


def table_of(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown: IoU of each way by where the person stands."""
    ways = list(dict.fromkeys(row["way"] for row in rows))
    azimuths = sorted({row["azimuth_degrees"] for row in rows})
    lines = [
        "# People near the poles of a VR180 eye",
        "",
        "Written by `vr_elevation.py`, whose head says what is measured: IoU at 0.5, over the samples of the eye. "
        f"`{'`, `'.join(ways)}` at each azimuth; degrees.",
        "",
        "| clip, distance | elevation | " + " | ".join(f"azimuth {azimuth:g}" for azimuth in azimuths) + " |",
        "|-|-|" + "-|" * len(azimuths),
    ]
    for clip, distance in dict.fromkeys((row["clip"], row["distance_m"]) for row in rows):
        own = [row for row in rows if (row["clip"], row["distance_m"]) == (clip, distance)]
        for elevation in sorted({row["elevation_degrees"] for row in own}, reverse=True):
            found = {
                (row["azimuth_degrees"], row["way"]): f"{row['iou']:.3f}"
                for row in own
                if row["elevation_degrees"] == elevation
            }
            cells = [" ".join(found.get((azimuth, way), "") for way in ways) for azimuth in azimuths]
            lines.append(f"| {clip}, {distance:g} m | {elevation:+g} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print the scores; keep rows and table when asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("films", type=Path, nargs="+")
    parser.add_argument("--ways", default="raw,fisheye,averaged,1.5x,1.5x rim,full,alpha")
    parser.add_argument("--elevations", default=",".join(str(one) for one in ELEVATIONS))
    parser.add_argument("--azimuths", default="0,55")
    parser.add_argument("--distances", default=",".join(str(one) for one in DISTANCES_M), help="in metres")
    parser.add_argument("--first", type=int, default=24, help="first frame of each clip")
    parser.add_argument("--frames", type=int, default=6)
    parser.add_argument("--side", type=int, default=1536, help="of the eye, in samples")
    parser.add_argument("--noise", action="store_true", help="before noise instead of the clip's own scenery")
    parser.add_argument("--sheets", type=Path, help="folder for pictures of the mattes")
    parser.add_argument("--keep", type=Path, help="JSON file that the rows are added to")
    parser.add_argument("--table", type=Path, help="Markdown file that a table of the rows is written to")
    options = parser.parse_args()
    ways = options.ways.split(",")
    network = RvmNetwork(ModelStore(vitascope_home()).pull("rvm"))
    camera = Camera(EYE, (options.side, options.side), StereoLayout.MONO, samples=1)
    rows: list[dict[str, Any]] = []
    print(f"{'clip':8} {'m':>4} {'az':>4} {'el':>4} " + " ".join(f"{way:>21}" for way in ways), flush=True)
    for film in options.films:
        people, scenery = cut_out(film, network, options.first, options.frames)
        sphere = noise_surround(options.side) if options.noise else room(scenery, options.side)
        behind = render(Scene((), Surround(sphere), camera)).rgb.astype(np.float32)
        for distance in map(float, options.distances.split(",")):
            for azimuth in map(float, options.azimuths.split(",")):
                for elevation in map(float, options.elevations.split(",")):
                    place = Place(azimuth, elevation, distance)
                    views = [eye_of(person, place, options.side, behind) for person in people]
                    name = f"{film.stem}_{distance:g}_{azimuth:g}_{elevation:g}"
                    sheet = None if options.sheets is None else options.sheets / f"{name}.png"
                    found = measure(network, views, ways, sheet)
                    cells = " ".join(
                        f"{one['iou']:7.4f} {one['iou_on_sphere']:6.4f} {one['mad_1000']:6.2f}"
                        for one in found.values()
                    )
                    print(f"{film.stem:8} {distance:4g} {azimuth:4g} {elevation:4g} {cells}", flush=True)
                    rows += [
                        {
                            "claim": "vr elevation",
                            "way": way,
                            "clip": film.stem,
                            "distance_m": distance,
                            "azimuth_degrees": azimuth,
                            "elevation_degrees": elevation,
                            "surround": "noise" if options.noise else "scenery",
                            "frames": options.frames,
                            "eye_samples": options.side,
                            **scores,
                            "commit": commit(),
                            "date": time.strftime("%Y-%m-%d"),
                        }
                        for way, scores in found.items()
                    ]
    network.close()
    if options.keep is not None:
        write_rows(options.keep, rows)
    if options.table is not None:
        options.table.write_text(table_of(rows))


if __name__ == "__main__":
    main()
