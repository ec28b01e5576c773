"""The address at which other machines reach the studio, and its certificate.

Browsers give WebXR to pages of secure contexts alone: of the machine itself, or over HTTPS
(https://www.w3.org/TR/secure-contexts/).
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from vitascope.errors import ConfigError

_ELSEWHERE = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
"""Addresses of nobody (RFC 5737, RFC 3849); nothing is sent to them."""


class TlsFiles(NamedTuple):
    """A server's certificate and key, in PEM."""

    certificate: Path
    """With those that vouch for it, if any, after it."""
    key: Path
    """Not encrypted: nobody is there to type a password at a restart."""

    def check(self) -> None:
        """See that they are there and belong together.

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
            reason = getattr(error, "reason", None)  # None where OpenSSL only says that it is no PEM
            raise ConfigError(
                f"{self.certificate}, {self.key}: expected a certificate and its key, in PEM"
                + (f": {reason.lower().replace('_', ' ')}" if reason else "")
            ) from error

    def names(self) -> frozenset[str]:
        """DNS names that the certificate is for, in lower case, ``*.example.org`` among them.

        Python tells what is in a certificate to those alone who got it from a server and trust it: so one asks the
        other here, in memory. None are known of one that clients refuse, as it holds no longer, say.
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


def is_loopback(host: str) -> bool:
    """True where only this machine reaches a server that listens there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def reached_at(host: str) -> str:
    """The address to be typed for a server that listens at a host: of "all addresses" the one of this network."""
    try:
        if not ipaddress.ip_address(host).is_unspecified:
            return host
    except ValueError:
        return host
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect((_ELSEWHERE[family], 9))  # of a datagram socket this only chooses the way
        except OSError:  # no network
            return "::1" if family == socket.AF_INET6 else "127.0.0.1"
        return str(asking.getsockname()[0])
