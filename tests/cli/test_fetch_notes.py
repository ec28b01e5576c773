"""Check that fetching, calibrating and waiting are reported on stderr, with and without a terminal, unless `-q`."""

from __future__ import annotations

import logging

import pytest

from vitascope.cli import main

STORE = logging.getLogger("vitascope.models.store.store")


def run(*words):
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    assert ended.value.code == 0


@pytest.fixture(autouse=True)
def logger_as_it_was():
    handlers, level = list(STORE.handlers), STORE.level
    yield
    STORE.handlers = handlers
    STORE.setLevel(level)


def test_every_command_has_the_line(capsys):
    run("models", "where")
    STORE.info("fetching the network %s", "net")
    run("models", "where")
    STORE.info("and %s", "another")
    logging.getLogger("vitascope.segmentation.matting.int8").info("calibrating")
    logging.getLogger("vitascope.segmentation.processes.cluster").info("waiting")
    assert capsys.readouterr().err.splitlines() == [
        "note: fetching the network net",
        "note: and another",
        "note: calibrating",
        "note: waiting",
    ]


def test_quiet_has_none(capsys, tmp_path):
    run("models", "where")
    with pytest.raises(SystemExit):
        main(["segment", str(tmp_path / "missing.mp4"), "-o", "out.mp4", "-q"])
    capsys.readouterr()
    STORE.info("fetching the network %s", "net")
    assert capsys.readouterr().err == ""
