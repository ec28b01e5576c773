"""Tests of HTTP downloads, from a server that behaves well or badly."""

from __future__ import annotations

import http.client
import os
import shutil
import socket
import ssl
import subprocess
import threading
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest
from file_server import FileServer, serve
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vitascope.models.store import fetching
from vitascope.models.store.catalogue import FetchError, UrlSource
from vitascope.models.store.fetching import download

CONTENT = bytes(range(256)) * 4099  # 1 MB in several chunks, not a multiple of them


@pytest.fixture
def server() -> Iterator[FileServer]:
    with serve(CONTENT) as running:
        yield running


@pytest.fixture
def part(tmp_path: Path) -> Path:
    return tmp_path / "network.onnx.part"


def fetch(server: FileServer, part: Path, **changes: object) -> list[tuple[int, int]]:
    """Download, and return the reported progress."""
    told: list[tuple[int, int]] = []
    arguments = {"size_bytes": len(server.content), "stall_seconds": 20.0} | changes
    download(UrlSource(url=server.url), part, progress=lambda *at: told.append(at), **arguments)  # type: ignore[arg-type]
    return told


def test_a_file_is_downloaded_and_progress_told(server: FileServer, part: Path) -> None:
    told = fetch(server, part)
    assert part.read_bytes() == CONTENT
    assert server.ranges == [None]
    assert told[0] == (0, len(CONTENT))
    assert told[-1] == (len(CONTENT), len(CONTENT))
    assert [received for received, _ in told] == sorted({received for received, _ in told})
    assert len(told) > 3


@pytest.mark.parametrize("announces_length", [True, False])
def test_a_broken_download_is_continued(server: FileServer, part: Path, announces_length: bool) -> None:
    server.announces_length = announces_length
    part.write_bytes(CONTENT[:300_001])
    told = fetch(server, part)
    assert part.read_bytes() == CONTENT
    assert server.ranges == ["bytes=300001-"]
    assert told[0] == (300_001, len(CONTENT))


def test_a_server_without_ranges_sends_everything_anew(server: FileServer, part: Path) -> None:
    server.honours_range = False
    part.write_bytes(b"\0" * 300_001)  # so that it shows if any of it stays
    told = fetch(server, part)
    assert part.read_bytes() == CONTENT
    assert told[0] == (0, len(CONTENT))


def test_cut_connections_are_taken_up_again(server: FileServer, part: Path) -> None:
    server.cuts = [100_000, 1, 700_000]
    fetch(server, part)
    assert part.read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=100000-", "bytes=100001-", "bytes=800001-"]


def test_cut_connections_of_a_server_without_ranges_end_when_nothing_is_gained(
    server: FileServer, part: Path
) -> None:
    server.honours_range = False
    server.cuts = [100_000] * 20
    with pytest.raises(FetchError, match=f"cut at 100000 of {len(CONTENT)} bytes"):
        fetch(server, part)
    assert server.request_count == 2
    assert part.read_bytes() == CONTENT[:100_000]


def test_a_server_that_always_cuts_is_given_up(server: FileServer, part: Path) -> None:
    server.cuts = [10] * 100
    with pytest.raises(FetchError, match="connection cut 8 times, 80 of"):
        fetch(server, part)
    assert part.read_bytes() == CONTENT[:80]


def test_a_silent_server_is_given_up_and_what_it_sent_is_kept(server: FileServer, part: Path) -> None:
    server.silent_after = 5000
    with pytest.raises(FetchError, match=r"stalled for 0\.2 s"):
        fetch(server, part, stall_seconds=0.2)
    assert server.request_count == 1
    assert part.read_bytes() == CONTENT[:5000]


