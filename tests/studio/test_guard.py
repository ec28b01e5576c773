"""Tests of the studio's security, each with an attack."""

from __future__ import annotations

import hmac
import os
import re
import time
from http.client import HTTPConnection
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlencode

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

import vitascope
from clips import write_clip
from vitascope.studio import guard, library
from vitascope.studio.guard import COOKIE_SECONDS, MOST_BODY_BYTES, Entrance, cookie_key

PAGE = Path(vitascope.__file__).parent / "studio" / "page"


def test_nobody_comes_in_without_the_address(studio):
    for path in ("/", "/headset", "/api/films", "/api/jobs", "/page/main.js"):
        assert studio.ask("GET", path, without=["Cookie"]).status == 401
        name, _, value = studio.cookie.partition("=")
        given_at, _, signature = value.partition(".")
        later, swapped = f"{int(given_at) + 1}.{signature}", f"{given_at}.{signature.upper()}"
        for wrong in ("", "x", ".", value[:-1], value + "a", later, swapped, f".{signature}", studio.token):
            assert studio.get(path, Cookie=f"{name}={wrong}").status == 401
        assert studio.get(path, Cookie=f"vitascope-studio-1={value}").status == 401
    assert studio.get("/?token=guessed", Cookie="").status == 401


def test_a_token_opens_the_page_alone_and_no_other_path(studio):
    assert studio.ask("GET", f"/api/films?token={studio.token}", without=["Cookie"]).status == 401


def test_the_token_becomes_a_cookie_that_scripts_and_other_sites_do_not_get(studio):
    answer = studio.ask("GET", f"/?token={studio.token}&film=abc", without=["Cookie"])
    assert answer.status == 303
    assert answer.headers["Location"] == "/?film=abc"
    cookie = answer.headers["Set-Cookie"]
    assert re.search(r"HttpOnly", cookie, re.I)
    assert re.search(r"SameSite=strict", cookie, re.I)


def test_a_browser_that_was_let_in_stays_in_over_a_restart_but_no_other(serving, films):
    first = serving(films)
    port, cookie, token = first.port, first.cookie, first.token
    assert Path(first.opened.studio.queue._path).with_name("cookie.key").stat().st_mode & 0o777 == 0o600
    first.end()
    again = serving(films, port=port)
    assert again.ask("GET", "/api/films", Cookie=cookie).status == 200
    # The address of the first start is no longer valid, nor is a cookie from another home.
    assert again.ask("GET", f"/?token={token}", without=["Cookie"]).status == 401
    again.end()
    (again.opened.studio.queue._path.with_name("cookie.key")).unlink()
    assert serving(films, port=port).ask("GET", "/api/films", Cookie=cookie).status == 401


def test_a_cookie_ends_after_a_week(studio, monkeypatch):
    assert f"Max-Age={COOKIE_SECONDS}" in studio.get(f"/?token={studio.token}").headers["Set-Cookie"]
    now = time.time()
    for seconds, status in ((COOKIE_SECONDS - 60, 200), (COOKIE_SECONDS + 60, 401), (-60, 401)):
        with monkeypatch.context() as patch:
            patch.setattr("vitascope.studio.guard.time.time", lambda at=now + seconds: at)
            assert studio.get("/api/studio").status == status, seconds


@pytest.mark.parametrize("kept", [b"", b"short", b"x" * 33])
def test_a_key_that_is_none_is_made_anew(tmp_path, kept):
    path = tmp_path / "home" / "cookie.key"
    path.parent.mkdir()
    path.write_bytes(kept)
    key = cookie_key(path)
    assert (len(key), key) == (32, cookie_key(path))
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_key_that_others_can_read_is_made_anew(tmp_path):
    path = tmp_path / "cookie.key"
    first = cookie_key(path)
    assert cookie_key(path) == first
    for mode in (0o640, 0o604, 0o620):
        path.chmod(mode)
        key = cookie_key(path)
        assert key != first
        assert path.stat().st_mode & 0o777 == 0o600


def test_a_cookie_of_another_home_or_port_opens_nothing(tmp_path):
    own = Entrance(tmp_path / "own.key", port=8765)
    cookie = own.cookie()
    assert own.knows(cookie)
    assert Entrance(tmp_path / "own.key", port=8765).knows(cookie)
    assert not Entrance(tmp_path / "other.key", port=8765).knows(cookie)
    assert not Entrance(tmp_path / "own.key", port=8766).knows(cookie)


