"""Tests of naming sinks by the words that users type."""

from __future__ import annotations

import sys

import pytest

from vitascope.errors import UsageError
from vitascope.media.sinks.sink import SINKS, make_sink


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("null", "null"),
        ("window", "window"),
        ("file:a/b.mp4", "file:a/b.mp4"),
        ("virtualcam", "virtualcam"),
        ("virtualcam:/dev/video2", "virtualcam:/dev/video2"),
        ("ndi", "ndi:Vitascope"),
        ("ndi:My face", "ndi:My face"),
        ("spout:x", "spout:x"),
        ("mjpeg", "mjpeg:127.0.0.1:8890"),
        ("mjpeg:9000", "mjpeg:127.0.0.1:9000"),
        ("mjpeg:0.0.0.0:9000", "mjpeg:0.0.0.0:9000"),
        ("udp:127.0.0.1:5000", "udp:127.0.0.1:5000"),
        ("udp:[::1]:5000", "udp:::1:5000"),
    ],
)
def test_a_word_makes_its_sink(spec: str, name: str) -> None:
    assert make_sink(spec).name == name


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        ("tv", "unknown sink 'tv'; known are window, file:PATH"),
        ("", "unknown sink ''"),
        ("file", "write file:PATH"),
        ("file:noname", "give the file a suffix"),
        ("udp", "write udp:HOST:PORT"),
        ("udp:5000", "write HOST:PORT"),
        ("udp:localhost:0", "from 1 to 65535"),
        ("udp:localhost:http", "from 1 to 65535"),
        ("mjpeg:70000", "write PORT, or HOST:PORT"),
        ("window:big", "write window"),
        ("null:x", "write null"),
    ],
)
def test_what_is_wrong_is_said_with_the_form_that_is_right(spec: str, line: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_sink(spec)
    assert line in str(caught.value)


def test_no_sinks_package_is_imported_before_it_is_opened() -> None:
    for spec in ("window", "virtualcam", "ndi", "spout"):
        make_sink(spec)
    for package in ("pyvirtualcam", "cyndilib", "SpoutGL"):
        assert package not in sys.modules


def test_every_kind_says_what_it_shows() -> None:
    assert all(kind.word == word for word, kind in SINKS.items())
