"""Builds the chain of estimators for the requested options."""

from __future__ import annotations

from vitascope.config.compute import InferenceSettings
from vitascope.errors import UsageError
from vitascope.models.network import MattingNetwork, SpatialState, side_multiple
from vitascope.segmentation.matting.batch import Estimator
from vitascope.segmentation.matting.levers.bidirectional import Bidirectional
from vitascope.segmentation.matting.levers.cropped import Cropped
from vitascope.segmentation.matting.levers.early_exit import EarlyExit
from vitascope.segmentation.matting.levers.fisheye_looks import FisheyeLooks
from vitascope.segmentation.matting.levers.missed_on_the_way import MissedOnTheWay
from vitascope.segmentation.matting.levers.multi_scale import MultiScale, scaled
from vitascope.segmentation.matting.levers.static import SkipStatic
from vitascope.segmentation.matting.levers.zoomed import Zoomed
from vitascope.segmentation.matting.shots import StreamNetwork

_SMALLER = 0.5


def build_chain(options: InferenceSettings, stream: StreamNetwork) -> Estimator:
    """The estimators for the options, outermost first; only the network if there are none.

    Args:
        options: What was requested.
        stream: The network, and how it is shown frames.

    Raises:
        UsageError: The network cannot do what was requested.
    """
    require_possible(options, stream.network)
    multiple = side_multiple(stream.network)
    inner: Estimator
    if options.scales != (1.0,):
        assert multiple is not None  # require_possible
        inner = MultiScale(stream, multiple=multiple, scales=options.scales)
    elif options.region == "crop":
        assert multiple is not None  # require_possible
        inner = Cropped(stream, options, multiple=multiple)
    elif options.region == "zoom":
        inner = Zoomed(stream, options, multiple=multiple)
    elif options.bidirectional:
        inner = Bidirectional(stream) if stream.fisheye is None else FisheyeLooks(stream)
    else:
        inner = shots = stream.shots(
            fisheye=stream.fisheye,
            agreement=stream.agreement,
            follows_people=True,
            settles_again=True,
            is_main=True,
        )
        shown = stream.wanted if stream.fisheye is None else stream.fisheye.as_pictures[1]
        if options.missed_people and MissedOnTheWay.may_help(shown):
            inner = MissedOnTheWay(stream, shots)
    if options.early_exit != "off":
        if options.early_exit == "smaller":
            assert multiple is not None  # require_possible
            first, first_wanted = stream.network, scaled(stream.wanted, _SMALLER, multiple)
        else:
            assert stream.first_network is not None  # opened with the job
            first = stream.first_network
            first_wanted = first.input_for(stream.eye_size)
        inner = EarlyExit(inner, stream, first, first_wanted=first_wanted, options=options)
    if options.skip_static > 0:
        inner = SkipStatic(inner, threshold=options.skip_static, tally=stream.tally)
    return inner


def require_possible(options: InferenceSettings, network: MattingNetwork) -> None:
    """Refuse options that a network does not support.

    Raises:
        UsageError: It accepts only one picture size, and others would be needed; or its memory cannot be cropped.
    """
    if side_multiple(network) is None:
        instead = {"inference.region=crop": "inference.region=zoom", "inference.early_exit=smaller": "selfie"}
        asked = {
            "inference.region=crop": options.region == "crop",
            "inference.early_exit=smaller": options.early_exit == "smaller",
            "inference.scales": options.scales != (1.0,),
        }
        for key in (key for key, is_asked in asked.items() if is_asked):
            hint = f"; use {instead[key]}" if key in instead else ""
            raise UsageError(f"{key}: {network.name} takes pictures of one size only{hint}")
    if options.region == "crop" and network.recurrent and not isinstance(network.new_state(), SpatialState):
        raise UsageError(
            f"inference.region=crop: the memory of {network.name} cannot be cropped; use inference.region=zoom"
        )
