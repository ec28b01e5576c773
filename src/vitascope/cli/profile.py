"""``vitascope profile``."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from vitascope.cli.ending import ending_promptly
from vitascope.cli.options import Assignments, ConfigFiles
from vitascope.observe.keys import holding_interrupts
from vitascope.observe.terminal import Page


def profile(
    video: Path,
    /,
    *,
    tool: Annotated[
        Literal["stages", "pytorch", "nsight-systems", "nsight", "nsight-compute", "memory"] | None,
        Parameter(alias="-t"),
    ] = None,
    duration: Annotated[float, Parameter(alias="-d", metavar="SECONDS")] = 30.0,
    output_dir: Annotated[Path, Parameter(alias="-o")] = Path("profile"),
    profile: str | None = None,
    config: ConfigFiles = (),
    set_: Assignments = (),
) -> None:
    """Profile segment on a video, and show where time or memory goes; writes no video.

    Args:
        video: The input.
        tool: stages (time of each), pytorch (kernels and operators, too), nsight-systems or nsight (timeline),
            nsight-compute (counters of kernels), or memory [default: pytorch on a GPU if it is installed, else stages].
        duration: Maximum seconds of work.
        output_dir: Folder for traces and tables.
        profile: Speed or quality: fast, balanced or quality [default: balanced].
        config: Settings file (YAML); later files override earlier ones.
        set_: One setting as key=value, for example model.batch_size=4.
    """
    # Imported here so that --help and usage errors do not wait for codecs and engines.
    with holding_interrupts():
        from vitascope.bench.limited_run import LimitedRun
        from vitascope.bench.profiling import profile_video
        from vitascope.media.writing.output_target import refuse_unwritable

    refuse_unwritable(output_dir / "stages.json")  # or another file; do not measure in vain
    run = LimitedRun(
        video=video,
        seconds=duration,
        profile=profile,
        files=config,
        assignments=set_,
    )
    if tool is None:  # PyTorch computes nothing on the CPU
        tool = "pytorch" if find_spec("torch") and run.device().kind == "cuda" else "stages"
    with ending_promptly():
        result = profile_video(run, tool="nsight-systems" if tool == "nsight" else tool, folder=output_dir)
    page = Page()
    page.print(result.table)
    page.print()
    for number, finding in enumerate(result.findings, start=1):
        page.print(f"{number}. {finding}")
    for path in result.files:
        page.print_lines(f"written: {path}")
