"""What the studio's page takes: first picture, pictures while scrubbing, first paint, who watches, a second cut.

A server of its own (``vitascope studio --no-browser``, on the CPU, an empty ``VITASCOPE_HOME`` but for the networks)
is asked as the page asks it, over one connection. ``previews`` alone needs none.

- ``first_preview``: a fresh server; from asking what the video is, as the page does when one is chosen, until the first
  matted picture has come. Bar: 2 s.
- ``scrubbing``: CLIP at 960x540; matted pictures a second while the mouse moves along the timeline, one wish after
  another, none of them asked for before. Bar: 1.5 on two cores.
- ``first_paint``: a browser that was never here; its first contentful paint, and the bytes of the page and its parts.
  Bars: 1 s, 300 kB.
- ``watching``: a cut with 50 connections that hear its news against the same cut without, in turns. Bar: 3 % of its
  speed.
- ``second_cut``: ten minutes of CLIP at 320x180; somebody is left out for ten seconds in the middle, and the stretches
  that are made anew are counted. Bar: those that the ten seconds touch, and no other.
- ``strokes``: CLIP at 960x540, ten seconds, with 100,000 brush strokes, some hundred a frame: to save them all, to
  load them, to save one more, a picture of another frame, and a cut; pictures and a cut without any beside them.
- ``dense_strokes``: as many within 0.8 s of that video, some five thousand a frame; one more is saved while a picture
  of another frame is made, and the picture with it is asked for then. Bars: 1 s to save, 2 s until it is shown.
- ``previews``: the two first of them without a server and a browser, which the machine need not have, on any device:
  the studio's own previews, asked through the library. ``cold_seconds`` is from a start without a network to the first
  matted picture; ``warm_seconds`` from choosing another video to its first one; ``pictures_a_second`` is as in
  ``scrubbing``. Bars on a GPU: 0.3 s once warm, and 8 a second.

Prediction: previews are bound by the network; listeners cost one text twice a second for all of them.

Where other programs keep the machine busy start it with ``chrt -r 1`` (Linux, root); rows say so. With
``chrt -f 1`` threads of the network that wait for work in a loop hold up the server.

Usage: python benchmarks/studio_page.py CLIP.mp4 [--only NAME] [--profile balanced] [--rounds 5]
       python benchmarks/studio_page.py CLIP.mp4 --only previews --device cuda

Rows go to ``benchmarks/results/studio_page.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from typing import Any

import av

from memory_over_jobs import scaled
from row_stamp import commit, write_rows
from vitascope.config import FlagValue, SettingsSource, vitascope_home
from vitascope.device import available_cores, select_device
from vitascope.models.store.store import ModelStore
from vitascope.studio.library import Library, ListedFile
from vitascope.studio.previews import Previews, Wanted

RESULTS = Path(__file__).parent / "results" / "studio_page.json"
SIDE = 960
WATCHING = 50
LONG_SECONDS = 600
STROKES = 100_000
LEFT_OUT = 300.0, 310.0
_JOB_SECONDS = 3600


class Studio:
    """A server that runs, and one connection to it."""

    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self.process, self.address = process, address
        self.host = address.split("/")[2]
        self.cookie = f"vitascope-studio-{self.host.split(':')[1]}={self._cookie()}"
        self._connection = HTTPConnection(self.host, timeout=600)

    def _cookie(self) -> str:
        """What the address is exchanged for."""
        entering = HTTPConnection(self.host, timeout=60)
        entering.request("GET", "/" + self.address.split("/", 3)[3])
        cookie = entering.getresponse().headers["Set-Cookie"]
        entering.close()
        return cookie.partition("=")[2].partition(";")[0]

    def ask(self, method: str, path: str, body: object = None) -> tuple[bytes, dict[str, str]]:
        """An answer, which must be a good one."""
        headers = {"Cookie": self.cookie, "Origin": f"http://{self.host}", "Sec-Fetch-Site": "same-origin"}
        self._connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = self._connection.getresponse()
        content = response.read()
        if response.status >= 400:
            raise SystemExit(f"{method} {path}: {response.status} {content[:500]!r}")
        return content, dict(response.headers)

    def get(self, path: str) -> Any:
        """An answer that is JSON."""
        return json.loads(self.ask("GET", path)[0])

    def film(self) -> dict[str, Any]:
        """What the one video is, as the page asks."""
        (listed,) = self.get("/api/films")["films"]
        found: dict[str, Any] = self.get(f"/api/films/{listed['id']}")
        return found

    def picture(self, film: dict[str, Any], seconds: float, revision: str | None = None) -> bytes:
        """A matted picture, as the page shows it."""
        if revision is None:
            revision = self.get(f"/api/films/{film['id']}/corrections")["revision"]
        words = f"version={film['version']}&t={seconds:.4f}&view=key&side={SIDE}&revision={revision}&beside=source"
        return self.ask("GET", f"/api/films/{film['id']}/frame?{words}")[0]

    def job(self, film: dict[str, Any], **order: object) -> tuple[float, dict[str, Any]]:
        """How many seconds a job takes from order to end, and what became of it."""
        began = time.perf_counter()
        made = json.loads(self.ask("POST", f"/api/films/{film['id']}/jobs", order)[0])
        while time.perf_counter() < began + _JOB_SECONDS:
            job: dict[str, Any] = self.get(f"/api/jobs/{made['id']}")
            if job["state"] == "done":
                return time.perf_counter() - began, job
            if job["state"] != "running" and job["state"] != "waiting":
                raise SystemExit(f"a job {job['state']}: {job['error']}")
            time.sleep(0.05)
        raise SystemExit("a job takes too long")


@contextmanager
def serving(what: Path, home: Path, profile: str) -> Iterator[Studio]:
    """A server for a video."""
    home.mkdir(exist_ok=True)
    if not (home / "models").exists():
        (home / "models").symlink_to(vitascope_home() / "models")
    command = [sys.executable, "-m", "vitascope", "studio", str(what), "--no-browser", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--device", "cpu", "--profile", profile],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"VITASCOPE_HOME": str(home)},
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if found := re.search(r"http://\S+", line):
                yield Studio(process, found.group())
                break
        else:
            raise SystemExit("the studio did not start")
    finally:
        process.terminate()
        process.wait()


def first_preview(clip: Path, folder: Path, profile: str, rounds: int) -> dict[str, Any]:
    """From choosing a video to its first matted picture."""
    took = []
    for number in range(rounds):
        with serving(clip, folder / f"home {number}", profile) as studio:
            began = time.perf_counter()
            studio.picture(studio.film(), 0.0)
            took.append(time.perf_counter() - began)
    return {"seconds": spread(took)}


def scrubbing(clip: Path, folder: Path, profile: str, rounds: int) -> dict[str, Any]:
    """Matted pictures a second along the timeline of a 540p video."""
    film_path = scaled(clip, folder / "film.mp4", width=960, height=540, frames=240)
    rates, pictures = [], 24
    with serving(film_path, folder / "home", profile) as studio:
        film = studio.film()
        studio.picture(film, 0.0)
        for number in range(rounds):
            moments = [
                film["seconds"] * (at + (number + 1) / (rounds + 1)) / pictures for at in range(pictures)
            ]
            began = time.perf_counter()
            for moment in moments:
                studio.picture(film, moment)
            rates.append(pictures / (time.perf_counter() - began))
    return {"film": "960x540", "pictures_a_second": spread(rates)}


def previews(clip: Path, folder: Path, profile: str, rounds: int, device: str) -> dict[str, Any]:
    """First pictures and scrubbing through the library: no server, no browser."""
    films = folder / "films"
    films.mkdir()
    for number in range(rounds + 1):
        scaled(clip, films / f"{number}.mp4", width=960, height=540, frames=240)
    source = SettingsSource(profile=profile, flags={"gpu.device": FlagValue(device, "--device")})
    listed = Library([films]).films()
    cold, warm, rates, pictures = [], [], [], 24

    def picture(made: Previews, film: ListedFile, seconds: float) -> None:
        wanted = Wanted(film, film.version, "none", seconds, "key", beside=("source",), longest_side=SIDE)
        made.picture(wanted).result()

    def first(made: Previews, film: ListedFile) -> float:
        began = time.perf_counter()
        made.facts(film).result()
        picture(made, film, 0.0)
        return time.perf_counter() - began

    for number in range(rounds):
        began = time.perf_counter()
        made = Previews(source, store=ModelStore(vitascope_home()))
        try:
            first(made, listed[0])
            cold.append(time.perf_counter() - began)
            film = listed[number + 1]
            warm.append(first(made, film))
            seconds = made.facts(film).result().info.duration_seconds or 0.0
            began = time.perf_counter()
            for at in range(pictures):
                picture(made, film, seconds * (at + 0.5) / pictures)
            rates.append(pictures / (time.perf_counter() - began))
        finally:
            made.close()
    return {
        "film": "960x540",
        "cold_seconds": spread(cold),
        "warm_seconds": spread(warm),
        "pictures_a_second": spread(rates),
    }


def first_paint(clip: Path, folder: Path, profile: str, rounds: int) -> dict[str, Any]:
    """The first contentful paint of a browser without a cache, and what it has loaded by then of the page itself."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # the browser that the tests drive
    from playwright.sync_api import sync_playwright

    from headless_browser import Page, find_browser, start_browser

    if find_browser() is None:
        raise SystemExit("no browser is on PATH")
    paints, sizes = [], []
    with serving(clip, folder / "home", profile) as studio, sync_playwright() as playwright:
        for _ in range(rounds):
            with start_browser(playwright) as browser, Page(browser) as page:
                page.show(studio.address, width=1280)
                until = time.perf_counter() + 60
                painted = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"
                while not (paint := page.value(painted)) and time.perf_counter() < until:
                    time.sleep(0.05)
                paints.append(paint)
                sizes.append(
                    page.value(
                        "[...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')"
                        ".filter((one) => new URL(one.name).pathname.startsWith('/page/'))]"
                        ".reduce((sum, one) => sum + one.transferSize, 0)"
                    )
                )
    return {"milliseconds": spread(paints), "page_kb": round(max(sizes) / 1000, 1)}


