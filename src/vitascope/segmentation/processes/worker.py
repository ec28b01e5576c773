"""A worker process: mattes and encodes stretches of videos for a run in another process."""

from __future__ import annotations

import os
import queue
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

from vitascope.config import LoadedSettings
from vitascope.device import peak_memory_bytes
from vitascope.errors import CorruptInputError
from vitascope.frames import Frame
from vitascope.gpu.pipeline.pipeline import Pipeline
from vitascope.gpu.pipeline.stages import Sink
from vitascope.media.reading.reader import VideoReader
from vitascope.media.writing.output_clock import FrameTime
from vitascope.media.writing.segment_encoder import EncodedPacket, SegmentEncoder
from vitascope.models.store.store import ModelStore
from vitascope.segmentation.film_run import FilmRun, FilmRunner
from vitascope.segmentation.notes import notes_on, notes_on_reading
from vitascope.segmentation.processes.messages import (
    Ask,
    Encoded,
    Enough,
    Failed,
    FilmClosed,
    FilmJob,
    FilmOpened,
    OpenFilm,
    Progress,
    Ready,
    StretchDone,
    Take,
    pack,
    sendable,
    unpack,
)
from vitascope.segmentation.processes.segments import FilmSegment
from vitascope.segmentation.render.contact_sheet import ContactSheet, Rgb8
from vitascope.segmentation.render.renderer import Rendered
from vitascope.vr.detection import VrDescription

__all__ = ["SegmentWorker", "StretchFrames", "serve"]

_PROGRESS_SECONDS = 0.25


class RunIsGone(Exception):  # noqa: N818 - not an error of this process
    """Nobody will read what this worker makes."""


class Link:
    """The connection to the run. Any thread may send; a thread of its own receives.

    Args:
        connection: To the run.
        on_loss: Called when the run is gone, from the receiving thread.
    """

    def __init__(self, connection: Connection, *, on_loss: Callable[[], object]) -> None:
        self._connection = connection
        self._on_loss = on_loss
        self._sending = threading.Lock()
        self._received: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._receive, name="vitascope-link", daemon=True).start()

    def send(self, message: object) -> None:
        """Send one message.

        Raises:
            RunIsGone: Nobody listens.
        """
        content = pack(message)
        try:
            with self._sending:
                self._connection.send_bytes(content)
        except (BrokenPipeError, ConnectionError) as error:
            raise RunIsGone from error

    def receive(self) -> Any:
        """The next message, waited for; None when the run wants no more."""
        return self._received.get()

    def _receive(self) -> None:
        while True:
            try:
                message = unpack(self._connection.recv_bytes())
            except (EOFError, OSError):
                self._on_loss()
                return
            self._received.put(message)
            if message is None:
                return


