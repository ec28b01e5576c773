"""Tests of real users' portraits: rotated, transparent, CMYK, huge, tiny, crowded, empty."""

from __future__ import annotations

import itertools
import os
import struct
import zlib
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from clips import write_large_png
from profiled_pictures import P3_COLORANTS, icc_profile, with_profile
from vitascope.animation.live import run
from vitascope.animation.portrait import load_portrait, read_picture, with_even_sides
from vitascope.config import load_settings
from vitascope.errors import InputError
from vitascope.frames import ColorSpec
from vitascope.gpu.kernels.look_alike import look_alike

MAX = 3840


def save(path, rgb, **options):
    assert cv2.imwrite(str(path), rgb[..., ::-1] if rgb.ndim == 3 else rgb, **options)
    return path


def exif(orientation):
    """Make an APP1 segment with the picture's orientation."""
    tiff = b"II*\0" + struct.pack("<IHHHIHHI", 8, 1, 0x0112, 3, 1, orientation, 0, 0)
    body = b"Exif\0\0" + tiff
    return b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body


def test_a_photo(tmp_path, astronaut, face_model):
    portrait = load_portrait(save(tmp_path / "a.png", astronaut), model=lambda: face_model)
    assert np.array_equal(portrait.rgb, astronaut)
    assert portrait.notes == ()
    assert portrait.face.picture_size == (512, 512)


@pytest.mark.parametrize(("orientation", "turns"), [(6, 1), (8, 3), (3, 2)])
def test_exif_rotation_is_applied(tmp_path, astronaut, orientation, turns):
    made, data = cv2.imencode(
        ".jpg", np.rot90(astronaut[..., ::-1], turns).copy(), [cv2.IMWRITE_JPEG_QUALITY, 98]
    )
    assert made
    raw = data.tobytes()
    (tmp_path / "a.jpg").write_bytes(raw[:2] + exif(orientation) + raw[2:])
    rgb, _ = read_picture(tmp_path / "a.jpg", max_side=MAX)
    assert np.abs(rgb.astype(int) - astronaut).mean() < 3


def test_a_photo_of_a_phone_says_what_to_do(tmp_path):
    path = tmp_path / "a.heic"
    path.write_bytes(struct.pack(">I4s4sI8s", 24, b"ftyp", b"heic", 0, b"mif1heic") + bytes(99))
    with pytest.raises(InputError, match=r"a\.heic: HEIC pictures cannot be read; save it as JPEG"):
        read_picture(path, max_side=MAX)


def test_alpha_lies_on_white(tmp_path, astronaut):
    bgra = np.dstack((astronaut[..., ::-1], np.full(astronaut.shape[:2], 255, np.uint8)))
    bgra[:, :100, 3] = 0
    assert cv2.imwrite(str(tmp_path / "a.png"), bgra)
    rgb, notes = read_picture(tmp_path / "a.png", max_side=MAX)
    assert (rgb[:, :100] == 255).all()
    assert np.array_equal(rgb[:, 100:], astronaut[:, 100:])
    assert "white" in notes[0]


def write_tiff(path, rgba, *, extra, is_big=False):
    """Write an uncompressed TIFF of one strip (TIFF 6.0 or BigTIFF), uint8 or uint16 [H, W, 4], with ExtraSamples."""
    height, width = rgba.shape[:2]
    bits = 8 * rgba.itemsize
    tags = [
        (256, 4, width),
        (257, 4, height),
        (259, 3, 1),
        (262, 3, 2),
        (273, 4, 0),
        (277, 3, 4),
        (278, 4, height),
    ]
    tags += [(279, 4, rgba.nbytes), (284, 3, 1), (338, 3, extra)]
    if is_big:  # its directory is after the samples, as from libtiff
        samples = 16
        entry, four_bits = "<HHQQ", sum(bits << 16 * place for place in range(4))
        head = struct.pack("<2sHHHQ", b"II", 43, 8, 0, 16 + rgba.nbytes) + rgba.tobytes()
        head += struct.pack("<Q", len(tags) + 1)
    else:
        four_bits = 8 + 2 + 12 * (len(tags) + 1) + 4  # their place: they do not fit into the directory
        samples = four_bits + 8
        entry, head = "<HHII", struct.pack("<2sHIH", b"II", 42, 8, len(tags) + 1)
    tags.insert(2, (258, 3, four_bits))
    for tag, kind, value in tags:
        head += struct.pack(entry, tag, kind, 4 if tag == 258 else 1, samples if tag == 273 else value)
    behind = bytes(8) if is_big else bytes(4) + struct.pack("<4H", *[bits] * 4) + rgba.tobytes()
    path.write_bytes(head + behind)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize(("extra", "multiplied"), [(1, True), (2, False)])
