"""Tests of hints: who is kept when, marks in pictures, and regions that are never kept."""

import os

import numpy as np
import pytest

from clips import write_clip
from two_people import two_people
from vitascope.config import load_settings
from vitascope.errors import UsageError
from vitascope.media.reading.reader import open_video
from vitascope.models.store.store import ModelStore
from vitascope.segmentation.batch import plan_batch, segment_all
from vitascope.segmentation.layout import vr_of
from vitascope.segmentation.people import strokes
from vitascope.segmentation.people.hinted import Keeping
from vitascope.segmentation.people.scan import find_people
from vitascope.segmentation.people.table import known_people
from vitascope.segmentation.segmenter import Segmenter
from vitascope.segmentation.stills import StillSegmenter


@pytest.fixture
def hinted(clip, tmp_path):
    """Return a function that computes mattes of the clip with hints."""

    def mattes(text, **settings):
        path = tmp_path / "in.hints.yaml"
        path.write_text(text, encoding="utf-8")
        with Segmenter(settings={"people.hints": path, **settings}) as segmenter:
            return np.stack([step.alpha for step in segmenter.stream(clip)])

    return mattes


def seen(mattes, who, n):
    """Check that a matte has all of a person or nothing, and return which."""
    middle = 20 + n if who == 1 else 76 - n
    body = mattes[n, 20:60, middle - 6 : middle + 6]
    assert body.min() > 200 or body.max() < 20, (who, n, body.min(), body.max())
    return bool(body.min() > 200)


def test_people_are_kept_while_a_rule_holds(hinted):
    mattes = hinted("people:\n  - keep: 1\n    from: 0.2\n    to: 0.4\n  - exclude: 1\n    from: 0.6\n")
    assert [(seen(mattes, 1, n), seen(mattes, 2, n)) for n in (2, 7, 12, 17)] == [
        (True, True),
        (True, False),
        (True, True),
        (False, True),
    ]


@pytest.mark.parametrize(
    "mark",
    [
        "click: [0.75, 0.5]\n    do: remove",
        "box: [0.6, 0.2, 1, 1]\n    do: remove",
        "click: [0.25, 0.5]\n    do: keep",
    ],
)
def test_a_click_or_a_box_is_a_person_in_the_whole_film(hinted, mark):
    mattes = hinted(f"marks:\n  - at: 0.1\n    {mark}\n")
    assert all((seen(mattes, 1, n), seen(mattes, 2, n)) == (True, False) for n in (0, 8, 16))


def test_flags_come_first_and_hints_win_which_is_said(hinted, clip, tmp_path):
    hints = tmp_path / "in.hints.yaml"
    hints.write_text("people:\n  - exclude: 1\n    from: 0.4\n", encoding="utf-8")
    settings = {"people.keep": [1], "people.hints": hints}
    with Segmenter(settings=settings) as segmenter:
        report = segmenter.write(clip, [("mask", tmp_path / "out.mkv")])
    assert any(
        "--keep and in.hints.yaml:2 contradict each other about person 1" in note for note in report.notes
    )
    mattes = hinted(hints.read_text(encoding="utf-8"), **{"people.keep": [1]})
    assert [seen(mattes, 1, n) for n in (4, 14)] == [True, False]


def test_stretches_whose_edges_add_up_are_others(clip):
    store = ModelStore(clip.parent)
    find_people(clip, load_settings(), store=store)

    def reaching(**settings):
        loaded = load_settings(flags=settings).settings
        with open_video(clip) as reader:
            return Keeping(reader, vr_of(reader.info, loaded.video), loaded).reaching_into(0, 1)

    one = reaching(**{"people.keep": 1})
    assert one is not None
    assert one != reaching(**{"people.keep": 1, "people.edges_add_up": True})
    assert reaching(**{"people.edges_add_up": True}) is None


