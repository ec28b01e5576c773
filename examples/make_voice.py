"""Let eSpeak NG say the sentence of ``voice.ogg``, which moves a portrait.

Run it with ``python examples/make_voice.py`` (Debian: ``apt install espeak-ng``). What eSpeak NG says is not covered by
its licence; the sentence is our own.
"""

from __future__ import annotations

import io
import shutil
import subprocess
from pathlib import Path

import av

TEXT = (
    "Hello! My name is Pam. I am but a picture, and before you spoke, nobody had moved me. Maybe I bring people "
    "happiness."
)


def main() -> None:
    """Speak, and encode as Opus."""
    if shutil.which("espeak-ng") is None:
        raise SystemExit("eSpeak NG speaks: install it first (Debian: apt install espeak-ng)")
    said = subprocess.run(
        ["espeak-ng", "-v", "en-us+f4", "-s", "150", "-p", "45", "--stdout", TEXT],
        capture_output=True,
        check=True,
    )
    path = Path(__file__).with_name("voice.ogg")
    with av.open(io.BytesIO(said.stdout)) as source, av.open(str(path), "w") as target:
        stream = target.add_stream("libopus", rate=48_000, layout="mono", bit_rate=24_000)
        for frame in source.decode(audio=0):
            target.mux(stream.encode(frame))
        target.mux(stream.encode(None))
    print(f"{path.name}: {path.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
