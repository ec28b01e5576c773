"""Tests of a Ray cluster that shares videos: real nodes on this machine, and what happens when one is lost."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

import av
import numpy as np
import pytest
from swaying_clip import packets, swaying_clip

from brightness_file import brightness_settings
from bucket import bucket
from clips import write_clip
from vitascope.cli.app import main
from vitascope.config import load_settings
from vitascope.device import Device, Gpu
from vitascope.errors import DeviceError, InputError, OutputError, UsageError, WorkerError
from vitascope.media.reading.reader import open_video
from vitascope.segmentation.people.identities import Presence
from vitascope.segmentation.people.table import PeopleWriter, table_path
from vitascope.segmentation.processes import cluster as cluster_module
from vitascope.segmentation.processes.cluster import ClusterMakers, cluster_at
from vitascope.segmentation.processes.film_joiner import FilmJoiner
from vitascope.segmentation.processes.port import MakerFacts
from vitascope.segmentation.segmenter import Segmenter
from waiting import eventually

ray = pytest.importorskip("ray", reason="a cluster needs Ray: pip install 'vitascope[cluster]'")
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    # Ray's own warnings when it ends: sockets and files that its processes leave open.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

PATIENCE_SECONDS = 120
FLAGS = {
    "processing.chunk_size": 12,
    "processing.overlap_frames": 8,
    "edges.temporal_smoothing": 0.5,
    "gpu.device": "cpu",
    "video.scene_cut_threshold": 0,  # there are none, and the search takes a fifth of such a run
    **brightness_settings(),
}
FRAMES, STRETCHES = 72, 6
MOST_SECONDS_LOST = 15


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return swaying_clip(tmp_path_factory.mktemp("cluster"), frame_count=FRAMES)


@pytest.fixture(scope="module")
def two():
    """Return a segmenter that uses two processes of this machine."""
    with Segmenter(profile="fast", settings=FLAGS | {"processing.use_multiprocessing": True}) as segmenter:
        yield segmenter


@pytest.fixture(scope="module")
def by_processes(clip, two, tmp_path_factory):
    """Return the packets of what two processes of this machine write."""
    out = tmp_path_factory.mktemp("processes") / "o.mp4"
    two.write(clip, [("key", out)])
    return packets(out)


def with_node(cluster, **args):
    """Add a node. Ray gives each 30 s to start: one that is not started in time is ended, and tried again."""
    args |= {"include_log_monitor": False, "no_monitor": True}  # these would forward logs and order machines
    for _ in range(3):
        try:
            return cluster.add_node(**args)
        except Exception as error:
            if "timed out during startup" not in str(error):
                raise
            trace = error.__traceback__
            while trace.tb_next is not None:
                trace = trace.tb_next
            trace.tb_frame.f_locals["self"].kill_all_processes(check_alive=False, allow_graceful=False)
    return cluster.add_node(**args)


def cluster_of_one(*, cores):
    """Start a cluster with one node."""
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    with_node(cluster, num_cpus=cores, include_dashboard=False)
    return cluster


class Connection:
    """Holds this process's connection to a cluster, from test to test.

    Processes that start for the connection answer questions to nodes, and stay with it.
    """

    def __init__(self):
        self._opened = ExitStack()
        self._address = None

    def open(self, address):
        if self._address is None:
            self._opened.enter_context(cluster_at(address))
            self._address = address
        assert self._address == address
        assert ray.is_initialized()

    def close(self):
        self._address = None
        self._opened.close()
        assert not ray.is_initialized()


@pytest.fixture(scope="module")
def connection():
    with closing(Connection()) as kept:
        yield kept


@pytest.fixture
def disconnected(connection):
    """Close the connection, for tests that connect themselves as users' runs do."""
    connection.close()