@pytest.mark.parametrize("is_big", [False, True])
def test_half_transparent_colours_of_a_tiff(tmp_path, dtype, extra, multiplied, is_big):
    peak = np.iinfo(dtype).max
    colour, alpha = np.array([1.0, 0.5, 0.25]), np.linspace(0, 1, 33)[None, :, None]
    stored = np.broadcast_to(colour, (20, 33, 3)) * (alpha if multiplied else 1)
    rgba = np.dstack((stored, np.broadcast_to(alpha, (20, 33, 1))))
    write_tiff(tmp_path / "a.tif", np.rint(rgba * peak).astype(dtype), extra=extra, is_big=is_big)
    rgb, _ = read_picture(tmp_path / "a.tif", max_side=MAX)
    shown = 255 * (colour * alpha + 1 - alpha)
    assert np.abs(rgb - shown).max() < 2


def test_a_large_tiff(tmp_path):
    rgba = np.full((512, 600, 4), 255, np.uint8)
    rgba[..., 1] = 40
    write_tiff(tmp_path / "a.tif", rgba, extra=2, is_big=True)
    rgb, notes = read_picture(tmp_path / "a.tif", max_side=1024)
    assert (rgb == (255, 40, 255)).all()
    assert notes == []
    whole = (tmp_path / "a.tif").read_bytes()
    for damaged in (
        whole[:-200],
        *(whole[:8] + struct.pack("<Q", at) + whole[16:] for at in (1 << 62, 1 << 63)),
    ):
        (tmp_path / "a.tif").write_bytes(damaged)
        with pytest.raises(InputError, match="or damaged"):
            read_picture(tmp_path / "a.tif", max_side=1024)


def test_sixteen_bits_and_grey(tmp_path, astronaut):
    save(tmp_path / "deep.png", astronaut.astype(np.uint16) * 257)
    rgb, _ = read_picture(tmp_path / "deep.png", max_side=MAX)
    assert np.abs(rgb.astype(int) - astronaut).max() <= 1
    save(tmp_path / "grey.png", astronaut[..., 1])
    rgb, _ = read_picture(tmp_path / "grey.png", max_side=MAX)
    assert np.array_equal(rgb[..., 0], astronaut[..., 1]) and np.array_equal(rgb[..., 2], astronaut[..., 1])


def test_cmyk_is_converted(tmp_path, astronaut):
    image = pytest.importorskip("PIL.Image")
    image.fromarray(astronaut).convert("CMYK").save(tmp_path / "a.jpg", quality=95)
    rgb, _ = read_picture(tmp_path / "a.jpg", max_side=MAX)
    assert rgb.shape == astronaut.shape
    assert np.abs(rgb.astype(int) - astronaut).mean() < 12


