"""Tuning on real runs: what is turned, what limits do, what is written, and what is said when it cannot be had."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from clips import write_clip
from left_over import left_by
from scripted_runs import HELD, script_runs
from vitascope.config import SettingsSource, load_settings
from vitascope.device import Device
from vitascope.errors import InputError, UsageError, VitascopeError
from vitascope.file_lock import write_file
from vitascope.segmentation import film_run
from vitascope.tune import optimizer as search_time
from vitascope.tune import tuned_file
from vitascope.tune.knobs import cell_of, knobs_for
from vitascope.tune.optimizer import LEAST_FRAMES, ClipTrials, Target, Tuner
from vitascope.tune.search import Effect, Measured
from vitascope.tune.tuned_file import (
    append_history,
    history_path,
    read_history,
    reason,
    tuned_text,
)


@pytest.fixture
def scripted(monkeypatch, tmp_path):
    monkeypatch.setenv("VITASCOPE_HOME", str(tmp_path / "home"))
    return script_runs(monkeypatch)


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return write_clip(tmp_path_factory.mktemp("tune") / "in.mp4", frame_count=72)


def source_of(*assignments):
    return SettingsSource(profile="fast", assignments=(*HELD, *assignments))


def tuner_of(clip, *assignments, **options):
    return Tuner(source_of(*assignments), clip, subject="a clip", **{"seconds": 0.1, **options})


@pytest.fixture(scope="module")
def plainly_tuned(clip, tmp_path_factory):
    """Return what a search without any options finds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITASCOPE_HOME", str(tmp_path_factory.mktemp("home")))
        script_runs(patch)
        return tuner_of(clip).tune()


def test_the_fastest_batch_is_found_without_loss(plainly_tuned):
    tuned = plainly_tuned
    assert tuned.values == {"model.batch_size": 4}
    assert tuned.gain > 1.5
    assert tuned.after.figures["alpha_error"] == pytest.approx(0, abs=1e-6)
    assert tuned.unreachable is None
    failures = {trial.measured.failure for trial in tuned.search.trials}
    assert failures == {None, "out of memory"}
    # Half the size is twice as fast, and exceeds the default limit.
    assert {
        trial.measured.figures["alpha_error"] > 1
        for trial in tuned.search.trials
        if not trial.measured.failure
    } == {
        True,
        False,
    }


def test_a_search_leaves_nothing_in_memory(scripted, clip):
    assert not left_by(lambda: tuner_of(clip, most_trials=4).tune())  # each as the next


def test_a_search_that_is_refused_leaves_nothing_either(scripted, clip):
    def fail():
        with pytest.raises(UsageError):
            tuner_of(clip, "model.batch_size=2", keep_quality=True).tune()

    assert not left_by(fail)


def test_less_quality_may_be_asked_for(scripted, clip):
    tuned = tuner_of(clip, "model.batch_size=1", target=Target(min_quality=0.5)).tune()
    assert tuned.values == {"model.input_size": 64}
    assert tuned.after.figures["alpha_error"] > 1.5
    assert "alpha error" in tuned.trade_off()


def test_what_the_user_set_stays_and_a_range_is_searched(scripted, clip):
    tuned = tuner_of(clip, "model.batch_size=1-2", keep_quality=True).tune()
    assert {knob[0] for knob in zip(tuned.values, strict=True)} <= {"model.batch_size"}
    tried = {trial.cell for trial in tuned.search.trials}
    assert tried == {(0,), (1,)}
    with pytest.raises(UsageError, match="every setting that could be tuned was set by hand"):
        tuner_of(clip, "model.batch_size=2", keep_quality=True).tune()


def test_a_target_out_of_reach_says_what_is_reachable(scripted, clip):
    tuned = tuner_of(clip, target=Target(fps=90_000), keep_quality=True).tune()
    assert "90000 fps cannot be reached here: the maximum is" in tuned.unreachable
    assert "model.batch_size=4" in tuned.unreachable


def test_a_target_that_is_reached_ends_the_search(scripted, clip):
    tuned = tuner_of(clip, target=Target(fps=5)).tune()
    assert tuned.search.ended == "the target was reached"
    assert len(tuned.search.trials) == 1
    assert tuned.values == {}
    assert tuned.unchanged_in_words() == "the settings as they are reach the target"
    both = replace(tuned, unreachable="no settings keep all limits")
    assert both.unchanged_in_words() == "nothing was better than the settings as they are"


