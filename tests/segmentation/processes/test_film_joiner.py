"""Check that stretches go to whoever is free, are retried after a failure, and come in order."""

from __future__ import annotations

import threading
from fractions import Fraction
from pathlib import Path

import pytest

from vitascope.errors import (
    CorruptInputError,
    DeviceError,
    EngineError,
    InputError,
    PipelineError,
    VitascopeError,
    WorkerError,
    one_line,
)
from vitascope.gpu.pipeline.pipeline import Pipeline
from vitascope.gpu.pipeline.stages import Sink, Source
from vitascope.media.writing.output_clock import FrameTime
from vitascope.segmentation.processes import hands as hands_module
from vitascope.segmentation.processes.film_joiner import SharedFilm
from vitascope.segmentation.processes.hands import Hands, Piece
from vitascope.segmentation.processes.port import FilmOrder, MakerGoneError, StretchMade, StretchProgress
from vitascope.segmentation.processes.stretch_file import Encoded, StretchSummary, StretchWriter, WorkFolder
from vitascope.segmentation.processes.stretches import FilmStretch
from waiting import eventually

FILM = FilmOrder(
    video=Path("in.mp4"),
    outputs=(),
    begin_pts=0,
    end_pts=None,
    frame_ticks=Fraction(1),
    warm_up_frames=0,
    frames_after=0,
    stretch_count=1,
    frame_count=None,
    still_pts=(),
)
REPORT = Pipeline([Source("decode", range(3)), Sink("encode", lambda _: None)]).run()


class Scripted:
    """Simulates makers that write three frames a stretch, unless the script names an error for an attempt."""

    def __init__(self, count, script=(), rooms=()):
        self._count = count
        self._rooms = dict(enumerate(rooms))
        self._script = dict(script)
        self.tries = []
        self.killed = threading.Event()
        self._lock = threading.Lock()

    def __len__(self):
        return self._count

    def make(self, number, order, *, tell):
        with self._lock:
            self.tries.append((number, order.stretch.number))
            nth = sum(stretch == order.stretch.number for _, stretch in self.tries)
            says = self._script.get((order.stretch.number, nth), self._script.get(number))
        tell(StretchProgress(REPORT, 1))
        if says is not None:
            if says == "wait":
                assert self.killed.wait(20)
                raise WorkerError("it was ended")
            if isinstance(says, CorruptInputError):
                self._write(order, str(says))
                return StretchMade(REPORT, 3, None, 10, says)
            raise says
        self._write(order, None)
        return StretchMade(REPORT, 3, None, 10)

    def _write(self, order, damage):
        with StretchWriter(order.file, made_by=order.made_by) as file:
            for n in range(3):
                file.write(Encoded(None, (FrameTime(3 * order.stretch.number + n, Fraction(1), 1),), ()))
            file.finish(StretchSummary(3, 0, 1, damage, (), (1, 1), "", "", True))

    def renew(self, number):
        """Do nothing; this maker never restarts."""

    def rest(self, number):
        """Do nothing; this maker keeps nothing open."""

    def drop(self, number):
        self.killed.set()

    def place(self, number):
        return f"place {number}"

    def label(self, number):
        return f"maker {number}"

    def room_bytes(self, number):
        return self._rooms.get(number)


def run(folder, makers, *, count=6, tolerant=False, resume=False, made_by="x", most_corrupt=100, gpu_bytes=0):
    """Return the times of all frames of a joined video, and the number of stretches found."""
    plan = [FilmStretch(n, None, 3 * n, 3 * n + 3) for n in range(count)]
    times = []
    with (
        WorkFolder(folder / "o.mp4", resume=resume) as work,
        Hands(makers) as hands,
        SharedFilm(
            hands,
            FILM,
            plan,
            folder=work,
            made_by=lambda stretch: {"made_by": made_by, "stretch": repr(stretch)},
            max_corrupt_frames=most_corrupt,
            tolerant=tolerant,
            gpu_bytes=gpu_bytes,
        ) as film,
    ):
        try:
            for file in film.files():
                times += [time.pts for encoded in file.encoded() for time in encoded.times]
        except VitascopeError as error:
            error.joined = times
            raise
        snapshot = film.snapshot()
        assert (snapshot.items, snapshot.finished) == (3 * count, True)
        return times, film.found_count


