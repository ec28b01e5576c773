"""Tests of the mesh animator on a real portrait: what moves, what stays, and what a tracker reads from the result."""

from __future__ import annotations

import itertools
from dataclasses import replace

import cv2
import numpy as np
import pytest
from faces import made_face

from vitascope.animation.canonical_mesh import CHIN, FACE_OVAL, LOWER_LIP_ROWS, UPPER_LIP_ROWS
from vitascope.animation.expression import ExpressionBasis
from vitascope.animation.face import BLENDSHAPE_INDEX, FaceMotion, rotation_from_degrees
from vitascope.animation.face_reading import read_face
from vitascope.animation.mesh import maps
from vitascope.animation.mesh.animator import MeshAnimator
from vitascope.animation.mesh.deform import Gains
from vitascope.animation.mesh.lips import CANONICAL_WIDTH_CM, LipFit, gap_cm
from vitascope.animation.mesh.rig import build_rig
from vitascope.animation.speech.visemes import PARAMETERS, weights_of
from vitascope.animation.tracking import FaceTracker
from vitascope.errors import InputError, UsageError


@pytest.fixture(scope="module")
def animator(mesh, astronaut, astronaut_face):
    with MeshAnimator(mesh) as made:
        made.set_portrait(astronaut, face=astronaut_face)
        yield made


@pytest.fixture(scope="module")
def read(face_model):
    """Return a function that tracks one picture."""
    with FaceTracker(face_model, mode="image") as tracker:
        yield lambda picture: tracker.find(picture)[0]


def showing(**named):
    weights = np.zeros(52, np.float32)
    for name, value in named.items():
        for full in (name, f"{name}Left", f"{name}Right"):
            if full in BLENDSHAPE_INDEX:
                weights[BLENDSHAPE_INDEX[full]] = value
    return FaceMotion(blendshapes=weights)


def test_the_neutral_is_the_portrait(animator, astronaut):
    still = animator.animate(FaceMotion())
    assert still.shape == astronaut.shape and still.dtype == np.uint8
    difference = np.abs(still.astype(int) - astronaut)
    assert difference.mean() < 0.05
    assert np.percentile(difference, 99.9) <= 8


def test_a_portrait_that_bares_its_teeth_meets_its_lips_for_sounds_that_want_it(
    animator, astronaut_face, mesh
):
    rest = read_face(mesh, astronaut_face).vertices
    assert gap_cm(rest) > 0.6

    def gap(**shape):
        named = [shape.get(name, 0.0) for name in PARAMETERS]
        weights = weights_of(np.array(named, np.float32))
        return gap_cm(animator.bent(FaceMotion(blendshapes=weights)).vertices)

    assert gap() == pytest.approx(gap_cm(rest), abs=0.1)  # in silence, the portrait's smile stays
    assert gap(seal=1.0, jaw=0.3) < 0.05
    assert gap(pucker=0.8, jaw=0.08) < 0.6 * gap_cm(rest)
    # The further a jaw opens, the further apart are the lips.
    assert 0.2 < gap(jaw=0.3) < gap(jaw=0.5) < gap(jaw=0.8)
    assert gap(jaw=0.8) > 1.3


@pytest.fixture
def opened(mesh):
    """Open an animator with a portrait whose mouth is wide open; also returns the gap of its lips."""
    jaw = FaceMotion.authored({"jawOpen": 0.8}).blendshapes
    face = made_face(mesh, displacement=ExpressionBasis(mesh).displacement(jaw))
    with MeshAnimator(mesh) as made:
        made.set_portrait(np.full((480, 640, 3), 150, np.uint8), face=replace(face, blendshapes=jaw))
        yield made, gap_cm(made.bent(FaceMotion()).vertices)


def gap_of_shape(animator, *, pause=0.0, **shape):
    named = [shape.get(name, 0.0) for name in PARAMETERS]
    weights = weights_of(np.array(named, np.float32), pause=pause)
    return gap_cm(animator.bent(FaceMotion(blendshapes=weights)).vertices)


def test_a_mouth_that_is_open_in_the_picture_rests_in_a_voices_pauses(opened, animator):
    for portrait in (opened[0], animator):
        assert gap_of_shape(portrait, pause=1.0) < 0.05
        assert gap_of_shape(portrait, pause=0.5) < 0.05


def test_a_weak_sound_does_not_open_a_mouth_as_far_as_in_the_picture(opened):
    portrait, own = opened
    assert own > 1.5
    assert 0.05 < gap_of_shape(portrait, jaw=0.1, bare=0.3) < 0.6  # an s, which had 2.5


