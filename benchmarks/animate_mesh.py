"""Measure the mesh animator on the CPU: time per frame, frames per second, tracked fidelity, and jitter.

Claims measured here:

- ``speed``:    animator stage alone (p50, p95, CPU time of all threads) on a portrait scaled to 1080 lines, and decode
                + track + animate + convert in the pipeline, without an encoder.
- ``fidelity``: the animated film tracked anew, against the driver: correlation and slope of each channel in which
                the driver moves (standard deviation of 0.05 and more; angles in radians). Left and right are
                also averaged. ``turning`` does the same with authored yaw and pitch of up to 15 degrees.
- ``jitter``:   output of a driver that stands still (one picture with sensor noise), root mean square of all moving
                points, pixels.
- Each row also counts pixels that differ farther from the face than 1.25 times its size, over all frames.

Usage: python benchmarks/animate_mesh.py --driver a.mp4 --driver b.mp4 --portrait p.jpg --portrait q.jpg [--sheets DIR]

Rows go to ``benchmarks/results/animate_mesh.json``; ``--sheets`` writes contact sheets to look at; ``--without-speed``
measures the rest and keeps the rows of speed that are there.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from row_stamp import commit, write_rows
from vitascope.animation.canonical_mesh import CanonicalMesh, read_canonical_mesh
from vitascope.animation.drivers import Driven, VideoDriver
from vitascope.animation.face import FaceMotion, TrackedFace, rotation_from_degrees
from vitascope.animation.mesh.animator import MeshAnimator
from vitascope.animation.mesh.response import steady_reader
from vitascope.animation.motion import MotionEstimator
from vitascope.animation.portrait import Portrait, load_portrait
from vitascope.animation.tracking import FaceTracker, fetch_face_model
from vitascope.config import Settings, vitascope_home
from vitascope.device import available_cores
from vitascope.gpu.pipeline.pipeline import Pipeline
from vitascope.gpu.pipeline.stages import Map, Sink
from vitascope.media.planes import planes_of
from vitascope.models.store.store import ModelStore

RESULTS = Path(__file__).parent / "results" / "animate_mesh.json"
CHANNELS = {
    "jawOpen": ("jawOpen",),
    "mouthSmile": ("mouthSmileLeft", "mouthSmileRight"),
    "mouthSmileLeft": ("mouthSmileLeft",),
    "mouthSmileRight": ("mouthSmileRight",),
    "eyeBlink": ("eyeBlinkLeft", "eyeBlinkRight"),
    "eyeBlinkLeft": ("eyeBlinkLeft",),
    "eyeBlinkRight": ("eyeBlinkRight",),
}
LEAST_STD = 0.05


def open_animator(portrait: Portrait, mesh: CanonicalMesh, model: Path) -> MeshAnimator:
    """Open the animator as ``vitascope animate`` does."""
    animator = MeshAnimator(mesh)
    animator.set_portrait(portrait.rgb, face=portrait.face)
    with steady_reader(model) as read:
        animator.calibrate(read)
    return animator


def driven(path: Path, mesh: CanonicalMesh, model: Path) -> tuple[list[Driven], list[TrackedFace | None]]:
    """Read all motions of a driver, and its faces."""
    motions: list[Driven] = []
    with VideoDriver(path, mesh=mesh, model=model, settings=Settings()) as driver:
        Pipeline([*driver.stages(), Sink("collect", motions.append)]).run()
    return motions, [motion.motion.face for motion in motions]


def scaled(portrait: Portrait, lines: int) -> Portrait:
    """Load a portrait with that many lines."""
    scale = lines / portrait.rgb.shape[0]
    rgb = cv2.resize(portrait.rgb, None, fx=scale, fy=scale, interpolation=cv2.INTER_CUBIC)
    face = TrackedFace(
        landmarks=portrait.face.landmarks * np.float32(scale),
        blendshapes=portrait.face.blendshapes,
        transform=portrait.face.transform,
        picture_size=(rgb.shape[1], rgb.shape[0]),
    )
    return Portrait(np.ascontiguousarray(rgb, np.uint8), face)


def speed_row(portrait: Portrait, driver: Path, mesh: CanonicalMesh, model: Path) -> dict[str, Any]:
    """Measure the time of the stage alone, and the frames per second of everything but the encoder."""
    animator = open_animator(portrait, mesh, model)
    motions, _ = driven(driver, mesh, model)
    out = np.empty_like(portrait.rgb)
    spent = []
    for item in motions[:10]:
        animator.animate(item.motion, out=out)
    cpu_began = time.process_time()
    for item in motions:
        began = time.perf_counter()
        animator.animate(item.motion, out=out)
        spent.append((time.perf_counter() - began) * 1e3)
    cpu_ms = (time.process_time() - cpu_began) * 1e3 / len(motions)
    with VideoDriver(driver, mesh=mesh, model=model, settings=Settings()) as source:
        pipeline = Pipeline(
            [
                *source.stages(),
                Map("animate", lambda item: animator.animate(item.motion)),
                Sink("convert", planes_of),
            ]
        )
        report = pipeline.run()
    return {
        "claim": "speed",
        "portrait_size": [portrait.rgb.shape[1], portrait.rgb.shape[0]],
        "face_height_px": round(portrait.face.size_pixels),
        "animator_ms_p50": round(float(np.percentile(spent, 50)), 2),
        "animator_ms_p95": round(float(np.percentile(spent, 95)), 2),
        "animator_cpu_ms": round(cpu_ms, 2),
        "load_average": round(os.getloadavg()[0], 1),
        "end_to_end_fps": round(len(motions) / report.wall_seconds, 1),
        "stages_ms": {stage.name: round(stage.latency.p50_seconds * 1e3, 2) for stage in report.stages},
        "frames": len(motions),
    }


def track_again(
    animator: MeshAnimator, portrait: Portrait, motions: list[FaceMotion], model: Path
) -> Iterator[Any]:
    """Yield (picture, tracked face) for each motion; the tracker sees the head and its surroundings."""
    left, top, right, bottom = portrait.face.box
    size = portrait.face.size_pixels
    height, width = portrait.rgb.shape[:2]
    part = np.s_[
        int(max(top - size, 0)) : int(min(bottom + size, height)),
        int(max(left - size, 0)) : int(min(right + size, width)),
    ]
    with FaceTracker(model) as tracker:
        for index, motion in enumerate(motions):
            picture = animator.animate(motion)
            yield picture, tracker.track(np.ascontiguousarray(picture[part]), pts_seconds=index / 30)


def compared(driver: np.ndarray, output: np.ndarray) -> dict[str, float]:
    """Compute correlation and slope of one channel."""
    return {
        "driver_std": round(float(driver.std()), 3),
        "correlation": round(float(np.corrcoef(driver, output)[0, 1]), 3),
        "slope": round(float(np.polyfit(driver, output, 1)[0]), 3),
    }


def fidelity_row(
    portrait: Portrait, driver: Path, mesh: CanonicalMesh, model: Path, sheet: Path | None
) -> dict[str, Any]:
    """Track the animated video, and compare it with the driver."""
    animator = open_animator(portrait, mesh, model)
    motions, faces = driven(driver, mesh, model)
    pictures, pairs, changed = [], [], np.zeros(portrait.rgb.shape[:2], bool)
    again = track_again(animator, portrait, [item.motion for item in motions], model)
    for index, (face, (picture, read)) in enumerate(zip(faces, again, strict=True)):
        changed |= (picture != portrait.rgb).any(axis=2)
        if face is not None and read is not None:
            pairs.append((face, read))
        if sheet is not None and index % max(len(motions) // 24, 1) == 0:
            pictures.append(picture)
    channels: dict[str, Any] = {}
    for name, parts in CHANNELS.items():
        series = [
            np.array([np.mean([face.blendshape(part) for part in parts]) for face in side])
            for side in zip(*pairs, strict=True)
        ]
        if series[0].std() >= LEAST_STD:
            channels[name] = compared(*series)
    for axis, name in enumerate(("yaw", "pitch")):
        series = [
            np.radians([face.angles_degrees[axis] for face in side]) for side in zip(*pairs, strict=True)
        ]
        if series[0].std() >= LEAST_STD:
            channels[name] = compared(*series)
    if sheet is not None:
        write_sheet(sheet, pictures, portrait)
    return {
        "claim": "fidelity",
        "frames": len(motions),
        "face_lost": len(motions) - len(pairs),
        "channels": channels,
        "changed_outside_head_pixels": outside_head(changed, portrait),
    }


def outside_head(changed: np.ndarray, portrait: Portrait) -> int:
    """Count changed pixels farther from the face than 1.25 times its size."""
    left, top, right, bottom = portrait.face.box
    width, height = 1.25 * (right - left), 1.25 * (bottom - top)
    changed = changed.copy()
    changed[
        int(max(top - height, 0)) : int(bottom + height), int(max(left - width, 0)) : int(right + width)
    ] = False
    return int(changed.sum())


def turning_row(portrait: Portrait, mesh: CanonicalMesh, model: Path) -> dict[str, Any]:
    """Compare authored yaw and pitch with the tracked ones."""
    animator = open_animator(portrait, mesh, model)
    channels = {}
    for axis, name in enumerate(("yaw", "pitch")):
        angles = 15 * np.sin(np.linspace(0, 4 * np.pi, 80))
        motions = [
            FaceMotion(rotation=rotation_from_degrees(*(a if k == axis else 0 for k in range(3))))
            for a in angles
        ]
        read = [
            face.angles_degrees[axis] for _, face in track_again(animator, portrait, motions, model) if face
        ]
        channels[name] = compared(np.radians(angles[: len(read)]), np.radians(read))
    return {"claim": "turning", "channels": channels}


def jitter_row(portrait: Portrait, driver: Path, mesh: CanonicalMesh, model: Path) -> dict[str, Any]:
    """Measure how much the portrait shakes while the driver stands still."""
    import av

    animator = open_animator(portrait, mesh, model)
    with av.open(str(driver)) as container:
        still = next(container.decode(video=0)).to_ndarray(format="rgb24").astype(np.float32)
    rng = np.random.default_rng(0)
    estimator = MotionEstimator(mesh)
    places = []
    with FaceTracker(model) as tracker:
        for index in range(120):
            picture = np.clip(still + rng.normal(scale=3, size=still.shape), 0, 255).astype(np.uint8)
            face = tracker.track(picture, pts_seconds=index / 30)
            places.append(animator.bent(estimator.update(face, pts_seconds=index / 30)).places)
    shaking = np.array(places[30:]).std(axis=0)
    moving = np.linalg.norm(shaking, axis=1)
    return {
        "claim": "jitter",
        "noise_std_8bit": 3,
        "rms_px": round(float(np.sqrt((moving**2).mean())), 3),
        "worst_point_px": round(float(moving.max()), 3),
    }


def write_sheet(path: Path, pictures: list[np.ndarray], portrait: Portrait) -> None:
    """Draw the heads of some frames side by side."""
    left, top, right, bottom = portrait.face.box
    width, height = right - left, bottom - top
    part = np.s_[
        int(max(top - 0.5 * height, 0)) : int(bottom + 0.35 * height),
        int(max(left - 0.4 * width, 0)) : int(right + 0.4 * width),
    ]
    heads = [
        cv2.resize(picture[part], (300, int(300 * 1.85 * height / (1.8 * width))))
        for picture in pictures[:24]
    ]
    rows = [np.hstack(heads[index : index + 6]) for index in range(0, len(heads) // 6 * 6, 6)]
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), np.vstack(rows)[..., ::-1])


def main() -> None:
    """Measure and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--driver", action="append", type=Path, required=True)
    parser.add_argument("--portrait", action="append", type=Path, required=True)
    parser.add_argument("--sheets", type=Path)
    parser.add_argument(
        "--without-speed",
        action="store_true",
        help="keep the file's rows of speed: of a machine that is busy",
    )
    arguments = parser.parse_args()
    model = fetch_face_model(ModelStore(vitascope_home()))
    mesh = read_canonical_mesh()
    kept = {"speed"} if arguments.without_speed else set()
    earlier = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else []
    rows: list[dict[str, Any]] = [row for row in earlier if row["claim"] in kept]
    for path in arguments.portrait:
        portrait = load_portrait(path, model=lambda: model)
        measured = []
        if not arguments.without_speed:
            measured.append(speed_row(scaled(portrait, 1080), arguments.driver[-1], mesh, model))
        for driver in arguments.driver:
            sheet = arguments.sheets / f"{path.stem}_{driver.stem}.png" if arguments.sheets else None
            measured.append({"driver": driver.name, **fidelity_row(portrait, driver, mesh, model, sheet)})
        measured += [
            turning_row(portrait, mesh, model),
            jitter_row(portrait, arguments.driver[0], mesh, model),
        ]
        for row in measured:
            row |= {"portrait": path.name, "cores": available_cores(), "machine": platform.machine()}
            row |= {"opencv": cv2.__version__, "commit": commit(), "date": time.strftime("%Y-%m-%d")}
            print(json.dumps(row))
        rows += measured
    write_rows(RESULTS, rows)


if __name__ == "__main__":
    main()
