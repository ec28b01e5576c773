"""Tests of the page in a real browser, from a video to its cut: what a user sees, clicks, paints and presses.

Skipped if no browser is on PATH; ``VITASCOPE_REQUIRE_BROWSER=1`` makes that a failure.
"""

from __future__ import annotations

import json
import os
import random
import re
import threading

import numpy as np
import pytest
from driven_page import StudioPage, faults

from clips import write_clip
from two_people import two_people
from vitascope.config import load_settings
from vitascope.config.hints import read_hints
from vitascope.gpu.kernels.shrink import shrink_frame
from vitascope.media.metadata.spherical import set_rotation
from vitascope.media.reading.reader import open_video
from vitascope.segmentation.layout import vr_of
from vitascope.segmentation.people.choice import Choice
from vitascope.segmentation.people.hinted import Keeping
from vitascope.segmentation.people.scan import FacesNowAndThen
from vitascope.studio import library, proxies, server
from vitascope.studio.previews import Previews
from waiting import eventually

DESK, PHONE, NARROW = 1280, 390, 360


KEY, BLACK, WHITE = (120, 255, 155), (0, 0, 0), (255, 255, 255)


@pytest.fixture
def page(browser):
    with StudioPage(browser) as opened:
        yield opened


def test_from_a_film_to_its_cut(page, studio, films):
    page.show(studio.opened.address, width=DESK)
    # A single video opens at once, on green.
    page.until("document.querySelector('#film-name').innerText === 'wedding.mp4'")
    assert page.value("location.search").startswith("?film=")  # the token is removed from the address
    page.until_color(0.5, 0.1, KEY)
    page.until("document.querySelectorAll('#thumbs img.there').length > 3")

    # Look for people.
    page.click("#people-empty .primary")
    page.until("document.querySelectorAll('.person').length === 2")
    page.press("2")  # the matte
    page.until_color(20 / 96, 0.6, WHITE)

    # A click in the picture leaves a person out; Z undoes it; the strip does the same.
    page.drag("#picture", [(20 / 96, 0.6)])
    page.until_color(20 / 96, 0.6, BLACK)
    assert page.value("document.querySelector('[data-person=\"1\"]').getAttribute('aria-checked')") == "false"
    page.until("document.querySelector('#saved').innerText === 'Saved in wedding.hints.yaml'")
    assert read_hints(films / "wedding.hints.yaml").people[0].exclude == (1,)
    page.press("z")
    page.until_color(20 / 96, 0.6, WHITE)
    page.press("Shift+Z")
    page.until_color(20 / 96, 0.6, BLACK)
    page.until_color(76 / 96, 0.6, WHITE)

    # A brush removes what it paints over.
    page.click("#tab-touch")
    page.click("#brushes button:nth-child(2)")
    for _ in range(6):
        page.press("]")
    page.drag("#picture", [(76 / 96, 0.5), (76 / 96, 0.7), (76 / 96, 0.9)])
    page.until_color(76 / 96, 0.75, BLACK)
    page.until("document.querySelectorAll('#strokes .go').length === 1")
    page.click("#strokes .icon")
    page.until_color(76 / 96, 0.75, WHITE)

    # Draw a box that is never kept.
    page.click("#brushes button:nth-child(3)")
    page.drag("#picture", [(0.6, 0.1), (0.8, 0.5), (0.99, 0.99)])
    page.until_color(76 / 96, 0.75, BLACK)
    page.until("document.querySelector('#boxes .icon') !== null")
    page.press("z")
    page.until_color(76 / 96, 0.75, WHITE)

    # Move an edge slider.
    page.click("#tab-edges")
    page.value("document.querySelector('#edge-sliders input').focus()")
    page.press("ArrowRight")
    page.until("document.querySelector('#edge-sliders output').innerText === '+0.5 px'")
    page.until("document.querySelector('#saved').innerText.startsWith('Saved')")

    # Cut; check the result in the page, and the command's file.
    page.click("#tab-cut")
    page.click("#kinds label:nth-child(3)")
    page.click("#order .primary")
    page.until("document.querySelector('[data-does^=play]') !== null")
    assert (films / "wedding_mask.mp4").is_file()
    page.click("[data-does^=play]")
    page.until("document.querySelector('#player-dialog').open")
    hints = read_hints(films / "wedding.hints.yaml")
    assert hints.people[0].exclude == (1,)
    assert hints.edges.grow_px == 0.5
    assert not hints.marks
    assert faults(page) == []


def test_it_is_all_there_again_tomorrow(page, studio, films):
    film = studio.film()
    studio.job(studio.order(film, task="people"))
    studio.correct(film, {"people": [{"exclude": [2]}], "edges": {"feather_px": 2.0}})
    page.show(studio.opened.address, width=DESK)
    page.until("document.querySelector('[data-person=\"2\"]')?.getAttribute('aria-checked') === 'false'")
    page.click("#tab-edges")
    page.until("document.querySelectorAll('#edge-sliders output')[1].innerText === '+2 px'")
    page.click("#tab-cut")
    page.until("document.querySelectorAll('.job').length === 1")


def test_a_person_is_left_out_of_one_shot(page, studio, films):
    (films / "wedding.mp4").unlink()

    def two_shots(n):
        return two_people(n) if n < 24 else np.flip(two_people(n - 24), 1) // 2 + 100

    write_clip(films / "spliced.mp4", width=96, height=64, frame_count=48, paint=two_shots)
    film = studio.film("spliced.mp4")
    studio.job(studio.order(film, task="people"))
    page.show(studio.opened.address, width=DESK)
    page.until("document.querySelectorAll('#notches i').length === 1")
    page.until("document.querySelectorAll('.person').length > 1")
    page.press("ArrowDown")
    page.until("document.querySelector('#clock').innerText.startsWith('0:01.00')")
    page.click("#people-scope button:last-child")
    page.click("[data-person]")
    page.until("document.querySelector('#saved').innerText.startsWith('Saved')")
    (rule,) = read_hints(films / "spliced.hints.yaml").people
    assert (rule.from_, rule.to) == (1.0, None)
    page.click("#people-scope button:first-child")
    page.until("document.querySelector('[data-person] .state').innerText === 'In part'")