def test_colours_of_a_phone_are_srgb(tmp_path, astronaut):
    """Check Display P3: read as sRGB it looks dull, here by more than three levels."""
    path = tmp_path / "phone.png"
    path.write_bytes(with_profile(".png", astronaut, icc_profile(P3_COLORANTS)))
    rgb, _ = read_picture(path, max_side=MAX)
    planes = np.moveaxis(astronaut, -1, 0).astype(np.float32) / 255
    expected = (
        look_alike(ColorSpec(primaries=12, transfer=13), ColorSpec(primaries=1, transfer=13))(planes) * 255
    )
    assert np.abs(rgb - np.moveaxis(expected, 0, -1)).max() <= 0.51
    assert np.abs(rgb.astype(int) - astronaut).mean() > 3


def test_huge_pictures_are_shrunk(tmp_path, astronaut, face_model):
    big = cv2.resize(astronaut, (2600, 2600))
    portrait = load_portrait(save(tmp_path / "big.jpg", big), model=lambda: face_model, max_side=1000)
    assert portrait.rgb.shape == (1000, 1000, 3)
    assert "shrunk to 1000x1000" in portrait.notes[0]
    left, _, right, _ = portrait.face.box
    assert 300 < left < right < 600


def test_a_small_face_in_a_large_picture_is_found(tmp_path, astronaut, face_model):
    wide = np.full((1400, 2400, 3), 160, np.uint8)
    wide[800:1160, 1900:2260] = cv2.resize(astronaut, (360, 360), interpolation=cv2.INTER_AREA)
    portrait = load_portrait(save(tmp_path / "wide.png", wide), model=lambda: face_model)
    left, top, right, bottom = portrait.face.box
    assert 2000 < left < right < 2120 and 830 < top < bottom < 960


def test_a_face_that_fills_the_picture_is_found(tmp_path, astronaut, face_model):
    tight = cv2.resize(astronaut[60:215, 170:285], None, fx=3, fy=3)
    portrait = load_portrait(save(tmp_path / "tight.png", tight), model=lambda: face_model)
    assert portrait.face.size_pixels > 200


def test_of_several_faces_one_moves(tmp_path, astronaut, face_model):
    head = astronaut[40:230, 130:320]
    two = np.full((512, 1000, 3), 190, np.uint8)
    two[100:400, 40:340], two[40:460, 540:960] = cv2.resize(head, (300, 300)), cv2.resize(head, (420, 420))
    path = save(tmp_path / "two.png", two)
    largest = load_portrait(path, model=lambda: face_model)
    assert "2 faces" in largest.notes[0]
    first, second = (load_portrait(path, model=lambda: face_model, face=index) for index in (0, 1))
    assert first.face.box[0] < second.face.box[0] == largest.face.box[0]
    with pytest.raises(InputError, match=r"there is no face 5, only 2 \(counted from 0"):
        load_portrait(path, model=lambda: face_model, face=5)


def test_a_smaller_face_beside_is_looked_for_in_finer_views(tmp_path, astronaut, face_model, monkeypatch):
    from vitascope.animation import portrait

    group = np.full((512, 1536, 3), 190, np.uint8)
    group[:, :512], group[:320, 1100:1420] = astronaut, cv2.resize(astronaut, (320, 320))
    path = save(tmp_path / "group.png", group)
    both = load_portrait(path, model=lambda: face_model)
    assert "2 faces" in both.notes[0]
    assert both.face.box[0] < 300
    assert load_portrait(path, model=lambda: face_model, face=1).face.box[0] > 1000
    monkeypatch.setattr(portrait, "_OTHERS_VIEW", np.inf)
    assert load_portrait(path, model=lambda: face_model).notes == ()


@pytest.mark.parametrize("settles", [True, False])
def test_points_that_were_laid_wrongly_are_looked_for_again(
    tmp_path, astronaut, face_model, settles, monkeypatch
):
    from vitascope.animation import portrait

    away = itertools.count(30, 15)

    class Astray(portrait.FaceTracker):
        def find(self, rgb):
            wrong = rgb.shape[0] > 300 or not settles
            shift = np.float32((0, next(away) if wrong else 0, 0))
            return [replace(face, landmarks=face.landmarks + shift) for face in super().find(rgb)]

    path = save(tmp_path / "a.png", astronaut)
    true = load_portrait(path, model=lambda: face_model).face
    monkeypatch.setattr(portrait, "FaceTracker", Astray)
    if settles:
        found = load_portrait(path, model=lambda: face_model).face
        assert np.abs(found.landmarks - true.landmarks)[:, :2].max() < 0.05 * true.size_pixels
    else:
        with pytest.raises(InputError, match="no face found with confidence in the portrait"):
            load_portrait(path, model=lambda: face_model)


