"""The folder of LivePortrait's weights. Needs no PyTorch."""

from __future__ import annotations

from pathlib import Path

from vitascope.errors import ModelError

CHECKPOINTS = {
    "appearance": "base_models/appearance_feature_extractor.pth",
    "motion": "base_models/motion_extractor.pth",
    "warping": "base_models/warping_module.pth",
    "generator": "base_models/spade_generator.pth",
    "retargeting": "retargeting_models/stitching_retargeting_module.pth",
}
"""The authors' files below their ``liveportrait`` folder."""


def default_folder(home: Path) -> Path:
    """The default folder of the weights.

    Args:
        home: Vitascope's home folder.
    """
    return home / "liveportrait"


def require_folder(folder: Path, *, named_with: str) -> None:
    """Check that the folder of the weights exists.

    Args:
        folder: The folder.
        named_with: The option that names another folder, for the message.

    Raises:
        ModelError: It does not; the message says where to get it.
    """
    if not folder.is_dir():
        raise ModelError(
            f"{folder}: LivePortrait's weights are missing; download the folder `liveportrait` of "
            f"https://huggingface.co/KlingTeam/LivePortrait, or name its path with {named_with}"
        )


def require_checkpoints(folder: Path) -> None:
    """Check that all files exist.

    Args:
        folder: Holds ``base_models`` and ``retargeting_models``, as the authors' folder ``liveportrait`` does.

    Raises:
        ModelError: A file is missing.
    """
    missing = [name for name in CHECKPOINTS.values() if not (folder / name).is_file()]
    if missing:
        raise ModelError(f"{folder}: LivePortrait's weights lack {', '.join(missing)}")
