"""Opens the animator for the settings, and defines ``vitascope.Animator``, which draws frame by frame."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import cycle
from os import PathLike
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from vitascope.animation.canonical_mesh import CanonicalMesh, read_canonical_mesh
from vitascope.animation.drivers import make_estimator, open_tracker
from vitascope.animation.face import FaceMotion, PortraitAnimator, RgbPicture
from vitascope.animation.mesh.animator import MeshAnimator
from vitascope.animation.mesh.deform import Gains
from vitascope.animation.mesh.response import Curve, steady_reader
from vitascope.animation.motion import Mirror
from vitascope.animation.portrait import Portrait, load_portrait, require_rgb
from vitascope.animation.tracking import FaceModel, FaceTracker, fetch_face_model
from vitascope.closing import Closing, OwnProcess
from vitascope.config import LoadedSettings, Settings, vitascope_home
from vitascope.config.loading import checked_gpus, settings_of
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
from vitascope.media.remote import local_path_of
from vitascope.models.liveportrait.folder import default_folder, require_folder
from vitascope.models.store.store import ModelStore

if TYPE_CHECKING:
    from vitascope.animation.liveportrait.animator import LivePortraitAnimator

_FARTHEST_SECONDS = 1e12
"""Maximum time in seconds. MediaPipe counts microseconds in 64 bits (9.2e12 s); after a time beyond that it
accepts no other."""
_MOST_EVERYWHERE = 0.25
"""Maximum mean difference over all movable pixels, in codes of 255. CPU and GPU soften the edges of eyes and
mouth differently, by less than 0.1."""
_MOST_AT_FEATURES = 0.5
"""Maximum difference at an eye or the mouth, relative to the change from drawing it: soft edges give 0.3 in
faces of 50 pixels, a missing eye gives 1."""


class Animator(Closing):
    """Draws a portrait as a driver moves, one frame at a time. A context manager; used by one thread.

    Finds the driver's face at rest as ``vitascope animate`` does: the calmest face so far, or the first one
    (``animation.neutral``), or the one visible when ``set_neutral`` is called.

    Args:
        portrait: A picture file with a face, or uint8 [H, W, 3], upright R'G'B'.
        profile: ``balanced`` (default), ``fast``, ``quality`` or ``animator``; ignored when ``loaded`` is given.
        settings: Values by dotted key, for example ``{"animation.expression": 1.2}``.
        loaded: Settings that were loaded already, instead of ``profile`` and ``settings``.
        store: Where the tracker's model is; the user's store when omitted.
        fetch_progress: Called with (model, bytes so far, bytes in all) during a download.

    Raises:
        ConfigError: A setting is unknown or out of range.
        InputError: The portrait cannot be read, or its face cannot be animated.
        UsageError: The array is not a picture.
        ModelError: A network is unavailable.
        MissingDependencyError: MediaPipe is not installed.
        DeviceError: A requested GPU is missing.
    """

    def __init__(
        self,
        portrait: str | PathLike[str] | npt.NDArray[Any],
        *,
        profile: str | None = None,
        settings: Mapping[str, Any] | None = None,
        loaded: LoadedSettings | None = None,
        store: ModelStore | None = None,
        fetch_progress: Callable[[str, int, int], None] | None = None,
    ) -> None:
        self.loaded = settings_of(profile=profile, settings=settings, loaded=loaded)
        self.settings = self.loaded.settings
        wanted = self.settings.animation
        models = store or ModelStore(vitascope_home())
        self._model: FaceModel = cache(lambda: fetch_face_model(models, fetch_progress))
        mesh = read_canonical_mesh()
        picture = portrait if isinstance(portrait, np.ndarray) else local_path_of(portrait)
        found = load_portrait(picture, model=self._model, face=wanted.face, max_side=wanted.max_side)
        self._estimator = make_estimator(mesh, self.settings)
        self._mirror = Mirror(mesh) if wanted.mirror else None
        self._tracker: FaceTracker | None = None
        with ExitStack() as stack:
            opened = open_animator(
                found,
                mesh=mesh,
                model=self._model,
                loaded=self.loaded,
                home=vitascope_home(),
                stack=stack,
                live=True,
            )
            self._stack = stack.pop_all()
        self._drawn_by: PortraitAnimator | None = opened.animator
        self._process = OwnProcess("the animator")
        self.name = opened.animator.name
        """Name of the animator: ``mesh`` or ``liveportrait``."""
        self.device_label = opened.device_label
        """The device that draws, for example ``CPU (2 cores)``."""
        self.notes = (*found.notes, *opened.notes)
        """Notes for the user on the portrait and settings, one line each."""
        self.portrait: RgbPicture = found.rgb
        """uint8 [H, W, 3]: the portrait to animate, shrunk to ``animation.max_side``."""
        self.motion = FaceMotion(presence=0.0)
        """The motion that was drawn last; its ``presence`` falls to 0 while the driver's face is lost."""

    def render(
        self, driver: npt.NDArray[Any] | FaceMotion, *, pts_seconds: float | None = None
    ) -> RgbPicture:
        """Draw the portrait as a driver moves.

        Args:
            driver: The driver's next frame, uint8 [H, W, 3], upright R'G'B'; or a recorded or authored
                motion.
            pts_seconds: When the frame is shown; increases from frame to frame. None uses the current time,
                as for a camera.

        Returns:
            uint8 [H, W, 3] of the portrait's size, R'G'B', a new array.

        Raises:
            UsageError: The frame is not a picture, its time is not a number, the animator is closed,
                LivePortrait got a motion without the driver's frame, or this process is a fork of the one
                that made the animator.
            EngineError: MediaPipe failed.
        """
        if self._drawn_by is None:
            raise UsageError("the animator is closed")
        self._process.require()
        self.motion = driver if isinstance(driver, FaceMotion) else self._followed(driver, pts_seconds)
        return self._drawn_by.animate(self.motion if self._mirror is None else self._mirror(self.motion))

    def set_neutral(self) -> bool:
        """Use the face in the last frame as the driver's face at rest; False if there is none."""
        return self._estimator.set_neutral()

    def close(self) -> None:
        """Free the tracker, networks and GPU memory; further calls, and calls in a fork, do nothing."""
        if not self._process.is_current:
            return
        self._drawn_by = None
        self._stack.close()

    def _followed(self, frame: npt.NDArray[Any], pts_seconds: float | None) -> FaceMotion:
        rgb = require_rgb(frame, what="the driver's frame")
        seconds = monotonic() if pts_seconds is None else pts_seconds
        if not abs(seconds) < _FARTHEST_SECONDS:  # also refuses NaN
            raise UsageError(f"pts_seconds is {pts_seconds}, expected seconds, not nanoseconds")
        if self._tracker is None:
            self._tracker = self._stack.enter_context(open_tracker(self._model(), self.settings))
        face = self._tracker.track(rgb, pts_seconds=seconds)
        return self._estimator.update(face, pts_seconds=seconds, driver_rgb=rgb)


