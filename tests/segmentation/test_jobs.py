"""How large masks are made."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from clips import write_clip
from vitascope.frames import PIXEL_FORMATS
from vitascope.gpu.kernels.region import Region
from vitascope.gpu.kernels.shrink import shrunk_regions
from vitascope.media.reading.reader import probe
from vitascope.segmentation.jobs import can_stay_on_gpu, mask_size


def test_masks_are_narrow_enough_even_and_never_larger_than_the_film(tmp_path):
    info = probe(write_clip(tmp_path / "in.mp4", frame_count=1))

    @given(st.integers(16, 9000), st.integers(8, 5000), st.integers(16, 9000))
    def check(width, height, most):
        size = mask_size(replace(info, width=width, height=height), most)
        if width <= most:
            assert size is None
            return
        assert size[1] <= most
        assert size[0] <= height
        assert size[0] % 2 == size[1] % 2 == 0
        shrunk_regions([Region(0, 0, width, height)], frame_size=(height, width), size=size)

    check()
    assert mask_size(info, None) is None


def test_what_stays_on_the_gpu():
    stays = {name for name, fmt in PIXEL_FORMATS.items() if can_stay_on_gpu(fmt)}
    assert stays == {"yuv420p", "yuv420p10le", "nv12", "p010le"}
