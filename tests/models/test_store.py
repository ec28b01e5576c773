"""Tests of the store's contents: listing, verification and removal."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from file_server import FileServer
from store_homes import CONTENT, from_url, leave, make_store, names_in

from vitascope.errors import ModelChecksumError, ModelError, ModelUnavailableError
from vitascope.models.store.catalogue import load_catalogue
from vitascope.models.store.store import Fingerprint, ModelState, ModelStore, Verdict


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Record every file that is read to be hashed."""
    files: list[Path] = []
    real = Fingerprint.of.__func__  # type: ignore[attr-defined]

    def of(cls: type[Fingerprint], path: Path) -> Fingerprint:
        files.append(path)
        return real(cls, path)

    monkeypatch.setattr(Fingerprint, "of", classmethod(of))
    return files


# --- what is here --------------------------------------------------------------------------------------------------


def test_bundled_networks_are_there_without_a_home(tmp_path: Path) -> None:
    store = ModelStore(tmp_path / "absent")
    for name in ("selfie", "selfie-landscape"):
        assert store.is_cached(name)
        assert store.path(name) == store.pull(name)
        assert (
            hashlib.sha256(store.path(name).read_bytes()).hexdigest() == load_catalogue().entry(name).sha256
        )
    assert not (tmp_path / "absent").exists()


def test_an_absent_model_names_the_command_and_touches_no_network(
    store: ModelStore, server: FileServer
) -> None:
    assert not store.is_cached("net")
    with pytest.raises(
        ModelUnavailableError, match=r"'net' is not on this machine.*`vitascope models pull net`"
    ):
        store.path("net")
    assert server.request_count == 0
    assert not store.where().exists()


@pytest.mark.parametrize("call", ["path", "pull", "is_cached", "verify", "remove"])
def test_an_unknown_name_is_an_error_everywhere(store: ModelStore, call: str) -> None:
    with pytest.raises(ModelError, match="unknown model 'nett'; did you mean 'net'"):
        getattr(store, call)("nett")


def test_the_listing_says_what_each_model_is_and_where(store: ModelStore, server: FileServer) -> None:
    selfie, net = store.entries()
    assert (selfie.name, selfie.license, selfie.state) == ("selfie", "Apache-2.0", ModelState.BUNDLED)
    assert selfie.source == "ships with vitascope"
    assert (net.name, net.license, net.size_bytes, net.state) == (
        "net",
        "MIT",
        len(CONTENT),
        ModelState.ABSENT,
    )
    assert net.source == server.url.split("/")[2]
    assert net.path == store.where() / "network.onnx"
    store.pull("net")
    assert store.entries()[1].state is ModelState.CACHED
    net.path.write_bytes(b"cut")
    assert store.entries()[1].state is ModelState.DAMAGED
    assert not store.is_cached("net")
    net.path.write_bytes(CONTENT[:-1] + b"?")  # of the right size: wrong content shows once it is read
    assert store.verify("net")[0].verdict is Verdict.CORRUPT
    assert store.entries()[1].state is ModelState.DAMAGED


