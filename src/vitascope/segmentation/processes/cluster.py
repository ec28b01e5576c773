"""Makes stretches on a Ray cluster: one actor with an open network for each GPU, or for every few cores.

Ray starts actors where there is room, notices when an actor or its machine is lost, and transports orders and
answers. The stretches themselves go through a folder that all machines share.
"""

from __future__ import annotations

import logging
import re
import secrets
import socket
import threading
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from itertools import groupby, pairwise
from math import inf
from pathlib import Path
from typing import Any, Final

from vitascope.config import LoadedSettings, vitascope_home
from vitascope.device import Device, Gpu, ask_driver, select_device
from vitascope.errors import (
    DeviceError,
    InputError,
    MissingDependencyError,
    OutputError,
    UsageError,
    VitascopeError,
    WorkerError,
    one_line,
)
from vitascope.media.libav import wrap_output_error
from vitascope.models.store.store import ModelStore
from vitascope.observe.report_values import gib
from vitascope.observe.standard_streams import quiet_native_stderr
from vitascope.segmentation.capacity import gpu_bytes_needed, gpu_room_bytes
from vitascope.segmentation.film_run import FilmRunner
from vitascope.segmentation.matting.cached_film import video_fingerprint
from vitascope.segmentation.matting.networks import is_network_file
from vitascope.segmentation.processes.maker import StretchMaker
from vitascope.segmentation.processes.port import (
    MakerFacts,
    MakerGoneError,
    StretchMade,
    StretchOrder,
    StretchProgress,
    Tell,
    WholeFilm,
)
from vitascope.segmentation.processes.shares import NodeShare, plan_node
from vitascope.segmentation.processes.spawned import Failed
from vitascope.segmentation.processes.stretch_file import finished_stretches
from vitascope.segmentation.report import SegmentReport

_log = logging.getLogger(__name__)

CLUSTER_NAMESPACE: Final = "vitascope"
"""Ray namespace of the makers' names."""
_TOKEN: Final = (
    "print it there with: ray get-auth-token, and set it here: RAY_AUTH_MODE=token RAY_AUTH_TOKEN=..."
)
_POLL_SECONDS, _ANSWER_SECONDS = 0.5, 5.0
_MOST_SECONDS_TO_A_GPU = 120.0
"""Longest wait for a GPU. A process starts within half a minute on a busy machine, but other runs may hold the GPUs."""
_LONG_SECONDS = 20.0
"""Time after which the user learns what a run waits for; a process normally starts sooner."""
_GPU_PARTS: Final = 10_000
"""Ray counts GPUs in ten-thousandths."""
_SAME_MEMORY = 0.1
"""Tolerance, as a share, between the driver's and CUDA's figure for a GPU's memory: only the driver counts what it
reserves. For a slice of a GPU, the driver gives the whole."""
_SECONDS_A_QUESTION = 0.02
"""Time between progress queries, per maker, so that all together cost the run at most a tenth of a core."""
_MOST_CLOCK_SECONDS = 60.0
"""Tolerated difference between two clocks. No times of two machines are compared here, but object stores refuse
requests signed with a time that is minutes off (S3: 15)."""
_SAME_EVERYWHERE = ("vitascope", "av", "numpy", "onnxruntime")
"""Packages that must have the same version on all machines, because orders, decoding, inference and encoding depend
on them. ONNX Runtime has another name when it is built for GPUs, with the same versions."""


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A machine of a cluster."""

    node_id: str
    address: str
    cores: int
    gpus: int

    @property
    def label(self) -> str:
        """The node's name in messages; several nodes may share an address."""
        return f"node {self.address} ({self.node_id[:6]})"


