from __future__ import annotations

from pathlib import Path

import pytest

from clips import write_clip
from vitascope.config import Settings
from vitascope.errors import UsageError
from vitascope.media.reading.discovery import FoundVideo
from vitascope.segmentation.plan import PlannedVideo, plan_outputs


def found(*names, is_named=True):
    return [FoundVideo(Path("clips") / name, Path(name), is_named=is_named) for name in names]


def paths(planned):
    return [path.as_posix() for plan in planned for _, path in plan.outputs]


def numbered(folder, count=2):
    folder.mkdir(parents=True)
    for number in range(count):
        (folder / f"{number:06d}.png").touch()
    return folder


def test_one_input_goes_to_the_file_named():
    assert paths(plan_outputs(found("a.mp4"), "out.mp4", ["key"])) == ["out.mp4"]


def test_several_kinds_get_suffixes_and_alpha_a_container_that_carries_it():
    planned = plan_outputs(found("a.mp4"), "out.mp4", ["mask", "key", "alpha"])
    assert paths(planned) == ["out_mask.mp4", "out_key.mp4", "out_alpha.mov"]
    assert paths(plan_outputs(found("a.mp4"), "o.mp4", ["key", "alpha"], codec="vp9"))[1] == "o_alpha.webm"


def test_several_kinds_of_numbered_pictures_get_a_folder_each():
    planned = plan_outputs(found("a.mp4"), "q/f_%03d.png", ["mask", "key"])
    assert paths(planned) == ["q_mask/f_%03d.png", "q_key/f_%03d.png"]
    assert paths(plan_outputs(found("a.mp4"), "frames", ["mask", "key"])) == ["frames_mask", "frames_key"]
    with pytest.raises(UsageError, match=r"frames/f_%03d\.png"):
        plan_outputs(found("a.mp4"), "f_%03d.png", ["mask", "key"])


def test_several_inputs_keep_their_tree():
    planned = plan_outputs(found("a.mp4", "day 2/b.mkv", "c.avi", is_named=False), "cut", ["key"])
    assert paths(planned) == ["cut/a.mp4", "cut/day 2/b.mkv", "cut/c.mp4"]
    assert paths(plan_outputs(found("a.mp4", "b.mp4"), "cut", ["alpha"])) == ["cut/a.mov", "cut/b.mov"]


def test_one_video_of_a_folder_goes_into_a_folder_like_several():
    assert paths(plan_outputs(found("a.mp4", is_named=False), "cut", ["key"])) == ["cut/a.mp4"]


def test_a_slash_or_an_existing_folder_takes_one_input_too(tmp_path):
    assert paths(plan_outputs(found("a.mp4"), "cut/", ["key"])) == ["cut/a.mp4"]
    assert paths(plan_outputs(found("a.mp4"), ".", ["key"])) == ["a.mp4"]
    assert paths(plan_outputs(found("a.mp4"), tmp_path, ["key"])) == [(tmp_path / "a.mp4").as_posix()]


def test_a_folder_of_pictures_means_the_same_the_second_time(tmp_path):
    out = tmp_path / "frames"
    first = plan_outputs(found("a.mp4"), out, ["key"])
    assert paths(first) == [out.as_posix()]
    assert not first[0].is_done
    numbered(out)
    (out / ".DS_Store").touch()
    again = plan_outputs(found("a.mp4"), out, ["key"])
    assert again == first
    assert again[0].is_done
    assert paths(plan_outputs(found("a.mp4"), out, ["mask", "key"])) == [f"{out}_mask", f"{out}_key"]
    assert paths(plan_outputs(found("a.mp4"), f"{out}/", ["key"])) == [f"{out}/a.mp4"]
    (out / "notes.txt").touch()
    assert paths(plan_outputs(found("a.mp4"), out, ["key"])) == [f"{out}/a.mp4"]


@pytest.mark.parametrize("count", [2, 3, 5])
def test_inputs_of_one_name_are_numbered_until_they_differ(count):
    videos = [FoundVideo(Path(f"d{n}/a.mp4"), Path("a.mp4")) for n in range(count)]
    planned = paths(plan_outputs(videos, "out", ["key"]))
    assert planned[:2] == ["out/a.mp4", "out/a_2.mp4"]
    assert len(set(planned)) == count


def test_inputs_that_would_meet_in_one_file_are_kept_apart():
    assert paths(plan_outputs(found("a.mp4", "a.avi"), "cut", ["key"])) == ["cut/a.mp4", "cut/a_avi.mp4"]
    names = ("a.mp4", "a.avi", "a_avi.mp4", "A.MP4", "a_2.mp4")
    planned = paths(plan_outputs(found(*names), "cut", ["mask", "key"]))
    assert len({path.casefold() for path in planned}) == 2 * len(names)
    assert planned[4:6] == ["cut/a_avi_mask.mp4", "cut/a_avi_key.mp4"]


def test_a_film_that_comes_later_takes_no_name_of_one_that_is_done():
    alone = paths(plan_outputs(found("a.mp4"), "cut/", ["key"]))
    assert paths(plan_outputs(found("a.avi", "a.mp4"), "cut", ["key"])) == ["cut/a_avi.mp4", *alone]


@pytest.mark.parametrize(
    ("videos", "out", "says"),
    [
        (found("a.mp4", "b.mp4"), "out.mp4", "2 inputs go into a folder, not a file; give one, such as out/"),
        (found("a.mp4", "b.mp4"), "many.png", "such as many/"),
        (found("a.mp4", is_named=False), "out.mp4", "clips/a.mp4 was found"),
    ],
)
def test_what_needs_a_folder_is_not_given_a_file(videos, out, says):
    with pytest.raises(UsageError) as refused:
        plan_outputs(videos, out, ["key"])
    assert says in str(refused.value)
    assert "1 inputs" not in str(refused.value)


