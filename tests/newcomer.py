"""Walks a newcomer's path: ``make newcomer``, or ``python tests/newcomer.py [FOLDER]``.

A wheel is built as for a release, installed in an empty environment, and used in an empty folder: twenty
videos with photographs, a numbered sequence and broken files among them, a folder that cannot be written,
``--dry-run``, ``--resume``, the examples of ``animate``, Ctrl-C. Each step prints its command and the result;
the exit code is 1 if one went wrong.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
WALK_LIMIT_SECONDS = 600
MAKE_FILMS = """
import sys, av, cv2, numpy as np
from fractions import Fraction
from pathlib import Path
folder = Path(sys.argv[1])
folder.mkdir()

def film(path, size, count, codec="libx264", sound=False):
    width, height = size
    with av.open(str(path), "w") as container:
        video = container.add_stream(codec, rate=25)
        video.width, video.height, video.pix_fmt = width, height, "yuv420p"
        audio = container.add_stream("aac", rate=48000) if sound else None
        for n in range(count):
            picture = np.full((height, width, 3), 60, np.uint8)
            cv2.circle(picture, (width // 4 + 2 * n % (width // 2), height // 2), height // 4, (90, 150, 210), -1)
            frame = av.VideoFrame.from_ndarray(picture, "bgr24")
            frame.pts, frame.time_base = n, Fraction(1, 25)
            container.mux(video.encode(frame))
        container.mux(video.encode(None))
        for n in range(count * 48000 // 25 // 1024 if audio else 0):
            part = av.AudioFrame.from_ndarray(np.zeros((2, 1024), np.float32), "fltp", "stereo")
            part.sample_rate, part.pts, part.time_base = 48000, 1024 * n, Fraction(1, 48000)
            container.mux(audio.encode(part))
        if audio:
            container.mux(audio.encode(None))

suffixes = [".mp4", ".mkv", ".mov", ".ts", ".avi"]
for n in range(20):
    film(folder / f"film {n:02}{suffixes[n % 5]}", [(160, 96), (320, 180), (96, 160)][n % 3], 8 + n, sound=n % 2 == 0)
for name, size in {"beach.jpg": (120, 160), "party.png": (90, 200), "me.jpeg": (64, 64)}.items():
    cv2.imwrite(str(folder / name), np.full((*size, 3), 120, np.uint8))
for n in range(1, 6):
    cv2.imwrite(str(folder / f"shot_{n:04}.png"), np.full((72, 128, 3), 20 * n, np.uint8))
(folder / "empty.mp4").touch()
(folder / "notes.mp4").write_text("not a video, only called so")
whole = (folder / "film 00.mp4").read_bytes()
(folder / "cut off.mp4").write_bytes(whole[: len(whole) * 2 // 3])
film(folder.parent / "long.mp4", (640, 360), 1500, sound=True)
"""


class Walk:
    """Steps, one after another.

    Args:
        folder: An empty one.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.here = folder / "here"
        self.here.mkdir()
        self.bin = folder / "env" / ("Scripts" if sys.platform == "win32" else "bin")
        self.failures: list[str] = []
        self._environment = {**os.environ, "VITASCOPE_HOME": str(folder / "home"), "COLUMNS": "100"}
        for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"):
            self._environment.pop(name, None)

    def prepare(self, what: str, command: Sequence[object], *, at: Path | None = None) -> None:
        """Run a command that must succeed before the walk continues."""
        began = time.monotonic()
        subprocess.run([str(word) for word in command], cwd=at or self.folder, check=True, env=self._environment,
                       stdout=subprocess.DEVNULL)  # fmt: skip
        print(f"-- {what}: {time.monotonic() - began:.0f} s", flush=True)

    def type(
        self,
        *words: object,
        code: int = 0,
        holds: Callable[[str], bool] = lambda _: True,
        interrupt_after: float | None = None,
    ) -> None:
        """Type a command of ours; note if its exit code or output is not as expected."""
        shown = " ".join(str(word) for word in words)
        print(f"$ vitascope {shown}", flush=True)
        began = time.monotonic()
        running = subprocess.Popen(
            [str(self.bin / "vitascope"), *map(str, words)],
            cwd=self.here,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if interrupt_after is not None:
            time.sleep(interrupt_after)
            running.send_signal(signal.SIGINT)
        said, _ = running.communicate(timeout=WALK_LIMIT_SECONDS)
        lines = said.splitlines()
        for line in lines if len(lines) <= 12 else [*lines[:6], f"… {len(lines) - 12} lines …", *lines[-6:]]:
            print(f"  {line}")
        is_right = running.returncode == code and holds(said) and "Traceback" not in said
        print(
            f"  = {running.returncode} after {time.monotonic() - began:.1f} s{'' if is_right else '   <-- WRONG'}"
        )
        if not is_right:
            self.failures.append(f"vitascope {shown}: {running.returncode}, expected {code}")

    def check(self, what: str, holds: bool) -> None:
        """Note a failed check."""
        print(f"  {'is' if holds else 'is NOT'} so: {what}", flush=True)
        if not holds:
            self.failures.append(what)

    def files(self, name: str) -> list[str]:
        """List a local folder, with hidden files."""
        folder = self.here / name
        return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def install(walk: Walk) -> Path:
    """Build the wheel as for a release, and install it alone; returns the wheel."""
    source = walk.folder / "source"
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
    for name in filter(None, tracked.decode().split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    tools = walk.folder / "tools"
    walk.prepare("an environment for the release's tools", [sys.executable, "-m", "venv", tools])
    python = tools / walk.bin.name / "python"
    walk.prepare("build and twine", [python, "-m", "pip", "install", "--quiet", "build", "twine"])
    walk.prepare("the wheel", [python, "-m", "build", "--outdir", walk.folder / "dist"], at=source)
    wheels = sorted((walk.folder / "dist").glob("*.whl"))
    walk.prepare(
        "twine check", [python, "-m", "twine", "check", "--strict", *sorted((walk.folder / "dist").iterdir())]
    )
    walk.prepare("an empty environment", [sys.executable, "-m", "venv", walk.folder / "env"])
    walk.prepare("pip install", [walk.bin / "python", "-m", "pip", "install", "--quiet", wheels[0]])
    return wheels[0]


def first_look(walk: Walk) -> None:
    """Check what a newcomer runs first: what is this, and what can it do here?"""
    walk.type("--version", holds=lambda said: re.match(r"\d+\.\d+", said) is not None)
    walk.type("--help", holds=lambda said: "segment" in said)
    walk.type("doctor")
    walk.type("segment", code=2)
    walk.type("segment", "film.mp4", "out.mp4", code=3, holds=lambda said: "no such file" in said)


def a_folder(walk: Walk) -> None:
    """Check twenty videos, photographs, a sequence, and three broken files."""
    fast = ("--profile", "fast", "--device", "cpu")
    walk.type("segment", "films", "cut/", *fast, "--dry-run", code=3)
    walk.check("a dry run writes nothing", not (walk.here / "cut").exists())
    walk.type("segment", "films", "cut/", *fast, code=3, holds=lambda said: said.count("\n") < 200)
    cut = walk.files("cut")
    videos = [name for name in cut if name.startswith("film ")]
    walk.check(f"20 videos were cut ({len(videos)})", len(videos) == 20)
    photographs = [name for name in cut if name.partition(".")[0] in ("beach", "party", "me")]
    walk.check(f"3 photographs were cut ({photographs})", len(photographs) == 3)
    shots = [name for name in cut if name.startswith("shot")]
    walk.check(f"the sequence of 5 was cut ({shots[:2]} …)", len(shots) == 5)
    walk.check("nothing is left of what is broken", len(cut) == 28)
    walk.type("segment", "films", "cut/", *fast, code=4, holds=lambda said: "-y replaces" in said)
    walk.type("segment", "films", "cut/", *fast, "--resume", code=3)
    walk.check("nothing was lost", walk.files("cut") == cut)
    (walk.here / "cut" / videos[3]).unlink()
    walk.type("segment", "films", "cut/", *fast, "--resume", code=3)
    walk.check("what was missing was made again", walk.files("cut") == cut)
    if Path("/proc/self").is_dir():
        walk.type("segment", "films/film 00.mp4", "/proc/cut.mp4", *fast, code=4,
                  holds=lambda said: "nothing can be created in /proc" in said)  # fmt: skip
    closed = walk.here / "closed"
    closed.mkdir()
    closed.chmod(0o555)
    if not os.access(closed, os.W_OK):  # root may write everywhere
        walk.type("segment", "films", "closed/", *fast, code=4)
    walk.check("a closed folder stays as it is", walk.files("closed") == [])


def one_film(walk: Walk) -> None:
    """Check what the README's first lines promise."""
    walk.type("segment", "films/film 01.mkv", "out.mp4", "--device", "cpu")
    fast = ("--profile", "fast")
    walk.type("segment", "films/film 01.mkv", "cut.mov", "--type", "alpha", *fast, "--preview", "sheet.png")
    made = [(walk.here / name).is_file() for name in ("out.mp4", "cut.mov", "sheet.png")]
    walk.check("there are a film, a transparent one and a sheet", all(made))
    for name in ("empty.mp4", "notes.mp4", "cut off.mp4"):
        walk.type("segment", f"films/{name}", "broken.mp4", "--profile", "fast", code=3)
        walk.check("it left nothing", not list(walk.here.glob("*broken*")))
    walk.type("segment", "long.mp4", "long_cut.mp4", "--profile", "fast", code=130, interrupt_after=8)
    left = [path.name for path in walk.here.glob("*long_cut*")]
    walk.check("Ctrl-C kept what was made, under another name", left in (["long_cut.mp4.part"], []))


def a_portrait(walk: Walk, wheel: Path) -> None:
    """Check the shipped examples, without and with what ``animate`` needs."""
    shutil.copytree(
        ROOT / "examples", walk.here / "examples", ignore=shutil.ignore_patterns("*.py", "__pycache__")
    )
    words = (
        "animate",
        "examples/astronaut.jpg",
        "--driver",
        "examples/talk.motion",
        "-o",
        "moved.mp4",
        "--end",
        "1",
    )
    walk.type(*words)
    walk.check("the portrait moves after the base install", (walk.here / "moved.mp4").is_file())
    walk.type("animate", "examples/astronaut.jpg", "--driver", "long.mp4", "-o", "b.mp4", "--end", "1", code=5,
              holds=lambda said: "pip install" in said)  # fmt: skip
    walk.prepare(
        "pip install '…[animate]'",
        [walk.bin / "python", "-m", "pip", "install", "--quiet", f"{wheel}[animate]"],
    )
    walk.type(*words, "-y")


def main() -> int:
    """Walk, and return 1 if something went wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folder", nargs="?", type=Path, help="walk and keep everything here; it must be empty"
    )
    options = parser.parse_args()
    # A background shell ignores Ctrl-C, and so do the processes that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="newcomer-") as temporary:
        folder = (options.folder or Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        walk = Walk(folder)
        wheel = install(walk)
        program = walk.folder / "make_films.py"
        program.write_text(MAKE_FILMS)
        walk.prepare("films", [walk.bin / "python", program, walk.here / "films"])
        first_look(walk)
        a_folder(walk)
        one_film(walk)
        a_portrait(walk, wheel)
    print(f"\n{len(walk.failures)} steps went wrong" if walk.failures else "\nall as it should be")
    for failure in walk.failures:
        print(f"  {failure}")
    return 1 if walk.failures else 0


if __name__ == "__main__":
    sys.exit(main())