@dataclass(frozen=True, slots=True)
class OpenedAnimator:
    """A portrait's animator, and notes on how it was chosen."""

    animator: PortraitAnimator
    set_strength: Callable[[float], None]
    """Multiplies the gains of pose and expression from the settings."""
    animate_batch: Callable[[Sequence[FaceMotion]], list[RgbPicture]]
    """Draws consecutive motions, ``batch_size`` of them in one call of the networks."""
    device_label: str
    """The device that draws, for reports."""
    batch_size: int = 1
    notes: tuple[str, ...] = ()
    curves: Mapping[str, Curve] | None = None
    """The portrait's measured response to expressions; None if not measured."""
    eases: Callable[[FaceMotion], bool] = lambda _: False
    """True for a motion that turns the head farther than the portrait can show."""


def gains_of(settings: Settings) -> Gains:
    """Read the strengths from ``animation``."""
    return Gains(**{field.name: getattr(settings.animation, field.name) for field in fields(Gains)})


def liveportrait_folder(settings: Settings, home: Path) -> Path:
    """Return the folder of LivePortrait's weights: the setting, else ``liveportrait`` in the home."""
    wanted = settings.animation.liveportrait_folder
    return default_folder(home) if wanted is None else Path(wanted)


def open_animator(
    portrait: Portrait,
    *,
    mesh: CanonicalMesh,
    model: FaceModel,
    loaded: LoadedSettings,
    home: Path,
    stack: ExitStack,
    live: bool = False,
) -> OpenedAnimator:
    """Open the animator named by ``animation.animator`` and set its portrait.

    ``auto`` uses LivePortrait if its weights, PyTorch and an NVIDIA GPU are present, else the mesh. The mesh
    is drawn on the GPU ``animation.gpu_id`` if ``gpu.device`` allows it, the picture matches the CPU's, and
    calibration succeeds there. The GPUs in ``gpu.device_ids`` share a video's frames.

    Args:
        portrait: From ``load_portrait``.
        mesh: The canonical face.
        model: Returns the file ``face_landmarker.task``; called if ``animation.calibrate`` has to measure.
        loaded: Settings.
        home: Vitascope's own folder.
        stack: Closes the animator.
        live: True to draw each frame as it comes and ignore ``animation.batch_size``, which would add delay.

    Raises:
        UsageError: Settings that no animator can follow.
        InputError: The portrait's face is too small.
        ModelError: LivePortrait was requested, and its weights are missing or damaged.
        MissingDependencyError: LivePortrait was requested without PyTorch.
        DeviceError: There is no such GPU, or it draws wrongly; with ``gpu.device=auto``, the CPU draws the
            mesh instead.
    """
    loaded = checked_gpus(loaded, number="animation.gpu_id")
    gpus = loaded.settings.gpu.device_ids
    if gpus is None:
        return _open_on_one(portrait, mesh, model, loaded, home, stack, live=live)
    if live:
        raise UsageError(
            f"gpu.device_ids {','.join(map(str, gpus))}: a live picture is drawn by one GPU; name only one"
        )

    def open_on(gpu: int, first: OpenedAnimator | None) -> OpenedAnimator:
        ours = {"gpu.device": "cuda", "animation.gpu_id": gpu, "gpu.device_ids": None}
        measured = portrait if first is None else replace(portrait, curves=first.curves)
        return _open_on_one(measured, mesh, model, loaded.with_values(ours), home, stack, live=False)

    return open_on_several(gpus, open_on, stack)


