"""Tests of which files a command finds."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from vitascope.errors import InputError
from vitascope.media.reading.discovery import find_videos, folders_left_out
from vitascope.media.reading.images import find_images


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    names = [
        "clips/b.mp4", "clips/a10.MKV", "clips/a2.mkv", "clips/.hidden.mp4", "clips/late.mp4.part",
        "clips/.late.0a1b2c3d.part.mp4", "clips/notes.txt", "clips/cover.jpg", "clips/deep/er/z.mov",
        "clips/.trash/y.mp4", "frames/img2.png", "frames/img10.png", "empty/readme.md",
    ]  # fmt: skip
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def listed(*inputs: Path, recursive: bool = False) -> list[str]:
    return [str(video.relative_path) for video in find_videos(inputs, recursive=recursive)]


def test_folder_in_natural_order_without_hidden_and_partial(tree: Path) -> None:
    assert listed(tree / "clips") == ["a2.mkv", "a10.MKV", "b.mp4"]


def test_folders_that_hold_something_are_left_out_and_known(tree: Path) -> None:
    for name in ("clips/text/a.txt", "clips/pictures/p.png", "clips/cut/done.mp4", "clips/cut/deep/x.mp4"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).touch()
    names = [path.name for path in folders_left_out(tree / "clips", exclude=tree / "clips" / "cut")]
    assert names == ["deep", "pictures"]
    assert folders_left_out(tree / "frames") == []


def test_part_in_the_middle_of_a_name_is_a_part_of_a_film(tree: Path) -> None:
    for name in ("film.part.1.mp4", "film.part.2.mp4", "film.tmp.mov"):
        (tree / "empty" / name).touch()
    assert listed(tree / "empty") == ["film.part.1.mp4", "film.part.2.mp4", "film.tmp.mov"]


def test_the_output_below_a_searched_folder_is_left_out(tree: Path) -> None:
    results = ["clips/cut/a2.mkv", "clips/cut/deep/er/z.mov", "clips/cutter/c.mp4"]
    for name in results:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).touch()

    def left(source: Path, exclude: Path) -> list[str]:
        found = find_videos([source], recursive=True, exclude=exclude)
        return [video.path.relative_to(tree).as_posix() for video in found]

    rest = ["clips/a2.mkv", "clips/a10.MKV", "clips/b.mp4", "clips/cutter/c.mp4", "clips/deep/er/z.mov"]
    assert left(tree / "clips", tree / "clips" / "cut") == rest
    assert left(tree / "clips", tree / "frames" / ".." / "clips" / "cut") == rest
    assert sorted(left(tree / "clips" / "*", tree / "clips" / "cut")) == sorted(rest)
    assert sorted(left(tree / "clips" / "**" / "*.mov", tree / "clips" / "cut")) == ["clips/deep/er/z.mov"]
    # The output's folder, and files named in it, are used if they are the input.
    assert "clips/b.mp4" in left(tree / "clips", tree / "clips")
    assert left(tree / "clips" / "cut", tree / "clips" / "cut") == results[:2]
    assert left(tree / "clips" / "cut" / "a2.mkv", tree / "clips" / "cut") == results[:1]


def test_what_was_named_differs_from_what_was_found(tree: Path) -> None:
    def named(source: Path) -> list[bool]:
        return [video.is_named for video in find_videos([source], recursive=False)]

    assert named(tree / "clips/b.mp4") == named(tree / "frames") == named(tree / "frames/*.png") == [True]
    assert named(tree / "clips") == [False] * 3
    assert named(tree / "clips/b*.mp4") == [False]


def test_recursive_mirrors_the_tree(tree: Path) -> None:
    found = find_videos([tree / "clips"], recursive=True)
    assert [str(video.relative_path) for video in found] == ["a2.mkv", "a10.MKV", "b.mp4", "deep/er/z.mov"]
    assert found[-1].path == tree / "clips/deep/er/z.mov"


def test_named_file_is_taken_whatever_its_name(tree: Path) -> None:
    assert listed(tree / "clips/notes.txt", tree / "clips/.hidden.mp4") == ["notes.txt", ".hidden.mp4"]


def test_each_video_once_in_the_order_named(tree: Path) -> None:
    assert listed(tree / "clips/b.mp4", tree / "clips") == ["b.mp4", "a2.mkv", "a10.MKV"]
    assert listed(tree / "clips/../clips/b.mp4", tree / "clips") == ["b.mp4", "a2.mkv", "a10.MKV"]


def test_a_link_beside_a_video_is_an_input_of_its_own(tree: Path) -> None:
    (tree / "clips" / "c.mp4").symlink_to(tree / "clips" / "b.mp4")
    assert listed(tree / "clips") == ["a2.mkv", "a10.MKV", "b.mp4", "c.mp4"]


def test_globs(tree: Path) -> None:
    assert listed(tree / "clips/a*.mkv") == ["a2.mkv"]
    assert listed(tree / "clips/*") == ["a2.mkv", "a10.MKV", "b.mp4"]
    assert listed(tree / "**/*.mov") == ["clips/deep/er/z.mov"]
    assert listed(tree / "cl*", recursive=True) == [
        "clips/a2.mkv", "clips/a10.MKV", "clips/b.mp4", "clips/deep/er/z.mov",
    ]  # fmt: skip


def test_strings_do_as_well(tree: Path) -> None:
    assert len(find_videos([str(tree / "clips")], recursive=False)) == 3


def test_image_folders_and_patterns_are_one_input(tree: Path) -> None:
    assert listed(tree / "frames") == ["frames"]
    assert listed(tree / "frames/img%d.png") == ["img%d.png"]
    (video,) = find_videos([tree / "frames/*.png"], recursive=False)
    assert video.path == tree / "frames/*.png"
    assert video.relative_path == Path("frames")


def test_a_link_that_leads_back_up_gives_no_longer_names(tmp_path: Path) -> None:
    for name in ("clips/a/x.mp4", "clips/b/y.mp4"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    (tmp_path / "clips" / "a" / "loop").symlink_to("..")
    found = find_videos([tmp_path / "clips" / "**" / "*.mp4"], recursive=False)
    assert [video.path.relative_to(tmp_path).as_posix() for video in found] == [
        "clips/a/x.mp4",
        "clips/b/y.mp4",
    ]
    assert [video.relative_path.as_posix() for video in found] == ["a/x.mp4", "b/y.mp4"]


def test_glob_of_image_folders(tree: Path) -> None:
    (found,) = find_videos([tree / "fr*"], recursive=False)
    assert (found.path, found.relative_path) == (tree / "frames", Path("frames"))


def test_videos_win_over_a_cover_picture(tree: Path) -> None:
    assert "clips" not in listed(tree / "clips")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("empty", "no videos found in the folder"),
        ("nowhere.mp4", "no such file or folder"),
        ("*.webm", "nothing matches"),
        ("empty/*.md", "no videos found"),
        ("frames/none%d.png", "no file matches"),
    ],
)
def test_nothing_found_names_the_input(tree: Path, name: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason) as error:
        find_videos([tree / "clips", tree / name], recursive=False)
    assert str(tree / name) in str(error.value)
    assert "\n" not in str(error.value)


def test_no_input() -> None:
    with pytest.raises(InputError, match="no input"):
        find_videos([], recursive=True)


def pictures(folder, *names, size=(8, 8)):
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        cv2.imwrite(str(folder / name), np.zeros((*size, 3), np.uint8))


def test_photographs_are_taken_one_by_one(tmp_path: Path) -> None:
    pictures(tmp_path, "anna.jpg", "ben.jpg", "DSC_2.jpg")
    assert listed(tmp_path) == ["anna.jpg", "ben.jpg", "DSC_2.jpg"]


def test_photographs_of_phones_are_found(tmp_path: Path) -> None:
    for name in ("a.AVIF", "b.HEIC", "c.heif"):
        (tmp_path / name).write_bytes(name.encode())
    assert listed(tmp_path) == ["a.AVIF", "b.HEIC", "c.heif"]


def test_numbered_pictures_of_several_sizes_are_photographs(tmp_path: Path) -> None:
    pictures(tmp_path, "IMG_0001.jpg", "IMG_0002.jpg")
    pictures(tmp_path, "IMG_0003.jpg", size=(12, 8))
    assert listed(tmp_path) == ["IMG_0001.jpg", "IMG_0002.jpg", "IMG_0003.jpg"]


def test_pictures_beside_videos_are_not_left_out(tmp_path: Path) -> None:
    pictures(tmp_path, "anna.jpg", "cover.jpg")
    pictures(tmp_path / "shots", "f_001.png", "f_002.png")
    (tmp_path / "a.mp4").touch()
    assert listed(tmp_path) == ["a.mp4", "anna.jpg"]
    found = find_videos([tmp_path], recursive=True)
    assert [(one.path.name, str(one.relative_path)) for one in found] == [
        ("a.mp4", "a.mp4"), ("anna.jpg", "anna.jpg"), ("shots", "shots"),
    ]  # fmt: skip


def test_a_sequence_beside_a_video_is_one_input(tmp_path: Path) -> None:
    pictures(tmp_path, "f_001.png", "f_002.png", "f_003.png")
    (tmp_path / "a.mp4").touch()
    found = {one.path.name for one in find_videos([tmp_path], recursive=False)}
    assert found == {"a.mp4", "f_[0-9]*.png"}
    assert find_images(tmp_path / "f_[0-9]*.png") == [tmp_path / f"f_00{n}.png" for n in (1, 2, 3)]


def test_a_sequence_beside_other_pictures_is_one_input(tmp_path: Path) -> None:
    pictures(tmp_path, *(f"img_{n:03}.png" for n in range(4)), "cat.jpg", "img_003b2.png", "dog.png")
    assert "img" not in listed(tmp_path)  # img_[0-9]*.png would also match img_003b2.png
    (tmp_path / "img_003b2.png").unlink()
    found = {str(one.relative_path): one.path.name for one in find_videos([tmp_path], recursive=False)}
    assert found == {"cat.jpg": "cat.jpg", "dog.png": "dog.png", "img": "img_[0-9]*.png"}


def test_several_sequences_of_a_folder_are_an_input_each(tmp_path: Path) -> None:
    place = tmp_path / "shots"
    place.mkdir()
    pictures(place, *(f"{prefix}{n}.png" for prefix in ("a_", "b_") for n in range(3)))
    found = {str(one.relative_path): one.path.name for one in find_videos([tmp_path], recursive=True)}
    assert found == {"shots/a": "a_[0-9]*.png", "shots/b": "b_[0-9]*.png"}
