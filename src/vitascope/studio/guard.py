"""Controls access to the studio: only the browser that opened the printed address, and only this page.

Every request passes four checks, each against a known attack:

- ``Host`` must be a name of this server: another site may have told the browser that it is at 127.0.0.1 (DNS
rebinding). 421, as in RFC 9110, 15.5.20.
- Requests that change something, and every WebSocket, must come from this page: ``Origin`` is this server (RFC 6454).
Browsers send it with each such request. ``Sec-Fetch-Site`` also refuses other sites' images, frames and scripts.
- The token of the address, or the cookie exchanged for it: ``HttpOnly``, ``SameSite=Strict``. Programs send the token
as ``Authorization: Bearer`` (RFC 6750); no other site can make a browser do so.
- A body must be small, except for corrections, which may be as long as a file of hints, and for an uploaded file,
which states its length and is limited where it is received.

The cookie of a browser that opened the printed address is signed, and valid for a week, even after a restart. It
contains the time at which it was given, with an HMAC (RFC 2104) made by a key in Vitascope's home that only its owner
can read. The address itself is new at each start. Deleting the key locks out every browser at once.

Other machines reach the studio at ``reached_at``. Browsers allow WebXR only on pages of secure contexts: on the
machine itself, or over HTTPS (https://www.w3.org/TR/secure-contexts/).

Every answer forbids the browser to load, run or show anything from other servers (Content Security Policy 3).
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import secrets
import socket
import ssl
import time
from collections.abc import Collection
from contextlib import suppress
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from shlex import quote
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitascope.config.hints import MAX_HINTS_BYTES
from vitascope.errors import ConfigError, OutputError
from vitascope.http_server import is_own_name

COOKIE_SECONDS: Final = 7 * 24 * 3600
_KEY_BYTES: Final = 32
_PROGRAMS: Final = "programs send Authorization: Bearer and the token"


class Entrance:
    """Issues cookies and recognises them.

    Args:
        key_file: File with the key; created if missing.
        port: The server's port: cookies of one host are shared by all its ports.

    Raises:
        OutputError: The key cannot be created.
    """

    def __init__(self, key_file: Path, *, port: int) -> None:
        self._key_file, self._port = key_file, port
        self._key, self._key_is = cookie_key(key_file), _state_of(key_file)
        self.name: Final = f"vitascope-studio-{port}"
        """The cookie's name."""

    def cookie(self) -> str:
        """Make a cookie: ``seconds.signature``, with the time of issue in seconds since 1970."""
        self._take_key()
        given_at = str(int(time.time()))
        return f"{given_at}.{self._signature(given_at)}"

    def knows(self, cookie: str) -> bool:
        """True for a cookie issued here in the last week."""
        self._take_key()
        given_at, _, signature = cookie.partition(".")
        is_ours = hmac.compare_digest(signature.encode(), self._signature(given_at).encode())
        return is_ours and 0 <= time.time() - int(given_at) < COOKIE_SECONDS

    def _take_key(self) -> None:
        """Read the key again if its file was deleted or changed."""
        if _state_of(self._key_file) != self._key_is:
            self._key = secrets.token_bytes(_KEY_BYTES)  # known to nobody, in case there is no other
            self._key_is = None
            with suppress(OutputError):
                self._key = cookie_key(self._key_file)
                self._key_is = _state_of(self._key_file)

    def _signature(self, given_at: str) -> str:
        return hmac.digest(self._key, f"{self._port} {given_at}".encode(), "sha256").hex()


def cookie_key(path: Path) -> bytes:
    """Read the key from its file; a missing, invalid or publicly readable key is replaced.

    Args:
        path: The file; only its owner can read it.

    Raises:
        OutputError: It cannot be created.
    """
    with suppress(OSError):
        with path.open("rb") as file:
            is_secret = os.name == "nt" or not os.fstat(file.fileno()).st_mode & 0o077
            key = file.read(_KEY_BYTES + 1)
        if is_secret and len(key) == _KEY_BYTES:
            return key
    key = secrets.token_bytes(_KEY_BYTES)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(key)
    except OSError as error:
        raise OutputError(f"{path}: cannot be created: {error.strerror or error}") from error
    return key


def _state_of(path: Path) -> tuple[int, ...] | None:
    """Identifies the state of a file; None if it does not exist."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size, status.st_mode


MOST_BODY_BYTES = 1 << 20
MOST_HINTS_BODY_BYTES = 2 * MAX_HINTS_BYTES
"""Hints are somewhat longer as JSON than in their file."""
UPLOAD = ("POST", "/api/films")
"""Method and path of the only request whose body is a file."""
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
"""RFC 6455, 7.4.1: the request violates the server's policy."""


