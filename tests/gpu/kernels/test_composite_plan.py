"""Check that launches patched from frame to frame have the same pointers as new ones."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from vitascope.gpu.kernels.composite_launch import JOB, MAX_EYES, JobArrays, Launch, LaunchPlans, array_layout

NAMES = (
    "luma", "chroma", "behind_luma", "behind_chroma", "alpha", "made_luma", "made_chroma", "gain", "offset",
)  # fmt: skip


def arrays_at(base, *, without=()):
    """Simulate arrays as far as a launch uses them: their addresses and layouts."""
    return JobArrays(
        **{
            name: None
            if name in without
            else SimpleNamespace(
                shape=(8, 16),
                strides=(64, 1),
                dtype=np.dtype(np.uint8),
                data=SimpleNamespace(ptr=base + 4096 * place),
            )
            for place, name in enumerate(NAMES)
        }
    )


def describe(arrays):
    """Describe a job with pointers into the arrays, as for eyes and rotated planes."""
    job = np.zeros(1, JOB)

    def at(name, beyond=0):
        array = getattr(arrays, name)
        return 0 if array is None else array.data.ptr + beyond

    job["frame"][0] = (at("luma"), at("chroma"), 64, 64)
    job["behind"][0] = (at("behind_luma"), at("behind_chroma"), 64, 64)
    job["alpha"] = at("alpha")
    job["result"]["luma"], job["result"]["chroma"], job["result"]["apart"] = (
        at("made_luma"),
        at("made_chroma"),
        99,
    )
    for eye in range(MAX_EYES):
        for name in ("gain", "offset"):
            job["eye"][0, eye][name] = (at(name, 512 * eye + 96), at(name, 512 * eye), 4, 1, 128)
    job["opacity"], job["rows"] = 0.25, 32
    return Launch("kernel", (1, 2, 3), 1024, job)


def test_a_patched_job_is_the_job_described_anew():
    for without in ((), ("behind_luma", "behind_chroma"), ("alpha",), ("gain", "offset"), ("made_chroma",)):
        plans = LaunchPlans()
        for base in (1 << 33, 7 << 33, (1 << 40) + 16):
            arrays = arrays_at(base, without=without)
            launch, job = plans.job("key", arrays, lambda arrays=arrays: describe(arrays))
            assert job.tobytes() == describe(arrays).job.tobytes()
            assert (launch.kernel, launch.grid, launch.shared_bytes) == ("kernel", (1, 2, 3), 1024)


def test_only_a_new_key_is_described():
    plans = LaunchPlans()
    described = []
    for key in ("one", "one", "two", "one", "two"):
        arrays = arrays_at(1 << 33)
        plans.job(key, arrays, lambda arrays=arrays, key=key: described.append(key) or describe(arrays))
    assert described == ["one", "two"]


def test_a_job_that_was_given_out_is_not_written_to_again():
    plans = LaunchPlans()
    first, second = arrays_at(1 << 33), arrays_at(2 << 33)
    plans.job("key", first, lambda: describe(first))
    _, job = plans.job("key", first, lambda: describe(first))
    before = job.tobytes()
    plans.job("key", second, lambda: describe(second))
    assert job.tobytes() == before


def test_the_layout_tells_alignment_but_not_the_place():
    near, far = arrays_at(1 << 33), arrays_at(3 << 33)
    odd = arrays_at((1 << 33) + 8)
    assert array_layout(near.luma) == array_layout(far.luma) != array_layout(odd.luma)
    assert array_layout(None) is None
