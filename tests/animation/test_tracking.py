"""Tests of tracking with MediaPipe itself, and of whom to follow."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
from faces import two_people

from vitascope.animation.face import BLENDSHAPES
from vitascope.animation.tracking import FaceTracker
from vitascope.errors import MissingDependencyError, ModelError


def test_a_face_is_found_where_it_is(astronaut_face):
    left, top, right, bottom = astronaut_face.box
    assert 150 < left < right < 300 and 50 < top < bottom < 220
    assert astronaut_face.blendshape("mouthSmileLeft") > 0.5
    assert astronaut_face.picture_size == (512, 512)
    right_eye, left_eye = astronaut_face.landmarks[468], astronaut_face.landmarks[473]
    assert right_eye[0] < left_eye[0]  # the person's right is on the picture's left


def test_nobody_is_nobody(face_model):
    with FaceTracker(face_model) as tracker:
        assert tracker.track(np.full((120, 160, 3), 90, np.uint8), pts_seconds=0.0) is None
        assert tracker.find(np.zeros((3, 5, 3), np.uint8), pts_seconds=0.04) == []


def test_a_video_keeps_to_one_person_and_says_who_is_new(face_model, astronaut):
    blank = np.full_like(astronaut, 128)
    with FaceTracker(face_model) as tracker:
        pictures = [astronaut, np.roll(astronaut, 3, axis=1), blank, astronaut]
        faces = [tracker.track(picture, pts_seconds=index / 30) for index, picture in enumerate(pictures)]
    assert [face is None for face in faces] == [False, False, True, False]
    assert faces[0].is_new and not faces[1].is_new and faces[3].is_new
    assert faces[0].track == faces[1].track < faces[3].track
    assert faces[1].landmarks[1, 0] == pytest.approx(faces[0].landmarks[1, 0] + 3, abs=2)


def test_times_that_stand_still_are_no_error(face_model, astronaut):
    with FaceTracker(face_model) as tracker:
        for _ in range(3):
            assert tracker.track(astronaut, pts_seconds=1.0) is not None
        assert tracker.track(astronaut, pts_seconds=0.2) is not None


@pytest.mark.parametrize(("follow", "expected"), [("largest", 770), (0, 190), (1, 770)])
def test_one_of_several_is_chosen(face_model, astronaut, follow, expected):
    with FaceTracker(face_model, max_faces=4, follow=follow) as tracker:
        face = tracker.track(two_people(astronaut), pts_seconds=0.0)
    left, _, right, _ = face.box
    assert abs((left + right) / 2 - expected) < 60


def test_asked_for_one_face_it_follows_the_largest(face_model, astronaut):
    picture = two_people(astronaut)
    mirrored = picture[:, ::-1].copy()
    for shown, expected in ((picture, 770), (mirrored, 1024 - 770)):
        with FaceTracker(face_model) as tracker:
            faces = [tracker.track(np.roll(shown, step, axis=1), pts_seconds=step / 30) for step in range(4)]
        assert all(abs((face.box[0] + face.box[2]) / 2 - expected) < 60 for face in faces)
        assert [face.is_new for face in faces] == [True, False, False, False]


def test_a_cut_is_somebody_new_wherever_the_face_is(face_model, astronaut):
    head = astronaut[40:230, 130:320]
    other = np.ascontiguousarray(255 - (255 - head[:, ::-1]) // 2)
    other = np.roll(other, 12, axis=0)
    brighter = np.clip(head.astype(int) + 50, 0, 255).astype(np.uint8)
    pictures = [head, head, other, other, head, head, brighter, brighter]
    with FaceTracker(face_model) as tracker:
        faces = [tracker.track(picture, pts_seconds=step / 30) for step, picture in enumerate(pictures)]
    # Switching on a light is not a cut.
    assert [face.is_new for face in faces] == [True, False, True, False, True, False, False, False]


def test_the_followed_one_stays_the_followed_one(face_model, astronaut_face):
    with FaceTracker(face_model, mode="image", max_faces=2) as tracker:
        other = replace(astronaut_face, landmarks=astronaut_face.landmarks * 0.9 + np.float32([250, 100, 0]))
        assert tracker.choose([astronaut_face, other]).box == astronaut_face.box
        grown = replace(other, landmarks=other.landmarks * 1.4 - np.float32([100, 50, 0]))
        again = tracker.choose([grown, astronaut_face])
        assert again.box == astronaut_face.box and not again.is_new
        assert tracker.choose([]) is None
        assert tracker.choose([grown, astronaut_face]).is_new


def test_a_missing_number_is_nobody(face_model, astronaut_face):
    with FaceTracker(face_model, mode="image", follow=3) as tracker:
        assert tracker.choose([astronaut_face]) is None


def test_without_refinement_there_are_no_weights(face_model, astronaut):
    with FaceTracker(face_model, mode="image", refine=False) as tracker:
        face = tracker.find(astronaut)[0]
    assert face.blendshapes.shape == (len(BLENDSHAPES),)
    assert not face.blendshapes.any()


def test_other_files_are_no_model(tmp_path, face_model):
    (tmp_path / "x.task").write_bytes(b"nothing")
    with pytest.raises(ModelError, match="not a Face Landmarker"):
        FaceTracker(tmp_path / "x.task")
    with pytest.raises(ModelError):
        FaceTracker(tmp_path / "missing.task")


def test_without_mediapipe_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "mediapipe", None)
    with pytest.raises(MissingDependencyError, match=r"vitascope\[animate\]"):
        FaceTracker(tmp_path / "x.task")


def test_opencv_is_the_build_without_a_screen(face_model):
    """Check that nothing installed with MediaPipe replaces our cv2 with a build that needs libGL."""
    from importlib.metadata import distributions

    names = {(found.metadata["Name"] or "").lower() for found in distributions()}
    assert "opencv-python-headless" in names
    assert not names & {"opencv-contrib-python", "opencv-python"}


def test_closing_that_is_interrupted_frees_the_networks_once(face_model, monkeypatch):
    """MediaPipe's finaliser would free them again: a crash or a hang at the end of the program."""
    tracker = FaceTracker(face_model)
    landmarker = tracker._landmarker
    freed = []
    free = landmarker._lib.MpFaceLandmarkerClose

    def interrupted(handle):
        freed.append(handle)
        free(handle)
        raise KeyboardInterrupt

    monkeypatch.setattr(landmarker._lib, "MpFaceLandmarkerClose", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tracker.close()
    landmarker.close()  # like its finaliser
    tracker.close()
    assert len(freed) == 1