def test_the_folder_that_is_named_instead_is_no_file(tmp_path):
    taken = tmp_path / "cut"
    taken.write_bytes(b"")
    with pytest.raises(UsageError, match=f"such as {taken}_cut/"):
        plan_outputs(found("a.mp4", is_named=False), f"{taken}/", ["key"])


@pytest.mark.parametrize("letter", ["n", "婚"])
def test_names_that_a_kind_would_make_too_long_lose_their_end(letter):
    stem = letter * ((255 - len("1.mp4")) // len(letter.encode()))
    videos = found(f"{stem}1.mp4", f"{stem}2.mp4", "b.mp4")
    planned = plan_outputs(videos, "cut", ["mask", "key"], preview=Path("sheet.png"))
    made = [Path(path).name for path in paths(planned)] + [plan.preview.name for plan in planned]
    assert len(set(made)) == 9
    assert max(len(f"{name}.part".encode()) for name in made) <= 255
    assert made[:2] == [made[0], made[0].replace("_mask", "_key")]
    assert made[4:6] == ["b_mask.mp4", "b_key.mp4"]


@pytest.mark.parametrize(
    ("player", "kinds", "endings"),
    [
        ("heresphere", ["packed-alpha"], ("_FISHEYE190_alpha.mp4", ".heresphere.json")),
        ("moon", ["key"], ("_passthrough.mp4",)),
        (None, ["packed-alpha", "mask"], ("_FISHEYE190_alpha.mp4", "_mask.mp4")),
    ],
)
def test_names_for_players_lose_their_end_before_the_words_that_players_know(
    tmp_path, player, kinds, endings
):
    clip = write_clip(tmp_path / "clip.mp4", width=128, height=64, frame_count=1)
    stem = "n" * (254 - len("_LR_180.mp4"))
    videos = [FoundVideo(clip, Path(f"{stem}{number}_LR_180.mp4")) for number in (1, 2)]
    settings = Settings(output={"player": player}, video={"projection": "equirect180", "stereo": "sbs"})
    planned = plan_outputs(videos, "cut", kinds, settings=settings)
    made = [path.name for plan in planned for path in (*dict(plan.outputs).values(), *plan.descriptions)]
    assert len(set(made)) == 2 * len(endings)
    assert all(name.endswith(endings) for name in made)
    assert max(len(f"{name}.part") for name in made) <= 255


def test_what_sets_two_names_apart_stands_before_the_words_that_players_know(tmp_path):
    clip = write_clip(tmp_path / "clip.mp4", width=128, height=64, frame_count=1)
    videos = [FoundVideo(clip, Path(name)) for name in ("wed_LR_180.mp4", "wed_TB_180.mp4")]
    settings = Settings(output={"player": "heresphere"})
    assert paths(plan_outputs(videos, "cut", ["packed-alpha"], settings=settings)) == [
        "cut/wed_FISHEYE190_alpha.mp4", "cut/wed_2_FISHEYE190_alpha.mp4",
    ]  # fmt: skip


def test_pictures_become_pictures(tmp_path):
    image = tmp_path / "photo 50%.jpg"
    image.write_bytes(b"")
    folder = tmp_path / "shots.v2"
    folder.mkdir()
    videos = [
        FoundVideo(image, Path(image.name)),
        FoundVideo(folder, Path("shots.v2")),
        FoundVideo(tmp_path / "day" / "img_%04d.png", Path("img_%04d.png")),
        FoundVideo(tmp_path / "night" / "%04d.png", Path("%04d.png")),
        FoundVideo(tmp_path / "noon" / "*.png", Path("noon")),
    ]
    assert paths(plan_outputs(videos, "cut", ["key"])) == [
        "cut/photo 50_.png", "cut/shots_v2", "cut/img", "cut/night", "cut/noon",
    ]  # fmt: skip


def test_dots_of_a_name_do_not_become_the_suffix_of_a_picture_folder():
    assert paths(plan_outputs(found("film.part.1.mp4"), "cut/", ["key"], codec="png")) == ["cut/film_part_1"]


def test_done_means_every_output_exists(tmp_path):
    one, two = tmp_path / "1.mp4", tmp_path / "2.mp4"
    plan = PlannedVideo(Path("in.mp4"), (("key", one), ("mask", two)))
    one.touch()
    assert not plan.is_done
    two.mkdir()
    assert not plan.is_done
    two.rmdir()
    two.touch()
    assert plan.is_done


def test_done_looks_for_the_pictures_of_a_pattern(tmp_path):
    plan = PlannedVideo(Path("in.mp4"), (("key", tmp_path / "q" / "f_%03d.png"),))
    assert not plan.is_done
    numbered(tmp_path / "q")
    assert not plan.is_done
    (tmp_path / "q" / "f_000.png").touch()
    assert plan.is_done


def test_previews_of_several_inputs_mirror_their_tree_in_their_names():
    videos = found("a.mp4", "day/a.mp4", "day/a.mkv", "day_a.mp4")
    planned = plan_outputs(videos, "cut", ["key"], preview=Path("p/sheet.png"))
    assert [str(plan.preview) for plan in planned] == [
        "p/sheet_a.png", "p/sheet_day_a.png", "p/sheet_day_a_2.png", "p/sheet_day_a_3.png",
    ]  # fmt: skip
    (alone,) = plan_outputs(found("a.mp4"), "o.mp4", ["key"], preview=Path("sheet.png"))
    assert alone.preview == Path("sheet.png")
