"""Hands out pieces of work: a free maker takes the next one, and another retries it if it fails."""

from __future__ import annotations

import threading
from bisect import insort
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from operator import attrgetter
from time import monotonic

from vitascope.errors import InputError, UsageError, VitascopeError, WorkerError
from vitascope.observe.report_values import gib
from vitascope.segmentation.processes.port import MakerGoneError, StretchMakers

_MOST_TRIES = 2
_OF_THE_FILM = frozenset({UsageError.exit_code, InputError.exit_code})
"""Exit codes of errors that would only come again."""
_GENTLE_SECONDS, _JOIN_SECONDS = 5.0, 0.1
_PAUSE_SECONDS = 2.0
"""Between two tries to begin anew: a GPU's memory, and a node that is lost, are noticed after some seconds."""


@dataclass(slots=True, eq=False)
class Piece:
    """A piece of work for one maker."""

    name: str
    """For messages, for example ``stretch 3``."""
    rank: tuple[int, ...]
    """The smallest goes out first."""
    do: Callable[[int], int]
    """Told who does it; returns the frames that were made. A ``VitascopeError`` is what another may not meet."""
    failed: Callable[[BaseException], object]
    """Told why nobody does it."""
    stop: Callable[[int], object]
    """Told who has it in hand: nobody wants it any more."""
    gpu_bytes: int = 0
    """Memory without which a GPU need not begin."""
    failed_at: list[str] = field(default_factory=list)
    """Places where it failed."""
    is_over: bool = False
    """Nobody wants it any more."""


@dataclass(slots=True)
class PlaceCounts:
    """Counts of the work done at a place."""

    busy: int = 0
    """Pieces in hand now."""
    done: int = 0
    failed: int = 0
    frames: int = 0