def test_where_nothing_is_better_what_sets_the_pace_is_said(plainly_tuned):
    tuned = plainly_tuned
    fastest = max(trial.measured.score for trial in tuned.search.trials)
    as_fast = replace(tuned.before, score=fastest)
    as_it_is = replace(tuned, values={}, before=as_fast, after=as_fast)
    said = as_it_is.unchanged_in_words()
    assert re.fullmatch(
        r"nothing was better than the settings as they are: (\w+) sets the pace \(\1 .+\), and nothing that was tried "
        "made that faster",
        said,
    )
    assert said in tuned_text(as_it_is, source_of(), subject="a clip", when=datetime.now(UTC)).replace(
        "\n# ", " "
    )
    quiet = replace(as_it_is, shown=replace(as_it_is.shown, pace=None))
    assert quiet.unchanged_in_words() == "nothing was better than the settings as they are"


def test_faster_settings_that_broke_a_limit_are_not_passed_over(scripted, clip):
    """Check half the size, which is twice as fast and loses too much."""
    tuned = tuner_of(clip, "model.batch_size=1").tune()
    assert tuned.values == {}
    said = tuned.unchanged_in_words()
    assert re.fullmatch(
        "nothing was better than the settings as they are: whatever ran faster broke a limit, or was no faster when "
        r"run again; (\w+) sets the pace \(\1 .+\)",
        said,
    )
    ran = [trial for trial in tuned.search.trials if trial.measured.failure is None]
    assert 0 < len(tuned.others) < len(ran)  # the current settings were tried, too, and are not among them
    only_they_ran = replace(tuned, others=(), before=replace(tuned.before, score=1.0))
    assert only_they_ran.unchanged_in_words() == "nothing was better than the settings as they are"


def test_a_search_ends_when_its_time_is_over(scripted, clip, monkeypatch):
    clock = iter(range(0, 100_000, 10))  # whoever asks finds ten seconds gone: searches and their runs
    monkeypatch.setattr(search_time, "perf_counter", lambda: float(next(clock)))
    said = []
    tuned = tuner_of(clip, most_seconds=200.0, on_plan=said.append).tune()
    assert tuned.search.ended == "the time was up"
    # Besides six runs of ten seconds at the end, there is time for 14 queries. At least six come before the
    # trials, more if a first run shows that runs should be longer, and each trial has one, or more if it is
    # new.
    assert 1 <= len(tuned.search.trials) <= 14 - 6
    (line,) = said
    assert line.startswith("up to 14 runs of about ")
    assert "in about 3 minutes at most" in line


def test_a_time_in_which_nothing_can_be_tried_is_refused_with_what_it_takes(scripted, clip):
    with pytest.raises(UsageError, match=r"a search needs at least \d+ s: allow \d+\.\d minutes or more"):
        tuner_of(clip, most_seconds=0.01).tune()


@pytest.mark.parametrize(
    ("old", "new", "is_faster"),
    [
        ([100, 100, 100], [110, 108, 109], True),
        ([100, 90, 100], [110, 108, 99], False),  # 1.08 times as fast, but not every time
        ([100, 100, 100], [101, 102, 101], False),  # every time, but hardly
    ],
)
def test_faster_is_what_is_faster_in_every_turn(old, new, is_faster):
    tuner = object.__new__(Tuner)
    tuner._turns = 3
    left = {"old": list(old), "new": list(new)}
    tuner._trials = SimpleNamespace(
        measure=lambda values: Measured(left["new" if values else "old"].pop(0), {})
    )
    before, after, found = tuner._in_turns({"model.batch_size": 4})
    assert (before.score, after.score) == (np.median(old), np.median(new))
    assert found == is_faster


def test_opening_the_reference_does_not_count_as_a_run(scripted, clip, monkeypatch):
    opened, passed = film_run.open_network, [0.0]
    monkeypatch.setattr(search_time, "perf_counter", lambda: time.perf_counter() + passed[0])

    def slowly(*arguments, **flags):
        passed[0] += 1000.0
        return opened(*arguments, **flags)

    monkeypatch.setattr(film_run, "open_network", slowly)
    said = []
    trials = ClipTrials(source_of(), clip, seconds=0.1)
    trials.begin(with_quality=True, expected=said.append)
    assert 0 < said[0] < 1000.0


def test_limits_that_nothing_keeps(scripted, clip):
    tuned = tuner_of(clip, target=Target(max_latency_ms=0.001), keep_quality=True).tune()
    assert tuned.unreachable.startswith(
        "no settings keep all limits; the best value reached for each: latency_ms"
    )


def test_a_clip_shorter_than_the_warm_up(tmp_path):
    short = write_clip(tmp_path / "short.mp4", frame_count=LEAST_FRAMES - 1)
    with pytest.raises(InputError, match="47 frames are too few to tune with: 16 warm up"):
        ClipTrials(SettingsSource(), short, seconds=1)
    with pytest.raises(InputError, match="24 frames are too few"):
        ClipTrials(
            SettingsSource(assignments=("video.start_seconds=1",)),
            write_clip(tmp_path / "long.mp4", frame_count=LEAST_FRAMES),
            seconds=1,
        )


