"""Tests of the shipped selfie networks on real pictures: batches, choice by aspect, and the gate's two promises."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import onnx
import pytest
from skimage import data

import vitascope.models
from vitascope.errors import ModelError
from vitascope.models.network import FloatArray, MattingNetwork, StatelessState
from vitascope.models.selfie.selfie import SelfieNetwork, SelfieState, WideFrameChoice

Picture = npt.NDArray[np.uint8]

DATA = Path(vitascope.models.__file__).parent / "data"
GENERAL, LANDSCAPE = DATA / "selfie_segmentation.onnx", DATA / "selfie_segmentation_landscape.onnx"


@pytest.fixture(scope="module")
def gated() -> Iterator[SelfieNetwork]:
    network = SelfieNetwork(GENERAL, LANDSCAPE, threads=2)
    yield network
    network.close()


@pytest.fixture(scope="module")
def ungated() -> Iterator[SelfieNetwork]:
    network = SelfieNetwork(GENERAL, LANDSCAPE, threads=2, gate=False)
    yield network
    network.close()


def prepared(picture: Picture, network: MattingNetwork) -> FloatArray:
    height, width = network.input_for(picture.shape[:2]).size
    return (
        cv2.resize(picture, (width, height), interpolation=cv2.INTER_AREA)[None, None].astype(np.float32)
        / 255
    )


def matte(picture: Picture, network: MattingNetwork) -> FloatArray:
    """Compute alpha of one picture as a separate stream."""
    (estimate,) = network.infer(prepared(picture, network), network.new_state())
    assert estimate.alpha is not None
    return estimate.alpha[0]


def colour(picture: npt.NDArray[np.generic]) -> Picture:
    grey = picture.astype(np.uint8)
    return grey if grey.ndim == 3 else np.repeat(grey[..., None], 3, axis=2)


def test_the_region_chooses_the_network(gated: SelfieNetwork) -> None:
    assert gated.input_for((1080, 1920)).size == (144, 256)
    assert gated.input_for((1080, 1080)).size == (256, 256)
    assert gated.input_for((1920, 1080)).size == (256, 256)
    assert gated.input_for((480, 640)).size == (256, 256)
    assert gated.input_for((1080, 1920)).layout == "NHWC"


def test_a_choice_holds_for_every_region() -> None:
    for choice, size in (("general", (256, 256)), ("landscape", (144, 256))):
        network = SelfieNetwork(GENERAL, LANDSCAPE, threads=1, gate=False, choice=choice)
        assert network.input_for((100, 100)).size == network.input_for((100, 400)).size == size
        network.close()


@pytest.mark.parametrize("region", [(512, 512), (512, 1024)])
def test_a_batch_equals_its_pictures_alone(ungated: SelfieNetwork, region: tuple[int, int]) -> None:
    pictures = [cv2.resize(colour(p), region[::-1]) for p in (data.astronaut(), data.camera(), data.coffee())]
    alone = [matte(picture, ungated) for picture in pictures]
    batch = np.concatenate([prepared(picture, ungated) for picture in pictures], axis=1)
    (together,) = ungated.infer(batch, ungated.new_state())
    assert together.alpha is not None
    np.testing.assert_allclose(together.alpha, alone, atol=1e-5)
    assert together.alpha.min() >= 0
    assert together.alpha.max() <= 1


def test_frames_in_one_call_equal_frames_in_many(gated: SelfieNetwork) -> None:
    person, empty = prepared(data.astronaut(), gated), prepared(colour(data.brick()), gated)
    clip = np.concatenate([empty, empty, person, person, person, empty, empty, person])
    state = gated.new_state()
    together = [estimate.alpha for estimate in gated.infer(clip, state)]
    state = gated.new_state()
    one_by_one = [gated.infer(clip[n : n + 1], state)[0].alpha for n in range(len(clip))]
    np.testing.assert_allclose(together, one_by_one, atol=1e-5)


def test_the_astronaut_is_cut_out(gated: SelfieNetwork) -> None:
    alpha = matte(data.astronaut(), gated)
    assert alpha[40:60, 105:125].mean() > 0.95  # the face
    assert alpha[180:220, 100:140].mean() > 0.9  # the suit
    assert alpha[0:60, 190:250].mean() < 0.1  # the shuttle


def empty_pictures() -> dict[str, Picture]:
    """Make pictures without people; the ungated networks claim up to 90 % of some."""
    names = (
        "brick",
        "chelsea",
        "coffee",
        "coins",
        "grass",
        "gravel",
        "hubble_deep_field",
        "logo",
        "moon",
        "page",
    )
    names += ("cell", "immunohistochemistry", "retina", "rocket", "text", "clock", "horse", "microaneurysms")
    pictures = {name: getattr(data, name)() for name in names}
    pictures["horse"] = pictures["horse"] * np.uint8(255)
    pictures["logo"] = pictures["logo"][..., :3]
    y, x = np.mgrid[0:180, 0:320]
    noise = np.random.default_rng(0).integers(0, 256, (180, 320, 3), np.uint8)
    pictures |= {
        "black": np.zeros((180, 320, 3), np.uint8),
        "white": np.full((180, 320, 3), 255, np.uint8),
        "gradient": np.stack([x * 255 // 319, y * 255 // 179, x * 0 + 96], axis=2),
        "bars": np.repeat((x // 40 % 2 * 255)[..., None], 3, axis=2),
        "disc": np.where(((x - 160) ** 2 + (y - 90) ** 2 < 2500)[..., None], (230, 180, 150), (40, 60, 90)),
        "noise": noise,
        "blotches": cv2.GaussianBlur(noise, (0, 0), 9),
    }
    return {name: colour(picture) for name, picture in pictures.items()}


@pytest.mark.parametrize(("shape", "mistaken"), [("as it is", {"coins"}), ("16:9", {"cell", "logo"})])
def test_empty_frames_stay_empty_but_for_known_mistakes(
    gated: SelfieNetwork, ungated: SelfieNetwork, shape: str, mistaken: set[str]
) -> None:
    """``mistaken`` names what may still fool the gate: coins, a pale blob that fills the frame, a drawn snake."""
    invented, left = [], set()
    for name, picture in empty_pictures().items():
        if shape == "16:9":
            height = picture.shape[1] * 9 // 16
            top = max((picture.shape[0] - height) // 2, 0)
            picture = picture[top : top + height]
        if matte(picture, ungated).mean() > 0.005:
            invented.append(name)
        if matte(picture, gated).max() > 0:
            left.add(name)
    assert len(invented) >= 6  # else this proves nothing
    assert left <= mistaken


@pytest.mark.parametrize("shade", [1.0, 0.3])
def test_an_empty_scene_stays_empty_over_time(gated: SelfieNetwork, shade: float) -> None:
    rng = np.random.default_rng(1)
    scene = cv2.resize(data.coffee()[:, 40:], (256, 256)).astype(np.float32) / 255 * shade
    frames = [np.roll(scene, shift, axis=1) + rng.normal(0, 0.01, scene.shape) for shift in range(24)]
    clip = np.clip(np.stack(frames), 0, 1).astype(np.float32)[:, None]
    assert max(estimate.alpha.max() for estimate in gated.infer(clip, gated.new_state())) == 0


@cache
def astronaut(network: SelfieNetwork) -> tuple[Picture, FloatArray]:
    """Return the astronaut's upper body, and its matte by an ungated network, computed once."""
    picture = data.astronaut()
    mask = cv2.resize(matte(picture, network), (512, 512))
    return picture[:400, 60:360], mask[:400, 60:360]


