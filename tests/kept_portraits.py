"""People of portraits that stay found from test to test: half of the time to open an animator goes into finding one.

Dozens of tests open the same portrait. How its person is found is tested in ``tests/animation/mesh/test_head.py``,
which calls what finds it by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

_found: dict[tuple[object, ...], Any] = {}


@contextmanager
def kept_portraits() -> Iterator[None]:
    """Share the person of a portrait opened inside the block with earlier ones."""
    from vitascope.animation.mesh import animator  # imported here, as most tests open no portrait

    find = animator.find_person

    def found_before(rgb: Any, rig: Any) -> Any:
        key = rgb.tobytes(), rig.face.landmarks.tobytes(), rig.size, rig.box, rig.face_height
        if key not in _found:
            _found[key] = find(rgb, rig)
        return None if _found[key] is None else _found[key].copy()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(animator, "find_person", found_before)
        yield


@pytest.fixture(scope="module", autouse=True)
def people_stay_found() -> Iterator[None]:
    """Share people in the tests of a folder or a file: import this into its ``conftest.py``, or into the file."""
    with kept_portraits():
        yield
