"""Check that batches give the same pictures as single frames, in order, and that live runs have no batches."""

from __future__ import annotations

from pathlib import Path

import av
import cv2
import numpy as np
import pytest
from simple_networks import SimpleNetworks

from clips import write_clip
from vitascope.animation import offline
from vitascope.animation.live import run as live_run
from vitascope.animation.live.run import animate_live
from vitascope.animation.offline import AnimateReport, animate_file
from vitascope.config import load_settings
from vitascope.models.liveportrait.networks import LivePortraitNetworks
from vitascope.models.store.store import ModelStore

PORTRAIT = Path(__file__).parents[3] / "examples" / "astronaut.jpg"
FRAMES = 11


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a still face that gets lighter; it is absent at first, and in between."""
    with av.open(str(PORTRAIT)) as container:
        still = next(container.decode(video=0)).to_ndarray(format="rgb24")[:256, 96:352] // 2

    def paint(number: int) -> np.ndarray:
        return np.full_like(still, 40) if number in (0, 5, 6) else (still + 10 * number).astype(np.uint8)

    path = tmp_path_factory.mktemp("driver") / "lighter.mkv"
    return write_clip(path, width=256, height=256, frame_count=FRAMES, paint=paint)


@pytest.fixture
def networks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SimpleNetworks:
    """Replace the networks, so that no weights are needed."""
    made = SimpleNetworks()
    monkeypatch.setattr(LivePortraitNetworks, "open", lambda *_, **__: made)
    for module in (offline, live_run):
        monkeypatch.setattr(module, "vitascope_home", lambda: tmp_path)
    (tmp_path / "liveportrait").mkdir()
    return made


def animate(driver: Path, out: Path, store: ModelStore, *assignments: str) -> AnimateReport:
    settings = ["animation.animator=liveportrait", "animation.neutral=first", *assignments]
    return animate_file(PORTRAIT, driver, out, loaded=load_settings(assignments=settings), store=store)


def pictures(folder: Path) -> np.ndarray:
    return np.stack([cv2.imread(str(path)) for path in sorted(folder.iterdir())])


def test_batches_change_no_picture(
    driver: Path, networks: SimpleNetworks, model_store: ModelStore, tmp_path: Path
) -> None:
    single = animate(driver, tmp_path / "single", model_store)
    assert networks.painted == [1] * FRAMES
    wanted = pictures(tmp_path / "single")
    assert len({picture[150, 220, 0] for picture in wanted}) > 6  # the pictures differ
    networks.painted.clear()
    batched = animate(driver, tmp_path / "batched", model_store, "animation.batch_size=4")
    assert networks.painted == [4, 4, 4]  # the last one with three pictures
    # Except for the last bit of a sum, which depends on how many threads share a batch.
    apart = np.abs(np.subtract(pictures(tmp_path / "batched"), wanted, dtype=np.int16))
    assert apart.max() <= 1
    assert (apart > 0).mean() < 1e-5
    assert single.frame_count == batched.frame_count == FRAMES
    assert single.lost_count == batched.lost_count == 3


def test_of_a_range_the_lower_end_acts(
    driver: Path, networks: SimpleNetworks, model_store: ModelStore, tmp_path: Path
) -> None:
    animate(driver, tmp_path / "made", model_store, "animation.batch_size=3-8")
    assert networks.painted == [3, 3, 3, 3]


def test_live_each_picture_is_animated_at_once(
    driver: Path, networks: SimpleNetworks, model_store: ModelStore
) -> None:
    said: list[str] = []
    settings = ["animation.animator=liveportrait", "animation.batch_size=4"]
    report = animate_live(
        PORTRAIT,
        str(driver),
        ["null"],
        loaded=load_settings(assignments=settings),
        store=model_store,
        on_message=said.append,
    )
    assert "animation.batch_size: 4 is for files; live, each picture is animated at once" in said
    assert report.shown and report.animator == "liveportrait"
    assert networks.painted and set(networks.painted) == {1}