@contextmanager
def cluster_at(address: str) -> Iterator[Any]:
    """Connect to a cluster through Ray; an existing connection is used and left open.

    Args:
        address: ``auto``, ``HOST:PORT`` or ``ray://HOST:PORT``.

    Raises:
        MissingDependencyError: Ray is not installed.
        UsageError: The address is not valid.
        WorkerError: No cluster answers, it runs other versions, or it needs a token that this machine lacks.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingDependencyError("a cluster needs Ray: pip install 'vitascope[cluster]'") from error
    if ray.is_initialized():
        yield ray
        return
    log = logging.getLogger("ray")
    level = log.level
    try:
        log.setLevel(logging.CRITICAL)  # its messages are for those who start clusters
        _reach(ray, address)
        # Ray's client warns about what the error says anyway.
        with warnings.catch_warnings(action="ignore", category=UserWarning):
            ray.init(
                address=address,
                namespace=CLUSTER_NAMESPACE,
                log_to_driver=False,
                configure_logging=False,
                logging_level=logging.CRITICAL,
            )
    except ConnectionError as error:
        how = "start one with: ray start --head" if address == "auto" else " ".join(str(error).split())[:200]
        if address.startswith("ray://"):
            how += f"; if it needs a token, {_TOKEN}"
        raise WorkerError(f"no Ray cluster at {address}; {how}") from error
    except ImportError as error:  # a package that ray:// needs
        raise MissingDependencyError(
            f"{address} needs Ray's client: pip install 'vitascope[cluster]'"
        ) from error
    except RuntimeError as error:  # other versions of Ray or Python, reported in several lines
        raise WorkerError(
            f"the cluster at {address} cannot be used: {' '.join(str(error).split())}"
        ) from error
    finally:
        log.setLevel(level)
    # Ray prints to stdout, which is for results, when a node is lost; only its debugger's switch turns that off.
    worker = ray._private.worker
    prints, worker._worker_logs_enabled = worker._worker_logs_enabled, False
    try:
        yield ray
    finally:
        ray.shutdown()
        worker._worker_logs_enabled = prints


def _reach(ray: Any, address: str) -> None:
    """Check that a cluster answers and accepts this machine's token.

    Ray itself would retry for minutes, and print each try.

    Raises:
        ConnectionError: This machine has no record of a running cluster.
        UsageError: The address is not valid.
        WorkerError: Nothing listens there, it is not a cluster, or it needs a token that this machine does not have.
    """
    is_client = address.startswith("ray://")
    found = address.removeprefix("ray://")
    if address == "auto":
        found = ray._private.services.canonicalize_bootstrap_address_or_die(address)
    host, _, port = found.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        raise UsageError(
            f"{address}: not the address of a Ray cluster; expected auto, HOST:PORT or ray://HOST:PORT"
        )
    nobody = f"no Ray cluster at {address}; is it running, and can this machine reach it?"
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise WorkerError(nobody) from error
    if is_client:
        return  # Ray checks these itself
    if address == "auto":
        _show_token()
    try:
        with quiet_native_stderr():
            ray._raylet.GcsClient(address=found)
    except ray.exceptions.AuthenticationError as error:
        raise WorkerError(
            f"the cluster at {address} needs a token that this machine does not have; {_TOKEN}"
        ) from error
    except ray.exceptions.RayError as error:
        raise WorkerError(nobody) from error


def _show_token() -> None:
    """Set up Ray's token for this machine, if there is one, as ``ray.init`` does for ``auto``."""
    with suppress(ImportError):  # this Ray keeps it elsewhere; connecting will report a wrong token
        from ray._private.authentication.authentication_token_setup import (
            maybe_enable_token_auth_if_token_available,
        )

        maybe_enable_token_auth_if_token_available(warn_if_disabled=False)


def nodes_of(ray: Any) -> list[ClusterNode]:
    """The running machines, by address."""
    nodes = []
    for node in ray.nodes():
        if node["Alive"]:
            resources = node["Resources"]
            nodes.append(
                ClusterNode(
                    node["NodeID"],
                    node["NodeManagerAddress"],
                    int(resources.get("CPU", 0)),
                    int(resources.get("GPU", 0)),
                )
            )
    return sorted(nodes, key=lambda node: (node.address, node.node_id))


@dataclass(slots=True)
class _Seat:
    """A maker's place in the cluster."""

    node: ClusterNode
    label: str
    share: NodeShare
    actor: Any = None
    room_bytes: int | None = None
    """GPU memory that it may use, in bytes."""

    @property
    def gpu_parts(self) -> int:
        """Its share of a GPU in Ray's units; 0 on the CPU."""
        return _GPU_PARTS // self.share.gpu_processes if self.share.gpu_processes else 0