def test_one_person_alone_is_kept_by_one_click_and_everyone_by_another(page, studio, films):
    film = studio.film()
    studio.job(studio.order(film, task="people"))
    page.show(studio.opened.address, width=DESK)
    page.until("document.querySelectorAll('.person').length === 2")
    states = "[...document.querySelectorAll('.person .state')].map((one) => one.innerText).join()"
    page.press("2")
    page.click("[aria-label='Keep only person 2']")
    page.until(f"{states} === 'Left out,Kept'")
    page.until_color(20 / 96, 0.6, BLACK)
    page.until_color(76 / 96, 0.6, WHITE)
    page.click("[aria-label='Keep only person 1']")
    page.until(f"{states} === 'Kept,Left out'")
    page.until_color(76 / 96, 0.6, BLACK)  # the picture shows what was saved
    assert [rule.exclude for rule in read_hints(films / "wedding.hints.yaml").people] == [(2,)]
    page.press("z")
    page.until(f"{states} === 'Left out,Kept'")
    page.click("#people-all button")
    page.until(f"{states} === 'Kept,Kept'")
    page.until("document.querySelector('#people-all button') === null")
    page.until_color(20 / 96, 0.6, WHITE)
    assert faults(page) == []


def test_a_stroke_on_a_picture_that_has_no_matte_yet_is_of_that_picture(page, studio, films, monkeypatch):
    film, go_on, matted = studio.film(), threading.Event(), Previews._matted
    studio.job(studio.order(film, task="people"))
    page.show(studio.opened.address, width=DESK)
    page.until("document.querySelectorAll('.person').length === 2")
    page.until_color(0.5, 0.1, KEY)
    page.click("#tab-touch")
    monkeypatch.setattr(Previews, "_matted", lambda *asked: go_on.wait(60) and matted(*asked))
    try:
        before = page.value("document.querySelector('#shown').src")
        page.press("End")
        page.until(
            f"document.querySelector('#shown').src !== {before!r}"
        )  # the source, until its matte exists
        page.drag("#picture", [(0.2, 0.5), (0.2, 0.7)])
        page.until("document.querySelectorAll('#strokes .go').length === 1")
        page.until("document.querySelector('#saved').innerText.startsWith('Saved')")
    finally:
        go_on.set()
    (mark,) = read_hints(films / "wedding.hints.yaml").marks
    assert mark.at == pytest.approx(film["seconds"], abs=0.1)


def test_another_window_is_told_of_and_the_user_chooses(page, studio, films):
    film = studio.film()
    studio.job(studio.order(film, task="people"))
    page.show(studio.opened.address, width=DESK)
    page.until("document.querySelectorAll('.person').length === 2")
    assert studio.correct(film, {"people": [{"exclude": [1]}]}).status == 200
    page.until("document.querySelector('#banner').innerText.includes('changed in another window')")
    page.click("#banner button:nth-of-type(1)")  # take that
    page.until("document.querySelector('[data-person=\"1\"]').getAttribute('aria-checked') === 'false'")
    # Edited by hand, without an event: the next change in this window detects it, and may be kept.
    (films / "wedding.hints.yaml").write_text("people:\n  - exclude: 2\n")
    page.click('[data-person="1"]')
    page.until("document.querySelector('#banner').innerText.includes('changed in another window')")
    page.click("#banner button:nth-of-type(2)")  # keep mine
    page.until("document.querySelector('#saved').innerText.startsWith('Saved')")
    assert read_hints(films / "wedding.hints.yaml").people == ()
    # Unsaved changes are discarded for the file's: nothing is left to save.
    (films / "wedding.hints.yaml").write_text("people:\n  - exclude: 2\n")
    page.click('[data-person="1"]')
    page.until("document.querySelector('#saved').innerText === 'Not saved'")
    page.click("#banner button:nth-of-type(1)")
    page.until("document.querySelector('[data-person=\"2\"]').getAttribute('aria-checked') === 'false'")
    assert page.text("#saved") == ""


@pytest.mark.parametrize("is_slow", [False, True])
def test_a_double_click_begins_one_job_and_does_not_stop_it(page, studio, monkeypatch, is_slow):
    """After the first click another button takes the place of the first."""
    go_on, look = threading.Event(), FacesNowAndThen.__call__
    monkeypatch.setattr(FacesNowAndThen, "__call__", lambda *seen: go_on.wait(60) and look(*seen))
    page.show(studio.opened.address, width=DESK)
    page.until("document.querySelector('#people-empty .primary') !== null")
    # No time passes between the clicks, however busy the machine is.
    page.value("void Object.defineProperty(Event.prototype, 'timeStamp', { get: () => 1000 })")
    mouse, box = page.shown.mouse, page.shown.locator("#people-empty .primary").bounding_box()
    place = box["x"] + box["width"] / 2, box["y"] + 6
    try:
        mouse.click(*place)
        if is_slow:
            page.until("document.querySelector('#people-empty .quiet') !== null")
            assert page.value(f"document.elementFromPoint({place[0]}, {place[1]}).innerText") == "Stop"
        mouse.click(*place)
    finally:
        go_on.set()
    page.until("document.querySelectorAll('.person').length === 2")
    assert [job["state"] for job in studio.get("/api/jobs").json["jobs"]] == ["done"]


def test_an_error_made_by_hand_is_shown_with_its_line(page, studio, films):
    hints = films / "wedding.hints.yaml"
    hints.write_text("version: 1\npeople:\n  - kept: 1\n")
    page.show(studio.opened.address, width=DESK)
    page.until("document.querySelector('#banner').innerText.includes('wedding.hints.yaml:3: people[0].kept')")
    page.click("#tab-edges")
    assert page.value("document.querySelector('#edge-sliders input').disabled")
    hints.write_text("version: 1\nedges:\n  grow_px: 3\n")
    page.click("#banner button")
    page.until("document.querySelector('#edge-sliders output').innerText === '+3 px'")


