"""Tests of files behind URLs: a store in memory, and a server that simulates S3."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

import av
import pytest

from bucket import bucket
from clips import write_clip
from makers_here import crew_here
from vitascope.errors import InputError, MissingDependencyError, OutputError, UsageError, one_line
from vitascope.media import remote
from vitascope.media.reading.discovery import find_videos
from vitascope.media.reading.reader import open_video, probe
from vitascope.media.remote import RemotePath, local_path_of, path_of, remove_folder
from vitascope.media.writing.output_target import ArrivingFile, partial_file, refuse_unwritable
from vitascope.segmentation.batch import plan_batch, segment_all
from vitascope.segmentation.segmenter import Segmenter

pytest.importorskip("fsspec", reason="URLs are read through fsspec: pip install 'vitascope[remote]'")
pytestmark = [
    # Warnings of the store libraries when they end.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
CPU = {"gpu.device": "cpu"}
TWO = CPU | {
    "processing.use_multiprocessing": True,
    "processing.chunk_size": 12,
    "processing.overlap_frames": 4,
}


@pytest.fixture
def store(request):
    """Return an empty bucket in memory."""
    root = path_of(f"memory://bucket{abs(hash(request.node.name))}")
    yield root
    for path in root.rglob("*"):
        path.unlink()


@pytest.fixture(scope="module")
def s3():
    """Return the name of an empty bucket of a server that simulates S3."""
    with bucket("films") as made:
        yield made


@pytest.fixture(scope="module")
def two(s3):
    """Return a segmenter with two processes, used for several videos."""
    with Segmenter(profile="fast", settings=TWO) as segmenter:
        yield segmenter


def packets(path):
    with av.open(str(path)) as container:
        return [(p.stream.index, p.pts, p.dts, bytes(p)) for p in container.demux() if p.size]


def fetched(path, folder):
    local = folder / f"fetched-{path.name}"
    local.write_bytes(path.read_bytes())
    return local


def test_names():
    path = path_of("s3://bucket/in/a clip.mp4")
    assert isinstance(path, RemotePath)
    assert str(path) == "s3://bucket/in/a clip.mp4"
    assert (path.name, path.stem, path.suffix) == ("a clip.mp4", "a clip", ".mp4")
    assert str(path.parent) == "s3://bucket/in"
    assert [*map(str, path.parents)] == ["s3://bucket/in", "s3://bucket"]
    assert path.parents[-1].parent == path.parents[-1]
    assert str(path.with_name("b.mp4")) == str(path.parent / "b.mp4") == "s3://bucket/in/b.mp4"
    assert str(path_of("s3://bucket/in/") / Path("x/y")) == "s3://bucket/in/x/y"
    assert path.relative_to(path_of("s3://bucket")) == Path("in/a clip.mp4")
    assert not isinstance(path.relative_to(path_of("s3://bucket")), RemotePath)
    with pytest.raises(ValueError, match="not in the subpath"):
        path.relative_to(path_of("s3://other"))
    assert path.absolute() == path.resolve() == path_of(path) == pickle.loads(pickle.dumps(path))
    assert str(pickle.loads(pickle.dumps(path))) == str(path)
    for name in ("a.mp4", "C:/films/a.mp4", "talk: part 1.mp4", "/films/a.mp4", "s3:/x"):
        assert type(path_of(name)) is type(Path(name))
        assert str(path_of(name)) == str(Path(name))


@pytest.mark.parametrize(
    "url",
    [
        "file:///films/a%20b.mp4",
        "file://localhost/films/a b.mp4",
        Path("file:///films/a b.mp4"),
        Path("file://localhost/films/a%20b.mp4"),
    ],
)
def test_a_url_of_a_file_browser_is_a_file_of_this_machine(url):
    path = path_of(url)
    assert type(path) is type(Path())
    assert path == Path("/films/a b.mp4")


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("file://server/films/a.mp4", "is a file of server; one of this machine has three slashes"),
        ("file://localhosting/a.mp4", "is a file of localhosting;"),
        ("file://a.mp4", "is a file of a.mp4;"),
        ("file:///films/%00.mp4", "a file name cannot contain %00"),
        (Path("file:///films/%00.mp4"), "a file name cannot contain %00"),
        ("a\0.mp4", r"^'a\\x00.mp4': a file name cannot contain a zero byte$"),
        ("", "^a file name is empty$"),
    ],
)
def test_a_url_of_no_file_of_this_machine_is_refused(url, why):
    with pytest.raises(UsageError, match=why):
        path_of(url)


def test_a_name_of_bytes_is_a_name():
    assert path_of(os.fsencode("film é.mp4")) == Path("film é.mp4")


def test_what_reads_this_machine_alone_says_so():
    assert local_path_of("file:///a.jpg") == Path("/a.jpg")
    for url in ("s3://films/a.mp4", Path("s3://films/a.mp4")):
        with pytest.raises(
            UsageError,
            match=r"^s3://films/a.mp4: only `vitascope segment`, `people` and `vr convert` take URLs",
        ):
            local_path_of(url)


def test_a_file_of_a_store_is_a_file(store):
    path = store / "in" / "a.bin"
    assert not path.exists()
    with pytest.raises(FileNotFoundError):
        path.stat()
    path.write_bytes(bytes(range(200)))
    assert (path.exists(), path.is_file(), path.is_dir()) == (True, True, False)
    assert path.parent.is_dir()
    assert path.stat().st_size == 200
    with path.open("rb") as file:
        file.seek(100)
        assert file.read(5) == bytes(range(100, 105))
    with pytest.raises(FileExistsError):
        path.open("xb")
    with pytest.raises(OSError, match="written as a whole"):
        path.open("r+b")
    (store / "in" / "b.txt").write_text("wörter", encoding="utf-8")
    assert (store / "in" / "b.txt").read_text(encoding="utf-8") == "wörter"
    assert {one.name for one in (store / "in").iterdir()} == {"a.bin", "b.txt"}
    assert [one.name for one in (store / "in").glob("*.bin")] == ["a.bin"]
    assert list((store / "nowhere").glob("*")) == []
    assert {one.name for one in store.rglob("*")} == {"a.bin", "b.txt"}
    path.unlink()
    path.unlink(missing_ok=True)
    with pytest.raises(FileNotFoundError):
        path.unlink()
    remove_folder(store / "in")
    assert not list(store.rglob("*"))


def test_an_output_arrives_whole_or_not_at_all(store, tmp_path, monkeypatch):
    target = store / "out" / "a.mp4"
    partial = partial_file(target)
    assert isinstance(partial, ArrivingFile)
    assert not isinstance(partial.path, RemotePath)
    partial.path.write_bytes(b"half")
    assert not target.exists()
    folder = partial.path.parent
    partial.commit()
    assert target.read_bytes() == b"half"
    assert not folder.exists()
    other = partial_file(target)
    other.path.write_bytes(b"other")
    other.discard()
    assert target.read_bytes() == b"half"
    kept = partial_file(target)
    kept.path.write_bytes(b"kept")
    assert kept.keep() == target.with_name("a.mp4.part")
    assert target.with_name("a.mp4.part").read_bytes() == b"kept"

    def refuses(*_):
        raise PermissionError(13, "Forbidden", str(target))

    refused = partial_file(target)
    refused.path.write_bytes(b"new")
    monkeypatch.setattr(remote._store_of("memory"), "put_file", refuses)
    with pytest.raises(OutputError, match=r"memory://.*a\.mp4: cannot upload it: no permission to write"):
        refused.commit()
    refused.discard()
    assert target.read_bytes() == b"half"


def test_a_folder_of_a_store_is_cut_into_another(store, tmp_path):
    local = write_clip(tmp_path / "a.mp4", frame_count=10, audio="aac")
    for name in ("a.mp4", "sub/b.mkv"):
        path = write_clip(tmp_path / Path(name).name, frame_count=10, audio="aac")
        (store / "in" / name).receive(path)
    (store / "in" / "text.txt").write_text("no video")
    source = f"{store}/in"
    assert [str(found.relative_path) for found in find_videos([source], recursive=True)] == [
        "a.mp4",
        "sub/b.mkv",
    ]
    with Segmenter(profile="fast", settings=CPU) as segmenter:
        planned = plan_batch([source], f"{store}/out", segmenter.settings, recursive=True)
        refuse_unwritable(planned[0].outputs[0][1])
        assert [outcome.status for outcome in segment_all(segmenter, planned)] == ["done", "done"]
        assert [outcome.status for outcome in segment_all(segmenter, planned, resume=True)] == [
            "skipped",
            "skipped",
        ]
        segmenter.write(local, [("key", tmp_path / "here.mp4")])
    assert {str(path) for path in (store / "out").rglob("*")} == {
        f"{store}/out/a.mp4",
        f"{store}/out/sub/b.mkv",
    }
    assert packets(fetched(store / "out" / "a.mp4", tmp_path)) == packets(tmp_path / "here.mp4")


def test_what_is_not_there_is_one_line(store, tmp_path):
    for name, words in {
        f"{store}/a.mp4": "no such file",
        f"{store}/*.mp4": "patterns only work for files on this machine; give the folder",
    }.items():
        with pytest.raises(InputError, match=words) as caught:
            find_videos([name], recursive=False)
        assert "\n" not in one_line(caught.value)
    (store / "bad.mp4").write_bytes(b"no video at all")
    with pytest.raises(InputError, match=r"memory://.*bad\.mp4"):
        probe(f"{store}/bad.mp4")
    clip = write_clip(tmp_path / "a.mp4", frame_count=3)
    with (
        Segmenter(profile="fast", settings=CPU) as segmenter,
        pytest.raises(OutputError, match="pictures can only be written to folders on this machine"),
    ):
        segmenter.write(clip, [("mask", f"{store}/o.png")])


def test_what_is_not_installed_is_said(monkeypatch):
    remote._store_of.cache_clear()
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'vitascope\[remote\]'"):
        path_of("s3://bucket/a.mp4").exists()
    monkeypatch.undo()
    with pytest.raises(MissingDependencyError, match="nosuchstore://"):
        path_of("nosuchstore://bucket/a.mp4").exists()


def test_two_processes_share_a_video_of_a_bucket(s3, two, tmp_path):
    clip = write_clip(
        tmp_path / "in.mp4", width=64, height=64, frame_count=48, audio="aac", codec_options={"g": "12"}
    )
    (s3 / "in" / "a.mp4").receive(clip)
    report = two.write(f"{s3}/in/a.mp4", [("key", f"{s3}/out/a.mp4")], preview=f"{s3}/out/a.png")
    two.write(clip, [("key", tmp_path / "o.mp4")])
    assert report.frame_count == 48
    assert {str(path) for path in (s3 / "out").rglob("*")} == {f"{s3}/out/a.mp4", f"{s3}/out/a.png"}
    assert packets(fetched(s3 / "out" / "a.mp4", tmp_path)) == packets(tmp_path / "o.mp4")


def test_a_run_that_broke_off_goes_on_from_the_bucket(s3, two, tmp_path, monkeypatch):
    clip = write_clip(tmp_path / "in.mp4", width=64, height=64, frame_count=48, codec_options={"g": "12"})
    (s3 / "in" / "b.mp4").receive(clip)

    def refuses(self, local):
        raise PermissionError(13, "Forbidden", str(self))

    with monkeypatch.context() as patch:
        patch.setattr(RemotePath, "receive", refuses)
        with pytest.raises(OutputError, match=r"no permission.*--resume continues from 4 finished") as caught:
            two.write(f"{s3}/in/b.mp4", [("key", f"{s3}/cut/b.mp4")])
        assert "\n" not in one_line(caught.value)
    report = two.write(f"{s3}/in/b.mp4", [("key", f"{s3}/cut/b.mp4")], resume=True)
    assert "nothing was made again: everything was there from an earlier run" in report.notes
    assert [str(path) for path in (s3 / "cut").rglob("*")] == [f"{s3}/cut/b.mp4"]


def test_a_large_video_is_read_by_ranges(s3, tmp_path, monkeypatch):
    """Check the requests for the headers and pictures of a file that is mostly something else."""
    import s3fs

    clip = write_clip(tmp_path / "in.mp4", frame_count=5)
    with clip.open("ab") as file:
        size = 60 << 20
        file.write(size.to_bytes(4, "big") + b"free" + bytes(size - 8))
    path = s3 / "large.mp4"
    path.receive(clip)
    asked = []
    fetch = s3fs.S3File._fetch_range

    def fetch_and_note(self, start, end):
        asked.append(end - start)
        return fetch(self, start, end)

    monkeypatch.setattr(s3fs.S3File, "_fetch_range", fetch_and_note)
    with open_video(path) as reader:
        assert len(list(reader)) == 5
    assert asked
    assert max(asked) <= remote._BLOCK_BYTES
    assert sum(asked) < path.stat().st_size // 2


def test_a_bucket_that_is_not_there_is_one_line(s3, tmp_path):
    clip = write_clip(tmp_path / "in.mp4", frame_count=3)
    with crew_here(profile="fast", settings=TWO) as segmenter:
        for source, out, kind in (
            ("s3://nowhere/a.mp4", f"{s3}/o.mp4", InputError),
            (clip, "s3://nowhere/o.mp4", OutputError),
        ):
            with pytest.raises(kind, match="s3://nowhere") as caught:
                segmenter.write(source, [("key", out)])
            assert "\n" not in one_line(caught.value)


def test_a_bucket_without_rights_is_one_line(s3, tmp_path, monkeypatch):
    clip = write_clip(tmp_path / "in.mp4", frame_count=3)
    (s3 / "theirs.mp4").receive(clip)
    # From now on the server requires credentials, and accepts none.
    monkeypatch.setattr("moto.settings.INITIAL_NO_AUTH_ACTION_COUNT", 0)
    remote._store_of.cache_clear()
    with Segmenter(profile="fast", settings=CPU) as segmenter:
        for source, out, kind in (
            (s3 / "theirs.mp4", tmp_path / "o.mp4", InputError),
            (clip, s3 / "o.mp4", OutputError),
        ):
            with pytest.raises(kind, match="s3://films") as caught:
                segmenter.write(source, [("key", out)])
            said = one_line(caught.value)
            assert "\n" not in said
            assert said.endswith(("Forbidden", "Access Denied")) or "Access" in said
    assert [path.name for path in tmp_path.iterdir()] == ["in.mp4"]
