"""Writes the profile of a run beside its first output (``debug.profile_performance``)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vitascope.gpu.profiling.pipeline_profile import PipelineProfile, paths_beside
from vitascope.media.writing.output_target import picture_folder

PARTS_OF_STAGES = {
    "host to device": "preprocess",
    "preprocess": "preprocess",
    "network": "matte",
    "composite": "matte",
    "device to host": "download",
}
"""The stage that waits for each span of GPU work."""


def profile_paths(output: Path) -> tuple[Path, Path]:
    """Paths of a run's profile and trace.

    Args:
        output: The first output; for a folder of pictures, the files lie beside the folder.
    """
    return paths_beside(_target(output))


def not_profiled(*, wanted: bool) -> list[str]:
    """The note for a run that cannot be profiled, because other processes do the work."""
    if not wanted:
        return []
    return [
        "debug.profile_performance has no effect here: the work was shared among processes; profile one alone"
    ]


def run_profile(outputs: Sequence[Path], *, wanted: bool, device_id: int) -> PipelineProfile:
    """A context manager that profiles one run of ``segment``, if requested.

    Args:
        outputs: The outputs of the run.
        wanted: True to profile the run.
        device_id: Index of the GPU whose load is sampled.
    """
    return PipelineProfile(
        f"segment {outputs[0].name}",
        _target(outputs[0]),
        wanted=wanted,
        device_id=device_id,
        parts_of_stages=PARTS_OF_STAGES,
    )


def _target(output: Path) -> Path:
    pictures = picture_folder(output)
    return output if pictures is None else pictures.folder
