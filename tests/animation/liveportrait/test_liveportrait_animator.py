"""Tests of the animator with simple networks: pasting, neutral faces, and losing the driver."""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
import pytest
import torch
from portrait_faces import make_face
from simple_networks import SimpleNetworks

from vitascope.animation.face import FaceMotion
from vitascope.animation.liveportrait.animator import LivePortraitAnimator, Paste
from vitascope.animation.liveportrait.crop import portrait_crop
from vitascope.errors import InputError, UsageError


@pytest.fixture
def portrait() -> np.ndarray:
    return np.full((500, 600, 3), 90, np.uint8)


def driver(level: int) -> np.ndarray:
    return np.full((480, 640, 3), level, np.uint8)


def opened(networks: SimpleNetworks, portrait: np.ndarray, **options: int) -> LivePortraitAnimator:
    animator = LivePortraitAnimator(networks, **options)  # type: ignore[arg-type]  # what it uses of them
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
    with pytest.raises(InputError, match="needs at least 32"):
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
    held = animator.animate(FaceMotion(presence=1.0, neutral_face=face, neutral_rgb=driver(51)))
    assert held[250, 300].tolist() == [102, 102, 102]
    half = animator.animate(FaceMotion(presence=0.5))
    assert half[250, 300].tolist() == [51, 51, 51]
    assert animator.animate(FaceMotion(presence=0.0))[250, 300].tolist() == [0, 0, 0]


def test_a_driver_who_comes_back_takes_hold_gently(portrait: np.ndarray) -> None:
    animator = opened(SimpleNetworks(), portrait)
    face = make_face(centre=(320, 240))
    back = FaceMotion(face=face, driver_rgb=driver(153), neutral_face=face, neutral_rgb=driver(51))
    levels = [
        animator.animate(replace(back, presence=presence))[250, 300, 0] for presence in (0, 0.25, 0.5, 1)
    ]
    assert levels == pytest.approx([0, 25.5, 51, 102], abs=1)


@pytest.mark.parametrize("batch_size", [1, 2, 3, 4, 16])
def test_a_batch_makes_what_single_pictures_make(portrait: np.ndarray, batch_size: int) -> None:
    face, anew = make_face(centre=(320, 240)), make_face(centre=(320, 240))
    lit = [
        FaceMotion(face=face, driver_rgb=driver(51 + 20 * step), neutral_face=face, neutral_rgb=driver(51))
        for step in range(6)
    ]
    # Seen, lost in between, with another neutral, and lost at the end.
    motions = [
        FaceMotion(presence=0.25), *lit[:3], FaceMotion(presence=0.5), FaceMotion(presence=0.25), *lit[3:5],
        replace(lit[5], neutral_face=anew, neutral_rgb=driver(101)), FaceMotion(presence=0.5),
    ]  # fmt: skip
    one_by_one = opened(SimpleNetworks(), portrait)
    wanted = [one_by_one.animate(motion) for motion in motions]
    assert len({picture[250, 300, 0] for picture in wanted}) > 5
    networks = SimpleNetworks()
    made = opened(networks, portrait, batch_size=batch_size).animate_batch(motions)
    np.testing.assert_array_equal(np.stack(made), np.stack(wanted))
    # Compiled networks have one size, so the last call is padded.
    assert networks.painted == [batch_size] * -(-len(motions) // batch_size)


def test_no_motion_makes_no_picture(portrait: np.ndarray) -> None:
    assert opened(SimpleNetworks(), portrait, batch_size=4).animate_batch([]) == []


def test_pictures_of_a_batch_belong_to_the_caller(portrait: np.ndarray) -> None:
    first, second = opened(SimpleNetworks(), portrait, batch_size=2).animate_batch(
        [FaceMotion(presence=0)] * 2
    )
    first[...] = 7
    assert second.max() > 7


def test_batches_call_the_networks_less_often(portrait: np.ndarray) -> None:
    networks = SimpleNetworks()
    animator = opened(networks, portrait, batch_size=4)
    face = make_face(centre=(320, 240))
    motion = FaceMotion(face=face, driver_rgb=driver(60), neutral_face=face, neutral_rgb=driver(51))
    before = networks.motions
    animator.animate_batch([motion] * 8)
    assert networks.motions - before == 3  # the neutral, and two batches
    assert networks.painted == [4, 4]


@pytest.mark.parametrize(("batch_size", "released"), [(1, 5), (2, 5), (3, 4), (4, 3)])
def test_idle_memory_is_released_at_intervals_of_pictures(
    portrait: np.ndarray, batch_size: int, released: int
) -> None:
    networks = SimpleNetworks()
    animator = opened(networks, portrait, batch_size=batch_size, release_every=2)
    animator.animate_batch([FaceMotion(presence=0)] * 10)
    assert networks.released == released
    never = SimpleNetworks()
    opened(never, portrait, release_every=0).animate_batch([FaceMotion(presence=0)] * 10)
    assert never.released == 0


def test_recorded_motion_is_refused(portrait: np.ndarray) -> None:
    with pytest.raises(UsageError, match="--animator mesh"):
        opened(SimpleNetworks(), portrait).animate(FaceMotion())


def test_closing_closes_the_networks(portrait: np.ndarray) -> None:
    networks = SimpleNetworks()
    with opened(networks, portrait):
        pass
    assert networks.is_closed