def test_a_mouth_that_is_open_in_the_picture_opens_for_a_vowel_as_a_shut_one_does(opened, mesh):
    with MeshAnimator(mesh) as shut:
        shut.set_portrait(np.full((480, 640, 3), 150, np.uint8), face=made_face(mesh))
        wanted = gap_of_shape(shut, jaw=0.4)
    assert gap_of_shape(opened[0], jaw=0.4) == pytest.approx(wanted, abs=0.15)  # it was 0.23


def test_lips_that_meet_do_not_press_one_another_out_of_sight(mesh):
    """Check a p, which left a ragged edge of closed lips, without the line between them."""
    apart = ExpressionBasis(mesh).lips_apart
    closed = made_face(mesh, displacement=apart * np.float32(-gap_cm(mesh.vertices) / gap_cm(apart)))
    with MeshAnimator(mesh) as shut:
        shut.set_portrait(np.full((480, 640, 3), 150, np.uint8), face=closed)
        rest = shut.bent(FaceMotion()).vertices

        def thickness(vertices, rows):
            return float(vertices[rows[0][5], 1] - vertices[rows[-1][5], 1])

        for shape in ({"seal": 1.0}, {"seal": 1.0, "jaw": 0.3}, {"seal": 0.6, "pucker": 0.3}):
            weights = weights_of(np.array([shape.get(name, 0.0) for name in PARAMETERS], np.float32))
            now = shut.bent(FaceMotion(blendshapes=weights)).vertices
            assert abs(gap_cm(now)) < 0.05
            for rows in (UPPER_LIP_ROWS, LOWER_LIP_ROWS):
                assert thickness(now, rows) / thickness(rest, rows) > 0.8


def test_what_is_away_from_the_head_is_untouched(animator, astronaut, astronaut_face):
    motion = replace(showing(jawOpen=1.0, mouthSmile=0.5), rotation=rotation_from_degrees(20, 10, 15))
    moved = animator.animate(motion)
    changed = (moved != astronaut).any(axis=2)
    ys, xs = np.nonzero(changed)
    left, top, right, bottom = astronaut_face.box
    width, height = right - left, bottom - top
    assert changed.any()
    assert xs.min() > left - width and xs.max() < right + width
    assert ys.max() < bottom + height


@pytest.mark.parametrize(
    ("pose", "index"), [((15, 0, 0), 0), ((-15, 0, 0), 0), ((0, 12, 0), 1), ((0, -12, 0), 1), ((0, 0, 20), 2)]
)
def test_the_head_turns_as_asked(animator, astronaut_face, read, pose, index):
    turned = read(animator.animate(FaceMotion(rotation=rotation_from_degrees(*pose))))
    change = np.subtract(turned.angles_degrees, astronaut_face.angles_degrees)
    assert 0.5 * abs(pose[index]) < change[index] * np.sign(pose[index]) < 1.5 * abs(pose[index])


def test_a_tracker_reads_the_expression(animator, astronaut_face, read):
    assert (
        read(animator.animate(showing(jawOpen=1.0))).blendshape("jawOpen")
        > astronaut_face.blendshape("jawOpen") + 0.2
    )
    closed = read(animator.animate(showing(eyeBlink=0.62)))
    for side in ("Left", "Right"):
        assert closed.blendshape(f"eyeBlink{side}") > astronaut_face.blendshape(f"eyeBlink{side}") + 0.15
    looking = read(animator.animate(showing(eyeLookOutLeft=1.0, eyeLookInRight=1.0)))
    assert looking.blendshape("eyeLookOutLeft") > astronaut_face.blendshape("eyeLookOutLeft") + 0.15
    raised = read(animator.animate(showing(browInnerUp=1.0)))
    assert raised.blendshape("browInnerUp") > astronaut_face.blendshape("browInnerUp") + 0.15


def test_one_eye_can_wink(animator, astronaut, astronaut_face):
    winked = animator.animate(replace(showing(), blendshapes=showing(eyeBlinkLeft=0.62).blendshapes))
    changed = np.abs(winked.astype(int) - astronaut).sum(axis=2)
    right, left = (astronaut_face.landmarks[index, :2].astype(int) for index in (468, 473))
    assert changed[left[1] - 3 : left[1] + 3, left[0] - 5 : left[0] + 5].mean() > 40
    assert changed[right[1] - 3 : right[1] + 3, right[0] - 5 : right[0] + 5].mean() < 5


