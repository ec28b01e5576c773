"""Tests of the way from a video to the people in it, and to a video of some of them."""

import errno
import json
import os
import re
from itertools import pairwise
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
from skimage import data

from clips import write_clip
from photographs import astronaut
from scripted import BrightnessNetwork, segment_with
from two_people import COLORS, two_people
from vitascope.cli.app import main
from vitascope.config import load_settings
from vitascope.errors import UsageError
from vitascope.media.metadata.spherical import set_rotation
from vitascope.media.reading.reader import open_video
from vitascope.models.store.store import ModelStore
from vitascope.segmentation.people.identities import Presence
from vitascope.segmentation.people.scan import find_people
from vitascope.segmentation.people.table import PeopleWriter, known_people, table_path
from vitascope.segmentation.segmenter import Segmenter


def scanned(clip):
    return find_people(clip, load_settings(), store=ModelStore(clip.parent / "home"))


def test_a_scan_finds_everybody_and_keeps_what_it_found(clip):
    assert known_people(clip, load_settings().settings.video) is None
    table = scanned(clip)
    assert [person.number for person in table.people] == [1, 2]
    assert all(len(person.seen) == 1 and person.seen[0].begin_seconds == 0 for person in table.people)
    assert known_people(clip, load_settings().settings.video).facts == table.facts
    left = table.labels_at(0)[0]
    assert left[16, 10] == 1
    assert left[16, 38] == 2
    assert "could not be fetched" in table.facts.notes[0]


