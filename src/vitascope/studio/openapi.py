"""The interface of the studio's server as OpenAPI 3.1."""

from __future__ import annotations

from typing import Any, Final, Literal

from vitascope import __version__
from vitascope.config.hints import HintChanges, Hints
from vitascope.studio.guard import UPLOAD
from vitascope.studio.queue import Order
from vitascope.studio.still_frames import Pointed

_FILM = "Id of a video, as `GET /api/films` gives it."
_NUMBERS: Final = {
    "t": "Time in seconds from the video's first picture.",
    "x": "Share of the width of an eye's upright picture, 0 to 1.",
    "y": "Share of its height, 0 to 1.",
}
_FRAME: Final = {
    "t": _NUMBERS["t"],
    "view": "source, mask, key, blur, replace, overlay or cutout.",
    "beside": "Further views of the same frame that will be requested, separated by commas.",
    "eye": "left or right.",
    "side": "Longest side in pixels: 160, 480, 640, 960, 1280 or 1920.",
    "yaw": "With pitch and fov: direction of view, in degrees; for VR videos.",
    "pitch": "Degrees up.",
    "fov": "Width of the view, in degrees, 30 to 120.",
    "background": "Id of a picture, for the view replace.",
    "key_color": "For the view key: #78FF9B or a name.",
    "version": "Version of the video, as `GET /api/films/{film}` gives it; another one is answered with 409.",
    "revision": "Revision of the corrections, so that pictures of older ones are not returned.",
}
_ANIMATED: Final = {
    "portrait": "Id of a picture.",
    "t": _NUMBERS["t"],
    "expression": "Strength of the facial movements, 0 to 4; 1 is the driver's own.",
    "pose": "Strength of the head's movements, 0 to 4.",
    "side": "Longest side in pixels, 16 to 1920.",
}


def openapi() -> dict[str, Any]:
    """The description of the interface, as plain data."""
    place = "#/components/schemas/{model}"
    schemas = {
        one.__name__: one.model_json_schema(ref_template=place)
        for one in (Order, Hints, HintChanges, Pointed)
    }
    definitions = {
        name: schema for one in schemas.values() for name, schema in one.pop("$defs", {}).items()
    } | schemas
    order, corrections, changes = _body("Order"), _revised("hints"), _revised("changes")
    paths: dict[str, dict[str, Any]] = {
        "/api/openapi.json": {"get": _operation("This description")},
        "/api/studio": {"get": _operation("Version, and the folders that may be read")},
        UPLOAD[1]: {
            "get": _operation("Videos, pictures, and voices (sound and recorded motion) of the folders"),
            "post": _operation(
                "Upload a file into the first folder: its bytes, with their length",
                411,
                422,
                500,
                503,
                query={"name": "Its name; another is chosen if it is taken."},
                body={"type": "string", "format": "binary"},
                takes="application/octet-stream",
                done=201,
            ),
        },
        "/api/films/{film}": {"get": _operation("Facts about a video", 404)},
        "/api/films/{film}/frame": {
            "get": _operation(
                "One frame, matted as a cut would", 404, 409, 422, 503, query=_FRAME, gives="image/jpeg"
            )
        },
        "/api/films/{film}/media": {
            "get": _operation("The file itself, whole or in ranges", 404, 416, gives="video/*")
        },
        **_watching("/api/films/{film}"),
        "/api/films/{film}/places": {
            "post": _operation(
                "Map points of a view to the eye's own picture", 404, 422, body=_body("Pointed")
            )
        },
        "/api/films/{film}/cuts": {"get": _operation("Where its shots begin, as far as known", 404)},
        "/api/films/{film}/people": {
            "get": _operation("The people in it, once a job has searched for them", 404)
        },
        "/api/films/{film}/people/at": {"get": _operation("The person at a place", 404, 422, query=_NUMBERS)},
        "/api/films/{film}/people/{number}.png": {
            "get": _operation("A person's picture", 404, gives="image/png")
        },
        "/api/films/{film}/corrections": {
            "get": _operation("The corrections, and their revision", 404),
            "put": _operation(
                "Replace the corrections, based on a revision", 404, 409, 413, 422, body=corrections
            ),
            "patch": _operation("Change some of them", 404, 409, 413, 422, body=changes),
        },
        "/api/films/{film}/motion": {
            "get": _operation("How a driver's face moves: how much has been read for previews", 404)
        },
        "/api/films/{film}/animated": {
            "get": _operation("A portrait, moved", 404, 422, query=_ANIMATED, gives="image/jpeg")
        },
        "/api/films/{film}/jobs": {
            "post": _operation("Queue a job; 503 says when to ask again", 404, 422, 503, body=order, done=201)
        },
        "/api/jobs": {"get": _operation("All jobs, and how far the running one is")},
        "/api/jobs/{job}": {
            "get": _operation("A job", 404),
            "delete": _operation("Stop it, or remove it from the list; its files stay", 404, done=204),
        },
        "/api/jobs/{job}/files/{number}": {
            "get": _operation(
                "A file it made, whole or in ranges", 404, 416, gives="application/octet-stream"
            )
        },
        **_watching("/api/jobs/{job}/files/{number}"),
    }
    for path, operations in paths.items():
        names = [part[1:].partition("}")[0] for part in path.split("/") if part.startswith("{")]
        for operation in operations.values():
            operation["parameters"] = [_parameter(name, "path") for name in names] + operation["parameters"]
    return {
        "openapi": "3.1.0",
        "info": {"title": "Vitascope", "version": __version__},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": definitions,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _watching(base: str) -> dict[str, dict[str, Any]]:
    """The operations for any video that can be played."""
    return {
        f"{base}/playing": {"get": _operation("How to play it, and why no browser can, if none can", 404)},
        f"{base}/proxy": {
            "get": _operation("A small copy in H.264, whole or in ranges", 404, 416, gives="video/mp4"),
            "post": _operation("Make that copy, and report its progress", 404, 503),
        },
    }


def _operation(
    summary: str,
    *refusals: int,
    query: dict[str, str] | None = None,
    body: dict[str, Any] | None = None,
    gives: str = "application/json",
    takes: str = "application/json",
    done: int = 200,
) -> dict[str, Any]:
    answers: dict[str, Any] = {str(done): {"description": "Done"}}
    if done != 204:
        answers[str(done)]["content"] = {gives: {}}
    for status in (401, *refusals):
        answers[str(status)] = {"description": "Refused; `error` says why in one line"}
    operation: dict[str, Any] = {
        "summary": summary,
        "parameters": [_parameter(name, "query", words) for name, words in (query or {}).items()],
        "responses": answers,
    }
    if body is not None:
        operation["requestBody"] = {"required": True, "content": {takes: {"schema": body}}}
    return operation


def _parameter(name: str, place: str, words: str | None = None) -> dict[str, Any]:
    described = words or (_FILM if name == "film" else f"Which {name}.")
    kind = "integer" if name == "number" else "string"
    return {
        "name": name,
        "in": place,
        "required": place == "path",
        "description": described,
        "schema": {"type": kind},
    }


def _body(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _revised(what: Literal["hints", "changes"]) -> dict[str, Any]:
    revision = {"type": "string", "description": "The revision they are based on, from GET."}
    return {
        "type": "object",
        "required": [what, "revision"],
        "properties": {what: _body({"hints": "Hints", "changes": "HintChanges"}[what]), "revision": revision},
    }
