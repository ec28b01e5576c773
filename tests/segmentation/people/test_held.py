"""Tests of keeping things that kept people hold, with a scripted detector of things."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest

from clips import write_clip
from two_people import two_people
from vitascope.config import load_settings
from vitascope.errors import ModelUnavailableError
from vitascope.media.reading.reader import open_video
from vitascope.models import finders
from vitascope.models.network import MatteEstimate, NetworkInput
from vitascope.models.store.store import ModelStore
from vitascope.segmentation import film_run
from vitascope.segmentation.layout import vr_of
from vitascope.segmentation.people import hinted
from vitascope.segmentation.people.held import HeldThings
from vitascope.segmentation.people.kept import KeptPeople
from vitascope.segmentation.segmenter import Segmenter

SIZE = (144, 256)
BLUE = (0.0, 0.6, 1.0)
TEXTURE = cv2.GaussianBlur(np.random.default_rng(0).random((*SIZE, 3), np.float32), (0, 0), 2) * 2 - 0.65


def box(left, top, width, height):
    mask = np.zeros(SIZE, np.float32)
    mask[top : top + height, left : left + width] = 1
    return mask


def scene(n, *, thing_moves=True, with_thing=True, person_left=None):
    """Make frame ``n``: RGB, matte, thing. A person with a blue thing at their side moves right, 2 pixels a frame."""
    left = 40 + 2 * n if person_left is None else person_left
    thing = box(left + 40 if thing_moves else 80, 70, 24, 24)
    person = box(left, 30, 40, 114) * (1 - thing)
    rgb = TEXTURE.copy()
    inner = np.roll(TEXTURE, left, axis=1) + 0.4
    rgb[person > 0] = inner[person > 0]
    if with_thing:
        own = np.roll(TEXTURE, thing.nonzero()[1].min(), axis=1)[thing > 0, :1]
        rgb[thing > 0] = np.float32(BLUE) * (0.7 + own)
    return rgb.transpose(2, 0, 1)[None].clip(0, 1), person[None], thing


def blue(picture):
    """Find everything blue."""
    return (picture[..., 2].astype(int) - picture[..., 0] > 90).astype(np.float32)


def followed(frames, *, find=blue, every=4, share=None, **how):
    things = HeldThings(find, every=every)
    found = None
    for n in range(frames):
        rgb, alpha, thing = scene(n, **how)
        found = things.added(rgb, alpha, share, starts_shot=n == 0)
    return found, thing


def overlap(found, thing):
    return float((found[0] > 0.5)[thing > 0].mean())


def test_a_thing_that_moves_with_who_touches_it_is_held_in_every_frame():
    for frames in (1, 3, 9):
        found, thing = followed(frames)
        assert overlap(found, thing) > 0.9
        assert (found[0] > 0.5)[:, : 40 + 2 * (frames - 1)].sum() == 0
        assert found.shape == (1, *SIZE)
        assert found.dtype == np.float32


def test_what_stays_behind_when_the_person_moves_on_is_not_held():
    found, _ = followed(5, thing_moves=False)
    assert found is None


def test_of_two_things_that_touch_the_one_that_stays_behind_is_not_held():
    def frame(n):
        rgb, alpha, thing = scene(n)
        other = box(96, 46, 24, 24) * (1 - alpha[0]) * (1 - thing)
        own = np.roll(TEXTURE, 33, axis=1)[other > 0, :1]
        rgb[0].transpose(1, 2, 0)[other > 0] = np.clip(np.float32(BLUE) * (0.7 + own), 0, 1)
        return rgb, alpha, thing, other

    things = HeldThings(blue, every=4)
    for n in range(13):
        rgb, alpha, thing, other = frame(n)
        found = things.added(rgb, alpha, None, starts_shot=n == 0)
        if n == 0:  # nobody has moved yet
            assert overlap(found, other) > 0.9
        if n >= 4:
            assert overlap(found, thing) > 0.8
            assert overlap(found, other) < 0.2


@pytest.mark.parametrize("when", ["later", "between looks"])
def test_a_thing_in_which_the_room_is_reflected_is_held_whole(when):
    """Check a polished thing: half of it looks the same for a while, wherever it moves."""
    things = HeldThings(blue, every=4)
    for n in range(17):
        rgb, alpha, _ = scene(n, with_thing=False)
        thing, mirror = box(80 + 2 * n, 60, 40, 40), box(80 + 2 * n, 80, 40, 20)
        own = np.roll(TEXTURE, 2 * n, axis=1)
        if when == "between looks":
            own = np.where(mirror[..., None] > 0, np.roll(TEXTURE, 2 * (n - n % 4), axis=1), own)
        elif n > 4:
            own = np.where(mirror[..., None] > 0, TEXTURE, own)
        rgb[0].transpose(1, 2, 0)[thing > 0] = np.clip(np.float32(BLUE) * (0.7 + own[thing > 0, :1]), 0, 1)
        found = things.added(rgb, alpha * (1 - thing), None, starts_shot=n == 0)
        assert overlap(found, thing) > 0.9


def test_a_thing_far_from_everybody_or_of_somebody_left_out_is_not_held():
    assert followed(1, thing_moves=False, person_left=0)[0] is None
    assert followed(1, share=np.zeros((1, *SIZE), np.float32))[0] is None


def test_a_thing_that_does_not_stand_out_for_a_while_is_carried_on_and_then_let_go():
    looks = []

    def at_first(picture):
        looks.append(0)
        return blue(picture) if len(looks) < 2 else np.zeros(picture.shape[:2], np.float32)

    found, thing = followed(9, find=at_first)
    assert overlap(found, thing) > 0.6  # left by optical flow after 8 frames of a thing of 24 pixels
    looks.clear()
    assert followed(20, find=at_first)[0] is None


def test_nothing_goes_over_a_cut():
    things = HeldThings(blue)
    rgb, alpha, _ = scene(0)
    assert things.added(rgb, alpha, None, starts_shot=True) is not None
    rgb, alpha, _ = scene(1, with_thing=False)
    assert things.added(rgb, alpha, None, starts_shot=True) is None


def test_eyes_are_followed_by_themselves():
    (left, alpha, thing), (right, other, _) = scene(0), scene(0, with_thing=False)
    found = HeldThings(blue).added(
        np.concatenate([left, right]), np.concatenate([alpha, other]), None, starts_shot=True
    )
    assert overlap(found[:1], thing) > 0.9
    assert not found[1].any()


def test_looks_are_cut_to_the_surroundings_of_the_kept():
    sizes = []

    def note(picture):
        sizes.append(picture.shape[:2])
        return blue(picture)

    rgb = np.zeros((1, 3, *SIZE), np.float32)
    HeldThings(note).added(rgb, box(10, 20, 10, 20)[None], None, starts_shot=True)
    assert sizes == [(36, 26)]


class _Without:
    """Leaves out a part, like a region that is never kept."""

    def share_at(self, _, __=None):
        share = np.ones((1, *SIZE), np.float32)
        share[:, 82:] = 0
        return share

    def added_at(self, _):
        return None


@pytest.mark.parametrize("form", ["alpha", "coefficients"])
def test_held_things_are_part_of_the_matte_but_where_a_region_is_never_kept(form):
    rgb, alpha, thing = scene(0)
    if form == "alpha":
        estimate = MatteEstimate(alpha=alpha)
    else:
        estimate = MatteEstimate(
            gain=np.zeros((1, 4, *SIZE), np.float32), offset=np.stack([alpha] * 4, axis=1)
        )
    shown = NetworkInput(size=SIZE, layout="NCHW")
    batch = SimpleNamespace(frames=[SimpleNamespace(pts=0)], starts_shot=[True], images=rgb[None])
    inner = SimpleNamespace(estimate=lambda _: [estimate])

    def matte(*layers):
        link = KeptPeople(inner, layers, things=HeldThings(blue), shown=shown)
        kept = link.estimate(batch)[0]
        return kept.alpha if form == "alpha" else kept.offset[:, -1]

    whole = matte()
    assert whole[0][thing > 0].mean() > 0.9
    assert np.allclose(whole[0][box(40, 30, 30, 100) > 0], 1)
    assert whole.max() <= 1 + 1e-6
    assert not whole[0, :, 120:].any()
    partial = matte(_Without())
    assert not partial[0, 82:].any()
    assert np.allclose(partial[0, :82], whole[0, :82])
    if form == "coefficients":
        assert (estimate.offset[:, 0] == alpha).all()


@pytest.fixture
def film(home: Path, tmp_path: Path) -> Path:
    """Write a video of two people who approach each other.

    The left one holds a blue box, which is dark for the scripted network.
    """

    def paint(n):
        picture = two_people(n)
        picture[30:44, 4 + n : 13 + n] = 0, 20, 120
        return picture

    return write_clip(tmp_path / "in.mkv", width=96, height=64, frame_count=10, paint=paint, codec="ffv1")


def test_the_setting_acts_with_and_without_a_choice_of_people(film, monkeypatch):
    pulled = []

    def pull(_, name, **__):
        if name != "isnet":
            raise ModelUnavailableError(f"model {name!r} could not be fetched (offline)")
        pulled.append(name)
        return Path("isnet.onnx")

    monkeypatch.setattr(ModelStore, "pull", pull)
    monkeypatch.setattr(
        finders, "SalientObjects", lambda *_, **__: SimpleNamespace(find=blue, close=lambda: None)
    )

    def mattes(**settings):
        with Segmenter(settings=settings) as segmenter:
            return np.stack([step.alpha for step in segmenter.stream(film)])

    def box_of(alphas):  # 4 x 7 samples for the network, so motion soon loses it
        return np.mean([alphas[n, 32:42, 6 + n : 11 + n].mean() for n in range(3)])

    everybody = mattes()
    assert box_of(everybody) < 20
    assert not pulled
    held = mattes(**{"people.keep_held": True, "processing.enable_caching": True})
    assert pulled
    assert box_of(held) > 100
    assert np.abs(held[:, :, 30:].astype(int) - everybody[:, :, 30:]).mean() < 2
    assert box_of(mattes(**{"people.keep_held": True, "people.keep": 1})) > 100
    assert box_of(mattes(**{"people.keep_held": True, "people.keep": 2})) < 20


def test_its_network_is_opened_once_for_the_films_of_a_runner_and_closed_with_it(film, home, monkeypatch):
    opened, closed = [], []

    def open_it(path, *, threads):
        opened.append((path, threads))
        return SimpleNamespace(find=blue, close=lambda: closed.append(path))

    path = Path("isnet.onnx")
    monkeypatch.setattr(ModelStore, "pull", lambda _, name: {"isnet": path}[name])
    monkeypatch.setattr(finders, "SalientObjects", open_it)
    loaded = load_settings(flags={"people.keep_held": True, "processing.num_threads": 1})
    with film_run.FilmRunner(loaded, store=ModelStore(home)) as runner:
        assert not opened
        for _ in range(2):
            with runner.open_video(film) as reader, film_run.FilmRun(runner, reader, []):
                assert not closed
        assert opened == [(path, 1)]
    assert closed == [path]


def test_without_its_network_it_is_an_error(film):
    with (
        Segmenter(settings={"people.keep_held": True}) as segmenter,
        pytest.raises(ModelUnavailableError, match="isnet"),
    ):
        next(iter(segmenter.stream(film)))


def test_stretches_that_were_made_without_held_things_are_others(film):
    def reaching(**settings):
        loaded = load_settings(flags=settings).settings
        with open_video(film) as reader:
            return hinted.Keeping(reader, vr_of(reader.info, loaded.video), loaded).reaching_into(0, 1)

    assert reaching() is None
    assert reaching(**{"people.keep_held": True}) is not None