class StretchFrames:
    """The frames of one stretch: its warm-up, its first segment, and the neighbours that the run grants.

    Frames are numbered as in the whole video, as far as its average rate tells. Damage ends them.

    Args:
        reader: Of the video.
        job: The video.
        first: The first segment.
        next_segment: Asked at the end of a segment; the neighbour, or None.
    """

    def __init__(
        self,
        reader: VideoReader,
        job: FilmJob,
        first: FilmSegment,
        *,
        next_segment: Callable[[], FilmSegment | None],
    ) -> None:
        self._reader = reader
        self._job = job
        self._first = first
        self._next_segment = next_segment
        self.begin_pts = job.begin_pts if first.begin is None else first.begin
        """First pts that is the stretch's own; what is shown before is warm-up."""
        self.damage: CorruptInputError | None = None
        """What ended the frames early."""
        self.corrupt_count = 0
        """Damaged pictures that were skipped behind the warm-up."""
        self.still_indices: set[int] = set()
        """Numbers of the frames that the contact sheet shows."""

    def __iter__(self) -> Iterator[Frame]:
        reader, job = self._reader, self._job
        damaged_before = reader.corrupt_count
        index: int | None = None
        stills = iter([pts for pts in job.still_pts if pts >= self.begin_pts])
        still = next(stills, None)
        try:
            for frame in self._pictures():
                index = self._number(frame) if index is None else index + 1
                if frame.pts < self.begin_pts:
                    damaged_before = reader.corrupt_count
                if still is not None and frame.pts >= max(still, self.begin_pts):
                    self.still_indices.add(index)
                    while still is not None and still <= frame.pts:
                        still = next(stills, None)
                yield replace(frame, index=index)
        except CorruptInputError as error:
            self.damage = error
        self.corrupt_count = reader.corrupt_count - damaged_before

    def _number(self, frame: Frame) -> int:
        """A frame's position in the video, by its time."""
        return round((frame.pts - self._job.begin_pts) / self._job.frame_ticks)

    def _pictures(self) -> Iterator[Frame]:
        """Warm-up and segments."""
        segment = self._first
        for frame in self._from_warm_up():
            while segment.end is not None and frame.pts >= segment.end:
                neighbour = self._next_segment()
                if neighbour is None:
                    return
                segment = neighbour
            yield frame

    def _from_warm_up(self) -> Iterator[Frame]:
        """Frames from the warm-up on to the end of the video.

        Where pictures last longer than on average, the warm-up has fewer than it should. What was seen then does no
        harm, so the reader just goes back further, and the frames in between come a second time.
        """
        reader, job, from_pts = self._reader, self._job, self._first.warm_up_from
        reader.play(job.begin_pts if from_pts is None else from_pts, job.end_pts)
        seen = 0
        while (frame := next(reader, None)) is not None:
            if frame.pts < self.begin_pts:
                seen += 1
            elif from_pts is not None and seen < job.warm_up_frames and from_pts > job.begin_pts:
                from_pts = max(2 * from_pts - self.begin_pts - 1, job.begin_pts)
                reader.play(from_pts, job.end_pts)
                seen = 0
                continue
            else:
                from_pts = None  # settled
            yield frame


class SegmentWorker:
    """Mattes stretches of videos, and encodes them for a file that another process writes. A context manager.

    Args:
        loaded: Settings of this worker: one device, its share of the processor's cores.
        store: Where networks lie.
    """

    def __init__(self, *, loaded: LoadedSettings, store: ModelStore) -> None:
        # Its frames count from the beginning of a segment, not of the video.
        self._runner = FilmRunner(loaded, store=store, keeps_mattes=False)

    def __enter__(self) -> Self:
        """Use as a context manager that frees the network."""
        return self

    def __exit__(self, *_: object) -> None:
        """Free the network."""
        self._runner.close()

    def introduction(self) -> Ready:
        """What the run's report says of this worker."""
        chosen, device = self._runner.chosen, self._runner.device
        return Ready(
            name=chosen.network.name,
            requested=chosen.requested,
            note=chosen.note,
            engine_name=chosen.network.engine_name,
            engine_reasons=chosen.engine_reasons,
            recurrent=chosen.network.recurrent,
            device_label=device.label,
            device_note=device.note,
        )

    def film(self, job: FilmJob, link: Link) -> None:
        """Work on a video until the run has no more of it."""
        kinds = [(output.kind, output.encoding) for output in job.outputs]
        runner = self._runner
        size, engine, decoder = (0, 0), runner.chosen.network.engine_name, ""
        with runner.open_video(job.video) as reader:
            link.send(FilmOpened())
            while isinstance(message := link.receive(), Take):
                begin = job.begin_pts * reader.info.time_base
                with (
                    FilmRun(runner, reader, kinds, background_begin=begin, int8=job.int8) as film,
                    ExitStack() as encoders,
                ):
                    size, decoder = film.job.network_input.size, reader.decoder
                    engine = film.network.engine_name
                    stretch = _Stretch(reader, job, message.segment, link, vr=film.vr)
                    for encoder in stretch.encoders:
                        encoders.callback(encoder.close)
                    link.send(stretch.run(film))
            notes = notes_on_reading(reader) + notes_on(
                reader.info,
                [kind for kind, _ in kinds],
                network=runner.chosen.network,
                device=runner.device,
                loaded=runner.loaded,
                is_shared=True,
            )
        link.send(FilmClosed(size, engine, decoder, notes, peak_memory_bytes()))


