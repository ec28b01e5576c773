"""Where other machines reach the studio, and with which certificate.

Browsers give WebXR to pages of secure contexts alone: of the machine itself, or over HTTPS
(https://www.w3.org/TR/secure-contexts/).
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
from pathlib import Path
from typing import NamedTuple

from vitascope.errors import ConfigError

__all__ = ["TlsFiles", "is_loopback", "reached_at"]

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
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*self, password=lambda: "")
        except (ssl.SSLError, ValueError) as error:
            reason = getattr(error, "reason", None) or str(error)
            raise ConfigError(
                f"{self.certificate}, {self.key}: expected a certificate and its key without a password, in PEM: "
                f"{str(reason).lower().replace('_', ' ')}"
            ) from error


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