@pytest.fixture(scope="module")
def cluster(connection):
    """Start three nodes on this machine, one core each; GPU nodes of one test stay for the next."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")  # else, tests that run beside them would take the cores
        # Ray declares a node dead after 5 unanswered checks; by default it checks every 3 s, and tests would
        # wait.
        patch.setenv("RAY_health_check_period_ms", "500")
        # Keep processes that have answered a question: Ray ends those beyond a node's cores after a second,
        # and a new one takes longer than that to start.
        patch.setenv("RAY_num_workers_soft_limit", "8")
        cluster = cluster_of_one(cores=1)
        try:
            for _ in range(2):
                with_node(cluster, num_cpus=1)
            yield cluster
        finally:
            connection.close()
            cluster.shutdown()


class GpuNodes:
    """Holds nodes that claim to have GPUs, from test to test, as one takes seconds to start."""

    def __init__(self, cluster):
        self._cluster = cluster
        self._there = []
        """For each node, its number of GPUs and the node."""

    def have(self, *gpu_counts):
        """Keep exactly these nodes, and return what Vitascope knows of each."""
        left, self._there = self._there, []
        for count in gpu_counts:
            one = next((one for one in left if one[0] == count), None)
            if one is None:
                one = count, with_node(self._cluster, num_cpus=2, num_gpus=count)
            else:
                left.remove(one)
            self._there.append(one)
        for _, node in left:
            self._cluster.remove_node(node)
        if not gpu_counts:
            return []
        self._cluster.wait_for_nodes()
        known = {node.node_id: node for node in cluster_module.nodes_of(ray)}
        return [known[node.node_id] for _, node in self._there]


@pytest.fixture(scope="module")
def all_gpu_nodes(cluster):
    return GpuNodes(cluster)


@pytest.fixture
def nodes(cluster, all_gpu_nodes, connection):
    """Return the cluster with the three nodes alone, connected to this process."""
    all_gpu_nodes.have()
    connection.open(cluster.address)
    return cluster


@pytest.fixture
def gpu_nodes(cluster, all_gpu_nodes, connection):
    """Return a function that adds nodes with GPUs of these sizes, in bytes; this process is connected."""
    connection.open(cluster.address)
    return lambda *memories: all_gpu_nodes.have(*map(len, memories))


def shared(nodes, **flags):
    return Segmenter(profile="fast", settings=FLAGS | {"processing.cluster": nodes.address} | flags)


class TestOneCrew:
    """Tests of one process on each of three nodes, used for several videos."""

    @pytest.fixture(scope="class")
    def three(self, cluster, all_gpu_nodes, connection):
        all_gpu_nodes.have()
        connection.close()
        with shared(cluster) as segmenter:
            yield segmenter
        assert not ray.is_initialized()

    def test_three_nodes_make_what_two_processes_make(self, clip, three, by_processes, tmp_path):
        report = three.write(clip, [("key", tmp_path / "o.mp4")])
        three.write(clip, [("key", tmp_path / "again.mp4")])
        assert "3 of 3 processes" in report.device
        assert report.frame_count == FRAMES
        assert packets(tmp_path / "o.mp4") == packets(tmp_path / "again.mp4") == by_processes
        assert sorted(path.name for path in tmp_path.iterdir()) == ["again.mp4", "o.mp4"]

    def test_a_second_run_that_wants_the_same_output_is_refused(self, clip, two, three, tmp_path):
        out, refused = tmp_path / "o.mp4", []

        def second(started):
            del started
            with pytest.raises(OutputError, match="it is being written already") as caught:
                three.write(clip, [("key", out)])
            refused.append(str(caught.value))

        two.write(clip, [("key", out)], on_start=second)
        assert refused
        assert "\n" not in refused[0]

    def test_a_process_of_a_node_that_is_killed_is_started_anew(self, clip, three, by_processes, tmp_path):
        makers = three._runner._makers

        def process_of(seat):
            return ray.get(seat.actor.__ray_call__.remote(lambda _: os.getpid()))

        seat = makers._seats[0]
        victim = process_of(seat)
        three.write(clip, [("key", tmp_path / "o.mp4")], on_start=lambda _: os.kill(victim, signal.SIGKILL))
        assert packets(tmp_path / "o.mp4") == by_processes
        os.kill(process_of(makers._seats[1]), signal.SIGKILL)  # this one is idle
        report = three.write(clip, [("key", tmp_path / "again.mp4")])
        assert "3 of 3 processes" in report.device
        assert process_of(seat) != victim


def test_nodes_keep_the_people_whom_this_machine_found(clip, nodes, tmp_path, monkeypatch):
    """Check one person left of the middle and one on the right; the nodes have other homes than this process."""
    monkeypatch.setenv("VITASCOPE_HOME", str(tmp_path / "home"))
    with open_video(clip) as reader:
        base, times = reader.info.time_base, [frame.pts for frame in reader]
    labels = np.tile(np.repeat([1, 2], 8), (16, 1)).astype(np.uint8)[np.newaxis]
    presences = [Presence(who, times[0], times[-1], 0.3, 0.99, len(times), 0) for who in (1, 2)]
    with PeopleWriter(table_path(clip, load_settings().settings.video)) as writer:
        for pts in times:
            writer.add(pts, labels)
        writer.end_shot({1: 1, 2: 2})
        writer.finish(
            presences,
            faces={},
            time_base=(base.numerator, base.denominator),
            origin_pts=times[0],
            video=clip.name,
            fingerprint="",
            begin_seconds=0.0,
            end_seconds=None,
            network="selfie",
            notes=(),
        )
    hints = tmp_path / "in.hints.yaml"
    hints.write_text("people:\n  - {exclude: 2, from: 1.0, to: 2.0}\n")
    made = {}
    for name, sharing in (
        ("nodes", {"processing.cluster": nodes.address}),
        ("processes", {"processing.use_multiprocessing": True}),
    ):
        out = tmp_path / f"{name}.mp4"
        shutil.rmtree(tmp_path / "home" / "stretches", ignore_errors=True)
        with Segmenter(profile="fast", settings=FLAGS | sharing | {"people.hints": hints}) as segmenter:
            segmenter.write(clip, [("mask", out)])
        made[name] = packets(out)
    assert made["nodes"] == made["processes"]
    with av.open(str(out)) as container:
        rate = float(container.streams.video[0].average_rate)
        masks = [frame.to_ndarray(format="gray") for frame in container.decode(video=0)]
    left_out = [mask[:, 80:].max() < 30 for mask in masks]
    assert all(left_out[round(1.2 * rate) : round(1.9 * rate)])  # smoothing shows earlier frames, too
    assert not any(left_out[: round(rate)])


def alive_nodes():
    """Return the number of nodes that Ray knows to be alive."""
    return sum(node["Alive"] for node in ray.nodes())


@dataclass
class Attempt:
    """One attempt at a stretch, timed by this process."""

    place: str
    stretch: int
    began: float
    ended: float = inf
    error: Exception | None = None


@pytest.fixture
def attempts(monkeypatch):
    """Record all attempts, in their order."""
    make, told = ClusterMakers.make, []

    def noted(makers, number, order, *, tell):
        attempt = Attempt(makers.place(number), order.stretch.number, time.monotonic())
        told.append(attempt)
        try:
            return make(makers, number, order, tell=tell)
        except Exception as error:
            attempt.error = error
            raise
        finally:
            attempt.ended = time.monotonic()

    monkeypatch.setattr(ClusterMakers, "make", noted)
    return told


def seconds_lost(attempts, lost_at):
    """Measure from a loss until its stretch begins again elsewhere, without the time in which all others worked."""
    lost = [attempt for attempt in attempts if attempt.error is not None]
    seconds = [0.0]
    for one in lost:
        (again,) = (other for other in attempts if other.stretch == one.stretch and other.began > one.began)
        ends = [
            other.ended for other in attempts if other.began < one.ended <= other.ended and other is not one
        ]
        free = min(ends, default=one.ended)
        seconds.append(one.ended - lost_at + max(again.began - max(free, one.ended), 0.0))
    return max(seconds)


def test_a_node_that_is_lost_costs_its_stretch(clip, nodes, by_processes, tmp_path, attempts, monkeypatch):
    """Check a node killed in each third of a video, of three that join first.

    Each kill costs the stretch in hand and at most ``MOST_SECONDS_LOST`` until another node begins it again.
    A run without a kill makes each stretch once.
    """

    class Slow(cluster_module._Actor):
        """Is always in the middle of a stretch when it is killed."""

        def make(self, order):
            time.sleep(0.5)
            return super().make(order)

    monkeypatch.setattr(cluster_module, "_Actor", Slow)
    spare = [with_node(nodes, num_cpus=1) for _ in range(3)]
    nodes.wait_for_nodes()
    threads = []

    def losing(node, finished):
        """Return a function that loses a node after ``finished`` stretches, and the time of the loss."""
        lost_at = []
        place = next(one.label for one in cluster_module.nodes_of(ray) if one.node_id == node.node_id)

        def lose():
            while True:
                done = sum(attempt.ended < inf for attempt in attempts)
                in_hand = any(attempt.place == place and attempt.ended == inf for attempt in attempts)
                if done >= finished and (in_hand or done >= finished + 2):
                    break
                time.sleep(0.005)
            lost_at.append(time.monotonic())
            nodes.remove_node(node, allow_graceful=False)

        threads.append(threading.Thread(target=lose))
        return lambda _: threads[-1].start(), lost_at

    made_twice = []
    with shared(nodes) as segmenter:
        for node, finished in zip(spare, (0, 2, 4), strict=True):
            out = tmp_path / f"{finished}.mp4"
            attempts.clear()
            lose, lost_at = losing(node, finished)
            alive = alive_nodes()
            report = segmenter.write(clip, [("key", out)], on_start=lose)
            threads[-1].join(PATIENCE_SECONDS)
            made_twice.append(len(attempts) - STRETCHES)
            print("LOST", made_twice, seconds_lost(attempts, *lost_at), attempts)
            assert seconds_lost(attempts, *lost_at) <= MOST_SECONDS_LOST
            # Ray itself may take seconds to notice.
            ends_at = time.monotonic() + PATIENCE_SECONDS
            while alive_nodes() == alive and time.monotonic() < ends_at:
                time.sleep(0.1)
            assert report.frame_count == FRAMES
            assert packets(out) == by_processes
        attempts.clear()
        again = segmenter.write(clip, [("key", tmp_path / "again.mp4")])
    assert max(made_twice) == 1
    assert sorted(attempt.stretch for attempt in attempts) == [*range(STRETCHES)]
    assert "3 of 3 processes" in again.device
    assert packets(tmp_path / "again.mp4") == by_processes


DRIVER = """
import sys, time
import vitascope
from vitascope.segmentation.processes import cluster