def test_a_picture_of_too_many_pixels_says_so(tmp_path, astronaut, face_model, monkeypatch):
    from vitascope.animation import portrait

    monkeypatch.setattr(portrait, "_MAX_PIXELS", 200_000)
    path = save(tmp_path / "large.png", astronaut)
    with pytest.raises(
        InputError, match=r"512x512 is too many pixels \(the limit is 0\.2 million\); shrink it"
    ):
        load_portrait(path, model=lambda: face_model)


def test_a_picture_that_ffmpeg_tells_no_size_of_says_it_too(tmp_path, face_model):
    path = write_large_png(tmp_path / "large.png", side=16384)
    with pytest.raises(InputError, match=r"16384x16384 is too many pixels \(the limit is 268 million\)"):
        load_portrait(path, model=lambda: face_model)


def test_no_face_says_so(tmp_path, face_model):
    path = save(tmp_path / "none.png", np.full((300, 400, 3), 120, np.uint8))
    with pytest.raises(InputError, match="no face found in the portrait"):
        load_portrait(path, model=lambda: face_model, guess=tmp_path / "guess.png")
    assert not (tmp_path / "guess.png").exists()


def test_the_best_guess_is_shown(tmp_path, face_model, astronaut, astronaut_face, monkeypatch):
    from vitascope.animation import portrait

    monkeypatch.setattr(
        portrait, "_find", lambda *_, confidence: [astronaut_face] if confidence < 0.2 else []
    )
    path = save(tmp_path / "cartoon.png", astronaut)
    with pytest.raises(InputError, match=r"best guess is at 1\d\d,\d+ to \d+,\d+, shown in .*guess\.png"):
        load_portrait(path, model=lambda: face_model, guess=tmp_path / "guess.png")
    shown = cv2.imread(str(tmp_path / "guess.png"))
    assert (shown == (0, 0, 255)).all(axis=2).sum() > 300


def test_a_profile_is_warned_of(tmp_path, face_model, astronaut, astronaut_face, monkeypatch):
    from vitascope.animation import portrait
    from vitascope.animation.face import rotation_from_degrees

    flip = np.diag([1, -1, -1])
    turned = np.eye(4, dtype=np.float32)
    turned[:3, :3] = flip @ rotation_from_degrees(65, 0, 0) @ flip
    monkeypatch.setattr(portrait, "_find", lambda *_, **__: [replace(astronaut_face, transform=turned)])
    loaded = load_portrait(save(tmp_path / "p.png", astronaut), model=lambda: face_model)
    assert "turned by 65 degrees" in loaded.notes[0]


def test_of_a_landscape_the_likeliest_spot_is_shown(tmp_path, face_model):
    sunset = np.empty((400, 600, 3), np.uint8)
    sunset[:200], sunset[200:] = (120, 180, 230), (60, 140, 60)
    cv2.circle(sunset, (300, 120), 60, (250, 200, 60), -1)
    path = save(tmp_path / "sunset.png", sunset)
    with pytest.raises(InputError, match=r"the best guess is at \d+,\d+ to \d+,\d+, shown in .*guess\.png"):
        load_portrait(path, model=lambda: face_model, guess=tmp_path / "guess.png")
    marked = (cv2.imread(str(tmp_path / "guess.png")) == (0, 0, 255)).all(axis=2)
    left, right = np.flatnonzero(marked.any(axis=0))[[0, -1]]
    assert 200 < left < 300 < right < 400


