"""Tests of the studio over HTTPS, as a headset on the network needs it: what is encrypted, and who is refused."""

from __future__ import annotations

import datetime
import http.client
import ipaddress
import re
import ssl

import pytest
from driven_page import StudioPage

from vitascope.cli.studio import opened_studio
from vitascope.errors import ConfigError, UsageError
from vitascope.models.store.catalogue import is_loopback_host
from vitascope.studio.guard import TlsFiles, reached_at


def made(folder, password=None, names=(), days=1):
    """Create a self-signed certificate for 127.0.0.1 and some names, and its key."""
    x509 = pytest.importorskip("cryptography.x509", reason="needs cryptography to make a certificate")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "studio")])
    own = x509.SubjectAlternativeName(
        [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), *map(x509.DNSName, names)]
    )
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=9))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(own, critical=False)
        .sign(key, hashes.SHA256())
    )
    hidden = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    pem, kind = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    files = TlsFiles(folder / "cert.pem", folder / "key.pem")
    files.certificate.write_bytes(certificate.public_bytes(pem))
    files.key.write_bytes(key.private_bytes(pem, kind, hidden))
    return files


@pytest.fixture
def tls(tmp_path):
    return made(tmp_path)


@pytest.fixture
def page(browser):
    with StudioPage(browser) as opened:
        yield opened


@pytest.fixture
def secure(serving, films, tls):
    return serving(films, tls=tls)


def asked(studio, tls, method, path, **headers):
    trusting = ssl.create_default_context(cafile=tls.certificate)
    connection = http.client.HTTPSConnection("127.0.0.1", studio.port, timeout=30, context=trusting)
    connection.request(
        method, path, headers={name.replace("_", "-"): value for name, value in headers.items()}
    )
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer


def test_the_address_is_one_of_https_and_the_cookie_never_goes_without(secure, tls):
    assert secure.opened.address.startswith(f"https://127.0.0.1:{secure.port}/?token=")
    assert not secure.opened.is_open_to_read
    entered = asked(secure, tls, "GET", f"/?token={secure.token}")
    assert (entered.status, entered.headers["Location"]) == (303, "/")
    cookie = entered.headers["Set-Cookie"]
    assert "; Secure" in cookie
    assert asked(secure, tls, "GET", "/api/films", Cookie=cookie.partition(";")[0]).status == 200


def test_a_page_that_somebody_between_gave_out_without_tls_changes_nothing(secure, tls):
    entered = asked(secure, tls, "GET", f"/?token={secure.token}")
    cookie = entered.headers["Set-Cookie"].partition(";")[0]
    path = "/api/jobs/abc"
    assert asked(secure, tls, "DELETE", path, Cookie=cookie, Origin=f"http://{secure.host}").status == 403
    assert asked(secure, tls, "DELETE", path, Cookie=cookie, Origin=f"https://{secure.host}").status == 404


def test_nothing_is_answered_without_tls(secure):
    connection = http.client.HTTPConnection("127.0.0.1", secure.port, timeout=30)
    connection.request("GET", f"/?token={secure.token}")
    with pytest.raises((http.client.HTTPException, OSError)):
        connection.getresponse()
    connection.close()


def test_a_browser_gives_the_page_what_it_gives_to_secure_ones_alone(page, secure):
    page.show(secure.opened.address, width=390, is_phone=True, ignore_https_errors=True)
    page.until("document.querySelector('#shown').naturalWidth > 0")
    assert page.value("isSecureContext")
    assert page.value("document.querySelector('#link').hidden")  # events arrive over TLS
    page.show(f"https://{secure.host}/headset?of=/api/films/{film_of(page)}", width=390)
    page.until("document.querySelector('#why').innerText.includes('No headset found')")


def film_of(page):
    return page.value("new URLSearchParams(location.search).get('film')")


def test_a_headset_page_that_came_over_http_says_what_to_do(page, studio):
    """Simulate an insecure page, as in this test every page is a secure one."""
    page.run_before("Object.defineProperty(window, 'isSecureContext', { value: false })")
    page.show(studio.opened.address, width=390)
    page.until("document.querySelector('#shown').naturalWidth > 0")
    page.show(f"http://{studio.host}/headset?of=/api/films/{film_of(page)}", width=390)
    page.until("document.querySelector('#why').innerText.includes('--tls-cert')")


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("no key", r"key\.pem: cannot be read: .*"),
        (
            "other key",
            r".*cert\.pem, .*key\.pem: expected a certificate and its key, in PEM: key values mismatch",
        ),
        (
            "password",
            r".*key\.pem: the key has a password; `openssl pkey -in \S*key\.pem -out plain\.pem` .*",
        ),
        ("no pem", r".*cert\.pem, .*key\.pem: expected a certificate and its key, in PEM"),
        ("empty", r".*cert\.pem, .*key\.pem: expected a certificate and its key, in PEM"),
        ("swapped", r".*key\.pem, .*cert\.pem: expected a certificate and its key, in PEM"),
    ],
)
def test_what_cannot_be_used_is_told_in_a_line(serving, films, tmp_path, fault, said):
    (tmp_path / "other").mkdir()
    tls = made(tmp_path, password=b"secret" if fault == "password" else None)
    if fault == "no key":
        tls.key.unlink()
    elif fault == "other key":
        tls.key.write_bytes(made(tmp_path / "other").key.read_bytes())
    elif fault in ("no pem", "empty"):
        tls.certificate.write_text("no certificate" if fault == "no pem" else "")
    elif fault == "swapped":
        tls = TlsFiles(*reversed(tls))
    with pytest.raises(ConfigError) as told:
        serving(films, tls=tls)
    assert re.fullmatch(rf".*{said}", str(told.value))


def test_names_of_the_certificate_are_the_studios_own(serving, films, tmp_path):
    tls = made(tmp_path, names=["Films.example.org", "*.studio.example"])
    secure = serving(films, tls=tls)
    entering = f"/?token={secure.token}"
    for host in ("films.example.org", "FILMS.example.org:8443", "cut.studio.example"):
        assert asked(secure, tls, "GET", entering, Host=host).status == 303
    for host in ("example.org", "other.example.org", "studio.example", "a.cut.studio.example"):
        assert asked(secure, tls, "GET", entering, Host=host).status == 421


def test_a_certificate_that_holds_no_longer_serves_under_the_other_names(serving, films, tmp_path):
    tls = made(tmp_path, names=["films.example.org"], days=-2)
    assert tls.names() == frozenset()
    assert serving(films, tls=tls).opened.address.startswith("https://")


@pytest.mark.parametrize("given", [("cert.pem", None), (None, "key.pem")])
def test_a_certificate_and_its_key_go_together(films, given):
    with pytest.raises(UsageError, match="must be given together"):
        opened_studio(
            [films], port=0, host="127.0.0.1", tls=given, profile=None, device=None, config=None, set_=None
        )


def test_an_address_for_all_is_printed_as_one_that_others_can_type():
    for host in ("0.0.0.0", "::"):
        assert not ipaddress.ip_address(reached_at(host)).is_unspecified
        assert not is_loopback_host(host)
    for host in ("127.0.0.1", "::1", "localhost"):
        assert reached_at(host) == host
        assert is_loopback_host(host)
    assert reached_at("studio.local") == "studio.local"