class Slow(cluster._Actor):
    def make(self, order):
        time.sleep(0.5)
        return super().make(order)

cluster._Actor = Slow
vitascope.segment(sys.argv[1], sys.argv[2], profile="fast", settings={FLAGS})
"""


def killed_driver(clip, out, address, *, finished):
    """Kill a run when ``finished`` stretches exist; return how many there are."""
    script = DRIVER.replace("{FLAGS}", repr(FLAGS | {"processing.cluster": address}))
    folder = out.with_name(f".{out.name}.stretches")
    deadline = time.monotonic() + 3 * PATIENCE_SECONDS  # it starts, connects and starts other processes
    with subprocess.Popen([sys.executable, "-c", script, str(clip), str(out)]) as driver:
        while len(list(folder.glob("*.stretch"))) < finished:
            assert driver.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.005)
        driver.kill()
    assert not out.exists()
    return len(list(folder.glob("*.stretch")))


def test_another_number_of_nodes_resumes_what_a_killed_driver_left(
    clip, nodes, two, by_processes, tmp_path, monkeypatch
):
    """Check a run of three nodes that is resumed by four, by two, and by two processes of this machine."""

    def resumed_by(segmenter, out, there):
        report = segmenter.write(clip, [("key", out)], resume=True)
        assert packets(out) == by_processes
        (anew,) = (int(m[1]) for note in report.notes if (m := re.match(r"(\d) of 6 stretches w", note)))
        assert anew <= STRETCHES - there  # a node may have finished its stretch after its driver died
        return report

    left = killed_driver(clip, tmp_path / "more.mp4", nodes.address, finished=1)
    # Copy what it left for each of the others. A node may still finish its stretch meanwhile.
    left_for = {}
    for name in ("fewer", "none"):
        kept = tmp_path / f".{name}.mp4.stretches"
        shutil.copytree(tmp_path / ".more.mp4.stretches", kept, ignore=shutil.ignore_patterns("*.part"))
        left_for[name] = len(list(kept.glob("*.stretch")))
    spare = with_node(nodes, num_cpus=1)
    try:
        nodes.wait_for_nodes()
        with shared(nodes) as segmenter:
            assert "of 4 processes" in resumed_by(segmenter, tmp_path / "more.mp4", left).device
    finally:
        nodes.remove_node(spare)
    odd = next(one for one in cluster_module.nodes_of(ray) if one.node_id != spare.node_id)
    tell = versions_with({odd.node_id: {"av": "1.0"}})
    monkeypatch.setattr(cluster_module, "_versions_of", lambda: tell)
    with shared(nodes) as segmenter:
        report = resumed_by(segmenter, tmp_path / "fewer.mp4", left_for["fewer"])
        assert "of 2 processes" in report.device
        assert any(note.startswith(f"{odd.label} was left out") for note in report.notes)
    assert "of 2 processes" in resumed_by(two, tmp_path / "none.mp4", left_for["none"]).device
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fewer.mp4", "more.mp4", "none.mp4"]


def test_a_node_reads_and_writes_a_bucket(clip, by_processes, tmp_path, capsys, disconnected):
    short = write_clip(tmp_path / "short.mp4", width=64, height=64, frame_count=8)
    flags = FLAGS | {"processing.num_threads": 1}
    sets = [word for key, value in flags.items() for word in ("--set", f"{key}={value}")]
    with bucket("cluster") as films:
        # The node inherits the environment, which says where the bucket is.
        cluster = cluster_of_one(cores=2)
        try:
            for video in (clip, short):
                (films / "in" / video.name).receive(video)
            words = [
                "segment",
                f"{films}/in",
                "-o",
                f"{films}/out",
                "--profile",
                "fast",
                "--json-lines",
                *sets,
            ]
            with pytest.raises(SystemExit, match="0"):
                main([*words, "--cluster", cluster.address])
        finally:
            cluster.shutdown()
        names = sorted(str(path) for path in films.rglob("*"))
        (tmp_path / "o.mp4").write_bytes((films / "out" / "in.mp4").read_bytes())
    done = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    done = {event["input"]: event for event in done if event["event"] == "done"}
    assert done.keys() == {"s3://cluster/in/in.mp4", "s3://cluster/in/short.mp4"}
    assert "2 of 2 processes" in done["s3://cluster/in/in.mp4"]["device"]
    assert names == [
        f"s3://cluster/{folder}/{name}.mp4" for folder in ("in", "out") for name in ("in", "short")
    ]
    assert packets(tmp_path / "o.mp4") == by_processes


def test_what_a_node_does_not_see_is_said_before_the_first_stretch(clip, nodes, tmp_path, monkeypatch):
    class Blind(cluster_module._Actor):
        """Sees less when told so, as all nodes share the folders of this machine."""

        unseen = None

        def sees(self, sign, video):
            return replace(super().sees(sign, video), **(self.unseen or {}))

    monkeypatch.setattr(cluster_module, "_Actor", Blind)
    cases = [
        ({"sign": None, "answer": None}, OutputError, "does not see this folder"),
        ({"answer": None, "why_not": "Read-only file system"}, OutputError, "may not write there: Read-only"),
        ({"fingerprint": None}, InputError, "does not see this video"),
    ]
    with shared(nodes) as segmenter:
        for unseen, kind, words in cases:
            for seat in segmenter._runner._makers._seats:
                ray.get(
                    seat.actor.__ray_call__.remote(lambda self, told: setattr(self, "unseen", told), unseen)
                )
            with pytest.raises(kind, match=rf"node [\d.]+ \(\w+\) {words}") as caught:
                segmenter.write(clip, [("key", tmp_path / "o.mp4")])
            assert "\n" not in str(caught.value)
            assert list(tmp_path.iterdir()) == []
        seats = segmenter._runner._makers._seats
        for seat, ahead in zip(seats, (0, 3600, -7200), strict=True):
            unseen = {"clock_seconds": time.time() + ahead}
            ray.get(seat.actor.__ray_call__.remote(lambda self, told: setattr(self, "unseen", told), unseen))
        for name in ("o.mp4", "again.mp4"):
            report = segmenter.write(clip, [("key", tmp_path / name)])
            clocks = [note for note in report.notes if "clock" in note]
            assert [note.partition(" has")[0] for note in clocks] == [seat.node.label for seat in seats[1:]]
            told = [re.search(r"(\d+) s (ahead|behind)", note).groups() for note in clocks]
            assert [which for _, which in told] == ["ahead", "behind"]
            assert [int(seconds) for seconds, _ in told] == pytest.approx([3600, 7200], abs=PATIENCE_SECONDS)


def versions_with(odd):
    """Report other versions on some nodes, by their ids; Ray sends this function whole."""
    tell, driver = cluster_module._versions_of(), os.getpid()

    def versions_of(packages):
        told = tell(packages)
        changes = None if os.getpid() == driver else odd.get(ray.get_runtime_context().get_node_id())
        if isinstance(changes, Exception):
            raise changes
        return told | (changes or {})

    return versions_of


@pytest.mark.parametrize(
    "changes_and_words",
    [
        [
            ({"av": "1.0"}, "has av 1.0; this machine has "),
            ({"vitascope": None}, "lacks vitascope; this machine has "),
        ],
        [(ImportError("no such thing"), "was lost: ImportError: no such thing")],
    ],
    ids=["other and none", "broken"],
)
def test_nodes_of_other_versions_are_named_and_left_out(nodes, monkeypatch, changes_and_words):
    there = cluster_module.nodes_of(ray)
    odd = list(zip(there, changes_and_words, strict=False))
    tell = versions_with({node.node_id: changes for node, (changes, _) in odd})
    monkeypatch.setattr(cluster_module, "_versions_of", lambda: tell)
    makers = ClusterMakers(load_settings(profile="fast", flags=FLAGS), address=nodes.address)
    try:
        assert len(makers.open()) == 3 - len(odd)
        for (node, (_, words)), note in zip(odd, makers.notes, strict=True):
            assert note.startswith(f"{node.label} was left out: it {words}")
            assert "\n" not in note
            assert "\x1b" not in note
    finally:
        makers.close()


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (ImportError("no such thing"), "it was lost: ImportError: no such thing"),
        (
            {"engine_name": "slow", "engine_reasons": ("fast gives other answers here",)},
            "its engine is slow (fast gives other answers here), that of most another",
        ),
    ],
    ids=["no network", "an engine that failed its check"],
)
def test_a_node_with_a_fault_is_named_and_left_out(
    clip, nodes, by_processes, tmp_path, monkeypatch, fault, words
):
    odd = cluster_module.nodes_of(ray)[0]
    odd_id = odd.node_id

    class Odd(cluster_module._Actor):
        def introduce(self):
            if ray.get_runtime_context().get_node_id() != odd_id:
                return super().introduce()
            if isinstance(fault, Exception):
                raise fault
            return replace(super().introduce(), **fault)

    monkeypatch.setattr(cluster_module, "_Actor", Odd)
    with shared(nodes) as segmenter:
        report = segmenter.write(clip, [("key", tmp_path / "o.mp4")])
    assert packets(tmp_path / "o.mp4") == by_processes
    assert "2 of 2 processes" in report.device
    (note,) = (note for note in report.notes if "left out" in note)
    assert note == f"{odd.label} was left out: {words}"


def test_a_node_whose_cores_are_taken_is_waited_for_and_the_user_is_told(nodes, monkeypatch, caplog):
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    class Other:
        """Holds a core, as another run would."""

        def is_there(self):
            return True

    monkeypatch.setattr(cluster_module, "_LONG_SECONDS", 1)
    caplog.set_level("INFO", logger=cluster_module.__name__)
    makers = ClusterMakers(load_settings(profile="fast", flags=FLAGS), address=nodes.address)
    held = cluster_module.nodes_of(ray)[-1]
    there = NodeAffinitySchedulingStrategy(held.node_id, soft=False)
    other = ray.remote(Other).options(num_cpus=1, scheduling_strategy=there).remote()
    assert ray.get(other.is_there.remote())
    opening = threading.Thread(target=makers.open, daemon=True)
    opening.start()
    try:
        eventually(lambda: caplog.messages)  # the first slow one, even if it is only starting
        assert re.fullmatch(
            r"waiting for node [\d.]+ \(\w+\); other runs may be using its cores", *caplog.messages
        )
        assert opening.is_alive()
        ray.kill(other)
        opening.join(PATIENCE_SECONDS)
        assert len(makers) == 3
        assert makers.notes == []
        assert len(caplog.messages) == 1
    finally:
        makers.close()


def test_status_tells_nodes_and_films(clip, nodes, tmp_path, capsys):
    said = []

    def titles(pids):
        """Return the process titles, which Ray's dashboard shows."""
        return [Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0].decode() for pid in pids]

    def ask(started):
        while not started.pipeline.snapshot().items:
            time.sleep(0.01)
        seats = segmenter._runner._makers._seats
        pids = ray.get([seat.actor.__ray_call__.remote(lambda _: os.getpid()) for seat in seats])
        shown = re.compile(rf"ray::{clip.name} stretch \d+")
        eventually(lambda: any(map(shown.fullmatch, titles(pids))))
        with pytest.raises(SystemExit, match="0"):
            main(["cluster", "status", "--address", nodes.address, "--json"])
        said.append(capsys.readouterr().out)

    # Long enough for the status command.
    slow = {"processing.overlap_frames": 90, "model.name": "selfie", "model.kind": None}
    with shared(nodes, **slow) as segmenter:
        segmenter.write(clip, [("key", tmp_path / "o.mp4")], on_start=ask)
    answer = json.loads(said[0])
    assert [node["cores"] for node in answer["nodes"]] == [1, 1, 1]
    (film,) = answer["films"]
    assert film["video"] == str(clip)
    assert film["running"] >= 1