def test_a_file_where_the_home_should_be_leaves_models_absent(server: FileServer, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.write_text("in the way")
    store = make_store(home, from_url(server))
    assert not store.is_cached("net")
    assert store.verify("net")[0].verdict is Verdict.ABSENT
    with pytest.raises(
        ModelUnavailableError, match=r"models: model 'net' cannot be stored .*VITASCOPE_HOME"
    ) as caught:
        store.pull("net")
    assert "\n" not in str(caught.value)
    assert server.request_count == 0


# --- verification --------------------------------------------------------------------------------------------------


def test_a_file_is_hashed_once_and_again_when_it_changes(
    store: ModelStore, server: FileServer, tmp_path: Path, hashed: list[Path]
) -> None:
    path = store.pull("net")
    hashed.clear()
    again = make_store(tmp_path / "home", from_url(server))
    for _ in range(3):
        assert store.path("net") == again.path("net") == path
    assert hashed == []
    os.utime(path, ns=(1, 1))
    assert store.path("net") == again.path("net") == path
    assert len(hashed) == 1  # the second store used the stamp of the first
    path.rename(path.with_name("moved"))
    path.write_bytes(CONTENT)
    os.utime(path, ns=(1, 1))
    assert store.path("net") == path
    assert len(hashed) == 2  # same size and time, but another inode


@pytest.mark.parametrize(
    "damage",
    [lambda whole: whole[:-1], lambda whole: whole + b"!", lambda whole: b"\1" + whole[1:], lambda _: b""],
)
def test_a_damaged_file_is_refused_until_it_is_pulled_again(
    store: ModelStore, server: FileServer, damage: Callable[[bytes], bytes]
) -> None:
    path = store.pull("net")
    path.write_bytes(damage(CONTENT))
    os.utime(path, ns=(1, 1))
    for _ in range(2):
        with pytest.raises(
            ModelChecksumError, match=r"network\.onnx: .*`vitascope models pull net`"
        ) as caught:
            store.path("net")
        assert "\n" not in str(caught.value)
    assert store.verify("net")[0].verdict is Verdict.CORRUPT
    server.status = 503
    with pytest.raises(ModelUnavailableError, match="HTTP 503"):
        store.pull("net")
    server.status = None
    assert store.pull("net").read_bytes() == CONTENT
    assert store.verify("net")[0].verdict is Verdict.VERIFIED


def test_a_file_put_there_by_hand_is_taken_when_it_is_the_right_one(
    store: ModelStore, server: FileServer
) -> None:
    path = leave(store, "network.onnx", CONTENT)
    assert store.path("net") == store.pull("net") == path
    assert server.request_count == 0


@pytest.mark.parametrize(
    "stamp",
    ["", "{}", "[1]", "null", '{"sha256": 1}', "\0", pytest.param("[" * 100_000, id="nested")],
)
def test_a_damaged_stamp_only_costs_a_hash(store: ModelStore, stamp: str, hashed: list[Path]) -> None:
    path = leave(store, "network.onnx", CONTENT)
    leave(store, "network.onnx.verified", stamp.encode())
    assert store.path("net") == path
    assert hashed == [path]
    assert Fingerprint.read_stamp(store.where() / "network.onnx.verified") is not None


def test_a_stamp_of_another_version_of_the_catalogue_does_not_vouch(
    store: ModelStore, server: FileServer
) -> None:
    path = store.pull("net")
    stamp = store.where() / "network.onnx.verified"
    said = json.loads(stamp.read_text())
    stamp.write_text(json.dumps(said | {"sha256": "0" * 64}))
    other = make_store(store.where().parent, from_url(server))
    with pytest.raises(ModelChecksumError):
        other.path("net")
    assert other.verify("net")[0].verdict is Verdict.VERIFIED  # reads the file, and repairs the stamp
    assert other.path("net") == path


def test_verify_reads_every_file_whatever_is_remembered(store: ModelStore) -> None:
    before = {verification.name: verification for verification in store.verify()}
    assert before["selfie"].verdict is Verdict.VERIFIED
    assert (before["net"].verdict, before["net"].sha256) == (Verdict.ABSENT, None)
    path = store.pull("net")
    stat = path.stat()
    path.write_bytes(b"\1" + CONTENT[1:])
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # same size, time and inode: only reading tells
    (after,) = store.verify("net")
    assert after.verdict is Verdict.CORRUPT
    assert after.path == path
    assert after.sha256 == hashlib.sha256(b"\1" + CONTENT[1:]).hexdigest()
    assert after.expected_sha256 == hashlib.sha256(CONTENT).hexdigest()
    with pytest.raises(ModelChecksumError):
        store.path("net")


def test_a_file_that_cannot_be_read_is_named(store: ModelStore) -> None:
    (store.where() / "network.onnx").mkdir(parents=True)
    for call in (store.path, store.pull, store.verify):
        with pytest.raises(ModelError, match=r"network\.onnx: model 'net' cannot be read"):
            call("net")


# --- removal -------------------------------------------------------------------------------------------------------


def test_a_removed_model_is_gone_with_all_that_belongs_to_it(store: ModelStore, server: FileServer) -> None:
    assert not store.remove("net")
    store.pull("net")
    leave(store, "network.onnx.part", b"x")
    assert store.remove("net")
    assert names_in(store) == {"network.onnx.lock"}
    assert not store.is_cached("net")
    with pytest.raises(ModelUnavailableError):
        store.path("net")
    assert store.pull("net").read_bytes() == CONTENT


def test_a_bundled_model_cannot_be_removed(store: ModelStore) -> None:
    with pytest.raises(ModelError, match="'selfie' ships with vitascope"):
        store.remove("selfie")
    assert store.path("selfie").exists()