def test_calibration_brings_readings_to_the_drivers(animator, astronaut, astronaut_face, mesh, read):
    motion = showing(jawOpen=0.5)
    before = read(animator.animate(motion)).blendshape("jawOpen")
    with MeshAnimator(mesh) as calibrated:
        calibrated.set_portrait(astronaut, face=astronaut_face)
        calibrated.calibrate(read_inside(read))
        after = read(calibrated.animate(motion)).blendshape("jawOpen")
        still = calibrated.animate(FaceMotion())
    wanted = astronaut_face.blendshape("jawOpen") + 0.5
    assert abs(after - wanted) < abs(before - wanted)
    assert np.array_equal(still, animator.animate(FaceMotion()))


def read_inside(read):
    return lambda picture: read(np.ascontiguousarray(picture))


def test_a_portrait_that_no_tracker_reads_is_left_as_it_is(mesh, astronaut, astronaut_face, animator):
    with MeshAnimator(mesh) as blind:
        blind.set_portrait(astronaut, face=astronaut_face)
        blind.calibrate(lambda _: None)
        assert np.array_equal(blind.animate(showing(jawOpen=0.5)), animator.animate(showing(jawOpen=0.5)))


@pytest.mark.parametrize("gain", ["expression", "mouth"])
def test_gains_act(mesh, astronaut, astronaut_face, gain):
    with MeshAnimator(mesh, gains=Gains(**{gain: 0.0})) as still:
        still.set_portrait(astronaut, face=astronaut_face)
        assert np.abs(still.animate(showing(jawOpen=1.0)).astype(int) - astronaut).mean() < 0.1
        still.gains = Gains()
        assert np.abs(still.animate(showing(jawOpen=1.0)).astype(int) - astronaut).mean() > 0.3


def test_pose_eyes_gaze_and_brows_have_gains_of_their_own(mesh, astronaut, astronaut_face):
    cases = {
        "pose": FaceMotion(rotation=rotation_from_degrees(15, 0, 0)),
        "eyes": showing(eyeBlink=0.62),
        "gaze": showing(eyeLookOutLeft=1.0, eyeLookInRight=1.0),
        "brows": showing(browOuterUp=1.0),
    }
    with MeshAnimator(mesh) as made:
        made.set_portrait(astronaut, face=astronaut_face)
        still = made.animate(FaceMotion()).astype(int)
        for name, motion in cases.items():
            made.gains = Gains()
            full = np.abs(made.animate(motion) - still).mean()
            made.gains = Gains(**{name: 0.0})
            none = np.abs(made.animate(motion) - still).mean()
            assert none < 0.35 * full, name


def test_hostile_motion_stays_in_bounds(animator, astronaut):
    rng = np.random.default_rng(0)
    wild = FaceMotion(
        rotation=rotation_from_degrees(89, -80, 170),
        scale=50.0,
        translation=np.array([500, -900], np.float32),
        vertices=rng.normal(scale=30, size=(468, 3)).astype(np.float32),
        eye_closure=np.array([9, -9], np.float32),
        gaze=np.full((2, 2), 7, np.float32),
    )
    assert animator.animate(wild).shape == astronaut.shape


def test_out_is_written_to_and_checked(animator, astronaut):
    out = np.empty_like(astronaut)
    assert animator.animate(FaceMotion(), out=out) is out
    assert np.array_equal(out, animator.animate(FaceMotion()))
    with pytest.raises(UsageError, match="the portrait"):
        animator.animate(FaceMotion(), out=np.empty((3, 3, 3), np.uint8))


def test_without_a_portrait_it_says_so(mesh):
    with pytest.raises(UsageError, match="no portrait"):
        MeshAnimator(mesh).animate(FaceMotion())


def test_a_tiny_face_is_refused(mesh, astronaut, astronaut_face):
    tiny = replace(astronaut_face, landmarks=astronaut_face.landmarks * 0.2)
    with pytest.raises(InputError, match="pixels wide"):
        MeshAnimator(mesh).set_portrait(astronaut, face=tiny)


@pytest.mark.parametrize("shift", [(5000, 0), (-600, 0), (0, -5000)])
def test_a_face_beside_the_picture_is_refused(mesh, astronaut, astronaut_face, shift):
    away = replace(astronaut_face, landmarks=astronaut_face.landmarks + np.float32([*shift, 0]))
    with pytest.raises(InputError, match="outside the picture"):
        MeshAnimator(mesh).set_portrait(astronaut, face=away)


