"""Opens the cache of mattes for a run, by video, network and settings.

Videos are recognised by the content of their files, without reading all of it.

Name and date do not identify content: a copy has others, an overwritten file may have the same. Videos are
large and compressed: any other encoding of any other pictures differs almost everywhere, even at the same
size. So the hash covers the size, the first and the last mebibyte (where containers keep their headers and
indexes) and 64 blocks of 64 KiB spread evenly between. Files up to ``WHOLE_BYTES`` are hashed completely. A
change of a few bytes in the middle of a larger file of unchanged size can be missed; no editor or encoder
does that.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

from vitascope import __version__
from vitascope.config import Settings, vitascope_home
from vitascope.device import Device
from vitascope.errors import InputError, ModelError, OutputError
from vitascope.gpu.memory.disk_cache import CacheManager
from vitascope.media.libav import wrap_output_error
from vitascope.media.reading.damage import explain_unreadable
from vitascope.media.reading.images import find_images
from vitascope.models.network import (
    FloatArray,
    MatteEstimate,
    MattingNetwork,
    NetworkInput,
    NetworkState,
    side_multiple,
)
from vitascope.models.store.catalogue import load_catalogue
from vitascope.models.store.store import Fingerprint, ModelStore
from vitascope.observe.keys import holding_interrupts
from vitascope.segmentation.matting.cache import MatteCache, stretch_key
from vitascope.segmentation.matting.close_ups import CLOSE_UP_RULES
from vitascope.segmentation.matting.levers.bidirectional import BIDIRECTIONAL_RULES
from vitascope.segmentation.matting.levers.missed_on_the_way import ON_THE_WAY_RULES
from vitascope.segmentation.matting.levers.motion_smoothing import SMOOTHING_RULES
from vitascope.segmentation.matting.levers.scenery import SCENERY_RULES
from vitascope.segmentation.matting.levers.smaller_people import SMALLER_PEOPLE_RULES
from vitascope.segmentation.matting.look_ahead import LOOK_AHEAD_SIDE, SETTLING_SIDE
from vitascope.segmentation.matting.networks import ChosenNetwork, is_network_file, remembers
from vitascope.segmentation.matting.rim_people import RIM_RULES
from vitascope.segmentation.matting.scene_cuts import MUCH_NEW
from vitascope.segmentation.matting.stereo_agreement import AGREEMENT_RULES
from vitascope.vr.detection import VrDescription

WHOLE_BYTES = 16 << 20
_END_BYTES = 1 << 20
_BLOCKS, _BLOCK_BYTES = 64, 64 << 10


def video_fingerprint(video: Path) -> str:
    """Compute a hexadecimal BLAKE2b-160 that identifies the content of a video, or of all images in order.

    Args:
        video: A file, a folder of images or an image pattern.

    Raises:
        InputError: The file cannot be read.
    """
    digest = hashlib.blake2b(digest_size=20)
    try:
        for file in find_images(video) or [video]:
            if file.is_fifo():  # opening it would wait for a writer
                raise InputError(f"{video}: {explain_unreadable(file)}")
            _add(digest, file)
    except OSError as error:
        raise InputError(f"{video}: cannot be read: {error.strerror or error}") from error
    return digest.hexdigest()


def _add(digest: hashlib.blake2b, path: Path) -> None:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        digest.update(size.to_bytes(8, "little"))
        file.seek(0)
        if size <= WHOLE_BYTES:
            digest.update(file.read())
            return
        digest.update(file.read(_END_BYTES))
        between = size - 2 * _END_BYTES - _BLOCK_BYTES
        for block in range(_BLOCKS):
            file.seek(_END_BYTES + between * block // (_BLOCKS - 1))
            digest.update(file.read(_BLOCK_BYTES))
        file.seek(-_END_BYTES, 2)
        digest.update(file.read(_END_BYTES))


class DeferredNetwork:
    """A placeholder for a network that opens it on first use, from one thread at a time.

    Args:
        open_network: Opens it.
        name: Its name in reports.
        recurrent: Expected value of ``recurrent``, until it is open.
    """

    def __init__(
        self, open_network: Callable[[], ChosenNetwork[MattingNetwork]], *, name: str, recurrent: bool
    ) -> None:
        self._open_network = open_network
        self.name = name
        self._expected_recurrent = recurrent
        self.chosen: ChosenNetwork[MattingNetwork] | None = None
        """The network, once it is open."""

    @property
    def recurrent(self) -> bool:
        """True if the network is recurrent; the expected value until it is open."""
        return self._expected_recurrent if self.chosen is None else self.chosen.network.recurrent

    @property
    def engine_name(self) -> str:
        """The engine's name, or a note that none was needed."""
        return "no engine: mattes from the cache" if self.chosen is None else self.chosen.network.engine_name

    @property
    def side_multiple(self) -> int | None:
        """The network's own."""
        return side_multiple(self.opened())

    def opened(self) -> MattingNetwork:
        """The network itself.

        Raises:
            ModelError: It is unavailable.
            EngineError: The engine cannot load it.
        """
        if self.chosen is None:
            self.chosen = self._open_network()
        return self.chosen.network

    def input_for(self, region_size: tuple[int, int]) -> NetworkInput:
        """See ``MattingNetwork.input_for``."""
        return self.opened().input_for(region_size)

    def new_state(self) -> NetworkState:
        """Create a state of the network."""
        return self.opened().new_state()

    def infer(self, images: FloatArray, state: NetworkState) -> list[MatteEstimate]:
        """See ``MattingNetwork.infer``."""
        return self.opened().infer(images, state)

    def close(self) -> None:
        """Close the network if it was opened."""
        if self.chosen is not None:
            self.chosen.network.close()


