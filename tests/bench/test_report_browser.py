"""Tests of the report in a real browser: on a phone, on a desktop, and on paper.

Skipped if no browser is on PATH; ``VITASCOPE_REQUIRE_BROWSER=1`` makes that a failure.
"""

from __future__ import annotations

import re
from dataclasses import replace

import cv2
import pytest

from headless_browser import Page
from measured_cells import LAPTOP, cell_of, key_of, results_of, with_operators
from vitascope.bench.report import analyse, html_report
from vitascope.bench.results import Cell

PHONE, DESK = 390, 1280
A4_INCHES = (8.27, 11.69)
A4_CONTENT_PIXELS = 718
"""190 mm: A4 without 1 cm on each side, at 96 pixels an inch."""


def full_run(**fields):
    """Make results of the largest suite: every size, batch and precision, on a GPU."""
    cells: list[Cell] = []
    for resolution, fps in (("1080p", 480.0), ("4K", 160.0), ("6K", 70.0), ("8K", 40.0)):
        for precision, gain in (("fp32", 0.6), ("fp16", 1.0)):
            for batch in (1, 4, 8, 16, 32):
                rate = fps * gain * (1 + batch / 40)
                waits = [1e3 / rate * (1 + 0.01 * (n % 17)) * batch for n in range(60)]
                cell = cell_of(key_of(resolution, batch, precision), [rate] * 5, frame_times=waits)
                cells.append(with_operators(cell, network_ms=400 / rate))
    cells[-1] = Cell(
        key=cells[-1].key, status="failed", reason="the GPU has too little memory: 99 GB wanted, 80 GB free"
    )
    return results_of(*cells, **fields)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Write a page about two machines; also returns the numbers of its tables and drawings."""
    folder = tmp_path_factory.mktemp("report")
    runs = [full_run(), replace(full_run(), machine=LAPTOP)]
    analysis = analyse(runs, performance={"target_fps": 100.0})
    path = folder / "benchmark_report.html"
    path.write_text(html_report(analysis), encoding="utf-8")
    tables = sum(bool(section.rows) for section in analysis.sections)
    return path, tables, sum(section.chart is not None for section in analysis.sections)


@pytest.fixture
def page(browser):
    with Page(browser) as opened:
        yield opened


# Elements that extend beyond the right edge, unless they can be scrolled to within the page.
STICKING_OUT = """
Array.from(document.body.querySelectorAll('*')).filter(one =>
    one.getBoundingClientRect().right > innerWidth + 0.5 && !one.closest('.wide')
).map(one => one.outerHTML.slice(0, 80))
"""
# Boxes around tables and drawings that are cut off and cannot be scrolled.
CUT_OFF = """
Array.from(document.querySelectorAll('.wide')).filter(box =>
    box.scrollWidth > box.clientWidth + 1 && !['auto', 'scroll'].includes(getComputedStyle(box).overflowX)
).length
"""


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_on_a_screen(page, report, tmp_path, width):
    path, tables, drawings = report
    page.show(path.as_uri(), width=width, is_phone=width == PHONE)
    assert page.value("document.documentElement.scrollWidth") <= page.value("innerWidth") == width
    assert page.value(STICKING_OUT) == []
    assert page.value(CUT_OFF) == 0
    assert page.requests() == [path.as_uri()]
    assert page.complaints() == []
    assert page.value("document.scripts.length") == 0
    assert page.value("document.querySelectorAll('table').length") == tables > 20
    assert page.value("document.querySelectorAll('svg').length") == drawings == 12
    page.value("document.querySelectorAll('details').forEach(one => one.open = true)")
    empty = "Array.from(document.querySelectorAll('table, svg')).filter(one => one.getBoundingClientRect().height < 20)"
    assert page.value(f"{empty}.length") == 0
    # Text must be readable.
    sizes = page.value(
        "Array.from(document.querySelectorAll('td, li')).map(one => parseFloat(getComputedStyle(one).fontSize))"
    )
    assert min(sizes) >= 12
    assert page.value("document.documentElement.scrollWidth") == width
    page.screenshot(tmp_path / "page.jpg")
    quarter = cv2.imread(str(tmp_path / "page.jpg"), cv2.IMREAD_REDUCED_GRAYSCALE_4)
    assert quarter.shape[1] <= -(-width // 4)
    assert quarter.std() > 10


def test_names_of_rows_stay_in_view_on_a_phone(page, report):
    path, *_ = report
    page.show(path.as_uri(), width=PHONE, is_phone=True)
    moved = page.value("""
        Array.from(document.querySelectorAll('.wide')).filter(box => box.querySelector('table')).map(box => {
            box.scrollLeft = 1e6;
            return [box.scrollLeft, box.querySelector('td').getBoundingClientRect().left -
                box.getBoundingClientRect().left];
        })
    """)
    assert any(scrolled > 50 for scrolled, _ in moved)
    assert all(abs(left) < 1 for _, left in moved)


def test_on_paper(page, report, tmp_path):
    path, *_ = report
    page.show(path.as_uri(), width=A4_CONTENT_PIXELS)
    page.shown.emulate_media(media="print")
    # Paper cannot be scrolled.
    wide = page.value(
        "Array.from(document.querySelectorAll('table, svg, li')).filter(one => "
        "one.getBoundingClientRect().right > document.documentElement.clientWidth + 0.5)"
        ".map(one => one.outerHTML.slice(0, 80))"
    )
    assert wide == []
    width, height = (f"{inches}in" for inches in A4_INCHES)
    margins = dict.fromkeys(("top", "bottom", "left", "right"), "1cm")
    page.shown.pdf(path=tmp_path / "page.pdf", width=width, height=height, margin=margins)
    content = (tmp_path / "page.pdf").read_bytes()
    assert content.startswith(b"%PDF")
    boxes = set(re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", content))
    assert boxes
    for one, other in boxes:  # points; the browser rounds up
        assert (float(one), float(other)) == pytest.approx((595.3, 841.9), abs=1)
    assert len(re.findall(rb"/Type /Page\b", content)) >= 4
    assert page.complaints() == []


def test_a_page_that_is_too_wide_or_loads_something_is_noticed(page, tmp_path):
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<!doctype html><body><div style='width:2000px'>wide</div>"
        "<img src='missing.png'><script>console.error('no')</script></body>"
    )
    page.show(bad.as_uri(), width=DESK)
    assert page.value("document.documentElement.scrollWidth") > DESK
    assert len(page.value(STICKING_OUT)) == 1
    assert len(page.requests()) == 2
    assert any("no" in complaint for complaint in page.complaints())