@pytest.mark.parametrize("side", [1, 2, 48])
def test_a_tiny_picture_is_called_tiny(tmp_path, face_model, astronaut, side):
    small = cv2.resize(astronaut, (side, side), interpolation=cv2.INTER_AREA)
    with pytest.raises(InputError, match=f"no face found.*portrait.*only {side}x{side} pixels"):
        load_portrait(save(tmp_path / "tiny.png", small), model=lambda: face_model)


def test_a_face_that_is_too_small_is_named_with_what_helps(tmp_path, face_model, astronaut):
    face = cv2.resize(astronaut[20:220, 130:330], (64, 64), interpolation=cv2.INTER_AREA)
    path = save(tmp_path / "small.png", face)
    with pytest.raises(InputError, match=r"small\.png: the face is \d+ pixels wide.*a larger picture"):
        load_portrait(path, model=lambda: face_model)
    with pytest.raises(
        InputError, match=r"small\.png: the face is \d+ pixels wide.*crop the picture: .* shrunk to 64"
    ):
        load_portrait(save(path, cv2.resize(face, None, fx=4, fy=4)), model=lambda: face_model, max_side=64)


def test_sunglasses_hide_no_face(tmp_path, face_model, astronaut, astronaut_face):
    masked = astronaut.copy()
    eyes = [astronaut_face.landmarks[[outer, inner], :2] for outer, inner in ((33, 133), (263, 362))]
    for corners in eyes:
        width = float(np.linalg.norm(corners[0] - corners[1]))
        centre = tuple(int(place) for place in corners.mean(axis=0))
        cv2.ellipse(masked, centre, (int(width * 0.95), int(width * 0.75)), 0, 0, 360, (15, 15, 15), -1)
    portrait = load_portrait(save(tmp_path / "sun.png", masked), model=lambda: face_model)
    away = np.linalg.norm((portrait.face.landmarks - astronaut_face.landmarks)[:, :2], axis=1)
    assert np.median(away) < 0.05 * astronaut_face.size_pixels


def drawn_face():
    """Draw a face as children do, with lips and a nose: uint8 [500, 500, 3]."""
    skin, ink = (250, 205, 170), (0, 0, 0)
    picture = np.full((500, 500, 3), 255, np.uint8)
    cv2.ellipse(picture, (250, 260), (130, 170), 0, 0, 360, skin, -1)
    cv2.ellipse(picture, (250, 260), (130, 170), 0, 0, 360, ink, 4)
    for x in (195, 305):
        cv2.ellipse(picture, (x, 225), (32, 22), 0, 0, 360, (255, 255, 255), -1)
        cv2.ellipse(picture, (x, 225), (32, 22), 0, 0, 360, ink, 3)
        cv2.circle(picture, (x, 225), 13, (30, 70, 120), -1)
        cv2.ellipse(picture, (x, 185), (40, 14), 0, 180, 360, (70, 40, 20), 7)
    cv2.ellipse(picture, (250, 120), (135, 70), 0, 180, 360, (70, 40, 20), -1)
    cv2.polylines(picture, [np.array([[250, 235], [240, 290], [258, 292]])], False, (190, 140, 110), 4)
    cv2.ellipse(picture, (250, 345), (50, 18), 0, 0, 360, (210, 80, 80), -1)
    return picture


def test_a_cartoon_with_a_whole_face_is_one(tmp_path, face_model):
    face = load_portrait(save(tmp_path / "drawn.png", drawn_face()), model=lambda: face_model).face
    left, top, right, bottom = face.box
    assert 90 < left < 180 and 320 < right < 410 and 80 < top < bottom < 460
    assert np.linalg.norm(face.landmarks[13, :2] - (250, 345)) < 25  # the lower edge of the upper lip


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no picture",
        b"\x89PNG\r\n\x1a\n" + bytes(40),
        b'<svg xmlns="http://www.w3.org/2000/svg"/>',  # FFmpeg names it, but cannot decode it
    ],
    ids=["empty", "text", "png", "svg"],
)
def test_what_is_no_picture(tmp_path, data):
    (tmp_path / "x.png").write_bytes(data)
    with pytest.raises(InputError, match="not a readable picture"):
        read_picture(tmp_path / "x.png", max_side=MAX)
    with pytest.raises(InputError, match="cannot be read"):
        read_picture(tmp_path / "missing.png", max_side=MAX)


