"""How truly a portrait follows: a film's own calmest frame is animated with the film, and the result held against it.

Self-reenactment: the film is the truth, frame by frame. Without arguments it measures a film made here, the shipped
portrait moved by known weights; that one was drawn by the mesh animator itself, so its PSNR says how well motion is
read and made again, and nothing of how real a picture is. Films of people say that, too:

    python benchmarks/portrait_quality/measure.py a.mp4 b.mp4 [--animator mesh] [--set key=value] [--sheets FOLDER]

It runs ``vitascope animate`` into a lossless file, tracks film and result, and writes
``benchmarks/results/portrait_quality.json`` and ``benchmarks/portrait_quality/table.md``. Rows of other films and
animators stay. The reader is MediaPipe, which the animator is driven and calibrated by: what both misread alike is
not seen in r and slope, but in PSNR.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import cv2
import numpy as np
from readings import MOVES, READINGS, compared, psnr, readings_of, region_of, squared_error, wrong_lips

import vitascope
from vitascope.animation.canonical_mesh import CanonicalMesh, read_canonical_mesh
from vitascope.animation.face import FaceMotion, RgbPicture, TrackedFace
from vitascope.animation.motion import neutral_score
from vitascope.animation.motion_file import write_motion
from vitascope.animation.tracking import FaceTracker, fetch_face_model
from vitascope.config import vitascope_home
from vitascope.models.store.store import ModelStore

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results" / "portrait_quality.json"
TABLE = HERE / "table.md"
EXAMPLE = HERE.parents[1] / "examples" / "astronaut.jpg"
MADE = "made.mkv"
_CALM_SECONDS = 2.0
"""The animator takes the driver's calmest frontal face of this time for its neutral: the portrait is that frame."""
_SHEET_COLUMNS = 10


