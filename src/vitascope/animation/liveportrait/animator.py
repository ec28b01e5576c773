"""Animates portraits with LivePortrait's networks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch's own documentation uses
from torch import Tensor

from vitascope.animation.face import FaceMotion, FloatArray, RgbPicture, TrackedFace
from vitascope.animation.liveportrait.crop import (
    crop_picture,
    driver_crop,
    lip_openness,
    paste_mask,
    portrait_crop,
)
from vitascope.closing import Closing
from vitascope.errors import InputError, UsageError
from vitascope.models.liveportrait.motion import MotionGains, RawMotion, driven_motion, placed_keypoints
from vitascope.models.liveportrait.networks import CROP_SIDE, PAINTED_SIDE, LivePortraitNetworks


class Paste:
    """Pastes painted squares into one portrait; stores each pixel's place in the square, and its weight.

    Args:
        portrait: uint8 [H, W, 3].
        to_crop: The affine map from the portrait to the square, float32 [2, 3].
        side: Side of the square, pixels.
        device: Device of the painted squares.
    """

    def __init__(self, portrait: RgbPicture, to_crop: FloatArray, *, side: int, device: torch.device) -> None:
        height, width = portrait.shape[:2]
        corners = np.array([[0, 0, 1], [side, 0, 1], [0, side, 1], [side, side, 1]], np.float64)
        corners[:, :2] -= 0.5
        reached = corners @ cv2.invertAffineTransform(to_crop.astype(np.float64)).T
        left, top = (int(max(np.floor(low), 0)) for low in reached.min(axis=0))
        right, bottom = (int(high) + 1 for high in np.ceil(reached.max(axis=0)))
        self.box = (slice(top, min(bottom, height)), slice(left, min(right, width)))
        """Rows and columns of the portrait that change."""
        rows, columns = np.mgrid[self.box]
        x, y = (to_crop[axis, 0] * columns + to_crop[axis, 1] * rows + to_crop[axis, 2] for axis in (0, 1))
        # -1 and 1 are the outer edges of the outer pixels.
        grid = np.stack([(2 * x + 1) / side - 1, (2 * y + 1) / side - 1], axis=-1)
        self._grid = torch.from_numpy(grid.astype(np.float32))[None].to(device)
        mask = torch.from_numpy(paste_mask(side))[None, None].to(device)
        self._share = F.grid_sample(mask, self._grid, align_corners=False)
        kept = torch.from_numpy(portrait[self.box].astype(np.float32)).permute(2, 0, 1)[None].to(device)
        self._kept = kept * (1 - self._share)

    def into(self, painted: Tensor) -> Tensor:
        """Paste a square into the changed part of the portrait.

        Args:
            painted: [1, 3, side, side], RGB 0..1.

        Returns:
            uint8 [h, w, 3] of ``box``, on the same device.
        """
        sampled = F.grid_sample(painted.float(), self._grid, padding_mode="border", align_corners=False)
        blended = sampled * self._share * 255 + self._kept
        return blended[0].permute(1, 2, 0).add(0.5).clamp(0, 255).to(torch.uint8)


_SMALLEST_FACE_PIXELS = 32
_OPEN_LIPS = 0.03
"""Openness above which a portrait's lips are closed first, so that the driver's does not add to it."""


@dataclass(slots=True, eq=False)
class _Portrait:
    """The part of a portrait's state that the driver does not change."""

    rgb: RgbPicture
    volume: Tensor
    """Repeated for each picture of a call."""
    motion: RawMotion
    keypoints: Tensor
    closing: Tensor | None
    """Shift of the keypoints that closes the lips; None if they are closed."""
    paste: Paste


@dataclass(slots=True, eq=False)
class _Neutral:
    """The driver at rest, and the crop for its later pictures."""

    face: TrackedFace
    to_crop: np.ndarray[tuple[int, ...], np.dtype[np.float32]]
    motion: RawMotion


