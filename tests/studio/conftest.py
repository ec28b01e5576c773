"""Fixtures: a running studio with a video of two people, a scripted network, and an HTTP client."""

from __future__ import annotations

import json
import shutil
import threading
import time
from http.client import HTTPConnection
from pathlib import Path

import pytest

from clips import write_clip
from scripted import BrightnessNetwork
from two_people import two_people
from vitascope.config import SettingsSource
from vitascope.errors import ModelUnavailableError
from vitascope.models.store.store import ModelStore
from vitascope.segmentation import film_run
from vitascope.segmentation.matting.networks import ChosenNetwork

FILM = "wedding.mp4"


class Answer:
    def __init__(self, response):
        self.status, self.headers, self.body = response.status, response.headers, response.read()

    @property
    def json(self):
        return json.loads(self.body)


class Client:
    """Sends requests as the studio's own page does, unless told otherwise."""

    def __init__(self, opened):
        self.opened, self.port = opened, opened.listening.getsockname()[1]
        self.token = opened.address.partition("token=")[2].partition("&")[0]
        self.host = f"127.0.0.1:{self.port}"
        self._cookie = None

    @property
    def cookie(self):
        """Exchange the address for the cookie, as a browser sends it: ``name=value``."""
        if self._cookie is None:
            entered = self.ask("GET", f"/?token={self.token}", Cookie="")
            self._cookie = entered.headers["Set-Cookie"].partition(";")[0]
        return self._cookie

    def ask(self, method, path, body=None, *, without=(), **headers):
        own = {
            "Host": self.host,
            "Origin": f"http://{self.host}",
            "Sec-Fetch-Site": "same-origin",
        }
        if "Cookie" not in {*headers, *without}:
            own["Cookie"] = self.cookie
        own.update({name.replace("_", "-"): value for name, value in headers.items()})
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in own.items():
            if name not in without:
                connection.putheader(name, value)
        content = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        if content is not None:
            connection.putheader("Content-Length", str(len(content)))
        connection.endheaders(content)
        answer = Answer(connection.getresponse())
        connection.close()
        return answer

    def get(self, path, **headers):
        return self.ask("GET", path, **headers)

    def film(self, name=FILM):
        (found,) = [film for film in self.get("/api/films").json["films"] if film["name"] == name]
        return self.get(f"/api/films/{found['id']}").json

    def order(self, film, **order):
        answer = self.ask("POST", f"/api/films/{film['id']}/jobs", order)
        assert answer.status == 201, answer.body
        return answer.json["id"]

    def job(self, job_id, *, state="done", seconds=60):
        """Wait until a job has a state, and return it."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            (job,) = [one for one in self.get("/api/jobs").json["jobs"] if one["id"] == job_id]
            if job["state"] in (state, "failed"):
                assert job["state"] == state, job["error"]
                return job
            time.sleep(0.05)
        raise AssertionError(f"it is {job['state']}, not {state}")

    def correct(self, film, hints, revision=None):
        path = f"/api/films/{film['id']}/corrections"
        revision = revision or self.get(path).json["revision"]
        return self.ask("PUT", path, {"hints": hints, "revision": revision, "window": "test"})


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Fetch no networks: a scripted one computes mattes, and none finds faces."""

    def refuse(_, name, **__):
        raise ModelUnavailableError(f"model {name!r} could not be fetched (offline)")

    monkeypatch.setenv("VITASCOPE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(ModelStore, "pull", refuse)

    def scripted(*_, **__):
        network = BrightnessNetwork()
        network.name = "selfie"  # stored mattes are told apart by the network's catalogue entry
        return ChosenNetwork(network, "selfie", None)

    monkeypatch.setattr(film_run, "open_network", scripted)
    return tmp_path / "home"


@pytest.fixture
def films(tmp_path):
    """Create a folder with one video of 20 frames, 24 a second, and other files outside the folder."""
    folder = tmp_path / "films"
    folder.mkdir()
    write_clip(
        folder / FILM,
        width=96,
        height=64,
        frame_count=20,
        paint=two_people,
        codec_options={"crf": "4"},
    )
    (tmp_path / "secret.txt").write_text("do not read")
    write_clip(tmp_path / "private.mp4")
    return folder


EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def portrait(films):
    """Add a portrait with known landmarks, and motion for it, so that no network is needed."""
    for name in ("astronaut.jpg", "astronaut.jpg.landmarks", "talk.motion"):
        shutil.copy(EXAMPLES / name, films)


@pytest.fixture
def portrait_studio(serving, films, portrait):
    """Start a studio with the video, the portrait and the motion."""
    return serving(films, settings=("gpu.device=cpu", "animation.max_side=256", "video.end_seconds=2"))


@pytest.fixture
def serving(home):
    """Return a function that starts studios; they end after the test."""
    from vitascope.studio.server import open_studio  # tests of previews run without a server

    running = []

    def start(*named: Path, settings=("gpu.device=cpu",), port=0, **how):
        opened = open_studio(
            named, SettingsSource(assignments=settings), home=home, host="127.0.0.1", port=port, **how
        )
        thread = threading.Thread(target=opened.run, name="studio")
        thread.start()
        client = Client(opened)
        running.append((opened, thread))
        until = time.monotonic() + 30
        while not opened.server.started and time.monotonic() < until:
            time.sleep(0.01)

        def end():
            opened.server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()

        client.end = end
        return client

    yield start
    for opened, thread in running:
        opened.server.should_exit = True
        thread.join(30)


@pytest.fixture
def studio(serving, films):
    return serving(films)
