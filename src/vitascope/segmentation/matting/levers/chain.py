"""From what was asked for to the estimators that do it."""

from __future__ import annotations

from dataclasses import dataclass

from vitascope.errors import UsageError
from vitascope.models.network import MattingNetwork, NetworkInput, SpatialState, side_multiple
from vitascope.segmentation.matting.levers.cropped import Cropped
from vitascope.segmentation.matting.levers.early_exit import EarlyExit
from vitascope.segmentation.matting.levers.multi_scale import MultiScale, scaled
from vitascope.segmentation.matting.levers.options import InferenceOptions, Tally
from vitascope.segmentation.matting.levers.pictures import Estimator, RunShots, Views
from vitascope.segmentation.matting.levers.static import SkipStatic
from vitascope.segmentation.matting.levers.whole import Whole
from vitascope.segmentation.matting.levers.zoomed import Zoomed
from vitascope.segmentation.matting.shots import ShotInference

__all__ = ["Stream", "build_chain", "require_possible"]

_SMALLER = 0.5


@dataclass(frozen=True, slots=True)
class Stream:
    """What the levers must know of a stream."""

    network: MattingNetwork
    wanted: NetworkInput
    """What the network is shown of a whole eye."""
    eye_size: tuple[int, int]
    """(height, width) of an eye, upright, in luma samples."""
    views: Views
    warm_up_frames: int
    with_foreground: bool
    """True where the foreground's planes are needed, too."""
    first_network: MattingNetwork | None = None
    """For ``early_exit="selfie"``."""


def build_chain(options: InferenceOptions, stream: Stream, run: RunShots, *, tally: Tally) -> Estimator:
    """The estimators that the options ask for, outermost first.

    Args:
        options: What was asked for.
        stream: What it is asked for.
        run: Shows pictures to a network.
        tally: Counts what happens.

    Raises:
        UsageError: The network cannot do what was asked for.
    """
    require_possible(options, stream.network)
    network, wanted, multiple = stream.network, stream.wanted, side_multiple(stream.network)
    warm_up = stream.warm_up_frames
    inner: Estimator
    if options.scales != (1.0,):
        assert multiple is not None  # require_possible
        inner = MultiScale(
            network, run, stream.views, wanted=wanted, multiple=multiple, scales=options.scales,
            warm_up_frames=warm_up, with_foreground=stream.with_foreground, tally=tally,
        )  # fmt: skip
    elif options.region == "crop":
        assert multiple is not None  # require_possible
        inner = Cropped(
            network, run, ShotInference(network, warm_up_frames=warm_up), wanted=wanted, multiple=multiple,
            margin=options.region_margin, recheck_frames=options.recheck_frames,
            with_foreground=stream.with_foreground, tally=tally,
        )  # fmt: skip
    elif options.region == "zoom":
        inner = Zoomed(
            network, run, stream.views, wanted=wanted, multiple=multiple, eye_size=stream.eye_size,
            margin=options.region_margin, recheck_frames=options.recheck_frames, warm_up_frames=warm_up,
            with_foreground=stream.with_foreground, tally=tally,
        )  # fmt: skip
    else:
        inner = Whole(run, ShotInference(network, warm_up_frames=warm_up), tally=tally)
    if options.early_exit != "off":
        if options.early_exit == "smaller":
            assert multiple is not None  # require_possible
            first, first_wanted = network, scaled(wanted, _SMALLER, multiple)
        else:
            assert stream.first_network is not None  # opened with the job
            first = stream.first_network
            first_wanted = first.input_for(stream.eye_size)
        inner = EarlyExit(
            inner, run, ShotInference(first, warm_up_frames=warm_up), first_wanted=first_wanted, wanted=wanted,
            confidence=options.early_exit_confidence, recheck_frames=options.recheck_frames, tally=tally,
        )  # fmt: skip
    if options.skip_static > 0:
        inner = SkipStatic(inner, threshold=options.skip_static, tally=tally)
    return inner


def require_possible(options: InferenceOptions, network: MattingNetwork) -> None:
    """Refuse what a network cannot do.

    Raises:
        UsageError: It takes pictures of one size, and others would be needed; or its memory cannot be cut.
    """
    if side_multiple(network) is None:
        instead = {"inference.region=crop": "inference.region=zoom", "inference.early_exit=smaller": "selfie"}
        asked = {
            "inference.region=crop": options.region == "crop",
            "inference.early_exit=smaller": options.early_exit == "smaller",
            "inference.scales": options.scales != (1.0,),
        }
        for key in (key for key, is_asked in asked.items() if is_asked):
            hint = f"; {instead[key]} is what it can do" if key in instead else ""
            raise UsageError(f"{key}: {network.name} takes pictures of one size{hint}")
    if options.region == "crop" and network.recurrent and not isinstance(network.new_state(), SpatialState):
        raise UsageError(
            f"inference.region=crop: the memory of {network.name} cannot be cut; inference.region=zoom keeps one apart"
        )
