"""The animator that the settings ask for, with its portrait."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from vitascope.animation.canonical_mesh import CanonicalMesh
from vitascope.animation.face import Animator, FaceMotion, RgbPicture
from vitascope.animation.mesh.animator import MeshAnimator
from vitascope.animation.mesh.deform import Gains
from vitascope.animation.mesh.response import steady_reader
from vitascope.animation.portrait import Portrait
from vitascope.config import LoadedSettings, Settings
from vitascope.device import Device, select_device
from vitascope.errors import (
    DeviceError,
    EngineError,
    KernelCompileError,
    MemoryLimitError,
    MissingDependencyError,
    UsageError,
    one_line,
)
from vitascope.models.liveportrait.folder import default_folder, require_folder

if TYPE_CHECKING:
    from vitascope.animation.liveportrait.animator import LivePortraitAnimator

__all__ = ["OpenedAnimator", "gains_of", "liveportrait_folder", "open_animator"]


_MOST_EVERYWHERE = 0.25
"""Codes of 255, the mean over what can move: edges of eyes and mouth are softened differently, which is below 0.1."""
_MOST_AT_FEATURES = 0.5
"""A share of what drawing an eye or the mouth changes: soft edges are 0.3 in faces of 50 pixels, a missing eye is 1."""


@dataclass(frozen=True, slots=True)
class OpenedAnimator:
    """An animator with its portrait, and what the user should know of the choice."""

    animator: Animator
    set_gains: SetGains
    animate_batch: Callable[[Sequence[FaceMotion]], list[RgbPicture]]
    """Pictures of consecutive motions, of ``batch_size`` in one call of the networks."""
    device_label: str
    """What draws, for reports."""
    batch_size: int = 1
    notes: tuple[str, ...] = ()


class SetGains:
    """Changes how strongly an animator follows.

    Args:
        animator: One of ours.
        gains: From the settings.
    """

    def __init__(self, animator: MeshAnimator | LivePortraitAnimator, gains: Gains) -> None:
        self._animator = animator
        self._gains = gains

    def __call__(self, strength: float) -> None:
        """Multiply the gains of the settings."""
        pose, expression = self._gains.pose * strength, self._gains.expression * strength
        if isinstance(self._animator, MeshAnimator):
            self._animator.gains = replace(self._gains, pose=pose, expression=expression)
        else:
            self._animator.gains = replace(self._animator.gains, pose=pose, expression=expression)


def gains_of(settings: Settings) -> Gains:
    """How strongly the portrait follows, from ``animation``."""
    wanted = settings.animation
    return Gains(
        expression=wanted.expression,
        pose=wanted.pose,
        brows=wanted.brows,
        eyes=wanted.eyes,
        gaze=wanted.gaze,
        mouth=wanted.mouth,
    )


def liveportrait_folder(settings: Settings, home: Path) -> Path:
    """Where LivePortrait's weights are looked for: the setting's folder, else ``liveportrait`` below the home."""
    wanted = settings.animation.liveportrait_folder
    return default_folder(home) if wanted is None else Path(wanted)


def open_animator(
    portrait: Portrait,
    *,
    mesh: CanonicalMesh,
    model: Path,
    loaded: LoadedSettings,
    home: Path,
    stack: ExitStack,
    live: bool = False,
) -> OpenedAnimator:
    """Open the animator of ``animation.animator`` and give it its portrait.

    ``auto`` is LivePortrait where its weights, PyTorch and an NVIDIA GPU are there, else the mesh. That is drawn on the
    GPU of ``animation.gpu_id``, where ``gpu.device`` allows it, its picture is the processor's, and calibration runs
    there to its end.

    Args:
        portrait: From ``load_portrait``.
        mesh: The canonical face.
        model: The file ``face_landmarker.task``, for ``animation.calibrate``.
        loaded: Settings.
        home: The product's own folder.
        stack: Closes the animator.
        live: Each picture as it comes, whatever ``animation.batch_size`` says: collecting some would delay the first.

    Raises:
        UsageError: Settings that no animator can follow.
        InputError: The portrait's face is too small.
        ModelError: LivePortrait was asked for, and its weights are missing or damaged.
        MissingDependencyError: LivePortrait was asked for without PyTorch.
        DeviceError: There is no such GPU, or it draws wrongly; with ``gpu.device=auto`` the processor draws the mesh
            then.
    """
    settings = loaded.settings
    wanted = settings.animation.animator
    if wanted == "liveportrait" or (wanted == "auto" and _can_take_liveportrait(settings, home)):
        return _open_liveportrait(portrait, loaded, home, stack, live=live)
    return _open_mesh(portrait, mesh, model, loaded, stack)


def _open_mesh(
    portrait: Portrait, mesh: CanonicalMesh, model: Path, loaded: LoadedSettings, stack: ExitStack
) -> OpenedAnimator:
    settings = loaded.settings
    gains = gains_of(settings)
    wanted = settings.gpu.device
    device = select_device(wanted, index=settings.animation.gpu_id)
    notes = [] if device.note is None else [device.note]
    if (wanted, device.kind) == ("auto", "cpu") and not notes and loaded.origin("animation.gpu_id").explicit:
        notes.append("animation.gpu_id has no effect: no GPU draws here")

    def prepared(device: Device) -> MeshAnimator:
        animator = MeshAnimator(
            mesh, gains=gains, cuda_device=device.index if device.kind == "cuda" else None
        )
        try:
            animator.set_portrait(portrait.rgb, face=portrait.face)
            _require_the_processors_picture(animator, device)
            if settings.animation.calibrate:
                with steady_reader(model) as read:
                    animator.calibrate(read)
        except BaseException:
            with suppress(DeviceError, EngineError):  # what failed may fail again
                animator.close()
            raise
        return animator

    try:
        animator = prepared(device)
    except (DeviceError, EngineError, KernelCompileError, MemoryLimitError) as error:
        if wanted != "auto" or device.kind == "cpu":
            raise
        notes.append(f"the processor draws, because the GPU cannot: {one_line(error)}")
        device = select_device("cpu")
        animator = prepared(device)
    stack.enter_context(animator)
    return OpenedAnimator(
        animator,
        SetGains(animator, gains),
        lambda motions: [animator.animate(motion) for motion in motions],
        device.label,
        notes=(*notes, *_ignored_by_mesh(loaded)),
    )


def _require_the_processors_picture(animator: MeshAnimator, device: Device) -> None:
    difference = animator.difference_to_processor()
    if difference is None:
        return
    reasons = []
    if difference.everywhere > _MOST_EVERYWHERE:
        reasons.append(
            f"by {difference.everywhere:.2g} of 255 codes in the mean (at most {_MOST_EVERYWHERE:g})"
        )
    for name, share in zip(("right eye", "left eye", "mouth"), difference.eyes_and_mouth, strict=True):
        if share > _MOST_AT_FEATURES:
            reasons.append(
                f"at the {name} by {share:.0%} of what drawing it changes (at most {_MOST_AT_FEATURES:.0%})"
            )
    if reasons:
        raise DeviceError(
            f"what {device.label} draws differs from the processor's picture {', '.join(reasons)}; update its driver, "
            "or set gpu.device=cpu"
        )


def _can_take_liveportrait(settings: Settings, home: Path) -> bool:
    return (
        liveportrait_folder(settings, home).is_dir()
        and importlib.util.find_spec("torch") is not None
        and settings.gpu.device != "cpu"
        and select_device("auto", index=settings.animation.gpu_id).kind == "cuda"
    )


def _open_liveportrait(
    portrait: Portrait, loaded: LoadedSettings, home: Path, stack: ExitStack, *, live: bool
) -> OpenedAnimator:
    settings = loaded.settings
    wanted = settings.animation
    if wanted.enable_tensorrt:
        raise EngineError(
            "animation.enable_tensorrt: TensorRT has no 5-D grid sampling, which LivePortrait warps with; leave it off "
            "(its networks run as CUDA graphs, with kernels of their own)"
        )
    if wanted.inference_precision == "int8":
        raise UsageError(
            "animation.inference_precision: LivePortrait's networks are not quantised; fp16 or fp32"
        )
    try:
        from vitascope.animation.liveportrait.animator import LivePortraitAnimator
        from vitascope.models.liveportrait.motion import MotionGains
        from vitascope.models.liveportrait.networks import LivePortraitNetworks
    except ImportError as error:
        raise MissingDependencyError("LivePortrait needs PyTorch: pip install 'vitascope[torch]'") from error
    folder = liveportrait_folder(settings, home)
    require_folder(folder, named_with="animation.liveportrait_folder")
    device = select_device(settings.gpu.device, index=wanted.gpu_id)
    half = wanted.use_half_precision and wanted.inference_precision == "fp16"
    if device.kind == "cuda":
        import torch

        torch.cuda.set_per_process_memory_fraction(settings.performance.gpu_memory_fraction, device.index)
    networks = LivePortraitNetworks.open(
        folder, device=device, mode="compile" if device.kind == "cuda" else "eager", half_precision=half
    )
    gains = gains_of(settings)
    batch_size = 1 if live else wanted.batch_size.low
    animator = stack.enter_context(
        LivePortraitAnimator(
            networks,
            gains=MotionGains(pose=gains.pose, expression=gains.expression),
            batch_size=batch_size,
            release_every=settings.performance.clear_cache_interval,
        )
    )
    animator.set_portrait(portrait.rgb, face=portrait.face)
    notes = [] if device.kind == "cuda" else ["LivePortrait takes some 20 seconds a picture on a processor"]
    for key in ("brows", "eyes", "gaze", "mouth"):
        if loaded.origin(f"animation.{key}").explicit:
            notes.append(f"animation.{key} has no effect on LivePortrait, which moves the face as a whole")
    return OpenedAnimator(
        animator, SetGains(animator, gains), animator.animate_batch, device.label, batch_size, tuple(notes)
    )


def _ignored_by_mesh(loaded: LoadedSettings) -> tuple[str, ...]:
    keys = ("inference_precision", "use_half_precision", "enable_tensorrt", "batch_size")
    return tuple(
        f"animation.{key} has no effect on the mesh animator, which runs no network"
        for key in keys
        if loaded.origin(f"animation.{key}").explicit
    )