def made_film(folder: Path) -> Path:
    """The shipped portrait, moved by one weight, angle or glance after another, and by some together."""
    waves: list[dict[str, float]] = [
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
    motions = [FaceMotion.authored(pts_seconds=step / 25) for step in range(10)]
    for wave in waves:
        for share in np.sin(np.linspace(0, np.pi, 15, endpoint=False)):
            now = {name: float(value * share) for name, value in wave.items()}
            angles = {f"{name}_degrees": now.pop(name, 0.0) for name in ("yaw", "pitch", "roll")}
            motions.append(FaceMotion.authored(now, pts_seconds=len(motions) / 25, **angles))
    write_motion(folder / "known.motion", motions, frame_rate=25)
    lossless = {"animation.animator": "mesh", "output.codec": "ffv1"}
    vitascope.animate(EXAMPLE, folder / "known.motion", folder / MADE, settings=lossless)
    return folder / MADE


def frames_of(path: Path) -> list[tuple[float, RgbPicture]]:
    """(seconds, picture) of each frame; short films only."""
    with vitascope.open_video(path) as reader:
        return [(frame.pts_seconds, frame.to_rgb()) for frame in reader]


def tracked(frames: list[tuple[float, RgbPicture]], model: Path) -> list[TrackedFace | None]:
    """The face in each frame."""
    with FaceTracker(model) as tracker:
        return [tracker.track(rgb, pts_seconds=seconds) for seconds, rgb in frames]


def measured(
    film: Path, folder: Path, mesh: CanonicalMesh, model: Path, settings: dict[str, Any], sheet: Path | None
) -> dict[str, Any]:
    """One row: a film's calmest frame, animated with the film."""
    truth = frames_of(film)
    driver = tracked(truth, model)
    calm = [
        (neutral_score(face), index)
        for index, ((seconds, _), face) in enumerate(zip(truth, driver, strict=True))
        if face is not None and seconds - truth[0][0] < _CALM_SECONDS
    ]
    if not calm:
        raise SystemExit(f"{film}: no face in its first {_CALM_SECONDS:g} seconds")
    still = truth[min(calm)[1]][1]
    cv2.imwrite(str(folder / "still.png"), still[..., ::-1])
    report = vitascope.animate(
        folder / "still.png", film, folder / "result.mkv", settings=settings | {"output.codec": "ffv1"}
    )
    result = frames_of(folder / "result.mkv")
    if len(result) != len(truth):
        raise SystemExit(f"{film}: {len(truth)} frames became {len(result)}")
    height, width = result[0][1].shape[:2]  # even sides: a last odd row or column is gone
    pairs, errors = [], {(which, of): [] for which in ("face", "mouth") for of in ("result", "still")}
    for (_, true), (_, drawn), face, read in zip(truth, result, driver, tracked(result, model), strict=True):
        if face is None or read is None:
            continue
        pairs.append((readings_of(mesh, face), readings_of(mesh, read)))
        for which in ("face", "mouth"):
            region = region_of(face, which)[:height, :width]
            for of, picture in (("result", drawn), ("still", still[:height, :width])):
                errors[which, of].append(squared_error(true[:height, :width], picture, region))
    if sheet is not None:
        shown = np.linspace(0, len(truth) - 1, _SHEET_COLUMNS).astype(int)
        rows = [
            np.hstack([frames[index][1][:height, :width] for index in shown]) for frames in (truth, result)
        ]
        cv2.imwrite(str(sheet), np.vstack(rows)[..., ::-1])
    series = np.array(pairs).transpose(1, 2, 0)  # [driver or result, reading, frame]
    return {
        "film": film.name,
        "animator": report.animator,
        "frames": len(truth),
        "face_lost": len(truth) - len(pairs),
        "readings": {
            name: compared(of_driver, of_result)
            for name, of_driver, of_result in zip(READINGS, *series, strict=True)
        },
        "psnr": {f"{which} {of}": psnr(squares) for (which, of), squares in errors.items()},
        "wrong_lips": round(wrong_lips(series[0, 0], series[1, 0]), 3),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """The rows for people."""
    head = [
        "# How truly a portrait follows",
        "",
        "Written by `measure.py`, whose head says what is measured. Each film's calmest frame is animated with the",
        "film. A pair is correlation r and slope of what is read from the result against the film; – where the driver",
        "does not move it. PSNR is against the film, in brackets that of the unmoved frame: a result below that",
        "moves, or paints, wrongly. `made.mkv` was drawn by the mesh itself.",
        "",
    ]
    lines: dict[str, list[str]] = {"": [], "frames, without a face": []}
    for row in rows:
        lines[""].append(f"{row['film']}, {row['animator']} {' '.join(row['settings'])}".rstrip())
        lines["frames, without a face"].append(f"{row['frames']}, {row['face_lost']}")
        for name in READINGS:
            found = row["readings"][name]
            moves = found["driver_std"] >= MOVES[name]
            lines.setdefault(name, []).append(f"{found['r']:.2f}, {found['slope']:.2f}" if moves else "–")
        for which in ("face", "mouth"):
            result, still = (row["psnr"][f"{which} {of}"] for of in ("result", "still"))
            lines.setdefault(f"PSNR of the {which}, dB", []).append(f"{result:.1f} ({still:.1f})")
        lines.setdefault("wrong lips", []).append(f"{row['wrong_lips']:.1%}")
    cells = [f"| {name} | {' | '.join(values)} |" for name, values in lines.items()]
    return "\n".join([*head, cells[0], "|-" * (len(rows) + 1) + "|", *cells[1:]]) + "\n"


def main() -> None:
    """Measure films, and write rows and table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "film", nargs="*", type=Path, help="films of a face; one made here is always measured"
    )
    parser.add_argument("--animator", choices=("mesh", "liveportrait"), default="mesh")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="settings of the run")
    parser.add_argument("--sheets", type=Path, help="folder for pictures of film and result, to look at")
    given = parser.parse_args()
    sys.path.append(str(HERE.parent))  # where what all benchmarks share lies
    from row_stamp import commit

    settings = {"animation.animator": given.animator} | dict(word.split("=", 1) for word in given.set)
    model, mesh = fetch_face_model(ModelStore(vitascope_home())), read_canonical_mesh()
    rows: list[dict[str, Any]] = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else []
    stamp = {"settings": given.set, "machine": platform.machine(), "commit": commit()}
    stamp |= {"date": time.strftime("%Y-%m-%d")}
    with TemporaryDirectory(prefix="vitascope-") as temporary:
        folder = Path(temporary)
        for film in [*given.film, made_film(folder)]:
            if given.sheets is not None:
                given.sheets.mkdir(parents=True, exist_ok=True)
            sheet = None if given.sheets is None else given.sheets / f"{film.stem}_{given.animator}.png"
            row = measured(film, folder, mesh, model, settings, sheet) | stamp
            print(json.dumps(row))
            earlier = {"film": film.name, "animator": row["animator"], "settings": given.set}
            rows = [one for one in rows if any(one[key] != value for key, value in earlier.items())] + [row]
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    TABLE.write_text(table(rows), encoding="utf-8")
    print(table(rows))


if __name__ == "__main__":
    main()
