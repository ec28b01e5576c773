"""``vitascope bench animate``."""

from __future__ import annotations

import shlex
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from vitascope.cli.options import Assignments, ConfigFiles, Switch
from vitascope.cli.printing import print_json
from vitascope.config import SettingsSource, vitascope_home
from vitascope.errors import UsageError
from vitascope.observe.keys import PressedKeys, holding_interrupts
from vitascope.observe.terminal import Page, Screen

if TYPE_CHECKING:
    from vitascope.tune.live_tuner import LiveTuned
    from vitascope.tune.search import GridSearch, Trial

_DEFAULT_FILE = Path("live.yaml")


def animate(
    *,
    image: Path = Path("examples/astronaut.jpg"),
    driver: Path = Path("examples/talk.motion"),
    duration: float = 60.0,
    auto_tune: Switch = False,
    save_config: Annotated[Path | None, Parameter(alias="-o", metavar="FILE")] = None,
    profile: str | None = None,
    config: ConfigFiles = None,
    set_: Assignments = None,
    json: Switch = False,
) -> None:
    """Measure how fast a portrait follows a driver here; nothing is shown.

    With --auto-tune, find the settings that reach performance.target_fps within
    performance.max_latency_ms with the least loss, and write a file for
    animate -c.

    Args:
        image: The portrait.
        driver: A video of a face, or a .motion file (which needs no tracker).
        duration: Seconds to measure, all trials of --auto-tune together.
        auto_tune: Try size, landmark refinement, frame skipping, the animator, and LivePortrait's batch.
        save_config: Settings file that --auto-tune writes [default: live.yaml].
        profile: Settings to begin with [default: balanced].
        config: Settings file (YAML); what it sets is not tuned.
        set_: One setting as key=value; it is not tuned.
        json: Print as JSON.
    """
    if not 0 < duration < float("inf"):
        raise UsageError(f"--duration {duration:g}: a number of seconds above 0")
    source = SettingsSource(profile=profile, files=tuple(config or ()), assignments=tuple(set_ or ()))
    source.load()  # what is wrong with settings is said before anything opens
    if auto_tune:
        file = save_config or _DEFAULT_FILE
        if file.is_dir():
            raise UsageError(f"--save-config: {file} is a folder, expected a file such as {_DEFAULT_FILE}")
        _tune(image, driver, duration, file, source, json=json)
        return
    if save_config is not None:
        raise UsageError("--save-config goes with --auto-tune: without it no settings are found")
    _measure(image, driver, duration, source, json=json)


def _measure(image: Path, driver: Path, duration: float, source: SettingsSource, *, json: bool) -> None:
    with holding_interrupts():
        from vitascope.animation import find_example
        from vitascope.animation.live.report import summarise_live
        from vitascope.animation.live.run import measure_live
        from vitascope.models.store.store import ModelStore

    screen = Screen()
    page = Page()
    with PressedKeys() as keys:
        report = measure_live(
            find_example(image),
            find_example(driver),
            loaded=source.load(),
            store=ModelStore(vitascope_home()),
            seconds=duration,
            on_session=lambda session: keys.hand_to(session.controls.press, at_interrupt=session.stop),
            on_message=screen.print,
        )
    if json:
        page.print_json(data=report.to_dict())
    else:
        page.print("\n".join(summarise_live(report)))


def _tune(
    image: Path, driver: Path, duration: float, file: Path, source: SettingsSource, *, json: bool
) -> None:
    with holding_interrupts():
        from vitascope.animation import find_example
        from vitascope.models.store.store import ModelStore
        from vitascope.tune.live_tuner import LiveTuner
        from vitascope.tune.tuned_file import append_history, reason, tuned_text, write_tuned

    screen = Screen()

    def tell(search: GridSearch, trial: Trial) -> None:
        if not json:
            screen.print(_told(search, trial))

    subject = f"{image} and {driver}"
    with TemporaryDirectory(prefix="vitascope-") as folder:
        tuned = LiveTuner(
            source,
            find_example(image),
            find_example(driver),
            store=ModelStore(vitascope_home()),
            folder=Path(folder),
            seconds=duration,
            command=_command(image, driver, duration, source),
            on_trial=tell,
        ).tune()
    when = datetime.now().astimezone()
    write_tuned(file, tuned_text(tuned, source, subject=subject, when=when))
    history = append_history(tuned, subject=subject, when=when, file=file)
    if json:
        print_json(_plain(tuned, file))
        return
    page = Page()
    for effect in tuned.search.effects:
        if effect.key in tuned.values:
            page.print(f"{effect.key}: {tuned.values[effect.key]}")
            page.print(f"  {reason(effect, unit=tuned.score_unit)}")
    if not tuned.values:
        page.print(tuned.unchanged_in_words())
    page.print(tuned.change_in_words())
    if tuned.unreachable is not None:
        page.print(f"not reached: {tuned.unreachable}")
    page.print(
        f"{len(tuned.search.trials)} trials in {tuned.search.grid_size} combinations; why no more: {tuned.search.ended}"
    )
    page.print(f"written: {file}; use it with: vitascope animate {image} --driver 0 --sink window -c {file}")
    page.print(f"history: {history}")


def _command(image: Path, driver: Path, duration: float, source: SettingsSource) -> str:
    """Write the command that searches anew, as it is typed."""
    words = ["--image", str(image), "--driver", str(driver), "--auto-tune", "--duration", f"{duration:g}"]
    if source.profile is not None:
        words += ["--profile", source.profile]
    for file in source.files:
        words += ["-c", str(file)]
    for assignment in source.assignments:
        words += ["--set", assignment]
    return shlex.join(["vitascope", "bench", "animate", *words])


def _told(search: GridSearch, trial: Trial) -> str:
    """One trial in one line."""
    values = ", ".join(
        f"{key.rpartition('.')[2]}={value}" for key, value in search.values(trial.cell).items()
    )
    measured = trial.measured
    outcome = measured.failure or (
        f"{measured.figures['fps']:.1f} fps, {measured.figures['latency_ms']:.0f} ms: {measured.score:.0f} %"
    )
    return f"{len(search.trials)}/{search.most_trials} {values}: {outcome} ({trial.why})"


def _plain(tuned: LiveTuned, file: Path) -> dict[str, object]:
    before, after = tuned.figures()
    return {
        "change": dict(tuned.values),
        "before": dict(before),
        "after": dict(after),
        "target_fps": tuned.target.fps,
        "max_latency_ms": tuned.target.max_latency_ms,
        "unreachable": tuned.unreachable,
        "trials": [
            {
                "values": _values(tuned, trial),
                "score": trial.measured.score,
                **trial.measured.figures,
                "failure": trial.measured.failure,
                "why": trial.why,
            }
            for trial in tuned.search.trials
        ],
        "combinations": tuned.search.grid_size,
        "ended": tuned.search.ended,
        "file": str(file),
    }


def _values(tuned: LiveTuned, trial: Trial) -> dict[str, object]:
    return {knob.key: knob.values[place] for knob, place in zip(tuned.knobs, trial.cell, strict=True)}
