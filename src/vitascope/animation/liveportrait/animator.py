"""LivePortrait behind the animator's port."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np
import torch
from torch import Tensor

from vitascope.animation.face import FaceMotion, RgbPicture, TrackedFace
from vitascope.animation.liveportrait.crop import crop_picture, driver_crop, lip_openness, portrait_crop
from vitascope.animation.liveportrait.paste import Paste
from vitascope.errors import InputError, UsageError
from vitascope.models.liveportrait.keypoints import MotionGains, driven_motion, placed_keypoints
from vitascope.models.liveportrait.motion import RawMotion
from vitascope.models.liveportrait.networks import CROP_SIDE, PAINTED_SIDE, LivePortraitNetworks

__all__ = ["LivePortraitAnimator"]

_SMALLEST_FACE_PIXELS = 32
_OPEN_LIPS = 0.03
"""Lips that are further apart are closed first, or the driver's would add to them."""


@dataclass(slots=True, eq=False)
class _Portrait:
    """What of a portrait the driver does not change."""

    rgb: RgbPicture
    volume: Tensor
    motion: RawMotion
    keypoints: Tensor
    closing: Tensor | None
    """What closes its lips."""
    paste: Paste


@dataclass(slots=True, eq=False)
class _Neutral:
    """The driver at rest, and where its face is looked at from then on."""

    face: TrackedFace
    to_crop: np.ndarray[tuple[int, ...], np.dtype[np.float32]]
    motion: RawMotion


class LivePortraitAnimator:
    """A portrait that follows a driver's picture.

    Reads the driver's picture, not its landmarks: it cannot replay recorded motion. While the driver is lost the
    portrait goes back to its own expression.

    Args:
        networks: Owned, and closed with this.
        gains: How much of the driver's motion the portrait makes.
        stitches: Keep the shoulders where they are; without it the whole square moves with the head.
        release_every: Pictures between releases of unused GPU memory; 0 never releases.
    """

    def __init__(
        self,
        networks: LivePortraitNetworks,
        *,
        gains: MotionGains | None = None,
        stitches: bool = True,
        release_every: int = 0,
    ) -> None:
        self._release_every = release_every
        self._count = 0
        self.gains = gains or MotionGains()
        """May be changed between pictures."""
        self._networks = networks
        self._stitches = stitches
        self._portrait: _Portrait | None = None
        self._neutral: _Neutral | None = None
        self._last_step: Tensor | None = None

    @property
    def name(self) -> str:
        """``liveportrait``."""
        return "liveportrait"

    @property
    def needs_driver_picture(self) -> bool:
        """True."""
        return True

    def set_portrait(self, rgb: RgbPicture, *, face: TrackedFace) -> None:
        """See ``Animator.set_portrait``."""
        if face.size_pixels < _SMALLEST_FACE_PIXELS:
            raise InputError(
                f"the portrait's face is {face.size_pixels:.0f} pixels wide; LivePortrait needs {_SMALLEST_FACE_PIXELS}"
            )
        networks = self._networks
        crop = self._tensor(crop_picture(rgb, portrait_crop(face, CROP_SIDE), CROP_SIDE))
        motion = networks.motion(crop)
        keypoints = placed_keypoints(motion)
        openness = lip_openness(face)
        self._last_step = None
        self._portrait = _Portrait(
            rgb=rgb.copy(),
            volume=networks.appearance(crop),
            motion=motion,
            keypoints=keypoints,
            closing=networks.closed_lips(keypoints, openness) if openness >= _OPEN_LIPS else None,
            paste=Paste(rgb, portrait_crop(face, PAINTED_SIDE), side=PAINTED_SIDE, device=networks.device),
        )

    def animate(self, motion: FaceMotion, *, out: RgbPicture | None = None) -> RgbPicture:
        """See ``Animator.animate``."""
        portrait = self._portrait
        if portrait is None:
            raise UsageError("no portrait was set")
        if out is None:
            out = portrait.rgb.copy()
        else:
            out[...] = portrait.rgb
        with torch.inference_mode():
            driving = self._driven(portrait, motion)
            painted = self._networks.paint(portrait.volume, driving, portrait.keypoints)
            out[portrait.paste.box] = portrait.paste.into(painted).cpu().numpy()
        self._count += 1
        if self._release_every and self._count % self._release_every == 0:
            self._networks.release_idle_memory()
        return out

    def _driven(self, portrait: _Portrait, motion: FaceMotion) -> Tensor:
        if motion.face is None or motion.driver_rgb is None:
            if motion.presence >= 1:
                raise UsageError(
                    "LivePortrait reads the driver's picture, and recorded motion has none; take --animator mesh"
                )
            if self._last_step is None:
                return portrait.keypoints
            return portrait.keypoints + self._last_step * motion.presence
        neutral = self._neutral_of(motion)
        now = self._networks.motion(self._seen(motion.driver_rgb, neutral.to_crop))
        driving = driven_motion(portrait.motion, neutral.motion, now, self.gains)
        if self._stitches:
            driving = self._networks.stitched(portrait.keypoints, driving)
        if portrait.closing is not None:
            driving = driving + portrait.closing
        self._last_step = driving - portrait.keypoints
        return driving

    def _neutral_of(self, motion: FaceMotion) -> _Neutral:
        """The driver's neutral; read anew when another picture was taken for it."""
        face, rgb = motion.neutral_face, motion.neutral_rgb
        if face is None or rgb is None:
            raise UsageError("the motion does not hold the driver's neutral picture")
        if self._neutral is None or self._neutral.face is not face:
            to_crop = driver_crop(face, CROP_SIDE)
            self._neutral = _Neutral(face, to_crop, self._networks.motion(self._seen(rgb, to_crop)))
        return self._neutral

    def _seen(self, rgb: RgbPicture, to_crop: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> Tensor:
        return self._tensor(crop_picture(rgb, to_crop, CROP_SIDE))

    def _tensor(self, crop: RgbPicture) -> Tensor:
        return torch.from_numpy(crop).to(self._networks.device).permute(2, 0, 1)[None].float().div(255)

    def close(self) -> None:
        """Free the networks."""
        self._portrait = self._neutral = None
        self._networks.close()

    def __enter__(self) -> Self:
        """Use as a context manager."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()