def test_a_server_that_never_answers_is_given_up(part: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/x"
        with pytest.raises(FetchError, match=r"stalled for 0\.2 s"):
            download(UrlSource(url=url), part, size_bytes=3, stall_seconds=0.2)
    assert not part.exists()


def test_a_refused_connection_says_so(part: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    with pytest.raises(FetchError, match="refused"):
        download(UrlSource(url=f"http://127.0.0.1:{port}/x"), part, size_bytes=3, stall_seconds=5)


def test_a_server_that_speaks_no_http_says_so(part: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"\x16\x03\x01 hello\r\n")

        thread = threading.Thread(target=answer, name="gibberish")
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/x"
        with pytest.raises(FetchError) as caught:
            download(UrlSource(url=url), part, size_bytes=3, stall_seconds=5)
        thread.join()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("status", "words"), [(404, "HTTP 404 Not Found"), (403, "HTTP 403"), (503, "HTTP 503")]
)
def test_an_error_status_is_reported(server: FileServer, part: Path, status: int, words: str) -> None:
    server.status = status
    part.write_bytes(CONTENT[:9])
    with pytest.raises(FetchError, match=words):
        fetch(server, part)
    assert part.read_bytes() == CONTENT[:9]  # the server may answer another day
    assert server.request_count == 1


def test_an_unsatisfiable_range_starts_anew(server: FileServer, part: Path) -> None:
    part.write_bytes(b"x" * 50)
    server.content = b"short"
    with pytest.raises(FetchError, match="server holds 5 bytes, expected 100"):
        fetch(server, part, size_bytes=100)
    assert server.ranges == ["bytes=50-", None]


def test_a_file_of_another_size_is_refused_before_it_is_read(server: FileServer, part: Path) -> None:
    with pytest.raises(FetchError, match=f"server holds {len(CONTENT)} bytes, expected 77"):
        fetch(server, part, size_bytes=77)
    assert not part.exists()


def test_a_server_that_sends_without_end_cannot_fill_the_disk(server: FileServer, part: Path) -> None:
    server.announces_length = False
    fetch(server, part, size_bytes=77)
    assert part.read_bytes() == CONTENT[:77]


@pytest.mark.parametrize("content_range", ["bytes 0-9/10", "bytes 5-1049343/999", "nonsense", "bytes */10"])
def test_a_range_of_something_else_is_refused(server: FileServer, part: Path, content_range: str) -> None:
    server.content_range = content_range
    part.write_bytes(CONTENT[:5])
    with pytest.raises(FetchError, match="expected bytes from 5 of"):
        fetch(server, part)
    assert part.read_bytes() == CONTENT[:5]


def test_a_beginning_longer_than_the_file_is_discarded(server: FileServer, part: Path) -> None:
    part.write_bytes(CONTENT + b"!")
    fetch(server, part)
    assert part.read_bytes() == CONTENT
    assert server.ranges == [None]


def test_a_complete_file_needs_no_connection(server: FileServer, part: Path) -> None:
    part.write_bytes(CONTENT)
    fetch(server, part)
    assert server.request_count == 0


def test_a_redirect_keeps_the_range(server: FileServer, part: Path) -> None:
    server.redirect_to = server.url
    server.url = server.url.replace("/network.onnx", "/old")
    part.write_bytes(CONTENT[:1000])
    fetch(server, part)
    assert part.read_bytes() == CONTENT
    assert server.ranges == ["bytes=1000-", "bytes=1000-"]


@pytest.mark.parametrize("target", ["http://example.org/x", "file:///etc/passwd", "ftp://127.0.0.1/x"])
def test_a_redirect_away_from_https_is_refused(server: FileServer, part: Path, target: str) -> None:
    server.redirect_to = target
    server.url = server.url.replace("/network.onnx", "/old")
    with pytest.raises(FetchError):
        fetch(server, part)
    assert not part.exists()


def test_an_unencrypted_server_at_an_https_address_is_refused(server: FileServer, part: Path) -> None:
    server.url = server.url.replace("http:", "https:")
    with pytest.raises(FetchError, match="ssl"):
        fetch(server, part)
    assert server.request_count == 0


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a self-signed certificate for 127.0.0.1 and its key, in one file."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs the openssl command to make a certificate")
    file = tmp_path_factory.mktemp("tls") / "certificate.pem"
    command = [
        openssl,
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
    ]
    command += ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    command += ["-keyout", str(file), "-out", str(file.with_suffix(".crt"))]
    subprocess.run(command, check=True, capture_output=True)
    file.write_text(file.read_text() + file.with_suffix(".crt").read_text())
    return file


