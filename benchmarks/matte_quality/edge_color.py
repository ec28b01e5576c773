"""How right the colour of soft edges is: key composites against those that the true foreground gives.

The clips are those of ``measure.py``; of each the composite is known, because it is put together, too. Alpha
is the truth, or what RVM finds as in ``balanced``. Blur fusion stands beside the camera's colours as they are, and
beside what RVM itself takes for the foreground.

Usage: python benchmarks/matte_quality/edge_color.py [CLIP.mp4 ...] [--seeds 0,1] [--picture P.png] [--rows R.json]
       python benchmarks/matte_quality/edge_color.py CLIP.mp4 --cost 5 [--rows R.json]

``--cost`` measures what blur fusion takes on the CPU: a second of the clip to a key colour with it and without it,
in turn, so many times, in CPU seconds.

Errors are means of |difference| of R, G and B in codes of 255: in the band, within 10 pixels of edges, and where the
true alpha is partial.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import cv2
import numpy as np
from metrics import unknown_band
from truth import Film, cut_figure, make_film, write_film

from vitascope.config import vitascope_home
from vitascope.frames import Frame, StereoLayout
from vitascope.gpu.kernels.foreground import decontaminate
from vitascope.gpu.kernels.guided import refine_alpha
from vitascope.gpu.kernels.region import Region
from vitascope.media.reading.reader import open_video
from vitascope.models.rvm.rvm import RvmNetwork
from vitascope.models.store.store import ModelStore
from vitascope.segmentation.matting.stream import MattingOptions, StreamMatting
from vitascope.segmentation.segmenter import Segmenter

HERE = Path(__file__).parent
KEY = 120, 255, 155
_CLASSES = "one,several,crossing,small,close-up"
_BAND_PX = 10


def composites(film: Path, truth: Film, network: RvmNetwork) -> list[dict[tuple[str, str], Any]]:
    """For every frame, key composites float32 [H, W, 3], 0..255, by (alpha, foreground)."""
    with open_video(film) as reader:
        frames = list(reader)
    size = frames[0].height, frames[0].width
    options = MattingOptions(decontaminate=True)
    matting = StreamMatting(network, size=size, layout=StereoLayout.MONO, options=options)
    prepared = [matting.find_cuts(matting.prepare([frame])) for frame in frames]
    matted = [*matting.infer(prepared), *matting.infer_rest()]
    made = []
    for one, alpha in zip(matted, truth.alpha, strict=True):
        frame, given, images = one.frame, one.estimate, one.images
        regions = [Region(0, 0, frame.width, frame.height)]
        assert given.gain is not None
        assert given.offset is not None
        found = refine_alpha(frame, regions=regions, gain=given.gain[:, -1], offset=given.offset[:, -1])
        true_codes = np.rint(alpha * 255).astype(np.uint8)
        settled = matting.settle(one)
        small = cv2.resize(alpha, given.size[::-1], interpolation=cv2.INTER_AREA)[None, None]
        true_matte = replace(given, gain=np.zeros_like(small), offset=small)
        true_settled = matting.settle(replace(one, estimate=true_matte, images=images, is_settled=False))
        by: dict[tuple[str, str], Any] = {}
        for name, codes, colors in (("found", found, settled), ("true", true_codes, true_settled)):
            share = codes.astype(np.float32)[..., None] / 255
            foregrounds = {"the camera's": frame, "blur fusion": _cleaned(frame, codes, regions, colors)}
            if given.gain.shape[1] == 4:
                foregrounds["the network's"] = _by_network(frame, given, codes)
            for which, foreground in foregrounds.items():
                rgb = (
                    foreground
                    if isinstance(foreground, np.ndarray)
                    else foreground.to_rgb().astype(np.float32)
                )
                by[name, which] = rgb * share + np.float32(KEY) * (1 - share)
        made.append(by)
    return made


def _cleaned(frame: Frame, alpha: Any, regions: list[Region], colors: Any) -> Frame:
    return decontaminate(frame, alpha, regions=regions, person=colors.gain[:, :3], scene=colors.offset[:, :3])


def _by_network(frame: Frame, given: Any, alpha: Any) -> Any:
    """What RVM takes for the foreground where alpha is partial: float32 [H, W, 3], 0..255."""
    rgb = frame.to_rgb().astype(np.float32) / 255
    size = frame.width, frame.height
    gain, offset = (
        cv2.resize(np.moveaxis(part[0, :3], 0, -1), size, interpolation=cv2.INTER_LINEAR)
        for part in (given.gain, given.offset)
    )
    partial = ((alpha > 0) & (alpha < 255))[..., None]
    return 255 * np.where(partial, np.clip(rgb + gain * rgb + offset, 0, 1), rgb)


def cost(clip: Path, rounds: int) -> list[dict[str, Any]]:
    """CPU seconds of whole runs with and without blur fusion: a row for each profile."""
    rows = []
    for profile in ("fast", "balanced"):
        ratios, spent = [], {True: 0.0, False: 0.0}
        with TemporaryDirectory(prefix="vitascope-") as folder, ExitStack() as stack:
            segmenters = {
                fuses: stack.enter_context(
                    Segmenter(
                        profile=profile,
                        settings={
                            "edges.decontaminate": fuses,
                            "video.end_seconds": 1.0,
                            "gpu.device": "cpu",
                        },
                    )
                )
                for fuses in (True, False)
            }
            for turn in range(rounds + 1):
                taken = {}
                for fuses, segmenter in segmenters.items():
                    begun = time.process_time()
                    segmenter.write(clip, [("key", Path(folder) / f"{turn}_{fuses}.mp4")])
                    taken[fuses] = time.process_time() - begun
                if turn:  # the first one is to warm up
                    ratios.append(taken[True] / taken[False])
                    spent = {fuses: spent[fuses] + taken[fuses] for fuses in spent}
        row = {"claim": "edge colour's cost", "profile": profile, "clip": clip.name, "rounds": rounds}
        row |= {"ratio": round(float(np.median(ratios)), 3), "least": round(min(ratios), 3)}
        row |= {"most": round(max(ratios), 3)}
        row |= {
            "cpu_seconds_with": round(spent[True] / rounds, 2),
            "without": round(spent[False] / rounds, 2),
        }
        print(row, flush=True)
        rows.append(row)
    return rows


def main() -> None:
    """Make the clips, key them, and write rows, table and picture."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("clips", type=Path, nargs="*", help="one person each, before a plain background")
    parser.add_argument("--classes", default=_CLASSES)
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--frames", type=int, default=8)
    parser.add_argument("--height", type=int, default=360)
    parser.add_argument("--picture", type=Path, help="PNG of an edge: camera's colours, blur fusion, truth")
    parser.add_argument("--rows", type=Path, help="JSON")
    parser.add_argument("--cost", type=int, metavar="ROUNDS", help="measure time on the first clip instead")
    given = parser.parse_args()
    sys.path.append(str(HERE.parent))  # where what all benchmarks share lies
    from row_stamp import commit, write_rows

    stamp = {"commit": commit(), "date": time.strftime("%Y-%m-%d")}
    if given.cost:
        rows = cost(given.clips[0], given.cost)
        if given.rows is not None:
            write_rows(given.rows, [row | stamp for row in rows])
        return
    size = given.height, given.height * 16 // 9
    network = RvmNetwork(ModelStore(vitascope_home()).pull("rvm"))
    sources = [HERE.parents[1] / "examples" / "astronaut.jpg", *given.clips]
    cut = [cut_figure(source, network, count=given.frames) for source in sources]
    people, scenery = [figures for figures, _ in cut], [beside for _, beside in cut[1:]]
    rows = []
    best: tuple[float, Any] = (0.0, None)
    with TemporaryDirectory(prefix="vitascope-") as folder:
        for kind in given.classes.split(","):
            errors: dict[tuple[str, str], list[tuple[float, float]]] = {}
            for seed in map(int, given.seeds.split(",")):
                make = {"seed": seed, "size": size, "frames": given.frames}
                film = make_film(kind, people, scenery, **make)
                wanted = make_film(kind, people, scenery, on=KEY, **make)
                made = composites(write_film(film, Path(folder) / f"{film.name}.mp4"), film, network)
                for at, by in enumerate(made):
                    alpha, truth = film.alpha[at], wanted.rgb[at].astype(np.float32)
                    band, mixed = unknown_band(alpha, _BAND_PX), (alpha > 0.02) & (alpha < 0.98)
                    for which, picture in by.items():
                        error = np.abs(picture - truth).mean(axis=-1)
                        errors.setdefault(which, []).append(
                            (float(error[band].mean()), float(error[mixed].mean()))
                        )
                    best = max(best, _edge(by, truth, alpha), key=lambda one: one[0])
            for (alpha_name, which), of in errors.items():
                band, mixed = (round(float(np.mean(column)), 2) for column in zip(*of, strict=True))
                row = {"claim": "edge colour", "class": kind, "alpha": alpha_name, "foreground": which}
                rows.append({**row, "band": band, "mixed": mixed, "frames": len(of)})
                print(kind, alpha_name, which, band, mixed, flush=True)
    network.close()
    if given.picture is not None:
        cv2.imwrite(str(given.picture), best[1][..., ::-1])
    if given.rows is not None:
        stamp |= {"people": [one.name for one in sources], "height": given.height}
        write_rows(given.rows, [row | stamp for row in rows])


def _edge(by: dict[tuple[str, str], Any], truth: Any, alpha: Any) -> tuple[float, Any]:
    """Where blur fusion mends most of a frame's true alpha, four times as large; and how much it mends there."""
    before, after = by["true", "the camera's"], by["true", "blur fusion"]
    gain = (np.abs(before - truth) - np.abs(after - truth)).mean(axis=-1) * (alpha > 0)
    gain = cv2.blur(gain, (72, 72), borderType=cv2.BORDER_CONSTANT)
    y, x = (
        int(np.clip(place - 36, 0, side - 72))
        for place, side in zip(np.unravel_index(int(gain.argmax()), gain.shape), gain.shape, strict=True)
    )
    cells = [
        cv2.resize(picture[y : y + 72, x : x + 72], None, fx=4, fy=4, interpolation=cv2.INTER_CUBIC)
        for picture in (before, after, truth)
    ]
    return float(gain.max()), np.rint(np.clip(np.hstack(cells), 0, 255)).astype(np.uint8)


if __name__ == "__main__":
    main()