class ClusterMakers:
    """``StretchMakers`` on a cluster, as many as its machines have room for.

    Args:
        loaded: Settings of the run.
        address: See ``cluster_at``.
    """

    def __init__(self, loaded: LoadedSettings, *, address: str) -> None:
        self._loaded, self._address = _with_whole_paths(loaded), address
        self._connection = ExitStack()
        self._ray: Any = None
        self._notes: list[str] = []
        self._odd_clocks: set[str] = set()
        """IDs of nodes whose clocks a note mentions."""
        self._is_wait_told = False
        self._is_open = False
        self._changing = threading.Lock()
        self._seats: list[_Seat] = []
        self._gpus: dict[str, tuple[Gpu, ...]] = {}
        """GPUs of each node, as its driver listed them before this run used any."""

    def __len__(self) -> int:
        return len(self._seats)

    @property
    def is_open(self) -> bool:
        """See ``StretchMakers``."""
        return self._is_open

    @property
    def notes(self) -> Sequence[str]:
        """Notes on makers that were left out, and on clocks that differ."""
        return self._notes

    def label(self, number: int) -> str:
        """See ``StretchMakers``."""
        return self._seats[number].label

    def open(self) -> Sequence[MakerFacts]:
        """Let each maker open its network. Makers that fail are left out with a note, unless all fail.

        Raises:
            VitascopeError: All failed; the error of the first.
            DeviceError: GPUs were requested, and no machine has one.
            WorkerError: There is no cluster; or its machines have other package versions, networks or engines.
        """
        with ExitStack() as stack:
            stack.callback(self.close)
            if self._ray is None:
                self._ray = self._connection.enter_context(cluster_at(self._address))
            self._seats, self._notes, self._is_open = self._seats_of_all(), [], True
            self._is_wait_told = False
            self._odd_clocks.clear()
            self._gpus.clear()
            self._leave_out_other_versions()
            self._leave_out_small_gpus()
            facts = self._all_introduced()
            stack.pop_all()  # success: keep it open
        return facts

    def _leave_out_other_versions(self) -> None:
        """Leave out nodes whose package versions differ from this machine's; they might not even read orders.

        Raises:
            WorkerError: All differ; the message is about the first.
        """
        versions_of = _versions_of()
        ours = versions_of(_SAME_EVERYWHERE)
        left_out: dict[str, str] = {}
        for seat, answer in self._asked_of_nodes(versions_of, _SAME_EVERYWHERE):
            node = seat.node
            try:
                other = _other_versions(self._get(seat, answer), ours)
                why = None if other is None else f"{node.label} {other}"
            except WorkerError as error:  # of the node, but it names one of its GPUs
                why = one_line(error).replace(seat.label, node.label, 1)
            if why is not None:
                left_out[node.node_id] = why
                self._notes.append(_left_out(node.label, why))
        self._seats = [seat for seat in self._seats if seat.node.node_id not in left_out]
        if not self._seats:
            raise WorkerError(next(iter(left_out.values())))

    def _asked_of_nodes(self, question: Callable[..., Any], *words: Any) -> list[tuple[_Seat, Any]]:
        """For each node, one of its makers and a reference to the node's pending answer to a question."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        one_of_each = {seat.node.node_id: seat for seat in self._seats}
        ask = self._ray.remote(question)
        return [
            (
                seat,
                ask.options(
                    num_cpus=0,
                    max_retries=0,
                    scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
                ).remote(*words),
            )
            for node_id, seat in one_of_each.items()
        ]

    def _leave_out_small_gpus(self) -> None:
        """Leave out GPUs with too little memory for any run, and nodes without others, before starting makers there.

        If a node's driver does not list a GPU, the maker started on it checks instead.

        Raises:
            DeviceError: All are too small.
        """
        if all(not seat.share.gpu_processes for seat in self._seats):
            return
        settings, needed = self._loaded.settings, gpu_bytes_needed(self._loaded)
        for seat, answer in self._asked_of_nodes(ask_driver):
            node = seat.node
            if not seat.share.gpu_processes:
                continue
            with suppress(WorkerError):  # the node was lost; starting a maker there reports it
                self._gpus[node.node_id] = self._get(seat, answer)
            gpus = self._gpus.get(node.node_id, ())
            rooms: list[int | None] = [
                None
                if gpu.memory_bytes is None
                else gpu_room_bytes(settings, gpu.memory_bytes, free_bytes=gpu.free_bytes)
                for gpu in gpus
            ]
            rooms += [None] * (node.gpus - len(rooms))
            seats = self._seats_of(node, gpu_bytes=rooms)
            before = [other for other in self._seats if other.node == node]
            if len(seats) < len(before):
                small, name = min(
                    (room, gpu.name) for room, gpu in zip(rooms, gpus, strict=False) if room is not None
                )
                room, needs = gib(small, decimals=1), gib(needed, decimals=1)
                has = f"GPU ({name}) has {room} for a run, which needs about {needs}"
                self._notes.append(
                    f"{len(before) - len(seats)} of {len(before)} processes of {node.label} were left out: a {has}"
                    if seats
                    else f"{node.label} was left out: its {has}"
                )
                self._seats = [other for other in self._seats if other.node != node] + seats
        if not self._seats:
            raise DeviceError(f"no GPU of the cluster at {self._address} is large enough: {self._notes[-1]}")

    def _placed(self, seats: Sequence[_Seat]) -> dict[int, VitascopeError]:
        """Start a maker on each seat, on a GPU with enough memory for a run.

        GPUs shared by the most makers must be the largest, so their makers come first. The others may then get the
        GPUs that were left.

        Returns:
            The errors of makers that could not be started, by index into ``seats``.
        """

        def sharing(number: int) -> int:
            return -seats[number].share.gpu_processes

        failed: dict[int, VitascopeError] = {}
        for _, alike in groupby(sorted(range(len(seats)), key=sharing), key=sharing):
            failed |= self._placed_alike({number: seats[number] for number in alike})
        return failed

    def _placed_alike(self, seats: Mapping[int, _Seat]) -> dict[int, VitascopeError]:
        """Place makers whose GPUs are shared by the same number; see ``_placed``.

        Ray treats all GPUs of a node as equal. A maker on a GPU that is too small keeps its share until all are
        placed, so that Ray assigns the remaining ones, while there are any.
        """
        failed: dict[int, VitascopeError] = {}
        misplaced: list[_Seat] = []
        try:
            started = deque((number, *self._started(seat)) for number, seat in seats.items())
            while started:
                number, answer, until = started.popleft()
                seat = seats[number]
                try:
                    if answer is None or self._has_room(seat, self._get(seat, answer, until=until)):
                        continue
                    held = sum(other.gpu_parts for other in self._at_work_on(seat.node, misplaced))
                    if held + seat.gpu_parts > seat.node.gpus * _GPU_PARTS:
                        raise self._too_small(seat)
                    misplaced.append(replace(seat))
                    seat.actor = None
                    started.append((number, *self._started(seat)))
                except VitascopeError as error:
                    failed[number] = error
                    misplaced.append(replace(seat))
                    seat.actor = None
        finally:
            with self._changing:
                for seat in misplaced:
                    self._drop(seat)
        return failed

    def _at_work_on(self, node: ClusterNode, misplaced: Sequence[_Seat]) -> list[_Seat]:
        """All makers that hold a part of a GPU on a node, including misplaced ones."""
        return [seat for seat in (*self._seats, *misplaced) if seat.node == node and seat.actor is not None]

    def _has_room(self, seat: _Seat, device: Device | Failed) -> bool:
        """True if a maker's GPU has enough memory for a run; sets its ``room_bytes``.

        Raises:
            VitascopeError: The maker cannot use its GPU.
        """
        if isinstance(device, Failed):
            raise device.raised_in(seat.label)
        if device.memory_bytes is None:
            return True
        seat.room_bytes = gpu_room_bytes(
            seat.share.loaded.settings,
            device.memory_bytes,
            free_bytes=_free_bytes(device, self._gpus.get(seat.node.node_id, ())),
            processes=seat.share.gpu_processes,
        )
        return seat.room_bytes >= gpu_bytes_needed(self._loaded)

    def _too_small(self, seat: _Seat) -> DeviceError:
        has, needs = (
            gib(seat.room_bytes or 0, decimals=1),
            gib(gpu_bytes_needed(self._loaded), decimals=1),
        )
        return DeviceError(f"{seat.label} has a GPU with {has} for it, and a run needs about {needs}")

    def _all_introduced(self) -> list[MakerFacts]:
        """Facts about each maker that could be opened; the others are left out."""
        opened: list[tuple[_Seat, MakerFacts]] = []
        failed = self._placed(self._seats)
        asked = [
            None if number in failed else seat.actor.introduce.remote()
            for number, seat in enumerate(self._seats)
        ]
        for number, (seat, introduction) in enumerate(zip(self._seats, asked, strict=True)):
            try:
                if introduction is not None:
                    opened.append((seat, self._introduced(seat, introduction)))
            except VitascopeError as error:
                failed[number] = error
        failures = [failed[number] for number in sorted(failed)]
        self._notes += [
            _left_out(self._seats[number].label, one_line(failed[number])) for number in sorted(failed)
        ]
        if not opened:
            raise failures[0]
        odd = _with_another_engine([facts for _, facts in opened])
        for number in sorted(odd):
            seat, facts = opened[number]
            why = f" ({facts.engine_reasons[0]})" if facts.engine_reasons else ""
            self._notes.append(
                f"{seat.label} was left out: its engine is {facts.engine_kind}{why}, that of most another"
            )
        opened = [one for number, one in enumerate(opened) if number not in odd]
        _refuse_differences([(seat.label, facts) for seat, facts in opened])
        for seat in self._seats:
            if all(seat is not other for other, _ in opened):
                self._drop(seat)
        self._seats = [seat for seat, _ in opened]
        return [facts for _, facts in opened]

    def place(self, number: int) -> str:
        """See ``StretchMakers``."""
        return self._seats[number].node.label

    def room_bytes(self, number: int) -> int | None:
        """See ``StretchMakers``."""
        return self._seats[number].room_bytes

    def check(self, video: Path, folder: Path) -> None:
        """See ``StretchMakers``."""
        fingerprint = video_fingerprint(video)
        token = secrets.token_hex(8)
        sign = folder / f".{token}.part"
        with wrap_output_error(folder, "write there"):
            sign.write_text(token)
        try:
            for seat, seen in self._ask_all(sign, video):
                if seen.sign != token:
                    raise OutputError(
                        f"{folder}: {seat.label} does not see this folder, or sees another one; "
                        "write to a folder that all nodes share"
                    )
                if seen.answer is None or not seen.answer.is_file():
                    why = f": {seen.why_not}" if seen.why_not else ""
                    raise OutputError(f"{folder}: {seat.label} may not write there{why}")
                if seen.fingerprint != fingerprint:
                    raise InputError(
                        f"{video}: {seat.label} does not see this video, or sees another one; "
                        "read from a folder that all nodes share"
                    )
        finally:
            for left_over in folder.glob(f".{token}*.part"):  # including the answers
                left_over.unlink(missing_ok=True)

    def _ask_all(self, sign: Path, video: Path) -> list[tuple[_Seat, _Seen]]:
        """Ask what each maker sees, and restart it if necessary; leave out lost makers from now on.

        Raises:
            WorkerError: All makers are lost.
        """
        answered: dict[int, _Seen] = {}
        lost: dict[int, VitascopeError] = {}
        for _ in range(2):  # a lost process is restarted once
            asked: dict[int, tuple[float, Any]] = {}
            for number, seat in enumerate(self._seats):
                if number not in answered:
                    with _lost(lost, number):
                        if seat.actor is None:
                            self._begin(seat)
                        asked[number] = time.time(), seat.actor.sees.remote(sign, video)
            for number, (asked_at, sight) in asked.items():
                with _lost(lost, number):
                    answered[number] = seen = self._get(self._seats[number], sight)
                    self._compare_clocks(self._seats[number].node, asked_at, seen.clock_seconds)
        if not answered:
            why = next(iter(lost.values()), None)
            raise WorkerError(f"no node of the cluster at {self._address} is left") from why
        self._notes += [
            _left_out(self._seats[number].label, one_line(error))
            for number, error in lost.items()
            if number not in answered
        ]
        seen = [(self._seats[number], answered[number]) for number in sorted(answered)]
        self._seats = [seat for seat, _ in seen]
        return seen

    def _compare_clocks(self, node: ClusterNode, asked_at: float, there: float) -> None:
        """Note a clock that is further off than the time since the question explains."""
        apart = max(there - time.time(), 0.0) or min(there - asked_at, 0.0)
        if abs(apart) > _MOST_CLOCK_SECONDS and node.node_id not in self._odd_clocks:
            self._odd_clocks.add(node.node_id)
            which = "ahead of" if apart > 0 else "behind"
            self._notes.append(
                f"{node.label} has a clock {abs(apart):.0f} s {which} this machine's; videos are not affected, but "
                "buckets may refuse it: set the clock"
            )

    def renew(self, number: int) -> None:
        """See ``StretchMakers``. Ray takes some seconds to notice a lost node."""
        seat = self._seats[number]
        if seat.actor is None:
            self._begin(seat)

    def make(self, number: int, order: StretchOrder, *, tell: Tell) -> StretchMade:
        """See ``StretchMakers``."""
        made = self._made(number, order, tell)
        assert isinstance(made, StretchMade)
        return made

    def make_film(self, number: int, film: WholeFilm, *, tell: Tell) -> SegmentReport:
        """See ``StretchMakers``."""
        report = self._made(number, film, tell)
        assert isinstance(report, SegmentReport)
        return report

    def rest(self, number: int) -> None:
        """See ``StretchMakers``."""
        actor = self._seats[number].actor
        if actor is not None:
            with suppress(Exception):  # the actor or the connection may be gone
                actor.rest.remote()

    def interrupt(self, number: int) -> None:
        """See ``StretchMakers``."""
        actor = self._seats[number].actor
        if actor is not None:
            actor.interrupt.remote()

    def drop(self, number: int) -> None:
        """See ``StretchMakers``."""
        with self._changing:
            self._drop(self._seats[number])

    def _made(self, number: int, order: StretchOrder | WholeFilm, tell: Tell) -> Any:
        """Let a maker carry out an order; returns its answer.

        Ray keeps counters for each task name as long as this process lives (2 kB a name), so all orders share one
        name.
        """
        self.renew(number)
        seat = self._seats[number]
        answer = self._get(seat, seat.actor.make.remote(order), tell=tell)
        if isinstance(answer, Failed):
            raise answer.raised_in(seat.label)
        return answer

    def close(self) -> None:
        """Stop all actors, and close the connection."""
        with self._changing:
            self._is_open = False
            for seat in self._seats:
                self._drop(seat)
        self._ray = None
        self._connection.close()

    def _seats_of_all(self) -> list[_Seat]:
        """A seat for each maker that the cluster has room for."""
        seats = [seat for node in nodes_of(self._ray) if node.cores for seat in self._seats_of(node)]
        gpu = self._loaded.settings.gpu
        if not seats and (gpu.device == "cuda" or gpu.device_ids is not None):
            why = "gpu.device is cuda" if gpu.device_ids is None else "gpu.device_ids names one"
            raise DeviceError(f"the cluster at {self._address} has no GPU, and {why}")
        if not seats:
            raise WorkerError(f"no node of the cluster at {self._address} has a core to compute with")
        return seats

    def _seats_of(self, node: ClusterNode, *, gpu_bytes: Sequence[int | None] | None = None) -> list[_Seat]:
        """A seat for each maker that a node has room for; see ``plan_node``."""
        shares = plan_node(self._loaded, cores=node.cores, gpus=node.gpus, gpu_bytes=gpu_bytes)
        return [
            _Seat(
                node,
                f"process {n} of {len(shares)} on {node.label}" if len(shares) > 1 else node.label,
                share,
            )
            for n, share in enumerate(shares, start=1)
        ]

    def _begin(self, seat: _Seat) -> MakerFacts:
        """Start or restart a maker; returns facts about it.

        Raises:
            VitascopeError: It cannot open its network, or its GPU is not available now.
            MakerGoneError: It cannot be restarted there.
        """
        for error in self._placed([seat]).values():
            raise error
        return self._introduced(seat, seat.actor.introduce.remote())

    def _started(self, seat: _Seat) -> tuple[Any, float]:
        """Start a maker.

        Returns:
            A reference to its GPU, None on the CPU; and the deadline for getting one.
        """
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        share = seat.share
        with self._changing:
            if not self._is_open:
                raise WorkerError(f"{seat.label} was stopped")
            seat.actor = (
                self._ray.remote(_Actor)
                .options(
                    name=f"{seat.label} {secrets.token_hex(4)}",
                    num_cpus=share.cores,
                    num_gpus=seat.gpu_parts / _GPU_PARTS,
                    max_concurrency=4,  # making, resting, progress and interrupting
                    max_restarts=0,  # a lost maker is restarted when there is work
                    scheduling_strategy=NodeAffinitySchedulingStrategy(seat.node.node_id, soft=False),
                )
                .remote(share)
            )
            until = time.monotonic() + _MOST_SECONDS_TO_A_GPU
            return seat.actor.gpu.remote() if share.gpu_processes else None, until

    def _introduced(self, seat: _Seat, introduction: Any) -> MakerFacts:
        answer = self._get(seat, introduction)
        if isinstance(answer, Failed):
            raise answer.raised_in(seat.label)
        assert isinstance(answer, MakerFacts)
        return answer

    def _get(self, seat: _Seat, reference: Any, *, tell: Tell | None = None, until: float = inf) -> Any:
        """Wait for a maker's answer.

        Args:
            seat: The maker.
            reference: Reference to the answer.
            tell: Called with the progress.
            until: Deadline for getting a GPU, by ``time.monotonic``.

        Raises:
            WorkerError: The maker is lost, or has no GPU yet.
            MakerGoneError: Its machine is lost.
        """
        ray, actor = self._ray, seat.actor
        try:
            seconds = max(_POLL_SECONDS, len(self._seats) * _SECONDS_A_QUESTION)
            began = time.monotonic()
            while not ray.wait([reference], timeout=seconds)[0]:
                if not self._is_open:
                    raise WorkerError(f"{seat.label} was stopped")
                if time.monotonic() > until:
                    with self._changing:
                        self._drop(seat)
                    raise WorkerError(
                        f"{seat.label} got no GPU in {_MOST_SECONDS_TO_A_GPU:.0f} s; is another run using it?"
                    )
                if tell is None:
                    if not self._is_up(seat.node):
                        raise MakerGoneError(f"{seat.label} is lost")
                    if time.monotonic() - began > _LONG_SECONDS and not self._is_wait_told:
                        self._is_wait_told = True  # once: the others usually wait for the same
                        held = "GPU" if seat.share.gpu_processes else "cores"
                        _log.info("waiting for %s; other runs may be using its %s", seat.label, held)
                    continue
                with suppress(ray.exceptions.GetTimeoutError):
                    progress = ray.get(actor.progress.remote(), timeout=_POLL_SECONDS)
                    if progress is not None:
                        tell(progress)
            return ray.get(reference)
        except ray.exceptions.RayError as error:
            with self._changing:
                self._drop(seat)
            if tell is None and not self._is_up(seat.node):
                raise MakerGoneError(f"{seat.label} is lost") from error
            raise WorkerError(f"{seat.label} was lost: {_what_ray_says(error)}") from error

    def _is_up(self, node: ClusterNode) -> bool:
        return any(other.node_id == node.node_id for other in nodes_of(self._ray))

    def _drop(self, seat: _Seat) -> None:
        actor, seat.actor = seat.actor, None
        if actor is not None:
            with suppress(Exception):  # the actor or the connection may be gone
                self._ray.kill(actor)


def _with_whole_paths(loaded: LoadedSettings) -> LoadedSettings:
    """Settings with absolute paths, which mean the same in another machine's working folder."""
    settings = loaded.settings
    values: dict[str, Any] = {
        key: path.absolute()
        for key, path in (
            ("output.background", settings.output.background),
            ("people.hints", settings.people.hints),
        )
        if path is not None
    }
    if is_network_file(settings.model.name):
        values["model.name"] = str(Path(settings.model.name).absolute())
    return loaded.with_values(values)


