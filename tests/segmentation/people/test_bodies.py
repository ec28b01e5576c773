"""Pictures read at half cells, against OpenCV's own sampling."""

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitascope.segmentation.people.bodies import HalfSteps


@given(
    st.integers(1, 9), st.integers(1, 9), st.lists(st.integers(-40, 40), min_size=1, max_size=3), st.data()
)
def test_half_steps_read_what_lies_between_cells_and_repeat_the_edge(height, width, ups, data):
    lefts = data.draw(st.lists(st.integers(-40, 40), min_size=1, max_size=3))
    planes = np.random.default_rng(height * width).random((2, height, width), np.float32)
    rows, columns = np.indices((height, width)).reshape(2, -1)
    steps = HalfSteps(planes)
    read = steps.at(steps.places(rows, columns, np.array(ups), np.array(lefts)))
    assert read.shape == (2, len(ups) * len(lefts), height * width)
    for at, (up, left) in enumerate((up, left) for up in ups for left in lefts):
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