class Guard:
    """Guards an ASGI application.

    Args:
        app: The application.
        token: The secret in the address.
        entrance: Issues cookies.
        names: Host names of the server, in lower case.
    """

    def __init__(self, app: ASGIApp, *, token: str, entrance: Entrance, names: Collection[str]) -> None:
        self._app, self._token, self._names = app, token, frozenset(names)
        self._entrance = entrance

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or pass it on."""
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
            if scope["path"].startswith("/api/"):  # here errors are one line in ``error``
                told = {"error": bytes(refused.body).decode().strip(), "code": "UsageError"}
                refused = JSONResponse(told, status_code=refused.status_code)
            await refused(scope, receive, send_guarded)
            return
        await self._app(
            scope, receive if _is_upload(scope) else _bounded(receive, _most(scope)), send_guarded
        )

    def _refusal(self, scope: Scope) -> Response | None:
        """The answer to a forbidden request; None for a permitted one."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not host or not is_own_name(host, self._names):
            return _refused(421, "Use the address of this server.")
        # It is a program's: no browser adds this header by itself.
        if _is(headers.get("authorization", ""), f"Bearer {self._token}"):
            return _too_long(headers, scope)
        changes = scope["type"] == "websocket" or scope["method"] not in _SAFE_METHODS
        is_tls = scope["scheme"] in ("https", "wss")
        # Over HTTP, a proxy in between may add TLS; over TLS, a page loaded without TLS comes from another site.
        own = (f"https://{host}",) if is_tls else (f"http://{host}", f"https://{host}")
        if changes and headers.get("origin") not in own:
            return _refused(403, "This request comes from another site.")
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [])
        if given and scope["type"] == "http" and scope["method"] == "GET" and scope["path"] == "/":
            return self._entered(scope, given[0])
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            return _refused(403, "This request comes from another site.")
        if not self._entrance.knows(self._cookie_of(headers)):
            return _refused(
                401, f"Open the address that vitascope studio printed in the terminal; {_PROGRAMS}."
            )
        return _too_long(headers, scope)

    def _entered(self, scope: Scope, given: str) -> Response:
        """Exchange the token for a cookie, and remove it from the address."""
        if not _is(given, self._token):
            return _refused(401, "This address is from an earlier start; use the one in the terminal now.")
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
        return None if "content-length" in headers else _refused(411, "The length of the file is missing.")
    if int(headers.get("content-length") or 0) > (most := _most(scope)):
        return _refused(413, f"More than {most} bytes are too many.")
    return None


def _most(scope: Scope) -> int:
    """The largest permitted body, in bytes."""
    is_hints = scope["type"] == "http" and scope["path"].endswith("/corrections")
    return MOST_HINTS_BODY_BYTES if is_hints else MOST_BODY_BYTES


def _refused(status: int, why: str) -> Response:
    return PlainTextResponse(f"{HTTPStatus(status).phrase}. {why}\n", status_code=status)


def _bounded(receive: Receive, most: int) -> Receive:
    """Limit a body of undeclared length: if it gets too long, it ends as if the browser had disconnected."""
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


_ELSEWHERE = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
"""Addresses reserved for documentation (RFC 5737, RFC 3849); nothing is sent to them."""


class TlsFiles(NamedTuple):
    """A server's certificate and key, in PEM."""

    certificate: Path
    """The file may also contain the certificates that vouch for it."""
    key: Path
    """Not encrypted: nobody could type a password at a restart."""

    def check(self) -> None:
        """Check that the files exist and belong together.

        Raises:
            ConfigError: They cannot be used.
        """
        for path in self:
            try:
                path.read_bytes()
            except OSError as error:
                raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
        try:
            self._server_context()
        except (ssl.SSLError, ValueError) as error:
            if b"ENCRYPTED" in self.key.read_bytes():
                raise ConfigError(
                    f"{self.key}: the key has a password; `openssl pkey -in {quote(str(self.key))} -out plain.pem` "
                    "asks for it and writes the key without"
                ) from error
            reason = getattr(error, "reason", None)  # None if OpenSSL only says that it is not PEM
            raise ConfigError(
                f"{self.certificate}, {self.key}: expected a certificate and its key, in PEM"
                + (f": {reason.lower().replace('_', ' ')}" if reason else "")
            ) from error

    def names(self) -> frozenset[str]:
        """DNS names of the certificate, in lower case, including ones such as ``*.example.org``.

        Python only shows a certificate's content to a client that received it and trusts it, so one end connects to
        the other here, in memory. If clients refuse the certificate, for example because it has expired, no names are
        known.
        """
        asking = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        asking.check_hostname = False
        asking.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # it vouches for itself, whoever signed it
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        try:
            asking.load_verify_locations(self.certificate)
            server = self._server_context().wrap_bio(to_server, to_client, server_side=True)
            client = asking.wrap_bio(to_client, to_server)
            is_done = False
            while not is_done:
                with suppress(ssl.SSLWantReadError):
                    client.do_handshake()
                    is_done = True
                with suppress(ssl.SSLWantReadError):
                    server.do_handshake()
        except ssl.SSLError:
            return frozenset()
        told: Any = (client.getpeercert() or {}).get("subjectAltName", ())
        return frozenset(name.lower() for kind, name in told if kind == "DNS")

    def _server_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self, password=lambda: "")
        return context


def reached_at(host: str) -> str:
    """The address to type for a server that listens on a host; for "all addresses", that of this network."""
    try:
        if not ipaddress.ip_address(host).is_unspecified:
            return host
    except ValueError:
        return host
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect((_ELSEWHERE[family], 9))  # for a datagram socket this only selects the route
        except OSError:  # no network
            return "::1" if family == socket.AF_INET6 else "127.0.0.1"
        return str(asking.getsockname()[0])