@pytest.mark.parametrize("makers", [1, 2, 3, 9])
def test_all_come_in_order_each_made_once(tmp_path, makers):
    scripted = Scripted(makers)
    assert run(tmp_path, scripted) == ([*range(18)], 0)
    assert sorted(stretch for _, stretch in scripted.tries) == [*range(6)]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "error", [WorkerError("killed"), EngineError("no memory"), PipelineError("a", [OSError()])]
)
@pytest.mark.parametrize("makers", [1, 3])
def test_one_that_fails_is_made_by_another(tmp_path, makers, error):
    scripted = Scripted(makers, {(2, 1): error, (5, 1): error})
    assert run(tmp_path, scripted)[0] == [*range(18)]
    by = [number for number, stretch in scripted.tries if stretch == 2]
    assert len(by) == 2
    assert makers == 1 or by[0] != by[1]


def test_one_that_fails_twice_fails_the_film_with_its_reason(tmp_path):
    scripted = Scripted(2, {(3, 1): WorkerError("first"), (3, 2): WorkerError("second")})
    with pytest.raises(WorkerError, match=r"second.*--resume continues from \d finished stretches") as caught:
        run(tmp_path, scripted)
    assert "stretch 3 failed twice" in caught.value.__notes__


@pytest.mark.parametrize("error", [InputError("bad"), PipelineError("stage", [InputError("bad")])])
def test_what_the_film_is_to_blame_for_is_not_tried_again(tmp_path, error):
    scripted = Scripted(2, {(1, 1): error})
    with pytest.raises(type(error)) as caught:
        run(tmp_path, scripted)
    assert one_line(caught.value) == "bad"
    assert [stretch for _, stretch in scripted.tries].count(1) == 1
    assert list(tmp_path.iterdir()) == []  # nothing to resume from


def test_who_can_make_none_is_left_out(tmp_path):
    scripted = Scripted(3, {1: EngineError("wrong answers")})
    assert run(tmp_path, scripted, count=12)[0] == [*range(36)]
    assert [number for number, _ in scripted.tries].count(1) <= 2


def test_another_run_goes_on_where_one_ended(tmp_path):
    with pytest.raises(WorkerError):
        run(tmp_path, Scripted(1, {(4, 1): WorkerError("one"), (4, 2): WorkerError("two")}))
    assert sorted(path.name for path in (tmp_path / ".o.mp4.stretches").iterdir()) == [
        f"{n:05}.stretch" for n in range(4)
    ]
    damaged = tmp_path / ".o.mp4.stretches" / "00001.stretch"
    damaged.write_bytes(damaged.read_bytes()[:-9])
    (tmp_path / ".o.mp4.stretches" / ".00005.stretch.0123abcd.part").write_bytes(b"half")
    scripted = Scripted(3)
    assert run(tmp_path, scripted, resume=True) == ([*range(18)], 3)
    assert sorted(stretch for _, stretch in scripted.tries) == [1, 4, 5]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("other", [{"resume": False}, {"resume": True, "made_by": "y"}])
def test_it_goes_on_only_when_asked_and_only_with_what_would_be_made_now(tmp_path, other):
    with pytest.raises(WorkerError):
        run(tmp_path, Scripted(1, {(4, 1): WorkerError("one"), (4, 2): WorkerError("two")}))
    assert run(tmp_path, Scripted(2), **other) == ([*range(18)], 0)