def test_regions_are_never_kept_and_need_no_scan(hinted, clip):
    mattes = hinted("never:\n  - polygon: [[0, 0.5], [1, 0.5], [1, 1], [0, 1]]\n    from: 0.5\n")
    assert known_people(clip, load_settings().settings.video) is None
    assert seen(mattes, 1, 4)
    assert mattes[16, 20:30, 32:40].min() > 200
    assert mattes[16, 36:].max() < 30


def test_regions_of_one_eye(home, tmp_path):
    clip = write_clip(
        tmp_path / "in.mkv",
        width=192,
        height=64,
        frame_count=3,
        paint=lambda n: two_people(n, eyes=2),
        codec="ffv1",
    )
    hints = tmp_path / "in.hints.yaml"
    hints.write_text(
        "never:\n  - polygon: [[0, 0], [1, 0], [1, 1], [0, 1]]\n    eye: right\n", encoding="utf-8"
    )
    settings = {"people.hints": hints, "video.stereo": "side-by-side"}
    with Segmenter(settings=settings) as segmenter:
        alpha = next(segmenter.stream(clip)).alpha
    assert alpha[20:60, 16:24].min() > 200
    assert not alpha[:, 97:].any()


def test_strokes_are_carried_by_the_motion(hinted):
    # The upper body of person 1, painted in frame 10, where the person is at x 30.
    mattes = hinted(
        "marks:\n  - at: 0.4167\n    stroke: [[0.3125, 0.3], [0.3125, 0.55]]\n    radius: 0.06\n    do: remove\n"
    )
    for n in (4, 10, 16):
        assert mattes[n, 22:34, 20 + n - 3 : 20 + n + 3].max() < 40, n
        assert mattes[n, 50:60, 20 + n - 5 : 20 + n + 5].min() > 200, n
        assert seen(mattes, 2, n)


def test_a_stroke_adds_what_the_network_does_not_see(hinted):
    mattes = hinted("marks:\n  - at: 0\n    stroke: [[0.5, 0.2], [0.5, 0.8]]\n    radius: 0.05\n")
    assert mattes[0, 16:48, 46:50].min() > 200
    assert seen(mattes, 1, 0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("video: other.mp4\n", r"in\.hints\.yaml: these hints are for other\.mp4, not for in\.mkv"),
        ("people:\n  - keep: 7\n", r"in\.hints\.yaml:2: keep 7: in\.mkv has 2 people"),
        (
            "people:\n  - keep: 1\n    from: 5\n",
            r"in\.hints\.yaml:2: 5 s is after the end of in\.mkv, .* 0\.8 s",
        ),
        ("marks:\n  - at: 93\n    click: [0.5, 0.5]\n", r"in\.hints\.yaml:2: 93 s is after the end"),
        (
            "marks:\n  - at: 0\n    click: [0.5, 0.02]\n",
            r"in\.hints\.yaml:2: the click at 0 s, 0\.5,0\.02 hits nobody; the nearest is person [12], at 0\.\d+,0\.",
        ),
        (
            "marks:\n  - at: 0\n    box: [0.45, 0, 0.55, 0.1]\n",
            r"in\.hints\.yaml:2: the box at 0 s hits nobody",
        ),
    ],
)
def test_what_does_not_fit_the_film_is_one_clear_line(hinted, text, said):
    with pytest.raises(UsageError, match=said) as caught:
        hinted(text)
    assert "\n" not in str(caught.value)


def test_a_person_who_is_not_seen_while_a_rule_holds_is_noted(home, tmp_path):
    """Person 2 has left by then."""

    def paint(n):
        picture = two_people(0)
        if n >= 10:
            picture[:, 60:] = picture[0, 0]
        return picture

    clip = write_clip(tmp_path / "in.mkv", width=96, height=64, frame_count=20, paint=paint, codec="ffv1")
    hints = tmp_path / "in.hints.yaml"
    hints.write_text("people:\n  - exclude: 2\n    from: 0.6\n", encoding="utf-8")
    with Segmenter(settings={"people.hints": hints}) as segmenter:
        report = segmenter.write(clip, [("mask", tmp_path / "out.mkv")])
    assert "in.hints.yaml:2: person 2 does not appear while it applies" in report.notes