@contextmanager
def _lost(lost: dict[int, VitascopeError], number: int) -> Iterator[None]:
    """Collect the error of a maker that is lost."""
    try:
        yield
    except VitascopeError as error:
        lost[number] = error


def _free_bytes(device: Device, listed: Sequence[Gpu]) -> int | None:
    """Memory of a GPU that was free before the run, as its node's driver listed it; None if unknown."""
    same = [gpu for gpu in listed if gpu.pci_address == device.pci_address]
    if device.pci_address is None or device.memory_bytes is None or len(same) != 1:
        return None
    apart = abs((same[0].memory_bytes or 0) - device.memory_bytes)
    return same[0].free_bytes if apart <= _SAME_MEMORY * device.memory_bytes else None


def _versions_of() -> Callable[[Sequence[str]], dict[str, str | None]]:
    """A function that returns package versions; it is local, so that Ray sends it to nodes without Vitascope, too.

    It returns None for a missing package, and an empty string for one without a version.
    """

    def versions_of(packages: Sequence[str]) -> dict[str, str | None]:
        from importlib.metadata import PackageNotFoundError, version
        from importlib.util import find_spec

        found: dict[str, str | None] = {}
        for name in packages:
            if name == "vitascope":  # a checkout may have outdated metadata from an old installation
                try:
                    from vitascope import __version__

                    found[name] = __version__
                    continue
                except ImportError:
                    pass
            spec = find_spec(name)
            # A folder that merely has the name has no origin.
            found[name] = None if spec is None or spec.origin is None else ""
            for distribution in (name, f"{name}-gpu") if name == "onnxruntime" else (name,):
                try:
                    found[name] = version(distribution)
                    break
                except PackageNotFoundError:
                    continue
        return found

    return versions_of


