"""Tests of the file that stores who is in a video."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from clips import write_clip
from vitascope.config import load_settings
from vitascope.errors import InputError, OutputError
from vitascope.segmentation.people.identities import Presence
from vitascope.segmentation.people.table import PeopleTable, PeopleWriter, known_people, table_path

FACTS = {
    "video": "in.mp4",
    "fingerprint": "00",
    "begin_seconds": 0.0,
    "end_seconds": None,
    "network": "rvm",
    "notes": (),
}


def write(path, *, frames=300):
    with PeopleWriter(path) as writer:
        for pts in range(frames):
            writer.add(pts, np.full((1, 4, 6), 1 + pts % 2, np.uint8))
        writer.end_shot({1: 2, 2: 1})
        writer.add(frames, np.full((1, 4, 6), 7, np.uint8))
        writer.end_shot({})
        seen = [Presence(1, 0, frames - 1, 0.3, 0.99, 10, 0), Presence(2, 0, frames - 1, 0.1, 0.6, 10, 9)]
        writer.finish(seen, faces={1: b"png"}, time_base=(1, 25), origin_pts=0, **FACTS)
    return PeopleTable(path)


def test_what_was_written_is_read_at_its_time(tmp_path):
    table = write(tmp_path / "a.zip")
    for pts, person in ((0, 2), (1, 1), (128, 2), (255, 1), (299, 1), (300, 0), (10_000, 0), (-5, 2)):
        labels = table.labels_at(pts)
        assert labels.shape == (1, 4, 6)
        assert (labels == person).all(), pts


def test_looks_are_read_once_from_any_thread(tmp_path, monkeypatch):
    """Check looks around the border of two pieces, which would otherwise be loaded in turn."""
    table = write(tmp_path / "a.zip")
    read, read_piece = [], table._read
    monkeypatch.setattr(table, "_read", lambda at: read.append(at) or read_piece(at))
    wanted = [pts for _ in range(3) for pts in range(124, 132)]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(table.looks_around, wanted))
    assert [int(look.labels.max()) for ((_, look),) in found] == [2 - pts % 2 for pts in wanted]
    assert len({id(look) for ((_, look),) in found}) == 8
    assert len(read) <= 8  # each look once, whichever piece was loaded
    assert all(look.labels.base is None for ((_, look),) in found)  # looks do not hold their piece in memory


def test_a_shot_whose_first_frame_was_not_looked_at_takes_the_next(tmp_path):
    with PeopleWriter(tmp_path / "a.zip") as writer:
        for shot in range(2):
            for pts in range(6 * shot, 6 * shot + 6, 2):
                writer.add(pts, np.full((1, 2, 2), 1 + shot, np.uint8))
            writer.end_shot({1: 1, 2: 2})
        writer.finish([], faces={}, time_base=(1, 25), origin_pts=0, **FACTS)
    table = PeopleTable(tmp_path / "a.zip")
    assert table.labels_at(5).max() == 1  # between 4 and 6, without a hint that a shot began
    assert table.labels_at(5, since=5).max() == 2
    assert table.labels_at(8, since=5).max() == 2
    assert table.labels_at(11, since=11).max() == 2  # no later frame was looked at


def test_between_two_frames_both_count_by_how_near_they_are(tmp_path):
    with PeopleWriter(tmp_path / "a.zip") as writer:
        for shot in range(2):
            for pts in range(520 * shot, 520 * shot + 520, 4):
                writer.add(pts, np.full((1, 2, 2), 1 + pts // 4 % 2, np.uint8))
            writer.end_shot({1: 1, 2: 2})
        writer.finish([], faces={}, time_base=(1, 25), origin_pts=0, **FACTS)
    table = PeopleTable(tmp_path / "a.zip")

    def around(pts, **since):
        return sorted((share, int(look.labels.max())) for share, look in table.looks_around(pts, **since))

    assert around(4) == [(1.0, 2)]
    assert around(5) == [(0.25, 1), (0.75, 2)]
    assert around(511) == [(0.25, 2), (0.75, 1)]  # in two pieces of one shot
    assert around(509) == [(0.25, 1), (0.75, 2)]
    assert around(518) == [(1.0, 2)]  # the next frame is in another shot
    assert around(5, since=5) == [(1.0, 1)]  # the frame before is in another shot
    assert around(-3) == [(1.0, 1)]


def test_a_look_before_and_a_look_after_are_those_of_the_shot(tmp_path):
    with PeopleWriter(tmp_path / "a.zip") as writer:
        for shot in range(2):
            for pts in range(520 * shot, 520 * shot + 520, 4):
                writer.add(pts, np.full((1, 2, 2), 1 + pts // 4 % 100, np.uint8))
            writer.end_shot({number: number for number in range(1, 101)})
        writer.finish([], faces={}, time_base=(1, 25), origin_pts=0, **FACTS)
    table = PeopleTable(tmp_path / "a.zip")

    def beside(pts, **since):
        return [
            sorted((share, int(look.labels.max())) for share, look in looks)
            for looks in table.looks_beside(pts, **since)
        ]

    assert beside(8) == [[(1.0, 2)], [(1.0, 4)]]
    assert beside(9) == [[(0.25, 3), (0.75, 2)], [(0.25, 5), (0.75, 4)]]
    assert beside(0) == [[(1.0, 2)]]  # there is nothing earlier
    assert beside(512) == [[(1.0, 28)], [(1.0, 30)]]  # in two pieces of one shot
    assert beside(516) == [[(1.0, 29)]]  # the next is in another shot
    assert beside(520, since=520) == [[(1.0, 32)]]


def test_a_look_after_lies_no_further_than_the_next_but_one(tmp_path):
    """Check frames of variable rate: the next look is far away, and those after it are close together."""
    looks = [0, *range(100, 160, 4)]
    with PeopleWriter(tmp_path / "a.zip") as writer:
        for number, pts in enumerate(looks, start=1):
            writer.add(pts, np.full((1, 2, 2), number, np.uint8))
        writer.end_shot({number: number for number in range(1, len(looks) + 1)})
        writer.finish([], faces={}, time_base=(1, 25), origin_pts=0, **FACTS)
    table = PeopleTable(tmp_path / "a.zip")
    read = {int(look.labels.max()) for looks in table.looks_beside(49) for _, look in looks}
    assert read == {3}
    assert read <= {int(labels.max()) for _, labels in table.labels_between(49, 50)}


def test_people_times_and_pictures(tmp_path):
    table = write(tmp_path / "a.zip")
    first, second = table.people
    assert (first.number, first.seen[0].begin_seconds, first.seen[0].end_seconds) == (1, 0.0, 11.96)
    assert first.low == 0
    assert second.low == 0.9
    assert table.face(1) == b"png"
    assert table.face(2) is None


def test_who_is_seen_in_a_part_keeps_the_number_and_the_part_of_the_time(tmp_path):
    with PeopleWriter(tmp_path / "a.zip") as writer:
        seen = [Presence(1, 0, 50, 0.3, 1.0, 10, 0), Presence(2, 25, 100, 0.1, 1.0, 10, 9)]
        again = Presence(1, 100, 125, 0.3, 1.0, 10, 0)
        writer.finish([*seen, again], faces={}, time_base=(1, 25), origin_pts=0, **FACTS)
    table = PeopleTable(tmp_path / "a.zip")

    def between(*part):
        return [
            (person.number, [(one.begin_seconds, one.end_seconds) for one in person.seen])
            for person in table.seen_between(*part)
        ]

    assert table.seen_between(0, None) == table.people
    assert between(1, 3) == [(1, [(1, 2)]), (2, [(1, 3)])]
    assert between(3, 4) == [(2, [(3, 4)])]  # without the person who returns at its end
    assert between(4.5, None) == [(1, [(4.5, 5)])]
    assert between(6, None) == []


def test_nothing_is_left_of_a_scan_that_failed(tmp_path):
    with pytest.raises(RuntimeError), PeopleWriter(tmp_path / "a.zip") as writer:
        writer.add(0, np.zeros((1, 4, 6), np.uint8))
        raise RuntimeError
    assert not list(tmp_path.iterdir())


def test_a_damaged_file_is_one_line(tmp_path):
    path = tmp_path / "a.zip"
    path.write_bytes(b"PK\x03\x04 nothing of ours")
    with pytest.raises(InputError, match=r"a\.zip: the people of the video cannot be read"):
        PeopleTable(path)


def test_a_whole_video_serves_a_stretch_of_it_and_another_video_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("VITASCOPE_HOME", str(tmp_path / "home"))
    clip, other = write_clip(tmp_path / "in.mp4"), write_clip(tmp_path / "other.mp4", frame_count=5)
    wanted = load_settings(flags={"video.start_seconds": 0.1}).settings.video
    assert known_people(clip, wanted) is None
    write(table_path(clip, load_settings().settings.video))
    assert known_people(clip, wanted) is not None
    assert known_people(other, wanted) is None


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a file that is always full")
def test_a_full_disk_is_named_and_nothing_stays(tmp_path):
    """Check that closing the archive does not hide the error that says why."""
    labels = np.random.default_rng(1).integers(0, 255, (1, 400, 400), np.uint8)
    with (
        Path("/dev/full").open("wb") as full,
        pytest.raises(OutputError, match=r"a\.zip: cannot write the people of the video: no space left"),
        PeopleWriter(tmp_path / "a.zip") as writer,
    ):
        writer._archive.fp.close()
        writer._archive.fp = full
        writer.add(0, labels)
        writer.end_shot({1: 1})
    assert list(tmp_path.iterdir()) == []
