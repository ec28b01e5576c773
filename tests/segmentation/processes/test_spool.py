"""What waits for its turn comes out as it went in, whether it fits into memory or not."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitascope.errors import OutputError
from vitascope.segmentation.processes import spool as spool_module
from vitascope.segmentation.processes.spool import Spool


def new_spool(folder, most_bytes):
    return Spool(folder, target=folder / "o.mp4", changed=threading.Condition(), most_bytes=most_bytes)


@settings(deadline=None, max_examples=60)
@given(steps=st.lists(st.none() | st.binary(max_size=40), max_size=60), most_bytes=st.integers(0, 100))
def test_first_in_first_out(steps, most_bytes, tmp_path_factory):
    """``None`` in the steps takes one out."""
    folder = tmp_path_factory.getbasetemp()
    spool = new_spool(folder, most_bytes)
    waiting = []
    for step in steps:
        if step is not None:
            spool.put(step)
            waiting.append(step)
        elif waiting:
            assert spool.take() == waiting.pop(0)
        assert spool.has_news() == bool(waiting)
    spool.end()
    for content in waiting:
        assert spool.take() == content
    assert spool.take() is None
    assert spool.has_news()
    spool.close()


def test_nothing_is_left_on_disk(tmp_path):
    spool = new_spool(tmp_path, 0)
    spool.put(b"x" * 1000)
    assert [path for path in tmp_path.iterdir() if path.suffix] == []
    spool.close()
    spool.close()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_one_line(tmp_path, monkeypatch):
    class Full:
        def seek(self, _):
            pass

        def write(self, _):
            raise OSError(28, "No space left on device")

        def close(self):
            pass

    monkeypatch.setattr(spool_module.tempfile, "TemporaryFile", lambda **_: Full())
    spool = new_spool(tmp_path, 0)
    with pytest.raises(OutputError, match=r"o\.mp4.*[Nn]o space left"):
        spool.put(b"x")