class Hands:
    """A thread for each maker, which gives it the next submitted piece. A context manager.

    A piece that fails is done again, at another place if there is one; the second time it has failed, and at once where
    its video is to blame. A maker that fails twice in a row, or twice cannot begin anew, gets nothing more while others
    are left; where the last one cannot, what waits fails, one piece after the other. Whose GPU is too small for a piece
    does not get it, while others are left who have more.

    Args:
        makers: Open.
    """

    def __init__(self, makers: StretchMakers) -> None:
        self.makers = makers
        self._changed = threading.Condition()
        self._waiting: list[Piece] = []
        self._in_hand: dict[int, Piece] = {}
        self._left = set(range(len(makers)))
        """Who still takes part."""
        self._places = [makers.place(number) for number in range(len(makers))]
        self._rooms = [self._room(number) for number in range(len(makers))]
        """Memory that each may use of its GPU; one that begins anew may have another GPU."""
        self._idle: set[int] = set()
        """Who waits for something to do."""
        self._renewing: set[int] = set()
        """Who begins anew."""
        self._is_closed = False
        self._last_loss: BaseException = WorkerError("no process is left to work on it")
        self._threads: list[threading.Thread] = []
        self._began_at = monotonic()
        self.counts = {place: PlaceCounts() for place in self._places}
        """What was done, by place."""

    def __enter__(self) -> Hands:
        """Begin."""
        self._threads = [
            threading.Thread(target=self._work, args=(number,), name=f"vitascope-hand-{number}", daemon=True)
            for number in sorted(self._left)
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Drop what waits, end what is in hand, first gently."""
        with self._changed:
            self._is_closed = True
            pieces = [*self._waiting, *self._in_hand.values()]
        self.withdraw(pieces)
        ends_at = monotonic() + _GENTLE_SECONDS
        while alive := [thread for thread in self._threads if thread.is_alive()]:
            for number in [*self._renewing, *(self._in_hand if monotonic() > ends_at else ())]:
                self.makers.drop(number)
            alive[0].join(_JOIN_SECONDS)

    def __len__(self) -> int:
        return len(self._places)

    @property
    def waiting_count(self) -> int:
        """Pieces not started yet."""
        return len(self._waiting)

    def idle_room(self) -> float:
        """The largest memory among idle makers for which every waiting piece is too large; 0 if there are none."""
        with self._changed:
            return max(
                (
                    self._rooms[number]
                    for number in self._idle
                    if not any(self._may_do(number, piece) for piece in self._waiting)
                ),
                default=0,
            )

    def count_for(self, gpu_bytes: int) -> int:
        """Number of makers with enough GPU memory for a video."""
        enough = min(gpu_bytes, max(self._rooms))
        return sum(room >= enough for room in self._rooms)

    def notes_on(self, name: str, gpu_bytes: int) -> list[str]:
        """Notes on makers whose GPU is too small for a video, one line each.

        Args:
            name: Name of the video.
            gpu_bytes: Memory without which a GPU need not begin it.
        """
        with self._changed:
            most = max((self._rooms[number] for number in self._left), default=inf)
            small = {n: room for n, room in enumerate(self._rooms) if room < min(gpu_bytes, most)}
        needs = f"{name} needs about {gib(gpu_bytes, decimals=1)}"
        notes = [
            f"{self.makers.label(number)} was left out: its GPU has {gib(room, decimals=1)} for it, and {needs}"
            for number, room in small.items()
        ]
        if most < gpu_bytes:
            notes.append(
                f"{needs} of a GPU, and none has more than {gib(most, decimals=1)}: it was tried there"
            )
        return notes

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return monotonic() - self._began_at

    def hand_in(self, pieces: Sequence[Piece]) -> None:
        """Submit pieces; they are told if no maker is left."""
        with self._changed:
            for piece in pieces:
                insort(self._waiting, piece, key=attrgetter("rank"))
            self._changed.notify_all()
        self._fail_if_nobody_is_left()

    def withdraw(self, pieces: Sequence[Piece]) -> None:
        """Withdraw pieces; those in progress are stopped."""
        with self._changed:
            for piece in pieces:
                piece.is_over = True
            self._waiting = [piece for piece in self._waiting if not piece.is_over]
            ended = [(number, piece) for number, piece in self._in_hand.items() if piece.is_over]
            self._changed.notify_all()
        for number, piece in ended:
            piece.stop(number)

    def _work(self, number: int) -> None:
        """Let one maker do pieces until all is over; on a thread of its own."""
        try:
            self._do_pieces(number)
        except BaseException as error:  # who waits is told, whatever it is
            self._last_loss = error
        finally:
            with suppress(Exception):  # it has nothing in hand any more
                self.makers.rest(number)
            with self._changed:
                self._left.discard(number)
                self._changed.notify_all()
            self._fail_if_nobody_is_left()

    def _do_pieces(self, number: int) -> None:
        """Let one maker do pieces until all is over, or until the others go on better without it.

        Raises:
            MakerGoneError: It is gone for good.
        """
        failures = failed_renewals = 0  # in a row
        must_renew = False
        is_resting = True  # until it has something in hand
        counts = self.counts[self._places[number]]
        while self._has_work_for(number, is_resting=is_resting):
            if must_renew:
                try:
                    self._renew(number)  # another may take what waits meanwhile
                except MakerGoneError:
                    raise
                except Exception as error:
                    failed_renewals += 1
                    self._last_loss = error
                    if failed_renewals >= _MOST_TRIES:
                        if self._leaves(number):
                            return
                        if failed_renewals > _MOST_TRIES and (piece := self._take(number)) is not None:
                            self._failed(number, piece, error)
                    self._pause()
                    continue
                must_renew, failed_renewals = False, 0
            if (piece := self._take(number)) is None:
                continue
            is_resting = False
            try:
                frames = piece.do(number)
                failures = 0
            except MakerGoneError:
                self._put_back(number, piece)
                raise
            except VitascopeError as error:
                must_renew = True
                failures += self._failed(number, piece, error) and not piece.is_over
                if failures >= _MOST_TRIES and self._leaves(number):
                    return
            except BaseException as error:  # it must reach the run, whatever it is
                self._put_down(number, piece)
                piece.failed(error)
            else:
                with self._changed:
                    counts.done += 1
                    counts.frames += frames
                    self._put_down(number, piece)

    def _room(self, number: int) -> float:
        room = self.makers.room_bytes(number)
        return inf if room is None else room

    def _renew(self, number: int) -> None:
        with self._changed:
            self._renewing.add(number)
        try:
            self.makers.renew(number)
            room = self._room(number)
        finally:
            self._renewing.discard(number)
        with self._changed:
            self._rooms[number] = room
            self._changed.notify_all()

    def _leaves(self, number: int) -> bool:
        """Let a maker take part no more; False where it is the last."""
        with self._changed:
            if self._left == {number}:
                return False
            self._left.discard(number)
            return True

    def _pause(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed, _PAUSE_SECONDS)

    def _has_work_for(self, number: int, *, is_resting: bool) -> bool:
        """Wait until there is a piece that a maker may do; False when all is over. Who has to wait for it rests."""
        while True:
            with self._changed:
                if self._is_closed:
                    return False
                if any(self._may_do(number, piece) for piece in self._waiting):
                    return True
                if is_resting:
                    self._idle.add(number)
                    self._changed.wait()
                    self._idle.discard(number)
                    continue
            self.makers.rest(number)
            is_resting = True

    def _take(self, number: int) -> Piece | None:
        """The first piece that waits; one that failed here rather goes elsewhere. None where others were faster."""
        with self._changed:
            piece = next((piece for piece in self._waiting if self._may_do(number, piece)), None)
            if piece is not None and not self._is_closed:
                self._waiting.remove(piece)
                self._in_hand[number] = piece
                self.counts[self._places[number]].busy += 1
                return piece
        return None

    def _may_do(self, number: int, piece: Piece) -> bool:
        """True where a maker has the memory for a piece, or nobody has more; not where it failed, if others may."""
        if piece.gpu_bytes <= self._rooms[number] and not piece.failed_at:
            return True
        enough = min(piece.gpu_bytes, max(self._rooms[other] for other in self._left))
        if self._rooms[number] < enough:
            return False
        here = self._places[number]
        return here not in piece.failed_at or all(
            self._places[other] == here for other in self._left if self._rooms[other] >= enough
        )

    def _put_down(self, number: int, piece: Piece) -> None:
        with self._changed:
            if self._in_hand.pop(number, None) is piece:
                self.counts[self._places[number]].busy -= 1
            self._changed.notify_all()

    def _put_back(self, number: int, piece: Piece) -> None:
        """Let another do it."""
        with self._changed:
            self._put_down(number, piece)
            if not piece.is_over and not self._is_closed:
                insort(self._waiting, piece, key=attrgetter("rank"))
            self._changed.notify_all()

    def _failed(self, number: int, piece: Piece, error: Exception) -> bool:
        """A piece failed: again elsewhere, or for good; False where its video is to blame."""
        is_of_the_film = isinstance(error, VitascopeError) and error.exit_code in _OF_THE_FILM
        piece.failed_at.append(self._places[number])
        with self._changed:
            self.counts[self._places[number]].failed += 1
        if is_of_the_film or len(piece.failed_at) >= _MOST_TRIES or piece.is_over or self._is_closed:
            self._put_down(number, piece)
            if len(piece.failed_at) >= _MOST_TRIES:
                error.add_note(f"{piece.name} failed twice")
            if not piece.is_over:
                piece.failed(error)
        else:
            self._put_back(number, piece)
        return not is_of_the_film

    def _fail_if_nobody_is_left(self) -> None:
        with self._changed:
            if self._left or self._is_closed:
                return
            given_up, self._waiting = self._waiting, []
        for piece in given_up:
            piece.failed(self._last_loss)