def test_a_driver_that_stands_still_does_not_shake_the_portrait(animator, mesh, astronaut_face):
    from vitascope.animation.motion import MotionEstimator

    rng = np.random.default_rng(0)
    following = MotionEstimator(mesh)
    places = []
    for index in range(90):
        # MediaPipe's landmarks of a still 512x512 video vary by about this much.
        shaken = astronaut_face.landmarks + rng.normal(scale=0.15, size=(478, 3)).astype(np.float32)
        face = replace(astronaut_face, landmarks=shaken, pts_seconds=index / 30)
        places.append(animator.bent(following.update(face, pts_seconds=index / 30)).places)
    shaking = np.array(places[30:]).std(axis=0)
    assert np.sqrt((shaking**2).mean()) < 0.3


def test_lips_that_a_driver_draws_together_take_a_portraits_own_smile(animator, astronaut_face, mesh):
    """Check the astronaut, whose smile raises the corners; they must not hang either."""
    corners, middle = [61, 291], [13, 14]

    def smile(motion):
        vertices = animator.bent(motion).vertices
        return float(vertices[corners, 1].mean() - vertices[middle, 1].mean())

    pucker = ExpressionBasis(mesh).field("mouthPucker")
    at_rest = smile(FaceMotion(vertices=np.zeros_like(pucker)))
    assert at_rest > 0.2
    assert smile(FaceMotion(vertices=pucker)) == pytest.approx(-0.05, abs=0.03)
    assert smile(FaceMotion(vertices=0.05 * pucker)) == pytest.approx(at_rest, abs=0.05)


def test_in_a_shout_a_portraits_own_smile_does_not_hold_up_the_corners(animator, mesh, monkeypatch):
    corners, upper = [61, 291], 13

    def below():
        vertices = animator.bent(FaceMotion(vertices=shout)).vertices
        return float(vertices[upper, 1] - vertices[corners, 1].mean())

    shout = ExpressionBasis(mesh).field("jawOpen")
    lowered = below()
    monkeypatch.setattr(LipFit, "_held_up", lambda *_: np.zeros(2, np.float32))
    assert lowered > below() + 0.1


def test_a_portrait_that_smiles_relaxes_with_a_driver_whose_rest_does_not(animator, astronaut_face, mesh):
    """Check that the driver's smile shows; a driver who smiles at rest or is absent changes nothing."""
    grin = showing(mouthSmile=float(astronaut_face.blendshape("mouthSmileLeft"))).blendshapes
    still = np.zeros((468, 3), np.float32)

    def width(motion):
        right, left = animator.bent(motion).vertices[[61, 291]]
        return float(left[0] - right[0])

    own = width(FaceMotion(vertices=still, presence=0.0))
    assert own == pytest.approx(width(FaceMotion()), abs=1e-3)
    relaxed = width(FaceMotion(vertices=still))
    assert relaxed == pytest.approx(CANONICAL_WIDTH_CM, abs=0.05) and relaxed < 0.8 * own
    assert width(FaceMotion(vertices=still, neutral_blendshapes=grin, blendshapes=grin)) == pytest.approx(
        own, abs=0.01
    )
    smile = ExpressionBasis(mesh).displacement(grin)
    widths = [
        width(FaceMotion(vertices=share * smile, blendshapes=share * grin)) for share in (0.0, 0.3, 0.6, 1.0)
    ]
    assert all(later > earlier for earlier, later in itertools.pairwise(widths))
    # A driver who smiles as broadly leaves the mouth's width; it grew by a twentieth.
    assert widths[-1] == pytest.approx(own, rel=0.01)


def test_a_face_that_hardly_smiles_does_not_shake_with_a_drivers_noise(mesh, astronaut, astronaut_face):
    """Check a mouth that is wide for other reasons than a smile."""
    face = replace(astronaut_face, blendshapes=showing(mouthSmile=0.02, mouthStretch=0.8).blendshapes)
    with MeshAnimator(mesh) as animator:
        animator.set_portrait(astronaut, face=face)
        still = np.zeros((468, 3), np.float32)
        noise = [showing(mouthSmile=smile).blendshapes for smile in (0.0, 0.03)]
        first, second = (
            animator.bent(FaceMotion(vertices=still, blendshapes=weights)).vertices for weights in noise
        )
        assert np.abs(second - first).max() < 0.05  # centimetres