class _Stretch:
    """One stretch on its way from the decoder to the run."""

    def __init__(
        self, reader: VideoReader, job: FilmJob, first: FilmSegment, link: Link, *, vr: VrDescription
    ) -> None:
        self._link = link
        self._frames = StretchFrames(reader, job, first, next_segment=self._ask)
        self._sheet = ContactSheet(job.outputs[0].path, reader.info, vr) if job.still_pts else None
        self._frame_count = 0
        self._kinds = [output.kind for output in job.outputs]
        self.encoders = [
            SegmentEncoder(output.path, info=output.info, encoding=output.encoding, hdr=output.hdr)
            for output in job.outputs
        ]

    def run(self, film: FilmRun) -> StretchDone:
        """Run the stretch to its end.

        Args:
            film: Mattes and draws it.
        """
        frames, work = self._frames, film.job
        pipeline = film.pipeline(
            frames,
            wants_alpha=lambda index: index in frames.still_indices,
            end=Sink("encode", self._encode, finish=self._flush),
        )
        with _telling(pipeline, self._link):
            measured = pipeline.run()
        return StretchDone(
            pipeline=measured,
            frame_count=self._frame_count,
            cut_count=sum(pts >= frames.begin_pts for pts in work.cut_pts),
            corrupt_count=frames.corrupt_count,
            damage=frames.damage,
            gpu=work.gpu_report(),
            notes=tuple(work.notes),
        )

    def _ask(self) -> FilmSegment | None:
        self._link.send(Ask())
        answer = self._link.receive()
        if answer is None:
            raise RunIsGone
        return None if isinstance(answer, Enough) else answer.segment

    def _encode(self, rendered: Rendered) -> None:
        picture = rendered.pictures[0]
        if picture.pts < self._frames.begin_pts:
            return  # warm-up
        packets: list[tuple[EncodedPacket, ...]] = []
        for kind, encoder, drawn in zip(self._kinds, self.encoders, rendered.pictures, strict=True):
            packets.append(tuple(encoder.encode(drawn, rendered.alpha if kind == "alpha" else None)))
        stills: tuple[Rgb8, ...] = ()
        if self._sheet is not None and rendered.index in self._frames.still_indices:
            stills = (self._sheet.still(rendered),)
        time = FrameTime(picture.pts, picture.time_base, picture.duration)
        sets = None
        if self._frame_count == 0:  # encoders of a GPU open with their first picture
            sets = tuple(encoder.parameter_sets for encoder in self.encoders)
        self._frame_count += 1
        self._link.send(Encoded(sets, (time,), tuple(packets), stills))

    def _flush(self) -> None:
        if self._frame_count:
            packets = tuple(tuple(encoder.flush()) for encoder in self.encoders)
            self._link.send(Encoded(None, (), packets))


@contextmanager
def _telling(pipeline: Pipeline, link: Link) -> Iterator[None]:
    """Tell the run how far a pipeline is, while the block lasts."""
    over = threading.Event()

    def tell() -> None:
        while not over.wait(_PROGRESS_SECONDS):
            try:
                link.send(Progress(pipeline.snapshot()))
            except RunIsGone:
                return

    thread = threading.Thread(target=tell, name="vitascope-telling", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def serve(connection: Connection, loaded: LoadedSettings, home: Path) -> None:
    """Be a worker until the run says that it is over: what a worker process does.

    A run that is gone (it crashed, or was killed) ends the process at once: there is nothing here to tidy up, since
    files are written by the run alone.
    """
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches all processes of a terminal; the run decides
    link = Link(connection, on_loss=lambda: os._exit(1))
    try:
        with SegmentWorker(loaded=loaded, store=ModelStore(home)) as worker:
            link.send(worker.introduction())
            while (message := link.receive()) is not None:
                if isinstance(message, OpenFilm):
                    _film(worker, message.job, link)
    except RunIsGone:
        pass
    except Exception as error:
        _tell_failure(error, link)


def _film(worker: SegmentWorker, job: FilmJob, link: Link) -> None:
    try:
        worker.film(job, link)
    except RunIsGone:
        raise
    except Exception as error:
        _tell_failure(error, link)


def _tell_failure(error: Exception, link: Link) -> None:
    trace = "".join(traceback.format_exception(error))
    link.send(Failed(sendable(error), trace))
