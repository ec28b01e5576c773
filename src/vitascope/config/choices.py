"""Words that settings and flags choose from."""

from __future__ import annotations

from typing import Literal

Codec = Literal["h264", "h265", "av1", "prores", "vp9", "ffv1", "png"]
PlayerName = Literal["heresphere", "deovr", "skybox", "4xvr", "moon", "quest", "visionpro"]
EncoderSpeed = Literal["fast", "balanced", "quality"]
OutputKind = Literal["mask", "key", "cutout", "alpha", "blur", "replace", "overlay", "packed-alpha"]
PersonWord = Literal["largest", "pov"]
"""``largest``: who covers most of the picture over time. ``pov``: the wearer's own body at the bottom."""