LOST = "document.querySelector('#link').innerText.includes('connection to Vitascope is lost')"
THERE = "document.querySelector('#link').hidden"


def test_a_lost_connection_is_told_and_the_page_comes_back_by_itself(page, serving, studio, films):
    film = studio.film()
    studio.job(studio.order(film, task="people"))
    page.show(studio.opened.address, width=DESK)
    page.until_color(0.5, 0.1, KEY)
    page.until("document.querySelectorAll('.person').length === 2")
    assert page.value(THERE)
    studio.end()
    page.until(LOST)
    page.click("#to-library")  # the list cannot be reached
    page.until("document.querySelector('#toasts').innerText.includes('Vitascope cannot be reached')")
    assert page.value("!document.querySelector('#editor').hidden")
    # The page keeps what is changed meanwhile, and saves it once it can.
    page.click('[data-person="1"]')
    page.until("document.querySelector('#saved').innerText === 'Not saved yet'")
    assert page.value("document.querySelector('#banner').hidden")  # one banner is enough
    assert not (films / "wedding.hints.yaml").exists()
    again = serving(films, port=studio.port)
    page.until(THERE)
    page.until("document.querySelector('#saved').innerText === 'Saved in wedding.hints.yaml'")
    assert page.value("document.querySelector('#banner').hidden")
    assert read_hints(films / "wedding.hints.yaml").people[0].exclude == (1,)
    page.press("2")
    page.until_color(20 / 96, 0.6, BLACK)
    page.until_color(76 / 96, 0.6, WHITE)
    # Events arrive again, too.
    again.job(again.order(film, task="cut", kind="mask"))
    page.click("#tab-cut")
    page.until("document.querySelectorAll('.job [data-does^=play]').length === 1")


def test_what_another_window_wrote_while_the_connection_was_lost_is_told(page, serving, studio, films):
    page.show(studio.opened.address, width=DESK)
    page.until_color(0.5, 0.1, KEY)
    studio.end()
    page.until(LOST)
    (films / "wedding.hints.yaml").write_text("edges:\n  grow_px: 3\n")
    serving(films, port=studio.port)
    page.until("document.querySelector('#banner').innerText.includes('changed in another window')")
    page.click("#banner button:nth-of-type(1)")  # take that
    page.click("#tab-edges")
    page.until("document.querySelector('#edge-sliders output').innerText === '+3 px'")


LOSING = """(() => {
  const fetched = window.fetch;
  window.saves = 0;
  window.savedAt = [];
  window.fetch = async (path, how) => {
    if (how?.method !== "PATCH") return fetched(path, how);
    window.saves += 1;
    window.savedAt.push(performance.now());
    const { loses } = window;
    if (loses === "saves") throw new TypeError("Failed to fetch");
    const answer = await fetched(path, how);
    if (loses === "answers") throw new TypeError("Failed to fetch");
    return loses === "sense" ? new Response("what?") : answer;
  };
})()"""
"""Counts saves, and loses them as ``window.loses`` says: before they arrive, or their answers."""
SOON = """(() => {
  const wait = window.setTimeout;
  window.shortened = 0;
  window.setTimeout = (call, ms, ...more) => {
    window.shortened += ms === 3000;
    return wait(call, ms === 3000 ? 300 : ms, ...more);
  };
})()"""
"""Shortens the page's delay before it saves again from 3 s to 0.3 s."""
SAVED = "document.querySelector('#saved').innerText === 'Saved in wedding.hints.yaml'"
NOT_YET = "document.querySelector('#saved').innerText === 'Not saved yet'"
CLASH = "document.querySelector('#banner').innerText.includes('changed in another window')"


def grow(page, steps):
    page.click("#tab-edges")
    page.value("document.querySelector('#edge-sliders input').focus()")
    for _ in range(steps):
        page.press("ArrowRight")


def test_saves_that_fail_are_tried_again_by_one_timer(page, studio, films):
    page.show(studio.opened.address, width=DESK)
    page.until_color(0.5, 0.1, KEY)
    page.value(LOSING)
    page.value(SOON)
    page.value("window.loses = 'saves'")
    grow(page, 12)
    page.until(NOT_YET)
    before = page.value("window.saves")
    page.until(f"window.saves >= {before + 2}")
    # Each attempt waits its time after the previous one, however many steps failed.
    assert min(np.diff(page.value("window.savedAt")[before - 1 :])) > 290
    assert page.value("window.shortened") >= 2
    page.value("window.loses = null")
    page.until(SAVED)
    assert read_hints(films / "wedding.hints.yaml").edges.grow_px == 6
    after = page.value("window.saves")
    page.shown.wait_for_timeout(1000)
    assert page.value("window.saves") == after


def test_a_save_that_fails_otherwise_is_said_and_not_taken_for_a_lost_connection(page, studio, films):
    page.show(studio.opened.address, width=DESK)
    page.until_color(0.5, 0.1, KEY)
    page.value(LOSING)
    page.value(SOON)
    page.value("window.loses = 'sense'")
    grow(page, 1)
    page.until("document.querySelector('#banner').innerText.includes('Not saved: ')")
    assert page.text("#saved") == "Not saved"
    page.shown.wait_for_timeout(1000)
    assert page.value("window.saves") == 1
    page.value("window.loses = null")
    page.click("#banner button")
    page.until(SAVED)
    assert page.value("document.querySelector('#banner').hidden")
    assert read_hints(films / "wedding.hints.yaml").edges.grow_px == 0.5