def test_changed_hints_are_cut_again(clip, tmp_path):
    hints = tmp_path / "in.hints.yaml"
    hints.write_text("people:\n  - keep: 1\n", encoding="utf-8")
    settings = {"people.hints": hints}
    with Segmenter(settings=settings) as segmenter:
        planned = plan_batch([clip], tmp_path / "out.mkv", segmenter.settings)

        def resumed():
            return [outcome.status for outcome in segment_all(segmenter, planned, resume=True)]

        assert resumed() == ["done"]
        assert resumed() == ["skipped"]
        later = (tmp_path / "out.mkv").stat().st_mtime_ns + 10**9
        os.utime(hints, ns=(later, later))
        assert resumed() == ["done"]


def test_hints_are_not_written_over(clip, tmp_path):
    hints = tmp_path / "in.hints.yaml"
    hints.write_text("people:\n  - keep: 1\n", encoding="utf-8")
    with (
        Segmenter(settings={"people.hints": hints}) as segmenter,
        pytest.raises(UsageError, match="is the hints"),
    ):
        segmenter.write(clip, [("key", hints)])


def test_live_pictures_and_stills_do_not_pass_over_who_is_kept(clip):
    settings = {"people.keep": [1]}
    with pytest.raises(UsageError, match=r"keep everybody"), Segmenter(settings=settings) as segmenter:
        segmenter.live(str(clip), ["null"])
    with pytest.raises(UsageError, match=r"keep everybody"):
        StillSegmenter(settings=settings)


def test_a_stroke_at_one_moment_is_that_of_the_whole_film(clip, home, tmp_path):
    """Check single frames as the studio requests them: it carries a stroke no further, with the same result."""
    stroke = "[[0.27, 0.3], [0.27, 0.95]]"
    mark = f"at: 0.25\n    stroke: {stroke}\n    radius: 0.1\n    do: remove"
    (tmp_path / "in.hints.yaml").write_text(f"marks:\n  - {mark}\n")
    loaded = load_settings(flags={"people.hints": tmp_path / "in.hints.yaml"})
    find_people(clip, loaded, store=ModelStore(home))
    with open_video(clip) as reader:
        frames = list(reader)
        vr = vr_of(reader.info, loaded.settings.video)
        (whole,) = Keeping(reader, vr, loaded.settings).layers
        for frame in frames:
            moment = float(frame.pts * reader.info.time_base)
            (near,) = Keeping(reader, vr, loaded.settings, moment=moment).layers
            assert np.array_equal(near.share_at(frame), whole.share_at(frame)), moment


def test_strokes_of_a_frame_are_painted_over_one_another_and_the_video_is_read_once(
    clip, home, tmp_path, monkeypatch
):
    points = "[[0.27, 0.3], [0.27, 0.95]]"
    marks = [(0.25, "remove"), (0.75, "keep"), (0.25, "keep"), (0.75, "remove")]
    hints = tmp_path / "in.hints.yaml"
    hints.write_text(
        "marks:\n"
        + "".join(f"  - at: {at}\n    stroke: {points}\n    radius: 0.1\n    do: {do}\n" for at, do in marks)
    )
    loaded = load_settings(flags={"people.hints": hints})
    find_people(clip, loaded, store=ModelStore(home))
    begins = []

    def count(video, *, start_seconds):
        begins.append(start_seconds)
        return open_video(video, start_seconds=start_seconds)

    monkeypatch.setattr(strokes, "open_video", count)
    added = []
    monkeypatch.setattr(
        "vitascope.segmentation.people.hinted.StrokeLayer",
        lambda carried: added.extend(one.adds for one in carried),
    )
    with open_video(clip) as reader:
        assert Keeping(reader, vr_of(reader.info, loaded.settings.video), loaded.settings).layers
    assert added == [True, False]  # the last stroke of a frame covers earlier ones
    assert len(begins) == 1