GB = 10**9


@pytest.fixture
def placed(tmp_path, monkeypatch):
    """Return a function that sets the memory of each node's GPUs.

    Processes started there record where they are, and work on the CPU.
    """
    log = tmp_path / "placed"
    log.mkdir()

    def simulate(memory):
        def ask_driver():
            node_id = ray.get_runtime_context().get_node_id()
            return tuple(
                Gpu("Some GPU", "1.0", size, f"0000:0{n}:00.0", size)
                for n, size in enumerate(memory.get(node_id, ()))
            )

        class Simulated(cluster_module._Actor):
            def __init__(self, share):
                super().__init__(replace(share, loaded=share.loaded.with_values({"gpu.device": "cpu"})))

            def gpu(self):
                context = ray.get_runtime_context()
                (number,) = context.get_accelerator_ids()["GPU"]
                (log / f"{context.get_actor_id()} {context.get_node_id()} {number}").touch()
                size = memory[context.get_node_id()][int(number)]
                return Device("cuda", "Some GPU", 0, size, f"0000:0{number}:00.0")

        monkeypatch.setattr(cluster_module, "ask_driver", ask_driver)
        monkeypatch.setattr(cluster_module, "_Actor", Simulated)
        return lambda: sorted(tuple(path.name.split()[1:]) for path in log.iterdir())

    return simulate