def test_shots_of_few_looks_are_shots(home, tmp_path):
    """Check that cuts between looks are found.

    From every third frame alone, some were missed, and people got the numbers of others.
    """
    lengths = (20, 16, 18)
    place = cv2.resize(data.coffee(), (96, 64))
    people = [cv2.resize(one, (36, 48)) for one in (data.astronaut()[:300, 60:330], data.chelsea())]
    frames = []
    for at, length in enumerate(lengths):
        shown = place.copy()
        shown[16:, 30:66] = people[at % 2]
        frames += [shown] * length
    film = write_clip(
        tmp_path / "in.mkv", width=96, height=64, frame_count=54, paint=frames.__getitem__, codec="ffv1"
    )
    pieces = scanned(film).facts.pieces
    begins = [pieces[0].pts[0], *(one.pts[0] for before, one in pairwise(pieces) if one.shot != before.shot)]
    first_looks = [-(-begin // 3) * 3 for begin in (0, *np.cumsum(lengths)[:-1].tolist())]
    with open_video(film) as reader:
        times = [frame.pts for frame in reader]
    assert begins == [times[look] for look in first_looks]


def test_a_look_that_another_run_takes_is_waited_for(clip):
    path = table_path(clip, load_settings().settings.video)
    other = PeopleWriter(path)
    told = []

    def the_other_finishes(started):
        told.append((started.doubts, started.is_scan))
        other.finish(
            [Presence(5, 0, 9, 0.3, 1.0, 10, 0)], faces={}, time_base=(1, 25), origin_pts=0, video=clip.name,
            fingerprint="", begin_seconds=0, end_seconds=None, network="rvm", notes=(),
        )  # fmt: skip

    table = find_people(
        clip, load_settings(), store=ModelStore(clip.parent / "home"), on_start=the_other_finishes
    )
    assert told == [(("another run is already looking for its people; waiting for it",), True)]
    assert [person.number for person in table.people] == [5]  # found by the other run
    assert not list(path.parent.glob(".*"))


def test_what_the_look_and_the_run_both_say_of_a_video_is_said_once(clip, tmp_path, capsys):
    words = [
        "segment",
        str(clip),
        "-o",
        str(tmp_path / "out.mp4"),
        "--stereo",
        "sbs",
        "--keep",
        "1",
        "--profile",
        "fast",
    ]
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 0
    assert capsys.readouterr().err.count("the halves do not show the same scene") == 1


def test_a_look_that_another_run_gives_up_is_taken_here(clip):
    other = PeopleWriter(table_path(clip, load_settings().settings.video))
    begun = []

    def the_other_fails(started):
        begun.append(started)
        if len(begun) == 1:
            other.__exit__()

    table = find_people(
        clip, load_settings(), store=ModelStore(clip.parent / "home"), on_start=the_other_fails
    )
    assert [person.number for person in table.people] == [1, 2]
    assert len(begun) == 2


def test_who_waits_for_another_run_can_be_interrupted(clip):
    path = table_path(clip, load_settings().settings.video)
    store = ModelStore(clip.parent / "home")
    with PeopleWriter(path), pytest.raises(KeyboardInterrupt):
        find_people(clip, load_settings(), store=store, on_start=lambda run: run.pipeline.interrupt())
    assert not path.exists()


@pytest.mark.parametrize(("turn", "wider"), [(0, 2), (90, 1 / 2)])
def test_pictures_of_people_show_pixels_as_wide_as_they_are(home, tmp_path, turn, wider):
    shapes = []
    for name, pixels in (("square.mp4", "1/1"), ("wide.mp4", "2/1")):
        clip = write_clip(
            tmp_path / name, frame_count=2, paint=two_people, codec_options={"x264-params": f"sar={pixels}"}
        )
        set_rotation(clip, turn)
        picture = cv2.imdecode(np.frombuffer(scanned(clip).face(1), np.uint8), cv2.IMREAD_COLOR)
        shapes.append(picture.shape)
    (height, width, _), wide = shapes
    assert wide[0] == height
    assert wide[1] == pytest.approx(width * wider, abs=1)


def test_of_a_part_those_are_listed_who_are_in_it(tmp_path, clip, monkeypatch, capsys):
    """Check that a stored scan of the whole video is used, with its numbers."""
    wanted = load_settings().settings.video
    with PeopleWriter(table_path(clip, wanted)) as writer:
        seen = [Presence(1, 0, 6, 0.3, 1.0, 10, 0), Presence(2, 12, 19, 0.1, 1.0, 10, 9)]
        writer.finish(
            seen, faces={}, time_base=(1, 25), origin_pts=0, video=clip.name, fingerprint="", begin_seconds=0,
            end_seconds=None, network="rvm", notes=(),
        )  # fmt: skip
    sheet = tmp_path / "sheet.png"

    def printed(*words):
        with pytest.raises(SystemExit) as ended:
            main(["people", str(clip), *words])
        assert ended.value.code == 0
        return capsys.readouterr().out

    def listed(*words):
        return printed("-o", str(sheet), "-y", *words).splitlines(), cv2.imread(str(sheet)).shape[0]

    both, height = listed()
    assert [line[0] for line in both] == ["1", "2"]
    second, lower = listed("--start", "0.6")
    assert (second, lower < height) == (["2  0:00.6-0:00.8  100% sure"], True)
    assert [one["number"] for one in json.loads(printed("--end", "0.4", "--json"))["people"]] == [1]


def mattes(clip, **settings):
    with Segmenter(settings=settings) as segmenter:
        return np.stack([step.alpha for step in segmenter.stream(clip)])


def test_keeping_one_leaves_the_other_out_and_together_they_are_all(clip):
    everybody, first, second = (
        mattes(clip),
        mattes(clip, **{"people.keep": 1}),
        mattes(clip, **{"people.exclude": 1}),
    )
    for n in range(20):
        columns = {1: slice(14 + n, 26 + n), 2: slice(70 - n, 82 - n)}
        assert first[n, 20:60, columns[1]].min() > 200
        assert first[n, 20:60, columns[2]].max() < 15
        assert second[n, 20:60, columns[2]].min() > 200
        assert second[n, 20:60, columns[1]].max() < 15
    together = first.astype(int) + second
    assert np.abs(together - everybody).mean() < 2


def test_both_eyes_agree(home, tmp_path):
    clip = write_clip(
        tmp_path / "in_LR.mkv",
        width=192,
        height=64,
        frame_count=12,
        paint=lambda n: two_people(n, eyes=2),
        codec="ffv1",
    )
    first = mattes(clip, **{"people.keep": 1, "video.stereo": "side-by-side"})
    for n in range(12):
        assert first[n, 20:60, 14 + n : 26 + n].min() > 200
        assert first[n, 20:60, 96 + 11 + n : 96 + 23 + n].min() > 200
        assert first[n, 20:60, 70 - n : 82 - n].max() < 15
        assert first[n, 20:60, 96 + 67 - n : 96 + 79 - n].max() < 15


def test_the_wearer_of_a_vr_video_is_left_out_by_name_in_both_eyes(home, tmp_path):
    def paint(n):
        picture = np.full((128, 256, 3), (30, 50, 40), np.uint8)
        for left in (0, 128):
            picture[40:88, left + 24 + n : left + 44 + n] = (250, 220, 60)  # a person who stands there
            picture[96:, left + 40 : left + 88] = (90, 250, 230)  # the camera wearer's own legs
        return picture

    clip = write_clip(tmp_path / "in.mkv", width=256, height=128, frame_count=12, paint=paint, codec="ffv1")
    vr = {"video.stereo": "side-by-side", "video.projection": "equirectangular", "video.fov_degrees": 180}
    everybody = mattes(clip, **vr)
    others, own = (
        mattes(clip, **vr, **{"people.exclude": "pov"}),
        mattes(clip, **vr, **{"people.keep": "pov"}),
    )
    for n in range(12):
        for left in (0, 128):
            somebody = slice(48, 80), slice(left + 28 + n, left + 40 + n)
            legs = slice(104, 120), slice(left + 50, left + 78)
            assert everybody[n][somebody].min() > 200 < everybody[n][legs].min()
            assert others[n][somebody].min() > 200 > 15 > others[n][legs].max()
            assert own[n][legs].min() > 200 > 15 > own[n][somebody].max()


def test_frames_of_the_middle_have_the_numbers_of_the_whole(clip):
    scanned(clip)
    some = mattes(clip, **{"people.keep": 2, "video.start_seconds": 0.3, "video.end_seconds": 0.5})
    assert some[0, 20:60, 66:72].min() > 200
    assert some[0, 20:60, 24:30].max() < 15


@pytest.mark.parametrize("in_stretches", [False, True])
def test_a_network_that_hardly_sees_who_is_kept_is_told(clip, tmp_path, monkeypatch, in_stretches):
    class Blind(BrightnessNetwork):
        name = "selfie"

        def infer(self, images, state):
            answers = super().infer(images, state)
            for answer, frame in zip(answers, images, strict=True):
                if frame[0, :, :, : frame.shape[-1] // 3].max() > 0.9:  # where person 1 is
                    answer.alpha[:] *= 0.4
            return answers

    scanned(clip)
    hints = tmp_path / "in.hints.yaml"
    hints.write_text("people:\n  - {keep: 1}\n")
    network = Blind()
    segment_with(monkeypatch, network, name="selfie")
    wanted = {"people.hints": hints, "processing.chunk_size": 12} if in_stretches else {"people.keep": 1}
    with Segmenter(profile="fast", settings=wanted) as segmenter:
        notes = segmenter.write(clip, [("mask", tmp_path / "out.mkv")]).notes
    (note,) = (note for note in notes if "sees person 1 in only" in note)
    seen, known = map(int, re.findall(r"in only (\d+) of (\d+) frames", note)[0])
    assert known == 20
    assert 0 < seen < 10
    with Segmenter(profile="fast", settings={"people.keep": 2}) as segmenter:
        notes = segmenter.write(clip, [("mask", tmp_path / "other.mkv")]).notes
    assert not any("of person 1" in note for note in notes)


def test_somebody_who_is_not_there_is_refused_before_anything_is_written(clip, tmp_path):
    out = tmp_path / "out.mp4"
    with (
        Segmenter(settings={"people.keep": 9}) as segmenter,
        pytest.raises(UsageError, match=r"--keep 9: in\.mkv has 2"),
    ):
        segmenter.write(clip, [("key", out)])
    assert not out.exists()


def run(capsys, *words):
    with pytest.raises(SystemExit) as ended:
        main([*map(str, words)])
    return ended.value.code, *capsys.readouterr()


def test_the_command_draws_and_tells(clip, tmp_path, capsys):
    sheet = tmp_path / "sheet.png"
    code, said, _ = run(capsys, "people", clip, "-o", sheet, "--json")
    assert code == 0
    assert [person["number"] for person in json.loads(said)["people"]] == [1, 2]
    drawn = cv2.imread(str(sheet), cv2.IMREAD_COLOR_RGB).reshape(-1, 3).astype(int)
    for color in COLORS.values():  # both people are in it
        assert (np.abs(drawn - color).max(axis=1) < 40).sum() > 300
    code, said, _ = run(capsys, "people", clip)
    assert code == 0
    assert [line.split()[:2] for line in said.splitlines()] == [
        ["1", "0:00.0-0:00.8"],
        ["2", "0:00.0-0:00.8"],
    ]
    code, _, complaint = run(capsys, "people", clip, "-o", sheet, "--no-overwrite")
    assert code == 4
    assert "already exists" in complaint
    code, _, complaint = run(capsys, "people", clip, "-o", tmp_path / "sheet.jpg")
    assert (code, "is a PNG" in complaint) == (4, True)
    code, said, complaint = run(capsys, "people", clip, "--start", "5")  # the stored scan has all of it
    assert (code, said) == (3, "")
    assert "no frame between 5 s and the end" in complaint


def test_a_sheet_that_cannot_be_written_does_not_cost_the_answer(clip, tmp_path, capsys, monkeypatch):
    lost = tmp_path / "in" / "no" / "folder"
    lost.parent.parent.touch()
    code, said, complaint = run(capsys, "people", clip, "-o", lost / "sheet.png", "--again")
    assert (code, said) == (4, "")  # before the scan
    assert "a part of the path is a file" in complaint

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    code, said, complaint = run(capsys, "people", clip, "-o", tmp_path / "sheet.png")
    assert (code, len(said.splitlines())) == (4, 2)
    assert "cannot write the sheet: no space left" in complaint


def test_the_segment_command_keeps_whom_the_sheet_shows(clip, tmp_path, capsys):
    out = tmp_path / "out.mkv"
    code, *_ = run(
        capsys, "segment", clip, out, "--keep", "2", "--type", "mask", "--set", "output.codec=ffv1"
    )
    assert code == 0
    with av.open(str(out)) as container:
        first = next(container.decode(video=0)).to_ndarray(format="gray")
    assert first[20:60, 72:80].min() > 200 > 40 > first[20:60, 16:24].max()
    code, _, complaint = run(capsys, "segment", clip, tmp_path / "no.mp4", "--keep", "1,2", "--exclude", "2")
    assert code == 2
    assert "both name 2" in complaint
    code, _, complaint = run(capsys, "segment", "--camera", "0", "--keep", "1")
    assert (code, "--keep is for files" in complaint) == (2, True)


def test_processes_that_share_a_video_keep_the_same_people(tmp_path, monkeypatch):
    """Check that every process finds the labels by time, wherever its stretch begins."""
    monkeypatch.setenv("VITASCOPE_HOME", str(tmp_path / "home"))
    picture = np.ascontiguousarray(astronaut()[:256:2, 60:316:2])
    clip = write_clip(
        tmp_path / "in.mp4",
        width=128,
        height=128,
        frame_count=24,
        paint=lambda n: np.roll(picture, n, axis=1),
    )
    settings = load_settings().settings.video
    with PeopleWriter(table_path(clip, settings)) as writer, av.open(str(clip)) as container:
        for frame in container.decode(video=0):
            labels = np.repeat([[1] * 8 + [2] * 8], 16, axis=0).astype(np.uint8)[None]
            writer.add(frame.pts, labels)
        writer.end_shot({1: 1, 2: 2})
        base, seen = (
            container.streams.video[0].time_base,
            [Presence(n, 0, frame.pts, 0.3, 0.9, 24, 0) for n in (1, 2)],
        )
        facts = {"video": "in.mp4", "fingerprint": "", "begin_seconds": 0.0, "end_seconds": None}
        ticks = (base.numerator, base.denominator)
        writer.finish(seen, faces={}, time_base=ticks, origin_pts=0, network="", notes=(), **facts)
    shared = {
        "model.name": "selfie",
        "processing.use_multiprocessing": True,
        "processing.num_threads": 1,
        "processing.overlap_frames": 4,
        "output.codec": "ffv1",
    }
    mattes = {}
    for name, keep in (("all", {}), ("left", {"people.keep": 1})):
        out = tmp_path / f"{name}.mkv"
        with Segmenter(settings=shared | keep) as segmenter:
            report = segmenter.write(clip, [("mask", out)])
        assert report.frame_count == 24
        with av.open(str(out)) as container:
            mattes[name] = np.stack(
                [one.to_ndarray(format="gray").astype(int) for one in container.decode(video=0)]
            )
    assert mattes["all"][:, :, 90:].mean() > 10
    assert mattes["left"][:, :, 90:].max() <= 2
    assert np.abs(mattes["left"] - mattes["all"])[:, :, :40].max() <= 4