def _other_versions(there: Mapping[str, str | None], ours: Mapping[str, str | None]) -> str | None:
    """Describe the first package whose version differs on a node, as in "has av 14.0; this machine has 15.1".

    Returns:
        None if all known versions are the same.
    """
    for name, own in ours.items():
        its = there[name]
        if its == own or ("" in (its, own) and None not in (its, own)):
            continue
        has = f"lacks {name}" if its is None else f"has {name} {its}".rstrip()
        return f"{has}; this machine " + ("lacks it" if own is None else f"has {own or 'it'}")
    return None


def _left_out(label: str, why: str) -> str:
    """Make the note about a maker or node that was left out; name it once.

    Args:
        label: Its name.
        why: A sentence, which may begin with the name.
    """
    its = why.removeprefix(f"{label} ")
    return f"{label} was left out: {its if its == why else f'it {its}'}"


def _what_ray_says(error: Exception) -> str:
    """Describe Ray's error in one line: for an exception raised elsewhere, the end of its traceback."""
    lines = [line.strip() for line in re.sub(r"\x1b\[[\d;]*m", "", str(error)).splitlines() if line.strip()]
    return lines[-1] if "ray::" in str(error) else " ".join(lines)


def _with_another_engine(facts: Sequence[MakerFacts]) -> set[int]:
    """Indices of makers whose engine is not the most common one; where its check fails, another replaces it."""
    engines = [one.engine_kind for one in facts]
    most, count = Counter(engines).most_common(1)[0]
    if 2 * count <= len(engines):
        return set()
    return {number for number, engine in enumerate(engines) if engine != most}


