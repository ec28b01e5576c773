"""LivePortrait behind the animator's port."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
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
from vitascope.models.liveportrait.motion import MotionGains, RawMotion, driven_motion, placed_keypoints
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
    """As often as a call of the networks makes pictures."""
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
        batch_size: Pictures for each call of the networks. Every call has this size, the last one too: they are
            compiled for it.
        release_every: Pictures between releases of unused GPU memory; 0 never releases.
    """

    def __init__(
        self,
        networks: LivePortraitNetworks,
        *,
        gains: MotionGains | None = None,
        stitches: bool = True,
        batch_size: int = 1,
        release_every: int = 0,
    ) -> None:
        self._batch_size = batch_size
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
        crop = crop_picture(rgb, portrait_crop(face, CROP_SIDE), CROP_SIDE)
        motion = self._motions([crop])
        keypoints = placed_keypoints(motion)
        openness = lip_openness(face)
        self._last_step = None
        self._portrait = _Portrait(
            rgb=rgb.copy(),
            volume=_filled(networks.appearance(self._tensor([crop])), self._batch_size),
            motion=motion,
            keypoints=keypoints,
            closing=networks.closed_lips(keypoints, openness) if openness >= _OPEN_LIPS else None,
            paste=Paste(rgb, portrait_crop(face, PAINTED_SIDE), side=PAINTED_SIDE, device=networks.device),
        )

    def animate(self, motion: FaceMotion, *, out: RgbPicture | None = None) -> RgbPicture:
        """See ``Animator.animate``."""
        (picture,) = self._animated([motion], [out])
        return picture

    def animate_batch(self, motions: Sequence[FaceMotion]) -> list[RgbPicture]:
        """What ``animate`` gives for each of them in turn, with few calls of the networks.

        Args:
            motions: In the order of time, any number.

        Returns:
            uint8 [H, W, 3] each, the caller's own.

        Raises:
            UsageError: No portrait was set, or a motion lacks the driver's picture.
        """
        made: list[RgbPicture] = []
        for start in range(0, len(motions), self._batch_size):
            part = motions[start : start + self._batch_size]
            made += self._animated(part, [None] * len(part))
        return made

    def _animated(self, motions: Sequence[FaceMotion], outs: Sequence[RgbPicture | None]) -> list[RgbPicture]:
        """One call of the networks: not more motions than the batch."""
        portrait = self._portrait
        if portrait is None:
            raise UsageError("no portrait was set")
        made = []
        with torch.inference_mode():
            driving = _filled(self._driven(portrait, motions), self._batch_size)
            painted = self._networks.paint(portrait.volume, driving, portrait.keypoints.expand_as(driving))
            for index, given in enumerate(outs):
                out = np.empty_like(portrait.rgb) if given is None else given
                out[...] = portrait.rgb
                out[portrait.paste.box] = portrait.paste.into(painted[index : index + 1]).cpu().numpy()
                made.append(out)
        before, self._count = self._count, self._count + len(made)
        if self._release_every and before // self._release_every < self._count // self._release_every:
            self._networks.release_idle_memory()
        return made

    def _driven(self, portrait: _Portrait, motions: Sequence[FaceMotion]) -> Tensor:
        """Keypoints [B, 21, 3], one row for each motion."""
        seen = [_is_seen(motion) for motion in motions]
        followed = iter(self._followed(portrait, list(itertools.compress(motions, seen))))
        rows = []
        for motion, is_seen in zip(motions, seen, strict=True):
            if is_seen:
                self._last_step = next(followed) - portrait.keypoints
            row = portrait.keypoints
            if self._last_step is not None:
                # Below 1 not only while a face is lost: it rises from there when the face is found again.
                row = row + self._last_step * motion.presence
            rows.append(row)
        return torch.cat(rows)

    def _followed(self, portrait: _Portrait, motions: Sequence[FaceMotion]) -> list[Tensor]:
        """Keypoints [1, 21, 3] for each motion that can be seen."""
        if not motions:
            return []
        neutrals, crops = [], []
        for motion in motions:
            neutral = self._neutral_of(motion)
            assert motion.driver_rgb is not None  # or it would not be seen
            neutrals.append(neutral.motion)
            crops.append(crop_picture(motion.driver_rgb, neutral.to_crop, CROP_SIDE))
        driving = driven_motion(portrait.motion, RawMotion.joined(neutrals), self._motions(crops), self.gains)
        if self._stitches:
            driving = self._networks.stitched(portrait.keypoints.expand_as(driving), driving)
        if portrait.closing is not None:
            driving = driving + portrait.closing
        return [driving[row : row + 1] for row in range(len(motions))]

    def _neutral_of(self, motion: FaceMotion) -> _Neutral:
        """The driver's neutral; read anew when another picture was taken for it."""
        face, rgb = motion.neutral_face, motion.neutral_rgb
        if face is None or rgb is None:
            raise UsageError("the motion does not hold the driver's neutral picture")
        if self._neutral is None or self._neutral.face is not face:
            to_crop = driver_crop(face, CROP_SIDE)
            self._neutral = _Neutral(face, to_crop, self._motions([crop_picture(rgb, to_crop, CROP_SIDE)]))
        return self._neutral

    def _motions(self, crops: Sequence[RgbPicture]) -> RawMotion:
        """The motions of one batch of crops, or fewer."""
        pictures = _filled(self._tensor(crops), self._batch_size)
        return self._networks.motion(pictures).first(len(crops))

    def _tensor(self, crops: Sequence[RgbPicture]) -> Tensor:
        """Float32 [B, 3, side, side], 0..1."""
        pictures = torch.from_numpy(np.stack(crops)).to(self._networks.device)
        return pictures.permute(0, 3, 1, 2).float().div(255)

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


def _is_seen(motion: FaceMotion) -> bool:
    """False while the driver's face is lost.

    Raises:
        UsageError: A motion that was recorded: there is nothing to look at.
    """
    if motion.face is not None and motion.driver_rgb is not None:
        return True
    # A face that is lost is held before it relaxes: it is as present as ever, and its neutral is known.
    if motion.presence >= 1 and motion.neutral_face is None:
        raise UsageError(
            "LivePortrait reads the driver's picture, and recorded motion has none; take --animator mesh"
        )
    return False


def _filled(batch: Tensor, count: int) -> Tensor:
    """A batch whose last row is repeated until there are so many."""
    missing = count - batch.shape[0]
    return batch if missing == 0 else torch.cat((batch, batch[-1:].expand(missing, *batch.shape[1:])))