def astronaut_on(
    scene: Picture, network: SelfieNetwork, *, height: float, x: float
) -> tuple[Picture, FloatArray]:
    """Place the astronaut's upper body, cut out with the ungated network, at the bottom of a scene.

    Returns:
        The picture, and the person's mask in it.
    """
    portrait, mask = astronaut(network)
    tall = round(scene.shape[0] * height)
    wide = round(tall * portrait.shape[1] / portrait.shape[0])
    person = cv2.resize(portrait, (wide, tall), interpolation=cv2.INTER_AREA)
    mask = cv2.resize(mask, (wide, tall), interpolation=cv2.INTER_AREA)
    left = round((scene.shape[1] - wide) * x)
    placed = np.zeros(scene.shape[:2], np.float32)
    placed[-tall:, left : left + wide] = mask
    canvas = np.zeros_like(scene)
    canvas[-tall:, left : left + wide] = person
    picture = scene * (1 - placed[..., None]) + canvas * placed[..., None]
    return picture.astype(np.uint8), placed


def people(kind: str, network: SelfieNetwork) -> list[tuple[Picture, FloatArray]]:
    scenes = [
        colour(data.brick()),
        colour(data.grass()),
        data.rocket(),
        colour(data.moon()),
        colour(data.gravel()),
    ]
    wide = [cv2.resize(scene, (640, 360)) for scene in scenes]
    square = [cv2.resize(scene, (480, 480)) for scene in scenes]
    places = [(scene, x) for scene in (*wide, *square) for x in (0.25, 0.7)]
    if kind == "small":
        return [astronaut_on(scene, network, height=0.35, x=x) for scene, x in places]
    if kind == "dark":
        composed = [astronaut_on(scene, network, height=0.7, x=x) for scene, x in places]
        return [((picture * 0.2).astype(np.uint8), mask) for picture, mask in composed]
    if kind == "seated":  # as at a table: the frame ends half way down the upper body
        composed = [astronaut_on(scene, network, height=0.8, x=x) for scene, x in places]
        return [
            (picture[: round(0.6 * len(picture))], mask[: round(0.6 * len(mask))])
            for picture, mask in composed
        ]
    if kind == "partly seen":
        composed = [astronaut_on(scene, network, height=0.8, x=1.0) for scene, _ in places]
        cut = [round(picture.shape[1] - 0.3 * picture.shape[0]) for picture, _ in composed]
        return [
            (picture[:, :edge], mask[:, :edge]) for (picture, mask), edge in zip(composed, cut, strict=True)
        ]
    camera = colour(data.camera())  # seated, half turned away, grey
    seated = cv2.resize(matte(camera, network), (512, 512))
    return [(camera, seated), (data.astronaut(), cv2.resize(matte(data.astronaut(), network), (512, 512)))]