def test_signatures_and_tokens_are_compared_in_constant_time(studio, monkeypatch):
    """A comparison that stops at the first wrong letter reveals how many were right."""
    compared, compare = [], hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda one, two: compared.append(one) or compare(one, two))
    name, _, value = studio.cookie.partition("=")
    given_at = value.partition(".")[0]
    compared.clear()
    assert studio.get("/api/films", Cookie=f"{name}={given_at}.{'0' * 64}").status == 401
    assert b"0" * 64 in compared
    assert studio.get("/?token=guessed", Cookie="").status == 401
    assert b"guessed" in compared
    assert studio.get("/api/films", Cookie="", Authorization="Bearer guessed").status == 401
    assert b"Bearer guessed" in compared


def test_who_removes_the_key_shuts_out_every_browser_at_once(studio):
    assert studio.get("/api/films").status == 200
    stolen, key = studio.cookie, studio.opened.studio.queue._path.with_name("cookie.key")
    key.unlink()
    assert studio.get("/api/films").status == 401
    assert studio.get("/api/films").status == 401
    # The address in the terminal opens it again; the old cookie stays invalid.
    studio._cookie = None
    assert studio.get("/api/films").status == 200
    assert studio.get("/api/films", Cookie=stolen).status == 401
    assert key.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8765", "127.0.0.1.evil.example", "a.b"])
def test_a_site_that_says_it_is_this_machine_is_refused(studio, host):
    """Check DNS rebinding: the browser believes that the attacker's name is 127.0.0.1, and of the same origin."""
    assert studio.get("/api/films", Host=host, Origin=f"http://{host}").status == 421
    assert studio.ask("GET", "/api/films", without=["Host"]).status in (400, 421)


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "http://127.0.0.1:1", "null", "http://127.0.0.1", ""]
)
def test_another_site_changes_nothing(studio, origin):
    film = studio.film()
    for method, path in (
        ("PUT", f"/api/films/{film['id']}/corrections"),
        ("PATCH", f"/api/films/{film['id']}/corrections"),
        ("POST", f"/api/films/{film['id']}/jobs"),
        ("DELETE", "/api/jobs/abc"),
    ):
        assert studio.ask(method, path, {"hints": {}, "revision": "none"}, Origin=origin).status == 403
        assert studio.ask(method, path, {}, without=["Origin"]).status == 403
    assert not list(studio.opened.studio.library.films()[0].path.parent.glob("*.yaml"))


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_site_loads_no_picture_and_no_script(studio, site):
    film = studio.film()
    for path in (f"/api/films/{film['id']}/frame?t=0", "/page/main.js", "/api/films"):
        assert studio.get(path, Sec_Fetch_Site=site).status == 403


def test_another_site_hears_no_news(studio):
    address, cookie = (
        f"ws://127.0.0.1:{studio.port}/api/news",
        studio.cookie,
    )
    for headers, origin in (
        ({"Cookie": cookie}, "http://evil.example"),
        ({"Cookie": cookie}, None),
        ({}, f"http://{studio.host}"),
    ):
        with pytest.raises(InvalidStatus, match="403"):
            connect(address, additional_headers=headers, origin=origin)
    with connect(address, additional_headers={"Cookie": cookie}, origin=f"http://{studio.host}") as socket:
        assert '"news":"jobs"' in socket.recv().replace(" ", "")


def test_the_page_may_load_and_run_nothing_but_itself(studio):
    answer = studio.get("/")
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert "unsafe" not in answer.headers["Content-Security-Policy"]
    for path in ("/", "/headset", "/page/main.js", "/api/films", "/nowhere"):
        headers = studio.get(path).headers
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert "Content-Security-Policy" in headers
    assert "Content-Security-Policy" in studio.ask("GET", "/", without=["Cookie"]).headers


def test_the_page_has_no_script_style_or_address_of_another_place():
    for html in PAGE.glob("*.html"):
        found = re.search(r"<style|\sstyle=|\son\w+=|javascript:|<script(?![^>]+src=)", html.read_text())
        assert not found, html
    for file in PAGE.iterdir():
        text = file.read_text()
        places = set(re.findall(r"https?://[^\s\"'`)]+", text)) - {"http://www.w3.org/2000/svg"}
        assert not places, file
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text
        ), file


def test_the_page_is_small():
    assert sum(file.stat().st_size for file in PAGE.iterdir()) <= 300_000


