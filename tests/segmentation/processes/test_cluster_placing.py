"""Tests of the GPUs on which a cluster's processes start; a fake Ray gives out parts of GPUs."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from brightness_file import brightness_settings
from vitascope.config import load_settings
from vitascope.device import Device, Gpu
from vitascope.errors import DeviceError, WorkerError, one_line
from vitascope.segmentation.plan import PlannedVideo
from vitascope.segmentation.processes import cluster as cluster_module
from vitascope.segmentation.processes.cluster import ClusterMakers, ClusterNode
from vitascope.segmentation.processes.port import WholeFilm

ray = pytest.importorskip("ray", reason="a cluster needs Ray: pip install 'vitascope[cluster]'")

GB = 10**9
NODE = ClusterNode("ab" * 28, "10.0.0.1", 8, 2)


class FakeRay:
    """Simulates a node with GPUs of some memory, parts of which other runs hold."""

    def __init__(self, memory, *, taken=()):
        self.exceptions = ray.exceptions
        self.memory = memory
        self.free = [10_000 - part for part in (*taken, *[0] * (len(memory) - len(taken)))]
        self.actors = []

    def nodes(self):
        resources = {"CPU": 8.0, "GPU": float(len(self.memory))}
        return [
            {
                "NodeID": NODE.node_id,
                "NodeManagerAddress": NODE.address,
                "Alive": True,
                "Resources": resources,
            }
        ]

    def remote(self, kind):
        return self

    def options(self, *, num_gpus, **_):
        parts = round(num_gpus * 10_000)
        return SimpleNamespace(remote=lambda loaded: self._begin(parts))

    def _begin(self, parts):
        actor = SimpleNamespace(parts=parts, number=None, gpu=SimpleNamespace(remote=lambda: actor))
        self.actors.append(actor)
        self._schedule()
        return actor

    def _schedule(self):
        """Give out GPUs by number, shared ones before free ones."""
        for actor in self.actors:
            if actor.number is None:
                fit = [number for number, free in enumerate(self.free) if free >= actor.parts]
                if fit:
                    actor.number = min(fit, key=lambda number: self.free[number])
                    self.free[actor.number] -= actor.parts

    def wait(self, references, *, timeout):
        if references[0].number is None:
            time.sleep(0.001)
            return [], references
        return references, []

    def get(self, actor):
        return Device("cuda", "Some GPU", 0, self.memory[actor.number], f"0000:0{actor.number}:00.0")

    def kill(self, actor):
        self.actors.remove(actor)
        if actor.number is not None:
            self.free[actor.number] += actor.parts
        self._schedule()


def placed(fake, *, ids=None):
    """Place processes on a node; also returns the errors of those that got no place."""
    loaded = load_settings(flags={"gpu.device": "cuda", "gpu.device_ids": ids, **brightness_settings()})
    makers = ClusterMakers(loaded, address="auto")
    makers._ray, makers._is_open = fake, True
    makers._seats = makers._seats_of(NODE)
    return makers, makers._placed(makers._seats)


@pytest.mark.parametrize("memory", [[2 * GB, 8 * GB], [8 * GB, 2 * GB]])
def test_who_share_a_gpu_get_the_large_one_and_another_the_small_one(memory):
    fake = FakeRay(memory)
    makers, failed = placed(fake, ids="0,0,1")
    assert failed == {}
    large = memory.index(8 * GB)
    assert [seat.actor.number for seat in makers._seats] == [large, large, 1 - large]
    assert len(fake.actors) == 3
    assert [seat.room_bytes for seat in makers._seats] == [3.6 * GB, 3.6 * GB, 1.8 * GB]


def test_where_nothing_is_left_who_is_misplaced_is_refused_in_a_line():
    """Check two GPUs that are too small to share, and large enough for one process."""
    fake = FakeRay([2 * GB, 2 * GB])
    makers, failed = placed(fake, ids="0,0,1")
    assert sorted(failed) == [0, 1]
    for error in failed.values():
        assert isinstance(error, DeviceError)
        assert "has a GPU with 0.8 GiB for it, and a run needs about 1.1 GiB" in one_line(error)
    assert [actor.number for actor in fake.actors] == [makers._seats[2].actor.number]
    assert Counter(fake.free) == {0: 1, 10_000: 1}


def test_who_gets_no_gpu_is_not_waited_for_for_ever(monkeypatch):
    """Check a GPU that another run holds."""
    monkeypatch.setattr(cluster_module, "_MOST_SECONDS_TO_A_GPU", 0.05)
    fake = FakeRay([8 * GB, 8 * GB], taken=[10_000])
    makers, failed = placed(fake)
    assert [seat.actor is None for seat in makers._seats] == [False, True]
    assert isinstance(failed[1], WorkerError)
    assert one_line(failed[1]).startswith(f"{makers.label(1)} got no GPU in 0 s")
    assert len(fake.actors) == 1


def test_who_is_placed_again_later_may_find_a_gpu():
    """Check that a refusal is not final."""
    fake = FakeRay([GB, 8 * GB])
    makers, failed = placed(fake)
    assert [*failed] == [0]
    with pytest.raises(DeviceError, match=r"has a GPU with 0\.8 GiB for it") as caught:
        makers.renew(0)
    assert not isinstance(caught.value, WorkerError)
    fake.memory[0] = 8 * GB
    makers._placed(makers._seats[:1])
    assert [seat.actor.number for seat in makers._seats] == [0, 1]


@pytest.mark.parametrize(
    ("listed", "free"),
    [
        ([Gpu("a", "1", 8 * GB, "0000:01:00.0", 5 * GB)], 5 * GB),
        ([Gpu("a", "1", 8 * GB, "0000:02:00.0", 5 * GB)], None),
        ([Gpu("a", "1", 80 * GB, "0000:01:00.0", 70 * GB)], None),  # the device is a slice of this
        ([Gpu("a", "1", None, "0000:01:00.0", 5 * GB)], None),
        ([Gpu("a", "1", 8 * GB, None, 5 * GB)], None),
        ([], None),
    ],
)
def test_what_the_driver_says_is_free_is_of_the_same_gpu(listed, free):
    device = Device("cuda", "a", 0, 8 * GB - GB // 4, "0000:01:00.0")
    assert cluster_module._free_bytes(device, listed) == free
    nowhere = Device("cuda", "a", 0, 8 * GB)
    assert cluster_module._free_bytes(nowhere, [Gpu("a", "1", 8 * GB, None, 5 * GB)]) is None


def test_a_ray_that_takes_no_titles_does_no_harm(monkeypatch):
    monkeypatch.delattr(ray._raylet, "setproctitle")
    actor = cluster_module._Actor(load_settings())
    actor._order = WholeFilm(PlannedVideo(Path("a.mp4"), ()), resume=False)
    actor._show()
