"""Tests of windows, virtual cameras, NDI and Spout: real if the package is installed, else simulated."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from live_pictures import MADE, make_picture

from vitascope.errors import MissingDependencyError, OutputError
from vitascope.media.sinks.devices import NdiSink, SpoutSink, VirtualCameraSink
from vitascope.media.sinks.sink import Sink
from vitascope.media.sinks.window import WindowSink


@pytest.mark.parametrize(
    ("sink", "package", "line"),
    [
        (WindowSink(), "pygame", "pip install 'vitascope[window]'"),
        (VirtualCameraSink(), "pyvirtualcam", "pip install 'vitascope[virtualcam]'"),
        (NdiSink(), "cyndilib.sender", "pip install 'vitascope[ndi]'"),
    ],
)
def test_a_missing_package_names_its_extra(
    sink: Sink, package: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError) as caught:
        sink.open(MADE)
    assert line in str(caught.value)
    sink.close()


@pytest.fixture
def no_screen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.setenv("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    pygame = pytest.importorskip("pygame")
    yield pygame
    pygame.display.quit()


def test_a_window_shows_pictures_and_hands_on_keys(no_screen: Any) -> None:
    pygame = no_screen
    pressed: list[str] = []
    sink = WindowSink(on_key=pressed.append)
    sink.open(MADE)
    sink.send(make_picture())
    shown = pygame.surfarray.array3d(pygame.display.get_surface())
    assert shown.shape == (64, 48, 3)
    assert shown[10, 10].tolist() == [200, 60, 30]
    pygame.event.post(pygame.event.Event(pygame.KEYDOWN, key=pygame.K_n, unicode="N"))
    pygame.event.post(pygame.event.Event(pygame.KEYDOWN, key=pygame.K_LSHIFT, unicode=""))
    pygame.event.post(pygame.event.Event(pygame.QUIT))
    sink.send(make_picture())
    assert pressed == ["n", "q"]
    sink.close()
    sink.close()


def test_a_window_answers_while_no_picture_comes(no_screen: Any) -> None:
    pygame = no_screen
    pressed: list[str] = []
    sink = WindowSink(on_key=pressed.append)
    sink.open(MADE)
    sink.attend()
    sink.send(make_picture())
    pygame.display.get_surface().fill((0, 0, 0))
    pygame.event.post(pygame.event.Event(pygame.VIDEOEXPOSE))
    pygame.event.post(pygame.event.Event(pygame.KEYDOWN, key=pygame.K_p, unicode="p"))
    sink.attend()
    assert pressed == ["p"]
    assert pygame.surfarray.array3d(pygame.display.get_surface())[10, 10].tolist() == [200, 60, 30]
    sink.close()


def test_a_window_of_another_shape_keeps_the_pictures_proportions(no_screen: Any) -> None:
    pygame = no_screen
    sink = WindowSink()
    sink.open(MADE)
    pygame.display.set_mode((300, 48), pygame.RESIZABLE)
    sink._screen = pygame.display.get_surface()
    sink.send(make_picture())
    shown = pygame.surfarray.array3d(pygame.display.get_surface())
    assert shown[150, 24].tolist() == [200, 60, 30]
    assert shown[10, 24].tolist() == [0, 0, 0]
    sink.close()


def test_without_a_screen_a_window_says_what_works_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "no such driver")
    with pytest.raises(OutputError, match=r"no window can be opened here: .*--sink mjpeg"):
        WindowSink().open(MADE)


class StandInCamera:
    """Simulates the used part of ``pyvirtualcam.Camera``."""

    refuses: str | None = None

    def __init__(self, width: int, height: int, fps: float, *, fmt: object, device: str | None) -> None:
        if self.refuses is not None:
            raise RuntimeError(self.refuses)
        self.arguments = (width, height, fps, fmt, device)
        self.sent: list[np.ndarray] = []
        self.is_closed = False
        StandInCamera.last = self

    def send(self, frame: np.ndarray) -> None:
        self.sent.append(frame)

    def close(self) -> None:
        self.is_closed = True

    last: StandInCamera


@pytest.fixture
def stand_in_camera(monkeypatch: pytest.MonkeyPatch) -> type[StandInCamera]:
    module = ModuleType("pyvirtualcam")
    module.Camera = StandInCamera  # type: ignore[attr-defined]
    module.PixelFormat = type("PixelFormat", (), {"RGB": "raw "})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pyvirtualcam", module)
    monkeypatch.setattr(StandInCamera, "refuses", None)
    return StandInCamera


def test_a_virtual_camera_is_opened_for_the_pictures_and_closed(stand_in_camera: type[StandInCamera]) -> None:
    sink = VirtualCameraSink("/dev/video7")
    sink.open(MADE)
    camera = stand_in_camera.last
    assert camera.arguments == (64, 48, 30.0, "raw ", "/dev/video7")
    picture = make_picture()
    sink.send(picture)
    assert camera.sent[0] is picture.rgb
    sink.close()
    sink.close()
    assert camera.is_closed


def test_a_missing_device_says_how_to_get_one(
    stand_in_camera: type[StandInCamera], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stand_in_camera, "refuses", "'v4l2loopback': no device\n'other': none")
    with pytest.raises(
        OutputError, match=r"modprobe v4l2loopback.*: 'v4l2loopback': no device 'other': none"
    ):
        VirtualCameraSink().open(MADE)


def test_pyvirtualcam_itself_takes_what_the_sink_gives() -> None:
    pyvirtualcam = pytest.importorskip("pyvirtualcam")
    shown: list[np.ndarray] = []

    class Backend(pyvirtualcam.Backend):  # type: ignore[misc, name-defined]
        def __init__(
            self, width: int, height: int, fps: float, fourcc: object, device: object, **_: object
        ) -> None:
            self.size = width, height

        def device(self) -> str:
            return "stand-in"

        def native_fourcc(self) -> None:
            return None

        def send(self, frame: np.ndarray) -> None:
            shown.append(frame.copy())

        def close(self) -> None:
            shown.append(np.zeros(0))

    pyvirtualcam.register_backend("stand-in", Backend)
    sink = VirtualCameraSink()
    sink.open(MADE)
    sink.send(make_picture())
    sink.close()
    np.testing.assert_array_equal(shown[0].reshape(48, 64, 3), make_picture().rgb)


def test_an_ndi_receiver_gets_the_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cyndilib")
    # Without avahi nothing is discovered, so look on this machine.
    settings = {"ndi": {"networks": {"ips": "127.0.0.1"}}}
    (tmp_path / "ndi-config.v1.json").write_text(json.dumps(settings))
    monkeypatch.setenv("NDI_CONFIG_DIR", str(tmp_path))
    from cyndilib.finder import Finder
    from cyndilib.receiver import Receiver
    from cyndilib.video_frame import VideoFrameSync
    from cyndilib.wrapper.ndi_recv import RecvBandwidth, RecvColorFormat

    sink = NdiSink("Vitascope test")
    sink.open(MADE)
    stop = threading.Event()

    def send() -> None:
        while not stop.wait(0.02):
            sink.send(make_picture())

    sender = threading.Thread(target=send)
    sender.start()
    finder = Finder()
    finder.open()
    try:
        deadline = time.monotonic() + 15
        found = None
        while found is None and time.monotonic() < deadline:
            finder.wait_for_sources(1)
            found = next((source for source in finder if "Vitascope test" in source.name), None)
        if found is None:
            pytest.skip("NDI finds no source on this machine's network")
        receiver = Receiver(color_format=RecvColorFormat.BGRX_BGRA, bandwidth=RecvBandwidth.highest)
        frame = VideoFrameSync()
        receiver.frame_sync.set_video_frame(frame)
        receiver.set_source(found)
        got = None
        while got is None and time.monotonic() < deadline:
            if receiver.is_connected():
                receiver.frame_sync.capture_video()
                if min(frame.xres, frame.yres) > 0:
                    got = np.asarray(frame).reshape(frame.yres, frame.xres, 4).copy()
            time.sleep(0.05)
        assert got is not None
        assert got.shape[:2] == (48, 64)
        assert np.abs(got[24, 32].astype(int) - [30, 60, 200, 255]).max() <= 5
    finally:
        stop.set()
        sender.join()
        finder.close()
        sink.close()


class StandInSender:
    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.takes = True

    def setSenderName(self, name: str) -> None:
        self.calls.append(("name", name))

    def sendImage(self, data: np.ndarray, width: int, height: int, gl: int, invert: bool, fbo: int) -> bool:
        self.calls.append(("image", data.shape, width, height, gl, invert, fbo))
        return self.takes

    def setFrameSync(self, name: str) -> None:
        self.calls.append(("sync", name))

    def releaseSender(self) -> None:
        self.calls.append(("release",))


def test_spout_is_for_windows() -> None:
    with pytest.raises(OutputError, match="only exists on Windows"):
        SpoutSink().open(MADE)


def test_spout_is_called_as_its_documentation_says(monkeypatch: pytest.MonkeyPatch) -> None:
    made = StandInSender()
    module = ModuleType("SpoutGL")
    module.SpoutSender = lambda: made  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "SpoutGL", module)
    monkeypatch.setattr("platform.system", lambda: "Windows")
    sink = SpoutSink("face")
    sink.open(MADE)
    sink.send(make_picture())
    made.takes = False
    with pytest.raises(OutputError, match="was not taken"):
        sink.send(make_picture())
    sink.close()
    sink.close()
    assert made.calls == [
        ("name", "face"),
        ("image", (48, 64, 4), 64, 48, 0x1908, False, 0),
        ("sync", "face"),
        ("image", (48, 64, 4), 64, 48, 0x1908, False, 0),
        ("release",),
    ]