def test_lips_that_meet_show_no_dark_corners(animator, mesh):
    """Check a portrait that shows its teeth: closed lips are visible, with a line where they meet."""
    rest = animator.animate(FaceMotion())
    motion = FaceMotion(vertices=np.zeros((468, 3), np.float32))  # the driver's lips are closed at rest
    closed, places = animator.animate(motion), animator.bent(motion).places
    for corner in (78, 308):
        x, y = np.rint(places[corner]).astype(int)
        around = np.s_[y - 3 : y + 4, x - 3 : x + 4]
        assert closed[around].mean(axis=-1).min() > rest[around].mean(axis=-1).min() + 20
    column = closed[:, int(places[13, 0])].mean(axis=-1)
    line, lip = (int(places[point, 1]) for point in (13, 17))
    assert column[line - 2 : line + 3].min() < column[line + 3 : lip].mean() - 15


def test_what_lies_around_a_turned_face_follows_its_silhouette(mesh):
    """Check that a bulging cheek moves what is beside it, instead of the border behind it."""
    turned = made_face(mesh, yaw=-35, scale=20, centre=(320, 240))
    rings = build_rig(mesh, turned, size=(480, 640)).rings
    frontal = build_rig(mesh, made_face(mesh, scale=20), size=(480, 640)).rings
    assert frontal.rim.tolist() == list(FACE_OVAL)
    moved = rings.rim != np.array(FACE_OVAL)
    assert moved.any()
    centre = rings.sources[0].mean(axis=0)
    border = np.linalg.norm(turned.landmarks[list(FACE_OVAL), :2] - centre, axis=1)
    rim = np.linalg.norm(turned.landmarks[rings.rim, :2] - centre, axis=1)
    assert (rim[moved] > border[moved]).all()


def test_a_chin_that_drops_covers_the_neck(animator, mesh):
    """Check that the neck below is covered, not squeezed."""
    rest, shout = (
        animator.bent(FaceMotion(vertices=np.float32(strength) * ExpressionBasis(mesh).field("jawOpen")))
        for strength in (0, 1)
    )
    below = FACE_OVAL.index(CHIN)

    def down(points):
        return points[468:].reshape(-1, len(FACE_OVAL), 2)[:, below, 1]

    drop = down(shout.places)[1] - down(rest.places)[1]
    assert drop > 8  # edge of the chin
    assert np.array_equal(down(shout.sources)[:2], down(rest.sources)[:2])
    shown, drawn = (np.diff(down(points))[1:] for points in (shout.sources, shout.places))
    assert drawn[0] < 0.25 * shown[0]  # no gap between the chin's edge and the neck
    assert (shown >= 0).all() and (drawn[1:] > 0.3 * shown[1:]).all()


def test_hair_follows_in_a_tight_picture_as_in_a_roomy_one(mesh):
    """Check that the picture's border does not hold the head, and that new content is mirrored, not smeared."""
    rgb = np.repeat(np.random.default_rng(0).integers(0, 255, (60, 80, 1), np.uint8), 3, 2)
    rgb = cv2.resize(rgb, (640, 480), interpolation=cv2.INTER_CUBIC)
    face = made_face(mesh, scale=12, centre=(320, 240))
    left, top = (int(edge) - 12 for edge in face.box[:2])
    right, bottom = (int(edge) + 12 for edge in face.box[2:])
    tight = replace(face, landmarks=face.landmarks - np.float32([left, top, 0]))
    moved = FaceMotion(translation=np.float32([3.0, 1.5]))
    with MeshAnimator(mesh) as roomy, MeshAnimator(mesh) as cropped:
        roomy.set_portrait(rgb, face=face)
        cropped.set_portrait(rgb[top:bottom, left:right].copy(), face=tight)
        expected = roomy.bent(moved).places - np.float32([left, top])
        assert cropped.bent(moved).places == pytest.approx(expected, abs=0.05)
        drawn = cropped.animate(moved).astype(float)
        whole = roomy.animate(moved)[top:bottom, left:right]
    inner, whole = drawn[60:], whole[60:]
    assert np.abs(inner - whole)[:, 60:-60].mean() < 2  # the tight picture's content is drawn alike
    assert np.abs(np.diff(drawn[:12], axis=0)).mean() > 0.4 * np.abs(np.diff(drawn[60:], axis=0)).mean()


