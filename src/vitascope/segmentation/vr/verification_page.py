"""A page on which a person judges packed alpha: frames as a player unpacks them, beside their mattes, on any colour."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.errors import OutputError
from vitascope.file_lock import write_file
from vitascope.frames import Frame
from vitascope.gpu.kernels.preprocess import preprocess
from vitascope.gpu.kernels.region import Region
from vitascope.gpu.profiling.tables import html_page

_MOST_FRAMES = 16
_SIDE = 640
"""Most samples of a side of an eye on the page."""
_JPEG_QUALITY = 85


class UnpackedFrames:
    """Keeps frames spread evenly over a video of unknown length, each eye's picture and matte, and writes the page.

    Keeps every 1st, then every 2nd, 4th ... frame as the video goes on, so memory stays bounded.
    """

    def __init__(self) -> None:
        self._count = 0
        self._stride = 1
        self._kept: list[tuple[int, dict[str, Any]]] = []

    def add(self, frame: Frame, tiles: npt.NDArray[np.float32]) -> None:
        """Look at the next frame.

        Args:
            frame: A frame of 2E x E luma samples, in the host's memory.
            tiles: float32 [2, h, w], 0..1: what ``unpack_discs`` found in it.
        """
        index, self._count = self._count, self._count + 1
        if index % self._stride:
            return
        self._kept.append((index, {"t": round(frame.pts_seconds, 3), "eyes": _eyes(frame, tiles)}))
        if len(self._kept) > _MOST_FRAMES:
            self._stride *= 2
            self._kept = [one for one in self._kept if one[0] % self._stride == 0]

    def save(self, path: Path, *, title: str, lines: Sequence[str]) -> None:
        """Write the page: one file, which fetches nothing.

        Args:
            path: The HTML file.
            title: Its heading.
            lines: What is to be said of the video.

        Raises:
            OutputError: There is no frame, or it cannot be written.
        """
        if not self._kept:
            raise OutputError(f"{path}: no frame to show")
        frames = json.dumps([frame for _, frame in self._kept])
        told = "".join(f"<li>{escape(line)}</li>" for line in lines)
        body = _BODY.replace("LAST", str(len(self._kept) - 1)).replace("LINES", told)
        write_file(
            path,
            html_page(
                title, f"{body}<script>const frames={frames};{_SCRIPT}</script>", style=_STYLE
            ).encode(),
        )


def _eyes(frame: Frame, tiles: npt.NDArray[np.float32]) -> list[dict[str, str]]:
    """Each eye's picture and matte, as addresses that hold them."""
    side = min(frame.height, _SIDE)
    regions = [Region(eye * frame.height, 0, frame.height, frame.height) for eye in range(2)]
    pictures: Any = preprocess(frame, regions=regions, size=(side, side), layout="NHWC")
    made = []
    for picture, tile in zip(pictures, tiles, strict=True):
        matte: Any = cv2.resize(tile, (side, side), interpolation=cv2.INTER_LINEAR)
        # The matte is the picture's own alpha channel, so that a browser composites without a look at any pixel.
        mask = np.dstack([np.full((side, side, 3), 255), np.rint(matte * 255)]).astype(np.uint8)
        made.append({"picture": _address(_codes(picture), ".jpg"), "matte": _address(mask, ".png")})
    return made


def _codes(picture: Any) -> npt.NDArray[np.uint8]:
    rgb = np.rint(picture.clip(0, 1) * 255).astype(np.uint8)
    return np.asarray(cv2.cvtColor(rgb, cv2.COLOR_RGB2BGR), np.uint8)


def _address(picture: npt.NDArray[np.uint8], kind: str) -> str:
    encoded, data = cv2.imencode(
        kind, picture, [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY] if kind == ".jpg" else []
    )
    assert encoded  # codecs that OpenCV is never without
    mime = {".jpg": "image/jpeg", ".png": "image/png"}[kind]
    return f"data:{mime};base64,{base64.b64encode(data.tobytes()).decode()}"


_STYLE = """
.eyes{display:flex;flex-wrap:wrap;gap:8px}
.eyes figure{flex:1 1 300px;max-width:640px;margin:0}
.eyes canvas{width:100%;display:block;border-radius:6px}
.controls{display:flex;flex-wrap:wrap;gap:12px;align-items:center;margin:12px 0}
.controls input[type=range]{flex:1 1 220px;min-width:0}
"""

_BODY = """
<ul>LINES</ul>
<div class="controls">
<input type="range" id="at" min="0" max="LAST" value="0" aria-label="frame"><output id="time" for="at"></output>
</div>
<div class="controls">
<label><input type="radio" name="look" value="color" checked> on a colour</label>
<input type="color" id="color" value="#2b6cb0" aria-label="colour behind people">
<label><input type="radio" name="look" value="matte"> matte</label>
<label><input type="radio" name="look" value="picture"> picture</label>
</div>
<div class="eyes">
<figure><canvas></canvas><figcaption>left eye</figcaption></figure>
<figure><canvas></canvas><figcaption>right eye</figcaption></figure>
</div>
"""

_SCRIPT = """
const by=id=>document.getElementById(id),canvases=[...document.querySelectorAll('canvas')];
const load=url=>new Promise(done=>{const image=new Image();image.onload=()=>done(image);image.src=url});
let asked=0;
async function show(){
  const turn=++asked,frame=frames[+by('at').value],look=document.querySelector('[name=look]:checked').value;
  by('time').textContent=frame.t.toFixed(2)+' s';
  const shown=await Promise.all(frame.eyes.map(eye=>Promise.all([load(eye.picture),load(eye.matte)])));
  if(turn!==asked)return;
  shown.forEach(([picture,matte],eye)=>{
    const canvas=canvases[eye],pen=canvas.getContext('2d');
    canvas.width=picture.width;canvas.height=picture.height;
    const fill=color=>{pen.globalCompositeOperation='destination-over';pen.fillStyle=color;
      pen.fillRect(0,0,canvas.width,canvas.height)};
    if(look==='matte'){pen.drawImage(matte,0,0);fill('#000');return}
    pen.drawImage(picture,0,0);
    if(look==='picture')return;
    pen.globalCompositeOperation='destination-in';pen.drawImage(matte,0,0);fill(by('color').value);
  });
}
document.querySelectorAll('input').forEach(input=>input.addEventListener('input',show));
show();
"""
