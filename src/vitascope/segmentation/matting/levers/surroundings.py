"""People's surroundings instead of whole pictures: when each is asked for, whatever becomes of the surroundings."""

from __future__ import annotations

from abc import ABC, abstractmethod

from vitascope.gpu.interchange import to_numpy
from vitascope.gpu.kernels.region import Region
from vitascope.models.network import MatteEstimate, NetworkInput
from vitascope.segmentation.matting.levers.alpha import empty_estimate, small_alpha
from vitascope.segmentation.matting.levers.boxes import people_boxes
from vitascope.segmentation.matting.levers.looks import Looks
from vitascope.segmentation.matting.levers.options import Tally
from vitascope.segmentation.matting.levers.pictures import Pictures, RunShots
from vitascope.segmentation.matting.levers.whole import Whole
from vitascope.segmentation.matting.shots import ShotInference

__all__ = ["Surroundings"]


class Surroundings(ABC):
    """Looks at the whole picture when that is due, and at parts around people in between.

    The picture is looked at as a whole at the start of a shot, every ``recheck_frames`` frames, and when something
    moves outside the parts. Where nobody was seen, nothing is asked of the network until then.

    Args:
        run: Shows pictures to a network.
        shots: Of the whole pictures of this stream.
        wanted: What the network is shown of a whole eye.
        recheck_frames: Frames from one look at the whole picture to the next.
        tally: Told what the network saw.
    """

    def __init__(
        self, run: RunShots, shots: ShotInference, *, wanted: NetworkInput, recheck_frames: int, tally: Tally
    ) -> None:
        self._run, self._wanted, self._tally = run, wanted, tally
        self._whole = Whole(run, shots, tally=tally)
        self._looks = Looks(wanted.size, recheck_frames)
        self._nobody = False

    def estimate(self, pictures: Pictures) -> list[MatteEstimate]:
        """Mattes of the next frames."""
        estimates: list[MatteEstimate] = []
        while (at := len(estimates)) < len(pictures):
            parts = self._watched()
            if self._looks.is_due(pictures, at, parts):
                first = pictures.take([at])
                estimates += self._improved(first, self._look(first))
                continue
            stretch = pictures.take(range(at, self._looks.stretch_end(pictures, at, parts)))
            self._looks.passed(len(stretch))
            if self._nobody:
                self._tally.empty_frames += len(stretch)
                estimates += [empty_estimate(images, self._wanted) for images in stretch.images]
            elif parts is None:
                estimates += self._whole.estimate(stretch)
            else:
                estimates += self._look_closely(stretch)
        return estimates

    def _look(self, pictures: Pictures) -> list[MatteEstimate]:
        """The whole picture, and from its last matte where to look next."""
        estimates = self._whole.estimate(pictures)
        self._looks.looked(pictures)
        boxes = people_boxes(to_numpy(small_alpha(estimates[-1], pictures.images[-1], self._wanted)))
        self._nobody = boxes is None
        self._follow_look(boxes, starts_shot=bool(pictures.starts_shot[-1]))
        return estimates

    @abstractmethod
    def _watched(self) -> list[Region] | None:
        """The parts that are asked for, one for each eye; None: the whole picture, or nothing as nobody is there."""

    @abstractmethod
    def _follow_look(self, boxes: list[Region] | None, *, starts_shot: bool) -> None:
        """Choose parts by where a look at the whole picture saw people: boxes, one for each eye; None: nobody."""

    @abstractmethod
    def _look_closely(self, pictures: Pictures) -> list[MatteEstimate]:
        """Mattes by the parts, of frames of which no look at the whole picture is due."""

    def _improved(self, pictures: Pictures, whole: list[MatteEstimate]) -> list[MatteEstimate]:
        """What to make of a frame that was due to be looked at whole; its matte as it is, unless a lever does more."""
        del pictures
        return whole