def opening(chosen: ChosenNetwork[MattingNetwork]) -> ChosenNetwork[MattingNetwork]:
    """The facts known about a network; all of them once a deferred network is open."""
    network = chosen.network
    if isinstance(network, DeferredNetwork) and network.chosen is not None:
        return replace(network.chosen, requested=chosen.requested)
    return chosen


_NO_BOUND_GB = 1e9


class CacheContents(NamedTuple):
    """Number and size of the stored mattes."""

    folder: Path
    entries: int
    """Number of files: one for every few dozen frames of a video."""
    size_bytes: int


def cache_folder() -> Path:
    """Return the folder of stored mattes; other findings about videos are in folders beside it.

    It is in Vitascope's home or, if that is not writable, in a folder of this user for temporary files.

    Raises:
        OutputError: That is not a folder owned by this user.
    """
    home = vitascope_home()
    return (home if _may_be_written(home) else _folder_meanwhile()) / "mattes"


def keeps_findings(settings: Settings) -> bool:
    """True for a run that stores findings about videos: mattes, or people."""
    return settings.people.active or settings.processing.enable_caching


def notes_on_cache() -> tuple[str, ...]:
    """Make a note for a run that stores findings about videos, if Vitascope's home is not writable.

    Raises:
        OutputError: As of ``cache_folder``.
    """
    home = vitascope_home()
    if _may_be_written(home):
        return ()
    return (f"{home} cannot be written: results from videos are stored in {_folder_meanwhile()} instead",)


def _may_be_written(folder: Path) -> bool:
    """True if files can be created in a folder, or the folder itself can be created."""
    nearest = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    return nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)


def _folder_meanwhile() -> Path:
    """Return the path of a private folder of this user, created if missing."""
    user = str(os.getuid()) if hasattr(os, "getuid") else "files"  # on Windows, the folder is the user's own
    folder = Path(tempfile.gettempdir(), f"vitascope-{user}")
    with wrap_output_error(folder, "create it"):
        folder.mkdir(mode=0o700, exist_ok=True)
        known = folder.lstat()
        is_own = stat.S_ISDIR(known.st_mode) and (not hasattr(os, "getuid") or known.st_uid == os.getuid())
        if is_own and known.st_mode & 0o077:
            folder.chmod(0o700)
    if not is_own:
        raise OutputError(
            f"{folder}: not a folder of yours; set VITASCOPE_HOME to a folder that you can write to"
        )
    return folder


def cache_contents(folder: Path | None = None) -> CacheContents:
    """Count the contents of the cache; all zero if nothing was ever stored.

    Args:
        folder: Folder of a ``CacheManager``; that of mattes when omitted.
    """
    folder = folder or cache_folder()
    if not folder.is_dir():
        return CacheContents(folder, 0, 0)
    # Unbounded, so that this evicts nothing.
    with CacheManager(disk_cache_gb=_NO_BOUND_GB, folder=folder) as entries:
        stats = entries.stats()
    return CacheContents(folder, stats.disk_entries, stats.disk_bytes)


def clear_cache(folder: Path | None = None) -> CacheContents:
    """Delete the whole cache; returns what it contained.

    Args:
        folder: As of ``cache_contents``.

    Raises:
        OutputError: The folder cannot be written.
    """
    contents = cache_contents(folder)
    if contents.folder.is_dir():
        with CacheManager(disk_cache_gb=_NO_BOUND_GB, folder=contents.folder) as entries:
            entries.clear()
    return contents