@pytest.mark.parametrize("is_written_over", [False, True])
def test_a_save_of_which_the_answer_alone_was_lost_is_no_other_window(page, studio, films, is_written_over):
    hints = films / "wedding.hints.yaml"
    studio.job(studio.order(studio.film(), task="people"))
    page.show(studio.opened.address, width=DESK)
    page.until("document.querySelectorAll('.person').length === 2")
    page.until_color(0.5, 0.1, KEY)
    page.value(LOSING)
    page.value("window.loses = 'answers'")
    page.click("#tab-touch")
    page.drag("#picture", [(0.2, 0.5), (0.2, 0.7)])
    page.until(NOT_YET)
    assert len(read_hints(hints).marks) == 1
    if is_written_over:
        hints.write_text("edges:\n  feather_px: 3\n")
    page.value("window.loses = 'saves'")
    grow(page, 2)
    page.value("window.loses = null")
    if is_written_over:
        page.until(CLASH)
        page.click("#banner button:nth-of-type(2)")  # keep mine
    page.until(SAVED)
    assert page.value("document.querySelector('#banner').hidden")
    written = read_hints(hints)
    assert (len(written.marks), written.edges.grow_px) == (1, 1)
    assert faults(page) == []


def open_film(page, name):
    page.until(f"[...document.querySelectorAll('.card')].some((one) => one.innerText.includes({name!r}))")
    page.value(
        f"[...document.querySelectorAll('.card')].find((one) => one.innerText.includes({name!r})).click()"
    )
    page.until(f"document.querySelector('#film-name').innerText === {name!r}")
    page.until("document.querySelector('#shown').naturalWidth > 0")  # of the corrections that were read


def test_what_is_not_saved_of_a_film_that_is_left_is_saved_once_it_can_be(page, studio, films):
    write_clip(films / "guests.mp4")
    hints = films / "wedding.hints.yaml"
    page.show(studio.opened.address.partition("&")[0], width=DESK)
    open_film(page, "wedding.mp4")
    page.value(LOSING)
    page.value(SOON)
    page.value("window.loses = 'saves'")
    grow(page, 2)
    page.until(NOT_YET)
    with page.shown.expect_event("dialog") as asked:  # closing the page would lose unsaved changes
        page.value("setTimeout(() => location.reload())")
    asked.value.dismiss()
    page.click("#to-library")
    open_film(page, "guests.mp4")
    page.value("window.loses = null")
    page.until("document.querySelector('#toasts').innerText.includes('Saved in wedding.hints.yaml')")
    assert read_hints(hints).edges.grow_px == 1
    assert page.text("#saved") == ""
    assert not (films / "guests.hints.yaml").exists()
    # A user who returns before it is saved finds their changes.
    page.click("#to-library")
    open_film(page, "wedding.mp4")
    page.value("window.loses = 'saves'")
    grow(page, 1)
    page.until(NOT_YET)
    page.click("#to-library")
    open_film(page, "wedding.mp4")
    page.until("document.querySelector('#edge-sliders output').innerText === '+1.5 px'")
    page.until(NOT_YET)
    # Another window's change is reported on every page; the choice is made in the editor.
    page.click("#to-library")
    open_film(page, "guests.mp4")
    hints.write_text("edges:\n  grow_px: 4\n")
    page.value("window.loses = null")
    page.until("document.querySelector('#banner').innerText.includes('Changes of wedding.mp4 are not saved')")
    page.click("#banner button")
    page.until("document.querySelector('#film-name').innerText === 'wedding.mp4'")
    page.until(CLASH)
    page.click("#banner button:nth-of-type(2)")  # keep mine
    page.until(SAVED)
    assert read_hints(hints).edges.grow_px == 1.5
    assert faults(page) == []


def test_a_browser_that_is_not_known_any_more_is_told_what_to_do(page, serving, studio, films, home):
    page.show(studio.opened.address, width=DESK)
    page.until_color(0.5, 0.1, KEY)
    studio.end()
    page.until(LOST)
    (home / "studio" / "cookie.key").unlink()
    again = serving(films, port=studio.port)
    page.until("document.querySelector('#link').innerText.includes('Open the address in the terminal')")
    page.show(again.opened.address, width=DESK)
    page.until_color(0.5, 0.1, KEY)
    assert page.value(THERE)


def test_a_page_of_another_version_says_so(page, studio, monkeypatch):
    page.show(studio.opened.address, width=DESK)
    page.until_color(0.5, 0.1, KEY)
    monkeypatch.setattr(server, "__version__", "99.0")
    studio.order(studio.film(), task="people")  # its events carry the version
    page.until("document.querySelector('#banner').innerText.includes('has been updated')")
    page.click("#banner button")
    page.until("document.querySelector('[name=vitascope-version]')?.content === '99.0'")
    assert page.value("document.querySelector('#banner').hidden")


def test_a_file_that_is_added_is_in_the_folder_and_in_the_list(page, studio, films):
    write_clip(films / "guests.mp4")
    page.show(studio.opened.address, width=DESK)
    page.until("document.querySelectorAll('.card').length === 2")
    page.value(
        "(() => { const dropped = new DataTransfer(); "
        "dropped.items.add(new File([new Uint8Array(3e6)], '../dance.mp4')); "
        "document.dispatchEvent(new DragEvent('drop', { dataTransfer: dropped, bubbles: true })); })()"
    )
    page.until("document.querySelectorAll('.card').length === 3")
    assert (films / "dance.mp4").stat().st_size == 3_000_000
    assert not page.value("document.querySelectorAll('#uploads li').length")


def test_a_file_for_which_the_disk_has_no_room_is_named_once(page, studio, monkeypatch):
    monkeypatch.setattr(library, "_LEFT_FREE_BYTES", 1 << 62)
    page.show(studio.opened.address, width=DESK)
    page.value(
        "(() => { const dropped = new DataTransfer(); "
        "dropped.items.add(new File([new Uint8Array(9)], 'dance.mp4')); "
        "document.dispatchEvent(new DragEvent('drop', { dataTransfer: dropped, bubbles: true })); })()"
    )
    page.until("document.querySelector('#toasts').innerText !== ''")
    assert page.text("#toasts").strip() == "dance.mp4: there is no space left on the disk"