class LivePortraitAnimator(Closing):
    """Animates a portrait by a driver's pictures.

    It reads the driver's picture, not landmarks, so it cannot replay recorded motion. While the driver's face is lost,
    the portrait returns to its own expression.

    Args:
        networks: The networks; owned by this object, and closed with it.
        gains: How much of the driver's motion the portrait follows.
        batch_size: Pictures per call of the networks. All calls have this size, the last one too, because they are
            compiled for it.
        release_every: Pictures between releases of unused GPU memory; 0 never releases.
    """

    def __init__(
        self,
        networks: LivePortraitNetworks,
        *,
        gains: MotionGains | None = None,
        batch_size: int = 1,
        release_every: int = 0,
    ) -> None:
        self._batch_size = batch_size
        self._release_every = release_every
        self._count = 0
        self.gains = gains or MotionGains()
        """May be changed between pictures."""
        self._networks = networks
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
        """See ``PortraitAnimator.set_portrait``."""
        if face.size_pixels < _SMALLEST_FACE_PIXELS:
            raise InputError(
                f"the portrait's face is {face.size_pixels:.0f} pixels wide; LivePortrait needs "
                f"at least {_SMALLEST_FACE_PIXELS}"
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
        """See ``PortraitAnimator.animate``."""
        (picture,) = self._animated([motion], [out])
        return picture

    def animate_batch(self, motions: Sequence[FaceMotion]) -> list[RgbPicture]:
        """Draw several motions, with few calls of the networks.

        Args:
            motions: Any number, in the order of time.

        Returns:
            uint8 [H, W, 3] each, owned by the caller.

        Raises:
            UsageError: No portrait was set, or a motion lacks the driver's picture.
        """
        made: list[RgbPicture] = []
        for start in range(0, len(motions), self._batch_size):
            part = motions[start : start + self._batch_size]
            made += self._animated(part, [None] * len(part))
        return made

    def _animated(self, motions: Sequence[FaceMotion], outs: Sequence[RgbPicture | None]) -> list[RgbPicture]:
        """Draw at most a batch of motions, in one call of the networks."""
        portrait = self._portrait
        if portrait is None:
            raise UsageError("no portrait is set; call set_portrait first")
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
        """Compute keypoints [B, 21, 3], one row for each motion."""
        seen = [_is_seen(motion) for motion in motions]
        followed = iter(self._followed(portrait, list(itertools.compress(motions, seen))))
        rows = []
        for motion, is_seen in zip(motions, seen, strict=True):
            if is_seen:
                self._last_step = next(followed) - portrait.keypoints
            row = portrait.keypoints
            if self._last_step is not None:
                # Presence is also below 1 while it rises after a lost face is found again.
                row = row + self._last_step * motion.presence
            rows.append(row)
        return torch.cat(rows)

    def _followed(self, portrait: _Portrait, motions: Sequence[FaceMotion]) -> list[Tensor]:
        """Compute keypoints [1, 21, 3], one for each motion with a visible face."""
        if not motions:
            return []
        neutrals, crops = [], []
        for motion in motions:
            neutral = self._neutral_of(motion)
            assert motion.driver_rgb is not None  # _is_seen checks
            neutrals.append(neutral.motion)
            crops.append(crop_picture(motion.driver_rgb, neutral.to_crop, CROP_SIDE))
        driving = driven_motion(portrait.motion, RawMotion.joined(neutrals), self._motions(crops), self.gains)
        driving = self._networks.stitched(portrait.keypoints.expand_as(driving), driving)  # shoulders stay
        if portrait.closing is not None:
            driving = driving + portrait.closing
        return [driving[row : row + 1] for row in range(len(motions))]

    def _neutral_of(self, motion: FaceMotion) -> _Neutral:
        """Return the driver's neutral; compute it again when another picture is chosen for it."""
        face, rgb = motion.neutral_face, motion.neutral_rgb
        if face is None or rgb is None:
            raise UsageError("the motion does not hold the driver's neutral picture")
        if self._neutral is None or self._neutral.face is not face:
            to_crop = driver_crop(face, CROP_SIDE)
            self._neutral = _Neutral(face, to_crop, self._motions([crop_picture(rgb, to_crop, CROP_SIDE)]))
        return self._neutral

    def _motions(self, crops: Sequence[RgbPicture]) -> RawMotion:
        """Extract the motions of at most one batch of crops."""
        pictures = _filled(self._tensor(crops), self._batch_size)
        return self._networks.motion(pictures).first(len(crops))

    def _tensor(self, crops: Sequence[RgbPicture]) -> Tensor:
        """Convert crops to float32 [B, 3, side, side], 0..1."""
        pictures = torch.from_numpy(np.stack(crops)).to(self._networks.device)
        return pictures.permute(0, 3, 1, 2).float().div(255)

    def close(self) -> None:
        """Free the networks."""
        self._portrait = self._neutral = None
        self._networks.close()


def _is_seen(motion: FaceMotion) -> bool:
    """False while the driver's face is lost.

    Raises:
        UsageError: The motion is recorded, and has no picture.
    """
    if motion.face is not None and motion.driver_rgb is not None:
        return True
    # A lost face is held before it relaxes: until then it counts as present, and its neutral is known.
    if motion.presence >= 1 and motion.neutral_face is None:
        raise UsageError(
            "LivePortrait reads the driver's picture, and recorded motion has none; use --animator mesh"
        )
    return False


def _filled(batch: Tensor, count: int) -> Tensor:
    """Fill a batch up to ``count`` rows by repeating the last."""
    missing = count - batch.shape[0]
    return batch if missing == 0 else torch.cat((batch, batch[-1:].expand(missing, *batch.shape[1:])))