def gpu_of(seat):
    (number,) = ray.get(
        seat.actor.__ray_call__.remote(lambda _: ray.get_runtime_context().get_accelerator_ids()["GPU"])
    )
    return number


def test_gpus_are_shared_and_a_large_video_goes_to_large_ones(
    clip, cluster, by_processes, gpu_nodes, placed, tmp_path, monkeypatch
):
    large, middle = gpu_nodes([16 * GB], [4 * GB])
    placed({large.node_id: [16 * GB], middle.node_id: [4 * GB]})
    out = tmp_path / "o"
    out.mkdir()
    with shared(cluster, **{"gpu.device": "auto", "gpu.device_ids": "0,0"}) as segmenter:
        seats = segmenter._runner._makers._seats
        assert [(seat.node.node_id, gpu_of(seat)) for seat in seats] == [
            (node.node_id, "0") for node in (large, large, middle, middle)
        ] or [seat.node.node_id for seat in seats] == [middle.node_id] * 2 + [large.node_id] * 2
        taken = ray.cluster_resources()["GPU"] - ray.available_resources().get("GPU", 0)
        assert taken == pytest.approx(2)
        report = segmenter.write(clip, [("key", out / "o.mp4")])
        assert "4 of 4 processes" in report.device
        needed = FilmJoiner.gpu_bytes
        monkeypatch.setattr(FilmJoiner, "gpu_bytes", lambda *words: needed(*words) + 4 * GB)
        report = segmenter.write(clip, [("key", out / "again.mp4")])
    assert packets(out / "o.mp4") == packets(out / "again.mp4") == by_processes
    assert "2 of 4 processes" in report.device
    assert [note for note in report.notes if "left out" in note] == [
        f"process {n} of 2 on {middle.label} was left out: its GPU has 1.7 GiB for it, and {clip.name} needs about "
        "4.8 GiB"
        for n in (1, 2)
    ]


