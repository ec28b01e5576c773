"""Tests of the studio for programs: a token from a file, a described interface, and no page."""

from __future__ import annotations

import re
import sys

import pytest

from vitascope.cli.serve import _token, serve
from vitascope.errors import ConfigError, MissingDependencyError, OutputError, UsageError
from vitascope.studio.openapi import openapi

TOKEN = "a-secret-of-a-program"


@pytest.fixture
def program(serving, films):
    """Return a client that sends a bearer token, and nothing that only browsers send."""
    client = serving(films, token=TOKEN, with_page=False)
    ask = client.ask

    def bare(method, path, body=None, *, token=TOKEN, **headers):
        given = {} if token is None else {"Authorization": f"Bearer {token}"}
        return ask(method, path, body, without=["Cookie", "Origin", "Sec-Fetch-Site"], **given, **headers)

    client.ask = bare
    return client


def test_a_program_cuts_a_film(program, films):
    film = program.film()
    job_id = program.order(film, task="cut", kind="mask")
    program.job(job_id)
    job = program.get(f"/api/jobs/{job_id}").json
    assert (job["state"], job["progress"]) == ("done", None)
    content = program.get(f"/api/jobs/{job_id}/files/0").body
    assert content == (films / "wedding_mask.mp4").read_bytes()
    assert program.ask("DELETE", f"/api/jobs/{job_id}").status == 204
    assert program.get(f"/api/jobs/{job_id}").status == 404


def test_without_the_token_there_is_nothing_and_there_is_no_page(program):
    for token in (None, "", "wrong", TOKEN[:-1], f"{TOKEN}x"):
        assert program.ask("GET", "/api/films", token=token).status == 401
        assert program.ask("POST", "/api/films/x/jobs", {}, token=token).status in (401, 403)
    assert program.get("/").status == program.get("/page/main.js").status == 404
    assert program.get("/api/films", Host="evil.example").status == 421


def test_errors_are_one_line_in_error(program):
    film = program.film()["id"]
    for method, path, status, said in (
        ("GET", "/api/nope", 404, "there is no /api/nope; see /api/openapi.json"),
        (
            "GET",
            f"/api/films/{film}/jobs",
            405,
            f"/api/films/{film}/jobs does not support GET; see /api/openapi.json",
        ),
        ("DELETE", "/api/films", 405, "/api/films does not support DELETE"),
    ):
        answer = program.ask(method, path)
        assert answer.status == status
        assert answer.json["error"].startswith(said)
    refused = program.ask("GET", "/api/films", token="wrong")
    assert (refused.status, "programs send Authorization: Bearer" in refused.json["error"]) == (401, True)
    for order, said in (
        ({"task": "cut", "knd": "key"}, "knd: unknown field; did you mean kind?"),
        ({"task": "cat"}, "task: expected 'people', 'cut' or 'animate'"),
    ):
        answer = program.ask("POST", f"/api/films/{film}/jobs", order)
        assert (answer.status, answer.json["error"]) == (422, said)


def test_a_cut_says_nothing_of_what_was_not_ordered(program):
    film = program.film()
    job = program.order(film, task="cut", kind="mask")
    program.job(job)
    assert program.get(f"/api/jobs/{job}").json["said"] == []


def test_a_browser_of_another_site_gets_no_leave_to_send_the_token(program):
    answer = program.ask(
        "OPTIONS",
        "/api/films",
        token=None,
        Access_Control_Request_Method="GET",
        Access_Control_Request_Headers="authorization",
    )
    assert answer.status >= 400
    assert not [name for name in answer.headers if name.lower().startswith("access-control")]


def test_everything_that_is_answered_is_described_and_nothing_else(program):
    described = program.get("/api/openapi.json").json
    assert described == openapi()
    told = {(method.upper(), path) for path, methods in described["paths"].items() for method in methods}
    starlette = program.opened.server.config.app._app
    there = {
        (method, re.sub(r":int}", "}", route.path))
        for route in starlette.routes
        if hasattr(route, "methods")
        for method in route.methods - {"HEAD"}
    }
    assert told == there
    for path, methods in described["paths"].items():
        for operation in methods.values():
            named = {one["name"] for one in operation["parameters"] if one["in"] == "path"}
            assert named == set(re.findall(r"{(\w+)}", path))
    references = re.findall(r"'\$ref': '#/components/schemas/(\w+)'", str(described))
    assert len(references) == str(described).count("$ref")
    assert set(references) <= set(described["components"]["schemas"])


def test_what_cannot_serve_leaves_no_token(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "vitascope.studio.server", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'vitascope\[studio\]'"):
        serve(tmp_path, token_file=tmp_path / "token")
    with pytest.raises(UsageError, match="must be given together"):
        serve(tmp_path, token_file=tmp_path / "token", tls_cert=tmp_path / "cert.pem")
    assert not (tmp_path / "token").exists()


def test_a_token_is_made_once_and_for_its_owner_alone(tmp_path):
    path = tmp_path / "token"
    made = _token(path)
    assert len(made) >= 32
    assert _token(path) == made
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "content", ["", "short", "two words of a token", "line one and\nline two", "schlüssel" * 3]
)
def test_a_file_that_holds_no_token_is_refused(tmp_path, content):
    path = tmp_path / "token"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match="token"):
        _token(path)
    with pytest.raises(OutputError, match="cannot be created"):
        _token(tmp_path / "nowhere" / "token")