@pytest.mark.parametrize(
    "path",
    [
        "/page/../server.py",
        "/page/..%2fserver.py",
        "/page/%2e%2e/server.py",
        "/page/..%5cserver.py",
        "/page//etc/passwd",
        "/page/%2fetc%2fpasswd",
        "/api/films/..%2f..%2fprivate.mp4",
        "/api/films/%2e%2e/frame?t=0",
        "/api/films/private.mp4",
        "/api/films//etc/passwd",
    ],
)
def test_no_path_leads_out(studio, path):
    answer = studio.get(path)
    assert answer.status == 404
    assert b"import" not in answer.body
    assert b"root:" not in answer.body


def test_links_out_of_the_folder_are_not_followed(studio, films):
    (films / "link.mp4").symlink_to(films.parent / "private.mp4")
    (films / "folder").symlink_to(films.parent)
    (films / "inside.mp4").symlink_to(films / "wedding.mp4")
    names = {film["name"] for film in studio.get("/api/films").json["films"]}
    assert names == {"wedding.mp4", "inside.mp4"}


def test_a_film_that_becomes_a_link_is_not_opened(studio, films):
    write_clip(films / "other.mp4")
    film = studio.film("other.mp4")
    (films / "other.mp4").unlink()
    (films / "other.mp4").symlink_to(films.parent / "private.mp4")
    assert studio.get(f"/api/films/{film['id']}/frame?t=0&view=source").status == 404
    assert studio.get(f"/api/films/{film['id']}").status == 404


def test_corrections_do_not_follow_a_link(studio, films):
    """Check that a link in place of the hints file is replaced, and its target is not written."""
    victim = films.parent / "secret.txt"
    (films / "wedding.hints.yaml").symlink_to(victim)
    film = studio.film()
    answer = studio.get(f"/api/films/{film['id']}/corrections").json
    assert "do not read" not in answer["error"] + str(answer["hints"])
    studio.correct(film, {"edges": {"grow_px": 1}}, answer["revision"])
    assert victim.read_text() == "do not read"


def test_one_film_is_all_that_may_be_read_where_one_was_named(serving, films):
    write_clip(films / "other.mp4")
    studio = serving(films / "wedding.mp4")
    assert [film["name"] for film in studio.get("/api/films").json["films"]] == ["wedding.mp4"]


@pytest.mark.parametrize(
    ("method", "last", "most"),
    [("POST", "jobs", MOST_BODY_BYTES), ("PATCH", "corrections", 2 * MOST_BODY_BYTES)],
)
def test_what_is_sent_is_bounded(studio, method, last, most, monkeypatch):
    assert guard.MOST_HINTS_BODY_BYTES > guard.MAX_HINTS_BYTES
    monkeypatch.setattr(guard, "MOST_HINTS_BODY_BYTES", 2 * MOST_BODY_BYTES)
    path = f"/api/films/{studio.film()['id']}/{last}"
    assert studio.ask(method, path, b"x" * (most + 1)).status == 413
    # Chunks without a length that never end.
    connection = HTTPConnection("127.0.0.1", studio.port, timeout=30)
    connection.putrequest(method, path, skip_host=True)
    for name, value in {
        "Host": studio.host,
        "Origin": f"http://{studio.host}",
        "Cookie": studio.cookie,
        "Transfer-Encoding": "chunked",
    }.items():
        connection.putheader(name, value)
    connection.endheaders()
    piece, sent = b"10000\r\n" + b"x" * 0x10000 + b"\r\n", 0
    try:
        while sent < 2 * most:
            connection.send(piece)
            sent += 0x10000
        assert connection.getresponse().status >= 400
    except OSError:
        pass  # the server hung up
    finally:
        connection.close()
    assert studio.get("/api/films").status == 200


def test_it_listens_on_loopback_alone(studio):
    assert studio.opened.listening.getsockname()[0] == "127.0.0.1"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000])
def test_no_json_is_an_answer_and_no_fault(studio, body):
    film = studio.film()
    answer = studio.ask("PUT", f"/api/films/{film['id']}/corrections", body)
    assert answer.status == 422
    assert "JSON" in answer.json["error"]


def test_a_file_of_somebody_else_is_no_result(studio, films):
    """Check that a manipulated queue file cannot give access to files outside the named folders."""
    film = studio.film()
    job_id = studio.order(film, task="cut", kind="mask")
    studio.job(job_id)
    (job,) = [one for one in studio.opened.studio.queue.jobs() if one.id == job_id]
    job.made = (films.parent / "secret.txt", Path(os.devnull))
    for number in (0, 1, 2, 99):
        answer = studio.get(f"/api/jobs/{job_id}/files/{number}")
        assert answer.status == 404
        assert b"do not read" not in answer.body