def test_no_gpu_that_is_large_enough_is_said(cluster, gpu_nodes, placed):
    (small,) = gpu_nodes([GB])
    begun_at = placed({small.node_id: [GB]})
    with pytest.raises(DeviceError, match=r"no GPU of the cluster at .* is large enough: node .* 0\.8 GiB"):
        shared(cluster, **{"gpu.device": "cuda"})
    assert begun_at() == []


def test_a_run_goes_to_gpus_whose_memory_it_fits(clip, cluster, by_processes, gpu_nodes, placed, tmp_path):
    """Check nodes with one GPU that is too small, and with a small and a large one, also after a lost process."""
    small, mixed = gpu_nodes([GB], [GB, 8 * GB])
    begun_at = placed({small.node_id: [GB], mixed.node_id: [GB, 8 * GB]})
    out = tmp_path / "o"
    out.mkdir()
    with shared(cluster, **{"gpu.device": "cuda"}) as segmenter:
        report = segmenter.write(clip, [("key", out / "o.mp4")])
        (seat,) = segmenter._runner._makers._seats
        assert (seat.node, gpu_of(seat)) == (mixed, "1")
        process = ray.get(seat.actor.__ray_call__.remote(lambda _: os.getpid()))
        os.kill(process, signal.SIGKILL)
        segmenter.write(clip, [("key", out / "again.mp4")])
        assert gpu_of(seat) == "1"
    assert packets(out / "o.mp4") == packets(out / "again.mp4") == by_processes
    assert "1 of 1 processes" in report.device
    has = "GPU (Some GPU) has 0.8 GiB for a run, which needs about 1.1 GiB"
    assert {note for note in report.notes if "left out" in note} == {
        f"{small.label} was left out: its {has}",
        f"1 of 2 processes of {mixed.label} were left out: a {has}",
    }
    assert small.node_id not in {node_id for node_id, _ in begun_at()}


