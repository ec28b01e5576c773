from __future__ import annotations

from vitascope.segmentation.processes.cluster import FilmAtWork


def test_how_long_a_film_takes_yet():
    one = FilmAtWork("a.mp4", 2, 4, 400, 1, 0, 50, 10.0)
    both = one.and_another(FilmAtWork("a.mp4", 3, 4, 400, 1, 1, 25, 15.0))
    assert both.seconds_left == (400 - 300 - 75) / 25
    assert both.line() == "a.mp4: 3 of 4 stretches done, 2 running, 1 failed; 25.0 frames/s, 1 s left"
    assert FilmAtWork("a.mp4", 0, 4, None, 1, 0, 5, 10.0).seconds_left is None