def test_a_film_of_which_all_is_there_needs_nobody(tmp_path):
    with pytest.raises(WorkerError):
        run(tmp_path, Scripted(1, {(5, 1): WorkerError("one"), (5, 2): WorkerError("two")}))
    scripted = Scripted(2)
    run(tmp_path, scripted, resume=True)
    assert [stretch for _, stretch in scripted.tries] == [5]


def test_damage_ends_the_film_where_it_lies_or_at_once(tmp_path):
    damage = CorruptInputError("broken here")
    with pytest.raises(CorruptInputError, match="broken here") as caught:
        run(tmp_path, Scripted(2, {(3, 1): damage}), tolerant=True)
    assert caught.value.joined == [*range(12)]
    with pytest.raises(CorruptInputError, match="broken here"):
        run(tmp_path, Scripted(1, {(3, 1): damage}))
    with pytest.raises(CorruptInputError, match="too much damage: 3 frames"):
        run(tmp_path, Scripted(2), most_corrupt=2)


@pytest.mark.parametrize("makers", [1, 2, 4])
def test_a_film_that_nobody_is_left_for_ends(tmp_path, makers):
    scripted = Scripted(makers, {n: MakerGoneError(f"node {n} is lost") for n in range(makers)})
    with pytest.raises(WorkerError, match="is lost"):
        run(tmp_path, scripted)


def test_who_is_gone_takes_no_try_from_a_stretch(tmp_path):
    script = {1: MakerGoneError("lost"), 2: MakerGoneError("lost"), (0, 1): EngineError("once")}
    assert run(tmp_path, Scripted(3, script))[0] == [*range(18)]


def test_what_is_in_hand_ends_with_the_run(tmp_path):
    """Check that the failure of one maker ends another, which would wait forever."""
    scripted = Scripted(2, {(0, 1): "wait", (2, 1): InputError("bad")})
    with pytest.raises(InputError, match="bad"):
        run(tmp_path, scripted)
    assert scripted.killed.is_set()


def test_stretches_go_to_gpus_that_have_the_memory(tmp_path):
    makers = Scripted(4, rooms=(2, 6, 1, None))
    assert run(tmp_path, makers, gpu_bytes=4)[0] == list(range(18))
    assert {number for number, _ in makers.tries} <= {1, 3}
    with Hands(makers) as hands:
        assert hands.count_for(4) == 2
        assert hands.notes_on("a.mp4", 1) == []
        notes = hands.notes_on("a.mp4", 4 << 30)
    assert len(notes) == 3
    assert notes[0] == "maker 0 was left out: its GPU has 0.0 GiB for it, and a.mp4 needs about 4.0 GiB"


def test_where_no_gpu_has_the_memory_the_largest_tries(tmp_path):
    makers = Scripted(3, rooms=(2 << 30, 3 << 30, 3 << 30))
    assert run(tmp_path, makers, gpu_bytes=4 << 30)[0] == list(range(18))
    assert {number for number, _ in makers.tries} <= {1, 2}
    with Hands(makers) as hands:
        first, last = hands.notes_on("a.mp4", 4 << 30)
    assert first == "maker 0 was left out: its GPU has 2.0 GiB for it, and a.mp4 needs about 4.0 GiB"
    assert last == "a.mp4 needs about 4.0 GiB of a GPU, and none has more than 3.0 GiB: it was tried there"


def test_what_fails_on_the_only_large_gpu_fails_there_again(tmp_path):
    """Check that no other maker is waited for, as none has the memory."""
    script = {(2, 1): EngineError("once")}
    assert run(tmp_path, Scripted(2, script, rooms=(1, 8)), gpu_bytes=4)[0] == list(range(18))
    script |= {(2, 2): EngineError("twice")}
    with pytest.raises(EngineError, match="twice"):
        run(tmp_path, Scripted(2, script, rooms=(1, 8)), gpu_bytes=4)


def test_where_the_large_gpu_is_lost_the_next_largest_tries(tmp_path):
    makers = Scripted(2, {1: MakerGoneError("it is lost")}, rooms=(1, 8))
    assert run(tmp_path, makers, gpu_bytes=4)[0] == list(range(18))
    assert {number for number, stretch in makers.tries if stretch} == {0}