def _refuse_differences(facts: Sequence[tuple[str, MakerFacts]]) -> None:
    """Refuse networks and engines that differ: the seams between stretches would be visible.

    Raises:
        WorkerError: The message names the two and what differs.
    """
    for (first_label, first), (label, other) in pairwise(facts):
        for what, ours, theirs in (
            ("the network", first.name, other.name),
            ("a network with sha256", first.network_sha256, other.network_sha256),
            ("the engine", first.engine_kind, other.engine_kind),
        ):
            if ours != theirs:
                raise WorkerError(
                    f"{first_label} has {what} {ours}, and {label} has {theirs}: their results would differ; "
                    "choose what all have, with --model or --backend, or leave one out"
                )


def _video_of(order: StretchOrder | WholeFilm) -> Path:
    return order.planned.video if isinstance(order, WholeFilm) else order.film.video


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a maker sees of a run's folders."""

    sign: str | None
    answer: Path | None
    """A file that it wrote beside the first; None if it could not write."""
    why_not: str
    fingerprint: str | None
    """Fingerprint of the video; None if it cannot read it."""
    clock_seconds: float
    """Its clock, in seconds since 1970."""


class _Actor:
    """The actor: a maker on a machine of the cluster.

    Args:
        share: Its settings, and its share of the machine.
    """

    def __init__(self, share: NodeShare) -> None:
        self._share = share
        self._maker: StretchMaker | None = None
        self._progress: StretchProgress | None = None
        self._order: StretchOrder | WholeFilm | None = None
        self._interrupted = threading.Event()
        self._making = threading.Lock()
        self._began_at = 0.0
        self._failed = 0

    def gpu(self) -> Device | Failed:
        """The GPU that Ray assigned; the network is not open yet."""
        try:
            return select_device("cuda")
        except Exception as error:
            return Failed.of(error)

    def introduce(self) -> MakerFacts | Failed:
        """Open the network; returns facts about this maker."""
        try:
            runner = FilmRunner(
                self._share.loaded,
                store=ModelStore(vitascope_home()),
                keeps_mattes=False,
                gpu_processes=self._share.gpu_processes or 1,
            )
            self._maker = StretchMaker(runner)
            return self._maker.facts()
        except Exception as error:
            return Failed.of(error)

    def sees(self, sign: Path, video: Path) -> _Seen:
        """Read a sign, write another beside it, and fingerprint the video."""
        seen, answer, why_not, fingerprint = None, None, "", None
        with suppress(OSError):
            seen = sign.read_text()
        if seen is not None:
            try:
                answer = sign.with_name(f"{sign.stem}.{secrets.token_hex(4)}.part")
                answer.write_text(seen)
            except OSError as error:
                answer, why_not = None, error.strerror or str(error)
        with suppress(InputError):
            fingerprint = video_fingerprint(video)
        return _Seen(seen, answer, why_not, fingerprint, time.time())

    def make(self, order: StretchOrder | WholeFilm) -> StretchMade | SegmentReport | Failed:
        """Make a stretch, or a whole video."""
        assert self._maker is not None  # introduce() came first
        if self._order is None or _video_of(self._order) != _video_of(order):
            self._failed = 0
        self._order, self._began_at, self._progress = order, time.monotonic(), None
        self._interrupted.clear()
        self._show()
        with self._making:
            answer = self._maker.answer(order, tell=self._tell, interrupted=self._interrupted)
        self._failed += isinstance(answer, Failed)
        self._progress = None
        return answer

    def rest(self) -> None:
        """Close the video of the last stretch, and free the memory kept for the next."""
        with self._making:  # a later order may already be running
            if self._maker is not None:
                self._maker.rest()

    def interrupt(self) -> None:
        """Stop making the current whole video, as Ctrl-C would."""
        self._interrupted.set()

    def progress(self) -> StretchProgress | None:
        """Progress of the current stretch; None if there is none."""
        return self._progress

    def at_work(self) -> FilmAtWork | None:
        """What it is working on; None if nothing."""
        progress, order = self._progress, self._order
        if progress is None or order is None:
            return None
        seconds = max(time.monotonic() - self._began_at, 1e-3)
        done, stretch_count, frame_count = 0, 1, None
        if isinstance(order, StretchOrder):
            done = finished_stretches(order.file.parent)
            stretch_count, frame_count = order.film.stretch_count, order.film.frame_count
        return FilmAtWork(
            video=str(_video_of(order)),
            done=done,
            stretch_count=stretch_count,
            frame_count=frame_count,
            running=1,
            failed=self._failed,
            frames_in_hand=progress.frame_count,
            frames_per_second=progress.frame_count / seconds,
        )

    def _tell(self, progress: StretchProgress) -> None:
        self._progress = progress
        self._show()

    def _show(self) -> None:
        """Show the current video and stretch on Ray's dashboard, which shows process titles.

        Ray resets the title at the end of each call.
        """
        import ray

        order = self._order
        assert order is not None  # set by make()
        stretch = f" stretch {order.stretch.number}" if isinstance(order, StretchOrder) else ""
        with suppress(Exception):  # not a public function, and only a title
            raylet: Any = ray._raylet
            raylet.setproctitle(f"ray::{_video_of(order).name}{stretch}")