def test_an_upload_goes_into_the_folder_under_a_plain_name_and_replaces_nothing(studio, films):
    content = (films / "wedding.mp4").read_bytes()
    for given, name in (
        ("guests.mp4", "guests.mp4"),
        ("wedding.mp4", "wedding_2.mp4"),
        ("../../private.mp4", "private.mp4"),
        ("..\\private.mp4", "private_2.mp4"),
        ("/etc/cron.d/x.mp4", "x.mp4"),
        (".hidden.mp4", "hidden.mp4"),
        ('a<b>"c%d\r\n.mp4', "a_b__c_d__.mp4"),
        ("é" * 400 + ".mp4", None),
    ):
        answer = studio.ask("POST", f"/api/films?{urlencode({'name': given})}", b"video " + given.encode())
        assert answer.status == 201, answer.body
        assert name in (answer.json["name"], None)
        assert (films / answer.json["name"]).read_bytes() == b"video " + given.encode()
    assert (films / "wedding.mp4").read_bytes() == content
    assert sorted(path.name for path in films.parent.iterdir()) == [
        "films",
        "home",
        "private.mp4",
        "secret.txt",
    ]
    assert not list(films.glob(".*"))


def test_an_upload_follows_no_link_out_of_the_folder(studio, films, tmp_path):
    (films / "link.mp4").symlink_to(tmp_path / "secret.txt")
    (films / "dangling.mp4").symlink_to(tmp_path / "new.txt")
    for name in ("link", "dangling"):
        answer = studio.ask("POST", f"/api/films?name={name}.mp4", b"video")
        assert answer.json["name"] == f"{name}_2.mp4"
    assert (tmp_path / "secret.txt").read_text() == "do not read"
    assert not (tmp_path / "new.txt").exists()


@pytest.mark.parametrize("name", ["", ".mp4", "x.html", "x.yaml", "x.mp4/", "mp4", "x.mp4.exe"])
def test_what_is_no_video_is_not_taken(studio, films, name):
    before = sorted(films.iterdir())
    assert studio.ask("POST", f"/api/films?{urlencode({'name': name})}", b"x").status == 422
    assert sorted(films.iterdir()) == before


def test_an_upload_that_is_too_long_breaks_off_or_comes_from_elsewhere_leaves_nothing(
    studio, films, monkeypatch
):
    before = sorted(films.iterdir())
    assert studio.ask("POST", "/api/films?name=x.mp4", b"x", Origin="http://evil.example").status == 403
    assert studio.ask("POST", "/api/films?name=x.mp4", b"x", without=["Cookie"]).status == 401
    # Chunks without a length.
    assert studio.ask("POST", "/api/films?name=x.mp4", Transfer_Encoding="chunked").status == 411
    monkeypatch.setattr(library, "MOST_UPLOAD_BYTES", 1000)
    assert studio.ask("POST", "/api/films?name=x.mp4", bytes(1001)).status == 422
    assert studio.ask("POST", "/api/films?name=x.mp4", bytes(1000)).status == 201
    (films / "x.mp4").unlink()
    monkeypatch.setattr(library.shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 30))
    assert studio.ask("POST", "/api/films?name=x.mp4", b"x").status == 500
    monkeypatch.undo()
    # The connection ends in the middle.
    connection = HTTPConnection("127.0.0.1", studio.port, timeout=60)
    connection.putrequest("POST", "/api/films?name=x.mp4", skip_host=True)
    for name, value in {
        "Host": studio.host,
        "Cookie": studio.cookie,
        "Origin": f"http://{studio.host}",
        "Content-Length": "100000",
    }.items():
        connection.putheader(name, value)
    connection.endheaders(bytes(50_000))
    until = time.monotonic() + 30
    while not list(films.glob(".upload-*")) and time.monotonic() < until:
        time.sleep(0.01)
    connection.close()
    while list(films.glob(".upload-*")) and time.monotonic() < until:
        time.sleep(0.01)
    assert sorted(films.iterdir()) == before


def test_no_shell_reads_a_name(studio, films, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = "a; touch pwned; $(touch pwned) `touch pwned` | touch pwned & 'x.mp4"
    write_clip(films / name, frame_count=4)
    film = studio.film(name)
    assert studio.get(f"/api/films/{film['id']}/frame?t=0&view=mask").status == 200
    job = studio.job(studio.order(film, task="cut", kind="mask"))
    assert Path(name).stem in job["made"][0]["name"]
    assert not list(tmp_path.rglob("pwned"))
