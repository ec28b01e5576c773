"""Finds and describes the faces of people in a video, in some of its frames."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Final

from vitascope.closing import Closing
from vitascope.device import available_cores
from vitascope.errors import ModelUnavailableError
from vitascope.models.face_descriptor import FaceDescriptor, upright_face
from vitascope.models.finders import CenterFace, Face
from vitascope.models.store.store import ModelStore
from vitascope.segmentation.matting.networks import FetchProgress
from vitascope.segmentation.people.appearance import FloatMap, SeenFace
from vitascope.segmentation.people.small_frames import Picture, SmallFrame

_LOOKS_BETWEEN = 5
_DESCRIBED_LOOKS, _BETWEEN_DESCRIBED = 8, 4
"""Number of a shot's first looks in which faces are described; after these, one look in that many."""
_MOST_DESCRIBED = 4
"""Maximum faces described per look, the largest ones: each takes 8 ms of a core."""
_LEAST_HEIGHT: Final = 28
"""Minimum height from brow to chin, in pixels, for a face to be described."""
_LEAST_SCORE, _MOST_OFF = 0.6, 8.0
"""Minimum score of a face, below which it is blurred; and maximum misfit of its points, above which it is turned
away. Such faces do not identify a person."""


FindFaces = Callable[[Picture], Sequence[Face]]
Describe = Callable[[Sequence[Picture]], FloatMap]


class FacesNowAndThen:
    """Finds faces in the first frame of each shot, and in some later ones.

    Args:
        find: Finds the faces of a picture, uint8 [h, w, 3]; None finds nothing.
        describe: Describes faces, as ``FaceDescriptor`` does; None describes nothing.
        pixel_aspect: Displayed width of a picture's pixel over its height.
    """

    def __init__(
        self, find: FindFaces | None, describe: Describe | None = None, *, pixel_aspect: float = 1.0
    ) -> None:
        self._find, self._describe, self._pixel_aspect = find, describe, pixel_aspect
        self._wait = self._looks = 0

    def __call__(self, seen: tuple[SmallFrame, Picture]) -> tuple[SmallFrame, Picture, list[SeenFace]]:
        """Add the faces to a frame, for ``FilmFollower.look``."""
        frame, eye = seen
        if self._find is None:
            return frame, eye, []
        if frame.starts_shot:
            self._wait = self._looks = 0
        if self._wait > 0:
            self._wait -= 1
            return frame, eye, []
        self._wait = _LOOKS_BETWEEN
        self._looks += 1
        found = self._find(eye)
        described: dict[int, FloatMap] = {}
        if self._describe is not None and (
            self._looks <= _DESCRIBED_LOOKS or self._looks % _BETWEEN_DESCRIBED == 0
        ):
            upright = _that_say_who(found, eye, self._pixel_aspect)
            if upright:
                described = dict(zip(upright, self._describe(list(upright.values())), strict=True))
        cell = frame.pixels_a_cell
        faces = [
            SeenFace(
                face.left / cell, face.top / cell, face.width / cell, face.height / cell, described.get(at)
            )
            for at, face in enumerate(found)
        ]
        return frame, eye, faces


def _that_say_who(found: Sequence[Face], eye: Picture, pixel_aspect: float) -> dict[int, Picture]:
    """The faces that are large, sharp, frontal and upright, by their index in the list."""
    upright: dict[int, Picture] = {}
    for at, face in sorted(enumerate(found), key=lambda one: -one[1].height):
        if face.height < _LEAST_HEIGHT or len(upright) == _MOST_DESCRIBED:
            break
        picture, off = upright_face(eye, face.points, pixel_aspect=pixel_aspect)
        if face.score >= _LEAST_SCORE and off <= _MOST_OFF:
            upright[at] = picture
    return upright


class FaceNetworks(Closing):
    """The networks that find and describe faces, downloaded when needed; a context manager.

    Args:
        store: The store of networks.
        progress: Called with the progress of a download.
    """

    def __init__(self, store: ModelStore, progress: FetchProgress | None) -> None:
        self.notes: list[str] = []
        """Notes for the user on networks that are unavailable."""
        self.find: FindFaces | None = None
        self.describe: Describe | None = None
        threads = max(available_cores() // 8, 1)  # the stages before and after also need cores
        with ExitStack() as opened:
            try:
                path = store.pull(
                    "centerface", progress=partial(progress, "centerface") if progress else None
                )
                self.find = opened.enter_context(CenterFace(path, threads=threads)).find
                name = "face-recognition"
                path = store.pull(name, progress=partial(progress, name) if progress else None)
                self.describe = opened.enter_context(FaceDescriptor(path, threads=threads)).describe
            except ModelUnavailableError as error:
                without = (
                    "without faces: people who touch from the first frame on count as one until they separate, and "
                    "after cuts people are recognised by colours alone"
                    if self.find is None
                    else "without: people are recognised by colours alone"
                )
                self.notes.append(f"{error}, then `vitascope people --again`; continuing {without}")
            self._opened = opened.pop_all()

    def close(self) -> None:
        """Free the networks."""
        self._opened.close()