@pytest.mark.parametrize("kind", ["small", "dark", "partly seen", "seated", "whole"])
def test_people_are_kept(gated: SelfieNetwork, ungated: SelfieNetwork, kind: str) -> None:
    found = kept = 0.0
    for picture, mask in people(kind, ungated):
        before, after = matte(picture, ungated), matte(picture, gated)
        truth = cv2.resize(mask, before.shape[::-1], interpolation=cv2.INTER_AREA)
        found += float((before * truth).sum() / truth.sum())
        kept += float((after * truth).sum() / truth.sum())
    assert kept >= 0.9 * found


def test_a_pan_keeps_the_person_in_every_frame(gated: SelfieNetwork, ungated: SelfieNetwork) -> None:
    frames = []
    for n in range(20):
        picture, _ = astronaut_on(cv2.resize(data.rocket(), (640, 360)), ungated, height=0.7, x=n / 19)
        frames.append(prepared(picture, gated)[0])
    clip = np.stack(frames)
    after = [estimate.alpha for estimate in gated.infer(clip, gated.new_state())]
    before = [estimate.alpha for estimate in ungated.infer(clip, ungated.new_state())]
    np.testing.assert_array_equal(after, before)


def general_on_wide(picture: FloatArray) -> FloatArray:
    """Return what the general network sees in a wide picture, float32 [144, 256, 3], stretched for it."""
    network = SelfieNetwork(GENERAL, LANDSCAPE, threads=2, gate=False, choice="general")
    (estimate,) = network.infer(cv2.resize(picture, (256, 256))[None, None], network.new_state())
    network.close()
    assert estimate.alpha is not None
    return cv2.resize(estimate.alpha[0], (256, 144), interpolation=cv2.INTER_AREA)


