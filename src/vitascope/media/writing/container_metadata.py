"""The metadata that a container holds beside the codec's own: rotation, aspect, stereo and projection, HDR.

FFmpeg's muxers take little of it through PyAV. The rest is written into the finished file, box by box.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from av.video.stream import VideoStream

from vitascope.frames import Projection, VideoInfo
from vitascope.media.metadata.color_tags import HdrMetadata
from vitascope.media.metadata.hdr import read_hdr, write_hdr_boxes
from vitascope.media.metadata.matroska_video import MATROSKA_PROJECTIONS, name_with_room, patch_video_entry
from vitascope.media.metadata.spatial_sound import read_spatial_sound, write_spatial_sound
from vitascope.media.metadata.spherical import (
    MATROSKA_STEREO_MODES,
    SphericalMetadata,
    read_spherical,
    set_rotation,
    write_spherical,
)
from vitascope.media.writing.encoder_setup import BOX_MUXERS, MATROSKA_MUXERS, PictureSetup
from vitascope.media.writing.stream_copy import CarriedStream

__all__ = ["ContainerMetadata"]


class ContainerMetadata:
    """Settles what an output shall say of its video, and writes it.

    Args:
        info: What the written frames look like.
        setup: The setup of their encoder.
        copy_from: The source; None for none.
        spherical: Stereo and spherical metadata; ``"source"`` takes the source's, else what ``info`` says.
        hdr: HDR metadata; ``"source"`` takes the source's.

    Raises:
        InputError: The source cannot be read.
    """

    def __init__(
        self,
        info: VideoInfo,
        setup: PictureSetup,
        *,
        copy_from: Path | None,
        spherical: SphericalMetadata | Literal["source"] | None,
        hdr: HdrMetadata | Literal["source"] | None,
    ) -> None:
        if spherical == "source":
            spherical = read_spherical(copy_from) if copy_from is not None else None
            if spherical is None and (info.stereo is not None or info.projection is not None):
                spherical = SphericalMetadata(
                    info.stereo,
                    info.projection,
                    right_eye_first=info.right_eye_first,
                    fov_degrees=info.fov_degrees,
                )
        if hdr == "source":
            hdr = read_hdr(copy_from) if copy_from is not None and info.has_hdr_side_data else None
        sounds = read_spatial_sound(copy_from) if copy_from is not None else []
        self._spatial_sound = sounds if setup.encoding.muxer in BOX_MUXERS else []
        self.spherical = spherical
        self.hdr = hdr
        self._muxer = setup.encoding.muxer
        self._rotation_degrees = info.rotation_degrees
        self._aspect = setup.sample_aspect_ratio
        self.notes: list[str] = []
        """Losses that the output's format forces, one line each."""
        if spherical is not None and (spherical.stereo is not None or spherical.projection is not None):
            if self._muxer == "image2":
                self.notes.append("pictures do not carry stereo layout and projection")
            elif self._muxer in MATROSKA_MUXERS and spherical.projection is Projection.FISHEYE:
                self.notes.append(f"{self._muxer} has no word for a fisheye projection; .mp4 and .mov have")
        if any(sounds) and not self._spatial_sound:
            self.notes.append(
                f"{self._muxer} does not say which way ambisonic sound points; .mp4 and .mov do"
            )
        if hdr is not None and not setup.carries_hdr():
            self.notes.append(f"{setup.encoding.codec} in {self._muxer} does not carry HDR metadata")

    def prepare(self, stream: VideoStream) -> None:
        """Tell the muxer what it takes, before the first packet."""
        if self._muxer not in MATROSKA_MUXERS:
            return
        if self.spherical is not None and self.spherical.stereo is not None:
            modes = MATROSKA_STEREO_MODES[self.spherical.stereo]
            stream.metadata["stereo_mode"] = modes[self.spherical.right_eye_first]
        if self._patches_matroska():
            stream.metadata["title"] = name_with_room(stream.metadata.get("title", ""))

    def patch(self, path: Path, streams: Sequence[CarriedStream]) -> None:
        """Write the rest into the closed file.

        Args:
            path: The file.
            streams: What became of the source's streams: sound that was encoded anew is not ambisonic any more.

        Raises:
            OutputError: The file cannot be written.
        """
        if self._muxer in BOX_MUXERS:
            if self._rotation_degrees:
                set_rotation(path, self._rotation_degrees)
            if self.spherical is not None:
                write_spherical(path, self.spherical)
            if self.hdr is not None:
                write_hdr_boxes(path, self.hdr)
            sounds = sorted(
                (stream for stream in streams if stream.kind == "audio"), key=lambda one: one.index
            )
            written = [
                boxes if sound.action == "copied" else b""
                for sound, boxes in zip(sounds, self._spatial_sound, strict=False)
                if sound.action != "dropped"
            ]
            write_spatial_sound(path, written)
        elif self._patches_matroska():
            projection = self.spherical.projection if self.spherical is not None else None
            patch_video_entry(path, sample_aspect_ratio=self._aspect, projection=projection)

    def _patches_matroska(self) -> bool:
        projection = self.spherical.projection if self.spherical is not None else None
        return self._muxer in MATROSKA_MUXERS and (self._aspect != 1 or projection in MATROSKA_PROJECTIONS)
