"""An emulated headset in a browser, and a NumPy reference for its picture."""

from __future__ import annotations

import base64
import hashlib
import io
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest
from driven_page import StudioPage

from vitascope.frames import Frame
from vitascope.vr.packing import unpack_discs
from vitascope.vr.projection import Fisheye

VERSION = "2.5.0"
_SHA256 = "e7eb4efa736c0b52c6917a6ed093f3a287fd7eb59a6d371f6ce857d602f59263"
_SECONDS = 120.0
_INSTALL = """
;(() => {
  const quest = { ...IWER.metaQuest3, supportedSessionModes: MODES };
  const device = new IWER.XRDevice(quest, { stereoEnabled: true, visibilityMask: null });
  window.headset = device;
  device.installRuntime({ forceInstall: true });
})();
"""
_PIXELS = """
(() => {
  // What WebGL has drawn is gone once it was shown: it is read behind whoever drew it. A CPU draws for long, and most
  // of it unseen: while nobody wants to read, ten pictures a second do.
  const frame = window.requestAnimationFrame.bind(window);
  const next = (draw, waited = 0) => {
    if (window.wantsPixels || waited >= 100) frame(draw);
    else setTimeout(() => next(draw, waited + 20), 20);
  };
  window.requestAnimationFrame = (draw) => next((time) => {
    draw(time);
    if (!window.wantsPixels) return;
    const gl = document.querySelector("#people").getContext("webgl2");
    const { drawingBufferWidth: width, drawingBufferHeight: height } = gl;
    const bytes = new Uint8Array(4 * width * height);
    gl.bindFramebuffer(gl.FRAMEBUFFER, null);
    gl.readPixels(0, 0, width, height, gl.RGBA, gl.UNSIGNED_BYTE, bytes);
    let text = "";
    for (let at = 0; at < bytes.length; at += 8192) text += String.fromCharCode(...bytes.subarray(at, at + 8192));
    window.wantsPixels = false;
    window.pixels = { width, height, bytes: btoa(text) };
  });
})();
"""


def emulator(cache: Path) -> str:
    """Return the script of the emulated headset (npm's iwer, MIT), fetched once; skip the test if that fails."""
    kept = cache / f"iwer-{VERSION}.tgz"
    if not kept.is_file():
        try:
            subprocess.run(
                ["npm", "pack", f"iwer@{VERSION}", "--pack-destination", str(cache), "--silent"],
                check=True,
                timeout=_SECONDS,
                capture_output=True,
            )
        except (OSError, subprocess.SubprocessError) as error:
            pytest.skip(f"npm cannot fetch iwer@{VERSION}, which emulates a headset: {error}")
    packed = kept.read_bytes()
    if hashlib.sha256(packed).hexdigest() != _SHA256:
        kept.unlink()
        raise AssertionError(f"iwer@{VERSION} is another package than it was")
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        script = archive.extractfile("package/build/iwer.min.js")
        assert script is not None
        return script.read().decode()


class HeadsetPage(StudioPage):
    """A browser that draws, with an optional headset."""

    def watch_pixels(self) -> None:
        """Let ``pixels`` read what pages draw from now on."""
        self.run_before(_PIXELS)

    def put_on(self, script: str, modes: Sequence[str] = ("immersive-vr", "immersive-ar")) -> None:
        """Give a headset to the pages that open from now on.

        Args:
            script: Result of ``emulator``.
            modes: Sessions that it supports.
        """
        self.run_before(script + _INSTALL.replace("MODES", str(list(modes))))

    def enter(self, address: str, *, width: int, height: int) -> None:
        """Get a studio's cookie from its address, in a window of this size, without drawing its page."""
        self.show("about:blank", width=width, height=height)
        assert self.shown.context.request.get(address).ok

    def pixels(self) -> npt.NDArray[np.uint8]:
        """Return what is drawn next: uint8 [H, W, 4], RGBA, premultiplied, the top row first."""
        self.value(
            "window.pixels = null, window.wantsPixels = true, window.dispatchEvent(new Event('resize'))"
        )
        found: dict[str, Any] = self.until("window.pixels")
        rows = np.frombuffer(base64.b64decode(found["bytes"]), np.uint8)
        return rows.reshape(found["height"], found["width"], 4)[::-1]


def rotation(*, yaw: float = 0.0, pitch: float = 0.0) -> npt.NDArray[np.float64]:
    """Return the rotation of a view, degrees right and up: float64 [3, 3], y up and z backwards (WebXR)."""
    a, b = -np.radians(yaw), np.radians(pitch)
    about_y = np.array([[np.cos(a), 0, np.sin(a)], [0, 1, 0], [-np.sin(a), 0, np.cos(a)]])
    about_x = np.array([[1, 0, 0], [0, np.cos(b), -np.sin(b)], [0, np.sin(b), np.cos(b)]])
    return np.asarray(about_y @ about_x)


def rays_of(
    size: tuple[int, int], *, half_width: float, turn: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return the direction of each pixel of a view, as in ``vitascope.vr.projection``.

    Args:
        size: (height, width) in pixels, square ones.
        half_width: Tangent of half the horizontal angle of view.
        turn: The camera's rotation.
    """
    height, width = size
    x = ((np.arange(width) + 0.5) / width * 2 - 1) * half_width
    y = (1 - (np.arange(height) + 0.5) / height * 2) * half_width * height / width
    there = np.stack(np.broadcast_arrays(x[None], y[:, None], -1.0)).reshape(3, -1)
    return (np.diag([1.0, -1.0, -1.0]) @ turn @ there).reshape(3, height, width)


def unpacked_view(
    frame: Frame, rays: npt.NDArray[np.float64], *, eye: int, fov_degrees: float = 190.0
) -> npt.NDArray[np.float32]:
    """Compute what one eye sees of a packed picture: float32 [H, W, 4], RGBA 0..1, premultiplied.

    Args:
        frame: 2E x E samples.
        rays: From ``rays_of``.
        eye: 0 left, 1 right.
        fov_degrees: Of the fisheye eyes.
    """
    side = frame.height
    x, y = Fisheye(fov_degrees).project(rays)
    rgb = frame.to_rgb(dtype="float32")[:, eye * side : (eye + 1) * side]
    tile = unpack_discs(frame)[eye]

    def read(picture: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        height, width = picture.shape[:2]
        at = [np.nan_to_num(places * n - 0.5).astype(np.float32) for places, n in ((x, width), (y, height))]
        made = cv2.remap(
            np.ascontiguousarray(picture), *at, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE
        )
        return np.asarray(made, np.float32)

    alpha = np.where(np.isnan(x), 0, read(tile)).astype(np.float32)
    return np.dstack([read(rgb) * alpha[..., None], alpha])
