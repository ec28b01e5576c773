"""Pictures read at half cells, against OpenCV's own sampling."""

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitascope.segmentation.people.bodies import HalfSteps

MOVES = st.lists(st.tuples(st.integers(-40, 40), st.integers(-40, 40)), min_size=1, max_size=5)


@given(st.integers(1, 9), st.integers(1, 9), MOVES)
def test_half_steps_read_what_lies_between_cells_and_repeat_the_edge(height, width, moves):
    planes = np.random.default_rng(height * width).random((2, height, width), np.float32)
    rows, columns = np.indices((height, width)).reshape(2, -1)
    steps = HalfSteps(planes)
    read = steps.at(steps.places(rows, columns, np.array(moves)))
    assert read.shape == (2, len(moves), height * width)
    for at, (left, up) in enumerate(moves):
        moved = np.array([[1, 0, -left / 2], [0, 1, -up / 2]])
        wanted = [
            cv2.warpAffine(
                plane,
                moved,
                (width, height),
                flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
                borderMode=cv2.BORDER_REPLICATE,
            )
            for plane in planes
        ]
        assert read[:, at] == pytest.approx(np.reshape(wanted, (2, -1)), abs=1e-6)
