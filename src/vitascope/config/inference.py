"""Settings of the levers: how often, at what part of the picture and at which sizes the network looks."""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, model_validator

from vitascope.config.section import Section, conflict, setting
from vitascope.config.values import Expected, unique_list

__all__ = ["InferenceSettings"]

_LEAST_SCALE, _MOST_SCALE, _MOST_SCALES = 0.25, 4.0, 8


def _parse_scales(value: object) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = [value]
    values = unique_list(value)
    if not isinstance(values, tuple) or len(values) > _MOST_SCALES:
        raise ValueError("not a list of scales")
    if any(isinstance(item, bool) or not isinstance(item, int | float | str) for item in values):
        raise ValueError("not numbers")
    scales = tuple(float(item) for item in values)
    if not all(math.isfinite(scale) and _LEAST_SCALE <= scale <= _MOST_SCALE for scale in scales):
        raise ValueError("scale out of range")
    return scales


Scales = Annotated[
    tuple[float, ...],
    BeforeValidator(_parse_scales),
    Expected(f"one to {_MOST_SCALES} numbers from {_LEAST_SCALE} to {_MOST_SCALE:g}, such as [1, 1.5]"),
]
"""Sizes of the network's picture, relative to the usual one."""


class InferenceSettings(Section):
    """``inference``: how often, at what part of the picture and at which sizes the network looks."""

    skip_static: float = setting(
        0.0,
        "Change of the picture, 0 to 1, below which a frame takes over the last matte; 0 shows every frame to the "
        "network; 0.01 suits a camera that stands still.",
        ge=0,
        le=1,
    )
    region: Literal["whole", "crop", "zoom"] = setting(
        "whole",
        "What the network sees of a frame: all of it, people's surroundings alone (crop: less work), or these enlarged "
        "(zoom: more detail).",
    )
    region_margin: float = setting(
        0.25,
        "How much of people's surroundings goes with them on each side, as a share of their own size, 0 to 2.",
        ge=0,
        le=2,
    )
    recheck_frames: int = setting(
        12,
        "Frames after which region looks at the whole frame again, and early_exit compares its two networks.",
        ge=1,
        le=10_000,
    )
    early_exit: Literal["off", "smaller", "selfie"] = setting(
        "off",
        "Which network looks first, so that the full one need not: none, the same on a picture of half the side, or "
        "selfie.",
    )
    early_exit_confidence: float = setting(
        0.8,
        "How sure the first network must be to be believed, 0 to 1.",
        ge=0,
        le=1,
    )
    scales: Scales = setting(
        (1.0,),
        "Sizes of the network's picture, relative to the usual one, whose mattes are averaged: [1, 1.5] for quality.",
    )

    @model_validator(mode="after")
    def _check_region(self) -> Self:
        if self.region != "whole" and self.scales != (1.0,):
            raise conflict(
                f"inference.region={self.region} and inference.scales are two ways to choose the network's picture; "
                "set one",
                ("inference.region", "inference.scales"),
            )
        return self