@pytest.mark.parametrize(
    "target", [Target(fps=0), Target(fps=float("nan")), Target(max_latency_ms=-1), Target(min_quality=1.5)]
)
def test_wishes_out_of_range(clip, target):
    with pytest.raises(UsageError):
        tuner_of(clip, target=target)


def test_settings_that_do_not_run_at_all(scripted, clip):
    with pytest.raises(VitascopeError, match="8 frames do not fit"):
        tuner_of(clip, "model.batch_size=8").tune()


def test_speed_is_that_of_whole_batches_after_the_warm_up(clip):
    trials = ClipTrials(source_of(), clip, seconds=0.1)
    slow_at_first = [n * 1.0 for n in range(1, 17)] + [16 + n * 0.1 for n in range(1, 57)]
    run = SimpleNamespace(frame_count=72, done_seconds=tuple(slow_at_first))
    assert trials._speed(run, 1) == pytest.approx(10)
    in_bursts = [(n // 6 + 1) * 0.3 for n in range(72)]  # six at a time, of which twelve are a stretch
    assert trials._speed(SimpleNamespace(frame_count=72, done_seconds=tuple(in_bursts)), 6) == pytest.approx(
        20
    )
    with pytest.raises(VitascopeError, match="72 frames are too few to measure batches of 40"):
        trials._speed(run, 40)
    with pytest.raises(InputError, match="45 frames are too few to tune with"):
        trials._speed(SimpleNamespace(frame_count=45, done_seconds=()), 1)


def test_trials_are_alone_and_show_the_network_every_frame(scripted, clip):
    trials = ClipTrials(
        source_of("processing.enable_caching=true", "inference.skip_static=0.01"), clip, seconds=0.1
    )
    trials.begin(with_quality=True)
    trials.measure({"model.batch_size": 2})
    reference, *others = scripted
    assert not any(one.processing.enable_caching or one.processing.use_multiprocessing for one in scripted)
    assert (reference.gpu.precision, reference.inference.skip_static) == ("fp32", 0.0)
    assert {one.inference.skip_static for one in others} == {0.01}
    assert others[-1].frames_per_call == 2


def test_knobs_of_a_gpu(monkeypatch):
    monkeypatch.setattr("vitascope.tune.knobs.why_nvenc_fails", lambda _, **__: None)
    monkeypatch.setattr("vitascope.tune.knobs.find_spec", lambda name: name == "torch" or None)
    providers = {"cpu": None, "cuda": "missing", "tensorrt": "missing", "tensorrt-rtx": "missing"}
    monkeypatch.setattr("vitascope.tune.knobs.missing_provider", providers.get)
    gpu = Device("cuda", "NVIDIA H200 (GPU 0)")

    def keys(network="rvm", *, keep_quality=False, loaded=None):
        return {
            knob.key: knob.values
            for knob in knobs_for(
                loaded or load_settings(),
                device=gpu,
                network=network,
                network_size=(288, 512),
                keep_quality=keep_quality,
            )
        }

    every = keys()
    assert every["model.batch_size"] == (1, 2, 4, 8, 16)
    assert every["model.input_size"] == (None, 384, 256)
    assert every["model.backend"] == ("auto", "torch")
    providers["cuda"] = None
    assert keys()["model.backend"] == ("auto", "torch", "onnxruntime")
    assert {
        "gpu.precision",
        "gpu.decoder_sessions",
        "gpu.encoder",
        "pipeline.stages.preprocess.cuda_streams",
    } < set(every)
    assert not {"gpu.precision", "model.backend", "model.input_size"} & set(keys(keep_quality=True))
    assert not {"gpu.precision", "model.input_size"} & set(keys("selfie"))
    fixed = load_settings(assignments=["gpu.precision=fp32", "performance.mode=latency"])
    assert not {"gpu.precision", "model.batch_size"} & set(keys(loaded=fixed))


def test_modes_are_tried_where_they_can_be_of_use():
    def modes(network="rvm", *assignments, kind="cpu", **options):
        knobs = knobs_for(
            load_settings(assignments=assignments),
            device=Device(kind, kind),
            network=network,
            network_size=(288, 512),
            **{"keep_quality": False, **options},
        )
        return {knob.key: knob.values for knob in knobs}.get("performance.mode")

    assert modes() == ("auto", "throughput")
    assert modes(bounds_latency=True) == ("auto", "throughput", "latency")
    assert modes(keep_quality=True, bounds_latency=True) == ("auto", "latency")
    assert modes("rvm", "gpu.precision=fp32") is modes("selfie") is modes(kind="cuda") is None
    assert modes("rvm", "performance.mode=auto", bounds_latency=True) is None


def test_a_latency_to_keep_is_reached_by_latency_mode(scripted, clip, monkeypatch):
    by_batch = {1: 20.0, 2: 120.0, 4: 200.0}
    monkeypatch.setattr(search_time, "_latency_ms", lambda run: by_batch[run.frames_per_call])
    held = [one for one in HELD if "mode" not in one]
    source = SettingsSource(profile="fast", assignments=(*held, "model.batch_size=2-4"))
    tuned = Tuner(
        source,
        clip,
        subject="a clip",
        seconds=0.1,
        keep_quality=True,
        most_trials=1,
        target=Target(max_latency_ms=50),
    ).tune()
    assert tuned.unreachable is None
    assert tuned.values == {"performance.mode": "latency"}  # and no batch, which has no effect in this mode
    assert tuned.after.figures["latency_ms"] == 20
    assert "200 -> 20 ms latency" in tuned.trade_off() or "120 -> 20 ms latency" in tuned.trade_off()


def test_the_cell_that_is_nearest_to_some_values():
    knobs = knobs_for(
        load_settings(),
        device=Device("cpu", "CPU"),
        network="selfie",
        network_size=(256, 256),
        keep_quality=False,
    )
    cell = cell_of(knobs, {"model.batch_size": 7, "processing.max_queue_size": 32, "gpu.encoder": "nvenc"})
    values = {knob.key: knob.values[place] for knob, place in zip(knobs, cell, strict=True)}
    assert (values["model.batch_size"], values["processing.max_queue_size"]) == (8, 32)


def test_the_file_says_why_and_loads_and_the_history_remembers(scripted, plainly_tuned, tmp_path):
    source, tuned = source_of("performance.auto_tune=true"), plainly_tuned
    when = datetime(2026, 5, 4, 3, 2, tzinfo=UTC)
    path = tmp_path / "tuned.yaml"
    write_file(path, tuned_text(tuned, source, subject="a clip", when=when).encode())
    text = path.read_text()
    assert "# Tuned by vitascope" in text
    assert "# expected for each value, with the rest as below: 4:" in " ".join(text.split())
    loaded = load_settings(files=[path])
    assert loaded.profile == "fast"
    assert loaded.settings.frames_per_call == 4
    assert loaded.settings.model.num_workers == 1  # set by hand before, and unchanged
    assert not loaded.settings.performance.auto_tune
    append_history(tuned, subject="a clip", when=when, file=path)
    with history_path().open("a") as file:
        file.write('{"half of a li')
    (line,) = read_history()
    assert line["change"] == {"model.batch_size": 4}
    assert line["after"]["fps"] > line["before"]["fps"]
    assert line["date"] == "2026-05-04T03:02:00+00:00"
    assert {"trade_off", "clip", "device", "file"} < set(line)


def test_what_was_found_is_told_where_the_history_cannot_be_written(plainly_tuned, tmp_path, monkeypatch):
    (tmp_path / "home").write_text("a file in place of the folder")
    monkeypatch.setattr(tuned_file, "history_path", lambda: tmp_path / "home" / "history.jsonl")
    history = append_history(
        plainly_tuned, subject="a clip", when=datetime(2026, 5, 4, tzinfo=UTC), file=None
    )
    *found, last = plainly_tuned.lines(file=None, usage="", history=history)
    assert last.startswith(f"history: {tmp_path / 'home' / 'history.jsonl'}: cannot be written: ")
    assert found[0] == "model.batch_size: 4"


def test_a_reason_says_when_a_knob_matters_little():
    assert reason(Effect("k", 1, ((1, 100.0), (2, 99.5)))).endswith("it matters little")
    assert "not within the limits" in reason(Effect("k", 1, ((1, 80.0), (2, 99.5))))


def test_a_search_that_was_broken_off_is_not_measured_again(scripted, clip, tmp_path):
    state = tmp_path / "s.json"

    def stop(search, trial):
        if len(search.trials) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tuner_of(clip, keep_quality=True, state=state, on_trial=stop).tune()
    assert len(json.loads(state.read_text())["trials"]) == 2
    told = []
    tuned = tuner_of(
        clip, keep_quality=True, state=state, resume=True, on_trial=lambda _, trial: told.append(trial)
    ).tune()
    assert len(told) == len(tuned.search.trials) - 2
    assert tuned.values == {"model.batch_size": 4}


def test_mattes_of_large_films_are_thinned(monkeypatch, clip, scripted):
    monkeypatch.setattr(search_time, "_MOST_COMPARED_WIDTH", 32)
    trials = ClipTrials(source_of(), Path(clip), seconds=0.1)
    trials.begin(with_quality=True)
    assert trials._reference[0].shape == (22, 32)