class Renewed(Scripted):
    """Simulates makers that fail to restart some number of times, and may have other memory afterwards."""

    def __init__(self, count, script=(), *, failures, rooms=(), rooms_then=()):
        super().__init__(count, script, rooms)
        self._failures = {number: list(errors) for number, errors in failures.items()}
        self._rooms_then = dict(enumerate(rooms_then))
        self.renewals = []

    def renew(self, number):
        self.renewals.append(number)
        if left := self._failures.get(number):
            raise left.pop(0)
        self._rooms |= self._rooms_then


@pytest.fixture
def pauses(monkeypatch):
    """Record the pauses between failed restarts, and make them short."""
    waited = []
    monkeypatch.setattr(hands_module, "_PAUSE_SECONDS", 0.001)
    pause = Hands._pause

    def noted(hands):
        waited.append(hands_module._PAUSE_SECONDS)
        pause(hands)

    monkeypatch.setattr(Hands, "_pause", noted)
    return waited


@pytest.mark.parametrize("error", [DeviceError("no GPU now"), OSError("no file now")])
def test_the_last_one_is_kept_until_it_can_begin_anew(tmp_path, pauses, error):
    makers = Renewed(1, {(2, 1): WorkerError("killed")}, failures={0: [error]})
    assert run(tmp_path, makers)[0] == [*range(18)]
    assert (len(makers.renewals), len(pauses)) == (2, 1)


def test_what_waits_for_the_last_one_fails_when_it_has_failed_twice(tmp_path, pauses):
    errors = [DeviceError(f"no GPU, {n}") for n in range(9)]
    makers = Renewed(1, {(2, 1): WorkerError("killed")}, failures={0: errors})
    with pytest.raises(DeviceError, match="no GPU, 2") as caught:
        run(tmp_path, makers)
    assert "stretch 2 failed twice" in caught.value.__notes__
    assert len(pauses) == len(makers.renewals) == 3


def test_an_error_of_another_kind_reaches_who_waits(tmp_path, pauses):
    makers = Renewed(1, {(2, 1): WorkerError("killed")}, failures={0: [OSError("odd")] * 9})
    with pytest.raises(OSError, match="odd"):
        run(tmp_path, makers)

    class Restless(Scripted):
        def rest(self, number):
            raise OSError("it cannot rest")

    with Hands(Restless(1)) as hands:
        told = threading.Event()
        errors = []

        def failed(error):
            errors.append(error)
            told.set()

        hands.hand_in([Piece("a", (0,), lambda number: 1, failed, lambda number: None)])
        eventually(lambda: not hands._left)
        hands.hand_in([Piece("b", (1,), lambda number: 1, failed, lambda number: None)])
        assert told.wait(20)
    assert [str(error) for error in errors] == ["it cannot rest"]


def test_who_cannot_begin_anew_leaves_it_to_others(tmp_path, pauses):
    """Check two makers that fail at once and cannot restart: they do not both rely on another."""
    both = threading.Barrier(2)

    class Both(Renewed):
        def make(self, number, order, *, tell):
            if not self.renewals and number < 2:
                both.wait(20)
                raise WorkerError("killed")
            return super().make(number, order, tell=tell)

    makers = Both(2, failures={n: [DeviceError(f"no GPU at {n}")] * 2 for n in range(2)})
    assert run(tmp_path, makers, count=2)[0] == [*range(6)]
    assert len({number for number, _ in makers.tries}) == 1


def test_who_begins_anew_on_a_larger_gpu_gets_what_needs_it(tmp_path):
    makers = Renewed(2, failures={}, rooms=(1, 8), rooms_then=(4 << 30, 8))
    with Hands(makers) as hands:
        hands._renew(0)
        assert hands.count_for(2 << 30) == 1
        assert hands.notes_on("a.mp4", 1) == []
