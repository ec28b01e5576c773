"""Access to the studio: for the browser that opened the printed address, and from this page alone.

Four checks stand before every answer, each against a known attack:

- ``Host`` must be a name of this server: a stranger's site may have told the browser that it is at 127.0.0.1 (DNS
  rebinding). 421, as RFC 9110, 15.5.20 has it.
- What changes something, and every WebSocket, must come from this page: ``Origin`` is this server (RFC 6454). Browsers
  send it with each such request. ``Sec-Fetch-Site`` refuses others' images, frames and scripts, too.
- The token of the address, or the cookie that it is exchanged for: ``HttpOnly``, ``SameSite=Strict``. Programs send the
  token as ``Authorization: Bearer`` (RFC 6750); no other site can make a browser do so.
- A body is small, but for corrections, which are as long as a file of hints may be, and for a file that is brought
  into a named folder: that says its length, and is bounded where it is received.

Every answer forbids the browser to load, run or show anything that is not this server's (Content Security Policy 3).
"""

from __future__ import annotations

import hmac
from collections.abc import Collection
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitascope.config.hints import MAX_HINTS_BYTES
from vitascope.http_server import is_own_name
from vitascope.studio.entrance import COOKIE_SECONDS, Entrance

MOST_BODY_BYTES = 1 << 20
MOST_HINTS_BODY_BYTES = 2 * MAX_HINTS_BYTES
"""As JSON hints are somewhat longer than in their file."""
UPLOAD = ("POST", "/api/films")
"""Method and path of the one request whose body is a file."""
_SAFE_METHODS = frozenset({"GET", "HEAD"})
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; media-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}
_CLOSE_REFUSED = 1008
"""RFC 6455, 7.4.1: against the server's policy."""


class Guard:
    """Stands before an application (ASGI).

    Args:
        names: Host names that the server is called by, in lower case.
    """

    def __init__(self, app: ASGIApp, *, token: str, entrance: Entrance, names: Collection[str]) -> None:
        self._app, self._token, self._names = app, token, frozenset(names)
        self._entrance = entrance

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or hand it on."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        refused = self._refusal(scope)
        if scope["type"] == "websocket":
            if refused is None:
                await self._app(scope, receive, send)
            else:
                await receive()  # the request to connect
                await send({"type": "websocket.close", "code": _CLOSE_REFUSED, "reason": ""})
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        if refused is not None:
            await refused(scope, receive, send_guarded)
            return
        await self._app(
            scope, receive if _is_upload(scope) else _bounded(receive, _most(scope)), send_guarded
        )

    def _refusal(self, scope: Scope) -> Response | None:
        """The answer to who may not; None for who may."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not host or not is_own_name(host, self._names):
            return _refused(421, "Ask for this server by its address.")
        if _is(
            headers.get("authorization", ""), f"Bearer {self._token}"
        ):  # a program: no browser adds it by itself
            return _too_long(headers, scope)
        changes = scope["type"] == "websocket" or scope["method"] not in _SAFE_METHODS
        is_tls = scope["scheme"] in ("https", "wss")
        # Over HTTP there may be somebody between who adds TLS; over TLS a page that came without it is another's.
        own = (f"https://{host}",) if is_tls else (f"http://{host}", f"https://{host}")
        if changes and headers.get("origin") not in own:
            return _refused(403, "This comes from another site.")
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [])
        if given and scope["type"] == "http" and scope["method"] == "GET" and scope["path"] == "/":
            return self._entered(scope, given[0])
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            return _refused(403, "This comes from another site.")
        if not self._entrance.knows(self._cookie_of(headers)):
            return _refused(401, "Open the address that vitascope studio printed in the terminal.")
        return _too_long(headers, scope)

    def _entered(self, scope: Scope, given: str) -> Response:
        """The token becomes a cookie, and leaves the address."""
        if not _is(given, self._token):
            return _refused(
                401, "This address is of an earlier start; take the one that the terminal shows now."
            )
        rest = {
            name: values[0]
            for name, values in parse_qs(scope["query_string"].decode("latin-1")).items()
            if name != "token"
        }
        answer = RedirectResponse("/" + (f"?{urlencode(rest)}" if rest else ""), status_code=303)
        answer.set_cookie(
            self._entrance.name,
            self._entrance.cookie(),
            httponly=True,
            secure=scope["scheme"] == "https",
            samesite="strict",
            path="/",
            max_age=COOKIE_SECONDS,
        )
        return answer

    def _cookie_of(self, headers: Headers) -> str:
        cookies = SimpleCookie()
        try:
            cookies.load(headers.get("cookie", ""))
        except CookieError:
            return ""
        name = self._entrance.name
        return cookies[name].value if name in cookies else ""


def _is(given: str, secret: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(given.encode(), secret.encode())


def _is_upload(scope: Scope) -> bool:
    return bool(scope["type"] == "http" and (scope["method"], scope["path"]) == UPLOAD)


def _too_long(headers: Headers, scope: Scope) -> Response | None:
    if _is_upload(scope):
        return None if "content-length" in headers else _refused(411, "Say how long the file is.")
    if int(headers.get("content-length") or 0) > (most := _most(scope)):
        return _refused(413, f"More than {most} bytes are too many.")
    return None


def _most(scope: Scope) -> int:
    """The most bytes that a body may have."""
    is_hints = scope["type"] == "http" and scope["path"].endswith("/corrections")
    return MOST_HINTS_BODY_BYTES if is_hints else MOST_BODY_BYTES


def _refused(status: int, why: str) -> Response:
    return PlainTextResponse(f"{HTTPStatus(status).phrase}. {why}\n", status_code=status)


def _bounded(receive: Receive, most: int) -> Receive:
    """A body that does not say how long it is ends where it is too long, as if the browser had gone."""
    got = 0

    async def receive_bounded() -> Message:
        nonlocal got
        message = await receive()
        if message["type"] == "http.request":
            got += len(message.get("body", b""))
            if got > most:
                return {"type": "http.disconnect"}
        return message

    return receive_bounded
