"""Tests of the composite's CUDA source and the structures that its launch fills, without a GPU."""

from __future__ import annotations

import ctypes
import itertools
import re

import numpy as np
import pytest

from cuda_sources import architectures, assert_compiles, assert_has_layout, compiled, needs_nvcc
from pictures import random_frame
from vitascope.frames import PIXEL_FORMATS, ColorSpec
from vitascope.gpu.kernels.composite_launch import JOB, color_parameters, describe_cells, describe_eyes
from vitascope.gpu.kernels.cuda_module import SOURCES
from vitascope.gpu.kernels.guided import upright_to_coded
from vitascope.gpu.kernels.region import Region

SOURCE = SOURCES / "composite.cu"


class FakeArray:
    """A NumPy array that returns its address as CuPy's do."""

    def __init__(self, array):
        self.array, self.shape, self.strides, self.itemsize = (
            array,
            array.shape,
            array.strides,
            array.itemsize,
        )
        self.data = self
        self.ptr = array.ctypes.data

    def __getitem__(self, index):
        return FakeArray(self.array[index])


@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
def test_coefficients_are_walked_in_coded_order(degrees):
    """Check that pointers and strides of the struct lead to the cells that ``upright_to_coded`` selects."""
    planes = np.arange(2 * 4 * 3 * 5, dtype=np.float32).reshape(2, 4, 3, 5)[..., ::-1]
    frame = random_frame(PIXEL_FORMATS["nv12"], (16, 32), color=ColorSpec())
    regions = [Region(0, 0, 16, 16), Region(16, 0, 16, 16)]
    job = color_parameters(frame.color, frame.format).copy()
    describe_eyes(job, frame, regions)
    describe_cells(job, regions, FakeArray(planes), FakeArray(planes), degrees)
    for slot, (field, plane) in itertools.product(range(2), (("alpha", 3), ("color", 0))):
        eye = job["eye"][0, slot]
        expected = upright_to_coded(planes[slot, plane], degrees)
        assert (eye["rows"], eye["columns"]) == expected.shape
        for row, column in np.ndindex(expected.shape):
            steps = row * int(eye["gain"]["row"]) + column * int(eye["gain"]["column"])
            address = int(eye["gain"][field]) + planes.itemsize * steps
            assert ctypes.c_float.from_address(address).value == expected[row, column]


VARIANTS = {
    "key": {},
    "key on P010": {"DEEP": 1, "MADE_DEEP": 1, "MADE_SHIFT": 6},
    "planar P010, topleft": {"DEEP": 1, "MADE_DEEP": 1, "PLANAR": 1, "COSITED_Y": 1},
    "replace, centred, half coefficients": {"PAINT": "PAINT_FRAME", "COSITED_X": 0, "COEFFICIENT": "__half"},
    "tint of a given alpha": {"PAINT": "PAINT_TINT", "ALPHA_GIVEN": 1},
    "decontaminated": {"DECONTAMINATE": 1},
    "foreground, odd sizes": {
        "PAINT": "PAINT_FOREGROUND",
        "ALPHA_GIVEN": 1,
        "DECONTAMINATE": 1,
        "WHOLE": 0,
        "SHARED": 0,
    },
    "alpha": {"PAINT": "PAINT_ALPHA"},
    "ten-bit matte": {"PAINT": "PAINT_MATTE", "PLANAR": 1, "MADE_DEEP": 1},
    "weights": {"PAINT": "PAINT_WEIGHTS", "ALPHA_GIVEN": 1, "PLANAR": 1, "DEEP": 1, "MADE_DEEP": 1},
}


@needs_nvcc
@pytest.mark.parametrize("architecture", architectures("composite.cu"))
def test_the_source_compiles_to_ptx(tmp_path, architecture):
    # The compiler warns of constants and branches that a variant does not use.
    several = list(VARIANTS.values())
    assert_compiles(tmp_path, "composite.cu", architecture, ["composite"], several, strict=False)


@needs_nvcc
@pytest.mark.parametrize("variant", ["key", "key on P010"])
def test_a_thread_keeps_its_columns_in_registers(tmp_path, variant):
    """Check that columns do not spill: they would be read from memory again for every row."""
    answer = compiled(tmp_path, SOURCE, "-cubin", "-arch=sm_90", "-Xptxas", "-v", **VARIANTS[variant])
    spilled = re.search(r"(\d+) bytes spill loads", answer.stderr)
    assert spilled is not None, answer.stderr
    assert int(spilled[1]) <= 32


@needs_nvcc
def test_the_struct_has_the_layout_that_the_launch_fills(tmp_path):
    assert_has_layout(tmp_path, SOURCE, {"Job": JOB})