def test_who_share_a_gpu_get_the_large_one_and_another_the_small_one(cluster, gpu_nodes, placed):
    """Check that processes which share a GPU move to the large one, though Ray first gives them the small one."""
    (mixed,) = gpu_nodes([2 * GB, 8 * GB])
    begun_at = placed({mixed.node_id: [2 * GB, 8 * GB]})
    flags = FLAGS | {"gpu.device": "cuda", "gpu.device_ids": "0,0,1"}
    makers = ClusterMakers(load_settings(profile="fast", flags=flags), address=cluster.address)
    try:
        assert len(makers.open()) == 3
        assert [gpu_of(seat) for seat in makers._seats] == ["1", "1", "0"]
        assert makers.notes == []
        assert (mixed.node_id, "0") in begun_at()
    finally:
        makers.close()


def test_a_cluster_that_cannot_be_had_is_said_in_one_line(nodes, disconnected, tmp_path):
    with pytest.raises(DeviceError, match=r"the cluster at .* has no GPU, and gpu\.device is cuda"):
        Segmenter(settings={"processing.cluster": nodes.address, "gpu.device": "cuda"})
    with pytest.raises(DeviceError, match=r"the cluster at .* has no GPU, and gpu\.device_ids names one"):
        Segmenter(settings={"processing.cluster": nodes.address, "gpu.device_ids": "0,1"})
    for address in ("127.0.0.1:1", "ray://127.0.0.1:1"):
        with pytest.raises(WorkerError, match=rf"no Ray cluster at {address}; is it running"):
            ClusterMakers(load_settings(), address=address).open()
    for address in ("here", "http://127.0.0.1:1", "127.0.0.1:port"):
        with pytest.raises(
            UsageError, match=rf"{address}: not the address of a Ray cluster; expected auto, HOST:PORT"
        ):
            ClusterMakers(load_settings(), address=address).open()