def watching(clip: Path, folder: Path, profile: str, rounds: int) -> dict[str, Any]:
    """A cut with and without connections that hear its news."""
    frames = 240
    film_path = scaled(clip, folder / "film.mp4", width=960, height=540, frames=frames)
    home = folder / "home"
    ratios, heard = [], []
    with serving(film_path, home, profile) as studio:
        film = studio.film()
        studio.job(film, task="cut", kind="mask")
        for number in range(2 * rounds):
            took = {}
            for watched in (False, True) if number % 2 else (True, False):
                forget_cuts(home)
                with listening(studio, WATCHING if watched else 0) as texts:
                    took[watched], job = studio.job(film, task="cut", kind="mask")
                    if watched:
                        heard.append(len(texts))
                Path(film_path.parent, job["made"][0]["name"]).unlink()
            ratios.append(took[False] / took[True])
    return {
        "film": f"960x540, {frames} frames",
        "connections": WATCHING,
        "speed_ratio": spread(ratios),
        "cost_percent": round((1 - median(ratios)) * 100, 2),
        "texts_heard_in_a_cut": round(median(heard)),
    }


@contextmanager
def listening(studio: Studio, connections: int) -> Iterator[list[int]]:
    """Pages that hear the news, in a process of their own; gives the length of each text that one of them hears."""
    texts: list[int] = []
    if not connections:
        yield texts
        return
    words = [sys.executable, "-c", _LISTENERS, studio.host, studio.cookie, str(connections)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    out = process.stdout
    if out.readline().strip() != "all":
        raise SystemExit("the listeners could not connect")
    reading = threading.Thread(target=lambda: texts.extend(int(line) for line in out), name="texts")
    reading.start()
    try:
        yield texts
    finally:
        process.terminate()
        process.wait()
        reading.join()


_LISTENERS = """
import asyncio, sys
from websockets.asyncio.client import connect

async def listen(number, joined):
    host, cookie, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    async with connect(f"ws://{host}/api/news", origin=f"http://{host}", additional_headers={"Cookie": cookie}) as news:
        await news.recv()
        joined.append(number)
        if len(joined) == count:
            print("all", flush=True)
        async for text in news:
            if not number:
                print(len(text), flush=True)

async def main():
    joined = []
    await asyncio.gather(*(listen(number, joined) for number in range(int(sys.argv[3]))))

asyncio.run(main())
"""


def forget_cuts(home: Path) -> None:
    """So that the same cut is work again."""
    for kept in ("stretches", "cache"):
        shutil.rmtree(home / kept, ignore_errors=True)


def second_cut(clip: Path, folder: Path, profile: str, rounds: int) -> dict[str, Any]:
    """Stretches that a correction of ten seconds has made anew in ten minutes."""
    del rounds
    long = repeated(
        scaled(clip, folder / "part.mp4", width=320, height=180, frames=240), folder / "film" / "long.mp4"
    )
    with serving(long, folder / "home", profile) as studio:
        film = studio.film()
        looking, _ = studio.job(film, task="people")
        first, _ = studio.job(film, task="cut", kind="mask")
        begin, end = LEFT_OUT
        path = f"/api/films/{film['id']}/corrections"
        hints = {"people": [{"exclude": [1], "from": begin, "to": end}]}
        studio.ask(
            "PUT", path, {"hints": hints, "revision": studio.get(path)["revision"], "window": "benchmark"}
        )
        second, job = studio.job(film, task="cut", kind="mask")
    return {
        "film": f"320x180, {film['seconds']:.0f} s",
        "corrected_seconds": end - begin,
        "looking_seconds": round(looking, 1),
        "first_seconds": round(first, 1),
        "second_seconds": round(second, 1),
        "ratio": round(second / first, 3),
        "said": [line for line in job["said"] if "anew" in line],
    }


def strokes(clip: Path, folder: Path, profile: str, rounds: int) -> dict[str, Any]:
    """A video with as many strokes as a file of hints is said to hold."""
    frames = 240
    film_path = scaled(clip, folder / "film.mp4", width=960, height=540, frames=frames)
    with serving(film_path, folder / "home", profile) as studio:
        film = studio.film()
        path, rate = f"/api/films/{film['id']}/corrections", film["frames_per_second"]

        def save(method: str, **what: Any) -> tuple[float, str]:
            body = what | {"revision": revision, "window": "benchmark"}
            seconds, (answer, _) = timed(lambda: studio.ask(method, path, body))
            return seconds, json.loads(answer)["revision"]

        def pictures(at: float) -> list[float]:
            return [
                timed(lambda second=second: studio.picture(film, (second + at) / (rounds + 1) * 9))[0]
                for second in range(rounds)
            ]

        studio.job(film, task="people")
        studio.picture(film, 0.0)
        without = pictures(0.3)
        plain, _ = studio.job(film, task="cut", kind="mask")
        marks = many_marks(frames, rate)
        revision = studio.get(path)["revision"]
        all_seconds, revision = save("PUT", hints={"marks": marks})
        load_seconds, (content, _) = timed(lambda: studio.ask("GET", path))
        one = {"splices": [{"section": "marks", "at": STROKES, "insert": marks[:1]}]}
        one_seconds, revision = save("PATCH", changes=one)
        first_seconds, _ = timed(lambda: studio.picture(film, 0.05))
        within = pictures(0.6)
        corrected, _ = studio.job(film, task="cut", kind="mask")
    return {
        "film": f"960x540, {frames} frames",
        "strokes": len(json.loads(content)["hints"]["marks"]),
        "sent_mb": round(len(content) / 1e6, 1),
        "save_all_seconds": all_seconds,
        "load_seconds": load_seconds,
        "save_one_more_seconds": one_seconds,
        "first_picture_seconds": first_seconds,
        "picture_seconds": spread(within),
        "picture_without_seconds": spread(without),
        "cut_seconds": round(corrected, 1),
        "cut_without_seconds": round(plain, 1),
    }


def dense_strokes(clip: Path, folder: Path, profile: str, rounds: int) -> dict[str, Any]:
    """A video with as many strokes in less than a second of it."""
    frames = 240
    film_path = scaled(clip, folder / "film.mp4", width=960, height=540, frames=frames)
    with serving(film_path, folder / "home", profile) as studio:
        film = studio.film()
        path, rate = f"/api/films/{film['id']}/corrections", film["frames_per_second"]
        studio.job(film, task="people")
        revision = studio.get(path)["revision"]
        studio.picture(film, 0.0, revision)
        without = [timed(lambda at=at: studio.picture(film, 2 + at, revision))[0] for at in range(rounds)]

        def save(over: Studio, method: str, **what: Any) -> tuple[float, str]:
            body = what | {"revision": revision, "window": "benchmark"}
            seconds, (answer, _) = timed(lambda: over.ask(method, path, body))
            return seconds, json.loads(answer)["revision"]

        marks = many_marks(round(0.8 * rate), rate)
        _, revision = save(studio, "PUT", hints={"marks": marks})
        first_seconds, _ = timed(lambda: studio.picture(film, 0.4, revision))
        saving, showing, beside = [], [], Studio(studio.process, studio.address)
        for number in range(2 * rounds):
            # Somebody scrubs while they paint: a picture of a neighbour is under way.
            scrubbing = threading.Thread(
                target=studio.picture, args=(film, 0.4 + (number + 1) / 240, revision), name="scrubbing"
            )
            scrubbing.start()
            more = {**marks[0], "at": round(10 / rate, 4), "stroke": [[0.3, number / 100], [0.6, 0.5]]}
            one = {"splices": [{"section": "marks", "at": STROKES + number, "insert": [more]}]}
            seconds, now = save(beside, "PATCH", changes=one)
            saving.append(seconds)
            scrubbing.join()
            revision = now
            showing.append(timed(partial(studio.picture, film, 0.4, revision))[0])
    return {
        "film": f"960x540, {frames} frames",
        "strokes": len(marks),
        "strokes_a_frame": len(marks) // round(0.8 * rate),
        "first_picture_seconds": first_seconds,
        "save_one_more_seconds": spread(saving),
        "picture_with_it_seconds": spread(showing),
        "picture_without_seconds": spread(without),
    }


def many_marks(frames: int, rate: float) -> list[dict[str, Any]]:
    """Strokes of four points, spread over the first frames of a video."""
    return [
        {
            "at": round(number % frames / rate, 4),
            "stroke": [[(number * 7 + point) % 997 / 997, number % 991 / 991] for point in range(4)],
            "radius": 0.01,
            "do": "remove" if number % 3 else "keep",
        }
        for number in range(STROKES)
    ]


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds that something takes, and what it gives."""
    began = time.perf_counter()
    result = work()
    return round(time.perf_counter() - began, 2), result


def repeated(part: Path, target: Path) -> Path:
    """A video over and over, without encoding it again, for ten minutes."""
    target.parent.mkdir()
    with av.open(str(target), "w") as made:
        offset, stream = 0, None
        while stream is None or offset * stream.time_base < LONG_SECONDS:
            with av.open(str(part)) as source:
                video = source.streams.video[0]
                stream = stream or made.add_stream_from_template(video)
                assert video.duration is not None
                for packet in source.demux(video):
                    if packet.dts is None or packet.pts is None:
                        continue
                    packet.pts, packet.dts, packet.stream = packet.pts + offset, packet.dts + offset, stream
                    packet.time_base = video.time_base
                    made.mux(packet)
                offset += video.duration
                stream.time_base = video.time_base
    return target


def scheduling() -> str:
    """How this was started beside other programs: ``usual``, or in turns before all others (``rr``, ``fifo``)."""
    return {os.SCHED_FIFO: "fifo", os.SCHED_RR: "rr"}.get(os.sched_getscheduler(0), "usual")


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, least and most."""
    named = {"median": median(values), "least": min(values), "most": max(values)}
    return {name: round(value, 3) for name, value in named.items()}


def in_short(row: dict[str, Any]) -> str:
    """The figures of a row on one line, spreads as ``median (least to most)``."""
    figures = (
        f"{name} {value['median']:g} ({value['least']:g} to {value['most']:g})"
        if isinstance(value, dict)
        else f"{name} {value:g}"
        for name, value in row.items()
        if isinstance(value, dict | float)
    )
    return f"{row['claim']}, {row['profile']}, {row['device']}: {', '.join(figures)}"


MEASURED = {
    "first_preview": first_preview,
    "scrubbing": scrubbing,
    "first_paint": first_paint,
    "watching": watching,
    "second_cut": second_cut,
    "strokes": strokes,
    "dense_strokes": dense_strokes,
}
"""By a server, on the CPU."""


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("clip", type=Path)
    parser.add_argument("--only", choices=[*MEASURED, "previews"])
    parser.add_argument("--profile", default="balanced")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of previews alone")
    options = parser.parse_args()
    if options.device != "cpu" and options.only != "previews":
        parser.error("--device goes with --only previews: a server is measured on the CPU")
    device = select_device(options.device)
    device_name = "CPU" if device.kind == "cpu" else device.label
    kept = json.loads(RESULTS.read_text()) if RESULTS.is_file() else []
    for name in [options.only] if options.only else [*MEASURED, "previews"]:
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as only:
            clip = Path(shutil.copy(options.clip, only))  # corrections and cuts go beside a video
            words = clip, Path(folder), options.profile, options.rounds
            figures = previews(*words, options.device) if name == "previews" else MEASURED[name](*words)
        row = {
            "claim": name,
            "profile": options.profile,
            "clip": options.clip.name,
            **figures,
            "device": device_name,
            "cores": available_cores(),
            "machine": platform.machine(),
            "scheduling": scheduling(),
            "commit": commit(),
            "date": time.strftime("%Y-%m-%d"),
        }
        same = name, options.profile, device_name
        kept = [old for old in kept if (old["claim"], old["profile"], old["device"]) != same] + [row]
        try:
            write_rows(RESULTS, kept)
        finally:  # last, so that whoever sees only the end of a long print sees the figures
            print(json.dumps(row))
            print(in_short(row), flush=True)


if __name__ == "__main__":
    main()