def open_or_defer(
    settings: Settings, store: ModelStore | None, open_network: Callable[[], ChosenNetwork[MattingNetwork]]
) -> ChosenNetwork[MattingNetwork]:
    """Return the run's network; with the cache on, it is opened when the first matte is missing.

    Downloads a network that is not on this machine now: without its file, mattes cannot be matched to it.

    Args:
        settings: The run's settings.
        store: Where networks lie; None for a run that never uses the cache.
        open_network: Opens it.
    """
    name = settings.model.name
    if store is None or not settings.processing.enable_caching:
        return open_network()
    wanted = "rvm" if name == "auto" else name
    try:
        if network_sha256(wanted, store) is None:
            return open_network()
    except ModelError:  # opening it raises a better message
        return open_network()
    is_file = is_network_file(wanted)
    network = DeferredNetwork(
        open_network, name=Path(wanted).stem if is_file else wanted, recurrent=remembers(wanted)
    )
    return ChosenNetwork(network, name, None)


def open_matte_cache(
    video: Path,
    *,
    settings: Settings,
    network: MattingNetwork,
    store: ModelStore,
    vr: VrDescription,
    device: Device,
    frames_per_call: int,
    stretch: str | None = None,
    int8_decoder: bytes | None = None,
) -> MatteCache | None:
    """Open the cache of one video under the run's settings; None if it is switched off.

    Args:
        video: The video.
        settings: The run's settings.
        network: The run's network.
        store: Where networks lie.
        vr: Layout and projection of the eyes.
        device: The device that computes.
        frames_per_call: Consecutive frames for each call of the network.
        stretch: Identifies a part of the video that is matted separately from the frames before it.
        int8_decoder: The network's INT8 decoder, if it runs one.

    Raises:
        InputError: The video cannot be read.
        OutputError: The cache's folder cannot be made.
    """
    if not settings.processing.enable_caching:
        return None
    model, wanted, inference = settings.model, settings.video, settings.inference
    named = settings.model.name if is_network_file(settings.model.name) else network.name
    is_plain = inference == type(inference)()
    gpu = (device.kind, model.backend, settings.gpu.precision, settings.gpu.allow_tf32)
    decoder = None if int8_decoder is None else hashlib.sha256(int8_decoder).hexdigest()
    processor = (device.kind, decoder)
    key = stretch_key(
        video_fingerprint(video),
        version=__version__,
        network=network_sha256(named, store) or named,
        kind=(model.kind, model.person_class),
        size=(model.longest_side, model.downsample_ratio),
        warm_up=(model.warm_up_frames, model.look_ahead_frames),
        rules=rules_of_mattes(device.kind),
        device=gpu if device.kind == "cuda" else processor,
        stereo=vr.layout.value,
        lens=repr(vr.trusted_lens),
        right_eye_first=vr.right_eye_first,
        start=(wanted.start_seconds, stretch),
        cuts=wanted.scene_cut_threshold,
        damage=wanted.max_corrupt_frames,
        inference=sorted(inference.model_dump().items()),
        # Batching decides which frames a lever sees.
        frames_per_call=None if is_plain else frames_per_call,
    )
    capacity = settings.processing.cache_size_gb
    return MatteCache(
        CacheManager(disk_cache_gb=capacity, folder=cache_folder()),
        key,
        end_seconds=wanted.end_seconds,
        capacity_bytes=int(capacity * 1e9),
        keeps_memory=is_plain and remembers(named),
    )


def rules_of_mattes(device_kind: Literal["cpu", "cuda"]) -> tuple[object, ...]:
    """Rules, other than settings, for showing frames to networks: mattes made under others are not reused.

    Returns:
        Values with a stable ``repr``.
    """
    # Imported here, because these import engines and most runs store nothing. Ctrl-C inside a native module's import
    # would end the process.
    with holding_interrupts():
        from vitascope.models.selfie.presence import PRESENCE_RULES

        if device_kind != "cuda":
            from vitascope.models.rvm.near_people import NEAR_RULES

    rules = (
        CLOSE_UP_RULES,
        RIM_RULES,
        AGREEMENT_RULES,
        SETTLING_SIDE,
        LOOK_AHEAD_SIDE,
        MUCH_NEW,
        BIDIRECTIONAL_RULES,
        ON_THE_WAY_RULES,
        SMALLER_PEOPLE_RULES,
        SCENERY_RULES,
        SMOOTHING_RULES,
        PRESENCE_RULES,
    )
    return rules if device_kind == "cuda" else (*rules, NEAR_RULES)


def network_sha256(name: str, store: ModelStore) -> str | None:
    """Return the sha256 of a network's file; None if it is not on this machine."""
    if is_network_file(name):
        path = Path(name)
        return Fingerprint.of(path).sha256 if path.is_file() else None
    return load_catalogue().entry(name).sha256 if store.is_cached(name) else None
