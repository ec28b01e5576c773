"""The complete files that are damaged: small ones of every kind that Vitascope reads."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
import onnx
from onnx import TensorProto, helper

from clips import write_clip
from photographs import astronaut

__all__ = ["FRAMES", "GOP_FRAMES", "frame_count", "make_victims"]

FRAMES, GOP_FRAMES = 24, 6
_SETTINGS = """\
model:
  batch_size: 2
edges:
  threshold: [0.1, 0.9]
  grow_px: -0.5
  feather_px: 1.5
video:
  stereo: auto
  scene_cut_threshold: 0.35
output:
  kinds: [key]
  crf: 20
  key_color: "#00b140"
pipeline:
  stages:
    decode:
      threads: 1
"""
_CONTAINERS = {
    "h264.mp4": {"codec": "libx264", "audio": "aac", "codec_options": {"g": "6"}},
    "h264.mkv": {"codec": "libx264", "codec_options": {"g": "6"}},
    "h264.ts": {"codec": "libx264", "codec_options": {"g": "6"}},
    "h264.flv": {"codec": "libx264", "codec_options": {"g": "6"}},
    "hevc.mp4": {"codec": "libx265", "codec_options": {"x265-params": "log-level=none:keyint=6"}},
    "mpeg4.avi": {"codec": "mpeg4"},
    "vp9.webm": {"codec": "libvpx-vp9", "codec_options": {"g": "6", "deadline": "realtime"}},
    "loop.gif": {"codec": "gif", "pixel_format": "rgb8"},
    "prores.mov": {"codec": "prores_ks", "pixel_format": "yuv422p10le"},
}


def make_victims(folder: Path) -> dict[str, list[Path]]:
    """Write all of them; by kind: ``video``, ``picture``, ``settings``, ``motion``, ``network``."""
    folder.mkdir(parents=True, exist_ok=True)
    videos = [
        write_clip(
            folder / name,
            width=64,
            height=48,
            frame_count=FRAMES,
            frame_rate=Fraction(25),
            paint=_paint,
            **how,
        )
        for name, how in _CONTAINERS.items()
    ]
    picture = astronaut()[:120, 150:310]
    pictures = []
    for suffix in ("png", "jpg", "webp", "tiff", "bmp"):
        pictures.append(folder / f"portrait.{suffix}")
        cv2.imwrite(str(pictures[-1]), picture[..., ::-1])
    for name, channels in (
        ("clear.png", picture[..., [2, 1, 0, 0]]),
        ("deep.png", picture.astype("u2") * 257),
    ):
        pictures.append(folder / name)
        cv2.imwrite(str(pictures[-1]), channels)
    settings = folder / "settings.yaml"
    settings.write_text(_SETTINGS, encoding="utf-8")
    return {
        "video": videos,
        "picture": pictures,
        "settings": [settings],
        "motion": [_motion(folder / "talk.motion")],
        "network": [_network(folder / "net.onnx")],
    }


def _paint(index: int) -> np.ndarray:
    return np.ascontiguousarray(np.roll(astronaut()[:96:2, 160:288:2], index, axis=1))


def _motion(path: Path) -> Path:
    whole = (Path(__file__).parents[2] / "examples" / "talk.motion").read_bytes()
    # Its header and first rows are enough to damage, and make a try short.
    path.write_bytes(whole[:20_000])
    return path


def _network(path: Path) -> Path:
    """Build a matte network of one convolution and a sigmoid."""
    weight = helper.make_tensor("w", TensorProto.FLOAT, [1, 3, 3, 3], np.full(27, 0.1, np.float32))
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Sigmoid", ["c"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 32, 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, 32, 32])],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(path))
    return path


def frame_count(path: Path) -> int:
    """Count the frames that decode."""
    with av.open(str(path)) as container:
        return sum(1 for _ in container.decode(video=0))
