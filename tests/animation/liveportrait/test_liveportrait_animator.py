"""The animator around the networks, with networks that answer simply: pasting, neutrals, losing the driver."""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
import pytest
import torch
from portrait_faces import make_face

from vitascope.animation.face import FaceMotion
from vitascope.animation.liveportrait.animator import LivePortraitAnimator
from vitascope.animation.liveportrait.crop import portrait_crop
from vitascope.animation.liveportrait.paste import Paste
from vitascope.errors import InputError, UsageError
from vitascope.models.liveportrait.motion import RawMotion


class SimpleNetworks:
    """Motion is the crop's mean colour; painting gives a flat square as bright as the first keypoint moved."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.motions = 0
        self.closed: list[float] = []
        self.is_closed = False

    def appearance(self, picture: torch.Tensor) -> torch.Tensor:
        return picture

    def motion(self, picture: torch.Tensor) -> RawMotion:
        self.motions += 1
        expression = picture.mean().expand(1, 21, 3).clone()
        zero = torch.zeros(1, 21, 3)
        return RawMotion(zero, expression, torch.ones(1, 1), torch.zeros(1, 3), torch.zeros(1, 3))

    def stitched(self, source: torch.Tensor, driving: torch.Tensor) -> torch.Tensor:
        del source
        return driving

    def closed_lips(self, source: torch.Tensor, openness: float) -> torch.Tensor:
        self.closed.append(openness)
        return torch.zeros_like(source)

    def paint(self, volume: torch.Tensor, driving: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        del volume
        return (driving - source)[0, 0, 0].clamp(0, 1).expand(1, 3, 512, 512)

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def portrait() -> np.ndarray:
    return np.full((500, 600, 3), 90, np.uint8)


def driver(level: int) -> np.ndarray:
    return np.full((480, 640, 3), level, np.uint8)


def opened(networks: SimpleNetworks, portrait: np.ndarray) -> LivePortraitAnimator:
    animator = LivePortraitAnimator(networks)  # type: ignore[arg-type]  # what it uses of them
    animator.set_portrait(portrait, face=make_face())
    return animator


def test_pasting_a_crop_back_changes_nothing_inside_and_outside() -> None:
    rows, columns = np.mgrid[:500, :600]
    picture = np.stack([columns % 256, rows % 256, (rows + columns) // 5], axis=-1).astype(np.uint8)
    picture[..., :2] = picture[..., :2] // 4 + 90  # smooth enough to survive two resamplings
    face = make_face(roll_degrees=15)
    matrix = portrait_crop(face, 512)
    crop = cv2.warpAffine(picture, matrix, (512, 512), borderMode=cv2.BORDER_REPLICATE)
    paste = Paste(picture, matrix, side=512, device=torch.device("cpu"))
    painted = torch.from_numpy(crop).permute(2, 0, 1)[None].float() / 255
    difference = np.abs(paste.into(painted).numpy().astype(int) - picture[paste.box])
    assert np.percentile(difference, 99) <= 2


def test_a_portrait_is_needed_first() -> None:
    with pytest.raises(UsageError, match="no portrait"):
        LivePortraitAnimator(SimpleNetworks()).animate(FaceMotion())  # type: ignore[arg-type]


def test_a_tiny_face_is_refused(portrait: np.ndarray) -> None:
    animator = LivePortraitAnimator(SimpleNetworks())  # type: ignore[arg-type]
    with pytest.raises(InputError, match="needs 32"):
        animator.set_portrait(portrait, face=make_face(size=10))


def test_open_lips_are_closed_once_and_only_where_they_are_open(portrait: np.ndarray) -> None:
    networks = SimpleNetworks()
    opened(networks, portrait)
    assert networks.closed == [pytest.approx(0.1, rel=1e-3)]


def test_difference_to_the_neutral_drives_and_the_rest_stays(portrait: np.ndarray) -> None:
    animator = opened(SimpleNetworks(), portrait)
    face = make_face(centre=(320, 240))
    at_rest = FaceMotion(face=face, driver_rgb=driver(51), neutral_face=face, neutral_rgb=driver(51))
    still = animator.animate(at_rest)
    assert still[250, 300].tolist() == [0, 0, 0]
    moved = animator.animate(replace(at_rest, driver_rgb=driver(153)))
    assert moved[250, 300].tolist() == [102, 102, 102]
    assert moved[5, 5].tolist() == [90, 90, 90]
    assert portrait.min() == portrait.max() == 90
    out = np.empty_like(portrait)
    assert animator.animate(replace(at_rest, driver_rgb=driver(153)), out=out) is out
    np.testing.assert_array_equal(out, moved)


def test_a_neutral_is_read_once(portrait: np.ndarray) -> None:
    networks = SimpleNetworks()
    animator = opened(networks, portrait)
    face = make_face(centre=(320, 240))
    motion = FaceMotion(face=face, driver_rgb=driver(60), neutral_face=face, neutral_rgb=driver(51))
    before = networks.motions
    for _ in range(3):
        animator.animate(motion)
    assert networks.motions - before == 4
    animator.animate(replace(motion, neutral_face=make_face(centre=(320, 240))))
    assert networks.motions - before == 6


def test_a_lost_driver_lets_go(portrait: np.ndarray) -> None:
    animator = opened(SimpleNetworks(), portrait)
    face = make_face(centre=(320, 240))
    animator.animate(FaceMotion(face=face, driver_rgb=driver(153), neutral_face=face, neutral_rgb=driver(51)))
    half = animator.animate(FaceMotion(presence=0.5))
    assert half[250, 300].tolist() == [51, 51, 51]
    assert animator.animate(FaceMotion(presence=0.0))[250, 300].tolist() == [0, 0, 0]


def test_recorded_motion_is_refused(portrait: np.ndarray) -> None:
    with pytest.raises(UsageError, match="--animator mesh"):
        opened(SimpleNetworks(), portrait).animate(FaceMotion())


def test_closing_closes_the_networks(portrait: np.ndarray) -> None:
    networks = SimpleNetworks()
    with opened(networks, portrait):
        pass
    assert networks.is_closed