@pytest.mark.parametrize(("scale", "times"), [(8.0, 0), (40.0, 3)])
def test_eyes_and_mouth_are_drawn_again_only_where_their_maps_are_finer(mesh, monkeypatch, scale, times):
    """Check a small face, mapped pixel by pixel: redrawn it is equal, except for folds at patch edges."""
    size = (640, 480) if scale < 20 else (1280, 960)
    picture = np.random.default_rng(2).integers(0, 255, (size[1] // 8, size[0] // 8, 3), np.uint8)
    picture = cv2.resize(picture, size, interpolation=cv2.INTER_CUBIC)
    face = made_face(mesh, scale=scale, centre=(size[0] / 2, size[1] / 2))
    animator = MeshAnimator(mesh)
    animator.set_portrait(picture, face=replace(face, picture_size=size))
    motion = replace(showing(jawOpen=0.4, mouthSmile=0.5), rotation=rotation_from_degrees(8, 4, 3))
    drawn = []
    again = MeshAnimator._draw_feature
    monkeypatch.setattr(MeshAnimator, "_draw_feature", lambda *given: drawn.append(given) or again(*given))
    once = animator.animate(motion)
    assert len(drawn) == times
    if not times:
        portrait, bent = animator._portrait, animator.bent(motion)
        triangles = portrait.rig.skin_triangles
        in_order = triangles[np.argsort(-bent.depths[triangles].sum(axis=1), kind="stable")]
        plan = portrait.maps
        of_box, of_face = maps.draw_maps(
            bent.sources,
            bent.places,
            [
                (plan.far_triangles, plan.around),
                (np.concatenate((plan.near_triangles, in_order)), plan.face),
            ],
        )
        coarse = animator._coarse_map(portrait, of_box, of_face)
        picture = animator._skin_by_cpu(portrait, bent, None)
        skin, twice, rgba = portrait.layer, portrait.layer.copy(), portrait.creases.shaded(bent.vertices)
        for feature in plan.features:
            patch, order = (
                feature.patch(bent),
                np.argsort(-bent.depths[feature.triangles].sum(axis=1), kind="stable"),
            )
            of_feature = [(feature.triangles[order], maps.feature_grid(feature, patch))]
            (samples,) = maps.draw_maps(bent.sources, bent.places, of_feature)
            again(animator, rgba, plan.face, feature, patch, samples, coarse, twice)
        assert (np.abs(twice.astype(int) - skin).max(axis=-1) > 1).mean() < 1e-4
        assert once.shape == picture.shape


def test_a_cheek_before_the_dark_ends_where_a_map_of_every_pixel_lets_it_end(mesh, monkeypatch):
    """Check that the steps of a coarse map do not show: rows end where they do with the finest map."""
    size = (840, 750)
    face = made_face(mesh, yaw=-35, scale=22, centre=(376, 420))
    face = replace(face, picture_size=(size[1], size[0]))
    rgb = np.zeros((*size, 3), np.uint8)
    outline = cv2.convexHull(np.rint(face.landmarks[:468, :2]).astype(np.int32))
    cv2.fillConvexPoly(rgb, outline, (220, 180, 160))
    turned = FaceMotion(rotation=rotation_from_degrees(-9, 4, 10))
    rows, steps = [], []
    for count in (maps._ROWS_A_FACE, 1000):
        monkeypatch.setattr(maps, "_ROWS_A_FACE", count)
        with MeshAnimator(mesh) as animator:
            animator.set_portrait(rgb, face=face)
            far_side = animator.animate(turned)[234:604, 200:330, 0]
            rows.append(far_side.sum(axis=1) / 220)
            steps.append(animator._portrait.maps.face.step)
    assert steps[0] >= 3 and steps[1] == 1
    shift = rows[0] - rows[1]
    assert shift.std() < 0.7
    assert abs(shift).max() < 2.5


def test_a_turned_face_whose_rings_lie_behind_it_is_drawn_from_nothing_arbitrary(mesh, monkeypatch):
    """Regression: beside the far cheek, pixels were read at arbitrary places: a speckled outline."""
    face = replace(made_face(mesh, yaw=-60, scale=22, centre=(376, 420)), picture_size=(750, 840))
    rgb = np.random.default_rng(3).integers(0, 256, (840, 750, 3), dtype=np.uint8)
    turned = FaceMotion(rotation=rotation_from_degrees(-9, 4, 10))
    empty, drawn = np.empty, []
    with MeshAnimator(mesh) as animator:
        animator.set_portrait(rgb, face=face)
        assert animator._portrait.maps.face.step > 1
        for garbage in (-500, 0):
            monkeypatch.setattr(
                np, "empty", lambda *shape, fill=garbage, **kind: np.full_like(empty(*shape, **kind), fill)
            )
            drawn.append(animator.animate(turned).copy())
            monkeypatch.undo()
    assert (drawn[0] == drawn[1]).all()