@dataclass(frozen=True, slots=True)
class FilmAtWork:
    """Progress of a video, from one maker or from all."""

    video: str
    done: int
    """Finished stretches in the video's folder."""
    stretch_count: int
    frame_count: int | None
    """Frames of the whole video; None if unknown."""
    running: int
    """Number of stretches in progress."""
    failed: int
    """Number of failed attempts."""
    frames_in_hand: int
    """Frames of these stretches that are encoded."""
    frames_per_second: float

    def and_another(self, other: FilmAtWork) -> FilmAtWork:
        """Add the progress of two makers on the same video."""
        return replace(
            self,
            done=max(self.done, other.done),
            running=self.running + other.running,
            failed=self.failed + other.failed,
            frames_in_hand=self.frames_in_hand + other.frames_in_hand,
            frames_per_second=self.frames_per_second + other.frames_per_second,
        )

    @property
    def seconds_left(self) -> float | None:
        """Remaining time at this pace; None if unknown."""
        if self.frame_count is None or not self.frames_per_second:
            return None
        left = self.frame_count * (1 - self.done / self.stretch_count) - self.frames_in_hand
        return max(left, 0.0) / self.frames_per_second

    def to_dict(self) -> dict[str, Any]:
        """The progress as plain values for JSON."""
        return {**asdict(self), "seconds_left": self.seconds_left}

    def line(self) -> str:
        """The progress as a line of text."""
        left = self.seconds_left
        when = "" if left is None else f", {left:.0f} s left"
        return (
            f"{self.video}: {self.done} of {self.stretch_count} stretches done, {self.running} running, "
            f"{self.failed} failed; {self.frames_per_second:.1f} frames/s{when}"
        )


def films_at_work(ray: Any, *, namespace: str) -> list[FilmAtWork]:
    """The videos that the cluster is working on, for all runs; makers that do not answer in time are left out.

    Args:
        ray: The connected Ray module.
        namespace: Ray namespace of the makers' names.
    """
    asked = []
    for actor in ray.util.list_named_actors(all_namespaces=True):
        if actor["namespace"] == namespace:
            with suppress(ValueError):  # it has just ended
                asked.append(ray.get_actor(actor["name"], namespace=namespace).at_work.remote())
    answered, _ = ray.wait(asked, num_returns=len(asked), timeout=_ANSWER_SECONDS) if asked else ([], [])
    films: dict[str, FilmAtWork] = {}
    for reference in answered:
        with suppress(ray.exceptions.RayError):
            film = ray.get(reference)
            if film is not None:
                known = films.get(film.video)
                films[film.video] = film if known is None else known.and_another(film)
    return list(films.values())
