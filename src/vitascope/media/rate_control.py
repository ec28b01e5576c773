"""How good and how fast: what quality and speed mean to each encoder.

Quality by speed, at 1080p; CRF scales differ between codecs, so a row is about equal quality:

========  =======================  ======================  =====================  ==============================
codec     fast                     balanced                quality                CRF and preset scales
========  =======================  ======================  =====================  ==============================
h264      superfast, CRF 23        veryfast, CRF 20        medium, CRF 17         0..51, ultrafast..placebo
h265      ultrafast, CRF 25        superfast, CRF 22       medium, CRF 19         0..51, ultrafast..placebo
av1       10, CRF 35               8, CRF 30               6, CRF 24              1..63, 0 (slow)..13
vp9       8, CRF 34                5, CRF 30               2, CRF 24              0..63, 0 (slow)..8
prores    HQ (4444 with alpha)     HQ (4444 with alpha)    HQ (4444XQ with alpha)  none: fixed quality
ffv1      lossless                 lossless                lossless               none
png       zlib level 1             zlib level 3            zlib level 6           none, 0 (fast)..9
========  =======================  ======================  =====================  ==============================
"""

from __future__ import annotations

from typing import Literal

from vitascope.errors import UsageError

__all__ = ["PRESETS", "CodecName", "Speed", "rate_options"]

CodecName = Literal["h264", "h265", "av1", "prores", "vp9", "ffv1", "png"]
Speed = Literal["fast", "balanced", "quality"]

_X26X_PRESETS = (
    "ultrafast",
    "superfast",
    "veryfast",
    "faster",
    "fast",
    "medium",
    "slow",
    "slower",
    "veryslow",
    "placebo",
)
PRESETS: dict[CodecName, tuple[str, ...]] = {
    "h264": _X26X_PRESETS,
    "h265": _X26X_PRESETS,
    "av1": tuple(str(n) for n in range(14)),
    "vp9": tuple(str(n) for n in range(9)),
    "png": tuple(str(n) for n in range(10)),
}
_CRF_RANGES: dict[CodecName, tuple[int, int]] = {
    "h264": (0, 51),
    "h265": (0, 51),
    "av1": (1, 63),
    "vp9": (0, 63),
}
_DEFAULTS: dict[CodecName, dict[Speed, tuple[int | None, str]]] = {
    "h264": {"fast": (23, "superfast"), "balanced": (20, "veryfast"), "quality": (17, "medium")},
    "h265": {"fast": (25, "ultrafast"), "balanced": (22, "superfast"), "quality": (19, "medium")},
    "av1": {"fast": (35, "10"), "balanced": (30, "8"), "quality": (24, "6")},
    "vp9": {"fast": (34, "8"), "balanced": (30, "5"), "quality": (24, "2")},
    "png": {"fast": (None, "1"), "balanced": (None, "3"), "quality": (None, "6")},
}


def rate_options(
    codec: CodecName, crf: int | None, preset: str | None, speed: Speed, *, pixel_format: str
) -> tuple[dict[str, str], dict[str, str]]:
    """Encoder options and entries of the encoder's parameter list.

    Args:
        codec: What is written.
        crf: Constant rate factor on the codec's own scale; None takes the default of ``speed``.
        preset: The encoder's preset; None takes the default of ``speed``.
        speed: Which column of the table above.
        pixel_format: FFmpeg's format that the encoder is fed with.

    Raises:
        UsageError: The codec has no such preset or CRF.
    """
    if crf is not None and codec not in _CRF_RANGES:
        raise UsageError(f"{codec} has no CRF; leave it out or choose one of {', '.join(_CRF_RANGES)}")
    if preset is not None and codec not in PRESETS:
        raise UsageError(f"{codec} has no presets; leave it out or choose one of {', '.join(PRESETS)}")
    default_crf, default_preset = _DEFAULTS[codec][speed] if codec in _DEFAULTS else (None, "")
    crf = default_crf if crf is None else crf
    preset = default_preset if preset is None else preset
    if crf is not None and not _CRF_RANGES[codec][0] <= crf <= _CRF_RANGES[codec][1]:
        raise UsageError(
            f"CRF {crf} for {codec}; it goes from {_CRF_RANGES[codec][0]} to {_CRF_RANGES[codec][1]}"
        )
    if preset and preset not in PRESETS[codec]:
        raise UsageError(f"preset {preset!r} for {codec}; known are {', '.join(PRESETS[codec])}")
    match codec:
        case "h264":
            return {"crf": str(crf), "preset": preset}, {}
        case "h265":
            return {"crf": str(crf), "preset": preset}, {"log-level": "none"}
        case "av1":
            return {"crf": str(crf), "preset": preset}, {}
        case "vp9":
            # b=0 makes it constant quality; auto-alt-ref hides frames that VP9's alpha stream cannot mirror.
            alpha = {"auto-alt-ref": "0"} if pixel_format.startswith("yuva") else {}
            return {
                "crf": str(crf),
                "b": "0",
                "deadline": "good",
                "cpu-used": preset,
                "row-mt": "1",
            } | alpha, {}
        case "prores":
            if "444" not in pixel_format:
                return {"profile": "hq", "vendor": "apl0"}, {}
            profile = "4444xq" if speed == "quality" else "4444"
            return {"profile": profile, "vendor": "apl0", "alpha_bits": "16"}, {}
        case "ffv1":
            return {"level": "3", "slicecrc": "1", "g": "1"}, {}
        case "png":
            return {"compression_level": preset, "pred": "mixed"}, {}
