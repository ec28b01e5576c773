"""Distributes pieces of work: a free maker takes the next one, and if it fails, another maker retries it."""

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
"""Exit codes of errors that a retry would only repeat."""
_GENTLE_SECONDS, _JOIN_SECONDS = 5.0, 0.1
_PAUSE_SECONDS = 2.0
"""Time between attempts to restart a maker: it takes seconds until GPU memory is free, or a lost node is noticed."""


@dataclass(slots=True, eq=False)
class Piece:
    """A piece of work for one maker."""

    name: str
    """Its name in messages, for example ``stretch 3``."""
    rank: tuple[int, ...]
    """The smallest rank goes first."""
    do: Callable[[int], int]
    """Does the work with the given maker; returns the number of frames. After a ``VitascopeError``, another maker may
    succeed."""
    failed: Callable[[BaseException], object]
    """Called with the error if no maker could do it."""
    stop: Callable[[int], object]
    """Called with the maker that works on it when it is withdrawn."""
    gpu_bytes: int = 0
    """GPU memory that a maker must have."""
    failed_at: list[str] = field(default_factory=list)
    """Places where it failed."""
    is_over: bool = False
    """True once it is withdrawn."""


@dataclass(slots=True)
class PlaceCounts:
    """Counts of the work done at one place."""

    busy: int = 0
    """Pieces in progress."""
    done: int = 0
    failed: int = 0
    frames: int = 0


class Hands:
    """One thread for each maker, which gives it the next submitted piece. A context manager.

    A piece that fails is retried once, at another place if possible, but not after an error in its video. A
    maker that fails twice in a row, or cannot be restarted twice, gets no more work while others remain; if
    the last one cannot be restarted, the waiting pieces fail one by one. A maker whose GPU is too small for a
    piece does not get it while others with more memory remain.

    Args:
        makers: The open makers.
    """

    def __init__(self, makers: StretchMakers) -> None:
        self.makers = makers
        self._changed = threading.Condition()
        self._waiting: list[Piece] = []
        self._in_hand: dict[int, Piece] = {}
        self._left = set(range(len(makers)))
        """Makers that still take part."""
        self._places = [makers.place(number) for number in range(len(makers))]
        self._rooms = [self._room(number) for number in range(len(makers))]
        """GPU memory that each maker may use; a restarted maker may have another GPU."""
        self._idle: set[int] = set()
        """Makers without work."""
        self._renewing: set[int] = set()
        """Makers that are being restarted."""
        self._is_closed = False
        self._last_loss: BaseException = WorkerError("no process is left to work on it")
        self._threads: list[threading.Thread] = []
        self._began_at = monotonic()
        self.counts = {place: PlaceCounts() for place in self._places}
        """Counts of the work done, by place."""

    def __enter__(self) -> Hands:
        """Start the threads."""
        self._threads = [
            threading.Thread(target=self._work, args=(number,), name=f"vitascope-hand-{number}", daemon=True)
            for number in sorted(self._left)
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Drop waiting pieces and stop those in progress, gently at first."""
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
            gpu_bytes: GPU memory that a maker must have.
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
        """Submit pieces; they fail if no maker is left."""
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
        """Let one maker work until all is over, on its own thread."""
        try:
            self._do_pieces(number)
        except BaseException as error:  # any error must reach the waiting pieces
            self._last_loss = error
        finally:
            with suppress(Exception):  # it has no more work
                self.makers.rest(number)
            with self._changed:
                self._left.discard(number)
                self._changed.notify_all()
            self._fail_if_nobody_is_left()

    def _do_pieces(self, number: int) -> None:
        """Let one maker work until all is over, or until the others should continue without it.

        Raises:
            MakerGoneError: It cannot be replaced.
        """
        failures = failed_renewals = 0  # in a row
        must_renew = False
        is_resting = True  # until it gets work
        counts = self.counts[self._places[number]]
        while self._has_work_for(number, is_resting=is_resting):
            if must_renew:
                try:
                    self._renew(number)  # others may take the waiting pieces in the meantime
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
            except BaseException as error:  # any error must reach the run
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
        """Take a maker out of the group; False if it is the last."""
        with self._changed:
            if self._left == {number}:
                return False
            self._left.discard(number)
            return True

    def _pause(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed, _PAUSE_SECONDS)

    def _has_work_for(self, number: int, *, is_resting: bool) -> bool:
        """Wait for a piece that a maker may do; False when all is over. A maker that has to wait rests."""
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
        """Take the first piece that a maker may do; None if others were faster."""
        with self._changed:
            piece = next((piece for piece in self._waiting if self._may_do(number, piece)), None)
            if piece is not None and not self._is_closed:
                self._waiting.remove(piece)
                self._in_hand[number] = piece
                self.counts[self._places[number]].busy += 1
                return piece
        return None

    def _may_do(self, number: int, piece: Piece) -> bool:
        """True if a maker has the memory for a piece, or the most of all, and unless it failed there and others may."""
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
        """Return a piece for another maker."""
        with self._changed:
            self._put_down(number, piece)
            if not piece.is_over and not self._is_closed:
                insort(self._waiting, piece, key=attrgetter("rank"))
            self._changed.notify_all()

    def _failed(self, number: int, piece: Piece, error: Exception) -> bool:
        """Handle a failed piece: retry it elsewhere, or fail it for good. False if its video is to blame."""
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
