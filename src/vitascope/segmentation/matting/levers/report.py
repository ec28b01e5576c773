"""What the levers did."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class LeverReport:
    """Counts of what the levers did with the frames of one video."""

    cached_frames: int
    """Mattes that came from the cache."""
    reused_frames: int
    """Frames that changed so little that the last matte served again."""
    early_frames: int
    """Frames whose matte is the first network's."""
    cropped_frames: int
    """Frames of which the network saw people's surroundings alone."""
    empty_frames: int
    """Frames without anybody in the last look, and without motion since: not shown to the network."""
    close_up_frames: int
    """Frames that people fill: the network saw them smaller."""
    network_share: float
    """Samples that the main network saw, over those of every frame once and whole; repeats at the start of a shot
    aside. Above 1 where it sees more than that."""

    def lines(self, frame_count: int) -> list[str]:
        """For people: what is worth a line."""
        told = (
            (self.cached_frames, "came from the cache"),
            (self.reused_frames, "were like the one before and kept its matte"),
            (self.early_frames, "were left to the first network"),
            (self.cropped_frames, "were looked at around people alone"),
            (self.empty_frames, "had nobody in them and were not looked at"),
            (self.close_up_frames, "are close-ups and were seen smaller"),
        )
        lines = [f"{count} of {frame_count} frames {what}" for count, what in told if count]
        if lines or self.network_share not in (0.0, 1.0):
            lines.append(f"the network saw {self.network_share:.0%} of the samples of every frame whole")
        return lines


@dataclass(slots=True)
class Tally:
    """Counts while a job runs; written by the thread that estimates mattes."""

    cached_frames: int = 0
    reused_frames: int = 0
    early_frames: int = 0
    cropped_frames: int = 0
    empty_frames: int = 0
    close_up_frames: int = 0
    samples: int = 0
    """Samples of all pictures that the main network saw."""
    frames: int = 0
    """All frames, however they got their matte."""

    def report(self, samples_of_frame: int) -> LeverReport:
        """The counts so far.

        Args:
            samples_of_frame: Of the whole pictures of one frame, all eyes.
        """
        counts = asdict(self)
        seen, usual = counts.pop("samples"), counts.pop("frames") * samples_of_frame
        return LeverReport(**counts, network_share=round(seen / usual, 4) if usual else 0.0)