def test_a_wide_stream_follows_the_network_that_is_surer(
    gated: SelfieNetwork, ungated: SelfieNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = cv2.resize(data.astronaut()[:288], (640, 360))
    clip = np.repeat(prepared(wide, gated), 3, axis=0)
    landscape, general = matte(wide, ungated), general_on_wide(clip[0, 0])
    assert np.abs(landscape - general).max() > 0.5
    for speaks, expected in (("landscape", landscape), ("general", general)):

        def compare(self: WideFrameChoice, *mattes: FloatArray, chosen: str = speaks) -> None:
            np.testing.assert_allclose(mattes[0][0], landscape, atol=1e-5)
            np.testing.assert_allclose(mattes[1][0], general, atol=1e-5)
            self.claimant = chosen  # type: ignore[assignment]
            self._frames_since = 0

        monkeypatch.setattr(WideFrameChoice, "compare", compare)
        state = gated.new_state()
        assert isinstance(state, SelfieState)
        for estimate in gated.infer(clip, state):
            np.testing.assert_allclose(estimate.alpha[0], expected, atol=1e-5)
        state.reset()
        assert state.wide_choice.claimant == "landscape"


def test_only_the_choice_by_aspect_may_change_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    def compare(self: WideFrameChoice, *mattes: FloatArray) -> None:
        raise AssertionError("both networks were asked")

    monkeypatch.setattr(WideFrameChoice, "compare", compare)
    wide, square = cv2.resize(data.astronaut()[:288], (640, 360)), data.astronaut()
    chosen = SelfieNetwork(GENERAL, LANDSCAPE, threads=1, choice="landscape")
    assert matte(wide, chosen).max() > 0.9
    chosen.close()
    by_aspect = SelfieNetwork(GENERAL, LANDSCAPE, threads=1)
    assert matte(square, by_aspect).max() > 0.9
    by_aspect.close()


def test_pictures_of_another_size_are_refused(gated: SelfieNetwork) -> None:
    with pytest.raises(
        ModelError, match=r"got pictures float32 \[1, 1, 128, 128, 3\], expected .* 256, 256, 3\]"
    ):
        gated.infer(np.zeros((1, 1, 128, 128, 3), np.float32), gated.new_state())
    with pytest.raises(ModelError, match="got pictures uint8"):
        gated.infer(np.zeros((1, 1, 256, 256, 3), np.uint8), gated.new_state())  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="expected float32"):
        gated.infer(np.zeros((1, 0, 256, 256, 3), np.float32), gated.new_state())


def test_a_state_of_another_network_is_refused(gated: SelfieNetwork, ungated: SelfieNetwork) -> None:
    picture = prepared(data.astronaut(), gated)
    with pytest.raises(ModelError, match="made by another network"):
        gated.infer(picture, StatelessState())
    with pytest.raises(ModelError, match="made by another network"):
        ungated.infer(picture, gated.new_state())


def test_files_that_are_not_the_networks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="expected the selfie network"):
        SelfieNetwork(LANDSCAPE, GENERAL)
    text = tmp_path / "text.onnx"
    text.write_text("not a network")
    with pytest.raises(ModelError, match=r"text\.onnx: cannot be read"):
        SelfieNetwork(text, LANDSCAPE)
    with pytest.raises(ModelError, match=r"absent\.onnx: cannot be read"):
        SelfieNetwork(GENERAL, tmp_path / "absent.onnx")


def test_gating_needs_the_summary(tmp_path: Path) -> None:
    model = onnx.load(str(GENERAL))
    for node in model.graph.node:
        for names in (node.input, node.output):
            for index, name in enumerate(names):
                if name == "GlobalAveragePool_85_0":
                    names[index] = "renamed"
    path = tmp_path / "renamed.onnx"
    onnx.save(model, str(path))
    SelfieNetwork(path, LANDSCAPE, gate=False).close()
    with pytest.raises(ModelError, match="gating needs the networks that ship here"):
        SelfieNetwork(path, LANDSCAPE)


def test_closing_twice_is_harmless_and_running_afterwards_is_an_error() -> None:
    network = SelfieNetwork(GENERAL, LANDSCAPE, threads=1)
    picture = prepared(data.astronaut(), network)
    network.close()
    network.close()
    with pytest.raises(ModelError, match="closed"):
        network.infer(picture, network.new_state())
