"""Tests of the page's requests to the studio: pictures, people, corrections, jobs, results, events."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import signal
import socket
import threading
import time
from contextlib import ExitStack, closing
from http.client import HTTPConnection, IncompleteRead

import av
import cv2
import numpy as np
import pytest
from websockets.sync.client import connect

from clips import write_clip
from scripted import BrightnessNetwork
from two_people import two_people
from vitascope.config import SettingsSource
from vitascope.errors import InputError, OutputError, UsageError
from vitascope.media.metadata.spherical import set_rotation
from vitascope.segmentation.segmenter import Segmenter
from vitascope.studio.server import open_studio


def picture(client, film, seconds=0.0, view="source", **query):
    words = "".join(f"&{name}={value}" for name, value in query.items())
    answer = client.get(f"/api/films/{film['id']}/frame?t={seconds}&view={view}&side=160{words}")
    assert answer.status == 200, answer.body
    assert answer.headers["Content-Type"] == "image/jpeg"
    return cv2.imdecode(np.frombuffer(answer.body, np.uint8), cv2.IMREAD_COLOR_RGB), answer


def matte(client, film, seconds, **query):
    return picture(client, film, seconds, "mask", **query)[0][..., 0]


def seen(mask, who, n):
    """Check that a matte has all of a person or nothing, and return which."""
    middle = 20 + n if who == 1 else 76 - n
    body = mask[24:56, middle - 5 : middle + 5]
    assert body.min() > 200 or body.max() < 40, (who, n, body.min(), body.max())
    return bool(body.min() > 200)


def film_named(client, name):
    """Return the id of a video, which may be unreadable."""
    (found,) = [film["id"] for film in client.get("/api/films").json["films"] if film["name"] == name]
    return found


def looked(client):
    """Return the video after its people were found."""
    film = client.film()
    client.job(client.order(film, task="people"))
    return film


def test_the_page_and_its_parts(studio):
    page = studio.get("/")
    assert b"<title>Vitascope Studio</title>" in page.body
    assert b"{{version}}" not in page.body
    assert studio.get("/page/main.js").headers["Content-Type"].startswith("text/javascript")


def test_a_film_is_described(studio):
    film = studio.film()
    assert (film["width"], film["height"], film["eyes"], film["is_vr"]) == (96, 64, 1, False)
    assert film["seconds"] == pytest.approx(20 / 24)
    assert film["hints"] == "wedding.hints.yaml"


@pytest.mark.parametrize(
    ("seconds", "n"), [(0, 0), (5 / 24, 5), (5.4 / 24, 5), (0.75, 18), (9, 19), (0.1, 2)]
)
def test_a_source_picture_is_the_frame_of_that_time(studio, seconds, n):
    film = studio.film()
    shown, answer = picture(studio, film, seconds)
    assert float(answer.headers["X-Seconds"]) == pytest.approx(n / 24, abs=1e-3)
    assert np.abs(shown.astype(int) - two_people(n)).mean() < 8


def test_a_matted_picture_is_what_the_run_writes(studio, films):
    film = studio.film()
    with Segmenter(settings={"gpu.device": "cpu"}) as segmenter:
        mattes = [step.alpha for step in segmenter.stream(films / "wedding.mp4")]
    for n in (0, 7, 19):
        assert np.abs(matte(studio, film, n / 24).astype(int) - mattes[n]).mean() < 3
    key, _ = picture(studio, film, 0.25, "key", beside="mask")
    assert np.abs(key[2:10, 40:60].astype(int) - (120, 255, 155)).max() < 12


def test_what_was_asked_for_beside_a_picture_needs_no_network(studio, monkeypatch):
    film = studio.film()
    picture(studio, film, 0.25, "key", beside="mask")

    def asked(*_):
        raise AssertionError("the network is asked again")

    monkeypatch.setattr(BrightnessNetwork, "infer", asked)
    for view in ("mask", "key"):
        picture(studio, film, 0.25, view)
    refused = studio.get(f"/api/films/{film['id']}/frame?t=0.5&view=mask&side=160")
    assert refused.status == 500


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("t=x", "t=x"),
        ("t=-1", "t=-1"),
        ("t=nan", "t=nan"),
        ("t=0&view=naked", "view 'naked'"),
        ("t=0&side=17", "side 17"),
        ("t=0&view=replace", "background"),
        ("t=0&yaw=0&pitch=0&fov=400", "fov=400"),
        ("t=0&view=key&key_color=mauvish", "mauvish"),
    ],
)
def test_a_picture_that_cannot_be_made_says_why(studio, query, why):
    answer = studio.get(f"/api/films/{studio.film()['id']}/frame?{query}")
    assert answer.status == 422
    assert why in answer.json["error"]


def test_behind_people_may_be_a_picture_of_the_folder(studio, films):
    assert cv2.imwrite(str(films / "beach.png"), np.full((64, 96, 3), (10, 20, 200), np.uint8))
    (beach,) = studio.get("/api/films").json["pictures"]
    shown, _ = picture(studio, studio.film(), 0, "replace", background=beach["id"])
    assert np.abs(shown[2:10, 40:60].astype(int) - (200, 20, 10)).max() < 16


@pytest.mark.parametrize(
    ("pixels", "turn", "aspect", "size"),
    [
        ("2/1", 0, 3, (53, 160)),
        ("2/1", 90, 1 / 3, (160, 53)),
        ("1/2", 0, 3 / 4, (128, 96)),
        ("20/1", 0, 1.5, (64, 96)),
    ],
)
def test_a_picture_has_the_shape_of_its_pixels_unless_no_pixels_are_so(
    studio, films, pixels, turn, aspect, size
):
    """Cards and thumbnails show pictures unscaled."""
    film = write_clip(films / "wide.mp4", paint=in_quarters, codec_options={"x264-params": f"sar={pixels}"})
    set_rotation(film, turn)
    listed = studio.film("wide.mp4")
    assert listed["aspect"] == pytest.approx(aspect)
    shown = picture(studio, listed)[0]
    assert shown.shape[:2] == size
    quarters = np.array([[0, 80], [160, 240]])
    upright = np.rot90(quarters, -turn // 90).repeat(2, 0).repeat(2, 1)
    height, width = size
    seen = shown[height // 8 :: height // 4, width // 8 :: width // 4, 1][:4, :4]
    assert np.abs(seen.astype(int) - upright).max() < 8


def in_quarters(_: int) -> np.ndarray:
    """Make a frame of 96x64 in four levels of grey."""
    levels = np.array([[0, 80], [160, 240]], np.uint8).repeat(32, 0).repeat(48, 1)
    return np.repeat(levels[..., None], 3, axis=2)


def test_a_film_that_cannot_be_read_is_told_and_the_others_work(studio, films):
    (films / "broken.mp4").write_bytes(b"no film at all" * 100)
    listed = {film["name"]: film for film in studio.get("/api/films").json["films"]}
    answer = studio.get(f"/api/films/{listed['broken.mp4']['id']}")
    assert answer.status == 404
    assert "broken.mp4" in answer.json["error"]
    assert studio.film()["width"] == 96


def test_a_video_that_is_being_sent_goes_on_after_a_restart(studio, serving, films, caplog):
    """Check a browser that reads only what it will show soon: the server ends in the middle of the video."""
    sent = np.random.default_rng(0).bytes(1 << 20) * 24
    (films / "long.mp4").write_bytes(sent)
    media = f"/api/films/{film_named(studio, 'long.mp4')}/media"
    with closing(HTTPConnection("127.0.0.1", studio.port, timeout=30)) as connection:
        connection.request("GET", media, headers={"Cookie": studio.cookie, "Range": "bytes=0-"})
        answer = connection.getresponse()
        assert (answer.status, answer.headers["Content-Length"]) == (206, str(len(sent)))
        assert answer.read(1 << 16) == sent[: 1 << 16]
        studio.end()
        gc.collect()  # an open connection would be reported now
        assert caplog.text == ""
        with pytest.raises((ConnectionError, IncompleteRead)):
            answer.read()
    again = serving(films, port=studio.port)
    at = 1 << 16
    rest = again.get(media, Cookie=studio.cookie, Range=f"bytes={at}-")
    assert (rest.status, rest.headers["Content-Range"]) == (206, f"bytes {at}-{len(sent) - 1}/{len(sent)}")
    assert rest.body == sent[at:]


def test_a_second_ctrl_c_leaves_nothing_out(tmp_path, caplog, monkeypatch):
    opened = open_studio([tmp_path], SettingsSource(), home=tmp_path, host="127.0.0.1", port=0)
    ended, close = [], opened.studio.close
    monkeypatch.setattr(opened.studio, "close", lambda: ended.append(close()))
    serving = threading.Thread(target=opened.run)
    serving.start()
    while not opened.server.started:
        assert serving.is_alive()
        time.sleep(0.01)
    for _ in range(3):
        opened.server.handle_exit(signal.SIGINT, None)
    assert not opened.server.force_exit  # else uvicorn cancels the end of the jobs, and prints a traceback
    serving.join(30)
    assert not serving.is_alive()
    assert len(ended) == 1
    assert caplog.text == ""


def test_a_film_that_changes_under_the_page_is_told(studio, films):
    film = studio.film()
    query = f"/api/films/{film['id']}/frame?t=0&view=source&version={film['version']}"
    assert studio.get(query).status == 200
    write_clip(films / "wedding.mp4", width=64, height=48)
    answer = studio.get(query)
    assert answer.status == 409
    assert answer.json["code"] == "FilmChangedError"
    assert studio.film()["width"] == 64


def test_people_are_found_kept_and_left_out(studio):
    film = studio.film()
    path = f"/api/films/{film['id']}"
    assert studio.get(f"{path}/people").json["looked"] is False
    assert studio.correct(film, {"people": [{"exclude": [1]}]}).status == 200
    refused = studio.get(f"{path}/frame?t=0&view=mask")
    assert refused.status == 422
    assert "its people have not been searched yet" in refused.json["error"]
    looked(studio)
    people = studio.get(f"{path}/people").json
    assert [person["number"] for person in people["people"]] == [1, 2]
    assert studio.get(f"{path}/people/1.png").headers["Content-Type"] == "image/png"
    assert studio.get(f"{path}/people/3.png").status == 404
    at = [studio.get(f"{path}/people/at?t=0.1&x={x}&y=0.6").json["person"] for x in (22 / 96, 74 / 96)]
    assert at == [1, 2]
    mask = matte(studio, film, 2 / 24, revision="a")
    assert (seen(mask, 1, 2), seen(mask, 2, 2)) == (False, True)


def test_a_stroke_acts_in_the_picture_where_it_was_made_and_is_carried(studio):
    film = looked(studio)
    stroke = {"at": 4 / 24, "stroke": [[24 / 96, 0.3], [24 / 96, 0.95]], "radius": 0.12, "do": "remove"}
    assert studio.correct(film, {"marks": [stroke]}).status == 200
    for n in (4, 9):
        mask = matte(studio, film, n / 24, revision="stroke")
        assert (seen(mask, 1, n), seen(mask, 2, n)) == (False, True), n


def test_edges_are_seen_at_once(studio):
    film = studio.film()
    before = matte(studio, film, 0.2, revision="a").mean()
    assert studio.correct(film, {"edges": {"grow_px": 4.0}}).status == 200
    assert matte(studio, film, 0.2, revision="b").mean() > before * 1.1


def test_corrections_are_there_again_tomorrow(serving, films):
    studio = serving(films)
    hints = {"people": [{"exclude": [2]}], "edges": {"feather_px": 1.5}}
    assert studio.correct(studio.film(), hints).status == 200
    studio.end()
    again = serving(films)
    film = again.film()
    found = again.get(f"/api/films/{film['id']}/corrections").json
    assert {name: found["hints"][name] for name in hints} == hints


def test_of_two_windows_the_last_writer_is_told(studio):
    film = studio.film()
    first = studio.get(f"/api/films/{film['id']}/corrections").json["revision"]
    with news(studio) as socket:
        assert studio.correct(film, {"edges": {"grow_px": 1.0}}, first).status == 200
        told = next_news(socket, "corrections")
        assert (told["film"], told["window"]) == (film["id"], "test")
    second = studio.correct(film, {"edges": {"grow_px": 2.0}}, first)
    assert second.status == 409
    assert second.json["code"] == "CorrectionsClashError"


def news(studio):
    return connect(
        f"ws://{studio.host}/api/news",
        additional_headers={"Cookie": studio.cookie},
        origin=f"http://{studio.host}",
    )


def next_news(socket, kind):
    until = time.monotonic() + 30
    while time.monotonic() < until:
        told = json.loads(socket.recv(timeout=30))
        if told["news"] == kind:
            return told
    raise AssertionError(kind)


def test_a_cut_is_what_the_corrections_say_and_the_command_makes_the_same(studio, films):
    film = looked(studio)
    studio.correct(film, {"people": [{"exclude": [1]}]})
    with news(studio) as socket:
        job_id = studio.order(film, task="cut", kind="mask")
        told = [next_news(socket, "jobs") for _ in range(2)]
    assert any(job["id"] == job_id for one in told for job in one["jobs"])
    job = studio.job(job_id)
    assert [file["name"] for file in job["made"]] == ["wedding_mask.mp4"]
    masks = decoded((films / "wedding_mask.mp4").read_bytes())
    assert len(masks) == 20
    assert [(seen(masks[n], 1, n), seen(masks[n], 2, n)) for n in (2, 8)] == [(False, True)] * 2
    hints = {"people.hints": films / "wedding.hints.yaml"}
    with Segmenter(settings={"gpu.device": "cpu", **hints}) as segmenter:
        segmenter.write(films / "wedding.mp4", [("mask", films.parent / "by-command.mp4")])
    by_command = decoded((films.parent / "by-command.mp4").read_bytes())
    assert all(np.array_equal(one, other) for one, other in zip(masks, by_command, strict=True))


def decoded(content):
    with av.open(io.BytesIO(content)) as container:
        return [frame.to_ndarray(format="gray") for frame in container.decode(video=0)]


def test_a_second_cut_keeps_the_first_and_makes_what_a_correction_touches(studio, films):
    film = studio.film()
    first = studio.job(studio.order(film, task="cut", kind="mask"))
    second = studio.job(studio.order(film, task="cut", kind="mask", begin_seconds=0))
    assert "nothing was made again: everything was there from an earlier run" in second["said"]
    assert [job["made"][0]["name"] for job in (first, second)] == ["wedding_mask.mp4", "wedding_mask_2.mp4"]
    assert (films / "wedding_mask.mp4").is_file()
    # Results are not listed as videos to cut.
    assert [one["name"] for one in studio.get("/api/films").json["films"]] == ["wedding.mp4"]


def test_a_result_is_played_in_ranges_and_downloaded(studio, films):
    job = studio.job(studio.order(studio.film(), task="cut", kind="key"))
    path, content = f"/api/jobs/{job['id']}/files/0", (films / "wedding_key.mp4").read_bytes()
    whole = studio.get(path)
    assert (whole.status, whole.body, whole.headers["Accept-Ranges"]) == (200, content, "bytes")
    assert whole.headers["Content-Type"] == "video/mp4"
    part = studio.get(path, Range="bytes=10-19")
    assert (part.status, part.body) == (206, content[10:20])
    assert part.headers["Content-Range"] == f"bytes 10-19/{len(content)}"
    assert studio.get(path, Range=f"bytes={len(content)}-").status == 416
    assert "attachment" in studio.get(f"{path}?download=1").headers["Content-Disposition"]


def test_a_stretch_is_cut(studio, films):
    job_id = studio.order(studio.film(), task="cut", kind="mask", begin_seconds=0.25, end_seconds=0.5)
    studio.job(job_id)
    assert len(decoded((films / "wedding_mask.mp4").read_bytes())) == 6


@pytest.mark.parametrize(
    ("order", "why"),
    [
        ({}, "task"),
        ({"task": "cut", "kind": "statue"}, "kind"),
        ({"task": "cut", "kind": "replace"}, "behind people"),
        ({"task": "cut", "command": "rm -rf /"}, "command"),
        ({"task": "cut", "kind": "key", "film": "/etc/passwd"}, "film"),
        ({"task": "cut", "kind": "key", "end_seconds": float("inf")}, "not JSON"),
        (b'{"task": "cut", "begin_seconds": 1e999}', "begin_seconds"),
        (b'{"task": "cut", "end_seconds": -1e999}', "end_seconds"),
    ],
)
def test_an_order_that_is_none_is_refused(studio, order, why):
    answer = studio.ask("POST", f"/api/films/{studio.film()['id']}/jobs", order)
    assert answer.status == 422
    assert why in answer.json["error"]
    assert studio.get("/api/jobs").json["jobs"] == []


def test_a_job_that_fails_says_why_and_the_next_one_runs(studio):
    film = studio.film()
    bad = studio.order(film, task="cut", kind="mask", begin_seconds=50.0)
    good = studio.order(film, task="cut", kind="mask")
    failed = studio.job(bad, state="failed")
    assert "no frame between" in failed["error"]
    assert studio.job(good)["made"]


def test_the_queue_outlives_a_restart(serving, films, monkeypatch):
    studio = serving(films)
    film = studio.film()
    done = studio.job(studio.order(film, task="cut", kind="mask"))
    monkeypatch.setattr(studio.opened.studio.queue, "_next", lambda: None)
    waiting = studio.order(film, task="cut", kind="overlay")
    studio.end()
    again = serving(films)
    assert again.job(waiting)["made"][0]["name"] == "wedding_overlay.mp4"
    assert again.job(done["id"])["made"] == done["made"]


def test_jobs_of_films_that_nobody_named_wait(serving, films, tmp_path, monkeypatch):
    studio = serving(films)
    monkeypatch.setattr(studio.opened.studio.queue, "_next", lambda: None)
    waiting = studio.order(studio.film(), task="cut", kind="mask")
    studio.end()
    other = tmp_path / "other"
    other.mkdir()
    elsewhere = serving(other)
    time.sleep(0.5)
    (job,) = elsewhere.get("/api/jobs").json["jobs"]
    assert (job["id"], job["state"], job["is_named"]) == (waiting, "waiting", False)
    assert not list(films.glob("*_mask*"))


def test_a_job_is_taken_out_of_the_list_and_its_file_stays(studio, films):
    job = studio.job(studio.order(studio.film(), task="cut", kind="mask"))
    assert studio.ask("DELETE", f"/api/jobs/{job['id']}").status == 204
    assert studio.get("/api/jobs").json["jobs"] == []
    assert (films / "wedding_mask.mp4").is_file()
    assert studio.ask("DELETE", f"/api/jobs/{job['id']}").status == 404


def test_cuts_are_found_and_kept(serving, films):
    def two_shots(n):
        return two_people(n) if n < 24 else np.flip(two_people(n - 24), (0, 1)) // 2 + 100

    write_clip(films / "spliced.mp4", width=96, height=64, frame_count=48, paint=two_shots)
    for _ in range(2):
        studio = serving(films)
        film = studio.film("spliced.mp4")
        until = time.monotonic() + 30
        while time.monotonic() < until:
            found = studio.get(f"/api/films/{film['id']}/cuts").json
            if found["complete"]:
                break
            time.sleep(0.05)
        assert found["cuts"] == pytest.approx([1.0])
        studio.end()


def test_fifty_who_listen_hear_the_same(studio):
    with ExitStack() as stack:
        sockets = [stack.enter_context(news(studio)) for _ in range(50)]
        for socket in sockets:
            next_news(socket, "jobs")
        studio.job(studio.order(studio.film(), task="cut", kind="mask"))
        assert all(next_news(socket, "jobs")["jobs"] for socket in sockets)


def opening(named, home, port=0):
    return open_studio(named, SettingsSource(), home=home, host="127.0.0.1", port=port)


def test_a_second_studio_does_not_run_the_jobs_of_the_first(studio, films, home):
    with pytest.raises(OutputError, match="another studio is using this queue"):
        opening([films], home)


def test_a_job_that_runs_is_stopped_and_leaves_no_file(studio, films, monkeypatch):
    calls = []

    def slow(self, images, state):
        calls.append(len(images))
        time.sleep(0.2)
        return infer(self, images, state)

    infer = BrightnessNetwork.infer
    monkeypatch.setattr(BrightnessNetwork, "infer", slow)
    film = studio.film()
    job_id = studio.order(film, task="cut", kind="mask")
    studio.job(job_id, state="running")
    until = time.monotonic() + 30
    while not calls and time.monotonic() < until:
        time.sleep(0.02)
    assert studio.ask("DELETE", f"/api/jobs/{job_id}").status == 204
    assert studio.job(job_id, state="stopped")["made"] == []
    assert not (films / "wedding_mask.mp4").exists()


def test_a_job_that_the_end_of_the_studio_breaks_off_is_done_the_next_time(serving, films, monkeypatch):
    studio = serving(films)
    running = threading.Event()

    def slow(self, images, state):
        running.set()
        time.sleep(0.1)
        return infer(self, images, state)

    infer = BrightnessNetwork.infer
    monkeypatch.setattr(BrightnessNetwork, "infer", slow)
    job_id = studio.order(studio.film(), task="cut", kind="mask")
    assert running.wait(30)
    studio.end()
    assert not (films / "wedding_mask.mp4").exists()
    monkeypatch.setattr(BrightnessNetwork, "infer", infer)
    assert serving(films).job(job_id)["made"]


def test_answers_do_not_wait_for_acknowledgements(studio, monkeypatch):
    """asyncio only turns Nagle's algorithm off for sockets that it knows to be TCP."""
    connections = []
    original = asyncio.selector_events._SelectorSocketTransport.__init__

    def made(self, loop, sock, *rest, **named):
        original(self, loop, sock, *rest, **named)
        connections.append(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    monkeypatch.setattr(asyncio.selector_events._SelectorSocketTransport, "__init__", made)
    assert studio.get("/api/studio").status == 200
    assert connections
    assert all(connections)


def test_a_port_in_use_is_told(studio, films, home):
    with pytest.raises(OutputError, match=rf"127\.0\.0\.1:{studio.port} cannot be used: .*--port"):
        opening([films], home / "other", studio.port)


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_that_does_not_exist_is_told(films, home, port):
    with pytest.raises(UsageError, match=f"expected a port from 0 to 65535, not {port}"):
        opening([films], home, port)


def test_a_folder_that_is_not_there_is_told(tmp_path, home):
    with pytest.raises(InputError, match="nowhere: no such video or folder"):
        opening([tmp_path / "nowhere"], home)


def test_a_queue_of_another_version_is_left_alone(films, home):
    (home / "studio").mkdir(parents=True)
    (home / "studio" / "queue.json").write_text('{"format": 2}')
    with pytest.raises(OutputError, match=r"queue\.json: is not a queue of this version"):
        opening([films], home)
    assert (home / "studio" / "queue.json").read_text() == '{"format": 2}'


def test_the_queue_is_bounded(studio, monkeypatch):
    monkeypatch.setattr("vitascope.studio.queue._MOST_JOBS", 2)
    queue, film = studio.opened.studio.queue, studio.film()
    monkeypatch.setattr(queue, "_next", lambda: None)
    for _ in range(2):
        studio.order(film, task="cut")
    answer = studio.ask("POST", f"/api/films/{film['id']}/jobs", {"task": "cut"})
    assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
    assert "2 jobs are waiting already" in answer.json["error"]
    with pytest.raises(UsageError):
        queue.find("nothing")


def test_a_fault_of_ours_fails_one_job_and_no_other(studio, monkeypatch):
    def fault(*_, **__):
        raise ZeroDivisionError("nobody thought of it")

    film = studio.film()
    with monkeypatch.context() as patch:
        patch.setattr("vitascope.studio.queue.plan_outputs", fault)
        failed = studio.job(studio.order(film, task="cut", kind="mask"), state="failed")
    assert failed["error"] == "an internal error: ZeroDivisionError: nobody thought of it"
    assert studio.job(studio.order(film, task="cut", kind="mask"))["made"]


def test_whom_words_clicks_and_boxes_mean_is_told(studio, films):
    film = looked(studio)
    path = f"/api/films/{film['id']}"
    (films / "wedding.hints.yaml").write_text(
        "people:\n  - exclude: largest\nmarks:\n  - {at: 0.1, click: [0.23, 0.6], do: remove}\n"
        "  - {at: 0.1, stroke: [[0.5, 0.5]]}\n  - {at: 0.1, box: [0.6, 0.1, 1, 0.9], from: 0.2}\n"
        "  - {at: 0.1, click: [0.5, 0.01]}\n",
        encoding="utf-8",
    )
    told = studio.get(f"{path}/people").json
    marks = studio.get(f"{path}/corrections").json["hints"]["marks"]
    assert told["words"] == {"largest": [1], "pov": []}
    assert told["pointed"] == [
        {"mark": marks[0], "person": 1},
        {"mark": marks[2], "person": 2},
        {"mark": marks[3], "person": 0},
    ]
