from __future__ import annotations

import io

import pytest
from rich.console import Console

from clips import write_clip
from vitascope.cli.prompt.console import CommandConsole
from vitascope.cli.prompt.job_line import JobLine
from vitascope.cli.prompt.live import LiveRun
from vitascope.config import SettingsSource
from vitascope.errors import ConfigError
from vitascope.gpu.profiling.utilisation import GpuFigures, UtilisationSample
from vitascope.models.store.store import ModelStore


class OneLook:
    """A sampler with one sample."""

    def samples(self):
        gpu = GpuFigures(
            gpu_percent=87.0,
            memory_bus_percent=40.0,
            decoder_percent=None,
            encoder_percent=3.0,
            pcie_to_gpu_bytes_per_second=None,
            pcie_from_gpu_bytes_per_second=None,
            memory_used_bytes=6 << 30,
            power_watts=310.0,
            temperature_celsius=71.0,
            sm_clock_mhz=1905.0,
            throttling=("power cap",),
        )
        return [
            UtilisationSample(
                seconds=1.0,
                process_cores=1.5,
                machine_cpu_percent=75.0,
                resident_bytes=300 << 20,
                gpu=gpu,
            )
        ]


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return write_clip(tmp_path_factory.mktemp("console") / "in.mp4", frame_count=6)


@pytest.fixture
def typed(tmp_path, monkeypatch):
    """Return a function that types a line, and returns the answer."""
    monkeypatch.chdir(tmp_path)
    page = io.StringIO()
    with JobLine(on_end=lambda job: console.tell(job)) as jobs:
        console = CommandConsole(
            jobs,
            page=Console(file=page, width=200, highlight=False, markup=False),
            source=SettingsSource(profile="fast", assignments=("gpu.device=cpu",)),
            hardware=lambda: {"processor": "[bold]quick", "GPU": "none"},
            sampler=OneLook(),
            live=LiveRun(ModelStore(tmp_path), on_message=print, on_report=print, on_end=lambda _: None),
        )

        def answer(line):
            begin = page.tell()
            assert console.handle(line)
            return page.getvalue()[begin:]

        answer.console = console
        yield answer


def test_a_name_with_a_line_feed_stays_on_its_line(typed, clip):
    typed("set output.kinds mask")
    assert typed(f"start {clip} -o 'a\nb.mp4'") == f"job 1: {clip} > a\\nb.mp4\n"
    typed("wait")


def test_a_job_from_start_to_report(typed, clip, tmp_path):
    assert typed("set output.kinds mask") == "output.kinds = [mask]\n"
    assert typed(f"start {clip} -o out.mp4").startswith("job 1: ")
    typed("wait")
    assert (tmp_path / "out.mp4").is_file()
    jobs = typed("jobs")
    assert "done" in jobs
    assert "6 of 6" in jobs
    report = typed("report")
    assert "out.mp4  mask, h264" in report
    assert "6 frames in" in report
    assert report == typed("report 1")
    stats = typed("stats 1")
    for word in ("1, done", "6 of 6", "p95", "infer", "infer > postprocess", "bottleneck"):
        assert word in stats
    assert typed.console.first_error is None


def test_a_file_that_is_there_is_not_replaced_unasked(typed, clip, tmp_path):
    (tmp_path / "out.mp4").write_text("mine")
    assert "out.mp4 already exists; -y replaces it" in typed(f"start {clip} -o out.mp4")
    assert (tmp_path / "out.mp4").read_text() == "mine"
    assert typed(f"start {clip} -o out.mp4 -y").startswith("job 1: ")
    typed("wait")
    assert "6 of 6" in typed("jobs")


def test_stats_of_the_machine(typed):
    stats = typed("stats")
    assert "none runs" in stats
    assert "1.5 cores by this process; the machine is 75 % busy" in stats
    assert "300 MiB" in stats
    assert "87 % busy, encoder 3 %, 6.0 GiB in use, 310 W, 71 °C, held back by power cap" in stats


def test_watch_ends_with_the_jobs(typed, clip):
    typed(f"start {clip} -o out.mp4")
    assert "none runs" in typed("watch")
    assert "done" in typed("jobs")


