"""What limits a run: segment for a few seconds, and ask ``BottleneckDetector``."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from vitascope.bench.measuring.limited_run import LimitedRun, run_for
from vitascope.errors import InputError
from vitascope.gpu.profiling.document import load_profile
from vitascope.gpu.profiling.findings import Finding
from vitascope.segmentation.report import SegmentReport

__all__ = ["Detected", "detect_bottlenecks"]

_LEAST_FRAMES = 20


class Detected:
    """The verdict on a run, and the run."""

    def __init__(self, report: SegmentReport, verdict: dict[str, Any]) -> None:
        self.report = report
        self.main = _finding(verdict["main"])
        """What to do first."""
        self.others = tuple(_finding(other) for other in verdict["others"])

    def lines(self) -> list[str]:
        """For people: speed, verdict, evidence, the one change, and each stage's share."""
        report = self.report
        lines = [
            f"{report.frame_count} frames at {report.pipeline.items_per_second:.1f} fps, {report.model} on "
            f"{report.device}",
            *self.main.lines(),
            *(f"also: {other.title}; {other.advice}" for other in self.others),
        ]
        busy = ", ".join(f"{stage.name} {stage.load:.0%}" for stage in report.pipeline.stages)
        return [*lines, f"busy: {busy}"]

    def to_dict(self) -> dict[str, Any]:
        """For machines."""
        findings = [self.main, *self.others]
        return {
            "input": str(self.report.input),
            "frame_count": self.report.frame_count,
            "frames_per_second": self.report.pipeline.items_per_second,
            "findings": [
                {
                    "kind": one.kind,
                    "stage": one.stage,
                    "title": one.title,
                    "evidence": list(one.evidence),
                    "advice": one.advice,
                    "expected_gain": one.expected_gain,
                    "confidence": one.confidence,
                    "urgent": one.urgent,
                }
                for one in findings
            ],
            "stages": {stage.name: stage.load for stage in self.report.pipeline.stages},
        }


def detect_bottlenecks(run: LimitedRun) -> Detected:
    """Segment a clip, its pictures thrown away, and say what limited the run.

    Raises:
        InputError: The clip cannot be read, or is too short for a verdict.
        VitascopeError: As ``Segmenter``.
    """
    with TemporaryDirectory(prefix="vitascope-") as folder:
        report = run_for(run, keep_in=Path(folder))
        if report.frame_count < _LEAST_FRAMES:
            raise InputError(
                f"{run.video}: {report.frame_count} frames are too few for a verdict, {_LEAST_FRAMES} are needed; "
                "take a longer clip, or none, for a synthetic one"
            )
        verdict = load_profile(Path(folder) / "stages.json")["verdict"]
    return Detected(report, verdict)


def _finding(plain: dict[str, Any]) -> Finding:
    return Finding(**{**plain, "evidence": tuple(plain["evidence"])})