@pytest.mark.parametrize("width", [NARROW, PHONE, 768, DESK])
def test_it_fits_and_everything_has_a_name(page, portrait_studio, films, width):
    write_clip(films / "a very long name of a film that somebody once gave it in a hurry.mp4")
    page.show(portrait_studio.opened.address, width=width, is_phone=width < 500)
    page.until("document.querySelectorAll('.card img').length === 2")
    page.click("#modes button:last-child")
    page.until("document.querySelector('#animated').naturalWidth > 0")
    assert page.value("document.documentElement.scrollWidth") <= width
    page.click("#to-library")
    page.until("!document.querySelector('#library').hidden")
    assert page.value("document.documentElement.scrollWidth") <= width
    page.click(".card")
    page.until("!document.querySelector('#editor').hidden")
    for tab in ("people", "touch", "edges", "cut"):
        page.click(f"#tab-{tab}")
        page.until(f"!document.querySelector('#{tab}').hidden")
        assert page.value("document.documentElement.scrollWidth") <= width, tab
    told = page.shown.locator("body").aria_snapshot()
    controls = re.findall(r"- ((?:button|slider|radio|tab|combobox|checkbox|switch)\b.*)", told)
    assert len(controls) > 10
    assert [control for control in controls if not re.match(r'\w+ "\S', control)] == []
    assert faults(page) == []


def test_a_folder_of_many_films_is_listed_whole(page, studio, films):
    for number in range(39):
        os.link(films / "wedding.mp4", films / f"guests {number}.mp4")
    (films / "notes.mp4").write_bytes(b"no film")
    page.show(studio.opened.address, width=DESK)
    page.until("document.querySelectorAll('.card').length === 41")
    page.until(
        "[...document.querySelectorAll('.card small')].filter((one) => one.innerText.includes('96 × 64')).length === 40"
    )
    assert "notes.mp4" in page.text(".card.broken")
    assert page.value("document.querySelectorAll('.card.broken').length") == 1


