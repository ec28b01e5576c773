"""No lever: every frame is shown to the network, whole and once."""

from __future__ import annotations

from collections.abc import Sequence

from vitascope.models.network import FloatArray, MatteEstimate, SpatialState
from vitascope.segmentation.matting.levers.options import Tally
from vitascope.segmentation.matting.levers.pictures import Pictures, RunShots
from vitascope.segmentation.matting.shots import ShotInference

__all__ = ["Whole"]


class Whole:
    """Shows every frame to the network.

    Args:
        run: Shows pictures to a network.
        shots: Of this stream.
        tally: Told what the network saw.
    """

    def __init__(self, run: RunShots, shots: ShotInference, *, tally: Tally) -> None:
        self._run, self._shots, self._tally = run, shots, tally

    def estimate(self, pictures: Pictures) -> list[MatteEstimate]:
        """Mattes of the next frames."""
        self._tally.samples += int(pictures.images.size) // 3
        return self._run(self._shots, pictures.images, pictures.starts_shot)

    def memory(self) -> list[FloatArray] | None:
        """What the network remembers of the stream, to go on from in another run; None where that cannot be told."""
        state = self._shots.state
        return state.arrays() if isinstance(state, SpatialState) else None

    def remember(self, memory: Sequence[FloatArray]) -> bool:
        """Go on from what ``memory`` gave; False where the network cannot."""
        state = self._shots.state
        if not isinstance(state, SpatialState) or not memory:
            return False
        state.restore(memory)
        self._shots.go_on()
        return True