def test_several_inputs_are_several_jobs(typed, clip, tmp_path):
    other = write_clip(tmp_path / "other.mp4", frame_count=3)
    told = typed(f"start {clip} {other} -o cut/")
    assert "job 1: " in told
    assert "job 2: " in told
    typed("wait")
    assert sorted(path.name for path in (tmp_path / "cut").iterdir()) == ["in.mp4", "other.mp4"]


def test_settings_are_those_of_the_moment(typed, clip):
    assert typed("config crf") == typed("config output.crf")
    assert typed("set output.crf 30") == "output.crf = 30\n"
    assert typed("set output.crf=31") == "output.crf = 31\n"
    assert "--set" in typed("config output.crf")
    typed(f"start {clip} -o a.mp4")
    assert "null" in typed("unset output.crf")
    assert typed("set profile quality") == "profile = quality\n"
    assert typed("unset profile") == "profile = balanced\n"
    typed("wait")
    (job,) = typed.console._jobs.jobs
    assert job.loaded.settings.output.crf == 31
    assert job.loaded.profile == "fast"


def test_a_wrong_setting_changes_nothing(typed):
    before = typed("config")
    assert "did you mean 'model.batch_size'" in typed("set model.batch_sze 4")
    assert "expected" in typed("set model.batch_size many")
    assert "error: " in typed("set profile slowest")
    assert typed("config") == before
    assert isinstance(typed.console.first_error, ConfigError)


def test_stopping(typed, tmp_path):
    long = write_clip(tmp_path / "long.mp4", frame_count=400)
    typed(f"start {long} -o a.mp4")
    typed(f"start {long} -o b.mp4")
    assert typed("stop 2") == "job 2 stopped: nothing was written yet\n"
    assert "has ended already" in typed("stop 2")
    typed("stop all")
    typed("wait")
    assert "job 1 stopped: " in typed("report 1")
    assert "no job runs" in typed("stop")


def test_help_names_every_command(typed):
    text = typed("help")
    names = [*typed.console._alone, *typed.console._with_words, "quit"]
    assert text.count("\n") == len(names)
    for name in names:
        assert f"\n{name} " in f"\n{text}"


def test_hardware_is_shown_as_it_is(typed):
    assert "[bold]quick" in typed("hardware")


def test_leaving(typed):
    assert typed("") == typed("   # a remark") == ""
    for word in ("quit", "exit", "q"):
        assert not typed.console.handle(word)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("strt", "there is no command 'strt' (did you mean 'start'?); help lists them"),
        ("segment in.mp4 -o out.mp4", "this does the same: start INPUT -o OUT"),
        ("vitascope segment in.mp4", "this does the same: start INPUT -o OUT"),
        ("bench run", "type vitascope bench"),
        ('start "in.mp4', "No closing quotation"),
        ("start", "usage: start INPUT"),
        ("start in.mp4", "usage: start INPUT"),
        ("start in.mp4 -o out.mp4 --fast", "unrecognized arguments: --fast"),
        ("start missing.mp4 -o out.mp4", "missing.mp4"),
        ("stop", "no job runs"),
        ("stop seven", "N is the number of a job"),
        ("stop 7", "there is no job 7"),
        ("stats 0", "there is no job 0"),
        ("report", "no job has ended yet"),
        ("jobs now", "takes no further words"),
        ("watch 3", "takes no further words"),
        ("config a b", "one word"),
        ("config zebra", "no setting has 'zebra'"),
        ("set", "a key and a value"),
        ("set model.batch_size", "a key and a value"),
        ("unset", "one key"),
        ("unset model.batch_size", "was not set here"),
        ("set model 4", "is a section of settings"),
    ],
)
def test_what_is_refused_is_one_line(typed, line, words):
    told = typed(line)
    assert told.startswith("error: ")
    assert words in told
    assert told.count("\n") == 1
    assert typed.console.first_error is not None


def test_an_output_of_a_job_that_has_not_ended_is_taken(typed, tmp_path):
    long = write_clip(tmp_path / "long.mp4", frame_count=400)
    typed(f"start {long} -o out.mp4")
    told = typed(f"start {long} -o {tmp_path / 'out.mp4'}")
    assert "an unfinished job writes it" in told
    assert len(typed.console._jobs.jobs) == 1