def _open_on_one(
    portrait: Portrait,
    mesh: CanonicalMesh,
    model: FaceModel,
    loaded: LoadedSettings,
    home: Path,
    stack: ExitStack,
    *,
    live: bool,
) -> OpenedAnimator:
    settings = loaded.settings
    wanted = settings.animation.animator
    if wanted == "liveportrait" or (wanted == "auto" and _can_take_liveportrait(settings, home)):
        return _open_liveportrait(portrait, loaded, home, stack, live=live)
    return _open_mesh(portrait, mesh, model, loaded, stack)


def _open_mesh(
    portrait: Portrait, mesh: CanonicalMesh, model: FaceModel, loaded: LoadedSettings, stack: ExitStack
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
            _require_the_cpus_picture(animator, device)
            if settings.animation.calibrate and portrait.curves is not None:
                animator.use_curves(portrait.curves)
            elif settings.animation.calibrate:
                with steady_reader(model()) as read:
                    animator.calibrate(read)
        except BaseException:
            with suppress(DeviceError, EngineError):  # closing may fail for the same reason
                animator.close()
            raise
        return animator

    try:
        animator = prepared(device)
    except (DeviceError, EngineError, KernelCompileError, MemoryLimitError) as error:
        if wanted != "auto" or device.kind == "cpu":
            raise
        notes.append(f"drawing on the CPU, because the GPU cannot: {one_line(error)}")
        device = select_device("cpu")
        animator = prepared(device)
    stack.enter_context(animator)
    if animator.has_dark_glasses:
        notes.append("dark glasses cover the portrait's eyes: they neither blink nor look aside")
    return OpenedAnimator(
        animator,
        _strength_of(animator),
        lambda motions: [animator.animate(motion) for motion in motions],
        device.label,
        notes=(*notes, *_ignored_by_mesh(loaded)),
        curves=animator.curves,
        eases=animator.eases,
    )


def _strength_of(animator: MeshAnimator | LivePortraitAnimator) -> Callable[[float], None]:
    given: Any = animator.gains

    def set_strength(strength: float) -> None:
        stronger: Any = replace(given, pose=given.pose * strength, expression=given.expression * strength)
        animator.gains = stronger

    return set_strength


def _require_the_cpus_picture(animator: MeshAnimator, device: Device) -> None:
    difference = animator.difference_to_cpu()
    if difference is None:
        return
    reasons = []
    if difference.everywhere > _MOST_EVERYWHERE:
        reasons.append(
            f"by {difference.everywhere:.2g} of 255 codes on average (at most {_MOST_EVERYWHERE:g})"
        )
    for name, share in zip(("right eye", "left eye", "mouth"), difference.eyes_and_mouth, strict=True):
        if share > _MOST_AT_FEATURES:
            reasons.append(
                f"at the {name} by {share:.0%} of what drawing it changes (at most {_MOST_AT_FEATURES:.0%})"
            )
    if reasons:
        raise DeviceError(
            f"what {device.label} draws differs from the CPU's picture {', '.join(reasons)}; update its driver, "
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
            "animation.inference_precision: LivePortrait's networks are not quantised; use fp16 or fp32"
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
    notes = [] if device.kind == "cuda" else ["LivePortrait takes about 20 seconds per frame on a CPU"]
    for key in ("brows", "eyes", "gaze", "mouth"):
        if loaded.origin(f"animation.{key}").explicit:
            notes.append(f"animation.{key} has no effect on LivePortrait, which moves the face as a whole")
    return OpenedAnimator(
        animator, _strength_of(animator), animator.animate_batch, device.label, batch_size, tuple(notes)
    )


def _ignored_by_mesh(loaded: LoadedSettings) -> tuple[str, ...]:
    keys = (
        *(
            f"animation.{key}"
            for key in ("inference_precision", "use_half_precision", "enable_tensorrt", "batch_size")
        ),
        *(f"performance.{key}" for key in ("gpu_memory_fraction", "clear_cache_interval")),
    )
    return tuple(
        f"{key} has no effect on the mesh animator, which runs no network"
        for key in keys
        if loaded.origin(key).explicit
    )


def open_on_several(
    gpus: Sequence[int], open_on: Callable[[int, OpenedAnimator | None], OpenedAnimator], stack: ExitStack
) -> OpenedAnimator:
    """Open an animator on each GPU, each on its own thread, and share the motions of each call among them.

    Args:
        gpus: Their numbers; a number given several times gets as many animators.
        open_on: Opens the animator of a GPU; called with the first opened one, or None, on the thread that
            will draw.
        stack: Ends the threads before it closes what ``open_on`` put on it.
    """
    opened: list[OpenedAnimator] = []
    threads = [ThreadPoolExecutor(1, thread_name_prefix=f"vitascope-gpu-{gpu}") for gpu in gpus]
    try:
        for thread, gpu in zip(threads, gpus, strict=True):
            opened.append(thread.submit(open_on, gpu, opened[0] if opened else None).result())
    finally:
        for thread in threads:
            stack.callback(thread.shutdown)
    first = opened[0]
    size = first.batch_size
    last_seen: FaceMotion | None = None

    def relaxed(motion: FaceMotion) -> FaceMotion:
        """Relax a lost face from where it was last seen, even if another GPU drew that frame."""
        nonlocal last_seen
        if not first.animator.needs_driver_picture:
            return motion
        if motion.face is not None and motion.driver_rgb is not None:
            last_seen = motion
            return motion
        return motion if last_seen is None else replace(last_seen, presence=motion.presence)

    def animate_batch(motions: Sequence[FaceMotion]) -> list[RgbPicture]:
        given = [relaxed(motion) for motion in motions]
        parts = [given[start : start + size] for start in range(0, len(given), size)]
        drawn = [
            thread.submit(one.animate_batch, part)
            for thread, one, part in zip(cycle(threads), cycle(opened), parts, strict=False)
        ]
        return [picture for part in drawn for picture in part.result()]

    def set_strength(strength: float) -> None:
        for one in opened:
            one.set_strength(strength)

    return replace(
        first,
        set_strength=set_strength,
        animate_batch=animate_batch,
        batch_size=size * len(gpus),
        device_label=", ".join(one.device_label for one in opened),
    )
