"""Check that jobs use the streams that settings ask for to prepare pictures on a GPU, and give the same video."""

from __future__ import annotations

import av
import numpy as np
import pytest

from clips import write_clip
from photographs import astronaut
from vitascope.segmentation.matting import shots as shots_module
from vitascope.segmentation.segmenter import Segmenter

pytestmark = pytest.mark.cuda


def sliding(n: int):
    """Paint frames with a cut before frame 40."""
    rgb = np.roll(astronaut()[:384, 40:424], n, axis=1)
    return np.ascontiguousarray(rgb if n < 40 else 255 - rgb // 2)


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    path = tmp_path_factory.mktemp("streams") / "in.mp4"
    return write_clip(path, width=384, height=384, frame_count=96, paint=sliding)


def write(clip, out, **settings):
    flags = {"gpu.device": "cuda", "model.name": "rvm", "output.codec": "ffv1", "model.batch_size": 8}
    flags |= {key.replace("__", "."): value for key, value in settings.items()}
    with Segmenter(settings=flags) as segmenter:
        report = segmenter.write(clip, [("mask", out)])
    with av.open(str(out)) as container:
        return report, [frame.to_ndarray(format="gray").astype(int) for frame in container.decode(video=0)]


def test_cuda_streams(clip, tmp_path, monkeypatch, rvm_model_path):
    import cupy

    used = []
    preprocess = shots_module.preprocess

    def noticed(*arguments, **options):
        used.append(cupy.cuda.get_current_stream().ptr)
        return preprocess(*arguments, **options)

    monkeypatch.setattr(shots_module, "preprocess", noticed)
    masks = {}
    for count in (1, 3):
        used.clear()
        settings = {"pipeline__stages__preprocess__cuda_streams": count}
        report, masks[count] = write(clip, tmp_path / f"{count}.mkv", **settings)
        assert len(set(used)) == count
        assert all(len(set(used[n : n + 8])) == 1 for n in range(0, 96, 8))  # one stream a batch
        assert report.scene_cut_count == 1
    worst = max(np.abs(a - b).mean() for a, b in zip(masks[1], masks[3], strict=True))
    assert worst <= 0.05


def test_prefetch_factor(clip, tmp_path, rvm_model_path):
    settings = {"pipeline__stages__preprocess__cuda_streams": 1, "model__prefetch_factor": 1}
    report, masks = write(clip, tmp_path / "o.mkv", **settings)
    before_network = next(queue for queue in report.pipeline.queues if queue.name.startswith("preprocess"))
    assert before_network.occupancy_max == 1
    assert len(masks) == 96