def test_what_the_decoder_prints_is_not_shown(tmp_path, capfd):
    picture = np.zeros((8, 8, 3), np.float32)
    assert cv2.imwrite(str(tmp_path / "deep.tiff"), picture)
    with pytest.raises(InputError, match="not a readable picture"):
        read_picture(tmp_path / "deep.tiff", max_side=MAX)
    assert capfd.readouterr() == ("", "")


def test_odd_sides_lose_a_row_and_a_column(tmp_path, astronaut, face_model):
    even = load_portrait(save(tmp_path / "a.png", astronaut), model=lambda: face_model)
    assert with_even_sides(even) is even
    odd = replace(even, rgb=astronaut[:501, :503])
    made = with_even_sides(odd)
    assert np.array_equal(made.rgb, astronaut[:500, :502])
    assert made.face.picture_size == (502, 500)


def test_live_runs_know_the_size_of_their_picture(tmp_path, astronaut, model_store, monkeypatch):
    opened = []

    def open_animator(portrait, **_):
        opened.append(portrait)
        raise InputError("nothing is animated here")

    monkeypatch.setattr(run, "open_animator", open_animator)
    path = save(tmp_path / "a.png", astronaut[:501, :503])
    with pytest.raises(InputError, match="nothing is animated"):
        run.animate_live(path, "a.motion", ["null"], loaded=load_settings(), store=model_store)
    assert opened[0].rgb.shape == (500, 502, 3)
    assert opened[0].face.picture_size == (502, 500)


def png_of_zeros(path, width, height):
    """Make a transparent black PNG of any size, in a few bytes a row and without its pixels in memory."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    # Rows are equal: one is compressed, up to the end of a byte, and repeated.
    packer, size = zlib.compressobj(9, wbits=-15), height * (1 + 4 * width)
    row = packer.compress(bytes(1 + 4 * width)) + packer.flush(zlib.Z_FULL_FLUSH)
    adler = struct.pack(">HH", size % 65521, 1)  # of zeros
    data = b"\x78\xda" + row * height + packer.flush() + adler
    head = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b""))
    return path


def test_a_small_file_of_a_huge_picture_is_refused_before_it_is_decoded(tmp_path, monkeypatch):
    monkeypatch.setattr(cv2, "imdecode", lambda *_: pytest.fail("decoded"))
    path = png_of_zeros(tmp_path / "huge.png", 65536, 4096)
    with pytest.raises(InputError, match=r"too many pixels.* limit is 268 million"):
        read_picture(path, max_side=MAX)


def test_a_portrait_is_a_file(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    for path in (tmp_path / "pipe.png", tmp_path, Path("/dev/zero")):
        with pytest.raises(InputError, match="a folder, a pipe or a device"):
            read_picture(path, max_side=MAX)


def test_transparency_is_blended_row_by_row_as_in_one_go(tmp_path, monkeypatch):
    rng = np.random.default_rng(7)
    path = tmp_path / "soft.png"
    cv2.imwrite(str(path), rng.integers(0, 256, (101, 67, 4), np.uint8))
    whole, _ = read_picture(path, max_side=MAX)
    monkeypatch.setattr("vitascope.animation.portrait._ROWS_BLENDED", 7)
    parts, notes = read_picture(path, max_side=MAX)
    np.testing.assert_array_equal(parts, whole)
    assert notes == ["transparent parts of the portrait are shown on white"]