@pytest.fixture
def encrypted_server(certificate: Path) -> Iterator[FileServer]:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    with serve(CONTENT, tls=tls) as running:
        yield running


def test_an_encrypted_download_trusts_the_users_certificates(
    encrypted_server: FileServer, certificate: Path, part: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    encrypted_server.cuts = [100_000]
    fetch(encrypted_server, part)
    assert part.read_bytes() == CONTENT
    assert encrypted_server.ranges == [None, "bytes=100000-"]


def test_an_unknown_certificate_is_refused(
    encrypted_server: FileServer, part: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", os.devnull)
    monkeypatch.setenv("SSL_CERT_DIR", os.devnull)
    with pytest.raises(FetchError, match=r"TLS certificate not trusted \(self-signed certificate"):
        fetch(encrypted_server, part)
    assert encrypted_server.request_count == 0


def test_a_redirect_out_of_encryption_is_refused(
    encrypted_server: FileServer, certificate: Path, part: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    encrypted_server.redirect_to = encrypted_server.url.replace("https:", "http:")
    encrypted_server.url = encrypted_server.url.replace("/network.onnx", "/old")
    with pytest.raises(FetchError, match="redirected to an address that is not https"):
        fetch(encrypted_server, part)


def test_a_proxy_is_not_asked_for_this_machine(
    server: FileServer, part: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    fetch(server, part)
    assert part.read_bytes() == CONTENT


def test_a_destination_that_cannot_be_written_is_no_fault_of_the_source(
    server: FileServer, tmp_path: Path
) -> None:
    with pytest.raises(FileNotFoundError):
        fetch(server, tmp_path / "nowhere" / "x.part")


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    size=st.integers(1, 3000),
    cuts=st.lists(st.integers(0, 1500), max_size=5),
    kept=st.integers(0, 3000),
    honours_range=st.booleans(),
)
def test_the_file_is_whole_or_a_true_beginning(
    size: int, cuts: list[int], kept: int, honours_range: bool, tmp_path: Path
) -> None:
    content = CONTENT[:size]
    part = tmp_path / "any.part"
    part.write_bytes(content[: min(kept, size)])
    with serve(content) as server:
        server.cuts, server.honours_range = cuts, honours_range
        try:
            download(UrlSource(url=server.url), part, size_bytes=size, stall_seconds=20)
        except FetchError:
            assert part.read_bytes() == content[: part.stat().st_size]
        else:
            assert part.read_bytes() == content


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            urllib.error.URLError(socket.gaierror(-2, "Name or service not known")),
            "host name not found (offline?)",
        ),
        (urllib.error.URLError(TimeoutError("timed out")), "no connection within 10 s"),
        (TimeoutError("timed out"), "stalled for 30 s"),
        (urllib.error.URLError(ConnectionRefusedError(111, "Connection refused")), "connection refused"),
        (http.client.RemoteDisconnected("hung up"), "hung up"),
        (http.client.BadStatusLine(""), "malformed answer (BadStatusLine)"),
    ],
)
def test_network_faults_are_said_in_few_words(error: Exception, words: str) -> None:
    assert words in fetching._reason(error, stall_seconds=30)


def test_an_untrusted_certificate_is_said_in_few_words() -> None:
    error = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed")
    error.verify_message = "self-signed certificate"
    words = fetching._reason(urllib.error.URLError(error), stall_seconds=30)
    assert words == "TLS certificate not trusted (self-signed certificate)"


def test_a_long_complaint_is_shortened() -> None:
    assert len(str(FetchError("word " * 500))) <= 200