FACTS = MakerFacts("rvm", "auto", None, "ort 1 (CPU, 4 threads)", (), True, "cpu", "a CPU", None, "abc")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"engine_name": "ort 1 (CPU, 1 thread)"}, None),
        (
            {"engine_name": "ort 2 (CPU, 4 threads)"},
            r"one has the engine ort 1 \(CPU\), and two has ort 2 \(CPU\)",
        ),
        ({"network_sha256": "abd"}, "one has a network with sha256 abc, and two has abd"),
        ({"name": "selfie"}, "one has the network rvm, and two has selfie"),
    ],
)
def test_nodes_whose_answers_would_differ_are_named(changes, words):
    facts = [("one", FACTS), ("two", replace(FACTS, **changes))]
    if words is None:
        cluster_module._refuse_differences(facts)
    else:
        with pytest.raises(WorkerError, match=words):
            cluster_module._refuse_differences(facts)


@pytest.mark.parametrize(("engines", "odd"), [("aab", {2}), ("ab", set()), ("aaaa", set()), ("baba", set())])
def test_who_has_another_engine_than_most_is_left_out(engines, odd):
    facts = [replace(FACTS, engine_name=engine) for engine in engines]
    assert cluster_module._with_another_engine(facts) == odd


def test_a_folder_is_a_queue_that_survives_a_lost_node(clip, nodes, two, by_processes, tmp_path, capsys):
    """Check a long video and short ones while a node is lost."""
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "long.mp4").hardlink_to(clip)
    for n in range(5):
        write_clip(folder / f"short{n}.mp4", width=64, height=64, frame_count=8 + n)
    (folder / "bad.mp4").write_bytes(b"no video")
    lost = with_node(nodes, num_cpus=1)
    nodes.wait_for_nodes()
    stretches = tmp_path / "cut" / ".long.mp4.stretches"

    def lose():
        while len(list(stretches.glob("*.stretch"))) < 2:
            time.sleep(0.005)
        nodes.remove_node(lost, allow_graceful=False)

    threading.Thread(target=lose).start()
    sets = [word for key, value in FLAGS.items() for word in ("--set", f"{key}={value}")]
    words = ["segment", folder, "-o", tmp_path / "cut", "--profile", "fast", "--json-lines", *sets]
    with pytest.raises(SystemExit, match="3"):
        main([*map(str, words), "--cluster", nodes.address])
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    done = {event["input"]: event for event in events if event["event"] == "done"}
    assert {name.rpartition("/")[2] for name in done} == {"long.mp4", *(f"short{n}.mp4" for n in range(5))}
    assert [event["input"] for event in events if event["event"] == "failed"] == [str(folder / "bad.mp4")]
    assert next(event["input"] for event in events if event["event"] == "began") == str(folder / "long.mp4")
    assert packets(tmp_path / "cut" / "long.mp4") == by_processes
    told = [event for event in events if event["event"] == "progress"]
    assert all((event["videos"], event["input"]) == (7, "7 videos") for event in told)
    two.write(folder / "short3.mp4", [("key", tmp_path / "alone.mp4")])
    assert packets(tmp_path / "alone.mp4") == packets(tmp_path / "cut" / "short3.mp4")
    assert not list((tmp_path / "cut").glob(".*"))


def test_paths_mean_the_same_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = {"output.background": "wall.png", "model.name": "nets/own.onnx"}
    loaded = cluster_module._with_whole_paths(load_settings(flags=flags))
    assert loaded.settings.output.background == tmp_path / "wall.png"
    assert loaded.settings.model.name == str(tmp_path / "nets" / "own.onnx")
    assert cluster_module._with_whole_paths(load_settings()).settings == load_settings().settings