def test_who_looks_around_in_vr_clicks_and_paints_what_is_seen(page, studio, films):
    """Check a person 31 to 54 degrees to the right; 40 degrees are at 0.92 of a view of 90 degrees."""
    (films / "wedding.mp4").unlink()

    def somebody(n):
        eye = np.full((128, 128, 3), (30, 50, 40), np.uint8)
        eye[40:100, 86 + n // 8 : 103 + n // 8] = (250, 230, 90)
        return np.hstack([eye, eye])

    write_clip(films / "dance_LR_180.mp4", width=256, height=128, frame_count=16, paint=somebody)
    film = studio.film("dance_LR_180.mp4")
    studio.job(studio.order(film, task="people"))
    page.show(studio.opened.address, width=DESK)
    page.until("document.querySelectorAll('.person').length === 1")
    page.press("2")
    page.click("#look")
    page.until(
        "(({ naturalWidth: w, naturalHeight: h }) => w * 9 === h * 16)(document.querySelector('#shown'))"
    )
    page.until_color(0.92, 0.5, WHITE)
    page.drag("#picture", [(0.92, 0.5)])
    page.until_color(0.92, 0.5, BLACK)
    page.press("z")
    page.until_color(0.92, 0.5, WHITE)
    # Turn the view to the right, until the person is in its middle.
    page.drag("#picture", [(0.7, 0.5), (0.5, 0.5), (0.7 - 40 / 90, 0.5)])
    page.until_color(0.5, 0.5, WHITE)
    page.click("#tab-touch")
    page.click("#brushes button:nth-child(2)")
    for _ in range(6):  # the scripted network has few cells
        page.press("]")
    page.drag("#picture", [(0.5, 0.3), (0.5, 0.5), (0.5, 0.7)])
    page.until_color(0.5, 0.5, BLACK)
    (mark,) = read_hints(films / "dance_LR_180.hints.yaml").marks
    assert np.array(mark.stroke)[:, 0] == pytest.approx(0.5 + 40 / 180, abs=0.01)
    assert mark.stroke[0][1] < 0.5 < mark.stroke[-1][1]
    assert mark.eye == "left"
    assert faults(page) == []


def test_what_cannot_be_opened_is_offered_as_no_driver(page, portrait_studio, films):
    (films / "a.mp4").write_bytes(b"no video")
    page.show(portrait_studio.opened.address, width=DESK)
    page.until("document.querySelectorAll('.card.broken').length === 1")
    page.click("#modes button:nth-child(2)")
    named = "[...document.querySelectorAll('#driver option')].map((option) => option.innerText)"
    page.until(f"{named}.length > 0")
    assert page.value(named) == ["wedding.mp4", "talk.motion"]


def test_a_portrait_is_chosen_moved_and_recorded(page, portrait_studio, films):
    page.show(portrait_studio.opened.address, width=DESK)
    page.click("#modes button:last-child")
    shown = "document.querySelector('#animated')"
    page.until("document.querySelector('#driver').options.length === 2")
    page.value(
        "(() => { const driver = document.querySelector('#driver'); driver.value = driver.options[1].value; "
        "driver.dispatchEvent(new Event('change')); })()"
    )
    page.until(f"{shown}.naturalWidth > 0 && Number(document.querySelector('#animate-time').max) > 1")
    page.until("document.querySelector('#animate-note').hidden")
    # At this moment the mouth is open; the expression slider closes it.
    still = page.value(f"{shown}.src")
    page.value(
        "(() => { const time = document.querySelector('#animate-time'); time.value = 1.2; "
        "time.dispatchEvent(new Event('input')); })()"
    )
    page.until(f"{shown}.src !== {still!r}")
    moved = page.value(f"{shown}.src")
    page.value("document.querySelector('#expression').focus()")
    page.press("ArrowLeft")
    page.until(f"{shown}.src !== {moved!r}")
    page.until("document.querySelector('#expression-out').innerText === '95 %'")
    page.click("#animate-play")
    page.until("Number(document.querySelector('#animate-time').value) > 1.5")
    page.click("#animate-play")
    page.click("#record .primary")
    page.until("document.querySelector('#animate-jobs [data-does^=play]') !== null", seconds=240)
    assert (films / "astronaut_talk.mp4").is_file()
    assert page.value("document.querySelector('#animate-jobs a[href^=\"/headset\"]') === null")
    page.click("[data-does^=play]")
    page.until(
        "document.querySelector('#player-dialog').open && document.querySelector('#result').videoWidth > 0"
    )
    assert faults(page) == []


@pytest.mark.parametrize(
    ("name", "codec", "pixel_format", "why"),
    [
        ("old.avi", "mpeg4", "yuv420p", "browsers cannot read avi files"),
        ("camera.mp4", "libx265", "yuv420p10le", "this browser cannot play it"),
    ],
)
def test_a_video_that_the_browser_cannot_play_is_played_as_a_copy(
    page, studio, films, name, codec, pixel_format, why
):
    write_clip(films / name, codec=codec, pixel_format=pixel_format, frame_count=48, audio="aac")
    page.show(studio.opened.address.partition("&")[0], width=DESK)
    page.until("document.querySelectorAll('.card img').length === 2")
    page.value(
        f"[...document.querySelectorAll('.card')].find((one) => one.innerText.includes({name!r})).click()"
    )
    page.until(f"document.querySelector('#film-name').innerText === {name!r}")
    page.click("#watch")
    page.until("document.querySelector('#result').videoWidth === 96", seconds=90)
    page.until("!document.querySelector('#result').hidden")
    assert page.text("#result-note") == f"{name}. A smaller copy is shown: {why}."
    assert page.value("document.querySelector('#result').src.endsWith('/proxy')")
    page.until("document.querySelector('#result').ended")
    assert page.value("document.querySelector('#result').duration") == pytest.approx(2, abs=0.1)
    assert [line for line in faults(page) if "media" not in line] == []


def test_how_far_a_copy_is_can_be_seen(page, studio, films, monkeypatch):
    go_on = threading.Event()

    def slow(frame, **how):
        if frame.index == 30:
            go_on.wait(60)
        return shrink_frame(frame, **how)

    monkeypatch.setattr(proxies, "shrink_frame", slow)
    monkeypatch.setattr(proxies, "_proxy_size", lambda info: (info.height // 2, info.width // 2))
    write_clip(films / "old.avi", codec="mpeg4", frame_count=60)
    page.show(studio.opened.address.partition("&")[0], width=PHONE, is_phone=True)
    page.until("document.querySelectorAll('.card').length === 2")
    page.click("#films li:first-child .card")
    page.until("document.querySelector('#film-name').innerText === 'old.avi'")
    page.click("#watch")
    page.until(
        "document.querySelector('#result-note').innerText.includes('A copy that plays is being made, once')"
    )
    page.until("!document.querySelector('#result-meter').hidden && document.querySelector('#result').hidden")
    page.until("Number(document.querySelector('#result-meter').getAttribute('aria-valuenow')) > 1")
    assert page.value("document.documentElement.scrollWidth") <= PHONE
    go_on.set()
    page.until("document.querySelector('#result').videoWidth === 48")
    assert page.value("document.querySelector('#result-meter').hidden")


def test_a_video_that_the_browser_plays_is_played_itself_from_where_one_is(page, studio):
    page.show(studio.opened.address, width=DESK)
    page.until_color(0.5, 0.1, KEY)
    page.press("End")
    page.until("document.querySelector('#clock').innerText.startsWith('0:00.79')")
    page.click("#watch")
    page.until("document.querySelector('#result').videoWidth === 96")
    assert page.value("document.querySelector('#result').src.endsWith('/media')")
    page.until("document.querySelector('#result').currentTime > 0.7")
    assert page.text("#result-note") == "wedding.mp4"
    assert faults(page) == []


def test_keys_move_through_the_film(page, studio):
    page.show(studio.opened.address, width=DESK)
    page.until_color(0.5, 0.1, KEY)
    begin = "document.querySelector('#clock').innerText"
    page.press("ArrowRight")
    page.until(f"{begin}.startsWith('0:00.04')")
    page.until("document.querySelector('#timeline').getAttribute('aria-valuenow') === '0.04'")
    page.press("End")
    page.until(f"{begin}.startsWith('0:00.79')")
    page.press("Home")
    page.until(f"{begin}.startsWith('0:00.00')")
    page.press("l")
    page.until(
        "document.querySelector('.playing') !== null || document.querySelector('#clock').innerText > '0:00.5'"
    )
    page.until("document.querySelector('.playing') === null")  # it stops at the end
    page.until(f"{begin}.startsWith('0:00.79')")


def test_who_is_kept_between_two_times_is_what_each_moment_says(page, studio):
    """Check the page's single pass through the rules in time order against all rules at each moment."""
    page.show(studio.opened.address, width=DESK)
    page.value("void import('/page/corrections.js').then((module) => { window.rules = module; })")
    page.until("window.rules !== undefined")
    wrong = page.value(
        """(() => {
          let seed = 25;
          const any = (count) => { seed = (seed * 48271) % 2147483647; return seed % count; };
          for (let round = 0; round < 2000; round += 1) {
            const people = Array.from({ length: any(6) }, () => {
              const from = any(8), rule = any(2) ? { keep: [1 + any(2)] } : { exclude: [1 + any(2)] };
              return { ...rule, ...(from ? { from } : {}), ...(any(3) ? { to: from + 1 + any(6) } : {}) };
            });
            const from = any(3) ? any(8) : null, to = any(3) ? (from ?? 0) + 1 + any(6) : null;
            const moments = Array.from({ length: 40 }, (_, at) => at / 2)
              .filter((at) => (from ?? 0) <= at && at < (to ?? 20));
            const states = moments.map((at) => window.rules.isKept({ people }, 1, at));
            const said = states.every(Boolean) ? "kept" : states.some(Boolean) ? "part" : "gone";
            const found = window.rules.keptWhile({ people }, 1, from, to);
            if (said !== found) return JSON.stringify([people, from, to, said, found]);
            const now = window.rules.keptWhile({ people }, 1, from ?? 0, from ?? 0);  // seen in one frame alone
            const isIt = window.rules.isKept({ people }, 1, from ?? 0);
            if (now !== (isIt ? "kept" : "gone")) return JSON.stringify([people, from, now]);
            const everybody = [1, 2, 3], isIn = (at) => (from ?? 0) <= at && at < (to ?? Infinity);
            for (const [name, changed] of [
              ["only", window.rules.withOnly({ people }, 1, everybody, from, to)],
              ["all", window.rules.withAll({ people }, from, to)],
            ]) {
              for (let at = 0; at < 20; at += 0.5) {
                for (const one of everybody) {
                  const before = window.rules.isKept({ people }, one, at);
                  const wanted = isIn(at) ? one === 1 || name === "all" : before;
                  if (window.rules.isKept(changed, one, at) !== wanted) {
                    return JSON.stringify([name, people, from, to, at, one]);
                  }
                }
              }
            }
          }
          return null;
        })()"""
    )
    assert wrong is None


def test_a_change_that_cannot_be_shown_is_saved(page, studio):
    page.show(studio.opened.address, width=DESK)
    page.value(
        """void (async () => {
          const { Corrections } = await import('/page/corrections.js'), sent = [], usual = window.fetch;
          window.fetch = async (path, { method }) => { sent.push(method); throw new TypeError("nobody answers"); };
          const corrections = new Corrections({ id: "none" }, () => { throw new Error("not shown"); }, () => {});
          corrections.take({ revision: "1", hints: {}, error: null });
          try {
            corrections.change((doc) => ({ ...doc, people: [{ exclude: [1] }] }));
          } catch (problem) {
            sent.push(problem.message);
          }
          await corrections.saving;
          window.fetch = usual;
          clearTimeout(corrections.retry);
          window.sent = sent;
        })()"""
    )
    page.until("window.sent !== undefined")
    assert page.value("window.sent.join()") == "PATCH,not shown"


POINTED = [
    {"at": 0.125, "click": [0.24, 0.6], "do": "keep"},
    {"at": 0.125, "click": [0.24, 0.6], "do": "remove"},
    {"at": 0.25, "box": [0.6, 0.1, 1.0, 0.9], "do": "remove"},
    {"at": 0.25, "box": [0.6, 0.1, 1.0, 0.9], "do": "keep", "to": 0.5},
    {"at": 0.0, "click": [0.79, 0.6], "from": 0.25},
]
CUT = 1 / 3
"""A time that the page writes with fewer digits."""
TENTHS = [tenth / 10 for tenth in range(9)]


def any_hints(chance):
    """Make rules by number and by word, and clicks and boxes, each for some time."""
    people = []
    for _ in range(chance.randrange(5)):
        named = chance.choice([1, 2, [2], [1, 2], "largest", ["largest", 2]])
        begin, end = sorted(chance.sample([0, *TENTHS[1:], round(CUT, 4), 2], 2))
        rule = {chance.choice(["keep", "exclude", "exclude"]): named, **({"from": begin} if begin else {})}
        people.append(rule if end == 2 else {**rule, "to": end})
    stroke = {"at": 0.5, "stroke": [[0.5, 0.5]], "do": "keep"}
    return {"people": people, "marks": chance.sample([*POINTED, stroke], chance.randrange(4))}


@pytest.fixture
def choice_of(studio, films, tmp_path):
    """Return a function that says whom the command keeps with given hints."""

    def choice(hints) -> Choice:
        path = tmp_path / "any.hints.yaml"
        path.write_text(json.dumps(hints), encoding="utf-8")
        settings = load_settings(flags={"people.hints": path}).settings
        with open_video(films / "wedding.mp4") as reader:
            return Keeping(reader, vr_of(reader.info, settings.video), settings).choice

    studio.job(studio.order(studio.film(), task="people"))
    return choice


def test_the_page_says_of_everybody_what_the_command_does(page, studio, choice_of):
    """Check that they agree on the same hints, before and after each change by the page."""
    film, chance = studio.film(), random.Random(25)
    assert studio.correct(film, {"marks": POINTED}).status == 200
    told = studio.get(f"/api/films/{film['id']}/people").json
    meant = {"words": told["words"], "pointed": told["pointed"]}
    page.show(studio.opened.address, width=DESK)
    page.value("void import('/page/corrections.js').then((module) => { window.rules = module; })")
    page.until("window.rules !== undefined")
    documents = [any_hints(chance) for _ in range(60)]
    parts = [chance.choice([(None, None), (0.2, 0.4), (None, CUT), (CUT, None)]) for _ in documents]
    said = page.shown.evaluate(
        """([documents, parts, times, meant]) => documents.map((before, at) => {
          const { isKept, withPerson, withOnly, withAll } = window.rules, [from, to] = parts[at];
          const changed = {
            before,
            kept: withPerson(before, 1, true, from, to, meant), out: withPerson(before, 1, false, from, to, meant),
            only: withOnly(before, 1, [1, 2], from, to, meant), all: withAll(before, from, to, meant),
          };
          return Object.fromEntries(Object.entries(changed).map(([name, hints]) => [name,
            { hints, kept: [1, 2].map((person) => times.map((time) => isKept(hints, person, time, meant))) }]));
        })""",
        [documents, parts, TENTHS, meant],
    )
    wanted = {"kept": (True, None), "out": (False, None), "only": (True, False), "all": (True, True)}
    to_one = [one["mark"] for one in meant["pointed"] if one["person"] == 1]
    for states, (begin, end) in zip(said, parts, strict=True):
        before = states["before"]["kept"]
        # Marks on other people stay: they find them whatever their numbers become.
        pointed = [mark for mark in states["before"]["hints"]["marks"] if "stroke" not in mark]
        others = [mark for mark in pointed if mark not in to_one]
        assert all(mark in states[name]["hints"]["marks"] for mark in others for name in ("kept", "out"))
        for name, state in states.items():
            choice = choice_of(state["hints"])
            kept = [[bool(choice.kept_at(time)[person]) for time in TENTHS] for person in (1, 2)]
            assert state["kept"] == kept, (name, state["hints"])
            for person, becomes in enumerate(wanted.get(name, ())):
                for at, time in enumerate(TENTHS):
                    is_in = becomes is not None and (begin or 0) <= time < (end or 1)
                    assert kept[person][at] == (becomes if is_in else before[person][at]), (name, states)


def test_a_click_that_comes_back_says_whom_it_means_though_people_were_looked_at_anew(page, studio, films):
    studio.job(studio.order(studio.film(), task="people"))
    (films / "wedding.hints.yaml").write_text(
        "marks:\n  - {at: 0, click: [0.79, 0.6], do: remove}\n", encoding="utf-8"
    )
    page.show(studio.opened.address, width=DESK)
    state = "document.querySelector('[data-person=\"2\"]')?.getAttribute('aria-checked')"
    page.until(f"{state} === 'false'")
    page.click('[data-person="2"]')
    page.until("document.querySelector('#saved').innerText.startsWith('Saved')")
    page.until(f"{state} === 'true'")
    held = []
    page.shown.route("**/people", lambda route: held.append(route), times=1)
    studio.job(studio.order(studio.film(), task="people"))
    eventually(lambda: page.value("true") and held)
    (asked,) = held
    answer = asked.fetch()  # from before the click came back, and slow to arrive
    with page.shown.expect_response(lambda said: said.request.method == "PATCH"):
        page.press("z")
    page.value("fetch('/api/studio').then((later) => later.text())")  # so that the save is known by now
    asked.fulfill(response=answer)
    said = "Without person 2 under a click at 0:00"
    page.until(f"document.querySelector('#people-notes').innerText.includes('{said}')")
    page.until(f"{state} === 'false'")


def test_whom_hints_by_hand_leave_out_is_seen_and_can_be_kept(page, studio, films):
    studio.job(studio.order(studio.film(), task="people"))
    (films / "wedding.hints.yaml").write_text(
        "people:\n  - exclude: largest\nmarks:\n  - {at: 0, click: [0.79, 0.6], do: remove}\n",
        encoding="utf-8",
    )
    page.show(studio.opened.address, width=DESK)
    state = "document.querySelector('[data-person=\"{}\"]')?.getAttribute('aria-checked')"
    for person in (1, 2):
        page.until(f"{state.format(person)} === 'false'")
    assert "Without person 2 under a click at 0:00" in page.text("#people-notes")
    page.press("2")  # the matte
    page.until_color(76 / 96, 0.6, BLACK)
    page.click('[data-person="2"]')
    page.until_color(76 / 96, 0.6, WHITE)
    assert page.value(state.format(2)) == "true"
    page.until_color(20 / 96, 0.6, BLACK)
    page.click('[data-person="1"]')
    page.until_color(20 / 96, 0.6, WHITE)
    page.until("document.querySelector('#saved').innerText.startsWith('Saved')")
    hints = read_hints(films / "wedding.hints.yaml")
    assert (hints.people, hints.marks) == ((), ())


@pytest.mark.parametrize(("is_turned", "aspect"), [(False, 3), (True, 1 / 3)])
def test_pixels_that_are_not_square_are_shown_so(page, serving, films, is_turned, aspect):
    film = write_clip(films / "wide.mp4", codec_options={"x264-params": "sar=2/1"})
    if is_turned:
        set_rotation(film, 90)
    page.show(serving(film).opened.address, width=DESK)
    page.until("document.querySelector('#shown').naturalWidth > 0")
    shown = page.value("(() => { const box = document.querySelector('#shown').getBoundingClientRect(); "
                       "return box.width / box.height; })()")  # fmt: skip
    assert shown == pytest.approx(aspect, rel=0.02)


def test_a_brush_is_shown_as_it_paints_where_pixels_are_not_square(page, serving, films):
    film = write_clip(
        films / "wide.mp4", frame_count=4, paint=lambda _: np.zeros((64, 96, 3), np.uint8),
        codec_options={"x264-params": "sar=2/1"},
    )  # fmt: skip
    studio = serving(film)
    studio.job(studio.order(studio.film("wide.mp4"), task="people"))
    page.show(studio.opened.address, width=DESK)
    page.until("document.querySelector('#shown').naturalWidth > 0")
    page.press("2")
    page.until_color(0.5, 0.5, BLACK)
    page.click("#tab-touch")
    for _ in range(9):
        page.press("]")
    page.drag("#picture", [(0.5, 0.5)])
    page.until_color(0.5, 0.5, WHITE)

    def shares(selector, channel):
        """Return the shares of the width and the height that are drawn."""
        return page.value(
            f"(() => {{ const drawn = document.querySelector('{selector}'), all = document.createElement('canvas'); "
            "const w = all.width = drawn.naturalWidth ?? drawn.width; "
            "const h = all.height = drawn.naturalHeight ?? drawn.height; "
            "const pen = all.getContext('2d'); pen.drawImage(drawn, 0, 0); "
            "const { data } = pen.getImageData(0, 0, w, h); "
            "const x = new Set(), y = new Set(); "
            "for (let at = 0; at < w * h; at++) "
            f"if (data[4 * at + {channel}] > 127) {{ x.add(at % w); y.add(at / w | 0); }} "
            "return [x.size / w, y.size / h]; })()"
        )

    assert shares("#marks", 3) == pytest.approx(shares("#shown", 0), rel=0.2)


def test_a_long_list_of_strokes_is_shown_in_part(page, studio, films):
    marks = [{"at": number / 24, "stroke": [[0.5, 0.5]], "do": "keep"} for number in range(19)] * 30
    page.show(studio.opened.address, width=DESK)
    page.until("document.querySelector('#shown').naturalWidth > 0")
    assert studio.correct(studio.film(), {"marks": marks}).status == 200
    page.until("document.querySelector('#banner button') !== null")
    page.click("#banner button")
    page.until("document.querySelectorAll('#strokes li').length === 301")
    assert "270 more, later in the video." in page.value("document.querySelector('#strokes').textContent")
